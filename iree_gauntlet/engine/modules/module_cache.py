"""The store of compiled modules: content-addressed, safe to share, safe to delete at any time.

    <cache>/modules/<first two of key>/<key>/entry.json, <role>...
    <cache>/modules/by-name/<name>.json     the last compile under a name, to explain a miss
    <cache>/modules/making/                 entries being written, and damaged ones being removed

An entry appears by one rename, so it is complete or absent. `entry.json` contains its own checksum and that of every
file; a lookup checks all of them, and a damaged entry is a miss. A process remembers a checked file by its stamp
(device, inode, size and times) and does not hash it again; stamps of large files are also kept on disk
(`artifacts/hashing`). A write always changes the stamp, so it is noticed. Adding or removing a hard link changes it
too: the store records its own links, and deleting a run's folder costs one more hash of its large files. Silent disk
corruption is found in small files once per process, in large ones only by `cache.verify`. The modification time of
`entry.json` is the time of the entry's last use, to the hour.

Files pass between the store and a run's folder as hard links if the file system allows. Writing to a run's file thus
damages the store, and the next lookup finds the damage. The files stay writable, so that a run's compile command can be
pasted and run again unchanged.

In an archive, an entry is `entry.json` and then the files in the order of their roles. Unpacking trusts nothing: it
checks the seal, the key made from the ingredients, the names, and each file's size and SHA-256.
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
    ArchiveDamageError,
    ArchiveReader,
    Readable,
    compute_archive_size,
    member,
)
from iree_gauntlet.artifacts.hashing import HashCache, hash_file
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
# A file of this size or more gets a hash stamp on disk. Reading a stamp costs as much as hashing 50 kB. Smaller files
# need no stamp, since hashing 16 MB takes only 10 ms; few modules are larger.
_LARGE_FILE_BYTES = 16 << 20
_USE_TIME_SECONDS = 3600.0
_UNWRITABLE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ENTRY_FORMAT = 1
ENTRY_FILE = "entry.json"

_ROLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}(?:\.[a-z0-9_-]{1,30}){0,3}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENTRY_FIELDS = {"format", "key", "name", "created", "ingredients", "metadata", "files"}
_MAX_FILES = 16
# Most of an entry file is flags and the compiler's warnings, of which at most 64 KiB are kept.
_MAX_ENTRY_FILE_BYTES = 4 << 20


class DamageError(Exception):
    """An entry that differs from what was written or expected; the text describes the difference."""


@dataclass(frozen=True, slots=True)
class EntryFile:
    """The hash and size of one of an entry's files."""

    sha256: str
    bytes: int


def list_files(document: dict[str, Any]) -> dict[str, EntryFile]:
    """Return the files of an entry by role, in the order of their names."""
    return {role: EntryFile(**file) for role, file in sorted(document["files"].items())}


def is_key(text: str) -> bool:
    """Return True if a text can be a key."""
    return _SHA256.fullmatch(text) is not None


def _is_role(text: str) -> bool:
    """Return True if a text can be the role, and so the name, of a file in an entry."""
    return _ROLE.fullmatch(text) is not None and text != ENTRY_FILE


def seal_entry(document: dict[str, Any]) -> bytes:
    """Return the content of entry.json: the entry, and its checksum."""
    checksum = hashlib.sha256(format_canonical_json(document)).hexdigest()
    return format_canonical_json({"checksum": checksum, "entry": document}) + b"\n"


def parse_sealed_entry(data: bytes, key: str) -> dict[str, Any]:
    """Return the entry that this machine has sealed.

    Raises:
        DamageError: the entry is not what was written, or has another key.
    """
    try:
        document: dict[str, Any] = json.loads(data)["entry"]
        # Compare the bytes themselves, so that no change goes unnoticed.
        is_intact = data == seal_entry(document)
        matches = is_intact and document["format"] == _ENTRY_FORMAT and document["key"] == key
    except (ValueError, TypeError, KeyError, RecursionError):
        is_intact = matches = False
    if not is_intact:
        raise DamageError(f"{ENTRY_FILE} has changed since it was written")
    if not matches:
        raise DamageError(f"{ENTRY_FILE} belongs to another key or format")
    for role in document["files"]:
        if not _is_role(role):
            raise DamageError(f"{ENTRY_FILE} names {role!r} as a file")
    return document


