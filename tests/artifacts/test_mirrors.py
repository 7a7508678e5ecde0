"""Mirrors: they come before the origin and are never trusted; servers of every kind give the same file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.settings import Configuration, Mirror
from tests.support.artifact_server import Request, Server, make_responder, send_response
from tests.support.download_checks import QUICK_POLICY, make_store, sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.artifacts.store import ArtifactStore

_CONTENT = bytes(range(256)) * 4000
_SHA256 = sha256(_CONTENT)
_POLICY = replace(QUICK_POLICY, part_bytes=200_000, retries=1)


@pytest.fixture
def origin(server: Server) -> str:
    return server.url("/origin/m.mlir", make_responder(_CONTENT))


def _store(root: Path, *mirrors: Mirror, pinned: str = "", offline: bool = False) -> ArtifactStore:
    pins = {pinned: _SHA256} if pinned else {}
    return make_store(root, pins=pins, configuration=Configuration(mirrors=mirrors), offline=offline, policy=_POLICY)


def _mirror(server: Server, path: str = "/mirror", *, only: bool = False) -> Mirror:
    return Mirror(f"{server.base}/origin/", (f"{server.base}{path}/",), only=only)


def test_a_mirror_is_asked_first_and_alone(server: Server, origin: str, tmp_path: Path) -> None:
    server.url("/mirror/m.mlir", make_responder(_CONTENT))
    assert _store(tmp_path, _mirror(server), pinned=origin).fetch(origin).notes == (
        f"from the mirror {server.base}/mirror/m.mlir",
    )
    assert (server.hits["/mirror/m.mlir"], server.hits["/origin/m.mlir"]) == (1, 0)


def test_what_a_mirror_does_not_have_comes_silently_from_the_origin(
    server: Server, origin: str, tmp_path: Path
) -> None:
    assert _store(tmp_path, _mirror(server), pinned=origin).fetch(origin).notes == ()
    assert server.hits["/mirror/m.mlir"] == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (make_responder(status=403), "HTTP 403"),
        (make_responder(status=503), "HTTP 503"),
        (make_responder(b"another content"), "wrong content: http"),
        (make_responder(_CONTENT[:-1]), "wrong content: http"),
    ],
)
def test_a_mirror_that_fails_is_told_and_passed_over(
    server: Server, origin: str, tmp_path: Path, answer: Callable[[Request], None], message: str
) -> None:
    mirror = server.url("/mirror/m.mlir", answer)
    fetched = _store(tmp_path, _mirror(server), pinned=origin).fetch(origin)
    assert fetched.sha256 == _SHA256
    assert any(message in note and mirror in note and note.startswith("not from the mirror") for note in fetched.notes)


def test_a_hash_that_is_learnt_from_a_mirror_is_told(server: Server, origin: str, tmp_path: Path) -> None:
    mirror = server.url("/mirror/m.mlir", make_responder(b"who knows"))
    notes = _store(tmp_path, _mirror(server)).fetch(origin).notes
    assert f"its hash comes from the mirror {mirror}, not from the source itself" in notes


def test_a_mirror_whose_credentials_are_missing_is_passed_over(server: Server, origin: str, tmp_path: Path) -> None:
    configuration = Configuration(
        mirrors=(Mirror(f"{server.base}/origin/", ("az://account/c/",)),),
        stores={"az://account": {"sas_token": "$NOT_SET"}},
    )
    fetched = make_store(tmp_path, configuration=configuration).fetch(origin)
    assert fetched.sha256 == _SHA256
    assert any("not from the mirror" in note and "$NOT_SET, which is not set" in note for note in fetched.notes)


def test_what_was_tried_is_known_also_of_a_failure(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        _store(tmp_path).fetch(server.url("/m.mlir", make_responder(status=503)))
    assert any("HTTP 503" in note and "retry 1 of 1" in note for note in caught.value.notes)


def test_a_folder_is_a_mirror_also_offline(server: Server, origin: str, tmp_path: Path) -> None:
    (tmp_path / "nfs").mkdir()
    mirror = Mirror(f"{server.base}/origin", (str(tmp_path / "nfs"),))
    with pytest.raises(ArtifactError, match="offline"):
        _store(tmp_path / "cache", mirror, offline=True).fetch(origin)
    (tmp_path / "nfs" / "m.mlir").write_bytes(_CONTENT)
    fetched = _store(tmp_path / "cache", mirror, pinned=origin, offline=True).fetch(origin)
    assert fetched.path.read_bytes() == _CONTENT
    assert (tmp_path / "nfs" / "m.mlir").stat().st_nlink == 1, "a copy: what is written there changes nothing here"
    assert not server.hits


def test_a_mirror_that_takes_the_place_of_its_origin(server: Server, origin: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="HTTP 404"):
        _store(tmp_path, _mirror(server, only=True)).fetch(origin)
    assert server.hits["/origin/m.mlir"] == 0


def test_when_nobody_has_it_all_failures_are_told(server: Server, tmp_path: Path) -> None:
    url = server.url("/origin/m.mlir", make_responder(status=403))
    server.url("/mirror/m.mlir", make_responder(status=500))
    with pytest.raises(ArtifactError, match=r"HTTP 403 .*/origin/") as caught:
        _store(tmp_path, _mirror(server)).fetch(url)
    assert re.search(r"Before: HTTP 500 .*/mirror/m\.mlir", caught.value.hint)


def _ranged(
    content: bytes, *, etag: str = '"v1"', total: bool = True, headers: dict[str, str] | None = None, limit: int = 10**9
) -> Callable[[Request], None]:
    """A server that knows ranges; the first `limit` requests are answered so, later ones with the whole file."""
    seen: list[str] = []

    def answer(request: Request) -> None:
        asked = re.match(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        seen.append(request.headers.get("Range", ""))
        said = {**(headers or {}), **({"ETag": etag} if etag else {})}
        if not asked or len(seen) > limit:
            send_response(request, content, 200, **said)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
        said["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content) if total else '*'}"
        send_response(request, content[start:stop], 206, **said)

    return answer


@pytest.mark.parametrize("etag", ['"v1"', 'W/"weak"', ""])
def test_servers_with_ranges(server: Server, tmp_path: Path, etag: str) -> None:
    url = server.url("/m.mlir", _ranged(_CONTENT, etag=etag))
    assert _store(tmp_path).fetch(url).sha256 == _SHA256
    assert server.hits["/m.mlir"] == 6, "in parts of 200,000 bytes"


def test_a_server_that_forgets_about_ranges(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _ranged(_CONTENT, limit=2))
    fetched = _store(tmp_path).fetch(url)
    assert fetched.sha256 == _SHA256
    assert "starting again" in fetched.notes[0]


def test_a_part_of_an_unknown_whole_is_not_taken_for_the_whole(server: Server, tmp_path: Path) -> None:
    url = server.url("/m.mlir", _ranged(_CONTENT, total=False))
    assert _store(tmp_path).fetch(url).path.read_bytes() == _CONTENT


def test_an_encoded_answer_is_the_file_itself(server: Server, tmp_path: Path) -> None:
    packed = gzip.compress(_CONTENT)
    url = server.url("/m.mlir", _ranged(packed, headers={"Content-Encoding": "gzip"}))
    assert _store(tmp_path).fetch(url).path.read_bytes() == _CONTENT


def _b64(algorithm: str, content: bytes) -> str:
    return base64.b64encode(hashlib.new(algorithm, content).digest()).decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ms-blob-content-md5", "{md5}"),
        ("x-goog-hash", "crc32c=AAAAAA==,md5={md5}"),
        ("Repr-Digest", "sha-256=:{sha256}:"),
        ("Digest", "SHA-256={sha256}"),
        ("X-Linked-ETag", '"{hex}"'),
    ],
)
@pytest.mark.parametrize("right", [True, False])
def test_the_servers_own_checksums_decide_where_no_hash_is_known(
    server: Server, tmp_path: Path, name: str, value: str, *, right: bool
) -> None:
    said = _CONTENT if right else b"something else"
    header = value.format(md5=_b64("md5", said), sha256=_b64("sha256", said), hex=sha256(said))
    url = server.url("/m.mlir", _ranged(_CONTENT, headers={name: header}))
    if right:
        assert _store(tmp_path).fetch(url).sha256 == _SHA256
        return
    with pytest.raises(ArtifactError, match="the server reports"):
        _store(tmp_path).fetch(url)
    assert not _store(tmp_path).is_present(url)
    assert not (tmp_path / "registry.lock.txt").exists(), "nothing was learnt from it"
    assert not list((tmp_path / "incoming").iterdir())
    # A hash that people have pinned is worth more than a header.
    assert _store(tmp_path, pinned=url).fetch(url).sha256 == _SHA256


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_content_md5_is_that_of_the_body_which_may_be_a_part(
    server: Server, tmp_path: Path, *, ranges: bool, right: bool
) -> None:
    def answer(request: Request) -> None:
        asked = re.match(r"bytes=(\d+)-(\d+)", request.headers.get("Range", "")) if ranges else None
        start, stop = (int(asked[1]), min(int(asked[2]) + 1, len(_CONTENT))) if asked else (0, len(_CONTENT))
        body = _CONTENT[start:stop]
        said = {"ETag": '"v1"', "Content-MD5": _b64("md5", body if right else b"something else")}
        if asked:
            said["Content-Range"] = f"bytes {start}-{stop - 1}/{len(_CONTENT)}"
        send_response(request, body, 206 if asked else 200, **said)

    url = server.url("/m.mlir", answer)
    if right or ranges:
        assert _store(tmp_path).fetch(url).sha256 == _SHA256
        return
    with pytest.raises(ArtifactError, match="the server reports"):
        _store(tmp_path).fetch(url)


@pytest.mark.parametrize(
    ("headers", "is_md5"),
    [
        ({"x-amz-request-id": "1"}, True),
        ({"x-amz-request-id": "1", "x-amz-server-side-encryption": "AES256"}, True),
        ({"x-amz-request-id": "1", "x-amz-server-side-encryption": "aws:kms"}, False),
        ({"x-amz-request-id": "1", "x-amz-server-side-encryption-customer-algorithm": "AES256"}, False),
        # Another kind of server, whose ETags may look so by chance.
        ({}, False),
    ],
)
def test_an_etag_of_s3_is_a_checksum_but_of_what_is_encrypted(
    server: Server, tmp_path: Path, headers: dict[str, str], *, is_md5: bool
) -> None:
    for name, said in (("right", _CONTENT), ("wrong", b"something else")):
        etag = f'"{hashlib.md5(said, usedforsecurity=False).hexdigest()}"'
        url = server.url(f"/{name}.mlir", _ranged(_CONTENT, etag=etag, headers=headers))
        if name == "right" or not is_md5:
            assert _store(tmp_path).fetch(url).sha256 == _SHA256
        else:
            with pytest.raises(ArtifactError, match="the server reports"):
                _store(tmp_path).fetch(url)


def test_a_checksum_of_the_server_is_not_forgotten_by_a_resumption(server: Server, tmp_path: Path) -> None:
    broken = make_responder(status=500)
    answer = _ranged(_CONTENT, headers={"x-ms-blob-content-md5": _b64("md5", b"something else")})

    def first_part_alone(request: Request) -> None:
        (answer if request.headers["Range"] == "bytes=0-199999" else broken)(request)

    url = server.url("/m.mlir", first_part_alone)
    with pytest.raises(ArtifactError, match="HTTP 500"):
        _store(tmp_path).fetch(url)
    server.responders["/m.mlir"] = answer
    with pytest.raises(ArtifactError, match="the server reports"):
        _store(tmp_path).fetch(url)
