"""The first wrong operator of an ONNX model: what IREE makes of it, and onnxruntime of the same inputs, differs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.workbench import onnxruntime_version
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.locate import finite
from iree_gauntlet.experiments.explaining.onnx_workers import OnnxWorkers, compute_worst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.onnx_workers import Graph, HeldValues, Node, OnnxSource, OnnxValue
    from iree_gauntlet.experiments.explaining.tools import Tools


# The function of a model that was cut out.
OPERATOR = "operator"
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
class WrongOperator:
    """An operator, or a group that shows it, which gives wrong numbers on onnxruntime's inputs.

    Attributes:
        repeated: large tensors hold their first values over and over, in place of the model's own.
    """

    nodes: tuple[Node, ...]
    of: int
    onnxruntime: str
    onnx: Path
    program: Path
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    repeated: bool

    @property
    def error(self) -> float:
        """The largest, as a share of the output's largest value."""
        return compute_worst(self.outputs, _IREE)

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
        return sum(
            path.stat().st_size for path in (self.onnx, *(value.file for value in (*self.inputs, *self.outputs)))
        )


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
        one = self.operator
        found |= {"operator": one.title, "error": finite(one.error)}
        found |= {"reference": f"onnxruntime {one.onnxruntime}", "repeated": one.repeated}
        return found | {"inputs": [v.type for v in one.inputs], "outputs": [v.type for v in one.outputs]}


def first_wrong_operator(
    failure: Failure, source: OnnxSource, tools: Tools, say: Callable[[str], None]
) -> OperatorSearch:
    """The first operator whose inputs agree with onnxruntime's and whose outputs do not, confirmed by itself."""
    if not onnxruntime_version():
        return OperatorSearch(why=_NO_ONNXRUNTIME)
    say("holding it against onnxruntime")
    try:
        workers = OnnxWorkers(tools, source, failure.timeout)
        return _Search(failure, tools, workers, workers.describe(), say).found()
    except GauntletError as error:
        return OperatorSearch(why=f"its operators cannot be told apart: {error.on_one_line}")


class _PassesError(Exception):
    """With its values as outputs, the model is right."""


