"""Everything in a cache, by names, sizes and times alone: no content is hashed.

A module's size and name are those of its `entry.json`, whose modification time is its last use; an artifact's
last use is the time of its stamp, see `hashing`. Sizes are what the files take on the disk, so that the holes of
a download that is under way do not count.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.sources import local_name, make_arrival_name
from iree_gauntlet.artifacts.transfer import look, merge_blocks
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.artifacts.registry_file import Pins


_KEY = re.compile(r"[0-9a-f]{64}")
# `registry.txt` and what is next to it belong to the project whose cache this is, not to the cache.
_NOT_OURS = frozenset({"registry.txt", "README.md", ".gitignore"})
# What has toolchains in it; see `toolchains/environments.py` and `source_builds.py`.
_OF_TOOLCHAINS = ("envs", "builds", "work")
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own is


class ItemKind(StrEnum):
    """What an item of a cache is."""

    ARTIFACT = "artifact"
    UNFINISHED = "unfinished"
    MODULE = "module"
    WHEEL = "wheel"
    TOOLCHAIN = "toolchain"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in a cache that is there, or goes, as a whole.

    Attributes:
        last_use: seconds since 1970.
        pin: "registry", "lock", or empty.
        verified: whether its hash is known and it has not changed since; None where nothing is hashed.
        present, total: bytes of a download that have arrived, and that it will have; None where that is unknown.
    """

    kind: ItemKind
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


def take_inventory(root: Path, pins: Pins) -> list[Item]:
    """Every item of a cache, in no order; none where there is no such folder. What vanishes meanwhile is left out."""
    verified = VerifiedHashes(root / "verified")
    items: list[Item] = []
    for top in _scan(root):
        if top.name == "artifacts" and top.is_dir():
            items += _list_artifacts(root, verified, pins)
        elif top.name == "incoming" and top.is_dir():
            items += (_describe_unfinished(root, Path(entry.path)) for entry in _scan(Path(top.path)))
        elif top.name == "modules" and top.is_dir():
            items += _list_modules(root)
        elif top.name == "wheels" and top.is_dir():
            items += _list_wheels(root)
        elif top.name == "toolchains" and top.is_dir():
            items += (toolchains := list_toolchains(root, Path(top.path)))
            rest = _describe(root, Path(top.path), ItemKind.OTHER)
            items.append(replace(rest, bytes=rest.bytes - sum(item.bytes for item in toolchains)))
        elif top.name not in _NOT_OURS:
            items.append(_describe(root, Path(top.path), ItemKind.OTHER))
    return items


def list_toolchains(root: Path, folder: Path) -> list[Item]:
    """Environments, builds and folders that are built in, of a folder of toolchains; paths are from the root."""
    entries = (entry for kind in _OF_TOOLCHAINS for entry in _scan(folder / kind))
    return [
        replace(_describe(root, Path(entry.path), ItemKind.TOOLCHAIN), name=entry.name)
        for entry in entries
        if entry.is_dir() and not entry.name.startswith(".")
    ]


def lock_of(root: Path, url: str) -> Path:
    """The lock that is held while a URL's file is fetched; ArtifactError for a malformed URL."""
    return root / "locks" / f"{make_arrival_name(local_name(url))}.lock"


def find_url(name: str, pinned: str) -> str:
    """Where an artifact comes from: the URL of its pin, or what its name means; empty where neither says it."""
    if pinned:
        return pinned
    scheme, _, rest = name.partition("/")
    url = f"{scheme}://{rest}"
    try:
        return url if local_name(url) == name else ""
    except ArtifactError:
        return ""


def _list_artifacts(root: Path, verified: VerifiedHashes, pins: Pins) -> Iterator[Item]:
    base = root / "artifacts"
    for entry, status in _walk_files(base):
        name = entry.path[len(str(base)) + 1 :].replace(os.sep, "/")
        path = Path(entry.path)
        if entry.name.startswith("."):  # no URL has such a name: what a killed writer has left
            yield _describe(root, path, ItemKind.OTHER)
            continue
        used, pin = verified.last_use(path), pins.of(name)
        yield Item(
            kind=ItemKind.ARTIFACT,
            path=f"artifacts/{name}",
            name=name,
            bytes=_measure_on_disk(status),
            shared_bytes=_measure_on_disk(status) if status.st_nlink > 1 else 0,
            last_use=status.st_mtime if used is None else used,
            pin=pin.source if pin else "",
            verified=bool(verified.known(path)),
        )


def _describe_unfinished(root: Path, folder: Path) -> Item:
    item = _describe(root, folder, ItemKind.UNFINISHED)
    header, spans = look(folder)
    # Its second names are next to it, in the folder in which it is checked.
    item = replace(item, shared_bytes=0, present=sum(span.stop - span.start for span in merge_blocks(spans)))
    return replace(item, name=header.url, total=header.size) if header else item


def _list_modules(root: Path) -> Iterator[Item]:
    base = root / "modules"
    for folder in _scan(base):
        if len(folder.name) != 2 or not folder.is_dir():  # by-name/, making/
            yield _describe(root, Path(folder.path), ItemKind.OTHER)
            continue
        for entry in _scan(Path(folder.path)):
            if not _KEY.fullmatch(entry.name):
                yield _describe(root, Path(entry.path), ItemKind.OTHER)
                continue
            item = _describe(root, Path(entry.path), ItemKind.MODULE)
            name, used = entry.name, item.last_use
            try:
                file = Path(entry.path) / "entry.json"
                used = file.stat().st_mtime
                name = str(json.loads(file.read_bytes())["entry"]["name"])
            except (OSError, ValueError, TypeError, KeyError):
                name = f"{entry.name[:12]} (damaged)"
            yield replace(item, name=name, last_use=used, key=entry.name)


def _list_wheels(root: Path) -> Iterator[Item]:
    for entry, status in _walk_files(root / "wheels"):
        path = Path(entry.path).relative_to(root).as_posix()
        if "/." in path:  # pip at work, or what a killed one has left
            yield _describe(root, Path(entry.path), ItemKind.OTHER)
            continue
        # Nothing but reading it tells of its use; where the system notes no such times, that of its arrival counts.
        used = max(status.st_mtime, status.st_atime)
        yield Item(ItemKind.WHEEL, path, entry.name, _measure_on_disk(status), used)


def _describe(root: Path, path: Path, kind: ItemKind) -> Item:
    """A file, or a folder with all that is in it."""
    relative = path.relative_to(root).as_posix()
    found = (
        [status for _, status in _walk_files(path)] if path.is_dir() and not path.is_symlink() else _read_status(path)
    )
    used = max((status.st_mtime for status in found or _read_status(path)), default=0.0)
    shared = sum(_measure_on_disk(status) for status in found if status.st_nlink > 1)
    name = relative + "/" if path.is_dir() else relative
    return Item(kind, relative, name, sum(map(_measure_on_disk, found)), used, shared_bytes=shared)


def _read_status(path: Path) -> list[os.stat_result]:
    try:
        return [path.lstat()]
    except FileNotFoundError:
        return []


def _scan(folder: Path) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _walk_files(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """All files below a folder; links are not followed."""
    for entry in _scan(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(Path(entry.path))
            continue
        try:
            yield entry, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue


def _measure_on_disk(status: os.stat_result) -> int:
    # st_blocks of a file that was just written may still be 0 (delayed allocation): the smaller of the two only
    # where there are blocks at all.
    blocks = status.st_blocks * _BLOCK_BYTES
    return min(status.st_size, blocks) if blocks else status.st_size
