"""A program in IREE's `flow` phase, as text: its dispatches and their results, and a dispatch as a separate program.

The parser relies on IREE's format: one operation per line, and nested operations indented by two more spaces. The
parser covers only the part of MLIR's grammar that dispatches need. Programs have a `flow.tensor.trace` before and after
every dispatch, added by `--iree-flow-trace-dispatch-tensors`.
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

    from iree_gauntlet.experiments.explaining.tools import IreeTools

    CapturedInputs = Mapping[str, Sequence["TensorFile"]]


TRACE_FLAG = "--iree-flow-trace-dispatch-tensors"
# The tolerated difference of a dispatch's results on equal inputs, as a share of the largest value. Integers and
# booleans must be equal. For scale: summing 10,000 f32 in another order usually differs by 1e-5.
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
# At most this many candidates are confirmed by running each alone on its own inputs.
_MAX_SUSPECTS = 8
# The time that the worker needs, after the time limit, to end its processes and write the results.
_MARGIN_SECONDS = 60.0
# The function of an extracted dispatch's program.
DISPATCH_FUNCTION = "dispatch"
_DEVICE = "#hal.device.target<"
_MARKS = re.compile(r'"[^"]*"|->|[<>]')
_TRACE = re.compile(r'( *flow\.tensor\.trace ")([^"]*) (inputs|outputs)"')
_DISPATCH = re.compile(
    # The groups: the executable, its entry, the workload, the operands, their types, and the results.
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
# The replacements of loads and stores.
_SLICE = r"[\g<offsets>] [\g<sizes>] [\g<strides>]"
_EXTRACT = rf"\g<indent>\g<value> = tensor.extract_slice \g<of>{_SLICE} : KIND to \g<type>"
_INSERT = rf"\g<indent>AFTER = tensor.insert_slice \g<value> into BEFORE{_SLICE} : \g<type> into KIND"
# Operations of the phase, and dynamic sizes.
_FOREIGN = re.compile(r"\bflow\.|\biree_\w+\.|\butil\.|\bhal\.|\?")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """An operation that dispatches work, with its SSA values and types as written.

    Attributes:
        workload: the values that give the amount of work.
        constants: the constants that the enclosing function defines.
        outcome: the type of each result, or `%x` if the result is written into operand `%x`.
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
        """The operands that are tensors; only these are traced."""
        return tuple(value for value, type_ in self.operands if type_.startswith("tensor<"))

    @property
    def distinct_input_indices(self) -> tuple[int, ...]:
        """The indices of the tensors that the extracted program takes; each value is taken only once."""
        return tuple(self.tensors.index(value) for value in dict.fromkeys(self.tensors))

    @property
    def results(self) -> tuple[str, ...]:
        """The type of each result."""
        types = dict(self.operands)
        return tuple(types.get(text, text) for text in self.outcome)


