"""Run two modules of one program side by side, and compare all input and output tensors of their dispatches.

    python trace_dispatches.py PLAN.json

Both were compiled with `--iree-flow-trace-dispatch-tensors`. Each runs in a separate process, which may crash. The
process sends its tensors through a pipe as they are traced, so only one dispatch's tensors are in memory here.
The plan:

    {"target": {"device": "local-task", "modules": ["/…/a.vmfb"], "parameters": [["model", "/…/m.irpa"]],
                "function": "main", "inputs": ["@/…/x.npy"], "cwd": "/…",
                "calls": [["--call=f", "--input=…", "--input_from=0.1"]]},   in place of function and inputs, if any
     "reference": {the same},
     "tolerances": {"f32": 1e-4},     largest |difference|, as a share of the reference's largest |value|; default 0
     "keep": 8,                       maximum number of suspects that are written to files
     "timeout": 60,                   seconds after which both processes are killed
     "folder": "/…"}                  destination of the files

The answer has `dispatches`, a list of objects: `dispatch` is the traces' key; `call` counts all dispatches from 0;
`function_call` is the number of the call of a function that it belongs to; `inputs` and `outputs` are objects of
`type`, `error` (as a share) and `wrong`; `suspect` is true if an output is wrong but no input. The first suspects also
have `kept`, the folder with the tensors of both sides, and for each output the reference's `largest` |value|. `target`
and `reference` are exit codes: negative for a signal, and 0 also for a process that was killed because the other had
ended. `unfinished` lists dispatches without outputs: `dispatch`, `kept` and `inputs`. `differs` says where the two
sides run different dispatches; empty if they do not. `results` are the function's outputs, each as in `outputs`, with
the reference's `largest` |value|.

With `by_values`, the reference may be another program of the same meaning. It runs first, and a tensor of the target is
right if the reference has a tensor of the same values in any layout (`ValueIndex`). Errors are then unknown.

With `capture`, the keys of some dispatches, only the target runs, until each of these dispatches has run once. Their
inputs are written to files, and the answer has for each key a list of `type` and `file`.

Exit codes: those of `plan_file`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import DeviceProgram, OpenDevice
from iree_gauntlet.workers.iree_side.plan_file import PlanError, get_host_type, read_plan, run_worker_main
from iree_gauntlet.workers.iree_side.run_arguments import UnsupportedError, make_array, read_value
from iree_gauntlet.workers.iree_side.value_errors import are_close, find_largest, measure_difference, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.workers.iree_side.device_context import View
    from iree_gauntlet.workers.iree_side.plan_file import Array


_INPUTS, _OUTPUTS = " inputs", " outputs"
# The beginning of a call, as in `run_calls.py`.
_CALL = "--call="
# The key of the function's outputs, in place of a dispatch's key.
_RESULTS = "results"
# The number of sampled sorted values: the smallest, the largest, and others at equal distances in the order.
_SAMPLE_COUNT = 257


class ValueIndex:
    """An index of a program's tensors by their sorted values, whatever their names and layouts.

    A transposed, packed or padded tensor has the same values as the plain tensor, except zeros. The index stores for
    each tensor the number of nonzero values and some order statistics, so it is small even for large tensors.
    Tolerances are a share of the largest value, by element type.
    """

    def __init__(self, tolerances: Mapping[str, float]) -> None:
        self._tolerances = tolerances
        self._samples: dict[tuple[str, int], list[Array]] = defaultdict(list)

    def add(self, element_type: str, numbers: Array) -> None:
        """Add a tensor; its values are not stored."""
        count, sample = _sort_values(numbers)
        self._samples[element_type, count].append(sample)

    def has(self, element_type: str, numbers: Array) -> bool:
        """Return whether a tensor with these values, up to the tolerance, was added."""
        count, sample = _sort_values(numbers)
        limits = self._tolerances.get(element_type, 0.0) * find_largest(sample), 0.0
        return any(are_close(candidate, sample, limits) for candidate in self._samples.get((element_type, count), ()))


def _sort_values(numbers: Array) -> tuple[int, Array]:
    """Return the number of nonzero values, and a sample of these values in sorted order."""
    values = np.sort(numbers[numbers != 0], axis=None)
    indices = np.linspace(0, max(0, values.size - 1), min(values.size, _SAMPLE_COUNT)).round().astype(int)
    return values.size, values[indices]


@dataclass(frozen=True, slots=True)
class _SidePlan:
    device: str
    modules: list[str]
    parameters: list[list[str]]
    function: str
    inputs: list[str]
    cwd: str
    calls: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _CapturePlan:
    target: dict[str, Any]
    folder: str
    capture: list[str]


@dataclass(frozen=True, slots=True)
class _TracePlan:
    target: dict[str, Any]
    reference: dict[str, Any]
    folder: str
    tolerances: dict[str, float]
    keep: int
    timeout: float
    by_values: bool = False

    def allow(self, tensor: RawTensor) -> float:
        """Return the tolerance of a tensor, as a share of its largest value."""
        return self.tolerances.get(tensor.element_type, 0.0)


class RawTensor:
    """A traced tensor: `type` as IREE writes it, and its values as bits."""

    def __init__(self, shape: Sequence[int], element_type: str, contents: bytes) -> None:
        self.type = "x".join((*map(str, shape), element_type))
        self.element_type = element_type
        self.contents = contents

    def read_numbers(self) -> Array:
        """Return its values in f64."""
        return widen(np.frombuffer(self.contents, get_host_type(self.element_type)), self.element_type)

    def find_largest(self) -> float:
        """Return the largest finite |value|; 0 if there is none."""
        return find_largest(self.read_numbers())


# The tensors of the target, and the same tensors of the reference.
_Pair = tuple[list[RawTensor], list[RawTensor]]


def measure_error(target: RawTensor, reference: RawTensor) -> float:
    """Return the largest |difference| as a share of the reference's largest |value|; infinite if one alone is NaN."""
    if target.contents == reference.contents:
        return 0.0
    worst, scale = measure_difference(target.read_numbers(), reference.read_numbers()), reference.find_largest()
    return worst / scale if scale else (math.inf if worst else 0.0)


