"""Hashes a module of the cache again, whatever this process has checked before, telling how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes, hash_watched
from iree_gauntlet.artifacts.verification import Condition, Finding
from iree_gauntlet.running.module_entry import ENTRY_FILE, DamageError, open_sealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.artifacts.inventory import Item

__all__ = ["check_module"]


def check_module(root: Path, item: Item, read: Callable[[int], None]) -> Finding:
    """Check a module's files against its `entry.json`, and that against its own checksum.

    Args:
        root: the cache's folder.
        item: the module.
        read: is told of each block's bytes.
    """
    folder = root / item.path
    try:
        document = open_sealed((folder / ENTRY_FILE).read_bytes(), item.key)
        for role, recorded in document["files"].items():
            if hash_watched(folder / role, read)["sha256"] != recorded["sha256"]:
                # Of a large file it may stand on the disk that it was checked before.
                VerifiedHashes(root / "verified").doubt(folder / role)
                return Finding(item, Condition.DAMAGED, f"the checksum of {role} does not match")
    except FileNotFoundError as error:
        if not folder.exists():
            return Finding(item, Condition.GONE)
        return Finding(item, Condition.DAMAGED, f"{Path(str(error.filename)).name} is missing")
    except OSError as error:
        return Finding(item, Condition.DAMAGED, f"cannot be read: {error.strerror}")
    except DamageError as error:
        return Finding(item, Condition.DAMAGED, str(error))
    return Finding(item, Condition.GOOD)
