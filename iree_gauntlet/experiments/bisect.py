"""The `bisect` task: in which release, nightly or build, or with which flags of a variant, did a metric change?

For times, each candidate is compared with the good end in interleaved rounds, as in `compare`, until the candidate
clearly resembles one of the ends. `measuring/statistics/bisection.py` has the rule for this decision, and explains why
the whole search keeps its false-alarm rate.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.blocks import (
    AB,
    CONTROL,
    BlockRunner,
    Cpus,
    Pair,
    PairSamples,
    choose_cpus,
    collect_samples,
    run_spec_blocks,
)
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, ToolchainError, UsageError
from iree_gauntlet.experiments.bisect_question import (
    EXACT_METRICS,
    ExactJudge,
    Question,
    describe_change,
    describe_cost,
    find_ready,
    keep_bundle,
    list_nightlies_inside,
    make_question,
    measure_candidate,
    record_row,
    resume_question,
    run_bundle_with,
    run_candidate,
)
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.flag_sets import FlagSets, leave_one_out
from iree_gauntlet.experiments.run import run
from iree_gauntlet.experiments.session_verdicts import CONTROL_BLOCKS, compare_in_spec_way
from iree_gauntlet.experiments.sides import (
    ComparisonSide,
    find_obstacle,
    find_unaffected,
    make_pair,
    make_round_settings,
    prepare_side,
)
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import format_cpus, join_lines, pluralize
from iree_gauntlet.measuring.statistics.bisection import (
    CandidateEnd,
    Placement,
    Search,
    count_max_comparisons,
    count_max_flag_comparisons,
    count_max_tries,
    find_middle,
    place_candidate,
)
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    DEFAULT_EQUIVALENCE_MARGIN,
    DEFAULT_MIN_EFFECT,
    Comparison,
    TimeVerdict,
    compare,
    compute_log_ratios,
)
from iree_gauntlet.measuring.statistics.rounds import (
    DEFAULT_ALPHA,
    DEFAULT_MAX_BLOCKS,
    Block,
    EvidenceError,
    plan_looks,
)
from iree_gauntlet.records.bisect_outcome import (
    BISECT,
    CandidateRefinement,
    CandidateResult,
    FlagAnswer,
    SearchRange,
    make_bisect_outcome,
)
from iree_gauntlet.records.run_folder import find_free_folder
from iree_gauntlet.requests import BisectRequest, collect_changed_options, parse_request
from iree_gauntlet.settings import format_path
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.candidates import list_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.progress import Progress, Reporter
    from iree_gauntlet.records.bisect_outcome import BisectOpening
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.steps import Step
    from iree_gauntlet.toolchains.candidates import Candidate


_FETCH_FOLDER = "fetch"
_DEFAULT_MINUTES = 30.0
_SEED = 1


def bisect(bisect_request: BisectRequest, request: RunRequest, presenter: Reporter) -> ExitCode:
    """Search, record the results as they come, and report."""
    experiment = Experiment.find(BISECT, request.folder)
    previous_results: dict[str, CandidateResult] = {}
    if experiment.record:
        outcome = make_bisect_outcome(experiment.record)
        options = collect_changed_options((bisect_request, request.selection, request.toolchain, request.execution))
        kept_options = experiment.keep_options(options)
        question = resume_question(
            outcome.opening, parse_request(BisectRequest, kept_options), request.with_resumed_options(kept_options)
        )
        # Candidates without a value are tried again.
        previous_results = {label: result for label, result in outcome.results.items() if result.value is not None}
    else:
        question = make_question(bisect_request, request)
    with experiment.open(presenter, question.opening()) as log, presenter.progress() as progress:
        if question.request.bundle:
            keep_bundle(question.request.bundle, experiment.folder)
        else:
            # Fetch the model's files before any candidate runs: no candidate may be blamed for a failed download.
            run_dir = find_free_folder(experiment.folder / _FETCH_FOLDER)
            setup = question.setup.within(run_dir, stages=(Stage.FETCH,))
            code = ExitCode.OK
            # The cases of an operator suite need no files from elsewhere.
            with contextlib.suppress(NothingSelectedError):
                code = run(setup, presenter.with_stream(sys.stderr), brief=True).exit_code
            if code is ExitCode.INTERRUPTED:
                raise KeyboardInterrupt
            if code is not ExitCode.OK:
                raise GauntletError(
                    "not everything that the model needs could be fetched", f"See {format_path(run_dir)}."
                )
        with _judge(question, experiment, log, progress, presenter) as judge:
            search = BisectSearch(question, judge, log, progress.message, previous_results, question.request.every)
            experiment.code, experiment.problem = search.search()
    return experiment.code


@contextlib.contextmanager
def _judge(
    question: Question, experiment: Experiment[BisectOpening], log: EventLog, progress: Progress, presenter: Reporter
) -> Iterator[ExactJudge | RoundsJudge]:
    """Yield the judge of candidates for the question's metric; Ctrl-C ends its processes."""
    setup, folder = question.setup, experiment.folder
    if question.metric in EXACT_METRICS:
        metric, chain = question.metric, question.chain
        yield ExactJudge(
            metric,
            lambda candidate: run_candidate(candidate, metric, chain, folder, setup, presenter),
            in_any_order=question.flags is not None,
        )
        return
    # The false-alarm rate is divided by the number of comparisons, as if every candidate were tried.
    count = len(question.row)
    comparisons = count - 1 if question.request.every else count_max_comparisons(count)
    if question.flags:
        comparisons = count_max_flag_comparisons(len(question.flags.flags))
    with experiment.open_session(log, progress) as session:
        if question.request.bundle:
            supervisor = session.supervisor
            yield ExactJudge(
                question.metric, lambda candidate: run_bundle_with(candidate, folder, setup, supervisor, presenter)
            )
            return
        evidence = collect_samples(experiment.record.events if experiment.record else ())
        source = BlockSource(question, session, evidence, presenter)
        yield RoundsJudge(source, comparisons, DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS)


