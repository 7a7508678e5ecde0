"""A peer of IREE: how it is tried, what was measured of it next to IREE, the word for that, and the line about it.

Before its rounds a peer is tried: its outputs must be those of torch eager in the build folder, within the tolerance
that IREE's own were held to before.

The number of blocks is fixed before anything is measured and they are looked at once, so that the interval needs no
correction for looking earlier. It is the exact one of `paired.py`, from the log ratios of blocks: six of them are the
fewest that have a two-sided interval at 95 % (five have 93.75 %, 1 − 2/2⁵), and so six it is. The words are those of
`compare`, by its margins: faster or slower from 1 % on, the same within 3 %.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.taken_rounds import Measurement, take_round
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, Verdict, compare
from iree_gauntlet.measuring.statistics.sequential import SequentialPlan
from iree_gauntlet.results import shorten
from iree_gauntlet.torch_models.agreement import agreement
from iree_gauntlet.torch_models.build_folder import read_outputs, tensors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.engine.rounds.blocks import PairEvidence
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.measuring.statistics.rounds import Round
    from iree_gauntlet.steps import Command, Step
    from iree_gauntlet.torch_models.build_folder import Array
    from iree_gauntlet.torch_models.formats import Tolerance


BLOCKS = 6
# At a level of 5 %.
ONE_LOOK = SequentialPlan(0.05, (BLOCKS,), (1.0,))
# What IREE is where the peer is that.
_WORDS = {
    Verdict.SLOWER: "faster",
    Verdict.FASTER: "slower",
    Verdict.SAME: "same",
    Verdict.INCONCLUSIVE: "inconclusive",
}
# Of the lots that choose the order of rounds: the same for everybody, so that a run can be repeated.
SEED = 1
TRIAL_CALLS = 3
WARM_UP_CALLS = 1
# Code that torch.compile makes, kept from round to round: a process's TMPDIR does not outlive it.
CODE_FOLDER = "inductor"


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer next to IREE; a call is a generation where the model is a generative one.

    Attributes:
        name: `torch eager`, `torch.compile` or `onnxruntime`.
        version: of it; empty where it did not get as far as to say.
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


def judged(peer: Peer, evidence: PairEvidence) -> Peer:
    """The peer with what its blocks say: A is IREE, B the peer."""
    peer = replace(peer, blocks=len(evidence.blocks), replaced=evidence.replaced)
    if evidence.failure:
        return replace(peer, reason=evidence.failure)
    if not evidence.blocks:
        return replace(peer, reason=f"every block was disturbed; for example: {evidence.main_disturbance}")
    found = compare(evidence.blocks, ONE_LOOK)
    ratio = ratio_figures(found)
    few = f"{found.blocks} of {BLOCKS} blocks; the others were disturbed, for example: {evidence.main_disturbance}"
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
    low, high = (found.low, found.high) if math.isfinite(found.high) else (None, None)
    return {"ratio": found.ratio, "low": low, "high": high, "word": _WORDS[found.verdict]}


def shown(peer: Peer) -> str:
    """The line about it."""
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


@dataclass(frozen=True, slots=True)
class Expected:
    """What a program should compute.

    Attributes:
        allowed: as for `agreement`.
    """

    folder: Path
    arrays: Sequence[Array]
    allowed: Tolerance | Sequence[Tolerance]
    gradients: bool = False

    def problem(self, outputs: Path, items: Sequence[dict[str, str]]) -> str:
        """Where outputs are other ones; empty where they are not.

        Raises:
            GauntletError: they cannot be read.
        """
        actual, expected = read_outputs(items, outputs), tensors(self.folder, self.arrays)
        problem = agreement(actual, expected, self.allowed, gradients=self.gradients).problem
        return f"its outputs are not those of torch eager: {problem}" if problem else ""


@dataclass(frozen=True, slots=True)
class Tried:
    """A program that was tried.

    Attributes:
        problem: why it is not measured; empty where it can be.
        version: of the peer; empty where the process failed.
        first_call_ms: of a process that had nothing compiled before; None where it failed.
        compile_s: what loading and compiling took; None where nothing is compiled.
    """

    problem: str
    version: str = ""
    first_call_ms: float | None = None
    compile_s: float | None = None
    call_ms: float = 0.0


def peer_rounds(step: Step, command: Command, tool: str) -> Measurement:
    """Rounds of `measure_torch.py` or `measure_onnx.py`: the median call of each model of the plan, in its order."""
    return Measurement(step, command, tool, _times)


def try_peer(
    session: Session[Any], rounds: Measurement, name: str, outputs: Path, expected: Sequence[Expected]
) -> list[Tried]:
    """Starts a peer once; it is no evidence, so that others may run meanwhile.

    Returns:
        What became of each.

    Raises:
        GauntletError: the process cannot be started, or what it left cannot be read.
    """
    with session.quiet(exclusive=False):
        taken = take_round(replace(rounds, read=lambda _text, _seconds: ()), session.processes, name)
    if taken.failure:
        return [Tried(taken.failure)] * len(expected)
    answer = _answer(session.processes.stdout(rounds.step, name))
    version = str(answer["version"])
    tried = []
    for found, wanted in zip(answer["models"], expected, strict=True):
        if "error" in found:
            tried.append(Tried(shorten(found["error"]), version))
            continue
        problem = shorten(wanted.problem(outputs, found["outputs"]))
        call_ms = statistics.median(found["call_ms"])
        tried.append(Tried(problem, version, float(found["first_call_ms"]), found["compile_s"], call_ms))
    return tried


def _answer(text: str) -> dict[str, Any]:
    """The last line; models may print before it."""
    found: dict[str, Any] = json.loads(text.rstrip().splitlines()[-1])
    return found


def _times(text: str, _seconds: float) -> tuple[float, ...]:
    models = _answer(text)["models"]
    for failed in models:
        if "error" in failed:
            raise GauntletError(f"{failed['name']}: {failed['error']}")
    return tuple(statistics.median(item["call_ms"]) for item in models)
