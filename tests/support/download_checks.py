"""Helpers for tests of downloads: content of several parts, stores that do not wait, reads of the disk."""

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
from iree_gauntlet.artifacts.sources import make_local_name
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
    "CONTENT_BYTES",
    "MANY_RETRIES",
    "PART_BYTES",
    "QUICK_POLICY",
    "SHORT_STALL_SECONDS",
    "FakeWaits",
    "NoteTrigger",
    "break_off_fetch",
    "configure",
    "fail_fetch",
    "list_partials",
    "make_content",
    "make_store",
    "read_all_files",
    "read_artifacts",
    "sha256",
]

PART_BYTES = 1 << 19
CONTENT_BYTES = 6 * PART_BYTES + 4321
# A short stall timeout; on a busy machine it may also end downloads that do not hang.
SHORT_STALL_SECONDS = 0.2
# Enough retries for a download that has to succeed, however often a busy machine seems to stall.
MANY_RETRIES = 1_000_000


class FakeWaits:
    """The clock of downloads: waits take no time, and are recorded."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.clock = Clock()
        self._mutex = threading.Lock()

    def wait(self, _stop: threading.Event, seconds: float) -> None:
        if seconds > 0:
            with self._mutex:
                self.seconds.append(seconds)
                self.clock.now += seconds

    def make_policy(self, policy: Policy) -> Policy:
        """Return a policy that uses this clock."""
        return replace(policy, now=self.clock, wait=self.wait)


def _return_at_once(_stop: threading.Event, _seconds: float) -> None:
    """Return at once, in place of a wait."""


# This policy does not wait before an attempt, and no busy machine reaches its stall timeout.
QUICK_POLICY = Policy(
    connections=3, part_bytes=PART_BYTES, retries=2, stall_timeout=LIMIT_SECONDS, wait=_return_at_once
)


class NoteTrigger(Progress):
    """Calls a function when a note of a fetch contains a text."""

    def __init__(self, text: str, callback: Callable[[], object]) -> None:
        self._text = text
        self._callback = callback

    def note(self, url: str, message: str) -> None:  # noqa: ARG002
        if self._text in message:
            self._callback()


@functools.cache
def make_content(seed: int = 0, size: int = CONTENT_BYTES) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def configure(
    environ: Mapping[str, str] | None = None, stores: Mapping[str, Mapping[str, str]] | None = None
) -> Configuration:
    """Make a configuration from an environment and [stores] of gauntlet.toml."""
    # The home directory of the tests' user must not be read.
    return Configuration(stores=stores or {}, environ={"HOME": "/nonexistent", **(environ or {})})


def make_store(
    root: Path,
    *,
    pins: Mapping[str, str] | None = None,
    configuration: Configuration | None = None,
    offline: bool = False,
    policy: Policy = QUICK_POLICY,
    progress: Progress | None = None,
) -> ArtifactStore:
    """Make a store as a new process does."""
    entries = [RegistryEntry(make_local_name(url), digest, url) for url, digest in (pins or {}).items()]
    return ArtifactStore(
        root,
        Registry(root / "registry.txt").with_entries(entries),
        offline=offline,
        configuration=configuration or configure(),
        policy=policy,
        progress=progress,
    )


def fail_fetch(root: Path, url: str, match: str | None = None, **options: Any) -> ArtifactError:
    """Fetch a URL and return the error; require that the error has the URL, and that the cache has no artifacts.

    `options`: those of `make_store`.
    """
    with pytest.raises(ArtifactError, match=match) as error_info:
        make_store(root, **options).fetch(url)
    assert url in str(error_info.value)
    assert read_artifacts(root) == {}
    return error_info.value


class _ByteCounter(Progress):
    """Waits until a number of bytes has arrived."""

    def __init__(self) -> None:
        self._byte_count = 0
        self._condition = threading.Condition()

    def download_progress(self, url: str, done: int, total: int | None) -> None:  # noqa: ARG002
        with self._condition:
            self._byte_count = max(self._byte_count, done)
            self._condition.notify_all()

    def wait_for(self, byte_count: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._byte_count >= byte_count, LIMIT_SECONDS)


def break_off_fetch(
    root: Path, url: str, proxy: FaultProxy, stop: int, fault: Fault, configuration: Configuration | None = None
) -> str:
    """Fetch a file until a fault breaks the fetch off at a byte; return the error's message.

    `stop`: the first byte that does not arrive; all bytes before it arrive.
    """
    byte_counter = _ByteCounter()
    fault = replace(fault, from_byte=stop, max_uses=None, before_response=lambda: byte_counter.wait_for(stop))
    proxy.faults.insert(0, fault)
    # The clock advances by a second for each block, so that each block gives an update of the progress.
    policy = replace(QUICK_POLICY, now=itertools.count().__next__)
    with pytest.raises(ArtifactError) as error_info:
        make_store(root, configuration=configuration, policy=policy, progress=byte_counter).fetch(url)
    proxy.faults.remove(fault)
    proxy.reset_counts()
    return str(error_info.value)


def read_artifacts(root: Path) -> dict[str, bytes]:
    """Return the files that pass for artifacts, by name."""
    folder = root / "artifacts"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def list_partials(root: Path) -> list[str]:
    """Return the names of the files below `incoming/`, without their directories."""
    return sorted(path.name for path in (root / "incoming").rglob("*") if path.is_file())


def read_all_files(root: Path) -> dict[Path, bytes]:
    """Return the content of every file, for tests that search for secrets."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
