"""Runs a plan on the workers of a cluster: which step goes to which, and one thread that journals what comes back.

Compiles go to workers without devices first; a step that uses a device goes where the chain was before, if there is
room; one that measures time has its whole host. As on one machine, such a step begins when nothing else is left that
its host could do.

A worker that is lost has its steps done again by another, twice at most, and the results say so. What a tool does to
itself (a crash) is a result, and is not done again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.link import Answered, Broken, Joined, Left, Made, Order, OrderEvent, Refused, Supplied, Unfit
from iree_gauntlet.device_kinds import is_cpu, split_device
from iree_gauntlet.engine.scheduler import Rank
from iree_gauntlet.figures import GoldenRule
from iree_gauntlet.formatting import counted
from iree_gauntlet.results import Result
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from iree_gauntlet.cluster.link import Event, Link, OrderAnswer
    from iree_gauntlet.cluster.offers import DeviceOffer, WorkerOffer
    from iree_gauntlet.engine.scheduler import ReadyQueue
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.steps import Step
# How often a step is done again because its worker was lost.
_MOST_AGAIN = 2
# A worker that is killed is back within seconds, and a host that reboots within minutes.
_PATIENCE_SECONDS = 120.0
_REMARKABLE_SECONDS = 10.0
_TURN_SECONDS = 0.5
_SHOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What a step needs of a worker.

    Attributes:
        device: what the spec calls it: a driver (`hip`), an ordinal (`hip://1`: any of that driver's), or a device's
            own URI; empty for none.
        sku: the machine that its golden times are for; empty for any.
        idle: nobody has anything to do.
    """

    device: str = ""
    sku: str = ""
    uses: bool = False
    exclusive: bool = False
    idle: bool = False

    @property
    def rank(self) -> Rank:
        """What is idle first, what needs its whole host last."""
        if self.idle:
            return Rank.CORELESS
        return Rank.EXCLUSIVE if self.exclusive else Rank.SHARED

    @property
    def text(self) -> str:
        """What it is, for people."""
        if not self.device:
            return "any worker"
        if is_cpu(self.device):
            return f"the processor as a device (--device cpu{f',sku={self.sku}' if self.sku else ''})"
        return f"device {self.device}" + (f" of SKU {self.sku}" if self.sku else "")

    def is_met_by(self, offer: WorkerOffer) -> bool:
        """Whether a worker could do it, were it free."""
        return not self.device or any(self.fits(device) for device in offer.devices)

    def fits(self, device: DeviceOffer) -> bool:
        """Whether a device is of the kind."""
        if self.sku and device.sku != self.sku:
            return False
        if is_cpu(self.device):
            return is_cpu(device.uri)
        driver, path = split_device(self.device)
        anyone = not path or path.isdecimal()
        return device.uri == self.device or (anyone and split_device(device.uri)[0] == driver)


def list_demands(steps: Sequence[Step]) -> dict[str, Demand]:
    """What each step needs, by id."""
    devices: dict[str, str] = {}
    for step in steps:
        if step.resources.device:
            devices.setdefault(step.chain, step.resources.device)
    demands = {}
    for step in steps:
        resources = step.resources
        if step.skip or step.blocked:
            demand = Demand(idle=True)
        elif resources.device:
            timed = any(golden.field.rule is GoldenRule.TIMED for golden in step.goldens)
            demand = Demand(resources.device, step.sku if timed else "", uses=True, exclusive=resources.exclusive)
        else:
            bound = step.stage.row.is_local or bool(dict(step.cache.ingredients).get("host"))
            demand = Demand(devices.get(step.chain, "") if bound else "", exclusive=resources.exclusive)
        demands[step.id] = demand
    return demands


@dataclass(frozen=True, slots=True)
class Seat:
    """A place for one step, with the device that it uses; no worker for one that nobody has to do."""

    worker: str
    device: DeviceOffer | None = None
    exclusive: bool = False
    term: int = 0


@dataclass(slots=True)
class _Worker:
    offer: WorkerOffer
    term: int
    running: int = 0
    busy: set[str] = field(default_factory=set)


