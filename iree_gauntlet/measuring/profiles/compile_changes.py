"""What differs between two compiles of one program: the compiler's statistics and the size of the module.

The statistics are the JSON of `--iree-scheduling-dump-statistics-format=json`: objects within objects, with numbers
as leaves. Releases name and count other things: what one side does not tell is said as such, never taken for zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_AGGREGATE = "stream-aggregate"
_MODULE_SIZE = "module size"
# What people call the figures, the most telling first.
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "execution/dispatch-count": "dispatches",
        "executable/executable-count": "executables",
        "execution/transient-memory-size": "transient memory",
        "global/constant-size": "constant memory",
        "global/constant-count": "constants",
        "global/variable-size": "variable memory",
        "global/variable-count": "variables",
        "execution/submission-count": "submissions",
        "execution/copy-count": "copies",
        "execution/fill-count": "fills",
        "execution/call-count": "calls",
        "synchronization/await-count": "awaits",
    }
)
_ORDER = (_MODULE_SIZE, *_NAMES.values())


@dataclass(frozen=True, slots=True)
class CompileChange:
    """A figure that differs.

    Attributes:
        name: for people (`transient memory`); the place in the statistics where it has no name here.
        a, b: the figures; None where that side does not tell.
        unit: `bytes`, or empty for a count.
    """

    name: str
    a: float | None
    b: float | None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """B over A; None where a side does not tell, or A is 0."""
        return None if self.b is None or not self.a else self.b / self.a

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {"name": self.name, "a": self.a, "b": self.b, "unit": self.unit, "ratio": self.ratio}


def compile_changes(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    *,
    a_bytes: int | None = None,
    b_bytes: int | None = None,
) -> tuple[CompileChange, ...]:
    """The figures that differ, and those that one side alone tells; none where the compiles are alike.

    Args:
        a: the compiler's statistics, the content of its JSON file.
        b: the other side's.
        a_bytes: size of the module; None where unknown.
        b_bytes: the other side's.
    """
    figures = _figures(a, a_bytes), _figures(b, b_bytes)
    names = sorted(figures[0].keys() | figures[1].keys(), key=_place)
    return tuple(
        CompileChange(name, figures[0].get(name), figures[1].get(name), _unit(name))
        for name in names
        if figures[0].get(name) != figures[1].get(name)
    )


def _figures(statistics: Mapping[str, Any], module_bytes: int | None) -> dict[str, float]:
    found = {_NAMES.get(path, path): value for path, value in _leaves(statistics)}
    if module_bytes is not None:
        found[_MODULE_SIZE] = module_bytes
    return found


def _leaves(statistics: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Numbers by their place, `execution/dispatch-count`."""
    for key, value in statistics.items():
        here = f"{path}/{key}" if path else str(key)
        if isinstance(value, dict):
            yield from _leaves(value, "" if here == _AGGREGATE else here)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield here, value


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _unit(name: str) -> str:
    return "bytes" if name == _MODULE_SIZE or name.endswith(("memory", "-size", "-bytes")) else ""
