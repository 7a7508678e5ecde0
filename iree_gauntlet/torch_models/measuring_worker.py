"""Starting the programs that measure, in the toolchain's own Python, and reading their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.steps import Command, Step
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.torch_models.torch_chain import TorchChain


MODULE_WORKER = "measure_module.py"
GENERATIVE_WORKER = "measure_generative.py"
PIPELINE_WORKER = "measure_pipeline.py"
_TOOL = "the measuring program"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a measuring program.

    Attributes:
        figures: its answer; None where it failed.
    """

    step: Step
    processes: Processes
    outcome: Outcome
    figures: Mapping[str, Any] | None
    failure: Result

    def complete(self, result: Result) -> Result:
        """A result of the step with what is known of the process."""
        return self.processes.complete(self.step, self.outcome, result)


def worker_command(chain: TorchChain, step: Step, script: str, plan: Mapping[str, Any], name: str = "") -> Command:
    """The command of a measuring program in the toolchain's own Python."""
    home = Path(__file__).parent if script == PIPELINE_WORKER else Path(iree_side.__file__).parent
    return planned_command(step, (chain.toolchain.compiler.python, "-B", str(home / script)), plan, name, chain.env)


def planned_command(
    step: Step, words: Sequence[str], plan: Mapping[str, Any], name: str = "", env: tuple[tuple[str, str], ...] = ()
) -> Command:
    """A command whose plan is written into the step's folder and named by its last word."""
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}plan.json"
    write_atomic(path, json.dumps(dict(plan), indent=1))
    return Command((*words, str(path)), step.folder, env)


def ask(
    chain: TorchChain, step: Step, processes: Processes, script: str, plan: Mapping[str, Any], name: str = ""
) -> Answer:
    """Runs a measuring program to its end; arguments as for `worker_command`."""
    command = worker_command(chain, step, script, plan, name)
    outcome = processes.run(step, command, name=name)
    step = replace(step, command=step.command or command)
    figures, failure = None, Result(Verdict.PASSED)
    if outcome.exit_code == 0:
        try:
            figures = json.loads(processes.stdout(step, name))
        except ValueError:
            failure = Result(Verdict.ERROR, f"{_TOOL} gave no answer", tail=tuple(outcome.tail))
    else:
        lines = [line for line in processes.error_lines(step, name) if line.strip()]
        # Its last line says why; what other libraries say is before it.
        reason = shorten(lines[-1]) if lines and not outcome.signal else ""
        failure = after_process(step, outcome, lines, tool=_TOOL, reason=reason)
    return Answer(step, processes, outcome, figures, processes.complete(step, outcome, failure))
