"""Messages of a cluster about a plan, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cluster.connection import ClusterRunExecutor
from iree_gauntlet.cluster.link import JoinEvent, LeaveEvent, RejectionEvent
from iree_gauntlet.engine.plan import Plan
from iree_gauntlet.errors import GauntletError, UsageError
from tests.support.simulated_fleet import CPU_OFFER, GPU_OFFER, Messages, make_offer, plan_step

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.cluster.link import Event
    from iree_gauntlet.cluster.offers import WorkerResources

SLOW = "a known-good program exits with 1: it printed nothing"


class Planning:
    """A link of workers that plan a run."""

    def __init__(self, offers: list[WorkerResources], events: list[Event]) -> None:
        self._offers = offers
        self._events = iter(events)

    def list_workers(self) -> dict[str, WorkerResources]:
        return {str(number): offered for number, offered in enumerate(self._offers)}

    def next_event(self, _seconds: float) -> Event | None:
        return next(self._events)


def part(folder: Path, offers: list[WorkerResources], *events: Event) -> tuple[ClusterRunExecutor, Messages]:
    progress = Messages()
    return ClusterRunExecutor(Planning(offers, [*events]), folder, progress), progress  # type: ignore[arg-type]


PLAN = Plan((plan_step("a:compile"), plan_step("a:threshold", "a:compile", device="hip")), (), (), ())


def test_a_device_that_is_refused_does_not_refuse_its_worker(tmp_path: Path) -> None:
    box = make_offer("box", GPU_OFFER, CPU_OFFER)
    happened: list[Event] = [RejectionEvent("box", SLOW, "gpu0"), JoinEvent("1", box)]
    cluster, _ = part(tmp_path, [box], *happened)
    assert cluster.on_devices_there(PLAN, optional=False).steps == PLAN.steps
    # The run says it, and its record has it.
    assert cluster._early_events == happened


def test_when_all_are_refused_each_says_why(tmp_path: Path) -> None:
    offers = [make_offer("one", GPU_OFFER), make_offer("two", GPU_OFFER)]
    cluster, _ = part(
        tmp_path,
        offers,
        RejectionEvent("one", "no room"),
        RejectionEvent("two", SLOW, "gpu0"),
        RejectionEvent("two", "sick"),
    )
    with pytest.raises(
        GauntletError, match="no worker can take part: worker one does not take part: no room; "
    ) as error:
        cluster.on_devices_there(PLAN, optional=False)
    assert "worker two does not take part: sick" in str(error.value)


def test_workers_that_die_while_they_plan_are_not_waited_for_here(tmp_path: Path) -> None:
    offers = [make_offer("one", GPU_OFFER), make_offer("two", GPU_OFFER)]
    cluster, _ = part(tmp_path, offers, LeaveEvent("1"), RejectionEvent("two", "no room"))
    assert cluster.on_devices_there(PLAN, optional=False).steps == PLAN.steps
    assert cluster._early_events == [LeaveEvent("1"), RejectionEvent("two", "no room")]


def test_what_nobody_offers_is_skipped_where_devices_are_optional(tmp_path: Path) -> None:
    box = make_offer("box", CPU_OFFER)
    cluster, _ = part(tmp_path, [box], JoinEvent("1", box))
    compiled, ran = cluster.on_devices_there(PLAN, optional=True).steps
    assert not compiled.skip
    assert ran.skip == "compiled only: no worker has device hip"
    with pytest.raises(UsageError, match="no worker of the cluster has device hip, which 1 step need"):
        cluster.on_devices_there(PLAN, optional=False)


def test_a_cluster_without_workers_says_how_one_is_started(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the cluster has no workers") as error:
        part(tmp_path, [])[0].on_devices_there(PLAN, optional=False)
    assert "gauntlet worker ADDRESS" in error.value.hint
