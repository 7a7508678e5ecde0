"""Comparison of IREE's speed with torch and onnxruntime: same machine, same minutes, same model.

A round is a process start, with a warm-up, of IREE's measuring program or of a script that calls the peer; both make
the same number of calls. Peers always run on the CPU, even if IREE does not. Before its rounds, a peer has a trial: its
outputs must equal torch eager's outputs in the build folder, within the tolerance that applied to IREE's outputs.

The number of blocks is fixed before measuring, and there is only one look, so the interval needs no correction for
several looks. It is the exact interval of `paired.py`, from the log ratios of blocks. Six blocks are the fewest with a
two-sided interval at 95 % (five give 93.75 %, 1 − 2/2⁵). Verdicts and margins are those of `compare`.
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

from iree_gauntlet.engine.rounds.blocks import AB, BlockPlan, BlockRunner, Pair, PairSamples, RoundSamples, make_seed
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, get_gpu, run_round
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, TimeVerdict, compare, compare_log_ratios
from iree_gauntlet.measuring.statistics.rounds import SequentialPlan
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.sweep_record import Ratio
from iree_gauntlet.results import shorten
from iree_gauntlet.torch_models.agreement import compare_tensors, find_limits
from iree_gauntlet.torch_models.build_files import Array, BuildRecord, PeerPlan, PeerProgram, read_build, read_tensors
from iree_gauntlet.torch_models.torch_chain import CallTimes, make_torch_argv, write_planned_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.measuring.statistics.rounds import Round
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.steps import Command, Step
    from iree_gauntlet.torch_models.formats import Tolerance


BLOCKS = 6
# One look at all blocks, at a level of 5 %.
_SINGLE_ANALYSIS = SequentialPlan(0.05, (BLOCKS,), (1.0,))
# IREE's verdict, by the peer's verdict.
_IREE_VERDICTS = {
    TimeVerdict.SLOWER: "faster",
    TimeVerdict.FASTER: "slower",
    TimeVerdict.SAME: "same",
    TimeVerdict.INCONCLUSIVE: "inconclusive",
}
# The seed of the rounds' random order is constant, so that a run can be repeated.
SEED = 1
TRIAL_CALLS = 3
_WARM_UP_CALLS = 1
# The cache of torch.compile's code; all rounds share this folder, because a process's TMPDIR ends with the process.
CODE_FOLDER = "inductor"
_MIN_CALLS = 3
# The duration of a round's calls in IREE, and the maximum duration in a peer that is much slower.
_ROUND_MS = 500.0
_SLOW_ROUND_MS = 5000.0
# The kind of blocks that run all programs of a point forth and back, and how often such a round may run.
_BLOCK_KIND = "micro"
_MAX_TRIES = 3
# The log's name for torch's start in the middle of such a block; no recipe has this label.
_TORCH_ROUND_NAME = "torch "
_MS_PER_S = 1000.0
# The peers of each option, with torch's mode; empty for peers other than torch.
_PEER_MODES = {
    "torch": {"torch eager": "eager", "torch.compile": "compile"},
    "torch-eager": {"torch eager": "eager"},
    "onnxruntime": {"onnxruntime": ""},
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's comparison with IREE; for a generative model, a call is a generation.

    Attributes:
        name: `torch eager`, `torch.compile` or `onnxruntime`.
        call_ms: median over the peer's rounds of each round's median call; None without valid rounds.
        ratio: the peer's time / IREE's time; above 1, IREE is faster. None if there is nothing to compare.
        low, high: interval of the ratio at 95 %; None if there are too few blocks for one.
        word: IREE's verdict: faster, slower, same or inconclusive; empty without a ratio.
        compile_s: time of loading and compiling, including a first call that compiles; None if nothing is compiled.
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


def judge_peer(peer: Peer, evidence: PairSamples) -> Peer:
    """Return the peer with the result of its blocks: A is IREE, B the peer."""
    peer = replace(peer, blocks=len(evidence.blocks), replaced=evidence.replacement_count)
    if evidence.failure:
        return replace(peer, reason=evidence.failure)
    if not evidence.blocks:
        return replace(peer, reason=f"every block was disturbed; for example: {evidence.main_disturbance}")
    comparison = compare(evidence.blocks, _SINGLE_ANALYSIS)
    ratio = _make_ratio(comparison)
    few_blocks_reason = (
        f"{comparison.blocks} of {BLOCKS} blocks; the others were disturbed, for example: {evidence.main_disturbance}"
    )
    return replace(
        peer,
        call_ms=_compute_median([round_ for block in evidence.blocks for round_ in block.b]),
        iree_ms=_compute_median([round_ for block in evidence.blocks for round_ in block.a]),
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        word=ratio.word,
        reason=few_blocks_reason if ratio.low is None else comparison.reason,
    )


def _make_ratio(comparison: Comparison) -> Ratio:
    """Return the first program's ratio and verdict, without an interval if there are too few blocks."""
    low, high = (comparison.low, comparison.high) if math.isfinite(comparison.high) else (None, None)
    return Ratio(comparison.ratio, low, high, _IREE_VERDICTS[comparison.verdict])


