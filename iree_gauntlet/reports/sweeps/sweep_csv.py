"""`results.csv`: a line for each variant at each point, with torchao's columns first.

Columns that mean what torchao's `generate_results_csv` (benchmarks/microbenchmarks/utils.py) writes have its names and
its order; its times and speed-ups are torch's, eager and by torch.compile. Ours follow. A cell is empty where nothing
was measured, and numbers have all their digits: reading them back gives the very ones of the journal.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.reports.sweeps.sweep_rows import Row


# What stands in a column, of a variant and of the baseline at its point.
_Column = Callable[["Row", "Row | None"], object]
_TORCH_TYPES = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}
_SIDES = ("iree", "torch_eager", "torch_compile")
_RATIO = {"": "ratio", "_low": "low", "_high": "high", "_word": "word"}


def _at(path: str) -> _Column:
    """What a variant has at the end of a path of fields; None where a part of it is None."""
    return lambda row, _: _field(row, path)


def _of_baseline(path: str) -> _Column:
    return lambda _, baseline: _field(baseline, path)


def _field(found: object, path: str) -> object:
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _eager_vs_compile(row: Row, _: Row | None) -> float | None:
    eager, compiled = row.torch_eager, row.torch_compile
    return eager.ms / compiled.ms if eager and compiled and compiled.ms else None


CSV_COLUMNS: dict[str, _Column] = {
    # torchao's
    **{name: _at(name) for name in ("name", "quantization", "sparsity", "m", "k", "n")},
    "high_precision_dtype": lambda row, _: _TORCH_TYPES.get(row.dtype, row.dtype),
    **{name: _at(name) for name in ("torch_compile_mode", "device", "model_type")},
    "baseline_model_eager_inference_time_in_ms": _of_baseline("torch_eager.ms"),
    "quantized_model_eager_inference_time_in_ms": _at("torch_eager.ms"),
    "baseline_model_compiled_inference_time_in_ms": _of_baseline("torch_compile.ms"),
    "quantized_model_compiled_inference_time_in_ms": _at("torch_compile.ms"),
    "eager speedup on baseline": _at("torch_eager.speedup.ratio"),
    "compile speedup on baseline": _at("torch_compile.speedup.ratio"),
    "eager vs compile speedup": _eager_vs_compile,
    # ours
    **{name: _at(name) for name in ("shape", "recipe", "kind", "status", "reason")},
    "iree_baseline_ms": _of_baseline("iree.ms"),
    "iree_ms": _at("iree.ms"),
    **{f"{side}_speedup{part}": _at(f"{side}.speedup.{name}") for side in _SIDES for part, name in _RATIO.items()},
    **{
        f"{side}_beside_iree{part}": _at(f"{side}.beside_iree.{name}")
        for side in _SIDES[1:]
        for part, name in _RATIO.items()
    },
    **{name: _at(name) for name in ("max_error", "relative_error", "sqnr_db", "module_bytes", "parameter_bytes")},
    **{name: _at(name) for name in ("peak_rss_bytes", "device_peak_bytes", "compile_s")},
    **{f"{side}_first_call_ms": _at(f"{side}.first_call_ms") for side in _SIDES},
    **{name: _at(name) for name in ("flops", "roofline_share", "roofline_bound", "blocks", "replaced", "seconds")},
    "shows": lambda row, _: "; ".join(row.shows),
    "notes": lambda row, _: "; ".join((*row.point_notes, *row.notes)),
}


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
        baseline = baselines.get(row.point)
        writer.writerow([_cell(column(row, baseline)) for column in CSV_COLUMNS.values()])
    for item in (header or {}).get("missing") or ():
        name, _, label = item["point"].rpartition("/")
        sizes = dict(zip("mkn", label.split("-"), strict=True))
        missing = {"name": name, **sizes, "status": item["status"], "reason": item["reason"]}
        writer.writerow([missing.get(column, "") for column in CSV_COLUMNS])
    return stream.getvalue()


def _cell(value: object) -> str:
    """A whole number without a point (bytes), another with all its digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value)
