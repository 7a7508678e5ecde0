from __future__ import annotations

import math

import pytest

from iree_gauntlet import formatting
from iree_gauntlet.figures import Figure
from iree_gauntlet.records.chain_figures import ChainFigures
from iree_gauntlet.records.explain_outcome import ProgramSize, ReductionFinding
from iree_gauntlet.reports.details import format_check, format_comparison
from iree_gauntlet.results import Check, OutputComparison
from tests.support.journal_builder import make_check, make_comparison


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (61.2, "61.2 s"),
        (185.4, "3 min 05 s"),
        (3599.9, "1 h 00 min"),
        (7380.0, "2 h 03 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert formatting.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1350.23, "1350.23"),
        (6e-6, "0.000006"),
        (9.1, "9.10"),
        (0.0801, "0.0801"),
        (0.0, "0.0000"),
        (2e-4, "0.000200"),
        (math.nan, "nan"),
    ],
)
def test_milliseconds(value: float, text: str) -> None:
    assert formatting.format_milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (512, "512 B"), (600_000, "600.0 kB"), (69.1e6, "69.1 MB"), (16e9, "16.0 GB")]
)
def test_byte_sizes(value: float, text: str) -> None:
    assert formatting.format_bytes(value) == text


def test_a_spread_has_as_many_decimals_as_its_mean() -> None:
    assert formatting.format_mean_and_spread(9.1, 0.1234) == "9.10 ± 0.12"
    assert formatting.format_mean_and_spread(1350.0, 12.0) == "1350.00 ± 12.00"
    assert formatting.format_mean_and_spread(113.6, 16.21) == "113.60 ± 16.21"
    assert formatting.format_mean_and_spread(80.64, 12.14) == "80.64 ± 12.14"
    assert formatting.format_mean_and_spread(0.08, 0.0012) == "0.0800 ± 0.0012"
    assert formatting.format_mean_and_spread(9.1, None) == "9.10"


def test_shares_and_counts() -> None:
    assert formatting.format_percent(0, 0) == "0 %"
    assert formatting.format_percent(0, 7) == "0 %"
    assert formatting.format_percent(1, 50_000) == "0.002 %"
    assert formatting.format_count(1_176_754) == "1,176,754"
    assert formatting.format_count(1.5) == "1.50"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (make_check("dispatch_count", 76, 76), "dispatches: 76, within golden 76"),
        (make_check("dispatch_count", 77, 76), "dispatches: 77 exceeds golden 76: +1.3 %"),
        (make_check("dispatch_count", 1, 0), "dispatches: 1 exceeds golden 0"),
        (make_check("binary_size_bytes", 9, None, note="no golden"), "size: 9 bytes, not checked; no golden"),
        (
            make_check("time_ms", 9.1, 9.0, 1.1, passed=None, note="golden of mi300"),
            "time (mean): 9.10 ms, not checked against 9.90 ms (golden 9.00 ms × 1.1); golden of mi300",
        ),
        ({**make_check("time_ms", 1, 1), "measured": None}, "time (mean): not measured"),
    ],
)
def test_check_lines(data: dict[str, object], text: str) -> None:
    assert format_check(Check.from_dict(data)) == text


def test_a_check_that_failed_within_its_limit_is_not_called_within() -> None:
    # A verdict may rest on more than the plain comparison; the words must not contradict it.
    data = make_check("time_ms", 9.1, 9.0, 1.1, passed=False)
    assert format_check(Check.from_dict(data)).startswith("time (mean): 9.10 ms failed against 9.90 ms")


def test_a_check_over_its_limit_that_passed_says_so() -> None:
    data = make_check("time_ms", 10.0, 9.0, 1.1, passed=True)
    assert format_check(Check.from_dict(data)).startswith("time (mean): 10.00 ms, passed, exceeds 9.90 ms")


def test_an_error_that_is_not_finite_is_no_infinity() -> None:
    assert formatting.format_share(0.0312345) == "0.0312 of its largest value"
    assert formatting.format_share(2.0, "the") == "2 of the largest value"
    assert formatting.format_share(math.nan) == formatting.format_share(math.inf) == "NaN or infinity"


@pytest.mark.parametrize(
    ("operations", "names", "text"),
    [
        (1, ("onnx.Cast",), "reduced from 1,408 operations to 1 in 8 compiles: onnx.Cast"),
        (0, (), "reduced from 1,408 operations to none in 8 compiles: a function without operations"),
    ],
)
def test_a_reduction_says_what_is_left(operations: int, names: tuple[str, ...], text: str) -> None:
    finding = ReductionFinding(before=ProgramSize(1408), after=ProgramSize(operations), tried=8, names=names)
    assert finding.describe(" in 8 compiles") == text
    assert finding.describe() == text.replace(" in 8 compiles", "")


def test_comparison_lines() -> None:
    wrong = make_comparison(
        passed=False, message="shape 1x2 where 1x3 was expected", count=0, max_abs_error=None,
        worst_actual="", worst_expected="", cosine_similarity=None, actual_nans=2, expected_infs=1,
    )  # fmt: skip
    assert format_comparison(OutputComparison.from_dict(wrong)) == (
        "output 0 (1x384xf32): shape 1x2 where 1x3 was expected; NaN 2, expected 0; Inf 0, expected 1"
    )
    special = make_comparison(passed=False, mismatches=1, worst_actual="0", worst_expected="nan", max_abs_error=2.2e-8)
    output = OutputComparison.from_dict({**special, "max_rel_error": None, "expected_nans": 1})
    assert format_comparison(output).startswith(
        "output 0 (1x384xf32): 1 of 384 elements differ (0.3 %); max absolute error of finite values 2.2e-08 (allowed"
        " 0.0001 + 1e-05·|expected|); worst at [0, 3]: 0 where NaN was expected; "
    )
    assert ChainFigures(outputs=(output,)).format_cell(Figure.ERROR) == (
        "1 of 384 differ (0.3 %): 0 where NaN was expected"
    )
    bare = {"index": 3, "passed": False}
    assert format_comparison(OutputComparison.from_dict(bare)) == "output 3: differs"
    assert format_comparison(OutputComparison.from_dict({"index": 3, "passed": True})) == "output 3: as expected"
