"""Reading the samples out of `iree-benchmark-module --benchmark_format=json`.

The format is Google Benchmark's (docs/user_guide.md, "Output Formats"): a row a repetition with
`run_type` "iteration", and rows of `run_type` "aggregate" computed from them. The tool prints nothing
and exits with 0 when no function fits `--function`, so that no rows is an error.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

from iree_gauntlet.errors import GauntletError

__all__ = ["BenchmarkError", "Samples", "parse_benchmark_rows"]

_MS_PER_UNIT = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


class BenchmarkError(GauntletError):
    """Output of a benchmark from which no figure can be had."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The repetitions of one benchmark.

    Attributes:
        name: Google Benchmark's name without its suffixes, `BM_main/process_time/real_time`.
        real_time_ms: wall time of an iteration, a figure for each repetition, in ms.
        cpu_time_ms: CPU time of an iteration (of the whole process), likewise.
        iterations: over how many iterations each figure is a mean.
        aggregated: the tool was told to report aggregates only: the one figure is the mean of all.
        reported_median_ms, reported_stdev_ms: what the tool's aggregates say, where there is nothing else.
    """

    name: str
    real_time_ms: tuple[float, ...]
    cpu_time_ms: tuple[float, ...]
    iterations: tuple[int, ...]
    aggregated: bool = False
    reported_median_ms: float | None = None
    reported_stdev_ms: float | None = None

    @property
    def mean_ms(self) -> float:
        """Arithmetic mean of the repetitions' wall time."""
        return statistics.fmean(self.real_time_ms)

    @property
    def min_ms(self) -> float | None:
        """Fastest repetition; None where only aggregates are known."""
        return None if self.aggregated else min(self.real_time_ms)

    @property
    def median_ms(self) -> float | None:
        """Median of the repetitions."""
        return self.reported_median_ms if self.aggregated else statistics.median(self.real_time_ms)

    @property
    def stdev_ms(self) -> float | None:
        """Sample standard deviation (n − 1); None for a single repetition."""
        if self.aggregated:
            return self.reported_stdev_ms
        return statistics.stdev(self.real_time_ms) if len(self.real_time_ms) > 1 else None

    @property
    def cv(self) -> float | None:
        """Coefficient of variation: standard deviation over mean; None where either says nothing."""
        return None if self.stdev_ms is None or self.mean_ms == 0 else self.stdev_ms / self.mean_ms

    def as_dict(self) -> dict[str, Any]:
        """The journal's "samples" record."""
        return {
            "unit": "ms",
            "real_time": list(self.real_time_ms),
            "cpu_time": list(self.cpu_time_ms),
            "iterations": list(self.iterations),
            "name": self.name,
            "aggregated": self.aggregated,
        }


def parse_benchmark_rows(text: str) -> tuple[Samples, ...]:
    """Reads what the tool printed; other lines before or after the JSON document are passed over.

    Args:
        text: the tool's stdout.

    Returns:
        The samples of each benchmark, in the order of the rows; at least one.

    Raises:
        BenchmarkError: no document, a torn one, no rows, a row that reports an error or makes no sense.
    """
    rows = [_checked(row) for row in _document_rows(text)]
    if not rows:
        raise BenchmarkError(
            "the benchmark reported no rows: no function of the module matches",
            "name an exported function with --function; iree-dump-module lists them",
        )
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(str(row.get("run_name", row["name"])), []).append(row)
    return tuple(_samples(name, group) for name, group in grouped.items())


def _document_rows(text: str) -> list[Any]:
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


def _checked(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise BenchmarkError(f"a benchmark row has no name: {str(row)[:120]}")
    name = row["name"]
    if row.get("error_occurred"):
        raise BenchmarkError(f"benchmark {name}: {row.get('error_message') or 'reported an error'}")
    if row.get("skipped"):
        raise BenchmarkError(f"benchmark {name} was skipped: {row.get('skip_message') or 'no reason given'}")
    if row.get("time_unit", "ns") not in _MS_PER_UNIT:
        raise BenchmarkError(f"benchmark {name}: unknown time unit {row['time_unit']!r}")
    for field in ("real_time", "cpu_time"):
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise BenchmarkError(f"benchmark {name}: {field} is {value!r}, expected a time")
    return row


def _samples(name: str, rows: list[dict[str, Any]]) -> Samples:
    repetitions = [row for row in rows if row.get("run_type", "iteration") == "iteration"]
    if repetitions:
        return Samples(
            name,
            tuple(_milliseconds(row, "real_time") for row in repetitions),
            tuple(_milliseconds(row, "cpu_time") for row in repetitions),
            tuple(int(row.get("iterations", 0)) for row in repetitions),
        )
    aggregates = {str(row.get("aggregate_name")): row for row in rows}
    mean = aggregates.get("mean")
    if mean is None:
        raise BenchmarkError(
            f"benchmark {name} has neither repetitions nor a mean", "leave out flags that thin out its report"
        )
    median, deviation = aggregates.get("median"), aggregates.get("stddev")
    return Samples(
        name,
        (_milliseconds(mean, "real_time"),),
        (_milliseconds(mean, "cpu_time"),),
        (int(mean.get("iterations", 0)),),
        aggregated=True,
        reported_median_ms=None if median is None else _milliseconds(median, "real_time"),
        reported_stdev_ms=None if deviation is None else _milliseconds(deviation, "real_time"),
    )


def _milliseconds(row: dict[str, Any], field: str) -> float:
    return float(row[field]) * _MS_PER_UNIT[str(row.get("time_unit", "ns"))]
