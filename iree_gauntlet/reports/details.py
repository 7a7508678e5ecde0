"""What is said of one step, in lines of plain text: the same words in every report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.figures import FIGURES
from iree_gauntlet.formatting import (
    byte_size,
    duration,
    figure,
    format_error,
    format_mean_and_spread,
    one_line,
    percent,
    whole,
)

if TYPE_CHECKING:
    from iree_gauntlet.cases import Origin
    from iree_gauntlet.journal_events import MachineFacts
    from iree_gauntlet.records.outcome import Explanation, StepOutcome
    from iree_gauntlet.results import Check, OutputComparison


def check_line(check: Check) -> str:
    """One check: measured against its limit, and by how much it is over."""
    name = FIGURES[check.metric].word if check.metric in FIGURES else check.metric
    if check.statistic:
        name = f"{name} ({check.statistic})"
    note = f"; {one_line(check.note)}" if check.note else ""
    if check.measured is None:
        return f"{name}: not measured{note}"
    measured = figure(check.measured, check.unit)
    if check.golden is None or check.limit is None:
        return f"{name}: {measured}, not checked{note}"
    golden = f"golden {figure(check.golden, check.unit)}"
    limit = f"{figure(check.limit, check.unit)} ({golden} × {check.factor:g})" if check.factor != 1 else golden
    if check.passed is None:
        return f"{name}: {measured}, not checked against {limit}{note}"
    over = check.measured - check.limit
    # A verdict may rest on more than these two figures (a breach is confirmed by further rounds).
    if over <= 0:
        return f"{name}: {measured}{', within' if check.passed else ' failed against'} {limit}{note}"
    passed = ", passed," if check.passed else ""
    share = f", +{100 * over / check.limit:.1f} %" if check.limit > 0 else ""
    return f"{name}: {measured}{passed} exceeds {limit} by {figure(over, check.unit)}{share}{note}"


def format_comparison(output: OutputComparison) -> str:
    """One output against what was expected: how much is wrong, how far, and where."""
    kind = f" ({one_line(output.type)})" if output.type else ""
    parts = []
    # The figures below say the rest; without any (another type or shape), the message does.
    if output.message and not output.passed and not (output.count and output.mismatches):
        parts.append(one_line(output.message))
    if output.count and output.passed:
        parts.append(f"{whole(output.count)} element{'s' if output.count > 1 else ''} as expected")
    elif output.count and output.mismatches:
        share = percent(output.mismatches, output.count)
        parts.append(f"{whole(output.mismatches)} of {whole(output.count)} elements differ ({share})")
    if output.max_abs_error is not None:
        error = f"max absolute error {format_error(output.max_abs_error)}"
        if output.max_rel_error is not None:
            error += f", max relative error {format_error(output.max_rel_error)}"
        parts.append(f"{error} (allowed {output.allowed})")
    if not output.passed and (output.worst_actual or output.worst_expected):
        where = ", ".join(map(str, output.worst_index or ()))
        worst = f"{one_line(output.worst_actual, 60)} where {one_line(output.worst_expected, 60)} was expected"
        parts.append(f"worst at [{where}]: {worst}")
    if output.cosine_similarity is not None:
        parts.append(f"cosine similarity {output.cosine_similarity:.6g}")
    for name, actual, expected in (
        ("NaN", output.actual_nans, output.expected_nans),
        ("Inf", output.actual_infs, output.expected_infs),
    ):
        if actual or expected:
            parts.append(f"{name} {actual}, expected {expected}")
    return f"output {output.index}{kind}: {'; '.join(parts) or ('as expected' if output.passed else 'differs')}"


def _format_process_line(step: StepOutcome) -> str:
    """How the process ended; empty where there was none, it ended well, or the reason says so already."""
    if step.timed_out:
        # Its reason says so, and that a signal followed is our own doing.
        return ""
    if step.signal:
        return "" if step.signal in step.reason else f"the process was killed by {one_line(step.signal)}"
    if step.exit_code and not step.outputs and f"exit code {step.exit_code}" not in step.reason:
        return f"the process exited with {step.exit_code}"
    return ""


def list_findings(step: StepOutcome) -> list[str]:
    """What a verdict rests on: every output, every check, how the process ended. Failures come first."""
    outputs = [(output.passed, format_comparison(output)) for output in step.outputs]
    checks = [(check.passed is not False, check_line(check)) for check in step.checks]
    lines = [line for _, line in sorted(outputs + checks, key=lambda found: found[0])]
    ended = _format_process_line(step)
    return [*([ended] if ended else []), *lines]


def list_unapplied(step: StepOutcome) -> list[tuple[Origin, str]]:
    """Where each golden is written whose figure was held against none, and what was measured in its place."""
    checks = {check.metric: check for check in step.checks}
    return [(golden.origin, f"not applied: {check_line(checks[golden.metric])}") for golden in step.unapplied_goldens]


def format_explanation(explanation: Explanation) -> str:
    """What `explain` found, without the bundle."""
    mended = f"; mended by: {', '.join(explanation.mended_by)}" if explanation.mended_by else ""
    return one_line(f"explained: {explanation.answer}{mended}")


def list_measured(step: StepOutcome) -> list[str]:
    """What was measured in addition to the checks: samples, statistics, cache, memory, files fetched."""
    lines = []
    if step.samples is not None and step.samples.real_time_ms:
        spread = step.samples.stdev_ms
        times = f"{format_mean_and_spread(step.samples.mean_ms, spread)} ms"
        count = len(step.samples.real_time_ms)
        times += "" if step.samples.min_ms is None else f", min {figure(step.samples.min_ms, 'ms')}"
        times += f", {count} repetition{'s' if count > 1 else ''}"
        name = f" {one_line(step.samples.name)}" if step.samples.name else ""
        lines.append(f"real time{name}: {times}")
    lines += [f"{one_line(str(key))}: {one_line(str(value))}" for key, value in sorted(step.statistics.items())]
    if step.cache is not None:
        state = "hit" if step.cache.hit else "miss"
        lines.append(f"cache: {state}" + (f" ({one_line(step.cache.reason)})" if step.cache.reason else ""))
    if step.peak_rss_bytes:
        lines.append(f"peak memory: {byte_size(step.peak_rss_bytes)}")
    for file in step.fetched:
        how = "present" if file.cached else f"fetched in {duration(file.seconds)}"
        lines.append(f"file: {one_line(file.url)} ({byte_size(file.bytes)}, {how})")
    return lines


def format_devices(machine: MachineFacts) -> str:
    """The devices of a run besides the CPU: `llvmpipe (LLVM 15.0.6), llvmpipe Mesa 22.3.6, software: vulkan://GPU-…`."""
    return "; ".join(f"{device.text}: {device.uri}" if device.text else device.uri for device in machine.devices)
