"""A cluster that runs are carried out on: the connection to its scheduler, and what of a run is done there."""

from __future__ import annotations

import ipaddress
import os
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from distributed import Client
from distributed.security import Security

from iree_gauntlet.cluster.dask_link import DaskLink
from iree_gauntlet.cluster.dask_worker import RunFacts
from iree_gauntlet.cluster.fleet import Fleet, FleetQueue, demands_of
from iree_gauntlet.cluster.link import Joined, Left, Refused
from iree_gauntlet.cluster.project_copy import pack_project
from iree_gauntlet.cluster.run_process import Home
from iree_gauntlet.cluster.runner import ClusterRunner
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.steps import Resources
from iree_gauntlet.toolchains.find import IREE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Verdict
    from iree_gauntlet.cluster.cluster_requests import TlsRequest
    from iree_gauntlet.cluster.offers import WorkerOffer
    from iree_gauntlet.engine.engine import Engine
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.performing import Chosen
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.steps import Step


_CONNECT_SECONDS = 15.0
_TURN_SECONDS = 0.5
_HOW = "Start a scheduler (`dask scheduler`, or `gauntlet cluster.local 4`), and give the address that it shows."


def security_of(address: str, request: TlsRequest) -> Security | None:
    """What encrypts the connection; None for none, which goes to this machine alone.

    Raises:
        UsageError: the address is another machine's, and nothing is encrypted; or files are missing.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or not parts.port:
        raise UsageError(f"{address}: no address of a scheduler", f"It is tcp://HOST:PORT or tls://…. {_HOW}")
    files = {"--tls-ca-file": request.tls_ca_file, "--tls-cert": request.tls_cert, "--tls-key": request.tls_key}
    if parts.scheme == "tcp":
        if not _is_loopback(parts.hostname):
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
        toolchain = machine.toolchain
        request = chosen.request
        if not request.toolchain.iree and os.environ.get(IREE_VARIABLE):
            request = replace(request, toolchain=replace(request.toolchain, iree=os.environ[IREE_VARIABLE]))
        with tempfile.TemporaryDirectory(prefix="gauntlet-project-") as folder:
            project = pack_project(chosen.selection, Path(folder) / "project.tar")
            facts = RunFacts(
                name=f"{run_dir.name}-{uuid.uuid4().hex[:8]}",
                request=replace(request, stages=chosen.stages),
                sha256=project.sha256,
                cwd=project.cwd,
                compiler=toolchain.compiler.identity if toolchain else "",
                runtime=toolchain.runtime.identity if toolchain else "",
                home=Home.of(run_dir, machine.cache_dir, toolchain),
            )
            link = DaskLink(self._client, facts, project, machine.store)
            try:
                progress.waiting("for the workers of the cluster to plan the run")
                link.open()
                yield ClusterPart(link, run_dir, progress)
            finally:
                link.end()


class ClusterPart:
    """What a cluster does of one run; as `Elsewhere` of the engine."""

    def __init__(self, link: DaskLink, run_dir: Path, progress: Progress) -> None:
        self._link = link
        self._run_dir = run_dir
        self._progress = progress
        self._fleet = Fleet()

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """The plan, where workers offer what it asks for.

        Raises:
            UsageError: none of them offers something, or none can take part in the run.
        """
        offers = self._link.offers()
        if not offers:
            raise UsageError("the cluster has no workers", "Start some: gauntlet worker ADDRESS --device cpu.")
        there = Fleet()
        for number, offer in enumerate(offers):
            there.join(str(number), offer)
        demands = demands_of(plan.steps)
        lacking: dict[str, list[Step]] = {}
        for step in plan.steps:
            if not there.offers(demands[step.id]) and not (step.skip or step.blocked):
                lacking.setdefault(demands[step.id].text, []).append(step)
        if lacking and not optional:
            lines = [
                f"{text}, which {counted(len(steps), 'step')} need: {steps[-1].id}" for text, steps in lacking.items()
            ]
            what = f"no worker of the cluster has {'; nor '.join(lines)}"
            raise UsageError(what, f"There are: {'; '.join(_described(offer) for offer in offers)}.")
        gone = {step.id for steps in lacking.values() for step in steps}
        steps = tuple(
            replace(
                step,
                skip=step.skip or f"compiled only: no worker has {demands[step.id].text}",
                resources=Resources(cores=0),
            )
            if step.id in gone
            else step
            for step in plan.steps
        )
        self._wait_for_the_first()
        return replace(plan, steps=steps)

    def runner(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> ClusterRunner:
        """Runs the steps on the workers."""
        queue = FleetQueue(steps, finished, self._fleet, fail_fast=engine.options.fail_fast)
        return ClusterRunner(queue, self._link, engine, self._run_dir, self._progress)

    def _wait_for_the_first(self) -> None:
        """Waits until a worker has planned the run, or none is left; the run waits itself for those that died."""
        left, refused = len(self._link.offers()), 0
        reasons: list[str] = []
        while left > 0 and not len(self._fleet):
            event = self._link.next_event(_TURN_SECONDS)
            if isinstance(event, Joined):
                self._fleet.join(event.worker, event.offer)
            elif isinstance(event, Refused):
                reasons.append(event.text)
                # Of one that refuses a device alone more is to come.
                left -= not event.device
                refused += not event.device
            elif isinstance(event, Left):
                left -= 1
        if refused and refused == len(self._link.offers()):
            raise GauntletError(f"no worker can take part: {'; '.join(reasons)}", "Mend one, and run again.")
        self._progress.waiting("")
        for reason in reasons:
            self._progress.message(reason)


def _described(offer: WorkerOffer) -> str:
    return f"{offer.name} with {', '.join(device.text for device in offer.devices) or 'no device'}"
