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
from iree_gauntlet.recorded import number
from iree_gauntlet.reporting.bisection import bisect_outcome
from iree_gauntlet.tasks.bisect_probe import EXACT_METRICS, Judged
from iree_gauntlet.tasks.bisect_tasks import BISECT_OPTIONS
from iree_gauntlet.tasks.bisect_timing import TIMED_METRICS, TIMING_NAMES, TimingSettings
from iree_gauntlet.tasks.options import CACHE, IREE, RUNNING, SELECTION, SELECTION_NAMES
from iree_gauntlet.tasks.toolchain_place import toolchain_place
from iree_gauntlet.tasks.workspace import Defaults, cache_folder, project_folder, select, shown
from iree_gauntlet.toolchains.candidates import Candidate, candidates_among, candidates_between
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Question", "chain_of", "question_before", "question_of", "whole_options"]

# What makes a bisect the same one: a resumed one keeps it.
_ASKED = (
    "good",
    "bad",
    "metric",
    "nightlies",
    "among",
    "every",
    *TIMING_NAMES,
    *SELECTION_NAMES,
    "iree_compiler",
    "iree_runtime",
)
_DEFAULTS = {option.name: option.default for option in BISECT_OPTIONS}


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for.

    Attributes:
        metric: its name.
        chain: of the one model.
        row: candidates, from the oldest to the newest.
        good_is_older: whether the good end is the first of them.
        asked: the options that make it the same question.
    """

    metric: str
    chain: str
    row: tuple[Candidate, ...]
    good_is_older: bool
    asked: Mapping[str, Any]

    @property
    def good(self) -> Candidate:
        """The good end."""
        return self.row[0 if self.good_is_older else -1]

    @property
    def bad(self) -> Candidate:
        """The bad end."""
        return self.row[-1 if self.good_is_older else 0]

    def as_dict(self) -> dict[str, Any]:
        """The fields of the record's `bisect` event that say it."""
        return {
            "metric": self.metric,
            "chain": self.chain,
            "good": self.good.label,
            "bad": self.bad.label,
            "row": [asdict(candidate) for candidate in self.row],
            "good_is_older": self.good_is_older,
            "asked": dict(self.asked),
            # Where the compiler is the same for all, the runtime is what is searched.
            "commit": "runtime_commit" if self.asked["iree_compiler"] else "compiler_commit",
        }


def question_of(options: Mapping[str, Any]) -> Question:
    """What a command line asks for.

    Raises:
        UsageError: options that are missing or do not fit together.
        ToolchainError: the index does not answer.
    """
    for name in ("good", "bad", "metric"):
        if not options[name]:
            example = "bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches"
            raise UsageError(f"bisect needs --{name}", f"Such as {example}.")
    metric = str(options["metric"])
    if metric in TIMED_METRICS:
        TimingSettings.of(options)
    elif metric not in EXACT_METRICS:
        raise UsageError(f"--metric {metric}: unknown metric", f"Known: {', '.join((*TIMED_METRICS, *EXACT_METRICS))}.")
    elif useless := [name for name in TIMING_NAMES if options[name] != _DEFAULTS[name]]:
        what = f"--{useless[0].replace('_', '-')} is for --metric {' and '.join(TIMED_METRICS)}"
        raise UsageError(what, f"The metric {metric} is exact: leave it out.")
    if options["iree_compiler"] and options["iree_runtime"]:
        raise UsageError(
            "--iree-compiler and --iree-runtime leave nothing to search", "Fix one side; the other one is searched."
        )
    for name in ("iree_compiler", "iree_runtime"):
        parse_choice(str(options[name] or ""), f"--{name.replace('_', '-')}")
    asked = {name: options[name] for name in _ASKED}
    chain = chain_of(whole_options(options, asked), metric)
    good, bad = str(options["good"]), str(options["bad"])
    if options["among"]:
        if options["nightlies"]:
            raise UsageError("--among and --nightlies exclude each other", "Name nightlies with --among, or none.")
        return Question(metric, chain, candidates_among(good, bad, options["among"]), True, asked)
    root = cache_folder(options)
    configuration = read_configuration(project_folder(), os.environ)
    hashes = VerifiedHashes(root / "verified")
    offline = bool(options["offline"])
    place = toolchain_place(root, configuration, Leases(root), hashes.sha256, find_installed, offline=offline)
    row, good_is_older = candidates_between(good, bad, place, nightlies=bool(options["nightlies"]))
    return Question(metric, chain, row, good_is_older, asked)


def question_before(folder: Path, options: Mapping[str, Any]) -> tuple[Question, dict[str, Judged]]:
    """What an earlier bisect was asked for, and what it has judged.

    What could not be measured is left out: what caused it may be gone.

    Raises:
        UsageError: something else is asked for now.
        GauntletError: its record cannot be read.
    """
    before = bisect_outcome(folder)
    asked = before.asked["asked"]
    other = [name for name in _ASKED if options[name] not in (_DEFAULTS[name], asked[name])]
    if other:
        raise UsageError(
            f"--{other[0].replace('_', '-')}: a resumed bisect keeps what {shown(folder)} was asked for",
            "Leave it out, or start a new bisect.",
        )
    row = tuple(Candidate(**item) for item in before.asked["row"])
    question = Question(before.asked["metric"], before.asked["chain"], row, bool(before.asked["good_is_older"]), asked)
    known = {label: _judged(event) for label, event in before.judged.items()}
    return question, {label: judged for label, judged in known.items() if judged.value is not None}


def chain_of(options: Mapping[str, Any], metric: str) -> str:
    """The one chain that is selected and has what the metric needs.

    Raises:
        UsageError: it is not one.
        GauntletError: nothing is selected, or a spec is wrong.
    """
    selection = select(options, Defaults())
    selection.require_sound()
    kind: Kind | None = None
    if metric in TIMED_METRICS:
        kind = Kind.BENCHMARK
    elif Stage.THRESHOLD in EXACT_METRICS[metric].stages:
        kind = Kind.QUALITY
    cases = [case for case in selection.cases.cases if kind in (None, case.kind)]
    chains = sorted({case.chain for case in cases})
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


def whole_options(options: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """All options that a run knows: those that were asked for, the others as they are by default."""
    defaults = {option.name: option.default for option in (*SELECTION, *CACHE, *IREE, *RUNNING)}
    # It is the bisect that is resumed: each run of it is a new one.
    return {**defaults, **options, **asked, "resume": False}


def _judged(event: Mapping[str, Any]) -> Judged:
    return Judged(
        bad=event["bad"],
        value=number(event["value"]),
        text=event["text"],
        reason=event["reason"],
        confidence=float(event["confidence"]),
        third=bool(event["third"]),
        low=number(event["low"]),
        high=number(event["high"]),
        folder=event["folder"],
        toolchain=event["toolchain"],
        seconds=float(event["seconds"]),
    )
