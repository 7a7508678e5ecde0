"""`results.csv`: a line for each variant at each point, with torchao's columns first.

Columns that mean what torchao's `generate_results_csv` (benchmarks/microbenchmarks/utils.py) writes have its names and
its order; its times and speed-ups are torch's, eager and by torch.compile. Ours follow. A cell is empty where nothing
was measured, and numbers have all their digits: reading them back gives the very ones of the journal.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.reports.sweeps.sweep_rows import Ratio, Row, Side


_TORCH_TYPES = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}
_SIDES = ("iree", "torch_eager", "torch_compile")

CSV_COLUMNS = (
    # torchao's
    *("name", "quantization", "sparsity", "m", "k", "n", "high_precision_dtype", "torch_compile_mode", "device"),
    "model_type",
    *("baseline_model_eager_inference_time_in_ms", "quantized_model_eager_inference_time_in_ms"),
    *("baseline_model_compiled_inference_time_in_ms", "quantized_model_compiled_inference_time_in_ms"),
    *("eager speedup on baseline", "compile speedup on baseline", "eager vs compile speedup"),
    # ours
    *("shape", "recipe", "kind", "status", "reason"),
    *("iree_baseline_ms", "iree_ms"),
    *(f"{side}_speedup{part}" for side in _SIDES for part in ("", "_low", "_high", "_word")),
    *(f"{side}_beside_iree{part}" for side in _SIDES[1:] for part in ("", "_low", "_high", "_word")),
    *("max_error", "relative_error", "sqnr_db"),
    *("module_bytes", "parameter_bytes", "peak_rss_bytes", "device_peak_bytes"),
    *("compile_s", *(f"{side}_first_call_ms" for side in _SIDES), "flops", "roofline_share", "roofline_bound"),
    *("blocks", "replaced", "seconds", "shows", "notes"),
)


def results_csv(rows: Sequence[Row], header: Mapping[str, Any] | None = None) -> str:
    """The whole file, with its header; lines end as RFC 4180 has it.

    A point without figures (of a sweep that was interrupted, say) has a line with its status and the reason.

    Args:
        rows: of all points that finished.
        header: of the run, with the points that are `missing`.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(CSV_COLUMNS)
    baselines = {row.point: row for row in rows if row.is_baseline}
    for row in rows:
        cells = csv_cells(row, baselines.get(row.point))
        writer.writerow([_cell(cells[column]) for column in CSV_COLUMNS])
    for item in (header or {}).get("missing") or ():
        name, _, label = item["point"].rpartition("/")
        sizes = dict(zip("mkn", label.split("-"), strict=True))
        missing = {"name": name, **sizes, "status": item["status"], "reason": item["reason"]}
        writer.writerow([missing.get(column, "") for column in CSV_COLUMNS])
    return stream.getvalue()


def csv_cells(row: Row, baseline: Row | None) -> dict[str, object]:
    """What stands in each column.

    Args:
        row: a variant at a point.
        baseline: what it is held against; None where it is missing.
    """
    eager, compiled = _ms(row.torch_eager), _ms(row.torch_compile)
    cells: dict[str, object] = {
        "name": row.name,
        "quantization": row.quantization,
        "sparsity": row.sparsity,
        "m": row.m,
        "k": row.k,
        "n": row.n,
        "high_precision_dtype": _TORCH_TYPES.get(row.dtype, row.dtype),
        "torch_compile_mode": row.torch_compile_mode,
        "device": row.device,
        "model_type": row.model_type,
        "baseline_model_eager_inference_time_in_ms": _ms(baseline.torch_eager) if baseline else None,
        "quantized_model_eager_inference_time_in_ms": eager,
        "baseline_model_compiled_inference_time_in_ms": _ms(baseline.torch_compile) if baseline else None,
        "quantized_model_compiled_inference_time_in_ms": compiled,
        "eager speedup on baseline": _value(row.torch_eager.speedup if row.torch_eager else None),
        "compile speedup on baseline": _value(row.torch_compile.speedup if row.torch_compile else None),
        "eager vs compile speedup": eager / compiled if eager is not None and compiled else None,
        "iree_baseline_ms": _ms(baseline.iree) if baseline else None,
        "iree_ms": _ms(row.iree),
    }
    for name, side in zip(_SIDES, (row.iree, row.torch_eager, row.torch_compile), strict=True):
        cells |= _ratio_cells(f"{name}_speedup", side.speedup if side else None)
        cells |= _ratio_cells(f"{name}_beside_iree", side.beside_iree if side else None)
        cells[f"{name}_first_call_ms"] = side.first_call_ms if side else None
    own = ("shape", "recipe", "kind", "status", "reason")
    same = ("max_error", "relative_error", "sqnr_db", "module_bytes", "parameter_bytes", "peak_rss_bytes", "flops")
    more = ("device_peak_bytes", "compile_s", "roofline_share", "roofline_bound", "blocks")
    cells |= {name: getattr(row, name) for name in (*own, *same, *more, "replaced", "seconds")}
    return cells | {"shows": "; ".join(row.shows), "notes": "; ".join((*row.point_notes, *row.notes))}


def _ms(side: Side | None) -> float | None:
    return side.ms if side else None


def _value(ratio: Ratio | None) -> float | None:
    return ratio.ratio if ratio else None


def _ratio_cells(name: str, ratio: Ratio | None) -> Iterable[tuple[str, object]]:
    values = (ratio.ratio, ratio.low, ratio.high, ratio.word) if ratio else (None,) * 4
    return [(f"{name}{part}", value) for part, value in zip(("", "_low", "_high", "_word"), values, strict=True)]


def _cell(value: object) -> str:
    """A whole number without a point (bytes), another with all its digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value)
