"""The executor of a run: it schedules a plan's steps, holds their locks, and journals the results.

It also compares the metrics of benchmarks, counts and modules with their goldens.
"""

from __future__ import annotations

import math
import time
import traceback
import zipfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import EXPECTED_OUTPUT, Verdict, exit_code_of
from iree_gauntlet.engine.commands import LOADING_FLAG
from iree_gauntlet.engine.judging import (
    apply_expectation,
    apply_quarantine,
    judge_attempts,
    judge_process,
    name_culprit,
    require_whole_files,
)
from iree_gauntlet.engine.modules.module_key import join_flags, make_key
from iree_gauntlet.engine.modules.modules import EntryMetadata, ModuleMaker, read_compiler_figures
from iree_gauntlet.engine.modules.shared_modules import run_cancellable
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.rounds.machine_lock import MachineShare
from iree_gauntlet.engine.rounds.taken_rounds import ConfirmRules, confirm_time, get_gpu
from iree_gauntlet.engine.scheduler import ScheduleLimits, Scheduler
from iree_gauntlet.errors import NO_ROOM, ArtifactError, ExitCode, GauntletError, MachinesLostError, find_error_path
from iree_gauntlet.figures import GOLDEN_FIGURES, Figure
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.measuring.code.module_code import load_module_code
from iree_gauntlet.measuring.goldens.goldens import check_figure, check_time, describe_check
from iree_gauntlet.measuring.instructions.counters import is_usual_count
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import list_benchmark_warnings, read_free_memory
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows
from iree_gauntlet.measuring.profiles.dispatch_profile import find_dispatch_names, find_new_and_gone
from iree_gauntlet.measuring.profiles.memory_profile import DEVICE_HEAP, HOST_HEAP, read_heap_peaks
from iree_gauntlet.measuring.profiles.tuned_dispatches import read_tuned_dispatches
from iree_gauntlet.results import CacheUse, Check, FetchedFile, Result, find_unapplied_goldens, shorten
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Golden
    from iree_gauntlet.engine.modules.module_cache import ModuleCache
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.records.event_log import Journal
    from iree_gauntlet.results import Samples
    from iree_gauntlet.steps import Step


_MEMORY_POLL_SECONDS = 0.05
_MEMORY_RESERVE_BYTES = 2 << 30
_MEMORY_FACTOR = 8
_MODULE = "module"
# The prefix of the logs of a process that only loads.
_LOADING = "loading_"
# The parts of a module with this prefix hold weights.
_CONSTANTS_PREFIX = "_const"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of how a run executes its steps.

    Attributes:
        jobs: the maximum of steps that run concurrently, except benchmarks.
        rebuilt_marks_dir: with --force-recompile, the folder in which a run's processes mark each rebuilt module; None
            to use the cache.
        allow_xpass: an unexpected pass does not fail the run.
        all_goldens: a golden that is not applied makes its step inconclusive.
        confirm: the rules to confirm a broken golden time; None fails on the first breach, as the dialects do.
        reruns: how often a step that failed is repeated in fresh processes.
        flaky_passes: True if a step that passes when it is repeated does not fail the run.
        day: the day on which the run started, which decides on quarantines.
    """

    jobs: int
    fail_fast: bool
    rebuilt_marks_dir: Path | None
    allow_xpass: bool
    all_goldens: bool
    confirm: ConfirmRules | None = None
    reruns: int = 0
    flaky_passes: bool = False
    day: date = date.min


class RemoteExecutor(Protocol):
    """An executor that performs the steps of a plan on other machines."""

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """Return the plan as `run_start.assign_local_devices` does, but for the devices of the other machines.

        Raises:
            UsageError: a device is not available.
        """

    def perform(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> dict[str, Verdict]:
        """Run steps on the other machines, as `Engine.perform` does on this one.

        Call `engine.begin` when a step starts, `engine.conclude` with its result, and `engine.skip` for a step that
        cannot run.
        """


@dataclass(slots=True)
class EngineOutcome:
    """Verdicts of all steps by id, and the exit code, which is INTERRUPTED if Ctrl-C or SIGTERM ended the run."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    code: ExitCode = ExitCode.OK


