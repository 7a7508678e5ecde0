"""What is measured of a model: a row for each figure, which all rooms read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING

from iree_gauntlet.document import Column, ColumnKind
from iree_gauntlet.formatting import byte_size, format_error, milliseconds, whole
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self


class Statistic(StrEnum):
    """Which figure of the repetitions is held against a golden time."""

    MEAN = "mean"
    MIN = "min"


class GoldenRule(Enum):
    """How a golden is judged by what was measured, and what it ought to be then.

    TIMED: noisy, for the machines of its SKU; a mean or the fastest of repetitions, confirmed by further rounds.
    EQUAL: exact; every other value is proposed.
    WITHIN: exact, with a margin in which it stays.
    ROOM: exact, with the headroom that a user asks for.
    ERROR: of no spec; an earlier run's is held against.
    """

    TIMED = auto()
    EQUAL = auto()
    WITHIN = auto()
    ROOM = auto()
    ERROR = auto()


class Combination(Enum):
    """How the results of a chain's steps give one figure.

    MAIN: what was held against a golden, else that of the main module's compile.
    LAST: of the last step that has it.
    LARGEST, SUM: of all of them; none where one of them did not come well out, or does not have it.
    WORST: the largest, with NaN above all.
    """

    MAIN = auto()
    LAST = auto()
    LARGEST = auto()
    SUM = auto()
    WORST = auto()


@dataclass(frozen=True, slots=True)
class Margin:
    """What two values of a figure may differ by and be the same: a share, and an amount."""

    share: float = 0.0
    amount: float = 0.0

    def is_exceeded(self, before: float, after: float) -> bool:
        """Tell whether a value differs from the one before it by more than both."""
        return abs(after - before) > max(self.share * abs(before), self.amount)


class Effect(Enum):
    """The settings of a history that say from when on a change of a figure counts."""

    TIME = auto()
    OTHER = auto()
    SIZE = auto()


@dataclass(frozen=True, slots=True)
class GoldenField:
    """The golden of a figure.

    Attributes:
        name: as `golden.show` calls the figure.
        stage: the step that holds the figure against it.
        sharktank, torch: names of its field in specs of these dialects; empty where they have none.
        margin: how far a value may exceed it.
        baseline: by which factor a figure may exceed that of an earlier run; 0 where it is held against none.
        whole: whether its limit is a whole number.
        least: the smallest value that can be.
        needs_golden: whether a step names it among its checks only where a spec has a golden of it.
    """

    name: str
    rule: GoldenRule
    stage: Stage
    sharktank: str = ""
    torch: str = ""
    margin: Margin = Margin()
    baseline: float = 0.0
    whole: bool = False
    least: float = math.ulp(0.0)
    needs_golden: bool = False

    def compute_factor(self, value: float) -> float:
        """By how many times a golden of this value may be exceeded."""
        return 1 + max(self.margin.share, self.margin.amount / value if value > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class Trend:
    """A figure in a history.

    Attributes:
        name: of its series.
        unit: empty for a count and an error.
        place: of its chart among those of a model.
        effect: the setting that says from when on a change counts; None where the margin does.
        noisy: whether statistics decide.
    """

    name: str
    unit: str
    place: int
    effect: Effect | None = None
    margin: Margin = Margin()
    noisy: bool = False


@dataclass(frozen=True, slots=True)
class MatrixView:
    """A figure in a matrix: in its files, and as a column of its table and a map of models and IREEs, shaded by ratios.

    Attributes:
        key: in `matrix.json` and `matrix.csv`.
        column: heading of the column; empty where the figure has neither column nor map.
        rank: of the column: where there is no room, those with the highest rank go first.
        write_cell: the number in the column.
        title, unit: of the map.
        write: the number in the map.
    """

    key: str
    column: str = ""
    rank: int = 0
    write_cell: Callable[[float], str] = whole
    title: str = ""
    unit: str = ""
    write: Callable[[float], str] = whole


@dataclass(frozen=True, slots=True)
class Jump:
    """The list of a matrix of the changes of a figure from one IREE to the next.

    Attributes:
        word: in JSON.
        title: of the list.
        place: of the list among the others.
        margin: beyond which it is said.
    """

    word: str
    title: str
    place: int
    margin: Margin


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure, as all rooms read it.

    Attributes:
        key: in journals, JSON and JUnit.
        title: as the subject of a sentence.
        unit: of goldens and checks; empty for an error.
        write: the number for people, without its unit.
        stage: whose result has it.
        statistic: its name among the statistics of that result; empty where it follows from something else.
        combination: how the results of a chain give one.
        word: in a list of figures, where it is not the title.
        noun: what the number counts, where it is not the unit.
        judged: in the sentence that counts what was judged; empty where it is not said.
        optional: whether it is there only where it was asked for.
        key_in_summary: in `summary.json`; empty where that has it in another form, or not.
        golden: None where no golden is of it.
        limit: what a golden in a spec allows, as the schema of specs says it.
        column: of the table of a run.
        matrix: None where a matrix does not show it.
        metric: of `bisect`, and of `compare` where that measures it.
        margin: of `bisect`, within which two values are one; None where they are only to the last digits.
        missing: why there is none, as `bisect` says it.
        pair: its name where `compare` shows it beside what it measures; empty where it does not.
        since: its name where it is not what it was in the run before; empty where that is not said.
        since_margin: beyond which that is said.
    """

    key: str
    title: str
    unit: str
    write: Callable[[float], str]
    stage: Stage
    statistic: str
    combination: Combination
    word: str = ""
    noun: str = ""
    judged: str = ""
    optional: bool = False
    key_in_summary: str = ""
    golden: GoldenField | None = None
    limit: str = ""
    column: Column | None = None
    matrix: MatrixView | None = None
    jump: Jump | None = None
    metric: str = ""
    margin: Margin | None = None
    missing: str = ""
    pair: str = ""
    since: str = ""
    since_margin: Margin = Margin()
    trend: Trend | None = None


