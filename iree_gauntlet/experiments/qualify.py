"""`qualify`: is a new IREE as good as an old one? One verdict of several experiments, the cheap and exact ones first.

<folder>/journal.jsonl        the record (`records/qualify_outcome.py` describes it)
<folder>/matrix/              compiles, numbers, and exact figures with both IREEs
<folder>/matrix/<NEW>/explain what newly fails, with bundles
<folder>/compat/              modules of each with the runtime of the other
<folder>/compat-again/        what failed there, run again
<folder>/times/               benchmarks of both in turn
<folder>/bisect-*/            the search for the release of a loss
<folder>/qualify.md, .html, .json, junit.xml
"""

from __future__ import annotations

import glob
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet.dialects.configuration_file import MARKS_FILE, read_marks
from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.experiments.bisect import bisect
from iree_gauntlet.experiments.bisect_question import make_place, make_row
from iree_gauntlet.experiments.compare import compare
from iree_gauntlet.experiments.compat import check_compatibility
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.explain import explain
from iree_gauntlet.experiments.matrix import matrix, name_irees
from iree_gauntlet.experiments.run import make_setup
from iree_gauntlet.figures import METRICS, Figure
from iree_gauntlet.journal_events import ResumeOptions, ToolchainInfo
from iree_gauntlet.journal_format import JOURNAL, read_journal, read_kind
from iree_gauntlet.measuring.instructions.counters import read_counts
from iree_gauntlet.measuring.instructions.work import CallPart, judge_parts
from iree_gauntlet.measuring.profiles.dispatch_profile import match_dispatches
from iree_gauntlet.records.bisect_outcome import CandidateRow, select_chain
from iree_gauntlet.records.matrix_outcome import read_matrix_outcome
from iree_gauntlet.records.qualify_outcome import (
    COMPAT_AGAIN,
    COMPAT_PART,
    EXACT,
    QUALIFY,
    TIMES,
    DispatchWork,
    LossAcceptance,
    PartResult,
    QualifyOpening,
    read_qualify_outcome,
)
from iree_gauntlet.requests import (
    BisectRequest,
    CompareRequest,
    CompatRequest,
    ExecutionRequest,
    ExplainRequest,
    FolderRequest,
    QualifyRequest,
    collect_changed_options,
    parse_request,
)
from iree_gauntlet.settings import find_project_folder
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.toolchains.candidates import list_candidates_among, open_checkout
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.dialects.configuration_file import Mark
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.run import RunSetup
    from iree_gauntlet.progress import Progress, Reporter
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.records.matrix_outcome import MatrixOutcome
    from iree_gauntlet.records.qualify_outcome import BumpFinding
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.toolchains.choice import Choice
    from iree_gauntlet.toolchains.find import ToolchainLocations

    _Performer = Callable[[RunRequest], ExitCode]


_NO_NIGHTLIES = UsageError(
    "--nightlies: OLD and NEW have to be two releases or nightlies, without --among",
    "Leave it out, or name a checkout with --source for commits.",
)
_EXACT_STAGES = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT)
# The stages of the suite that parts need.
_NEEDED_STAGES = {COMPAT_PART: Stage.THRESHOLD, TIMES: Stage.BENCHMARK}


def qualify(options: QualifyRequest, request: RunRequest, presenter: Reporter) -> ExitCode:
    """Compare two IREEs by everything that a suite says, and follow what got worse.

    Raises:
        UsageError: the sides are not two IREEs, or an option differs from that of a resumed qualification.
        GauntletError: the specs, or the marks of the history, cannot be read, or a side is not available.
    """
    experiment = Experiment.find(QUALIFY, request.folder)
    if experiment.record:
        new_options = collect_changed_options((options, request.selection, request.execution))
        kept = experiment.keep_options(new_options, ("budget",))
        options, request = parse_request(QualifyRequest, asdict(options) | kept), request.with_resumed_options(kept)
    if len(options.sides) != 2:
        raise UsageError(
            f"qualify takes two IREEs, OLD and NEW, not {len(options.sides)}",
            "Such as: gauntlet qualify 3.12.0 3.13.0 --suite cpu",
        )
    if options.allow < 0:
        raise UsageError(f"--allow {options.allow:g}: expected a percentage, 0 or more", "Leave it out for 1.")
    if not 0 <= options.least_work < 100:
        message = f"--least-work {options.least_work:g}: expected a percentage from 0 to 100"
        raise UsageError(message, "Leave it out for 0.1.")
    old, new = options.sides
    name_irees(options.sides)
    _check_candidates(options)
    marks = read_marks(find_project_folder() / MARKS_FILE)
    setup = make_setup(request)
    place = make_place(request)
    if options.source:
        open_checkout(options.source, place)
    # A side that does not exist is a mistake in the command line, and not a loss. Building one may take hours.
    releases = [_find_release(side, setup.open_workbench_for(side)) for side in options.sides]
    row = experiment.record.opening.row if experiment.record else _choose_row(options, releases, place)
    kept_options = {**asdict(options), **request.resume_options}
    opening = QualifyOpening(
        suite=setup.selection.name, old=old, new=new, allowed=options.allow, row=row, kept=ResumeOptions(kept_options)
    )
    previous = experiment.record.collect_results(PartResult) if experiment.record else {}
    with interruptible(lambda: None):
        with experiment.open(presenter, opening) as log:
            finished = {name: part for name, part in previous.items() if not part.problem}
            qualification = _Qualification(
                experiment.folder, options, request, setup, marks, presenter, log, opening, finished
            )
            qualification.run_parts()
            experiment.code = read_qualify_outcome(experiment.folder).worst_code
        return experiment.reported


