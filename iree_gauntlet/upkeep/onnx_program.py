"""What a spec says of an ONNX file: its inputs, with sizes for those that are open, and its outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
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
# Tokens, classes, lengths: small numbers are valid ones of most.
_INTEGERS = "low=0&high=2"


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """An input of a program.

    Attributes:
        name: as the file has it.
        shape: its sizes; 1 where the file leaves one open.
        element_type: as IREE has it.
        is_open: whether the file leaves sizes open.
    """

    name: str
    shape: tuple[int, ...]
    element_type: str
    is_open: bool

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
    """

    path: Path
    name: str
    function: str
    inputs: tuple[OnnxInput, ...]
    outputs: int
    opset: int

    @property
    def onnx_import(self) -> dict[str, Any]:
        """How it is imported: sizes that the file leaves open, and another opset where it has one that is too old."""
        shapes = {item.name: list(item.shape) for item in self.inputs if item.is_open}
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


def read_onnx(path: Path) -> OnnxProgram:
    """Reads what a spec needs of an ONNX file; its weights are not looked at.

    Raises:
        UsageError: it cannot be read, or has inputs that are no tensors.
    """
    try:
        import onnx  # noqa: PLC0415 - of the importer's extra
    except ImportError as error:
        raise UsageError("--program reads ONNX files, and onnx is not installed", "pip install onnx") from error
    if not path.is_file():
        raise UsageError(f"--program {path}: there is no such file", "Name an .onnx file.")
    try:
        model = onnx.load(str(path), load_external_data=False)
    # Of protobuf, by one of several names.
    except Exception as error:
        what = f"--program {path} is no ONNX file: {type(error).__name__}"
        raise UsageError(what, "For a program in MLIR, see docs/start/own-model.md.") from error
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = tuple(
        _input(path, value, onnx.TensorProto.DataType.Name) for value in graph.input if value.name not in constants
    )
    if not graph.output:
        raise UsageError(f"--program {path} is no ONNX file, or an empty one: it has no outputs", "Name an .onnx file.")
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    return OnnxProgram(path, _model_name(path), graph.name, inputs, len(graph.output), opset)


def _input(path: Path, value: Any, name_of: Any) -> OnnxInput:
    tensor = value.type.tensor_type
    element_type = _TYPES.get(name_of(tensor.elem_type))
    if not value.type.HasField("tensor_type") or element_type is None:
        what = f"--program {path}: input {value.name} is a {value.type.WhichOneof('value')} that no spec has inputs for"
        raise UsageError(what, f"Tensors of {', '.join(sorted(set(_TYPES.values())))} are.")
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    shape = tuple(size if size > 0 else _OPEN for size in sizes)
    return OnnxInput(value.name, shape, element_type, is_open=any(size <= 0 for size in sizes))


def _model_name(path: Path) -> str:
    """A name that a folder and a chain can have."""
    return re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_") or "model"
