"""A cluster that runs are carried out on: the connection to its scheduler, and what of a run is done there."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import tempfile
import uuid
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from distributed import Client
from distributed.security import Security

from iree_gauntlet.cluster.dask_link import DaskLink
from iree_gauntlet.cluster.parts import ClusterPart, ComparisonPart
from iree_gauntlet.cluster.project_copy import pack_project
from iree_gauntlet.cluster.run_order import RunFacts, SharedRun
from iree_gauntlet.errors import UsageError
from iree_gauntlet.toolchains.find import IREE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cluster.cluster_requests import TlsRequest
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.experiments.performing import Chosen
    from iree_gauntlet.experiments.sides import Side
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.requests import CompareRequest, RunRequest


_CONNECT_SECONDS = 15.0
_HANDSHAKE_SECONDS = 0.2
_HOW = "Start a scheduler (`dask scheduler`, or `gauntlet cluster.local 4`), and give the address that it shows."


def security_of(address: str, request: TlsRequest) -> Security | None:
    """What encrypts the connection; None for none, which goes to this machine alone.

    Raises:
        UsageError: the address is another machine's, and nothing is encrypted; or files are missing.
    """
    scheme, host, port = _parts(address)
    if scheme not in ("tcp", "tls") or not host or not port:
        raise UsageError(f"{address}: no address of a scheduler", f"It is tcp://HOST:PORT or tls://…. {_HOW}")
    files = {"--tls-ca-file": request.tls_ca_file, "--tls-cert": request.tls_cert, "--tls-key": request.tls_key}
    if scheme == "tcp":
        if given := [name for name, file in files.items() if file]:
            raise UsageError(f"{given[0]}: {address} is not encrypted", "Give the scheduler's address as tls://….")
        if not _is_loopback(host):
            raise UsageError(
                f"{address} is not encrypted: whoever reaches it has anything done on every worker",
                "Use tls:// with certificates, or a tunnel to this machine (docs/how-to/cluster.md).",
            )
        return None
    missing = [name for name, file in files.items() if not file]
    if missing:
        raise UsageError(f"{address} needs {', '.join(missing)}", "docs/how-to/cluster.md says how they are made.")
    for name, file in files.items():
        if not os.path.isfile(file):  # noqa: PTH113 - as it was typed
            raise UsageError(f"{name} {file}: there is no such file", "Name a PEM file.")
    ca, cert, key = files.values()
    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        **dict.fromkeys(("tls_client_cert", "tls_worker_cert", "tls_scheduler_cert"), cert),
        **dict.fromkeys(("tls_client_key", "tls_worker_key", "tls_scheduler_key"), key),
    )


def _parts(address: str) -> tuple[str, str, int]:
    """Scheme, host and port; empty and 0 where they cannot be told."""
    try:
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError:
        return "", "", 0
    return parts.scheme, parts.hostname or "", port


def require_scheduler(address: str, security: Security | None) -> None:
    """Makes sure that something listens at an address, and that certificates fit.

    Raises:
        UsageError: they do not, or nothing does.
    """
    _, host, port = _parts(address)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as plain:
            if security is not None:
                context = security.get_connection_args("client")["ssl_context"]
                with context.wrap_socket(plain, server_hostname=host) as encrypted:
                    # Who does not take our certificate says so only when something is read.
                    encrypted.settimeout(_HANDSHAKE_SECONDS)
                    with suppress(TimeoutError):
                        encrypted.recv(1)
    except ssl.SSLError as error:
        what = f"{address}: the certificates do not fit: {error.reason or error}"
        raise UsageError(
            what, "Both sides' have to be signed by the --tls-ca-file of the other, each with its key."
        ) from error
    except OSError as error:
        raise UsageError(f"no scheduler answers at {address}: {error.strerror or error}", _HOW) from error


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def connected(address: str, request: TlsRequest) -> Iterator[Client]:
    """A client of a cluster's scheduler.

    Raises:
        UsageError: as for `security_of`, or nothing answers there.
    """
    security = security_of(address, request)
    require_scheduler(address, security)
    try:
        client = Client(
            address,
            security=security,
            timeout=_CONNECT_SECONDS,
            set_as_default=False,
            name="gauntlet",
            direct_to_workers=False,
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"no scheduler answers at {address}: {error}", _HOW) from error
    with client:
        yield client


class Cluster:
    """Workers that take part in runs; as `Machines` of `experiments.performing`.

    Args:
        client: connected to their scheduler.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @contextmanager
    def taking_part(
        self, chosen: Chosen, machine: Workbench, run_dir: Path, progress: Progress
    ) -> Iterator[ClusterPart]:
        """Has the workers plan a run, each in a process of its own, which ends with this.

        Raises:
            UsageError: there is no worker, or none that can take part.
        """
        request = replace(_with_iree(chosen.request), stages=chosen.stages)
        shared = (SharedRun.of(request, machine, run_dir),)
        with self._planned(run_dir.name, chosen.selection, shared, machine.store, progress) as link:
            yield ClusterPart(link, run_dir, progress)

    @contextmanager
    def comparing(
        self, chosen: Chosen, asked: CompareRequest, sides: tuple[Side, Side], progress: Progress
    ) -> Iterator[ComparisonPart]:
        """Has the workers plan both sides of a comparison, as for `taking_part`."""
        shared = []
        for side in sides:
            request = replace(chosen.within(side.folder, side.asked).request, stages=chosen.stages)
            # What was to be compiled again has been.
            request = replace(request, conduct=replace(request.conduct, force_recompile=False))
            shared.append(SharedRun.of(request, side.machine, side.folder))
        name, store = sides[0].folder.parent.name, sides[0].machine.store
        with self._planned(name, chosen.selection, tuple(shared), store, progress, asked) as link:
            yield ComparisonPart(link, progress)

    @contextmanager
    def _planned(
        self,
        name: str,
        selection: Selection,
        runs: tuple[SharedRun, ...],
        store: ArtifactStore,
        progress: Progress,
        comparison: CompareRequest | None = None,
    ) -> Iterator[DaskLink]:
        with tempfile.TemporaryDirectory(prefix="gauntlet-project-") as folder:
            project = pack_project(selection, Path(folder) / "project.tar")
            facts = RunFacts(f"{name}-{uuid.uuid4().hex[:8]}", project.sha256, project.cwd, runs, comparison)
            link = DaskLink(self._client, facts, project, store)
            try:
                progress.waiting("for the workers of the cluster to plan the run")
                link.open()
                yield link
            finally:
                link.end()


def _with_iree(request: RunRequest) -> RunRequest:
    """A request that names the IREE which the environment does."""
    named = request.toolchain.iree or os.environ.get(IREE_VARIABLE, "")
    return replace(request, toolchain=replace(request.toolchain, iree=named))
