"""What the commands about clusters are asked for; each option is declared once, as a field."""

from __future__ import annotations

from dataclasses import dataclass

from iree_gauntlet.option import option
from iree_gauntlet.requests import ToolchainRequest


@dataclass(frozen=True, slots=True)
class TlsRequest:
    """Certificates, where a cluster is reached over a network."""

    tls_ca_file: str = option("", "Certificates that are trusted, where the address is tls:// (a PEM file).")
    tls_cert: str = option("", "Certificate of this side, where the address is tls:// (a PEM file).")
    tls_key: str = option("", "Key of that certificate (a PEM file).")


@dataclass(frozen=True, slots=True)
class ClusterRequest(TlsRequest):
    """The machines that steps are performed on, in place of this one."""

    cluster: str = option(
        "", "Run the steps on the workers of this Dask scheduler: tcp://127.0.0.1:8786, or tls://HOST:8786."
    )


@dataclass(frozen=True, slots=True)
class StatusRequest(TlsRequest):
    """A cluster that is asked how it is."""

    scheduler: str = option("", "The address, where no word follows the task.")


@dataclass(frozen=True, slots=True)
class OfferRequest(ToolchainRequest):
    """What a worker offers."""

    device: tuple[str, ...] = option(
        (),
        "A device of this machine (repeatable): cpu, or NAME=URI[,sku=SKU] such as gpu0=hip://0,sku=mi300. Without "
        "one it compiles only.",
    )
    jobs: int = option(0, "Steps at once (default: the cores of this machine).", short="j", unit="a number")
    name: str = option("", "What the worker is called in reports (default: the machine's name and a number).")


@dataclass(frozen=True, slots=True)
class WorkerRequest(TlsRequest):
    """A worker, but for what it offers."""

    scheduler: str = option("", "The address of the scheduler, where no word follows the task.")
    probe: bool = option(False, "Show what the worker would offer, and end.")
    port: int = option(0, "Port that the worker listens on (default: any), for tunnels.", unit="a number")
    nanny_port: int = option(0, "Port that its nanny listens on (default: any), for tunnels.", unit="a number")


@dataclass(frozen=True, slots=True)
class LocalRequest(OfferRequest):
    """A scheduler with workers on this machine."""

    count: int = option(2, "How many workers, where no number follows the task.", unit="a number")
    port: int = option(8786, "Port of the scheduler (0: any that is free).")
