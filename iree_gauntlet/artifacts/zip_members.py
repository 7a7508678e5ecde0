"""Members of zip archives from elsewhere, which may be damaged or hostile; their names never become paths."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iree_gauntlet.formatting import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


BLOCK_BYTES = 1 << 20
# zipfile and zlib raise these for a damaged archive only.
DAMAGE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError)
# Damage is one possible cause of these: an unknown version or encryption, or an offset outside the file.
POSSIBLE_DAMAGE_ERRORS = (NotImplementedError, RuntimeError, OSError)
_ENCRYPTION_FLAG = 0x1
# The maximum size of a read of an archive: of its directory, of which zipfile makes objects many times as large.
_MAX_DIRECTORY_BYTES = 4 << 20


class _SafeFile(io.FileIO):
    """A file of which no read is larger than a directory may be."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `size` bytes; BadZipFile if that is too much."""
        wanted = _MAX_DIRECTORY_BYTES + 1 if size is None or size < 0 else size
        data = super().read(wanted) if wanted <= _MAX_DIRECTORY_BYTES + 1 else None
        if data is None or len(data) > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its directory has more than {format_bytes(_MAX_DIRECTORY_BYTES)}")
        return data


@contextmanager
def open_bounded_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a hostile archive; BadZipFile if it is damaged, or its directory is too large."""
    with _SafeFile(path) as file:
        with _explain_damage():
            archive = zipfile.ZipFile(file)
        with archive:
            yield archive


@contextmanager
def _explain_damage() -> Iterator[None]:
    """Turn all that zipfile and zlib raise for a damaged archive into BadZipFile."""
    try:
        yield
    except zipfile.BadZipFile:
        raise
    except (*DAMAGE_ERRORS, *POSSIBLE_DAMAGE_ERRORS, ValueError, OverflowError, struct.error) as error:
        raise zipfile.BadZipFile(f"{error}".strip() or type(error).__name__) from error


def find_member_problem(info: zipfile.ZipInfo) -> str:
    """Return why a member is not read; empty for a regular file."""
    if info.is_dir() or stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        return "is not a regular file"
    if info.flag_bits & _ENCRYPTION_FLAG:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {info.compress_type}, which is not supported"
    return ""


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`; BadZipFile if that is not possible.

    zipfile never returns more than the size in the directory, and compares the CRC-32 at its end.
    """
    problem = find_member_problem(info)
    if info.file_size > max_bytes:
        problem = f"has {format_bytes(info.file_size)} unpacked; at most {format_bytes(max_bytes)} are read"
    if problem:
        raise zipfile.BadZipFile(problem)
    with _explain_damage(), archive.open(info) as member:
        # Without a size, zipfile would unpack all that a wrong directory hides, and only then truncate it.
        data = b"".join(iter(lambda: member.read(BLOCK_BYTES), b""))
    if len(data) != info.file_size:
        raise zipfile.BadZipFile(f"has {format_bytes(len(data))} of {format_bytes(info.file_size)}")
    return data
