"""The scheduler runs the steps of a plan on a few threads; exclusive steps run alone, after the others.

The scheduler knows nothing about the work of a step: `work` performs a step and returns its verdict. `ReadyQueue`
determines which steps may run; `Slots` (of this machine, or of a cluster's workers) tell if a step has room to run. A
thread that has finished a step takes the next step itself, so thousands of small steps need no hand-over.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.cases import Verdict
    from iree_gauntlet.steps import Step


# This is the interval of memory checks for a step that waits for memory.
_POLL_SECONDS = 0.5
_MAX_FETCHES = 4
_FETCH = "fetch"
# At most so many steps that lack memory are passed over to find a step that fits. All are checked again whenever a step
# ends, and thousands may be waiting.
_MAX_PASSED_OVER = 64


class Scheduler:
    """An executor that runs steps in the order of their needs.

    Args:
        steps: the steps, in any order; if several could start, the earlier step starts first.
        finished: verdicts of steps that must not run again, by id.
        limits: the limits of steps that run at once.
        work: runs a step and returns its verdict; called from several threads.
        skip: records a step that does not run, with the reason; called from several threads, one at a time.
        abort: ends all running steps; called if an exception (from a signal or a bug) ends the scheduler.
        pause: called on a thread that has worked and has no step to run for now.
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
        self._queue = ReadyQueue(steps, finished, LocalSlots(limits), fail_fast=limits.fail_fast)
        self._jobs = limits.jobs
        self._work = work
        self._skip = skip
        self._abort = abort
        self._pause = pause
        # This lock guards the queue.
        self._mutex = threading.Lock()
        self._cancelled = threading.Event()
        # The event is set when no step is waiting to run or running.
        self._finished = threading.Event()
        self._error: BaseException | None = None

    def cancel(self) -> None:
        """Start no more steps; `run` returns when the running ones have ended."""
        self._cancelled.set()
        self._finished.set()

    def run(self) -> dict[str, Verdict]:
        """Run all steps and return the verdicts by step id; raise errors of `work` after all steps have ended."""
        with ThreadPoolExecutor(self._jobs + _MAX_FETCHES, thread_name_prefix="step") as pool:
            try:
                while True:
                    with self._mutex:
                        for step in self._take_ready_steps():
                            pool.submit(self._run_steps_from, step, pool)
                    # Wait with a time limit, so that a signal handler can raise its exception between two waits.
                    if self._finished.wait(_POLL_SECONDS):
                        break
                self._raise_error()
            except BaseException:
                # End the running steps now, because the pool waits for its threads before the exception continues.
                self._cancelled.set()
                self._abort()
                raise
            finally:
                self._cancelled.set()
                # Wait until no thread is submitting more work, because the pool closes next.
                with self._mutex:
                    pass
        self._raise_error()
        return self._queue.verdicts

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run_steps_from(self, first: Step, pool: ThreadPoolExecutor) -> None:
        """Run a step on this thread, and then whichever steps become ready."""
        try:
            step: Step | None = first
            while step is not None:
                verdict = self._work(step)
                with self._mutex:
                    self._queue.finish(step, verdict)
                    # This thread runs the first step; the other steps need more threads.
                    ready_steps = self._take_ready_steps()
                    for ready_step in ready_steps[1:]:
                        pool.submit(self._run_steps_from, ready_step, pool)
                step = ready_steps[0] if ready_steps else None
            self._pause()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            if self._error is None:
                self._error = error
            self.cancel()

    def _take_ready_steps(self) -> list[Step]:
        """Return steps to start now, after skipping those that cannot run."""
        if self._cancelled.is_set():
            return []
        steps = [step for step, _ in self._queue.take(self._skip)]
        if not self._queue.running:
            self._finished.set()
        return steps


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """Limits of the steps that may run at once.

    Attributes:
        fail_fast: start nothing more after the first failure or error.
        fits: returns True if the memory for one more step is free while others run.
    """

    jobs: int
    fail_fast: bool
    fits: Callable[[Step], bool]


class Rank(IntEnum):
    """Order in which steps that are ready get slots; steps of one rank get them in the order of the plan."""

    CORELESS = 0
    SHARED = 1
    EXCLUSIVE = 2


class SlotRequest(Protocol):
    """The resources that a step needs; steps with equal requests wait in one queue (a lane)."""

    @property
    def rank(self) -> Rank:
        """The rank in the order of service."""


_Request = TypeVar("_Request", bound=SlotRequest)
_Slot = TypeVar("_Slot")


