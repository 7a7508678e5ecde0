"""The steps of a point; and its benchmark: torch is tried, rounds of all variants are taken, the record is written.

The record is what the journal keeps of a point, and every report is made of. In each block two programs give a log
ratio, of the mean logs of their rounds. The interval of a speed-up is the exact one of `paired.py` at 95 %, looked at
once, after all blocks; words are those of `compare`: faster or slower from 1 % on, the same within 3 %. Each interval
is one by itself: of a hundred of them, five may miss.

A block is one go over all programs in random order, and back in the opposite order: whatever grows linearly
over it (a clock that heats up) falls on all of them alike. Each round of IREE is a process start of its own. Between
the two halves stands one start of torch, which runs its own programs one after the other, each once, in an order drawn
by lot too: a start of torch takes seconds. Before the first block, torch's programs are tried (`peers.py`).

A round that other work disturbed is taken again, a few times; a block in which one stays disturbed is no evidence, and
another one takes its place. Rounds are never left out for their times.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Origin, Stage, Verdict
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import blocked
from iree_gauntlet.engine.rounds.blocks import BlockTaker
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
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import Step, StepInput
from iree_gauntlet.toolchains.toolchain import COMPILE
from iree_gauntlet.torch_models.agreement import OutputErrors  # noqa: TC001 - a record's field is read by its type
from iree_gauntlet.torch_models.build_plan import PeerProgram, VariantPlan
from iree_gauntlet.torch_models.formats import Tolerance, find_tolerance
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
from iree_gauntlet.torch_models.plugins import BUILTIN_FILES
from iree_gauntlet.torch_models.recipe_registry import BASELINE
from iree_gauntlet.torch_models.roofline import Roofline, explain_no_roofline
from iree_gauntlet.torch_models.torch_chain import (
    MODULE_WORKER,
    CompiledProgram,
    TorchChain,
    list_runnable_files,
    make_worker_command,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.torch_models.build_folder import BuildRecord
    from iree_gauntlet.torch_models.configuration import SweepPoint, Variant


DIALECT = "micro"
PROGRAM = "main.onnx"
# The role of a benchmark step that traces a variant: this, and the variant's label.
TRACE = "trace."
# The worst value of an output, in units of the tolerance of its rms (see `formats.py`).
_PEAK = 4.0
_EAGER = "eager"
_COMPILED = "compile"
# How long the calls of a round take, of a program that is fast enough for three of them in that time.
_ROUND_MS = 100.0
_MODES = {"torch": (_EAGER, _COMPILED), "torch-eager": (_EAGER,), "none": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointChain(TorchChain):
    """The steps of one point; its flags are those of every recipe.

    Attributes:
        plugins: files with further recipes and architectures, absolute.
    """

    point: SweepPoint
    config: Path
    plugins: tuple[Path, ...]

    dialect: ClassVar[str] = DIALECT
    builder: ClassVar[str] = "iree_gauntlet.torch_models.building_variant"
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
        refusals = {variant.side: variant.refusal for variant in self.point.variants}
        return tuple(
            replace(self.step(Stage.EXPORT, label), skip=refusal)
            if refusal
            else self.exporting(label, self.plan(label), ingredients, files)
            for label, refusal in refusals.items()
        )

    def plan(self, label: str) -> VariantPlan:
        """The builder's plan, but for the folder."""
        recipes = {variant.side: variant.torch_recipes for variant in self.point.variants}
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
            label = variant.side
            if label not in hashes:
                continue
            onnx = self.exported(label) / PROGRAM
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
            check = self.step(Stage.THRESHOLD, variant.label)
            steps += [compiled, self.ran(check, list_runnable_files(compiled, imports[label]), (compiled.id,))]
        return tuple(steps)

    def benchmark(self, variants: Sequence[Variant]) -> Step:
        """Measures variants together; it takes the machine for each block of rounds by itself."""
        return self.ran(self.step(Stage.BENCHMARK), [self._input(variant) for variant in variants], cores=0)

    def profile(self, variant: Variant, kind: str) -> Step:
        """Traces a variant (`TRACE`), or watches its memory (`MEMORY_ROLE`)."""
        step = self.step(Stage.BENCHMARK, f"{kind}{variant.label}")
        return self.ran(step, [self._input(variant)], exclusive=True)

    def made(self, variant: Variant, build: BuildRecord) -> CompiledProgram:
        """A variant as it was built and compiled."""
        return self.compiled(build.programs[0], variant.label, variant.side)

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

    def _input(self, variant: Variant) -> StepInput:
        return StepInput("module", str(self.module(variant)))


def _name_torch_program(mode: str, label: str) -> str:
    """Of a program of torch: `torch eager int8wo`."""
    return f"torch {mode} {label}"


