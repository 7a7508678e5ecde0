"""Documents for people, rendered for terminals, Markdown or HTML; text is plain, and renderers escape it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import compress, zip_longest
from typing import TYPE_CHECKING

from iree_gauntlet.formatting import Column, ColumnKind, format_count, format_duration, format_milliseconds, join_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.errors import ExitCode


# The colours of drawings and of their background. Pages replace them, so pictures use them for nothing else.
INK = "#1b1b1b"
PAPER = "#fefefe"
_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Name:
    """A model, a path or a command in a text, as a user would type it; files link it to `url`."""

    text: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class TextLink:
    """A link in a text."""

    text: str
    url: str


Text = tuple[str | Name | TextLink, ...]


@dataclass(frozen=True, slots=True)
class ColouredCell:
    """A cell with the colour of a verdict, such as `faster`, which the text need not contain.

    Attributes:
        url: target of the cell's link; empty for none.
        anchor: the name by which links lead to the cell; empty for none.
    """

    text: str
    verdict: str
    url: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class LimitBar:
    """A figure as a share of its limit, which a page draws as a bar with the colour of `verdict`."""

    text: str
    share: float
    verdict: str


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A figure that a page shades by `share`, from -1 (far better) over 0 to 1 (far worse)."""

    text: str
    share: float


@dataclass(frozen=True, slots=True)
class IntervalBar:
    """A drawing of the ratio of two times with its interval; a missing bound is None.

    Attributes:
        control: bounds of a side's comparison with itself.
    """

    low: float | None
    middle: float
    high: float | None
    control: tuple[float, float] | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A drawing of a bar from 0 on the scale of its column, to the left for a negative value."""

    value: float
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A sparkline with a mark in front of each value at `changes`, and the newest value as text.

    Attributes:
        values: values from the oldest to the newest.
        url: target of the sparkline's link; empty for none.
    """

    values: tuple[float, ...]
    text: str
    changes: tuple[int, ...] = ()
    url: str = ""
    verdict: str = ""


Drawn = IntervalBar | Bar | Sparkline
Cell = str | float | ColouredCell | TextLink | LimitBar | HeatCell | Drawn | None


def get_verdict(column: Column, cell: Cell) -> str:
    """Return the word that determines a cell's colours; of `failed: compile`, it is the part before the colon."""
    if isinstance(cell, ColouredCell | LimitBar):
        return cell.verdict
    return cell.partition(":")[0] if column.kind is ColumnKind.VERDICT and isinstance(cell, str) else ""


def format_cell(column: Column, cell: Cell) -> str:
    """Format a cell on one line; None, an unknown value, becomes a dash."""
    if cell is None:
        return _NOTHING
    if isinstance(cell, IntervalBar | Bar):
        return ""
    if not isinstance(cell, float | int):
        return join_lines(cell if isinstance(cell, str) else cell.text)
    if column.kind is ColumnKind.DURATION:
        return format_duration(cell)
    if column.kind is ColumnKind.SHARE:
        return f"{100 * cell:.0f} %"
    return format_milliseconds(cell) if column.unit == "ms" else format_count(cell)


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of the following blocks, or of a subsection (level 3); `anchor` is the target of `#…` links."""

    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of text."""

    text: Text


