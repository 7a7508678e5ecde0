"""`matrix.json` and `matrix.csv`: what a matrix came to, for programs.

The JSON document, `"schema": 1`. Within one schema number keys are only added. A figure that was not measured is null;
NaN and infinities are the strings `"nan"`, `"inf"`, `"-inf"`. Ratios are to the first IREE.

    {
      "schema": 1,
      "matrix": str, "suite": str, "version": str, "command": str, "cwd": str, "started": ISO 8601,
      "state": "complete" | "interrupted" | "stopped" | "unfinished",
      "remarks": [str], "exit_code": int, "exit_meaning": str, "seconds": number,
      "base": label, "machine": {...},                       of the first run, as in its journal
      "irees": [{
        "label": str, "iree": str,                           its name, and the value of --iree
        "folder": str,                                       of its run, with that run's summary.json
        "exit_code": int | null, "problem": str, "hint": str,
        "toolchain": {...},                                  versions, commits, identities, source; {} if not found
        "counts": {verdict: int} | null                      of steps
      }],
      "chains": [{
        "id": str, "model": str, "submodel": str, "target": str,
        "irees": {label: {                                   without those that did not run it
          "verdict": verdict, "stages": [str], "reason": str,
          "works": bool | null, "wrong_numbers": bool,
          "compile_seconds": number | null, "compile_cached": bool, "compile_peak_bytes": int | null,
          "time_ms": number | null, "spread_ms": number | null, "statistic": "mean" | "min" | "",
          "repetitions": int, "disturbed": str,              what the machine did besides; "" for nothing
          "dispatch_count": int | null, "binary_size_bytes": int | null,
          "max_abs_error": number | null, "worst_output": int | null,
          "ratios": {"compile_seconds" | "compile_peak_bytes" | "time_ms" | "dispatch_count" | "binary_size_bytes":
                     number | null}
        }}
      }],
      "changes": [{"kind": str, "chain": id, "labels": [label], "text": str}],
      "geometric_means": [{"label": str, "metric": "time" | "compile", "ratio": number, "chains": int}]
    }

The CSV has a row for each chain and IREE: `chain`, `iree` (the label), and the keys above from `verdict` on, without
`reason`; `stages` are separated by spaces, ratios have columns of their own (`time_ms_ratio`), what is null is empty.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from iree_gauntlet.records.outcome import exit_meaning
from iree_gauntlet.reports.matrix_changes import changes, mean_ratios, ratio

if TYPE_CHECKING:
    from iree_gauntlet.records.matrix_cells import MatrixCell
    from iree_gauntlet.records.matrix_outcome import MatrixIree, MatrixOutcome

__all__ = ["SCHEMA", "matrix_csv", "matrix_json"]

SCHEMA = 1
_RATIOS = ("compile_seconds", "compile_peak_bytes", "time_ms", "dispatch_count", "binary_size_bytes")
_FORMULA = ("=", "+", "-", "@")


def matrix_json(matrix: MatrixOutcome) -> str:
    """The document as text, ASCII only, ending with a newline."""
    document = {
        "schema": SCHEMA,
        "matrix": matrix.name,
        "suite": matrix.suite,
        "version": matrix.version,
        "command": matrix.command,
        "cwd": matrix.cwd,
        "started": matrix.started,
        "state": matrix.state,
        "remarks": list(matrix.remarks),
        "exit_code": int(matrix.exit_code),
        "exit_meaning": exit_meaning(matrix.exit_code),
        "seconds": matrix.seconds,
        "base": matrix.base,
        "machine": matrix.machine,
        "irees": [_iree(iree) for iree in matrix.irees],
        "chains": [
            {
                "id": row.chain,
                "model": row.model,
                "submodel": row.submodel,
                "target": row.target,
                "irees": {label: _cell(cell, row.cells.get(matrix.base)) for label, cell in row.cells.items()},
            }
            for row in matrix.rows
        ],
        "changes": [asdict(change) for change in changes(matrix)],
        "geometric_means": [asdict(mean) for mean in mean_ratios(matrix)],
    }
    return json.dumps(_strict(document), indent=1, allow_nan=False) + "\n"


def matrix_csv(matrix: MatrixOutcome) -> str:
    """The table as RFC 4180 has it, with a header; lines end with a newline alone."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header: list[str] = []
    for row in matrix.rows:
        for label, cell in row.cells.items():
            figures = _cell(cell, row.cells.get(matrix.base))
            ratios = figures.pop("ratios")
            del figures["reason"]
            flat = {"chain": row.chain, "iree": label, **figures, "stages": " ".join(cell.stages)}
            flat |= {f"{name}_ratio": value for name, value in ratios.items()}
            if not header:
                header = list(flat)
                writer.writerow(header)
            writer.writerow([_field(_strict(value)) for value in flat.values()])
    return stream.getvalue()


def _iree(iree: MatrixIree) -> dict[str, Any]:
    outcome = iree.outcome
    return {
        "label": iree.label,
        "iree": iree.text,
        "folder": iree.folder,
        "exit_code": None if iree.exit_code is None else int(iree.exit_code),
        "problem": iree.problem,
        "hint": iree.hint,
        "toolchain": iree.toolchain,
        "counts": None if outcome is None else {str(verdict): count for verdict, count in outcome.counts.items()},
    }


def _cell(cell: MatrixCell, base: MatrixCell | None) -> dict[str, Any]:
    ratios = {name: ratio(getattr(cell, name), getattr(base, name) if base else None) for name in _RATIOS}
    return {**asdict(cell), "verdict": str(cell.verdict), "ratios": ratios}


def _field(value: Any) -> Any:
    """A field of the CSV: a spreadsheet runs a text that begins like a formula, so it is quoted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) and value != "-inf" else value


def _strict(value: Any) -> Any:
    """The same document in what JSON can say."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"{value}"
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value
