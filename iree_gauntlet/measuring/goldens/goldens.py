"""Holding measured figures against goldens. Pure functions: the same figures give the same check.

A golden is checked only where it was made for: a time on its SKU, a dispatch count or a size with its
compiler release. Elsewhere the figure is measured and shown, never silently passed.

Is a golden time really broken? After a breach by the dialect's plain rule further rounds of one side are taken, until
the interval lies on one side of the limit, golden × factor; the breach itself, which made one look, is no evidence and
stays out. Each round gives the dialect's figure, its mean or its minimum, and the median over rounds is held against
the limit.

There is no second side to cancel drift and no reason for symmetric noise, so the interval is the one of the sign test:
order statistics of the rounds, exact for any distribution of independent rounds (David and Nagaraja, Order Statistics,
3rd edition, 2003, §7.1). It speaks of the machine as it is in these minutes: a machine that is slow all along gives a
real breach. The looks and their levels are those of `rounds`, with rounds in place of blocks.
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


# What caches, memory, the threads of a core and its clock cost at most that are shared with other work: each of them
# alone is a factor of 2 to 4 at worst.
_MOST_COST = 10.0
# Of rounds, so that no hiccup of one decides.
_FEWEST_COSTS = 3
_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+)*")


def describe(check: Check) -> str:
    """One line for people; a breach says by how much."""
    title = FIGURES[check.metric].row.title
    if check.statistic == Statistic.MIN:
        title = f"fastest {title}"
    figure = "unknown" if check.measured is None else _format_figure(check, check.measured)
    if check.limit is None or check.golden is None or check.measured is None or check.passed is None:
        return f"{title} {figure} ({check.note})"
    source = f"golden {_format_figure(check, check.golden)} × {check.factor:g}, " if check.factor != 1 else ""
    distance = abs(check.measured - check.limit)
    share = f", {'-' if check.passed else '+'}{100 * distance / check.limit:.1f} %" if check.limit > 0 else ""
    relation = "equals" if not distance else "is below" if check.passed else "exceeds"
    difference = f" by {_format_figure(check, distance)}{share}" if distance else ""
    limit = _format_figure(check, check.limit)
    return f"{title} {figure} {relation} the limit {limit}{difference} ({source}{check.note})"


def _format_figure(check: Check, value: float) -> str:
    # Counts and bytes in full; times and errors in as many digits as a person can compare.
    number = f"{value:,.10g}" if check.unit in (*COUNTED_UNITS, "bytes") else f"{value:.4g}"
    return number if check.unit in ("", *COUNTED_UNITS) else f"{number} {check.unit}"


def release_of(version: str) -> str:
    """The release that a compiler's version belongs to: `3.13.0rc20261016` → `3.13.0`; empty for none."""
    match = _RELEASE.match(version.strip())
    if match is None:
        return ""
    parts = match[0].split(".")
    return ".".join([*parts, *["0"] * (3 - len(parts))])


def covers(releases: str, version: str) -> bool:
    """Whether a golden of a release, `3.13.0`, or of a range of them, `>=3.9,<3.12`, is one for a compiler's version.

    A nightly is taken for the release that it leads to.
    """
    release = release_of(version)
    if releases[:1].isdigit() or not release:
        return bool(release) and release_of(releases) == release
    return SpecifierSet(releases).contains(release)


def check_time(samples: Samples, goldens: Sequence[Golden], golden_keys: Sequence[str], sku: str) -> Check:
    """Holds a benchmark's time against the golden of the target's SKU, if it has one.

    Where a spec has several for one SKU, the strictest limit counts; goldens of other metrics are passed over. The
    note has `golden_keys`, SKUs that the spec has golden times for, where none fits.
    """
    times = [golden for golden in goldens if golden.metric is Figure.TIME]
    fitting = [golden for golden in times if golden.sku == sku]
    if not fitting:
        statistic = times[0].statistic if times else Statistic.MEAN
        keys = ", ".join(sorted({*golden_keys, *(golden.sku for golden in times)} - {""}))
        if keys:
            named = f"SKU {sku!r}" if sku else "a target without SKU"
            note = f"no golden for {named} (has: {keys}): measured only"
        else:
            note = "no golden time in the spec: measured only"
        return _note_figure(Figure.TIME, _time(samples, statistic), note, statistic=statistic, sku=sku)
    golden = min(fitting, key=lambda candidate: candidate.limit)
    measured = _time(samples, golden.statistic)
    if measured is None:
        if samples.mean_ms <= golden.limit:
            # The fastest repetition is at most the mean.
            return _check_golden(golden, samples.mean_ms, Statistic.MEAN, sku, "")
        note = (
            "the golden is for the fastest repetition, and the benchmark reported aggregates only:"
            f" measured only ({golden.origin})"
        )
        return _note_figure(Figure.TIME, samples.mean_ms, note, statistic=Statistic.MEAN, sku=sku)
    return _check_golden(golden, measured, golden.statistic, sku, "")


