"""What reports read: the record of each point as flat rows, one a variant; and these as CSV.

Columns that mean what torchao's `generate_results_csv` (benchmarks/microbenchmarks/utils.py) writes have its names and
its order; its times and speed-ups are torch's, eager and by torch.compile. Ours follow. A cell is empty where nothing
was measured, and numbers have all their digits.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iree_gauntlet.formatting import one_line
from iree_gauntlet.journal_events import MachineFacts, ToolchainFacts
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.chain_figures import NOTHING
from iree_gauntlet.records.sweep_record import VARIANT_FIGURES, NumberErrors, PointRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.records.sweep_record import PointFacts, Ratio, VariantFigure, VariantRecord


_BASELINE = "baseline"
# What a ratio says, where it is not plain from its size.
_MARKS = {"inconclusive": " ?", "same": " ="}
_TITLE = 100
# What stands in a column, of a variant and of the baseline at its point.
_Column = Callable[["Row", "Row | None"], object]
_TORCH_TYPES = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}
_SIDES = ("iree", "torch_eager", "torch_compile")
_RATIO = {"": "ratio", "_low": "low", "_high": "high", "_word": "word"}


@dataclass(frozen=True, slots=True)
class Row:
    """One variant at one point."""

    record: PointRecord
    variant: VariantRecord

    @property
    def point(self) -> PointFacts:
        """The point."""
        return self.record.point

    @property
    def place(self) -> tuple[str, str, str, str, str]:
        """What tells its point from others."""
        point = self.point
        return point.name, point.model_type, point.dtype, point.device, point.label

    @property
    def label(self) -> str:
        """Of the shape."""
        return self.point.label

    @property
    def recipe(self) -> str:
        """Of the variant."""
        return self.variant.label

    @property
    def is_baseline(self) -> bool:
        """Whether the others are compared with it."""
        return self.recipe == _BASELINE

    @property
    def speedup(self) -> Ratio | None:
        """On IREE, against the baseline."""
        return self.variant.iree.speedup if self.variant.iree else None

    @property
    def errors(self) -> NumberErrors:
        """How far its outputs are from the unchanged model's."""
        return self.variant.error or NumberErrors()


