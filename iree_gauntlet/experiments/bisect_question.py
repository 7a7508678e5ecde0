"""What a bisect looks for: metric, model, and the row of candidates; and what one candidate gives, by a run of it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.cache_folders import find_cache_folder, find_toolchains_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.engine.judging import find_first_error
from iree_gauntlet.engine.workspace import Selection
from iree_gauntlet.errors import ExitCode, NoSuchToolchainError, SpecError, ToolchainError, UsageError
from iree_gauntlet.experiments.explaining.bundle import FIXED, SAID, STILL_THERE, open_bundle, run_bundle
from iree_gauntlet.experiments.run import Chosen, choose, run
from iree_gauntlet.experiments.sides import rounds_asked
from iree_gauntlet.figures import METRICS, Figure
from iree_gauntlet.formatting import counted, duration
from iree_gauntlet.journal_events import KeptOptions
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.statistics.bisection import is_nearer_to_bad, is_same_value, is_third_value
from iree_gauntlet.measuring.statistics.rounds import DEFAULT_ALPHA
from iree_gauntlet.records.bisect_outcome import BisectChange, BisectOpening, Judged, RowCandidate
from iree_gauntlet.records.run_folder import free_folder
from iree_gauntlet.requests import BisectRequest, RunRequest, dashed, given
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
from iree_gauntlet.toolchains.find import make_toolchain_place, provide_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.toolchains.find import ToolchainPlace


# What a candidate's run prints, in its folder.
_CONSOLE = "console.txt"
_TIMED_METRICS = tuple(metric for metric, figure in METRICS.items() if figure.is_compared_in_rounds)
_PASSING_STAGES = {"compiles": Stage.COMPILE, "runs": Stage.THRESHOLD}
# By the stage that each needs.
EXACT_METRICS: Mapping[str, Stage] = {
    **{metric: figure.row.stage for metric, figure in METRICS.items() if metric not in _TIMED_METRICS},
    **_PASSING_STAGES,
}
# Options that only these metrics have a use for.
_TIMING_NAMES = ("budget", "repetitions", "min_time", "cpus", "disturbed")
# Of a bundle, which says so itself.
_BUNDLE_METRIC = "repro.sh"
_PASSING: Sequence[str] = (*_PASSING_STAGES, _BUNDLE_METRIC)
_KEPT = "bundle"
# What a bundle that is a folder may have installed for itself.
_INSTALLED = "env"
# Each candidate has its own IREE, and all of the model.
_NOT_KEPT = ("iree", "shard", "shard_costs", "batch")
_PULL = re.compile(r"\(#(\d+)\)\s*$|^Merge pull request #(\d+) ")


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for, in a row of candidates from the oldest to the newest.

    Attributes:
        chain: of the one model; the title of a bundle.
        chosen: what is run with each candidate; it selects nothing where that is a bundle.
    """

    metric: str
    chain: str
    row: tuple[Candidate, ...]
    good_is_older: bool
    asked: BisectRequest
    chosen: Chosen
    place: ToolchainPlace

    @property
    def good(self) -> Candidate:
        """The good end."""
        return self.row[0 if self.good_is_older else -1]

    @property
    def bad(self) -> Candidate:
        """The bad end."""
        return self.row[-1 if self.good_is_older else 0]

    def taken(self, candidate: Candidate, say: Callable[[str], None]) -> Candidate:
        """A candidate as it is run: a commit by its package, where that was asked for and there is one."""
        return take_package(candidate, self.place, say) if self.asked.packages else candidate

    @property
    def commit(self) -> str:
        """What is searched: where the compiler is the same for all, the runtime."""
        return "runtime_commit" if self.chosen.request.toolchain.iree_compiler else "compiler_commit"

    def opening(self) -> BisectOpening:
        """For the record."""
        request = self.chosen.request
        # What makes a bisect the same one: a resumed one keeps it.
        kept = {name: value for name, value in request.kept.items() if name not in _NOT_KEPT}
        return BisectOpening(
            confidence=1 - DEFAULT_ALPHA if self.metric in _TIMED_METRICS else 1.0,
            metric=self.metric,
            chain=self.chain,
            good=self.good.label,
            bad=self.bad.label,
            row=row_of(self.row),
            good_is_older=self.good_is_older,
            kept=KeptOptions({**asdict(self.asked), "disturbed": request.conduct.disturbed, **kept}),
            commit=self.commit,
        )


def row_of(candidates: Iterable[Candidate]) -> tuple[RowCandidate, ...]:
    """Candidates for the record."""
    return tuple(RowCandidate(candidate.label, candidate.iree) for candidate in candidates)


