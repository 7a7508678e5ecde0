"""Runs the steps of a plan on a few threads: a graph of steps, and exclusive steps alone afterwards.

Knows nothing of what a step does: `work` does it and returns its verdict. `ReadyQueue` knows what may run when. A
thread that is done with a step takes the next one itself, so that thousands of small steps need no hand-over.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.cases import Verdict
    from iree_gauntlet.steps import Step


# How often it is looked whether there is memory now for a step that waits for it.
_POLL_SECONDS = 0.5
_FETCHES_AT_ONCE = 4
# Of the steps for which there is no memory, so many are passed over in search of one for which there is: each is
# asked again whenever a step ends, and thousands may wait.
_PASSED_OVER = 64


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
        limits: ScheduleLimits,
        work: Callable[[Step], Verdict],
        skip: Callable[[Step, str], Verdict],
        abort: Callable[[], None],
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue = ReadyQueue(steps, finished, limits)
        self._jobs = limits.jobs
        self._work = work
        self._skip = skip
        self._abort = abort
        self._pause = pause
        # Guards the queue.
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
        """Runs everything and returns the verdicts by step id; raises what `work` raises, after all has ended."""
        with ThreadPoolExecutor(self._jobs + _FETCHES_AT_ONCE, thread_name_prefix="step") as pool:
            try:
                while True:
                    with self._mutex:
                        for step in self._take():
                            pool.submit(self._run_steps_from, step, pool)
                    # The time limit lets a signal's exception through between two waits.
                    if self._over.wait(_POLL_SECONDS):
                        break
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
        return self._queue.verdicts

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run_steps_from(self, first: Step, pool: ThreadPoolExecutor) -> None:
        """What a thread does: a step, and then whatever may run when that is done."""
        try:
            step: Step | None = first
            while step is not None:
                verdict = self._work(step)
                with self._mutex:
                    self._queue.finish(step, verdict)
                    # One for this thread, and threads for the rest.
                    taken = self._take()
                    for other in taken[1:]:
                        pool.submit(self._run_steps_from, other, pool)
                step = taken[0] if taken else None
            self._pause()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            if self._error is None:
                self._error = error
            self.cancel()

    def _take(self) -> list[Step]:
        """Steps to start now, after those were skipped that cannot run."""
        if self._cancelled.is_set():
            return []
        while (found := self._queue.next_skip()) is not None:
            self._queue.settle(found[0], self._skip(*found))
        steps = self._queue.take()
        if not self._queue.running:
            self._over.set()
        return steps


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """What may run at once.

    Attributes:
        fail_fast: start nothing more after the first failure or error.
        fits: whether the memory for one more step is free while others run.
    """

    jobs: int
    fail_fast: bool
    fits: Callable[[Step], bool]


class StepGraph:
    """Which steps of a plan wait for which: what may start now, and what cannot any more.

    What becomes of a step that waits for nothing but room is the business of those who know the room: `_enqueue` gets
    its place in the plan, `_forget` drops all that were enqueued and not taken.

    Args:
        steps: in any order; of those that could start, the earlier one starts first.
        finished: verdicts of steps that are not to be run again, by id.
        fail_fast: start nothing more after the first failure or error.

    Attributes:
        verdicts: of all steps that have come to something, by id.
    """

    def __init__(self, steps: Sequence[Step], finished: Mapping[str, Verdict], *, fail_fast: bool) -> None:
        self.verdicts = dict(finished)
        self.running = 0
        self._fail_fast = fail_fast
        self._steps = list({step.id: step for step in steps if step.id not in finished}.values())
        self._known = {step.id for step in steps}
        self._stopped_by = ""
        # A step is known by its place in the plan: whether it waits, and how many of its needs are not settled.
        self._waiting = [True] * len(self._steps)
        self._unmet = [0] * len(self._steps)
        self._dependants: dict[str, list[int]] = {}
        # (pass, place) of steps that cannot run any more, as if the plan were gone through from its beginning
        # again and again until nothing is found: the order decides which of several bad needs a reason names.
        self._hopeless: list[tuple[int, int]] = []
        self._at = (0, -1)
        for place in range(len(self._steps)):
            self._enter(place)

    def _enqueue(self, place: int) -> None:
        """A step waits for nothing but room."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Nothing more is to start."""
        raise NotImplementedError

    def _count(self, step: Step, one: int) -> None:
        """Counts what a step takes up while it runs: `one` is 1 at its start, and -1 at its end."""
        del step
        self.running += one

    def next_skip(self) -> tuple[Step, str] | None:
        """A step that cannot run, and why, or None; `settle` it before asking for the next one."""
        while self._hopeless:
            self._at = heapq.heappop(self._hopeless)
            place = self._at[1]
            if self._waiting[place]:
                self._waiting[place] = False
                return self._steps[place], self._describe_obstacle(self._steps[place])
        self._at = (0, -1)
        return None

    def finish(self, step: Step, verdict: Verdict) -> None:
        """Notes that a step that was taken has finished, and its result."""
        self._count(step, -1)
        self.settle(step, verdict)
        if self._fail_fast and verdict.is_bad and not verdict.is_doubtful and not self._stopped_by:
            self._stopped_by = step.id
            self._forget()
            for place in range(len(self._steps)):
                self._give_up(place)

    def settle(self, step: Step, verdict: Verdict) -> None:
        """Notes the result of a step that was skipped."""
        self.verdicts[step.id] = verdict
        for place in self._dependants.pop(step.id, ()):
            self._unmet[place] -= 1
            if not verdict.counts_as_pass:
                self._give_up(place)
            elif self._unmet[place] == 0:
                self._note_ready(place)

    def _enter(self, place: int) -> None:
        for need in dict.fromkeys(self._steps[place].needs):
            verdict = self.verdicts.get(need)
            if verdict is None and need in self._known:
                self._dependants.setdefault(need, []).append(place)
                self._unmet[place] += 1
            elif verdict is None or not verdict.counts_as_pass:
                self._give_up(place)
        if self._unmet[place] == 0:
            self._note_ready(place)

    def _give_up(self, place: int) -> None:
        if self._waiting[place]:
            turn, at = self._at
            heapq.heappush(self._hopeless, (turn if place > at else turn + 1, place))

    def _note_ready(self, place: int) -> None:
        step = self._steps[place]
        if self._waiting[place] and not self._describe_obstacle(step):
            self._enqueue(place)

    def _describe_obstacle(self, step: Step) -> str:
        """Why a step cannot run; empty where nothing is known that keeps it from running."""
        if self._stopped_by:
            return f"stopped by --fail-fast after {self._stopped_by}"
        for need in step.needs:
            verdict = self.verdicts.get(need)
            if verdict is not None and not verdict.counts_as_pass:
                return f"{need} {verdict.past}"
            if verdict is None and need not in self._known:
                return f"{need} is not part of this run"
        return ""


