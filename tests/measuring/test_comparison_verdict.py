from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.statistics.comparison_verdict import (
    Comparison,
    Interval,
    TimeVerdict,
    _judge,
    check_against_control,
    compare,
    compare_log_ratios,
    compute_log_ratios,
)
from iree_gauntlet.measuring.statistics.rounds import (
    Block,
    BlockOrder,
    EvidenceError,
    Location,
    Round,
    SequentialPlan,
    plan_looks,
)
from tests.support.places import DATA, ROOT
from tests.support.recorded_noise import (
    Recording,
    make_blocks,
    make_log_ratios,
    read_recording,
    simulate_rounds,
    swap_sides,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_RECORDED = DATA / "noise"
_CONDITIONS = ("quiet", "neighbour", "shared")
_PLAN = plan_looks()
_ORDER = {TimeVerdict.FASTER: 0, TimeVerdict.SAME: 1, TimeVerdict.INCONCLUSIVE: 1, TimeVerdict.SLOWER: 2}


@cache
def _recording(condition: str) -> Recording:
    return read_recording(_RECORDED / f"{condition}.json")


def _sequential(ratios: NDArray[np.float64], plan: SequentialPlan = _PLAN, allow: float | None = None) -> Comparison:
    comparison = compare_log_ratios(ratios[: plan.looks[0]], plan, allow=allow)
    while comparison.next_look is not None:
        comparison = compare_log_ratios(ratios[: comparison.next_look], plan, allow=allow)
    return comparison


def _noise(condition: str, sessions: int) -> list[NDArray[np.float64]]:
    """Log ratios of a program against itself, for each session of each recorded model."""
    models = range(len(_recording(condition).models))
    return [_session_noise(condition, index, number) for index in models for number in range(sessions)]


@cache
def _session_noise(condition: str, index: int, number: int) -> NDArray[np.float64]:
    times = list(_recording(condition).models.values())[index]
    rounds = simulate_rounds(times, 4 * _PLAN.max_blocks, np.random.default_rng([index, number]))
    return make_log_ratios(rounds.min(axis=1), number)


def _simulated(condition: str, factor: float, sessions: int) -> list[TimeVerdict]:
    return [_sequential(ratios + math.log(factor)).verdict for ratios in _noise(condition, sessions)]


def _share(verdicts: list[TimeVerdict], wanted: TimeVerdict) -> float:
    return verdicts.count(wanted) / len(verdicts)


@pytest.mark.parametrize("condition", _CONDITIONS)
def test_false_alarms_on_recorded_noise_stay_below_alpha(condition: str) -> None:
    verdicts = _simulated(condition, 1.0, 100)
    alarms = _share(verdicts, TimeVerdict.SLOWER) + _share(verdicts, TimeVerdict.FASTER)
    assert alarms <= _PLAN.alpha + 3 * math.sqrt(_PLAN.alpha / len(verdicts))


@pytest.mark.parametrize("condition", _CONDITIONS)
def test_false_alarms_at_the_band_s_edge_stay_below_alpha(condition: str) -> None:
    """A slowdown of exactly δ is the hardest that is not yet one; only one side's half of α is at stake."""
    verdicts = _simulated(condition, 1.01, 100)
    level = _PLAN.alpha / 2
    assert _share(verdicts, TimeVerdict.SLOWER) <= level + 3 * math.sqrt(level / len(verdicts))


@pytest.mark.parametrize("condition", _CONDITIONS)
@pytest.mark.parametrize("factor", [1.03, 1 / 1.03])
def test_a_difference_of_the_whole_band_is_hardly_ever_called_the_same(condition: str, factor: float) -> None:
    verdicts = _simulated(condition, factor, 100)
    level = _PLAN.alpha / 2
    assert _share(verdicts, TimeVerdict.SAME) <= level + 3 * math.sqrt(level / len(verdicts))


def test_five_percent_is_found_in_quiet_and_ten_next_to_a_neighbour() -> None:
    assert _share(_simulated("quiet", 1.05, 40), TimeVerdict.SLOWER) >= 0.95
    assert _share(_simulated("quiet", 1 / 1.05, 40), TimeVerdict.FASTER) >= 0.95
    assert _share(_simulated("neighbour", 1.10, 40), TimeVerdict.SLOWER) >= 0.95


def test_no_slowdown_is_ever_called_faster() -> None:
    for condition in _CONDITIONS:
        assert TimeVerdict.FASTER not in _simulated(condition, 1.05, 30)


@st.composite
def _sessions(draw: st.DrawFn) -> list[Block]:
    count = draw(st.integers(1, 24))
    seed = draw(st.integers(0, 10_000))
    shift = draw(st.sampled_from([-0.05, -0.01, 0.0, 0.01, 0.03, 0.2]))
    noise = draw(st.sampled_from([1e-4, 0.003, 0.02, 0.2]))
    chance = np.random.default_rng(seed)
    rounds = np.exp(noise * chance.standard_t(3, size=(4 * count, 3)).clip(-50, 50))
    return list(make_blocks(rounds, seed, math.exp(shift)))


def _scaled(blocks: list[Block], a: float, b: float) -> list[Block]:
    def side(rounds: tuple[Round, Round], factor: float) -> tuple[Round, Round]:
        first, second = (Round(tuple(figure * factor for figure in round_.times)) for round_ in rounds)
        return first, second

    return [Block(block.order, side(block.a, a), side(block.b, b)) for block in blocks]


@given(_sessions(), st.integers(-20, 20), st.sampled_from(list(Location)))
def test_the_unit_of_time_is_no_matter(blocks: list[Block], power: int, location: Location) -> None:
    # Powers of two scale without rounding; their logarithms do not.
    before = compare(blocks, _PLAN, location=location)
    after = compare(_scaled(blocks, 2.0**power, 2.0**power), _PLAN, location=location)
    assert after.verdict == before.verdict
    assert after.p_value == before.p_value
    assert (after.ratio, after.low, after.high) == pytest.approx((before.ratio, before.low, before.high))


@given(_sessions())
def test_swapping_the_sides_inverts_ratio_and_verdict(blocks: list[Block]) -> None:
    forth = compare(blocks, _PLAN)
    back = compare([swap_sides(block) for block in blocks], _PLAN)
    mirrored = {TimeVerdict.SLOWER: TimeVerdict.FASTER, TimeVerdict.FASTER: TimeVerdict.SLOWER}
    assert back.verdict == mirrored.get(forth.verdict, forth.verdict)
    assert back.p_value == forth.p_value
    assert back.ratio == pytest.approx(1 / forth.ratio)
    assert back.low == pytest.approx(1 / forth.high)
    assert back.high == pytest.approx(1 / forth.low if forth.low else math.inf)


@given(_sessions(), st.floats(1.0001, 3))
def test_a_slower_b_is_never_judged_faster_than_before(blocks: list[Block], factor: float) -> None:
    before, after = compare(blocks, _PLAN), compare(_scaled(blocks, 1.0, factor), _PLAN)
    assert _ORDER[after.verdict] >= _ORDER[before.verdict]
    assert after.ratio > before.ratio


@given(_sessions())
def test_the_order_of_repetitions_is_no_matter_and_nothing_is_drawn(blocks: list[Block]) -> None:
    turned = [
        Block(
            block.order,
            (Round(block.a[0].times[::-1]), Round(block.a[1].times[::-1])),
            (Round(block.b[0].times[::-1]), Round(block.b[1].times[::-1])),
        )
        for block in blocks
    ]
    assert compare(turned, _PLAN) == compare(blocks, _PLAN) == compare(list(blocks), _PLAN)


@given(_sessions())
def test_a_verdict_says_what_its_interval_says(blocks: list[Block]) -> None:
    comparison = compare(blocks, _PLAN, least=0.01, band=0.02)
    if comparison.verdict == TimeVerdict.SLOWER:
        assert comparison.low > 1.01
    elif comparison.verdict == TimeVerdict.FASTER:
        assert comparison.high < 1 / 1.01
    elif comparison.verdict == TimeVerdict.SAME:
        assert comparison.low >= 1 / 1.02 - 1e-12
        assert comparison.high <= 1.02 + 1e-12
    else:
        assert comparison.reason
    assert comparison.reason
    assert (comparison.next_look is None) or comparison.verdict == TimeVerdict.INCONCLUSIVE


def test_the_four_verdicts() -> None:
    def judged(*shifts: float) -> Comparison:
        return compare_log_ratios(np.array(shifts), _PLAN)

    assert judged(*[0.05] * 10).verdict == TimeVerdict.SLOWER
    assert judged(*[-0.05] * 10).verdict == TimeVerdict.FASTER
    assert judged(*[0.001] * 10).verdict == TimeVerdict.SAME
    crossing = judged(*np.linspace(-0.05, 0.08, 10))
    assert crossing.verdict == TimeVerdict.INCONCLUSIVE
    assert crossing.next_look == 14
    assert "is neither outside ±1 % nor within ±3 %" in crossing.reason


def test_too_few_blocks_say_how_many_are_needed() -> None:
    comparison = compare_log_ratios(np.full(4, 0.5), _PLAN)
    assert comparison.verdict == TimeVerdict.INCONCLUSIVE
    assert (comparison.low, comparison.high, comparison.p_value) == (0.0, math.inf, 1.0)
    assert comparison.next_look == 10
    assert comparison.reason == "4 blocks, but 10 are needed for the first verdict"
    assert comparison.ratio == pytest.approx(math.exp(0.5))


def test_a_plan_that_is_used_up_is_named() -> None:
    comparison = compare_log_ratios(np.random.default_rng(0).normal(0, 0.3, 40), _PLAN)
    assert comparison.next_look is None
    assert comparison.reason.endswith("all 40 blocks are used")


def test_blocks_that_contradict_earlier_ones_give_no_verdict() -> None:
    comparison = compare_log_ratios(np.array([0.2] * 10 + [-0.2] * 30), _PLAN)
    assert comparison.verdict == TimeVerdict.INCONCLUSIVE
    assert "contradict" in comparison.reason


def test_only_blocks_of_the_plan_are_used() -> None:
    ratios = np.random.default_rng(0).normal(0, 0.3, 40)
    assert compare_log_ratios(np.append(ratios, 9.0), _PLAN).ratio == compare_log_ratios(ratios, _PLAN).ratio


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_bad_time_anywhere_is_an_error_and_no_verdict(bad: float) -> None:
    with pytest.raises(EvidenceError):
        compare([Block.of_rounds(BlockOrder.ABBA, [Round((1.0,))] * 3 + [Round((1.0, bad))])] * 10, _PLAN)


@pytest.mark.parametrize("ratios", [[], [math.nan] * 10, [0.0] * 9 + [math.inf]])
def test_bad_ratios_are_an_error_and_no_verdict(ratios: list[float]) -> None:
    with pytest.raises(EvidenceError):
        compare_log_ratios(np.array(ratios, dtype=np.float64), _PLAN)
    with pytest.raises(EvidenceError):
        compare([], _PLAN)


@pytest.mark.parametrize(
    ("ratios", "allow", "verdict"),
    [
        ((0.90, 1.02), None, TimeVerdict.INCONCLUSIVE),
        ((0.90, 1.02), 0.03, TimeVerdict.NOT_SLOWER),
        ((0.90, 1.02), 0.015, TimeVerdict.INCONCLUSIVE),
        ((0.90, 0.999), 0.0, TimeVerdict.NOT_SLOWER),
        ((0.90, 1.04), 0.03, TimeVerdict.INCONCLUSIVE),
        # A difference is one although it would be allowed, and what is the same is not less than that.
        ((1.012, 1.02), 0.03, TimeVerdict.SLOWER),
        ((0.90, 0.95), 0.03, TimeVerdict.FASTER),
        ((0.99, 1.01), 0.03, TimeVerdict.SAME),
    ],
)
def test_not_slower_is_enough_where_a_slowdown_is_allowed(
    ratios: tuple[float, float], allow: float | None, verdict: TimeVerdict
) -> None:
    found, reason = _judge(Interval(*map(math.log, ratios)), 0.01, 0.03, allow)
    assert found is verdict, reason
    if verdict is TimeVerdict.NOT_SLOWER:
        assert reason.startswith(f"not slower by more than {max(0, 100 * (ratios[1] - 1)):.1f} %: the interval, ")


@pytest.mark.parametrize("least", [0.001, 0.01])
@pytest.mark.parametrize("band", [0.01, 0.03, 0.3])
def test_the_margins_are_ratios_and_the_same_when_the_sides_are_swapped(least: float, band: float) -> None:
    def judged(low: float, high: float, allow: float | None = None) -> TimeVerdict:
        found = _judge(Interval(math.log(low), math.log(high)), least, band, allow)[0]
        back = _judge(Interval(-math.log(high), -math.log(low)), least, band, None)[0]
        assert allow is not None or _ORDER[found] + _ORDER[back] == 2
        assert (found is TimeVerdict.SAME) == (back is TimeVerdict.SAME)
        return found

    inside, outside = 1 - 1e-6, 1 + 1e-6
    assert judged(1.0, (1 + band) * inside) is TimeVerdict.SAME
    assert judged(1.0, (1 + band) * outside) is TimeVerdict.INCONCLUSIVE
    assert judged((1 + least) * outside, 2.0) is TimeVerdict.SLOWER
    assert judged((1 + least) * inside, 2.0) is TimeVerdict.INCONCLUSIVE
    allow = band + 0.02
    assert judged(1.0, (1 + allow) * inside, allow) is TimeVerdict.NOT_SLOWER
    assert judged(1.0, (1 + allow) * outside, allow) is TimeVerdict.INCONCLUSIVE


@pytest.mark.parametrize("condition", _CONDITIONS)
def test_a_slowdown_of_all_that_is_allowed_is_hardly_ever_called_not_slower(condition: str) -> None:
    verdicts = [_sequential(ratios + math.log(1.03), allow=0.03).verdict for ratios in _noise(condition, 100)]
    level = _PLAN.alpha / 2
    share = _share(verdicts, TimeVerdict.SAME) + _share(verdicts, TimeVerdict.NOT_SLOWER)
    assert share <= level + 3 * math.sqrt(level / len(verdicts))


def test_an_allowance_that_is_none_is_an_error() -> None:
    with pytest.raises(EvidenceError, match="allowed slowdown"):
        compare_log_ratios(np.zeros(10), _PLAN, allow=-0.01)


@pytest.mark.parametrize(("least", "band"), [(0.0, 0.03), (-0.01, 0.03), (0.01, 1.0), (math.nan, 0.03), (0.03, 0.01)])
def test_margins_that_are_none_are_an_error(least: float, band: float) -> None:
    with pytest.raises(EvidenceError, match="equivalence margin"):
        compare_log_ratios(np.zeros(10), _PLAN, least, band)


def test_a_session_whose_control_differs_is_void() -> None:
    slower, control = (compare_log_ratios(np.full(10, shift), _PLAN) for shift in (0.2, 0.03))
    judged = check_against_control(slower, control)
    assert judged.verdict == TimeVerdict.INCONCLUSIVE
    assert judged.reason.startswith("void: A against itself is slower (+3.0 %)")
    assert judged.next_look is None
    same = compare_log_ratios(np.zeros(10), _PLAN)
    assert check_against_control(same, control).verdict == TimeVerdict.INCONCLUSIVE


def test_a_difference_no_larger_than_the_control_s_is_none() -> None:
    slower = compare_log_ratios(np.full(10, 0.05), _PLAN)
    wide = compare_log_ratios(np.linspace(-0.3, 0.42, 10), _PLAN)
    assert wide.verdict == TimeVerdict.INCONCLUSIVE
    assert check_against_control(slower, wide).verdict == TimeVerdict.INCONCLUSIVE
    assert "no more than A against itself" in check_against_control(slower, wide).reason
    quiet = compare_log_ratios(np.linspace(-0.01, 0.012, 10), _PLAN)
    assert check_against_control(slower, quiet) == slower


def test_a_difference_that_work_does_not_explain_is_beyond_the_interval_of_the_control() -> None:
    slower, faster = (compare_log_ratios(np.full(10, shift), _PLAN) for shift in (0.05, -0.05))
    for (low, high), verdicts in (
        ((-0.02, 0.03), (TimeVerdict.SLOWER, TimeVerdict.FASTER)),
        ((-0.02, 0.06), (TimeVerdict.INCONCLUSIVE, TimeVerdict.INCONCLUSIVE)),
        ((-0.06, 0.02), (TimeVerdict.INCONCLUSIVE, TimeVerdict.INCONCLUSIVE)),
    ):
        control = replace(slower, verdict=TimeVerdict.SAME, ratio=1.0, low=math.exp(low), high=math.exp(high))
        judged = tuple(check_against_control(one, control, by_interval=True) for one in (slower, faster))
        assert tuple(one.verdict for one in judged) == verdicts
        assert check_against_control(slower, control) == slower
    assert judged[0].reason == "+5.1 % is no more than A against itself shows (-5.8 to +2.0 %)"
    unbounded = replace(control, low=0.0, high=math.inf)
    assert check_against_control(slower, unbounded, by_interval=True).verdict == TimeVerdict.INCONCLUSIVE


def test_simulated_blocks_and_ratios_are_the_same_evidence() -> None:
    times = next(iter(_recording("quiet").models.values()))
    rounds = simulate_rounds(times, 42, np.random.default_rng(1))
    ratios = compute_log_ratios(make_blocks(rounds, 5, 1.05))
    assert ratios == pytest.approx(make_log_ratios(rounds.min(axis=1), 5) + math.log(1.05))
    assert len(ratios) == 10


def test_simulated_rounds_keep_what_hangs_together() -> None:
    times = np.arange(1.0, 101.0)[:, None]
    rounds = simulate_rounds(times, 50, np.random.default_rng(0), stretch=10).ravel()
    assert len(rounds) == 50
    assert sum(np.diff(rounds) == 1) >= 45
    for stretch, count in ((0, 5), (101, 5), (10, 0)):
        with pytest.raises(EvidenceError):
            simulate_rounds(times, count, np.random.default_rng(0), stretch)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"condition": "x", "description": "", "models": []}', "\x00"])
