"""A peer of IREE: what was measured of it beside IREE, the word for that, and the line that a person reads.

The number of blocks is fixed before anything is measured and they are looked at once, so that the interval needs no
correction for looking earlier. It is the exact one of `paired.py`, from the log ratios of blocks: six of them are the
fewest that have a two-sided interval at 95 % (five have 93.75 %, 1 − 2/2⁵), and so six it is. The words are those of
`compare`, by its margins: faster or slower from 1 % on, the same within 3 %.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, Verdict, compare
from iree_gauntlet.measuring.statistics.sequential import SequentialPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.rounds.blocks import PairEvidence
    from iree_gauntlet.measuring.statistics.rounds import Round


BLOCKS = 6
_LEVEL = 0.05
ONE_LOOK = SequentialPlan(_LEVEL, (BLOCKS,), (1.0,))
# What IREE is where the peer is that.
_WORDS = {
    Verdict.SLOWER: "faster",
    Verdict.FASTER: "slower",
    Verdict.SAME: "same",
    Verdict.INCONCLUSIVE: "inconclusive",
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer beside IREE; a call is a generation where the model is a generative one.

    Attributes:
        name: `torch eager`, `torch.compile` or `onnxruntime`.
        version: of it; empty where it did not get as far as to say.
        call_ms: median over its rounds of their median call; None without rounds that count.
        iree_ms: the same of IREE, from the same blocks.
        ratio: its time / IREE's; above 1 IREE is faster. None where there is nothing to compare.
        low, high: interval of the ratio at 95 %; None where there are too few blocks for one.
        word: what IREE is: faster, slower, same or inconclusive; empty without a ratio.
        blocks: of four rounds, those that count.
        replaced: those that were disturbed and do not.
        calls: that were timed in each round.
        first_call_ms: of a process that had nothing compiled before.
        compile_s: what loading and compiling took, the first call included where that is what compiles; None where
            nothing is compiled.
        reason: why there is no ratio, or why the word is what it is.
    """

    name: str
    version: str = ""
    call_ms: float | None = None
    iree_ms: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    word: str = ""
    blocks: int = 0
    replaced: int = 0
    calls: int = 0
    first_call_ms: float | None = None
    compile_s: float | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the journal and the result file."""
        return asdict(self)


def judged(peer: Peer, evidence: PairEvidence) -> Peer:
    """The peer with what its blocks say: A is IREE, B the peer."""
    peer = replace(peer, blocks=len(evidence.blocks), replaced=evidence.replaced)
    if evidence.failure:
        return replace(peer, reason=evidence.failure)
    if not evidence.blocks:
        return replace(peer, reason=f"every block was disturbed; such as: {evidence.main_disturbance}")
    found = compare(evidence.blocks, ONE_LOOK)
    ratio = ratio_figures(found)
    few = f"{found.blocks} of {BLOCKS} blocks; the others were disturbed, such as: {evidence.main_disturbance}"
    return replace(
        peer,
        call_ms=_median([round_ for block in evidence.blocks for round_ in block.b]),
        iree_ms=_median([round_ for block in evidence.blocks for round_ in block.a]),
        **ratio,
        reason=few if ratio["low"] is None else found.reason,
    )


def ratio_figures(found: Comparison) -> dict[str, Any]:
    """The result of a comparison of two programs, A being the one that is spoken of.

    Returns:
        `ratio` (time of B / its own), `low` and `high` (None where there are too few blocks for an interval) and `word`
        (what A is: faster, slower, same, inconclusive).
    """
    bounded = math.isfinite(found.high)
    low, high = (found.low, found.high) if bounded else (None, None)
    return {"ratio": found.ratio, "low": low, "high": high, "word": _WORDS[found.verdict]}


def shown(peers: Sequence[Peer]) -> list[str]:
    """A line for each."""
    return [_line(peer) for peer in peers]


def _line(peer: Peer) -> str:
    if peer.ratio is None or peer.call_ms is None:
        return f"{_title(peer)}: no ratio: {peer.reason}"
    own = f", IREE {_time(peer.iree_ms)}" if peer.iree_ms is not None else ""
    return f"{_title(peer)} {_time(peer.call_ms)} a call (median){own}: {_beside(peer, peer.ratio)}"


def _beside(peer: Peer, ratio: float) -> str:
    if peer.low is None or peer.high is None:
        return f"no verdict, {ratio:.2f} × IREE's time ({peer.reason})"
    if peer.word == "slower":
        return f"IREE takes {1 / ratio:.2f} × as long ({1 / peer.high:.2f} to {1 / peer.low:.2f})"
    span = f"({peer.low:.2f} to {peer.high:.2f})"
    if peer.word == "faster":
        return f"IREE is {ratio:.2f} × as fast {span}"
    if peer.word == "same":
        return f"IREE is as fast, {ratio:.2f} × {span}"
    return f"no verdict, {ratio:.2f} × IREE's time {span}"


def _title(peer: Peer) -> str:
    if not peer.version:
        return peer.name
    product, _, mode = peer.name.replace(".", " ").partition(" ")
    return " ".join(filter(None, (product, peer.version, mode)))


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def _median(rounds: Sequence[Round]) -> float:
    return statistics.median(round_.location() for round_ in rounds)
