"""Configs of operator suites: updated from a run and its rerun; flaky cases are left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.json_text import read_plain_json
from iree_gauntlet.errors import ExitCode, SpecError, UsageError
from iree_gauntlet.experiments import run as execute
from iree_gauntlet.experiments.run import RunResult
from iree_gauntlet.requests import ExecutionRequest, RunRequest
from iree_gauntlet.upkeep.upkeep_requests import XfailUpdateRequest
from iree_gauntlet.upkeep.xfail_update import update
from tests.support.journal_builder import JournalBuilder
from tests.support.operator_suite import OperatorSuite
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from iree_gauntlet.experiments.run import RunSetup
    from iree_gauntlet.progress import Reporter

_CONFIG = """{
  "config_name": "cpu", // the only one
  "iree_compile_flags": ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"],
  "iree_run_module_flags": ["--device=local-sync"],
  "skip_run_tests": ["node/skipped"],
  "expected_compile_failures": [
    "node/both",
    "node/fixed", // needs scatter
    "node/moved", // needs gather
    "node/still"
  ],
  "expected_compile_crashes": ["node/both"],
  "expected_run_failures": ["node/half"]
}
"""
_CASES = ("both", "fixed", "moved", "still", "half", "new", "newer", "skipped", "slow", "wrong", "boom")
LEGALIZE = (
    "iree-compile failed with exit code 1: failed to legalize operation 'torch.operator' that was explicitly marked "
    'illegal: %0 = "torch.operator"(%arg0) <{name = "onnx.If"}> : (!torch.vtensor<[1],f32>) -> !torch.none'
)
CRASH = {"verdict": "error", "reason": "iree-compile crashed with SIGFPE", "signal": "SIGFPE", "failure": "crashes"}
FAILED = {"verdict": "failed", "reason": LEGALIZE}
PASSED = {"verdict": "passed"}
XPASSED = {"verdict": "xpassed", "reason": "passed, but is expected to fail: no scatter; remove the expectation"}
SKIPPED = {"verdict": "skipped", "reason": "behind a failure"}
WRONG = {"verdict": "failed", "reason": "output 0: 1 of 4 values (25 %) differ; worst at [3]: 4.0, expected 5.0"}

Results = dict[str, tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in _CASES:
        folder = tmp_path / "ops" / "node" / name
        folder.mkdir(parents=True)
        (folder / "model.mlir").touch()
        (folder / "run_module_io_flags.txt").write_text("--input=4xf32=1 2 3 4\n")
    (tmp_path / "ops" / "configs").mkdir()
    (tmp_path / "ops" / "configs" / "cpu.json").write_text(_CONFIG)
    for name in ("specs", "suites", "runs"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _journal(folder: Path, results: Results, **changes: Any) -> None:
    """A run of cases with the result of their compile and their run."""
    builder = JournalBuilder(run=folder.name)
    steps = []
    for name, (compiled, ran) in results.items():
        case = {"target": "cpu", "dialect": "op_tests"}
        # What passes with a note, as with `--lenient`, is expected to fail.
        expected = {"expect_failure": "needs scatter"} if compiled.get("notes") else {}
        steps += [(builder.step("node", name, "compile", **case, **expected), compiled)]
        steps += [(builder.step("node", name, "threshold", **case), ran)]
    selection = {"suite": "", "spec_dir": ["ops"], "config": [], "shard": "1/2"}
    defaults = {"model": "*", "targets": ["cpu"], "sku": "", "suite": "suites/cpu.toml"}
    asked = {"options": selection, "defaults": defaults, "stages": None}
    builder.begin(name=folder.name, suite="custom", kept=asked, **changes)
    for step, result in steps:
        fields = {"reason": "", **result}
        builder.result(step, **fields)
    builder.end(1)
    builder.write(folder)


def _run_alone(project: Path, *cases: tuple[str, str, str, str]) -> None:
    """A run of cases by model, name and target, with the verdicts of their runs."""
    builder = JournalBuilder(run="one")
    steps = [builder.step(*case[:2], "threshold", target=case[2], dialect="op_tests") for case in cases]
    selection = {"suite": "", "spec_dir": ["ops"], "config": []}
    defaults = {"model": "*", "targets": ["cpu"], "sku": "", "suite": ""}
    builder.begin(name="one", suite="custom", kept={"options": selection, "defaults": defaults, "stages": None})
    for step, case in zip(steps, cases, strict=True):
        builder.result(step, case[3], "" if case[3] == "xpassed" else "output 0 differs")
    builder.end(1)
    builder.write(project / "runs" / "one")


def _update(*, write: bool = True, rerun: int = 0) -> ExitCode:
    asked = XfailUpdateRequest(write=write, rerun=rerun)
    return update(asked, RunRequest(execution=ExecutionRequest(jobs=2)))


def _config(project: Path) -> str:
    return (project / "ops" / "configs" / "cpu.json").read_text()


def _lists(project: Path) -> dict[str, list[str]]:
    document = json.loads(read_plain_json(_config(project)))
    return {name.removeprefix("expected_"): document[name] for name in document if name.startswith("expected_")}


def test_every_list_becomes_what_was_found(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results: Results = {
        "both": ({**CRASH, "verdict": "xfailed", "reason": "iree-compile crashed"}, SKIPPED),
        "fixed": (XPASSED, PASSED),
        "moved": (XPASSED, WRONG),
        "still": ({"verdict": "xfailed", "reason": f"{LEGALIZE}; expected: x"}, SKIPPED),
        "half": (FAILED, SKIPPED),
        "new": (FAILED, SKIPPED),
        "boom": (CRASH, SKIPPED),
        "skipped": (FAILED, {"verdict": "skipped", "reason": "in skip_run_tests"}),
        "wrong": (PASSED, WRONG),
        "slow": (
            {"verdict": "error", "reason": "ran longer than its 60 s", "signal": "SIGKILL", "timed_out": True},
            SKIPPED,
        ),
    }
    _journal(project / "runs" / "one", results)
    assert _update() is ExitCode.OK
    printed = capsys.readouterr().err
    assert _lists(project) == {
        "compile_failures": [f"node/{name}" for name in ("both", "half", "new", "skipped", "still")],
        "compile_crashes": ["node/boom", "node/both"],
        "run_failures": ["node/moved", "node/wrong"],
    }
    reason = "failed to legalize operation 'torch.operator' that was explicitly marked illegal (onnx.If)"
    assert f'    "node/new", // compile: {reason} (IREE 3.13.0)\n' in _config(project)
    assert '"cpu", // the only one\n' in _config(project)
    assert "not added node/slow: ran longer than its 60 s (an error is not a failure of the product)" in printed
    assert "remove   node/fixed: passed, no longer in expected_compile_failures (needs scatter)" in printed
    assert "move     node/moved: expected_run_failures: output 0: 1 of 4" in printed
    assert "move     node/half: expected_compile_failures: " in printed


def test_a_diff_is_shown_and_nothing_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _journal(project / "runs" / "one", {"fixed": (XPASSED, PASSED)})
    _update(write=False)
    captured = capsys.readouterr()
    assert '-    "node/fixed", // needs scatter\n' in captured.out
    assert "+++ b/ops/configs/cpu.json" in captured.out
    assert _config(project) == _CONFIG


def test_a_stage_that_was_not_judged_keeps_its_list(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing: dict[str, Any] = {"verdict": "skipped", "reason": "not asked for"}
    lenient = {"verdict": "passed", "notes": ["passed although expected to fail: needs scatter"]}
    _journal(project / "runs" / "one", {"half": (PASSED, nothing), "fixed": (lenient, nothing)})
    _update()
    assert _lists(project)["run_failures"] == ["node/half"]
    assert "node/fixed" not in _lists(project)["compile_failures"]


def test_an_ordinary_failure_where_a_crash_is_listed(project: Path) -> None:
    words = ", but a crash is expected (in expected_compile_crashes): list it as an ordinary failure"
    result = {"verdict": "failed", "reason": f"{LEGALIZE}{words}"}
    _journal(project / "runs" / "one", {"both": (result, SKIPPED)})
    _update()
    assert _lists(project)["compile_crashes"] == []
    assert "node/both" in _lists(project)["compile_failures"]


class _Again:
    """What stands for running again: journals with what was given for each time."""

    def __init__(self, *times: Results) -> None:
        self.times = list(times)
        self.asked: list[tuple[list[str], bool]] = []

    def __call__(self, chosen: RunSetup, presenter: Reporter, *, brief: bool) -> RunResult:
        assert brief
        request = chosen.request
        chains, forced = sorted(request.chains or ()), request.execution.force_recompile
        self.asked.append((chains, forced))
        names = [chain.removeprefix("node/").removesuffix("@cpu") for chain in chains]
        presenter.line("progress")
        folder = Path(request.folder.run_dir)
        number = sum(before == forced for _, before in self.asked) - 1
        _journal(folder, {name: self.times[number][name] for name in names})
        return RunResult(ExitCode.FAILED, (), (), folder)


def test_only_what_comes_out_the_same_every_time_is_proposed(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _journal(project / "runs" / "one", {"fixed": (XPASSED, PASSED), "new": (FAILED, SKIPPED), "wrong": (PASSED, WRONG)})
    steady: Results = {"fixed": (XPASSED, PASSED), "new": (FAILED, SKIPPED), "wrong": (PASSED, WRONG)}
    again = _Again(steady, {**steady, "new": (CRASH, SKIPPED), "wrong": (PASSED, PASSED)}, steady)
    monkeypatch.setattr(execute, "run", again)
    _update(rerun=3)
    captured = capsys.readouterr()
    assert [forced for _, forced in again.asked] == [True, False] * 3
    assert again.asked[:2] == [(["node/fixed@cpu", "node/new@cpu"], True), (["node/wrong@cpu"], False)]
    flaky = (
        "flaky    node/new: failed at compile, failed at compile, crashed at compile, failed at compile: not changed"
    )
    assert flaky in captured.err
    assert "flaky    node/wrong: failed at run, failed at run, passed, failed at run" in captured.err
    assert _lists(project) == {
        "compile_failures": ["node/both", "node/moved", "node/still"],
        "compile_crashes": ["node/both"],
        "run_failures": ["node/half"],
    }
    # The diff alone goes to standard output, and the newest run is still the one that was asked for.
    assert captured.out.startswith("--- a/ops/configs/cpu.json")
    assert [path.parent.name for path in (project / "runs").glob("*/journal.jsonl")] == ["one"]
    assert len(list((project / "runs" / "one" / "again").iterdir())) == 6


def test_a_rerun_by_another_iree_says_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _journal(
        project / "runs" / "one", {"new": (FAILED, SKIPPED)}, toolchain={"compiler": "3.12.0", "identity": "other"}
    )
    monkeypatch.setattr(execute, "run", _Again({"new": (FAILED, SKIPPED)}))
    with pytest.raises(UsageError, match="another IREE than the current one"):
        _update(rerun=1)


def test_mistakes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _journal(project / "runs" / "one", {"new": (FAILED, SKIPPED), "gone": (FAILED, SKIPPED)})
    with pytest.raises(UsageError, match="--rerun -1"):
        _update(rerun=-1)
    _update(write=False)
    assert "left out  node/gone@cpu: its case or config no longer exists" in capsys.readouterr().err
    config = project / "ops" / "configs" / "cpu.json"
    config.write_text(_CONFIG.replace('"skip_run_tests"', '"skip_runs"'))
    with pytest.raises(SpecError, match=r"cpu\.json:5: skip_runs"):
        _update()


def test_entries_of_the_torch_variant_are_written_as_the_config_writes_them(project: Path) -> None:
    for name in ("one", "two"):
        folder = project / "ops" / "generated" / "AB" / name
        folder.mkdir(parents=True)
        (folder / "run_module_io.json").write_text(
            json.dumps({"function_name": "main", "flat_args": [], "mode": "compare"})
        )
        (folder / "test.mlir").touch()
    config = project / "ops" / "configs" / "cpu.json"
    config.write_text(_CONFIG.replace('["node/half"]', '["AB/one"]'))
    _run_alone(project, ("generated/AB", "one", "cpu", "xpassed"), ("generated/AB", "two", "cpu", "failed"))
    _update()
    assert _lists(project)["run_failures"] == ["AB/two"]


def test_configs_of_one_name_each_follow_their_own_outcome(project: Path) -> None:
    configs = project / "ops" / "configs"
    text = _CONFIG.replace(", // the only one", ",")
    (configs / "cpu.json").unlink()
    for level in ("O0", "O2"):
        (configs / f"cpu_{level}.json").write_text(text)
    _run_alone(project, ("node", "half", "cpu_O0", "xfailed"), ("node", "half", "cpu_O2", "xpassed"))
    _update()
    assert (configs / "cpu_O0.json").read_text() == text
    assert (configs / "cpu_O2.json").read_text() == text.replace('["node/half"]', "[]")


@pytest.mark.iree
def test_a_real_suite_is_put_right_once_and_for_all(tmp_path: Path) -> None:
    project = Project(tmp_path / "toy")
    suite = OperatorSuite(project, warm=True)
    suite.add_unary("abs")
    suite.add_misspelt("misspelt")
    suite.add_unary("wrong", expected_output="1 2 3 5")
    suite.write_config("cpu", expected_compile_failures=["node/abs"])
    assert suite.run().code == ExitCode.FAILED
    done = project.gauntlet("xfail.update", "--rerun", "1", "--write")
    assert done.code == ExitCode.OK, done.text
    assert done.out.startswith("--- a/ops/configs/cpu.json")
    assert suite.run().code == ExitCode.OK
    assert project.verdict("node/misspelt@cpu:compile") == "xfailed"
    assert "compile: use of undeclared SSA value name (IREE " in project.result("node/misspelt@cpu:compile")["reason"]
