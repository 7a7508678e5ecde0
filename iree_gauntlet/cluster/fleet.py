"""Run a plan on the workers of a cluster: assign steps to workers, and journal the results in one thread.

Compiles go first to workers without devices. A step that uses a device goes to the chain's last worker if that has
room. A step that measures time has its whole host; as on one machine, it begins when the host has nothing else left to
do.

The steps of a lost worker are repeated by another worker, at most twice, and their results report this. If a tool
fails (a crash), this is the step's result, and the step is not repeated.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.link import (
    AnswerEvent,
    JoinEvent,
    LeaveEvent,
    ModuleLocation,
    Order,
    OrderEvent,
    ProcessDeathEvent,
    RejectionEvent,
    SupplyEvent,
    UnfitDeviceEvent,
)
from iree_gauntlet.device_kinds import is_cpu, split_device
from iree_gauntlet.engine.scheduler import Rank
from iree_gauntlet.figures import GoldenRule
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.results import Result
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from iree_gauntlet.cluster.link import Event, Link, OrderAnswer
    from iree_gauntlet.cluster.offers import WorkerDevice, WorkerResources
    from iree_gauntlet.engine.scheduler import ReadyQueue
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.steps import Step
# The number of times a step is repeated after losing its worker.
# The files of failed attempts are in such folders of their step.
_ATTEMPT_FOLDER = re.compile(r"attempt\d+")
_MAX_RETRIES = 2
# A killed worker returns within seconds, and a rebooting host within minutes.
_WORKER_TIMEOUT_SECONDS = 120.0
_MIN_REPORTED_WAIT_SECONDS = 10.0
_EVENT_TIMEOUT_SECONDS = 0.5
_STATUS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The resources that a step needs from a worker.

    Attributes:
        device: the spec's name of the device: a driver (`hip`), an ordinal (`hip://1`, which means any device of that
            driver), or a device's own URI; empty for none.
        sku: the machine that the step's golden times are for; empty for any.
        needs_no_worker: True if the step is skipped or blocked.
    """

    device: str = ""
    sku: str = ""
    uses_device: bool = False
    exclusive: bool = False
    needs_no_worker: bool = False

    @property
    def rank(self) -> Rank:
        """The rank in the queue: steps that need no worker come first, steps that need a whole host last."""
        if self.needs_no_worker:
            return Rank.CORELESS
        return Rank.EXCLUSIVE if self.exclusive else Rank.SHARED

    @property
    def text(self) -> str:
        """A description for people."""
        if not self.device:
            return "any worker"
        if is_cpu(self.device):
            return f"the CPU as a device (--device cpu{f',sku={self.sku}' if self.sku else ''})"
        return f"device {self.device}" + (f" of SKU {self.sku}" if self.sku else "")

    def is_met_by(self, resources: WorkerResources) -> bool:
        """Return whether a worker could do the step if it were idle."""
        return not self.device or any(self.matches(device) for device in resources.devices)

    def matches(self, device: WorkerDevice) -> bool:
        """Return whether a device is of the requested kind."""
        if self.sku and device.sku != self.sku:
            return False
        if is_cpu(self.device):
            return is_cpu(device.uri)
        driver, path = split_device(self.device)
        any_ordinal = not path or path.isdecimal()
        return device.uri == self.device or (any_ordinal and split_device(device.uri)[0] == driver)


def list_resource_requests(steps: Sequence[Step]) -> dict[str, ResourceRequest]:
    """Return the resources that each step needs, by step id."""
    devices: dict[str, str] = {}
    for step in steps:
        if step.resources.device:
            devices.setdefault(step.chain, step.resources.device)
    requests = {}
    for step in steps:
        resources = step.resources
        if step.skip or step.blocked:
            request = ResourceRequest(needs_no_worker=True)
        elif resources.device:
            has_timed_golden = any(golden.field.rule is GoldenRule.TIMED for golden in step.goldens)
            request = ResourceRequest(
                resources.device, step.sku if has_timed_golden else "", uses_device=True, exclusive=resources.exclusive
            )
        else:
            needs_local_device = step.stage.row.stays_local or bool(dict(step.cache.ingredients).get("host"))
            request = ResourceRequest(
                devices.get(step.chain, "") if needs_local_device else "", exclusive=resources.exclusive
            )
        requests[step.id] = request
    return requests


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """The place of a step on a worker (empty if it needs none), with the step's device and the worker's join."""

    worker: str
    device: WorkerDevice | None = None
    exclusive: bool = False
    join_id: int = 0


@dataclass(slots=True)
class _Worker:
    resources: WorkerResources
    join_id: int
    running: int = 0
    busy_devices: set[str] = field(default_factory=set)


