"""`cache.verify` and `cache.gc`: what is damaged in the cache is mended or goes, and what was not used for long goes.

An artifact is compared with its pin; one without a pin with what it was when it was last hashed. A wheel carries
checksums of its own (CRC-32 of each member, PEP 427 and the ZIP format).

Nothing goes that a living process uses (see `leases`) or is fetching. A file goes by one unlink; a folder by one
rename, and is deleted then: a reader sees it whole or not at all, and makes it again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes, hash_watched
from iree_gauntlet.artifacts.inventory import Item, ItemKind, find_url, take_inventory
from iree_gauntlet.artifacts.leases import Leases, try_lock
from iree_gauntlet.artifacts.pypi import damage_of
from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.engine.modules.module_cache import ENTRY_FILE, DamageError, ModuleCache, open_sealed
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, UsageError
from iree_gauntlet.formatting import byte_size, counted, parse_age, parse_bytes
from iree_gauntlet.reports.output import open_progress, print_table, write_line
from iree_gauntlet.system.file_state import FileState
from iree_gauntlet.upkeep.cache_list import CachePlace, explain_refusals, format_age, open_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from iree_gauntlet.artifacts.registry_file import Pins
    from iree_gauntlet.reports.live_progress import Painter
    from iree_gauntlet.upkeep.upkeep_requests import CollectRequest, VerifyRequest


_CHECKED = frozenset({ItemKind.ARTIFACT, ItemKind.MODULE, ItemKind.WHEEL})
# Hashing leaves Python's lock alone, so that threads help; beyond a few the disk is what one waits for.
_MOST_THREADS = 4
# A hash of a file that was changed this shortly before may be that of a file still being written.
_SETTLED_SECONDS = 1.0
# What is being written has no lock of its own everywhere: nothing is written for this long without a change.
_LEFTOVER_SECONDS = 86400.0
_LOCK_SECONDS = 3600.0


class Condition(StrEnum):
    """What became of an item that was checked."""

    GOOD = "good"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class CacheFinding:
    """The result of checking an item: `what` is wrong with it, or why that is unknown; empty where it is good."""

    item: Item
    condition: Condition
    what: str = ""
    url: str = ""


def verify(asked: VerifyRequest) -> ExitCode:
    """Hashes all artifacts, modules and wheels; ERROR where damage stays."""
    place = open_cache(asked.cache_dir)
    started = time.perf_counter()
    with explain_refusals(place.root):
        items = [item for item in take_inventory(place.root, place.pins) if item.kind in _CHECKED]
        findings = []
        with open_progress(sys.stderr) as progress:
            progress.work("verifying", sum(item.bytes for item in items))
            for finding in _check(place, items, progress):
                findings.append(finding)
                if finding.condition in (Condition.DAMAGED, Condition.UNKNOWN):
                    write_line(f"{finding.condition}: {finding.item.kind} {finding.item.name}: {finding.what}")
        seconds = time.perf_counter() - started
        damaged = [finding for finding in findings if finding.condition is Condition.DAMAGED]
        repaired = 0
        if damaged and asked.check_only:
            sys.stdout.write("nothing was changed (--check-only)\n")
        elif damaged:
            with open_progress(sys.stderr) as progress:
                repaired = sum(_repair(place, finding, progress, offline=asked.offline) for finding in damaged)
    counts = {condition: sum(finding.condition is condition for finding in findings) for condition in Condition}
    size = byte_size(sum(finding.item.bytes for finding in findings))
    text = f"verified {len(findings)} items, {size} in {seconds:.1f} s: {counts[Condition.GOOD]} good"
    if damaged:
        text += f", {len(damaged)} damaged ({repaired} repaired)"
    if counts[Condition.UNKNOWN]:
        text += f", {counts[Condition.UNKNOWN]} that no record knows"
    sys.stdout.write(f"{text}\n")
    return ExitCode.ERROR if repaired < len(damaged) else ExitCode.OK


def _check(place: CachePlace, items: Sequence[Item], progress: Painter) -> Iterator[CacheFinding]:
    verified = VerifiedHashes(place.root / "verified")

    def check(item: Item) -> CacheFinding:
        path = place.root / item.path
        try:
            if item.kind is ItemKind.ARTIFACT:
                return _check_artifact(path, item, place.pins, verified, progress.advance)
            if item.kind is ItemKind.MODULE:
                damage = _find_module_damage(path, item.key, verified, progress.advance)
            else:
                damage = _find_wheel_damage(path)
                progress.advance(item.bytes)
        except FileNotFoundError:
            return CacheFinding(item, Condition.GONE)
        return CacheFinding(item, Condition.DAMAGED if damage else Condition.GOOD, damage)

    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        try:
            yield from threads.map(check, items)
        except BaseException:
            # Ctrl-C: what is being read ends at its next block.
            progress.cancel()
            threads.shutdown(cancel_futures=True)
            raise


def _repair(place: CachePlace, finding: CacheFinding, progress: Painter, *, offline: bool) -> bool:
    """Whether the damage is gone."""
    item, path = finding.item, place.root / finding.item.path
    if item.kind is ItemKind.MODULE:
        ModuleCache(place.root).remove(item.key)
        write_line(f"removed: module {item.name}; it is made again when it is needed")
        return True
    if item.kind is ItemKind.WHEEL or _is_seeded(item):
        with place.leases.collecting():
            if item.path in place.leases.in_use():
                write_line(f"not repaired: {item.name}: another process uses it; verify again when it has ended")
                return False
            path.unlink(missing_ok=True)
        write_line(f"removed: {item.kind} {item.name}; it comes again when it is needed")
        return True
    if not finding.url:
        write_line(f"not repaired: {item.name}: no record says where it comes from; delete it, and fetch again")
        return False
    try:
        fetched = place.store(progress, offline=offline).fetch(finding.url)
    except GauntletError as error:
        write_line(f"not repaired: {item.name}: {error.what}")
        return False
    write_line(f"fetched again: {item.name} ({byte_size(fetched.bytes)}, sha256 {fetched.sha256[:12]}…)")
    return True


def _find_module_damage(folder: Path, key: str, verified: VerifiedHashes, read: Callable[[int], None]) -> str:
    """By its `entry.json`, which has a checksum of its own."""
    try:
        document = open_sealed((folder / ENTRY_FILE).read_bytes(), key)
        for role, recorded in document["files"].items():
            if hash_watched(folder / role, read)["sha256"] != recorded["sha256"]:
                # Of a large file it may stand on the disk that it was checked before.
                verified.doubt(folder / role)
                return f"the checksum of {role} does not match"
    except FileNotFoundError as error:
        if not folder.exists():
            raise
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except DamageError as error:
        return str(error)
    return ""


def _check_artifact(
    path: Path, item: Item, pins: Pins, verified: VerifiedHashes, read: Callable[[int], None]
) -> CacheFinding:
    """Hash an artifact. A damaged one is remembered to be in doubt, so that its next use notices, too."""
    pin = pins.of(item.name)
    expected = pin.sha256 if pin else verified.last(path)
    url = find_url(item.name, pin.url if pin else "")
    for _ in range(2):
        try:
            before = path.stat()
            sha256 = hash_watched(path, read)["sha256"]
            after = path.stat()
        except FileNotFoundError:
            raise
        except OSError as error:
            return CacheFinding(item, Condition.DAMAGED, f"cannot be read: {error.strerror}", url)
        unchanged = FileState.of(before) == FileState.of(after)
        if unchanged:
            break
        # It was fetched again meanwhile.
    if not expected:
        what = "no record says what it should be"
        if _is_seeded(item):
            what += "; its next use compares it with what its URL makes"
        return CacheFinding(item, Condition.UNKNOWN, what, url)
    if sha256 != expected:
        verified.doubt(path)
        what = f"sha256 {sha256[:12]}…, not {expected[:12]}… ({pin.path if pin else 'when it was fetched'})"
        return CacheFinding(item, Condition.DAMAGED, what, url)
    if verified.known(path) != sha256 and unchanged and time.time() - after.st_ctime > _SETTLED_SECONDS:
        verified.remember(path, sha256, vouched=verified.is_vouched(path))
        # To be checked is not to be used.
        verified.touch(path, item.last_use)
    return CacheFinding(item, Condition.GOOD)


def _find_wheel_damage(path: Path) -> str:
    before = path.stat()
    damage = damage_of(path)
    with contextlib.suppress(PermissionError):  # another owner's
        # To be checked is not to be used.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return damage


def _is_seeded(item: Item) -> bool:
    return item.name.startswith("random/")


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What may stay in a cache: of what age, in seconds since the last use, and bytes in all; None for any."""

    age: float | None = None
    bytes: int | None = None