@dataclass(slots=True)
class _TensorReport:
    """The result for a tensor of the target; with `by_values`, its error is unknown."""

    type: str
    wrong: bool
    error: float = math.inf
    largest: float = 0.0


class _TraceLog:
    """Matches the outputs of dispatches with their inputs; records the results, and the first suspects' tensors.

    The runtime may start several dispatches before the first one ends.
    """

    def __init__(self, plan: _TracePlan) -> None:
        self._folder = Path(plan.folder)
        self._remaining_suspects = plan.keep
        self._started_inputs: dict[str, list[_Pair]] = {}
        self.ended_calls = 0
        self.dispatches: list[dict[str, object]] = []

    def add(self, key: str, tensors: _Pair, describe: Callable[[_Pair, bool], list[_TensorReport]]) -> None:
        """Add the inputs or the outputs of a dispatch; `describe` compares them, with True for inputs."""
        name = _name_dispatch(key)
        if key.endswith(_INPUTS):
            self._started_inputs.setdefault(name, []).append(tensors)
            return
        # A dispatch without input tensors has only a trace of its outputs.
        input_pair = self._started_inputs[name].pop(0) if self._started_inputs.get(name) else ([], [])
        inputs, outputs = describe(input_pair, True), describe(tensors, False)
        suspect = any(report.wrong for report in outputs) and not any(report.wrong for report in inputs)
        saved_folder, call = "", len(self.dispatches)
        if suspect and self._remaining_suspects:
            self._remaining_suspects -= 1
            for report, tensor in zip(outputs, tensors[1], strict=False):
                report.largest = tensor.find_largest()
            saved_folder = _save_tensors(self._folder / f"call_{call}", input_pair, tensors)
        tensor_reports = {"inputs": list(map(asdict, inputs)), "outputs": list(map(asdict, outputs))}
        entry = {"dispatch": name, **tensor_reports, "suspect": suspect, "kept": saved_folder, "call": call}
        self.dispatches.append(entry | {"function_call": self.ended_calls})

    def find_unfinished(self) -> list[dict[str, object]]:
        """Return dispatches that started but did not end, each with its last inputs."""
        last_pairs = {name: pairs[-1] for name, pairs in self._started_inputs.items() if pairs}
        return [
            {
                "dispatch": name,
                "kept": _save_tensors(self._folder / f"unfinished_{number}", pair, ([], [])),
                "inputs": [{"type": tensor.type, "wrong": False} for tensor in pair[0]],
                "function_call": self.ended_calls,
            }
            for number, (name, pair) in enumerate(last_pairs.items())
        ]


