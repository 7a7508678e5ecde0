"""Runs the steps of a plan on a few threads: a graph of steps, and exclusive steps alone afterwards.

Knows nothing of what a step does: `work` does it and returns its verdict. `ReadyQueue` knows which steps may run, and
whoever offers `Slots` (this machine, the workers of a cluster) whether one of them has room. A thread that is done with
a step takes the next one itself, so that thousands of small steps need no hand-over.
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


# How often it is looked whether there is memory now for a step that waits for it.
_POLL_SECONDS = 0.5
_FETCHES_AT_ONCE = 4
_FETCH = "fetch"
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
        self._queue = ReadyQueue(steps, finished, LocalSlots(limits), fail_fast=limits.fail_fast)
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
        steps = [step for step, _ in self._queue.take(self._skip)]
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


class Rank(IntEnum):
    """Order in which steps that are ready get slots; steps of one rank get them in the order of the plan."""

    CORELESS = 0
    SHARED = 1
    EXCLUSIVE = 2


class SlotRequest(Protocol):
    """Resources that a step needs; steps with equal requests wait in one lane."""

    @property
    def rank(self) -> Rank:
        """When it is served."""


_Request = TypeVar("_Request", bound=SlotRequest)
_Slot = TypeVar("_Slot")


class Slots(Protocol[_Request, _Slot]):
    """Slots for steps, on this machine or on others; a step takes one up while it runs."""

    def request(self, step: Step) -> _Request:
        """The resources that a step needs."""

    def take(self, step: Step, request: _Request, awaited: Sequence[_Request]) -> _Slot | None:
        """Takes a slot for a step while exclusive requests are `awaited`; None where none is free for its request."""

    def fits(self, step: Step) -> bool:
        """Whether there is memory for a step that shares its machine and has taken a slot."""

    def release(self, slot: _Slot) -> None:
        """Frees a slot."""


class ReadyQueue(Generic[_Request, _Slot]):
    """The steps of a plan that are yet to be done: which may start now, and which cannot any more.

    Args:
        steps: in any order; of those that could start, the earlier one starts first.
        finished: verdicts of steps that are not to be run again, by id.
        slots: where the steps run.
        fail_fast: start nothing more after the first failure or error.

    Attributes:
        verdicts: of all steps that have come to something, by id.
    """

    def __init__(
        self, steps: Sequence[Step], finished: Mapping[str, Verdict], slots: Slots[_Request, _Slot], *, fail_fast: bool
    ) -> None:
        self.verdicts = dict(finished)
        self._slots = slots
        self._fail_fast = fail_fast
        self._steps = list({step.id: step for step in steps if step.id not in finished}.values())
        self._known = {step.id for step in steps}
        self._stopped_by = ""
        # A step is known by its place in the plan: whether it waits, and how many of its needs are not settled.
        self._waiting = [True] * len(self._steps)
        self._unmet = [0] * len(self._steps)
        self._dependants: dict[str, list[int]] = {}
        # Places of steps that wait for nothing but a slot, and of those that run, with their slots.
        self._lanes: dict[_Request, list[int]] = {}
        self._running: dict[str, tuple[int, _Slot | None]] = {}
        # (pass, place) of steps that cannot run any more, as if the plan were gone through from its beginning
        # again and again until nothing is found: the order decides which of several bad needs a reason names.
        self._hopeless: list[tuple[int, int]] = []
        self._at = (0, -1)
        for place in range(len(self._steps)):
            self._enter(place)

    @property
    def running(self) -> int:
        """How many steps run."""
        return len(self._running)

    @property
    def waiting(self) -> dict[_Request, int]:
        """How many steps wait for a slot, by what they request."""
        return {request: len(lane) for request, lane in self._lanes.items() if lane}

    def take(self, skip: Callable[[Step, str], Verdict]) -> list[tuple[Step, _Slot]]:
        """Skips the steps that cannot run any more; steps to start now with their slots, in the order of the plan."""
        self._skip_hopeless(skip)
        heads = [(request.rank, lane[0], request) for request, lane in self._lanes.items() if lane]
        heapq.heapify(heads)
        awaited = [request for rank, _, request in heads if rank is Rank.EXCLUSIVE]
        started: list[tuple[int, _Slot]] = []
        passed_over: list[tuple[list[int], int]] = []
        while heads and len(passed_over) < _PASSED_OVER:
            rank, place, request = heads[0]
            step = self._steps[place]
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
                passed_over.append((lane, place))
                continue
            self._start(place, slot)
            started.append((place, slot))
        for lane, place in passed_over:
            heapq.heappush(lane, place)
        started.sort()
        return [(self._steps[place], slot) for place, slot in started]

    def take_all(self, request: _Request) -> list[Step]:
        """The steps that wait for something which nobody will offer; they count as started."""
        places = sorted(self._lanes.pop(request, []))
        for place in places:
            self._start(place, None)
        return [self._steps[place] for place in places]

    def put_back(self, step: Step) -> None:
        """A step that was taken is not done, and waits again."""
        place = self._release(step)
        self._waiting[place] = True
        if self._stopped_by:
            self._give_up(place)
        else:
            self._note_ready(place)

    def finish(self, step: Step, verdict: Verdict) -> None:
        """Notes that a step that was taken has finished, and its result."""
        self._release(step)
        self._settle(step, verdict)
        if self._fail_fast and verdict.is_bad and not verdict.is_doubtful and not self._stopped_by:
            self._stopped_by = step.id
            self._lanes.clear()
            for place in range(len(self._steps)):
                self._give_up(place)

    def _skip_hopeless(self, skip: Callable[[Step, str], Verdict]) -> None:
        while self._hopeless:
            self._at = heapq.heappop(self._hopeless)
            place = self._at[1]
            if self._waiting[place]:
                self._waiting[place] = False
                step = self._steps[place]
                self._settle(step, skip(step, self._describe_obstacle(step)))
        self._at = (0, -1)

    def _start(self, place: int, slot: _Slot | None) -> None:
        self._waiting[place] = False
        self._running[self._steps[place].id] = place, slot

    def _release(self, step: Step) -> int:
        place, slot = self._running.pop(step.id)
        if slot is not None:
            self._slots.release(slot)
        return place

    def _settle(self, step: Step, verdict: Verdict) -> None:
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
            heapq.heappush(self._lanes.setdefault(self._slots.request(step), []), place)

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


class LocalResources(NamedTuple):
    """Resources that a step needs of this machine; `kind` is an accelerator, or `_FETCH`."""

    rank: Rank
    kind: str = ""


class LocalSlots:
    """The slots of this machine: as many as jobs for cores, one for each accelerator, a few for fetches.

    Steps without cores need none, and an exclusive step has the machine.
    """

    def __init__(self, limits: ScheduleLimits) -> None:
        self._limits = limits
        # Steps that run, all and with cores, and by kind and by device.
        self._running = self._busy = 0
        self._counts: Counter[str] = Counter()
        self._exclusive = False

    def request(self, step: Step) -> LocalResources:
        """As of `Slots`."""
        resources = step.resources
        if resources.exclusive:
            return LocalResources(Rank.EXCLUSIVE)
        if step.stage.row.fetches:
            return LocalResources(Rank.CORELESS, _FETCH)
        if resources.cores == 0:
            return LocalResources(Rank.CORELESS)
        return LocalResources(Rank.SHARED, resources.accelerator)

    def take(self, step: Step, request: LocalResources, awaited: Sequence[LocalResources]) -> Step | None:
        """As of `Slots`; the slot is the step's."""
        del awaited
        if self._exclusive:
            return None
        rank, kind = request
        if rank is Rank.SHARED:
            free = self._busy < self._limits.jobs and not (kind and self._counts[kind])
        elif rank is Rank.CORELESS:
            free = kind != _FETCH or self._counts[_FETCH] < _FETCHES_AT_ONCE
        else:
            free = not self._running
        if not free:
            return None
        self._count(step, 1)
        return step

    def fits(self, step: Step) -> bool:
        """As of `Slots`: one step always does."""
        return self._busy == 1 or self._limits.fits(step)

    def release(self, slot: Step) -> None:
        """As of `Slots`."""
        self._count(slot, -1)

    def _count(self, step: Step, one: int) -> None:
        self._running += one
        self._busy += one * (step.resources.cores > 0)
        self._counts[_FETCH] += one * step.stage.row.fetches
        self._counts[step.resources.device] += one
        if step.resources.exclusive:
            self._exclusive = one > 0
