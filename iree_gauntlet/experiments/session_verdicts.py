"""The result of a session of rounds: a verdict for each model, and the mean over all of them.

The order matters: each model's blocks are judged, held against A/A of the same minutes, and then against the number of
models that were looked at (`measuring/statistics/comparison_verdict.py`).
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.blocks import (
    AB,
    CONTROL,
    OWN_BLOCKS,
    BlockTaker,
    Pair,
    PairEvidence,
    choose_way,
    spread,
    take_own,
)
from iree_gauntlet.formatting import format_cpus
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    DEFAULT_DISCOVERY_RATE,
    Comparison,
    TimeVerdict,
    compare,
    estimate_geometric_mean,
    hold_against_control,
    limit_discoveries,
    without_verdict,
)
from iree_gauntlet.measuring.statistics.rounds import Block, Round, plan_looks
from iree_gauntlet.recorded import UNRECORDED
from iree_gauntlet.records.compare_record import (
    SIDES,
    ComparedFigures,
    ComparisonSummary,
    ControlVerdict,
    MeanFigures,
    OwnWay,
    RecordedRules,
    RecordedVerdict,
    SideTimes,
    TimedFigures,
)
from iree_gauntlet.requests import ConductRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.records.compare_record import ComparisonOpening


# Blocks of A against itself: as many as its one look takes.
CONTROL_BLOCKS = 10
# Of an interval in the spec's own way.
_OWN_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """Of one model: B against A, A against A, and B against A in the spec's own way.

    Attributes:
        own: None where that is the way of the comparison, or was cut short.
        failure: why there is no comparison.
    """

    chain: str
    comparison: Comparison | None
    control: Comparison | None
    own: Comparison | None
    evidence: PairEvidence
    failure: str
    contradicted: bool = False

    @property
    def verdict(self) -> str:
        """One of the five, or `error` where a process failed: that is never a verdict on times."""
        if self.evidence.failure:
            return "error"
        return str(self.comparison.verdict if self.comparison else TimeVerdict.INCONCLUSIVE)

    def record(self) -> RecordedVerdict:
        """For the log."""
        evidence, comparison = self.evidence, self.comparison
        figures = control = own_way = None
        if comparison is not None:
            figures = TimedFigures(
                **_read_figures(comparison), time_ms={side: describe_times(evidence.blocks, side) for side in SIDES}
            )
        if self.control is not None:
            control = ControlVerdict(
                verdict=self.control.verdict, figures=ComparedFigures(**_read_figures(self.control))
            )
        if self.own is not None and comparison is not None:
            own_way = OwnWay(figures=ComparedFigures(**_read_figures(self.own)), contradicts=self.contradicted)
        # Of rounds of a block, by the CPUs that were tried.
        tried = {format_cpus(cpus): spread(blocks) for cpus, blocks in evidence.trials.items() if blocks}
        return RecordedVerdict(
            verdict=self.verdict,
            reason=comparison.reason if comparison else self.failure,
            blocks=len(evidence.blocks),
            control_blocks=len(evidence.against_itself),
            replaced_blocks=evidence.replaced,
            marked_blocks=evidence.marked,
            disturbance=evidence.main_disturbance if evidence.replaced else "",
            peak_rss_bytes=dict(sorted(evidence.peak_bytes.items())),
            cpus=evidence.cpus or (),
            tried=tried if evidence.trials else None,
            figures=figures,
            control=control,
            own_way=own_way,
        )


def in_own_way(blocks: Sequence[Block], least: float, band: float) -> Comparison | None:
    """B against A in the spec's own way; None where there are too few blocks."""
    if len(blocks) < OWN_BLOCKS:
        return None
    return compare(blocks, plan_looks(_OWN_ALPHA, OWN_BLOCKS), least, band)


