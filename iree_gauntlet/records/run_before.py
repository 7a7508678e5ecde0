"""The changes since the previous run: the last run of the same suite, in the same folder, with all of its models."""

from __future__ import annotations

import json
import re
import statistics
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_events import MachineInfo, ToolchainInfo
from iree_gauntlet.recorded import UNRECORDED, Recorded, read_json
from iree_gauntlet.records.chain_figures import collect_chain_figures
from iree_gauntlet.results import CacheUse, OutputComparison  # noqa: TC001 - read by their types
from iree_gauntlet.settings import resolve_links

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.records.chain_figures import ChainFigures
    from iree_gauntlet.records.outcome import RunOutcome, StepOutcome
    from iree_gauntlet.stages import Stage


SUMMARY = "summary.json"
# The maximum number of searched runs (the last names first), and the bytes before the chains in a summary.
_MAX_RUNS, _HEAD_BYTES = 20, 16_384
_START_LINE, _COMPLETE_LINE = re.compile(r'\n "started": "([^"]*)",\n'), '\n "state": "complete",\n'
# Larger summaries, of suites with thousands of models, take too long to read.
_MAX_SUMMARY_BYTES = 4_000_000
Change = tuple[str, str, str, str, float | None]


@dataclass(frozen=True, slots=True)
class SummaryFigure(Recorded):
    """A figure of a chain in a summary: for times the mean, for all other figures the measured value."""

    mean: float | None = None
    measured: float | None = None
    golden: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class _Step(Recorded):
    id: str
    seconds: float
    stage: str = ""
    verdict: str = ""
    device: str = ""
    command: str = ""
    cache: CacheUse | None = None
    real_time_ms: tuple[float, ...] = ()
    statistics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SummaryChain(Recorded):
    """A chain in a summary."""

    id: str
    sku: str
    verdict: str
    steps: tuple[_Step, ...]
    model: str = ""
    submodel: str = ""
    target: str = ""
    figures: dict[Figure, SummaryFigure] = field(default_factory=dict, metadata=UNRECORDED)
    quality: OutputComparison | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create the chain, with all figures, from plain data; errors as in `Recorded.from_dict`."""
        keys = {figure: figure.row.key_in_summary for figure in Figure if figure.row.key_in_summary}
        figures = {figure: SummaryFigure.from_dict(data[key]) for figure, key in keys.items() if data.get(key)}
        return replace(super(SummaryChain, cls).from_dict(data), figures=figures)


@dataclass(frozen=True, slots=True)
class RunSummary(Recorded):
    """The parts of a run's `summary.json` that are read again."""

    run: str
    chains: tuple[SummaryChain, ...]
    toolchain: ToolchainInfo = field(default_factory=ToolchainInfo)
    machine: MachineInfo = field(default_factory=MachineInfo)
    started: str = ""
    suite: str = ""
    command: str = ""
    version: str = ""
    state: str = "complete"
    exit_code: ExitCode = ExitCode.OK


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The previous run, and the changes since.

    Attributes:
        compiler: the version of the previous run's compiler.
        changes: chain, figure, old value, new value, and the relative change if both are numbers; the largest first.
        machine_changes: those of times for which modules, runtime and options are the same, so that it was the machine.
    """

    run: str
    compiler: str
    changes: tuple[Change, ...]
    machine_changes: tuple[Change, ...] = ()

    @property
    def machine_line(self) -> str:
        """The changes of the machine in one line."""
        shares = [change[4] or 0.0 for change in self.machine_changes]
        middle = statistics.median(shares)
        word = "less steady" if min(shares) < 0 < max(shares) else "slower" if middle > 0 else "faster"
        times = f"{pluralize(len(shares), 'time')} by 10 % or more, median {100 * middle:+.0f} %"
        return f"same modules: the machine was {word}, {times}"


def find_changes_since(outcome: RunOutcome, folder: Path) -> PreviousRun | None:
    """Find the changes since the previous run next to a run's folder; None without one, or for a run of many chains."""
    keys = {(chain.id, chain.sku) for chain in outcome.chains}
    previous = (
        None
        if outcome.has_many_chains or not outcome.started
        else _find_before(outcome.suite, outcome.started, folder, keys)
    )
    if previous is None:
        return None
    chains = {chain.id: chain for chain in previous.chains}
    has_same_runtime = outcome.toolchain.runtime_identity == previous.toolchain.runtime_identity
    changes: tuple[list[Change], list[Change]] = [], []
    for chain in outcome.chains:
        old_chain, work = chains[chain.id], _list_work(chain.steps)
        has_same_work = has_same_runtime and bool(work) and work == _list_work(old_chain.steps)
        stages = {step.stage for step in chain.steps if not step.unfinished and step.verdict is not Verdict.SKIPPED}
        for change in _find_changes(chain.id, str(chain.verdict), collect_chain_figures(chain), stages, old_chain):
            changes[has_same_work and change[1] == Figure.TIME.row.change_title].append(change)
    for group in changes:
        group.sort(key=lambda change: (change[4] is not None, -abs(change[4] or 0.0)))
    return PreviousRun(previous.run, previous.toolchain.compiler, *map(tuple, changes))


