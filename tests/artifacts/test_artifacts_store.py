"""The store with a real server: files are fetched once, verified, pinned and remembered."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.publishing import hold_lock
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.progress import Progress, Recorder
from iree_gauntlet.system import file_lock
from tests.support.artifact_server import Server, make_responder
from tests.support.command_line import LIMIT_SECONDS
from tests.support.download_checks import NoteTrigger, make_store, read_artifacts, sha256
from tests.support.permissions import enforce_permissions

if TYPE_CHECKING:
    from pathlib import Path

_CONTENT = b"weights" * 100_000
_SHA256 = sha256(_CONTENT)


def test_fetched_once_pinned_and_remembered(server: Server, tmp_path: Path) -> None:
    url = server.url("/dir/model.mlir", make_responder(_CONTENT))
    files = make_store(tmp_path)
    assert files.path(url) == tmp_path / "artifacts" / make_local_name(url)
    assert (files.get_known_hash(url), files.is_present(url)) == ("", False)
    assert not list(tmp_path.iterdir()), "planning writes nothing"

    fetched = files.fetch(url)
    assert (fetched.url, fetched.path) == (url, files.path(url))
    assert (fetched.sha256, fetched.bytes, fetched.cached) == (_SHA256, len(_CONTENT), False)
    assert fetched.path.read_bytes() == _CONTENT
    assert "registry.lock.txt" in fetched.notes[-1]
    assert (files.get_known_hash(url), files.is_present(url)) == (_SHA256, True)
    assert (tmp_path / "registry.lock.txt").read_text() == f"{make_local_name(url)} sha256:{_SHA256} {url}\n"

    again = make_store(tmp_path).fetch(url)
    assert (again.sha256, again.cached, again.notes) == (_SHA256, True, ())
    assert server.hits["/dir/model.mlir"] == 1
    assert list(read_artifacts(tmp_path)) == [make_local_name(url)]


def test_a_registered_hash_needs_no_lock_file(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))
    files = make_store(tmp_path, pins={url: _SHA256})
    assert files.get_known_hash(url) == _SHA256
    assert files.fetch(url).notes == ()
    assert not (tmp_path / "registry.lock.txt").exists()


def test_what_is_ended_while_it_is_checked_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    class EndedWhileChecking(Progress):
        def hash_progress(self, url: str, done: int, total: int) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    url = server.url("/m.mlir", make_responder(_CONTENT, ETag='"1"'))
    with pytest.raises(KeyboardInterrupt):
        make_store(tmp_path, pins={url: _SHA256}, progress=EndedWhileChecking()).fetch(url)
    begun = server.hits["/m.mlir"]
    assert make_store(tmp_path, pins={url: _SHA256}).fetch(url).sha256 == _SHA256
    assert server.hits["/m.mlir"] == begun


@pytest.mark.parametrize("by_lock", [False, True])
def test_a_wrong_hash_replaces_nothing(server: Server, tmp_path: Path, *, by_lock: bool) -> None:
    url = server.url("/m.mlir", make_responder(b"tampered"))
    files = make_store(tmp_path, pins={} if by_lock else {url: _SHA256})
    if by_lock:
        (tmp_path / "registry.lock.txt").write_text(f"{make_local_name(url)} sha256:{_SHA256} {url}\n")
    files.path(url).parent.mkdir(parents=True)
    files.path(url).write_bytes(b"what was there")
    with pytest.raises(ArtifactError) as caught:
        files.fetch(url)
    message = str(caught.value)
    for part in (url, _SHA256, sha256(b"tampered"), "8 B", "registry", "nothing was replaced"):
        assert part in message
    assert files.path(url).read_bytes() == b"what was there"
    assert list(read_artifacts(tmp_path)) == [make_local_name(url)]


def test_a_damaged_file_is_noticed_and_fetched_again(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))
    path = make_store(tmp_path).fetch(url).path
    path.write_bytes(_CONTENT[:-1])
    with pytest.raises(ArtifactError, match="offline") as caught:
        make_store(tmp_path, offline=True).fetch(url)
    assert caught.value.hint
    fetched = make_store(tmp_path).fetch(url)
    assert not fetched.cached
    assert "has unexpected content" in fetched.notes[0]
    assert path.read_bytes() == _CONTENT
    assert server.hits["/m.mlir"] == 2


def test_a_touched_file_is_hashed_not_fetched(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))
    path = make_store(tmp_path).fetch(url).path
    os.utime(path, (1, 1))
    assert make_store(tmp_path).fetch(url).cached
    assert server.hits["/m.mlir"] == 1


def test_a_lost_lock_file_is_written_again(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))
    make_store(tmp_path).fetch(url)
    (tmp_path / "registry.lock.txt").unlink()
    assert make_store(tmp_path).fetch(url).cached
    assert _SHA256 in (tmp_path / "registry.lock.txt").read_text()
    # Without a pin, what it was when it was verified is what it must be.
    (tmp_path / "registry.lock.txt").unlink()
    make_store(tmp_path).path(url).write_bytes(b"damaged")
    assert not make_store(tmp_path).fetch(url).cached
    assert make_store(tmp_path).path(url).read_bytes() == _CONTENT


def test_a_changed_pin_makes_a_present_file_wrong(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))
    make_store(tmp_path).fetch(url)
    new = b"a new release"
    server.url("/m.mlir", make_responder(new))
    files = make_store(tmp_path, pins={url: sha256(new)})
    assert not files.is_present(url)
    assert files.fetch(url).path.read_bytes() == new


def test_a_broken_lock_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "registry.lock.txt").write_text("<<<<<<< ours\n")
    with pytest.raises(ArtifactError, match=r"registry\.lock\.txt:1"):
        make_store(tmp_path).get_known_hash("https://h/m.mlir")


def test_offline(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="offline"):
        make_store(tmp_path, offline=True).fetch("https://h.invalid/m.mlir")


@pytest.mark.usefixtures("settled")
def test_local_files_are_used_in_place(tmp_path: Path) -> None:
    file = tmp_path / "a b.npy"
    file.write_bytes(b"mine")
    files = make_store(tmp_path / "cache")
    fetched = files.fetch(file.as_uri())
    assert (fetched.path, fetched.cached, fetched.bytes) == (file, True, 4)
    assert fetched.sha256 == sha256(b"mine") == files.get_known_hash(file.as_uri())
    assert not (tmp_path / "cache" / "artifacts").exists()
    with pytest.raises(ArtifactError, match=r"none\.npy is missing"):
        files.fetch((tmp_path / "none.npy").as_uri())
    with pytest.raises(ArtifactError, match="is a folder or a device"):
        files.fetch(tmp_path.as_uri())


def test_seeded_data_is_made_and_needs_no_pin(tmp_path: Path) -> None:
    url = "random://uniform/4x8xf32?seed=3"
    files = make_store(tmp_path, offline=True)
    first = files.fetch(url)
    assert (first.cached, files.fetch(url).cached, first.notes) == (False, True, ())
    assert first.path.suffix == ".npy"
    content = first.path.read_bytes()
    first.path.write_bytes(b"damaged")
    assert not make_store(tmp_path).fetch(url).cached
    assert first.path.read_bytes() == content
    assert not (tmp_path / "registry.lock.txt").exists()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("url", ["random://normal/4xf32?seed=3", "random://uniform/5xbf16"])
def test_seeded_data_without_a_record_is_what_its_url_makes(tmp_path: Path, url: str) -> None:
    """As a run leaves it that was killed between the file and its record, or in a cache that was moved."""
    fetched = make_store(tmp_path / "here").fetch(url)
    (tmp_path / "here").rename(tmp_path / "there")
    path = tmp_path / "there" / fetched.path.relative_to(tmp_path / "here")
    again = make_store(tmp_path / "there").fetch(url)
    assert (again.cached, again.path, again.sha256) == (True, path, fetched.sha256)
    assert make_store(tmp_path / "there").get_known_hash(url) == fetched.sha256

    shutil.rmtree(tmp_path / "there" / "verified")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    mended = make_store(tmp_path / "there").fetch(url)
    assert (mended.cached, mended.sha256, path.read_bytes()) == (False, fetched.sha256, content)
    assert "has unexpected content" in mended.notes[0]


def test_seeded_data_of_a_cache_that_is_read_only(tmp_path: Path) -> None:
    url = "random://uniform/4x8xf32?seed=3"
    path = make_store(tmp_path).fetch(url).path
    shutil.rmtree(tmp_path / "verified")
    with enforce_permissions():
        folders = [folder for folder in (tmp_path, *tmp_path.rglob("*")) if folder.is_dir()]
        for folder in folders:
            folder.chmod(0o555)
        try:
            assert make_store(tmp_path).fetch(url).cached
            path.write_bytes(b"damaged")
            with pytest.raises(ArtifactError, match="cannot write to"):
                make_store(tmp_path).fetch(url)
        finally:
            for folder in folders:
                folder.chmod(0o755)


def test_seeded_data_is_taken_from_nowhere(tmp_path: Path) -> None:
    temporary = tmp_path / "x"
    temporary.write_bytes(b"anything")
    with pytest.raises(ArtifactError, match="seeded data, which is never in archives"):
        make_store(tmp_path).adopt("random://zeros/4xf32", temporary, "0" * 64, Progress())
    assert read_artifacts(tmp_path) == {}


def test_redirects_are_followed(server: Server, tmp_path: Path) -> None:
    moved = make_responder(status=302, Location="/there.npy")
    server.url("/there.npy", make_responder(b"x"))
    assert make_store(tmp_path).fetch(server.url("/here.npy", moved)).path.read_bytes() == b"x"


def test_progress_tells_every_byte(server: Server, tmp_path: Path) -> None:
    class Watcher(Progress):
        def __init__(self) -> None:
            self.seen: list[tuple[str, int, int | None]] = []

        def download_progress(self, url: str, done: int, total: int | None) -> None:
            self.seen.append((url, done, total))

    watcher = Watcher()
    url = server.url("/m.mlir", make_responder(_CONTENT))
    ArtifactStore(tmp_path, Registry(), progress=watcher).fetch(url)
    assert watcher.seen[0] == (url, 0, len(_CONTENT))
    assert watcher.seen[-1] == (url, len(_CONTENT), len(_CONTENT))
    assert watcher.seen == sorted(watcher.seen)


def test_threads_fetch_once(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))
    files = make_store(tmp_path)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(files.fetch(url).cached)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True, True, True, True, True]
    assert server.hits["/m.mlir"] == 1


def test_a_long_wait_for_another_run_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "_FIRST_REMINDER_SECONDS", 0.01)
    monkeypatch.setattr(file_lock, "_REMINDER_SECONDS", LIMIT_SECONDS)
    held, noted = threading.Event(), threading.Event()
    recorder = Recorder(NoteTrigger("waiting for another download", noted.set))

    def hold() -> None:
        with hold_lock(tmp_path / "l" / "x.lock", "u", Progress()):
            held.set()
            noted.wait(LIMIT_SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(LIMIT_SECONDS)
    with hold_lock(tmp_path / "l" / "x.lock", "u", recorder):
        pass
    holder.join()
    assert len(recorder.notes) == 1
    assert "waiting for another download" in recorder.notes[0]


def test_others_may_read_a_shared_cache(tmp_path: Path) -> None:
    fetched = ArtifactStore(tmp_path, Registry()).fetch("random://zeros/4xf32")
    assert fetched.path.stat().st_mode & 0o777 == 0o644
