"""What changed against the run before: the last one of the same suite beside a run that has all of its models."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Metric
from iree_gauntlet.figures import milliseconds, whole
from iree_gauntlet.records.chain_figures import collect_chain_figures
from iree_gauntlet.results import OutputComparison

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from iree_gauntlet.records.chain_figures import ChainFigures
    from iree_gauntlet.records.outcome import RunOutcome


SUMMARY = "summary.json"
# Runs that are looked at, the last by their names first, and bytes of what one says of itself before its chains.
_MOST_RUNS, _HEAD = 20, 16_384
_STARTED, _COMPLETE = re.compile(r'\n "started": "([^"]*)",\n'), '\n "state": "complete",\n'
# A suite of thousands is not read for this.
_LARGEST = 4_000_000
# Of a time, from when on a difference of two runs is shown: smaller ones are noise.
_TIME = 0.1


@dataclass(frozen=True, slots=True)
class RunBefore:
    """The run before, and what changed since.

    Attributes:
        run, compiler: its name, and its compiler's version.
        changes: chain, figure, what it was, what it is; and by how much of what it was, where these are numbers.
    """

    run: str
    compiler: str
    changes: tuple[tuple[str, str, str, str, float | None], ...]


def find_changes_since(outcome: RunOutcome, folder: Path) -> RunBefore | None:
    """What changed since the run before; None where there is none, or where a run has too many chains for it.

    Args:
        outcome: of the run.
        folder: of the run; runs before lie beside it.
    """
    wanted = {(chain.id, chain.sku) for chain in outcome.chains}
    before = (
        None if outcome.many or not outcome.started else _find_before(outcome.suite, outcome.started, folder, wanted)
    )
    if before is None:
        return None
    chains = {chain["id"]: chain for chain in before["chains"]}
    changes = tuple(
        change
        for chain in outcome.chains
        for change in _find_changes(chain.id, str(chain.verdict), collect_chain_figures(chain), chains[chain.id])
    )
    return RunBefore(str(before["run"]), str((before["toolchain"] or {}).get("compiler") or ""), changes)


def read_earlier_seconds(suite: str, folder: Path) -> dict[str, float]:
    """What each step of the last complete run of a suite took, by its id; empty where there is none.

    Args:
        suite: its name.
        folder: of the run that begins; those before lie beside it.
    """
    before = _find_before(suite, "9", folder)
    return {step["id"]: step["seconds"] for chain in (before or {}).get("chains", ()) for step in chain["steps"]}


def _find_before(
    suite: str, started: str, folder: Path, wanted: Collection[tuple[str, str]] = ()
) -> dict[str, Any] | None:
    """The summary of the run of a suite that began last before a time, is complete, and has the chains on the SKUs."""
    own = folder.resolve()
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
                summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                if {(chain["id"], chain["sku"]) for chain in summary["chains"]}.issuperset(wanted):
                    return summary
        except (OSError, ValueError, LookupError, TypeError):
            # Removed meanwhile, or cut short: the one before it is the next best.
            continue
    return None


def _find_changes(
    chain: str, verdict: str, own: ChainFigures, known: dict[str, Any]
) -> Iterator[tuple[str, str, str, str, float | None]]:
    if verdict != known["verdict"]:
        yield chain, "verdict", str(known["verdict"]), verdict, None
    spoilt = own.disturbed or any(
        step.get("real_time_ms") and (step.get("statistics") or {}).get("disturbed") for step in known["steps"]
    )
    mean = own.samples.mean_ms if own.samples else None
    for title, name, new, check, write in (
        ("time ms", "time_ms", mean, own.time, milliseconds),
        ("dispatches", Metric.DISPATCH_COUNT, own.dispatch_count, own.dispatches, whole),
        ("bytes", Metric.BINARY_SIZE_BYTES, own.binary_size_bytes, own.size, whole),
        ("instructions", "instructions", own.instructions, own.work, whole),
    ):
        was = known.get(name) or {}
        old = was.get("mean" if name == "time_ms" else "measured")
        if isinstance(old, int | float) and old > 0 and new is not None and not (name == "time_ms" and spoilt):
            share = new / old - 1
            if abs(share) >= _TIME if name == "time_ms" else new != old:
                yield chain, title, write(old), write(new), share
        limits = was.get("limit"), check.limit if check else None
        if was and limits[0] != limits[1]:
            before, now = ("none" if limit is None else write(limit) for limit in limits)
            yield chain, f"limit of {title}", before, now, None
    output = own.worst_output
    allowed = OutputComparison.from_dict(known["quality"]).allowed if known.get("quality") else ""
    if output is not None and allowed and allowed != output.allowed:
        yield chain, "tolerance", allowed, output.allowed, None
