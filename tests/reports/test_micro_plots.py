from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from iree_gauntlet.reports.draw import measure_text
from iree_gauntlet.torch_models.reports.sweep_reports import (
    STATUS_MARKS,
    VERDICT_COLOURS,
    choose_colour,
    choose_ink,
    choose_ticks,
    draw_grid_map,
    draw_overview_map,
    draw_plots,
    draw_speedup_bars,
    find_scale_limit,
    format_tick,
    is_grid,
)
from iree_gauntlet.torch_models.reports.sweep_rows import SweepEntry, format_factor, group_entries, read_rows
from tests.support.micro_records import RECIPES, grid, point, ratio, record, squares, variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.document import Picture

TEXT = "{http://www.w3.org/2000/svg}text"
ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}
# Pixels that a capital or a digit is high.
CAPITAL = 8


def one_entry(found: list[dict[str, Any]]) -> SweepEntry:
    (entry,) = group_entries(read_rows(found))
    return entry


def draw(found: list[dict[str, Any]]) -> dict[str, Picture]:
    names: set[str] = set()
    pictures = [plot for entry in group_entries(read_rows(found)) for plot in draw_plots(entry, names)]
    return {picture.file.removesuffix(".svg"): picture for picture in pictures}


def texts(plot: Picture) -> list[str]:
    return [text.text for text in etree.fromstring(plot.svg).iter(TEXT)]


def follow(text: Any) -> Any:
    """Points along the middle of a text, a few pixels apart, as complex numbers."""
    turn = float((re.findall(r"rotate\((\S+)", text.get("transform", "")) or [0])[0])
    along = np.arange(0, measure_text(text.text), 3) - measure_text(text.text) * ANCHORS[text.get("text-anchor")]
    return complex(float(text.get("x")), float(text.get("y"))) + (along - CAPITAL / 2 * 1j) * np.exp(
        1j * np.radians(turn)
    )


def few() -> list[dict[str, Any]]:
    """Two shapes, and a recipe for each thing that can become of one."""
    return [
        record(
            point(size, size, size),
            [
                variant("baseline", 1.0, None),
                variant("int8wo", 0.5, ratio(2.0 * size / 1024)),
                variant("int8dq", 2.0, ratio(0.5)),
                variant("O2", 1.0, None, status="same module"),
                variant("int4wo-32", 1.0, None, iree=None, status="failed", reason="no"),
                variant("O3", 1.0, ratio(1.02)),
            ],
        )
        for size in (1024, 2048)
    ]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(2**p, 2**p, 2**p) for p in range(10, 16)], False),
        ([(16384, 8192, 1280), (16384, 1024, 8192), (16384, 8192, 7168), (16384, 3584, 8192)], False),
        ([(1, k, n) for k in (8, 16) for n in (8, 16)], True),
        ([(8, 8, 8)], False),
        ([(1, 8, n) for n in (8, 16, 32)], False),
    ],
)
def test_what_is_a_grid(shapes: list[tuple[int, int, int]], *, expected: bool) -> None:
    assert is_grid(one_entry([record(point(*shape), [variant("baseline", 1.0, None)]) for shape in shapes])) is expected


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_small_sweep_is_a_grid(count: int) -> None:
    assert is_grid(one_entry(grid(range(10, 10 + count))))


@given(st.lists(st.floats(1e-3, 1e3), max_size=8))
def test_the_scale_is_the_same_to_both_sides_of_one(ratios: list[float]) -> None:
    limit = find_scale_limit(ratios)
    assert limit == pytest.approx(find_scale_limit([1 / ratio for ratio in ratios]))
    assert math.log2(1.25) <= limit <= 3
    ticks = choose_ticks(limit)
    assert 1.0 in ticks
    assert list(ticks) == sorted(set(ticks))
    assert len(ticks) <= 9
    assert all(abs(math.log2(tick)) <= limit * 1.01 for tick in ticks)
    assert len({format_tick(tick) for tick in ticks}) == len(ticks)


@given(st.floats(1e-3, 1e3), st.floats(0.4, 3))
def test_colours_are_blue_above_one_and_vermilion_below_with_ink_that_can_be_read(value: float, limit: float) -> None:
    red, green, blue = colour = choose_colour(value, limit)
    assert all(0 <= part <= 1 for part in colour)
    if value > 1.05:
        assert blue > red
    elif value < 0.95:
        assert red > blue
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    contrast = (luminance + 0.05) / 0.05 if choose_ink(colour) == "#000000" else 1.05 / (luminance + 0.05)
    # WCAG 2.1, 1.4.3: normal text.
    assert contrast >= 4.5


