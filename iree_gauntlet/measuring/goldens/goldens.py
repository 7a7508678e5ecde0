"""Check measured values against goldens, by pure functions.

A golden is checked only where it applies: a time on its SKU, a dispatch count or a size with its
compiler release. Other values are measured and shown, never silently passed.

If a time breaks its golden by the dialect's plain rule, further rounds are measured until their interval is on one side
of the limit (golden × factor). The run that triggered them is not evidence. Each round gives the dialect's statistic
(mean or minimum), and the median over rounds is compared with the limit. No second side cancels drift, and noise need
not be symmetric, so the interval is that of the sign test: order statistics, exact for any distribution of independent
rounds (David and Nagaraja, Order Statistics, 3rd edition, 2003, §7.1). It describes the machine in these minutes, so a
machine that is slow throughout gives a real breach. Looks and levels are as in `rounds`, with rounds in place of
blocks. If the rounds do not decide, their CPU time may still prove a breach (`find_least_time`).
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from iree_gauntlet.figures import FIGURES, Figure, Statistic
from iree_gauntlet.formatting import COUNTED_UNITS
from iree_gauntlet.measuring.statistics.rounds import EvidenceError, Location, Round
from iree_gauntlet.results import Check, Samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cases import Golden
    from iree_gauntlet.measuring.statistics.rounds import SequentialPlan


# The largest factor by which other work slows a round down. The work shares caches, memory, and the threads and clock
# of a core, each of which costs a factor of 2 to 4 at worst.
_MAX_CONTENTION_FACTOR = 10.0
# Fewer rounds than this would let an outlier decide.
_MIN_ROUND_COSTS = 3
_RELEASE_PATTERN = re.compile(r"[0-9]+(?:\.[0-9]+)*")


def describe_check(check: Check) -> str:
    """Describe a check in one line for people; for a breach, include its size."""
    title = FIGURES[check.metric].row.title
    if check.statistic == Statistic.MIN:
        title = f"fastest {title}"
    measured_text = "unknown" if check.measured is None else _format_value(check, check.measured)
    if check.limit is None or check.golden is None or check.measured is None or check.passed is None:
        return f"{title} {measured_text} ({check.note})"
    source = f"golden {_format_value(check, check.golden)} × {check.factor:g}, " if check.factor != 1 else ""
    distance = abs(check.measured - check.limit)
    is_below = check.measured < check.limit
    percentage = f", {'-' if is_below else '+'}{100 * distance / check.limit:.1f} %" if check.limit > 0 else ""
    relation = "equals" if not distance else "is below" if is_below else "exceeds"
    difference = f" by {_format_value(check, distance)}{percentage}" if distance else ""
    limit = _format_value(check, check.limit)
    return f"{title} {measured_text} {relation} the limit {limit}{difference} ({source}{check.note})"


def _format_value(check: Check, value: float) -> str:
    # Counts and bytes are written in full; times and errors in as many digits as a person can compare.
    number = f"{value:,.10g}" if check.unit in (*COUNTED_UNITS, "bytes") else f"{value:.4g}"
    return number if check.unit in ("", *COUNTED_UNITS) else f"{number} {check.unit}"


def parse_release(version: str) -> str:
    """Return the release that a compiler's version belongs to: `3.13.0rc20261016` → `3.13.0`; empty for none."""
    match = _RELEASE_PATTERN.match(version.strip())
    if match is None:
        return ""
    components = match[0].split(".")
    return ".".join([*components, *["0"] * (3 - len(components))])


def covers(releases: str, version: str) -> bool:
    """Return whether a golden's release (`3.13.0`) or range of releases (`>=3.9,<3.12`) covers a compiler's version.

    A nightly version counts as the release that it precedes.
    """
    release = parse_release(version)
    if releases[:1].isdigit() or not release:
        return bool(release) and parse_release(releases) == release
    return SpecifierSet(releases).contains(release)


