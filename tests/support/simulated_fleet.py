"""Workers that are a queue of events, and an engine that keeps what it is given: a cluster without a network."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.fleet import ClusterRunner, Fleet, keep_below
from iree_gauntlet.cluster.link import Answered, Joined, OrderAnswer
from iree_gauntlet.cluster.offers import DeviceOffer, WorkerOffer
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

__all__ = ["CPU", "GPU", "FakeEngine", "Messages", "SimulatedLink", "offer", "simulated", "step"]

# Ends what does not end by itself.
_MOST_TURNS = 10_000

CPU = DeviceOffer("cpu", "local-task")
GPU = DeviceOffer("gpu0", "hip://GPU-1", sku="mi300")


def offer(name: str, *devices: DeviceOffer, jobs: int = 2, host: str = "") -> WorkerOffer:
    """What a worker offers, on a host of its own."""
    return WorkerOffer(name, host or name, jobs, devices)


def step(
    name: str, *needs: str, stage: Stage = Stage.COMPILE, device: str = "", exclusive: bool = False, host: str = ""
) -> Step:
    """A step of the chain before the colon."""
    ingredients = (("host", host),) if host else ()
    return make_step(
        stage,
        name.partition(":")[0],
        id=name,
        model="m",
        submodel="s",
        target="cpu",
        needs=needs,
        resources=Resources(1, exclusive, device),
        cache=CacheLookup(ingredients=ingredients),
    )


class FakeEngine:
    """Keeps what is journalled, and skips nothing by itself."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.results: dict[str, Result] = {}
        self.concluded: Counter[str] = Counter()
        self.aborted = False
        self.waiting: list[str] = []
        self.machines: dict[str, dict[str, object]] = {}
        self.remarks: list[str] = []

    def begin(self, begun: Step, *, worker: str = "", again: bool = False) -> None:
        del worker
        if not again:
            self.begun.append(begun.id)

    def result_of(self, done: Step) -> Result:
        return Result(Verdict.SKIPPED if done.skip else Verdict.ERROR, done.skip or done.blocked)

    def conclude(self, done: Step, result: Result) -> Verdict:
        self.concluded[done.id] += 1
        self.results[done.id] = result
        return result.verdict

    def put_back(self, step: Step) -> None:
        self.waiting.append(step.id)

    def joined(self, name: str, machine: Mapping[str, object]) -> None:
        self.machines[name] = dict(machine)

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def abort(self) -> None:
        self.aborted = True


class Messages(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.waits: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    def waiting(self, text: str) -> None:
        self.waits.append(text)


class SimulatedLink:
    """A link whose other end is the test: `turn` is asked for what happens next.

    `turn`: the next event, given the orders that are out by step; None for none.
    """

    def __init__(self, turn: Callable[[SimulatedLink], Event | None]) -> None:
        self.out: dict[str, tuple[str, Order]] = {}
        self.sent: list[tuple[str, Order]] = []
        self.supplies: list[tuple[str, str, tuple[str, ...]]] = []
        self.ended = False
        self.clock = Clock()
        self._turns = 0
        self._turn = turn

    def send(self, worker: str, order: Order) -> None:
        assert order.step not in self.out, "it is out already"
        self.out[order.step] = (worker, order)
        self.sent.append((worker, order))

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        self.supplies.append((worker, step, urls))

    def next_event(self, seconds: float) -> Event | None:
        self._turns += 1
        assert self._turns < _MOST_TURNS, "it goes on for ever"
        event = self._turn(self)
        if event is None:
            self.clock.advance(seconds)
        return event

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        del running, waiting

    def end(self) -> None:
        self.ended = True

    def answer(self, name: str, verdict: Verdict = Verdict.PASSED, *, key: str = "", **fields: Any) -> Answered:
        """What the worker of an order says."""
        worker, _ = self.out.pop(name)
        cache = CacheUse(hit=False, key=key) if key else None
        result = Result(verdict, cache=cache, **fields)
        return Answered(worker, name, OrderAnswer(result.as_dict()))


def simulated(
    steps: Sequence[Step],
    workers: Mapping[str, WorkerOffer],
    turn: Callable[[SimulatedLink], Event | None],
    folder: Path,
    *,
    fail_fast: bool = False,
    patience: float = 60.0,
) -> tuple[ClusterRunner, SimulatedLink, FakeEngine, Messages]:
    """A runner of steps on workers, each of which is there from the beginning."""
    fleet = Fleet(steps)
    early = [Joined(address, offered) for address, offered in workers.items()]
    link, engine, progress = SimulatedLink(turn), FakeEngine(), Messages()
    queue = ReadyQueue(steps, {}, fleet, fail_fast=fail_fast)
    keep, clock = keep_below(folder), link.clock
    runner = ClusterRunner(
        queue,
        fleet,
        link,
        engine,
        keep,
        progress,
        plan_handler=engine,
        timeout=patience,
        clock=clock,
        early_events=early,
    )
    return runner, link, engine, progress
