"""Make the reports of a comparison: a document for the terminal, Markdown and a page, and JSON and JUnit files."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import junit_xml

from iree_gauntlet.document import (
    Bar,
    Block,
    Cell,
    Details,
    Document,
    Heading,
    IntervalBar,
    Items,
    Name,
    Notes,
    PageOnly,
    Paragraph,
    Table,
)
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import (
    Column,
    ColumnKind,
    format_bytes,
    format_count,
    format_count_change,
    format_cpus,
    format_dispatch_cost,
    format_duration,
    format_factor,
    format_milliseconds,
    format_ratio,
    format_span,
    join_lines,
    pluralize,
)
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.code.code_changes import compare_code
from iree_gauntlet.records.bisect_outcome import format_bisect_command
from iree_gauntlet.records.chain_figures import make_matrix_cell
from iree_gauntlet.records.compare_record import SIDE_NAMES, read_comparison
from iree_gauntlet.records.outcome import list_lock_remarks, read_outcome
from iree_gauntlet.reports.junit import format_junit, make_suite
from iree_gauntlet.reports.report_files import Reports, list_next_steps, make_pages, make_provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.measuring.code.code_changes import CodeChange
    from iree_gauntlet.records.chain_figures import MatrixCell
    from iree_gauntlet.records.compare_record import (
        ComparisonRecord,
        CompileChange,
        DispatchComparison,
        DispatchDifference,
        OtherDispatches,
        TimeVerdictRecord,
        WorkVerdict,
    )
    from iree_gauntlet.results import DispatchChange

    # The cells of both sides, and the changes of code, by model.
    _CellPair = tuple[Mapping[str, MatrixCell], Mapping[str, MatrixCell]]
    _CodeChanges = Mapping[str, Sequence[CodeChange]]

# The keys are fields of a row; pages draw the interval after the models. Columns without a value are left out.
_ROW_COLUMNS = {
    "verdict": Column("verdict", ColumnKind.VERDICT),
    "model": Column("model", ColumnKind.NAME),
    "interval": Column("B: faster · slower", ColumnKind.DRAWN),
    # The times of A and B are text, because they include the spread.
    "a": Column("A", ColumnKind.NUMBER, "ms", drop_order=4),
    "b": Column("B", ColumnKind.NUMBER, "ms", drop_order=3),
    "ratio": Column("B against A", ColumnKind.NUMBER),
    "span": Column("interval", ColumnKind.NUMBER, drop_order=2),
    "work": Column("work", ColumnKind.NUMBER, drop_order=5),
    "floor": Column("A against A", ColumnKind.NUMBER, drop_order=6),
    "dispatched": Column("in dispatches", ColumnKind.NUMBER, drop_order=1),
    "outside": Column("outside", ColumnKind.NUMBER, drop_order=1),
}
_WORK_ONLY = ("dispatched", "outside")
_WORK_TITLES = {"interval": "B: less · more work", "span": "difference"}
_ROUND_COLUMNS = {
    "model": Column("model", ColumnKind.NAME),
    "rounds": Column("rounds"),
    "cpus": Column("CPUs"),
    "worker": Column("worker"),
}
_CHANGE_COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("figure"),
    *(Column(title, ColumnKind.NUMBER) for title in ("A", "B", "change")),
)
_CHANGE_NOTE = (
    "Sizes and counts are exact. ~: one measurement per side, perhaps beside other work; of a compile, taken when the "
    "module was compiled. Only rounds compare compile times: --metric compile-time."
)
_CODE_COLUMNS = (Column("model", ColumnKind.NAME), Column("dispatch", ColumnKind.NAME), Column("A → B"))
_CODE_NOTE = "Dispatches whose code differs, those that got worse first. Equal code is left out, whatever its name."
_MAX_CODE_CHANGES = 10
_LEGEND = (
    "At most {2:g} % of verdicts are wrong. A dot is B against A, its line the interval. The dark band is A against "
    "itself, the pale band what counts as the same (±{1:g} %). Beyond the dotted lines, B is slower or faster "
    "(±{0:g} %). Far from 0, the scale is denser."
)
_WORK_LEGEND = "Counts are exact. The pale band is what counts as the same (±{3:g} %). Far from 0, the scale is denser."
_COMPILE_COLUMNS = (Column("figure"), *(Column(title, ColumnKind.NUMBER) for title in ("A", "B", "B / A")))
# The JUnit report has these properties for each side.
_TOOLCHAIN_FIELDS = ("compiler", "compiler_commit", "runtime", "runtime_commit", "identity")
_MAX_EXACT_RATIO = 1.2
# A dispatch with a smaller share of the difference explains nothing.
_MIN_SHOWN_SHARE = 0.005
# A profile's difference that is larger or smaller by this factor does not explain the measured difference.
_MAX_PROFILE_RATIO = 2.0
_NO_EFFECT = "no effect"
_SAME_BYTES = "the modules of both sides are the same bytes, so nothing was measured"
# In JUnit's report each verdict is a failure, an error, or a success; the order is that of tables.
_JUNIT_KINDS = {
    **dict.fromkeys(("slower", "more work"), "failure"),
    **dict.fromkeys(("error", "inconclusive"), "error"),
    **dict.fromkeys(("faster", "less work", "not slower", "same", "same work", _NO_EFFECT), ""),
    "not measured": "error",
}
_VERDICT_ORDER = tuple(_JUNIT_KINDS)
# Larger changes of a single measurement are pointed out.
_MIN_NOTABLE_CHANGE = 0.25


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A model's row in the table of times.

    Attributes:
        a, b: each side's median and spread.
        floor: the largest difference of A against A (control).
        rounds: the number of process starts, and of replaced blocks.
        own_way: the result in the spec's own way, if this result contradicts the verdict.
        worker: the cluster worker that measured the model, if any.
        work: the change of instructions; None if they were not counted.
        dispatched, outside: the difference in instructions inside dispatches, and outside of dispatches.
    """

    model: str
    verdict: str
    a: str = ""
    b: str = ""
    ratio: str = ""
    span: str = ""
    floor: str = ""
    rounds: str = ""
    reason: str = ""
    cpus: str = ""
    own_way: str = ""
    worker: str = ""
    work: str | None = None
    dispatched: str = ""
    outside: str = ""
    interval: IntervalBar | None = None


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A model's metric on both sides, as text that is empty if unknown; `change` is in per cent, or `new`."""

    model: str
    figure: str
    a: str
    b: str
    change: str
    notable: bool


