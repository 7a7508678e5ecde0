"""The store of compiled modules: content-addressed, safe to share, safe to delete at any time.

    <cache>/modules/<first two of key>/<key>/entry.json, <role>...
    <cache>/modules/by-name/<name>.json     what was last compiled under a name, to explain a miss
    <cache>/modules/making/                 entries being written, and damaged ones being removed

An entry appears by one rename, so it is whole or not there. `entry.json` carries its own checksum and that of every
file; a lookup checks them all, and damage is a miss. A file that a process has checked once is known to it by device,
inode, size and times, and not hashed again; for a large file the same is kept on disk (`artifacts/hashing`). So
whatever is written to a file is seen. A hard link, which changes a time, too, is noted where the store makes it; where
a run's folder is deleted, its large files are hashed once more. What changes on the disk by itself is seen in a small
file; in a large one `cache.verify` sees it. The time of modification of `entry.json` is that of the entry's last use,
to the hour.

Files pass between the store and a run's folder as hard links where the file system allows. A writer to the run's file
would thus write into the store: that is damage, which the next lookup sees. The files stay writable, so that a run's
compile command can be pasted and run again as it stands.

An entry as one archive has `entry.json`, then the files by role, in the order of their names. What is unpacked is
believed in nothing: the seal, the key that the ingredients make, the names, and every file's size and SHA-256 are
checked before anybody gets to see it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.archive import (
    BLOCK_BYTES,
    END,
    ArchiveReader,
    DamagedArchiveError,
    Readable,
    archive_bytes,
    member,
)
from iree_gauntlet.artifacts.hashing import VerifiedHashes, hash_file
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.engine.modules.module_key import describe_changes, format_canonical_json, make_key
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.system.atomic import put_folder, reserve_file, reserve_folder, write_atomic
from iree_gauntlet.system.file_lock import LockFile
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path


_LOCK_POLL_SECONDS = 0.05
# From this size on, that a file was hashed is kept on disk. To read such a stamp costs as much as to hash 50 kB;
# at 16 MB a module is hashed in 10 ms, and is seldom larger.
_LARGE_BYTES = 16 << 20
_USE_SECONDS = 3600.0
_UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ENTRY_FORMAT = 1
ENTRY_FILE = "entry.json"

_ROLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}(?:\.[a-z0-9_-]{1,30}){0,3}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"format", "key", "name", "created", "ingredients", "metadata", "files"}
_MOST_FILES = 16
# Most of it are the compiler's warnings, of which 64 KiB are kept, and flags.
_LONGEST_ENTRY_FILE = 4 << 20


class DamageError(Exception):
    """An entry is not what was written, or not what it should be; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class EntryFile:
    """What an entry says of a file of its."""

    sha256: str
    bytes: int


def list_files(document: dict[str, Any]) -> dict[str, EntryFile]:
    """The files of an entry by role, in the order of their names."""
    return {role: EntryFile(**file) for role, file in sorted(document["files"].items())}


def is_key(text: str) -> bool:
    """Whether a text can be a key."""
    return _SHA256.fullmatch(text) is not None


def _is_role(text: str) -> bool:
    """Whether a text can be the role, and so the name, of a file in an entry."""
    return _ROLE.fullmatch(text) is not None and text != ENTRY_FILE


def sealed(document: dict[str, Any]) -> bytes:
    """The content of entry.json: the entry, and its checksum."""
    checksum = hashlib.sha256(format_canonical_json(document)).hexdigest()
    return format_canonical_json({"checksum": checksum, "entry": document}) + b"\n"


def open_sealed(data: bytes, key: str) -> dict[str, Any]:
    """The entry that this machine has sealed.

    Raises:
        DamageError: it is not what was written, or another one's.
    """
    try:
        document: dict[str, Any] = json.loads(data)["entry"]
        # The bytes themselves are compared, so that no changed byte is overlooked.
        intact = data == sealed(document)
        ours = intact and document["format"] == _ENTRY_FORMAT and document["key"] == key
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = ours = False
    if not intact:
        raise DamageError(f"{ENTRY_FILE} is not as it was written")
    if not ours:
        raise DamageError(f"{ENTRY_FILE} belongs to another key or format")
    for role in document["files"]:
        if not _is_role(role):
            raise DamageError(f"{ENTRY_FILE} names {role!r} as a file")
    return document


