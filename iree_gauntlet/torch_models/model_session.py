"""Execution of a model's chain: torch builds and exports the model, then its programs are checked and measured."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.judging import judge_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.results import CacheUse, Result, shorten
from iree_gauntlet.stages import Stage
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE
from iree_gauntlet.torch_models import tracing
from iree_gauntlet.torch_models.build_files import BUILD_FILE, BuildRecord, read_build
from iree_gauntlet.torch_models.torch_chain import MODULE_WORKER, PLAN_FILE, make_worker_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.engine import Engine
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_files import ModelPlan
    from iree_gauntlet.torch_models.torch_chain import CompiledProgram, TorchChain


_LOG_FILES = ("stdout.txt", "stderr.txt", PLAN_FILE)
_EXIT_USAGE = 2
_TOOL_NAME = "the measuring program"


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The result of a measuring program.

    Attributes:
        figures: the program's output; None if the program failed, and then `failure` is the step's result.
        complete: adds facts about the process to a result of the step, and returns that.
    """

    step: Step
    outcome: Outcome
    figures: Mapping[str, Any] | None
    failure: Result
    complete: Callable[[Result], Result]


@dataclass(slots=True, kw_only=True)
class ModelSession(ABC):
    """The execution of a chain's steps; the engine itself performs import and compile.

    Attributes:
        builds: torch's builds, by role of the export.
        hashes: for each build, SHA-256 of programs and weights by file name.
    """

    chain: TorchChain
    session: Session[EventLog]
    workbench: Workbench
    builds: dict[str, BuildRecord] = field(default_factory=dict)
    hashes: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @abstractmethod
    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """Return the phases in order; each phase is planned when the previous phase has finished."""

    @abstractmethod
    def plan(self, role: str) -> ModelPlan:
        """Return the builder's plan of an export, without the folder."""

    @abstractmethod
    def check(self, step: Step) -> Result:
        """Run programs and compare their outputs."""

    @abstractmethod
    def benchmark(self, step: Step) -> Result:
        """Measure programs, or profile their time and memory."""

    def run(self, engine: Engine, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
        """Perform all phases, and return the verdicts of all steps, including previous ones."""
        for phase in self.phases():
            steps = phase()
            # Replace hard links into the cache by copies of the weights, because the onnx package rejects files that
            # have a second name.
            for step in (step for step in steps if step.stage is Stage.IMPORT and not step.cache.hit):
                for path in Path(step.inputs[0].path).parent.glob("*.onnx.data"):
                    if path.stat().st_nlink > 1:
                        copy = path.with_name(f"{path.name}.copy")
                        shutil.copyfile(path, copy)
                        copy.replace(path)
            engine.announce(steps)
            # Compiles may run in parallel, because their programs lack the weights; others load one model at a time.
            compiles = [step for step in steps if step.stage.row.makes_modules]
            for group in ([compiles] if compiles else []) + [[step] for step in steps if step not in compiles]:
                verdicts = engine.perform(group, verdicts)
        return verdicts

    def ask(self, step: Step, script: str, plan: Mapping[str, Any], name: str = "") -> WorkerResult:
        """Run a measuring program to its end; arguments as in `make_worker_command`."""
        processes = self.session.processes
        command = make_worker_command(self.chain, step, script, plan, name)
        outcome = processes.run(step, command, name=name)
        step = replace(step, command=step.command or command)
        figures, failure = None, Result(Verdict.PASSED)
        if outcome.exit_code == 0:
            try:
                figures = json.loads(processes.stdout(step, name))
            except ValueError:
                failure = Result(Verdict.ERROR, f"{_TOOL_NAME} did not respond", tail=tuple(outcome.tail))
        else:
            lines = [line for line in processes.error_lines(step, name) if line.strip()]
            # The last line is the reason; lines before it are messages of other libraries.
            reason = shorten(lines[-1]) if lines and not outcome.signal else ""
            failure = judge_process(step, outcome, lines, tool=_TOOL_NAME, reason=reason)

        def complete(result: Result) -> Result:
            return processes.complete(step, outcome, result)

        return WorkerResult(step, outcome, figures, complete(failure), complete)

    def run_once(
        self, step: Step, program: CompiledProgram, device: str, name: str = "", calls: int = 1
    ) -> WorkerResult:
        """Run a program with the builder's inputs; the outputs of the first call are written."""
        folder = Path(step.folder) / f"{name}outputs"
        folder.mkdir(parents=True, exist_ok=True)
        plan = program.plan([device], calls, warm_up_calls=0, outputs=str(folder))
        return self.ask(step, MODULE_WORKER, plan, name)

    def trace(
        self, step: Step, program: CompiledProgram, path: Path, level: str, call_ms: float | None
    ) -> tracing.Trace:
        """Trace a program in the step's folder; results go to `path` with different suffixes."""
        command = tracing.make_benchmark_command(
            self.chain.toolchain.runtime.benchmark_module, Path(step.folder), program, self.chain.device
        )
        traced_step = replace(step, command=replace(command, env=self.chain.context.env))
        flags, processes = self.workbench.get_flags(BENCHMARK_MODULE), self.session.processes
        return tracing.trace(traced_step, level, path, self.chain.toolchain, processes, flags, call_ms=call_ms)

    def export(self, step: Step) -> Result:
        """Fill the step's folder from the cache or by a build, and record the build and its hashes."""
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        key = make_key(dict(step.cache.ingredients))
        result = self._look_up(step, key)
        if result is None:
            with self.workbench.modules.hold_making_lock(key, self.session.cancelled) as waited:
                result = self._look_up(step, key) or self._run_builder(step, key)
            result = replace(result, waited_seconds=waited)
        if result.verdict is Verdict.PASSED:
            self.builds[step.role] = read_build(folder)
            self.hashes[step.role] = result.statistics["hashes"]
        return result

    def _look_up(self, step: Step, key: str) -> Result | None:
        entry = self.workbench.modules.lookup(key).entry
        if entry is None:
            return None
        try:
            for role in entry.files:
                self.workbench.modules.materialise(entry, role, Path(step.folder) / role)
        except EntryGoneError:
            return None
        return Result(
            Verdict.PASSED,
            command=self.session.processes.format_command(step),
            cache=CacheUse(True, key, "in the cache"),
            statistics={**entry.metadata["statistics"], "hashes": entry.metadata["hashes"]},
            notes=step.notes,
        )

    def _run_builder(self, step: Step, key: str) -> Result:
        cache, processes, folder = self.workbench.modules, self.session.processes, Path(step.folder)
        ingredients = dict(step.cache.ingredients)
        write_atomic(folder / PLAN_FILE, replace(self.plan(step.role), output=step.folder).to_json())
        use = CacheUse(False, key, cache.explain_miss(step.id, ingredients))
        outcome = processes.run(step)
        if outcome.exit_code != 0 or not (folder / BUILD_FILE).is_file():
            return processes.complete(step, outcome, replace(self._explain_failure(step, outcome), cache=use))
        # An unreadable build is not cached.
        build = read_build(folder)
        files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in _LOG_FILES}
        statistics = {
            "tool_seconds": outcome.seconds,
            "peak_rss_bytes": outcome.peak_rss_bytes,
            "parameter_count": build.parameter_count,
        }
        hashes = {name: hash_file(path) for name, path in files.items() if ".onnx" in name}
        publication = cache.publish(
            files,
            name=step.id,
            ingredients=ingredients,
            metadata={"statistics": statistics, "hashes": hashes, "command": processes.format_command(step)},
            created=datetime.now(UTC),
        )
        notes = (*step.notes, publication.note) if publication.note else step.notes
        result = Result(Verdict.PASSED, cache=use, statistics={**statistics, "hashes": hashes}, notes=notes)
        return processes.complete(step, outcome, result)

    def _explain_failure(self, step: Step, outcome: Outcome) -> Result:
        """Return the error for a model that is invalid or cannot be exported, which is not a failure of IREE."""
        if outcome.exit_code == 0:
            message = "the builder exited with code 0 but wrote no result: does the model exit the process?"
            return Result(Verdict.ERROR, message, tail=tuple(outcome.tail))
        lines = [line for line in self.session.processes.error_lines(step) if line.strip()]
        if outcome.exit_code in (1, _EXIT_USAGE) and lines and not outcome.signal:
            reason = next((line for line in lines if line.startswith("error: ")), lines[-1]).removeprefix("error: ")
            return Result(Verdict.ERROR, shorten(reason), tail=tuple(outcome.tail))
        return replace(judge_process(step, outcome, lines, tool="the export", reason=""), verdict=Verdict.ERROR)


def perform_by_chain(sessions: Mapping[str, ModelSession]) -> Mapping[Stage, Callable[[Step], Result]]:
    """Return functions for stages that the engine does not perform itself; each calls the chain's session."""
    return {
        Stage.EXPORT: lambda step: sessions[step.chain].export(step),
        Stage.THRESHOLD: lambda step: sessions[step.chain].check(step),
        Stage.BENCHMARK: lambda step: sessions[step.chain].benchmark(step),
    }
