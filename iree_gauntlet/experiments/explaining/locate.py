"""The search for the dispatch at fault: the first one that gives wrong numbers, or fails, on correct inputs.

Functions in f32 are compiled once more with f64 in place of f32. This works if the function takes tensors, and has no
constants with many values and no operations that llvm-cpu lacks in f64.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.device_kinds import CPU, DEVICE_KINDS, VMVX
from iree_gauntlet.experiments.explaining.flow_program import (
    DISPATCH_FUNCTION,
    TOLERANCES,
    TRACE_FLAG,
    FlowProgram,
    TensorFile,
    TraceSide,
    compile_flow,
    find_device_attribute,
    find_last_error,
    make_function,
    make_target_side,
    replace_device_attribute,
    trace_sides,
)
from iree_gauntlet.experiments.explaining.make_values import CODES, make_seeded_values
from iree_gauntlet.experiments.explaining.tools import CompileError, loosen_thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.explaining.flow_program import (
        Dispatch,
        DispatchTrace,
        TensorTrace,
        TracePair,
        UnfinishedDispatch,
    )
    from iree_gauntlet.experiments.explaining.tools import IreeTools, Symptom


# A hexadecimal list of f32 values cannot be read as f64; a single value can.
_MULTIPLE_VALUES = re.compile(r'dense<"|dense_resource<')
_HEXADECIMAL = re.compile(r"\b0x([0-9A-F]{8}) : f32\b")
_F32 = re.compile(r"(?:(?<=\dx)|\b)f32\b")
_F64_COMPILE_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-input-demote-f64-to-f32=false",
)
_F64_TIMEOUT_SECONDS = 120.0
# A target's error of at most so many times the reference's error is mere rounding.
_MAX_REFERENCE_RATIO = 2
# Flags that apply only to one target.
_TARGET_FLAGS = (
    *("--iree-hal-target", "--iree-hal-local-target", "--iree-hal-substitute", f"--iree-{CPU.code_generator}"),
    # VMVX is left out: its flags are kept, because it may be the reference.
    *(f"--iree-{name}" for kind in DEVICE_KINDS if kind is not VMVX for name in kind.names),
)
_TRIVIAL = """\
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
# The references for a program, the cheaper first.
_REFERENCES = {
    f"{CPU.backend}, generic": (*CPU.target_flags, "--iree-llvmcpu-target-cpu=generic"),
    VMVX.family: VMVX.target_flags,
}
_REFERENCE_DEVICE = CPU.device
# An error smaller than the failure's by this factor is attributed to another order of operations.
_MARGIN = 10
# The errors of so many calls before and after the wrong call are kept.
_CONTEXT_CALLS = 6
# The limit for inputs in bytes; a bundle, of at most 10 MB, contains other files too.
_LARGE_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class WrongDispatch:
    """A dispatch that is wrong, or fails, on correct inputs.

    Attributes:
        call: its number among the calls, from 0.
        call_count: the number of calls that ran; if the dispatch fails, the number of the program's dispatches.
        program: the dispatch as a separate program, in the `flow` phase.
        function: the dispatch as a function that every release reads; empty if that is impossible.
        reference: the name of the reference; empty if the dispatch fails before it has results.
        error: the largest error, as a share of the largest value; infinite if only one side has NaN or infinity.
        expected: the reference's results.
        withheld_reason: the reason why the dispatch may not be passed on; empty if it may.
        function_call: the call of a function that it belongs to, `2 (step)`; empty if there is only one.
    """

    dispatch: Dispatch
    call: int
    call_count: int
    program: str
    function: str
    reference: str = ""
    inputs: tuple[TensorFile, ...] = ()
    error: float = 0.0
    expected: tuple[TensorFile, ...] = ()
    in_f64: F64Errors | None = None
    withheld_reason: str = ""
    function_call: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search for the dispatch.

    `around` has the calls before and after the wrong call, each with number, name, and largest error as a share of the
    largest value.
    """

    suspect: WrongDispatch | None = None
    reason: str = ""
    count: int = 0
    reference: str = ""
    around: tuple[tuple[int, str, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the record's fields; infinite errors are null."""
        entry: dict[str, Any] = {"why": self.reason, "traced": self.count, "reference": self.reference}
        wrong = self.suspect
        if wrong is None:
            return entry
        entry["made_up"] = any(tensor.made for tensor in wrong.inputs)
        if wrong.in_f64 is not None:
            entry["in_f64"] = {"target": drop_inf(wrong.in_f64.target), "reference": drop_inf(wrong.in_f64.reference)}
        entry |= {"dispatch": wrong.dispatch.name, "call": wrong.call, "of": wrong.call_count}
        entry |= {"function_call": wrong.function_call} if wrong.function_call else {}
        return entry | {
            # A run that fails before it has results has no error.
            "error": drop_inf(wrong.error),
            "around": [[call, name, drop_inf(error)] for call, name, error in self.around],
            "inputs": [tensor.type for tensor in wrong.inputs],
            "outputs": [tensor.type for tensor in wrong.expected],
        }


