"""What a cluster does of one run, and of one comparison, once its workers have planned that."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.fleet import Fleet, FleetQueue, demands_of
from iree_gauntlet.cluster.link import Joined, Left, Made, Refused
from iree_gauntlet.cluster.runner import ClusterRunner, kept_below
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.steps import Resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.cluster.dask_link import DaskLink
    from iree_gauntlet.cluster.link import Answer, Event
    from iree_gauntlet.cluster.offers import WorkerOffer
    from iree_gauntlet.engine.engine import Engine
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.experiments.compare_elsewhere import RoundsLog, Unit
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.steps import Step


_TURN_SECONDS = 0.5


class ClusterPart:
    """What a cluster does of one run; as `Elsewhere` of the engine."""

    def __init__(self, link: DaskLink, run_dir: Path, progress: Progress) -> None:
        self._link = link
        self._run_dir = run_dir
        self._progress = progress
        self._fleet = Fleet()
        self._early: list[Event] = []

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """The plan, where workers offer what it asks for.

        Raises:
            UsageError: none of them offers something, or none can take part in the run.
        """
        offers = _offers_of(self._link)
        there = Fleet()
        for address, offer in offers.items():
            there.join(address, offer)
        demands = demands_of(plan.steps)
        lacking: dict[str, list[Step]] = {}
        for step in plan.steps:
            if not there.offers(demands[step.id]) and not (step.skip or step.blocked):
                lacking.setdefault(demands[step.id].text, []).append(step)
        if lacking and not optional:
            lines = [
                f"{text}, which {counted(len(steps), 'step')} need: {steps[-1].id}" for text, steps in lacking.items()
            ]
            what = f"no worker of the cluster has {'; nor '.join(lines)}"
            raise UsageError(what, f"There are: {'; '.join(_described(offer) for offer in offers.values())}.")
        gone = {step.id for steps in lacking.values() for step in steps}
        steps = tuple(
            replace(
                step,
                skip=step.skip or f"compiled only: no worker has {demands[step.id].text}",
                resources=Resources(cores=0),
            )
            if step.id in gone
            else step
            for step in plan.steps
        )
        self._early = _wait_for_the_first(self._link, self._fleet, self._progress)
        return replace(plan, steps=steps)

    def runner(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> ClusterRunner:
        """Runs the steps on the workers."""
        queue = FleetQueue(steps, finished, self._fleet, fail_fast=engine.options.fail_fast)
        keep = kept_below(self._run_dir)
        return ClusterRunner(queue, self._link, engine, keep, self._progress, early=self._early)


class ComparisonPart:
    """What a cluster does of one comparison; as `RoundsElsewhere`."""

    def __init__(self, link: DaskLink, progress: Progress) -> None:
        self._link = link
        self._progress = progress
        self._fleet = Fleet()

    def measure(self, units: Sequence[Unit], rounds: RoundsLog) -> None:
        """Has each unit measured by a worker."""
        steps = [unit.step for unit in units]
        addresses = _addresses(_offers_of(self._link))
        early = _wait_for_the_first(self._link, self._fleet, self._progress)
        modules = [item for unit in units for item in unit.made]
        made = {
            item.need: Made(item.need, item.key, addresses.get(item.worker.partition("/")[0], ())) for item in modules
        }
        queue = FleetQueue(steps, dict.fromkeys(made, Verdict.PASSED), self._fleet, fail_fast=False)
        demands = demands_of(steps)

        def seconds(step: Step) -> float:
            demand = demands[step.id]
            # Those that wait, and this one, which does not any more.
            return rounds.share(self._fleet.hosts(demand), queue.waiting.get(demand, 0) + 1)

        def keep(step: Step, answer: Answer) -> None:
            rounds.keep(step, answer.events)

        runner = ClusterRunner(queue, self._link, rounds, keep, self._progress, made=made, seconds=seconds, early=early)
        runner.run()


def _wait_for_the_first(link: DaskLink, fleet: Fleet, progress: Progress) -> list[Event]:
    """Waits until a worker has planned the run, or none is left; the run waits itself for those that died.

    Returns:
        What happened meanwhile.

    Raises:
        UsageError: there is no worker.
        GauntletError: none can take part.
    """
    left, refused = len(link.offers()), 0
    happened: list[Event] = []
    while left > 0 and not len(fleet):
        event = link.next_event(_TURN_SECONDS)
        happened += [event] if event is not None else []
        if isinstance(event, Joined):
            fleet.join(event.worker, event.offer)
        elif isinstance(event, Refused):
            # Of one that refuses a device alone more is to come.
            left -= not event.device
            refused += not event.device
        elif isinstance(event, Left):
            left -= 1
    if refused and refused == len(link.offers()):
        reasons = [event.text for event in happened if isinstance(event, Refused)]
        raise GauntletError(f"no worker can take part: {'; '.join(reasons)}", "Mend one, and run again.")
    progress.waiting("")
    return happened


def _offers_of(link: DaskLink) -> dict[str, WorkerOffer]:
    """What the workers offer that are there, by address.

    Raises:
        UsageError: there are none.
    """
    offers = link.offers()
    if not offers:
        raise UsageError("the cluster has no workers", "Start some: gauntlet worker ADDRESS --device cpu.")
    return offers


def _addresses(offers: Mapping[str, WorkerOffer]) -> dict[str, tuple[str, ...]]:
    """Where workers are, by their names."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for address, offer in offers.items():
        found[offer.name] += (address,)
    return found


def _described(offer: WorkerOffer) -> str:
    return f"{offer.name} with {', '.join(device.text for device in offer.devices) or 'no device'}"
