"""Prepare an ONNX model as its import does, and say what it is made of, in the Python of the toolchain.

    python describe_onnx.py MODEL.onnx -o PREPARED.onnx [the options of import_onnx.py]

Prints a JSON object:

    {"inputs": […], "outputs": […], "constants": […],   values by their names; constants are those that the file holds
     "nodes": [{"name": …, "op": "Conv", "inputs": […], "outputs": […],
                "place": 12}],      in the file as published, from 1; 0 where the preparation made it
     "of": 134,                     nodes of that file
     "sizes": {value: bytes}}       of what nodes give, where tensors of numbers; null where sizes are not known

A node's inputs are also the values that graphs inside of it use.

Exit codes: 0 done, 1 the preparation failed, 2 the file cannot be used; the reason is one line on stderr.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.import_onnx import (
    ImportFailedError,
    InputError,
    import_parser,
    load_onnx,
    prepare_as_asked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx


# What a protobuf message, and so a model that is worked on in memory, may have.
_MOST_BYTES = 2_000_000_000
# Bytes of an element, by ONNX's numbers of the types that onnxruntime hands on as arrays and IREE takes.
_ELEMENT_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8}


def list_used_values(node: onnx.NodeProto) -> list[str]:
    """The values that a node takes, with those that graphs inside of it take from around it."""
    graphs = [graph for item in node.attribute for graph in (item.g, *item.graphs) if graph.node]
    inner = [name for graph in graphs for name in _list_from_around(graph)]
    return list(dict.fromkeys(name for name in (*node.input, *inner) if name))


def _list_from_around(graph: onnx.GraphProto) -> Iterator[str]:
    own = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        yield from (name for name in list_used_values(node) if name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def _count_bytes(tensor: onnx.TypeProto.Tensor) -> int | None:
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    return math.prod(sizes) * _ELEMENT_BYTES[tensor.elem_type] if known else None


def _describe(model: onnx.ModelProto, published: onnx.ModelProto) -> dict[str, Any]:
    graph = model.graph
    constants = [tensor.name for tensor in graph.initializer] + [item.values.name for item in graph.sparse_initializer]
    places = {tuple(node.output): place for place, node in enumerate(published.graph.node, 1)}
    return {
        "inputs": [value.name for value in graph.input if value.name not in set(constants)],
        "outputs": [value.name for value in graph.output],
        "constants": constants,
        "nodes": [
            {
                "name": node.name,
                "op": node.op_type,
                "inputs": list_used_values(node),
                "outputs": [name for name in node.output if name],
                "place": places.get(tuple(node.output), 0),
            }
            for node in graph.node
        ],
        "of": len(published.graph.node),
        "sizes": {
            value.name: _count_bytes(value.type.tensor_type)
            for value in (*graph.value_info, *graph.output)
            if value.type.tensor_type.elem_type in _ELEMENT_BYTES
        },
    }


def _load_whole(path: Path) -> onnx.ModelProto:
    """The model of a file that has all of it."""
    import onnx  # noqa: PLC0415 - the toolchain's

    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path.name} has more than 2 GB and cannot be cut")
    # What lies outside is not read to find out that it does.
    alone = onnx.load(path, load_external_data=False)
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in alone.graph.initializer):
        raise InputError(f"the weights of {path.name} lie outside of it, and it cannot be cut")
    return load_onnx(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    import onnx  # noqa: PLC0415 - the toolchain's

    arguments = import_parser("describe_onnx.py").parse_args(argv)
    try:
        published = _load_whole(arguments.model)
        model = prepare_as_asked(arguments)
        onnx.save(model, arguments.output)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except ImportFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(_describe(model, published)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
