"""A program in IREE's `flow` phase, as text: its dispatches, what each gives, and one of them as a program of its own.

IREE prints one operation a line, and nested ones with two more blanks; that is what is relied on, and no more of MLIR's
grammar than what dispatches need. `--iree-flow-trace-dispatch-tensors` has put a `flow.tensor.trace` before and behind
every dispatch.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.recorded import UNRECORDED, Recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.tools import Tools

    CapturedInputs = Mapping[str, Sequence["HeldTensor"]]


TRACED = "--iree-flow-trace-dispatch-tensors"
# How far a dispatch may be off on equal inputs: the largest difference, as a share of the largest value. Integers and
# truth values are equal. Of a reduction of 10,000 f32 in another order, 1e-5 is usual.
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
# Candidates that are confirmed on their own inputs.
_MOST_SUSPECTS = 8
# The worker ends what it runs when the time is up, and writes.
_MARGIN_SECONDS = 60.0
# The function of a program that was cut out.
CUT_OUT = "dispatch"
_DEVICE = "#hal.device.target<"
_MARKS = re.compile(r'"[^"]*"|->|[<>]')
_TRACE = re.compile(r'( *flow\.tensor\.trace ")([^"]*) (inputs|outputs)"')
_DISPATCH = re.compile(
    # The executable, its entry, the workload, operands, their types, and what comes out.
    r"flow\.dispatch @([\w$.]+|\"[^\"]*\")::@([\w$.]+|\"[^\"]*\")"
    r"(?:\[([^\]]*)\])?\(([^)]*)\)(?: \{.*?\})? : \((.*)\) -> (.*)"
)
_CONSTANT = re.compile(r" *(%\w+) = arith\.constant (.*)")
_ALIAS = re.compile(r"#[\w.$-]+")
_DIMS = re.compile(r"tensor<([^{}]*)>(?:\{([^}]*)\})?")
_FUNCTION = re.compile(
    r"^      func\.func @(?:[\w$.]+|\"[^\"]*\")\((?P<arguments>.*?)\)(?: attributes \{.*\})? \{$", re.MULTILINE
)
_ARGUMENT = re.compile(r"(%\w+): !\w+\.dispatch\.tensor<(readonly|writeonly|readwrite):(tensor<[^{}]*?>)>")
_PLACE = r"offsets = \[(?P<offsets>[^]]*)\], sizes = \[(?P<sizes>[^]]*)\], strides = \[(?P<strides>[^]]*)\]"
_LOAD = re.compile(
    r"^(?P<indent> *)(?P<value>%\w+) = \w+\.dispatch\.tensor\.load (?P<of>%\w+), "
    rf"{_PLACE} : .* -> (?P<type>tensor<.*>)$"
)
_STORE = re.compile(
    r"^(?P<indent> *)\w+\.dispatch\.tensor\.store (?P<value>%\w+), (?P<to>%\w+), "
    rf"{_PLACE} : (?P<type>tensor<.*>) -> .*$"
)
# What they become.
_SLICE = r"[\g<offsets>] [\g<sizes>] [\g<strides>]"
_EXTRACT = rf"\g<indent>\g<value> = tensor.extract_slice \g<of>{_SLICE} : KIND to \g<type>"
_INSERT = rf"\g<indent>AFTER = tensor.insert_slice \g<value> into BEFORE{_SLICE} : \g<type> into KIND"
# What belongs to the phase, or to sizes that are not known.
_FOREIGN = re.compile(r"\bflow\.|\biree_\w+\.|\butil\.|\bhal\.|\?")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A place where a program dispatches work, in SSA values and types as written.

    Attributes:
        workload: how much work there is.
        constants: that the function around it defines.
        outcome: type of each result; `%x` for an operand that is written in place.
    """

    key: str
    executable: str
    callee: str
    workload: tuple[str, ...]
    operands: tuple[tuple[str, str], ...]
    outcome: tuple[str, ...]
    constants: Mapping[str, str]

    @property
    def name(self) -> str:
        """The dispatch function's name."""
        return self.callee.rpartition("::@")[2].strip('"')

    @property
    def tensors(self) -> tuple[str, ...]:
        """The operands that are tensors: those that are traced."""
        return tuple(value for value, kind in self.operands if kind.startswith("tensor<"))

    @property
    def places(self) -> tuple[int, ...]:
        """Of the tensors that are traced, those that a program of its own takes: each value once."""
        return tuple(self.tensors.index(value) for value in dict.fromkeys(self.tensors))

    @property
    def results(self) -> tuple[str, ...]:
        """The type of each result."""
        types = dict(self.operands)
        return tuple(types.get(written, written) for written in self.outcome)


