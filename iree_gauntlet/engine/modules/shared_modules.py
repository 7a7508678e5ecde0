"""A store of modules that several machines share: asked after the local one, and filled after a compile.

    <url>/v1/<first two of key>/<key>.tar     an entry, as `module_cache.pack` makes it

Whoever may write there decides what code runs on the machines that read there; see docs/how-to/artifacts.md. What
is read is checked whole before it is used. A store that cannot be reached or refuses is a note, never an error,
and is left alone for the rest of the run: it costs one timeout.
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
from iree_gauntlet.artifacts.remote import without_queries
from iree_gauntlet.engine.modules.module_cache import DamageError, pack, packed_bytes, unpack
from iree_gauntlet.errors import ArtifactError, GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from obstore import GetResult

    from iree_gauntlet.engine.modules.module_cache import ModuleCache, ModuleEntry
    from iree_gauntlet.settings import Configuration


_LAYOUT = "v1"
_FILE = "file://"
# A module can be compiled instead, so less is waited for than for an artifact.
_STALL_SECONDS = 20.0
_RETRIES = 1
_CANCEL_POLL_SECONDS = 0.2
_CANCELLED = "cancelled while the shared cache was asked"
_BLOCK_BYTES = 1 << 20
# What goes into one request, which alone can ask that nothing is replaced; it is in memory as a whole.
_ONE_REQUEST_BYTES = 32 << 20
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
# What Azure and S3 call an object that is not there. Another code says that the container or bucket is not.
_NO_OBJECT = frozenset({"BlobNotFound", "NoSuchKey"})

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SharedLookup:
    """The result of a look into the shared store: an entry that is in the local one too now, or none."""

    entry: ModuleEntry | None = None
    asked: bool = False
    note: str = ""


class _RemoteError(Exception):
    """The store cannot be reached, or refuses."""


@dataclass(slots=True)
class SharedModules:
    """A shared store, for one run, which fills it where it may `write`; may be used by several threads.

    Attributes:
        stall_timeout: seconds without a byte after which it is given up.
    """

    url: str
    configuration: Configuration
    write: bool = False
    stall_timeout: float = _STALL_SECONDS
    # Held for the first request, so that one thread alone waits for a store that is not there.
    _first: threading.Lock = field(default_factory=threading.Lock)
    _location: StoreLocation | None = None
    _answers: bool = False
    _failed: bool = False
    _reported: bool = False
    _unwritable: bool = False
    _damaged: set[str] = field(default_factory=set)

    def find(
        self, key: str, cache: ModuleCache, name: str, roles: Collection[str], cancelled: threading.Event
    ) -> SharedLookup:
        """Get an entry, which must have files of these roles, into the local store; `name` explains later misses.

        Raises:
            GauntletError: the run was cancelled.
        """
        return until_cancelled(lambda: self._find(key, cache, name, roles), cancelled, _CANCELLED)

    def offer(self, key: str, cache: ModuleCache, cancelled: threading.Event) -> str:
        """Put an entry of the local store there, where this is allowed; a note, empty where all is well.

        One that is there already stays, unless this run has found it damaged.

        Raises:
            GauntletError: the run was cancelled.
        """
        if not self.write or self._failed or self._unwritable:
            return ""
        return until_cancelled(lambda: self._offer(key, cache), cancelled, _CANCELLED)

    def _find(self, key: str, cache: ModuleCache, name: str, roles: Collection[str]) -> SharedLookup:
        try:
            answer = self._answer(key)
            if answer is None:
                return SharedLookup(asked=self._answers)
            with cache.incoming(key) as folder:
                stream = Blocks(_read_blocks(answer))
                hashes = unpack(stream, key, folder, roles=roles, size=answer.meta["size"])
                published = cache.adopt(folder, key, hashes, name)
            return SharedLookup(published.entry, asked=True, note=published.note)
        except _RemoteError as error:
            with self._first:
                reported, self._failed, self._reported = self._reported, True, True
            return SharedLookup(
                note="" if reported else f"the shared cache {self.url} is not used in this run: {error}"
            )
        except DamageError as error:
            self._damaged.add(key)
            return SharedLookup(asked=True, note=f"{self.url}/{_make_path(key)} is not used: {error}")
        except OSError as error:
            # Of the local disk: those of the store are wrapped.
            return SharedLookup(asked=True, note=f"what the shared cache has is not used: {error.strerror}")

    def _answer(self, key: str) -> GetResult | None:
        """The object of an entry; None where it is not there, or the store is not to be asked."""
        if self._answers:
            return None if self._failed else self._get(key)
        with self._first:
            if self._failed:
                return None
            try:
                found = self._get(key)
            except _RemoteError:
                self._failed = True
                raise
            self._answers = True
            return found

    def _get(self, key: str) -> GetResult | None:
        import obstore  # noqa: PLC0415 - a large library, which few runs need

        location = self._open()
        with _explain_remote_errors():
            try:
                return obstore.get(location.store, _make_remote_path(location, key))
            except FileNotFoundError as error:
                code = _CODE.search(str(error))
                if code and code[1] not in _NO_OBJECT:
                    raise
                return None

    def _open(self) -> StoreLocation:
        if self._location is None:
            folder = Path(unquote(self.url.removeprefix(_FILE)))
            if self.url.startswith(_FILE) and not self.write and not folder.is_dir():
                # It would be made, and so hide that nobody has mounted it.
                raise _RemoteError(f"there is no folder {folder}")
            try:
                self._location = open_store(
                    self.url, self.configuration, stall_timeout=self.stall_timeout, retries=_RETRIES
                )
            except ArtifactError as error:
                raise _RemoteError(error.what) from error
        return self._location

    def _offer(self, key: str, cache: ModuleCache) -> str:
        folder = cache.folder_of(key)
        try:
            size = packed_bytes(folder, key)
            self._put(key, folder, size)
        except _RemoteError as error:
            self._unwritable = True
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

        location, replaces = self._open(), key in self._damaged
        path = _make_remote_path(location, key)
        if size <= _ONE_REQUEST_BYTES and not replaces:
            content = b"".join(pack(folder, key))
            with _explain_remote_errors():
                if _is_settled(location, path, content):
                    return
        if not replaces:
            with _explain_remote_errors(), suppress(FileNotFoundError):
                obstore.head(location.store, path)
                return
        ours: list[DamageError | OSError] = []

        def blocks() -> Iterator[bytes]:
            try:
                yield from pack(folder, key)
            except (DamageError, OSError) as error:
                ours.append(error)
                raise

        try:
            with _explain_remote_errors():
                obstore.put(location.store, path, blocks(), chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        except _RemoteError:
            if ours:
                # What went wrong on this side, and not the store's words of it.
                raise ours[0] from None
            raise
        self._damaged.discard(key)


def shared_modules(configuration: Configuration, *, offline: bool) -> SharedModules | None:
    """The shared store that is configured; None where there is none, or where the network is not to be touched."""
    url = configuration.shared_modules
    if not url or (offline and not url.startswith(_FILE)):
        return None
    return SharedModules(url.rstrip("/"), configuration, write=configuration.fills_shared_modules)


def _is_settled(location: StoreLocation, path: str, content: bytes) -> bool:
    """Whether an object is there now, made by us or before; False where a store cannot be asked to replace nothing."""
    import obstore  # noqa: PLC0415 - a large library, which few runs need
    from obstore.exceptions import AlreadyExistsError, NotSupportedError  # noqa: PLC0415 - a large library, which few runs need

    try:
        obstore.put(location.store, path, content, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return True
    except (NotSupportedError, NotImplementedError):
        return False
    return True


def _read_blocks(answer: GetResult) -> Iterator[bytes]:
    stream = iter(answer.stream(min_chunk_size=_BLOCK_BYTES))
    while True:
        # Around the request alone: what goes wrong where the block is used is not the store's.
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
    """What an error of obstore's says, in a few words and without signatures."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status:
        return f"HTTP {status[1]}" + (f" ({code[1]})" if code else "")
    return without_queries(text.partition("\n")[0]).rpartition(" - ")[2]


def until_cancelled(work: Callable[[], _T], cancelled: threading.Event, error: str) -> _T:
    """What the work returns; it is left behind on its thread when the run is cancelled, as a silent server holds it.

    Raises:
        GauntletError: `error`, as the run was cancelled; or what the work raises.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as failure:  # noqa: BLE001 - raised again in the step's own thread
            future.set_exception(failure)

    threading.Thread(target=run, name="until cancelled", daemon=True).start()
    while not wait([future], _CANCEL_POLL_SECONDS).done:
        if cancelled.is_set():
            raise GauntletError(error)
    return future.result()
