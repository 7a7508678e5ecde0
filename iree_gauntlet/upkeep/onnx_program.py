"""The facts of an ONNX file for its spec: its inputs, with sizes for those that are open, and its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.errors import UsageError
from iree_gauntlet.upkeep.programs import ProgramOutput, UserProgram, make_input, make_model_name, require_known_inputs
from iree_gauntlet.workers.iree_side.import_onnx import list_inputs
from iree_gauntlet.workers.iree_side.onnx_reference import walk_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.upkeep.programs import ProgramInput


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
_SUFFIX = ".onnx"
_HINT = "It may be damaged: `python -c 'import onnx; onnx.load(…)'` reports details."


def read_onnx(path: Path, name: str = "", shapes: Mapping[str, tuple[int, ...]] | None = None) -> UserProgram:
    """Read an ONNX file for its spec, without its weights.

    Raises:
        UsageError: the file cannot be read, has inputs that are not tensors, or lacks an input named in `shapes`.
    """
    try:
        import onnx  # noqa: PLC0415 - of the importer's extra
    except ImportError as error:
        hint = "pip install 'iree-gauntlet[iree]'"
        raise UsageError("--program reads ONNX files, and onnx is not installed", hint) from error
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    # Protobuf raises different exceptions in different versions.
    except Exception as error:
        raise UsageError(f"--program {path} is not an ONNX file, or damaged", _HINT) from error
    graph = model.graph
    if not graph.output:
        raise UsageError(f"--program {path} is not an ONNX file, or an empty one: it has no outputs", _HINT)
    data = tuple(path.parent / name for name in list_data_files(path))
    if missing_files := [item for item in data if not item.is_file()]:
        message = f"--program {path} keeps weights in {missing_files[0].name}, which does not exist"
        raise UsageError(message, f"Put it into {path.parent.resolve()}.")
    overrides, get_name = shapes or {}, onnx.TensorProto.DataType.Name
    inputs = tuple(_read_input(path, value, get_name, overrides.get(value.name)) for value in list_inputs(graph))
    require_known_inputs(path, overrides, (item.name for item in inputs))
    return UserProgram(
        path,
        path.name if path.suffix.lower() == _SUFFIX else f"{path.name}{_SUFFIX}",
        make_model_name(name or path.stem),
        graph.name,
        inputs,
        tuple(map(_read_output, graph.output)),
        _has_f64(model),
        opset=max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0),
        data=data,
        model=model,
    )


def _read_input(path: Path, value: Any, get_name: Any, given_shape: tuple[int, ...] | None) -> ProgramInput:
    tensor = value.type.tensor_type
    type_name = get_name(tensor.elem_type) if value.type.HasField("tensor_type") else value.type.WhichOneof("value")
    element_type = _ELEMENT_TYPES.get(type_name)
    if element_type is None:
        message = f"--program {path}: input {value.name} is of {type_name}, which no spec supports as an input"
        raise UsageError(message, f"Expected tensors of {', '.join(sorted(set(_ELEMENT_TYPES.values())))}.")
    # A size is open if it is named, missing or -1; 0 is a size.
    sizes = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or f"?{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    ]
    return make_input(value.name, element_type, sizes, given_shape)


def _read_output(value: Any) -> ProgramOutput:
    from onnx import helper  # noqa: PLC0415 - the caller has it

    declared_type = value.type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(declared_type).name if declared_type else ""
    return ProgramOutput(value.name, dtype)


def _has_f64(model: Any) -> bool:
    """Return True if a value or a weight is f64, or is cast to f64."""
    from onnx import TensorProto  # noqa: PLC0415 - the caller has it

    graph = model.graph
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types |= {tensor.data_type for tensor in graph.initializer}
    for node in walk_nodes(model):
        types |= {attribute.i if attribute.name == "to" else attribute.t.data_type for attribute in node.attribute}
    return TensorProto.DOUBLE in types