@dataclass(slots=True)
class BisectSearch:
    """A running search; `results` has the judged candidates by label, with those of a resumed bisect's earlier part."""

    question: Question
    judge: ExactJudge | RoundsJudge
    log: EventLog
    say: Callable[[str], None]
    results: dict[str, CandidateResult]
    try_all: bool
    _is_searching: bool = False

    def search(self) -> tuple[ExitCode, str]:
        """Search; return the exit code, and the reason if there is no answer."""
        question = self.question
        self._announce()
        ends: dict[bool, CandidateResult] = {}
        for bad, candidate in ((False, question.good), (True, question.bad)):
            end_name = "bad" if bad else "good"
            if candidate.label not in self.results:
                self.say(f"{candidate.label} ({end_name} end) …")
                start = time.monotonic()
                self._record(candidate, self.judge.judge_end(question.resolve(candidate, self.say), bad=bad), start)
            result = self.results[candidate.label]
            ends[bad] = result
            if result.value is None:
                return ExitCode.ERROR, f"the {end_name} end {candidate.label} cannot be judged: {result.reason}"
            self.say(f"{candidate.label} ({end_name} end): {result.text}")
        problem = self.judge.start(ends[False], ends[True])
        if problem and question.flags and self.judge.ends_are_same:
            return ExitCode.OK, f"{question.flags.variant.name} has no effect on {question.metric}: {problem}"
        if problem:
            prefix = "nothing to search for: " if self.judge.ends_are_same else ""
            return ExitCode.FAILED, f"{prefix}{problem}"
        self._is_searching = True
        self.log.write("search", self._describe_search())
        return (self._find_flags(question.flags), "") if question.flags else self._find_change()

    def _announce(self) -> None:
        """Say what is searched."""
        question, row = self.question, self.question.row
        if question.flags:
            self.say(f"{question.chain} by {question.metric}: {pluralize(len(row) - 1, 'flag')}")
            for number, flag in enumerate(question.flags.flags, start=1):
                self.say(f"  {number}: {flag.changes}")
            return
        ends = ("good", "bad") if question.good_is_older else ("bad", "good")
        self.say(
            f"{question.chain} by {question.metric}: {len(row)} candidates from {row[0].label} ({ends[0]}) to "
            f"{row[-1].label} ({ends[1]})"
        )
        if question.request.source:
            self.say(describe_cost(row, count_max_tries(len(row)), question.place))

    def _find_change(self) -> tuple[ExitCode, str]:
        """Find the two candidates around the change; record the commit that made it. Return also a problem."""
        request = self.question.request
        self._narrow()
        if request.into:
            try:
                commits = self._refine(request.into)
            except (UsageError, ToolchainError) as error:
                old, new = self._change_pair
                pair = f"it is between {old.label} and {new.label}"
                return ExitCode.ERROR, f"{pair}, whose commits cannot be searched: {error.on_one_line}"
            self._search_among(commits)
        if self._state.between:
            return ExitCode.INCONCLUSIVE, ""
        source = request.source or request.into
        if source and (commit := self._find_commit(self._change_pair[1])):
            self.log.write("change", describe_change(commit, source, self.question.place))
        return ExitCode.OK, ""

    def _narrow(self) -> None:
        """Try candidates until the change lies between two neighbours, or until no useful candidate is left."""
        while (index := self._choose_next()) is not None:
            candidate, state = self.question.row[index], self._state
            if state.untried:
                steps = pluralize(state.tries_left, "step")
                self.say(f"bisecting {pluralize(len(state.untried), 'candidate')}, about {steps} left")
            else:
                self.say(f"trying the other {pluralize(len(state.untried_anywhere), 'candidate')} too")
            self._try(candidate)

    def _try(self, candidate: Candidate) -> None:
        start = time.monotonic()
        result = self.judge.judge(self.question.resolve(candidate, self.say))
        self._record(candidate, result, start)
        if result.bad is None:
            self.say(f"{candidate.label}: cannot be judged: {join_lines(result.reason)}")
        else:
            suffix = ", a third value" if result.third else ""
            self.say(f"{candidate.label}: {join_lines(result.text)}: {result.verdict_text}{suffix}")

    def _find_flags(self, sets: FlagSets) -> ExitCode:
        """Find the flags that make the difference, so that it is gone without any one of them; record them.

        The first flag with which the metric changes is kept. Until the kept flags are enough, the next one is searched
        among the flags before it.
        """

        def is_bad(numbers: Sequence[int]) -> bool | None:
            return self._is_bad(sets.make_candidate(numbers))

        kept: tuple[int, ...] = ()
        remaining = len(sets.flags)
        least = tuple(range(1, remaining + 1))
        while is_bad(kept) is False:
            self._use_row(sets.make_row(kept, remaining))
            self._narrow()
            # If candidates in between cannot be judged, all flags of the range are kept.
            state = self._state
            kept = (*range(state.last_old + 1, state.first_new + 1), *kept)
            remaining = state.last_old
            least = (*range(1, remaining + 1), *kept)
        if is_bad(kept):
            least = kept
        while smaller := next(filter(is_bad, leave_one_out(least)), ()):
            least = smaller
        is_least = all(is_bad(numbers) is False for numbers in leave_one_out(least))
        flags = tuple(sets.flags[number - 1].changes for number in least)
        self.log.write("found", FlagAnswer(label=sets.make_candidate(least).label, flags=flags, is_least=is_least))
        return ExitCode.OK if is_least else ExitCode.INCONCLUSIVE

    def _is_bad(self, candidate: Candidate) -> bool | None:
        """Return whether a set of flags is like the bad end; try it if needed. None if it could not be judged."""
        if candidate.label not in self.results and self._has_comparisons_left:
            self.log.write("refined", CandidateRefinement(row=record_row((candidate,))))
            self._try(candidate)
        return self.results[candidate.label].bad if candidate.label in self.results else None

    def _use_row(self, row: tuple[Candidate, ...]) -> None:
        self.question = replace(self.question, row=row)
        self.log.write("refined", CandidateRefinement(row=record_row(row)))

    def _refine(self, source: str) -> tuple[Candidate, ...]:
        """Search the nightlies between the two candidates around the change; return the commits that remain.

        Raises:
            ToolchainError: the checkout lacks the commit of a candidate.
            UsageError: neither commit is an ancestor of the other.
        """
        place = self.question.place
        if not self._state.between:
            self._search_among(list_nightlies_inside(*self._change_pair, place, self.say))
        if self._state.between:
            return ()
        old, new = self._change_pair
        commits = self._find_commit(old), self._find_commit(new)
        if not all(commits):
            raise UsageError("they are not known", "Search with --source between two of them.")
        row, _ = list_commits(*commits, source, place)
        if inside := row[1:-1]:
            cost = describe_cost(inside, count_max_tries(len(row)), place)
            self.say(f"between {old.label} and {new.label}: {cost}")
        return inside

    @property
    def _change_pair(self) -> tuple[Candidate, Candidate]:
        """The two candidates on each side of the change, the older one first."""
        row, state = self.question.row, self._state
        return row[state.last_old], row[state.first_new]

    def _search_among(self, inside: Sequence[Candidate]) -> None:
        """Insert candidates between the two around the change, and search among the inserted ones."""
        if not inside:
            return
        row, state = self.question.row, self._state
        self._use_row((*row[: state.last_old + 1], *inside, *row[state.first_new :]))
        self._narrow()

    def _find_commit(self, candidate: Candidate) -> str:
        """Return a candidate's commit on the side that is searched; empty if unknown."""
        return self.results[candidate.label].toolchain.get(self.question.commit, "")

    @property
    def _state(self) -> Search:
        good_is_older = self.question.good_is_older
        ends = {None: CandidateEnd.NEITHER, good_is_older: CandidateEnd.NEW, not good_is_older: CandidateEnd.OLD}
        row = [self.results.get(candidate.label) for candidate in self.question.row]
        return Search(len(row), {index: ends[result.bad] for index, result in enumerate(row) if result})

    def _choose_next(self) -> int | None:
        state, question = self._state, self.question
        if not self._has_comparisons_left:
            return None
        if state.next is not None or not self.try_all:
            has_commits = question.request.source or question.request.into
            return state.choose_next(find_ready(question.row, question.place) if has_commits else ())
        return next(iter(state.untried_anywhere), None)

    @property
    def _has_comparisons_left(self) -> bool:
        """False if, with one more comparison, the stated confidence would no longer hold."""
        # One of the results with a value is the good end's.
        count = sum(result.value is not None for result in self.results.values()) - 1
        return self.judge.max_comparisons is None or count < self.judge.max_comparisons

    def _record(self, candidate: Candidate, result: CandidateResult, start: float) -> None:
        result = self.results[candidate.label] = replace(result, seconds=round(time.monotonic() - start, 3))
        search = self._describe_search() if self._is_searching else None
        self.log.write("result", replace(result, search=search), step=candidate.label)

    def _describe_search(self) -> SearchRange:
        """Describe the state of the search; both ends have to be judged."""
        state = self._state
        labels = [candidate.label for candidate in self.question.row]
        return SearchRange(
            last_old=labels[state.last_old],
            first_new=labels[state.first_new],
            between=tuple(labels[index] for index in state.between),
            over=state.next is None,
            changes=tuple((labels[start], labels[end]) for start, end in state.changes),
        )


