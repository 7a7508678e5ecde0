"""The commands of clusters, and the connection of a run to a cluster.

Dask is an optional dependency. It is imported only when it is needed, because `--list` must be quick.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.cache_folders import make_cache_folder
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.formatting import format_bytes, pluralize
from iree_gauntlet.progress import Progress
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.requests import (
    ClusterRequest,
    FormatRequest,
    LocalRequest,
    OfferRequest,
    StatusRequest,
    WorkerRequest,
)
from iree_gauntlet.tasks.task_options import gauntlet_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.cluster.offers import WorkerResources
    from iree_gauntlet.experiments.sides import ComparingMachines
    from iree_gauntlet.requests import ExecutionRequest


@contextmanager
def open_cluster(request: ClusterRequest, execution: ExecutionRequest) -> Iterator[ComparingMachines | None]:
    """Yield the cluster that a run is to use; None for this machine alone.

    Raises:
        UsageError: no scheduler responds, Dask is not installed, or an option works on one machine only.
    """
    if not request.cluster:
        yield None
        return
    _require_dask("--cluster")
    if execution.batch:
        message = "--batch and --cluster exclude each other: which cases make up a batch depends on one machine's cache"
        raise UsageError(message, "Leave --batch out: the workers share the cases one by one.")
    if execution.jobs:
        messages.note("-j applies only to this machine: each worker of the cluster has its own --jobs")
    from iree_gauntlet.cluster.connection import Cluster, open_client  # noqa: PLC0415

    with open_client(request.cluster, request) as client:
        yield Cluster(client)


@gauntlet_task("worker", OfferRequest, WorkerRequest)
def worker_task(resource_request: OfferRequest, request: WorkerRequest) -> ExitCode:
    """Lend this machine and its devices to runs of a cluster, until Ctrl-C: worker ADDRESS --device cpu.

    Devices are checked first: one that is missing, or is not what --device says, is refused.

    Examples: worker tcp://127.0.0.1:8786 --device gpu0=hip://0,sku=mi300 --device cpu
              worker tls://farm:8786 --tls-ca-file ca.pem --tls-cert box.pem --tls-key box-key.pem
              worker --probe --device gpu0=vulkan
    """
    _require_dask("worker")
    resources = _measure(resource_request)
    if request.probe:
        memory, disk = resources.memory_bytes, resources.free_disk_bytes
        rows = [
            ("worker", resources.name),
            ("steps at once", str(resources.jobs)),
            ("processor", resources.cpu),
            ("memory", format_bytes(memory) if memory else "?"),
            ("free disk", format_bytes(disk) if disk else "?"),
            ("IREE", resources.iree or "none: a release is installed when a run needs it"),
            ("in its cache", ", ".join(resources.toolchains) or "no releases"),
            *(("device", device.text) for device in resources.devices),
        ]
        print_table(rows if resources.devices else [*rows, ("device", "none: it compiles")])
        return ExitCode.OK
    from iree_gauntlet.cluster.connection import make_security, require_scheduler  # noqa: PLC0415
    from iree_gauntlet.cluster.dask_worker import WorkerConfig, run_worker  # noqa: PLC0415

    address = _require_address(request.scheduler, "worker")
    _require_ports(request.port, request.nanny_port)
    security = make_security(address, request)
    require_scheduler(address, security)
    cache_dir = make_cache_folder(resource_request.cache_dir)
    return run_worker(WorkerConfig(address, cache_dir, security, request.port, request.nanny_port), resources, _print)


@gauntlet_task("cluster.local", LocalRequest)
def cluster_local_task(request: LocalRequest) -> ExitCode:
    """Start a scheduler and workers on this machine, until Ctrl-C: cluster.local 4 --device cpu."""
    _require_dask("cluster.local")
    if request.dashboard and importlib.util.find_spec("bokeh") is None:
        raise UsageError("--dashboard needs bokeh, which is not installed", "pip install 'iree-gauntlet[cluster]'")
    from iree_gauntlet.cluster.dask_worker import WorkerConfig, run_local  # noqa: PLC0415

    _require_ports(request.port)
    connection = WorkerConfig("", make_cache_folder(request.cache_dir))
    return run_local(request.count, _measure(request), connection, request.port, _print, dashboard=request.dashboard)


@gauntlet_task("cluster.status", StatusRequest, FormatRequest)
def cluster_status_task(request: StatusRequest, output: FormatRequest) -> ExitCode:
    """Show the workers of a cluster, what each is doing, and what waits for which device: cluster.status ADDRESS."""
    _require_dask("cluster.status")
    from iree_gauntlet.cluster.connection import RUN_STATES_KEY, open_client  # noqa: PLC0415
    from iree_gauntlet.cluster.dask_worker import DASHBOARD_KEY, ask_worker  # noqa: PLC0415
    from iree_gauntlet.cluster.offers import WorkerResources  # noqa: PLC0415

    address = _require_address(request.scheduler, "cluster.status")
    with open_client(address, request) as client:
        descriptions = client.run(ask_worker, "describe", on_error="ignore")
        offers = [WorkerResources.from_dict(offer) for _, offer in sorted(descriptions.items()) if offer is not None]
        # Ask the workers, which forget a killed run within a minute, unlike the scheduler.
        run_lists = client.run(ask_worker, "list_runs", on_error="ignore").values()
        active = {name for names in run_lists for name in names or ()}
        runs = {
            name: state for name, state in client.get_metadata([RUN_STATES_KEY], {}).items() if state and name in active
        }
        dashboard = client.dashboard_link if client.get_metadata([DASHBOARD_KEY], True) else "none"
    if output.as_json:
        sys.stdout.write(json.dumps({"workers": [offer.as_dict() for offer in offers], "runs": runs}, indent=1) + "\n")
        return ExitCode.OK
    if not offers:
        sys.stdout.write(f"{address} has no workers; `gauntlet worker {address} --device cpu` starts one\n")
        return ExitCode.OK
    _show_workers(offers, runs)
    sys.stdout.write(f"dashboard of the scheduler: {dashboard}\n")
    return ExitCode.OK


def _show_workers(offers: Sequence[WorkerResources], runs: Mapping[str, dict[str, Any]]) -> None:
    steps_by_worker: dict[str, list[str]] = {}
    for state in runs.values():
        for worker, device, step in state["running"]:
            steps_by_worker.setdefault(worker, []).append(f"{step}{f' on {device}' if device else ''}")
    rows = [("worker", "steps at once", "devices", "memory", "free disk", "IREE", "does")]
    rows += [
        (
            offer.name,
            str(offer.jobs),
            ", ".join(device.text for device in offer.devices) or "none: it compiles",
            format_bytes(offer.memory_bytes) if offer.memory_bytes else "?",
            format_bytes(offer.free_disk_bytes) if offer.free_disk_bytes else "?",
            offer.iree or "none",
            ", ".join(steps_by_worker.get(offer.name, ["nothing"])),
        )
        for offer in offers
    ]
    print_table(rows)
    for name, state in sorted(runs.items()):
        waiting_text = "; ".join(f"{pluralize(count, 'step')} for {resource}" for resource, count in state["waiting"])
        running = pluralize(len(state["running"]), "step")
        sys.stdout.write(f"run {name}: {running} under way; waiting: {waiting_text or 'none'}\n")


def _measure(request: OfferRequest) -> WorkerResources:
    from iree_gauntlet.cluster.offers import measure_worker_resources, parse_device  # noqa: PLC0415
    from iree_gauntlet.engine.workbench import open_workbench  # noqa: PLC0415

    devices = [parse_device(text) for text in request.device]
    # Install the requested IREE; without such an IREE, there is an error.
    workbench = open_workbench(request, Progress(), need_toolchain=bool(request.iree))
    resources = measure_worker_resources(request.name, request.jobs, devices, workbench.toolchain, workbench.cache_dir)
    return resources if request.name else replace(resources, name=f"{resources.name}-{os.getpid()}")


def _require_ports(*ports: int) -> None:
    bad = [port for port in ports if not 0 <= port < 1 << 16]
    if bad:
        raise UsageError(f"{bad[0]} is not a port", "Ports are numbers from 1 to 65535; 0 uses any free one.")


def _require_address(address: str, task: str) -> str:
    if not address:
        raise UsageError(f"{task}: no address of a scheduler", f"Give it: gauntlet {task} tcp://127.0.0.1:8786.")
    return address


def _require_dask(feature: str) -> None:
    if importlib.util.find_spec("distributed") is None:
        raise UsageError(f"{feature} needs Dask, which is not installed", "pip install 'iree-gauntlet[cluster]'")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