@dataclass(frozen=True, slots=True)
class HeaderGpu(Recorded):
    """A GPU of a sweep."""

    name: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MissingPoint(Recorded):
    """A point without a record: what became of it, and why."""

    point: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHeader(Recorded):
    """Where a sweep is from, as far as is known.

    Attributes:
        state: `complete`, `interrupted` or `unfinished`.
        lock_folder: empty for the usual one.
    """

    run: str = ""
    state: str = "complete"
    started: str = ""
    config: str = ""
    toolchain: ToolchainFacts = field(default_factory=ToolchainFacts)
    machine: MachineFacts = field(default_factory=MachineFacts)
    command: str = ""
    cwd: str = ""
    version: str = ""
    lock_folder: str = ""
    gpus: tuple[HeaderGpu, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    missing: tuple[MissingPoint, ...] = ()


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
        return self.rows[0].point.name

    @property
    def title(self) -> str:
        """`small_linear (linear, f32, cpu)`."""
        point = self.rows[0].point
        return one_line(f"{point.name} ({point.model_type}, {point.dtype}, {point.device})", _TITLE)

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
    """The rows of some points, in their order."""
    points = map(PointRecord.from_dict, records)
    return tuple(Row(point, variant) for point in points for variant in point.variants)


def group_entries(rows: Iterable[Row]) -> tuple[SweepEntry, ...]:
    """The rows by entry of `model_params`, in the order of their first ones."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.place[:-1], []).append(row)
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


def format_ratio(ratio: Ratio | None) -> str:
    """`1.72 (1.60–1.84)`, marked where it is no difference; a dash for none."""
    if ratio is None:
        return NOTHING
    span = "" if ratio.low is None or ratio.high is None else f" ({times(ratio.low)}–{times(ratio.high)})"
    return f"{times(ratio.ratio)}{span}{_MARKS.get(ratio.word, '')}"


def _take(path: str) -> _Column:
    """What a variant has at the end of a path of fields; None where a part of it is None."""
    return lambda row, _: _find_field(row, path)


def _take_of_baseline(path: str) -> _Column:
    return lambda _, baseline: _find_field(baseline, path)


def _take_figure(figure: VariantFigure) -> _Column:
    return lambda row, _: figure.read_for_table(row.variant)


def _find_field(found: object, path: str) -> object:
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _compare_eager_and_compiled(row: Row, _: Row | None) -> float | None:
    eager, compiled = row.variant.torch_eager, row.variant.torch_compile
    return eager.ms / compiled.ms if eager and compiled and compiled.ms else None


CSV_COLUMNS: dict[str, _Column] = {
    # torchao's
    "name": _take("point.name"),
    **{name: _take(f"variant.{name}") for name in ("quantization", "sparsity")},
    **{name: _take(f"point.{name}") for name in ("m", "k", "n")},
    "high_precision_dtype": lambda row, _: _TORCH_TYPES.get(row.point.dtype, row.point.dtype),
    **{name: _take(f"point.{name}") for name in ("torch_compile_mode", "device", "model_type")},
    "baseline_model_eager_inference_time_in_ms": _take_of_baseline("variant.torch_eager.ms"),
    "quantized_model_eager_inference_time_in_ms": _take("variant.torch_eager.ms"),
    "baseline_model_compiled_inference_time_in_ms": _take_of_baseline("variant.torch_compile.ms"),
    "quantized_model_compiled_inference_time_in_ms": _take("variant.torch_compile.ms"),
    "eager speedup on baseline": _take("variant.torch_eager.speedup.ratio"),
    "compile speedup on baseline": _take("variant.torch_compile.speedup.ratio"),
    "eager vs compile speedup": _compare_eager_and_compiled,
    # ours
    "shape": _take("point.shape"),
    "recipe": _take("recipe"),
    **{name: _take(f"variant.{name}") for name in ("kind", "status", "reason")},
    "iree_baseline_ms": _take_of_baseline("variant.iree.ms"),
    "iree_ms": _take("variant.iree.ms"),
    **{
        f"{side}_speedup{part}": _take(f"variant.{side}.speedup.{name}")
        for side in _SIDES
        for part, name in _RATIO.items()
    },
    **{
        f"{side}_beside_iree{part}": _take(f"variant.{side}.beside_iree.{name}")
        for side in _SIDES[1:]
        for part, name in _RATIO.items()
    },
    **{figure.key: _take_figure(figure) for figure in VARIANT_FIGURES if figure.part != "roofline"},
    **{f"{side}_first_call_ms": _take(f"variant.{side}.first_call_ms") for side in _SIDES[1:]},
    "flops": _take("point.flops"),
    **{f"roofline_{name}": _take(f"variant.roofline.{name}") for name in ("share", "bound")},
    **{name: _take(f"record.{name}") for name in ("blocks", "replaced", "seconds")},
    "shows": lambda row, _: "; ".join(row.variant.shows),
    "notes": lambda row, _: "; ".join((*row.record.notes, *row.variant.notes)),
}


def format_results_csv(rows: Sequence[Row], missing: Sequence[MissingPoint] = ()) -> str:
    """The whole file, with its header; lines end as RFC 4180 has it.

    A point without figures (of a sweep that was interrupted, say) has a line with its status and the reason.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(CSV_COLUMNS)
    baselines = {row.place: row for row in rows if row.is_baseline}
    for row in rows:
        baseline = baselines.get(row.place)
        writer.writerow([_format_cell(column(row, baseline)) for column in CSV_COLUMNS.values()])
    for item in missing:
        name, _, label = item.point.rpartition("/")
        sizes = dict(zip("mkn", label.split("-"), strict=False))
        cells = {"name": name, **sizes, "status": item.status, "reason": item.reason}
        writer.writerow([cells.get(column, "") for column in CSV_COLUMNS])
    return stream.getvalue()


def _format_cell(value: object) -> str:
    """A whole number without a point (bytes), another with all its digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value)
