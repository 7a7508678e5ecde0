"""The reports of a comparison: one document on the terminal, as Markdown and as a page; JSON; JUnit."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import junit_xml

from iree_gauntlet.document import (
    Bars,
    Block,
    Cell,
    Column,
    ColumnKind,
    Document,
    Folded,
    Heading,
    Items,
    Name,
    Notes,
    OnPage,
    Paragraph,
    Table,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import byte_size, clean, cpus_text, dispatch_cost, duration, milliseconds, one_line, whole
from iree_gauntlet.journal_events import RunEvent
from iree_gauntlet.records.compare_record import ComparisonRecord, read_comparison
from iree_gauntlet.records.outcome import lock_remark
from iree_gauntlet.reports.compare_rows import TimeRow, changes, ratio_text, span_text, time_rows, verdict_counts
from iree_gauntlet.reports.junit import schema_document
from iree_gauntlet.reports.provenance import RecordOrigin, provenance, seconds_between
from iree_gauntlet.reports.report_files import Reports, pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


_TIME_COLUMNS = (
    Column("verdict", ColumnKind.VERDICT),
    Column("model", ColumnKind.NAME),
    # With their spreads, so that they are text.
    Column("A", ColumnKind.NUMBER, "ms", rank=2),
    Column("B", ColumnKind.NUMBER, "ms", rank=1),
    Column("B against A", ColumnKind.NUMBER),
    Column("interval", ColumnKind.NUMBER, rank=3),
    Column("A against A", ColumnKind.NUMBER, rank=4),
    Column("CPUs", rank=6),
    Column("rounds", rank=5),
)
_CHANGE_COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("figure"),
    *(Column(title, ColumnKind.NUMBER) for title in ("A", "B", "change")),
)
_CHANGE_NOTE = (
    "Sizes and counts are exact. ~: one measurement a side, from when the module was made, perhaps with other work "
    "at the same time. Compile times are compared in rounds alone: --metric compile-time."
)
_LEGEND = (
    "A dot is B against A, its line the interval; the dark band is A against itself, the pale one what counts as the "
    "same (±{1:g} %), dotted lines from where on B is slower or faster (±{0:g} %). Far from 0 the scale is denser."
)
_ERRORS = ("error", "inconclusive", "not measured")
_FAILURES = ("slower", "more work")
_WORK_COLUMNS = (
    Column("verdict", ColumnKind.VERDICT),
    Column("model", ColumnKind.NAME),
    Column("A", ColumnKind.NUMBER, rank=2),
    Column("B", ColumnKind.NUMBER, rank=1),
    Column("B against A", ColumnKind.NUMBER),
    Column("difference", ColumnKind.NUMBER, rank=3),
)
_COMPILE_COLUMNS = (Column("figure"), *(Column(title, ColumnKind.NUMBER) for title in ("A", "B", "B / A")))
_NS_PER_MS = 1e6
_LIKE = 1.2
# Times that a difference under the profiler may be larger or smaller than the measured one.
_UNLIKE = 2.0


def comparison_reports(folder: Path) -> Reports:
    """The reports of the comparison in a folder.

    Raises:
        GauntletError: its log, or a journal of a side, cannot be read.
    """
    record = read_comparison(folder)
    document = _make_comparison_document(record)
    files = {
        **pages("comparison", lambda: document),
        "comparison.json": lambda: _format_comparison_json(record),
        "junit.xml": lambda: _format_comparison_junit(record),
    }
    # One that was cut short has judged nothing.
    code = ExitCode.ERROR if document.exit_code is None else document.exit_code
    return Reports(files, lambda _: document, code, document.answer)


def _format_comparison_json(record: ComparisonRecord) -> str:
    """Everything of it as one document (`docs/how-to/compare.md` has the fields)."""
    document: dict[str, Any] = {
        "schema": 1,
        "sides": {side.name: {"asked": side.asked, "toolchain": side.toolchain} for side in record.sides},
        "options": record.options,
        "rules": record.opening.get("rules") or {},
        "rounds": record.opening.get("rounds") or {},
        "machine": record.opening.get("machine") or {},
        "workers": {item["worker"]: item["machine"] for item in record.measured.values() if item["machine"]},
        "lock_folder": record.opening.get("lock_folder") or "",
        "models": {
            model: {**_without_event(verdict), "worker": record.worker_of(model)}
            for model, verdict in record.verdicts.items()
        },
        "not_measured": {row.model: row.reason for row in time_rows(record) if row.verdict == "not measured"},
        "summary": _without_event(record.summary),
        "changes": [asdict(item) for item in changes(record)],
        "where": {model: _without_event(item) for model, item in record.where.items()},
        "exit_code": record.exit_code,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _make_comparison_document(record: ComparisonRecord) -> Document:
    """What people read of it."""
    rows = time_rows(record)
    rules = tuple((line,) for line in (*_list_rule_lines(record), *dict.fromkeys(record.remarks)))
    blocks: list[Block] = [Folded("How it was judged", (Items(rules),), brief=True)] if rules else []
    margins = _list_margins(record)
    by_work = record.options.get("metric") == "instructions"
    blocks.append(_work_table(rows, margins) if by_work else _time_table(rows, margins))
    if len(margins) > 1 and any(row.interval for row in rows):
        blocks.append(OnPage((Paragraph((_LEGEND.format(*(100 * margin for margin in margins)),)),)))
    reasons = []
    for row in rows:
        notes = _notes_of(record, row.model)
        if row.verdict not in ("same", "same work") or row.own_way or notes:
            said = "; ".join(filter(None, (row.reason, row.own_way, *notes)))
            reasons.append((Name(row.model), f" {row.verdict}: {said}"))
    blocks += [Heading("Why"), Items(tuple(reasons))] if reasons else []
    for model, where in record.where.items():
        verdict = str(record.verdicts[model]["verdict"])
        blocks.append(Heading(f"Where {model} {'does' if verdict.endswith('work') else 'is'} {verdict}"))
        counted = dispatch_blocks(where["work"]) if "work" in where else ()
        blocks += [*dispatch_blocks(where["dispatches"]), *counted, *compile_blocks(where["compile"])]
    notable = tuple((item.model, item.figure, item.a, item.b, item.change) for item in changes(record) if item.notable)
    if notable:
        blocks += [Heading("What else changed"), Paragraph((_CHANGE_NOTE,)), Table(_CHANGE_COLUMNS, notable)]
    code = None if record.exit_code is None else ExitCode(record.exit_code)
    worse = "B does more work" if record.options.get("metric") == "instructions" else "B is slower"
    return Document(
        _format_title(record),
        _format_headline(record, rows),
        (),
        tuple(blocks),
        exit_code=code,
        meaning=worse if code is ExitCode.FAILED else "",
        provenance=provenance(
            ", ".join(side.title for side in record.sides),
            _read_began(record),
            ("comparison.md", "comparison.json", "junit.xml"),
            seconds_between(record.opening, record.end),
        ),
    )


def _read_began(record: ComparisonRecord) -> RecordOrigin:
    """How it was started: the runs of its sides have the command."""
    run = next((side.run.runs[0] for side in record.sides if side.run and side.run.runs), RunEvent())
    own = RecordOrigin.from_dict(record.opening)
    machine = own.machine if record.opening.get("machine") else run.machine
    return RecordOrigin(own.time or run.time, machine, run.command, run.cwd, run.version)


def _list_margins(record: ComparisonRecord) -> tuple[float, ...]:
    """What a picture of intervals marks: the band of `same`, and from when on B is slower or faster."""
    names = ("least_work",) if record.options.get("metric") == "instructions" else ("least", "band")
    rules = record.opening.get("rules") or {}
    return tuple(float(rules[name]) for name in names if name in rules)


def _time_table(rows: Sequence[TimeRow], margins: tuple[float, ...]) -> Table:
    cells: list[tuple[Cell, ...]] = [
        (row.verdict, row.model, row.a, row.b, row.ratio, row.span, row.floor, row.cpus, row.rounds) for row in rows
    ]
    columns: tuple[Column, ...] = _TIME_COLUMNS
    if any(row.work for row in rows):
        columns = (*columns[:5], Column("work", ColumnKind.NUMBER, rank=2), *columns[5:])
        cells = [(*cell[:5], row.work or None, *cell[5:]) for cell, row in zip(cells, rows, strict=True)]
    if any(row.worker for row in rows):
        columns = (*columns, Column("worker", rank=7))
        cells = [(*cell, row.worker) for cell, row in zip(cells, rows, strict=True)]
    return _with_intervals("B: faster · slower", columns, cells, rows, margins)


def _work_table(rows: Sequence[TimeRow], margins: tuple[float, ...]) -> Table:
    cells = [(row.verdict, row.model, row.a, row.b, row.ratio, row.span) for row in rows]
    return _with_intervals("B: less · more work", _WORK_COLUMNS, cells, rows, margins)


def _with_intervals(
    title: str,
    columns: tuple[Column, ...],
    cells: Sequence[tuple[Cell, ...]],
    rows: Sequence[TimeRow],
    margins: tuple[float, ...],
) -> Table:
    """A table with the intervals behind the models, where a page draws them."""
    picture = Column(title, ColumnKind.DRAWN, margins=margins)
    drawn = tuple((*cell[:2], row.interval, *cell[2:]) for cell, row in zip(cells, rows, strict=True))
    return Table((*columns[:2], picture, *columns[2:]), drawn)


def _notes_of(record: ComparisonRecord, model: str) -> list[str]:
    """What happened on the way to a model's rounds, where a cluster took them."""
    return [str(note) for note in (record.measured.get(model) or {}).get("notes", ())]


