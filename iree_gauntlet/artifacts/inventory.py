"""List the content of a cache by names, sizes and times only, without hashing any content.

A module's name is in its `entry.json`, whose modification time is the module's last use. An artifact's last use is the
time of its stamp, see `hashing`. Sizes are disk usage, so the holes of a running download do not count.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import HashCache
from iree_gauntlet.artifacts.sources import hash_local_name, make_local_name
from iree_gauntlet.artifacts.transfer import merge_blocks, read_partial
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.artifacts.registry_file import Pins


_MODULE_KEY = re.compile(r"[0-9a-f]{64}")
# These are the project's files, which may be in the cache's folder, but do not belong to the cache.
_PROJECT_FILES = frozenset({"registry.txt", "README.md", ".gitignore"})
# These folders contain toolchains; see `toolchains/environments.py` and `source_builds.py`.
_TOOLCHAIN_FOLDERS = ("envs", "builds", "work")
_BLOCK_BYTES = 512  # the unit of st_blocks, independent of the file system's block size


class CacheItemKind(StrEnum):
    """The type of a cache item."""

    ARTIFACT = "artifact"
    UNFINISHED = "unfinished"
    MODULE = "module"
    WHEEL = "wheel"
    TOOLCHAIN = "toolchain"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class CacheItem:
    """A unit of a cache that exists, or is removed, as a whole.

    Attributes:
        last_use: seconds since 1970.
        pin: "registry", "lock", or empty.
        verified: True if the item is unchanged since its hash was cached; None for items without a hash.
        present, total: received and total bytes of a download; `total` is None if unknown.
    """

    kind: CacheItemKind
    path: str
    name: str
    bytes: int
    last_use: float
    shared_bytes: int = 0
    pin: str = ""
    verified: bool | None = None
    present: int = 0
    total: int | None = None
    key: str = ""


def take_inventory(root: Path, pins: Pins) -> list[CacheItem]:
    """Return all items of a cache, unordered; none if the cache has no folder. Files that vanish are left out."""
    verified = HashCache(root / "verified")
    items: list[CacheItem] = []
    for top in _scan_folder(root):
        if top.name == "artifacts" and top.is_dir():
            items += _list_artifacts(root, verified, pins)
        elif top.name == "incoming" and top.is_dir():
            items += (_describe_unfinished(root, Path(entry.path)) for entry in _scan_folder(Path(top.path)))
        elif top.name == "modules" and top.is_dir():
            items += _list_modules(root)
        elif top.name == "wheels" and top.is_dir():
            items += _list_wheels(root)
        elif top.name == "toolchains" and top.is_dir():
            items += (toolchains := list_toolchains(root, Path(top.path)))
            other_files = _describe_path(root, Path(top.path), CacheItemKind.OTHER)
            items.append(replace(other_files, bytes=other_files.bytes - sum(item.bytes for item in toolchains)))
        elif top.name not in _PROJECT_FILES:
            items.append(_describe_path(root, Path(top.path), CacheItemKind.OTHER))
    return items


def list_toolchains(root: Path, folder: Path) -> list[CacheItem]:
    """Return environments, builds and build folders in a folder of toolchains; paths are relative to the root."""
    entries = (entry for subfolder in _TOOLCHAIN_FOLDERS for entry in _scan_folder(folder / subfolder))
    return [
        replace(_describe_path(root, Path(entry.path), CacheItemKind.TOOLCHAIN), name=entry.name)
        for entry in entries
        if entry.is_dir() and not entry.name.startswith(".")
    ]


def locate_lock(root: Path, url: str) -> Path:
    """Return the path of the lock held while a URL's file is fetched; raise an ArtifactError for a malformed URL."""
    return root / "locks" / f"{hash_local_name(make_local_name(url))}.lock"


def find_url(name: str, pinned_url: str) -> str:
    """Return an artifact's URL: the URL of its pin, or else the URL that its name encodes; empty if neither exists."""
    if pinned_url:
        return pinned_url
    scheme, _, remainder = name.partition("/")
    url = f"{scheme}://{remainder}"
    try:
        return url if make_local_name(url) == name else ""
    except ArtifactError:
        return ""


