"""The benchmark step of a point: torch is tried, rounds of all variants are taken, and the record is written."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, gpu_of
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.torch_models.measuring_worker import MODULE_WORKER, planned_command, worker_words
from iree_gauntlet.torch_models.peers import BLOCKS
from iree_gauntlet.torch_models.point_record import MEASURED, VariantFigures, median_ms, point_record
from iree_gauntlet.torch_models.point_rounds import (
    COMPILE,
    EAGER,
    InterleavedRounds,
    PointEvidence,
    TorchTrial,
    calls_of,
    try_torch,
)
from iree_gauntlet.torch_models.roofline import Roofline, why_no_roofline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_folder import Build
    from iree_gauntlet.torch_models.configuration import Variant
    from iree_gauntlet.torch_models.point_chain import PointChain


# How the reason of a variant begins whose module does not show what its recipe promises, or shows nothing.
UNREAD = "what its module shows cannot be read"
UNPROVEN = "the module is not what the recipe promises"
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
class PointMeasurement:
    """Measures a point.

    Attributes:
        chain: of the point.
        session: what it runs in.
        measuring: how it is measured.
        builds: what torch made, by label.
        found: what is known of each variant, by label; roofline shares are added.
        flops: of one call of the unchanged model.
        began: when the point began, by the monotonic clock.
    """

    chain: PointChain
    session: Session[Any]
    measuring: Measuring
    builds: Mapping[str, Build]
    found: Mapping[str, VariantFigures]
    flops: int
    began: float

    @property
    def wanted(self) -> list[Variant]:
        """The variants that can be measured."""
        return [variant for variant in self.chain.point.variants if self.found[variant.label].status == MEASURED]

    def run(self, step: Step) -> Result:
        """The step's result; its statistics have the point's record as `micro`.

        Raises:
            GauntletError: a process cannot be started at all, or what it left cannot be read.
        """
        point = self.chain.point
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        wanted = self.wanted
        trial, blocks = TorchTrial(), PointEvidence()
        if wanted:
            trial = self._try_torch(step, wanted)
            blocks = self._rounds(step, wanted, trial)
        notes = self._notes(blocks, trial)
        for variant in wanted:
            self.found[variant.label].roofline = self._share(variant, blocks)
        if self.session.cancelled.is_set():
            return Result(Verdict.ERROR, "interrupted")
        record = point_record(
            point,
            self.chain.device,
            self.flops,
            self.found,
            blocks,
            trial.first_call_ms,
            time.monotonic() - self.began,
        )
        record["notes"] = list(notes)
        verdict, reason = self._verdict(blocks)
        return Result(verdict, reason, statistics={"micro": record}, notes=notes)

    def _try_torch(self, step: Step, wanted: Sequence[Variant]) -> TorchTrial:
        compiles = self.chain.point.model.torch_compile
        modes = [mode for mode in _MODES[self.measuring.against] if compiles or mode == EAGER]
        if not modes or not self.chain.device.startswith("local-"):
            # Torch runs on the CPU here: beside another device that says nothing.
            return TorchTrial()
        return try_torch(step, self.chain, self.builds, wanted, modes, _ROUND_MS, self.session)

    def _rounds(self, step: Step, wanted: Sequence[Variant], trial: TorchTrial) -> PointEvidence:
        words = worker_words(self.chain.toolchain, MODULE_WORKER)
        programs: dict[str, Measurement] = {}
        for variant in wanted:
            compiled = self.chain.made(variant, self.builds[variant.side])
            calls = calls_of(float(self.found[variant.label].figures["call_ms"]), _ROUND_MS)
            plan = compiled.plan([self.chain.device], calls)
            command = planned_command(step, words, plan, f"{variant.label}.")
            programs[variant.label] = Measurement(step, command, "the measuring program", _iree_times, gpu_of(step))
        rounds = InterleavedRounds(
            self.session,
            self.chain.id,
            programs,
            trial.round,
            _SEED,
            replace_disturbed=self.measuring.replace_disturbed,
        )
        return rounds.take(lambda number: self.session.progress.status(f"block {number}"))

    def _notes(self, blocks: PointEvidence, trial: TorchTrial) -> tuple[str, ...]:
        notes = [f"{name}: not measured: {problem}" for name, problem in trial.problems.items()]
        if blocks.too_disturbed:
            notes.append(
                f"{blocks.count} of {BLOCKS} blocks: the machine is too busy, such as: {blocks.main_disturbance}"
            )
        if blocks.marked:
            rounds = "1 round was" if blocks.marked == 1 else f"{blocks.marked} rounds were"
            notes.append(f"{rounds} disturbed, such as: {blocks.main_disturbance}")
        return tuple(notes)

    def _share(self, variant: Variant, blocks: PointEvidence) -> dict[str, Any] | None:
        """How much of what the machine can do at best a variant reaches."""
        time_ms = median_ms(blocks, variant.label)
        roofline = self.measuring.roofline
        known = self.found[variant.label]
        if roofline is None or why_no_roofline(self.chain.device) or time_ms is None or known.parameter_bytes is None:
            return None
        build = self.builds[variant.side].programs[0]
        folder = self.chain.exported(variant.side)
        tensors = sum((folder / item.file).stat().st_size for item in (*build.inputs, *build.outputs))
        share, bound = roofline.share(self.flops, known.parameter_bytes + tensors, time_ms)
        return {"share": share, "bound": bound}

    def _verdict(self, blocks: PointEvidence) -> tuple[Verdict, str]:
        reasons = {label: known.reason for label, known in self.found.items()}
        unproven = [f"{label}: {reason}" for label, reason in reasons.items() if reason.startswith(UNPROVEN)]
        unread = [f"{label}: {known.reason}" for label, known in self.found.items() if known.reason.startswith(UNREAD)]
        if unread:
            return Verdict.ERROR, shorten("; ".join(unread))
        if blocks.failure:
            return Verdict.ERROR, shorten(blocks.failure)
        if unproven:
            return Verdict.FAILED, shorten("; ".join(unproven))
        if not self.wanted:
            return Verdict.SKIPPED, "no variant came as far as to be measured"
        if blocks.count < BLOCKS:
            return Verdict.INCONCLUSIVE, shorten(f"{blocks.count} of {BLOCKS} blocks: {blocks.main_disturbance}")
        return Verdict.PASSED, ""


def _iree_times(text: str, _seconds: float) -> tuple[float, ...]:
    """The median of all calls of a round; one figure, since a log of thousands of calls is of no use."""
    return (statistics.median(json.loads(text)["call_ms"][0]),)
