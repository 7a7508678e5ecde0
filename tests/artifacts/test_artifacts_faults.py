"""Faults of networks and disks: each ends the fetch with a named error, and leaves no half-written file."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from iree_gauntlet.artifacts.remote import RemoteFile
from iree_gauntlet.artifacts.remotes import _parse_retry_after
from iree_gauntlet.artifacts.transfer import Partial, Policy
from iree_gauntlet.errors import ArtifactError
from tests.support.artifact_server import Request, Server, make_responder, send_response
from tests.support.command_line import LIMIT_SECONDS
from tests.support.download_checks import (
    MANY_RETRIES,
    QUICK_POLICY,
    SHORT_STALL_SECONDS,
    FakeWaits,
    NoteTrigger,
    fail_fetch,
    make_store,
    read_artifacts,
    sha256,
)
from tests.support.places import ROOT
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

_CONTENT = b"0123456789" * 100_000
_SHA256 = sha256(_CONTENT)

# A run of its own: caches and URLs, each fetched into its cache.
_RUN = """
import sys
from pathlib import Path
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.errors import ArtifactError
for root, url in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    try:
        fetched = ArtifactStore(Path(root), Registry()).fetch(url)
        print(fetched.cached, fetched.sha256)
    except ArtifactError as error:
        print("ARTIFACT ERROR", str(error).partition(chr(10))[0])
