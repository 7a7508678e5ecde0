"""The IREEs between two: releases of the package index, nightlies of the links page, or an explicit list.

uv queries the index with the user's own settings, as it does when it installs a release. Without a network, only
installed versions are listed.
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
from iree_gauntlet.toolchains.find import list_local_versions
from iree_gauntlet.toolchains.installed import COMPILER_WHEEL, RUNTIME_WHEEL
from iree_gauntlet.toolchains.installer import Installer, Sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packaging.version import Version

    from iree_gauntlet.toolchains.find import ToolchainLocations


_LABEL_SEPARATORS = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One IREE of a sequence: a label, unique in the sequence, and the value of `--iree`."""

    label: str
    iree: str


def list_candidates_between(
    good: str, bad: str, locations: ToolchainLocations, *, nightlies: bool
) -> tuple[tuple[Candidate, ...], bool]:
    """List the versions between two ends, from the oldest to the newest, both included.

    An end is a release, a nightly's version, or `nightly` for the newest. If an end is a nightly, nightlies are listed.
    Return also whether `good` is the older end.

    Raises:
        UsageError: an end is not a version, or both ends are the same version.
        ToolchainError: the index does not answer.
    """
    ends = [_find_version(good, "--good", locations), _find_version(bad, "--bad", locations)]
    if ends[0] == ends[1]:
        raise UsageError(f"--good and --bad are both {ends[0]}", "Name two releases.")
    low, high = sorted(ends)
    nightlies = nightlies or low.is_prerelease or high.is_prerelease
    environments = locations.environments
    if environments.offline:
        versions = set(list_local_versions(environments))
    else:
        sources = _make_nightly_sources(locations) if nightlies else Sources()
        versions = set(_list_versions(environments.installer, COMPILER_WHEEL.distribution, low, high, sources))
        # A version needs both a compiler and a runtime.
        if versions:
            versions &= set(_list_versions(environments.installer, RUNTIME_WHEEL.distribution, low, high, sources))
    inner = sorted(version for version in versions if low < version < high and version.is_prerelease == nightlies)
    candidates = tuple(Candidate(str(version), str(version)) for version in (low, *inner, high))
    return candidates, ends[0] == low


def list_commits(good: str, bad: str, source: str, locations: ToolchainLocations) -> tuple[tuple[Candidate, ...], bool]:
    """List the commits of a checkout from one to another, from the oldest to the newest, both included.

    An end is a commit, a branch, a tag, or a release by its tag. Return also whether `good` is the older end.

    Raises:
        UsageError: both ends are equal, or neither is an ancestor of the other.
        ToolchainError: the checkout or a commit does not exist.
    """
    checkout = open_checkout(source, locations)
    commits, good_is_older = checkout.list_commits(checkout.resolve_version(good), checkout.resolve_version(bad))
    return tuple(Candidate(commit[:12], f"source:{checkout.folder}@{commit}") for commit in commits), good_is_older


def open_checkout(source: str, locations: ToolchainLocations) -> Checkout:
    """Open the checkout that `--source` names; raise a ToolchainError if it does not exist."""
    choice = parse_choice(f"source:{source.removeprefix('source:')}", "--source")
    return Checkout.open(choice.folder, locations.search_path)


def list_candidates_among(
    good: str, bad: str, among: Sequence[str], ends: tuple[str, str] = ("--good", "--bad")
) -> tuple[Candidate, ...]:
    """List explicitly named candidates, `good` first and `bad` last; both are added if the list lacks them.

    `ends` are the names of both in messages.
    """
    first, last = parse_choice(good, ends[0]), parse_choice(bad, ends[1])
    choices = [parse_choice(text, "--among") for text in among]
    keys = [_make_key(choice) for choice in choices]
    for option, choice, position, index in ((ends[0], first, "first", 0), (ends[1], last, "last", len(choices) - 1)):
        if _make_key(choice) in keys and keys.index(_make_key(choice)) != index:
            hint = f"Name the candidates in order: {ends[0]} first, {ends[1]} last."
            raise UsageError(f"{option} {choice.text} is not {position} in --among", hint)
    all_choices = [*([] if keys and keys[0] == _make_key(first) else [first]), *choices]
    all_choices += [] if keys and keys[-1] == _make_key(last) else [last]
    used_keys: set[str] = set()
    labels: list[str] = []
    for choice in all_choices:
        if _make_key(choice) in used_keys:
            raise UsageError(f"--among: {choice.text} is listed twice", "Name each IREE once.")
        used_keys.add(_make_key(choice))
        name = (
            str(choice.version)
            if choice.version
            else choice.identity_path.name
            if choice.identity_path
            else choice.text
        )
        label = _LABEL_SEPARATORS.sub("-", name).strip(".-")[:60] or str(choice.kind)
        numbered_labels = (f"{label}-{number}" for number in count(2))
        labels.append(next(candidate for candidate in chain([label], numbered_labels) if candidate not in labels))
    return tuple(Candidate(label, choice.text) for label, choice in zip(labels, all_choices, strict=True))


def _find_version(text: str, option: str, locations: ToolchainLocations) -> Version:
    try:
        choice = parse_choice(text, option)
    except UsageError as error:
        hint = f"{error.hint}\n  A commit, a branch or a tag needs its checkout: --source DIR."
        raise UsageError(error.message, hint) from error
    if choice.version is not None:
        return choice.version
    if choice.kind is not ChoiceKind.NIGHTLY:
        message = f"{option} {choice.text}: is not a version: the candidates between the ends are unknown"
        raise UsageError(message, "Name a release such as 3.12.0, or list the candidates in order with --among.")
    environments = locations.environments
    if environments.offline:
        nightlies = [version for version in list_local_versions(environments) if version.is_prerelease]
    else:
        nightlies = environments.installer.list_versions(
            COMPILER_WHEEL.distribution, SpecifierSet(), _make_nightly_sources(locations)
        )
    if not nightlies:
        place = "is installed" if environments.offline else f"for this Python and platform at {locations.nightly_links}"
        raise ToolchainError(f"no nightly of IREE {place}", "Name a version.")
    return nightlies[-1]


def _make_nightly_sources(locations: ToolchainLocations) -> Sources:
    return Sources(locations.nightly_links, only_links=True, pre=True)


def _list_versions(
    installer: Installer, distribution: str, low: Version, high: Version, sources: Sources
) -> list[Version]:
    """List every version in a range, by narrowing it: uv reports only the lowest and the highest version of a range."""
    versions: list[Version] = []
    # The range is inclusive, because `<3.13.0` would exclude the nightlies of 3.13.0, which are older.
    specifiers = f">={low},<={high}"
    while True:
        ends = installer.list_versions(distribution, SpecifierSet(specifiers), sources)
        versions += ends
        if len(ends) != 2:
            return versions
        specifiers = f">={ends[0]},!={ends[0]},<={ends[1]},!={ends[1]}"


def _make_key(choice: Choice) -> str:
    """Return a key that is equal for all names of one IREE."""
    if choice.version is not None:
        return str(choice.version)
    return f"{choice.kind}:{choice.identity_path}" if choice.identity_path else choice.text
