from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts import hashing
from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.engine.modules import module_cache
from iree_gauntlet.engine.modules.module_cache import (
    EntryGoneError,
    Lookup,
    ModuleCache,
    ModuleEntry,
    link_or_copy,
    seal_entry,
)
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.errors import find_error_path
from tests.support.clocks import Clock
from tests.support.permissions import enforce_permissions, mount_small_disk, with_mount_rights
from tests.support.places import ROOT
from tests.support.ticks import await_tick

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NOW = datetime(2026, 11, 21, tzinfo=UTC)
INGREDIENTS = {"compiler": "3.13.0", "program": "ab" * 32, "flags": '["--a=1"]'}
METADATA = {"statistics": {"dispatch_count": 3}, "diagnostics": "warning: ä", "seconds": 1.5}


def publish(
    cache: ModuleCache, folder: Path, ingredients: Mapping[str, str] = INGREDIENTS, content: bytes = b"vmfb"
) -> Lookup:
    folder.mkdir(exist_ok=True)
    (folder / "m.vmfb").unlink(missing_ok=True)
    (folder / "m.vmfb").write_bytes(content)
    (folder / "stats").unlink(missing_ok=True)
    (folder / "stats").write_bytes(b"{}")
    return cache.publish(
        {"module": folder / "m.vmfb", "statistics": folder / "stats"},
        name="model/sub.main@cpu",
        ingredients=ingredients,
        metadata=METADATA,
        created=NOW,
    )


def kept(cache: ModuleCache, folder: Path, content: bytes = b"vmfb") -> ModuleEntry:
    """An entry that was just published."""
    published = publish(cache, folder, content=content)
    assert published.entry is not None
    return published.entry


@pytest.fixture
def cache(tmp_path: Path) -> ModuleCache:
    return ModuleCache(tmp_path / "cache")


def leftovers(cache: ModuleCache) -> list[Path]:
    return list((cache.folder / "modules" / "making").iterdir())


def test_round_trip(cache: ModuleCache, tmp_path: Path) -> None:
    key = make_key(INGREDIENTS)
    assert cache.lookup(key) == Lookup(None)
    published = publish(cache, tmp_path / "run")
    assert published.note == ""
    for reader in (cache, ModuleCache(cache.folder)):
        found = reader.lookup(key)
        assert found.note == ""
        entry = found.entry
        assert entry is not None
        assert entry == published.entry
        assert entry.key == key
        assert entry.metadata == METADATA
        assert entry.ingredients == INGREDIENTS
        assert entry.created == "2026-11-21T00:00:00.000+00:00"
        cache.materialise(entry, "module", tmp_path / "out.vmfb")
        assert (tmp_path / "out.vmfb").read_bytes() == b"vmfb"
        with pytest.raises(KeyError):
            cache.materialise(entry, "other", tmp_path / "x")
    assert leftovers(cache) == []
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "run", "out.vmfb"}


def test_materialise_replaces_and_shares_bytes(cache: ModuleCache, tmp_path: Path) -> None:
    entry = kept(cache, tmp_path / "run")
    folder = tmp_path / "step"
    folder.mkdir()
    destination = folder / "m.vmfb"
    destination.write_text("of an earlier run")
    for _ in range(3):
        cache.materialise(entry, "module", destination)
        assert destination.read_bytes() == b"vmfb"
        assert list(folder.iterdir()) == [destination]
    assert destination.stat().st_ino == entry.files["module"].stat().st_ino
    with pytest.raises(FileNotFoundError):
        cache.materialise(entry, "module", tmp_path / "none" / "m.vmfb")


