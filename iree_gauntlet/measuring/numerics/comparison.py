"""Comparing a module's outputs with the expected ones, by the rule of `iree-run-module`.

The rule (runtime/src/iree/tooling/buffer_view_matchers.c and `iree_math_fuzzy_compare_f64`): shapes and
element types must be the same; f16, bf16, f32 and f64 values pass where they are equal, both NaN, or
|actual − expected| ≤ atol + rtol · |expected| with a finite expected value, all computed in double
precision; values of every other type (integers, bools, f8, complex) must be the same bytes.

The arrays are gone through in pieces that fit the processor's cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.numerics.error_statistics import ErrorStatistics
from iree_gauntlet.results import OutputComparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.measuring.numerics.tolerances import Tolerances


_PIECE = 1 << 15
# What a comparison has of the errors of its values.
_FIGURES = (
    *("mismatches", "max_abs_error", "max_rel_error", "cosine_similarity"),
    *("actual_nans", "expected_nans", "actual_infs", "expected_infs"),
)


def compare_outputs(
    actual: Sequence[Tensor], expected: Sequence[Tensor | None], tolerances: Tolerances
) -> list[OutputComparison]:
    """Compares all outputs of a call; the call passes where every entry passes.

    Args:
        actual: what the module gave.
        expected: what it should give; None for an output that is of no interest.
        tolerances: how far floats may be apart.

    Returns:
        An entry for each actual output and for each expected one that is missing.
    """
    comparisons = [
        _compare_output(index, mine, wanted, tolerances)
        for index, (mine, wanted) in enumerate(zip(actual, expected, strict=False))
    ]
    counts = f"the module gives {len(actual)} outputs, {len(expected)} are expected"
    comparisons.extend(
        OutputComparison(index, str(extra.type), f"{counts}: this one has no expectation", passed=False)
        for index, extra in enumerate(actual[len(expected) :], len(expected))
    )
    comparisons.extend(
        OutputComparison(index, str(lost.type) if lost else "", f"{counts}: this one is missing", passed=False)
        for index, lost in enumerate(expected[len(actual) :], len(actual))
    )
    return comparisons


def _compare_output(index: int, actual: Tensor, expected: Tensor | None, tolerances: Tolerances) -> OutputComparison:
    if expected is None:
        message = "ignored: nothing is expected of this output"
        return OutputComparison(
            index, str(actual.type), message, passed=True, count=actual.type.count, actual_path=actual.source
        )
    atol, rtol = tolerances.written(actual.element_type)
    result = OutputComparison(
        index,
        str(actual.type),
        passed=False,
        count=actual.type.count,
        atol=atol,
        rtol=rtol,
        actual_path=actual.source,
        expected_path=expected.source,
    )
    if actual.type != expected.type:
        return replace(result, message=_type_message(actual, expected))
    statistics = _compare_values(actual, expected, tolerances)
    result = replace(
        result,
        passed=statistics.mismatches == 0,
        **{name: getattr(statistics, name) for name in _FIGURES},
    )
    if statistics.worst is not None:
        mine, wanted = actual.array.reshape(-1), expected.array.reshape(-1)
        where = np.unravel_index(statistics.worst, actual.array.shape)
        result = replace(
            result,
            worst_index=tuple(int(axis) for axis in where),
            worst_actual=_show(mine[statistics.worst]),
            worst_expected=_show(wanted[statistics.worst]),
        )
    return replace(result, message=_value_message(result))


def _compare_values(actual: Tensor, expected: Tensor, tolerances: Tolerances) -> ErrorStatistics:
    mine, wanted = actual.array.reshape(-1), expected.array.reshape(-1)
    limits = tolerances.effective(actual.element_type) if tolerances.applies_to(actual.element_type) else None
    statistics = ErrorStatistics(actual.element_type)
    for start in range(0, mine.size, _PIECE):
        statistics.add(start, mine[start : start + _PIECE], wanted[start : start + _PIECE], limits)
    return statistics


def _type_message(actual: Tensor, expected: Tensor) -> str:
    if actual.shape != expected.shape:
        return f"the module gives {actual.type}, expected is {expected.type}"
    message = f"the module gives element type {actual.element_type}, expected is {expected.element_type}"
    if expected.source.endswith(".npy") and f"s{actual.element_type}" == expected.element_type:
        message += (
            f" (integers in a .npy have a sign, and iree-run-module takes the two for different types:"
            f" store the expected values as raw bytes, {actual.type}=@file.bin)"
        )
    elif expected.element_type.startswith("*"):
        message += f" (a .npy cannot name {actual.element_type}: store raw bytes, {actual.type}=@file.bin)"
    return message


def _value_message(result: OutputComparison) -> str:
    rule = f"{result.atol:g} + {result.rtol:g}·|expected|" if result.atol or result.rtol else ""
    if result.passed:
        if result.worst_index is None:
            return f"all {result.count} values are equal"
        return f"all {result.count} values are within {rule}{_error_text(result)}"
    share = 100 * (result.mismatches or 0) / result.count
    text = f"{result.mismatches} of {result.count} values ({share:.3g} %) differ"
    if rule:
        text += f" by more than {rule}"
    where = list(result.worst_index or ())
    text += f"; worst at {where}: {result.worst_actual}, expected {result.worst_expected}{_error_text(result)}"
    for name, mine, wanted in (
        ("NaN", result.actual_nans, result.expected_nans),
        ("Inf", result.actual_infs, result.expected_infs),
    ):
        if mine != wanted:
            text += f"; {mine} {name}, expected {wanted}"
    return text


def _error_text(result: OutputComparison) -> str:
    return "" if result.max_abs_error is None else f" (largest error {result.max_abs_error:.4g})"


def _show(value: Any) -> str:
    """One value as text, in the fewest digits that tell it from its neighbours."""
    if isinstance(value, np.void):
        return "0x" + value.tobytes().hex()
    if isinstance(value, np.bool_):
        # A damaged bool holds neither 0 nor 1, which is just what one then needs to see.
        return str(np.array([value]).view(np.uint8)[0])
    return str(value)