class Fleet:
    """The connected workers and their load; their free places are the `Slots` for the steps of a plan."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._requests = list_resource_requests(steps)
        # The worker that last got a step of each chain.
        self._chain_workers: dict[str, str] = {}
        self._workers: dict[str, _Worker] = {}
        # Workers with room for a step, the least recently used first.
        self._available: dict[str, None] = {}
        self._running: Counter[str] = Counter()
        self._exclusive_hosts: set[str] = set()
        self._join_count = 0

    def __len__(self) -> int:
        return len(self._workers)

    def get_resources(self, address: str) -> WorkerResources:
        """Return the resources of a connected worker."""
        return self._workers[address].resources

    def join(self, address: str, resources: WorkerResources) -> None:
        """Add a worker, unless it has already joined."""
        if address in self._workers:
            return
        self._join_count += 1
        self._workers[address] = _Worker(resources, self._join_count)
        self._available[address] = None

    def leave(self, address: str) -> None:
        """Remove a worker with all of its load."""
        worker = self._workers.pop(address, None)
        self._available.pop(address, None)
        if worker is not None:
            self._running[worker.resources.host] -= worker.running
            if not self._running[worker.resources.host]:
                self._exclusive_hosts.discard(worker.resources.host)

    def withdraw(self, address: str, device: WorkerDevice | None) -> None:
        """Withdraw a device of a worker: the device gets no more steps."""
        worker = self._workers.get(address)
        if worker is not None:
            devices = tuple(other_device for other_device in worker.resources.devices if other_device != device)
            worker.resources = replace(worker.resources, devices=devices)

    def has_worker_for(self, request: ResourceRequest) -> bool:
        """Return whether a connected worker could do a step with this request if all workers were idle."""
        return any(request.is_met_by(worker.resources) for worker in self._workers.values())

    def count_hosts(self, request: ResourceRequest) -> int:
        """Return how many hosts could do a step with this request if all were idle."""
        return len({worker.resources.host for worker in self._workers.values() if request.is_met_by(worker.resources)})

    def request(self, step: Step) -> ResourceRequest:
        """Return a step's resource request, as `Slots` does."""
        return self._requests[step.id]

    def isolate(self, step: Step) -> None:
        """Make a step request its whole host from now on."""
        self._requests[step.id] = replace(self._requests[step.id], exclusive=True)

    def take(
        self, step: Step, request: ResourceRequest, pending_requests: Sequence[ResourceRequest]
    ) -> WorkerSlot | None:
        """Take a slot for a step, as `Slots` does."""
        if request.needs_no_worker:
            return WorkerSlot("")
        slot = self.acquire_slot(
            request, self._chain_workers.get(step.chain, ""), () if request.device else pending_requests
        )
        if slot is not None:
            self._chain_workers[step.chain] = slot.worker
        return slot

    def fits(self, step: Step) -> bool:
        """Return True: workers check their memory themselves."""
        del step
        return True

    def acquire_slot(
        self, request: ResourceRequest, preferred_worker: str = "", pending_requests: Collection[ResourceRequest] = ()
    ) -> WorkerSlot | None:
        """Take and return a slot for a step; return None if no slot is free."""
        if preferred_worker in self._available and (slot := self._find_slot(preferred_worker, request)) is not None:
            return self._occupy(slot)
        fallback: WorkerSlot | None = None
        for address in self._available:
            slot = self._find_slot(address, request)
            if slot is None:
                continue
            resources = self._workers[address].resources
            if request.device or not resources.devices:
                return self._occupy(slot)
            # If the fleet has workers without devices, leave this one to the steps that wait for its device.
            has_deviceless_worker = any(not worker.resources.devices for worker in self._workers.values())
            if fallback is None and not (
                has_deviceless_worker and any(pending.is_met_by(resources) for pending in pending_requests)
            ):
                fallback = slot
        return self._occupy(fallback) if fallback is not None else None

    def release(self, slot: WorkerSlot) -> None:
        """Release a slot, as `Slots` does; do nothing if its worker has left."""
        worker = self._workers.get(slot.worker)
        if worker is None or worker.join_id != slot.join_id:
            return
        host = worker.resources.host
        worker.running -= 1
        self._running[host] -= 1
        if slot.device is not None:
            worker.busy_devices.discard(slot.device.uri)
        if slot.exclusive:
            self._exclusive_hosts.discard(host)
        self._available[slot.worker] = None

    def _find_slot(self, address: str, request: ResourceRequest) -> WorkerSlot | None:
        worker = self._workers[address]
        host = worker.resources.host
        if (
            host in self._exclusive_hosts
            or worker.running >= worker.resources.jobs
            or (request.exclusive and self._running[host])
        ):
            return None
        if not request.device:
            return WorkerSlot(address, exclusive=request.exclusive, join_id=worker.join_id)
        for device in worker.resources.devices:
            if request.matches(device) and not (request.uses_device and device.uri in worker.busy_devices):
                return WorkerSlot(address, device if request.uses_device else None, request.exclusive, worker.join_id)
        return None

    def _occupy(self, slot: WorkerSlot) -> WorkerSlot:
        worker = self._workers[slot.worker]
        host = worker.resources.host
        worker.running += 1
        self._running[host] += 1
        if slot.device is not None and (slot.exclusive or not is_cpu(slot.device.uri)):
            worker.busy_devices.add(slot.device.uri)
        if slot.exclusive:
            self._exclusive_hosts.add(host)
        del self._available[slot.worker]
        if worker.running < worker.resources.jobs:
            self._available[slot.worker] = None
        return slot


