"""How fast IREE is next to torch and onnxruntime, on the same machine, in the same minutes, on the same model.

A round is a process start with a warm-up of its own, of IREE's measuring program or of a script that calls the peer,
and both make the same number of calls. Peers run on the CPU, whatever IREE runs on. Before its rounds a peer is
tried: its outputs must be those of torch eager in the build folder, within the tolerance that IREE's own were held
to.

The number of blocks is fixed before anything is measured and they are looked at once, so that the interval needs no
correction for looking earlier. It is the exact one of `paired.py`, from the log ratios of blocks: six of them are the
fewest that have a two-sided interval at 95 % (five have 93.75 %, 1 − 2/2⁵). The words are those of `compare`, by its
margins.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.engine.rounds.blocks import (
    AB,
    BlockTaker,
    Pair,
    PairEvidence,
    PlannedBlock,
    RoundsEvidence,
    make_seed,
)
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, gpu_of, take_round
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, TimeVerdict, compare, compare_log_ratios
from iree_gauntlet.measuring.statistics.rounds import SequentialPlan
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.sweep_record import Ratio
from iree_gauntlet.results import shorten
from iree_gauntlet.torch_models.agreement import compare_tensors, find_limits
from iree_gauntlet.torch_models.build_files import Array, BuildRecord, PeerPlan, PeerProgram, read_build, read_tensors
from iree_gauntlet.torch_models.torch_chain import CallTimes, make_torch_words, write_planned_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.measuring.statistics.rounds import Round
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.steps import Command, Step
    from iree_gauntlet.torch_models.formats import Tolerance


BLOCKS = 6
# At a level of 5 %.
_ONE_LOOK = SequentialPlan(0.05, (BLOCKS,), (1.0,))
# What IREE is where the peer is that.
_WORDS = {
    TimeVerdict.SLOWER: "faster",
    TimeVerdict.FASTER: "slower",
    TimeVerdict.SAME: "same",
    TimeVerdict.INCONCLUSIVE: "inconclusive",
}
# Of the lots that choose the order of rounds: the same for everybody, so that a run can be repeated.
SEED = 1
TRIAL_CALLS = 3
_WARM_UP_CALLS = 1
# Code that torch.compile makes, kept from round to round: a process's TMPDIR does not outlive it.
CODE_FOLDER = "inductor"
_LEAST_CALLS = 3
# The calls of a round take so long in IREE, and at most so long in a peer that is much slower.
_ROUND_MS = 500.0
_SLOW_ROUND_MS = 5000.0
# The kind of blocks that go over all programs of a point and back, and how often a round of them is taken.
_INTERLEAVED = "micro"
_ATTEMPTS = 3
# The start of torch in their middle has this name in the log; it is no label of a recipe.
_TORCH_ROUND = "torch "
_MS = 1000.0
# The peers by what asks for them, and how torch runs where a peer is that.
_PEERS = {
    "torch": {"torch eager": "eager", "torch.compile": "compile"},
    "torch-eager": {"torch eager": "eager"},
    "onnxruntime": {"onnxruntime": ""},
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer next to IREE; a call is a generation where the model is a generative one.

    Attributes:
        name: `torch eager`, `torch.compile` or `onnxruntime`.
        call_ms: median over its rounds of their median call; None without rounds that count.
        ratio: its time / IREE's; above 1 IREE is faster. None where there is nothing to compare.
        low, high: interval of the ratio at 95 %; None where there are too few blocks for one.
        word: what IREE is: faster, slower, same or inconclusive; empty without a ratio.
        compile_s: what loading and compiling took, the first call included where that is what compiles; None where
            nothing is compiled.
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


def judge_peer(peer: Peer, evidence: PairEvidence) -> Peer:
    """The peer with what its blocks say: A is IREE, B the peer."""
    peer = replace(peer, blocks=len(evidence.blocks), replaced=evidence.replaced)
    if evidence.failure:
        return replace(peer, reason=evidence.failure)
    if not evidence.blocks:
        return replace(peer, reason=f"every block was disturbed; for example: {evidence.main_disturbance}")
    found = compare(evidence.blocks, _ONE_LOOK)
    ratio = _make_ratio(found)
    few = f"{found.blocks} of {BLOCKS} blocks; the others were disturbed, for example: {evidence.main_disturbance}"
    return replace(
        peer,
        call_ms=_find_median([round_ for block in evidence.blocks for round_ in block.b]),
        iree_ms=_find_median([round_ for block in evidence.blocks for round_ in block.a]),
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        word=ratio.word,
        reason=few if ratio.low is None else found.reason,
    )


def _make_ratio(found: Comparison) -> Ratio:
    """What a comparison of two programs says of the first one; there may be too few blocks for an interval."""
    low, high = (found.low, found.high) if math.isfinite(found.high) else (None, None)
    return Ratio(found.ratio, low, high, _WORDS[found.verdict])


def describe_peer(peer: Peer) -> str:
    """The line about it."""
    if peer.ratio is None or peer.call_ms is None:
        return f"{_make_title(peer)}: no ratio: {peer.reason}"
    own = f", IREE {_format_time(peer.iree_ms)}" if peer.iree_ms is not None else ""
    if peer.low is None or peer.high is None:
        said = f"no verdict, {peer.ratio:.2f} × IREE's time ({peer.reason})"
    elif peer.word == "slower":
        said = f"IREE takes {1 / peer.ratio:.2f} × as long ({1 / peer.high:.2f} to {1 / peer.low:.2f})"
    else:
        words = {"faster": "IREE is {:.2f} × as fast", "same": "IREE is as fast, {:.2f} ×"}
        text = words.get(peer.word, "no verdict, {:.2f} × IREE's time").format(peer.ratio)
        said = f"{text} ({peer.low:.2f} to {peer.high:.2f})"
    return f"{_make_title(peer)} {_format_time(peer.call_ms)} a call (median){own}: {said}"


def _make_title(peer: Peer) -> str:
    if not peer.version:
        return peer.name
    product, _, mode = peer.name.replace(".", " ").partition(" ")
    return " ".join(filter(None, (product, peer.version, mode)))


def _format_time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def _find_median(rounds: Sequence[Round]) -> float:
    return statistics.median(round_.location() for round_ in rounds)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a program should compute."""

    folder: Path
    arrays: Sequence[Array]
    allowed: Tolerance | Sequence[Tolerance]
    gradients: bool = False

    def find_problem(self, outputs: Path, arrays: Sequence[Array]) -> str:
        """Where outputs are other ones; empty where they are not."""
        actual, expected = read_tensors(outputs, arrays), read_tensors(self.folder, self.arrays)
        problem = compare_tensors(actual, expected, self.allowed, gradients=self.gradients).problem
        return f"its outputs are not those of torch eager: {problem}" if problem else ""


