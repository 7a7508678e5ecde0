from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.engine.judging import judge_process
from iree_gauntlet.engine.processes.compile_client import (
    CompileJob,
    CompileResponse,
    CompileServer,
    compile_outcome,
    find_programs_with_errors,
    is_servable,
)
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.stages import Stage
from iree_gauntlet.workers.iree_side import compile_server
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import iterate_timeouts
from tests.support.native_tools import copy_compiler, find_native_tool
from tests.support.places import CORPUS, ROOT
from tests.support.processes import wait_until
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.engine.processes.supervisor import Outcome

pytestmark = [pytest.mark.iree, pytest.mark.skipif(sys.platform != "linux", reason="the compile server needs Linux")]

OPERATORS = CORPUS / "onnx_ops" / "onnx" / "node" / "generated"
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-opt-level=O0",
)
# Operators of many kinds; the last of the first few, and the last, fail.
CASES = ("test_castlike_DOUBLE_to_FLOAT16_expanded", "test_split_zero_size_splits_opset13", "test_affine_grid_2d")
MORE_CASES = (
    "test_and2d",
    "test_argmax_no_keepdims_example",
    "test_depthtospace_crd_mode_example",
    "test_flatten_axis3",
    "test_min_uint32",
    "test_softplus",
    "test_triu_pos",
    "test_affine_grid_3d",
)
PROGRAM = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
# Names of all kinds, and one that stands in text without being a name.
STATEFUL = """
module @named {
  util.global private @state = dense<3.0> : tensor<4xf32>
  func.func private @callee(%a: tensor<4xf32>) -> tensor<4xf32> attributes {note = "state"} {
    %g = util.global.load @state : tensor<4xf32>
    %0 = arith.addf %a, %g : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @callee(%a) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""
UNKNOWN = """
func.func @main(%a: !torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32> {
  %0 = torch.operator "onnx.Nonsense"(%a) : (!torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32>
  return %0 : !torch.vtensor<[3],f32>
}
"""


def package_file(package: str, name: str) -> str:
    spec = importlib.util.find_spec(package)
    folders = list((spec and spec.submodule_search_locations) or ())
    if not folders:
        pytest.skip(f"{package} is not installed")
    return str(Path(folders[0]) / name)


def native(program: Path, output: Path, flags: tuple[str, ...] = FLAGS) -> tuple[int, str]:
    tool = package_file("iree.compiler", "_mlir_libs/iree-compile")
    command = [tool, program.name, *flags, "-o", str(output)]
    done = subprocess.run(
        command, cwd=program.parent, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )
    return done.returncode, done.stderr


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def state(pid: int) -> str:
    """As in /proc: `T` is stopped; empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z")


def compiling(server: CompileServer, job: CompileJob, count: int = 1) -> list[int]:
    """The children that work on a job, as soon as there are so many; they are set up and have begun to compile."""

    def at_work(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/fd/2").readlink() == job.stderr
        except OSError:
            return False

    found: list[int] = []

    def all_at_work() -> bool:
        found[:] = [pid for pid in children(server.pid) if at_work(pid)]
        return len(found) == count

    wait_until(all_at_work)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileServer]:
    # Whoever is asked to end gets the time for it, however busy the machine is.
    with CompileServer(sys.executable, tmp_path_factory.mktemp("server"), grace=LIMIT_SECONDS) as it:
        yield it


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[CompileServer]:
    """For tests that end it."""
    with CompileServer(sys.executable, tmp_path / "tmp", grace=LIMIT_SECONDS) as it:
        yield it


def test_iree_in_a_folder_with_blanks_finds_its_linker(job: CompileJob, tmp_path: Path) -> None:
    libraries = copy_compiler(
        find_native_tool("iree-compile"), tmp_path / "an iree" / "iree" / "compiler" / "_mlir_libs"
    )
    environment = os.environ | {"PYTHONPATH": str(libraries.parents[2])}
    with CompileServer(sys.executable, tmp_path / "tmp", environment) as server:
        assert server.compile(job).exit_code == 0, job.stderr.read_text()


def test_the_compiler_never_gets_the_locale_of_the_user() -> None:
    # iree-compile does not set a locale either; in Turkish, it would not compile for Vulkan.
    script = (
        "import locale; from iree_gauntlet.workers.iree_side.compiler_library import CompilerLibrary, find_package; "
        "print(locale.setlocale(locale.LC_CTYPE)); CompilerLibrary(find_package()); "
        "print(locale.setlocale(locale.LC_CTYPE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["C.UTF-8", "C"]


@pytest.fixture
def job(tmp_path: Path) -> CompileJob:
    (tmp_path / "model.mlir").write_text(PROGRAM)
    return CompileJob(
        programs=("model.mlir",),
        flags=FLAGS,
        output=tmp_path / "model.vmfb",
        stdout=tmp_path / "logs" / "out.txt",
        stderr=tmp_path / "logs" / "err.txt",
        cwd=str(tmp_path),
        timeout=LIMIT_SECONDS,
    )


@pytest.fixture
def hanging(job: CompileJob, tmp_path: Path) -> CompileJob:
    """A compile that waits for ever for its program."""
    os.mkfifo(tmp_path / "never.mlir")
    logs = tmp_path / "hanging"
    return replace(job, programs=("never.mlir",), stdout=logs / "out.txt", stderr=logs / "err.txt")


def batch_of(job: CompileJob, *programs: str) -> CompileJob:
    paths = []
    for index, text in enumerate(programs):
        path = Path(job.cwd) / f"program{index}.mlir"
        path.write_text(text)
        paths.append(str(path))
    return CompileJob(tuple(paths), FLAGS, job.output, job.stdout, job.stderr, job.cwd, job.timeout)


@pytest.mark.corpus
@pytest.mark.parametrize("cases", [CASES, pytest.param(MORE_CASES, marks=pytest.mark.stress)], ids=["few", "more"])
def test_the_tool_and_the_server_make_the_same(
    server: CompileServer, job: CompileJob, tmp_path: Path, cases: tuple[str, ...]
) -> None:
    if not OPERATORS.is_dir():
        pytest.skip("no corpus")

    def check(case: str) -> int:
        program, ours, theirs = OPERATORS / case / "model.mlir", tmp_path / f"{case}.ours", tmp_path / f"{case}.theirs"
        stdout, stderr = tmp_path / f"{case}.out", tmp_path / f"{case}.err"
        code, text = native(program, theirs)
        outcome = server.compile(replace(job, output=ours, cwd=str(program.parent), stdout=stdout, stderr=stderr))
        assert outcome.exit_code == code, case
        assert stderr.read_text() == text, case
        assert stdout.read_text() == "", case
        assert ours.exists() == theirs.exists() == (code == 0), case
        if code == 0:
            assert ours.read_bytes() == theirs.read_bytes(), case
            assert outcome.cpu_seconds > 0
            assert outcome.peak_rss_bytes > 50 << 20
        return code

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(check, cases))
    assert [bool(code) for code in codes] == [False] * (len(cases) - 1) + [True]
    assert [path.name for path in Path(f"/proc/{server.pid}/task").iterdir()] == [str(server.pid)], "a thread"
    assert {path.name for path in server.tmpdir.glob("*/*")} <= {"server.txt"}


def test_bytecode_and_files_next_to_the_module(server: CompileServer, job: CompileJob, tmp_path: Path) -> None:
    bytecode = tmp_path / "model.mlirbc"
    tool = package_file("iree.compiler", "_mlir_libs/iree-opt")
    subprocess.run([tool, str(tmp_path / "model.mlir"), "--emit-bytecode", "-o", str(bytecode)], check=True)

    def flags(name: str) -> tuple[str, ...]:
        # Threads off twice: the server does not say it again.
        return (
            *FLAGS,
            f"--iree-scheduling-dump-statistics-file={name}",
            "--iree-scheduling-dump-statistics-format=json",
            "--mlir-disable-threading",
        )

    assert native(bytecode, tmp_path / "theirs.vmfb", flags("theirs.json"))[0] == 0
    outcome = server.compile(replace(job, programs=("model.mlirbc",), flags=flags("ours.json")))
    assert outcome.exit_code == 0
    assert job.output.read_bytes() == (tmp_path / "theirs.vmfb").read_bytes()
    assert json.loads((tmp_path / "ours.json").read_text()) == json.loads((tmp_path / "theirs.json").read_text())


def test_what_the_tool_refuses_is_refused_as_by_the_tool(
    server: CompileServer, job: CompileJob, tmp_path: Path
) -> None:
    for program, flags in (("model.mlir", (*FLAGS, "--no-such-flag")), ("missing.mlir", FLAGS)):
        outcome = server.compile(replace(job, programs=(program,), flags=flags))
        assert (outcome.exit_code, job.stderr.read_text()) == native(tmp_path / program, tmp_path / "x", flags)
        assert not job.output.exists()


@pytest.mark.corpus
def test_a_crash_is_told_as_the_tool_tells_it(server: CompileServer, job: CompileJob) -> None:
    folder = OPERATORS / "test_reshape_allowzero_reordered"
    if not folder.is_dir():
        pytest.skip("no corpus")
    outcome = server.compile(replace(job, cwd=str(folder)))
    if outcome.exit_code is not None:
        pytest.skip("this compiler does not crash there")
    assert outcome.signal == "SIGFPE"
    assert "ireeCompiler" in outcome.tail[-1] or "runIreecMain" in outcome.tail[-1]
    assert not any("_PyEval" in line for line in outcome.tail)
    step = make_step(Stage.COMPILE, folder=str(folder))
    result = judge_process(step, outcome, outcome.tail, tool="iree-compile")
    assert result.crashed
    assert result.reason == "iree-compile crashed with SIGFPE"
    assert server.compile(job).exit_code == 0


def test_a_hang_ends_when_its_time_is_up(hanging: CompileJob, tmp_path: Path) -> None:
    # Until it has had the time to get ready, and to obey.
    for seconds in iterate_timeouts(0.4):
        with CompileServer(sys.executable, tmp_path / "tmp", grace=seconds) as server:
            outcome = server.compile(replace(hanging, timeout=seconds))
        assert outcome.timed_out
        assert outcome.exit_code is None
        if outcome.signal == "SIGTERM":
            break


def test_one_that_does_not_listen_is_killed(hanging: CompileJob, tmp_path: Path) -> None:
    def stop(pid: int) -> bool:
        """Stops a child, unless it has ended before."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state(pid) in ("T", "Z", ""))
        return state(pid) == "T"

    def stopped(server: CompileServer, waiting: Future[Outcome]) -> list[int]:
        """The children that were stopped."""
        wait_until(lambda: children(server.pid) or waiting.done())
        return [child for child in children(server.pid) if stop(child)]

    with CompileServer(sys.executable, tmp_path / "tmp", grace=0.0) as server, ThreadPoolExecutor(1) as pool:
        # Until it was stopped before its time was up.
        for seconds in iterate_timeouts(0.4):
            waiting = pool.submit(server.compile, replace(hanging, timeout=seconds))
            pids = stopped(server, waiting)
            outcome = waiting.result()
            assert outcome.timed_out
            assert not any(alive(pid) for pid in pids)
            if pids:
                break
    assert outcome.signal == "SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_is_signalled_ends_alone(
    server: CompileServer, job: CompileJob, hanging: CompileJob, number: signal.Signals
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.compile, hanging)
        (child,) = compiling(server, hanging)
        assert os.getpgid(child) == child != os.getpgid(server.pid)
        assert server.compile(job).exit_code == 0, "others continue at the same time"
        assert alive(child)
        os.kill(child, number)
        outcome = waiting.result()
    assert (outcome.exit_code, outcome.signal, outcome.timed_out) == (None, number.name, False)
    assert not alive(child)


def test_what_a_child_leaves_behind_is_killed(
    server: CompileServer, job: CompileJob, tmp_path: Path, plain_folder: Path
) -> None:
    # A linker that starts something and goes; IREE starts none in a path with blanks.
    linker, mark = plain_folder / "linker", tmp_path / "left"
    os.mkfifo(tmp_path / "never")
    linker.write_text(f"#!/bin/sh\ncat '{tmp_path}/never' &\necho $! > '{mark}'\nexit 1\n")
    linker.chmod(0o755)
    outcome = server.compile(replace(job, flags=(*FLAGS, f"--iree-llvmcpu-embedded-linker-path={linker}")))
    assert outcome.exit_code == 1
    assert not alive(int(mark.read_text()))


def test_a_server_that_is_killed_takes_its_compiles_along(
    own_server: CompileServer, job: CompileJob, hanging: CompileJob
) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(own_server.compile, hanging) for _ in range(2)]
        pids, first = compiling(own_server, hanging, 2), own_server.pid
        assert own_server._server is not None
        waiters = list(own_server._server._pending_compiles.values())
        wait_until(lambda: all(waiter.pid for waiter in waiters))
        os.kill(first, signal.SIGKILL)
        for outcome in (future.result() for future in waiting):
            assert (outcome.exit_code, outcome.signal) == (None, "SIGKILL")
            assert "the compile server was killed" in outcome.notes[0]
    wait_until(lambda: not any(alive(pid) for pid in pids))
    assert own_server.compile(job).exit_code == 0
    assert own_server.pid != first
    # Between two compiles: nothing was under way, and nothing is reported.
    os.kill(own_server.pid, signal.SIGKILL)
    assert own_server.compile(job).exit_code == 0


def test_a_client_that_is_killed_leaves_nothing(hanging: CompileJob, tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from iree_gauntlet.engine.processes.compile_client import CompileJob, CompileServer
folder = Path({str(tmp_path)!r})
server = CompileServer(sys.executable, folder / "tmp")
job = CompileJob(("never.mlir",), (), folder / "o", folder / "out", folder / "err", str(folder), 100.0)
server.compile(job)
"""
    client = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        wait_until(lambda: [child for pid in children(client.pid) for child in children(pid)])
        (pid,) = children(client.pid)
        everything = [pid, *children(pid)]
    finally:
        client.kill()
        client.wait()
    wait_until(lambda: not any(alive(each) for each in everything))
    wait_until(lambda: not list((tmp_path / "tmp").iterdir()))


def test_cancelling_ends_what_runs_and_starts_nothing(
    own_server: CompileServer, job: CompileJob, hanging: CompileJob
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(own_server.compile, hanging)
        (child,) = compiling(own_server, hanging)
        own_server.cancel()
        outcome = waiting.result()
    assert outcome.cancelled
    assert not alive(child)
    assert own_server.compile(job).cancelled
    assert own_server.compile_batch(batch_of(job, PROGRAM))[0].cancelled
    assert not job.output.exists()


def test_closing_ends_what_runs(hanging: CompileJob, tmp_path: Path) -> None:
    outcomes = []
    with CompileServer(sys.executable, tmp_path / "tmp", grace=LIMIT_SECONDS) as server:
        thread = threading.Thread(target=lambda: outcomes.append(server.compile(hanging)))
        thread.start()
        pids = [*compiling(server, hanging), server.pid]
    thread.join()
    assert [outcome.signal for outcome in outcomes] == ["SIGKILL"]
    assert not any(alive(pid) for pid in pids)
    assert not list((tmp_path / "tmp").iterdir())
    with pytest.raises(RuntimeError):
        server.compile(hanging)


def test_memory_is_limited(server: CompileServer, job: CompileJob) -> None:
    outcome = server.compile(replace(job, memory_bytes=255 << 20))
    assert outcome.signal == "SIGABRT"
    assert outcome.notes == ("the compiler ran into its memory limit of 0.267 GB",)
    assert server.compile(replace(job, memory_bytes=4 << 30)).exit_code == 0


def test_a_module_that_cannot_be_written(server: CompileServer, job: CompileJob, tmp_path: Path) -> None:
    outcome = server.compile(replace(job, output=tmp_path / "model.mlir" / "module.vmfb"))
    assert outcome.exit_code == 74
    assert outcome.tail[-1].endswith("module.vmfb: Not a directory")


def test_a_full_disk_is_named_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    held, output = tmp_path / "held", tmp_path / "out" / "module.vmfb"
    held.write_bytes(b"x" * 100)
    output.parent.mkdir()
    monkeypatch.setattr(os, "sendfile", full)
    assert compile_server._write_out(str(held), output) == 74
    assert capsys.readouterr().err == f"error: cannot write {output}: No space left on device\n"
    assert not list(output.parent.iterdir())


def test_what_cannot_be_started_is_said(server: CompileServer, job: CompileJob, tmp_path: Path) -> None:
    with pytest.raises(GauntletError, match="no such folder"):
        server.compile(replace(job, cwd=str(tmp_path / "nowhere")))
    with pytest.raises(GauntletError, match="Is a directory"):
        server.compile(replace(job, stderr=tmp_path))
    with pytest.raises(GauntletError, match="cannot create a folder"):
        server.compile(replace(job, stderr=tmp_path / "model.mlir" / "logs" / "err.txt"))
    assert server.compile(job).exit_code == 0


def test_a_python_without_the_bindings(job: CompileJob, tmp_path: Path) -> None:
    (tmp_path / "shadow" / "iree").mkdir(parents=True)
    (tmp_path / "shadow" / "iree" / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "shadow")}
    with (
        CompileServer(sys.executable, tmp_path / "tmp", environment) as server,
        pytest.raises(ToolchainError, match=r"cannot be started: .* has no iree\.compiler"),
    ):
        server.compile(job)
    with CompileServer("/no/python", tmp_path / "tmp") as server, pytest.raises(ToolchainError, match="No such file"):
        server.compile(job)
    assert not list((tmp_path / "tmp").iterdir())


def test_flags_that_are_served() -> None:
    assert is_servable((*FLAGS, "--mlir-print-ir-after-all", "-O3", "--iree-llvmcpu-target-cpu=host"))
    assert is_servable(("--mlir-disable-threading", "--compile-to=vm"))
    for flag in ("--help", "-help-hidden", "--help-list", "--version", "--iree-list-plugins", "-o", "--o=x"):
        assert not is_servable((*FLAGS, flag)), flag
    assert not is_servable(("--mlir-disable-threading=false",))


def test_a_batch_computes_what_its_programs_compute(server: CompileServer, job: CompileJob, tmp_path: Path) -> None:
    other = STATEFUL.replace("3.0", "5.0").replace("module @named ", "module ")
    outcome, functions, culprits = server.compile_batch(batch_of(job, PROGRAM, STATEFUL, other))
    assert outcome.exit_code == 0
    assert culprits == ()
    assert functions == (("c0_main",), ("c1_main",), ("c2_main",))
    tool = package_file("iree._runtime_libs", "iree-run-module")
    for (name,), value in zip(functions, (2, 4, 6), strict=True):
        command = [tool, f"--module={job.output}", "--device=local-sync", f"--function={name}", "--input=4xf32=1"]
        done = subprocess.run(
            [*command, f"--expected_output=4xf32={value}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in Path(f"/proc/{server.pid}/task").iterdir()] == [str(server.pid)], "a thread"
    assert "numpy" not in Path(f"/proc/{server.pid}/maps").read_text()
    assert {path.name for path in server.tmpdir.glob("*/*")} <= {"server.txt"}


def test_a_batch_names_its_culprits(server: CompileServer, job: CompileJob) -> None:
    outcome, functions, culprits = server.compile_batch(batch_of(job, PROGRAM, UNKNOWN))
    assert outcome.exit_code == 1
    assert culprits == (1,)
    assert len(functions) == 2
    outcome, _, culprits = server.compile_batch(batch_of(job, "func.func @", PROGRAM, "\xff", PROGRAM))
    assert outcome.exit_code == 1
    assert culprits == (0, 2)
    assert "program0.mlir" in job.stderr.read_text()
    job.output.unlink(missing_ok=True)
    apart = "module attributes {test.other} { func.func @main() { return } }"
    outcome, _, culprits = server.compile_batch(batch_of(job, PROGRAM, apart))
    assert outcome.exit_code == 1
    assert culprits == (1,)
    assert not job.output.exists()


def test_errors_of_other_files_blame_nobody(tmp_path: Path) -> None:
    log = tmp_path / "err.txt"
    log.write_text(
        "/a/model.mlir:4:10: error: failed to legalize\n/b/model.mlir:4:10: note: see current operation\n"
        "/c:d/model.mlir:1:1: error: oops\nmodel.mlir:1:1: error: of whom?\n"
    )
    assert find_programs_with_errors(log, ("/a/model.mlir", "/b/model.mlir", "/c:d/model.mlir")) == (0, 2)
    assert find_programs_with_errors(log, ("/b/model.mlir",)) == ()


def test_the_tail_has_both_streams(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("".join(f"out {i}\n" for i in range(30)))
    (tmp_path / "err").write_text("".join(f"err {i}\n" for i in range(30)))
    answer = CompileResponse(status=256, seconds=1.0, cpu_seconds=1.0, peak_rss_bytes=5, notes=("a",))
    job = CompileJob(("m.mlir",), (), tmp_path / "m.vmfb", tmp_path / "out", tmp_path / "err", "", 60.0)
    outcome = compile_outcome(answer, job)
    assert outcome.exit_code == 1
    assert outcome.tail == (*(f"out {i}" for i in range(24, 30)), *(f"err {i}" for i in range(16, 30)))
    assert outcome.truncated
    assert outcome.notes == ("a",)
