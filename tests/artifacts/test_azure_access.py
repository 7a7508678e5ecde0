"""Which credentials are used for an Azure account, and what is said of them."""

from __future__ import annotations

import pytest
from obstore.store import AzureStore

from iree_gauntlet.artifacts.object_stores import find_azure_access, parse_azure_blob
from iree_gauntlet.artifacts.remotes import ObjectRemote, list_remotes
from iree_gauntlet.errors import ArtifactError
from tests.support.download_checks import configured

_KEY = "a2V5"
_CONNECTION = f"AccountName=mine;AccountKey={_KEY};EndpointSuffix=core.windows.net"


def test_the_first_that_has_credentials_counts() -> None:
    everything = {
        "AZURE_STORAGE_CONNECTION_STRING": _CONNECTION,
        "AZURE_STORAGE_ACCOUNT": "mine",
        "AZURE_STORAGE_SAS_TOKEN": "?sig=environment\n",
        "AZURE_STORAGE_KEY": "a2V5Mg==",
    }
    found = find_azure_access("mine", configured(everything, {"az://mine": {"sas_token": "sig=file"}}))
    assert (found.sas, found.said_by) == ("sig=file", "[stores] of gauntlet.toml")
    found = find_azure_access("mine", configured(everything))
    assert (found.sas, found.options["account_key"]) == ("", _KEY)
    assert found.said_by == "AZURE_STORAGE_CONNECTION_STRING"
    del everything["AZURE_STORAGE_CONNECTION_STRING"]
    found = find_azure_access("mine", configured(everything))
    assert (found.sas, found.said_by) == ("sig=environment", "AZURE_STORAGE_SAS_TOKEN")
    assert "account_key" not in found.options
    del everything["AZURE_STORAGE_SAS_TOKEN"]
    assert find_azure_access("mine", configured(everything)).options["account_key"] == "a2V5Mg=="


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"AZURE_STORAGE_SAS_TOKEN": "sig=SECRET"}, "AZURE_STORAGE_SAS_TOKEN, as AZURE_STORAGE_ACCOUNT is not set"),
        (
            {"AZURE_STORAGE_KEY": _KEY, "AZURE_STORAGE_ACCOUNT": "other"},
            "not used: AZURE_STORAGE_KEY, as AZURE_STORAGE_ACCOUNT is 'other'",
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
    [remote] = list_remotes("az://mine/container/x.irpa", configured(environ), 1)
    hint = getattr(remote, "access_hint", "")
    assert said in hint
    assert "SECRET" not in hint
    assert "AZURE_STORAGE_CONNECTION_STRING" in hint, "and what may be set"


def test_secrets_are_not_shown() -> None:
    found = find_azure_access("mine", configured({}, {"az://mine": {"sas_token": "sig=SECRET"}}))
    assert "SECRET" not in repr(found)


def test_a_key_that_is_none_is_named_by_where_it_came_from() -> None:
    with pytest.raises(ArtifactError, match=r"not base64 \(AZURE_STORAGE_KEY\)") as caught:
        find_azure_access("mine", configured({"AZURE_STORAGE_ACCOUNT": "mine", "AZURE_STORAGE_KEY": "SECRET!!"}))
    assert "SECRET" not in str(caught.value)


def test_urls_that_are_an_accounts() -> None:
    connection = "AccountName=mine;AccountKey=a2V5;BlobEndpoint=https://blobs.example/mine"
    configuration = configured(
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
    [remote] = list_remotes("az://mine/container/x.irpa", configured(identity), 7)
    assert isinstance(remote, ObjectRemote)
    assert isinstance(remote.store, AzureStore)
    assert remote.store.client_options == {"connect_timeout": "7s", "read_timeout": "7s", "timeout": "7days"}
