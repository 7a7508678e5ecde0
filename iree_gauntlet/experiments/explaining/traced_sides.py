"""Programs of which every dispatch is traced: made, run side by side, and what was seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.flow_program import FlowProgram, read_flow
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.tools import ToolResult, Tools


TRACED = "--iree-flow-trace-dispatch-tensors"
# How far a dispatch may be off on equal inputs: the largest difference, as a share of the largest value. Integers and
# truth values are equal. Of a reduction of 10,000 f32 in another order, 1e-5 is usual.
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
# Candidates that are confirmed on their own inputs.
_MOST_SUSPECTS = 8
# The worker ends what it runs when the time is up, and writes.
_MARGIN_SECONDS = 60.0


def traced_program(failure: Failure, tools: Tools) -> FlowProgram:
    """Its program in the flow phase, with all dispatches traced.

    Raises:
        GauntletError: it does not get there.
    """
    flags = [flag for flag in failure.flags if flag != TRACED]
    flow = tools.compile(
        "flow.mlir", failure.program, [*flags, "--compile-to=flow", TRACED], timeout=failure.compile_timeout,
        cwd=failure.compile_cwd,
    )  # fmt: skip
    return read_flow(flow)


def last_line(log: Path) -> str:
    """What a side that failed says."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "Error" in line or ": " in line), "it says nothing")[:300]


def run_with(
    failure: Failure, tools: Tools, name: str, module: Path, *, argv: Sequence[str] = (), device: str = ""
) -> ToolResult:
    """Run it with another module in place of its own."""
    words = [f"--module={module}" if word.startswith("--module=") else word for word in argv or failure.argv[1:]]
    if device:
        words = [f"--device={device}" if word.startswith("--device=") else word for word in words]
    return tools.run_module(name, words, timeout=failure.timeout, cwd=failure.cwd)


def from_flow(tools: Tools, name: str, source: Path, flags: Sequence[str], failure: Failure) -> Path:
    """Compile a program in the flow phase to the end."""
    return tools.compile(name, source, ["--compile-from=flow", *flags], timeout=failure.compile_timeout)


def target_side(failure: Failure, tools: Tools, program: FlowProgram) -> dict[str, Any]:
    """How the traced program is run where it fails."""
    source = tools.folder / "target.mlir"
    source.write_text(program.text, encoding="utf-8")
    module = from_flow(tools, "target.vmfb", source, failure.flags, failure)
    archives = [text.partition("=")[::2] if "=" in text else ("", text) for text in failure.values("--parameters")]
    return {
        "device": failure.device,
        "modules": [str(module)],
        "parameters": archives,
        "function": failure.function,
        "inputs": failure.values("--input"),
        "cwd": str(failure.cwd),
    }


def trace_both(
    tools: Tools,
    name: str,
    target: dict[str, Any],
    reference: dict[str, Any],
    timeout: float,
    *,
    by_values: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What both sides did, dispatch by dispatch, and how they ended.

    Raises:
        GauntletError: one could not be run.
    """
    folder = tools.folder / name
    folder.mkdir()
    plan = {
        "target": target,
        "reference": reference,
        "tolerances": TOLERANCES,
        "keep": _MOST_SUSPECTS,
        "by_values": by_values,
        "timeout": timeout,
        "folder": str(folder),
    }
    file = folder / "plan.json"
    file.write_text(json.dumps(plan), encoding="utf-8")
    script = str(Path(iree_side.__file__).with_name("trace_dispatches.py"))
    ran = tools.python(name, (script, str(file)), timeout=timeout + _MARGIN_SECONDS)
    if not ran.passed:
        said = "it does not end" if ran.outcome.timed_out else ran.errors.strip()[-300:]
        raise GauntletError(f"the dispatches could not be traced: {said}", f"See {folder}.")
    end = json.loads((folder / "end.json").read_text(encoding="utf-8"))
    lines = (folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    if not (found or end["unfinished"]):
        said = last_line(folder / "target.txt")
        raise GauntletError(f"nothing was traced: {said}", f"See {folder}.")
    return found, end