def _check_candidates(options: QualifyRequest) -> None:
    """Raise a UsageError for candidates of bisections that are no IREEs, or not between OLD and NEW in order."""
    if options.nightlies and (options.among or not all(map(_is_indexed, map(parse_choice, options.sides)))):
        raise _NO_NIGHTLIES
    old, new = options.sides
    candidates = list_candidates_among(old, new, options.among, ("OLD", "NEW"))
    first, *versions, last = (parse_choice(candidate.iree).version for candidate in candidates)
    if first is None or last is None:
        return
    low, high = sorted((first, last))
    if outside := next((version for version in versions if version and not low < version < high), None):
        raise UsageError(f"--among {outside}: it is not between {low} and {high}", "Name what lies between, in order.")
    for version, follower in pairwise(filter(None, versions)):
        if (version > follower) != (first > last):
            raise UsageError(f"--among {follower}: it is not between {version} and {last}", "Name them in order.")


def _is_indexed(choice: Choice) -> bool:
    """Return whether an IREE may be a release or a nightly."""
    return choice.version is not None or choice.kind in (ChoiceKind.INSTALLED, ChoiceKind.RANGE, ChoiceKind.NIGHTLY)


def _find_release(side: str, workbench: Workbench) -> str:
    """Return the release or nightly that a side names; empty if it is none, such as a build or a folder of wheels."""
    choice = parse_choice(side)
    if _is_indexed(choice) and choice.version is None:
        compiler, runtime = workbench.iree.compiler.release, workbench.iree.runtime.release
        return compiler if compiler == runtime else ""
    return str(choice.version or "")


def _choose_row(options: QualifyRequest, releases: Sequence[str], place: ToolchainLocations) -> CandidateRow:
    """Choose the candidates of bisections: named ones, commits, releases or nightlies, or else the two sides alone.

    Raises:
        UsageError: an option names what cannot lie between the sides.
        ToolchainError: a checkout or a commit does not exist, or the index of nightlies does not answer.
    """
    choices = [parse_choice(side) for side in options.sides]
    has_commits = any(choice.ref for choice in choices)
    ends = [choice.ref or release for choice, release in zip(choices, releases, strict=True)]
    folders = {str(choice.folder) for choice in choices if choice.ref and choice.folder}
    source = options.source or (folders.pop() if len(folders) == 1 else "")
    packages = options.packages or any(choice.kind is ChoiceKind.COMMIT for choice in choices)
    old, new = options.sides
    row = CandidateRow(old, new, among=options.sides, into=options.source, packages=options.packages)
    if options.among:
        row = replace(row, among=options.among)
    elif has_commits and source and all(ends):
        row = CandidateRow(ends[0], ends[1], source=source, packages=packages)
    elif not has_commits and all(releases) and releases[0] != releases[1]:
        row = replace(row, good=releases[0], bad=releases[1], among=(), nightlies=options.nightlies)
    if options.nightlies and not row.nightlies:
        raise _NO_NIGHTLIES
    if options.packages and not (row.source or row.into):
        raise UsageError("--packages is for commits", "Name their checkout with --source.")
    if not (row.source or row.into or row.nightlies):
        return row
    metric = Figure.SIZE.row.metric
    try:
        make_row(BisectRequest(metric=metric, **asdict(row)), metric, place)
    except UsageError:
        if options.source or not row.source:
            raise
        # The commits are of two branches.
        return CandidateRow(old, new, among=options.sides)
    return row


