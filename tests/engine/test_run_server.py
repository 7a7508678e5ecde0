"""The run servers: the tool's own verdicts for each case, and no effect of a broken case on other cases."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from iree_gauntlet.cases import Allclose, Origin, Verdict
from iree_gauntlet.engine.operator_suites import check_served_threshold, make_run_job
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.run_client import RunJob, RunOutput, RunResponse, RunServers, RunVerdict
from iree_gauntlet.engine.processes.supervisor import Outcome, Supervisor
from iree_gauntlet.engine.threshold import check_threshold
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.measuring.numerics.arrays import get_storage_dtype
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import Command, Step
from iree_gauntlet.workers.iree_side.run_server import _read_mapped
from tests.support.command_line import LIMIT_SECONDS
from tests.support.native_tools import compile_native, find_native_tool
from tests.support.places import CORPUS
from tests.support.processes import wait_until
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.results import Result

CORPUS = CORPUS / "onnx_ops" / "onnx" / "node" / "generated"
COMPILE_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-demote-f64-to-f32=false",
    "--iree-opt-level=O0",
)
# Two that pass, and two of the corpus that give something else.
CASES = (
    *("test_cast_BFLOAT16_to_FLOAT", "test_split_zero_size_splits_opset13"),
    *("test_gridsample_nearest", "test_qlinearmatmul_3D_uint8_float16"),
)
# Of every kind: element types, scalars, no values, several outputs; one of them gives something else.
MORE_CASES = (
    *("test_and2d", "test_bitshift_left_uint8", "test_castlike_DOUBLE_to_FLOAT16_expanded", "test_nonzero_example"),
    *("test_range_float_type_positive_delta", "test_resize_downsample_scales_cubic_align_corners", "test_tan_example"),
    "test_top_k_smallest",
)
TYPES = {
    **{name: name for name in ("f16", "f32", "f64", "bf16", "i1", "i4", "i8", "i16", "i32", "i64", "f8E4M3FN")},
    "cf64": "complex<f32>",
}
# Rounds of `wait` that never finish.
ENDLESS = 1 << 60


def compile_program(source: Path, module: Path) -> None:
    compiler = find_native_tool("iree-compile")
    compile_native([compiler, str(source), *COMPILE_FLAGS, "--mlir-disable-threading", f"-o={module}"])


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("faults")
    compile_program(Path(__file__).with_name("run_server_faults.mlir"), folder / "faults.vmfb")
    return str(folder / "faults.vmfb")


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Functions that give back their arguments, one for each type."""
    folder = tmp_path_factory.mktemp("identities")
    text = "\n".join(
        f"func.func @{name}(%a: tensor<?x{mlir}>) -> tensor<?x{mlir}> {{ return %a : tensor<?x{mlir}> }}"
        for name, mlir in TYPES.items()
    )
    (folder / "identities.mlir").write_text(text)
    compile_program(folder / "identities.mlir", folder / "identities.vmfb")
    return str(folder / "identities.vmfb")


@pytest.fixture(scope="module")
def servers() -> Iterator[RunServers]:
    with RunServers(sys.executable, 1) as servers:
        yield servers


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as supervisor:
        yield supervisor


def threshold_step(folder: Path, module: str, flags: list[str], cwd: Path, name: str = "case") -> Step:
    tool = find_native_tool("iree-run-module")
    place = folder / "steps" / name
    count = sum(flag.startswith("--expected_output=") for flag in flags)
    return make_step(
        Stage.THRESHOLD,
        name,
        dialect="op_tests",
        model="ops",
        submodel=name,
        target="cpu",
        folder=str(place),
        origin=Origin("cpu.json", ""),
        command=Command((tool, "--device=local-sync", f"--module={module}", *flags), str(cwd)),
        outputs=tuple(("actual_output", f"{place}/actual_{index}.npy") for index in range(count)),
        notes=("a note",),
    )


def served(step: Step, servers: RunServers, supervisor: Supervisor) -> Result:
    # Expected to fail, so that the tool is not asked about a failure.
    step = replace(step, expect_failure="or not", expect_kinds=Stage.THRESHOLD.row.failures)
    result = check_served_threshold(step, servers, Processes(supervisor, Path(step.folder).parents[1]))
    assert result is not None, "left to the tool"
    return result


