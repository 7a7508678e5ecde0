"""Starting the programs that measure, in the toolchain's own Python, and reading their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.bench.module_steps import PARAMETERS
from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.engine.plan_places import Places
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.steps import Command
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.bench.build_folder import Array, Build, Program
    from iree_gauntlet.bench.chain import Chain
    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.steps import Step

__all__ = ["FUNCTION", "MODULE_WORKER", "Answer", "Workers", "ask", "planned_command"]

# What torch.onnx.export calls its graph, and so the importer the function.
FUNCTION = "main_graph"
MODULE_WORKER = "measure_module.py"
_GENERATIVE_WORKER = "measure_generative.py"
_PIPELINE_WORKER = "measure_pipeline.py"
_OWN_CODE = Path(__file__).parent
_TOOL = "the measuring program"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a measuring program came to.

    Attributes:
        outcome: how its process ended.
        figures: its answer; None where it failed.
        failure: the result of its step where it failed.
        command: what was started.
    """

    outcome: Outcome
    figures: Mapping[str, Any] | None
    failure: Result
    command: Command


def planned_command(
    step: Step,
    python: str,
    script: Path,
    plan: Mapping[str, Any],
    name: str = "",
    env: tuple[tuple[str, str], ...] = (),
) -> Command:
    """The command of a measuring program, whose plan is written into the step's folder."""
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}plan.json"
    write_atomic(path, json.dumps(dict(plan), indent=1))
    return Command((python, "-B", str(script), str(path)), step.folder, env)


def ask(step: Step, processes: Processes, command: Command, name: str = "") -> Answer:
    """Runs a measuring program to its end.

    Args:
        step: gives folder and time limit.
        processes: starts it.
        command: of it.
        name: prefix of its files in the step's folder.
    """
    outcome = processes.run(step, command, name=name)
    if outcome.exit_code == 0:
        try:
            return Answer(outcome, json.loads(processes.stdout(step, name)), Result(Verdict.PASSED), command)
        except ValueError:
            failure = Result(Verdict.ERROR, f"{_TOOL} gave no answer", tail=tuple(outcome.tail))
            return Answer(outcome, None, failure, command)
    lines = [line for line in processes.error_lines(step, name) if line.strip()]
    # Its last line says why; what other libraries say stands before it.
    reason = shorten(lines[-1]) if lines and not outcome.signal else ""
    failure = after_process(step, outcome, lines, tool=_TOOL, reason=reason)
    return Answer(outcome, None, failure, command)


@dataclass(frozen=True, slots=True)
class Workers:
    """The measuring programs of one benchmark.

    Attributes:
        chain: what is benchmarked.
        build: as it was exported.
        devices: that it runs on, one for each context.
    """

    chain: Chain
    build: Build
    devices: tuple[str, ...]

    def module_path(self, number: int) -> str:
        """The compiled module of a program."""
        return f"{self._folder(Stage.COMPILE, number)}/module.vmfb"

    def parameters_path(self, number: int) -> str:
        """The archive of a program's weights."""
        return f"{self._folder(Stage.IMPORT, number)}/{PARAMETERS}"

    @property
    def exported(self) -> Path:
        """The folder of what the builder made."""
        return Path(Places(self.chain.context.run_dir, {}).folder(self.chain.id, Stage.EXPORT))

    def single_call(self, number: int, outputs: Path) -> dict[str, Any]:
        """A plan for one call of a program, which keeps its outputs."""
        return {**self._plan(number, self.devices[:1], 1), "warm_up_calls": 0, "outputs": str(outputs)}

    def loop(self, calls: int) -> tuple[str, dict[str, Any]]:
        """The program that measures, and its plan.

        Args:
            calls: of the model, over all devices; generations of a generative one.
        """
        if self.build.generation is not None:
            return _GENERATIVE_WORKER, self._generative_plan(calls)
        plan = self._loop_plan(calls)
        if not self.build.has_host_modules:
            return MODULE_WORKER, plan
        options = self.chain.options
        model = {
            "torch_paths": list(self.chain.torch.paths),
            "models_dirs": [str(path) for path in self.chain.folders],
            "model": self.chain.model.name,
            "config": options.config or None,
            "training": options.training,
            "layers": options.layers,
            "microbatch": options.microbatch,
            "dataformat": options.dataformat.value,
            "host_inputs": self._arrays(self.build.host_inputs),
        }
        return _PIPELINE_WORKER, {**plan, **model}

    def start(self, step: Step, processes: Processes, script: str, plan: Mapping[str, Any], name: str = "") -> Answer:
        """Runs a measuring program to its end.

        Args:
            step: gives folder and time limit.
            processes: starts it.
            script: its file name.
            plan: what it is told.
            name: prefix of its files in the step's folder.
        """
        return ask(step, processes, self.command(step, script, plan, name), name)

    def command(self, step: Step, script: str, plan: Mapping[str, Any], name: str = "") -> Command:
        """The command of a measuring program, whose plan is written into the step's folder."""
        home = _OWN_CODE if script == _PIPELINE_WORKER else Path(iree_side.__file__).parent
        return planned_command(
            step, self.chain.toolchain.compiler.python, home / script, plan, name, self.chain.options.env
        )

    def _folder(self, stage: Stage, number: int) -> str:
        role = self.build.programs[number].name if number else "main"
        return Places(self.chain.context.run_dir, {}).folder(self.chain.id, stage, role)

    def _arrays(self, arrays: Sequence[Array]) -> list[dict[str, str]]:
        return [{"file": str(self.exported / array.file), "type": array.type} for array in arrays]

    def _program(self, number: int) -> dict[str, Any]:
        return {
            "modules": [self.module_path(number)],
            "parameters": [["model", self.parameters_path(number)]],
            "function": FUNCTION,
        }

    def _plan(self, number: int, devices: Sequence[str], calls: int) -> dict[str, Any]:
        program: Program = self.build.programs[number]
        return {
            **self._program(number),
            "devices": list(devices),
            "inputs": self._arrays(program.inputs),
            "calls": calls,
            "warm_up_calls": 1,
            "outputs": "",
        }

    def _loop_plan(self, calls: int) -> dict[str, Any]:
        plan = {**self._plan(0, self.devices, calls), "in_flight": self.chain.options.microbatch_count}
        if self.build.kind == "training":
            # The loss comes back, the gradients stay, as an optimiser on the device would take them.
            plan["fetch"] = [0]
            count = len(self.build.gradients)
            if self.chain.options.microbatch_count > 1:
                plan["carry"] = {"outputs": 1, "inputs": len(plan["inputs"]) - count, "count": count}
        return plan

    def _generative_plan(self, generations: int) -> dict[str, Any]:
        made = self.build.generation
        assert made is not None, "asked for a generative model alone"
        return {
            "device": self.devices[0],
            "prefill": {**self._program(0), "inputs": self._arrays(self.build.programs[0].inputs)},
            "decode": self._program(1),
            "position": made.position,
            "tokens": made.tokens,
            "state": made.state,
            "carried": made.carried,
            "generations": generations,
            "warm_up": 1,
            "outputs": "",
        }
