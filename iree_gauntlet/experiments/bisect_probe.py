"""One candidate of a bisect → one value: runs the stages that the metric needs, and reads the run's journal."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet.cases import Stage
from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.engine.judging import first_error
from iree_gauntlet.engine.workspace import Selection
from iree_gauntlet.errors import ExitCode, SpecError, ToolchainError, UsageError
from iree_gauntlet.experiments.explaining.bundle import FIXED, SAID, STILL_THERE, open_bundle, run_bundle
from iree_gauntlet.experiments.run import Chosen, run
from iree_gauntlet.figures import error_figure, whole
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.instructions.counters import LEAST_WORK, Work, compare_work
from iree_gauntlet.measuring.statistics.bisection import is_nearer_to_bad, is_same_value, is_third_value
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.run_folder import free_folder
from iree_gauntlet.requests import dashed, given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import BisectRequest, RunRequest
    from iree_gauntlet.toolchains.candidates import Candidate


# What a candidate's run prints, in its folder.
_CONSOLE = "console.txt"
# Of rounds.
TIMED_METRICS = ("time", "compile-time")
# Options that only these metrics have a use for.
TIMING_NAMES = ("budget", "repetitions", "min_time", "cpus", "disturbed")
# Of a bundle, which says so itself.
BUNDLE_METRIC = "repro.sh"
PASSING: Sequence[str] = ("compiles", "runs", BUNDLE_METRIC)
_KEPT = "bundle"
# What a bundle that is a folder may have installed for itself.
_INSTALLED = "env"


@dataclass(frozen=True, slots=True)
class Judged(Recorded):
    """The result of a candidate: what it gave, and which end it is like.

    Attributes:
        third: the value is neither the good end's nor the bad one's.
        bad: whether it is like the bad end; None before it is judged, and where it cannot be.
        value: of the metric; None where there is none. Of times, the ratio to the good end.
        reason: why it cannot be judged; empty where it can.
        confidence: that the judgement is right, as far as noise goes; 1 for what has none.
        low, high: interval of the value; None where it is exact.
        folder: of its run, in the bisect's folder; empty where there is none.
    """

    bad: bool | None = None
    value: float | None = None
    text: str = ""
    reason: str = ""
    confidence: float = 1.0
    third: bool = False
    low: float | None = None
    high: float | None = None
    folder: str = ""
    toolchain: dict[str, str] = field(default_factory=dict)

    @property
    def known(self) -> float:
        """The value of an end: one without a value ends the search."""
        if self.value is None:
            raise ValueError(self.reason)
        return self.value


class Judge(Protocol):
    """Decides on candidates, one at a time.

    Attributes:
        most_comparisons: how many candidates may be measured, the bad end among them, for the confidence to hold; None
            for any number.
    """

    most_comparisons: int | None

    def end(self, candidate: Candidate, *, bad: bool) -> Judged:
        """What an end gives; `bad` of the answer is the argument, or None where nothing could be measured."""

    def begin(self, good: Judged, bad: Judged) -> str:
        """Take the ends for what candidates are held against; why there is nothing to look for, or empty."""

    def judge(self, candidate: Candidate) -> Judged:
        """Which end a candidate is like."""


@dataclass(frozen=True, slots=True)
class ExactMetric:
    """A metric that is the same at each run.

    Attributes:
        read: its value, or why there is none, from a run's journal and the chain that was run.
    """

    stages: tuple[Stage, ...]
    read: Callable[[JournalRecord, str], Judged]


def candidate_run(
    candidate: Candidate, folder: Path, presenter: Presenter, work: Callable[[Path, Presenter], Judged]
) -> Judged:
    """What a candidate gives, not judged yet; of what is no usable IREE, why not.

    Raises:
        GauntletError: what is no candidate's fault, such as a full disk.
        KeyboardInterrupt: the run was interrupted.
    """
    run_dir = free_folder(folder / candidate.label)
    run_dir.mkdir()
    try:
        with (run_dir / _CONSOLE).open("w", encoding="utf-8") as stream:
            return replace(work(run_dir, presenter.to(stream)), folder=run_dir.name)
    except (ToolchainError, SpecError) as error:
        # It cannot be installed, knows no such flag, or is no IREE at all.
        (run_dir / _CONSOLE).write_text(f"{error}\n", encoding="utf-8")
        return Judged(reason=error.on_one_line, folder=run_dir.name)


def run_candidate(
    candidate: Candidate, metric: ExactMetric, chain: str, folder: Path, chosen: Chosen, presenter: Presenter
) -> Judged:
    """Runs the stages that a metric needs, with a candidate, in a folder of its own, and reads the value.

    Raises:
        GauntletError: what is no candidate's fault, such as a full disk.
        KeyboardInterrupt: the run was interrupted.
    """

    def work(run_dir: Path, presenter: Presenter) -> Judged:
        code = run(chosen.within(run_dir, candidate.iree, metric.stages), presenter, brief=True).exit_code
        if code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        record = read_journal(run_dir / JOURNAL)
        return replace(metric.read(record, chain), toolchain=record.run.toolchain.as_dict())

    return candidate_run(candidate, folder, presenter, work)


class ExactJudge:
    """Judges by a metric that is the same at each run: which end's value is nearer."""

    most_comparisons: int | None = None

    def __init__(self, name: str, run: Callable[[Candidate], Judged]) -> None:
        self._name = name
        self._run = run
        self._good = self._bad = 0.0

    def end(self, candidate: Candidate, *, bad: bool) -> Judged:
        """What an end gives."""
        found = self._run(candidate)
        return found if found.value is None else replace(found, bad=bad)

    def begin(self, good: Judged, bad: Judged) -> str:
        """Take the ends' values."""
        self._good, self._bad = good.known, bad.known
        counted = self._name == "instructions"
        same = compare_work(good.known, bad.known, LEAST_WORK) is Work.SAME if counted else False
        if same or is_same_value(good.known, bad.known):
            both = good.text if good.text == bad.text else f"{good.text}, and {bad.text}"
            return f"nothing to look for: both ends give the same ({both})"
        if self._name in PASSING and good.known < bad.known:
            return f"good and bad are the wrong way round: the good end {good.text}, the bad one {bad.text}"
        return ""

    def judge(self, candidate: Candidate) -> Judged:
        """Run a candidate, and hold its value against the ends'."""
        found = self._run(candidate)
        if found.value is None:
            return found
        ends = self._good, self._bad
        return replace(found, bad=is_nearer_to_bad(found.value, *ends), third=is_third_value(found.value, *ends))