@dataclass(frozen=True, slots=True)
class PeerModel(Recorded):
    """What `measure_torch.py` and `measure_onnx.py` say of a model; `error`: where it cannot be measured."""

    name: str = ""
    error: str = ""
    call_ms: tuple[float, ...] = ()
    first_call_ms: float | None = None
    compile_s: float | None = None
    outputs: tuple[Array, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True)
class PeerAnswer(Recorded):
    """What they say of all models of their plan."""

    version: str
    models: tuple[PeerModel, ...]

    @classmethod
    def read(cls, text: str) -> PeerAnswer:
        """The last line; models may print before it."""
        return cls.from_dict(json.loads(text.rstrip().splitlines()[-1]))


def _read_medians(text: str, _seconds: float) -> tuple[float, ...]:
    models = PeerAnswer.read(text).models
    for failed in models:
        if failed.error:
            raise GauntletError(f"{failed.name}: {failed.error}")
    return tuple(statistics.median(item.call_ms) for item in models)


@dataclass(frozen=True, slots=True)
class PeerScript:
    """`measure_torch.py` or `measure_onnx.py`, but for its plan.

    Attributes:
        code: folder of code that torch.compile makes, which stays for later rounds.
    """

    step: Step
    tool: str
    python: str
    module: str
    code: Path
    env: tuple[tuple[str, str], ...] = ()

    def plan_rounds(
        self, name: str, programs: Sequence[PeerProgram], *, outputs: str = "", compile_threads: int | None = 1
    ) -> Measurement:
        """Rounds by a plan of a name: the median call of each program, in their order.

        What is measured was compiled before: torch.compile's processes would be work next to it.
        """
        plan = PeerPlan(tuple(programs), _WARM_UP_CALLS, compile_threads, outputs).as_dict()
        words = make_torch_words(self.python, self.module)
        env = (*self.env, ("TORCHINDUCTOR_CACHE_DIR", str(self.code)))
        command = write_planned_command(self.step, words, plan, name, env)
        return Measurement(self.step, command, self.tool, _read_medians)

    def try_programs(
        self,
        session: Session[EventLog],
        name: str,
        log: str,
        programs: Sequence[PeerProgram],
        expected: Sequence[Expected],
    ) -> list[PeerModel]:
        """What becomes of each program in one start of a peer; it is no evidence, so that others may run meanwhile."""
        with tempfile.TemporaryDirectory(prefix="outputs", dir=self.step.folder) as outputs:
            rounds = self.plan_rounds(name, programs, outputs=outputs, compile_threads=None)
            with session.quiet(exclusive=False):
                taken = take_round(replace(rounds, read=lambda _text, _seconds: ()), session.processes, log)
            if taken.failure:
                return [PeerModel(error=taken.failure)] * len(expected)
            answer = PeerAnswer.read(session.processes.stdout(self.step, log))
            tried = []
            for found, wanted in zip(answer.models, expected, strict=True):
                problem = found.error or wanted.find_problem(Path(outputs), found.outputs)
                tried.append(replace(found, error=shorten(problem), version=answer.version))
        return tried


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


