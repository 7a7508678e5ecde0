"""The tasks that show the cache: `cache.list` and `cache.where`."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import unquote

from iree_gauntlet.artifacts.inventory import CacheItem, CacheItemKind, list_toolchains, locate_lock, take_inventory
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.registry_file import Pins, Registry
from iree_gauntlet.artifacts.sources import FileSource, PypiSource, RandomSource, Source, make_local_name, parse_source
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cache_folders import find_cache_folder, find_toolchains_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.progress import Progress
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.settings import Configuration, find_project_folder, format_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# Every cache that was ever used has at least one of these folders.
_CACHE_FOLDERS = ("locks", "verified", "leases", "modules/making", "modules/by-name")
_MINUTE_SECONDS, _HOUR_SECONDS, _DAY_SECONDS = 60, 3600, 86400
_SCHEMA = 1


def list_cache(cache_dir: str, match: str, *, as_json: bool) -> ExitCode:
    """Print the content of the cache, and the toolchains that all projects share, the largest first."""
    cache, folder = open_cache(cache_dir), find_toolchains_folder()
    with explain_file_errors(cache.root):
        items = take_inventory(cache.root, cache.pins)
        # If one cache serves all projects, it contains the toolchains.
        shared_items = [] if folder.is_relative_to(cache.root) else list_toolchains(folder, folder)
    if match:
        items, shared_items = (
            [item for item in group if fnmatchcase(item.name, match) or fnmatchcase(item.path, match)]
            for group in (items, shared_items)
        )
        if not items and not shared_items:
            raise NothingSelectedError(
                f"--match {match} matches nothing in {cache.root}", "`cache.list` shows all names; * also matches /."
            )
    for group in (items, shared_items):
        group.sort(key=lambda item: (-item.bytes, item.path))
    if as_json:
        document = {
            "schema": _SCHEMA,
            "cache": str(cache.root),
            "bytes": sum(item.bytes for item in items),
            "items": [asdict(item) for item in items],
            "toolchains": {
                "folder": str(folder),
                "bytes": sum(item.bytes for item in shared_items),
                "items": [asdict(item) for item in shared_items],
            },
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return ExitCode.OK
    if items or shared_items:
        now = time.time()
        headings = ("SIZE", "LAST USE", "KIND", "PINNED", "VERIFIED", "NAME")
        print_table([headings, *(_make_row(item, now) for item in (*items, *shared_items))])
        for group, location in ((items, str(cache.root)), (shared_items, f"{folder}, which all projects share")):
            if group:
                sys.stdout.write(f"{_describe_sizes(group)} in {location}\n")
    else:
        sys.stdout.write(f"{cache.root} is empty\n")
    return ExitCode.OK


def _describe_sizes(items: Sequence[CacheItem]) -> str:
    by_kind = []
    for kind in CacheItemKind:
        sizes = [item.bytes for item in items if item.kind is kind]
        if sizes:
            by_kind.append(f"{kind} {format_bytes(sum(sizes))} ({len(sizes)})")
    return f"{format_bytes(sum(item.bytes for item in items))}: {', '.join(by_kind)}"


def _make_row(item: CacheItem, now: float) -> tuple[str, ...]:
    verified_label = {True: "yes", False: "no", None: ""}[item.verified]
    total = f" of {format_bytes(item.total)}" if item.total else ""
    arrived_label = f" ({format_bytes(item.present)}{total} arrived)" if item.kind is CacheItemKind.UNFINISHED else ""
    age = format_age(now - item.last_use)
    return format_bytes(item.bytes), age, item.kind, item.pin, verified_label, f"{item.name}{arrived_label}"


def print_location(url: str, cache_dir: str, *, as_json: bool) -> ExitCode:
    """Print the path of a URL's file, even if the file is absent; then return ERROR."""
    try:
        name, source = make_local_name(url), parse_source(url)
    except ArtifactError as error:
        raise UsageError(error.message, error.hint) from error
    cache = open_cache(cache_dir)
    with explain_file_errors(cache.root):
        store = cache.store(Progress(), offline=True)
        path, is_present = store.path(url), store.is_present(url)
        pin = cache.pins.of(name)
        is_verified = is_present and bool(store.hash_cache.get_cached_hash(path))
        locations = _list_places(source, cache.configuration)
        if as_json:
            document = {
                "schema": _SCHEMA,
                "url": url,
                "path": str(path),
                "present": is_present,
                "verified": is_verified,
                "sha256": store.get_known_hash(url),
                "pinned_in": str(pin.path) if pin else "",
                "places": locations,
            }
            sys.stdout.write(json.dumps(document, indent=1) + "\n")
            return ExitCode.OK if is_present else ExitCode.ERROR
        sys.stdout.write(f"{path}\n")
        sys.stdout.flush()
        if not is_present:
            is_wrong = path.is_file()
            state = "present, but its content is wrong: it will be fetched again" if is_wrong else "not there"
        else:
            state = "present, verified" if is_verified else "present, not verified yet: its next use verifies it"
        lines = [state]
        if pin:
            lines.append(f"pinned: sha256 {pin.sha256} in {pin.path}")
        elif isinstance(source, FileSource | RandomSource):
            lines.append("needs no pin")
        else:
            lines.append("not pinned yet")
        if not is_present or cache.configuration.mirrors:
            lines += ["sources, in this order:", *(f"  {location}" for location in locations)]
        if not is_present and not isinstance(source, FileSource):
            folder = f"incoming/{locate_lock(cache.root, url).stem}"
            parts = [item for item in take_inventory(cache.root, cache.pins) if item.path == folder and item.present]
            lines[1:1] = [
                f"{format_bytes(item.present)} of it have arrived: the next fetch continues" for item in parts
            ]
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        return ExitCode.OK if is_present else ExitCode.ERROR


