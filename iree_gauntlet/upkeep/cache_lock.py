"""`cache.lock`: moves hashes that the cache has recorded into the project's registry, which the user commits."""

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

from iree_gauntlet.artifacts.hashing import HashCache
from iree_gauntlet.artifacts.inventory import locate_lock
from iree_gauntlet.artifacts.publishing import hold_lock
from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import FileSource, RandomSource, make_local_name, parse_source
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.errors import ArtifactError, ExitCode, Problem, SpecError, UsageError
from iree_gauntlet.progress import Progress, Recorder
from iree_gauntlet.reports.output import open_progress
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.cache_list import ProjectCache, explain_file_errors, open_cache

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from iree_gauntlet.results import FetchedFile
    from iree_gauntlet.upkeep.upkeep_requests import LockRequest


# A URL may follow a flag's name: `--parameters=model=https://…`.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


def lock_hashes(request: LockRequest) -> ExitCode:
    """Write learnt hashes into the registry, and print the changes."""
    urls = list(dict.fromkeys(request.refresh))
    for url in urls:
        try:
            source = parse_source(url)
        except ArtifactError as error:
            raise UsageError(f"--refresh: {error.message}", error.hint) from error
        if isinstance(source, FileSource | RandomSource):
            raise UsageError(f"--refresh {url}: a local file has no pin", "Refresh only fetched files.")
    cache = open_cache(request.cache_dir)
    if not ((cache.project / "specs").is_dir() and (cache.project / "suites").is_dir()):
        raise UsageError(
            f"no project: {Path.cwd()} is not inside a folder with specs/ and suites/",
            "Run it in the project whose cache/registry.txt it should write.",
        )
    has_other_projects = resolve_links(cache.root) != resolve_links(cache.project / "cache")
    # In a shared cache, hashes that other projects recorded belong into the registries of those projects.
    used_names = _find_named_artifacts(cache.project) if request.prune or has_other_projects else None
    with explain_file_errors(cache.root), ExitStack() as stack, open_progress(sys.stderr) as progress:
        fetched_files = stack.enter_context(_fetch_anew(cache, urls, progress)) if urls else []
        new_entries = [RegistryEntry(make_local_name(file.url), file.sha256, file.url) for file in fetched_files]
        with nullcontext() if request.dry_run else _lock_both(cache, progress):
            registry, local = Registry.read(cache.pins.registry.path), Registry.read(cache.pins.lock_file.path)
            update = plan_registry_update(registry, local, new_entries, used_names=used_names, prune=request.prune)
            # The registry is written first: a kill after that leaves hashes in both files, which the next run repairs.
            if update.changes and not request.dry_run:
                write_registry(registry.path, update.entries)
            if update.moved_names and not request.dry_run:
                remaining_entries = [entry for name, entry in local.entries.items() if name not in update.moved_names]
                write_registry(local.path, remaining_entries)
        for file in () if request.dry_run else fetched_files:
            _take_over(cache, file, progress)
    _show(cache, update, new_entries, dry_run=request.dry_run)
    return ExitCode.OK


@contextmanager
def _lock_both(cache: ProjectCache, progress: Progress) -> Iterator[None]:
    """Hold the registry's lock, which users of other caches also take, and the lock of this cache's recorded hashes."""
    registry, lock = cache.pins.registry.path, cache.root / "locks" / "registry.lock"
    with hold_lock(registry.parent / "locks" / "registry.txt.lock", str(registry), progress):
        has_lock_file = cache.pins.lock_file.path.exists()
        with hold_lock(lock, str(cache.pins.lock_file.path), progress) if has_lock_file else nullcontext():
            yield


@contextmanager
def _fetch_anew(cache: ProjectCache, urls: list[str], progress: Progress) -> Iterator[list[FetchedFile]]:
    """Fetch the current files of URLs into a temporary cache without pins."""
    parent = cache.root / "refreshing"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
        store = ArtifactStore(Path(folder), Registry(), progress=_QuietLog(progress), configuration=cache.configuration)
        yield [store.fetch(url) for url in urls]


def _take_over(cache: ProjectCache, artifact: FetchedFile, progress: Progress) -> None:
    """Replace a file in the cache, and its wheel if it is from one, by the file that was fetched again."""
    path = cache.root / "artifacts" / make_local_name(artifact.url)
    with hold_lock(locate_lock(cache.root, artifact.url), artifact.url, progress):
        path.parent.mkdir(parents=True, exist_ok=True)
        artifact.path.replace(path)
        HashCache(cache.root / "verified").remember(path, artifact.sha256)
    # The path of the fetched file is <scratch>/artifacts/<name>.
    scratch = artifact.path.parents[len(Path(make_local_name(artifact.url)).parts)]
    for wheel in (scratch / "wheels").glob("*/*/*.whl"):
        target = cache.root / wheel.relative_to(scratch)
        target.parent.mkdir(parents=True, exist_ok=True)
        wheel.replace(target)


class _QuietLog(Recorder):
    """Progress without notes about recorded hashes, which this task shows as changes."""

    def pinned(self, url: str, message: str) -> None:
        """Print nothing."""


