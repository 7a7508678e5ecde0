"""Starting the programs that measure, in the toolchain's own Python, and reading their answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, Verdict
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.steps import Command, Step
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models.bench_chain import Chain
    from iree_gauntlet.torch_models.build_folder import Build
    from iree_gauntlet.torch_models.torch_chain import CompiledProgram


MODULE_WORKER = "measure_module.py"
_GENERATIVE_WORKER = "measure_generative.py"
_PIPELINE_WORKER = "measure_pipeline.py"
_OWN_CODE = Path(__file__).parent
_TOOL = "the measuring program"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a measuring program.

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


def worker_words(toolchain: Toolchain, script: str) -> tuple[str, ...]:
    """The words that start a measuring program in a toolchain's own Python, but for its plan."""
    home = _OWN_CODE if script == _PIPELINE_WORKER else Path(iree_side.__file__).parent
    return (toolchain.compiler.python, "-B", str(home / script))


def planned_command(
    step: Step, words: Sequence[str], plan: Mapping[str, Any], name: str = "", env: tuple[tuple[str, str], ...] = ()
) -> Command:
    """The command of a measuring program, whose plan is written into the step's folder and named by its last word."""
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}plan.json"
    write_atomic(path, json.dumps(dict(plan), indent=1))
    return Command((*words, str(path)), step.folder, env)


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

    @property
    def exported(self) -> Path:
        """The folder of what the builder made."""
        return self.chain.exported()

    def compiled(self, number: int) -> CompiledProgram:
        """A program of the build."""
        program = self.build.programs[number]
        role = program.name if number else MAIN
        return replace(self.chain.compiled(program, role, role), exported=self.exported)

    def single_call(self, number: int, outputs: Path) -> dict[str, Any]:
        """A plan for one call of a program, which keeps its outputs."""
        return self.compiled(number).plan(self.devices[:1], 1, warm_up_calls=0, outputs=str(outputs))

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
        model = {
            "torch_paths": list(self.chain.torch.paths),
            "builder": asdict(self.chain.plan),
            "host_inputs": self.compiled(0).arrays(self.build.host_inputs),
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
        words = worker_words(self.chain.toolchain, script)
        return planned_command(step, words, plan, name, self.chain.options.env)

    def _loop_plan(self, calls: int) -> dict[str, Any]:
        plan = {**self.compiled(0).plan(self.devices, calls), "in_flight": self.chain.options.microbatch_count}
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
        prefill = self.compiled(0)
        return {
            "device": self.devices[0],
            "prefill": {**prefill.called, "inputs": prefill.arrays(prefill.program.inputs)},
            "decode": self.compiled(1).called,
            "position": made.position,
            "tokens": made.tokens,
            "state": made.state,
            "carried": made.carried,
            "generations": generations,
            "warm_up": 1,
            "outputs": "",
        }
