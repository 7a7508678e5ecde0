"""Run an ONNX model as it says itself: for expected outputs, or to hold what others give against it.

    python run_onnx.py PLAN.json

It runs in the Python that has onnx and onnxruntime. The plan for expected outputs, by onnxruntime or by onnx's own
evaluator:

    {"model": "/…/m.onnx",
     "inputs": [["@x.npy", "4xi64=1"], …],        sets of inputs as iree-run-module takes them, in the order of wishes
     "cwd": "/…",                                 where their files lie
     "folder": "/…",                              outputs go to <folder>/output_0.bin, …, as raw values
     "tolerances": {"f32": 1e-4, "rtol": 1e-5},   what the spec allows; null to have it chosen
     "last": true}                                whether no other sets come: onnx's evaluator may run these too

The first set that runs and whose outputs can tell right from wrong is taken, else the first that runs. The model is run
twice, generators of random numbers without their seeds: what differs is nothing to expect. onnxruntime is also run as
people run it, with its graph optimisations, and a small model in onnx's evaluator too: both may be wrong, and where
they differ it is said. Of a few operators the evaluator is known to be right.

The answer:

    {"taken": 0, "tells": true,                   whether its outputs can tell right from wrong
     "refused": ["why", …],                       of the other sets that were tried
     "reference": {"name": "onnxruntime", "version": "1.32.0"},
     "inputs": [{"name", "dtype", "declared_shape", "shape"}],
     "outputs": [{"name", "type", "file", "dtype", "count", "nans", "infinities", "least", "most",
                  "differs", "optimised", "other", "input"}],
     "random": ["RandomNormalLike"],
     "allowed": {"f32": {"atol", "rtol", "reason"}},
     "notes": ["why onnxruntime is not the reference"]}

`differs`: from run to run. `optimised`, `other`: by how much onnxruntime with optimisations, and the other reference,
differ by more than is allowed; null where they don't, or were not run. `input`: its place, of one that is handed
through; null for what is computed. Infinite differences are -1.

With `sides` in the plan onnxruntime alone runs it, all that it takes and gives is kept, and others' outputs are held
against that:

    {"model", "cwd", "folder", as above,
     "inputs": ["1x4xf32=@x.bin", "@y.npy"],      one set of them
     "name": "whole",                             values go to <folder>/<name>_input_0.bin, <name>_output_0.bin
     "sides": {"iree": ["a_0.bin", "a_1.bin"]},   an output each: files of raw values, texts like those of inputs, or
                                                  nothing
     "tolerances": {"f32": 1e-4}}                 as of trace_dispatches.py

The answer is `{"onnxruntime": "1.32.0", "inputs": […], "outputs": […]}`: objects of `name`, `type` as IREE writes it,
`dtype` and `shape` as NumPy has them, `file`; of outputs also `largest` |value|, and by side `error` as a share of
that, and `wrong`. Exit codes: as of `plan_file`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.import_onnx import list_inner_graphs
from iree_gauntlet.workers.iree_side.onnx_reference import (
    InferenceFailedError,
    OnnxEvaluator,
    OnnxRuntime,
    float_type,
    load_evaluator_instead,
    load_model,
    load_reference,
    pack_bytes,
    read_declared_type,
    read_inputs,
    tensor_type,
    walk_nodes,
)
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, read_plan
from iree_gauntlet.workers.iree_side.run_arguments import UnsupportedError, read_value
from iree_gauntlet.workers.iree_side.trace_dispatches import TracedTensor, measure_error
from iree_gauntlet.workers.iree_side.value_errors import Allowed, allow, are_close, difference, find_largest, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.workers.iree_side.onnx_reference import ReferenceProgram
    from iree_gauntlet.workers.iree_side.plan_file import Array

    Outputs = dict[str, Array]


_RANDOM = frozenset(
    (
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    )
)
# A model that onnx's evaluator, which is Python, runs in a second or two.
_FEW_NODES, _FEW_VALUES = 200, 1_000_000
# Weights that are made twice as wide in memory, several times.
_MOST_WIDENED = 100_000_000
# Operators of which onnxruntime 1.32 does not give what ONNX's own tests expect. The evaluator, where it differs in
# others, is as often wrong: Softmax before opset 13, LpNormalization of negative values, MaxPool with SAME_LOWER.
_ITS_OWN_WAYS = frozenset(("Attention", "DFT", "MaxUnpool", "STFT"))
# So far apart are two references different, whatever an order of additions does.
_APART = {"f64": 1e-9, "f32": 1e-3, "f16": 1e-2, "bf16": 2e-2}


_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Attributes that name an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype")


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model (of `onnx.load`, with its weights) in which all of f16, bf16 and f32 is f64.

    Weights, constants, inputs, outputs, casts: what its numbers would be, were there no rounding to its own types.
    Operators that no kernel has in f64 are for whoever runs it to find out.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _widen_values(copy.graph)
    for node in walk_nodes(copy):
        for graph in list_inner_graphs(node):
            _widen_values(graph)
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.array(attribute.f if attribute.name == "value_float" else attribute.floats, np.float64)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
    return copy


def _widen_values(graph: onnx.GraphProto) -> None:
    # Of values in between, which say nothing that does not follow.
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        values = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


@dataclass(frozen=True, slots=True)
class _RunPlan:
    model: str
    inputs: list[list[str]]
    cwd: str
    folder: str
    tolerances: dict[str, float] | None
    last: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """A model that was run, on the set of inputs that was taken; `refused` says why others before it were not."""

    model: onnx.ModelProto
    reference: ReferenceProgram
    taken: int
    refused: list[str]
    arrays: list[Array]
    outputs: Outputs

    @property
    def by_onnxruntime(self) -> bool:
        """Whether onnx's evaluator can give a second opinion."""
        return self.reference.name == OnnxRuntime.name

    @property
    def is_small(self) -> bool:
        """Whether it runs in onnx's evaluator in a second or two."""
        values = _count_weights(self.model) + sum(array.size for array in self.arrays)
        return values <= _FEW_VALUES and sum(1 for _ in walk_nodes(self.model)) <= _FEW_NODES


