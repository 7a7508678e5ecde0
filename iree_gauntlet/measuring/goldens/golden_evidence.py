"""Compare the measurements of runs with goldens, and propose new goldens, by pure functions over journals.

A value counts as evidence only if it can be trusted, which means:

- Its run finished.
- All other steps of its chain passed, because metrics of a model with wrong outputs are useless.
- If it is a time, no disturbance was recorded during its measurement (`measuring/machine/disturbance.py`).

A value that does not count is reported with its reason, never dropped silently.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Golden, Verdict
from iree_gauntlet.figures import GOLDEN_FIGURES, GoldenRule, Statistic
from iree_gauntlet.formatting import format_count
from iree_gauntlet.measuring.goldens.golden_rules import find_outliers
from iree_gauntlet.measuring.goldens.goldens import covers, parse_release
from iree_gauntlet.measuring.instructions.counters import is_usual_count
from iree_gauntlet.targets import FAMILIES
from iree_gauntlet.variants import name_variants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


# The value of a golden that a spec does not have yet; it is below all figures, so that every figure is proposed.
UNSET = -1.0
# A golden is loose if the measured value is less than this fraction of the golden.
_MIN_USED_FRACTION = 0.5
_SIGNIFICANT_DIGITS = 3
# Times of several runs that differ by a larger factor give no golden, because their mean is the time of none of them.
_MAX_TIME_RATIO = 2.0
# Other metrics of a chain can be trusted even if one of these stages fails.
_FIGURE_STAGES = {item.golden.stage for item in GOLDEN_FIGURES if item.golden.rule is not GoldenRule.ERROR}


@dataclass(frozen=True, slots=True)
class GoldenEvidence:
    """One value of one run, with those of its repetitions.

    Attributes:
        rejection: the reason why the value does not count; empty if it counts.
        bars_comparison: True if the value must not even be compared with a golden; False if only a busy machine is
            the reason.
    """

    run: str
    chain: str
    measured: float
    values: tuple[float, ...]
    release: str
    machine: str
    rejection: str
    bars_comparison: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed new value, or release, of a golden."""

    golden: Golden
    value: float
    release: str
    basis: str

    @property
    def change(self) -> float:
        """The ratio of the new value to the old one."""
        return self.value / self.golden.value if self.golden.value else float("inf")


