"""The steps of a benchmark: export, import, compile, threshold, benchmark; each fully described before it runs.

What the export makes decides on the steps after it (a generative model is two programs), so that they are planned
once it is there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.cases import MAIN, Origin, Stage
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import Step, StepInput
from iree_gauntlet.torch_models.discovery import sources
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF
from iree_gauntlet.torch_models.measuring_worker import GENERATIVE_WORKER, MODULE_WORKER, PIPELINE_WORKER
from iree_gauntlet.torch_models.torch_chain import TorchChain, hash_of_files, runnable_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.torch_models.bench_options import BenchOptions
    from iree_gauntlet.torch_models.build_folder import Build
    from iree_gauntlet.torch_models.build_plan import BuildPlan
    from iree_gauntlet.torch_models.model_registry import BenchmarkModel
    from iree_gauntlet.torch_models.torch_chain import CompiledProgram


DIALECT = "bench"
# Roles of benchmark steps that follow the main one.
AGAINST = "against"
TRACE = "trace"


def variant(options: BenchOptions) -> str:
    """What tells two benchmarks of a model apart, in short: `tiny`, `base-training-Fp16-O3`."""
    words = [options.config or "model"]
    words += ["training"] if options.training else []
    words += [options.dataformat.value] if options.dataformat.value != "Fp32" else []
    words += [options.math_fidelity] if options.math_fidelity != "HiFi4" else []
    words += [] if options.backend_opt_level is None else [f"O{options.backend_opt_level}"]
    words += [] if options.layers is None else [f"{options.layers}layers"]
    words += [] if options.microbatch is None else [f"mb{options.microbatch}"]
    words += [] if options.microbatch_count == 1 else [f"{options.microbatch_count}mbs"]
    words += [] if options.chips == 1 else [f"{options.chips or 'all'}chips"]
    return "-".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(TorchChain):
    """The steps of one benchmark."""

    model: BenchmarkModel
    plan: BuildPlan
    options: BenchOptions

    dialect: ClassVar[str] = DIALECT
    builder: ClassVar[str] = "iree_gauntlet.torch_models.building"

    @property
    def names(self) -> tuple[str, str]:
        """Of the model, and what tells this benchmark from others."""
        return self.model.name, variant(self.options)

    @property
    def origin(self) -> Origin:
        """Where the model is written."""
        return Origin(str(shown(self.model.file)), self.model.name)

    def export(self) -> Step:
        """Makes the model with torch and exports it."""
        files = sources(self.model)
        ingredients = {"kind": "export", "program": hash_of_files(files, self.model.file.parent)}
        return self.exporting(MAIN, self.plan, ingredients, files)

    def after_export(self, build: Build, hashes: Mapping[str, str]) -> tuple[Step, ...]:
        """The steps after the export."""
        steps: list[Step] = []
        runnable: list[StepInput] = []
        compiles: list[str] = []
        for number, program in enumerate(build.programs):
            role = program.name if number else MAIN
            onnx = self.exported() / program.onnx
            content = make_key({name: found for name, found in hashes.items() if name.startswith(program.onnx)})
            imported = self.importing(role, onnx, content, MAIN)
            compiled = self.compiling(role, "_".join(self.names), self.flags, onnx, content, imported)
            steps += [imported, compiled]
            compiles.append(compiled.id)
            runnable += runnable_files(compiled, imported)
        files = [item for program in build.programs for item in (*program.inputs, *program.outputs)]
        inputs = (*runnable, *(StepInput("input", str(self.exported() / item.file)) for item in files))
        ready = self.ran(self.step(Stage.THRESHOLD), inputs, tuple(compiles))
        loop = self.ran(self.step(Stage.BENCHMARK), inputs, (ready.id,), exclusive=True)
        steps += [ready, loop]
        if self.options.trace != "none":
            steps.append(self.ran(self.step(Stage.BENCHMARK, TRACE), inputs, (loop.id,), exclusive=True))
        if self.options.against:
            # It takes the machine for each block of its rounds by itself.
            steps.append(self.ran(self.step(Stage.BENCHMARK, AGAINST), inputs, (loop.id,), cores=0))
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class Workers:
    """The measuring programs of one benchmark.

    Attributes:
        contraction_type: type that the compiler narrows the inputs of matrix products to; empty for none.
    """

    chain: Chain
    build: Build
    devices: tuple[str, ...]
    contraction_type: str

    @property
    def narrowed(self) -> float:
        """How much larger the roundoff of contractions' inputs is than that of the data format; at least 1."""
        own = UNIT_ROUNDOFF[self.chain.options.dataformat.element_type]
        return max(1.0, UNIT_ROUNDOFF.get(self.contraction_type, own) / own)

    @property
    def exported(self) -> Path:
        """The folder of what the builder made."""
        return self.chain.exported()

    def compiled(self, number: int) -> CompiledProgram:
        """A program of the build."""
        program = self.build.programs[number]
        role = program.name if number else MAIN
        return replace(self.chain.compiled(program, role, role), exported=self.exported)

    def loop(self, calls: int) -> tuple[str, dict[str, Any]]:
        """The program that measures, and its plan."""
        if self.build.generation is not None:
            return GENERATIVE_WORKER, self._generative_plan(calls)
        plan = {**self.compiled(0).plan(self.devices, calls), "in_flight": self.chain.options.microbatch_count}
        if self.build.kind == "training":
            # The loss comes back, the gradients stay, as an optimiser on the device would take them.
            plan["fetch"] = [0]
            count = len(self.build.gradients)
            if self.chain.options.microbatch_count > 1:
                plan["carry"] = {"outputs": 1, "inputs": len(plan["inputs"]) - count, "count": count}
        if not self.build.has_host_modules:
            return MODULE_WORKER, plan
        model = {
            "torch_paths": list(self.chain.torch.paths),
            "builder": asdict(self.chain.plan),
            "host_inputs": self.compiled(0).arrays(self.build.host_inputs),
        }
        return PIPELINE_WORKER, {**plan, **model}

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
