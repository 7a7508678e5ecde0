"""Figures of other tools, imported as runs of a history, from the tools' own formats."""

from __future__ import annotations

import codecs
import itertools
import json
import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.history.extract import MAX_REASON_CHARS, make_iree_version
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.records.history_record import (
    IMPORTED,
    HistoryCase,
    HistoryFigure,
    HistoryMachine,
    HistoryRun,
    IreeVersion,
)
from iree_gauntlet.records.run_before import RunSummary
from iree_gauntlet.settings import read_file
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


_ZIP = b"PK\x03\x04"
_DATA_JS = re.compile(rb"\s*window\.BENCHMARK_DATA\s*=\s*(.*?);?\s*\Z", re.DOTALL)
# Milliseconds per unit.
_MS_PER_UNIT = {"s": 1e3, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6, "seconds": 1e3}
_PER_ITERATION = re.compile(r"/(?:iter|op)\Z")
# The columns of each figure in the tables of iree-test-suites: value, golden, and the limit for a pass.
_COLUMNS = {
    "benchmark": {"time_ms": ("Current Time (ms)", "Golden Time (ms)", "Threshold (ms)")},
    "compstat": {
        "dispatches": ("Current Dispatch Count", "Golden Dispatch Count", "Golden Dispatch Count"),
        "size_bytes": ("Current Binary Size (bytes)", "Golden Binary Size (bytes)", "Golden Binary Size (bytes)"),
    },
}
# The verdicts of tests by the element that tells them.
_JUNIT_VERDICTS = {"failure": "failed", "error": "error", "skipped": "skipped"}
_SUPPORTED = (
    "Supported are job_summary.json of iree-test-suites, JSON of Google Benchmark, data.js of github-action-benchmark, "
    "results of asv, JUnit, and summary.json of a run."
)
_MORE_IS_BETTER = re.compile(r"bigger|pytest|benchmarkjs|jmh-throughput", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """Facts that another tool's file may lack: a date (ISO 8601), IREE's commit, the machine's CPU, a device's SKU.

    `run` precedes a file's name in the name of its run.
    """

    date: str = ""
    commit: str = ""
    machine: str = ""
    sku: str = ""
    run: str = ""


class UnknownFormatError(GauntletError):
    """A file of none of the formats."""


class _NoFormatError(ValueError):
    """A document that is not in any of the formats."""


def import_figures(file: Path, facts: ImportFacts) -> tuple[HistoryRun, ...]:
    """Read the runs of another tool's file; errors as in `parse_figures`, or GauntletError if it cannot be read."""
    try:
        return parse_figures(file, read_file(file), facts)
    except OSError as error:
        raise GauntletError(f"{file} cannot be imported: {error.strerror}", _SUPPORTED) from error


def parse_figures(file: Path, text: bytes, facts: ImportFacts) -> tuple[HistoryRun, ...]:
    """Read the runs in the content of another tool's file, of which only the name is used.

    The formats are iree-test-suites' `job_summary.json`, Google Benchmark's JSON, github-action-benchmark's `data.js`,
    a file of asv's results, JUnit, and a run's `summary.json`; `facts` are used for facts that the file lacks.

    Raises:
        UsageError: neither the file nor `facts` has the date.
        UnknownFormatError: the file has none of these formats.
        GauntletError: the file is damaged.
    """
    if text.startswith(_ZIP):
        hint = "Unpack it, or collect what is in its folder: gauntlet history.collect FOLDER."
        raise GauntletError(f"{file} cannot be imported: it is a zip archive", hint)
    try:
        if text.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"<"):
            return tuple(_read_junit(file, text, facts))
        script = _DATA_JS.match(text)
        document = read_json(script[1] if script else text)
        return tuple(_read_document(file, document, facts))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, ET.ParseError) as error:
        reason = _explain(error)
        kind = UnknownFormatError if isinstance(error, _NoFormatError) else GauntletError
        raise kind(f"{file} cannot be imported: {reason}", _SUPPORTED) from error