class GoldenVerdict(StrEnum):
    """The result of comparing a golden with the newest measurement."""

    KEPT = "kept"
    LOOSE = "loose"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class GoldenStatus:
    """A golden with the newest value that may be compared with it, and the run of that value, if any.

    Attributes:
        verdict: `loose` if the golden holds and the value is less than half of the golden.
        note: a remark for people; if there is no value, the reason why the newest value does not count.
    """

    chain: str
    golden: Golden
    verdict: GoldenVerdict
    measured: float | None = None
    run: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The measured value divided by the golden; None without a value, and for a golden of 0."""
        return None if self.measured is None or not self.golden.value else self.measured / self.golden.value


# A run's evidence for each (chain, golden), with the step that measured it and the step's result.
_RunEvidence = dict[tuple[str, Golden], tuple[GoldenEvidence, "Step", "Result"]]


def collect_evidence(records: Sequence[JournalRecord]) -> dict[Golden, list[GoldenEvidence]]:
    """Return the evidence that journals have for each golden, in the order of the journals."""
    evidence_by_golden: dict[Golden, list[GoldenEvidence]] = {}
    for record in records:
        for golden, evidence, _, _ in _collect_figures(record, lambda step: step.goldens):
            evidence_by_golden.setdefault(golden, []).append(evidence)
    return evidence_by_golden


def collect_first_evidence(
    records: Sequence[JournalRecord], list_goldens: Callable[[JournalRecord, Step], Iterable[Golden]]
) -> dict[Golden, list[GoldenEvidence]]:
    """Return the evidence for goldens that specs lack: their value is `UNSET`, and no step has them.

    A failed step gives no first golden, whatever the cause; a present golden may be the reason of the failure.
    """
    evidence_by_golden: dict[Golden, list[GoldenEvidence]] = {}
    for record in records:
        for golden, evidence, step, result in _collect_figures(record, partial(list_goldens, record)):
            if result.verdict is Verdict.FAILED and not evidence.rejection:
                evidence = replace(evidence, rejection=f"its {step.stage} failed")  # noqa: PLW2901
            evidence_by_golden.setdefault(golden, []).append(evidence)
    return evidence_by_golden


def _collect_figures(
    record: JournalRecord, get_goldens: Callable[[Step], Iterable[Golden]]
) -> Iterator[tuple[Golden, GoldenEvidence, Step, Result]]:
    """Yield the evidence of a run for each golden of its steps, with the measuring step and this step's result."""
    steps = record.planned
    # The problem of each chain in which a step outside of `_FIGURE_STAGES` failed or did not finish.
    chain_problems: dict[str, str] = {}
    for step in steps:
        result = record.results.get(step.id)
        has_failed = result is None or result.verdict.is_bad or result.verdict is Verdict.QUARANTINED
        if has_failed and step.stage not in _FIGURE_STAGES:
            chain_problems.setdefault(step.chain, f"its {step.stage} {result.verdict if result else 'unfinished'}")
    is_complete = record.end is not None and not record.end.interrupted and not record.torn
    for step in steps:
        result = record.results.get(step.id)
        if step.stage not in _FIGURE_STAGES or result is None:
            continue
        # Each reason has a flag: True if it forbids comparing the value with a golden.
        reasons = [("its run did not finish" if not is_complete else chain_problems.get(step.chain, ""), True)]
        time_reasons = [(f"{step.resources.device} is a software device", True)] if step.resources.software else []
        verdict_reason = f"its {step.stage} {result.verdict}"
        if result.verdict is Verdict.INCONCLUSIVE:
            # An inconclusive count or size only lacks a golden that applies, so the value itself is good.
            time_reasons.append((verdict_reason, False))
        elif result.verdict not in (Verdict.PASSED, Verdict.FAILED):
            reasons.append((verdict_reason, True))
        if causes := result.typed_statistics.disturbed:
            time_reasons.append((f"disturbed: {'; '.join(causes)}", False))
        for golden in get_goldens(step):
            values = _pick_figures(golden, result)
            if not values or not golden.origin.field:
                continue
            candidates = reasons + (time_reasons if golden.field.rule is GoldenRule.TIMED else [])
            candidates = [(_describe_impossible_value(golden, step, values), True), *candidates]
            reason, bars_comparison = next((candidate for candidate in candidates if candidate[0]), ("", False))
            uses_minimum = golden.statistic is Statistic.MIN
            evidence = GoldenEvidence(
                run=record.run.name or record.path.parent.name,
                chain=step.chain,
                measured=min(values) if uses_minimum else statistics.fmean(values),
                values=tuple(values),
                release=parse_release(record.run.toolchain.compiler),
                machine=record.run.machine.cpu,
                rejection=reason,
                bars_comparison=bars_comparison,
            )
            yield golden, evidence, step, result


def _describe_impossible_value(golden: Golden, step: Step, values: Iterable[float]) -> str:
    """Describe the first of a golden's values that no measurement can give; return an empty string if there is none."""
    wrong = next((candidate for candidate in values if not golden.field.min_value <= candidate < math.inf), None)
    return "" if wrong is None else f"its {step.stage} reports {wrong:g} {golden.metric.row.unit}, which is impossible"


def _pick_figures(golden: Golden, result: Result) -> list[float]:
    if golden.field.rule is GoldenRule.TIMED:
        samples = result.samples
        if samples and samples.aggregated and golden.statistic is Statistic.MIN:
            return []  # this is the mean of all repetitions: the fastest is unknown
        # The confirmation rounds are preferred: the first run was selected for being slow.
        rounds = (result.statistics.get("confirmation") or {}).get("rounds") or ()
        confirmation_times = [
            float(time) for round_ in rounds if not round_["disturbed"] for time in round_["times_ms"]
        ]
        return confirmation_times or list(samples.real_time_ms if samples else ())
    info = result.typed_statistics
    if golden.metric.is_counted and not is_usual_count(info.counter, info.cpu):
        return []  # this is another kind of count than the golden's
    metric_value = result.measure(golden.metric)
    return [] if metric_value is None else [metric_value]


def propose_golden(
    golden: Golden, evidence: Sequence[GoldenEvidence], *, size_headroom: float | None, relabel: bool
) -> Proposal | str:
    """Propose a golden's new value, or return the reason why it stays.

    A new time is proposed if the golden is outside the measured range; it is the mean, in three digits, of the runs'
    values (means or minima, by the golden's statistic) without outliers. A count is proposed if it differs. A size is
    proposed with the requested headroom (a factor), since code differs between machines; without headroom, only if it
    exceeds the limit. With `relabel`, a golden of another release moves to the release of the measurements.
    """
    usable = [item for item in evidence if not item.rejection]
    if not usable:
        return "; ".join(dict.fromkeys(f"{item.run}: {item.rejection}" for item in evidence))
    objection = _find_objection(golden, usable, relabel=relabel)
    if objection:
        return objection
    changes_release = bool(golden.release) and not covers(golden.release, usable[-1].release)
    release = usable[-1].release if changes_release else golden.release
    value = _choose_value(golden, usable, size_headroom)
    if isinstance(value, str):
        if not changes_release:
            return value
        value = golden.value
    return Proposal(golden, value, release, _describe_basis(golden, usable))


