"""What runs have measured for goldens: how these stand, and what they ought to be. Pure functions over journals.

A figure counts as evidence only where it can be trusted:

- its run finished;
- everything else of its chain passed: the figures of a model whose numbers are wrong are of no use;
- a time was not measured under a disturbance (`measuring/machine/disturbance.py`).

A figure that does not count is reported with its reason, never dropped silently.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Golden, Verdict
from iree_gauntlet.figures import JUDGED_FIGURES, GoldenRule, Statistic
from iree_gauntlet.formatting import whole
from iree_gauntlet.measuring.goldens.goldens import covers, release_of
from iree_gauntlet.measuring.instructions.counters import is_usual_count
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


# A golden of which less than this is used guards nothing any more.
_LOOSE = 0.5
_DIGITS = 3
# Whose failure says nothing against the figures of the others.
_FIGURE_STAGES = {item.golden.stage for item in JUDGED_FIGURES if item.golden.rule is not GoldenRule.ERROR}


@dataclass(frozen=True, slots=True)
class GoldenEvidence:
    """One figure of one run.

    Attributes:
        refused: why it does not count; empty where it does.
        barred: whether that keeps it from being held against a golden too, which a busy machine does not.
    """

    run: str
    chain: str
    measured: float
    lowest: float
    highest: float
    repetitions: int
    release: str
    machine: str
    refused: str
    barred: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """A golden that ought to be another."""

    golden: Golden
    value: float
    release: str
    basis: str

    @property
    def change(self) -> float:
        """New by old."""
        return self.value / self.golden.value if self.golden.value else float("inf")


class GoldenVerdict(StrEnum):
    """What a golden is worth today."""

    KEPT = "kept"
    LOOSE = "loose"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Standing:
    """A golden, and the newest figure that may be held against it, with the run that has measured it, if any has.

    Attributes:
        verdict: `loose` is a kept one of which the figure is less than half.
        note: what a person should know of it; of one that was not measured, why the newest figure does not count.
    """

    chain: str
    golden: Golden
    verdict: GoldenVerdict
    measured: float | None = None
    run: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured by golden; None without a figure, and for a golden of 0."""
        return None if self.measured is None or not self.golden.value else self.measured / self.golden.value


# Of a run: evidence for a chain's golden, with the step that gave it, and the step's result.
_OfRun = dict[tuple[str, Golden], tuple[GoldenEvidence, "Step", "Result"]]


def collect_evidence(records: Sequence[JournalRecord]) -> dict[Golden, list[GoldenEvidence]]:
    """The figures that journals have for each golden, in the order of the journals."""
    found: dict[Golden, list[GoldenEvidence]] = {}
    for record in records:
        for golden, evidence, _, _ in _collect_figures(record, lambda step: step.goldens):
            found.setdefault(golden, []).append(evidence)
    return found


def _collect_figures(
    record: JournalRecord, goldens_of: Callable[[Step], Iterable[Golden]]
) -> Iterator[tuple[Golden, GoldenEvidence, Step, Result]]:
    """What a run has for each golden of its steps, with the step that has measured it, and the step's result."""
    steps = record.planned
    # Chains in which something besides a figure's own check went wrong, and what.
    unsound: dict[str, str] = {}
    for step in steps:
        result = record.results.get(step.id)
        if (result is None or result.verdict.is_bad) and step.stage not in _FIGURE_STAGES:
            unsound.setdefault(step.chain, f"its {step.stage} {result.verdict if result else 'unfinished'}")
    ended = record.end is not None and not record.end.interrupted and not record.torn
    for step in steps:
        result = record.results.get(step.id)
        if step.stage not in _FIGURE_STAGES or result is None:
            continue
        # Each with whether it bars the figure.
        reasons = [("its run did not finish" if not ended else unsound.get(step.chain, ""), True)]
        times = [(f"{step.resources.device} is a software device", True)] if step.resources.software else []
        said = f"its {step.stage} {result.verdict}"
        if result.verdict is Verdict.INCONCLUSIVE:
            # Of a count or a size it says that no golden was applied: the figure is as good as any.
            times.append((said, False))
        elif result.verdict not in (Verdict.PASSED, Verdict.FAILED):
            reasons.append((said, True))
        if causes := result.known.disturbed:
            times.append((f"disturbed: {'; '.join(causes)}", False))
        for golden in goldens_of(step):
            figures = _pick_figures(golden, result)
            if not figures or not golden.origin.field:
                continue
            objections = reasons + (times if golden.field.rule is GoldenRule.TIMED else [])
            objections = [(_name_impossible(golden, step, figures), True), *objections]
            refused, barred = next((item for item in objections if item[0]), ("", False))
            least = golden.statistic is Statistic.MIN
            evidence = GoldenEvidence(
                run=record.run.name or record.path.parent.name,
                chain=step.chain,
                measured=min(figures) if least else statistics.fmean(figures),
                lowest=min(figures),
                highest=max(figures),
                repetitions=len(figures),
                release=release_of(record.run.toolchain.compiler),
                machine=record.run.machine.cpu,
                refused=refused,
                barred=barred,
            )
            yield golden, evidence, step, result