class BlockSource:
    """Measures blocks of the good end and of candidates; before, a run per candidate compiles and checks the model."""

    def __init__(
        self, question: Question, session: Session[Any], evidence: dict[str, PairSamples], presenter: Reporter
    ) -> None:
        self._presenter, self._question, self._folder = presenter, question, session.folder
        self._rounds = make_round_settings(question.request)
        self._budget = 60 * (question.request.budget or _DEFAULT_MINUTES)
        self._taker = BlockRunner(session, replace_disturbed=question.setup.request.execution.replaces_disturbed)
        self._progress = session.progress
        self._evidence = evidence
        self._sides: dict[str, ComparisonSide] = {}
        self._used_blocks: dict[str, int] = {}
        self._deadlines: dict[str, float] = {}
        self.cpus: Cpus = ()

    def prepare(self, candidate: Candidate) -> CandidateResult:
        """Compile with a candidate, and check its numbers.

        Raises:
            GauntletError: the good end cannot be measured any more.
        """
        result, good = self._prepare(candidate), self._question.good
        if good.label not in {*self._sides, candidate.label}:
            reason = self._prepare(self._question.resolve(good, self._progress.message)).reason
            if reason or good.label not in self._sides:
                raise GauntletError(f"the good end {good.label} cannot be measured: {reason}")
        return result

    def measure_blocks(self, candidate: Candidate, count: int) -> Sequence[Block]:
        """Measure `count` blocks, the good end as A and the candidate as B; fewer if time runs out or a block fails."""
        pair = self._make_pair(candidate)
        evidence = self._evidence.setdefault(pair.chain, PairSamples())
        # Waiting for other runs does not count as measuring time.
        deadline = self._deadlines.setdefault(candidate.label, self._compute_measuring_seconds() + self._budget)
        begin = self._used_blocks.get(candidate.label, 0)
        end = begin + count

        def can_continue() -> bool:
            return self._compute_measuring_seconds() < deadline and self._taker.may_continue(evidence)

        # All candidates are measured on the same CPUs, because their ratios are compared.
        cpu_sets = (previous.cpus for previous in self._evidence.values() if previous.attempts)
        evidence.cpus = next((pair.cpu_sets[0] if cpus is None else cpus for cpus in cpu_sets), None)
        choose_cpus(pair, evidence, self._taker, _SEED, can_continue)
        self.cpus = evidence.cpus or ()
        while evidence.cpus is not None and len(evidence.blocks) < end and can_continue():
            left = max(0.0, deadline - self._compute_measuring_seconds())
            self._progress.status(f"{pair.chain}: block {len(evidence.blocks) + 1} of {end}, {left / 60:.0f} min left")
            self._taker.run(pair.block(AB, evidence, _SEED, evidence.cpus), evidence)
            if len(evidence.control_blocks) < min(CONTROL_BLOCKS, len(evidence.blocks)):
                self._taker.run(pair.block(CONTROL, evidence, _SEED, evidence.cpus), evidence)
        blocks = evidence.blocks[begin:end]
        self._used_blocks[candidate.label] = begin + len(blocks)
        return blocks

    def measure_spec_way(self, candidate: Candidate) -> Comparison | None:
        """Compare the candidate with the good end in the spec's own way; None if its blocks already ran that way."""
        pair = self._make_pair(candidate)
        evidence = self._evidence.setdefault(pair.chain, PairSamples())
        self._progress.status(f"{pair.chain}: rounds run as in its spec")
        run_spec_blocks(pair, evidence, self._taker, _SEED, lambda: self._taker.may_continue(evidence))
        return compare_in_spec_way(evidence.spec_blocks, DEFAULT_MIN_EFFECT, DEFAULT_EQUIVALENCE_MARGIN)

    def find_twin(self, candidate: Candidate) -> str:
        """Return the label of a candidate whose other flags give the same module, run in the same way; empty if none.

        Only times of benchmarks follow from the module.
        """
        if self._question.metric != Figure.TIME.row.metric:
            return ""
        side = self._sides[candidate.label]
        for other in self._sides.values():
            steps = self._pair_steps(other, side)
            if other is not side and steps and find_unaffected((other, side), {self._question.chain: steps}):
                return other.name
        return ""

    def _compute_measuring_seconds(self) -> float:
        return time.monotonic() - self._taker.wait_seconds

    def find_problem(self, candidate: Candidate) -> str:
        """Return why a candidate's blocks are no evidence, or an empty string if they are."""
        evidence = self._evidence.get(self._make_name(candidate), PairSamples())
        if evidence.failure:
            return evidence.failure
        if self._taker.must_stop(evidence):
            replaced = f"{evidence.replacement_count} blocks were disturbed and replaced"
            return f"{replaced}; for example: {evidence.main_disturbance}"
        control, plan = evidence.control_blocks, plan_looks(DEFAULT_ALPHA, CONTROL_BLOCKS)
        if control and compare(control, plan).differs:
            return "void: the good end differs from itself; find what differs, and repeat"
        return ""

    def _make_name(self, candidate: Candidate) -> str:
        """Name a candidate's pair; the name also seeds the random order of sides, which so differs by candidate."""
        return f"{self._question.chain} with {candidate.label}"

    def _make_pair(self, candidate: Candidate) -> Pair:
        steps = self._pair_steps(self._sides[self._question.good.label], self._sides[candidate.label])
        if steps is None:
            raise GauntletError(f"{candidate.label} has no step to be measured")
        return make_pair(self._make_name(candidate), steps, self._question.metric, self._rounds)

    def _pair_steps(self, a: ComparisonSide, b: ComparisonSide) -> tuple[Step, Step] | None:
        """Return the measured steps of two candidates; None if one has no such step."""
        step_a, step_b = (side.steps_by_metric[self._question.metric].get(self._question.chain) for side in (a, b))
        return (step_a, step_b) if step_a and step_b else None

    def _prepare(self, candidate: Candidate) -> CandidateResult:
        question, setup = self._question, self._question.setup
        setup = replace(setup, stages=tuple(dict.fromkeys((*setup.stages, Figure.TIME.row.stage))))

        def prepare(folder: Path, presenter: Reporter) -> CandidateResult:
            workbench = setup.open_workbench_for(candidate.iree)
            side = prepare_side(candidate.label, workbench, candidate.iree, setup, folder, presenter)
            if side.interrupted:
                raise KeyboardInterrupt
            step = side.steps_by_metric[question.metric].get(question.chain)
            self._sides[candidate.label] = side
            return CandidateResult(
                reason=find_obstacle(side, step) if step else "it has no such step", toolchain=side.toolchain
            )

        return measure_candidate(candidate, self._folder, self._presenter, prepare)


