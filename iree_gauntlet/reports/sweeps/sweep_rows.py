"""What reports read: the record of each point as flat rows, one a variant.

A record is what the journal's benchmark step of a point has. Numbers that JSON lacks are "nan", "inf" and "-inf" in it,
and are numbers again here.

Columns that mean what torchao's `generate_results_csv` (benchmarks/microbenchmarks/utils.py) writes have its names and
its order; its times and speed-ups are torch's, eager and by torch.compile. Ours follow. A cell is empty where nothing
was measured, and numbers have all their digits: reading them back gives the very ones of the journal.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.figures import one_line
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_BASELINE = "baseline"
_TITLE = 100
# What stands in a column, of a variant and of the baseline at its point.
_Column = Callable[["Row", "Row | None"], object]
_TORCH_TYPES = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}
_SIDES = ("iree", "torch_eager", "torch_compile")
_RATIO = {"": "ratio", "_low": "low", "_high": "high", "_word": "word"}


@dataclass(frozen=True, slots=True)
class Ratio(Recorded):
    """How many times faster something is.

    Attributes:
        ratio: of two times; above 1 is faster.
        low, high: its interval; None where the evidence is too little for one.
        word: `faster`, `slower`, `same` or `inconclusive`.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class SideFigures(Recorded):
    """What ran a variant: IREE, torch eager or torch.compile.

    Attributes:
        speedup: against the baseline on the same side; None for the baseline itself.
        beside_iree: its time over IREE's for the same variant, above 1 where IREE is faster; None for IREE itself.
    """

    ms: float
    speedup: Ratio | None = None
    beside_iree: Ratio | None = None
    first_call_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Recorded):
    """One variant at one point. None is what was not measured.

    Attributes:
        name: of the entry of `model_params`.
        label: of the shape, `m-k-n`.
        quantization, sparsity: its two parts; None for no sparsity.
        kind: `quantization`, `sparsity` or `compiler`.
        status: `measured`, `same module` (as the baseline's, which has its times), `skipped`, `failed` or `error`.
        reason: why it is not `measured`.
        compile_s: seconds that the compiler took.
        roofline_share: of the machine's measured peak, 1 for all of it.
        roofline_bound: `compute` or `memory`, whichever peak it is.
        blocks, replaced: blocks of rounds that count, and those that were disturbed and taken again.
    """

    name: str
    model_type: str
    shape: str
    m: int
    k: int
    n: int
    label: str
    dtype: str
    device: str
    torch_compile_mode: str = ""
    flops: float | None = None
    recipe: str
    quantization: str
    sparsity: str | None = None
    kind: str
    status: str
    reason: str = ""
    iree: SideFigures | None = None
    torch_eager: SideFigures | None = None
    torch_compile: SideFigures | None = None
    max_error: float | None = None
    relative_error: float | None = None
    sqnr_db: float | None = None
    module_bytes: float | None = None
    parameter_bytes: float | None = None
    peak_rss_bytes: float | None = None
    device_peak_bytes: float | None = None
    compile_s: float | None = None
    roofline_share: float | None = None
    roofline_bound: str = ""
    shows: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    point_notes: tuple[str, ...] = ()
    blocks: int = 0
    replaced: int = 0
    seconds: float | None = None

    @property
    def point(self) -> tuple[str, str, str, str, str]:
        """What tells its point from others."""
        return self.name, self.model_type, self.dtype, self.device, self.label

    @property
    def is_baseline(self) -> bool:
        """Whether the others are compared with it."""
        return self.recipe == _BASELINE

    @property
    def speedup(self) -> Ratio | None:
        """On IREE, against the baseline."""
        return self.iree.speedup if self.iree else None


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """An entry of `model_params` with everything that was measured for it.

    Attributes:
        rows: in the order of the records; never empty.
    """

    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.rows[0].name

    @property
    def title(self) -> str:
        """`small_linear (linear, f32, cpu)`."""
        first = self.rows[0]
        return one_line(f"{first.name} ({first.model_type}, {first.dtype}, {first.device})", _TITLE)

    @property
    def shapes(self) -> tuple[str, ...]:
        """Labels of its shapes."""
        return tuple(dict.fromkeys(row.label for row in self.rows))

    @property
    def recipes(self) -> tuple[str, ...]:
        """Labels of its variants, without the baseline's."""
        return tuple(dict.fromkeys(row.recipe for row in self.rows if not row.is_baseline))

    def row(self, recipe: str, shape: str) -> Row | None:
        """Of a variant at a shape; the last where there are several."""
        return next((row for row in reversed(self.rows) if (row.recipe, row.label) == (recipe, shape)), None)

    def baseline(self, shape: str) -> Row | None:
        """What the others at a shape are compared with."""
        return self.row(_BASELINE, shape)

    def of_recipe(self, recipe: str) -> tuple[Row, ...]:
        """A variant at all shapes."""
        return tuple(row for row in self.rows if row.recipe == recipe)


