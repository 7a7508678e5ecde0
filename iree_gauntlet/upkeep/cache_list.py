"""The tasks that look at the cache: `cache.list` and `cache.where`."""

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

from iree_gauntlet.artifacts.inventory import Item, ItemKind, list_toolchains, lock_of, take_inventory
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.registry_file import Pins, Registry
from iree_gauntlet.artifacts.sources import FileSource, PypiSource, RandomSource, Source, local_name, parse_source
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cache_folders import find_cache_folder, find_toolchains_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.progress import Progress
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.settings import Configuration, find_project_folder, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# A folder in which something was fetched or compiled has at least one of these.
_MARKS = ("locks", "verified", "leases", "modules/making", "modules/by-name")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_SCHEMA = 1


def list_cache(cache_dir: str, match: str, *, as_json: bool) -> ExitCode:
    """Prints what is in the cache, and the toolchains that all projects share, the largest first."""
    place, folder = open_cache(cache_dir), find_toolchains_folder()
    with explain_refusals(place.root):
        items = take_inventory(place.root, place.pins)
        # Where the cache is named for all projects, they are in it.
        shared = [] if folder.is_relative_to(place.root) else list_toolchains(folder, folder)
    if match:
        items, shared = (
            [item for item in some if fnmatchcase(item.name, match) or fnmatchcase(item.path, match)]
            for some in (items, shared)
        )
        if not items and not shared:
            raise NothingSelectedError(
                f"--match {match} matches nothing in {place.root}", "`cache.list` shows all names; * also matches /."
            )
    for some in (items, shared):
        some.sort(key=lambda item: (-item.bytes, item.path))
    if as_json:
        document = {
            "schema": _SCHEMA,
            "cache": str(place.root),
            "bytes": sum(item.bytes for item in items),
            "items": [asdict(item) for item in items],
            "toolchains": {
                "folder": str(folder),
                "bytes": sum(item.bytes for item in shared),
                "items": [asdict(item) for item in shared],
            },
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return ExitCode.OK
    if items or shared:
        now = time.time()
        head = ("SIZE", "LAST USE", "KIND", "PINNED", "VERIFIED", "NAME")
        print_table([head, *(_make_row(item, now) for item in (*items, *shared))])
        for some, where in ((items, str(place.root)), (shared, f"{folder}, which all projects share")):
            if some:
                sys.stdout.write(f"{_describe_sizes(some)} in {where}\n")
    else:
        sys.stdout.write(f"nothing is in {place.root}\n")
    return ExitCode.OK


def _describe_sizes(items: Sequence[Item]) -> str:
    by_kind = []
    for kind in ItemKind:
        sizes = [item.bytes for item in items if item.kind is kind]
        if sizes:
            by_kind.append(f"{kind} {byte_size(sum(sizes))} ({len(sizes)})")
    return f"{byte_size(sum(item.bytes for item in items))}: {', '.join(by_kind)}"


def _make_row(item: Item, now: float) -> tuple[str, ...]:
    verified = {True: "yes", False: "no", None: ""}[item.verified]
    of = f" of {byte_size(item.total)}" if item.total else ""
    arrived = f" ({byte_size(item.present)}{of} arrived)" if item.kind is ItemKind.UNFINISHED else ""
    age = format_age(now - item.last_use)
    return byte_size(item.bytes), age, item.kind, item.pin, verified, f"{item.name}{arrived}"


def where(url: str, cache_dir: str, *, as_json: bool) -> ExitCode:
    """Prints where the file of a URL is or will be; ERROR where it is not there."""
    try:
        name, source = local_name(url), parse_source(url)
    except ArtifactError as error:
        raise UsageError(error.what, error.hint) from error
    place = open_cache(cache_dir)
    with explain_refusals(place.root):
        store = place.store(Progress(), offline=True)
        path, present = store.path(url), store.present(url)
        pin = place.pins.of(name)
        verified = present and bool(store.verified.known(path))
        places = _list_places(source, place.configuration)
        if as_json:
            document = {
                "schema": _SCHEMA,
                "url": url,
                "path": str(path),
                "present": present,
                "verified": verified,
                "sha256": store.known_hash(url),
                "pinned_in": str(pin.path) if pin else "",
                "places": places,
            }
            sys.stdout.write(json.dumps(document, indent=1) + "\n")
            return ExitCode.OK if present else ExitCode.ERROR
        sys.stdout.write(f"{path}\n")
        sys.stdout.flush()
        if not present:
            wrong = path.is_file()
            state = "there, but not what it should be: it will be fetched again" if wrong else "not there"
        else:
            state = "present, verified" if verified else "present, not verified yet: its next use will"
        lines = [state]
        if pin:
            lines.append(f"pinned: sha256 {pin.sha256} in {pin.path}")
        elif isinstance(source, FileSource | RandomSource):
            lines.append("needs no pin")
        else:
            lines.append("not pinned yet")
        if not present or place.configuration.mirrors:
            lines += ["comes from, in this order:", *(f"  {item}" for item in places)]
        if not present and not isinstance(source, FileSource):
            folder = f"incoming/{lock_of(place.root, url).stem}"
            begun = [item for item in take_inventory(place.root, place.pins) if item.path == folder and item.present]
            lines[1:1] = [f"{byte_size(item.present)} of it have arrived: the next fetch continues" for item in begun]
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        return ExitCode.OK if present else ExitCode.ERROR


def _list_places(source: Source, configuration: Configuration) -> list[str]:
    if isinstance(source, FileSource):
        return [str(source.path)]
    if isinstance(source, RandomSource):
        return ["made on this machine"]
    if isinstance(source, PypiSource):
        return [f"the wheel {source.distribution}=={source.version}, by pip"]
    # Brings the drivers of all stores.
    from iree_gauntlet.artifacts.remotes import places  # noqa: PLC0415

    # A folder's files by their names, as a shell takes them.
    return [unquote(place) if place.startswith("/") else place for place in places(source.url, configuration)]


@dataclass(frozen=True, slots=True)
class CachePlace:
    """A cache and its project."""

    root: Path
    project: Path
    pins: Pins
    configuration: Configuration
    leases: Leases

    def store(self, progress: Progress, *, offline: bool = False) -> ArtifactStore:
        """The artifacts of the cache."""
        return ArtifactStore(
            self.root, self.pins.registry, offline=offline, progress=progress, configuration=self.configuration
        )

    def require_cache(self) -> None:
        """Refuses (UsageError) a folder that does not look like a cache: nothing is deleted from another one."""
        if self.root.exists() and not any((self.root / mark).exists() for mark in _MARKS):
            raise UsageError(
                f"{self.root} does not look like a cache: it has none of {', '.join(_MARKS)}",
                "Name the cache's own folder with --cache-dir.",
            )


def open_cache(cache_dir: str, *, may_be_new: bool = False) -> CachePlace:
    """The cache that `--cache-dir` or the environment names; UsageError where there is no such folder."""
    root, project = find_cache_folder(cache_dir), find_project_folder()
    if root.exists() and not root.is_dir():
        raise UsageError(f"the cache {root} is a file", "Name a folder with --cache-dir.")
    if cache_dir and not root.exists() and not may_be_new:
        raise UsageError(f"--cache-dir {cache_dir}: there is no such folder", "Check the path.")
    pins = Pins(Registry.of_project(project), Registry.read(shown(root / "registry.lock.txt")))
    return CachePlace(root, project, pins, read_configuration(project, os.environ), Leases(root))


@contextmanager
def explain_refusals(root: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that names the path."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{error.filename or root}: {error.strerror or error}"
        raise GauntletError(what, f"Check the path and your rights there; the cache is {root}.") from error


def format_age(seconds: float) -> str:
    """How long ago, for people."""
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min ago"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h ago"
    return f"{seconds / _DAY:.0f} d ago"
