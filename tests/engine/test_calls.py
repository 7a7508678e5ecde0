"""Several calls on one instance of a module: state, earlier outputs, and the call at fault."""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.engine.judging import judge_process, name_culprit
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.supervisor import Outcome, Supervisor
from iree_gauntlet.engine.threshold import check_threshold
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import Command
from iree_gauntlet.workers.iree_side import run_calls
from iree_gauntlet.workers.iree_side.run_calls import _make_passes as make_passes
from tests.support.command_line import LIMIT_SECONDS
from tests.support.native_tools import compile_native, find_native_tool
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step

pytestmark = pytest.mark.iree

FLAGS = (
    *("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"),
    *("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O0", "--mlir-disable-threading"),
)
COUNT = ("--call=add --input=f32=1 --expected_output=f32=1", "--call=add --input_from=0.0 --expected_output=f32=2")
INIT = "--call=init --input=i32=0"
KEYS = (
    "--call=step --input=1x2xf32=3 --expected_output=4x2xf32=3,3,0,0,0,0,0,0 --expected_output=i32=1",
    "--call=step --input=1x2xf32=5 --expected_output=4x2xf32=3,3,5,5,0,0,0,0 --expected_output=i32=2",
)
IN_PLACE = "--call=in_place --input_from=0.0 --expected_output=4x2xf32=1"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("calls") / "module.vmfb"
    source = Path(__file__).with_name("calls.mlir")
    compile_native([find_native_tool("iree-compile"), str(source), *FLAGS, f"-o={path}"])
    return str(path)


def make_argv(module: str, calls: tuple[str, ...]) -> list[str]:
    return ["--device=local-sync", f"--module={module}", *(word for call in calls for word in call.split(" "))]


