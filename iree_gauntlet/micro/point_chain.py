"""The steps of a point: export, import, compile and threshold of each variant, then one benchmark of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import bench, micro
from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.bench.chain import PLAN_FILE, hash_of_files
from iree_gauntlet.bench.module_steps import ModuleSteps
from iree_gauntlet.bench.registry import shown
from iree_gauntlet.cases import MAIN, Origin, Stage
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import blocked
from iree_gauntlet.engine.plan_context import DEFAULT_TIMEOUTS
from iree_gauntlet.engine.plan_places import Places
from iree_gauntlet.micro.points import torch_side, torch_sides
from iree_gauntlet.steps import CacheLookup, Command, Resources, Step, StepInput, step_id
from iree_gauntlet.toolchains.toolchain import COMPILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.bench.torch_python import TorchPython
    from iree_gauntlet.engine.plan_context import PlanContext
    from iree_gauntlet.micro.configuration import Variant
    from iree_gauntlet.micro.points import Point
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["DIALECT", "MEMORY", "PROGRAM", "TRACE", "PointChain", "builder_identity"]

DIALECT = "micro"
PROGRAM = "main.onnx"
# What stands before a variant's label in the role of a benchmark step that profiles it.
TRACE = "trace."
MEMORY = "memory."
_BUILDER = "build_variant.py"
_OWN_CODE = (Path(micro.__file__).parent, Path(bench.__file__).parent)


def builder_identity() -> str:
    """Changes where the toolkit's own code that makes models may have changed."""
    return " ".join(hash_of_files(sorted(folder.glob("*.py")), folder) for folder in _OWN_CODE)


