"""`summary.json`: the result of a run, for programs.

The document, `"schema": 1`. Within one schema number keys are only added. Times are in seconds unless the
key says `_ms`; a figure that was not measured is null; NaN and infinities are the strings `"nan"`, `"inf"`,
`"-inf"`, so that every JSON reader takes the file. Of a run with more than 200 chains, each chain is on one line.

    {
      "schema": 1,
      "run": str, "suite": str, "version": str, "command": str, "cwd": str, "started": ISO 8601,
      "state": "complete" | "interrupted" | "unfinished",
      "resumed": int, "torn": bool, "remarks": [str],
      "exit_code": int, "exit_meaning": str,
      "seconds": number, "tool_seconds": number,
      "counts": {"passed": int, "failed": int, "error": int, "skipped": int, "xfailed": int,
                 "xpassed": int, "inconclusive": int},
      "cache": {"compiles" | "imports" | "downloads": {"hits": int, "misses": int}},
      "targets": [{"name": str, "sku": str}],
      "toolchain": {...}, "machine": {...},                  as in the journal
      "chains": [{
        "id": str, "dialect": str, "model": str, "submodel": str, "target": str, "sku": str,
        "verdict": verdict,
        "compile": {"seconds": number | null, "cached": bool},
        "quality": comparison | null,                        the output that is furthest off
        "time_ms": {"mean", "stdev", "min", "max": number | null, "repetitions": int,
                    "golden", "limit": number | null, "passed": bool | null} | null,
        "dispatch_count", "binary_size_bytes":
                   {"measured": number, "golden", "limit": number | null, "passed": bool | null} | null,
        "steps": [{
          "id": str, "stage": str, "role": str, "verdict": verdict, "reason": str, "behind": step id | "",
          "seconds": number, "waited_seconds": number,
          "cpu_seconds": number, "tool_seconds": number, "peak_rss_bytes": int,
          "exit_code": int | null, "signal": str, "timed_out": bool, "command": str, "device": str,
          "cache": {"hit": bool, "key": str, "reason": str} | null,
          "checks": [check], "outputs": [comparison],        as in the journal
          "real_time_ms": [number], "cpu_time_ms": [number], "statistics": {...},
          "notes": [str], "log": str, "origin": {"file": str, "field": str}
        }]
      }]
    }
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from iree_gauntlet.records.chain_figures import ChainFigures, chain_figures

if TYPE_CHECKING:
    from iree_gauntlet.cases import Origin
    from iree_gauntlet.records.outcome import ChainOutcome, RunOutcome
    from iree_gauntlet.records.step_outcome import StepOutcome
    from iree_gauntlet.results import CacheUse, Check, OutputComparison


SCHEMA = 1
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def summary_json(outcome: RunOutcome) -> str:
    """The document as text, ASCII only, ending with a newline."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run": outcome.run,
        "suite": outcome.suite,
        "version": outcome.version,
        "command": outcome.command,
        "cwd": outcome.cwd,
        "started": outcome.started,
        "state": outcome.state,
        "resumed": outcome.resumed,
        "torn": outcome.torn,
        "remarks": list(outcome.remarks),
        "exit_code": int(outcome.exit_code),
        "exit_meaning": outcome.exit_code.meaning,
        "seconds": outcome.seconds,
        "tool_seconds": outcome.tool_seconds,
        "counts": {str(verdict): count for verdict, count in outcome.counts.items()},
        "cache": {
            "compiles": asdict(outcome.compiles),
            "imports": asdict(outcome.imports),
            "downloads": asdict(outcome.downloads),
        },
        "targets": [{"name": name, "sku": sku} for name, sku in outcome.targets],
        "toolchain": outcome.toolchain,
        "machine": outcome.machine,
    }
    if not outcome.many:
        document["chains"] = [_chain(chain) for chain in outcome.chains]
        return json.dumps(_strict(document), indent=1, allow_nan=False) + "\n"
    head = json.dumps(_strict(document), indent=1, allow_nan=False).removesuffix("\n}")
    chains = ",\n".join(f"  {_line(_chain(chain))}" for chain in outcome.chains)
    return f'{head},\n "chains": [\n{chains}\n ]\n}}\n'


def _line(chain: dict[str, Any]) -> str:
    try:
        return _ENCODER.encode(chain)
    except ValueError:
        # NaN or an infinity, which few have.
        return _ENCODER.encode(_strict(chain))


def _chain(chain: ChainOutcome) -> dict[str, Any]:
    figures = chain_figures(chain)
    worst = figures.worst_output
    return {
        "id": chain.id,
        "dialect": chain.dialect,
        "model": chain.model,
        "submodel": chain.submodel,
        "target": chain.target,
        "sku": chain.sku,
        "verdict": str(chain.verdict),
        "compile": {"seconds": figures.compile_seconds, "cached": figures.compile_cached},
        "quality": None if worst is None else _output(worst),
        "time_ms": _time(figures),
        "dispatch_count": _figure(figures.dispatch_count, figures.dispatches),
        "binary_size_bytes": _figure(figures.binary_size_bytes, figures.size),
        "steps": [_step(step) for step in chain.steps],
    }


def _step(step: StepOutcome) -> dict[str, Any]:
    return {
        "id": step.id,
        "stage": step.stage,
        "role": step.role,
        "verdict": str(step.verdict),
        "reason": step.reason,
        "behind": step.behind,
        "seconds": step.seconds,
        "waited_seconds": step.waited_seconds,
        "cpu_seconds": step.cpu_seconds,
        "tool_seconds": step.tool_seconds,
        "peak_rss_bytes": step.peak_rss_bytes,
        "exit_code": step.exit_code,
        "signal": step.signal,
        "timed_out": step.timed_out,
        "command": step.command,
        "device": step.device,
        "cache": None if step.cache is None else _fields(step.cache),
        "checks": [_fields(check) | {"factor": 1.0 if check.factor is None else check.factor} for check in step.checks],
        "outputs": [_output(output) for output in step.outputs],
        "real_time_ms": list(step.samples.real_time_ms) if step.samples else [],
        "cpu_time_ms": list(step.samples.cpu_time_ms) if step.samples else [],
        "statistics": step.statistics,
        "notes": list(step.notes),
        "log": step.log,
        "origin": _fields(step.origin),
    }


def _time(figures: ChainFigures) -> dict[str, Any] | None:
    samples, check = figures.samples, figures.time
    if samples is None or not samples.real_time_ms:
        return None
    return {
        "mean": samples.mean_ms,
        "stdev": samples.stdev_ms,
        "min": samples.min_ms,
        "max": max(samples.real_time_ms),
        "repetitions": len(samples.real_time_ms),
        "golden": check.golden if check else None,
        "limit": check.limit if check else None,
        "passed": check.passed if check else None,
    }


def _figure(measured: float | None, check: Check | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "measured": measured,
        "golden": check.golden if check else None,
        "limit": check.limit if check else None,
        "passed": check.passed if check else None,
    }


def _fields(record: CacheUse | Check | OutputComparison | Origin) -> dict[str, Any]:
    """What a flat dataclass holds."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _output(output: OutputComparison) -> dict[str, Any]:
    return _fields(output) | {"mismatches": output.mismatches or 0, "worst_index": output.worst_index or ()}


def _strict(value: Any) -> Any:
    """The same document in what JSON can say."""
    kind = type(value)
    if kind is str or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            return f"{value}"
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if kind is dict:
        return {str(key): _strict(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_strict(item) for item in value]
    return value