class ReadyQueue(StepGraph):
    """The steps of a plan that are yet to be done on this machine; arguments as for `StepGraph`."""

    def __init__(self, steps: Sequence[Step], finished: Mapping[str, Verdict], limits: ScheduleLimits) -> None:
        self._limits = limits
        # Places of steps that wait for nothing but room; those that use cores by device, empty for the CPU's.
        self._fetches: list[int] = []
        self._coreless: list[int] = []
        self._exclusive: list[int] = []
        self._lanes: dict[str, list[int]] = {}
        # What runs.
        self._fetching = self._busy = 0
        self._alone = False
        self._devices: Counter[str] = Counter()
        super().__init__(steps, finished, fail_fast=limits.fail_fast)

    def take(self) -> list[Step]:
        """Steps to start now: what fits next to what runs, and an exclusive one only when nothing else is left.

        Ask for skips first, until there is none.
        """
        if self._alone:
            return []
        places = _pop(self._coreless, len(self._coreless))
        places += _pop(self._fetches, _FETCHES_AT_ONCE - self._fetching)
        places += self._with_cores()
        if not places and not self.running:
            places = _pop(self._exclusive, 1)
        places.sort()
        for place in places:
            self._waiting[place] = False
            self._count(self._steps[place], 1)
        return [self._steps[place] for place in places]

    def _forget(self) -> None:
        for ready in (self._fetches, self._coreless, self._exclusive, self._lanes):
            ready.clear()

    def _enqueue(self, place: int) -> None:
        step = self._steps[place]
        resources = step.resources
        if resources.exclusive:
            ready = self._exclusive
        elif step.stage.row.fetches:
            ready = self._fetches
        elif resources.cores == 0:
            ready = self._coreless
        else:
            ready = self._lanes.setdefault(resources.accelerator, [])
        heapq.heappush(ready, place)

    def _with_cores(self) -> list[int]:
        """Places of steps to start that use cores: in plan order, as far as cores, devices and memory go."""
        chosen: list[int] = []
        passed_over: list[tuple[list[int], int]] = []
        devices: set[str] = set()
        busy = self._busy
        while busy < self._limits.jobs and len(passed_over) < _PASSED_OVER:
            open_lanes = (
                (lane[0], device)
                for device, lane in self._lanes.items()
                if lane and not (device and (device in devices or self._devices[device]))
            )
            place, device = min(open_lanes, default=(-1, ""))
            if place < 0:
                break
            heapq.heappop(self._lanes[device])
            if busy == 0 or self._limits.fits(self._steps[place]):
                busy += 1
                devices.add(device)
                chosen.append(place)
            else:
                passed_over.append((self._lanes[device], place))
        for lane, place in passed_over:
            heapq.heappush(lane, place)
        return chosen

    def _count(self, step: Step, one: int) -> None:
        super()._count(step, one)
        self._fetching += one * (step.stage.row.fetches)
        self._busy += one * (step.resources.cores > 0)
        self._devices[step.resources.device] += one
        if step.resources.exclusive:
            self._alone = one > 0


def _pop(heap: list[int], count: int) -> list[int]:
    """The smallest of a heap, at most `count`, taken from it."""
    return [heapq.heappop(heap) for _ in range(min(count, len(heap)))]
