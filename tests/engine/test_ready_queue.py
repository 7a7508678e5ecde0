"""The queue of ready steps: it follows a plain form of its rule, and its cost per step does not grow with the plan."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.scheduler import LocalResources, LocalSlots, ReadyQueue, ScheduleLimits, Scheduler
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Resources, Step
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GOOD = (Verdict.PASSED, Verdict.XPASSED, Verdict.FLAKY)
STEP = make_step(Stage.COMPILE)


def open_queue(
    steps: Sequence[Step], finished: Mapping[str, Verdict], limits: ScheduleLimits
) -> ReadyQueue[LocalResources, Step]:
    """The queue of this machine."""
    return ReadyQueue(steps, finished, LocalSlots(limits), fail_fast=limits.fail_fast)


class Plainly:
    """The rule: go through all waiting steps again and again."""

    def __init__(self, steps: Sequence[Step], finished: Mapping[str, Verdict], limits: ScheduleLimits) -> None:
        self.waiting = {step.id: step for step in steps if step.id not in finished}
        self.known = {step.id for step in steps}
        self.verdicts = dict(finished)
        self.running: dict[str, Step] = {}
        self.limits = limits
        self.stopped = False

    def turn(self) -> tuple[list[str], list[str]]:
        skipped = []
        progress = True
        while progress:
            progress = False
            for step in list(self.waiting.values()):
                bad = [need for need in step.needs if need in self.verdicts and self.verdicts[need] not in GOOD]
                if self.stopped or bad or any(n not in self.verdicts and n not in self.known for n in step.needs):
                    skipped.append(step.id)
                    self.verdicts[step.id] = Verdict.SKIPPED
                    del self.waiting[step.id]
                    progress = True
        started = self.startable()
        for step in started:
            self.running[step.id] = self.waiting.pop(step.id)
        return skipped, [step.id for step in started]

    def startable(self) -> list[Step]:
        running = self.running.values()
        if any(step.resources.exclusive for step in running):
            return []
        busy = sum(step.resources.cores > 0 for step in running)
        fetching = sum(step.stage is Stage.FETCH for step in running)
        devices = {step.resources.device for step in running}
        ready = [step for step in self.waiting.values() if all(need in self.verdicts for need in step.needs)]
        chosen = []
        for step in ready:
            device = step.resources.device
            if step.resources.exclusive:
                continue
            if step.stage is Stage.FETCH:
                if fetching < 4:
                    fetching += 1
                    chosen.append(step)
            elif step.resources.cores == 0:
                chosen.append(step)
            elif (
                (not device or device.startswith("local-") or device not in devices)
                and busy < self.limits.jobs
                and (busy == 0 or self.limits.fits(step))
            ):
                busy += 1
                devices.add(device)
                chosen.append(step)
        if not chosen and not running:
            chosen = [step for step in ready if step.resources.exclusive][:1]
        return chosen

    def finish(self, name: str, verdict: Verdict) -> None:
        del self.running[name]
        self.verdicts[name] = verdict
        if self.limits.fail_fast and verdict in (Verdict.FAILED, Verdict.ERROR, Verdict.XPASSED):
            self.stopped = True


KINDS = {
    "compile": (Stage.COMPILE, Resources()),
    "fetch": (Stage.FETCH, Resources(0)),
    "compstat": (Stage.COMPSTAT, Resources(0)),
    "benchmark": (Stage.BENCHMARK, Resources(1, exclusive=True, device="local-task")),
    "hip": (Stage.THRESHOLD, Resources(1, device="hip")),
    "cuda": (Stage.THRESHOLD, Resources(1, device="cuda")),
    "local": (Stage.THRESHOLD, Resources(1, device="local-sync")),
}
VERDICTS = [Verdict.PASSED] * 6 + [one for one in Verdict if one is not Verdict.PASSED]


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 14), st.integers(1, 4), st.booleans())
def test_skips_starts_and_their_order_are_those_of_the_plain_rule(
    seed: int, count: int, jobs: int, fail_fast: bool
) -> None:
    chance = random.Random(seed)
    kinds = chance.choices(list(KINDS), k=count)
    # Needs go any way: also in circles, to steps that are not there, and twice to one.
    back = chance.random() < 0.8
    steps = []
    for number, kind in enumerate(kinds):
        names = [str(other) for other in range(number if back else count)] + ["gone"] * (chance.random() < 0.1)
        needs = chance.choices(names, k=chance.choice([0, 1, 1, 2, 3])) if names else []
        stage, resources = KINDS[kind]
        steps.append(replace(STEP, id=str(number), stage=stage, needs=tuple(needs), resources=resources))
    if chance.random() < 0.5:
        chance.shuffle(steps)
    finished = {step.id: chance.choice(VERDICTS) for step in steps if chance.random() < 0.1}
    small = {step.id for step in steps if chance.random() < 0.7}
    limits = ScheduleLimits(jobs, fail_fast, lambda step: step.id in small)
    plainly, queue = Plainly(steps, finished, limits), open_queue(steps, finished, limits)
    running: list[Step] = []
    while True:
        skipped: list[str] = []

        def skip(step: Step, reason: str, skipped: list[str] = skipped) -> Verdict:
            assert reason
            skipped.append(step.id)
            return Verdict.SKIPPED

        started = [step for step, _ in queue.take(skip)]
        assert (skipped, [step.id for step in started]) == plainly.turn()
        running += started
        assert queue.running == len(running)
        if not running:
            break
        step = running.pop(chance.randrange(len(running)))
        verdict = chance.choice(VERDICTS)
        queue.finish(step, verdict)
        plainly.finish(step.id, verdict)
    assert queue.verdicts == plainly.verdicts


def skip_at_once(_step: Step, _reason: str) -> Verdict:
    return Verdict.SKIPPED


def unskipped(step: Step, reason: str) -> Verdict:
    pytest.fail(f"{step.id}: {reason}")


def test_what_waits_for_memory_keeps_its_place_in_the_plan() -> None:
    a, large, b, later = (replace(STEP, id=name) for name in ("a", "large", "b", "later"))
    limits = ScheduleLimits(2, fail_fast=False, fits=lambda step: step.id in ("a", "b"))
    queue = open_queue((a, large, b, later), {}, limits)
    assert [step for step, _ in queue.take(unskipped)] == [a, b]
    queue.finish(a, Verdict.PASSED)
    assert queue.take(unskipped) == []
    queue.finish(b, Verdict.PASSED)
    assert [step for step, _ in queue.take(unskipped)] == [large]


def test_of_several_bad_needs_the_reason_names_the_first() -> None:
    step = replace(STEP, id="c", needs=("b", "good", "a"))
    finished = {"a": Verdict.FAILED, "b": Verdict.ERROR, "good": Verdict.PASSED}
    queue = open_queue((step,), finished, ScheduleLimits(1, fail_fast=False, fits=lambda _step: True))
    reasons: list[str] = []

    def skip(_step: Step, reason: str) -> Verdict:
        reasons.append(reason)
        return Verdict.SKIPPED

    assert queue.take(skip) == []
    assert reasons == ["b ended in an error"]


def test_what_is_put_back_after_the_first_failure_is_skipped() -> None:
    a, b = (replace(STEP, id=name) for name in "ab")
    queue = open_queue((a, b), {}, ScheduleLimits(2, fail_fast=True, fits=lambda _step: True))
    assert len(queue.take(unskipped)) == 2
    queue.finish(a, Verdict.FAILED)
    queue.put_back(b)
    assert queue.take(skip_at_once) == []
    assert queue.verdicts == {"a": Verdict.FAILED, "b": Verdict.SKIPPED}


def operators(count: int) -> list[Step]:
    """Cases of a compile and a threshold step each."""
    return [
        replace(STEP, id=f"{number}:{stage}", stage=stage, needs=(f"{number}:compile",) if index else ())
        for number in range(count)
        for index, stage in enumerate((Stage.COMPILE, Stage.THRESHOLD))
    ]


def calls_of_an_agenda(count: int) -> int:
    """Calls of functions, also of those written in C, that it takes to go through so many cases."""
    steps = operators(count)
    calls = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        queue = open_queue(steps, {}, ScheduleLimits(2, fail_fast=False, fits=lambda _step: True))
        running = queue.take(skip_at_once)
        while running:
            step, _ = running.pop(0)
            failed = step.stage is Stage.COMPILE and int(step.id.partition(":")[0]) % 5 == 0
            queue.finish(step, Verdict.XFAILED if failed else Verdict.PASSED)
            running += queue.take(skip_at_once)
    finally:
        sys.setprofile(before)
    assert len(queue.verdicts) == 2 * count
    return calls


def test_a_step_of_twenty_thousand_takes_as_many_calls_as_one_of_two_thousand() -> None:
    few, many = calls_of_an_agenda(1_000), calls_of_an_agenda(10_000)
    assert many / 20_000 < 60
    assert many < few * 10 * 1.01


def test_one_thread_does_what_it_can_in_the_order_of_the_plan() -> None:
    steps = operators(500)
    done: list[str] = []
    pauses: list[int] = []

    def work(step: Step) -> Verdict:
        done.append(step.id)
        return Verdict.PASSED

    limits = ScheduleLimits(1, fail_fast=False, fits=lambda _step: True)
    verdicts = Scheduler(steps, {}, limits, work, unskipped, lambda: None, lambda: pauses.append(len(done))).run()
    assert done == [step.id for step in steps]
    assert set(verdicts.values()) == {Verdict.PASSED}
    assert pauses == [len(steps)]
