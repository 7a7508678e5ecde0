"""What a person reads, before it is rendered for a terminal, Markdown or HTML. Text is plain: a renderer escapes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress
from typing import TYPE_CHECKING

from iree_gauntlet.formatting import duration, milliseconds, one_line, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.errors import ExitCode


# Colours that nothing else in a picture has.
INK = "#1b1b1b"
PAPER = "#fefefe"
_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Name:
    """A part of a text: a model, a path, a command, as one would type it; on a page it may lead to `file`."""

    text: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class TextLink:
    """A part of a text that leads somewhere."""

    text: str
    url: str


Text = tuple[str | Name | TextLink, ...]


class ColumnKind(Enum):
    """What stands in a column: alignment, colours and digits of its cells follow from it."""

    TEXT = "text"
    NAME = "name"
    VERDICT = "verdict"
    NUMBER = "number"
    DURATION = "duration"
    SHARE = "share"
    DRAWN = "drawn"


@dataclass(frozen=True, slots=True)
class ColouredCell:
    """A cell that is coloured as a verdict is: by `word`, such as `faster`, which it need not hold."""

    text: str
    word: str


@dataclass(frozen=True, slots=True)
class DrawnLimit:
    """A figure and the most that it may be, which a page draws as a bar; `word` colours it."""

    text: str
    value: float
    limit: float
    word: str


@dataclass(frozen=True, slots=True)
class Shaded:
    """A figure that a page shades: by `share`, from -1 (far better) over 0 to 1 (far worse)."""

    text: str
    share: float


@dataclass(frozen=True, slots=True)
class DrawnInterval:
    """Drawn: a ratio of two times with its interval; a bound that does not exist is None.

    Attributes:
        behind: bounds of what a side has against itself.
    """

    low: float | None
    middle: float
    high: float | None
    behind: tuple[float, float] | None
    word: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Drawn: values below one another, from 0, in proportion to all of their column; `word` colours the last."""

    values: tuple[float, ...]
    word: str = ""


@dataclass(frozen=True, slots=True)
class Course:
    """Drawn: a small line of values, upright marks in front of those at `changes`, and the newest in words.

    Attributes:
        values: from the oldest to the newest.
        url: where it leads to.
    """

    values: tuple[float, ...]
    text: str
    changes: tuple[int, ...] = ()
    url: str = ""
    word: str = ""


