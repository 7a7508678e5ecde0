"""Operator suites as cases and steps: the commands of upstream's runner, and the outcomes for the corpus."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.dialects.load import load_cases, read_specs
from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.engine.workspace import select
from iree_gauntlet.errors import UsageError
from iree_gauntlet.requests import Defaults, SelectionRequest, parse_request
from iree_gauntlet.stages import FailureKind, Kind, Stage
from iree_gauntlet.targets import Target
from iree_gauntlet.toolchains.flags import Translation, UnknownFlag
from tests.support.op_trees import COMPILE_FLAGS, add_onnx, load_ops, write_config
from tests.support.places import CORPUS
from tests.support.spec_trees import CPU, find_argv, find_step, plan, split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CORPUS = CORPUS / "onnx_ops"
RUN = (Stage.COMPILE, Stage.THRESHOLD, Stage.BENCHMARK)


def test_commands_run_in_the_case_folder_as_upstream_does(tmp_path: Path) -> None:
    flags = "--input=2xf32=@input_0.bin\n--expected_f32_threshold=0.1\n--expected_output=2xf32=@output_0.bin\n"
    folder = add_onnx(tmp_path, "node/test_a", flags)
    write_config(tmp_path)
    made = plan(load_ops(tmp_path), RUN)
    assert [step.id for step in made.steps] == ["node/test_a@cpu:compile", "node/test_a@cpu:threshold"]
    compiled, checked = made.steps
    assert compiled.command is not None
    assert checked.command is not None
    assert compiled.command.cwd == checked.command.cwd == str(folder)
    place = "/run/steps/node/test_a.cpu"
    assert find_argv(made, compiled.id) == [
        "iree-compile",
        "model.mlir",
        *COMPILE_FLAGS,
        "-o",
        f"{place}/compile/module.vmfb",
    ]
    assert find_argv(made, checked.id) == split(
        f"iree-run-module --module={place}/compile/module.vmfb --input=2xf32=@input_0.bin",
        "--expected_output=2xf32=@output_0.bin --device=local-sync --expected_f32_threshold=0.1",
    )
    assert checked.resources.device == "local-sync"
    assert (compiled.dialect, compiled.model, compiled.submodel, compiled.target) == (
        *("op_tests", "node", "test_a"),
        "cpu",
    )


def test_the_key_has_no_path_of_this_machine(tmp_path: Path) -> None:
    for place in ("here", "there"):
        add_onnx(tmp_path / place)
        write_config(tmp_path / place)
    first, second = (
        find_step(plan(load_ops(tmp_path / place), RUN), "node/test_a@cpu:compile") for place in ("here", "there")
    )
    assert first.cache.ingredients == second.cache.ingredients
    assert str(tmp_path) not in repr(dict(first.cache.ingredients) | {"flags": ""})
    ingredients = dict(first.cache.ingredients)
    assert len(ingredients["program"]) == 64
    assert ingredients["name"] == "model.mlir"
    (tmp_path / "there" / "node" / "test_a" / "model.mlir").rename(
        tmp_path / "there" / "node" / "test_a" / "other.mlir"
    )
    third = find_step(plan(load_ops(tmp_path / "there"), RUN), "node/test_a@cpu:compile")
    assert dict(third.cache.ingredients) == ingredients | {"name": "other.mlir"}


def test_several_configs_in_one_run(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, "O0")
    write_config(
        tmp_path, "O3", iree_compile_flags=[*COMPILE_FLAGS, "--iree-opt-level=O3"], skip_run_tests=["node/test_a"]
    )
    write_config(tmp_path, "gpu", iree_compile_flags=["--iree-hal-target-device=hip", "--iree-hip-target=gfx942"])
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert cases.other_targets == ("rocm-gfx942",)
    made = plan(cases, RUN)
    assert [step.id for step in made.steps] == [
        "node/test_a@O0:compile",
        "node/test_a@O0:threshold",
        "node/test_a@O3:compile",
        "node/test_a@O3:threshold",
    ]
    assert len({step.folder for step in made.steps}) == 4
    assert made.steps[3].skip == f"in skip_run_tests ({tmp_path}/configs/O3.json)"
    gpu = load_ops(tmp_path, Target("rocm", "gfx942", "mi300")).cases
    assert [(case.chain, case.target.sku) for case in gpu] == [("node/test_a@gpu", "mi300")]
    assert not load_ops(tmp_path, Target("rocm", "gfx1100")).cases


def test_expectations_and_skips_reach_the_steps(tmp_path: Path) -> None:
    for name in ("crash", "fail", "skip"):
        add_onnx(tmp_path, f"n/{name}")
    write_config(
        tmp_path, expected_compile_crashes=["n/crash"], expected_run_failures=["n/fail"], skip_compile_tests=["n/skip"]
    )
    made = plan(load_ops(tmp_path), RUN)
    crash = find_step(made, "n/crash@cpu:compile")
    assert (crash.expect_failure, crash.expect_kinds) == (
        f"in expected_compile_crashes ({tmp_path}/configs/cpu.json)",
        ("crashes",),
    )
    assert find_step(made, "n/crash@cpu:threshold").expect_kinds == ()
    assert find_step(made, "n/fail@cpu:threshold").expect_kinds == ("does not run", "wrong numbers")
    assert not find_step(made, "n/fail@cpu:compile").expect_failure
    for stage in ("compile", "threshold"):
        assert find_step(made, f"n/skip@cpu:{stage}").skip.startswith("in skip_compile_tests")
        assert find_step(made, f"n/skip@cpu:{stage}").needs == ()


def test_a_golden_time_is_a_benchmark(tmp_path: Path) -> None:
    flags = "--input=2xf32=@input_0.bin\n--expected_output=2xf32=@output_0.bin\n--expected_rtol=0.1\n"
    add_onnx(tmp_path, "n/slow", flags, **{"model.mlir": "module {\n  func.func @slow_1(%a: i32) {}\n}\n"})
    add_onnx(tmp_path, "n/plain")
    write_config(tmp_path, golden_times_ms={"n/slow": 2.5}, tolerance_factor=1.2)
    cases = load_ops(tmp_path)
    assert [(case.submodel, case.kind) for case in cases.cases] == [
        ("plain", Kind.QUALITY),
        ("slow", Kind.QUALITY),
        ("slow", Kind.BENCHMARK),
    ]
    made = plan(cases, RUN)
    step = find_step(made, "n/slow@cpu:benchmark")
    assert find_argv(made, step.id)[2:] == [
        "--module=/run/steps/n/slow.cpu/compile/module.vmfb",
        "--input=2xf32=@input_0.bin",
        "--function=slow_1",
        "--device=local-sync",
    ]
    (golden,) = step.goldens
    assert (golden.limit, golden.statistic, golden.origin.field) == (3.0, "mean", "golden_times_ms.n/slow")
    alone = plan(cases, [Stage.BENCHMARK])
    assert [step.id for step in alone.steps] == ["n/slow@cpu:compile", "n/slow@cpu:benchmark"]


def test_a_flag_that_no_tool_knows_is_said_once_and_of_the_config(tmp_path: Path) -> None:
    for name in "abc":
        add_onnx(tmp_path, f"n/{name}")
    write_config(tmp_path)
    asked: list[Sequence[str]] = []

    def translate(flags: Sequence[str], _tool: str) -> Translation:
        if flags:
            asked.append(flags)
        return Translation(tuple(flags), (), tuple(UnknownFlag(flag, f"unknown: {flag}", "") for flag in flags[:1]))

    problems = plan(load_ops(tmp_path), RUN, translate=translate).problems
    assert [(problem.file, problem.message) for problem in problems] == [
        (f"{tmp_path}/configs/cpu.json", f"unknown: {COMPILE_FLAGS[0]}"),
        (f"{tmp_path}/configs/cpu.json", "unknown: --device=local-sync"),
    ]
    # Once for each tool, however many cases there are.
    assert len(asked) == 2


def test_flags_of_a_flagfile_are_that_cases_own(tmp_path: Path) -> None:
    add_onnx(tmp_path, "n/a", '--device="hip://1"\n--strange=1\n--expected_f32_threshold="0.5"\n')
    add_onnx(tmp_path, "n/b")
    write_config(tmp_path, golden_times_ms={"n/a": 1.0}, iree_run_module_flags=["--output=@x/out.npy"])

    def translate(flags: Sequence[str], _tool: str) -> Translation:
        strange = [UnknownFlag(flag, f"unknown: {flag}", "") for flag in flags if "strange" in flag]
        return Translation(tuple(flags), (), tuple(strange))

    cases = load_ops(tmp_path)
    # A device is the same one without its quotes.
    assert {case.device for case in cases.cases if case.submodel == "a"} == {"hip://1"}
    made = plan(cases, RUN, translate=translate)
    assert not made.problems
    assert [(item.file, item.message) for item in made.operator_case_problems] == [
        (f"{tmp_path}/n/a/run_module_io_flags.txt", "unknown: --strange=1")
    ]
    blocked = {step.id: step.blocked for step in made.steps if step.blocked}
    where = f"{tmp_path}/n/a/run_module_io_flags.txt:2"
    assert blocked == {f"n/a@cpu:{stage}": f"{where}: unknown: --strange=1" for stage in ("threshold", "benchmark")}
    own = ['--device="hip://1"', "--strange=1", '--expected_f32_threshold="0.5"']
    written = "--output=@/run/steps/n/a.cpu/threshold/out.npy"
    assert find_argv(made, "n/a@cpu:threshold")[2:] == [written, *own]
    assert find_argv(made, "n/a@cpu:benchmark")[3:] == own[:2]
    # A device that is asked for stands for all that are written.
    asked = load_cases(read_specs([tmp_path]), [Include()], (CPU,), device="local-task").cases
    assert {(case.device, case.own_flags) for case in asked if case.submodel == "a"} == {
        ("local-task", ("--strange=1", '--expected_f32_threshold="0.5"')),
        ("local-task", ("--strange=1",)),
    }


def test_suites_name_configs_and_expect_failures(tmp_path: Path) -> None:
    add_onnx(tmp_path / "ops")
    chosen = write_config(tmp_path / "elsewhere", "chosen")
    write_config(tmp_path / "ops", "passed_over")
    suite = tmp_path / "s.toml"
    suite.write_text(
        'name = "s"\ntarget = "cpu"\nspec_dirs = ["ops"]\nconfigs = ["elsewhere/configs/chosen.json"]\n'
        '[[expect_failure]]\ncase = "node/test_*"\nstage = "threshold"\nreason = "why"\n'
    )
    assert read_suite(suite).configs == (chosen,)
    options: dict[str, object] = {"suite": str(suite)}
    selection = select(parse_request(SelectionRequest, options), Defaults())
    (case,) = selection.cases.cases
    assert case.chain == "node/test_a@chosen"
    assert [(item.reason, item.kinds) for item in case.expectations] == [("why", tuple(FailureKind))]
    given = select(
        parse_request(
            SelectionRequest, {**options, "config": [str(tmp_path / "ops" / "configs" / "passed_over.json")]}
        ),
        Defaults(),
    )
    assert [case.chain for case in given.cases.cases] == ["node/test_a@passed_over"]


def test_trees_of_other_specs_keep_their_meaning_next_to_an_operator_suite(tmp_path: Path) -> None:
    add_onnx(tmp_path / "ops")
    write_config(tmp_path / "ops")
    definition = tmp_path / "torch_models" / "m" / "module.json"
    definition.parent.mkdir(parents=True)
    definition.write_text(json.dumps({"mlir": "x.mlir", "compiler_flags": []}))
    test = {"type": "compstat", "module": "m/module", "markers": []}
    (definition.parent / "size.json").write_text(json.dumps(test))
    assert [case.dialect for case in load_ops(tmp_path).cases] == ["torch-models", "op_tests"]


@pytest.fixture(scope="module")
def corpus() -> Path:
    if not CORPUS.is_dir():
        pytest.skip("the corpus is not next to the checkout")
    return CORPUS


@pytest.mark.corpus
def test_the_corpus_reads_without_problems(corpus: Path) -> None:
    cases = load_ops(corpus)
    assert not cases.problems
    assert len(cases.cases) == 289
    assert {case.chain.partition("@")[2] for case in cases.cases} == {"cpu_llvm_sync"}
    stated = json.loads((corpus / "configs" / "onnx_ops_cpu_llvm_sync_O0.json").read_text())
    here = {f"{case.model}/{case.submodel}" for case in cases.cases}
    expected = Counter(
        (item.stage, FailureKind.CRASHES in item.kinds)
        for case in cases.cases
        for item in case.expectations
        if item.stage != "benchmark"
    )
    assert expected == {
        (Stage.COMPILE, False): len(here.intersection(stated["expected_compile_failures"])),
        (Stage.THRESHOLD, False): len(here.intersection(stated["expected_run_failures"])),
    }
    skipped = Counter(stage for case in cases.cases for stage, _ in case.skips)
    entries = {name: here.intersection(stated[name]) for name in ("skip_compile_tests", "skip_run_tests")}
    assert skipped[Stage.COMPILE] == len(entries["skip_compile_tests"])
    assert skipped[Stage.THRESHOLD] == len(set.union(*entries.values()))
    # The config is the whole suite's, of which the corpus is a part.
    lists = (entries for name, entries in stated.items() if name.endswith(("_tests", "_failures")))
    assert len(cases.unmatched_entries) == sum(entry not in here for entries in lists for entry in entries)


@pytest.mark.corpus
def test_one_case_of_the_corpus_alone(corpus: Path, tmp_path: Path) -> None:
    cases = load_ops(corpus / "onnx" / "node" / "generated" / "test_tan_example")
    assert [case.chain for case in cases.cases] == ["onnx/node/generated/test_tan_example@cpu_llvm_sync"]
    chosen = load_ops(corpus, CPU, include=Include(submodel="test_ta[nx]_example")).cases
    assert [case.submodel for case in chosen] == ["test_tan_example"]
    shutil.copytree(corpus / "onnx" / "node" / "generated" / "test_tan_example", tmp_path / "mine" / "test_tan_example")
    write_config(tmp_path / "elsewhere")
    mine = load_ops(tmp_path / "mine", configs=(tmp_path / "elsewhere" / "configs" / "cpu.json",))
    assert [case.chain for case in mine.cases] == ["mine/test_tan_example@cpu"]


def test_a_config_of_another_suite_in_the_same_folder_is_not_taken_for_one_of_this(tmp_path: Path) -> None:
    add_onnx(tmp_path / "one", "node/test_a")
    add_onnx(tmp_path / "two", "node/test_b")
    named = (write_config(tmp_path / "one", "first"), write_config(tmp_path / "two", "second"))
    chains = [case.chain for case in load_ops(tmp_path, configs=named).cases]
    assert chains == ["node/test_a@first", "node/test_b@second"]
    # One from elsewhere is for both.
    outside = write_config(tmp_path / "elsewhere", "third")
    chains = [case.chain for case in load_ops(tmp_path, configs=(outside,)).cases]
    assert chains == ["node/test_a@third", "node/test_b@third"]


def test_a_case_that_gives_wrong_numbers_can_be_measured(tmp_path: Path) -> None:
    program = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n  return %a : tensor<2xf32>\n}\n"
    add_onnx(tmp_path, **{"model.mlir": program})
    times = {"node/test_a": 1.0}
    write_config(tmp_path, expected_run_failures=["node/test_a"], golden_times_ms=times)
    quality, benchmark = load_ops(tmp_path).cases
    assert [item.stage for item in (*quality.expectations, *benchmark.expectations)] == [Stage.THRESHOLD] * 2
    write_config(tmp_path, expected_run_crashes=["node/test_a"], golden_times_ms=times)
    assert {item.stage for item in load_ops(tmp_path).cases[0].expectations} == {Stage.THRESHOLD, Stage.BENCHMARK}


def test_cases_behind_links_count_and_names_must_be_text(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    write_config(suite)
    add_onnx(tmp_path / "real", "test_linked")
    (suite / "node").mkdir()
    (suite / "node" / "test_linked").symlink_to(tmp_path / "real" / "test_linked")
    assert [case.chain for case in load_ops(suite).cases] == ["node/test_linked@cpu"]
    add_onnx(suite, "node/test_\udcff")
    with pytest.raises(UsageError, match="is not UTF-8"):
        load_ops(suite)


def test_a_config_from_elsewhere_says_by_its_entries_where_the_root_is(tmp_path: Path) -> None:
    root = tmp_path / "suites" / "onnx_ops"
    for name in "ab":
        add_onnx(root, f"onnx/node/test_{name}")
    outside = write_config(tmp_path / "elsewhere", expected_compile_failures=["onnx/node/test_a"])
    for folder in (root / "onnx" / "node" / "test_a", root / "onnx", root, tmp_path / "suites", tmp_path):
        cases = {case.chain: case for case in load_ops(folder, configs=(outside,)).cases}
        assert cases["onnx/node/test_a@cpu"].expectations, folder
    assert set(cases) == {"onnx/node/test_a@cpu", "onnx/node/test_b@cpu"}


def test_a_target_of_a_plugin_can_be_named(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    path = write_config(tmp_path, iree_compile_flags=["--iree-hal-target-backends=amd-aie"])
    options = {"spec_dir": [str(tmp_path)]}
    found = select(parse_request(SelectionRequest, {**options, "target": ["amd-aie"]}), Defaults())
    assert [case.target.family for case in found.cases.cases] == ["amd-aie"]
    with pytest.raises(UsageError, match="unknown target 'amd-ai'"):
        select(parse_request(SelectionRequest, {**options, "target": ["amd-ai"]}), Defaults())
    # One that is named, and for what was not asked for, is not left out in silence.
    cpu = write_config(tmp_path, "host")
    configs = {**options, "config": [str(path), str(cpu)]}
    one = select(parse_request(SelectionRequest, {**configs, "target": ["cpu"]}), Defaults())
    (warning,) = one.warnings()
    assert "cpu.json is for amd-aie, which was not requested" in warning
    # Where no target is named, the configs are asked for all that they are for.
    both = select(parse_request(SelectionRequest, configs), Defaults())
    assert {case.target.family for case in both.cases.cases} == {"amd-aie", "cpu"}
    assert list(both.warnings()) == []


def test_a_config_keeps_the_sku_and_a_suite_of_cases_alone_loses_the_default_target(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    chips = [
        write_config(tmp_path, name, iree_compile_flags=["--iree-hal-target-device=hip", f"--iree-rocm-target={name}"])
        for name in ("gfx942", "gfx1100")
    ]
    asked = {"spec_dir": [str(tmp_path)], "config": [str(path) for path in chips], "sku": "mi300"}
    found = select(parse_request(SelectionRequest, asked), Defaults())
    assert {(case.target.chip, case.target.sku) for case in found.cases.cases} == {
        ("gfx942", "mi300"),
        ("gfx1100", "mi300"),
    }
    assert [target.name for target in found.targets] == ["rocm"]


def test_configs_imply_their_target_and_keep_the_sku_of_the_suite(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    path = write_config(tmp_path, "gpu", iree_compile_flags=["--iree-hal-target-device=vulkan"])
    suite = tmp_path / "suite.toml"
    suite.write_text('name = "s"\ntarget = "cpu"\nsku = "mi300"\nspec_dirs = ["."]\n')
    found = select(parse_request(SelectionRequest, {"suite": str(suite), "config": [str(path)]}), Defaults())
    assert {(case.target.family, case.target.sku) for case in found.cases.cases} == {("vulkan", "mi300")}


def test_a_folder_of_cases_may_be_called_as_other_specs_are(tmp_path: Path) -> None:
    add_onnx(tmp_path, "benchmarks/test_a")
    add_onnx(tmp_path, "node/test_b")
    write_config(tmp_path)
    assert [case.chain for case in load_ops(tmp_path).cases] == ["benchmarks/test_a@cpu", "node/test_b@cpu"]
    assert [case.chain for case in load_ops(tmp_path / "benchmarks").cases] == ["benchmarks/test_a@cpu"]
