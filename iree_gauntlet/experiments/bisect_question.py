"""What a bisect looks for: metric, model, and the row of candidates; asked on the command line, or before."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.cases import Kind, Stage
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import UsageError
from iree_gauntlet.experiments.bisect_bundle import bundle_title, nothing_chosen, require_bundle_alone
from iree_gauntlet.experiments.bisect_commits import require_one_way, take_package
from iree_gauntlet.experiments.bisect_probe import BUNDLE_METRIC, EXACT_METRICS, Judged
from iree_gauntlet.experiments.bisect_timing import TIMED_METRICS, TIMING_NAMES
from iree_gauntlet.experiments.run import choose
from iree_gauntlet.experiments.sides import rounds_asked
from iree_gauntlet.records.bisect_outcome import bisect_outcome
from iree_gauntlet.requests import BisectRequest, RunRequest, dashed, given, read, require_as_begun
from iree_gauntlet.settings import cache_folder, project_folder, shown
from iree_gauntlet.toolchains.candidates import (
    Candidate,
    candidates_among,
    candidates_between,
    list_commits,
    open_checkout,
)
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.find import toolchain_place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.experiments.performing import Chosen
    from iree_gauntlet.toolchains.find import Place


# Each candidate has its own IREE, and all of the model.
_NOT_KEPT = ("iree", "shard", "shard_costs", "batch")


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
    place: Place

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

    def as_dict(self) -> dict[str, Any]:
        """The fields of the record's `bisect` event that say it."""
        return {
            "metric": self.metric,
            "chain": self.chain,
            "good": self.good.label,
            "bad": self.bad.label,
            "row": [asdict(candidate) for candidate in self.row],
            "good_is_older": self.good_is_older,
            "asked": _kept_options(self.asked, self.chosen.request),
            # Where the compiler is the same for all, the runtime is what is searched.
            "commit": "runtime_commit" if self.chosen.request.toolchain.iree_compiler else "compiler_commit",
        }


def _kept_options(asked: BisectRequest, request: RunRequest) -> dict[str, Any]:
    """What makes a bisect the same one, by option: a resumed one keeps it."""
    kept = {name: value for name, value in request.kept.items() if name not in _NOT_KEPT}
    return {**asdict(asked), "disturbed": request.conduct.disturbed, **kept}


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
    require_one_way(asked.among, asked.source, asked.into, nightlies=asked.nightlies)
    if asked.into and metric in TIMED_METRICS:
        hint = f"When the releases are known: --source {asked.into} --good … --bad … (their confidence is for one row)."
        raise UsageError(f"--into is for exact metrics, and {metric} is none", hint)
    place = place_of(request)
    if asked.into:
        open_checkout(asked.into, place)
    if asked.among:
        return Question(metric, chain, candidates_among(asked.good, asked.bad, asked.among), True, asked, chosen, place)
    if asked.source:
        row, good_is_older = list_commits(asked.good, asked.bad, asked.source, place)
    else:
        row, good_is_older = candidates_between(asked.good, asked.bad, place, nightlies=asked.nightlies)
    return Question(metric, chain, row, good_is_older, asked, chosen, place)


def place_of(request: RunRequest) -> Place:
    """Where the IREEs of a bisect are looked for."""
    root = cache_folder(request.toolchain.cache_dir)
    configuration = read_configuration(project_folder(), os.environ)
    hashes = VerifiedHashes(root / "verified")
    return toolchain_place(root, configuration, Leases(root), hashes.sha256, offline=request.network.offline)


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
    before = outcome.asked["asked"]
    now = given((asked, request.selection, request.toolchain, request.conduct))
    require_as_begun("bisect", shown(folder), now, before)
    asked, request = read(BisectRequest, before), request.with_kept(before)
    row = tuple(Candidate(**item) for item in outcome.asked["row"])
    metric, chain = outcome.asked["metric"], outcome.asked["chain"]
    if asked.bundle:
        chosen = nothing_chosen(request)
    else:
        chosen = choose(request)
        if chain_of(chosen, metric) != chain:
            raise UsageError(f"the selection does not mean {chain} any more", "Start a new bisect.")
    question = Question(metric, chain, row, bool(outcome.asked["good_is_older"]), asked, chosen, place_of(request))
    known = {label: Judged.from_dict(event) for label, event in outcome.judged.items()}
    return question, {label: judged for label, judged in known.items() if judged.value is not None}


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
