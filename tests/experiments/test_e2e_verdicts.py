"""Whole runs of a tiny project with the real tools: passes, failures, and their messages."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.measuring.machine.disturbance import RoundState
from tests.support.native_tools import copy_compiler, find_native_tool
from tests.support.synthetic_times import write_benchmark_tool
from tests.support.toy_project import FLAGS, Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree

_CHAIN = "toy/abs@cpu"
# Whatever the machine does meanwhile, these times count.
_LAB = ("--sku", "lab", "--disturbed", "count")


@pytest.fixture
def cold(tmp_path: Path) -> Project:
    """A toy project that compiles."""
    return Project(tmp_path / "project", cache="flags")


def test_all_steps_pass_and_the_second_run_compiles_nothing(cold: Project) -> None:
    project = cold
    first = project.gauntlet("run")
    assert first.code == 0, first.text
    junit = ET.parse(project.newest / "junit.xml").getroot()
    cases = [case.get("name") for case in junit.iter("testcase")]
    assert cases == ["fetch", "compile", "threshold", "compstat", "benchmark"]
    assert "compiles: 0 from cache, 1 made" in first.out
    assert project.result(f"{_CHAIN}:compile")["cache"]["reason"] == "never compiled here"
    second = project.gauntlet("run")
    assert second.code == 0
    assert "compiles: 1 from cache, 0 made" in second.out
    assert len(project.result(f"{_CHAIN}:benchmark")["samples"]["real_time_ms"]) == 3


def test_every_broken_golden_of_a_file_is_reported_with_how_much(project: Project, tmp_path: Path) -> None:
    project.benchmark(golden_dispatch={"cpu": 0}, golden_size={"cpu": 100}, golden_time_ms={"lab": 1.0})
    done = project.gauntlet("run", *_LAB, benchmark_module=write_benchmark_tool(tmp_path / "times", [2.0, 2.1, 2.2]))
    assert done.code == 1
    checks = {check["metric"]: check for check in project.result(f"{_CHAIN}:compstat")["checks"]}
    assert checks["dispatch_count"]["passed"] is False
    assert checks["binary_size_bytes"]["passed"] is False
    junit = (project.newest / "junit.xml").read_text()
    assert "dispatch count 1 exceeds the limit 0 by 1" in junit
    assert "golden_size.cpu" in junit
    assert "golden_time_ms.lab" in junit
    assert junit.count("<failure") == 2


def test_goldens_of_another_release_are_not_silent(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.benchmark(golden_dispatch={"cpu": 0}, golden_size={"cpu": 100}, golden_compiler="3.12.0")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == 0, done.text
    assert "1 case: 1 passed; 2 goldens not applied" in done.out
    assert "specs/benchmarks/toy/abs_cpu.json: golden_dispatch.cpu: not applied: dispatches: 1, not checked" in done.out
    assert done.text.count("::warning file=specs/benchmarks/toy/abs_cpu.json,line=") == 2
    junit = (project.newest / "junit.xml").read_text()
    assert '<skipped type="skipped" message="2 goldens not applied: specs/benchmarks/toy/abs_cpu.json: ' in junit
    summary = json.loads((project.newest / "summary.json").read_text())
    assert summary["unapplied_goldens"] == 2
    done = project.gauntlet("run", "--stages", "compstat", "--unapplied-goldens", "fail")
    assert done.code == 4, done.text
    assert project.verdict(f"{_CHAIN}:compstat") == "inconclusive"
    assert "<error" in (project.newest / "junit.xml").read_text()
    assert project.gauntlet("run", "--resume").code == 4
    # What was measured can become the golden all the same.
    moved = project.gauntlet("golden.update", "--to-release", "--write")
    assert moved.code == 0, moved.text
    assert project.gauntlet("run", "--stages", "compstat", "--unapplied-goldens", "fail").code == 0


def test_goldens_under_keys_of_nothing_are_not_silent(project: Project) -> None:
    spec = "specs/benchmarks/toy/abs_cpu.json"
    project.benchmark(
        golden_dispatch={"gpu": 0},
        golden_size={"lab": 100, "vulkan": 3, "mine": 3},
        golden_instructions={"cpu-lab": 1},
        golden_instructions_outside={"gpu": 1},
        golden_time_ms={"lab": 3.0},
        golden_time_tolerance_multiplier={"labb": 3},
    )
    project.suite('sku = "mine"\n')
    done = project.gauntlet("lint")
    assert done.code == 0, done.text
    warned = {line.split(": ")[2]: line for line in done.out.splitlines() if line.startswith("warning: ")}
    assert warned.keys() == {
        "golden_dispatch.gpu",
        "golden_size.vulkan",
        "golden_instructions.cpu-lab",
        "golden_instructions_outside.gpu",
        "golden_time_tolerance_multiplier.labb",
    }
    assert warned["golden_dispatch.gpu"].startswith(f"warning: {spec}:12: ")
    assert "'gpu' is neither a target or chip of this spec nor a SKU of a suite or a golden time" in done.out
    assert "'labb' has no golden time; did you mean 'lab'?" in done.out
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == 0, done.text
    assert "1 case: 1 passed; 4 goldens not applied" in done.out
    assert f"{spec}: golden_size.vulkan: not applied: size" in done.out
    assert f"{spec}: golden_dispatch.gpu: not applied: dispatches: 1, not checked; no golden dispatch count" in done.out
    assert "to set goldens for this target: gauntlet golden.set" in done.out
    assert "--to-release" not in done.out
    assert project.gauntlet("run", "--stages", "compstat", "--unapplied-goldens", "fail").code == 4
    project.benchmark(golden_dispatch={"cpu": 0}, golden_size={"gpu": 100})
    failed = project.gauntlet("run", "--stages", "compstat")
    assert "1 case: 1 failed; 1 golden not applied" in failed.out
    assert f"{spec}: golden_size.gpu: not applied: size" in failed.out
    project.benchmark(golden_dispatch={"gpu": 0, "cpu": 1})
    assert project.gauntlet("run", "--stages", "compstat", "--unapplied-goldens", "fail").code == 0


def test_a_run_is_held_against_an_earlier_one(project: Project) -> None:
    first = project.gauntlet("run", "--stages", "compile", "--stages", "threshold")
    assert first.code == 0, first.text
    earlier = project.newest
    stages = ("--stages", "threshold", "--stages", "compstat")
    done = project.gauntlet("run", *stages, "--baseline", "latest")
    assert done.code == 0, done.text
    checks = [check for stage in ("threshold", "compstat") for check in project.result(f"{_CHAIN}:{stage}")["checks"]]
    assert {check["metric"]: check["passed"] for check in checks} == {
        "max_abs_error": True,
        "dispatch_count": True,
        "binary_size_bytes": True,
        "transient_bytes": True,
        "constant_bytes": True,
        "variable_bytes": True,
        "code_bytes": True,
    }
    journal = earlier / "journal.jsonl"
    journal.write_text(re.sub(r'"dispatch_count": ?1', '"dispatch_count": 0', journal.read_text()))
    done = project.gauntlet("run", *stages, "--baseline", earlier.name)
    assert (done.code, project.verdict(f"{_CHAIN}:compstat")) == (1, "failed"), done.text
    assert f"dispatch count 1 exceeds the limit 0 by 1 (--baseline runs/{earlier.name})" in done.out
    missing = project.gauntlet("run", "--baseline", "nowhere")
    assert missing.code == 2
    assert missing.err.startswith("error: --baseline nowhere: no such run\n")


def test_a_tolerance_that_is_no_number_stops_the_run_before_anything_is_compiled(project: Project) -> None:
    project.regression(threshold_args=["--expected_f32_threshold=1e-05x"])
    place = "specs/regression_tests/toy/abs_cpu.json:21: threshold_args[0]"
    for task in ("lint", "run", "plan"):
        done = project.gauntlet(task)
        assert done.code == 2, done.text
        assert f"{place}: flag '--expected_f32_threshold=1e-05x': '1e-05x' is not a number\n" in done.err
    assert not (project.folder / "runs").exists()


@pytest.mark.parametrize("damage", [0, 40, 140])
def test_a_damaged_expected_output_is_an_error_of_the_file_and_no_failure_of_the_model(
    project: Project, damage: int
) -> None:
    expected = project.regressions / "abs.npy"
    expected.write_bytes(expected.read_bytes()[:damage])
    done = project.gauntlet("run", "--stages", "threshold")
    assert (done.code, project.verdict(f"{_CHAIN}:threshold")) == (3, "error"), done.text
    assert f"{expected}: " in project.result(f"{_CHAIN}:threshold")["reason"]


@pytest.mark.parametrize(
    "flags", [{"compiler_flags": [*FLAGS, "--iree-opt-levl=O1"]}, {"threshold_args": ["--devic=x"]}]
)
def test_an_unknown_flag_is_told_alike_by_lint_and_by_run(project: Project, flags: dict[str, Any]) -> None:
    project.regression(**flags)
    runs = [project.gauntlet(*words) for words in (("lint", "--toolchain"), ("run",), ("plan",))]
    assert [done.code for done in runs] == [2, 2, 2]
    (field,) = flags
    assert f"abs_cpu.json:{18 if len(flags[field]) > 1 else 21}: {field}[{len(flags[field]) - 1}]: iree-" in runs[0].err
    assert "did you mean --" in runs[0].err
    assert runs[1].err == runs[0].err
    assert f"  {runs[2].err}" in runs[0].err


@pytest.mark.parametrize(("content", "says"), [(b"", "it has no nodes"), (b"not ONNX", "Error parsing message")])
def test_a_file_that_is_no_onnx_model_is_an_error_of_the_data(project: Project, content: bytes, says: str) -> None:
    (project.regressions / "abs.onnx").write_bytes(content)
    project.regression(mlir="abs.onnx", onnx_import={})
    done = project.gauntlet("run", "--stages", "compile")
    assert done.code == 3, done.text
    assert project.verdict(f"{_CHAIN}:import") == "error"
    reason = project.result(f"{_CHAIN}:import")["reason"]
    assert "is not a usable ONNX file: " in reason
    assert says in reason
    assert reason in done.out


def test_a_broken_golden_time_fails_after_further_rounds_alone(project: Project, tmp_path: Path) -> None:
    project.benchmark(golden_time_ms={"lab": 1.0})
    rounds = [[1.5 + number / 100] * 3 for number in range(11)]
    done = project.gauntlet("run", *_LAB, benchmark_module=write_benchmark_tool(tmp_path / "times", *rounds))
    assert done.code == 1
    result = project.result(f"{_CHAIN}:benchmark")
    confirmation = result["statistics"]["confirmation"]
    assert [item["times_ms"] for item in confirmation["rounds"]] == rounds[1:], "clear at the first look"
    assert confirmation["passed"] is False
    assert confirmation["limit_ms"] == 1.0
    assert (confirmation["low_ms"], confirmation["high_ms"]) == pytest.approx((1.51, 1.6))
    assert confirmation["measured_ms"] == pytest.approx(1.555)
    marked = sum(bool(item["disturbed"]) for item in confirmation["rounds"])
    assert result["reason"].startswith("after 10 more rounds")
    assert (f"({marked} of them disturbed; for example: " in result["reason"]) is (marked > 0)
    assert "exceeds the limit" in result["reason"]
    assert "confirm.stdout.txt" in {path.name for path in project.newest.rglob("*.txt")}


@pytest.mark.parametrize(("times", "verdict"), [(9.9, "inconclusive"), (10.1, "failed"), (5e7, "failed")])
def test_what_no_disturbance_explains_fails_on_a_busy_machine(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, verdict: str
) -> None:
    # One thread's work: its CPU time is that of one CPU.
    project.benchmark(golden_time_ms={"lab": 1.0}, device="local-sync")
    busy = ("other work kept the CPUs 88 % busy (10 % is tolerated)",)
    monkeypatch.setattr(RoundState, "list_disturbances", lambda _state: busy)
    monkeypatch.setattr(RoundState, "as_dict", lambda _state: {"busy_share": 0.88, "steal_share": 0.0})
    tool = write_benchmark_tool(tmp_path / "times", [times] * 3)
    done = project.gauntlet("run", "--sku", "lab", "--stages", "benchmark", benchmark_module=tool)
    assert done.code == (1 if verdict == "failed" else 4), done.text
    result = project.result(f"{_CHAIN}:benchmark")
    assert result["verdict"] == verdict
    assert "4 of 4 more rounds were disturbed; for example: other work kept the CPUs 88 % busy" in result["reason"]
    assert ("; by its CPU time it takes" in result["reason"]) is (verdict == "failed")
    assert [item["cpu_times_ms"] for item in result["statistics"]["confirmation"]["rounds"]] == [[times] * 3] * 4


def test_a_broken_golden_time_fails_at_once_where_the_plain_rule_is_asked_for(project: Project, tmp_path: Path) -> None:
    project.benchmark(golden_time_ms={"lab": 1.0})
    times = write_benchmark_tool(tmp_path / "times", [2.0] * 3, [0.5] * 3)
    assert project.gauntlet("run", *_LAB, "--verdict", "strict", benchmark_module=times).code == 1
    assert "confirmation" not in project.result(f"{_CHAIN}:benchmark")["statistics"]


def test_a_golden_that_only_the_first_run_broke_passes_and_says_so(project: Project, tmp_path: Path) -> None:
    project.benchmark(golden_time_ms={"lab": 1.0})
    times = write_benchmark_tool(tmp_path / "times", [80.0, 90.0, 85.0], [0.9, 0.8, 0.85])
    done = project.gauntlet("run", *_LAB, benchmark_module=times)
    result = project.result(f"{_CHAIN}:benchmark")
    assert done.code == 0, done.text
    assert result["samples"]["real_time_ms"] == [80.0, 90.0, 85.0]
    assert result["checks"][0]["passed"] is True
    assert any(note.startswith("not confirmed: ") for note in result["notes"])


def test_times_on_both_sides_of_the_limit_are_inconclusive(project: Project, tmp_path: Path) -> None:
    project.benchmark(golden_time_ms={"lab": 1.0})
    rounds = [[1.2 if number % 2 == 0 else 0.8] * 3 for number in range(27)]
    done = project.gauntlet("run", *_LAB, benchmark_module=write_benchmark_tool(tmp_path / "times", *rounds))
    assert done.code == 4
    result = project.result(f"{_CHAIN}:benchmark")
    assert result["verdict"] == "inconclusive"
    assert len(result["statistics"]["confirmation"]["rounds"]) == 26
    assert result["checks"][0]["passed"] is None


def test_no_time_to_confirm_is_inconclusive(project: Project, tmp_path: Path) -> None:
    project.benchmark(golden_time_ms={"lab": 1.0})
    times = write_benchmark_tool(tmp_path / "times", [2.0] * 3)
    # No ten processes start within a nanosecond.
    done = project.gauntlet("run", *_LAB, "--confirm-seconds", "1e-9", benchmark_module=times)
    assert done.code == 4
    assert project.result(f"{_CHAIN}:benchmark")["verdict"] == "inconclusive"


def test_a_time_golden_is_checked_on_its_own_sku_alone(project: Project) -> None:
    project.benchmark(golden_time_ms={"lab": 1e-6})
    assert project.gauntlet("run").code == 0
    check = project.result(f"{_CHAIN}:benchmark")["checks"][0]
    assert check["passed"] is None
    assert check["measured"] > 0
    assert "lab" in check["note"]


def test_a_golden_of_another_release_is_shown_and_not_checked(project: Project) -> None:
    project.benchmark(golden_dispatch={"cpu": 0}, golden_compiler="2.0.0")
    assert project.gauntlet("run").code == 0
    check = project.result(f"{_CHAIN}:compstat")["checks"][0]
    assert check["passed"] is None
    assert "2.0.0" in check["note"]


def test_wrong_numbers_fail_with_figures_and_a_command_that_shows_it(project: Project) -> None:
    project.write_expected("abs", [9.0, 9.0, 9.0, 9.0])
    done = project.gauntlet("run")
    assert done.code == 1
    result = project.result(f"{_CHAIN}:threshold")
    output = result["outputs"][0]
    assert (output["mismatches"], output["count"]) == (4, 4)
    assert float(output["worst_expected"]) == 9
    assert output["max_abs_error"] > 8
    assert np.load(output["actual_path"]).shape == (4,)
    # What is printed can be pasted.
    command = done.out.partition("\nReproduce:\n")[2].partition("\n")[0]
    pasted = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert pasted.returncode == 1
    assert "[FAILED] result[0]" in pasted.stdout
    # A benchmark says how fast a model is, right or wrong.
    assert project.verdict(f"{_CHAIN}:benchmark") == "passed"


@pytest.mark.parametrize("values", [[1.0, 2.0], [float("nan")] * 4])
def test_other_shapes_and_nans_fail(project: Project, values: list[float]) -> None:
    project.write_expected("abs", values)
    assert project.gauntlet("run", "--stages", "threshold").code == 1
    assert project.result(f"{_CHAIN}:threshold")["outputs"][0]["passed"] is False


def test_the_specs_tolerance_counts(project: Project) -> None:
    values = np.load(project.regressions / "abs.npy") + 0.01
    project.write_expected("abs", list(map(float, values)))
    assert project.gauntlet("threshold", "--model", "toy").code == 1
    project.regression(threshold_args=["--expected_f32_threshold=0.1f"])
    assert project.gauntlet("threshold", "--model", "toy").code == 0


def test_expected_failures_run_and_are_strict(project: Project) -> None:
    project.regression(run_test_expecting_to_fail=True)
    passes = project.gauntlet("run", "--stages", "threshold")
    assert passes.code == 1
    assert project.verdict(f"{_CHAIN}:threshold") == "xpassed"
    assert "remove the expectation" in passes.out
    assert project.gauntlet("run", "--stages", "threshold", "--lenient").code == 0
    project.write_expected("abs", [9.0] * 4)
    assert project.gauntlet("run", "--stages", "threshold").code == 0
    assert project.verdict(f"{_CHAIN}:threshold") == "xfailed"
    assert "run_test_expecting_to_fail" in project.result(f"{_CHAIN}:threshold")["reason"]


def test_a_suite_expects_a_compile_to_fail(project: Project) -> None:
    (project.regressions / "abs.mlir").write_text("this is no program\n")
    reason = 'reason = "it is broken"'
    project.suite(f'[[expect_failure]]\ncase = "toy/*"\nstage = "compile"\n{reason}\n')
    done = project.gauntlet("run", "--suite", "s")
    assert done.code == 0, done.text
    assert project.verdict(f"{_CHAIN}:compile") == "xfailed"
    assert project.verdict(f"{_CHAIN}:threshold") == "skipped"


def test_a_compile_that_fails_gives_the_first_error(project: Project) -> None:
    (project.regressions / "abs.mlir").write_text("func.func @abs( {\n")
    done = project.gauntlet("run")
    assert done.code == 1
    result = project.result(f"{_CHAIN}:compile")
    assert result["verdict"] == "failed"
    assert "expected" in result["reason"]
    assert project.verdict(f"{_CHAIN}:benchmark") == "skipped"
    assert "3 skipped (3 after a failure)" in done.out


def test_a_compile_that_failed_is_not_tried_again_unless_asked_for(project: Project) -> None:
    project.add("abs", "math.absent %a : tensor<4xf32>")
    compile_step = f"{_CHAIN}:compile"
    project.gauntlet("run", "--stages", "compile")
    first = project.result(compile_step)
    assert project.gauntlet("run", "--stages", "compile").code == 1
    again = project.result(compile_step)
    assert (first["cache"]["hit"], again["cache"]["hit"]) == (False, True)
    assert again["cache"]["reason"] == "failed before; --force-recompile tries again"
    assert (again["verdict"], again["reason"], again["tail"]) == ("failed", first["reason"], first["tail"])
    project.gauntlet("run", "--stages", "compile", "--force-recompile")
    assert project.result(compile_step)["cache"]["hit"] is False


def test_a_changed_flag_is_why_the_cache_misses(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "compile").code == 0
    project.regression(compiler_flags=[*FLAGS, "--iree-opt-level=O1"])
    assert project.gauntlet("run", "--stages", "compile").code == 0
    assert "--iree-opt-level=O1" in project.result(f"{_CHAIN}:compile")["cache"]["reason"]


def test_a_damaged_module_is_made_again(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "compile").code == 0
    module = next((project.folder / "cache" / "modules").glob("??/*/module"))
    content = bytearray(module.read_bytes())
    content[len(content) // 2] ^= 1
    module.write_bytes(content)
    assert project.gauntlet("run").code == 0
    assert project.result(f"{_CHAIN}:compile")["cache"]["reason"].startswith("damaged")


def test_force_recompile_compares(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "compile").code == 0
    assert project.gauntlet("run", "--stages", "compile", "--force-recompile").code == 0
    result = project.result(f"{_CHAIN}:compile")
    assert result["cache"]["hit"] is False
    assert any("rebuilt" in note for note in result["notes"])


def test_iree_in_a_folder_with_blanks_finds_its_linker(cold: Project, tmp_path: Path) -> None:
    tool = find_native_tool("iree-compile")
    folder = copy_compiler(tool, tmp_path / "an iree")
    done = cold.gauntlet("run", "--stages", "compile", compile=str(folder / "iree-compile"))
    assert done.code == 0, done.text
    command = cold.result(f"{_CHAIN}:compile")["command"]
    assert f"{folder}/iree-compile" in shlex.split(command)
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


def test_a_compile_command_can_be_pasted_although_its_files_share_the_cache(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "compile").code == 0
    assert project.result(f"{_CHAIN}:compile")["cache"]["hit"]
    command = project.result(f"{_CHAIN}:compile")["command"]
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
    assert shlex.split(command)[0] == "cd"


def test_a_renamed_flag_is_translated_and_said(project: Project) -> None:
    project.regression(run_function="abs", compiler_flags=[*FLAGS, "--iree-llvmgpu-enable-prefetch"])
    done = project.gauntlet("run", "--stages", "compile")
    assert done.code == 0, done.text
    assert any("--iree-llvmgpu-prefetch-num-stages=2" in note for note in project.result(f"{_CHAIN}:compile")["notes"])


def test_an_unknown_flag_is_caught_before_anything_runs(project: Project) -> None:
    project.regression(compiler_flags=[*FLAGS, "--iree-opt-levle=O1"])
    done = project.gauntlet("run")
    assert done.code == 2
    assert "--iree-opt-level" in done.err
    assert not (project.folder / "runs").exists()
    assert project.gauntlet("lint", "--toolchain").code == 2
    assert project.gauntlet("lint").code == 0


@pytest.mark.parametrize("expects", [True, False])
def test_a_tool_that_lists_something_and_ends_well_has_judged_nothing(project: Project, *, expects: bool) -> None:
    # Behind a file of flags, which nothing but the tool reads.
    flags = project.folder / "flags.txt"
    flags.write_text("--list_devices\n")
    project.regression(threshold_args=[f"--flagfile={flags}"], outputs=[{"source": "abs.npy"}] if expects else [])
    project.benchmark(benchmark_flags=[f"--flagfile={flags}"])
    done = project.gauntlet("run")
    assert done.code == 3, done.text
    missed = "compared no output" if expects else "called no function"
    assert f"iree-run-module {missed} and ended with exit code 0: see the flags of specs/regression_tests" in done.out
    assert [project.verdict(f"{_CHAIN}:{stage}") for stage in ("compile", "threshold", "benchmark")] == [
        "passed",
        "error",
        "error",
    ]
    assert "the benchmark printed no results" in done.out
    assert "judged: numbers 0" in done.out


@pytest.mark.parametrize(
    ("flags", "tool"),
    [
        ({"threshold_args": ["--help=short"]}, "iree-run-module"),
        ({"threshold_args": ["--list_drivers"]}, "iree-run-module"),
        ({"compiler_flags": [*FLAGS, "--version"]}, "iree-compile"),
    ],
)
def test_a_flag_with_which_a_tool_does_nothing_is_caught_before_anything_runs(
    project: Project, flags: dict[str, Any], tool: str
) -> None:
    project.regression(**flags)
    done = project.gauntlet("run")
    assert done.code == 2, done.text
    (flag,) = (words[-1] for words in flags.values())
    assert f"with {flag} {tool} only prints something and exits" in done.err
    assert f"abs_cpu.json:{21 if tool == 'iree-run-module' else 18}: {next(iter(flags))}" in done.err


def test_the_step_summary_of_github_is_appended_to(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = project.folder / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert project.gauntlet("run", "--stages", "compile").code == 0
    text = summary.read_text()
    assert text.startswith("before\n")
    assert "| `toy/abs@cpu` |" in text


def test_summary_json_holds_the_figures(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    summary = json.loads((project.newest / "summary.json").read_text())
    assert summary["exit_code"] == 0
    assert "toy/abs@cpu" in json.dumps(summary)


def test_a_step_summary_that_cannot_be_written_hides_no_verdict(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.folder))
    done = project.gauntlet("run", "--stages", "compile")
    assert done.code == 3
    assert "2 passed" in done.out
    assert "GITHUB_STEP_SUMMARY" in done.err