def list_rows(record: ComparisonRecord) -> list[TimeRow]:
    """Return a row for every model of a comparison, in the order of interest."""
    rows = []
    for model in record.prepared.models:
        if model in record.work_verdicts:
            rows.append(_make_work_row(model, record.work_verdicts[model]))
        elif model in record.verdicts:
            rows.append(_make_time_row(model, record.verdicts[model], record.get_worker(model)))
        else:
            rows.append(TimeRow(model, "not measured", reason=_explain_missing_verdict(record, model)))
    rows += [TimeRow(model, "not measured", reason=reason) for model, reason in record.prepared.left_out.items()]
    rows += [TimeRow(model, _NO_EFFECT, reason=_SAME_BYTES) for model in record.prepared.no_effect]
    for row in rows:
        if row.verdict not in _VERDICT_ORDER:
            raise GauntletError(
                f"{JOURNAL}: the verdict of {row.model}, {row.verdict!r}, is unknown to this version",
                "It was written by another version of this toolkit, or edited; start a new comparison.",
            )
    return sorted(rows, key=lambda row: (_VERDICT_ORDER.index(row.verdict), row.model))


def _explain_missing_verdict(record: ComparisonRecord, model: str) -> str:
    if blocks := record.block_counts[model]:
        return f"cut short after {blocks} blocks of rounds; `compare --resume` continues with them"
    if model in record.interrupted_workers:
        hint = "`compare --resume --cluster …` measures it from the beginning"
        return f"cut short while {record.interrupted_workers[model]} was measuring it; {hint}"
    return (record.end.problem if record.end else "") or "it was not reached"