@dataclass(slots=True)
class _RunningOrder:
    """A step that a worker does; `answer` is set while missing files are sent to the worker."""

    step: Step
    slot: WorkerSlot
    worker_name: str
    order: Order
    answer: OrderAnswer | None = None

    @property
    def location(self) -> str:
        """The worker and device, for people."""
        return f"{self.worker_name}/{self.slot.device.name}" if self.slot.device else self.worker_name


def make_file_saver(run_dir: Path) -> Callable[[Step, OrderAnswer], None]:
    """Return a function that saves the files of an answer in the step's folder of a run, and nowhere else."""

    def save_files(step: Step, answer: OrderAnswer) -> None:
        folder = Path(step.folder)
        for name, file_bytes in answer.files:
            path = run_dir / name
            parent = path.parent.parent if _ATTEMPT_FOLDER.fullmatch(path.parent.name) else path.parent
            if parent == folder and name == str(path.relative_to(run_dir)):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, file_bytes)

    return save_files


class StepHandler(Protocol):
    """Receives the progress and results of steps that workers do."""

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        """Note that a step begins on a worker; `again` is true if an earlier worker was lost with the step."""

    def conclude(self, step: Step, result: Result) -> Verdict:
        """Record a step's result."""

    def remark(self, text: str) -> None:
        """Record a remark for readers of the journal."""

    def abort(self) -> None:
        """End everything that runs on this machine."""


class PlanHandler(StepHandler, Protocol):
    """Receives the progress and results of all steps of a plan; an `Engine` is one."""

    def put_back(self, step: Step) -> None:
        """Note that a started step was not done, and waits again."""

    def joined(self, name: str, machine: Mapping[str, Any]) -> None:
        """Note that a worker takes part, on a machine."""

    def result_of(self, step: Step) -> Result:
        """Do a step that needs no worker."""


