from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import obstore
import pytest

from iree_gauntlet.artifacts.object_stores import open_store
from iree_gauntlet.engine.modules.module_cache import ModuleCache, ModuleEntry
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.modules.shared_modules import SharedLookup, SharedModules, shared_modules
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.settings import Configuration
from tests.support.command_line import LIMIT_SECONDS
from tests.support.emulators import ACCOUNT, Azurite, Bucket
from tests.support.places import ROOT
from tests.support.processes import wait_until
from tests.support.toy_project import FLAGS, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOW = datetime(2026, 11, 21, tzinfo=UTC)
INGREDIENTS = {"kind": "compile", "program": "ab" * 32, "compiler": "3.13.0"}
KEY = make_key(INGREDIENTS)
NEVER = threading.Event()


def publish(cache: ModuleCache, folder: Path, content: bytes = b"vmfb") -> ModuleEntry:
    folder.mkdir(exist_ok=True)
    (folder / "m.vmfb").write_bytes(content)
    published = cache.publish(
        {"module": folder / "m.vmfb"},
        name="model/sub@cpu:compile",
        ingredients=INGREDIENTS,
        metadata={"statistics": {"dispatch_count": 3}},
        created=NOW,
    )
    (folder / "m.vmfb").unlink()
    assert published.entry is not None
    return published.entry


@dataclass
class Remote:
    """A shared store, as machines see it."""

    url: str
    configuration: Configuration

    def seen(self, *, write: bool = False, stall_timeout: float = 20.0) -> SharedModules:
        return SharedModules(self.url, self.configuration, write=write, stall_timeout=stall_timeout)

    def object(self) -> tuple[obstore.store.ObjectStore, str]:
        location = open_store(self.url, self.configuration)
        return location.store, f"{location.path}/v1/{KEY[:2]}/{KEY}.tar".lstrip("/")

    def content(self) -> bytes:
        return bytes(obstore.get(*self.object()).bytes())

    def put(self, content: bytes) -> None:
        obstore.put(*self.object(), content)

    def keys(self) -> list[str]:
        location = open_store(self.url, self.configuration)
        return sorted(item["path"] for batch in obstore.list(location.store) for item in batch)


@pytest.fixture
def folder_remote(tmp_path: Path) -> Remote:
    folder = tmp_path / "the shared ones"
    folder.mkdir()
    return Remote(folder.as_uri(), Configuration())


@pytest.fixture(params=["folder", "azurite"])
def remote(request: pytest.FixtureRequest) -> Remote:
    if request.param == "folder":
        return request.getfixturevalue("folder_remote")  # type: ignore[no-any-return]
    azurite: Azurite = request.getfixturevalue("azurite")
    environ = {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string()}
    return Remote(f"az://{ACCOUNT}/{azurite.container(public=False)}/the/modules", Configuration(environ=environ))


@pytest.fixture
def first(tmp_path: Path) -> ModuleCache:
    return ModuleCache(tmp_path / "first")


@pytest.fixture
def second(tmp_path: Path) -> ModuleCache:
    return ModuleCache(tmp_path / "second")


def find(shared: SharedModules, cache: ModuleCache) -> SharedLookup:
    return shared.find(KEY, cache, "model/sub@cpu:compile", ["module"], NEVER)


def test_what_one_machine_has_made_another_one_gets(
    remote: Remote, first: ModuleCache, second: ModuleCache, tmp_path: Path
) -> None:
    assert find(remote.seen(), second) == SharedLookup(has_response=True)
    made = publish(first, tmp_path / "run")
    writer = remote.seen(write=True)
    assert writer.offer(KEY, first, NEVER) == ""
    before = remote.content()
    assert writer.offer(KEY, first, NEVER) == "", "once more changes nothing"
    assert remote.content() == before
    found = find(remote.seen(), second)
    assert found.note == ""
    assert found.entry is not None
    assert found.entry.files["module"].read_bytes() == b"vmfb"
    assert (found.entry.metadata, found.entry.created) == (made.metadata, made.created)
    assert second.lookup(KEY).entry == found.entry
    assert second.explain_miss("model/sub@cpu:compile", INGREDIENTS).startswith("was compiled here")
    assert list((second.folder / "modules" / "making").iterdir()) == []


