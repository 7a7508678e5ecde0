"""Runs the steps of a plan on a few threads: a graph of steps, and exclusive steps alone afterwards.

Knows nothing of what a step does: `work` does it and returns its verdict. What may run when, the agenda knows. A thread
that is done with a step takes the next one itself, so that thousands of small steps need no hand-over.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from iree_gauntlet.engine.ready_queue import FETCHES_AT_ONCE, Agenda

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.cases import Verdict
    from iree_gauntlet.engine.ready_queue import Limits
    from iree_gauntlet.steps import Step

__all__ = ["Scheduler"]

# How often it is looked whether there is memory now for a step that waits for it.
_POLL_SECONDS = 0.5


class Scheduler:
    """Runs steps in the order of their needs.

    Args:
        steps: the steps, in any order; of those that could start, the earlier one starts first.
        finished: verdicts of steps that are not to be run again, by id.
        limits: what may run at once.
        work: runs a step and returns its verdict; called from several threads.
        skip: records a step that does not run, with the reason; called from several threads, one at a time.
        abort: ends what runs, when an exception (a signal's, or a bug's) leaves the scheduler.
        pause: a thread that worked has nothing to do for now; called on that thread.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        finished: Mapping[str, Verdict],
        limits: Limits,
        work: Callable[[Step], Verdict],
        skip: Callable[[Step, str], Verdict],
        abort: Callable[[], None],
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._agenda = Agenda(steps, finished, limits)
        self._jobs = limits.jobs
        self._work = work
        self._skip = skip
        self._abort = abort
        self._pause = pause
        # Guards the agenda.
        self._mutex = threading.Lock()
        self._cancelled = threading.Event()
        # Nothing is left to do, or to wait for.
        self._over = threading.Event()
        self._error: BaseException | None = None

    def cancel(self) -> None:
        """Starts nothing more; `run` returns when what runs has ended."""
        self._cancelled.set()
        self._over.set()

    def run(self) -> dict[str, Verdict]:
        """Runs everything and returns the verdicts by step id.

        Raises:
            Whatever `work` raises, after what runs beside it has ended.
        """
        with ThreadPoolExecutor(self._jobs + FETCHES_AT_ONCE, thread_name_prefix="step") as pool:
            try:
                self._start_all(pool)
                # The time limit lets a signal's exception through between two waits.
                while not self._over.wait(_POLL_SECONDS):
                    self._start_all(pool)
                self._raise_error()
            except BaseException:
                # The pool waits for its threads before it lets the exception out.
                self._cancelled.set()
                self._abort()
                raise
            finally:
                self._cancelled.set()
                # No thread is about to start another one when the pool closes.
                with self._mutex:
                    pass
        self._raise_error()
        return self._agenda.verdicts

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _start_all(self, pool: ThreadPoolExecutor) -> None:
        with self._mutex:
            for step in self._taken():
                pool.submit(self._chain, step, pool)

    def _chain(self, first: Step, pool: ThreadPoolExecutor) -> None:
        """What a thread does: a step, and then whatever may run when that is done."""
        try:
            step: Step | None = first
            while step is not None:
                step = self._next(step, self._work(step), pool)
            self._pause()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            if self._error is None:
                self._error = error
            self.cancel()

    def _next(self, step: Step, verdict: Verdict, pool: ThreadPoolExecutor) -> Step | None:
        """Notes what a step came to; of the steps that may run now, one for this thread, and threads for the rest."""
        with self._mutex:
            self._agenda.finish(step, verdict)
            steps = self._taken()
            for other in steps[1:]:
                pool.submit(self._chain, other, pool)
            return steps[0] if steps else None

    def _taken(self) -> list[Step]:
        """Steps to start now, after those were skipped that cannot run."""
        if self._cancelled.is_set():
            return []
        while (found := self._agenda.next_skip()) is not None:
            self._agenda.settle(found[0], self._skip(*found))
        steps = self._agenda.take()
        if not self._agenda.running:
            self._over.set()
        return steps