def _find_objection(golden: Golden, usable: Sequence[GoldenEvidence], *, relabel: bool) -> str:
    """Return the reason why the values cannot be used together for a golden; empty if they can."""
    releases = sorted({item.release for item in usable})
    machines = sorted({item.machine for item in usable})
    is_time = golden.field.rule is GoldenRule.TIMED
    if is_time and len(machines) > 1:
        return f"measured on several machines: {', '.join(machines)}"
    uncovered_releases = [release for release in releases if golden.release and not covers(golden.release, release)]
    if len(releases) > 1 and (uncovered_releases or not (golden.release or is_time)):
        return f"measured with several releases: {', '.join(releases)}"
    if uncovered_releases and not relabel:
        return (
            f"it belongs to release {golden.release}, but {uncovered_releases[0]} was measured (--to-release moves it)"
        )
    values = sorted({item.measured for item in usable})
    if golden.field.rule is GoldenRule.EQUAL and len(values) > 1:
        return f"the counts differ: {', '.join(map(format_count, values))}"
    return ""


def _combine_times(golden: Golden, usable: Sequence[GoldenEvidence]) -> tuple[float, list[float], str]:
    """Return the time of several runs together, the times that it is made of, and a remark on those left out.

    These times are the runs' values without outliers (`find_outliers`). If there is only one run, they are those of its
    repetitions, which show how much the time varies. Of these, only outliers below the others are left out: slow
    repetitions are usual, and belong to the mean that is compared with a golden.
    """
    single_run = usable[0] if len(usable) == 1 else None
    values = list(single_run.values) if single_run else [item.measured for item in usable]
    outliers = find_outliers(values)
    if single_run:
        outliers = {index for index in outliers if values[index] < statistics.median(values)}
    names = [
        f"{values[index]:.4g} {golden.metric.row.unit}{'' if single_run else f' ({usable[index].run})'}"
        for index in sorted(outliers)
    ]
    remark = f"; left out as {'an outlier' if len(names) == 1 else 'outliers'}: {', '.join(names)}" if names else ""
    times = [value for index, value in enumerate(values) if index not in outliers]
    uses_minimum = single_run is not None and golden.statistic is Statistic.MIN
    return min(times) if uses_minimum else statistics.fmean(times), times, remark


def _choose_value(golden: Golden, usable: Sequence[GoldenEvidence], size_headroom: float | None) -> float | str:
    """Return the new value of a golden, or the reason why its present value stays."""
    values = [item.measured for item in usable]
    match golden.field.rule:
        case GoldenRule.TIMED:
            time, times, remark = _combine_times(golden, usable)
            if len(usable) > 1 and max(times) > _MAX_TIME_RATIO * min(times):
                return (
                    f"the runs disagree: {min(times):.4g} … {max(times):.4g} ms; more runs show what is usual{remark}"
                )
            new_value = float(f"{time:.{_SIGNIFICANT_DIGITS}g}")
            is_within = min(times) <= golden.value <= max(times) or golden.value == new_value
            return f"within what was measured{remark}" if is_within else new_value
        case GoldenRule.WITHIN:
            largest = max(values)
            return "within its margin" if golden.value / golden.factor <= largest <= golden.limit else largest
        case GoldenRule.EQUAL:
            return "as measured" if values[0] == golden.value else values[0]
        case GoldenRule.ROOM:
            largest = max(values)
            if size_headroom is None:
                room = f"within its limit ({largest:,.0f} bytes; --size-headroom says how much room to leave)"
                return largest if largest > golden.limit else room
            # A golden with headroom is not tightened for a few bytes.
            value = largest * size_headroom
            # Round the size up to three digits, so that the measured size still passes.
            step = 10.0 ** max(0, math.floor(math.log10(value)) - _SIGNIFICANT_DIGITS + 1) if value > 0 else 1.0
            new_value = math.ceil(value / step) * step
            return "within the headroom" if largest <= golden.value <= new_value else new_value
        case GoldenRule.ERROR:
            raise TypeError("no spec has a golden error")


