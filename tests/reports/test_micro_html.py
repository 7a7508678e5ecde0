from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hypothesis import given
from lxml import html

from iree_gauntlet.document import INK, PAPER
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.torch_models.reports.sweep_document import make_sweep_document
from iree_gauntlet.torch_models.reports.sweep_rows import Plot, SweepHeader, group_entries, read_rows
from tests.support.micro_records import HEADER, grid, point, ratio, record, records, squares, variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.torch_models.reports.sweep_rows import Row

SVG = f"""<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" xmlns="http://www.w3.org/2000/svg" version="1.1">
 <metadata><x about="http://example.org"/></metadata>
 <defs><clipPath id="clip"><rect/></clipPath><path id="tick" d="M 0 0"/></defs>
 <g id="figure_1"><path d="M 0 0" clip-path="url(#clip)" style="fill: {PAPER}"/>
 <use xlink:href="#tick" style="stroke: {INK}"/></g>
</svg>
"""


def plot(entry: str, title: str = "a plot") -> Plot:
    return Plot("name", entry, title, SVG.encode(), b"")


def sweep_page(rows: Sequence[Row], header: Mapping[str, Any] | None = None, plots: Sequence[Plot] = ()) -> str:
    return render_html(make_sweep_document(rows, SweepHeader.from_dict(header or {}), plots))


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


def test_the_file_needs_nothing_else() -> None:
    rows = read_rows(squares([10, 11]))
    page = sweep_page(rows, HEADER, [plot(group_entries(rows)[0].title)])
    assert page.count("<script") == 1, "what copies commands"
    assert not re.search(r"(?:src|href)=\"(?!#|results\.)", page)
    assert "@import" not in page
    # Names of formats are no addresses that a browser goes to.
    assert set(re.findall(r"https?://[^\"\s]+", page)) <= {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in page


def test_plots_stand_with_their_entries_and_share_no_identifiers() -> None:
    rows = read_rows([*squares([10, 11]), *squares([10], name="other")])
    first, second = (entry.title for entry in group_entries(rows))
    page = sweep_page(rows, HEADER, [plot(first, "one"), plot(second, "two"), plot(first, "three")])
    parsed = html.document_fromstring(page)
    assert parsed.xpath("//h2/text() | //svg/@aria-label") == [first, "one", "three", second, "two"]
    identifiers = parsed.xpath("//@id")
    assert len(identifiers) == len(set(identifiers)) == 9
    for number in range(3):
        assert f"url(#p{number}-clip)" in page
        assert f'xlink:href="#p{number}-tick"' in page
    assert "<?xml" not in page
    assert "<metadata" not in page
    assert page.count("<!") == 1


def test_colours_of_the_plots_are_those_of_the_page() -> None:
    page = sweep_page(())
    for colour, name in ((PAPER, "paper"), (INK, "ink")):
        assert f'[style*="fill: {colour}"] {{ fill: var(--{name})' in page
        assert f'[style*="stroke: {colour}"] {{ stroke: var(--{name})' in page


def test_text_is_escaped() -> None:
    bad = '<script>alert("x")</script>&\x1b[31m\x00'
    found = [
        variant("baseline", 1.0, None, notes=[bad]),
        variant(bad, 1.0, None, iree=None, status="error", reason=bad, shows=[bad]),
    ]
    rows = read_rows([record(point(8, 8, 8, name=bad, model_type=bad, shape=bad), found)])
    page = sweep_page(rows, {**HEADER, "config": bad}, [plot(group_entries(rows)[0].title, bad)])
    assert page.count("<script") == 1
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


@given(records())
def test_any_records_make_a_page(found: list[dict[str, Any]]) -> None:
    rows = read_rows(found)
    page = html.document_fromstring(sweep_page(rows, HEADER))
    assert len(page.xpath("//details//tbody/tr")) == len(rows)