# Beyond which share, and which number, a difference of instructions outside of dispatches counts: how memory was laid
# out has a say in what the C library does, and a release in what the runtime does.
OUTSIDE_MARGIN = Margin(0.01, 2_000)
# Of a golden count of instructions, and of changes that reports name.
_WORK_MARGIN = Margin(0.001)
# The share from which on two counts are two: of a call whose dispatches are not known, and of its dispatches together.
CALL_MARGIN = Margin(0.0001)


def _format_seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _format_megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}"


class Figure(StrEnum):
    """A figure, by its key.

    The order is that of reports, but for tables, in which figures of compiles come first, and JSON, in which optional
    ones come last.
    """

    row: FigureRow

    def __new__(cls, row: FigureRow) -> Self:
        """A member whose value is the key of its row."""
        member = str.__new__(cls, row.key)
        member._value_ = row.key
        member.row = row
        return member

    @property
    def golden(self) -> GoldenField:
        """Its golden; TypeError where it has none."""
        if self.row.golden is None:
            raise TypeError(f"no golden is of {self}")
        return self.row.golden

    @property
    def word(self) -> str:
        """Its name in a list of figures."""
        return self.row.word or self.row.title

    def describe(self, value: float) -> str:
        """A value with its noun: `76 dispatches`, `max error 1.2e-05`."""
        noun = self.row.noun or self.row.unit
        return f"{self.row.write(value)} {noun}" if noun else f"{self.row.title} {self.row.write(value)}"

    @property
    def is_exact(self) -> bool:
        """True where it is the same each time."""
        return self.row.trend is not None and not self.row.trend.noisy

    @property
    def is_counted(self) -> bool:
        """True where it is of modules of its own, and comparable only with what the same kind of counter gives."""
        return self.row.stage.row.beside is not None

    @property
    def is_compared_in_rounds(self) -> bool:
        """True where `compare` and `bisect` measure it again and again, as it is noisy."""
        return bool(self.row.metric) and not self.is_exact

    TIME = FigureRow(
        "time_ms",
        "time",
        "ms",
        milliseconds,
        Stage.BENCHMARK,
        "",
        Combination.LAST,
        judged="times",
        key_in_summary="time_ms",
        golden=GoldenField("ms", GoldenRule.TIMED, Stage.BENCHMARK),
        column=Column("time", ColumnKind.NUMBER, "ms", rank=1),
        matrix=MatrixView("time_ms", "time ms", 0, milliseconds, "Run time", "ms", milliseconds),
        # Times were taken one IREE after the other: what is less than this says little.
        jump=Jump("time", "Run time (a quarter and more; not yet proved to be real)", 5, Margin(0.25)),
        metric="time",
        since="time ms",
        # Smaller differences of two runs are noise.
        since_margin=Margin(0.1),
        trend=Trend("time_ms", "ms", 0, Effect.TIME, noisy=True),
    )
    CALL_INSTRUCTIONS = FigureRow(
        "call_instructions",
        "instructions",
        "instructions",
        whole,
        Stage.COUNT,
        "instructions",
        Combination.LAST,
        optional=True,
        key_in_summary="instructions",
        column=Column("instructions", ColumnKind.NUMBER, rank=1),
        matrix=MatrixView("instructions", "instructions", 1, whole, "Instructions of one call", "", whole),
        metric="instructions",
        since="instructions",
        trend=Trend("instructions", "", 2, margin=_WORK_MARGIN),
    )
    COMPILE_TIME = FigureRow(
        "compile_seconds",
        "compile time",
        "s",
        _format_seconds,
        Stage.COMPILE,
        "tool_seconds",
        Combination.SUM,
        column=Column("compile", ColumnKind.DURATION, rank=3),
        matrix=MatrixView("compile_seconds", "compile s", 2, _format_seconds, "Compile time", "s", "{:.2f}".format),
        metric="compile-time",
        trend=Trend("compile_s", "s", 7, Effect.OTHER, noisy=True),
    )
    COMPILE_MEMORY = FigureRow(
        "compile_peak_bytes",
        "compile memory",
        "bytes",
        byte_size,
        Stage.COMPILE,
        "peak_rss_bytes",
        Combination.LARGEST,
        matrix=MatrixView(
            "compile_peak_bytes", "memory MB", 5, _format_megabytes, "Compile memory", "MB", _format_megabytes
        ),
        pair="compile memory",
        trend=Trend("compile_peak_bytes", "B", 8, Effect.OTHER, noisy=True),
    )
    DISPATCHES = FigureRow(
        "dispatch_count",
        "dispatch count",
        "dispatches",
        whole,
        Stage.COMPILE,
        "dispatch_count",
        Combination.MAIN,
        word="dispatches",
        judged="dispatches",
        key_in_summary="dispatch_count",
        golden=GoldenField(
            "dispatches",
            GoldenRule.EQUAL,
            Stage.COMPSTAT,
            "golden_dispatch",
            "golden_dispatch_count",
            baseline=1.0,
            least=0.0,
        ),
        limit="Most dispatches",
        column=Column("dispatches", ColumnKind.NUMBER, rank=2),
        matrix=MatrixView("dispatch_count", "dispatches", 0, whole, "Dispatches", "", whole),
        jump=Jump("dispatches", "Dispatches", 1, Margin()),
        metric="dispatches",
        missing="the compiler gives no dispatches",
        pair="dispatches",
        since="dispatches",
        trend=Trend("dispatches", "", 5),
    )
    SIZE = FigureRow(
        "binary_size_bytes",
        "size",
        "bytes",
        whole,
        Stage.COMPILE,
        "binary_size_bytes",
        Combination.MAIN,
        judged="sizes",
        key_in_summary="binary_size_bytes",
        golden=GoldenField(
            "bytes", GoldenRule.ROOM, Stage.COMPSTAT, "golden_size", "golden_binary_size", baseline=1.01, whole=True
        ),
        limit="Most bytes of the module",
        column=Column("bytes", ColumnKind.NUMBER, rank=4),
        matrix=MatrixView(
            "binary_size_bytes", "size", 3, byte_size, "Module size", "kB", lambda value: f"{value / 1e3:,.0f}"
        ),
        # Sizes differ by a few bytes between any two releases.
        jump=Jump("size", "Module size (5 % and more), bytes", 4, Margin(0.05)),
        metric="size",
        # Modules have paths and names of releases in them.
        margin=Margin(0.001),
        missing="the compiler gives no bytes",
        pair="module size",
        since="bytes",
        trend=Trend("size_bytes", "B", 6, Effect.SIZE),
    )
    ERROR = FigureRow(
        "max_abs_error",
        "max error",
        "",
        format_error,
        Stage.THRESHOLD,
        "",
        Combination.WORST,
        # Other instructions, and another order of threads, round otherwise.
        golden=GoldenField("", GoldenRule.ERROR, Stage.THRESHOLD, baseline=2.0),
        column=Column("quality", rank=5),
        matrix=MatrixView("max_abs_error", "max error", 4, format_error, "Largest error", "", format_error),
        metric="error",
        missing="no output was compared value by value",
        pair="largest error",
        trend=Trend("max_error", "", 4),
    )
    INSTRUCTIONS = FigureRow(
        "instructions",
        "instructions",
        "instructions",
        whole,
        Stage.COUNT,
        "",
        Combination.LAST,
        judged="instructions",
        optional=True,
        key_in_summary="instructions_in_dispatches",
        golden=GoldenField(
            "instructions", GoldenRule.WITHIN, Stage.COUNT, "golden_instructions", margin=_WORK_MARGIN, whole=True
        ),
        limit="Instructions in dispatches, as valgrind counts them, exceeded by 0.1 % at most",
        jump=Jump(
            "instructions",
            "Instructions in dispatches, or of one call where these are not known (0.1 % and more)",
            2,
            _WORK_MARGIN,
        ),
        metric="instructions",
        margin=CALL_MARGIN,
        missing="they were not counted",
        since="instructions in dispatches",
        trend=Trend("instructions_in_dispatches", "", 1, margin=_WORK_MARGIN),
    )
    INSTRUCTIONS_OUTSIDE = FigureRow(
        "instructions_outside",
        "instructions outside of dispatches",
        "instructions",
        whole,
        Stage.COUNT,
        "instructions_outside",
        Combination.LAST,
        noun="instructions outside of dispatches",
        judged="outside of dispatches",
        optional=True,
        key_in_summary="instructions_outside",
        golden=GoldenField(
            "instructions outside",
            GoldenRule.WITHIN,
            Stage.COUNT,
            "golden_instructions_outside",
            margin=OUTSIDE_MARGIN,
            whole=True,
            needs_golden=True,
        ),
        limit="Those outside of dispatches, exceeded by 1 % or by 2,000 at most",
        matrix=MatrixView("instructions_outside"),
        jump=Jump(
            "instructions outside of dispatches",
            "Instructions outside of dispatches (1 %, and 2,000, and more)",
            3,
            OUTSIDE_MARGIN,
        ),
        metric="instructions-outside",
        margin=OUTSIDE_MARGIN,
        missing="it is not known which instructions are in dispatches",
        since="instructions outside of dispatches",
        since_margin=OUTSIDE_MARGIN,
        trend=Trend("instructions_outside", "", 3, margin=OUTSIDE_MARGIN),
    )


# Those that goldens are of, and the same by the fields of sharktank's benchmarks.
JUDGED_FIGURES = tuple(figure for figure in Figure if figure.row.golden)
SHARKTANK_GOLDENS = {figure.golden.sharktank: figure for figure in JUDGED_FIGURES if figure.golden.sharktank}
# What `bisect` looks at; of two of one metric, the last.
METRICS = {figure.row.metric: figure for figure in Figure if figure.row.metric}
# By their keys.
FIGURES: Mapping[str, Figure] = {figure.value: figure for figure in Figure}
# The order of tables.
COMPILES_FIRST = tuple(sorted(Figure, key=lambda figure: figure not in (Figure.COMPILE_TIME, Figure.COMPILE_MEMORY)))
