"""Programs that are measured next to IREE, tried once before: are their outputs those of torch eager?"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.taken_rounds import Measurement, take_round
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import shorten
from iree_gauntlet.torch_models.agreement import agreement
from iree_gauntlet.torch_models.build_folder import read_outputs, tensors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.steps import Command, Step
    from iree_gauntlet.torch_models.build_folder import Array
    from iree_gauntlet.torch_models.formats import Tolerance


TRIAL_CALLS = 3
WARM_UP_CALLS = 1
# Code that torch.compile makes, kept from round to round: a process's TMPDIR does not outlive it.
CODE_FOLDER = "inductor"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a program should compute.

    Attributes:
        folder: of the built model, which has torch eager's outputs.
        arrays: these outputs.
        allowed: as for `agreement`.
        gradients: likewise.
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
        call_ms: the median of the calls after.
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
    """Starts a peer once; it is no evidence, so that others may run beside it.

    Args:
        session: what it runs in.
        rounds: of the peer, by a plan that asks for outputs.
        name: prefix of its logs in the folder of its step.
        outputs: where they go.
        expected: of each model of the plan.

    Returns:
        What became of each.

    Raises:
        GauntletError: the process cannot be started, or what it left cannot be read.
    """
    with session.quiet(exclusive=False):
        taken = take_round(replace(rounds, read=_no_times), session.processes, name)
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


def _no_times(_text: str, _seconds: float) -> tuple[float, ...]:
    return ()


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