class RoundsJudge:
    """Judges by times.

    `alpha` is the chance that noise misleads the whole search. It is divided evenly among the `comparisons` that are
    possible, including the one of the two ends. Each comparison has at most `max_blocks` blocks.
    """

    def __init__(self, source: BlockSource, comparisons: int, alpha: float, max_blocks: int) -> None:
        self._source = source
        self._plan = plan_looks(alpha / comparisons, max_blocks)
        # At most this many candidates, counting the bad end, may be measured within the error rate.
        self.max_comparisons: int | None = comparisons
        self.ends_are_same = False
        self._middle = 0.0
        self._results: dict[str, CandidateResult] = {}

    def judge_end(self, candidate: Candidate, *, bad: bool) -> CandidateResult:
        """Prepare the good end, or compare the bad one with it."""
        check = self._source.prepare(candidate)
        if check.reason:
            return check
        if not bad:
            result = self._results[candidate.label] = replace(check, bad=False, value=1.0, text="1")
            return result
        if self._source.find_twin(candidate):
            self.ends_are_same = True
            reason = "both ends run the same module in the same way"
            return replace(check, bad=True, value=1.0, text="1", reason=reason)
        blocks: list[Block] = []
        while True:
            has_blocks = self._measure_to_next_look(candidate, blocks)
            if not blocks:
                return replace(check, reason=self._source.find_problem(candidate) or "no rounds could be measured")
            ends = compare(blocks, self._plan)
            if not has_blocks or self._plan.next_look(len(blocks)) is None or ends.verdict is TimeVerdict.SAME:
                break
            # Stop if the ends differ and the whole interval gives the same middle: more blocks would not move it.
            ratio = ends.ratio
            if ends.differs and find_middle(ratio, ends.low, ends.high) == find_middle(ratio, ratio, ratio):
                break
        reason = "" if ends.differs else f"the ends do not clearly differ: {ends.verdict}: {ends.reason}"
        reason = self._source.find_problem(candidate) or reason
        result = self._measure(check, ends, bad=True, reason=reason)
        spec = None if reason else self._source.measure_spec_way(candidate)
        if spec is not None:
            # All candidates run on the same CPUs: checking the spec's own way once, for the bad end, is enough.
            suffix = ", which contradicts this" if spec.low > ends.high or spec.high < ends.low else ""
            result = replace(
                result, text=f"{result.text}; run as in its spec {spec.low:.3f} to {spec.high:.3f}{suffix}"
            )
        self._results[candidate.label] = result
        return result

    def start(self, good: CandidateResult, bad: CandidateResult) -> str:
        """Compute the middle of the ends; return why there is nothing to search, or an empty string."""
        del good  # the good end's ratio is 1 by definition
        if bad.reason:
            return bad.reason
        try:
            self._middle = find_middle(bad.end_value, bad.low or 0.0, bad.high or 0.0)
        except EvidenceError as error:
            return error.message
        return ""

    def judge(self, candidate: Candidate) -> CandidateResult:
        """Compare a candidate with the good end until the ratio's interval lies on one side of the middle."""
        check = self._source.prepare(candidate)
        if check.reason:
            return check
        twin = self._source.find_twin(candidate)
        if twin in self._results:
            result = self._results[twin]
            text = f"{result.text}, measured with {twin}: the same module"
            return replace(result, text=text, folder=check.folder, toolchain=check.toolchain)
        blocks: list[Block] = []
        while True:
            has_blocks = self._measure_to_next_look(candidate, blocks)
            if not blocks:
                return replace(check, reason=self._source.find_problem(candidate) or "no rounds could be measured")
            placing = place_candidate(compute_log_ratios(blocks), self._plan, self._middle)
            if placing.next_look is None or not has_blocks:
                break
        trouble = self._source.find_problem(candidate)
        bad = None if trouble else placing.bad
        reason = "" if bad is not None else trouble or placing.reason
        if not trouble and bad is None and placing.next_look is not None:
            reason += "; the time is up"
        result = self._results[candidate.label] = self._measure(check, placing, bad=bad, reason=reason)
        return result

    def _measure_to_next_look(self, candidate: Candidate, blocks: list[Block]) -> bool:
        """Measure blocks up to the next look, as far as possible; return True if any were measured."""
        look = self._plan.next_look(len(blocks))
        blocks_taken = self._source.measure_blocks(candidate, look - len(blocks)) if look else ()
        blocks += blocks_taken
        return bool(blocks_taken)

    def _measure(
        self, check: CandidateResult, timing: Comparison | Placement, *, bad: bool | None, reason: str
    ) -> CandidateResult:
        cpus = f", on CPU {format_cpus(self._source.cpus)}" if self._source.cpus else ""
        return replace(
            check,
            bad=bad,
            value=timing.ratio,
            text=f"{timing.ratio:.3f} × the good end's time ({timing.low:.3f} to {timing.high:.3f}{cpus})",
            reason=reason,
            confidence=timing.confidence,
            low=timing.low,
            high=timing.high,
        )
