from __future__ import annotations

import json
import math
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Origin
from iree_gauntlet.engine.rounds import blocks as taking
from iree_gauntlet.engine.rounds.blocks import BlockRunner
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, RoundResult
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources, Step
from iree_gauntlet.torch_models.peers import (
    BLOCKS,
    PointEvidence,
    TorchRound,
    compute_median_ms,
    compute_speedup,
    run_interleaved,
)
from tests.support.command_line import LIMIT_SECONDS
from tests.support.sessions import open_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_CHAIN = "linear/1-2-3@cpu"


class _Bench:
    """Programs that print a time, taken in blocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cancelled = threading.Event()
        self.progress: list[int] = []

    def step(self) -> Step:
        return Step(
            id=f"{_CHAIN}:benchmark",
            chain=_CHAIN,
            dialect="micro",
            model="linear",
            submodel="1-2-3",
            target="cpu",
            sku="",
            stage=Stage.BENCHMARK,
            folder=str(self.folder / "step"),
            timeout=LIMIT_SECONDS,
            origin=Origin("quick.yml:3"),
            resources=Resources(device="local-task"),
        )

    def program(self, *argv: str) -> Measurement:
        """A program that writes its times."""

        def read(text: str, _seconds: float) -> tuple[float, ...]:
            return tuple(map(float, text.split()))

        return Measurement(self.step(), Command(argv, str(self.folder)), "the program", read)

    def take(
        self, iree: Mapping[str, Measurement], torch: TorchRound | None = None, *, replace: bool = False
    ) -> PointEvidence:
        (self.folder / "step").mkdir(exist_ok=True)
        with (
            EventLog(self.folder / "journal.jsonl", lambda: datetime.now(UTC)) as log,
            open_session(self.folder, log, cancel_event=self.cancelled) as session,
        ):
            taker = BlockRunner(session, replace_disturbed=replace)
            return run_interleaved(taker, _CHAIN, iree, torch, self.progress.append)

    def blocks(self) -> list[dict[str, Any]]:
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "block"]


@pytest.fixture
def bench(tmp_path: Path) -> _Bench:
    return _Bench(tmp_path)


def constant(bench: _Bench, time: float) -> Measurement:
    return bench.program("/bin/echo", str(time))


def test_a_block_goes_over_all_programs_and_back(bench: _Bench) -> None:
    found = bench.take({"baseline": constant(bench, 2.0), "int8wo": constant(bench, 1.0), "O3": constant(bench, 4.0)})
    assert found.count == BLOCKS
    assert not found.failure
    assert found.times == {
        "baseline": [(2.0, 2.0)] * BLOCKS,
        "int8wo": [(1.0, 1.0)] * BLOCKS,
        "O3": [(4.0, 4.0)] * BLOCKS,
    }
    assert bench.progress == list(range(1, BLOCKS + 1))
    orders = [[item["side"] for item in block["rounds"]] for block in bench.blocks()]
    for order in orders:
        assert order == order[::-1]
        assert sorted(order[:3]) == ["O3", "baseline", "int8wo"]
    # Drawn by lot: not every block has the same order.
    assert len({tuple(order) for order in orders}) > 1


def test_torch_starts_once_a_block_in_its_middle(bench: _Bench) -> None:
    # Torch answers with the times of the programs in the order of its plan.
    script = """sed -n 's/.*"label": "a".*/3.0/p; s/.*"label": "b".*/5.0/p' "$0" """
    plan = bench.folder / "torch.json"

    def start(order: Sequence[str]) -> Measurement:
        plan.write_text("".join(f'{{"label": "{name.removeprefix("torch ")}"}}\n' for name in order))
        return bench.program("/bin/sh", "-c", script, str(plan))

    torch = TorchRound(("torch a", "torch b"), start)
    found = bench.take({"baseline": constant(bench, 2.0), "int8wo": constant(bench, 1.0)}, torch)
    assert found.times["torch a"] == [(3.0,)] * BLOCKS
    assert found.times["torch b"] == [(5.0,)] * BLOCKS
    sides = [[item["side"].strip() for item in block["rounds"]] for block in bench.blocks()]
    assert all(order[2] == "torch" and len(order) == 5 for order in sides)
    against_torch = compute_speedup(found, "int8wo", "torch a")
    assert against_torch is not None
    assert against_torch.ratio == pytest.approx(3.0)
    assert against_torch.word == "faster"


def test_a_program_that_fails_ends_the_blocks_and_is_named(bench: _Bench) -> None:
    bad = bench.program("/bin/sh", "-c", "echo 'error: no such function' >&2; exit 1")
    found = bench.take({"baseline": constant(bench, 2.0), "int8wo": bad})
    assert found.failure.startswith("int8wo: ")
    assert "no such function" in found.failure
    assert found.count == 0


def test_what_was_cancelled_counts_nothing(bench: _Bench) -> None:
    bench.cancelled.set()
    found = bench.take({"baseline": constant(bench, 2.0)})
    assert (found.count, found.times, found.failure) == (0, {}, "")


def disturbed_at(numbers: set[int]) -> Callable[..., RoundResult]:
    """Rounds of 2 ms, of which those with these numbers were disturbed and took 50 ms."""
    count = iter(range(10_000))

    def take(_measurement: object, _processes: object, _name: str) -> RoundResult:
        hit = next(count) in numbers
        return RoundResult((50.0 if hit else 2.0,), "", 0.1, 1, {}, ("other work",) if hit else ())

    return take


def test_a_disturbed_round_is_taken_again(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "run_round", disturbed_at({0, 3, 4}))
    found = bench.take({"baseline": constant(bench, 2.0), "O3": constant(bench, 2.0)}, replace=True)
    assert (found.count, found.replacement_count, found.marked) == (BLOCKS, 0, 0)
    assert found.disturbances == Counter({"other work": 3})
    assert found.times["baseline"] == [(2.0, 2.0)] * BLOCKS


def test_a_disturbed_round_counts_where_it_is_to(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "run_round", disturbed_at({0, 3, 4}))
    found = bench.take({"baseline": constant(bench, 2.0), "O3": constant(bench, 2.0)})
    assert (found.count, found.marked) == (BLOCKS, 3)
    assert sum(time == 50.0 for block in found.times.values() for times in block for time in times) == 3


def test_a_machine_that_is_never_quiet_ends_it(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "run_round", disturbed_at(set(range(10_000))))
    monkeypatch.setattr(taking, "_PAUSE_SECONDS", 0.0)
    found = bench.take({"baseline": constant(bench, 2.0)}, replace=True)
    assert found.is_too_disturbed
    assert (found.count, found.main_disturbance) == (0, "other work")


def blocks_of(**times: list[tuple[float, ...]]) -> PointEvidence:
    found = PointEvidence(times=dict(times))
    found.count = len(next(iter(times.values())))
    return found


@given(st.floats(0.1, 100.0), st.lists(st.floats(0.5, 2.0), min_size=BLOCKS, max_size=BLOCKS))
def test_a_ratio_that_is_always_the_same_is_found_whatever_the_machine_does(factor: float, drift: list[float]) -> None:
    found = blocks_of(a=[(d, d) for d in drift], b=[(factor * d, factor * d) for d in drift])
    ratio = compute_speedup(found, "a", "b")
    assert ratio is not None
    assert ratio.ratio == pytest.approx(factor)
    assert ratio.low == pytest.approx(factor)
    assert ratio.high == pytest.approx(factor)
    margin = abs(math.log(factor)) - math.log1p(0.01)
    if margin > 1e-9:
        assert ratio.word == ("faster" if factor > 1 else "slower")
    elif margin < -1e-9:
        assert ratio.word == "same"


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)), min_size=BLOCKS, max_size=BLOCKS))
def test_the_other_way_round_is_the_inverse(pairs: list[tuple[float, float]]) -> None:
    found = blocks_of(a=[(one,) for one, _ in pairs], b=[(other,) for _, other in pairs])
    there, back = compute_speedup(found, "a", "b"), compute_speedup(found, "b", "a")
    assert there is not None
    assert back is not None
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.low is not None
    assert there.high is not None
    assert back.high is not None
    assert there.low * back.high == pytest.approx(1.0)
    assert there.low <= there.ratio <= there.high


def test_too_few_blocks_have_no_interval() -> None:
    found = blocks_of(a=[(1.0, 1.0)] * 3, b=[(2.0, 2.0)] * 3)
    ratio = compute_speedup(found, "a", "b")
    assert ratio is not None
    assert ratio.ratio == pytest.approx(2.0)
    assert (ratio.low, ratio.high, ratio.word) == (None, None, "inconclusive")


def test_nothing_is_said_of_what_was_not_measured() -> None:
    found = blocks_of(a=[(1.0, 3.0), (2.0, 4.0)])
    assert compute_speedup(found, "a", "b") is None
    assert compute_median_ms(found, "b") is None
    assert compute_median_ms(found, "a") == 2.5
