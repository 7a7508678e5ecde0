"""The steps of a benchmark: export, import, compile, threshold, benchmark; each fully described before it runs.

What the export makes decides on the steps after it (a generative model is two programs), so that they are planned
once it is there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.bench.discovery import sources
from iree_gauntlet.bench.module_steps import ModuleSteps
from iree_gauntlet.bench.registry import shown
from iree_gauntlet.cases import MAIN, Origin, Stage
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan_context import DEFAULT_TIMEOUTS
from iree_gauntlet.engine.plan_places import Places
from iree_gauntlet.steps import CacheLookup, Command, Resources, Step, StepInput, step_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.bench.build_folder import Build
    from iree_gauntlet.bench.options import BenchOptions
    from iree_gauntlet.bench.registry import BenchmarkModel
    from iree_gauntlet.bench.torch_python import TorchPython
    from iree_gauntlet.engine.plan_context import PlanContext
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["AGAINST", "DIALECT", "PLAN_FILE", "TRACE", "Chain", "hash_of_files", "variant"]

DIALECT = "bench"
PLAN_FILE = "plan.json"
# Roles of benchmark steps that follow the main one.
AGAINST = "against"
TRACE = "trace"
_OWN_CODE = Path(__file__).parent


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


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps of one benchmark.

    Attributes:
        model: what is benchmarked.
        folders: models folders, absolute.
        options: of the command line.
        target: what it is compiled for.
        device: what it runs on.
        flags: for the compiler.
        context: what planning knows of the machine.
        toolchain: compiler and runtime.
        torch: what builds the model.
    """

    model: BenchmarkModel
    folders: tuple[Path, ...]
    options: BenchOptions
    target: Target
    device: str
    flags: tuple[str, ...]
    context: PlanContext
    toolchain: Toolchain
    torch: TorchPython

    @property
    def id(self) -> str:
        """`bert/tiny@cpu`."""
        return f"{self.model.name}/{variant(self.options)}@{self.target.name}"

    @property
    def origin(self) -> Origin:
        """Where the model is written."""
        return Origin(str(shown(self.model.file)), self.model.name)

    def export(self) -> Step:
        """Makes the model with torch and exports it."""
        step = self._step(Stage.EXPORT)
        ingredients = self._export_ingredients()
        argv = (self.torch.path, "-B", str(_OWN_CODE / "build_model.py"), f"{step.folder}/{PLAN_FILE}")
        found = self.context.lookup(step.id, ingredients)
        return replace(
            step,
            command=Command(argv, step.folder, self.options.env),
            inputs=tuple(StepInput("program", str(path)) for path in sources(self.model)),
            cache=replace(found, ingredients=tuple(ingredients.items())),
        )

    def export_plan(self, folder: str) -> dict[str, object]:
        """What `build_model.py` is told."""
        options = self.options
        return {
            "models_dirs": [str(path) for path in self.folders],
            "model": self.model.name,
            "config": options.config or None,
            "training": options.training,
            "layers": options.layers,
            "microbatch": options.microbatch,
            "dataformat": options.dataformat.value,
            "accumulate": options.training and options.microbatch_count > 1,
            "output": folder,
        }

    def after_export(self, build: Build, hashes: Mapping[str, str]) -> tuple[Step, ...]:
        """The steps after the export.

        Args:
            build: what it made, which lies in its folder.
            hashes: SHA-256 of its programs and their weights, by file name.
        """
        exported = Path(self.export().folder)
        made = ModuleSteps(self.context, self.toolchain, self.target, self.options.env)
        steps: list[Step] = []
        needs = (step_id(self.id, Stage.EXPORT),)
        runnable: list[StepInput] = []
        compiles: list[str] = []
        for number, program in enumerate(build.programs):
            role = program.name if number else MAIN
            content = make_key({name: found for name, found in hashes.items() if name.startswith(program.onnx)})
            onnx = exported / program.onnx
            imported = replace(made.importing(self._step(Stage.IMPORT, role), onnx, content), needs=needs)
            name = f"{self.model.name}_{variant(self.options)}"
            compiled = made.compiling(self._step(Stage.COMPILE, role), name, role, self.flags, onnx, content, imported)
            steps += [imported, compiled]
            compiles.append(compiled.id)
            runnable += [
                StepInput("module", compiled.output("module")),
                StepInput("parameters", imported.output("parameters")),
            ]
        files = [item for program in build.programs for item in (*program.inputs, *program.outputs)]
        inputs = (*runnable, *(StepInput("input", str(exported / item.file)) for item in files))
        ready = replace(self._step(Stage.THRESHOLD), needs=tuple(compiles), inputs=inputs)
        steps.append(self._run(ready, exclusive=False))
        loop = replace(self._step(Stage.BENCHMARK), needs=(ready.id,), inputs=inputs)
        steps.append(self._run(loop, exclusive=True))
        if self.options.trace != "none":
            traced = replace(self._step(Stage.BENCHMARK, TRACE), needs=(loop.id,), inputs=inputs)
            steps.append(self._run(traced, exclusive=True))
        if self.options.against:
            # It takes the machine for each block of its rounds by itself.
            beside = replace(self._step(Stage.BENCHMARK, AGAINST), needs=(loop.id,), inputs=inputs)
            steps.append(replace(self._run(beside, exclusive=False), resources=Resources(cores=0)))
        return tuple(steps)

    def _run(self, step: Step, *, exclusive: bool) -> Step:
        resources = Resources(cores=1, exclusive=exclusive, device=self.device)
        return replace(step, cache=CacheLookup(reason="runs every time"), resources=resources)

    def _step(self, stage: Stage, role: str = MAIN) -> Step:
        places = Places(self.context.run_dir, {})
        return Step(
            id=step_id(self.id, stage, role),
            chain=self.id,
            dialect=DIALECT,
            model=self.model.name,
            submodel=variant(self.options),
            target=self.target.name,
            sku="",
            stage=stage,
            role=role,
            folder=places.folder(self.id, stage, role),
            timeout=DEFAULT_TIMEOUTS[stage],
            origin=self.origin,
        )

    def _export_ingredients(self) -> dict[str, str]:
        plan = self.export_plan("")
        asked = {name: str(plan[name]) for name in plan if name not in ("models_dirs", "output")}
        return {
            "kind": "export",
            "program": hash_of_files(sources(self.model), self.model.file.parent),
            **asked,
            "builder": hash_of_files(sorted(_OWN_CODE.glob("*.py")), _OWN_CODE),
            "torch": self.torch.identity,
            "environment": " ".join(f"{name}={value}" for name, value in self.options.env),
        }


def hash_of_files(paths: Sequence[Path], root: Path) -> str:
    """One for several files, by their names below a folder and their content."""
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()
