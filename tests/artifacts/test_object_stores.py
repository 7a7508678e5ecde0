"""Objects of S3 (moto) and of Google storage (gcp-storage-emulator): in parts, resumed, public and private."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.download_checks import (
    CONTENT_BYTES,
    PART_BYTES,
    QUICK_POLICY,
    break_off_fetch,
    configure,
    fail_fetch,
    list_partials,
    make_content,
    make_store,
    read_all_files,
    read_artifacts,
    sha256,
)
from tests.support.fault_proxy import Fault, FaultProxy, run_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from iree_gauntlet.settings import Configuration
    from tests.support.emulators import Bucket

    _Configured = Callable[[str], Configuration]

_SECRET = "hunter2/hunter2/hunter2"
_S3_URL = "s3://models/llama/weights.irpa"
_GOOGLE_URL = "gs://models/llama/weights.irpa"
_GOOGLE_HEADERS: dict[str, str | None] = {"ETag": '"1"', "Last-Modified": "Sat, 21 Nov 2026 11:55:25 GMT"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 looks for credentials by itself, also in the network of a cloud machine."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def _with_key(endpoint: str) -> Configuration:
    environ = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_ENDPOINT_URL": endpoint}
    return configure({**environ, "AWS_REGION": "us-east-1"})


def _anonymous(endpoint: str) -> Configuration:
    return configure(stores={"s3://models": {"endpoint": endpoint, "region": "us-east-1"}})


_PRIVATE_AND_PUBLIC = pytest.mark.parametrize("configured_for", [_with_key, _anonymous])


def test_a_private_object(s3: Bucket, tmp_path: Path) -> None:
    s3.put("llama/weights.irpa", make_content())
    with run_proxy(s3.endpoint) as proxy:
        fetched = make_store(tmp_path, configuration=_with_key(proxy.base)).fetch(_S3_URL)
        assert sorted(proxy.range_starts) == [part * PART_BYTES for part in range(7)]
    assert fetched.path.read_bytes() == make_content()
    assert (fetched.sha256, fetched.notes[:-1]) == (sha256(make_content()), ())
    for path, data in read_all_files(tmp_path).items():
        for secret in (_SECRET.encode(), b"AKIAEXAMPLE", b"X-Amz-Signature"):
            assert secret not in data, path
    assert make_store(tmp_path, offline=True).fetch(_S3_URL).cached


def test_a_public_object(s3: Bucket, tmp_path: Path) -> None:
    s3.put("llama/weights.irpa", make_content(), public=True)
    with run_proxy(s3.endpoint) as proxy:
        fetched = make_store(tmp_path, configuration=_anonymous(proxy.base)).fetch(_S3_URL)
        assert proxy.sent_bytes == CONTENT_BYTES
    assert fetched.path.read_bytes() == make_content()


def test_a_private_object_without_credentials(s3: Bucket, tmp_path: Path) -> None:
    s3.put("llama/weights.irpa", make_content())
    error = fail_fetch(tmp_path, _S3_URL, "HTTP 403", configuration=_anonymous(s3.endpoint))
    assert "AWS_ACCESS_KEY_ID" in error.hint


@_PRIVATE_AND_PUBLIC
def test_an_object_that_is_not_there(s3: Bucket, tmp_path: Path, configured_for: _Configured) -> None:
    s3.put("there.irpa", b"there", public=True)
    error = fail_fetch(tmp_path, "s3://models/absent.irpa", configuration=configured_for(s3.endpoint))
    assert "spelling" in error.hint


@_PRIVATE_AND_PUBLIC
def test_a_cut_and_a_busy_bucket(s3: Bucket, tmp_path: Path, configured_for: _Configured) -> None:
    s3.put("llama/weights.irpa", make_content(), public=True)
    with run_proxy(s3.endpoint) as proxy:
        proxy.faults += [
            Fault(from_byte=2 * PART_BYTES, cut_after=300_000),
            Fault(from_byte=3 * PART_BYTES, status=503),
        ]
        fetched = make_store(tmp_path, configuration=configured_for(proxy.base)).fetch(_S3_URL)
        assert fetched.path.read_bytes() == make_content()
        assert any("503" in note for note in fetched.notes)
        assert sum("retry" in note for note in fetched.notes) == 2
        assert proxy.sent_bytes <= CONTENT_BYTES + PART_BYTES


@_PRIVATE_AND_PUBLIC
def test_an_object_is_gone_on_with(s3: Bucket, tmp_path: Path, configured_for: _Configured) -> None:
    s3.put("llama/weights.irpa", make_content(), public=True)
    with run_proxy(s3.endpoint) as proxy:
        configuration = configured_for(proxy.base)
        assert "HTTP 500" in break_off_fetch(tmp_path, _S3_URL, proxy, 3 * PART_BYTES, Fault(status=500), configuration)
        assert list_partials(tmp_path) == ["data", "state.jsonl"]
        assert read_artifacts(tmp_path) == {}
        fetched = make_store(tmp_path, configuration=configuration).fetch(_S3_URL)
        assert fetched.path.read_bytes() == make_content()
        assert "resuming at" in fetched.notes[0]
        assert proxy.sent_bytes == CONTENT_BYTES - 3 * PART_BYTES


@_PRIVATE_AND_PUBLIC
def test_an_object_that_changes_between_two_parts(s3: Bucket, tmp_path: Path, configured_for: _Configured) -> None:
    s3.put("llama/weights.irpa", make_content(), public=True)
    with run_proxy(s3.endpoint) as proxy:
        proxy.faults.append(
            Fault(
                from_byte=PART_BYTES, before_response=lambda: s3.put("llama/weights.irpa", make_content(1), public=True)
            )
        )
        # One at a time: moto gives wrong ETags while an object is replaced and read by several.
        one = replace(QUICK_POLICY, connections=1)
        fetched = make_store(tmp_path, configuration=configured_for(proxy.base), policy=one).fetch(_S3_URL)
    assert fetched.path.read_bytes() == make_content(1)
    assert "changed at its source" in fetched.notes[0]


@_PRIVATE_AND_PUBLIC
def test_the_md5_of_an_object_is_checked(s3: Bucket, tmp_path: Path, configured_for: _Configured) -> None:
    """It is the ETag, where the object was put at once."""
    s3.put("llama/weights.irpa", make_content(), public=True)
    with run_proxy(s3.endpoint) as proxy:
        # moto leaves out what marks an answer as S3's.
        proxy.faults += [Fault(flip_at=77, headers={"x-amz-request-id": "1"})]
        fail_fetch(tmp_path, _S3_URL, "md5", configuration=configured_for(proxy.base))
    assert list_partials(tmp_path) == []


@_PRIVATE_AND_PUBLIC
def test_an_empty_object(s3: Bucket, tmp_path: Path, configured_for: _Configured) -> None:
    s3.put("empty.bin", b"", public=True)
    assert make_store(tmp_path, configuration=configured_for(s3.endpoint)).fetch("s3://models/empty.bin").bytes == 0


@pytest.fixture
def google_proxy(google: Bucket) -> Iterator[FaultProxy]:
    """Adds what Google says of every object and the emulator leaves out."""
    with run_proxy(google.endpoint) as proxy:
        proxy.faults.append(Fault(max_uses=None, headers=_GOOGLE_HEADERS))
        yield proxy


def test_googles_storage(google: Bucket, google_proxy: FaultProxy, tmp_path: Path) -> None:
    google.put("llama/weights.irpa", make_content())
    configuration = configure({"STORAGE_EMULATOR_HOST": google_proxy.base})
    fetched = make_store(tmp_path, configuration=configuration).fetch(_GOOGLE_URL)
    assert google_proxy.sent_bytes == CONTENT_BYTES
    assert fetched.path.read_bytes() == make_content()
    assert make_store(tmp_path, offline=True).fetch(_GOOGLE_URL).cached


def test_an_object_of_googles_that_is_not_there(google: Bucket, tmp_path: Path) -> None:
    configuration = configure({"STORAGE_EMULATOR_HOST": google.endpoint})
    assert "spelling" in fail_fetch(tmp_path, "gs://models/absent.irpa", configuration=configuration).hint


def test_googles_storage_through_a_bad_network(google: Bucket, google_proxy: FaultProxy, tmp_path: Path) -> None:
    google.put("llama/weights.irpa", make_content())
    google_proxy.faults.insert(0, Fault(from_byte=2 * PART_BYTES, cut_after=300_000, headers=_GOOGLE_HEADERS))
    google_proxy.faults.insert(0, Fault(from_byte=3 * PART_BYTES, max_uses=3, status=503))
    configuration = configure({"STORAGE_EMULATOR_HOST": google_proxy.base})
    # All three busy answers may be those to one part.
    policy = replace(QUICK_POLICY, retries=3)
    fetched = make_store(tmp_path, configuration=configuration, policy=policy).fetch(_GOOGLE_URL)
    assert fetched.path.read_bytes() == make_content()
    assert "retry" in fetched.notes[0]
    assert google_proxy.sent_bytes <= CONTENT_BYTES + PART_BYTES


def test_an_object_of_googles_is_gone_on_with(google: Bucket, google_proxy: FaultProxy, tmp_path: Path) -> None:
    google.put("llama/weights.irpa", make_content())
    configuration = configure({"STORAGE_EMULATOR_HOST": google_proxy.base})
    assert "HTTP 500" in break_off_fetch(
        tmp_path, _GOOGLE_URL, google_proxy, 3 * PART_BYTES, Fault(status=500), configuration
    )
    fetched = make_store(tmp_path, configuration=configuration).fetch(_GOOGLE_URL)
    assert fetched.path.read_bytes() == make_content()
    assert google_proxy.sent_bytes == CONTENT_BYTES - 3 * PART_BYTES
