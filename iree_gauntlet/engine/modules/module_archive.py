"""A module's entry as one archive: `entry.json`, then its files by role, in the order of their names.

What is unpacked is believed in nothing: the seal, the key that the ingredients make, the names, and every file's
size and SHA-256 are checked before anybody gets to see it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
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
from iree_gauntlet.engine.modules.module_entry import ENTRY_FILE, DamageError, open_foreign
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


# Most of it are the compiler's warnings, of which 64 KiB are kept, and flags.
_LONGEST_ENTRY_FILE = 4 << 20


def pack(folder: Path, key: str) -> Iterator[bytes]:
    """An entry's folder as an archive, in blocks; every file is hashed on the way.

    Raises:
        DamageError: the entry is not what was written.
        OSError: it cannot be read.
    """
    data = (folder / ENTRY_FILE).read_bytes()
    document = open_foreign(data, key)
    try:
        yield from member(ENTRY_FILE, len(data), [data])
        for role, file in sorted(document["files"].items()):
            yield from member(role, file["bytes"], _checked(folder / role, file["sha256"]))
    except DamagedArchiveError as error:
        raise DamageError(str(error)) from error
    yield END


def packed_bytes(folder: Path, key: str) -> int:
    """The size of the archive that `pack` makes.

    Raises:
        DamageError: the entry is not what was written.
        OSError: it cannot be read.
    """
    data = (folder / ENTRY_FILE).read_bytes()
    return _bytes_of(data, open_foreign(data, key))


def unpack(
    stream: Readable, key: str, folder: Path, *, roles: Collection[str] = (), size: int | None = None
) -> dict[str, str]:
    """Unpack an entry into an empty folder, which is worth nothing where this raises.

    Args:
        stream: the archive.
        key: of the entry that it must be.
        folder: gets `entry.json` and the files.
        roles: what it must have.
        size: of the archive, where it is known.

    Returns:
        SHA-256 by role.

    Raises:
        DamageError: it is not a whole entry of this key.
        OSError: the folder cannot be written, or has no room.
    """
    reader = ArchiveReader(stream)
    try:
        data = reader.first(ENTRY_FILE, _LONGEST_ENTRY_FILE)
        document = open_foreign(data, key)
        files: dict[str, dict[str, Any]] = document["files"]
        missing = sorted(set(roles) - files.keys())
        if missing:
            raise DamageError(f"it has no {' and no '.join(missing)}")
        whole = _bytes_of(data, document)
        if size not in (None, whole):
            raise DamageError(f"it has {size} bytes instead of {whole}")
        if whole > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        for role, file in sorted(files.items()):
            found = _write(reader.member(role, file["bytes"]), folder / role)
            if found != file["sha256"]:
                raise DamageError(f"the checksum of {role} does not match")
        reader.end()
    except DamagedArchiveError as error:
        raise DamageError(str(error)) from error
    write_atomic(folder / ENTRY_FILE, data)
    return {role: file["sha256"] for role, file in files.items()}


def _bytes_of(data: bytes, document: dict[str, Any]) -> int:
    return archive_bytes([len(data), *(file["bytes"] for file in document["files"].values())])


def _checked(path: Path, sha256: str) -> Iterator[bytes]:
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
