"""What a sweep of `micro` keeps: in the journal's `run` event what was asked for, in the results what was measured.

None is what was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from iree_gauntlet.recorded import Recorded

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
class NumberErrors(Recorded):
    """How far outputs are from those of the unchanged model: at most, by root mean square, and in dB."""

    max: float | None = None
    relative: float | None = None
    sqnr_db: float | None = None


@dataclass(frozen=True, slots=True)
class PeakShare(Recorded):
    """How much is reached of the machine's measured peak, 1 for all of it; of `compute` or `memory`."""

    share: float | None = None
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
    first_call_ms: float | None = None
    module_bytes: float | None = None
    parameter_bytes: float | None = None
    peak_rss_bytes: float | None = None
    device_peak_bytes: float | None = None
    compile_s: float | None = None
    roofline: PeakShare | None = None
    shows: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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