@dataclass(frozen=True, slots=True)
class FlowProgram:
    """A program as text, and its dispatches in that order, by their keys."""

    text: str
    dispatches: Mapping[str, Dispatch] = field(default_factory=dict)

    @property
    def untraced(self) -> str:
        """The text without traces."""
        return "".join(line for line in self.text.splitlines(keepends=True) if not _TRACE.match(line[:200]))

    def executable(self, dispatch: Dispatch) -> str:
        """What a dispatch calls, as text, with all that is nested in it."""
        start = self.text.index(f"  flow.executable private @{dispatch.executable} {{\n")
        return self.text[start : self.text.index("\n  }\n", start) + len("\n  }\n")]

    def with_aliases(self, program: str) -> str:
        """A program with the attributes that it names, and those that they name, as this one has them."""
        aliases = _read_aliases(self.text)
        needed: set[str] = set()
        queue = _ALIAS.findall(program)
        while queue:
            name = queue.pop()
            if name in aliases and name not in needed:
                needed.add(name)
                queue += _ALIAS.findall(aliases[name])
        return "".join(f"{name} = {aliases[name]}\n" for name in aliases if name in needed) + program

    def cut_out(self, dispatch: Dispatch, shapes: Sequence[Sequence[int]], *, traced: bool = False) -> str:
        """One dispatch as a program: its executable, and a function that takes its tensors and gives its results.

        Raises:
            GauntletError: it takes a number that the program computes.
        """
        lines = self.text.splitlines()
        module = next(line for line in lines if line.startswith("module"))
        device = next(line for line in lines if line.lstrip().startswith("util.global private @__device_"))
        types, results = dict(dispatch.operands), dispatch.results
        imports = [
            f'{value} = hal.tensor.import %arg{index} "input{index}" : !hal.buffer_view -> {types[value]}'
            for index, value in enumerate(dict.fromkeys(dispatch.tensors))
        ]
        several = len(results) > 1
        names = [f"%result#{index}" for index in range(len(results))] if several else ["%result"]
        exports = [
            f'%output{index} = hal.tensor.export {name} "output{index}" : {kind} -> !hal.buffer_view'
            for index, (name, kind) in enumerate(zip(names, results, strict=True))
        ]
        before, after = [], []
        if traced:
            inputs = ", ".join(f"{value} : {types[value]}" for value in dispatch.tensors)
            outputs = ", ".join(f"{name} : {kind}" for name, kind in zip(names, results, strict=True))
            before = [f'flow.tensor.trace "{dispatch.key} inputs" = [{inputs}]'] if inputs else []
            after = [f'flow.tensor.trace "{dispatch.key} outputs" = [{outputs}]']
        workload = f"[{', '.join(dispatch.workload)}]" if dispatch.workload else ""
        operands, kinds = (", ".join(parts) for parts in zip(*dispatch.operands, strict=True)) if types else ("", "")
        outcome = ", ".join(dispatch.outcome)
        signature = f"({operands}) : ({kinds}) -> {f'({outcome})' if several else outcome}"
        views = ", ".join(["!hal.buffer_view"] * len(results))
        given = ", ".join(f"%arg{index}: !hal.buffer_view" for index in range(len(imports)))
        body = [
            *_define_scalars(dispatch, shapes),
            *imports,
            *before,
            f"%result{f':{len(results)}' if several else ''} = flow.dispatch {dispatch.callee}{workload}{signature}",
            *after,
            *exports,
            f"util.return {', '.join(f'%output{index}' for index in range(len(results)))} : {views}",
        ]
        function = f"  util.func public @{CUT_OUT}({given}) -> ({views}) attributes {{iree.abi.stub}} {{\n"
        function += "".join(f"    {line}\n" for line in body) + "  }\n"
        return self.with_aliases(f"{module}\n{device}\n{self.executable(dispatch)}{function}}}\n")


