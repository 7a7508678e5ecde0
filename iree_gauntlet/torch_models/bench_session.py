"""One benchmark while it runs: what performs its steps, and what each leaves for those after it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, Stage, Verdict
from iree_gauntlet.engine.plan import blocked
from iree_gauntlet.results import Result
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE
from iree_gauntlet.torch_models import tracing
from iree_gauntlet.torch_models.against import AgainstPlace, iree_rounds, measure
from iree_gauntlet.torch_models.bench_chain import AGAINST, TRACE, Chain
from iree_gauntlet.torch_models.loop import run_loop
from iree_gauntlet.torch_models.measuring_worker import Workers
from iree_gauntlet.torch_models.model_check import check_outputs
from iree_gauntlet.torch_models.peers import shown
from iree_gauntlet.torch_models.torch_chain import Exporter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_folder import Build


# Of the coins that choose the order of rounds beside a peer: the same for everybody, so that a run can be repeated.
_SEED = 1


class BenchSession:
    """Performs the steps of a benchmark.

    Args:
        chain: what is benchmarked.
        devices: that it runs on.
        contraction_type: type that the compiler narrows the inputs of matrix products to; empty for none.
        notes: what the user is to know of the options.
    """

    def __init__(self, chain: Chain, devices: tuple[str, ...], contraction_type: str, notes: tuple[str, ...]) -> None:
        self.chain = chain
        self.notes = notes
        self._devices = devices
        self._contraction_type = contraction_type
        self._exporter: Exporter | None = None
        self._first_call_ms = 0.0
        self._call_ms: float | None = None

    @property
    def build(self) -> Build | None:
        """The model as it was exported; None before."""
        return self._exporter.builds.get(MAIN) if self._exporter else None

    def performers(self, session: Session[Any], workbench: Workbench) -> Mapping[Stage, Callable[[Step], Result]]:
        """What executes each stage; import and compile are the engine's own."""
        processes = session.processes
        self._exporter = exporter = Exporter(session, workbench)

        def benchmark(step: Step) -> Result:
            if step.role == AGAINST:
                return self._against(step, session)
            return self._trace(step, processes, workbench) if step.role == TRACE else self._loop(step, processes)

        return {
            Stage.EXPORT: lambda step: exporter.perform(step, self.chain.plan),
            Stage.THRESHOLD: lambda step: self._check(step, processes),
            Stage.BENCHMARK: benchmark,
        }

    def steps_after_export(self) -> tuple[Step, ...]:
        """What there is to do with what was exported; nothing where it was not."""
        if self.build is None or self._exporter is None:
            return ()
        steps = self.chain.after_export(self.build, self._exporter.hashes[MAIN])
        self._exporter.unshare(steps)
        reason = self._impossible(self.build)
        # Said once, and before anything is compiled.
        return (blocked(steps[-1], reason),) if reason else steps

    def _impossible(self, build: Build) -> str:
        """What an option asks of a kind of model that it does not have; empty where all is well."""
        options = self.chain.options
        if build.kind == "pipeline" and not build.has_host_modules:
            return ""
        what = {"generative": "a model that generates", "pipeline": "a model with modules on the host"}.get(
            build.kind, ""
        )
        if what and len(self._devices) > 1:
            return f"--chips {options.chips}: {what} runs on one device"
        if what and options.microbatch_count > 1:
            return f"--microbatch_count {options.microbatch_count}: {what} takes one at a time"
        return ""

    def _workers(self) -> Workers:
        assert self.build is not None, "exported before"
        return Workers(self.chain, self.build, self._devices)

    def _check(self, step: Step, processes: Processes) -> Result:
        result = check_outputs(step, self._workers(), processes, self._contraction_type)
        if result.statistics:
            self._first_call_ms = float(result.statistics["first_call_ms"])
        return result

    def _loop(self, step: Step, processes: Processes) -> Result:
        result = run_loop(step, self._workers(), processes, self._contraction_type, self._first_call_ms)
        if result.statistics and self.build is not None and self.build.generation is None:
            self._call_ms = float(result.statistics["latency_ms"]["p50"])
        return result

    def _against(self, step: Step, session: Session[Any]) -> Result:
        workers = self._workers()
        command = workers.command(step, *workers.loop(len(self._devices)))
        options = self.chain.options
        replaced = options.disturbed == "replace"
        place = AgainstPlace(asdict(self.chain.plan), self.chain.torch.path, options.env, replaced)
        peers = measure(session, options.against, iree_rounds(step, command), workers.exported, place, _SEED)
        lines = shown(peers)
        return Result(Verdict.PASSED, statistics={AGAINST: [peer.as_dict() for peer in peers]}, notes=tuple(lines))

    def _trace(self, step: Step, processes: Processes, workbench: Workbench) -> Result:
        workers, toolchain = self._workers(), self.chain.toolchain
        traces = []
        for number, program in enumerate(workers.build.programs):
            path = Path(step.folder) / program.name
            traced = tracing.traced_step(replace(step, folder=str(path)), self.chain, workers.compiled(number))
            flags = workbench.flags_of(BENCHMARK_MODULE)
            level = self.chain.options.trace
            traces.append(tracing.trace(traced, level, path, toolchain, processes, flags, call_ms=self._call_ms))
        lines = [line for made in traces for line in tracing.shown(made)]
        return Result(
            Verdict.PASSED,
            statistics={TRACE: [made.as_dict() for made in traces]},
            notes=tuple(lines),
            tool_seconds=sum(made.seconds for made in traces),
        )
