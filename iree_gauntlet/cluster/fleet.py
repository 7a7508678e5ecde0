"""Which step goes to which worker: the ready steps of a plan, and the room that the workers have.

Knows neither time nor network. Compiles go to workers without devices first; a step that uses a device goes where the
chain was before, if there is room; one that measures time has its whole host. As on one machine, such a step begins
when nothing else is left that its host could do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import is_cpu, split_device
from iree_gauntlet.engine.scheduler import Rank
from iree_gauntlet.figures import GoldenRule

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from iree_gauntlet.cluster.offers import DeviceOffer, WorkerOffer
    from iree_gauntlet.steps import Step


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