def drop_inf(error: float) -> float | None:
    """Return an error for the record, with null for infinity."""
    return error if math.isfinite(error) else None


@dataclass(frozen=True, slots=True)
class _ReferenceTrace:
    """The traces of a target and a reference; `matches_by_values` if equal values pair tensors, not dispatches."""

    reference: str
    device_attribute: str
    trace: TracePair
    matches_by_values: bool


@dataclass(frozen=True, slots=True)
class DispatchSearch:
    """A search in a failing program; `without_weights` if the model's own values must not be passed on."""

    tools: IreeTools
    say: Callable[[str], None]
    without_weights: bool
    program: FlowProgram

    def find_wrong(self, is_fault_elsewhere: Callable[[], bool]) -> SearchResult:
        """Find the first dispatch that is wrong on correct inputs, and confirm that; GauntletError if tracing fails.

        `is_fault_elsewhere` is called if no target gives the expected numbers with these dispatches. A return of True
        means that the fault is in an earlier phase; then no other dispatches are tried.
        """
        pair = self._trace_against_reference(is_fault_elsewhere)
        if pair is None:
            return SearchResult(
                reason="no reference gives the expected numbers either: the fault lies before the dispatches (in the "
                "import, in constants that the compiler computes, in the expected values, or in the tolerance)"
            )
        trace, traces = pair.trace, pair.trace.dispatches
        for side, code in (("target", trace.target), ("reference", trace.reference)):
            if code:
                names = self._name_dispatches(trace.unfinished) or "none of its dispatches"
                message = find_last_error(trace.folder / f"{side}.txt")
                reason = f"when traced, the {side} fails in {names}: {message}"
                return SearchResult(reason=reason, count=len(traces), reference=pair.reference)
        if trace.differs:
            reason = f"target and reference do not run the same dispatches: {trace.differs}"
            return SearchResult(reason=reason, reference=pair.reference)
        if self._is_right(trace.results):
            reason = (
                "with its dispatches traced it passes: the fault is in allocation, aliasing or synchronisation, not"
            )
            return SearchResult(reason=f"{reason} in a dispatch", count=len(traces), reference=pair.reference)
        suspects = [dispatch for dispatch in traces if dispatch.suspect and dispatch.kept]
        for dispatch in suspects:
            suspect = self._confirm_wrong(dispatch, pair)
            if suspect is not None:
                context = tuple(
                    (neighbour.call, self.program.dispatches[neighbour.dispatch].name, neighbour.worst)
                    for neighbour in traces
                    # A trace by values has no errors for neighbouring dispatches.
                    if abs(neighbour.call - dispatch.call) <= _CONTEXT_CALLS and not pair.matches_by_values
                )
                return SearchResult(suspect, "", len(traces), pair.reference, context)
        if suspects:
            name = self._name_dispatches(suspects[:1])
            reason = f"dispatches differ from the reference, {name} first, but none is wrong on its own inputs"
        elif pair.matches_by_values:
            reason = f"each dispatch whose input values occur in {pair.reference} gives output values that occur in"
            reason += f" {pair.reference}; the other dispatches are not judged"
        else:
            worst = max(dispatch.worst for dispatch in traces)
            reason = "the error jumps at no dispatch: each is right on its inputs, and errors grow to "
            reason += f"{worst:.2g} of the largest value"
        return SearchResult(reason=reason, count=len(traces), reference=pair.reference)

    def find_failing(self, symptom: Symptom) -> SearchResult:
        """Find the dispatch in which a run fails, and confirm it on its inputs; GauntletError as above."""
        side = make_target_side(self.tools, self.program)
        self.say(f"tracing {len(self.program.dispatches)} dispatches")
        # Both sides run the same program; the side that fails first is evaluated.
        timeout = symptom.seconds or self.tools.failure.timeout
        trace = trace_sides(self.tools, "trace", (side, side), timeout)
        count = len(trace.dispatches)
        if not (trace.target or trace.reference):
            reason = "with its dispatches traced it does not fail: the fault is in allocation, aliasing or"
            return SearchResult(reason=f"{reason} synchronisation, not in a dispatch", count=count)
        for dispatch in trace.unfinished:
            suspect = self._confirm_failing(dispatch, trace, symptom, timeout)
            if suspect is not None:
                return SearchResult(suspect, "", count)
        if trace.unfinished:
            names = self._name_dispatches(trace.unfinished)
            return SearchResult(reason=f"it fails in {names}, but not when that runs alone on its inputs", count=count)
        message = find_last_error(trace.folder / "target.txt")
        return SearchResult(
            reason=f"it fails in none of its {len(self.program.dispatches)} dispatches: {message}", count=count
        )

    def _name_dispatches(self, traces: Iterable[DispatchTrace | UnfinishedDispatch]) -> str:
        return ", ".join(self.program.dispatches[trace.dispatch].name for trace in traces)

    def _trace_against_reference(self, is_fault_elsewhere: Callable[[], bool]) -> _ReferenceTrace | None:
        """Trace the target against a reference with the same dispatches, or, if none is correct, with other ones."""
        result = target = None
        count, timeout = len(self.program.dispatches), self.tools.failure.timeout
        for by_values in (False, True):
            reference_target = self._find_reference(by_values=by_values)
            if reference_target is None:
                if is_fault_elsewhere():
                    return None
                continue
            name, attribute = reference_target
            self.say(f"tracing {count} dispatches against {name}{', by their values' if by_values else ''}")
            folder, flags = "trace_values" if by_values else "trace", _REFERENCES[name]
            module = self._make_reference(f"{folder}_reference", flags, attribute, by_values=by_values, trace=True)
            # Compile the target only if there is a reference.
            target = target or make_target_side(self.tools, self.program)
            reference = replace(target, device=_REFERENCE_DEVICE, modules=(str(module),))
            trace = trace_sides(self.tools, folder, (target, reference), timeout, by_values=by_values)
            result = _ReferenceTrace(name, attribute, trace, by_values)
            if not trace.differs:
                break
        return result

    def _find_reference(self, *, by_values: bool) -> tuple[str, str] | None:
        """Return the name and device attribute of the first reference that gives the expected numbers, or None."""
        noun = "reference compiled from the source" if by_values else "reference"
        error = self.tools.failure.result.max_abs_error
        argv = self.tools.failure.argv[1:]
        if error is not None and math.isfinite(error):
            # References round differently, so errors within a tenth of the failure's error count as correct.
            argv = loosen_thresholds(argv, error / _MARGIN)
        for name, target in _REFERENCES.items():
            file = f"reference_{name.partition(',')[0]}"
            try:
                # A trivial program for the reference's target has the device attribute as this release writes it.
                flow = self.tools.compile_text("trivial", _TRIVIAL, [*target, "--compile-to=flow"], timeout=60.0)
                attribute = find_device_attribute(flow.read_text(encoding="utf-8"))
                # With traces, iree-run-module would print every tensor.
                module = self._make_reference(file, target, attribute, by_values=by_values, trace=False)
            except CompileError as compile_error:
                self.say(f"{noun} {name}: {compile_error.on_one_line}")
                continue
            result = self.tools.run_with_module(file, module, argv=argv, device=_REFERENCE_DEVICE)
            verb = "gives" if result.passed else "does not give"
            self.say(f"{noun} {name}: {verb} the expected numbers")
            if result.passed:
                return name, attribute
        return None

    def _make_reference(
        self, file: str, target: Sequence[str], attribute: str, *, by_values: bool, trace: bool
    ) -> Path:
        """Compile a reference with the same dispatches, or, if `by_values`, with the dispatches of its own target."""
        if not by_values:
            return self._make_from_flow(file, self.program.text if trace else self.program.untraced, attribute)
        flags = [*(flag for flag in self._general_flags if flag != TRACE_FLAG), *target]
        flags += [TRACE_FLAG] if trace else []
        return self.tools.compile(f"{file}_source.vmfb", self.tools.failure.program, flags)

    def _make_from_flow(self, file: str, text: str, attribute: str) -> Path:
        return compile_flow(self.tools, file, replace_device_attribute(text, attribute), self._general_flags)

    @property
    def _general_flags(self) -> tuple[str, ...]:
        """The compile's flags that apply to every target."""
        return tuple(flag for flag in self.tools.failure.flags if not flag.startswith(_TARGET_FLAGS))

    def _is_right(self, results: Sequence[TensorTrace]) -> bool:
        """Return True if the traced program's results are much nearer to the reference's than the failure's were."""
        error = self.tools.failure.result.max_abs_error
        if not results or error is None or not math.isfinite(error):
            return bool(results) and not any(result.wrong for result in results)
        return all(
            math.isfinite(result.error) and result.error * result.largest <= error / _MARGIN for result in results
        )

    def _confirm_wrong(self, trace: DispatchTrace, reference_trace: _ReferenceTrace) -> WrongDispatch | None:
        """Run a dispatch alone, on its inputs; return the dispatch if it is wrong alone too."""
        dispatch, failure = self.program.dispatches[trace.dispatch], self.tools.failure
        self.say(f"confirming {dispatch.name}")
        shapes = [tensor.shape for tensor in trace.inputs]
        traced_text = self.program.cut_out(dispatch, shapes, with_traces=True)
        target = self._cut_side(f"cut_{trace.call}_target", traced_text, failure.flags, failure.device)
        text, flags = replace_device_attribute(traced_text, reference_trace.device_attribute), self._general_flags
        reference = self._cut_side(f"cut_{trace.call}_reference", text, flags, _REFERENCE_DEVICE)
        suspect = WrongDispatch(
            dispatch=dispatch,
            call=trace.call,
            call_count=len(reference_trace.trace.dispatches),
            program=self.program.cut_out(dispatch, shapes),
            function=make_function(self.program, dispatch),
            reference=reference_trace.reference,
            function_call=failure.name_call(trace.function_call),
        )

        def find_wrong_on(name: str, inputs: Sequence[TensorFile]) -> WrongDispatch | None:
            candidate = replace(suspect, inputs=tuple(inputs))
            return self._find_wrong_on(candidate, (target, reference), f"{name}_{trace.call}")

        return self._choose_inputs(self._list_inputs(trace, reference_trace.trace.folder), find_wrong_on, "it is right")

    def _cut_side(self, name: str, text: str, flags: Sequence[str], device: str) -> TraceSide:
        module = compile_flow(self.tools, name, text, flags)
        return TraceSide(device, (str(module),), (), DISPATCH_FUNCTION, (), str(self.tools.folder))

    def _list_inputs(self, trace: DispatchTrace | UnfinishedDispatch, folder: Path) -> list[TensorFile]:
        """Return the inputs of a dispatch, each value once."""
        indices, tensor_folder = self.program.dispatches[trace.dispatch].distinct_input_indices, folder / trace.kept
        return [TensorFile(trace.inputs[i].type, tensor_folder / f"target_input_{i}.bin") for i in indices]

    def _find_wrong_on(
        self, suspect: WrongDispatch, sides: tuple[TraceSide, TraceSide], name: str
    ) -> WrongDispatch | None:
        """Return the suspect with the expected results for its inputs; None if it is correct on them."""
        args = tuple(tensor.argument for tensor in suspect.inputs)
        target, reference = (replace(side, inputs=args) for side in sides)
        trace = trace_sides(self.tools, name, (target, reference), self.tools.failure.timeout)
        result = trace.dispatches[0]
        if not result.suspect:
            return None
        folder = trace.folder / result.kept
        f64_errors = _measure_f64_errors(suspect, result.outputs, folder, self.tools, f"{name}_f64")
        if f64_errors is not None and f64_errors.only_rounds:
            return None
        expected = tuple(
            TensorFile(tensor.type, folder / f"reference_output_{index}.bin", largest=tensor.largest)
            for index, tensor in enumerate(result.outputs)
        )
        return replace(suspect, error=result.worst, expected=expected, in_f64=f64_errors)

    def _confirm_failing(
        self, unfinished: UnfinishedDispatch, trace: TracePair, symptom: Symptom, timeout: float
    ) -> WrongDispatch | None:
        """Run a dispatch alone, on its inputs; return the dispatch if it fails alone too."""
        dispatch, failure = self.program.dispatches[unfinished.dispatch], self.tools.failure
        self.say(f"confirming {dispatch.name}")
        text = self.program.cut_out(dispatch, [tensor.shape for tensor in unfinished.inputs])
        module = compile_flow(self.tools, "cut", text, failure.flags)
        call, code = len(trace.dispatches), make_function(self.program, dispatch)
        # In several calls, a dispatch runs several times.
        count = max(len(self.program.dispatches), call + 1)

        def fail_on(_: str, inputs: Sequence[TensorFile]) -> WrongDispatch | None:
            args = (f"--device={failure.device}", f"--module={module}", f"--function={DISPATCH_FUNCTION}")
            inputs_args = (f"--input={tensor.argument}" for tensor in inputs)
            if symptom.is_in(self.tools.run_module("cut", (*args, *inputs_args), timeout=timeout)):
                function_call = failure.name_call(unfinished.function_call)
                return WrongDispatch(
                    dispatch, call, count, text, code, inputs=tuple(inputs), function_call=function_call
                )
            return None

        return self._choose_inputs(self._list_inputs(unfinished, trace.folder), fail_on, "it does not fail")

    def _choose_inputs(
        self,
        inputs: Sequence[TensorFile],
        try_inputs: Callable[[str, Sequence[TensorFile]], WrongDispatch | None],
        complaint: str,
    ) -> WrongDispatch | None:
        """Try a suspect on its own inputs; replace large or private ones by made-up ones if it fails on those too."""
        suspect = try_inputs("cut", inputs)
        too_large = sum(tensor.file.stat().st_size for tensor in inputs) > _LARGE_BYTES
        if suspect is None or not (self.without_weights or too_large):
            return suspect
        suspect_on_made_up = try_inputs("made_up", make_up_inputs(inputs, self.tools.folder))
        if suspect_on_made_up is not None or not self.without_weights:
            return suspect_on_made_up or suspect
        withheld = f"{complaint} on made-up inputs, and --no-weights leaves out the model's own values"
        return replace(suspect, withheld_reason=withheld)


