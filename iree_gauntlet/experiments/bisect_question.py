"""The question of a bisect (metric, model and row of candidates), and the run that measures a candidate."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import HashCache
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.cache_folders import find_cache_folder, find_toolchains_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.engine.judging import find_first_error
from iree_gauntlet.engine.workspace import Selection
from iree_gauntlet.errors import ExitCode, NoSuchToolchainError, SpecError, ToolchainError, UsageError
from iree_gauntlet.experiments.explaining.bundle import FIXED, REPRO_LOG, STILL_THERE, open_bundle, run_bundle
from iree_gauntlet.experiments.flag_sets import FlagSets, make_flag_sets
from iree_gauntlet.experiments.run import RunSetup, make_setup, run
from iree_gauntlet.experiments.sides import make_round_settings
from iree_gauntlet.figures import METRICS, Figure
from iree_gauntlet.formatting import format_duration, pluralize
from iree_gauntlet.journal_events import ResumeOptions
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.statistics.bisection import is_nearer_to_bad, is_same_value, matches_neither_end
from iree_gauntlet.measuring.statistics.rounds import DEFAULT_ALPHA
from iree_gauntlet.records.bisect_outcome import BisectChange, BisectOpening, CandidateResult, RowCandidate
from iree_gauntlet.records.run_folder import find_free_folder
from iree_gauntlet.requests import BisectRequest, RunRequest, collect_changed_options, format_option
from iree_gauntlet.settings import find_project_folder
from iree_gauntlet.stages import Stage
from iree_gauntlet.system.atomic import add_folder
from iree_gauntlet.toolchains.candidates import (
    Candidate,
    list_candidates_among,
    list_candidates_between,
    list_commits,
    open_checkout,
)
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import make_toolchain_locations, provide_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.toolchains.find import ToolchainLocations


# The output of a candidate's run, in its folder.
_CONSOLE = "console.txt"
_TIMED_METRICS = tuple(metric for metric, figure in METRICS.items() if figure.is_compared_in_rounds)
_PASS_FAIL_STAGES = {"compiles": Stage.COMPILE, "runs": Stage.THRESHOLD}
# The exact metrics, with the stage that each needs.
EXACT_METRICS: Mapping[str, Stage] = {
    **{metric: figure.row.stage for metric, figure in METRICS.items() if metric not in _TIMED_METRICS},
    **_PASS_FAIL_STAGES,
}
# Options that only timed metrics use.
_TIMING_OPTIONS = ("budget", "repetitions", "min_time", "cpus", "disturbed")
# The metric of a bundle: its script passes or fails.
_BUNDLE_METRIC = "repro.sh"
_PASS_FAIL_METRICS: Sequence[str] = (*_PASS_FAIL_STAGES, _BUNDLE_METRIC)
_BUNDLE_FOLDER = "bundle"
# The environment that a bundle in a folder may have installed for itself.
_ENVIRONMENT_FOLDER = "env"
# Options that are not recorded, because each candidate runs the whole model.
_OMITTED_OPTIONS = ("shard", "shard_costs", "batch")
_PULL_REQUEST = re.compile(r"\(#(\d+)\)\s*$|^Merge pull request #(\d+) ")


@dataclass(frozen=True, slots=True)
class Question:
    """The metric of a bisect, and the row of candidates from the oldest to the newest.

    Attributes:
        chain: the chain of the one model, or the title of a bundle.
        setup: the run of each candidate; for a bundle, it selects no specs.
        flags: the flags that are searched; None for a search of IREEs.
    """

    metric: str
    chain: str
    row: tuple[Candidate, ...]
    good_is_older: bool
    request: BisectRequest
    setup: RunSetup
    place: ToolchainLocations
    flags: FlagSets | None = None

    @property
    def good(self) -> Candidate:
        """The good end."""
        return self.row[0 if self.good_is_older else -1]

    @property
    def bad(self) -> Candidate:
        """The bad end."""
        return self.row[-1 if self.good_is_older else 0]

    def resolve(self, candidate: Candidate, say: Callable[[str], None]) -> Candidate:
        """Return the candidate to run: a commit's package, if packages are requested and the commit has one."""
        return resolve_package(candidate, self.place, say) if self.request.packages else candidate

    @property
    def commit(self) -> str:
        """The key of the searched commit: the compiler's commit, or the runtime's if the compiler is fixed."""
        return "runtime_commit" if self.setup.request.toolchain.iree_compiler else "compiler_commit"

    def opening(self) -> BisectOpening:
        """Make the journal's opening event."""
        request = self.setup.request
        # These options identify a bisect; a resumed bisect must have the same.
        options = {name: value for name, value in request.resume_options.items() if name not in _OMITTED_OPTIONS}
        return BisectOpening(
            confidence=1 - DEFAULT_ALPHA if self.metric in _TIMED_METRICS else 1.0,
            metric=self.metric,
            chain=self.chain,
            good=self.good.label,
            bad=self.bad.label,
            row=record_row(self.row),
            good_is_older=self.good_is_older,
            kept=ResumeOptions({**asdict(self.request), "disturbed": request.execution.disturbed, **options}),
            commit=self.commit,
            variant=self.flags.variant if self.flags else None,
            flags=self.flags.flags if self.flags else (),
        )


