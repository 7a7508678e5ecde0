"""A cache with things in it, made without a network or a compiler."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.inventory import Item, take_inventory
from iree_gauntlet.artifacts.registry_file import Pins, Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.engine.modules.module_cache import ModuleCache

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DAY", "CacheBuilder"]

DAY = 86400.0


class CacheBuilder:
    """Fills a cache's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.verified = VerifiedHashes(root / "verified")
        (root / "locks").mkdir(parents=True, exist_ok=True)

    def now(self) -> float:
        """This moment, as the file system has it."""
        mark = self.root.parent / "now"
        mark.touch()
        return mark.stat().st_mtime

    def artifact(self, url: str, content: bytes, *, days: float = 0.0, learnt: bool = False) -> Path:
        """A file that was fetched, and last used so many days ago."""
        path = self.root / "artifacts" / local_name(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        self.verified.remember(path, sha256)
        self.verified.touch(path, self.now() - days * DAY)
        if learnt:
            file = self.root / "registry.lock.txt"
            file.write_text(Registry.read(file).with_entries([RegistryEntry(local_name(url), sha256, url)]).text())
        return path

    def module(self, name: str, content: bytes, *, days: float = 0.0) -> Path:
        """A compiled module; its folder."""
        source = self.root.parent / "module.vmfb"
        source.write_bytes(content)
        publication = ModuleCache(self.root).publish(
            {"module.vmfb": source}, name=name, ingredients={"name": name}, metadata={}, created=datetime.now(UTC)
        )
        source.unlink()
        assert publication.entry is not None
        folder = publication.entry.files["module.vmfb"].parent
        self._aged(folder / "entry.json", days)
        return folder

    def unfinished(self, url: str, present: int, total: int, *, days: float = 0.0) -> Path:
        """A download that was killed; its folder."""
        name = hashlib.sha256(local_name(url).encode()).hexdigest()[:32]
        folder = self.root / "incoming" / name
        folder.mkdir(parents=True)
        with (folder / "data").open("wb") as data:
            data.write(b"x" * present)
            data.truncate(total)
        lines: list[dict[str, object]] = [{"url": url, "size": total, "version": '"v"', "checksums": {}}]
        lines += [{"got": [0, present], "crc32": 0}, {"got": [0, present // 2], "crc32": 0}]
        (folder / "state.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"got": [0, 9')
        for path in (folder / "data", folder / "state.jsonl", folder):
            self._aged(path, days)
        return folder

    def wheel(self, name: str, content: bytes, *, days: float = 0.0) -> Path:
        """A wheel that artifacts came out of."""
        path = self.root / "wheels" / name / "1.0" / f"{name}-1.0-py3-none-any.whl"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        self._aged(path, days)
        return path

    def items(self, registry: Registry | None = None) -> dict[str, Item]:
        """Everything that is there, by path."""
        return {item.path: item for item in take_inventory(self.root, self.pins(registry))}

    def pins(self, registry: Registry | None = None) -> Pins:
        """What is pinned."""
        return Pins(registry or Registry(), Registry.read(self.root / "registry.lock.txt"))

    def _aged(self, path: Path, days: float) -> None:
        then = self.now() - days * DAY
        os.utime(path, (then, then))
