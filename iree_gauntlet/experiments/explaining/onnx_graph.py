"""The graph of an ONNX model, as it is imported."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


# Operators that look at sizes alone.
_OF_SIZES = ("Shape", "Size")
# What a value counts for whose size is not known before it runs.
_UNKNOWN_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Node(Recorded):
    """An operator in the graph.

    Attributes:
        index: its place in the graph.
        place: which node of the published file it is, from 1; 0 for none of them.
    """

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    place: int

    @property
    def title(self) -> str:
        """What people know it by: `Conv "/layer1/Conv"`; without a name, by what it gives."""
        return f'{self.op} "{self.name}"' if self.name else f'{self.op} that gives "{self.outputs[0]}"'


@dataclass(frozen=True)
class Graph(Recorded):
    """The graph that is imported.

    Attributes:
        nodes: in an order in which they can be computed.
        sizes: bytes of values that can be outputs; None where not known.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]
    sizes: dict[str, int | None]
    of: int

    @cached_property
    def producer(self) -> dict[str, Node]:
        """The node that gives a value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def used(self) -> frozenset[str]:
        """Values that something takes, and the model's outputs."""
        return frozenset({*self.outputs, *(value for node in self.nodes for value in node.inputs)})

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Values that depend on constants and sizes alone, not on what the model is given."""
        found = set(self.constants)
        for node in self.nodes:
            if node.op in _OF_SIZES or found.issuperset(node.inputs):
                found.update(node.outputs)
        return frozenset(found)

    def behind(self, values: Iterable[str], stops: Collection[str]) -> list[Node]:
        """The nodes that values are computed by, back to those that are known, in order."""
        todo, found = list(values), set()
        while todo:
            value = todo.pop()
            node = self.producer.get(value)
            if node is not None and value not in stops and node.index not in found:
                found.add(node.index)
                todo += node.inputs
        return [self.nodes[index] for index in sorted(found)]

    def marks(self, nodes: Iterable[Node], targets: Collection[str], most_bytes: int) -> list[str]:
        """Values of nodes that are looked at, evenly among all of them where all have more than so many bytes."""
        of_targets = {value for target in targets for value in self.producer[target].outputs}
        all_of_them = [
            value
            for node in nodes
            for value in node.outputs
            if value in self.sizes and value in self.used and value not in of_targets
        ]
        total = sum(self.bytes_of(value) for value in all_of_them)
        stride = -(-total // most_bytes) if total > most_bytes else 1
        return all_of_them[stride // 2 :: stride]

    def bytes_of(self, value: str) -> int:
        """Of a value that can be an output."""
        size = self.sizes[value]
        return _UNKNOWN_BYTES if size is None else size

    def taken(self, nodes: Collection[Node]) -> list[str]:
        """Values that a group of nodes takes from outside, but for the file's constants."""
        own = {value for node in nodes for value in node.outputs}
        values = dict.fromkeys(value for node in nodes for value in node.inputs)
        return [value for value in values if value not in own and value not in self.constants]

    def given(self, nodes: Collection[Node]) -> list[str]:
        """Values that a group of nodes gives to others."""
        indices = {node.index for node in nodes}
        outside = {value for node in self.nodes if node.index not in indices for value in node.inputs}
        outside.update(self.outputs)
        return [value for node in nodes for value in node.outputs if value in outside and value in self.sizes]

    def widened(self, nodes: Collection[Node], levels: int) -> list[Node]:
        """A group with the nodes that its inputs come from, so many times over."""
        found = {node.index: node for node in nodes}
        for _ in range(levels):
            for value in self.taken(found.values()):
                node = self.producer.get(value)
                if node is not None and value not in self.fixed:
                    found[node.index] = node
        return [found[index] for index in sorted(found)]
