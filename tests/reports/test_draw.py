"""Pictures of pages: the positions of their parts, for any figures."""

from __future__ import annotations

import itertools
import math
import re

from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree, html

from iree_gauntlet.document import Bar, Chart, IntervalBar, Line, Sparkline, Stop, Timeline, WorkSpan
from iree_gauntlet.formatting import Column, ColumnKind
from iree_gauntlet.reports.draw import draw_block, draw_column, draw_held_bar, draw_lanes, draw_line

_MARGINS = (0.01, 0.03)
_RATIOS = st.one_of(st.floats(0.001, 1000), st.just(0.0), st.just(math.inf))
# The least and the largest number of a computer among them.
_ANY = st.one_of(st.floats(0, allow_infinity=False), st.sampled_from([0.0, 5e-324, 1e308]))


def _xs(svg: str, path: str) -> list[float]:
    return [float(value) for value in html.fromstring(svg).xpath(path)]


def _points(svg: str) -> list[tuple[float, float]]:
    """The places that a line goes through, out of its first one and its steps."""
    steps = html.fromstring(svg).xpath("//path[@class='track']/@d")[0][1:].split("l")
    pairs = [map(float, re.findall(r"-?[\d.]+", step)) for step in steps]
    return list(zip(*map(itertools.accumulate, zip(*pairs, strict=True)), strict=True))


def test_intervals_stand_in_one_scale_around_no_difference() -> None:
    cells = [IntervalBar(1.05, 1.1, 1.2, (0.99, 1.01), "slower"), IntervalBar(None, 0.98, 1.0, None, "faster"), None]
    _, (slower, faster, nothing) = draw_column(Column("x", ColumnKind.DRAWN, margins=_MARGINS), cells)
    assert nothing == ""
    (zero,) = _xs(slower, "//line[@class='zero']/@x1")
    assert zero == 100
    (low,) = _xs(slower, "//line[contains(@class, 'interval')]/@x1")
    (middle,) = _xs(slower, "//circle/@cx")
    (high,) = _xs(slower, "//line[contains(@class, 'interval')]/@x2")
    assert zero < low < middle < high < 200
    assert _xs(faster, "//line[contains(@class, 'interval')]/@x1") == [0], "without a lower bound to the edge"
    (band,) = _xs(slower, "//rect[@class='band']/@width")
    (behind,) = _xs(slower, "//rect[@class='behind']/@width")
    assert behind < band
    assert "dot bad" in slower
    assert "dot good" in faster


@given(
    st.lists(st.tuples(_RATIOS, _RATIOS, _RATIOS), min_size=1, max_size=4),
    st.sampled_from([(), (0.0,), (0.0001,), _MARGINS]),
)
@example([(1.0, 1.0, 1.0)], (0.0,))
def test_any_ratio_stays_in_the_picture(ratios: list[tuple[float, float, float]], margins: tuple[float, ...]) -> None:
    cells = [
        IntervalBar(low, middle, high, (1 / high if high else 0.0, high), "same")
        for low, middle, high in map(sorted, ratios)
    ]
    axis, drawn = draw_column(Column("x", ColumnKind.DRAWN, margins=margins), cells)
    for svg in (axis, *drawn):
        etree.fromstring(svg)
        assert all(0 <= float(x) <= 200 for x in re.findall(r'\b(?:c?x[12]?)="([^"]*)"', svg))


def test_a_ratio_without_end_stands_at_its_edge() -> None:
    ratios = (0.0, 0.5, 2.0, math.inf)
    cells = [IntervalBar(None, ratio, None, None, "slower") for ratio in ratios]
    drawn = draw_column(Column("x", ColumnKind.DRAWN, margins=_MARGINS), cells)[1]
    least, less, more, most = (_xs(svg, "//circle/@cx")[0] for svg in drawn)
    assert 0 < least < less < 100 < more < most < 200


