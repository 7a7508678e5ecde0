"""A point while it runs: its models are made and exported, compiled and checked, and measured together."""

from __future__ import annotations

import importlib.util
import math
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.cases import MAIN, FailureKind, Stage, Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.numerics.arrays import is_float
from iree_gauntlet.measuring.profiles.memory_profile import (
    MEMORY_FILE,
    MEMORY_ROLE,
    MEMORY_WORKER,
    make_memory_plan,
    read_memory_profile,
    write_memory_profile,
)
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.steps import Step, step_id
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE
from iree_gauntlet.torch_models import tracing
from iree_gauntlet.torch_models.agreement import compare_tensors, make_recordable, split_pieces
from iree_gauntlet.torch_models.build_folder import BuildRecord, read_outputs, read_tensors
from iree_gauntlet.torch_models.module_facts import ModuleFacts, describe_facts, prove, read_module_facts
from iree_gauntlet.torch_models.point_measurement import (
    MEASURED,
    SAME,
    TRACE,
    Doubt,
    Measuring,
    PointChain,
    PointMeasurement,
    VariantFigures,
)
from iree_gauntlet.torch_models.recipe_registry import BASELINE, COMPILER
from iree_gauntlet.torch_models.torch_chain import MODULE_WORKER, Exporter, ask_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.torch_models.configuration import Variant


# After the first one, whose outputs are looked at: they say how many calls a round has.
_CALLS = 3
_ALL_ZERO = "torch's outputs are all zero, and so agreeing with them proves nothing"


