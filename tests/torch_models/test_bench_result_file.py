"""perf.json: nothing is lost by concurrent writers, kills or damaged files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.torch_models import bench_result
from iree_gauntlet.torch_models.bench_result import AppendResult, find_result_path
from tests.support.budgets import scale_example_count
from tests.support.command_line import LIMIT_SECONDS
from tests.support.permissions import enforce_permissions
from tests.support.places import ROOT

ABOUT = {
    "args": {"model": "bert", "config": "tiny"},
    "arch": "llvm-cpu",
    "machine_name": "box",
    "hash": "89ece87b",
    "date": "26-10-16",
}
WRITER = """
import os, sys
from pathlib import Path
from iree_gauntlet.torch_models import bench_result
# Each waits for the others' locks for as long as it takes.
bench_result._LOCK_SECONDS = 500.0
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(count):
    result = {"samples_per_sec": 1.0, "writer": name, "number": number, "filler": "x" * 20000}
    bench_result.append_result(path, result, Path(os.environ["LOCKS"]))
"""
# Child after child appends a result and is killed at a point of it, the first one at its first, until one comes
# through. Points are before and after each call that changes files.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from iree_gauntlet.torch_models.bench_result import append_result

CALLS = {
    *("open", "write", "flush", "close", "fsync", "fchmod", "chmod", "truncate", "utime"),
    *("rename", "replace", "link", "unlink", "mkdir"),
}
path, locks = Path(sys.argv[1]), Path(os.environ["LOCKS"])


def die_at(last):
    seen = 0

    def look(_frame, event, called):
        nonlocal seen
        if event in ("c_call", "c_return") and called.__name__ in CALLS:
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


number, killed = 0, True
while killed:
    number += 1
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        die_at(number)
        append_result(path, {"samples_per_sec": 1.0, "number": number, "filler": "x" * 20000}, locks)
        sys.setprofile(None)
        os.write(writer, b"done")
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        done = said.read() == b"done"
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    found = [entry["number"] for entry in json.loads(path.read_bytes())] if path.exists() else []
    print(json.dumps([number, killed, done, found]))
"""


@pytest.fixture(autouse=True)
def locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache") / "locks"
    monkeypatch.setenv("LOCKS", str(folder))
    return folder


def append_result(output: str | Path, entry: dict[str, Any]) -> AppendResult:
    return bench_result.append_result(output, entry, Path(os.environ["LOCKS"]))


def check_output(output: str | Path) -> None:
    bench_result.check_output(output, Path(os.environ["LOCKS"]))


