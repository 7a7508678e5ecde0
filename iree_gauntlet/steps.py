"""A step: one unit of work, fully described before anything runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from iree_gauntlet.cases import MAIN, Allclose, Golden, OnnxImport, Origin
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.stages import FailureKind, Stage  # noqa: TC001 - read by their types

if TYPE_CHECKING:
    from iree_gauntlet.journal_events import Device


# What stands for the model in the name of a batch, many small programs that are compiled as one.
BATCH_MODEL = "batch"
# Role of what a program gave, which is kept for people: no step reads it.
ACTUAL_OUTPUT = "actual_output"
# A note of a step that checks no numbers.
NOTHING_COMPARED = "the spec has no expected outputs: only that it runs is checked"


def make_step_id(chain: str, stage: Stage, role: str = MAIN) -> str:
    """`<chain>:<stage>`, with `.<role>` for what belongs to a module other than the main one."""
    return f"{chain}:{stage}" if role == MAIN else f"{chain}:{stage}.{role}"


@dataclass(frozen=True, slots=True)
class Command(Recorded):
    """A process to start: exact argument vector, working directory, changes of the environment."""

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Of its arguments."""
        return tuple(word for word in self.argv[1:] if word.startswith("--"))

    @property
    def typed(self) -> str:
        """As a person would type it in a POSIX shell."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.env]
        words = " ".join([*assignments, shlex.join(self.argv)])
        return f"cd {shlex.quote(self.cwd)} && {words}" if self.cwd else words


@dataclass(frozen=True, slots=True)
class StepInput(Recorded):
    """A file that a step reads.

    Attributes:
        role: what it is to the step (`program`, `input`, `expected_output`, `parameters`, `module`). A fetch leaves
            it to the threshold step to say that an expected output is not to be had.
        path: where it lies on this machine when the step starts.
        url: empty for what another step makes.
    """

    role: str
    path: str
    url: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Resources(Recorded):
    """What a step needs while it runs.

    Attributes:
        cores: 0 for steps that wait on something else (a download).
        exclusive: nothing else of any run on this machine may run at the same time.
        device: `local-task`, or a device's own URI once that is known; empty for none.
        software: that device computes on the CPU, though its driver is a GPU's.
    """

    cores: int = 1
    exclusive: bool = False
    device: str = ""
    software: bool = False

    @property
    def accelerator(self) -> str:
        """The device where that is not the processor: one step at a time uses it. Empty for none."""
        return "" if is_cpu(self.device) else self.device


@dataclass(frozen=True, slots=True)
class CacheLookup(Recorded):
    """Whether a step would be served from a cache, and why or why not.

    Attributes:
        key: empty where an input's content is not known yet.
        ingredients: what the key was made from, by name, to explain a miss.
    """

    key: str = ""
    hit: bool = False
    reason: str = ""
    ingredients: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Step(Recorded):
    """One unit of work in a chain.

    Attributes:
        id: `<chain>:<stage>`, with `.<role>` where that is not `main`; unique in a plan.
        chain: `<model>/<submodel>@<target>`.
        role: which of several steps of a stage: the main one, or that of a second module, of an archive, of a variant.
        needs: ids of steps that must have come well out before it.
        command: None for steps that run inside the toolkit (fetch, compstat).
        outputs: paths of files that it makes, by role.
        folder: its own inside the run's folder, for outputs and logs.
        cache: lookup made when planning.
        timeout: seconds until it is ended.
        expect_failure: why it is expected to fail.
        expect_kinds: how it may fail then.
        expect_match: what must be in its reason or in the tool's output then; empty for anything.
        skip: why it does not run.
        blocked: what is missing that it needs.
        golden_keys: SKUs that the spec has golden times for.
        idle_goldens: those that the spec has under keys of something else alone.
        notes: what was changed on the way (flags translated, a golden left out and why).
        onnx: how the program is imported (import steps).
        allclose: how outputs are compared, where it is not by iree-run-module's own rule (threshold steps).
    """

    id: str
    chain: str
    dialect: str
    model: str
    submodel: str
    target: str
    sku: str
    stage: Stage
    folder: str
    timeout: float
    origin: Origin
    role: str = MAIN
    needs: tuple[str, ...] = ()
    command: Command | None = None
    inputs: tuple[StepInput, ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    cache: CacheLookup = field(default_factory=CacheLookup)
    resources: Resources = field(default_factory=Resources)
    expect_failure: str = ""
    skip: str = ""
    blocked: str = ""
    goldens: tuple[Golden, ...] = ()
    golden_keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    onnx: OnnxImport | None = None
    expect_kinds: tuple[FailureKind, ...] = ()
    expect_match: str = ""
    expect_origin: Origin | None = None
    allclose: Allclose | None = None
    idle_goldens: tuple[Golden, ...] = field(default=(), metadata=UNLESS_DEFAULT)

    @property
    def name(self) -> str:
        """Within its chain: `compile`, `compile.pipeline`."""
        return self.id.removeprefix(f"{self.chain}:")

    @property
    def flags(self) -> tuple[str, ...]:
        """Of its process, without the binary."""
        return self.command.flags if self.command else ()

    @property
    def device(self) -> str:
        """What `--device` says, else what it needs."""
        named = [flag.partition("=")[2] for flag in self.flags if flag.startswith("--device=")]
        return named[-1] if named else self.resources.device

    def place_on(self, device: Device) -> Self:
        """The step on a device by its own name, so that two names of one device are one."""
        return replace(self, resources=replace(self.resources, device=device.uri, software=device.software))

    def input(self, role: str) -> StepInput:
        """The first input of a role, which it has."""
        return next(item for item in self.inputs if item.role == role)

    @property
    def process(self) -> Command:
        """The command of a step that runs one, which it has."""
        if self.command is None:
            raise TypeError(f"{self.id} has no command")
        return self.command

    def output(self, role: str) -> str:
        """Path of the output of a role; KeyError where it has none."""
        return dict(self.outputs)[role]