def parse_untrusted_entry(data: bytes, key: str) -> dict[str, Any]:
    """Return an entry that another machine may have sealed; check every field, since anybody can make a seal.

    Raises:
        DamageError: a field is not as this toolkit writes it, or the ingredients make another key.
    """
    try:
        document = parse_sealed_entry(data, key)
        # JSON can write lone surrogates, which no file system and no terminal accepts.
        json.dumps(document, ensure_ascii=False).encode()
        is_valid = _is_valid(document)
        actual_key = is_valid and make_key(document["ingredients"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_valid, actual_key = False, ""
    if not is_valid:
        raise DamageError(f"{ENTRY_FILE} has invalid fields")
    if actual_key != key:
        raise DamageError(f"{ENTRY_FILE} names ingredients that make another key")
    return document


def _is_valid(document: dict[str, Any]) -> bool:
    files, metadata, ingredients = document["files"], document["metadata"], document["ingredients"]
    texts = [document["name"], document["created"], metadata.get("diagnostics", ""), metadata.get("command", "")]
    statistics, notes = metadata.get("statistics", {}), metadata.get("notes", [])
    return (
        document.keys() == _ENTRY_FIELDS
        and all(isinstance(text, str) for text in (*texts, *notes, *ingredients.values()))
        and all(value is None or type(value) in (int, float) for value in statistics.values())
        and isinstance(notes, list)
        and 0 < len(files) <= _MAX_FILES
        and all(file.keys() == {"sha256", "bytes"} for file in files.values())
        and all(_SHA256.fullmatch(file["sha256"]) for file in files.values())
        and all(type(file["bytes"]) is int and file["bytes"] >= 0 for file in files.values())
    )


def pack(folder: Path, key: str) -> Iterator[bytes]:
    """Yield an entry's folder as an archive, in blocks; hash every file along the way.

    Raises:
        DamageError: the entry is not what was written.
    """
    data = (folder / ENTRY_FILE).read_bytes()
    document = parse_untrusted_entry(data, key)
    try:
        yield from member(ENTRY_FILE, len(data), [data])
        for role, file in list_files(document).items():
            yield from member(role, file.bytes, _read_checked(folder / role, file.sha256))
    except ArchiveDamageError as error:
        raise DamageError(str(error)) from error
    yield END


def compute_packed_size(folder: Path, key: str) -> int:
    """Return the size of the archive that `pack` makes.

    Raises:
        DamageError: the entry is not what was written.
    """
    data = (folder / ENTRY_FILE).read_bytes()
    return _compute_archive_bytes(data, list_files(parse_untrusted_entry(data, key)))


def unpack(
    stream: Readable, key: str, folder: Path, *, roles: Collection[str] = (), size: int | None = None
) -> dict[str, str]:
    """Unpack an entry into an empty folder, which is unusable after an error; return the SHA-256 of files by role.

    Args:
        stream: the archive.
        key: the key of the expected entry.
        folder: the folder for `entry.json` and the files.
        roles: the files that the entry must have.
        size: the size of the archive in bytes, if known.

    Raises:
        DamageError: the archive is not a complete entry of this key.
        OSError: the folder cannot be written, or has no room.
    """
    reader = ArchiveReader(stream)
    try:
        data = reader.first(ENTRY_FILE, _MAX_ENTRY_FILE_BYTES)
        files = list_files(parse_untrusted_entry(data, key))
        missing = sorted(set(roles) - files.keys())
        if missing:
            raise DamageError(f"it has no {' and no '.join(missing)}")
        archive_size = _compute_archive_bytes(data, files)
        if size not in (None, archive_size):
            raise DamageError(f"it has {size} bytes instead of {archive_size}")
        if archive_size > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        for role, file in files.items():
            if _write(reader.member(role, file.bytes), folder / role) != file.sha256:
                raise DamageError(f"the checksum of {role} does not match")
        reader.end()
    except ArchiveDamageError as error:
        raise DamageError(str(error)) from error
    write_atomic(folder / ENTRY_FILE, data)
    return {role: file.sha256 for role, file in files.items()}


def _compute_archive_bytes(data: bytes, files: dict[str, EntryFile]) -> int:
    return compute_archive_size([len(data), *(file.bytes for file in files.values())])


def _read_checked(path: Path, sha256: str) -> Iterator[bytes]:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            yield block
    if digest.hexdigest() != sha256:
        raise DamageError(f"the checksum of {path.name} does not match")


def _write(blocks: Iterator[bytes], path: Path) -> str:
    """Write a new file through to the disk; return its SHA-256."""
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
    """An entry that existed when it was looked up, and has been removed since."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"module {key[:12]} was removed from the cache while it was in use", "run again: it will be compiled again"
        )


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """A module in the store.

    Attributes:
        files: the paths of the entry's files, by role. Never write to them; `materialise` puts them elsewhere.
        name: the step for which the module was first compiled.
        ingredients: the inputs of the key.
        created: the time of creation (ISO 8601, UTC).
    """

    key: str
    files: dict[str, Path]
    metadata: dict[str, Any]
    name: str
    ingredients: dict[str, str]
    created: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of a lookup; the note explains a miss, or says what else went wrong."""

    entry: ModuleEntry | None
    note: str = ""


@dataclass(slots=True)
class ModuleCache:
    """The store in a cache folder, which need not exist yet. May be used by several threads.

    The clock returns seconds since 1970, which are compared with the time of an entry's last use.
    """

    folder: Path
    clock: Callable[[], float] = time.time
    _file_hashes: dict[tuple[int, FileState], str] = field(default_factory=dict)
    _leases: Leases = field(init=False)

    def __post_init__(self) -> None:
        self._leases = Leases(self.folder)

    @property
    def _modules(self) -> Path:
        return self.folder / "modules"

    @property
    def _verified(self) -> HashCache:
        return HashCache(self.folder / "verified")

    def lookup(self, key: str) -> Lookup:
        """Find an entry and check it; a damaged entry counts as missing, and the next publication replaces it."""
        folder = self.get_entry_folder(key)
        if folder.is_dir():
            # Take the lease before reading, so that the entry is not collected while it is in use.
            self._leases.use(folder)
        try:
            entry, hashes = _read_entry(key, folder)
            changed_roles = (
                role for role, path in entry.files.items() if self._hash(path, hashes[role]) != hashes[role]
            )
            if role := next(changed_roles, ""):
                return Lookup(None, f"damaged: the checksum of {role} does not match")
            _touch_entry(folder, self.clock())
            return Lookup(entry)
        except FileNotFoundError:
            if not folder.exists():
                return Lookup(None)
            damage_text = "a file is missing"
        except DamageError as damage:
            damage_text = str(damage)
        except OSError as error:
            return Lookup(None, f"unreadable: {error.strerror}")
        return Lookup(None, f"damaged: {damage_text}")

    def materialise(self, entry: ModuleEntry, role: str, destination: Path) -> None:
        """Put a file of an entry at a path, replacing an existing file; the folder must exist.

        Raises:
            EntryGoneError: the store was cleared since the lookup.
        """
        source = entry.files[role]
        try:
            old_status = source.stat()
            _replace_with_link(source, destination)
            new_status = source.stat()
        except FileNotFoundError:
            if destination.parent.is_dir():
                raise EntryGoneError(entry.key) from None
            raise
        sha256 = self._file_hashes.get(_make_stamp(old_status))
        if sha256 and FileState.of(old_status).is_linked_only(FileState.of(new_status)):
            self._remember(source, new_status, sha256)

    def list_entries(self) -> Iterator[ModuleEntry]:
        """Yield every entry without checking its files; skip damaged entries, which `cache.verify` reports."""
        for path in self._modules.glob(f"??/*/{ENTRY_FILE}"):
            # An entry may be damaged, or be removed during the iteration.
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

        Failing to store it is not an error, since the compiled module exists: a read-only or full store gives a note.
        If another process was first, its entry stays.

        Args:
            files: the files to keep, by role, which is a plain lower-case file name. They share bytes with the store
                if the file system allows.
            name: the step's id, by which later misses are explained.
            ingredients: the inputs of the key.
            metadata: values that strict JSON can represent.
            created: the current time, with a time zone.
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
            with self.reserve_entry_folder(key) as temporary:
                entry_files: dict[str, EntryFile] = {}
                for role, source in sources.items():
                    path = temporary / role
                    link_or_copy(source, path)
                    path.chmod(0o644)
                    with path.open("rb") as stream:
                        os.fsync(stream.fileno())
                    entry_files[role] = EntryFile(hash_file(path), path.stat().st_size)
                document |= {"files": {role: asdict(entry_file) for role, entry_file in entry_files.items()}}
                write_atomic(temporary / ENTRY_FILE, seal_entry(document))
                hashes = {role: entry_file.sha256 for role, entry_file in entry_files.items()}
                publication = self._put_in_place(temporary, key, hashes)
        except OSError as error:
            return Lookup(None, f"not kept in the cache: {error.strerror}")
        return self._name_entry(publication, name, key, ingredients)

    @contextlib.contextmanager
    def reserve_entry_folder(self, key: str) -> Iterator[Path]:
        """Yield a private folder in which the caller prepares an entry for `adopt`; remove the folder at the end."""
        with self._reserve(key) as temporary:
            temporary.mkdir(0o700)
            yield temporary

    def adopt(self, temporary: Path, key: str, hashes: Mapping[str, str], name: str = "") -> Lookup:
        """Put into the store an entry made elsewhere, all of whose files were checked.

        Args:
            temporary: the entry's folder, which `reserve_entry_folder` yielded.
            key: the key of the entry.
            hashes: the actual SHA-256 of the entry's files, by role.
            name: as for `publish`; by default the name in the entry.
        """
        try:
            publication = self._put_in_place(temporary, key, hashes)
        except OSError as error:
            return Lookup(None, f"not kept in the cache: {error.strerror}")
        entry = publication.entry
        return self._name_entry(publication, name or entry.name, key, entry.ingredients) if entry else publication

    def remove(self, key: str) -> None:
        """Move an entry out of the store by one rename, then delete its files; a missing entry is no error."""
        with self._reserve(key) as trash, contextlib.suppress(FileNotFoundError):
            self.get_entry_folder(key).rename(trash)

    @contextlib.contextmanager
    def hold_making_lock(self, key: str, cancel_event: threading.Event) -> Iterator[float]:
        """Hold the lock to make a module; other processes that need the module wait until the block is left.

        Yield the seconds of waiting. If no lock can be created, the block runs unlocked; such a store cannot keep the
        module anyway.

        Raises:
            WaitCancelledError: the run was cancelled while this waited.
        """
        folder, start = self._modules / "making", time.monotonic()
        lock = LockFile(folder / f"{key}.lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            while not lock.try_acquire():
                if cancel_event.wait(_LOCK_POLL_SECONDS):
                    raise WaitCancelledError(f"cancelled while another process was making module {key[:12]}")
        except OSError:
            yield 0.0
            return
        try:
            yield time.monotonic() - start
        finally:
            # The processes that wait for the lock notice the removal, and create a new lock file.
            lock.remove()

    def explain_miss(self, name: str, ingredients: Mapping[str, str]) -> str:
        """Return why a module is not in the store, such as the changes since the last compile under this name."""
        try:
            record = json.loads(self._locate_name_file(name).read_bytes())
            old_ingredients = {str(key): str(value) for key, value in record["ingredients"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return "never compiled here"
        return describe_changes(old_ingredients, ingredients) or "was compiled here, but is no longer in the cache"

    def get_entry_folder(self, key: str) -> Path:
        """Return the folder of an entry, which need not exist."""
        if not is_key(key):
            raise ValueError(f"{key!r} is no key")
        return self._modules / key[:2] / key

    def _reserve(self, key: str) -> contextlib.AbstractContextManager[Path]:
        parent = self._modules / "making"
        parent.mkdir(parents=True, exist_ok=True)
        return reserve_folder(self.get_entry_folder(key), parent)

    def _name_entry(self, publication: Lookup, name: str, key: str, ingredients: Mapping[str, str]) -> Lookup:
        """Record the entry that was last made under a name."""
        try:
            name_file = self._locate_name_file(name)
            name_file.parent.mkdir(exist_ok=True)
            write_atomic(name_file, format_canonical_json({"key": key, "ingredients": dict(ingredients)}))
        except OSError as error:
            return Lookup(publication.entry, f"a later miss cannot be explained: {error.strerror}")
        return publication

    def _locate_name_file(self, name: str) -> Path:
        # The hash distinguishes names that differ only in case, or in characters that a file name cannot hold.
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        return self._modules / "by-name" / f"{re.sub(r'[^A-Za-z0-9._@-]', '_', name)[:80]}-{digest}.json"

    def _hash(self, path: Path, expected_sha256: str) -> str:
        status = path.stat()
        stamp = _make_stamp(status)
        sha256 = self._file_hashes.get(stamp)
        if sha256 is None:
            is_large = status.st_size >= _LARGE_FILE_BYTES
            sha256 = self._verified.sha256(path, expected_sha256) if is_large else hash_file(path)
            self._file_hashes[stamp] = sha256
        return sha256

    def _put_in_place(self, temporary: Path, key: str, hashes: Mapping[str, str]) -> Lookup:
        temporary.chmod(0o755)
        folder = self.get_entry_folder(key)
        folder.parent.mkdir(exist_ok=True)
        # Try twice: if a damaged entry is in the way, the first try removes it.
        for _ in range(2):
            if put_folder(temporary, folder):
                # These files are ours and were hashed just now.
                for role, sha256 in hashes.items():
                    with contextlib.suppress(FileNotFoundError):
                        self._remember(folder / role, (folder / role).stat(), sha256)
            result = self.lookup(key)
            if result.entry is not None:
                return Lookup(result.entry)
            self.remove(key)
        return Lookup(None, f"not kept in the cache: {result.note or 'it was removed again'}")

    def _remember(self, path: Path, status: os.stat_result, sha256: str) -> None:
        self._file_hashes[_make_stamp(status)] = sha256
        if status.st_size >= _LARGE_FILE_BYTES:
            self._verified.remember(path, sha256)


def _read_entry(key: str, folder: Path) -> tuple[ModuleEntry, dict[str, str]]:
    """Return an entry, and by role the SHA-256 that its files should have."""
    document = parse_sealed_entry((folder / ENTRY_FILE).read_bytes(), key)
    hashes = {role: file.sha256 for role, file in list_files(document).items()}
    files = {role: folder / role for role in hashes}
    fields = {name: document[name] for name in ("metadata", "name", "ingredients", "created")}
    return ModuleEntry(key=key, files=files, **fields), hashes


def _make_stamp(status: os.stat_result) -> tuple[int, FileState]:
    return status.st_dev, FileState.of(status)


def _touch_entry(folder: Path, now: float) -> None:
    """Set the time of an entry's last use, at most once an hour."""
    file = folder / ENTRY_FILE
    try:
        if now - file.stat().st_mtime > _USE_TIME_SECONDS:
            # Setting an explicit time needs ownership; the current time needs only write permission.
            os.utime(file)
    except FileNotFoundError:
        # The cache was cleared; reading a file of the entry will report it.
        return
    except OSError as error:
        if error.errno not in _UNWRITABLE_ERRNOS:
            raise


def _replace_with_link(source: Path, destination: Path) -> None:
    """Put a file at a path by hard link or copy, in one step, replacing an existing file."""
    try:
        os.link(source, destination)
    except FileNotFoundError:
        raise
    except OSError:
        # The destination exists already, or the file system has no hard links.
        with reserve_file(destination) as temporary:
            link_or_copy(source, temporary)
            temporary.replace(destination)


def link_or_copy(source: Path, destination: Path) -> None:
    """Put a file at a new path, by a hard link if possible."""
    try:
        os.link(source, destination)
    except FileNotFoundError:
        raise
    except OSError:
        # Links fail across file systems, on some file systems, for another owner's file, or after too many links.
        shutil.copyfile(source, destination)
        destination.chmod(0o644)