def judge(
    evidence: Mapping[str, PairEvidence], rules: Rules, why_over: str = "the time is up"
) -> dict[str, ModelVerdict]:
    """The verdicts of a session, by model; `why_over` says why no more was measured where more would have been.

    Raises:
        EvidenceError: rules that make no sense.
    """
    alone: dict[str, Comparison] = {}
    controls: dict[str, Comparison] = {}
    for chain, found in evidence.items():
        if found.failure:
            continue
        if found.against_itself:
            plan = plan_looks(rules.alpha, CONTROL_BLOCKS)
            controls[chain] = compare(found.against_itself, plan, rules.least, rules.band)
        if not found.blocks:
            continue
        comparison = rules.judged(found.blocks)
        if rules.replace_disturbed and found.too_disturbed:
            reason = f"{found.replaced} blocks were disturbed and replaced; {_describe_disturbance(found)}"
            comparison = without_verdict(comparison, reason)
        elif comparison.verdict is TimeVerdict.INCONCLUSIVE and comparison.next_look is not None:
            comparison = without_verdict(comparison, f"{comparison.reason}; {why_over}")
        elif chain in controls:
            comparison = hold_against_control(comparison, controls[chain])
        alone[chain] = comparison
    judged = limit_discoveries(alone, DEFAULT_DISCOVERY_RATE)
    verdicts = {}
    for chain, found in evidence.items():
        nothing = f"{why_over}, before its first block"
        if found.replaced:
            nothing = f"each of its {found.replaced} blocks was disturbed; {_describe_disturbance(found)}"
        failure = "" if chain in judged else found.failure or nothing
        own, control = in_own_way(found.own, rules.least, rules.band), controls.get(chain)
        contradicted = chain in judged and own is not None and rules.contradicts(own, judged[chain])
        verdicts[chain] = ModelVerdict(chain, judged.get(chain), control, own, found, failure, contradicted)
    return verdicts


def summarise_verdicts(verdicts: Mapping[str, ModelVerdict]) -> ComparisonSummary:
    """The mean over models and the number of each verdict, for the log."""
    compared = [item.comparison for item in verdicts.values() if item.comparison is not None]
    mean = estimate_geometric_mean(compared) if compared else None
    return ComparisonSummary(
        verdicts={
            str(kind): sum(item.verdict == kind for item in verdicts.values()) for kind in (*TimeVerdict, "error")
        },
        geometric_mean=None if mean is None else MeanFigures(**asdict(mean) | _find_bounds(mean.low, mean.high)),
    )


def _describe_disturbance(found: PairEvidence) -> str:
    again = "gauntlet compare --resume --disturbed count lets them count"
    return f"for example: {found.main_disturbance}; {again}"


def _read_figures(comparison: Comparison) -> dict[str, Any]:
    return {
        "ratio": comparison.ratio,
        **_find_bounds(comparison.low, comparison.high),
        "confidence": comparison.confidence,
        "p_value": comparison.p_value,
        "looked_at": comparison.blocks,
    }


def _find_bounds(low: float, high: float) -> dict[str, float | None]:
    """Of an interval of ratios; None for one that there is not."""
    return {"low": low or None, "high": high if math.isfinite(high) else None}


