"""What a cluster is made of and what it does, for people and programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from iree_gauntlet.cluster.connection import connected
from iree_gauntlet.cluster.dask_link import STATES
from iree_gauntlet.cluster.dask_worker import ask_worker
from iree_gauntlet.cluster.offers import WorkerOffer
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import byte_size, counted
from iree_gauntlet.reports.output import print_table

if TYPE_CHECKING:
    from iree_gauntlet.requests import TlsRequest


def show_status(address: str, request: TlsRequest, *, as_json: bool) -> ExitCode:
    """Shows the workers of a cluster, what they do for which run, and what waits.

    Raises:
        UsageError: no scheduler answers at the address.
    """
    with connected(address, request) as client:
        found = client.run(ask_worker, "describe", on_error="ignore")
        offers = [WorkerOffer.from_dict(offer) for _, offer in sorted(found.items()) if offer is not None]
        # Of a run that was killed its workers forget within a minute; the scheduler does not.
        listed = client.run(ask_worker, "list_runs", on_error="ignore").values()
        known = {name for names in listed for name in names or ()}
        runs = {name: state for name, state in client.get_metadata([STATES], {}).items() if state and name in known}
        dashboard = client.dashboard_link
    if as_json:
        sys.stdout.write(json.dumps({"workers": [offer.as_dict() for offer in offers], "runs": runs}, indent=1) + "\n")
        return ExitCode.OK
    doing: dict[str, list[str]] = {}
    for state in runs.values():
        for worker, device, step in state["running"]:
            doing.setdefault(worker, []).append(f"{step}{f' on {device}' if device else ''}")
    if not offers:
        sys.stdout.write(f"{address} has no workers; `gauntlet worker {address} --device cpu` starts one\n")
        return ExitCode.OK
    rows = [("worker", "steps at once", "devices", "memory", "free disk", "IREE", "does")]
    rows += [
        (
            offer.name,
            str(offer.jobs),
            ", ".join(device.text for device in offer.devices) or "none: it compiles",
            byte_size(offer.memory_bytes) if offer.memory_bytes else "?",
            byte_size(offer.free_disk_bytes) if offer.free_disk_bytes else "?",
            offer.iree or "none",
            ", ".join(doing.get(offer.name, ["nothing"])),
        )
        for offer in offers
    ]
    print_table(rows)
    for name, state in sorted(runs.items()):
        waits = "; ".join(f"{counted(count, 'step')} for {what}" for what, count in state["waiting"])
        running = counted(len(state["running"]), "step")
        sys.stdout.write(f"run {name}: {running} under way; waiting: {waits or 'none'}\n")
    sys.stdout.write(f"dashboard of the scheduler: {dashboard}\n")
    return ExitCode.OK


def show_offer(offer: WorkerOffer) -> ExitCode:
    """Shows what a worker would offer."""
    memory, disk = offer.memory_bytes, offer.free_disk_bytes
    rows = [
        ("worker", offer.name),
        ("steps at once", str(offer.jobs)),
        ("processor", offer.cpu),
        ("memory", byte_size(memory) if memory else "?"),
        ("free disk", byte_size(disk) if disk else "?"),
        ("IREE", offer.iree or "none: a release is installed when a run asks for it"),
        ("in its cache", ", ".join(offer.toolchains) or "no releases"),
        *(("device", device.text) for device in offer.devices),
    ]
    print_table(rows if offer.devices else [*rows, ("device", "none: it compiles")])
    return ExitCode.OK