def _format_title(record: ComparisonRecord) -> str:
    metric = str(record.options.get("metric") or "")
    what = {"compile-time": "compile time of ", "instructions": "instructions of "}.get(metric, "")
    names = [f"{side.name} = {side.title}" for side in record.sides]
    return f"Comparison: {what}{', '.join(reversed(names))}" if names else "Comparison"


def _format_headline(record: ComparisonRecord, rows: list[TimeRow]) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(rows).items()) or "no models"
    mean = record.summary.get("geometric_mean")
    if mean and mean["models"] > 1:
        span = span_text(mean["low"], mean["high"])
        counts += f"; geometric mean {ratio_text(mean['ratio'])} ({span}, {100 * mean['confidence']:g} %)"
    if record.end is None:
        return f"{counts}; unfinished: it was killed, or still runs"
    return f"{counts}; interrupted" if record.end.get("interrupted") else counts


def _list_rule_lines(record: ComparisonRecord) -> list[str]:
    rules, rounds = record.opening.get("rules") or {}, record.opening.get("rounds") or {}
    if not rules or not rounds:
        return []
    if record.options.get("metric") == "instructions":
        return _work_lines(record)
    if record.options.get("metric") == "compile-time":
        process = "a compile a process"
    else:
        process = f"{rounds['repetitions']} repetitions of {rounds['min_time']:g} s a process"
    cpus = rounds.get("cpus") or []
    where = f"on CPU {cpus_text(cpus)}" if cpus else "on all CPUs"
    if rounds.get("choose"):
        where = "on the CPUs where A against itself is steadiest"
    looks = ", ".join(map(str, rules["looks"]))
    allowed = f"not slower: below +{100 * rules['allow']:g} %; " if "allow" in rules else ""
    works = [item["work"] for item in record.verdicts.values() if item.get("work")]
    return [
        *lock_remark(str(record.opening.get("lock_folder") or "")),
        *(f"work: {line}" for line in _list_counted_lines(works)),
        (
            f"slower or faster: beyond ±{100 * rules['least']:g} %; same: within ±{100 * rules['band']:g} %; {allowed}"
            f"wrong in at most {100 * rules['alpha']:g} % of comparisons"
        ),
        (
            f"blocks of four process starts (A B B A or B A A B), looked at after {looks}; "
            f"{process}, {where}; at most {duration(rules['budget_seconds'])} each time it is started"
        ),
    ]