@dataclass(frozen=True, slots=True)
class F64Errors:
    """The errors of two sides against f64, as shares of f64's largest value; infinite for NaN or infinity."""

    target: float
    reference: float

    @property
    def only_rounds(self) -> bool:
        """True if the target is correct, or not much worse than the reference."""
        return self.target <= max(TOLERANCES["f32"], _MAX_REFERENCE_RATIO * self.reference)


def widen_to_f64(function: str) -> str:
    """Rewrite a function in f32 as one in f64; empty if that is impossible."""
    if not _F32.search(function) or _MULTIPLE_VALUES.search(function):
        return ""

    def widen(match: re.Match[str]) -> str:
        (value,) = struct.unpack(">f", bytes.fromhex(match[1]))
        return f"0x{struct.pack('>d', value).hex().upper()} : f32"

    return _F32.sub("f64", _HEXADECIMAL.sub(widen, function))


def _measure_f64_errors(
    suspect: WrongDispatch, outputs: Sequence[TensorTrace], folder: Path, tools: IreeTools, name: str
) -> F64Errors | None:
    """Measure the errors of both sides of a dispatch against f64; None if that is impossible."""
    # These imports are late because `run` imports this module and seldom needs them.
    import numpy as np  # noqa: PLC0415

    from iree_gauntlet.workers.iree_side.value_errors import find_largest, measure_difference  # noqa: PLC0415

    text = widen_to_f64(suspect.function)
    if not text or any(not tensor.type.endswith("xf32") for tensor in outputs):
        return None
    try:
        module = tools.compile_text(name, text, _F64_COMPILE_FLAGS, timeout=_F64_TIMEOUT_SECONDS)
    except CompileError:
        return None
    args = [f"--device={_REFERENCE_DEVICE}", f"--module={module}", f"--function={DISPATCH_FUNCTION}"]
    for index, tensor in enumerate(suspect.inputs):
        file, type_ = tensor.file, tensor.type
        if type_.endswith("f32"):
            file, type_ = tools.folder / f"{name}_input_{index}.bin", f"{type_.removesuffix('f32')}f64"
            file.write_bytes(np.fromfile(tensor.file, "<f4").astype("<f8").tobytes())
        args.append(f"--input={type_}=@{file}")
    results = [tools.folder / f"{name}_output_{index}.npy" for index in range(len(outputs))]
    args += [f"--output=@{file}" for file in results]
    if not tools.run_module(name, args, timeout=_F64_TIMEOUT_SECONDS).passed:
        return None
    f64_outputs = [np.load(file).ravel() for file in results]

    def measure_error(side: str) -> float:
        outputs = [np.fromfile(folder / f"{side}_output_{index}.bin", "<f4") for index in range(len(f64_outputs))]
        pairs = zip(outputs, f64_outputs, strict=True)
        return max(
            measure_difference(output, f64_output) / (find_largest(f64_output) or 1.0) for output, f64_output in pairs
        )

    return F64Errors(measure_error("target"), measure_error("reference"))


def make_up_inputs(inputs: Sequence[TensorFile], folder: Path) -> tuple[TensorFile, ...]:
    """Replace inputs by seeded values between their bounds; keep tensors that have an unknown type or no values."""
    import numpy as np  # noqa: PLC0415 - `run` imports this module and seldom needs numpy

    new_tensors: list[TensorFile] = []
    for seed, tensor in enumerate(inputs, start=1):
        *sizes, type_ = tensor.type.split("x")
        count = math.prod(map(int, sizes)) if type_ in CODES else 0
        if not count:
            new_tensors.append(tensor)
            continue
        if type_ == "bf16":
            values = (np.fromfile(tensor.file, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.fromfile(tensor.file, f"<{CODES[type_]}")
        finite_values = values[np.isfinite(values)]
        low, high = (float(finite_values.min()), float(finite_values.max())) if finite_values.size else (0.0, 0.0)
        file = folder / f"made_up_{seed - 1}.bin"
        file.write_bytes(make_seeded_values(type_, count, seed, low, high))
        new_tensors.append(TensorFile(tensor.type, file, (type_, str(count), str(seed), repr(low), repr(high))))
    return tuple(new_tensors)
