"""The facts of an ONNX file for its spec: its inputs, with sizes for those that are open, and its outputs."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.errors import UsageError
from iree_gauntlet.workers.iree_side.import_onnx import list_inputs
from iree_gauntlet.workers.iree_side.onnx_reference import walk_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


# IREE's element types, by ONNX's names.
_ELEMENT_TYPES = {
    "FLOAT": "f32",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "DOUBLE": "f64",
    "BOOL": "i1",
    # Integers of modules have no sign.
    **{f"{sign}INT{bits}": f"i{bits}" for sign in ("", "U") for bits in (2, 4, 8, 16, 32, 64)},
    "FLOAT8E4M3FN": "f8E4M3FN",
    "FLOAT8E4M3FNUZ": "f8E4M3FNUZ",
    "FLOAT8E5M2": "f8E5M2",
    "FLOAT8E5M2FNUZ": "f8E5M2FNUZ",
    "FLOAT8E8M0": "f8E8M0FNU",
}
# The size in place of a size that the file leaves open.
_DEFAULT_SIZE = 1
# IREE imports older opsets only in part.
_MIN_OPSET = 17
_SHAPE_OPTION = re.compile(r"(.+)=(\d+(?:x\d+)*)\Z")
_EXPORT_HINT = "Export it to ONNX first, such as with torch.onnx.export(…, dynamo=True)."
_HINTS = {
    ".mlir": "The spec of a program in MLIR is written by hand: docs/start/own-model.md#a-model-that-is-mlir-already",
    ".pt": _EXPORT_HINT,
    ".pt2": _EXPORT_HINT,
    ".pth": _EXPORT_HINT,
    ".safetensors": _EXPORT_HINT,
    ".tflite": "Convert it to ONNX first, such as with tf2onnx.",
}
_HINTS[".mlirbc"] = _HINTS[".mlir"]


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """An input of a program; `open_sizes` has the names of sizes to choose, by axis from 0; empty with `--shape`."""

    name: str
    shape: tuple[int, ...]
    element_type: str
    open_sizes: Mapping[int, str]
    is_open_in_file: bool

    @property
    def is_float(self) -> bool:
        """True if its values are floating-point numbers."""
        return self.element_type.startswith(("f", "bf"))


@dataclass(frozen=True, slots=True)
class OnnxProgram:
    """An ONNX file; `model` is the result of `onnx.load` without the weights, which are in the files `data`."""

    path: Path
    name: str
    function: str
    inputs: tuple[OnnxInput, ...]
    outputs: int
    opset: int
    data: tuple[Path, ...]
    has_f64: bool
    model: Any

    def onnx_import(self, types: Iterable[str]) -> dict[str, Any]:
        """Return the import's options for inputs of these types: the open sizes, and a newer opset if it is too old."""
        shapes = {
            tensor.name: [int(size) for size in text.split("x")[:-1]]
            for tensor, text in zip(self.inputs, types, strict=True)
            if tensor.is_open_in_file
        }
        return ({"shapes": shapes} if shapes else {}) | ({"opset": _MIN_OPSET} if self.opset < _MIN_OPSET else {})


