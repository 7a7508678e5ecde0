"""What the tests of downloads share: content larger than a few parts, stores that try again soon, looks at the disk."""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.registry import Entry, Registry
from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.artifacts.transfer import Policy
from iree_gauntlet.configuration import Configuration, StoreOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.artifacts.progress import Progress

__all__ = ["PART", "QUICK", "SIZE", "configured", "content", "files_below", "partials", "published", "sha256", "store"]

PART = 1 << 20
SIZE = 6 * PART + 4321
QUICK = Policy(connections=3, part_bytes=PART, retries=2, backoff=0.05, longest_backoff=0.2, stall_timeout=5.0)


@functools.cache
def content(seed: int = 0, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def configured(
    environ: Mapping[str, str] | None = None, stores: Mapping[str, Mapping[str, str]] | None = None
) -> Configuration:
    """What is set: an environment, and [stores] of gauntlet.toml."""
    options = tuple(StoreOptions(prefix, dict(found)) for prefix, found in (stores or {}).items())
    # Nothing of the home of whoever runs the tests.
    return Configuration(stores=options, environ={"HOME": "/nonexistent", **(environ or {})})


def store(
    root: Path,
    *,
    pins: Mapping[str, str] | None = None,
    configuration: Configuration | None = None,
    offline: bool = False,
    stall: float = 5.0,
    policy: Policy = QUICK,
    progress: Progress | None = None,
) -> ArtifactStore:
    """A store as a new process has it."""
    entries = [Entry(local_name(url), digest, url) for url, digest in (pins or {}).items()]
    return ArtifactStore(
        root,
        Registry(root / "registry.txt").with_entries(entries),
        offline=offline,
        configuration=configuration or configured(),
        policy=replace(policy, stall_timeout=stall),
        progress=progress,
    )


def published(root: Path) -> dict[str, bytes]:
    """What may be taken for an artifact, by name."""
    folder = root / "artifacts"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def partials(root: Path) -> list[str]:
    """Names of the files below `incoming/`, without their folders."""
    return sorted(path.name for path in (root / "incoming").rglob("*") if path.is_file())


def files_below(root: Path) -> dict[Path, bytes]:
    """Every file, for looking for what must not be there."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
