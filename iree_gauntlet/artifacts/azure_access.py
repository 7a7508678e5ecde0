"""Access to Azure storage accounts: which credentials there are for one, and where it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.configuration import Configuration

__all__ = ["AZURE_HINT", "AzureAccess", "azure_access", "azure_blob", "expanded"]

AZURE_HINT = (
    "For a private container set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with "
    "AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_KEY, or sign in (AZURE_CLIENT_ID …, AZURE_USE_AZURE_CLI=true); "
    'for several accounts, [stores."az://account"] in gauntlet.toml.'
)

_BLOB_URL = re.compile(r"https://([a-z0-9]{3,24})\.blob\.core\.windows\.net/([^/?#]+)/([^?#]+)\Z")
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)\Z")
_DEVELOPMENT = "UseDevelopmentStorage"
# Public, the same in every emulator: learn.microsoft.com/azure/storage/common/storage-connect-azurite
_DEVELOPMENT_ACCOUNT = "devstoreaccount1"
_DEVELOPMENT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_DEVELOPMENT_ENDPOINT = "http://127.0.0.1:10000/devstoreaccount1"

# Of Microsoft Entra, by the variables' names, as obstore calls them.
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
_ENTRA_ENOUGH = ("client_secret", "federated_token_file", "use_azure_cli", "msi_endpoint", "token")


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """How an account is reached.

    Attributes:
        account: its name.
        endpoint: URL of its blob service, without a slash at the end.
        sas: a shared access signature, without the question mark; empty for none.
        options: more credentials, as obstore takes them.
        instance: whether the machine has an identity of its own.
    """

    account: str
    endpoint: str
    sas: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    instance: bool = False

    @property
    def signs(self) -> bool:
        """Whether URLs can be signed here, without asking anybody."""
        return "account_key" in self.options

    @property
    def identity(self) -> bool:
        """Whether there is an identity of Microsoft Entra."""
        return self.instance or any(self.options.get(name) for name in _ENTRA_ENOUGH)

    @property
    def own(self) -> bool:
        """Whether there are credentials that belong to this account."""
        return bool(self.sas) or self.signs


def expanded(options: Mapping[str, str], configuration: Configuration, url: str) -> dict[str, str]:
    """Options with `$NAME` replaced by what the environment says.

    Raises:
        ArtifactError: a variable that is not set.
    """
    found = {}
    for name, value in options.items():
        match = _VARIABLE.match(value)
        if match and match[1] not in configuration.environ:
            files = ", ".join(map(str, configuration.files)) or "the configuration"
            what = f"{files}: {name} is ${match[1]}, which is not set; needed for {url}"
            raise ArtifactError(url, what, f"Set the environment variable {match[1]}.")
        found[name] = configuration.environ[match[1]] if match else value
    return found


def azure_access(account: str, configuration: Configuration, url: str = "") -> AzureAccess:
    """What is known of an account: from `gauntlet.toml`, else from the environment.

    Raises:
        ArtifactError: a connection string that is none, or a variable that is not set.
    """
    environ = configuration.environ
    base = f"az://{account}"
    options = expanded(configuration.options_of(url or base) or configuration.options_of(base), configuration, base)
    endpoint = options.pop("endpoint", "")
    text = options.pop("connection_string", "") or environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    connection = _connection(text)
    if connection and connection.account == account:
        endpoint = endpoint or connection.endpoint
        options = {**connection.options, **options}
        options.setdefault("sas_token", connection.sas)
    named = environ.get("AZURE_STORAGE_ACCOUNT") or environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if named == account:
        key = environ.get("AZURE_STORAGE_KEY") or environ.get("AZURE_STORAGE_ACCOUNT_KEY", "")
        if key:
            options.setdefault("account_key", key)
        options["sas_token"] = options.get("sas_token") or environ.get("AZURE_STORAGE_SAS_TOKEN", "")
    for variable, name in _ENTRA.items():
        if environ.get(variable):
            options.setdefault(name, environ[variable])
    sas = (options.pop("sas_token", "") or options.pop("sas_key", "")).removeprefix("?")
    endpoint = endpoint.rstrip("/") or f"https://{account}.blob.core.windows.net"
    instance = options.pop("instance_profile", "") == "true"
    return AzureAccess(account, endpoint, sas, options, instance)


def azure_blob(url: str, configuration: Configuration) -> tuple[AzureAccess, str, str] | None:
    """Access, container and blob of an `https:` URL that names one; None for any other.

    Raises:
        ArtifactError: as `azure_access`.
    """
    if match := _BLOB_URL.match(url):
        return azure_access(match[1], configuration, f"az://{match[1]}/{match[2]}"), match[2], match[3]
    connection = _connection(configuration.environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    if connection and url.startswith(connection.endpoint + "/") and "?" not in url:
        container, _, blob = url[len(connection.endpoint) + 1 :].partition("/")
        return azure_access(connection.account, configuration), container, blob
    return None


def _connection(text: str) -> AzureAccess | None:
    """What a connection string says (learn.microsoft.com/azure/storage/common/storage-configure-connection-string)."""
    if not text:
        return None
    words = dict(part.partition("=")[::2] for part in text.strip().strip(";").split(";"))
    if words.get(_DEVELOPMENT, "").lower() == "true":
        return AzureAccess(_DEVELOPMENT_ACCOUNT, _DEVELOPMENT_ENDPOINT, options={"account_key": _DEVELOPMENT_KEY})
    account, endpoint = words.get("AccountName", ""), words.get("BlobEndpoint", "").rstrip("/")
    if not account and endpoint:
        # With a shared access signature alone: the account is the first part of the host.
        account = endpoint.partition("://")[2].partition(".")[0]
    if not account:
        # Not repeated: it is a secret.
        what = "AZURE_STORAGE_CONNECTION_STRING names no account"
        raise ArtifactError("az:", what, "Copy it from the account's page: AccountName=…;AccountKey=…")
    suffix, protocol = words.get("EndpointSuffix", "core.windows.net"), words.get("DefaultEndpointsProtocol", "https")
    options = {"account_key": words["AccountKey"]} if words.get("AccountKey") else {}
    endpoint = endpoint or f"{protocol}://{account}.blob.{suffix}"
    return AzureAccess(account, endpoint, words.get("SharedAccessSignature", ""), options)
