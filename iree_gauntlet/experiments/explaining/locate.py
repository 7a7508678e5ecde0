"""Where numbers go wrong: which dispatch is the first to be wrong on inputs that are right?

What computes in f32 is compiled once more with every f32 an f64. That works for what can be a function on tensors and
has neither constants with many values nor functions that llvm-cpu does not know in f64.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT, FlowProgram, as_function, device_of, with_device
from iree_gauntlet.experiments.explaining.make_values import CODES, seeded_values
from iree_gauntlet.experiments.explaining.tools import CompileError, loosened
from iree_gauntlet.experiments.explaining.traced_sides import (
    TOLERANCES,
    TRACED,
    from_flow,
    last_line,
    run_with,
    target_side,
    trace_both,
    traced_program,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.flow_program import Dispatch
    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.experiments.explaining.tools import Tools


# Values in hexadecimal cannot be read as f64, but for one alone.
_MANY_VALUES = re.compile(r'dense<"|dense_resource<')
_HEXADECIMAL = re.compile(r"\b0x([0-9A-F]{8}) : f32\b")
_F32 = re.compile(r"(?:(?<=\dx)|\b)f32\b")
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-input-demote-f64-to-f32=false",
)
_TIMEOUT_SECONDS = 120.0
# So many times what the reference is off is rounding too.
_NO_WORSE = 2
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
# What is nearer than a failure by so much is another thing: another order of operations.
_MUCH = 10
# Dispatches before and after the one that is wrong, whose errors are kept.
_AROUND = 6
# Its shape and the type of its elements: `2x3xf32`.
_TYPE = re.compile(r"((?:\d+x)*)(.+)")
# In a bundle of 10 MB there is more than inputs.
_LARGE_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class WrongDispatch:
    """A dispatch that is wrong on inputs that are right.

    Attributes:
        call, of: which call it was of all that ran.
        sides: how it is run for the target and for the reference, without inputs.
        expected: files of raw values that the reference gives, with their types; `largest` is |value| of
            each.
        reference: what it was held against; empty where it fails before it gives anything.
        program: as a program of its own, in the `flow` phase.
        function: the same as a function that every release reads; empty where it cannot be one.
        error: its largest error, as a share of the largest value; infinite where one side alone has NaN or infinity.
        in_f64: how far both sides are off what f64 gives; None where that is not known.
        withheld: why it may not be passed on; empty where it may.
    """

    dispatch: Dispatch
    call: int
    of: int
    reference: str
    program: str
    function: str
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: float = 0.0
    inputs: tuple[Input, ...] = ()
    expected: tuple[tuple[str, Path], ...] = ()
    largest: tuple[float, ...] = ()
    in_f64: InF64 | None = None
    withheld: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """What a search for the dispatch came to.

    Attributes:
        suspect: the one; None where there is none.
        reference: what they were held against; empty where there was none.
        around: the dispatches before and after the one: which call each is, its name, and the largest error of what it
            gives, as a share of its largest value.
    """

    suspect: WrongDispatch | None = None
    why: str = ""
    traced: int = 0
    reference: str = ""
    around: tuple[tuple[int, str, float], ...] = ()


def locate(
    failure: Failure, tools: Tools, say: Callable[[str], None], elsewhere: Callable[[], bool], *, private: bool
) -> Located:
    """The first dispatch that is wrong on right inputs, confirmed on those inputs.

    Args:
        failure: of the run.
        tools: of the IREE that failed.
        say: takes how it goes.
        elsewhere: asked where the same dispatches give the same for every target: whether the fault is found before
            them, so that no others are tried.
        private: whether the model's own values are not to be passed on.

    Raises:
        GauntletError: the program cannot be traced.
    """
    say("compiling to dispatches")
    program = traced_program(failure, tools)
    target = target_side(failure, tools, program)
    held = _hold_against_reference(failure, tools, program, target, say, elsewhere)
    if held is None:
        return Located(
            why="no reference gives the expected numbers either: the fault lies before the dispatches (in the "
            "import, in constants that the compiler computes, in the expected values, or in the tolerance)"
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
    if _is_right(end.get("results", ()), failure):
        why = "with its dispatches traced it passes: the fault is in allocation, aliasing or synchronisation, not in a"
        return Located(why=f"{why} dispatch", traced=len(traces), reference=name)
    suspects = [item for item in traces if item["suspect"] and item["kept"]]
    for item in suspects:
        dispatch = program.dispatches[item["dispatch"]]
        say(f"confirming {dispatch.name}")
        suspect = _confirm(item, program, held, failure, tools)
        if suspect is not None:
            around = tuple(
                (one["call"], program.dispatches[one["dispatch"]].name, _compute_worst(one["outputs"]))
                for one in traces
                # By values, nothing is known of how far others are off.
                if abs(one["call"] - item["call"]) <= _AROUND and not held.by_values
            )
            return Located(_replace_inputs(suspect, failure, tools, private=private), "", len(traces), name, around)
    if suspects:
        first = program.dispatches[suspects[0]["dispatch"]].name
        why = f"dispatches differ from the reference, {first} as the first, but none is wrong on its own inputs"
    elif held.by_values:
        why = f"each dispatch that takes values which {name} has too gives such values; the others are not judged"
    else:
        worst = max(_compute_worst(item["outputs"]) for item in traces)
        why = f"no dispatch jumps: each gives what its inputs mean, and errors grow to {worst:.2g} of the largest value"
    return Located(why=why, traced=len(traces), reference=name)


@dataclass(frozen=True, slots=True)
class _Held:
    """A target that was traced and held against a reference.

    Attributes:
        by_values: whether the reference has dispatches of its own, so that tensors were matched by their values.
    """

    reference: str
    device: str
    traces: list[dict[str, Any]]
    end: dict[str, Any]
    folder: Path
    by_values: bool


def _hold_against_reference(
    failure: Failure,
    tools: Tools,
    program: FlowProgram,
    target: dict[str, Any],
    say: Callable[[str], None],
    elsewhere: Callable[[], bool],
) -> _Held | None:
    """The target against the same dispatches for another target; where there are none, against other dispatches."""
    held = None
    makers = {
        "trace": partial(_make_from_flow, failure, tools, program),
        "trace_values": partial(_make_from_source, failure, tools),
    }
    for folder, make in makers.items():
        by_values = folder != "trace"
        kind = "reference compiled from the source" if by_values else "reference"
        chosen = _find_reference(failure, tools, make, kind, say)
        if chosen is None:
            if elsewhere():
                return None
            continue
        name, device, target_flags = chosen
        how = ", by their values" if by_values else ""
        say(f"tracing {len(program.dispatches)} dispatches against {name}{how}")
        module = make(f"{folder}_reference", target_flags, traced=True)
        reference = {**target, "device": _REFERENCE_DEVICE, "modules": [str(module)]}
        traces, end = trace_both(tools, folder, target, reference, failure.timeout, by_values=by_values)
        held = _Held(name, device, traces, end, tools.folder / folder, by_values)
        if not end["differs"]:
            break
    return held


def _compute_worst(outputs: Sequence[dict[str, Any]]) -> float:
    return max((math.inf if item["error"] is None else item["error"] for item in outputs), default=0.0)


def _select_general_flags(failure: Failure) -> tuple[str, ...]:
    """Its flags that mean something for every target; an executable that was put in stays with its own."""
    return tuple(flag for flag in failure.flags if not flag.startswith(_OF_TARGETS))


def _is_right(results: Sequence[dict[str, Any]], failure: Failure) -> bool:
    """Whether what the traced program gives in the end is what its reference gives: much nearer than it failed by."""
    error = failure.result.max_abs_error
    if not results or error is None or not math.isfinite(error):
        return bool(results) and not any(item["wrong"] for item in results)
    return all(item["error"] is not None and item["error"] * item["largest"] <= error / _MUCH for item in results)


def _make_from_flow(
    failure: Failure, tools: Tools, program: FlowProgram, file: str, target: Sequence[str], *, traced: bool
) -> Path:
    """A reference of the same dispatches."""
    source = tools.folder / f"{file}.mlir"
    text = program.text if traced else program.untraced
    source.write_text(with_device(text, _format_device_text(tools, target)), encoding="utf-8")
    return from_flow(tools, f"{file}.vmfb", source, _select_general_flags(failure), failure)


def _make_from_source(failure: Failure, tools: Tools, file: str, target: Sequence[str], *, traced: bool) -> Path:
    """A reference of dispatches of its own."""
    flags = [
        *(flag for flag in _select_general_flags(failure) if flag != TRACED),
        *target,
        *((TRACED,) if traced else ()),
    ]
    timeout, cwd = failure.compile_timeout, failure.compile_cwd
    return tools.compile(f"{file}_source.vmfb", failure.program, flags, timeout=timeout, cwd=cwd)


def _find_reference(
    failure: Failure, tools: Tools, make: Callable[..., Path], kind: str, say: Callable[[str], None]
) -> tuple[str, str, Sequence[str]] | None:
    """Name, device and flags of the first reference that gives the expected numbers; None where none does."""
    error = failure.result.max_abs_error
    argv = failure.argv[1:]
    if error is not None and math.isfinite(error):
        # Another target rounds otherwise: a tenth of the failure is near enough to be told from it.
        argv = loosened(argv, error / _MUCH)
    for name, target in _REFERENCES.items():
        file = f"reference_{name.partition(',')[0]}"
        try:
            device = _format_device_text(tools, target)
            # Traced, iree-run-module would print every tensor.
            module = make(file, target, traced=False)
        except CompileError as problem:
            say(f"{kind} {name}: {problem.what}")
            continue
        ran = run_with(failure, tools, file, module, argv=argv, device=_REFERENCE_DEVICE)
        say(f"{kind} {name}: {'gives the expected numbers' if ran.passed else 'does not give the expected numbers'}")
        if ran.passed:
            return name, device, target
    return None


def _format_device_text(tools: Tools, target: Sequence[str]) -> str:
    """How this release writes a target: the `#hal.device.target` of a program that is compiled for it."""
    source = tools.folder / "trivial.mlir"
    source.write_text(_TRIVIAL, encoding="utf-8")
    flow = tools.compile("trivial.flow.mlir", source, [*target, "--compile-to=flow"], timeout=60.0)
    return device_of(flow.read_text(encoding="utf-8"))


def _confirm(
    item: dict[str, Any], program: FlowProgram, held: _Held, failure: Failure, tools: Tools
) -> WrongDispatch | None:
    """A dispatch by itself, on the inputs that it had: the suspect where it is wrong there too."""
    dispatch = program.dispatches[item["dispatch"]]
    kept, call = held.folder / item["kept"], item["call"]
    inputs = [Input(item["inputs"][i]["type"], kept / f"target_input_{i}.bin") for i in dispatch.places]
    shapes = [[int(size) for size in found["type"].split("x")[:-1]] for found in item["inputs"]]
    traced = program.cut_out(dispatch, shapes, traced=True)
    sides = {}
    for side, device, flags in (
        ("target", "", failure.flags),
        ("reference", held.device, _select_general_flags(failure)),
    ):
        source = tools.folder / f"cut_{call}_{side}.mlir"
        source.write_text(with_device(traced, device) if device else traced, encoding="utf-8")
        module = from_flow(tools, f"cut_{call}_{side}.vmfb", source, flags, failure)
        sides[side] = {
            "device": _REFERENCE_DEVICE if device else failure.device,
            "modules": [str(module)],
            "parameters": [],
            "function": CUT_OUT,
            "cwd": str(tools.folder),
        }
    text, function = program.cut_out(dispatch, shapes), as_function(program, dispatch)
    suspect = WrongDispatch(dispatch, call, len(held.traces), held.reference, text, function, sides)
    return _find_wrong_on(suspect, inputs, f"cut_{call}", failure, tools)


def _find_wrong_on(
    suspect: WrongDispatch, inputs: Sequence[Input], name: str, failure: Failure, tools: Tools
) -> WrongDispatch | None:
    """The suspect with what it gives for inputs; None where it is right on them."""
    texts = [f"{item.kind}=@{item.file}" for item in inputs]
    target, reference = ({**suspect.sides[side], "inputs": texts} for side in ("target", "reference"))
    traces, _ = trace_both(tools, name, target, reference, failure.timeout)
    if not traces[0]["suspect"]:
        return None
    folder, outputs = tools.folder / name / traces[0]["kept"], traces[0]["outputs"]
    kinds = [found["type"] for found in outputs]
    exact = _hold_against_f64(suspect.function, inputs, kinds, folder, tools, f"{name}_f64")
    if exact is not None and exact.only_rounds:
        return None
    files = [folder / f"reference_output_{index}.bin" for index in range(len(outputs))]
    return replace(
        suspect,
        error=_compute_worst(outputs),
        inputs=tuple(inputs),
        expected=tuple(zip(kinds, files, strict=True)),
        largest=tuple(float(found["largest"]) for found in outputs),
        in_f64=exact,
    )


def _replace_inputs(suspect: WrongDispatch, failure: Failure, tools: Tools, *, private: bool) -> WrongDispatch:
    """The suspect with made-up inputs in place of large or private ones, where it is wrong on those too."""
    if not (private or _is_too_large(suspect.inputs)):
        return suspect
    inputs = made_up(suspect.inputs, tools.folder)
    found = _find_wrong_on(suspect, inputs, f"made_up_{suspect.call}", failure, tools)
    if found is not None or not private:
        return found or suspect
    return replace(
        suspect, withheld="it is right on made-up inputs, and --no-weights leaves out the model's own values"
    )


@dataclass(frozen=True, slots=True)
class InF64:
    """How far two sides are off what f64 gives, as shares of its largest value; infinite where one has no number."""

    target: float
    reference: float

    @property
    def only_rounds(self) -> bool:
        """Whether the target is right, or hardly further off than the reference."""
        return self.target <= max(TOLERANCES["f32"], _NO_WORSE * self.reference)


def text_in_f64(function: str) -> str:
    """A function that computes in f64 what one computes in f32; empty where it cannot be written."""
    if not _F32.search(function) or _MANY_VALUES.search(function):
        return ""

    def wider(found: re.Match[str]) -> str:
        (value,) = struct.unpack(">f", bytes.fromhex(found[1]))
        return f"0x{struct.pack('>d', value).hex().upper()} : f32"

    return _F32.sub("f64", _HEXADECIMAL.sub(wider, function))


def _hold_against_f64(
    function: str, inputs: Sequence[Input], outputs: Sequence[str], kept: Path, tools: Tools, name: str
) -> InF64 | None:
    """How far both sides of a dispatch are off what f64 gives; None where that cannot be had."""
    import numpy as np  # noqa: PLC0415 - `run` brings this module, and seldom needs it

    text = text_in_f64(function)
    if not text or any(not kind.endswith("xf32") for kind in outputs):
        return None
    source = tools.folder / f"{name}.mlir"
    source.write_text(text, encoding="utf-8")
    try:
        module = tools.compile(f"{name}.vmfb", source, _FLAGS, timeout=_TIMEOUT_SECONDS)
    except CompileError:
        return None
    words = ["--device=local-task", f"--module={module}", f"--function={CUT_OUT}"]
    for index, item in enumerate(inputs):
        file, kind = item.file, item.kind
        if kind.endswith("f32"):
            file, kind = tools.folder / f"{name}_input_{index}.bin", f"{kind.removesuffix('f32')}f64"
            file.write_bytes(np.fromfile(item.file, "<f4").astype("<f8").tobytes())
        words.append(f"--input={kind}=@{file}")
    results = [tools.folder / f"{name}_output_{index}.npy" for index in range(len(outputs))]
    words += [f"--output=@{file}" for file in results]
    if not tools.run_module(name, words, timeout=_TIMEOUT_SECONDS).passed:
        return None
    errors = {"target": 0.0, "reference": 0.0}
    for index, file in enumerate(results):
        exact = np.load(file).ravel()
        for side, before in errors.items():
            given = np.fromfile(kept / f"{side}_output_{index}.bin", "<f4").astype("<f8")
            errors[side] = max(before, _compute_distance(given, exact))
    return InF64(**errors)


def _compute_distance(given: Any, exact: Any) -> float:
    """The largest difference, as a share of the largest value."""
    import numpy as np  # noqa: PLC0415 - as above

    finite = np.isfinite(exact)
    if (np.isfinite(given) != finite).any():
        return math.inf
    largest = float(np.abs(exact[finite]).max(initial=0.0))
    difference = float(np.abs(given[finite] - exact[finite]).max(initial=0.0))
    return difference / largest if largest else difference


def locate_in_run(
    failure: Failure, symptom: Symptom, tools: Tools, say: Callable[[str], None], *, private: bool
) -> Located:
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
            if (private or _is_too_large(inputs)) and fails_on(others := made_up(inputs, tools.folder)):
                inputs = list(others)
            elif private:
                withheld = "it does not fail on made-up inputs, and --no-weights leaves out the model's own values"
            call, of, function = len(traces), len(program.dispatches), as_function(program, dispatch)
            suspect = WrongDispatch(dispatch, call, of, "", text, function, inputs=tuple(inputs), withheld=withheld)
            return Located(suspect, "", len(traces))
    if end["unfinished"]:
        names = ", ".join(program.dispatches[item["dispatch"]].name for item in end["unfinished"])
        return Located(why=f"it fails in {names}, which alone does not fail on its inputs", traced=len(traces))
    said = last_line(tools.folder / "trace" / "target.txt")
    return Located(why=f"it fails in none of its {len(program.dispatches)} dispatches: {said}", traced=len(traces))


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that a dispatch is given.

    Attributes:
        made: the arguments of `make_values.py` behind the file that make it; none where the values are the model's own.
    """

    kind: str
    file: Path
    made: tuple[str, ...] = ()


