"""One candidate of a bisect → one value: runs the stages that the metric needs, and reads the run's journal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.errors import ExitCode, SpecError, ToolchainError
from iree_gauntlet.experiments.run import Chosen, run
from iree_gauntlet.figures import error_figure, whole
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.statistics.bisection import is_nearer_to_bad, is_same_value, is_third_value
from iree_gauntlet.records.run_folder import free_folder
from iree_gauntlet.requests import FolderRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.toolchains.candidates import Candidate


_PASSED = (Verdict.PASSED, Verdict.XPASSED)
_FAILED = (Verdict.FAILED, Verdict.XFAILED)
# What a candidate's run prints, in its folder.
CONSOLE = "console.txt"


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a candidate.

    Attributes:
        bad: whether it is like the bad end; None where it cannot be judged.
        value: of the metric; None where there is none. Of times, the ratio to the good end.
        text: the value for people.
        reason: why it cannot be judged; empty where it can.
        confidence: that the judgement is right, as far as noise goes; 1 for what has none.
        third: the value is neither the good end's nor the bad one's.
        low, high: interval of the value; None where it is exact.
        folder: of its run, in the bisect's folder; empty where there is none.
        toolchain: the journal's record of it.
        seconds: that judging it took.
    """

    bad: bool | None
    value: float | None
    text: str
    reason: str = ""
    confidence: float = 1.0
    third: bool = False
    low: float | None = None
    high: float | None = None
    folder: str = ""
    toolchain: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Judge(Protocol):
    """Decides on candidates, one at a time."""

    @property
    def most_comparisons(self) -> int | None:
        """How many candidates may be measured, the bad end among them, for the confidence to hold; None for any."""
        ...

    def end(self, candidate: Candidate, *, bad: bool) -> Judged:
        """What an end gives; `bad` of the answer is the argument, or None where nothing could be measured."""
        ...

    def begin(self, good: Judged, bad: Judged) -> str:
        """Take the ends for what candidates are held against; why there is nothing to look for, or empty."""
        ...

    def judge(self, candidate: Candidate) -> Judged:
        """Which end a candidate is like."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """What a journal says of a metric.

    Attributes:
        value: None where it says nothing.
        text: the value for people.
        reason: why there is none.
    """

    value: float | None
    text: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ExactMetric:
    """A metric that is the same at each run.

    Attributes:
        stages: what has to be run.
        read: its value, from a run's journal and the chain that was run.
    """

    stages: tuple[Stage, ...]
    read: Callable[[JournalRecord, str], Reading]


@dataclass(frozen=True, slots=True)
class Run:
    """A candidate's run.

    Attributes:
        reading: what it gave.
        folder: its name in the bisect's folder; empty where it did not come to a run.
        toolchain: the journal's record of it.
        seconds: that it took.
    """

    reading: Reading
    folder: str
    toolchain: Mapping[str, str]
    seconds: float


def run_candidate(
    candidate: Candidate, metric: ExactMetric, chain: str, folder: Path, chosen: Chosen, presenter: Presenter
) -> Run:
    """Runs the stages that a metric needs, with a candidate, in a folder of its own, and reads the value.

    Args:
        candidate: which IREE.
        metric: what is wanted.
        chain: of the one model.
        folder: the bisect's.
        chosen: selects the chain.
        presenter: shows it, in a file of that folder.

    Raises:
        GauntletError: what is no candidate's fault, such as a full disk.
        KeyboardInterrupt: the run was interrupted.
    """
    began = time.monotonic()
    run_dir = free_folder(folder / candidate.label)
    run_dir.mkdir()
    try:
        with (run_dir / CONSOLE).open("w", encoding="utf-8") as stream:
            code = run(
                _of_candidate(chosen, candidate, run_dir, metric.stages), presenter.to(stream), brief=True
            ).exit_code
    except (ToolchainError, SpecError) as error:
        # It cannot be installed, knows no such flag, or is no IREE at all.
        reason = f"{error.what} {error.hint}".strip()
        (run_dir / CONSOLE).write_text(f"{error}\n", encoding="utf-8")
        return Run(Reading(None, reason=reason), run_dir.name, {}, time.monotonic() - began)
    if code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    record = read_journal(run_dir / JOURNAL)
    toolchain = record.runs[-1].get("toolchain", {}) if record.runs else {}
    return Run(metric.read(record, chain), run_dir.name, toolchain, time.monotonic() - began)


class ExactJudge:
    """Judges by a metric that is the same at each run: which end's value is nearer.

    Args:
        metric: its name and what it is.
        run: runs a candidate.
    """

    def __init__(self, name: str, run: Callable[[Candidate], Run]) -> None:
        self._name = name
        self._run = run
        self._good = self._bad = 0.0

    @property
    def most_comparisons(self) -> None:
        """Any number."""
        return

    def end(self, candidate: Candidate, *, bad: bool) -> Judged:
        """What an end gives."""
        run = self._run(candidate)
        return _judged(run, bad=None if run.reading.value is None else bad)

    def begin(self, good: Judged, bad: Judged) -> str:
        """Take the ends' values."""
        assert good.value is not None, "an end without a value ends the search"
        assert bad.value is not None, "an end without a value ends the search"
        self._good, self._bad = good.value, bad.value
        if is_same_value(good.value, bad.value):
            both = good.text if good.text == bad.text else f"{good.text}, and {bad.text}"
            return f"nothing to look for: both ends give the same ({both})"
        if self._name in PASSING and good.value < bad.value:
            return f"good and bad are the wrong way round: the good end {good.text}, the bad one {bad.text}"
        return ""

    def judge(self, candidate: Candidate) -> Judged:
        """Run a candidate, and hold its value against the ends'."""
        run = self._run(candidate)
        value = run.reading.value
        if value is None:
            return _judged(run, bad=None)
        bad = is_nearer_to_bad(value, self._good, self._bad)
        return _judged(run, bad=bad, third=is_third_value(value, self._good, self._bad))


