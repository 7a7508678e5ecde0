"""The reports of a comparison: `comparison.md`, `comparison.json`, `junit.xml`, and what is printed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table
from rich.text import Text

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.reporting.comparison_junit import comparison_junit
from iree_gauntlet.reporting.comparison_rows import changes, ratio_text, span_text, time_rows, verdict_counts
from iree_gauntlet.reporting.figures import duration
from iree_gauntlet.reporting.markdown import code, escape, table
from iree_gauntlet.reporting.outcome import exit_meaning, lock_remark
from iree_gauntlet.reporting.printing import printing
from iree_gauntlet.reporting.report_files import add_to_step_summary, write_report
from iree_gauntlet.reporting.where_slower import (
    compile_lines,
    compile_markdown,
    dispatch_lines,
    dispatch_markdown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import rich.console

    from iree_gauntlet.reporting.comparison import ComparisonRecord
    from iree_gauntlet.reporting.comparison_rows import Change, TimeRow

__all__ = ["REPORT_NAMES", "print_comparison", "write_comparison_reports"]

REPORT_NAMES = ("comparison.md", "comparison.json", "junit.xml")
_STYLES = {"slower": "bold red", "error": "bold magenta", "faster": "green", "inconclusive": "yellow"}
_TIME_HEADER = ("verdict", "model", "A ms", "B ms", "B against A", "interval", "A against A", "rounds")
_CHANGE_HEADER = ("model", "figure", "A", "B", "change")
_RIGHT = frozenset({2, 3, 4, 5, 6})


def write_comparison_reports(
    record: ComparisonRecord, folder: Path, *, environ: Mapping[str, str], step_summary: bool = True
) -> None:
    """Write the reports beside the log; the same log and runs give the same bytes.

    Args:
        record: the comparison.
        folder: where to.
        environ: the environment; names GitHub's summary file in `GITHUB_STEP_SUMMARY`.
        step_summary: append the Markdown to that file, where there is one.

    Raises:
        GauntletError: they cannot be written.
    """
    text = comparison_markdown(record)
    for name, content in zip(REPORT_NAMES, (text, comparison_json(record), comparison_junit(record)), strict=True):
        write_report(folder / name, content, folder)
    if step_summary:
        add_to_step_summary(environ, text)


def comparison_json(record: ComparisonRecord) -> str:
    """Everything of it as one document (`docs/compare.md` has the fields)."""
    document: dict[str, Any] = {
        "schema": 1,
        "sides": {side.name: {"asked": side.asked, "toolchain": side.toolchain} for side in record.sides},
        "options": record.options,
        "rules": record.opening.get("rules") or {},
        "rounds": record.opening.get("rounds") or {},
        "machine": record.opening.get("machine") or {},
        "lock_folder": record.opening.get("lock_folder") or "",
        "models": {model: _without_event(verdict) for model, verdict in record.verdicts.items()},
        "not_measured": {row.model: row.reason for row in time_rows(record) if row.verdict == "not measured"},
        "summary": _without_event(record.summary),
        "changes": [asdict(item) for item in changes(record)],
        "where": {model: _without_event(item) for model, item in record.where.items()},
        "exit_code": record.exit_code,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def comparison_markdown(record: ComparisonRecord) -> str:
    """`comparison.md`."""
    rows = time_rows(record)
    parts = [f"# {_title(record)}", "", f"**{_headline(record, rows)}**", ""]
    parts += [f"- {escape(line)}" for line in _rule_lines(record)]
    cells = [
        (
            f"**{row.verdict}**" if row.verdict in _STYLES else row.verdict,
            code(row.model),
            *(escape(text) for text in (row.a, row.b, row.ratio, row.span, row.floor, row.rounds)),
        )
        for row in rows
    ]
    parts += ["", table(_TIME_HEADER, cells, _RIGHT), ""]
    told = [row for row in rows if row.verdict in ("error", "inconclusive", "not measured", "slower", "faster")]
    if told:
        parts += ["## Why", ""]
        parts += [f"- {code(row.model)} {row.verdict}: {escape(row.reason)}" for row in told]
        parts.append("")
    for model, where in record.where.items():
        parts += [
            f"## Where {escape(model)} is {record.verdicts[model]['verdict']}",
            "",
            dispatch_markdown(where["dispatches"]),
            "",
        ]
        parts += ["The compiles differ in:", "", compile_markdown(where["compile"]), ""]
    notable = [item for item in changes(record) if item.notable]
    if notable:
        parts += ["## What else changed", "", escape(_CHANGE_NOTE), ""]
        shown = [
            (code(item.model), escape(item.figure), escape(item.a), escape(item.b), escape(item.change))
            for item in notable
        ]
        parts += [table(_CHANGE_HEADER, shown, frozenset({2, 3, 4})), ""]
    return "\n".join(parts)


_CHANGE_NOTE = (
    "Sizes and counts are exact. ~: one measurement a side, from when the module was made, perhaps beside other work; "
    "--metric compile-time compares in rounds."
)


def print_comparison(
    record: ComparisonRecord, folder: Path, stream: TextIO, *, environ: Mapping[str, str], width: int | None = None
) -> None:
    """Print what a comparison came to.

    Args:
        record: the comparison.
        folder: where it lies, as the user knows it.
        stream: where to; coloured where it is a terminal and `NO_COLOR` is not set.
        environ: the environment.
        width: columns; None for the terminal's own, or 160 where there is none.
    """
    rows = time_rows(record)
    with printing(stream, environ, width=width) as console:
        _line(console, "")
        _line(console, _title(record), "bold")
        for line in _rule_lines(record):
            _line(console, f"  {line}", "dim")
        _line(console, "")
        console.print(_time_table(rows))
        for row in rows:
            if row.verdict in ("error", "inconclusive", "not measured"):
                _line(console, f"{row.model} {row.verdict}: {row.reason}")
        for model, where in record.where.items():
            _line(console, "")
            _line(console, f"Where {model} is {record.verdicts[model]['verdict']}", "bold")
            for line in (*dispatch_lines(where["dispatches"]), *compile_lines(where["compile"])):
                _line(console, f"  {line}")
        _print_changes(console, [item for item in changes(record) if item.notable])
        _line(console, "")
        _line(console, _headline(record, rows), "bold")
        _line(console, f"reports in {folder}: {', '.join(REPORT_NAMES)}")
        if record.exit_code is not None:
            meaning = exit_meaning(ExitCode(record.exit_code))
            _line(console, f"exit code {record.exit_code}: {meaning}", "bold red" if record.exit_code else "bold green")


def _time_table(rows: list[TimeRow]) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(_TIME_HEADER):
        shown.add_column(name, justify="right" if index in _RIGHT else "left", overflow="fold")
    for row in rows:
        style = _STYLES.get(row.verdict, "")
        cells = (row.model, row.a, row.b, row.ratio, row.span, row.floor, row.rounds)
        shown.add_row(Text(row.verdict, style=style), *(Text(cell) for cell in cells))
    return shown


def _print_changes(console: rich.console.Console, notable: list[Change]) -> None:
    if not notable:
        return
    _line(console, "")
    _line(console, "What else changed", "bold")
    _line(console, f"  {_CHANGE_NOTE}", "dim")
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(_CHANGE_HEADER):
        shown.add_column(name, justify="right" if index > 1 else "left", overflow="fold")
    for item in notable:
        shown.add_row(*(Text(cell) for cell in (item.model, item.figure, item.a, item.b, item.change)))
    console.print(shown)


def _title(record: ComparisonRecord) -> str:
    what = "compile time of " if record.options.get("metric") == "compile-time" else ""
    names = [f"{side.name} = {side.title}" for side in record.sides]
    return f"Comparison: {what}{', '.join(reversed(names))}" if names else "Comparison"


def _headline(record: ComparisonRecord, rows: list[TimeRow]) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(rows).items()) or "no models"
    mean = record.summary.get("geometric_mean")
    if mean and mean["models"] > 1:
        span = span_text(mean["low"], mean["high"])
        counts += f"; geometric mean {ratio_text(mean['ratio'])} ({span}, {100 * mean['confidence']:g} %)"
    if record.end is None:
        return f"{counts}; unfinished: it was killed, or goes on"
    return f"{counts}; interrupted" if record.end.get("interrupted") else counts


def _rule_lines(record: ComparisonRecord) -> list[str]:
    rules, rounds = record.opening.get("rules") or {}, record.opening.get("rounds") or {}
    if not rules or not rounds:
        return []
    if record.options.get("metric") == "compile-time":
        process = "a compile a process"
    else:
        process = f"{rounds['repetitions']} repetitions of {rounds['min_time']:g} s a process"
    cpus = rounds.get("cpus") or []
    where = f"on CPU {', '.join(map(str, cpus))}" if cpus else "on all CPUs"
    looks = ", ".join(map(str, rules["looks"]))
    return [
        *lock_remark(record.opening),
        (
            f"slower or faster: beyond ±{100 * rules['least']:g} %; same: within ±{100 * rules['band']:g} %; "
            f"wrong in at most {100 * rules['alpha']:g} % of comparisons"
        ),
        (
            f"blocks of four process starts (A B B A or B A A B), looked at after {looks}; "
            f"{process}, {where}; at most {duration(rules['budget_seconds'])} each time it is started"
        ),
    ]


def _without_event(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("event", "time", "chain")}


def _line(console: rich.console.Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