def test_what_is_no_recording_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "noise.json"
    path.write_text(text)
    with pytest.raises(EvidenceError, match="no recording of noise"):
        read_recording(path)


@pytest.mark.parametrize("times", [[], [[]], [[1.0, 0.0]], [[float("nan")]], [1.0]])
def test_a_recording_with_bad_times_is_an_error(tmp_path: Path, times: list[object]) -> None:
    path = tmp_path / "noise.json"
    path.write_text(json.dumps({"condition": "x", "description": "", "models": {"m": {"real_time_ms": times}}}))
    with pytest.raises(EvidenceError, match="no table"):
        read_recording(path)
    with pytest.raises(EvidenceError):
        read_recording(tmp_path / "absent.json")


def test_the_documented_command_prints_the_documented_tables() -> None:
    root = ROOT
    done = subprocess.run(
        [sys.executable, "benchmarks/verdicts.py", "--sessions", "1", "--max-blocks", "10"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    page = (root / "docs" / "explanation" / "statistics.md").read_text(encoding="utf-8")
    spreads, quiet, *_ = done.stdout.strip().split("\n\n")
    assert spreads in page
    assert quiet.partition(":")[2].strip() in page
    rules = [line.split("|")[1] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert all(f"|{rule}|" in page for rule in rules)
