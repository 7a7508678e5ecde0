"""What a spec says of an ONNX file: its inputs, with sizes for those that are open, and its outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.onnx_data import data_files
from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# Element types of ONNX, by their names there, as IREE has them.
_TYPES = {
    "FLOAT": "f32",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "DOUBLE": "f64",
    "BOOL": "i1",
    **{f"INT{bits}": f"si{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"ui{bits}" for bits in (8, 16, 32, 64)},
}
# What stands for a size that the file leaves open.
_OPEN = 1
# IREE imports older ones in part.
_LEAST_OPSET = 17
_SHAPE = re.compile(r"(?P<name>.+)=(?P<sizes>\d+(x\d+)*)\Z")
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
# Tokens, classes, lengths: small numbers are valid ones of most.
_INTEGERS = "low=0&high=2"


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """An input of a program.

    Attributes:
        name: as the file has it.
        shape: its sizes.
        element_type: as IREE has it.
        open_sizes: those that the file leaves open: their names, or their places, counted from 0.
    """

    name: str
    shape: tuple[int, ...]
    element_type: str
    open_sizes: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """`1x3x48x192xf32`."""
        return "x".join((*map(str, self.shape), self.element_type))


@dataclass(frozen=True, slots=True)
class OnnxProgram:
    """An ONNX file.

    Attributes:
        path: where it is.
        name: what its model is called here.
        function: that it is imported as.
        inputs: those that a caller passes.
        outputs: how many there are.
        opset: of ONNX's own operators.
        data: files beside it that it keeps weights in.
    """

    path: Path
    name: str
    function: str
    inputs: tuple[OnnxInput, ...]
    outputs: int
    opset: int
    data: tuple[Path, ...]

    @property
    def onnx_import(self) -> dict[str, Any]:
        """How it is imported: sizes that the file leaves open, and another opset where it has one that is too old."""
        shapes = {item.name: list(item.shape) for item in self.inputs if item.open_sizes}
        return ({"shapes": shapes} if shapes else {}) | ({"opset": _LEAST_OPSET} if self.opset < _LEAST_OPSET else {})

    @property
    def types(self) -> tuple[str, ...]:
        """Of the inputs; a benchmark is given zeros."""
        return tuple(re.sub(r"[su]i(?=\d+$)", "i", item.type) for item in self.inputs)

    @property
    def random_inputs(self) -> tuple[str, ...]:
        """Inputs made from seeds: `normal/1x3x48x192xf32?seed=1`."""
        found = []
        for seed, item in enumerate(self.inputs, start=1):
            floats = "f" in item.element_type
            kind, more = ("normal", "") if floats else ("integers", f"&{_INTEGERS}")
            found.append(f"{kind}/{item.type}?seed={seed}{more}")
        return tuple(found)


def read_onnx(path: Path, name: str = "", shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxProgram:
    """Reads what a spec needs of an ONNX file; its weights are not looked at.

    Args:
        path: the file.
        name: what its model is to be called; empty for the file's own.
        shapes: sizes of inputs that the file leaves open, by their names; 1 for others.

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
    data = tuple(path.parent / name for name in data_files(path))
    if gone := [item for item in data if not item.is_file()]:
        what = f"--program {path} keeps weights in {gone[0].name}, which is not there"
        raise UsageError(what, f"Put it into {path.parent.resolve()}.")
    constants = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in constants]
    known = shapes or {}
    inputs = tuple(_input(path, value, onnx.TensorProto.DataType.Name, known.get(value.name)) for value in values)
    if unknown := known.keys() - {item.name for item in inputs}:
        names = ", ".join(item.name for item in inputs)
        raise UsageError(f"--shape {min(unknown)}=…: {path.name} has no such input", f"Its inputs: {names}.")
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    return OnnxProgram(path, _model_name(name or path.stem), graph.name, inputs, len(graph.output), opset, data)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Sizes by the names of inputs, from `x=1x3x96x320`.

    Raises:
        UsageError: a text is not of this form.
    """
    shapes = {}
    for text in texts:
        found = _SHAPE.match(text)
        if found is None:
            raise UsageError(f"--shape {text}: expected an input and its sizes", "Such as --shape x=1x3x96x320.")
        shapes[found["name"]] = tuple(map(int, found["sizes"].split("x")))
    return shapes


def _input(path: Path, value: Any, name_of: Any, wanted: tuple[int, ...] | None) -> OnnxInput:
    tensor = value.type.tensor_type
    kind = name_of(tensor.elem_type) if value.type.HasField("tensor_type") else value.type.WhichOneof("value")
    element_type = _TYPES.get(kind)
    if element_type is None:
        what = f"--program {path}: input {value.name} is of {kind}, which no spec has inputs of"
        raise UsageError(what, f"Expected tensors of {', '.join(sorted(set(_TYPES.values())))}.")
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    names = tuple(dim.dim_param or str(place) for place, dim in enumerate(tensor.shape.dim) if dim.dim_value <= 0)
    shape = wanted or tuple(size if size > 0 else _OPEN for size in sizes)
    if len(shape) != len(sizes) or any(size > 0 and size != one for size, one in zip(sizes, shape, strict=True)):
        has = "x".join(str(size) if size > 0 else "?" for size in sizes)
        what = f"--shape {value.name}={'x'.join(map(str, shape))}: the file has {has}"
        raise UsageError(what, "Give as many sizes; only those with a ? are open.")
    return OnnxInput(value.name, shape, element_type, names)


def _model_name(text: str) -> str:
    """A name that a folder and a chain can have."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "model"
