"""Rounds of all variants of a point, interleaved: every pair of them can be compared, within the same minutes.

A block is one go over all programs in an order drawn by lot, and back in the opposite order: whatever grows linearly
over it (a clock that heats up) falls on all of them alike. Each round of IREE is a process start of its own. Between
the two halves stands one start of torch, which runs its own programs one after the other, each once, in an order drawn
by lot too: a start of torch takes seconds.

A round that other work disturbed is taken again, a few times; a block in which one stays disturbed is no evidence, and
another one takes its place. Rounds are never left out for their times.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.bench.peers import BLOCKS
from iree_gauntlet.engine.rounds.blocks import PAUSE_SECONDS, SPARE_BLOCKS, main_cause, seed_of
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, TakenRound, take_round
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.session import Session

__all__ = ["Blocks", "InterleavedRounds", "TorchRound"]

_ATTEMPTS = 3
_KIND = "micro"
# Under this name the start of torch stands in the log; it is no label of a recipe.
_TORCH = "torch "


@dataclass(frozen=True, slots=True)
class TorchRound:
    """The start of torch in the middle of a block.

    Attributes:
        measurement: its command's last word is the file of its plan.
        plan: of it, without the order of its programs.
        programs: what it runs, by name.
    """

    measurement: Measurement
    plan: Mapping[str, Any]
    programs: Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Blocks:
    """What was measured.

    Attributes:
        times: ms by name of a program, one item for each block: two rounds of IREE, one of torch.
        count: of them.
        replaced: blocks that were taken and do not count.
        disturbances: why, and how often.
        marked: rounds that count although they were disturbed.
        failure: why there are no more; empty where all is well.
        peak_rss_bytes: largest resident set of a process of IREE's, by name.
    """

    times: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    count: int = 0
    replaced: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)
    marked: int = 0
    failure: str = ""
    peak_rss_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def too_disturbed(self) -> bool:
        """Whether the machine is too busy for this to finish."""
        return self.replaced > SPARE_BLOCKS + self.count

    @property
    def main_disturbance(self) -> str:
        """What spoiled most rounds; empty for none."""
        return main_cause(self.disturbances)


class InterleavedRounds:
    """Takes blocks of a point.

    Args:
        session: what it runs in; its log takes every block.
        name: of the point, for its coins and the log.
        iree: programs of IREE, by name.
        torch: those of torch; None for none.
        seed: of the coins.
        replace_disturbed: whether a disturbed round is taken again.
    """

    def __init__(
        self,
        session: Session[Any],
        name: str,
        iree: Mapping[str, Measurement],
        torch: TorchRound | None,
        seed: int,
        *,
        replace_disturbed: bool,
    ) -> None:
        self._session = session
        self._name = name
        self._iree = iree
        self._torch = torch
        self._torch_order: list[str] = []
        self._cancelled = session.cancelled
        self._replace = replace_disturbed
        # It draws lots for orders, and nothing secret.
        self._lots = random.Random(seed_of(seed, name, _KIND))  # noqa: S311

    def take(self, progress: Callable[[int], None]) -> Blocks:
        """All blocks; fewer where a program fails, the machine is too busy, or it is cut short.

        Args:
            progress: is told the number of each block before it begins, from 1 on.

        Raises:
            GauntletError: a process cannot be started at all, or the log cannot be written.
        """
        found = Blocks()
        while found.count < BLOCKS and not (found.failure or found.too_disturbed or self._cancelled.is_set()):
            progress(found.count + 1)
            self._block(found)
        return found

    def _block(self, found: Blocks) -> None:
        order = list(self._iree)
        self._lots.shuffle(order)
        rounds: list[tuple[str, TakenRound]] = []
        with self._session.quiet(next((item.device for item in self._iree.values() if item.device), "")):
            complete = self._rounds(order, rounds)
            if complete and self._torch is not None:
                complete = self._torch_round(self._torch, rounds)
            complete = complete and self._rounds(order[::-1], rounds)
        if self._cancelled.is_set():
            # What was cut short has no result.
            return
        failed = next(((name, taken.failure) for name, taken in rounds if taken.failure), None)
        counted = complete and failed is None
        records = [{"side": name, **taken.as_dict()} for name, taken in rounds]
        self._session.log.write(
            "block", {"chain": self._name, "kind": _KIND, "order": order, "counted": counted, "rounds": records}
        )
        for name, taken in rounds:
            found.disturbances.update(taken.disturbed)
            found.peak_rss_bytes[name] = max(found.peak_rss_bytes.get(name, 0), taken.peak_rss_bytes)
        if failed is not None:
            found.failure = f"{failed[0]}: {failed[1]}"
        elif counted:
            self._count(found, rounds)
        else:
            found.replaced += 1
            self._cancelled.wait(PAUSE_SECONDS)

    def _count(self, found: Blocks, rounds: Sequence[tuple[str, TakenRound]]) -> None:
        times: dict[str, tuple[float, ...]] = {}
        for name, taken in rounds:
            if taken.disturbed and self._replace:
                # Taken again right after.
                continue
            found.marked += bool(taken.disturbed)
            names = self._torch_order if name == _TORCH else (name,)
            for each, time in zip(names, taken.times, strict=True):
                times[each] = (*times.get(each, ()), time)
        for name, values in times.items():
            found.times.setdefault(name, []).append(values)
        found.count += 1

    def _rounds(self, order: Sequence[str], rounds: list[tuple[str, TakenRound]]) -> bool:
        """One round of each; False where one failed, stayed disturbed, or it is cut short."""
        return all(self._round(name, self._iree[name], rounds) for name in order)

    def _torch_round(self, torch: TorchRound, rounds: list[tuple[str, TakenRound]]) -> bool:
        self._torch_order = list(torch.programs)
        self._lots.shuffle(self._torch_order)
        plan = {**torch.plan, "variants": [torch.programs[name] for name in self._torch_order]}
        write_atomic(Path(torch.measurement.command.argv[-1]), json.dumps(plan, indent=1))
        return self._round(_TORCH, torch.measurement, rounds)

    def _round(self, name: str, measurement: Measurement, rounds: list[tuple[str, TakenRound]]) -> bool:
        for _ in range(_ATTEMPTS):
            if self._cancelled.is_set():
                return False
            taken = take_round(measurement, self._session.processes, f"rounds.{name.strip()}.")
            rounds.append((name, taken))
            if taken.failure:
                return False
            if not (taken.disturbed and self._replace):
                return True
        return False
