"""How records begin and end: which run, with which IREE, on what machine; whose experiment; and how that ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.stages import Stage  # noqa: TC001 - a record's field is read by its type


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
class Asked(Recorded):
    """What a run was asked for.

    Attributes:
        defaults: what the task selects by itself.
        stages: None for what the suite says.
    """

    selection: dict[str, Any]
    defaults: dict[str, Any]
    stages: tuple[Stage, ...] | None = None


@dataclass(frozen=True, slots=True)
class RunEvent(Recorded):
    """What a run is about to do, and with what; its steps stand beside it.

    Attributes:
        lock_folder: of the machine's locks, where it is not the user's own.
        asked: None where it cannot be resumed.
        batch: how many small programs are compiled as one; 0 where they are not.
        merged: what is kept of the runs that it was made of, besides their steps.
        bench, micro: what a benchmark of Python models was asked for; None for a run of spec files.
    """

    time: str = field(default="", metadata=UNLESS_DEFAULT)
    run: str = ""
    version: str = ""
    suite: str = ""
    command: str = ""
    cwd: str = ""
    target: tuple[RunTarget, ...] = ()
    toolchain: ToolchainFacts = field(default_factory=ToolchainFacts)
    machine: MachineFacts = field(default_factory=MachineFacts)
    lock_folder: str = field(default="", metadata=UNLESS_DEFAULT)
    resumed: bool = False
    markers: str = field(default="", metadata=UNLESS_DEFAULT)
    last_failed: bool = field(default=False, metadata=UNLESS_DEFAULT)
    asked: Asked | None = field(default=None, metadata=UNLESS_DEFAULT)
    shard: RunShard | None = field(default=None, metadata=UNLESS_DEFAULT)
    batch: int = field(default=0, metadata=UNLESS_DEFAULT)
    remarks: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    merged: tuple[dict[str, Any], ...] = field(default=(), metadata=UNLESS_DEFAULT)
    missing_shards: tuple[int, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    bench: dict[str, Any] | None = field(default=None, metadata=UNLESS_DEFAULT)
    micro: dict[str, Any] | None = field(default=None, metadata=UNLESS_DEFAULT)
    gpus: tuple[dict[str, Any], ...] = field(default=(), metadata=UNLESS_DEFAULT)

    @property
    def of_specs(self) -> bool:
        """Whether it is a run of spec files."""
        return self.bench is None and self.micro is None


@dataclass(frozen=True, slots=True)
class EndEvent(Recorded):
    """How a run or a matrix ends; `stopped` is why before its last part."""

    time: str = ""
    exit_code: ExitCode = ExitCode.OK
    seconds: float | None = None
    interrupted: bool = False
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentOpening(Recorded):
    """Who began an experiment, when, and how: `command` is as it was typed in the folder `cwd`."""

    time: str = field(default="", metadata=UNLESS_DEFAULT)
    version: str = field(default="", metadata=UNLESS_DEFAULT)
    command: str = field(default="", metadata=UNLESS_DEFAULT)
    cwd: str = field(default="", metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnd(Recorded):
    """How it ended; `problem` is why it has no result."""

    time: str = field(default="", metadata=UNLESS_DEFAULT)
    exit_code: ExitCode
    problem: str = ""
    seconds: float = 0.0
    interrupted: bool = False
