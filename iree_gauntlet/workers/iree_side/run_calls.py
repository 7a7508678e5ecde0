"""Make several calls on one instance of modules, in order, and compare their outputs.

    python run_calls.py --device=local-task --module=cache.vmfb --expected_f32_threshold=1e-3 \
        --call=init \
        --call=step --input_from=0.0 --input=f32=1 --changes=0.0 --expected_output=@step.npy

`iree-run-module` makes one call, so the runtime's bindings make these. Flags, output and exit codes are those of
`iree-run-module`, with these flags in addition:

    --call=FUNCTION       begins a call, to which the following flags belong; without a name: the only function
    --input_from=0.1      the input is output 1 of call 0, the same buffer; 0.input1 is input 1 of call 0
    --changes=0.1         the call may change output 1 of call 0 in place; all other earlier outputs must stay
    --outputs=FOLDER      keep compared outputs there, and `calls.jsonl`, which has a line for each call that has ended

Before a call, its number and function are printed (`EXEC @step (call 1)`), so that a crash can be told from the output.
Exit codes: 0 as expected, 1 not as expected or an error of IREE, 2 arguments that cannot be used.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NewType

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import copy_to_host
from iree_gauntlet.workers.iree_side.run_arguments import (
    ELEMENT_TYPES,
    TYPE_NAMES,
    ArgumentValue,
    UnsupportedError,
    compute_storage,
    read_value,
)
from iree_gauntlet.workers.iree_side.run_server import RUNTIME_ERRORS, describe_outputs, judge_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.workers.iree_side.device_context import Native, View


_RECORD_FILE = "calls.jsonl"
_REFERENCE = re.compile(r"\d+\.(?:input)?\d+")
# The end of a number as in C, `1.0f`.
_FLOAT_SUFFIX = re.compile(r"(?<=[\d.])[fF]\Z")
# Flags before the first call that the runtime does not parse itself, besides tolerances.
_COMMON_FLAGS = ("--device", "--module", "--parameters", "--device_allocator", "--outputs")
# The tolerances of iree-run-module, with its defaults; it stores all but those of f64 as floats.
_TYPES = ("f16", "f32", "f64", "bf16")
_TOLERANCES = {
    **dict(zip((f"--expected_{name}_threshold" for name in _TYPES), ("1e-3", "1e-4", "1e-4", "1e-2"), strict=True)),
    "--expected_rtol": "1e-5",
    "--equality_mode": "approximate",
}

# The numbers of a call and of one of its outputs: `0.1`; or of one of its inputs: `0.input1`.
_Reference = NewType("_Reference", str)


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    inputs: list[tuple[str, _Reference | None]]
    expected: list[str]
    changes: list[_Reference]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The parsed flags; `limits` are absolute and relative tolerances by type."""

    device: str
    modules: list[str]
    parameters: list[str]
    allocators: list[str]
    outputs: list[str]
    limits: dict[str, list[float]]
    runtime_flags: list[str]
    calls: list[_Call]


def _parse(argv: Sequence[str]) -> _Plan:
    starts = [index for index, word in enumerate(argv) if word.startswith("--call=")]
    groups = [argv[start:end] for start, end in pairwise([0, *starts, len(argv)])]
    values: dict[str, list[str]] = {flag: [] for flag in _COMMON_FLAGS}
    tolerances, runtime_flags = dict(_TOLERANCES), []
    for word in groups[0]:
        flag, _, value = word.partition("=")
        if flag in values:
            values[flag].append(value)
        elif flag in tolerances:
            tolerances[flag] = _FLOAT_SUFFIX.sub("", value)
        else:
            runtime_flags.append(word)
    devices, modules, parameters, allocators, outputs = values.values()
    if not (devices and modules and starts):
        raise UnsupportedError("--device, --module and --call are required")
    *atols, rtol, mode = tolerances.values()
    limits = {}
    for name, text in zip(_TYPES, atols, strict=True) if mode != "exact" else ():
        limits[name] = [float(text if name == "f64" else np.float32(text)), float(rtol)]
    calls = [_parse_call(words) for words in groups[1:]]
    return _Plan(devices[-1], modules, parameters, allocators, outputs, limits, runtime_flags, calls)