class Fleet:
    """The workers that are there, and what they are busy with; their seats are the `Slots` for steps of a plan."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._demands = list_demands(steps)
        # The worker that each chain was given to last.
        self._homes: dict[str, str] = {}
        self._workers: dict[str, _Worker] = {}
        # Those with room for a step, those before them first that were not given one as recently.
        self._open: dict[str, None] = {}
        self._running: Counter[str] = Counter()
        self._alone: set[str] = set()
        self._terms = 0

    def __len__(self) -> int:
        return len(self._workers)

    def offer(self, address: str) -> WorkerOffer:
        """What a worker offers that is there."""
        return self._workers[address].offer

    def join(self, address: str, offer: WorkerOffer) -> None:
        """A worker is there; one that is known already stays as it is."""
        if address in self._workers:
            return
        self._terms += 1
        self._workers[address] = _Worker(offer, self._terms)
        self._open[address] = None

    def leave(self, address: str) -> None:
        """A worker is not there any more; what it was busy with does not count."""
        worker = self._workers.pop(address, None)
        self._open.pop(address, None)
        if worker is not None:
            self._running[worker.offer.host] -= worker.running
            if not self._running[worker.offer.host]:
                self._alone.discard(worker.offer.host)

    def withdraw(self, address: str, device: DeviceOffer | None) -> None:
        """A device of a worker takes no further steps."""
        worker = self._workers.get(address)
        if worker is not None:
            devices = tuple(item for item in worker.offer.devices if item != device)
            worker.offer = replace(worker.offer, devices=devices)

    def offers(self, demand: Demand) -> bool:
        """Whether a worker is there that could do it, were it free."""
        return any(demand.is_met_by(worker.offer) for worker in self._workers.values())

    def hosts(self, demand: Demand) -> int:
        """On how many hosts it could be done, were they free."""
        return len({worker.offer.host for worker in self._workers.values() if demand.is_met_by(worker.offer)})

    def request(self, step: Step) -> Demand:
        """As of `Slots`."""
        return self._demands[step.id]

    def isolate(self, step: Step) -> None:
        """Has a step request its whole host from now on."""
        self._demands[step.id] = replace(self._demands[step.id], exclusive=True)

    def take(self, step: Step, request: Demand, awaited: Sequence[Demand]) -> Seat | None:
        """As of `Slots`."""
        if request.idle:
            return Seat("")
        seat = self.seat(request, self._homes.get(step.chain, ""), () if request.device else awaited)
        if seat is not None:
            self._homes[step.chain] = seat.worker
        return seat

    def fits(self, step: Step) -> bool:
        """As of `Slots`: workers look to their memory themselves."""
        del step
        return True

    def seat(self, demand: Demand, home: str = "", awaited: Collection[Demand] = ()) -> Seat | None:
        """A place for a step, which is taken then; None where there is none now."""
        if home in self._open and (found := self._find_seat(home, demand)) is not None:
            return self._take(found)
        second: Seat | None = None
        for address in self._open:
            found = self._find_seat(address, demand)
            if found is None:
                continue
            offer = self._workers[address].offer
            if demand.device or not offer.devices:
                return self._take(found)
            # There may be one without a device; where there is, this one is left to those that await its device.
            plain = any(not worker.offer.devices for worker in self._workers.values())
            if second is None and not (plain and any(item.is_met_by(offer) for item in awaited)):
                second = found
        return self._take(second) if second is not None else None

    def release(self, slot: Seat) -> None:
        """As of `Slots`; the seat of a worker which has left is gone already."""
        worker = self._workers.get(slot.worker)
        if worker is None or worker.term != slot.term:
            return
        host = worker.offer.host
        worker.running -= 1
        self._running[host] -= 1
        if slot.device is not None:
            worker.busy.discard(slot.device.uri)
        if slot.exclusive:
            self._alone.discard(host)
        self._open[slot.worker] = None

    def _find_seat(self, address: str, demand: Demand) -> Seat | None:
        worker = self._workers[address]
        host = worker.offer.host
        if host in self._alone or worker.running >= worker.offer.jobs or (demand.exclusive and self._running[host]):
            return None
        if not demand.device:
            return Seat(address, exclusive=demand.exclusive, term=worker.term)
        for device in worker.offer.devices:
            if demand.fits(device) and not (demand.uses and device.uri in worker.busy):
                return Seat(address, device if demand.uses else None, demand.exclusive, worker.term)
        return None

    def _take(self, seat: Seat) -> Seat:
        worker = self._workers[seat.worker]
        host = worker.offer.host
        worker.running += 1
        self._running[host] += 1
        if seat.device is not None and (seat.exclusive or not is_cpu(seat.device.uri)):
            worker.busy.add(seat.device.uri)
        if seat.exclusive:
            self._alone.add(host)
        del self._open[seat.worker]
        if worker.running < worker.offer.jobs:
            self._open[seat.worker] = None
        return seat


@dataclass(slots=True)
class _UnderWay:
    """A step that a worker does; with its answer where that lacks files, which are on their way."""

    step: Step
    seat: Seat
    name: str
    order: Order
    answer: OrderAnswer | None = None

    @property
    def where(self) -> str:
        """Worker and device, for people."""
        return f"{self.name}/{self.seat.device.name}" if self.seat.device else self.name


def keep_below(run_dir: Path) -> Callable[[Step, OrderAnswer], None]:
    """Keeps the files that come with a step below its folder in a run's, and nowhere else."""

    def keep(step: Step, answer: OrderAnswer) -> None:
        folder = Path(step.folder)
        for name, content in answer.files:
            path = run_dir / name
            if path.parent == folder and name == str(path.relative_to(run_dir)):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomic(path, content)

    return keep