@dataclass
class Engine:
    """An executor of steps, which journals their results.

    Attributes:
        performers: functions by stage that execute its steps; they replace the functions for spec files.
        available_memory: returns the free memory in bytes; None means unknown, and then no step waits for memory.
        remote_executor: the executor on other machines; None to run the steps on this machine.
        results: the result of each step, by id.
        earlier_attempts: failed attempts in earlier parts of a resumed run, by id; they count on the same files.
        ignores_cache: True to compile modules that the cache has, or has as failures.
    """

    session: Session[Journal]
    workbench: Workbench
    options: RunOptions
    performers: Mapping[Stage, Callable[[Step], Result]] = field(default_factory=dict)
    available_memory: Callable[[], int | None] = read_free_memory
    remote_executor: RemoteExecutor | None = None
    results: dict[str, Result] = field(default_factory=dict)
    earlier_attempts: Mapping[str, tuple[Result, ...]] = field(default_factory=dict)
    ignores_cache: bool = False
    _machine_share: MachineShare = field(init=False)
    _maker: ModuleMaker = field(init=False)
    _performers: dict[Stage, Callable[[Step], Result]] = field(init=False)
    # The errors of expected outputs that could not be fetched, by URL.
    _fetch_errors: dict[str, ArtifactError] = field(default_factory=dict)
    # A started step takes a while to change the free memory, so its last reading is reused for a short time.
    _free_memory: int | None = None
    _memory_time: float = -math.inf

    def __post_init__(self) -> None:
        self._machine_share = MachineShare(self.session.locks, self.session.progress.waiting)
        self._maker = ModuleMaker(
            self.session, self.workbench, self.options.rebuilt_marks_dir, ignores_cache=self.ignores_cache
        )
        self._performers = {
            Stage.FETCH: self._fetch,
            **{stage: self._maker.make for stage in Stage if stage.row.maker},
            Stage.COUNT: self._count,
            Stage.MEMORY: self._measure_memory,
            Stage.THRESHOLD: self._check_numbers,
            Stage.COMPSTAT: self._check_compile_statistics,
            Stage.BENCHMARK: self._benchmark,
            **self.performers,
        }

    @contextmanager
    def record_end(self) -> Iterator[EngineOutcome]:
        """Journal the end of the run whose steps the block performs; catch a KeyboardInterrupt that ends the block."""
        start, outcome = time.monotonic(), EngineOutcome()
        try:
            yield outcome
            outcome.code = exit_code_of(outcome.verdicts.values(), flaky_passes=self.options.flaky_passes)
        except KeyboardInterrupt:
            outcome.code = ExitCode.INTERRUPTED
        except MachinesLostError as error:
            # The finished steps are reported, as after Ctrl-C.
            self.remark(error.on_one_line)
            outcome.code = ExitCode.ERROR
        seconds = round(time.monotonic() - start, 3)
        is_interrupt = outcome.code is ExitCode.INTERRUPTED
        self.session.log.write_end(exit_code=int(outcome.code), seconds=seconds, interrupted=is_interrupt)

    def announce(self, steps: Sequence[Step]) -> None:
        """Journal steps that were added to the plan after the run began; call before they are performed."""
        self.session.log.write_steps(steps)
        self.session.progress.steps_added(len(steps))

    def perform(self, steps: Sequence[Step], finished: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """Run some steps of a plan and journal their results; later calls may run more steps.

        Returns:
            Verdicts by step id, including the `finished` verdicts of earlier parts of the run.

        Raises:
            BaseException: a signal handler raised it; all processes have been ended; the engine cannot be used again.
        """
        if self.remote_executor is not None:
            return self.remote_executor.perform(steps, finished, self)
        limits = ScheduleLimits(self.options.jobs, self.options.fail_fast, self._has_memory_for)
        # Steps keep their order, but fully cached chains come last: uncached compiles start at once, and cached work
        # fills the gaps.
        compiles = [step for step in steps if step.stage is Stage.COMPILE]
        cached_chains = {step.chain for step in compiles} - {step.chain for step in compiles if not step.cache.hit}
        queue = sorted(steps, key=lambda step: step.chain in cached_chains)
        try:
            return Scheduler(queue, finished, limits, self._run_step, self.skip, self.abort, self.release_machine).run()
        finally:
            self.release_machine()

    def abort(self) -> None:
        """End all running processes, unless the session is already cancelled."""
        if not self.session.cancelled.is_set():
            self.session.cancel()

    def _has_memory_for(self, step: Step) -> bool:
        """Return True if there is memory for one more compile, which needs several times the size of its program."""
        sizes = [Path(program.path).stat().st_size for program in step.inputs if Path(program.path).is_file()]
        now = time.monotonic()
        if now - self._memory_time > _MEMORY_POLL_SECONDS:
            self._memory_time, self._free_memory = now, self.available_memory()
        return self._free_memory is None or self._free_memory > _MEMORY_RESERVE_BYTES + _MEMORY_FACTOR * sum(sizes)

    def _run_step(self, step: Step) -> Verdict:
        if self.session.cancelled.is_set():
            return Verdict.ERROR
        self.begin(step)
        result = self.result_of(step)
        if self.session.cancelled.is_set():
            # The journal shows a step that was cut short as unfinished, so a resumed run performs it again.
            return Verdict.ERROR
        return self.conclude(step, result)

    def release_machine(self) -> None:
        """Release the machine while this run is idle, so that benchmarks of other runs may begin."""
        self._machine_share.release()

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        """Journal that a step starts, on `worker` if named; with `again`, the journal already has its start."""
        if not again:
            self.session.log.write_start(step.id)
        self.session.progress.step_started(step, worker)

    def result_of(self, step: Step) -> Result:
        """Perform a step, with its repetitions, and return the result; only attempts before the last are journalled."""
        limit = 1 if step.expect_failure or step.stage.row.fetches else 1 + self.options.reruns
        attempts = self._find_attempts(step) if limit > 1 else []
        while True:
            result = self._try_once(step, self._fresh_performers if attempts else self._performers)
            if limit > 1 and result.can_differ:
                result = replace(result, attempt_key=self._make_attempt_key(step))
            if result.can_differ and len(attempts) + 1 < limit and not self.session.cancelled.is_set():
                result = self.session.processes.keep_attempt(step, result, len(attempts) + 1)
                self.session.log.write_attempt(step.id, result)
                self.session.progress.message(
                    f"{step.id} {result.verdict.past_tense}, and is repeated: {result.reason}"
                )
                attempts.append(result)
                continue
            return judge_attempts([*attempts, result])

    def _find_attempts(self, step: Step) -> list[Result]:
        """Return a step's failed attempts in earlier parts of a run with the same command and the same files."""
        earlier_attempts = self.earlier_attempts.get(step.id, ())
        key = self._make_attempt_key(step) if earlier_attempts else ""
        attempts = [attempt for attempt in earlier_attempts if attempt.attempt_key == key]
        if len(attempts) < len(earlier_attempts):
            self.session.progress.message(f"{step.id} begins anew: what it reads has changed since it failed")
        if attempts and attempts[-1].log and (self.session.folder / attempts[-1].log).parent == Path(step.folder):
            # The next attempt would overwrite the files of the last one.
            attempts[-1] = self.session.processes.keep_attempt(step, attempts[-1], len(attempts))
        return attempts

    def _make_attempt_key(self, step: Step) -> str:
        """Return a hash of a step's command and of the bytes that it reads."""
        files = {f"{number} {file.role}": "" for number, file in enumerate(step.inputs)}
        for name, file in zip(files, step.inputs, strict=True):
            with suppress(OSError):
                files[name] = self.workbench.store.hash_cache.sha256(Path(file.path))
        return make_key({"command": join_flags(step.command.words if step.command else ()), **files})

    @cached_property
    def _fresh_performers(self) -> Mapping[Stage, Callable[[Step], Result]]:
        """The functions that repeat steps: with a process for each, and without the module cache."""
        processes = Processes(self.session.supervisor, self.session.folder)
        engine = Engine(replace(self.session, processes=processes), self.workbench, self.options, ignores_cache=True)
        return engine._performers

    def _try_once(self, step: Step, performers: Mapping[Stage, Callable[[Step], Result]]) -> Result:
        """Perform a step once under its locks, apply its expectation, and return the result."""
        start, delay = time.monotonic(), 0.0
        has_cause = bool(step.blocked)
        try:
            if step.skip or step.blocked:
                verdict = Verdict.SKIPPED if step.skip else Verdict.ERROR
                result = Result(verdict, step.skip or step.blocked, notes=() if step.skip else step.notes)
            else:
                if step.command:
                    self._require_expected_outputs(step)
                with self._hold_locks(step) as delay:
                    result = performers[step.stage](step)
        except GauntletError as error:
            has_cause = has_cause or isinstance(error, ArtifactError)
            notes = (*step.notes, *(error.notes if isinstance(error, ArtifactError) else ()))
            result = Result(Verdict.ERROR, error.message, notes=notes, tail=tuple(error.hint.splitlines()))
        except OSError as error:
            # Such errors (a full disk, a removed file) concern this step only.
            message = f"{find_error_path(error)}: {error.strerror}" if error.filename else str(error)
            tail = ("Make room there, then resume the run.",) if error.errno in NO_ROOM else ()
            result = Result(Verdict.ERROR, message, notes=step.notes, tail=tail)
        except Exception as error:  # noqa: BLE001 - any error concerns this step only
            has_cause = True
            result = self._make_fault_result(step, error)
        is_failure = result.verdict is Verdict.FAILED or result.verdict.is_error
        inputs = step.inputs if is_failure and step.command and not has_cause else ()
        if missing_path := next((step_input.path for step_input in inputs if not Path(step_input.path).exists()), ""):
            # The missing file explains the failure.
            message = f"{missing_path} no longer exists: was the cache or the run's folder cleared while this ran?"
            tail, notes = ("Run again; `--resume` makes what is missing.",), step.notes
            result = Result(Verdict.ERROR, message, notes=notes, tail=tail, command=result.command, log=result.log)
        delay += result.waited_seconds
        result = apply_expectation(step, result, allow_xpass=self.options.allow_xpass)
        # Rounding drops waits of less than a millisecond, which are only the cost of the lock calls.
        return replace(result, seconds=round(time.monotonic() - start - delay, 6), waited_seconds=round(delay, 3))

    def _make_fault_result(self, step: Step, error: Exception) -> Result:
        """Write a toolkit fault's traceback to the step's folder; return the step's result."""
        message = shorten(f"a fault of IREE Gauntlet itself: {type(error).__name__}: {error}")
        log, tail = "", ("Please report it.",)
        with suppress(GauntletError):  # the disk may be full
            lines = "".join(traceback.format_exception(error)).splitlines()
            log = self.session.processes.write_log(step, "traceback.txt", lines)
            tail = (f"Please report it, with its traceback: {log} in the run's folder.",)
        return Result(Verdict.ERROR, message, notes=step.notes, tail=tail, log=log)

    def conclude(self, step: Step, result: Result) -> Verdict:
        """Journal the result of a step, and return its verdict for the steps that need it."""
        result = apply_quarantine(step, result, self.options.day)
        self.results[step.id] = result
        self.session.log.write_result(step.id, result)
        self.session.progress.step_finished(step, result)
        return result.settled_verdict

    def put_back(self, step: Step) -> None:
        """Show a step as waiting again, after another machine began it and did not finish it."""
        self.session.progress.step_put_back(step)

    def joined(self, name: str, machine: Mapping[str, Any]) -> None:
        """Journal that another machine takes part."""
        self.session.log.write("worker", {"name": name, "machine": dict(machine)})

    def remark(self, text: str) -> None:
        """Journal a message about the run, and print it."""
        self.session.log.write("remark", {"text": text})
        self.session.progress.message(text)

    def skip(self, step: Step, reason: str) -> Verdict:
        """Journal that a step cannot run."""
        return self.conclude(step, Result(Verdict.SKIPPED, reason))

    @contextmanager
    def _hold_locks(self, step: Step) -> Iterator[float]:
        """Hold the machine-wide locks that a step needs; yield the seconds of waiting for them."""
        device, exclusive = step.resources.device, step.resources.exclusive
        start = time.monotonic()
        with ExitStack() as stack:
            if exclusive or not step.resources.cores:
                self._machine_share.release()
            # A step with cores=0 takes these locks itself, once for each block of its rounds.
            if exclusive and step.resources.cores:
                stack.enter_context(self.session.hold_machine(device))
            elif step.resources.cores:
                if step.stage.row.waits_for_benchmarks:
                    stack.enter_context(self._machine_share.hold())
                if accelerator := step.resources.accelerator:
                    stack.enter_context(self.session.locks.device_lock(accelerator, self.session.progress.waiting))
            yield time.monotonic() - start

    def _fetch(self, step: Step) -> Result:
        files: list[FetchedFile] = []
        missing_count = 0
        for step_input in step.inputs:
            if self.session.cancelled.is_set():
                break
            try:
                files.append(self._fetch_file(step_input.url))
            except ArtifactError as error:
                if step_input.role != EXPECTED_OUTPUT:
                    raise
                missing_count += 1
                self._fetch_errors[step_input.url] = error
        notes = [f"{file.url}: {note}" for file in files for note in file.notes]
        all_hits = all(file.cached for file in files)
        reason = "all files present" if all_hits else "downloaded"
        if missing_count:
            reason += f", except {pluralize(missing_count, 'expected output')}: the threshold step says why"
        cache = CacheUse(all_hits and not missing_count, reason=reason)
        return Result(Verdict.PASSED, cache=cache, fetched=tuple(files), notes=(*step.notes, *notes))

    def _fetch_file(self, url: str) -> FetchedFile:
        return run_cancellable(partial(self.workbench.store.fetch, url), self.session.cancelled, f"{url}: interrupted")

    def _require_expected_outputs(self, step: Step) -> None:
        """Fetch those expected outputs of a step that are not available yet; raise the errors of earlier fetches."""
        urls = [step_input.url for step_input in step.inputs if step_input.role == EXPECTED_OUTPUT and step_input.url]
        errors = [error for url in urls if (error := self._fetch_errors.pop(url, None))]
        if errors:
            errors[0].notes += tuple(error.message for error in errors[1:])
            raise errors[0]
        for url in urls:
            if not self.workbench.store.is_present(url):
                self._fetch_file(url)

    def _check_numbers(self, step: Step) -> Result:
        from iree_gauntlet.engine.threshold import check_threshold, compare_error_with_baseline  # noqa: PLC0415 - it imports NumPy

        return compare_error_with_baseline(step, check_threshold(step, self.session.processes))

    def _benchmark(self, step: Step) -> Result:
        """Run a benchmark, record the times of all repetitions, and check the golden by the dialect's rule."""
        processes, confirm = self.session.processes, self.options.confirm
        require_whole_files(step.required_command)
        gpu = get_gpu(step)
        watch = RoundWatch(gpu=bool(gpu), device=gpu)
        outcome = processes.run(step)
        state = outcome.board_state or watch.ended(own_cpu_seconds=outcome.cpu_seconds)
        samples = self._read_samples(step, outcome)
        if isinstance(samples, Result):
            return samples
        check = check_time(samples, step.goldens, step.golden_keys, step.sku)
        result = replace(
            self._judge(step, [check]),
            samples=samples,
            statistics={"machine": state.as_dict(), "disturbed": list(state.list_disturbances())},
            notes=(*step.notes, *list_benchmark_warnings(state.state_with_cpu_use)),
            log=processes.log(step, "stdout.txt"),
        )
        # A step that is expected to fail needs no proof of the failure.
        if check.passed is False and confirm is not None and FailureKind.MISSES_A_GOLDEN not in step.expect_kinds:
            result = self._confirm(step, check, result, confirm)
        return processes.complete(step, outcome, result)

    def _read_samples(self, step: Step, outcome: Outcome) -> Samples | Result:
        """Return the times of a benchmark's process; the step's result if the process failed or made no call."""
        processes = self.session.processes
        try:
            if outcome.exit_code == 0:
                return parse_benchmark_rows(processes.stdout(step))[0]
            tool = name_culprit(step.required_command, processes.stdout(step), BENCHMARK_MODULE)
            result = judge_process(step, outcome, processes.error_lines(step), tool=tool)
        except GauntletError as error:
            result = Result(Verdict.ERROR, shorten(error.message), tail=tuple(outcome.tail), notes=(error.hint,))
        return processes.complete(step, outcome, result)

    def _confirm(self, step: Step, breach: Check, result: Result, rules: ConfirmRules) -> Result:
        """Run further rounds of a benchmark that broke its golden; return the updated result."""
        confirmation = confirm_time(step, breach, self.session.processes, rules, self.session.cancelled)
        first_breach = f"{describe_check(breach)} in the first run"
        passes = confirmation.verdict is Verdict.PASSED
        return replace(
            result,
            verdict=confirmation.verdict,
            failure=result.failure if confirmation.verdict is Verdict.FAILED else None,
            reason="" if passes else shorten(f"{confirmation.reason}; {first_breach}"),
            checks=(confirmation.check,),
            statistics={**result.statistics, "confirmation": confirmation.record},
            notes=(*result.notes, f"not confirmed: {first_breach}; {confirmation.reason}") if passes else result.notes,
            tool_seconds=result.tool_seconds + confirmation.tool_seconds,
        )

    def _check_compile_statistics(self, step: Step) -> Result:
        """Compare a module's dispatches and size with its goldens; report all metrics even without a golden."""
        result = self._maker.make(step) if step.command else Result(Verdict.PASSED, notes=step.notes)
        if result.verdict is not Verdict.PASSED:
            return result
        tuned = read_tuned_dispatches(Path(step.find_output("tuning"))) if step.command else None
        statistics: dict[str, Any] = {
            **read_compiler_figures(Path(step.find_input("statistics").path)),
            **load_module_code(Path(step.find_input(_MODULE).path), Path(step.find_input("code").path)).statistics,
            Figure.SIZE.value: Path(step.find_input(_MODULE).path).stat().st_size,
        }
        if tuned or any(golden.metric is Figure.TUNED_DISPATCHES for golden in step.goldens):
            # A golden must not pass because the flag of the tuning spec was lost.
            statistics[Figure.TUNED_DISPATCHES.value] = len(tuned.matched) if tuned else 0
        cache = self.workbench.modules
        result = replace(result, statistics=statistics)
        checks = self._check_metrics(step, result, step.goldens)
        broken = {check.metric: check.limit for check in checks if check.passed is False}
        limit = broken.get(Figure.DISPATCHES)
        notes = [] if limit is None else [_describe_dispatch_changes(cache, step, limit)]
        notes += [tuned.description] if tuned and Figure.TUNED_DISPATCHES in broken else []
        judgement = self._judge(step, checks)
        if tuned and not tuned.matched:
            reason = shorten("; ".join(filter(None, ("tuning spec matches no dispatch", judgement.reason))))
            judgement = replace(judgement, verdict=Verdict.FAILED, reason=reason, failure=FailureKind.TUNES_NOTHING)
        return _adopt(replace(result, notes=(*result.notes, *filter(None, notes))), judgement)

    def _count(self, step: Step) -> Result:
        """Count instructions, and compare the counts with their goldens."""
        result = self._maker.make(step)
        if result.verdict is not Verdict.PASSED:
            return result
        counter_info = result.typed_statistics
        # Goldens apply only to the usual counter, and to modules for the usual CPU.
        is_usual = is_usual_count(counter_info.counter, counter_info.cpu)
        checks = self._check_metrics(step, result, step.goldens if is_usual else ())
        if step.goldens and not is_usual:
            counter_text = f"{counter_info.counter}, for {counter_info.cpu or 'the CPU of the spec'}"
            note = f"its golden is valgrind's usual count, but this one is by {counter_text}: measured only"
            checks = [replace(check, note=note) for check in checks]
        return _adopt(result, self._judge(step, checks))

    def _measure_memory(self, step: Step) -> Result:
        """Make one call, and load the modules without a call; compare the memory with its goldens.

        The result lacks a figure that the tool does not report, which is an error if there is a golden for the figure.
        """
        processes, command = self.session.processes, step.required_command
        require_whole_files(command)
        outcome = processes.run(step)
        samples = self._read_samples(step, outcome)
        if isinstance(samples, Result):
            return samples
        # A runner's process has its own memory too.
        statistics = {} if command.runner else {Figure.PROCESS_MEMORY.value: outcome.peak_rss_bytes}
        reason = ""
        try:
            peaks = read_heap_peaks(processes.error_lines(step), is_call=True)
            statistics |= {Figure.PEAK_MEMORY.value: peaks[DEVICE_HEAP], Figure.HOST_MEMORY.value: peaks[HOST_HEAP]}
            loading = processes.run(step, replace(command, argv=(*command.argv, LOADING_FLAG)), _LOADING)
            loaded_peaks = read_heap_peaks(processes.error_lines(step, _LOADING) if loading.exit_code == 0 else ())
            statistics[Figure.LOADED_MEMORY.value] = loaded_peaks[DEVICE_HEAP]
        except GauntletError as error:
            reason = f"not all memory is known: {error.message}"
        result = Result(Verdict.PASSED, statistics=statistics, notes=(*step.notes, *filter(None, (reason,))))
        if any(golden.metric not in statistics for golden in step.goldens):
            result = replace(result, verdict=Verdict.ERROR, reason=shorten(reason), notes=step.notes)
        else:
            result = _adopt(result, self._judge(step, self._check_metrics(step, result, step.goldens)))
        return processes.complete(step, outcome, result)

    def _check_metrics(self, step: Step, result: Result, goldens: Sequence[Golden]) -> list[Check]:
        """Compare a step's metrics with the goldens."""
        figures = [figure for figure in GOLDEN_FIGURES if figure.golden.stage is step.stage]
        metrics = {golden.metric for golden in (*step.goldens, *step.idle_goldens)}
        values = {
            figure: result.measure(figure) for figure in figures if figure in metrics or not figure.golden.needs_golden
        }
        return [
            check_figure(figure, value, goldens, self.workbench.release, step.idle_goldens)
            for figure, value in values.items()
            if value is not None or figure in metrics
        ]

    def _judge(self, step: Step, checks: Sequence[Check]) -> Result:
        """Return the result of a step from the checks of its metrics against their goldens."""
        if failed_checks := [check for check in checks if check.passed is False]:
            reason = shorten("; ".join(map(describe_check, failed_checks)))
            return Result(Verdict.FAILED, reason, checks=tuple(checks), failure=FailureKind.MISSES_A_GOLDEN)
        unused_goldens = (
            find_unapplied_goldens((*step.goldens, *step.idle_goldens), checks, step.sku)
            if self.options.all_goldens
            else ()
        )
        texts = (
            describe_check(check) for check in checks if check.metric in {golden.metric for golden in unused_goldens}
        )
        verdict = Verdict.INCONCLUSIVE if unused_goldens else Verdict.PASSED
        return Result(verdict, shorten("; ".join(texts)), checks=tuple(checks))


def _adopt(result: Result, judgement: Result) -> Result:
    """Return the result of a step that has made something, with the verdict of the checks on it."""
    return replace(
        result, verdict=judgement.verdict, reason=judgement.reason, checks=judgement.checks, failure=judgement.failure
    )


def _describe_dispatch_changes(cache: ModuleCache, step: Step, limit: float) -> str:
    """Describe the dispatches that are new or missing, compared with the newest cached module that met the golden."""
    # Consider the cached modules of this compile step, from any toolchain.
    entries = (entry for entry in cache.list_entries() if entry.name in step.needs and _MODULE in entry.files)
    counted_entries = (
        (EntryMetadata.from_dict(entry.metadata).statistics.get("dispatch_count"), entry) for entry in entries
    )
    candidates = [(count, entry) for count, entry in counted_entries if count is not None and count <= limit]
    if not candidates:
        return ""
    count, newest = max(candidates, key=lambda candidate: candidate[1].created)
    newest_entry = cache.lookup(newest.key).entry
    old_names = _list_dispatch_names(newest_entry.files[_MODULE]) if newest_entry is not None else []
    new_names = _list_dispatch_names(step.find_input(_MODULE).path)
    if not (old_names and new_names):
        return ""
    new, missing = find_new_and_gone(old_names, new_names)
    changes = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in (("new", new), ("gone", missing)) if names)
    dispatches = f"{count} dispatch" + ("" if count == 1 else "es")
    day = newest.created[:16].replace("T", " ")
    return f"compared with the newest module with {dispatches} (of {day} UTC): {changes or 'the same names'}"


def _list_dispatch_names(module: Path | str) -> list[str]:
    """Return the names of a module's dispatches; empty if the file is not a zip archive, as the compiler writes."""
    if not zipfile.is_zipfile(module):
        return []
    with zipfile.ZipFile(module) as archive:
        parts = (part for part in archive.infolist() if not part.filename.startswith(_CONSTANTS_PREFIX))
        return find_dispatch_names(map(archive.read, parts))
