"""The instructions of one call, as `count_call` has written them, and what two counts say of the work."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchProfile, DispatchTime

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Counts:
    """The instructions of one call.

    Attributes:
        instructions: all of them.
        calls: how many calls were counted.
        dispatches: (name, instructions, place in the program) of each; none where the counter does not know them.
    """

    instructions: int
    calls: int
    dispatches: tuple[tuple[str, int, str], ...]

    @property
    def outside(self) -> int:
        """Those that are in no dispatch."""
        return self.instructions - sum(count for _, count, _ in self.dispatches)

    @property
    def profile(self) -> DispatchProfile:
        """As a profile whose times are instructions."""
        found = tuple(DispatchTime(name, 1, count, count) for name, count, _ in self.dispatches)
        return DispatchProfile(found, 1, self.instructions)


def read_counts(path: Path) -> Counts:
    """What `count_call` has written.

    Raises:
        GauntletError: the file is not there, or is none of that kind.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        dispatches = tuple((str(name), int(count), str(place)) for name, count, place in document["dispatches"])
        return Counts(int(document["instructions"]), int(document["calls"]), dispatches)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GauntletError(f"the counts {path} cannot be read: {error}", "Count again.") from error


# The share from which on two counts are two: what is less is no change of the work.
LEAST_WORK = 0.0001


class Work(StrEnum):
    """What two counts say: exactly, whatever else the machine does."""

    SAME = "same work"
    LESS = "less work"
    MORE = "more work"


def compare_work(a: float, b: float, least: float) -> Work:
    """What B's count says against A's.

    Args:
        a: instructions of one call.
        b: the same.
        least: the share of A's from which on a difference counts.
    """
    if abs(b - a) <= least * a:
        return Work.SAME
    return Work.MORE if b > a else Work.LESS
