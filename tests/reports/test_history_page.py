"""The page of a history: whole, safe, small, and of what people look for."""

from __future__ import annotations

import re

from lxml import html

from iree_gauntlet.records.history_outcome import Finding, HistoryOutcome, Kind, Point, Series, SeriesKey
from iree_gauntlet.reports.history_page import history_page
from iree_gauntlet.reports.render_html import html_page

_HOSTILE = '"><script>alert(1)</script><img src=x>'


def series(number: int, runs: int, name: str = "toy") -> Series:
    key = SeriesKey(f"{name}{number:03}", "abs", "cpu", "time_ms", "", "f" * 12, "CPU, 2 cores, Linux 6")
    points = tuple(
        Point(f"{run}.json", f"run{run}", f"2026-03-{run % 28 + 1:02}T10:00:00+00:00", f"3.{run}.0", f"{run:040x}",
              10 + 0.01 * (run * 7919 % 100) + (run > runs // 2), run % 9 == 0, 10.0, named=f"3.{run}.0")
        for run in range(runs)
    )  # fmt: skip
    return Series(key, points)


def step(item: Series, at: int, kind: Kind = Kind.REGRESSION) -> Finding:
    points = item.points
    return Finding(item.key, kind, at, points[at - 1], points[at], 10.5, 11.5, len(points) - at, p_value=1e-6)


def page(*items: Series, findings: tuple[Finding, ...] = ()) -> str:
    return html_page(history_page(HistoryOutcome("history", 40, items, findings)))


def test_a_change_leads_to_its_commits_and_its_bisect() -> None:
    item = series(1, 40)
    text = page(item, findings=(step(item, 21),))
    found = html.fromstring(text)
    (link,) = found.xpath("//a/@href")
    assert link == f"https://github.com/iree-org/iree/compare/{20:040x}...{21:040x}"
    command = "gauntlet bisect --good 3.20.0 --bad 3.21.0 --metric time --model toy001 --submodel abs --target cpu"
    assert found.xpath("//pre/code/text()") == [command]
    assert len(found.xpath("//*[local-name()='circle']")) == 40
    hollow = found.xpath("//*[local-name()='circle'][contains(@style, 'fefefe')]")
    assert len(hollow) == 5, "those that a busy machine spoilt"
    assert "regression" in found.xpath("string(//table)")


def test_it_needs_neither_network_nor_scripts() -> None:
    text = page(series(1, 40))
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=\"(?!data:)[^\"#]", text)


def test_names_of_any_kind_are_shown_as_they_are() -> None:
    item = series(1, 5, name=_HOSTILE)
    found = html.fromstring(page(item, findings=(step(item, 3),)))
    assert found.xpath("//script | //img") == []
    assert _HOSTILE in found.xpath("string(//h2[2])")


def test_a_hundred_series_of_five_hundred_runs_are_less_than_a_megabyte() -> None:
    items = [series(number, 500) for number in range(100)]
    assert len(page(*items, findings=tuple(step(item, 251) for item in items)).encode()) < 1_000_000