def make_iree_rounds(step: Step, command: Command) -> Measurement:
    """Rounds of IREE's measuring programs, of any kind of model."""
    return Measurement(step, command, "the measuring program", _read_iree_median, gpu_of(step))


def measure(
    session: Session[EventLog], names: Sequence[str], iree: Measurement, build: Path, place: AgainstPlace
) -> list[Peer]:
    """Measures peers next to IREE; blocks go into the log as they are taken.

    A peer that cannot be measured is one with a reason, and the others go on. One that was cut short is left out.
    """
    taker = BlockTaker(session, replace_disturbed=place.replace_disturbed)
    plan = json.loads(Path(iree.command.argv[-1]).read_text(encoding="utf-8"))
    peers = _Peers(session, iree, plan, build, read_build(build), place, taker)
    found: list[Peer] = []
    with contextlib.suppress(WaitCancelledError):
        for script, program in peers.list_peers(names):
            measured = peers.measure(script, program)
            if session.cancelled.is_set():
                break
            found.append(measured)
            session.progress.message(describe_peer(measured))
    return found


@dataclass(slots=True)
class _Peers:
    """What all peers of a model have in common."""

    session: Session[EventLog]
    iree: Measurement
    plan: Mapping[str, Any]
    folder: Path
    build: BuildRecord
    place: AgainstPlace
    taker: BlockTaker
    iree_ms: float = 0.0

    def list_peers(self, names: Sequence[str]) -> Iterator[tuple[PeerScript, PeerProgram]]:
        """The peers that are asked for."""
        # Those of `torch` are all of torch's.
        for asked in (name for name in names if name != "torch-eager" or "torch" not in names):
            for name, mode in _PEERS[asked].items():
                # Host modules run in torch, and onnxruntime with them then.
                torch = bool(mode) or self.build.has_host_modules or importlib.util.find_spec(name) is None
                python = self.place.torch_python if torch else sys.executable
                home = Path(self.iree.step.folder) / "against" / name.replace(" ", "-")
                step, module = replace(self.iree.step, folder=str(home)), "measure_torch" if mode else "measure_onnx"
                script = PeerScript(step, name, python, module, home / CODE_FOLDER, self.place.env)
                yield script, PeerProgram(name, self.folder, dict(self.place.builder), mode, calls=TRIAL_CALLS)

    def measure(self, script: PeerScript, program: PeerProgram) -> Peer:
        """One peer: a trial, then its blocks."""
        home, name, session = Path(script.step.folder), script.tool, self.session
        home.mkdir(parents=True, exist_ok=True)
        session.progress.status(f"{name}: first round")
        # The host's last module has the last word.
        arrays = [array for each in self.build.programs for array in each.outputs]
        arrays = list(self.build.host_outputs) or arrays
        # What every peer should compute; its contractions are never narrowed.
        expected = Expected(self.folder, arrays, find_limits(arrays), gradients=self.build.kind == "training")
        try:
            (tried,) = script.try_programs(session, "trial", "trial.", [program], [expected])
            self._require_going_on()
            found = Peer(name, version=tried.version, first_call_ms=tried.first_call_ms, compile_s=tried.compile_s)
            if tried.error:
                return replace(found, reason=tried.error)
            calls = self._count_calls(home, statistics.median(tried.call_ms))
            ours = self._plan_iree(home, "iree", calls)
            theirs = script.plan_rounds("peer", [replace(program, calls=calls)])
            pair = Pair(f"{self.iree.step.chain} against {name}", ((),), lambda _: (ours, theirs))
            evidence = PairEvidence()
            while evidence.count < BLOCKS and self.taker.goes_on(evidence):
                session.progress.status(f"{name}: block {evidence.count + 1} of {BLOCKS}")
                self.taker.take(pair.block(AB, evidence, SEED, ()), evidence)
            return judge_peer(replace(found, calls=calls), evidence)
        finally:
            # Code of a large model; nobody reads it any more.
            shutil.rmtree(home / CODE_FOLDER, ignore_errors=True)

    def _count_calls(self, home: Path, peer_ms: float) -> int:
        """How many calls a round has, for both sides: decided before any of them is taken."""
        group = int(self.plan.get("in_flight", 1))
        if not self.iree_ms:
            trial = self._plan_iree(home, "iree-trial", TRIAL_CALLS * group)
            with self.session.quiet(trial.device, exclusive=False):
                taken = take_round(trial, self.session.processes, "trial.")
            self._require_going_on()
            if taken.failure:
                raise GauntletError(f"{trial.step.chain}: {taken.failure}", f"Its log is in {home}.")
            (self.iree_ms,) = taken.times
        calls = min(math.ceil(_ROUND_MS / self.iree_ms), math.ceil(_SLOW_ROUND_MS / peer_ms))
        return math.ceil(max(_LEAST_CALLS, calls) / group) * group

    def _plan_iree(self, home: Path, name: str, calls: int) -> Measurement:
        """Rounds of IREE with as many calls in one context, since peers have one."""
        if "generations" in self.plan:
            changes = {"generations": calls, "warm_up": _WARM_UP_CALLS}
        else:
            changes = {"calls": calls, "warm_up_calls": _WARM_UP_CALLS, "devices": self.plan["devices"][:1]}
        step, command = replace(self.iree.step, folder=str(home)), self.iree.command
        plan = {**self.plan, **changes, "outputs": ""}
        planned = write_planned_command(step, command.argv[:-1], plan, name, command.env)
        return replace(self.iree, step=step, command=planned)

    def _require_going_on(self) -> None:
        if self.session.cancelled.is_set():
            raise WaitCancelledError("cancelled in the first round of a peer")


