"""The messages between a run and its workers; `Link` is the interface of their transport (Dask, or a simulation)."""

from __future__ import annotations

import base64
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.cases import Golden
    from iree_gauntlet.cluster.offers import WorkerDevice, WorkerResources
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.requests import CompareRequest, RunRequest
    from iree_gauntlet.toolchains.toolchain import Part, Toolchain


_IREE_HINT = "`--iree RELEASE` is installed on each worker; other IREEs must already be present there, and be the same"


class RunProcessError(Exception):
    """The process of a run ended before it finished an order."""


class RunRejectionError(Exception):
    """A worker cannot take part in a run."""


class UnfitDeviceError(Exception):
    """The device of a step failed its health check."""


def encode(message: object) -> bytes:
    """Encode a message between a worker and its own process, which trust each other, as a line."""
    return base64.b64encode(pickle.dumps(message)) + b"\n"


def decode(line: bytes) -> Any:
    """Decode a line of `encode`.

    Raises:
        ValueError: the line is not a message, or is truncated.
    """
    try:
        return pickle.loads(base64.b64decode(line.removesuffix(b"\n"), validate=True))  # noqa: S301 - from our own process
    except Exception as error:
        raise ValueError(f"{line[:60]!r} is not a message: {error!r}") from error


@dataclass(frozen=True, slots=True)
class ModuleLocation:
    """A module that a step has put into module caches of workers, with the addresses of these workers."""

    step: str
    key: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """A step for a worker that has planned the same run.

    Attributes:
        device: the worker's name of the step's device; empty for none.
        attempt: the number of workers that were lost with this step.
    """

    step: str
    device: str = ""
    cached_modules: tuple[ModuleLocation, ...] = ()
    goldens: tuple[Golden, ...] = ()
    attempt: int = 0
    budget_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """The response to an order."""

    result: dict[str, object]
    files: tuple[tuple[str, bytes], ...] = ()
    missing: tuple[str, ...] = ()
    events: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """An event of a worker; `worker` is the worker's address."""

    worker: str


@dataclass(frozen=True, slots=True)
class JoinEvent(WorkerEvent):
    """A worker is connected and has planned the run."""

    offer: WorkerResources


@dataclass(frozen=True, slots=True)
class RejectionEvent:
    """A connected worker cannot take part in the run; if `device` is set, it only cannot use this device."""

    name: str
    reason: str
    device: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        return f"worker {self.name}{f'/{self.device}' if self.device else ''} does not take part: {self.reason}"


@dataclass(frozen=True, slots=True)
class LeaveEvent(WorkerEvent):
    """A worker is no longer connected."""


@dataclass(frozen=True, slots=True)
class OrderEvent(WorkerEvent):
    """An event of an order, or of the files that it needs."""

    step: str


@dataclass(frozen=True, slots=True)
class AnswerEvent(OrderEvent):
    """A worker has done an order."""

    answer: OrderAnswer


@dataclass(frozen=True, slots=True)
class ProcessDeathEvent(OrderEvent):
    """The process of the run on a worker has ended before it finished an order; the process is restarted.

    A `JoinEvent` or a `RejectionEvent` follows.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class SupplyEvent(OrderEvent):
    """Files were sent to a worker for a step; `failure_reason` is empty if that worked."""

    failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class UnfitDeviceEvent(OrderEvent):
    """A worker has not done an order because the order's device failed the health check."""

    reason: str


Event = JoinEvent | RejectionEvent | LeaveEvent | OrderEvent


class Link(Protocol):
    """Carries orders to workers, and their events back."""

    def send(self, worker: str, order: Order) -> None:
        """Send an order; an event follows: its answer, the death of its process, or the worker's departure."""

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        """Send files that a worker cannot download itself; a `SupplyEvent` or a `LeaveEvent` follows."""

    def next_event(self, seconds: float) -> Event | None:
        """Return the next event; return None if no event comes within `seconds`."""

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        """Publish the running orders (worker, device and step), and how many steps wait for which resources."""

    def end(self) -> None:
        """End everything that the workers do for this run."""


