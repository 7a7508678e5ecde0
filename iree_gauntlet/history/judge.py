"""Which series of a history changed, where, and how sure that is."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING

from iree_gauntlet.figures import Effect, Figure, Margin
from iree_gauntlet.measuring.statistics.change_points import CONFIRMED_RUNS, change_points, drift
from iree_gauntlet.measuring.statistics.comparison_verdict import DEFAULT_DISCOVERY_RATE, adjust_p_values
from iree_gauntlet.records.history_record import Finding, FindingKind, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.dialects.configuration_file import Mark
    from iree_gauntlet.figures import Trend
    from iree_gauntlet.records.history_record import ConfirmedFigure, Point, SeriesKey


# An error that changes more often than in a third of its runs depends on more than the IREE.
_RESTLESS = 3


@dataclass(frozen=True, slots=True)
class Effects:
    """Shares below which a change is none.

    Attributes:
        other: of memory and of compile times.
        size: of sizes, since they last changed by as much.
    """

    time: float = 0.02
    other: float = 0.05
    size: float = 0.001

    def find_margin(self, trend: Trend | None) -> Margin:
        """Find the margin within which values are the same; of a figure that is not ours, every change counts."""
        shares = {Effect.TIME: self.time, Effect.OTHER: self.other, Effect.SIZE: self.size}
        return Margin() if trend is None else trend.margin if trend.effect is None else Margin(shares[trend.effect])

    def find_noise(self, trend: Trend | None) -> float:
        """Find the least effect that counts of a noisy figure, as a difference of logarithms."""
        return math.log1p(self.time if trend is not None and trend.effect is Effect.TIME else self.other)


def judge(series: Iterable[Series], effects: Effects) -> tuple[Finding, ...]:
    """All that changed, losses and the largest first.

    Among those that are no matter of fact, no more than one in twenty is false: Benjamini and Hochberg's rule over all
    series, also those in which nothing was found.
    """
    exact: list[Finding] = []
    likely: list[Finding] = []
    silent = 0
    for item in series:
        if _is_exact(item):
            exact += _list_exact_changes(item, effects.find_margin(item.key.trend))
            continue
        found = _list_noisy_changes(item, effects.find_noise(item.key.trend))
        likely += found
        silent += not found
    adjusted = adjust_p_values([*(item.p_value or 0.0 for item in likely), *([1.0] * silent)])
    kept = [
        replace(item, p_value=p_value)
        for item, p_value in zip(likely, adjusted, strict=False)
        if p_value <= DEFAULT_DISCOVERY_RATE
    ]
    return tuple(sorted([*exact, *kept], key=_rank))


def _rank(finding: Finding) -> tuple[int, float, float, tuple[str, ...]]:
    """Losses, suspected ones, what got better, what was won back; of each the largest first, then the surest."""
    key = finding.key
    better = finding.kind is FindingKind.IMPROVEMENT
    group = 3 if finding.won_back else 2 if better else 1 if finding.suspected else 0
    size = -abs(math.log(finding.new / finding.old)) if finding.new > 0 and finding.old > 0 else -math.inf
    return group, size, finding.p_value or 0.0, (key.title, key.sku, key.machine, key.flags)


def _is_exact(series: Series) -> bool:
    values = [point.value for point in series.points]
    if any(value <= 0 for value in values):
        return True
    changes = sum(one != other for one, other in pairwise(values))
    restless = series.key.trend is Figure.ERROR.row.trend and changes >= max(_RESTLESS, len(values) / _RESTLESS)
    return series.key.is_exact and not restless


def _list_exact_changes(series: Series, margin: Margin) -> list[Finding]:
    """Where a figure is no longer what it was when it last changed, also bit by bit."""
    points, sign = series.points, -1 if series.key.more_is_better else 1
    places, base = [], points[0].value
    for place, point in enumerate(points):
        if margin.is_exceeded(base, point.value):
            places.append((place, base))
            base = point.value
    found = []
    for (place, old), (end, _) in pairwise([*places, (len(points), base)]):
        after = points[place]
        worse = (after.value > old) is not series.key.more_is_better
        found.append(
            Finding(
                key=series.key,
                kind=FindingKind.REGRESSION if worse else FindingKind.IMPROVEMENT,
                at=place,
                before=points[place - 1],
                after=after,
                old=old,
                new=after.value,
                runs=end - place,
                won_back=worse
                and (sign * (points[-1].value - old) <= 0 or not margin.is_exceeded(old, points[-1].value)),
            )
        )
    return found


def _list_noisy_changes(series: Series, least: float) -> list[Finding]:
    points = series.points
    values, disturbed = [point.value for point in points], [point.disturbed for point in points]
    changes = change_points(values, least, disturbed=disturbed)
    if not changes:
        return _list_drifts(series, least)
    places = [_with_iree(points, change.at) for change in changes]
    if len(set(places)) < len(places):
        places = [change.at for change in changes]
    edges = [0, *places, len(points)]
    sign = -1 if series.key.more_is_better else 1
    levels = [statistics.median(values[start:end]) for start, end in pairwise(edges)]
    return [
        Finding(
            key=series.key,
            kind=FindingKind.REGRESSION if sign * change.effect > 0 else FindingKind.IMPROVEMENT,
            at=place,
            before=points[place - 1],
            after=points[place],
            old=levels[number],
            new=levels[number] * math.exp(change.effect),
            runs=change.after,
            suspected=not change.confirmed,
            p_value=change.p_value,
            disturbed=sum(disturbed[edges[number] : edges[number + 2]]),
            won_back=sign * change.effect > 0 and sign * math.log(levels[-1] / levels[number]) < least,
        )
        for number, (place, change) in enumerate(zip(places, changes, strict=True))
    ]


def _with_iree(points: Sequence[Point], at: int) -> int:
    """Where a step belongs that was found among runs of one IREE: where that came or went, if only a few runs differ.

    Runs of one IREE scatter, and the best split may be off by some. One that parts them evenly stays: the IREE is not
    what changed.
    """
    same = points[at].version
    if not same or points[at - 1].version != same:
        return at
    start = next(place for place in range(at, -1, -1) if place == 0 or points[place - 1].version != same)
    end = next((place for place in range(at, len(points)) if points[place].version != same), len(points))
    if min(at - start, end - at) > max(1, (end - start) // 4):
        return at
    nearer = start if at - start <= end - at else end
    return nearer if 0 < nearer < len(points) else at


def _list_drifts(series: Series, least: float) -> list[Finding]:
    values, disturbed = [point.value for point in series.points], [point.disturbed for point in series.points]
    # Of what should be more, a drift is that of its inverse.
    towards = [1 / value for value in values] if series.key.more_is_better else values
    found = drift(towards, least, disturbed=disturbed)
    if found is None:
        return []
    new, sign = statistics.median(values[-CONFIRMED_RUNS:]), -1 if series.key.more_is_better else 1
    return [
        Finding(
            key=series.key,
            kind=FindingKind.DRIFT,
            at=found.since,
            before=series.points[found.since - 1],
            after=series.points[-1],
            old=new * math.exp(-sign * found.effect),
            new=new,
            runs=len(values) - found.since,
            p_value=found.p_value,
            disturbed=sum(disturbed),
        )
    ]


def without_invalid(series: Iterable[Series], marks: Sequence[Mark]) -> tuple[Series, ...]:
    """The series without what does not count; those of which nothing is left go."""
    found = []
    for item in series:
        own = [mark for mark in marks if mark.mark == "invalid" and _fits(mark, item.key)]
        points = tuple(point for point in item.points if not any(_came_with(point, mark.iree) for mark in own))
        found += [replace(item, points=points)] if points else []
    return tuple(found)


def with_marks(findings: Iterable[Finding], series: Iterable[Series], marks: Sequence[Mark]) -> tuple[Finding, ...]:
    """The findings, with what is accepted and what was moved."""
    points = {item.key: item.points for item in series}
    found = []
    for item in findings:
        marked = item
        for mark in marks:
            if not _fits(mark, item.key) or not _came_with(marked.after, mark.iree):
                continue
            if mark.mark == "accepted" and item.kind is not FindingKind.IMPROVEMENT:
                marked = replace(marked, accepted=mark.reason)
            elif mark.mark == "moved":
                own = points[item.key]
                at = next((place for place, point in enumerate(own) if _came_with(point, mark.to)), 0)
                # One that the series does not have changes nothing.
                marked = replace(marked, at=at, before=own[at - 1], after=own[at]) if at else marked
        found.append(marked)
    return tuple(found)


def find_idle_marks(series: Iterable[Series], marks: Iterable[Mark]) -> tuple[str, ...]:
    """Marks of which a history has neither series nor runs, a line each."""
    known = tuple(series)
    return tuple(
        f"mark {mark.mark!r} of {mark.series} with {mark.iree} fits no run of the history"
        for mark in marks
        if not any(
            _fits(mark, item.key) and any(_came_with(point, mark.iree) for point in item.points) for item in known
        )
    )


def _fits(mark: Mark, key: SeriesKey) -> bool:
    return fnmatchcase(key.title, mark.series) or fnmatchcase(key.case, mark.series)


def _came_with(point: Point, iree: str) -> bool:
    return iree in (point.iree, point.named, point.time[:10]) or (len(iree) >= 7 and point.commit.startswith(iree))


def with_confirmations(findings: Iterable[Finding], confirmations: Iterable[ConfirmedFigure]) -> tuple[Finding, ...]:
    """The findings, with what comparisons of their two IREEs came to; the newest counts."""
    known = {(item.case, item.figure, item.before, item.after): item for item in confirmations}
    found = []
    for item in findings:
        said = known.get((item.key.case, item.key.figure, item.before.iree, item.after.iree))
        found.append(item if said is None else replace(item, confirmed=said.verdict, ratio=said.ratio))
    return tuple(found)
