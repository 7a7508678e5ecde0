"""What the tests of downloads share: content larger than a few parts, stores that do not wait, looks at the disk."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.artifacts.transfer import Policy
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.progress import Progress
from iree_gauntlet.settings import Configuration
from tests.support.clocks import Clock
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.fault_proxy import Fault, FaultProxy

__all__ = [
    "ENDLESS",
    "PART",
    "QUICK",
    "SHORT",
    "SIZE",
    "OnNote",
    "Waits",
    "broken_off",
    "configured",
    "content",
    "files_below",
    "partials",
    "published",
    "refused",
    "sha256",
    "store",
]

PART = 1 << 19
SIZE = 6 * PART + 4321
# A silence that ends: what hangs surely lasts longer, and so may, on a busy machine, what does not.
SHORT = 0.2
# Where a silence is to end and what follows is to succeed, however often a busy machine seems to be silent.
ENDLESS = 1_000_000


class Waits:
    """The clock of downloads: waits take no time, and are written down."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.clock = Clock()
        self._lock = threading.Lock()

    def wait(self, _stop: threading.Event, seconds: float) -> None:
        if seconds > 0:
            with self._lock:
                self.seconds.append(seconds)
                self.clock.now += seconds

    def of(self, policy: Policy) -> Policy:
        """A policy on this clock."""
        return replace(policy, now=self.clock, wait=self.wait)


def _at_once(_stop: threading.Event, _seconds: float) -> None:
    """A wait that is over."""


# No wait before an attempt, and no limit on silence that a busy machine could come near.
QUICK = Policy(connections=3, part_bytes=PART, retries=2, stall_timeout=LIMIT_SECONDS, wait=_at_once)


class OnNote(Progress):
    """Does something when a fetch says something."""

    def __init__(self, text: str, do: Callable[[], object]) -> None:
        self._text = text
        self._do = do

    def note(self, url: str, message: str) -> None:  # noqa: ARG002
        if self._text in message:
            self._do()


@functools.cache
def content(seed: int = 0, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def configured(
    environ: Mapping[str, str] | None = None, stores: Mapping[str, Mapping[str, str]] | None = None
) -> Configuration:
    """What is set: an environment, and [stores] in gauntlet.toml."""
    # Nothing of the home of whoever runs the tests.
    return Configuration(stores=stores or {}, environ={"HOME": "/nonexistent", **(environ or {})})


def store(
    root: Path,
    *,
    pins: Mapping[str, str] | None = None,
    configuration: Configuration | None = None,
    offline: bool = False,
    policy: Policy = QUICK,
    progress: Progress | None = None,
) -> ArtifactStore:
    """A store as a new process has it."""
    entries = [RegistryEntry(local_name(url), digest, url) for url, digest in (pins or {}).items()]
    return ArtifactStore(
        root,
        Registry(root / "registry.txt").with_entries(entries),
        offline=offline,
        configuration=configuration or configured(),
        policy=policy,
        progress=progress,
    )


def refused(root: Path, url: str, match: str | None = None, **how: Any) -> ArtifactError:
    """What a fetch says that fails: it names what was asked for, and leaves nothing that may be taken for it.

    `how`: as of `store`.
    """
    with pytest.raises(ArtifactError, match=match) as caught:
        store(root, **how).fetch(url)
    assert url in str(caught.value)
    assert published(root) == {}
    return caught.value


class _Arrived(Progress):
    """Says when so many bytes have arrived."""

    def __init__(self) -> None:
        self._done = 0
        self._news = threading.Condition()

    def download(self, url: str, done: int, total: int | None) -> None:  # noqa: ARG002
        with self._news:
            self._done = max(self._done, done)
            self._news.notify_all()

    def wait_for(self, done: int) -> None:
        with self._news:
            self._news.wait_for(lambda: self._done >= done, LIMIT_SECONDS)


def broken_off(
    root: Path, url: str, proxy: FaultProxy, stop: int, fault: Fault, configuration: Configuration | None = None
) -> str:
    """Fetches a file up to a byte, and fails there; what the error says.

    `stop`: all bytes before it arrive, and none after it.
    """
    arrived = _Arrived()
    fault = replace(fault, from_byte=stop, times=None, before=lambda: arrived.wait_for(stop))
    proxy.faults.insert(0, fault)
    # Each block is an update: a second passes with it.
    policy = replace(QUICK, now=itertools.count().__next__)
    with pytest.raises(ArtifactError) as caught:
        store(root, configuration=configuration, policy=policy, progress=arrived).fetch(url)
    proxy.faults.remove(fault)
    proxy.reset_counts()
    return str(caught.value)


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
