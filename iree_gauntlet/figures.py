"""The figures that are measured for a model; all parts of the package read a figure's properties from its row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING

from iree_gauntlet.formatting import Column, ColumnKind, format_bytes, format_count, format_error, format_milliseconds
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self


class Statistic(StrEnum):
    """The statistic of the repetitions that is compared with a golden time."""

    MEAN = "mean"
    MIN = "min"


class GoldenRule(Enum):
    """The rule by which a golden is judged, and by which a new golden is proposed.

    TIMED: a noisy time for the machines of one SKU: mean or minimum of the repetitions, confirmed by further rounds.
    EQUAL: an exact value; any other value becomes the proposal.
    WITHIN: an exact value; a value outside of the margin becomes the proposal.
    ROOM: an exact value plus the headroom that a user requests.
    ERROR: no spec has such a golden; the baseline is the value of an earlier run.
    """

    TIMED = auto()
    EQUAL = auto()
    WITHIN = auto()
    ROOM = auto()
    ERROR = auto()


class Combination(Enum):
    """The way to combine the results of a chain's steps into one figure.

    MAIN: the value that was compared with a golden, otherwise the value of the chain's main step.
    LAST: the value of the last step that has the figure.
    LARGEST, SUM: over all steps; no value if a step failed or lacks the figure.
    WORST: the largest value; NaN is above all others.
    """

    MAIN = auto()
    LAST = auto()
    LARGEST = auto()
    SUM = auto()
    WORST = auto()


@dataclass(frozen=True, slots=True)
class Margin:
    """The largest difference between equal values of a figure: a fraction of the smaller value, and an amount."""

    share: float = 0.0
    amount: float = 0.0

    def is_exceeded(self, baseline: float, value: float) -> bool:
        """Return whether a value differs from its baseline by more than the share and more than the amount."""
        return abs(value - baseline) > max(self.share * min(abs(baseline), abs(value)), self.amount)


class Effect(Enum):
    """The settings of a history for the smallest change of a figure that counts."""

    TIME = auto()
    OTHER = auto()
    SIZE = auto()


@dataclass(frozen=True, slots=True)
class GoldenField:
    """The golden of a figure.

    Attributes:
        name: the figure's name in `golden.show`.
        stage: the stage that compares the figure with the golden.
        sharktank, torch: names of the golden's field in specs of these dialects; empty if they have no such field.
        margin: the largest excess that passes.
        baseline: the largest factor by which a figure may exceed an earlier run's figure; 0 for no comparison.
        is_integer: True if the golden's limit is an integer.
        min_value: the smallest possible value.
        is_strict: True if a smaller value breaks it too.
        needs_golden: True if a step lists the figure among its checks only if a spec has a golden for it.
    """

    name: str
    rule: GoldenRule
    stage: Stage
    sharktank: str = ""
    torch: str = ""
    margin: Margin = Margin()
    baseline: float = 0.0
    is_integer: bool = False
    min_value: float = math.ulp(0.0)
    is_strict: bool = False
    needs_golden: bool = False

    def compute_factor(self, value: float) -> float:
        """Compute the factor by which a value may exceed a golden."""
        return 1 + max(self.margin.share, self.margin.amount / value if value > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class HistoryView:
    """A figure in a history.

    Attributes:
        name: the name of the figure's series.
        unit: empty for a count and an error.
        position: the chart's position among a model's charts.
        effect: the setting for the smallest change that counts; None if the margin decides.
        noisy: True if statistics decide.
        more_is_better: True if a decrease is a loss.
    """

    name: str
    unit: str
    position: int
    effect: Effect | None = None
    margin: Margin = Margin()
    noisy: bool = False
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class MatrixView:
    """A figure in a matrix: in files, as a column of the table, and as a map of models and IREEs, shaded by ratios.

    Attributes:
        key: the key in `matrix.json` and `matrix.csv`.
        column: heading of the column; empty if the figure has neither column nor map.
        drop_order: as of a `Column`; narrow tables drop the columns of the highest number first.
        write_cell: the format of the number in the column.
        title, unit: the heading and unit of the map.
        write: the format of the number in the map.
    """

    key: str
    column: str = ""
    drop_order: int = 0
    write_cell: Callable[[float], str] = format_count
    title: str = ""
    unit: str = ""
    write: Callable[[float], str] = format_count


@dataclass(frozen=True, slots=True)
class MatrixChanges:
    """A matrix's list of the changes of a figure from one IREE to the next.

    Attributes:
        word: the key in JSON.
        title: the heading of the list.
        place: position of the list among the other lists.
        margin: changes within the margin are not listed.
    """

    word: str
    title: str
    place: int
    margin: Margin


@dataclass(frozen=True, slots=True)
class FigureRow:
    """The properties of a figure.

    Attributes:
        key: the key in journals, JSON and JUnit.
        title: the subject of a sentence.
        unit: the unit of goldens and checks; empty for an error.
        write: the format of the number for people, without its unit.
        stage: the stage whose result has the figure.
        statistic: the name among the statistics of that result; empty if the figure is derived otherwise.
        combination: the way to combine the results of a chain.
        list_name: the name in a list of figures, if it differs from the title.
        noun: the counted things, if they differ from the unit.
        judged_noun: the noun in the sentence that counts judged figures; empty if the figure does not appear there.
        optional: True if reports omit the figure where it has no value.
        key_in_summary: the key in `summary.json`; empty if the figure is absent there or has another form.
        golden: None if the figure has no goldens.
        limit: the limit of a golden, as the schema of specs describes it.
        column: the column in the table of a run.
        matrix: None if a matrix does not show the figure.
        metric: the name as a metric of `bisect` and, if `compare` measures the figure, of `compare`.
        margin: for `bisect`, values whose difference is within the margin are equal; None: only if all digits agree.
        missing_reason: the reason for a missing value, in a message of `bisect`.
        compare_title: the name in `compare` beside a measured figure; empty if the figure does not appear there.
        change_title: the name in a list of changes since the previous run; empty if the figure does not appear there.
        change_margin: changes within the margin are not listed.
        compiler_path: the path in the compiler's statistics, a JSON file of objects; empty if they lack the figure.
    """

    key: str
    title: str
    unit: str
    write: Callable[[float], str]
    stage: Stage
    statistic: str
    combination: Combination
    list_name: str = ""
    noun: str = ""
    judged_noun: str = ""
    optional: bool = False
    key_in_summary: str = ""
    golden: GoldenField | None = None
    limit: str = ""
    column: Column | None = None
    matrix: MatrixView | None = None
    matrix_changes: MatrixChanges | None = None
    metric: str = ""
    margin: Margin | None = None
    missing_reason: str = ""
    compare_title: str = ""
    change_title: str = ""
    change_margin: Margin = Margin()
    history: HistoryView | None = None
    compiler_path: str = ""


# Smaller differences of instructions outside of dispatches do not count, since the layout of memory changes the work of
# the C library, and a new release changes the work of the runtime.
OUTSIDE_MARGIN = Margin(0.01, 2_000)
# The margin of golden instruction counts, and of changes in reports.
_WORK_MARGIN = Margin(0.001)
# A matrix measures IREEs one after the other, so smaller differences of what is noisy mean little.
UNCONFIRMED_MARGIN = Margin(0.25)
# Errors of different schedules differ in their last digits: only those that are doubled or halved count.
ERROR_MARGIN = Margin(1.0)
# Smaller differences do not count for a call with unknown dispatches, and for the sum of a call's dispatches.
CALL_MARGIN = Margin(0.0001)


def _format_seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _format_megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}"


# More registers and more shared memory alone are no loss.
_CODE_BASELINES = {"code_bytes": 1.01, "register_count": 0.0, "shared_bytes": 0.0}


def _make_exact_row(
    key: str,
    title: str,
    position: int,
    stage: Stage = Stage.COMPILE,
    unit: str = "bytes",
    compiler_path: str = "",
    column: Column | None = None,
) -> FigureRow:
    """Make the row of memory or code: planned by the compiler, read from a module, or measured in a call."""
    noun = f"bytes of {title}" if unit == "bytes" else title
    reporter = "compiler" if compiler_path else "module's code" if stage is Stage.COMPILE else "device's allocator"
    hint = (
        "" if reporter != "module's code" else " (its target has none, or the code is not read: see `gauntlet doctor`)"
    )
    return FigureRow(
        key,
        title,
        unit,
        format_count,
        stage,
        key,
        Combination.MAIN,
        noun=noun,
        judged_noun=title,
        optional=True,
        key_in_summary=key,
        golden=GoldenField(
            f"{title} bytes" if unit == "bytes" else title,
            GoldenRule.EQUAL,
            Stage.COMPSTAT if stage is Stage.COMPILE else stage,
            f"golden_{title.replace(' ', '_')}",
            baseline=_CODE_BASELINES.get(key, 1.0),
            is_integer=True,
            min_value=0.0,
            needs_golden=column is None,
        ),
        limit=f"Maximum {noun}",
        column=column,
        matrix=MatrixView(key, column.title, 3, title=title.capitalize(), unit=unit) if column else MatrixView(key),
        matrix_changes=MatrixChanges(
            title, f"{title.capitalize()}, bytes" if unit == "bytes" else title.capitalize(), position, Margin()
        ),
        metric=title.replace(" ", "-"),
        missing_reason=f"the {reporter} reports no {title}{hint}",
        compare_title=title,
        change_title=noun,
        history=HistoryView(key, "B" if unit == "bytes" else "", position),
        compiler_path=compiler_path,
    )


def _make_count_row(key: str, title: str, compiler_path: str) -> FigureRow:
    """Make the row of a count in the compiler's statistics."""
    return FigureRow(
        key,
        title,
        title,
        format_count,
        Stage.COMPILE,
        key,
        Combination.MAIN,
        optional=True,
        key_in_summary=key,
        matrix=MatrixView(key),
        metric=title,
        missing_reason=f"the compiler reports no number of {title}",
        change_title=title,
        compiler_path=compiler_path,
    )


