"""Execution of a point: its models are built, exported, compiled and checked one by one, and measured together.

In each block, two programs yield a log ratio of the mean logs of their rounds. The interval of a speed-up is the exact
95 % interval of `paired.py`, with one look after all blocks. There is no correction for several intervals, so of a
hundred, five may miss.

A block is one pass over all programs in random order, and one pass in the opposite order. Thus a linear drift (such as
a clock that slows with heat) affects all programs alike. Each round of IREE is a separate process start. Between the
passes is one start of torch, which takes seconds and runs torch's programs one after the other, in random order.

A round that other work disturbed is repeated a few times. If it stays disturbed, the block is no evidence and is
replaced by another block. Rounds are never excluded because of their times.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, Verdict
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.engine.rounds.blocks import BlockRunner
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
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.sweep_record import (
    MEASURED,
    MICRO,
    SAME_MODULE,
    IreeTimes,
    NumberErrors,
    PeakShare,
    PointFacts,
    PointRecord,
    TorchTimes,
    VariantRecord,
)
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import make_step_id
from iree_gauntlet.torch_models import tracing
from iree_gauntlet.torch_models.agreement import Distance, OutputErrors, compare_tensors
from iree_gauntlet.torch_models.build_files import PeerProgram, read_tensors
from iree_gauntlet.torch_models.model_session import ModelSession
from iree_gauntlet.torch_models.module_facts import ModuleFacts, describe_facts, find_unproven, read_module_facts
from iree_gauntlet.torch_models.peers import (
    BLOCKS,
    CODE_FOLDER,
    TRIAL_CALLS,
    ExpectedOutputs,
    PeerScript,
    PointEvidence,
    TorchRound,
    compute_median_ms,
    compute_speedup,
    make_iree_rounds,
    run_interleaved,
)
from iree_gauntlet.torch_models.plugins import BASELINE, COMPILER
from iree_gauntlet.torch_models.point_chain import TRACE
from iree_gauntlet.torch_models.roofline import Roofline, explain_no_roofline
from iree_gauntlet.torch_models.torch_chain import MODULE_WORKER, CallMeasurement, make_worker_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_files import VariantPlan
    from iree_gauntlet.torch_models.configuration import Variant
    from iree_gauntlet.torch_models.point_chain import PointChain


# A check's first call gives the compared outputs; the time of these further calls determines the calls of a round.
_CHECK_CALLS = 3
_ALL_ZERO_NOTE = "torch's outputs are all zero, so agreement with them proves nothing"
# The duration of a round's calls, if the program is fast enough for three calls in this time.
_ROUND_MS = 100.0
_EAGER = "eager"
_COMPILED = "compile"
_MODES_BY_OPTION = {"torch": (_EAGER, _COMPILED), "torch-eager": (_EAGER,), "none": ()}


class Doubt(StrEnum):
    """A reason to doubt that a module is what its recipe promises; the reason's text begins with this."""

    UNREAD = "the contents of its module cannot be read"
    UNPROVEN = "the module does not have what the recipe promises"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCheck(Recorded):
    """The statistics of a variant's check: agreement with torch eager for the same recipe, error of the recipe."""

    agreement: OutputErrors | None = None
    error: NumberErrors | None = None
    call_ms: float = 0.0
    first_call_ms: float | None = None
    peak_rss_bytes: int | None = None
    device_memory: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class PointSession(ModelSession):
    """The steps of a point; `peers`: `torch` (eager and compiled), `torch-eager` or `none`."""

    chain: PointChain
    results: Mapping[str, Result]
    peers: str
    replace_disturbed: bool
    roofline: Roofline | None
    # The state of variants by label: the record of the module, the doubt about it, and the time of a call.
    _variants: dict[str, VariantRecord] = field(default_factory=dict)
    _doubts: dict[str, Doubt] = field(default_factory=dict)
    _call_ms: dict[str, float] = field(default_factory=dict)
    _start_time: float = field(default_factory=time.monotonic)
    # The state of torch's programs by name: the reason why a program is not measured, or the time of its first call.
    _torch_problems: dict[str, str] = field(default_factory=dict)
    _torch_first_call_ms: dict[str, float] = field(default_factory=dict)
    _blocks: PointEvidence = field(default_factory=PointEvidence)

    def plan(self, role: str) -> VariantPlan:
        """Return the builder's plan of a model in torch."""
        return self.chain.plan(role)

    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """Return the phases in their order; each returns its steps."""
        return (
            self.chain.plan_exports,
            lambda: self.chain.plan_modules(self.hashes),
            self._plan_benchmark,
            self._list_profiles,
        )

    def tidy(self) -> None:
        """Remove files that only this point needed (weights, tensors and modules); keep logs, plans and traces."""
        root = self.chain.get_export_folder().parent
        for pattern in ("*.npy", "*.onnx", "*.onnx.data", "*.irpa", "*.vmfb", "*.ireeprof"):
            for path in root.rglob(pattern):
                path.unlink(missing_ok=True)
        code = self.chain.folder(Stage.BENCHMARK) / "torch"
        if code.is_dir():
            shutil.rmtree(code)

    def check(self, step: Step) -> Result:
        """Run a variant and compare its outputs."""
        variant = self._find_variant(step.role)
        build = self.builds[variant.torch_key]
        program = self.chain.get_program(variant, build)
        response = self.run_once(step, program, self.chain.device, calls=_CHECK_CALLS)
        if response.figures is None:
            return response.failure
        calls = CallMeasurement.from_dict(response.figures)
        actual = read_tensors(Path(), calls.outputs)
        expected = read_tensors(program.export_folder, build.programs[0].outputs)
        agreement = compare_tensors(actual, expected, self.chain.choose_tolerance(variant, build))
        reference = read_tensors(program.export_folder, build.reference) if build.reference else expected
        figures = VariantCheck(
            agreement=agreement.errors,
            error=_measure_errors(actual, reference),
            call_ms=statistics.median(calls.call_ms[0]),
            first_call_ms=calls.first_call_ms,
            peak_rss_bytes=calls.peak_rss_bytes,
            device_memory=calls.device_memory,
        )
        result = Result(
            Verdict.FAILED if agreement.problem else Verdict.PASSED,
            shorten(agreement.problem),
            outputs=agreement.comparisons,
            failure=FailureKind.WRONG_NUMBERS if agreement.problem else None,
            statistics=figures.as_dict(),
            notes=(*step.notes, *([_ALL_ZERO_NOTE] if agreement.expects_only_zeros else [])),
        )
        return response.complete(result)

    def _plan_benchmark(self) -> Sequence[Step]:
        """Plan the benchmark of all correct variants whose modules are as their recipes promise."""
        self._variants = {variant.label: self._make_variant_record(variant) for variant in self.chain.point.variants}
        facts: dict[str, ModuleFacts] = {}
        for variant in self._list_measurable():
            program = self.chain.folder(Stage.IMPORT, variant.torch_key) / "program.mlir"
            try:
                facts[variant.label] = read_module_facts(
                    self.chain.toolchain, program, self.chain.get_module_path(variant)
                )
            except GauntletError as error:
                # Without facts there is no proof, so the variant is not measured.
                self._reject(variant, "error", Doubt.UNREAD, error.message)
        for variant in self.chain.point.variants:
            if (variant_facts := facts.get(variant.label)) is not None:
                self._check_facts(variant, variant_facts, facts.get(BASELINE))
        return (self.chain.plan_benchmark(self._list_measurable()),)

    def _list_measurable(self) -> list[Variant]:
        """Return the variants that can be measured, as far as is known."""
        return [variant for variant in self.chain.point.variants if self._variants[variant.label].status == MEASURED]

    def _make_variant_record(self, variant: Variant) -> VariantRecord:
        """Return the results of the previous steps; the first step that did not pass is the reason not to measure."""
        record = VariantRecord(
            label=variant.label,
            quantization=variant.quantization.text,
            sparsity=variant.sparsity.text if variant.sparsity else None,
            kind="sparsity" if variant.sparsity else variant.quantization.recipe.kind,
            status=MEASURED,
        )
        if variant.refusal:
            return replace(record, status="skipped", reason=variant.refusal)
        torch_key = variant.torch_key
        roles = ((Stage.EXPORT, torch_key), (Stage.IMPORT, torch_key), (Stage.COMPILE, variant.label))
        for stage, role in (*roles, (Stage.THRESHOLD, variant.label)):
            result = self.results.get(make_step_id(self.chain.id, stage, role))
            if result is None or result.verdict is not Verdict.PASSED:
                reason = f"{stage}: {result.reason if result else 'it did not run'}"
                return replace(record, status="error" if result is None else str(result.verdict), reason=reason)
            if stage is Stage.COMPILE:
                seconds = float(result.statistics.get("tool_seconds", result.tool_seconds))
                record = replace(record, compile_s=seconds)
            if stage is Stage.THRESHOLD:
                check = VariantCheck.from_dict(result.statistics)
                self._call_ms[variant.label] = check.call_ms
                record = replace(
                    record,
                    error=check.error,
                    agreement=check.agreement.as_dict() if check.agreement else None,
                    first_call_ms=check.first_call_ms,
                    peak_rss_bytes=check.peak_rss_bytes,
                    device_peak_bytes=check.device_memory.get("device_bytes_peak"),
                )
        return record

    def _reject(self, variant: Variant, status: str, doubt: Doubt, problem: str) -> None:
        record = self._variants[variant.label]
        self._variants[variant.label] = replace(record, status=status, reason=shorten(f"{doubt}: {problem}"))
        self._doubts[variant.label] = doubt

    def _check_facts(self, variant: Variant, facts: ModuleFacts, baseline: ModuleFacts | None) -> None:
        """Check a module against its recipe's promises."""
        record = self._variants[variant.label] = replace(
            self._variants[variant.label],
            module_bytes=facts.module_bytes,
            parameter_bytes=facts.stored_bytes,
            shows=tuple(describe_facts(facts)),
        )
        if variant.is_baseline:
            return
        if baseline is None:
            note = "the baseline has no module to compare the recipe's with"
            self._variants[variant.label] = replace(record, notes=(note,))
            return
        is_same_module = baseline.digest == facts.digest
        if is_same_module and variant.quantization.recipe.kind == COMPILER and variant.sparsity is None:
            reason = "the compiler produces the same module as for the baseline: the recipe has no effect"
            self._variants[variant.label] = replace(record, status=SAME_MODULE, reason=reason)
            return
        problems = [
            problem
            for call in filter(None, (variant.quantization, variant.sparsity))
            for problem in find_unproven(
                call.recipe.proof, facts, baseline, self.builds[variant.torch_key].changed_bytes
            )
        ]
        if problems:
            self._reject(variant, "failed", Doubt.UNPROVEN, "; ".join(problems))

    def benchmark(self, step: Step) -> Result:
        """Measure all variants, or profile one of them."""
        if step.role == MAIN:
            return self._measure(step)
        if not step.role.startswith(TRACE):
            return self._profile_memory(step)
        variant = self._find_variant(step.role.removeprefix(TRACE))
        program, path = (
            self.chain.get_program(variant, self.builds[variant.torch_key]),
            Path(step.folder) / variant.label,
        )
        trace = self.trace(step, program, path, tracing.VERBOSE, self._call_ms[variant.label])
        return tracing.make_result([trace], {TRACE.rstrip("."): trace.as_dict()})

    def _profile_memory(self, step: Step) -> Result:
        """Measure the peak memory by phase; the samples are written next to the logs, for a plot."""
        variant = self._find_variant(step.role.removeprefix(MEMORY_ROLE))
        plan = make_memory_plan(
            self.chain.get_program(variant, self.builds[variant.torch_key]).plan([self.chain.device], 1)
        )
        response = self.ask(step, MEMORY_WORKER, plan)
        if response.figures is None:
            return response.failure
        try:
            profile = read_memory_profile(response.figures)
        except GauntletError as error:
            return response.complete(Result(Verdict.ERROR, shorten(error.message)))
        write_memory_profile(profile, Path(step.folder) / MEMORY_FILE)
        figures = {name: value for name, value in profile.as_dict().items() if name != "series"}
        return response.complete(Result(Verdict.PASSED, statistics={"memory": figures}, notes=tuple(profile.lines())))

    def _find_variant(self, label: str) -> Variant:
        return next(variant for variant in self.chain.point.variants if variant.label == label)

    def _list_profiles(self) -> Sequence[Step]:
        model = self.chain.point.model
        kinds = [kind for kind, flag in ((TRACE, model.profiler), (MEMORY_ROLE, model.memory_profiler)) if flag]
        return tuple(self.chain.plan_profile(variant, kind) for variant in self._list_measurable() for kind in kinds)

    @property
    def _flops(self) -> int:
        """The number of operations of the unchanged model, which all builds of it record."""
        return next((build.flops for build in self.builds.values()), 0)

    def _measure(self, step: Step) -> Result:
        """Measure all variants; the result's statistics contain the point's record."""
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        if self._list_measurable():
            uses_compile = self.chain.point.model.torch_compile
            modes = [mode for mode in _MODES_BY_OPTION[self.peers] if uses_compile or mode == _EAGER]
            # Measure torch only if IREE runs on the CPU, because torch runs there.
            torch_round = self._try_torch(step, modes) if modes and is_cpu(self.chain.device) else None
            programs: dict[str, Measurement] = {}
            for variant in self._list_measurable():
                calls = _count_calls(self._call_ms[variant.label])
                plan = self.chain.get_program(variant, self.builds[variant.torch_key]).plan([self.chain.device], calls)
                command = make_worker_command(self.chain, step, MODULE_WORKER, plan, f"{variant.label}.")
                programs[variant.label] = make_iree_rounds(step, command)
            taker = BlockRunner(self.session, replace_disturbed=self.replace_disturbed)
            status = self.session.progress.status
            self._blocks = run_interleaved(
                taker, self.chain.id, programs, torch_round, lambda number: status(f"block {number}")
            )
        if self.session.cancelled.is_set():
            return Result(Verdict.ERROR, "interrupted")
        verdict, reason = self._find_verdict()
        record = self._make_record()
        return Result(verdict, reason, statistics={MICRO: record.as_dict()}, notes=record.notes)

    def _try_torch(self, step: Step, modes: Sequence[str]) -> TorchRound | None:
        """Run each program of torch once, check its outputs, and choose the number of calls of a round."""
        programs: dict[str, PeerProgram] = {}
        expected = []
        for mode in modes:
            for label, variant in {variant.torch_key: variant for variant in reversed(self._list_measurable())}.items():
                name, folder, build = (
                    _name_torch_program(mode, label),
                    self.chain.get_export_folder(label),
                    self.builds[label],
                )
                compile_mode = self.chain.point.model.torch_compile_mode
                builder = asdict(self.chain.plan(label))
                programs[name] = PeerProgram(name, folder, builder, mode, compile_mode, TRIAL_CALLS)
                expected.append(
                    ExpectedOutputs(folder, build.programs[0].outputs, self.chain.choose_tolerance(variant, build))
                )
        code_folder = Path(step.folder) / "torch" / CODE_FOLDER
        script = PeerScript(step, "torch", self.chain.torch.path, "measure_torch", code_folder)
        runs = script.try_programs(self.session, "torch.trial.plan", "torch.trial.", list(programs.values()), expected)
        for name, model in zip(list(programs), runs, strict=True):
            if model.error or model.first_call_ms is None:
                self._torch_problems[name] = model.error
                del programs[name]
                continue
            self._torch_first_call_ms[name] = model.first_call_ms
            programs[name] = replace(programs[name], calls=_count_calls(statistics.median(model.call_ms)))
        if not programs:
            return None
        return TorchRound(
            tuple(programs), lambda order: script.plan_rounds("torch.plan", [programs[name] for name in order])
        )

    def _make_record(self) -> PointRecord:
        model, shape, blocks = self.chain.point.model, self.chain.point.shape, self._blocks
        facts = PointFacts(
            name=model.name,
            model_type=model.model_type.text,
            shape=shape.name,
            m=shape.m,
            k=shape.k,
            n=shape.n,
            label=shape.label,
            dtype=model.dtype,
            device=self.chain.device,
            flops=self._flops,
            torch_compile_mode=model.torch_compile_mode,
        )
        notes = [f"{name}: not measured: {problem}" for name, problem in self._torch_problems.items()]
        if blocks.is_too_disturbed:
            notes.append(
                f"{blocks.count} of {BLOCKS} blocks: the machine is too busy, for example: {blocks.main_disturbance}"
            )
        if blocks.marked:
            rounds = "1 round was" if blocks.marked == 1 else f"{blocks.marked} rounds were"
            notes.append(f"{rounds} disturbed, for example: {blocks.main_disturbance}")
        return PointRecord(
            point=facts,
            variants=tuple(map(self._complete_record, self.chain.point.variants)),
            blocks=blocks.count,
            # Subtract a failed block, which ended the measurement and was not replaced.
            replaced=blocks.replacement_count - bool(blocks.failure),
            seconds=round(time.monotonic() - self._start_time, 3),
            notes=tuple(notes),
        )

    def _complete_record(self, variant: Variant) -> VariantRecord:
        record, blocks = self._variants[variant.label], self._blocks
        # A module that equals the baseline's has the baseline's times.
        name = BASELINE if record.status == SAME_MODULE else variant.label
        ratio = None if variant.is_baseline or record.status != MEASURED else compute_speedup(blocks, name, BASELINE)
        iree_ms = compute_median_ms(blocks, name)
        return replace(
            record,
            iree=None if iree_ms is None else IreeTimes(iree_ms, ratio),
            torch_eager=self._compare_torch(_EAGER, variant.torch_key, name),
            torch_compile=self._compare_torch(_COMPILED, variant.torch_key, name),
            peak_rss_bytes=blocks.peak_bytes.get(name) or record.peak_rss_bytes,
            roofline=self._find_peak_share(variant),
        )

    def _compare_torch(self, mode: str, torch_key: str, iree_name: str) -> TorchTimes | None:
        """Return torch's time of a variant's model, compared with torch's baseline and with IREE's variant."""
        blocks, name = self._blocks, _name_torch_program(mode, torch_key)
        time = compute_median_ms(blocks, name)
        if time is None:
            return None
        return TorchTimes(
            time,
            self._torch_first_call_ms.get(name),
            None if torch_key == BASELINE else compute_speedup(blocks, name, _name_torch_program(mode, BASELINE)),
            compute_speedup(blocks, iree_name, name),
        )

    def _find_peak_share(self, variant: Variant) -> PeakShare | None:
        """Return the share of the machine's peak performance that a variant reaches."""
        time_ms = compute_median_ms(self._blocks, variant.label)
        roofline = None if explain_no_roofline(self.chain.device) else self.roofline
        record = self._variants[variant.label]
        if roofline is None or time_ms is None or record.parameter_bytes is None:
            return None
        build = self.builds[variant.torch_key].programs[0]
        folder = self.chain.get_export_folder(variant.torch_key)
        tensors = sum((folder / array.file).stat().st_size for array in (*build.inputs, *build.outputs))
        return PeakShare(*roofline.share(self._flops, record.parameter_bytes + tensors, time_ms))

    def _find_verdict(self) -> tuple[Verdict, str]:
        blocks = self._blocks
        if unread_reasons := self._join_reasons(Doubt.UNREAD):
            return Verdict.ERROR, unread_reasons
        if blocks.failure:
            return Verdict.ERROR, shorten(blocks.failure)
        if unproven_reasons := self._join_reasons(Doubt.UNPROVEN):
            return Verdict.FAILED, unproven_reasons
        if not self._list_measurable():
            return Verdict.SKIPPED, "no variant reached the measurement"
        if blocks.count < BLOCKS:
            return Verdict.INCONCLUSIVE, shorten(f"{blocks.count} of {BLOCKS} blocks: {blocks.main_disturbance}")
        return Verdict.PASSED, ""

    def _join_reasons(self, doubt: Doubt) -> str:
        """Join the reasons of all variants with this doubt."""
        labels = (label for label, variant_doubt in self._doubts.items() if variant_doubt is doubt)
        return shorten("; ".join(f"{label}: {self._variants[label].reason}" for label in labels))


def _name_torch_program(mode: str, label: str) -> str:
    """Return the name of a torch program: `torch eager int8wo`."""
    return f"torch {mode} {label}"


def _count_calls(call_ms: float) -> int:
    """Return the number of calls of a round."""
    return max(TRIAL_CALLS, math.ceil(_ROUND_MS / call_ms))


def _measure_errors(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> NumberErrors:
    """Return the errors of all float outputs together."""
    total = Distance()
    if len(actual) != len(expected):
        raise GauntletError(f"{len(actual)} outputs, but the unchanged model has {len(expected)}")
    for output, target in zip(actual, expected, strict=True):
        if is_float(target.element_type) and output.shape != target.shape:
            raise GauntletError(f"an output of shape {output.shape}, but the unchanged model's is {target.shape}")
        total += Distance.measure(output, target)
    relative_error = math.inf if total.noise and not total.power else total.relative_error
    decibel = math.inf if relative_error == 0 else -20.0 * math.log10(relative_error)
    return NumberErrors(total.peak_error, relative_error, decibel)