def _describe_basis(golden: Golden, usable: Sequence[GoldenEvidence]) -> str:
    unit = golden.metric.row.unit
    runs = usable[0].run if len(usable) == 1 else f"{len(usable)} runs ({usable[0].run} … {usable[-1].run})"
    if golden.field.rule is not GoldenRule.TIMED:
        return f"{usable[-1].measured:,.10g} {unit}, {usable[-1].release}, {runs}"
    statistic_name = "fastest" if golden.statistic is Statistic.MIN else "mean"
    time, times, remark = _combine_times(golden, usable)
    count = sum(len(item.values) for item in usable)
    range_label = "repetitions" if len(usable) == 1 else "runs"
    return (
        f"{statistic_name} {time:.4g} {unit} ({range_label} {min(times):.4g} … {max(times):.4g}), "
        f"{count} repetitions, {usable[-1].machine}, {runs}{remark}"
    )


def judge_goldens(
    goldens: Sequence[tuple[str, Golden]], records: Sequence[JournalRecord], folder: Path
) -> list[GoldenStatus]:
    """Compare the goldens of each chain with their newest values from `records`, which have the newest journal first.

    Values and goldens are matched as in a run: a time by SKU, a count or a size by compiler release, and the golden of
    a variant by the run's variants. The present
    golden is used, even if it is newer than the run or has changed. Values of unfinished runs and of models with wrong
    outputs do not count. Runs are named by their paths in `folder`, the folder of all runs.
    """
    by_chain: dict[str, list[Golden]] = {}
    for chain, golden in goldens:
        by_chain.setdefault(chain, []).append(golden)
    runs: list[tuple[str, _RunEvidence]] = []
    for record in records:
        figures = _collect_figures(record, lambda step: by_chain.get(step.chain, ()))
        variant = name_variants(record.run.variants)
        entries = {
            (step.chain, golden): (evidence, step, result)
            for golden, evidence, step, result in figures
            if golden.variant == variant
        }
        runs.append((record.path.parent.relative_to(folder).as_posix(), entries))
    statuses = []
    for chain, golden in goldens:
        kind = golden.metric, golden.variant
        rivals = {rival.sku for rival in by_chain[chain] if (rival.metric, rival.variant) == kind and rival != golden}
        statuses.append(_judge_status(chain, golden, rivals, runs))
    return statuses


def _judge_status(
    chain: str, golden: Golden, rival_skus: Collection[str], runs: Sequence[tuple[str, _RunEvidence]]
) -> GoldenStatus:
    note = ""
    for name, run_evidence in runs:
        if (chain, golden) not in run_evidence:
            continue
        evidence, step, result = run_evidence[chain, golden]
        mismatch = _find_mismatch(golden, evidence, step.sku, rival_skus)
        if not mismatch:
            verdict, note = _judge(golden, evidence, result)
            return GoldenStatus(chain, golden, verdict, evidence.measured, name, note)
        measured_text = (
            f"{evidence.measured:.4g} ms" if golden.field.rule is GoldenRule.TIMED else f"{evidence.measured:,.10g}"
        )
        note = note or f"{name} measured {measured_text} {mismatch}"
    return GoldenStatus(chain, golden, GoldenVerdict.NOT_MEASURED, note=note)


def _find_mismatch(golden: Golden, evidence: GoldenEvidence, sku: str, rival_skus: Collection[str]) -> str:
    """Return the reason why a value must not be compared with a golden; empty if it may be compared."""
    applies_to_all_skus = not golden.sku or (golden.field.rule is not GoldenRule.TIMED and golden.sku in FAMILIES)
    if applies_to_all_skus and sku in rival_skus and sku:
        return f"with the SKU {sku}, which has a golden of its own"
    if not applies_to_all_skus and sku != golden.sku:
        return f"with the SKU {sku}" if sku else "without a SKU"
    if golden.release and not covers(golden.release, evidence.release):
        return f"with release {evidence.release or 'unknown'}"
    return f"but {evidence.rejection}" if evidence.bars_comparison else ""


def _judge(golden: Golden, evidence: GoldenEvidence, result: Result) -> tuple[GoldenVerdict, str]:
    """Return the verdict, and a note on it."""
    identity = (golden.metric, golden.value, golden.factor, str(golden.origin))
    checks = [check for check in result.checks if check.passed is not None]
    recorded_pass = next(
        (check.passed for check in checks if (check.metric, check.golden, check.factor, check.note) == identity), None
    )
    if result.verdict is Verdict.INCONCLUSIVE:
        return GoldenVerdict.INCONCLUSIVE, result.reason
    # Prefer the run's own check of this golden, since further rounds may not have confirmed the breach.
    is_broken = not (golden.is_kept(evidence.measured) if recorded_pass is None else recorded_pass)
    if is_broken:
        return GoldenVerdict.BROKEN, evidence.rejection
    is_loose = evidence.measured < _MIN_USED_FRACTION * golden.value
    return GoldenVerdict.LOOSE if is_loose else GoldenVerdict.KEPT, evidence.rejection
