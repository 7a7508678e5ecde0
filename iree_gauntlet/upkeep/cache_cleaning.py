"""`cache.verify` and `cache.gc`: repair or remove damaged items of the cache, and remove items that are long unused.

An artifact is compared with its pin, or without a pin with its last known hash. A wheel has its own checksums (CRC-32
of each member, PEP 427 and the ZIP format).

Items that a living process uses (see `leases`) or is fetching are not removed. A file is removed by one unlink. A
folder is first renamed and then deleted, so a reader finds it complete or not at all; then the reader rebuilds it.
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

from iree_gauntlet.artifacts.hashing import HashCache, hash_with_progress
from iree_gauntlet.artifacts.inventory import CacheItem, CacheItemKind, find_url, take_inventory
from iree_gauntlet.artifacts.leases import Leases, try_lock
from iree_gauntlet.artifacts.pypi import describe_damage
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.engine.modules.module_cache import ENTRY_FILE, DamageError, ModuleCache, parse_sealed_entry
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, UsageError
from iree_gauntlet.formatting import format_bytes, parse_age, parse_bytes, pluralize
from iree_gauntlet.reports.output import open_progress, print_table, write_line
from iree_gauntlet.system.file_state import FileState
from iree_gauntlet.upkeep.cache_list import ProjectCache, explain_file_errors, format_age, open_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from iree_gauntlet.artifacts.registry_file import Pins
    from iree_gauntlet.reports.live_progress import Painter
    from iree_gauntlet.upkeep.upkeep_requests import CollectRequest, VerifyRequest


_CHECKED_KINDS = frozenset({CacheItemKind.ARTIFACT, CacheItemKind.MODULE, CacheItemKind.WHEEL})
# Hashing releases Python's lock, so threads help; with more than a few threads, the disk is the limit.
_MAX_THREADS = 4
# A file that was changed less than this before hashing may not be completely written.
_SETTLED_SECONDS = 1.0
# Some unfinished files have no lock; without changes for this long, they have no writer any more.
_LEFTOVER_SECONDS = 86400.0
_UNHELD_LOCK_SECONDS = 3600.0


class Condition(StrEnum):
    """The conditions of a checked item."""

    GOOD = "good"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class CacheFinding:
    """The result of checking an item; `problem` is the damage, or why the state is unknown; empty for a good item."""

    item: CacheItem
    condition: Condition
    problem: str = ""
    url: str = ""


def verify(request: VerifyRequest) -> ExitCode:
    """Hash all artifacts, modules and wheels; return ERROR if damage remains."""
    cache = open_cache(request.cache_dir)
    start_time = time.perf_counter()
    with explain_file_errors(cache.root):
        items = [item for item in take_inventory(cache.root, cache.pins) if item.kind in _CHECKED_KINDS]
        findings = []
        with open_progress(sys.stderr) as progress:
            progress.work("verifying", sum(item.bytes for item in items))
            for finding in _check(cache, items, progress):
                findings.append(finding)
                if finding.condition in (Condition.DAMAGED, Condition.UNKNOWN):
                    write_line(f"{finding.condition}: {finding.item.kind} {finding.item.name}: {finding.problem}")
        seconds = time.perf_counter() - start_time
        defects = [finding for finding in findings if finding.condition is Condition.DAMAGED]
        repaired_count = 0
        if defects and request.check_only:
            sys.stdout.write("nothing was changed (--check-only)\n")
        elif defects:
            with open_progress(sys.stderr) as progress:
                repaired_count = sum(_repair(cache, finding, progress, offline=request.offline) for finding in defects)
    counts = {condition: sum(finding.condition is condition for finding in findings) for condition in Condition}
    size = format_bytes(sum(finding.item.bytes for finding in findings))
    text = f"verified {len(findings)} items, {size} in {seconds:.1f} s: {counts[Condition.GOOD]} good"
    if defects:
        text += f", {len(defects)} damaged ({repaired_count} repaired)"
    if counts[Condition.UNKNOWN]:
        text += f", {counts[Condition.UNKNOWN]} without a record"
    sys.stdout.write(f"{text}\n")
    return ExitCode.ERROR if repaired_count < len(defects) else ExitCode.OK


def _check(cache: ProjectCache, items: Sequence[CacheItem], progress: Painter) -> Iterator[CacheFinding]:
    verified_hashes = HashCache(cache.root / "verified")

    def check(item: CacheItem) -> CacheFinding:
        path = cache.root / item.path
        try:
            if item.kind is CacheItemKind.ARTIFACT:
                return _check_artifact(path, item, cache.pins, verified_hashes, progress.advance)
            if item.kind is CacheItemKind.MODULE:
                damage = _find_module_damage(path, item.key, verified_hashes, progress.advance)
            else:
                damage = _find_wheel_damage(path)
                progress.advance(item.bytes)
        except FileNotFoundError:
            return CacheFinding(item, Condition.GONE)
        return CacheFinding(item, Condition.DAMAGED if damage else Condition.GOOD, damage)

    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as threads:
        try:
            yield from threads.map(check, items)
        except BaseException:
            # After Ctrl-C, the threads stop at their next block.
            progress.cancel()
            threads.shutdown(cancel_futures=True)
            raise


def _repair(cache: ProjectCache, finding: CacheFinding, progress: Painter, *, offline: bool) -> bool:
    """Repair an item; return True if the damage is gone."""
    item, path = finding.item, cache.root / finding.item.path
    if item.kind is CacheItemKind.MODULE:
        ModuleCache(cache.root).remove(item.key)
        write_line(f"removed: module {item.name}; it is built again when it is needed")
        return True
    if item.kind is CacheItemKind.WHEEL or _is_synthetic(item):
        with cache.leases.block_new_leases():
            if item.path in cache.leases.list_used_paths():
                write_line(
                    f"not repaired: {item.name}: another process uses it; verify again after that process has ended"
                )
                return False
            path.unlink(missing_ok=True)
        write_line(f"removed: {item.kind} {item.name}; it is fetched again when it is needed")
        return True
    if not finding.url:
        write_line(f"not repaired: {item.name}: no record has its origin; delete it, and fetch it again")
        return False
    try:
        artifact = cache.store(progress, offline=offline).fetch(finding.url)
    except GauntletError as error:
        write_line(f"not repaired: {item.name}: {error.message}")
        return False
    write_line(f"fetched again: {item.name} ({format_bytes(artifact.bytes)}, sha256 {artifact.sha256[:12]}…)")
    return True


def _find_module_damage(folder: Path, key: str, verified_hashes: HashCache, advance: Callable[[int], None]) -> str:
    """Return a module's damage according to its `entry.json`, which has its own checksum; empty without damage."""
    try:
        document = parse_sealed_entry((folder / ENTRY_FILE).read_bytes(), key)
        for file_name, expected_hashes in document["files"].items():
            if hash_with_progress(folder / file_name, advance)["sha256"] != expected_hashes["sha256"]:
                # Discard the cached hash, which says that a large file was verified before.
                verified_hashes.invalidate(folder / file_name)
                return f"the checksum of {file_name} does not match"
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
    path: Path, item: CacheItem, pins: Pins, verified_hashes: HashCache, advance: Callable[[int], None]
) -> CacheFinding:
    """Hash an artifact; if it is damaged, invalidate its cached hash, so that its next use also finds the damage."""
    pin = pins.of(item.name)
    expected_hash = pin.sha256 if pin else verified_hashes.get_last_hash(path)
    url = find_url(item.name, pin.url if pin else "")
    for _ in range(2):
        try:
            state_before = path.stat()
            sha256 = hash_with_progress(path, advance)["sha256"]
            state_after = path.stat()
        except FileNotFoundError:
            raise
        except OSError as error:
            return CacheFinding(item, Condition.DAMAGED, f"cannot be read: {error.strerror}", url)
        is_stable = FileState.of(state_before) == FileState.of(state_after)
        if is_stable:
            break
        # The artifact was fetched again during the check, so check it again.
    if not expected_hash:
        message = "no record has its expected hash"
        if _is_synthetic(item):
            message += "; its next use compares it with what its URL makes"
        return CacheFinding(item, Condition.UNKNOWN, message, url)
    if sha256 != expected_hash:
        verified_hashes.invalidate(path)
        message = f"sha256 {sha256[:12]}…, not {expected_hash[:12]}… ({pin.path if pin else 'when it was fetched'})"
        return CacheFinding(item, Condition.DAMAGED, message, url)
    if (
        verified_hashes.get_cached_hash(path) != sha256
        and is_stable
        and time.time() - state_after.st_ctime > _SETTLED_SECONDS
    ):
        verified_hashes.remember(path, sha256, is_confirmed=verified_hashes.is_confirmed(path))
        # Restore the last use, because a check is not a use.
        verified_hashes.touch(path, item.last_use)
    return CacheFinding(item, Condition.GOOD)


