"""The events that the journals of all experiments have: how one begins, a step that starts, a remark, and the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.stages import Stage  # noqa: TC001 - read at run time


class ExperimentKind(StrEnum):
    """What an experiment is, by its command; a run is of spec files."""

    RUN = "run"
    BENCH = "bench"
    MICRO = "micro"
    COMPARE = "compare"
    MATRIX = "matrix"
    BISECT = "bisect"
    EXPLAIN = "explain"

    @property
    def noun(self) -> str:
        """What people call one: `run`, `comparison`, `bisection`."""
        return _NOUNS.get(self, str(self))

    @property
    def description(self) -> str:
        """The noun with its article: `a run`, `an explanation`."""
        return f"{'an' if self is ExperimentKind.EXPLAIN else 'a'} {self.noun}"

    @property
    def is_run(self) -> bool:
        """Whether its steps are those of models, whose results have verdicts and figures."""
        return self in (ExperimentKind.RUN, ExperimentKind.BENCH, ExperimentKind.MICRO)


_NOUNS = {
    ExperimentKind.BENCH: "benchmark of a Python model",
    ExperimentKind.MICRO: "run of `micro`",
    ExperimentKind.COMPARE: "comparison",
    ExperimentKind.BISECT: "bisection",
    ExperimentKind.EXPLAIN: "explanation",
}


@dataclass(frozen=True, slots=True)
class ToolchainFacts(Recorded):
    """An IREE: versions and commits as its tools say them, and the compiler's identity; empty where not known.

    Attributes:
        source: where it comes from, for people.
    """

    compiler: str = ""
    compiler_commit: str = ""
    runtime: str = ""
    runtime_commit: str = ""
    identity: str = ""
    source: str = ""
    runtime_identity: str = field(default="", metadata=UNLESS_DEFAULT)
    compiler_release: str = field(default="", metadata=UNLESS_DEFAULT)
    runtime_release: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def compiler_text(self) -> str:
        """`3.12.0 at 1f2e3d4c5b6a`; empty where it is not known."""
        return _join_version(self.compiler, self.compiler_commit)

    @property
    def runtime_text(self) -> str:
        """As `compiler_text`."""
        return _join_version(self.runtime, self.runtime_commit)

    def as_dict(self) -> dict[str, Any]:
        """Of none at all, nothing."""
        return {} if self == ToolchainFacts() else Recorded.as_dict(self)


def _join_version(name: str, commit: str) -> str:
    return f"{name} at {commit[:12]}" if name and commit else name


@dataclass(frozen=True, slots=True)
class Device(Recorded):
    """A device, as a runtime sees it.

    Attributes:
        uri: its own name to IREE: `vulkan://GPU-6d65…`, `local-task://`.
        name: of the product; empty where the runtime does not say.
        driver: the driver and its version; empty where the runtime does not say.
    """

    uri: str
    name: str = ""
    driver: str = ""
    software: bool = False

    @property
    def text(self) -> str:
        """One line for people."""
        parts = (self.name, self.driver, "software" if self.software else "")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class MachineFacts(Recorded):
    """What does not change about a machine while a run lasts; what is not known is None, 0 or empty.

    Attributes:
        memory_bytes: memory that this process may use, by machine and by cgroup; None where neither says.
        devices: of the run, besides the CPU.
    """

    host: str = field(default="", metadata=UNLESS_DEFAULT)
    cpu: str = field(default="", metadata=UNLESS_DEFAULT)
    cores: int = field(default=0, metadata=UNLESS_DEFAULT)
    memory_bytes: int | None = field(default=None, metadata=UNLESS_DEFAULT)
    os: str = field(default="", metadata=UNLESS_DEFAULT)
    python: str = field(default="", metadata=UNLESS_DEFAULT)
    devices: tuple[Device, ...] = field(default=(), metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True)
class RunTarget(Recorded):
    """A target of a run, and the SKU whose golden times hold."""

    name: str = ""
    sku: str = ""


@dataclass(frozen=True, slots=True)
class RunShard(Recorded):
    """Which part of a selection a run did, from 1; `cut` is a hash of how the whole, so many chains, was dealt out."""

    index: int
    count: int
    cut: str
    chains: int = 0

    @property
    def text(self) -> str:
        """`1/4`."""
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True)
class KeptOptions(Recorded):
    """What an experiment was asked for, which a resumed one keeps.

    Attributes:
        options: by name.
        defaults: what the task selects by itself.
        stages: None for what the suite says.
    """

    options: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict, metadata=UNLESS_DEFAULT)
    stages: tuple[Stage, ...] | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Recorded):
    """`opening`: what an experiment is about to do; one that is resumed appends another.

    Each kind adds what else it has to know, its plan above all: the steps of a run, the IREEs of a matrix, the
    candidates of a bisection, the cases of an explanation.

    Attributes:
        kind: stands first, so that it is known without reading the plan.
        command: as it was typed in the folder `cwd`.
        lock_folder: of the machine's locks, where it is not the user's own.
        kept: None where it cannot be resumed.
    """

    kind: ExperimentKind
    time: str = field(default="", metadata=UNLESS_DEFAULT)
    name: str = ""
    version: str = ""
    command: str = ""
    cwd: str = ""
    resumed: bool = False
    machine: MachineFacts = field(default_factory=MachineFacts, metadata=UNLESS_DEFAULT)
    lock_folder: str = field(default="", metadata=UNLESS_DEFAULT)
    kept: KeptOptions | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def options(self) -> dict[str, Any]:
        """Those that a resumed one keeps."""
        return self.kept.options if self.kept else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOpening(Opening):
    """The opening of a run, a `bench` or a `micro`.

    Attributes:
        again: steps with results of earlier parts that do not count any more, as they are done again.
        batch: how many small programs are compiled as one; 0 where they are not.
        merged: what is kept of the runs that it was made of, besides their steps.
        micro: what a sweep was asked for.
        steps: as written; `JournalRecord.planned` reads them.
    """

    kind: ExperimentKind = ExperimentKind.RUN
    suite: str = ""
    target: tuple[RunTarget, ...] = ()
    toolchain: ToolchainFacts = field(default_factory=ToolchainFacts)
    markers: str = field(default="", metadata=UNLESS_DEFAULT)
    last_failed: bool = field(default=False, metadata=UNLESS_DEFAULT)
    again: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    shard: RunShard | None = field(default=None, metadata=UNLESS_DEFAULT)
    batch: int = field(default=0, metadata=UNLESS_DEFAULT)
    remarks: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    merged: tuple[dict[str, Any], ...] = field(default=(), metadata=UNLESS_DEFAULT)
    missing_shards: tuple[int, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    micro: dict[str, Any] | None = field(default=None, metadata=UNLESS_DEFAULT)
    gpus: tuple[dict[str, Any], ...] = field(default=(), metadata=UNLESS_DEFAULT)
    steps: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StepStart(Recorded):
    """`start`: a step begins, perhaps once more; `worker` is the machine of a cluster that it was given to."""

    worker: str = field(default="", metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True)
class Remark(Recorded):
    """`remark`: what a reader must know, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class EndEvent(Recorded):
    """`end`: how an experiment ends.

    Attributes:
        stopped: why before its last part.
        problem: why it has no result.
    """

    time: str = field(default="", metadata=UNLESS_DEFAULT)
    exit_code: ExitCode = ExitCode.OK
    seconds: float | None = None
    interrupted: bool = False
    stopped: str = field(default="", metadata=UNLESS_DEFAULT)
    problem: str = field(default="", metadata=UNLESS_DEFAULT)