Drawn = DrawnInterval | Bars | Course
Cell = str | float | ColouredCell | TextLink | DrawnLimit | Shaded | Drawn | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        kind: what its cells are: text of `TEXT`, `NAME` and `VERDICT`; a number of the others, in seconds for
            `DURATION`, of the whole for `SHARE`. Text in place of a number is shown as it is. Those of `DRAWN` are
            on a page alone.
        unit: of a `NUMBER`, which follows the title; empty for a count.
        rank: where there is no room for all columns, those with the highest rank go first; those with 0 stay.
        margins: of intervals, by how far a ratio may be off: the outer ones are a band, the inner ones lines.
    """

    title: str
    kind: ColumnKind = ColumnKind.TEXT
    unit: str = ""
    rank: int = 0
    margins: tuple[float, ...] = ()

    @property
    def heading(self) -> str:
        """What stands above it: `time ms`."""
        return f"{self.title} {self.unit}".rstrip()

    def word(self, cell: Cell) -> str:
        """What gives a cell its colours; of a verdict, what stands behind a colon says where it is from."""
        if isinstance(cell, ColouredCell | DrawnLimit):
            return cell.word
        return cell.partition(":")[0] if self.kind is ColumnKind.VERDICT and isinstance(cell, str) else ""

    @property
    def right(self) -> bool:
        """Whether its cells are aligned at their right."""
        return self.kind in (ColumnKind.NUMBER, ColumnKind.DURATION, ColumnKind.SHARE)

    def written(self, cell: Cell) -> str:
        """A cell on one line; a dash for None, which is unknown."""
        if cell is None:
            return _NOTHING
        if isinstance(cell, DrawnInterval | Bars):
            return ""
        if not isinstance(cell, float | int):
            return one_line(cell if isinstance(cell, str) else cell.text)
        if self.kind is ColumnKind.DURATION:
            return duration(cell)
        if self.kind is ColumnKind.SHARE:
            return f"{100 * cell:.0f} %"
        return milliseconds(cell) if self.unit == "ms" else whole(cell)


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows, in a part of its own at level 3; `anchor` is what a `#…` link of its page names."""

    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or two."""

    text: Text


@dataclass(frozen=True, slots=True)
class Items:
    """A list, an item a line; `most` is how many a terminal shows, 0 for all."""

    items: tuple[Text, ...]
    most: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, as many as there are columns; `most` is how many a terminal shows, 0 for all."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    most: int = 0

    @property
    def in_text(self) -> Table:
        """Without the columns that are drawn."""
        kept = [column.kind is not ColumnKind.DRAWN for column in self.columns]
        rows = tuple(tuple(compress(row, kept)) for row in self.rows)
        return self if all(kept) else replace(self, columns=tuple(compress(self.columns, kept)), rows=rows)

    @property
    def lines(self) -> list[str]:
        """Every row in plain text below the headings, for a text file."""
        cells = [[column.written(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]
        cells.insert(0, [column.heading for column in self.columns])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        signs = [f"{'>' if column.right else '<'}{width}" for column, width in zip(self.columns, widths, strict=True)]
        return ["  ".join(map(format, row, signs)) for row in cells]


@dataclass(frozen=True, slots=True)
class Notes:
    """What else a reader should know, a line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines as one types them, or as a program wrote them."""

    text: str
    language: str = "text"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, which a page holds and other forms name.

    Attributes:
        file: where it lies, next to the document.
        svg: drawn by a `FileDrawing`; its `INK` and `PAPER` become the page's own colours.
        text: what it shows, for those who do not see it.
    """

    file: str
    svg: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Drawn on a page: figures in a row, which with scripts can be zoomed and asked.

    Attributes:
        text: what it shows, for those who do not see it.
        origins: where each figure is from, in words; the first two stand beside the figure.
        says: lines about a figure, in parts: text, and numbers of words of its origin (`~0` is the first word of the
            origin before it). A line of which such a word is empty is left out, and one whose two origins have the
            same word; one that begins with `https://` is a link.
        level: a line across them.
        changes: index of the first figure behind each step, and whether that is none to worry about.
        disturbed: indices of figures that are drawn hollow.
    """

    text: str
    caption: str
    values: tuple[float, ...]
    unit: str
    origins: tuple[tuple[str, ...], ...]
    says: tuple[tuple[str | int, ...], ...] = ()
    level: float | None = None
    changes: tuple[tuple[int, bool], ...] = ()
    disturbed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """A piece of work: of a `kind`, from `start`, waiting included, both times in seconds; `word` is its verdict."""

    name: str
    kind: str
    start: float
    seconds: float
    waited: float
    word: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Drawn on a page: what ran when, in as many lanes as ran at the same time; what waits is pale."""

    spans: tuple[WorkSpan, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A point on a line; without a value it stands beside it."""

    name: str
    text: str
    word: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Drawn on a page: values one after the other, each with its name and its verdict.

    Attributes:
        text: what it shows, for those who do not see it.
        between: indices of the two stops between which the answer lies.
    """

    stops: tuple[Stop, ...]
    text: str
    between: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class OnPage:
    """What a page alone has room for."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """What few look up: folded below its title in files; a terminal shows it where it is `brief`."""

    title: str
    blocks: tuple[Block, ...]
    brief: bool = False


Block = Heading | Paragraph | Items | Table | Notes | Code | Picture | Chart | Lanes | Line | OnPage | Folded


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a report is from; what is not known is empty.

    Attributes:
        started: `2026-11-27 09:26 UTC`.
        command: as one types it, to do it again.
        seconds: None where it has not finished.
    """

    started: str = ""
    iree: str = ""
    machine: str = ""
    command: str = ""
    folder: str = ""
    version: str = ""
    files: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def took(self) -> str:
        """`3 min 05 s`; empty where it has not finished."""
        return "" if self.seconds is None else duration(self.seconds)


@dataclass(frozen=True, slots=True)
class Document:
    """A report.

    Attributes:
        title: what it is about; empty for a list, which only a terminal shows.
        answer: what came of it, in a line: below the title in files, at the end of what a terminal shows.
        facts: what the answer stands on, a few words each.
        details: what follows in files, where a terminal has no room for it.
        exit_code: of the command; None where it has not finished.
        remarks: what a reader should know first, a line each: below the answer in files, above it on a terminal.
        meaning: of the exit code, where it has another one here.
        memory: what the next page in its place wants to know of this one; a page alone keeps it, unseen.
    """

    title: str
    answer: str
    facts: tuple[str, ...]
    blocks: tuple[Block, ...]
    details: tuple[Block, ...] = ()
    exit_code: ExitCode | None = None
    remarks: tuple[str, ...] = ()
    meaning: str = ""
    memory: str = ""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def ending(self) -> str:
        """`exit code 0: all as expected`; empty where the command has not finished."""
        code = self.exit_code
        return "" if code is None else f"exit code {int(code)}: {self.meaning or code.meaning}"

    @property
    def brief(self) -> Document:
        """The answer alone."""
        return replace(self, title="", facts=(), blocks=(), details=(), remarks=())

    @property
    def whole(self) -> Document:
        """All that files have, for a terminal: every row, and nothing folded."""
        return replace(self, blocks=tuple(_unfolded((*self.blocks, *self.details))), details=())

    @property
    def in_files(self) -> tuple[Block, ...]:
        """All that files have below the answer."""
        remarks = (Notes(self.remarks),) if self.remarks else ()
        return (*remarks, *self.blocks, *self.details)


def _unfolded(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Folded):
            yield Heading(block.title)
            yield from _unfolded(block.blocks)
        elif not isinstance(block, OnPage):
            yield replace(block, most=0) if isinstance(block, Items | Table) else block
