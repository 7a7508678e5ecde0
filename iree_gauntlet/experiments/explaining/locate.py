"""Where numbers go wrong, or a run fails: which dispatch is the first to do so on inputs that are right?

What computes in f32 is compiled once more with every f32 an f64. That works for what can be a function on tensors and
has neither constants with many values nor functions that llvm-cpu does not know in f64.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.device_kinds import CPU, DEVICE_KINDS, VMVX
from iree_gauntlet.experiments.explaining.flow_program import (
    CUT_OUT,
    TOLERANCES,
    TRACED,
    FlowProgram,
    HeldTensor,
    TracedSide,
    as_function,
    compile_flow,
    device_of,
    last_line,
    target_side,
    trace_both,
    with_device,
)
from iree_gauntlet.experiments.explaining.make_values import CODES, seeded_values
from iree_gauntlet.experiments.explaining.tools import CompileError, loosened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.explaining.flow_program import (
        Dispatch,
        TensorTrace,
        TracedDispatch,
        TraceOfBoth,
        UnfinishedDispatch,
    )
    from iree_gauntlet.experiments.explaining.tools import Symptom, Tools


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
    *("--iree-hal-target", "--iree-hal-local-target", "--iree-hal-substitute", f"--iree-{CPU.code_generator}"),
    # Those of VMVX stay: it may be the reference.
    *(f"--iree-{name}" for kind in DEVICE_KINDS if kind is not VMVX for name in kind.names),
)
_TRIVIAL = """\
func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
# What a program is held against, the cheaper first.
_REFERENCES = {
    f"{CPU.backend}, generic": (*CPU.target_flags, "--iree-llvmcpu-target-cpu=generic"),
    VMVX.family: VMVX.target_flags,
}
_REFERENCE_DEVICE = CPU.device
# What is nearer than a failure by so much is another thing: another order of operations.
_MUCH = 10
# Dispatches before and after the one that is wrong, whose errors are kept.
_AROUND = 6
# In a bundle of 10 MB there is more than inputs.
_LARGE_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class WrongDispatch:
    """A dispatch that is wrong, or fails, on inputs that are right; which call it was `of` all that ran.

    Attributes:
        program: as a program of its own, in the `flow` phase.
        function: the same as a function that every release reads; empty where it cannot be one.
        reference: what it was held against; empty where it fails before it gives anything.
        error: its largest error, as a share of the largest value; infinite where one side alone has NaN or infinity.
        expected: what the reference gives.
        withheld: why it may not be passed on.
    """

    dispatch: Dispatch
    call: int
    of: int
    program: str
    function: str
    reference: str = ""
    inputs: tuple[HeldTensor, ...] = ()
    error: float = 0.0
    expected: tuple[HeldTensor, ...] = ()
    in_f64: InF64 | None = None
    withheld: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """What a search for the dispatch came to.

    `around` has the dispatches before and after the one: which call each is, its name, and the largest error of what it
    gives, as a share of its largest value.
    """

    suspect: WrongDispatch | None = None
    why: str = ""
    traced: int = 0
    reference: str = ""
    around: tuple[tuple[int, str, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For the record; infinite errors are null."""
        found: dict[str, Any] = {"why": self.why, "traced": self.traced, "reference": self.reference}
        one = self.suspect
        if one is None:
            return found
        found["made_up"] = any(item.made for item in one.inputs)
        if one.in_f64 is not None:
            found["in_f64"] = {"target": finite(one.in_f64.target), "reference": finite(one.in_f64.reference)}
        # It says nothing of numbers where a run fails before it gives any.
        found |= {"dispatch": one.dispatch.name, "call": one.call, "of": one.of, "error": finite(one.error)}
        found["around"] = [[call, name, finite(off)] for call, name, off in self.around]
        return found | {"inputs": [item.type for item in one.inputs], "outputs": [item.type for item in one.expected]}


def finite(error: float) -> float | None:
    """An error for the record, which has null for one that is infinite."""
    return error if math.isfinite(error) else None


@dataclass(frozen=True, slots=True)
class _Held:
    """A target that was traced and held against a reference; by values, where that has dispatches of its own."""

    reference: str
    device: str
    trace: TraceOfBoth
    by_values: bool


@dataclass(frozen=True, slots=True)
class DispatchSearch:
    """A search in the program of a failure; `private` where the model's own values are not to be passed on."""

    tools: Tools
    say: Callable[[str], None]
    private: bool
    program: FlowProgram

    def find_wrong(self, elsewhere: Callable[[], bool]) -> Located:
        """The first dispatch that is wrong on right inputs, confirmed on those inputs; GauntletError for no trace.

        `elsewhere` is asked where the same dispatches give the same for every target: whether the fault is found before
        them, so that no others are tried.
        """
        held = self._hold_against_reference(elsewhere)
        if held is None:
            return Located(
                why="no reference gives the expected numbers either: the fault lies before the dispatches (in the "
                "import, in constants that the compiler computes, in the expected values, or in the tolerance)"
            )
        trace, traces = held.trace, held.trace.dispatches
        for side, code in (("target", trace.target), ("reference", trace.reference)):
            if code:
                begun = self._name_dispatches(trace.unfinished) or "none of its dispatches"
                said = last_line(trace.folder / f"{side}.txt")
                why = f"traced, the {side} does not run to its end, in {begun}: {said}"
                return Located(why=why, traced=len(traces), reference=held.reference)
        if trace.differs:
            why = f"target and reference do not run the same dispatches: {trace.differs}"
            return Located(why=why, reference=held.reference)
        if self._is_right(trace.results):
            why = "with its dispatches traced it passes: the fault is in allocation, aliasing or synchronisation, not"
            return Located(why=f"{why} in a dispatch", traced=len(traces), reference=held.reference)
        suspects = [item for item in traces if item.suspect and item.kept]
        for item in suspects:
            suspect = self._confirm_wrong(item, held)
            if suspect is not None:
                around = tuple(
                    (one.call, self.program.dispatches[one.dispatch].name, one.worst)
                    for one in traces
                    # By values, nothing is known of how far others are off.
                    if abs(one.call - item.call) <= _AROUND and not held.by_values
                )
                return Located(suspect, "", len(traces), held.reference, around)
        if suspects:
            first = self._name_dispatches(suspects[:1])
            why = f"dispatches differ from the reference, {first} as the first, but none is wrong on its own inputs"
        elif held.by_values:
            why = f"each dispatch that takes values which {held.reference} has too gives such values; the others are"
            why += " not judged"
        else:
            worst = max(item.worst for item in traces)
            why = "no dispatch jumps: each gives what its inputs mean, and errors grow to "
            why += f"{worst:.2g} of the largest value"
        return Located(why=why, traced=len(traces), reference=held.reference)

    def find_failing(self, symptom: Symptom) -> Located:
        """The dispatch in which a run fails, confirmed by itself on the inputs that it had; GauntletError as above."""
        side = target_side(self.tools, self.program)
        self.say(f"tracing {len(self.program.dispatches)} dispatches")
        # Both sides are the same program: whichever fails first is looked at.
        timeout = symptom.seconds or self.tools.failure.timeout
        trace = trace_both(self.tools, "trace", (side, side), timeout)
        count = len(trace.dispatches)
        if not (trace.target or trace.reference):
            why = "with its dispatches traced it does not fail: the fault is in allocation, aliasing or"
            return Located(why=f"{why} synchronisation, not in a dispatch", traced=count)
        for item in trace.unfinished:
            suspect = self._confirm_failing(item, trace, symptom, timeout)
            if suspect is not None:
                return Located(suspect, "", count)
        if trace.unfinished:
            names = self._name_dispatches(trace.unfinished)
            return Located(why=f"it fails in {names}, which alone does not fail on its inputs", traced=count)
        said = last_line(trace.folder / "target.txt")
        return Located(why=f"it fails in none of its {len(self.program.dispatches)} dispatches: {said}", traced=count)

    def _name_dispatches(self, items: Iterable[TracedDispatch | UnfinishedDispatch]) -> str:
        return ", ".join(self.program.dispatches[item.dispatch].name for item in items)

    def _hold_against_reference(self, elsewhere: Callable[[], bool]) -> _Held | None:
        """The target against the same dispatches for another target; where there are none, against other dispatches."""
        held = target = None
        count, timeout = len(self.program.dispatches), self.tools.failure.timeout
        for by_values in (False, True):
            chosen = self._find_reference(by_values=by_values)
            if chosen is None:
                if elsewhere():
                    return None
                continue
            name, device = chosen
            self.say(f"tracing {count} dispatches against {name}{', by their values' if by_values else ''}")
            folder, flags = "trace_values" if by_values else "trace", _REFERENCES[name]
            module = self._make_reference(f"{folder}_reference", flags, device, by_values=by_values, traced=True)
            # Where nothing is right, nobody asks what the target does.
            target = target or target_side(self.tools, self.program)
            reference = replace(target, device=_REFERENCE_DEVICE, modules=(str(module),))
            trace = trace_both(self.tools, folder, (target, reference), timeout, by_values=by_values)
            held = _Held(name, device, trace, by_values)
            if not trace.differs:
                break
        return held

    def _find_reference(self, *, by_values: bool) -> tuple[str, str] | None:
        """Name and device of the first reference that gives the expected numbers; None where none does."""
        kind = "reference compiled from the source" if by_values else "reference"
        error = self.tools.failure.result.max_abs_error
        argv = self.tools.failure.argv[1:]
        if error is not None and math.isfinite(error):
            # Another target rounds otherwise: a tenth of the failure is near enough to be told from it.
            argv = loosened(argv, error / _MUCH)
        for name, target in _REFERENCES.items():
            file = f"reference_{name.partition(',')[0]}"
            try:
                # How this release writes a target, as in a program that is compiled for it.
                flow = self.tools.compile_text("trivial", _TRIVIAL, [*target, "--compile-to=flow"], timeout=60.0)
                device = device_of(flow.read_text(encoding="utf-8"))
                # Traced, iree-run-module would print every tensor.
                module = self._make_reference(file, target, device, by_values=by_values, traced=False)
            except CompileError as problem:
                self.say(f"{kind} {name}: {problem.what}")
                continue
            ran = self.tools.run_with(file, module, argv=argv, device=_REFERENCE_DEVICE)
            gives = "gives" if ran.passed else "does not give"
            self.say(f"{kind} {name}: {gives} the expected numbers")
            if ran.passed:
                return name, device
        return None

    def _make_reference(self, file: str, target: Sequence[str], device: str, *, by_values: bool, traced: bool) -> Path:
        """A reference of the same dispatches; by values, of dispatches of its own."""
        if not by_values:
            return self._make_from_flow(file, self.program.text if traced else self.program.untraced, device)
        flags = [*(flag for flag in self._general_flags if flag != TRACED), *target, *((TRACED,) if traced else ())]
        return self.tools.compile(f"{file}_source.vmfb", self.tools.failure.program, flags)

    def _make_from_flow(self, file: str, text: str, device: str) -> Path:
        return compile_flow(self.tools, file, with_device(text, device), self._general_flags)

    @property
    def _general_flags(self) -> tuple[str, ...]:
        """Flags that mean something for every target; an executable that was put in stays with its own."""
        return tuple(flag for flag in self.tools.failure.flags if not flag.startswith(_OF_TARGETS))

    def _is_right(self, results: Sequence[TensorTrace]) -> bool:
        """Whether the traced program gives in the end what its reference gives: much nearer than it failed by."""
        error = self.tools.failure.result.max_abs_error
        if not results or error is None or not math.isfinite(error):
            return bool(results) and not any(item.wrong for item in results)
        return all(math.isfinite(item.error) and item.error * item.largest <= error / _MUCH for item in results)

    def _confirm_wrong(self, item: TracedDispatch, held: _Held) -> WrongDispatch | None:
        """A dispatch by itself, on the inputs that it had: the suspect where it is wrong there too."""
        dispatch, failure = self.program.dispatches[item.dispatch], self.tools.failure
        self.say(f"confirming {dispatch.name}")
        shapes = [tensor.shape for tensor in item.inputs]
        traced = self.program.cut_out(dispatch, shapes, traced=True)
        target = self._cut_side(f"cut_{item.call}_target", traced, failure.flags, failure.device)
        text, flags = with_device(traced, held.device), self._general_flags
        reference = self._cut_side(f"cut_{item.call}_reference", text, flags, _REFERENCE_DEVICE)
        suspect = WrongDispatch(
            dispatch=dispatch,
            call=item.call,
            of=len(held.trace.dispatches),
            program=self.program.cut_out(dispatch, shapes),
            function=as_function(self.program, dispatch),
            reference=held.reference,
        )

        def try_on(name: str, inputs: Sequence[HeldTensor]) -> WrongDispatch | None:
            given = replace(suspect, inputs=tuple(inputs))
            return self._find_wrong_on(given, (target, reference), f"{name}_{item.call}")

        return self._choose_inputs(self._list_inputs(item, held.trace.folder), try_on, "it is right")

    def _cut_side(self, name: str, text: str, flags: Sequence[str], device: str) -> TracedSide:
        module = compile_flow(self.tools, name, text, flags)
        return TracedSide(device, (str(module),), (), CUT_OUT, (), str(self.tools.folder))

    def _list_inputs(self, item: TracedDispatch | UnfinishedDispatch, folder: Path) -> list[HeldTensor]:
        """What a dispatch was given, each value once."""
        places, kept = self.program.dispatches[item.dispatch].places, folder / item.kept
        return [HeldTensor(item.inputs[i].type, kept / f"target_input_{i}.bin") for i in places]

    def _find_wrong_on(
        self, suspect: WrongDispatch, sides: tuple[TracedSide, TracedSide], name: str
    ) -> WrongDispatch | None:
        """The suspect with what it gives for its inputs; None where it is right on them."""
        texts = tuple(item.argument for item in suspect.inputs)
        target, reference = (replace(side, inputs=texts) for side in sides)
        trace = trace_both(self.tools, name, (target, reference), self.tools.failure.timeout)
        ran = trace.dispatches[0]
        if not ran.suspect:
            return None
        folder = trace.folder / ran.kept
        exact = _hold_against_f64(suspect, ran.outputs, folder, self.tools, f"{name}_f64")
        if exact is not None and exact.only_rounds:
            return None
        expected = tuple(
            HeldTensor(item.type, folder / f"reference_output_{index}.bin", largest=item.largest)
            for index, item in enumerate(ran.outputs)
        )
        return replace(suspect, error=ran.worst, expected=expected, in_f64=exact)

    def _confirm_failing(
        self, item: UnfinishedDispatch, trace: TraceOfBoth, symptom: Symptom, timeout: float
    ) -> WrongDispatch | None:
        """A dispatch by itself, on the inputs that it had: the suspect where it fails there too."""
        dispatch, failure = self.program.dispatches[item.dispatch], self.tools.failure
        self.say(f"confirming {dispatch.name}")
        text = self.program.cut_out(dispatch, [tensor.shape for tensor in item.inputs])
        module = compile_flow(self.tools, "cut", text, failure.flags)
        call, of, function = len(trace.dispatches), len(self.program.dispatches), as_function(self.program, dispatch)

        def try_on(_: str, inputs: Sequence[HeldTensor]) -> WrongDispatch | None:
            words = (f"--device={failure.device}", f"--module={module}", f"--function={CUT_OUT}")
            texts = (f"--input={one.argument}" for one in inputs)
            if symptom.is_in(self.tools.run_module("cut", (*words, *texts), timeout=timeout)):
                return WrongDispatch(dispatch, call, of, text, function, inputs=tuple(inputs))
            return None

        return self._choose_inputs(self._list_inputs(item, trace.folder), try_on, "it does not fail")

    def _choose_inputs(
        self,
        inputs: Sequence[HeldTensor],
        try_on: Callable[[str, Sequence[HeldTensor]], WrongDispatch | None],
        otherwise: str,
    ) -> WrongDispatch | None:
        """A suspect on its own inputs, or on made-up ones in place of large or private ones where it shows it too."""
        suspect = try_on("cut", inputs)
        too_large = sum(item.file.stat().st_size for item in inputs) > _LARGE_BYTES
        if suspect is None or not (self.private or too_large):
            return suspect
        made = try_on("made_up", made_up(inputs, self.tools.folder))
        if made is not None or not self.private:
            return made or suspect
        withheld = f"{otherwise} on made-up inputs, and --no-weights leaves out the model's own values"
        return replace(suspect, withheld=withheld)


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
    suspect: WrongDispatch, outputs: Sequence[TensorTrace], kept: Path, tools: Tools, name: str
) -> InF64 | None:
    """How far both sides of a dispatch are off what f64 gives; None where that cannot be had."""
    # `run` brings this module, and seldom needs these.
    import numpy as np  # noqa: PLC0415

    from iree_gauntlet.workers.iree_side.value_errors import difference, find_largest  # noqa: PLC0415

    text = text_in_f64(suspect.function)
    if not text or any(not item.type.endswith("xf32") for item in outputs):
        return None
    try:
        module = tools.compile_text(name, text, _FLAGS, timeout=_TIMEOUT_SECONDS)
    except CompileError:
        return None
    words = [f"--device={_REFERENCE_DEVICE}", f"--module={module}", f"--function={CUT_OUT}"]
    for index, item in enumerate(suspect.inputs):
        file, kind = item.file, item.type
        if kind.endswith("f32"):
            file, kind = tools.folder / f"{name}_input_{index}.bin", f"{kind.removesuffix('f32')}f64"
            file.write_bytes(np.fromfile(item.file, "<f4").astype("<f8").tobytes())
        words.append(f"--input={kind}=@{file}")
    results = [tools.folder / f"{name}_output_{index}.npy" for index in range(len(outputs))]
    words += [f"--output=@{file}" for file in results]
    if not tools.run_module(name, words, timeout=_TIMEOUT_SECONDS).passed:
        return None
    exact = [np.load(file).ravel() for file in results]

    def measure(side: str) -> float:
        given = [np.fromfile(kept / f"{side}_output_{index}.bin", "<f4") for index in range(len(exact))]
        pairs = zip(given, exact, strict=True)
        return max(difference(one, other) / (find_largest(other) or 1.0) for one, other in pairs)

    return InF64(measure("target"), measure("reference"))


def made_up(inputs: Sequence[HeldTensor], folder: Path) -> tuple[HeldTensor, ...]:
    """The same with values of a seed, within the bounds of their own; what has no known type, or none, stays."""
    import numpy as np  # noqa: PLC0415 - `run` brings this module, and seldom needs it

    made: list[HeldTensor] = []
    for seed, item in enumerate(inputs, start=1):
        *sizes, kind = item.type.split("x")
        count = math.prod(map(int, sizes)) if kind in CODES else 0
        if not count:
            made.append(item)
            continue
        if kind == "bf16":
            values = (np.fromfile(item.file, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.fromfile(item.file, f"<{CODES[kind]}")
        known = values[np.isfinite(values)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
        file = folder / f"made_up_{seed - 1}.bin"
        file.write_bytes(seeded_values(kind, count, seed, low, high))
        made.append(HeldTensor(item.type, file, (kind, str(count), str(seed), repr(low), repr(high))))
    return tuple(made)
