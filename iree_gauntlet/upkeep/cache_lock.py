"""`cache.lock`: hashes that were learnt in the cache become lines of the project's registry, to be committed."""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.inventory import lock_of
from iree_gauntlet.artifacts.publishing import locked
from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import FileSource, RandomSource, local_name, parse_source
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.errors import ArtifactError, ExitCode, Problem, SpecError, UsageError
from iree_gauntlet.progress import Progress, Recorder
from iree_gauntlet.reports.output import open_progress
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.cache_list import CachePlace, explain_refusals, open_cache

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from iree_gauntlet.results import Fetched
    from iree_gauntlet.upkeep.upkeep_requests import LockRequest


# Also behind a flag's name: `--parameters=model=https://…`.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


def lock_hashes(asked: LockRequest) -> ExitCode:
    """Writes what was learnt into the registry, and shows what changes there."""
    urls = list(dict.fromkeys(asked.refresh))
    for url in urls:
        try:
            source = parse_source(url)
        except ArtifactError as error:
            raise UsageError(f"--refresh: {error.what}", error.hint) from error
        if isinstance(source, FileSource | RandomSource):
            raise UsageError(f"--refresh {url}: such a file has no pin", "Refresh what is fetched.")
    place = open_cache(asked.cache_dir)
    if not ((place.project / "specs").is_dir() and (place.project / "suites").is_dir()):
        raise UsageError(
            f"there is no project here: {Path.cwd()} is not inside a folder with specs/ and suites/",
            "Run it inside the project whose cache/registry.txt is to be written.",
        )
    shared = resolve_links(place.root) != resolve_links(place.project / "cache")
    # What other projects have learnt in a shared cache is theirs.
    named = _find_named_artifacts(place.project) if asked.prune or shared else None
    with explain_refusals(place.root), ExitStack() as stack, open_progress(sys.stderr) as progress:
        fresh = stack.enter_context(_fetch_anew(place, urls, progress)) if urls else []
        refreshed = [RegistryEntry(local_name(item.url), item.sha256, item.url) for item in fresh]
        with nullcontext() if asked.dry_run else _lock_both(place, progress):
            registry, learnt = Registry.read(place.pins.registry.path), Registry.read(place.pins.learnt.path)
            relock = plan_relock(registry, learnt, refreshed, named=named, prune=asked.prune)
            # In this order: a kill between the two leaves a hash in both, which the next time repairs.
            if relock.changes and not asked.dry_run:
                write_registry(registry.path, relock.entries)
            if relock.leaving and not asked.dry_run:
                staying = [item for name, item in learnt.entries.items() if name not in relock.leaving]
                write_registry(learnt.path, staying)
        for item in () if asked.dry_run else fresh:
            _take_over(place, item, progress)
    _show(place, relock, refreshed, dry=asked.dry_run)
    return ExitCode.OK


@contextmanager
def _lock_both(place: CachePlace, progress: Progress) -> Iterator[None]:
    """Alone with the registry, also among users of other caches, and with what was learnt here."""
    registry, learnt = place.pins.registry.path, place.root / "locks" / "registry.lock"
    with locked(registry.parent / "locks" / "registry.txt.lock", str(registry), progress):
        there = place.pins.learnt.path.exists()
        with locked(learnt, str(place.pins.learnt.path), progress) if there else nullcontext():
            yield


@contextmanager
def _fetch_anew(place: CachePlace, urls: list[str], progress: Progress) -> Iterator[list[Fetched]]:
    """Files as their sources have them now, in a cache of their own, where nothing pins them."""
    parent = place.root / "refreshing"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
        store = ArtifactStore(Path(folder), Registry(), progress=_Unpinned(progress), configuration=place.configuration)
        yield [store.fetch(url) for url in urls]


def _take_over(place: CachePlace, item: Fetched, progress: Progress) -> None:
    """Put a file that was fetched again in the place of the one in the cache; its wheel, too."""
    path = place.root / "artifacts" / local_name(item.url)
    with locked(lock_of(place.root, item.url), item.url, progress):
        path.parent.mkdir(parents=True, exist_ok=True)
        item.path.replace(path)
        VerifiedHashes(place.root / "verified").remember(path, item.sha256)
    # <scratch>/artifacts/<name>
    scratch = item.path.parents[len(Path(local_name(item.url)).parts)]
    for wheel in (scratch / "wheels").glob("*/*/*.whl"):
        target = place.root / wheel.relative_to(scratch)
        target.parent.mkdir(parents=True, exist_ok=True)
        wheel.replace(target)


class _Unpinned(Recorder):
    """Progress without the notes that a hash was learnt: here, it is shown as a change."""

    def pinned(self, url: str, message: str) -> None:
        """Say nothing."""