def record_row(candidates: Iterable[Candidate]) -> tuple[RowCandidate, ...]:
    """Convert candidates to their form in the journal."""
    return tuple(RowCandidate(candidate.label, candidate.iree) for candidate in candidates)


def make_question(bisect_request: BisectRequest, request: RunRequest) -> Question:
    """Make the question of a command line.

    Raises:
        UsageError: options are missing or contradict each other.
        ToolchainError: the index of releases cannot be reached.
    """
    toolchain = request.toolchain
    if bisect_request.flags:
        return _make_flag_question(bisect_request, request)
    if toolchain.iree:
        hint = "--iree is for --flags, which searches the flags of one IREE."
        raise UsageError("bisect has no --iree: name them as --good A --bad B", hint)
    _require_options(bisect_request, "good", "bad", *(() if bisect_request.bundle else ("metric",)))
    if toolchain.iree_compiler and toolchain.iree_runtime:
        raise UsageError(
            "--iree-compiler and --iree-runtime leave nothing to search", "Fix one side; the other one is searched."
        )
    parse_choice(toolchain.iree_compiler, "--iree-compiler")
    parse_choice(toolchain.iree_runtime, "--iree-runtime")
    metric = _BUNDLE_METRIC if bisect_request.bundle else bisect_request.metric
    if bisect_request.bundle:
        _require_bundle_alone(bisect_request, request)
        setup = _make_empty_setup(request)
        with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as folder:
            chain = open_bundle(Path(bisect_request.bundle), Path(folder)).title
    else:
        _require_metric(bisect_request, request)
        setup = make_setup(request)
        chain = _find_chain(setup, metric)
    place = make_place(request)
    row, good_is_older = make_row(bisect_request, metric, place)
    return Question(metric, chain, row, good_is_older, bisect_request, setup, place)


def make_row(request: BisectRequest, metric: str, place: ToolchainLocations) -> tuple[tuple[Candidate, ...], bool]:
    """Make the row of candidates between two ends; return also whether `good` is the older end.

    Raises:
        UsageError: options contradict each other, or the ends have nothing between them.
        ToolchainError: the index of releases cannot be reached, or a checkout or commit does not exist.
    """
    _require_one_row(request, metric)
    if request.into:
        open_checkout(request.into, place)
    if request.among:
        return list_candidates_among(request.good, request.bad, request.among), True
    if request.source:
        return list_commits(request.good, request.bad, request.source, place)
    return list_candidates_between(request.good, request.bad, place, nightlies=request.nightlies)


