"""A store of modules that several machines share, queried after the local store, and filled after a compile.

    <url>/v1/<first two of key>/<key>.tar     an entry, as `module_cache.pack` makes it

Everybody who may write to the store decides what code runs on the machines that read from it; see
docs/how-to/artifacts.md. Entries are checked completely before use. A store that is unreachable or refuses gives a
note, never an error, and is not used for the rest of the run, so it costs one timeout.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from iree_gauntlet.artifacts.archive import Blocks
from iree_gauntlet.artifacts.object_stores import StoreLocation, open_store
from iree_gauntlet.artifacts.remote import remove_queries
from iree_gauntlet.engine.modules.module_cache import DamageError, compute_packed_size, pack, unpack
from iree_gauntlet.errors import ArtifactError, GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from obstore import GetResult

    from iree_gauntlet.engine.modules.module_cache import ModuleCache, ModuleEntry
    from iree_gauntlet.settings import Configuration


_LAYOUT = "v1"
_FILE_SCHEME = "file://"
# The limit is shorter than for an artifact, because a module can be compiled instead.
_STALL_SECONDS = 20.0
_RETRIES = 1
_CANCEL_POLL_SECONDS = 0.2
_CANCEL_MESSAGE = "cancelled while the shared cache was queried"
_BLOCK_BYTES = 1 << 20
# An object up to this size is uploaded from memory in one request; only such a request can refuse to overwrite.
_MAX_REQUEST_BYTES = 32 << 20
_PART_BYTES = 8 << 20
_MAX_CONCURRENT_PARTS = 4

_STATUS = re.compile(r"status code: (\d{3})")
_ERROR_CODE = re.compile(r"<Code>(\w+)</Code>")
# Azure and S3 report a missing object by these codes. Other codes mean that the container or bucket is missing.
_MISSING_OBJECT_CODES = frozenset({"BlobNotFound", "NoSuchKey"})

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SharedLookup:
    """The result of a query of the shared store; an entry that was found is now in the local store too."""

    entry: ModuleEntry | None = None
    has_response: bool = False
    note: str = ""


class _RemoteError(Exception):
    """The shared store cannot be reached, or it refuses a request."""


@dataclass(slots=True)
class SharedModules:
    """A shared store as one run uses it, which fills the store if `write`; may be used by several threads.

    Attributes:
        stall_timeout: seconds without a byte after which a request is abandoned.
    """

    url: str
    configuration: Configuration
    write: bool = False
    stall_timeout: float = _STALL_SECONDS
    # The first request holds this lock, so that only one thread waits for an unreachable store.
    _first_request_lock: threading.Lock = field(default_factory=threading.Lock)
    _location: StoreLocation | None = None
    _is_reachable: bool = False
    _is_off: bool = False
    _has_reported_error: bool = False
    _is_read_only: bool = False
    _damaged_keys: set[str] = field(default_factory=set)

    def find(
        self, key: str, cache: ModuleCache, name: str, roles: Collection[str], cancel_event: threading.Event
    ) -> SharedLookup:
        """Copy an entry, which must have files of these roles, into the local store; `name` explains later misses.

        Raises:
            GauntletError: the run was cancelled.
        """
        return run_cancellable(lambda: self._find(key, cache, name, roles), cancel_event, _CANCEL_MESSAGE)

    def offer(self, key: str, cache: ModuleCache, cancel_event: threading.Event) -> str:
        """Upload an entry of the local store, if writing is allowed; return a note, which is empty on success.

        An existing entry stays, unless this run has found it damaged.

        Raises:
            GauntletError: the run was cancelled.
        """
        if not self.write or self._is_off or self._is_read_only:
            return ""
        return run_cancellable(lambda: self._offer(key, cache), cancel_event, _CANCEL_MESSAGE)

    def _find(self, key: str, cache: ModuleCache, name: str, roles: Collection[str]) -> SharedLookup:
        try:
            response = self._query(key)
            if response is None:
                return SharedLookup(has_response=self._is_reachable)
            with cache.reserve_entry_folder(key) as folder:
                stream = Blocks(_read_blocks(response))
                hashes = unpack(stream, key, folder, roles=roles, size=response.meta["size"])
                publication = cache.adopt(folder, key, hashes, name)
            return SharedLookup(publication.entry, has_response=True, note=publication.note)
        except _RemoteError as error:
            with self._first_request_lock:
                is_repeat, self._is_off, self._has_reported_error = self._has_reported_error, True, True
            return SharedLookup(
                note="" if is_repeat else f"the shared cache {self.url} is not used in this run: {error}"
            )
        except DamageError as error:
            self._damaged_keys.add(key)
            return SharedLookup(has_response=True, note=f"{self.url}/{_make_path(key)} is not used: {error}")
        except OSError as error:
            # This is an error of the local disk, since errors of the store are wrapped in `_RemoteError`.
            return SharedLookup(has_response=True, note=f"the shared cache's module is not used: {error.strerror}")

    def _query(self, key: str) -> GetResult | None:
        """Return the object of an entry; None if the object is missing, or the store is disabled."""
        if self._is_reachable:
            return None if self._is_off else self._get(key)
        with self._first_request_lock:
            if self._is_off:
                return None
            try:
                response = self._get(key)
            except _RemoteError:
                self._is_off = True
                raise
            self._is_reachable = True
            return response

    def _get(self, key: str) -> GetResult | None:
        import obstore  # noqa: PLC0415 - a large library, which few runs need

        location = self._open()
        with _explain_remote_errors():
            try:
                return obstore.get(location.store, _make_remote_path(location, key))
            except FileNotFoundError as error:
                code = _ERROR_CODE.search(str(error))
                if code and code[1] not in _MISSING_OBJECT_CODES:
                    raise
                return None

    def _open(self) -> StoreLocation:
        if self._location is None:
            folder = Path(unquote(self.url.removeprefix(_FILE_SCHEME)))
            if self.url.startswith(_FILE_SCHEME) and not self.write and not folder.is_dir():
                # Do not create the folder, which would hide that nobody has mounted it.
                raise _RemoteError(f"there is no folder {folder}")
            try:
                self._location = open_store(
                    self.url, self.configuration, stall_timeout=self.stall_timeout, retries=_RETRIES
                )
            except ArtifactError as error:
                raise _RemoteError(error.message) from error
        return self._location

    def _offer(self, key: str, cache: ModuleCache) -> str:
        folder = cache.get_entry_folder(key)
        try:
            size = compute_packed_size(folder, key)
            self._put(key, folder, size)
        except _RemoteError as error:
            self._is_read_only = True
            return f"the shared cache {self.url} is not filled in this run: {error}"
        except DamageError as error:
            return f"not put into the shared cache: {error}"
        except FileNotFoundError:
            return "not put into the shared cache: the local one does not have it"
        except OSError as error:
            return f"not put into the shared cache: {error.strerror}"
        return ""

    def _put(self, key: str, folder: Path, size: int) -> None:
        import obstore  # noqa: PLC0415 - a large library, which few runs need

        location, must_replace = self._open(), key in self._damaged_keys
        path = _make_remote_path(location, key)
        if size <= _MAX_REQUEST_BYTES and not must_replace:
            content = b"".join(pack(folder, key))
            with _explain_remote_errors():
                if _create_object(location, path, content):
                    return
        if not must_replace:
            with _explain_remote_errors(), suppress(FileNotFoundError):
                obstore.head(location.store, path)
                return
        local_errors: list[DamageError | OSError] = []

        def blocks() -> Iterator[bytes]:
            try:
                yield from pack(folder, key)
            except (DamageError, OSError) as error:
                local_errors.append(error)
                raise

        try:
            with _explain_remote_errors():
                obstore.put(
                    location.store, path, blocks(), chunk_size=_PART_BYTES, max_concurrency=_MAX_CONCURRENT_PARTS
                )
        except _RemoteError:
            if local_errors:
                # Raise the local error itself, not the store's message about it.
                raise local_errors[0] from None
            raise
        self._damaged_keys.discard(key)


def shared_modules(configuration: Configuration, *, offline: bool) -> SharedModules | None:
    """Return the configured shared store; None if there is none, or if the network must not be used."""
    url = configuration.shared_modules
    if not url or (offline and not url.startswith(_FILE_SCHEME)):
        return None
    return SharedModules(url.rstrip("/"), configuration, write=configuration.fills_shared_modules)


def _create_object(location: StoreLocation, path: str, content: bytes) -> bool:
    """Create an object; return True if it exists now, False if the store cannot create without overwriting."""
    import obstore  # noqa: PLC0415 - a large library, which few runs need
    from obstore.exceptions import AlreadyExistsError, NotSupportedError  # noqa: PLC0415 - a large library, which few runs need

    try:
        obstore.put(location.store, path, content, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return True
    except (NotSupportedError, NotImplementedError):
        return False
    return True


def _read_blocks(response: GetResult) -> Iterator[bytes]:
    stream = iter(response.stream(min_chunk_size=_BLOCK_BYTES))
    while True:
        # Wrap only the request, because errors where the block is used are not errors of the store.
        with _explain_remote_errors():
            block = next(stream, None)
        if block is None:
            return
        yield bytes(block)


@contextmanager
def _explain_remote_errors() -> Iterator[None]:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

    try:
        yield
    except (BaseError, OSError) as error:
        raise _RemoteError(_describe_reason(error)) from error


def _make_path(key: str) -> str:
    return f"{_LAYOUT}/{key[:2]}/{key}.tar"


def _make_remote_path(location: StoreLocation, key: str) -> str:
    return f"{location.path}/{_make_path(key)}".lstrip("/")


def _describe_reason(error: Exception) -> str:
    """Return the message of an obstore error, shortened and without signatures."""
    text = str(error)
    status, code = _STATUS.search(text), _ERROR_CODE.search(text)
    if status:
        return f"HTTP {status[1]}" + (f" ({code[1]})" if code else "")
    return remove_queries(text.partition("\n")[0]).rpartition(" - ")[2]


def run_cancellable(work: Callable[[], _T], cancel_event: threading.Event, error: str) -> _T:
    """Return the result of a function; on cancellation, abandon its thread, which may be waiting for a server.

    Raises:
        GauntletError: the run was cancelled (with the text `error`), or `work` raised it.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as failure:  # noqa: BLE001 - raised again in the step's own thread
            future.set_exception(failure)

    threading.Thread(target=run, name="until cancelled", daemon=True).start()
    while not wait([future], _CANCEL_POLL_SECONDS).done:
        if cancel_event.is_set():
            raise GauntletError(error)
    return future.result()
