"""Azure blobs, from Azurite: public and private containers, with credentials of every kind and without."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest
from obstore.store import AzureStore

from iree_gauntlet.artifacts.object_stores import find_azure_access, parse_azure_blob
from iree_gauntlet.artifacts.remotes import ObjectRemote, list_remotes
from iree_gauntlet.errors import ArtifactError
from tests.support.download_checks import (
    CONTENT_BYTES,
    PART_BYTES,
    configure,
    fail_fetch,
    list_partials,
    make_content,
    make_store,
    read_all_files,
    sha256,
)
from tests.support.emulators import ACCOUNT, Azurite
from tests.support.fault_proxy import Fault, run_proxy
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.results import FetchedFile
    from iree_gauntlet.settings import Configuration

    _Fails = Callable[[Configuration], str]

_KEY = "a2V5"
_CONNECTION = f"AccountName=mine;AccountKey={_KEY};EndpointSuffix=core.windows.net"


@pytest.fixture(scope="module")
def public(azurite: Azurite) -> str:
    return azurite.container(public=True)


@pytest.fixture(scope="module")
def private(azurite: Azurite) -> str:
    container = azurite.container(public=False)
    azurite.upload(container, "llama/weights.irpa", make_content())
    return container


def _az(container: str, blob: str = "llama/weights.irpa") -> str:
    return f"az://{ACCOUNT}/{container}/{blob}"


def _endpoint_option(azurite: Azurite, **more: str) -> dict[str, dict[str, str]]:
    return {f"az://{ACCOUNT}": {"endpoint": azurite.endpoint, **more}}


def _is_whole(fetched: FetchedFile) -> bool:
    return (fetched.sha256, fetched.bytes, fetched.cached) == (sha256(make_content()), CONTENT_BYTES, False) and (
        fetched.path.read_bytes() == make_content()
    )


def test_a_public_blob_by_its_url(azurite: Azurite, public: str, tmp_path: Path) -> None:
    url = azurite.upload(public, "by-url/weights.irpa", make_content())
    with run_proxy(azurite.endpoint) as proxy:
        through = proxy.url(url)
        fetched = make_store(tmp_path).fetch(through)
        assert _is_whole(fetched)
        assert proxy.sent_bytes == CONTENT_BYTES
        assert sorted(proxy.range_starts) == [part * PART_BYTES for part in range(7)]
    assert make_store(tmp_path, offline=True).fetch(through).cached
    assert list_partials(tmp_path) == []


@pytest.mark.parametrize("credentials", ["connection string", "endpoint", "none at that account"])
def test_a_public_blob_by_az(azurite: Azurite, public: str, tmp_path: Path, credentials: str) -> None:
    azurite.upload(public, "by-az/weights.irpa", make_content())
    settings = {
        "connection string": configure({"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string()}),
        "endpoint": configure(stores=_endpoint_option(azurite)),
        "none at that account": configure(
            {"AZURE_STORAGE_ACCOUNT": "another", "AZURE_STORAGE_KEY": azurite.key}, _endpoint_option(azurite)
        ),
    }
    assert _is_whole(make_store(tmp_path, configuration=settings[credentials]).fetch(_az(public, "by-az/weights.irpa")))


def test_names_that_need_escapes(azurite: Azurite, public: str, tmp_path: Path) -> None:
    azurite.upload(public, "a b/größe+1%.bin", b"escaped")
    url = _az(public, "a%20b/gr%C3%B6%C3%9Fe+1%25.bin")
    environments: tuple[dict[str, str], ...] = ({"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string()}, {})
    for number, environ in enumerate(environments):
        configuration = configure(environ, _endpoint_option(azurite))
        assert (
            make_store(tmp_path / str(number), configuration=configuration).fetch(url).path.read_bytes() == b"escaped"
        )


def test_an_empty_blob(azurite: Azurite, public: str, tmp_path: Path) -> None:
    url = azurite.upload(public, "empty.bin", b"")
    assert make_store(tmp_path).fetch(url).bytes == 0


def _connection_string(azurite: Azurite, _signature: str = "") -> Configuration:
    return configure({"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string()})


def _account_and_signature(azurite: Azurite, signature: str) -> Configuration:
    environ = {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_SAS_TOKEN": f"?{signature}"}
    return configure(environ, _endpoint_option(azurite))


_CREDENTIALS: dict[str, Callable[[Azurite, str], Configuration]] = {
    "connection string": _connection_string,
    "connection string with signature": lambda azurite, signature: configure(
        {
            "AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={azurite.endpoint};AccountName={ACCOUNT};"
            f"SharedAccessSignature={signature}"
        }
    ),
    "account and key": lambda azurite, _: configure(
        {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": azurite.key}, _endpoint_option(azurite)
    ),
    "account and signature": _account_and_signature,
    "option with key": lambda azurite, _: configure(
        {"OUR_KEY": azurite.key}, _endpoint_option(azurite, account_key="$OUR_KEY")
    ),
    "option with signature": lambda azurite, signature: configure(
        {"OUR_SAS": signature}, _endpoint_option(azurite, sas_token="$OUR_SAS")
    ),
}


@pytest.mark.parametrize("credentials", _CREDENTIALS)
def test_a_private_blob(azurite: Azurite, private: str, tmp_path: Path, credentials: str) -> None:
    signature = azurite.sas(private, "llama/weights.irpa")
    fetched = make_store(tmp_path, configuration=_CREDENTIALS[credentials](azurite, signature)).fetch(_az(private))
    assert _is_whole(fetched)
    _require_no_secrets(azurite, signature, "\n".join(fetched.notes), tmp_path)


def test_a_private_blob_by_its_url(azurite: Azurite, private: str, tmp_path: Path) -> None:
    url = f"{azurite.endpoint}/{private}/llama/weights.irpa"
    assert _is_whole(make_store(tmp_path, configuration=_connection_string(azurite)).fetch(url))


def _require_no_secrets(azurite: Azurite, signature: str, text: str, root: Path) -> None:
    """Neither in what was said nor in any file, not even the signature that was made of the key."""
    secrets = [azurite.key, azurite.key[:20], parse_qs(signature)["sig"][0], signature, "sig="]
    secrets.append(signature.partition("sig=")[2].partition("&")[0])
    for secret in secrets:
        assert secret not in text
        for path, data in read_all_files(root).items():
            assert secret.encode() not in data, f"{secret} in {path}"


@pytest.fixture
def fails(azurite: Azurite, private: str, tmp_path: Path) -> _Fails:
    """What is said where a private blob is not given."""

    def fails(configuration: Configuration) -> str:
        text = str(fail_fetch(tmp_path, _az(private), configuration=configuration))
        _require_no_secrets(azurite, azurite.sas(private, "llama/weights.irpa"), text, tmp_path)
        return text

    return fails


def test_a_private_blob_without_credentials(azurite: Azurite, fails: _Fails) -> None:
    text = fails(configure(stores=_endpoint_option(azurite)))
    assert "HTTP 403" in text
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_KEY", "[stores."):
        assert name in text


@pytest.mark.parametrize("status", [404, 409])
def test_azure_itself_calls_a_private_blob_missing(azurite: Azurite, private: str, tmp_path: Path, status: int) -> None:
    """Unlike Azurite it answers an anonymous request with 404, or 409 where an account has no public containers."""
    with run_proxy(azurite.endpoint) as proxy:
        proxy.faults.append(Fault(max_uses=None, status=status))
        configuration = configure(stores={f"az://{ACCOUNT}": {"endpoint": proxy.url(azurite.endpoint)}})
        error = fail_fetch(tmp_path, _az(private), f"HTTP {status}", configuration=configuration)
        assert "AZURE_STORAGE_CONNECTION_STRING" in error.hint
        assert len(proxy.range_starts) == 1


def test_a_wrong_key(azurite: Azurite, fails: _Fails) -> None:
    wrong = azurite.connection_string(key="A" * 86 + "==")
    assert "HTTP 403" in fails(configure({"AZURE_STORAGE_CONNECTION_STRING": wrong}))


def test_a_key_that_is_none(azurite: Azurite, fails: _Fails) -> None:
    text = fails(configure({"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string(key="not base64, secret")}))
    assert "secret" not in text


@pytest.mark.parametrize(("blob", "hours"), [("llama/weights.irpa", -1), ("another.bin", 1)])
def test_a_signature_that_is_expired_or_for_another_blob(
    azurite: Azurite, private: str, fails: _Fails, blob: str, hours: int
) -> None:
    assert "HTTP 403" in fails(_account_and_signature(azurite, azurite.sas(private, blob, hours=hours)))


def test_a_blob_that_is_not_there(azurite: Azurite, private: str, tmp_path: Path) -> None:
    url = _az(private, "absent.bin")
    assert "spelling" in fail_fetch(tmp_path, url, "HTTP 404", configuration=_connection_string(azurite)).hint


@pytest.mark.parametrize("text", ["hunter2", "AccountKey=hunter2", "DefaultEndpointsProtocol=https;AccountKey=hunter2"])
def test_a_connection_string_that_is_none(private: str, tmp_path: Path, text: str) -> None:
    configuration = configure({"AZURE_STORAGE_CONNECTION_STRING": text})
    with pytest.raises(ArtifactError, match="AZURE_STORAGE_CONNECTION_STRING") as caught:
        make_store(tmp_path, configuration=configuration).fetch(_az(private))
    assert "hunter2" not in str(caught.value)


def test_the_servers_md5_is_checked(azurite: Azurite, public: str, tmp_path: Path) -> None:
    """Also of a file that comes in parts, and whose hash nobody knows yet."""
    wrong = azurite.upload(public, "wrong/weights.irpa", make_content(), md5=b"0" * 16)
    fail_fetch(tmp_path, wrong, "(?i)md5")
    assert not (tmp_path / "registry.lock.txt").exists()
    azurite.upload(public, "wrong/weights.irpa", make_content())
    assert _is_whole(make_store(tmp_path).fetch(wrong))


@pytest.mark.iree
@pytest.mark.parametrize("there", [True, False])
def test_no_report_of_a_run_has_a_secret(
    azurite: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    project = Project(tmp_path / "project")
    container = azurite.container(public=False)
    program = (project.regressions / "abs.mlir").read_bytes()
    azurite.upload(container, "toy/abs.mlir", program)
    project.regression(mlir=_az(container, "toy/abs.mlir" if there else "toy/absent.mlir"))
    signature = azurite.sas(container, "toy/abs.mlir")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", signature)
    (project.folder / "gauntlet.toml").write_text(f'[stores."az://{ACCOUNT}"]\nendpoint = "{azurite.endpoint}"\n')
    done = project.gauntlet("run")
    assert done.code == (0 if there else 3), done.text
    assert _az(container, "toy/") in (project.newest / "journal.jsonl").read_text()
    _require_no_secrets(azurite, signature, done.text, project.folder)


def test_the_first_that_has_credentials_counts() -> None:
    everything = {
        "AZURE_STORAGE_CONNECTION_STRING": _CONNECTION,
        "AZURE_STORAGE_ACCOUNT": "mine",
        "AZURE_STORAGE_SAS_TOKEN": "?sig=environment\n",
        "AZURE_STORAGE_KEY": "a2V5Mg==",
    }
    found = find_azure_access("mine", configure(everything, {"az://mine": {"sas_token": "sig=file"}}))
    assert (found.sas, found.credentials_source) == ("sig=file", "[stores] in gauntlet.toml")
    found = find_azure_access("mine", configure(everything))
    assert (found.sas, found.options["account_key"]) == ("", _KEY)
    assert found.credentials_source == "AZURE_STORAGE_CONNECTION_STRING"
    del everything["AZURE_STORAGE_CONNECTION_STRING"]
    found = find_azure_access("mine", configure(everything))
    assert (found.sas, found.credentials_source) == ("sig=environment", "AZURE_STORAGE_SAS_TOKEN")
    assert "account_key" not in found.options
    del everything["AZURE_STORAGE_SAS_TOKEN"]
    assert find_azure_access("mine", configure(everything)).options["account_key"] == "a2V5Mg=="


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"AZURE_STORAGE_SAS_TOKEN": "sig=SECRET"},
            "AZURE_STORAGE_SAS_TOKEN, because AZURE_STORAGE_ACCOUNT is not set",
        ),
        (
            {"AZURE_STORAGE_KEY": _KEY, "AZURE_STORAGE_ACCOUNT": "other"},
            "not used: AZURE_STORAGE_KEY, because AZURE_STORAGE_ACCOUNT is 'other'",
        ),
        (
            {"AZURE_STORAGE_SAS_TOKEN": "se=2020-01-01T00:00:00Z&sig=SECRET", "AZURE_STORAGE_ACCOUNT": "mine"},
            "Sent: AZURE_STORAGE_SAS_TOKEN, which expired at 2020-01-01T00:00:00Z",
        ),
        ({"AZURE_STORAGE_CONNECTION_STRING": "AccountName=other;AccountKey=a2V5"}, "Sent: no credentials."),
        ({}, "Sent: no credentials."),
    ],
)
def test_a_refusal_says_what_was_sent(environ: dict[str, str], said: str) -> None:
    [remote] = list_remotes("az://mine/container/x.irpa", configure(environ), 1)
    hint = getattr(remote, "access_hint", "")
    assert said in hint
    assert "SECRET" not in hint
    assert "AZURE_STORAGE_CONNECTION_STRING" in hint, "and what may be set"


def test_secrets_are_not_shown() -> None:
    found = find_azure_access("mine", configure({}, {"az://mine": {"sas_token": "sig=SECRET"}}))
    assert "SECRET" not in repr(found)


def test_a_key_that_is_none_is_named_by_where_it_came_from() -> None:
    with pytest.raises(ArtifactError, match=r"not base64 \(AZURE_STORAGE_KEY\)") as caught:
        find_azure_access("mine", configure({"AZURE_STORAGE_ACCOUNT": "mine", "AZURE_STORAGE_KEY": "SECRET!!"}))
    assert "SECRET" not in str(caught.value)


def test_urls_that_are_an_accounts() -> None:
    connection = "AccountName=mine;AccountKey=a2V5;BlobEndpoint=https://blobs.example/mine"
    configuration = configure(
        {"AZURE_STORAGE_CONNECTION_STRING": connection},
        {"az://emulated": {"endpoint": "http://127.0.0.1:10000/emulated"}},
    )
    for url, expected in {
        "https://abc.blob.core.windows.net/c/d/e.irpa": ("abc", "c", "d/e.irpa"),
        "http://127.0.0.1:10000/emulated/c/e.irpa": ("emulated", "c", "e.irpa"),
        "https://blobs.example/mine/c/e.irpa": ("mine", "c", "e.irpa"),
    }.items():
        found = parse_azure_blob(url, configuration)
        assert found is not None
        assert (found[0].account, found[1], found[2]) == expected
    for url in ("https://abc.blob.core.windows.net/c", "https://host/c/e.irpa", "https://blobs.example/mine2/c/e"):
        assert parse_azure_blob(url, configuration) is None


def test_an_identity_waits_as_long_as_is_asked_for() -> None:
    identity = {"AZURE_CLIENT_ID": "id", "AZURE_CLIENT_SECRET": "secret", "AZURE_TENANT_ID": "tenant"}
    [remote] = list_remotes("az://mine/container/x.irpa", configure(identity), 7)
    assert isinstance(remote, ObjectRemote)
    assert isinstance(remote.store, AzureStore)
    assert remote.store.client_options == {"connect_timeout": "7s", "read_timeout": "7s", "timeout": "7days"}