def _make_time_row(model: str, verdict: TimeVerdictRecord, worker: str) -> TimeRow:
    reason, work, figures = verdict.reason, verdict.work.change if verdict.work else None, verdict.figures
    if figures is None:
        return TimeRow(model, verdict.verdict, reason=reason, worker=worker, work=work)
    floor, control_interval = "", None
    if verdict.control:
        control = verdict.control.figures
        floor = "unbounded"
        if control.low and control.high:
            control_interval = control.low, control.high
            floor = f"±{100 * max(1 / control.low - 1, control.high - 1, 0):.1f} %"
        if verdict.verdict in ("slower", "faster"):
            span = format_span(control.low, control.high)
            reason += f"; A against itself: {format_ratio(control.ratio)} ({span})"
    # A block has four rounds; control blocks (A against A) count too, and so do replaced blocks.
    rounds = f"{4 * (verdict.blocks + verdict.control_blocks)}"
    if verdict.replaced_blocks:
        rounds += f" (+{verdict.replaced_blocks} blocks replaced)"
    if verdict.marked_blocks:
        rounds += f" ({verdict.marked_blocks} blocks disturbed)"
    spec_note = ""
    if verdict.own_way is not None and verdict.own_way.contradicts:
        spec = verdict.own_way.figures
        change = f"{format_span(spec.low, spec.high)} ({100 * spec.confidence:g} %, {spec.looked_at} blocks)"
        spec_note = f"run as in its spec, B is {change}, which contradicts this verdict"
    a, b = (figures.time_ms[side] for side in SIDE_NAMES)
    return TimeRow(
        model=model,
        verdict=verdict.verdict,
        a=f"{format_milliseconds(a.median)} ±{100 * a.spread:.0f} %",
        b=f"{format_milliseconds(b.median)} ±{100 * b.spread:.0f} %",
        ratio=format_ratio(figures.ratio),
        span=format_span(figures.low, figures.high),
        floor=floor,
        rounds=rounds,
        reason=reason,
        cpus=format_cpus(verdict.cpus),
        own_way=spec_note,
        worker=worker,
        work=work,
        interval=IntervalBar(figures.low, figures.ratio, figures.high, control_interval, verdict.verdict),
    )


def _make_work_row(model: str, verdict: WorkVerdict) -> TimeRow:
    a, b = verdict.counts
    difference = f"{b - a:+,}"
    reason = f"{difference} instructions a call ({verdict.change_by_part})"
    if verdict.with_fma:
        fused_a, fused_b = (verdict.with_fma[side] for side in SIDE_NAMES)
        reason += f"; with fused multiply-adds {fused_b - fused_a:+,} ({format_count_change(fused_a, fused_b)})"
    outside = verdict.outside
    return TimeRow(
        model=model,
        verdict=verdict.verdict,
        a=format_count(a),
        b=format_count(b),
        ratio=verdict.change,
        span=difference,
        reason=reason,
        dispatched="" if outside is None else f"{b - a - outside:+,}",
        outside="" if outside is None else f"{outside:+,}",
        interval=IntervalBar(b / a, b / a, b / a, None, verdict.verdict),
    )


def _list_figure_changes(record: ComparisonRecord, cells: _CellPair) -> list[FigureChange]:
    """List the changes of metrics between the sides' runs, by model; changed verdicts come first."""
    a, b = cells
    changes: list[FigureChange] = []
    # Rounds of compiles measure the compiler's memory more precisely.
    skipped_figures = (Figure.COMPILE_MEMORY,) if record.opening.metric == Figure.COMPILE_TIME.row.metric else ()
    for model, verdict in record.verdicts.items() if skipped_figures else ():
        a_peak, b_peak = (verdict.peak_rss_bytes.get(side) for side in SIDE_NAMES)
        if a_peak and b_peak:
            changes.append(_compare_figure(model, Figure.COMPILE_MEMORY, a_peak, b_peak, mark=""))
    for model, cell_a in a.items():
        cell_b = b.get(model)
        if cell_b is None:
            continue
        if cell_a.verdict_text != cell_b.verdict_text:
            changes.append(FigureChange(model, "checks", cell_a.verdict_text, cell_b.verdict_text, "", notable=True))
        for figure in Figure:
            value_a, value_b = cell_a.figures.values.get(figure), cell_b.figures.values.get(figure)
            if figure.row.compare_title and figure not in skipped_figures and (value_a, value_b) != (None, None):
                changes.append(_compare_figure(model, figure, value_a, value_b))
    return changes


