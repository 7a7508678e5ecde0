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

`trace.jsonl` in the folder gets an object a dispatch: `dispatch`, the key of its traces; `call` (0 is the first one of
all); `inputs` and `outputs`, objects of `type`, `error` as a share, `wrong`, `hash` and `reference_hash`; `suspect`
where an output is wrong and no input is; and of the first suspects `kept`, the folder with the tensors of both sides,
and the `largest` |value| of each output of the reference. `end.json` says how both ended: `target` and `reference`, the
exit codes (negative: a signal; 0 also for one that was ended since the other had); `dispatches`; `unfinished`,
dispatches that were begun and gave nothing: objects of `dispatch`, `kept` and the types of the `inputs`; `differs`
(where the sides do not do the same; empty where they do); `results`, what the function gives in the end, each as in
`outputs` with the `largest` |value| of the reference.

With `by_values`, the reference may be another program that means the same: it runs first, and a tensor of the target is
right where the reference has one of the same values in any layout (`ValueIndex`). `trace.jsonl` then has `wrong` of
each tensor, and no errors.

With `capture`, the keys of some dispatches, the target runs alone, up to where each of them has run once: their inputs
go to files, and `captured.json` has for each key a list of `type` and `file`.

Exit codes: 0 compared, as far as both ran; 2 the plan cannot be carried out (one line on stderr).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import LoadedProgram, OpenDevice
from iree_gauntlet.workers.iree_side.plan_file import PlanError, get_host_type, read_plan
from iree_gauntlet.workers.iree_side.run_arguments import UnsupportedError, get_storage, read_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.workers.iree_side.plan_file import Array


_UNUSABLE = 2
_INPUTS, _OUTPUTS = " inputs", " outputs"
# In place of a dispatch's key, before what the function gives.
_RESULTS = "results"


# Of the sorted values: the smallest, the largest, and those between them at equal distances.
_KEPT = 257


class ValueIndex:
    """Which tensors a program has, whatever their names and layouts: known by their sorted values.

    A transposed, packed or padded tensor has the values of the plain one, but for zeros. Of each, its count of other
    values and some order statistics are kept, so that an index is small however large the tensors are.

    `tolerances`: by element type, what a value may be off, as a share of the largest one; without, nothing.
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
        finite = np.abs(kept[np.isfinite(kept)])
        allowed = self._tolerances.get(element_type, 0.0) * float(finite.max(initial=0.0))
        return any(
            np.allclose(other, kept, rtol=0.0, atol=allowed, equal_nan=True)
            for other in self._found.get((element_type, count), ())
        )


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


class TracedTensor:
    """A tensor that was traced: `type` as IREE writes it, and its values as bits."""

    def __init__(self, shape: Sequence[int], element_type: str, contents: bytes) -> None:
        self.type = "x".join((*map(str, shape), element_type))
        self.element_type = element_type
        self.contents = contents

    @property
    def hash(self) -> str:
        """Of its values."""
        return hashlib.blake2b(self.contents, digest_size=8).hexdigest()

    def read_numbers(self) -> Array:
        """Its values in f64."""
        bits = np.frombuffer(self.contents, get_host_type(self.element_type))
        if self.element_type == "bf16":
            bits = (bits.astype("<u4") << 16).view("<f4")
        return bits.astype(np.float64)

    def find_largest(self) -> float:
        """The largest |value| that is finite; 0 for none."""
        numbers = np.abs(self.read_numbers())
        return float(numbers[np.isfinite(numbers)].max(initial=0.0))


# What the target and the reference have of it.
_Pair = tuple[list[TracedTensor], list[TracedTensor]]


def measure_error(target: TracedTensor, reference: TracedTensor) -> float:
    """The largest |difference| as a share of the reference's largest |value|; infinite where one is no number alone."""
    if target.contents == reference.contents:
        return 0.0
    a, b = target.read_numbers(), reference.read_numbers()
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0.0, np.abs(a - b))
    if not np.isfinite(difference).all():
        return float("inf")
    worst, scale = float(difference.max(initial=0.0)), reference.find_largest()
    return worst / scale if scale else (float("inf") if worst else 0.0)