def _work_lines(record: ComparisonRecord) -> list[str]:
    """By what the work is judged, and what has counted it."""
    least = f"more or less work: beyond ±{100 * record.opening['rules']['least_work']:g} %"
    return [f"{line}; {least}; outputs are not checked" for line in _list_counted_lines(record.verdicts.values())]


def _list_counted_lines(counts: Iterable[Mapping[str, Any]]) -> list[str]:
    """What has counted, and of modules for which CPU."""
    counted = {(str(item["counter"]), str(item["cpu"])) for item in counts}
    made = ((counter, f"for {cpu}" if cpu else "as its spec says") for counter, cpu in sorted(counted))
    return [f"instructions of one call on one thread, by {counter}, compiled {cpu}" for counter, cpu in made]


def _without_event(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("event", "time", "chain")}


def _format_comparison_junit(record: ComparisonRecord) -> str:
    """The whole document, with its XML declaration; encode it as UTF-8."""
    rows = time_rows(record)
    name = "compare " + " ".join(side.asked for side in record.sides)
    suite = junit_xml.TestSuite(
        name=one_line(name),
        test_cases=[_make_case(row, record) for row in rows],
        timestamp=one_line(str(record.opening.get("time") or "")),
        hostname=one_line(str((record.opening.get("machine") or {}).get("host") or "")),
        properties={one_line(key): one_line(value, 4096) for key, value in _list_properties(record)},
    )
    root = ET.Element("testsuites", {"name": clean(f"iree-gauntlet {name}"), "tests": str(len(rows))})
    root.set("failures", str(sum(row.verdict in _FAILURES for row in rows)))
    root.set("errors", str(sum(row.verdict in _ERRORS for row in rows)))
    element = suite.build_xml_doc()
    for item in (element, *element.findall("testcase")):
        # The time that rounds took says nothing of the model.
        item.attrib.pop("time", None)
    root.append(element)
    return schema_document(root)


