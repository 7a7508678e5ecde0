"""Where a failure is: does it fail again, which switches mend it, and which dispatch is the first to be wrong?"""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT, FlowProgram, device_of, read_flow, with_device
from iree_gauntlet.experiments.explaining.linalg_program import as_function
from iree_gauntlet.experiments.explaining.tools import CompileError, loosened
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.toolchains.toolchain import COMPILE
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.flow_program import Dispatch
    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.experiments.explaining.tools import Ran, Tools


# One compile each: flags of the compiler, in the order in which they are reported; `{cpu}` where it compiles for CPUs.
_PROBES = (
    ("data tiling off", "--iree-opt-data-tiling=false"),
    ("no optimisation (O0)", "--iree-opt-level=O0"),
    ("constant evaluation off", "--iree-opt-const-eval=false"),
    ("generic CPU", "--iree-llvmcpu-target-cpu=generic"),
    ("no microkernels", "--iree-llvmcpu-enable-ukernels=none"),
    ("reductions not reordered", "--iree-llvmcpu-reassociate-fp-reductions=false"),
)
_TRACED = "--iree-flow-trace-dispatch-tensors"
# How far a dispatch may be off on equal inputs: the largest difference, as a share of the largest value. Integers and
# truth values are equal. Of a reduction of 10,000 f32 in another order, 1e-5 is usual.
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
# Candidates that are confirmed on their own inputs.
_MOST_SUSPECTS = 8
# Flags of one target alone, which another has no use for.
_OF_TARGETS = (
    *("--iree-hal-target", "--iree-hal-local-target", "--iree-hal-substitute", "--iree-llvmcpu", "--iree-vulkan"),
    *("--iree-cuda", "--iree-rocm", "--iree-hip", "--iree-metal", "--iree-amdgpu"),
)
_TRIVIAL = """\
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
_LOCAL, _BACKEND = "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends"
# What a program is held against, the cheaper first.
_REFERENCES = {
    "llvm-cpu, generic": (_LOCAL, f"{_BACKEND}=llvm-cpu", "--iree-llvmcpu-target-cpu=generic"),
    "vmvx": (_LOCAL, f"{_BACKEND}=vmvx"),
}
_REFERENCE_DEVICE = "local-task"
# The worker ends what it runs when the time is up, and writes.
_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Probed:
    """What a switch does: `passes`, `fails`, or `unknown` and why."""

    name: str
    flag: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A dispatch that is wrong on inputs that are right.

    Attributes:
        dispatch: it.
        call: which one it was of all that ran.
        of: how many ran.
        error: its largest error, as a share of the largest value; infinite where one side alone has NaN or infinity.
        reference: what it was held against.
        program: as a program of its own, in the `flow` phase.
        function: the same as a function that every release reads; empty where it cannot be one.
        inputs: files of raw values, with their types.
        expected: those that the reference gives.
        largest: |value| of each of these.
    """

    dispatch: Dispatch
    call: int
    of: int
    error: float
    reference: str
    program: str
    function: str
    inputs: tuple[tuple[str, Path], ...]
    expected: tuple[tuple[str, Path], ...]
    largest: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Located:
    """What a search for the dispatch came to.

    Attributes:
        suspect: the one; None where there is none.
        why: what is known where there is none.
        traced: how many dispatches were compared.
        reference: what they were held against; empty where there was none.
    """

    suspect: Suspect | None = None
    why: str = ""
    traced: int = 0
    reference: str = ""


def probe(failure: Failure, symptom: Symptom, tools: Tools, say: Callable[[str], None]) -> list[Probed]:
    """Which switches mend it: each by itself, compiled, and run where that is what fails."""
    known = [(name, flag) for name, flag in _PROBES if tools.knows(COMPILE, flag) and _applies(flag, failure)]

    def one(item: tuple[str, str]) -> Probed:
        name, flag = item
        setting = flag.partition("=")[0]
        flags = [word for word in failure.flags if word.partition("=")[0] != setting]
        file = f"probe_{setting.removeprefix('--')}.vmfb"
        ran = tools.cached_compile(
            file, failure.program, [*flags, flag], timeout=failure.compile_timeout, cwd=failure.compile_cwd
        )
        if failure.stage is Stage.COMPILE:
            return Probed(name, flag, *_verdict(ran, symptom))
        if not ran.passed:
            return Probed(name, flag, "unknown", f"does not compile: {_first_error(ran)}")
        return Probed(name, flag, *_verdict(_run_with(failure, tools, file, tools.folder / file), symptom))

    found = []
    with ThreadPoolExecutor(machine_facts().cores) as pool:
        for probed in pool.map(one, known):
            say(f"{probed.name}: {probed.verdict}")
            found.append(probed)
    if failure.argv and failure.device == "local-task":
        argv = [word for word in failure.argv[1:] if not word.startswith("--device=")]
        ran = tools.run_module(
            "probe_local_sync", ("--device=local-sync", *argv), timeout=failure.timeout, cwd=failure.cwd
        )
        found.append(Probed("one thread", "--device=local-sync", *_verdict(ran, symptom)))
    return found


