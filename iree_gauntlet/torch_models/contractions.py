"""How many contractions lie behind each other in an ONNX graph: what the tolerance of its outputs depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_CONTRACTIONS = frozenset({"MatMul", "Gemm", "MatMulInteger", "Conv", "ConvTranspose", "Einsum"})


def read_contractions(path: Path) -> int:
    """The same for a file; its weights are not read."""
    import onnx  # noqa: PLC0415 - graphs can be handed over by who has it

    return longest_contraction_path(onnx.load(str(path), load_external_data=False).graph)


def longest_contraction_path(graph: Any) -> int:
    """The largest number of contractions on a way from an input to an output.

    Matrix products, convolutions, transposed ones and Einsum count. A branch or the body of a loop counts as if it
    ran once.

    Args:
        graph: an ONNX GraphProto, sorted as ONNX demands: values before those who use them. Its functions are
            inlined.
    """
    return _longest(graph, {})


def _longest(graph: Any, outer: dict[str, int]) -> int:
    """The longest way through a graph that also sees the values around it.

    Args:
        graph: the graph.
        outer: the longest way to each value outside.
    """
    ways = dict(outer)
    longest = 0
    for node in graph.node:
        before = max((ways.get(name, 0) for name in node.input), default=0)
        # What an inner graph takes from around it is on its ways already.
        inside = max((_longest(inner, ways) for inner in _inner_graphs(node)), default=0)
        way = max(before + (node.op_type in _CONTRACTIONS), inside)
        ways.update((name, way) for name in node.output if name)
        longest = max(longest, way)
    return longest


def _inner_graphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
