"""Operator suites from the command line: every outcome, with servers, with batches and with the native tools."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import psutil
import pytest

from iree_gauntlet.engine.rounds.machine_lock import MachineLocks, find_lock_folder
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import LIMIT_SECONDS
from tests.support.operator_suite import OperatorSuite
from tests.support.permissions import mount_small_disk, with_mount_rights
from tests.support.processes import find_processes, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

# The result of each case of `add_every_outcome`.
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


@pytest.fixture(autouse=True)
def _crashes_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler looks up no names for the trace of a crash: that takes longer than the compile."""
    monkeypatch.setenv("LLVM_DISABLE_SYMBOLIZATION", "1")


@pytest.fixture
def suite(project: Project) -> OperatorSuite:
    """A suite whose cases are compiled."""
    return OperatorSuite(project)


@pytest.fixture
def warm(project: Project) -> OperatorSuite:
    """A suite whose cases were compiled before."""
    return OperatorSuite(project, warm=True)


def _reason(suite: OperatorSuite, step: str) -> str:
    return str(suite.project.result(f"node/{step.replace(':', '@cpu_sync:')}")["reason"])


def _servers(run: subprocess.Popen[bytes]) -> list[int]:
    begun = {process.pid for process in psutil.Process(run.pid).children(recursive=True)}
    return [pid for pid in find_processes("compile_server.py") if pid in begun]


def test_each_outcome_says_its_stage_and_cause(suite: OperatorSuite) -> None:
    suite.add_every_outcome()
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
    # Warm, with two workers: a failure is known, a crash is tried again, and what was edited is compiled.
    program = suite.root / "node" / "neg" / "model.mlir"
    program.write_text(f"// edited\n{program.read_text()}")
    done = suite.run("-j", "2")
    assert (done.code, suite.verdicts) == (3, _VERDICTS), done.text
    results = suite.project.journal.results
    missed = {name for name, result in results.items() if result.cache and not result.cache.hit}
    assert missed == {"node/neg@cpu_sync:compile", "node/zero@cpu_sync:compile"}
    assert _reason(suite, "misspelt:compile").endswith("use of undeclared SSA value name")
    # A failure that was kept is tried again where that is asked for.
    suite.run("--submodel", "misspelt", "--force-recompile")
    forced = suite.project.result("node/misspelt@cpu_sync:compile")
    assert (forced["verdict"], forced["cache"]["hit"], forced["cpu_seconds"] > 0) == ("failed", False, True)


def test_native_tools_give_the_same_verdicts(warm: OperatorSuite) -> None:
    warm.add_every_outcome()
    done = warm.run(python="")
    assert (done.code, warm.verdicts) == (3, _VERDICTS), done.text


@pytest.mark.stress
def test_batches_give_the_same_verdicts(suite: OperatorSuite) -> None:
    suite.add_every_outcome()
    done = suite.run("-j", "1", "--batch", "8")
    assert (done.code, suite.verdicts) == (3, _VERDICTS), done.text
    batch = next(step for step in suite.project.journal.steps if step["model"] == "batch")
    statistics = suite.project.result(batch["id"])["statistics"]
    # The misspelt one and the one that kills the compiler stand alone, and with the latter two from its halves.
    assert (statistics["cases"], statistics["cases_alone"]) == (2, 4)
    assert "c" in suite.project.result("node/abs@cpu_sync:threshold")["command"].rpartition("--function=")[2]
    again = suite.run("-j", "1", "--batch", "8")
    assert (again.code, suite.verdicts) == (3, _VERDICTS), again.text
    assert suite.project.result(batch["id"])["cache"]["hit"] is True
    # A batch is a step, and no case.
    cases = len({step["chain"] for step in suite.project.journal.steps if step["model"] != "batch"})
    assert f"\n{cases} cases: " in again.out
    assert f"\n{cases} cases: " in again.out


def test_expected_failures_are_strict_by_stage_and_kind(warm: OperatorSuite) -> None:
    suite = warm
    suite.add_every_outcome()
    lists: dict[str, Any] = {
        "expected_compile_failures": ["node/misspelt", "node/abs"],
        "expected_compile_crashes": ["node/zero"],
        "expected_run_failures": ["node/wrong", "node/refused"],
        "skip_run_tests": ["node/neg"],
    }
    suite.write_config(**lists)
    done = suite.run("-j", "1")
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
    suite.write_config(
        **lists | {"expected_compile_crashes": [], "expected_compile_failures": ["node/misspelt", "node/zero"]}
    )
    done = suite.run("-j", "1", "--submodel", "zero")
    assert (done.code, suite.verdicts["zero:compile"]) == (3, "error"), done.text
    assert "crash" in _reason(suite, "zero:compile")