def describe_times(blocks: Sequence[Block], side: str) -> SideTimes:
    """Median over rounds of a side's fastest repetition, and the spread from round to round as a share of it."""
    rounds: list[Round] = [round_ for block in blocks for round_ in getattr(block, side.lower())]
    figures = [round_.location() for round_ in rounds]
    middle = statistics.median(figures)
    return SideTimes(median=middle, spread=statistics.stdev(figures) / middle if len(figures) > 1 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules(RecordedRules):
    """What decides, stated before anything is measured; and whether disturbed blocks are taken again."""

    replace_disturbed: bool = field(metadata=UNRECORDED)

    @classmethod
    def of(cls, opening: ComparisonOpening) -> Rules:
        """Those of an earlier comparison."""
        disturbed = ConductRequest(disturbed=opening.options["disturbed"])
        return cls(**asdict(opening.rules), replace_disturbed=disturbed.replaces_disturbed)

    def judged(self, blocks: Sequence[Block]) -> Comparison:
        """B against A, by these rules."""
        return compare(blocks, plan_looks(self.alpha), self.least, self.band, allow=self.allow)

    def describe(self, evidence: PairEvidence) -> str:
        """What its blocks say so far, in a line."""
        so_far = self.judged(evidence.blocks)
        change = f"{100 * (so_far.ratio - 1):+.1f} %, CPUs: {format_cpus(evidence.cpus or ())}"
        return f"{so_far.verdict} ({change}) after {len(evidence.blocks)} blocks"

    def contradicts(self, own: Comparison, comparison: Comparison) -> bool:
        """Whether the interval in the spec's own way rules out what a comparison on other CPUs says."""
        slower, same = 1 + self.least, 1 + self.band
        match comparison.verdict:
            case TimeVerdict.SLOWER:
                return own.high < slower
            case TimeVerdict.FASTER:
                return own.low > 1 / slower
            case TimeVerdict.SAME:
                return own.low > same or own.high < 1 / same
            case TimeVerdict.NOT_SLOWER:
                return own.low > 1 + (self.allow or self.band)
            case TimeVerdict.INCONCLUSIVE:
                return False


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What is compared, and how rounds are taken and judged."""

    metric: str
    rules: Rules
    rounds: RoundSettings


def next_look(evidence: PairEvidence, rules: Rules) -> int | None:
    """At how many blocks more could be said; None where nothing more can."""
    if evidence.failure or (rules.replace_disturbed and evidence.too_disturbed):
        return None
    if len(evidence.blocks) < rules.looks[0]:
        return rules.looks[0]
    return rules.judged(evidence.blocks).next_look


class Comparer:
    """Takes the rounds."""

    def __init__(self, session: Session[Any], rules: Rules) -> None:
        self._progress = session.progress
        self._rules = rules
        self._cancelled = session.cancelled
        self._taker = BlockTaker(session, replace_disturbed=rules.replace_disturbed)
        self._began = time.monotonic()

    def run(self, pairs: Sequence[Pair], earlier: dict[str, PairEvidence]) -> dict[str, PairEvidence]:
        """Takes rounds of every model up to its first look, then of those that are undecided, in turn.

        What an earlier part of this comparison has measured, by model, is changed in place.
        """
        found = {pair.chain: earlier.setdefault(pair.chain, PairEvidence()) for pair in pairs}
        waiting = list(pairs)
        while waiting and not self._is_over():
            still = []
            for number, pair in enumerate(waiting, start=1):
                evidence = found[pair.chain]
                look = next_look(evidence, self._rules)
                if look is None or self._is_over():
                    continue
                self._take_until(pair, evidence, look, f"{number}/{len(waiting)}")
                said = evidence.failure or evidence.main_disturbance or "the time is up"
                if evidence.blocks and not evidence.failure:
                    said = self._rules.describe(evidence)
                if next_look(evidence, self._rules) is not None:
                    still.append(pair)
                    said += "; more rounds follow" if evidence.blocks else ""
                self._progress.message(f"{pair.chain}: {said}")
            waiting = still
        for pair in pairs:
            evidence = found[pair.chain]
            if next_look(evidence, self._rules) is None:
                # With what is left of the budget.
                self._progress.status(f"{pair.chain}: {OWN_BLOCKS} blocks as its spec has it")
                take_own(pair, evidence, self._taker, self._rules.seed, partial(self._goes_on, evidence))
        return found

    def _is_over(self) -> bool:
        return self._cancelled.is_set() or self._compute_left() <= 0

    def _goes_on(self, evidence: PairEvidence) -> bool:
        return self._compute_left() > 0 and self._taker.goes_on(evidence)

    def _compute_left(self) -> float:
        """Seconds of the budget; waiting for other runs does not use it up."""
        return self._rules.budget_seconds - (time.monotonic() - self._began - self._taker.waited)

    def _take_until(self, pair: Pair, evidence: PairEvidence, look: int, place: str) -> None:
        """Blocks up to a look; those of A against itself between them, so that they see the same machine."""
        goes_on = partial(self._goes_on, evidence)
        self._progress.status(f"{place} {pair.chain}: looking for the CPUs on which it is steadiest")
        choose_way(pair, evidence, self._taker, self._rules.seed, goes_on)
        seed, cpus = self._rules.seed, evidence.cpus
        while cpus is not None and len(evidence.blocks) < look and goes_on():
            left = max(0.0, self._compute_left())
            self._progress.status(
                f"{place} {pair.chain}: block {len(evidence.blocks) + 1} of {look}, at most {left / 60:.1f} min left"
            )
            self._taker.take(pair.block(AB, evidence, seed, cpus), evidence)
            while len(evidence.against_itself) < min(CONTROL_BLOCKS, len(evidence.blocks)) and goes_on():
                self._taker.take(pair.block(CONTROL, evidence, seed, cpus), evidence)
