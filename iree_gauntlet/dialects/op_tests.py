"""Cases of operator suites, one for each config: compiled in their folders, run there with their flagfile's flags."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from iree_gauntlet.cases import MAIN, Allclose, Argument, ArgumentOrder, Case, Golden, Module, Origin, Program
from iree_gauntlet.dialects.configured_suites import ConfiguredBuilder, read_markers
from iree_gauntlet.dialects.fields import TENSOR_TYPE, read_tolerant
from iree_gauntlet.dialects.locations import (
    BRACKETS_HINT,
    CASE_FOLDER,
    devices_of_flags,
    flag_variables,
    is_url,
    outside,
    unreadable,
    with_variables,
)
from iree_gauntlet.dialects.op_suites import (
    ELEMENT_TYPES,
    FLAGFILE,
    TORCH_FILE,
    ExpectedOutput,
    FormulaArgument,
    OpSpec,
    TensorMeta,
    TorchOp,
    tensor_of,
)
from iree_gauntlet.dialects.spec import SourceFields
from iree_gauntlet.dialects.spec_file import problem_at
from iree_gauntlet.errors import Problem
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.settings import read_file
from iree_gauntlet.stages import STAGES, FailureKind, Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.dialects.op_suites import OpConfig, SuiteConfig
    from iree_gauntlet.targets import Target


_TIMEOUTS = tuple((stage, row.operator_timeout) for stage, row in STAGES.items() if row.operator_timeout is not None)
# What stands for the program where there is not one.
_ANY_PROGRAM = "*.mlir*"
_FUNCTION = re.compile(r'^\s*(?:func\.func|util\.func)\s+(?:public\s+)?@(?:"([^"\n]+)"|([\w.$-]+))', re.MULTILINE)
# What iree-run-module compares by; the tool that measures has none of it.
_COMPARING = ("expected_", "equality_mode")
_OUTPUT = "--output="
_FLAG = re.compile(r"--\s*([A-Za-z_][\w.-]*)\s*(?:=\s*(.*))?")
# `3x4xf32=@file.bin`, `@file.npy`, and `+file.npy` for the next array of a file.
_FILE = re.compile(r"(?:([^@+*=]*)=)?[@+*](.+)")
_ARGUMENTS = ("input", "expected_output")
# `4x2xf8e4m3fn`, for which the tools read a type of 8 bits that equals no other.
_SMALL_FLOAT = re.compile(r"((?:\d+x)*f)([468]e\w+)(?==|\Z)")


@dataclass(frozen=True, slots=True)
class OpInputs:
    """What a folder says of its case, whatever the config.

    Attributes:
        program: name of the program's file; a pattern where there is not one.
    """

    program: str = _ANY_PROGRAM
    inputs: tuple[Argument, ...] = ()
    expected: tuple[Argument, ...] = ()
    outputs: tuple[Argument, ...] = ()
    flags: tuple[str, ...] = ()
    function: str = ""
    benchmark: bool = False
    allclose: Allclose | None = None
    problems: tuple[Problem, ...] = ()
    compiles: bool = True
    warnings: tuple[Problem, ...] = ()


class OpTests(ConfiguredBuilder[OpSpec]):
    """A case for each config whose target is asked for, and a benchmark where it has a golden time."""

    sources: ClassVar = {OpSpec.dialect: SourceFields("flat_args[{}]", "expected_output[{}]")}

    def build(self, spec: OpSpec) -> Iterator[Case]:
        """The cases of a folder."""
        chosen = self.ask_configs(spec.suite)
        if not chosen:
            return
        files = spec.folder.files
        if FLAGFILE in files and TORCH_FILE in files:
            wrong = Problem(spec.name, 0, "", f"is next to a {TORCH_FILE}: which one counts?", "Remove one.")
            read = OpInputs(problems=(wrong,), compiles=False)
        elif FLAGFILE in files:
            read = _read_flags(spec)
        elif TORCH_FILE in files:
            read = _read_torch(spec)
        else:
            message = f"is of a form before {TORCH_FILE}, which is not read"
            read = _make_broken(spec, Problem(spec.name, 0, "", message, "Take a newer state of the suite."))
        self.loaded.broken.update(read.problems)
        self.loaded.warnings.update(read.warnings)
        program = Program(f"file://{quote(f'{spec.folder.path}/{read.program}')}", name=read.program)
        for config, target in chosen:
            if config.document:
                yield from _make_cases(spec, read, program, config, config.document, target)


def _make_cases(
    spec: OpSpec, read: OpInputs, program: Program, config: SuiteConfig, document: OpConfig, target: Target
) -> Iterator[Case]:
    flags = tuple(document.iree_compile_flags)
    if any("${" in flag for flag in flags):
        values = {CASE_FOLDER: spec.folder.path, **flag_variables()}
        flags = tuple(with_variables(flag, values) for flag in flags)
    origin, flags_origin = Origin(spec.name), Origin(config.name)
    module = Module(f"{spec.model}/{spec.stem}", MAIN, target, program, flags, origin, flags_origin=flags_origin)
    # In each table under whichever of its names.
    expected = next((config.expected[key] for key in spec.keys if key in config.expected), ())
    if not read.benchmark:
        # One that is compared too, and gives wrong numbers, can still be measured.
        expected = tuple(
            item for item in expected if Kind.QUALITY in item.stage.row.kinds or FailureKind.CRASHES in item.kinds
        )
    written = [flag for flag in document.iree_run_module_flags if flag.startswith(_OUTPUT)]
    run_flags = tuple(flag for flag in document.iree_run_module_flags if flag not in written)
    called = (f"--function={read.function}",) if read.function else ()
    case = Case(
        dialect=OpSpec.dialect,
        model=spec.model,
        submodel=spec.stem,
        stem=spec.stem,
        kind=Kind.QUALITY,
        target=target,
        modules=(module,),
        origin=origin,
        inputs=read.inputs,
        expected_outputs=read.expected,
        outputs=(*(_parse_output(flag.removeprefix(_OUTPUT)) for flag in written), *read.outputs),
        device=devices_of_flags((*run_flags, *read.flags)),
        run_flags=(*called, *run_flags),
        own_flags=read.flags,
        order=ArgumentOrder.MODULES_FIRST,
        expectations=expected,
        markers=read_markers(target, Kind.QUALITY),
        timeouts=_TIMEOUTS,
        blocked_reason="; ".join(problem.in_one_line for problem in read.problems),
        blocked_at=Stage.THRESHOLD if read.compiles else Stage.COMPILE,
        working_directory=spec.folder.path,
        flags_origin=flags_origin,
        skips=next((config.skips[key] for key in spec.keys if key in config.skips), ()),
        allclose=read.allclose,
    )
    golden = next((key for key in spec.keys if key in document.golden_times_ms), "")
    if not read.benchmark:
        yield case
    if read.benchmark or golden:
        yield _make_benchmark(case, spec, read, config.name, document, golden)


def _make_benchmark(case: Case, spec: OpSpec, read: OpInputs, config: str, document: OpConfig, key: str) -> Case:
    goldens: tuple[Golden, ...] = ()
    value = document.golden_times_ms.get(key)
    if value is not None:
        origin = Origin(config, f"golden_times_ms.{key}")
        factor = document.tolerance_factor
        goldens = (Golden(Figure.TIME, value, factor, Statistic.MEAN, case.target.sku, "", origin),)
    flags, own = (
        tuple(flag for flag in flags if not flag.lstrip("-").startswith(_COMPARING))
        for flags in (case.run_flags, case.own_flags)
    )
    if not any(flag.startswith("--function=") for flag in (*flags, *own)):
        # The tool that measures calls a function with arguments only by its name.
        name = _find_exported(f"{spec.folder.path}/{read.program}")
        flags = (f"--function={name}", *flags) if name else flags
    return replace(
        case,
        kind=Kind.BENCHMARK,
        expected_outputs=(),
        outputs=(),
        run_flags=flags,
        own_flags=own,
        goldens=goldens,
        markers=read_markers(case.target, Kind.BENCHMARK),
        allclose=None,
        blocked_at=Stage.BENCHMARK if read.compiles else Stage.COMPILE,
    )


def _parse_output(value: str) -> Argument:
    """A file that the run writes, by its name alone: it goes into the step's folder, never into the suite."""
    return Argument(value[0] + value[1:].rpartition("/")[2] if value[:1] in ("@", "+") else value)


