"""A document in its three forms: the same content, safe whatever the text holds."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import lxml.html
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.reports.document import (
    Code,
    Column,
    Document,
    Heading,
    Items,
    Kind,
    Link,
    Name,
    Notes,
    Paragraph,
    Table,
)
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown

if TYPE_CHECKING:
    from iree_gauntlet.reports.document import Cell

COLUMNS = (
    Column("model", Kind.NAME),
    Column("like", Kind.VERDICT),
    Column("time", Kind.NUMBER, unit="ms", rank=1),
    Column("dispatches", Kind.NUMBER, rank=3),
    Column("took", Kind.DURATION, rank=4),
    Column("share", Kind.SHARE, rank=2),
    Column("remarks"),
)
_TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "a", "code", "pre"}
_TAGS |= {"p", "strong", "ul", "li", "div", "table", "thead", "tbody", "tr", "th", "td"}
ROWS: tuple[tuple[Cell, ...], ...] = (
    ("ocr/cls@cpu", "good", 9.1, 76, 61.2, 0.031, ""),
    ("vit@cpu", "bad", None, 1234, 3720.0, 1.0, "it crashed"),
)
DOCUMENT = Document(
    "Bisect",
    "first bad: b3",
    ("exact", "2 of 2 tried"),
    (
        Table(COLUMNS, ROWS),
        Notes(("one", "two")),
        Heading("More"),
        Paragraph(("see ", Name("a|b"), ", or ", Link("the commits", "https://h.example/a...b"), ".")),
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
    table = Table(tuple(Column(text, kind) for kind in Kind), ((text,) * len(Kind),))
    paragraph = Paragraph((text, Name(text), Link(text, "https://h.example")))
    return Document(
        text, text, (text,), (Heading(text), paragraph, Notes((text,)), Items(((text,),)), table), (Code(text),)
    )


def test_on_a_terminal_the_answer_comes_last() -> None:
    assert printed(DOCUMENT) == [
        "",
        "Bisect",
        "",
        "model        like  time ms  dispatches        took  share  remarks",
        "ocr/cls@cpu  good     9.10          76      61.2 s    3 %",
        "vit@cpu      bad         –       1,234  1 h 02 min  100 %  it crashed",
        "",
        "note: one",
        "note: two",
        "",
        "More",
        "see a|b, or https://h.example/a...b.",
        "  first",
        "  then b",
        "",
        "first bad: b3 (exact; 2 of 2 tried)",
        "reports in runs/x: x.md",
        "exit code 0: all as expected",
    ]


def test_a_terminal_shows_the_first_of_many_and_counts_the_rest() -> None:
    table = Table((Column("n", Kind.NUMBER),), ((1.0,), (2.0,), (3.0,)), 2)
    document = Document("T", "done", (), (Heading("Many"), Items((("a",), ("b",)), 1), Heading("Rows", 3), table))
    assert printed(document)[3:11] == [
        *("Many", "  a", "  and 1 more, in the reports", "", "Rows", "n", "1", "2"),
    ]
    assert "  and 1 more, in the reports" in printed(document)[11:]
    assert all(text in markdown(document) for text in ("- b", "### Rows", "| 3 |"))
    assert lxml.html.fromstring(html_page(document)).findtext(".//h3") == "Rows"


def test_as_markdown() -> None:
    assert markdown(DOCUMENT).splitlines() == [
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
    text = markdown(Document("T", "done", (), (Paragraph(("a" * 600,)), Paragraph(("b" * 2000,)))))
    assert "a" * 600 + "\n" in text
    assert "b" * 999 + "…\n" in text


def test_remarks_stand_below_the_answer_in_files_and_above_it_on_a_terminal() -> None:
    document = Document("T", "done", (), (Paragraph(("all of it",)),), remarks=("killed",))
    assert printed(document) == ["", "T", "all of it", "", "note: killed", "done", "reports in runs/x: x.md"]
    assert markdown(document).split("\n\n")[1:] == ["**done**", "> killed", "all of it\n"]
    assert html_page(document).index("killed") < html_page(document).index("all of it")


def test_as_a_page() -> None:
    page = lxml.html.fromstring(html_page(DOCUMENT))
    assert page.findtext(".//h1") == "Bisect"
    assert (
        page.find(".//p[@class='answer']").text_content()
        == "first bad: b3 · exact · 2 of 2 tried · exit code 0: all as expected"
    )
    assert [item.text_content() for item in page.findall(".//li")] == ["first", "then b"]
    assert [cell.text_content() for cell in page.findall(".//th")] == [column.heading for column in COLUMNS]
    rows = [[cell.text_content() for cell in row] for row in page.findall(".//tbody/tr")]
    assert rows == [
        ["ocr/cls@cpu", "good", "9.10", "76", "61.2 s", "3 %", ""],
        ["vit@cpu", "bad", "–", "1,234", "1 h 02 min", "100 %", "it crashed"],
    ]
    assert [item.get("class") for item in page.findall(".//tbody/tr[2]/td")][:3] == ["name", "verdict bad", "right"]
    assert page.find(".//a").get("href") == "https://h.example/a...b"
    assert page.find(".//a").getparent().text_content() == "see a|b, or the commits."
    assert [item.text for item in page.findall(".//p[@class='note']")] == ["one", "two"]
    # One file: nothing is loaded, and nothing runs.
    assert not page.xpath("//script|//link|//img|//iframe|//@src|//@onclick")
    assert "url(" not in page.findtext(".//style")


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (160, ["model", "like", "time", "dispatches", "took", "share", "remarks"]),
        (64, ["model", "like", "time", "dispatches", "share", "remarks"]),
        (50, ["model", "like", "time", "share", "remarks"]),
        (38, ["model", "like", "time", "remarks"]),
        (29, ["model", "like", "remarks"]),
    ],
)
def test_where_there_is_no_room_the_least_important_columns_go(width: int, titles: list[str]) -> None:
    assert printed(DOCUMENT, width)[3].replace(" ms", "").split() == titles


def test_long_text_is_folded_in_its_column() -> None:
    table = Table((Column("model", Kind.NAME), Column("why")), (("m", "word " * 20),))
    lines = printed(Document("T", "done", (), (table,)), 40)
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).count("word") == 20


@given(st.text(max_size=40))
def test_no_text_breaks_out_of_its_place(text: str) -> None:
    document = of_text(text)
    assert not any("\x1b" in line for line in printed(document))
    page = html_page(document)
    assert set(re.findall(r"<\s*([a-z0-9]+)", page)) <= _TAGS
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown(document))
    assert not any(token.type.startswith("html") for token in tokens)
    if text.strip():
        assert sum(token.type == "table_open" for token in tokens) == 1
        assert sum(token.type == "td_open" for token in tokens) == len(Kind)