def check_time(samples: Samples, goldens: Sequence[Golden], golden_keys: Sequence[str], sku: str) -> Check:
    """Check a benchmark's time against the golden of the target's SKU, if there is one.

    Of several goldens for one SKU, the strictest limit counts; goldens of other metrics are ignored. If no golden
    matches, the note lists `golden_keys`, the SKUs that have golden times in the spec.
    """
    time_goldens = [golden for golden in goldens if golden.metric is Figure.TIME]
    matching = [golden for golden in time_goldens if golden.sku == sku]
    if not matching:
        statistic = time_goldens[0].statistic if time_goldens else Statistic.MEAN
        keys = ", ".join(sorted({*golden_keys, *(golden.sku for golden in time_goldens)} - {""}))
        if keys:
            target_label = f"SKU {sku!r}" if sku else "a target without SKU"
            note = f"no golden for {target_label} (has: {keys}): measured only"
        else:
            note = "no golden time in the spec: measured only"
        return _make_unchecked(Figure.TIME, _get_time(samples, statistic), note, statistic=statistic, sku=sku)
    golden = min(matching, key=lambda candidate: candidate.limit)
    time_ms = _get_time(samples, golden.statistic)
    if time_ms is None:
        if samples.mean_ms <= golden.limit:
            # The fastest repetition is at most the mean.
            return _check_golden(golden, samples.mean_ms, Statistic.MEAN, sku, "")
        note = (
            "the golden is for the fastest repetition, but the benchmark reported only aggregates:"
            f" measured only ({golden.origin})"
        )
        return _make_unchecked(Figure.TIME, samples.mean_ms, note, statistic=Statistic.MEAN, sku=sku)
    return _check_golden(golden, time_ms, golden.statistic, sku, "")


def check_figure(
    metric: Figure, measured: float | None, goldens: Sequence[Golden], release: str, idle: Sequence[Golden] = ()
) -> Check:
    """Check a count, a size or an error, None if it is unknown, against the golden of the compiler's release.

    `release` may also be a compiler's version. Goldens whose release or range covers it precede goldens for every
    release; of several goldens, the strictest counts. Goldens of other metrics are ignored. `idle` are goldens of other
    machines and targets, for a note.
    """
    current = parse_release(release)
    candidates = [golden for golden in goldens if golden.metric is metric]
    release_goldens = [golden for golden in candidates if golden.release and covers(golden.release, current)]
    matching = release_goldens or [golden for golden in candidates if not golden.release]
    if not matching:
        releases = ", ".join(sorted({golden.release for golden in candidates}))
        title = metric.row.title
        keys = ", ".join(sorted({golden.origin.field.rpartition(".")[2] for golden in idle if golden.metric is metric}))
        if keys:
            note = f"no golden {title} for this target and SKU (has: {keys}): measured only"
        elif releases:
            note = f"no golden for compiler release {current or 'unknown'} (has: {releases}): measured only"
        else:
            note = f"no golden {title} in the spec: measured only"
        return _make_unchecked(metric, measured, note, release=current)
    if measured is None:
        return _make_unchecked(metric, None, f"{metric.row.missing_reason}: not compared with its golden")
    golden = min(matching, key=lambda candidate: candidate.limit)
    return _check_golden(golden, measured, "", "", current)


def _get_time(samples: Samples, statistic: Statistic) -> float | None:
    return samples.mean_ms if statistic == Statistic.MEAN else samples.min_ms


def _check_golden(golden: Golden, measured: float, statistic: str, sku: str, release: str) -> Check:
    return replace(
        _make_unchecked(golden.metric, measured, str(golden.origin), statistic=statistic, sku=sku, release=release),
        golden=golden.value,
        factor=golden.factor,
        limit=golden.limit,
        passed=golden.is_kept(measured),
    )


def _make_unchecked(
    metric: Figure, measured: float | None, note: str, *, statistic: str = "", sku: str = "", release: str = ""
) -> Check:
    statistic_name = str(statistic)
    return Check(
        str(metric), measured, unit=metric.row.unit, statistic=statistic_name, sku=sku, release=release, note=note
    )


@dataclass(frozen=True, slots=True)
class RoundCost:
    """The CPU time that a round consumed, which does not include waiting for CPUs.

    Attributes:
        times_ms: for each repetition, the CPU time of one iteration, of all threads together.
        steal_share: the fraction (0 to 1) of CPU time that a hypervisor took; a guest may count it as CPU time.
    """

    times_ms: tuple[float, ...]
    steal_share: float = 0.0