def _find_exported(path: str) -> str:
    """The first function of a program's text; empty where the program is bytecode, or has none."""
    try:
        text = read_file(Path(path)).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    match = _FUNCTION.search(text)
    return (match[1] or match[2]) if match else ""


def _make_broken(spec: OpSpec, *problems: Problem, warnings: Sequence[Problem] = ()) -> OpInputs:
    """A case whose file cannot be used: its program may be valid."""
    program = _find_program(spec)
    return OpInputs(program, problems=problems, compiles=program != _ANY_PROGRAM, warnings=tuple(warnings))


def _list_programs(spec: OpSpec) -> list[str]:
    return [name for name in spec.folder.files if name.endswith((".mlir", ".mlirbc"))]


def _find_program(spec: OpSpec) -> str:
    """The one program of a folder; a pattern where there is not one."""
    programs = _list_programs(spec)
    return programs[0] if len(programs) == 1 else _ANY_PROGRAM


def _read_flags(spec: OpSpec) -> OpInputs:
    try:
        with open(f"{spec.folder.path}/{FLAGFILE}", encoding="utf-8") as file:  # noqa: PTH123 - one of thousands
            text = file.read()
    except OSError as error:
        return _make_broken(spec, Problem(spec.name, 0, "", f"cannot be read: {error.strerror}", "Check its rights."))
    except UnicodeDecodeError:
        return _make_broken(spec, Problem(spec.name, 0, "", "is not UTF-8", "Save the file as UTF-8."))
    lines, problems = read_flagfile(text, spec.name)
    program = _find_program(spec)
    if program == _ANY_PROGRAM:
        found = " and ".join(sorted(_list_programs(spec))) or "none"
        message = f"expected one program next to it, *.mlir or *.mlirbc; found {found}"
        problems.append(Problem(spec.name, 0, "", message, "Leave one program in the folder."))
    for line in lines:
        name = file_of(line)
        if name and outside(name):
            message = f"{name!r} leaves the case's folder"
            problems.append(Problem(spec.name, line.number, line.name, message, "Put the file next to the flagfile."))
        elif name and name not in spec.folder.files and not Path(spec.folder.path, name).is_file():
            message = f"the file {name} is missing"
            problems.append(Problem(spec.name, line.number, line.name, message, "Put it next to the flagfile."))
    return OpInputs(
        program,
        inputs=tuple(Argument(line.value or "") for line in lines if line.name == "input"),
        expected=tuple(Argument(line.value or "") for line in lines if line.name == "expected_output"),
        outputs=tuple(_parse_output(line.value or "") for line in lines if line.name == "output"),
        flags=tuple(line.text for line in lines if line.name not in (*_ARGUMENTS, "output")),
        problems=tuple(problems),
        compiles=program != _ANY_PROGRAM,
    )


