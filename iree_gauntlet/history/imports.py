"""Figures that other tools have kept, as runs of a history: each format is read as it is, and what it says is kept."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.recorded import read_json
from iree_gauntlet.records.history_record import HistoryCase, HistoryFigure, HistoryMachine, HistoryRun, IreeVersion
from iree_gauntlet.settings import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


_DATA_JS = re.compile(rb"\s*window\.BENCHMARK_DATA\s*=\s*(.*?);?\s*\Z", re.DOTALL)
# To milliseconds.
_TIMES = {"s": 1e3, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6, "seconds": 1e3}
_PER_ITERATION = re.compile(r"/(?:iter|op)\Z")
# Of iree-test-suites' tables, the columns of each figure: measured, golden, and up to which it passes.
_COLUMNS = {
    "benchmark": {"time_ms": ("Current Time (ms)", "Golden Time (ms)", "Threshold (ms)")},
    "compstat": {
        "dispatches": ("Current Dispatch Count", "Golden Dispatch Count", "Golden Dispatch Count"),
        "size_bytes": ("Current Binary Size (bytes)", "Golden Binary Size (bytes)", "Golden Binary Size (bytes)"),
    },
}
_BIGGER = re.compile(r"bigger|pytest|benchmarkjs|jmh-throughput", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What a file of another tool does not say: a date (ISO 8601), IREE's commit, the machine's CPU, a device's SKU."""

    date: str = ""
    commit: str = ""
    machine: str = ""
    sku: str = ""


def import_figures(file: Path, given: ImportFacts) -> tuple[HistoryRun, ...]:
    """The runs that a file of another tool holds.

    It is iree-test-suites' `job_summary.json`, Google Benchmark's JSON, github-action-benchmark's `data.js`, or a file
    of asv's results; what is given holds where it does not say.

    Raises:
        UsageError: the file does not say when the run was, and nobody else does.
        GauntletError: it is none of these, or cannot be read.
    """
    try:
        text = read_file(file)
        script = _DATA_JS.match(text)
        content = read_json(script[1] if script else text)
        return tuple(_read_document(file, content, given))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        missing = f"a field {error} is missing" if isinstance(error, KeyError) else f"{error}"
        why = error.strerror if isinstance(error, OSError) else missing
        raise GauntletError(
            f"{file} cannot be imported: {why}",
            "Known are job_summary.json of iree-test-suites, JSON of Google Benchmark, data.js of "
            "github-action-benchmark, and results of asv.",
        ) from error


def _read_document(file: Path, content: Any, given: ImportFacts) -> Iterable[HistoryRun]:
    match content:
        case {"benchmarks": _, "context": _}:
            return _read_google_benchmark(file, content, given)
        case {"entries": _}:
            return _read_data_js(file, content, given)
        case {"commit_hash": _, "results": _}:
            return _read_asv(file, content, given)
        case {"arch": _, "machine": _} if file.name == "machine.json":
            # asv's, beside its results, which say it too.
            return ()
        case dict() if content and set(content) <= {"quality", *_COLUMNS}:
            return _read_job_summary(file, content, given)
        case dict():
            raise ValueError(f"its fields are {', '.join(list(content)[:5]) or 'none'}")
    raise ValueError("expected an object")


def _read_google_benchmark(file: Path, content: Mapping[str, Any], given: ImportFacts) -> Iterable[HistoryRun]:
    context = content["context"]
    rounds: dict[str, list[float]] = {}
    for row in content["benchmarks"]:
        if row.get("run_type", "iteration") == "iteration" and not row.get("error_occurred"):
            unit = str(row.get("time_unit", "ns"))
            if unit not in _TIMES:
                raise ValueError(f"{row['name']}: time_unit is {unit!r}: expected one of {', '.join(_TIMES)}")
            value = float(row["real_time"]) * _TIMES[unit]
            rounds.setdefault(str(row.get("run_name", row["name"])), []).append(value)
    figures = {name: HistoryFigure("time_ms", min(times), "min", tuple(times)) for name, times in rounds.items()}
    cases = [_make_case(file.stem, name, given.sku, figure) for name, figure in figures.items()]
    facts = replace(given, date=given.date or str(context.get("date", "")))
    yield _run(file, "Google Benchmark", cases, facts, int(context.get("num_cpus", 0)), dict(context))


