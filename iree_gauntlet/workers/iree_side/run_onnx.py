"""Run an ONNX model by a reference, to make expected outputs, or to compare the outputs of others with its outputs.

    python run_onnx.py PLAN.json

This script needs a Python with onnx and onnxruntime. The plan for expected outputs, by onnxruntime or by onnx's own
evaluator:

    {"model": "/…/m.onnx",
     "inputs": [["@x.npy", "4xi64=1"], …],        sets of inputs in the syntax of iree-run-module, preferred sets first
     "cwd": "/…",                                 folder of the inputs' files
     "folder": "/…",                              outputs are written to <folder>/output_0.bin, …, as raw values
     "tolerances": {"f32": 1e-4, "rtol": 1e-5},   the spec's tolerances; null to choose them
     "last": true}                                true if no more sets follow: then onnx's evaluator may run these, too

The first set whose outputs can distinguish right from wrong is selected, or else the first set that runs. The model
is run twice, with random generators unseeded: outputs that differ between the runs cannot be expected outputs. The
model is also run by onnxruntime with its default graph optimisations and, if it is small, by onnx's evaluator. Both may
be wrong, so differences are only reported. For a few operators the evaluator is known to be right.

The answer:

    {"taken": 0, "tells": true,                   index of the selected set; can its outputs tell right from wrong?
     "refused": ["why", …],                       why other sets were not selected
     "reference": {"name": "onnxruntime", "version": "1.32.0"},
     "inputs": [{"name", "dtype", "declared_shape", "shape"}],
     "outputs": [{"name", "type", "file", "dtype", "count", "nans", "infinities", "least", "most",
                  "differs", "optimised", "other", "input"}],
     "random": ["RandomNormalLike"],
     "allowed": {"f32": {"atol", "rtol", "reason"}},
     "notes": ["why onnxruntime is not the reference"]}

`differs`: true if the output differs from run to run. `optimised`, `other`: the largest difference of onnxruntime with
optimisations, and of the other reference; null if within the tolerance, or not run. `input`: the index of the input
that is passed through unchanged; null for a computed output. Infinite differences are -1.

With `sides` in the plan, only onnxruntime runs the model. Its inputs and outputs are saved, and the outputs of the
sides are compared with them:

    {"model", "cwd", "folder", as above,
     "inputs": ["1x4xf32=@x.bin", "@y.npy"],      a single set of inputs
     "name": "whole",                             values are written to <folder>/<name>_input_0.bin, <name>_output_0.bin
     "sides": {"iree": ["a_0.bin", "a_1.bin"]},   for each output a file of raw values, a text like those of inputs, or
                                                  an empty text
     "tolerances": {"f32": 1e-4}}                 as in trace_dispatches.py

The answer is `{"onnxruntime": "1.32.0", "inputs": […], "outputs": […]}` with objects of `name`, `type` (IREE's),
`dtype` and `shape` (NumPy's) and `file`. Outputs also have the `largest` |value|, and for each side the `error` as a
share of that, and `wrong`. Exit codes: those of `plan_file`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.expected_outputs import (
    NOTHING_TOLD,
    can_any_discriminate,
    choose_tolerances,
    describe_array,
    measure_excess,
)
from iree_gauntlet.workers.iree_side.import_onnx import list_inner_graphs
from iree_gauntlet.workers.iree_side.onnx_reference import (
    InferenceFailedError,
    OnnxEvaluator,
    OnnxRuntime,
    format_tensor_type,
    get_float_type,
    load_evaluator_instead,
    load_model,
    load_reference,
    pack_bytes,
    read_declared_type,
    read_inputs,
    walk_nodes,
)
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main
from iree_gauntlet.workers.iree_side.run_arguments import UnsupportedError, read_value
from iree_gauntlet.workers.iree_side.trace_dispatches import RawTensor, measure_error
from iree_gauntlet.workers.iree_side.value_errors import OutputTolerance, find_largest, measure_difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.workers.iree_side.onnx_reference import ReferenceProgram
    from iree_gauntlet.workers.iree_side.plan_file import Array

    Outputs = dict[str, Array]


_RANDOM_OPERATORS = frozenset(
    (
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    )
)
# The limits of a small model, which onnx's evaluator, written in Python, runs in a second or two.
_MAX_EVALUATOR_NODES, _MAX_EVALUATOR_VALUES = 200, 1_000_000
# The maximum number of weights to widen to f64: the wider weights are in memory several times.
_MAX_WIDENED_WEIGHTS = 100_000_000
# For these operators onnxruntime 1.32 fails ONNX's own tests. Where the two differ for other operators, the evaluator
# is wrong as often: Softmax before opset 13, LpNormalization of negative values, MaxPool with SAME_LOWER.
_ODD_OPERATORS = frozenset(("Attention", "DFT", "MaxUnpool", "STFT"))
# A larger difference between two references is not explained by the order of additions.
_MAX_DIFFERENCE = {"f64": 1e-9, "f32": 1e-3, "f16": 1e-2, "bf16": 2e-2}


_NARROW_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# These attributes name an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype")


def _widen_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model (of `onnx.load`, with its weights) that uses f64 in place of f16, bf16 and f32.

    This changes weights, constants, inputs, outputs and casts, so the copy does not round to the model's own types.
    Operators without a kernel for f64 fail only when the copy is run.
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
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW_FLOATS:
                attribute.i = TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.array(attribute.f if attribute.name == "value_float" else attribute.floats, np.float64)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
    return copy


def _widen_values(graph: onnx.GraphProto) -> None:
    # The types of intermediate values are dropped; they can be inferred.
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _NARROW_FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW_FLOATS:
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
class _ReferenceRun:
    """A run on the selected set of inputs; `rejections` has the reasons why earlier sets were not selected."""

    model: onnx.ModelProto
    reference: ReferenceProgram
    set_index: int
    rejections: list[str]
    arrays: list[Array]
    outputs: Outputs

    @property
    def by_onnxruntime(self) -> bool:
        """True if onnxruntime made the results, so onnx's evaluator can give a second opinion."""
        return self.reference.name == OnnxRuntime.name

    @property
    def is_small(self) -> bool:
        """True if onnx's evaluator runs the model in a second or two."""
        values = _count_weights(self.model) + sum(array.size for array in self.arrays)
        return values <= _MAX_EVALUATOR_VALUES and sum(1 for _ in walk_nodes(self.model)) <= _MAX_EVALUATOR_NODES