def _compare(plan: _TracePlan) -> dict[str, object]:
    """Run both sides in parallel."""
    folder, log = Path(plan.folder), _TraceLog(plan)
    target, reference = (
        _SideProcess(name, side_plan, folder)
        for name, side_plan in (("target", plan.target), ("reference", plan.reference))
    )
    differs, results = "", list[_TensorReport]()

    def kill_both() -> None:
        target.kill()
        reference.kill()

    def describe(pair: _Pair, _: bool) -> list[_TensorReport]:
        return [
            _TensorReport(tensor.type, (error := measure_error(tensor, right)) > plan.allow(tensor), error)
            for tensor, right in zip(*pair, strict=True)
        ]

    timer = threading.Timer(plan.timeout, kill_both)
    timer.daemon = True
    timer.start()
    for (key, tensors), (other_key, references) in zip(target.read_traces(), reference.read_traces(), strict=False):
        types, right_types = ([tensor.type for tensor in side_tensors] for side_tensors in (tensors, references))
        if key != other_key or types != right_types:
            differs = f"{key}: {', '.join(types)} | {other_key}: {', '.join(right_types)}"
            break
        if key == _RESULTS:
            reports = describe((tensors, references), False)
            for report, right in zip(reports, references, strict=True):
                report.largest = right.find_largest()
            results += reports
            log.ended_calls += 1
        else:
            log.add(key, (tensors, references), describe)
    trace_report = {"dispatches": log.dispatches, "unfinished": log.find_unfinished(), "differs": differs}
    exit_codes = {"target": target.end(), "reference": reference.end()}
    timer.cancel()
    return {**trace_report, **exit_codes, "results": list(map(asdict, results))}


def _compare_values(plan: _TracePlan) -> dict[str, object]:
    """Run the reference, then the target, and report which tensors of the target the reference does not have."""
    folder = Path(plan.folder)
    index = ValueIndex(plan.tolerances)
    reference = _SideProcess("reference", plan.reference, folder)
    for _, tensors in reference.read_traces():
        for tensor in tensors:
            index.add(tensor.element_type, tensor.read_numbers())
    reference_code = reference.end()
    target, log = _SideProcess("target", plan.target, folder), _TraceLog(plan)

    def describe(pair: _Pair, are_inputs: bool) -> list[_TensorReport]:
        # Inputs of zeros are right: they may be buffers to write into, which another program need not have.
        zeros = [are_inputs and not tensor.contents.strip(b"\0") for tensor in pair[0]]
        return [
            _TensorReport(tensor.type, not (is_zero or index.has(tensor.element_type, tensor.read_numbers())))
            for tensor, is_zero in zip(pair[0], zeros, strict=True)
        ]

    for key, tensors in target.read_traces():
        if key == _RESULTS:
            log.ended_calls += 1
        else:
            log.add(key, (tensors, []), describe)
    trace_report = {"dispatches": log.dispatches, "unfinished": log.find_unfinished()}
    return {**trace_report, "target": target.end(), "reference": reference_code}


def _name_dispatch(key: str) -> str:
    return key.removesuffix(_INPUTS).removesuffix(_OUTPUTS)


def _capture(plan: _CapturePlan) -> Mapping[str, object]:
    """Run the target; save the inputs of some dispatches when each of these runs for the first time."""
    folder, requested_names = Path(plan.folder), set(plan.capture)
    files_by_name: dict[str, list[dict[str, str]]] = {}
    side = _SideProcess("target", plan.target, folder)
    for key, tensors in side.read_traces():
        name = _name_dispatch(key)
        if name in requested_names and name not in files_by_name:
            entries = files_by_name[name] = []
            # A dispatch without input tensors has only a trace of its outputs.
            for index, tensor in enumerate(tensors if key.endswith(_INPUTS) else ()):
                file = folder / f"captured_{len(files_by_name)}_{index}.bin"
                file.write_bytes(tensor.contents)
                entries.append({"type": tensor.type, "file": str(file)})
        if len(files_by_name) == len(requested_names):
            break
    side.end()
    return files_by_name


