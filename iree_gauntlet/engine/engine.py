"""A run: executes a plan under the journal, the locks and the scheduler, and reports progress."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import EXPECTED_OUTPUT, Stage, Verdict, exit_code_of
from iree_gauntlet.engine.judging import with_expectation
from iree_gauntlet.engine.modules.modules import ModuleMaker
from iree_gauntlet.engine.modules.shared_modules import until_cancelled
from iree_gauntlet.engine.rounds.machine_lock import QuietStretch
from iree_gauntlet.engine.scheduler import ScheduleLimits, Scheduler
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, MachinesLostError
from iree_gauntlet.figures import counted
from iree_gauntlet.measuring.machine.machine_state import free_memory
from iree_gauntlet.results import CacheUse, Fetched, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.engine.rounds.taken_rounds import ConfirmRules
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.records.event_log import Journal
    from iree_gauntlet.steps import Step


_MEMORY_SECONDS = 0.05
_MEMORY_RESERVE = 2 << 30
_MEMORY_PER_PROGRAM = 8


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run.

    Attributes:
        jobs: steps at once before the benchmarks.
        fail_fast: start nothing more after the first failure.
        made_again: with --force-recompile, the folder in which all processes of a run note which modules they have
            made again; None to use what is in the cache.
        lenient: an unexpected pass does not fail the run.
        confirm: how a broken golden time is confirmed; None to fail at once, by the dialects' plain rule.
    """

    jobs: int
    fail_fast: bool
    made_again: Path | None
    lenient: bool
    confirm: ConfirmRules | None


class StepRunner(Protocol):
    """Runs the steps of a plan."""

    def run(self) -> dict[str, Verdict]:
        """Runs everything and returns the verdicts by step id.

        Raises:
            BaseException: what a signal handler raises, after what runs was told to end.
        """


class Elsewhere(Protocol):
    """Other machines, which perform the steps of a plan."""

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """The plan, where the devices that it asks for are there; as `run_start.on_devices_here`.

        Args:
            plan: what is to be done.
            optional: what no device there can do is skipped.

        Raises:
            UsageError: a device is not there.
        """

    def runner(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> StepRunner:
        """What runs steps there; arguments as for `Engine.perform`.

        It calls `engine.begin` when a step starts, `engine.conclude` with its result, and `engine.skip` for one that
        cannot run.
        """


@dataclass(slots=True)
class Performed:
    """What was performed.

    Attributes:
        verdicts: of all steps, by id.
        code: the result; INTERRUPTED where Ctrl-C or SIGTERM ended it.
    """

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    code: ExitCode = ExitCode.OK


@dataclass
class Engine:
    """Executes steps.

    Attributes:
        session: what it runs in; its log is the run's journal.
        workbench: the caches and the IREE.
        options: how to run.
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
    # Expected outputs that a fetch did not get, by URL.
    _not_had: dict[str, ArtifactError] = field(default_factory=dict)
    # Asked not more often than it could have changed by what was started last.
    _memory: int | None = None
    _memory_asked: float = -math.inf

    def __post_init__(self) -> None:
        self._quiet = QuietStretch(self.session.locks, self.session.progress.waiting)
        self._maker = ModuleMaker(self.session, self.workbench, self.options.made_again)

    def run(self, steps: Sequence[Step], finished: Mapping[str, Verdict]) -> ExitCode:
        """Runs steps and journals their results, up to the `end` event.

        Args:
            steps: a plan's steps.
            finished: verdicts of the steps that an earlier part of this run has done.

        Returns:
            The exit code; INTERRUPTED where Ctrl-C or SIGTERM ended it.
        """
        with self.recorded() as performed:
            performed.verdicts = self.perform(steps, finished)
        return performed.code

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
            Verdicts by step id, those that were finished before among them.

        Raises:
            BaseException: what a signal handler raises; what runs has been ended then, and the engine with it.
        """
        if self.elsewhere is not None:
            return self.elsewhere.runner(steps, finished, self).run()
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
        """Journals that a step starts.

        Args:
            step: which one.
            worker: who does it, where that is another machine.
            again: it was begun before by another, which the journal knows.
        """
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
                if step.stage is Stage.THRESHOLD:
                    self._require_expected(step)
                with self._hold_locks(step) as waited:
                    result = self.performers.get(step.stage, self._execute)(step)
        except GauntletError as error:
            said = said or isinstance(error, ArtifactError)
            notes = (*step.notes, *(error.notes if isinstance(error, ArtifactError) else ()))
            result = Result(Verdict.ERROR, error.what, notes=notes, tail=tuple(error.hint.splitlines()))
        except OSError as error:
            # Of this step alone: a full disk, a file that somebody has removed.
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            result = Result(Verdict.ERROR, what, notes=step.notes)
        if result.verdict in (Verdict.FAILED, Verdict.ERROR) and not said:
            result = _with_gone_input(step, result)
        waited += result.waited_seconds
        result = with_expectation(step, result, lenient=self.options.lenient)
        # Less than a millisecond is the cost of asking.
        return replace(result, seconds=round(time.monotonic() - began - waited, 6), waited_seconds=round(waited, 3))

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
                # A count is the same whatever else there is: it waits for nobody.
                if step.stage is not Stage.COUNT:
                    stack.enter_context(self._quiet.held())
                if device and not device.startswith("local-"):
                    stack.enter_context(self.session.locks.device_lock(device, self.session.progress.waiting))
            yield time.monotonic() - began

    def _execute(self, step: Step) -> Result:
        match step.stage:
            case Stage.FETCH:
                return self._fetch(step)
            case Stage.IMPORT | Stage.PARAMETERS | Stage.COMPILE | Stage.REFERENCE:
                return self._maker.make(step)
            case Stage.COUNT:
                from iree_gauntlet.engine.performance import check_instructions  # noqa: PLC0415 - counts are rare

                return check_instructions(step, self._maker.make(step), self.workbench.release)
            case Stage.THRESHOLD:
                from iree_gauntlet.engine.threshold import check_error, check_threshold  # noqa: PLC0415 - it brings NumPy

                return check_error(step, check_threshold(step, self.session.processes))
            case Stage.COMPSTAT:
                from iree_gauntlet.engine.performance import check_compile_statistics  # noqa: PLC0415

                return check_compile_statistics(step, self.workbench.release, self.workbench.modules)
            case Stage.BENCHMARK:
                from iree_gauntlet.engine.performance import run_benchmark  # noqa: PLC0415

                return run_benchmark(step, self.session.processes, self.options.confirm, self.session.cancelled)
            case Stage.EXPORT:
                raise TypeError(f"{step.id}: nothing that exports was given")

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
        """Makes sure of the expected outputs of a threshold step, as far as they are fetched."""
        expected = [item.url for item in step.inputs if item.role == EXPECTED_OUTPUT and item.url]
        errors = [error for url in expected if (error := self._not_had.pop(url, None))]
        if errors:
            errors[0].notes += tuple(error.what for error in errors[1:])
            raise errors[0]
        for url in expected:
            if not self.workbench.store.present(url):
                self._fetched(url)


def _with_gone_input(step: Step, result: Result) -> Result:
    """The result of a step that did not pass: where an input of its tool is not there, that is why."""
    gone = [item.path for item in step.inputs if step.command is not None and not Path(item.path).exists()]
    if not gone:
        return result
    what = f"{gone[0]} is not there any more: was the cache or the run's folder cleared while this ran?"
    hint = "Run again; `--resume` makes what is missing."
    return Result(Verdict.ERROR, what, notes=step.notes, tail=(hint,), command=result.command, log=result.log)
