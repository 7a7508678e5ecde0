"""Specs of sharktank's regression tests with several calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.load import list_urls
from iree_gauntlet.stages import Kind, Stage
from tests.support.spec_trees import CPU, find_argv, find_step, list_tree_problems, load, plan, write_tree

if TYPE_CHECKING:
    from pathlib import Path

SPEC = {"mlir": "https://h/m.mlir", "real_weights": "https://h/w.irpa", "device": "local-task", "compiler_flags": []}
NAME = "regression_tests/m/s_cpu.json"
INIT = {"function": "init", "inputs": [{"value": "i32=0"}], "outputs": [{"value": "4xf32=0"}]}
ID = "m/s@cpu:threshold"
SMALL: dict[str, Any] = {"device": "local-task", "benchmark_flags": []}


def make_spec(*calls: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**SPEC, "calls": [*calls], **changes}


def test_several_calls_are_one_command_of_the_bindings(tmp_path: Path) -> None:
    step = {"inputs": ["@0.0", "@0.input0", {"source": "https://h/x.npy"}], "changes": ["@0.0"]}
    write_tree(tmp_path, {NAME: make_spec(INIT, step, threshold_args=["--expected_f32_threshold=0.1"])})
    cases = load(tmp_path, CPU)
    made = plan(cases, (Stage.THRESHOLD,))
    folder = "/run/steps/m/s.cpu"
    python, worker, *words = find_argv(made, ID)
    assert (python, worker.rpartition("/")[2]) == ("python", "run_calls.py")
    assert words == [
        *("--device=local-task", f"--module={folder}/compile/module.vmfb"),
        *("--parameters=model=/cache/h/w.irpa", "--expected_f32_threshold=0.1", f"--outputs={folder}/threshold"),
        *("--call=init", "--input=i32=0", "--expected_output=4xf32=0"),
        *("--call=", "--input_from=0.0", "--input_from=0.input0", "--input=@/cache/h/x.npy", "--changes=0.0"),
    ]
    assert ("calls[1].inputs[2].source", "https://h/x.npy") in list(list_urls(cases.cases[0]))
    blocked = find_step(plan(cases, (Stage.THRESHOLD,), calls_obstacle="no bindings"), ID)
    assert blocked.blocked == "no bindings"


def test_one_call_is_a_spec_without_calls(tmp_path: Path) -> None:
    whole = {**SPEC, "run_function": "init", "inputs": INIT["inputs"], "outputs": INIT["outputs"]}
    commands = []
    # The tool itself also reads numbers that are not decimal.
    hexadecimal = {**INIT, "inputs": [{"value": "i32=0x0"}]}
    assert not list_tree_problems(tmp_path, make_spec(hexadecimal))
    for content in (make_spec(INIT), whole):
        write_tree(tmp_path, {NAME: content})
        commands.append(find_argv(plan(load(tmp_path, CPU), (Stage.THRESHOLD,)), ID))
    assert commands[0] == commands[1]
    assert commands[0][0] == "iree-run-module"


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        (make_spec({"inputs": ["@5.0"]}), "calls[0].inputs[0]", "@5.0 is of call 5, which is not before call 0"),
        (
            make_spec(INIT, {"inputs": ["@1.0"]}),
            "calls[1].inputs[0]",
            "is not before call 1 (earlier calls: only call 0)",
        ),
        (make_spec(INIT, {"inputs": ["@0.1"]}), "calls[1].inputs[0]", "@0.1: call 0 has 1 expected outputs"),
        (make_spec(INIT, {"inputs": ["@0.input1"]}), "calls[1].inputs[0]", "@0.input1: call 0 has 1 inputs"),
        (make_spec(INIT, {"changes": ["@0.input0"]}), "calls[1].changes[0]", "expected an output of an earlier call"),
        (make_spec(INIT, INIT, {"changes": ["@3.0"]}), "calls[2].changes[0]", "(earlier calls: 0 to 1)"),
        (make_spec({"inputs": ["0.1"]}), "calls[0].inputs[0]", "expected a value of an earlier call such as @0.1"),
        (make_spec({"inputs": [{"value": "4xf3=1"}]}), "calls[0].inputs[0].value", "expected values such as"),
        (make_spec({"input": []}), "calls[0].input", "did you mean 'inputs'?"),
        (make_spec(), "calls", "expected at least 1 item, found 0"),
        *(
            (make_spec(INIT, {field: [INIT["inputs"][0], {"value": value}]}), f"calls[1].{field}[1].value", message)
            for field, value, message in (
                ("inputs", "2xf32=0x3 4", "'2xf32=0x3 4' must be decimal numbers with their type"),
                ("outputs", "f32=nan", "'f32=nan' must be decimal numbers"),
                ("outputs", "i1=01", "write others, and those of i1, complex and f8, to a file"),
                ("inputs", "1x2xi1=1 0", "such as 01 (several calls read them from a file only)"),
                ("inputs", "3", "'3' must be decimal numbers with their type, such as 4xf32=1 2 3 4"),
            )
        ),
        (make_spec(INIT, run_function="init"), "calls", "is given with run_function"),
        (make_spec(INIT, outputs=[{"value": "i32=1"}]), "calls", "is given with outputs"),
    ],
)
def test_wrong_calls(content: dict[str, Any], field: str, message: str, tmp_path: Path) -> None:
    (problem,) = list_tree_problems(tmp_path, content)
    assert problem.field == field
    assert problem.line > 0
    assert message in problem.message


def test_a_benchmark_of_several_calls_is_one_command_of_the_bindings(tmp_path: Path) -> None:
    calls = [
        {"function": "init", "inputs": [{"value": "i32=0"}]},
        {"function": "step", "timed": True, "inputs": ["@0.0", "@0.input0", {"source": "https://h/x.npy"}]},
    ]
    benchmark = {"device": "local-task", "calls": calls, "benchmark_flags": ["--benchmark_repetitions=3"]}
    write_tree(tmp_path, {NAME: SPEC, "benchmarks/m/s_cpu.json": benchmark})
    cases = load(tmp_path, CPU)
    assert not cases.problems
    made = plan(cases, (Stage.BENCHMARK, Stage.MEMORY, Stage.COUNT))
    python, worker, *words = find_argv(made, "m/s@cpu:benchmark")
    assert (python, worker.rpartition("/")[2]) == ("python", "run_calls.py")
    assert words == [
        *("--device=local-task", "--module=/run/steps/m/s.cpu/compile/module.vmfb"),
        *("--parameters=model=/cache/h/w.irpa", "--benchmark_format=json", "--benchmark_repetitions=3"),
        *("--call=init", "--input=i32=0"),
        *("--call=step", "--timed", "--input_from=0.0", "--input_from=0.input0", "--input=@/cache/h/x.npy"),
    ]
    case = next(case for case in cases.cases if case.kind is Kind.BENCHMARK)
    assert ("calls[1].inputs[2].source", "https://h/x.npy") in list(list_urls(case))
    for stage in ("memory", "count"):
        assert "and this one makes 2 calls" in find_step(made, f"m/s@cpu:{stage}").skip
    blocked = find_step(plan(cases, (Stage.BENCHMARK,), calls_obstacle="no bindings"), "m/s@cpu:benchmark")
    assert blocked.blocked == "no bindings"


def test_a_benchmark_of_one_call_is_a_spec_without_calls(tmp_path: Path) -> None:
    commands = []
    for fields in (
        {"calls": [{"function": "init", "inputs": [{"value": "i32=0x0"}]}]},
        {"function_run": "init", "inputs": ["i32=0x0"]},
    ):
        write_tree(tmp_path, {NAME: SPEC, "benchmarks/m/s_cpu.json": SMALL | fields})
        commands.append(find_argv(plan(load(tmp_path, CPU), (Stage.BENCHMARK,)), "m/s@cpu:benchmark"))
    assert commands[0] == commands[1]
    assert commands[0][0] == "iree-benchmark-module"


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"function_run": "step"}, "calls", "is given with function_run: write it into the calls"),
        ({"inputs": ["4xf32"]}, "calls", "is given with inputs: write it into the calls"),
        ({"calls": []}, "calls", "expected at least 1 item"),
        ({"calls": [{}]}, "calls", "the only call has no function"),
        ({"calls": [{}, {"outputs": []}]}, "calls[1].outputs", "unknown field"),
        ({"calls": [{}, {"inputs": ["@1.0"]}]}, "calls[1].inputs[0]", "is not before call 1"),
        ({"calls": [{}, {"inputs": [{"value": "i32=0x1"}]}]}, "calls[1].inputs[0].value", "must be decimal numbers"),
    ],
)
def test_wrong_calls_of_a_benchmark(fields: dict[str, Any], field: str, message: str, tmp_path: Path) -> None:
    content = {"calls": [{}, {}], **SMALL} | fields
    (problem,) = list_tree_problems(tmp_path, content, "benchmarks/m/s_cpu.json")
    assert problem.field == field
    assert message in problem.message
