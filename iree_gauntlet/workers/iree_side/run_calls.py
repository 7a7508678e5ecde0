"""Make several calls on one instance of modules, in order, and compare their outputs or measure their time.

    python run_calls.py --device=local-task --module=cache.vmfb --expected_f32_threshold=1e-3 \
        --call=init \
        --call=step --input_from=0.0 --input=f32=1 --changes=0.0 --expected_output=@step.npy

`iree-run-module` makes one call, so the runtime's bindings make these. Flags, output and exit codes are those of
`iree-run-module`, with these flags in addition:

    --call=FUNCTION       begins a call, to which the following flags belong; without a name: the only function
    --input_from=0.1      the input is output 1 of call 0, the same buffer; 0.input1 is input 1 of call 0
    --changes=0.1         the call may change output 1 of call 0 in place; all other earlier outputs must stay
    --outputs=FOLDER      keep compared outputs there, and `calls.jsonl`, which has a line for each call that has ended
    --timed               the time of a benchmark contains the call's time; without it, that of the last call alone

With `--benchmark_format=json`, nothing is compared. All calls are repeated, in order, on the one instance, each time
with the same values of their inputs. The times of the timed calls, together, are printed as `iree-benchmark-module`
prints its times, whose flags `--benchmark_repetitions`, `--benchmark_min_time` and `--benchmark_min_warmup_time` are
known.

Before a call, its number and function are printed (`EXEC @step (call 1)`), so that a crash can be told from the output.
Exit codes: 0 as expected, 1 not as expected or an error of IREE, 2 arguments that cannot be used.
"""

from __future__ import annotations

import json
import re
import sys
import time
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
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.workers.iree_side.device_context import Native, View


_RECORD_FILE = "calls.jsonl"
_REFERENCE = re.compile(r"\d+\.(?:input)?\d+")
# The end of a number as in C, `1.0f`.
_FLOAT_SUFFIX = re.compile(r"(?<=[\d.])[fF]\Z")
# Flags before the first call that the runtime does not parse itself, besides tolerances.
_COMMON_FLAGS = ("--device", "--module", "--parameters", "--device_allocator", "--outputs")
# Flags that may also follow the calls: they are appended to a command that is repeated.
_APPENDED_PREFIXES = ("--benchmark_", "--task_topology_")
# Flags of a benchmark, with the defaults of Google Benchmark; and flags that say what this program does anyway.
_TIMING = {"--benchmark_repetitions": "1", "--benchmark_min_time": "0.5s", "--benchmark_min_warmup_time": "0"}
_JSON_FLAG = "--benchmark_format=json"
_USUAL_FLAGS = (_JSON_FLAG, "--benchmark_time_unit=ms", "--benchmark_enable_random_interleaving=false")
_FIXED_COUNT = re.compile(r"(\d+)x")
# Passes end after this multiple of the time that was asked for, since the other calls take time that is not counted.
_MAX_WALL_RATIO = 10
_MS_PER_SECOND = 1e3
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
    timed: list[str]


@dataclass(frozen=True, slots=True)
class _Timing:
    """The extent of a benchmark; `passes` is the number of passes of a repetition, or 0 if `min_time` decides."""

    repetitions: int
    min_time: float
    passes: int
    warm_up_time: float


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
    timing: _Timing | None


def _parse(argv: Sequence[str]) -> _Plan:
    appended = [word for word in argv if word.startswith(_APPENDED_PREFIXES)]
    benchmark = [word for word in appended if word.startswith("--benchmark_")]
    argv = [word for word in argv if word not in appended]
    starts = [index for index, word in enumerate(argv) if word.startswith("--call=")]
    groups = [argv[start:end] for start, end in pairwise([0, *starts, len(argv)])]
    values: dict[str, list[str]] = {flag: [] for flag in _COMMON_FLAGS}
    tolerances, runtime_flags = dict(_TOLERANCES), [word for word in appended if word not in benchmark]
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
    timing = _parse_timing(benchmark) if benchmark else None
    return _Plan(devices[-1], modules, parameters, allocators, outputs, limits, runtime_flags, calls, timing)


def _parse_timing(words: Sequence[str]) -> _Timing:
    values = dict(_TIMING)
    for word in words:
        flag, _, value = word.partition("=")
        if flag in values:
            values[flag] = value
        elif word not in _USUAL_FLAGS:
            raise UnsupportedError(f"{word}: the program that makes several calls has no such flag")
    repetitions, min_time, warm_up_time = values.values()
    count = _FIXED_COUNT.fullmatch(min_time)
    try:
        seconds = 0.0 if count else float(min_time.removesuffix("s"))
        return _Timing(max(1, int(repetitions)), seconds, int(count[1]) if count else 0, float(warm_up_time))
    except ValueError as error:
        flags = " ".join(word for word in words if word not in _USUAL_FLAGS)
        expected = "a minimum time such as 0.1s or 100x, a warm-up such as 0.1, and repetitions such as 5"
        raise UnsupportedError(f"expected {expected}; found {flags}") from error


