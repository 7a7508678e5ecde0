"""Make the reports of a matrix from only its record and its runs' journals, even if the matrix was killed.

docs/reference/results.md has the columns of `matrix.csv` and the fields of `matrix.json` (`"schema": 1`; the number
stays while keys are only added). NaN and infinities are the strings `"nan"`, `"inf"`, `"-inf"`.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import statistics
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from iree_gauntlet.document import (
    Block,
    Cell,
    ColouredCell,
    Details,
    Document,
    Heading,
    HeatCell,
    Items,
    Name,
    PageOnly,
    Paragraph,
    Table,
    Text,
    TextLink,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import COMPILES_FIRST, ERROR_MARGIN, Figure, Statistic
from iree_gauntlet.formatting import (
    Column,
    ColumnKind,
    format_count_change,
    format_duration,
    format_factor,
    format_mean_and_spread,
    join_lines,
    list_first,
    pluralize,
)
from iree_gauntlet.measuring.instructions.counters import WITHOUT_FMA
from iree_gauntlet.recorded import strict_json
from iree_gauntlet.records.bisect_outcome import format_bisect_command
from iree_gauntlet.records.chain_figures import MatrixCell
from iree_gauntlet.records.matrix_outcome import MatrixOutcome, MatrixRow, read_matrix_outcome
from iree_gauntlet.reports.compare_report import make_unaffected_blocks
from iree_gauntlet.reports.junit import format_junit, list_suites, make_toolchain_suite
from iree_gauntlet.reports.report_files import Reports, list_next_steps, make_pages, make_provenance
from iree_gauntlet.reports.vector_lengths import show_vector_lengths
from iree_gauntlet.variants import split_side

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.figures import FigureRow, MatrixChanges, MatrixView


class VerdictChange(StrEnum):
    """A change of verdicts, not of metrics; reports show these changes first, in this order."""

    FAILING = "newly failing"
    PASSING = "newly passing"
    WRONG = "wrong numbers"


@dataclass(frozen=True, slots=True)
class MatrixChange:
    """A difference between IREEs.

    Attributes:
        kind: a `VerdictChange`, or the name of a kind of jump in a metric.
        text: the message, without the chain.
    """

    kind: str
    chain: str
    labels: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class MeanRatio:
    """A geometric mean of the ratios to the base, for `time` or `compile`; a mean above 1 means slower."""

    label: str
    metric: str
    ratio: float
    chains: int


# These lists have the metrics in the order of files, of columns and of maps; `_JUMPS` has those with listed changes.
_VIEWS = [(figure, figure.row.matrix) for figure in COMPILES_FIRST if figure.row.matrix]
# Optional metrics are last.
_FILE_VIEWS = sorted(_VIEWS, key=lambda view: view[0].row.optional)
_COLUMN_VIEWS = [(figure, view) for figure, view in _VIEWS if view.column]
_MAP_VIEWS = sorted(_COLUMN_VIEWS, key=lambda view: list(Figure).index(view[0]))
_JUMPS = sorted(
    ((figure, figure.row.matrix_changes) for figure in Figure if figure.row.matrix_changes),
    key=lambda jump: jump[1].place,
)
# A terminal shows at most so many cells of the table of metrics, and so many changes.
_TERMINAL_CELLS = 160
_TERMINAL_CHANGES, _MAX_NAMES = 12, 3
_FMA_NOTE = (
    "Instructions were counted without fused multiply-adds. With them a loss may be a gain; to count with them, more "
    "slowly: "
)
# These notes are shown if a matrix has the metric.
_NOTES: dict[Figure, Text] = {
    Figure.TIME: (
        "Times were measured one IREE after another: differences of a few per cent need ",
        Name("gauntlet compare A B"),
        ".",
    ),
    Figure.COMPILE_TIME: (
        "Compiles ran in parallel, unless with -j 1; times of cached modules are from when they were compiled.",
    ),
}
_LEGEND = (
    "×: ratio to {base}. memory: the compiler's peak. max error: the largest of all outputs, with its output.",
    "↑ ↓: times and memory more than 5 % apart, counts and sizes that differ, errors doubled or halved.",
)
_TITLES = {
    VerdictChange.FAILING: "Newly failing",
    VerdictChange.PASSING: "Newly passing",
    VerdictChange.WRONG: "Wrong numbers",
    **{jump.word: jump.title for _, jump in _JUMPS},
}
# The metrics of `bisect` by which changes are found.
_BISECT_METRICS = {VerdictChange.FAILING: "runs", **{jump.word: figure.row.metric for figure, jump in _JUMPS}}
# The keys are the names in JSON of geometric means of ratios.
_MEAN_FIGURES = {"time": Figure.TIME, "compile": Figure.COMPILE_TIME}
_IREE_COLUMNS = (
    Column("IREE", ColumnKind.NAME),
    Column("result"),
    Column("exit code", ColumnKind.NUMBER),
    Column("took", ColumnKind.DURATION, drop_order=4),
    Column("compiler", ColumnKind.NAME, drop_order=2),
    Column("runtime", ColumnKind.NAME, drop_order=1),
)
_FIGURE_COLUMNS: tuple[Column, ...] = (
    Column("model", ColumnKind.NAME),
    Column("IREE", ColumnKind.NAME),
    Column("verdict", ColumnKind.VERDICT),
    *(Column(view.column, ColumnKind.NUMBER, drop_order=view.drop_order) for _, view in _COLUMN_VIEWS),
)
_TIME_TOLERANCE = 0.05
_FORMULA_STARTS = ("=", "+", "-", "@")


def make_matrix_reports(folder: Path) -> Reports:
    """Return the reports of the matrix in a folder.

    Raises:
        GauntletError: the record or a journal cannot be read.
    """
    outcome = read_matrix_outcome(folder)
    document = make_matrix_document(outcome)
    files = {
        "junit.xml": lambda: format_matrix_junit(outcome),
        **make_pages("matrix", lambda: document, folder),
        "matrix.json": lambda: format_matrix_json(outcome),
        "matrix.csv": lambda: format_matrix_csv(outcome),
    }
    return Reports(files, lambda _: document, outcome.exit_code, document.answer)


def make_matrix_document(matrix: MatrixOutcome) -> Document:
    """Return the document: changes, failures, and the metrics of every chain with every IREE."""
    count = len(matrix.irees)
    sides = [split_side(iree.text) for iree in matrix.irees]
    iree_count, variant_count = (len({side[index] for side in sides if side[index]}) for index in (0, 1))
    subject = "one IREE" if iree_count == 1 else f"{iree_count} IREEs"
    subject += f" with {pluralize(variant_count, 'variant')}" if variant_count else ""
    ok_count = sum(iree.exit_code is ExitCode.OK for iree in matrix.irees)
    suite = f": suite {matrix.opening.suite}" if matrix.opening.suite else ""
    hints = (f"{iree.label}: {iree.hint}" for iree in matrix.irees if iree.hint)
    irees: list[tuple[Cell, ...]] = []
    for iree in matrix.irees:
        code = None if iree.exit_code is None else float(iree.exit_code)
        tools = (iree.toolchain.compiler_text or None, iree.toolchain.runtime_text or None)
        label = TextLink(iree.label, f"{quote(iree.folder)}/summary.html") if iree.outcome else iree.label
        seconds = iree.outcome.seconds if iree.outcome else None
        irees.append((label, iree.result_text, code, seconds, *tools))
    blocks: list[Block] = [Table(_IREE_COLUMNS, tuple(irees))] if irees else []
    blocks += (Paragraph((line,)) for line in _list_mean_lines(matrix))
    failures = _list_failures(matrix)
    if failures:
        note = ("Output, logs and commands to reproduce: ", Name("summary.md"), " in the folder of each run.")
        blocks += [Heading("What went wrong"), Items(failures, _TERMINAL_CHANGES), Paragraph(note)]
    blocks += [*_show_changes(matrix), *_show_figures(matrix)] if matrix.rows else []
    for iree in matrix.irees:
        title = f"Numbers by length of vectors, {iree.label}"
        blocks += show_vector_lengths(iree.outcome.chains, title) if iree.outcome else ()
    return Document(
        f"Matrix of {subject}{suite}",
        f"{ok_count} of {count} {'runs' if variant_count else 'IREEs'} as expected",
        (f"matrix {matrix.name}", format_duration(matrix.seconds)),
        tuple(blocks),
        exit_code=matrix.exit_code,
        remarks=(*matrix.remarks, *hints),
        first_failure=f"{failures[0][0].text}{failures[0][1]}" if failures else "",
        provenance=make_provenance(
            ", ".join(iree.label for iree in matrix.irees),
            replace(matrix.opening, machine=matrix.machine),
            ("matrix.md", "matrix.json", "matrix.csv", "junit.xml"),
            matrix.seconds if matrix.state == "complete" else None,
        ),
    )


def _show_changes(matrix: MatrixOutcome) -> Iterator[Block]:
    if len(matrix.irees_with_runs) < 2:
        return
    changes = list_matrix_changes(matrix)
    yield Heading("What changed")
    for iree in matrix.irees:
        yield from make_unaffected_blocks(iree.no_effect, iree.label, "the modules are the same bytes as without it")
    if not changes:
        yield Paragraph(("Nothing: verdicts, errors, counts, sizes and times are the same within the margins.",))
    commands = (
        format_bisect_command(change.labels[:2], _BISECT_METRICS.get(change.kind, ""), change.chain)
        for change in changes
    )
    yield from list_next_steps(itertools.islice(filter(None, commands), 1))
    for kind, title in _TITLES.items():
        if items := group_alike((change.chain, change.text, "") for change in changes if change.kind is kind):
            yield Heading(title, 3)
            yield Items(items, _TERMINAL_CHANGES)


def group_alike(entries: Iterable[tuple[str, str, str]]) -> tuple[tuple[Name, str], ...]:
    """Return an item for each text, which names the first of the chains that have it; entries end with a link."""
    groups: dict[str, list[Name]] = {}
    for chain, text, url in entries:
        groups.setdefault(text, []).append(Name(chain, url))
    names = {text: list_first([name.text for name in group], _MAX_NAMES) for text, group in groups.items()}
    return tuple((Name(names[text], group[0].url), f": {text}") for text, group in groups.items())


def _list_failures(matrix: MatrixOutcome) -> tuple[tuple[Name, str], ...]:
    return group_alike(
        (row.chain, f"{iree.label}: {cell.verdict_text}: {join_lines(cell.reason, 200)}", cell.url)
        for iree in matrix.irees_with_runs
        for row in matrix.rows
        if (cell := row.cells.get(iree.label)) is not None and cell.verdict.is_bad
    )


def _show_figures(matrix: MatrixOutcome) -> Iterator[Block]:
    """Show a row for each chain and IREE; if a terminal has no room for all rows, failures come first."""
    labels = [iree.label for iree in matrix.irees_with_runs]
    chains = list(matrix.rows)
    if len(chains) * len(labels) > _TERMINAL_CELLS:
        chains.sort(key=lambda row: all(not cell.verdict.is_bad for cell in row.cells.values()))
    rows: list[tuple[Cell, ...]] = []
    for row in chains:
        title, base = row.chain, row.cells.get(matrix.base)
        for label in labels:
            cell = row.cells.get(label)
            if cell is not None:
                figures = make_figure_cells(cell, None if label == matrix.base else base)
                rows.append((title, label, _make_verdict_cell(cell), *figures))
                title = ""
    cells = [cell for row in chains for cell in row.cells.values()]
    yield Heading("Figures")
    table = Table(_FIGURE_COLUMNS, tuple(rows), _TERMINAL_CELLS).filled_form
    if len(labels) < 2:
        yield table
        return
    lines = (line.format(base=matrix.base) for line in _LEGEND)
    notes = (note for figure, note in _NOTES.items() if any(figure in cell.figures.values for cell in cells))
    legend = f"Shaded by how far a figure is from that of {matrix.base}: orange for more, blue for less"
    legend += "; full from double or half on. Times that are marked ~ were disturbed, and are not shaded."
    yield PageOnly((Paragraph((legend,)), *_show_heat_maps(matrix, labels)))
    yield Details("All figures of each model", (table,), brief=True)
    yield from map(Paragraph, (*((line,) for line in lines), *notes))
    cpus = (cell.figures.counted_by.rpartition(", ")[2] for cell in cells)
    if cpu := next((cpu for cpu in cpus if cpu.endswith(WITHOUT_FMA)), ""):
        yield Paragraph((_FMA_NOTE, Name(f"--count-cpu {cpu.removesuffix(WITHOUT_FMA)}"), "."))


def _show_heat_maps(matrix: MatrixOutcome, labels: Sequence[str]) -> Iterator[Block]:
    """Show a map of models and IREEs for verdicts and each metric; the ratio to the base gives the shade."""
    verdicts = ((row.chain, *(_make_verdict_cell(row.cells.get(label)) for label in labels)) for row in matrix.rows)
    yield Heading("Verdicts", 3)
    columns = (Column("model", ColumnKind.NAME), *(Column(label, ColumnKind.VERDICT) for label in labels))
    yield Table(columns, tuple(verdicts))
    for figure, view in _MAP_VIEWS:
        rows: list[tuple[Cell, ...]] = []
        for row in matrix.rows:
            # Times of several machines, and disturbed ones, are not comparable.
            is_time = figure is Figure.TIME
            busy = {label for label, cell in row.cells.items() if is_time and cell.figures.disturbance}
            comparable = matrix.base not in busy and (row.timed_on_one_machine or not is_time)
            base = row.find_value(matrix.base, figure) if comparable else None
            shades: list[Cell] = []
            for label in labels:
                cell, value = row.cells.get(label), row.find_value(label, figure)
                if value is not None:
                    ratio = None if label in busy else _compute_ratio(value, base)
                    text = "~" * (label in busy) + view.write(value)
                    shades.append(HeatCell(text, math.log2(ratio) if ratio else 0.0))
                else:
                    # Show the verdict in place of a missing metric, because it has the reason.
                    shades.append(_make_verdict_cell(cell))
            if any(isinstance(shade, HeatCell) for shade in shades):
                rows.append((row.chain, *shades))
        if rows:
            columns = (columns[0], *(Column(label, ColumnKind.NUMBER) for label in labels))
            yield Heading(f"{view.title}{f', {view.unit}' if view.unit else ''}", 3)
            yield Table(columns, tuple(rows))


def _make_verdict_cell(cell: MatrixCell | None) -> Cell:
    """Return a verdict, with a link to its failure."""
    return ColouredCell(cell.verdict_text, str(cell.verdict), cell.url) if cell else None


def _list_mean_lines(matrix: MatrixOutcome) -> Iterator[str]:
    means = compute_mean_ratios(matrix)
    for metric, title in {"time": "run time", "compile": "compile time"}.items():
        metric_means = [mean for mean in means if mean.metric == metric]
        if metric_means:
            noun = "1 model" if metric_means[0].chains == 1 else f"{metric_means[0].chains} models"
            texts = ", ".join(f"{mean.label} {format_factor(mean.ratio)}" for mean in metric_means)
            yield f"geometric mean of {title} over {noun} that every IREE has: {texts}"


def make_figure_cells(cell: MatrixCell, base: MatrixCell | None) -> tuple[str | None, ...]:
    """Return the metrics of a chain with one IREE; memory is the compiler's peak.

    A `~` marks a disturbed time. `base` is the chain's cell of the first
    IREE; it is None for the first IREE itself, and if the first IREE did not run the chain.
    """
    base = base or MatrixCell(cell.verdict)
    return tuple(_format_figure_cell(figure, view, cell, base) for figure, view in _COLUMN_VIEWS)


def _format_figure_cell(figure: Figure, view: MatrixView, cell: MatrixCell, base: MatrixCell) -> str | None:
    value, base_value = cell.figures.values.get(figure), base.figures.values.get(figure)
    if value is None:
        return None
    text = view.write_cell(value)
    match figure:
        case Figure.ERROR:
            worst = cell.figures.largest_error
            call = f"{worst.call}." if worst and worst.call is not None else ""
            output_index = f" #{call}{worst.index}" if worst else ""
            return f"{text}{output_index}{_format_arrow(_compute_ratio(value, base_value), ERROR_MARGIN.share)}"
        case Figure.TIME:
            prefix = "min " if cell.figures.statistic is Statistic.MIN else ""
            mean = format_mean_and_spread(value, cell.figures.spread_ms)
            text = f"{'~' if cell.figures.disturbance else ''}{prefix}{mean}"
            base_value = base_value if cell.timed_on == base.timed_on else None
        case Figure.CALL_INSTRUCTIONS:
            # Counts of different kinds of counters are not comparable.
            comparable = base_value and cell.figures.counted_by == base.figures.counted_by
            return f"{text} {format_count_change(base_value, value)}" if base_value and comparable else text
    ratio = _compute_ratio(value, base_value)
    if ratio is None or (figure.is_exact and value == base_value):
        return text
    factor = format_factor(ratio)
    # The ratio of a count that rounds to 1 is left out.
    if figure.is_exact:
        return f"{text} {factor if factor != format_factor(1) else ''}{_format_arrow(ratio, 0.0)}"
    return f"{text} {factor}{_format_arrow(ratio, _TIME_TOLERANCE)}"


def _format_arrow(ratio: float | None, tolerance: float) -> str:
    """Return an arrow up or down if a ratio is further from 1 than `tolerance`; otherwise an empty string."""
    if ratio is None or 1 / (1 + tolerance) <= ratio <= 1 + tolerance:
        return ""
    return "↑" if ratio > 1 else "↓"


def format_matrix_junit(matrix: MatrixOutcome) -> str:
    """Return the complete document with its XML declaration; encode it as UTF-8."""
    suites = []
    for iree in matrix.irees:
        suites += list_suites(iree.outcome, iree.label) if iree.outcome is not None else []
        left_out = iree.exit_code in (None, ExitCode.OK)
        suites += [make_toolchain_suite(iree.label, iree.problem, iree.hint, left_out)] if iree.problem else []
    seconds = sum(float(suite.get("time", "0")) for suite in suites)
    return format_junit(f"iree-gauntlet matrix {matrix.opening.suite}".rstrip(), suites, seconds)


def format_matrix_json(matrix: MatrixOutcome) -> str:
    """Return the matrix as JSON text, ASCII only, ending with a newline."""
    document = {
        "schema": 1,
        "matrix": matrix.name,
        **{name: getattr(matrix.opening, name) for name in ("suite", "version", "command", "cwd")},
        "started": matrix.opening.time,
        "state": matrix.state,
        "remarks": matrix.remarks,
        "exit_code": matrix.exit_code,
        "exit_meaning": matrix.exit_code.meaning,
        "seconds": matrix.seconds,
        "base": matrix.base,
        "machine": matrix.machine.as_dict(),
        "irees": [
            {
                "label": iree.label,
                "iree": iree.text,
                "folder": iree.folder,
                "exit_code": None if iree.exit_code is None else int(iree.exit_code),
                "problem": iree.problem,
                "hint": iree.hint,
                "toolchain": iree.toolchain.as_dict(),
                "no_effect": iree.no_effect,
                "counts": iree.outcome and {str(verdict): count for verdict, count in iree.outcome.counts.items()},
            }
            for iree in matrix.irees
        ],
        "chains": [
            {
                "id": row.chain,
                **{name: getattr(row, name) for name in ("model", "submodel", "target")},
                "irees": {label: _describe_cell(cell, row.cells.get(matrix.base)) for label, cell in row.cells.items()},
            }
            for row in matrix.rows
        ],
        "changes": [asdict(change) for change in list_matrix_changes(matrix)],
        "geometric_means": [asdict(mean) for mean in compute_mean_ratios(matrix)],
    }
    return json.dumps(strict_json(document), indent=1, allow_nan=False) + "\n"


def format_matrix_csv(matrix: MatrixOutcome) -> str:
    """Return the table as CSV (RFC 4180) with a header; lines end with only a newline."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header: list[str] = []
    for row in matrix.rows:
        for label, cell in row.cells.items():
            figures = _describe_cell(cell, row.cells.get(matrix.base))
            ratios = figures.pop("ratios")
            del figures["reason"]
            fields = {"chain": row.chain, "iree": label, **figures, "stages": " ".join(cell.stages)}
            fields |= {f"{name}_ratio": value for name, value in ratios.items()}
            if not header:
                header = list(fields)
                writer.writerow(header)
            writer.writerow([_format_field(strict_json(value)) for value in fields.values()])
    return stream.getvalue()


