"""Rounds: a round is one measured process start of a program that is compared with others.

A round of a benchmark is one start of `iree-benchmark-module` with its own warm-up; a round of a compile is one start
of `iree-compile`. During each round the machine's activity is observed, and recorded next to the round's times.

`confirm_time` confirms a breach (a golden time that is exceeded): further rounds of the spec's own command decide,
within a time budget. A few looks at the times share one false-alarm rate (`measuring/goldens/goldens.py`). The run that
broke the golden is left out, because it was selected for being slow.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.device_kinds import LOCAL_SYNC, LOCAL_TASK
from iree_gauntlet.engine.judging import find_first_error, judge_process, name_culprit
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.figures import Statistic
from iree_gauntlet.measuring.goldens.goldens import Confirmation, RoundCost, confirm_breach, find_least_time
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows
from iree_gauntlet.measuring.statistics.rounds import Round, SequentialPlan, plan_looks
from iree_gauntlet.results import Check, shorten
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.steps import Command, Step


_TIMING_FLAGS = (
    "--benchmark_repetitions",
    "--benchmark_min_time",
    "--benchmark_min_warmup_time",
    "--benchmark_report_aggregates_only",
    "--benchmark_display_aggregates_only",
    "--benchmark_enable_random_interleaving",
    "--benchmark_time_unit",
)
# These flags set the number of workers of a program, and their CPUs.
TOPOLOGY_PREFIX = "--task_topology_"
_MS_PER_SECOND = 1000.0
# Confirming a breach uses this false-alarm rate, and at most so many rounds.
_ALPHA = 0.01
_MAX_ROUNDS = 26
# The rounds that are replaced because of disturbances may exceed the rounds that count by this number.
_SPARE_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The settings of a round, which are the same for both sides.

    Attributes:
        repetitions: the number of repetitions of a benchmark within one process.
        min_time: minimum seconds of a repetition.
        cpus: logical CPUs that rounds run on; empty for all.
        choose: if true, `cpus` is ignored, and `choose_cpus` in `blocks.py` finds the CPUs with the smallest spread.
    """

    repetitions: int = 5
    min_time: float = 0.05
    cpus: tuple[int, ...] = ()
    choose: bool = False


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of one process start.

    Attributes:
        times: milliseconds of each repetition; empty if the round failed.
        failure: the reason why there are no times; empty if there are times.
        state: the machine's activity during the round, as the journal records it.
        disturbed: a line for each disturbance that spoils the round; empty for a round that counts.
    """

    times: tuple[float, ...]
    failure: str
    seconds: float
    peak_rss_bytes: int
    state: dict[str, Any]
    disturbed: tuple[str, ...]

    @property
    def evidence(self) -> Round:
        """The round's times for statistics; raises EvidenceError if the round failed."""
        return Round(self.times)

    def as_dict(self) -> dict[str, Any]:
        """Return the round as the journal records it."""
        return {
            "times_ms": list(self.times),
            "failure": self.failure,
            "seconds": round(self.seconds, 4),
            "peak_rss_bytes": self.peak_rss_bytes,
            "disturbed": list(self.disturbed),
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class Measurement:
    """The command of a program's rounds, and the reader of their times.

    Attributes:
        step: determines the folder of the logs, and the time limit.
        read: returns times in ms, given the process's standard output and its wall time in seconds.
        device: the GPU that the program runs on; empty for a CPU.
        cpus: logical CPUs that the program is pinned to; empty if it is not pinned.
    """

    step: Step
    command: Command
    tool: str
    read: Callable[[str, float], tuple[float, ...]]
    device: str = ""
    cpus: tuple[int, ...] = ()


def parse_cpus(text: str, available: frozenset[int] | None) -> tuple[int, ...]:
    """Parse a list of CPUs such as `0,2-5`, the format of taskset and lscpu; return the CPUs in ascending order.

    Only `available` CPUs are allowed; None means that they are not known yet, and allows all.

    Raises:
        UsageError: the text is not such a list, or it names a CPU that is not available.
    """
    cpus: set[int] = set()
    for part in filter(None, (word.strip() for word in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(
                f"--cpus {text}: {part!r} is not a CPU or a range of CPUs", "Such as --cpus 2 or --cpus 0,4-7."
            )
        cpus |= set(range(int(first), int(last or first) + 1))
    missing = sorted(cpus - available) if available is not None else []
    if available is not None and missing:
        available_text = ", ".join(map(str, sorted(available)))
        raise UsageError(
            f"--cpus {text}: there is no CPU {missing[0]} on this machine, or it may not be used",
            f"Usable CPUs: {available_text}.",
        )
    return tuple(sorted(cpus))


def make_benchmark_rounds(step: Step, settings: RoundSettings) -> Measurement:
    """Return the rounds of a benchmark step, whose command gets the settings' times in place of the spec's.

    Raises:
        UsageError: CPUs are requested, but there is no taskset.
    """
    arguments = [argument for argument in step.required_command.argv if argument.split("=", 1)[0] not in _TIMING_FLAGS]
    argv = (
        *arguments,
        f"--benchmark_repetitions={settings.repetitions}",
        f"--benchmark_min_time={settings.min_time:g}s",
        f"--benchmark_min_warmup_time={settings.min_time:g}",
    )
    has_workers = step.resources.device == LOCAL_TASK.name
    if settings.cpus and has_workers and not any(argument.startswith(TOPOLOGY_PREFIX) for argument in argv):
        # Start as many workers as CPUs; taskset confines them to these CPUs. Do not use --task_topology_cpu_ids, which
        # pins each worker to one CPU. There it competes with the thread that waits for it, and times become multiples
        # of the scheduler's tick (4 ms).
        argv = (*argv, f"--task_topology_group_count={len(settings.cpus)}")
    command = _pin_to_cpus(replace(step.required_command, argv=argv), settings.cpus)
    return Measurement(step, command, BENCHMARK_MODULE, _read_benchmark_times, get_gpu(step), settings.cpus)


def get_gpu(step: Step) -> str:
    """Return the GPU that a step runs on; empty for a CPU, and for a software device, which computes on the CPU."""
    return "" if step.resources.software else step.resources.accelerator


def make_compile_rounds(step: Step, settings: RoundSettings) -> Measurement:
    """Return the rounds of a compile step, which never overwrite its outputs; errors as in `make_benchmark_rounds`."""
    argv = list(step.required_command.argv)
    for _, path in step.outputs:
        argv = [word.replace(path, f"{path}.round") for word in argv]
    command = _pin_to_cpus(replace(step.required_command, argv=tuple(argv)), settings.cpus)
    return Measurement(step, command, COMPILE, lambda _output, seconds: (seconds * _MS_PER_SECOND,), cpus=settings.cpus)


def _pin_to_cpus(command: Command, cpus: Sequence[int]) -> Command:
    """Return the command pinned to some CPUs by taskset; errors as in `make_benchmark_rounds`."""
    if not cpus:
        return command
    taskset = shutil.which("taskset")
    if taskset is None:
        raise UsageError("--cpus needs taskset, which is not on PATH", "It is part of util-linux (Linux only).")
    return replace(command, argv=(taskset, "-c", ",".join(map(str, cpus)), *command.argv))


def run_round(measurement: Measurement, processes: Processes, name: str) -> RoundResult:
    """Run the process and read its times; the next round with the same `name` overwrites this round's logs."""
    step = measurement.step
    watch = RoundWatch(gpu=bool(measurement.device), cpus=measurement.cpus, device=measurement.device)
    outcome = processes.run(step, measurement.command, name=name)
    state = outcome.board_state or watch.ended(own_cpu_seconds=outcome.cpu_seconds)
    times: tuple[float, ...] = ()
    failure = ""
    if outcome.exit_code != 0:
        lines = processes.error_lines(step, name)
        reason = find_first_error(lines) or None
        tool = name_culprit(measurement.command, processes.stdout(step, name), measurement.tool)
        failure = judge_process(step, outcome, lines, tool=tool, reason=reason).reason
    else:
        try:
            times = measurement.read(processes.stdout(step, name), outcome.seconds)
        except GauntletError as error:
            failure = shorten(error.message)
    return RoundResult(
        times, failure, outcome.seconds, outcome.peak_rss_bytes, state.as_dict(), state.list_disturbances()
    )


def _read_benchmark_times(output: str, _seconds: float) -> tuple[float, ...]:
    return parse_benchmark_rows(output)[0].real_time_ms


@dataclass(frozen=True, slots=True)
class ConfirmRules:
    """The rules that decide if a golden counts as broken.

    Attributes:
        plan: the looks at the data, and the false-alarm rate that all looks share.
        budget: seconds for the rounds of one benchmark.
        replace_disturbed: if true, a round that other work disturbed is repeated; if false, it is marked and counts.
    """

    plan: SequentialPlan
    budget: float
    replace_disturbed: bool


@dataclass(frozen=True, slots=True)
class ConfirmResult:
    """The result of the rounds that confirm a breach, or do not.

    Attributes:
        verdict: passed, failed or inconclusive; error if a round failed.
        check: the updated check of the golden.
        record: all measurements, as the journal records them.
        tool_seconds: wall time of the rounds' processes.
    """

    verdict: Verdict
    check: Check
    reason: str
    record: dict[str, Any]
    tool_seconds: float


def make_confirm_rules(verdict: str, budget: float, *, replace_disturbed: bool = True) -> ConfirmRules | None:
    """Return the rules of `--verdict confirm`; None for `strict`, which fails on the first breach."""
    if verdict == "strict":
        return None
    return ConfirmRules(plan_looks(_ALPHA, _MAX_ROUNDS), budget, replace_disturbed)


def confirm_time(
    step: Step, check: Check, processes: Processes, rules: ConfirmRules, cancel_event: threading.Event
) -> ConfirmResult:
    """Measure rounds of a benchmark, which has the machine alone, until they show whether it breaks its golden.

    `check` is the check of the first run, which broke the golden.
    """
    # Run the spec's own command, because the golden applies to exactly its settings.
    measurement = Measurement(step, step.required_command, BENCHMARK_MODULE, _read_benchmark_times, get_gpu(step))
    deadline = time.monotonic() + rules.budget
    rounds: list[Round] = []
    records: list[dict[str, Any]] = []
    costs: list[RoundCost] = []
    disturbance, mark_count, seconds, failure = "", 0, 0.0, ""
    verdict: Confirmation | None = None
    while not cancel_event.is_set():
        replaced_count = len(records) - len(rounds)
        if replaced_count > _SPARE_ROUNDS + len(rounds):
            failure = f"{replaced_count} of {len(records)} more rounds were disturbed; for example: {disturbance}"
            break
        if time.monotonic() >= deadline:
            break
        round_result = run_round(measurement, processes, "confirm.")
        seconds += round_result.seconds
        records.append(round_result.as_dict())
        if round_result.failure:
            failure = f"another round failed: {round_result.failure}"
            return ConfirmResult(Verdict.ERROR, check, shorten(failure), _record(records, None, failure), seconds)
        cost = parse_benchmark_rows(processes.stdout(step, "confirm."))[0].cpu_time_ms
        costs.append(RoundCost(cost, round_result.state.get("steal_share", 0.0)))
        records[-1]["cpu_times_ms"] = list(cost)
        disturbance = next(iter(round_result.disturbed), disturbance)
        if round_result.disturbed and rules.replace_disturbed:
            continue
        mark_count += bool(round_result.disturbed)
        rounds.append(round_result.evidence)
        verdict = confirm_breach(rounds, check.golden, check.factor, Statistic(check.statistic), rules.plan)
        if verdict.next_look is None:
            break
    if failure:
        reason, golden_holds = failure, None
    elif verdict is None:
        reason, golden_holds = f"no more rounds within {rules.budget:g} s", None
    else:
        golden_holds = verdict.passed
        timeout_text = "; the time is up" if golden_holds is None and verdict.next_look is not None else ""
        disturbed_text = f" ({mark_count} of them disturbed; for example: {disturbance})" if mark_count else ""
        reason = f"after {len(rounds)} more rounds{disturbed_text}, {verdict.reason}{timeout_text}"
    if golden_holds is None and (excess := _find_excess(costs, check, step)):
        golden_holds, reason = False, f"{reason}; {excess}"
    outcomes = {True: Verdict.PASSED, False: Verdict.FAILED, None: Verdict.INCONCLUSIVE}
    check = replace(check, passed=golden_holds, note=f"{check.note}; {reason}")
    return ConfirmResult(outcomes[golden_holds], check, shorten(reason), _record(records, verdict, reason), seconds)


def _find_excess(costs: Sequence[RoundCost], check: Check, step: Step) -> str:
    """Return a text if the CPU time of rounds here, on a CPU, proves a breach despite disturbances; else empty."""
    cpus = 1 if step.resources.device == LOCAL_SYNC.name else read_machine_facts().cores
    is_elsewhere = get_gpu(step) or step.required_command.runner
    min_ms = 0.0 if is_elsewhere else find_least_time(costs, Statistic(check.statistic), cpus)
    if check.limit is None or min_ms <= check.limit:
        return ""
    return f"by its CPU time it takes at least {min_ms:.4g} ms, which no disturbance can explain"


def _record(rounds: list[dict[str, Any]], verdict: Confirmation | None, reason: str) -> dict[str, Any]:
    record: dict[str, Any] = {"reason": reason, "rounds": rounds}
    if verdict is not None:
        has_interval = verdict.low > 0
        record |= {
            "passed": verdict.passed,
            "measured_ms": verdict.measured,
            "low_ms": verdict.low if has_interval else None,
            "high_ms": verdict.high if has_interval else None,
            "limit_ms": verdict.limit,
            "confidence": verdict.confidence,
        }
    return record
