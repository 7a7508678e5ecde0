"""The order in which steps run."""

from __future__ import annotations

import threading
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.scheduler import ScheduleLimits, Scheduler
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Resources, Step
from tests.support.command_line import LIMIT_SECONDS
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def step(
    name: str, *needs: str, stage: Stage = Stage.COMPILE, cores: int = 1, exclusive: bool = False, device: str = ""
) -> Step:
    return make_step(stage, id=name, needs=needs, resources=Resources(cores, exclusive, device))


class Run:
    """A run whose steps do nothing but note what ran at the same time.

    Args:
        steps: the steps.
        verdicts: of steps that do not pass.
        jobs, fail_fast, finished, fits: as for `Scheduler` and `ScheduleLimits`.
        together: names of steps that wait until all of them run.
        hook: called in each step.

    Attributes:
        given_out: how many steps had been given out when a step ran, with those that it was to meet.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        verdicts: Mapping[str, Verdict] | None = None,
        *,
        jobs: int = 4,
        fail_fast: bool = False,
        finished: Mapping[str, Verdict] | None = None,
        fits: Callable[[Step], bool] = lambda _step: True,
        together: Sequence[Sequence[str]] = (),
        hook: Callable[[Step], None] = lambda _step: None,
    ) -> None:
        self.wanted = verdicts or {}
        self.meets = {name: set(names) for names in together for name in names}
        self.hook = hook
        self.changed = threading.Condition()
        self.running: set[str] = set()
        self.together: dict[str, set[str]] = {}
        self.given_out: dict[str, int] = {}
        self.events: list[str] = []
        self.skips: dict[str, str] = {}
        self.aborted = threading.Event()
        self.scheduler = Scheduler(
            steps, finished or {}, ScheduleLimits(jobs, fail_fast, fits), self.work, self.skip, self.abort
        )

    def abort(self) -> None:
        self.aborted.set()

    def work(self, work: Step) -> Verdict:
        with self.changed:
            self.events.append(f"+{work.id}")
            self.together[work.id] = set(self.running)
            for other in self.running:
                self.together[other].add(work.id)
            self.running.add(work.id)
            self.changed.notify_all()
            met = self.meets.get(work.id, set())
            assert self.changed.wait_for(lambda: met <= set(self.ran), LIMIT_SECONDS), f"{work.id} waits for {met}"
            self.given_out[work.id] = self.scheduler._queue.running
        try:
            self.hook(work)
        finally:
            with self.changed:
                self.running.remove(work.id)
                self.events.append(f"-{work.id}")
        return self.wanted.get(work.id, Verdict.PASSED)

    def skip(self, work: Step, reason: str) -> Verdict:
        self.skips[work.id] = reason
        return Verdict.SKIPPED

    def run(self) -> dict[str, Verdict]:
        before = threading.active_count()
        try:
            return self.scheduler.run()
        finally:
            assert threading.active_count() == before

    @property
    def most_at_once(self) -> int:
        return max(accumulate(1 if event[0] == "+" else -1 for event in self.events))

    @property
    def ran(self) -> list[str]:
        return [event[1:] for event in self.events if event[0] == "+"]


def test_steps_run_after_what_they_need() -> None:
    run = Run([step("c", "b"), step("b", "a"), step("a")])
    assert run.run() == dict.fromkeys("abc", Verdict.PASSED)
    assert run.events == ["+a", "-a", "+b", "-b", "+c", "-c"]


def test_no_steps() -> None:
    assert Run([]).run() == {}


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_as_many_run_at_once_as_jobs_allow(jobs: int) -> None:
    names = [str(number) for number in range(8)]
    together = [names[first : first + jobs] for first in range(0, len(names), jobs)]
    run = Run([step(name) for name in names], jobs=jobs, together=together)
    run.run()
    assert run.most_at_once == max(run.given_out.values()) == jobs


def test_fetches_and_bookkeeping_take_no_core() -> None:
    fetch = [step(f"f{number}", stage=Stage.FETCH, cores=0) for number in range(3)]
    steps = [step("a"), *fetch, step("c", stage=Stage.COMPSTAT, cores=0)]
    run = Run(steps, jobs=1, together=[[one.id for one in steps]])
    run.run()
    assert run.together["a"] == {"f0", "f1", "f2", "c"}


def test_at_most_four_fetches_at_once() -> None:
    names = [f"f{number}" for number in range(9)]
    together = [names[:4], names[4:8]]
    run = Run([step(name, stage=Stage.FETCH, cores=0) for name in names], together=together)
    run.run()
    assert run.most_at_once == max(run.given_out.values()) == 4
    assert len(run.ran) == 9


def test_exclusive_steps_run_alone_and_last() -> None:
    steps = [
        step("x", exclusive=True),
        step("a"),
        step("y", "a", exclusive=True),
        step("f", stage=Stage.FETCH, cores=0),
        step("b", "a"),
        step("c", "b", stage=Stage.COMPSTAT, cores=0),
    ]
    run = Run(steps, together=[["a", "f"]])
    run.run()
    assert run.together["x"] == run.together["y"] == set()
    assert run.given_out["x"] == run.given_out["y"] == 1
    assert run.ran[-2:] == ["x", "y"]


def test_exclusive_steps_wait_for_each_other_in_any_order() -> None:
    run = Run([step("x", "y", exclusive=True), step("y", exclusive=True), step("z", "x")])
    run.run()
    assert run.ran == ["y", "x", "z"]


def test_a_device_has_one_step_at_a_time_and_the_cpu_several() -> None:
    steps = [step(f"g{number}", device="hip://0") for number in range(3)]
    steps += [step(f"h{number}", device="hip://1") for number in range(2)]
    steps += [step(f"c{number}", device="local-task") for number in range(3)]
    first = ["g0", "h0", "c0", "c1", "c2"]
    run = Run(steps, jobs=8, together=[first])
    run.run()
    for number in range(3):
        assert not run.together[f"g{number}"] & {"g0", "g1", "g2"}
    assert not run.together["h0"] & {"h1"}
    assert {"c1", "c2", "g0", "h0"} <= run.together["c0"]
    assert max(run.given_out.values()) == len(first)


def test_steps_wait_for_memory_but_one_always_runs() -> None:
    run = Run([step(name) for name in "abc"], fits=lambda _step: False)
    run.run()
    assert run.ran == ["a", "b", "c"]
    assert run.together == {"a": set(), "b": set(), "c": set()}
    assert run.given_out == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verdict.FAILED, "a failed"),
        (Verdict.ERROR, "a ended in an error"),
        (Verdict.SKIPPED, "a was skipped"),
        (Verdict.XFAILED, "a failed as expected"),
        (Verdict.INCONCLUSIVE, "a was inconclusive"),
    ],
)
def test_what_needs_a_step_that_did_not_come_well_out_is_skipped(verdict: Verdict, reason: str) -> None:
    run = Run([step("a"), step("b", "a"), step("c", "b"), step("d")], {"a": verdict})
    assert run.run() == {"a": verdict, "b": Verdict.SKIPPED, "c": Verdict.SKIPPED, "d": Verdict.PASSED}
    assert run.skips == {"b": reason, "c": "b was skipped"}


def test_an_unexpected_pass_made_its_outputs() -> None:
    assert Run([step("a"), step("b", "a")], {"a": Verdict.XPASSED}).run()["b"] is Verdict.PASSED


def test_a_need_outside_of_the_run_is_a_reason() -> None:
    run = Run([step("a", "nowhere")])
    assert run.run() == {"a": Verdict.SKIPPED}
    assert run.skips == {"a": "nowhere is not part of this run"}


def test_finished_steps_are_not_run_again() -> None:
    steps = [step("a"), step("b", "a"), step("c"), step("d", "c")]
    run = Run(steps, finished={"a": Verdict.PASSED, "c": Verdict.FAILED})
    assert run.run() == {"a": Verdict.PASSED, "b": Verdict.PASSED, "c": Verdict.FAILED, "d": Verdict.SKIPPED}
    assert run.ran == ["b"]


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.ERROR, Verdict.XPASSED])
def test_fail_fast_starts_nothing_more(verdict: Verdict) -> None:
    run = Run([step(name) for name in "abcd"], {"b": verdict}, jobs=1, fail_fast=True)
    assert run.run() == {"a": Verdict.PASSED, "b": verdict, "c": Verdict.SKIPPED, "d": Verdict.SKIPPED}
    assert run.skips["c"] == "stopped by --fail-fast after b"


@pytest.mark.parametrize("verdict", [Verdict.XFAILED, Verdict.SKIPPED, Verdict.INCONCLUSIVE])
def test_fail_fast_goes_on_after_what_is_no_failure(verdict: Verdict) -> None:
    assert Run([step("a"), step("b")], {"a": verdict}, jobs=1, fail_fast=True).run()["b"] is Verdict.PASSED


def test_cancel_ends_what_runs_and_starts_nothing() -> None:
    started = threading.Event()

    def cancel(work: Step) -> None:
        started.set()
        run.scheduler.cancel()

    run = Run([step(name) for name in "abcd"], jobs=1, hook=cancel)
    assert run.run() == {"a": Verdict.PASSED}
    assert started.is_set()
    assert run.events == ["+a", "-a"]


def test_an_exception_in_work_ends_the_run_and_leaves_no_thread() -> None:
    def fail(work: Step) -> None:
        if work.id == "a":
            raise RuntimeError("a defect")
        # What runs at the same time is asked to end, and then does.
        assert run.aborted.wait(LIMIT_SECONDS)

    steps = [step("a"), step("b"), step("c", "b"), step("d", "a")]
    run = Run(steps, jobs=2, hook=fail, together=[["a", "b"]])
    with pytest.raises(RuntimeError, match="a defect"):
        run.run()
    assert set(run.ran) == {"a", "b"}
    assert run.events[-1] == "-b"


KINDS = st.sampled_from(["compile", "fetch", "compstat", "exclusive", "hip"])
VERDICTS = st.sampled_from([Verdict.PASSED] * 4 + [Verdict.FAILED, Verdict.ERROR, Verdict.XFAILED, Verdict.XPASSED])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Step], dict[str, Verdict]]:
    steps = []
    for number in range(draw(st.integers(0, 10))):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        kind = draw(KINDS)
        stage = {"fetch": Stage.FETCH, "compstat": Stage.COMPSTAT}.get(kind, Stage.COMPILE)
        steps.append(
            step(
                str(number),
                *(str(need) for need in sorted(needs)),
                stage=stage,
                cores=0 if kind in ("fetch", "compstat") else 1,
                exclusive=kind == "exclusive",
                device="hip" if kind == "hip" else "",
            )
        )
    verdicts = {one.id: draw(VERDICTS) for one in steps}
    return draw(st.permutations(steps)), verdicts


@settings(max_examples=100, deadline=None)
@given(graph=graphs(), jobs=st.integers(1, 3))
def test_every_step_runs_once_or_is_skipped_for_a_need(graph: tuple[list[Step], dict[str, Verdict]], jobs: int) -> None:
    steps, wanted = graph
    run = Run(steps, wanted, jobs=jobs)
    verdicts = run.run()
    assert set(verdicts) == {one.id for one in steps}
    assert sorted([*run.ran, *run.skips]) == sorted(verdicts)
    good = {Verdict.PASSED, Verdict.XPASSED}
    for one in steps:
        bad = [need for need in one.needs if verdicts[need] not in good]
        if one.id in run.skips:
            assert verdicts[one.id] is Verdict.SKIPPED
            assert any(run.skips[one.id].startswith(f"{need} ") for need in bad)
        else:
            assert not bad
            assert all(run.events.index(f"-{need}") < run.events.index(f"+{one.id}") for need in one.needs)
        if one.resources.exclusive:
            assert not run.together.get(one.id)
    on_device = {one.id for one in steps if one.resources.device}
    assert all(not run.together[name] & on_device for name in on_device & set(run.together))


def test_an_exception_ends_what_runs_before_it_gets_out() -> None:
    """As a signal handler raises one in the thread that waits: the pool would wait for its own threads first."""
    released = threading.Event()

    class Raised(Exception):  # noqa: N818
        pass

    def fail(work: Step) -> None:
        if work.id == "bad":
            raise Raised
        # Ended by `abort` alone.
        assert released.wait(LIMIT_SECONDS)

    runner = Run([step("long"), step("bad")], hook=fail, jobs=2, together=[["long", "bad"]])
    runner.scheduler._abort = released.set
    with pytest.raises(Raised):
        runner.scheduler.run()
    assert released.is_set()
