"""The dispatches of a compiled module, by the names that stand in it, and how two modules differ in them.

Names of dispatches stand among the module's strings (3.13) or in its executables (3.5 to 3.12).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from iree_gauntlet.measuring.profiles.dispatch_profile import dispatch_name

if TYPE_CHECKING:
    from collections.abc import Iterable


_DISPATCH = re.compile(rb"[\w$.]*_(?:dispatch|encoding)_\d+(?:_\w+)?")
_NUMBERED = re.compile(r".*_(?:dispatch|encoding)_\d+")


def dispatch_names(data: Iterable[bytes]) -> list[str]:
    """Names of dispatches in any data, in their order; the shorter of two for the same one is left out."""
    found = {match.decode() for part in data for match in _DISPATCH.findall(part)}
    # An executable is called like its dispatch, without what it does.
    short = {match[0] for name in found if (match := _NUMBERED.match(name)) and match[0] != name}
    # The length of a text is before it in some formats, and may look like a letter.
    return sorted((name for name in found if name not in short and name[1:] not in found), key=_place)


def new_and_gone(before: Iterable[str], after: Iterable[str]) -> tuple[list[str], list[str]]:
    """What one list of dispatches has and the other has not, without their numbers: `matmul_4x8_f32`, `add_4 (2)`."""
    old, new = (Counter(dispatch_name(name).work or name for name in names) for names in (before, after))
    return _listed(new - old), _listed(old - new)


def _listed(works: Counter[str]) -> list[str]:
    return [work if count == 1 else f"{work} ({count})" for work, count in sorted(works.items())]


def _place(name: str) -> tuple[str, int, str]:
    """Where a dispatch stands: its numbers are given in the order of the program."""
    parts = dispatch_name(name)
    return parts.function, -1 if parts.number is None else parts.number, name
