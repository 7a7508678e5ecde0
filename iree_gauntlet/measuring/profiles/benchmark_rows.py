"""Reading the samples out of `iree-benchmark-module --benchmark_format=json`.

The format is Google Benchmark's (docs/user_guide.md, "Output Formats"): one row per repetition with
`run_type` "iteration", and rows with `run_type` "aggregate" that are computed from these. If no function
matches `--function`, the tool prints nothing and exits with 0, so output without rows is an error.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import MS_PER_UNIT, Samples


class BenchmarkError(GauntletError):
    """Output of a benchmark without usable times."""


def parse_benchmark_rows(text: str) -> tuple[Samples, ...]:
    """Parse the tool's output; other lines before or after the JSON document are ignored.

    Returns:
        The samples of each benchmark, in the order of the rows; at least one.

    Raises:
        BenchmarkError: the document is missing or truncated, or has no rows, or has a row that reports an error or is
        invalid.
    """
    by_name: dict[str, list[_Row]] = {}
    for row in map(_read_row, _find_rows(text)):
        by_name.setdefault(row.benchmark, []).append(row)
    if not by_name:
        raise BenchmarkError(
            "the benchmark reported no rows: no function of the module matches, or it was to be repeated 0 times",
            "name an exported function with --function (iree-dump-module lists them); repeat it at least once",
        )
    samples = []
    for name, rows in by_name.items():
        repetitions = [row for row in rows if row.is_repetition]
        used_rows = repetitions or [row for row in rows if row.aggregate == "mean"][:1]
        if not used_rows:
            raise BenchmarkError(
                f"benchmark {name} has neither repetitions nor a mean", "leave out flags that shorten its report"
            )
        real, cpu = (tuple(row.times_ms[index] for row in used_rows) for index in (0, 1))
        samples.append(Samples(name, real, cpu, tuple(row.iterations for row in used_rows), aggregated=not repetitions))
    return tuple(samples)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row, with its real time and its CPU time."""

    benchmark: str
    is_repetition: bool
    aggregate: str
    times_ms: list[float]
    iterations: int


def _find_rows(text: str) -> list[Any]:
    decoder = json.JSONDecoder()
    position = -1
    has_torn_json = False
    while (position := text.find("{", position + 1)) >= 0:
        if text[:position].rpartition("\n")[2].strip():
            continue  # this brace is inside another line
        try:
            document, _ = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            has_torn_json = has_torn_json or '"benchmarks"' in text[position:]
            continue
        match document:
            case {"benchmarks": list(rows)}:
                return rows
    if has_torn_json:
        raise BenchmarkError(
            "the benchmark's JSON output is cut off", "the tool ended early; see its log for the cause"
        )
    raise BenchmarkError(
        "the benchmark printed no results",
        "iree-benchmark-module prints nothing and exits with 0 when no function matches --function",
    )


def _read_row(row: Any) -> _Row:
    if not isinstance(row, dict) or not isinstance(name := row.get("name"), str):
        raise BenchmarkError(f"a benchmark row has no name: {str(row)[:120]}")
    if row.get("error_occurred"):
        raise BenchmarkError(f"benchmark {name}: {row.get('error_message') or 'reported an error'}")
    if row.get("skipped"):
        raise BenchmarkError(f"benchmark {name} was skipped: {row.get('skip_message') or 'no reason given'}")
    unit = row.get("time_unit", "ns")
    if unit not in MS_PER_UNIT:
        raise BenchmarkError(f"benchmark {name}: unknown time unit {unit!r}")
    times = []
    for field in ("real_time", "cpu_time"):
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise BenchmarkError(f"benchmark {name}: {field} is {value!r}, expected a time")
        times.append(float(value) * MS_PER_UNIT[unit])
    repeats, aggregate = row.get("run_type", "iteration") == "iteration", str(row.get("aggregate_name", ""))
    return _Row(str(row.get("run_name", name)), repeats, aggregate, times, int(row.get("iterations", 0)))