def test_a_stronger_speedup_has_a_stronger_colour_up_to_the_scales_end() -> None:
    assert choose_colour(4.0, 2.0) == choose_colour(100.0, 2.0) == choose_colour(math.inf, 2.0)
    assert choose_colour(2.0, 2.0) != choose_colour(4.0, 2.0)
    assert choose_colour(0.25, 2.0) == choose_colour(0.0, 2.0)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Picture]:
    return draw(few())


def test_the_same_rows_give_the_same_bytes(drawn: dict[str, Picture]) -> None:
    assert drawn == draw(few())
    assert list(drawn) == ["heat-small_linear", "bars-small_linear"]


def test_a_heat_map_tells_every_speedup_and_every_sign(drawn: dict[str, Picture]) -> None:
    heat = texts(drawn["heat-small_linear"])
    for cell in ("2.00", "4.00", "0.50", "≡", "×", "1.02?"):
        assert cell in heat
    assert {"1024-1024-1024", "2048-2048-2048", "int8wo", "int4wo-32"} <= set(heat)
    assert {"? inconclusive", "≡ same module", "× failed"} <= set(heat)


def test_bars_tell_recipes_shapes_and_what_their_colours_mean(drawn: dict[str, Picture]) -> None:
    plot = drawn["bars-small_linear"]
    found = texts(plot)
    assert {"faster", "slower", "inconclusive", "1×", "1024-1024-1024"} <= set(found)
    assert {"≡ same module", "× failed"} <= set(found)
    assert "same" not in found
    assert "int8wo: 2.83× in the geometric mean" in found
    assert "O2" in found
    for word in ("faster", "slower", "inconclusive"):
        assert VERDICT_COLOURS[word] in plot.svg
    assert "<title>int8wo at 1024-1024-1024: 2.00 (1.90–2.10)</title>" in plot.svg


def test_a_sweep_has_a_map_for_each_recipe() -> None:
    records = grid([10, 11, 12], RECIPES[:2])
    found, rows = draw(records), read_rows(records)
    recipes = group_entries(rows)[0].recipes
    assert set(found) == {*(f"heat-small_linear-{recipe}" for recipe in recipes), "bars-small_linear"}
    heat = texts(found["heat-small_linear-int8dq"])
    assert {"m = 1024", "m = 2048", "m = 4096"} <= set(heat)
    for row in rows:
        if row.recipe == "int8dq" and row.speedup:
            assert any(text.rstrip("=?") == format_factor(row.speedup.ratio) for text in heat)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (draw_overview_map, few()),
        (draw_overview_map, squares(range(4, 26))),
        (lambda entry: draw_grid_map(entry, "int8dq"), grid([10, 11, 12, 13], RECIPES[:2])),
        (draw_speedup_bars, few()),
        (draw_speedup_bars, squares(range(4, 26))),
    ],
)
def test_nothing_is_drawn_over_something_else(make: Callable[[SweepEntry], str], found: list[dict[str, Any]]) -> None:
    svg = etree.fromstring(make(one_entry(found)))
    middles = list(map(follow, svg.iter(TEXT)))
    assert len(middles) > 2
    everything = np.concatenate(middles)
    assert min(everything.real.min(), everything.imag.min()) > 0
    assert everything.real.max() < float(svg.get("width"))
    assert everything.imag.max() < float(svg.get("height"))
    for index, middle in enumerate(middles[1:], 1):
        others = np.concatenate(middles[:index])
        assert abs(others - middle[:, None]).min() > CAPITAL, index


def test_names_of_any_kind_are_drawn_as_they_are() -> None:
    names = ["a $b$ \\frac", "../../etc", "<b>&", "層\x1b[31m", "x" * 300, "a b", "a/b"]
    found = [
        record(point(8, 8, 8, name=name), [variant("baseline", 1.0, None), variant("int8wo", 1.0, ratio(1.0))])
        for name in names
    ]
    drawn = draw(found)
    assert len(set(map(str.lower, drawn))) == 2 * len(names)
    for name in drawn:
        assert re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*", name)
        assert len(name) <= 120
    assert any("$b$ \\frac" in text for plot in drawn.values() for text in texts(plot))


def test_an_entry_without_speedups_has_no_plots() -> None:
    assert draw([record(point(8, 8, 8), [variant("baseline", 1.0, None)])]) == {}


@pytest.mark.parametrize("interval", [(None, None), (0.0, math.inf), (1e-9, 1e9), (-1.0, math.nan)])
def test_wild_intervals_are_cut_off_at_the_axis(interval: tuple[float | None, float | None]) -> None:
    wild = {"ratio": 1e5, "low": interval[0], "high": interval[1], "word": "inconclusive"}
    found = [variant("baseline", 1.0, None), variant("int8wo", 1.0, wild)]
    assert len(draw([record(point(8, 8, 8), found)])) == 2


def test_every_status_has_a_sign() -> None:
    assert set(STATUS_MARKS) == {"same module", "failed", "error", "skipped"}
