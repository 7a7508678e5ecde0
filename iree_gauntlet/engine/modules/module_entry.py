"""A module's entry: its document, sealed with its own checksum, and the entry as one archive.

The archive has `entry.json`, then the files by role, in the order of their names. What is unpacked is believed in
nothing: the seal, the key that the ingredients make, the names, and every file's size and SHA-256 are checked before
anybody gets to see it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
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
from iree_gauntlet.engine.modules.module_key import format_canonical_json, make_key
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


ENTRY_FORMAT = 1
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


def is_role(text: str) -> bool:
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
        ours = intact and document["format"] == ENTRY_FORMAT and document["key"] == key
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = ours = False
    if not intact:
        raise DamageError(f"{ENTRY_FILE} is not as it was written")
    if not ours:
        raise DamageError(f"{ENTRY_FILE} belongs to another key or format")
    for role in document["files"]:
        if not is_role(role):
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
