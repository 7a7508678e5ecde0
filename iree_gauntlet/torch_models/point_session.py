"""A point while it runs: its models are made and exported, compiled and checked, and measured together.

In each block two programs give a log ratio, of the mean logs of their rounds. The interval of a speed-up is the exact
one of `paired.py` at 95 %, looked at once, after all blocks; each is one by itself: of a hundred, five may miss.

A block is one go over all programs in random order, and back in the opposite order: whatever grows linearly over it
(a clock that heats up) falls on all of them alike. Each round of IREE is a process start of its own. Between the two
halves stands one start of torch, which takes seconds and runs its own programs one after the other, in an order drawn
by lot.

A round that other work disturbed is taken again, a few times; a block in which one stays disturbed is no evidence, and
another one takes its place. Rounds are never left out for their times.
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
from iree_gauntlet.engine.rounds.blocks import BlockTaker
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
    SAME,
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
    Expected,
    PeerScript,
    PointEvidence,
    TorchRound,
    make_iree_rounds,
    median_ms,
    speedup,
    take_interleaved,
)
from iree_gauntlet.torch_models.plugins import BASELINE, COMPILER
from iree_gauntlet.torch_models.point_chain import TRACE
from iree_gauntlet.torch_models.roofline import Roofline, explain_no_roofline
from iree_gauntlet.torch_models.torch_chain import MODULE_WORKER, MeasuredCalls, make_worker_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_files import VariantPlan
    from iree_gauntlet.torch_models.configuration import Variant
    from iree_gauntlet.torch_models.point_chain import PointChain


# After the first one, whose outputs are looked at: they say how many calls a round has.
_CALLS = 3
_ALL_ZERO = "torch's outputs are all zero, and so agreeing with them proves nothing"
# How long the calls of a round take, of a program that is fast enough for three of them in that time.
_ROUND_MS = 100.0
_EAGER = "eager"
_COMPILED = "compile"
_MODES = {"torch": (_EAGER, _COMPILED), "torch-eager": (_EAGER,), "none": ()}


class Doubt(StrEnum):
    """Why nothing shows that a module is what its recipe promises; a reason begins with it."""

    UNREAD = "what its module shows cannot be read"
    UNPROVEN = "the module is not what the recipe promises"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCheck(Recorded):
    """What the result of a variant's check has: agreement with torch eager for the same recipe, error of the recipe."""

    agreement: OutputErrors | None = None
    error: NumberErrors | None = None
    call_ms: float = 0.0
    first_call_ms: float | None = None
    peak_rss_bytes: int | None = None
    device_memory: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class PointSession(ModelSession):
    """Performs the steps of a point; `against`: `torch` (eager and compiled), `torch-eager` or `none`."""

    chain: PointChain
    results: Mapping[str, Result]
    against: str
    replace_disturbed: bool
    roofline: Roofline | None
    # What is known of variants, by their labels: what their modules are, why that is doubted, and how long a call took.
    _variants: dict[str, VariantRecord] = field(default_factory=dict)
    _doubts: dict[str, Doubt] = field(default_factory=dict)
    _call_ms: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    # Of torch's programs: why they are not measured, or how long their first call took.
    _problems: dict[str, str] = field(default_factory=dict)
    _first_call_ms: dict[str, float] = field(default_factory=dict)
    _blocks: PointEvidence = field(default_factory=PointEvidence)

    def plan(self, role: str) -> VariantPlan:
        """The builder's plan of what torch makes."""
        return self.chain.plan(role)

    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """What there is to do, one after the other."""
        return (self.chain.exports, lambda: self.chain.modules(self.hashes), self._judge, self._list_profiles)

    def tidy(self) -> None:
        """Removes what only the point itself needed: weights, tensors and modules; logs, plans and traces stay."""
        root = self.chain.exported().parent
        for pattern in ("*.npy", "*.onnx", "*.onnx.data", "*.irpa", "*.vmfb", "*.ireeprof"):
            for path in root.rglob(pattern):
                path.unlink(missing_ok=True)
        code = self.chain.folder(Stage.BENCHMARK) / "torch"
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
        actual = read_tensors(Path(), calls.outputs)
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
        self._variants = {variant.label: self._find_standing(variant) for variant in self.chain.point.variants}
        facts: dict[str, ModuleFacts] = {}
        for variant in self._list_measured():
            program = self.chain.folder(Stage.IMPORT, variant.side) / "program.mlir"
            try:
                facts[variant.label] = read_module_facts(self.chain.toolchain, program, self.chain.module(variant))
            except GauntletError as error:
                # Then nothing is proven, and nothing measured.
                self._refuse(variant, "error", Doubt.UNREAD, error.what)
        for variant in self.chain.point.variants:
            if (own := facts.get(variant.label)) is not None:
                self._look_at(variant, own, facts.get(BASELINE))
        return (self.chain.benchmark(self._list_measured()),)

    def _list_measured(self) -> list[Variant]:
        """The variants that can be measured, as far as is known."""
        return [variant for variant in self.chain.point.variants if self._variants[variant.label].status == MEASURED]

    def _find_standing(self, variant: Variant) -> VariantRecord:
        """The result of the steps before: the first that did not pass says why there is nothing to measure."""
        found = VariantRecord(
            label=variant.label,
            quantization=variant.quantization.text,
            sparsity=variant.sparsity.text if variant.sparsity else None,
            kind="sparsity" if variant.sparsity else variant.quantization.recipe.kind,
            status=MEASURED,
        )
        if variant.refusal:
            return replace(found, status="skipped", reason=variant.refusal)
        side = variant.side
        roles = ((Stage.EXPORT, side), (Stage.IMPORT, side), (Stage.COMPILE, variant.label))
        for stage, role in (*roles, (Stage.THRESHOLD, variant.label)):
            result = self.results.get(make_step_id(self.chain.id, stage, role))
            if result is None or result.verdict is not Verdict.PASSED:
                reason = f"{stage}: {result.reason if result else 'it did not run'}"
                return replace(found, status="error" if result is None else str(result.verdict), reason=reason)
            if stage is Stage.COMPILE:
                seconds = float(result.statistics.get("tool_seconds", result.tool_seconds))
                found = replace(found, compile_s=seconds)
            if stage is Stage.THRESHOLD:
                checked = VariantCheck.from_dict(result.statistics)
                self._call_ms[variant.label] = checked.call_ms
                found = replace(
                    found,
                    error=checked.error,
                    agreement=checked.agreement.as_dict() if checked.agreement else None,
                    first_call_ms=checked.first_call_ms,
                    peak_rss_bytes=checked.peak_rss_bytes,
                    device_peak_bytes=checked.device_memory.get("device_bytes_peak"),
                )
        return found

    def _refuse(self, variant: Variant, status: str, doubt: Doubt, problem: str) -> None:
        known = self._variants[variant.label]
        self._variants[variant.label] = replace(known, status=status, reason=shorten(f"{doubt}: {problem}"))
        self._doubts[variant.label] = doubt

    def _look_at(self, variant: Variant, facts: ModuleFacts, baseline: ModuleFacts | None) -> None:
        """Holds a module against what its recipe promises."""
        known = self._variants[variant.label] = replace(
            self._variants[variant.label],
            module_bytes=facts.module_bytes,
            parameter_bytes=facts.stored_bytes,
            shows=tuple(describe_facts(facts)),
        )
        if variant.is_baseline:
            return
        if baseline is None:
            note = "the baseline has no module, so that nothing shows what the recipe changes"
            self._variants[variant.label] = replace(known, notes=(note,))
            return
        same = baseline.digest == facts.digest
        if same and variant.quantization.recipe.kind == COMPILER and variant.sparsity is None:
            reason = "the compiler makes the same module as for the baseline: the recipe changes nothing here"
            self._variants[variant.label] = replace(known, status=SAME, reason=reason)
            return
        problems = [
            problem
            for asked in filter(None, (variant.quantization, variant.sparsity))
            for problem in find_unproven(asked.recipe.proof, facts, baseline, self.builds[variant.side].changed_bytes)
        ]
        if problems:
            self._refuse(variant, "failed", Doubt.UNPROVEN, "; ".join(problems))

    def benchmark(self, step: Step) -> Result:
        """Measures all variants, or looks at what one of them takes."""
        if step.role == MAIN:
            return self._measure(step)
        if not step.role.startswith(TRACE):
            return self._profile_memory(step)
        variant = self._find_variant(step.role.removeprefix(TRACE))
        program, path = self.chain.made(variant, self.builds[variant.side]), Path(step.folder) / variant.label
        made = self.trace(step, program, path, tracing.VERBOSE, self._call_ms[variant.label])
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
        figures = {name: value for name, value in profile.as_dict().items() if name != "series"}
        return answer.complete(Result(Verdict.PASSED, statistics={"memory": figures}, notes=tuple(profile.lines())))

    def _find_variant(self, label: str) -> Variant:
        return next(variant for variant in self.chain.point.variants if variant.label == label)

    def _list_profiles(self) -> Sequence[Step]:
        model = self.chain.point.model
        kinds = [kind for kind, wanted in ((TRACE, model.profiler), (MEMORY_ROLE, model.memory_profiler)) if wanted]
        return tuple(self.chain.profile(variant, kind) for variant in self._list_measured() for kind in kinds)

    @property
    def _flops(self) -> int:
        """Of the unchanged model, as every build of it says."""
        return next((build.flops for build in self.builds.values()), 0)

    def _measure(self, step: Step) -> Result:
        """The statistics of the result have the point's record."""
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        if self._list_measured():
            compiles = self.chain.point.model.torch_compile
            modes = [mode for mode in _MODES[self.against] if compiles or mode == _EAGER]
            # Torch runs on the CPU here: next to another device that says nothing.
            torch = self._try_torch(step, modes) if modes and is_cpu(self.chain.device) else None
            programs: dict[str, Measurement] = {}
            for variant in self._list_measured():
                calls = _count_calls(self._call_ms[variant.label])
                plan = self.chain.made(variant, self.builds[variant.side]).plan([self.chain.device], calls)
                command = make_worker_command(self.chain, step, MODULE_WORKER, plan, f"{variant.label}.")
                programs[variant.label] = make_iree_rounds(step, command)
            taker = BlockTaker(self.session, replace_disturbed=self.replace_disturbed)
            status = self.session.progress.status
            self._blocks = take_interleaved(
                taker, self.chain.id, programs, torch, lambda number: status(f"block {number}")
            )
        if self.session.cancelled.is_set():
            return Result(Verdict.ERROR, "interrupted")
        verdict, reason = self._find_verdict()
        record = self._make_record()
        return Result(verdict, reason, statistics={MICRO: record.as_dict()}, notes=record.notes)

    def _try_torch(self, step: Step, modes: Sequence[str]) -> TorchRound | None:
        """Runs each program of torch once, checks its outputs, and decides how many calls a round has."""
        programs: dict[str, PeerProgram] = {}
        expected = []
        for mode in modes:
            for side, variant in {variant.side: variant for variant in reversed(self._list_measured())}.items():
                name, folder, build = _name_torch_program(mode, side), self.chain.exported(side), self.builds[side]
                compile_mode = self.chain.point.model.torch_compile_mode
                builder = asdict(self.chain.plan(side))
                programs[name] = PeerProgram(name, folder, builder, mode, compile_mode, TRIAL_CALLS)
                expected.append(Expected(folder, build.programs[0].outputs, self.chain.allowed(variant, build)))
        code = Path(step.folder) / "torch" / CODE_FOLDER
        script = PeerScript(step, "torch", self.chain.torch.path, "measure_torch", code)
        tried = script.try_programs(self.session, "torch.trial.plan", "torch.trial.", list(programs.values()), expected)
        for name, found in zip(list(programs), tried, strict=True):
            if found.error or found.first_call_ms is None:
                self._problems[name] = found.error
                del programs[name]
                continue
            self._first_call_ms[name] = found.first_call_ms
            programs[name] = replace(programs[name], calls=_count_calls(statistics.median(found.call_ms)))
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
        notes = [f"{name}: not measured: {problem}" for name, problem in self._problems.items()]
        if blocks.too_disturbed:
            notes.append(
                f"{blocks.count} of {BLOCKS} blocks: the machine is too busy, for example: {blocks.main_disturbance}"
            )
        if blocks.marked:
            rounds = "1 round was" if blocks.marked == 1 else f"{blocks.marked} rounds were"
            notes.append(f"{rounds} disturbed, for example: {blocks.main_disturbance}")
        return PointRecord(
            point=facts,
            variants=tuple(map(self._make_variant, self.chain.point.variants)),
            blocks=blocks.count,
            # One that failed ends them: no other took its place.
            replaced=blocks.replaced - bool(blocks.failure),
            seconds=round(time.monotonic() - self._began, 3),
            notes=tuple(notes),
        )

    def _make_variant(self, variant: Variant) -> VariantRecord:
        known, blocks = self._variants[variant.label], self._blocks
        # One that is the baseline's module has the baseline's times.
        name = BASELINE if known.status == SAME else variant.label
        ratio = None if variant.is_baseline or known.status != MEASURED else speedup(blocks, name, BASELINE)
        own = median_ms(blocks, name)
        return replace(
            known,
            iree=None if own is None else IreeTimes(own, ratio),
            torch_eager=self._compare_torch(_EAGER, variant.side, name),
            torch_compile=self._compare_torch(_COMPILED, variant.side, name),
            peak_rss_bytes=blocks.peak_bytes.get(name) or known.peak_rss_bytes,
            roofline=self._find_share(variant),
        )

    def _compare_torch(self, mode: str, side: str, own: str) -> TorchTimes | None:
        """Torch's time of what torch makes for a variant, next to torch's baseline and to IREE's variant."""
        blocks, name = self._blocks, _name_torch_program(mode, side)
        time = median_ms(blocks, name)
        if time is None:
            return None
        return TorchTimes(
            time,
            self._first_call_ms.get(name),
            None if side == BASELINE else speedup(blocks, name, _name_torch_program(mode, BASELINE)),
            speedup(blocks, own, name),
        )

    def _find_share(self, variant: Variant) -> PeakShare | None:
        """How much of what the machine can do at best a variant reaches."""
        time_ms = median_ms(self._blocks, variant.label)
        roofline = None if explain_no_roofline(self.chain.device) else self.roofline
        known = self._variants[variant.label]
        if roofline is None or time_ms is None or known.parameter_bytes is None:
            return None
        build = self.builds[variant.side].programs[0]
        folder = self.chain.exported(variant.side)
        tensors = sum((folder / item.file).stat().st_size for item in (*build.inputs, *build.outputs))
        return PeakShare(*roofline.share(self._flops, known.parameter_bytes + tensors, time_ms))

    def _find_verdict(self) -> tuple[Verdict, str]:
        blocks = self._blocks
        if unread := self._join_reasons(Doubt.UNREAD):
            return Verdict.ERROR, unread
        if blocks.failure:
            return Verdict.ERROR, shorten(blocks.failure)
        if unproven := self._join_reasons(Doubt.UNPROVEN):
            return Verdict.FAILED, unproven
        if not self._list_measured():
            return Verdict.SKIPPED, "no variant came as far as to be measured"
        if blocks.count < BLOCKS:
            return Verdict.INCONCLUSIVE, shorten(f"{blocks.count} of {BLOCKS} blocks: {blocks.main_disturbance}")
        return Verdict.PASSED, ""

    def _join_reasons(self, doubt: Doubt) -> str:
        """Of all variants of which it is doubted for that."""
        doubted = (label for label, own in self._doubts.items() if own is doubt)
        return shorten("; ".join(f"{label}: {self._variants[label].reason}" for label in doubted))


def _name_torch_program(mode: str, label: str) -> str:
    """Of a program of torch: `torch eager int8wo`."""
    return f"torch {mode} {label}"


def _count_calls(call_ms: float) -> int:
    """How many calls a round has."""
    return max(TRIAL_CALLS, math.ceil(_ROUND_MS / call_ms))


def _measure_distance(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> NumberErrors:
    """How far float outputs are from what they should be, all of them together."""
    total = Distance()
    if len(actual) != len(expected):
        raise GauntletError(f"{len(actual)} outputs, and the unchanged model has {len(expected)}")
    for mine, wanted in zip(actual, expected, strict=True):
        if is_float(wanted.element_type) and mine.shape != wanted.shape:
            raise GauntletError(f"an output of shape {mine.shape}, and the unchanged model's is {wanted.shape}")
        total += Distance.measure(mine, wanted)
    relative = math.inf if total.noise and not total.power else total.relative
    decibel = math.inf if relative == 0 else -20.0 * math.log10(relative)
    return NumberErrors(total.peak_error, relative, decibel)