def read_rows(records: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """The rows of some points, in their order.

    Raises:
        KeyError, TypeError: a record lacks what each has.
    """
    return tuple(_read_row(record, variant) for record in records for variant in record["variants"])


def group_entries(rows: Iterable[Row]) -> tuple[SweepEntry, ...]:
    """The rows by entry of `model_params`, in the order of their first ones."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.point[:-1], []).append(row)
    return tuple(SweepEntry(tuple(own)) for own in found.values())


def find_mean_ratio(ratios: Sequence[float]) -> float | None:
    """Geometric mean of those that are positive and finite; None where none is."""
    usable = [ratio for ratio in ratios if 0 < ratio < math.inf]
    return statistics.geometric_mean(usable) if usable else None


def times(ratio: float) -> str:
    """A ratio in three digits: `1.72`, `0.094`, `12.5`."""
    if not math.isfinite(ratio):
        return str(ratio)
    if abs(ratio) >= 99.95 or ratio == 0:
        return f"{ratio:.0f}"
    if abs(ratio) >= 9.995:
        return f"{ratio:.1f}"
    return f"{ratio:.2f}" if abs(ratio) >= 0.0995 else f"{ratio:.2g}"


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of results.

    Attributes:
        entry: title of the entry of `model_params` that it is of.
    """

    name: str
    entry: str
    title: str
    svg: bytes
    png: bytes


def _read_row(record: Mapping[str, Any], variant: Mapping[str, Any]) -> Row:
    error, roofline = variant.get("error") or {}, variant.get("roofline") or {}
    first_call = {"first_call_ms": variant.get("first_call_ms")}
    return Row.from_dict(
        {
            **record,
            **variant,
            **record["point"],
            "recipe": variant["label"],
            "iree": {**first_call, **variant["iree"]} if variant.get("iree") else None,
            "max_error": error.get("max"),
            "relative_error": error.get("relative"),
            "sqnr_db": error.get("sqnr_db"),
            "roofline_share": roofline.get("share"),
            "roofline_bound": roofline.get("bound"),
            "point_notes": record.get("notes"),
        }
    )


def _take(path: str) -> _Column:
    """What a variant has at the end of a path of fields; None where a part of it is None."""
    return lambda row, _: _find_field(row, path)


def _take_of_baseline(path: str) -> _Column:
    return lambda _, baseline: _find_field(baseline, path)


def _find_field(found: object, path: str) -> object:
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _compare_eager_and_compiled(row: Row, _: Row | None) -> float | None:
    eager, compiled = row.torch_eager, row.torch_compile
    return eager.ms / compiled.ms if eager and compiled and compiled.ms else None


CSV_COLUMNS: dict[str, _Column] = {
    # torchao's
    **{name: _take(name) for name in ("name", "quantization", "sparsity", "m", "k", "n")},
    "high_precision_dtype": lambda row, _: _TORCH_TYPES.get(row.dtype, row.dtype),
    **{name: _take(name) for name in ("torch_compile_mode", "device", "model_type")},
    "baseline_model_eager_inference_time_in_ms": _take_of_baseline("torch_eager.ms"),
    "quantized_model_eager_inference_time_in_ms": _take("torch_eager.ms"),
    "baseline_model_compiled_inference_time_in_ms": _take_of_baseline("torch_compile.ms"),
    "quantized_model_compiled_inference_time_in_ms": _take("torch_compile.ms"),
    "eager speedup on baseline": _take("torch_eager.speedup.ratio"),
    "compile speedup on baseline": _take("torch_compile.speedup.ratio"),
    "eager vs compile speedup": _compare_eager_and_compiled,
    # ours
    **{name: _take(name) for name in ("shape", "recipe", "kind", "status", "reason")},
    "iree_baseline_ms": _take_of_baseline("iree.ms"),
    "iree_ms": _take("iree.ms"),
    **{f"{side}_speedup{part}": _take(f"{side}.speedup.{name}") for side in _SIDES for part, name in _RATIO.items()},
    **{
        f"{side}_beside_iree{part}": _take(f"{side}.beside_iree.{name}")
        for side in _SIDES[1:]
        for part, name in _RATIO.items()
    },
    **{name: _take(name) for name in ("max_error", "relative_error", "sqnr_db", "module_bytes", "parameter_bytes")},
    **{name: _take(name) for name in ("peak_rss_bytes", "device_peak_bytes", "compile_s")},
    **{f"{side}_first_call_ms": _take(f"{side}.first_call_ms") for side in _SIDES},
    **{name: _take(name) for name in ("flops", "roofline_share", "roofline_bound", "blocks", "replaced", "seconds")},
    "shows": lambda row, _: "; ".join(row.shows),
    "notes": lambda row, _: "; ".join((*row.point_notes, *row.notes)),
}


def write_results_csv(rows: Sequence[Row], header: Mapping[str, Any] | None = None) -> str:
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
        writer.writerow([_format_cell(column(row, baseline)) for column in CSV_COLUMNS.values()])
    for item in (header or {}).get("missing") or ():
        name, _, label = item["point"].rpartition("/")
        sizes = dict(zip("mkn", label.split("-"), strict=True))
        missing = {"name": name, **sizes, "status": item["status"], "reason": item["reason"]}
        writer.writerow([missing.get(column, "") for column in CSV_COLUMNS])
    return stream.getvalue()


def _format_cell(value: object) -> str:
    """A whole number without a point (bytes), another with all its digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value)
