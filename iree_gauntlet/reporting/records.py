"""The parts of a step's result, as the journal holds them, in types.

A journal writes NaN and infinities as the strings `nan`, `inf` and `-inf`, since JSON has no such numbers.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

__all__ = ["CacheUse", "Check", "Fetched", "OutputComparison", "Samples", "number"]

_TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


def number(value: Any) -> float | None:
    """A journal's number; None for null.

    Raises:
        TypeError, ValueError: it is neither a number nor one of `nan`, `inf`, `-inf`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{value!r} is no number")
    return float(value)


@dataclass(frozen=True, slots=True)
class Check:
    """A figure held against a golden.

    Attributes:
        metric: `time_ms`, `dispatch_count` or `binary_size_bytes`.
        measured: in `unit`; None where nothing could be measured.
        golden, limit: in `unit`; None where there is nothing to check against.
        factor: limit = golden × factor.
        statistic: which figure of the repetitions was held against the limit (`mean`, `min`), or empty.
        passed: None where there was nothing to check against.
        note: why it was not checked, and where the golden is written.
    """

    metric: str
    measured: float | None
    golden: float | None
    factor: float
    limit: float | None
    unit: str
    statistic: str
    sku: str
    release: str
    passed: bool | None
    note: str

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Check:
        """From a journal's object; KeyError, TypeError or ValueError where it is none."""
        factor = number(data.get("factor"))
        return cls(
            metric=str(data["metric"]),
            measured=number(data.get("measured")),
            golden=number(data.get("golden")),
            factor=1.0 if factor is None else factor,
            limit=number(data.get("limit")),
            unit=str(data.get("unit", "")),
            statistic=str(data.get("statistic", "")),
            sku=str(data.get("sku", "")),
            release=str(data.get("release", "")),
            passed=data.get("passed"),
            note=str(data.get("note", "")),
        )


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """One output of a program against what was expected; the numbers are those of the journal."""

    index: int
    type: str
    passed: bool
    message: str
    mismatches: int
    count: int
    max_abs_error: float | None
    max_rel_error: float | None
    worst_index: tuple[int, ...]
    worst_actual: str
    worst_expected: str
    cosine_similarity: float | None
    actual_nans: int
    expected_nans: int
    actual_infs: int
    expected_infs: int
    atol: float | None
    rtol: float | None
    actual_path: str
    expected_path: str

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> OutputComparison:
        """From a journal's object; KeyError, TypeError or ValueError where it is none."""
        return cls(
            index=int(data["index"]),
            type=str(data.get("type", "")),
            passed=bool(data["passed"]),
            message=str(data.get("message", "")),
            mismatches=int(data.get("mismatches") or 0),
            count=int(data.get("count") or 0),
            max_abs_error=number(data.get("max_abs_error")),
            max_rel_error=number(data.get("max_rel_error")),
            worst_index=tuple(int(i) for i in data.get("worst_index") or ()),
            worst_actual=_text(data.get("worst_actual")),
            worst_expected=_text(data.get("worst_expected")),
            cosine_similarity=number(data.get("cosine_similarity")),
            actual_nans=int(data.get("actual_nans") or 0),
            expected_nans=int(data.get("expected_nans") or 0),
            actual_infs=int(data.get("actual_infs") or 0),
            expected_infs=int(data.get("expected_infs") or 0),
            atol=number(data.get("atol")),
            rtol=number(data.get("rtol")),
            actual_path=_text(data.get("actual_path")),
            expected_path=_text(data.get("expected_path")),
        )


@dataclass(frozen=True, slots=True)
class Samples:
    """Every repetition of a benchmark, in ms of real time and of CPU time."""

    name: str
    real_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Samples:
        """From a journal's object; KeyError, TypeError or ValueError where it is none."""
        scale = _TO_MS[str(data["unit"])]
        return cls(
            name=str(data.get("name", "")),
            real_ms=tuple(float(t) * scale for t in data.get("real_time") or ()),
            cpu_ms=tuple(float(t) * scale for t in data.get("cpu_time") or ()),
        )

    @property
    def mean_ms(self) -> float:
        """Mean of the real times; NaN where there is none."""
        return statistics.fmean(self.real_ms) if self.real_ms else math.nan

    @property
    def min_ms(self) -> float:
        """Least of the real times; NaN where there is none."""
        return min(self.real_ms, default=math.nan)

    @property
    def stdev_ms(self) -> float | None:
        """Sample standard deviation (n - 1) of the real times; None below two of them."""
        return statistics.stdev(self.real_ms) if len(self.real_ms) > 1 else None


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Whether a step's result came from the cache, and why or why not."""

    hit: bool
    key: str
    reason: str

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CacheUse:
        """From a journal's object; KeyError where it is none."""
        return cls(bool(data["hit"]), _text(data.get("key")), _text(data.get("reason")))


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that a step asked for: `cached` where it was there already."""

    url: str
    path: str
    bytes: int
    seconds: float
    cached: bool

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fetched:
        """From a journal's object; KeyError, TypeError or ValueError where it is none."""
        return cls(
            url=str(data["url"]),
            path=_text(data.get("path")),
            bytes=int(data.get("bytes") or 0),
            seconds=number(data.get("seconds")) or 0.0,
            cached=bool(data.get("cached")),
        )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