def test_reading_alone_is_the_default(remote: Remote, first: ModuleCache, tmp_path: Path) -> None:
    publish(first, tmp_path / "run")
    assert remote.seen().offer(KEY, first, NEVER) == ""
    assert remote.keys() == []


def test_nothing_that_is_there_is_replaced(remote: Remote, first: ModuleCache, tmp_path: Path) -> None:
    remote.put(b"somebody else's")
    publish(first, tmp_path / "run")
    assert remote.seen(write=True).offer(KEY, first, NEVER) == ""
    assert remote.content() == b"somebody else's"


def test_what_is_damaged_is_a_miss_and_mended_by_who_may_write(
    remote: Remote, first: ModuleCache, second: ModuleCache, tmp_path: Path
) -> None:
    publish(first, tmp_path / "run")
    writer = remote.seen(write=True)
    writer.offer(KEY, first, NEVER)
    good = remote.content()
    for bad in (good[:700], good + b"x", good[:600] + b"!" + good[601:], b"", bytes(len(good))):
        remote.put(bad)
        found = find(writer, second)
        assert found.entry is None
        assert found.note.startswith(f"{remote.url}/v1/{KEY[:2]}/{KEY}.tar is not used: ")
        assert second.lookup(KEY).note == ""
    assert find(writer, second).note, "a damaged entry does not keep others from being looked up"
    assert writer.offer(KEY, first, NEVER) == ""
    assert remote.content() == good
    assert find(remote.seen(), second).entry is not None


def test_a_damaged_local_entry_gives_way(
    folder_remote: Remote, first: ModuleCache, second: ModuleCache, tmp_path: Path
) -> None:
    for cache in (first, second):
        publish(cache, tmp_path / "run")
    folder_remote.seen(write=True).offer(KEY, first, NEVER)
    (second.get_entry_folder(KEY) / "module").write_bytes(b"fake")
    assert second.lookup(KEY).note == "damaged: the checksum of module does not match"
    assert find(folder_remote.seen(), second).entry is not None
    assert ModuleCache(second.folder).lookup(KEY).entry is not None