@dataclass(frozen=True, slots=True)
class FlowProgram:
    """A program as text, and its dispatches in order, by their keys."""

    text: str
    dispatches: Mapping[str, Dispatch] = field(default_factory=dict)

    @property
    def untraced(self) -> str:
        """The text without traces."""
        return "".join(line for line in self.text.splitlines(keepends=True) if not _TRACE.match(line[:200]))

    def executable(self, dispatch: Dispatch) -> str:
        """Return the text of a dispatch's executable, with everything nested in it."""
        start = self.text.index(f"  flow.executable private @{dispatch.executable} {{\n")
        return self.text[start : self.text.index("\n  }\n", start) + len("\n  }\n")]

    def with_aliases(self, program: str) -> str:
        """Add to `program` the attribute aliases of this program that it uses, directly or indirectly."""
        aliases = _read_aliases(self.text)
        used_names: set[str] = set()
        queue = _ALIAS.findall(program)
        while queue:
            name = queue.pop()
            if name in aliases and name not in used_names:
                used_names.add(name)
                queue += _ALIAS.findall(aliases[name])
        return "".join(f"{name} = {aliases[name]}\n" for name in aliases if name in used_names) + program

    def cut_out(self, dispatch: Dispatch, shapes: Sequence[Sequence[int]], *, with_traces: bool = False) -> str:
        """Extract a dispatch as a program: its executable, and a function from its tensors to its results.

        Raises:
            GauntletError: the dispatch needs a number that the whole program computes.
        """
        lines = self.text.splitlines()
        module = next(line for line in lines if line.startswith("module"))
        device = next(line for line in lines if line.lstrip().startswith("util.global private @__device_"))
        types, results = dict(dispatch.operands), dispatch.results
        imports = [
            f'{value} = hal.tensor.import %arg{index} "input{index}" : !hal.buffer_view -> {types[value]}'
            for index, value in enumerate(dict.fromkeys(dispatch.tensors))
        ]
        is_tuple = len(results) > 1
        names = [f"%result#{index}" for index in range(len(results))] if is_tuple else ["%result"]
        exports = [
            f'%output{index} = hal.tensor.export {name} "output{index}" : {type_} -> !hal.buffer_view'
            for index, (name, type_) in enumerate(zip(names, results, strict=True))
        ]
        trace_inputs, trace_outputs = [], []
        if with_traces:
            inputs = ", ".join(f"{value} : {types[value]}" for value in dispatch.tensors)
            outputs = ", ".join(f"{name} : {type_}" for name, type_ in zip(names, results, strict=True))
            trace_inputs = [f'flow.tensor.trace "{dispatch.key} inputs" = [{inputs}]'] if inputs else []
            trace_outputs = [f'flow.tensor.trace "{dispatch.key} outputs" = [{outputs}]']
        workload = f"[{', '.join(dispatch.workload)}]" if dispatch.workload else ""
        operands, kinds = (", ".join(parts) for parts in zip(*dispatch.operands, strict=True)) if types else ("", "")
        result_types = ", ".join(dispatch.outcome)
        signature = f"({operands}) : ({kinds}) -> {f'({result_types})' if is_tuple else result_types}"
        views = ", ".join(["!hal.buffer_view"] * len(results))
        params = ", ".join(f"%arg{index}: !hal.buffer_view" for index in range(len(imports)))
        body = [
            *_define_scalars(dispatch, shapes),
            *imports,
            *trace_inputs,
            f"%result{f':{len(results)}' if is_tuple else ''} = flow.dispatch {dispatch.callee}{workload}{signature}",
            *trace_outputs,
            *exports,
            f"util.return {', '.join(f'%output{index}' for index in range(len(results)))} : {views}",
        ]
        function = f"  util.func public @{DISPATCH_FUNCTION}({params}) -> ({views}) attributes {{iree.abi.stub}} {{\n"
        function += "".join(f"    {line}\n" for line in body) + "  }\n"
        return self.with_aliases(f"{module}\n{device}\n{self.executable(dispatch)}{function}}}\n")


