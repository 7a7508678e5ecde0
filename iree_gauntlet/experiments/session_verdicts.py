"""The result of a session of rounds (each model's verdict, and the mean over models), and `Comparer`, which measures.

The order matters: each model's blocks are compared, then checked against blocks of A against A (control) of the same
minutes, and then adjusted for the number of models (`measuring/statistics/comparison_verdict.py`).
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
    MAX_SPEC_BLOCKS,
    BlockRunner,
    Pair,
    PairSamples,
    choose_cpus,
    compute_spread,
    run_spec_blocks,
)
from iree_gauntlet.formatting import format_cpus
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    DEFAULT_DISCOVERY_RATE,
    Comparison,
    TimeVerdict,
    check_against_control,
    compare,
    estimate_geometric_mean,
    limit_discoveries,
    make_inconclusive,
)
from iree_gauntlet.measuring.statistics.rounds import Block, Round, plan_looks
from iree_gauntlet.recorded import UNRECORDED
from iree_gauntlet.records.compare_record import (
    SIDE_NAMES,
    ComparisonRules,
    ComparisonSummary,
    ControlVerdict,
    MeanFigures,
    RatioFigures,
    SideTimes,
    SpecMethodResult,
    TimeFigures,
    TimeVerdictRecord,
)
from iree_gauntlet.requests import ExecutionRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.records.compare_record import ComparisonOpening


# The number of blocks of A against A (control): as many as their only look needs.
CONTROL_BLOCKS = 10
# The error rate of an interval that is measured in the spec's own way.
_OWN_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """The comparisons of one model: B against A, A against A, and B against A in the spec's own way.

    Attributes:
        spec_way: None if the comparison already uses the spec's own way, or was interrupted.
        failure: the reason for having no comparison.
    """

    chain: str
    comparison: Comparison | None
    control: Comparison | None
    spec_way: Comparison | None
    evidence: PairSamples
    failure: str
    is_contradicted: bool = False

    @property
    def verdict(self) -> str:
        """A `TimeVerdict`, or `error` if a process failed, because a failure says nothing about times."""
        if self.evidence.failure:
            return "error"
        return str(self.comparison.verdict if self.comparison else TimeVerdict.INCONCLUSIVE)

    def record(self) -> TimeVerdictRecord:
        """Make the verdict's journal event."""
        evidence, comparison = self.evidence, self.comparison
        figures = control = own_way = None
        if comparison is not None:
            figures = TimeFigures(
                **_read_figures(comparison),
                time_ms={side: describe_times(evidence.blocks, side) for side in SIDE_NAMES},
            )
        if self.control is not None:
            control = ControlVerdict(verdict=self.control.verdict, figures=RatioFigures(**_read_figures(self.control)))
        if self.spec_way is not None and comparison is not None:
            own_way = SpecMethodResult(
                figures=RatioFigures(**_read_figures(self.spec_way)), contradicts=self.is_contradicted
            )
        # The spread of the rounds of a block, by the CPUs that were tried.
        trials = {format_cpus(cpus): compute_spread(blocks) for cpus, blocks in evidence.trials.items() if blocks}
        return TimeVerdictRecord(
            verdict=self.verdict,
            reason=comparison.reason if comparison else self.failure,
            blocks=len(evidence.blocks),
            control_blocks=len(evidence.control_blocks),
            replaced_blocks=evidence.replacement_count,
            marked_blocks=evidence.disturbed_count,
            disturbance=evidence.main_disturbance if evidence.replacement_count else "",
            peak_rss_bytes=dict(sorted(evidence.peak_bytes.items())),
            cpus=evidence.cpus or (),
            tried=trials if evidence.trials else None,
            figures=figures,
            control=control,
            own_way=own_way,
        )


def compare_in_spec_way(blocks: Sequence[Block], min_change: float, band: float) -> Comparison | None:
    """Compare B with A in the spec's own way; return None if there are too few blocks."""
    if len(blocks) < MAX_SPEC_BLOCKS:
        return None
    return compare(blocks, plan_looks(_OWN_ALPHA, MAX_SPEC_BLOCKS), min_change, band)


