"""How fast IREE is beside torch and onnxruntime, on the same machine, in the same minutes, on the same model.

A round is a process start with a warm-up of its own: of IREE's measuring program, or of a script that calls the peer.
Both make the same number of calls, and the median call stands for the round. Rounds are taken in blocks of four,
A B B A or B A A B by the fall of a coin, and blocks with a disturbed round are replaced (`engine/rounds/blocks.py`);
`peers.py` says what is made of them. Peers run on the CPU, whatever IREE runs on.

Before its blocks, each peer is tried: its outputs must be those of torch eager that lie in the build folder, within
the tolerance that IREE's own were held to before.
"""

from __future__ import annotations

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
from iree_gauntlet.results import shorten
from iree_gauntlet.steps import Command, Step
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.agreement import agreement, limits
from iree_gauntlet.torch_models.build_folder import Build, read_build, read_outputs, tensors
from iree_gauntlet.torch_models.peers import BLOCKS, Peer, judged, shown
from iree_gauntlet.torch_models.torch_python import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.engine.session import Session


_WARM_UP_CALLS = 1
_TRIAL_CALLS = 3
_LEAST_CALLS = 3
# The calls of a round take so long in IREE, and at most so long in a peer that is much slower.
_ROUND_MS = 500.0
_SLOW_ROUND_MS = 5000.0
_TRIAL = "trial."
_MS = 1000.0
# Code that torch.compile makes, kept from round to round: a process's TMPDIR does not outlive it.
_CODE = "inductor"
_TORCH = {"torch": {"torch eager": "eager", "torch.compile": "compile"}, "torch-eager": {"torch eager": "eager"}}


@dataclass(frozen=True, slots=True)
class AgainstPlace:
    """Where peers run, and what they are told.

    Attributes:
        builder: what the builder was told: torch builds the same model again.
        torch_python: a Python that has torch.
        env: variables of the peers' processes; those of IREE's stand in its own command.
        replace_disturbed: whether a block with a disturbed round is no evidence.
    """

    builder: Mapping[str, Any]
    torch_python: str
    env: tuple[tuple[str, str], ...] = ()
    replace_disturbed: bool = True


def iree_rounds(step: Step, command: Command) -> Measurement:
    """Rounds of IREE's measuring programs, of any kind of model.

    Args:
        step: the benchmark step.
        command: of a measuring program; its last word is the file of its plan.
    """
    return Measurement(step, command, "the measuring program", _iree_times, gpu_of(step))


def measure(
    session: Session[Any], names: Sequence[str], iree: Measurement, build: Path, place: AgainstPlace, seed: int
) -> list[Peer]:
    """Measures peers beside IREE; blocks go into the log as they are taken.

    A peer that cannot be measured is one with a reason, and the others go on. One that was cut short is left out.

    Args:
        session: what it runs in.
        names: `torch`, which is eager and `torch.compile`, or `torch-eager`, and `onnxruntime`.
        iree: as `iree_rounds` gives it. The plan is written again for each peer, with its number of calls.
        build: folder of the built model.
        place: where peers run.
        seed: of the coins that choose the order of each block.

    Raises:
        GauntletError: IREE cannot be measured, or the build folder cannot be read.
    """
    taker = BlockTaker(session, replace_disturbed=place.replace_disturbed)
    own = _Rounds(iree, json.loads(Path(iree.command.argv[-1]).read_text(encoding="utf-8")))
    peers = _Peers(session, own, build, read_build(build), place, taker, seed)
    found: list[Peer] = []
    try:
        for name, peer in peers.peers(names):
            measured = peers.against(name, peer)
            if session.cancelled.is_set():
                break
            found.append(measured)
            session.progress.message(*shown([measured]))
    except WaitCancelledError:
        return found
    return found


@dataclass(frozen=True, slots=True)
class _Rounds:
    """How rounds of one side are started, but for their plan."""

    measurement: Measurement
    plan: Mapping[str, Any]

    def with_plan(self, home: Path, name: str, changes: Mapping[str, Any]) -> Measurement:
        """Rounds by a plan that is written into a folder, where their logs go too."""
        path = home / f"{name}.json"
        write_atomic(path, json.dumps({**self.plan, **changes}, indent=1))
        plain = self.measurement
        command = replace(plain.command, argv=(*plain.command.argv[:-1], str(path)), cwd=str(home))
        return replace(plain, step=replace(plain.step, folder=str(home)), command=command)