def test_a_broken_case_is_an_error_of_its_own(warm: OperatorSuite) -> None:
    suite, project = warm, warm.project
    suite.add_unary("abs")
    (suite.add_unary("neg", "Neg", "1 -2 3 -4") / "input_0.bin").unlink()
    (suite.add_unary("wrong") / "more.mlir").touch()
    strange = suite.add_unary("refused") / "run_module_io_flags.txt"
    strange.write_text(f"{strange.read_text()}--no_such_flag=1\n")
    (suite.add_unary("misspelt") / "run_module_io_flags.txt").write_bytes(b"\xff")
    done = suite.run("-j", "1")
    assert done.code == 3, done.text
    assert suite.verdicts == {
        "abs:compile": "passed",
        "abs:threshold": "passed",
        "misspelt:compile": "passed",
        "misspelt:threshold": "error",
        "neg:compile": "passed",
        "neg:threshold": "error",
        "refused:compile": "passed",
        "refused:threshold": "error",
        "wrong:compile": "error",
        "wrong:threshold": "skipped",
    }
    files = {name: f"ops/node/{name}/run_module_io_flags.txt" for name in ("misspelt", "neg", "refused", "wrong")}
    two = "found model.mlir and more.mlir; keep one program in the folder"
    unknown = "iree-run-module does not know --no_such_flag=1"
    reasons = {
        "misspelt:threshold": f"{files['misspelt']}: is not UTF-8; save the file as UTF-8",
        "neg:threshold": f"{files['neg']}:1: input: the file input_0.bin is missing; put it next to the flagfile",
        "refused:threshold": f"{files['refused']}:3: {unknown}; see all flags: iree-run-module --help",
        "wrong:compile": f"{files['wrong']}: expected one program next to it, *.mlir or *.mlirbc; {two}",
    }
    assert {step: _reason(suite, step) for step in reasons} == reasons
    # Nothing was started that could be started again.
    assert "Reproduce:" not in done.out
    errors = ET.parse(project.newest / "junit.xml").iterfind(".//testcase/error")
    assert sorted(error.get("message", "") for error in errors) == sorted(reasons.values())
    # What `lint` finds it finds as before; a tool's flags are known with a toolchain.
    found = project.gauntlet("lint", "--spec-dir", "ops")
    assert (found.code, found.text.count("run_module_io_flags.txt")) == (2, 3), found.text
    found = project.gauntlet("lint", "--spec-dir", "ops", "--submodel", "refused", "--toolchain")
    assert (found.code, "--no_such_flag" in found.text) == (2, True), found.text


def test_a_run_writes_nothing_into_the_suite(warm: OperatorSuite) -> None:
    """As flagfiles of upstream's pytorch_ops have it: `--output=@expected_result0.npy`."""
    suite = warm
    folder = suite.add_unary("abs")
    flags = folder / "run_module_io_flags.txt"
    flags.write_text(f"{flags.read_text()}--output=@expected_result0.npy\n--output=@../configs/other.npy\n")
    before = sorted(suite.root.rglob("*"))
    done = suite.run()
    assert done.code in (0, 1), done.text
    assert sorted(suite.root.rglob("*")) == before
    flags.write_text("--input=4xf32=@input_0.bin\n--output=@expected_result0.npy\n")
    done = suite.run()
    assert done.code == 0, done.text
    assert sorted(suite.root.rglob("*")) == before
    (written,) = suite.project.newest.rglob("expected_result0.npy")
    assert np.load(written).tolist() == [1, 2, 3, 4]


def test_what_wants_too_much_hurts_itself_alone(warm: OperatorSuite) -> None:
    suite = warm
    suite.add_unary("abs")
    suite.add_huge("huge")
    suite.add_unary("neg", "Neg", "1 -2 3 -4")
    done = suite.run("-j", "1")
    assert done.code in (1, 3), done.text
    verdicts = suite.verdicts
    assert [verdicts[f"{name}:threshold"] for name in ("abs", "neg")] == ["passed", "passed"]
    assert verdicts["huge:threshold"] in ("failed", "error")


def test_what_hangs_is_ended_and_says_after_how_long(warm: OperatorSuite) -> None:
    """That others go on in a new worker: tests/engine/test_run_server.py, as what hangs shares its limit with them."""
    suite = warm
    suite.add_endless("endless")
    done = suite.run("-j", "1", "--timeout-threshold", "1")
    assert done.code == 3, done.text
    assert suite.verdicts["endless:threshold"] == "error"
    assert suite.project.result("node/endless@cpu_sync:threshold")["timed_out"] is True
    assert "1 s" in _reason(suite, "endless:threshold")