@dataclass(frozen=True, slots=True)
class Items:
    """A list; a terminal shows at most `most` items (0: all items)."""

    items: tuple[Text, ...]
    most: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with a cell for each column; a terminal shows at most `most` rows (0: all rows)."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    most: int = 0

    @property
    def text_form(self) -> Table:
        """The table without columns of drawings."""
        return self._select([column.kind is not ColumnKind.DRAWN for column in self.columns])

    @property
    def filled_form(self) -> Table:
        """The table without columns that have no value in any row."""
        return self._select([any(row[index] is not None for row in self.rows) for index in range(len(self.columns))])

    @property
    def short_form(self) -> tuple[Paragraph | Table, ...]:
        """The table without less important columns that are the same in all of several rows; a sentence has these."""
        columns = list(zip(self.columns, zip(*self.rows, strict=True), strict=True)) if len(self.rows) > 1 else []
        common = [column.drop_order > 0 and len(set(cells)) == 1 for column, cells in columns]
        texts = [f"{column.heading} {format_cell(column, cells[0])}" for column, cells in compress(columns, common)]
        sentence = (Paragraph((f"In all rows: {', '.join(texts)}.",)),) if texts else ()
        return (*sentence, self._select([not same for same in common]))

    def _select(self, selectors: list[bool]) -> Table:
        rows = tuple(tuple(compress(row, selectors)) for row in self.rows)
        return self if all(selectors) else replace(self, columns=tuple(compress(self.columns, selectors)), rows=rows)

    @property
    def lines(self) -> list[str]:
        """The lines of a text file: the headings and all rows."""
        cells = [
            [format_cell(column, cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows
        ]
        cells.insert(0, [column.heading for column in self.columns])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        specs = [f"{'>' if column.right else '<'}{width}" for column, width in zip(self.columns, widths, strict=True)]
        return ["  ".join(map(format, row, specs)).rstrip() for row in cells]


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes for the reader, a line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Commands, or the output of a program."""

    text: str
    language: str = "text"


@dataclass(frozen=True, slots=True)
class Difference:
    """Two texts: side by side on pages, else one below the other; a row has a line of A, of B, or one that is in both.

    Attributes:
        a, b: titles of the two sides.
        rows: line of A, line of B; None for a line that this side does not have. Both None: lines are left out.
        unified: the same as the lines of a unified diff.
    """

    a: str
    b: str
    rows: tuple[tuple[str | None, str | None], ...]
    unified: tuple[str, ...]

    @property
    def pairs(self) -> Iterator[tuple[str | None, str | None]]:
        """The rows of two columns: runs of lines that only one side has stand beside each other."""
        only_a: list[str] = []
        only_b: list[str] = []
        for a, b in self.rows:
            if a is not None and b is None:
                only_a.append(a)
            elif b is not None and a is None:
                only_b.append(b)
            else:
                yield from zip_longest(only_a, only_b)
                only_a, only_b = [], []
                yield a, b
        yield from zip_longest(only_a, only_b)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, which a page embeds and other formats link.

    Attributes:
        file: path relative to the document.
        svg: the output of a `FileDrawing`; the page's own colours replace its `INK` and `PAPER`.
        text: alternative text.
    """

    file: str
    svg: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a series on a page, which scripts can zoom and query.

    Attributes:
        text: alternative text.
        origins: the origin of each figure, in words; the first two words appear beside the figure.
        tooltip_lines: lines shown for a figure. A line is a sequence of parts: a str is shown as it is; index `i`
            stands for word `i` of this figure's origin, `~i` for word `i` of the previous figure's. A line is left out
            if such a word is empty, or the same in both origins. A line that begins with `https://` is a link.
        level: value of a horizontal line.
        changes: index of the first figure after each step, and True if the step is harmless.
        disturbed: indices of figures that are drawn hollow.
    """

    text: str
    caption: str
    values: tuple[float, ...]
    unit: str
    origins: tuple[tuple[str, ...], ...]
    tooltip_lines: tuple[tuple[str | int, ...], ...] = ()
    level: float | None = None
    changes: tuple[tuple[int, bool], ...] = ()
    disturbed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """A step's time, in seconds: its start and its duration with waiting."""

    name: str
    stage: str
    start: float
    seconds: float
    waited: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A timeline on a page with a lane for each concurrent step; waiting is pale."""

    spans: tuple[WorkSpan, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A point on a line; a point without a value is drawn beside the line."""

    name: str
    text: str
    verdict: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A page's drawing of consecutive values with their names and verdicts.

    Attributes:
        text: alternative text.
        between: indices of the two stops around the answer.
    """

    stops: tuple[Stop, ...]
    text: str
    between: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PageOnly:
    """Blocks that only pages show."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Details that files fold below a title; a terminal shows only `brief` details."""

    title: str
    blocks: tuple[Block, ...]
    brief: bool = False


Block = (
    Heading
    | Paragraph
    | Items
    | Table
    | Notes
    | Code
    | Difference
    | Picture
    | Chart
    | Timeline
    | Line
    | PageOnly
    | Details
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a report; unknown fields are empty.

    Attributes:
        started: `2026-11-27 09:26 UTC`.
        command: the command line that repeats the command.
        seconds: duration; None if the command has not finished.
        largest_parts: the parts of the work that took longest, with their durations.
    """

    started: str = ""
    iree: str = ""
    machine: str = ""
    command: str = ""
    folder: str = ""
    version: str = ""
    files_beside: tuple[str, ...] = ()
    seconds: float | None = None
    largest_parts: str = ""

    @property
    def facts(self) -> dict[str, str]:
        """The known facts in words: `{"started": …, "took": "90.5 s (compile 83.3 s)", "IREE": …, "machine": …}`."""
        duration = "" if self.seconds is None else format_duration(self.seconds)
        parts = f" ({self.largest_parts})" if duration and self.largest_parts else ""
        facts = {"started": self.started, "took": duration + parts, "IREE": self.iree, "machine": self.machine}
        return {name: text for name, text in facts.items() if text}


@dataclass(frozen=True, slots=True)
class Document:
    """A report.

    Attributes:
        title: the report's subject; empty for a list, which only a terminal shows.
        answer: the result in one line, below the title in files and at the end of a terminal's output.
        facts: the evidence for the answer, a few words each.
        details: blocks that only files show.
        exit_code: exit code of the command; None if the command has not finished.
        remarks: important notes, one line each: below the answer in files, above the answer on a terminal.
        first_failure: what went wrong first, and why, in one line; empty if nothing did.
        meaning: meaning of the exit code, if it differs from the usual meaning.
        stored_data: data for the page that will replace this page; only pages store these data, invisibly.
    """

    title: str
    answer: str
    facts: tuple[str, ...]
    blocks: tuple[Block, ...]
    details: tuple[Block, ...] = ()
    exit_code: ExitCode | None = None
    remarks: tuple[str, ...] = ()
    meaning: str = ""
    first_failure: str = ""
    stored_data: str = ""
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def ending(self) -> str:
        """The line `exit code 0: all as expected`; empty if the command has not finished."""
        code = self.exit_code
        return "" if code is None else f"exit code {int(code)}: {self.meaning or code.meaning}"

    @property
    def answer_only(self) -> Document:
        """The document with only its answer."""
        return replace(self, title="", facts=(), blocks=(), details=(), remarks=())

    @property
    def unfolded_document(self) -> Document:
        """The document for a terminal with the content of files: all rows, and nothing folded."""
        return replace(self, blocks=tuple(_unfold((*self.blocks, *self.details))), details=())

    @property
    def file_blocks(self) -> tuple[Block, ...]:
        """The blocks of files below the answer."""
        remarks = (Notes(self.remarks),) if self.remarks else ()
        return (*remarks, *self.blocks, *self.details)


def _unfold(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Details):
            yield Heading(block.title)
            yield from _unfold(block.blocks)
        elif not isinstance(block, PageOnly):
            yield replace(block, most=0) if isinstance(block, Items | Table) else block
