"""Render a document as GitHub-flavoured Markdown."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    ColouredCell,
    Details,
    Difference,
    Document,
    Heading,
    Items,
    Name,
    Notes,
    Paragraph,
    Picture,
    Table,
    Text,
    TextLink,
    format_cell,
    get_verdict,
)
from iree_gauntlet.formatting import STYLES, Column, ColumnKind, clean_text, join_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_MAX_TEXT_CHARS = 1000
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# An underscore inside a word, as in many names, is not escaped: it has no meaning in GitHub's flavour.
_SPECIAL_CHARACTER = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# These marks at a line's start would begin a list, a heading or a rule.
_LINE_START_MARK = re.compile(r"^(\d*)([.)](?=\s|$)|[-+#=]+(?=\s|$))")
# A pipe ends a table's cell, even inside code.
_BARE_PIPE = re.compile(r"(?<!\\)\|")
_DETAILS_START, _DETAILS_END = "<details>", "</details>"
_BACKTICKS = re.compile(r"`+")


def render_markdown(document: Document) -> str:
    """Return the complete document; it ends with a newline."""
    endings = (document.ending,) if document.ending else ()
    answer = " · ".join((f"**{escape(document.answer)}**", *map(escape, (*document.facts, *endings))))
    blocks = [_render_block(block) for block in document.file_blocks]
    origin = document.provenance
    facts = " · ".join(f"{name} {escape(text)}" for name, text in origin.facts.items())
    if origin.command:
        place = f", in {code(origin.folder)}" if origin.folder else ""
        blocks += [f"To run it again{place}:", format_code_block(origin.command, "sh")]
    return "\n\n".join(filter(None, (f"# {escape(document.title)}", answer, facts, *blocks))) + "\n"


def _render_block(block: Block) -> str:
    """Render a block; return an empty string for blocks that exist only in HTML pages."""
    markdown = ""
    match block:
        case Heading(text, level, anchor):
            target = f'<a id="{html.escape(join_lines(anchor))}"></a>\n\n' if anchor else ""
            markdown = f"{target}{'#' * level} {escape(text)}"
        case Paragraph(text):
            markdown = _format_text(text)
        case Items(items):
            markdown = "\n".join(f"- {_format_text(item)}" for item in items)
        case Notes(lines):
            markdown = "\n\n".join(f"> {escape(line)}" for line in lines)
        case Code(text, language):
            markdown = format_code_block(text, language)
        case Difference(unified=lines):
            markdown = format_code_block("\n".join(lines), "diff")
        case Picture(file, _, text):
            markdown = _format_text((TextLink(text, file),))
        case Details(title, inner_blocks):
            parts = filter(None, map(_render_block, inner_blocks))
            # Escape for HTML, because Markdown has no meaning in this block.
            summary = f"{_DETAILS_START}<summary>{join_lines(title).translate(_HTML)}</summary>"
            markdown = "\n\n".join((summary, *parts, _DETAILS_END))
        case Table():
            columns, rows = block.text_form.columns, block.text_form.rows
            cells = ([_format_cell(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows)
            right = frozenset(index for index, column in enumerate(columns) if column.right)
            markdown = table([escape(column.heading) for column in columns], cells, right)
    return markdown


def _format_text(text: Text) -> str:
    return "".join(_format_inline(part, first=index == 0) for index, part in enumerate(text))


def _format_inline(part: str | Name | TextLink, *, first: bool) -> str:
    if isinstance(part, Name):
        return _link(code(part.text), part.url)
    if isinstance(part, TextLink):
        return _link(escape(part.text), part.url)
    # Guards, cut off again, protect spaces at the ends from trimming, and mid-line text from list and heading escapes.
    guard = "" if first else "!"
    text = part if len(part) <= _MAX_TEXT_CHARS else f"{part[: _MAX_TEXT_CHARS - 1]}…"
    return escape(f"{guard}{text}!", 2 * _MAX_TEXT_CHARS)[len(guard) : -1]


def _link(text: str, url: str) -> str:
    return f"[{text}]({quote(url, safe=':/?#=&+@%~')})" if url else text


def _format_cell(column: Column, cell: Cell) -> str:
    text = format_cell(column, cell)
    url = cell.url if isinstance(cell, TextLink | ColouredCell) else ""
    if column.kind is ColumnKind.NAME and cell is not None:
        return _link(code(text), url)
    return _link(f"**{escape(text)}**" if "bold" in STYLES.get(get_verdict(column, cell), "") else escape(text), url)


def escape(text: str, limit: int = 500) -> str:
    """Escape text, on one line, for a paragraph, a list item or a table cell."""
    markdown = _SPECIAL_CHARACTER.sub(r"\\\g<0>", join_lines(text, limit).translate(_HTML))
    return _LINE_START_MARK.sub(r"\1\\\2", markdown)


def code(text: str, limit: int = 500) -> str:
    """Format text as inline code; empty for empty text."""
    line = join_lines(text, limit)
    if not line:
        return ""
    fence = "`" * (_count_longest_run(line) + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}"


def format_code_block(text: str, language: str = "text") -> str:
    """Format text as a code block, with a fence longer than any backticks in it."""
    body = clean_text(text).strip("\n")
    fence = "`" * max(3, _count_longest_run(body) + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    """Return a table; cells must already be Markdown (`escape`, `code`), and columns in `right` are aligned right."""
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    safe_rows = ([_BARE_PIPE.sub(r"\|", cell) for cell in cells] for cells in [header, rule, *rows])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in safe_rows)


def shorten_markdown(text: str, limit: int, note: str) -> str:
    """Cut a document to at most `limit` bytes of UTF-8 (a few hundred at least), between lines.

    Code blocks and folded parts are closed. If lines were cut off, `note` is appended: Markdown text about the
    cut and the location of the complete document.
    """
    if len(text.encode()) <= limit:
        return text
    # This leaves room for the note and for closing a code block.
    remaining_bytes = limit - len(note.encode()) - 512
    lines: list[str] = []
    open_fence = ""
    fold_depth = 0
    for line in text.split("\n"):
        remaining_bytes -= len(line.encode()) + 1
        if remaining_bytes < 0:
            break
        lines.append(line)
        fence = _find_fence(line)
        if open_fence and line.strip("`") == "" and len(fence) >= len(open_fence):
            open_fence = ""
        elif not open_fence:
            open_fence = fence
            fold_depth += line.startswith(_DETAILS_START) - (line == _DETAILS_END)
    closing_lines = [open_fence] if open_fence else []
    closing_lines += ["", _DETAILS_END] * fold_depth
    return "\n".join([*lines, *closing_lines, "", note, ""])


def _find_fence(line: str) -> str:
    """Return the backticks that open or close a code block; empty for any other line."""
    match = _BACKTICKS.match(line)
    if not match or len(match.group()) < 3 or "`" in line[match.end() :]:
        return ""
    return match.group()


def _count_longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
