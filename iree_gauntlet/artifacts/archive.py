"""Read and write archives in one canonical form of tar, readable by `tar -tf`; every other form is rejected.

An archive is a sequence of plain files. The first file lists the names and sizes of the others in their order. All else
in a header is constant (POSIX.1-1988 ustar; sizes from 8 GiB on in base 256, like GNU tar and star). So a reader
computes each expected header and compares it bit by bit. It interprets no name, link, device, sparse map or extended
header, and never takes a file's path from a header.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# The maximum size of a read.
BLOCK_BYTES = 1 << 20

_RECORD_BYTES = 512
_MAX_NAME_BYTES = 100
_MAX_OCTAL_SIZE = 8 << 30
_MAGIC_NUMBERS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}
_ENTRY_TYPES = {
    "0": "file",
    "\0": "file",
    "1": "hard link",
    "2": "symbolic link",
    "3": "character device",
    "4": "block device",
    "5": "folder",
    "6": "pipe",
    "S": "sparse file",
    "L": "long name",
    "K": "long link",
    "x": "extended header",
    "g": "global extended header",
}

END = bytes(2 * _RECORD_BYTES)
"""The end of an archive."""


class ArchiveDamageError(Exception):
    """An archive that was damaged after writing; the message has the reason."""


class ArchiveEndError(ArchiveDamageError):
    """An archive that is truncated."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; return no bytes at the end."""


class Blocks:
    """A stream made of blocks, which are consumed one by one."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._current_block = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """See `Readable`."""
        while not self._current_block:
            block = next(self._blocks, None)
            if block is None:
                return b""
            self._current_block = memoryview(block)
        part, self._current_block = self._current_block[:size], self._current_block[size:]
        return bytes(part)


def member(name: str, size: int, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file's header, content and padding; its name has at most 100 printable ASCII characters.

    Raises:
        ArchiveDamageError: the content has another size.
    """
    yield _make_header(name, size)
    written_bytes = 0
    for block in blocks:
        written_bytes += len(block)
        yield block
    if written_bytes != size:
        raise ArchiveDamageError(f"{name} has {written_bytes} bytes instead of {size}: it was changed in the meantime")
    yield bytes(-size % _RECORD_BYTES)


def compute_archive_size(sizes: Iterable[int]) -> int:
    """Return the size in bytes of an archive of files of these sizes."""
    return sum(_RECORD_BYTES + size + -size % _RECORD_BYTES for size in sizes) + len(END)


class ArchiveReader:
    """Reads an archive from a stream; raises ArchiveDamageError if it is not in the canonical form."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.position = 0  # bytes read so far

    def first(self, name: str, max_bytes: int) -> bytes:
        """Read the first file, of at most `max_bytes` bytes; the caller need not know its size."""
        header = self._read_exactly(_RECORD_BYTES)
        try:
            size = int(header[124:135], 8)
        except ValueError:
            size = -1
        if size < 0 or header != _make_header(name, size):
            raise ArchiveDamageError(f"it must start with {name} as we write it, not with {_describe(header)}")
        if size > max_bytes:
            raise ArchiveDamageError(f"its {name} has {size} bytes, but at most {max_bytes} are allowed")
        content = self._read_exactly(size)
        self._check_padding(name, size)
        return content

    def member(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the content of the next file; the caller must consume all of it."""
        self._check_header(name, size)
        yield from self._read_parts(size)
        self._check_padding(name, size)

    def skip(self, name: str, size: int, stream: BinaryIO) -> None:
        """Skip the next file without reading its content; the reader's stream must be a seekable file."""
        self._check_header(name, size)
        if size:
            # Reading the last byte detects a truncated archive.
            stream.seek(size - 1, os.SEEK_CUR)
            self._read_exactly(1)
            self.position += size - 1
        self._check_padding(name, size)

    def end(self) -> None:
        """Read the archive's end mark; raise an error if bytes follow it."""
        if self._read_exactly(len(END)) != END:
            raise ArchiveDamageError("it continues after its last file")
        if self._stream.read(1):
            raise ArchiveDamageError("there is data after its end")

    def _check_header(self, name: str, size: int) -> None:
        header = self._read_exactly(_RECORD_BYTES)
        if header != _make_header(name, size):
            raise ArchiveDamageError(f"expected {name} of {size} bytes, found {_describe(header)}")

    def _check_padding(self, name: str, size: int) -> None:
        if any(self._read_exactly(-size % _RECORD_BYTES)):
            raise ArchiveDamageError(f"the padding after {name} is not empty")

    def _read_exactly(self, size: int) -> bytes:
        return b"".join(self._read_parts(size))

    def _read_parts(self, size: int) -> Iterator[bytes]:
        while size:
            part = self._stream.read(min(size, BLOCK_BYTES))
            if not part:
                raise ArchiveEndError(f"it is truncated after {self.position} bytes")
            self.position += len(part)
            size -= len(part)
            yield part


def _make_header(name: str, size: int) -> bytes:
    """Return the header of a plain file, with fields as laid out in POSIX.1-1988."""
    name_bytes = name.encode("ascii")
    if not 0 < len(name_bytes) <= _MAX_NAME_BYTES or not name.isprintable():
        raise ValueError(f"{name!r} is not a valid file name in an archive")
    size_field = b"%011o\0" % size if size < _MAX_OCTAL_SIZE else b"\x80" + size.to_bytes(11, "big")
    head = name_bytes.ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + size_field + b"%011o\0" % 0
    tail = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    checksum = sum(head) + sum(tail) + 8 * ord(" ")
    return head + b"%06o\0 " % checksum + tail


def _describe(header: bytes) -> str:
    """Describe a header that this module does not write, as far as it can be read."""
    if not any(header):
        return "its end"
    compression = next((name for magic, name in _MAGIC_NUMBERS.items() if header.startswith(magic)), "")
    if compression:
        return f"{compression}: decompress it first"
    if header[257:262] != b"ustar":
        return "something that is not a tar archive"
    entry_type = _ENTRY_TYPES.get(chr(header[156]), "unknown entry")
    name = header[:100].partition(b"\0")[0].decode("ascii", "backslashreplace")
    try:
        size = f"{int(header[124:135], 8)} bytes"
    except ValueError:
        size = "unknown size"
    return f"a {entry_type} {name!a} of {size}"
