"""The steps of a point: an architecture at a shape, in the variants of its recipes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Origin
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import block_step
from iree_gauntlet.settings import format_path
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
# The role of a benchmark step that traces a variant is this text and the variant's label.
TRACE = "trace."
# The limit of an output's worst value is this factor times the tolerance of the output's rms (see `formats.py`).
_PEAK_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PointChain(TorchChain):
    """The steps of one point; its flags apply to all recipes."""

    point: SweepPoint
    config: Path
    plugins: tuple[Path, ...]

    dialect: ClassVar[str] = DIALECT
    builder: ClassVar[str] = "building_variant"
    loaded_files: ClassVar[tuple[Path, ...]] = BUILTIN_FILES

    @property
    def names(self) -> tuple[str, str]:
        """The names of the entry and its shape."""
        return self.point.model.name, self.point.shape.label

    @property
    def origin(self) -> Origin:
        """The source location of the entry."""
        entry = self.point.model
        return Origin(f"{format_path(self.config)}:{entry.line}", entry.name)

    def plan_exports(self) -> tuple[Step, ...]:
        """Plan the builds and exports of the models, each once; unsupported models are skipped with the reason."""
        config = self.point.model.config
        files = (*self.plugins, *([config] if config else []))
        ingredients = {
            "kind": "export of a recipe",
            "program": make_key({str(number): hash_file(path) for number, path in enumerate(self.plugins)}),
            "config": hash_file(config) if config else "",
        }
        refusals = {variant.torch_key: variant.refusal for variant in self.point.variants}
        return tuple(
            replace(self.step(Stage.EXPORT, label), skip=refusal)
            if refusal
            else self.plan_export(label, self.plan(label), ingredients, files)
            for label, refusal in refusals.items()
        )

    def plan(self, label: str) -> VariantPlan:
        """Return the builder's plan, without the folder."""
        recipes = {variant.torch_key: variant.torch_recipes for variant in self.point.variants}
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

    def plan_modules(self, hashes: Mapping[str, Mapping[str, str]]) -> tuple[Step, ...]:
        """Plan the import, compilation and check of every variant with an export; `hashes` as in `ModelSession`."""
        steps: list[Step] = []
        imports: dict[str, Step] = {}
        for variant in self.point.variants:
            label = variant.torch_key
            if label not in hashes:
                continue
            onnx = self.get_export_folder(label) / _PROGRAM
            content = make_key(hashes[label])
            if label not in imports:
                imports[label] = self.plan_import(label, onnx, content, label)
                steps.append(imports[label])
            flags = (*self.flags, *variant.flags)
            name = f"{self.point.model.name}_{variant.label}"
            compile_step = self.plan_compile(variant.label, name, flags, onnx, content, imports[label])
            unknown_flags = self.context.translate(flags, COMPILE).unknown
            if unknown_flags:
                # The compiler does not support the recipe's flag; the program is not at fault.
                compile_step = block_step(compile_step, f"{unknown_flags[0].message} ({unknown_flags[0].hint})")
            files = list_runnable_files(compile_step, imports[label])
            steps += [compile_step, self.plan_run(Stage.THRESHOLD, files, (compile_step.id,), variant.label)]
        return tuple(steps)

    def plan_benchmark(self, variants: Sequence[Variant]) -> Step:
        """Plan the joint measurement of variants."""
        return self.plan_rounds([StepInput("module", str(self.get_module_path(variant))) for variant in variants])

    def plan_profile(self, variant: Variant, kind: str) -> Step:
        """Plan the trace of a variant (`TRACE`), or its memory profile (`MEMORY_ROLE`)."""
        module = StepInput("module", str(self.get_module_path(variant)))
        return self.plan_run(Stage.BENCHMARK, [module], role=f"{kind}{variant.label}")

    def get_program(self, variant: Variant, build: BuildRecord) -> CompiledProgram:
        """Return the compiled program of a variant."""
        return self.make_program(build.programs[0], variant.label, variant.torch_key)

    def choose_tolerance(self, variant: Variant, build: BuildRecord) -> Tolerance:
        """Return the tolerance of IREE's outputs against torch eager's for the same recipe.

        It is the data type's tolerance plus the recipe's tolerance for its own rounding (a value at a boundary of a
        quantisation may fall to either side).
        """
        recipe = variant.quantization.recipe
        base = find_tolerance(self.point.model.dtype, max(1, build.contractions), recipe.contraction_type)
        recipe_rms = max(recipe.tolerance, variant.sparsity.recipe.tolerance if variant.sparsity else 0.0)
        return Tolerance(base.rms + recipe_rms, base.peak + _PEAK_FACTOR * recipe_rms)

    def get_module_path(self, variant: Variant) -> Path:
        """Return the path of a variant's compiled module."""
        return self.folder(Stage.COMPILE, variant.label) / "module.vmfb"