def _read_iree_median(text: str, _seconds: float) -> tuple[float, ...]:
    """The median of all calls, or generations; one figure, since a log of thousands of calls is of no use."""
    answer = CallTimes.from_dict(json.loads(text))
    # Stages run in parallel: a call has no time of its own.
    return (statistics.median(answer.times_ms) if answer.host_ms is None else answer.total_s * _MS / answer.calls,)


@dataclass(frozen=True, slots=True)
class TorchRound:
    """The start of torch in the middle of a block."""

    programs: Sequence[str]
    start: Callable[[Sequence[str]], Measurement]


@dataclass(slots=True)
class PointEvidence(RoundsEvidence):
    """What was measured of a point.

    Attributes:
        times: ms by name of a program, one item for each block: two rounds of IREE, one of torch.
    """

    times: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    marked: int = 0


def take_interleaved(
    taker: BlockTaker,
    chain: str,
    iree: Mapping[str, Measurement],
    torch: TorchRound | None,
    progress: Callable[[int], None],
) -> PointEvidence:
    """Takes all blocks of a point; fewer where a program fails, the machine is too busy, or it is cut short.

    `progress` is called with the number of each block before it begins, from 1 on.
    """
    found = PointEvidence()
    # It draws lots for orders, and nothing secret.
    lots = random.Random(make_seed(SEED, chain, _INTERLEAVED))  # noqa: S311
    while found.count < BLOCKS and taker.goes_on(found):
        progress(found.count + 1)
        order, torch_order = list(iree), list(torch.programs) if torch else []
        lots.shuffle(order)
        lots.shuffle(torch_order)
        there = [(name, iree[name]) for name in order]
        middle = [(_TORCH_ROUND, torch.start(torch_order))] if torch else []
        block = PlannedBlock(chain, _INTERLEAVED, order, [*there, *middle, *there[::-1]], _ATTEMPTS)
        times: dict[str, tuple[float, ...]] = {}
        for name, taken in taker.take(block, found):
            found.marked += bool(taken.disturbed)
            names = torch_order if name == _TORCH_ROUND else (name,)
            for each, spent in zip(names, taken.times, strict=True):
                times[each] = (*times.get(each, ()), spent)
        for name, values in times.items():
            found.times.setdefault(name, []).append(values)
    return found


def speedup(blocks: PointEvidence, name: str, over: str) -> Ratio | None:
    """How many times as fast a program is as another one; None without times."""
    own, other = blocks.times.get(name), blocks.times.get(over)
    if not own or not other:
        return None
    theirs, mine = (np.array([statistics.fmean(map(math.log, block)) for block in each]) for each in (other, own))
    return _make_ratio(compare_log_ratios(theirs - mine, _ONE_LOOK))


def median_ms(blocks: PointEvidence, name: str) -> float | None:
    """Median over all rounds of a program; None without any."""
    times = [time for block in blocks.times.get(name, ()) for time in block]
    return statistics.median(times) if times else None