def test_a_large_module_is_streamed_both_ways(remote: Remote, first: ModuleCache, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 64
    publish(first, tmp_path / "run", content)
    script = """
import sys
from pathlib import Path
from tests.engine.test_shared_modules import *
from iree_gauntlet.settings import Configuration
url, environ, folder = sys.argv[1], eval(sys.argv[2]), Path(sys.argv[3])
shared = SharedModules(url, Configuration(environ=environ), write=True)
cache = ModuleCache(folder / "first")
assert cache.lookup(KEY).entry
def most():
    # Not ru_maxrss, which begins at what the process had that forked this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = most()
assert shared.offer(KEY, cache, NEVER) == ""
assert shared.offer(KEY, cache, NEVER) == ""
found = find(shared, ModuleCache(folder / "second"))
assert found.entry, found
print(most() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, remote.url, repr(dict(remote.configuration.environ)), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 56 * 1024, "KiB more than before"
    entry = ModuleCache(tmp_path / "second").lookup(KEY).entry
    assert entry is not None
    assert entry.files["module"].read_bytes() == content


@pytest.mark.parametrize("conditional_put", ["etag", "disabled"])
def test_stores_that_cannot_be_told_to_replace_nothing_are_asked_first(
    s3: Bucket, first: ModuleCache, second: ModuleCache, tmp_path: Path, conditional_put: str
) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    options = {"endpoint": s3.endpoint, "conditional_put": conditional_put}
    stores = {f"s3://{s3.name}": options}
    remote = Remote(f"s3://{s3.name}/{conditional_put}", Configuration(environ=environ, stores=stores))
    assert find(remote.seen(), second) == SharedLookup(has_response=True)
    publish(first, tmp_path / "run")
    assert remote.seen(write=True).offer(KEY, first, NEVER) == ""
    assert find(remote.seen(), second).entry is not None
    remote.put(b"somebody else's")
    assert remote.seen(write=True).offer(KEY, first, NEVER) == ""
    assert remote.content() == b"somebody else's"


def test_a_file_that_changes_while_it_is_sent_is_not_sent(remote: Remote, first: ModuleCache, tmp_path: Path) -> None:
    entry = publish(first, tmp_path / "run", bytes(40 << 20))
    with entry.files["module"].open("r+b") as file:
        file.seek(39 << 20)
        file.write(b"x")
    note = remote.seen(write=True).offer(KEY, first, NEVER)
    assert note == "not put into the shared cache: the checksum of module does not match"
    assert remote.keys() == []


def private(azurite: Azurite) -> Remote:
    key = base64.b64encode(b"wrong" * 12).decode()
    environ = {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string(key=key)}
    return Remote(f"az://{ACCOUNT}/{azurite.container(public=False)}", Configuration(environ=environ))


def test_a_store_that_refuses_is_one_note(azurite: Azurite, first: ModuleCache, tmp_path: Path) -> None:
    publish(first, tmp_path / "run")
    remote = private(azurite)
    shared = remote.seen(write=True)
    found = find(shared, first)
    assert found == SharedLookup(
        note=f"the shared cache {remote.url} is not used in this run: HTTP 403 (AuthorizationFailure)"
    )
    assert find(shared, first) == SharedLookup()
    assert shared.offer(KEY, first, NEVER) == "", "it was given up"
    shared = remote.seen(write=True)
    note = shared.offer(KEY, first, NEVER)
    assert note == f"the shared cache {remote.url} is not filled in this run: HTTP 403 (AuthorizationFailure)"
    assert shared.offer(KEY, first, NEVER) == ""


def test_a_container_that_does_not_exist_is_said(azurite: Azurite, second: ModuleCache) -> None:
    environ = {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string()}
    remote = Remote(f"az://{ACCOUNT}/nosuch/modules", Configuration(environ=environ))
    assert find(remote.seen(), second).note.endswith("HTTP 404 (ContainerNotFound)")


def test_a_folder_that_does_not_exist_is_said_and_not_made(tmp_path: Path, second: ModuleCache) -> None:
    remote = Remote((tmp_path / "nowhere").as_uri(), Configuration())
    assert find(remote.seen(), second).note.endswith(f"there is no folder {tmp_path / 'nowhere'}")
    assert not (tmp_path / "nowhere").exists()


def test_a_wrong_option_is_said(second: ModuleCache) -> None:
    stores = {"s3://bucket": {"no_such_option": "1"}}
    remote = Remote("s3://bucket/x", Configuration(stores=stores))
    assert "not used in this run" in find(remote.seen(), second).note


@contextlib.contextmanager
def silent_server(on_taken: Callable[[], object] = int) -> Iterator[tuple[int, list[socket.socket]]]:
    """Takes connections and says nothing.

    Args:
        on_taken: called when one was taken.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])
                    on_taken()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], taken
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()


def silent(port: int) -> Remote:
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    key = base64.b64encode(b"x" * 64).decode()
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={endpoint};"
    return Remote(f"az://{ACCOUNT}/c", Configuration(environ={"AZURE_STORAGE_CONNECTION_STRING": text}))


def test_a_dead_store_costs_one_timeout_however_many_ask(second: ModuleCache) -> None:
    with silent_server() as (port, taken):
        shared = silent(port).seen(stall_timeout=0.5)
        found: list[SharedLookup] = []
        threads = [threading.Thread(target=lambda: found.append(find(shared, second))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: len(taken) >= 2)
        assert len(taken) == 2, "one request, tried twice"
    assert sorted(bool(item.note) for item in found) == [False] * 7 + [True]
    assert not any(item.entry or item.has_response for item in found)


def test_a_cancelled_run_does_not_wait_for_it(second: ModuleCache) -> None:
    cancelled = threading.Event()
    with silent_server(cancelled.set) as (port, taken):
        with pytest.raises(GauntletError, match="cancelled"):
            silent(port).seen(stall_timeout=LIMIT_SECONDS).find(KEY, second, "x", [], cancelled)
        assert len(taken) == 1, "which has said nothing yet"
    # The thread that was left behind ends with its server.
    wait_until(lambda: all(thread.name != "shared-modules" for thread in threading.enumerate()))


def test_a_cache_without_room_is_a_note(folder_remote: Remote, first: ModuleCache, tmp_path: Path) -> None:
    publish(first, tmp_path / "run")
    folder_remote.seen(write=True).offer(KEY, first, NEVER)
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "modules").write_text("a file where a folder should be")
    shared = folder_remote.seen()
    assert find(shared, ModuleCache(tmp_path / "third")).note.startswith("the shared cache's module is not used: ")
    assert find(shared, ModuleCache(tmp_path / "second")).entry is not None


