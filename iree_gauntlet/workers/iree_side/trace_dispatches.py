"""Run two modules of one program side by side, and compare every tensor that goes into a dispatch or comes out of it.

    python trace_dispatches.py PLAN.json

Both were compiled with `--iree-flow-trace-dispatch-tensors`. Each runs in a process of its own, which hands on its
tensors as they come through a pipe, so that no more than those of one dispatch are held here, and that one may crash.
The plan:

    {"target": {"device": "local-task", "modules": ["/…/a.vmfb"], "parameters": [["model", "/…/m.irpa"]],
                "function": "main", "inputs": ["@/…/x.npy"], "cwd": "/…"},
     "reference": {the same},
     "tolerances": {"f32": 1e-4},     largest |difference|, as a share of the reference's largest |value|; without, none
     "keep": 8,                       how many suspects are written to files
     "timeout": 60,                   seconds after which both are ended
     "folder": "/…"}                  where to

The answer has `dispatches`, an object each: `dispatch`, the key of its traces; `call` (0 is the first one of all);
`inputs` and `outputs`, objects of `type`, `error` as a share, `wrong`; `suspect` where an output is wrong and no input
is; and of the first suspects `kept`, the folder with the tensors of both sides, and the `largest` |value| of each
output of the reference. It also says how both ended: `target` and `reference`, the exit codes (negative: a signal; 0
also for one that was ended since the other had); `unfinished`, dispatches that were begun and gave nothing: objects of
`dispatch`, `kept` and the `inputs`; `differs` (where the sides do not do the same; empty where they do); `results`,
what the function gives in the end, each as in `outputs` with the `largest` |value| of the reference.

With `by_values`, the reference may be another program that means the same: it runs first, and a tensor of the target is
right where the reference has one of the same values in any layout (`ValueIndex`). No errors are known then.

With `capture`, the keys of some dispatches, the target runs alone, up to where each of them has run once: their inputs
go to files, and the answer has for each key a list of `type` and `file`.

Exit codes: as of `plan_file`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import LoadedProgram, OpenDevice
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, get_host_type, read_plan
from iree_gauntlet.workers.iree_side.run_arguments import UnsupportedError, make_array, read_value
from iree_gauntlet.workers.iree_side.value_errors import are_close, difference, find_largest, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.workers.iree_side.plan_file import Array


_INPUTS, _OUTPUTS = " inputs", " outputs"
# In place of a dispatch's key, before what the function gives.
_RESULTS = "results"
# Of the sorted values: the smallest, the largest, and those between them at equal distances.
_KEPT = 257


class ValueIndex:
    """Which tensors a program has, whatever their names and layouts: known by their sorted values.

    A transposed, packed or padded tensor has the values of the plain one, but for zeros. Of each, its count of other
    values and some order statistics are kept, so that an index is small however large the tensors are. Tolerances are
    a share of the largest value, by element type.
    """

    def __init__(self, tolerances: Mapping[str, float]) -> None:
        self._tolerances = tolerances
        self._found: dict[tuple[str, int], list[Array]] = defaultdict(list)

    def add(self, element_type: str, numbers: Array) -> None:
        """Adds a tensor's values, which are not held."""
        count, kept = _sort_values(numbers)
        self._found[element_type, count].append(kept)

    def has(self, element_type: str, numbers: Array) -> bool:
        """Whether a tensor of such values was added."""
        count, kept = _sort_values(numbers)
        limits = self._tolerances.get(element_type, 0.0) * find_largest(kept), 0.0
        return any(are_close(other, kept, limits) for other in self._found.get((element_type, count), ()))


def _sort_values(numbers: Array) -> tuple[int, Array]:
    """How many are not zero, and some of them in their order."""
    values = np.sort(numbers[numbers != 0], axis=None)
    places = np.linspace(0, max(0, values.size - 1), min(values.size, _KEPT)).round().astype(int)
    return values.size, values[places]


@dataclass(frozen=True, slots=True)
class _SidePlan:
    device: str
    modules: list[str]
    parameters: list[list[str]]
    function: str
    inputs: list[str]
    cwd: str


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

    def allow(self, tensor: TracedTensor) -> float:
        """What a tensor may be off, as a share of its largest value."""
        return self.tolerances.get(tensor.element_type, 0.0)


class TracedTensor:
    """A tensor that was traced: `type` as IREE writes it, and its values as bits."""

    def __init__(self, shape: Sequence[int], element_type: str, contents: bytes) -> None:
        self.type = "x".join((*map(str, shape), element_type))
        self.element_type = element_type
        self.contents = contents

    def read_numbers(self) -> Array:
        """Its values in f64."""
        return widen(np.frombuffer(self.contents, get_host_type(self.element_type)), self.element_type)

    def find_largest(self) -> float:
        """The largest |value| that is finite; 0 for none."""
        return find_largest(self.read_numbers())


