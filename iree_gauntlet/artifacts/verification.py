"""Hashes what lies in a cache again, and says what is damaged; mending is left to the caller.

An artifact is held against its pin; one without a pin against what it was when it was last hashed. A wheel
carries checksums of its own (CRC-32 of each member, PEP 427 and the ZIP format).
"""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes, hash_watched
from iree_gauntlet.artifacts.inventory import Item, Pins, url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# A hash of a file that was changed this shortly before may be that of a file still being written.
_SETTLED_SECONDS = 1.0
_WHEEL_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


class Condition(StrEnum):
    """What became of an item that was checked."""

    GOOD = "good"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking an item.

    Attributes:
        item: what was checked.
        condition: what it is in.
        what: what is wrong with it, or why nobody knows; empty where it is good.
        url: of an artifact, as far as it is known.
    """

    item: Item
    condition: Condition
    what: str = ""
    url: str = ""


def check_artifact(
    path: Path, item: Item, pins: Pins, verified: VerifiedHashes, read: Callable[[int], None]
) -> Finding:
    """Hash an artifact. A damaged one is remembered to be in doubt, so that its next use notices, too."""
    source, entry = pins.of(item.name)
    expected = entry.sha256 if entry else verified.last(path)
    said_by = str((pins.registry if source == "registry" else pins.learnt).path) if source else "when it was fetched"
    url = url_of(item.name, entry)
    for _ in range(2):
        try:
            before = path.stat()
            sha256 = hash_watched(path, read)["sha256"]
            after = path.stat()
        except FileNotFoundError:
            return Finding(item, Condition.GONE)
        except OSError as error:
            return Finding(item, Condition.DAMAGED, f"cannot be read: {error.strerror}", url)
        if _same(before, after):
            break
        # It was fetched again meanwhile.
    if not expected:
        return Finding(item, Condition.UNKNOWN, "no record says what it should be", url)
    if sha256 != expected:
        verified.doubt(path)
        what = f"sha256 {sha256[:12]}…, not {expected[:12]}… ({said_by})"
        return Finding(item, Condition.DAMAGED, what, url)
    if verified.known(path) != sha256 and _same(before, after) and time.time() - after.st_mtime > _SETTLED_SECONDS:
        verified.remember(path, sha256)
        # To be checked is not to be used.
        verified.touch(path, item.last_use)
    return Finding(item, Condition.GOOD)


def check_wheel(path: Path, item: Item, read: Callable[[int], None]) -> Finding:
    """Check a wheel by its own checksums."""
    try:
        before = path.stat()
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
        with contextlib.suppress(PermissionError):  # another owner's
            # To be checked is not to be used.
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    except FileNotFoundError:
        return Finding(item, Condition.GONE)
    except _WHEEL_DAMAGE as error:
        return Finding(item, Condition.DAMAGED, str(error) or type(error).__name__)
    finally:
        read(item.bytes)
    if member:
        return Finding(item, Condition.DAMAGED, f"the checksum of {member} does not match")
    return Finding(item, Condition.GOOD)


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    def identity(status: os.stat_result) -> tuple[int, int, int]:
        return status.st_ino, status.st_size, status.st_mtime_ns

    return identity(before) == identity(after)