def _parse_call(words: Sequence[str]) -> _Call:
    call = _Call(words[0].partition("=")[2], [], [], [], [])
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
            case "--timed":
                call.timed.append(word)
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
        self._originals: dict[_Reference, View] = {}
        self._output_counts: dict[int, int] = {}
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
    ) -> tuple[float, float]:
        """Make a call; return the seconds that it took, and its CPU time."""
        runtime = self._runtime
        arguments, results = runtime.VmVariantList(len(inputs)), runtime.VmVariantList(1)
        for index, (text, reference) in enumerate(inputs):
            if reference is not None and reference not in self._views:
                raise UnsupportedError(f"no earlier call has the input or output {reference}")
            place = _Reference(f"{number}.input{index}")
            if reference is not None:
                self._views[place] = self._views[reference]
            elif place in self._views:
                self._restore(place, text)
            else:
                self._views[place] = self._push(text)
            arguments.push_ref(self._views[place])
        # As in iree-benchmark-module, the outputs of an earlier pass are freed first.
        for index in range(self._output_counts.get(number, 0)):
            del self._views[_name_output(number, index)]
        start, cpu_start = time.perf_counter(), time.process_time()
        self._context.invoke(function, arguments, results)
        cpu_seconds, seconds = time.process_time() - cpu_start, time.perf_counter() - start
        for index in range(len(results)):
            try:
                view = results.get_as_object(index, runtime.HalBufferView)
            except ValueError as error:
                raise UnsupportedError(f"output {index} is no tensor") from error
            self._views[_name_output(number, index)] = view
        self._output_counts[number] = len(results)
        return seconds, cpu_seconds

    def read_outputs(self, number: int) -> list[ArgumentValue]:
        """Return the values of the outputs of a call that was just made."""
        indices = range(self._output_counts[number])
        self._values |= {(number, index): self._read(self._views[_name_output(number, index)]) for index in indices}
        return [self._values[number, index] for index in indices]

    def find_changed(self, number: int, allowed: Sequence[_Reference]) -> Iterator[tuple[int, int]]:
        """Yield (call, output) of calls before one that have changed since they were read last, but for the allowed."""
        earlier = {_name_output(*place) for place in self._values if place[0] < number}
        if unknown := next((reference for reference in allowed if reference not in earlier), ""):
            raise UnsupportedError(f"--changes={unknown}: no earlier call has the output {unknown}")
        for (call, index), old_value in self._values.items():
            if call < number:
                value = self._read(self._views[_name_output(call, index)])
                if value.contents != old_value.contents:
                    self._values[call, index] = value
                    if _name_output(call, index) not in allowed:
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

    def _restore(self, place: _Reference, text: str) -> None:
        """Write the values of an input into its buffer again; new buffers would make the next call slower."""
        if place not in self._originals:
            self._originals[place] = self._push(text)
        source, target = (views[place].get_buffer() for views in (self._originals, self._views))
        if source.byte_length():
            done_fence = self._runtime.HalFence.create_at(self._device.create_semaphore(0), 1)
            start_fence = self._runtime.HalFence(0)
            self._device.queue_copy(source, target, wait_semaphores=start_fence, signal_semaphores=done_fence)
            done_fence.wait()

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


def _measure_calls(plan: _Plan, timing: _Timing) -> int:
    """Repeat the calls, and print the times as Google Benchmark does (its user guide, "Output Formats")."""
    instance = _Instance(plan)
    functions = [instance.find_function(call.function) for call in plan.calls]
    timed = [number for number, call in enumerate(plan.calls) if call.timed] or [len(plan.calls) - 1]

    def make_pass(*, is_first: bool = False) -> tuple[float, float]:
        total, cpu_total = 0.0, 0.0
        for number, (call, function) in enumerate(zip(plan.calls, functions, strict=True)):
            if is_first:
                print(f"EXEC @{function.name} (call {number})", flush=True)
            seconds, cpu_seconds = instance.make_call(number, function, call.inputs)
            if number in timed:
                total, cpu_total = total + seconds, cpu_total + cpu_seconds
        return total, cpu_total

    make_pass(is_first=True)
    print("all calls were made once", flush=True)
    _make_passes(make_pass, timing.warm_up_time, 0)
    name = f"BM_{'+'.join(functions[number].name for number in timed)}/process_time/real_time"
    rows = []
    for index in range(timing.repetitions):
        count, seconds, cpu_seconds = _make_passes(make_pass, timing.min_time, timing.passes)
        row = {"name": name, "run_name": name, "run_type": "iteration", "threads": 1, "time_unit": "ms"}
        row |= {"repetitions": timing.repetitions, "repetition_index": index, "iterations": count}
        rows.append(row | {"real_time": _MS_PER_SECOND * seconds, "cpu_time": _MS_PER_SECOND * cpu_seconds})
    print(json.dumps({"context": {"executable": sys.argv[0]}, "benchmarks": rows}, indent=1), flush=True)
    return 0


def _make_passes(
    make_pass: Callable[[], tuple[float, float]], min_time: float, passes: int
) -> tuple[int, float, float]:
    """Make at least one pass; return the number of passes, and their mean time and CPU time in seconds.

    With `passes`, that many are made. Otherwise the passes end when their times add up to `min_time`, or after a
    multiple of it.
    """
    start, count, total, cpu_total = time.perf_counter(), 0, 0.0, 0.0
    while True:
        seconds, cpu_seconds = make_pass()
        count, total, cpu_total = count + 1, total + seconds, cpu_total + cpu_seconds
        is_enough = total >= min_time or time.perf_counter() - start >= _MAX_WALL_RATIO * min_time
        if count >= passes if passes else is_enough:
            return count, total / count, cpu_total / count


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
        instance.make_call(number, function, call.inputs)
        actual = instance.read_outputs(number)
        changed = list(instance.find_changed(number, call.changes))
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
        plan = _parse(argv[1:])
        return _measure_calls(plan, plan.timing) if plan.timing else _make_calls(plan)
    except (UnsupportedError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (MemoryError, *RUNTIME_ERRORS) as error:
        sys.stderr.write(f"{str(error) or 'RESOURCE_EXHAUSTED; no memory is left'}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