# What the target and the reference have of it.
_Pair = tuple[list[TracedTensor], list[TracedTensor]]


def measure_error(target: TracedTensor, reference: TracedTensor) -> float:
    """The largest |difference| as a share of the reference's largest |value|; infinite where one is no number alone."""
    if target.contents == reference.contents:
        return 0.0
    worst, scale = difference(target.read_numbers(), reference.read_numbers()), reference.find_largest()
    return worst / scale if scale else (math.inf if worst else 0.0)


@dataclass(slots=True)
class _Compared:
    """What is said of a tensor of the target; by values, nothing is known of its error."""

    type: str
    wrong: bool
    error: float = math.inf
    largest: float = 0.0


class _TraceLog:
    """Pairs what dispatches take with what they give; keeps what is said of them, and the first suspects' tensors.

    The runtime may begin several dispatches before it ends the first of them.
    """

    def __init__(self, plan: _TracePlan) -> None:
        self._folder = Path(plan.folder)
        self._left = plan.keep
        self._begun: dict[str, list[_Pair]] = {}
        self.dispatches: list[dict[str, Any]] = []

    def take(self, key: str, tensors: _Pair, describe: Callable[[_Pair, bool], list[_Compared]]) -> None:
        """Take what a dispatch is given, or what it gives; `describe` compares, and is told which."""
        name = _name_dispatch(key)
        if key.endswith(_INPUTS):
            self._begun.setdefault(name, []).append(tensors)
            return
        # Of a dispatch that takes no tensors, only its outputs are traced.
        given = self._begun[name].pop(0) if self._begun.get(name) else ([], [])
        inputs, outputs = describe(given, True), describe(tensors, False)
        suspect = any(item.wrong for item in outputs) and not any(item.wrong for item in inputs)
        kept, call = "", len(self.dispatches)
        if suspect and self._left:
            self._left -= 1
            for item, tensor in zip(outputs, tensors[1], strict=False):
                item.largest = tensor.find_largest()
            kept = _keep(self._folder / f"call_{call}", given, tensors)
        said = {"inputs": list(map(asdict, inputs)), "outputs": list(map(asdict, outputs))}
        self.dispatches.append({"dispatch": name, **said, "suspect": suspect, "kept": kept, "call": call})

    def find_unfinished(self) -> list[dict[str, Any]]:
        """What was begun and not ended, with the inputs of the last time."""
        last = {name: pairs[-1] for name, pairs in self._begun.items() if pairs}
        return [
            {
                "dispatch": name,
                "kept": _keep(self._folder / f"unfinished_{number}", pair, ([], [])),
                "inputs": [{"type": tensor.type, "wrong": False} for tensor in pair[0]],
            }
            for number, (name, pair) in enumerate(last.items())
        ]


def _compare(plan: _TracePlan) -> dict[str, Any]:
    """Run both sides side by side."""
    folder, log = Path(plan.folder), _TraceLog(plan)
    target, reference = (
        _SideProcess(name, of_side, folder)
        for name, of_side in (("target", plan.target), ("reference", plan.reference))
    )
    differs, results = "", list[_Compared]()

    def kill_both() -> None:
        target.kill()
        reference.kill()

    def describe(pair: _Pair, _: bool) -> list[_Compared]:
        return [
            _Compared(one.type, (error := measure_error(one, other)) > plan.allow(one), error)
            for one, other in zip(*pair, strict=True)
        ]

    late = threading.Timer(plan.timeout, kill_both)
    late.daemon = True
    late.start()
    for (key, tensors), (other_key, references) in zip(target.read_traces(), reference.read_traces(), strict=False):
        types, others = ([tensor.type for tensor in found] for found in (tensors, references))
        if key != other_key or types != others:
            differs = f"{key}: {', '.join(types)} | {other_key}: {', '.join(others)}"
            break
        if key == _RESULTS:
            results = describe((tensors, references), False)
            for item, right in zip(results, references, strict=True):
                item.largest = right.find_largest()
        else:
            log.take(key, (tensors, references), describe)
    said = {"dispatches": log.dispatches, "unfinished": log.find_unfinished(), "differs": differs}
    ends = {"target": target.end(), "reference": reference.end()}
    late.cancel()
    return {**said, **ends, "results": list(map(asdict, results))}


