from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hypothesis import given
from lxml import html

from iree_gauntlet.document import INK, PAPER
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.reports.draw import FileDrawing
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.torch_models.reports.sweep_reports import make_sweep_document
from iree_gauntlet.torch_models.reports.sweep_rows import SweepHeader, group_entries, read_rows
from tests.support.micro_records import HEADER, grid, point, ratio, record, records, squares, variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.torch_models.reports.sweep_rows import Row


def sweep_page(rows: Sequence[Row], header: Mapping[str, Any] | None = None) -> str:
    return render_html(make_sweep_document(rows, SweepHeader.from_dict(header or {})))


def texts(page: Any, path: str) -> list[str]:
    return ["".join(found.itertext()).strip() for found in page.xpath(path)]


def test_the_page_has_what_the_rows_have() -> None:
    rows = read_rows([*squares([10, 11]), *grid([10, 11], name="sweep")])
    page = html.document_fromstring(sweep_page(rows, HEADER))
    assert texts(page, "//h2") == [entry.title for entry in group_entries(rows)]
    assert "IREE 3.13.0rc20261016" in texts(page, "//p[@class='answer']")[0]
    # Of each entry: the result of its recipes, speed-ups, and all figures.
    assert len(page.xpath("//table")) == 6
    assert len(page.xpath("//details//tbody/tr")) == len(rows)
    for table in page.xpath("//table"):
        (head,) = table.xpath("thead/tr")
        assert {len(line) for line in table.xpath("tbody/tr")} == {len(head)}


def test_faster_and_slower_are_told_by_sign_and_colour() -> None:
    found = [variant("baseline", 1.0, None), variant("int8wo", 0.5, ratio(2.0)), variant("int8dq", 2.0, ratio(0.5))]
    page = html.document_fromstring(sweep_page(read_rows([record(point(8, 8, 8), found)])))
    assert texts(page, "//td/span[@class='good']") == ["▲ 2.00 (1.90–2.10)"]
    assert texts(page, "//td/span[@class='bad']") == ["▼ 0.50 (0.48–0.53)"]


def test_its_head_says_when_and_with_what_it_was_made() -> None:
    page = html.document_fromstring(sweep_page((), HEADER | {"command": "gauntlet micro"}))
    assert texts(page, "//header//dt") == ["started", "IREE", "machine"]
    assert texts(page, "//header//dd")[0] == "2026-11-21 22:00 UTC"
    assert texts(page, "//header/pre/code") == ["gauntlet micro"]


def test_its_head_has_its_verdict_and_its_duration() -> None:
    sweep = SweepHeader.from_dict(dict(HEADER))
    ended = EndEvent(exit_code=ExitCode.ERROR, seconds=185.0)
    page = html.document_fromstring(render_html(make_sweep_document((), sweep, ended)))
    assert texts(page, "//header//span[contains(@class, 'badge')]") == ["! an error prevented a verdict"]
    assert texts(page, "//header/p")[1].endswith("exit code 3")
    facts = dict(zip(texts(page, "//header//dt"), texts(page, "//header//dd"), strict=True))
    assert facts["took"] == "3 min 05 s"
    unfinished = html.document_fromstring(sweep_page((), HEADER))
    assert "took" not in texts(unfinished, "//header//dt")
    assert unfinished.xpath("//header//span[contains(@class, 'badge')]") == []


def test_the_file_needs_nothing_else() -> None:
    rows = read_rows(squares([10, 11]))
    page = sweep_page(rows, HEADER)
    assert page.count("<script") == 1, "what copies commands"
    assert not re.search(r"(?:src|href)=\"(?!#|results\.)", page)
    assert "@import" not in page
    # Names of formats are no addresses that a browser goes to.
    assert set(re.findall(r"https?://[^\"\s]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in page


def test_plots_stand_with_their_entries() -> None:
    rows = read_rows([*squares([10, 11]), *squares([10], name="other")])
    first, second = (entry.title for entry in group_entries(rows))
    heat, bars = "speed-ups", "speed-ups with intervals"
    page = html.document_fromstring(sweep_page(rows))
    assert page.xpath("//h2/text() | //figure/svg/@aria-label") == [first, heat, bars, second, heat, bars]


def test_colours_of_the_plots_are_those_of_the_page() -> None:
    page, svg = sweep_page(()), FileDrawing("speed-ups").finish()
    for colour, name in ((PAPER, "paper"), (INK, "ink")):
        assert f'[style*="fill: {colour}"] {{ fill: var(--{name})' in page
        assert f'[style*="stroke: {colour}"] {{ stroke: var(--{name})' in page
        assert f'style="fill: {colour}"' in svg


def test_text_is_escaped() -> None:
    bad = '<script>alert("x")</script>&\x1b[31m\x00'
    found = [
        variant("baseline", 1.0, None, notes=[bad]),
        variant(bad, 1.0, None, iree=None, status="error", reason=bad, shows=[bad]),
        variant(f"{bad}2", 1.0, ratio(2.0)),
    ]
    rows = read_rows([record(point(8, 8, 8, name=bad, model_type=bad, shape=bad), found)])
    page = sweep_page(rows, {**HEADER, "config": bad})
    assert "<figure><svg" in page
    assert page.count("<script") == 1
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


@given(records())
def test_any_records_make_a_page(found: list[dict[str, Any]]) -> None:
    rows = read_rows(found)
    page = html.document_fromstring(sweep_page(rows, HEADER))
    assert len(page.xpath("//details//tbody/tr")) == len(rows)
