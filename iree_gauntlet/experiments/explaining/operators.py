"""The first wrong operator of an ONNX model: what IREE makes of it, and onnxruntime of the same inputs, differs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, OnnxImport, Stage
from iree_gauntlet.engine.workbench import onnxruntime_version
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.failures import program_of
from iree_gauntlet.experiments.explaining.locate import finite
from iree_gauntlet.experiments.explaining.onnx_graph import Graph
from iree_gauntlet.experiments.explaining.traced_sides import TOLERANCES, HeldTensor
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.onnx_graph import Node
    from iree_gauntlet.experiments.explaining.tools import Tools
    from iree_gauntlet.journal_format import JournalRecord


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

    Attributes:
        repeated: large tensors hold their first values over and over, in place of the model's own.
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
    """What a search came to.

    Attributes:
        agrees: IREE gives what onnxruntime gives: it is not IREE's fault.
        operator: the first wrong one; None where there is none.
    """

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
    try:
        return _Search.begin(source, tools, say).found()
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

    @classmethod
    def begin(cls, source: OnnxSource, tools: Tools, say: Callable[[str], None]) -> _Search:
        """Prepare the model; GauntletError where it cannot be cut."""
        prepared = str(tools.folder / _PREPARED)
        plan = {"model": str(source.file), "prepared": prepared, **source.options.as_dict()}
        said = tools.ask("cut_onnx", "describe", plan, source.file.name, timeout=source.timeout)
        return cls(tools, source, Graph.from_dict(said), say)

    def found(self) -> OperatorSearch:
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
        try:
            return self._run_alone(nodes, name, repeat)
        except GauntletError as error:
            self.say(error.on_one_line)
            return None

    def _run_alone(self, nodes: Sequence[Node], name: str, repeat: int) -> WrongOperator | None:
        values = self._list_values(self.graph.taken(nodes))
        # What depends on sizes alone is constant for the compiler too.
        constants = [value for value in values if value.name in self.graph.fixed]
        inputs = [value for value in values if value.name not in self.graph.fixed]
        if repeat:
            inputs = [_repeat(value, repeat, self.tools.folder / f"{name}_{i}.bin") for i, value in enumerate(inputs)]
        outputs = self.graph.given(nodes)
        onnx, program = self._cut(name, outputs, inputs, constants, repeat=repeat)
        texts = [value.argument for value in inputs]
        held = self._hold(name, onnx, texts, {_IREE: self._run(name, program, texts, len(outputs))}, known=False)
        if not held.find_wrong(_IREE):
            return None
        return WrongOperator(tuple(nodes), self.graph.of, onnx, program, held, repeated=bool(repeat))

    def _list_values(self, names: Sequence[str]) -> list[OnnxValue]:
        """What onnxruntime has of values."""
        missing = [name for name in names if name not in self.values]
        if missing:
            self.rounds += 1
            name = f"onnx_values_{self.rounds}"
            onnx, _ = self._cut(name, missing, imported=False)
            self._hold(name, onnx, self._inputs, {})
        return [self.values[name] for name in names]

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