def _compare_values(plan: _TracePlan) -> dict[str, Any]:
    """Run the reference, then the target, and say which tensors of the target the reference does not have."""
    folder = Path(plan.folder)
    index = ValueIndex(plan.tolerances)
    reference = _SideProcess("reference", plan.reference, folder)
    for _, tensors in reference.read_traces():
        for tensor in tensors:
            index.add(tensor.element_type, tensor.read_numbers())
    reference_code = reference.end()
    target, log = _SideProcess("target", plan.target, folder), _TraceLog(plan)

    def describe(pair: _Pair, given: bool) -> list[_Compared]:
        # What is written into begins as zeros, which another program need not have.
        zeros = [given and not item.contents.strip(b"\0") for item in pair[0]]
        return [
            _Compared(item.type, not (known or index.has(item.element_type, item.read_numbers())))
            for item, known in zip(pair[0], zeros, strict=True)
        ]

    for key, tensors in target.read_traces():
        if key != _RESULTS:
            log.take(key, (tensors, []), describe)
    said = {"dispatches": log.dispatches, "unfinished": log.find_unfinished()}
    return {**said, "target": target.end(), "reference": reference_code}


def _name_dispatch(key: str) -> str:
    return key.removesuffix(_INPUTS).removesuffix(_OUTPUTS)


def _capture(plan: _CapturePlan) -> dict[str, Any]:
    """Run the target and keep what some dispatches are given, the first time that each of them runs."""
    folder, wanted = Path(plan.folder), set(plan.capture)
    captured: dict[str, list[dict[str, str]]] = {}
    side = _SideProcess("target", plan.target, folder)
    for key, tensors in side.read_traces():
        name = _name_dispatch(key)
        if name in wanted and name not in captured:
            found = captured[name] = []
            # Of a dispatch that takes no tensors, only its outputs are traced.
            for index, tensor in enumerate(tensors if key.endswith(_INPUTS) else ()):
                file = folder / f"captured_{len(captured)}_{index}.bin"
                file.write_bytes(tensor.contents)
                found.append({"type": tensor.type, "file": str(file)})
        if len(captured) == len(wanted):
            break
    side.end()
    return captured


def _keep(folder: Path, inputs: _Pair, outputs: _Pair) -> str:
    folder.mkdir()
    for kind, (tensors, references) in (("input", inputs), ("output", outputs)):
        for side, found in (("target", tensors), ("reference", references)):
            for index, tensor in enumerate(found):
                (folder / f"{side}_{kind}_{index}.bin").write_bytes(tensor.contents)
    return folder.name


class _SideProcess:
    """The process that runs a side."""

    def __init__(self, name: str, plan: Mapping[str, Any], folder: Path) -> None:
        ours, theirs = os.pipe()
        with (folder / f"{name}.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--emit", str(theirs), json.dumps(plan)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs,),
            )
        os.close(theirs)
        self._stream: BinaryIO = os.fdopen(ours, "rb")

    def read_traces(self) -> Iterator[tuple[str, list[TracedTensor]]]:
        """What it traces, as it comes: keys and tensors, up to where it ends."""
        while line := self._stream.readline():
            if not line.endswith(b"\n"):
                return
            said = json.loads(line)
            tensors = []
            for shape, element_type, size in said["tensors"]:
                contents = self._stream.read(size)
                if len(contents) < size:
                    return
                tensors.append(TracedTensor(shape, element_type, contents))
            yield said["key"], tensors

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self) -> int:
        """Its exit code; 0 where it still has something to say, which nobody waits for: then it is killed."""
        cut_short = bool(self._stream.read(1))
        if cut_short:
            self.kill()
        self._stream.close()
        return 0 if self._process.wait() and cut_short else self._process.returncode


def _emit(plan: _SidePlan, stream: BinaryIO) -> None:
    """Run a side; what it traces goes to the stream."""
    device = OpenDevice(plan.device)

    def trace(key: str, views: Sequence[Any]) -> None:
        tensors = [(list(view.shape), device.type_name(view), device.fetch(view).tobytes()) for view in views]
        head = {"key": key, "tensors": [(shape, name, len(contents)) for shape, name, contents in tensors]}
        stream.write(json.dumps(head).encode() + b"\n")
        stream.writelines(contents for _, _, contents in tensors)
        # A dispatch that crashes is the last one whose inputs have arrived.
        stream.flush()

    program = LoadedProgram(device, plan.modules, plan.parameters, plan.function, trace)
    arguments = []
    for text in plan.inputs:
        value = read_value(text, plan.cwd)
        if value is None:
            raise PlanError(f"the input {text!r} is no tensor")
        arguments.append(device.push(make_array(value), value.element_type))
    trace(_RESULTS, program.invoke(arguments))


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    if "capture" in said:
        return _capture(read_plan(_CapturePlan, said))
    plan = read_plan(_TracePlan, said)
    return _compare_values(plan) if plan.by_values else _compare(plan)


def main(argv: Sequence[str]) -> int:
    """Run the command, or one of its sides; returns the exit code."""
    if argv[1:2] != ["--emit"]:
        return answer_plan(argv, _answer)
    try:
        with os.fdopen(int(argv[2]), "wb") as stream:
            _emit(read_plan(_SidePlan, json.loads(argv[3])), stream)
    except (PlanError, UnsupportedError, OSError) as error:
        sys.stderr.write(f"trace_dispatches: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
