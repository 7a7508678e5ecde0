"""The record of a `micro` sweep: the request in the journal's `run` event, the measurements in the results.

Missing measurements are None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.formatting import format_bytes, format_duration, format_error, format_milliseconds
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable


# The key of a point's record in the benchmark step's statistics, and of the sweep's request in the `run` event.
MICRO = "micro"
UNREADABLE_SWEEP = (
    "It was written by another version of this toolkit, or changed: use that version, or begin a new sweep."
)
# The states of a variant; the others are `skipped`, `failed` and `error`.
MEASURED = "measured"
# The compiler built the same module as for the baseline: the recipe has no effect.
SAME_MODULE = "same module"


@dataclass(frozen=True, slots=True)
class Ratio(Recorded):
    """A speedup factor, and its interval, which is None if the evidence is too little for an interval.

    Attributes:
        word: `faster`, `slower`, `same` or `inconclusive`.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class IreeTimes(Recorded):
    """The time of IREE, and the speedup over the baseline, unless this variant is the baseline."""

    ms: float
    speedup: Ratio | None = None


@dataclass(frozen=True, slots=True)
class TorchTimes(Recorded):
    """The time of torch (eager or compiled), its speedup over torch's baseline, and its time over IREE's."""

    ms: float
    first_call_ms: float | None = None
    speedup: Ratio | None = None
    beside_iree: Ratio | None = None


@dataclass(frozen=True, slots=True)
class DashboardMetric:
    """A figure in the records of the benchmark database.

    Attributes:
        place: the position of the record among a variant's records.
        scale: the size of the metric's unit, in units of the figure.
    """

    name: str
    unit: str
    place: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigure:
    """A figure of a variant, for all reports of a sweep: metadata of the record's field with the figure.

    Attributes:
        column: the heading in the table of all figures.
        place: the position among the figures' columns, in that table and in `results.csv`.
        write: formats the number for people, with the unit if the heading has none.
        key: the column in `results.csv`, if its name is not the field's name.
        needs_time: True if tables show the figure only next to a time of IREE.
        detail: the field of the same part whose text follows the number; empty for none.
        series: the figure's name in a history; empty if histories omit the figure.
        part, field: the figure's location in a record; `part` is empty for the record itself.
    """

    column: str
    place: int
    write: Callable[[float], str]
    metric: DashboardMetric
    key: str = ""
    needs_time: bool = False
    detail: str = ""
    series: str = ""
    part: str = ""
    field: str = ""

    def read(self, variant: VariantRecord) -> float | None:
        """Return the figure's value; None if it was not measured."""
        value: float | None = getattr(self._find_part(variant), self.field, None)
        return value

    def read_for_table(self, variant: VariantRecord) -> float | None:
        """Return the figure's value; None if tables do not show it."""
        return None if self.needs_time and variant.iree is None else self.read(variant)

    def format(self, variant: VariantRecord) -> str:
        """Format the figure for a table; return an empty text if it was not measured."""
        value = self.read_for_table(variant)
        if value is None:
            return ""
        text = self.write(value)
        return f"{text} {getattr(self._find_part(variant), self.detail)}" if self.detail else text

    def _find_part(self, variant: VariantRecord) -> object:
        return getattr(variant, self.part) if self.part else variant


def _declare_figure(
    column: str, position: int, write: Callable[[float], str], metric: DashboardMetric, **options: Any
) -> Any:
    row = VariantFigure(column=column, place=position, write=write, metric=metric, **options)
    return field(default=None, metadata={"figure": row})


def format_decibels(value: float) -> str:
    """Format a signal-to-noise ratio: `42.1 dB`, or `exact` if there is no difference."""
    return "exact" if value == math.inf else f"{value:.1f} dB"


def _format_size(value: float) -> str:
    return format_bytes(value) if math.isfinite(value) else ""


@dataclass(frozen=True, slots=True)
class NumberErrors(Recorded):
    """The distance of outputs from the unchanged model's outputs: maximum, root mean square, and in dB."""

    max: float | None = _declare_figure(
        "max error", 0, format_error, DashboardMetric("Max Error", "", 6), key="max_error"
    )
    relative: float | None = _declare_figure(
        "relative error", 1, format_error, DashboardMetric("Relative Error", "", 7), key="relative_error"
    )
    sqnr_db: float | None = _declare_figure(
        "SQNR", 2, format_decibels, DashboardMetric("SQNR (dB)", "dB", 8), key="sqnr_db"
    )


