"""What is wrong with the tolerances that a case's flags give, reported before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.measuring.numerics.tolerances import DEFAULT_RTOL, parse_tolerance, parse_tolerances

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.cases import Case


# Nothing that is compared differs by so much; of f16 nothing can.
_MOST = 1e6
_MOST_F16 = 65504.0


@dataclass(frozen=True, slots=True)
class FlagFinding:
    """Something about a flag.

    Attributes:
        message: what is found, and what is expected.
    """

    file: str
    flag: str
    message: str
    hint: str


def find_wrong_tolerances(case: Case) -> Iterator[FlagFinding]:
    """Tolerances that are no numbers, or negative; iree-run-module takes the former for 0."""
    for file, flag in _list_flags(case):
        try:
            parse_tolerances([flag])
        except UsageError as error:
            yield FlagFinding(file, flag, error.what, error.hint)


def find_loose_tolerances(case: Case) -> Iterator[FlagFinding]:
    """Tolerances that no value can exceed: a check that cannot fail."""
    for file, flag in _list_flags(case):
        kind, value = parse_tolerance(flag) or ("", 0.0)
        if value >= (_MOST_F16 if kind == "f16" else _MOST):
            message = f"flag {flag!r}: so large a tolerance lets every value pass"
            yield FlagFinding(file, flag, message, "Give what the outputs may differ by, such as 1e-3.")


def find_void_tolerances(case: Case) -> Iterator[FlagFinding]:
    """Absolute tolerances below the relative one that iree-run-module adds unasked, for values of 1 and more."""
    written = [(file, flag, *tolerance) for file, flag in _list_flags(case) if (tolerance := parse_tolerance(flag))]
    if any(kind == "rtol" for _, _, kind, _ in written):
        return
    for file, flag, _, value in written:
        if value < DEFAULT_RTOL:
            message = (
                f"flag {flag!r}: iree-run-module adds {DEFAULT_RTOL:g}·|expected| to it,"
                f" which is more for values above {value / DEFAULT_RTOL:.2g}"
            )
            yield FlagFinding(file, flag, message, "Write the relative part too: --expected_rtol=0, or what you mean.")


def _list_flags(case: Case) -> Iterator[tuple[str, str]]:
    """(file, flag) of a case that is compared by iree-run-module's rule."""
    if case.allclose is None:
        shared = (case.flags_origin or case.origin).file
        yield from ((shared, flag) for flag in case.run_flags)
        yield from ((case.origin.file, flag) for flag in case.own_flags)