@dataclass(frozen=True)
class Asked:
    """What a server, and the tool itself, say of functions that give back their arguments."""

    module: str
    folder: Path
    servers: RunServers
    supervisor: Supervisor

    def step(self, *flags: str) -> Step:
        return threshold_step(self.folder, self.module, [*flags], self.folder)

    def served(self, step: Step) -> Result:
        return served(step, self.servers, self.supervisor)

    def by_tool(self, step: Step) -> Result:
        return check_threshold(step, Processes(self.supervisor, self.folder))


@pytest.fixture
def asked(identities: str, tmp_path: Path, servers: RunServers, supervisor: Supervisor) -> Asked:
    return Asked(identities, tmp_path, servers, supervisor)


def workers(servers: RunServers) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in servers.pids]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def fault(module: str, function: str, *inputs: str, timeout: float = LIMIT_SECONDS, cwd: str = "") -> RunJob:
    return RunJob(module, "local-sync", timeout, cwd, function=function, inputs=inputs)


def in_background(servers: RunServers, job: RunJob) -> tuple[threading.Thread, list[RunResponse]]:
    """Starts an endless job on a thread, and waits until the worker, which had nothing to do, is at work on it."""
    answers: list[RunResponse] = []
    before = cpu_seconds(workers(servers))
    thread = threading.Thread(target=lambda: answers.append(servers.run(job)))
    thread.start()
    wait_until(lambda: cpu_seconds(workers(servers)) >= before + 0.05)
    return thread, answers


@pytest.mark.iree
@pytest.mark.corpus
@pytest.mark.parametrize(
    ("names", "passed", "failed"),
    [(CASES, 2, 2), pytest.param(MORE_CASES, 6, 1, marks=pytest.mark.stress)],
    ids=["few", "more"],
)
def test_verdicts_are_the_tools_own(
    names: tuple[str, ...], passed: int, failed: int, tmp_path: Path, supervisor: Supervisor
) -> None:
    if not CORPUS.is_dir():
        pytest.skip("the corpus is not here")
    steps = []
    for name in names:
        module = tmp_path / f"{name}.vmfb"
        compile_program(CORPUS / name / "model.mlir", module)
        lines = (CORPUS / name / "run_module_io_flags.txt").read_text().split("\n")
        steps.append(threshold_step(tmp_path, str(module), [line for line in lines if line], CORPUS / name, name))
    processes = Processes(supervisor, tmp_path)
    wanted = {step.id: check_threshold(step, processes) for step in steps}
    assert sum(result.verdict is Verdict.FAILED for result in wanted.values()) >= failed
    assert sum(result.verdict is Verdict.PASSED for result in wanted.values()) >= passed
    for count in (1, 2):
        with RunServers(sys.executable, count) as servers, ThreadPoolExecutor(count) as pool:
            servers.start()
            for _ in range(2):
                results = list(pool.map(lambda step: served(step, servers, supervisor), steps))
                for step, result in zip(steps, results, strict=True):
                    native_result = wanted[step.id]
                    assert (result.verdict, result.reason) == (native_result.verdict, native_result.reason), step.id
                    assert result.failure is native_result.failure, step.id
                    assert result.command == native_result.command
                    assert not result.outputs or result.outputs == native_result.outputs


@pytest.mark.iree
def test_a_damaged_file_is_an_error_of_the_file(asked: Asked, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(4, np.float32))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "b.npy").write_bytes(whole[:-4])
    step = asked.step("--function=f32", "--input=@a.npy", "--expected_output=@b.npy")
    processes = Processes(asked.supervisor, tmp_path)
    assert check_served_threshold(step, asked.servers, processes) is None, "left to the tool"
    result = asked.by_tool(step)
    assert result.verdict is Verdict.ERROR
    assert f"{tmp_path / 'b.npy'}: 4xf32 needs 16 bytes, the file has 12" in result.reason


