"""Mistakes in spec files: each message names file, line, field, the actual value and the expected one."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.dialects.load import read_specs
from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.dialects.sharktank_schema import Benchmark, RegressionV1, RegressionV2
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.budgets import scale_example_count
from tests.support.spec_trees import BENCHMARK, CPU, HIP_SPEC, SPEC, list_tree_problems, load, plan, write_tree
from tests.support.spoiling import (
    ACTIONS,
    classify,
    damage_text,
    get_at,
    is_reported,
    json_values,
    list_paths,
    rename_key,
    spoil,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ROCM = Target("rocm", "gfx942", "mi300")
PAIRED = {"regression_tests/m/s_cpu.json": HIP_SPEC}
LONG = "x" * 300 + ".mlir"


def line_in(document: Any, key: str) -> int:
    """The line of a field in the file that `write_tree` makes of a document."""
    lines = json.dumps(document, indent=2).splitlines()
    return next(number for number, line in enumerate(lines, 1) if f'"{key}"' in line)


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    ("changes", "field", "key", "says"),
    [
        ({"mlir": 5}, "mlir", "mlir", ["expected a string", "the number 5"]),
        ({"mlir": None}, "mlir", "mlir", ["expected a string", "null"]),
        ({"mlir": "  "}, "mlir", "mlir", ["non-empty string"]),
        ({"inputs": {}}, "inputs", "inputs", ["expected an array", "an object"]),
        ({"compile_only": "yes"}, "compile_only", "compile_only", ["expected true or false", 'the string "yes"']),
        ({"compile_only": 1}, "compile_only", "compile_only", ["expected true or false", "the number 1"]),
        ({"compiler_flags": "--x"}, "compiler_flags", "compiler_flags", ["expected an array", 'the string "--x"']),
        ({"compiler_flags": ["--a", 3]}, "compiler_flags[1]", "compiler_flags", ["expected a string"]),
        ({"compiler_flags": ["x=1"]}, "compiler_flags[0]", "compiler_flags", ["starts with '-'", "'x=1'"]),
        ({"compiler_flags": ["--a\nb"]}, "compiler_flags[0]", "compiler_flags", ["line break"]),
        ({"tuner_file": ["a"]}, "tuner_file", "tuner_file", ["expected an object", "an array"]),
        ({"tuner_file": {"mi300": 1}}, "tuner_file.mi300", "mi300", ["expected a string", "the number 1"]),
        ({"timeouts": {"compile": 0}}, "timeouts.compile", "compile", ["greater than 0", "the number 0"]),
        ({"timeouts": {"compil": 5}}, "timeouts", "timeouts", ["unknown stage 'compil'", "compile, threshold"]),
        ({"markers": ["two words"]}, "markers[0]", "markers", ["one word", "'two words'"]),
        ({"markers": ["and"]}, "markers[0]", "markers", ["one word", "'and'"]),
        ({"mlirr": "x"}, "mlirr", "mlirr", ["unknown field", "did you mean 'mlir'?"]),
        ({"compile_flags": []}, "compile_flags", "compile_flags", ["did you mean 'compiler_flags'?"]),
        ({"zzzzzz": 1}, "zzzzzz", "zzzzzz", ["unknown field", "Known fields: ", "threshold_args"]),
        ({"int": 1}, "int", '"int', ["unknown field"]),
        ({"inputs": [{}]}, "inputs[0]", "inputs", ["neither 'source' nor 'value'"]),
        ({"inputs": [{"source": None}]}, "inputs[0]", "source", ["neither 'source' nor 'value'"]),
        ({"inputs": [{"value": "f32"}]}, "inputs[0].value", "value", ["value of a scalar", "f32=0"]),
        ({"inputs": [{"value": "x.npy"}]}, "inputs[0].value", "value", ["4xf32=1 2 3 4", "'source' names a file"]),
        ({"inputs": [{"value": "@x.npy"}]}, "inputs[0].value", "value", ["'source' names a file"]),
        ({"inputs": [{"value": "4xf32=@x.bin"}]}, "inputs[0].value", "value", ["'source' names a file"]),
        ({"inputs": [{"value": "4xf32=1 2 3"}]}, "inputs[0].value", "value", ["one value, or all 4, found 3"]),
        ({"inputs": [{"value": "2xi8=1 300"}]}, "inputs[0].value", "value", ["'300' is not a value of i8"]),
        ({"inputs": [{"value": "2xf32=1,2a"}]}, "inputs[0].value", "value", ["'2a' is not a value of f32"]),
        ({"inputs": [{"value": "2xi1=true"}]}, "inputs[0].value", "value", ["'true' is not a value of i1", "01"]),
        ({"inputs": [{"source": "https://h/x", "value": "4xf32=1"}]}, "inputs[0].value", "value", ["'source'"]),
        (
            {"inputs": [{"source": "https://h/x", "valeu": "f32"}]},
            "inputs[0].valeu",
            "valeu",
            ["unknown field", "'value'"],
        ),
        ({"inputs": [{"source": "https://h/x", "value": "1x2"}]}, "inputs[0].value", "value", ["1x64xf16", "'1x2'"]),
        (
            {"inputs": [{"source": "https://h/x.npy", "value": "1xf32"}]},
            "inputs[0].value",
            "value",
            ["'1xf32' with an .npy file", "remove 'value'"],
        ),
        ({"add_pipeline_module": True}, "add_pipeline_module", "add_pipeline_module", ["pipeline_mlir is missing"]),
        ({"onnx_import": {}}, "onnx_import", "onnx_import", ["not an .onnx file"]),
        (
            {"mlir": "https://h/m.onnx", "onnx_import": {"opsett": 3}},
            "onnx_import.opsett",
            "opsett",
            ["did you mean 'opset'?"],
        ),
        ({"mlir": "../../../x.mlir"}, "mlir", "mlir", ["is outside of the spec folder", "file:///"]),
        ({"mlir": "/etc/x.mlir"}, "mlir", "mlir", ["absolute path", "file:///"]),
        ({"mlir": "a\\b.mlir"}, "mlir", "mlir", ["backslash"]),
        ({"mlir": "C:\\b.mlir"}, "mlir", "mlir", ["backslash"]),
        ({"mlir": "C:/b.mlir"}, "mlir", "mlir", ["absolute path"]),
        ({"mlir": "https://[h/m.mlir"}, "mlir", "mlir", ["is not a URL: Invalid IPv6 URL", "%5B"]),
        ({"inputs": [{"source": "file://[x.npy"}]}, "inputs[0].source", "source", ["is not a URL: Invalid IPv6"]),
        ({"inputs": [{"source": "../../../x.npy"}]}, "inputs[0].source", "source", ["is outside of the spec folder"]),
        ({"real_weights": "../../../x"}, "real_weights", "real_weights", ["is outside of the spec folder"]),
        ({"tuner_file": {"mi300": "../x"}}, "tuner_file.mi300", "mi300", ["is outside of the external files folder"]),
        ({"tuner_file": {"mi300": "/x"}}, "tuner_file.mi300", "mi300", ["is outside of the external files folder"]),
        ({"tuner_file": {"mi300": LONG}}, "tuner_file.mi300", "mi300", ["name longer than"]),
    ],
)
def test_mistakes_in_a_regression_spec(
    tmp_path: Path, changes: dict[str, Any], field: str, key: str, says: list[str]
) -> None:
    document = HIP_SPEC | changes
    problem = only(list_tree_problems(tmp_path, document, "regression_tests/m/s_rocm.json"))
    assert problem.file == str(tmp_path / "regression_tests/m/s_rocm.json")
    assert problem.field == field
    exact = line_in(document, key.strip('"'))
    # What is missing has its parent's line, an item of an array its own.
    assert exact - 1 <= problem.line <= exact + 2
    for text in says:
        assert text in str(problem)


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"inputs": [{"source": "x"}], "function_run": "f"}, "inputs[0]", ["expected a string", "an object"]),
        ({"inputs": "1xf32"}, "inputs", ["expected an array"]),
        ({"inputs": ["1xq32"]}, "inputs[0]", ["expected an input", "'1xq32'"]),
        ({"inputs": ["1xf32\0"]}, "inputs[0]", ["expected an input"]),
        ({"inputs": ["3xi64=1 2"]}, "inputs[0]", ["one value, or all 3, found 2"]),
        ({"inputs": ["i64"]}, "inputs[0]", ["i64=0"]),
        ({"inputs": [""]}, "inputs[0]", ["expected an input", "''"]),
        ({"benchmark_repetitions": "10"}, "benchmark_repetitions", ["expected a number", 'the string "10"']),
        ({"benchmark_repetitions": 2.5}, "benchmark_repetitions", ["whole number", "2.5"]),
        ({"benchmark_repetitions": 0}, "benchmark_repetitions", ["greater than 0"]),
        ({"benchmark_repetitions": True}, "benchmark_repetitions", ["expected a number", "true"]),
        ({"golden_dispatch": {"mi300": 1.5}}, "golden_dispatch.mi300", ["expected a whole number", "1.5"]),
        ({"golden_dispatch": {"mi300": -1}}, "golden_dispatch.mi300", ["-1"]),
        ({"golden_size": {"mi300": 10**400}}, "golden_size.mi300", ["less than"]),
        ({"golden_time_ms": {"mi300": 0}}, "golden_time_ms.mi300", ["greater than 0"]),
        ({"golden_time_ms": {"int": "x"}}, "golden_time_ms.int", ["expected a number"]),
        ({"golden_time_ms": 7}, "golden_time_ms", ["expected an object", "the number 7"]),
        ({"golden_tim": {}}, "golden_tim", ["did you mean 'golden_time'?"]),
        ({"golden_time": {"mi300": 5}}, "golden_time", ["golden_time_ms", "keep one"]),
        ({"golden_time": {"mi300": "5"}}, "golden_time.mi300", ["expected a number"]),
        ({"compilation_required": "False"}, "compilation_required", ["expected true or false", 'the string "False"']),
        (
            {"benchmark_flags": ["--benchmark_repetitions=5"]},
            "benchmark_repetitions",
            ["is 10, but benchmark_flags set 5", "keep one"],
        ),
        (
            {"benchmark_flags": ["--benchmark_min_warmup_time=1.5s"]},
            "benchmark_min_warmup_time",
            ["is 3, but benchmark_flags set 1.5s"],
        ),
        ({"compilation_required": True}, "compilation_required", ["mlir_file_name", "mlir_file_path"]),
        (
            {"compilation_required": True, "mlir_file_name": "a.mlir", "mlir_file_path": "b.mlir"},
            "mlir_file_path",
            ["mlir_file_name", "keep one"],
        ),
        ({"compilation_required": True, "mlir_file_path": "../a.mlir"}, "mlir_file_path", ["outside of the external"]),
        ({"compilation_required": True, "mlir_file_name": "a/b"}, "mlir_file_name", ["without folders", "'a/b'"]),
        (
            {"compilation_required": True, "mlir_url": "https://h/a.mlir", "mlir_file_url": "https://h/a.mlir"},
            "mlir_file_url",
            ["mlir_url", "keep one"],
        ),
        ({"compilation_required": True, "mlir_file_name": "/a.mlir"}, "mlir_file_name", ["without folders"]),
        ({"compilation_required": True, "mlir_file_path": f"/{LONG}"}, "mlir_file_path", ["name longer than"]),
        ({"compiled_file_name": "a/../x"}, "compiled_file_name", ["without '..'"]),
        ({"compiled_file_name": "/x"}, "compiled_file_name", ["relative path"]),
        ({"real_weights_file_path": "../x.irpa"}, "real_weights_file_path", ["is outside of the external"]),
        (
            {"real_weights_file_path": "/x.irpa", "real_weights_file_name": "x.irpa"},
            "real_weights_file_path",
            ["real_weights_file_name", "keep one"],
        ),
        ({"real_weights_file_name": ".."}, "real_weights_file_name", ["without folders"]),
    ],
)  # fmt: skip
def test_mistakes_in_a_benchmark_spec(tmp_path: Path, changes: dict[str, Any], field: str, says: list[str]) -> None:
    write_tree(tmp_path, PAIRED)
    problem = only(list_tree_problems(tmp_path, BENCHMARK | changes, "benchmarks/m/s_cpu.json"))
    assert problem.file == str(tmp_path / "benchmarks/m/s_cpu.json")
    assert problem.field == field
    assert problem.line > 1
    for text in says:
        assert text in str(problem)


@pytest.mark.parametrize("name", ["inputs", "function_run", "device"])
def test_missing_fields_of_a_benchmark(tmp_path: Path, name: str) -> None:
    document = {key: value for key, value in BENCHMARK.items() if key != name}
    problem = only(list_tree_problems(tmp_path, document, "benchmarks/m/s_cpu.json"))
    assert (problem.field, problem.line) == (name, 1)
    assert "is missing" in problem.message


@pytest.mark.parametrize("document", [SPEC, HIP_SPEC])
def test_a_missing_program(tmp_path: Path, document: dict[str, Any]) -> None:
    document = {key: value for key, value in document.items() if key != "mlir"}
    name = "regression_tests/m/s_cpu.json" if "device" in document else "regression_tests/m/s.json"
    problem = only(list_tree_problems(tmp_path, document, name))
    assert (problem.field, problem.line) == ("mlir", 1)
    assert "is missing" in problem.message


def test_a_missing_device(tmp_path: Path) -> None:
    document = {key: value for key, value in HIP_SPEC.items() if key != "device"}
    problem = only(list_tree_problems(tmp_path, document))
    assert problem.field == "device"
    assert "compile_only" in problem.message
    assert not list_tree_problems(tmp_path, document | {"compile_only": True})


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    found = list_tree_problems(tmp_path, HIP_SPEC | {"mlir": 1, "run_function": [], "junk": 0, "inputs": [1]})
    assert {problem.field for problem in found} == {"mlir", "run_function", "junk", "inputs[0]"}


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ('{\n  "mlir": "https://h/x",\n  "inputs": [],\n}', 3, "trailing comma"),
        ('{\n  "mlir": "https://h/x"\n\n  "inputs": []\n}', 2, "a comma is missing at the end of this line"),
        ('{\n  "mlir": "https://h/x" "inputs": []\n}', 2, "Expecting ',' delimiter"),
        ('{\n  "compiler_flags": [\n    "--x",\n  ]\n}', 3, "trailing comma"),
        ('{\n  "mlir": https\n}', 2, "is not JSON"),
        ("{\n  // a comment\n}", 2, "is not JSON"),
        ('{\n  "mlir": "https://h/x', 2, "is not JSON"),
        ('{\n  "mlir":', 2, "ends in the middle"),
        ('{"mlir": "x"} {}', 1, "is not JSON"),
        ("", 0, "is empty: expected a JSON object"),
        (" \n\n", 0, "is empty"),
        ("[]", 1, "expected a JSON object, found an array"),
        ('"text"', 1, 'found the string "text"'),
        ("null", 1, "found null"),
        (b'{\n"mlir": "\xff"}', 2, "is not UTF-8: byte 0xff at offset 11"),
        ('{\n"note NaN": [\n  NaN]\n}', 3, "NaN is not a JSON number"),
        ('{"golden_time_ms":\n{"mi300": -Infinity}}', 2, "-Infinity is not a JSON number"),
        ("[" * 100_000, 0, "nested too deeply"),
        ('{"mlir":' + "[" * 40 + "]" * 40 + "}", 0, "nested too deeply"),
        ('{"golden_size": {"mi300": ' + "9" * 5000 + "}}", 0, "contains an invalid number"),
        ('{"mlir": "\\ud800"}', 0, "surrogate"),
        ("{}", 1, "is not a spec of a known format (fields found: none)"),
        ('{"name": 1, "steps": []}', 1, "is not a spec of a known format (fields found: name, steps)"),
    ],
)
def test_files_that_are_no_spec(tmp_path: Path, content: str | bytes, line: int, says: str) -> None:
    problem = only(list_tree_problems(tmp_path, content))
    assert problem.line == line
    assert says in problem.message
    assert problem.hint


@pytest.mark.parametrize("depth", range(880, 1010, 10))
def test_nesting_near_the_interpreters_limit(tmp_path: Path, depth: int) -> None:
    problem = only(list_tree_problems(tmp_path, '{"mlir":' + "[" * depth + "]" * depth + "}"))
    assert "nested too deeply" in problem.message


def test_duplicate_keys(tmp_path: Path) -> None:
    text = '{\n  "mlir": "https://h/x",\n  "description": "\\"device\\"",\n  "device": "a",\n  "device": "b"\n}'
    problem = only(list_tree_problems(tmp_path, text))
    assert (problem.line, problem.field) == (5, "device")
    assert "twice" in problem.message


def test_a_number_that_is_infinite(tmp_path: Path) -> None:
    text = json.dumps(BENCHMARK).replace("7.5", "1e999")
    problem = only(list_tree_problems(tmp_path, text, "benchmarks/m/s_cpu.json"))
    assert problem.field == "golden_time_ms.mi300"
    assert "expected a finite number" in problem.message


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert not list_tree_problems(tmp_path, b"\xef\xbb\xbf" + json.dumps(HIP_SPEC).encode())


def test_a_file_that_mixes_generations(tmp_path: Path) -> None:
    problem = only(list_tree_problems(tmp_path, HIP_SPEC | {"cpu_compiler_flags": []}))
    assert "mixes two generations" in problem.message
    assert "cpu_compiler_flags with " in problem.message


@pytest.mark.parametrize(("name", "document"), [("regression_tests", HIP_SPEC), ("benchmarks", BENCHMARK)])
def test_a_file_name_without_backend(tmp_path: Path, name: str, document: dict[str, Any]) -> None:
    write_tree(tmp_path, {"regression_tests/m/s.json": SPEC} if name == "benchmarks" else {})
    problem = only(list_tree_problems(tmp_path, document, f"{name}/m/s_vulkan.json"))
    assert "s_vulkan_cpu.json or s_vulkan_rocm.json" in problem.message


def test_a_spec_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "regression_tests/m/s_cpu.json").mkdir(parents=True)
    problem = only(list(load(tmp_path).problems))
    assert "cannot be read: Is a directory" in problem.message


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null")], ids=["pipe", "device"])
@pytest.mark.parametrize("folder", ["regression_tests", "benchmarks"])
def test_what_may_have_no_end_is_not_read(tmp_path: Path, folder: str, make: Callable[[Path], object]) -> None:
    """A pipe that nobody writes would be waited for, and a device may fill the memory."""
    spec = tmp_path / folder / "m" / "s_cpu.json"
    spec.parent.mkdir(parents=True)
    make(spec)
    problem = only(list(load(tmp_path).problems))
    assert problem.message == "cannot be read: it is a pipe or a device: expected a file"


def test_a_link_that_leads_nowhere_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "regression_tests" / "m").mkdir(parents=True)
    (tmp_path / "regression_tests" / "m" / "s_cpu.json").symlink_to("gone.json")
    problem = only(list(load(tmp_path).problems))
    assert problem.message == "cannot be read: it is a link to gone.json, which does not exist"


def test_two_specs_of_one_submodel(tmp_path: Path) -> None:
    write_tree(tmp_path, {"regression_tests/m/s.json": SPEC, "regression_tests/m/s_cpu.json": HIP_SPEC})
    problem = only(list(load(tmp_path).problems))
    assert "m/s on cpu is already defined by" in problem.message
    assert {Path(problem.file).name, Path(problem.message.split()[-1]).name} == {"s.json", "s_cpu.json"}


def test_the_same_spec_in_two_trees(tmp_path: Path) -> None:
    trees = [write_tree(tmp_path / name, {"m/s_cpu.json": HIP_SPEC}) for name in ("a", "b")]
    problem = only(list(load(trees).problems))
    assert (problem.file, str(trees[0]) in problem.message) == (str(trees[1] / "m/s_cpu.json"), True)
    # One folder twice, or one inside the other, is no second definition.
    assert not load([trees[0], trees[0]]).problems


def test_a_module_that_two_specs_define_is_reported_to_who_uses_it(tmp_path: Path) -> None:
    spec = BENCHMARK | {"modules": ["m_clip"]}
    files = {"regression_tests/m/clip.json": SPEC, "regression_tests/m/clip_cpu.json": HIP_SPEC}
    write_tree(tmp_path, files | {"benchmarks/m/e2e_cpu.json": spec, "regression_tests/m/e2e_cpu.json": HIP_SPEC})
    problem = only(list(load(tmp_path, includes=[Include(submodel="e2e")]).problems))
    assert "module m_clip on cpu is already defined by" in problem.message


def test_problems_of_files_that_are_not_selected_are_left_out_unless_needed(tmp_path: Path) -> None:
    spec = BENCHMARK | {"modules": ["m_clip"], "compilation_required": True, "mlir_file_name": "p.mlir"}
    files = {"regression_tests/m/clip_cpu.json": "{", "regression_tests/m/other_cpu.json": "{"}
    write_tree(tmp_path, files | {"benchmarks/m/e2e_cpu.json": spec, "benchmarks/m/s_cpu.json": BENCHMARK} | PAIRED)
    assert not load(tmp_path, includes=[Include(submodel="s")]).problems
    problem = only(list(load(tmp_path, includes=[Include(submodel="e2e")]).problems))
    assert problem.file.endswith("clip_cpu.json")
    assert len(load(tmp_path).problems) == 2


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_spec_folders_that_are_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"does not exist|is a file"):
        read_specs([tmp_path / name])


# Property tests: a valid document, spoiled somewhere.

DOCUMENTS: dict[str, dict[str, Any]] = {
    "regression_tests/m/first.json": SPEC
    | {
        "pipeline_mlir": "https://h/p.mlir",
        "add_pipeline_module": True,
        "tuner_file": {"mi300": "t.mlir"},
        "rocm_compile_chip_expecting_to_fail": ["gfx90a"],
        "cpu_run_test_expecting_to_fail": True,
    },
    "benchmarks/m/own_rocm.json": BENCHMARK
    | {
        "submodel_name": "first",
        "compilation_required": True,
        "compiled_file_name": "m_own_vmfbs/model.rocm_gfx942",
        "mlir_file_url": "https://h/own.mlir",
        "real_weights_file_path": "/there/w.irpa",
    },
    "benchmarks/m/first.json": {
        "inputs": ["1xf16"],
        "function_run": "main",
        "benchmark_repetitions": 10,
        "golden_time": {"mi300": 7.5},
    },
    "regression_tests/m/second_cpu.json": HIP_SPEC
    | {
        "mlir": "https://h/m.onnx",
        "onnx_import": {"opset": 17, "shapes": {"x": [1, 2]}},
        "markers": ["text"],
        "timeouts": {"compile": 60},
        "compile_chip_expecting_to_fail": [],
        "run_test_expecting_to_fail": False,
    },
    "benchmarks/m/second_cpu.json": BENCHMARK
    | {"specific_chip_to_ignore": ["gfx90a"], "modules": [], "compilation_required": False, "description": "d"},
}
KNOWN = {*RegressionV1.model_fields, *RegressionV2.model_fields, *Benchmark.model_fields}
JSON = json_values("cpu", "\x00")
ALL = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)


def check(name: str, content: Any) -> tuple[list[Problem], Any]:
    """Problems of a tree in which one file has other content; where there are none, it can be planned."""
    with TemporaryDirectory() as folder:
        cases = load(write_tree(Path(folder), DOCUMENTS | {name: content}), CPU, ROCM)
        for problem in cases.problems:
            assert problem.message
            assert str(problem).encode()
        if not cases.problems:
            json.dumps([step.id for step in plan(cases, ALL).steps]).encode()
        return [problem for problem in cases.problems if problem.file.endswith(name)], cases


names = st.sampled_from(sorted(DOCUMENTS))
quick = settings(max_examples=scale_example_count(0.4))


def test_the_documents_are_valid() -> None:
    for name, document in DOCUMENTS.items():
        assert check(name, document)[0] == []


@quick
@given(name=names, key=st.text(min_size=1, max_size=12), value=JSON)
def test_an_unknown_key_is_always_reported_by_its_name(name: str, key: str, value: Any) -> None:
    if key not in KNOWN and key != "type":
        problems, _ = check(name, DOCUMENTS[name] | {key: value})
        assert [problem.field for problem in problems] == [key]
        assert problems[0].message.startswith("unknown field")


@quick
@given(name=names, data=st.data())
def test_a_renamed_key_is_always_reported(name: str, data: st.DataObject) -> None:
    document = deepcopy(DOCUMENTS[name])
    renamed = rename_key(document, (data.draw(st.sampled_from(sorted(document))),), data)
    problems, _ = check(name, document)
    assert renamed in {problem.field for problem in problems} or any(renamed in p.message for p in problems)


@quick
@given(name=names, data=st.data(), value=JSON)
def test_a_value_of_another_type_is_always_reported_with_its_field(name: str, data: st.DataObject, value: Any) -> None:
    document = deepcopy(DOCUMENTS[name])
    path = data.draw(st.sampled_from(list_paths(document)))
    # Optional fields take null for being absent; what is an empty container of the same kind stays valid.
    if classify(get_at(document, path)) == classify(value) or value is None:
        return
    get_at(document, path[:-1])[path[-1]] = value
    assert is_reported(path, {problem.field for problem in check(name, document)[0]})


@quick
@given(name=names, action=ACTIONS, data=st.data(), junk=JSON)
def test_junk_anywhere_never_is_a_traceback(name: str, action: str, data: st.DataObject, junk: Any) -> None:
    check(name, spoil(DOCUMENTS[name], action, data, junk)[0])


@quick
@given(name=names, data=st.data())
def test_damaged_text_never_is_a_traceback(name: str, data: st.DataObject) -> None:
    check(name, damage_text(DOCUMENTS[name], data))


@quick
@given(content=JSON)
def test_any_json_is_either_a_spec_or_a_problem(content: Any) -> None:
    problems, cases = check("regression_tests/m/second_cpu.json", content)
    assert problems or any(case.stem == "second_cpu" for case in cases.cases)
