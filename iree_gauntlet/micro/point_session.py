"""A point while it runs: its models are made and exported, compiled and checked, and measured beside each other."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import worker
from iree_gauntlet.bench.build_folder import BUILD_FILE, read_build
from iree_gauntlet.bench.exporting import Exporter, unshare_weights
from iree_gauntlet.bench.measuring_worker import MODULE_WORKER, planned_command
from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.micro.checking import check_variant, module_plan
from iree_gauntlet.micro.interleaved import BLOCKS, Blocks, InterleavedRounds
from iree_gauntlet.micro.module_facts import prove, read_module_facts, shows
from iree_gauntlet.micro.point_chain import MEMORY, TRACE
from iree_gauntlet.micro.point_profiles import profile_memory, trace_variant
from iree_gauntlet.micro.points import COMPILER, torch_side
from iree_gauntlet.micro.record import MEASURED, SAME, VariantFigures, point_record
from iree_gauntlet.micro.registry import BASELINE
from iree_gauntlet.micro.roofline import why_no_roofline
from iree_gauntlet.micro.torch_rounds import COMPILE, EAGER, TorchTrial, calls_of, try_torch
from iree_gauntlet.running.plan_places import step_id
from iree_gauntlet.running.results import Result, shorten
from iree_gauntlet.running.rounds import Measurement, gpu_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.bench.build_folder import Build
    from iree_gauntlet.bench.session import Doors
    from iree_gauntlet.micro.configuration import Variant
    from iree_gauntlet.micro.module_facts import ModuleFacts
    from iree_gauntlet.micro.point_chain import PointChain
    from iree_gauntlet.micro.roofline import Roofline
    from iree_gauntlet.running.steps import Step

__all__ = ["Measuring", "PointSession"]

# Of the lots that choose the order of rounds: the same for everybody, so that a run can be repeated.
_SEED = 1
# How long the calls of a round take, of a program that is fast enough for three of them in that time.
_ROUND_MS = 100.0
_MODES = {"torch": (EAGER, COMPILE), "torch-eager": (EAGER,), "none": ()}


@dataclass(frozen=True, slots=True)
class Measuring:
    """How points are measured.

    Attributes:
        against: `torch` (eager and compiled), `torch-eager` or `none`.
        replace_disturbed: whether rounds that other work disturbed are taken again.
        roofline: what the machine does at its best; None where that is not known.
    """

    against: str
    replace_disturbed: bool
    roofline: Roofline | None


@dataclass(slots=True)
class PointSession:
    """Performs the steps of a point.

    Attributes:
        chain: of the point.
        doors: to the world.
        measuring: how it is measured.
        results: what each step has come to, by id: the engine's listener fills it.
        record: of the point; empty before it was measured.
    """

    chain: PointChain
    doors: Doors
    measuring: Measuring
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    _hashes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _builds: dict[str, Build] = field(default_factory=dict)
    _found: dict[str, VariantFigures] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def performers(self) -> Mapping[Stage, Callable[[Step], Result]]:
        """What executes each stage; import and compile are the engine's own."""
        return {Stage.EXPORT: self._export, Stage.THRESHOLD: self._check, Stage.BENCHMARK: self._benchmark}

    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """What there is to do, one after the other: each is planned when the one before has come to its end."""
        return (self.chain.exports, self._modules, self._measured, self._profiles)

    def tidy(self) -> None:
        """Removes what only the point itself needed: weights, tensors and modules; logs, plans and traces stay."""
        root = Path(self.chain.step(Stage.EXPORT).folder).parent
        for pattern in ("*.npy", "*.onnx", "*.onnx.data", "*.irpa", "*.vmfb", "*.ireeprof"):
            for path in root.rglob(pattern):
                path.unlink(missing_ok=True)
        shutil.rmtree(Path(self.chain.step(Stage.BENCHMARK).folder) / "torch", ignore_errors=True)

    def _export(self, step: Step) -> Result:
        label = step.id.removeprefix(step_id(self.chain.id, Stage.EXPORT) + ".")
        plan = self.chain.export_plan

        def told(folder: str) -> Mapping[str, object]:
            return plan(label, folder)

        result = Exporter(self.doors.modules, self.doors.processes, told, self.doors.cancelled).perform(step)
        if result.verdict is Verdict.PASSED:
            self._builds[label] = read_build(Path(step.folder))
            assert result.statistics is not None, "of every export that passed"
            self._hashes[label] = result.statistics["hashes"]
        return result

    def _modules(self) -> Sequence[Step]:
        steps = self.chain.modules(self._hashes)
        if any(step.stage is Stage.IMPORT and not step.cache.hit for step in steps):
            for label in self._hashes:
                unshare_weights(self.chain.exported(label))
        return steps

    def _check(self, step: Step) -> Result:
        label = step.id.removeprefix(step_id(self.chain.id, Stage.THRESHOLD) + ".")
        variant = self._variant(label)
        side = torch_side(variant).label
        return check_variant(
            step, self.chain, variant, self._builds[side], self.chain.exported(side), self.doors.processes
        )

    def _measured(self) -> Sequence[Step]:
        """The benchmark of all variants that are right, and whose modules show what their recipes promise."""
        self._found = {variant.label: self._standing(variant) for variant in self.chain.point.variants}
        facts = {variant.label: self._facts(variant) for variant in self.chain.point.variants if self._stands(variant)}
        for variant in self.chain.point.variants:
            if variant.label in facts:
                self._look(variant, facts[variant.label], facts.get(BASELINE))
        return (self.chain.benchmark([variant for variant in self.chain.point.variants if self._stands(variant)]),)

    def _stands(self, variant: Variant) -> bool:
        return self._found[variant.label].status == MEASURED

    def _standing(self, variant: Variant) -> VariantFigures:
        """What the steps before came to: the first that did not pass says why there is nothing to measure."""
        side = torch_side(variant).label
        roles = ((Stage.EXPORT, side), (Stage.IMPORT, side), (Stage.COMPILE, variant.label))
        found = VariantFigures()
        for stage, role in (*roles, (Stage.THRESHOLD, variant.label)):
            result = self.results.get(step_id(self.chain.id, stage, role))
            if result is None or result["verdict"] != Verdict.PASSED:
                found.status = "error" if result is None else str(result["verdict"])
                found.reason = f"{stage}: {result['reason'] if result else 'it did not run'}"
                return found
            if stage is Stage.COMPILE:
                found.compile_s = float((result["statistics"] or {}).get("tool_seconds", result["tool_seconds"]))
            found.figures = result["statistics"] or {}
        return found

    def _facts(self, variant: Variant) -> ModuleFacts:
        return read_module_facts(
            self.chain.toolchain, self.chain.imported(variant) / "program.mlir", self.chain.module(variant)
        )

    def _look(self, variant: Variant, facts: ModuleFacts, baseline: ModuleFacts | None) -> None:
        """Holds a module against what its recipe promises."""
        known = self._found[variant.label]
        known.module_bytes, known.parameter_bytes = facts.module_bytes, facts.stored_bytes
        known.shows = shows(facts)
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
            for problem in prove(asked.recipe.proof, facts, baseline, self._built(variant).get("changed_bytes"))
        ]
        if problems:
            known.status = "failed"
            known.reason = shorten(f"the module is not what the recipe promises: {'; '.join(problems)}")

    def _benchmark(self, step: Step) -> Result:
        role = step.id.removeprefix(step_id(self.chain.id, Stage.BENCHMARK)).removeprefix(".")
        if not role:
            return self._measure(step)
        kind = TRACE if role.startswith(TRACE) else MEMORY
        variant = self._variant(role.removeprefix(kind))
        side = torch_side(variant).label
        build, exported = self._builds[side], self.chain.exported(side)
        if kind == MEMORY:
            return profile_memory(step, self.chain, variant, build, exported, self.doors)
        call_ms = float(self._found[variant.label].figures["call_ms"])
        return trace_variant(step, self.chain, variant, build, exported, call_ms, self.doors)

    def _variant(self, label: str) -> Variant:
        return next(variant for variant in self.chain.point.variants if variant.label == label)

    def _measure(self, step: Step) -> Result:
        point = self.chain.point
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        wanted = [variant for variant in point.variants if self._stands(variant)]
        trial, blocks = TorchTrial(), Blocks()
        if wanted:
            trial = self._try_torch(step, wanted)
            blocks = self._rounds(step, wanted, trial)
        notes = self._notes(blocks, trial)
        flops = self._flops()
        for variant in wanted:
            self._found[variant.label].roofline = self._share(variant, blocks, flops)
        if self.doors.cancelled.is_set():
            return Result(Verdict.ERROR, "interrupted")
        self.record = point_record(
            point,
            self.chain.device,
            flops,
            self._found,
            blocks,
            trial.first_call_ms,
            time.monotonic() - self._began,
            notes,
        )
        verdict, reason = self._verdict(blocks)
        return Result(verdict, reason, statistics={"micro": self.record}, notes=notes)

    def _try_torch(self, step: Step, wanted: Sequence[Variant]) -> TorchTrial:
        modes = [
            mode for mode in _MODES[self.measuring.against] if mode == EAGER or self.chain.point.model.torch_compile
        ]
        if not modes or not self.chain.device.startswith("local-"):
            # Torch runs on the CPU here: beside another device that says nothing.
            return TorchTrial()
        self.doors.teller.progress(f"{self.chain.point.name}: torch, first calls")
        return try_torch(step, self.chain, self._builds, wanted, modes, _ROUND_MS, self.doors.processes)

    def _rounds(self, step: Step, wanted: Sequence[Variant], trial: TorchTrial) -> Blocks:
        script = Path(worker.__file__).with_name(MODULE_WORKER)
        programs: dict[str, Measurement] = {}
        for variant in wanted:
            side = torch_side(variant).label
            plan = {
                **module_plan(self.chain, variant, self._builds[side], self.chain.exported(side)),
                "calls": calls_of(float(self._found[variant.label].figures["call_ms"]), _ROUND_MS),
                "warm_up_calls": 1,
            }
            command = planned_command(step, self.chain.toolchain.python, script, plan, f"{variant.label}.")
            programs[variant.label] = Measurement(step, command, "the measuring program", _iree_times, gpu_of(step))
        rounds = InterleavedRounds(
            self.chain.id,
            programs,
            trial.round,
            self.doors.processes,
            self.doors.locks,
            self.doors.log,
            lambda what: self.doors.teller.progress(f"waiting {what}"),
            _SEED,
            self.doors.cancelled,
            replace_disturbed=self.measuring.replace_disturbed,
        )
        name = self.chain.point.name
        return rounds.take(lambda number: self.doors.teller.progress(f"{name}: block {number} of {BLOCKS}"))

    def _notes(self, blocks: Blocks, trial: TorchTrial) -> tuple[str, ...]:
        notes = [f"{name}: not measured: {problem}" for name, problem in trial.problems.items()]
        if blocks.too_disturbed:
            notes.append(
                f"{blocks.count} of {BLOCKS} blocks: the machine is too busy, such as: {blocks.main_disturbance}"
            )
        if blocks.marked:
            notes.append(f"{blocks.marked} rounds were disturbed, such as: {blocks.main_disturbance}")
        return tuple(notes)

    def _flops(self) -> int:
        """Of the unchanged model, as every build of it says; 0 where there is none."""
        built = next(
            (variant for variant in self.chain.point.variants if torch_side(variant).label in self._builds), None
        )
        return int(self._built(built)["flops"]) if built else 0

    def _built(self, variant: Variant) -> dict[str, Any]:
        """What the builder says of a variant beside what every build has."""
        path = self.chain.exported(torch_side(variant).label) / BUILD_FILE
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def _share(self, variant: Variant, blocks: Blocks, flops: int) -> dict[str, Any] | None:
        """How much of what the machine can do at best a variant reaches."""
        times = [value for block in blocks.times.get(variant.label, ()) for value in block]
        roofline = self.measuring.roofline
        known = self._found[variant.label]
        if roofline is None or why_no_roofline(self.chain.device) or not times or known.parameter_bytes is None:
            return None
        build = self._builds[torch_side(variant).label].programs[0]
        folder = self.chain.exported(torch_side(variant).label)
        tensors = sum((folder / item.file).stat().st_size for item in (*build.inputs, *build.outputs))
        share, bound = roofline.share(flops, known.parameter_bytes + tensors, min(times))
        return {"share": share, "bound": bound}

    def _verdict(self, blocks: Blocks) -> tuple[Verdict, str]:
        broken = [f"{label}: {known.reason}" for label, known in self._found.items() if known.status == "failed"]
        unproven = [text for text in broken if "is not what the recipe promises" in text]
        if blocks.failure:
            return Verdict.ERROR, shorten(blocks.failure)
        if unproven:
            return Verdict.FAILED, shorten("; ".join(unproven))
        if not any(self._stands(variant) for variant in self.chain.point.variants):
            return Verdict.SKIPPED, "no variant came as far as to be measured"
        if blocks.count < BLOCKS:
            return Verdict.INCONCLUSIVE, shorten(f"{blocks.count} of {BLOCKS} blocks: {blocks.main_disturbance}")
        return Verdict.PASSED, ""

    def _profiles(self) -> Sequence[Step]:
        model = self.chain.point.model
        kinds = [kind for kind, wanted in ((TRACE, model.profiler), (MEMORY, model.memory_profiler)) if wanted]
        return tuple(
            self.chain.profile(variant, kind)
            for variant in self.chain.point.variants
            if self._stands(variant)
            for kind in kinds
        )


def _iree_times(text: str, _seconds: float) -> tuple[float, ...]:
    """The median of all calls of a round; one figure, since a log of thousands of calls is of no use."""
    return (statistics.median(json.loads(text)["call_ms"][0]),)
