"""The programs that run ONNX models in a reference: in processes of their own, which may crash or hang."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.steps import Command
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from iree_gauntlet.engine.processes.supervisor import Supervisor


CHOOSE_INPUTS = "Choose sizes and inputs that suit the model (`onnx_import.shapes`, `inputs`): docs/start/own-model.md"
_TIMEOUT_SECONDS = 1800.0
# What a worker ends with where the model, the sizes or the inputs are no use.
_REFUSED = 2
_Answer = TypeVar("_Answer", bound=Recorded)


@dataclass(frozen=True, slots=True)
class ReferencePlan(Recorded):
    """What workers are told of a model.

    Attributes:
        inputs: sets of them, as iree-run-module takes them, in the order of wishes.
        cwd: where their files lie.
        folder: for outputs.
        tolerances: what the spec allows outputs to differ by, by element type, and `rtol`; None to have it chosen.
        last: whether no other sets come.
    """

    model: str
    inputs: tuple[tuple[str, ...], ...]
    cwd: str
    folder: str
    tolerances: dict[str, float] | None
    last: bool = True


@dataclass(frozen=True, slots=True)
class ReferenceName(Recorded):
    """What ran a model: `onnxruntime`, or onnx's own evaluator."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class ModelInput(Recorded):
    """An input of a model, as it was run."""

    name: str
    dtype: str
    declared_shape: list[int | str | None]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelOutput(Recorded):
    """An output of a model.

    Attributes:
        type: IREE's.
        file: its raw values.
        dtype: NumPy's.
        least, most: of its finite values; None where there are none.
        differs: from run to run.
        optimised, other: by how much onnxruntime with optimisations, and the other reference, differ by more than is
            allowed; None where they don't, or were not run; -1 for an infinite difference.
        input: its place, of one that is handed through; None for what is computed.
    """

    name: str
    type: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    count: int
    nans: int
    infinities: int
    differs: bool
    least: float | None = None
    most: float | None = None
    optimised: float | None = None
    other: float | None = None
    input: int | None = None


@dataclass(frozen=True, slots=True)
class ReferenceAnswer(Recorded):
    """What `run_onnx` says.

    Attributes:
        taken: which set of inputs.
        tells: whether the outputs can tell right from wrong.
        refused: why other sets that were tried were not taken.
        random: operators of the model that make random numbers.
        allowed: what outputs may differ by, by element type: the fields of a worker's `Allowed`.
    """

    taken: int
    tells: bool
    refused: tuple[str, ...]
    reference: ReferenceName
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    random: tuple[str, ...]
    allowed: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightEffect(Recorded):
    """What scaling one tensor of a model by 1.01 does to its outputs.

    Attributes:
        effect: the largest difference in units of what the tolerance allows; above 1 it is seen.
    """

    name: str
    elements: int
    effect: float


@dataclass(frozen=True, slots=True)
class WeightEffects(Recorded):
    """What `golden_sensitivity` says, in the order of the file."""

    weights: tuple[WeightEffect, ...]


@dataclass(frozen=True, slots=True)
class ReferenceWorkers:
    """The programs that run ONNX models in a reference.

    Attributes:
        python: interpreter that has onnx and onnxruntime.
        folder: for their plans, output and files.
    """

    supervisor: Supervisor
    python: str
    folder: Path

    def answer(self, name: str, what: str, plan: ReferencePlan, kind: type[_Answer]) -> _Answer:
        """What a worker of a plan says.

        Args:
            name: its script's.
            what: does not happen where it fails, for messages.
            plan: see the script.
            kind: of its answer.

        Raises:
            UsageError: the plan cannot be used with this model.
            GauntletError: no reference can run the model, or the worker crashed.
        """
        file, out, err = (self.folder / f"{name}{suffix}" for suffix in (".json", ".stdout.txt", ".stderr.txt"))
        file.write_text(json.dumps(plan.as_dict()), encoding="utf-8")
        script = str(Path(iree_side.__file__).with_name(f"{name}.py"))
        command = Command((self.python, script, str(file)), str(Path.cwd()))
        outcome = self.supervisor.run(command, stdout=out, stderr=err, timeout=_TIMEOUT_SECONDS)
        if outcome.exit_code == 0:
            return kind.from_dict(json.loads(out.read_text(encoding="utf-8")))
        lines = err.read_text(encoding="utf-8", errors="replace").splitlines()
        ended = f"it crashed with {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        said = next((line for line in reversed(lines) if line.strip()), ended)
        why = f"it ran longer than {_TIMEOUT_SECONDS:g} s" if outcome.timed_out else said
        raise (UsageError if outcome.exit_code == _REFUSED else GauntletError)(f"{what}: {why}", CHOOSE_INPUTS)
