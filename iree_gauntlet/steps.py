"""Steps: units of work, fully described before anything runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from iree_gauntlet.cases import MAIN, Allclose, Golden, OnnxImport, Origin, Quarantine
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.stages import FailureKind, Stage  # noqa: TC001 - read by their types

if TYPE_CHECKING:
    from iree_gauntlet.journal_events import Device


# The model's name in the id of a batch: many small programs that are compiled as one.
BATCH_MODEL = "batch"
# The role of a program's actual output, which is kept for people: no step reads it.
ACTUAL_OUTPUT = "actual_output"
# A note of a step that checks no numbers.
NOTHING_COMPARED = "the spec has no expected outputs: only that it runs is checked"


def make_step_id(chain: str, stage: Stage, role: str = MAIN) -> str:
    """Make the id `<chain>:<stage>`, with `.<role>` for modules other than the main one."""
    return f"{chain}:{stage}" if role == MAIN else f"{chain}:{stage}.{role}"


@dataclass(frozen=True, slots=True)
class Command(Recorded):
    """A process to start: argument vector, working directory and environment variables to set.

    Attributes:
        runner: the words before the argument vector that run a tool for another processor; none for this machine's.
    """

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...] = ()
    runner: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)

    @property
    def words(self) -> tuple[str, ...]:
        """The whole argument vector, with the runner."""
        return (*self.runner, *self.argv)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags among its arguments."""
        return tuple(word for word in self.argv[1:] if word.startswith("--"))

    @property
    def command_line(self) -> str:
        """The command line in a POSIX shell."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.env]
        words = " ".join([*assignments, shlex.join(self.words)])
        return f"cd {shlex.quote(self.cwd)} && {words}" if self.cwd else words


@dataclass(frozen=True, slots=True)
class StepInput(Recorded):
    """A file that a step reads.

    Attributes:
        role: its use in the step (`program`, `input`, `expected_output`, `parameters`, `module`). A missing expected
            output is reported by the threshold step, not by the fetch.
        path: its path on this machine when the step starts.
        url: empty for the output of another step.
    """

    role: str
    path: str
    url: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Resources(Recorded):
    """The resources of a running step.

    Attributes:
        cores: the number of cores; 0 for steps that mostly wait (a download) or take their locks themselves.
        exclusive: True if no other step of any run may run on this machine at the same time.
        device: `local-task`, or a device's own URI once it is known; empty for none.
        software: True if the device is a GPU in software, which computes on the CPU.
    """

    cores: int = 1
    exclusive: bool = False
    device: str = ""
    software: bool = False

    @property
    def accelerator(self) -> str:
        """The device, which only one step at a time may use; empty for the processor or no device."""
        return "" if is_cpu(self.device) else self.device


@dataclass(frozen=True, slots=True)
class CacheLookup(Recorded):
    """The lookup of a step in a cache: hit or miss, and the reason.

    Attributes:
        key: empty if an input's content is not known yet.
        ingredients: the inputs of the key by name, to explain a miss.
    """

    key: str = ""
    hit: bool = False
    reason: str = ""
    ingredients: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Step(Recorded):
    """One unit of work in a chain.

    Attributes:
        id: `<chain>:<stage>`, with `.<role>` for a role other than `main`; unique in a plan.
        chain: `<model>/<submodel>@<target>`.
        role: distinguishes steps of a stage: the main module, a second module, an archive, a variant.
        needs: ids of steps that must succeed before it.
        command: None for steps inside the toolkit (fetch, compstat).
        outputs: paths of its output files, by role.
        folder: its folder for outputs and logs inside the run's folder.
        cache: lookup at planning time.
        timeout: limit in seconds.
        expect_failure: reason of an expected failure.
        expect_kinds: kinds of the expected failure.
        expect_match: text that the failure's reason or the tool's output must contain; empty for any failure.
        skip: reason to skip it.
        blocked: the missing requirement.
        golden_keys: SKUs of the spec's golden times.
        idle_goldens: goldens of the spec under keys that match no case.
        notes: changes made while planning (translated flags, an omitted golden and the reason).
        onnx: the import of the program (import steps).
        allclose: tolerances for outputs that NumPy's rule compares (threshold steps).
        quarantine: the suite's entry that excuses its failures, perhaps no longer; None if there is none.
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
    quarantine: Quarantine | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def name(self) -> str:
        """The name within its chain: `compile`, `compile.pipeline`."""
        return self.id.removeprefix(f"{self.chain}:")

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of its process."""
        return self.command.flags if self.command else ()

    @property
    def device(self) -> str:
        """The device in `--device`, or the required one."""
        devices = [flag.partition("=")[2] for flag in self.flags if flag.startswith("--device=")]
        return devices[-1] if devices else self.resources.device

    def place_on(self, device: Device) -> Self:
        """Return the step with its device's name replaced by the device's one canonical name."""
        return replace(self, resources=replace(self.resources, device=device.uri, software=device.software))

    def find_input(self, role: str) -> StepInput:
        """Return the first input of a role; there must be one."""
        return next(item for item in self.inputs if item.role == role)

    @property
    def required_command(self) -> Command:
        """The command; TypeError if it has none."""
        if self.command is None:
            raise TypeError(f"{self.id} has no command")
        return self.command

    def find_output(self, role: str) -> str:
        """Return the path of the output of a role; KeyError if there is none."""
        return dict(self.outputs)[role]