def judge(
    evidence: Mapping[str, PairSamples], rules: Rules, end_reason: str = "the time is up"
) -> dict[str, ModelVerdict]:
    """Judge a session's evidence by model; `end_reason` says why an undecided model was not measured further.

    Raises:
        EvidenceError: the rules contradict each other.
    """
    comparisons: dict[str, Comparison] = {}
    controls: dict[str, Comparison] = {}
    for chain, pair in evidence.items():
        if pair.failure:
            continue
        if pair.control_blocks:
            plan = plan_looks(rules.alpha, CONTROL_BLOCKS)
            controls[chain] = compare(pair.control_blocks, plan, rules.least, rules.band)
        if not pair.blocks:
            continue
        comparison = rules.compare_blocks(pair.blocks)
        if rules.replace_disturbed and pair.is_too_disturbed:
            reason = f"{pair.replacement_count} blocks were disturbed and replaced; {_describe_disturbance(pair)}"
            comparison = make_inconclusive(comparison, reason)
        elif comparison.verdict is TimeVerdict.INCONCLUSIVE and comparison.next_look is not None:
            comparison = make_inconclusive(comparison, f"{comparison.reason}; {end_reason}")
        elif chain in controls:
            comparison = check_against_control(comparison, controls[chain])
        comparisons[chain] = comparison
    final = limit_discoveries(comparisons, DEFAULT_DISCOVERY_RATE)
    verdicts = {}
    for chain, pair in evidence.items():
        no_blocks = f"{end_reason}, before its first block"
        if pair.replacement_count:
            no_blocks = f"each of its {pair.replacement_count} blocks was disturbed; {_describe_disturbance(pair)}"
        failure = "" if chain in final else pair.failure or no_blocks
        spec_way, control = compare_in_spec_way(pair.spec_blocks, rules.least, rules.band), controls.get(chain)
        contradicts = chain in final and spec_way is not None and rules.contradicts(spec_way, final[chain])
        verdicts[chain] = ModelVerdict(chain, final.get(chain), control, spec_way, pair, failure, contradicts)
    return verdicts


def summarise_verdicts(verdicts: Mapping[str, ModelVerdict]) -> ComparisonSummary:
    """Compute the mean over models and the number of each verdict, for the log."""
    comparisons = [verdict.comparison for verdict in verdicts.values() if verdict.comparison is not None]
    mean = estimate_geometric_mean(comparisons) if comparisons else None
    return ComparisonSummary(
        verdicts={
            str(name): sum(verdict.verdict == name for verdict in verdicts.values()) for name in (*TimeVerdict, "error")
        },
        geometric_mean=None if mean is None else MeanFigures(**asdict(mean) | _find_bounds(mean.low, mean.high)),
    )


def _describe_disturbance(evidence: PairSamples) -> str:
    hint = "gauntlet compare --resume --disturbed count lets them count"
    return f"for example: {evidence.main_disturbance}; {hint}"


def _read_figures(comparison: Comparison) -> dict[str, Any]:
    return {
        "ratio": comparison.ratio,
        **_find_bounds(comparison.low, comparison.high),
        "confidence": comparison.confidence,
        "p_value": comparison.p_value,
        "looked_at": comparison.blocks,
    }


def _find_bounds(low: float, high: float) -> dict[str, float | None]:
    """Return an interval of ratios as fields; a lower bound of 0 and an infinite upper bound become None."""
    return {"low": low or None, "high": high if math.isfinite(high) else None}


