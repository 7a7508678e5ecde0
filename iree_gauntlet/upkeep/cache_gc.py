"""`cache.gc`: what was not used for long, or does not fit, goes, the least recently used first.

Nothing goes that a living process uses (see `leases`) or is fetching. A file goes by one unlink; a folder by one
rename, and is deleted then: a reader sees it whole or not at all, and makes it again.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.inventory import Item, ItemKind, take_inventory
from iree_gauntlet.artifacts.leases import Leases, try_lock
from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.errors import ArtifactError, ExitCode, UsageError
from iree_gauntlet.figures import byte_size, counted
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.upkeep.cache_list import CachePlace, explain_refusals, format_age, open_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from iree_gauntlet.upkeep.upkeep_requests import CollectRequest


# What is being written has no lock of its own everywhere: nothing is written for this long without a change.
_LEFTOVER_SECONDS = 86400.0
_LOCK_SECONDS = 3600.0
_QUANTITY = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*\Z")
_BYTES = {
    **{unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)},
}
_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def collect_garbage(asked: CollectRequest) -> ExitCode:
    """Shows what would go, and deletes it with `--delete`.

    Raises:
        UsageError: no limit is given, or one that is none; the folder is no cache.
        GauntletError: something cannot be read or deleted.
    """
    age, size = asked.older_than, asked.max_size
    if not age and not size:
        raise UsageError("cache.gc needs to know what may stay", "Give --older-than 30d, --max-size 50GB, or both.")
    limits = CacheLimits(
        parse_age(age, "--older-than") if age else None, parse_bytes(size, "--max-size") if size else None
    )
    place = open_cache(asked.cache_dir)
    place.require_cache()
    with explain_refusals(place.root):
        return _collect(place, limits, delete=asked.delete)


def _collect(place: CachePlace, limits: CacheLimits, *, delete: bool) -> ExitCode:
    now = time.time()
    users = Users(place.root, place.leases, now)
    planned = plan_collection(take_inventory(place.root, place.pins), limits, now, users.uses)
    dead = list_leftovers(place.root, place.leases, now)
    if planned.goes:
        rows = [(byte_size(item.bytes), format_age(now - item.last_use), item.kind, item.name) for item in planned.goes]
        print_table([("SIZE", "LAST USE", "KIND", "NAME"), *rows])
    if delete:
        sys.stdout.flush()
        gone = collect(place.root, planned.goes, place.leases)
        # Again: the stamps of what has gone are among them now.
        dead = list_leftovers(place.root, place.leases, now)
        remove_leftovers(dead)
        _write_summary("deleted", gone, planned)
        kept = len(planned.goes) - len(gone)
        if kept:
            sys.stdout.write(f"{kept} items stay: they have been used, or went otherwise, since this began\n")
    else:
        _write_summary("would go", planned.goes, planned)
    if dead:
        sys.stdout.write(f"and {counted(len(dead), 'leftover')} of processes that have ended\n")
    if not delete and (planned.goes or dead):
        sys.stdout.write("nothing was deleted: add --delete\n")
    if limits.bytes is not None and planned.after > limits.bytes:
        sys.stdout.write(
            f"note: {byte_size(planned.after)} stay, more than {byte_size(limits.bytes)}: "
            "the rest is in use, or is not what is collected\n"
        )
    return ExitCode.OK


def _write_summary(verb: str, goes: Sequence[Item], planned: Collection) -> None:
    size, linked = sum(item.bytes for item in goes), sum(item.shared_bytes for item in goes)
    text = f"{verb}: {counted(len(goes), 'item')}, {byte_size(size)} of {byte_size(planned.before)}"
    if linked:
        text += f" ({byte_size(linked)} of it stay on the disk: folders of runs hold the same files)"
    sys.stdout.write(f"{text}\n")
    if planned.spared:
        size = sum(item.bytes for item in planned.spared)
        sys.stdout.write(f"in use by other processes, so they stay: {len(planned.spared)}, {byte_size(size)}\n")


@dataclass(frozen=True, slots=True)
class Collection:
    """What goes.

    Attributes:
        goes: in the order of going.
        before: bytes of the cache.
        after: bytes of the cache without what goes.
    """

    goes: tuple[Item, ...]
    spared: tuple[Item, ...]
    before: int
    after: int


def plan_collection(items: Iterable[Item], limits: CacheLimits, now: float, used: Callable[[Item], bool]) -> Collection:
    """Decide what goes: all that was not used for long enough, then the least recently used until the rest fits.

    `now` is in seconds since 1970.
    """
    everything = list(items)
    before = after = sum(item.bytes for item in everything)
    goes: list[Item] = []
    spared: list[Item] = []
    for item in sorted(everything, key=lambda item: (item.last_use, item.path)):
        if item.kind is ItemKind.OTHER:
            continue
        too_old = limits.age is not None and now - item.last_use > limits.age
        too_much = limits.bytes is not None and after > limits.bytes
        if not too_old and not too_much:
            continue
        if used(item):
            spared.append(item)
            continue
        goes.append(item)
        after -= item.bytes
    return Collection(tuple(goes), tuple(spared), before, after)


class Users:
    """Tells whether someone uses an item, as of when this was made.

    Args:
        now: seconds since 1970.
    """

    def __init__(self, root: Path, leases: Leases, now: float) -> None:
        self._root = root
        self._now = now
        self._paths = leases.in_use()
        # An entry may be leased by its folder or by a file in it.
        self._folders = {parent.as_posix() for path in self._paths for parent in Path(path).parents}

    def uses(self, item: Item) -> bool:
        """Whether a living process uses it, or is fetching it."""
        if item.path in self._paths or item.path in self._folders:
            return True
        return item.kind is ItemKind.UNFINISHED and self._is_fetching(item)

    def _is_fetching(self, item: Item) -> bool:
        if _is_held(_lock(self._root, item)):
            return True
        try:
            return f"artifacts/{local_name(item.name)}" in self._paths
        except ArtifactError:
            # Its URL is not written yet, or was lost.
            return self._now - item.last_use < _LEFTOVER_SECONDS


def collect(root: Path, planned: Iterable[Item], leases: Leases) -> list[Item]:
    """Take away what was planned, but what has been used since; what has gone.

    Raises:
        GauntletError: another collection does not end.
        OSError: something cannot be removed.
    """
    wanted = list(planned)

    def goes(item: Item) -> bool:
        used = users.uses(item) or _find_last_use(root, item, verified) > item.last_use
        return not used and _take(root, item, aside)

    with contextlib.ExitStack() as afterwards:
        # On the file system of the modules, so that one goes there by a rename; deleted after the lock is given back.
        aside = root / "modules" / "making"
        if any(item.kind is ItemKind.MODULE for item in wanted):
            aside.mkdir(parents=True, exist_ok=True)
            temporary = tempfile.TemporaryDirectory(prefix="collected-", dir=aside, ignore_cleanup_errors=True)
            aside = Path(afterwards.enter_context(temporary))
        with leases.collecting():
            users = Users(root, leases, time.time())
            verified = VerifiedHashes(root / "verified")
            return [item for item in wanted if goes(item)]


def list_leftovers(root: Path, leases: Leases, now: float) -> list[Path]:
    """What dead processes have left: files and folders that will never be read again."""
    found = [*leases.dead(), *VerifiedHashes(root / "verified").gone()]
    candidates = (
        (root / "modules" / "making").glob("*"),
        (root / "refreshing").glob("*"),
        (root / "wheels").glob("*/*/.pip-*"),
        (path for path in (root / "artifacts").rglob(".*") if path.is_file()),
        root.glob(".*.tmp"),
        root.glob(".*.part"),
    )
    for path in itertools.chain(*candidates):
        age = now - _find_change(path)
        if path.suffix == ".lock":
            if age > _LOCK_SECONDS and not _is_held(path):
                found.append(path)
        elif age > _LEFTOVER_SECONDS:
            found.append(path)
    return found


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove what `list_leftovers` has found; a lock that someone has taken since stays.

    Raises:
        OSError: something cannot be removed.
    """
    for path in paths:
        if path.suffix == ".lock":
            with try_lock(path) as locked:
                if locked:
                    # Removed while it is held: who waits for it sees that it is gone, and makes it again.
                    path.unlink(missing_ok=True)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _take(root: Path, item: Item, aside: Path) -> bool:
    """Whether the item was taken away by us."""
    path = root / item.path
    try:
        if item.kind is ItemKind.MODULE:
            path.rename(aside / path.name)
        elif item.kind is ItemKind.UNFINISHED:
            lock = _lock(root, item)
            # No process fetches it, and none begins to meanwhile.
            with try_lock(lock) as locked:
                if free := locked or not lock.exists():
                    shutil.rmtree(path)
                return free
        else:
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def _lock(root: Path, item: Item) -> Path:
    """The lock that is held while a file is fetched: it is called as the folder that the file comes in by."""
    return root / "locks" / f"{Path(item.path).name}.lock"


