"""Which step goes to which worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iree_gauntlet.cases import Golden, Metric, Origin, Statistic, Verdict
from iree_gauntlet.cluster.fleet import Demand, Fleet, FleetQueue, Seat, list_demands
from iree_gauntlet.stages import Stage
from tests.support.simulated_fleet import CPU, GPU, offer, step


def fleet_of(**workers: object) -> Fleet:
    fleet = Fleet()
    for name, offered in workers.items():
        fleet.join(name, offered)  # type: ignore[arg-type]
    return fleet


def workers_of(queue: FleetQueue) -> dict[str, str]:
    return {taken.id: seat.worker if seat else "" for taken, seat in queue.take()}


def test_compiles_go_to_workers_without_devices_first() -> None:
    fleet = fleet_of(gpu=offer("gpu", GPU), plain=offer("plain"))
    queue = FleetQueue([step(f"{name}:compile") for name in "abcd"], {}, fleet, fail_fast=False)
    assert sorted(workers_of(queue).values()) == ["gpu", "gpu", "plain", "plain"]
    assert workers_of(queue) == {}


def test_a_device_that_benchmarks_wait_for_takes_no_compiles_where_others_can() -> None:
    fleet = fleet_of(gpu=offer("gpu", GPU), plain=offer("plain", jobs=1))
    steps = [step(f"{name}:compile") for name in "abc"]
    steps.append(step("d:benchmark", stage=Stage.BENCHMARK, device="hip", exclusive=True))
    queue = FleetQueue(steps, {}, fleet, fail_fast=False)
    assert workers_of(queue) == {"a:compile": "plain", "d:benchmark": "gpu"}


def test_without_other_workers_compiles_go_before_benchmarks() -> None:
    queue = FleetQueue(
        [step("d:benchmark", device="hip", exclusive=True), step("a:compile")],
        {},
        fleet_of(gpu=offer("gpu", GPU)),
        fail_fast=False,
    )
    assert workers_of(queue) == {"a:compile": "gpu"}
    queue.finish(step("a:compile"), Verdict.PASSED)
    assert workers_of(queue) == {"d:benchmark": "gpu"}


def test_a_compile_that_is_measured_has_its_host_too_and_needs_no_device() -> None:
    fleet = fleet_of(one=offer("one", CPU, host="h"), two=offer("two", CPU, host="h"))
    timed = [step(f"{name}:compile", exclusive=True) for name in "ab"]
    queue = FleetQueue(timed, {}, fleet, fail_fast=False)
    assert set(workers_of(queue)) == {"a:compile"}
    assert workers_of(queue) == {}
    queue.finish(timed[0], Verdict.PASSED)
    assert set(workers_of(queue)) == {"b:compile"}


def test_hosts_are_counted_that_have_what_is_needed() -> None:
    fleet = fleet_of(one=offer("one", CPU, host="h"), two=offer("two", CPU, host="h"), gpu=offer("gpu", GPU, CPU))
    assert fleet.hosts(Demand("local-task", uses=True)) == 2
    assert fleet.hosts(Demand("hip", uses=True, exclusive=True)) == 1
    assert fleet.hosts(Demand()) == 2
    assert fleet.hosts(Demand("cuda")) == 0


def test_a_measured_step_has_its_whole_host_with_all_workers_on_it() -> None:
    fleet = fleet_of(one=offer("one", CPU, host="h"), two=offer("two", CPU, host="h"), far=offer("far"))
    timed = step("a:benchmark", device="local-task", exclusive=True)
    queue = FleetQueue([timed, step("b:threshold", device="local-task")], {}, fleet, fail_fast=False)
    # The smaller one first; the host is not quiet then.
    assert workers_of(queue) == {"b:threshold": "one"}
    queue.finish(step("b:threshold"), Verdict.PASSED)
    assert set(workers_of(queue)) == {"a:benchmark"}
    assert fleet.seat(Demand("local-task", uses=True)) is None
    assert fleet.seat(Demand()) is not None
    queue.finish(timed, Verdict.PASSED)
    assert fleet.seat(Demand("local-task", uses=True)) is not None


def test_a_gpu_is_one_steps_and_a_processor_many() -> None:
    fleet = fleet_of(box=offer("box", GPU, CPU, jobs=4))
    gpu, cpu = Demand("hip", uses=True), Demand("local-sync", uses=True)
    first = fleet.seat(gpu)
    assert first == Seat("box", GPU, term=1)
    assert fleet.seat(gpu) is None
    assert fleet.seat(cpu) is not None
    assert fleet.seat(cpu) is not None
    fleet.give_back(first)
    assert fleet.seat(gpu) is not None


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
    assert Demand(asked, sku).fits(GPU) is fits


def test_a_golden_time_asks_for_its_sku_and_nothing_else_does() -> None:
    golden = Golden(Metric.TIME_MS, 1.0, 1.1, Statistic.MEAN, "mi300", "", Origin("x"))
    timed = replace(step("a:benchmark", device="hip", exclusive=True), sku="mi300")
    checked = replace(step("a:threshold", device="hip"), sku="mi300")
    demands = list_demands([timed, replace(timed, id="b:benchmark", goldens=(golden,)), checked])
    assert [demand.sku for demand in demands.values()] == ["", "mi300", ""]


def test_what_is_compiled_for_the_host_is_compiled_where_it_runs() -> None:
    steps = [
        step("a:compile", host="znver4"),
        step("a:threshold", "a:compile", device="local-task"),
        step("b:compile"),
        step("c:parameters", stage=Stage.PARAMETERS),
        step("c:threshold", "c:parameters", device="hip"),
    ]
    demands = list_demands(steps)
    assert demands["a:compile"] == Demand("local-task")
    assert demands["b:compile"] == Demand()
    assert demands["c:parameters"] == Demand("hip")
    queue = FleetQueue(steps, {}, fleet_of(plain=offer("plain"), cpu=offer("cpu", CPU)), fail_fast=False)
    assert workers_of(queue) == {"a:compile": "cpu", "b:compile": "plain"}


def test_a_chain_stays_where_it_was_if_there_is_room() -> None:
    workers = {f"w{number}": offer(f"w{number}", CPU) for number in range(5)}
    steps = [step("a:compile", host="x"), step("b:compile", host="x")]
    steps += [step(f"{name}:threshold", f"{name}:compile", device="local-task") for name in "ab"]
    queue = FleetQueue(steps, {}, fleet_of(**workers), fail_fast=False)
    compiled = workers_of(queue)
    for done in steps[:2]:
        queue.finish(done, Verdict.PASSED)
    ran = workers_of(queue)
    assert ran == {"a:threshold": compiled["a:compile"], "b:threshold": compiled["b:compile"]}


def test_a_worker_that_came_back_owes_nothing_for_what_it_did_before() -> None:
    fleet = fleet_of(w=offer("w", jobs=1))
    seat = fleet.seat(Demand())
    assert seat is not None
    fleet.leave("w")
    fleet.join("w", offer("w", jobs=1))
    fleet.give_back(seat)
    assert fleet.seat(Demand()) is not None
    assert fleet.seat(Demand()) is None
    # It is known already: what it does now still counts.
    fleet.join("w", offer("w", jobs=1))
    assert fleet.seat(Demand()) is None


def test_what_nobody_offers_is_known() -> None:
    queue = FleetQueue(
        [step("a:threshold", device="cuda"), step("b:compile")], {}, fleet_of(w=offer("w", GPU)), fail_fast=False
    )
    assert list(queue.unoffered()) == [Demand("cuda", uses=True)]
    assert Demand("hip", "mi300").text == "device hip of SKU mi300"
