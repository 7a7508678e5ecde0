"""The process of one run on a worker: plans the same run in its own folders, and does the steps that it is given.

Or that of a comparison, which takes rounds. Standard input has a line for each message, standard output likewise; the
first line of each is the run and what came of planning it. It ends when its input does, and all that it has started
with it: a worker that dies takes it along. What only comparisons need, NumPy among it, is imported for these alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from iree_gauntlet.cases import EXPECTED_OUTPUT, Verdict
from iree_gauntlet.cluster.health import DeviceHealth
from iree_gauntlet.cluster.link import (
    BrokenRunError,
    OrderAnswer,
    RefusedRunError,
    UnfitDeviceError,
    decode,
    encode,
    with_paths,
)
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.engine.modules.modules import note_made_again
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.run import choose, opened
from iree_gauntlet.journal_format import JOURNAL, read_events
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.results import Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.cluster.link import Made, Order, RunOrder
    from iree_gauntlet.engine.rounds.blocks import Pair
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.run import Opened
    from iree_gauntlet.experiments.session_verdicts import CompareSettings
    from iree_gauntlet.steps import Step


# Of files that go back with a result, each and together; of a longer one beginning and end.
_MOST_OF_A_FILE = 256 << 10
_MOST_OF_A_STEP = 1 << 20
_SMALL_FILES = frozenset({".txt", ".json"})


class _Output:
    """Standard output, a line at a time, until it is closed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._mutex = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Nobody is to read what comes from now on."""
        with self._mutex:
            self._closed = True

    def write(self, number: int | None, message: object) -> None:
        """Answers an order, or says how the run has begun; who read it may be gone, which standard input says too."""
        line = encode((number, message))
        with self._mutex, suppress(BrokenPipeError, ValueError):
            if not self._closed:
                self._stream.write(line)
                self._stream.flush()


@dataclass(frozen=True, slots=True)
class Done:
    """What has become of a step here, and the URLs of files that it failed for want of."""

    result: Result
    missing: tuple[str, ...] = ()

    def as_answer(self, renamed: Mapping[str, str]) -> OrderAnswer:
        """As an answer, with other paths in place of some."""
        return OrderAnswer(with_paths(self.result.as_dict(), renamed), missing=self.missing)


class HereSteps:
    """The steps of a run that was started elsewhere."""

    def __init__(self, run: Opened) -> None:
        self.run = run
        self._engine = run.engine
        self._store = run.machine.store
        self._steps = {step.id: step for step in run.steps}
        self._locks = {step.id: threading.Lock() for step in run.steps}
        self._done: dict[str, Result] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def on_device(self, name: str, device: str) -> Step:
        """A step, on a device that may be called something else here."""
        step = self._steps[name]
        if not device or is_cpu(device) or step.command is None:
            return step
        argv = tuple(f"--device={device}" if word.startswith("--device=") else word for word in step.command.argv)
        resources = replace(step.resources, device=device)
        return replace(step, command=replace(step.command, argv=argv), resources=resources)

    def do(self, step: Step, made: Mapping[str, Made]) -> Done:
        """Does a step, and what it needs."""
        with self._locks[step.id]:
            failed = self.needed(step, made)
            if failed is not None:
                return failed
            result = self._done[step.id] = self._engine.result_of(step)
        return Done(result, self._list_missing(step) if result.verdict.is_error else ())

    def needed(self, step: Step, made: Mapping[str, Made]) -> Done | None:
        """Does what a step needs and neither this worker nor others have `made`; how the step ends where that fails."""
        for name in step.needs:
            need = self._steps.get(name)
            if need is None:
                continue
            with self._locks[name]:
                done = self._done.get(name)
                if done is None or not done.verdict.counts_as_pass:
                    if name in made:
                        # It was made for this run, if elsewhere.
                        note_made_again(self._engine.options.made_again, made[name].key)
                    elif (failed := self.needed(need, made)) is not None:
                        return failed
                    done = self._done[name] = self._engine.result_of(need)
                    if not done.verdict.counts_as_pass and name in made:
                        # What others have made is not to be had: then with all that it needs.
                        if (failed := self.needed(need, {})) is not None:
                            return failed
                        done = self._done[name] = self._engine.result_of(need)
            if not done.verdict.counts_as_pass:
                missing = self._list_missing(need) if need.stage.row.fetches else ()
                reason = f"{name} failed here: {done.reason}"
                return Done(replace(done, verdict=Verdict.ERROR, reason=reason), missing)
        return None

    def _list_missing(self, step: Step) -> tuple[str, ...]:
        # What it failed for want of: a fetch goes on without these.
        left = (EXPECTED_OUTPUT,) if step.stage.row.fetches else ()
        wanted = (item.url for item in step.inputs if item.url and item.role not in left)
        return tuple(url for url in wanted if not self._store.present(url))


class RunPart:
    """What a worker does of a run."""

    def __init__(self, runs: Sequence[Opened], health: DeviceHealth, renamed: Mapping[str, str]) -> None:
        self._sides = [HereSteps(run) for run in runs]
        self._health = health
        self._renamed = renamed

    def do(self, order: Order) -> OrderAnswer:
        """The answer to an order, with the step's small files.

        Raises:
            UnfitDeviceError: the device that it is to use does not pass.
        """
        (here,) = self._sides
        if order.step not in here:
            return OrderAnswer(Result(Verdict.ERROR, f"{order.step} is not in this worker's plan").as_dict())
        step = replace(here.on_device(order.step, order.device), goldens=order.goldens)
        try:
            unfit = self._health.due(order.device, timed=step.resources.exclusive)
        except GauntletError as error:
            # The machine was not to be had for it: the step would have fared alike.
            return OrderAnswer(Result(Verdict.ERROR, error.what, tail=(error.hint,), notes=step.notes).as_dict())
        if unfit:
            raise UnfitDeviceError(unfit)
        done = here.do(step, {item.step: item for item in order.made})
        if done.result.crashed or done.result.timed_out:
            self._health.distrust(order.device)
        files = tuple(_read_small_files(Path(step.folder), here.run.session.folder))
        return replace(done.as_answer(self._renamed), files=files)

    def rest(self) -> None:
        """Nothing is to be done for now."""
        for side in self._sides:
            side.run.engine.rest()

    def abort(self) -> None:
        """Ends what is under way."""
        for side in self._sides:
            side.run.engine.abort()


def _read_small_files(folder: Path, run_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Names below a run's folder, and contents; of a long one, its beginning and end."""
    left = _MOST_OF_A_STEP
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix not in _SMALL_FILES or not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except OSError:
            continue
        most = min(_MOST_OF_A_FILE, left)
        if len(content) > most:
            cut = f"\n[… {len(content) - most} bytes left on the worker …]\n".encode()
            content = content[: most // 2] + cut + content[len(content) - most // 2 :]
        left = max(0, left - len(content))
        yield str(path.relative_to(run_dir)), content


class RoundsPart(RunPart):
    """What a worker does of a comparison, of whose sides it has the runs."""

    def __init__(
        self,
        runs: Sequence[Opened],
        health: DeviceHealth,
        renamed: Mapping[str, str],
        settings: CompareSettings,
        folder: Path,
    ) -> None:
        super().__init__(runs, health, renamed)
        self._settings = settings
        self._folder = folder
        self._numbers = count()
        # Of the model that is being measured.
        self._session: Session[EventLog] | None = None
        self._ended = False

    def do(self, order: Order) -> OrderAnswer:
        """The answer to an order, with the events of what was measured."""
        from iree_gauntlet.experiments.sides import pair_of  # noqa: PLC0415 - a run compares nothing

        steps = []
        for name, side in zip("AB", self._sides, strict=True):
            step = side.on_device(order.step, order.device)
            own = [item for item in order.made if item.step.startswith(f"{name} ")]
            made = {item.step.removeprefix(f"{name} "): item for item in own}
            if (failed := side.needed(step, made)) is not None:
                result = replace(failed.result, reason=f"{name}: {failed.result.reason}")
                return replace(failed, result=result).as_answer(self._renamed)
            steps.append(step)
        # Nothing of the sides' keeps the machine from being quiet.
        self.rest()
        try:
            if unfit := self._health.due(order.device, timed=True):
                raise UnfitDeviceError(unfit)
            settings = self._settings
            pair = pair_of(steps[0].chain, (steps[0], steps[1]), settings.metric, settings.rounds)
            events = self._measure(pair, order.seconds)
        except GauntletError as error:
            return OrderAnswer(Result(Verdict.ERROR, error.what, tail=(error.hint,)).as_dict())
        return OrderAnswer(Result(Verdict.PASSED).as_dict(), events=tuple(with_paths(events, self._renamed)))

    def abort(self) -> None:
        """Ends what is under way."""
        super().abort()
        self._ended = True
        if self._session is not None:
            self._session.cancel()

    def _measure(self, pair: Pair, seconds: float) -> list[dict[str, Any]]:
        """Takes the rounds of a model; what its log has then."""
        from iree_gauntlet.experiments.session_verdicts import Comparer, judge  # noqa: PLC0415 - a run compares nothing
        from iree_gauntlet.experiments.sides import ENDED, SideTools, explain_differences  # noqa: PLC0415 - a run compares nothing

        folder = self._folder / "rounds" / str(next(self._numbers))
        folder.mkdir(parents=True)
        rules = replace(self._settings.rules, budget_seconds=seconds)
        with EventLog(folder / JOURNAL, lambda: datetime.now(UTC)) as log:
            with open_session(self._folder, log, Progress()) as session:
                self._session = session
                if self._ended:
                    session.cancel()
                evidence = Comparer(session, rules).run([pair], {})
                failure = evidence[pair.chain].failure
                log.write(ENDED, {"machine": read_machine_facts().as_dict(), "failure": failure})
                verdicts = judge(evidence, rules)
                if self._settings.metric == "time":
                    a, b = (SideTools.of(side.run.machine, side.run.steps) for side in self._sides)
                    explain_differences(session, verdicts, [pair], (a, b), lambda _: None)
            self._session = None
        events = read_events(folder / JOURNAL)
        shutil.rmtree(folder)
        return events


def _take_part(order: RunOrder, stack: ExitStack) -> tuple[RunPart, dict[str, str]]:
    """Takes part in a run, until the stack is left; the devices that it does without come along, with the reasons."""
    runs = []
    renamed = dict(order.places)
    for shared in order.runs:
        request = shared.request
        # The run that it is held against is where it was started, as are its figures.
        chosen = replace(choose(replace(request, conduct=replace(request.conduct, baseline=""))), request=request)
        run = stack.enter_context(opened(chosen, Progress()))
        shared.require_its_iree(run.machine.toolchain)
        renamed |= shared.renamed_from(run.session.folder, run.machine)
        runs.append(run)
    health, unfit = DeviceHealth.of(runs[0], order.devices)
    if order.comparison is None:
        return RunPart(runs, health, renamed), unfit
    from iree_gauntlet.experiments.compare import compare_settings  # noqa: PLC0415 - a run compares nothing

    settings = compare_settings(order.comparison, order.runs[0].request.conduct, here=True)
    return RoundsPart(runs, health, renamed, settings, Path(order.folder)), unfit


def main() -> None:
    """Takes part in a run until standard input ends."""
    stream = os.fdopen(os.dup(1), "wb")
    # What anything here prints goes to the log.
    os.dup2(2, 1)
    output = _Output(stream)
    lines = sys.stdin.buffer
    order: RunOrder = decode(lines.readline())
    # Steps that are under way when the input ends are cancelled by the session, and are waited for.
    with ExitStack() as stack:
        try:
            part, unfit = _take_part(order, stack)
        except GauntletError as error:
            output.write(None, RefusedRunError(error.on_one_line))
            return
        output.write(None, unfit)
        jobs = order.runs[0].request.conduct.jobs
        pool = stack.enter_context(ThreadPoolExecutor(jobs, thread_name_prefix="step"))

        def answer(number: int, message: Order) -> None:
            try:
                said: OrderAnswer | UnfitDeviceError = part.do(message)
            except UnfitDeviceError as error:
                said = error
            except BaseException as error:
                # A defect of ours: whoever asked is not left waiting, and the log has the rest.
                output.write(number, BrokenRunError(f"{type(error).__name__}: {error}"))
                traceback.print_exc()
                raise
            part.rest()
            output.write(number, said)

        try:
            while line := lines.readline():
                number, message = decode(line)
                pool.submit(answer, number, message)
        finally:
            # What is cut short has no result.
            output.close()
            part.abort()


if __name__ == "__main__":
    main()