class Slots(Protocol[_Request, _Slot]):
    """Slots for steps, on this machine or on others; a step occupies a slot while it runs."""

    def request(self, step: Step) -> _Request:
        """Return the resources that a step needs."""

    def take(self, step: Step, request: _Request, awaited: Sequence[_Request]) -> _Slot | None:
        """Take a slot for a step; None if no slot is free. `awaited` are exclusive requests that also wait."""

    def fits(self, step: Step) -> bool:
        """Return True if there is memory for a step that has taken a slot on a shared machine."""

    def release(self, slot: _Slot) -> None:
        """Free a slot."""


class ReadyQueue(Generic[_Request, _Slot]):
    """The unfinished steps of a plan; tells which steps may start now, and which can no longer run.

    Args:
        steps: the steps, in any order; if several could start, the earlier step starts first.
        finished: verdicts of steps that must not run again, by id.
        slots: the slots that the steps run in.
        fail_fast: start nothing more after the first failure or error.

    Attributes:
        verdicts: the verdicts of all finished or skipped steps, by id.
    """

    def __init__(
        self, steps: Sequence[Step], finished: Mapping[str, Verdict], slots: Slots[_Request, _Slot], *, fail_fast: bool
    ) -> None:
        self.verdicts = dict(finished)
        self._slots = slots
        self._fail_fast = fail_fast
        self._steps = list({step.id: step for step in steps if step.id not in finished}.values())
        self._step_ids = {step.id for step in steps}
        self._stopped_by = ""
        # Both lists are indexed by the step's index in the plan: whether the step waits, and the number of its unmet
        # needs.
        self._is_waiting = [True] * len(self._steps)
        self._unmet_counts = [0] * len(self._steps)
        self._dependants: dict[str, list[int]] = {}
        # `_lanes` has indices of steps that wait only for a slot; `_running` has those of running steps, with slots.
        self._lanes: dict[_Request, list[int]] = {}
        self._running: dict[str, tuple[int, _Slot | None]] = {}
        # (pass, index) of steps that can no longer run, ordered as if the plan were scanned repeatedly from its
        # beginning. The order decides which of several failed needs a skipped step's reason names.
        self._impossible: list[tuple[int, int]] = []
        self._position = (0, -1)
        for index in range(len(self._steps)):
            self._enter(index)

    @property
    def running(self) -> int:
        """The number of running steps."""
        return len(self._running)

    @property
    def waiting(self) -> dict[_Request, int]:
        """The number of steps that wait for a slot, by their request."""
        return {request: len(lane) for request, lane in self._lanes.items() if lane}

    def take(self, skip: Callable[[Step, str], Verdict]) -> list[tuple[Step, _Slot]]:
        """Skip the steps that can no longer run; return steps to start now with their slots, in the plan's order."""
        self._skip_impossible(skip)
        heads = [(request.rank, lane[0], request) for request, lane in self._lanes.items() if lane]
        heapq.heapify(heads)
        awaited = [request for rank, _, request in heads if rank is Rank.EXCLUSIVE]
        ready: list[tuple[int, _Slot]] = []
        waiting: list[tuple[list[int], int]] = []
        while heads and len(waiting) < _MAX_PASSED_OVER:
            rank, index, request = heads[0]
            step = self._steps[index]
            slot = self._slots.take(step, request, awaited)
            if slot is None:
                heapq.heappop(heads)
                continue
            lane = self._lanes[request]
            heapq.heappop(lane)
            if lane:
                heapq.heapreplace(heads, (rank, lane[0], request))
            else:
                heapq.heappop(heads)
            if rank is Rank.SHARED and not self._slots.fits(step):
                self._slots.release(slot)
                waiting.append((lane, index))
                continue
            self._start(index, slot)
            ready.append((index, slot))
        for lane, index in waiting:
            heapq.heappush(lane, index)
        ready.sort()
        return [(self._steps[index], slot) for index, slot in ready]

    def take_all(self, request: _Request) -> list[Step]:
        """Return the steps with a request that can never be satisfied; they count as started."""
        indices = sorted(self._lanes.pop(request, []))
        for index in indices:
            self._start(index, None)
        return [self._steps[index] for index in indices]

    def put_back(self, step: Step) -> None:
        """Return a taken, unfinished step to the waiting ones."""
        index = self._release(step)
        self._is_waiting[index] = True
        if self._stopped_by:
            self._give_up(index)
        else:
            self._note_ready(index)

    def finish(self, step: Step, verdict: Verdict) -> None:
        """Record the verdict of a taken step that has finished."""
        self._release(step)
        self._settle(step, verdict)
        if self._fail_fast and verdict.ends_early and not self._stopped_by:
            self._stopped_by = step.id
            self._lanes.clear()
            for index in range(len(self._steps)):
                self._give_up(index)

    def _skip_impossible(self, skip: Callable[[Step, str], Verdict]) -> None:
        while self._impossible:
            self._position = heapq.heappop(self._impossible)
            index = self._position[1]
            if self._is_waiting[index]:
                self._is_waiting[index] = False
                step = self._steps[index]
                self._settle(step, skip(step, self._describe_obstacle(step)))
        self._position = (0, -1)

    def _start(self, index: int, slot: _Slot | None) -> None:
        self._is_waiting[index] = False
        self._running[self._steps[index].id] = index, slot

    def _release(self, step: Step) -> int:
        index, slot = self._running.pop(step.id)
        if slot is not None:
            self._slots.release(slot)
        return index

    def _settle(self, step: Step, verdict: Verdict) -> None:
        self.verdicts[step.id] = verdict
        for index in self._dependants.pop(step.id, ()):
            self._unmet_counts[index] -= 1
            if not verdict.counts_as_pass:
                self._give_up(index)
            elif self._unmet_counts[index] == 0:
                self._note_ready(index)

    def _enter(self, index: int) -> None:
        for need in dict.fromkeys(self._steps[index].needs):
            verdict = self.verdicts.get(need)
            if verdict is None and need in self._step_ids:
                self._dependants.setdefault(need, []).append(index)
                self._unmet_counts[index] += 1
            elif verdict is None or not verdict.counts_as_pass:
                self._give_up(index)
        if self._unmet_counts[index] == 0:
            self._note_ready(index)

    def _give_up(self, index: int) -> None:
        if self._is_waiting[index]:
            turn, last_index = self._position
            heapq.heappush(self._impossible, (turn if index > last_index else turn + 1, index))

    def _note_ready(self, index: int) -> None:
        step = self._steps[index]
        if self._is_waiting[index] and not self._describe_obstacle(step):
            heapq.heappush(self._lanes.setdefault(self._slots.request(step), []), index)

    def _describe_obstacle(self, step: Step) -> str:
        """Return why a step cannot run; empty if no obstacle is known."""
        if self._stopped_by:
            return f"stopped by --fail-fast after {self._stopped_by}"
        for need in step.needs:
            verdict = self.verdicts.get(need)
            if verdict is not None and not verdict.counts_as_pass:
                return f"{need} {verdict.past_tense}"
            if verdict is None and need not in self._step_ids:
                return f"{need} is not part of this run"
        return ""