def collect_garbage(asked: CollectRequest) -> ExitCode:
    """Shows what would go, and deletes it with `--delete`."""
    age, size = asked.older_than, asked.max_size
    if not age and not size:
        raise UsageError("cache.gc needs to know what may stay", "Give --older-than 30d, --max-size 50GB, or both.")
    limits = CacheLimits(
        parse_age(age, "--older-than") if age else None, parse_bytes(size, "--max-size") if size else None
    )
    place = open_cache(asked.cache_dir)
    place.require_cache()
    with explain_refusals(place.root):
        _show_and_collect(place, limits, delete=asked.delete)
    return ExitCode.OK


def _show_and_collect(place: CachePlace, limits: CacheLimits, *, delete: bool) -> None:
    now = time.time()
    users = Users(place.root, place.leases, now)
    planned = plan_collection(take_inventory(place.root, place.pins), limits, now, users.uses)
    dead = list_leftovers(place.root, place.leases, now)
    if planned.goes:
        rows = [(byte_size(item.bytes), format_age(now - item.last_use), item.kind, item.name) for item in planned.goes]
        print_table([("SIZE", "LAST USE", "KIND", "NAME"), *rows])
    gone: Sequence[Item] = planned.goes
    if delete:
        sys.stdout.flush()
        gone = collect(place.root, planned.goes, place.leases)
        # Again: the stamps of what has gone are among them now.
        dead = list_leftovers(place.root, place.leases, now)
        remove_leftovers(dead)
    size, linked = byte_size(sum(item.bytes for item in gone)), sum(item.shared_bytes for item in gone)
    text = f"{'deleted' if delete else 'would go'}: {counted(len(gone), 'item')}, {size} of {byte_size(planned.before)}"
    if linked:
        text += f" ({byte_size(linked)} of it stay on the disk: folders of runs hold the same files)"
    sys.stdout.write(f"{text}\n")
    if planned.spared:
        size = byte_size(sum(item.bytes for item in planned.spared))
        sys.stdout.write(f"in use by other processes, so they stay: {len(planned.spared)}, {size}\n")
    if kept := len(planned.goes) - len(gone):
        sys.stdout.write(f"{kept} items stay: they have been used, or went otherwise, since this began\n")
    if dead:
        sys.stdout.write(f"and {counted(len(dead), 'leftover')} of processes that have ended\n")
    if not delete and (planned.goes or dead):
        sys.stdout.write("nothing was deleted: add --delete\n")
    if limits.bytes is not None and planned.after > limits.bytes:
        sys.stdout.write(
            f"note: {byte_size(planned.after)} stay, more than {byte_size(limits.bytes)}: "
            "the rest is in use, or is not what is collected\n"
        )


@dataclass(frozen=True, slots=True)
class Collection:
    """What goes, in that order, and what is spared; bytes of the cache before and after it."""

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
        if item.kind in (ItemKind.OTHER, ItemKind.TOOLCHAIN):
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
    """Tells whether someone uses an item, as of when this was made: `now`, in seconds since 1970."""

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
        if item.kind is not ItemKind.UNFINISHED:
            return False
        if _is_held(_find_lock(self._root, item)):
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
    """
    wanted = list(planned)

    def goes(item: Item) -> bool:
        last_use = 0.0
        if item.kind is ItemKind.ARTIFACT:
            last_use = verified.last_use(root / item.path) or 0.0
        elif item.kind is ItemKind.MODULE:
            last_use = _find_change(root / item.path / ENTRY_FILE)
        used = users.uses(item) or last_use > item.last_use
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
    """Remove what `list_leftovers` has found; a lock that someone has taken since stays."""
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
            lock = _find_lock(root, item)
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


def _find_lock(root: Path, item: Item) -> Path:
    """The lock that is held while a file is fetched: it is called as the folder that the file comes in by."""
    return root / "locks" / f"{Path(item.path).name}.lock"


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
