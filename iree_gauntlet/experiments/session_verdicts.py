"""The result of a session of rounds: a verdict for each model, and the mean over all of them.

The order matters: each model's blocks are judged, held against A/A of the same minutes, and then against the number of
models that were looked at (`measuring/statistics/comparison_verdict.py`).
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
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
from iree_gauntlet.figures import cpus_text
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    DEFAULT_DISCOVERY_RATE,
    Comparison,
    TimeVerdict,
    compare,
    control_discoveries,
    geometric_mean,
    hold_against_control,
    without_verdict,
)
from iree_gauntlet.measuring.statistics.paired import bootstrap_t_interval
from iree_gauntlet.measuring.statistics.rounds import Block, EvidenceError, Round, SequentialPlan, plan_looks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings
    from iree_gauntlet.engine.session import Session


_BOOTSTRAP_SEED = 1
# Blocks of A against itself: as many as its one look takes.
CONTROL_BLOCKS = 10
# Of an interval in the spec's own way.
_OWN_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """Of one model.

    Attributes:
        comparison: B against A; None where nothing could be measured.
        control: A against A; None where it was not.
        own: B against A in the spec's own way; None where that is the way of the comparison, or was cut short.
        failure: why there is no comparison; empty where there is one.
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

    def as_dict(self) -> dict[str, Any]:
        """For the log: figures that a report shows; times in ms, bounds that there are none are null."""
        evidence = self.evidence
        record: dict[str, Any] = {
            "chain": self.chain,
            "verdict": self.verdict,
            "reason": self.comparison.reason if self.comparison else self.failure,
            "blocks": len(evidence.blocks),
            "control_blocks": len(evidence.against_itself),
            "replaced_blocks": evidence.replaced,
            "marked_blocks": evidence.marked,
            "disturbance": evidence.main_disturbance if evidence.replaced else "",
            "peak_rss_bytes": dict(sorted(evidence.peak_bytes.items())),
            "cpus": list(evidence.cpus or ()),
        }
        if evidence.trials:
            # Of rounds of a block, by the CPUs that were tried.
            record["tried"] = {cpus_text(cpus): spread(blocks) for cpus, blocks in evidence.trials.items() if blocks}
        if self.comparison is not None:
            record |= _describe_figures(self.comparison)
            record |= {
                "time_ms": {"A": _describe_side(evidence.blocks, "a"), "B": _describe_side(evidence.blocks, "b")}
            }
            record["bootstrap"] = _bootstrap(evidence.blocks, 1 - self.comparison.confidence)
        if self.control is not None:
            record["control"] = {"verdict": str(self.control.verdict), **_describe_figures(self.control)}
        if self.own is not None and self.comparison is not None:
            record["own_way"] = {**_describe_figures(self.own), "contradicts": self.contradicted}
        return record


def in_own_way(blocks: Sequence[Block], least: float, band: float) -> Comparison | None:
    """B against A in the spec's own way; None where there are too few blocks."""
    if len(blocks) < OWN_BLOCKS:
        return None
    return compare(blocks, plan_looks(_OWN_ALPHA, OWN_BLOCKS), least, band)


def judge(
    evidence: Mapping[str, PairEvidence], rules: Rules, why_over: str = "the time is up"
) -> dict[str, ModelVerdict]:
    """The verdicts of a session, by model.

    Args:
        evidence: what was measured, by model.
        rules: what decides.
        why_over: why no more was measured where more would have been.

    Raises:
        EvidenceError: rules that make no sense.
    """
    alone: dict[str, Comparison] = {}
    controls: dict[str, Comparison] = {}
    for chain, found in evidence.items():
        if found.failure:
            continue
        if found.against_itself:
            controls[chain] = compare(found.against_itself, rules.control_plan, rules.least, rules.band)
        if not found.blocks:
            continue
        comparison = rules.judged(found.blocks)
        if rules.replace_disturbed and found.too_disturbed:
            reason = (
                f"{found.replaced} blocks were disturbed and replaced; for example: {found.main_disturbance}"
                "; gauntlet compare --resume --disturbed count lets them count"
            )
            comparison = without_verdict(comparison, reason)
        elif comparison.verdict is TimeVerdict.INCONCLUSIVE and comparison.next_look is not None:
            comparison = without_verdict(comparison, f"{comparison.reason}; {why_over}")
        elif chain in controls:
            comparison = hold_against_control(comparison, controls[chain])
        alone[chain] = comparison
    judged = control_discoveries(alone, DEFAULT_DISCOVERY_RATE)
    verdicts = {}
    for chain, found in evidence.items():
        failure = "" if chain in judged else found.failure or _say_nothing(found, why_over)
        own, control = in_own_way(found.own, rules.least, rules.band), controls.get(chain)
        contradicted = chain in judged and own is not None and rules.contradicts(own, judged[chain])
        verdicts[chain] = ModelVerdict(chain, judged.get(chain), control, own, found, failure, contradicted)
    return verdicts