@dataclass(slots=True)
class PointSession:
    """Performs the steps of a point."""

    chain: PointChain
    session: Session[Any]
    workbench: Workbench
    measuring: Measuring
    results: Mapping[str, Result]
    _exporter: Exporter = field(init=False)
    _found: dict[str, VariantFigures] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._exporter = Exporter(self.session, self.workbench)

    def performers(self) -> Mapping[Stage, Callable[[Step], Result]]:
        """What executes each stage; import and compile are the engine's own."""
        return {
            Stage.EXPORT: lambda step: self._exporter.perform(step, self.chain.plan(step.role)),
            Stage.THRESHOLD: self._check,
            Stage.BENCHMARK: self._benchmark,
        }

    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """What there is to do, one after the other: each is planned when the one before has finished."""
        return (self.chain.exports, self._modules, self._measured, self._profiles)

    def tidy(self) -> None:
        """Removes what only the point itself needed: weights, tensors and modules; logs, plans and traces stay."""
        root = Path(self.chain.step(Stage.EXPORT).folder).parent
        for pattern in ("*.npy", "*.onnx", "*.onnx.data", "*.irpa", "*.vmfb", "*.ireeprof"):
            for path in root.rglob(pattern):
                path.unlink(missing_ok=True)
        code = Path(self.chain.step(Stage.BENCHMARK).folder) / "torch"
        if code.is_dir():
            shutil.rmtree(code)

    def _modules(self) -> Sequence[Step]:
        steps = self.chain.modules(self._exporter.hashes)
        self._exporter.unshare(steps)
        return steps

    def _check(self, step: Step) -> Result:
        """Runs a variant and compares its outputs."""
        variant = self._variant(step.role)
        build = self._build(variant)
        folder = Path(step.folder) / "outputs"
        folder.mkdir(parents=True, exist_ok=True)
        compiled = self.chain.made(variant, build)
        plan = compiled.plan([self.chain.device], _CALLS, warm_up_calls=0, outputs=str(folder))
        answer = ask_worker(self.chain, step, self.session.processes, MODULE_WORKER, plan)
        if answer.figures is None:
            return answer.failure
        actual = read_outputs(answer.figures["outputs"])
        expected = read_tensors(compiled.exported, build.programs[0].outputs)
        found = compare_tensors(actual, expected, self.chain.allowed(variant, build))
        reference = read_tensors(compiled.exported, build.reference) if build.reference else expected
        result = Result(
            Verdict.FAILED if found.problem else Verdict.PASSED,
            shorten(found.problem),
            outputs=found.comparisons,
            failure=FailureKind.WRONG_NUMBERS if found.problem else None,
            statistics={
                "agreement": found.as_dict(),
                "error": _measure_distance(actual, reference),
                "call_ms": statistics.median(answer.figures["call_ms"][0]),
                **{name: answer.figures[name] for name in ("first_call_ms", "peak_rss_bytes", "device_memory")},
            },
            notes=(*step.notes, *([_ALL_ZERO] if found.tells_nothing else [])),
        )
        return answer.complete(result)

    def _measured(self) -> Sequence[Step]:
        """The benchmark of all variants that are right, and whose modules show what their recipes promise."""
        self._found = {variant.label: self._standing(variant) for variant in self.chain.point.variants}
        facts = {
            variant.label: found
            for variant in self.chain.point.variants
            if self._stands(variant) and (found := self._facts(variant)) is not None
        }
        for variant in self.chain.point.variants:
            if variant.label in facts:
                self._look(variant, facts[variant.label], facts.get(BASELINE))
        return (self.chain.benchmark([variant for variant in self.chain.point.variants if self._stands(variant)]),)

    def _stands(self, variant: Variant) -> bool:
        return self._found[variant.label].status == MEASURED

    def _standing(self, variant: Variant) -> VariantFigures:
        """The result of the steps before: the first that did not pass says why there is nothing to measure."""
        if variant.refusal:
            return VariantFigures(status="skipped", reason=variant.refusal)
        side = variant.side
        roles = ((Stage.EXPORT, side), (Stage.IMPORT, side), (Stage.COMPILE, variant.label))
        found = VariantFigures()
        for stage, role in (*roles, (Stage.THRESHOLD, variant.label)):
            result = self.results.get(step_id(self.chain.id, stage, role))
            if result is None or result.verdict is not Verdict.PASSED:
                found.status = "error" if result is None else str(result.verdict)
                found.reason = f"{stage}: {result.reason if result else 'it did not run'}"
                return found
            if stage is Stage.COMPILE:
                found.compile_s = float(result.statistics.get("tool_seconds", result.tool_seconds))
            found.figures = result.statistics
        return found

    def _facts(self, variant: Variant) -> ModuleFacts | None:
        """What its module shows; None where it cannot be read: then nothing is proven, and nothing measured."""
        try:
            program = self.chain.folder(Stage.IMPORT, variant.side) / "program.mlir"
            return read_module_facts(self.chain.toolchain, program, self.chain.module(variant))
        except GauntletError as error:
            known = self._found[variant.label]
            known.status, known.doubt = "error", Doubt.UNREAD
            known.reason = shorten(f"{Doubt.UNREAD}: {error.what}")
            return None

    def _look(self, variant: Variant, facts: ModuleFacts, baseline: ModuleFacts | None) -> None:
        """Holds a module against what its recipe promises."""
        known = self._found[variant.label]
        known.module_bytes, known.parameter_bytes = facts.module_bytes, facts.stored_bytes
        known.shows = describe_facts(facts)
        if variant.is_baseline:
            return
        if baseline is None:
            known.notes.append("the baseline has no module, so that nothing shows what the recipe changes")
            return
        same = baseline.digest == facts.digest
        if same and variant.quantization.recipe.kind == COMPILER and variant.sparsity is None:
            known.status = SAME
            known.reason = "the compiler makes the same module as for the baseline: the recipe changes nothing here"
            return
        problems = [
            problem
            for asked in filter(None, (variant.quantization, variant.sparsity))
            for problem in prove(asked.recipe.proof, facts, baseline, self._build(variant).changed_bytes)
        ]
        if problems:
            known.status, known.doubt = "failed", Doubt.UNPROVEN
            known.reason = shorten(f"{Doubt.UNPROVEN}: {'; '.join(problems)}")

    def _benchmark(self, step: Step) -> Result:
        if step.role == MAIN:
            # Of the unchanged model, as every build of it says.
            flops = next((build.flops for build in self._exporter.builds.values()), 0)
            return PointMeasurement(
                self.chain, self.session, self.measuring, self._exporter.builds, self._found, flops, self._began
            ).run(step)
        return self._trace(step) if step.role.startswith(TRACE) else self._profile_memory(step)

    def _trace(self, step: Step) -> Result:
        variant = self._variant(step.role.removeprefix(TRACE))
        call_ms = float(self._found[variant.label].figures["call_ms"])
        flags = self.workbench.flags_of(BENCHMARK_MODULE)
        path, processes = Path(step.folder) / variant.label, self.session.processes
        traced = tracing.make_traced_step(step, self.chain, self.chain.made(variant, self._build(variant)))
        made = tracing.trace(traced, tracing.VERBOSE, path, self.chain.toolchain, processes, flags, call_ms=call_ms)
        return tracing.make_result([made], {TRACE.rstrip("."): made.as_dict()})

    def _profile_memory(self, step: Step) -> Result:
        """The high-water mark of memory by phase; the series of samples is written next to the logs, for its plot."""
        variant = self._variant(step.role.removeprefix(MEMORY_ROLE))
        plan = make_memory_plan(self.chain.made(variant, self._build(variant)).plan([self.chain.device], 1))
        answer = ask_worker(self.chain, step, self.session.processes, MEMORY_WORKER, plan)
        if answer.figures is None:
            return answer.failure
        try:
            profile = read_memory_profile(answer.figures)
        except GauntletError as error:
            return answer.complete(Result(Verdict.ERROR, shorten(error.what)))
        write_memory_profile(profile, Path(step.folder) / MEMORY_FILE)
        notes = profile.lines()
        if importlib.util.find_spec("matplotlib") is None:
            notes.append("no plot: matplotlib is not installed (pip install 'iree-gauntlet[plots]')")
        figures = {name: value for name, value in profile.as_dict().items() if name != "series"}
        return answer.complete(Result(Verdict.PASSED, statistics={"memory": figures}, notes=tuple(notes)))

    def _build(self, variant: Variant) -> BuildRecord:
        return self._exporter.builds[variant.side]

    def _variant(self, label: str) -> Variant:
        return next(variant for variant in self.chain.point.variants if variant.label == label)

    def _profiles(self) -> Sequence[Step]:
        model = self.chain.point.model
        kinds = [kind for kind, wanted in ((TRACE, model.profiler), (MEMORY_ROLE, model.memory_profiler)) if wanted]
        return tuple(
            self.chain.profile(variant, kind)
            for variant in self.chain.point.variants
            if self._stands(variant)
            for kind in kinds
        )


def _measure_distance(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> dict[str, float | str]:
    """How far float outputs are from what they should be, all of them together."""
    noise = power = peak = 0.0
    if len(actual) != len(expected):
        raise GauntletError(f"{len(actual)} outputs, and the unchanged model has {len(expected)}")
    for mine, wanted in zip(actual, expected, strict=True):
        if not is_float(wanted.element_type):
            continue
        if mine.shape != wanted.shape:
            raise GauntletError(f"an output of shape {mine.shape}, and the unchanged model's is {wanted.shape}")
        for found, right in split_pieces(mine, wanted):
            difference = found - right
            noise += float(np.dot(difference, difference))
            power += float(np.dot(right, right))
            # Not max(): NaN has to come through.
            peak = float(np.maximum(peak, np.abs(difference).max()))
    relative = math.sqrt(noise / power) if power else (math.inf if noise else 0.0)
    decibel = math.inf if relative == 0 else -20.0 * math.log10(relative)
    return {"max": make_recordable(peak), "relative": make_recordable(relative), "sqnr_db": make_recordable(decibel)}
