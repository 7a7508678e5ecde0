"""Compares the code of two modules, dispatch by dispatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.formatting import format_count
from iree_gauntlet.measuring.profiles.dispatch_profile import parse_dispatch_name
from iree_gauntlet.results import CODE_FIGURES, SPILL_FIGURES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from iree_gauntlet.results import DispatchCode


# The figures that decide which change is the worst, the first before the others. More waves on a SIMD are better.
_RANKED_FIGURES = (*SPILL_FIGURES, "scratch_bytes", "occupancy", "code_bytes")
_MORE_IS_BETTER = "occupancy"
# Dispatches are matched by these keys, one after the other: by content, by name, and by name without its number.
_KEYS: tuple[Callable[[DispatchCode], Hashable], ...] = (
    lambda code: (code.target, code.code_hash),
    lambda code: (code.target, code.name),
    lambda code: (code.target, parse_dispatch_name(code.name).label),
)


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A dispatch whose code differs, with its code on each side; None on a side that has no such dispatch."""

    a: DispatchCode | None
    b: DispatchCode | None

    @property
    def sides(self) -> tuple[DispatchCode | None, DispatchCode | None]:
        """The code of A, and that of B."""
        return self.a, self.b

    @property
    def name(self) -> str:
        """The name of the dispatch, in B if it is there."""
        return next(side.name for side in (self.b, self.a) if side)

    @property
    def target(self) -> str:
        """The target of its code."""
        return next(side.target for side in (self.b, self.a) if side)

    @property
    def rank(self) -> tuple[float, ...]:
        """A key to sort by, the worst change first."""
        # A dispatch that only one side has is no change of a figure of which more is better.
        return tuple(
            (0 if self.a is None or self.b is None else _get(self.b, figure) - _get(self.a, figure))
            if figure == _MORE_IS_BETTER
            else _get(self.a, figure) - _get(self.b, figure)
            for figure in _RANKED_FIGURES
        )

    @property
    def description(self) -> str:
        """The figures that differ, such as `VGPR spills 0 → 109, VGPRs 96 → 256`, or those of the only side."""
        if self.a is None or self.b is None:
            side, code = ("A", self.a) if self.b is None else ("B", self.b)
            figures = code.figures if code else {}
            texts = (f"{format_count(figures[key])} {title}" for key, title in CODE_FIGURES.items() if figures.get(key))
            return f"only in {side}: {', '.join(texts)}"
        a, b = self.a.figures, self.b.figures
        changes = [
            f"{title} {' → '.join(format_count(side[key]) if key in side else '?' for side in (a, b))}"
            for key, title in CODE_FIGURES.items()
            if a.get(key) != b.get(key)
        ]
        return ", ".join(changes) or "other instructions"


def _get(code: DispatchCode | None, figure: str) -> int:
    return code.figures.get(figure, 0) if code else 0


def compare_code(a: Sequence[DispatchCode], b: Sequence[DispatchCode]) -> list[CodeChange]:
    """List the dispatches whose code differs, the worst first.

    Dispatches are matched by content first, then by name, then by name without its number, for the same target.
    """
    changes: list[CodeChange] = []
    left_a, left_b = list(a), list(b)
    for make_key in _KEYS:
        groups: dict[Hashable, list[DispatchCode]] = {}
        for code in left_a:
            groups.setdefault(make_key(code), []).append(code)
        rest_b = []
        for code in left_b:
            partners = groups.get(make_key(code))
            if not partners:
                rest_b.append(code)
            elif make_key is _KEYS[0]:
                partners.pop(0)
            else:
                changes.append(CodeChange(partners.pop(0), code))
        left_a, left_b = [code for group in groups.values() for code in group], rest_b
    changes += [CodeChange(code, None) for code in left_a] + [CodeChange(None, code) for code in left_b]
    return sorted(changes, key=lambda change: change.rank)
