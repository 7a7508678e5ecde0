"""Archives in one canonical form of tar, which `tar -tf` reads and of which nothing else than we write is accepted.

An archive is a sequence of plain files: a first one that says which follow, with their sizes, and then those, in
that order. All else in a header is fixed (POSIX.1-1988 ustar; sizes from 8 GiB on in base 256, as GNU and star
write them). So a reader knows each header before it arrives, to the last bit, and compares: there is no name, link,
device, sparse map or extended header to be interpreted, and the places of files are never taken from headers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# How much is read at once.
BLOCK_BYTES = 1 << 20

_RECORD = 512
_LONGEST_NAME = 100
_OCTAL_SIZES = 8 << 30
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}
_KINDS = {
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

END = bytes(2 * _RECORD)
"""What an archive ends with."""


class DamagedArchiveError(Exception):
    """An archive is not as it was written; the text says what is wrong."""


class CutArchiveError(DamagedArchiveError):
    """An archive ends before its end."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class Blocks:
    """A stream out of blocks, which are taken one by one."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """See `Readable`."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return b""
            self._rest = memoryview(block)
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)


def member(name: str, size: int, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """A file as it stands in an archive, its name printable ASCII of at most 100 characters.

    Raises:
        DamagedArchiveError: the content has another size.
    """
    yield _make_header(name, size)
    done = 0
    for block in blocks:
        done += len(block)
        yield block
    if done != size:
        raise DamagedArchiveError(f"{name} has {done} bytes instead of {size}: it was changed meanwhile")
    yield bytes(-size % _RECORD)


def archive_bytes(sizes: Iterable[int]) -> int:
    """What an archive of files of these sizes takes."""
    return sum(_RECORD + size + -size % _RECORD for size in sizes) + len(END)


class ArchiveReader:
    """Reads an archive from a stream; DamagedArchiveError where it has not the one form that an archive may have."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.position = 0  # bytes that were read

    def first(self, name: str, longest: int) -> bytes:
        """The content of the first file, whose size only the archive knows: at most `longest` bytes."""
        found = self._read_exactly(_RECORD)
        try:
            size = int(found[124:135], 8)
        except ValueError:
            size = -1
        if size < 0 or found != _make_header(name, size):
            raise DamagedArchiveError(f"it does not begin with {name} as we write it, but with {_describe(found)}")
        if size > longest:
            raise DamagedArchiveError(f"its {name} has {size} bytes, and may have {longest}")
        content = self._read_exactly(size)
        self._check_padding(name, size)
        return content

    def member(self, name: str, size: int) -> Iterator[bytes]:
        """The content of the next file, which must be read to its end."""
        self._expect(name, size)
        yield from self._read_parts(size)
        self._check_padding(name, size)

    def skip(self, name: str, size: int, stream: BinaryIO) -> None:
        """Passes over the next file without reading its content; the stream that this reads is a file on a disk."""
        self._expect(name, size)
        if size:
            # The last byte is read, which is not there where the archive was cut.
            stream.seek(size - 1, os.SEEK_CUR)
            self._read_exactly(1)
            self.position += size - 1
        self._check_padding(name, size)

    def end(self) -> None:
        """Reads the end, which nothing may follow."""
        if self._read_exactly(len(END)) != END:
            raise DamagedArchiveError("it continues after its last file")
        if self._stream.read(1):
            raise DamagedArchiveError("something follows its end")

    def _expect(self, name: str, size: int) -> None:
        found = self._read_exactly(_RECORD)
        if found != _make_header(name, size):
            raise DamagedArchiveError(f"where {name} of {size} bytes should be, it has {_describe(found)}")

    def _check_padding(self, name: str, size: int) -> None:
        if any(self._read_exactly(-size % _RECORD)):
            raise DamagedArchiveError(f"the padding after {name} is not empty")

    def _read_exactly(self, size: int) -> bytes:
        return b"".join(self._read_parts(size))

    def _read_parts(self, size: int) -> Iterator[bytes]:
        while size:
            part = self._stream.read(min(size, BLOCK_BYTES))
            if not part:
                raise CutArchiveError(f"it ends after {self.position} bytes, in the middle")
            self.position += len(part)
            size -= len(part)
            yield part


def _make_header(name: str, size: int) -> bytes:
    """Of a plain file, the fields as POSIX.1-1988 lays them out."""
    encoded = name.encode("ascii")
    if not 0 < len(encoded) <= _LONGEST_NAME or not name.isprintable():
        raise ValueError(f"{name!r} is no name of an archive's file")
    length = b"%011o\0" % size if size < _OCTAL_SIZES else b"\x80" + size.to_bytes(11, "big")
    before = encoded.ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + length + b"%011o\0" % 0
    after = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    checksum = sum(before) + sum(after) + 8 * ord(" ")
    return before + b"%06o\0 " % checksum + after


def _describe(header: bytes) -> str:
    """What a header that is not ours says of itself, as far as it is known."""
    if not any(header):
        return "its end"
    compression = next((name for magic, name in _COMPRESSIONS.items() if header.startswith(magic)), "")
    if compression:
        return f"{compression}: decompress it first"
    if header[257:262] != b"ustar":
        return "something that is no tar archive"
    kind = _KINDS.get(chr(header[156]), "something unknown")
    name = header[:100].partition(b"\0")[0].decode("ascii", "backslashreplace")
    try:
        size = f"{int(header[124:135], 8)} bytes"
    except ValueError:
        size = "unknown size"
    return f"a {kind} {name!a} of {size}"