@given(st.lists(st.tuples(_ANY, _ANY), min_size=1, max_size=4))
def test_any_figure_stays_in_the_picture(figures: list[tuple[float, float]]) -> None:
    bars = draw_column(Column("x", ColumnKind.DRAWN), [Bar(low / 4 - high / 4) for low, high in figures])[1]
    held = [draw_held_bar(share, "passed") for pair in figures for share in pair]
    for most, svg in [*((200, bar) for bar in bars), *((100, bar) for bar in held)]:
        assert all(0 <= width <= most for width in _xs(svg, "//rect/@width"))
    assert _xs(draw_held_bar(math.nan, "failed"), "//rect/@width") == [100]


def test_bars_begin_at_zero_and_are_in_proportion_to_all_of_their_column() -> None:
    column = Column("x", ColumnKind.DRAWN)
    _, (more, less, nothing) = draw_column(column, [Bar(15.0, "slower"), Bar(-5.0, "faster"), Bar(0.0)])
    for bar, x, width in ((more, 50, 150), (less, 0, 50), (nothing, 50, 0)):
        assert (_xs(bar, "//rect/@x"), _xs(bar, "//rect/@width"), _xs(bar, "//line/@x1")) == ([x], [width], [50])
    assert html.fromstring(more).xpath("//rect/@class") == ["bar bad"]
    _, (only,) = draw_column(column, [Bar(2.0)])
    assert (_xs(only, "//rect/@x"), _xs(only, "//rect/@width")) == ([0], [200])


def test_a_figure_beyond_its_limit_is_longer_than_the_way_to_it() -> None:
    assert _xs(draw_held_bar(0.5, "passed"), "//rect/@width") == [50]
    over = draw_held_bar(2, "failed")
    assert (_xs(over, "//rect/@width"), _xs(over, "//line/@x1")) == ([100], [50])
    assert _xs(draw_held_bar(math.inf, "failed"), "//rect/@width") == [100]
    assert _xs(draw_held_bar(0, "passed"), "//rect/@width") == [0]


def test_a_course_marks_where_it_changed() -> None:
    _, (drawn, flat) = draw_column(
        Column("x", ColumnKind.DRAWN), [Sparkline((1.0, 1.0, 2.0), "2 ms", (2,), "#a", "bad"), Sparkline((5.0,), "<5>")]
    )
    points = _points(drawn)
    assert points[0][1] == points[1][1] > points[2][1]
    (change,) = _xs(drawn, "//line/@x1")
    assert points[1][0] < change < points[2][0]
    assert '<a href="#a">2 ms</a>' in drawn
    assert "&lt;5&gt;" in flat


def _span(name: str, start: float, seconds: float, waited: float = 0.0, word: str = "passed") -> WorkSpan:
    return WorkSpan(name, "compile", start, seconds, waited, word)


def test_what_ran_at_the_same_time_has_a_lane_of_its_own() -> None:
    svg = html.fromstring(draw_lanes(Timeline((_span("a", 0, 4), _span("b", 1, 2, 1, "failed"), _span("c", 4, 6)))))
    boxes = svg.xpath("//g[title]/rect[not(contains(@class, 'wait'))]")
    assert [(float(box.get("x")), float(box.get("y")), float(box.get("width"))) for box in boxes] == [
        (0.0, 0.0, 480.0),
        (480.0, 0.0, 720.0),
        (240.0, 19.0, 240.0),
    ]
    assert svg.xpath("//title/text()") == ["a: 4.00 s, passed", "c: 6.00 s, passed", "b: 2.00 s, failed, waited 1.00 s"]
    (waits,) = svg.xpath("//rect[contains(@class, 'wait')]")
    assert (waits.get("x"), waits.get("width")) == ("120.0", "120.0")
    assert svg.xpath("//text/text()") == ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"]


