"""The numeric tolerance of a comparison, from the flags of `iree-run-module`.

Flags, types and defaults are those of 3.13 (runtime/src/iree/tooling/comparison.cc). The tool reads
invalid numbers as 0 and accepts negative numbers; here both are errors, since nobody intends them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.formatting import parse_c_float

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.cases import Case


_FIELDS_BY_FLAG = {
    "--expected_f16_threshold": "f16_atol",
    "--expected_f32_threshold": "f32_atol",
    "--expected_f64_threshold": "f64_atol",
    "--expected_bf16_threshold": "bf16_atol",
    "--expected_rtol": "rtol",
}
_MODE_FLAG = "--equality_mode"
TOLERANCE_FLAGS = (*_FIELDS_BY_FLAG, _MODE_FLAG)
# The tool stores these three in a C float.
_C_FLOAT_FIELDS = frozenset({"f16", "f32", "bf16"})
_DEFAULT_RTOL = 1e-5
# A tolerance of this size or more is useless, because outputs hardly ever differ by so much; f16 values cannot.
_MAX_TOLERANCE = 1e6
_MAX_F16_TOLERANCE = 65504.0


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Tolerances: a value passes if |actual − expected| ≤ atol + rtol · |expected|.

    Attributes:
        exact: True if floats too must be equal byte for byte (`--equality_mode=exact`).
    """

    f16_atol: float = 1e-3
    f32_atol: float = 1e-4
    f64_atol: float = 1e-4
    bf16_atol: float = 1e-2
    rtol: float = _DEFAULT_RTOL
    exact: bool = False

    def applies_to(self, element_type: str) -> bool:
        """Return whether tolerances apply to a type; values of other types (f8 too) must have the same bytes."""
        return not self.exact and element_type in ("f16", "f32", "f64", "bf16")

    def get_as_written(self, element_type: str) -> tuple[float, float]:
        """Return (atol, rtol) as the flags have them, for people; zeros if the comparison is exact."""
        if not self.applies_to(element_type):
            return 0.0, 0.0
        return getattr(self, f"{element_type}_atol"), self.rtol

    def get_limits(self, element_type: str) -> tuple[float, float]:
        """Return (atol, rtol) as the tool uses them; except for f64, the tool stores atol in a C float."""
        absolute, relative = self.get_as_written(element_type)
        if element_type in _C_FLOAT_FIELDS:
            absolute = ctypes.c_float(absolute).value
        return absolute, relative


def parse_tolerances(flags: Iterable[str]) -> Tolerances:
    """Parse the tolerance flags among a run's flags, ignoring other flags; the last of a repeated flag counts."""
    tolerances = Tolerances()
    for flag in map(str.strip, flags):
        name, _, text = flag.partition("=")
        if name == _MODE_FLAG:
            mode = text[1:-1] if len(text) > 2 and text[0] == text[-1] == '"' else text
            if mode not in ("approximate", "exact"):
                raise UsageError(
                    f"flag {flag!r}: unknown equality mode {mode!r}",
                    "write --equality_mode=approximate or --equality_mode=exact",
                )
            tolerances = replace(tolerances, exact=mode == "exact")
        elif name in _FIELDS_BY_FLAG:
            # mypy cannot see that every name in the table is a float field.
            tolerances = replace(tolerances, **{_FIELDS_BY_FLAG[name]: _parse_number(flag, name, text)})  # type: ignore[arg-type]
    return tolerances


def is_tolerance(flag: str) -> bool:
    """Return whether a flag of `iree-run-module` says what is allowed, in some release."""
    return flag.partition("=")[0] in TOLERANCE_FLAGS


def parse_tolerance(flag: str) -> tuple[str, float] | None:
    """Return `("f32", 1e-4)` or `("rtol", 1e-5)` for a flag that is a valid tolerance; None for any other."""
    name, _, text = flag.strip().partition("=")
    try:
        return (_FIELDS_BY_FLAG[name], _parse_number(flag.strip(), name, text)) if name in _FIELDS_BY_FLAG else None
    except UsageError:
        return None


def _parse_number(flag: str, name: str, text: str) -> float:
    hint = f"write a number that is not negative: {name}=1e-3 (iree-run-module itself would read this as 0)"
    try:
        value = parse_c_float(text.strip())
    except ValueError as error:
        raise UsageError(f"flag {flag!r}: {text!r} is not a number", hint) from error
    if value != value or value < 0:  # noqa: PLR0124 - NaN is the one number that differs from itself
        raise UsageError(
            f"flag {flag!r}: a tolerance of {text} lets only equal values pass", "write a number that is not negative"
        )
    return value


@dataclass(frozen=True, slots=True)
class FlagFinding:
    """A problem of a flag.

    Attributes:
        message: the problem, and what is expected.
    """

    file: str
    flag: str
    message: str
    hint: str


def find_wrong_tolerances(case: Case) -> Iterator[FlagFinding]:
    """Yield tolerances that are not numbers, which iree-run-module reads as 0, or that are negative."""
    for file, flag in _list_flags(case):
        try:
            parse_tolerances([flag])
        except UsageError as error:
            yield FlagFinding(file, flag, error.message, error.hint)


def find_loose_tolerances(case: Case) -> Iterator[FlagFinding]:
    """Yield tolerances so large that every value passes, or that zeros pass whatever is expected."""
    for file, flag in _list_flags(case):
        kind, value = parse_tolerance(flag) or ("", 0.0)
        if value >= (_MAX_F16_TOLERANCE if kind == "f16" else _MAX_TOLERANCE):
            message = f"flag {flag!r}: so large a tolerance lets every value pass"
        elif kind == "rtol" and value >= 1:
            message = f"flag {flag!r}: with such a large tolerance zeros pass, whatever is expected"
        else:
            continue
        yield FlagFinding(file, flag, message, "Give the allowed difference of the outputs, such as 1e-3.")


def find_ineffective_tolerances(case: Case) -> Iterator[FlagFinding]:
    """Yield absolute tolerances smaller than what the tool's default relative tolerance adds for values ≥ 1."""
    tolerances = [(file, flag, *tolerance) for file, flag in _list_flags(case) if (tolerance := parse_tolerance(flag))]
    if any(kind == "rtol" for _, _, kind, _ in tolerances):
        return
    for file, flag, _, value in tolerances:
        if value < _DEFAULT_RTOL:
            message = (
                f"flag {flag!r}: iree-run-module adds {_DEFAULT_RTOL:g}·|expected| to it,"
                f" which is more for values above {value / _DEFAULT_RTOL:.2g}"
            )
            yield FlagFinding(file, flag, message, "Write the relative part too: --expected_rtol=0, or what you mean.")


def _list_flags(case: Case) -> Iterator[tuple[str, str]]:
    """Yield (file, flag) of a case that is compared by iree-run-module's rule."""
    if case.allclose is None:
        flags_file = (case.flags_origin or case.origin).file
        yield from ((flags_file, flag) for flag in case.run_flags)
        yield from ((case.origin.file, flag) for flag in case.own_flags)