def _show(cache: ProjectCache, update: RegistryUpdate, new_entries: list[RegistryEntry], *, dry_run: bool) -> None:
    path = cache.pins.registry.path
    for change in update.changes:
        sys.stdout.write(f"{change}\n")
    changed_names = {change.name for change in update.changes}
    for entry in new_entries:
        if entry.name not in changed_names:
            sys.stdout.write(f"= {entry.name} sha256 {entry.sha256[:12]}…: unchanged\n")
    for entry in update.conflicting_entries:
        sys.stdout.write(
            f"dropped: {entry.name} sha256 {entry.sha256[:12]}… was recorded, but {path} pins another, which is used\n"
        )
    if update.foreign:
        count = (
            "1 recorded hash remains" if len(update.foreign) == 1 else f"{len(update.foreign)} recorded hashes remain"
        )
        sys.stdout.write(f"{count} in {cache.pins.lock_file.path}: no spec of this project names them\n")
    if not update.changes:
        sys.stdout.write(f"nothing to do: {path} has {len(update.entries)} entries, all up to date\n")
    elif dry_run:
        sys.stdout.write(f"{path} was not changed (--dry-run)\n")
    else:
        added_count = sum(change.old_entry is None for change in update.changes)
        dropped_count = sum(change.new_entry is None for change in update.changes)
        changed_count = len(update.changes) - added_count - dropped_count
        sys.stdout.write(f"{path}: {added_count} added, {changed_count} changed, {dropped_count} dropped; commit it\n")


def _find_named_artifacts(project: Path) -> set[str]:
    """Collect the local names of all URLs in the project's specs, and in further specs that its suites name."""
    folders = {project / "specs"}
    for suite in sorted((project / "suites").glob("*.toml")):
        folders.update(read_suite(suite).spec_dirs)
    names = set()
    for path in (path for folder in sorted(folders) for path in sorted(folder.rglob("*.json"))):
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            hint = "Fix or remove it: it may name an artifact, so nothing was changed."
            raise SpecError([Problem(str(path), 0, "", f"cannot be read: {error}", hint)]) from error
        for url in (url for text in _walk_strings(document) for url in _URL.findall(text)):
            # `lint` reports invalid URLs.
            with suppress(ArtifactError):
                names.add(make_local_name(url))
    return names


def _walk_strings(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for child in (*document, *document.values()) if isinstance(document, dict) else document:
            yield from _walk_strings(child)


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """A line of the registry before and after the change; None before for a new line, None after for a dropped line."""

    name: str
    old_entry: RegistryEntry | None
    new_entry: RegistryEntry | None

    def __str__(self) -> str:
        if self.new_entry is None:
            return f"- {self.name}"
        if self.old_entry is None:
            return f"+ {self.name} sha256 {self.new_entry.sha256[:12]}…"
        if self.old_entry.sha256 == self.new_entry.sha256:
            return f"~ {self.name} {self.old_entry.url or 'no URL'} → {self.new_entry.url}"
        return f"~ {self.name} sha256 {self.old_entry.sha256[:12]}… → {self.new_entry.sha256[:12]}…"


@dataclass(frozen=True, slots=True)
class RegistryUpdate:
    """The new content of a registry; `foreign` are recorded hashes that stay: the project does not name them."""

    entries: tuple[RegistryEntry, ...]
    changes: tuple[RegistryChange, ...]
    moved_names: frozenset[str]
    conflicting_entries: tuple[RegistryEntry, ...]
    foreign: tuple[RegistryEntry, ...]


def plan_registry_update(
    registry: Registry,
    learnt_registry: Registry,
    new_entries: Iterable[RegistryEntry] = (),
    *,
    used_names: Collection[str] | None = None,
    prune: bool = False,
) -> RegistryUpdate:
    """Compute the new content of a registry.

    Recorded hashes outside `used_names` are not moved, and `prune` drops pins outside of it; None means all names.
    """
    updates = {entry.name: entry for entry in new_entries}
    entries = dict(registry.entries)
    leaving: set[str] = set()
    conflicts: list[RegistryEntry] = []
    foreign: list[RegistryEntry] = []
    for entry in learnt_registry.entries.values():
        pin = entries.get(entry.name)
        if pin is None and used_names is not None and entry.name not in used_names and entry.name not in updates:
            foreign.append(entry)
            continue
        if pin is not None and pin.sha256 != entry.sha256 and entry.name not in updates:
            conflicts.append(entry)
        entries[entry.name] = pin or entry
        leaving.add(entry.name)
    entries |= updates
    if prune and used_names is not None:
        entries = {name: entry for name, entry in entries.items() if name in used_names or name in updates}
    changes = [
        RegistryChange(name, registry.get(name), entries.get(name))
        for name in sorted({*registry.entries, *entries})
        if registry.get(name) != entries.get(name)
    ]
    return RegistryUpdate(
        tuple(sorted(entries.values())), tuple(changes), frozenset(leaving), tuple(conflicts), tuple(foreign)
    )


def format_locked_registry(old_text: str, path: Path, entries: Iterable[RegistryEntry]) -> str:
    """Format a registry with new entries, sorted by name, and the old comments.

    Comments at the top and at the end stay there; all other comments stay above the entry that follows them.
    """

    def is_entry(line: str) -> bool:
        return bool(line.strip()) and not line.strip().startswith("#")

    lines = old_text.splitlines()
    new_lines = list(itertools.takewhile(lambda line: not is_entry(line), lines))
    comments_by_name: dict[str, list[str]] = {}
    pending_comments: list[str] = []
    for line in lines[len(new_lines) :]:
        if is_entry(line):
            (name,) = Registry.parse(line, path).entries
            comments_by_name[name], pending_comments = pending_comments, []
        else:
            pending_comments.append(line)
    for entry in sorted(entries):
        new_lines += [*comments_by_name.get(entry.name, []), Registry(path, {entry.name: entry}).text().rstrip("\n")]
    return "".join(f"{line}\n" for line in (*new_lines, *pending_comments))


def write_registry(path: Path, entries: Iterable[RegistryEntry]) -> None:
    """Rewrite a registry's file atomically, if it changes; the caller holds its lock."""
    old_text = path.read_text(encoding="utf-8") if path.exists() else ""
    new_text = format_locked_registry(old_text, path, entries)
    if new_text != old_text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, new_text)
