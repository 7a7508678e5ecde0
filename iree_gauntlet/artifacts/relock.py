"""Moves hashes that were learnt in a cache into the project's registry, and says what changes there.

The registry's comments are kept: those at its top stay there, others stay above the line that they were above.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.registry import Entry, Registry
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

__all__ = ["Change", "Relock", "plan_relock", "registry_text", "write_registry"]


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the registry that changes.

    Attributes:
        name: of the artifact.
        before: the line as it was; None for a new one.
        after: the line as it will be; None for one that is dropped.
    """

    name: str
    before: Entry | None
    after: Entry | None

    def __str__(self) -> str:
        if self.after is None:
            return f"- {self.name}"
        if self.before is None:
            return f"+ {self.name} sha256 {self.after.sha256[:12]}…"
        if self.before.sha256 == self.after.sha256:
            return f"~ {self.name} {self.before.url or 'no URL'} → {self.after.url}"
        return f"~ {self.name} sha256 {self.before.sha256[:12]}… → {self.after.sha256[:12]}…"


@dataclass(frozen=True, slots=True)
class Relock:
    """What a registry becomes.

    Attributes:
        entries: all that it will hold.
        changes: against what it holds, by name.
        leaving: names whose learnt hash is no longer needed.
        overruled: learnt hashes that the registry contradicts: it counts, and they go.
        foreign: learnt hashes that stay where they are, as the project does not name them.
    """

    entries: tuple[Entry, ...]
    changes: tuple[Change, ...]
    leaving: frozenset[str]
    overruled: tuple[Entry, ...]
    foreign: tuple[Entry, ...]


def plan_relock(
    registry: Registry,
    learnt: Registry,
    refreshed: Iterable[Entry] = (),
    *,
    named: Collection[str] | None = None,
    prune: bool = False,
) -> Relock:
    """Decide what a registry becomes.

    Args:
        registry: as it is.
        learnt: the hashes that a cache has learnt.
        refreshed: of files that were fetched anew: these count more than what is pinned.
        named: names that the project's specs need; learnt ones of others are left alone. None for all.
        prune: drop entries that `named` lacks.
    """
    fresh = {entry.name: entry for entry in refreshed}
    entries = dict(registry.entries)
    leaving: set[str] = set()
    overruled: list[Entry] = []
    foreign: list[Entry] = []
    for entry in learnt.entries.values():
        pinned = entries.get(entry.name)
        if pinned is None and named is not None and entry.name not in named and entry.name not in fresh:
            foreign.append(entry)
            continue
        if pinned is not None and pinned.sha256 != entry.sha256 and entry.name not in fresh:
            overruled.append(entry)
        entries[entry.name] = pinned or entry
        leaving.add(entry.name)
    entries |= fresh
    if prune and named is not None:
        entries = {name: entry for name, entry in entries.items() if name in named or name in fresh}
    changes = [
        Change(name, registry.get(name), entries.get(name))
        for name in sorted({*registry.entries, *entries})
        if registry.get(name) != entries.get(name)
    ]
    return Relock(tuple(sorted(entries.values())), tuple(changes), frozenset(leaving), tuple(overruled), tuple(foreign))


def registry_text(before: str, path: Path, entries: Iterable[Entry]) -> str:
    """The text of a registry with other entries, sorted by name, with the comments that it had.

    Raises:
        ArtifactError: a line of the text is wrong.
    """
    top, above, end = _comments(before, path)
    lines = [*top]
    for entry in sorted(entries):
        lines += above.get(entry.name, [])
        lines.append(Registry(path, {entry.name: entry}).text().rstrip("\n"))
    lines += end
    return "".join(f"{line}\n" for line in lines)


def write_registry(path: Path, entries: Iterable[Entry]) -> bool:
    """Rewrite a registry's file in one step; whether that changed anything. The caller holds its lock.

    Raises:
        ArtifactError: it is there and has a line that is wrong.
        OSError: it cannot be read or written.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = registry_text(before, path, entries)
    if after == before:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, after)
    return True


def _comments(text: str, path: Path) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Comments and blank lines: those at the top, those above each entry by its name, those at the end."""
    lines = text.splitlines()

    def is_entry(line: str) -> bool:
        return bool(line.strip()) and not line.strip().startswith("#")

    top = list(itertools.takewhile(lambda line: not is_entry(line), lines))
    if len(top) == len(lines):
        return top, {}, []
    above: dict[str, list[str]] = {}
    waiting: list[str] = []
    for line in lines[len(top) :]:
        if is_entry(line):
            (name,) = Registry.parse(line, path).entries
            above[name], waiting = waiting, []
        else:
            waiting.append(line)
    return top, above, waiting
