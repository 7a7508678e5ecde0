"""Real peers on the loopback interface: Azurite (Azure blobs), moto (S3), gcp-storage-emulator (Google storage).

Each is the emulator's own program in a process group of its own, on a port that the system has chosen, with its
data in a temporary folder.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import requests
from azure.storage.blob import (
    BlobClient,
    BlobSasPermissions,
    ContainerClient,
    ContentSettings,
    PublicAccess,
    generate_blob_sas,
)

from tests.support.npm_packages import NODE, npm_packages
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["ACCOUNT", "Azurite", "Bucket", "azurite_server", "google_server", "s3_server"]

ACCOUNT = "devstoreaccount1"
# The newest that Azurite 3.35 knows; it serves newer ones only with less checking.
_API_VERSION = "2025-11-05"
# Of the wheel, whatever the machine has.
_LISTENS = re.compile(r"(?:listens|Running) on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running Azurite."""

    endpoint: str
    key: str

    @property
    def port(self) -> int:
        return int(self.endpoint.split(":")[2].partition("/")[0])

    def connection_string(self, *, endpoint: str = "", key: str = "") -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key or self.key};"
            f"BlobEndpoint={endpoint or self.endpoint};"
        )

    def container(self, *, public: bool) -> str:
        """A new container; its name."""
        name = f"c{secrets.token_hex(6)}"
        with ContainerClient.from_connection_string(
            self.connection_string(), name, api_version=_API_VERSION
        ) as container:
            container.create_container(public_access=PublicAccess.BLOB if public else None)
        return name

    def upload(self, container: str, blob: str, content: bytes, *, md5: bool | bytes = True) -> str:
        """Put a blob; its URL. With `md5` as bytes, the digest that the blob is said to have."""
        digest = hashlib.md5(content).digest() if md5 is True else md5
        with BlobClient.from_connection_string(
            self.connection_string(), container, blob, api_version=_API_VERSION
        ) as client:
            client.upload_blob(content, overwrite=True)
            # Afterwards: Azurite refuses wrong ones with the content, and gives small blobs one by itself.
            client.set_http_headers(ContentSettings(content_md5=bytearray(digest) if digest else None))
            return str(client.url)

    def sas(self, container: str, blob: str, *, hours: float = 1.0) -> str:
        """A signature that allows reading one blob until some hours from now."""
        now = datetime.now(UTC)
        return generate_blob_sas(
            ACCOUNT,
            container,
            blob,
            account_key=self.key,
            permission=BlobSasPermissions(read=True),
            start=now - timedelta(hours=48),
            expiry=now + timedelta(hours=hours),
            version=_API_VERSION,
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of an emulator."""

    endpoint: str
    name: str

    def put(self, key: str, content: bytes, *, public: bool = False) -> None:
        # moto looks for a signature, not at it.
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"}
        if public:
            headers["x-amz-acl"] = "public-read"
        with requests.put(f"{self.endpoint}/{self.name}/{key}", data=content, headers=headers, timeout=30) as response:
            response.raise_for_status()


@contextmanager
def azurite_server(folder: Path, *, on_disk: bool = False) -> Iterator[Azurite]:
    """Azurite; installed at the first use.

    `on_disk`: keep its data there as well, for gigabytes; takes three times as long.
    """
    program = npm_packages("azurite") / "azurite" / "dist" / "src" / "blob" / "main.js"
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    options = ["--location", str(folder / "data")] if on_disk else ["--inMemoryPersistence"]
    command = [
        *(str(NODE), str(program)),
        *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        *("--blobHost", "127.0.0.1", "--blobPort", "0", *options),
    ]
    with _running(command, folder, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}) as port:
        yield Azurite(f"http://127.0.0.1:{port}/{ACCOUNT}", key)


@contextmanager
def s3_server(folder: Path) -> Iterator[Bucket]:
    """A bucket of moto's S3."""
    with _running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], folder, {}) as port:
        bucket = Bucket(f"http://127.0.0.1:{port}", "models")
        with requests.put(f"{bucket.endpoint}/{bucket.name}", timeout=30) as response:
            response.raise_for_status()
        yield bucket


@contextmanager
def google_server(folder: Path) -> Iterator[Bucket]:
    """A bucket of the emulator of Google's storage."""
    # It does not say which port it was given, so it is given one; bound meanwhile, that is given to nobody else.
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        command = [
            *(sys.executable, "-m", "gcp_storage_emulator", "start", "-H", "127.0.0.1", "--port", str(port)),
            *("--in-memory", "--quiet", "--default-bucket", "models"),
        ]
        with _running(command, folder, {}, port=port):
            yield Bucket(f"http://127.0.0.1:{port}", "models")


@contextmanager
def _running(command: list[str], folder: Path, environment: Mapping[str, str], *, port: int = 0) -> Iterator[int]:
    """A server that runs meanwhile; its port, which it tells unless it is known."""
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / "said.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = 0

    def answers() -> bool:
        nonlocal found
        if process.poll() is not None:
            pytest.fail(f"{command} has ended: {said.read_text()}")
        found = port or _told_port(said)
        return _answers(found)

    try:
        wait_until(answers)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _told_port(said: Path) -> int:
    match = _LISTENS.search(said.read_text(errors="replace"))
    return int(match[1]) if match else 0


def _answers(port: int) -> bool:
    if not port:
        return False
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