"""


def _run(*words: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", _RUN, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _half(server: Server, *, stall: bool, length: bool = True) -> Callable[[Request], None]:
    """Half of the content, and then silence or the end of the connection."""

    def answer(request: Request) -> None:
        if length:
            send_response(request, _CONTENT[: len(_CONTENT) // 2], Content_Length=str(len(_CONTENT)))
        else:
            request.protocol_version = "HTTP/1.1"
            request.send_response(200)
            request.send_header("Transfer-Encoding", "chunked")
            request.end_headers()
            request.wfile.write(b"1000\r\n" + _CONTENT[:100])
        if stall:
            server.stop_event.wait()

    return answer


def _first(fault: Callable[[Request], None], *, times: int = 1) -> Callable[[Request], None]:
    """A fault some times, and then the content."""
    left = [fault] * times

    def answer(request: Request) -> None:
        (left.pop() if left else make_responder(_CONTENT))(request)

    return answer


@pytest.mark.parametrize(("code", "hint"), [(404, "no such file"), (410, "no such"), (403, "netrc"), (418, "browser")])
def test_a_refusal_is_final(server: Server, tmp_path: Path, code: int, hint: str) -> None:
    url = server.url("/m.mlir", make_responder(status=code))
    assert hint in fail_fetch(tmp_path, url, f"HTTP {code}").hint
    assert server.hits["/m.mlir"] == 1


def test_a_stream_that_falls_silent_begins_anew(server: Server, tmp_path: Path) -> None:
    seen = threading.Event()

    def answer(request: Request) -> None:
        (make_responder(_CONTENT) if seen.is_set() else _half(server, stall=True))(request)

    policy = replace(QUICK_POLICY, retries=MANY_RETRIES, stall_timeout=SHORT_STALL_SECONDS)
    progress = NoteTrigger("after 500.0 kB; retry", seen.set)
    fetched = make_store(tmp_path, policy=policy, progress=progress).fetch(server.url("/m.mlir", answer))
    assert fetched.path.read_bytes() == _CONTENT
    assert "no data for 0.2 s" in fetched.notes[0]


def test_a_server_that_never_answers(server: Server, tmp_path: Path) -> None:
    def silent(_request: Request) -> None:
        server.stop_event.wait()

    url = server.url("/m.mlir", silent)
    policy = replace(QUICK_POLICY, stall_timeout=SHORT_STALL_SECONDS, retries=0)
    fail_fetch(tmp_path, url, r"no data for 0\.2 s, after 0 B", policy=policy)


@pytest.mark.parametrize("length", [True, False])
def test_a_file_that_is_cut_off(server: Server, tmp_path: Path, *, length: bool) -> None:
    url = server.url("/m.mlir", _half(server, stall=False, length=length))
    fail_fetch(tmp_path, url, r"(cut off|connection lost) after .*\(3 attempts\)")
    assert server.hits["/m.mlir"] == 3


def test_transient_faults_are_retried_and_told(server: Server, tmp_path: Path) -> None:
    faults = [make_responder(status=503), make_responder(status=429), _half(server, stall=False)]
    for number, fault in enumerate(faults):
        fetched = make_store(tmp_path).fetch(server.url(f"/m{number}.mlir", _first(fault)))
        assert fetched.path.read_bytes() == _CONTENT
        assert "retry 1 of 2" in fetched.notes[0]
        assert server.hits[f"/m{number}.mlir"] == 2


def test_retries_are_bounded_and_wait_ever_longer(server: Server, tmp_path: Path) -> None:
    url, waits = server.url("/m.mlir", make_responder(status=500)), FakeWaits()
    policy = waits.make_policy(Policy(retries=6, longest_backoff=7))
    fail_fetch(tmp_path, url, r"HTTP 500 .*\(7 attempts\)", policy=policy)
    assert server.hits["/m.mlir"] == 7
    # Half as long or half as long again, at random: parallel runs do not come back in step.
    for wait, middle in zip(waits.seconds, (0.5, 1, 2, 4, 7, 7), strict=True):
        assert middle / 2 <= wait <= middle * 3 / 2
    assert len(waits.seconds) == len(
        {wait / middle for wait, middle in zip(waits.seconds, (1, 2, 4, 8, 14, 14), strict=True)}
    )


def test_retry_after_is_honoured(server: Server, tmp_path: Path) -> None:
    def waits(answer: Callable[[Request], None]) -> list[float]:
        found = FakeWaits()
        make_store(tmp_path, policy=found.make_policy(QUICK_POLICY)).fetch(
            server.url(f"/{len(server.hits)}.mlir", answer)
        )
        return found.seconds

    assert waits(_first(make_responder(status=503, Retry_After="1"))) == [1.0]
    assert waits(_first(make_responder(status=503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"))) == []
    (backoff,) = waits(_first(make_responder(status=429, Retry_After="soon")))
    assert backoff == pytest.approx(QUICK_POLICY.backoff, rel=0.5)
    with pytest.raises(ArtifactError, match="asks to wait 3600 s"):
        waits(make_responder(status=503, Retry_After="3600"))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", None),
        ("7", 7.0),
        ("Wed, 21 Oct 2015 07:28:03 GMT", 3.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:03 -0000", 3.0),
        ("soon", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", datetime(2015, 10, 21, 7, 28, tzinfo=UTC).timestamp)
    assert _parse_retry_after(value) == seconds


def test_no_tls(server: Server, tmp_path: Path) -> None:
    url = server.base.replace("http:", "https:") + "/m.mlir"
    assert "REQUESTS_CA_BUNDLE" in fail_fetch(tmp_path, url, "TLS").hint


def test_redirects_without_end(server: Server, tmp_path: Path) -> None:
    fail_fetch(tmp_path, server.url("/m.mlir", make_responder(status=302, Location="/m.mlir")), "redirects")


def test_a_file_larger_than_the_disk(server: Server, tmp_path: Path) -> None:
    huge = make_responder(Content_Length=str(10**18))
    error = fail_fetch(tmp_path, server.url("/m.mlir", huge), r"no space for 1000000\.0 TB")
    assert "Free disk space" in error.hint


def test_a_disk_that_fills_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))

    def full(_descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    fail_fetch(tmp_path, url, r"disk full in .*No space left on device")
    monkeypatch.undo()
    assert make_store(tmp_path).fetch(url).sha256 == _SHA256


def test_a_limit_on_file_sizes(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(_CONTENT))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        fail_fetch(tmp_path, url, r"disk full in .*file size limit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_killed_run_leaves_nothing_that_reads_as_whole(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _first(_half(server, stall=True)))
    run = _run(tmp_path, url)
    incoming = tmp_path / "incoming"
    wait_until(lambda: [part for part in incoming.glob("*/*") if part.stat().st_size > 0])
    run.send_signal(signal.SIGKILL)
    run.communicate()
    after = make_store(tmp_path)
    assert not after.is_present(url)
    assert not after.path(url).parent.exists()
    fetched = after.fetch(url)
    assert (fetched.sha256, fetched.cached) == (_SHA256, False)
    assert [path.name for path in after.path(url).parent.iterdir()] == ["m.mlir"]
    assert not list(incoming.iterdir()), "what the killed run left is gone"


def test_an_interrupted_run_leaves_only_what_can_be_gone_on_with(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _half(server, stall=True))
    run = _run(tmp_path, url)
    incoming = tmp_path / "incoming"
    wait_until(lambda: list(incoming.glob("*/*")))
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=LIMIT_SECONDS)
    assert {path.name for path in incoming.glob("*/*")} <= {"data", "state.jsonl"}, "only what can be resumed"
    assert read_artifacts(tmp_path) == {}


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


def test_a_read_only_cache(server: Server, tmp_path: Path, unprivileged: tuple[str, ...]) -> None:
    url, absent = server.url("/m.mlir", make_responder(_CONTENT)), server.url("/absent.mlir", make_responder(_CONTENT))
    roots = [tmp_path / name for name in ("pinned", "unpinned")]
    for root in roots:
        make_store(root).fetch(url)
        shutil.rmtree(root / "verified")
    (tmp_path / "unpinned" / "registry.lock.txt").unlink()
    before = sorted(tmp_path.rglob("*"))
    _set_writable(tmp_path, writable=False)
    try:
        words = [word for root in roots for word in (root, url, root, absent)]
        out, err = _run(*words, prefix=unprivileged).communicate(timeout=LIMIT_SECONDS)
    finally:
        _set_writable(tmp_path, writable=True)
    assert err == ""
    lines = out.splitlines()
    assert len(lines) == 4
    for present, failed in (lines[:2], lines[2:]):
        assert present == f"True {_SHA256}"
        assert failed.startswith("ARTIFACT ERROR cannot write to")
        assert "EACCES" in failed
        assert absent in failed
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_where_the_cache_should_be(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ArtifactError, match=r"must be a folder|Not a directory"):
        make_store(tmp_path / "cache").fetch(server.url("/m.mlir", make_responder(_CONTENT)))


def test_a_wrong_file_in_a_pinned_place_stays_until_the_right_one_is_there(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(status=404))
    pinned = make_store(tmp_path, pins={url: _SHA256})
    pinned.path(url).parent.mkdir(parents=True)
    pinned.path(url).write_bytes(b"half")
    with pytest.raises(ArtifactError, match="404"):
        pinned.fetch(url)
    assert pinned.path(url).read_bytes() == b"half"


def test_a_file_system_without_hard_links(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_paths: object) -> NoReturn:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    fetched = make_store(tmp_path).fetch(server.url("/m.mlir", make_responder(_CONTENT)))
    assert fetched.sha256 == _SHA256
    assert not list((tmp_path / "incoming").iterdir())


def test_an_abandoned_download_gives_its_files_to_nobody(tmp_path: Path) -> None:
    """After Ctrl-C a connection may still be about to write: it must not hit a file that was opened since."""
    partial = Partial.begin(tmp_path / "p", "u", RemoteFile(10, '"v"', accepts_ranges=True))
    before = set(Path("/proc/self/fd").iterdir())
    partial.abandon()
    partial.close()
    assert set(Path("/proc/self/fd").iterdir()) == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        partial.write(0, b"x")
    assert (tmp_path / "p" / "data").stat().st_size == 0


def test_a_host_that_cannot_be_resolved_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nobody(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    files = make_store(tmp_path)
    with pytest.raises(ArtifactError) as first:
        files.fetch("https://weights.invalid/a.bin")
    assert first.value.message.startswith("the host weights.invalid cannot be resolved: ")
    assert asked == ["weights.invalid"] * (1 + QUICK_POLICY.retries)
    with pytest.raises(ArtifactError) as second:
        files.fetch("https://weights.invalid/b.bin")
    assert second.value.message == (
        "the host weights.invalid cannot be resolved, as for an earlier file: https://weights.invalid/b.bin"
    )
    assert len(asked) == 1 + QUICK_POLICY.retries
    with pytest.raises(ArtifactError):
        files.fetch("https://other.invalid/b.bin")
    assert asked[-1] == "other.invalid"