def _list_artifacts(root: Path, verified: HashCache, pins: Pins) -> Iterator[CacheItem]:
    base = root / "artifacts"
    for entry, status in _walk_files(base):
        name = entry.path[len(str(base)) + 1 :].replace(os.sep, "/")
        path = Path(entry.path)
        if entry.name.startswith("."):  # a temporary file of a killed writer, since no artifact has such a name
            yield _describe_path(root, path, CacheItemKind.OTHER)
            continue
        last_use, pin = verified.last_use(path), pins.of(name)
        yield CacheItem(
            kind=CacheItemKind.ARTIFACT,
            path=f"artifacts/{name}",
            name=name,
            bytes=_measure_on_disk(status),
            shared_bytes=_measure_on_disk(status) if status.st_nlink > 1 else 0,
            last_use=status.st_mtime if last_use is None else last_use,
            pin=pin.source if pin else "",
            verified=bool(verified.get_cached_hash(path)),
        )


def _describe_unfinished(root: Path, folder: Path) -> CacheItem:
    item = _describe_path(root, folder, CacheItemKind.UNFINISHED)
    header, blocks = read_partial(folder)
    # All hard links to the download are inside this folder, so nothing is shared.
    item = replace(item, shared_bytes=0, present=sum(block.size for block in merge_blocks(blocks)))
    return replace(item, name=header.url, total=header.size) if header else item


def _list_modules(root: Path) -> Iterator[CacheItem]:
    base = root / "modules"
    for folder in _scan_folder(base):
        if len(folder.name) != 2 or not folder.is_dir():  # by-name/, making/
            yield _describe_path(root, Path(folder.path), CacheItemKind.OTHER)
            continue
        for entry in _scan_folder(Path(folder.path)):
            if not _MODULE_KEY.fullmatch(entry.name):
                yield _describe_path(root, Path(entry.path), CacheItemKind.OTHER)
                continue
            item = _describe_path(root, Path(entry.path), CacheItemKind.MODULE)
            name, last_use = entry.name, item.last_use
            try:
                file = Path(entry.path) / "entry.json"
                last_use = file.stat().st_mtime
                name = str(json.loads(file.read_bytes())["entry"]["name"])
            except (OSError, ValueError, TypeError, KeyError):
                name = f"{entry.name[:12]} (damaged)"
            yield replace(item, name=name, last_use=last_use, key=entry.name)


def _list_wheels(root: Path) -> Iterator[CacheItem]:
    for entry, status in _walk_files(root / "wheels"):
        path = Path(entry.path).relative_to(root).as_posix()
        if "/." in path:  # a file of a running or killed pip
            yield _describe_path(root, Path(entry.path), CacheItemKind.OTHER)
            continue
        # A wheel has no stamp: use its access time, or its modification time if no access times are recorded.
        last_use = max(status.st_mtime, status.st_atime)
        yield CacheItem(CacheItemKind.WHEEL, path, entry.name, _measure_on_disk(status), last_use)


def _describe_path(root: Path, path: Path, kind: CacheItemKind) -> CacheItem:
    """Describe a file, or a folder with its content."""
    relative = path.relative_to(root).as_posix()
    statuses = (
        [status for _, status in _walk_files(path)] if path.is_dir() and not path.is_symlink() else _read_status(path)
    )
    last_use = max((status.st_mtime for status in statuses or _read_status(path)), default=0.0)
    shared_bytes = sum(_measure_on_disk(status) for status in statuses if status.st_nlink > 1)
    name = relative + "/" if path.is_dir() else relative
    return CacheItem(kind, relative, name, sum(map(_measure_on_disk, statuses)), last_use, shared_bytes=shared_bytes)


def _read_status(path: Path) -> list[os.stat_result]:
    try:
        return [path.lstat()]
    except FileNotFoundError:
        return []


def _scan_folder(folder: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _walk_files(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """Yield all files below a folder; links are not followed."""
    for entry in _scan_folder(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(Path(entry.path))
            continue
        try:
            yield entry, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue


def _measure_on_disk(status: os.stat_result) -> int:
    # A file that was just written may still have no blocks (delayed allocation): its st_blocks is 0, and its size
    # is used.
    blocks = status.st_blocks * _BLOCK_BYTES
    return min(status.st_size, blocks) if blocks else status.st_size