@pytest.mark.iree
def test_a_run_that_fails_for_itself_is_no_error_of_its_files(asked: Asked, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(4, np.float32))
    (tmp_path / "a.bin").write_bytes(bytes(32))
    for text in ("@a.npy", "4xcomplex<f32>=@a.bin"):
        step = asked.step("--function=f32", f"--input={text}", f"--input={text}", f"--expected_output={text}")
        result = asked.by_tool(step)
        assert (result.verdict, result.failure) == (Verdict.FAILED, FailureKind.DOES_NOT_RUN), result.reason


@pytest.mark.iree
@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_handled_as_the_tool_does(name: str, asked: Asked, tmp_path: Path) -> None:
    rng = np.random.default_rng(20261122)
    data = rng.integers(0, 2 if name == "i1" else 60, 64, np.uint8).tobytes()
    other = bytes([data[0] ^ 1, *data[1:]])
    (tmp_path / "a.bin").write_bytes(data)
    (tmp_path / "b.bin").write_bytes(other)
    packed = name == "i4"
    count = 128 if packed else 64 // get_storage_dtype(name).itemsize
    verdicts = set()
    for expected in ("a", "b"):
        flags = [f"--input={count}x{name}=@a.bin", f"--expected_output={count}x{name}=@{expected}.bin"]
        step = asked.step(f"--function={name}", *flags)
        failing = replace(step, expect_failure="or not", expect_kinds=Stage.THRESHOLD.row.failures)
        result = check_served_threshold(failing, asked.servers, Processes(asked.supervisor, tmp_path))
        wanted = asked.by_tool(step)
        if result is None:
            # The tool aborts here: it is the one to say so.
            assert (wanted.verdict, wanted.signal) == (Verdict.ERROR, "SIGABRT")
        else:
            assert (result.verdict, result.reason) == (wanted.verdict, wanted.reason)
        verdicts.add(wanted.verdict)
    assert packed or Verdict.PASSED in verdicts


@pytest.mark.iree
@pytest.mark.parametrize(
    "flags",
    [
        ["--function=f32", "--input=2xf32=1 2", "--expected_output=2xf32=1 2.00005"],
        ["--function=f32", "--input=2xf32=1 2", "--expected_output=2xf32=1 2.01"],
        ["--function=f32", "--input=2xf32=1 2", "--expected_output=2xf32=1 2.01", "--expected_f32_threshold=0.1"],
        ["--function=f32", "--input=2xf32=1 2", "--expected_output=2xf32=1 2.00001", "--equality_mode=exact"],
        ["--function=f32", "--input=2xf32=7", "--expected_output=2xf32=7 7"],
        ["--function=f32", "--input=2xf32", "--expected_output=2xf32=0"],
        ["--function=f32", "--input=0xf32", "--expected_output=0xf32"],
        ["--function=f32", "--input=2xf32=1 2", "--expected_output=3xf32=1 2 3"],
        ["--function=f32", "--input=2xf32=1 2", "--expected_output=2xi32=1 2"],
        ["--function=f32", "--input=2xf32=1 2", "--expected_output=(ignored)"],
        ["--function=f32", "--input=2xf32=1 2"],
        ["--function=i64", "--input=@i64.npy", "--expected_output=@i64.npy"],
        ["--function=i64", "--input=2xi64=1 -2", "--expected_output=@i64.npy"],
        ["--function=i1", "--input=@i1.npy", "--expected_output=@i1.npy"],
        ["--function=f16", "--input=2xf16=0.1", "--expected_output=2xf16=0.1"],
        ["--function=bf16", "--input=2xbf16=0.5 3", "--expected_output=2xbf16=0.5 3"],
        ["--function=f32", "--input=1x400000xf32=@large.bin", "--expected_output=1x400000xf32=@large.bin"],
    ],
    ids=" ".join,
)
def test_arguments_and_tolerances_are_taken_as_the_tool_takes_them(
    flags: list[str], asked: Asked, tmp_path: Path
) -> None:
    np.save(tmp_path / "i64.npy", np.array([1, -2]))
    np.save(tmp_path / "i1.npy", np.array([True, False]))
    (tmp_path / "large.bin").write_bytes(np.arange(400000, dtype=np.float32).tobytes())
    step = asked.step(*flags)
    wanted, result = asked.by_tool(step), asked.served(step)
    assert (result.verdict, result.reason) == (wanted.verdict, wanted.reason)


