"""Object stores through `obstore`: Azure, S3, Google Cloud Storage, and folders, with this machine's credentials.

obstore (the Rust crate object_store) speaks all of them, in one wheel without dependencies.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from iree_gauntlet.artifacts.azure_access import AzureAccess, azure_access, expanded
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ObjectStore

    from iree_gauntlet.settings import Configuration


S3_HINT = (
    "For a private bucket set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles work where boto3 is installed), "
    'and its region: AWS_REGION, or [stores."s3://bucket"] in gauntlet.toml.'
)
GCS_HINT = "For a private bucket set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account or of a sign-in."

_AWS = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_DEFAULT_REGION": "region",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ENDPOINT_URL_S3": "endpoint",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "web_identity_token_file",
    "AWS_ROLE_ARN": "role_arn",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container_credentials_relative_uri",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container_credentials_full_uri",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "container_authorization_token_file",
}
_AWS_CREDENTIALS = (
    "access_key_id",
    "web_identity_token_file",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
)
_GCS = {
    "GOOGLE_APPLICATION_CREDENTIALS": "application_credentials",
    "GOOGLE_SERVICE_ACCOUNT": "service_account",
    "GOOGLE_SERVICE_ACCOUNT_KEY": "service_account_key",
}
_GCS_CREDENTIALS = ("application_credentials", "service_account", "service_account_key", "bearer_token")
_TRUE = ("true", "1", "yes")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A place in an object store.

    Attributes:
        store: obstore's object for the bucket, container or folder.
        path: key or prefix inside it, without slashes at its ends.
        anonymous: whether requests carry no credentials.
    """

    store: ObjectStore
    path: str
    anonymous: bool = False


def open_store(
    url: str, configuration: Configuration, *, stall_timeout: float = 60.0, retries: int = 2
) -> StoreLocation:
    """The store that a URL is in, and the path inside it. Nobody is asked yet.

    Args:
        url: `az://account/container/path`, `s3://bucket/path`, `gs://bucket/path` or `file:///folder`.
        configuration: credentials and options.
        stall_timeout: seconds without a byte after which a request is given up.
        retries: further attempts of a request, by obstore itself.

    Raises:
        ArtifactError: the URL is none of these, or an option is wrong.
    """
    scheme, _, rest = url.partition("://")
    head, _, path = rest.partition("/")
    path = unquote(path).strip("/")
    client = _client(stall_timeout, retries)
    if scheme == "file":
        from obstore.store import LocalStore  # noqa: PLC0415 - a large library, which few runs need

        folder = Path("/" + path)
        return StoreLocation(LocalStore(folder, mkdir=True), "")
    if scheme == "az":
        container, _, path = path.partition("/")
        return open_azure(azure_access(head, configuration, url), container, path, url, client)
    if scheme == "s3":
        return _s3(head, path, url, configuration, client)
    if scheme == "gs":
        return _gcs(head, path, url, configuration, client)
    expected = "Expected az://account/container/path, s3://bucket/path, gs://bucket/path or file:///folder"
    raise ArtifactError(url, f"no object store: {url}", expected)


def open_azure(
    access: AzureAccess, container: str, path: str, url: str, client: dict[str, Any] | None = None
) -> StoreLocation:
    """A container of an account.

    Raises:
        ArtifactError: the credentials are malformed.
    """
    from obstore.store import AzureStore  # noqa: PLC0415 - a large library, which few runs need

    client = client or _client(60.0, 0)
    options: dict[str, Any] = {"endpoint": access.endpoint, "account_name": access.account, **access.options}
    if access.sas:
        options["sas_key"] = access.sas
    anonymous = not access.own and not access.identity
    if anonymous:
        options["skip_signature"] = "true"
    _allow_http(client, access.endpoint)
    return StoreLocation(_made(AzureStore, container, options, client, url), path.strip("/"), anonymous)


def _s3(bucket: str, path: str, url: str, configuration: Configuration, client: dict[str, Any]) -> StoreLocation:
    from obstore.store import S3Store  # noqa: PLC0415 - a large library, which few runs need

    options = _from_environment(_AWS, configuration) | expanded(configuration.options_of(url), configuration, url)
    options.setdefault("region", "us-east-1")
    anonymous = options.get("skip_signature", "").lower() in _TRUE
    known = any(options.get(name) for name in _AWS_CREDENTIALS) or options.pop("instance_profile", "") == "true"
    extra: dict[str, Any] = {}
    if not known and not anonymous:
        # Profiles and single sign-on are boto3's knowledge. Without it, and without credentials: a public bucket.
        extra = _boto3_provider()
        anonymous = not extra
    if anonymous:
        options["skip_signature"] = "true"
    _allow_http(client, options.get("endpoint", ""))
    return StoreLocation(_made(S3Store, bucket, options, client, url, **extra), path, anonymous)


def _boto3_provider() -> dict[str, Any]:
    if not importlib.util.find_spec("boto3"):
        return {}
    import boto3  # noqa: PLC0415 - a large library, which few runs need
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - a large library, which few runs need

    session = boto3.Session()
    return {"credential_provider": Boto3CredentialProvider(session)} if session.get_credentials() else {}


def _gcs(bucket: str, path: str, url: str, configuration: Configuration, client: dict[str, Any]) -> StoreLocation:
    from obstore.store import GCSStore  # noqa: PLC0415 - a large library, which few runs need

    options = _from_environment(_GCS, configuration) | expanded(configuration.options_of(url), configuration, url)
    emulator = configuration.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        options.setdefault("base_url", emulator if "://" in emulator else f"http://{emulator}")
    anonymous = options.get("skip_signature", "").lower() in _TRUE
    known = any(options.get(name) for name in _GCS_CREDENTIALS) or options.pop("instance_profile", "") == "true"
    signed_in = Path(configuration.environ.get("HOME", "/")) / ".config/gcloud/application_default_credentials.json"
    if not known and not signed_in.is_file():
        anonymous = True
    if anonymous:
        options["skip_signature"] = "true"
    _allow_http(client, options.get("base_url", ""))
    return StoreLocation(_made(GCSStore, bucket, options, client, url), path, anonymous)


def _from_environment(names: Mapping[str, str], configuration: Configuration) -> dict[str, str]:
    environ = configuration.environ
    return {option: environ[variable] for variable, option in names.items() if environ.get(variable)}


def _client(stall_timeout: float, retries: int) -> dict[str, Any]:
    return {
        "client_options": {
            "connect_timeout": timedelta(seconds=stall_timeout),
            "read_timeout": timedelta(seconds=stall_timeout),
            # In total: a large file may take hours.
            "timeout": timedelta(days=7),
        },
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=max(stall_timeout, 1.0) * 4)},
    }


def _allow_http(client: dict[str, Any], endpoint: str) -> None:
    if endpoint.startswith("http://"):
        client["client_options"]["allow_http"] = True


def _made(
    kind: Any, name: str, config: Mapping[str, Any], client: Mapping[str, Any], url: str, **extra: Any
) -> ObjectStore:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

    try:
        store: ObjectStore = kind(name, config=dict(config), **client, **extra)
    except BaseError as error:
        reason = str(error).partition("\n")[0]
        hint = "Check the credentials, and the options under [stores] in gauntlet.toml (docs/how-to/artifacts.md)."
        raise ArtifactError(url, f"{reason}: needed for {url}", hint) from error
    return store
