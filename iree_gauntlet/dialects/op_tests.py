"""Cases of operator suites, one for each config; each case runs in its folder, with the flags of its flagfile."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from iree_gauntlet.cases import MAIN, Allclose, Argument, ArgumentOrder, Call, Case, Golden, Module, Origin, Program
from iree_gauntlet.dialects.configured_suites import ConfigBuilder, make_markers
from iree_gauntlet.dialects.fields import TENSOR_TYPE, read_tolerant
from iree_gauntlet.dialects.locations import (
    BRACKETS_HINT,
    CASE_FOLDER,
    describe_url_error,
    find_devices,
    is_outside,
    is_url,
    read_flag_variables,
    with_variables,
)
from iree_gauntlet.dialects.op_suites import (
    ELEMENT_TYPES,
    ExpectedOutput,
    FormulaArgument,
    OpSpec,
    TensorMeta,
    TorchOp,
    format_tensor_type,
)
from iree_gauntlet.dialects.spec_file import make_problem_at
from iree_gauntlet.dialects.spec_folders import FLAGFILE, TORCH_FILE
from iree_gauntlet.errors import Problem
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.settings import read_file
from iree_gauntlet.stages import STAGES, FailureKind, Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.dialects.op_suites import OpConfig, SuiteConfig
    from iree_gauntlet.targets import Target


_TIMEOUTS = tuple((stage, row.operator_timeout) for stage, row in STAGES.items() if row.operator_timeout is not None)
# The pattern instead of the program's name if a folder does not contain exactly one program.
_ANY_PROGRAM = "*.mlir*"
_FUNCTION = re.compile(r'^\s*(?:func\.func|util\.func)\s+(?:public\s+)?@(?:"([^"\n]+)"|([\w.$-]+))', re.MULTILINE)
# Prefixes of flags by which iree-run-module compares outputs; the measuring tool does not have these flags.
_COMPARISON_FLAG_PREFIXES = ("expected_", "equality_mode")
_OUTPUT_PREFIX = "--output="
_FLAG_SYNTAX = re.compile(r"--\s*([A-Za-z_][\w.-]*)\s*(?:=\s*(.*))?")
# Matches `3x4xf32=@file.bin`, `@file.npy`, and `+file.npy` for the next array of a file.
_FILE_ARGUMENT = re.compile(r"(?:([^@+*=]*)=)?[@+*](.+)")
_ARGUMENT_FLAGS = ("input", "expected_output")
# Matches lower-case types such as `4x2xf8e4m3fn`, which the tools read as an 8-bit type that equals no other type.
_SMALL_FLOAT = re.compile(r"((?:\d+x)*f)([468]e\w+)(?==|\Z)")


@dataclass(frozen=True, slots=True)
class OpInputs:
    """The content of a case's folder, which all configs share.

    Attributes:
        program: name of the program's file; a pattern if the folder does not contain exactly one program.
    """

    program: str = _ANY_PROGRAM
    inputs: tuple[Argument, ...] = ()
    expected_outputs: tuple[Argument, ...] = ()
    outputs: tuple[Argument, ...] = ()
    flags: tuple[str, ...] = ()
    function: str = ""
    benchmark: bool = False
    allclose: Allclose | None = None
    problems: tuple[Problem, ...] = ()
    compiles: bool = True
    warnings: tuple[Problem, ...] = ()


class OpTests(ConfigBuilder[OpSpec]):
    """The builder of a folder's cases: one for each requested config, and a benchmark if it has a golden time."""

    def build(self, spec: OpSpec) -> Iterator[Case]:
        """Yield the cases of a folder."""
        configs = self.select_configs(spec.suite)
        if not configs:
            return
        files = spec.folder.files
        if FLAGFILE in files and TORCH_FILE in files:
            problem = Problem(spec.name, 0, "", f"is next to a {TORCH_FILE}: only one may be present", "Remove one.")
            op = OpInputs(problems=(problem,), compiles=False)
        elif FLAGFILE in files:
            op = _read_flags(spec)
        elif TORCH_FILE in files:
            op = _read_torch(spec)
        else:
            message = f"is in a format older than {TORCH_FILE}, which is not supported"
            op = _make_invalid(spec, Problem(spec.name, 0, "", message, "Use a newer version of the suite."))
        self.collector.operator_case_problems.update(op.problems)
        self.collector.warnings.update(op.warnings)
        program = Program(f"file://{quote(f'{spec.folder.path}/{op.program}')}", local_file=op.program)
        for config, target in configs:
            if config.document:
                yield from _make_cases(spec, op, program, config, config.document, target)