@pytest.mark.iree
@pytest.mark.parametrize("rule", [None, Allclose(1e-3, 0.0, equal_nan=False)])
def test_what_an_earlier_attempt_left_is_not_judged(asked: Asked, rule: Allclose | None) -> None:
    flags = ["--function=f32", "--input=2xf32=1 2", "--expected_output=2xf32=1 2"]
    step = replace(asked.step(*flags), allclose=rule)
    assert asked.by_tool(step).verdict is Verdict.PASSED
    idle = asked.by_tool(replace(asked.step(*flags, "--list_devices"), allclose=rule))
    assert idle.verdict is Verdict.ERROR
    missed = "compared" if rule is None else "kept"
    assert idle.reason == f"iree-run-module {missed} no output and ended with exit code 0: see the flags of cpu.json"
    assert "local-sync://" in idle.tail


@pytest.mark.iree
def test_a_status_reads_as_the_tools(asked: Asked, tmp_path: Path) -> None:
    for wrong in (
        ["--function=f32", "--expected_output=f32=1"],
        ["--function=f32", "--input=f32=1", "--input=f32=2", "--expected_output=f32=1"],
    ):
        step = asked.step(*wrong)
        wanted, result = asked.by_tool(step), asked.served(step)
        assert result.verdict is wanted.verdict is Verdict.FAILED
        assert "--input" in " ".join(wrong) or result.reason == wanted.reason
        assert result.exit_code == wanted.exit_code == 1
        assert result.log == "steps/case/stderr.txt"
        assert (tmp_path / result.log).read_text().startswith("INVALID_ARGUMENT; ")


@pytest.mark.iree
def test_a_device_that_is_not_there_is_left_to_the_tool(identities: str, servers: RunServers) -> None:
    job = replace(fault(identities, "f32", "2xf32=1"), device="no-such-driver", expected=("2xf32=1",))
    for _ in range(2):
        answer = servers.run(job)
        assert (answer.verdict, "no-such-driver" in answer.message) == (RunVerdict.UNSUPPORTED, True)
    assert servers.run(replace(job, device="local-task")).verdict == RunVerdict.PASSED


@pytest.mark.iree
def test_a_pass_leaves_no_files(asked: Asked, tmp_path: Path) -> None:
    result = asked.served(asked.step("--function=f32", "--input=2xf32=1 2", "--expected_output=2xf32=1 2"))
    assert result.verdict is Verdict.PASSED
    assert result.command.startswith(f"cd {shlex.quote(str(tmp_path))} && ")
    assert result.notes == ("a note",)
    assert result.peak_rss_bytes > 1 << 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.iree
def test_the_tool_decides_on_a_failure_that_nobody_expects(asked: Asked, tmp_path: Path) -> None:
    class Confused(RunServers):
        def run(self, job: RunJob) -> RunResponse:  # noqa: ARG002
            return RunResponse(Outcome(1), RunVerdict.MISMATCH, outputs=(RunOutput(0, "", False, 0, ""),))

    flags = ("--function=f32", "--input=2xf32=1 2")
    with Confused(sys.executable, 1) as confused:
        processes = Processes(asked.supervisor, tmp_path)
        result = check_served_threshold(asked.step(*flags, "--expected_output=2xf32=1 2"), confused, processes)
        assert result is not None
        assert result.verdict is Verdict.PASSED
        assert "uninitialised memory" in result.notes[-1]
        bad = asked.step(*flags, "--expected_output=2xf32=1 3")
        result = check_served_threshold(bad, confused, processes)
        assert result is not None
        assert result == replace(
            asked.by_tool(bad),
            cpu_seconds=result.cpu_seconds,
            tool_seconds=result.tool_seconds,
            peak_rss_bytes=result.peak_rss_bytes,
        )


