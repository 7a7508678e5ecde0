"""Storage emulators on the loopback interface: Azurite (Azure blobs), moto (S3), gcp-storage-emulator (Google storage).

Each emulator is a program in a process group of its own, on a port that the system has chosen, with its data in a
temporary directory.
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

from tests.support.npm_packages import NODE, install_npm_packages
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["ACCOUNT", "Azurite", "Bucket", "azurite_server", "google_server", "s3_server"]

ACCOUNT = "devstoreaccount1"
# Azurite 3.35 supports no newer version of the API; it serves newer versions only with fewer checks.
_API_VERSION = "2025-11-05"
_PORT_PATTERN = re.compile(r"(?:listens|Running) on http://127\.0\.0\.1:(\d+)")


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
        """Create a container; return its name."""
        name = f"c{secrets.token_hex(6)}"
        with ContainerClient.from_connection_string(
            self.connection_string(), name, api_version=_API_VERSION
        ) as container:
            container.create_container(public_access=PublicAccess.BLOB if public else None)
        return name

    def upload(self, container: str, blob: str, content: bytes, *, md5: bool | bytes = True) -> str:
        """Upload a blob; return its URL. `md5`: store the content's digest (True), none (False), or these bytes."""
        digest = hashlib.md5(content).digest() if md5 is True else md5
        with BlobClient.from_connection_string(
            self.connection_string(), container, blob, api_version=_API_VERSION
        ) as client:
            client.upload_blob(content, overwrite=True)
            # The digest is set after the upload: while uploading, Azurite rejects wrong digests and adds missing ones.
            client.set_http_headers(ContentSettings(content_md5=bytearray(digest) if digest else None))
            return str(client.url)

    def sas(self, container: str, blob: str, *, hours: float = 1.0) -> str:
        """Make a signature that allows reading one blob and expires in some hours."""
        issue_time = datetime.now(UTC)
        return generate_blob_sas(
            ACCOUNT,
            container,
            blob,
            account_key=self.key,
            permission=BlobSasPermissions(read=True),
            start=issue_time - timedelta(hours=48),
            expiry=issue_time + timedelta(hours=hours),
            version=_API_VERSION,
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of an emulator."""

    endpoint: str
    name: str

    def put(self, key: str, content: bytes, *, public: bool = False) -> None:
        # moto requires a signature, but does not verify it.
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"}
        if public:
            headers["x-amz-acl"] = "public-read"
        with requests.put(f"{self.endpoint}/{self.name}/{key}", data=content, headers=headers, timeout=30) as response:
            response.raise_for_status()


@contextmanager
def azurite_server(folder: Path, *, on_disk: bool = False) -> Iterator[Azurite]:
    """Run Azurite, which is installed at the first use.

    `on_disk`: keep the data on disk instead of in memory, for gigabytes; this takes three times as long.
    """
    program = install_npm_packages("azurite") / "azurite" / "dist" / "src" / "blob" / "main.js"
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    options = ["--location", str(folder / "data")] if on_disk else ["--inMemoryPersistence"]
    command = [
        *(str(NODE), str(program)),
        *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        *("--blobHost", "127.0.0.1", "--blobPort", "0", *options),
    ]
    with _run_server(
        command, folder, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}", "NODE_DISABLE_COMPILE_CACHE": "1"}
    ) as port:
        yield Azurite(f"http://127.0.0.1:{port}/{ACCOUNT}", key)


@contextmanager
def s3_server(folder: Path) -> Iterator[Bucket]:
    """Run moto's S3 with a bucket."""
    with _run_server([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], folder, {}) as port:
        bucket = Bucket(f"http://127.0.0.1:{port}", "models")
        with requests.put(f"{bucket.endpoint}/{bucket.name}", timeout=30) as response:
            response.raise_for_status()
        yield bucket


@contextmanager
def google_server(folder: Path) -> Iterator[Bucket]:
    """Run the emulator of Google's storage with a bucket."""
    # The emulator does not print its port, so it gets a chosen one. The port stays bound here: nobody else gets it.
    with socket.socket() as reserved_socket:
        reserved_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved_socket.bind(("127.0.0.1", 0))
        port = reserved_socket.getsockname()[1]
        command = [
            *(sys.executable, "-m", "gcp_storage_emulator", "start", "-H", "127.0.0.1", "--port", str(port)),
            *("--in-memory", "--quiet", "--default-bucket", "models"),
        ]
        with _run_server(command, folder, {}, port=port):
            yield Bucket(f"http://127.0.0.1:{port}", "models")


@contextmanager
def _run_server(command: list[str], folder: Path, environment: Mapping[str, str], *, port: int = 0) -> Iterator[int]:
    """Run a server until the end of the block; yield its port: the given one, or the one that it prints."""
    folder.mkdir(parents=True, exist_ok=True)
    output_path = folder / "said.txt"
    with output_path.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server_port = 0

    def is_ready() -> bool:
        nonlocal server_port
        if process.poll() is not None:
            pytest.fail(f"{command} has ended: {output_path.read_text()}")
        server_port = port or _read_port(output_path)
        return _accepts_connections(server_port)

    try:
        wait_until(is_ready)
        yield server_port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read_port(output_path: Path) -> int:
    match = _PORT_PATTERN.search(output_path.read_text(errors="replace"))
    return int(match[1]) if match else 0


def _accepts_connections(port: int) -> bool:
    if not port:
        return False
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