@dataclass(frozen=True, slots=True)
class PointChain:
    """The steps of one point.

    Attributes:
        point: what is measured.
        config: the file that it is written in.
        plugins: files with further recipes and architectures, absolute.
        target: what it is compiled for.
        device: what it runs on.
        flags: for the compiler, whatever the recipe.
        context: what planning knows of the machine.
        toolchain: compiler and runtime.
        torch: what makes the models.
        builder: identity of the code that makes them (`builder_identity`).
    """

    point: Point
    config: Path
    plugins: tuple[Path, ...]
    target: Target
    device: str
    flags: tuple[str, ...]
    context: PlanContext
    toolchain: Toolchain
    torch: TorchPython
    builder: str

    @property
    def id(self) -> str:
        """`small_bf16_linear/1024-1024-2048@cpu`."""
        return f"{self.point.name}@{self.target.name}"

    def exports(self) -> tuple[Step, ...]:
        """Makes and exports the models, each once; one that is refused is skipped with the reason."""
        refusals = {torch_side(variant).label: variant.refusal for variant in self.point.variants}
        return tuple(
            replace(self.step(Stage.EXPORT, label), skip=refusals[label]) if refusals[label] else self._export(label)
            for label in torch_sides(self.point.variants)
        )

    def export_plan(self, label: str, folder: str) -> dict[str, object]:
        """What the builder is told."""
        side = torch_sides(self.point.variants)[label]
        model, shape = self.point.model, self.point.shape
        return {
            "plugins": [str(path) for path in self.plugins],
            "model_type": model.model_type.text,
            "config": str(model.config) if model.config else None,
            "m": shape.m,
            "k": shape.k,
            "n": shape.n,
            "dtype": model.dtype,
            "quantization": side.quantization,
            "sparsity": side.sparsity,
            "output": folder,
        }

    def exported(self, label: str) -> Path:
        """The folder of what torch made."""
        return Path(self.step(Stage.EXPORT, label).folder)

    def modules(self, hashes: Mapping[str, Mapping[str, str]]) -> tuple[Step, ...]:
        """Imports, compiles and checks every variant whose model was exported.

        Args:
            hashes: SHA-256 of the program and its weights by file name, by label of what torch made.
        """
        made = ModuleSteps(self.context, self.toolchain, self.target)
        steps: list[Step] = []
        imports: dict[str, Step] = {}
        for variant in self.point.variants:
            label = torch_side(variant).label
            if label not in hashes:
                continue
            onnx = self.exported(label) / PROGRAM
            content = make_key(hashes[label])
            if label not in imports:
                plain = made.importing(self.step(Stage.IMPORT, label), onnx, content)
                imports[label] = replace(plain, needs=(step_id(self.id, Stage.EXPORT, label),))
                steps.append(imports[label])
            flags = (*self.flags, *variant.flags)
            name = f"{self.point.model.name}_{variant.label}"
            planned = self.step(Stage.COMPILE, variant.label)
            compiled = made.compiling(planned, name, variant.label, flags, onnx, content, imports[label])
            lacking = self.context.translate(flags, COMPILE).unknown
            if lacking:
                # The recipe's flag and not the program is what this compiler cannot read.
                compiled = blocked(compiled, f"{lacking[0].message} ({lacking[0].hint})")
            steps += [compiled, self._check(variant, compiled, imports[label])]
        return tuple(steps)

    def benchmark(self, variants: Sequence[Variant]) -> Step:
        """Measures variants beside each other; it takes the machine for each block of rounds by itself."""
        step = self.step(Stage.BENCHMARK)
        inputs = tuple(StepInput("module", str(self.module(variant))) for variant in variants)
        resources = Resources(cores=0, device=self.device)
        return replace(step, inputs=inputs, cache=CacheLookup(reason="runs every time"), resources=resources)

    def profile(self, variant: Variant, kind: str) -> Step:
        """Traces a variant (`TRACE`), or watches its memory (`MEMORY`)."""
        step = self.step(Stage.BENCHMARK, f"{kind}{variant.label}")
        resources = Resources(cores=1, exclusive=True, device=self.device)
        inputs = (StepInput("module", str(self.module(variant))),)
        return replace(step, inputs=inputs, cache=CacheLookup(reason="runs every time"), resources=resources)

    def module(self, variant: Variant) -> Path:
        """The compiled module of a variant."""
        return Path(self.step(Stage.COMPILE, variant.label).folder) / "module.vmfb"

    def imported(self, variant: Variant) -> Path:
        """The folder of the program and the archive of weights of a variant."""
        return Path(self.step(Stage.IMPORT, torch_side(variant).label).folder)

    def step(self, stage: Stage, role: str = MAIN) -> Step:
        """What all steps of the point have in common."""
        entry = self.point.model
        return Step(
            id=step_id(self.id, stage, role),
            chain=self.id,
            dialect=DIALECT,
            model=entry.name,
            submodel=self.point.shape.label,
            target=self.target.name,
            sku="",
            stage=stage,
            role=role,
            folder=Places(self.context.run_dir, {}).folder(self.id, stage, role),
            timeout=DEFAULT_TIMEOUTS[stage],
            origin=Origin(f"{shown(self.config)}:{entry.line}", entry.name),
        )

    def _export(self, label: str) -> Step:
        step = self.step(Stage.EXPORT, label)
        plan = self.export_plan(label, "")
        config = self.point.model.config
        asked = {name: str(plan[name]) for name in plan if name not in ("plugins", "config", "output")}
        ingredients = {
            "kind": "export of a recipe",
            "program": make_key({str(number): hash_file(path) for number, path in enumerate(self.plugins)}),
            **asked,
            "config": hash_file(config) if config else "",
            "builder": self.builder,
            "torch": self.torch.identity,
        }
        argv = (self.torch.path, "-B", str(_OWN_CODE[0] / _BUILDER), f"{step.folder}/{PLAN_FILE}")
        found = self.context.lookup(step.id, ingredients)
        return replace(
            step,
            command=Command(argv, step.folder),
            inputs=tuple(StepInput("program", str(path)) for path in (*self.plugins, *([config] if config else []))),
            cache=replace(found, ingredients=tuple(ingredients.items())),
        )

    def _check(self, variant: Variant, compiled: Step, imported: Step) -> Step:
        inputs = (
            StepInput("module", compiled.output("module")),
            StepInput("parameters", imported.output("parameters")),
        )
        return replace(
            self.step(Stage.THRESHOLD, variant.label),
            needs=(compiled.id,),
            inputs=inputs,
            cache=CacheLookup(reason="runs every time"),
            resources=Resources(cores=1, device=self.device),
        )
