"""Reading the samples out of `iree-benchmark-module --benchmark_format=json`.

The format is Google Benchmark's (docs/user_guide.md, "Output Formats"): a row a repetition with
`run_type` "iteration", and rows of `run_type` "aggregate" computed from them. The tool prints nothing
and exits with 0 when no function fits `--function`, so that no rows is an error.
"""

from __future__ import annotations

import json
import math
from typing import Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import MS_PER_UNIT, Samples


class BenchmarkError(GauntletError):
    """Output of a benchmark from which no figure can be had."""


def parse_benchmark_rows(text: str) -> tuple[Samples, ...]:
    """Reads what the tool printed; other lines before or after the JSON document are passed over.

    Returns:
        The samples of each benchmark, in the order of the rows; at least one.

    Raises:
        BenchmarkError: no document, a torn one, no rows, a row that reports an error or makes no sense.
    """
    rows = [_check_row(row) for row in _find_rows(text)]
    if not rows:
        raise BenchmarkError(
            "the benchmark reported no rows: no function of the module matches",
            "name an exported function with --function; iree-dump-module lists them",
        )
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(str(row.get("run_name", row["name"])), []).append(row)
    return tuple(_read_samples(name, group) for name, group in grouped.items())


def _find_rows(text: str) -> list[Any]:
    decoder = json.JSONDecoder()
    position = -1
    torn = False
    while (position := text.find("{", position + 1)) >= 0:
        if text[:position].rpartition("\n")[2].strip():
            continue  # inside a line of something else
        try:
            document, _ = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            torn = torn or '"benchmarks"' in text[position:]
            continue
        if isinstance(document, dict) and isinstance(document.get("benchmarks"), list):
            rows: list[Any] = document["benchmarks"]
            return rows
    if torn:
        raise BenchmarkError(
            "the benchmark's JSON output is cut off", "the tool ended early; see its log for the cause"
        )
    raise BenchmarkError(
        "the benchmark printed no results",
        "iree-benchmark-module prints nothing and exits with 0 when no function matches --function",
    )


def _check_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise BenchmarkError(f"a benchmark row has no name: {str(row)[:120]}")
    name = row["name"]
    if row.get("error_occurred"):
        raise BenchmarkError(f"benchmark {name}: {row.get('error_message') or 'reported an error'}")
    if row.get("skipped"):
        raise BenchmarkError(f"benchmark {name} was skipped: {row.get('skip_message') or 'no reason given'}")
    if row.get("time_unit", "ns") not in MS_PER_UNIT:
        raise BenchmarkError(f"benchmark {name}: unknown time unit {row['time_unit']!r}")
    for field in ("real_time", "cpu_time"):
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise BenchmarkError(f"benchmark {name}: {field} is {value!r}, expected a time")
    return row


def _read_samples(name: str, rows: list[dict[str, Any]]) -> Samples:
    repetitions = [row for row in rows if row.get("run_type", "iteration") == "iteration"]
    counted = repetitions or [row for row in rows if row.get("aggregate_name") == "mean"][:1]
    if not counted:
        raise BenchmarkError(
            f"benchmark {name} has neither repetitions nor a mean", "leave out flags that thin out its report"
        )
    return Samples(
        name,
        tuple(_read_ms(row, "real_time") for row in counted),
        tuple(_read_ms(row, "cpu_time") for row in counted),
        tuple(int(row.get("iterations", 0)) for row in counted),
        aggregated=not repetitions,
    )


def _read_ms(row: dict[str, Any], field: str) -> float:
    return float(row[field]) * MS_PER_UNIT[str(row.get("time_unit", "ns"))]