def test_without_hard_links_files_are_copied(
    cache: ModuleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def across(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", across)
    entry = kept(cache, tmp_path / "run")
    cache.materialise(entry, "module", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"vmfb"
    assert (tmp_path / "out").stat().st_nlink == 1
    (tmp_path / "run" / "m.vmfb").write_bytes(b"changed")
    assert cache.lookup(entry.key).entry == entry


def test_any_changed_byte_is_damage(cache: ModuleCache, tmp_path: Path) -> None:
    key = make_key(INGREDIENTS)
    place = cache.folder / "modules" / key[:2] / key
    publish(cache, tmp_path / "run")
    intact = {path.name: path.read_bytes() for path in place.iterdir()}
    assert set(intact) == {"entry.json", "module", "statistics"}
    for name, content in intact.items():
        for index in range(len(content)):
            path = place / name
            path.unlink()
            path.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
            found = ModuleCache(cache.folder).lookup(key)
            assert found.entry is None, (name, index)
            assert found.note.startswith("damaged: ")
            path.write_bytes(content)
    assert ModuleCache(cache.folder).lookup(key).entry is not None
    assert leftovers(cache) == []


@pytest.mark.parametrize("name", ["entry.json", "module", "statistics"])
def test_cut_or_missing_file_is_damage(cache: ModuleCache, tmp_path: Path, name: str) -> None:
    key = make_key(INGREDIENTS)
    path = cache.folder / "modules" / key[:2] / key / name
    publish(cache, tmp_path / "run")
    path.unlink()
    for _ in range(2):
        assert cache.lookup(key).note == "damaged: a file is missing"
    assert publish(cache, tmp_path / "run").entry is not None
    assert cache.lookup(key).entry is not None
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1])
    assert cache.lookup(key).note.startswith("damaged: ")


def test_writing_through_a_hard_link_is_noticed(cache: ModuleCache, tmp_path: Path) -> None:
    entry = kept(cache, tmp_path / "run")
    own = tmp_path / "run" / "m.vmfb"
    own.chmod(0o644)
    own.write_bytes(b"VMFB")
    assert cache.lookup(entry.key).note == "damaged: the checksum of module does not match"
    assert kept(cache, tmp_path / "run").files["module"].read_bytes() == b"vmfb"


def test_entry_under_another_key_is_damage(cache: ModuleCache, tmp_path: Path) -> None:
    key, other = make_key(INGREDIENTS), make_key({})
    publish(cache, tmp_path / "run")
    modules = cache.folder / "modules"
    (modules / other[:2]).mkdir(exist_ok=True)
    (modules / key[:2] / key).rename(modules / other[:2] / other)
    assert cache.lookup(other).note == "damaged: entry.json belongs to another key or format"


def test_entry_that_points_outside_is_damage(cache: ModuleCache, tmp_path: Path) -> None:
    key = make_key(INGREDIENTS)
    publish(cache, tmp_path / "run")
    path = cache.folder / "modules" / key[:2] / key / "entry.json"
    secret = hashlib.sha256(b"").hexdigest()
    forged = {"format": 1, "key": key, "files": {"../../x": {"sha256": secret}}}
    path.write_bytes(seal_entry(forged))
    assert cache.lookup(key).note == "damaged: entry.json names '../../x' as a file"
    with pytest.raises(ValueError, match="no key"):
        cache.lookup("../../etc")


def test_loser_of_a_race_uses_the_winner(cache: ModuleCache, tmp_path: Path) -> None:
    first = kept(cache, tmp_path / "a", b"first")
    second = kept(ModuleCache(cache.folder), tmp_path / "b", b"second")
    assert second == first
    assert second.files["module"].read_bytes() == b"first"
    assert leftovers(cache) == []


def test_damaged_winner_is_replaced(cache: ModuleCache, tmp_path: Path) -> None:
    kept(cache, tmp_path / "a", b"first").files["module"].unlink()
    second = kept(ModuleCache(cache.folder), tmp_path / "b", b"second")
    assert second.files["module"].read_bytes() == b"second"


def test_cleared_store_is_no_crash(cache: ModuleCache, tmp_path: Path) -> None:
    entry = kept(cache, tmp_path / "run")
    shutil.rmtree(cache.folder)
    with pytest.raises(EntryGoneError, match="was removed from the cache"):
        cache.materialise(entry, "module", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert cache.lookup(entry.key).entry is None
    assert publish(cache, tmp_path / "run").entry is not None


def test_store_that_cannot_be_written_gives_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = ModuleCache(tmp_path / "file")
    published = publish(cache, tmp_path / "run")
    assert published == Lookup(None, "not kept in the cache: Not a directory")
    assert cache.lookup(make_key(INGREDIENTS)).entry is None
    assert cache.explain_miss("x", {}) == "never compiled here"


def test_read_only_store_serves_and_stores_nothing(cache: ModuleCache, tmp_path: Path) -> None:
    publish(cache, tmp_path / "run")
    folders = [cache.folder, *(path for path in cache.folder.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with enforce_permissions():
            assert cache.lookup(make_key(INGREDIENTS)).entry is not None
            assert publish(cache, tmp_path / "run", {"other": ""}).note == "not kept in the cache: Permission denied"
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize("name", ["fsync", "link", "rename", "mkdir"])
def test_full_disk_gives_a_note_and_no_rubbish(
    cache: ModuleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(cache, tmp_path / "run", {"first": ""})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        if name == "link":
            patch.setattr(shutil, "copyfile", full)
        (tmp_path / "m").write_bytes(b"vmfb")
        published = cache.publish(
            {"module": tmp_path / "m"}, name="n", ingredients={"second": ""}, metadata={}, created=NOW
        )
    assert published == Lookup(None, "not kept in the cache: No space left on device")
    assert leftovers(cache) == []
    assert (tmp_path / "m").read_bytes() == b"vmfb"


def test_mistakes_of_a_caller_are_errors(cache: ModuleCache, tmp_path: Path) -> None:
    (tmp_path / "m").touch()
    for role in ("entry.json", "../x", "A", "", ".x", "a/b"):
        with pytest.raises(ValueError, match="is no role"):
            cache.publish({role: tmp_path / "m"}, name="n", ingredients={}, metadata={}, created=NOW)
    with pytest.raises(FileNotFoundError):
        cache.publish({"m": tmp_path / "none"}, name="n", ingredients={}, metadata={}, created=NOW)
    with pytest.raises(ValueError, match="JSON"):
        cache.publish({"m": tmp_path / "m"}, name="n", ingredients={}, metadata={"x": float("nan")}, created=NOW)


PUBLISHER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from iree_gauntlet.engine.modules.module_cache import ModuleCache
cache, work, count = ModuleCache(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
work.mkdir()
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    source = work / str(number)
    source.write_bytes(b"%d" % number * 200_000)
    done = cache.publish({"module": source}, name="n", ingredients={"n": str(number)}, metadata={},
                         created=datetime.now(UTC))
    assert done.entry is not None, done.note
    assert done.entry.files["module"].read_bytes() == b"%d" % number * 200_000
"""


def start_publisher(cache: ModuleCache, work: Path, count: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", PUBLISHER, str(cache.folder), str(work), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


KILLED = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.engine.modules.module_key import make_key
from tests.support.dying import kill_at_each_moment
folder = Path(sys.argv[1])
key = make_key({"n": "1"})
seen = set()
def publish():
    (folder / "m").write_bytes(b"vmfb" * 50_000)
    done = ModuleCache(folder / "cache").publish(
        {"module": folder / "m"}, name="n", ingredients={"n": "1"}, metadata={}, created=datetime.now(UTC))
    assert done.entry is not None, done.note
def look():
    found = ModuleCache(folder / "cache").lookup(key)
    seen.add(found.note or ("found" if found.entry else "not in the cache"))
    assert found.entry is None or found.entry.files["module"].read_bytes() == b"vmfb" * 50_000
    if found.entry is None:
        assert found.note == "", found.note
print(kill_at_each_moment(publish, look), *sorted(seen), sep="\\n")
"""


def test_killed_publisher_leaves_no_half_entry(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    moments, *seen = done.stdout.splitlines()
    assert int(moments) >= 10
    assert seen == ["found", "not in the cache"]


def test_two_publishers_of_the_same_keys(cache: ModuleCache, tmp_path: Path) -> None:
    with start_publisher(cache, tmp_path / "a", 30) as first, start_publisher(cache, tmp_path / "b", 30) as second:
        go(first)
        go(second)
    assert (first.returncode, second.returncode) == (0, 0)
    assert leftovers(cache) == []
    for number in range(30):
        assert cache.lookup(make_key({"n": str(number)})).entry is not None


def test_miss_is_explained(cache: ModuleCache, tmp_path: Path) -> None:
    name = "model/sub.main@cpu"
    assert cache.explain_miss(name, INGREDIENTS) == "never compiled here"
    kept(cache, tmp_path / "run")
    assert cache.explain_miss(name, INGREDIENTS) == "was compiled here, but is no longer in the cache"
    changed = {**INGREDIENTS, "compiler": "3.14.0"}
    assert cache.explain_miss(name, changed) == "compiler changed: 3.13.0 → 3.14.0"
    assert cache.explain_miss("model/sub_main@cpu", changed) == "never compiled here"
    assert cache.explain_miss("MODEL/sub.main@cpu", changed) == "never compiled here"
    for file in (cache.folder / "modules" / "by-name").iterdir():
        file.write_text("[]")
    assert cache.explain_miss(name, changed) == "never compiled here"


MAKE = """
import os, sys, threading
from pathlib import Path
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from tests.support.processes import wait_until
folder, key = Path(sys.argv[1]), sys.argv[2]
def make(number):
    (folder / f"begun{number}").touch()
    with ModuleCache(folder).hold_making_lock(key, threading.Event()):
        os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
        # All want it by now.
        wait_until(lambda: len(list(folder.glob("begun*"))) == 4)
        (folder / f"made{number}").touch()
        (folder / "inside").unlink()
        if number < 2:
            os.kill(os.getpid(), 9)
pids = []
for number in range(4):
    pids.append(os.fork())
    if not pids[-1]:
        code = 1
        try:
            make(number)
            code = 0
        finally:
            os._exit(code)
print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


def test_one_process_at_a_time_makes_a_module_and_a_dead_one_keeps_nobody_out(cache: ModuleCache) -> None:
    cache.folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MAKE, str(cache.folder), make_key(INGREDIENTS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("-9 -9 0 0\n", "")
    assert len(list(cache.folder.glob("made*"))) == 4


def test_making_leaves_no_lock_behind(cache: ModuleCache) -> None:
    with cache.hold_making_lock(make_key(INGREDIENTS), threading.Event()):
        assert leftovers(cache)
    assert not leftovers(cache)


def test_who_makes_a_module_hears_how_long_it_waited(cache: ModuleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, key = Clock(), make_key(INGREDIENTS)
    monkeypatch.setattr(module_cache, "time", clock)
    held = ExitStack()

    class FreedWhileWaiting(threading.Event):
        """The other maker ends after three seconds."""

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            clock.advance(3.0)
            held.close()
            return False

    with held:
        assert held.enter_context(cache.hold_making_lock(key, threading.Event())) == 0
        with cache.hold_making_lock(key, FreedWhileWaiting()) as waited:
            assert waited == 3.0


class CancelledWhileWaiting(threading.Event):
    """A run that is cancelled as soon as somebody waits."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.set()
        return super().wait(timeout)


def test_waiting_for_another_maker_ends_when_the_run_is_cancelled(cache: ModuleCache) -> None:
    key = make_key(INGREDIENTS)
    with (
        cache.hold_making_lock(key, threading.Event()),
        pytest.raises(WaitCancelledError),
        cache.hold_making_lock(key, CancelledWhileWaiting()),
    ):
        pytest.fail("two at once")


def test_a_store_without_room_for_locks_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "modules").write_text("a file where a folder should be")
    with ModuleCache(tmp_path).hold_making_lock(make_key(INGREDIENTS), threading.Event()):
        pass


LARGE = bytes(17 << 20)


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed from now on."""
    names: list[str] = []

    def note(path: Path) -> str:
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(module_cache, "hash_file", note)
    monkeypatch.setattr(hashing, "hash_file", note)
    return names


@pytest.mark.usefixtures("settled")
def test_a_large_file_is_hashed_once_for_all_processes(
    cache: ModuleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = kept(cache, tmp_path / "run", content=LARGE)
    names = hashed(monkeypatch)
    for _ in range(2):
        assert ModuleCache(cache.folder).lookup(entry.key).entry == entry
    assert names == ["statistics"] * 2
    # What remembers is only a memory.
    shutil.rmtree(cache.folder / "verified")
    for _ in range(2):
        assert ModuleCache(cache.folder).lookup(entry.key).entry == entry
    assert sorted(names[2:]) == ["module", *["statistics"] * 2]


@pytest.mark.usefixtures("settled")
def test_a_large_file_is_not_hashed_again_for_a_hard_link_to_it_but_once_more_when_one_goes(
    cache: ModuleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = kept(cache, tmp_path / "run", content=LARGE)
    names = hashed(monkeypatch)
    for run in range(3):
        reader = ModuleCache(cache.folder)
        assert reader.lookup(entry.key).entry == entry
        reader.materialise(entry, "module", tmp_path / f"{run}.vmfb")
        assert reader.lookup(entry.key).entry == entry
    assert "module" not in names
    await_tick(entry.files["module"])
    (tmp_path / "0.vmfb").unlink()
    for _ in range(2):
        assert ModuleCache(cache.folder).lookup(entry.key).entry == entry
    assert names.count("module") == 1


@pytest.mark.parametrize("content", [LARGE, b"vmfb"], ids=["large", "small"])
def test_a_file_that_was_edited_in_place_is_damage_though_its_time_is_set_back(
    cache: ModuleCache, tmp_path: Path, content: bytes
) -> None:
    entry = kept(cache, tmp_path / "run", content=content)
    before = entry.files["module"].stat()
    await_tick(entry.files["module"])
    with (tmp_path / "run" / "m.vmfb").open("r+b") as file:
        file.write(b"x")
    os.utime(entry.files["module"], ns=(before.st_atime_ns, before.st_mtime_ns))
    for reader in (cache, ModuleCache(cache.folder)):
        assert reader.lookup(entry.key).note == "damaged: the checksum of module does not match"


def test_a_large_file_that_was_written_to_is_damage(cache: ModuleCache, tmp_path: Path) -> None:
    entry = kept(cache, tmp_path / "run", content=LARGE)
    with (tmp_path / "run" / "m.vmfb").open("r+b") as file:
        file.write(b"x")
    for reader in (cache, ModuleCache(cache.folder), ModuleCache(cache.folder)):
        assert reader.lookup(entry.key).note == "damaged: the checksum of module does not match"
    again = publish(cache, tmp_path / "other", content=LARGE)
    assert again.note == ""
    assert ModuleCache(cache.folder).lookup(entry.key).entry is not None


def test_a_use_is_noted_at_most_once_an_hour(cache: ModuleCache, tmp_path: Path) -> None:
    clock = Clock(1_700_000_000.0)
    used = ModuleCache(cache.folder, clock=clock)
    entry = kept(cache, tmp_path / "run")
    file = cache.get_entry_folder(entry.key) / "entry.json"
    for age, noted in ((30 * 86400, True), (3601, True), (3600, False), (1800, False), (-1800, False)):
        before = clock.now - age
        os.utime(file, (before, before))
        assert used.lookup(entry.key).entry == entry
        assert (file.stat().st_mtime != before) == noted
    assert ModuleCache(cache.folder).lookup(entry.key).entry == entry


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_use_that_cannot_be_noted_does_no_harm(
    cache: ModuleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    entry = kept(cache, tmp_path / "run")
    os.utime(cache.get_entry_folder(entry.key) / "entry.json", (0, 0))

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.lookup(entry.key).entry == entry


@with_mount_rights
def test_a_copy_without_room_names_its_own_place(tmp_path: Path) -> None:
    source = tmp_path / "module"
    source.write_bytes(bytes(1 << 20))
    with mount_small_disk(tmp_path / "runs", "64k"):
        with pytest.raises(OSError, match="No space left") as raised:
            link_or_copy(source, tmp_path / "runs" / "module.vmfb")
        assert find_error_path(raised.value) == str(tmp_path / "runs" / "module.vmfb")
    with pytest.raises(FileNotFoundError) as missing:
        link_or_copy(tmp_path / "none", tmp_path / "copy")
    assert find_error_path(missing.value) == str(tmp_path / "none")