def _describe_cell(cell: MatrixCell, base: MatrixCell | None) -> dict[str, Any]:
    figures = cell.figures
    times = figures.samples.real_time_ms if figures.samples else ()
    # Each of these metrics is followed by additional fields.
    details: dict[Figure, dict[str, Any]] = {
        Figure.COMPILE_TIME: {"compile_cached": figures.all_from_cache},
        Figure.TIME: {
            "spread_ms": figures.spread_ms,
            "statistic": str(figures.statistic) if times else "",
            "repetitions": len(times),
            "disturbed": figures.disturbance,
        },
        Figure.ERROR: {"worst_output": figures.largest_error.index if figures.largest_error else None},
    }
    fields: dict[str, Any] = {"verdict": str(cell.verdict)}
    fields |= {name: getattr(cell, name) for name in ("stages", "reason", "works", "wrong_numbers")}
    ratios: dict[str, float | None] = {}
    for figure, view in _FILE_VIEWS:
        value, base_value = figures.values.get(figure), base.figures.values.get(figure) if base else None
        fields |= {view.key: value, **details.get(figure, {})}
        if figure.row.unit and not figure.row.optional:
            comparable = figure is not Figure.TIME or base is None or cell.timed_on == base.timed_on
            ratios[view.key] = _compute_ratio(value, base_value) if comparable else None
    return {**fields, "counted_by": figures.counted_by, "timed_on": cell.timed_on, "ratios": ratios}


