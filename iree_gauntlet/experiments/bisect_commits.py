"""Bisects among the commits of a checkout: which there are, what they cost, and which one it was."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import UsageError
from iree_gauntlet.figures import counted, duration
from iree_gauntlet.toolchains.candidates import Candidate, candidates_of_commits, checkout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.find import Place


_PULL = re.compile(r"\(#(\d+)\)\s*$")


def require_one_way(among: Sequence[str], source: str, into: str, *, nightlies: bool) -> None:
    """Makes sure that what lies between the ends is said in one way.

    Raises:
        UsageError: it is said in two.
    """
    ways = {"--among": among, "--source": source, "--nightlies": nightlies}
    given = [name for name, value in ways.items() if value]
    if source and into:
        given += ["--into"]
    if len(given) > 1:
        hint = "--source names a checkout, --among IREEs in order, --nightlies nothing."
        raise UsageError(f"{given[0]} and {given[1]} exclude each other", f"Say in one way what lies between: {hint}")


def describe_cost(row: Sequence[Candidate], tries: int, place: Place) -> str:
    """How many of a row have to be built, and about how long that takes: by the builds before it."""
    builds = [build for _, build, _ in place.builds.all() if build]
    there = sum(candidate.label in {build.commit[:12] for build in builds} for candidate in row)
    known = [build.seconds for build in builds if build.seconds]
    took = f", about {duration(max(known) * (tries + 2))} by the builds before" if known else ""
    most = min(tries + 2, len(row) - there)
    return f"{counted(len(row), 'commit')}, {there} built already; at most {counted(most, 'build')}{took}"


def places_there(row: Sequence[Candidate], place: Place) -> set[int]:
    """Where in a row candidates are that need no build."""
    commits = {build.commit[:12] for _, build, _ in place.builds.all() if build}
    return {index for index, candidate in enumerate(row) if candidate.label in commits}


def commits_inside(old: str, new: str, source: str, place: Place) -> tuple[Candidate, ...]:
    """The commits of a checkout between two, without those, from the oldest to the newest.

    Raises:
        UsageError: neither leads to the other.
        ToolchainError: there is no such checkout or commit.
    """
    row, _ = candidates_of_commits(old, new, source, place)
    return row[1:-1]


def describe_change(commit: str, source: str, place: Place) -> dict[str, Any]:
    """The commit that made a change: `commit`, `date`, `author`, `subject`, `pull` (its request's number, or None).

    Raises:
        ToolchainError: there is no such checkout or commit.
    """
    said = checkout_of(source, place).describe(commit)
    pull = _PULL.search(said["subject"])
    return {**said, "pull": int(pull[1]) if pull else None}
