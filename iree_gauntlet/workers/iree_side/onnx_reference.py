"""What an ONNX model gives, by a program that computes what the model says.

onnxruntime runs with its graph optimisations off: they fuse quantise, convolve, quantise into integer kernels, and then
the numbers are no longer the model's. The other reference is onnx's own evaluator, which is slow, and has what
onnxruntime lacks: bf16, f8, 4-bit integers, the newest operators, training functions.

Both have arrays as NumPy and ml_dtypes know them.
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


# IREE's names of element types by those of NumPy and ml_dtypes; a module's integers have no sign.
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
# onnxruntime's words for types that have another name in NumPy.
_ITS_NAMES = {
    "float": "float32",
    "double": "float64",
    **{f"float8{name}": f"float8_{name}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")},
    "float8e8m0": "float8_e8m0fnu",
}
_FLOATS = ("f16", "bf16", "f32", "f64")
# Bits of types of which several values share a byte.
_PACKED = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}


# Around what an operator of onnxruntime complains of, which may stand in another; and before any complaint.
_NODE = re.compile(r"while running (\w+) node\. Name:'([^']*)' Status Message: (?!Non-zero status)(.*)")
_PREFIX = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+\.(?:cc|h):\d+ |(?:\w+[*&]? )+onnxruntime::\S+\(.*?\) ")


class InferenceFailedError(RuntimeError):
    """A reference cannot load or run the model; the text is one line."""


@dataclass(frozen=True, slots=True)
class ReferenceInput:
    """An input of a model.

    Attributes:
        dtype: NumPy's or ml_dtypes' name of its element type; a longer text where it is no tensor of numbers.
        shape: as declared: sizes, names of open ones, or None.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