def _show(place: CachePlace, relock: Relock, refreshed: list[RegistryEntry], *, dry: bool) -> None:
    path = place.pins.registry.path
    for change in relock.changes:
        sys.stdout.write(f"{change}\n")
    changed = {change.name for change in relock.changes}
    for entry in refreshed:
        if entry.name not in changed:
            sys.stdout.write(f"= {entry.name} sha256 {entry.sha256[:12]}…: as it was\n")
    for entry in relock.overruled:
        sys.stdout.write(
            f"dropped: {entry.name} sha256 {entry.sha256[:12]}… was learnt, but {path} pins another, which counts\n"
        )
    if relock.foreign:
        count = "1 learnt hash stays" if len(relock.foreign) == 1 else f"{len(relock.foreign)} learnt hashes stay"
        sys.stdout.write(f"{count} in {place.pins.learnt.path}: no spec of this project names them\n")
    if not relock.changes:
        sys.stdout.write(f"nothing to do: {path} has {len(relock.entries)} entries, all as they should be\n")
    elif dry:
        sys.stdout.write(f"{path} was not changed (--dry-run)\n")
    else:
        added = sum(change.before is None for change in relock.changes)
        dropped = sum(change.after is None for change in relock.changes)
        rest = len(relock.changes) - added - dropped
        sys.stdout.write(f"{path}: {added} added, {rest} changed, {dropped} dropped; commit it\n")


def _find_named_artifacts(project: Path) -> set[str]:
    """Local names of all URLs in the project's specs, and in those that its suites add."""
    folders = {project / "specs"}
    for suite in sorted((project / "suites").glob("*.toml")):
        folders.update(read_suite(suite).spec_dirs)
    names = set()
    for path in (path for folder in sorted(folders) for path in sorted(folder.rglob("*.json"))):
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            hint = "Fix or remove it: it might name an artifact, so nothing was changed."
            raise SpecError([Problem(str(path), 0, "", f"cannot be read: {error}", hint)]) from error
        for url in (url for text in _walk_strings(document) for url in _URL.findall(text)):
            # What is no URL, `lint` tells.
            with suppress(ArtifactError):
                names.add(local_name(url))
    return names


def _walk_strings(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for item in (*document, *document.values()) if isinstance(document, dict) else document:
            yield from _walk_strings(item)


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """A line of the registry as it was, None for a new one, and as it will be, None for one that is dropped."""

    name: str
    before: RegistryEntry | None
    after: RegistryEntry | None

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
    """What a registry becomes; `foreign` are learnt hashes that stay where they are: the project does not name them."""

    entries: tuple[RegistryEntry, ...]
    changes: tuple[RegistryChange, ...]
    leaving: frozenset[str]
    overruled: tuple[RegistryEntry, ...]
    foreign: tuple[RegistryEntry, ...]


def plan_relock(
    registry: Registry,
    learnt: Registry,
    refreshed: Iterable[RegistryEntry] = (),
    *,
    named: Collection[str] | None = None,
    prune: bool = False,
) -> Relock:
    """Decide what a registry becomes.

    Learnt hashes of artifacts that are not `named` are left alone, and dropped with `prune`; None names all.
    """
    fresh = {entry.name: entry for entry in refreshed}
    entries = dict(registry.entries)
    leaving: set[str] = set()
    overruled: list[RegistryEntry] = []
    foreign: list[RegistryEntry] = []
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
        RegistryChange(name, registry.get(name), entries.get(name))
        for name in sorted({*registry.entries, *entries})
        if registry.get(name) != entries.get(name)
    ]
    return Relock(tuple(sorted(entries.values())), tuple(changes), frozenset(leaving), tuple(overruled), tuple(foreign))


def format_locked_registry(before: str, path: Path, entries: Iterable[RegistryEntry]) -> str:
    """The text of a registry with other entries, sorted by name, with the comments that it had.

    Those at the top and at the end stay there, all others above the entry that they stand above.
    """

    def is_entry(line: str) -> bool:
        return bool(line.strip()) and not line.strip().startswith("#")

    lines = before.splitlines()
    found = list(itertools.takewhile(lambda line: not is_entry(line), lines))
    above: dict[str, list[str]] = {}
    waiting: list[str] = []
    for line in lines[len(found) :]:
        if is_entry(line):
            (name,) = Registry.parse(line, path).entries
            above[name], waiting = waiting, []
        else:
            waiting.append(line)
    for entry in sorted(entries):
        found += [*above.get(entry.name, []), Registry(path, {entry.name: entry}).text().rstrip("\n")]
    return "".join(f"{line}\n" for line in (*found, *waiting))


def write_registry(path: Path, entries: Iterable[RegistryEntry]) -> None:
    """Rewrite a registry's file in one step, where that changes anything. The caller holds its lock."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = format_locked_registry(before, path, entries)
    if after != before:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, after)