def _make_cases(
    spec: OpSpec, op: OpInputs, program: Program, config: SuiteConfig, document: OpConfig, target: Target
) -> Iterator[Case]:
    flags = tuple(document.iree_compile_flags)
    if any("${" in flag for flag in flags):
        values = {CASE_FOLDER: spec.folder.path, **read_flag_variables()}
        flags = tuple(with_variables(flag, values) for flag in flags)
    origin, flags_origin = Origin(spec.name), Origin(config.name)
    module = Module(f"{spec.model}/{spec.stem}", MAIN, target, program, flags, origin, flags_origin=flags_origin)
    # The config may have the case under any of its names.
    expectations = next((config.expectations[key] for key in spec.keys if key in config.expectations), ())
    if not op.benchmark:
        # A case with wrong numbers can still be measured: of the benchmark's failures, expect only crashes.
        expectations = tuple(
            expectation
            for expectation in expectations
            if Kind.QUALITY in expectation.stage.row.kinds or FailureKind.CRASHES in expectation.kinds
        )
    output_flags = [flag for flag in document.iree_run_module_flags if flag.startswith(_OUTPUT_PREFIX)]
    run_flags = tuple(flag for flag in document.iree_run_module_flags if flag not in output_flags)
    function_flags = (f"--function={op.function}",) if op.function else ()
    case = Case(
        dialect=OpSpec.dialect,
        model=spec.model,
        submodel=spec.stem,
        stem=spec.stem,
        kind=Kind.QUALITY,
        target=target,
        modules=(module,),
        origin=origin,
        calls=(Call("", op.inputs, op.expected_outputs),),
        outputs=(*(_parse_output(flag.removeprefix(_OUTPUT_PREFIX)) for flag in output_flags), *op.outputs),
        device=find_devices((*run_flags, *op.flags)),
        run_flags=(*function_flags, *run_flags),
        own_flags=op.flags,
        order=ArgumentOrder.MODULES_FIRST,
        expectations=expectations,
        markers=make_markers(target, Kind.QUALITY),
        timeouts=_TIMEOUTS,
        blocked_reason="; ".join(problem.in_one_line for problem in op.problems),
        blocked_stage=Stage.THRESHOLD if op.compiles else Stage.COMPILE,
        working_directory=spec.folder.path,
        flags_origin=flags_origin,
        skips=next((config.skips[key] for key in spec.keys if key in config.skips), ()),
        allclose=op.allclose,
    )
    golden = next((key for key in spec.keys if key in document.golden_times_ms), "")
    if not op.benchmark:
        yield case
    if op.benchmark or golden:
        yield _make_benchmark(case, spec, op, config.name, document, golden)


def _make_benchmark(case: Case, spec: OpSpec, op: OpInputs, config: str, document: OpConfig, key: str) -> Case:
    goldens: tuple[Golden, ...] = ()
    value = document.golden_times_ms.get(key)
    if value is not None:
        origin = Origin(config, f"golden_times_ms.{key}")
        factor = document.tolerance_factor
        goldens = (Golden(Figure.TIME, value, factor, Statistic.MEAN, case.target.sku, "", origin),)
    flags, own_flags = (
        tuple(flag for flag in flags if not flag.lstrip("-").startswith(_COMPARISON_FLAG_PREFIXES))
        for flags in (case.run_flags, case.own_flags)
    )
    if not any(flag.startswith("--function=") for flag in (*flags, *own_flags)):
        # If a function has arguments, the measuring tool needs the function's name.
        name = _find_first_function(f"{spec.folder.path}/{op.program}")
        flags = (f"--function={name}", *flags) if name else flags
    return replace(
        case,
        kind=Kind.BENCHMARK,
        calls=tuple(replace(call, expected_outputs=()) for call in case.calls),
        outputs=(),
        run_flags=flags,
        own_flags=own_flags,
        goldens=goldens,
        markers=make_markers(case.target, Kind.BENCHMARK),
        allclose=None,
        blocked_stage=Stage.BENCHMARK if op.compiles else Stage.COMPILE,
    )


def _parse_output(value: str) -> Argument:
    """Reduce an output's file to its name, so that it is written into the step's folder, never into the suite."""
    return Argument(value[0] + value[1:].rpartition("/")[2] if value[:1] in ("@", "+") else value)


def _find_first_function(path: str) -> str:
    """Return the first function of a program's text; empty if the program is bytecode or has no function."""
    try:
        text = read_file(Path(path)).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    match = _FUNCTION.search(text)
    return (match[1] or match[2]) if match else ""


def _make_invalid(spec: OpSpec, *problems: Problem, warnings: Sequence[Problem] = ()) -> OpInputs:
    """Make the inputs of a case whose file of flags cannot be used; its program may still compile."""
    program = _find_program(spec)
    return OpInputs(program, problems=problems, compiles=program != _ANY_PROGRAM, warnings=tuple(warnings))


