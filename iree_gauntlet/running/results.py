"""What a step came to: the record that goes into the journal, and how an expectation turns its verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.running.signals import SENT_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.running.steps import Step
    from iree_gauntlet.running.supervisor import Outcome

__all__ = ["Result", "after_process", "first_error", "with_expectation"]

_ERROR_LINE = re.compile(r"\berror: ")
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Result:
    """The journal's `result` record, without its event name and time.

    Attributes:
        verdict, reason: what it came to, and why in one line.
        command: as a person would type it.
        seconds, cpu_seconds, peak_rss_bytes: of all processes of the step; seconds include our own work.
        tool_seconds: wall time inside IREE's tools.
        exit_code, signal, timed_out: of the process that decided.
        cache: hit, key and reason.
        checks: goldens, as `measuring.goldens` records them.
        outputs: comparisons, as `measuring.comparison` records them.
        samples: repetitions of a benchmark.
        statistics: figures of a module or of the machine.
        notes: what a person should know.
        log: path of the full output, relative to the run's folder.
        tail: its last lines.
        fetched: files of a fetch.
        disk_full: whether the disk was full when the process ended; not part of the record.
        out_of_memory: whether the process ran into its limit of memory; not part of the record.
    """

    verdict: Verdict
    reason: str = ""
    command: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    tool_seconds: float = 0.0
    exit_code: int | None = None
    signal: str = ""
    timed_out: bool = False
    cache: dict[str, Any] | None = None
    checks: tuple[dict[str, Any], ...] = ()
    outputs: tuple[dict[str, Any], ...] = ()
    samples: dict[str, Any] | None = None
    statistics: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    log: str = ""
    tail: tuple[str, ...] = ()
    fetched: tuple[dict[str, Any], ...] = ()
    disk_full: bool = False
    out_of_memory: bool = False

    @property
    def crashed(self) -> bool:
        """The tool's own fault ended it by a signal."""
        blameless = self.timed_out or self.disk_full or self.out_of_memory
        return self.signal not in ("", *SENT_SIGNALS) and not blameless

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the journal; what it holds is the result's own, not a copy."""
        return dict(zip(_RECORDED, _recorded(self), strict=True))


_RECORDED = tuple(field.name for field in fields(Result) if field.name not in ("disk_full", "out_of_memory"))
_recorded = attrgetter(*_RECORDED)


def after_process(outcome: Outcome, *, tool: str, timeout: float, reason: str, disk_full: bool) -> Result:
    """The result of a process that ended badly.

    Args:
        outcome: how it ended.
        tool: its name, for messages.
        timeout: its time limit in seconds.
        reason: why it failed by its own account, for an ordinary exit.
        disk_full: whether the disk was full when it ended.
    """
    if outcome.timed_out:
        verdict, reason = (
            Verdict.ERROR,
            f"{tool} ran longer than its {timeout:g} s and was ended with its children",
        )
    elif disk_full:
        verdict, reason = (
            Verdict.ERROR,
            f"{tool} ran out of disk space; free some (see `doctor`) and run again",
        )
    elif outcome.out_of_memory:
        verdict, reason = Verdict.ERROR, f"{tool} ran into its limit of memory: {'; '.join(outcome.notes)}"
    elif outcome.signal == "SIGKILL":
        verdict, reason = Verdict.ERROR, f"{tool} was killed from outside, for want of memory or by someone (see dmesg)"
    elif outcome.signal in SENT_SIGNALS:
        verdict, reason = Verdict.ERROR, f"{tool} was ended from outside with {outcome.signal}"
    elif outcome.signal:
        verdict, reason = Verdict.ERROR, f"{tool} crashed with {outcome.signal}"
    else:
        verdict = Verdict.FAILED
        reason = f"{tool} failed with exit code {outcome.exit_code}" + (f": {reason}" if reason else "")
    return Result(
        verdict,
        shorten(reason),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.timed_out,
        tail=tuple(outcome.tail),
        notes=tuple(outcome.notes),
        disk_full=disk_full,
        out_of_memory=outcome.out_of_memory,
    )


def first_error(lines: Iterable[str]) -> str:
    """The first line that says `error:`, without the path before it; empty where there is none."""
    for line in lines:
        match = _ERROR_LINE.search(line)
        if match:
            return shorten(line[match.end() :].strip())
    return ""


def shorten(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


def with_expectation(step: Step, result: Result, *, lenient: bool) -> Result:
    """Turns the verdict of a step that is expected to fail.

    A failure, or a crash of the tool, is what was expected, or one of them only where the expectation says which; a
    time-out or an error of our own surroundings is not. A pass is an unexpected one, which fails the run unless
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
