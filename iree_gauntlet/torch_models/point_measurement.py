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

import json
import math
import random
import shutil
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Origin, Stage, Verdict
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import blocked
from iree_gauntlet.engine.rounds.blocks import BlockTaker, PlannedBlock, RoundsEvidence, seed_of
from iree_gauntlet.measuring.statistics.comparison_verdict import compare_log_ratios
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import Step, StepInput
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.toolchains.toolchain import COMPILE
from iree_gauntlet.torch_models.build_plan import VariantPlan
from iree_gauntlet.torch_models.formats import Tolerance, find_tolerance
from iree_gauntlet.torch_models.peers import (
    BLOCKS,
    CODE_FOLDER,
    ONE_LOOK,
    SEED,
    TRIAL_CALLS,
    WARM_UP_CALLS,
    Expected,
    make_iree_rounds,
    make_peer_rounds,
    make_ratio_figures,
    try_peer,
)
from iree_gauntlet.torch_models.plugins import BUILTIN_FILES
from iree_gauntlet.torch_models.recipe_registry import BASELINE
from iree_gauntlet.torch_models.roofline import Roofline, explain_no_roofline
from iree_gauntlet.torch_models.torch_chain import (
    MODULE_WORKER,
    CompiledProgram,
    TorchChain,
    list_runnable_files,
    make_torch_words,
    make_worker_command,
    write_planned_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import Measurement, TakenRound
    from iree_gauntlet.engine.session import Session
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
_ATTEMPTS = 3
_KIND = "micro"
# How long the calls of a round take, of a program that is fast enough for three of them in that time.
_ROUND_MS = 100.0
# The start of torch has this name in the log; it is no label of a recipe.
_TORCH = "torch "
MEASURED = "measured"
# The compiler made the same module as for the baseline: the recipe changes nothing here.
SAME = "same module"
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
        """Imports, compiles and checks every variant whose model was exported.

        Args:
            hashes: SHA-256 of the program and its weights by file name, by label of what torch made.
        """
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


@dataclass(frozen=True, slots=True)
class TorchRound:
    """The start of torch in the middle of a block."""

    measurement: Measurement
    plan: Mapping[str, Any]
    programs: Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class PointEvidence(RoundsEvidence):
    """What was measured of a point.

    Attributes:
        times: ms by name of a program, one item for each block: two rounds of IREE, one of torch.
    """

    times: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    marked: int = 0


@dataclass(slots=True)
class InterleavedRounds:
    """Takes blocks of a point.

    Attributes:
        torch: those of torch; None for none.
    """

    taker: BlockTaker
    name: str
    iree: Mapping[str, Measurement]
    torch: TorchRound | None
    _torch_order: list[str] = field(default_factory=list)
    _lots: random.Random = field(init=False)

    def __post_init__(self) -> None:
        # It draws lots for orders, and nothing secret.
        self._lots = random.Random(seed_of(SEED, self.name, _KIND))  # noqa: S311

    def take(self, progress: Callable[[int], None]) -> PointEvidence:
        """All blocks; fewer where a program fails, the machine is too busy, or it is cut short.

        Args:
            progress: is called with the number of each block before it begins, from 1 on.

        Raises:
            GauntletError: a process cannot be started at all, or the log cannot be written.
        """
        found = PointEvidence()
        while found.count < BLOCKS and self.taker.goes_on(found):
            progress(found.count + 1)
            order = list(self.iree)
            self._lots.shuffle(order)
            there = [(name, self.iree[name]) for name in order]
            middle = [] if self.torch is None else [(_TORCH, self._torch_round(self.torch))]
            block = PlannedBlock(self.name, _KIND, order, [*there, *middle, *there[::-1]], _ATTEMPTS)
            self._keep(found, self.taker.take(block, found))
        return found

    def _torch_round(self, torch: TorchRound) -> Measurement:
        self._torch_order = list(torch.programs)
        self._lots.shuffle(self._torch_order)
        plan = {**torch.plan, "models": [torch.programs[name] for name in self._torch_order]}
        write_atomic(Path(torch.measurement.command.argv[-1]), json.dumps(plan, indent=1))
        return torch.measurement

    def _keep(self, found: PointEvidence, rounds: Sequence[tuple[str, TakenRound]]) -> None:
        """The times of a block that counts."""
        times: dict[str, tuple[float, ...]] = {}
        for name, taken in rounds:
            found.marked += bool(taken.disturbed)
            names = self._torch_order if name == _TORCH else (name,)
            for each, spent in zip(names, taken.times, strict=True):
                times[each] = (*times.get(each, ()), spent)
        for name, values in times.items():
            found.times.setdefault(name, []).append(values)


@dataclass(slots=True)
class TorchTrial:
    """A trial of torch.

    Attributes:
        round: for the blocks; None where nothing of torch's can be measured.
    """

    round: TorchRound | None = None
    problems: dict[str, str] = field(default_factory=dict)
    first_call_ms: dict[str, float] = field(default_factory=dict)


def _name_torch_program(mode: str, label: str) -> str:
    """Of a program of torch: `torch eager int8wo`."""
    return f"torch {mode} {label}"


def _count_calls(call_ms: float) -> int:
    """How many calls a round has."""
    return max(TRIAL_CALLS, math.ceil(_ROUND_MS / call_ms))


def _try_programs(
    step: Step,
    chain: PointChain,
    builds: Mapping[str, BuildRecord],
    variants: Sequence[Variant],
    modes: Sequence[str],
    session: Session[Any],
) -> TorchTrial:
    """Runs each program of torch once, checks its outputs, and decides how many calls a round of it has."""
    folder = Path(step.folder) / "torch"
    outputs = folder / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    programs: dict[str, dict[str, Any]] = {}
    expected = []
    for mode in modes:
        for side, variant in {variant.side: variant for variant in reversed(variants)}.items():
            name, allowed = _name_torch_program(mode, side), chain.allowed(variant, builds[side])
            programs[name] = {
                "name": name,
                "builder": asdict(chain.plan(side)),
                "build": str(chain.exported(side)),
                "mode": mode,
                "compile_mode": chain.point.model.torch_compile_mode,
                "calls": TRIAL_CALLS,
            }
            expected.append(Expected(chain.exported(side), builds[side].programs[0].outputs, allowed))

    words = make_torch_words(chain.torch.path, "iree_gauntlet.torch_models.measure_torch")
    env = (("TORCHINDUCTOR_CACHE_DIR", str(folder / CODE_FOLDER)),)
    plan: dict[str, Any] = {
        "models": list(programs.values()),
        "warm_up_calls": WARM_UP_CALLS,
        "compile_threads": None,
        "outputs": str(outputs),
    }
    first = make_peer_rounds(step, write_planned_command(step, words, plan, "torch.trial.", env), "torch")
    trial = TorchTrial()
    for name, tried in zip(list(programs), try_peer(session, first, "torch.trial.", outputs, expected), strict=True):
        if tried.problem or tried.first_call_ms is None:
            trial.problems[name] = tried.problem
            del programs[name]
            continue
        trial.first_call_ms[name] = tried.first_call_ms
        programs[name]["calls"] = _count_calls(tried.call_ms)
    shutil.rmtree(outputs)
    if programs:
        # Compiled before: torch.compile's processes would be work next to what is measured.
        plan |= {"models": list(programs.values()), "compile_threads": 1, "outputs": ""}
        command = write_planned_command(step, words, plan, "torch.", env)
        trial.round = TorchRound(make_peer_rounds(step, command, "torch"), plan, programs)
    return trial


class Doubt(StrEnum):
    """Why nothing shows that a module is what its recipe promises; a reason begins with it."""

    UNREAD = "what its module shows cannot be read"
    UNPROVEN = "the module is not what the recipe promises"


@dataclass(slots=True)
class VariantFigures:
    """What is known of a variant before it is measured, and besides that.

    Attributes:
        status: `measured`, `same module`, `skipped`, `failed` or `error`.
        reason: why it is not measured; empty where it is.
        figures: of its threshold step; empty where it did not get so far.
        module_bytes, parameter_bytes: of its files; None where there are none.
        compile_s: seconds of its compiler, when the module was made.
    """

    status: str = MEASURED
    reason: str = ""
    doubt: Doubt | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    module_bytes: int | None = None
    parameter_bytes: int | None = None
    compile_s: float | None = None
    shows: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def speedup(blocks: PointEvidence, name: str, over: str) -> dict[str, Any] | None:
    """How many times as fast a program is as another one, as `make_ratio_figures` has it; None without times."""
    own, other = blocks.times.get(name), blocks.times.get(over)
    if not own or not other:
        return None
    theirs, mine = (np.array([statistics.fmean(map(math.log, block)) for block in each]) for each in (other, own))
    return make_ratio_figures(compare_log_ratios(theirs - mine, ONE_LOOK))


def median_ms(blocks: PointEvidence, name: str) -> float | None:
    """Median over all rounds of a program; None without any."""
    times = [time for block in blocks.times.get(name, ()) for time in block]
    return statistics.median(times) if times else None


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
    session: Session[Any]
    measuring: Measuring
    builds: Mapping[str, BuildRecord]
    found: Mapping[str, VariantFigures]
    flops: int
    began: float

    _trial: TorchTrial = field(default_factory=TorchTrial)
    _blocks: PointEvidence = field(default_factory=PointEvidence)

    @property
    def wanted(self) -> list[Variant]:
        """The variants that can be measured."""
        return [variant for variant in self.chain.point.variants if self.found[variant.label].status == MEASURED]

    def run(self, step: Step) -> Result:
        """The step's result; its statistics have the point's record as `micro`.

        Raises:
            GauntletError: a process cannot be started at all, or what it left cannot be read.
        """
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        if self.wanted:
            compiles = self.chain.point.model.torch_compile
            modes = [mode for mode in _MODES[self.measuring.against] if compiles or mode == _EAGER]
            # Torch runs on the CPU here: next to another device that says nothing.
            if modes and self.chain.device.startswith("local-"):
                self._trial = _try_programs(step, self.chain, self.builds, self.wanted, modes, self.session)
            self._take_rounds(step)
        if self.session.cancelled.is_set():
            return Result(Verdict.ERROR, "interrupted")
        verdict, reason = self._verdict()
        record = self._record()
        return Result(verdict, reason, statistics={"micro": record}, notes=tuple(record["notes"]))

    def _take_rounds(self, step: Step) -> None:
        programs: dict[str, Measurement] = {}
        for variant in self.wanted:
            compiled = self.chain.made(variant, self.builds[variant.side])
            calls = _count_calls(float(self.found[variant.label].figures["call_ms"]))
            plan = compiled.plan([self.chain.device], calls)
            command = make_worker_command(self.chain, step, MODULE_WORKER, plan, f"{variant.label}.")
            programs[variant.label] = make_iree_rounds(step, command)
        taker = BlockTaker(self.session, replace_disturbed=self.measuring.replace_disturbed)
        rounds = InterleavedRounds(taker, self.chain.id, programs, self._trial.round)
        self._blocks = rounds.take(lambda number: self.session.progress.status(f"block {number}"))

    def _record(self) -> dict[str, Any]:
        model, shape, blocks = self.chain.point.model, self.chain.point.shape, self._blocks
        return {
            "point": {
                "name": model.name,
                "model_type": model.model_type.text,
                "shape": shape.name,
                "m": shape.m,
                "k": shape.k,
                "n": shape.n,
                "label": shape.label,
                "dtype": model.dtype,
                "device": self.chain.device,
                "flops": self.flops,
                "torch_compile_mode": model.torch_compile_mode,
            },
            "variants": [self._variant(variant) for variant in self.chain.point.variants],
            "blocks": blocks.count,
            # One that failed ends them: no other took its place.
            "replaced": blocks.replaced - bool(blocks.failure),
            "seconds": round(time.monotonic() - self.began, 3),
            "notes": self._notes(),
        }

    def _variant(self, variant: Variant) -> dict[str, Any]:
        known, blocks = self.found[variant.label], self._blocks
        # One that is the baseline's module has the baseline's times.
        name = BASELINE if known.status == SAME else variant.label
        ratio = None if variant.is_baseline or known.status != MEASURED else speedup(blocks, name, BASELINE)
        own = median_ms(blocks, name)
        memory = known.figures.get("device_memory", {})
        return {
            "label": variant.label,
            "quantization": variant.quantization.text,
            "sparsity": variant.sparsity.text if variant.sparsity else None,
            "kind": "sparsity" if variant.sparsity else variant.quantization.recipe.kind,
            "status": known.status,
            "reason": known.reason,
            "iree": None if own is None else {"ms": own, "speedup": ratio},
            "torch_eager": self._torch(_EAGER, variant.side, name),
            "torch_compile": self._torch(_COMPILED, variant.side, name),
            **{figure: known.figures.get(figure) for figure in ("error", "agreement", "first_call_ms")},
            "module_bytes": known.module_bytes,
            "parameter_bytes": known.parameter_bytes,
            "peak_rss_bytes": blocks.peak_bytes.get(name) or known.figures.get("peak_rss_bytes"),
            "device_peak_bytes": memory.get("device_bytes_peak"),
            "compile_s": known.compile_s,
            "roofline": self._share(variant),
            "shows": known.shows,
            "notes": known.notes,
        }

    def _torch(self, mode: str, side: str, own: str) -> dict[str, Any] | None:
        """Torch's time of what torch makes for a variant, next to torch's baseline and to IREE's variant."""
        blocks, name = self._blocks, _name_torch_program(mode, side)
        time = median_ms(blocks, name)
        if time is None:
            return None
        return {
            "ms": time,
            "first_call_ms": self._trial.first_call_ms.get(name),
            "speedup": None if side == BASELINE else speedup(blocks, name, _name_torch_program(mode, BASELINE)),
            "beside_iree": speedup(blocks, own, name),
        }

    def _notes(self) -> list[str]:
        blocks = self._blocks
        notes = [f"{name}: not measured: {problem}" for name, problem in self._trial.problems.items()]
        if blocks.too_disturbed:
            notes.append(
                f"{blocks.count} of {BLOCKS} blocks: the machine is too busy, for example: {blocks.main_disturbance}"
            )
        if blocks.marked:
            rounds = "1 round was" if blocks.marked == 1 else f"{blocks.marked} rounds were"
            notes.append(f"{rounds} disturbed, for example: {blocks.main_disturbance}")
        return notes

    def _share(self, variant: Variant) -> dict[str, Any] | None:
        """How much of what the machine can do at best a variant reaches."""
        time_ms = median_ms(self._blocks, variant.label)
        roofline = None if explain_no_roofline(self.chain.device) else self.measuring.roofline
        known = self.found[variant.label]
        if roofline is None or time_ms is None or known.parameter_bytes is None:
            return None
        build = self.builds[variant.side].programs[0]
        folder = self.chain.exported(variant.side)
        tensors = sum((folder / item.file).stat().st_size for item in (*build.inputs, *build.outputs))
        share, bound = roofline.share(self.flops, known.parameter_bytes + tensors, time_ms)
        return {"share": share, "bound": bound}

    def _verdict(self) -> tuple[Verdict, str]:
        blocks = self._blocks
        if unread := self._reasons(Doubt.UNREAD):
            return Verdict.ERROR, unread
        if blocks.failure:
            return Verdict.ERROR, shorten(blocks.failure)
        if unproven := self._reasons(Doubt.UNPROVEN):
            return Verdict.FAILED, unproven
        if not self.wanted:
            return Verdict.SKIPPED, "no variant came as far as to be measured"
        if blocks.count < BLOCKS:
            return Verdict.INCONCLUSIVE, shorten(f"{blocks.count} of {BLOCKS} blocks: {blocks.main_disturbance}")
        return Verdict.PASSED, ""

    def _reasons(self, doubt: Doubt) -> str:
        """Of all variants of which it is doubted for that."""
        doubted = (f"{label}: {known.reason}" for label, known in self.found.items() if known.doubt is doubt)
        return shorten("; ".join(doubted))