def _find_expected(plan: _RunPlan) -> dict[str, object]:
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
    types = {name: format_tensor_type(name, array) for name, array in run.outputs.items()}
    undeclared = _find_undeclared(model, run.outputs)
    notes += undeclared
    unstable = _find_differing(run)
    second = None
    if not unstable and run.by_onnxruntime and run.is_small:
        second = _try_run(lambda: OnnxEvaluator(model).run(arrays))
        odd_types = {
            node.op_type
            for node in walk_nodes(model)
            if node.op_type in _ODD_OPERATORS
            or (node.op_type == "Resize" and any(attribute.s == b"align_corners" for attribute in node.attribute))
        }
        if second is not None and odd_types and not _find_undeclared(model, second) and _are_apart(run.outputs, second):
            notes.append(f"onnxruntime computes {', '.join(sorted(odd_types))} differently from what ONNX specifies")
            run, second = replace(run, reference=OnnxEvaluator(model), outputs=second), run.outputs
    tolerances = _choose_allowed(plan.tolerances, run, second)
    fast = None
    if not unstable and run.by_onnxruntime:
        fast = _try_run(lambda: OnnxRuntime(path, optimised=True).run(arrays))
    entries = []
    for index, (name, array) in enumerate(run.outputs.items()):
        file = Path(plan.folder) / f"output_{index}.bin"
        file.write_bytes(pack_bytes(array))
        entries.append(
            {
                "name": name,
                "type": types[name],
                "file": str(file),
                **asdict(describe_array(array)),
                "differs": name in unstable,
                "optimised": measure_excess(array, (fast or {}).get(name), tolerances),
                "other": measure_excess(array, (second or {}).get(name), tolerances),
                "input": _find_handed_through(run, name),
            }
        )
    return {
        "taken": run.set_index,
        "as_declared": not undeclared,
        "tells": not undeclared and can_any_discriminate(run.outputs.values()),
        "refused": run.rejections,
        "reference": {"name": run.reference.name, "version": run.reference.version},
        "inputs": [
            {
                "name": attribute.name,
                "dtype": attribute.dtype,
                "declared_shape": list(attribute.shape),
                "shape": list(array.shape),
            }
            for attribute, array in zip(run.reference.inputs, arrays, strict=True)
        ],
        "outputs": entries,
        "random": sorted({node.op_type for node in walk_nodes(model)} & _RANDOM_OPERATORS),
        "allowed": {name: asdict(attribute) for name, attribute in tolerances.items()},
        "notes": notes,
    }