def _find_wheel_damage(path: Path) -> str:
    state_before = path.stat()
    damage = describe_damage(path)
    with contextlib.suppress(PermissionError):  # another owner's
        # Restore the times, because a check is not a use.
        os.utime(path, ns=(state_before.st_atime_ns, state_before.st_mtime_ns))
    return damage


def _is_synthetic(item: CacheItem) -> bool:
    return item.name.startswith("random/")


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """The limits of a cache: seconds since the last use of an item, and total bytes; None means no limit."""

    age: float | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, request: CollectRequest) -> CacheLimits:
        """Return the limits of a request; raise UsageError if it has none."""
        age, size = request.older_than, request.max_size
        if not age and not size:
            raise UsageError("cache.gc needs a limit", "Give --older-than 30d, --max-size 50GB, or both.")
        return cls(parse_age(age, "--older-than") if age else None, parse_bytes(size, "--max-size") if size else None)


def collect_garbage(request: CollectRequest) -> ExitCode:
    """Print the items above the limits, and delete them with `--delete`."""
    limits = CacheLimits.of(request)
    cache = open_cache(request.cache_dir)
    cache.require_cache()
    with explain_file_errors(cache.root):
        _show_and_collect(cache, limits, delete=request.delete)
    return ExitCode.OK


def _show_and_collect(cache: ProjectCache, limits: CacheLimits, *, delete: bool) -> None:
    now = time.time()
    users = CacheUsage(cache.root, cache.leases, now)
    plan = plan_collection(take_inventory(cache.root, cache.pins), limits, now, users.is_used)
    leftovers = list_leftovers(cache.root, cache.leases, now)
    if plan.removable_items:
        rows = [
            (format_bytes(item.bytes), format_age(now - item.last_use), item.kind, item.name)
            for item in plan.removable_items
        ]
        print_table([("SIZE", "LAST USE", "KIND", "NAME"), *rows])
    items: Sequence[CacheItem] = plan.removable_items
    if delete:
        sys.stdout.flush()
        items = collect(cache.root, plan.removable_items, cache.leases)
        # The hash files of the removed items (in `verified/`) have become leftovers.
        leftovers = list_leftovers(cache.root, cache.leases, now)
        remove_leftovers(leftovers)
    size, linked_bytes = format_bytes(sum(item.bytes for item in items)), sum(item.shared_bytes for item in items)
    text = (
        f"{'deleted' if delete else 'would go'}: {pluralize(len(items), 'item')}, "
        f"{size} of {format_bytes(plan.bytes_before)}"
    )
    if linked_bytes:
        text += f" ({format_bytes(linked_bytes)} of it remain on the disk: folders of runs have the same files)"
    sys.stdout.write(f"{text}\n")
    if plan.used_items:
        size = format_bytes(sum(item.bytes for item in plan.used_items))
        sys.stdout.write(f"kept, as other processes use them: {len(plan.used_items)}, {size}\n")
    if kept_count := len(plan.removable_items) - len(items):
        sys.stdout.write(f"{kept_count} items were kept: they were used or removed in the meantime\n")
    if leftovers:
        sys.stdout.write(f"and {pluralize(len(leftovers), 'leftover')} of processes that have ended\n")
    if not delete and (plan.removable_items or leftovers):
        sys.stdout.write("nothing was deleted: add --delete to delete these items\n")
    if limits.bytes is not None and plan.bytes_after > limits.bytes:
        sys.stdout.write(
            f"note: {format_bytes(plan.bytes_after)} stay, more than {format_bytes(limits.bytes)}: "
            "the rest is in use, or is never collected\n"
        )