def _list_paths(run_dir: Path, workbench: Workbench) -> tuple[str, ...]:
    """Return folders of the run, the cache, the compiler and the runtime, and the compiler's Python; empty for none."""
    # These paths are mapped, because results must have the paths of the machine where the run was started.
    if workbench.toolchain is None:
        return (str(run_dir), str(workbench.cache_dir), "", "", "")
    compiler, runtime = workbench.toolchain.compiler, workbench.toolchain.runtime
    tools = str(Path(compiler.compile).parent), str(Path(runtime.run_module).parent)
    return (str(run_dir), str(workbench.cache_dir), *tools, compiler.python)


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run that workers plan too.

    Attributes:
        compiler, runtime: identities of the run's IREE; empty for none.
        paths: the result of `_list_paths` on the machine where the run was started.
    """

    request: RunRequest
    compiler: str
    runtime: str
    paths: tuple[str, ...]

    @classmethod
    def of(cls, request: RunRequest, workbench: Workbench, run_dir: Path) -> RunDescription:
        """Describe a run of this machine."""
        toolchain = workbench.toolchain
        identities = (toolchain.compiler.identity, toolchain.runtime.identity) if toolchain else ("", "")
        return cls(request, *identities, _list_paths(run_dir, workbench))

    def require_same_iree(self, toolchain: Toolchain | None) -> None:
        """Raise a `GauntletError` if a toolchain is not the IREE of the run."""
        for name, identity in (("compiler", self.compiler), ("runtime", self.runtime)):
            part: Part | None = getattr(toolchain, name) if toolchain else None
            if identity and (part is None or part.identity != identity):
                message = f"its {name} is {part.version if part else 'missing'}, but the run has a different one"
                raise GauntletError(message, _IREE_HINT)

    def map_paths(self, run_dir: Path, workbench: Workbench) -> dict[str, str]:
        """Map the paths of a machine that takes part to those of the machine where the run was started."""
        pairs = zip(_list_paths(run_dir, workbench), self.paths, strict=True)
        return {local: original for local, original in pairs if local and local != original}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The description of a run for workers; or of a comparison, whose `runs` are its sides A and B."""

    name: str
    sha256: str
    cwd: str
    runs: tuple[RunDescription, ...]
    comparison: CompareRequest | None = None


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A worker's message to its process: the runs, with the worker's own folders.

    Attributes:
        path_map: pairs of a local folder and the same folder on the machine where the run was started.
    """

    folder: str
    runs: tuple[RunDescription, ...]
    comparison: CompareRequest | None
    devices: tuple[WorkerDevice, ...]
    path_map: tuple[tuple[str, str], ...]


def replace_paths(document: Any, path_map: Mapping[str, str]) -> Any:
    """Return a journal's object in which some paths, and all paths below them, are replaced; each only once."""
    if isinstance(document, dict):
        return {name: replace_paths(value, path_map) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [replace_paths(value, path_map) for value in document]
    if not isinstance(document, str) or not path_map:
        return document
    # A URL has blanks and characters beyond ASCII in an escaped form.
    urls = {quote(path): quote(new_path) for path, new_path in path_map.items()}
    # Longer paths come first in the pattern, so the longest matching path is replaced.
    in_url, in_text = ("|".join(map(re.escape, sorted(paths, key=len, reverse=True))) for paths in (urls, path_map))
    # A path follows the scheme of a URL, as in file:///cache/x, or begins a word.
    pattern = rf"(?<=://)(?P<url>{in_url})(?![\w.%-])|(?<![\w./-])(?:{in_text})(?![\w.-])"
    return re.sub(pattern, lambda match: (urls if match.lastgroup == "url" else path_map)[match[0]], document)