@pytest.mark.parametrize(
    "flags",
    [
        ["--parameters=model=a.irpa"],
        ["--module=other.vmfb"],
        ["--function=f", "--function=g"],
        ["--expected_f32_threshold=some"],
        ["--print_statistics"],
        ["--output=@a.npy"],
        ["--input"],
    ],
    ids=" ".join,
)
def test_what_a_server_cannot_do_is_left_to_the_tool(flags: list[str], tmp_path: Path) -> None:
    assert make_run_job(threshold_step(tmp_path, "m.vmfb", flags, tmp_path)) is None
    step = threshold_step(tmp_path, "m.vmfb", [], tmp_path)
    assert make_run_job(step) is not None
    assert step.command is not None
    assert make_run_job(replace(step, command=replace(step.command, env=(("A", "b"),)))) is None
    assert make_run_job(replace(step, command=None)) is None


@pytest.mark.iree
def test_numpy_allclose_decides_where_it_is_asked_for(asked: Asked, tmp_path: Path) -> None:
    def result(function: str, given: str, wanted: Any, rule: Allclose) -> Result:
        np.save(tmp_path / "wanted.npy", wanted)
        step = asked.step(f"--function={function}", f"--input={given}", "--expected_output=@wanted.npy")
        step = replace(step, allclose=rule)
        answer, tool = asked.served(step), asked.by_tool(step)
        assert (answer.verdict, answer.reason, answer.command) == (tool.verdict, tool.reason, tool.command)
        return answer

    strict, loose = Allclose(1e-5, 1e-8, equal_nan=False), Allclose(0.1, 0.0, equal_nan=True)
    single = np.float32
    assert result("f32", "2xf32=1 2", np.array([1, 2], single), strict).verdict is Verdict.PASSED
    assert result("f32", "2xf32=1 2", np.array([1, 2.1], single), loose).verdict is Verdict.PASSED
    assert result("i64", "2xi64=1 200000", np.array([1, 200001]), strict).verdict is Verdict.PASSED
    failed = result("f32", "2xf32=1 2", np.array([1, 2.1], single), strict)
    assert failed.verdict is Verdict.FAILED
    assert failed.reason.startswith("output 0: 1 of 2 values (50 %) differ by more than 1e-08 + 1e-05·|expected|")
    assert failed.outputs[0].mismatches == 1
    assert result("f32", "2xf32=1 2", np.array([1], single), strict).verdict is Verdict.FAILED
    np.save(tmp_path / "nan.npy", np.array([np.nan], single))
    nan = np.array([np.nan], single)
    assert result("f32", "@nan.npy", nan, loose).verdict is Verdict.PASSED
    assert result("f32", "@nan.npy", nan, strict).verdict is Verdict.FAILED


@pytest.mark.iree
def test_a_crash_hurts_one_case(faults: str, tmp_path: Path) -> None:
    good = fault(faults, "gather", "4xf32=1 2 3 4", "2xi64=0 3")
    bad = fault(faults, "gather", "4xf32=1 2 3 4", f"2xi64=0 {1 << 45}")
    with RunServers(sys.executable, 1) as servers:
        assert servers.run(good).verdict == RunVerdict.PASSED
        for _ in range(2):
            answer = servers.run(bad)
            assert (answer.verdict, answer.outcome.signal, answer.outcome.exit_code) == ("died", "SIGSEGV", None)
            assert not answer.outcome.timed_out
            assert answer.outcome.notes == ()
        assert servers.run(good).verdict == RunVerdict.PASSED
        with Supervisor() as supervisor:
            flags = ["--function=gather", "--input=4xf32=1", f"--input=2xi64={1 << 45}", "--expected_output=2xf32=1"]
            result = served(threshold_step(tmp_path, faults, flags, tmp_path), servers, supervisor)
            assert (result.verdict, result.reason) == (Verdict.ERROR, "iree-run-module crashed with SIGSEGV")
            assert result.crashed