def _make_case(row: TimeRow, record: ComparisonRecord) -> junit_xml.TestCase:
    metric = str(record.options.get("metric") or "time")
    figures = f"A {row.a} ms, B {row.b} ms: {row.ratio} ({row.span}); A against A {row.floor}"
    if metric == "instructions":
        figures = "; ".join((f"A {row.a}, B {row.b} instructions: {row.ratio}", *_work_lines(record)))
    work, worker = f"work {row.work}" * bool(row.work), f"measured on {row.worker}" * bool(row.worker)
    figures = "; ".join(filter(None, (figures if row.ratio else "", work, row.own_way, worker)))
    case = junit_xml.TestCase(name=metric, classname=one_line(f"compare.{row.model}"), stdout=figures)
    message = one_line(f"{row.verdict}: {row.ratio} {row.reason}" if row.ratio else f"{row.verdict}: {row.reason}")
    if row.verdict in _FAILURES:
        case.add_failure_info(message, figures, row.verdict)
    elif row.verdict in _ERRORS:
        case.add_error_info(message, figures, row.verdict)
    return case


def _list_properties(record: ComparisonRecord) -> Iterator[tuple[str, str]]:
    for side in record.sides:
        for key in ("compiler", "compiler_commit", "runtime", "runtime_commit", "identity"):
            if side.toolchain.get(key):
                yield f"{side.name}.{key}", str(side.toolchain[key])
    for key, value in sorted((record.opening.get("rules") or {}).items()):
        yield f"rules.{key}", json.dumps(value)


def dispatch_blocks(record: Mapping[str, Any]) -> tuple[Block, ...]:
    """The rows that explain the difference, under a line that sums them up.

    Args:
        record: what `compared` of `engine/profiling.py` gave; one with a `reason` is a line.
    """
    if "reason" in record:
        return (Paragraph((f"no profile: {record['reason']}",)),)
    notes = _list_notes(record)
    unit = _format_unit(record)
    columns: tuple[Column, ...] = (
        Column("dispatch", ColumnKind.NAME),
        Column("A", ColumnKind.NUMBER, unit, rank=2),
        Column("B", ColumnKind.NUMBER, unit, rank=1),
        Column("A, B", ColumnKind.DRAWN),
        Column("difference", ColumnKind.NUMBER, unit),
        Column("of the whole", ColumnKind.SHARE, rank=3),
    )
    rows = _list_dispatch_rows(record)
    if any(row.get("place") for row in record["rows"]):
        columns = (*columns, Column("place", rank=3))
        places = [str(row.get("place") or "") for row in record["rows"]]
        rows = tuple((*row, place) for row, place in zip_longest(rows, places, fillvalue="") if row)
    return (Paragraph((_format_profile_line(record),)), Table(columns, rows), *([Notes(tuple(notes))] if notes else []))


def compile_blocks(changes: Sequence[Mapping[str, Any]]) -> tuple[Block, ...]:
    """The figures of the compile that differ.

    Args:
        changes: what `CompileChange.as_dict` gave.
    """
    if not changes:
        return (Paragraph(("The compiler's statistics and the module's size are the same.",)),)
    return Paragraph(("The compiles differ in:",)), Table(_COMPILE_COLUMNS, tuple(map(_compile_row, changes)))