def _judged(run: Run, *, bad: bool | None, third: bool = False) -> Judged:
    reading = run.reading
    return Judged(
        bad,
        reading.value,
        reading.text,
        reading.reason,
        third=third,
        folder=run.folder,
        toolchain=run.toolchain,
        seconds=run.seconds,
    )


def _compiled(record: JournalRecord, chain: str, figure: str, noun: str) -> Reading:
    """A figure of the chain's main module."""
    result = record.results.get(f"{chain}:{Stage.COMPILE}")
    value = result.statistics if result else {}
    if value.get(figure) is None:
        _, reason = _broken(record, chain)
        return Reading(None, reason=reason or f"the compiler gives no {noun}")
    return Reading(float(value[figure]), f"{whole(value[figure])} {noun}")


def _size(record: JournalRecord, chain: str) -> Reading:
    return _compiled(record, chain, "binary_size_bytes", "bytes")


def _dispatches(record: JournalRecord, chain: str) -> Reading:
    return _compiled(record, chain, "dispatch_count", "dispatches")


def _error(record: JournalRecord, chain: str) -> Reading:
    result = record.results.get(f"{chain}:{Stage.THRESHOLD}")
    worst = result.max_abs_error if result else None
    if worst is None:
        _, reason = _broken(record, chain)
        return Reading(None, reason=reason or "no output was compared value by value")
    return Reading(worst, f"max error {error_figure(worst)}")


def _passes(record: JournalRecord, chain: str) -> Reading:
    """1 where every step passed, 0 where one failed by the fault of what is under test."""
    failing, reason = _broken(record, chain)
    if failing is None:
        return Reading(1.0, "passes")
    if failing:
        return Reading(0.0, f"fails: {reason}")
    return Reading(None, reason=reason)


def _broken(record: JournalRecord, chain: str) -> tuple[bool | None, str]:
    """Whether IREE is at fault for the first step that did not pass, and why; None where all passed."""
    for step in record.steps:
        result = record.results.get(step["id"])
        if result and result.verdict in _PASSED:
            continue
        reason = (result.reason if result else "") or "it did not end"
        label = step["id"].removeprefix(f"{chain}:")
        if result is None or step["stage"] in (Stage.FETCH, Stage.PARAMETERS, Stage.REFERENCE):
            return False, f"{label}: {reason}"
        return result.verdict in _FAILED or result.crashed or result.timed_out, f"{label}: {reason}"
    return None, ""


def _of_candidate(chosen: Chosen, candidate: Candidate, run_dir: Path, stages: tuple[Stage, ...]) -> Chosen:
    """What is run with a candidate, in a folder of its own."""
    toolchain = replace(chosen.request.toolchain, iree=candidate.iree)
    request = replace(chosen.request, toolchain=toolchain, folder=FolderRequest(run_dir=str(run_dir)))
    return replace(chosen, request=request, stages=stages)


EXACT_METRICS: Mapping[str, ExactMetric] = {
    "size": ExactMetric((Stage.COMPILE,), _size),
    "dispatches": ExactMetric((Stage.COMPILE,), _dispatches),
    "error": ExactMetric((Stage.THRESHOLD,), _error),
    "compiles": ExactMetric((Stage.COMPILE,), _passes),
    "runs": ExactMetric((Stage.THRESHOLD,), _passes),
}
PASSING: Sequence[str] = ("compiles", "runs")