def _find_expected(plan: _RunPlan) -> dict[str, Any]:
    path = Path(plan.model)
    model = load_model(path)
    reference, notes = load_reference(path, model)
    run = _run_first_fitting(model, reference, plan)
    if isinstance(run, list) and reference.name == OnnxRuntime.name and plan.last:
        notes.append(run[0])
        run = _run_first_fitting(model, load_evaluator_instead(model, run[0]), plan)
    if isinstance(run, list):
        raise InferenceFailedError("; ".join(dict.fromkeys([*notes, *run])))
    arrays = run.arrays
    types = {name: tensor_type(name, array) for name, array in run.outputs.items()}
    notes += _find_undeclared(model, run.outputs)
    differing = _find_differing(run)
    other = None
    if not differing and run.by_onnxruntime and run.is_small:
        other = _try_run(lambda: OnnxEvaluator(model).run(arrays))
        strange = {
            node.op_type
            for node in walk_nodes(model)
            if node.op_type in _ITS_OWN_WAYS
            or (node.op_type == "Resize" and any(item.s == b"align_corners" for item in node.attribute))
        }
        if other is not None and strange and not _find_undeclared(model, other) and _are_apart(run.outputs, other):
            notes.append(f"onnxruntime computes {', '.join(sorted(strange))} otherwise than ONNX says")
            run, other = replace(run, reference=OnnxEvaluator(model), outputs=other), run.outputs
    allowed = _choose_allowed(plan.tolerances, run, other)
    optimised = None
    if not differing and run.by_onnxruntime:
        optimised = _try_run(lambda: OnnxRuntime(path, optimised=True).run(arrays))
    told = []
    for index, (name, array) in enumerate(run.outputs.items()):
        file = Path(plan.folder) / f"output_{index}.bin"
        file.write_bytes(pack_bytes(array))
        told.append(
            {
                "name": name,
                "type": types[name],
                "file": str(file),
                **_describe(array),
                "differs": name in differing,
                "optimised": _measure_excess(array, (optimised or {}).get(name), allowed),
                "other": _measure_excess(array, (other or {}).get(name), allowed),
                "input": _find_handed_through(run, name),
            }
        )
    return {
        "taken": run.taken,
        "tells": not _find_undeclared(model, run.outputs) and any(map(_does_tell, run.outputs.values())),
        "refused": run.refused,
        "reference": {"name": run.reference.name, "version": run.reference.version},
        "inputs": [
            {"name": item.name, "dtype": item.dtype, "declared_shape": list(item.shape), "shape": list(array.shape)}
            for item, array in zip(run.reference.inputs, arrays, strict=True)
        ],
        "outputs": told,
        "random": sorted({node.op_type for node in walk_nodes(model)} & _RANDOM),
        "allowed": {name: asdict(item) for name, item in allowed.items()},
        "notes": notes,
    }