def _format_profile_line(record: Mapping[str, Any]) -> str:
    a, b = record["a_ns"], record["b_ns"]
    unit = _format_unit(record)
    how = "counted" if unit != "ms" else "profiled"
    a_text, b_text, more = dispatch_cost(a, unit), dispatch_cost(b, unit), _sign_number(b - a, unit)
    times = f"{how}: {a_text} {unit} in A, {b_text} {unit} in B ({more} {unit})"
    listed = sum(row["b_ns"] - row["a_ns"] for row in record["rows"])
    if not record["rows"]:
        return f"{times}; no dispatch stands out"
    count = len(record["rows"])
    rows = "this row makes" if count == 1 else f"these {count} rows make"
    share = f"{100 * listed / (b - a):.0f} %" if b != a else "nothing"
    return f"{times}; {rows} up {share} of the difference"


def _list_notes(record: Mapping[str, Any]) -> list[str]:
    """What a reader should know, above all where the profile is not about the difference that was measured."""
    notes = [str(note) for note in record["notes"]]
    measured = record.get("measured")
    if measured is not None:
        a, b = measured["a_ns"], measured["b_ns"]
        times = f"{_format_ms(a)} ms in A, {_format_ms(b)} ms in B ({_sign_number(b - a)} ms)"
        note = f"measured without the profiler: {times}"
        seen = record["b_ns"] - record["a_ns"]
        if b != a and not 1 / _UNLIKE <= seen / (b - a) <= _UNLIKE:
            note += "; the profile shows another difference, and does not explain this one"
        notes.insert(0, note)
    return notes


def _list_dispatch_rows(record: Mapping[str, Any]) -> tuple[tuple[Cell, ...], ...]:
    """The listed rows, and one for all others."""
    # A count is of functions, each of which may be dispatched several times.
    noun = "dispatches" if _format_unit(record) == "ms" else "functions of dispatches"
    named = [(_name(row, noun), row) for row in record["rows"]]
    others = record["others"]
    if any(others.values()):
        named.append((_name_other(others, noun), others))
    whole_ns, unit = record["b_ns"] - record["a_ns"], _format_unit(record)
    scale = _NS_PER_MS if unit == "ms" else 1
    rows: list[tuple[Cell, ...]] = []
    for name, row in named:
        times = row["a_ns"] / scale, row["b_ns"] / scale
        difference = row["b_ns"] - row["a_ns"]
        bars = Bars(times, "slower" if difference > 0 else "faster")
        rows.append((name, *times, bars, _sign_number(difference, unit), difference / whole_ns if whole_ns else None))
    return tuple(rows)


def _name_other(others: Mapping[str, Any], noun: str) -> str:
    a, b = others["a_count"], others["b_count"]
    count = f"the other {a if a == b else f'{a} → {b}'} {noun}"
    if not others["outside"]:
        return count
    return f"{count}, and what is outside of them" if a or b else "outside of dispatches"


def _name(row: Mapping[str, Any], noun: str) -> str:
    name = one_line(str(row["name"]), 100)
    if row["match"] in ("new", "gone"):
        return f"{name} ({row['match']})"
    if row["a_count"] != row["b_count"]:
        return f"{name} ({row['a_count']} → {row['b_count']} {noun})"
    return f"{name} ({row['b_count']} {noun})" if row["b_count"] > 1 else name


def _format_unit(record: Mapping[str, Any]) -> str:
    """Of what its dispatches take; what is recorded without one is a time."""
    return str(record.get("unit") or "ms")


def _format_ms(ns: int) -> str:
    return milliseconds(ns / _NS_PER_MS)


def _sign_number(value: int, unit: str = "ms") -> str:
    return f"{'+' * (value > 0)}{dispatch_cost(value, unit)}"


def _compile_row(change: Mapping[str, Any]) -> tuple[Cell, ...]:
    ratio = change["ratio"]
    # To the byte where larger units would show two figures that differ as one.
    exact = ratio is not None and 1 / _LIKE < ratio < _LIKE
    figures = (_format_figure(change[side], change["unit"], exact=exact) for side in ("a", "b"))
    return (str(change["name"]), *figures, None if ratio is None else f"{ratio:.3f}")


def _format_figure(value: float | None, unit: str, *, exact: bool) -> str:
    if value is None:
        return "not reported"
    if unit == "bytes" and not exact:
        return byte_size(value)
    return f"{whole(value)} {unit}".rstrip()