def _list_work(steps: Sequence[StepOutcome | _Step]) -> list[str]:
    # The keys of a chain's modules, and its benchmarks' options without paths; nothing if a key is unknown.
    keys = [step.cache.key if step.cache else "" for step in steps if step.stage == Figure.COMPILE_TIME.row.stage]
    commands = (step.command for step in steps if step.stage == Figure.TIME.row.stage)
    options = [word for command in commands for word in command.split() if "/" not in word]
    return [*keys, *options] if keys and all(keys) else []


def read_previous_seconds(suite: str, folder: Path) -> dict[str, float]:
    """Return, by step id, the seconds in a suite's last complete run; `folder` is a new run, next to earlier ones."""
    previous = _find_before(suite, "9", folder)
    return {step.id: step.seconds for chain in previous.chains for step in chain.steps} if previous else {}


def _find_before(suite: str, limit: str, folder: Path, keys: Collection[tuple[str, str]] = ()) -> RunSummary | None:
    """Find the summary of a suite's last complete run that started before `limit` and has the `keys` (chain, SKU)."""
    run_dir = resolve_links(folder)
    paths = sorted((path for path in run_dir.parent.glob(f"*/{SUMMARY}") if path.parent != run_dir), reverse=True)
    suite_line = f'\n "suite": {json.dumps(suite)},\n'
    earlier_runs: list[tuple[str, Path]] = []
    for path in paths[:_MAX_RUNS]:
        with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as stream:
            head = stream.read(_HEAD_BYTES)
            start_match = _START_LINE.search(head)
            if suite_line in head and _COMPLETE_LINE in head and start_match and start_match[1] < limit:
                earlier_runs.append((start_match[1], path))
    for _, path in sorted(earlier_runs, reverse=True):
        try:
            if path.stat().st_size <= _MAX_SUMMARY_BYTES:
                summary = RunSummary.from_dict(read_json(path.read_bytes()))
                if {(chain.id, chain.sku) for chain in summary.chains}.issuperset(keys):
                    return summary
        except (OSError, ValueError):
            # Go on to the run before if a summary was removed meanwhile or is incomplete.
            continue
    return None


def _find_changes(
    chain: str, verdict: str, figures: ChainFigures, stages: Collection[Stage], previous: SummaryChain
) -> Iterator[Change]:
    if verdict != previous.verdict:
        yield chain, "verdict", previous.verdict, verdict, None
    noisy = figures.disturbance or any(
        step.real_time_ms and step.statistics.get("disturbed") for step in previous.steps
    )
    for figure, old_figure in previous.figures.items():
        row, check = figure.row, figures.find_check(figure)
        # Compare instructions by the parts of a call if both runs have the parts, otherwise for the whole call.
        parts = Figure.DISPATCH_INSTRUCTIONS in previous.figures and Figure.DISPATCH_INSTRUCTIONS in figures.values
        if not row.change_title or (figure.is_counted and parts is (figure is Figure.CALL_INSTRUCTIONS)):
            continue
        old, new = old_figure.measured, figures.values.get(figure)
        if figure is Figure.TIME:
            old, new = old_figure.mean, figures.samples.mean_ms if figures.samples else None
        comparable = not (figure is Figure.TIME and noisy)
        if comparable and old and old > 0 and new is not None and row.change_margin.is_exceeded(old, new):
            yield chain, row.change_title, row.write(old), row.write(new), new / old - 1
        limits = old_figure.limit, check.limit if check else None
        # A limit can be compared only if its step was reached.
        has_result = check is not None or (new is not None and row.golden is not None and row.golden.stage in stages)
        if has_result and limits[0] != limits[1]:
            old_limit, new_limit = ("none" if limit is None else row.write(limit) for limit in limits)
            yield chain, f"limit of {row.change_title}", old_limit, new_limit, None
    # The worst output may be another one now, of another type.
    worst = previous.quality
    same = (item for item in figures.outputs if worst and (item.call, item.index) == (worst.call, worst.index))
    output = next(same, None)
    if worst is not None and output is not None and worst.tolerance_text != output.tolerance_text:
        yield chain, "tolerance", worst.tolerance_text, output.tolerance_text, None
