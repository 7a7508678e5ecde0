"""Open object stores with `obstore`: Azure, S3, Google Cloud Storage, and folders, with local credentials.

obstore (the Rust crate object_store) supports all of them, in one wheel without dependencies.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from obstore.store import ObjectStore

    from iree_gauntlet.settings import Configuration


AZURE_HINT = (
    "For a private container set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with "
    "AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_KEY, or sign in (AZURE_CLIENT_ID …, AZURE_USE_AZURE_CLI=true); "
    'for several accounts, [stores."az://account"] in gauntlet.toml.'
)

_AZURE_BLOB_URL = re.compile(r"https://([a-z0-9]{3,24})\.blob\.core\.windows\.net/([^/?#]+)/([^?#]+)\Z")
_VARIABLE_REFERENCE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)\Z")
# The key is public, the same in every emulator: learn.microsoft.com/azure/storage/common/storage-connect-azurite
_DEVELOPMENT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_DEVELOPMENT_ENDPOINT = "http://127.0.0.1:10000/devstoreaccount1"

_SECRETS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
# The keys of a connection string (learn.microsoft.com/azure/storage/common/storage-configure-connection-string)
# have these defaults.
_CONNECTION_STRING_DEFAULTS = {
    "UseDevelopmentStorage": "",
    "AccountName": "",
    "AccountKey": "",
    "SharedAccessSignature": "",
    "BlobEndpoint": "",
    "EndpointSuffix": "core.windows.net",
    "DefaultEndpointsProtocol": "https",
}

# These are the variables of Microsoft Entra, with obstore's names.
_ENTRA = {
    "AZURE_CLIENT_ID": "client_id",
    "AZURE_CLIENT_SECRET": "client_secret",
    "AZURE_TENANT_ID": "tenant_id",
    "AZURE_FEDERATED_TOKEN_FILE": "federated_token_file",
    "AZURE_AUTHORITY_HOST": "authority_host",
    "AZURE_USE_AZURE_CLI": "use_azure_cli",
    "AZURE_MSI_ENDPOINT": "msi_endpoint",
    "IDENTITY_ENDPOINT": "msi_endpoint",
}
_AZURE_VARIABLES = frozenset(
    {*_SECRETS, *_ENTRA, "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"}
)
_ENTRA_CREDENTIALS = ("client_secret", "federated_token_file", "use_azure_cli", "msi_endpoint", "token")
S3_HINT = (
    "For a private bucket set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles work if boto3 is installed), "
    'and its region: AWS_REGION, or [stores."s3://bucket"] in gauntlet.toml.'
)
GCS_HINT = "For a private bucket set GOOGLE_APPLICATION_CREDENTIALS to a service account's or user's credentials file."

_AWS_CREDENTIALS = (
    *("access_key_id", "web_identity_token_file"),
    *("container_credentials_relative_uri", "container_credentials_full_uri"),
)
_AWS_OTHER_OPTIONS = ("secret_access_key", "session_token", "role_arn", "container_authorization_token_file")
# A variable's name is AWS_ and the option in capitals; the last four entries are exceptions.
_AWS_OPTION_BY_VARIABLE = {f"AWS_{option.upper()}": option for option in (*_AWS_CREDENTIALS, *_AWS_OTHER_OPTIONS)} | {
    "AWS_DEFAULT_REGION": "region",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ENDPOINT_URL_S3": "endpoint",
}
_GCS_OPTION_BY_VARIABLE = {
    f"GOOGLE_{option.upper()}": option
    for option in ("application_credentials", "service_account", "service_account_key")
}
_GCS_CREDENTIALS = (*_GCS_OPTION_BY_VARIABLE.values(), "bearer_token")


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """The endpoint and credentials of an account.

    Attributes:
        sas: a shared access signature, without the question mark; empty for none.
        credentials_source: for messages: the source of the credentials, or the reason why there are none.
    """

    account: str
    endpoint: str
    sas: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    uses_managed_identity: bool = False
    credentials_source: str = ""

    @property
    def can_sign(self) -> bool:
        """True if URLs can be signed locally, without a request."""
        return "account_key" in self.options

    @property
    def has_identity(self) -> bool:
        """True if there is an identity of Microsoft Entra."""
        return self.uses_managed_identity or any(self.options.get(name) for name in _ENTRA_CREDENTIALS)

    @property
    def has_own_credentials(self) -> bool:
        """True if there are credentials for this account."""
        return bool(self.sas) or self.can_sign


def _expand(options: Mapping[str, str], configuration: Configuration, url: str) -> dict[str, str]:
    """Replace `$NAME` in options by environment variables; raise an ArtifactError if a variable is not set."""
    expanded_options = {}
    for name, value in options.items():
        match = _VARIABLE_REFERENCE.match(value)
        if match and match[1] not in configuration.environ:
            files = ", ".join(map(str, configuration.files)) or "the configuration"
            message = f"{files}: {name} is ${match[1]}, which is not set; needed for {url}"
            raise ArtifactError(url, message, f"Set the environment variable {match[1]}.")
        expanded_options[name] = configuration.environ[match[1]] if match else value
    return expanded_options


def find_azure_access(account: str, configuration: Configuration, url: str = "") -> AzureAccess:
    """Find the endpoint and credentials of an account.

    The first source with a key or a signature is used: `gauntlet.toml`, `AZURE_STORAGE_CONNECTION_STRING`,
    `AZURE_STORAGE_SAS_TOKEN`, `AZURE_STORAGE_KEY`; otherwise an identity.

    Raises:
        ArtifactError: a connection string, key or variable is invalid or not set.
    """
    environ = {name: value.strip() for name, value in configuration.environ.items() if name in _AZURE_VARIABLES}
    base = f"az://{account}"
    configured_options = configuration.find_store_options(url or base) or configuration.find_store_options(base)
    options = _expand(configured_options, configuration, base)
    endpoint = options.pop("endpoint", "")
    uses_managed_identity = options.pop("instance_profile", "") == "true"
    sas = (options.pop("sas_token", "") or options.pop("sas_key", "")).strip()
    source = "[stores] in gauntlet.toml" if sas or "account_key" in options else ""
    configured_string = options.pop("connection_string", "")
    connection = _parse_connection(configured_string or environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    if connection and connection.account == account:
        endpoint = endpoint or connection.endpoint
        if not source:
            sas, options = connection.sas, {**options, **connection.options}
            source = "[stores] in gauntlet.toml" if configured_string else "AZURE_STORAGE_CONNECTION_STRING"
    if not source:
        sas, key, source = _read_environment(account, environ)
        options |= {"account_key": key} if key else {}
    for variable, name in _ENTRA.items():
        if environ.get(variable):
            options.setdefault(name, environ[variable])
    sas = sas.removeprefix("?")
    if sas:
        source += _describe_expiry(sas)
    try:
        base64.b64decode(options.get("account_key", ""), validate=True)
    except binascii.Error as error:
        # The key is secret and must not appear in the message.
        message = f"the key of the account {account} is invalid: not base64 ({source}); needed for {url or base}"
        raise ArtifactError(url or base, message, "Copy it again from the account's page.") from error
    endpoint = endpoint.rstrip("/") or f"https://{account}.blob.core.windows.net"
    return AzureAccess(account, endpoint, sas, options, uses_managed_identity, source)


def _read_environment(account: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the SAS, the key, and their source (or the reason why they are not used)."""
    env_account = environ.get("AZURE_STORAGE_ACCOUNT") or environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    variable = next((name for name in _SECRETS if environ.get(name)), "")
    if not variable:
        return "", "", ""
    if env_account != account:
        reason = f"AZURE_STORAGE_ACCOUNT is {env_account!r}" if env_account else "AZURE_STORAGE_ACCOUNT is not set"
        return "", "", f"not used: {variable}, because {reason}"
    return (
        (environ[variable], "", variable)
        if variable == "AZURE_STORAGE_SAS_TOKEN"
        else ("", environ[variable], variable)
    )


