"""Speeds of benchmarks that push inputs again and again from the host: samples and tokens a second, latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.reporting.chain_figures import NOTHING
from iree_gauntlet.reporting.figures import duration, milliseconds
from iree_gauntlet.reporting.markdown import escape, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.reporting.step_outcome import StepOutcome

__all__ = ["speed_section"]

_COLUMNS = ("model", "submodel", "samples/s", "samples", "in", "p50 ms", "p90 ms", "p99 ms", "tokens/s")
_RIGHT = frozenset(range(2, len(_COLUMNS)))


def speed_section(steps: Sequence[StepOutcome]) -> list[str]:
    """A Markdown section for the steps that have a speed; nothing where none has."""
    rows = []
    for step in steps:
        found = step.statistics
        if not {"samples_per_sec", "total_samples", "total_s", "latency_ms"} <= found.keys():
            continue
        latency = found["latency_ms"]
        tokens = f"{float(found['tokens_per_sec']):.1f}" if "tokens_per_sec" in found else NOTHING
        rows.append(
            [
                *(escape(step.model), escape(step.submodel)),
                *(f"{float(found['samples_per_sec']):.2f}", f"{int(found['total_samples'])}"),
                duration(float(found["total_s"])),
                *(milliseconds(float(latency[name])) for name in ("p50", "p90", "p99")),
                tokens,
            ]
        )
    return ["## Speed", table(_COLUMNS, rows, _RIGHT)] if rows else []
