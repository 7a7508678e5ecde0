"""How fast IREE is next to torch and onnxruntime, on the same machine, in the same minutes, on the same model.

A round is a process start with a warm-up of its own: of IREE's measuring program, or of a script that calls the peer.
Both make the same number of calls, and the median call stands for the round. Rounds are taken in blocks of four,
A B B A or B A A B by the fall of a coin, and blocks with a disturbed round are replaced (`engine/rounds/blocks.py`);
`peers.py` says what is made of them. Peers run on the CPU, whatever IREE runs on. Before its blocks, each is tried
(`peers.py`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import shutil
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.blocks import AB, BlockTaker, Pair, PairEvidence
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, gpu_of, take_round
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.steps import Command, Step
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.agreement import limits
from iree_gauntlet.torch_models.build_folder import Build, read_build
from iree_gauntlet.torch_models.peers import (
    BLOCKS,
    CODE_FOLDER,
    SEED,
    TRIAL_CALLS,
    WARM_UP_CALLS,
    Expected,
    Peer,
    judged,
    peer_rounds,
    shown,
    try_peer,
)
from iree_gauntlet.torch_models.torch_python import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.engine.session import Session


_LEAST_CALLS = 3
# The calls of a round take so long in IREE, and at most so long in a peer that is much slower.
_ROUND_MS = 500.0
_SLOW_ROUND_MS = 5000.0
_TRIAL = "trial."
_MS = 1000.0
_TORCH = {"torch": {"torch eager": "eager", "torch.compile": "compile"}, "torch-eager": {"torch eager": "eager"}}


@dataclass(frozen=True, slots=True)
class AgainstPlace:
    """Where peers run, and what they are given.

    Attributes:
        env: variables of the peers' processes; those of IREE's stand in its own command.
    """

    builder: Mapping[str, Any]
    torch_python: str
    env: tuple[tuple[str, str], ...] = ()
    replace_disturbed: bool = True


def iree_rounds(step: Step, command: Command) -> Measurement:
    """Rounds of IREE's measuring programs, of any kind of model."""
    return Measurement(step, command, "the measuring program", _iree_times, gpu_of(step))


def measure(
    session: Session[Any], names: Sequence[str], iree: Measurement, build: Path, place: AgainstPlace
) -> list[Peer]:
    """Measures peers next to IREE; blocks go into the log as they are taken.

    A peer that cannot be measured is one with a reason, and the others go on. One that was cut short is left out.

    `names`: `torch`, which is eager and `torch.compile`, or `torch-eager`, and `onnxruntime`; `iree`: as `iree_rounds`
    gives it. The plan is written again for each peer, with its number of calls.

    Raises:
        GauntletError: IREE cannot be measured, or the build folder cannot be read.
    """
    taker = BlockTaker(session, replace_disturbed=place.replace_disturbed)
    plan = json.loads(Path(iree.command.argv[-1]).read_text(encoding="utf-8"))
    peers = _Peers(session, iree, plan, build, read_build(build), place, taker)
    found: list[Peer] = []
    with contextlib.suppress(WaitCancelledError):
        for peer in peers.peers(names):
            measured = peers.against(peer)
            if session.cancelled.is_set():
                break
            found.append(measured)
            session.progress.message(shown(measured))
    return found


@dataclass(frozen=True, slots=True)
class _Script:
    """A peer's script, but for its plan."""

    rounds: Measurement
    model: Mapping[str, Any]

    def with_plan(self, home: Path, name: str, calls: int, **changes: Any) -> Measurement:
        """Its rounds with so many calls, by a plan in which some fields are other than they usually are."""
        plan = {"warm_up_calls": WARM_UP_CALLS, "compile_threads": None, "outputs": "", **changes}
        return _planned(self.rounds, home, name, {"models": [{**self.model, "calls": calls}], **plan})


def _planned(rounds: Measurement, home: Path, name: str, plan: Mapping[str, Any]) -> Measurement:
    """Rounds by a plan that is written into a folder, where their logs go too."""
    path = home / f"{name}.json"
    write_atomic(path, json.dumps(plan, indent=1))
    command = replace(rounds.command, argv=(*rounds.command.argv[:-1], str(path)), cwd=str(home))
    return replace(rounds, step=replace(rounds.step, folder=str(home)), command=command)