class Figure(StrEnum):
    """The figures, by key, in the order of reports.

    Tables begin with the figures of compiles, and JSON ends with the optional figures.
    """

    row: FigureRow

    def __new__(cls, row: FigureRow) -> Self:
        """Create a member whose value is the key of its row."""
        member = str.__new__(cls, row.key)
        member._value_ = row.key
        member.row = row
        return member

    @property
    def golden(self) -> GoldenField:
        """The figure's golden field; TypeError if it has none."""
        if self.row.golden is None:
            raise TypeError(f"{self} has no golden")
        return self.row.golden

    @property
    def word(self) -> str:
        """The figure's name in a list of figures."""
        return self.row.list_name or self.row.title

    def describe(self, value: float) -> str:
        """Format a value with its noun: `76 dispatches`, `max error 1.2e-05`."""
        noun, text = self.row.noun or self.row.unit, self.row.write(value)
        if self.row.unit == "dispatches" and value == 1:
            noun = noun.removesuffix("es")
        return f"{text} {noun}" if noun else f"{self.row.title} {text}"

    @property
    def is_exact(self) -> bool:
        """True if repeated measurements give the same value."""
        return self.row.history is None or not self.row.history.noisy

    @property
    def is_counted(self) -> bool:
        """True if the figure needs modules of its own, and can be compared only between counters of the same kind."""
        return self.row.stage is Stage.COUNT

    @property
    def is_compared_in_rounds(self) -> bool:
        """True if the figure is noisy: `compare` and `bisect` then measure it in rounds."""
        return bool(self.row.metric) and not self.is_exact

    TIME = FigureRow(
        "time_ms",
        "time",
        "ms",
        format_milliseconds,
        Stage.BENCHMARK,
        "",
        Combination.LAST,
        judged_noun="times",
        key_in_summary="time_ms",
        golden=GoldenField("ms", GoldenRule.TIMED, Stage.BENCHMARK),
        column=Column("time", ColumnKind.NUMBER, "ms", drop_order=1),
        matrix=MatrixView("time_ms", "time ms", 0, format_milliseconds, "Run time", "ms", format_milliseconds),
        matrix_changes=MatrixChanges("time", "Run time (25 % and more; not confirmed)", 5, UNCONFIRMED_MARGIN),
        metric="time",
        change_title="time ms",
        # Smaller differences of two runs are noise.
        change_margin=Margin(0.1),
        history=HistoryView("time_ms", "ms", 0, Effect.TIME, noisy=True),
    )
    CALL_INSTRUCTIONS = FigureRow(
        "call_instructions",
        "instructions",
        "instructions",
        format_count,
        Stage.COUNT,
        "instructions",
        Combination.LAST,
        optional=True,
        key_in_summary="instructions",
        column=Column("instructions", ColumnKind.NUMBER, drop_order=1),
        matrix=MatrixView(
            "instructions", "instructions", 1, format_count, "Instructions of one call", "", format_count
        ),
        metric="instructions",
        change_title="instructions",
        history=HistoryView("instructions", "", 2, margin=_WORK_MARGIN),
    )
    COMPILE_TIME = FigureRow(
        "compile_seconds",
        "compile time",
        "s",
        _format_seconds,
        Stage.COMPILE,
        "tool_seconds",
        Combination.SUM,
        column=Column("compile", ColumnKind.DURATION, drop_order=3),
        matrix=MatrixView("compile_seconds", "compile s", 2, _format_seconds, "Compile time", "s", "{:.2f}".format),
        metric="compile-time",
        history=HistoryView("compile_s", "s", 7, Effect.OTHER, noisy=True),
    )
    COMPILE_MEMORY = FigureRow(
        "compile_peak_bytes",
        "compile memory",
        "bytes",
        format_bytes,
        Stage.COMPILE,
        "peak_rss_bytes",
        Combination.LARGEST,
        matrix=MatrixView(
            "compile_peak_bytes", "memory MB", 5, _format_megabytes, "Compile memory", "MB", _format_megabytes
        ),
        compare_title="compile memory",
        history=HistoryView("compile_peak_bytes", "B", 8, Effect.OTHER, noisy=True),
    )
    DISPATCHES = FigureRow(
        "dispatch_count",
        "dispatch count",
        "dispatches",
        format_count,
        Stage.COMPILE,
        "dispatch_count",
        Combination.MAIN,
        list_name="dispatches",
        judged_noun="dispatches",
        key_in_summary="dispatch_count",
        golden=GoldenField(
            "dispatches",
            GoldenRule.EQUAL,
            Stage.COMPSTAT,
            "golden_dispatch",
            "golden_dispatch_count",
            baseline=1.0,
            min_value=0.0,
        ),
        limit="Maximum dispatches",
        column=Column("dispatches", ColumnKind.NUMBER, drop_order=2),
        matrix=MatrixView("dispatch_count", "dispatches", 0, format_count, "Dispatches", "", format_count),
        matrix_changes=MatrixChanges("dispatches", "Dispatches", 1, Margin()),
        metric="dispatches",
        missing_reason="the compiler reports no dispatch count",
        compare_title="dispatches",
        change_title="dispatches",
        history=HistoryView("dispatches", "", 5),
        compiler_path="execution/dispatch-count",
    )
    TUNED_DISPATCHES = FigureRow(
        "tuned_dispatches",
        "tuned dispatches",
        "dispatches",
        format_count,
        Stage.COMPSTAT,
        "tuned_dispatches",
        Combination.LAST,
        noun="tuned dispatches",
        judged_noun="tuned dispatches",
        optional=True,
        key_in_summary="tuned_dispatches",
        golden=GoldenField(
            "tuned dispatches",
            GoldenRule.EQUAL,
            Stage.COMPSTAT,
            "golden_tuned_dispatches",
            min_value=0.0,
            is_integer=True,
            is_strict=True,
        ),
        limit="Dispatches that the tuning spec matches, neither more nor less",
        column=Column("tuned", ColumnKind.NUMBER, drop_order=2),
        matrix=MatrixView("tuned_dispatches", "tuned", 1, format_count, "Tuned dispatches", "", format_count),
        matrix_changes=MatrixChanges("tuned dispatches", "Tuned dispatches", 6, Margin()),
        metric="tuned-dispatches",
        missing_reason="its flags have no tuning spec",
        change_title="tuned dispatches",
        history=HistoryView("tuned_dispatches", "", 9, more_is_better=True),
    )
    SIZE = FigureRow(
        "binary_size_bytes",
        "size",
        "bytes",
        format_count,
        Stage.COMPILE,
        "binary_size_bytes",
        Combination.MAIN,
        judged_noun="sizes",
        key_in_summary="binary_size_bytes",
        golden=GoldenField(
            "bytes",
            GoldenRule.ROOM,
            Stage.COMPSTAT,
            "golden_size",
            "golden_binary_size",
            baseline=1.01,
            is_integer=True,
        ),
        limit="Maximum bytes of the module",
        column=Column("bytes", ColumnKind.NUMBER, drop_order=4),
        matrix=MatrixView(
            "binary_size_bytes", "size", 3, format_bytes, "Module size", "kB", lambda value: f"{value / 1e3:,.0f}"
        ),
        # The sizes of any two releases differ by a few bytes.
        matrix_changes=MatrixChanges("size", "Module size (5 % and more), bytes", 4, Margin(0.05)),
        metric="size",
        # Modules contain paths and names of releases.
        margin=Margin(0.001),
        missing_reason="the compiler reports no size",
        compare_title="module size",
        change_title="bytes",
        history=HistoryView("size_bytes", "B", 6, Effect.SIZE),
    )
    EXECUTABLES = _make_count_row("executable_count", "executables", "executable/executable-count")
    TRANSIENT_MEMORY = _make_exact_row(
        "transient_bytes", "transient memory", 10, compiler_path="execution/transient-memory-size"
    )
    CONSTANT_MEMORY = _make_exact_row("constant_bytes", "constant memory", 11, compiler_path="global/constant-size")
    VARIABLE_MEMORY = _make_exact_row("variable_bytes", "variable memory", 12, compiler_path="global/variable-size")
    CODE_SIZE = _make_exact_row("code_bytes", "code size", 13)
    SPILLS = _make_exact_row("spill_count", "spills", 14, unit="spills")
    REGISTERS = _make_exact_row("register_count", "registers", 15, unit="registers")
    SHARED_MEMORY = _make_exact_row("shared_bytes", "shared memory", 16)
    SUBMISSIONS = _make_count_row("submission_count", "submissions", "execution/submission-count")
    AWAITS = _make_count_row("await_count", "awaits", "synchronization/await-count")
    FILLS = _make_count_row("fill_count", "fills", "execution/fill-count")
    COPIES = _make_count_row("copy_count", "copies", "execution/copy-count")
    PEAK_MEMORY = _make_exact_row(
        "peak_memory_bytes",
        "peak memory",
        17,
        Stage.MEMORY,
        column=Column("peak memory", ColumnKind.NUMBER, drop_order=3),
    )
    LOADED_MEMORY = _make_exact_row("loaded_memory_bytes", "loaded memory", 18, Stage.MEMORY)
    HOST_MEMORY = _make_exact_row("host_memory_bytes", "host memory", 19, Stage.MEMORY)
    # The memory of the process includes its code, its stacks and the pages that the system has read ahead.
    PROCESS_MEMORY = FigureRow(
        "process_peak_bytes",
        "process memory",
        "bytes",
        format_bytes,
        Stage.MEMORY,
        "process_peak_bytes",
        Combination.LAST,
        optional=True,
        key_in_summary="process_peak_bytes",
        matrix=MatrixView("process_peak_bytes"),
        compare_title="process memory",
        history=HistoryView("process_peak_bytes", "B", 20, Effect.OTHER, noisy=True),
    )
    ERROR = FigureRow(
        "max_abs_error",
        "max error",
        "",
        format_error,
        Stage.THRESHOLD,
        "",
        Combination.WORST,
        # Other instructions and other orders of threads round differently.
        golden=GoldenField("", GoldenRule.ERROR, Stage.THRESHOLD, baseline=2.0),
        column=Column("quality", drop_order=5),
        matrix=MatrixView("max_abs_error", "max error", 4, format_error, "Largest error", "", format_error),
        matrix_changes=MatrixChanges("error", "Largest error (doubled or halved)", 0, ERROR_MARGIN),
        metric="error",
        missing_reason="no output was compared value by value",
        compare_title="largest error",
        history=HistoryView("max_error", "", 4, margin=ERROR_MARGIN),
    )
    DISPATCH_INSTRUCTIONS = FigureRow(
        "instructions",
        "instructions",
        "instructions",
        format_count,
        Stage.COUNT,
        "",
        Combination.LAST,
        noun="instructions in dispatches",
        judged_noun="instructions",
        optional=True,
        key_in_summary="instructions_in_dispatches",
        golden=GoldenField(
            "instructions", GoldenRule.WITHIN, Stage.COUNT, "golden_instructions", margin=_WORK_MARGIN, is_integer=True
        ),
        limit="Instructions in dispatches, counted by valgrind; up to 0.1 % more passes",
        matrix_changes=MatrixChanges(
            "instructions",
            "Instructions in dispatches, or of one call where these are not known (0.1 % and more)",
            2,
            _WORK_MARGIN,
        ),
        metric="instructions",
        margin=CALL_MARGIN,
        missing_reason="instructions were not counted",
        change_title="instructions in dispatches",
        history=HistoryView("instructions_in_dispatches", "", 1, margin=_WORK_MARGIN),
    )
    OUTSIDE_INSTRUCTIONS = FigureRow(
        "instructions_outside",
        "instructions outside of dispatches",
        "instructions",
        format_count,
        Stage.COUNT,
        "instructions_outside",
        Combination.LAST,
        noun="instructions outside of dispatches",
        judged_noun="outside of dispatches",
        optional=True,
        key_in_summary="instructions_outside",
        golden=GoldenField(
            "instructions outside",
            GoldenRule.WITHIN,
            Stage.COUNT,
            "golden_instructions_outside",
            margin=OUTSIDE_MARGIN,
            is_integer=True,
            needs_golden=True,
        ),
        limit="Instructions outside of dispatches; up to 1 % or 2,000 more passes",
        matrix=MatrixView("instructions_outside"),
        matrix_changes=MatrixChanges(
            "instructions outside of dispatches",
            "Instructions outside of dispatches (1 %, and 2,000, and more)",
            3,
            OUTSIDE_MARGIN,
        ),
        metric="instructions-outside",
        margin=OUTSIDE_MARGIN,
        missing_reason="it is not known which instructions are in dispatches",
        change_title="instructions outside of dispatches",
        change_margin=OUTSIDE_MARGIN,
        history=HistoryView("instructions_outside", "", 3, margin=OUTSIDE_MARGIN),
    )


# The figures with goldens, and the figures by their golden's field in sharktank's benchmarks.
GOLDEN_FIGURES = tuple(figure for figure in Figure if figure.row.golden)
SHARKTANK_GOLDENS = {figure.golden.sharktank: figure for figure in GOLDEN_FIGURES if figure.golden.sharktank}
# The figures by their metric in `bisect`; if two figures have the same metric, the last figure counts.
METRICS = {figure.row.metric: figure for figure in Figure if figure.row.metric}
FIGURES: Mapping[str, Figure] = {figure.value: figure for figure in Figure}
# The order of columns in tables.
COMPILES_FIRST = tuple(sorted(Figure, key=lambda figure: figure not in (Figure.COMPILE_TIME, Figure.COMPILE_MEMORY)))
