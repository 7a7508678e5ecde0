"""Run an ONNX model in a program that computes what the model specifies.

onnxruntime runs without graph optimisations: they would fuse quantise and convolve into integer kernels, whose results
are not the model's. The other reference is onnx's own evaluator. It is slow, but supports what onnxruntime lacks: bf16,
f8, 4-bit integers, the newest operators, training functions.

Both use the array types of NumPy and ml_dtypes.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.workers.iree_side.import_onnx import list_inner_graphs, list_inputs, read_with_weights
from iree_gauntlet.workers.iree_side.plan_file import PlanError
from iree_gauntlet.workers.iree_side.run_arguments import UnsupportedError, read_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import onnx

    from iree_gauntlet.workers.iree_side.plan_file import Array


# IREE's names of element types by the names of NumPy and ml_dtypes; a module's integers are signless.
ELEMENT_TYPES = {
    "bool": "i1",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
}
# NumPy's names of types, by onnxruntime's names where they differ.
_NUMPY_NAMES = {
    "float": "float32",
    "double": "float64",
    **{f"float8{name}": f"float8_{name}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")},
    "float8e8m0": "float8_e8m0fnu",
}
_FLOATS = ("f16", "bf16", "f32", "f64")
# The bits per value of types whose values share a byte.
_PACKED_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}


# The first matches a failing operator's message, which may be inside another one; the second any message's prefix.
_NODE_MESSAGE = re.compile(r"while running (\w+) node\. Name:'([^']*)' Status Message: (?!Non-zero status)(.*)")
_MESSAGE_PREFIX = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+\.(?:cc|h):\d+ |(?:\w+[*&]? )+onnxruntime::\S+\(.*?\) "
)


class InferenceFailedError(RuntimeError):
    """A reference cannot load or run the model; the text is one line."""


@dataclass(frozen=True, slots=True)
class ReferenceInput:
    """An input of a model.

    Attributes:
        dtype: NumPy's or ml_dtypes' name of the element type; a longer text if the input is not a tensor of numbers.
        shape: the declared sizes; a dynamic size is its name, or None without a name.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