class OnnxRuntime:
    """A model in onnxruntime: one thread, the processor's own provider.

    A PlanError says that there is no onnxruntime, an InferenceFailedError that it cannot load the model.
    """

    name = "onnxruntime"

    def __init__(self, model: Path | bytes, *, optimised: bool = False) -> None:
        try:
            import onnxruntime  # noqa: PLC0415 - of an extra
        except ModuleNotFoundError as error:
            raise PlanError(f"no onnxruntime in {sys.executable}; pip install 'iree-gauntlet[record]'") from error
        self.version: str = onnxruntime.__version__
        self._of = "the model" if isinstance(model, bytes) else model.name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        loaded = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(loaded, options, providers=["CPUExecutionProvider"])
        # What it raises derives from Exception alone, one class per status code.
        except Exception as error:
            raise InferenceFailedError(f"onnxruntime cannot load {self._of}: {_get_first_line(error)}") from error
        self._outputs = self._session.get_outputs()
        self.inputs = tuple(
            ReferenceInput(item.name, _name_dtype(item.type), tuple(item.shape)) for item in self._session.get_inputs()
        )

    def run(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Outputs by name, in the order of the graph's; an InferenceFailedError where it cannot be run on these."""
        feeds = _name_arrays(self.inputs, arrays)
        try:
            values = self._session.run([value.name for value in self._outputs], feeds)
        # As above.
        except Exception as error:
            raise InferenceFailedError(f"onnxruntime cannot run {self._of}: {_get_first_line(error)}") from error
        found = {}
        for output, array in zip(self._outputs, values, strict=True):
            kind = _name_dtype(output.type)
            # It hands f8 on as bytes.
            found[output.name] = array.view(_find_dtype(kind)) if kind.startswith("float8") else array
        return found


class OnnxEvaluator:
    """A model with its weights in onnx's own reference evaluator; an InferenceFailedError where that cannot load it."""

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
        # Whatever Python may raise: it interprets a file of somebody's.
        except Exception as error:
            raise InferenceFailedError(f"onnx's evaluator cannot load the model: {_get_first_line(error)}") from error

    def run(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """As of `OnnxRuntime`."""
        feeds = _name_arrays(self.inputs, arrays)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                values = self._evaluator.run(None, feeds)
        # As above.
        except Exception as error:
            raise InferenceFailedError(f"onnx's evaluator cannot run the model: {_get_first_line(error)}") from error
        arrays_of = (np.asarray(value) if isinstance(value, np.generic) else value for value in values)
        return dict(zip(self._names, arrays_of, strict=True))


ReferenceProgram = OnnxRuntime | OnnxEvaluator


def load_model(path: Path) -> onnx.ModelProto:
    """A model with its weights; a PlanError where it cannot be read."""
    try:
        return read_with_weights(path)
    # Of protobuf, by one of several names; or a weight's file is missing.
    except Exception as error:
        raise PlanError(f"cannot read {path.name}: {' '.join(str(error).split())[:200]}") from error


def load_reference(file: Path | bytes, model: onnx.ModelProto) -> tuple[ReferenceProgram, list[str]]:
    """onnxruntime, or where it cannot load a model, onnx's evaluator; and why it is not onnxruntime.

    `file` is the model's, or its content; an InferenceFailedError says that neither can load it.
    """
    try:
        return OnnxRuntime(file), []
    except (InferenceFailedError, PlanError) as error:
        return load_evaluator_instead(model, str(error)), [str(error)]


def load_evaluator_instead(model: onnx.ModelProto, why: str) -> ReferenceProgram:
    """Onnx's evaluator, where onnxruntime does not run a model; why not is said too where neither loads it."""
    try:
        return OnnxEvaluator(model)
    except InferenceFailedError as error:
        raise InferenceFailedError(f"{why}; {error}") from error


def walk_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a model, its functions and all graphs inside of its nodes."""
    waiting = deque((*model.graph.node, *(node for function in model.functions for node in function.node)))
    while waiting:
        node = waiting.popleft()
        yield node
        for graph in list_inner_graphs(node):
            waiting.extend(graph.node)


def _require_inputs(inputs: Sequence[ReferenceInput], arrays: Sequence[object]) -> None:
    """Raises PlanError where there are not as many arrays as a model has inputs."""
    if len(inputs) != len(arrays):
        known = ", ".join(f"{item.name} {item.dtype} {list(item.shape)}" for item in inputs)
        raise PlanError(f"{len(arrays)} inputs were given, the model takes {len(inputs)}: {known}")


def _name_arrays(inputs: Sequence[ReferenceInput], arrays: Sequence[Array]) -> dict[str, Array]:
    _require_inputs(inputs, arrays)
    return {item.name: array for item, array in zip(inputs, arrays, strict=True)}


def read_inputs(texts: Sequence[str], cwd: str, inputs: Sequence[ReferenceInput]) -> list[Array]:
    """What is written behind each `--input=`, as the arrays that a reference takes, or a PlanError."""
    _require_inputs(inputs, texts)
    return [read_input(text, cwd, item.dtype) for text, item in zip(texts, inputs, strict=True)]


def read_input(text: str, cwd: str, dtype_name: str) -> Array:
    """What is written behind `--input=` (`@x.npy`, `4xf32=@x.bin`, `4xf32=1`), as the array that a reference takes.

    A PlanError says that it is no tensor, or one that is not read here.
    """
    try:
        value = read_value(text, cwd)
    except UnsupportedError as error:
        raise PlanError(f"the input {text!r} cannot be given to a reference: {error}") from error
    if value is None:
        raise PlanError(f"the input {text!r} is no tensor")
    dtype = _find_dtype(dtype_name)
    contents = np.frombuffer(value.contents, np.uint8)
    count = int(np.prod(value.shape, dtype=np.int64))
    if dtype.name in _PACKED:
        bits = _PACKED[dtype.name]
        parts = (contents[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (1 << bits) - 1).reshape(-1)[:count]
        half, whole = 1 << bits - 1, 1 << bits
        signed = parts.astype(np.int8) - whole * (parts >= half) if dtype.name.startswith("i") else parts
        return signed.astype(dtype).reshape(value.shape)
    if contents.size != count * dtype.itemsize:
        raise PlanError(f"the input {text!r} is a {value.element_type}, and the model takes {dtype_name}")
    return contents.view(dtype).reshape(value.shape)


def pack_bytes(array: Array) -> bytes:
    """The contents as IREE's tools read them: little-endian, dense; small values share a byte, the first one lowest."""
    if array.dtype.name in _PACKED:
        bits = _PACKED[array.dtype.name]
        parts = array.astype(np.int8).reshape(-1).view(np.uint8) & (1 << bits) - 1
        full = np.append(parts, np.zeros(-parts.size % (8 // bits), np.uint8)).reshape(-1, 8 // bits)
        return bytes(np.bitwise_or.reduce(full << np.arange(0, 8, bits, dtype=np.uint8), axis=1).astype(np.uint8))
    # ml_dtypes' are of kind V, and have no byte order.
    little = array if array.dtype.kind == "V" else array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).tobytes()


def tensor_type(name: str, array: Any) -> str:
    """The type of an output in IREE's notation, `1x64xi64`; a PlanError where its tools know no such tensor."""
    found = array.dtype.name if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
    element = ELEMENT_TYPES.get(found)
    if element is None:
        raise PlanError(f"output {name!r} is {found}: only tensors of numbers can be compared")
    return "x".join([*map(str, array.shape), element])


def float_type(array: Array) -> str:
    """IREE's name of an array's element type, where that is one that rounds; empty for others."""
    name = ELEMENT_TYPES.get(array.dtype.name, "")
    return name if name in _FLOATS else ""


def _find_dtype(name: str) -> np.dtype[Any]:
    """A type by the name that NumPy or ml_dtypes has for it."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: PLC0415 - slow to import, and most models do without

        if name not in ELEMENT_TYPES:
            raise PlanError(f"an input is a {name}, which no reference can be given") from None
        known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return known


def _get_first_line(error: Exception) -> str:
    """What an exception says, on one line; of onnxruntime's what the innermost operator says."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    *_, kind, name, said = _NODE.findall(line)[-1] if _NODE.search(line) else ("", "", line)
    plain = _PREFIX.sub("", said).strip()
    return f"{kind} {name!r}: {plain}" if kind else plain


def _name_dtype(kind: str) -> str:
    """NumPy's name of `tensor(float)`."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return _ITS_NAMES.get(name, name)


def read_declared_type(value: onnx.ValueInfoProto) -> tuple[str, tuple[int | str | None, ...]]:
    """Type and shape of an input or output, as a model declares them; no shape of what is not a tensor."""
    import onnx  # noqa: PLC0415

    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value")), ()
    # Negative sizes are unknown ones in some files.
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in tensor.shape.dim
    )
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name, dims