def open_foreign(data: bytes, key: str) -> dict[str, Any]:
    """The entry that some machine has sealed: a seal anybody can make, so that every field is looked at.

    Raises:
        DamageError: a field is not as this toolkit writes it, or the ingredients make another key.
    """
    try:
        document = open_sealed(data, key)
        # Lone surrogates, which JSON can write and no file system and no terminal takes.
        json.dumps(document, ensure_ascii=False).encode()
        valid = _is_valid(document)
        made = valid and make_key(document["ingredients"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        valid, made = False, ""
    if not valid:
        raise DamageError(f"{ENTRY_FILE} has fields that are not as they should be")
    if made != key:
        raise DamageError(f"{ENTRY_FILE} names ingredients that make another key")
    return document


def _is_valid(document: dict[str, Any]) -> bool:
    files, metadata, ingredients = document["files"], document["metadata"], document["ingredients"]
    texts = [document["name"], document["created"], metadata.get("diagnostics", ""), metadata.get("command", "")]
    statistics, notes = metadata.get("statistics", {}), metadata.get("notes", [])
    return (
        document.keys() == _FIELDS
        and all(isinstance(text, str) for text in (*texts, *notes, *ingredients.values()))
        and all(value is None or type(value) in (int, float) for value in statistics.values())
        and isinstance(notes, list)
        and 0 < len(files) <= _MOST_FILES
        and all(file.keys() == {"sha256", "bytes"} for file in files.values())
        and all(_SHA256.fullmatch(file["sha256"]) for file in files.values())
        and all(type(file["bytes"]) is int and file["bytes"] >= 0 for file in files.values())
    )


def pack(folder: Path, key: str) -> Iterator[bytes]:
    """An entry's folder as an archive, in blocks; every file is hashed on the way.

    Raises:
        DamageError: the entry is not what was written.
    """
    data = (folder / ENTRY_FILE).read_bytes()
    document = open_foreign(data, key)
    try:
        yield from member(ENTRY_FILE, len(data), [data])
        for role, file in list_files(document).items():
            yield from member(role, file.bytes, _read_checked(folder / role, file.sha256))
    except DamagedArchiveError as error:
        raise DamageError(str(error)) from error
    yield END


def packed_bytes(folder: Path, key: str) -> int:
    """The size of the archive that `pack` makes.

    Raises:
        DamageError: the entry is not what was written.
    """
    data = (folder / ENTRY_FILE).read_bytes()
    return _compute_bytes(data, list_files(open_foreign(data, key)))


def unpack(
    stream: Readable, key: str, folder: Path, *, roles: Collection[str] = (), size: int | None = None
) -> dict[str, str]:
    """Unpack the entry of a key into an empty folder, which is worth nothing where this raises; SHA-256 by role.

    Args:
        stream: the archive.
        key: of the entry that it must be.
        folder: gets `entry.json` and the files.
        roles: what it must have.
        size: of the archive in bytes, where it is known.

    Raises:
        DamageError: it is not a whole entry of this key.
        OSError: the folder cannot be written, or has no room.
    """
    reader = ArchiveReader(stream)
    try:
        data = reader.first(ENTRY_FILE, _LONGEST_ENTRY_FILE)
        files = list_files(open_foreign(data, key))
        missing = sorted(set(roles) - files.keys())
        if missing:
            raise DamageError(f"it has no {' and no '.join(missing)}")
        whole = _compute_bytes(data, files)
        if size not in (None, whole):
            raise DamageError(f"it has {size} bytes instead of {whole}")
        if whole > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        for role, file in files.items():
            if _write(reader.member(role, file.bytes), folder / role) != file.sha256:
                raise DamageError(f"the checksum of {role} does not match")
        reader.end()
    except DamagedArchiveError as error:
        raise DamageError(str(error)) from error
    write_atomic(folder / ENTRY_FILE, data)
    return {role: file.sha256 for role, file in files.items()}


def _compute_bytes(data: bytes, files: dict[str, EntryFile]) -> int:
    return archive_bytes([len(data), *(file.bytes for file in files.values())])


def _read_checked(path: Path, sha256: str) -> Iterator[bytes]:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            yield block
    if digest.hexdigest() != sha256:
        raise DamageError(f"the checksum of {path.name} does not match")


def _write(blocks: Iterator[bytes], path: Path) -> str:
    """Write a new file through to the disk; its SHA-256."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for block in blocks:
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o644)
    return digest.hexdigest()


class EntryGoneError(GauntletError):
    """An entry that was there when it was looked up, and is not any more."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"module {key[:12]} was removed from the cache while it was used", "run again: it will be compiled again"
        )


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """A module in the store.

    Attributes:
        files: where each of its files lies, by role. Not to be written to; `materialise` puts them elsewhere.
        name: whom it was compiled for first.
        ingredients: what its key was made from.
        created: when (ISO 8601, UTC).
    """

    key: str
    files: dict[str, Path]
    metadata: dict[str, Any]
    name: str
    ingredients: dict[str, str]
    created: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the store has now; the note says why it has none, or what else is worth knowing of it."""

    entry: ModuleEntry | None
    note: str = ""


@dataclass(slots=True)
class ModuleCache:
    """The store in a cache folder, which need not exist yet. May be used by several threads.

    The clock tells seconds since 1970, to compare with when an entry was last used.
    """

    folder: Path
    clock: Callable[[], float] = time.time
    _checked: dict[tuple[int, FileState], str] = field(default_factory=dict)
    _leases: Leases = field(init=False)

    def __post_init__(self) -> None:
        self._leases = Leases(self.folder)

    @property
    def _modules(self) -> Path:
        return self.folder / "modules"

    @property
    def _verified(self) -> VerifiedHashes:
        return VerifiedHashes(self.folder / "verified")

    def lookup(self, key: str) -> Lookup:
        """Find an entry and check it; a damaged one counts as missing, and gives way to the next that is published."""
        place = self.folder_of(key)
        if place.is_dir():
            # Before it is read: what is in use is not collected.
            self._leases.use(place)
        try:
            entry, hashes = _read_entry(key, place)
            changed = (role for role, path in entry.files.items() if self._hash(path, hashes[role]) != hashes[role])
            if role := next(changed, ""):
                return Lookup(None, f"damaged: the checksum of {role} does not match")
            _note_use(place, self.clock())
            return Lookup(entry)
        except FileNotFoundError:
            if not place.exists():
                return Lookup(None)
            what = "a file is missing"
        except DamageError as damage:
            what = str(damage)
        except OSError as error:
            return Lookup(None, f"unreadable: {error.strerror}")
        return Lookup(None, f"damaged: {what}")

    def materialise(self, entry: ModuleEntry, role: str, destination: Path) -> None:
        """Put a file of an entry at a path, replacing what is there; the folder must exist.

        Raises:
            EntryGoneError: the store was cleared since the lookup.
        """
        source = entry.files[role]
        try:
            before = source.stat()
            _place(source, destination)
            after = source.stat()
        except FileNotFoundError:
            if destination.parent.is_dir():
                raise EntryGoneError(entry.key) from None
            raise
        sha256 = self._checked.get(_read_stamp(before))
        if sha256 and FileState.of(before).is_linked_only(FileState.of(after)):
            self._remember(source, after, sha256)

    def list_entries(self) -> Iterator[ModuleEntry]:
        """Every entry that there is, its files unchecked; without damaged ones, which `cache.verify` reports."""
        for path in self._modules.glob(f"??/*/{ENTRY_FILE}"):
            # Or removed meanwhile.
            with contextlib.suppress(OSError, DamageError):
                yield _read_entry(path.parent.name, path.parent)[0]

    def publish(
        self,
        files: Mapping[str, Path],
        *,
        name: str,
        ingredients: Mapping[str, str],
        metadata: Mapping[str, Any],
        created: datetime,
    ) -> Lookup:
        """Put a module into the store.

        The module exists already, so nothing that is wrong with the store is an error: a read-only or full
        one gives a note. Where another process was first, its entry stands.

        Args:
            files: what to keep, by role, which is a plain lower-case file name. They share their bytes with the store
                where the file system allows.
            name: the step's id, to explain later misses by.
            ingredients: what the key is made from.
            metadata: strict JSON.
            created: now, with a time zone.
        """
        key = make_key(ingredients)
        for role in files:
            if not _is_role(role):
                raise ValueError(f"{role!r} is no role")
        sources = {role: path.resolve(strict=True) for role, path in files.items()}
        document: dict[str, Any] = {
            "format": _ENTRY_FORMAT,
            "key": key,
            "name": name,
            "created": created.isoformat(timespec="milliseconds"),
            "ingredients": dict(ingredients),
            "metadata": dict(metadata),
        }
        format_canonical_json(document)
        try:
            with self.incoming(key) as temporary:
                described: dict[str, EntryFile] = {}
                for role, source in sources.items():
                    path = temporary / role
                    link_or_copy(source, path)
                    path.chmod(0o644)
                    with path.open("rb") as stream:
                        os.fsync(stream.fileno())
                    described[role] = EntryFile(hash_file(path), path.stat().st_size)
                document |= {"files": {role: asdict(said) for role, said in described.items()}}
                write_atomic(temporary / ENTRY_FILE, sealed(document))
                hashes = {role: said.sha256 for role, said in described.items()}
                publication = self._put_in_place(temporary, key, hashes)
        except OSError as error:
            return Lookup(None, f"not kept in the cache: {error.strerror}")
        return self._name_entry(publication, name, key, ingredients)

    @contextlib.contextmanager
    def incoming(self, key: str) -> Iterator[Path]:
        """A folder of nobody else's, in which an entry can be put together for `adopt`; gone afterwards."""
        with self._reserve(key) as temporary:
            temporary.mkdir(0o700)
            yield temporary

    def adopt(self, temporary: Path, key: str, hashes: Mapping[str, str], name: str = "") -> Lookup:
        """Put an entry into the store that was made elsewhere, and whose every file was checked.

        Args:
            temporary: its folder, out of `incoming`.
            key: of the entry.
            hashes: the SHA-256 that its files turned out to have, by role.
            name: as for `publish`; by default the entry's own.
        """
        try:
            publication = self._put_in_place(temporary, key, hashes)
        except OSError as error:
            return Lookup(None, f"not kept in the cache: {error.strerror}")
        entry = publication.entry
        return self._name_entry(publication, name or entry.name, key, entry.ingredients) if entry else publication

    def remove(self, key: str) -> None:
        """Take an entry out in one rename, then delete it at leisure; one that is not there is not missed."""
        with self._reserve(key) as aside, contextlib.suppress(FileNotFoundError):
            self.folder_of(key).rename(aside)

    @contextlib.contextmanager
    def making(self, key: str, cancelled: threading.Event) -> Iterator[float]:
        """Be the one process that makes a module: others that want it wait until the block is left.

        Yields the seconds that it waited. A store in which no lock can be made keeps nobody out: it can keep no module
        either.

        Raises:
            WaitCancelledError: the run was cancelled while it waited.
        """
        folder, began = self._modules / "making", time.monotonic()
        lock = LockFile(folder / f"{key}.lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            while not lock.acquire_now():
                if cancelled.wait(_LOCK_POLL_SECONDS):
                    raise WaitCancelledError(f"cancelled while another process makes module {key[:12]}")
        except OSError:
            yield 0.0
            return
        try:
            yield time.monotonic() - began
        finally:
            # Who waits for it sees that it is gone, and makes it again.
            lock.remove()

    def explain_miss(self, name: str, ingredients: Mapping[str, str]) -> str:
        """Why a module is not in the store: what changed since it was last compiled under this name."""
        try:
            record = json.loads(self._name_file(name).read_bytes())
            before = {str(key): str(value) for key, value in record["ingredients"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return "never compiled here"
        return describe_changes(before, ingredients) or "was compiled here, but is no longer in the cache"

    def folder_of(self, key: str) -> Path:
        """Where an entry lies, or would lie."""
        if not is_key(key):
            raise ValueError(f"{key!r} is no key")
        return self._modules / key[:2] / key

    def _reserve(self, key: str) -> contextlib.AbstractContextManager[Path]:
        making = self._modules / "making"
        making.mkdir(parents=True, exist_ok=True)
        return reserve_folder(self.folder_of(key), making)

    def _name_entry(self, publication: Lookup, name: str, key: str, ingredients: Mapping[str, str]) -> Lookup:
        """Note what was last made under a name."""
        try:
            by_name = self._name_file(name)
            by_name.parent.mkdir(exist_ok=True)
            write_atomic(by_name, format_canonical_json({"key": key, "ingredients": dict(ingredients)}))
        except OSError as error:
            return Lookup(publication.entry, f"a later miss cannot be explained: {error.strerror}")
        return publication

    def _name_file(self, name: str) -> Path:
        # The hash keeps names apart that differ in what a file name cannot hold, or in case alone.
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        return self._modules / "by-name" / f"{re.sub(r'[^A-Za-z0-9._@-]', '_', name)[:80]}-{digest}.json"

    def _hash(self, path: Path, expected: str) -> str:
        status = path.stat()
        stamp = _read_stamp(status)
        known = self._checked.get(stamp)
        if known is None:
            large = status.st_size >= _LARGE_BYTES
            known = self._verified.sha256(path, expected) if large else hash_file(path)
            self._checked[stamp] = known
        return known

    def _put_in_place(self, temporary: Path, key: str, hashes: Mapping[str, str]) -> Lookup:
        temporary.chmod(0o755)
        place = self.folder_of(key)
        place.parent.mkdir(exist_ok=True)
        # Twice: what stands there may turn out to be damaged, and is removed then.
        for _ in range(2):
            if put_folder(temporary, place):
                # Nobody else has written them, and they were hashed just now.
                for role, sha256 in hashes.items():
                    with contextlib.suppress(FileNotFoundError):
                        self._remember(place / role, (place / role).stat(), sha256)
            found = self.lookup(key)
            if found.entry is not None:
                return Lookup(found.entry)
            self.remove(key)
        return Lookup(None, f"not kept in the cache: {found.note or 'it is gone again'}")

    def _remember(self, path: Path, status: os.stat_result, sha256: str) -> None:
        self._checked[_read_stamp(status)] = sha256
        if status.st_size >= _LARGE_BYTES:
            self._verified.remember(path, sha256)


def _read_entry(key: str, place: Path) -> tuple[ModuleEntry, dict[str, str]]:
    """An entry, and the SHA-256 that its files should have, by role."""
    document = open_sealed((place / ENTRY_FILE).read_bytes(), key)
    hashes = {role: file.sha256 for role, file in list_files(document).items()}
    files = {role: place / role for role in hashes}
    said = {name: document[name] for name in ("metadata", "name", "ingredients", "created")}
    return ModuleEntry(key=key, files=files, **said), hashes


def _read_stamp(status: os.stat_result) -> tuple[int, FileState]:
    return status.st_dev, FileState.of(status)


def _note_use(place: Path, now: float) -> None:
    """Set the time of an entry's last use, at most once an hour."""
    file = place / ENTRY_FILE
    try:
        if now - file.stat().st_mtime > _USE_SECONDS:
            # Without a time, so that whoever may write the file may do it, not its owner alone.
            os.utime(file)
    except FileNotFoundError:
        # Somebody cleared the cache: who wants a file of the entry will see it.
        return
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise


def _place(source: Path, destination: Path) -> None:
    """Put a file at a path by hard link or copy, in one step, replacing what is there."""
    try:
        os.link(source, destination)
    except FileNotFoundError:
        raise
    except OSError:
        # Something is there already, or the file system has no links.
        with reserve_file(destination) as temporary:
            link_or_copy(source, temporary)
            temporary.replace(destination)


def link_or_copy(source: Path, destination: Path) -> None:
    """Put a file at a new path, by a hard link where that can be."""
    try:
        os.link(source, destination)
    except FileNotFoundError:
        raise
    except OSError:
        # Another file system, one without links, another owner's file, or too many links.
        shutil.copyfile(source, destination)
        destination.chmod(0o644)