def _is_too_large(inputs: Sequence[Input]) -> bool:
    """Whether they are too large for a bundle."""
    return sum(item.file.stat().st_size for item in inputs) > _LARGE_BYTES


def made_up(inputs: Sequence[Input], folder: Path) -> tuple[Input, ...]:
    """The same with values of a seed, within the bounds of their own; what has no known type, or none, stays."""
    return tuple(_make_up_input(item, index, folder) for index, item in enumerate(inputs))


def _make_up_input(item: Input, index: int, folder: Path) -> Input:
    found = _TYPE.fullmatch(item.kind)
    assert found is not None, "IREE writes types so"
    kind, count = found[2], math.prod(map(int, found[1].split("x")[:-1]))
    if kind not in CODES or not count:
        return item
    low, high = _find_bounds(item.file, kind)
    seed = index + 1
    file = folder / f"made_up_{index}.bin"
    file.write_bytes(seeded_values(kind, count, seed, low, high))
    return Input(item.kind, file, (kind, str(count), str(seed), repr(low), repr(high)))


def _find_bounds(file: Path, kind: str) -> tuple[float, float]:
    """The least and the largest of values that are finite."""
    import numpy as np  # noqa: PLC0415 - `run` brings this module, and seldom needs it

    if kind == "bf16":
        values = (np.fromfile(file, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = np.fromfile(file, f"<{CODES[kind]}")
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