@pytest.mark.parametrize(
    ("calls", "code", "words"),
    [
        ((*COUNT, "--call=add --input=f32=0 --expected_output=f32=2"), 0, "[SUCCESS] 3 calls, 3 outputs compared"),
        ((INIT, *KEYS), 0, "[SUCCESS] 3 calls, 4 outputs compared"),
        ((*COUNT, "--call=add --input=f32=0 --expected_output=f32=2.1"), 1, "[FAILED] call 2 (add), output 0: "),
        (
            (*COUNT[:1], "--call=add --input=f32=1 --expected_output=f32=2 --expected_output=f32=2"),
            1,
            "returns 1 outputs",
        ),
        ((INIT, IN_PLACE), 1, "[FAILED] call 1 (in_place) changed output 0 of call 0"),
        ((INIT, f"{IN_PLACE} --changes=0.0"), 0, "[SUCCESS]"),
        (
            (
                "--call=in_place --input=4x2xf32=0 --expected_output=4x2xf32=1",
                "--call=in_place --input_from=0.input0 --expected_output=4x2xf32=2.718282 --changes=0.0",
            ),
            *(0, "[SUCCESS] 2 calls, 2 outputs compared"),
        ),
        ((INIT, "--call=add --input=f32=1", f"{IN_PLACE} --changes=1.0"), 1, "changed output 0 of call 0"),
        ((INIT,), 0, "nothing was compared"),
        ((INIT, "--call=stop"), 1, "no function `stop` exported by module"),
        ((INIT, "--call="), 1, "more than one exported function present"),
        ((INIT, "--call=step --input=1x3xf32=1"), 1, "INVALID_ARGUMENT; input0 shape dimension 1 mismatch"),
        ((INIT, "--call=step --input_from=0.3"), 2, "no earlier call has the input or output 0.3"),
        ((INIT, f"{IN_PLACE} --changes=0.3"), 2, "--changes=0.3: no earlier call has the output 0.3"),
        ((INIT, f"{IN_PLACE} --changes=1.0"), 2, "no earlier call has the output 1.0"),
        ((INIT, "--call=step --input_from=zero"), 2, "--input_from=zero: expected the numbers of a call"),
        ((INIT, "--call=step --input=3"), 2, "argument '3'"),
        ((INIT, "--call=step --input=1x2xf32=nan"), 2, "values 'nan' of f32: expected decimal numbers"),
        ((INIT, "--call=step --expected_rtol=1"), 2, "is not a flag of a call"),
        (("--task_topology_group_count=1", *COUNT), 0, "[SUCCESS]"),
        (("--nonsense", *COUNT), 1, "flag 'nonsense' not recognized"),
        ((), 2, "--call are required"),
    ],
)
def test_calls_share_the_state_of_one_instance(
    calls: tuple[str, ...], code: int, words: str, module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_calls.main(["run_calls.py", *make_argv(module, calls)]) == code
    assert words in "".join(capfd.readouterr())


def test_tolerances_are_those_of_the_tool(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    near = "--call=add --input=f32=1 --expected_output=f32=1.05"
    for flags, code in (("--expected_f32_threshold=0.1f", 0), ("--expected_rtol=0.1", 0), ("--equality_mode=exact", 1)):
        assert run_calls.main(["run_calls.py", *make_argv(module, (flags, near))]) == code, flags
    assert "output 0: not as expected" in capfd.readouterr().out


BENCHMARK = ("--benchmark_format=json", "--benchmark_repetitions=2", "--benchmark_min_time=3x")


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        # Without `init`, the third pass would write beyond the keys.
        ((*BENCHMARK, INIT, "--call=step --input=1x2xf32=3", "--call=step --input=1x2xf32=5"), "step"),
        ((INIT, *("--call=step --timed --input=1x2xf32=3",) * 2, *BENCHMARK), "step+step"),
        ((*BENCHMARK, INIT, "--call=in_place --input_from=0.0", "--task_topology_group_count=1"), "in_place"),
    ],
)
def test_repeated_calls_are_measured(
    calls: tuple[str, ...], name: str, module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_calls.main(["run_calls.py", *make_argv(module, calls)]) == 0
    out = capfd.readouterr().out
    (samples,) = parse_benchmark_rows(out)
    assert (samples.name, samples.iterations) == (f"BM_{name}/process_time/real_time", (3, 3))
    assert min(samples.real_time_ms) > 0
    assert out.count("EXEC @") == sum(call.startswith("--call=") for call in calls)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_pass_ends_when_the_timed_calls_took_long_enough(
    passes: int, module: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Each look at the clock is a second later; a pass of two calls of which one counts takes one of four seconds.
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    words = ("--benchmark_format=json", f"--benchmark_min_time={passes}s", "--benchmark_min_warmup_time=0")
    assert run_calls.main(["run_calls.py", *make_argv(module, (*words, INIT, COUNT[0]))]) == 0
    (samples,) = parse_benchmark_rows(capfd.readouterr().out)
    assert (samples.iterations, samples.real_time_ms) == ((passes,), (1000.0,))


def test_passes_end_although_the_timed_calls_are_short_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each pass takes a second, of which nothing counts.
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    assert make_passes(lambda: (0.0, 0.0), 1.0, 0) == (10, 0.0, 0.0)
    assert make_passes(lambda: (0.0, 0.0), 0.0, 20) == (20, 0.0, 0.0)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--benchmark_counters_tabular=true", "the program that makes several calls has no such flag"),
        ("--benchmark_min_time=5ms", "expected a minimum time such as 0.1s or 100x"),
        ("--benchmark_min_warmup_time=5ms", "a warm-up such as 0.1"),
        ("--benchmark_repetitions=2.5", "repetitions such as 5; found --benchmark_repetitions=2.5"),
    ],
)
def test_flags_that_a_benchmark_of_calls_does_not_have(
    flag: str, words: str, module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_calls.main(["run_calls.py", *make_argv(module, (flag, INIT))]) == 2
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(("exit_code", "verdict"), [(2, Verdict.ERROR), (1, Verdict.FAILED)])
def test_a_mistake_in_a_benchmark_of_calls_is_an_error(exit_code: int, verdict: Verdict, tmp_path: Path) -> None:
    command = Command(("python", "run_calls.py", "--call=init", "--call=step"), str(tmp_path))
    step = make_step(Stage.BENCHMARK, folder=str(tmp_path), origin=Origin("s.json"), command=command)
    line = "--benchmark_filter=x: the program that makes several calls has no such flag"
    result = judge_process(step, Outcome(exit_code), [line], tool="the program")
    assert (result.verdict, result.is_mistake) == (verdict, exit_code == 2)
    assert result.reason == f"the program failed with exit code {exit_code}: {line}"


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("", "the program that makes the calls"),
        ("EXEC @init (call 0)\nEXEC @step (call 1)\n", "call 1 (step)"),
        ("EXEC @init (call 0)\nall calls were made once\n", "a repetition of the calls"),
    ],
)
def test_the_call_that_failed_in_a_benchmark_is_named(output: str, name: str) -> None:
    command = Command(("python", "run_calls.py", "--call=init", "--call=step"), "/")
    assert name_culprit(command, output, "iree-benchmark-module") == name
    assert name_culprit(replace(command, argv=("x",)), output, "iree-benchmark-module") == "iree-benchmark-module"