def _make_flag_question(bisect_request: BisectRequest, request: RunRequest) -> Question:
    """Make the question of `--flags`: the candidates are one IREE with more and more flags of a variant."""
    given = collect_changed_options([bisect_request])
    for name in ("good", "bad", "bundle", "source", "packages", "into", "among", "nightlies", "every"):
        if name in given:
            hint = "--flags searches the flags of one IREE, which --iree names: leave one of the two out."
            raise UsageError(f"--flags and {format_option(name)} exclude each other", hint)
    _require_options(bisect_request, "metric")
    _require_metric(bisect_request, request)
    setup = make_setup(request)
    chain = _find_chain(setup, bisect_request.metric)
    flags = make_flag_sets(bisect_request.flags, setup)
    row = flags.make_row((), len(flags.flags))
    return Question(
        bisect_request.metric, chain, row, True, bisect_request, flags.add_to(setup), make_place(request), flags
    )


def _require_options(request: BisectRequest, *names: str) -> None:
    for name in names:
        if not getattr(request, name):
            example = "bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches"
            raise UsageError(f"bisect needs {format_option(name)}", f"Such as {example}.")


def make_place(request: RunRequest) -> ToolchainLocations:
    """Return the place where a bisect looks for its IREEs."""
    root = find_cache_folder(request.toolchain.cache_dir)
    configuration = read_configuration(find_project_folder(), os.environ)
    hashes = HashCache(root / "verified")
    return make_toolchain_locations(
        find_toolchains_folder(), root, configuration, Leases, hashes.sha256, offline=request.network.offline
    )


def _require_one_row(request: BisectRequest, metric: str) -> None:
    """Require that at most one option gives the row between the ends, and that this kind of row supports the metric."""
    if request.packages and not (request.source or request.into):
        raise UsageError("--packages is for commits", "Name their checkout with --source or --into.")
    options = {"--among": request.among, "--source": request.source, "--nightlies": request.nightlies}
    names = [name for name, value in options.items() if value] + (["--into"] if request.source and request.into else [])
    if len(names) > 1:
        hint = "--source names a checkout, --among IREEs in order, --nightlies nothing."
        raise UsageError(f"{names[0]} and {names[1]} exclude each other", f"Name what lies between in one way: {hint}")
    if request.into and metric in _TIMED_METRICS:
        hint = f"Once the releases are known: --source {request.into} --good … --bad … (the confidence is for one row)."
        raise UsageError(f"--into is for exact metrics, and {metric} is not exact", hint)


def _require_metric(bisect_request: BisectRequest, request: RunRequest) -> None:
    """Require a known metric, and options of rounds only for timed metrics."""
    metric = bisect_request.metric
    if metric in _TIMED_METRICS:
        make_round_settings(bisect_request)
    elif metric not in EXACT_METRICS:
        raise UsageError(
            f"--metric {metric}: unknown metric", f"Known: {', '.join((*_TIMED_METRICS, *EXACT_METRICS))}."
        )
    elif names := [
        name for name in collect_changed_options((bisect_request, request.execution)) if name in _TIMING_OPTIONS
    ]:
        message = f"{format_option(names[0])} is for --metric {' and '.join(_TIMED_METRICS)}"
        raise UsageError(message, f"The metric {metric} is exact: leave it out.")


def resume_question(opening: BisectOpening, bisect_request: BisectRequest, request: RunRequest) -> Question:
    """Restore an earlier bisect's question; UsageError if the recorded options now select something else."""
    row = tuple(Candidate(candidate.label, candidate.iree) for candidate in opening.row)
    if bisect_request.bundle:
        setup = _make_empty_setup(request)
    else:
        setup = make_setup(request)
        if _find_chain(setup, opening.metric) != opening.chain:
            raise UsageError(f"the selection no longer contains {opening.chain}", "Start a new bisect.")
    flags = None
    if opening.variant:
        # The settings may define the variant in another way by now.
        flags = FlagSets(row[0].iree, opening.variant, opening.flags)
        row, setup = flags.make_row((), len(opening.flags)), flags.add_to(setup)
    place = make_place(request)
    return Question(opening.metric, opening.chain, row, opening.good_is_older, bisect_request, setup, place, flags)


