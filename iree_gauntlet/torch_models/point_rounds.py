"""Rounds of all variants of a point, in IREE and in torch, interleaved: each can be compared with each other one.

A block is one go over all programs in random order, and back in the opposite order: whatever grows linearly
over it (a clock that heats up) falls on all of them alike. Each round of IREE is a process start of its own. Between
the two halves stands one start of torch, which runs its own programs one after the other, each once, in an order drawn
by lot too: a start of torch takes seconds. Before the first block, torch's programs are tried (`peers.py`).

A round that other work disturbed is taken again, a few times; a block in which one stays disturbed is no evidence, and
another one takes its place. Rounds are never left out for their times.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.blocks import BlockTaker, Evidence, PlannedBlock, seed_of
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.measuring_worker import planned_command
from iree_gauntlet.torch_models.peers import (
    BLOCKS,
    CODE_FOLDER,
    SEED,
    TRIAL_CALLS,
    WARM_UP_CALLS,
    Expected,
    peer_rounds,
    try_peer,
)
from iree_gauntlet.torch_models.torch_python import running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import Measurement, TakenRound
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_folder import Build
    from iree_gauntlet.torch_models.configuration import Variant
    from iree_gauntlet.torch_models.point_chain import PointChain


EAGER = "eager"
COMPILE = "compile"
_ATTEMPTS = 3
_KIND = "micro"
# How long the calls of a round take, of a program that is fast enough for three of them in that time.
_ROUND_MS = 100.0
# The start of torch has this name in the log; it is no label of a recipe.
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
class PointEvidence(Evidence):
    """What was measured of a point.

    Attributes:
        times: ms by name of a program, one item for each block: two rounds of IREE, one of torch.
        marked: rounds that count although they were disturbed.
    """

    times: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    marked: int = 0


@dataclass(slots=True)
class InterleavedRounds:
    """Takes blocks of a point.

    Attributes:
        taker: of the blocks.
        name: of the point, for its coins and the log.
        iree: programs of IREE, by name.
        torch: those of torch; None for none.
    """

    taker: BlockTaker
    name: str
    iree: Mapping[str, Measurement]
    torch: TorchRound | None
    _torch_order: list[str] = field(default_factory=list)
    _lots: random.Random = field(init=False)

    def __post_init__(self) -> None:
        # It draws lots for orders, and nothing secret.
        self._lots = random.Random(seed_of(SEED, self.name, _KIND))  # noqa: S311

    def take(self, progress: Callable[[int], None]) -> PointEvidence:
        """All blocks; fewer where a program fails, the machine is too busy, or it is cut short.

        Args:
            progress: is called with the number of each block before it begins, from 1 on.

        Raises:
            GauntletError: a process cannot be started at all, or the log cannot be written.
        """
        found = PointEvidence()
        while found.count < BLOCKS and self.taker.goes_on(found):
            progress(found.count + 1)
            self._keep(found, self.taker.take(self._block(), found))
        return found

    def _block(self) -> PlannedBlock:
        order = list(self.iree)
        self._lots.shuffle(order)
        there = [(name, self.iree[name]) for name in order]
        middle = [] if self.torch is None else [(_TORCH, self._torch_round(self.torch))]
        return PlannedBlock(self.name, _KIND, order, [*there, *middle, *there[::-1]], _ATTEMPTS)

    def _torch_round(self, torch: TorchRound) -> Measurement:
        self._torch_order = list(torch.programs)
        self._lots.shuffle(self._torch_order)
        plan = {**torch.plan, "models": [torch.programs[name] for name in self._torch_order]}
        write_atomic(Path(torch.measurement.command.argv[-1]), json.dumps(plan, indent=1))
        return torch.measurement

    def _keep(self, found: PointEvidence, rounds: Sequence[tuple[str, TakenRound]]) -> None:
        """The times of a block that counts."""
        times: dict[str, tuple[float, ...]] = {}
        for name, taken in rounds:
            found.marked += bool(taken.disturbed)
            names = self._torch_order if name == _TORCH else (name,)
            for each, time in zip(names, taken.times, strict=True):
                times[each] = (*times.get(each, ()), time)
        for name, values in times.items():
            found.times.setdefault(name, []).append(values)


@dataclass(slots=True)
class TorchTrial:
    """A trial of torch.

    Attributes:
        round: for the blocks; None where nothing of torch's can be measured.
        problems: why a program is not measured, by its name.
        first_call_ms: by name of the program.
    """

    round: TorchRound | None = None
    problems: dict[str, str] = field(default_factory=dict)
    first_call_ms: dict[str, float] = field(default_factory=dict)


def torch_name(mode: str, label: str) -> str:
    """Of a program of torch: `torch eager int8wo`."""
    return f"torch {mode} {label}"


def calls_of(call_ms: float) -> int:
    """How many calls a round has."""
    return max(TRIAL_CALLS, math.ceil(_ROUND_MS / call_ms))


def try_torch(
    step: Step,
    chain: PointChain,
    builds: Mapping[str, Build],
    variants: Sequence[Variant],
    modes: Sequence[str],
    session: Session[Any],
) -> TorchTrial:
    """Runs each program of torch once, checks its outputs, and decides how many calls a round of it has.

    Args:
        step: of the benchmark; gives the folder and the time limit.
        chain: the point.
        builds: what torch made before, by label.
        variants: that are measured.
        modes: `eager`, `compile`.
        session: what it runs in.

    Raises:
        GauntletError: what it left cannot be read.
    """
    folder = Path(step.folder) / "torch"
    outputs = folder / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    programs: dict[str, dict[str, Any]] = {}
    expected = []
    for mode in modes:
        for side, variant in {variant.side: variant for variant in reversed(variants)}.items():
            name, allowed = torch_name(mode, side), chain.allowed(variant, builds[side])
            programs[name] = {
                "name": name,
                "builder": asdict(chain.plan(side)),
                "build": str(chain.exported(side)),
                "mode": mode,
                "compile_mode": chain.point.model.torch_compile_mode,
                "calls": TRIAL_CALLS,
            }
            expected.append(Expected(chain.exported(side), builds[side].programs[0].outputs, allowed))

    words = running(chain.torch.path, "iree_gauntlet.torch_models.measure_torch")
    env = (("TORCHINDUCTOR_CACHE_DIR", str(folder / CODE_FOLDER)),)
    plan: dict[str, Any] = {
        "models": list(programs.values()),
        "warm_up_calls": WARM_UP_CALLS,
        "compile_threads": None,
        "outputs": str(outputs),
    }
    first = peer_rounds(step, planned_command(step, words, plan, "torch.trial.", env), "torch")
    trial = TorchTrial()
    for name, tried in zip(list(programs), try_peer(session, first, "torch.trial.", outputs, expected), strict=True):
        if tried.problem or tried.first_call_ms is None:
            trial.problems[name] = tried.problem
            del programs[name]
            continue
        trial.first_call_ms[name] = tried.first_call_ms
        programs[name]["calls"] = calls_of(tried.call_ms)
    shutil.rmtree(outputs)
    if programs:
        # Compiled before: torch.compile's processes would be work next to what is measured.
        plan |= {"models": list(programs.values()), "compile_threads": 1, "outputs": ""}
        command = planned_command(step, words, plan, "torch.", env)
        trial.round = TorchRound(peer_rounds(step, command, "torch"), plan, programs)
    return trial