def _name_impossible(golden: Golden, step: Step, figures: Iterable[float]) -> str:
    """A sentence on the first of a golden's figures that no measurement can give; empty where there is none."""
    wrong = next((figure for figure in figures if not golden.field.least <= figure < math.inf), None)
    return "" if wrong is None else f"its {step.stage} says {wrong:g} {golden.metric.row.unit}, which cannot be"


def _pick_figures(golden: Golden, result: Result) -> list[float]:
    if golden.field.rule is GoldenRule.TIMED:
        samples = result.samples
        if samples and samples.aggregated and golden.statistic is Statistic.MIN:
            return []  # the mean of all: the fastest is not known
        # Those that were taken because the first run broke the golden: it was picked for being slow.
        rounds = (result.statistics.get("confirmation") or {}).get("rounds") or ()
        confirming = [float(time) for item in rounds if not item["disturbed"] for time in item["times_ms"]]
        return confirming or list(samples.real_time_ms if samples else ())
    known = result.known
    if golden.metric.is_counted and not is_usual_count(known.counter, known.cpu):
        return []  # another kind of count, which the golden is not of
    figure = result.measure(golden.metric)
    return [] if figure is None else [figure]


def propose(
    golden: Golden, evidence: Sequence[GoldenEvidence], *, size_headroom: float | None, to_release: bool
) -> Proposal | str:
    """What a golden ought to be, or why it stays.

    A time is proposed where the golden lies outside of what was measured: the mean of the runs' figures (means
    or minima, as the golden says), in three digits. A count is proposed where it differs. A size is proposed
    with the headroom (a factor) that is asked for, for the code of other machines; without one, only where it breaks.
    With `to_release` a golden of another release moves to the one that has measured.
    """
    usable = [item for item in evidence if not item.refused]
    if not usable:
        return "; ".join(dict.fromkeys(f"{item.run}: {item.refused}" for item in evidence))
    objection = _find_objection(golden, usable, to_release=to_release)
    if objection:
        return objection
    moved = bool(golden.release) and not covers(golden.release, usable[-1].release)
    release = usable[-1].release if moved else golden.release
    value = _choose_value(golden, usable, size_headroom)
    if isinstance(value, str):
        if not moved:
            return value
        value = golden.value
    return Proposal(golden, value, release, _describe_basis(golden, usable))


def _find_objection(golden: Golden, usable: Sequence[GoldenEvidence], *, to_release: bool) -> str:
    """Why figures cannot speak for a golden together; empty where they can."""
    releases = sorted({item.release for item in usable})
    machines = sorted({item.machine for item in usable})
    time = golden.field.rule is GoldenRule.TIMED
    if time and len(machines) > 1:
        return f"measured on several machines: {', '.join(machines)}"
    others = [release for release in releases if golden.release and not covers(golden.release, release)]
    if len(releases) > 1 and (others or not (golden.release or time)):
        return f"measured with several releases: {', '.join(releases)}"
    if others and not to_release:
        return f"it belongs to release {golden.release}, measured was {others[0]} (--to-release moves it)"
    figures = sorted({item.measured for item in usable})
    if golden.field.rule is GoldenRule.EQUAL and len(figures) > 1:
        return f"the counts differ: {', '.join(map(whole, figures))}"
    return ""


def _choose_value(golden: Golden, usable: Sequence[GoldenEvidence], size_headroom: float | None) -> float | str:
    """The value that was measured, or why the present one stays."""
    figures = [item.measured for item in usable]
    match golden.field.rule:
        case GoldenRule.TIMED:
            # Of one run, only the repetitions show how much it varies.
            alone = usable if len(usable) == 1 else ()
            lowest = min([*figures, *(item.lowest for item in alone)])
            highest = max([*figures, *(item.highest for item in alone)])
            wanted = float(f"{statistics.fmean(figures):.{_DIGITS}g}")
            within = lowest <= golden.value <= highest or golden.value == wanted
            return "within what was measured" if within else wanted
        case GoldenRule.WITHIN:
            most = max(figures)
            return "within its margin" if golden.value / golden.factor <= most <= golden.limit else most
        case GoldenRule.EQUAL:
            return "as measured" if figures[0] == golden.value else figures[0]
        case GoldenRule.ROOM:
            largest = max(figures)
            if size_headroom is None:
                room = f"within its limit ({largest:,.0f} bytes; --size-headroom says how much room to leave)"
                return largest if largest > golden.limit else room
            # A golden with room in it is not tightened for the sake of a few bytes.
            value = largest * size_headroom
            # In three digits, and never below: a size must fit.
            step = 10.0 ** max(0, math.floor(math.log10(value)) - _DIGITS + 1) if value > 0 else 1.0
            wanted = math.ceil(value / step) * step
            return "within the headroom" if largest <= golden.value <= wanted else wanted
        case GoldenRule.ERROR:
            raise TypeError("no spec has a golden error")