def _parse_call(words: Sequence[str]) -> _Call:
    call = _Call(words[0].partition("=")[2], [], [], [])
    for word in words[1:]:
        flag, _, value = word.partition("=")
        match flag:
            case "--input":
                call.inputs.append((value, None))
            case "--input_from":
                call.inputs.append(("", _parse_reference(word, value)))
            case "--expected_output":
                call.expected.append(value)
            case "--changes":
                call.changes.append(_parse_reference(word, value))
            case _:
                raise UnsupportedError(f"{word} is not a flag of a call: write it before the first --call")
    return call


def _parse_reference(word: str, text: str) -> _Reference:
    if not _REFERENCE.fullmatch(text):
        raise UnsupportedError(f"{word}: expected the numbers of a call and of its output, such as 0.1")
    return _Reference(text)


def _name_output(call: int, index: int) -> _Reference:
    """Return the reference to an output of a call."""
    return _Reference(f"{call}.{index}")


class _Instance:
    """Modules that are loaded on a device, with inputs and outputs of all calls so far, and the outputs' values."""

    def __init__(self, plan: _Plan) -> None:
        from iree import runtime  # noqa: PLC0415 - a Python without the runtime shall say so in one line

        self._runtime = runtime
        # Objects are destroyed in the order of their attributes; the device must be the last.
        self._views: dict[_Reference, View] = {}
        self._values: dict[tuple[int, int], ArgumentValue] = {}
        if plan.runtime_flags:
            runtime.flags.parse_flags(*plan.runtime_flags)
        device = runtime.get_driver(plan.device).create_device_by_uri(plan.device, plan.allocators or None)
        instance = runtime.VmInstance()
        indices: dict[str, Native] = {}
        for text in plan.parameters:
            scope, equals, file = text.partition("=")
            index = indices.setdefault(scope if equals else "", runtime.ParameterIndex())
            index.load(file if equals else scope)
        modules = [runtime.create_hal_module(instance, device)]
        if indices:
            providers = [index.create_provider(scope=scope) for scope, index in indices.items()]
            modules.append(runtime.create_io_parameters_module(instance, *providers))
        modules += [runtime.VmModule.mmap(instance, file) for file in plan.modules]
        self._context = runtime.VmContext(instance, modules=modules)
        self._module = modules[-1]
        # These must live as long as the context.
        self._owned_objects = (modules, instance)
        self._device = device

    def find_function(self, name: str) -> Native:
        """Return a function of the last module; RuntimeError, in the words of iree-run-module, if there is none."""
        if not name:
            names = [one for one in self._module.function_names if not one.startswith("__") and "$" not in one]
            if len(names) != 1:
                raise RuntimeError("more than one exported function present; name one after --call=")
            name = names[0]
        function = self._module.lookup_function(name)
        if function is None:
            raise RuntimeError(f"no function `{name}` exported by module `{self._module.name}`")
        return function

    def make_call(
        self, number: int, function: Native, inputs: Sequence[tuple[str, _Reference | None]]
    ) -> list[ArgumentValue]:
        """Make a call; return the values of its outputs after its end."""
        runtime = self._runtime
        arguments, results = runtime.VmVariantList(len(inputs)), runtime.VmVariantList(1)
        for index, (text, reference) in enumerate(inputs):
            if reference is not None and reference not in self._views:
                raise UnsupportedError(f"no earlier call has the input or output {reference}")
            view = self._push(text) if reference is None else self._views[reference]
            self._views[_Reference(f"{number}.input{index}")] = view
            arguments.push_ref(view)
        self._context.invoke(function, arguments, results)
        for index in range(len(results)):
            try:
                view = results.get_as_object(index, runtime.HalBufferView)
            except ValueError as error:
                raise UnsupportedError(f"output {index} is no tensor") from error
            self._views[_name_output(number, index)], self._values[number, index] = view, self._read(view)
        return [self._values[number, index] for index in range(len(results))]

    def find_changed(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (call, output) of calls before one with this number that have changed since they were read last."""
        for (call, index), old_value in self._values.items():
            if call < number:
                value = self._read(self._views[_name_output(call, index)])
                if value.contents != old_value.contents:
                    self._values[call, index] = value
                    yield call, index

    def _push(self, text: str) -> View:
        value = read_value(text, "")
        if value is None:
            raise UnsupportedError("an input that is none")
        buffer = self._device.allocator.allocate_buffer_copy(
            memory_type=self._runtime.MemoryType.DEVICE_LOCAL,
            allowed_usage=self._runtime.BufferUsage.DEFAULT,
            device=self._device,
            buffer=value.contents,
        )
        return self._runtime.HalBufferView(buffer, value.shape, ELEMENT_TYPES[value.element_type][0])

    def _read(self, view: View) -> ArgumentValue:
        """Copy an output to the host."""
        number = int(view.element_type)
        if number not in TYPE_NAMES:
            raise UnsupportedError(f"an output has the element type {number:#x}")
        shape, element_type = tuple(view.shape), TYPE_NAMES[number]
        _, count, _ = compute_storage(shape, element_type)
        contents = b""
        if count:
            memory = copy_to_host(self._runtime, self._device, self._device.allocator, view.get_buffer())
            # The bindings of 3.8 cannot make a memoryview of it.
            contents = memory.map().asarray((count,), np.dtype("u1")).tobytes()
        return ArgumentValue(shape, element_type, contents)


def _make_calls(plan: _Plan) -> int:
    print("the calls are made by IREE's Python bindings, since iree-run-module makes one call", flush=True)
    instance = _Instance(plan)
    functions = [instance.find_function(call.function) for call in plan.calls]
    failures = 0

    def report_failure(text: str) -> None:
        nonlocal failures
        failures += 1
        print(f"[FAILED] {text}", flush=True)

    for number, (call, function) in enumerate(zip(plan.calls, functions, strict=True)):
        name = f"call {number} ({function.name})"
        print(f"EXEC @{function.name} (call {number})", flush=True)
        actual = instance.make_call(number, function, call.inputs)
        changed = [place for place in instance.find_changed(number) if _name_output(*place) not in call.changes]
        expected = [read_value(text, "") for text in call.expected]
        verdicts = []
        for index, (value, reference) in enumerate(zip(actual, expected, strict=False)):
            try:
                verdicts.append(judge_output(value, reference, plan.limits, None))
            except UnsupportedError:
                # The tool compares no values of this type, so they must be equal.
                verdicts.append(value == reference)
            if not verdicts[-1]:
                report_failure(f"{name}, output {index}: not as expected")
        if call.expected and len(actual) != len(expected):
            report_failure(f"{name}: it returns {len(actual)} outputs, expected {len(expected)}")
        for earlier, index in changed:
            report_failure(f"{name} changed output {index} of call {earlier}")
        for folder in map(Path, plan.outputs):
            # Outputs that nothing is expected of are not kept.
            paths = [str(folder / f"call_{number}_output_{index}") for index in range(len(verdicts))]
            outputs = describe_outputs(actual, verdicts, len(expected), paths)
            record = {"function": function.name, "outputs": outputs, "changed": changed}
            with (folder / _RECORD_FILE).open("a" if number else "w", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    if not failures:
        compared = sum(len(call.expected) for call in plan.calls)
        print(f"[SUCCESS] {len(plan.calls)} calls, {compared} outputs compared" if compared else "nothing was compared")
    return 1 if failures else 0


def main(argv: Sequence[str]) -> int:
    """Make the calls; return the exit code."""
    try:
        return _make_calls(_parse(argv[1:]))
    except (UnsupportedError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (MemoryError, *RUNTIME_ERRORS) as error:
        sys.stderr.write(f"{str(error) or 'RESOURCE_EXHAUSTED; no memory is left'}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