def _compare_figure(model: str, figure: Figure, a: float | None, b: float | None, mark: str = "~") -> FigureChange:
    # The mark is for inexact values: each is one measurement, perhaps during other work, or from another day.
    name, write = figure.row.compare_title, figure.row.write
    text_a, text_b = "" if a is None else write(a), "" if b is None else write(b)
    if a is None or b is None or math.isnan(a) or math.isnan(b):
        return FigureChange(model, name, text_a, text_b, "", notable=text_a != text_b)
    if a == b:
        return FigureChange(model, name, text_a, text_b, "", notable=False)
    ratio = b / a if a > 0 else math.inf
    change = format_ratio(ratio) if math.isfinite(ratio) else "new"
    change = change if figure.is_exact else f"{mark}{change}"
    is_count = figure.is_exact and figure is not Figure.ERROR
    return FigureChange(model, name, text_a, text_b, change, notable=is_count or abs(ratio - 1) > _MIN_NOTABLE_CHANGE)


def make_comparison_reports(folder: Path) -> Reports:
    """Return the reports of the comparison in a folder.

    Raises:
        GauntletError: the comparison's log or a side's journal cannot be read.
    """
    record = read_comparison(folder)
    a, b = (
        {chain.id: make_matrix_cell(chain) for chain in read_outcome(side.run).chains} if side.run else {}
        for side in record.sides
    )
    rows, figures = list_rows(record), _list_figure_changes(record, (a, b))
    codes = {model: compare_code(cell.figures.code, b[model].figures.code) for model, cell in a.items() if model in b}
    document = _make_comparison_document(record, rows, figures, codes)
    files = {
        **make_pages("comparison", lambda: document, folder),
        "comparison.json": lambda: _format_comparison_json(record, rows, figures, codes),
        "junit.xml": lambda: _format_comparison_junit(record, rows),
    }
    # An interrupted comparison has no exit code: it counts as an error.
    code = ExitCode.ERROR if document.exit_code is None else document.exit_code
    return Reports(files, lambda _: document, code, document.answer)