def _find_chain(setup: RunSetup, metric: str) -> str:
    """Return the one selected chain with the spec that the metric needs; UsageError if there is not exactly one."""
    kinds = EXACT_METRICS.get(metric, Figure.TIME.row.stage).row.kinds
    chains = sorted({case.chain for case in setup.selection.cases.cases if not {*kinds}.isdisjoint(case.kinds)})
    if not chains:
        raise UsageError(
            f"no selected model has a {kinds[0]} spec, which --metric {metric} needs",
            "`list` shows the checks of each model.",
        )
    if len(chains) > 1:
        names = ", ".join(chains[:8]) + (f" and {len(chains) - 8} more" if len(chains) > 8 else "")
        raise UsageError(
            f"bisect takes one model, but {len(chains)} are selected: {names}",
            "Select one with --model, --submodel and --target.",
        )
    return chains[0]


def describe_cost(row: Sequence[Candidate], tries: int, place: ToolchainLocations) -> str:
    """Describe the number of builds for a row, and their duration as estimated from earlier builds."""
    ready = find_ready(row, place)
    durations = [build.seconds for _, build, _ in place.builds.all() if build and build.seconds]
    ends = sum(end not in ready for end in (0, len(row) - 1))
    max_builds = min(tries + ends, len(row) - len(ready))
    suffix = (
        f", about {format_duration(max(durations) * max_builds)} going by earlier builds"
        if durations and max_builds
        else ""
    )
    return (
        f"{pluralize(len(row), 'commit')}, {len(ready)} already built; at most {pluralize(max_builds, 'build')}{suffix}"
    )


def find_ready(row: Sequence[Candidate], place: ToolchainLocations) -> set[int]:
    """Return the indices of candidates that need no build and no download."""
    packages = (package.label.removeprefix("commit-") for _, package, _ in place.environments.all() if package)
    # A build of a work tree may have uncommitted changes: it does not count as a build of the commit.
    builds = (build for _, build, _ in place.builds.all() if build and not build.of_tree)
    commits = {*packages, *(build.commit[:12] for build in builds)}
    return {index for index, candidate in enumerate(row) if candidate.label in commits}


def resolve_package(candidate: Candidate, place: ToolchainLocations, say: Callable[[str], None]) -> Candidate:
    """Install a commit's package and return it as the candidate; without a package, return the candidate itself."""
    choice = parse_choice(candidate.iree)
    if choice.kind is not ChoiceKind.SOURCE or not choice.ref:
        return candidate
    package_choice = f"commit:{choice.ref}"
    try:
        provide_environment(parse_choice(package_choice), place)
    except NoSuchToolchainError as error:
        say(f"{candidate.label}: {error.message}; building it instead")
        return candidate
    return replace(candidate, iree=package_choice)


def list_nightlies_inside(
    old: Candidate, new: Candidate, place: ToolchainLocations, say: Callable[[str], None]
) -> tuple[Candidate, ...]:
    """Return the nightlies between two releases (nightlies need no build); none if either is not a release."""
    if any(parse_choice(candidate.iree).kind is not ChoiceKind.RELEASE for candidate in (old, new)):
        return ()
    try:
        row, _ = list_candidates_between(old.iree, new.iree, place, nightlies=True)
    except ToolchainError as error:
        say(f"the nightlies between {old.label} and {new.label} are not known: {error.message}; searching the commits")
        return ()
    if row[1:-1]:
        say(f"between {old.label} and {new.label}: nightlies ({len(row) - 2})")
    return row[1:-1]


def describe_change(commit: str, source: str, place: ToolchainLocations) -> BisectChange:
    """Describe the commit that made a change."""
    fields = open_checkout(source, place).describe(commit)
    pull = _PULL_REQUEST.search(fields["subject"])
    return BisectChange(**fields, pull=int(pull[1] or pull[2]) if pull else None)


