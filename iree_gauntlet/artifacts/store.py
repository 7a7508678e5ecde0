"""The store of artifacts: every file fetched once, verified, and remembered.

In the cache's folder:

    artifacts/<local name>   the files (`sources` says how names come about)
    incoming/                files on their way in, in a folder each; what a killed run has left is resumed
    registry.lock.txt        hashes learnt here, in the registry's format, for the user to commit
    verified/                which files were hashed, see `hashing`
    wheels/                  wheels that artifacts come out of
    locks/                   one lock a file

What is pinned in the registry (or else in the lock) must match: a file of another content is an error
and replaces nothing. A file that was changed on disk is noticed by its stamp, hashed, and fetched again
only if its hash is wrong. Seeded data has no pin: its URL says what it must be, and where no stamp does
(a cache that was moved, or a killed run), it is made once more, and compared.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.arrivals import Arrivals
from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.publishing import disk_errors, locked, publish, publishing
from iree_gauntlet.artifacts.registry_file import Entry, Pin, Registry
from iree_gauntlet.artifacts.sources import (
    FileSource,
    MadeSource,
    PypiSource,
    RandomSource,
    RemoteSource,
    Source,
    arrival_name,
    missing,
    parse_source,
)
from iree_gauntlet.artifacts.transfer import Policy
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.progress import Progress, Recorder
from iree_gauntlet.results import Fetched
from iree_gauntlet.settings import Configuration

if TYPE_CHECKING:
    from pathlib import Path


class ArtifactStore:
    """Artifacts of a cache; safe to share between threads, and between runs on one machine.

    Args:
        root: the cache's folder; made when something is written.
        registry: hashes that people have committed.
        offline: never use the network; what is not there is an error.
        stall_timeout: seconds without a byte after which a connection is given up, without a `policy`.
        progress: receives bytes and notes.
        configuration: mirrors, and credentials for stores.
        policy: how hard to try; by default what the configuration says.
    """

    def __init__(
        self,
        root: Path,
        registry: Registry,
        *,
        offline: bool = False,
        stall_timeout: float = 60.0,
        progress: Progress | None = None,
        configuration: Configuration | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.root = root
        self.registry = registry
        self.learnt = LearntHashes(root / "registry.lock.txt")
        self.configuration = configuration or Configuration()
        self._artifacts = root / "artifacts"
        self.progress: Progress = progress or Progress()
        downloads = self.configuration.downloads
        policy = policy or Policy(downloads.connections, retries=downloads.retries, stall_timeout=stall_timeout)
        self._leases = Leases(root)
        self._arrivals = Arrivals(root, self.configuration, policy, offline=offline)
        self.verified = VerifiedHashes(root / "verified")
        # A plan asks for the path and the hash of each of many URLs, one after the other.
        self._located = functools.lru_cache(maxsize=16)(self._locate)
        # In a cache that cannot be written, each step asks for it.
        self._seeded_hash = functools.lru_cache(maxsize=1024)(_seeded_hash)

    def path(self, url: str) -> Path:
        """Where the file is or will be; decided from the URL alone.

        Raises:
            ArtifactError: if the URL is malformed or of an unknown scheme.
        """
        return self._located(url)[1]

    def known_hash(self, url: str) -> str:
        """SHA-256 that the file has or must have; empty where it is not known yet. Reads no artifact.

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
            ArtifactError: if it is not available, or is not what the registry says.
        """
        started = time.perf_counter()
        recorder = Recorder(self.progress)
        source, path = self._located(url)
        if isinstance(source, FileSource):
            sha256, cached = self._hash(url, path), True
        else:
            # Before it is looked for: what is in use is not collected.
            self._leases.use(path)
            try:
                sha256, cached = self._present_or_made(source, path, recorder)
            except ArtifactError as error:
                error.notes = tuple(recorder.notes)
                raise
            finally:
                self.progress.download_finished(url)
        seconds = round(time.perf_counter() - started, 6)
        return Fetched(url, path, path.stat().st_size, seconds, cached, sha256, tuple(recorder.notes))

    def adopt(self, url: str, temporary: Path, sha256: str, progress: Progress) -> None:
        """Take a file that was brought from elsewhere (an archive) into the store, unless the store has it.

        Args:
            url: what it is the file of.
            temporary: where it is, on the store's file system; taken from there.
            sha256: what the caller has found it to be.
            progress: receives a note of a new hash.

        Raises:
            ArtifactError: it is not what the registry says, or not from the network; nothing is replaced.
        """
        source, path = self._located(url)
        if isinstance(source, FileSource):
            raise ArtifactError(url, f"a file of this machine's, which no store keeps: {url}", "Copy it by hand.")
        if isinstance(source, RandomSource):
            raise ArtifactError(url, f"seeded data, which no archive has: {url}", "It is made where it is needed.")
        self._leases.use(path)
        with locked(self.root / "locks" / f"{arrival_name(source.local_name)}.lock", url, progress):
            if self._usable(source, path, progress):
                return
            pin = self._pin(source)
            if pin is not None and pin.sha256 != sha256:
                what = f"wrong content: {url} has sha256 {sha256}, {pin.path} says {pin.sha256}; nothing was replaced"
                raise ArtifactError(url, what, "Make the archive again from a cache that `cache.verify` calls good.")
            with disk_errors(path.parent, url):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.chmod(0o644)
                publish(temporary, path)
            self.verified.remember(path, sha256)
            if pin is None:
                self._record(source, sha256, progress)

    def _locate(self, url: str) -> tuple[Source, Path]:
        source = parse_source(url)
        return source, source.path if isinstance(source, FileSource) else self._artifacts / source.local_name

    def _pin(self, source: Source) -> Pin | None:
        if not isinstance(source, RemoteSource | PypiSource):
            return None
        name = source.local_name
        return self.registry.pin(name, "registry") or self.learnt.registry().pin(name, "lock")

    def _hash(self, url: str, path: Path, expected: str = "") -> str:
        try:
            return self.verified.sha256(path, expected)
        except FileNotFoundError as error:
            raise ArtifactError(url, *missing(path)) from error
        except OSError as error:
            what = f"cannot read {path}: {error.strerror}"
            raise ArtifactError(url, what, f"Check the path and its rights; it is needed for {url}") from error

    def _present_or_made(self, source: MadeSource, path: Path, progress: Recorder) -> tuple[str, bool]:
        """SHA-256, and whether it was there before."""
        sha256 = self._usable(source, path, Recorder(Progress()))
        if sha256:
            return sha256, True
        with locked(self.root / "locks" / f"{arrival_name(source.local_name)}.lock", source.url, progress):
            # Another run may have fetched it while this one waited for the lock.
            sha256 = self._usable(source, path, progress)
            if sha256:
                return sha256, True
            return self._make(source, path, progress), False

    def _usable(self, source: MadeSource, path: Path, progress: Progress) -> str:
        """SHA-256 of the file that is there; empty where there is none, or one that must go."""
        if not path.is_file():
            return ""
        pin = self._pin(source)
        # Without a pin, what it was when it was last hashed is what it must be.
        expected = pin.sha256 if pin else self.verified.last(path)
        if not expected and isinstance(source, RandomSource):
            expected = self._seeded_hash(source.url)
        sha256 = self._hash(source.url, path, expected)
        if expected and sha256 != expected:
            digests = f"sha256 {sha256[:12]}…, not {expected[:12]}…"
            progress.note(source.url, f"{path} is not what it should be ({digests}): getting it again")
            return ""
        if pin is None:
            self._record(source, sha256, progress)
        self.verified.touch(path)
        return sha256

    def _make(self, source: MadeSource, path: Path, progress: Recorder) -> str:
        """Has a file brought, checked and put in its place."""
        pin = self._pin(source)
        with disk_errors(path.parent, source.url), self._arrivals.arriving(source, pin, progress) as arrived:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Pooch's temporary files are for their owner alone; a cache may be shared.
            arrived.path.chmod(0o644)
            publish(arrived.path, path)
        progress.notes[:0] = arrived.notes
        self.verified.remember(path, arrived.sha256)
        if pin is None:
            self._record(source, arrived.sha256, progress)
        return arrived.sha256

    def _record(self, source: Source, sha256: str, progress: Progress) -> None:
        """Pin a hash that was learnt here; seeded data needs no pin."""
        if not isinstance(source, RemoteSource | PypiSource):
            return
        entry = Entry(source.local_name, sha256, source.url)
        if self.learnt.add(entry, self.root / "locks" / "registry.lock", progress):
            message = f"sha256 {sha256} is now pinned in {self.learnt.path} (`cache.lock` puts it into the registry)"
            progress.note(source.url, message)


def _seeded_hash(url: str) -> str:
    """SHA-256 that the file of a `random://` URL has, found by making its content."""
    # Brings NumPy, which only sources of this kind need.
    from iree_gauntlet.artifacts.seeded import seeded_content  # noqa: PLC0415

    return hashlib.sha256(seeded_content(url)).hexdigest()


class LearntHashes:
    """The registry of hashes learnt here, read again only when its file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = functools.lru_cache(maxsize=1)(lambda _state: Registry.read(path))

    def registry(self) -> Registry:
        """As the file has it now; empty where there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return Registry(self.path)
        return self._read((status.st_size, status.st_mtime_ns, status.st_ino))

    def add(self, entry: Entry, lock: Path, progress: Progress) -> bool:
        """Add an entry; False where the cache is read-only and keeps nothing."""
        if self.path.parent.is_dir() and not os.access(self.path.parent, os.W_OK):
            return False
        with locked(lock, entry.url, progress), publishing(self.path, entry.url) as temporary:
            temporary.write_text(Registry.read(self.path).with_entries([entry]).text(), encoding="utf-8")
        return True
