"""A fake cluster without a network: workers that are a queue of events, and an engine that records its calls."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.fleet import ClusterRunner, Fleet, make_file_saver
from iree_gauntlet.cluster.link import AnswerEvent, JoinEvent, OrderAnswer
from iree_gauntlet.cluster.offers import WorkerDevice, WorkerResources
from iree_gauntlet.engine.scheduler import ReadyQueue
from iree_gauntlet.progress import Progress
from iree_gauntlet.results import CacheUse, Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import CacheLookup, Resources, Step
from tests.support.clocks import Clock
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.cluster.link import Event, Order

__all__ = ["CPU_OFFER", "GPU_OFFER", "FakeEngine", "FakeLink", "Messages", "make_offer", "make_runner", "plan_step"]

# This limit ends a run that would never end by itself.
_MAX_TURNS = 10_000

CPU_OFFER = WorkerDevice("cpu", "local-task")
GPU_OFFER = WorkerDevice("gpu0", "hip://GPU-1", sku="mi300")


def make_offer(name: str, *devices: WorkerDevice, jobs: int = 2, host: str = "") -> WorkerResources:
    """Make a worker's offer, by default on a host of its own."""
    return WorkerResources(name, host or name, jobs, devices)


def plan_step(
    name: str, *needs: str, stage: Stage = Stage.COMPILE, device: str = "", exclusive: bool = False, host: str = ""
) -> Step:
    """Make a step; the part of its name before the colon is its chain."""
    key_inputs = (("host", host),) if host else ()
    return make_step(
        stage,
        name.partition(":")[0],
        id=name,
        model="m",
        submodel="s",
        target="cpu",
        needs=needs,
        resources=Resources(1, exclusive, device),
        cache=CacheLookup(ingredients=key_inputs),
    )


class FakeEngine:
    """Records its calls, and skips no steps by itself."""

    def __init__(self) -> None:
        self.started_steps: list[str] = []
        self.results: dict[str, Result] = {}
        self.conclusion_counts: Counter[str] = Counter()
        self.aborted = False
        self.requeued_steps: list[str] = []
        self.machines: dict[str, dict[str, object]] = {}
        self.remarks: list[str] = []

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        del worker
        if not again:
            self.started_steps.append(step.id)

    def result_of(self, step: Step) -> Result:
        return Result(Verdict.SKIPPED if step.skip else Verdict.ERROR, step.skip or step.blocked)

    def conclude(self, step: Step, result: Result) -> Verdict:
        self.conclusion_counts[step.id] += 1
        self.results[step.id] = result
        return result.verdict

    def put_back(self, step: Step) -> None:
        self.requeued_steps.append(step.id)

    def joined(self, name: str, machine: Mapping[str, object]) -> None:
        self.machines[name] = dict(machine)

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def abort(self) -> None:
        self.aborted = True


class Messages(Progress):
    """Records messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.waits: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def waiting(self, text: str) -> None:
        self.waits.append(text)


class FakeLink:
    """A link whose events come from the test.

    `turn`: returns the next event, or None if there is none; `open_orders` has the orders without a result, by step.
    """

    def __init__(self, turn: Callable[[FakeLink], Event | None]) -> None:
        self.open_orders: dict[str, tuple[str, Order]] = {}
        self.sent_orders: list[tuple[str, Order]] = []
        self.supplies: list[tuple[str, str, tuple[str, ...]]] = []
        self.is_closed = False
        self.clock = Clock()
        self._turn_count = 0
        self._turn = turn

    def send(self, worker: str, order: Order) -> None:
        assert order.step not in self.open_orders, "it is out already"
        self.open_orders[order.step] = (worker, order)
        self.sent_orders.append((worker, order))

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        self.supplies.append((worker, step, urls))

    def next_event(self, seconds: float) -> Event | None:
        self._turn_count += 1
        assert self._turn_count < _MAX_TURNS, "it goes on for ever"
        event = self._turn(self)
        if event is None:
            self.clock.advance(seconds)
        return event

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        del running, waiting

    def end(self) -> None:
        self.is_closed = True

    def answer(self, name: str, verdict: Verdict = Verdict.PASSED, *, key: str = "", **fields: Any) -> AnswerEvent:
        """Close an order; return the answer of its worker."""
        worker, _ = self.open_orders.pop(name)
        cache = CacheUse(hit=False, key=key) if key else None
        result = Result(verdict, cache=cache, **fields)
        return AnswerEvent(worker, name, OrderAnswer(result.as_dict()))


def make_runner(
    steps: Sequence[Step],
    workers: Mapping[str, WorkerResources],
    turn: Callable[[FakeLink], Event | None],
    folder: Path,
    *,
    fail_fast: bool = False,
    timeout: float = 60.0,
) -> tuple[ClusterRunner, FakeLink, FakeEngine, Messages]:
    """Make a runner of steps on workers, all of which have joined at the start."""
    fleet = Fleet(steps)
    joined_events = [JoinEvent(address, offer) for address, offer in workers.items()]
    link, engine, progress = FakeLink(turn), FakeEngine(), Messages()
    queue = ReadyQueue(steps, {}, fleet, fail_fast=fail_fast)
    save_files, clock = make_file_saver(folder), link.clock
    runner = ClusterRunner(
        queue,
        fleet,
        link,
        engine,
        save_files,
        progress,
        plan_handler=engine,
        timeout=timeout,
        clock=clock,
        early_events=joined_events,
    )
    return runner, link, engine, progress