def result(**more: Any) -> dict[str, Any]:
    return {"total_time": 2.0, "total_samples": 50, "samples_per_sec": 25.0, **ABOUT, **more}


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def strays(folder: Path) -> list[str]:
    """What lies there besides results."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".json")


def test_an_entry_stays_as_it_is_given(tmp_path: Path) -> None:
    failed = {**ABOUT, "error": "outputs differ from torch", "cosine": 0.2}
    appended = append_result(tmp_path / "perf", result(latency_ms={"p50": 1.5}))
    assert (appended.path, appended.entries, appended.note) == (tmp_path / "perf.json", 1, "")
    (good,) = read(appended.path)
    assert good == result(latency_ms={"p50": 1.5})
    assert list(good)[:3] == ["total_time", "total_samples", "samples_per_sec"]
    kept = appended.path.read_bytes()
    beside = append_result(tmp_path / "perf.json", failed)
    assert beside == AppendResult(tmp_path / "perf.failed.json", 1)
    assert (read(beside.path), appended.path.read_bytes()) == ([failed], kept)


def test_a_file_with_failures_of_earlier_versions_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    path.write_text(json.dumps([{**ABOUT, "error": "compile failed: …"}]))
    assert append_result(path, result()) == AppendResult(path, 2)


def test_numbers_that_json_lacks_are_text(tmp_path: Path) -> None:
    more = {"a": float("nan"), "b": [float("inf"), {"c": (-float("inf"), 1.5)}]}
    text = append_result(tmp_path / "perf.json", result(**more)).path.read_text(encoding="utf-8")
    (entry,) = json.loads(text, parse_constant=pytest.fail)
    assert entry["a"] == "nan"
    assert entry["b"] == ["inf", {"c": ["-inf", 1.5]}]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
entries = st.builds(
    lambda fields, kind: {**fields, kind: 1.0},
    st.dictionaries(st.text(), values, max_size=4),
    st.sampled_from(("samples_per_sec", "error")),
)


@settings(max_examples=scale_example_count(0.5))
@given(old=st.lists(entries, max_size=4), indent=st.sampled_from((None, 0, 4)), ascii_only=st.booleans())
def test_entries_that_are_there_stay_byte_by_byte(
    old: list[dict[str, Any]], indent: int | None, ascii_only: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("perf") / "perf.json"
    written = json.dumps(old, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    path.write_bytes(written)
    appended = append_result(path, result())
    if appended.note:
        # Lone surrogates, unescaped, are no UTF-8.
        assert path.read_bytes() == written
        return
    assert path.read_bytes().startswith(written.removesuffix(b"]").rstrip())
    assert read(path) == [*old, result()]


def test_numbers_keep_their_spelling(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    path.write_text('[ {"samples_per_sec": 1.10, "n": 1E400, "n": 12345678901234567890123} ]\r\n\t', encoding="utf-8")
    append_result(path, result())
    assert path.read_text(encoding="utf-8").startswith(
        '[ {"samples_per_sec": 1.10, "n": 1E400, "n": 12345678901234567890123},\n'
    )
    assert len(read(path)) == 2


@pytest.mark.parametrize("content", [b"", b" \n", b"[]", b" [ ] \n"])
def test_an_empty_file_holds_nothing_to_keep(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    path.write_bytes(content)
    assert append_result(path, result()).note == ""
    assert read(path) == [result()]


DAMAGED = {
    "torn": b'[{"samples_per_sec": 1.0}, {"sampl',
    "no brackets": b"hello",
    "two arrays": b"[][]",
    "trailing comma": b'[{"error": "x"},]',
    "nan": b'[{"samples_per_sec": NaN}]',
    "binary": b"[\xff\xfe\x00]",
    "byte order mark": b"\xef\xbb\xbf[]",
    "deep": b"[" * 200_000,
    "nulls": b"\0" * 100,
    "object": b'{"samples_per_sec": 1.0}',
    "numbers": b"[1, 2]",
    "others": b'[{"error": "x"}, {"name": "package"}]',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_or_foreign_file_is_kept_and_the_result_goes_beside_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    path.write_bytes(content)
    appended = append_result(path, result())
    assert path.read_bytes() == content
    assert appended.path == tmp_path / "perf.new-1.json"
    assert read(appended.path) == [result()]
    assert str(path) in appended.note
    assert str(appended.path) in appended.note
    # The next one goes there too, and next to that one where it is damaged as well.
    assert append_result(path, result()).entries == 2
    appended.path.write_bytes(content)
    assert append_result(path, result()).path == tmp_path / "perf.new-2.json"
    assert appended.path.read_bytes() == content
    assert not strays(tmp_path)


def test_the_json_ending_is_added_once() -> None:
    assert find_result_path("out/perf") == Path("out/perf.json")
    assert find_result_path("perf.json") == Path("perf.json")
    assert find_result_path("perf.v1.2") == Path("perf.v1.2.json")
    assert find_result_path("perf.JSON") == Path("perf.JSON.json")


def test_missing_folders_are_made(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "perf")
    assert not list((tmp_path / "a").iterdir())
    assert append_result(tmp_path / "a" / "b" / "perf", result()).entries == 1


def test_links_are_followed_and_modes_stay(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    append_result(real, result())
    real.chmod(0o640)
    link = tmp_path / "elsewhere" / "perf.json"
    link.parent.mkdir()
    link.symlink_to(real)
    assert append_result(link, result()).entries == 2
    assert link.is_symlink()
    assert len(read(real)) == 2
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("place", ["file/perf.json", "folder.json", "/proc/perf.json", "n" * 300])
def test_places_that_cannot_be_written_say_so(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    if place == "folder.json":
        # Something that is no file stays, as damage does; only a check beforehand calls it an error.
        assert append_result(tmp_path / place, result()).path == tmp_path / "folder.new-1.json"
    else:
        with pytest.raises(GauntletError) as caught:
            append_result(tmp_path / place, result())
        assert "the result cannot be written" in caught.value.message
        assert "--output" in caught.value.hint
    with pytest.raises(GauntletError, match="the result cannot be written"):
        check_output(tmp_path / place)


def test_a_read_only_folder(tmp_path: Path) -> None:
    append_result(tmp_path / "perf.json", result())
    tmp_path.chmod(0o555)
    try:
        with enforce_permissions(), pytest.raises(GauntletError, match="Permission denied"):
            append_result(tmp_path / "perf.json", result())
    finally:
        tmp_path.chmod(0o755)
    assert len(read(tmp_path / "perf.json")) == 1


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_result(tmp_path / "perf.json", result())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(GauntletError, match="No space left on device"):
            append_result(tmp_path / "perf.json", result())
    assert len(read(tmp_path / "perf.json")) == 1
    assert not strays(tmp_path)
    assert append_result(tmp_path / "perf.json", result()).entries == 2


def test_locks_are_in_the_cache_and_nothing_is_beside_the_result(tmp_path: Path, locks: Path) -> None:
    check_output(tmp_path / "perf.json")
    (tmp_path / "damaged.json").write_text("[")
    for name in ("perf.json", "perf", "damaged.json"):
        append_result(tmp_path / name, result())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.json", "damaged.new-1.json", "perf.json"]
    assert len(list(locks.iterdir())) == 3
    assert all(path.name.startswith("result-") and path.suffix == ".lock" for path in locks.iterdir())


def test_a_cache_without_room_for_locks_is_told_before_a_run(tmp_path: Path, locks: Path) -> None:
    locks.write_text("a file")
    with pytest.raises(GauntletError, match=f"{locks}: the lock of {tmp_path}/perf.json cannot be created there"):
        check_output(tmp_path / "perf.json")


def test_a_lock_that_is_never_freed_is_named(tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_result, "_LOCK_SECONDS", 0.1)
    path = tmp_path / "perf.json"
    with (
        bench_result._hold_lock(path, locks),
        pytest.raises(GauntletError, match="another process has been writing to it"),
    ):
        append_result(path, result())


def start(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "perf.json"
    link = tmp_path / "link.json"
    link.symlink_to(path)
    names = "abd"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(link if name == "d" else path), name, "12"], cwd=ROOT)
        for name in names
    ]
    assert [writer.wait() for writer in writers] == [0] * len(names)
    found = read(path)
    for name in names:
        assert [entry["number"] for entry in found if entry["writer"] == name] == [*range(12)]
    assert not strays(tmp_path)


@pytest.mark.parametrize("there", [pytest.param(False, marks=pytest.mark.stress), True])
def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path: Path, *, there: bool) -> None:
    path = tmp_path / "perf.json"
    if there:
        append_result(path, result(number=0))
    argv = [sys.executable, "-c", KILLED, str(path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS)
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    before = [0] if there else []
    lost = kept = 0
    for number, killed, reported, found in turns:
        # All that it reported is there, and what it did not report is there as a whole or not at all.
        assert reported is not killed
        assert found in ([*before, number], before) if killed else found == [*before, number]
        lost, kept = lost + (found == before), kept + (killed and found != before)
        before = found
    assert lost > 5
    assert kept > 0
    append_result(path, result())
    assert len(read(path)) == len(before) + 1
    assert not strays(tmp_path)
