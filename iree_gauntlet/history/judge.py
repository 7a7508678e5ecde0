"""The changes of a history's series: where they are, and how certain."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING

from iree_gauntlet.figures import Effect, Figure, Margin
from iree_gauntlet.measuring.statistics.change_points import MIN_CONFIRMED_RUNS, find_change_points, find_drift
from iree_gauntlet.measuring.statistics.comparison_verdict import DEFAULT_DISCOVERY_RATE, adjust_p_values
from iree_gauntlet.records.history_record import FailureRate, Finding, FindingKind, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.dialects.configuration_file import Mark
    from iree_gauntlet.figures import HistoryView
    from iree_gauntlet.records.history_record import FigureConfirmation, Point, SeriesKey, VerdictPoint


# A numerical error that changes at least three times, and in a third of the runs or more, does not depend on the IREE
# alone: it is judged as noisy.
_MIN_CHANGES, _MAX_RUNS_PER_CHANGE = 3, 3
# The newest runs of a case that its rate of failures is computed from, and the confidence of the rate's interval.
_RATED_RUNS, _CONFIDENCE = 200, 0.95
_MAX_NEAREST = 3


@dataclass(frozen=True, slots=True)
class MinEffects:
    """The smallest relative changes that count.

    Attributes:
        memory_and_compile_time: for memory and compile times.
        size: for sizes, compared with the size at the last such change.
    """

    time: float = 0.02
    memory_and_compile_time: float = 0.05
    size: float = 0.001

    def find_margin(self, view: HistoryView | None) -> Margin:
        """Return the margin within which values are equal; for an imported figure, every change counts."""
        shares = {Effect.TIME: self.time, Effect.OTHER: self.memory_and_compile_time, Effect.SIZE: self.size}
        return Margin() if view is None else view.margin if view.effect is None else Margin(shares[view.effect])

    def find_noise(self, view: HistoryView | None) -> float:
        """Return the smallest effect that counts for a noisy figure, as a difference of logarithms."""
        return math.log1p(self.find_margin(view).share or self.memory_and_compile_time)


def judge(all_series: Iterable[Series], effects: MinEffects) -> tuple[Finding, ...]:
    """Find all changes, regressions first, and the largest of each kind first.

    At most one in twenty reported changes of noisy figures is false, by Benjamini and Hochberg's rule over all series,
    including series without a change.
    """
    exact_findings: list[Finding] = []
    noisy_findings: list[Finding] = []
    unchanged_count = 0
    for series in all_series:
        margin = effects.find_margin(series.key.history_view)
        if _is_exact(series, margin):
            exact_findings += _list_exact_changes(series, margin)
            continue
        findings = _list_noisy_changes(series, effects.find_noise(series.key.history_view))
        noisy_findings += findings
        unchanged_count += not findings
    p_values = adjust_p_values([*(finding.p_value or 0.0 for finding in noisy_findings), *([1.0] * unchanged_count)])
    significant = [
        replace(finding, p_value=p_value)
        for finding, p_value in zip(noisy_findings, p_values, strict=False)
        if p_value <= DEFAULT_DISCOVERY_RATE
    ]
    return tuple(sorted([*exact_findings, *significant], key=_make_sort_key))


def _make_sort_key(finding: Finding) -> tuple[int, float, float, tuple[str, ...]]:
    """Return a sort key: regressions, suspected regressions, improvements, undone changes.

    Within a group, the largest change from the old level to today's is first, then the most certain.
    """
    key, today = finding.key, finding.today
    group = 3 if finding.undone else 2 if finding.kind is FindingKind.IMPROVEMENT else 1 if finding.suspected else 0
    change = abs(math.log(today / finding.old)) if today > 0 and finding.old > 0 else math.inf
    return group, -change, finding.p_value or 0.0, (key.title, key.sku, key.machine, key.flags)


def _is_exact(series: Series, margin: Margin) -> bool:
    values = [point.value for point in series.points]
    if any(value <= 0 for value in values):
        return True
    changes = sum(margin.is_exceeded(a, b) for a, b in pairwise(values))
    is_frequent = changes >= max(_MIN_CHANGES, len(values) / _MAX_RUNS_PER_CHANGE)
    return series.key.is_exact and not (is_frequent and series.key.history_view is Figure.ERROR.row.history)


def _list_exact_changes(series: Series, margin: Margin) -> list[Finding]:
    """List the points where a figure differs from its value at the last change, which also finds slow drifts."""
    points = series.points
    steps, base = [], points[0].value
    for index, point in enumerate(points):
        if margin.is_exceeded(base, point.value):
            steps.append((index, base))
            base = point.value
    return [
        _make_step(series, index, end, (old, points[index].value, points[-1].value), margin)
        for (index, old), (end, _) in pairwise([*steps, (len(points), base)])
    ]


def _make_step(series: Series, index: int, end: int, levels: tuple[float, float, float], margin: Margin) -> Finding:
    """Make the finding of a step; `levels` are the values before it, from `index` to `end`, and of today."""
    points, key, (old, new, today) = series.points, series.key, levels
    undone = (today - old) * (new - old) <= 0 or not margin.is_exceeded(old, today)
    until = points[end - 1] if undone or end < len(points) else None
    return Finding(
        key=key,
        kind=FindingKind.REGRESSION if (new > old) is not key.more_is_better else FindingKind.IMPROVEMENT,
        index=index,
        point_before=points[index - 1],
        point_after=points[index],
        old=old,
        new=new,
        runs=end - index,
        today=today if until else new,
        until=until,
        undone=undone,
    )


def _list_noisy_changes(series: Series, min_effect: float) -> list[Finding]:
    points = series.points
    values, flags = [point.value for point in points], [point.disturbed for point in points]
    changes = find_change_points(values, min_effect, disturbed=flags)
    if not changes:
        return _list_drifts(series, min_effect)
    positions = [_align_with_iree(points, change.index) for change in changes]
    if len(set(positions)) < len(positions):
        positions = [change.index for change in changes]
    edges = [0, *positions, len(points)]
    levels = [statistics.median(values[start:end]) for start, end in pairwise(edges)]
    margin, findings = Margin(math.expm1(min_effect)), []
    for number, (position, change) in enumerate(zip(positions, changes, strict=True)):
        start, end, old = edges[number], edges[number + 2], levels[number]
        step = _make_step(series, position, end, (old, old * math.exp(change.effect), levels[-1]), margin)
        step = replace(step, runs=change.count_after, disturbed=sum(flags[start:end]))
        findings.append(replace(step, suspected=not change.is_confirmed, p_value=change.p_value))
    return findings


def _align_with_iree(points: Sequence[Point], index: int) -> int:
    """Move a step within the runs of one IREE to the begin or end of these runs, if that is only a few runs away.

    The best split of noisy runs may be off by a few runs. A step in the middle of an IREE's runs stays, because the
    IREE is not its cause.
    """
    version = points[index].version
    if not version or points[index - 1].version != version:
        return index
    start = next(i for i in range(index, -1, -1) if i == 0 or points[i - 1].version != version)
    end = next((i for i in range(index, len(points)) if points[i].version != version), len(points))
    if min(index - start, end - index) > max(1, (end - start) // 4):
        return index
    edge = start if index - start <= end - index else end
    return edge if 0 < edge < len(points) else index


def _list_drifts(series: Series, min_effect: float) -> list[Finding]:
    values, flags = [point.value for point in series.points], [point.disturbed for point in series.points]
    # If more is better, the inverse values are searched for a drift.
    oriented = [1 / value for value in values] if series.key.more_is_better else values
    drift = find_drift(oriented, min_effect, disturbed=flags)
    if drift is None:
        return []
    new, sign = statistics.median(values[-MIN_CONFIRMED_RUNS:]), -1 if series.key.more_is_better else 1
    return [
        Finding(
            key=series.key,
            kind=FindingKind.DRIFT,
            index=drift.start_index,
            point_before=series.points[drift.start_index - 1],
            point_after=series.points[-1],
            old=new * math.exp(-sign * drift.effect),
            new=new,
            runs=len(values) - drift.start_index,
            today=new,
            p_value=drift.p_value,
            disturbed=sum(flags),
        )
    ]


def judge_verdicts(
    verdicts: Mapping[tuple[str, str, str], Sequence[VerdictPoint]], pattern: str = "", sku: str = ""
) -> tuple[FailureRate, ...]:
    """Find the cases that fail, are flaky, or are in quarantine, the most frequent failures first.

    Only the newest runs of each case count. An empty `pattern` (a glob over cases) or `sku` matches all.
    """
    rates = [
        _make_rate(key, points[-_RATED_RUNS:])
        for key, points in verdicts.items()
        if fnmatchcase(key[0], pattern or "*") and sku in ("", key[1])
    ]
    return tuple(
        sorted(
            (rate for rate in rates if rate.needs_notice),
            key=lambda rate: (rate.kind, -rate.failures / rate.runs, rate.case, rate.sku, rate.machine),
        )
    )


def _make_rate(key: tuple[str, str, str], points: Sequence[VerdictPoint]) -> FailureRate:
    failures = [point for point in points if point.is_failure]
    passed_versions = {point.version for point in points if point.verdict in ("passed", "flaky")} - {""}
    is_flaky = any(point.verdict == "flaky" or point.version in passed_versions for point in failures)
    passes = next((index for index, point in enumerate(reversed(points)) if point.is_failure), len(points))
    # A case that is only broken has no rate: it has failed since a run.
    kind = "flaky" if is_flaky else "failed" if failures and not passes else "passed"
    if kind == "failed":
        start = max((index + 1 for index, point in enumerate(points) if not point.is_failure), default=0)
        points = failures = list(points[start:])
    low, high = _compute_interval(len(failures), len(points))
    first, last = (failures[0], failures[-1]) if failures else (None, None)
    return FailureRate(*key, kind, len(points), len(failures), low, high, first, last, passes, points[-1].quarantine)


def _compute_interval(failures: int, runs: int) -> tuple[float, float]:
    """Compute Wilson's interval of a probability: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209-212."""
    z = statistics.NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / 2)
    share, scale = failures / runs, 1 + z * z / runs
    middle = (share + z * z / (2 * runs)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def remove_invalid(all_series: Iterable[Series], marks: Sequence[Mark]) -> tuple[Series, ...]:
    """Return the series without points that are marked as invalid; a series without points is left out."""
    kept_series = []
    for series in all_series:
        matches = [mark for mark in marks if mark.mark == "invalid" and _matches(mark, series.key)]
        points = tuple(point for point in series.points if not any(_has_iree(point, mark.iree) for mark in matches))
        kept_series += [replace(series, points=points)] if points else []
    return tuple(kept_series)


def apply_marks(
    findings: Iterable[Finding], all_series: Iterable[Series], marks: Sequence[Mark]
) -> tuple[Finding, ...]:
    """Apply the marks of accepted and moved changes to findings."""
    points_by_key = {series.key: series.points for series in all_series}
    results = []
    for finding in findings:
        result = finding
        for mark in marks:
            if not _matches(mark, finding.key) or not _has_iree(result.point_after, mark.iree):
                continue
            if mark.mark == "accepted" and finding.kind is not FindingKind.IMPROVEMENT:
                result = replace(result, accepted=mark.reason)
            elif mark.mark == "moved":
                points = points_by_key[finding.key]
                index = next((i for i, point in enumerate(points) if _has_iree(point, mark.to)), 0)
                # A mark without a matching run in the series has no effect.
                if index:
                    before, after = points[index - 1], points[index]
                    result = replace(result, index=index, point_before=before, point_after=after)
        results.append(result)
    return tuple(results)


def find_unused_marks(all_series: Iterable[Series], marks: Iterable[Mark]) -> tuple[str, ...]:
    """Describe the marks that fit no series, or no run of the history, one per line."""
    series_list = tuple(all_series)
    problems = []
    for mark in marks:
        marked = [series for series in series_list if _matches(mark, series.key)]
        if not marked:
            nearest = get_close_matches(mark.series, {series.key.title for series in series_list}, n=_MAX_NEAREST)
            names = f"; the nearest are {', '.join(nearest)}" if nearest else ""
            problems.append(f"mark {mark.mark!r} of {mark.series} matches no series of the history{names}")
        elif not any(_has_iree(point, mark.iree) for series in marked for point in series.points):
            problems.append(f"mark {mark.mark!r} of {mark.series} with {mark.iree} matches no run of the history")
    return tuple(problems)


def _matches(mark: Mark, key: SeriesKey) -> bool:
    return fnmatchcase(key.title, mark.series) or fnmatchcase(key.case, mark.series)


def _has_iree(point: Point, iree: str) -> bool:
    """Return True if a mark's IREE is the point's version, `--iree` value, day, or the start of its commit."""
    return iree in (point.iree, point.iree_arg, point.time[:10]) or (len(iree) >= 7 and point.commit.startswith(iree))


def add_confirmations(findings: Iterable[Finding], confirmations: Iterable[FigureConfirmation]) -> tuple[Finding, ...]:
    """Add the results of comparisons that confirm findings; the newest counts."""
    entries = {(entry.case, entry.figure, entry.before, entry.after): entry for entry in confirmations}
    results = []
    for finding in findings:
        entry = entries.get((finding.key.case, finding.key.figure, finding.point_before.iree, finding.point_after.iree))
        results.append(finding if entry is None else replace(finding, confirmed=entry.verdict, ratio=entry.ratio))
    return tuple(results)
