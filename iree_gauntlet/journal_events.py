"""The events in the journals of all experiments: the opening, the start of a step, a remark, and the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.stages import Stage  # noqa: TC001 - read at run time
from iree_gauntlet.variants import FlagVariant  # noqa: TC001 - read at run time


class ExperimentKind(StrEnum):
    """The kinds of experiments, by command; a run is of spec files."""

    RUN = "run"
    BENCH = "bench"
    MICRO = "micro"
    COMPARE = "compare"
    MATRIX = "matrix"
    BISECT = "bisect"
    EXPLAIN = "explain"
    CODE_DIFF = "code"
    COMPAT = "compat"
    QUALIFY = "qualify"

    @property
    def noun(self) -> str:
        """The noun for one experiment: `run`, `comparison`, `bisection`."""
        return _NOUNS.get(self, str(self))

    @property
    def description(self) -> str:
        """The noun with its article: `a run`, `an explanation`."""
        return f"{'an' if self is ExperimentKind.EXPLAIN else 'a'} {self.noun}"

    @property
    def is_run(self) -> bool:
        """True if its steps are those of models, whose results have verdicts and figures."""
        return self in (ExperimentKind.RUN, ExperimentKind.BENCH, ExperimentKind.MICRO)


_NOUNS = {
    ExperimentKind.BENCH: "benchmark of a Python model",
    ExperimentKind.MICRO: "run of `micro`",
    ExperimentKind.COMPARE: "comparison",
    ExperimentKind.BISECT: "bisection",
    ExperimentKind.EXPLAIN: "explanation",
    ExperimentKind.CODE_DIFF: "comparison of code",
    ExperimentKind.COMPAT: "compatibility matrix",
    ExperimentKind.QUALIFY: "qualification",
}


@dataclass(frozen=True, slots=True)
class ToolchainInfo(Recorded):
    """An IREE: versions and commits that its tools print, and the compiler's identity; unknown fields are empty.

    Attributes:
        source: its origin, for people.
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
        """The compiler's version and commit, `3.12.0 at 1f2e3d4c5b6a`; empty if unknown."""
        return _join_version(self.compiler, self.compiler_commit)

    @property
    def runtime_text(self) -> str:
        """The runtime's version and commit, as `compiler_text`."""
        return _join_version(self.runtime, self.runtime_commit)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for the journal; empty if nothing is known."""
        return {} if self == ToolchainInfo() else Recorded.as_dict(self)


def _join_version(name: str, commit: str) -> str:
    return f"{name} at {commit[:12]}" if name and commit else name


@dataclass(frozen=True, slots=True)
class Device(Recorded):
    """A device that a runtime lists.

    Attributes:
        uri: IREE's name of the device: `vulkan://GPU-6d65…`, `local-task://`.
        name: name of the product; empty if unknown.
        driver: the driver and its version; empty if unknown.
    """

    uri: str
    name: str = ""
    driver: str = ""
    software: bool = False

    @property
    def text(self) -> str:
        """The description of the device in one line."""
        parts = (self.name, self.driver, "software" if self.software else "")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class MachineInfo(Recorded):
    """The properties of a machine that stay constant during a run; unknown ones are None, 0 or empty.

    Attributes:
        memory_bytes: memory that this process may use, limited by the machine and its cgroup; None if unknown.
        devices: devices of the run besides the CPU.
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
    """A target of a run, and the SKU whose golden times apply."""

    name: str = ""
    sku: str = ""


@dataclass(frozen=True, slots=True)
class RunShard(Recorded):
    """A run's shard of a selection, from 1; `cut` is a hash of the distribution of all `chains` over the shards."""

    index: int
    count: int
    cut: str
    chains: int = 0

    @property
    def text(self) -> str:
        """The shard as an option takes it: `1/4`."""
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True)
class ResumeOptions(Recorded):
    """The options of an experiment that it keeps when it is resumed.

    Attributes:
        options: values by name.
        defaults: the task's default selection.
        stages: None for the suite's choice.
    """

    options: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict, metadata=UNLESS_DEFAULT)
    stages: tuple[Stage, ...] | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening(Recorded):
    """`opening`: the plan of an experiment; a resumed experiment appends another opening.

    Each kind adds its own plan: the steps of a run, the IREEs of a matrix, the candidates of a bisection, the cases of
    an explanation.

    Attributes:
        kind: the first field, so that a reader of the kind can skip the plan.
        command: the command line, typed in the folder `cwd`.
        lock_folder: folder of the machine's locks, if it differs from the user's own.
        kept: options for resuming; None if the experiment cannot be resumed.
    """

    kind: ExperimentKind
    time: str = field(default="", metadata=UNLESS_DEFAULT)
    name: str = ""
    version: str = ""
    command: str = ""
    cwd: str = ""
    resumed: bool = False
    machine: MachineInfo = field(default_factory=MachineInfo, metadata=UNLESS_DEFAULT)
    lock_folder: str = field(default="", metadata=UNLESS_DEFAULT)
    kept: ResumeOptions | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def options(self) -> dict[str, Any]:
        """The options that a resumed experiment keeps."""
        return self.kept.options if self.kept else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOpening(Opening):
    """The opening of a run, a `bench` or a `micro`.

    Attributes:
        again: steps that are repeated, so that their results in earlier parts no longer count.
        variants: the changes of the flags of the specs.
        batch: number of small programs that are compiled as one; 0 for no batches.
        warnings: probable mistakes in the request, one line each.
        flaky_passes: a flaky step does not fail the run.
        golden_skus: the SKUs that goldens of the selection are for.
        merged: data of the merged runs, besides their steps.
        micro: the request for a sweep.
        steps: the written steps, which `JournalRecord.planned` reads.
    """

    kind: ExperimentKind = ExperimentKind.RUN
    suite: str = ""
    target: tuple[RunTarget, ...] = ()
    toolchain: ToolchainInfo = field(default_factory=ToolchainInfo)
    markers: str = field(default="", metadata=UNLESS_DEFAULT)
    last_failed: bool = field(default=False, metadata=UNLESS_DEFAULT)
    again: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    shard: RunShard | None = field(default=None, metadata=UNLESS_DEFAULT)
    variants: tuple[FlagVariant, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    batch: int = field(default=0, metadata=UNLESS_DEFAULT)
    remarks: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    warnings: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    flaky_passes: bool = field(default=False, metadata=UNLESS_DEFAULT)
    golden_skus: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    merged: tuple[dict[str, Any], ...] = field(default=(), metadata=UNLESS_DEFAULT)
    missing_shards: tuple[int, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    micro: dict[str, Any] | None = field(default=None, metadata=UNLESS_DEFAULT)
    gpus: tuple[dict[str, Any], ...] = field(default=(), metadata=UNLESS_DEFAULT)
    steps: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StepStart(Recorded):
    """`start`: a step begins, perhaps again; `worker` is the machine of a cluster that runs it."""

    worker: str = field(default="", metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True)
class Remark(Recorded):
    """`remark`: an important note in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class EndEvent(Recorded):
    """`end`: the end of an experiment.

    Attributes:
        stopped: reason for an end before its last part.
        problem: reason for a missing result.
    """

    time: str = field(default="", metadata=UNLESS_DEFAULT)
    exit_code: ExitCode = ExitCode.OK
    seconds: float | None = None
    interrupted: bool = False
    stopped: str = field(default="", metadata=UNLESS_DEFAULT)
    problem: str = field(default="", metadata=UNLESS_DEFAULT)