def _count_calls(call_ms: float) -> int:
    """How many calls a round has."""
    return max(TRIAL_CALLS, math.ceil(_ROUND_MS / call_ms))


class Doubt(StrEnum):
    """Why nothing shows that a module is what its recipe promises; a reason begins with it."""

    UNREAD = "what its module shows cannot be read"
    UNPROVEN = "the module is not what the recipe promises"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCheck(Recorded):
    """What the result of a variant's check has as its statistics; None is what is not known.

    Attributes:
        agreement: with torch eager for the same recipe.
        error: of the recipe.
    """

    agreement: OutputErrors | None = None
    error: NumberErrors | None = None
    call_ms: float = 0.0
    first_call_ms: float | None = None
    peak_rss_bytes: int | None = None
    device_memory: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class VariantFigures:
    """What is known of a variant before it is measured, and besides that.

    Attributes:
        status: `measured`, `same module`, `skipped`, `failed` or `error`.
        reason: why it is not measured; empty where it is.
        checked: what its check says; nothing where it did not pass, or get so far.
        module_bytes, parameter_bytes: of its files; None where there are none.
        compile_s: seconds of its compiler, when the module was made.
    """

    status: str = MEASURED
    reason: str = ""
    doubt: Doubt | None = None
    checked: VariantCheck = VariantCheck()
    module_bytes: int | None = None
    parameter_bytes: int | None = None
    compile_s: float | None = None
    shows: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measuring:
    """How points are measured.

    Attributes:
        against: `torch` (eager and compiled), `torch-eager` or `none`.
        roofline: what the machine does at its best; None where that is not known.
    """

    against: str
    replace_disturbed: bool
    roofline: Roofline | None