def _run_first_fitting(model: onnx.ModelProto, reference: ReferenceProgram, plan: _RunPlan) -> _Run | list[str]:
    """The first set of inputs that can tell right from wrong, else the first that runs; why none of them runs."""
    refused: list[str] = []
    best: _Run | None = None
    for index, texts in enumerate(plan.inputs):
        arrays = read_inputs(texts, plan.cwd, reference.inputs)
        try:
            outputs = reference.run(arrays)
        except InferenceFailedError as error:
            refused.append(str(error))
            continue
        if not outputs:
            raise PlanError("the model has no outputs")
        idle = _find_undeclared(model, outputs)
        if not any(map(_does_tell, outputs.values())):
            idle.append("its outputs say nothing: all of them are the same everywhere, empty or no numbers")
        run = _Run(model, reference, index, list(refused), arrays, outputs)
        if not idle:
            return run
        best = best or run
        refused += idle
    return best or refused


def _find_undeclared(model: onnx.ModelProto, outputs: Outputs) -> list[str]:
    """Outputs that are not of the shape that a model declares: files are wrong there, or inputs don't suit them."""
    found = []
    for value in model.graph.output:
        array: Any = outputs[value.name]
        _, shape = read_declared_type(value)
        if not isinstance(array, np.ndarray) or not shape:
            # A model may leave out the shape of an output, which looks like a scalar's.
            continue
        known = all(not isinstance(size, int) or size == one for size, one in zip(shape, array.shape, strict=False))
        if array.ndim != len(shape) or not known:
            found.append(f"{value.name} is {list(array.shape)}, and the model declares {list(shape)}")
    return found


