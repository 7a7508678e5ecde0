"""Describe one step in lines of plain text, with the same words in every report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iree_gauntlet.diagnostics import find_diagnostic, normalize_diagnostic, strip_exit_code, without_expectation
from iree_gauntlet.figures import FIGURES
from iree_gauntlet.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_error,
    format_figure,
    format_mean_and_spread,
    format_percent,
    format_ratio,
    join_lines,
    pluralize,
)
from iree_gauntlet.stages import FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cases import Origin
    from iree_gauntlet.journal_events import MachineInfo
    from iree_gauntlet.records.outcome import Explanation, StepOutcome
    from iree_gauntlet.results import Check, OutputComparison


_MAX_CAUSES = 2


def format_check(check: Check) -> str:
    """Format one check: the measured value, its limit, and the excess."""
    name = FIGURES[check.metric].word if check.metric in FIGURES else check.metric
    if check.statistic:
        name = f"{name} ({check.statistic})"
    note = f"; {join_lines(check.note)}" if check.note else ""
    if check.measured is None:
        return f"{name}: not measured{note}"
    value_text = format_figure(check.measured, check.unit)
    if check.golden is None or check.limit is None:
        return f"{name}: {value_text}, not checked{note}"
    golden = f"golden {format_figure(check.golden, check.unit)}"
    limit = f"{format_figure(check.limit, check.unit)} ({golden} × {check.factor:g})" if check.factor != 1 else golden
    # The verdict need not follow from these two values: further rounds confirm a breach.
    if check.passed is None:
        relation = ", not checked against"
    elif check.measured > check.limit:
        relation = ", passed, exceeds" if check.passed else " exceeds"
        limit += f": {format_ratio(check.measured / check.limit)}" if check.limit > 0 else ""
    else:
        relation = ", within" if check.passed else " failed against"
    return f"{name}: {value_text}{relation} {limit}{note}"


def format_comparison(output: OutputComparison) -> str:
    """Format the comparison of one output: the number of wrong elements, the error, and the error's location."""
    type_text = f" ({join_lines(output.type)})" if output.type else ""
    parts = []
    # Use the message if there are no metrics of the difference (another type or shape).
    if output.message and not output.passed and not (output.count and output.mismatches):
        parts.append(join_lines(output.message))
    if output.count and output.passed:
        parts.append(f"{format_count(output.count)} element{'s' if output.count > 1 else ''} as expected")
    elif output.count and output.mismatches:
        fraction = format_percent(output.mismatches, output.count)
        parts.append(f"{format_count(output.mismatches)} of {format_count(output.count)} elements differ ({fraction})")
    if output.max_abs_error is not None:
        values = " of finite values" if output.special_text else ""
        error = f"max absolute error{values} {format_error(output.max_abs_error)}"
        if output.max_rel_error is not None:
            error += f", max relative error {format_error(output.max_rel_error)}"
        parts.append(f"{error} (allowed {output.tolerance_text})")
    if not output.passed and (output.worst_actual or output.worst_expected):
        index_text = ", ".join(map(str, output.worst_index or ()))
        worst = f"{join_lines(output.worst_actual, 60)} where {join_lines(output.worst_expected, 60)} was expected"
        parts.append(f"worst at [{index_text}]: {join_lines(output.special_text) or worst}")
    if output.cosine_similarity is not None:
        parts.append(f"cosine similarity {output.cosine_similarity:.6g}")
    for name, actual_count, expected_count in output.special_counts:
        if actual_count or expected_count:
            parts.append(f"{name} {actual_count}, expected {expected_count}")
    return f"{output.label}{type_text}: {'; '.join(parts) or ('as expected' if output.passed else 'differs')}"


def _format_process_line(step: StepOutcome) -> str:
    """Describe a process's failure; return nothing if no process failed, or if the step's reason has the failure."""
    if step.timed_out:
        # The reason mentions the time limit, and any signal was sent by this toolkit.
        return ""
    if step.signal:
        return "" if step.signal in step.reason else f"the process was killed by {join_lines(step.signal)}"
    if step.exit_code and not step.outputs and f"exit code {step.exit_code}" not in step.reason:
        return f"the process exited with {step.exit_code}"
    return ""


def list_findings(step: StepOutcome) -> list[str]:
    """Return the basis of a verdict, failures first: every output, every check, and the process's end."""
    outputs = [(output.passed, format_comparison(output)) for output in step.outputs]
    checks = [(check.passed is not False, format_check(check)) for check in step.checks]
    lines = [line for _, line in sorted(outputs + checks, key=lambda entry: entry[0])]
    process_line = _format_process_line(step)
    attempt_lines = [
        f"attempt {number} {attempt.verdict.past_tense}{f': {join_lines(attempt.reason)}' if attempt.reason else ''}"
        f"{f'; log {attempt.log}' if attempt.log else ''}"
        for number, attempt in enumerate(step.attempts, start=1)
    ]
    if attempt_lines:
        # The last attempt at an unfinished step has no result.
        ended_text = f"{pluralize(len(step.attempts), 'attempt')} ended before that"
        attempt_lines.insert(0, ended_text if step.unfinished else step.attempts_text)
    return [*([process_line] if process_line else []), *lines, *attempt_lines]