def _judge_compile(record: JournalRecord, chain: str, figure: str, noun: str) -> Judged:
    """A figure of the chain's main module."""
    result = record.results.get(f"{chain}:{Stage.COMPILE}")
    value = result.statistics if result else {}
    if value.get(figure) is None:
        _, reason = _judge_broken(record, chain)
        return Judged(reason=reason or f"the compiler gives no {noun}")
    return Judged(value=float(value[figure]), text=f"{whole(value[figure])} {noun}")


def _judge_instructions(record: JournalRecord, chain: str) -> Judged:
    result = record.results.get(f"{chain}:{Stage.COUNT}")
    value = result.statistics.get("instructions") if result else None
    if value is None:
        _, reason = _judge_broken(record, chain)
        return Judged(reason=reason or "they were not counted")
    return Judged(value=float(value), text=f"{whole(value)} instructions")


def _judge_error(record: JournalRecord, chain: str) -> Judged:
    result = record.results.get(f"{chain}:{Stage.THRESHOLD}")
    worst = result.max_abs_error if result else None
    if worst is None:
        _, reason = _judge_broken(record, chain)
        return Judged(reason=reason or "no output was compared value by value")
    return Judged(value=worst, text=f"max error {error_figure(worst)}")


def _judge_passes(record: JournalRecord, chain: str) -> Judged:
    """1 where every step passed, 0 where one failed by the fault of what is under test."""
    failing, reason = _judge_broken(record, chain)
    if failing is None:
        return Judged(value=1.0, text="passes")
    if failing:
        return Judged(value=0.0, text=f"fails: {reason}")
    return Judged(reason=reason)