def describe_peer(peer: Peer) -> str:
    """Return the line that reports a peer."""
    if peer.ratio is None or peer.call_ms is None:
        return f"{_format_title(peer)}: no ratio: {peer.reason}"
    iree_text = f", IREE {_format_time(peer.iree_ms)}" if peer.iree_ms is not None else ""
    if peer.low is None or peer.high is None:
        summary = f"no verdict, {peer.ratio:.2f} × IREE's time ({peer.reason})"
    elif peer.word == "slower":
        summary = f"IREE takes {1 / peer.ratio:.2f} × as long ({1 / peer.high:.2f} to {1 / peer.low:.2f})"
    else:
        templates = {"faster": "IREE is {:.2f} × as fast", "same": "IREE is as fast, {:.2f} ×"}
        text = templates.get(peer.word, "no verdict, {:.2f} × IREE's time").format(peer.ratio)
        summary = f"{text} ({peer.low:.2f} to {peer.high:.2f})"
    return f"{_format_title(peer)} {_format_time(peer.call_ms)} a call (median){iree_text}: {summary}"


def _format_title(peer: Peer) -> str:
    if not peer.version:
        return peer.name
    product, _, mode = peer.name.replace(".", " ").partition(" ")
    return " ".join(filter(None, (product, peer.version, mode)))


def _format_time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def _compute_median(rounds: Sequence[Round]) -> float:
    return statistics.median(round_.compute_location() for round_ in rounds)


@dataclass(frozen=True, slots=True)
class ExpectedOutputs:
    """The expected outputs of a program."""

    folder: Path
    arrays: Sequence[Array]
    tolerance: Tolerance | Sequence[Tolerance]
    gradients: bool = False

    def find_problem(self, outputs: Path, arrays: Sequence[Array]) -> str:
        """Return a message with the first difference of outputs; empty if they agree."""
        actual, expected = read_tensors(outputs, arrays), read_tensors(self.folder, self.arrays)
        problem = compare_tensors(actual, expected, self.tolerance, gradients=self.gradients).problem
        return f"its outputs are not those of torch eager: {problem}" if problem else ""


@dataclass(frozen=True, slots=True)
class PeerModelResult(Recorded):
    """A model's result from `measure_torch.py` or `measure_onnx.py`; `error` if it cannot be measured."""

    name: str = ""
    error: str = ""
    call_ms: tuple[float, ...] = ()
    first_call_ms: float | None = None
    compile_s: float | None = None
    outputs: tuple[Array, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True)
class PeerResponse(Recorded):
    """The results for all models of a peer's plan."""

    version: str
    models: tuple[PeerModelResult, ...]

    @classmethod
    def read(cls, text: str) -> PeerResponse:
        """Read the last line of a script's output; models may print before it."""
        return cls.from_dict(json.loads(text.rstrip().splitlines()[-1]))


