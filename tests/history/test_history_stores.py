"""Places of histories: adding is a union, and nothing is lost whatever else happens at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.history.index import HistoryIndex
from iree_gauntlet.history.stores import HistoryStore, open_history
from iree_gauntlet.records.history_record import make_history_file
from iree_gauntlet.settings import Configuration
from tests.history.builder import run_of
from tests.support.checkout import needs_git
from tests.support.emulators import ACCOUNT
from tests.support.permissions import mount_read_only, mount_small_disk, resize_disk, with_mount_rights
from tests.support.ticks import await_tick

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.emulators import Azurite

_KINDS = ("folder", pytest.param("git", marks=needs_git), "objects")


@pytest.fixture(params=_KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Configuration]:
    """A history of each kind, as a user names it."""
    if request.param == "folder":
        return str(tmp_path / "history"), Configuration()
    if request.param == "git":
        subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "remote")], check=True)
        return f"git:{tmp_path / 'remote'}#history", Configuration()
    azurite: Azurite = request.getfixturevalue("azurite")
    environ = {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string()}
    return f"az://{ACCOUNT}/{azurite.container(public=False)}/runs", Configuration(environ=environ)


def opened(place: tuple[str, Configuration], cache: Path) -> HistoryStore:
    return open_history(*place, cache)


def test_what_is_added_is_there_once_and_as_it_was(place: tuple[str, Configuration], tmp_path: Path) -> None:
    files = dict(make_history_file(run_of(day)) for day in (1, 2, 3))
    store = opened(place, tmp_path / "one")
    assert store.list_stamps() == {}
    assert [store.add(files), store.add(files)] == [3, 0]
    # Another lab's machine sees the same, and adds its own.
    other = opened(place, tmp_path / "other")
    more = dict(make_history_file(run_of(day)) for day in (3, 4))
    assert other.add(more) == 1
    assert set(store.list_stamps()) == {*files, *more}
    assert {name: other.read(name) for name in other.list_stamps()} == files | more
    store.remove(list(files)[:1])
    assert set(other.list_stamps()) == {*files, *more} - set(list(files)[:1])


def test_a_file_of_a_folder_that_is_edited_in_place_has_another_stamp(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path / "cache")
    store.add(dict([make_history_file(run_of(1))]))
    before = store.list_stamps()
    (path,) = (tmp_path / "history").glob("*/*.json")
    times = path.stat()
    await_tick(path)
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.list_stamps().keys() == before.keys()
    assert store.list_stamps() != before
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)


def test_all_that_add_at_once_are_there(place: tuple[str, Configuration], tmp_path: Path) -> None:
    def add(day: int) -> int:
        return opened(place, tmp_path / f"machine{day}").add(dict([make_history_file(run_of(day))]))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(add, range(1, 5))) == [1] * 4
    index = HistoryIndex(opened(place, tmp_path / "reader"))
    index.update()
    assert [run.run for run in index.runs()] == [f"run{day}" for day in range(1, 5)]


@needs_git
def test_one_that_was_killed_in_the_middle_of_git_keeps_nobody_from_adding(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "remote")], check=True)
    store = open_history(f"git:{tmp_path / 'remote'}#history", Configuration(), tmp_path / "cache")
    store.add(dict([make_history_file(run_of(1))]))
    (clone,) = (tmp_path / "cache").rglob("clone")
    # As it looks between a commit and its push, with a lock that nobody holds and a file that was being written.
    (clone / "2026" / "half.tmp").write_text("half")
    subprocess.run(["git", "-C", clone, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "--allow-empty",
                    "-m", "never pushed"], check=True)  # fmt: skip
    (clone / ".git" / "index.lock").write_text("")
    assert store.add(dict([make_history_file(run_of(2))])) == 1
    said = subprocess.run(["git", "-C", tmp_path / "remote", "log", "--format=%s", "history"], check=True,
                          capture_output=True, text=True)  # fmt: skip
    assert said.stdout.splitlines() == ["Add 1 run", "Add 1 run"]


def git(*words: str | Path) -> str:
    return subprocess.run(["git", *map(str, words)], check=True, capture_output=True, text=True).stdout


@needs_git
def test_a_remote_is_reached_with_the_settings_of_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q", "--bare", tmp_path / "bare")
    for name in ("one", "two"):
        git("init", "-q", tmp_path / name)
        here = ("-C", tmp_path / name, "config")
        # As a runner's checkout has its credentials: in settings of its own, and these in a file that they include.
        git(*here, "remote.origin.url", "https://host.example/me/repo")
        git(*here, "include.path", "../more")
        (tmp_path / name / "more").write_text(f'[url "{tmp_path}/bare"]\n\tinsteadOf = https://host.example/me/repo\n')
        git(*here, "user.name", name)
        git(*here, "user.email", f"{name}@example.org")
    for day, name in enumerate(("one", "two"), start=1):
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "commit.gpgsign")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", "false")
        # Where there is no cache yet, as on a new runner.
        store = open_history("git:origin#history", Configuration(), tmp_path / f"cache of {name}")
        assert store.add(dict([make_history_file(run_of(day))])) == 1
        assert len(store.list_stamps()) == day
    authors = git("-C", tmp_path / "bare", "log", "--format=%an %ae", "history")
    assert authors.splitlines() == ["two two@example.org", "one one@example.org"]
    with pytest.raises(UsageError, match="no folder elsewhere, and no git remote of this name"):
        open_history("git:elsewhere#history", Configuration(), tmp_path)


@needs_git
def test_two_repositories_that_are_named_alike_are_two_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, name in enumerate(("one", "two"), start=1):
        git("init", "-q", "--bare", tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        store = open_history("git:.#history", Configuration(), tmp_path / "cache")
        store.add(dict([make_history_file(run_of(day))]))
        assert len(store.list_stamps()) == 1


def test_a_process_that_is_killed_while_it_adds_leaves_whole_files_alone(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from iree_gauntlet.history.stores import FolderHistory
from iree_gauntlet.records.history_record import make_history_file
from tests.history.builder import run_of
import iree_gauntlet.system.atomic as atomic
real = os.replace
def replace(*words):
    if len(list(Path(sys.argv[1]).rglob("*.json"))) == 2:
        os.kill(os.getpid(), 9)
    real(*words)
os.replace = replace
files = dict(make_history_file(run_of(day)) for day in range(1, 6))
FolderHistory("h", Path(sys.argv[1]), Path(sys.argv[1])).add(files)
"""
    folder = tmp_path / "history"
    done = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert done.returncode == -9
    store = open_history(str(folder), Configuration(), tmp_path)
    index = HistoryIndex(store)
    index.update()
    assert (len(index.runs()), index.problems()) == (2, ())
    assert store.add(dict(make_history_file(run_of(day)) for day in range(1, 6))) == 3


@with_mount_rights
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    with mount_small_disk(folder, "16k"):
        store = open_history(str(folder), Configuration(), tmp_path)
        with pytest.raises(GauntletError, match="No space left on device"):
            store.add(dict(make_history_file(run_of(day)) for day in range(1, 20)))
        kept = set(store.list_stamps())
        assert all(store.read(name).endswith(b"}\n") for name in kept)
        resize_disk(folder, "1m")
        assert store.add(dict(make_history_file(run_of(day)) for day in range(1, 20))) == 19 - len(kept)


@with_mount_rights
def test_a_folder_that_can_only_be_read_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    open_history(str(folder), Configuration(), tmp_path).add(dict([make_history_file(run_of(1))]))
    with mount_read_only(folder):
        index = HistoryIndex(open_history(str(folder), Configuration(), tmp_path / "cache"))
        index.update()
        assert [run.run for run in index.runs()] == ["run1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("git:.", "no branch"),
        ("git:.#-x", "no branch"),
        ("ftp://host/x", "unknown kind of place"),
        ("{file}", "it is a file"),
    ],
)
def test_what_is_no_place_for_a_history_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match=said):
        open_history(text.format(file=file), Configuration(), tmp_path)