class ClusterRunner:
    """Runs the steps of a plan on a fleet.

    Args:
        keep: saves the files of an answer; called before the answer's result is concluded.
        plan_handler: the handler, if some steps may need no worker; otherwise None.
        cached_modules: modules that the steps need and that are already built, by step name.
        compute_budget_seconds: returns the seconds in which a worker may measure a unit of a comparison; 0 for steps.
        timeout: seconds for which steps wait for a worker with the needed resources.
    """

    def __init__(
        self,
        queue: ReadyQueue[ResourceRequest, WorkerSlot],
        fleet: Fleet,
        link: Link,
        handler: StepHandler,
        keep: Callable[[Step, OrderAnswer], None],
        progress: Progress,
        *,
        plan_handler: PlanHandler | None = None,
        cached_modules: Mapping[str, ModuleLocation] = MappingProxyType({}),
        compute_budget_seconds: Callable[[Step], float] = lambda _: 0.0,
        early_events: Sequence[Event] = (),
        timeout: float = _WORKER_TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._fleet = fleet
        self._link = link
        self._handler = handler
        self._plan_handler = plan_handler
        self._keep = keep
        self._compute_budget_seconds = compute_budget_seconds
        self._early_events = early_events
        self._progress = progress
        self._timeout = timeout
        self._clock = clock
        self._running_orders: dict[str, _RunningOrder] = {}
        # Workers that were lost with a step, and notes for the step's result, by step id.
        self._lost_workers: defaultdict[str, list[str]] = defaultdict(list)
        self._notes: defaultdict[str, list[str]] = defaultdict(list)
        self._cached_modules = dict(cached_modules)
        # The time since which no worker serves a request.
        self._unserved_since: dict[ResourceRequest, float] = {}
        self._reported_requests: list[ResourceRequest] = []
        self._rejections: set[RejectionEvent] = set()
        # Names of connected workers by address; and names of all workers that ever joined.
        self._worker_names: dict[str, str] = {}
        self._recorded_workers: set[str] = set()
        self._shown_at = 0.0

    def run(self) -> dict[str, Verdict]:
        """Run everything and return the verdicts by step id; before raising an error, tell the workers to end."""
        try:
            for early_event in self._early_events:
                self._handle_event(early_event)
            while self._start_ready_steps():
                event = self._link.next_event(_EVENT_TIMEOUT_SECONDS)
                if event is not None:
                    self._handle_event(event)
                self._fail_unserved_steps()
                self._show()
        except BaseException:
            self._handler.abort()
            self._link.end()
            raise
        return self._queue.verdicts

    def _start_ready_steps(self) -> bool:
        """Start every step that can start; return whether anything is left to wait for."""
        while True:
            ready = self._queue.take(self._skip)
            for step, slot in ready:
                if slot.worker:
                    self._send(step, slot)
                elif self._plan_handler:
                    self._plan_handler.begin(step)
                    self._conclude(step, self._plan_handler.result_of(step))
            if not ready:
                return bool(self._running_orders or self._queue.waiting)

    def _skip(self, step: Step, reason: str) -> Verdict:
        return self._handler.conclude(step, Result(Verdict.SKIPPED, reason))

    def _send(self, step: Step, slot: WorkerSlot) -> None:
        cached_modules = tuple(self._cached_modules[need] for need in step.needs if need in self._cached_modules)
        device = slot.device.uri if slot.device else ""
        attempt = len(self._lost_workers.get(step.id, ()))
        order = Order(step.id, device, cached_modules, step.goldens, attempt, self._compute_budget_seconds(step))
        running = self._running_orders[step.id] = _RunningOrder(
            step, slot, self._fleet.get_resources(slot.worker).name, order
        )
        self._handler.begin(step, worker=running.location, again=step.id in self._notes)
        self._link.send(slot.worker, order)

    def _handle_event(self, event: Event) -> None:
        match event:
            case JoinEvent(worker, offer):
                self._fleet.join(worker, offer)
                self._worker_names[worker] = offer.name
                if self._plan_handler and offer.name not in self._recorded_workers:
                    self._recorded_workers.add(offer.name)
                    self._plan_handler.joined(offer.name, offer.machine)
            case RejectionEvent() if event not in self._rejections:
                self._rejections.add(event)
                self._handler.remark(event.text)
            case LeaveEvent(worker):
                self._handle_departure(worker)
            case OrderEvent():
                self._handle_order_event(event)

    def _handle_order_event(self, event: OrderEvent) -> None:
        if isinstance(event, ProcessDeathEvent):
            # The worker joins again when its process has restarted.
            self._fleet.leave(event.worker)
        running = self._running_orders.get(event.step)
        if running is None or running.slot.worker != event.worker:
            # Ignore the event: its worker was given up, and the step is not the worker's any more.
            return
        match event:
            case AnswerEvent():
                self._handle_answer(running, event.answer)
            case ProcessDeathEvent():
                self._retry(running, event.reason)
            case SupplyEvent():
                self._handle_supply(running, event.failure_reason)
            case UnfitDeviceEvent():
                self._withdraw_device(running, event.reason)

    def _handle_departure(self, worker: str) -> None:
        # The worker may have left the fleet already, when its process died. It may still have orders, which nobody will
        # answer now, and be listed as a location of modules.
        orders = [order for order in self._running_orders.values() if order.slot.worker == worker]
        name = self._worker_names.pop(worker, "") or next((order.worker_name for order in orders), "")
        self._fleet.leave(worker)
        self._cached_modules = {
            step: replace(module, addresses=remaining)
            for step, module in self._cached_modules.items()
            if (remaining := tuple(address for address in module.addresses if address != worker))
        }
        if not name:
            return
        orders_note = f"; it was running {', '.join(order.step.id for order in orders)}" if orders else ""
        self._progress.message(f"worker {name} is gone{orders_note}")
        for order in orders:
            self._retry(order, "it was lost")

    def _retry(self, running: _RunningOrder, reason: str) -> None:
        """Queue a step for another worker; after too many lost workers, end the step with an error."""
        del self._running_orders[running.step.id]
        losses = self._lost_workers[running.step.id]
        losses.append(running.worker_name)
        if len(losses) > _MAX_RETRIES:
            message = f"abandoned after {len(losses)} workers did not finish it: {', '.join(losses)} ({reason})"
            hint = "Check whether it crashes its machine (memory, device); then `--resume`."
            self._conclude(running.step, Result(Verdict.ERROR, message, tail=(hint,), notes=running.step.notes))
            return
        self._notes[running.step.id].append(f"started on worker {running.worker_name}, and run again: {reason}")
        if self._plan_handler:
            self._plan_handler.put_back(running.step)
        if len(losses) == _MAX_RETRIES:
            # For its last attempt, the step has its host to itself, so that no other step can make it fail.
            self._fleet.isolate(running.step)
        self._queue.put_back(running.step)

    def _withdraw_device(self, running: _RunningOrder, reason: str) -> None:
        """Withdraw a step's device from the run, and queue the step for another."""
        del self._running_orders[running.step.id]
        location = running.location
        self._fleet.withdraw(running.slot.worker, running.slot.device)
        self._handler.remark(f"worker {location} no longer takes part: {reason}")
        if self._plan_handler:
            self._plan_handler.put_back(running.step)
        self._notes[running.step.id].append(f"not run on {location}, which failed its health check: {reason}")
        self._queue.put_back(running.step)

    def _handle_answer(self, running: _RunningOrder, answer: OrderAnswer) -> None:
        step = running.step
        if answer.missing and running.answer is None:
            running.answer = answer
            self._link.supply(running.slot.worker, step.id, answer.missing)
            return
        result = Result.from_dict(answer.result)
        result = replace(result, worker=running.location, notes=(*result.notes, *self._notes.get(step.id, ())))
        self._keep(step, answer)
        if result.verdict is Verdict.PASSED and step.stage.row.makes_modules and result.cache and result.cache.key:
            self._cached_modules[step.id] = ModuleLocation(step.id, result.cache.key, (running.slot.worker,))
        del self._running_orders[step.id]
        self._conclude(step, result)

    def _handle_supply(self, running: _RunningOrder, failure_reason: str) -> None:
        """Repeat an order after its missing files were sent; if that failed, the order's first answer is the result."""
        if running.answer is None:
            # Files are only sent after an answer, so this event is stale.
            return
        notes = self._notes[running.step.id]
        if failure_reason:
            notes.append(f"files are missing, and the machine that started the run did not send them: {failure_reason}")
            self._handle_answer(running, running.answer)
            return
        notes.append("the machine that started the run sent files that the worker could not get")
        self._link.send(running.slot.worker, running.order)

    def _conclude(self, step: Step, result: Result) -> None:
        self._lost_workers.pop(step.id, None)
        self._notes.pop(step.id, None)
        self._queue.finish(step, self._handler.conclude(step, result))

    def _fail_unserved_steps(self) -> None:
        """End the steps that have waited too long for resources that no worker has any more."""
        current_time = self._clock()
        missing_requests = [request for request in self._queue.waiting if not self._fleet.has_worker_for(request)]
        unserved_since = {request: self._unserved_since.get(request, current_time) for request in missing_requests}
        # Do not report short waits: workers that plan or restart the run are available within seconds.
        overdue = [
            request for request, since in unserved_since.items() if current_time - since > _MIN_REPORTED_WAIT_SECONDS
        ]
        if overdue != self._reported_requests:
            self._reported_requests = overdue
            self._progress.waiting(f"for a worker with {overdue[0].text}: there is none" if overdue else "")
        self._unserved_since = unserved_since
        for request, since in unserved_since.items():
            if current_time - since < self._timeout:
                continue
            message = f"no worker with {request.text} has come back within {self._timeout:g} s"
            for step in self._queue.take_all(request):
                self._handler.begin(step, again=step.id in self._notes)
                hint = "Start one (`gauntlet worker`), and continue with `--resume`."
                self._conclude(step, Result(Verdict.ERROR, message, tail=(hint,), notes=step.notes))

    def _show(self) -> None:
        current_time = self._clock()
        if current_time - self._shown_at < _STATUS_SECONDS:
            return
        self._shown_at = current_time
        running = tuple(
            (order.worker_name, order.slot.device.name if order.slot.device else "", order.step.id)
            for order in self._running_orders.values()
        )
        waiting = Counter[str]()
        for request, count in self._queue.waiting.items():
            waiting[request.text] += count
        self._link.show(running, waiting)
        if not self._reported_requests:
            waiting_note = ", ".join(f"{count} for {resource_text}" for resource_text, count in waiting.items())
            status = f"{pluralize(len(self._fleet), 'worker')}, {pluralize(len(running), 'step')} running"
            self._progress.status(status + (f"; waiting: {waiting_note}" if waiting_note else ""))
