"""The search for the first wrong operator of an ONNX model: IREE and onnxruntime differ on the same inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, OnnxImport
from iree_gauntlet.engine.workbench import onnxruntime_version
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.failures import find_program
from iree_gauntlet.experiments.explaining.flow_program import TOLERANCES, TensorFile
from iree_gauntlet.experiments.explaining.locate import drop_inf
from iree_gauntlet.formatting import format_share
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.tools import IreeTools
    from iree_gauntlet.journal_format import JournalRecord


# Operators that depend only on the sizes of their inputs.
_SIZE_OPERATORS = ("Shape", "Size")
# The assumed size of a value whose size is only known at run time.
_UNKNOWN_BYTES = 1_000_000
# The function of an extracted operator's model.
OPERATOR_FUNCTION = "operator"
# The model in the form that is imported.
_MODEL_FILE = "prepared.onnx"
_IREE, _EXPECTED, _PUBLISHED = "iree", "expected", "published"
# The limit for the values compared in one run, because both sides hold them in memory and in files.
_MAX_BYTES = 256_000_000
# If the model does not run with all values as outputs, only every fourth, then every sixteenth value is an output.
_STRIDES = (1, 4, 16)
# If a group of nodes is correct when run alone, it is extended towards the inputs by these numbers of levels, in turn.
_LEVELS = (0, 1, 2, 4, 8)
# Above this size, the extracted model is also tried with large tensors that repeat their first values.
_LARGE_BYTES, _REPEATED_VALUES = 5_000_000, 1021
_NO_ONNXRUNTIME = (
    "its operators are not compared with onnxruntime, which is not installed: pip install 'iree-gauntlet[record]', and "
    "explain it again"
)


@dataclass(frozen=True, slots=True)
class Node(Recorded):
    """An operator: its index in the graph, and its number (from 1) in the published file, or 0 if it is not there."""

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    published_number: int

    @property
    def title(self) -> str:
        """The operator's usual name, such as `Conv "/layer1/Conv"`; a nameless operator has its output's name."""
        return f'{self.op} "{self.name}"' if self.name else f'{self.op} that gives "{self.outputs[0]}"'


@dataclass(frozen=True)
class Graph(Recorded):
    """The imported graph: the nodes in an order of computation.

    `sizes` has the bytes of each value that can be an output; None if the size is unknown. `published_nodes` is the
    number of nodes in the published file.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]
    sizes: dict[str, int | None]
    published_nodes: int

    @cached_property
    def producers(self) -> dict[str, Node]:
        """The node that computes each value."""
        return {value: node for node in self.nodes for value in node.outputs}

    @cached_property
    def used_values(self) -> frozenset[str]:
        """The values that any node takes, and the model's outputs."""
        return frozenset({*self.outputs, *(value for node in self.nodes for value in node.inputs)})

    @cached_property
    def fixed_values(self) -> frozenset[str]:
        """The values that depend only on constants and sizes, not on the values of the model's inputs."""
        values = set(self.constants)
        for node in self.nodes:
            if node.op in _SIZE_OPERATORS or values.issuperset(node.inputs):
                values.update(node.outputs)
        return frozenset(values)

    def find_ancestors(self, values: Iterable[str], stops: Collection[str]) -> list[Node]:
        """Return, in order, the nodes that compute `values` from the values in `stops`."""
        pending, indices = list(values), set()
        while pending:
            value = pending.pop()
            node = self.producers.get(value)
            if node is not None and value not in stops and node.index not in indices:
                indices.add(node.index)
                pending += node.inputs
        return [self.nodes[index] for index in sorted(indices)]

    def choose_extra_outputs(self, nodes: Iterable[Node], targets: Collection[str], max_bytes: int) -> list[str]:
        """Choose the nodes' values to compare: all, or an evenly spaced selection if all exceed the limit."""
        target_values = {value for target in targets for value in self.producers[target].outputs}
        values = [
            value
            for node in nodes
            for value in node.outputs
            if value in self.sizes and value in self.used_values and value not in target_values
        ]
        sizes = (self.sizes[value] for value in values)
        total = sum(_UNKNOWN_BYTES if size is None else size for size in sizes)
        stride = -(-total // max_bytes) if total > max_bytes else 1
        return values[stride // 2 :: stride]

    def list_inputs(self, nodes: Collection[Node]) -> list[str]:
        """Return the values that a group of nodes takes from outside, without the file's constants."""
        outputs = {value for node in nodes for value in node.outputs}
        values = dict.fromkeys(value for node in nodes for value in node.inputs)
        return [value for value in values if value not in outputs and value not in self.constants]

    def list_outputs(self, nodes: Collection[Node]) -> list[str]:
        """Return the values of a group of nodes that other nodes take."""
        indices = {node.index for node in nodes}
        outside = {value for node in self.nodes if node.index not in indices for value in node.inputs}
        outside.update(self.outputs)
        return [value for node in nodes for value in node.outputs if value in outside and value in self.sizes]

    def widen(self, nodes: Collection[Node], levels: int) -> list[Node]:
        """Extend a group by the nodes that compute its inputs, at most `levels` levels back."""
        nodes_by_index = {node.index: node for node in nodes}
        for _ in range(levels):
            for value in self.list_inputs(nodes_by_index.values()):
                node = self.producers.get(value)
                if node is not None and value not in self.fixed_values:
                    nodes_by_index[node.index] = node
        return [nodes_by_index[index] for index in sorted(nodes_by_index)]


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """A program's ONNX file, with the options and the time limit of the import."""

    file: Path
    options: OnnxImport
    timeout: float


def find_onnx_source(record: JournalRecord, chain: str) -> OnnxSource | None:
    """Return the ONNX file of a chain's main module; None if the module was not imported."""
    for step in record.planned:
        if (step.chain, step.stage, step.role) == (chain, Stage.IMPORT, MAIN) and step.onnx is not None:
            return OnnxSource(Path(find_program(step).path), step.onnx, step.timeout)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxValue(TensorFile):
    """A tensor that onnxruntime takes or computes, with elements of a NumPy type.

    Attributes:
        error: by side (`iree`, `expected`, `published`), the largest difference from onnxruntime's value, as a share of
            the largest value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OnnxValues(Recorded):
    """The inputs and outputs of a run in onnxruntime."""

    onnxruntime: str
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]

    def find_wrong(self, side: str) -> list[OnnxValue]:
        """Return the outputs that are wrong on a side."""
        return [value for value in self.outputs if value.wrong.get(side)]

    def find_worst(self, side: str) -> float:
        """Return a side's largest error."""
        return max((value.error.get(side, 0.0) for value in self.outputs), default=0.0)


@dataclass(frozen=True, slots=True)
class WrongOperator:
    """An operator, or a group that contains it, that gives wrong numbers on onnxruntime's inputs.

    `repeated`: large tensors repeat their first values, and so lack most of the model's own values.
    """

    nodes: tuple[Node, ...]
    published_nodes: int
    onnx: Path
    program: Path
    values: OnnxValues
    repeated: bool

    @property
    def error(self) -> float:
        """The largest error, as a share of the output's largest value."""
        return self.values.find_worst(_IREE)

    @property
    def title(self) -> str:
        """The operator's name and number: `Conv "/layer1/Conv" (node 12 of 134)`."""
        names = ", ".join(node.title for node in self.nodes)
        numbers = [str(node.published_number) for node in self.nodes if node.published_number]
        nodes = f"{'node' if len(numbers) == 1 else 'nodes'} {', '.join(numbers)}"
        location = f"{nodes} of {self.published_nodes}" if numbers else "made when the model was prepared"
        return f"{names} ({location})"

    @property
    def bytes(self) -> int:
        """The size of the files for a bundle."""
        files = (value.file for value in (*self.values.inputs, *self.values.outputs))
        return sum(path.stat().st_size for path in (self.onnx, *files))


@dataclass(frozen=True, slots=True)
class OperatorSearchResult:
    """The result of a search; `agrees`: IREE agrees with onnxruntime, so IREE is not at fault."""

    operator: WrongOperator | None = None
    reason: str = ""
    note: str = ""
    agrees: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the record's fields."""
        entry: dict[str, Any] = {"why": self.reason, "note": self.note}
        if self.operator is None:
            return entry | {"agrees": self.agrees}
        operator, values = self.operator, self.operator.values
        entry |= {"operator": operator.title, "error": drop_inf(operator.error)}
        entry |= {"reference": f"onnxruntime {values.onnxruntime}", "repeated": operator.repeated}
        return entry | {"inputs": [v.type for v in values.inputs], "outputs": [v.type for v in values.outputs]}


def find_first_wrong_operator(source: OnnxSource, tools: IreeTools, say: Callable[[str], None]) -> OperatorSearchResult:
    """Find the first operator with correct inputs and wrong outputs, according to onnxruntime; confirm it alone."""
    if not onnxruntime_version():
        return OperatorSearchResult(reason=_NO_ONNXRUNTIME)
    say("comparing it with onnxruntime")
    plan = {"model": str(source.file), "prepared": str(tools.folder / _MODEL_FILE), **source.options.as_dict()}
    try:
        response = tools.run_worker("cut_onnx", "describe", plan, source.file.name, timeout=source.timeout)
        return _Search(tools, source, Graph.from_dict(response), say).find()
    except GauntletError as error:
        return OperatorSearchResult(reason=f"its operators cannot be told apart: {error.on_one_line}")


@dataclass(slots=True)
class _Search:
    """The search in one model; `values` has onnxruntime's values so far.

    Workers read, cut and run the model, each in the Python that has the packages for that.
    """

    tools: IreeTools
    source: OnnxSource
    graph: Graph
    say: Callable[[str], None]
    values: dict[str, OnnxValue] = field(default_factory=dict)
    rounds: int = 0

    def find(self) -> OperatorSearchResult:
        """Search the model."""
        # The published model is compared with IREE's outputs and with the expected ones.
        files = self._run("onnx_whole", None, self._inputs, len(self.graph.outputs))
        expected_files = self.tools.failure.values("--expected_output")
        sides = {_IREE: files} | ({_EXPECTED: expected_files} if len(expected_files) == len(files) else {})
        values = self._run_onnxruntime("onnx_whole", self.source.file, self._inputs, sides, keep=False)
        self.values |= {value.name: value for value in values.inputs}
        reference = f"onnxruntime {values.onnxruntime}"
        note = ""
        wrong_share = format_share(values.find_worst(_EXPECTED), "the") if values.find_wrong(_EXPECTED) else ""
        if wrong_share:
            note = f"the expected values differ from {reference}'s by {wrong_share}"
        targets = values.find_wrong(_IREE)
        if not targets:
            share = format_share(values.find_worst(_IREE), "the")
            conclusion = f"the expected values are wrong, by {wrong_share}" if note else "is the tolerance right?"
            return OperatorSearchResult(
                reason=f"IREE gives what {reference} gives, to within {share}: {conclusion}", agrees=True
            )
        group = self._narrow(targets)
        if group is None:
            reason = f"it differs from {reference}, but not with intermediate values as outputs: the fault is in how"
            return OperatorSearchResult(reason=f"{reason} operators are fused", note=note)
        operator = self._find_smallest(group)
        if operator is None:
            titles = ", ".join(node.title for node in group[-3:])
            reason = f"{titles}: the first to differ from {reference}, but not by itself on {reference}'s inputs"
            return OperatorSearchResult(reason=reason, note=note)
        return OperatorSearchResult(operator, note=note)

    @property
    def _inputs(self) -> list[str]:
        return self.tools.failure.values("--input")

    def _narrow(self, wrong_values: Sequence[OnnxValue]) -> list[Node] | None:
        """Return the nodes between correct values and the first wrong one; one node if all values can be compared.

        Return None if the model is correct when intermediate values are outputs too.
        """
        graph, targets = self.graph, [value.name for value in wrong_values]
        published_files = {value.name: str(value.file) for value in wrong_values}
        known_names = {*graph.inputs, *graph.constants}
        while True:
            region = graph.find_ancestors(targets, known_names)
            extra_outputs = graph.choose_extra_outputs(region, targets, _MAX_BYTES)
            if not extra_outputs:
                return region
            values = self._run_with(targets, extra_outputs, published_files)
            if values.find_wrong(_PUBLISHED):
                share = format_share(values.find_worst(_PUBLISHED), "the")
                message = f"in onnxruntime, the model as prepared for the import gives other numbers, off by {share}"
                raise GauntletError(message, "onnx converts it to another opset; try without `opset`.")
            wrong_names = {value.name for value in values.find_wrong(_IREE)}
            if not wrong_names:
                return None
            first = min(wrong_names, key=lambda name: graph.producers[name].index)
            right_names = {value.name for value in values.outputs} - wrong_names - known_names
            known_names |= right_names
            if first in targets and not right_names:
                # None of the intermediate values could be compared.
                return graph.find_ancestors([first], known_names)
            targets, published_files = [first], {}

    def _run_with(self, targets: Sequence[str], extras: Sequence[str], published_files: dict[str, str]) -> OnnxValues:
        """Run the model up to the targets, with `extras` too; if that fails, try with fewer of them."""
        errors: list[GauntletError] = []
        for stride in _STRIDES:
            self.rounds += 1
            name = f"onnx_marked_{self.rounds}"
            outputs = [*targets, *extras[stride // 2 :: stride]]
            self.say(f"examining {len(outputs)} values of {len(self.graph.nodes)} operators")
            try:
                onnx, program = self._cut(name, outputs)
                files = self._run(name, program, self._inputs, len(outputs))
            except GauntletError as error:
                self.say(error.on_one_line)
                errors.append(error)
                continue
            sides = {_IREE: files, _PUBLISHED: [published_files.get(value, "") for value in outputs]}
            return self._run_onnxruntime(name, onnx, self._inputs, sides)
        message = f"the model does not run with intermediate values as outputs: {errors[0].message}"
        raise GauntletError(message, errors[0].hint) from errors[0]

    def _find_smallest(self, group: list[Node]) -> WrongOperator | None:
        """Find the smallest group that is wrong alone, in a form small enough for a bundle."""
        node_count = 0
        for levels in _LEVELS:
            nodes = self.graph.widen(group, levels)
            if len(nodes) == node_count:
                break
            node_count = len(nodes)
            self.say(f"confirming {', '.join(node.title for node in nodes[-3:])}")
            operator = self._confirm(nodes, f"onnx_cut_{levels}")
            if operator is not None and operator.bytes > _LARGE_BYTES:
                self.say("trying it with large tensors that repeat their first values")
                return self._confirm(nodes, "onnx_small", repeat=_REPEATED_VALUES) or operator
            if operator is not None:
                return operator
        return None

    def _confirm(self, nodes: Sequence[Node], name: str, *, repeat: int = 0) -> WrongOperator | None:
        """Run a group as a separate model on onnxruntime's inputs; return None if it is correct or does not run."""
        graph, folder = self.graph, self.tools.folder
        input_names, outputs = graph.list_inputs(nodes), graph.list_outputs(nodes)
        try:
            if missing_names := [value for value in input_names if value not in self.values]:
                self.rounds += 1
                model, _ = self._cut(f"onnx_values_{self.rounds}", missing_names, import_program=False)
                self._run_onnxruntime(f"onnx_values_{self.rounds}", model, self._inputs, {})
            # Values that depend only on sizes become constants, as they are for the compiler of the whole model.
            constants = [self.values[value] for value in input_names if value in graph.fixed_values]
            inputs = [self.values[value] for value in input_names if value not in graph.fixed_values]
            if repeat:
                inputs = [_repeat(value, repeat, folder / f"{name}_{i}.bin") for i, value in enumerate(inputs)]
            onnx, program = self._cut(name, outputs, inputs, constants, repeat=repeat)
            input_args = [value.argument for value in inputs]
            files = self._run(name, program, input_args, len(outputs))
            values = self._run_onnxruntime(name, onnx, input_args, {_IREE: files}, keep=False)
        except GauntletError as error:
            self.say(error.on_one_line)
            return None
        if not values.find_wrong(_IREE):
            return None
        return WrongOperator(tuple(nodes), graph.published_nodes, onnx, program, values, repeated=bool(repeat))

    def _run(self, name: str, program: Path | None, inputs: Iterable[str], outputs: int) -> list[str]:
        """Compile and run a program (None: run the failure's own module); return the files of the outputs."""
        failure = self.tools.failure
        program_flags = ("--module=", "--function=", "--parameters=") if program is not None else ()
        ignored_flags = ("--input=", "--expected_", "--output=", *program_flags)
        args = [arg for arg in failure.argv[1:] if not arg.startswith(ignored_flags)]
        if program is not None:
            module = self.tools.compile(f"{name}.vmfb", program, failure.flags)
            args += [f"--module={module}", f"--function={OPERATOR_FUNCTION}"]
        files = [str(self.tools.folder / f"{name}_iree_{index}.bin") for index in range(outputs)]
        args += [*(f"--input={text}" for text in inputs), *(f"--output=@{file}" for file in files)]
        result = self.tools.run_module(name, args)
        if not result.passed:
            lines = result.errors.strip().splitlines() or [result.outcome.signal or "it printed nothing"]
            raise GauntletError(f"{name} does not run: {lines[0][:300]}")
        return files

    def _cut(
        self,
        name: str,
        outputs: Sequence[str],
        inputs: Sequence[OnnxValue] | None = None,
        constants: Sequence[OnnxValue] = (),
        *,
        repeat: int = 0,
        import_program: bool = True,
    ) -> tuple[Path, Path]:
        """Cut the prepared model (see `cut_onnx.py`); return the .onnx file and the program imported from it."""
        onnx, mlir = self.tools.folder / f"{name}.onnx", self.tools.folder / f"{name}.mlir"
        plan = {
            "model": str(self.tools.folder / _MODEL_FILE),
            "inputs": None if inputs is None else [value.as_dict() for value in inputs],
            "constants": [value.as_dict() for value in constants],
            "outputs": outputs,
            "repeat": repeat,
            "onnx": str(onnx),
            "mlir": str(mlir) if import_program else "",
        }
        self.tools.run_worker("cut_onnx", f"{name}_cut", plan, self.source.file.name, timeout=self.source.timeout)
        return onnx, mlir

    def _run_onnxruntime(
        self, name: str, model: Path, inputs: Sequence[str], sides: Mapping[str, Sequence[str]], *, keep: bool = True
    ) -> OnnxValues:
        """Run a model in onnxruntime, compare other sides' outputs with the results, and optionally keep the values."""
        plan = {
            "model": str(model),
            "inputs": inputs,
            "cwd": str(self.tools.failure.cwd),
            "folder": str(self.tools.folder),
            "name": name,
            "sides": sides,
            "tolerances": TOLERANCES,
        }
        timeout, prefix = self.tools.failure.timeout, self.source.file.name
        response = self.tools.run_worker("run_onnx", f"{name}_hold", plan, prefix, timeout=timeout, local=True)
        values = OnnxValues.from_dict(response)
        if keep:
            self.values |= {value.name: value for value in values.outputs}
        return values


def _repeat(value: OnnxValue, first: int, file: Path) -> OnnxValue:
    """Make a floating-point value that repeats its first elements."""
    data = value.file.read_bytes()
    period = len(data) // max(1, math.prod(value.shape)) * first
    if not value.dtype.startswith("float") or len(data) <= period:
        return value
    file.write_bytes((data[:period] * (len(data) // period + 1))[: len(data)])
    return replace(value, file=file)
