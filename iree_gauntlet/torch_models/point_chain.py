"""The steps of a point: an architecture at a shape, in the variants that recipes make of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Origin
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import blocked
from iree_gauntlet.settings import shown
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Step, StepInput
from iree_gauntlet.toolchains.toolchain import COMPILE
from iree_gauntlet.torch_models.build_files import VariantPlan
from iree_gauntlet.torch_models.formats import Tolerance, find_tolerance
from iree_gauntlet.torch_models.plugins import BUILTIN_FILES
from iree_gauntlet.torch_models.torch_chain import CompiledProgram, TorchChain, list_runnable_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.torch_models.build_files import BuildRecord
    from iree_gauntlet.torch_models.configuration import SweepPoint, Variant


DIALECT = "micro"
_PROGRAM = "main.onnx"
# The role of a benchmark step that traces a variant: this, and the variant's label.
TRACE = "trace."
# The worst value of an output, in units of the tolerance of its rms (see `formats.py`).
_PEAK = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PointChain(TorchChain):
    """The steps of one point; its flags are those of every recipe."""

    point: SweepPoint
    config: Path
    plugins: tuple[Path, ...]

    dialect: ClassVar[str] = DIALECT
    builder: ClassVar[str] = "building_variant"
    loaded: ClassVar[tuple[Path, ...]] = BUILTIN_FILES

    @property
    def names(self) -> tuple[str, str]:
        """Of the entry, and its shape."""
        return self.point.model.name, self.point.shape.label

    @property
    def origin(self) -> Origin:
        """Where the entry is written."""
        entry = self.point.model
        return Origin(f"{shown(self.config)}:{entry.line}", entry.name)

    def exports(self) -> tuple[Step, ...]:
        """Makes and exports the models, each once; one that is refused is skipped with the reason."""
        config = self.point.model.config
        files = (*self.plugins, *([config] if config else []))
        ingredients = {
            "kind": "export of a recipe",
            "program": make_key({str(number): hash_file(path) for number, path in enumerate(self.plugins)}),
            "config": hash_file(config) if config else "",
        }
        refusals = {variant.torch_label: variant.refusal for variant in self.point.variants}
        return tuple(
            replace(self.step(Stage.EXPORT, label), skip=refusal)
            if refusal
            else self.exporting(label, self.plan(label), ingredients, files)
            for label, refusal in refusals.items()
        )

    def plan(self, label: str) -> VariantPlan:
        """The builder's plan, but for the folder."""
        recipes = {variant.torch_label: variant.torch_recipes for variant in self.point.variants}
        quantization, sparsity = recipes[label]
        model, shape = self.point.model, self.point.shape
        return VariantPlan(
            plugins=tuple(map(str, self.plugins)),
            model_type=model.model_type.text,
            config=str(model.config) if model.config else None,
            m=shape.m,
            k=shape.k,
            n=shape.n,
            dtype=model.dtype,
            quantization=quantization,
            sparsity=sparsity,
        )

    def modules(self, hashes: Mapping[str, Mapping[str, str]]) -> tuple[Step, ...]:
        """Imports, compiles and checks every variant whose model was exported; `hashes` as of a session."""
        steps: list[Step] = []
        imports: dict[str, Step] = {}
        for variant in self.point.variants:
            label = variant.torch_label
            if label not in hashes:
                continue
            onnx = self.exported(label) / _PROGRAM
            content = make_key(hashes[label])
            if label not in imports:
                imports[label] = self.importing(label, onnx, content, label)
                steps.append(imports[label])
            flags = (*self.flags, *variant.flags)
            name = f"{self.point.model.name}_{variant.label}"
            compiled = self.compiling(variant.label, name, flags, onnx, content, imports[label])
            lacking = self.context.translate(flags, COMPILE).unknown
            if lacking:
                # The recipe's flag and not the program is what this compiler cannot read.
                compiled = blocked(compiled, f"{lacking[0].message} ({lacking[0].hint})")
            files = list_runnable_files(compiled, imports[label])
            steps += [compiled, self.running(Stage.THRESHOLD, files, (compiled.id,), variant.label)]
        return tuple(steps)

    def benchmark(self, variants: Sequence[Variant]) -> Step:
        """Measures variants together."""
        return self.running_in_rounds([StepInput("module", str(self.module(variant))) for variant in variants])

    def profile(self, variant: Variant, kind: str) -> Step:
        """Traces a variant (`TRACE`), or watches its memory (`MEMORY_ROLE`)."""
        module = StepInput("module", str(self.module(variant)))
        return self.running(Stage.BENCHMARK, [module], role=f"{kind}{variant.label}")

    def made(self, variant: Variant, build: BuildRecord) -> CompiledProgram:
        """A variant as it was built and compiled."""
        return self.compiled(build.programs[0], variant.label, variant.torch_label)

    def allowed(self, variant: Variant, build: BuildRecord) -> Tolerance:
        """How far IREE's outputs may be from torch eager's for the same recipe.

        That of the data type, with what the recipe says of its own rounding (a value at a boundary of a quantisation
        may fall to either side).
        """
        recipe = variant.quantization.recipe
        plain = find_tolerance(self.point.model.dtype, max(1, build.contractions), recipe.contraction_type)
        more = max(recipe.tolerance, variant.sparsity.recipe.tolerance if variant.sparsity else 0.0)
        return Tolerance(plain.rms + more, plain.peak + _PEAK * more)

    def module(self, variant: Variant) -> Path:
        """The compiled module of a variant."""
        return self.folder(Stage.COMPILE, variant.label) / "module.vmfb"