def test_what_is_not_in_the_local_cache_is_not_offered(folder_remote: Remote, first: ModuleCache) -> None:
    note = folder_remote.seen(write=True).offer(KEY, first, NEVER)
    assert note == "not put into the shared cache: the local one does not have it"


def test_offline_asks_folders_alone() -> None:
    def opened(url: str, *, offline: bool) -> SharedModules | None:
        return shared_modules(Configuration(shared_modules=url, fills_shared_modules=True), offline=offline)

    assert shared_modules(Configuration(), offline=False) is None
    assert opened("az://a/c/x", offline=True) is None
    for url, offline in (("az://a/c/x", False), ("file:///x", True)):
        found = opened(url, offline=offline)
        assert found is not None
        assert (found.url, found.write) == (url, True)


@pytest.mark.iree
def test_each_module_is_compiled_once_for_all_machines(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    machines = []
    for name in ("a", "b"):
        project = Project(tmp_path / name, cache="flags")
        (project.folder / "gauntlet.toml").write_text(
            f'[modules]\nurl = "{shared.as_uri()}"\n' + ("write = true\n" if name == "a" else "")
        )
        machines.append(project)
    first, second = machines
    step = "toy/abs@cpu:compile"
    shared.mkdir()

    done = first.gauntlet("compile")
    assert done.code == 0, done.text
    cache = first.result(step)["cache"]
    assert (cache["hit"], cache["reason"]) == (False, "never compiled here; not in the shared cache")
    assert len(list(shared.rglob("*.tar"))) == 1

    done = second.gauntlet("threshold", "--offline", "--model", "toy")
    assert done.code == 0, done.text
    result = second.result(step)
    assert result["cache"] == {"hit": True, "key": cache["key"], "reason": f"from the shared cache {shared.as_uri()}"}
    assert result["tool_seconds"] == 0
    assert result["statistics"]["dispatch_count"] == first.result(step)["statistics"]["dispatch_count"]
    modules = [next(project.newest.rglob("module.vmfb")).read_bytes() for project in machines]
    assert modules[0] == modules[1]
    assert second.verdict("toy/abs@cpu:threshold") == "passed"

    assert second.gauntlet("compile").code == 0
    assert second.result(step)["cache"]["reason"] == "in the cache"

    assert second.gauntlet("compile", "--force-recompile").code == 0
    assert second.result(step)["cache"]["reason"] == "--force-recompile"

    second.add("neg", "arith.negf %a : tensor<4xf32>")
    assert second.gauntlet("compile").code == 0
    assert len(list(shared.rglob("*.tar"))) == 1, "who only reads leaves nothing there"
    first.add("neg", "arith.negf %a : tensor<4xf32>")
    options = "--iree-hal-dump-executable-files-to=dump"
    first.regression("neg", compiler_flags=[*FLAGS, options])
    assert first.gauntlet("compile").code == 0
    assert len(list(shared.rglob("*.tar"))) == 1, "dumps are in no cache"

    [entry] = shared.rglob("*.tar")
    entry.write_bytes(entry.read_bytes()[:-2000])
    third = Project(tmp_path / "c", cache="flags")
    (third.folder / "gauntlet.toml").write_text(f'[modules]\nurl = "{shared.as_uri()}"\n')
    assert third.gauntlet("compile").code == 0
    [note] = [note for note in third.result(step)["notes"] if "is not used" in note]
    assert note.startswith(entry.as_uri())
    assert third.result(step)["cache"]["reason"] == "never compiled here"