def _list_places(source: Source, configuration: Configuration) -> list[str]:
    if isinstance(source, FileSource):
        return [str(source.path)]
    if isinstance(source, RandomSource):
        return ["generated on this machine"]
    if isinstance(source, PypiSource):
        return [f"the wheel {source.distribution}=={source.version}, by pip"]
    # This import loads the drivers of all stores.
    from iree_gauntlet.artifacts.remotes import list_locations  # noqa: PLC0415

    # A local mirror's path is shown percent-decoded, to paste into a shell.
    return [
        unquote(location) if location.startswith("/") else location
        for location in list_locations(source.url, configuration)
    ]


@dataclass(frozen=True, slots=True)
class ProjectCache:
    """A cache and its project."""

    root: Path
    project: Path
    pins: Pins
    configuration: Configuration
    leases: Leases

    def store(self, progress: Progress, *, offline: bool = False) -> ArtifactStore:
        """Make the store of the cache's artifacts."""
        return ArtifactStore(
            self.root, self.pins.registry, offline=offline, progress=progress, configuration=self.configuration
        )

    def require_cache(self) -> None:
        """Raise UsageError if the folder does not look like a cache, so that no other folder is emptied."""
        if self.root.exists() and not any((self.root / folder).exists() for folder in _CACHE_FOLDERS):
            raise UsageError(
                f"{self.root} does not look like a cache: it has none of {', '.join(_CACHE_FOLDERS)}",
                "Name the cache's own folder with --cache-dir.",
            )


def open_cache(cache_dir: str, *, may_be_new: bool = False) -> ProjectCache:
    """Open the cache that `--cache-dir` or the environment names; raise a UsageError if the folder does not exist."""
    root, project = find_cache_folder(cache_dir), find_project_folder()
    if root.exists() and not root.is_dir():
        raise UsageError(f"the cache {root} is a file", "Name a folder with --cache-dir.")
    if cache_dir and not root.exists() and not may_be_new:
        raise UsageError(f"--cache-dir {cache_dir}: no such folder", "Check the path.")
    pins = Pins(Registry.of_project(project), Registry.read(format_path(root / "registry.lock.txt")))
    return ProjectCache(root, project, pins, read_configuration(project, os.environ), Leases(root))


@contextmanager
def explain_file_errors(root: Path) -> Iterator[None]:
    """Turn errors of the file system into an error that names the path."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"{error.filename or root}: {error.strerror or error}"
        raise GauntletError(message, f"Check the path and its permissions; the cache is {root}.") from error


def format_age(seconds: float) -> str:
    """Format an age for people."""
    if seconds < _MINUTE_SECONDS:
        return "just now"
    if seconds < _HOUR_SECONDS:
        return f"{seconds / _MINUTE_SECONDS:.0f} min ago"
    if seconds < 2 * _DAY_SECONDS:
        return f"{seconds / _HOUR_SECONDS:.0f} h ago"
    return f"{seconds / _DAY_SECONDS:.0f} d ago"
