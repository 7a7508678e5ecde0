"""The assignment of steps to workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cases import Golden, Origin, Verdict
from iree_gauntlet.cluster.fleet import Fleet, ResourceRequest, WorkerSlot, list_resource_requests
from iree_gauntlet.engine.scheduler import ReadyQueue
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.stages import Stage
from tests.support.simulated_fleet import CPU_OFFER, GPU_OFFER, make_offer, plan_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cluster.offers import WorkerResources
    from iree_gauntlet.steps import Step


def fleet_of(*steps: Step, **workers: WorkerResources) -> Fleet:
    fleet = Fleet(steps)
    for name, offered in workers.items():
        fleet.join(name, offered)
    return fleet


def queue_of(steps: Sequence[Step], **workers: WorkerResources) -> ReadyQueue[ResourceRequest, WorkerSlot]:
    return ReadyQueue(steps, {}, fleet_of(*steps, **workers), fail_fast=False)


def unskipped(skipped: Step, reason: str) -> Verdict:
    pytest.fail(f"{skipped.id}: {reason}")


def workers_of(queue: ReadyQueue[ResourceRequest, WorkerSlot]) -> dict[str, str]:
    return {taken.id: seat.worker for taken, seat in queue.take(unskipped)}


def test_compiles_go_to_workers_without_devices_first() -> None:
    steps = [plan_step(f"{name}:compile") for name in "abcd"]
    queue = queue_of(steps, gpu=make_offer("gpu", GPU_OFFER), plain=make_offer("plain"))
    assert sorted(workers_of(queue).values()) == ["gpu", "gpu", "plain", "plain"]
    assert workers_of(queue) == {}


def test_a_device_that_benchmarks_wait_for_takes_no_compiles_where_others_can() -> None:
    steps = [plan_step(f"{name}:compile") for name in "abc"]
    steps.append(plan_step("d:benchmark", stage=Stage.BENCHMARK, device="hip", exclusive=True))
    queue = queue_of(steps, gpu=make_offer("gpu", GPU_OFFER), plain=make_offer("plain", jobs=1))
    assert workers_of(queue) == {"a:compile": "plain", "d:benchmark": "gpu"}


def test_without_other_workers_compiles_go_before_benchmarks() -> None:
    steps = [plan_step("d:benchmark", device="hip", exclusive=True), plan_step("a:compile")]
    queue = queue_of(steps, gpu=make_offer("gpu", GPU_OFFER))
    assert workers_of(queue) == {"a:compile": "gpu"}
    queue.finish(plan_step("a:compile"), Verdict.PASSED)
    assert workers_of(queue) == {"d:benchmark": "gpu"}


def test_a_compile_that_is_measured_has_its_host_too_and_needs_no_device() -> None:
    timed = [plan_step(f"{name}:compile", exclusive=True) for name in "ab"]
    queue = queue_of(timed, one=make_offer("one", CPU_OFFER, host="h"), two=make_offer("two", CPU_OFFER, host="h"))
    assert set(workers_of(queue)) == {"a:compile"}
    assert workers_of(queue) == {}
    queue.finish(timed[0], Verdict.PASSED)
    assert set(workers_of(queue)) == {"b:compile"}


def test_hosts_are_counted_that_have_what_is_needed() -> None:
    fleet = fleet_of(
        one=make_offer("one", CPU_OFFER, host="h"),
        two=make_offer("two", CPU_OFFER, host="h"),
        gpu=make_offer("gpu", GPU_OFFER, CPU_OFFER),
    )
    assert fleet.count_hosts(ResourceRequest("local-task", uses_device=True)) == 2
    assert fleet.count_hosts(ResourceRequest("hip", uses_device=True, exclusive=True)) == 1
    assert fleet.count_hosts(ResourceRequest()) == 2
    assert fleet.count_hosts(ResourceRequest("cuda")) == 0


def test_a_measured_step_has_its_whole_host_with_all_workers_on_it() -> None:
    timed = plan_step("a:benchmark", device="local-task", exclusive=True)
    steps = [timed, plan_step("b:threshold", device="local-task")]
    fleet = fleet_of(
        *steps,
        one=make_offer("one", CPU_OFFER, host="h"),
        two=make_offer("two", CPU_OFFER, host="h"),
        far=make_offer("far"),
    )
    queue = ReadyQueue(steps, {}, fleet, fail_fast=False)
    # The smaller one first; the host is not quiet then.
    assert workers_of(queue) == {"b:threshold": "one"}
    queue.finish(plan_step("b:threshold"), Verdict.PASSED)
    assert set(workers_of(queue)) == {"a:benchmark"}
    assert fleet.acquire_slot(ResourceRequest("local-task", uses_device=True)) is None
    assert fleet.acquire_slot(ResourceRequest()) is not None
    queue.finish(timed, Verdict.PASSED)
    assert fleet.acquire_slot(ResourceRequest("local-task", uses_device=True)) is not None


def test_a_gpu_is_one_steps_and_a_processor_many() -> None:
    fleet = fleet_of(box=make_offer("box", GPU_OFFER, CPU_OFFER, jobs=4))
    gpu, cpu = ResourceRequest("hip", uses_device=True), ResourceRequest("local-sync", uses_device=True)
    first = fleet.acquire_slot(gpu)
    assert first == WorkerSlot("box", GPU_OFFER, join_id=1)
    assert fleet.acquire_slot(gpu) is None
    assert fleet.acquire_slot(cpu) is not None
    assert fleet.acquire_slot(cpu) is not None
    assert fleet.acquire_slot(ResourceRequest("hip")) is not None, "it is only compiled where the GPU is"
    fleet.release(first)
    assert fleet.acquire_slot(gpu) is not None


@pytest.mark.parametrize(
    ("asked", "sku", "fits"),
    [
        ("hip", "", True),
        ("hip://3", "", True),
        ("hip://GPU-1", "", True),
        ("hip://GPU-2", "", False),
        ("hip", "mi300", True),
        ("hip", "mi250", False),
        ("cuda", "", False),
        ("local-task", "", False),
    ],
)
def test_what_a_spec_calls_a_device_fits_another_machines(asked: str, sku: str, fits: bool) -> None:
    assert ResourceRequest(asked, sku).matches(GPU_OFFER) is fits


def test_a_golden_time_asks_for_its_sku_and_nothing_else_does() -> None:
    golden = Golden(Figure.TIME, 1.0, 1.1, Statistic.MEAN, "mi300", "", Origin("x"))
    timed = replace(plan_step("a:benchmark", device="hip", exclusive=True), sku="mi300")
    checked = replace(plan_step("a:threshold", device="hip"), sku="mi300")
    demands = list_resource_requests([timed, replace(timed, id="b:benchmark", goldens=(golden,)), checked])
    assert [demand.sku for demand in demands.values()] == ["", "mi300", ""]


def test_what_is_compiled_for_the_host_is_compiled_where_it_runs() -> None:
    steps = [
        plan_step("a:compile", host="znver4"),
        plan_step("a:threshold", "a:compile", device="local-task"),
        plan_step("b:compile"),
        plan_step("c:parameters", stage=Stage.PARAMETERS),
        plan_step("c:threshold", "c:parameters", device="hip"),
    ]
    demands = list_resource_requests(steps)
    assert demands["a:compile"] == ResourceRequest("local-task")
    assert demands["b:compile"] == ResourceRequest()
    assert demands["c:parameters"] == ResourceRequest("hip")
    queue = queue_of(steps, plain=make_offer("plain"), cpu=make_offer("cpu", CPU_OFFER))
    assert workers_of(queue) == {"a:compile": "cpu", "b:compile": "plain"}


def test_a_chain_stays_where_it_was_if_there_is_room() -> None:
    workers = {f"w{number}": make_offer(f"w{number}", CPU_OFFER) for number in range(5)}
    steps = [plan_step("a:compile", host="x"), plan_step("b:compile", host="x")]
    steps += [plan_step(f"{name}:threshold", f"{name}:compile", device="local-task") for name in "ab"]
    queue = queue_of(steps, **workers)
    compiled = workers_of(queue)
    for done in steps[:2]:
        queue.finish(done, Verdict.PASSED)
    ran = workers_of(queue)
    assert ran == {"a:threshold": compiled["a:compile"], "b:threshold": compiled["b:compile"]}


def test_a_worker_that_came_back_owes_nothing_for_what_it_did_before() -> None:
    fleet = fleet_of(w=make_offer("w", jobs=1))
    seat = fleet.acquire_slot(ResourceRequest())
    assert seat is not None
    fleet.leave("w")
    fleet.join("w", make_offer("w", jobs=1))
    fleet.release(seat)
    assert fleet.acquire_slot(ResourceRequest()) is not None
    assert fleet.acquire_slot(ResourceRequest()) is None
    # It is known already: what it does now still counts.
    fleet.join("w", make_offer("w", jobs=1))
    assert fleet.acquire_slot(ResourceRequest()) is None


def test_what_nobody_offers_is_known() -> None:
    fleet = fleet_of(w=make_offer("w", GPU_OFFER))
    assert not fleet.has_worker_for(ResourceRequest("cuda", uses_device=True))
    assert fleet.has_worker_for(ResourceRequest("hip", uses_device=True))
    assert ResourceRequest("hip", "mi300").text == "device hip of SKU mi300"


def test_steps_get_seats_in_the_order_of_the_plan_whatever_they_need() -> None:
    steps = [
        plan_step("a:threshold", device="hip"),
        plan_step("b:compile"),
        plan_step("c:threshold", device="local-task"),
    ]
    steps += [plan_step("d:compile"), plan_step("e:compile", exclusive=True), plan_step("f:compile")]
    queue = queue_of(steps, box=make_offer("box", GPU_OFFER, CPU_OFFER, jobs=4))
    assert list(workers_of(queue)) == ["a:threshold", "b:compile", "c:threshold", "d:compile"]


def test_a_step_that_is_put_back_keeps_its_place_in_the_plan() -> None:
    steps = [plan_step(f"{name}:compile") for name in "abc"]
    queue = queue_of(steps, box=make_offer("box", jobs=1))
    assert list(workers_of(queue)) == ["a:compile"]
    assert workers_of(queue) == {}
    queue.put_back(steps[0])
    assert queue.waiting == {ResourceRequest(): 3}
    assert list(workers_of(queue)) == ["a:compile"]


def test_what_nobody_has_to_do_takes_no_seat() -> None:
    skipped = [replace(plan_step(f"{name}:compile"), skip="left out") for name in "ab"]
    queue = queue_of([*skipped, plan_step("c:compile")], box=make_offer("box", jobs=1))
    assert workers_of(queue) == {"a:compile": "", "b:compile": "", "c:compile": "box"}
    queue.finish(skipped[0], Verdict.SKIPPED)