def _find_last_use(root: Path, item: Item, verified: VerifiedHashes) -> float:
    """When an item was last used, by what tells it at once; 0 where nothing does."""
    if item.kind is ItemKind.ARTIFACT:
        return verified.last_use(root / item.path) or 0.0
    if item.kind is ItemKind.MODULE:
        return _find_change(root / item.path / "entry.json")
    return 0.0


def _find_change(path: Path) -> float:
    """When it was changed, or anything in it; 0 where it is gone."""
    times = [0.0]
    for place in (path, *path.rglob("*")):
        with contextlib.suppress(OSError):
            times.append(place.lstat().st_mtime)
    return max(times)


def _is_held(lock: Path) -> bool:
    """Whether someone holds a lock."""
    with try_lock(lock, shared=True) as locked:
        return not locked and lock.exists()


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What may stay in a cache.

    Attributes:
        age: seconds since the last use; None for any.
        bytes: of everything together; None for any.
    """

    age: float | None = None
    bytes: int | None = None


def parse_bytes(text: str, option: str) -> int:
    """Bytes of a size with its unit; powers of 1000, or of 1024 with an `i`; units in either case.

    Raises:
        UsageError: it is none.
    """
    return int(_parse_quantity(text, _BYTES, option, "50GB"))


def parse_age(text: str, option: str) -> float:
    """Seconds of an age in hours, days or weeks.

    Raises:
        UsageError: it is none.
    """
    return float(_parse_quantity(text, _SECONDS, option, "30d"))


def _parse_quantity(text: str, units: dict[str, int], option: str, example: str) -> Decimal:
    match = _QUANTITY.match(text)
    by_lower = {unit.lower(): factor for unit, factor in units.items()}
    factor = by_lower.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{option} {text}: expected a number and a unit, such as {example}", f"Units: {', '.join(units)}."
        )
    return Decimal(match[1]) * factor