def _describe_expiry(sas: str) -> str:
    """Describe the expiry of an expired signature; empty for a valid one."""
    expiry_text = "".join(parse_qs(sas).get("se", []))
    try:
        expiry = datetime.fromisoformat(expiry_text)
    except ValueError:
        return ""
    expiry = expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)
    return f", which expired at {expiry_text}" if expiry < datetime.now(UTC) else ""


def parse_azure_blob(url: str, configuration: Configuration) -> tuple[AzureAccess, str, str] | None:
    """Return access, container and blob of an `https:` URL of a blob; None for any other URL."""
    if match := _AZURE_BLOB_URL.match(url):
        return find_azure_access(match[1], configuration, f"az://{match[1]}/{match[2]}"), match[2], match[3]
    for prefix, options in configuration.stores.items():
        endpoint = options.get("endpoint", "").rstrip("/")
        if prefix.startswith("az://") and endpoint and url.startswith(f"{endpoint}/") and "?" not in url:
            container, _, blob = url[len(endpoint) + 1 :].partition("/")
            account = prefix.removeprefix("az://").partition("/")[0]
            return find_azure_access(account, configuration, f"az://{account}/{container}"), container, blob
    connection = _parse_connection(configuration.environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    if connection and url.startswith(connection.endpoint + "/") and "?" not in url:
        container, _, blob = url[len(connection.endpoint) + 1 :].partition("/")
        return find_azure_access(connection.account, configuration), container, blob
    return None


def _parse_connection(text: str) -> AzureAccess | None:
    """Parse a connection string; return None for an empty string."""
    if not text:
        return None
    fields = dict(part.partition("=")[::2] for part in text.strip().strip(";").split(";"))
    development, account, key, sas, endpoint, suffix, protocol = (
        {**_CONNECTION_STRING_DEFAULTS, **fields}[name] for name in _CONNECTION_STRING_DEFAULTS
    )
    if development.lower() == "true":
        return AzureAccess("devstoreaccount1", _DEVELOPMENT_ENDPOINT, options={"account_key": _DEVELOPMENT_KEY})
    endpoint = endpoint.rstrip("/")
    if not account and endpoint:
        # With only a shared access signature, the account is the first part of the host.
        account = endpoint.partition("://")[2].partition(".")[0]
    if not account:
        # The string is secret and must not appear in the message.
        message = "AZURE_STORAGE_CONNECTION_STRING does not name an account"
        raise ArtifactError("az:", message, "Copy it from the account's page: AccountName=…;AccountKey=…")
    endpoint = endpoint or f"{protocol}://{account}.blob.{suffix}"
    return AzureAccess(account, endpoint, sas, {"account_key": key} if key else {})


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A path in an object store."""

    store: ObjectStore
    path: str
    anonymous: bool = False

    def list_objects(self) -> Iterator[tuple[str, int, str | None, str]]:
        """Yield path, size, tag, and the time of the last change of all objects below the path; errors of obstore."""
        import obstore  # noqa: PLC0415 - a large library, which few commands need

        for page in obstore.list(self.store, prefix=self.path or None):
            for entry in page:
                yield entry["path"], entry["size"], entry["e_tag"], str(entry["last_modified"])


def open_store(
    url: str, configuration: Configuration, *, stall_timeout: float = 60.0, retries: int = 2
) -> StoreLocation:
    """Open the store of a URL, and return the store with the path in it. No request is sent.

    Args:
        url: `az://account/container/path`, `s3://bucket/path`, `gs://bucket/path` or `file:///folder`.
        configuration: credentials and options.
        stall_timeout: seconds without a byte after which a request is aborted.
        retries: the number of further attempts, made by obstore.

    Raises:
        ArtifactError: the URL has none of these forms, or an option is wrong.
    """
    scheme, _, remainder = url.partition("://")
    bucket, _, path = remainder.partition("/")
    path = unquote(path).strip("/")
    if scheme == "file":
        from obstore.store import LocalStore  # noqa: PLC0415 - a large library, which few runs need

        return StoreLocation(LocalStore(Path("/" + path), mkdir=True), "")
    if scheme == "az":
        container, _, path = path.partition("/")
        return open_azure(find_azure_access(bucket, configuration, url), container, path, url, stall_timeout, retries)
    client = _make_client(stall_timeout, retries)
    if scheme == "s3":
        return _open_s3(bucket, path, url, configuration, client)
    if scheme == "gs":
        return _open_gcs(bucket, path, url, configuration, client)
    hint = "Expected az://account/container/path, s3://bucket/path, gs://bucket/path or file:///folder"
    raise ArtifactError(url, f"not an object store: {url}", hint)


def open_azure(
    access: AzureAccess, container: str, path: str, url: str, stall_timeout: float, retries: int = 0
) -> StoreLocation:
    """Open a container of an account; raise an ArtifactError if the credentials are malformed."""
    from obstore.store import AzureStore  # noqa: PLC0415 - a large library, which few runs need

    options: dict[str, Any] = {"endpoint": access.endpoint, "account_name": access.account, **access.options}
    if access.sas:
        options["sas_key"] = access.sas
    if not access.has_own_credentials and not access.has_identity:
        options["skip_signature"] = "true"
    return _open_location(AzureStore, container, path.strip("/"), options, _make_client(stall_timeout, retries), url)


def _open_s3(bucket: str, path: str, url: str, configuration: Configuration, client: dict[str, Any]) -> StoreLocation:
    from obstore.store import S3Store  # noqa: PLC0415 - a large library, which few runs need

    options, has_credentials = _collect_options(_AWS_OPTION_BY_VARIABLE, _AWS_CREDENTIALS, url, configuration)
    options.setdefault("region", "us-east-1")
    if has_credentials or _is_anonymous(options):
        return _open_location(S3Store, bucket, path, options, client, url)
    # boto3 handles profiles and single sign-on. Without it, and without credentials, the bucket must be public.
    if importlib.util.find_spec("boto3"):
        import boto3  # noqa: PLC0415 - a large library, which few runs need
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - a large library, which few runs need

        session = boto3.Session()
        if session.get_credentials():
            provider = Boto3CredentialProvider(session)
            return _open_location(S3Store, bucket, path, options, client, url, credential_provider=provider)
    options["skip_signature"] = "true"
    return _open_location(S3Store, bucket, path, options, client, url)


def _open_gcs(bucket: str, path: str, url: str, configuration: Configuration, client: dict[str, Any]) -> StoreLocation:
    from obstore.store import GCSStore  # noqa: PLC0415 - a large library, which few runs need

    options, has_credentials = _collect_options(_GCS_OPTION_BY_VARIABLE, _GCS_CREDENTIALS, url, configuration)
    emulator = configuration.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        options.setdefault("base_url", emulator if "://" in emulator else f"http://{emulator}")
    sign_in_file = Path(configuration.environ.get("HOME", "/")) / ".config/gcloud/application_default_credentials.json"
    if not has_credentials and not sign_in_file.is_file():
        options["skip_signature"] = "true"
    return _open_location(GCSStore, bucket, path, options, client, url)


def _collect_options(
    variables: Mapping[str, str], credentials: Sequence[str], url: str, configuration: Configuration
) -> tuple[dict[str, str], bool]:
    """Return the options of the environment and of `gauntlet.toml`, and whether they include credentials."""
    environ = configuration.environ
    options = {option: environ[variable] for variable, option in variables.items() if environ.get(variable)}
    options |= _expand(configuration.find_store_options(url), configuration, url)
    has_credentials = any(options.get(name) for name in credentials) or options.pop("instance_profile", "") == "true"
    return options, has_credentials


def _is_anonymous(options: Mapping[str, str]) -> bool:
    return options.get("skip_signature", "").lower() in ("true", "1", "yes")


def _make_client(stall_timeout: float, retries: int) -> dict[str, Any]:
    return {
        "client_options": {
            "connect_timeout": timedelta(seconds=stall_timeout),
            "read_timeout": timedelta(seconds=stall_timeout),
            # This limits the total time. It is long because a large file may take hours.
            "timeout": timedelta(days=7),
        },
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=max(stall_timeout, 1.0) * 4)},
    }


def _open_location(
    store_class: Any, name: str, path: str, config: dict[str, Any], client: dict[str, Any], url: str, **extra: Any
) -> StoreLocation:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

    anonymous = _is_anonymous(config)
    if anonymous:
        config["skip_signature"] = "true"
    if config.get("endpoint", config.get("base_url", "")).startswith("http://"):
        client["client_options"]["allow_http"] = True
    try:
        return StoreLocation(store_class(name, config=config, **client, **extra), path, anonymous)
    except BaseError as error:
        reason = str(error).partition("\n")[0]
        hint = "Check the credentials, and the options under [stores] in gauntlet.toml (docs/how-to/artifacts.md)."
        raise ArtifactError(url, f"{reason}: needed for {url}", hint) from error