@dataclass(slots=True)
class _Search:
    """The search in one model; `values` is what onnxruntime had of values so far."""

    failure: Failure
    tools: Tools
    workers: OnnxWorkers
    graph: Graph
    say: Callable[[str], None]
    values: dict[str, OnnxValue] = field(default_factory=dict)
    rounds: int = 0

    def found(self) -> OperatorSearch:
        """What there is to find."""
        whole = self._run_whole()
        self.values |= {value.name: value for value in whole.inputs}
        against = f"onnxruntime {whole.onnxruntime}"
        note = ""
        if any(value.wrong.get(_EXPECTED) for value in whole.outputs):
            share = _format_share(compute_worst(whole.outputs, _EXPECTED))
            note = f"the expected values differ from {against}'s, by {share}"
        targets = [value for value in whole.outputs if value.wrong[_IREE]]
        if not targets:
            off = _format_share(compute_worst(whole.outputs, _IREE))
            near = f"IREE gives what {against} gives, to {off}"
            return OperatorSearch(why=f"{near}: {note}" if note else f"{near}: is the tolerance right?", agrees=True)
        try:
            group = self._narrow(targets)
        except _PassesError:
            why = f"it differs from {against}, but not with the values in between as outputs: the fault is in how"
            return OperatorSearch(why=f"{why} operators are fused", note=note)
        operator = self._find_smallest(group)
        if operator is None:
            titles = ", ".join(node.title for node in group[-3:])
            why = f"{titles}: the first to differ from {against}, but not by itself on {against}'s inputs"
            return OperatorSearch(why=why, note=note)
        return OperatorSearch(operator, note=note)

    def _run_whole(self) -> HeldValues:
        """The model as published, held against IREE's outputs and those that are expected."""
        files = self._run("onnx_whole", None, self.failure.values("--input"), len(self.graph.outputs))
        expected = self.failure.values("--expected_output")
        sides = {_IREE: files} | ({_EXPECTED: expected} if len(expected) == len(files) else {})
        texts = self.failure.values("--input")
        return self.workers.hold("onnx_whole", self.workers.source.file, texts, sides, self.failure.cwd)

    def _narrow(self, wrong: Sequence[OnnxValue]) -> list[Node]:
        """The nodes between values that are right and the first one that is not: one, where all can be looked at."""
        graph, targets = self.graph, [value.name for value in wrong]
        published = {value.name: str(value.file) for value in wrong}
        right = {*graph.inputs, *graph.constants}
        while True:
            region = graph.behind(targets, right)
            marks = graph.marks(region, targets, _MOST_BYTES)
            if not marks:
                return region
            held = self._mark(targets, marks, published)
            changed = [value for value in held.outputs if value.wrong[_PUBLISHED]]
            if changed:
                off = _format_share(compute_worst(changed, _PUBLISHED))
                what = f"in onnxruntime the model gives other numbers when it is prepared for the import, by {off}"
                raise GauntletError(what, "Conversion to another opset is onnx's; try without `opset`.")
            bad = [value.name for value in held.outputs if value.wrong[_IREE]]
            if not bad:
                raise _PassesError
            first = min(bad, key=lambda name: graph.producer[name].index)
            known = {value.name for value in held.outputs if not value.wrong[_IREE]} - right
            right |= known
            if first in targets and not known:
                # None of the values in between could be looked at.
                return graph.behind([first], right)
            targets, published = [first], {}

    def _mark(self, targets: Sequence[str], marks: Sequence[str], published: dict[str, str]) -> HeldValues:
        """Run the model, as far as targets need it, with marked values as outputs too; fewer where it does not run."""
        texts = self.failure.values("--input")
        problems: list[GauntletError] = []
        for stride in _STRIDES:
            self.rounds += 1
            name = f"onnx_marked_{self.rounds}"
            outputs = [*targets, *marks[stride // 2 :: stride]]
            self.say(f"looking at {len(outputs)} values of {len(self.graph.nodes)} operators")
            try:
                onnx, program = self.workers.cut(name, outputs)
                files = self._run(name, program, texts, len(outputs))
            except GauntletError as error:
                self.say(error.on_one_line)
                problems.append(error)
                continue
            sides = {_IREE: files, _PUBLISHED: [published.get(value, "") for value in outputs]}
            held = self.workers.hold(name, onnx, texts, sides, self.failure.cwd)
            self.values |= {value.name: value for value in held.outputs}
            return held
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
            try:
                operator = self._confirm(nodes, f"onnx_cut_{levels}")
            except GauntletError as error:
                self.say(error.on_one_line)
                continue
            if operator is not None:
                return self._find_smaller(operator) if operator.bytes > _LARGE_BYTES else operator
        return None

    def _find_smaller(self, operator: WrongOperator) -> WrongOperator:
        """The same with large tensors that take little room, where it is wrong with them too."""
        self.say("trying it with large tensors that hold their first values over and over")
        try:
            return self._confirm(operator.nodes, "onnx_small", repeat=_REPEATED) or operator
        except GauntletError as error:
            self.say(error.on_one_line)
            return operator

    def _confirm(self, nodes: Sequence[Node], name: str, *, repeat: int = 0) -> WrongOperator | None:
        """A group as a model of its own, on onnxruntime's inputs; None where it is right."""
        values = self._list_values(self.graph.taken(nodes))
        # What depends on sizes alone is constant for the compiler too.
        constants = [value for value in values if value.name in self.graph.fixed]
        inputs = [value for value in values if value.name not in self.graph.fixed]
        if repeat:
            inputs = [_repeat(value, repeat, self.tools.folder / f"{name}_{i}.bin") for i, value in enumerate(inputs)]
        outputs = self.graph.given(nodes)
        onnx, program = self.workers.cut(name, outputs, inputs, constants, repeat=repeat)
        texts = [value.argument for value in inputs]
        files = self._run(name, program, texts, len(outputs))
        held = self.workers.hold(name, onnx, texts, {_IREE: files})
        if not any(value.wrong[_IREE] for value in held.outputs):
            return None
        found = (tuple(nodes), self.graph.of, held.onnxruntime, onnx, program, held.inputs, held.outputs)
        return WrongOperator(*found, repeated=bool(repeat))

    def _list_values(self, names: Sequence[str]) -> list[OnnxValue]:
        """What onnxruntime has of values."""
        missing = [name for name in names if name not in self.values]
        if missing:
            self.rounds += 1
            name = f"onnx_values_{self.rounds}"
            onnx, _ = self.workers.cut(name, missing, imported=False)
            held = self.workers.hold(name, onnx, self.failure.values("--input"), {}, self.failure.cwd)
            self.values |= {value.name: value for value in held.outputs}
        return [self.values[name] for name in names]

    def _run(self, name: str, program: Path | None, inputs: Iterable[str], outputs: int) -> list[str]:
        """Compile and run a program, None for the failure's own module; files of its outputs."""
        failure = self.failure
        own = ("--module=", "--function=", "--parameters=") if program is not None else ()
        dropped = ("--input=", "--expected_", "--output=", *own)
        words = [word for word in failure.argv[1:] if not word.startswith(dropped)]
        if program is not None:
            limit, cwd = failure.compile_timeout, failure.compile_cwd
            module = self.tools.compile(f"{name}.vmfb", program, failure.flags, timeout=limit, cwd=cwd)
            words += [f"--module={module}", f"--function={OPERATOR}"]
        files = [str(self.tools.folder / f"{name}_iree_{index}.bin") for index in range(outputs)]
        words += [*(f"--input={text}" for text in inputs), *(f"--output=@{file}" for file in files)]
        ran = self.tools.run_module(name, words, timeout=failure.timeout, cwd=failure.cwd)
        if not ran.passed:
            lines = ran.errors.strip().splitlines() or [ran.outcome.signal or "it says nothing"]
            raise GauntletError(f"{name} does not run: {lines[0][:300]}")
        return files


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
