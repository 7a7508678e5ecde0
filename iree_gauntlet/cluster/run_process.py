"""The process of one run on a worker: plans the same run in the worker's folders, and does the steps it receives.

The process can also execute a comparison, in rounds. Messages are lines of standard input and output. The first input
line is the run, and the first output line is the result of planning it. The process and all its children end when its
input ends, so they end with the worker. Modules that only comparisons need, such as NumPy, are imported only for them.
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
    OrderAnswer,
    RunProcessError,
    RunRejectionError,
    UnfitDeviceError,
    decode,
    encode,
    replace_paths,
)
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.engine.modules.modules import mark_rebuilt
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.run import make_setup, open_worker_run
from iree_gauntlet.journal_format import JOURNAL, read_events
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.results import Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.cluster.link import ModuleLocation, Order, RunOrder
    from iree_gauntlet.engine.rounds.blocks import Pair
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.run import WorkerRun
    from iree_gauntlet.experiments.session_verdicts import CompareSettings
    from iree_gauntlet.steps import Step


# The limits of each file, and of all files, sent with a result. Only beginning and end of a larger file are sent.
_MAX_FILE_BYTES = 256 << 10
_MAX_STEP_BYTES = 1 << 20
_SMALL_FILE_SUFFIXES = frozenset({".txt", ".json"})


class _Output:
    """Standard output as a stream of lines, until it is closed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._mutex = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Discard all further messages."""
        with self._mutex:
            self._closed = True

    def write(self, number: int | None, message: object) -> None:
        """Write the answer to an order, or the result of planning; a lost reader is ignored, as standard input ends."""
        line = encode((number, message))
        with self._mutex, suppress(BrokenPipeError, ValueError):
            if not self._closed:
                self._stream.write(line)
                self._stream.flush()


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The result of a step on this worker, and the URLs of missing files that made the step fail."""

    result: Result
    missing: tuple[str, ...] = ()

    def as_answer(self, path_map: Mapping[str, str]) -> OrderAnswer:
        """Convert the result to an answer, with some paths replaced."""
        return OrderAnswer(replace_paths(self.result.as_dict(), path_map), missing=self.missing)


class LocalSteps:
    """The steps, on this worker, of a run that was started on another machine."""

    def __init__(self, run: WorkerRun) -> None:
        self.run = run
        self._engine = run.engine
        self._store = run.workbench.store
        self._steps = {step.id: step for step in run.steps}
        self._locks = {step.id: threading.Lock() for step in run.steps}
        self._results: dict[str, Result] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def place_on_device(self, name: str, device: str) -> Step:
        """Return the step for a device, which may have another name on this worker."""
        step = self._steps[name]
        if not device or is_cpu(device) or step.command is None:
            return step
        argv = tuple(f"--device={device}" if word.startswith("--device=") else word for word in step.command.argv)
        resources = replace(step.resources, device=device)
        return replace(step, command=replace(step.command, argv=argv), resources=resources)

    def do(self, step: Step, cached_modules: Mapping[str, ModuleLocation]) -> LocalResult:
        """Do a step, and the steps that it needs."""
        with self._locks[step.id]:
            failure = self.do_dependencies(step, cached_modules)
            if failure is not None:
                return failure
            result = self._results[step.id] = self._engine.result_of(step)
        return LocalResult(result, self._list_missing(step) if result.verdict.is_error else ())

    def do_dependencies(self, step: Step, cached_modules: Mapping[str, ModuleLocation]) -> LocalResult | None:
        """Do the needed steps whose modules are neither here nor in `cached_modules`; return the first failure."""
        for name in step.needs:
            needed_step = self._steps.get(name)
            if needed_step is None:
                continue
            with self._locks[name]:
                result = self._results.get(name)
                if result is None or not result.verdict.counts_as_pass:
                    if name in cached_modules:
                        # Another worker built the module for this run, so it needs no rebuild here.
                        mark_rebuilt(self._engine.options.rebuilt_marks_dir, cached_modules[name].key)
                    elif (failure := self.do_dependencies(needed_step, cached_modules)) is not None:
                        return failure
                    result = self._results[name] = self._engine.result_of(needed_step)
                    if not result.verdict.counts_as_pass and name in cached_modules:
                        # The other worker's module is unavailable: build it here, with all steps that it needs.
                        if (failure := self.do_dependencies(needed_step, {})) is not None:
                            return failure
                        result = self._results[name] = self._engine.result_of(needed_step)
            if not result.verdict.counts_as_pass:
                missing = self._list_missing(needed_step) if needed_step.stage.row.fetches else ()
                reason = f"{name} failed on the worker: {result.reason}"
                return LocalResult(replace(result, verdict=Verdict.ERROR, reason=reason), missing)
        return None

    def _list_missing(self, step: Step) -> tuple[str, ...]:
        # A missing expected output does not make a fetch fail.
        optional_roles = (EXPECTED_OUTPUT,) if step.stage.row.fetches else ()
        needed_urls = (item.url for item in step.inputs if item.url and item.role not in optional_roles)
        return tuple(url for url in needed_urls if not self._store.is_present(url))


