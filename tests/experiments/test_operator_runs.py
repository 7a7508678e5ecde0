"""Operator suites from the command line: every outcome, with servers, with batches and with the native tools."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.operator_suite import OperatorSuite
from tests.support.permissions import mounting
from tests.support.processes import running, wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree

# What each of `_everything` comes to.
_VERDICTS = {
    "abs:compile": "passed",
    "abs:threshold": "passed",
    "misspelt:compile": "failed",
    "misspelt:threshold": "skipped",
    "neg:compile": "passed",
    "neg:threshold": "passed",
    "refused:compile": "passed",
    "refused:threshold": "failed",
    "wrong:compile": "passed",
    "wrong:threshold": "failed",
    "zero:compile": "error",
    "zero:threshold": "skipped",
}


@pytest.fixture
def suite(tmp_path: Path) -> OperatorSuite:
    return OperatorSuite(Project(tmp_path))


def _everything(suite: OperatorSuite) -> None:
    suite.unary("abs")
    suite.unary("neg", "Neg", "1 -2 3 -4")
    suite.unary("wrong", expected="1 2 3 5")
    suite.misspelt("misspelt")
    suite.refused("refused")
    suite.crashes("zero")


def _reason(suite: OperatorSuite, step: str) -> str:
    return str(suite.project.result(f"node/{step.replace(':', '@cpu_sync:')}")["reason"])


def _servers(folder: str) -> list[int]:
    return [pid for pid in running(folder) if pid in running("compile_server.py")]


def test_each_outcome_says_its_stage_and_cause(suite: OperatorSuite) -> None:
    _everything(suite)
    done = suite.run("-j", "1")
    assert done.code == 3, done.text
    assert suite.verdicts == _VERDICTS
    assert _reason(suite, "misspelt:compile") == (
        "iree-compile failed with exit code 1: use of undeclared SSA value name"
    )
    assert "SIGFPE" in _reason(suite, "zero:compile")
    assert suite.project.result("node/zero@cpu_sync:compile")["signal"] == "SIGFPE"
    assert "shape dimension 0 mismatch; expected 4 but have 3" in _reason(suite, "refused:threshold")
    assert _reason(suite, "wrong:threshold").startswith("output 0: ")
    comparison = suite.project.result("node/wrong@cpu_sync:threshold")["outputs"][0]
    assert (comparison["mismatches"], comparison["count"], comparison["worst_index"]) == (1, 4, [3])
    # Warm, with two workers: the same verdicts; a failure is known, a crash is tried again.
    done = suite.run("-j", "2")
    assert (done.code, suite.verdicts) == (3, _VERDICTS), done.text
    caches = {
        name: suite.project.result(f"node/{name}@cpu_sync:compile")["cache"] for name in ("abs", "misspelt", "zero")
    }
    assert [caches[name]["hit"] for name in ("abs", "misspelt", "zero")] == [True, True, False]
    assert _reason(suite, "misspelt:compile").endswith("use of undeclared SSA value name")
    # One case is edited: nothing else is compiled.
    program = suite.root / "node" / "neg" / "model.mlir"
    program.write_text(f"// edited\n{program.read_text()}")
    suite.run("--submodel", "[!z]*")
    record = suite.project.journal
    missed = [name for name, result in record.results.items() if result["cache"] and result["cache"]["hit"] is False]
    assert missed == ["node/neg@cpu_sync:compile"]
    # A failure that was kept is tried again where that is asked for.
    suite.run("--submodel", "misspelt", "--force-recompile")
    forced = suite.project.result("node/misspelt@cpu_sync:compile")
    assert (forced["verdict"], forced["cache"]["hit"], forced["cpu_seconds"] > 0) == ("failed", False, True)


def test_batches_and_native_tools_give_the_same_verdicts(suite: OperatorSuite) -> None:
    _everything(suite)
    done = suite.run("--batch", "8")
    assert (done.code, suite.verdicts) == (3, _VERDICTS), done.text
    batch = next(step for step in suite.project.journal.steps if step["model"] == "batch")
    statistics = suite.project.result(batch["id"])["statistics"]
    # The misspelt one and the one that kills the compiler stand alone, and with the latter two from its halves.
    assert (statistics["cases"], statistics["cases_alone"]) == (2, 4)
    assert "c" in suite.project.result("node/abs@cpu_sync:threshold")["command"].rpartition("--function=")[2]
    again = suite.run("--batch", "8")
    assert (again.code, suite.verdicts) == (3, _VERDICTS), again.text
    assert suite.project.result(batch["id"])["cache"]["hit"] is True
    native = suite.run(python="")
    assert (native.code, suite.verdicts) == (3, _VERDICTS), native.text


def test_expected_failures_are_strict_by_stage_and_kind(suite: OperatorSuite) -> None:
    _everything(suite)
    lists: dict[str, Any] = {
        "expected_compile_failures": ["node/misspelt", "node/abs"],
        "expected_compile_crashes": ["node/zero"],
        "expected_run_failures": ["node/wrong", "node/refused"],
        "skip_run_tests": ["node/neg"],
    }
    suite.config(**lists)
    done = suite.run()
    assert done.code == 1, done.text
    expected = _VERDICTS | {
        "misspelt:compile": "xfailed",
        "abs:compile": "xpassed",
        "zero:compile": "xfailed",
        "wrong:threshold": "xfailed",
        "refused:threshold": "xfailed",
        "neg:threshold": "skipped",
    }
    assert suite.verdicts == expected
    # A crash is no ordinary failure.
    suite.config(
        **lists | {"expected_compile_crashes": [], "expected_compile_failures": ["node/misspelt", "node/zero"]}
    )
    done = suite.run()
    assert (done.code, suite.verdicts["zero:compile"]) == (3, "error"), done.text
    assert "crash" in _reason(suite, "zero:compile")


def test_what_hangs_or_wants_too_much_hurts_itself_alone(suite: OperatorSuite) -> None:
    suite.unary("abs")
    suite.endless("endless")
    suite.huge("huge")
    suite.unary("neg", "Neg", "1 -2 3 -4")
    done = suite.run("-j", "1", "--timeout-threshold", "3")
    assert done.code == 3, done.text
    verdicts = suite.verdicts
    assert [verdicts[f"{name}:threshold"] for name in ("abs", "endless", "neg")] == ["passed", "error", "passed"]
    assert verdicts["huge:threshold"] in ("failed", "error")
    assert suite.project.result("node/endless@cpu_sync:threshold")["timed_out"] is True
    assert "3 s" in _reason(suite, "endless:threshold")


def test_killed_servers_are_told_and_replaced(suite: OperatorSuite) -> None:
    for index in range(8):
        suite.unary(f"neg{index}", "Neg", "1 -2 3 -4")
    process = suite.project.start("run", "--spec-dir", "ops", "-j", "1")
    folder = str(suite.project.folder)
    wait_until(lambda: _servers(folder))
    wait_until(lambda: any(suite.project.folder.glob("runs/*/steps/node/neg1.cpu_sync/compile")))
    for pid in _servers(folder):
        os.kill(pid, signal.SIGKILL)
    process.wait(120)
    verdicts = suite.verdicts
    lost = [name for name, verdict in verdicts.items() if verdict == "error"]
    assert 1 <= len(lost) <= 2
    assert all(suite.project.result(f"node/{name.replace(':', '@cpu_sync:')}")["signal"] == "SIGKILL" for name in lost)
    assert verdicts["neg7:threshold"] == "passed"
    assert not running(folder)


def test_a_killed_run_leaves_nothing_and_is_resumed(suite: OperatorSuite) -> None:
    for index in range(8):
        suite.unary(f"neg{index}", "Neg", "1 -2 3 -4")
    process = suite.project.start("run", "--spec-dir", "ops", "-j", "2")
    wait_until(lambda: any(suite.project.folder.glob("runs/*/steps/node/neg3.cpu_sync/compile")))
    process.kill()
    process.wait(60)
    wait_until(lambda: not running(str(suite.project.folder)))
    done = suite.project.gauntlet("run", "--resume")
    assert done.code == 0, done.text
    assert set(suite.verdicts.values()) == {"passed"}
    assert len(suite.verdicts) == 16


@mounting
def test_a_full_disk_is_named_and_nothing_else_is_blamed(suite: OperatorSuite) -> None:
    for index in range(4):
        suite.unary(f"neg{index}", "Neg", "1 -2 3 -4")
    disk = suite.project.folder / "runs"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", disk], check=True)
    try:
        (disk / "ballast").write_bytes(bytes(340_000))
        done = suite.run()
        assert done.code == 3, done.text
        reasons = {
            result["reason"] for result in suite.project.journal.results.values() if result["verdict"] == "error"
        }
        assert reasons
        assert all("space" in reason for reason in reasons), reasons
        # Nothing of it is taken for a failure of the compiler, then or later.
        assert "failed" not in suite.verdicts.values()
    finally:
        subprocess.run(["umount", disk], check=True)
    done = suite.run()
    assert (done.code, set(suite.verdicts.values())) == (0, {"passed"}), done.text


def test_a_program_that_is_edited_meanwhile_is_kept_under_no_key(suite: OperatorSuite) -> None:
    folder = suite.unary("neg", "Neg", "1 -2 3 -4")
    program = folder / "model.mlir"
    before = program.read_text()
    # Planned with one content, compiled with another: the plan is made before the lock is had.
    script = f'printf "%s" "$(sed s/onnx.Neg/onnx.Abs/ {program})" > {program}; exec {find_installed().compile} "$@"'
    done = suite.run("--stages", "compile", python="", compile=suite.project.tool(script))
    assert done.code == 3, done.text
    assert "was changed or removed while this ran" in _reason(suite, "neg:compile")
    program.write_text(before)
    done = suite.run()
    assert (done.code, suite.verdicts["neg:threshold"]) == (0, "passed"), done.text
    assert suite.project.result("node/neg@cpu_sync:compile")["cache"]["hit"] is False


def test_a_runtime_of_another_place_is_asked_itself(suite: OperatorSuite) -> None:
    suite.unary("neg", "Neg", "1 -2 3 -4")
    script = f'echo "[FAILED] by another runtime"; {find_installed().run_module} "$@" > /dev/null; exit 1'
    done = suite.run(run_module=suite.project.tool(script))
    assert done.code == 1, done.text
    assert "by another runtime" in _reason(suite, "neg:threshold")