def describe_times(blocks: Sequence[Block], side: str) -> SideTimes:
    """Return the median over rounds of a side's fastest repetition, and the relative spread between rounds."""
    rounds: list[Round] = [round_ for block in blocks for round_ in getattr(block, side.lower())]
    times = [round_.compute_location() for round_ in rounds]
    median = statistics.median(times)
    return SideTimes(median=median, spread=statistics.stdev(times) / median if len(times) > 1 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules(ComparisonRules):
    """The rules of verdicts, fixed before the first measurement, and whether disturbed blocks are replaced."""

    replace_disturbed: bool = field(metadata=UNRECORDED)

    @classmethod
    def of(cls, opening: ComparisonOpening) -> Rules:
        """Read the rules of an earlier comparison."""
        execution = ExecutionRequest(disturbed=opening.options["disturbed"])
        return cls(**asdict(opening.rules), replace_disturbed=execution.replaces_disturbed)

    def compare_blocks(self, blocks: Sequence[Block]) -> Comparison:
        """Compare B with A by these rules."""
        return compare(blocks, plan_looks(self.alpha), self.least, self.band, allow=self.allow)

    def describe(self, evidence: PairSamples) -> str:
        """Describe the verdict on the blocks so far, in one line."""
        comparison = self.compare_blocks(evidence.blocks)
        change = f"{100 * (comparison.ratio - 1):+.1f} %, CPUs: {format_cpus(evidence.cpus or ())}"
        return f"{comparison.verdict} ({change}) after {len(evidence.blocks)} blocks"

    def contradicts(self, spec_way: Comparison, comparison: Comparison) -> bool:
        """Return True if the interval measured in the spec's own way rules out the verdict measured on chosen CPUs."""
        slowdown, tolerance = 1 + self.least, 1 + self.band
        match comparison.verdict:
            case TimeVerdict.SLOWER:
                return spec_way.high < slowdown
            case TimeVerdict.FASTER:
                return spec_way.low > 1 / slowdown
            case TimeVerdict.SAME:
                return spec_way.low > tolerance or spec_way.high < 1 / tolerance
            case TimeVerdict.NOT_SLOWER:
                return spec_way.low > 1 + (self.allow or self.band)
            case TimeVerdict.INCONCLUSIVE:
                return False


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """The metric of a comparison, and how its rounds are measured and judged."""

    metric: str
    rules: Rules
    rounds: RoundSettings


def find_next_look(evidence: PairSamples, rules: Rules) -> int | None:
    """Return the number of blocks at the next look; None if more blocks cannot decide anything."""
    if evidence.failure or (rules.replace_disturbed and evidence.is_too_disturbed):
        return None
    if len(evidence.blocks) < rules.looks[0]:
        return rules.looks[0]
    return rules.compare_blocks(evidence.blocks).next_look


class Comparer:
    """Measures the rounds of a comparison."""

    def __init__(self, session: Session[Any], rules: Rules) -> None:
        self._progress = session.progress
        self._rules = rules
        self._cancelled = session.cancelled
        self._taker = BlockRunner(session, replace_disturbed=rules.replace_disturbed)
        self._began = time.monotonic()

    def run(self, pairs: Sequence[Pair], previous_evidence: dict[str, PairSamples]) -> dict[str, PairSamples]:
        """Measure each model up to its first look, then the undecided ones in turn.

        `previous_evidence`, by model, of the part before a resume is changed in place.
        """
        evidence_by_model = {pair.chain: previous_evidence.setdefault(pair.chain, PairSamples()) for pair in pairs}
        open_pairs = list(pairs)
        while open_pairs and not self._is_over():
            undecided_pairs = []
            for number, pair in enumerate(open_pairs, start=1):
                evidence = evidence_by_model[pair.chain]
                look = find_next_look(evidence, self._rules)
                if look is None or self._is_over():
                    continue
                self._take_until(pair, evidence, look, f"{number}/{len(open_pairs)}")
                summary = evidence.failure or evidence.main_disturbance or "the time is up"
                if evidence.blocks and not evidence.failure:
                    summary = self._rules.describe(evidence)
                if find_next_look(evidence, self._rules) is not None:
                    undecided_pairs.append(pair)
                    summary += "; more rounds follow" if evidence.blocks else ""
                self._progress.message(f"{pair.chain}: {summary}")
            open_pairs = undecided_pairs
        for pair in pairs:
            evidence = evidence_by_model[pair.chain]
            if find_next_look(evidence, self._rules) is None:
                # The rest of the budget is for blocks in the spec's own way.
                self._progress.status(f"{pair.chain}: {MAX_SPEC_BLOCKS} blocks run as in its spec")
                run_spec_blocks(pair, evidence, self._taker, self._rules.seed, partial(self._can_continue, evidence))
        return evidence_by_model

    def _is_over(self) -> bool:
        return self._cancelled.is_set() or self._compute_remaining_seconds() <= 0

    def _can_continue(self, evidence: PairSamples) -> bool:
        return self._compute_remaining_seconds() > 0 and self._taker.may_continue(evidence)

    def _compute_remaining_seconds(self) -> float:
        """Return the rest of the budget in seconds; waiting for other runs does not count."""
        return self._rules.budget_seconds - (time.monotonic() - self._began - self._taker.wait_seconds)

    def _take_until(self, pair: Pair, evidence: PairSamples, look: int, label: str) -> None:
        """Measure blocks up to a look, with control blocks (A against A) in between, to see the same machine."""
        can_continue = partial(self._can_continue, evidence)
        self._progress.status(f"{label} {pair.chain}: looking for the CPUs on which it is steadiest")
        choose_cpus(pair, evidence, self._taker, self._rules.seed, can_continue)
        seed, cpus = self._rules.seed, evidence.cpus
        while cpus is not None and len(evidence.blocks) < look and can_continue():
            seconds = max(0.0, self._compute_remaining_seconds())
            self._progress.status(
                f"{label} {pair.chain}: block {len(evidence.blocks) + 1} of {look}, at most {seconds / 60:.1f} min left"
            )
            self._taker.run(pair.block(AB, evidence, seed, cpus), evidence)
            while len(evidence.control_blocks) < min(CONTROL_BLOCKS, len(evidence.blocks)) and can_continue():
                self._taker.run(pair.block(CONTROL, evidence, seed, cpus), evidence)
