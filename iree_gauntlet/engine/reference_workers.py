"""The programs that run ONNX models in a reference: in processes of their own, which may crash or hang."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.steps import Command
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.engine.processes.supervisor import Supervisor


CHOOSE_INPUTS = "Choose sizes and inputs that suit the model (`onnx_import.shapes`, `inputs`): docs/start/own-model.md"
_TIMEOUT_SECONDS = 1800.0
# What a worker ends with where the model, the sizes or the inputs are no use.
_REFUSED = 2


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

    def answer(self, name: str, what: str, plan: Mapping[str, Any]) -> Any:
        """What a worker of a plan says.

        Args:
            name: its script's.
            what: does not happen where it fails, for messages.
            plan: see the script.

        Raises:
            UsageError: the plan cannot be used with this model.
            GauntletError: no reference can run the model, or the worker crashed.
        """
        file, out, err = (self.folder / f"{name}{suffix}" for suffix in (".json", ".stdout.txt", ".stderr.txt"))
        file.write_text(json.dumps(plan), encoding="utf-8")
        script = str(Path(iree_side.__file__).with_name(f"{name}.py"))
        command = Command((self.python, script, str(file)), str(Path.cwd()))
        outcome = self.supervisor.run(command, stdout=out, stderr=err, timeout=_TIMEOUT_SECONDS)
        if outcome.exit_code == 0:
            return json.loads(out.read_text(encoding="utf-8"))
        lines = err.read_text(encoding="utf-8", errors="replace").splitlines()
        ended = f"it crashed with {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        said = next((line for line in reversed(lines) if line.strip()), ended)
        why = f"it ran longer than {_TIMEOUT_SECONDS:g} s" if outcome.timed_out else said
        raise (UsageError if outcome.exit_code == _REFUSED else GauntletError)(f"{what}: {why}", CHOOSE_INPUTS)