def read_onnx(path: Path, name: str = "", shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxProgram:
    """Read an ONNX file for its spec, without its weights.

    Raises:
        UsageError: the file cannot be read, has inputs that are not tensors, or lacks an input named in `shapes`.
    """
    try:
        import onnx  # noqa: PLC0415 - of the importer's extra
    except ImportError as error:
        hint = "pip install 'iree-gauntlet[iree]'"
        raise UsageError("--program reads ONNX files, and onnx is not installed", hint) from error
    if not path.is_file():
        message = "is a folder" if path.is_dir() else "no such file"
        hint = "A model behind a URL needs no file: docs/start/own-model.md#2-the-model" if ":/" in str(path) else ""
        raise UsageError(f"--program {path}: {message}", hint or "Name an .onnx file.")
    hint = _HINTS.get(
        path.suffix.lower(), "It may be damaged: `python -c 'import onnx; onnx.load(…)'` reports details."
    )
    try:
        model = onnx.load(str(path), load_external_data=False)
    # Protobuf raises different exceptions in different versions.
    except Exception as error:
        raise UsageError(f"--program {path} is not an ONNX file, or damaged", hint) from error
    graph = model.graph
    if not graph.output:
        raise UsageError(f"--program {path} is not an ONNX file, or an empty one: it has no outputs", hint)
    data = tuple(path.parent / name for name in list_data_files(path))
    if missing_files := [item for item in data if not item.is_file()]:
        message = f"--program {path} keeps weights in {missing_files[0].name}, which does not exist"
        raise UsageError(message, f"Put it into {path.parent.resolve()}.")
    overrides, get_name = shapes or {}, onnx.TensorProto.DataType.Name
    inputs = tuple(_read_input(path, value, get_name, overrides.get(value.name)) for value in list_inputs(graph))
    if unknown := overrides.keys() - {item.name for item in inputs}:
        names = ", ".join(item.name for item in inputs)
        raise UsageError(f"--shape {min(unknown)}=…: {path.name} has no such input", f"Its inputs: {names}.")
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    # The name must be valid for a folder and a chain, and as similar to the file's as possible.
    plain = unicodedata.normalize("NFKD", name or path.stem).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", plain).strip("_.-") or "model"
    return OnnxProgram(path, name, graph.name, inputs, len(graph.output), opset, data, _has_f64(model), model)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parse sizes by the names of inputs, from `x=1x3x96x320`."""
    shapes = {}
    for text in texts:
        option_match = _SHAPE_OPTION.match(text)
        if option_match is None:
            raise UsageError(f"--shape {text}: expected an input and its sizes", "Such as --shape x=1x3x96x320.")
        shapes[option_match[1]] = tuple(map(int, option_match[2].split("x")))
    return shapes


def _read_input(path: Path, value: Any, get_name: Any, given_shape: tuple[int, ...] | None) -> OnnxInput:
    tensor = value.type.tensor_type
    type_name = get_name(tensor.elem_type) if value.type.HasField("tensor_type") else value.type.WhichOneof("value")
    element_type = _ELEMENT_TYPES.get(type_name)
    if element_type is None:
        message = f"--program {path}: input {value.name} is of {type_name}, which no spec supports as an input"
        raise UsageError(message, f"Expected tensors of {', '.join(sorted(set(_ELEMENT_TYPES.values())))}.")
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    # A size is open if it is named, missing or -1; 0 is a size.
    open_names = {
        axis: dim.dim_param or f"?{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
        if not dim.HasField("dim_value") or dim.dim_value < 0
    }
    shape = given_shape or tuple(_DEFAULT_SIZE if axis in open_names else size for axis, size in enumerate(sizes))
    if len(shape) != len(sizes) or any(
        axis not in open_names and size != given_size
        for axis, (size, given_size) in enumerate(zip(sizes, shape, strict=True))
    ):
        file_shape = "x".join("?" if axis in open_names else str(size) for axis, size in enumerate(sizes))
        message = f"--shape {value.name}={'x'.join(map(str, shape))}: the file has {file_shape}"
        raise UsageError(message, "Give the same number of sizes; only those with a ? can be chosen.")
    return OnnxInput(value.name, shape, element_type, {} if given_shape else open_names, bool(open_names))


def _has_f64(model: Any) -> bool:
    """Return True if a value or a weight is f64, or is cast to f64."""
    from onnx import TensorProto  # noqa: PLC0415 - the caller has it

    graph = model.graph
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types |= {tensor.data_type for tensor in graph.initializer}
    for node in walk_nodes(model):
        types |= {attribute.i if attribute.name == "to" else attribute.t.data_type for attribute in node.attribute}
    return TensorProto.DOUBLE in types
