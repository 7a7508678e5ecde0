"""Which IREEs lie between two: releases of the package index, nightlies of the links page, or those that are named.

The index is asked by uv with the user's own settings, as when a release is installed. Without a network what is
installed is all there is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from iree_gauntlet.errors import ToolchainError, UsageError
from iree_gauntlet.toolchains.checkout import Checkout
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import list_versions_here
from iree_gauntlet.toolchains.installed import COMPILER_WHEEL, RUNTIME_WHEEL
from iree_gauntlet.toolchains.installer import Installer, Sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packaging.version import Version

    from iree_gauntlet.toolchains.find import ToolchainPlace


_UNFIT = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One IREE of a row: its label, which no other of the row has, and what `--iree` takes."""

    label: str
    iree: str


def list_candidates_between(
    good: str, bad: str, place: ToolchainPlace, *, nightlies: bool
) -> tuple[tuple[Candidate, ...], bool]:
    """The versions from one to another, from the oldest to the newest, both among them.

    An end is a release, a nightly's version, or `nightly` for the newest; nightlies lie between them also where an end
    is one. Returned is also whether good is the older end.

    Raises:
        UsageError: an end is no version, or both are the same one.
        ToolchainError: the index does not answer.
    """
    ends = [_find_version(good, "--good", place), _find_version(bad, "--bad", place)]
    if ends[0] == ends[1]:
        raise UsageError(f"--good and --bad are both {ends[0]}", "Name two releases.")
    low, high = sorted(ends)
    nightlies = nightlies or low.is_prerelease or high.is_prerelease
    environments = place.environments
    if environments.offline:
        found = set(list_versions_here(environments))
    else:
        sources = _make_nightly_sources(place) if nightlies else Sources()
        found = set(_list_versions(environments.installer, COMPILER_WHEEL.distribution, low, high, sources))
        # What both the compiler and the runtime have.
        if found:
            found &= set(_list_versions(environments.installer, RUNTIME_WHEEL.distribution, low, high, sources))
    inside = sorted(version for version in found if low < version < high and version.is_prerelease == nightlies)
    row = tuple(Candidate(str(version), str(version)) for version in (low, *inside, high))
    return row, ends[0] == low


def list_commits(good: str, bad: str, source: str, place: ToolchainPlace) -> tuple[tuple[Candidate, ...], bool]:
    """The commits of a checkout from one to another, from the oldest to the newest, both among them.

    An end is a commit, a branch, a tag, or a release by its tag. Returned is also whether good is the older end.

    Raises:
        UsageError: both are the same, or neither leads to the other.
        ToolchainError: there is no such checkout or commit.
    """
    checkout = open_checkout(source, place)
    commits, good_is_older = checkout.commits_between(checkout.version_commit(good), checkout.version_commit(bad))
    return tuple(Candidate(commit[:12], f"source:{checkout.folder}@{commit}") for commit in commits), good_is_older


def open_checkout(source: str, place: ToolchainPlace) -> Checkout:
    """The checkout that `--source` names; ToolchainError where there is none."""
    choice = parse_choice(f"source:{source.removeprefix('source:')}", "--source")
    return Checkout.of(choice.folder, place.search_path)


def list_candidates_among(good: str, bad: str, among: Sequence[str]) -> tuple[Candidate, ...]:
    """A row that was named: good first, bad last; they are put at its ends where it does not hold them."""
    first, last = parse_choice(good, "--good"), parse_choice(bad, "--bad")
    row = [parse_choice(text, "--among") for text in among]
    keys = [_make_key(choice) for choice in row]
    for option, choice, place_name, index in (("--good", first, "first", 0), ("--bad", last, "last", len(row) - 1)):
        if _make_key(choice) in keys and keys.index(_make_key(choice)) != index:
            hint = "Name what lies between in order: good first, bad last."
            raise UsageError(f"{option} {choice.text} is not the {place_name} one of --among", hint)
    whole = [*([] if keys and keys[0] == _make_key(first) else [first]), *row]
    whole += [] if keys and keys[-1] == _make_key(last) else [last]
    seen: set[str] = set()
    labels: list[str] = []
    for choice in whole:
        if _make_key(choice) in seen:
            raise UsageError(f"--among: {choice.text} is there twice", "Name each IREE once.")
        seen.add(_make_key(choice))
        name = str(choice.version) if choice.version else choice.place.name if choice.place else choice.text
        label = _UNFIT.sub("-", name).strip(".-")[:60] or str(choice.kind)
        numbered = (f"{label}-{number}" for number in count(2))
        labels.append(next(each for each in chain([label], numbered) if each not in labels))
    return tuple(Candidate(label, choice.text) for label, choice in zip(labels, whole, strict=True))


def _find_version(text: str, option: str, place: ToolchainPlace) -> Version:
    try:
        choice = parse_choice(text, option)
    except UsageError as error:
        hint = f"{error.hint}\n  A commit, a branch or a tag needs its checkout: --source DIR."
        raise UsageError(error.what, hint) from error
    if choice.version is not None:
        return choice.version
    if choice.kind is not ChoiceKind.NIGHTLY:
        what = f"{option} {choice.text}: is no version, so that nothing is known to lie between the ends"
        raise UsageError(what, "Name a release such as 3.12.0, or say with --among, in order, what lies between.")
    environments = place.environments
    if environments.offline:
        found = [version for version in list_versions_here(environments) if version.is_prerelease]
    else:
        found = environments.installer.versions(
            COMPILER_WHEEL.distribution, SpecifierSet(), _make_nightly_sources(place)
        )
    if not found:
        where = "is installed" if environments.offline else f"for this Python and platform at {place.nightly_links}"
        raise ToolchainError(f"no nightly of IREE {where}", "Name a version.")
    return found[-1]


def _make_nightly_sources(place: ToolchainPlace) -> Sources:
    return Sources(place.nightly_links, only_links=True, pre=True)


def _list_versions(
    installer: Installer, distribution: str, low: Version, high: Version, sources: Sources
) -> list[Version]:
    """Every version in a range; uv tells only the lowest and the highest of one, so the range is closed in on."""
    found: list[Version] = []
    # Inclusive: `<3.13.0` leaves out its nightlies too, which are older than it.
    wanted = f">={low},<={high}"
    while True:
        some = installer.versions(distribution, SpecifierSet(wanted), sources)
        found += some
        if len(some) != 2:
            return found
        wanted = f">={some[0]},!={some[0]},<={some[1]},!={some[1]}"


def _make_key(choice: Choice) -> str:
    """The same for two ways to name one IREE."""
    if choice.version is not None:
        return str(choice.version)
    return f"{choice.kind}:{choice.place}" if choice.place else choice.text
