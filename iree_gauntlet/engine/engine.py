"""A run: executes a plan under the journal, the locks and the scheduler, and reports progress.

Figures are held against their goldens here: those of benchmarks, of counts and of modules.
"""

from __future__ import annotations

import math
import time
import traceback
import zipfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import EXPECTED_OUTPUT, Verdict, exit_code_of
from iree_gauntlet.engine.judging import judge_process, require_whole_files, with_expectation
from iree_gauntlet.engine.modules.modules import Kept, ModuleMaker, read_dispatch_count
from iree_gauntlet.engine.modules.shared_modules import until_cancelled
from iree_gauntlet.engine.rounds.machine_lock import QuietStretch
from iree_gauntlet.engine.rounds.taken_rounds import ConfirmRules, confirm_time, gpu_of
from iree_gauntlet.engine.scheduler import ScheduleLimits, Scheduler
from iree_gauntlet.errors import NO_ROOM, ArtifactError, ExitCode, GauntletError, MachinesLostError, name_place
from iree_gauntlet.figures import JUDGED_FIGURES, Figure
from iree_gauntlet.formatting import counted
from iree_gauntlet.measuring.goldens.goldens import check_figure, check_time, describe
from iree_gauntlet.measuring.instructions.counters import is_usual_count
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import free_memory, list_benchmark_warnings
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows
from iree_gauntlet.measuring.profiles.dispatch_profile import find_dispatch_names, find_new_and_gone
from iree_gauntlet.results import CacheUse, Check, Fetched, Result, find_unapplied, shorten
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Golden
    from iree_gauntlet.engine.modules.module_cache import ModuleCache
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.records.event_log import Journal
    from iree_gauntlet.steps import Step


_MEMORY_SECONDS = 0.05
_MEMORY_RESERVE = 2 << 30
_MEMORY_PER_PROGRAM = 8
_MODULE = "module"
# Parts of a module that hold weights.
_CONSTANTS = "_const"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run.

    Attributes:
        jobs: steps at once before the benchmarks.
        made_again: with --force-recompile, the folder in which all processes of a run note which modules they have
            made again; None to use what is in the cache.
        lenient: an unexpected pass does not fail the run.
        all_goldens: a golden that is not applied makes its step inconclusive.
        confirm: how a broken golden time is confirmed; None to fail at once, by the dialects' plain rule.
    """

    jobs: int
    fail_fast: bool
    made_again: Path | None
    lenient: bool
    all_goldens: bool
    confirm: ConfirmRules | None


class Elsewhere(Protocol):
    """Other machines, which perform the steps of a plan."""

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """The plan, where the devices that it asks for are there; as `run_start.on_devices_here`.

        Raises:
            UsageError: a device is not there.
        """

    def perform(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> dict[str, Verdict]:
        """Runs steps there; as `Engine.perform`.

        It calls `engine.begin` when a step starts, `engine.conclude` with its result, and `engine.skip` for one that
        cannot run.
        """


@dataclass(slots=True)
class Performed:
    """Verdicts of all steps by id, and the exit code: INTERRUPTED where Ctrl-C or SIGTERM ended it."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    code: ExitCode = ExitCode.OK