@pytest.mark.iree
def test_a_case_is_not_blamed_for_what_another_one_broke(faults: str, tmp_path: Path) -> None:
    rounds = tmp_path / "rounds.bin"
    rounds.write_bytes(ENDLESS.to_bytes(8, "little"))
    with RunServers(sys.executable, 1) as servers:
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED
        thread, answers = in_background(servers, fault(faults, "wait", "i64=@rounds.bin", cwd=str(tmp_path)))
        # In the process that is new, it finishes.
        rounds.write_bytes((1).to_bytes(8, "little"))
        workers(servers)[0].send_signal(signal.SIGABRT)
        thread.join()
        assert answers[0].verdict == RunVerdict.PASSED
        assert "SIGABRT after running other cases" in answers[0].outcome.notes[0]


@pytest.mark.iree
def test_a_killed_worker_is_told_from_a_crash(faults: str) -> None:
    with RunServers(sys.executable, 1) as servers:
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED
        thread, answers = in_background(servers, fault(faults, "wait", f"i64={ENDLESS}"))
        workers(servers)[0].kill()
        thread.join()
        assert (answers[0].verdict, answers[0].outcome.signal) == ("died", "SIGKILL")
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED
        # One that is killed while it has nothing to do costs no case.
        idle = workers(servers)[0]
        idle.kill()
        wait_until(lambda: not idle.is_running() or idle.status() == psutil.STATUS_ZOMBIE)
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED


@pytest.mark.iree
def test_a_case_that_never_ends_is_ended(faults: str) -> None:
    with RunServers(sys.executable, 1) as servers:
        servers.start()
        answer = servers.run(fault(faults, "wait", f"i64={ENDLESS}", timeout=0.1))
        assert answer.outcome.timed_out
        assert (answer.verdict, answer.outcome.signal) == ("died", "SIGKILL")
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED


@pytest.mark.iree
def test_memory_has_a_limit(faults: str) -> None:
    with RunServers(sys.executable, 1, memory_bytes=2 << 30) as servers:
        assert servers.run(fault(faults, "fill", "i64=1000")).verdict == RunVerdict.PASSED
        answer = servers.run(fault(faults, "fill", "i64=8000000000"))
        assert answer.verdict == RunVerdict.ERROR
        assert answer.message.startswith("RESOURCE_EXHAUSTED; ")
        assert answer.outcome.notes == ("its memory is limited to 2.1 GB",)
        assert answer.outcome.peak_rss_bytes < 1 << 30
        assert servers.run(fault(faults, "fill", "i64=1000")).verdict == RunVerdict.PASSED


@pytest.mark.iree
@pytest.mark.vulkan
@pytest.mark.usefixtures("vulkan")
def test_a_gpus_driver_may_take_addresses_and_its_errors_are_those_of_a_new_process(faults: str) -> None:
    with RunServers(sys.executable, 1, memory_bytes=2 << 30) as servers:
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED
        (first,) = workers(servers)
        assert first.rlimit(psutil.RLIMIT_AS)[0] != psutil.RLIM_INFINITY
        # What is compiled for the CPU does not run there: an error of the device.
        on_gpu = replace(fault(faults, "gather", "4xf32=1 2 3 4", "2xi64=0 3"), device="vulkan")
        assert servers.run(on_gpu).verdict == RunVerdict.ERROR
        (second,) = workers(servers)
        assert second.pid != first.pid
        assert second.rlimit(psutil.RLIMIT_AS)[0] == second.rlimit(psutil.RLIMIT_AS)[1]


@pytest.mark.iree
def test_a_large_case_is_not_charged_to_the_next(faults: str) -> None:
    with RunServers(sys.executable, 1) as servers:
        large = servers.run(fault(faults, "fill", "i64=50000000")).outcome.peak_rss_bytes
        small = servers.run(fault(faults, "fill", "i64=1000")).outcome.peak_rss_bytes
        assert large > 200_000_000
        assert small < 150_000_000


@pytest.mark.iree
def test_the_process_that_has_a_device_open_runs_the_next_case(identities: str) -> None:
    job = fault(identities, "f32", "2xf32=1 2")
    with RunServers(sys.executable, 3) as servers:
        servers.start()
        for _ in range(4):
            servers.run(job)
        assert [worker.cases for worker in servers._workers] == [4]


