"""What a run and its workers say to each other; whoever carries it (Dask, or a simulation) is behind `Link`."""

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
    from iree_gauntlet.cluster.offers import DeviceOffer, WorkerOffer
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.requests import CompareRequest, RunRequest
    from iree_gauntlet.toolchains.toolchain import Part, Toolchain


_OTHER = "`--iree RELEASE` is installed on each worker; other IREEs have to be there already, and be the same"


class BrokenRunError(Exception):
    """The process of a run ended with an order undone."""


class RefusedRunError(Exception):
    """A worker cannot take part in a run."""


class UnfitDeviceError(Exception):
    """The device of a step failed its health check."""


def encode(message: object) -> bytes:
    """A line between a worker and the process that it has started, which trust each other."""
    return base64.b64encode(pickle.dumps(message)) + b"\n"


def decode(line: bytes) -> Any:
    """What a line of `encode` says.

    Raises:
        ValueError: it is none, or was cut short.
    """
    try:
        return pickle.loads(base64.b64decode(line.removesuffix(b"\n"), validate=True))  # noqa: S301 - of our own process
    except Exception as error:
        raise ValueError(f"{line[:60]!r} is no message: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Made:
    """What a step has put into the module cache of workers."""

    step: str
    key: str
    at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """A step that a worker is to do, which has planned the same run.

    Attributes:
        device: own name of the device that it uses; empty for none.
        attempt: 0 at first, one more for each worker that was lost.
    """

    step: str
    device: str = ""
    made: tuple[Made, ...] = ()
    goldens: tuple[Golden, ...] = ()
    attempt: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """What has become of an order."""

    result: dict[str, object]
    files: tuple[tuple[str, bytes], ...] = ()
    missing: tuple[str, ...] = ()
    events: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Something has happened to a worker, of an address."""

    worker: str


@dataclass(frozen=True, slots=True)
class Joined(WorkerEvent):
    """A worker is there and has planned the run."""

    offer: WorkerOffer


@dataclass(frozen=True, slots=True)
class Refused:
    """A worker is there that cannot do this run, or (`device`) can do it without one of its devices."""

    name: str
    reason: str
    device: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        return f"worker {self.name}{f'/{self.device}' if self.device else ''} takes no part: {self.reason}"


@dataclass(frozen=True, slots=True)
class Left(WorkerEvent):
    """A worker is not there any more."""


@dataclass(frozen=True, slots=True)
class OrderEvent(WorkerEvent):
    """What has become of an order, or of what it needs."""

    step: str


@dataclass(frozen=True, slots=True)
class Answered(OrderEvent):
    """A worker has done an order."""

    answer: OrderAnswer


@dataclass(frozen=True, slots=True)
class Broken(OrderEvent):
    """What does the steps of the run on a worker has ended with an order undone; it is begun again.

    A `Joined` or a `Refused` follows.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Supplied(OrderEvent):
    """Files were brought to a worker for a step, or were not, for a reason."""

    missing: str = ""


@dataclass(frozen=True, slots=True)
class Unfit(OrderEvent):
    """A worker has not done an order, as its device failed the health check."""

    reason: str


Event = Joined | Refused | Left | OrderEvent


class Link(Protocol):
    """Carries orders to workers, and brings what happens there."""

    def send(self, worker: str, order: Order) -> None:
        """Has a worker do a step; an `Answered` or `Broken` follows, or a `Left`."""

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        """Brings files to a worker that it cannot get; a `Supplied` or a `Left` follows."""

    def next_event(self, seconds: float) -> Event | None:
        """What happens next; None where nothing does in so many seconds."""

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        """Makes known who does what: worker, device and step; and how many steps wait for what."""

    def end(self) -> None:
        """Has all workers end what they do for this run."""


def _list_places(run_dir: Path, machine: Workbench) -> tuple[str, ...]:
    """Folders of the run, the cache, the compiler and the runtime, and the compiler's Python; empty for none."""
    # Results are to say what is true where a run was started.
    if machine.toolchain is None:
        return (str(run_dir), str(machine.cache_dir), "", "", "")
    compiler, runtime = machine.toolchain.compiler, machine.toolchain.runtime
    tools = str(Path(compiler.compile).parent), str(Path(runtime.run_module).parent)
    return (str(run_dir), str(machine.cache_dir), *tools, compiler.python)


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A run that workers plan too.

    Attributes:
        compiler, runtime: identities of its IREE; empty for none.
        places: as of `_list_places`, where it was started.
    """

    request: RunRequest
    compiler: str
    runtime: str
    places: tuple[str, ...]

    @classmethod
    def of(cls, request: RunRequest, machine: Workbench, run_dir: Path) -> SharedRun:
        """A run of this machine's."""
        toolchain = machine.toolchain
        identities = (toolchain.compiler.identity, toolchain.runtime.identity) if toolchain else ("", "")
        return cls(request, *identities, _list_places(run_dir, machine))

    def require_its_iree(self, toolchain: Toolchain | None) -> None:
        """Raises a `GauntletError` where an IREE is not the run's."""
        for name, identity in (("compiler", self.compiler), ("runtime", self.runtime)):
            part: Part | None = getattr(toolchain, name) if toolchain else None
            if identity and (part is None or part.identity != identity):
                what = f"its {name} is {part.version if part else 'missing'}, and not the same as the run's"
                raise GauntletError(what, _OTHER)

    def renamed_from(self, run_dir: Path, machine: Workbench) -> dict[str, str]:
        """Paths of a machine that takes part, and what they are where the run was started."""
        pairs = zip(_list_places(run_dir, machine), self.places, strict=True)
        return {mine: theirs for mine, theirs in pairs if mine and mine != theirs}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a worker has to know of a run, or of a comparison, whose `runs` are its sides A and B."""

    name: str
    sha256: str
    cwd: str
    runs: tuple[SharedRun, ...]
    comparison: CompareRequest | None = None


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What a worker has its process take part in: `RunFacts` with the worker's own folders.

    Attributes:
        places: folders here, and what they are where it was started.
    """

    folder: str
    runs: tuple[SharedRun, ...]
    comparison: CompareRequest | None
    devices: tuple[DeviceOffer, ...]
    places: tuple[tuple[str, str], ...]


def with_paths(said: Any, renamed: Mapping[str, str]) -> Any:
    """A journal's object with other paths in place of some: whole ones and what lies below them, each replaced once."""
    if isinstance(said, dict):
        return {name: with_paths(value, renamed) for name, value in said.items()}
    if isinstance(said, list | tuple):
        return [with_paths(value, renamed) for value in said]
    if not isinstance(said, str) or not renamed:
        return said
    # A URL has blanks and characters beyond ASCII in an escaped form.
    urls = {quote(path): quote(new) for path, new in renamed.items()}
    # If two paths match, the longer one counts.
    in_url, in_text = ("|".join(map(re.escape, sorted(paths, key=len, reverse=True))) for paths in (urls, renamed))
    # A path follows the scheme of a URL, file:///cache/x, or begins a word.
    pattern = rf"(?<=://)(?P<url>{in_url})(?![\w.%-])|(?<![\w./-])(?P<path>{in_text})(?![\w.-])"
    return re.sub(pattern, lambda match: urls[match["url"]] if match["url"] else renamed[match["path"]], said)