class RunExecutor:
    """Executes the steps of a run on a worker."""

    def __init__(self, runs: Sequence[WorkerRun], health: DeviceHealth, path_map: Mapping[str, str]) -> None:
        self._sides = [LocalSteps(run) for run in runs]
        self._health = health
        self._path_map = path_map

    def do(self, order: Order) -> OrderAnswer:
        """Do an order's step; return the answer with the step's small files.

        Raises:
            UnfitDeviceError: the device of the step fails its health check.
        """
        (local_steps,) = self._sides
        if order.step not in local_steps:
            return OrderAnswer(Result(Verdict.ERROR, f"{order.step} is not in this worker's plan").as_dict())
        step = replace(local_steps.place_on_device(order.step, order.device), goldens=order.goldens)
        try:
            device_error = self._health.check_if_due(order.device, for_timing=step.resources.exclusive)
        except GauntletError as error:
            # The machine was not available for the check, so the step could not have run either.
            return OrderAnswer(Result(Verdict.ERROR, error.message, tail=(error.hint,), notes=step.notes).as_dict())
        if device_error:
            raise UnfitDeviceError(device_error)
        outcome = local_steps.do(step, {module.step: module for module in order.cached_modules})
        if outcome.result.crashed or outcome.result.timed_out:
            self._health.distrust(order.device)
        files = tuple(_read_small_files(Path(step.folder), local_steps.run.session.folder))
        return replace(outcome.as_answer(self._path_map), files=files)

    def release_machine(self) -> None:
        """While there is no work, release everything that keeps the machine from being quiet."""
        for side in self._sides:
            side.run.engine.release_machine()

    def abort(self) -> None:
        """End the running steps."""
        for side in self._sides:
            side.run.engine.abort()


