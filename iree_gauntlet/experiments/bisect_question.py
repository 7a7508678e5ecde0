"""What a bisect looks for: metric, model, and the row of candidates; asked on the command line, or before."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.cases import Kind, Stage
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.engine.rounds.machine_lock import lock_facts
from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.experiments.bisect_probe import (
    BUNDLE_METRIC,
    EXACT_METRICS,
    TIMED_METRICS,
    TIMING_NAMES,
    bundle_title,
    nothing_chosen,
    require_bundle_alone,
)
from iree_gauntlet.experiments.run import choose
from iree_gauntlet.experiments.sides import rounds_asked
from iree_gauntlet.figures import counted, duration
from iree_gauntlet.measuring.statistics.rounds import DEFAULT_ALPHA
from iree_gauntlet.records.bisect_outcome import BisectChange, BisectOpening, Judged, RowCandidate, bisect_outcome
from iree_gauntlet.requests import BisectRequest, RunRequest, dashed, given, read, require_as_begun
from iree_gauntlet.settings import cache_folder, project_folder, shown
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
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.toolchains.find import ToolchainPlace


# Each candidate has its own IREE, and all of the model.
_NOT_KEPT = ("iree", "shard", "shard_costs", "batch")
_PULL = re.compile(r"\(#(\d+)\)\s*$|^Merge pull request #(\d+) ")


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for.

    Attributes:
        row: candidates, from the oldest to the newest.
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
        """A candidate as it is run: a commit by its package, where that was asked for and there is one.

        Raises:
            ToolchainError: whether there is one cannot be said.
        """
        return take_package(candidate, self.place, say) if self.asked.packages else candidate

    @property
    def commit(self) -> str:
        """What is searched: where the compiler is the same for all, the runtime."""
        return "runtime_commit" if self.chosen.request.toolchain.iree_compiler else "compiler_commit"

    def opening(self, *, resumed: bool) -> BisectOpening:
        """For the record."""
        request = self.chosen.request
        # What makes a bisect the same one: a resumed one keeps it.
        kept = {name: value for name, value in request.kept.items() if name not in _NOT_KEPT}
        return BisectOpening(
            resumed=resumed,
            confidence=1 - DEFAULT_ALPHA if self.metric in TIMED_METRICS else 1.0,
            metric=self.metric,
            chain=self.chain,
            good=self.good.label,
            bad=self.bad.label,
            row=row_of(self.row),
            good_is_older=self.good_is_older,
            asked={**asdict(self.asked), "disturbed": request.conduct.disturbed, **kept},
            commit=self.commit,
            **lock_facts(os.environ),
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
    metric = BUNDLE_METRIC if asked.bundle else asked.metric
    if asked.bundle:
        require_bundle_alone(asked, request)
    else:
        _require_metric(asked, request)
    toolchain = request.toolchain
    if toolchain.iree_compiler and toolchain.iree_runtime:
        raise UsageError(
            "--iree-compiler and --iree-runtime leave nothing to search", "Fix one side; the other one is searched."
        )
    parse_choice(toolchain.iree_compiler, "--iree-compiler")
    parse_choice(toolchain.iree_runtime, "--iree-runtime")
    chosen = nothing_chosen(request) if asked.bundle else choose(request)
    chain = bundle_title(asked.bundle) if asked.bundle else chain_of(chosen, metric)
    if asked.packages and not (asked.source or asked.into):
        raise UsageError("--packages is for commits", "Name their checkout with --source or --into.")
    _require_one_way(asked.among, asked.source, asked.into, nightlies=asked.nightlies)
    if asked.into and metric in TIMED_METRICS:
        hint = f"When the releases are known: --source {asked.into} --good … --bad … (their confidence is for one row)."
        raise UsageError(f"--into is for exact metrics, and {metric} is none", hint)
    place = place_of(request)
    if asked.into:
        open_checkout(asked.into, place)
    if asked.among:
        return Question(
            metric, chain, list_candidates_among(asked.good, asked.bad, asked.among), True, asked, chosen, place
        )
    if asked.source:
        row, good_is_older = list_commits(asked.good, asked.bad, asked.source, place)
    else:
        row, good_is_older = list_candidates_between(asked.good, asked.bad, place, nightlies=asked.nightlies)
    return Question(metric, chain, row, good_is_older, asked, chosen, place)


def place_of(request: RunRequest) -> ToolchainPlace:
    """Where the IREEs of a bisect are looked for."""
    root = cache_folder(request.toolchain.cache_dir)
    configuration = read_configuration(project_folder(), os.environ)
    hashes = VerifiedHashes(root / "verified")
    return make_toolchain_place(root, configuration, Leases(root), hashes.sha256, offline=request.network.offline)


def _require_metric(asked: BisectRequest, request: RunRequest) -> None:
    """Make sure that there is such a metric, and that what is said of rounds is for it."""
    metric = asked.metric
    if metric in TIMED_METRICS:
        rounds_asked(asked)
    elif metric not in EXACT_METRICS:
        raise UsageError(f"--metric {metric}: unknown metric", f"Known: {', '.join((*TIMED_METRICS, *EXACT_METRICS))}.")
    elif useless := [name for name in given((asked, request.conduct)) if name in TIMING_NAMES]:
        what = f"{dashed(useless[0])} is for --metric {' and '.join(TIMED_METRICS)}"
        raise UsageError(what, f"The metric {metric} is exact: leave it out.")


def question_before(folder: Path, asked: BisectRequest, request: RunRequest) -> tuple[Question, dict[str, Judged]]:
    """What an earlier bisect was asked for, and what it has judged.

    What could not be measured is left out: what caused it may be gone.

    Raises:
        UsageError: something else is asked for now.
        GauntletError: its record cannot be read.
    """
    outcome = bisect_outcome(folder)
    before, metric, chain = outcome.asked.asked, outcome.asked.metric, outcome.asked.chain
    now = given((asked, request.selection, request.toolchain, request.conduct))
    require_as_begun("bisect", shown(folder), now, before)
    asked, request = read(BisectRequest, before), request.with_kept(before)
    row = tuple(Candidate(item.label, item.iree) for item in outcome.asked.row)
    if asked.bundle:
        chosen = nothing_chosen(request)
    else:
        chosen = choose(request)
        if chain_of(chosen, metric) != chain:
            raise UsageError(f"the selection does not mean {chain} any more", "Start a new bisect.")
    question = Question(metric, chain, row, outcome.asked.good_is_older, asked, chosen, place_of(request))
    return question, {label: judged for label, judged in outcome.judged.items() if judged.value is not None}


def chain_of(chosen: Chosen, metric: str) -> str:
    """The one chain that is selected and has what the metric needs.

    Raises:
        UsageError: it is not one.
    """
    kind: Kind | None = None
    if metric in TIMED_METRICS or Stage.COUNT in EXACT_METRICS[metric].stages:
        kind = Kind.BENCHMARK
    elif Stage.THRESHOLD in EXACT_METRICS[metric].stages:
        kind = Kind.QUALITY
    chains = sorted({case.chain for case in chosen.selection.cases.cases if kind in (None, case.kind)})
    if not chains:
        raise UsageError(
            f"nothing that is selected has a {kind} spec, which --metric {metric} needs",
            "`list` shows the checks of each model.",
        )
    if len(chains) > 1:
        some = ", ".join(chains[:8]) + (f" and {len(chains) - 8} more" if len(chains) > 8 else "")
        raise UsageError(
            f"bisect looks at one model, and {len(chains)} are selected: {some}",
            "Select one with --model, --submodel and --target.",
        )
    return chains[0]


def _require_one_way(among: Sequence[str], source: str, into: str, *, nightlies: bool) -> None:
    """Makes sure that what lies between the ends is said in one way."""
    ways = {"--among": among, "--source": source, "--nightlies": nightlies}
    given = [name for name, value in ways.items() if value]
    if source and into:
        given += ["--into"]
    if len(given) > 1:
        hint = "--source names a checkout, --among IREEs in order, --nightlies nothing."
        raise UsageError(f"{given[0]} and {given[1]} exclude each other", f"Say in one way what lies between: {hint}")


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
    """A commit by its package, which is installed; the same candidate where it has none, or is no commit.

    Raises:
        ToolchainError: whether it has one cannot be said.
    """
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


def list_commits_inside(old: str, new: str, source: str, place: ToolchainPlace) -> tuple[Candidate, ...]:
    """The commits of a checkout between two, without those, from the oldest to the newest.

    Raises:
        UsageError: neither leads to the other.
        ToolchainError: there is no such checkout or commit.
    """
    row, _ = list_commits(old, new, source, place)
    return row[1:-1]


def describe_change(commit: str, source: str, place: ToolchainPlace) -> BisectChange:
    """The commit that made a change.

    Raises:
        ToolchainError: there is no such checkout or commit.
    """
    said = open_checkout(source, place).describe(commit)
    pull = _PULL.search(said["subject"])
    return BisectChange(**said, pull=int(pull[1] or pull[2]) if pull else None)