@dataclass(slots=True)
class _Peers:
    """What all peers of a model have in common."""

    session: Session[Any]
    iree: _Rounds
    folder: Path
    build: Build
    place: AgainstPlace
    taker: BlockTaker
    seed: int
    iree_ms: float = 0.0

    def peers(self, names: Sequence[str]) -> Iterator[tuple[str, _Rounds]]:
        """The peers that are asked for, by name."""
        place = self.place
        plan = {"build": str(self.folder), "builder": dict(place.builder)}
        # Those of `torch` are all of torch's.
        for name in (name for name in names if name != "torch-eager" or "torch" not in names):
            if name in _TORCH:
                for peer, mode in _TORCH[name].items():
                    asked = {**plan, "mode": mode, "compile_threads": None}
                    yield (
                        peer,
                        self._script(peer, place.torch_python, "iree_gauntlet.torch_models.measure_torch", asked),
                    )
            else:
                # Host modules run in torch, and onnxruntime beside them then.
                own = importlib.util.find_spec(name) is not None and not self.build.has_host_modules
                python = sys.executable if own else place.torch_python
                yield name, self._script(name, python, "iree_gauntlet.torch_models.measure_onnx", plan)

    def _script(self, name: str, python: str, module: str, plan: Mapping[str, Any]) -> _Rounds:
        env = (*self.place.env, ("TORCHINDUCTOR_CACHE_DIR", str(self._home(name) / _CODE)))
        # The plan takes the place of the last word.
        command = Command((*running(python, module), ""), "", env)
        return _Rounds(Measurement(self.iree.measurement.step, command, name, _peer_times), plan)

    def against(self, name: str, peer: _Rounds) -> Peer:
        """One peer: a trial, then its blocks."""
        home = self._home(name)
        outputs = home / "outputs"
        outputs.mkdir(parents=True, exist_ok=True)
        try:
            return self._compared(name, home, peer, outputs)
        finally:
            # Gradients and code of a large model; nobody reads them any more.
            shutil.rmtree(outputs)
            shutil.rmtree(home / _CODE, ignore_errors=True)

    def _home(self, name: str) -> Path:
        return Path(self.iree.measurement.step.folder) / "against" / name.replace(" ", "-")

    def _compared(self, name: str, home: Path, peer: _Rounds, outputs: Path) -> Peer:
        self.session.progress.status(f"{name}: first round")
        failure, text = self._tried(peer.with_plan(home, "trial", {**_timing(_TRIAL_CALLS), "outputs": str(outputs)}))
        if failure:
            return Peer(name, reason=failure)
        answer = _answer(text)
        found = Peer(
            name,
            version=str(answer["version"]),
            first_call_ms=float(answer["first_call_ms"]),
            compile_s=answer["compile_s"],
        )
        wrong = self._wrong(outputs, answer["outputs"])
        if wrong:
            return replace(found, reason=shorten(f"its outputs are not those of torch eager: {wrong}"))
        calls = self._calls(home, statistics.median(answer["call_ms"]))
        pair = Pair(
            f"{self.iree.measurement.step.chain} against {name}",
            self.iree.with_plan(home, "iree", self._iree_plan(calls)),
            # Compiled before: torch.compile's processes would be work beside what is measured.
            peer.with_plan(home, "peer", {**_timing(calls), "outputs": "", "compile_threads": 1}),
        )
        evidence = PairEvidence()
        while evidence.count < BLOCKS and self.taker.goes_on(evidence):
            self.session.progress.status(f"{name}: block {evidence.count + 1} of {BLOCKS}")
            self.taker.take(pair.block(AB, evidence, self.seed), evidence)
        return judged(replace(found, calls=calls), evidence)

    def _calls(self, home: Path, peer_ms: float) -> int:
        """How many calls a round has, for both sides: decided before any of them is taken."""
        group = int(self.iree.plan.get("in_flight", 1))
        if not self.iree_ms:
            tried = self.iree.with_plan(home, "iree-trial", self._iree_plan(_TRIAL_CALLS * group))
            failure, text = self._tried(tried)
            if failure:
                raise GauntletError(f"{tried.step.chain}: {failure}", f"Its log is in {home}.")
            (self.iree_ms,) = tried.read(text, 0.0)
        calls = min(math.ceil(_ROUND_MS / self.iree_ms), math.ceil(_SLOW_ROUND_MS / peer_ms))
        return math.ceil(max(_LEAST_CALLS, calls) / group) * group

    def _iree_plan(self, calls: int) -> dict[str, Any]:
        """As many calls in one context, since peers have one."""
        if "generations" in self.iree.plan:
            return {"generations": calls, "warm_up": _WARM_UP_CALLS, "outputs": ""}
        return {**_timing(calls), "devices": self.iree.plan["devices"][:1], "outputs": ""}

    def _tried(self, measurement: Measurement) -> tuple[str, str]:
        """Why a round failed, and what it wrote; it is no evidence, so that others may run beside it."""
        with self.session.quiet(measurement.device, exclusive=False):
            taken = take_round(measurement, self.session.processes, _TRIAL)
        if self.session.cancelled.is_set():
            raise WaitCancelledError("cancelled in the first round of a peer")
        return taken.failure, "" if taken.failure else self.session.processes.stdout(measurement.step, _TRIAL)

    def _wrong(self, outputs: Path, items: Sequence[Mapping[str, str]]) -> str:
        """Where a peer's outputs are not those of torch eager; empty where they are."""
        build = self.build
        expected = [array for program in build.programs for array in program.outputs]
        if build.host.get("post"):
            expected = list(build.host_outputs)
        found = read_outputs(items, outputs)
        # Peers' contractions are never narrowed.
        allowed = limits(expected)
        gradients = build.kind == "training"
        return agreement(found, tensors(self.folder, expected), allowed, gradients=gradients).problem


def _timing(calls: int) -> dict[str, Any]:
    return {"calls": calls, "warm_up_calls": _WARM_UP_CALLS}


def _answer(text: str) -> dict[str, Any]:
    """What a script found: its last line; models may print before it."""
    found: dict[str, Any] = json.loads(text.rstrip().splitlines()[-1])
    return found


def _peer_times(text: str, _seconds: float) -> tuple[float, ...]:
    return (statistics.median(_answer(text)["call_ms"]),)


def _iree_times(text: str, _seconds: float) -> tuple[float, ...]:
    """The median of all calls, or generations; one figure, since a log of thousands of calls is of no use."""
    answer = _answer(text)
    if "host_ms" in answer:
        # Stages run beside each other: a call has no time of its own.
        times = [answer["total_s"] * _MS / answer["calls"]]
    elif "generations" in answer:
        times = [first + sum(rest) for first, rest in zip(answer["prefill_ms"], answer["decode_ms"], strict=True)]
    else:
        times = [value for context in answer["call_ms"] for value in context]
    return (statistics.median(times),)
