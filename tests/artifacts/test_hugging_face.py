"""A small Hugging Face hub: it redirects to a store on another host, gives the hash, and requires a token."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.remotes import list_remotes
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.progress import Progress
from iree_gauntlet.settings import Configuration
from tests.support.download_checks import (
    CONTENT_BYTES,
    PART_BYTES,
    configure,
    fail_fetch,
    list_partials,
    make_content,
    make_store,
    read_all_files,
    read_artifacts,
    sha256,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_REVISION = "0123456789abcdef0123456789abcdef01234567"
_URL = f"hf://meta-llama/Llama-3.1-8B@{_REVISION}/model.safetensors"
_TOKEN = "hf_hunter2hunter2"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_SIGNATURE = "X-Signature=hunter3"


@dataclass
class _Hub:
    """The hub at 127.0.0.1, and its store at localhost, which is another host to any client.

    Attributes:
        files: content by path at the hub.
        private: whether a token is wanted.
        expires_after: answers of the store after which a signed URL is refused.
        seen: host, path and Authorization header of each request.
        sent: what the store sends, where it is not the right content.
    """

    base: str = ""
    store: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    private: bool = False
    expires_after: int = 1 << 30
    signed: int = 0
    uses: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    sent: bytes | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def configuration(self) -> Configuration:
        return configure({"HF_ENDPOINT": self.base})

    @property
    def configuration_with_token(self) -> Configuration:
        return configure({"HF_ENDPOINT": self.base, "HF_TOKEN": _TOKEN})

    def authorizations(self, host: str) -> set[str]:
        return {authorization for where, _, authorization in self.seen if where == host}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: _Hub

    def do_GET(self) -> None:
        hub = self.hub
        host = self.headers["Host"].partition(":")[0]
        with hub.lock:
            hub.seen.append((host, self.path, self.headers.get("Authorization", "")))
        if host == "localhost":
            self._store()
        else:
            self._hub()

    def _hub(self) -> None:
        hub = self.hub
        if hub.private and self.headers.get("Authorization") != f"Bearer {_TOKEN}":
            self._answer(401, {"X-Error-Code": "GatedRepo"}, b"Access to this model is restricted.")
            return
        data = hub.files.get(self.path)
        if data is None:
            self._answer(404, {"X-Error-Code": "EntryNotFound"}, b"Entry not found")
            return
        if len(data) < 1000:  # not in the large file storage
            self._answer(200, {"ETag": '"0a4d55a8d778e5022fab701977c5d840bbc486d0"'}, data)
            return
        with hub.lock:
            hub.signed += 1
            place = f"{hub.store}{self.path}?{_SIGNATURE}{hub.signed}"
        linked = {"X-Linked-ETag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
        self._answer(302, {"Location": place, "X-Repo-Commit": _REVISION, **linked}, b"")

    def _store(self) -> None:
        hub = self.hub
        path, _, query = self.path.partition("?")
        with hub.lock:
            hub.uses[query] = hub.uses.get(query, 0) + 1
            expired = hub.uses[query] > hub.expires_after
        if expired or not query.startswith(_SIGNATURE):
            self._answer(403, {}, b"expired")
            return
        data = hub.files[path] if hub.sent is None else hub.sent
        match = _RANGE.match(self.headers.get("Range", ""))
        if match is None:
            self._answer(200, {"ETag": '"of the store"'}, data)
            return
        start, stop = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
        span = {"ETag": '"of the store"', "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        self._answer(206, span, data[start:stop])

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[_Hub]:
    hub = _Hub(files={f"/meta-llama/Llama-3.1-8B/resolve/{_REVISION}/model.safetensors": make_content()})

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.base, hub.store = (f"http://{host}:{server.server_address[1]}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _GoneError(Exception):
    pass


class _Impatient(Progress):
    """Ends the download after two parts, as Ctrl-C does."""

    def download_progress(self, url: str, done: int, total: int | None) -> None:
        if done > 2 * PART_BYTES:
            raise _GoneError(url, total)


def test_a_large_file_comes_in_parts_from_the_hubs_store(hub: _Hub, tmp_path: Path) -> None:
    fetched = make_store(tmp_path, configuration=hub.configuration).fetch(_URL)
    assert fetched.path.read_bytes() == make_content()
    assert (fetched.sha256, fetched.bytes) == (sha256(make_content()), CONTENT_BYTES)
    assert sum(host == "localhost" for host, _, _ in hub.seen) == 7
    assert hub.signed == 1, "the hub is asked once, not for every part"
    assert hub.authorizations("127.0.0.1") == {""}
    again = make_store(tmp_path, configuration=hub.configuration).fetch(_URL)
    assert (again.cached, again.sha256) == (True, sha256(make_content()))


def test_a_token_goes_to_the_hub_and_nowhere_else(hub: _Hub, tmp_path: Path) -> None:
    hub.private = True
    fetched = make_store(tmp_path, configuration=hub.configuration_with_token).fetch(_URL)
    assert fetched.path.read_bytes() == make_content()
    assert hub.authorizations("127.0.0.1") == {f"Bearer {_TOKEN}"}
    assert hub.authorizations("localhost") == {""}
    for path, data in read_all_files(tmp_path).items():
        for secret in (_TOKEN.encode(), _SIGNATURE.encode()):
            assert secret not in data, path
    assert _TOKEN not in "\n".join(fetched.notes)


def test_a_token_in_the_file_that_the_hubs_tools_write(hub: _Hub, tmp_path: Path) -> None:
    hub.private = True
    (tmp_path / "token").write_text(f"{_TOKEN}\n")
    configuration = configure({"HF_ENDPOINT": hub.base, "HF_HOME": str(tmp_path)})
    assert make_store(tmp_path / "cache", configuration=configuration).fetch(_URL).path.read_bytes() == make_content()


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_private_model_without_the_right_token(hub: _Hub, tmp_path: Path, token: str) -> None:
    hub.private = True
    configuration = configure({"HF_ENDPOINT": hub.base, "HF_TOKEN": token})
    error = fail_fetch(tmp_path, _URL, "HTTP 401", configuration=configuration)
    assert "HF_TOKEN" in error.hint
    assert "hf_wrong" not in str(error)


def test_signatures_that_expire_meanwhile(hub: _Hub, tmp_path: Path) -> None:
    hub.private = True
    hub.expires_after = 3
    fetched = make_store(tmp_path, configuration=hub.configuration_with_token).fetch(_URL)
    assert fetched.path.read_bytes() == make_content()
    assert hub.signed >= 3
    assert hub.authorizations("localhost") == {""}


def test_the_hash_that_the_hub_says_is_checked(hub: _Hub, tmp_path: Path) -> None:
    hub.sent = make_content(1)
    error = fail_fetch(tmp_path, _URL, "sha256", configuration=hub.configuration)
    assert sha256(make_content()) in str(error)
    assert _SIGNATURE not in str(error)
    assert list_partials(tmp_path) == []
    assert not (tmp_path / "registry.lock.txt").exists()
    hub.sent = None
    assert make_store(tmp_path, configuration=hub.configuration).fetch(_URL).sha256 == sha256(make_content())


def test_a_small_file_comes_from_the_hub_itself(hub: _Hub, tmp_path: Path) -> None:
    hub.files[f"/datasets/org/set/resolve/{_REVISION}/a%20b/config.json"] = b"{}"
    url = f"hf://datasets/org/set@{_REVISION}/a%20b/config.json"
    assert make_store(tmp_path, configuration=hub.configuration).fetch(url).path.read_bytes() == b"{}"


def test_a_file_that_the_hub_does_not_have(hub: _Hub, tmp_path: Path) -> None:
    url = f"hf://meta-llama/Llama-3.1-8B@{_REVISION}/absent.safetensors"
    fail_fetch(tmp_path, url, "HTTP 404", configuration=hub.configuration)


def test_an_interrupted_download_is_gone_on_with(hub: _Hub, tmp_path: Path) -> None:
    hub.expires_after = 3
    hub.private = True
    path = next(iter(hub.files))
    started = make_store(tmp_path, configuration=hub.configuration_with_token)
    started.progress = _Impatient()
    with pytest.raises(_GoneError):
        started.fetch(_URL)
    assert read_artifacts(tmp_path) == {}
    asked = len(hub.seen)
    fetched = make_store(tmp_path, configuration=hub.configuration_with_token).fetch(_URL)
    assert fetched.path.read_bytes() == hub.files[path]
    assert "resuming at" in fetched.notes[0]
    assert len([where for where, _, _ in hub.seen[asked:] if where == "localhost"]) < 9


def test_a_mirror_that_names_no_commit_is_refused_in_words() -> None:
    with pytest.raises(ArtifactError, match="not the path of a file in a repository of the hub"):
        list(list_remotes("hf://organisation/model@main/weights.irpa", Configuration(), 1.0))