@dataclass(frozen=True, slots=True)
class _Qualification:
    """A running qualification.

    Attributes:
        setup: its stages are those of the suite; a suite that only compiles has no runs and no times.
        finished: the parts that an earlier part of it has ended.
    """

    folder: Path
    options: QualifyRequest
    request: RunRequest
    setup: RunSetup
    marks: Sequence[Mark]
    presenter: Reporter
    log: EventLog
    opening: QualifyOpening
    finished: Mapping[str, PartResult]

    def run_parts(self) -> None:
        """Run all parts; those that are finished are kept."""
        sides, budget = self.options.sides, self.options.budget
        # The other parts take variants as a run does: a matrix would have each IREE without them too.
        varied = [self._vary(side) for side in sides]
        stages = tuple(stage for stage in _EXACT_STAGES if stage in self.setup.stages)
        self._run_part(EXACT, lambda request: matrix(varied, replace(request, stages=stages), self._brief))
        outcome = read_qualify_outcome(self.folder)
        if outcome.matrix is None or any(iree.problem for iree in outcome.matrix.irees):
            # The other parts would fail for the same reason.
            return
        self._judge_work(outcome.matrix)
        compat = CompatRequest(iree=sides)
        self._run_part(COMPAT_PART, lambda request: check_compatibility(compat, _narrow(request), self._brief))
        outcome = read_qualify_outcome(self.folder)
        if failing := [loss.chain for loss in outcome.losses if loss.url.startswith(f"{COMPAT_PART}/")]:
            narrow = partial(_narrow, chains=failing)
            self._run_part(COMPAT_AGAIN, lambda request: check_compatibility(compat, narrow(request), self._brief))
        if not self.options.no_times:
            times = CompareRequest(sides=sides, budget=budget, no_work=True)
            self._run_part(TIMES, lambda request: compare(times, replace(_narrow(request), stages=()), self._brief))
        self._follow_losses()
        self._apply_marks()

    def _judge_work(self, matrix: MatrixOutcome) -> None:
        """Record, for each model whose dispatches were counted with both, which of them execute more instructions."""
        runs = (read_journal(self.folder / EXACT / iree.folder / JOURNAL).planned for iree in matrix.irees)
        old, new = (
            {step.chain: Path(step.find_output("counts")) for step in run if step.stage is Stage.COUNT} for run in runs
        )
        for chain in filter(new.__contains__, old):
            # There is no file if a count failed, or if the cache was cleared before a qualification is resumed.
            with suppress(GauntletError):
                a, b = read_counts(old[chain]), read_counts(new[chain])
                part = judge_parts(a, b, self.options.least_work / 100, same_runtime=False)[0]
                if part.part == CallPart.DISPATCHES:
                    changes = match_dispatches(a.profile, b.profile).changes
                    larger = tuple((row.name, row.a_ns, row.b_ns) for row in changes if row.name in part.more)
                    self.log.write("work", DispatchWork(verdict=part.verdict, larger=larger), step=chain)

    def _vary(self, name: str) -> str:
        """Return a side, or a model, with the names of the variants."""
        return "+".join((name, *sorted(text.partition("=")[0] for text in self.request.selection.variant)))

    @property
    def _brief(self) -> Reporter:
        return _BriefReporter(self.presenter)

    def _run_part(
        self, name: str, perform: Callable[[RunRequest], ExitCode], chain: str = "", metric: str = ""
    ) -> None:
        """Run a part in its folder, which is resumed if it has a record, and record how it ended."""
        self.presenter.line(f"\n{name}")
        if name in self.finished:
            self.presenter.line("finished earlier: not run again")
            return
        path = self.folder / name / JOURNAL
        resumes = read_kind(path) is not None
        if not resumes:
            # The writer was killed in the first line: there is nothing to resume.
            path.unlink(missing_ok=True)
        request = replace(self.request, folder=FolderRequest(run_dir=str(path.parent), resume=resumes))
        self.log.write("start", {}, step=name)
        problem = ""
        try:
            self._require_stage(name)
            code = perform(request)
        except NothingSelectedError as error:
            if name == EXACT:
                raise
            code, problem = ExitCode.OK, f"left out: {error.message}"
        except GauntletError as error:
            code, problem = error.exit_code, error.message
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        problem = "interrupted" if code is ExitCode.INTERRUPTED else problem
        result = PartResult(exit_code=code, problem=problem, chain=chain, metric=metric)
        self.log.write("result", result, step=name)
        if code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt

    def _require_stage(self, part: str) -> None:
        """Raise a NothingSelectedError, which leaves a part out, if the suite lacks the stage that the part needs."""
        stage = _NEEDED_STAGES.get(part)
        if stage and stage not in self.setup.stages:
            raise NothingSelectedError(f"the suite has no stage {stage}")

    def _follow_losses(self) -> None:
        """Explain and bisect each loss, which repeats it, the most serious first, until the budget is used up."""
        end = time.monotonic() + 60 * self.options.budget

        def has_time_for(part: str) -> bool:
            return part in self.finished or time.monotonic() < end

        outcome = read_qualify_outcome(self.folder)
        timed_chains = {case.chain for case in self.setup.selection.cases.cases if Kind.BENCHMARK in case.kinds}
        # Compiles that took longer are losses only if they do so again; without a benchmark, nothing is timed again.
        undecided = [finding for finding in outcome.undecided if finding.chain in timed_chains]
        for loss in (*outcome.losses, *undecided):
            if loss.explanation and not self.options.no_bundles and has_time_for(loss.explanation):
                self._run_part(loss.explanation, partial(self._explain, loss), loss.chain)
            if loss.metric and has_time_for(loss.part):
                question = BisectRequest(metric=loss.metric, **asdict(self.opening.choose_row(loss.metric)))
                perform = partial(self._bisect, question, loss)
                self._run_part(loss.part, perform, loss.chain, loss.metric)

    def _apply_marks(self) -> None:
        """Record the losses that the history's marks accept: for NEW, or for the IREE since which a loss is there."""
        outcome = read_qualify_outcome(self.folder)
        marks = [mark for mark in self.marks if mark.mark == "accepted"]
        new = outcome.matrix.irees[-1].toolchain if outcome.matrix else ToolchainInfo()
        for loss in outcome.losses if marks else ():
            figure = METRICS.get(loss.metric)
            chain = self._vary(loss.chain)
            title = f"{chain} {figure.row.history.name}" if figure and figure.row.history else chain
            bisection = outcome.bisections.get(loss.part)
            irees = {self.options.sides[1], new.compiler, new.compiler_release}
            irees |= {bisection.search.first_new} if bisection and bisection.search else set()
            for mark in marks:
                if mark.iree in irees and (fnmatchcase(chain, mark.series) or fnmatchcase(title, mark.series)):
                    self.log.write("accepted", LossAcceptance(chain=loss.chain, kind=loss.kind, reason=mark.reason))
                    break

    def _explain(self, loss: BumpFinding, request: RunRequest) -> ExitCode:
        """Explain a failure in the folder of NEW's run, which keeps the bundles that are already there."""
        outcome = read_matrix_outcome(self.folder / EXACT)
        run = self.folder / EXACT / outcome.irees[-1].folder
        explanation = ExplainRequest((str(run), glob.escape(loss.chain)))
        explanation = replace(explanation, budget=min(explanation.budget, self.options.budget))
        return explain(explanation, request.toolchain, self._brief)

    def _bisect(self, question: BisectRequest, loss: BumpFinding, request: RunRequest) -> ExitCode:
        figure = METRICS.get(loss.metric)
        if not (figure and figure.is_compared_in_rounds):
            # An exact metric takes no option of rounds.
            execution = replace(request.execution, disturbed=ExecutionRequest().disturbed)
            request = replace(request, execution=execution)
        elif not request.folder.resume:
            question = replace(question, budget=self.options.budget)
        return bisect(question, _select(request, [loss.chain]), self._brief)


