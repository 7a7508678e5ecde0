"""Where a run fails that gives no numbers: the dispatch that is begun and never ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.linalg_program import as_function
from iree_gauntlet.experiments.explaining.locate import Located, Suspect
from iree_gauntlet.experiments.explaining.made_up import Input, made_up, too_large
from iree_gauntlet.experiments.explaining.traced_sides import (
    from_flow,
    last_line,
    target_side,
    trace_both,
    traced_program,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.experiments.explaining.tools import Tools


def locate_in_run(
    failure: Failure, symptom: Symptom, tools: Tools, say: Callable[[str], None], *, private: bool
) -> Located:
    """The dispatch in which a run fails, confirmed by itself on the inputs that it had.

    Args:
        failure: of the run.
        symptom: what it shows.
        tools: of the IREE that failed.
        say: takes how it goes.
        private: whether the model's own values are not to be passed on.

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
        inputs = [Input(item["inputs"][i], kept / f"target_input_{i}.bin") for i in dispatch.places]
        shapes = [[int(size) for size in kind.split("x")[:-1]] for kind in item["inputs"]]
        text = program.cut_out(dispatch, shapes)
        source = tools.folder / "cut.mlir"
        source.write_text(text, encoding="utf-8")
        module = from_flow(tools, "cut.vmfb", source, failure.flags, failure)

        def fails_on(given: Sequence[Input], module: Path = module) -> bool:
            words = (f"--device={failure.device}", f"--module={module}", f"--function={CUT_OUT}")
            texts = (f"--input={one.kind}=@{one.file}" for one in given)
            return symptom.is_in(tools.run_module("cut", (*words, *texts), timeout=timeout))

        if fails_on(inputs):
            withheld = ""
            if (private or too_large(inputs)) and fails_on(others := made_up(inputs, tools.folder)):
                inputs = list(others)
            elif private:
                withheld = "it does not fail on made-up inputs, and --no-weights leaves out the model's own values"
            call, of, function = len(traces), len(program.dispatches), as_function(program, dispatch)
            suspect = Suspect(dispatch, call, of, "", text, function, inputs=tuple(inputs), withheld=withheld)
            return Located(suspect, "", len(traces))
    if end["unfinished"]:
        names = ", ".join(program.dispatches[item["dispatch"]].name for item in end["unfinished"])
        return Located(why=f"it fails in {names}, which alone does not fail on its inputs", traced=len(traces))
    said = last_line(tools.folder / "trace" / "target.txt")
    return Located(why=f"it fails in none of its {len(program.dispatches)} dispatches: {said}", traced=len(traces))