def _list_programs(spec: OpSpec) -> list[str]:
    return [name for name in spec.folder.files if name.endswith((".mlir", ".mlirbc"))]


def _find_program(spec: OpSpec) -> str:
    """Return the only program of a folder; a pattern if the folder does not contain exactly one program."""
    programs = _list_programs(spec)
    return programs[0] if len(programs) == 1 else _ANY_PROGRAM


def _read_flags(spec: OpSpec) -> OpInputs:
    try:
        with open(f"{spec.folder.path}/{FLAGFILE}", encoding="utf-8") as file:  # noqa: PTH123 - one of thousands
            text = file.read()
    except OSError as error:
        return _make_invalid(spec, Problem(spec.name, 0, "", f"cannot be read: {error.strerror}", "Check its rights."))
    except UnicodeDecodeError:
        return _make_invalid(spec, Problem(spec.name, 0, "", "is not UTF-8", "Save the file as UTF-8."))
    lines, problems = read_flagfile(text, spec.name)
    program = _find_program(spec)
    if program == _ANY_PROGRAM:
        programs = " and ".join(sorted(_list_programs(spec))) or "none"
        message = f"expected one program next to it, *.mlir or *.mlirbc; found {programs}"
        problems.append(Problem(spec.name, 0, "", message, "Keep one program in the folder."))
    for line in lines:
        name = find_argument_file(line)
        if name and is_outside(name):
            message = f"{name!r} is outside of the case's folder"
            problems.append(Problem(spec.name, line.number, line.name, message, "Put the file next to the flagfile."))
        elif name and name not in spec.folder.files and not Path(spec.folder.path, name).is_file():
            message = f"the file {name} is missing"
            problems.append(Problem(spec.name, line.number, line.name, message, "Put it next to the flagfile."))
    return OpInputs(
        program,
        inputs=tuple(Argument(line.value or "") for line in lines if line.name == "input"),
        expected_outputs=tuple(Argument(line.value or "") for line in lines if line.name == "expected_output"),
        outputs=tuple(_parse_output(line.value or "") for line in lines if line.name == "output"),
        flags=tuple(line.text for line in lines if line.name not in (*_ARGUMENT_FLAGS, "output")),
        problems=tuple(problems),
        compiles=program != _ANY_PROGRAM,
    )


def _read_torch(spec: OpSpec) -> OpInputs:
    """Read a folder of the torch variant: synthetic arguments, outputs compared by NumPy's `allclose`."""
    document, text, problems, warnings = read_tolerant(TorchOp, Path(spec.folder.path, TORCH_FILE), spec.name)
    if document is None:
        return _make_invalid(spec, *problems, warnings=warnings)
    reader = _CaseReader(spec, text)
    reader.check_local_file(["file_name"], document.file_name)
    compiles = not reader.problems
    outputs = document.expected_output or [] if document.mode != "benchmark" else []
    return OpInputs(
        document.file_name if compiles else _ANY_PROGRAM,
        _make_inputs(document),
        tuple(reader.read_output(index, output) for index, output in enumerate(outputs)),
        function=document.function_name,
        benchmark=document.mode == "benchmark",
        allclose=Allclose(document.rtol, document.atol, document.equal_nan),
        problems=tuple(reader.problems),
        compiles=compiles,
        warnings=tuple(warnings),
    )


def _make_inputs(document: TorchOp) -> tuple[Argument, ...]:
    """Make the arguments: all formulas of a case draw from one generator, one after the other."""
    arguments = []
    draw_count = 0
    for argument in document.flat_args:
        if isinstance(argument, FormulaArgument):
            formula = argument.Formula
            # Quote the numbers, because the plus of 1e+16 would be decoded as a space.
            values = f"coeff={quote(repr(formula.coeff))}&offset={quote(repr(formula.offset))}"
            base_url = f"random://formula/{format_tensor_type(formula.shape, formula.dtype)}"
            arguments.append(Argument(url=f"{base_url}?seed={document.seed}&skip={draw_count}&{values}"))
            draw_count += math.prod(formula.shape)
        else:
            arguments.append(Argument(_format_scalar(argument)))
    return tuple(arguments)


def _format_scalar(number: float, meta: TensorMeta | None = None) -> str:
    """Format a number for the tools, with the type in `meta`; without `meta`, with the number's type in NumPy."""
    if meta is not None:
        element_type, tensor_type = ELEMENT_TYPES[meta.dtype], format_tensor_type(meta.shape, meta.dtype)
    else:
        element_type = tensor_type = "i1" if isinstance(number, bool) else "i64" if isinstance(number, int) else "f64"
    if element_type == "i1" or (not element_type.startswith(("f", "bf")) and float(number).is_integer()):
        return f"{tensor_type}={int(number)}"
    return f"{tensor_type}={number!r}" if not isinstance(number, bool) else f"{tensor_type}={int(number)}"