def check_figure(
    metric: Figure, measured: float, goldens: Sequence[Golden], release: str, idle: Sequence[Golden] = ()
) -> Check:
    """Holds a dispatch count, a size or an error against the golden of the compiler's release.

    A golden written for this release (or a compiler's version), or a range that it lies in, goes before one for every
    release; of several, the strictest counts. Goldens of other metrics are passed over; `idle` are those of other
    machines and targets, for a note.
    """
    current = release_of(release)
    candidates = [golden for golden in goldens if golden.metric is metric]
    own = [golden for golden in candidates if golden.release and covers(golden.release, current)]
    fitting = own or [golden for golden in candidates if not golden.release]
    if not fitting:
        known = ", ".join(sorted({golden.release for golden in candidates}))
        title = metric.row.title
        keys = ", ".join(sorted({golden.origin.field.rpartition(".")[2] for golden in idle if golden.metric is metric}))
        if keys:
            note = f"no golden {title} for this target and SKU (has: {keys}): measured only"
        elif known:
            note = f"no golden for compiler release {current or 'unknown'} (has: {known}): measured only"
        else:
            note = f"no golden {title} in the spec: measured only"
        return _note_figure(metric, measured, note, release=current)
    golden = min(fitting, key=lambda candidate: candidate.limit)
    return _check_golden(golden, measured, "", "", current)


def _time(samples: Samples, statistic: Statistic) -> float | None:
    return samples.mean_ms if statistic == Statistic.MEAN else samples.min_ms


def _check_golden(golden: Golden, measured: float, statistic: str, sku: str, release: str) -> Check:
    return replace(
        _note_figure(golden.metric, measured, str(golden.origin), statistic=statistic, sku=sku, release=release),
        golden=golden.value,
        factor=golden.factor,
        limit=golden.limit,
        passed=measured <= golden.limit,
    )


def _note_figure(
    metric: Figure, measured: float | None, note: str, *, statistic: str = "", sku: str = "", release: str = ""
) -> Check:
    text = str(statistic)
    return Check(str(metric), measured, unit=metric.row.unit, statistic=text, sku=sku, release=release, note=note)


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round cost the CPUs, however long it had to wait for them.

    Attributes:
        times_ms: CPU time of an iteration, of all threads together, for each repetition.
        steal_share: what a hypervisor took of the CPUs' time, which a guest may count as its own; 0 to 1.
    """

    times_ms: tuple[float, ...]
    steal_share: float = 0.0


def find_least_time(costs: Sequence[RoundCost], statistic: Statistic, cpus: int) -> float:
    """The time in ms that rounds would have taken at least with the machine to themselves; 0 where that is not known.

    A process that waits for a CPU costs none meanwhile, and no program is faster than its CPU time on all `cpus` that
    it can run on. Other work makes the same instructions cost more, by `_MOST_COST` times at most.
    """
    if len(costs) < _FEWEST_COSTS:
        return 0.0
    figure = min if statistic == Statistic.MIN else statistics.fmean
    return min(figure(cost.times_ms) * (1 - cost.steal_share) for cost in costs) / (cpus * _MOST_COST)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What further rounds say of a golden's breach.

    Attributes:
        passed: False where the limit is broken for certain, True where it is kept for certain, None for neither.
        low, high: its interval; 0 and infinity where there are too few rounds for one.
        next_look: at how many rounds more could be said; None where the verdict stands or the budget is spent.
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
    """Judges rounds that were taken after a breach, in their order, in the golden's unit.

    The golden may be exceeded by its factor; 1.1 is 10 %. `statistic` says which figure of a round's repetitions the
    dialect's rule holds against the limit. Rounds after the plan's last look are not used.
    """
    limit = golden * factor if golden is not None and factor is not None and min(golden, factor) > 0 else 0.0
    if not 0 < limit < math.inf:
        raise EvidenceError(f"golden {golden!r} × {factor!r}, expected positive finite numbers")
    if not rounds:
        raise EvidenceError("no rounds to confirm a golden's breach with", "take at least one more round")
    kind = Location.MIN if statistic == Statistic.MIN else Location.MEAN
    figures = [round_.location(kind) for round_ in rounds[: plan.max_blocks]]
    low, high = 0.0, math.inf
    looks = plan.reached(len(rounds))
    for look, level in looks:
        ordered = sorted(figures[:look])
        reach = _find_reach(look, level / 2)
        if reach is not None:
            low, high = max(low, ordered[reach]), min(high, ordered[-1 - reach])
    passed, reason = _judge(low, high, limit)
    next_look = plan.next_look(len(rounds)) if passed is None else None
    if not looks:
        reason = f"{len(rounds)} more rounds, and {plan.looks[0]} are needed to confirm a breach"
    elif passed is None and next_look is None:
        reason += f"; all {plan.max_blocks} rounds are taken"
    ordered = sorted(figures[: looks[-1][0]] if looks else figures)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return Confirmation(passed, reason, middle, low, high, limit, 1 - plan.alpha, next_look)


def _judge(low: float, high: float, limit: float) -> tuple[bool | None, str]:
    if math.isinf(high):
        return None, "too few rounds for an interval at such a false-alarm rate"
    if low > high:
        return None, "earlier and later rounds contradict each other: the machine has changed"
    if low > limit:
        return False, f"the interval, {low:.4g} to {high:.4g}, lies above the limit {limit:.4g}"
    if high <= limit:
        return True, f"the interval, {low:.4g} to {high:.4g}, lies below the limit {limit:.4g}"
    return None, f"the interval, {low:.4g} to {high:.4g}, holds the limit {limit:.4g}"


@functools.lru_cache(maxsize=1024)
def _find_reach(count: int, level: float) -> int | None:
    """The largest k with P(at most k of `count` values fall below their median) ≤ level; None where there is none."""
    total, best = 0, None
    for successes in range(count):
        total += math.comb(count, successes)
        if total > level * 2**count:
            break
        best = successes
    return best