def _read_data_js(file: Path, content: Mapping[str, Any], given: ImportFacts) -> Iterable[HistoryRun]:
    for suite, entries in content["entries"].items():
        for entry in entries:
            bigger = _BIGGER.search(str(entry.get("tool", ""))) is not None
            cases = []
            for bench in entry["benches"]:
                unit, value = str(bench["unit"]), float(bench["value"])
                scale = _TIMES.get(_PER_ITERATION.sub("", unit))
                figure = HistoryFigure(unit or "value", value, more_is_better=bigger)
                if scale is not None and not bigger:
                    figure = HistoryFigure("time_ms", value * scale)
                cases.append(_make_case(suite, str(bench["name"]), given.sku, figure))
            date = _format_milliseconds(entry.get("date")) or given.date
            facts = replace(given, date=date, commit=str(entry.get("commit", {}).get("id", given.commit)))
            more = {name: value for name, value in entry.items() if name != "benches"}
            yield _run(file, "github-action-benchmark", cases, facts, more=more)


def _read_asv(file: Path, content: Mapping[str, Any], given: ImportFacts) -> Iterable[HistoryRun]:
    columns = content.get("result_columns", ["result", "params"])
    cases = []
    for name, row in content["results"].items():
        found = dict(zip(columns, row, strict=False)) if isinstance(row, list) else {"result": row}
        values = found["result"] if isinstance(found["result"], list) else [found["result"]]
        # The labels of a benchmark's combinations, in asv's order.
        combinations = itertools.product(*(found.get("params") or []))
        labels = (f"({', '.join(map(str, combination))})" if combination else "" for combination in combinations)
        for value, label in zip(values, labels, strict=False):
            if isinstance(value, int | float) and math.isfinite(value):
                # Without `time_` in its name it is no time.
                kind = name.rpartition(".")[2]
                memory = "peak_bytes" if kind.startswith("peakmem") else "value"
                timed = HistoryFigure("time_ms", 1e3 * value)
                figure = timed if kind.startswith("time") else HistoryFigure(memory, float(value))
                cases.append(_make_case("asv", f"{name}{label}", given.sku, figure))
    parameters = content.get("params", {})
    facts = ImportFacts(
        _format_milliseconds(content.get("date")) or given.date,
        str(content["commit_hash"]),
        str(parameters.get("cpu") or given.machine),
    )
    more = {name: value for name, value in content.items() if name not in ("results", "result_columns")}
    yield _run(file, "asv", cases, facts, int(parameters.get("num_cpu") or 0), more)


def _format_milliseconds(since: Any) -> str:
    """A time in milliseconds since 1970, ISO 8601; empty for none."""
    if since is None:
        return ""
    if not isinstance(since, int | float):
        raise ValueError(f"'date' is {since!r}: expected milliseconds since 1970")  # noqa: TRY004 - as for all else
    return datetime.fromtimestamp(since / 1000, UTC).isoformat()


def _read_job_summary(file: Path, content: Mapping[str, Any], given: ImportFacts) -> Iterable[HistoryRun]:
    cases = []
    for kind, table in content.items():
        for cells in table["rows"]:
            row = dict(zip(table["headers"], cells, strict=True))
            figures = []
            for figure, columns in _COLUMNS.get(kind, {}).items():
                value, golden, limit = (_find_number(row.get(column)) for column in columns)
                if value is not None:
                    figures.append(HistoryFigure(figure, value, golden=golden, limit=limit))
            model, _, submodel = str(row["Name"]).partition("/")
            verdict = str(row.get("Status", "")).lower()
            cases.append(HistoryCase(model, submodel, kind, given.sku, verdict=verdict, figures=tuple(figures)))
    yield _run(file, "iree-test-suites", cases, given)


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
    more: dict[str, Any] | None = None,
) -> HistoryRun:
    if not facts.date:
        raise UsageError(f"{file} does not say when it was made", "Say it: --date 2026-04-24T10:00:00Z.")
    try:
        time = datetime.fromisoformat(facts.date)
    except ValueError as error:
        raise UsageError(
            f"{file}: {facts.date!r} is no date", "Expected one such as 2026-04-24 or 2026-04-24T10:00:00Z."
        ) from error
    return HistoryRun(
        run=file.name,
        time=(time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat(),
        cases=tuple(cases),
        iree=IreeVersion(compiler_commit=facts.commit),
        machine=HistoryMachine(facts.machine, cores),
        state="imported",
        source=source,
        more=more or {},
    )
