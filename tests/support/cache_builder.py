"""A cache with entries of all types, made without a network or a compiler."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import HashCache
from iree_gauntlet.artifacts.inventory import CacheItem, take_inventory
from iree_gauntlet.artifacts.registry_file import Pins, Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.engine.modules.module_cache import ModuleCache

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DAY_SECONDS", "CacheBuilder"]

DAY_SECONDS = 86400.0


class CacheBuilder:
    """Fills a cache's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.verified = HashCache(root / "verified")
        (root / "locks").mkdir(parents=True, exist_ok=True)

    def now(self) -> float:
        """Return the present time of the file system's clock."""
        probe = self.root.parent / "now"
        probe.touch()
        return probe.stat().st_mtime

    def artifact(self, url: str, content: bytes, *, days: float = 0.0, in_lock_file: bool = False) -> Path:
        """Add a fetched file, last used `days` ago; return its path.

        `in_lock_file`: add its hash to `registry.lock.txt`.
        """
        path = self.root / "artifacts" / make_local_name(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        self.verified.remember(path, sha256)
        self.verified.touch(path, self.now() - days * DAY_SECONDS)
        if in_lock_file:
            lock_file = self.root / "registry.lock.txt"
            lock_file.write_text(
                Registry.read(lock_file).with_entries([RegistryEntry(make_local_name(url), sha256, url)]).text()
            )
        return path

    def module(self, name: str, content: bytes, *, days: float = 0.0) -> Path:
        """Add a compiled module; return its directory."""
        source = self.root.parent / "module.vmfb"
        source.write_bytes(content)
        publication = ModuleCache(self.root).publish(
            {"module.vmfb": source}, name=name, ingredients={"name": name}, metadata={}, created=datetime.now(UTC)
        )
        source.unlink()
        assert publication.entry is not None
        folder = publication.entry.files["module.vmfb"].parent
        self._set_age(folder / "entry.json", days)
        return folder

    def partial_download(self, url: str, present: int, total: int, *, days: float = 0.0) -> Path:
        """Add the files of a killed download; return its directory."""
        name = hashlib.sha256(make_local_name(url).encode()).hexdigest()[:32]
        folder = self.root / "incoming" / name
        folder.mkdir(parents=True)
        with (folder / "data").open("wb") as data:
            data.write(b"x" * present)
            data.truncate(total)
        lines: list[dict[str, object]] = [{"url": url, "size": total, "version": '"v"', "checksums": {}}]
        lines += [{"got": [0, present], "crc32": 0}, {"got": [0, present // 2], "crc32": 0}]
        (folder / "state.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"got": [0, 9')
        for path in (folder / "data", folder / "state.jsonl", folder):
            self._set_age(path, days)
        return folder

    def wheel(self, name: str, content: bytes, *, days: float = 0.0) -> Path:
        """Add a wheel that artifacts were extracted from; return its path."""
        path = self.root / "wheels" / name / "1.0" / f"{name}-1.0-py3-none-any.whl"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        self._set_age(path, days)
        return path

    def items(self, registry: Registry | None = None) -> dict[str, CacheItem]:
        """Return the cache's inventory, by path."""
        return {item.path: item for item in take_inventory(self.root, self.pins(registry))}

    def pins(self, registry: Registry | None = None) -> Pins:
        """Return the pins of a registry and of the lock file."""
        return Pins(registry or Registry(), Registry.read(self.root / "registry.lock.txt"))

    def _set_age(self, path: Path, days: float) -> None:
        timestamp = self.now() - days * DAY_SECONDS
        os.utime(path, (timestamp, timestamp))