def _does_tell(array: Any) -> bool:
    """Whether an output has values that are not all the same."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OSU":
        return True
    described = _describe(array)
    odd = described["nans"] + described["infinities"]
    return odd < array.size and (odd > 0 or array.size == 1 or described["least"] != described["most"])


def _describe(array: Array) -> dict[str, Any]:
    """What there is to say of an array; `least` and `most` of finite values, null where there are none."""
    with np.errstate(all="ignore"):
        values = array.astype(np.float64) if array.dtype.name not in ("int64", "uint64") else array
        floating = values.dtype.kind == "f"
        nans = int(np.isnan(values).sum()) if floating else 0
        finite = values[np.isfinite(values)] if floating else values
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "count": int(array.size),
        "nans": nans,
        "infinities": int(array.size - nans - finite.size),
        "least": finite.min().item() if finite.size else None,
        "most": finite.max().item() if finite.size else None,
    }


def _try_run(run: Callable[[], Outputs]) -> Outputs | None:
    """What it gives; None where it cannot be run: of a second opinion there may be none."""
    try:
        return run()
    except (InferenceFailedError, PlanError):
        return None


def _count_weights(model: onnx.ModelProto) -> int:
    """How many values its tensors hold: initializers, and those of constants."""
    constants = (attribute.t for node in walk_nodes(model) for attribute in node.attribute)
    return sum(math.prod(tensor.dims) for tensor in (*model.graph.initializer, *constants) if tensor.data_type)


def _are_apart(outputs: Outputs, others: Outputs) -> bool:
    for array, other in zip(outputs.values(), others.values(), strict=True):
        element = float_type(array)
        scale = find_largest(other)
        if difference(array, other) > (_APART[element] * scale if element else 0.0):
            return True
    return False


def _choose_allowed(given: Mapping[str, float] | None, run: _Run, other: Outputs | None) -> dict[str, Allowed]:
    """What outputs may differ by, by element type: as the spec says, or as their rounding says."""
    elements = dict.fromkeys(filter(None, map(float_type, run.outputs.values())))
    if given is not None:
        return {name: Allowed(given[name], given["rtol"], "as the spec says") for name in elements}
    exact = _run_in_f64(run) if elements else None
    found = {}
    for element in elements:
        pairs = [
            (array, exact[name] if exact else None, other[name] if other else None)
            for name, array in run.outputs.items()
            if float_type(array) == element
        ]
        found[element] = allow(element, pairs, _find_longest_sum(run))
    return found


def _find_handed_through(run: _Run, name: str) -> int | None:
    """The place of the input that an output is, by no operator but Identity."""
    makers = {output: node for node in run.model.graph.node for output in node.output}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    return next((place for place, item in enumerate(run.reference.inputs) if item.name == name), None)


def _find_longest_sum(run: _Run) -> int:
    """Of how many products a value is the sum, at most: by the weights of layers, and by inputs that are reduced."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in run.model.graph.initializer}
    longest = 1
    for node in walk_nodes(run.model):
        for dims in (weights[name] for name in node.input if len(weights.get(name, ())) > 1):
            outer = dims[0] if node.op_type.startswith(("Conv", "QLinearConv")) else dims[-1]
            longest = max(longest, int(np.prod(dims, dtype=np.int64)) // max(outer, 1))
        if node.op_type.startswith("Reduce"):
            longest = max(longest, *(array.size for array in run.arrays))
    return longest


def _run_in_f64(run: _Run) -> Outputs | None:
    """What the model gives in double precision; None where neither reference can say."""
    if _count_weights(run.model) > _MOST_WIDENED:
        return None
    wide = [array.astype(np.float64) if float_type(array) else array for array in run.arrays]
    copy = widened(run.model)
    found = None
    if run.by_onnxruntime:
        found = _try_run(lambda: OnnxRuntime(copy.SerializeToString()).run(wide))
    if found is None and (not run.by_onnxruntime or run.is_small):
        found = _try_run(lambda: OnnxEvaluator(copy).run(wide))
    return found


def _find_differing(run: _Run) -> set[str]:
    """Outputs that are not the same in another run, whose random numbers have no seeds."""
    first, again = run.outputs, run.reference
    drawing = [node for node in walk_nodes(run.model) if node.op_type in _RANDOM]
    if any(item.name == "seed" for node in drawing for item in node.attribute):
        unseeded = onnx.ModelProto()
        unseeded.CopyFrom(run.model)
        for node in walk_nodes(unseeded):
            if node.op_type in _RANDOM:
                kept = [item for item in node.attribute if item.name != "seed"]
                del node.attribute[:]
                node.attribute.extend(kept)
        again = OnnxRuntime(unseeded.SerializeToString()) if run.by_onnxruntime else OnnxEvaluator(unseeded)
        first = again.run(run.arrays)
    second = again.run(run.arrays)
    return {
        name
        for name, array in first.items()
        if array.shape != second[name].shape or pack_bytes(array) != pack_bytes(second[name])
    }


def _measure_excess(array: Array, other: Array | None, allowed: Mapping[str, Allowed]) -> float | None:
    """The largest difference, where some difference is more than is allowed; -1 for an infinite one, else None."""
    if other is None:
        return None
    apart = difference(array, other)
    if apart == math.inf:
        return -1.0
    element = float_type(array)
    limits = (allowed[element].atol, allowed[element].rtol) if element else (0.0, 0.0)
    return None if are_close(widen(other), widen(array), limits) else apart


@dataclass(frozen=True, slots=True)
class _HoldPlan:
    model: str
    inputs: list[str]
    cwd: str
    folder: str
    name: str
    sides: dict[str, list[str]]
    tolerances: dict[str, float]

    def keep(self, part: str, index: int, name: str, array: Array) -> dict[str, Any]:
        """What is said of an input or an output, which goes to a file."""
        file = Path(self.folder) / f"{self.name}_{part}_{index}.bin"
        file.write_bytes(pack_bytes(array))
        kind = tensor_type(name, array)
        return {"name": name, "type": kind, "dtype": str(array.dtype), "shape": array.shape, "file": str(file)}

    def hold(self, index: int, name: str, array: Array) -> dict[str, Any]:
        """The same of an output, and how far those of others are off."""
        right = TracedTensor(array.shape, tensor_type(name, array).rpartition("x")[2], pack_bytes(array))
        errors = {}
        for side, texts in self.sides.items():
            path = Path(texts[index])
            # What it gives in place of the output; that itself where nothing is known.
            contents = right.contents
            if path.suffix == ".bin" and "=" not in path.name:
                contents = path.read_bytes()
            elif texts[index] and (value := read_value(texts[index], self.cwd)) is not None:
                contents = bytes(value.contents)
            known = len(contents) == len(right.contents)
            errors[side] = measure_error(TracedTensor((), right.element_type, contents), right) if known else math.inf
        allowed = self.tolerances.get(right.element_type, 0.0)
        wrong = {side: error > allowed for side, error in errors.items()}
        kept = self.keep("output", index, name, array)
        return {**kept, "largest": right.find_largest(), "error": errors, "wrong": wrong}


def _hold_sides(plan: _HoldPlan) -> dict[str, Any]:
    session = OnnxRuntime(Path(plan.model))
    given = read_inputs(plan.inputs, plan.cwd, session.inputs)
    results = session.run(given)
    try:
        inputs = [plan.keep("input", i, session.inputs[i].name, array) for i, array in enumerate(given)]
        outputs = [plan.hold(i, name, array) for i, (name, array) in enumerate(results.items())]
    except UnsupportedError as error:
        raise PlanError(str(error)) from error
    return {"onnxruntime": session.version, "inputs": inputs, "outputs": outputs}


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    return _hold_sides(read_plan(_HoldPlan, said)) if "sides" in said else _find_expected(read_plan(_RunPlan, said))


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, _answer))