def _format_comparison_json(
    record: ComparisonRecord, rows: Sequence[TimeRow], figures: Sequence[FigureChange], codes: _CodeChanges
) -> str:
    """Return the complete comparison as JSON (`docs/how-to/compare.md` has the fields)."""
    opening = record.opening
    document: dict[str, Any] = {
        "schema": 1,
        "sides": {side.name: {"asked": side.asked, "toolchain": side.toolchain} for side in record.sides},
        "options": opening.options,
        "rules": opening.rules.as_dict(),
        "rounds": opening.rounds.as_dict(),
        "machine": opening.machine.as_dict(),
        "workers": {work.worker: machine for work in record.measured.values() if (machine := work.machine.as_dict())},
        "lock_folder": opening.lock_folder,
        "models": {
            model: {**verdict.as_dict(), "worker": record.get_worker(model)}
            for model, verdict in (record.verdicts | record.work_verdicts).items()
        },
        "not_measured": {row.model: row.reason for row in rows if row.verdict == "not measured"},
        "no_effect": record.prepared.no_effect,
        "summary": record.summary.as_dict() if record.summary else {},
        "changes": [asdict(item) for item in figures],
        "code": {model: [asdict(change) for change in changes] for model, changes in codes.items() if changes},
        "where": {model: item.as_dict() for model, item in record.where.items()},
        "exit_code": record.end.exit_code if record.end else None,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _make_comparison_document(
    record: ComparisonRecord, rows: Sequence[TimeRow], figures: Sequence[FigureChange], codes: _CodeChanges
) -> Document:
    opening, first = record.opening, record.first
    code = record.end.exit_code if record.end else None
    subject = {"compile-time": "compile time of ", "instructions": "instructions of "}.get(opening.metric, "")
    names = [f"{side.name} = {side.title}" for side in reversed(record.sides)]
    meaning = "B does more work" if opening.metric == "instructions" else "B is slower"
    return Document(
        f"Comparison: {subject}{', '.join(names)}",
        _format_headline(record, rows),
        (),
        (*_show_comparison(record, rows, figures), *_make_code_blocks(codes)),
        exit_code=code,
        meaning=meaning if code is ExitCode.FAILED else "",
        provenance=make_provenance(
            ", ".join(side.asked for side in record.sides),
            replace(opening, command=first.command, cwd=first.cwd, version=first.version),
            ("comparison.md", "comparison.json", "junit.xml"),
            record.end,
        ),
    )


def _show_comparison(
    record: ComparisonRecord, rows: Sequence[TimeRow], figures: Sequence[FigureChange]
) -> Iterator[Block]:
    rules = tuple((line,) for line in (*_list_rule_lines(record), *dict.fromkeys(record.remarks)))
    if rules:
        yield Details("How it was judged", (Items(rules),), brief=True)
    yield from make_unaffected_blocks(record.prepared.no_effect, "", _SAME_BYTES)
    yield from _show_rows(record, [row for row in rows if row.verdict != _NO_EFFECT])
    reasons = []
    for row in rows:
        # These are the notes of the cluster worker that measured the model.
        notes = record.measured[row.model].notes if row.model in record.measured else ()
        if row.verdict not in ("same", "same work", _NO_EFFECT) or row.own_way or notes:
            details = "; ".join(filter(None, (row.reason, row.own_way, *notes)))
            reasons.append((Name(row.model), f" {row.verdict}: {details}"))
    if reasons:
        yield from (Heading("Why"), Items(tuple(reasons)))
    verdicts = record.verdicts | record.work_verdicts
    for model, location in record.where.items():
        verb = "does" if model in record.work_verdicts else "is"
        yield Heading(f"Where {model} {f'{verb} {verdicts[model].verdict}' if model in verdicts else 'differs'}")
        yield from make_dispatch_blocks(location.dispatches)
        yield from make_dispatch_blocks(location.work) if location.work else ()
        yield from make_compile_blocks(location.compile)
    notable = tuple(astuple(change)[:-1] for change in figures if change.notable)
    if notable:
        yield from (Heading("What else changed"), Paragraph((_CHANGE_NOTE,)), Table(_CHANGE_COLUMNS, notable))


def _show_rows(record: ComparisonRecord, rows: Sequence[TimeRow]) -> Iterator[Block]:
    by_work, rules = record.opening.metric == "instructions", record.opening.rules
    # Pictures of intervals mark the band of `same`, and the limits for slower and faster.
    margins = (rules.least_work,) if by_work else (rules.least, rules.band)
    # A path is shortened to its last part.
    heads = {side.name.lower(): f"{side.name} {side.asked.rpartition('/')[2]}" for side in record.sides}
    heads |= _WORK_TITLES if by_work else {}
    columns = {
        name: replace(column, title=heads.get(name, column.title), unit="" if by_work else column.unit, margins=margins)
        for name, column in _ROW_COLUMNS.items()
        if by_work or name not in _WORK_ONLY
    }
    yield from _make_row_table(columns, rows)
    if any(row.interval for row in rows):
        shares = (100 * share for share in (rules.least, rules.band, rules.alpha, rules.least_work))
        yield PageOnly((Paragraph(((_WORK_LEGEND if by_work else _LEGEND).format(*shares),)),))
    if rows and _JUNIT_KINDS[rows[0].verdict] == "failure":
        # Next, one searches for the slower dispatch, and for the release.
        find_dispatch = f"gauntlet explain --slower {record.name}" if record.opening.metric == "time" else ""
        ends = [side.asked for side in record.sides]
        yield from list_next_steps((find_dispatch, format_bisect_command(ends, record.opening.metric, rows[0].model)))
    if measured_rows := [row for row in rows if row.rounds]:
        yield Details("Rounds and CPUs", _make_row_table(_ROUND_COLUMNS, measured_rows))


def _make_row_table(columns: Mapping[str, Column], rows: Sequence[TimeRow]) -> tuple[Table, ...]:
    cells = tuple(tuple(getattr(row, name) or None for name in columns) for row in rows)
    return (Table(tuple(columns.values()), cells).filled_form,) if rows else ()


def make_unaffected_blocks(models: Sequence[str], side: str, explanation: str) -> tuple[Block, ...]:
    """Return a line about the models on which the variants of a side have no effect; nothing without such models."""
    names = tuple(part for model in models for part in (", ", Name(model)))[1:]
    subject = f"{side}: no" if side else "No"
    text = f"{subject} effect on {pluralize(len(models), 'model')} ({explanation}): "
    return (Paragraph((text, *names)),) if models else ()


def _format_headline(record: ComparisonRecord, rows: Sequence[TimeRow]) -> str:
    # The verdicts are in the order of the rows: the most interesting first.
    counts = Counter(row.verdict for row in rows)
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no models"
    mean = record.summary.geometric_mean if record.summary else None
    if mean and mean.models > 1:
        span = format_span(mean.low, mean.high)
        text += f"; geometric mean {format_ratio(mean.ratio)} ({span}, {100 * mean.confidence:g} %)"
    if record.end is None:
        return f"{text}; unfinished: it was killed, or is still running"
    return f"{text}; interrupted" if record.end.interrupted else text


def _list_rule_lines(record: ComparisonRecord) -> list[str]:
    rules, rounds = record.opening.rules, record.opening.rounds
    if record.opening.metric == "instructions":
        return _list_work_lines(record)
    if record.opening.metric == "compile-time":
        process = "one compile per process"
    else:
        process = f"{rounds.repetitions} repetitions of {rounds.min_time:g} s per process"
    cpu_text = f"on CPU {format_cpus(rounds.cpus)}" if rounds.cpus else "on all CPUs"
    if rounds.choose:
        # On a board, all models run in this way.
        is_own = record.verdicts and not any(verdict.cpus for verdict in record.verdicts.values())
        cpu_text = "on the CPUs of the specs" if is_own else "on the CPUs where A against itself is steadiest"
    analysis_points = ", ".join(map(str, rules.looks))
    allowance = f"not slower: below +{100 * rules.allow:g} %; "
    works = [verdict.work for verdict in record.verdicts.values() if verdict.work]
    return [
        *list_lock_remarks(record.opening.lock_folder),
        *(f"work: {line}" for line in _list_counter_lines(works)),
        (
            f"slower or faster: more than ±{100 * rules.least:g} %; same: within ±{100 * rules.band:g} %; {allowance}"
            f"wrong in at most {100 * rules.alpha:g} % of comparisons"
        ),
        (
            f"blocks of four process starts (A B B A or B A A B), judged after {analysis_points}; "
            f"{process}, {cpu_text}; at most {format_duration(rules.budget_seconds)} per start"
        ),
    ]


def _list_work_lines(record: ComparisonRecord) -> list[str]:
    """Return the rules for instructions, and the counter that was used."""
    rules = record.opening.rules
    fraction, min_outside = rules.outside
    rule = f"more or less work: a dispatch changes by more than ±{100 * rules.least_work:g} %"
    rule += f"; outside of dispatches, by more than ±{100 * fraction:g} % and ±{format_count(min_outside)}"
    return [f"{line}; {rule}; outputs are not checked" for line in _list_counter_lines(record.work_verdicts.values())]


def _list_counter_lines(works: Iterable[WorkVerdict]) -> list[str]:
    """Return the counters, each with the CPU for which the counted modules were compiled."""
    counter_cpus = sorted({(work.counter, work.cpu) for work in works})
    labels = ((counter, f"for {cpu}" if cpu else "as its spec says") for counter, cpu in counter_cpus)
    return [f"instructions of one call on one thread, counted by {counter}, compiled {cpu}" for counter, cpu in labels]


def _format_comparison_junit(record: ComparisonRecord, rows: Sequence[TimeRow]) -> str:
    """Return the complete document with its XML declaration; encode it as UTF-8."""
    name = "compare " + " ".join(side.asked for side in record.sides)
    properties = {f"{side.name}.{key}": side.toolchain.get(key) for side in record.sides for key in _TOOLCHAIN_FIELDS}
    rules = {f"rules.{key}": json.dumps(value) for key, value in sorted(record.opening.rules.as_dict().items())}
    suite = make_suite(
        name,
        [_make_case(row, record) for row in rows],
        {key: value for key, value in properties.items() if value} | rules,
        timestamp=join_lines(record.opening.time),
        hostname=join_lines(record.opening.machine.host),
    )
    # Pass no duration: the time that rounds take says nothing about a model.
    return format_junit(f"iree-gauntlet {name}", [suite])


def _make_case(row: TimeRow, record: ComparisonRecord) -> junit_xml.TestCase:
    metric = record.opening.metric
    figures = f"A {row.a} ms, B {row.b} ms: {row.ratio} ({row.span}); A against A {row.floor}"
    if metric == "instructions":
        figures = "; ".join((f"A {row.a}, B {row.b} instructions: {row.ratio}", *_list_work_lines(record)))
    work, worker = f"work {row.work}" if row.work else "", f"measured on {row.worker}" if row.worker else ""
    figures = "; ".join(filter(None, (figures if row.ratio else "", work, row.own_way, worker)))
    case = junit_xml.TestCase(name=metric, classname=join_lines(f"compare.{row.model}"), stdout=figures)
    message = join_lines(f"{row.verdict}: {row.ratio} {row.reason}" if row.ratio else f"{row.verdict}: {row.reason}")
    if kind := _JUNIT_KINDS[row.verdict]:
        add = case.add_failure_info if kind == "failure" else case.add_error_info
        add(message, figures, row.verdict)
    return case


def make_dispatch_blocks(comparison: DispatchComparison) -> tuple[Block, ...]:
    """Return the rows that explain the difference, after a summary; without a profile, a line with the reason."""
    profiles, unit = comparison.difference, comparison.unit
    if profiles is None:
        return (Paragraph((f"no profile: {comparison.reason}",)),)
    shown_unit = "ms" if unit == "ms" else ""
    columns = (
        Column("dispatch", ColumnKind.NAME),
        Column("A", ColumnKind.NUMBER, shown_unit, drop_order=2),
        Column("B", ColumnKind.NUMBER, shown_unit, drop_order=1),
        Column("", ColumnKind.DRAWN),
        Column("difference", ColumnKind.NUMBER, shown_unit),
        # Shares are for profiles, which explain the total difference; counts judge each dispatch separately.
        Column("of the whole", ColumnKind.SHARE, drop_order=3)
        if shown_unit
        else Column("B against A", ColumnKind.NUMBER, drop_order=3),
        Column("place", drop_order=3),
    )
    # Counts are per function, and a function may be dispatched several times.
    noun = "dispatches" if shown_unit else "functions of dispatches"
    entries: list[tuple[str, DispatchChange | OtherDispatches, str | None]] = [
        (_name_row(row, noun), row, row.place or None) for row in profiles.rows
    ]
    entries.append((_name_others(profiles.others, noun), profiles.others, None))
    whole_ns = profiles.b_ns - profiles.a_ns
    min_difference = _MIN_SHOWN_SHARE * abs(whole_ns) if shown_unit else 0
    rows: list[tuple[Cell, ...]] = []
    for name, row, place in entries:
        difference = row.b_ns - row.a_ns
        share: Cell = difference / whole_ns if whole_ns else None
        if not shown_unit:
            share = format_count_change(row.a_ns, row.b_ns) if row.a_ns else None
        if abs(difference) > min_difference:
            bar = Bar(difference, "slower" if difference > 0 else "faster")
            texts = (format_dispatch_cost(cost, unit) for cost in (row.a_ns, row.b_ns))
            rows.append((name, *texts, bar, _sign_number(difference, unit), share, place))
    notes = _list_notes(profiles)
    line = Paragraph((_format_profile_line(profiles, unit),))
    table = (Table(columns, tuple(rows)).filled_form,) if rows else ()
    return (line, *table, *([Notes(tuple(notes))] if notes else []))


def make_compile_blocks(changes: Sequence[CompileChange]) -> tuple[Block, ...]:
    """Return the statistics of the compile that differ."""
    if not changes:
        return (Paragraph(("The compiler's statistics and the module's size are the same.",)),)
    rows = []
    for change in changes:
        ratio = change.ratio
        # Show bytes if larger units would round both values to the same text.
        in_bytes = ratio is not None and 1 / _MAX_EXACT_RATIO < ratio < _MAX_EXACT_RATIO
        figures = (_format_figure(value, change.unit, exact=in_bytes) for value in (change.a, change.b))
        rows.append((change.name, *figures, None if ratio is None else f"{ratio:.3f}"))
    return Paragraph(("The compiles differ in:",)), Table(_COMPILE_COLUMNS, tuple(rows))


def _make_code_blocks(codes: _CodeChanges) -> tuple[Block, ...]:
    """Return the dispatches whose code changed, by model, the worst first."""
    rows: list[tuple[Cell, ...]] = []
    for model, changes in codes.items():
        rows += [(model, change.name, change.description) for change in changes[:_MAX_CODE_CHANGES]]
        if len(changes) > _MAX_CODE_CHANGES:
            rows.append((model, f"{len(changes) - _MAX_CODE_CHANGES} more", None))
    if not rows:
        return ()
    return Heading("Code of dispatches"), Paragraph((_CODE_NOTE,)), Table(_CODE_COLUMNS, tuple(rows))


def _format_profile_line(profiles: DispatchDifference, unit: str) -> str:
    a, b, count = profiles.a_ns, profiles.b_ns, len(profiles.rows)
    method = "counted" if unit != "ms" else "profiled"
    a_text, b_text, difference = format_dispatch_cost(a, unit), format_dispatch_cost(b, unit), _sign_number(b - a, unit)
    times = f"{method}: {a_text} {unit} in A, {b_text} {unit} in B ({difference} {unit})"
    if unit != "ms":
        return times
    if not count:
        return f"{times}; no dispatch stands out"
    explained_ns = sum(row.difference_ns for row in profiles.rows)
    rows = "this row makes" if count == 1 else f"these {count} rows make"
    share = f"{100 * explained_ns / (b - a):.0f} %" if b != a else "nothing"
    return f"{times}; {rows} up {share} of the difference"


def _list_notes(profiles: DispatchDifference) -> list[str]:
    """Return the notes; the first compares the profile with the difference measured without the profiler."""
    notes = list(profiles.notes)
    if profiles.measured is not None:
        a, b = profiles.measured.a_ns, profiles.measured.b_ns
        a_text, b_text = format_dispatch_cost(a, "ms"), format_dispatch_cost(b, "ms")
        cost = format_factor((profiles.a_ns + profiles.b_ns) / (a + b)) if a + b else "–"
        note = f"the profiler costs {cost}: without it {a_text} ms in A, {b_text} ms in B ({_sign_number(b - a)} ms)"
        if b != a and not 1 / _MAX_PROFILE_RATIO <= (profiles.b_ns - profiles.a_ns) / (b - a) <= _MAX_PROFILE_RATIO:
            note += "; the profile shows another difference, and does not explain this one"
        notes.insert(0, note)
    return notes


def _name_others(others: OtherDispatches, noun: str) -> str:
    a, b = others.a_count, others.b_count
    count = f"the other {a if a == b else f'{a} → {b}'} {noun}"
    if a == b == 1:
        count = "the other dispatch" if noun == "dispatches" else "the other function of dispatches"
    if not others.outside:
        return count
    return f"{count}, and what is outside of them" if a or b else "outside of dispatches"


def _name_row(row: DispatchChange, noun: str) -> str:
    name = join_lines(row.name, 100)
    if row.match in ("new", "gone"):
        return f"{name} ({row.match})"
    if row.a_count != row.b_count:
        return f"{name} ({row.a_count} → {row.b_count} {noun})"
    return f"{name} ({row.b_count} {noun})" if row.b_count > 1 else name


def _sign_number(value: int, unit: str = "ms") -> str:
    return f"{'+' if value > 0 else ''}{format_dispatch_cost(value, unit)}"


def _format_figure(value: float | None, unit: str, *, exact: bool) -> str:
    if value is None:
        return "not reported"
    if unit == "bytes" and not exact:
        return format_bytes(value)
    return f"{format_count(value)} {unit}".rstrip()