def _run_first_fitting(
    model: onnx.ModelProto, reference: ReferenceProgram, plan: _RunPlan
) -> _ReferenceRun | list[str]:
    """Return the first run with discriminating outputs, or else the first run; if none runs, return the reasons."""
    reasons: list[str] = []
    first_run: _ReferenceRun | None = None
    for index, arguments in enumerate(plan.inputs):
        arrays = read_inputs(arguments, plan.cwd, reference.inputs)
        try:
            outputs = reference.run(arrays)
        except InferenceFailedError as error:
            reasons.append(str(error))
            continue
        if not outputs:
            raise PlanError("the model has no outputs")
        problems = _find_undeclared(model, outputs)
        if not can_any_discriminate(outputs.values()):
            problems.append(NOTHING_TOLD)
        run = _ReferenceRun(model, reference, index, list(reasons), arrays, outputs)
        if not problems:
            return run
        first_run = first_run or run
        reasons += problems
    return first_run or reasons


def _find_undeclared(model: onnx.ModelProto, outputs: Outputs) -> list[str]:
    """Describe outputs whose shape is not as declared: the model is wrong, or its inputs do not fit it."""
    messages = []
    for value in model.graph.output:
        array: object = outputs[value.name]
        _, shape = read_declared_type(value)
        if not isinstance(array, np.ndarray) or not shape:
            # A model may omit an output's shape, which then looks like the shape of a scalar.
            continue
        is_compatible = all(
            not isinstance(size, int) or size == actual_size
            for size, actual_size in zip(shape, array.shape, strict=False)
        )
        if array.ndim != len(shape) or not is_compatible:
            messages.append(f"{value.name} is {list(array.shape)}, but the model declares {list(shape)}")
    return messages


def _try_run(run: Callable[[], Outputs]) -> Outputs | None:
    """Run a reference for a second opinion, which is optional: return None if the run fails."""
    try:
        return run()
    except (InferenceFailedError, PlanError):
        return None


def _count_weights(model: onnx.ModelProto) -> int:
    """Count the values of a model's initializers and constants."""
    constants = (attribute.t for node in walk_nodes(model) for attribute in node.attribute)
    return sum(math.prod(tensor.dims) for tensor in (*model.graph.initializer, *constants) if tensor.data_type)


def _are_apart(outputs: Outputs, other_outputs: Outputs) -> bool:
    for array, other_array in zip(outputs.values(), other_outputs.values(), strict=True):
        element = get_float_type(array)
        scale = find_largest(other_array)
        if measure_difference(array, other_array) > (_MAX_DIFFERENCE[element] * scale if element else 0.0):
            return True
    return False


def _choose_allowed(
    spec: Mapping[str, float] | None, run: _ReferenceRun, second: Outputs | None
) -> dict[str, OutputTolerance]:
    """Choose the tolerance for each element type, as `choose_tolerances` does."""
    is_free = spec is None and any(map(get_float_type, run.outputs.values()))
    exact = _run_in_f64(run) if is_free else None
    trios = [
        (array, exact[name] if exact else None, second[name] if second else None) for name, array in run.outputs.items()
    ]
    return choose_tolerances(spec, trios, _find_longest_sum(run) if is_free else 1)


def _find_handed_through(run: _ReferenceRun, name: str) -> int | None:
    """Return the index of the input that is passed through to an output by Identity alone."""
    producers = {output: node for node in run.model.graph.node for output in node.output}
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    return next((index for index, input_ in enumerate(run.reference.inputs) if input_.name == name), None)


def _find_longest_sum(run: _ReferenceRun) -> int:
    """Return the largest number of products in a sum, from the shapes of layers' weights and of reduced inputs."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in run.model.graph.initializer}
    longest = 1
    for node in walk_nodes(run.model):
        for dims in (weights[name] for name in node.input if len(weights.get(name, ())) > 1):
            outer_size = dims[0] if node.op_type.startswith(("Conv", "QLinearConv")) else dims[-1]
            longest = max(longest, int(np.prod(dims, dtype=np.int64)) // max(outer_size, 1))
        if node.op_type.startswith("Reduce"):
            longest = max(longest, *(array.size for array in run.arrays))
    return longest


def _run_in_f64(run: _ReferenceRun) -> Outputs | None:
    """Return the model's outputs in double precision; None if neither reference can run it."""
    if _count_weights(run.model) > _MAX_WIDENED_WEIGHTS:
        return None
    wide_arrays = [array.astype(np.float64) if get_float_type(array) else array for array in run.arrays]
    copy = _widen_model(run.model)
    outputs = None
    if run.by_onnxruntime:
        outputs = _try_run(lambda: OnnxRuntime(copy.SerializeToString()).run(wide_arrays))
    if outputs is None and (not run.by_onnxruntime or run.is_small):
        outputs = _try_run(lambda: OnnxEvaluator(copy).run(wide_arrays))
    return outputs