def read_flow(path: Path) -> FlowProgram:
    """Read what `iree-compile --compile-to=flow --iree-flow-trace-dispatch-tensors` wrote.

    Raises:
        GauntletError: it dispatches nothing, or holds a dispatch that is not understood.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    dispatches: dict[str, Dispatch] = {}
    constants: dict[str, str] = {}
    key = ""
    for number, line in enumerate(lines):
        # Weights are lines of many megabytes.
        head = line[:200].lstrip()
        if head.startswith(("util.func", "util.initializer")):
            constants = {}
        elif head.startswith("%c") and (constant := _CONSTANT.match(line)):
            constants[constant[1]] = constant[2]
        elif head.startswith("flow.tensor.trace") and (trace := _TRACE.match(line)):
            if trace[3] == "inputs":
                key = f"{len(dispatches)} {trace[2]}"
            # IREE does not read what it writes for no tensors at all.
            empty = line.rstrip().endswith("= []")
            lines[number] = "" if empty else f'{trace[1]}{key} {trace[3]}"{line[trace.end() :]}'
        elif "flow.dispatch @" in line[:400]:
            found = _DISPATCH.search(line)
            if found is None or not key:
                raise GauntletError(
                    f"{path}:{number + 1}: a dispatch that is not understood: {line.strip()[:200]}",
                    "Report this line, with the release of IREE.",
                )
            dispatches[key] = _make_dispatch(key, found, constants)
    if not dispatches:
        raise GauntletError(f"{path}: the program dispatches nothing", "All of it was computed by the compiler.")
    return FlowProgram("".join(lines), dispatches)


def device_of(flow: str) -> str:
    """The device that a program in the `flow` phase is for: its `#hal.device.target`, without aliases.

    Raises:
        GauntletError: it names none, or several.
    """
    found = {text for _, text in _list_devices(flow)}
    if len(found) != 1:
        raise GauntletError(f"a program for {len(found)} devices, where one is expected", "")
    device = found.pop()
    aliases = _read_aliases(flow)
    while names := [name for name in _ALIAS.findall(device) if name in aliases]:
        device = device.replace(names[0], aliases[names[0]])
    return device


def _make_dispatch(key: str, found: re.Match[str], constants: Mapping[str, str]) -> Dispatch:
    executable, entry, workload, operands, types, outcome = found.groups()
    results = _split(outcome.strip()[1:-1]) if outcome.strip().startswith("(") else [outcome.strip()]
    return Dispatch(
        key,
        executable,
        f"@{executable}::@{entry}",
        tuple(_split(workload or "")),
        tuple(zip(_split(operands), _split(types), strict=True)),
        # `%x as tensor<…>` where its type differs.
        tuple(text.split(" as ")[-1] for text in results),
        dict(constants),
    )


def _split(text: str) -> list[str]:
    """Parts between commas that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        if letter in "<({[":
            depth += 1
        elif letter in ")}]" or (letter == ">" and text[place - 1] != "-"):
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _list_devices(text: str) -> Iterator[tuple[int, str]]:
    """Where a program names a device, and how: up to the bracket that closes its own."""
    start = text.find(_DEVICE)
    while start >= 0:
        depth = 1
        # Texts, arrows and brackets.
        for mark in _MARKS.finditer(text, start + len(_DEVICE)):
            depth += {"<": 1, ">": -1}.get(mark[0], 0)
            if not depth:
                break
        else:
            raise GauntletError("a device that is not closed", "Report this program.")
        yield start, text[start : mark.end()]
        start = text.find(_DEVICE, mark.end())


def with_device(text: str, device: str) -> str:
    """A program for another device: the text of a `#hal.device.target`."""
    parts, end = [], 0
    for place, old in _list_devices(text):
        parts += [text[end:place], device]
        end = place + len(old)
    return "".join((*parts, text[end:]))