def _narrow(request: RunRequest, chains: Sequence[str] = ()) -> RunRequest:
    """Return the request of runs that only check numbers, of some models or of all."""
    request = replace(request, stages=(Stage.THRESHOLD,), instructions=False, memory=False)
    return _select(request, chains) if chains else request


def _select(request: RunRequest, chains: Sequence[str]) -> RunRequest:
    """Return a request for some models; several may select more, by the submodels and targets of others."""
    places = [select_chain(chain) for chain in chains]
    model, submodel, target = (
        tuple(dict.fromkeys(value for place in places for value in place[name]))
        for name in ("model", "submodel", "target")
    )
    selection = request.selection
    selection = replace(selection, model=model, submodel=submodel, target=target or selection.target)
    return replace(request, selection=selection)


@dataclass(frozen=True, slots=True)
class _BriefReporter:
    """A reporter that shows the results of parts in one line."""

    reporter: Reporter

    def progress(self) -> AbstractContextManager[Progress]:
        """Display events as the reporter does."""
        return self.reporter.progress()

    def line(self, text: str, *, is_result: bool = False) -> None:
        """Print a line."""
        self.reporter.line(text, is_result=is_result)

    def report_run(self, folder: Path, *, brief: bool) -> ExitCode:
        """Write the reports of a part; show its result in one line, whatever `brief` is."""
        del brief
        return self.reporter.report_run(folder, brief=True)

    def with_stream(self, stream: TextIO) -> Reporter:
        """Return the same on another stream."""
        return _BriefReporter(self.reporter.with_stream(stream))
