"""`cache.verify`: everything is hashed again; what is damaged is fetched again, or goes to be made again.

An artifact is compared with its pin; one without a pin with what it was when it was last hashed. A wheel carries
checksums of its own (CRC-32 of each member, PEP 427 and the ZIP format).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes, hash_watched
from iree_gauntlet.artifacts.inventory import Item, ItemKind, find_url, take_inventory
from iree_gauntlet.artifacts.pypi import damage_of
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.engine.modules.module_entry import ENTRY_FILE, DamageError, open_sealed
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import byte_size
from iree_gauntlet.reports.output import open_progress, write_line
from iree_gauntlet.upkeep.cache_list import CachePlace, explain_refusals, open_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.artifacts.registry_file import Pins
    from iree_gauntlet.reports.live_progress import Painter
    from iree_gauntlet.upkeep.upkeep_requests import VerifyRequest


_CHECKED = frozenset({ItemKind.ARTIFACT, ItemKind.MODULE, ItemKind.WHEEL})
# Hashing leaves Python's lock alone, so that threads help; beyond a few the disk is what one waits for.
_MOST_THREADS = 4
# A hash of a file that was changed this shortly before may be that of a file still being written.
_SETTLED_SECONDS = 1.0


def verify(asked: VerifyRequest) -> ExitCode:
    """Hashes all artifacts, modules and wheels; ERROR where damage stays.

    Raises:
        GauntletError: the cache cannot be read.
    """
    place = open_cache(asked.cache_dir)
    started = time.perf_counter()
    with explain_refusals(place.root):
        items = [item for item in take_inventory(place.root, place.pins) if item.kind in _CHECKED]
        with open_progress(sys.stderr) as progress:
            progress.work("verifying", sum(item.bytes for item in items))
            findings = []
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
    _write_summary(findings, repaired, seconds)
    return ExitCode.ERROR if repaired < len(damaged) else ExitCode.OK


def _check(place: CachePlace, items: Sequence[Item], progress: Painter) -> Iterator[CacheFinding]:
    verified = VerifiedHashes(place.root / "verified")

    def checked(item: Item) -> CacheFinding:
        path = place.root / item.path
        try:
            if item.kind is ItemKind.MODULE:
                return _check_module(path, item, verified, progress.advance)
            if item.kind is ItemKind.WHEEL:
                return _check_wheel(path, item, progress.advance)
            return _check_artifact(path, item, place.pins, verified, progress.advance)
        except FileNotFoundError:
            return CacheFinding(item, Condition.GONE)

    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        try:
            yield from threads.map(checked, items)
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


def _write_summary(findings: Sequence[CacheFinding], repaired: int, seconds: float) -> None:
    counts = {condition: sum(finding.condition is condition for finding in findings) for condition in Condition}
    size = byte_size(sum(finding.item.bytes for finding in findings))
    damaged = counts[Condition.DAMAGED]
    text = f"verified {len(findings)} items, {size} in {seconds:.1f} s: {counts[Condition.GOOD]} good"
    if damaged:
        text += f", {damaged} damaged ({repaired} repaired)"
    if counts[Condition.UNKNOWN]:
        text += f", {counts[Condition.UNKNOWN]} that no record knows"
    sys.stdout.write(f"{text}\n")


def _check_module(folder: Path, item: Item, verified: VerifiedHashes, read: Callable[[int], None]) -> CacheFinding:
    """Check a module's files against its `entry.json`, and that against its own checksum."""
    try:
        document = open_sealed((folder / ENTRY_FILE).read_bytes(), item.key)
        for role, recorded in document["files"].items():
            if hash_watched(folder / role, read)["sha256"] != recorded["sha256"]:
                # Of a large file it may stand on the disk that it was checked before.
                verified.doubt(folder / role)
                return CacheFinding(item, Condition.DAMAGED, f"the checksum of {role} does not match")
    except FileNotFoundError as error:
        if not folder.exists():
            raise
        return CacheFinding(item, Condition.DAMAGED, f"{Path(str(error.filename)).name} is missing")
    except OSError as error:
        return CacheFinding(item, Condition.DAMAGED, f"cannot be read: {error.strerror}")
    except DamageError as error:
        return CacheFinding(item, Condition.DAMAGED, str(error))
    return CacheFinding(item, Condition.GOOD)


class Condition(StrEnum):
    """What became of an item that was checked."""

    GOOD = "good"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class CacheFinding:
    """The result of checking an item.

    Attributes:
        what: what is wrong with it, or why that is unknown; empty where it is good.
    """

    item: Item
    condition: Condition
    what: str = ""
    url: str = ""


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
        unchanged = _identify(before) == _identify(after)
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
    if verified.known(path) != sha256 and unchanged and time.time() - after.st_mtime > _SETTLED_SECONDS:
        verified.remember(path, sha256)
        # To be checked is not to be used.
        verified.touch(path, item.last_use)
    return CacheFinding(item, Condition.GOOD)


def _check_wheel(path: Path, item: Item, read: Callable[[int], None]) -> CacheFinding:
    """Check a wheel by its own checksums."""
    try:
        before = path.stat()
        what = damage_of(path)
        with contextlib.suppress(PermissionError):  # another owner's
            # To be checked is not to be used.
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        read(item.bytes)
    return CacheFinding(item, Condition.DAMAGED if what else Condition.GOOD, what)


def _is_seeded(item: Item) -> bool:
    return item.name.startswith("random/")


def _identify(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