class Conductor(Protocol):
    """Takes what becomes of steps that workers do."""

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        """A step begins, on a worker; again, where another was lost with it."""

    def conclude(self, step: Step, result: Result) -> Verdict:
        """A step has its result."""

    def remark(self, text: str) -> None:
        """Something that a reader of the record must know."""

    def abort(self) -> None:
        """Ends what runs here."""


class PlanConductor(Conductor, Protocol):
    """Takes what becomes of all steps of a plan; an `Engine` is one."""

    def put_back(self, step: Step) -> None:
        """A step that began is not done, and waits again."""

    def joined(self, name: str, machine: Mapping[str, Any]) -> None:
        """A worker takes part, on a machine."""

    def result_of(self, step: Step) -> Result:
        """Does a step that takes no machine."""


class ClusterRunner:
    """Runs the steps of a plan on a fleet.

    Args:
        keep: takes what comes with a result; called before that is concluded.
        plan: the conductor, where steps may be such that no worker does them.
        made: what is made already of what the steps need, by name.
        patience: seconds that steps wait for a worker which offers what they need.
    """

    def __init__(
        self,
        queue: ReadyQueue[Demand, Seat],
        fleet: Fleet,
        link: Link,
        conductor: Conductor,
        keep: Callable[[Step, OrderAnswer], None],
        progress: Progress,
        *,
        plan: PlanConductor | None = None,
        made: Mapping[str, Made] = MappingProxyType({}),
        seconds: Callable[[Step], float] = lambda _: 0.0,
        early: Sequence[Event] = (),
        patience: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._fleet = fleet
        self._link = link
        self._conductor = conductor
        self._plan = plan
        self._keep = keep
        self._seconds = seconds
        self._early = early
        self._progress = progress
        self._patience = patience
        self._clock = clock
        self._under_way: dict[str, _UnderWay] = {}
        # Of steps that were begun before: workers that were lost with them, and what their results are to say.
        self._lost: defaultdict[str, list[str]] = defaultdict(list)
        self._notes: defaultdict[str, list[str]] = defaultdict(list)
        self._made = dict(made)
        # Since when nobody offers something.
        self._unoffered: dict[Demand, float] = {}
        self._said: list[Demand] = []
        self._refused: set[Refused] = set()
        # Of workers that are there, by address; and of all that have been.
        self._names: dict[str, str] = {}
        self._known: set[str] = set()
        self._shown = 0.0

    def run(self) -> dict[str, Verdict]:
        """Runs everything and returns the verdicts by step id; the workers have been told to end where it raises."""
        try:
            for happened in self._early:
                self._take(happened)
            while self._hand_out():
                event = self._link.next_event(_TURN_SECONDS)
                if event is not None:
                    self._take(event)
                self._give_up_in_time()
                self._show()
        except BaseException:
            self._conductor.abort()
            self._link.end()
            raise
        return self._queue.verdicts

    def _hand_out(self) -> bool:
        """Starts what can start; whether anything is left to be waited for."""
        while True:
            started = self._queue.take(self._skip)
            for step, seat in started:
                if seat.worker:
                    self._send(step, seat)
                elif self._plan:
                    self._plan.begin(step)
                    self._conclude(step, self._plan.result_of(step))
            if not started:
                return bool(self._under_way or self._queue.waiting)

    def _skip(self, step: Step, reason: str) -> Verdict:
        return self._conductor.conclude(step, Result(Verdict.SKIPPED, reason))

    def _send(self, step: Step, seat: Seat) -> None:
        made = tuple(self._made[need] for need in step.needs if need in self._made)
        device = seat.device.uri if seat.device else ""
        attempt = len(self._lost.get(step.id, ()))
        order = Order(step.id, device, made, step.goldens, attempt, self._seconds(step))
        under_way = self._under_way[step.id] = _UnderWay(step, seat, self._fleet.offer(seat.worker).name, order)
        self._conductor.begin(step, worker=under_way.where, again=step.id in self._notes)
        self._link.send(seat.worker, order)

    def _take(self, event: Event) -> None:
        match event:
            case Joined(worker, offer):
                self._fleet.join(worker, offer)
                self._names[worker] = offer.name
                if self._plan and offer.name not in self._known:
                    self._known.add(offer.name)
                    self._plan.joined(offer.name, offer.machine)
            case Refused() if event not in self._refused:
                self._refused.add(event)
                self._conductor.remark(event.text)
            case Left(worker):
                self._leave(worker)
            case OrderEvent():
                self._take_of_an_order(event)

    def _take_of_an_order(self, event: OrderEvent) -> None:
        if isinstance(event, Broken):
            # It has room again when it is back.
            self._fleet.leave(event.worker)
        order = self._under_way.get(event.step)
        if order is None or order.seat.worker != event.worker:
            # Of a worker that was given up: another one does it.
            return
        match event:
            case Answered():
                self._take_answer(order, event.answer)
            case Broken():
                self._do_again(order, event.reason)
            case Supplied():
                self._take_supplied(order, event.missing)
            case Unfit():
                self._withdraw_device(order, event.reason)

    def _leave(self, worker: str) -> None:
        # Also of one whose part in the run broke before: it may have left with orders that nobody answers now, and
        # with modules that nobody is to be sent to.
        orders = [order for order in self._under_way.values() if order.seat.worker == worker]
        name = self._names.pop(worker, "") or next((order.name for order in orders), "")
        self._fleet.leave(worker)
        self._made = {
            step: replace(made, at=left)
            for step, made in self._made.items()
            if (left := tuple(address for address in made.at if address != worker))
        }
        if not name:
            return
        what = f"; it was doing {', '.join(order.step.id for order in orders)}" if orders else ""
        self._progress.message(f"worker {name} is gone{what}")
        for order in orders:
            self._do_again(order, "it was lost")

    def _do_again(self, order: _UnderWay, reason: str) -> None:
        """A step whose worker has not done it waits for another, or has ended in an error."""
        del self._under_way[order.step.id]
        lost = self._lost[order.step.id]
        lost.append(order.name)
        if len(lost) > _MOST_AGAIN:
            what = f"given up after {len(lost)} workers that did not finish it: {', '.join(lost)} ({reason})"
            hint = "See whether it takes down what it runs on: its memory, its device; then `--resume`."
            self._conclude(order.step, Result(Verdict.ERROR, what, tail=(hint,), notes=order.step.notes))
            return
        self._notes[order.step.id].append(f"begun on worker {order.name}, and done again: {reason}")
        if self._plan:
            self._plan.put_back(order.step)
        if len(lost) == _MOST_AGAIN:
            # The last time beside nothing that could take it down.
            self._fleet.isolate(order.step)
        self._queue.put_back(order.step)

    def _withdraw_device(self, order: _UnderWay, reason: str) -> None:
        """The device of a step takes no further ones; the step waits for another."""
        del self._under_way[order.step.id]
        where = order.where
        self._fleet.withdraw(order.seat.worker, order.seat.device)
        self._conductor.remark(f"worker {where} takes no further part: {reason}")
        if self._plan:
            self._plan.put_back(order.step)
        self._notes[order.step.id].append(f"not done on {where}, which failed its health check: {reason}")
        self._queue.put_back(order.step)

    def _take_answer(self, order: _UnderWay, answer: OrderAnswer) -> None:
        step = order.step
        if answer.missing and order.answer is None:
            order.answer = answer
            self._link.supply(order.seat.worker, step.id, answer.missing)
            return
        result = Result.from_dict(answer.result)
        result = replace(result, worker=order.where, notes=(*result.notes, *self._notes.get(step.id, ())))
        self._keep(step, answer)
        if result.verdict is Verdict.PASSED and step.stage.row.makes_modules and result.cache and result.cache.key:
            self._made[step.id] = Made(step.id, result.cache.key, (order.seat.worker,))
        del self._under_way[step.id]
        self._conclude(step, result)

    def _take_supplied(self, order: _UnderWay, missing: str) -> None:
        """Files that the worker could not get are there now, or are nowhere to be had: what it said of them stands."""
        if order.answer is None:
            # They were asked for because of what it says.
            return
        notes = self._notes[order.step.id]
        if missing:
            notes.append(f"nor did the files come from where the run was started: {missing}")
            self._take_answer(order, order.answer)
            return
        notes.append("files came from where the run was started: the worker could not get them")
        self._link.send(order.seat.worker, order.order)

    def _conclude(self, step: Step, result: Result) -> None:
        self._lost.pop(step.id, None)
        self._notes.pop(step.id, None)
        self._queue.finish(step, self._conductor.conclude(step, result))

    def _give_up_in_time(self) -> None:
        """Ends the steps that have waited long enough for what nobody offers any more."""
        now = self._clock()
        unoffered = [demand for demand in self._queue.waiting if not self._fleet.offers(demand)]
        missing = {demand: self._unoffered.get(demand, now) for demand in unoffered}
        # Workers that plan the run, or begin it again, are there within seconds.
        long = [demand for demand, since in missing.items() if now - since > _REMARKABLE_SECONDS]
        if long != self._said:
            self._said = long
            self._progress.waiting(f"for a worker with {long[0].text}: none is there" if long else "")
        self._unoffered = missing
        for demand, since in missing.items():
            if now - since < self._patience:
                continue
            what = f"no worker with {demand.text} has come back within {self._patience:g} s"
            for step in self._queue.take_all(demand):
                self._conductor.begin(step, again=step.id in self._notes)
                hint = "Start one (`gauntlet worker`), and go on with `--resume`."
                self._conclude(step, Result(Verdict.ERROR, what, tail=(hint,), notes=step.notes))

    def _show(self) -> None:
        now = self._clock()
        if now - self._shown < _SHOW_SECONDS:
            return
        self._shown = now
        running = tuple(
            (order.name, order.seat.device.name if order.seat.device else "", order.step.id)
            for order in self._under_way.values()
        )
        waiting = Counter[str]()
        for demand, count in self._queue.waiting.items():
            waiting[demand.text] += count
        self._link.show(running, waiting)
        if not self._said:
            waits = ", ".join(f"{count} for {what}" for what, count in waiting.items())
            busy = f"{counted(len(self._fleet), 'worker')}, {counted(len(running), 'step')} under way"
            self._progress.status(busy + (f"; waiting: {waits}" if waits else ""))