@dataclass(slots=True)
class _Peers:
    """What all peers of a model have in common."""

    session: Session[Any]
    iree: Measurement
    plan: Mapping[str, Any]
    folder: Path
    build: Build
    place: AgainstPlace
    taker: BlockTaker
    iree_ms: float = 0.0

    def peers(self, names: Sequence[str]) -> Iterator[_Script]:
        """The peers that are asked for."""
        place = self.place
        model = {"build": str(self.folder), "builder": dict(place.builder)}
        # Those of `torch` are all of torch's.
        for name in (name for name in names if name != "torch-eager" or "torch" not in names):
            if name in _TORCH:
                for peer, mode in _TORCH[name].items():
                    asked = {**model, "mode": mode, "compile_mode": None}
                    yield self._script(peer, place.torch_python, "measure_torch", asked)
            else:
                # Host modules run in torch, and onnxruntime with them then.
                own = importlib.util.find_spec(name) is not None and not self.build.has_host_modules
                yield self._script(name, sys.executable if own else place.torch_python, "measure_onnx", model)

    def _script(self, name: str, python: str, module: str, model: Mapping[str, Any]) -> _Script:
        env = (*self.place.env, ("TORCHINDUCTOR_CACHE_DIR", str(self._home(name) / CODE_FOLDER)))
        # The plan takes the place of the last word.
        command = Command((*running(python, f"iree_gauntlet.torch_models.{module}"), ""), "", env)
        return _Script(peer_rounds(self.iree.step, command, name), {"name": name, **model})

    def against(self, script: _Script) -> Peer:
        """One peer: a trial, then its blocks."""
        home = self._home(script.rounds.tool)
        outputs = home / "outputs"
        outputs.mkdir(parents=True, exist_ok=True)
        try:
            return self._compared(script, home, outputs)
        finally:
            # Gradients and code of a large model; nobody reads them any more.
            shutil.rmtree(outputs)
            shutil.rmtree(home / CODE_FOLDER, ignore_errors=True)

    def _home(self, name: str) -> Path:
        return Path(self.iree.step.folder) / "against" / name.replace(" ", "-")

    def _compared(self, script: _Script, home: Path, outputs: Path) -> Peer:
        name, session = script.rounds.tool, self.session
        session.progress.status(f"{name}: first round")
        trial = script.with_plan(home, "trial", TRIAL_CALLS, outputs=str(outputs))
        (tried,) = try_peer(session, trial, _TRIAL, outputs, [self._expected()])
        self._require_going_on()
        found = Peer(name, version=tried.version, first_call_ms=tried.first_call_ms, compile_s=tried.compile_s)
        if tried.problem:
            return replace(found, reason=tried.problem)
        calls = self._calls(home, tried.call_ms)
        ours = _planned(self.iree, home, "iree", self._iree_plan(calls))
        # Compiled before: torch.compile's processes would be work next to what is measured.
        theirs = script.with_plan(home, "peer", calls, compile_threads=1)
        pair = Pair(f"{self.iree.step.chain} against {name}", ((),), lambda _: (ours, theirs))
        evidence = PairEvidence()
        while evidence.count < BLOCKS and self.taker.goes_on(evidence):
            session.progress.status(f"{name}: block {evidence.count + 1} of {BLOCKS}")
            self.taker.take(pair.block(AB, evidence, SEED, ()), evidence)
        return judged(replace(found, calls=calls), evidence)

    def _calls(self, home: Path, peer_ms: float) -> int:
        """How many calls a round has, for both sides: decided before any of them is taken."""
        group = int(self.plan.get("in_flight", 1))
        if not self.iree_ms:
            trial = _planned(self.iree, home, "iree-trial", self._iree_plan(TRIAL_CALLS * group))
            with self.session.quiet(trial.device, exclusive=False):
                taken = take_round(trial, self.session.processes, _TRIAL)
            self._require_going_on()
            if taken.failure:
                raise GauntletError(f"{trial.step.chain}: {taken.failure}", f"Its log is in {home}.")
            (self.iree_ms,) = taken.times
        calls = min(math.ceil(_ROUND_MS / self.iree_ms), math.ceil(_SLOW_ROUND_MS / peer_ms))
        return math.ceil(max(_LEAST_CALLS, calls) / group) * group

    def _iree_plan(self, calls: int) -> dict[str, Any]:
        """As many calls in one context, since peers have one."""
        if "generations" in self.plan:
            changes = {"generations": calls, "warm_up": WARM_UP_CALLS}
        else:
            changes = {"calls": calls, "warm_up_calls": WARM_UP_CALLS, "devices": self.plan["devices"][:1]}
        return {**self.plan, **changes, "outputs": ""}

    def _require_going_on(self) -> None:
        if self.session.cancelled.is_set():
            raise WaitCancelledError("cancelled in the first round of a peer")

    def _expected(self) -> Expected:
        """What every peer should compute; its contractions are never narrowed."""
        arrays = [array for program in self.build.programs for array in program.outputs]
        if self.build.host.get("post"):
            arrays = list(self.build.host_outputs)
        return Expected(self.folder, arrays, limits(arrays), gradients=self.build.kind == "training")


def _iree_times(text: str, _seconds: float) -> tuple[float, ...]:
    """The median of all calls, or generations; one figure, since a log of thousands of calls is of no use."""
    answer = json.loads(text)
    if "host_ms" in answer:
        # Stages run in parallel: a call has no time of its own.
        times = [answer["total_s"] * _MS / answer["calls"]]
    elif "generations" in answer:
        times = [first + sum(rest) for first, rest in zip(answer["prefill_ms"], answer["decode_ms"], strict=True)]
    else:
        times = [value for context in answer["call_ms"] for value in context]
    return (statistics.median(times),)