def _read_small_files(folder: Path, run_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name relative to the run's folder, and its content; for a large file, its beginning and end."""
    remaining_bytes = _MAX_STEP_BYTES
    for path in sorted((*folder.glob("*"), *folder.glob("attempt*/*"))):
        if path.suffix not in _SMALL_FILE_SUFFIXES or not path.is_file():
            continue
        try:
            file_bytes = path.read_bytes()
        except OSError:
            continue
        max_bytes = min(_MAX_FILE_BYTES, remaining_bytes)
        if len(file_bytes) > max_bytes:
            gap = f"\n[… {len(file_bytes) - max_bytes} bytes left on the worker …]\n".encode()
            file_bytes = file_bytes[: max_bytes // 2] + gap + file_bytes[len(file_bytes) - max_bytes // 2 :]
        remaining_bytes = max(0, remaining_bytes - len(file_bytes))
        yield str(path.relative_to(run_dir)), file_bytes


class ComparisonExecutor(RunExecutor):
    """Executes a comparison on a worker, with a run for each side."""

    def __init__(
        self,
        runs: Sequence[WorkerRun],
        health: DeviceHealth,
        path_map: Mapping[str, str],
        settings: CompareSettings,
        folder: Path,
    ) -> None:
        super().__init__(runs, health, path_map)
        self._settings = settings
        self._folder = folder
        self._numbers = count()
        # The session of the model that is being measured.
        self._session: Session[EventLog] | None = None
        self._is_cancelled = False

    def do(self, order: Order) -> OrderAnswer:
        """Do an order's rounds; return the answer with the events of the measurement."""
        from iree_gauntlet.experiments.sides import make_pair  # noqa: PLC0415 - a run compares nothing

        steps = []
        for name, side in zip("AB", self._sides, strict=True):
            step = side.place_on_device(order.step, order.device)
            side_modules = [item for item in order.cached_modules if item.step.startswith(f"{name} ")]
            cached_modules = {item.step.removeprefix(f"{name} "): item for item in side_modules}
            if (failure := side.do_dependencies(step, cached_modules)) is not None:
                result = replace(failure.result, reason=f"{name}: {failure.result.reason}")
                return replace(failure, result=result).as_answer(self._path_map)
            steps.append(step)
        # Make both sides' runs release what keeps the machine from being quiet.
        self.release_machine()
        try:
            if device_error := self._health.check_if_due(order.device, for_timing=True):
                raise UnfitDeviceError(device_error)
            settings = self._settings
            pair = make_pair(steps[0].chain, (steps[0], steps[1]), settings.metric, settings.rounds)
            events = self._measure(pair, order.budget_seconds)
        except GauntletError as error:
            return OrderAnswer(Result(Verdict.ERROR, error.message, tail=(error.hint,)).as_dict())
        return OrderAnswer(Result(Verdict.PASSED).as_dict(), events=tuple(replace_paths(events, self._path_map)))

    def abort(self) -> None:
        """End the running steps."""
        super().abort()
        self._is_cancelled = True
        if self._session is not None:
            self._session.cancel()

    def _measure(self, pair: Pair, seconds: float) -> list[dict[str, Any]]:
        """Measure the rounds of a model; return the events of its journal."""
        from iree_gauntlet.experiments.session_verdicts import Comparer, judge  # noqa: PLC0415 - a run compares nothing
        from iree_gauntlet.experiments.sides import WORKER_END_EVENT, SideTools, explain_differences  # noqa: PLC0415 - a run compares nothing

        folder = self._folder / "rounds" / str(next(self._numbers))
        folder.mkdir(parents=True)
        rules = replace(self._settings.rules, budget_seconds=seconds)
        with EventLog(folder / JOURNAL, lambda: datetime.now(UTC)) as log:
            with open_session(self._folder, log, Progress()) as session:
                self._session = session
                if self._is_cancelled:
                    session.cancel()
                evidence = Comparer(session, rules).run([pair], {})
                failure = evidence[pair.chain].failure
                log.write(WORKER_END_EVENT, {"machine": read_machine_facts().as_dict(), "failure": failure})
                verdicts = judge(evidence, rules)
                if self._settings.metric == "time":
                    a, b = (SideTools.of(side.run.workbench, side.run.steps) for side in self._sides)
                    explain_differences(session, verdicts, [pair], (a, b), lambda _: None)
            self._session = None
        events = read_events(folder / JOURNAL)
        shutil.rmtree(folder)
        return events


def _join_run(order: RunOrder, stack: ExitStack) -> tuple[RunExecutor, dict[str, str]]:
    """Join a run until the stack is closed; return its executor, and the error messages of unusable devices."""
    runs = []
    path_map = dict(order.path_map)
    for shared_run in order.runs:
        request = shared_run.request
        # The baseline run and its metrics exist only on the machine where the run was started.
        chosen_run = replace(
            make_setup(replace(request, execution=replace(request.execution, baseline=""))), request=request
        )
        run = stack.enter_context(open_worker_run(chosen_run, Progress()))
        shared_run.require_same_iree(run.workbench.toolchain)
        path_map |= shared_run.map_paths(run.session.folder, run.workbench)
        runs.append(run)
    health, device_errors = DeviceHealth.of(runs[0], order.devices)
    if order.comparison is None:
        return RunExecutor(runs, health, path_map), device_errors
    from iree_gauntlet.experiments.compare import make_compare_settings  # noqa: PLC0415 - a run compares nothing

    settings = make_compare_settings(order.comparison, order.runs[0].request.execution, local=True)
    return ComparisonExecutor(runs, health, path_map, settings, Path(order.folder)), device_errors


def main() -> None:
    """Take part in a run until standard input ends."""
    stream = os.fdopen(os.dup(1), "wb")
    # From here on, everything that is printed goes to the log.
    os.dup2(2, 1)
    output = _Output(stream)
    lines = sys.stdin.buffer
    order: RunOrder = decode(lines.readline())
    # If the input ends, the session cancels the running steps, and the pool waits for them.
    with ExitStack() as stack:
        try:
            executor, device_errors = _join_run(order, stack)
        except GauntletError as error:
            output.write(None, RunRejectionError(error.on_one_line))
            return
        output.write(None, device_errors)
        jobs = order.runs[0].request.execution.jobs
        pool = stack.enter_context(ThreadPoolExecutor(jobs, thread_name_prefix="step"))

        def do_order(number: int, message: Order) -> None:
            try:
                response: OrderAnswer | UnfitDeviceError = executor.do(message)
            except UnfitDeviceError as error:
                response = error
            except BaseException as error:
                # This is a defect of the toolkit. Answer, so that the caller does not wait; the log has the traceback.
                output.write(number, RunProcessError(f"{type(error).__name__}: {error}"))
                traceback.print_exc()
                raise
            executor.release_machine()
            output.write(number, response)

        try:
            while line := lines.readline():
                number, message = decode(line)
                pool.submit(do_order, number, message)
        finally:
            # Discard the results of steps that are cut short.
            output.close()
            executor.abort()


if __name__ == "__main__":
    main()