@pytest.mark.iree
def test_a_case_that_would_wait_long_gets_a_process_of_its_own(faults: str) -> None:
    with RunServers(sys.executable, 2) as servers, ThreadPoolExecutor(1) as pool:
        servers.start()
        first_pids = servers.pids
        endless = pool.submit(servers.run, fault(faults, "wait", f"i64={ENDLESS}"))
        wait_until(servers._slots.empty)
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED
        assert (len(first_pids), len(servers.pids)) == (1, 2)
        servers.cancel()
        assert endless.result().verdict != RunVerdict.PASSED


@pytest.mark.iree
def test_many_cases_leave_nothing_behind(identities: str) -> None:
    job = replace(fault(identities, "f32", "2xf32=1 2"), expected=("2xf32=1 2",))
    with RunServers(sys.executable, 1) as servers:
        for _ in range(50):
            servers.run(job)
        worker = workers(servers)[0]
        files, maps, memory = worker.num_fds(), len(worker.memory_maps(grouped=False)), worker.memory_info().rss
        for _ in range(500):
            servers.run(job)
        assert worker.num_fds() == files
        assert len(worker.memory_maps(grouped=False)) <= maps + 5
        assert worker.memory_info().rss < memory + (4 << 20)


@pytest.mark.iree
def test_cancelling_ends_everything_at_once(faults: str) -> None:
    with RunServers(sys.executable, 1) as servers:
        assert servers.run(fault(faults, "wait", "i64=1")).verdict == RunVerdict.PASSED
        thread, answers = in_background(servers, fault(faults, "wait", f"i64={ENDLESS}"))
        more: list[RunResponse] = []
        waiting = threading.Thread(target=lambda: more.append(servers.run(fault(faults, "wait", "i64=1"))))
        waiting.start()
        servers.cancel()
        thread.join()
        waiting.join()
        assert [answer.outcome.cancelled for answer in (*answers, *more)] == [True, True]
        assert not answers[0].outcome.timed_out
        assert servers.pids == ()


@pytest.mark.iree
def test_workers_end_with_the_toolkit_whatever_they_do(faults: str, tmp_path: Path) -> None:
    program = f"""
import sys
from iree_gauntlet.engine.processes.run_client import RunJob, RunServers
busy, idle = RunServers(sys.executable, 1), RunServers(sys.executable, 1)
for servers in (busy, idle):
    job = RunJob({faults!r}, "local-sync", 600.0, function="wait", inputs=("i64=1",))
    print(servers.run(job).verdict, flush=True)
busy.run(RunJob({faults!r}, "local-sync", 600.0, function="wait", inputs=("i64={ENDLESS}",)))
"""
    toolkit = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    with toolkit:
        assert toolkit.stdout is not None
        assert [toolkit.stdout.readline() for _ in range(2)] == ["passed\n"] * 2
        children = psutil.Process(toolkit.pid).children()
        assert len(children) == 2
        # The endless case is all that there is to do.
        before = cpu_seconds(children)
        wait_until(lambda: cpu_seconds(children) >= before + 0.05)
        toolkit.kill()
        toolkit.wait()
    gone, alive = psutil.wait_procs(children, timeout=LIMIT_SECONDS)
    assert not alive
    assert len(gone) == 2


def test_a_python_without_a_runtime_is_named(tmp_path: Path) -> None:
    package = tmp_path / "iree"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('no iree here')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with (
        RunServers(sys.executable, 1, environment) as servers,
        pytest.raises(ToolchainError, match=r"cannot run modules: .*no iree here"),
    ):
        servers.run(RunJob("m.vmfb", "local-sync", LIMIT_SECONDS))
    with RunServers(str(tmp_path / "python"), 1) as servers, pytest.raises(ToolchainError, match="No such file"):
        servers.start()


class _OldMemory:
    """Mapped memory of the bindings of 3.9: it is no buffer of Python."""

    def asarray(self, shape: tuple[int], dtype: np.dtype[Any]) -> Any:
        return np.arange(8, dtype=dtype)[: shape[0]]


@pytest.mark.parametrize("memory", [_OldMemory(), bytes(range(8))])
def test_the_memory_of_old_and_new_bindings_is_read(memory: Any) -> None:
    assert bytes(_read_mapped(memory, 3)) == bytes(range(3))