class OnnxRuntime:
    """A model in onnxruntime, on the CPU with one thread.

    Raises a PlanError without onnxruntime, and an InferenceFailedError if onnxruntime cannot load the model.
    """

    name = "onnxruntime"

    def __init__(self, model: Path | bytes, *, optimised: bool = False) -> None:
        try:
            import onnxruntime  # noqa: PLC0415 - from an extra
        except ModuleNotFoundError as error:
            raise PlanError(f"no onnxruntime in {sys.executable}; pip install 'iree-gauntlet[record]'") from error
        self.version: str = onnxruntime.__version__
        self._model_name = "the model" if isinstance(model, bytes) else model.name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        source = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        # onnxruntime has one exception class per status code; their only common base is Exception.
        except Exception as error:
            raise InferenceFailedError(
                f"onnxruntime cannot load {self._model_name}: {_get_first_line(error)}"
            ) from error
        self._outputs = self._session.get_outputs()
        self.inputs = tuple(
            ReferenceInput(node.name, _name_dtype(node.type), tuple(node.shape)) for node in self._session.get_inputs()
        )

    def run(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return outputs by name, in the graph's order; raise an InferenceFailedError if the run fails."""
        feeds = _name_arrays(self.inputs, arrays)
        try:
            values = self._session.run([value.name for value in self._outputs], feeds)
        # The same holds as for loading.
        except Exception as error:
            raise InferenceFailedError(
                f"onnxruntime cannot run {self._model_name}: {_get_first_line(error)}"
            ) from error
        outputs = {}
        for output, array in zip(self._outputs, values, strict=True):
            dtype_name = _name_dtype(output.type)
            # onnxruntime returns f8 values as bytes.
            outputs[output.name] = array.view(find_dtype(dtype_name)) if dtype_name.startswith("float8") else array
        return outputs


class OnnxEvaluator:
    """A model with its weights in onnx's reference evaluator; raises an InferenceFailedError if loading fails."""

    name = "onnx"

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx  # noqa: PLC0415 - onnxruntime does without
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415

        self.version: str = onnx.__version__
        self._names = [value.name for value in model.graph.output]
        self.inputs = tuple(
            ReferenceInput(value.name, *read_declared_type(value)) for value in list_inputs(model.graph)
        )
        try:
            self._evaluator = ReferenceEvaluator(model)
        # Any exception is possible, because the evaluator interprets an arbitrary file.
        except Exception as error:
            raise InferenceFailedError(f"onnx's evaluator cannot load the model: {_get_first_line(error)}") from error

    def run(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Run the model like `OnnxRuntime.run`."""
        feeds = _name_arrays(self.inputs, arrays)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                values = self._evaluator.run(None, feeds)
        # The same holds as for loading.
        except Exception as error:
            raise InferenceFailedError(f"onnx's evaluator cannot run the model: {_get_first_line(error)}") from error
        arrays_of = (np.asarray(value) if isinstance(value, np.generic) else value for value in values)
        return dict(zip(self._names, arrays_of, strict=True))


ReferenceProgram = OnnxRuntime | OnnxEvaluator


def load_model(path: Path) -> onnx.ModelProto:
    """Load a model with its weights; raise a PlanError if reading fails."""
    try:
        return read_with_weights(path)
    # The name of protobuf's exception depends on its version; a missing file of weights has another exception.
    except Exception as error:
        raise PlanError(f"cannot read {path.name}: {' '.join(str(error).split())[:200]}") from error


def load_reference(file: Path | bytes, model: onnx.ModelProto) -> tuple[ReferenceProgram, list[str]]:
    """Load a model in onnxruntime, or else in onnx's evaluator; return also why onnxruntime is not used.

    `file` is the model's path or its content. If neither can load the model, an InferenceFailedError is raised.
    """
    try:
        return OnnxRuntime(file), []
    except (InferenceFailedError, PlanError) as error:
        return load_evaluator_instead(model, str(error)), [str(error)]


def load_evaluator_instead(model: onnx.ModelProto, reason: str) -> ReferenceProgram:
    """Load a model that onnxruntime does not run in onnx's evaluator; if this fails too, the error has both reasons."""
    try:
        return OnnxEvaluator(model)
    except InferenceFailedError as error:
        raise InferenceFailedError(f"{reason}; {error}") from error


def walk_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, its functions and all graphs inside its nodes."""
    pending = deque((*model.graph.node, *(node for function in model.functions for node in function.node)))
    while pending:
        node = pending.popleft()
        yield node
        for graph in list_inner_graphs(node):
            pending.extend(graph.node)


def _require_inputs(inputs: Sequence[ReferenceInput], arrays: Sequence[object]) -> None:
    """Raise a PlanError if the model does not have as many inputs as there are arrays."""
    if len(inputs) != len(arrays):
        input_list = ", ".join(f"{input_.name} {input_.dtype} {list(input_.shape)}" for input_ in inputs)
        raise PlanError(f"{len(arrays)} inputs were given, but the model takes {len(inputs)}: {input_list}")


def _name_arrays(inputs: Sequence[ReferenceInput], arrays: Sequence[Array]) -> dict[str, Array]:
    _require_inputs(inputs, arrays)
    return {item.name: array for item, array in zip(inputs, arrays, strict=True)}


def read_inputs(texts: Sequence[str], cwd: str, inputs: Sequence[ReferenceInput]) -> list[Array]:
    """Read the values of all `--input=` as arrays for a reference; raise a PlanError if that fails."""
    _require_inputs(inputs, texts)
    return [read_input(text, cwd, item.dtype) for text, item in zip(texts, inputs, strict=True)]


def read_input(text: str, cwd: str, dtype_name: str) -> Array:
    """Read the value of an `--input=` (`@x.npy`, `4xf32=@x.bin`, `4xf32=1`) as an array for a reference.

    A PlanError is raised if the value is not a tensor, or an unsupported tensor.
    """
    try:
        value = read_value(text, cwd)
    except UnsupportedError as error:
        raise PlanError(f"the input {text!r} cannot be given to a reference: {error}") from error
    if value is None:
        raise PlanError(f"the input {text!r} is not a tensor")
    dtype = find_dtype(dtype_name)
    contents = np.frombuffer(value.contents, np.uint8)
    count = int(np.prod(value.shape, dtype=np.int64))
    if dtype.name in _PACKED_BITS:
        bits = _PACKED_BITS[dtype.name]
        fields = (contents[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (1 << bits) - 1).reshape(-1)[:count]
        sign_bit, modulus = 1 << bits - 1, 1 << bits
        numbers = fields.astype(np.int8) - modulus * (fields >= sign_bit) if dtype.name.startswith("i") else fields
        return numbers.astype(dtype).reshape(value.shape)
    if contents.size != count * dtype.itemsize:
        raise PlanError(f"the input {text!r} is a {value.element_type}, but the model takes {dtype_name}")
    return contents.view(dtype).reshape(value.shape)


def pack_bytes(array: Array) -> bytes:
    """Pack values for IREE's tools: little-endian, dense; small values share a byte, the first in the lowest bits."""
    if array.dtype.name in _PACKED_BITS:
        bits = _PACKED_BITS[array.dtype.name]
        fields = array.astype(np.int8).reshape(-1).view(np.uint8) & (1 << bits) - 1
        padded_fields = np.append(fields, np.zeros(-fields.size % (8 // bits), np.uint8)).reshape(-1, 8 // bits)
        return bytes(
            np.bitwise_or.reduce(padded_fields << np.arange(0, 8, bits, dtype=np.uint8), axis=1).astype(np.uint8)
        )
    # The types of ml_dtypes have kind V and no byte order, so they are not converted.
    little_endian = array if array.dtype.kind == "V" else array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little_endian).tobytes()


def format_tensor_type(name: str, array: Any) -> str:
    """Return an output's type in IREE's notation, `1x64xi64`; raise a PlanError if IREE's tools lack the type."""
    dtype_name = array.dtype.name if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
    element = ELEMENT_TYPES.get(dtype_name)
    if element is None:
        raise PlanError(f"output {name!r} is {dtype_name}: only tensors of numbers can be compared")
    return "x".join([*map(str, array.shape), element])


def get_float_type(array: Array) -> str:
    """Return IREE's name of an array's element type if it is a float of at least 16 bits; otherwise an empty string."""
    name = ELEMENT_TYPES.get(array.dtype.name, "")
    return name if name in _FLOATS else ""


def find_dtype(name: str) -> np.dtype[Any]:
    """Return a type by its name in NumPy or ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: PLC0415 - slow to import, and most models do without

        if name not in ELEMENT_TYPES:
            raise PlanError(f"an input is a {name}, which no reference supports") from None
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def _get_first_line(error: Exception) -> str:
    """Return an exception's message on one line; for onnxruntime, the message of the innermost operator."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    *_, kind, name, message = _NODE_MESSAGE.findall(line)[-1] if _NODE_MESSAGE.search(line) else ("", "", line)
    plain_message = _MESSAGE_PREFIX.sub("", message).strip()
    return f"{kind} {name!r}: {plain_message}" if kind else plain_message


def _name_dtype(kind: str) -> str:
    """Return NumPy's name of an onnxruntime type such as `tensor(float)`."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return _NUMPY_NAMES.get(name, name)


def read_declared_type(value: onnx.ValueInfoProto) -> tuple[str, tuple[int | str | None, ...]]:
    """Return the declared type and shape of an input or output; the shape is empty if it is not a tensor."""
    import onnx  # noqa: PLC0415

    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value")), ()
    # In some files, negative sizes are unknown sizes.
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in tensor.shape.dim
    )
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name, dims