def _define_scalars(dispatch: Dispatch, shapes: Sequence[Sequence[int]]) -> Iterator[str]:
    """Lines that define what a dispatch takes besides tensors."""
    # Dynamic dimensions by SSA value, as they were captured.
    sizes: dict[str, int] = {}
    types = dict(dispatch.operands)
    for tensor, shape in zip(dispatch.tensors, shapes, strict=True):
        written = _DIMS.fullmatch(types[tensor])
        if written and written[2]:
            dynamic = [size for size, text in zip(shape, written[1].split("x"), strict=False) if text == "?"]
            sizes |= dict(zip(_split(written[2]), dynamic, strict=False))
    # SSA values that are no tensors: numbers, and sizes of dynamic dimensions.
    scalars = [*dispatch.workload]
    for value, kind in dispatch.operands:
        scalars += _list_dims(kind) if kind.startswith("tensor<") else [value]
    for kind in dispatch.results:
        scalars += _list_dims(kind)
    for value in dict.fromkeys(scalars):
        constant = dispatch.constants.get(value)
        if constant is not None:
            yield f"{value} = arith.constant {constant}"
        elif value in sizes:
            # Known here alone: the dispatch must not be compiled for this size.
            size = f"%size_{value.removeprefix('%')}"
            yield f"{size} = arith.constant {sizes[value]} : index"
            yield f"{value} = util.optimization_barrier {size} : index"
        else:
            raise GauntletError(
                f"{dispatch.name} takes {value}, a number that the program computes, and cannot be cut out",
                "The trace and its tensors are there.",
            )


def _list_dims(kind: str) -> list[str]:
    """SSA values of the dynamic dimensions of a type as written."""
    found = _DIMS.fullmatch(kind)
    return _split(found[2]) if found and found[2] else []