def summary_of(verdicts: Mapping[str, ModelVerdict]) -> dict[str, Any]:
    """The mean over models and the number of each verdict, for the log."""
    compared = [item.comparison for item in verdicts.values() if item.comparison is not None]
    kinds = [*map(str, TimeVerdict), "error"]
    record: dict[str, Any] = {
        "verdicts": {kind: sum(item.verdict == kind for item in verdicts.values()) for kind in kinds}
    }
    if compared:
        mean = geometric_mean(compared)
        record["geometric_mean"] = {
            "ratio": mean.ratio,
            **_find_bounds(mean.low, mean.high),
            "confidence": mean.confidence,
            "models": mean.models,
        }
    return record


def _say_nothing(found: PairEvidence, why_over: str) -> str:
    if found.replaced:
        return (
            f"each of its {found.replaced} blocks was disturbed; for example: {found.main_disturbance}"
            "; gauntlet compare --resume --disturbed count lets them count"
        )
    return f"{why_over}, before its first block"


def _describe_figures(comparison: Comparison) -> dict[str, Any]:
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


def _describe_side(blocks: Sequence[Block], side: str) -> dict[str, float]:
    """Median over rounds of a side's fastest repetition, and the spread from round to round as a share of it."""
    rounds: list[Round] = [round_ for block in blocks for round_ in getattr(block, side)]
    figures = [round_.location() for round_ in rounds]
    middle = statistics.median(figures)
    return {"median": middle, "spread": statistics.stdev(figures) / middle if len(figures) > 1 else 0.0}


def _bootstrap(blocks: Sequence[Block], level: float) -> list[float] | None:
    """The interval by resampling blocks, rounds and repetitions: a check on the exact one, not what decides."""
    try:
        interval = bootstrap_t_interval(blocks, level, _BOOTSTRAP_SEED)
    except EvidenceError:
        return None
    return [math.exp(interval.low), math.exp(interval.high)] if math.isfinite(interval.low) else None


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides, stated before anything is measured.

    Attributes:
        plan: when to look, and the false-alarm rate of all looks together.
        band: the equivalence margin, within which two times are the same.
        least: the minimum effect; 0.01 is 1 %.
        allow: the slowdown below which `not slower` will do.
        budget: seconds for all rounds of all models.
    """

    plan: SequentialPlan
    least: float
    band: float
    allow: float
    budget: float
    seed: int
    replace_disturbed: bool

    @property
    def control_plan(self) -> SequentialPlan:
        """Of A against itself: one look."""
        return plan_looks(self.plan.alpha, CONTROL_BLOCKS)

    def judged(self, blocks: Sequence[Block]) -> Comparison:
        """B against A, by these rules."""
        return compare(blocks, self.plan, self.least, self.band, allow=self.allow)

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
                return own.low > 1 + self.allow
            case TimeVerdict.INCONCLUSIVE:
                return False


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """How rounds are taken and judged.

    Attributes:
        least_work: the share from which on a difference in instructions counts.
    """

    metric: str
    rules: Rules
    rounds: RoundSettings
    least_work: float
    no_work: bool


def next_look(evidence: PairEvidence, rules: Rules) -> int | None:
    """At how many blocks more could be said; None where nothing more can."""
    if evidence.failure or (rules.replace_disturbed and evidence.too_disturbed):
        return None
    if len(evidence.blocks) < rules.plan.looks[0]:
        return rules.plan.looks[0]
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

        Args:
            pairs: the models.
            earlier: what an earlier part of this comparison has measured; changed in place.

        Returns:
            The evidence, by model.
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
                self._tell(pair, evidence)
                if next_look(evidence, self._rules) is not None:
                    still.append(pair)
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
        return self._rules.budget - (time.monotonic() - self._began - self._taker.waited)

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

    def _tell(self, pair: Pair, evidence: PairEvidence) -> None:
        if evidence.failure or not evidence.blocks:
            self._progress.message(f"{pair.chain}: {evidence.failure or evidence.main_disturbance or 'the time is up'}")
            return
        so_far = self._rules.judged(evidence.blocks)
        more = (
            "" if so_far.next_look is None or so_far.verdict is not TimeVerdict.INCONCLUSIVE else "; more rounds follow"
        )
        change = f"{100 * (so_far.ratio - 1):+.1f} %, CPUs: {cpus_text(evidence.cpus or ())}"
        self._progress.message(f"{pair.chain}: {so_far.verdict} ({change}) after {len(evidence.blocks)} blocks{more}")
