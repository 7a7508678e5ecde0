"""What a spec says of an ONNX file: its inputs, with sizes for those that are open, and its outputs."""

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


# Element types of ONNX, by their names there, as IREE has them.
_TYPES = {
    "FLOAT": "f32",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "DOUBLE": "f64",
    "BOOL": "i1",
    # Integers have no sign in a module.
    **{f"{sign}INT{bits}": f"i{bits}" for sign in ("", "U") for bits in (2, 4, 8, 16, 32, 64)},
    "FLOAT8E4M3FN": "f8E4M3FN",
    "FLOAT8E4M3FNUZ": "f8E4M3FNUZ",
    "FLOAT8E5M2": "f8E5M2",
    "FLOAT8E5M2FNUZ": "f8E5M2FNUZ",
    "FLOAT8E8M0": "f8E8M0FNU",
}
# What stands for a size that the file leaves open.
_OPEN = 1
# IREE imports older ones in part.
_LEAST_OPSET = 17
_SHAPE = re.compile(r"(.+)=(\d+(?:x\d+)*)\Z")
_EXPORT = "Export it to ONNX first, such as with torch.onnx.export(…, dynamo=True)."
_HINTS = {
    ".mlir": "The spec of a program in MLIR is written by hand: docs/start/own-model.md#a-model-that-is-mlir-already",
    ".pt": _EXPORT,
    ".pt2": _EXPORT,
    ".pth": _EXPORT,
    ".safetensors": _EXPORT,
    ".tflite": "Convert it to ONNX first, such as with tf2onnx.",
}
_HINTS[".mlirbc"] = _HINTS[".mlir"]


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """An input of a program; `open_sizes` are names of those that are to be chosen, by their places, from 0 on."""

    name: str
    shape: tuple[int, ...]
    element_type: str
    open_sizes: Mapping[int, str]
    is_dynamic: bool

    @property
    def is_float(self) -> bool:
        """Whether its values are floating-point numbers."""
        return self.element_type.startswith(("f", "bf"))


@dataclass(frozen=True, slots=True)
class OnnxProgram:
    """An ONNX file; `model` is of `onnx.load`, without the weights in files of `data`."""

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
        """How it is imported with inputs of these types: sizes that are open, and another opset for one too old."""
        shapes = {
            item.name: [int(size) for size in text.split("x")[:-1]]
            for item, text in zip(self.inputs, types, strict=True)
            if item.is_dynamic
        }
        return ({"shapes": shapes} if shapes else {}) | ({"opset": _LEAST_OPSET} if self.opset < _LEAST_OPSET else {})


def read_onnx(path: Path, name: str = "", shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxProgram:
    """Reads what a spec needs of an ONNX file; its weights are not looked at.

    Raises:
        UsageError: it cannot be read, has inputs that are no tensors, or none of such a name and shape.
    """
    try:
        import onnx  # noqa: PLC0415 - of the importer's extra
    except ImportError as error:
        hint = "pip install 'iree-gauntlet[iree]'"
        raise UsageError("--program reads ONNX files, and onnx is not installed", hint) from error
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "there is no such file"
        hint = "A model behind a URL needs no file: docs/start/own-model.md#2-the-model" if ":/" in str(path) else ""
        raise UsageError(f"--program {path}: {what}", hint or "Name an .onnx file.")
    hint = _HINTS.get(path.suffix.lower(), "It may be damaged: `python -c 'import onnx; onnx.load(…)'` says more.")
    try:
        model = onnx.load(str(path), load_external_data=False)
    # Of protobuf, by one of several names.
    except Exception as error:
        raise UsageError(f"--program {path} is not an ONNX file, or damaged", hint) from error
    graph = model.graph
    if not graph.output:
        raise UsageError(f"--program {path} is not an ONNX file, or an empty one: it has no outputs", hint)
    data = tuple(path.parent / name for name in list_data_files(path))
    if gone := [item for item in data if not item.is_file()]:
        what = f"--program {path} keeps weights in {gone[0].name}, which is not there"
        raise UsageError(what, f"Put it into {path.parent.resolve()}.")
    known, name_of = shapes or {}, onnx.TensorProto.DataType.Name
    inputs = tuple(_read_input(path, value, name_of, known.get(value.name)) for value in list_inputs(graph))
    if unknown := known.keys() - {item.name for item in inputs}:
        names = ", ".join(item.name for item in inputs)
        raise UsageError(f"--shape {min(unknown)}=…: {path.name} has no such input", f"Its inputs: {names}.")
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    # One that a folder and a chain can have, as near to the file's as possible.
    plain = unicodedata.normalize("NFKD", name or path.stem).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", plain).strip("_.-") or "model"
    return OnnxProgram(path, name, graph.name, inputs, len(graph.output), opset, data, _has_f64(model), model)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Sizes by the names of inputs, from `x=1x3x96x320`."""
    shapes = {}
    for text in texts:
        found = _SHAPE.match(text)
        if found is None:
            raise UsageError(f"--shape {text}: expected an input and its sizes", "Such as --shape x=1x3x96x320.")
        shapes[found[1]] = tuple(map(int, found[2].split("x")))
    return shapes


def _read_input(path: Path, value: Any, name_of: Any, wanted: tuple[int, ...] | None) -> OnnxInput:
    tensor = value.type.tensor_type
    kind = name_of(tensor.elem_type) if value.type.HasField("tensor_type") else value.type.WhichOneof("value")
    element_type = _TYPES.get(kind)
    if element_type is None:
        what = f"--program {path}: input {value.name} is of {kind}, which no spec has inputs of"
        raise UsageError(what, f"Expected tensors of {', '.join(sorted(set(_TYPES.values())))}.")
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    # Open is a size that is named, missing or -1; 0 is one.
    names = {
        place: dim.dim_param or f"?{place}"
        for place, dim in enumerate(tensor.shape.dim)
        if not dim.HasField("dim_value") or dim.dim_value < 0
    }
    shape = wanted or tuple(_OPEN if place in names else size for place, size in enumerate(sizes))
    if len(shape) != len(sizes) or any(
        place not in names and size != one for place, (size, one) in enumerate(zip(sizes, shape, strict=True))
    ):
        has = "x".join("?" if place in names else str(size) for place, size in enumerate(sizes))
        what = f"--shape {value.name}={'x'.join(map(str, shape))}: the file has {has}"
        raise UsageError(what, "Give as many sizes; only those with a ? are open.")
    return OnnxInput(value.name, shape, element_type, {} if wanted else names, bool(names))


def _has_f64(model: Any) -> bool:
    """Whether a value or a weight is f64, or something is made so."""
    from onnx import TensorProto  # noqa: PLC0415 - the caller has it

    graph = model.graph
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types |= {tensor.data_type for tensor in graph.initializer}
    for node in walk_nodes(model):
        types |= {item.i if item.name == "to" else item.t.data_type for item in node.attribute}
    return TensorProto.DOUBLE in types