def locate(failure: Failure, tools: Tools, say: Callable[[str], None]) -> Located:
    """The first dispatch that is wrong on right inputs, confirmed on those inputs.

    Raises:
        GauntletError: the program cannot be traced.
    """
    say("compiling to dispatches")
    program = traced_program(failure, tools)
    target = target_side(failure, tools, program)
    ran = _run_with(failure, tools, "traced", Path(target["modules"][-1]))
    if ran.passed:
        return Located(
            why="with its dispatches traced it passes: the fault is in allocation, aliasing or synchronisation, "
            "not in a dispatch"
        )
    held = _against_reference(failure, tools, program, target, say)
    if held is None:
        return Located(
            why="no reference gives the expected numbers either: what is wrong stands before the dispatches (in the "
            "import, in constants that the compiler computes, or in the expected values)"
        )
    name, traces, end = held.reference, held.traces, held.end
    for side in ("target", "reference"):
        if end[side]:
            said = last_line(held.folder / f"{side}.txt")
            begun = ", ".join(program.dispatches[item["dispatch"]].name for item in end["unfinished"])
            why = f"traced, the {side} does not run to its end, in {begun or 'none of its dispatches'}: {said}"
            return Located(why=why, traced=len(traces), reference=name)
    if end["differs"]:
        return Located(why=f"target and reference do not run the same dispatches: {end['differs']}", reference=name)
    suspects = [item for item in traces if item["suspect"] and item["kept"]]
    for item in suspects:
        dispatch = program.dispatches[item["dispatch"]]
        say(f"confirming {dispatch.name}")
        suspect = _confirmed(item, dispatch, program, held, failure, tools)
        if suspect is not None:
            return Located(suspect, "", len(traces), name)
    if suspects:
        first = program.dispatches[suspects[0]["dispatch"]].name
        why = f"dispatches differ from the reference, {first} as the first, but none does on its own inputs"
    elif held.by_values:
        why = f"no dispatch whose inputs {name} has gives what {name} has not; those with other inputs are not judged"
    else:
        worst = max(_worst(item["outputs"]) for item in traces)
        why = f"no dispatch jumps: each gives what its inputs mean, and errors grow to {worst:.2g} of the largest value"
    return Located(why=why, traced=len(traces), reference=name)


@dataclass(frozen=True, slots=True)
class _Held:
    """A target that was traced and held against a reference.

    Attributes:
        reference, device: its name, and what it is compiled for.
        traces, end: what was found, dispatch by dispatch, and how both ended.
        folder: where that is.
        by_values: whether the reference has dispatches of its own, so that tensors were matched by their values.
    """

    reference: str
    device: str
    traces: list[dict[str, Any]]
    end: dict[str, Any]
    folder: Path
    by_values: bool


def _against_reference(
    failure: Failure, tools: Tools, program: FlowProgram, target: dict[str, Any], say: Callable[[str], None]
) -> _Held | None:
    """The target against the same dispatches for another target; where there are none, against other dispatches."""
    held = None
    makers = {"trace": partial(_of_flow, failure, tools, program), "trace_values": partial(_of_source, failure, tools)}
    for folder, make in makers.items():
        chosen = _reference(failure, tools, make, say)
        if chosen is None:
            continue
        name, device, module = chosen
        by_values = folder != "trace"
        how = ", by their values" if by_values else ""
        say(f"tracing {len(program.dispatches)} dispatches against {name}{how}")
        reference = {**target, "device": _REFERENCE_DEVICE, "modules": [str(module)]}
        traces, end = trace_both(tools, folder, target, reference, failure.timeout, by_values=by_values)
        held = _Held(name, device, traces, end, tools.folder / folder, by_values)
        if not end["differs"]:
            break
    return held


def traced_program(failure: Failure, tools: Tools) -> FlowProgram:
    """Its program in the flow phase, with all dispatches traced.

    Raises:
        GauntletError: it does not get there.
    """
    flags = [flag for flag in failure.flags if flag != _TRACED]
    flow = tools.compile(
        "flow.mlir", failure.program, [*flags, "--compile-to=flow", _TRACED], timeout=failure.compile_timeout,
        cwd=failure.compile_cwd,
    )  # fmt: skip
    return read_flow(flow)


