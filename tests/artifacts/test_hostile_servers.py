"""Damaged, endless or wrong responses of servers: each is an error of one file, and leaves nothing behind."""

from __future__ import annotations

import gc
import shutil
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.artifacts.transfer import Policy
from iree_gauntlet.errors import ArtifactError
from tests.support.artifact_server import Request, Server, make_responder, send_response
from tests.support.download_checks import sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.toy_project import Project


def make_store(root: Path, most: int | None = None, *, pins: dict[str, str] | None = None) -> ArtifactStore:
    entries = {make_local_name(url): RegistryEntry(make_local_name(url), value) for url, value in (pins or {}).items()}
    policy = Policy(retries=1, backoff=0.0, max_bytes=most)
    return ArtifactStore(root, Registry(root / "registry.txt", entries), policy=policy)


def files_in(root: Path) -> list[str]:
    folders = (root / "artifacts", root / "incoming")
    return [path.name for folder in folders for path in folder.rglob("*") if path.is_file()]


def raw(*lines: bytes) -> Callable[[Request], None]:
    """An answer as it is written, header by header."""

    def answer(request: Request) -> None:
        request.wfile.write(b"\r\n".join((*lines, b"", b"")))

    return answer


def stream(count: int, block: bytes = bytes(1 << 16)) -> Callable[[Request], None]:
    """An answer in chunks without a length, of so many blocks; it ends early where nobody listens."""

    def answer(request: Request) -> None:
        request.protocol_version = "HTTP/1.1"
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for _ in range(count):
            request.wfile.write(b"%x\r\n%s\r\n" % (len(block), block))
        request.wfile.write(b"0\r\n\r\n")

    return answer


@pytest.fixture
def closing() -> Iterator[None]:
    """What is left open is found in the test that has left it."""
    yield
    gc.collect()


def _require_an_error_of_the_file(server: Server, folder: Path, answer: Callable[[Request], None]) -> None:
    url = server.url("/m.mlir", answer)
    with pytest.raises(ArtifactError) as caught:
        make_store(folder).fetch(url)
    assert url in caught.value.message
    assert caught.value.hint, caught.value.message
    assert files_in(folder) == [], caught.value.message[:300]


@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize(
    "answer",
    [
        raw(b"HTTP/1.1 302 Found", b"Location: http://h/\xe9\xff", b"Content-Length: 0"),
        raw(b"HTTP/1.1 302 Found", b"Location: http://[::1", b"Content-Length: 0"),
        raw(b"HTTP/1.1 302 Found", b"Location: http://h:99999999/x", b"Content-Length: 0"),
        raw(b"HTTP/1.1 302 Found", b"Location: ftp://h/x", b"Content-Length: 0"),
        raw(b"HTTP/1.1 302 Found", b"Location: file:///etc/passwd", b"Content-Length: 0"),
        raw(b"HTTP/1.1 302 Found", b"Location: http://" + b"a" * 300 + b".example/", b"Content-Length: 0"),
        raw(b"HTTP/1.1 302 Found", b"Location: http://\xc3\xa9" + b"x" * 80 + b"/", b"Content-Length: 0"),
        # urllib3 itself leaves the connection open.
        pytest.param(
            raw(b"HTTP/1.1 200 OK", b"Content-Length: 3, 4"),
            marks=pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
        ),
    ],
)
def test_an_answer_that_requests_fails_on_is_an_error_of_its_file(
    server: Server, tmp_path: Path, answer: Callable[[Request], None]
) -> None:
    _require_an_error_of_the_file(server, tmp_path, answer)


@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize(
    "answer",
    [
        raw(b"HTTP/1.1 200 OK", b"Content-Length: " + b"9" * 5000),
        raw(b"HTTP/1.1 206 Partial", b"Content-Range: bytes 0-1/" + b"9" * 5000, b"Content-Length: 2"),
        raw(b"HTTP/1.1 503 Busy", b"Retry-After: " + b"9" * 5000, b"Content-Length: 0"),
        raw(b"HTTP/1.1 503 Busy", b"Retry-After: Fri, 31 Dec 99999 23:59:59 GMT", b"Content-Length: 0"),
        raw(b"HTTP/1.1 200 OK", b"Content-Encoding: gzip", b"Content-Length: 3", b"", b"abc"),
        raw(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"", b"zz"),
        raw(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", b"", b"-5", b"abc"),
        raw(b"HTTP/1.1 200 OK", *[b"X-%d: y" % number for number in range(300)], b"Content-Length: 0"),
        raw(b"HTTP/1.1 abc", b""),
        raw(b"\x00\xff\xfe"),
    ],
)
def test_an_answer_that_cannot_be_understood_is_an_error_of_its_file(
    server: Server, tmp_path: Path, answer: Callable[[Request], None]
) -> None:
    _require_an_error_of_the_file(server, tmp_path, answer)


@pytest.mark.parametrize("pinned", [False, True], ids=["unpinned", "pinned"])
def test_an_answer_without_end_is_left_at_the_limit_and_leaves_nothing(
    server: Server, tmp_path: Path, pinned: bool
) -> None:
    url = server.url("/m.bin", stream(64))
    files = make_store(tmp_path, 1 << 20, pins={url: "0" * 64} if pinned else None)
    with pytest.raises(
        ArtifactError, match=r"received more than 1\.0 MB from .*which does not report a length"
    ) as caught:
        files.fetch(url)
    assert "--max-download" in caught.value.hint
    assert server.hits["/m.bin"] == 1, "it is not begun again"
    assert files_in(tmp_path) == []


def test_without_a_limit_the_disk_and_what_is_pinned_set_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url("/m.bin", stream(8))
    content = bytes(8 << 16)
    usage = shutil.disk_usage(tmp_path)
    for free, pins in ((len(content) * 2 + 2, None), (len(content) * 2 - 4, {url: sha256(content)})):
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, free=free: usage._replace(free=free))
        files = make_store(tmp_path / str(free), pins=pins)
        if pins is None:
            assert files.fetch(url).bytes == len(content)
        else:
            with pytest.raises(ArtifactError, match="does not report a length"):
                files.fetch(url)
    # A tebibyte is free: of what nobody knows, 1 GB may come.
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1 << 40))
    monkeypatch.setattr("iree_gauntlet.artifacts.transfer._MAX_UNVERIFIED_BYTES", len(content) - 1)
    with pytest.raises(ArtifactError, match="does not report a length"):
        make_store(tmp_path / "unpinned").fetch(url)
    assert make_store(tmp_path / "pinned", pins={url: sha256(content)}).fetch(url).bytes == len(content)


