"""Which step goes to which worker: the ready steps of a plan, and the room that the workers have.

Knows neither time nor network. Compiles go to workers without devices first; a step that uses a device goes where the
chain was before, if there is room; one that measures time has its whole host. As on one machine, such a step begins
when nothing else is left that its host could do.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import is_cpu, split_device
from iree_gauntlet.engine.scheduler import StepGraph
from iree_gauntlet.figures import GoldenRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from iree_gauntlet.cases import Verdict
    from iree_gauntlet.cluster.offers import DeviceOffer, WorkerOffer
    from iree_gauntlet.steps import Step


@dataclass(frozen=True, slots=True)
class Demand:
    """What a step needs of a worker.

    Attributes:
        device: what the spec calls it: a driver (`hip`), an ordinal (`hip://1`: any of that driver's), or a device's
            own URI; empty for none.
        sku: the machine that its golden times are for; empty for any.
    """

    device: str = ""
    sku: str = ""
    uses: bool = False
    exclusive: bool = False

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
        if resources.device:
            timed = any(golden.field.rule is GoldenRule.TIMED for golden in step.goldens)
            demand = Demand(resources.device, step.sku if timed else "", uses=True, exclusive=resources.exclusive)
        else:
            bound = step.stage.row.is_local or bool(dict(step.cache.ingredients).get("host"))
            demand = Demand(devices.get(step.chain, "") if bound else "", exclusive=resources.exclusive)
        demands[step.id] = demand
    return demands


@dataclass(frozen=True, slots=True)
class Seat:
    """A place for one step, with the device that it uses."""

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
    """The workers that are there, and what they are busy with."""

    def __init__(self) -> None:
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

    def give_back(self, seat: Seat) -> None:
        """A step has ended that had a place; that of a worker which has left is gone already."""
        worker = self._workers.get(seat.worker)
        if worker is None or worker.term != seat.term:
            return
        host = worker.offer.host
        worker.running -= 1
        self._running[host] -= 1
        if seat.device is not None:
            worker.busy.discard(seat.device.uri)
        if seat.exclusive:
            self._alone.discard(host)
        self._open[seat.worker] = None

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


class FleetQueue(StepGraph):
    """The steps of a plan that are yet to be done by a fleet."""

    def __init__(
        self, steps: Sequence[Step], finished: Mapping[str, Verdict], fleet: Fleet, *, fail_fast: bool
    ) -> None:
        self.fleet = fleet
        self._demands = list_demands(steps)
        # What nobody has to do.
        self._idle: list[int] = []
        self._lanes: dict[Demand, list[int]] = {}
        self._homes: dict[str, str] = {}
        self._seats: dict[str, Seat] = {}
        super().__init__(steps, finished, fail_fast=fail_fast)
        self._places = {step.id: place for place, step in enumerate(self._steps)}

    @property
    def waiting(self) -> dict[Demand, int]:
        """How many steps wait for a worker."""
        return {demand: len(lane) for demand, lane in self._lanes.items() if lane}

    def unoffered(self) -> Iterable[Demand]:
        """What steps wait for that no worker offers which is there."""
        return [demand for demand in self.waiting if not self.fleet.offers(demand)]

    def take(self) -> list[tuple[Step, Seat | None]]:
        """Steps to start now, each with its place; without one those that nobody has to do.

        Ask for skips first, until there is none.
        """
        started: list[tuple[Step, Seat | None]] = []
        while self._idle:
            started.append((self._start(heapq.heappop(self._idle)), None))
        awaited = [demand for demand in self.waiting if demand.exclusive]
        for demand in sorted(self.waiting, key=lambda item: (item.exclusive, self._lanes[item][0])):
            lane = self._lanes[demand]
            while lane:
                chain = self._steps[lane[0]].chain
                seat = self.fleet.seat(demand, self._homes.get(chain, ""), () if demand.device else awaited)
                if seat is None:
                    break
                step = self._start(heapq.heappop(lane))
                self._seats[step.id] = seat
                self._homes[chain] = seat.worker
                started.append((step, seat))
        return started

    def take_all(self, demand: Demand) -> list[Step]:
        """The steps that wait for something which nobody will offer; they count as started."""
        return [self._start(place) for place in sorted(self._lanes.pop(demand, []))]

    def finish(self, step: Step, verdict: Verdict) -> None:
        """As for `StepGraph`; its place is free again."""
        self._give_back(step)
        super().finish(step, verdict)

    def put_back(self, step: Step, *, alone: bool) -> None:
        """A step whose worker was lost waits again; to have the whole host next time, where it must be `alone`."""
        if alone:
            self._demands[step.id] = replace(self._demands[step.id], exclusive=True)
        self._give_back(step)
        self._count(step, -1)
        place = self._places[step.id]
        self._waiting[place] = True
        if self._stopped_by:
            self._give_up(place)
        else:
            self._enqueue(place)

    def _give_back(self, step: Step) -> None:
        seat = self._seats.pop(step.id, None)
        if seat is not None:
            self.fleet.give_back(seat)

    def _start(self, place: int) -> Step:
        step = self._steps[place]
        self._waiting[place] = False
        self._count(step, 1)
        return step

    def _enqueue(self, place: int) -> None:
        step = self._steps[place]
        idle = step.skip or step.blocked
        heapq.heappush(self._idle if idle else self._lanes.setdefault(self._demands[step.id], []), place)

    def _forget(self) -> None:
        self._idle.clear()
        self._lanes.clear()
