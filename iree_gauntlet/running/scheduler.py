"""Which step runs when: a graph of steps on a few threads, and exclusive steps alone afterwards.

Knows nothing of what a step does: `work` does it and returns its verdict.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.running.steps import Step

__all__ = ["Limits", "Scheduler"]

_FETCHES_AT_ONCE = 4
_GOOD = (Verdict.PASSED, Verdict.XPASSED)
_BAD = (Verdict.FAILED, Verdict.ERROR, Verdict.XPASSED)


@dataclass(frozen=True, slots=True)
class Limits:
    """What may run at once.

    Attributes:
        jobs: steps that use cores.
        fail_fast: start nothing more after the first failure or error.
        fits: whether the memory for one more step is free while others run.
    """

    jobs: int
    fail_fast: bool
    fits: Callable[[Step], bool]


class Scheduler:
    """Runs steps in the order of their needs.

    Args:
        steps: the steps, in any order; of those that could start, the earlier one starts first.
        finished: verdicts of steps that are not to be run again, by id.
        limits: what may run at once.
        work: runs a step and returns its verdict; called from several threads.
        skip: records a step that does not run, with the reason.
        abort: ends what runs, when an exception (a signal's, or a bug's) leaves the scheduler.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        finished: Mapping[str, Verdict],
        limits: Limits,
        work: Callable[[Step], Verdict],
        skip: Callable[[Step, str], Verdict],
        abort: Callable[[], None],
    ) -> None:
        self._waiting = {step.id: step for step in steps if step.id not in finished}
        self._verdicts = dict(finished)
        self._known = {step.id for step in steps}
        self._limits = limits
        self._work = work
        self._skip = skip
        self._abort = abort
        self._running: dict[Future[Verdict], Step] = {}
        self._stopped_by = ""
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Starts nothing more; `run` returns when what runs has ended."""
        self._cancelled.set()

    def run(self) -> dict[str, Verdict]:
        """Runs everything and returns the verdicts by step id.

        Raises:
            Whatever `work` raises, after what runs beside it has ended.
        """
        with ThreadPoolExecutor(self._limits.jobs + _FETCHES_AT_ONCE, thread_name_prefix="step") as pool:
            try:
                while not self._cancelled.is_set():
                    self._skip_what_cannot_run()
                    for step in self._startable():
                        self._running[pool.submit(self._work, step)] = self._waiting.pop(step.id)
                    if not self._running:
                        break
                    self._collect()
            except BaseException:
                # The pool waits for its threads before it lets the exception out.
                self._abort()
                raise
            finally:
                self._cancelled.set()
        while self._running:
            self._collect()
        return self._verdicts

    def _collect(self) -> None:
        # The time limit lets a signal's exception through between two waits.
        done, _ = wait(self._running, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            step = self._running.pop(future)
            verdict = future.result()
            self._verdicts[step.id] = verdict
            if self._limits.fail_fast and verdict in _BAD and not self._stopped_by:
                self._stopped_by = step.id

    def _skip_what_cannot_run(self) -> None:
        progress = True
        while progress:
            progress = False
            for step in list(self._waiting.values()):
                reason = self._obstacle(step)
                if reason:
                    self._verdicts[step.id] = self._skip(self._waiting.pop(step.id), reason)
                    progress = True

    def _obstacle(self, step: Step) -> str:
        if self._stopped_by:
            return f"stopped by --fail-fast after {self._stopped_by}"
        for need in step.needs:
            verdict = self._verdicts.get(need)
            if verdict is not None and verdict not in _GOOD:
                return f"{need} {_PAST[verdict]}"
            if verdict is None and need not in self._known:
                return f"{need} is not part of this run"
        return ""

    def _startable(self) -> list[Step]:
        """Steps to start now: what fits beside what runs, and an exclusive one only when nothing else is left."""
        running = list(self._running.values())
        if any(step.resources.exclusive for step in running):
            return []
        busy = sum(step.resources.cores > 0 for step in running)
        fetching = sum(step.stage is Stage.FETCH for step in running)
        devices = {step.resources.device for step in running}
        chosen: list[Step] = []
        for step in self._waiting.values():
            if step.resources.exclusive or any(need not in self._verdicts for need in step.needs):
                continue
            if step.stage is Stage.FETCH:
                if fetching < _FETCHES_AT_ONCE:
                    fetching += 1
                    chosen.append(step)
                continue
            if step.resources.cores == 0:
                chosen.append(step)
                continue
            device = step.resources.device
            shared = not device or device.startswith("local-") or device not in devices
            if shared and busy < self._limits.jobs and (busy == 0 or self._limits.fits(step)):
                busy += 1
                devices.add(device)
                chosen.append(step)
        if not chosen and not running:
            exclusive = [step for step in self._waiting.values() if step.resources.exclusive]
            chosen = [step for step in exclusive if all(need in self._verdicts for need in step.needs)][:1]
        return chosen


_PAST = {
    Verdict.FAILED: "failed",
    Verdict.ERROR: "ended in an error",
    Verdict.SKIPPED: "was skipped",
    Verdict.XFAILED: "failed as expected",
    Verdict.INCONCLUSIVE: "was inconclusive",
}
