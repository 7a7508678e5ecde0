"""The programs that read, cut and run ONNX models for an explanation, each in the Python that has what it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, OnnxImport, Stage
from iree_gauntlet.experiments.explaining.failures import program_of
from iree_gauntlet.experiments.explaining.traced_sides import TOLERANCES, HeldTensor
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.tools import Tools
    from iree_gauntlet.journal_format import JournalRecord


# Operators that look at sizes alone.
_OF_SIZES = ("Shape", "Size")
# What a value counts for whose size is not known before it runs.
_UNKNOWN_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """The ONNX file that a program was imported from.

    Attributes:
        timeout: seconds that an import may take.
    """

    file: Path
    options: OnnxImport
    timeout: float


def onnx_source(record: JournalRecord, chain: str) -> OnnxSource | None:
    """The ONNX file of a chain's main module; None where it was not imported."""
    for step in record.planned:
        if (step.chain, step.stage, step.role) == (chain, Stage.IMPORT, MAIN) and step.onnx is not None:
            return OnnxSource(Path(program_of(step).path), step.onnx, step.timeout)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxValue(HeldTensor):
    """A tensor that onnxruntime takes or gives.

    Attributes:
        dtype: of an element, as NumPy has it.
        error: of others' value of it, by side: the largest difference, as a share of the largest value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, bool] = field(default_factory=dict)

    @property
    def as_array(self) -> dict[str, Any]:
        """What a plan says of it."""
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "file": str(self.file)}


@dataclass(frozen=True, slots=True)
class HeldValues(Recorded):
    """What onnxruntime took and gave."""

    onnxruntime: str
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]


@dataclass(frozen=True, slots=True)
class OnnxWorkers:
    """The programs, for one model.

    Attributes:
        timeout: seconds that a run may take.
    """

    tools: Tools
    source: OnnxSource
    timeout: float

    @property
    def prepared(self) -> Path:
        """The model as it is imported."""
        return self.tools.folder / "prepared.onnx"

    def describe(self) -> Graph:
        """Prepare the model; its graph.

        Raises:
            GauntletError: it cannot be cut.
        """
        plan = {"model": str(self.source.file), "prepared": str(self.prepared), **self.source.options.as_dict()}
        return Graph.from_dict(self._ask("cut_onnx", "describe", plan, self.source.timeout))

    def cut(
        self,
        name: str,
        outputs: Sequence[str],
        inputs: Sequence[OnnxValue] | None = None,
        constants: Sequence[OnnxValue] = (),
        *,
        repeat: int = 0,
        imported: bool = True,
    ) -> tuple[Path, Path]:
        """Cut the prepared model; the .onnx, and the program that it is imported as. See `cut_onnx.py`.

        Raises:
            GauntletError: that cannot be cut, or imported.
        """
        onnx, mlir = self.tools.folder / f"{name}.onnx", self.tools.folder / f"{name}.mlir"
        plan = {
            "model": str(self.prepared),
            "inputs": None if inputs is None else [value.as_array for value in inputs],
            "constants": [value.as_array for value in constants],
            "outputs": outputs,
            "repeat": repeat,
            "onnx": str(onnx),
            "mlir": str(mlir) if imported else "",
        }
        self._ask("cut_onnx", f"{name}_cut", plan, self.source.timeout)
        return onnx, mlir

    def hold(
        self, name: str, model: Path, inputs: Sequence[str], sides: Mapping[str, Sequence[str]], cwd: Path | None = None
    ) -> HeldValues:
        """Run a model in onnxruntime, and hold others' outputs against what it gives.

        Raises:
            GauntletError: it does not run there.
        """
        plan = {
            "model": str(model),
            "inputs": inputs,
            "cwd": str(cwd or self.tools.folder),
            "folder": str(self.tools.folder),
            "name": name,
            "sides": sides,
            "tolerances": TOLERANCES,
        }
        return HeldValues.from_dict(self._ask("hold_onnx", f"{name}_hold", plan, self.timeout, own=True))

    def _ask(self, worker: str, name: str, plan: Mapping[str, object], timeout: float, *, own: bool = False) -> Any:
        argv = self.tools.plan(worker, name, plan)
        return self.tools.ask(name, argv, self.source.file.name, timeout=timeout, own=own)


def compute_worst(values: Iterable[OnnxValue], side: str) -> float:
    """The largest error of a side's values."""
    return max((value.error.get(side, 0.0) for value in values), default=0.0)


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