def _format_field(value: Any) -> Any:
    """Format a CSV field; text that begins like a formula is quoted, because a spreadsheet would run it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) and value != "-inf" else value


def _compute_ratio(value: float | None, base: float | None) -> float | None:
    """Return value / base; None if either is missing or the base is 0."""
    if value is None or base is None or not base > 0 or not math.isfinite(value):
        return None
    return value / base


def list_matrix_changes(matrix: MatrixOutcome) -> list[MatrixChange]:
    """Return the differences of each IREE from the previous one that ran the chain, by kind, then in plan order."""
    labels = [iree.label for iree in matrix.irees_with_runs]
    order = list(_TITLES)
    changes = [change for row in matrix.rows for change in _list_changes_of_row(row, labels)]
    return sorted(changes, key=lambda change: order.index(change.kind))


def compute_mean_ratios(matrix: MatrixOutcome) -> list[MeanRatio]:
    """Return geometric means of the time ratios to the base, over the chains that have a time with every IREE.

    IREEs without any time are left out. Chains with wrong numbers are left out too, because they did other work, and so
    are run times that were disturbed.
    """
    means: list[MeanRatio] = []
    for metric, figure in _MEAN_FIGURES.items():
        tables = []
        for row in matrix.rows if metric == "compile" else [row for row in matrix.rows if row.timed_on_one_machine]:
            times = {label: _find_comparable(figure, cell) for label, cell in row.cells.items()}
            tables.append({label: value for label, value in times.items() if value is not None and value > 0})
        labels = [iree.label for iree in matrix.irees if any(iree.label in table for table in tables)]
        common_tables = [table for table in tables if all(label in table for label in labels)]
        if matrix.base in labels and common_tables:
            for label in labels:
                ratios = [table[label] / table[matrix.base] for table in common_tables]
                means.append(MeanRatio(label, metric, statistics.geometric_mean(ratios), len(common_tables)))
    return [mean for mean in means if mean.label != matrix.base]


def _list_changes_of_row(row: MatrixRow, labels: list[str]) -> Iterator[MatrixChange]:
    cells = [(label, row.cells[label]) for label in labels if label in row.cells]
    known_cells = [(label, cell) for label, cell in cells if cell.works is not None]
    for (old_label, old_cell), (label, cell) in itertools.pairwise(known_cells):
        if old_cell.works != cell.works:
            failing, prefix, kind = (
                (old_cell, "was ", VerdictChange.PASSING) if cell.works else (cell, "", VerdictChange.FAILING)
            )
            description = f"{failing.verdict_text}{f': {join_lines(failing.reason, 80)}' if failing.reason else ''}"
            yield MatrixChange(kind, row.chain, (old_label, label), f"{old_label} → {label}: {prefix}{description}")
    for label, cell in cells:
        if cell.wrong_numbers:
            yield MatrixChange(VerdictChange.WRONG, row.chain, (label,), f"{label}: {join_lines(cell.reason, 80)}")
    for figure, jump in _JUMPS:
        yield from _list_jumps(row.chain, jump, figure.row, _list_comparable(figure, row, cells))


def _list_comparable(
    figure: Figure, row: MatrixRow, cells: Sequence[tuple[str, MatrixCell]]
) -> list[tuple[str, float | None]]:
    """Return a metric's values, without those that are not comparable (from another machine or counter)."""
    if figure is Figure.TIME and not row.timed_on_one_machine:
        return []
    if figure.is_counted:
        counted_cells = [(label, cell) for label, cell in cells if Figure.CALL_INSTRUCTIONS in cell.figures.values]
        if len({cell.figures.counted_by for _, cell in counted_cells}) != 1:
            return []
        if any(Figure.OUTSIDE_INSTRUCTIONS not in cell.figures.values for _, cell in counted_cells):
            # If the instructions in dispatches are unknown, use the instructions of the call.
            call_counts = [(label, cell.figures.values.get(Figure.CALL_INSTRUCTIONS)) for label, cell in cells]
            return call_counts if figure is Figure.DISPATCH_INSTRUCTIONS else []
    return [(label, _find_comparable(figure, cell)) for label, cell in cells]