@pytest.fixture
def check(module: str, tmp_path: Path) -> Callable[..., Result]:
    """Check a threshold step of some calls; the worker runs in a process of its own."""

    def check_calls(*calls: str) -> Result:
        folder = tmp_path / "steps" / "s" / "threshold"
        words = [sys.executable, run_calls.__file__, f"--outputs={folder}", *make_argv(module, calls)]
        step = make_step(
            Stage.THRESHOLD, folder=str(folder), origin=Origin("s.json"), command=Command(tuple(words), str(folder))
        )
        with Supervisor() as supervisor:
            return check_threshold(step, Processes(supervisor, tmp_path))

    return check_calls


def test_the_call_with_a_wrong_output_is_named(check: Callable[..., Result]) -> None:
    result = check(INIT, KEYS[0], KEYS[1].replace("5,5", "5,4"), COUNT[0])
    assert result.verdict is Verdict.FAILED
    assert result.failure is FailureKind.WRONG_NUMBERS
    assert result.reason.startswith("call 2 (step), output 0: 1 of 8 values (12.5 %) differ")
    places = [(output.call, output.function, output.index, output.passed) for output in result.outputs]
    first = [(1, "step", 0, True), (1, "step", 1, True)]
    assert places == [*first, (2, "step", 0, False), (2, "step", 1, True), (3, "add", 0, True)]
    assert result.max_abs_error == 1
    assert result.outputs[2].summary == "call 2 (step), output 0: 1 of 8 differ (12.5 %), ×7,143 of limit"


def test_a_changed_output_does_not_pass(check: Callable[..., Result]) -> None:
    result = check(f"{INIT} --expected_output=4x2xf32=0", IN_PLACE)
    assert (result.verdict, result.failure) == (Verdict.FAILED, FailureKind.WRONG_NUMBERS)
    assert result.reason == "call 0 (init), output 0: changed in place by call 1 (in_place)"
    assert [output.passed for output in result.outputs] == [False, True]


def test_the_call_that_crashes_is_named_and_earlier_calls_are_compared(check: Callable[..., Result]) -> None:
    result = check(COUNT[0], "--call=init --input=i32=1000000000", "--call=step --input=1x2xf32=1", INIT)
    assert (result.verdict, result.signal) == (Verdict.ERROR, "SIGSEGV")
    assert result.crashed
    assert result.reason == "call 2 (step) crashed with SIGSEGV"
    assert [(output.call, output.passed) for output in result.outputs] == [(0, True)]


class EndedProcesses(Processes):
    """The process of a step is ended at its time limit in the second call, whatever the machine does meanwhile."""

    def run(self, step: Step, command: Command | None = None, name: str = "") -> Outcome:
        outcome = super().run(step, command, name)
        with (Path(step.folder) / "stdout.txt").open("a") as stream:
            stream.write("EXEC @wait (call 1)\n")
        return replace(outcome, exit_code=None, signal="SIGKILL", timed_out=True)


def test_a_call_that_does_not_end_is_named(check: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.Processes", EndedProcesses)
    result = check(COUNT[0].replace("output=f32=1", "output=f32=2"))
    assert (result.verdict, result.timed_out) == (Verdict.ERROR, True)
    assert result.reason == f"call 1 (wait) ran longer than its {LIMIT_SECONDS:g} s and was ended with its children"
    assert result.notes[-1].startswith("before that: call 0 (add), output 0: 1 of 1 values")


@pytest.mark.parametrize(
    ("call", "verdict", "reason"),
    [
        ("--call=stop", Verdict.ERROR, "the program that makes the calls finds no function 'stop' in the module"),
        ("--call=step --input=1x2xf32=0x1", Verdict.ERROR, "call 1 (step) failed with exit code 2: values '0x1'"),
    ],
)
def test_a_call_that_cannot_be_made(call: str, verdict: Verdict, reason: str, check: Callable[..., Result]) -> None:
    result = check(INIT, call)
    assert result.verdict is verdict
    assert result.reason.startswith(reason)