def _read_aliases(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(#[\w.$-]+) = (.*)$", text, re.MULTILINE))


def as_function(program: FlowProgram, dispatch: Dispatch) -> str:
    """The program of a dispatch as a function; empty where it cannot be one: dynamic sizes, operations of IREE."""
    executable = program.executable(dispatch)
    head = _FUNCTION.search(executable)
    if head is None:
        return ""
    arguments = _ARGUMENT.findall(head["arguments"])
    if len(arguments) != head["arguments"].count("%"):
        return ""
    types = {name: kind for name, _, kind in arguments}
    given = [name for name, access, _ in arguments if access != "writeonly"]
    outputs = {name: (name if access == "readwrite" else "") for name, access, _ in arguments if access != "readonly"}
    if len(given) != len(dispatch.tensors) or len(outputs) != len(dispatch.results):
        return ""
    lines = executable[head.end() + 1 :].split("\n      }\n")[0].splitlines()
    body: list[str] = []
    for number, line in enumerate(lines[:-1]):
        if load := _LOAD.match(line):
            body.append(load.expand(_EXTRACT).replace("KIND", types[load["of"]]))
        elif store := _STORE.match(line):
            to, before, after = store["to"], outputs[store["to"]], f"%stored_{number}"
            if not before:
                before = f"%empty_{number}"
                body.append(store.expand(rf"\g<indent>{before} = tensor.empty() : {types[to]}"))
            inserted = store.expand(_INSERT).replace("BEFORE", before).replace("KIND", types[to])
            body.append(inserted.replace("AFTER", after))
            outputs[to] = after
        elif _FOREIGN.search(line):
            return ""
        else:
            body.append(line)
    if not all(outputs.values()):
        return ""
    takes = ", ".join(f"{name}: {types[name]}" for name in given)
    results, values = ", ".join(types[name] for name in outputs), ", ".join(outputs.values())
    text = "\n".join(line.removeprefix("      ") for line in body)
    function = f"func.func @{CUT_OUT}({takes}) -> ({results}) {{\n{text}\n  return {values} : {results}\n}}\n"
    return program.with_aliases(function)


@dataclass(frozen=True, slots=True)
class TracedSide:
    """How a traced program is run, as `trace_dispatches.py` takes it."""

    device: str
    modules: tuple[str, ...]
    parameters: tuple[tuple[str, ...], ...]
    function: str
    inputs: tuple[str, ...]
    cwd: str


@dataclass(frozen=True, slots=True)
class TensorTrace(Recorded):
    """A tensor of the target, and how far it is off the reference's; see `trace_dispatches.py`."""

    type: str
    wrong: bool
    error: float = math.inf
    largest: float = 0.0

    @property
    def shape(self) -> list[int]:
        """Its sizes."""
        return [int(size) for size in self.type.split("x")[:-1]]


@dataclass(frozen=True, slots=True)
class TracedDispatch(Recorded):
    """A dispatch that ran: by its key, which call it was, and the folder of its tensors within the trace's."""

    dispatch: str
    call: int
    inputs: tuple[TensorTrace, ...]
    outputs: tuple[TensorTrace, ...]
    suspect: bool
    kept: str

    @property
    def worst(self) -> float:
        """The largest error of an output."""
        return max((item.error for item in self.outputs), default=0.0)


@dataclass(frozen=True, slots=True)
class UnfinishedDispatch(Recorded):
    """A dispatch that was begun and gave nothing."""

    dispatch: str
    inputs: tuple[TensorTrace, ...]
    kept: str


@dataclass(frozen=True, slots=True)
class TraceOfBoth(Recorded):
    """What was seen of both sides, which end with exit codes; see `trace_dispatches.py`."""

    target: int
    reference: int
    dispatches: tuple[TracedDispatch, ...]
    unfinished: tuple[UnfinishedDispatch, ...]
    differs: str = ""
    results: tuple[TensorTrace, ...] = ()
    folder: Path = field(default=Path(), metadata=UNRECORDED)


@dataclass(frozen=True, slots=True)
class HeldTensor(Recorded):
    """A tensor whose raw values a file holds, of a type as IREE writes it: `2x3xf32`.

    Attributes:
        made: the arguments of `make_values.py` behind the file that make it; none where the values are the model's own.
        largest: |value|, of what a program gives.
    """

    type: str
    file: Path
    made: tuple[str, ...] = ()
    largest: float = 0.0

    @property
    def argument(self) -> str:
        """As iree-run-module takes it."""
        return f"{self.type}=@{self.file}"


def traced_program(tools: Tools) -> FlowProgram:
    """What failed, in the flow phase, with all dispatches traced; GauntletError where it does not get there."""
    flags = [flag for flag in tools.failure.flags if flag != TRACED]
    return read_flow(tools.compile("flow.mlir", tools.failure.program, [*flags, "--compile-to=flow", TRACED]))


def last_line(log: Path) -> str:
    """What a side that failed says."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "Error" in line or ": " in line), "it says nothing")[:300]


def compile_flow(tools: Tools, name: str, text: str, flags: Sequence[str]) -> Path:
    """Compile a program in the flow phase to the end."""
    return tools.compile_text(name, text, ["--compile-from=flow", *flags])


def target_side(tools: Tools, program: FlowProgram) -> TracedSide:
    """How the traced program is run where it fails."""
    failure = tools.failure
    archives = (text.partition("=")[::2] if "=" in text else ("", text) for text in failure.values("--parameters"))
    return TracedSide(
        device=failure.device,
        modules=(str(compile_flow(tools, "target", program.text, failure.flags)),),
        parameters=tuple(archives),
        function=failure.function,
        inputs=tuple(failure.values("--input")),
        cwd=str(failure.cwd),
    )


def trace_both(
    tools: Tools, name: str, sides: tuple[TracedSide, TracedSide], timeout: float, *, by_values: bool = False
) -> TraceOfBoth:
    """What both sides did, dispatch by dispatch, and how they ended; GauntletError where one could not be run."""
    folder = tools.folder / name
    folder.mkdir()
    plan = {
        "target": asdict(sides[0]),
        "reference": asdict(sides[1]),
        "tolerances": TOLERANCES,
        "keep": _MOST_SUSPECTS,
        "by_values": by_values,
        "timeout": timeout,
        "folder": str(folder),
    }
    what, limit = "the dispatches could not be traced", timeout + _MARGIN_SECONDS
    said = tools.ask("trace_dispatches", name, plan, what, timeout=limit)
    trace = replace(TraceOfBoth.from_dict(said), folder=folder)
    if not (trace.dispatches or trace.unfinished):
        raise GauntletError(f"nothing was traced: {last_line(folder / 'target.txt')}", f"See {folder}.")
    return trace


def capture_inputs(tools: Tools, target: TracedSide, wanted: Sequence[Dispatch]) -> CapturedInputs:
    """The inputs of some dispatches, by their keys; of those that ran."""
    plan = {"target": asdict(target), "capture": [dispatch.key for dispatch in wanted], "folder": str(tools.folder)}
    what, limit = "the inputs could not be captured", tools.failure.timeout
    found = tools.ask("trace_dispatches", "capture", plan, what, timeout=limit)
    return {key: tuple(map(HeldTensor.from_dict, tensors)) for key, tensors in found.items()}
