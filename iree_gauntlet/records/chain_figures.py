"""The figures of a chain that tables show: one line for each model/submodel on a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.figures import (
    duration,
    error_figure,
    mean_and_spread,
    milliseconds,
    percent,
    whole,
)
from iree_gauntlet.records.outcome import BAD_VERDICTS, ChainOutcome

if TYPE_CHECKING:
    from iree_gauntlet.results import Check, OutputComparison, Samples


NOTHING = "–"


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """What a chain measured.

    Attributes:
        compile_seconds: wall time of its compiles that were not served from the cache; None where it has
            no compile that ran.
        compile_cached: all its compiles came from the cache.
        outputs: comparisons of its threshold step.
        samples: repetitions of its benchmark.
        time, dispatches, size: checks of these metrics, the worst where there are several.
        dispatch_count, binary_size_bytes: measured, from the check or the compiler's statistics.
    """

    compile_seconds: float | None
    compile_cached: bool
    outputs: tuple[OutputComparison, ...]
    samples: Samples | None
    time: Check | None
    dispatches: Check | None
    size: Check | None
    dispatch_count: float | None
    binary_size_bytes: float | None
    verdict: str

    @property
    def compile_cell(self) -> str:
        """`8.2 s`, `cached`, or a dash."""
        if self.compile_cached:
            return "cached"
        return NOTHING if self.compile_seconds is None else duration(self.compile_seconds)

    @property
    def worst_output(self) -> OutputComparison | None:
        """The output that is furthest off; a failed one before any that passed."""
        return max(self.outputs, key=_badness, default=None)

    @property
    def quality_cell(self) -> str:
        """`max error 1.2e-05 (≤ 0.0001 + 1e-05·|expected|)`, `12 of 384 differ (3.1 %)`, or a dash."""
        output = self.worst_output
        if output is None:
            return NOTHING
        error = "" if output.max_abs_error is None else f"max error {error_figure(output.max_abs_error)}"
        if output.passed:
            return f"{error} (≤ {output.allowed})" if error else "equal"
        if not output.mismatches:
            # Nothing was compared value by value.
            return "another type or shape than expected"
        differing = (
            f"{whole(output.mismatches)} of {whole(output.count)} differ ({percent(output.mismatches, output.count)})"
            if output.count
            else "differs"
        )
        return f"{differing}, {error}" if error else differing

    @property
    def time_cell(self) -> str:
        """`9.10 ± 0.12`, in ms."""
        if self.samples is None or not self.samples.real_time_ms:
            return NOTHING
        return mean_and_spread(self.samples.mean_ms, self.samples.stdev_ms)

    @property
    def least_time_cell(self) -> str:
        """The least repetition, in ms."""
        least = self.samples.min_ms if self.samples else None
        return NOTHING if least is None else milliseconds(least)

    @property
    def golden_time_cell(self) -> str:
        """`9.00 (limit 9.90, mean)`, in ms."""
        if self.time is None or self.time.golden is None or self.time.limit is None:
            return NOTHING
        statistic = f", {self.time.statistic}" if self.time.statistic else ""
        return f"{milliseconds(self.time.golden)} (limit {milliseconds(self.time.limit)}{statistic})"

    @property
    def dispatches_cell(self) -> str:
        """`76 / 76`: measured / limit."""
        return _against(self.dispatch_count, self.dispatches)

    @property
    def size_cell(self) -> str:
        """`833,586 / 840,000`: measured / limit, in bytes."""
        return _against(self.binary_size_bytes, self.size)


def chain_figures(chain: ChainOutcome) -> ChainFigures:
    """Gather what the steps of a chain measured."""
    compiles = [step for step in chain.steps if step.stage == "compile" and step.verdict != "skipped"]
    ran = [step for step in compiles if not step.never_started and not (step.cache and step.cache.hit)]
    checks = [check for step in chain.steps for check in step.checks]
    main = next((step for step in compiles if not step.role), None)
    benchmarks = [step for step in chain.steps if step.samples is not None]
    bad = [step for step in chain.steps if step.verdict in BAD_VERDICTS]
    # The worst first: it is the chain's.
    bad.sort(key=lambda step: step.verdict is not chain.verdict)
    by_verdict: dict[str, list[str]] = {}
    for step in bad:
        by_verdict.setdefault(str(step.verdict), []).append(step.name)
    verdict = str(chain.verdict)
    dispatches, size = _worst(checks, "dispatch_count"), _worst(checks, "binary_size_bytes")

    def measured(check: Check | None, key: str) -> float | None:
        if check is not None and check.measured is not None:
            return check.measured
        value = main.statistics.get(key) if main is not None else None
        return float(value) if isinstance(value, (int, float)) else None

    return ChainFigures(
        compile_seconds=sum(step.seconds for step in ran) if ran else None,
        compile_cached=bool(compiles) and all(step.cache and step.cache.hit for step in compiles),
        outputs=tuple(output for step in chain.steps for output in step.outputs),
        samples=benchmarks[-1].samples if benchmarks else None,
        time=_worst(checks, "time_ms"),
        dispatches=dispatches,
        size=size,
        dispatch_count=measured(dispatches, "dispatch_count"),
        binary_size_bytes=measured(size, "binary_size_bytes"),
        verdict="; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in by_verdict.items()) or verdict,
    )


def _worst(checks: list[Check], metric: str) -> Check | None:
    """The check of a metric that failed, else one that was made, else any."""
    own = [check for check in checks if check.metric == metric]
    return min(own, key=lambda check: {False: 0, True: 1, None: 2}[check.passed], default=None)


def _against(value: float | None, check: Check | None) -> str:
    if value is None:
        return NOTHING
    return whole(value) if check is None or check.limit is None else f"{whole(value)} / {whole(check.limit)}"


def _badness(output: OutputComparison) -> tuple[bool, float]:
    error = output.max_abs_error if output.max_abs_error is not None else 0.0
    return not output.passed, math.inf if math.isnan(error) else error / (output.atol or 1.0)