def test_a_file_larger_than_the_limit_is_refused_before_it_comes(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.bin", make_responder(bytes(2_000_000)))
    with pytest.raises(ArtifactError, match=r"has 2\.0 MB, but --max-download allows 1\.0 MB"):
        make_store(tmp_path, 1_000_000).fetch(url)
    assert files_in(tmp_path) == []
    assert make_store(tmp_path, 2_000_000).fetch(url).bytes == 2_000_000


def test_what_nobody_vouches_for_is_used_and_not_pinned(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", stream(1, b"module {}"))
    fetched = make_store(tmp_path).fetch(url)
    assert fetched.path.read_bytes() == b"module {}"
    assert any("its hash is not pinned" in note for note in fetched.notes)
    # Nor by a later use of it, whatever is hashed again.
    fetched.path.chmod(0o600)
    assert make_store(tmp_path).fetch(url).cached
    assert make_store(tmp_path).fetch(url).cached
    assert not (tmp_path / "registry.lock.txt").exists()
    # A length, or a checksum, is somebody's word.
    other = server.url("/n.mlir", lambda request: send_response(request, b"module {}"))
    make_store(tmp_path).fetch(other)
    assert (tmp_path / "registry.lock.txt").read_text().count("sha256:") == 1


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><title>Sign in</title>", b"\xef\xbb\xbf\n  <html lang=en>", b"<HTML>"]
)
def test_a_page_is_not_taken_for_the_file(server: Server, tmp_path: Path, page: bytes) -> None:
    url = server.url("/m.mlir", make_responder(page, Content_Type="text/html"))
    with pytest.raises(ArtifactError, match="received an HTML page instead of the file") as caught:
        make_store(tmp_path).fetch(url)
    assert "sign-in page" in caught.value.hint
    assert files_in(tmp_path) == []
    # One that is meant, by its name or its hash, is.
    assert make_store(tmp_path).fetch(server.url("/m.html", make_responder(page))).bytes == len(page)
    assert make_store(tmp_path, pins={url: sha256(page)}).fetch(url).bytes == len(page)


def test_an_empty_answer_is_a_file_only_where_the_server_says_so(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", make_responder(b"", Content_Length="-5"))
    with pytest.raises(ArtifactError, match="received no data, and no length"):
        make_store(tmp_path).fetch(url)
    assert files_in(tmp_path) == []
    assert make_store(tmp_path, pins={url: sha256(b"")}).fetch(url).bytes == 0
    assert make_store(tmp_path).fetch(server.url("/n.mlir", make_responder(b""))).bytes == 0


@pytest.mark.usefixtures("closing")
@pytest.mark.iree
def test_a_server_that_answers_nonsense_keeps_no_other_case_from_being_judged(project: Project, server: Server) -> None:
    project.add("bad")
    redirect = raw(b"HTTP/1.1 302 Found", b"Location: http://h/\xe9\xff", b"Content-Length: 0")
    project.regression("bad", mlir=server.url("/bad.mlir", redirect))
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 3
    assert "the server's response is invalid: UnicodeDecodeError" in done.out
    assert "2 cases: 1 error, 1 passed" in done.out


@pytest.mark.iree
def test_the_limit_is_an_option_of_a_run(project: Project, server: Server) -> None:
    project.regression(mlir=server.url("/abs.mlir", stream(40)))
    done = project.gauntlet("run", "--stages", "compile", "--max-download", "2MB")
    assert done.code == 3
    assert "received more than 2.0 MB from" in done.out
    assert project.gauntlet("run", "--max-download", "lots").code == 2
