"""Archives from elsewhere: damage, lies about sizes, and directories that are too large are one kind of error."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zipfile
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.zip_members import open_bounded_zip, read_member

if TYPE_CHECKING:
    from pathlib import Path


def _zip(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _read(path: Path, content: bytes, most: int = 1000) -> dict[str, bytes]:
    path.write_bytes(content)
    with open_bounded_zip(path) as archive:
        return {info.filename: read_member(archive, info, most) for info in archive.infolist()}


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    content = _zip(a=b"x" * 1000)
    assert _read(tmp_path / "a.zip", content) == {"a": b"x" * 1000}
    with pytest.raises(zipfile.BadZipFile, match=r"has 1\.0 kB unpacked; at most 999 B are read"):
        _read(tmp_path / "a.zip", content, 999)


def test_a_size_that_is_a_lie_unpacks_nothing_more(tmp_path: Path) -> None:
    content = _zip(a=bytes(64 << 20))
    lie = content.replace(struct.pack("<L", 64 << 20), struct.pack("<L", 100))
    assert lie != content
    tracemalloc.start()
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        _read(tmp_path / "a.zip", lie)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_large_directory_is_not_read(tmp_path: Path) -> None:
    size = 5 << 20
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 100_000 & 0xFFFF, 100_000 & 0xFFFF, size, 0, 0)
    with pytest.raises(zipfile.BadZipFile, match=r"its directory has more than 4\.2 MB"):
        _read(tmp_path / "a.zip", bytes(size) + end)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [(8, 1, "is encrypted"), (10, 14, "is compressed by method 14"), (38, 0xA000 << 16, "is not a regular file")],
)
def test_what_is_no_plain_file_is_refused(tmp_path: Path, place: int, value: int, problem: str) -> None:
    content = bytearray(_zip(a=b"x"))
    entry = content.index(b"PK\1\2")
    struct.pack_into("<L" if place == 38 else "<H", content, entry + place, value)
    with pytest.raises(zipfile.BadZipFile, match=problem):
        _read(tmp_path / "a.zip", bytes(content))


def test_any_damage_is_an_error_of_one_kind(tmp_path: Path) -> None:
    content, chance = _zip(a=b"some text" * 20, b=b"y"), random.Random(7)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            _read(tmp_path / "a.zip", bytes(damaged[: chance.choice((None, chance.randrange(len(damaged))))]))
        except zipfile.BadZipFile:
            refused += 1
    assert refused > 300