def _explain(error: Exception) -> str:
    match error:
        case KeyError():
            return f"a field {error} is missing"
        case UnicodeDecodeError():
            return "it is not text in UTF-8"
        case json.JSONDecodeError():
            return f"it is not valid JSON: {error}"
        case ET.ParseError():
            return f"it is not valid XML: {error}"
        case TypeError() | AttributeError() | IndexError():
            return "a value in it has another type than its format says"
    return f"{error}"


def _read_number(value: Any, name: str) -> float:
    number = _find_number(value)
    if number is None:
        raise ValueError(f"{name} is {value!r}: expected a number")
    return number


def _read_document(file: Path, document: Any, facts: ImportFacts) -> Iterable[HistoryRun]:
    match document:
        case {"benchmarks": rows, "context": context}:
            return _read_google_benchmark(file, rows, context, facts)
        case {"entries": entries}:
            return _read_data_js(file, entries, facts)
        case {"commit_hash": commit, "results": results}:
            return _read_asv(file, str(commit), results, document, facts)
        case {"arch": _, "machine": _} if file.name == "machine.json":
            # asv writes this file beside its results, which have the same facts.
            return ()
        case dict() if document and set(document) <= {"quality", *_COLUMNS}:
            return _read_job_summary(file, document, facts)
        case {"schema": 1, "chains": list(), "toolchain": _}:
            return _read_summary(document)
        case dict():
            raise _NoFormatError(f"its fields are {', '.join(list(document)[:5]) or 'none'}")
    raise _NoFormatError("expected an object")


def _read_summary(document: Mapping[str, Any]) -> Iterable[HistoryRun]:
    """Read a run's own summary, which has fewer figures than its journal, and no flags."""
    summary = RunSummary.from_dict(document)
    cases = []
    for chain in summary.chains:
        rounds = tuple(time for step in chain.steps for time in step.real_time_ms)
        disturbed = any(step.statistics.get("disturbed") for step in chain.steps if step.real_time_ms)
        # The time of a program with wrong numbers is not the time of the model.
        wrong = any(Stage(step.stage).row.checks_numbers and Verdict(step.verdict).blocks for step in chain.steps)
        figures = []
        for figure, entry in chain.figures.items():
            is_time, view = figure is Figure.TIME, figure.row.history
            value = entry.mean if is_time else entry.measured
            partial = figure is Figure.CALL_INSTRUCTIONS and Figure.DISPATCH_INSTRUCTIONS in chain.figures
            if view is None or value is None or partial or (is_time and wrong):
                continue
            limits = entry.golden, entry.limit, view.more_is_better
            plain = HistoryFigure(view.name, value, "", (), False, *limits)
            timed = replace(plain, statistic=Statistic.MEAN, rounds=rounds, disturbed=disturbed)
            figures.append(timed if is_time else plain)
        device = next((step.device for step in chain.steps if step.device), "")
        names = chain.model, chain.submodel, chain.target, chain.sku, device
        cases.append(HistoryCase(*names, verdict=chain.verdict, figures=tuple(figures)))
    yield HistoryRun(
        run=summary.run,
        time=summary.started,
        cases=tuple(cases),
        iree=make_iree_version(summary.toolchain),
        machine=HistoryMachine.of(summary.machine),
        suite=summary.suite,
        command=summary.command,
        state=summary.state,
        exit_code=summary.exit_code,
        source=f"gauntlet {summary.version}",
    )


@dataclass(frozen=True, slots=True)
class _JunitAttributes(Recorded):
    """The attributes of a suite, a test or a failure that are read."""

    name: str = ""
    classname: str = ""
    time: str = ""
    timestamp: str = ""
    message: str = ""


class _SafeBuilder(ET.TreeBuilder):
    """A builder that refuses entities, which may unfold to any size."""

    def doctype(self, name: str, pubid: str, system: str) -> None:
        """Refuse a document type."""
        del pubid, system
        raise ValueError(f"its document type {name[:20]!r} is not read")


