"""Recorded noise, and sessions simulated from it, which show how often a rule would have been right.

A recording is a file of `benchmarks/record_noise.py`: successive rounds of one unchanged model. A simulated session
concatenates stretches of it (moving-block bootstrap: Künsch, Annals of Statistics 17, 1989), which keeps correlation
in time, and assigns the block orders of a comparison to the rounds. As both sides are the same program, every
detected difference is false; multiplying side B's times by 1.05 plants a slowdown of 5 %.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, EvidenceError, Round, draw_block_orders

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


_STRETCH_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Recording:
    """The noise of one condition.

    Attributes:
        models: times in ms by model, with a row for each round and a column for each repetition.
    """

    condition: str
    description: str
    models: dict[str, NDArray[np.float64]]


def read_recording(path: Path) -> Recording:
    """Read a file of `benchmarks/record_noise.py`.

    Raises EvidenceError: another format, a truncated file, or times that are not positive finite numbers.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        models = {
            str(name): np.array(record["real_time_ms"], dtype=np.float64) for name, record in document["models"].items()
        }
        recording = Recording(str(document["condition"]), str(document["description"]), models)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvidenceError(
            f"{path.name} is no recording of noise: {error}", "benchmarks/record_noise.py makes them"
        ) from error
    for name, times in models.items():
        if times.ndim != 2 or not times.size or not (np.isfinite(times) & (times > 0)).all():
            raise EvidenceError(f"{path.name}: the times of {name} are no table of positive numbers")
    return recording


def simulate_rounds(
    times: NDArray[np.float64], count: int, rng: np.random.Generator, stretch: int = _STRETCH_ROUNDS
) -> NDArray[np.float64]:
    """Concatenate random stretches of a recording to `count` rounds.

    `stretch`: rounds in a stretch; longer stretches keep more of the noise's correlation. Raises EvidenceError if the
    recording has fewer rounds than a stretch.
    """
    if not 1 <= stretch <= len(times) or count < 1:
        raise EvidenceError(f"cannot take {count} rounds in stretches of {stretch} from {len(times)} recorded ones")
    starts = rng.integers(len(times) - stretch + 1, size=-(-count // stretch))
    indices = (starts[:, None] + np.arange(stretch)).ravel()[:count]
    return np.asarray(times[indices])


def make_blocks(rounds: NDArray[np.float64], seed: int, factor: float = 1.0) -> tuple[Block, ...]:
    """Assign block orders to successive rounds; multiply B's times by `factor`.

    An incomplete block at the end is not used.
    """
    blocks = []
    for number, order in enumerate(draw_block_orders(len(rounds) // 4, seed)):
        scales = (1, factor, factor, 1) if order == BlockOrder.ABBA else (factor, 1, 1, factor)
        block_times = rounds[4 * number : 4 * number + 4]
        block_rounds = [
            Round(tuple((times * scale).tolist())) for times, scale in zip(block_times, scales, strict=True)
        ]
        blocks.append(Block.of_rounds(order, block_rounds))
    return tuple(blocks)


def swap_sides(block: Block) -> Block:
    """Return a block with sides A and B exchanged."""
    opposite_orders = {BlockOrder.ABBA: BlockOrder.BAAB, BlockOrder.BAAB: BlockOrder.ABBA}
    return Block(opposite_orders[block.order], block.b, block.a)


def make_log_ratios(round_times: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Compute the log ratios of the rounds' blocks, from one value for each round; faster than with `Block`s."""
    count = len(round_times) // 4
    logs = np.log(round_times[: 4 * count]).reshape(count, 4)
    log_ratios = (logs[:, 1] + logs[:, 2] - logs[:, 0] - logs[:, 3]) / 2
    return np.asarray(log_ratios * _make_signs(count, seed))


@cache
def _make_signs(count: int, seed: int) -> NDArray[np.float64]:
    return np.array([1.0 if order == BlockOrder.ABBA else -1.0 for order in draw_block_orders(count, seed)])