class _Dispatches:
    """Dispatches that were begun; the runtime may begin several before it ends the first of them."""

    def __init__(self) -> None:
        self.begun: dict[str, list[_Pair]] = {}

    def take(self, key: str, tensors: _Pair) -> tuple[str, _Pair] | None:
        """Name and inputs of the dispatch that these tensors end; None where they begin one."""
        name = _name_dispatch(key)
        if key.endswith(_INPUTS):
            self.begun.setdefault(name, []).append(tensors)
            return None
        # Of a dispatch that takes no tensors, only its outputs are traced.
        return name, self.begun[name].pop(0) if self.begun.get(name) else ([], [])


class _TraceLog:
    """Writes what is said of dispatches, and the tensors of the first suspects."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._left = keep
        self._file = (folder / "trace.jsonl").open("w", encoding="utf-8")
        self.count = 0

    def write(self, name: str, said: dict[str, list[dict[str, Any]]], inputs: _Pair, outputs: _Pair) -> None:
        """A suspect is one where an output is wrong and no input is."""
        wrong_in, wrong_out = (any(item["wrong"] for item in said[part]) for part in ("inputs", "outputs"))
        suspect, kept = wrong_out and not wrong_in, ""
        if suspect and self._left:
            self._left -= 1
            for item, tensor in zip(said["outputs"], outputs[1], strict=False):
                item["largest"] = tensor.find_largest()
            kept = _keep(self._folder / f"call_{self.count}", inputs, outputs)
        line = {"dispatch": name, **said, "suspect": suspect, "kept": kept, "call": self.count}
        self._file.write(json.dumps(line) + "\n")
        self.count += 1

    def close(self) -> None:
        self._file.close()


def _compare(plan: _TracePlan) -> None:
    """Run both sides and write what is found."""
    folder = Path(plan.folder)
    sides = {
        name: _SideProcess(name, of_side, folder)
        for name, of_side in (("target", plan.target), ("reference", plan.reference))
    }
    differs, dispatches, allowed = "", _Dispatches(), plan.tolerances
    results: list[dict[str, Any]] = []

    def kill_both() -> None:
        for side in sides.values():
            side.kill()

    late = threading.Timer(plan.timeout, kill_both)
    late.daemon = True
    late.start()
    with closing(_TraceLog(folder, plan.keep)) as log:
        for one, other in zip(sides["target"].read_traces(), sides["reference"].read_traces(), strict=False):
            (key, tensors), (other_key, references) = one, other
            types = [[tensor.type for tensor in found] for found in (tensors, references)]
            if key != other_key or types[0] != types[1]:
                differs = f"{key}: {', '.join(types[0])} | {other_key}: {', '.join(types[1])}"
                break
            if key == _RESULTS:
                pairs = zip(tensors, references, strict=True)
                results = [{**_describe(a, b, allowed), "largest": b.find_largest()} for a, b in pairs]
            elif ended := dispatches.take(key, (tensors, references)):
                name, inputs = ended
                both = (("inputs", inputs), ("outputs", (tensors, references)))
                said = {part: [_describe(a, b, allowed) for a, b in zip(*pair, strict=True)] for part, pair in both}
                log.write(name, said, inputs, (tensors, references))
        unfinished = [
            {
                "dispatch": name,
                "kept": _keep(folder / f"unfinished_{number}", pairs[-1], ([], [])),
                "inputs": [tensor.type for tensor in pairs[-1][0]],
            }
            for number, (name, pairs) in enumerate(dispatches.begun.items())
            if pairs
        ]
    end: dict[str, Any] = {"dispatches": log.count, "unfinished": unfinished, "differs": differs, "results": results}
    end |= {name: side.end() for name, side in sides.items()}
    late.cancel()
    (folder / "end.json").write_text(json.dumps(end), encoding="utf-8")


def _describe(target: TracedTensor, reference: TracedTensor, allowed: Mapping[str, float]) -> dict[str, Any]:
    error = measure_error(target, reference)
    return {
        "type": target.type,
        # Infinity is no JSON.
        "error": error if np.isfinite(error) else None,
        "wrong": error > allowed.get(target.element_type, 0.0),
        "hash": target.hash,
        "reference_hash": reference.hash,
    }


def _compare_values(plan: _TracePlan) -> None:
    """Run the reference, then the target, and write which tensors of the target the reference does not have."""
    folder = Path(plan.folder)
    index = ValueIndex(plan.tolerances)
    reference = _SideProcess("reference", plan.reference, folder)
    for _, tensors in reference.read_traces():
        for tensor in tensors:
            index.add(tensor.element_type, tensor.read_numbers())
    end: dict[str, Any] = {"reference": reference.end(), "differs": ""}
    dispatches = _Dispatches()
    target = _SideProcess("target", plan.target, folder)

    def describe(tensor: TracedTensor, *, known: bool = False) -> dict[str, Any]:
        known = known or index.has(tensor.element_type, tensor.read_numbers())
        return {"type": tensor.type, "wrong": not known}

    with closing(_TraceLog(folder, plan.keep)) as log:
        for key, tensors in target.read_traces():
            if key != _RESULTS and (ended := dispatches.take(key, (tensors, []))):
                name, inputs = ended
                said = {
                    # What is written into begins as zeros, which another program need not have.
                    "inputs": [describe(item, known=item.contents.strip(b"\0") == b"") for item in inputs[0]],
                    "outputs": [describe(item) for item in tensors],
                }
                log.write(name, said, inputs, (tensors, []))
    end |= {
        "dispatches": log.count,
        "unfinished": [{"dispatch": name} for name, found in dispatches.begun.items() if found],
    }
    (folder / "end.json").write_text(json.dumps({**end, "target": target.end()}), encoding="utf-8")


def _name_dispatch(key: str) -> str:
    return key.removesuffix(_INPUTS).removesuffix(_OUTPUTS)


def _capture(plan: _CapturePlan) -> None:
    """Run the target and write what some dispatches are given, the first time that each of them runs."""
    folder, wanted = Path(plan.folder), set(plan.capture)
    captured: dict[str, list[dict[str, str]]] = {}
    side = _SideProcess("target", plan.target, folder)
    for key, tensors in side.read_traces():
        name = _name_dispatch(key)
        if name in wanted and name not in captured:
            # Of a dispatch that takes no tensors, only its outputs are traced.
            given = tensors if key.endswith(_INPUTS) else []
            files = [folder / f"captured_{len(captured)}_{index}.bin" for index in range(len(given))]
            for file, tensor in zip(files, given, strict=True):
                file.write_bytes(tensor.contents)
            captured[name] = [
                {"type": tensor.type, "file": str(file)} for file, tensor in zip(files, given, strict=True)
            ]
        if len(captured) == len(wanted):
            break
    side.end()
    (folder / "captured.json").write_text(json.dumps(captured), encoding="utf-8")


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
        shape, dtype = get_storage(value.shape, value.element_type)
        array = np.frombuffer(value.contents, dtype).reshape(shape)
        arguments.append(device.push(array, value.element_type))
    trace(_RESULTS, program.invoke(arguments))


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    try:
        if argv[0] == "--emit":
            with os.fdopen(int(argv[1]), "wb") as stream:
                _emit(read_plan(_SidePlan, json.loads(argv[2])), stream)
        else:
            said = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
            if "capture" in said:
                _capture(read_plan(_CapturePlan, said))
            else:
                plan = read_plan(_TracePlan, said)
                (_compare_values if plan.by_values else _compare)(plan)
    except (PlanError, UnsupportedError, OSError) as error:
        sys.stderr.write(f"trace_dispatches: {error}\n")
        return _UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
