"""What a sweep of `micro` keeps: in the journal's `run` event what was asked for, in the results what was measured.

None is what was not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.formatting import byte_size, duration, format_error, milliseconds
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable


# Where the record of a point stands in the statistics of its benchmark step, and what was asked for in the event.
MICRO = "micro"
UNREADABLE_SWEEP = (
    "It was written by another version of this toolkit, or changed: use that version, or begin a new sweep."
)
# What becomes of a variant; in their place, `skipped`, `failed` and `error`.
MEASURED = "measured"
# The compiler made the same module as for the baseline: the recipe changes nothing here.
SAME = "same module"


@dataclass(frozen=True, slots=True)
class Ratio(Recorded):
    """How many times faster something is, and its interval, None where the evidence is too little for one.

    Attributes:
        word: `faster`, `slower`, `same` or `inconclusive`.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class IreeTimes(Recorded):
    """How long IREE takes; next to the baseline, where it is another."""

    ms: float
    speedup: Ratio | None = None


@dataclass(frozen=True, slots=True)
class TorchTimes(Recorded):
    """How long torch takes, eager or compiled; next to its own baseline, and IREE's time for the same variant."""

    ms: float
    first_call_ms: float | None = None
    speedup: Ratio | None = None
    beside_iree: Ratio | None = None


@dataclass(frozen=True, slots=True)
class DashboardMetric:
    """A figure in the records of the benchmark database.

    Attributes:
        place: of its record among those of a variant.
        scale: the size of its unit in that of the figure.
    """

    name: str
    unit: str
    place: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigure:
    """A figure of a variant, as all reports of a sweep read it: metadata of the record's field that holds it.

    Attributes:
        column: heading in the table of all figures.
        place: of its column among those of figures, there and in `results.csv`.
        write: the number for people, with its unit where the heading has none.
        key: in `results.csv`, where that is not the field's name.
        needs_time: whether tables show it only beside a time of IREE's.
        detail: the field beside it whose text follows the number; empty where none does.
        series: its name in a history; empty where that does not keep it.
        part, field: where a record has it; the part is empty for the record itself.
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
        """Take its value; None where nothing was measured."""
        value: float | None = getattr(self._find_part(variant), self.field, None)
        return value

    def read_for_table(self, variant: VariantRecord) -> float | None:
        """Take its value; None where tables do not show it."""
        return None if self.needs_time and variant.iree is None else self.read(variant)

    def format(self, variant: VariantRecord) -> str:
        """Write it for a table; empty where nothing was measured."""
        value = self.read_for_table(variant)
        if value is None:
            return ""
        text = self.write(value)
        return f"{text} {getattr(self._find_part(variant), self.detail)}" if self.detail else text

    def _find_part(self, variant: VariantRecord) -> object:
        return getattr(variant, self.part) if self.part else variant


def _declare_figure(
    column: str, place: int, write: Callable[[float], str], metric: DashboardMetric, **others: Any
) -> Any:
    row = VariantFigure(column=column, place=place, write=write, metric=metric, **others)
    return field(default=None, metadata={"figure": row})


def format_decibels(value: float) -> str:
    """Write a signal-to-noise ratio: `42.1 dB`, `exact` where nothing differs."""
    return "exact" if value == math.inf else f"{value:.1f} dB"


def _format_size(value: float) -> str:
    return byte_size(value) if math.isfinite(value) else ""


@dataclass(frozen=True, slots=True)
class NumberErrors(Recorded):
    """How far outputs are from those of the unchanged model: at most, by root mean square, and in dB."""

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
    """How much is reached of the machine's measured peak, 1 for all of it; of `compute` or `memory`."""

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
        quantization, sparsity: its two parts; None for no sparsity.
        kind: `quantization`, `sparsity` or `compiler`.
        status: `measured`, `same module` (as the baseline's, which has its times), `skipped`, `failed` or `error`.
        reason: why it is not `measured`.
        agreement: with torch eager for the same recipe.
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
        milliseconds,
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
    compile_s: float | None = _declare_figure("compile", 7, duration, DashboardMetric("Compile Time (s)", "s", 4))
    roofline: PeakShare | None = None
    shows: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_PARTS: dict[str, type] = {"error": NumberErrors, "": VariantRecord, "roofline": PeakShare}
_FIGURES: list[VariantFigure] = [
    replace(item.metadata["figure"], part=part, field=item.name)
    for part, kind in _PARTS.items()
    for item in fields(kind)
    if "figure" in item.metadata
]
# In the order of columns.
VARIANT_FIGURES = tuple(sorted(_FIGURES, key=lambda figure: figure.place))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFacts(Recorded):
    """An architecture at a shape: an entry of `model_params` by its name, and `m-k-n`, the label."""

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
    """A point that was measured, by blocks of rounds that count, and those that were disturbed and taken again."""

    point: PointFacts
    variants: tuple[VariantRecord, ...]
    blocks: int = 0
    replaced: int = 0
    seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAsked(Recorded):
    """What a sweep was asked for.

    Attributes:
        digest: SHA-256 of the configuration.
        refused: points whose device is not there, with the reason.
        output_dir, output: where copies of the results go, from the working directory; empty for nowhere.
        iree: which IREE, by the options that choose it.
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
