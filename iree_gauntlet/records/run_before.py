"""What changed against the run before: the last one of the same suite beside a run that has all of its models."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.figures import Figure
from iree_gauntlet.journal_events import ToolchainFacts
from iree_gauntlet.recorded import UNRECORDED, Recorded, read_json
from iree_gauntlet.records.chain_figures import collect_chain_figures
from iree_gauntlet.results import OutputComparison  # noqa: TC001 - read by its type
from iree_gauntlet.settings import resolve_links

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.records.chain_figures import ChainFigures
    from iree_gauntlet.records.outcome import RunOutcome


SUMMARY = "summary.json"
# Runs that are looked at, the last by their names first, and bytes of what one says of itself before its chains.
_MOST_RUNS, _HEAD = 20, 16_384
_STARTED, _COMPLETE = re.compile(r'\n "started": "([^"]*)",\n'), '\n "state": "complete",\n'
# A suite of thousands is not read for this.
_LARGEST = 4_000_000


@dataclass(frozen=True, slots=True)
class _Figure(Recorded):
    """What a summary says of a figure of a chain: of times their mean, of all else what was measured."""

    mean: float | None = None
    measured: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class _Step(Recorded):
    id: str
    seconds: float
    real_time_ms: tuple[float, ...] = ()
    statistics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Chain(Recorded):
    id: str
    sku: str
    verdict: str
    steps: tuple[_Step, ...]
    figures: dict[Figure, _Figure] = field(default_factory=dict, metadata=UNRECORDED)
    quality: OutputComparison | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As `Recorded.from_dict`, with all figures that it has."""
        keys = {figure: figure.row.key_in_summary for figure in Figure if figure.row.key_in_summary}
        known = {figure: _Figure.from_dict(data[key]) for figure, key in keys.items() if data.get(key)}
        return replace(super(_Chain, cls).from_dict(data), figures=known)


@dataclass(frozen=True, slots=True)
class _Summary(Recorded):
    """What `summary.json` says of a run, as far as it is looked at here."""

    run: str
    chains: tuple[_Chain, ...]
    toolchain: ToolchainFacts = field(default_factory=ToolchainFacts)


@dataclass(frozen=True, slots=True)
class RunBefore:
    """The run before, and what changed since.

    Attributes:
        compiler: its version.
        changes: chain, figure, what it was, what it is; and by how much of what it was, where these are numbers.
    """

    run: str
    compiler: str
    changes: tuple[tuple[str, str, str, str, float | None], ...]


def find_changes_since(outcome: RunOutcome, folder: Path) -> RunBefore | None:
    """What changed since the run before, of those beside a run's folder; None for none, or for a run of many chains."""
    wanted = {(chain.id, chain.sku) for chain in outcome.chains}
    before = (
        None if outcome.many or not outcome.started else _find_before(outcome.suite, outcome.started, folder, wanted)
    )
    if before is None:
        return None
    chains = {chain.id: chain for chain in before.chains}
    changes = tuple(
        change
        for chain in outcome.chains
        for change in _find_changes(chain.id, str(chain.verdict), collect_chain_figures(chain), chains[chain.id])
    )
    return RunBefore(before.run, before.toolchain.compiler, changes)


def read_earlier_seconds(suite: str, folder: Path) -> dict[str, float]:
    """What each step of the last complete run of a suite took, by its id, of those beside a folder of a new one."""
    before = _find_before(suite, "9", folder)
    return {step.id: step.seconds for chain in before.chains for step in chain.steps} if before else {}


def _find_before(suite: str, started: str, folder: Path, wanted: Collection[tuple[str, str]] = ()) -> _Summary | None:
    """The summary of the run of a suite that began last before a time, is complete, and has the chains on the SKUs."""
    own = resolve_links(folder)
    beside = sorted((path for path in own.parent.glob(f"*/{SUMMARY}") if path.parent != own), reverse=True)
    asked = f'\n "suite": {json.dumps(suite)},\n'
    begun: list[tuple[str, Path]] = []
    for path in beside[:_MOST_RUNS]:
        with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as stream:
            head = stream.read(_HEAD)
            found = _STARTED.search(head)
            if asked in head and _COMPLETE in head and found and found[1] < started:
                begun.append((found[1], path))
    for _, path in sorted(begun, reverse=True):
        try:
            if path.stat().st_size <= _LARGEST:
                summary = _Summary.from_dict(read_json(path.read_bytes()))
                if {(chain.id, chain.sku) for chain in summary.chains}.issuperset(wanted):
                    return summary
        except (OSError, ValueError):
            # Removed meanwhile, or cut short: the one before it is the next best.
            continue
    return None


def _find_changes(
    chain: str, verdict: str, own: ChainFigures, known: _Chain
) -> Iterator[tuple[str, str, str, str, float | None]]:
    if verdict != known.verdict:
        yield chain, "verdict", known.verdict, verdict, None
    spoilt = own.is_marked or any(step.real_time_ms and step.statistics.get("disturbed") for step in known.steps)
    for figure, before in known.figures.items():
        row, check = figure.row, own.find_check(figure)
        # Of the parts of a call where both runs know them, else of the whole call.
        parts = Figure.INSTRUCTIONS in known.figures and Figure.INSTRUCTIONS in own.values
        if not row.since or (figure.is_counted and parts is (figure is Figure.CALL_INSTRUCTIONS)):
            continue
        was, new = before.measured, own.values.get(figure)
        if figure is Figure.TIME:
            was, new = before.mean, own.samples.mean_ms if own.samples else None
        comparable = not (figure is Figure.TIME and spoilt)
        if comparable and was and was > 0 and new is not None and row.since_margin.is_exceeded(was, new):
            yield chain, row.since, row.write(was), row.write(new), new / was - 1
        limits = before.limit, check.limit if check else None
        # A step that was not reached says nothing of its limit.
        reached = check is not None or new is not None
        if reached and limits[0] != limits[1]:
            then, now = ("none" if limit is None else row.write(limit) for limit in limits)
            yield chain, f"limit of {row.since}", then, now, None
    output = own.worst_output
    allowed = known.quality.allowed if known.quality else ""
    if output is not None and allowed and allowed != output.allowed:
        yield chain, "tolerance", allowed, output.allowed, None