def _read_junit(file: Path, text: bytes, facts: ImportFacts) -> Iterable[HistoryRun]:
    root = ET.fromstring(text, ET.XMLParser(target=_SafeBuilder()))  # noqa: S314 - see the builder
    if root.tag not in ("testsuites", "testsuite"):
        raise _NoFormatError(f"its root is {root.tag[:40]!r}")
    cases, date = [], ""
    for element in root.iter("testsuite"):
        suite = _JunitAttributes.from_dict(element.attrib)
        date = date or suite.timestamp
        for part in element.iterfind("testcase"):
            test = _JunitAttributes.from_dict(part.attrib)
            verdict, reason = next(
                (
                    (_JUNIT_VERDICTS[sign.tag], _JunitAttributes.from_dict(sign.attrib).message)
                    for sign in part
                    if sign.tag in _JUNIT_VERDICTS
                ),
                ("passed", ""),
            )
            seconds = _find_number(test.time) if verdict == "passed" else None
            figures = () if seconds is None else (HistoryFigure("test_s", seconds),)
            names = test.classname or suite.name or file.stem, test.name, "", facts.sku
            cases.append(HistoryCase(*names, verdict=verdict, reason=reason[:MAX_REASON_CHARS], figures=figures))
    yield _run(file, "JUnit", cases, _prefer_date(date, facts))


def _prefer_date(date: str, facts: ImportFacts) -> ImportFacts:
    """Replace the date by that of the file, unless this is no date and another one is known."""
    try:
        datetime.fromisoformat(date)
    except ValueError:
        return replace(facts, date=facts.date or date)
    return replace(facts, date=date)


def _read_google_benchmark(
    file: Path, rows: Iterable[Mapping[str, Any]], context: Mapping[str, Any], defaults: ImportFacts
) -> Iterable[HistoryRun]:
    rounds: dict[str, list[float]] = {}
    for row in rows:
        if row.get("run_type", "iteration") == "iteration" and not row.get("error_occurred"):
            unit = str(row.get("time_unit", "ns"))
            if unit not in _MS_PER_UNIT:
                raise ValueError(f"{row['name']}: time_unit is {unit!r}: expected one of {', '.join(_MS_PER_UNIT)}")
            value = _read_number(row["real_time"], f"real_time of {row['name']}") * _MS_PER_UNIT[unit]
            rounds.setdefault(str(row.get("run_name", row["name"])), []).append(value)
    figures = {name: HistoryFigure("time_ms", min(times), "min", tuple(times)) for name, times in rounds.items()}
    cases = [_make_case(file.stem, name, defaults.sku, figure) for name, figure in figures.items()]
    facts = _prefer_date(str(context.get("date", "")), defaults)
    yield _run(
        file, "Google Benchmark", cases, facts, int(_read_number(context.get("num_cpus", 0), "num_cpus")), dict(context)
    )


def _read_data_js(file: Path, suites: Mapping[str, Any], defaults: ImportFacts) -> Iterable[HistoryRun]:
    for suite, entries in suites.items():
        for entry in entries:
            more_is_better = _MORE_IS_BETTER.search(str(entry.get("tool", ""))) is not None
            cases = []
            for bench in entry["benches"]:
                unit, name = str(bench["unit"]), str(bench["name"])
                value = _read_number(bench["value"], f"the value of {name}")
                scale = _MS_PER_UNIT.get(_PER_ITERATION.sub("", unit))
                figure = HistoryFigure(unit or "value", value, more_is_better=more_is_better)
                if scale is not None and not more_is_better:
                    figure = HistoryFigure("time_ms", value * scale)
                cases.append(_make_case(suite, name, defaults.sku, figure))
            date = _format_milliseconds(entry.get("date")) or defaults.date
            facts = replace(defaults, date=date, commit=str(entry.get("commit", {}).get("id", defaults.commit)))
            extra = {key: value for key, value in entry.items() if key != "benches"}
            yield _run(file, "github-action-benchmark", cases, facts, extra=extra)


