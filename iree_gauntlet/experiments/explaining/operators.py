"""The first wrong operator of an ONNX model: what IREE makes of it, and onnxruntime of the same inputs, differs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, OnnxImport
from iree_gauntlet.engine.workbench import onnxruntime_version
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.failures import program_of
from iree_gauntlet.experiments.explaining.flow_program import TOLERANCES, HeldTensor
from iree_gauntlet.experiments.explaining.locate import finite
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.tools import Tools
    from iree_gauntlet.journal_format import JournalRecord


# Operators that look at sizes alone.
_OF_SIZES = ("Shape", "Size")
# What a value counts for whose size is not known before it runs.
_UNKNOWN_BYTES = 1_000_000
# The function of a model that was cut out.
OPERATOR = "operator"
# The model as it is imported.
_PREPARED = "prepared.onnx"
_IREE, _EXPECTED, _PUBLISHED = "iree", "expected", "published"
# Values that are looked at in one run: what both sides have of them is held in memory and in files.
_MOST_BYTES = 256_000_000
# Where the model does not run with all of them as outputs: each fourth, each sixteenth.
_STRIDES = (1, 4, 16)
# By how many operators an operator is widened backwards where it is right by itself.
_LEVELS = (0, 1, 2, 4, 8)
# Above it, what was cut out is tried with large tensors that hold their first values over and over.
_LARGE_BYTES, _REPEATED = 5_000_000, 1021
_NO_ONNXRUNTIME = (
    "its operators are not held against onnxruntime, which is not installed: pip install 'iree-gauntlet[record]', and "
    "explain it again"
)


@dataclass(frozen=True, slots=True)
class Node(Recorded):
    """An operator: its place in the graph, and which node of the published file it is, from 1; 0 for none of them."""

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
    """The graph that is imported: nodes in an order in which they can be computed, of so many that were published.

    `sizes` has the bytes of values that can be outputs; None where not known.
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
        known = (self.sizes[value] for value in all_of_them)
        total = sum(_UNKNOWN_BYTES if size is None else size for size in known)
        stride = -(-total // most_bytes) if total > most_bytes else 1
        return all_of_them[stride // 2 :: stride]

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
        """A group with the nodes that its inputs come from, so many levels back."""
        found = {node.index: node for node in nodes}
        for _ in range(levels):
            for value in self.taken(found.values()):
                node = self.producer.get(value)
                if node is not None and value not in self.fixed:
                    found[node.index] = node
        return [found[index] for index in sorted(found)]


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """The ONNX file that a program was imported from, in so many seconds at most."""

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
    """A tensor that onnxruntime takes or gives, with elements of a type of NumPy.

    Attributes:
        error: of others' value of it, by side: the largest difference, as a share of the largest value.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    error: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeldValues(Recorded):
    """What onnxruntime took and gave."""

    onnxruntime: str
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]

    def find_wrong(self, side: str) -> list[OnnxValue]:
        """Outputs that a side gives wrongly."""
        return [value for value in self.outputs if value.wrong.get(side)]

    def find_worst(self, side: str) -> float:
        """A side's largest error."""
        return max((value.error.get(side, 0.0) for value in self.outputs), default=0.0)


@dataclass(frozen=True, slots=True)
class WrongOperator:
    """An operator, or a group that shows it, which gives wrong numbers on onnxruntime's inputs.

    `repeated`: large tensors hold their first values over and over, in place of the model's own.
    """

    nodes: tuple[Node, ...]
    of: int
    onnx: Path
    program: Path
    held: HeldValues
    repeated: bool

    @property
    def error(self) -> float:
        """The largest, as a share of the output's largest value."""
        return self.held.find_worst(_IREE)

    @property
    def title(self) -> str:
        """`Conv "/layer1/Conv" (node 12 of 134)`."""
        names = ", ".join(node.title for node in self.nodes)
        places = [str(node.place) for node in self.nodes if node.place]
        noun = "node" if len(places) == 1 else "nodes"
        where = f"{noun} {', '.join(places)} of {self.of}" if places else "made when the model was prepared"
        return f"{names} ({where})"

    @property
    def bytes(self) -> int:
        """Of what a bundle would hold."""
        files = (value.file for value in (*self.held.inputs, *self.held.outputs))
        return sum(path.stat().st_size for path in (self.onnx, *files))


@dataclass(frozen=True, slots=True)
class OperatorSearch:
    """What a search came to; `agrees`: IREE gives what onnxruntime gives, and it is not IREE's fault."""

    operator: WrongOperator | None = None
    why: str = ""
    note: str = ""
    agrees: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        found: dict[str, Any] = {"why": self.why, "note": self.note}
        if self.operator is None:
            return found
        one, held = self.operator, self.operator.held
        found |= {"operator": one.title, "error": finite(one.error)}
        found |= {"reference": f"onnxruntime {held.onnxruntime}", "repeated": one.repeated}
        return found | {"inputs": [v.type for v in held.inputs], "outputs": [v.type for v in held.outputs]}


def find_first_wrong_operator(source: OnnxSource, tools: Tools, say: Callable[[str], None]) -> OperatorSearch:
    """The first operator whose inputs agree with onnxruntime's and whose outputs do not, confirmed by itself."""
    if not onnxruntime_version():
        return OperatorSearch(why=_NO_ONNXRUNTIME)
    say("holding it against onnxruntime")
    plan = {"model": str(source.file), "prepared": str(tools.folder / _PREPARED), **source.options.as_dict()}
    try:
        said = tools.ask("cut_onnx", "describe", plan, source.file.name, timeout=source.timeout)
        return _Search(tools, source, Graph.from_dict(said), say).find()
    except GauntletError as error:
        return OperatorSearch(why=f"its operators cannot be told apart: {error.on_one_line}")


@dataclass(slots=True)
class _Search:
    """The search in one model; `values` is what onnxruntime had of values so far.

    The programs that read, cut and run the model do so each in the Python that has what it needs.
    """

    tools: Tools
    source: OnnxSource
    graph: Graph
    say: Callable[[str], None]
    values: dict[str, OnnxValue] = field(default_factory=dict)
    rounds: int = 0

    def find(self) -> OperatorSearch:
        """What there is to find."""
        # The model as published, held against IREE's outputs and those that are expected.
        files = self._run("onnx_whole", None, self._inputs, len(self.graph.outputs))
        expected = self.tools.failure.values("--expected_output")
        sides = {_IREE: files} | ({_EXPECTED: expected} if len(expected) == len(files) else {})
        whole = self._hold("onnx_whole", self.source.file, self._inputs, sides, known=False)
        self.values |= {value.name: value for value in whole.inputs}
        against = f"onnxruntime {whole.onnxruntime}"
        note = ""
        if whole.find_wrong(_EXPECTED):
            note = f"the expected values differ from {against}'s, by {_format_share(whole.find_worst(_EXPECTED))}"
        targets = whole.find_wrong(_IREE)
        if not targets:
            off = _format_share(whole.find_worst(_IREE))
            near = f"IREE gives what {against} gives, to {off}"
            return OperatorSearch(why=f"{near}: {note}" if note else f"{near}: is the tolerance right?", agrees=True)
        group = self._narrow(targets)
        if group is None:
            why = f"it differs from {against}, but not with the values in between as outputs: the fault is in how"
            return OperatorSearch(why=f"{why} operators are fused", note=note)
        operator = self._find_smallest(group)
        if operator is None:
            titles = ", ".join(node.title for node in group[-3:])
            why = f"{titles}: the first to differ from {against}, but not by itself on {against}'s inputs"
            return OperatorSearch(why=why, note=note)
        return OperatorSearch(operator, note=note)

    @property
    def _inputs(self) -> list[str]:
        return self.tools.failure.values("--input")

    def _narrow(self, wrong: Sequence[OnnxValue]) -> list[Node] | None:
        """The nodes between values that are right and the first one that is not: one, where all can be looked at.

        None where the model is right with its values as outputs.
        """
        graph, targets = self.graph, [value.name for value in wrong]
        published = {value.name: str(value.file) for value in wrong}
        right = {*graph.inputs, *graph.constants}
        while True:
            region = graph.behind(targets, right)
            marks = graph.marks(region, targets, _MOST_BYTES)
            if not marks:
                return region
            held = self._mark(targets, marks, published)
            if held.find_wrong(_PUBLISHED):
                off = _format_share(held.find_worst(_PUBLISHED))
                what = f"in onnxruntime the model gives other numbers when it is prepared for the import, by {off}"
                raise GauntletError(what, "Conversion to another opset is onnx's; try without `opset`.")
            bad = {value.name for value in held.find_wrong(_IREE)}
            if not bad:
                return None
            first = min(bad, key=lambda name: graph.producer[name].index)
            known = {value.name for value in held.outputs} - bad - right
            right |= known
            if first in targets and not known:
                # None of the values in between could be looked at.
                return graph.behind([first], right)
            targets, published = [first], {}

    def _mark(self, targets: Sequence[str], marks: Sequence[str], published: dict[str, str]) -> HeldValues:
        """Run the model, as far as targets need it, with marked values as outputs too; fewer where it does not run."""
        problems: list[GauntletError] = []
        for stride in _STRIDES:
            self.rounds += 1
            name = f"onnx_marked_{self.rounds}"
            outputs = [*targets, *marks[stride // 2 :: stride]]
            self.say(f"looking at {len(outputs)} values of {len(self.graph.nodes)} operators")
            try:
                onnx, program = self._cut(name, outputs)
                files = self._run(name, program, self._inputs, len(outputs))
            except GauntletError as error:
                self.say(error.on_one_line)
                problems.append(error)
                continue
            sides = {_IREE: files, _PUBLISHED: [published.get(value, "") for value in outputs]}
            return self._hold(name, onnx, self._inputs, sides)
        what = f"the model does not run with values in between as outputs: {problems[0].what}"
        raise GauntletError(what, problems[0].hint) from problems[0]

    def _find_smallest(self, group: list[Node]) -> WrongOperator | None:
        """The smallest group of those tried that is wrong by itself, in a form that is small enough to be passed on."""
        tried = 0
        for levels in _LEVELS:
            nodes = self.graph.widened(group, levels)
            if len(nodes) == tried:
                break
            tried = len(nodes)
            self.say(f"confirming {', '.join(node.title for node in nodes[-3:])}")
            operator = self._confirm(nodes, f"onnx_cut_{levels}")
            if operator is not None and operator.bytes > _LARGE_BYTES:
                self.say("trying it with large tensors that hold their first values over and over")
                return self._confirm(nodes, "onnx_small", repeat=_REPEATED) or operator
            if operator is not None:
                return operator
        return None

    def _confirm(self, nodes: Sequence[Node], name: str, *, repeat: int = 0) -> WrongOperator | None:
        """A group as a model of its own, on onnxruntime's inputs; None where it is right, or does not run."""
        graph, folder = self.graph, self.tools.folder
        taken, outputs = graph.taken(nodes), graph.given(nodes)
        try:
            if missing := [value for value in taken if value not in self.values]:
                self.rounds += 1
                model, _ = self._cut(f"onnx_values_{self.rounds}", missing, imported=False)
                self._hold(f"onnx_values_{self.rounds}", model, self._inputs, {})
            # What depends on sizes alone is constant for the compiler too.
            constants = [self.values[value] for value in taken if value in graph.fixed]
            inputs = [self.values[value] for value in taken if value not in graph.fixed]
            if repeat:
                inputs = [_repeat(value, repeat, folder / f"{name}_{i}.bin") for i, value in enumerate(inputs)]
            onnx, program = self._cut(name, outputs, inputs, constants, repeat=repeat)
            texts = [value.argument for value in inputs]
            files = self._run(name, program, texts, len(outputs))
            held = self._hold(name, onnx, texts, {_IREE: files}, known=False)
        except GauntletError as error:
            self.say(error.on_one_line)
            return None
        if not held.find_wrong(_IREE):
            return None
        return WrongOperator(tuple(nodes), graph.of, onnx, program, held, repeated=bool(repeat))

    def _run(self, name: str, program: Path | None, inputs: Iterable[str], outputs: int) -> list[str]:
        """Compile and run a program, None for the failure's own module; files of its outputs."""
        failure = self.tools.failure
        own = ("--module=", "--function=", "--parameters=") if program is not None else ()
        dropped = ("--input=", "--expected_", "--output=", *own)
        words = [word for word in failure.argv[1:] if not word.startswith(dropped)]
        if program is not None:
            module = self.tools.compile(f"{name}.vmfb", program, failure.flags)
            words += [f"--module={module}", f"--function={OPERATOR}"]
        files = [str(self.tools.folder / f"{name}_iree_{index}.bin") for index in range(outputs)]
        words += [*(f"--input={text}" for text in inputs), *(f"--output=@{file}" for file in files)]
        ran = self.tools.run_module(name, words)
        if not ran.passed:
            lines = ran.errors.strip().splitlines() or [ran.outcome.signal or "it says nothing"]
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
        imported: bool = True,
    ) -> tuple[Path, Path]:
        """Cut the prepared model; the .onnx, and the program that it is imported as. See `cut_onnx.py`."""
        onnx, mlir = self.tools.folder / f"{name}.onnx", self.tools.folder / f"{name}.mlir"
        plan = {
            "model": str(self.tools.folder / _PREPARED),
            "inputs": None if inputs is None else [value.as_dict() for value in inputs],
            "constants": [value.as_dict() for value in constants],
            "outputs": outputs,
            "repeat": repeat,
            "onnx": str(onnx),
            "mlir": str(mlir) if imported else "",
        }
        self.tools.ask("cut_onnx", f"{name}_cut", plan, self.source.file.name, timeout=self.source.timeout)
        return onnx, mlir

    def _hold(
        self, name: str, model: Path, inputs: Sequence[str], sides: Mapping[str, Sequence[str]], *, known: bool = True
    ) -> HeldValues:
        """Run a model in onnxruntime, and hold others' outputs against what it gives, which is known from then on."""
        plan = {
            "model": str(model),
            "inputs": inputs,
            "cwd": str(self.tools.failure.cwd),
            "folder": str(self.tools.folder),
            "name": name,
            "sides": sides,
            "tolerances": TOLERANCES,
        }
        limit, what = self.tools.failure.timeout, self.source.file.name
        said = self.tools.ask("run_onnx", f"{name}_hold", plan, what, timeout=limit, own=True)
        held = HeldValues.from_dict(said)
        if known:
            self.values |= {value.name: value for value in held.outputs}
        return held


def _repeat(value: OnnxValue, first: int, file: Path) -> OnnxValue:
    """A floating-point value that holds its first elements over and over."""
    data = value.file.read_bytes()
    period = len(data) // max(1, math.prod(value.shape)) * first
    if not value.dtype.startswith("float") or len(data) <= period:
        return value
    file.write_bytes((data[:period] * (len(data) // period + 1))[: len(data)])
    return replace(value, file=file)


def _format_share(error: float) -> str:
    return f"{error:.3g} of the largest value" if math.isfinite(error) else "infinity"