def last_line(log: Path) -> str:
    """What a side that failed says."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "Error" in line or ": " in line), "it says nothing")[:300]


def _worst(outputs: Sequence[dict[str, Any]]) -> float:
    return max((math.inf if item["error"] is None else item["error"] for item in outputs), default=0.0)


def _applies(flag: str, failure: Failure) -> bool:
    of_cpu = any("llvm-cpu" in word for word in failure.flags)
    return of_cpu or not flag.startswith("--iree-llvmcpu")


def _of_any_target(failure: Failure) -> tuple[str, ...]:
    """Its flags that mean something for every target; an executable that was put in stays with its own."""
    return tuple(flag for flag in failure.flags if not flag.startswith(_OF_TARGETS))


def _verdict(ran: Ran, symptom: Symptom) -> tuple[str, str]:
    if ran.passed:
        return "passes", ""
    if symptom.is_in(ran):
        return "fails", ""
    return "unknown", ran.outcome.signal or _first_error(ran)


def _first_error(ran: Ran) -> str:
    lines = ran.errors.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "it does not run")[:400]


def _run_with(
    failure: Failure, tools: Tools, name: str, module: Path, *, argv: Sequence[str] = (), device: str = ""
) -> Ran:
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


def _of_flow(failure: Failure, tools: Tools, program: FlowProgram, file: str, target: Sequence[str]) -> Path:
    """A reference of the same dispatches."""
    source = tools.folder / f"{file}.mlir"
    source.write_text(program.for_device(_device_text(tools, target)), encoding="utf-8")
    return from_flow(tools, f"{file}.vmfb", source, _of_any_target(failure), failure)


def _of_source(failure: Failure, tools: Tools, file: str, target: Sequence[str]) -> Path:
    """A reference of dispatches of its own."""
    flags = [*(flag for flag in _of_any_target(failure) if flag != _TRACED), *target, _TRACED]
    timeout, cwd = failure.compile_timeout, failure.compile_cwd
    return tools.compile(f"{file}_source.vmfb", failure.program, flags, timeout=timeout, cwd=cwd)


def _reference(
    failure: Failure, tools: Tools, make: Callable[[str, Sequence[str]], Path], say: Callable[[str], None]
) -> tuple[str, str, Path] | None:
    """Name, device and module of the first reference that gives the expected numbers; None where none does."""
    error = failure.result.max_abs_error
    argv = failure.argv[1:]
    if error is not None and math.isfinite(error):
        # Another target rounds otherwise: a tenth of the failure is near enough to be told from it.
        argv = loosened(argv, error / 10)
    for name, target in _REFERENCES.items():
        file = f"reference_{name.partition(',')[0]}"
        try:
            device = _device_text(tools, target)
            module = make(file, target)
        except CompileError as problem:
            say(f"reference {name}: {problem.what}")
            continue
        ran = _run_with(failure, tools, file, module, argv=argv, device=_REFERENCE_DEVICE)
        say(f"reference {name}: {'gives the expected numbers' if ran.passed else 'does not give the expected numbers'}")
        if ran.passed:
            return name, device, module
    return None


def _device_text(tools: Tools, target: Sequence[str]) -> str:
    """How this release writes a target: the `#hal.device.target` of a program that is compiled for it."""
    source = tools.folder / "trivial.mlir"
    source.write_text(_TRIVIAL, encoding="utf-8")
    flow = tools.compile("trivial.flow.mlir", source, [*target, "--compile-to=flow"], timeout=60.0)
    return device_of(flow.read_text(encoding="utf-8"))


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


def _confirmed(
    item: dict[str, Any], dispatch: Dispatch, program: FlowProgram, held: _Held, failure: Failure, tools: Tools
) -> Suspect | None:
    """A dispatch by itself, on the inputs that it had: the suspect where it is wrong there too."""
    kept = held.folder / item["kept"]
    inputs = tuple((item["inputs"][i]["type"], kept / f"target_input_{i}.bin") for i in dispatch.places)
    shapes = [[int(size) for size in found["type"].split("x")[:-1]] for found in item["inputs"]]
    name = f"cut_{item['call']}"
    sides = {}
    for side, device, flags in (("target", "", failure.flags), ("reference", held.device, _of_any_target(failure))):
        text = program.cut_out(dispatch, shapes, traced=True)
        source = tools.folder / f"{name}_{side}.mlir"
        source.write_text(with_device(text, device) if device else text, encoding="utf-8")
        module = from_flow(tools, f"{name}_{side}.vmfb", source, flags, failure)
        sides[side] = {
            "device": _REFERENCE_DEVICE if device else failure.device,
            "modules": [str(module)],
            "parameters": [],
            "function": CUT_OUT,
            "inputs": [f"{kind}=@{path}" for kind, path in inputs],
            "cwd": str(tools.folder),
        }
    traces, _ = trace_both(tools, name, sides["target"], sides["reference"], failure.timeout)
    if not traces[0]["suspect"]:
        return None
    folder = tools.folder / name / traces[0]["kept"]
    expected = tuple(
        (found["type"], folder / f"reference_output_{index}.bin") for index, found in enumerate(traces[0]["outputs"])
    )
    error = _worst(traces[0]["outputs"])
    largest = tuple(float(found["largest"]) for found in traces[0]["outputs"])
    text = program.cut_out(dispatch, shapes)
    function = as_function(program, dispatch)
    of, reference = len(held.traces), held.reference
    return Suspect(dispatch, item["call"], of, error, reference, text, function, inputs, expected, largest)
