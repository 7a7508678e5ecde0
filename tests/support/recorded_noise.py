"""Recorded noise, and sessions simulated from it: how often would a rule have been right?

A recording is a file of `benchmarks/record_noise.py`: rounds of one unchanged model, one after the other. A simulated
session strings together stretches of it (moving-block bootstrap: Künsch, Annals of Statistics 17, 1989), so that what
hangs together in time stays together, and lays a comparison's block orders over it. All sides being the same program,
every difference found is a false one; side B's times multiplied by 1.05 are a slowdown of 5 %.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, EvidenceError, Round, block_orders

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


_STRETCH = 20


@dataclass(frozen=True, slots=True)
class Recording:
    """The noise of one condition.

    Attributes:
        models: times in ms by model, a row a round, a column a repetition.
    """

    condition: str
    description: str
    models: dict[str, NDArray[np.float64]]


def read_recording(path: Path) -> Recording:
    """Reads a file of `benchmarks/record_noise.py`.

    Raises EvidenceError: another file, a torn one, or times that are not positive finite numbers.
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


def simulated_rounds(
    times: NDArray[np.float64], count: int, chance: np.random.Generator, stretch: int = _STRETCH
) -> NDArray[np.float64]:
    """Strings stretches of a recording together.

    `stretch`: rounds in a stretch; the more, the more of the noise's memory is kept. Raises EvidenceError: fewer rounds
    recorded than a stretch has.
    """
    if not 1 <= stretch <= len(times) or count < 1:
        raise EvidenceError(f"cannot take {count} rounds in stretches of {stretch} from {len(times)} recorded ones")
    starts = chance.integers(len(times) - stretch + 1, size=-(-count // stretch))
    chosen = (starts[:, None] + np.arange(stretch)).ravel()[:count]
    return np.asarray(times[chosen])


def blocks_from_rounds(rounds: NDArray[np.float64], seed: int, factor: float = 1.0) -> tuple[Block, ...]:
    """Lays block orders over rounds in time; B's times are multiplied by `factor`.

    Rounds left over at the end are not used.
    """
    blocks = []
    for number, order in enumerate(block_orders(len(rounds) // 4, seed)):
        scales = (1, factor, factor, 1) if order == BlockOrder.ABBA else (factor, 1, 1, factor)
        four = rounds[4 * number : 4 * number + 4]
        taken = [Round(tuple((times * scale).tolist())) for times, scale in zip(four, scales, strict=True)]
        blocks.append(Block.of_rounds(order, taken))
    return tuple(blocks)


def swapped(block: Block) -> Block:
    """The same rounds with the sides' names exchanged."""
    other = {BlockOrder.ABBA: BlockOrder.BAAB, BlockOrder.BAAB: BlockOrder.ABBA}
    return Block(other[block.order], block.b, block.a)


def log_ratios_from_rounds(figures: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """As `blocks_from_rounds` and `log_ratios`, from the one figure that stands for each round, and faster."""
    count = len(figures) // 4
    logs = np.log(figures[: 4 * count]).reshape(count, 4)
    inner = (logs[:, 1] + logs[:, 2] - logs[:, 0] - logs[:, 3]) / 2
    return np.asarray(inner * _signs(count, seed))


@cache
def _signs(count: int, seed: int) -> NDArray[np.float64]:
    return np.array([1.0 if order == BlockOrder.ABBA else -1.0 for order in block_orders(count, seed)])
