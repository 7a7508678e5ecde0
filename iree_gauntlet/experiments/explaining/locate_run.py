"""Where a run fails that gives no numbers: the dispatch that is begun and never ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.linalg_program import as_function
from iree_gauntlet.experiments.explaining.locate import (
    Located,
    Suspect,
    from_flow,
    last_line,
    target_side,
    trace_both,
    traced_program,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.experiments.explaining.tools import Tools


def locate_in_run(failure: Failure, symptom: Symptom, tools: Tools, say: Callable[[str], None]) -> Located:
    """The dispatch in which a run fails, confirmed by itself on the inputs that it had.

    Raises:
        GauntletError: the program cannot be traced.
    """
    say("compiling to dispatches")
    program = traced_program(failure, tools)
    side = target_side(failure, tools, program)
    say(f"tracing {len(program.dispatches)} dispatches")
    # Both sides are the same program: whichever fails first is looked at.
    timeout = symptom.seconds or failure.timeout
    traces, end = trace_both(tools, "trace", side, side, timeout)
    if not (end["target"] or end["reference"]):
        return Located(
            why="with its dispatches traced it does not fail: the fault is in allocation, aliasing or synchronisation, "
            "not in a dispatch",
            traced=len(traces),
        )
    for item in end["unfinished"]:
        dispatch = program.dispatches[item["dispatch"]]
        say(f"confirming {dispatch.name}")
        kept = tools.folder / "trace" / item["kept"]
        inputs = tuple((item["inputs"][i], kept / f"target_input_{i}.bin") for i in dispatch.places)
        shapes = [[int(size) for size in kind.split("x")[:-1]] for kind in item["inputs"]]
        text = program.cut_out(dispatch, shapes)
        source = tools.folder / "cut.mlir"
        source.write_text(text, encoding="utf-8")
        module = from_flow(tools, "cut.vmfb", source, failure.flags, failure)
        argv = (f"--device={failure.device}", f"--module={module}", f"--function={CUT_OUT}", *_given(inputs))
        if symptom.is_in(tools.run_module("cut", argv, timeout=timeout)):
            call, function = len(traces), as_function(program, dispatch)
            suspect = Suspect(dispatch, call, len(program.dispatches), 0.0, "", text, function, inputs, (), ())
            return Located(suspect, "", len(traces))
    if end["unfinished"]:
        names = ", ".join(program.dispatches[item["dispatch"]].name for item in end["unfinished"])
        return Located(why=f"it fails in {names}, which alone does not fail on its inputs", traced=len(traces))
    said = last_line(tools.folder / "trace" / "target.txt")
    return Located(why=f"it fails in none of its {len(program.dispatches)} dispatches: {said}", traced=len(traces))


def _given(inputs: tuple[tuple[str, Path], ...]) -> tuple[str, ...]:
    return tuple(f"--input={kind}=@{path}" for kind, path in inputs)
