"""What goes wrong on networks and disks: every fault ends, is named, and leaves nothing half-written."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from iree_gauntlet.artifacts.partial import Partial
from iree_gauntlet.artifacts.registry import Entry, Registry
from iree_gauntlet.artifacts.remote import RemoteFile
from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.artifacts.transfer import Policy
from iree_gauntlet.errors import ArtifactError
from tests.support.artifact_server import Request, Server, serving, whole
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONTENT = b"0123456789" * 100_000
_SHA256 = hashlib.sha256(_CONTENT).hexdigest()

# A run of its own: cache, URL.
_RUN = """
import sys
from pathlib import Path
from iree_gauntlet.artifacts.registry import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.errors import ArtifactError
try:
    fetched = ArtifactStore(Path(sys.argv[1]), Registry()).fetch(sys.argv[2])
except ArtifactError as error:
    sys.exit(f"ARTIFACT ERROR {error}")
print(fetched.cached, fetched.sha256)
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def _store(root: Path, *, stall: float = 5.0, retries: int = 2) -> ArtifactStore:
    return ArtifactStore(root, Registry(), policy=Policy(stall_timeout=stall, retries=retries, backoff=0.01))


def _run(root: Path, url: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", _RUN, str(root), url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _half(server: Server, *, stall: bool, length: bool = True) -> Callable[[Request], None]:
    """Half of the content, and then silence or the end of the connection."""

    def answer(request: Request) -> None:
        request.send_response(200)
        if length:
            request.send_header("Content-Length", str(len(_CONTENT)))
            half = _CONTENT[: len(_CONTENT) // 2]
        else:
            request.protocol_version = "HTTP/1.1"
            request.send_header("Transfer-Encoding", "chunked")
            half = b"1000\r\n" + _CONTENT[:100]
        request.end_headers()
        request.wfile.write(half)
        request.wfile.flush()
        if stall:
            server.over.wait(30)

    return answer


def _first(fault: Callable[[Request], None], *, times: int = 1) -> Callable[[Request], None]:
    """A fault some times, and then the content."""
    left = [fault] * times

    def answer(request: Request) -> None:
        (left.pop() if left else whole(_CONTENT))(request)

    return answer


def _status(code: int, retry_after: str = "") -> Callable[[Request], None]:
    def answer(request: Request) -> None:
        request.send_response(code)
        if retry_after:
            request.send_header("Retry-After", retry_after)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def _nothing_there(root: Path) -> bool:
    return not [path for path in (root / "artifacts").rglob("*") if path.is_file()]


@pytest.mark.parametrize(("code", "hint"), [(404, "no such file"), (410, "no such"), (403, "netrc"), (418, "browser")])
def test_a_refusal_is_final(server: Server, tmp_path: Path, code: int, hint: str) -> None:
    url = server.url("/m.mlir", _status(code))
    with pytest.raises(ArtifactError, match=f"HTTP {code}") as caught:
        _store(tmp_path).fetch(url)
    assert url in str(caught.value)
    assert hint in caught.value.hint
    assert server.hits["/m.mlir"] == 1
    assert _nothing_there(tmp_path)


def test_a_stall_ends(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _half(server, stall=True))
    started = time.monotonic()
    with pytest.raises(ArtifactError, match=r"no byte for 0\.3 s, after \d+\.\d kB \(2 attempts\)") as caught:
        _store(tmp_path, stall=0.3, retries=1).fetch(url)
    assert url in str(caught.value)
    assert time.monotonic() - started < 5
    assert _nothing_there(tmp_path)


def test_a_server_that_never_answers(server: Server, tmp_path: Path) -> None:
    def silent(_request: Request) -> None:
        server.over.wait(30)

    url = server.url("/m.mlir", silent)
    with pytest.raises(ArtifactError, match=r"no byte for 0\.2 s, after 0 B"):
        _store(tmp_path, stall=0.2, retries=0).fetch(url)


@pytest.mark.parametrize("length", [True, False])
def test_a_file_that_is_cut_off(server: Server, tmp_path: Path, *, length: bool) -> None:
    url = server.url("/m.mlir", _half(server, stall=False, length=length))
    with pytest.raises(ArtifactError, match=r"(cut off|connection lost) after .*\(3 attempts\)"):
        _store(tmp_path).fetch(url)
    assert server.hits["/m.mlir"] == 3
    assert _nothing_there(tmp_path)


def test_transient_faults_are_retried_and_told(server: Server, tmp_path: Path) -> None:
    faults: list[Callable[[Request], None]] = [
        _status(503), _status(429), _half(server, stall=False), _half(server, stall=True)
    ]  # fmt: skip
    for number, fault in enumerate(faults):
        fetched = _store(tmp_path, stall=0.3).fetch(server.url(f"/m{number}.mlir", _first(fault)))
        assert fetched.path.read_bytes() == _CONTENT
        assert "retry 1 of 2" in fetched.notes[0]
        assert server.hits[f"/m{number}.mlir"] == 2


def test_retries_are_bounded(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _status(500))
    with pytest.raises(ArtifactError, match=r"HTTP 500 .*\(3 attempts\)"):
        _store(tmp_path).fetch(url)
    assert server.hits["/m.mlir"] == 3


def test_retry_after_is_honoured(server: Server, tmp_path: Path) -> None:
    def seconds(url: str) -> float:
        began = time.monotonic()
        _store(tmp_path).fetch(url)
        return time.monotonic() - began

    assert 1 <= seconds(server.url("/a.mlir", _first(_status(503, "1")))) < 5
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
    assert 1 <= seconds(server.url("/b.mlir", _first(_status(429, date)))) < 6
    assert seconds(server.url("/c.mlir", _first(_status(429, "soon")))) < 1
    began = time.monotonic()
    with pytest.raises(ArtifactError, match="asks to wait 3600 s"):
        _store(tmp_path).fetch(server.url("/d.mlir", _status(503, "3600")))
    assert time.monotonic() - began < 1


def test_nobody_listens(tmp_path: Path) -> None:
    with serving() as server:
        url = server.base + "/m.mlir"
    with pytest.raises(ArtifactError, match=r"Connection refused \(3 attempts\)") as caught:
        _store(tmp_path).fetch(url)
    assert "object at 0x" not in str(caught.value)


def test_no_tls(server: Server, tmp_path: Path) -> None:
    url = server.base.replace("http:", "https:") + "/m.mlir"
    with pytest.raises(ArtifactError, match="TLS") as caught:
        _store(tmp_path).fetch(url)
    assert "REQUESTS_CA_BUNDLE" in caught.value.hint


def test_redirects_without_end(server: Server, tmp_path: Path) -> None:
    def again(request: Request) -> None:
        request.send_response(302)
        request.send_header("Location", "/m.mlir")
        request.send_header("Content-Length", "0")
        request.end_headers()

    with pytest.raises(ArtifactError, match="redirects"):
        _store(tmp_path).fetch(server.url("/m.mlir", again))


def test_a_file_larger_than_the_disk(server: Server, tmp_path: Path) -> None:
    def huge(request: Request) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(10**18))
        request.end_headers()

    with pytest.raises(ArtifactError, match=r"no room for 1000000\.0 TB") as caught:
        _store(tmp_path).fetch(server.url("/m.mlir", huge))
    assert "Free disk space" in caught.value.hint
    assert _nothing_there(tmp_path)


def test_a_disk_that_fills_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url("/m.mlir", whole(_CONTENT))

    def full(_descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"disk full in .*No space left on device"):
        _store(tmp_path).fetch(url)
    assert _nothing_there(tmp_path)
    monkeypatch.undo()
    assert _store(tmp_path).fetch(url).sha256 == _SHA256


def test_a_limit_on_file_sizes(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", whole(_CONTENT))
    limited = shutil.which("prlimit")
    if limited is None:
        pytest.skip("needs prlimit")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    process = _run(tmp_path, url, (limited, f"--fsize=300000:{'unlimited' if hard < 0 else hard}", "--"))
    _, errors = process.communicate(timeout=60)
    assert "ARTIFACT ERROR disk full" in errors
    assert "file size limit" in errors
    assert _nothing_there(tmp_path)


def test_two_runs_fetch_once(server: Server, tmp_path: Path) -> None:
    def slow(request: Request) -> None:
        time.sleep(0.5)
        whole(_CONTENT)(request)

    url = server.url("/m.mlir", slow)
    runs = [_run(tmp_path, url) for _ in range(3)]
    outputs = sorted(run.communicate(timeout=60)[0].split()[0] for run in runs)
    assert outputs == ["False", "True", "True"]
    assert server.hits["/m.mlir"] == 1


def test_a_killed_run_leaves_nothing_that_reads_as_whole(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _first(_half(server, stall=True)))
    run = _run(tmp_path, url)
    store = _store(tmp_path)
    incoming = tmp_path / "incoming"
    deadline = time.monotonic() + 30
    while not [part for part in incoming.glob("*/*") if part.stat().st_size > 0]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert not store.present(url)
    assert not store.path(url).parent.exists()
    fetched = store.fetch(url)
    assert (fetched.sha256, fetched.cached) == (_SHA256, False)
    assert [path.name for path in store.path(url).parent.iterdir()] == ["m.mlir"]
    assert not list(incoming.iterdir()), "what the killed run left is gone"


def test_an_interrupted_run_leaves_only_what_can_be_gone_on_with(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _half(server, stall=True))
    run = _run(tmp_path, url)
    incoming = tmp_path / "incoming"
    deadline = time.monotonic() + 30
    while not list(incoming.glob("*/*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)
    assert {path.name for path in incoming.glob("*/*")} <= {"data", "state.jsonl"}, "only what can be gone on with"
    assert _nothing_there(tmp_path)


@pytest.fixture
def unprivileged() -> tuple[str, ...]:
    """What makes a process respect permissions also where the tests run as root."""
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("runs as root, and there is no setpriv")
    return (setpriv, "--bounding-set=-all", "--inh-caps=-all", "--")


def _set_writable(root: Path, *, writable: bool) -> None:
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755 if writable else 0o555)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_read_only_cache(server: Server, tmp_path: Path, unprivileged: tuple[str, ...], *, pinned: bool) -> None:
    url, absent = server.url("/m.mlir", whole(_CONTENT)), server.url("/absent.mlir", whole(_CONTENT))
    _store(tmp_path).fetch(url)
    shutil.rmtree(tmp_path / "verified")
    if not pinned:
        (tmp_path / "registry.lock.txt").unlink()
    before = sorted(tmp_path.rglob("*"))
    _set_writable(tmp_path, writable=False)
    try:
        present = _run(tmp_path, url, unprivileged).communicate(timeout=60)
        failed = _run(tmp_path, absent, unprivileged).communicate(timeout=60)
    finally:
        _set_writable(tmp_path, writable=True)
    assert present == (f"True {_SHA256}\n", "")
    assert "ARTIFACT ERROR cannot write to" in failed[1]
    assert "EACCES" in failed[1]
    assert absent in failed[1]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_where_the_cache_should_be(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ArtifactError, match=r"must be a folder|Not a directory"):
        _store(tmp_path / "cache").fetch(server.url("/m.mlir", whole(_CONTENT)))


def test_a_wrong_file_in_a_pinned_place_stays_until_the_right_one_is_there(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _status(404))
    registry = Registry().with_entries([Entry(local_name(url), _SHA256, url)])
    store = ArtifactStore(tmp_path, registry)
    store.path(url).parent.mkdir(parents=True)
    store.path(url).write_bytes(b"half")
    with pytest.raises(ArtifactError, match="404"):
        store.fetch(url)
    assert store.path(url).read_bytes() == b"half"


def test_a_file_system_without_hard_links(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_paths: object) -> NoReturn:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    fetched = _store(tmp_path).fetch(server.url("/m.mlir", whole(_CONTENT)))
    assert fetched.sha256 == _SHA256
    assert not list((tmp_path / "incoming").iterdir())


def test_an_abandoned_download_gives_its_files_to_nobody(tmp_path: Path) -> None:
    """After Ctrl-C a connection may still be about to write: it must not hit a file that was opened since."""
    partial = Partial.begin(tmp_path / "p", "u", RemoteFile(10, '"v"', ranged=True))
    before = set(Path("/proc/self/fd").iterdir())
    partial.abandon()
    partial.close()
    assert set(Path("/proc/self/fd").iterdir()) == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        partial.write(0, b"x")
    assert (tmp_path / "p" / "data").stat().st_size == 0