def find_least_time(costs: Sequence[RoundCost], statistic: Statistic, cpus: int) -> float:
    """Return the minimum time in ms that rounds would have taken alone on the machine; 0 if it is unknown.

    Waiting for a CPU uses no CPU time, so a program takes at least its CPU time divided by the number of `cpus`. Other
    work makes the same instructions slower, but at most by `_MAX_CONTENTION_FACTOR`.
    """
    if len(costs) < _MIN_ROUND_COSTS:
        return 0.0
    summarise = min if statistic == Statistic.MIN else statistics.fmean
    return min(summarise(cost.times_ms) * (1 - cost.steal_share) for cost in costs) / (cpus * _MAX_CONTENTION_FACTOR)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The result of further rounds after a golden's breach.

    Attributes:
        passed: False if the limit is certainly exceeded, True if it is certainly kept, None if neither is certain.
        low, high: the interval of the median; 0 and infinity if there are too few rounds for an interval.
        next_look: the number of rounds of the next look; None after a decision or the last look.
    """

    passed: bool | None
    reason: str
    measured: float
    low: float
    high: float
    limit: float
    confidence: float
    next_look: int | None


def confirm_breach(
    rounds: Sequence[Round], golden: float | None, factor: float | None, statistic: Statistic, plan: SequentialPlan
) -> Confirmation:
    """Judge rounds that were measured after a breach, in order of measurement and in the golden's unit.

    The limit is golden × factor; a factor of 1.1 allows 10 % more. `statistic` is the statistic of a round's
    repetitions that the dialect compares with the limit. Rounds after the plan's last look are not used.
    """
    limit = golden * factor if golden is not None and factor is not None and min(golden, factor) > 0 else 0.0
    if not 0 < limit < math.inf:
        raise EvidenceError(f"golden {golden!r} × {factor!r}, expected positive finite numbers")
    if not rounds:
        raise EvidenceError("no rounds to confirm a golden's breach", "run at least one more round")
    location = Location.MIN if statistic == Statistic.MIN else Location.MEAN
    values = [round_.compute_location(location) for round_ in rounds[: plan.max_blocks]]
    low, high = 0.0, math.inf
    looks = plan.list_looks(len(rounds))
    for look, level in looks:
        sorted_values = sorted(values[:look])
        rank = _find_rank(look, level / 2)
        if rank is not None:
            low, high = max(low, sorted_values[rank]), min(high, sorted_values[-1 - rank])
    is_kept, reason = _judge(low, high, limit)
    next_look = plan.next_look(len(rounds)) if is_kept is None else None
    if not looks:
        reason = f"{len(rounds)} more rounds, but {plan.looks[0]} are needed to confirm a breach"
    elif is_kept is None and next_look is None:
        reason += f"; all {plan.max_blocks} rounds are used"
    sorted_values = sorted(values[: looks[-1][0]] if looks else values)
    middle = (sorted_values[(len(sorted_values) - 1) // 2] + sorted_values[len(sorted_values) // 2]) / 2
    return Confirmation(is_kept, reason, middle, low, high, limit, 1 - plan.alpha, next_look)


def _judge(low: float, high: float, limit: float) -> tuple[bool | None, str]:
    if math.isinf(high):
        return None, "too few rounds for an interval at such a false-alarm rate"
    if low > high:
        return None, "earlier and later rounds contradict each other: the machine has changed"
    if low > limit:
        return False, f"the interval, {low:.4g} to {high:.4g}, is above the limit {limit:.4g}"
    if high <= limit:
        return True, f"the interval, {low:.4g} to {high:.4g}, is below the limit {limit:.4g}"
    return None, f"the interval, {low:.4g} to {high:.4g}, contains the limit {limit:.4g}"


@functools.lru_cache(maxsize=1024)
def _find_rank(count: int, level: float) -> int | None:
    """Return the largest k with P(at most k of `count` values are below their median) ≤ level; None if none."""
    total, best = 0, None
    for successes in range(count):
        total += math.comb(count, successes)
        if total > level * 2**count:
            break
        best = successes
    return best
