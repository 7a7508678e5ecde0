"""A point while it runs: its models are made and exported, compiled and checked, and measured together."""

from __future__ import annotations

import importlib.util
import math
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
from iree_gauntlet.records.sweep_record import MEASURED, SAME, NumberErrors
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.steps import step_id
from iree_gauntlet.torch_models import tracing
from iree_gauntlet.torch_models.agreement import compare_tensors, split_pieces
from iree_gauntlet.torch_models.build_folder import read_outputs, read_tensors
from iree_gauntlet.torch_models.model_session import ModelSession
from iree_gauntlet.torch_models.module_facts import ModuleFacts, describe_facts, prove, read_module_facts
from iree_gauntlet.torch_models.point_measurement import (
    TRACE,
    Doubt,
    Measuring,
    PointChain,
    PointMeasurement,
    VariantCheck,
    VariantFigures,
)
from iree_gauntlet.torch_models.recipe_registry import BASELINE, COMPILER
from iree_gauntlet.torch_models.torch_chain import MeasuredCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_plan import VariantPlan
    from iree_gauntlet.torch_models.configuration import Variant


# After the first one, whose outputs are looked at: they say how many calls a round has.
_CALLS = 3
_ALL_ZERO = "torch's outputs are all zero, and so agreeing with them proves nothing"


@dataclass(slots=True, kw_only=True)
class PointSession(ModelSession):
    """Performs the steps of a point."""

    chain: PointChain
    measuring: Measuring
    results: Mapping[str, Result]
    _found: dict[str, VariantFigures] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def plan(self, role: str) -> VariantPlan:
        """The builder's plan of what torch makes."""
        return self.chain.plan(role)

    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """What there is to do, one after the other."""
        return (self.chain.exports, lambda: self.chain.modules(self.hashes), self._judge, self._list_profiles)

    def tidy(self) -> None:
        """Removes what only the point itself needed: weights, tensors and modules; logs, plans and traces stay."""
        root = Path(self.chain.step(Stage.EXPORT).folder).parent
        for pattern in ("*.npy", "*.onnx", "*.onnx.data", "*.irpa", "*.vmfb", "*.ireeprof"):
            for path in root.rglob(pattern):
                path.unlink(missing_ok=True)
        code = Path(self.chain.step(Stage.BENCHMARK).folder) / "torch"
        if code.is_dir():
            shutil.rmtree(code)

    def check(self, step: Step) -> Result:
        """Runs a variant and compares its outputs."""
        variant = self._find_variant(step.role)
        build = self.builds[variant.side]
        compiled = self.chain.made(variant, build)
        answer = self.run_once(step, compiled, self.chain.device, calls=_CALLS)
        if answer.figures is None:
            return answer.failure
        calls = MeasuredCalls.from_dict(answer.figures)
        actual = read_outputs(calls.outputs)
        expected = read_tensors(compiled.exported, build.programs[0].outputs)
        found = compare_tensors(actual, expected, self.chain.allowed(variant, build))
        reference = read_tensors(compiled.exported, build.reference) if build.reference else expected
        figures = VariantCheck(
            agreement=found.errors,
            error=_measure_distance(actual, reference),
            call_ms=statistics.median(calls.call_ms[0]),
            first_call_ms=calls.first_call_ms,
            peak_rss_bytes=calls.peak_rss_bytes,
            device_memory=calls.device_memory,
        )
        result = Result(
            Verdict.FAILED if found.problem else Verdict.PASSED,
            shorten(found.problem),
            outputs=found.comparisons,
            failure=FailureKind.WRONG_NUMBERS if found.problem else None,
            statistics=figures.as_dict(),
            notes=(*step.notes, *([_ALL_ZERO] if found.tells_nothing else [])),
        )
        return answer.complete(result)

    def _judge(self) -> Sequence[Step]:
        """The benchmark of all variants that are right, and whose modules show what their recipes promise."""
        self._found = {variant.label: self._find_standing(variant) for variant in self.chain.point.variants}
        facts = {variant.label: self._read_facts(variant) for variant in self._list_measured()}
        for variant in self.chain.point.variants:
            if (own := facts.get(variant.label)) is not None:
                self._look_at(variant, own, facts.get(BASELINE))
        return (self.chain.benchmark(self._list_measured()),)

    def _list_measured(self) -> list[Variant]:
        """The variants that can be measured, as far as is known."""
        return [variant for variant in self.chain.point.variants if self._found[variant.label].status == MEASURED]

    def _find_standing(self, variant: Variant) -> VariantFigures:
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
            if stage is Stage.THRESHOLD:
                found.checked = VariantCheck.from_dict(result.statistics)
        return found

    def _read_facts(self, variant: Variant) -> ModuleFacts | None:
        """What its module shows; None where it cannot be read: then nothing is proven, and nothing measured."""
        try:
            program = self.chain.folder(Stage.IMPORT, variant.side) / "program.mlir"
            return read_module_facts(self.chain.toolchain, program, self.chain.module(variant))
        except GauntletError as error:
            known = self._found[variant.label]
            known.status, known.doubt = "error", Doubt.UNREAD
            known.reason = shorten(f"{Doubt.UNREAD}: {error.what}")
            return None

    def _look_at(self, variant: Variant, facts: ModuleFacts, baseline: ModuleFacts | None) -> None:
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
            for problem in prove(asked.recipe.proof, facts, baseline, self.builds[variant.side].changed_bytes)
        ]
        if problems:
            known.status, known.doubt = "failed", Doubt.UNPROVEN
            known.reason = shorten(f"{Doubt.UNPROVEN}: {'; '.join(problems)}")

    def benchmark(self, step: Step) -> Result:
        """Measures all variants, or looks at what one of them takes."""
        if step.role == MAIN:
            # Of the unchanged model, as every build of it says.
            flops = next((build.flops for build in self.builds.values()), 0)
            return PointMeasurement(
                self.chain, self.session, self.measuring, self.builds, self._found, flops, self._began
            ).run(step)
        return self._trace(step) if step.role.startswith(TRACE) else self._profile_memory(step)

    def _trace(self, step: Step) -> Result:
        variant = self._find_variant(step.role.removeprefix(TRACE))
        program, path = self.chain.made(variant, self.builds[variant.side]), Path(step.folder) / variant.label
        made = self.trace(step, program, path, tracing.VERBOSE, self._found[variant.label].checked.call_ms)
        return tracing.make_result([made], {TRACE.rstrip("."): made.as_dict()})

    def _profile_memory(self, step: Step) -> Result:
        """The high-water mark of memory by phase; the series of samples is written next to the logs, for its plot."""
        variant = self._find_variant(step.role.removeprefix(MEMORY_ROLE))
        plan = make_memory_plan(self.chain.made(variant, self.builds[variant.side]).plan([self.chain.device], 1))
        answer = self.ask(step, MEMORY_WORKER, plan)
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

    def _find_variant(self, label: str) -> Variant:
        return next(variant for variant in self.chain.point.variants if variant.label == label)

    def _list_profiles(self) -> Sequence[Step]:
        model = self.chain.point.model
        kinds = [kind for kind, wanted in ((TRACE, model.profiler), (MEMORY_ROLE, model.memory_profiler)) if wanted]
        return tuple(self.chain.profile(variant, kind) for variant in self._list_measured() for kind in kinds)


def _measure_distance(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> NumberErrors:
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
    return NumberErrors(peak, relative, decibel)