def _read_asv(
    file: Path, commit: str, results: Mapping[str, Any], document: Mapping[str, Any], defaults: ImportFacts
) -> Iterable[HistoryRun]:
    column_names = document.get("result_columns", ["result", "params"])
    cases = []
    for name, row in results.items():
        fields = dict(zip(column_names, row, strict=False)) if isinstance(row, list) else {"result": row}
        values = fields["result"] if isinstance(fields["result"], list) else [fields["result"]]
        # The labels of a benchmark's parameter combinations, in asv's order.
        combinations = itertools.product(*(fields.get("params") or []))
        labels = (f"({', '.join(map(str, combination))})" if combination else "" for combination in combinations)
        for value, label in zip(values, labels, strict=False):
            if isinstance(value, int | float) and math.isfinite(value):
                # Only a benchmark whose name begins with `time_` is a time.
                function = name.rpartition(".")[2]
                memory = "peak_bytes" if function.startswith("peakmem") else "value"
                time_figure = HistoryFigure("time_ms", 1e3 * value)
                figure = time_figure if function.startswith("time") else HistoryFigure(memory, float(value))
                cases.append(_make_case("asv", f"{name}{label}", defaults.sku, figure))
    parameters = document.get("params", {})
    facts = ImportFacts(
        _format_milliseconds(document.get("date")) or defaults.date,
        commit,
        str(parameters.get("cpu") or defaults.machine),
    )
    extra = {name: value for name, value in document.items() if name not in ("results", "result_columns")}
    yield _run(file, "asv", cases, facts, int(_read_number(parameters.get("num_cpu") or 0, "num_cpu")), extra)


def _format_milliseconds(ms: Any) -> str:
    """Format milliseconds since 1970 as ISO 8601; empty for None."""
    if ms is None:
        return ""
    if not isinstance(ms, int | float):
        raise ValueError(f"'date' is {ms!r}: expected milliseconds since 1970")  # noqa: TRY004 - as for all else
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _read_job_summary(file: Path, document: Mapping[str, Any], facts: ImportFacts) -> Iterable[HistoryRun]:
    cases = []
    for table_name, table in document.items():
        for cells in table["rows"]:
            if len(cells) != len(table["headers"]):
                raise ValueError(
                    f"{table_name} has {pluralize(len(table['headers']), 'column')}, but a row has {len(cells)}"
                )
            row = dict(zip(table["headers"], cells, strict=True))
            figures = []
            for figure, columns in _COLUMNS.get(table_name, {}).items():
                value, golden, limit = (_find_number(row.get(column)) for column in columns)
                if value is not None:
                    figures.append(HistoryFigure(figure, value, golden=golden, limit=limit))
            model, _, submodel = str(row["Name"]).partition("/")
            verdict = str(row.get("Status", "")).lower()
            cases.append(HistoryCase(model, submodel, table_name, facts.sku, verdict=verdict, figures=tuple(figures)))
    yield _run(file, "iree-test-suites", cases, facts)


def _find_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _make_case(model: str, name: str, sku: str, figure: HistoryFigure) -> HistoryCase:
    return HistoryCase(model, name, "", sku, verdict="passed", figures=(figure,))


def _run(
    file: Path,
    source: str,
    cases: Iterable[HistoryCase],
    facts: ImportFacts,
    cores: int = 0,
    extra: dict[str, Any] | None = None,
) -> HistoryRun:
    if not facts.date:
        raise UsageError(f"{file} has no date", "Give it: --date 2026-04-24T10:00:00Z.")
    try:
        time = datetime.fromisoformat(facts.date)
    except ValueError as error:
        raise UsageError(
            f"{file}: {facts.date!r} is not a date", "Expected one such as 2026-04-24 or 2026-04-24T10:00:00Z."
        ) from error
    return HistoryRun(
        run=file.name,
        time=(time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat(),
        cases=tuple(cases),
        iree=IreeVersion(compiler_commit=facts.commit),
        machine=HistoryMachine(facts.machine, cores),
        state=IMPORTED,
        source=source,
        more=extra or {},
    )