def _save_tensors(folder: Path, inputs: _Pair, outputs: _Pair) -> str:
    folder.mkdir()
    for kind, (tensors, references) in (("input", inputs), ("output", outputs)):
        for side, side_tensors in (("target", tensors), ("reference", references)):
            for index, tensor in enumerate(side_tensors):
                (folder / f"{side}_{kind}_{index}.bin").write_bytes(tensor.contents)
    return folder.name


class _SideProcess:
    """The process that runs a side."""

    def __init__(self, name: str, plan: Mapping[str, Any], folder: Path) -> None:
        read_end, write_end = os.pipe()
        with (folder / f"{name}.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--emit", str(write_end), json.dumps(plan)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
            )
        os.close(write_end)
        self._stream: BinaryIO = os.fdopen(read_end, "rb")

    def read_traces(self) -> Iterator[tuple[str, list[RawTensor]]]:
        """Yield the traces (keys and tensors) as they arrive, until the process ends."""
        while line := self._stream.readline():
            if not line.endswith(b"\n"):
                return
            header = json.loads(line)
            tensors = []
            for shape, element_type, size in header["tensors"]:
                contents = self._stream.read(size)
                if len(contents) < size:
                    return
                tensors.append(RawTensor(shape, element_type, contents))
            yield header["key"], tensors

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def end(self) -> int:
        """Return the exit code; if the process still has output, kill it and return 0."""
        has_output = bool(self._stream.read(1))
        if has_output:
            self.kill()
        self._stream.close()
        return 0 if self._process.wait() and has_output else self._process.returncode


def _emit(plan: _SidePlan, stream: BinaryIO) -> None:
    """Run a side and write its traces to the stream."""
    device = OpenDevice(plan.device)

    def trace(key: str, views: Sequence[Any]) -> None:
        tensors = [(list(view.shape), device.type_name(view), device.fetch(view).tobytes()) for view in views]
        header = {"key": key, "tensors": [(shape, name, len(contents)) for shape, name, contents in tensors]}
        stream.write(json.dumps(header).encode() + b"\n")
        stream.writelines(contents for _, _, contents in tensors)
        # Flush, so that a crashing dispatch is the last one whose inputs arrive.
        stream.flush()

    # A single call is a list of one.
    calls = plan.calls or [[f"{_CALL}{plan.function}", *(f"--input={text}" for text in plan.inputs)]]
    program = DeviceProgram(device, plan.modules, plan.parameters, calls[0][0].removeprefix(_CALL), trace)
    values: dict[str, View] = {}
    for number, (name, *words) in enumerate(calls):
        arguments = []
        for flag, text in (word.split("=", 1) for word in words):
            if flag == "--input_from":
                arguments.append(values[text])
            elif flag == "--input":
                arguments.append(_push(device, text, plan.cwd))
        program.select(name.removeprefix(_CALL))
        results = program.invoke(arguments)
        trace(_RESULTS, results)
        values |= {f"{number}.input{index}": view for index, view in enumerate(arguments)}
        values |= {f"{number}.{index}": view for index, view in enumerate(results)}


def _push(device: OpenDevice, text: str, cwd: str) -> View:
    value = read_value(text, cwd)
    if value is None:
        raise PlanError(f"the input {text!r} is not a tensor")
    return device.push(make_array(value), value.element_type)


def _answer(document: Mapping[str, object]) -> Mapping[str, object]:
    if "capture" in document:
        return _capture(read_plan(_CapturePlan, document))
    plan = read_plan(_TracePlan, document)
    return _compare_values(plan) if plan.by_values else _compare(plan)


def main(argv: Sequence[str]) -> int:
    """Run the command, or one of its sides; return the exit code."""
    if argv[1:2] != ["--emit"]:
        return run_worker_main(argv, _answer)
    try:
        with os.fdopen(int(argv[2]), "wb") as stream:
            _emit(read_plan(_SidePlan, json.loads(argv[3])), stream)
    except (PlanError, UnsupportedError, OSError) as error:
        sys.stderr.write(f"trace_dispatches: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