def read_flow(path: Path) -> FlowProgram:
    """Read the output of `iree-compile --compile-to=flow --iree-flow-trace-dispatch-tensors`.

    Raises:
        GauntletError: the program has no dispatches, or one that cannot be parsed.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    dispatches: dict[str, Dispatch] = {}
    constants: dict[str, str] = {}
    key = ""
    for number, line in enumerate(lines):
        # Look only at the beginning, because lines with weights have many megabytes.
        head = line[:200].lstrip()
        if head.startswith(("util.func", "util.initializer")):
            constants = {}
        elif head.startswith("%c") and (constant := _CONSTANT.match(line)):
            constants[constant[1]] = constant[2]
        elif head.startswith("flow.tensor.trace") and (trace := _TRACE.match(line)):
            if trace[3] == "inputs":
                key = f"{len(dispatches)} {trace[2]}"
            # Drop traces of no tensors: IREE writes them, but cannot read them.
            empty = line.rstrip().endswith("= []")
            lines[number] = "" if empty else f'{trace[1]}{key} {trace[3]}"{line[trace.end() :]}'
        elif "flow.dispatch @" in line[:400]:
            match = _DISPATCH.search(line)
            if match is None or not key:
                raise GauntletError(
                    f"{path}:{number + 1}: cannot understand this dispatch: {line.strip()[:200]}",
                    "Report this line, with the release of IREE.",
                )
            dispatches[key] = _make_dispatch(key, match, constants)
    if not dispatches:
        raise GauntletError(f"{path}: the program dispatches nothing", "All of it was computed by the compiler.")
    return FlowProgram("".join(lines), dispatches)


def find_device_attribute(flow: str) -> str:
    """Return the device attribute of a program in the `flow` phase: `#hal.device.target`, with aliases resolved.

    Raises:
        GauntletError: there is no device, or more than one.
    """
    devices = {text for _, text in _list_devices(flow)}
    if len(devices) != 1:
        raise GauntletError(f"the program is for {len(devices)} devices, expected one", "")
    device = devices.pop()
    aliases = _read_aliases(flow)
    while names := [name for name in _ALIAS.findall(device) if name in aliases]:
        device = device.replace(names[0], aliases[names[0]])
    return device


def _make_dispatch(key: str, match: re.Match[str], constants: Mapping[str, str]) -> Dispatch:
    executable, entry, workload, operands, types, outcome = match.groups()
    results = _split(outcome.strip()[1:-1]) if outcome.strip().startswith("(") else [outcome.strip()]
    return Dispatch(
        key,
        executable,
        f"@{executable}::@{entry}",
        tuple(_split(workload or "")),
        tuple(zip(_split(operands), _split(types), strict=True)),
        # The text is `%x as tensor<…>` if the type differs.
        tuple(text.split(" as ")[-1] for text in results),
        dict(constants),
    )


def _split(text: str) -> list[str]:
    """Split a text at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter in "<({[":
            depth += 1
        elif letter in ")}]" or (letter == ">" and text[index - 1] != "-"):
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:index].strip())
            start = index + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


def _list_devices(text: str) -> Iterator[tuple[int, str]]:
    """Yield each device in a program: its position, and its text up to the closing bracket."""
    start = text.find(_DEVICE)
    while start >= 0:
        depth = 1
        # The matches are strings, arrows and brackets.
        for mark in _MARKS.finditer(text, start + len(_DEVICE)):
            depth += {"<": 1, ">": -1}.get(mark[0], 0)
            if not depth:
                break
        else:
            raise GauntletError("a device's attributes are not closed", "Report this program.")
        yield start, text[start : mark.end()]
        start = text.find(_DEVICE, mark.end())


def replace_device_attribute(text: str, device_attribute: str) -> str:
    """Replace the device of a program; the attribute is a `#hal.device.target`."""
    parts, end = [], 0
    for start, old in _list_devices(text):
        parts += [text[end:start], device_attribute]
        end = start + len(old)
    return "".join((*parts, text[end:]))