def measure_candidate(
    candidate: Candidate, folder: Path, presenter: Reporter, measure: Callable[[Path, Reporter], CandidateResult]
) -> CandidateResult:
    """Run a candidate in its folder; return the result before judgement, or one with the reason for a failure.

    Raises:
        GauntletError: a problem that the candidate did not cause, such as a full disk.
        KeyboardInterrupt: the run was interrupted.
    """
    run_dir = find_free_folder(folder / candidate.label)
    run_dir.mkdir()
    try:
        with (run_dir / _CONSOLE).open("w", encoding="utf-8") as stream:
            return replace(measure(run_dir, presenter.with_stream(stream)), folder=run_dir.name)
    except (ToolchainError, SpecError) as error:
        # The candidate cannot be installed, lacks a flag, or is no IREE at all.
        (run_dir / _CONSOLE).write_text(f"{error}\n", encoding="utf-8")
        return CandidateResult(reason=error.on_one_line, folder=run_dir.name)


def run_candidate(
    candidate: Candidate, metric: str, chain: str, folder: Path, setup: RunSetup, presenter: Reporter
) -> CandidateResult:
    """Run the stage that a metric needs with a candidate, and read the metric's value; see `measure_candidate`."""

    def run_stage(run_dir: Path, presenter: Reporter) -> CandidateResult:
        code = run(setup.within(run_dir, candidate.iree, (EXACT_METRICS[metric],)), presenter, brief=True).exit_code
        if code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        record = read_journal(run_dir / JOURNAL)
        return replace(_read_value(metric, record, chain), toolchain=record.run.toolchain.as_dict())

    return measure_candidate(candidate, folder, presenter, run_stage)


class ExactJudge:
    """Judges by a metric that is equal in every run: a candidate belongs to the end whose value is nearer.

    With `in_any_order`, the bad end may pass where the good end fails.
    """

    max_comparisons: int | None = None
    ends_are_same = False

    def __init__(self, name: str, run: Callable[[Candidate], CandidateResult], *, in_any_order: bool = False) -> None:
        self._name = name
        self._run = run
        self._in_any_order = in_any_order
        self._good = self._bad = 0.0

    def judge_end(self, candidate: Candidate, *, bad: bool) -> CandidateResult:
        """Measure an end; the result's `bad` is the argument, or None if the end could not be measured."""
        result = self._run(candidate)
        return result if result.value is None else replace(result, bad=bad)

    def start(self, good: CandidateResult, bad: CandidateResult) -> str:
        """Take the ends' values; return why there is nothing to search, or an empty string."""
        self._good, self._bad = good.end_value, bad.end_value
        if self._is_same(good.end_value, bad.end_value):
            self.ends_are_same = True
            if good.text != bad.text:
                return f"the ends differ by too little to search for ({good.text}, and {bad.text})"
            return f"both ends give the same value ({good.text})"
        if self._name in _PASS_FAIL_METRICS and good.end_value < bad.end_value and not self._in_any_order:
            return f"good and bad are swapped: the good end is {good.text}, the bad one {bad.text}"
        return ""

    def judge(self, candidate: Candidate) -> CandidateResult:
        """Run a candidate, and compare its value with the ends'."""
        result = self._run(candidate)
        if result.value is None:
            return result
        ends = self._good, self._bad
        same = [self._is_same(end, result.value) for end in ends]
        is_third = not any(same)
        # Compilers round in different orders, so errors are never equal; and both ends may be within the margin.
        if METRICS.get(self._name) is Figure.ERROR or all(same):
            is_third = matches_neither_end(result.value, *ends)
        return replace(result, bad=is_nearer_to_bad(result.value, *ends), third=is_third)

    def _is_same(self, a: float, b: float) -> bool:
        margin = METRICS[self._name].row.margin if self._name in METRICS else None
        return is_same_value(a, b) if margin is None else not margin.is_exceeded(a, b)


