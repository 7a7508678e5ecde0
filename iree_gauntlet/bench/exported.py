"""What a build leaves: tensors as `.npy` files, programs as ONNX with their weights beside them."""

from __future__ import annotations

import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir
import torch

from iree_gauntlet.errors import ExitCode, GauntletError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ExportFailedError", "export_program", "type_name", "write_arrays"]

# Element types in IREE's spelling. IREE's integers have no sign of their own.
_TYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "ui8",
    torch.bool: "i1",
}
_NO_TRANSLATION = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)', overload='(\w+)'\)>")


class ExportFailedError(GauntletError):
    """A program that cannot be exported."""

    exit_code = ExitCode.FAILED

    @classmethod
    def of(cls, model: str, program: str, error: Exception) -> ExportFailedError:
        """The error for what an exporter raised; what it says at length goes to standard error."""
        traceback.print_exception(error, file=sys.stderr)
        chain = [error]
        while (deeper := chain[-1].__cause__ or chain[-1].__context__) and isinstance(deeper, Exception):
            chain.append(deeper)
        operators = [found for item in chain for found in [_NO_TRANSLATION.search(str(item))] if found]
        if operators:
            name = ".".join(operators[-1].groups())
            return cls(f"{model}: {program} cannot be exported: ONNX has no translation of {name}")
        said = next((line.strip() for line in str(chain[-1]).splitlines() if line.strip()), "")
        return cls(f"{model}: {program} cannot be exported: {type(chain[-1]).__name__}: {said}")


def type_name(tensor: Any) -> str:
    """A tensor's element type in IREE's spelling; empty for one that IREE does not take."""
    return _TYPES.get(tensor.dtype, "")


def write_arrays(tensors: Sequence[Any], folder: Path, stem: str) -> list[dict[str, Any]]:
    """Write tensors to `STEM_0.npy` and so on; bf16 as its bits in uint16.

    Returns:
        The file, the type and the shape of each.
    """
    found = []
    for index, tensor in enumerate(tensors):
        name = f"{stem}_{index}.npy"
        bits = tensor.detach().contiguous()
        array = bits.view(torch.int16).numpy().view(np.uint16) if bits.dtype == torch.bfloat16 else bits.numpy()
        np.save(folder / name, array, allow_pickle=False)
        found.append({"file": name, "type": type_name(tensor), "shape": list(tensor.shape)})
    return found


def export_program(
    module: Any, inputs: Sequence[Any], outputs: Sequence[Any], path: Path, *, model: str, optimize: bool = True
) -> None:
    """Export a module with fixed shapes to ONNX, its weights in a file beside it.

    Traces of where a node comes from in Python are left out: they are paths of this machine.

    Args:
        module: called with the inputs.
        inputs: its inputs.
        outputs: what it returns for them, flat.
        path: of the `.onnx`; the weights go to the same with `.data` behind it.
        model: name of the model, for errors.
        optimize: whether the exporter rewrites the graph; it takes minutes for graphs of thousands of nodes.

    Raises:
        ExportFailedError: the exporter fails, or leaves out an input or output.
    """
    try:
        program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False, optimize=optimize)
    except Exception as error:  # an exporter may raise anything, and is named for it
        raise ExportFailedError.of(model, path.stem, error) from error
    for graph in (program.model.graph, *program.model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            value.metadata_props.clear()
    program.model.metadata_props.clear()
    _narrow(program.model.graph, outputs)
    program.save(str(path), external_data=True)
    _check(path, inputs, outputs, model)


def _narrow(graph: Any, outputs: Sequence[Any]) -> None:
    """Give outputs the types that the module returns: a sum of f16 or bf16 is exported in f32 (torch 2.13).

    The exporter narrows it again for all that use it, but not where the sum itself is returned.
    """
    narrow = {torch.float16: onnx_ir.DataType.FLOAT16, torch.bfloat16: onnx_ir.DataType.BFLOAT16}
    for index, (value, tensor) in enumerate(zip(graph.outputs, outputs, strict=False)):
        if tensor.dtype in narrow and value.dtype is onnx_ir.DataType.FLOAT:
            kind = narrow[tensor.dtype]
            cast = onnx_ir.Value(name=f"{value.name}_narrow", shape=value.shape, type=onnx_ir.TensorType(kind))
            graph.append(onnx_ir.node("Cast", [value], {"to": int(kind)}, outputs=[cast]))
            graph.outputs[index] = cast


def _check(path: Path, inputs: Sequence[Any], outputs: Sequence[Any], model: str) -> None:
    """The file takes and returns what the module does."""
    graph = onnx.load(str(path), load_external_data=False).graph
    for what, tensors, values in (("inputs", inputs, graph.input), ("outputs", outputs, graph.output)):
        wanted = [list(tensor.shape) for tensor in tensors]
        have = [[size.dim_value for size in value.type.tensor_type.shape.dim] for value in values]
        if have != wanted:
            raise ExportFailedError(
                f"{model}: {path.stem} cannot be exported: its {what} are {wanted}, and ONNX's are {have}"
            )