def _judge_broken(record: JournalRecord, chain: str) -> tuple[bool | None, str]:
    """Whether IREE is at fault for the first step that did not pass, and why; None where all passed."""
    for step in record.steps:
        result = record.results.get(step["id"])
        if result and result.verdict.counts_as_pass:
            continue
        reason = (result.reason if result else "") or "it did not end"
        label = step["id"].removeprefix(f"{chain}:")
        if result is None or step["stage"] in (Stage.FETCH, Stage.PARAMETERS, Stage.REFERENCE):
            return False, f"{label}: {reason}"
        return result.verdict.counts_as_failure or result.crashed or result.timed_out, f"{label}: {reason}"
    return None, ""


EXACT_METRICS: Mapping[str, ExactMetric] = {
    "size": ExactMetric((Stage.COMPILE,), partial(_judge_compile, figure="binary_size_bytes", noun="bytes")),
    "dispatches": ExactMetric((Stage.COMPILE,), partial(_judge_compile, figure="dispatch_count", noun="dispatches")),
    "instructions": ExactMetric((Stage.COUNT,), _judge_instructions),
    "error": ExactMetric((Stage.THRESHOLD,), _judge_error),
    "compiles": ExactMetric((Stage.COMPILE,), _judge_passes),
    "runs": ExactMetric((Stage.THRESHOLD,), _judge_passes),
}


def require_bundle_alone(asked: BisectRequest, request: RunRequest) -> None:
    """Make sure that nothing is asked for of a model: a bundle has its own program, inputs and question.

    Raises:
        UsageError: something is.
    """
    of_a_model = given((request.selection, request.conduct))
    of_a_model |= {name: value for name, value in given([asked]).items() if name in ("metric", *TIMING_NAMES)}
    if of_a_model:
        first = dashed(next(iter(of_a_model)))
        hint = "A bundle has its program, inputs and expected values with it: leave one of the two out."
        raise UsageError(f"{first} and --bundle exclude each other", hint)


def nothing_chosen(request: RunRequest) -> Chosen:
    """A run of no specs: how IREEs are found and installed is all that a bundle needs of one."""
    return Chosen(request, Selection("bundle", (), (), (), CaseSet((), (), ())), ())


def bundle_title(bundle: str) -> str:
    """What failure a bundle shows.

    Raises:
        GauntletError: it is no bundle.
    """
    with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as place:
        return open_bundle(Path(bundle), Path(place)).title


def keep_bundle(bundle: str, folder: Path) -> None:
    """Keep a bundle in the bisect's folder; one that is kept there already stays.

    Raises:
        GauntletError: it is no bundle.
    """
    kept = folder / _KEPT
    if kept.exists():
        return
    with tempfile.TemporaryDirectory(prefix=f"{_KEPT}-", dir=folder) as place:
        opened = open_bundle(Path(bundle), Path(place))
        # Renamed when it is whole: what a kill leaves is no bundle.
        copy = Path(place) / "copy"
        shutil.copytree(opened.folder, copy, ignore=shutil.ignore_patterns(_INSTALLED))
        copy.rename(kept)


def run_kept_bundle(
    candidate: Candidate, folder: Path, chosen: Chosen, supervisor: Supervisor, presenter: Presenter
) -> Judged:
    """Run the bundle with a candidate: 1 where it passes, 0 where the failure is there.

    Raises:
        GauntletError: what is no candidate's fault, such as a full disk.
    """

    def work(run_dir: Path, _presenter: Presenter) -> Judged:
        machine = chosen.workbench(candidate.iree)
        code = run_bundle(folder / _KEPT, machine.iree, supervisor, run_dir)
        toolchain = machine.iree.as_dict()
        if code == FIXED:
            return Judged(value=1.0, text="passes", toolchain=toolchain)
        if code == STILL_THERE:
            return Judged(value=0.0, text="fails", toolchain=toolchain)
        how = "did not end in time" if code is None else f"ends with {code}"
        said = (run_dir / SAID).read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        return Judged(reason=f"repro.sh {how}: {first_error(said) or said[-1]}", toolchain=toolchain)

    return candidate_run(candidate, folder, presenter, work)
