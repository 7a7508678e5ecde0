"""What a run and its workers say to each other; whoever carries it (Dask, or a simulation) is behind `Link`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from iree_gauntlet.cases import Golden
    from iree_gauntlet.cluster.offers import WorkerOffer


@dataclass(frozen=True, slots=True)
class Made:
    """What a step has put into the module cache of workers.

    Attributes:
        step: its id.
        key: what it is found by.
        at: addresses of the workers that have it.
    """

    step: str
    key: str
    at: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """A step that a worker is to do.

    Attributes:
        step: its id; the worker has planned the same run.
        device: own name of the device that it uses; empty for none.
        made: what steps before it have made.
        goldens: figures that it is held against, in addition to the spec's: those of an earlier run.
        attempt: 0 at first, one more for each worker that was lost.
        seconds: that rounds of a comparison may take.
    """

    step: str
    device: str = ""
    made: tuple[Made, ...] = ()
    goldens: tuple[Golden, ...] = ()
    attempt: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What has become of an order.

    Attributes:
        result: as the journal keeps it.
        files: (path in the run's folder, content) of logs and other small files of the step.
        missing: URLs of files that the worker could not get.
        events: what was measured, of a comparison: as its log has it.
    """

    result: dict[str, object]
    files: tuple[tuple[str, bytes], ...] = ()
    missing: tuple[str, ...] = ()
    events: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Began:
    """How a worker has begun a run.

    Attributes:
        refused: why it cannot take part; empty where it can.
        unfit: (device, what is wrong with it) of devices that it does not use.
    """

    refused: str = ""
    unfit: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker is there and has planned the run."""

    worker: str
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
class Left:
    """A worker is not there any more."""

    worker: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker has done an order."""

    worker: str
    step: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Broken:
    """What does the steps of the run on a worker has ended with an order undone; it is begun again.

    A `Joined` or a `Refused` follows.
    """

    worker: str
    step: str
    reason: str


@dataclass(frozen=True, slots=True)
class Supplied:
    """Files were brought to a worker for a step, or were not, for a reason."""

    worker: str
    step: str
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A worker has not done an order, as its device failed the health check."""

    worker: str
    step: str
    reason: str


Event = Joined | Refused | Left | Answered | Broken | Supplied | Unfit


class Link(Protocol):
    """Carries orders to workers, and brings what happens there."""

    def send(self, worker: str, order: Order) -> None:
        """Has a worker do a step; an `Answered` or `Broken` follows, or a `Left`."""

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        """Brings files to a worker that it cannot get; a `Supplied` or a `Left` follows."""

    def next_event(self, seconds: float) -> Event | None:
        """What happens next; None where nothing does in so many seconds."""

    def show(self, state: State) -> None:
        """Makes known who does what."""

    def end(self) -> None:
        """Has all workers end what they do for this run."""


@dataclass(frozen=True, slots=True)
class State:
    """Who does what.

    Attributes:
        running: (worker's name, device's name or nothing, step) of what is under way.
        waiting: (what is needed, how many steps need it).
    """

    running: tuple[tuple[str, str, str], ...] = ()
    waiting: tuple[tuple[str, int], ...] = field(default=())
