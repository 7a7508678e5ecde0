"""Partial downloads: the state on disk can be relied upon, however the download ended."""

from __future__ import annotations

import itertools
import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.remote import RemoteFile
from iree_gauntlet.artifacts.transfer import ByteRange, Partial, find_missing_blocks, merge_blocks

_CHECKSUMS = {"md5": "0" * 32}
_URL = "https://host/m.mlir"
_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: ByteRange(min(pair), max(pair))))


def _bytes(spans: list[ByteRange]) -> set[int]:
    return {byte for span in spans for byte in range(span.start, span.stop)}


@given(_SPANS)
def test_merging_keeps_every_byte_and_no_other(spans: list[ByteRange]) -> None:
    result = merge_blocks(spans)
    assert _bytes(result) == _bytes(spans)
    assert all(one.stop < other.start for one, other in itertools.pairwise(result))


@given(_SPANS, st.integers(0, 60), st.integers(1, 20))
def test_missing_is_what_is_in_no_span(spans: list[ByteRange], size: int, longest: int) -> None:
    result = list(find_missing_blocks(spans, size, longest))
    assert _bytes(result) == set(range(size)) - _bytes(spans)
    assert sum(span.stop - span.start for span in result) == len(_bytes(result)), "no byte twice"
    assert all(0 < span.stop - span.start <= longest for span in result)


def _silent(done: int, total: int) -> None:
    assert 0 <= done <= total


def _begin(folder: Path, size: int = 100, version: str = '"v"') -> Partial:
    return Partial.begin(folder, _URL, RemoteFile(size, version, accepts_ranges=True, checksums=_CHECKSUMS))


def _spans(folder: Path) -> list[ByteRange] | None:
    resumed = Partial.resume(folder, _URL, _silent)
    if resumed is None:
        return None
    resumed[0].close()
    return resumed[0].spans


def _write(partial: Partial, start: int, stop: int) -> None:
    content = bytes(range(1 + start, 1 + stop))
    partial.write(start, content)
    partial.record_range(ByteRange(start, stop), zlib.crc32(content))


def test_what_was_written_is_gone_on_with(tmp_path: Path) -> None:
    partial = _begin(tmp_path / "p")
    _write(partial, 0, 10)
    _write(partial, 50, 60)
    _write(partial, 10, 20)
    partial.close()
    resumed = Partial.resume(tmp_path / "p", _URL, _silent)
    assert resumed is not None
    resumed[0].close()
    assert resumed[0].spans == [ByteRange(0, 20), ByteRange(50, 60)]
    assert resumed[1] == RemoteFile(100, '"v"', accepts_ranges=True, checksums=_CHECKSUMS)


def test_another_place_or_no_version_begins_anew(tmp_path: Path) -> None:
    partial = _begin(tmp_path / "p")
    _write(partial, 0, 10)
    partial.close()
    assert Partial.resume(tmp_path / "p", "https://mirror/m.mlir", _silent) is None
    partial = _begin(tmp_path / "q", version="")
    _write(partial, 0, 10)
    partial.close()
    assert _spans(tmp_path / "q") is None
    assert _spans(tmp_path / "nothing") is None


def test_bytes_that_never_reached_the_disk_are_had_again(tmp_path: Path) -> None:
    partial = _begin(tmp_path / "p")
    _write(partial, 0, 10)
    _write(partial, 10, 20)
    _write(partial, 20, 30)
    partial.close()
    with (tmp_path / "p" / "data").open("r+b") as file:
        file.seek(12)
        file.write(b"\0")
    assert _spans(tmp_path / "p") == [ByteRange(0, 10), ByteRange(20, 30)]
    assert _spans(tmp_path / "p") == [ByteRange(0, 10), ByteRange(20, 30)], "again, before they are there"


def test_data_that_is_shorter_than_its_state_is_not_relied_upon(tmp_path: Path) -> None:
    partial = _begin(tmp_path / "p")
    _write(partial, 60, 70)
    _write(partial, 80, 90)
    partial.close()
    os.truncate(tmp_path / "p" / "data", 89)
    assert _spans(tmp_path / "p") == [ByteRange(60, 70)]


@given(st.integers(0, 400), st.sampled_from([b"", b"\0\0\0", b"{", b'{"got": [0, 9', b'{"got": ["x", 1]}\n', b"[]\n"]))
def test_a_torn_state_never_says_more_than_was_written(cut: int, tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "p"
        partial = _begin(folder)
        for start in range(0, 40, 10):
            _write(partial, start, start + 10)
        partial.close()
        state = folder / "state.jsonl"
        content = state.read_bytes()
        state.write_bytes(content[:cut] + tail)
        whole_lines = content[: min(cut, len(content))].count(b'"got"')
        spans = _spans(folder)
        if spans is not None:
            assert _bytes(spans) <= set(range(10 * whole_lines))
            # What is appended now stands on lines of its own.
            resumed = Partial.resume(folder, _URL, _silent)
            assert resumed is not None
            _write(resumed[0], 90, 95)
            resumed[0].close()
            assert _bytes(_spans(folder) or []) == _bytes(spans) | set(range(90, 95))


def test_a_state_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    partial = _begin(tmp_path / "p")
    _write(partial, 0, 10)
    partial.close()
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(100))
    (tmp_path / "p" / "data").unlink()
    (tmp_path / "p" / "data").symlink_to(victim)
    with pytest.raises(OSError, match=r"Too many levels|ELOOP|symbolic"):
        Partial.resume(tmp_path / "p", _URL, _silent)
    assert victim.read_bytes() == bytes(100)
