"""A plan on workers that come, go and die: the record has every step once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.link import (
    AnswerEvent,
    JoinEvent,
    LeaveEvent,
    OrderAnswer,
    ProcessDeathEvent,
    RejectionEvent,
    SupplyEvent,
    UnfitDeviceEvent,
)
from iree_gauntlet.results import Result
from iree_gauntlet.stages import Stage
from tests.support.simulated_fleet import CPU_OFFER, GPU_OFFER, FakeLink, make_offer, make_runner, plan_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.cluster.link import Event
    from iree_gauntlet.cluster.offers import WorkerResources
    from iree_gauntlet.steps import Step


def at_once(link: FakeLink) -> Event | None:
    """Every order passes."""
    return link.answer(next(iter(link.open_orders))) if link.open_orders else None


def played(script: Callable[[FakeLink], Iterator[Event | None]]) -> Callable[[FakeLink], Event | None]:
    """What a generator yields, turn by turn; after its end every order passes."""
    begun: list[Iterator[Event | None]] = []

    def turn(link: FakeLink) -> Event | None:
        if not begun:
            begun.append(script(link))
        for event in begun[0]:
            return event
        return at_once(link)

    return turn


CHAIN = [
    plan_step("a:fetch", stage=Stage.FETCH),
    plan_step("a:compile", "a:fetch"),
    plan_step("a:threshold", "a:compile", stage=Stage.THRESHOLD, device="hip"),
]


def test_a_chain_is_done_in_its_order_and_says_where(tmp_path: Path) -> None:
    runner, link, engine, _ = make_runner(CHAIN, {"1": make_offer("box", GPU_OFFER)}, at_once, tmp_path)
    assert set(runner.run().values()) == {Verdict.PASSED}
    assert engine.started_steps == [item.id for item in CHAIN]
    assert [engine.results[item.id].worker for item in CHAIN] == ["box", "box", "box/gpu0"]
    assert [order.device for _, order in link.sent_orders] == ["", "", "hip://GPU-1"]
    assert not link.is_closed


def test_modules_are_named_with_those_who_have_them(tmp_path: Path) -> None:
    workers = {"1": make_offer("box", GPU_OFFER), "2": make_offer("plain")}

    def turn(link: FakeLink) -> Event | None:
        name = next(iter(link.open_orders))
        return link.answer(name, key=f"key of {name}")

    runner, link, _, _ = make_runner(CHAIN, workers, turn, tmp_path)
    runner.run()
    made = {order.step: order.cached_modules for _, order in link.sent_orders}
    assert made["a:compile"] == ()
    assert [(item.step, item.key, item.addresses) for item in made["a:threshold"]] == [
        ("a:compile", "key of a:compile", ("2",))
    ]


def test_a_step_is_done_again_when_its_worker_dies(tmp_path: Path) -> None:
    workers = {"1": make_offer("one", GPU_OFFER), "2": make_offer("two", GPU_OFFER)}
    died: list[str] = []

    def script(link: FakeLink) -> Iterator[Event | None]:
        while "a:threshold" not in link.open_orders:
            yield at_once(link)
        died.append(link.open_orders["a:threshold"][0])
        link.open_orders.clear()
        yield LeaveEvent(died[0])

    runner, _, engine, progress = make_runner(CHAIN, workers, played(script), tmp_path)
    assert set(runner.run().values()) == {Verdict.PASSED}
    lost, other = ("one", "two") if died == ["1"] else ("two", "one")
    result = engine.results["a:threshold"]
    assert result.worker == f"{other}/gpu0"
    assert result.notes == (f"started on worker {lost}, and run again: it was lost",)
    assert progress.messages == [f"worker {lost} is gone; it was running a:threshold"]
    assert engine.started_steps.count("a:threshold") == 1


def test_a_step_that_takes_down_all_workers_is_given_up_and_no_other_is(tmp_path: Path) -> None:
    steps = [plan_step("bad:compile"), *(plan_step(f"{name}:compile") for name in "abcdef")]
    beside: list[set[str]] = []

    def turn(link: FakeLink) -> Event | None:
        if "bad:compile" not in link.open_orders:
            return link.answer(next(iter(link.open_orders))) if link.open_orders else None
        worker, _ = link.open_orders["bad:compile"]
        here = {name for name, (address, _) in link.open_orders.items() if address == worker}
        if not rejoin:
            # What dies takes all on the worker along.
            rejoin.append(worker)
            beside.append(here)
            for name in here:
                del link.open_orders[name]
            return LeaveEvent(worker)
        return None

    rejoin: list[str] = []

    def with_rejoin(link: FakeLink) -> Event | None:
        if rejoin and "bad:compile" not in link.open_orders:
            return JoinEvent(rejoin.pop(), make_offer("w", jobs=3))
        return turn(link)

    runner, _, engine, _ = make_runner(steps, {"1": make_offer("w", jobs=3)}, with_rejoin, tmp_path)
    verdicts = runner.run()
    assert verdicts.pop("bad:compile") is Verdict.ERROR
    assert set(verdicts.values()) == {Verdict.PASSED}
    assert "abandoned after 3 workers did not finish it: w, w, w" in engine.results["bad:compile"].reason
    # The last time it is alone, so that nothing else was there each time.
    assert beside[-1] == {"bad:compile"}
    assert len(beside) == 3


def test_a_crash_of_the_product_is_a_verdict(tmp_path: Path) -> None:
    def turn(link: FakeLink) -> Event | None:
        name = next(iter(link.open_orders))
        crash = name == "a:compile"
        return link.answer(name, Verdict.ERROR, signal="SIGSEGV") if crash else link.answer(name)

    runner, link, engine, _ = make_runner(CHAIN, {"1": make_offer("box", GPU_OFFER)}, turn, tmp_path)
    verdicts = runner.run()
    assert verdicts["a:compile"] is Verdict.ERROR
    assert engine.results["a:threshold"].reason == "a:compile ended in an error"
    assert [order.step for _, order in link.sent_orders] == ["a:fetch", "a:compile"]


def broken(link: FakeLink, name: str) -> ProcessDeathEvent:
    """The process of the run ends on worker 1, with an order undone."""
    del link.open_orders[name]
    return ProcessDeathEvent("1", name, "its process ended with -9: it printed nothing")


def test_a_broken_run_process_is_not_given_more_before_it_is_back(tmp_path: Path) -> None:
    steps = [plan_step("a:compile"), plan_step("b:compile"), plan_step("c:compile")]

    def script(link: FakeLink) -> Iterator[Event | None]:
        yield broken(link, "a:compile")
        while "b:compile" not in link.open_orders:
            yield at_once(link)
        yield broken(link, "b:compile")
        assert not link.open_orders
        yield JoinEvent("1", make_offer("w"))

    runner, link, engine, _ = make_runner(steps, {"1": make_offer("w")}, played(script), tmp_path)
    assert set(runner.run().values()) == {Verdict.PASSED}
    assert engine.results["a:compile"].notes == (
        "started on worker w, and run again: its process ended with -9: it printed nothing",
    )
    assert [order.attempt for _, order in link.sent_orders] == [0, 0, 1, 1, 0]


def test_a_worker_that_dies_while_its_part_of_the_run_is_broken_takes_no_order_along(tmp_path: Path) -> None:
    steps = [plan_step("a:compile"), plan_step("b:compile")]

    def script(link: FakeLink) -> Iterator[Event | None]:
        yield broken(link, "a:compile")
        # What else it did is answered by nobody any more.
        del link.open_orders["b:compile"]
        yield LeaveEvent("1")
        yield JoinEvent("2", make_offer("other"))

    runner, _, engine, progress = make_runner(steps, {"1": make_offer("w")}, played(script), tmp_path)
    assert set(runner.run().values()) == {Verdict.PASSED}
    assert engine.results["b:compile"].notes == ("started on worker w, and run again: it was lost",)
    assert progress.messages[0] == "worker w is gone; it was running b:compile"
    assert list(engine.machines) == ["w", "other"]


def test_nobody_is_sent_for_modules_to_a_worker_that_left_while_its_part_was_broken(tmp_path: Path) -> None:
    steps = [plan_step("a:compile"), plan_step("b:compile"), plan_step("a:threshold", "a:compile", device="hip")]

    def script(link: FakeLink) -> Iterator[Event | None]:
        yield link.answer("a:compile", key="the key")
        yield broken(link, "b:compile")
        yield LeaveEvent("1")
        yield JoinEvent("2", make_offer("second", GPU_OFFER, jobs=1))

    workers = {"1": make_offer("first", jobs=2)}
    runner, link, _, progress = make_runner(steps, workers, played(script), tmp_path)
    assert set(runner.run().values()) == {Verdict.PASSED}
    assert progress.messages[0] == "worker first is gone"
    (order,) = [order for _, order in link.sent_orders if order.step == "a:threshold"]
    assert order.cached_modules == ()


def test_modules_of_a_worker_that_stays_are_still_named_when_another_one_is_lost(tmp_path: Path) -> None:
    steps = [
        *(plan_step(f"{chain}:compile") for chain in "ab"),
        plan_step("c:threshold", "a:compile", "b:compile", stage=Stage.THRESHOLD, device="hip"),
    ]
    sent: list[str] = []

    def script(link: FakeLink) -> Iterator[Event | None]:
        sent.extend(address for address, _ in link.sent_orders)
        yield link.answer("a:compile", key="key of a")
        yield link.answer("b:compile", key="key of b")
        yield LeaveEvent(sent[0])
        yield JoinEvent("3", make_offer("third", GPU_OFFER))

    workers = {"1": make_offer("first", jobs=1), "2": make_offer("second", jobs=1)}
    runner, link, _, _ = make_runner(steps, workers, played(script), tmp_path)
    assert set(runner.run().values()) == {Verdict.PASSED}
    assert sorted(sent) == ["1", "2"]
    (order,) = [order for _, order in link.sent_orders if order.step == "c:threshold"]
    assert [(item.step, item.key, item.addresses) for item in order.cached_modules] == [
        ("b:compile", "key of b", (sent[1],))
    ]


def test_a_late_answer_of_a_lost_worker_counts_for_nothing(tmp_path: Path) -> None:
    def script(link: FakeLink) -> Iterator[Event | None]:
        late = link.answer("a:compile", Verdict.FAILED)
        yield LeaveEvent("1")
        yield late

    workers = {"1": make_offer("x"), "2": make_offer("y")}
    runner, _, engine, _ = make_runner([plan_step("a:compile")], workers, played(script), tmp_path)
    assert runner.run() == {"a:compile": Verdict.PASSED}
    assert engine.conclusion_counts == Counter({"a:compile": 1})


def test_what_nobody_offers_any_more_is_an_error_after_a_while(tmp_path: Path) -> None:
    def script(link: FakeLink) -> Iterator[Event | None]:
        link.open_orders.clear()
        yield LeaveEvent("1")

    steps = [plan_step("a:threshold", device="hip"), plan_step("a:next", "a:threshold")]
    workers = {"1": make_offer("box", GPU_OFFER)}
    runner, link, engine, progress = make_runner(steps, workers, played(script), tmp_path, timeout=30.0)
    runner.run()
    assert engine.results["a:threshold"].reason == "no worker with device hip has come back within 30 s"
    assert engine.results["a:next"].verdict is Verdict.SKIPPED
    assert progress.waits == ["for a worker with device hip: there is none"]
    assert 1030 <= link.clock() <= 1032


def test_a_worker_that_comes_back_in_time_goes_on(tmp_path: Path) -> None:
    def script(link: FakeLink) -> Iterator[Event | None]:
        link.open_orders.clear()
        yield LeaveEvent("1")
        # Half a second each.
        yield from [None] * 21
        yield RejectionEvent("other", "it has Gauntlet 0, and the run 1")
        yield JoinEvent("2", make_offer("box", GPU_OFFER))

    steps, workers = [plan_step("a:threshold", device="hip")], {"1": make_offer("box", GPU_OFFER)}
    runner, _, engine, progress = make_runner(steps, workers, played(script), tmp_path, timeout=30.0)
    assert runner.run() == {"a:threshold": Verdict.PASSED}
    assert engine.remarks == ["worker other does not take part: it has Gauntlet 0, and the run 1"]
    # Nothing runs meanwhile, and a moment is not worth a word.
    assert engine.requeued_steps == ["a:threshold"]
    assert progress.waits == ["for a worker with device hip: there is none", ""]


@pytest.mark.parametrize("ok", [True, False])
def test_files_that_a_worker_cannot_get_are_brought_once(tmp_path: Path, ok: bool) -> None:
    def turn(link: FakeLink) -> Event | None:
        if link.supplies and len(link.sent_orders) == 1 and "a:fetch" not in link.open_orders and not told:
            told.append("supplied")
            return SupplyEvent("1", "a:fetch", "" if ok else "https://x/y: 404")
        worker, _ = link.open_orders.pop("a:fetch")
        if len(link.sent_orders) == 1:
            failed = engine_result(Verdict.ERROR, "no route to host")
            return AnswerEvent(worker, "a:fetch", replace(failed, missing=("https://x/y",)))
        return AnswerEvent(worker, "a:fetch", engine_result(Verdict.PASSED, ""))

    told: list[str] = []
    runner, link, engine, _ = make_runner([CHAIN[0]], {"1": make_offer("box")}, turn, tmp_path)
    runner.run()
    assert link.supplies == [("1", "a:fetch", ("https://x/y",))]
    result = engine.results["a:fetch"]
    assert result.verdict is (Verdict.PASSED if ok else Verdict.ERROR)
    brought = "the machine that started the run sent files that the worker could not get"
    assert result.notes == (
        brought
        if ok
        else "files are missing, and the machine that started the run did not send them: https://x/y: 404",
    )
    assert engine.conclusion_counts["a:fetch"] == 1


def engine_result(verdict: Verdict, reason: str) -> OrderAnswer:
    return OrderAnswer(Result(verdict, reason).as_dict())


def test_a_device_that_fails_its_health_check_takes_no_further_steps(tmp_path: Path) -> None:
    steps = [plan_step(f"{name}:threshold", stage=Stage.THRESHOLD, device="hip") for name in "abc"]
    unfit: list[str] = []

    def turn(link: FakeLink) -> Event | None:
        name, (worker, _) = next(iter(link.open_orders.items()))
        if worker == "1":
            del link.open_orders[name]
            unfit.append(name)
            return UnfitDeviceEvent("1", name, "a known-good program takes 9 ms, but took 1 ms in earlier checks")
        return link.answer(name)

    runner, _, engine, _ = make_runner(
        steps, {"1": make_offer("bad", GPU_OFFER), "2": make_offer("good", GPU_OFFER)}, turn, tmp_path
    )
    assert set(runner.run().values()) == {Verdict.PASSED}
    assert len(unfit) == 1
    assert {result.worker for result in engine.results.values()} == {"good/gpu0"}
    assert engine.results[unfit[0]].notes[0].startswith("not run on bad/gpu0, which failed its health check: a known")
    assert engine.remarks[0].startswith("worker bad/gpu0 no longer takes part: a known-good program takes 9 ms")


def test_files_of_a_step_are_kept_below_its_folder_and_nowhere_else(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    folder = run_dir / "steps" / "a" / "compile"
    compiled = replace(plan_step("a:compile"), folder=str(folder))
    files = (
        ("steps/a/compile/stderr.txt", b"said"),
        ("steps/a/compile/attempt1/stderr.txt", b"said before"),
        ("steps/a/compile/other/stderr.txt", b"no"),
        ("steps/b/compile/attempt1/stderr.txt", b"no"),
        ("steps/a/compile/../../../../outside.txt", b"no"),
        ("/etc/outside.txt", b"no"),
        ("journal.jsonl", b"no"),
        ("steps/b/compile/stderr.txt", b"no"),
    )

    def turn(link: FakeLink) -> Event | None:
        answered = link.answer("a:compile")
        return replace(answered, answer=replace(answered.answer, files=files))

    runner, _, _, _ = make_runner([compiled], {"1": make_offer("box")}, turn, run_dir)
    runner.run()
    kept = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {folder / "stderr.txt", folder / "attempt1" / "stderr.txt"}


def test_what_is_skipped_or_blocked_needs_no_worker(tmp_path: Path) -> None:
    steps = [replace(plan_step("a:compile"), skip="not here"), replace(plan_step("b:compile"), blocked="no flag")]
    runner, link, engine, _ = make_runner(steps, {"1": make_offer("box")}, at_once, tmp_path)
    assert runner.run() == {"a:compile": Verdict.SKIPPED, "b:compile": Verdict.ERROR}
    assert not link.sent_orders
    assert engine.results["b:compile"].reason == "no flag"


def test_an_interrupt_ends_the_workers_part(tmp_path: Path) -> None:
    def turn(_link: FakeLink) -> Event | None:
        raise KeyboardInterrupt

    runner, link, engine, _ = make_runner(CHAIN, {"1": make_offer("box", GPU_OFFER)}, turn, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert link.is_closed
    assert engine.aborted


def test_the_first_failure_stops_where_that_is_asked_for(tmp_path: Path) -> None:
    def turn(link: FakeLink) -> Event | None:
        name = next(iter(link.open_orders))
        return link.answer(name, Verdict.FAILED if name == "a:compile" else Verdict.PASSED)

    steps = [plan_step(f"{name}:compile") for name in "abc"]
    runner, _, engine, _ = make_runner(steps, {"1": make_offer("w", jobs=1)}, turn, tmp_path, fail_fast=True)
    assert list(runner.run().values()) == [Verdict.FAILED, Verdict.SKIPPED, Verdict.SKIPPED]
    assert engine.results["c:compile"].reason == "stopped by --fail-fast after a:compile"


def _plan(rng: random.Random, chains: int) -> list[Step]:
    steps = []
    for number in range(chains):
        device = rng.choice(["hip", "local-task"])
        name = f"c{number}"
        steps.append(plan_step(f"{name}:compile", host=rng.choice(["", "x"])))
        steps.append(plan_step(f"{name}:threshold", f"{name}:compile", stage=Stage.THRESHOLD, device=device))
        if rng.random() < 0.4:
            steps.append(
                plan_step(f"{name}:benchmark", f"{name}:compile", stage=Stage.BENCHMARK, device=device, exclusive=True)
            )
    return steps


@given(seed=st.integers(0, 2**32 - 1), chains=st.integers(1, 12))
def test_whatever_happens_every_step_has_one_result(
    seed: int, chains: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    steps = _plan(rng, chains)
    kinds = [(GPU_OFFER,), (CPU_OFFER,), (GPU_OFFER, CPU_OFFER), ()]
    offers = {
        str(number): make_offer(f"w{number}", *rng.choice(kinds), jobs=rng.randint(1, 3), host=f"h{number // 2}")
        for number in range(rng.randint(1, 5))
    }
    # Somebody who can do everything never dies, so that every step comes to something good.
    offers["sure"] = make_offer("sure", GPU_OFFER, CPU_OFFER, jobs=2)
    alive = dict(offers)
    charged: Counter[str] = Counter()

    def turn(link: FakeLink) -> Event | None:
        check_room(link, alive)
        absent = sorted(offers.keys() - alive.keys())
        if absent and rng.random() < 0.3:
            back = rng.choice(absent)
            alive[back] = offers[back]
            return JoinEvent(back, offers[back])
        mortal = sorted(alive.keys() - {"sure"})
        if mortal and rng.random() < 0.25:
            dead = rng.choice(mortal)
            mine = [name for name, (worker, _) in link.open_orders.items() if worker == dead]
            if all(charged[name] < 2 for name in mine):
                charged.update(mine)
                for name in mine:
                    del link.open_orders[name]
                del alive[dead]
                return LeaveEvent(dead)
        return link.answer(rng.choice(sorted(link.open_orders))) if link.open_orders else None

    runner, link, engine, _ = make_runner(steps, offers, turn, tmp_path_factory.getbasetemp())
    verdicts = runner.run()
    assert verdicts == {item.id: Verdict.PASSED for item in steps}
    assert engine.conclusion_counts == Counter(item.id for item in steps)
    assert not link.open_orders
    for name, count in charged.items():
        assert len([note for note in engine.results[name].notes if "run again" in note]) == count


def check_room(link: FakeLink, alive: Mapping[str, WorkerResources]) -> None:
    """No worker has more than it can do, no device two steps, and who measures is alone on the host."""
    by_host: dict[str, list[str]] = {}
    devices: Counter[tuple[str, str]] = Counter()
    jobs: Counter[str] = Counter()
    for name, (worker, order) in link.open_orders.items():
        offered = alive[worker]
        by_host.setdefault(offered.host, []).append(name)
        jobs[worker] += 1
        assert jobs[worker] <= offered.jobs
        if order.device.startswith("hip"):
            devices[worker, order.device] += 1
            assert devices[worker, order.device] == 1
            assert order.device in {device.uri for device in offered.devices}
    for names in by_host.values():
        assert len(names) == 1 or not any(name.endswith(":benchmark") for name in names)