def _find_differing(run: _ReferenceRun) -> set[str]:
    """Run the model again without seeds of random numbers; return the outputs that differ."""
    first_outputs, reference = run.outputs, run.reference
    random_nodes = [node for node in walk_nodes(run.model) if node.op_type in _RANDOM_OPERATORS]
    if any(attribute.name == "seed" for node in random_nodes for attribute in node.attribute):
        unseeded_model = onnx.ModelProto()
        unseeded_model.CopyFrom(run.model)
        for node in walk_nodes(unseeded_model):
            if node.op_type in _RANDOM_OPERATORS:
                attributes = [attribute for attribute in node.attribute if attribute.name != "seed"]
                del node.attribute[:]
                node.attribute.extend(attributes)
        reference = (
            OnnxRuntime(unseeded_model.SerializeToString()) if run.by_onnxruntime else OnnxEvaluator(unseeded_model)
        )
        first_outputs = reference.run(run.arrays)
    second_outputs = reference.run(run.arrays)
    return {
        name
        for name, array in first_outputs.items()
        if array.shape != second_outputs[name].shape or pack_bytes(array) != pack_bytes(second_outputs[name])
    }


@dataclass(frozen=True, slots=True)
class _HoldPlan:
    model: str
    inputs: list[str]
    cwd: str
    folder: str
    name: str
    sides: dict[str, list[str]]
    tolerances: dict[str, float]

    def keep(self, part: str, index: int, name: str, array: Array) -> dict[str, object]:
        """Save an input or an output to a file; return its entry of the answer."""
        file = Path(self.folder) / f"{self.name}_{part}_{index}.bin"
        file.write_bytes(pack_bytes(array))
        kind = format_tensor_type(name, array)
        return {"name": name, "type": kind, "dtype": str(array.dtype), "shape": array.shape, "file": str(file)}

    def hold(self, index: int, name: str, array: Array) -> dict[str, object]:
        """Save an output, and measure the errors of the other sides."""
        reference = RawTensor(array.shape, format_tensor_type(name, array).rpartition("x")[2], pack_bytes(array))
        errors = {}
        for side, arguments in self.sides.items():
            path = Path(arguments[index])
            # Without a value of the side, the output is compared with itself.
            contents = reference.contents
            if path.suffix == ".bin" and "=" not in path.name:
                contents = path.read_bytes()
            elif arguments[index] and (value := read_value(arguments[index], self.cwd)) is not None:
                contents = bytes(value.contents)
            has_same_size = len(contents) == len(reference.contents)
            errors[side] = (
                measure_error(RawTensor((), reference.element_type, contents), reference) if has_same_size else math.inf
            )
        tolerance = self.tolerances.get(reference.element_type, 0.0)
        wrong = {side: error > tolerance for side, error in errors.items()}
        output_entry = self.keep("output", index, name, array)
        return {**output_entry, "largest": reference.find_largest(), "error": errors, "wrong": wrong}


def _hold_sides(plan: _HoldPlan) -> dict[str, object]:
    session = OnnxRuntime(Path(plan.model))
    arrays = read_inputs(plan.inputs, plan.cwd, session.inputs)
    results = session.run(arrays)
    try:
        inputs = [plan.keep("input", i, session.inputs[i].name, array) for i, array in enumerate(arrays)]
        outputs = [plan.hold(i, name, array) for i, (name, array) in enumerate(results.items())]
    except UnsupportedError as error:
        raise PlanError(str(error)) from error
    return {"onnxruntime": session.version, "inputs": inputs, "outputs": outputs}


def _answer(plan: Mapping[str, object]) -> dict[str, object]:
    return _hold_sides(read_plan(_HoldPlan, plan)) if "sides" in plan else _find_expected(read_plan(_RunPlan, plan))


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _answer))