def _read_medians(text: str, _seconds: float) -> tuple[float, ...]:
    models = PeerResponse.read(text).models
    for model in models:
        if model.error:
            raise GauntletError(f"{model.name}: {model.error}")
    return tuple(statistics.median(model.call_ms) for model in models)


@dataclass(frozen=True, slots=True)
class PeerScript:
    """A run of `measure_torch.py` or `measure_onnx.py`, without its plan.

    Attributes:
        code_folder: cache of torch.compile's code, which later rounds reuse.
    """

    step: Step
    tool: str
    python: str
    module: str
    code_folder: Path
    env: tuple[tuple[str, str], ...] = ()

    def plan_rounds(
        self, name: str, programs: Sequence[PeerProgram], *, outputs: str = "", compile_threads: int | None = 1
    ) -> Measurement:
        """Return rounds with the plan `name`, which give the median call of each program, in the programs' order.

        Programs are compiled before, because torch.compile's processes would disturb the measurement.
        """
        plan = PeerPlan(tuple(programs), _WARM_UP_CALLS, compile_threads, outputs).as_dict()
        argv = make_torch_argv(self.python, self.module)
        env = (*self.env, ("TORCHINDUCTOR_CACHE_DIR", str(self.code_folder)))
        command = write_planned_command(self.step, argv, plan, name, env)
        return Measurement(self.step, command, self.tool, _read_medians)

    def try_programs(
        self,
        session: Session[EventLog],
        name: str,
        log: str,
        programs: Sequence[PeerProgram],
        expected: Sequence[ExpectedOutputs],
    ) -> list[PeerModelResult]:
        """Run each program in one start of a peer; other work may run meanwhile, because the times are not used."""
        with tempfile.TemporaryDirectory(prefix="outputs", dir=self.step.folder) as outputs:
            measurement = self.plan_rounds(name, programs, outputs=outputs, compile_threads=None)
            with session.hold_machine(exclusive=False):
                result = run_round(replace(measurement, read=lambda _text, _seconds: ()), session.processes, log)
            if result.failure:
                return [PeerModelResult(error=result.failure)] * len(expected)
            response = PeerResponse.read(session.processes.stdout(self.step, log))
            models = []
            for model, expected_outputs in zip(response.models, expected, strict=True):
                problem = model.error or expected_outputs.find_problem(Path(outputs), model.outputs)
                models.append(replace(model, error=shorten(problem), version=response.version))
        return models


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """The environment of peers.

    Attributes:
        env: variables of the peers' processes; IREE's command has other variables.
    """

    builder: Mapping[str, Any]
    torch_python: str
    env: tuple[tuple[str, str], ...] = ()
    replace_disturbed: bool = True


def make_iree_rounds(step: Step, command: Command) -> Measurement:
    """Return rounds of IREE's measuring programs, for any kind of model."""
    return Measurement(step, command, "the measuring program", _read_iree_median, get_gpu(step))


def measure_peers(
    session: Session[EventLog], names: Sequence[str], iree: Measurement, build: Path, environment: PeerEnvironment
) -> list[Peer]:
    """Measure peers and IREE in alternation; each block is logged when it is complete.

    A peer that cannot be measured has a reason, and the other peers are still measured. An interrupted peer is omitted.
    """
    taker = BlockRunner(session, replace_disturbed=environment.replace_disturbed)
    plan = json.loads(Path(iree.command.argv[-1]).read_text(encoding="utf-8"))
    peers = _PeerMeasurement(session, iree, plan, build, read_build(build), environment, taker)
    results: list[Peer] = []
    with contextlib.suppress(WaitCancelledError):
        for script, program in peers.list_peers(names):
            peer = peers.measure(script, program)
            if session.cancelled.is_set():
                break
            results.append(peer)
            session.progress.message(describe_peer(peer))
    return results