def _define_scalars(dispatch: Dispatch, shapes: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield lines that define the non-tensor operands of a dispatch."""
    # The captured sizes of dynamic dimensions, by SSA value.
    sizes: dict[str, int] = {}
    types = dict(dispatch.operands)
    for tensor, shape in zip(dispatch.tensors, shapes, strict=True):
        match = _DIMS.fullmatch(types[tensor])
        if match and match[2]:
            dynamic_sizes = [size for size, text in zip(shape, match[1].split("x"), strict=False) if text == "?"]
            sizes |= dict(zip(_split(match[2]), dynamic_sizes, strict=False))
    # The SSA values that are not tensors: numbers, and sizes of dynamic dimensions.
    scalars = [*dispatch.workload]
    for value, type_ in dispatch.operands:
        scalars += _list_dims(type_) if type_.startswith("tensor<") else [value]
    for type_ in dispatch.results:
        scalars += _list_dims(type_)
    for value in dict.fromkeys(scalars):
        constant = dispatch.constants.get(value)
        if constant is not None:
            yield f"{value} = arith.constant {constant}"
        elif value in sizes:
            # With the barrier, the compiler cannot specialise the dispatch for this size.
            size = f"%size_{value.removeprefix('%')}"
            yield f"{size} = arith.constant {sizes[value]} : index"
            yield f"{value} = util.optimization_barrier {size} : index"
        else:
            raise GauntletError(
                f"{dispatch.name} takes {value}, a number that the program computes, and cannot be cut out",
                "The trace and its tensors are kept.",
            )


def _list_dims(type_: str) -> list[str]:
    """Return the SSA values of a type's dynamic dimensions."""
    match = _DIMS.fullmatch(type_)
    return _split(match[2]) if match and match[2] else []


def _read_aliases(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(#[\w.$-]+) = (.*)$", text, re.MULTILINE))


def make_function(program: FlowProgram, dispatch: Dispatch) -> str:
    """Write a dispatch as a function; return an empty string if it has dynamic sizes or IREE's own operations."""
    executable = program.executable(dispatch)
    head = _FUNCTION.search(executable)
    if head is None:
        return ""
    arguments = _ARGUMENT.findall(head["arguments"])
    if len(arguments) != head["arguments"].count("%"):
        return ""
    types = {name: type_ for name, _, type_ in arguments}
    inputs = [name for name, access, _ in arguments if access != "writeonly"]
    outputs = {name: (name if access == "readwrite" else "") for name, access, _ in arguments if access != "readonly"}
    if len(inputs) != len(dispatch.tensors) or len(outputs) != len(dispatch.results):
        return ""
    lines = executable[head.end() + 1 :].split("\n      }\n")[0].splitlines()
    body: list[str] = []
    for number, line in enumerate(lines[:-1]):
        if load := _LOAD.match(line):
            body.append(load.expand(_EXTRACT).replace("KIND", types[load["of"]]))
        elif store := _STORE.match(line):
            output, old_value, new_value = store["to"], outputs[store["to"]], f"%stored_{number}"
            if not old_value:
                old_value = f"%empty_{number}"
                body.append(store.expand(rf"\g<indent>{old_value} = tensor.empty() : {types[output]}"))
            insertion = store.expand(_INSERT).replace("BEFORE", old_value).replace("KIND", types[output])
            body.append(insertion.replace("AFTER", new_value))
            outputs[output] = new_value
        elif _FOREIGN.search(line):
            return ""
        else:
            body.append(line)
    if not all(outputs.values()):
        return ""
    params = ", ".join(f"{name}: {types[name]}" for name in inputs)
    results, values = ", ".join(types[name] for name in outputs), ", ".join(outputs.values())
    text = "\n".join(line.removeprefix("      ") for line in body)
    function = (
        f"func.func @{DISPATCH_FUNCTION}({params}) -> ({results}) {{\n{text}\n  return {values} : {results}\n}}\n"
    )
    return program.with_aliases(function)


@dataclass(frozen=True, slots=True)
class TraceSide:
    """The command of a traced program, in the plan of `trace_dispatches.py`."""

    device: str
    modules: tuple[str, ...]
    parameters: tuple[tuple[str, ...], ...]
    function: str
    inputs: tuple[str, ...]
    cwd: str
    calls: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorTrace(Recorded):
    """A tensor of the target, and its error against the reference; see `trace_dispatches.py`."""

    type: str
    wrong: bool
    error: float = math.inf
    largest: float = 0.0

    @property
    def shape(self) -> list[int]:
        """The tensor's sizes."""
        return [int(size) for size in self.type.split("x")[:-1]]


@dataclass(frozen=True, slots=True)
class DispatchTrace(Recorded):
    """A dispatch that ran: its key, the call's number, and `kept`: the folder of its tensors in the trace's, if any.

    Attributes:
        function_call: the number of the call of a function that it belongs to.
    """

    dispatch: str
    call: int
    inputs: tuple[TensorTrace, ...]
    outputs: tuple[TensorTrace, ...]
    suspect: bool
    kept: str
    function_call: int = 0

    @property
    def worst(self) -> float:
        """The largest error of its outputs."""
        return max((output.error for output in self.outputs), default=0.0)


@dataclass(frozen=True, slots=True)
class UnfinishedDispatch(Recorded):
    """A dispatch that began but did not end."""

    dispatch: str
    inputs: tuple[TensorTrace, ...]
    kept: str
    function_call: int = 0


@dataclass(frozen=True, slots=True)
class TracePair(Recorded):
    """The traces of both sides, whose exit codes are `target` and `reference`; see `trace_dispatches.py`."""

    target: int
    reference: int
    dispatches: tuple[DispatchTrace, ...]
    unfinished: tuple[UnfinishedDispatch, ...]
    differs: str = ""
    results: tuple[TensorTrace, ...] = ()
    folder: Path = field(default=Path(), metadata=UNRECORDED)


@dataclass(frozen=True, slots=True)
class TensorFile(Recorded):
    """A tensor whose raw values are in a file, with a type in IREE's notation: `2x3xf32`.

    Attributes:
        made: the arguments of `make_values.py` that generate the file; empty if the values come from the model.
        largest: the largest |value|, for outputs.
    """

    type: str
    file: Path
    made: tuple[str, ...] = ()
    largest: float = 0.0

    @property
    def argument(self) -> str:
        """The argument of iree-run-module."""
        return f"{self.type}=@{self.file}"


def compile_traced(tools: IreeTools) -> FlowProgram:
    """Compile the failing program to the flow phase, with all dispatches traced; GauntletError if that fails."""
    flags = [flag for flag in tools.failure.flags if flag != TRACE_FLAG]
    return read_flow(tools.compile("flow.mlir", tools.failure.program, [*flags, "--compile-to=flow", TRACE_FLAG]))


def find_last_error(log: Path) -> str:
    """Return the last error message of a failed side."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "Error" in line or ": " in line), "it printed nothing")[:300]


def compile_flow(tools: IreeTools, name: str, text: str, flags: Sequence[str]) -> Path:
    """Compile a program from the flow phase to a module."""
    return tools.compile_text(name, text, ["--compile-from=flow", *flags])


def make_target_side(tools: IreeTools, program: FlowProgram) -> TraceSide:
    """Compile the traced program for the failing target, and describe its run."""
    failure = tools.failure
    archives = (text.partition("=")[::2] if "=" in text else ("", text) for text in failure.values("--parameters"))
    return TraceSide(
        device=failure.device,
        modules=(str(compile_flow(tools, "target", program.text, failure.flags)),),
        parameters=tuple(archives),
        function=failure.function,
        inputs=tuple(failure.values("--input")),
        cwd=str(failure.cwd),
        calls=tuple(failure.calls),
    )


def trace_sides(
    tools: IreeTools, name: str, sides: tuple[TraceSide, TraceSide], timeout: float, *, by_values: bool = False
) -> TracePair:
    """Trace both sides, dispatch by dispatch; GauntletError if a side could not be run."""
    folder = tools.folder / name
    folder.mkdir()
    plan = {
        "target": asdict(sides[0]),
        "reference": asdict(sides[1]),
        "tolerances": TOLERANCES,
        "keep": _MAX_SUSPECTS,
        "by_values": by_values,
        "timeout": timeout,
        "folder": str(folder),
    }
    problem, limit = "the dispatches could not be traced", timeout + _MARGIN_SECONDS
    response = tools.run_worker("trace_dispatches", name, plan, problem, timeout=limit)
    trace = replace(TracePair.from_dict(response), folder=folder)
    if not (trace.dispatches or trace.unfinished):
        raise GauntletError(f"nothing was traced: {find_last_error(folder / 'target.txt')}", f"See {folder}.")
    return trace


def capture_inputs(tools: IreeTools, target: TraceSide, dispatches: Sequence[Dispatch]) -> CapturedInputs:
    """Return the captured inputs of those `dispatches` that ran, by key."""
    plan = {"target": asdict(target), "capture": [dispatch.key for dispatch in dispatches], "folder": str(tools.folder)}
    problem, limit = "the inputs could not be captured", tools.failure.timeout
    inputs = tools.run_worker("trace_dispatches", "capture", plan, problem, timeout=limit)
    return {key: tuple(map(TensorFile.from_dict, tensors)) for key, tensors in inputs.items()}