@dataclass(frozen=True, slots=True)
class GcPlan:
    """The items to remove, in order; the items that stay because they are used; the cache's bytes before and after."""

    removable_items: tuple[CacheItem, ...]
    used_items: tuple[CacheItem, ...]
    bytes_before: int
    bytes_after: int


def plan_collection(
    items: Iterable[CacheItem], limits: CacheLimits, now: float, in_use: Callable[[CacheItem], bool]
) -> GcPlan:
    """Choose the items to remove: first items unused for too long, then the least recently used until the rest fits.

    `now` is in seconds since 1970.
    """
    all_items = list(items)
    bytes_before = bytes_after = sum(item.bytes for item in all_items)
    removable: list[CacheItem] = []
    used_items: list[CacheItem] = []
    for item in sorted(all_items, key=lambda item: (item.last_use, item.path)):
        if item.kind in (CacheItemKind.OTHER, CacheItemKind.TOOLCHAIN):
            continue
        too_old = limits.age is not None and now - item.last_use > limits.age
        too_much = limits.bytes is not None and bytes_after > limits.bytes
        if not too_old and not too_much:
            continue
        if in_use(item):
            used_items.append(item)
            continue
        removable.append(item)
        bytes_after -= item.bytes
    return GcPlan(tuple(removable), tuple(used_items), bytes_before, bytes_after)


