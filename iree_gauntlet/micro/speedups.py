"""Speed-ups from interleaved rounds: a ratio of times with its interval, and a word for it.

In each block two programs give a log ratio, of the mean logs of their rounds. The interval is the exact one of
`paired.py` at 95 %, looked at once, after all blocks; words are those of `compare`: faster or slower from 1 % on, the
same within 3 %. Each interval is one by itself: of a hundred of them, five may miss.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.bench.peers import ONE_LOOK, WORDS
from iree_gauntlet.measuring.statistics.comparison_verdict import compare_log_ratios

if TYPE_CHECKING:
    from iree_gauntlet.micro.interleaved import Blocks

__all__ = ["median_ms", "speedup"]


def speedup(blocks: Blocks, name: str, over: str) -> dict[str, Any] | None:
    """How many times as fast a program is as another one.

    Args:
        blocks: of both.
        name: the program.
        over: the other one.

    Returns:
        `ratio` (time of the other / its own), `low` and `high` (None where there are too few blocks for an interval)
        and `word` (what the program is: faster, slower, same, inconclusive); None where one of them has no times.
    """
    own, other = blocks.times.get(name), blocks.times.get(over)
    if not own or not other:
        return None
    ratios = [_log(theirs) - _log(mine) for mine, theirs in zip(own, other, strict=True)]
    found = compare_log_ratios(np.array(ratios), ONE_LOOK)
    bounded = math.isfinite(found.high)
    return {
        "ratio": found.ratio,
        "low": found.low if bounded else None,
        "high": found.high if bounded else None,
        "word": WORDS[found.verdict],
    }


def median_ms(blocks: Blocks, name: str) -> float | None:
    """Median over all rounds of a program; None without any."""
    times = [time for block in blocks.times.get(name, ()) for time in block]
    return statistics.median(times) if times else None


def _log(times: tuple[float, ...]) -> float:
    return statistics.fmean(math.log(time) for time in times)