def question_of(asked: BisectRequest, request: RunRequest) -> Question:
    """What a command line asks for.

    Raises:
        UsageError: options that are missing or do not fit together.
        ToolchainError: the index does not answer.
    """
    for name in ("good", "bad", *(() if asked.bundle else ("metric",))):
        if not getattr(asked, name):
            example = "bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches"
            raise UsageError(f"bisect needs --{name}", f"Such as {example}.")
    toolchain = request.toolchain
    if toolchain.iree_compiler and toolchain.iree_runtime:
        raise UsageError(
            "--iree-compiler and --iree-runtime leave nothing to search", "Fix one side; the other one is searched."
        )
    parse_choice(toolchain.iree_compiler, "--iree-compiler")
    parse_choice(toolchain.iree_runtime, "--iree-runtime")
    metric = _BUNDLE_METRIC if asked.bundle else asked.metric
    if asked.bundle:
        _require_bundle_alone(asked, request)
        chosen = _make_nothing_chosen(request)
        with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as folder:
            chain = open_bundle(Path(asked.bundle), Path(folder)).title
    else:
        _require_metric(asked, request)
        chosen = choose(request)
        chain = chain_of(chosen, metric)
    _require_one_way(asked, metric)
    place = place_of(request)
    if asked.into:
        open_checkout(asked.into, place)
    if asked.among:
        row, good_is_older = list_candidates_among(asked.good, asked.bad, asked.among), True
    elif asked.source:
        row, good_is_older = list_commits(asked.good, asked.bad, asked.source, place)
    else:
        row, good_is_older = list_candidates_between(asked.good, asked.bad, place, nightlies=asked.nightlies)
    return Question(metric, chain, row, good_is_older, asked, chosen, place)


def place_of(request: RunRequest) -> ToolchainPlace:
    """Where the IREEs of a bisect are looked for."""
    root = find_cache_folder(request.toolchain.cache_dir)
    configuration = read_configuration(find_project_folder(), os.environ)
    hashes = VerifiedHashes(root / "verified")
    return make_toolchain_place(
        find_toolchains_folder(), root, configuration, Leases, hashes.sha256, offline=request.network.offline
    )


def _require_one_way(asked: BisectRequest, metric: str) -> None:
    """Make sure that what lies between the ends is said in one way, which is for that metric."""
    if asked.packages and not (asked.source or asked.into):
        raise UsageError("--packages is for commits", "Name their checkout with --source or --into.")
    ways = {"--among": asked.among, "--source": asked.source, "--nightlies": asked.nightlies}
    named = [name for name, value in ways.items() if value] + (["--into"] if asked.source and asked.into else [])
    if len(named) > 1:
        hint = "--source names a checkout, --among IREEs in order, --nightlies nothing."
        raise UsageError(f"{named[0]} and {named[1]} exclude each other", f"Say in one way what lies between: {hint}")
    if asked.into and metric in _TIMED_METRICS:
        hint = f"When the releases are known: --source {asked.into} --good … --bad … (their confidence is for one row)."
        raise UsageError(f"--into is for exact metrics, and {metric} is none", hint)


def _require_metric(asked: BisectRequest, request: RunRequest) -> None:
    """Make sure that there is such a metric, and that what is said of rounds is for it."""
    metric = asked.metric
    if metric in _TIMED_METRICS:
        rounds_asked(asked)
    elif metric not in EXACT_METRICS:
        raise UsageError(
            f"--metric {metric}: unknown metric", f"Known: {', '.join((*_TIMED_METRICS, *EXACT_METRICS))}."
        )
    elif useless := [name for name in given((asked, request.conduct)) if name in _TIMING_NAMES]:
        what = f"{dashed(useless[0])} is for --metric {' and '.join(_TIMED_METRICS)}"
        raise UsageError(what, f"The metric {metric} is exact: leave it out.")


def resume_question(opening: BisectOpening, asked: BisectRequest, request: RunRequest) -> Question:
    """What an earlier bisect was asked for; UsageError where its options do not mean that any more."""
    row = tuple(Candidate(item.label, item.iree) for item in opening.row)
    if asked.bundle:
        chosen = _make_nothing_chosen(request)
    else:
        chosen = choose(request)
        if chain_of(chosen, opening.metric) != opening.chain:
            raise UsageError(f"the selection does not mean {opening.chain} any more", "Start a new bisect.")
    place = place_of(request)
    return Question(opening.metric, opening.chain, row, opening.good_is_older, asked, chosen, place)