class LocalResources(NamedTuple):
    """The resources of this machine that a step needs; `kind` is an accelerator, or `_FETCH`."""

    rank: Rank
    kind: str = ""


class LocalSlots:
    """The slots of this machine: one for each job, one for each accelerator, and a few for fetches.

    Other steps without cores need no slot; an exclusive step has the machine alone.
    """

    def __init__(self, limits: ScheduleLimits) -> None:
        self._limits = limits
        # Numbers of running steps: all steps, steps with cores, and steps by kind and device.
        self._running = self._busy = 0
        self._counts: Counter[str] = Counter()
        self._exclusive = False

    def request(self, step: Step) -> LocalResources:
        """Return the request of a step, as in `Slots`."""
        resources = step.resources
        if resources.exclusive:
            return LocalResources(Rank.EXCLUSIVE)
        if step.stage.row.fetches:
            return LocalResources(Rank.CORELESS, _FETCH)
        if resources.cores == 0:
            return LocalResources(Rank.CORELESS)
        return LocalResources(Rank.SHARED, resources.accelerator)

    def take(self, step: Step, request: LocalResources, awaited: Sequence[LocalResources]) -> Step | None:
        """Take a slot, as in `Slots`; the slot is the step itself."""
        del awaited
        if self._exclusive:
            return None
        rank, kind = request
        if rank is Rank.SHARED:
            is_free = self._busy < self._limits.jobs and not (kind and self._counts[kind])
        elif rank is Rank.CORELESS:
            is_free = kind != _FETCH or self._counts[_FETCH] < _MAX_FETCHES
        else:
            is_free = not self._running
        if not is_free:
            return None
        self._count(step, 1)
        return step

    def fits(self, step: Step) -> bool:
        """Return True if there is memory, as in `Slots`; a step that runs alone always fits."""
        return self._busy == 1 or self._limits.fits(step)

    def release(self, slot: Step) -> None:
        """Free a slot, as in `Slots`."""
        self._count(slot, -1)

    def _count(self, step: Step, change: int) -> None:
        self._running += change
        self._busy += change * (step.resources.cores > 0)
        self._counts[_FETCH] += change * step.stage.row.fetches
        self._counts[step.resources.device] += change
        if step.resources.exclusive:
            self._exclusive = change > 0