@dataclass
class Engine:
    """Executes steps, and journals their results.

    Attributes:
        performers: what executes the steps of a stage, in place of what spec files mean by it.
        available_memory: bytes that are free now; None where that is not known, which keeps nothing back.
        elsewhere: other machines that perform the steps; None for this one.
        results: the result of each step, by id.
    """

    session: Session[Journal]
    workbench: Workbench
    options: RunOptions
    performers: Mapping[Stage, Callable[[Step], Result]] = field(default_factory=dict)
    available_memory: Callable[[], int | None] = free_memory
    elsewhere: Elsewhere | None = None
    results: dict[str, Result] = field(default_factory=dict)
    _quiet: QuietStretch = field(init=False)
    _maker: ModuleMaker = field(init=False)
    _performers: dict[Stage, Callable[[Step], Result]] = field(init=False)
    # Expected outputs that a fetch did not get, by URL.
    _not_had: dict[str, ArtifactError] = field(default_factory=dict)
    # Asked not more often than it could have changed by what was started last.
    _memory: int | None = None
    _memory_asked: float = -math.inf

    def __post_init__(self) -> None:
        self._quiet = QuietStretch(self.session.locks, self.session.progress.waiting)
        self._maker = ModuleMaker(self.session, self.workbench, self.options.made_again)
        self._performers = {
            Stage.FETCH: self._fetch,
            **{stage: self._maker.make for stage in Stage if stage.row.maker},
            Stage.COUNT: self._count,
            Stage.THRESHOLD: self._check_numbers,
            Stage.COMPSTAT: self._check_compile_statistics,
            Stage.BENCHMARK: self._benchmark,
            **self.performers,
        }

    @contextmanager
    def recorded(self) -> Iterator[Performed]:
        """Journals the end of what is performed inside, and takes the KeyboardInterrupt that ends it."""
        began, performed = time.monotonic(), Performed()
        try:
            yield performed
            performed.code = exit_code_of(performed.verdicts.values())
        except KeyboardInterrupt:
            performed.code = ExitCode.INTERRUPTED
        except MachinesLostError as error:
            # What was done is reported, as after Ctrl-C.
            self.remark(error.on_one_line)
            performed.code = ExitCode.ERROR
        seconds = round(time.monotonic() - began, 3)
        interrupted = performed.code is ExitCode.INTERRUPTED
        self.session.log.end(exit_code=int(performed.code), seconds=seconds, interrupted=interrupted)

    def announce(self, steps: Sequence[Step]) -> None:
        """Journals steps that were not known when the run began, before they are performed."""
        self.session.log.more_steps(steps)
        self.session.progress.steps_added(len(steps))

    def perform(self, steps: Sequence[Step], finished: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """Runs some steps of a plan and journals their results; more may follow.

        Returns:
            Verdicts by step id, those of `finished` among them, which an earlier part of the run has done.

        Raises:
            BaseException: what a signal handler raises; what runs has been ended then, and the engine with it.
        """
        if self.elsewhere is not None:
            return self.elsewhere.perform(steps, finished, self)
        limits = ScheduleLimits(self.options.jobs, self.options.fail_fast, self._fits)
        # In their order, but for chains whose modules are all in the cache: they fill the time that compiles take.
        compiles = [step for step in steps if step.stage is Stage.COMPILE]
        cached = {step.chain for step in compiles} - {step.chain for step in compiles if not step.cache.hit}
        ordered = sorted(steps, key=lambda step: step.chain in cached)
        try:
            return Scheduler(ordered, finished, limits, self._work, self.skip, self.abort, self.rest).run()
        finally:
            self.rest()

    def abort(self) -> None:
        """Ends what runs, unless that is under way."""
        if not self.session.cancelled.is_set():
            self.session.cancel()

    def _fits(self, step: Step) -> bool:
        """Whether there is memory for one more compile: the compiler holds a program several times."""
        sizes = [Path(item.path).stat().st_size for item in step.inputs if Path(item.path).is_file()]
        now = time.monotonic()
        if now - self._memory_asked > _MEMORY_SECONDS:
            self._memory_asked, self._memory = now, self.available_memory()
        return self._memory is None or self._memory > _MEMORY_RESERVE + _MEMORY_PER_PROGRAM * sum(sizes)

    def _work(self, step: Step) -> Verdict:
        if self.session.cancelled.is_set():
            return Verdict.ERROR
        self.begin(step)
        result = self.result_of(step)
        if self.session.cancelled.is_set():
            # What was cut short has no result: the journal shows it as unfinished, and a resumed run does it.
            return Verdict.ERROR
        return self.conclude(step, result)

    def rest(self) -> None:
        """Nothing is to be done for now: benchmarks of other runs may begin."""
        self._quiet.rest()

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        """Journals that a step starts, `worker` where that is another machine, unless it is begun `again`."""
        if not again:
            self.session.log.start(step.id)
        self.session.progress.step_started(step, worker)

    def result_of(self, step: Step) -> Result:
        """Performs a step under its locks, judged by what was expected of it; nothing is journalled."""
        began, waited = time.monotonic(), 0.0
        said = bool(step.blocked)
        try:
            if step.skip or step.blocked:
                verdict = Verdict.SKIPPED if step.skip else Verdict.ERROR
                result = Result(verdict, step.skip or step.blocked, notes=() if step.skip else step.notes)
            else:
                if step.command:
                    self._require_expected(step)
                with self._hold_locks(step) as waited:
                    result = self._performers[step.stage](step)
        except GauntletError as error:
            said = said or isinstance(error, ArtifactError)
            notes = (*step.notes, *(error.notes if isinstance(error, ArtifactError) else ()))
            result = Result(Verdict.ERROR, error.what, notes=notes, tail=tuple(error.hint.splitlines()))
        except OSError as error:
            # Of this step alone: a full disk, a file that somebody has removed.
            what = f"{name_place(error)}: {error.strerror}" if error.filename else str(error)
            tail = ("Make room there, then resume the run.",) if error.errno in NO_ROOM else ()
            result = Result(Verdict.ERROR, what, notes=step.notes, tail=tail)
        except Exception as error:  # noqa: BLE001 - of this step alone, whatever it is
            said = True
            result = self._explain_fault(step, error)
        bad = result.verdict is Verdict.FAILED or result.verdict.is_error
        inputs = step.inputs if bad and step.command and not said else ()
        if gone := next((item.path for item in inputs if not Path(item.path).exists()), ""):
            # That is why.
            what = f"{gone} is not there any more: was the cache or the run's folder cleared while this ran?"
            tail, notes = ("Run again; `--resume` makes what is missing.",), step.notes
            result = Result(Verdict.ERROR, what, notes=notes, tail=tail, command=result.command, log=result.log)
        waited += result.waited_seconds
        result = with_expectation(step, result, lenient=self.options.lenient)
        # Less than a millisecond is the cost of asking.
        return replace(result, seconds=round(time.monotonic() - began - waited, 6), waited_seconds=round(waited, 3))

    def _explain_fault(self, step: Step, error: Exception) -> Result:
        """The result of a step in which the toolkit itself went wrong; the traceback is kept in the step's folder."""
        what = shorten(f"a fault of IREE Gauntlet itself: {type(error).__name__}: {error}")
        log, tail = "", ("Please report it.",)
        with suppress(GauntletError):  # there is no room for it
            lines = "".join(traceback.format_exception(error)).splitlines()
            log = self.session.processes.write_log(step, "traceback.txt", lines)
            tail = (f"Please report it, with its traceback: {log} in the run's folder.",)
        return Result(Verdict.ERROR, what, notes=step.notes, tail=tail, log=log)

    def conclude(self, step: Step, result: Result) -> Verdict:
        """Journals the result of a step."""
        self.results[step.id] = result
        self.session.log.result(step.id, result)
        self.session.progress.step_finished(step, result)
        return result.verdict

    def put_back(self, step: Step) -> None:
        """A step that began elsewhere is not done, and waits again."""
        self.session.progress.step_put_back(step)

    def joined(self, name: str, machine: Mapping[str, Any]) -> None:
        """Journals that another machine takes part."""
        self.session.log.write("worker", {"name": name, "machine": dict(machine)})

    def remark(self, text: str) -> None:
        """Journals what a reader must know, and says it."""
        self.session.log.write("remark", {"text": text})
        self.session.progress.message(text)

    def skip(self, step: Step, reason: str) -> Verdict:
        """Journals that a step cannot run."""
        return self.conclude(step, Result(Verdict.SKIPPED, reason))

    @contextmanager
    def _hold_locks(self, step: Step) -> Iterator[float]:
        """Hold the machine-wide locks that a step needs; yields the seconds that it waited for them."""
        device, exclusive = step.resources.device, step.resources.exclusive
        began = time.monotonic()
        with ExitStack() as stack:
            if exclusive or not step.resources.cores:
                self._quiet.rest()
            # A step without cores takes the machine and the device by itself, for each block of its rounds.
            if exclusive and step.resources.cores:
                stack.enter_context(self.session.quiet(device))
            elif step.resources.cores:
                if step.stage.row.waits:
                    stack.enter_context(self._quiet.held())
                if accelerator := step.resources.accelerator:
                    stack.enter_context(self.session.locks.device_lock(accelerator, self.session.progress.waiting))
            yield time.monotonic() - began

    def _fetch(self, step: Step) -> Result:
        fetched: list[Fetched] = []
        lost = 0
        for item in step.inputs:
            if self.session.cancelled.is_set():
                break
            try:
                fetched.append(self._fetched(item.url))
            except ArtifactError as error:
                if item.role != EXPECTED_OUTPUT:
                    raise
                lost += 1
                self._not_had[item.url] = error
        notes = [f"{file.url}: {note}" for file in fetched for note in file.notes]
        every = all(item.cached for item in fetched)
        reason = "all files present" if every else "downloaded"
        if lost:
            reason += f", but for {counted(lost, 'expected output')}: the threshold step says why"
        cache = CacheUse(every and not lost, reason=reason)
        return Result(Verdict.PASSED, cache=cache, fetched=tuple(fetched), notes=(*step.notes, *notes))

    def _fetched(self, url: str) -> Fetched:
        return until_cancelled(partial(self.workbench.store.fetch, url), self.session.cancelled, f"{url}: interrupted")

    def _require_expected(self, step: Step) -> None:
        """Makes sure of the outputs that a step expects, as far as they are fetched."""
        expected = [item.url for item in step.inputs if item.role == EXPECTED_OUTPUT and item.url]
        errors = [error for url in expected if (error := self._not_had.pop(url, None))]
        if errors:
            errors[0].notes += tuple(error.what for error in errors[1:])
            raise errors[0]
        for url in expected:
            if not self.workbench.store.present(url):
                self._fetched(url)

    def _check_numbers(self, step: Step) -> Result:
        from iree_gauntlet.engine.threshold import check_error, check_threshold  # noqa: PLC0415 - it brings NumPy

        return check_error(step, check_threshold(step, self.session.processes))

    def _benchmark(self, step: Step) -> Result:
        """Runs a benchmark: all repetitions are kept, and held against the golden time by the dialect's rule."""
        processes, confirm = self.session.processes, self.options.confirm
        require_whole_files(step.process)
        gpu = gpu_of(step)
        watch = RoundWatch(gpu=bool(gpu), device=gpu)
        outcome = processes.run(step)
        state = watch.ended(own_cpu_seconds=outcome.cpu_seconds)
        if outcome.exit_code != 0:
            result = judge_process(step, outcome, processes.error_lines(step), tool=BENCHMARK_MODULE)
            return processes.complete(step, outcome, result)
        try:
            samples = parse_benchmark_rows(processes.stdout(step))[0]
        except GauntletError as error:
            failed = Result(Verdict.ERROR, shorten(error.what), tail=tuple(outcome.tail), notes=(error.hint,))
            return processes.complete(step, outcome, failed)
        check = check_time(samples, step.goldens, step.golden_keys, step.sku)
        result = replace(
            self._judge(step, [check]),
            samples=samples,
            statistics={"machine": state.as_dict(), "disturbed": list(state.disturbances())},
            notes=(*step.notes, *list_benchmark_warnings(state.watched)),
            log=processes.log(step, "stdout.txt"),
        )
        # What is expected to fail needs no proof of it.
        if check.passed is False and confirm is not None and FailureKind.MISSES_A_GOLDEN not in step.expect_kinds:
            result = self._confirm(step, check, result, confirm)
        return processes.complete(step, outcome, result)

    def _confirm(self, step: Step, breach: Check, result: Result, rules: ConfirmRules) -> Result:
        """The result of a benchmark that broke its golden, after further rounds."""
        confirmed = confirm_time(step, breach, self.session.processes, rules, self.session.cancelled)
        first = f"{describe(breach)} in the first run"
        passed = confirmed.verdict is Verdict.PASSED
        return replace(
            result,
            verdict=confirmed.verdict,
            failure=result.failure if confirmed.verdict is Verdict.FAILED else None,
            reason="" if passed else shorten(f"{confirmed.reason}; {first}"),
            checks=(confirmed.check,),
            statistics={**result.statistics, "confirmation": confirmed.record},
            notes=(*result.notes, f"not confirmed: {first}; {confirmed.reason}") if passed else result.notes,
            tool_seconds=result.tool_seconds + confirmed.tool_seconds,
        )

    def _check_compile_statistics(self, step: Step) -> Result:
        """Holds a module's dispatch count and size against its goldens; every figure is reported."""
        statistics: dict[str, Any] = {
            Figure.DISPATCHES.value: read_dispatch_count(Path(step.input("statistics").path)),
            Figure.SIZE.value: Path(step.input(_MODULE).path).stat().st_size,
        }
        cache = self.workbench.modules
        checks = self._check_figures(step, Result(Verdict.PASSED, statistics=statistics), step.goldens)
        more = [item.limit for item in checks if item.metric == Figure.DISPATCHES and item.passed is False]
        why = [_describe_dispatch_changes(cache, step, limit) for limit in more if limit is not None]
        return replace(self._judge(step, checks), statistics=statistics, notes=(*step.notes, *filter(None, why)))

    def _count(self, step: Step) -> Result:
        """Counts instructions, and holds them against their goldens."""
        result = self._maker.make(step)
        if result.verdict is not Verdict.PASSED:
            return result
        known = result.known
        # Of another counter, or of modules for another CPU, they say nothing.
        usual = is_usual_count(known.counter, known.cpu)
        checks = self._check_figures(step, result, step.goldens if usual else ())
        if step.goldens and not usual:
            how = f"{known.counter}, for {known.cpu or 'the CPU of the spec'}"
            note = f"its golden is of valgrind's usual count, and this is by {how}: measured only"
            checks = [replace(check, note=note) for check in checks]
        judged = self._judge(step, checks)
        return replace(
            result, verdict=judged.verdict, reason=judged.reason, checks=judged.checks, failure=judged.failure
        )

    def _check_figures(self, step: Step, result: Result, goldens: Sequence[Golden]) -> list[Check]:
        """Holds the figures that a step judges against goldens."""
        own = [figure for figure in JUDGED_FIGURES if figure.golden.stage is step.stage]
        wanted = {golden.metric for golden in (*step.goldens, *step.idle_goldens)}
        measured = {
            figure: result.measure(figure) for figure in own if figure in wanted or not figure.golden.needs_golden
        }
        return [
            check_figure(figure, value, goldens, self.workbench.release, step.idle_goldens)
            for figure, value in measured.items()
            if value is not None
        ]

    def _judge(self, step: Step, checks: Sequence[Check]) -> Result:
        """What figures come to that were held against the goldens of their step."""
        if broken := [check for check in checks if check.passed is False]:
            reason = shorten("; ".join(map(describe, broken)))
            return Result(Verdict.FAILED, reason, checks=tuple(checks), failure=FailureKind.MISSES_A_GOLDEN)
        unapplied = (
            find_unapplied((*step.goldens, *step.idle_goldens), checks, step.sku) if self.options.all_goldens else ()
        )
        loose = (describe(check) for check in checks if check.metric in {golden.metric for golden in unapplied})
        verdict = Verdict.INCONCLUSIVE if unapplied else Verdict.PASSED
        return Result(verdict, shorten("; ".join(loose)), checks=tuple(checks))


def _describe_dispatch_changes(cache: ModuleCache, step: Step, limit: float) -> str:
    """The dispatches that are new and gone against the newest module in the cache that kept the golden."""
    # For the module that the step looks at, whatever compiled them.
    compiled = (entry for entry in cache.list_entries() if entry.name in step.needs and _MODULE in entry.files)
    counted = ((Kept.from_dict(entry.metadata).statistics.get("dispatch_count"), entry) for entry in compiled)
    kept = [(count, entry) for count, entry in counted if count is not None and count <= limit]
    if not kept:
        return ""
    count, newest = max(kept, key=lambda item: item[1].created)
    found = cache.lookup(newest.key).entry
    before = _list_names(found.files[_MODULE]) if found is not None else []
    after = _list_names(step.input(_MODULE).path)
    if not (before and after):
        return ""
    new, gone = find_new_and_gone(before, after)
    changes = "; ".join(f"{what}: {', '.join(names)}" for what, names in (("new", new), ("gone", gone)) if names)
    dispatches = f"{count} dispatch" + ("" if count == 1 else "es")
    day = newest.created[:16].replace("T", " ")
    return f"against the newest module with {dispatches} (of {day} UTC): {changes or 'the same names'}"


def _list_names(module: Path | str) -> list[str]:
    """Names of its dispatches; none where it is not an archive, as which the compiler writes modules."""
    if not zipfile.is_zipfile(module):
        return []
    with zipfile.ZipFile(module) as archive:
        parts = (item for item in archive.infolist() if not item.filename.startswith(_CONSTANTS))
        return find_dispatch_names(map(archive.read, parts))