@dataclass(slots=True)
class PointMeasurement:
    """Measures a point."""

    chain: PointChain
    session: Session[EventLog]
    measuring: Measuring
    builds: Mapping[str, BuildRecord]
    found: Mapping[str, VariantFigures]
    flops: int
    began: float

    _problems: dict[str, str] = field(default_factory=dict)
    _first_call_ms: dict[str, float] = field(default_factory=dict)
    _blocks: PointEvidence = field(default_factory=PointEvidence)

    @property
    def wanted(self) -> list[Variant]:
        """The variants that can be measured."""
        return [variant for variant in self.chain.point.variants if self.found[variant.label].status == MEASURED]

    def run(self, step: Step) -> Result:
        """The step's result; its statistics have the point's record as `micro`."""
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        if self.wanted:
            compiles = self.chain.point.model.torch_compile
            modes = [mode for mode in _MODES[self.measuring.against] if compiles or mode == _EAGER]
            # Torch runs on the CPU here: next to another device that says nothing.
            torch = self._try_torch(step, modes) if modes and self.chain.device.startswith("local-") else None
            self._take_rounds(step, torch)
        if self.session.cancelled.is_set():
            return Result(Verdict.ERROR, "interrupted")
        verdict, reason = self._judge()
        record = self._make_record()
        return Result(verdict, reason, statistics={MICRO: record.as_dict()}, notes=record.notes)

    def _try_torch(self, step: Step, modes: Sequence[str]) -> TorchRound | None:
        """Runs each program of torch once, checks its outputs, and decides how many calls a round of it has.

        What can be measured; None where nothing can.
        """
        programs: dict[str, PeerProgram] = {}
        expected = []
        for mode in modes:
            for side, variant in {variant.side: variant for variant in reversed(self.wanted)}.items():
                name, folder, build = _name_torch_program(mode, side), self.chain.exported(side), self.builds[side]
                compile_mode = self.chain.point.model.torch_compile_mode
                builder = asdict(self.chain.plan(side))
                programs[name] = PeerProgram(name, folder, builder, mode, compile_mode, TRIAL_CALLS)
                expected.append(Expected(folder, build.programs[0].outputs, self.chain.allowed(variant, build)))
        code = Path(step.folder) / "torch" / CODE_FOLDER
        script = PeerScript.of(step, "torch", self.chain.torch.path, "measure_torch", (), code)
        tried = script.try_programs(self.session, "torch.trial.plan", "torch.trial.", list(programs.values()), expected)
        for name, found in zip(list(programs), tried, strict=True):
            if found.problem or found.first_call_ms is None:
                self._problems[name] = found.problem
                del programs[name]
                continue
            self._first_call_ms[name] = found.first_call_ms
            programs[name] = replace(programs[name], calls=_count_calls(found.call_ms))
        if not programs:
            return None
        return TorchRound(
            tuple(programs), lambda order: script.plan_rounds("torch.plan", [programs[name] for name in order])
        )

    def _take_rounds(self, step: Step, torch: TorchRound | None) -> None:
        programs: dict[str, Measurement] = {}
        for variant in self.wanted:
            compiled = self.chain.made(variant, self.builds[variant.side])
            calls = _count_calls(self.found[variant.label].checked.call_ms)
            plan = compiled.plan([self.chain.device], calls)
            command = make_worker_command(self.chain, step, MODULE_WORKER, plan, f"{variant.label}.")
            programs[variant.label] = make_iree_rounds(step, command)
        taker = BlockTaker(self.session, replace_disturbed=self.measuring.replace_disturbed)
        status = self.session.progress.status
        self._blocks = take_interleaved(taker, self.chain.id, programs, torch, lambda number: status(f"block {number}"))

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
            flops=self.flops,
            torch_compile_mode=model.torch_compile_mode,
        )
        return PointRecord(
            point=facts,
            variants=tuple(map(self._make_variant, self.chain.point.variants)),
            blocks=blocks.count,
            # One that failed ends them: no other took its place.
            replaced=blocks.replaced - bool(blocks.failure),
            seconds=round(time.monotonic() - self.began, 3),
            notes=tuple(self._list_notes()),
        )

    def _make_variant(self, variant: Variant) -> VariantRecord:
        known, blocks = self.found[variant.label], self._blocks
        # One that is the baseline's module has the baseline's times.
        name = BASELINE if known.status == SAME else variant.label
        ratio = None if variant.is_baseline or known.status != MEASURED else speedup(blocks, name, BASELINE)
        own, checked = median_ms(blocks, name), known.checked
        return VariantRecord(
            label=variant.label,
            quantization=variant.quantization.text,
            sparsity=variant.sparsity.text if variant.sparsity else None,
            kind="sparsity" if variant.sparsity else variant.quantization.recipe.kind,
            status=known.status,
            reason=known.reason,
            iree=None if own is None else IreeTimes(own, ratio),
            torch_eager=self._compare_torch(_EAGER, variant.side, name),
            torch_compile=self._compare_torch(_COMPILED, variant.side, name),
            error=checked.error,
            agreement=checked.agreement.as_dict() if checked.agreement else None,
            first_call_ms=checked.first_call_ms,
            module_bytes=known.module_bytes,
            parameter_bytes=known.parameter_bytes,
            peak_rss_bytes=blocks.peak_bytes.get(name) or checked.peak_rss_bytes,
            device_peak_bytes=checked.device_memory.get("device_bytes_peak"),
            compile_s=known.compile_s,
            roofline=self._find_share(variant),
            shows=tuple(known.shows),
            notes=tuple(known.notes),
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

    def _list_notes(self) -> list[str]:
        blocks = self._blocks
        notes = [f"{name}: not measured: {problem}" for name, problem in self._problems.items()]
        if blocks.too_disturbed:
            notes.append(
                f"{blocks.count} of {BLOCKS} blocks: the machine is too busy, for example: {blocks.main_disturbance}"
            )
        if blocks.marked:
            rounds = "1 round was" if blocks.marked == 1 else f"{blocks.marked} rounds were"
            notes.append(f"{rounds} disturbed, for example: {blocks.main_disturbance}")
        return notes

    def _find_share(self, variant: Variant) -> PeakShare | None:
        """How much of what the machine can do at best a variant reaches."""
        time_ms = median_ms(self._blocks, variant.label)
        roofline = None if explain_no_roofline(self.chain.device) else self.measuring.roofline
        known = self.found[variant.label]
        if roofline is None or time_ms is None or known.parameter_bytes is None:
            return None
        build = self.builds[variant.side].programs[0]
        folder = self.chain.exported(variant.side)
        tensors = sum((folder / item.file).stat().st_size for item in (*build.inputs, *build.outputs))
        return PeakShare(*roofline.share(self.flops, known.parameter_bytes + tensors, time_ms))

    def _judge(self) -> tuple[Verdict, str]:
        blocks = self._blocks
        if unread := self._join_reasons(Doubt.UNREAD):
            return Verdict.ERROR, unread
        if blocks.failure:
            return Verdict.ERROR, shorten(blocks.failure)
        if unproven := self._join_reasons(Doubt.UNPROVEN):
            return Verdict.FAILED, unproven
        if not self.wanted:
            return Verdict.SKIPPED, "no variant came as far as to be measured"
        if blocks.count < BLOCKS:
            return Verdict.INCONCLUSIVE, shorten(f"{blocks.count} of {BLOCKS} blocks: {blocks.main_disturbance}")
        return Verdict.PASSED, ""

    def _join_reasons(self, doubt: Doubt) -> str:
        """Of all variants of which it is doubted for that."""
        doubted = (f"{label}: {known.reason}" for label, known in self.found.items() if known.doubt is doubt)
        return shorten("; ".join(doubted))