@dataclass(slots=True)
class _PeerMeasurement:
    """The measurement of a model's peers; all peers share its state."""

    session: Session[EventLog]
    iree: Measurement
    plan: Mapping[str, Any]
    folder: Path
    build: BuildRecord
    environment: PeerEnvironment
    taker: BlockRunner
    iree_ms: float = 0.0

    def list_peers(self, names: Sequence[str]) -> Iterator[tuple[PeerScript, PeerProgram]]:
        """Yield the requested peers."""
        # `torch` includes the peer of `torch-eager`.
        for option in (name for name in names if name != "torch-eager" or "torch" not in names):
            for name, mode in _PEER_MODES[option].items():
                # Host modules need torch, so onnxruntime then runs in torch's Python.
                uses_torch = bool(mode) or self.build.has_host_modules or importlib.util.find_spec(name) is None
                python = self.environment.torch_python if uses_torch else sys.executable
                directory = Path(self.iree.step.folder) / "against" / name.replace(" ", "-")
                step, module = (
                    replace(self.iree.step, folder=str(directory)),
                    "measure_torch" if mode else "measure_onnx",
                )
                script = PeerScript(step, name, python, module, directory / CODE_FOLDER, self.environment.env)
                yield script, PeerProgram(name, self.folder, dict(self.environment.builder), mode, calls=TRIAL_CALLS)

    def measure(self, script: PeerScript, program: PeerProgram) -> Peer:
        """Measure one peer: a trial, then its blocks."""
        directory, name, session = Path(script.step.folder), script.tool, self.session
        directory.mkdir(parents=True, exist_ok=True)
        session.progress.status(f"{name}: first round")
        # If there is a last module on the host, its outputs are the model's outputs.
        arrays = [array for program_record in self.build.programs for array in program_record.outputs]
        arrays = list(self.build.host_outputs) or arrays
        # All peers have the same expected outputs, because peers never narrow contractions.
        expected = ExpectedOutputs(self.folder, arrays, find_limits(arrays), gradients=self.build.kind == "training")
        try:
            (trial,) = script.try_programs(session, "trial", "trial.", [program], [expected])
            self._raise_if_cancelled()
            peer = Peer(name, version=trial.version, first_call_ms=trial.first_call_ms, compile_s=trial.compile_s)
            if trial.error:
                return replace(peer, reason=trial.error)
            calls = self._count_calls(directory, statistics.median(trial.call_ms))
            iree_rounds = self._plan_iree(directory, "iree", calls)
            peer_rounds = script.plan_rounds("peer", [replace(program, calls=calls)])
            pair = Pair(f"{self.iree.step.chain} against {name}", ((),), lambda _: (iree_rounds, peer_rounds))
            evidence = PairSamples()
            while evidence.count < BLOCKS and self.taker.may_continue(evidence):
                session.progress.status(f"{name}: block {evidence.count + 1} of {BLOCKS}")
                self.taker.run(pair.block(AB, evidence, SEED, ()), evidence)
            return judge_peer(replace(peer, calls=calls), evidence)
        finally:
            # Remove the code of a large model, which is not needed any more.
            shutil.rmtree(directory / CODE_FOLDER, ignore_errors=True)

    def _count_calls(self, directory: Path, peer_ms: float) -> int:
        """Return the number of calls of a round, for both sides; the number is fixed before the first round."""
        group = int(self.plan.get("in_flight", 1))
        if not self.iree_ms:
            trial = self._plan_iree(directory, "iree-trial", TRIAL_CALLS * group)
            with self.session.hold_machine(trial.device, exclusive=False):
                result = run_round(trial, self.session.processes, "trial.")
            self._raise_if_cancelled()
            if result.failure:
                raise GauntletError(f"{trial.step.chain}: {result.failure}", f"Its log is in {directory}.")
            (self.iree_ms,) = result.times
        calls = min(math.ceil(_ROUND_MS / self.iree_ms), math.ceil(_SLOW_ROUND_MS / peer_ms))
        return math.ceil(max(_MIN_CALLS, calls) / group) * group

    def _plan_iree(self, directory: Path, name: str, calls: int) -> Measurement:
        """Return rounds of IREE with this number of calls in one context, because peers have one context too."""
        if "generations" in self.plan:
            changes = {"generations": calls, "warm_up": _WARM_UP_CALLS}
        else:
            changes = {"calls": calls, "warm_up_calls": _WARM_UP_CALLS, "devices": self.plan["devices"][:1]}
        step, command = replace(self.iree.step, folder=str(directory)), self.iree.command
        plan = {**self.plan, **changes, "outputs": ""}
        planned_command = write_planned_command(step, command.argv[:-1], plan, name, command.env)
        return replace(self.iree, step=step, command=planned_command)

    def _raise_if_cancelled(self) -> None:
        if self.session.cancelled.is_set():
            raise WaitCancelledError("cancelled in the first round of a peer")