def _read_torch(spec: OpSpec) -> OpInputs:
    """A folder of the torch variant: synthetic arguments, outputs compared by NumPy's `allclose`."""
    document, text, problems, warnings = read_tolerant(TorchOp, Path(spec.folder.path, TORCH_FILE), spec.name)
    if document is None:
        return _make_broken(spec, *problems, warnings=warnings)
    reader = _CaseReader(spec, text)
    reader.local(["file_name"], document.file_name)
    compiles = not reader.problems
    expected = document.expected_output or [] if document.mode != "benchmark" else []
    return OpInputs(
        document.file_name if compiles else _ANY_PROGRAM,
        _make_inputs(document),
        tuple(reader.expected(index, item) for index, item in enumerate(expected)),
        function=document.function_name,
        benchmark=document.mode == "benchmark",
        allclose=Allclose(document.rtol, document.atol, document.equal_nan),
        problems=tuple(reader.problems),
        compiles=compiles,
        warnings=tuple(warnings),
    )


def _make_inputs(document: TorchOp) -> tuple[Argument, ...]:
    """The arguments: all formulas of a case draw from one generator, one after the other."""
    arguments = []
    drawn = 0
    for item in document.flat_args:
        if isinstance(item, FormulaArgument):
            formula = item.Formula
            # A plus would be read as a blank: 1e+16.
            values = f"coeff={quote(repr(formula.coeff))}&offset={quote(repr(formula.offset))}"
            where = f"random://formula/{tensor_of(formula.shape, formula.dtype)}"
            arguments.append(Argument(url=f"{where}?seed={document.seed}&skip={drawn}&{values}"))
            drawn += math.prod(formula.shape)
        else:
            arguments.append(Argument(_format_scalar(item)))
    return tuple(arguments)


def _format_scalar(number: float, meta: TensorMeta | None = None) -> str:
    """A plain number as the tools read it: of the type that NumPy gives it, or of the one that is named."""
    if meta is not None:
        element, tensor = ELEMENT_TYPES[meta.dtype], tensor_of(meta.shape, meta.dtype)
    else:
        element = tensor = "i1" if isinstance(number, bool) else "i64" if isinstance(number, int) else "f64"
    if element == "i1" or (not element.startswith(("f", "bf")) and float(number).is_integer()):
        return f"{tensor}={int(number)}"
    return f"{tensor}={number!r}" if not isinstance(number, bool) else f"{tensor}={int(number)}"


