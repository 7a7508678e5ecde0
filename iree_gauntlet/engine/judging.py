"""Verdicts of processes that ended badly, and of steps that are expected to fail."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.processes.supervisor import Outcome, disk_full
from iree_gauntlet.results import SENT_SIGNALS, Result, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.steps import Step


_ERROR_LINE = re.compile(r"\berror: ")
# Signals that no full disk is the cause of.
_OF_ITSELF = ("SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP")
# What drivers say of a device that is gone, or broken.
_DEVICE_LOST = re.compile(
    r"VK_ERROR_DEVICE_LOST|CUDA_ERROR_(?:DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE)|hipErrorECCNotCorrectable"
)
# A device of the spec, or of --device, that no runtime knows.
_NO_DRIVER = re.compile(r"no driver '([^']*)' registered")


def after_process(
    step: Step, outcome: Outcome, lines: Sequence[str], *, tool: str, reason: str | None = None
) -> Result:
    """The result of a step whose process ended badly.

    Args:
        step: gives the folder that it wrote to, and its time limit.
        outcome: how it ended.
        lines: what it wrote to standard error.
        tool: its name, for messages.
        reason: why it failed by its own account, for an ordinary exit; the first of its lines where not given.
    """
    full = outcome.signal not in _OF_ITSELF and disk_full(Path(step.folder), lines)
    lost = next((found[0] for line in (*lines, *outcome.tail) if (found := _DEVICE_LOST.search(line))), "")
    unknown = next((found[1] for line in (*lines, *outcome.tail) if (found := _NO_DRIVER.search(line))), "")
    # The first one that is true says why; none is the fault of the product under test.
    errors = (
        (outcome.timed_out, f"ran longer than its {step.timeout:g} s and was ended with its children"),
        (full, "ran out of disk space; free some (see `doctor`) and run again"),
        (bool(lost), f"lost its device ({lost}): see dmesg, and whether `gauntlet devices` lists it again"),
        (bool(unknown), f"has no driver {unknown}: see `device` of the spec, and what `gauntlet doctor` lists"),
        (outcome.out_of_memory, f"ran into its limit of memory: {'; '.join(outcome.notes)}"),
        (outcome.signal == "SIGKILL", "was killed from outside, for lack of memory or by someone (see dmesg)"),
        (outcome.signal in SENT_SIGNALS, f"was ended from outside with {outcome.signal}"),
        (bool(outcome.signal), f"crashed with {outcome.signal}"),
    )
    error = next((text for happened, text in errors if happened), "")
    if reason is None:
        reason = shorten(next((line for line in lines if line.strip()), ""))
    failure = f"failed with exit code {outcome.exit_code}" + (f": {reason}" if reason else "")
    return Result(
        Verdict.ERROR if error else Verdict.FAILED,
        shorten(f"{tool} {error or failure}"),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.timed_out,
        tail=tuple(outcome.tail),
        notes=tuple(outcome.notes),
        disk_full=full,
        out_of_memory=outcome.out_of_memory,
    )


def first_error(lines: Iterable[str]) -> str:
    """The first line that says `error:`, without the path before it; empty where there is none."""
    for line in lines:
        match = _ERROR_LINE.search(line)
        if match:
            return shorten(line[match.end() :].strip())
    return ""


def with_expectation(step: Step, result: Result, *, lenient: bool) -> Result:
    """Turns the verdict of a step that is expected to fail.

    A failure, or a crash of the tool, is what was expected, or one of them only where the expectation says which; a
    time-out or an error of our own environment is not. A pass is an unexpected one, which fails the run unless
    `lenient`.
    """
    if not step.expect_failure:
        return result
    expected = shorten(step.expect_failure)
    if result.verdict is Verdict.FAILED or (result.verdict is Verdict.ERROR and result.crashed):
        crashed = result.verdict is Verdict.ERROR
        if step.expect_crash is None or step.expect_crash is crashed:
            return replace(result, verdict=Verdict.XFAILED, reason=f"{result.reason}; expected: {expected}")
        how, other = ("an ordinary failure", "a crash") if crashed else ("a crash", "an ordinary failure")
        return replace(result, reason=f"{result.reason}, but {how} is expected ({expected}): list it as {other}")
    if result.verdict is Verdict.PASSED:
        if lenient:
            note = f"passed although expected to fail: {expected}"
            return replace(result, notes=(*result.notes, note))
        reason = f"passed, but is expected to fail: {expected}; remove the expectation"
        return replace(result, verdict=Verdict.XPASSED, reason=reason)
    return result
