"""Findings and series as people have marked them."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from iree_gauntlet.records.history_outcome import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.dialects.history_marks import Mark
    from iree_gauntlet.records.history_outcome import Finding, Point, Series, SeriesKey


def without_invalid(series: Iterable[Series], marks: Sequence[Mark]) -> tuple[Series, ...]:
    """The series without what does not count; those of which nothing is left go."""
    invalid = [mark for mark in marks if mark.mark == "invalid"]
    found = []
    for item in series:
        own = [mark for mark in invalid if _fits(mark, item.key)]
        points = tuple(point for point in item.points if not any(_came_with(point, mark.iree) for mark in own))
        if points:
            found.append(replace(item, points=points))
    return tuple(found)


def with_marks(findings: Iterable[Finding], series: Iterable[Series], marks: Sequence[Mark]) -> tuple[Finding, ...]:
    """The findings, with what is accepted and what was moved."""
    points = {item.key: item.points for item in series}
    found = []
    for item in findings:
        for mark in marks:
            if mark.mark == "accepted" and item.kind is Kind.IMPROVEMENT:
                continue
            if mark.mark != "invalid" and _fits(mark, item.key) and _came_with(item.after, mark.iree):
                item = _marked(item, mark, points[item.key])  # noqa: PLW2901 - several may fit
        found.append(item)
    return tuple(found)


def idle_marks(series: Iterable[Series], marks: Iterable[Mark]) -> tuple[str, ...]:
    """Marks of which a history has neither series nor runs, a line each."""
    known = tuple(series)
    return tuple(
        f"mark {mark.mark!r} of {mark.series} with {mark.iree} fits no run of the history"
        for mark in marks
        if not any(
            _fits(mark, item.key) and any(_came_with(point, mark.iree) for point in item.points) for item in known
        )
    )


def _marked(finding: Finding, mark: Mark, points: Sequence[Point]) -> Finding:
    if mark.mark == "accepted":
        return replace(finding, accepted=mark.reason)
    at = next((place for place, point in enumerate(points) if _came_with(point, mark.to)), 0)
    # One that the series does not have changes nothing.
    return replace(finding, at=at, before=points[at - 1], after=points[at]) if at else finding


def _fits(mark: Mark, key: SeriesKey) -> bool:
    return fnmatchcase(key.title, mark.series) or fnmatchcase(key.case, mark.series)


def _came_with(point: Point, iree: str) -> bool:
    return iree in (point.iree, point.named, point.time[:10]) or (len(iree) >= 7 and point.commit.startswith(iree))


def with_confirmations(findings: Iterable[Finding], confirmations: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """The findings, with what comparisons of their two IREEs came to; the newest counts."""
    known = {(item["case"], item["figure"], item["before"], item["after"]): item for item in confirmations}
    found = []
    for item in findings:
        said = known.get((item.key.case, item.key.figure, item.before.iree, item.after.iree))
        found.append(item if said is None else replace(item, confirmed=str(said["verdict"]), ratio=said["ratio"]))
    return tuple(found)