def test_thousands_of_pieces_of_work_are_a_few_paths() -> None:
    drawn = draw_lanes(Timeline(tuple(_span(f"{number}", number * 0.1, 0.2) for number in range(5000))))
    assert len(drawn) < 200_000
    assert drawn.count("<path") == 2


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 100)), min_size=1, max_size=30))
def test_any_work_can_be_drawn(work: list[tuple[float, float, float]]) -> None:
    for part in re.findall(r"<svg.*?</svg>", draw_lanes(Timeline(tuple(_span("x", *times) for times in work)))):
        etree.fromstring(part)


def test_the_answer_lies_between_its_stops_and_what_was_not_tried_beside_the_line() -> None:
    stops = (Stop("a", "1 ms", "good", 1.0), Stop("b", "", "skipped"), Stop("c", "1.1 ms", "good", 1.1))
    svg = html.fromstring(draw_line(Line((*stops, Stop("d", "2 ms", "bad", 2.0)), "found", (2, 3))))
    dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in svg.xpath("//circle")]
    (found,) = svg.xpath("//rect[@class='found']")
    assert float(found.get("x")) == round(dots[2][0])
    assert float(found.get("x")) + float(found.get("width")) == round(dots[3][0])
    assert dots[3][1] < dots[2][1] < dots[0][1] <= dots[1][1]
    assert len(svg.xpath("//line[@class='track']")) == 2
    assert svg.xpath("//g/text[not(@class='value')]/text()") == ["✓ a", "· b", "✓ c", "✗ d"]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e12), st.just(math.inf)), min_size=1, max_size=20))
@example([0.0, 1.0, 5e-324])
def test_any_values_can_be_drawn(values: list[float | None]) -> None:
    svg = draw_line(Line(tuple(Stop("n<", "", "", value) for value in values), "<all>"))
    heights = [float(dot.get("cy")) for dot in etree.fromstring(svg).iter("circle")]
    assert all(0 <= height <= 170 for height in heights)


def test_a_chart_has_its_level_its_changes_and_what_a_busy_machine_spoilt() -> None:
    origins = tuple((f"run{number}", "3.12.0") for number in range(4))
    changes, level = ((2, False), (3, True)), 15.0
    chart = draw_block(Chart("times", "", (10.0, 10.0, 20.0, 20.0), "ms", origins, (), level, changes, (1,)))
    found = html.fromstring(chart)
    points = _points(chart)
    assert points == [tuple(map(float, (dot.get("cx"), dot.get("cy")))) for dot in found.xpath("//circle")]
    (level_at,) = _xs(chart, "//line[@class='level']/@y1")
    assert points[2][1] < level_at < points[1][1]
    worse, settled = found.xpath("//line[starts-with(@class, 'change')]")
    assert points[1][0] < float(worse.get("x1")) < points[2][0] < float(settled.get("x1")) < points[3][0]
    assert (worse.get("class"), settled.get("class")) == ("change", "change settled")
    assert [dot.get("class") for dot in found.xpath("//circle")] == ["dot", "dot hollow", "dot", "dot"]
    assert found.xpath("//title/text()")[2] == "run2, 3.12.0: 20 ms"


def test_a_line_that_hardly_moves_is_not_blown_up_unless_something_changed() -> None:
    origins = (("a", "b"),) * 2

    def height(changes: tuple[tuple[int, bool], ...]) -> float:
        (_, first), (_, second) = _points(draw_block(Chart("", "", (1.0, 1.001), "", origins, changes=changes)))
        return first - second

    assert height(((1, False),)) > 10 * height(())


@given(st.lists(_ANY, min_size=1, max_size=20))
def test_any_figures_are_a_chart(values: list[float]) -> None:
    chart = draw_block(Chart("<all>", "", tuple(values), "<ms>", (("r<", "i<"),) * len(values), level=values[0]))
    assert all(0 <= float(dot.get("cy")) <= 160 for dot in etree.fromstring(chart).iter("circle"))
    assert all(0 <= y <= 160 for _, y in _points(chart))