@contextmanager
def _first_compile_hangs(suite: OperatorSuite) -> Iterator[subprocess.Popen[bytes]]:
    """A run that is compiling `neg0`, which never ends, and has `neg1` before it."""
    folder = suite.add_unary("neg0", "Neg", "1 -2 3 -4")
    suite.add_unary("neg1", "Neg", "1 -2 3 -4")
    program, pipe, printed = folder / "model.mlir", folder / "pipe", suite.project.folder / "printed.txt"
    os.mkfifo(pipe)
    text = program.read_text()
    locks = MachineLocks(find_lock_folder(os.environ), patience=0.0, cancelled=threading.Event())
    with printed.open("wb") as output, locks.quiet_machine(exclusive=True, on_wait=pytest.fail):
        run = suite.project.start("run", "--spec-dir", "ops", "-j", "1", output=output)
        # It has read its programs, and waits.
        wait_until(lambda: f"process {os.getpid()} of another run" in printed.read_text())
        pipe.replace(program)
    # Nobody can write to a pipe that nobody reads.
    descriptor = -1
    while descriptor < 0:
        with contextlib.suppress(OSError):
            descriptor = os.open(program, os.O_WRONLY | os.O_NONBLOCK)
    program.unlink()
    program.write_text(text)
    yield run
    os.close(descriptor)


def test_killed_servers_are_told_and_replaced(suite: OperatorSuite) -> None:
    with _first_compile_hangs(suite) as run:
        folder = str(suite.project.folder)
        servers = _servers(run)
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        assert run.wait(LIMIT_SECONDS) == 3
    assert suite.verdicts == {
        "neg0:compile": "error",
        "neg0:threshold": "skipped",
        "neg1:compile": "passed",
        "neg1:threshold": "passed",
    }
    assert suite.project.result("node/neg0@cpu_sync:compile")["signal"] == "SIGKILL"
    wait_until(lambda: not find_processes(folder))


@pytest.mark.stress
def test_a_killed_run_leaves_nothing_and_is_resumed(suite: OperatorSuite) -> None:
    with _first_compile_hangs(suite) as run:
        run.kill()
        run.wait()
        wait_until(lambda: not find_processes(str(suite.project.folder)))
    done = suite.project.gauntlet("run", "--resume")
    assert done.code == 0, done.text
    assert set(suite.verdicts.values()) == {"passed"}
    assert len(suite.verdicts) == 4


@with_mount_rights
def test_a_full_disk_is_named_and_nothing_else_is_blamed(suite: OperatorSuite) -> None:
    for index in range(2):
        suite.add_unary(f"neg{index}", "Neg", "1 -2 3 -4")
    disk = suite.project.folder / "runs"
    with mount_small_disk(disk, "400k"):
        (disk / "ballast").write_bytes(bytes(366_000))
        done = suite.run()
        assert done.code == 3, done.text
        reasons = {result.reason for result in suite.project.journal.results.values() if result.verdict == "error"}
        assert reasons
        assert all("space" in reason for reason in reasons), reasons
        # Nothing of it is taken for a failure of the compiler, then or later.
        assert "failed" not in suite.verdicts.values()
    done = suite.run()
    assert (done.code, set(suite.verdicts.values())) == (0, {"passed"}), done.text


def test_a_program_that_is_edited_meanwhile_is_kept_under_no_key(suite: OperatorSuite) -> None:
    folder = suite.add_unary("neg", "Neg", "1 -2 3 -4")
    program = folder / "model.mlir"
    before = program.read_text()
    # Planned with one content, compiled with another: the plan is made before the lock is had.
    real = find_installed().compiler.compile
    script = f'printf "%s" "$(sed s/onnx.Neg/onnx.Abs/ "{program}")" > "{program}"; exec "{real}" "$@"'
    done = suite.run("--stages", "compile", python="", compile=suite.project.write_tool(script))
    assert done.code == 3, done.text
    assert "was changed or removed while this ran" in _reason(suite, "neg:compile")
    program.write_text(before)
    done = suite.run()
    assert (done.code, suite.verdicts["neg:threshold"]) == (0, "passed"), done.text
    assert suite.project.result("node/neg@cpu_sync:compile")["cache"]["hit"] is False


def test_a_runtime_of_another_place_is_asked_itself(warm: OperatorSuite) -> None:
    suite = warm
    suite.add_unary("neg", "Neg", "1 -2 3 -4")
    script = f'echo "[FAILED] by another runtime"; "{find_installed().runtime.run_module}" "$@" > /dev/null; exit 1'
    done = suite.run(run_module=suite.project.write_tool(script))
    assert done.code == 1, done.text
    assert "by another runtime" in _reason(suite, "neg:threshold")
