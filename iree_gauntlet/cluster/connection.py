"""A cluster that runs are carried out on: the connection to its scheduler, and what of a run is done there."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import tempfile
import uuid
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from distributed import Client
from distributed.security import Security

from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.dask_link import DaskLink
from iree_gauntlet.cluster.fleet import Fleet, list_demands
from iree_gauntlet.cluster.link import Joined, Left, Made, Refused, RunFacts, SharedRun
from iree_gauntlet.cluster.project_copy import pack_project
from iree_gauntlet.cluster.runner import ClusterRunner, keep_below
from iree_gauntlet.engine.scheduler import ReadyQueue
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.steps import Resources
from iree_gauntlet.toolchains.find import IREE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cluster.link import Event, OrderAnswer
    from iree_gauntlet.cluster.offers import WorkerOffer
    from iree_gauntlet.engine.engine import Engine
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.experiments.sides import MadeByWorker, PreparedSide, RoundsLog
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.requests import CompareRequest, TlsRequest
    from iree_gauntlet.steps import Step


_TURN_SECONDS = 0.5
_CONNECT_SECONDS = 15.0
_HANDSHAKE_SECONDS = 0.2
_HOW = "Start a scheduler (`dask scheduler`, or `gauntlet cluster.local 4`), and give the address that it shows."


def find_security(address: str, request: TlsRequest) -> Security | None:
    """What encrypts the connection; None for none, which goes to this machine alone.

    Raises:
        UsageError: the address is another machine's, and nothing is encrypted; or files are missing.
    """
    scheme, host, port = _split_address(address)
    if scheme not in ("tcp", "tls") or not host or not port:
        raise UsageError(f"{address}: no address of a scheduler", f"It is tcp://HOST:PORT or tls://…. {_HOW}")
    files = {"--tls-ca-file": request.tls_ca_file, "--tls-cert": request.tls_cert, "--tls-key": request.tls_key}
    if scheme == "tcp":
        if given := [name for name, file in files.items() if file]:
            raise UsageError(f"{given[0]}: {address} is not encrypted", "Give the scheduler's address as tls://….")
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
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


def _split_address(address: str) -> tuple[str, str, int]:
    """Scheme, host and port; empty and 0 where they cannot be told."""
    try:
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError:
        return "", "", 0
    return parts.scheme, parts.hostname or "", port


def require_scheduler(address: str, security: Security | None) -> None:
    """Raises a `UsageError` where nothing listens at an address, or certificates do not fit."""
    _, host, port = _split_address(address)
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


@contextmanager
def connected(address: str, request: TlsRequest) -> Iterator[Client]:
    """A client of a cluster's scheduler; a `UsageError` as of `find_security`, or where nothing answers."""
    security = find_security(address, request)
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
    """Workers that take part in runs; as `ComparingMachines` of `experiments/sides.py`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @contextmanager
    def taking_part(
        self, chosen: Chosen, machine: Workbench, run_dir: Path, progress: Progress
    ) -> Iterator[ClusterPart]:
        """Has the workers plan a run, each in a process of its own, which ends with this."""
        # With the IREE that the environment names.
        asked = chosen.request.toolchain
        toolchain = replace(asked, iree=asked.iree or os.environ.get(IREE_VARIABLE, ""))
        request = replace(chosen.request, toolchain=toolchain, stages=chosen.stages)
        shared = (SharedRun.of(request, machine, run_dir),)
        with self._plan(run_dir.name, chosen.selection, shared, machine.store, progress) as link:
            yield ClusterPart(link, run_dir, progress)

    @contextmanager
    def comparing(
        self, chosen: Chosen, asked: CompareRequest, sides: tuple[PreparedSide, PreparedSide], progress: Progress
    ) -> Iterator[ComparisonPart]:
        """Has the workers plan both sides of a comparison, as for `taking_part`."""
        shared = []
        for side in sides:
            request = replace(chosen.within(side.folder, side.asked).request, stages=chosen.stages)
            # What was to be compiled again has been.
            request = replace(request, conduct=replace(request.conduct, force_recompile=False))
            shared.append(SharedRun.of(request, side.machine, side.folder))
        name, store = sides[0].folder.parent.name, sides[0].machine.store
        with self._plan(name, chosen.selection, tuple(shared), store, progress, asked) as link:
            yield ComparisonPart(link, progress)

    @contextmanager
    def _plan(
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


class ClusterPart:
    """What a cluster does of one run; as `Elsewhere` of the engine."""

    def __init__(self, link: DaskLink, run_dir: Path, progress: Progress) -> None:
        self._link = link
        self._run_dir = run_dir
        self._progress = progress
        self._early: list[Event] = []

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """The plan, where workers offer what it asks for.

        Raises:
            UsageError: none of them offers something, or none can take part in the run.
        """
        offers = _require_offers(self._link)
        demands = list_demands(plan.steps)
        lacking: dict[str, list[Step]] = {}
        steps: list[Step] = []
        for step in plan.steps:
            demand = demands[step.id]
            if step.skip or step.blocked or any(demand.is_met_by(offer) for offer in offers.values()):
                steps.append(step)
            else:
                lacking.setdefault(demand.text, []).append(step)
                skip = f"compiled only: no worker has {demand.text}"
                steps.append(replace(step, skip=skip, resources=Resources(cores=0)))
        if lacking and not optional:
            lines = [
                f"{text}, which {counted(len(need), 'step')} need: {need[-1].id}" for text, need in lacking.items()
            ]
            what = f"no worker of the cluster has {'; nor '.join(lines)}"
            raise UsageError(what, f"There are: {'; '.join(offer.text for offer in offers.values())}.")
        self._early = _wait_for_the_first(self._link, self._progress)
        return replace(plan, steps=tuple(steps))

    def perform(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> dict[str, Verdict]:
        """Runs the steps on the workers."""
        fleet = Fleet(steps)
        queue = ReadyQueue(steps, finished, fleet, fail_fast=engine.options.fail_fast)
        keep = keep_below(self._run_dir)
        link, progress = self._link, self._progress
        return ClusterRunner(queue, fleet, link, engine, keep, progress, plan=engine, early=self._early).run()


class ComparisonPart:
    """What a cluster does of one comparison; as `RoundsElsewhere`."""

    def __init__(self, link: DaskLink, progress: Progress) -> None:
        self._link = link
        self._progress = progress

    def measure(self, units: Sequence[Step], made: Sequence[MadeByWorker], rounds: RoundsLog) -> None:
        """Has each unit measured by a worker."""
        addresses: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
        for address, offer in _require_offers(self._link).items():
            addresses[offer.name] += (address,)
        early = _wait_for_the_first(self._link, self._progress)
        there = {
            item.need: Made(item.need, item.key, addresses.get(item.worker.partition("/")[0], ())) for item in made
        }
        fleet = Fleet(units)
        queue = ReadyQueue(units, dict.fromkeys(there, Verdict.PASSED), fleet, fail_fast=False)

        def seconds(step: Step) -> float:
            demand = fleet.request(step)
            # Those that wait, and this one, which does not any more.
            return rounds.share(fleet.hosts(demand), queue.waiting.get(demand, 0) + 1)

        def keep(step: Step, answer: OrderAnswer) -> None:
            rounds.keep(step, answer.events)

        link, progress = self._link, self._progress
        ClusterRunner(queue, fleet, link, rounds, keep, progress, made=there, seconds=seconds, early=early).run()


def _wait_for_the_first(link: DaskLink, progress: Progress) -> list[Event]:
    """Waits until a worker has planned the run, or none is left; the run waits itself for those that died."""
    left, refused = len(link.offers()), 0
    happened: list[Event] = []
    while left > 0 and not any(isinstance(event, Joined) for event in happened):
        event = link.next_event(_TURN_SECONDS)
        happened += [event] if event is not None else []
        if isinstance(event, Refused):
            # Of one that refuses a device alone more is to come.
            left -= not event.device
            refused += not event.device
        elif isinstance(event, Left):
            left -= 1
    if refused and refused == len(link.offers()):
        reasons = [event.text for event in happened if isinstance(event, Refused)]
        raise GauntletError(f"no worker can take part: {'; '.join(reasons)}", "Mend one, and run again.")
    progress.waiting("")
    return happened


def _require_offers(link: DaskLink) -> dict[str, WorkerOffer]:
    """What the workers offer that are there, by address."""
    offers = link.offers()
    if not offers:
        raise UsageError("the cluster has no workers", "Start some: gauntlet worker ADDRESS --device cpu.")
    return offers