def _read_iree_median(text: str, _seconds: float) -> tuple[float, ...]:
    """Return only the median of all calls (or generations), because a log of thousands of calls is of no use."""
    calls = CallTimes.from_dict(json.loads(text))
    # With host modules, stages run in parallel, so single calls have no times: take the average.
    return (statistics.median(calls.times_ms) if calls.host_ms is None else calls.total_s * _MS_PER_S / calls.calls,)


@dataclass(frozen=True, slots=True)
class TorchRound:
    """The start of torch in the middle of a block."""

    programs: Sequence[str]
    start: Callable[[Sequence[str]], Measurement]


@dataclass(slots=True)
class PointEvidence(RoundSamples):
    """Measured times of a point.

    Attributes:
        times: ms by program name, with one tuple for each block: two rounds of IREE, or one of torch.
    """

    times: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    marked: int = 0


def run_interleaved(
    taker: BlockRunner,
    chain: str,
    iree: Mapping[str, Measurement],
    torch: TorchRound | None,
    report_progress: Callable[[int], None],
) -> PointEvidence:
    """Run all blocks of a point; fewer if a program fails, the machine is too busy, or the run is cancelled.

    `report_progress` is called with the number of each block before it begins, from 1 on.
    """
    evidence = PointEvidence()
    # The random numbers only choose orders, and need not be secure.
    rng = random.Random(make_seed(SEED, chain, _BLOCK_KIND))  # noqa: S311
    while evidence.count < BLOCKS and taker.may_continue(evidence):
        report_progress(evidence.count + 1)
        order, torch_order = list(iree), list(torch.programs) if torch else []
        rng.shuffle(order)
        rng.shuffle(torch_order)
        iree_rounds = [(name, iree[name]) for name in order]
        torch_rounds = [(_TORCH_ROUND_NAME, torch.start(torch_order))] if torch else []
        block = BlockPlan(chain, _BLOCK_KIND, order, [*iree_rounds, *torch_rounds, *iree_rounds[::-1]], _MAX_TRIES)
        times: dict[str, tuple[float, ...]] = {}
        for name, result in taker.run(block, evidence):
            evidence.marked += bool(result.disturbed)
            names = torch_order if name == _TORCH_ROUND_NAME else (name,)
            for program, time_ms in zip(names, result.times, strict=True):
                times[program] = (*times.get(program, ()), time_ms)
        for name, block_times in times.items():
            evidence.times.setdefault(name, []).append(block_times)
    return evidence


def compute_speedup(blocks: PointEvidence, name: str, baseline: str) -> Ratio | None:
    """Return a program's speed relative to a baseline; None without times."""
    program_blocks, baseline_blocks = blocks.times.get(name), blocks.times.get(baseline)
    if not program_blocks or not baseline_blocks:
        return None
    baseline_logs, program_logs = (
        np.array([statistics.fmean(map(math.log, block)) for block in block_times])
        for block_times in (baseline_blocks, program_blocks)
    )
    return _make_ratio(compare_log_ratios(baseline_logs - program_logs, _SINGLE_ANALYSIS))


def compute_median_ms(blocks: PointEvidence, name: str) -> float | None:
    """Return the median over all rounds of a program; None without rounds."""
    times = [time for block in blocks.times.get(name, ()) for time in block]
    return statistics.median(times) if times else None