class _CaseReader:
    """A resolver of a case's files, which collects their problems."""

    def __init__(self, spec: OpSpec, text: str) -> None:
        self._spec = spec
        self._text = text
        self.problems: list[Problem] = []

    def check_local_file(self, field: list[str | int], name: str) -> None:
        """Check that a file is in the case's folder."""
        if is_outside(name):
            self._add_problem(field, f"{name!r} is outside of the case's folder", "Put the file into the folder.")
        elif name not in self._spec.folder.files and not Path(self._spec.folder.path, name).is_file():
            self._add_problem(field, f"the file {name} is missing", "Put it into the case's folder.")

    def read_output(self, index: int, output: str | ExpectedOutput) -> Argument:
        if isinstance(output, str):
            self.check_local_file(["expected_output", index], output)
            if output.endswith(".bin"):
                hint = 'Write {"url": …, "meta": {"dtype": …, "shape": […]}}.'
                self._add_problem(["expected_output", index], f"{output} does not contain its shape and type", hint)
            return Argument(f"@{output}")
        if not output.file:
            return Argument(_format_scalar(output.value, output.meta))
        tensor_type = (
            format_tensor_type(output.meta.shape, output.meta.dtype)
            if output.meta and output.file.endswith(".bin")
            else ""
        )
        field: list[str | int] = ["expected_output", index, "url" if output.url else "value"]
        if is_url(output.file):
            if message := describe_url_error(output.file):
                self._add_problem(field, message, BRACKETS_HINT)
            return Argument(tensor_type, output.file)
        self.check_local_file(field, output.file)
        return Argument(f"{tensor_type}=@{output.file}" if tensor_type else f"@{output.file}")

    def _add_problem(self, field: list[str | int], message: str, hint: str) -> None:
        self.problems.append(make_problem_at(self._spec.name, self._text, field, message, hint))


@dataclass(frozen=True, slots=True)
class FlagLine:
    """A line of a flagfile that is a flag.

    Attributes:
        number: the line's number, from 1.
        value: the value as written; quotes are kept, although the tools drop them for some flags. None: no value.
    """

    number: int
    name: str
    value: str | None

    @property
    def text(self) -> str:
        """The flag as an argument of a command."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def read_flagfile(text: str, file: str) -> tuple[list[FlagLine], list[Problem]]:
    """Return the flags of a flagfile, in order, and the file's problems."""
    flags: list[FlagLine] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), 1):
        content = line.strip()
        if not content or content.startswith(("#", "//")):
            continue
        match = _FLAG_SYNTAX.fullmatch(content)
        if match is None or "\0" in content:
            message = f"expected a flag such as --input=3x4xf32=@input_0.bin, found {_shorten(content)!r}"
            problems.append(Problem(file, number, "", message, "Write one flag per line; a comment starts with #."))
            continue
        name, value = match.groups()
        if value is not None and name in _ARGUMENT_FLAGS:
            value = _SMALL_FLOAT.sub(lambda parts: parts[1] + parts[2].upper(), value, count=1)
        flag = FlagLine(number, name, value)
        message_and_hint = _check_flag(flag)
        if message_and_hint:
            problems.append(Problem(file, number, flag.name, *message_and_hint))
        flags.append(flag)
    return flags, problems


def _check_flag(flag: FlagLine) -> tuple[str, str] | None:
    """Return a flag's problem and a hint; None if the flag is valid."""
    if flag.name == "flagfile":
        return "a flagfile inside a flagfile is not read", "Write its flags here."
    if flag.name not in _ARGUMENT_FLAGS:
        return None
    if not flag.value:
        return "has no value: expected for example 3x4xf32=@input_0.bin", "Write the value after '='."
    if flag.value[0] == flag.value[-1] == '"' and _FILE_ARGUMENT.fullmatch(flag.value[1:-1]):
        return "the tools treat quotes around a file as a part of its name", "Write it without quotes."
    match = _FILE_ARGUMENT.fullmatch(flag.value)
    tensor_type = match[1] if match else None
    if tensor_type is not None and not TENSOR_TYPE.fullmatch(tensor_type):
        return (
            f"expected a tensor type such as 3x4xf32 before '=@', found {_shorten(tensor_type)!r}",
            "Write sizes, then a type.",
        )
    return None


def find_argument_file(flag: FlagLine) -> str:
    """Return the file from which an argument is read; empty if the flag itself has the values."""
    match = _FILE_ARGUMENT.fullmatch(flag.value or "") if flag.name in _ARGUMENT_FLAGS else None
    return match[2] if match else ""


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