class CacheUsage:
    """The items that living processes use at the time of creation, `now` (seconds since 1970)."""

    def __init__(self, root: Path, leases: Leases, now: float) -> None:
        self._root = root
        self._now = now
        self._paths = leases.list_used_paths()
        # A module may be leased by its folder or by a file in it.
        self._folders = {parent.as_posix() for path in self._paths for parent in Path(path).parents}

    def is_used(self, item: CacheItem) -> bool:
        """Return True if a living process uses or fetches an item."""
        if item.path in self._paths or item.path in self._folders:
            return True
        if item.kind is not CacheItemKind.UNFINISHED:
            return False
        if _is_held(_find_lock(self._root, item)):
            return True
        try:
            return f"artifacts/{make_local_name(item.name)}" in self._paths
        except ArtifactError:
            # The URL of the download is not recorded yet, or was lost, so its lock is unknown: use its age.
            return self._now - item.last_use < _LEFTOVER_SECONDS


def collect(root: Path, items: Iterable[CacheItem], leases: Leases) -> list[CacheItem]:
    """Remove the planned items, except items used since planning; return the removed items.

    Raises:
        GauntletError: another garbage collection does not end.
    """
    planned_items = list(items)

    def remove_unused(item: CacheItem) -> bool:
        last_use = 0.0
        if item.kind is CacheItemKind.ARTIFACT:
            last_use = verified_hashes.last_use(root / item.path) or 0.0
        elif item.kind is CacheItemKind.MODULE:
            last_use = _find_change_time(root / item.path / ENTRY_FILE)
        in_use = users.is_used(item) or last_use > item.last_use
        return not in_use and _remove_item(root, item, trash)

    with contextlib.ExitStack() as stack:
        # Modules are moved to a temporary folder here, which is deleted after new leases are allowed again.
        trash = root / "modules" / "making"
        if any(item.kind is CacheItemKind.MODULE for item in planned_items):
            trash.mkdir(parents=True, exist_ok=True)
            temporary = tempfile.TemporaryDirectory(prefix="collected-", dir=trash, ignore_cleanup_errors=True)
            trash = Path(stack.enter_context(temporary))
        with leases.block_new_leases():
            users = CacheUsage(root, leases, time.time())
            verified_hashes = HashCache(root / "verified")
            return [item for item in planned_items if remove_unused(item)]


def list_leftovers(root: Path, leases: Leases, now: float) -> list[Path]:
    """List files and folders that dead processes have left, and that nobody will read again."""
    leftovers = [*leases.list_dead_leases(), *HashCache(root / "verified").list_orphan_stamps()]
    candidates = (
        (root / "modules" / "making").glob("*"),
        (root / "refreshing").glob("*"),
        (root / "wheels").glob("*/*/.pip-*"),
        (path for path in (root / "artifacts").rglob(".*") if path.is_file()),
        root.glob(".*.part"),
    )
    for path in itertools.chain(*candidates):
        age = now - _find_change_time(path)
        if path.suffix == ".lock":
            if age > _UNHELD_LOCK_SECONDS and not _is_held(path):
                leftovers.append(path)
        elif age > _LEFTOVER_SECONDS:
            leftovers.append(path)
    return leftovers


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove the paths of `list_leftovers`, except locks that a process has taken since."""
    for path in paths:
        if path.suffix == ".lock":
            with try_lock(path) as is_locked:
                if is_locked:
                    # Hold the lock during the removal: a waiting process then notices it, and creates a new lock file.
                    path.unlink(missing_ok=True)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _remove_item(root: Path, item: CacheItem, trash: Path) -> bool:
    """Remove an item; return True if this process removed it."""
    path = root / item.path
    try:
        if item.kind is CacheItemKind.MODULE:
            path.rename(trash / path.name)
        elif item.kind is CacheItemKind.UNFINISHED:
            lock = _find_lock(root, item)
            # While we hold the lock, no process can fetch the item.
            with try_lock(lock) as is_locked:
                if free := is_locked or not lock.exists():
                    shutil.rmtree(path)
                return free
        else:
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def _find_lock(root: Path, item: CacheItem) -> Path:
    """Return the lock of a download: it has the same name as the folder of the incomplete file."""
    return root / "locks" / f"{Path(item.path).name}.lock"


def _find_change_time(path: Path) -> float:
    """Return the time of the last change of a path or of anything in it; 0 if the path does not exist."""
    times = [0.0]
    for entry in (path, *path.rglob("*")):
        with contextlib.suppress(OSError):
            times.append(entry.lstat().st_mtime)
    return max(times)


def _is_held(lock: Path) -> bool:
    """Return True if a process holds a lock."""
    with try_lock(lock, shared=True) as is_locked:
        return not is_locked and lock.exists()