def _describe_basis(golden: Golden, usable: Sequence[GoldenEvidence]) -> str:
    unit = golden.metric.row.unit
    runs = usable[0].run if len(usable) == 1 else f"{len(usable)} runs ({usable[0].run} … {usable[-1].run})"
    if golden.field.rule is not GoldenRule.TIMED:
        return f"{usable[-1].measured:,.10g} {unit}, {usable[-1].release}, {runs}"
    what = "fastest" if golden.statistic is Statistic.MIN else "mean"
    figures = [item.measured for item in usable]
    lowest, highest = (usable[0].lowest, usable[0].highest) if len(usable) == 1 else (min(figures), max(figures))
    count = sum(item.repetitions for item in usable)
    between = "repetitions" if len(usable) == 1 else "runs"
    return (
        f"{what} {statistics.fmean(figures):.4g} {unit} ({between} {lowest:.4g} … {highest:.4g}), "
        f"{count} repetitions, {usable[-1].machine}, {runs}"
    )


def judge_standings(
    goldens: Sequence[tuple[str, Golden]], records: Sequence[JournalRecord], folder: Path
) -> list[Standing]:
    """How the golden of each chain stands, by journals, the newest first.

    A figure is held against a golden as a run would do it: a time on its SKU, a count or a size with its compiler
    release. That the golden has changed since the run, or is new, does not matter: the figure is held against the
    present one. Figures of unfinished runs and of models whose outputs were wrong do not count. A run is named by its
    path in the folder of all.
    """
    by_chain: dict[str, list[Golden]] = {}
    for chain, golden in goldens:
        by_chain.setdefault(chain, []).append(golden)
    runs: list[tuple[str, _OfRun]] = []
    for record in records:
        figures = _collect_figures(record, lambda step: by_chain.get(step.chain, ()))
        known = {(step.chain, golden): (evidence, step, result) for golden, evidence, step, result in figures}
        runs.append((record.path.parent.relative_to(folder).as_posix(), known))
    standings = []
    for chain, golden in goldens:
        rivals = {other.sku for other in by_chain[chain] if other.metric is golden.metric and other != golden}
        standings.append(_judge_standing(chain, golden, rivals, runs))
    return standings


def _judge_standing(
    chain: str, golden: Golden, rivals: Collection[str], runs: Sequence[tuple[str, _OfRun]]
) -> Standing:
    passed_over = ""
    for name, known in runs:
        if (chain, golden) not in known:
            continue
        evidence, step, result = known[chain, golden]
        objection = _find_mismatch(golden, evidence, step.sku, rivals)
        if not objection:
            verdict, note = _judge(golden, evidence, result)
            return Standing(chain, golden, verdict, evidence.measured, name, note)
        figure = (
            f"{evidence.measured:.4g} ms" if golden.field.rule is GoldenRule.TIMED else f"{evidence.measured:,.10g}"
        )
        passed_over = passed_over or f"{name} measured {figure} {objection}"
    return Standing(chain, golden, GoldenVerdict.NOT_MEASURED, note=passed_over)


def _find_mismatch(golden: Golden, evidence: GoldenEvidence, sku: str, rivals: Collection[str]) -> str:
    """Why a figure may not be held against a golden; empty where it may."""
    everywhere = not golden.sku or (golden.field.rule is not GoldenRule.TIMED and golden.sku in FAMILIES)
    if everywhere and sku in rivals and sku:
        return f"with the SKU {sku}, which has a golden of its own"
    if not everywhere and sku != golden.sku:
        return f"with the SKU {sku}" if sku else "without a SKU"
    if golden.release and not covers(golden.release, evidence.release):
        return f"with release {evidence.release or 'unknown'}"
    return f"but {evidence.refused}" if evidence.barred else ""


def _judge(golden: Golden, evidence: GoldenEvidence, result: Result) -> tuple[GoldenVerdict, str]:
    """The verdict, and a remark on it."""
    very = (golden.metric, golden.value, golden.factor, str(golden.origin))
    judged = [check for check in result.checks if check.passed is not None]
    own = next((one.passed for one in judged if (one.metric, one.golden, one.factor, one.note) == very), None)
    if result.verdict is Verdict.INCONCLUSIVE:
        return GoldenVerdict.INCONCLUSIVE, result.reason
    # Where the run has held it against this very golden, it knows more: a breach may not have been confirmed.
    broken = evidence.measured > golden.limit if own is None else not own
    if broken:
        return GoldenVerdict.BROKEN, evidence.refused
    loose = evidence.measured < _LOOSE * golden.value
    return GoldenVerdict.LOOSE if loose else GoldenVerdict.KEPT, evidence.refused