class _CaseReader:
    """Resolves the files that a case names, and collects what is wrong with them."""

    def __init__(self, spec: OpSpec, text: str) -> None:
        self._spec = spec
        self._text = text
        self.problems: list[Problem] = []

    def local(self, field: list[str | int], name: str) -> None:
        """A file of the case's folder."""
        if outside(name):
            self._refuse(field, f"{name!r} leaves the case's folder", "Put the file into the folder.")
        elif name not in self._spec.folder.files and not Path(self._spec.folder.path, name).is_file():
            self._refuse(field, f"the file {name} is missing", "Put it into the case's folder.")

    def expected(self, index: int, item: str | ExpectedOutput) -> Argument:
        if isinstance(item, str):
            self.local(["expected_output", index], item)
            if item.endswith(".bin"):
                hint = 'Write {"url": …, "meta": {"dtype": …, "shape": […]}}.'
                self._refuse(["expected_output", index], f"{item} does not say its shape and type", hint)
            return Argument(f"@{item}")
        if not item.file:
            return Argument(_format_scalar(item.value, item.meta))
        tensor = tensor_of(item.meta.shape, item.meta.dtype) if item.meta and item.file.endswith(".bin") else ""
        field: list[str | int] = ["expected_output", index, "url" if item.url else "value"]
        if is_url(item.file):
            if why := unreadable(item.file):
                self._refuse(field, why, BRACKETS_HINT)
            return Argument(tensor, item.file)
        self.local(field, item.file)
        return Argument(f"{tensor}=@{item.file}" if tensor else f"@{item.file}")

    def _refuse(self, field: list[str | int], message: str, hint: str) -> None:
        self.problems.append(problem_at(self._spec.name, self._text, field, message, hint))


@dataclass(frozen=True, slots=True)
class FlagLine:
    """A line that is a flag.

    Attributes:
        number: of the line, 1-based.
        value: as written, with quotes: of which flags they are dropped is the tools' to say. None where it has none.
    """

    number: int
    name: str
    value: str | None

    @property
    def text(self) -> str:
        """The flag as an argument of a command."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def read_flagfile(text: str, file: str) -> tuple[list[FlagLine], list[Problem]]:
    """The flags of a flagfile in their order, and what is wrong with it."""
    flags: list[FlagLine] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.strip()
        if not words or words.startswith(("#", "//")):
            continue
        match = _FLAG.fullmatch(words)
        if match is None or "\0" in words:
            message = f"expected a flag such as --input=3x4xf32=@input_0.bin, found {_shorten(words)!r}"
            problems.append(Problem(file, number, "", message, "Write one flag a line; a comment begins with #."))
            continue
        name, value = match.groups()
        if value is not None and name in _ARGUMENTS:
            value = _SMALL_FLOAT.sub(lambda found: found[1] + found[2].upper(), value, count=1)
        flag = FlagLine(number, name, value)
        wrong = _check_flag(flag)
        if wrong:
            problems.append(Problem(file, number, flag.name, *wrong))
        flags.append(flag)
    return flags, problems


def _check_flag(flag: FlagLine) -> tuple[str, str] | None:
    """What is wrong with a flag by itself, and what to do."""
    if flag.name == "flagfile":
        return "a flagfile inside a flagfile is not read", "Write its flags here."
    if flag.name not in _ARGUMENTS:
        return None
    if not flag.value:
        return "has no value: expected for example 3x4xf32=@input_0.bin", "Write the value after '='."
    if flag.value[0] == flag.value[-1] == '"' and _FILE.fullmatch(flag.value[1:-1]):
        return "the tools take quotes around a file for a part of its name", "Write it without quotes."
    match = _FILE.fullmatch(flag.value)
    kind = match[1] if match else None
    if kind is not None and not TENSOR_TYPE.fullmatch(kind):
        return (
            f"expected a tensor type such as 3x4xf32 before '=@', found {_shorten(kind)!r}",
            "Write sizes, then a type.",
        )
    return None


def file_of(flag: FlagLine) -> str:
    """The file that an argument is read from; empty where its value says it all."""
    match = _FILE.fullmatch(flag.value or "") if flag.name in _ARGUMENTS else None
    return match[2] if match else ""


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