def chain_of(chosen: Chosen, metric: str) -> str:
    """The one chain that is selected and has what the metric needs; UsageError where it is not one."""
    kinds = EXACT_METRICS.get(metric, Figure.TIME.row.stage).row.kinds
    chains = sorted({case.chain for case in chosen.selection.cases.cases if case.kind in kinds})
    if not chains:
        raise UsageError(
            f"nothing that is selected has a {kinds[0]} spec, which --metric {metric} needs",
            "`list` shows the checks of each model.",
        )
    if len(chains) > 1:
        some = ", ".join(chains[:8]) + (f" and {len(chains) - 8} more" if len(chains) > 8 else "")
        raise UsageError(
            f"bisect looks at one model, and {len(chains)} are selected: {some}",
            "Select one with --model, --submodel and --target.",
        )
    return chains[0]


def describe_cost(row: Sequence[Candidate], tries: int, place: ToolchainPlace) -> str:
    """How many of a row have to be built, and about how long that takes: by the builds before it."""
    ready = find_ready(row, place)
    known = [build.seconds for _, build, _ in place.builds.all() if build and build.seconds]
    ends = sum(end not in ready for end in (0, len(row) - 1))
    most = min(tries + ends, len(row) - len(ready))
    took = f", about {duration(max(known) * most)} by the builds before" if known and most else ""
    return f"{counted(len(row), 'commit')}, {len(ready)} there already; at most {counted(most, 'build')}{took}"


def find_ready(row: Sequence[Candidate], place: ToolchainPlace) -> set[int]:
    """Where in a row candidates are that need no build and no download."""
    packaged = (found.label.removeprefix("commit-") for _, found, _ in place.environments.all() if found)
    # What was built of a work tree is that tree's.
    built = (build for _, build, _ in place.builds.all() if build and not build.of_tree)
    commits = {*packaged, *(build.commit[:12] for build in built)}
    return {index for index, candidate in enumerate(row) if candidate.label in commits}


def take_package(candidate: Candidate, place: ToolchainPlace, say: Callable[[str], None]) -> Candidate:
    """A commit by its package, which is installed; the same candidate where it has none, or is no commit."""
    choice = parse_choice(candidate.iree)
    if choice.kind is not ChoiceKind.SOURCE or not choice.ref:
        return candidate
    named = f"commit:{choice.ref}"
    try:
        provide_environment(parse_choice(named), place)
    except NoSuchToolchainError as error:
        say(f"{candidate.label}: {error.what}; it is built")
        return candidate
    return replace(candidate, iree=named)


def list_nightlies_inside(
    old: Candidate, new: Candidate, place: ToolchainPlace, say: Callable[[str], None]
) -> tuple[Candidate, ...]:
    """The nightlies between two releases, which cost no build; none where one is no release, or there are none."""
    if any(parse_choice(candidate.iree).kind is not ChoiceKind.RELEASE for candidate in (old, new)):
        return ()
    try:
        row, _ = list_candidates_between(old.iree, new.iree, place, nightlies=True)
    except ToolchainError as error:
        say(f"no nightlies between {old.label} and {new.label}: {error.what}; on to the commits")
        return ()
    if row[1:-1]:
        say(f"between {old.label} and {new.label}: nightlies ({len(row) - 2})")
    return row[1:-1]


def describe_change(commit: str, source: str, place: ToolchainPlace) -> BisectChange:
    """The commit that made a change."""
    said = open_checkout(source, place).describe(commit)
    pull = _PULL.search(said["subject"])
    return BisectChange(**said, pull=int(pull[1] or pull[2]) if pull else None)


def find_candidate_run(
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
    candidate: Candidate, metric: str, chain: str, folder: Path, chosen: Chosen, presenter: Presenter
) -> Judged:
    """Runs the stage that a metric needs, with a candidate, and reads the value; as `find_candidate_run`."""

    def work(run_dir: Path, presenter: Presenter) -> Judged:
        code = run(chosen.within(run_dir, candidate.iree, (EXACT_METRICS[metric],)), presenter, brief=True).exit_code
        if code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        record = read_journal(run_dir / JOURNAL)
        return replace(_read_value(metric, record, chain), toolchain=record.run.toolchain.as_dict())

    return find_candidate_run(candidate, folder, presenter, work)