def _read_value(metric: str, record: JournalRecord, chain: str) -> CandidateResult:
    """Read an exact metric's value, or the reason for having none; a pass is 1, a failure of IREE is 0."""
    fault, reason = _find_fault(record, chain)
    if metric in _PASS_FAIL_METRICS:
        if fault is None:
            return CandidateResult(value=1.0, text="passes")
        return CandidateResult(value=0.0, text=f"fails: {reason}") if fault else CandidateResult(reason=reason)
    result = record.results.get(f"{chain}:{EXACT_METRICS[metric]}")
    figure = METRICS[metric]
    value = result.measure(figure) if result else None
    if value is None:
        return CandidateResult(reason=reason or figure.row.missing_reason)
    if result and figure is Figure.DISPATCH_INSTRUCTIONS and result.measure(Figure.OUTSIDE_INSTRUCTIONS) is None:
        # The counter cannot tell dispatches apart, so the value is that of the whole call.
        figure = Figure.CALL_INSTRUCTIONS
    return CandidateResult(value=value, text=figure.describe(value))


def _find_fault(record: JournalRecord, chain: str) -> tuple[bool | None, str]:
    """Return whether IREE caused the first step that did not pass (None if all passed), and the reason."""
    for step in record.planned:
        result = record.results.get(step.id)
        if result and result.verdict.counts_as_pass:
            continue
        reason = (result.full_reason if result else "") or "it did not finish"
        label = step.id.removeprefix(f"{chain}:")
        is_fault = result and (result.verdict.counts_as_failure or result.crashed or result.timed_out)
        return bool(is_fault and step.stage.row.failures), f"{label}: {reason}"
    return None, ""


def _require_bundle_alone(bisect_request: BisectRequest, request: RunRequest) -> None:
    """Require that no option of models is given: a bundle has its own program, inputs and question."""
    options = collect_changed_options((request.selection, request.execution))
    options |= {
        name: value
        for name, value in collect_changed_options([bisect_request]).items()
        if name in ("metric", *_TIMING_OPTIONS)
    }
    if options:
        flag = format_option(next(iter(options)))
        hint = "A bundle contains its program, inputs and expected values: leave one of the two out."
        raise UsageError(f"{flag} and --bundle exclude each other", hint)


def _make_empty_setup(request: RunRequest) -> RunSetup:
    """Make a setup without specs: a bundle only needs it to find and install IREEs."""
    return RunSetup(request, Selection("bundle", (), (), (), CaseSet((), (), ())), ())


def keep_bundle(bundle: str, folder: Path) -> None:
    """Copy a bundle into the bisect's folder, unless the folder already has a bundle."""
    target = folder / _BUNDLE_FOLDER
    if target.exists():
        return
    with tempfile.TemporaryDirectory(prefix=f"{_BUNDLE_FOLDER}-", dir=folder) as temp_dir:
        info = open_bundle(Path(bundle), Path(temp_dir))
        with add_folder(target) as copy:
            shutil.copytree(info.folder, copy, ignore=shutil.ignore_patterns(_ENVIRONMENT_FOLDER))


def run_bundle_with(
    candidate: Candidate, folder: Path, setup: RunSetup, supervisor: Supervisor, presenter: Reporter
) -> CandidateResult:
    """Run the bundle with a candidate; the value is 1 if it passes, 0 if it fails; see `measure_candidate`."""

    def run_script(run_dir: Path, _presenter: Reporter) -> CandidateResult:
        workbench = setup.open_workbench_for(candidate.iree)
        code = run_bundle(folder / _BUNDLE_FOLDER, workbench.iree, supervisor, run_dir)
        toolchain = workbench.iree.as_dict()
        if code == FIXED:
            return CandidateResult(value=1.0, text="passes", toolchain=toolchain)
        if code == STILL_THERE:
            return CandidateResult(value=0.0, text="fails", toolchain=toolchain)
        ending = "did not finish in time" if code is None else f"exits with {code}"
        lines = (run_dir / REPRO_LOG).read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        return CandidateResult(reason=f"repro.sh {ending}: {find_first_error(lines) or lines[-1]}", toolchain=toolchain)

    return measure_candidate(candidate, folder, presenter, run_script)
