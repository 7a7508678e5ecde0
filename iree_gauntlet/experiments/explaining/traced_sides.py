"""Programs of which every dispatch is traced: made, run side by side, and what was seen."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.flow_program import FlowProgram, read_flow
from iree_gauntlet.recorded import UNRECORDED, Recorded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.experiments.explaining.flow_program import Dispatch
    from iree_gauntlet.experiments.explaining.tools import Tools

    CapturedInputs = Mapping[str, Sequence["HeldTensor"]]


TRACED = "--iree-flow-trace-dispatch-tensors"
# How far a dispatch may be off on equal inputs: the largest difference, as a share of the largest value. Integers and
# truth values are equal. Of a reduction of 10,000 f32 in another order, 1e-5 is usual.
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
# Candidates that are confirmed on their own inputs.
_MOST_SUSPECTS = 8
# The worker ends what it runs when the time is up, and writes.
_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TracedSide:
    """How a traced program is run, as `trace_dispatches.py` takes it."""

    device: str
    modules: tuple[str, ...]
    parameters: tuple[tuple[str, ...], ...]
    function: str
    inputs: tuple[str, ...]
    cwd: str


@dataclass(frozen=True, slots=True)
class TensorTrace(Recorded):
    """A tensor of the target, and how far it is off the reference's; see `trace_dispatches.py`."""

    type: str
    wrong: bool
    error: float = math.inf
    largest: float = 0.0

    @property
    def shape(self) -> list[int]:
        """Its sizes."""
        return [int(size) for size in self.type.split("x")[:-1]]


@dataclass(frozen=True, slots=True)
class TracedDispatch(Recorded):
    """A dispatch that ran: by its key, which call it was, and the folder of its tensors within the trace's."""

    dispatch: str
    call: int
    inputs: tuple[TensorTrace, ...]
    outputs: tuple[TensorTrace, ...]
    suspect: bool
    kept: str

    @property
    def worst(self) -> float:
        """The largest error of an output."""
        return max((item.error for item in self.outputs), default=0.0)


@dataclass(frozen=True, slots=True)
class UnfinishedDispatch(Recorded):
    """A dispatch that was begun and gave nothing."""

    dispatch: str
    inputs: tuple[TensorTrace, ...]
    kept: str


@dataclass(frozen=True, slots=True)
class TraceOfBoth(Recorded):
    """What was seen of both sides, which end with exit codes; see `trace_dispatches.py`."""

    target: int
    reference: int
    dispatches: tuple[TracedDispatch, ...]
    unfinished: tuple[UnfinishedDispatch, ...]
    differs: str = ""
    results: tuple[TensorTrace, ...] = ()
    folder: Path = field(default=Path(), metadata=UNRECORDED)


@dataclass(frozen=True, slots=True)
class HeldTensor(Recorded):
    """A tensor whose raw values a file holds.

    Attributes:
        type: as IREE writes it: `2x3xf32`.
        made: the arguments of `make_values.py` behind the file that make it; none where the values are the model's own.
        largest: |value|, of what a program gives.
    """

    type: str
    file: Path
    made: tuple[str, ...] = ()
    largest: float = 0.0

    @property
    def argument(self) -> str:
        """As iree-run-module takes it."""
        return f"{self.type}=@{self.file}"


def traced_program(tools: Tools) -> FlowProgram:
    """What failed, in the flow phase, with all dispatches traced.

    Raises:
        GauntletError: it does not get there.
    """
    flags = [flag for flag in tools.failure.flags if flag != TRACED]
    return read_flow(tools.compile("flow.mlir", tools.failure.program, [*flags, "--compile-to=flow", TRACED]))


def last_line(log: Path) -> str:
    """What a side that failed says."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "Error" in line or ": " in line), "it says nothing")[:300]


def compile_flow(tools: Tools, name: str, text: str, flags: Sequence[str]) -> Path:
    """Compile a program in the flow phase to the end."""
    return tools.compile_text(name, text, ["--compile-from=flow", *flags])


def target_side(tools: Tools, program: FlowProgram) -> TracedSide:
    """How the traced program is run where it fails."""
    failure = tools.failure
    archives = (text.partition("=")[::2] if "=" in text else ("", text) for text in failure.values("--parameters"))
    return TracedSide(
        device=failure.device,
        modules=(str(compile_flow(tools, "target", program.text, failure.flags)),),
        parameters=tuple(archives),
        function=failure.function,
        inputs=tuple(failure.values("--input")),
        cwd=str(failure.cwd),
    )


def trace_both(
    tools: Tools, name: str, sides: tuple[TracedSide, TracedSide], timeout: float, *, by_values: bool = False
) -> TraceOfBoth:
    """What both sides did, dispatch by dispatch, and how they ended.

    Raises:
        GauntletError: one could not be run.
    """
    folder = tools.folder / name
    folder.mkdir()
    plan = {
        "target": asdict(sides[0]),
        "reference": asdict(sides[1]),
        "tolerances": TOLERANCES,
        "keep": _MOST_SUSPECTS,
        "by_values": by_values,
        "timeout": timeout,
        "folder": str(folder),
    }
    what, limit = "the dispatches could not be traced", timeout + _MARGIN_SECONDS
    said = tools.ask("trace_dispatches", name, plan, what, timeout=limit)
    trace = replace(TraceOfBoth.from_dict(said), folder=folder)
    if not (trace.dispatches or trace.unfinished):
        raise GauntletError(f"nothing was traced: {last_line(folder / 'target.txt')}", f"See {folder}.")
    return trace


def capture_inputs(tools: Tools, target: TracedSide, wanted: Sequence[Dispatch]) -> CapturedInputs:
    """The inputs of some dispatches, by their keys; of those that ran.

    Raises:
        GauntletError: they could not be run.
    """
    plan = {"target": asdict(target), "capture": [dispatch.key for dispatch in wanted], "folder": str(tools.folder)}
    what, limit = "the inputs could not be captured", tools.failure.timeout
    found = tools.ask("trace_dispatches", "capture", plan, what, timeout=limit)
    return {key: tuple(map(HeldTensor.from_dict, tensors)) for key, tensors in found.items()}
