"""The page of a history: complete, safe and small, with the parts that people look for."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from lxml import html

from iree_gauntlet.document import Document
from iree_gauntlet.records.history_record import Finding, FindingKind, HistoryOutcome, Point, Series, SeriesKey
from iree_gauntlet.reports.history_page import make_history_page
from iree_gauntlet.reports.render_html import read_memory, render_html

_HOSTILE = '"><script>alert(1)</script><img src=x>'


def series(number: int, runs: int, name: str = "toy") -> Series:
    key = SeriesKey(f"{name}{number:03}", "abs", "cpu", "time_ms", "", "f" * 12, "CPU, 2 cores, Linux 6")
    points = tuple(
        Point(f"{run}.json", f"run{run}", f"2026-03-{run % 28 + 1:02}T10:00:00+00:00", f"3.{run}.0", f"{run:040x}",
              10 + 0.01 * (run * 7919 % 100) + (run > runs // 2), run % 9 == 0, 10.0, iree_arg=f"3.{run}.0")
        for run in range(runs)
    )  # fmt: skip
    return Series(key, points)


def step(item: Series, at: int, kind: FindingKind = FindingKind.REGRESSION) -> Finding:
    points = item.points
    return Finding(item.key, kind, at, points[at - 1], points[at], 10.5, 11.5, len(points) - at, 11.5, p_value=1e-6)


def page(*items: Series, findings: tuple[Finding, ...] = (), memory: str = "") -> str:
    return render_html(make_history_page(HistoryOutcome("history", 40, items, findings), "2026-11-25", memory))


def test_a_change_leads_to_its_commits_and_its_bisect() -> None:
    item = series(1, 40)
    text = page(item, findings=(step(item, 21),))
    found = html.fromstring(text)
    series_link, link = found.xpath("//a/@href")
    assert found.xpath(f"string(//*[@id='{series_link[1:]}'])") == "toy001/abs@cpu"
    assert link == f"https://github.com/iree-org/iree/compare/{20:040x}...{21:040x}"
    command = "gauntlet bisect --good 3.20.0 --bad 3.21.0 --metric time --model toy001 --submodel abs --target cpu"
    # Once below all changes, and once beside its chart.
    assert [code.text_content() for code in found.xpath("//pre/code")] == [command] * 2
    assert len(found.xpath("//figure//*[local-name()='circle']")) == 40
    assert len(found.xpath("//td/svg[@class='course']")) == 1
    hollow = found.xpath("//*[local-name()='circle'][contains(@class, 'hollow')]")
    assert len(hollow) == 5, "those that a busy machine spoilt"
    assert "regression" in found.xpath("string(//table)")


def test_a_chart_has_releases_below_and_values_beside_it() -> None:
    item = series(1, 40)
    (chart,) = html.fromstring(page(item)).xpath("//figure/svg")
    texts = [text.text_content() for text in chart.xpath("./text")]
    assert sorted(texts[:2]) == ["10 ms", "11.99 ms"]
    assert texts[2:] == ["3.39.0", "3.31.0", "3.23.0", "3.16.0", "3.8.0", "3.0.0"]
    size = replace(item, key=replace(item.key, figure="size_bytes"), points=tuple(
        replace(point, value=212e6 + 1e6 * run, golden=None) for run, point in enumerate(item.points)
    ))  # fmt: skip
    found = html.fromstring(page(size))
    assert found.xpath("string(//h3[contains(., 'size_bytes')])") == "size_bytes: 251.0 MB"
    assert {"212 MB", "251 MB"} <= set(found.xpath("//figure/svg/text/text()"))


def test_what_did_not_change_is_folded_and_common_columns_are_a_sentence() -> None:
    items = [series(number, 40) for number in range(3)]
    found = html.fromstring(page(*items, findings=(step(items[0], 21), step(items[2], 22))))
    assert found.xpath("//details/preceding-sibling::h2[1]/text()") == ["toy001/abs@cpu"]
    assert len(found.xpath("//details//figure")) == 1
    assert len(found.xpath("//main/figure")) == 2
    assert found.xpath("string(//main/p[1])") == "In all rows: p 1e-06, machine CPU, 2 cores, Linux 6."
    heads = [head.text_content() for head in found.xpath("//main//table")[0].xpath(".//th")]
    assert heads == ["what", "series", "change", "old → new", "since IREE", "last before", "runs"]


def test_no_request_leaves_it() -> None:
    text = page(series(1, 40))
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)[^\"]", text)
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-" in text
    assert "Copyright (c) 2022 Leon Sorokin" in text, "uPlot's licence goes with it"


def test_a_page_without_charts_has_no_script_for_them() -> None:
    text = render_html(Document("t", "a", (), ()))
    assert text.count("<script") == 1
    assert "uPlot" not in text


def test_charts_share_the_runs_that_they_are_of() -> None:
    first, second, other = series(1, 40), series(2, 40), series(3, 3)
    (data,) = html.fromstring(page(first, second, other, findings=(step(first, 21),))).xpath("//script[@id='charts']")
    found = json.loads(data.text)
    assert [chart["track"] for chart in found["charts"]] == [0, 0, 1]
    assert len(found["origins"]) == 40
    assert found["origins"][3] == ["run3", "3.3.0", "2026-03-04", f"{3:040x}", "3.3.0", "3.json"]
    assert found["charts"][0]["changes"] == [[21, False]]
    assert found["charts"][0]["disturbed"] == [0, 9, 18, 27, 36]
    assert found["charts"][0]["values"] == [float(f"{point.value:.6g}") for point in first.points]


def test_each_model_is_a_row_with_its_figures_side_by_side() -> None:
    time = series(1, 9)
    size = Series(replace(time.key, figure="size_bytes", flags="e" * 12), time.points)
    other = Series(replace(time.key, flags="e" * 12), time.points)
    table = html.fromstring(page(time, size, other, findings=(step(time, 5),))).xpath("//h3[1]/following::table")[0]
    assert [item.text for item in table.findall(".//th")] == ["model", "time_ms", "size_bytes"]
    rows = [[len(cell.findall(".//path")) for cell in row.findall("td")] for row in table.findall(".//tbody/tr")]
    assert rows == [[0, 1, 1], [0, 1, 0]]
    assert len(table.xpath(".//line[@class='change']")) == 1
    assert html.fromstring(page(time)).xpath("string(//h3)") == "CPU, 2 cores, Linux 6"


def test_where_much_is_better_that_is_folded() -> None:
    items = [series(number, 40) for number in range(12)]
    better = tuple(step(item, 21, FindingKind.IMPROVEMENT) for item in items[1:])
    found = html.fromstring(page(*items, findings=(step(items[0], 21), *better)))
    assert found.xpath("string(//details/summary)") == "11 improved or recovered"
    assert [len(table.findall("tbody/tr")) for table in found.findall(".//table")][:2] == [1, 11]


def test_what_is_new_since_the_page_before_stands_first() -> None:
    items = series(1, 40), series(2, 40)
    before = page(*items, findings=(step(items[0], 21),))
    text = page(*items, findings=tuple(step(item, 21) for item in items), memory=read_memory(before))
    new, known = (html.fromstring(text).xpath(f"string((//table)[{number}])") for number in (1, 2))
    assert "toy002" in new
    assert "toy001" not in new
    assert "toy001" in known
    assert html.fromstring(text).xpath("string(//h2[1])") == "New since 2026-11-25"
    again = page(*items, findings=(step(items[0], 21),), memory=read_memory(text))
    assert "Nothing is new." in html.fromstring(again).xpath("string(//body)")


def test_names_of_any_kind_are_shown_as_they_are() -> None:
    item = series(1, 5, name=_HOSTILE)
    found = html.fromstring(page(item, findings=(step(item, 3),)))
    assert len(found.xpath("//script")) == 3
    assert found.xpath("//img") == []
    assert _HOSTILE in found.xpath("string(//h2[3])")


def test_a_hundred_series_of_five_hundred_runs_are_less_than_a_megabyte() -> None:
    items = [series(number, 500) for number in range(100)]
    assert len(page(*items, findings=tuple(step(item, 251) for item in items)).encode()) < 1_000_000