def _find_comparable(figure: Figure, cell: MatrixCell) -> float | None:
    """Return a value, except the time and the error of wrong results, and a disturbed time."""
    is_wrong = figure in (Figure.TIME, Figure.ERROR) and cell.wrong_numbers
    is_busy = figure is Figure.TIME and cell.figures.disturbance
    return None if is_wrong or is_busy else cell.figures.values.get(figure)


def _list_jumps(
    chain: str, jump: MatrixChanges, row: FigureRow, figures: list[tuple[str, float | None]]
) -> Iterator[MatrixChange]:
    """Yield one line with the values that differ from the previous value by more than the margin for jumps."""
    entries = [(label, value) for label, value in figures if value is not None]
    is_jump = jump.margin.is_exceeded
    jumps = entries[:1]
    for previous, (label, value) in itertools.pairwise(entries):
        if is_jump(previous[1], value):
            if jumps[-1] != previous:
                jumps.append(previous)
            jumps.append((label, value))
    if len(jumps) < 2:
        return
    unit = f" {row.unit}" if row.unit == "ms" else ""
    # The line leaves out values between two jumps, and has `…` in their place.
    texts = [f"{row.write(value)}{unit} ({label})" for label, value in jumps]
    signs = ["→" if is_jump(left, right) else "…" for (_, left), (_, right) in itertools.pairwise(jumps)]
    text = " ".join([texts[0], *(f"{sign} {text}" for sign, text in zip(signs, texts[1:], strict=True))])
    yield MatrixChange(jump.word, chain, tuple(label for label, _ in jumps), text)