class ExactJudge:
    """Judges by a metric that is the same at each run: which end's value is nearer."""

    most_comparisons: int | None = None

    def __init__(self, name: str, run: Callable[[Candidate], Judged]) -> None:
        self._name = name
        self._run = run
        self._good = self._bad = 0.0

    def end(self, candidate: Candidate, *, bad: bool) -> Judged:
        """What an end gives; `bad` of the answer is the argument, or None where nothing could be measured."""
        found = self._run(candidate)
        return found if found.value is None else replace(found, bad=bad)

    def begin(self, good: Judged, bad: Judged) -> str:
        """Take the ends' values; why there is nothing to look for, or empty."""
        self._good, self._bad = good.known, bad.known
        if self._is_same(good.known, bad.known):
            both = good.text if good.text == bad.text else f"{good.text}, and {bad.text}"
            return f"nothing to look for: both ends give the same ({both})"
        if self._name in _PASSING and good.known < bad.known:
            return f"good and bad are the wrong way round: the good end {good.text}, the bad one {bad.text}"
        return ""

    def judge(self, candidate: Candidate) -> Judged:
        """Run a candidate, and hold its value against the ends'."""
        found = self._run(candidate)
        if found.value is None:
            return found
        ends = self._good, self._bad
        third = not any(self._is_same(end, found.value) for end in ends)
        if METRICS.get(self._name) is Figure.ERROR:
            # Compilers round in different order.
            third = is_third_value(found.value, *ends)
        return replace(found, bad=is_nearer_to_bad(found.value, *ends), third=third)

    def _is_same(self, one: float, other: float) -> bool:
        margin = METRICS[self._name].row.margin if self._name in METRICS else None
        return is_same_value(one, other) if margin is None else not margin.is_exceeded(one, other)


def _read_value(metric: str, record: JournalRecord, chain: str) -> Judged:
    """The value of an exact metric, or why there is none; 1 for what passes, 0 where it fails by IREE's fault."""
    at_fault, reason = _find_fault(record, chain)
    if metric in _PASSING:
        if at_fault is None:
            return Judged(value=1.0, text="passes")
        return Judged(value=0.0, text=f"fails: {reason}") if at_fault else Judged(reason=reason)
    result = record.results.get(f"{chain}:{EXACT_METRICS[metric]}")
    figure = METRICS[metric]
    value = result.measure(figure) if result else None
    if value is None:
        return Judged(reason=reason or figure.row.missing)
    return Judged(value=value, text=figure.describe(value))


def _find_fault(record: JournalRecord, chain: str) -> tuple[bool | None, str]:
    """Whether IREE is at fault for the first step that did not pass, and why; None where all passed."""
    for step in record.planned:
        result = record.results.get(step.id)
        if result and result.verdict.counts_as_pass:
            continue
        reason = (result.full_reason if result else "") or "it did not end"
        label = step.id.removeprefix(f"{chain}:")
        bad = result and (result.verdict.counts_as_failure or result.crashed or result.timed_out)
        return bool(bad and step.stage.row.failures), f"{label}: {reason}"
    return None, ""


def _require_bundle_alone(asked: BisectRequest, request: RunRequest) -> None:
    """Make sure that nothing is asked for of a model: a bundle has its own program, inputs and question."""
    of_a_model = given((request.selection, request.conduct))
    of_a_model |= {name: value for name, value in given([asked]).items() if name in ("metric", *_TIMING_NAMES)}
    if of_a_model:
        first = dashed(next(iter(of_a_model)))
        hint = "A bundle has its program, inputs and expected values with it: leave one of the two out."
        raise UsageError(f"{first} and --bundle exclude each other", hint)


def _make_nothing_chosen(request: RunRequest) -> Chosen:
    """A run of no specs: how IREEs are found and installed is all that a bundle needs of one."""
    return Chosen(request, Selection("bundle", (), (), (), CaseSet((), (), ())), ())


def keep_bundle(bundle: str, folder: Path) -> None:
    """Keep a bundle in the bisect's folder; one that is kept there already stays."""
    kept = folder / _KEPT
    if kept.exists():
        return
    with tempfile.TemporaryDirectory(prefix=f"{_KEPT}-", dir=folder) as place:
        opened = open_bundle(Path(bundle), Path(place))
        with add_folder(kept) as copy:
            shutil.copytree(opened.folder, copy, ignore=shutil.ignore_patterns(_INSTALLED))


def run_kept_bundle(
    candidate: Candidate, folder: Path, chosen: Chosen, supervisor: Supervisor, presenter: Presenter
) -> Judged:
    """Run the bundle with a candidate: 1 where it passes, 0 where the failure is there; as `find_candidate_run`."""

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
        return Judged(reason=f"repro.sh {how}: {find_first_error(said) or said[-1]}", toolchain=toolchain)

    return find_candidate_run(candidate, folder, presenter, work)
