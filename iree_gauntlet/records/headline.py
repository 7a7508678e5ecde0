"""The few lines that every report begins or ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.records.outcome import RunOutcome


_ORDER = (
    Verdict.FAILED,
    Verdict.ERROR,
    Verdict.XPASSED,
    Verdict.INCONCLUSIVE,
    Verdict.PASSED,
    Verdict.XFAILED,
    Verdict.SKIPPED,
)
_WORDS = {
    Verdict.ERROR: ("error", "errors"),
    Verdict.XPASSED: ("unexpected pass", "unexpected passes"),
    Verdict.XFAILED: ("expected failure", "expected failures"),
}


def headline(outcome: RunOutcome) -> str:
    """`1 failed, 2 errors, 23 passed, 3 skipped (2 behind a failure)`; what went wrong comes first."""
    counts = outcome.counts
    words = []
    for verdict in _ORDER:
        count = counts[verdict]
        if not count:
            continue
        one, many = _WORDS.get(verdict, (str(verdict), str(verdict)))
        words.append(f"{count} {one if count == 1 else many}")
    behind = sum(bool(step.behind) for step in outcome.steps)
    if behind:
        words[-1] += f" ({behind} behind a failure)"
    return ", ".join(words) or "nothing ran"


def cache_line(outcome: RunOutcome) -> str:
    """`compiles: 10 from cache, 0 made; downloads: 12 present, 0 fetched; inputs: 2 made`."""
    compiles, imports, downloads = outcome.compiles, outcome.imports, outcome.downloads
    parts = [f"compiles: {compiles.hits} from cache, {compiles.misses} made"]
    if imports.hits or imports.misses:
        parts.append(f"imports: {imports.hits} from cache, {imports.misses} made")
    parts.append(f"downloads: {downloads.hits} present, {downloads.misses} fetched")
    if outcome.made_inputs:
        parts.append(f"inputs: {outcome.made_inputs} made")
    return "; ".join(parts)


def version(toolchain: Mapping[str, Any], side: str) -> str | None:
    """`3.12.0 at 1f2e3d4c5b6a`, of its compiler or runtime; None where it is not known."""
    commit = str(toolchain.get(f"{side}_commit") or "")
    name = str(toolchain.get(side) or "")
    return f"{name}{f' at {commit[:12]}' if commit else ''}" if name else None
