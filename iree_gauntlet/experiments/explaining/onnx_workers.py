"""The programs that read, cut and run ONNX models for an explanation, each in the Python that has what it needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, OnnxImport, Stage
from iree_gauntlet.engine.commands import import_argv
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.traced_sides import TOLERANCES
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.tools import ToolResult, Tools
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
    for step in record.steps:
        if (step["chain"], step["stage"], step.get("role", MAIN)) == (chain, Stage.IMPORT, MAIN) and step.get("onnx"):
            said = step["onnx"]
            shapes = tuple((name, tuple(shape)) for name, shape in said["shapes"])
            program = next(item["path"] for item in step["inputs"] if item["role"] == "program")
            options = OnnxImport(said["opset"], shapes, said["least_opset"])
            return OnnxSource(Path(program), options, float(step["timeout"]))
    return None


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """A tensor that onnxruntime takes or gives.

    Attributes:
        largest: |value|; of what it gives.
        error: of others' value of it, by side: the largest difference, as a share of that; None where infinite.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    largest: float
    error: Mapping[str, float | None]
    wrong: Mapping[str, bool]

    @property
    def as_array(self) -> dict[str, Any]:
        """What a plan says of it."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "file": str(self.file)}


@dataclass(frozen=True, slots=True)
class HeldValues:
    """What onnxruntime took and gave."""

    onnxruntime: str
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """What is cut out of a model.

    Attributes:
        inputs: values that it takes; None for those of the model.
        repeat: large constants hold so many values over and over; 0 for their own.
    """

    outputs: Sequence[str]
    inputs: Sequence[OnnxValue] | None = None
    constants: Sequence[OnnxValue] = ()
    repeat: int = 0


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
        words = import_argv(
            "", _find_script("describe"), str(self.source.file), str(self.prepared), self.source.options
        )[1:]
        ran = self.tools.python("describe", words, timeout=self.source.timeout)
        return read_graph(self._answer("describe", ran))

    def cut(self, name: str, cut: Cut, *, imported: bool = True) -> tuple[Path, Path]:
        """Cut the prepared model; the .onnx, and the program that it is imported as.

        Raises:
            GauntletError: that cannot be cut, or imported.
        """
        onnx, mlir = self.tools.folder / f"{name}.onnx", self.tools.folder / f"{name}.mlir"
        plan = {
            "model": str(self.prepared),
            "inputs": None if cut.inputs is None else [value.as_array for value in cut.inputs],
            "constants": [value.as_array for value in cut.constants],
            "outputs": list(cut.outputs),
            "repeat": cut.repeat,
            "onnx": str(onnx),
            "mlir": str(mlir) if imported else "",
        }
        file = self._plan(f"{name}_cut", plan)
        ran = self.tools.python(f"{name}_cut", (_find_script("cut"), file), timeout=self.source.timeout)
        self._answer(f"{name}_cut", ran)
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
            "inputs": list(inputs),
            "cwd": str(cwd or self.tools.folder),
            "folder": str(self.tools.folder),
            "name": name,
            "sides": {side: list(texts) for side, texts in sides.items()},
            "tolerances": TOLERANCES,
        }
        file = self._plan(f"{name}_hold", plan)
        ran = self.tools.own_python(f"{name}_hold", (_find_script("hold"), file), timeout=self.timeout)
        said = self._answer(f"{name}_hold", ran)
        parts = (tuple(map(_make_value, said[part])) for part in ("inputs", "outputs"))
        return HeldValues(said["onnxruntime"], *parts)

    def _plan(self, name: str, plan: dict[str, Any]) -> str:
        file = self.tools.folder / f"{name}.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        return str(file)

    def _answer(self, name: str, ran: ToolResult) -> dict[str, Any]:
        if not ran.passed:
            lines = ran.errors.strip().splitlines()
            why = "it took too long" if ran.outcome.timed_out else (lines or [f"exit code {ran.outcome.exit_code}"])[-1]
            raise GauntletError(f"{self.source.file.name}: {why[:400]}", f"See {self.tools.folder / name}.txt.")
        found: dict[str, Any] = json.loads((self.tools.folder / f"{name}.out.txt").read_text(encoding="utf-8"))
        return found


def _find_script(name: str) -> str:
    return str(Path(iree_side.__file__).with_name(f"{name}_onnx.py"))


def _make_value(said: Mapping[str, Any]) -> OnnxValue:
    shape, file = tuple(said["shape"]), Path(said["file"])
    errors, wrong = said.get("error", {}), said.get("wrong", {})
    return OnnxValue(said["name"], said["type"], said["dtype"], shape, file, said.get("largest", 0.0), errors, wrong)


@dataclass(frozen=True, slots=True)
class Node:
    """An operator in the graph.

    Attributes:
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
class Graph:
    """The graph that is imported.

    Attributes:
        nodes: in an order in which they can be computed.
        sizes: bytes of values that can be outputs; None where not known.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]
    sizes: Mapping[str, int | None]
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


def read_graph(said: Mapping[str, Any]) -> Graph:
    """The graph that `describe_onnx.py` answers."""
    nodes = tuple(
        Node(index, item["name"], item["op"], tuple(item["inputs"]), tuple(item["outputs"]), item["place"])
        for index, item in enumerate(said["nodes"])
    )
    inputs, outputs = tuple(said["inputs"]), tuple(said["outputs"])
    return Graph(nodes, inputs, outputs, frozenset(said["constants"]), said["sizes"], said["of"])
