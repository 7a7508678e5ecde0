"""Bisects among the commits of a checkout: which there are, what they cost, and which one it was."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.figures import counted, duration
from iree_gauntlet.toolchains.candidates import Candidate, candidates_between, list_commits, open_checkout
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import environment_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.toolchains.find import Place


_PULL = re.compile(r"\(#(\d+)\)\s*$|^Merge pull request #(\d+) ")


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
    ready = find_ready(row, place)
    known = [build.seconds for _, build, _ in place.builds.all() if build and build.seconds]
    ends = sum(end not in ready for end in (0, len(row) - 1))
    most = min(tries + ends, len(row) - len(ready))
    took = f", about {duration(max(known) * most)} by the builds before" if known and most else ""
    return f"{counted(len(row), 'commit')}, {len(ready)} there already; at most {counted(most, 'build')}{took}"


def find_ready(row: Sequence[Candidate], place: Place) -> set[int]:
    """Where in a row candidates are that need no build and no download."""
    commits = _find_commits(place)
    return {index for index, candidate in enumerate(row) if candidate.label in commits}


def _find_commits(place: Place) -> set[str]:
    """The commits that are built, or whose packages are installed, by their labels."""
    packaged = (found.label.removeprefix("commit-") for _, found, _ in place.environments.all() if found)
    # What was built of a work tree is that tree's.
    built = (build for _, build, _ in place.builds.all() if build and not build.of_tree)
    return {*packaged, *(build.commit[:12] for build in built)}


def take_package(candidate: Candidate, place: Place, say: Callable[[str], None]) -> Candidate:
    """A commit by its package, which is installed; the same candidate where it has none, or is no commit.

    Raises:
        ToolchainError: whether it has one cannot be said.
    """
    choice = parse_choice(candidate.iree)
    if choice.kind is not ChoiceKind.SOURCE or not choice.ref:
        return candidate
    named = f"commit:{choice.ref}"
    try:
        environment_for(parse_choice(named), place)
    except NoSuchToolchainError as error:
        say(f"{candidate.label}: {error.what}; it is built")
        return candidate
    return replace(candidate, iree=named)


def list_nightlies_inside(
    old: Candidate, new: Candidate, place: Place, say: Callable[[str], None]
) -> tuple[Candidate, ...]:
    """The nightlies between two releases, which cost no build; none where one is no release, or there are none."""
    if any(parse_choice(candidate.iree).kind is not ChoiceKind.RELEASE for candidate in (old, new)):
        return ()
    try:
        row, _ = candidates_between(old.iree, new.iree, place, nightlies=True)
    except ToolchainError as error:
        say(f"no nightlies between {old.label} and {new.label}: {error.what}; on to the commits")
        return ()
    if row[1:-1]:
        say(f"between {old.label} and {new.label}: nightlies ({len(row) - 2})")
    return row[1:-1]


def list_commits_inside(old: str, new: str, source: str, place: Place) -> tuple[Candidate, ...]:
    """The commits of a checkout between two, without those, from the oldest to the newest.

    Raises:
        UsageError: neither leads to the other.
        ToolchainError: there is no such checkout or commit.
    """
    row, _ = list_commits(old, new, source, place)
    return row[1:-1]


def describe_change(commit: str, source: str, place: Place) -> dict[str, Any]:
    """The commit that made a change: `commit`, `date`, `author`, `subject`, `pull` (its request's number, or None).

    Raises:
        ToolchainError: there is no such checkout or commit.
    """
    said = open_checkout(source, place).describe(commit)
    pull = _PULL.search(said["subject"])
    return {**said, "pull": int(pull[1] or pull[2]) if pull else None}