@dataclass(frozen=True, slots=True)
class PeakShare(Recorded):
    """The fraction of the machine's measured peak (of `compute` or `memory`) that is reached; 1 is the peak itself."""

    share: float | None = _declare_figure(
        "of peak",
        9,
        lambda share: f"{100 * share:.0f} %",
        DashboardMetric("Share of Machine Peak (%)", "%", 9, 0.01),
        detail="bound",
    )
    bound: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRecord(Recorded):
    """One variant at one point.

    Attributes:
        quantization, sparsity: the variant's two parts; None for no sparsity.
        kind: `quantization`, `sparsity` or `compiler`.
        status: `measured`, `same module` (as the baseline, which has the times), `skipped`, `failed` or `error`.
        reason: the reason for a status other than `measured`.
        agreement: the agreement with torch eager for the same recipe.
        shows: the facts about the compiled module that prove its recipe.
    """

    label: str
    quantization: str
    sparsity: str | None = None
    kind: str
    status: str
    reason: str = ""
    iree: IreeTimes | None = None
    torch_eager: TorchTimes | None = None
    torch_compile: TorchTimes | None = None
    error: NumberErrors | None = None
    agreement: dict[str, Any] | None = None
    first_call_ms: float | None = _declare_figure(
        "first call, ms",
        8,
        format_milliseconds,
        DashboardMetric("First Call (ms)", "ms", 5),
        key="iree_first_call_ms",
        needs_time=True,
    )
    module_bytes: float | None = _declare_figure(
        "module", 3, _format_size, DashboardMetric("Module Size (MB)", "MB", 2, 1e6), series="size_bytes"
    )
    parameter_bytes: float | None = _declare_figure(
        "parameters", 4, _format_size, DashboardMetric("Parameter Size (MB)", "MB", 3, 1e6)
    )
    peak_rss_bytes: float | None = _declare_figure(
        "peak memory", 5, _format_size, DashboardMetric("Peak Resident Memory (MB)", "MB", 1, 1e6)
    )
    device_peak_bytes: float | None = _declare_figure(
        "device memory", 6, _format_size, DashboardMetric("Allocated Memory (MB)", "MB", 0, 1e6)
    )
    compile_s: float | None = _declare_figure(
        "compile", 7, format_duration, DashboardMetric("Compile Time (s)", "s", 4)
    )
    roofline: PeakShare | None = None
    shows: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_RECORD_TYPES: dict[str, type] = {"error": NumberErrors, "": VariantRecord, "roofline": PeakShare}
_FIGURES: list[VariantFigure] = [
    replace(attribute.metadata["figure"], part=part, field=attribute.name)
    for part, record_type in _RECORD_TYPES.items()
    for attribute in fields(record_type)
    if "figure" in attribute.metadata
]
# The figures in the order of the columns.
VARIANT_FIGURES = tuple(sorted(_FIGURES, key=lambda figure: figure.place))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFacts(Recorded):
    """An entry of `model_params` (`name`) at a shape, whose name is `shape` and whose label `m-k-n` is `label`."""

    name: str
    model_type: str
    shape: str
    m: int
    k: int
    n: int
    label: str
    dtype: str
    device: str
    flops: float | None = None
    torch_compile_mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord(Recorded):
    """A measured point, with the number of blocks that count, and of disturbed blocks that were measured again."""

    point: PointFacts
    variants: tuple[VariantRecord, ...]
    blocks: int = 0
    replaced: int = 0
    seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest(Recorded):
    """The request of a sweep.

    Attributes:
        digest: the configuration's SHA-256.
        refused: the points whose device is missing, with the reason.
        output_dir, output: where to copy the results, relative to the working directory; empty for no copy.
        iree: the options that choose the IREE.
    """

    config: str
    digest: str
    plugin: tuple[str, ...] = ()
    torch_python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    points: tuple[str, ...]
    refused: dict[str, str] = field(default_factory=dict)
    output_dir: str = ""
    device: str = ""
    target: str = ""
    dtype: str = ""
    against: str = "torch"
    disturbed: str = "replace"
    output: str = ""
    targets: str = ""
    iree: dict[str, Any] = field(default_factory=dict)
