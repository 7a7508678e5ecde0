from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from iree_gauntlet.cases import Golden, Origin
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.measuring.goldens.goldens import check_figure, check_time, describe_check, parse_release
from iree_gauntlet.results import Samples

ORIGIN = Origin("specs/a/x.json", "golden_time_ms.mi300")
RECORD = {
    *("metric", "measured", "golden", "factor", "limit", "unit", "statistic"),
    *("sku", "release", "passed", "note"),
}


def time_golden(value: float, factor: float = 1.0, sku: str = "mi300", statistic: str = "mean") -> Golden:
    return Golden(Figure.TIME, value, factor, Statistic(statistic), sku, "", ORIGIN)


def count_golden(value: float, release: str = "", factor: float = 1.0) -> Golden:
    origin = Origin("specs/a/x.json", "golden_dispatch")
    return Golden(Figure.DISPATCHES, value, factor, Statistic.MEAN, "", release, origin)


def samples(*times: float) -> Samples:
    return Samples("BM_f", times, times, (1,) * len(times))


def test_a_breach_says_by_how_much() -> None:
    check = check_time(samples(12.2, 12.4), [time_golden(10, 1.1)], ["mi300"], "mi300")
    assert check.passed is False
    assert describe_check(check) == (
        "time 12.3 ms exceeds the limit 11 ms by 1.3 ms, +11.8 %"
        " (golden 10 ms × 1.1, specs/a/x.json: golden_time_ms.mi300)"
    )
    assert set(check.as_dict()) == RECORD
    assert json.loads(json.dumps(check.as_dict()))["metric"] == "time_ms"


def test_passing_and_exact_figures() -> None:
    assert check_time(samples(11), [time_golden(10, 1.1)], [], "mi300").passed is True
    check = check_figure(Figure.DISPATCHES, 76, [count_golden(76)], "3.13.0")
    assert check.passed is True
    assert describe_check(check) == "dispatch count 76 equals the limit 76 (specs/a/x.json: golden_dispatch)"
    assert "exceeds the limit 76 by 1, +1.3 % " in describe_check(
        check_figure(Figure.DISPATCHES, 77, [count_golden(76)], "3.13.0")
    )
    assert "exceeds the limit 0 by 1 " in describe_check(
        check_figure(Figure.DISPATCHES, 1, [count_golden(0)], "3.13.0")
    )


def test_the_statistic_is_the_goldens() -> None:
    goldens = [time_golden(10, 1.0, statistic="min")]
    check = check_time(samples(9, 30), goldens, [], "mi300")
    assert (check.passed, check.measured, check.statistic) == (True, 9, "min")
    assert describe_check(check).startswith("fastest time 9 ms is below the limit 10 ms by 1 ms, -10.0 %")
    assert check_time(samples(9, 30), [time_golden(10)], [], "mi300").passed is False


def test_a_time_belongs_to_its_sku() -> None:
    check = check_time(samples(99), [time_golden(10)], ["mi300", "mi250"], "mi308")
    assert (check.passed, check.golden, check.limit) == (None, None, None)
    assert check.measured == 99
    assert describe_check(check) == "time 99 ms (no golden for SKU 'mi308' (has: mi250, mi300): measured only)"
    assert "a target without SKU" in check_time(samples(99), [], ["mi300"], "").note
    assert check_time(samples(99), [], [], "mi300").note == "no golden time in the spec: measured only"


def test_the_strictest_of_several_counts() -> None:
    check = check_time(samples(10), [time_golden(20), time_golden(9)], [], "mi300")
    assert (check.golden, check.passed) == (9, False)


def test_aggregates_alone_cannot_breach_a_minimum() -> None:
    aggregated = Samples("BM_f", (12.0,), (12.0,), (3,), aggregated=True)
    goldens = [time_golden(10, statistic="min")]
    check = check_time(aggregated, goldens, [], "mi300")
    assert (check.passed, check.measured) == (None, 12.0)
    assert "only aggregates" in check.note
    assert check_time(aggregated, [time_golden(13, statistic="min")], [], "mi300").passed is True
    assert check_time(aggregated, [time_golden(10)], [], "mi300").passed is False


def test_figures_belong_to_their_release() -> None:
    goldens = [count_golden(80), count_golden(76, "3.13.0"), count_golden(97, "3.5.0")]
    assert check_figure(Figure.DISPATCHES, 78, goldens, "3.13.0rc20261016").passed is False
    assert check_figure(Figure.DISPATCHES, 96, goldens, "3.5").passed is True
    assert check_figure(Figure.DISPATCHES, 78, goldens, "3.9.0").golden == 80
    other = check_figure(Figure.DISPATCHES, 78, goldens[1:], "3.9.0")
    assert other.passed is None
    assert other.note == "no golden for compiler release 3.9.0 (has: 3.13.0, 3.5.0): measured only"
    none = check_figure(Figure.SIZE, 833586, goldens, "3.9.0")
    assert describe_check(none) == "size 833,586 bytes (no golden size in the spec: measured only)"


@pytest.mark.parametrize(
    ("version", "passed"),
    [("3.13.0", False), ("3.14.0.dev0+g1a2b3c4", False), ("3.13.0rc20261016", False), ("4.0.0", None), ("3.12.0", None),
     ("unknown", None)],
)  # fmt: skip
def test_figures_may_belong_to_a_range_of_releases(version: str, passed: bool | None) -> None:
    assert check_figure(Figure.DISPATCHES, 77, [count_golden(76, ">=3.13,<4")], version).passed is passed


@pytest.mark.parametrize(
    ("version", "release"),
    [("3.13.0rc20261016", "3.13.0"), ("3.13.0", "3.13.0"), ("3.13", "3.13.0"), ("3.10.0.dev1+g1", "3.10.0"),
     ("", ""), ("unknown", ""), (" 3.9.0 ", "3.9.0")],
)  # fmt: skip
def test_releases(version: str, release: str) -> None:
    assert parse_release(version) == release


POSITIVE = st.floats(1e-3, 1e6)


@settings(deadline=None)
@given(POSITIVE, st.floats(1, 3), POSITIVE)
def test_a_figure_passes_up_to_its_limit(value: float, factor: float, measured: float) -> None:
    check = check_time(samples(measured), [time_golden(value, factor)], [], "mi300")
    assert check.passed == (measured <= value * factor)
    assert describe_check(check)


@settings(deadline=None)
@given(POSITIVE, st.floats(1, 3), POSITIVE, st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_unit_does_not_matter(value: float, factor: float, measured: float, scale: float) -> None:
    limit = value * factor
    assume(abs(measured - limit) > 1e-9 * limit)
    one = check_time(samples(measured), [time_golden(value, factor)], [], "mi300")
    other = check_time(samples(measured * scale), [time_golden(value * scale, factor)], [], "mi300")
    assert one.passed == other.passed