def list_faults(step: StepOutcome) -> list[str]:
    """Describe the outputs and figures at fault; return nothing if a step's reason says more than that."""
    outputs = [output for output in step.outputs if not output.passed]
    checks = [replace(check, note="") for check in step.checks if check.passed is False]
    start = step.diagnosis.removesuffix("…")
    is_told = checks or any(f"{output.label}: {output.message}".startswith(start) for output in outputs)
    is_whole = is_told and without_expectation(step.reason) == step.reason
    return [*(output.summary for output in outputs), *map(format_check, checks)] if is_whole else []


def is_quoted(step: StepOutcome, tail: Sequence[str]) -> bool:
    """Return True if one of the tool's last lines has all that a step's reason says."""
    text = strip_exit_code(step.reason).removesuffix("…")
    return any(text in line for line in tail)


def format_cause(step: StepOutcome) -> str:
    """Describe the cause of a failure in one line: the outputs or figures at fault, or the tool's diagnostic."""
    if step.unsupported is not None:
        return step.unsupported.sentence
    return "; ".join(list_faults(step)[:_MAX_CAUSES]) or find_diagnostic(step.reason)


def format_cause_kind(step: StepOutcome) -> str:
    """Describe the kind of a failure, without anything that differs from case to case."""
    if not list_faults(step):
        return normalize_diagnostic(step.diagnosis)
    names = [FIGURES[check.metric].word for check in step.checks if check.passed is False and check.metric in FIGURES]
    return f"{', '.join(names)} over the limit" if names else FailureKind.WRONG_NUMBERS


def format_common_cause(steps: Sequence[StepOutcome]) -> str:
    """Describe the cause that several failures of one kind share: `wrong numbers, up to 8.8 % of values`."""
    if len(steps) == 1:
        return format_cause(steps[0])
    kind = format_cause_kind(steps[0])
    if kind != FailureKind.WRONG_NUMBERS:
        return kind
    outputs = (output for step in steps for output in step.outputs if output.count)
    share = max(((output.mismatches or 0) / output.count for output in outputs), default=0.0)
    return f"{kind}, up to {format_percent(share, 1)} of values"


def list_unapplied(step: StepOutcome) -> list[tuple[Origin, str]]:
    """Return each golden that gave no limit to compare with, by origin, and the value measured for it."""
    checks = {check.metric: check for check in step.checks}
    return [(golden.origin, f"not applied: {format_check(checks[golden.metric])}") for golden in step.unapplied_goldens]


def format_explanation(explanation: Explanation) -> str:
    """Format the result of `explain`, without the bundle."""
    mended_note = f"; fixed by: {', '.join(explanation.mended_by)}" if explanation.mended_by else ""
    return join_lines(f"explained: {explanation.answer}{mended_note}")


def list_measured(step: StepOutcome) -> list[str]:
    """Return all measurements besides the checks: samples, statistics, cache, memory, fetched files."""
    lines = []
    if step.samples is not None and step.samples.real_time_ms:
        spread = step.samples.stdev_ms
        times = f"{format_mean_and_spread(step.samples.mean_ms, spread)} ms"
        count = len(step.samples.real_time_ms)
        times += "" if step.samples.min_ms is None else f", min {format_figure(step.samples.min_ms, 'ms')}"
        times += f", {count} repetition{'s' if count > 1 else ''}"
        name = f" {join_lines(step.samples.name)}" if step.samples.name else ""
        lines.append(f"real time{name}: {times}")
    lines += [f"{join_lines(str(key))}: {join_lines(str(value))}" for key, value in sorted(step.statistics.items())]
    if step.cache is not None:
        state = "hit" if step.cache.hit else "miss"
        lines.append(f"cache: {state}" + (f" ({join_lines(step.cache.reason)})" if step.cache.reason else ""))
    if step.peak_rss_bytes:
        lines.append(f"peak memory: {format_bytes(step.peak_rss_bytes)}")
    for file in step.fetched:
        state_text = "present" if file.cached else f"fetched in {format_duration(file.seconds)}"
        lines.append(f"file: {join_lines(file.url)} ({format_bytes(file.bytes)}, {state_text})")
    return lines


def format_devices(machine: MachineInfo) -> str:
    """Format a run's devices besides the CPU: `llvmpipe (LLVM 15.0.6), llvmpipe Mesa 22.3.6, software: vulkan://GPU-…`."""
    return "; ".join(f"{device.text}: {device.uri}" if device.text else device.uri for device in machine.devices)
