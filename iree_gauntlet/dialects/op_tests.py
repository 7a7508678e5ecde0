"""Cases of operator suites, one for each config: compiled in their folders, run there with their flagfile's flags."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from iree_gauntlet.cases import (
    Argument,
    ArgumentOrder,
    Case,
    Golden,
    Kind,
    Metric,
    Module,
    Origin,
    Program,
    Stage,
    Statistic,
)
from iree_gauntlet.dialects.flagfile import file_of, outside, read_flagfile
from iree_gauntlet.dialects.op_torch import read_torch_op
from iree_gauntlet.dialects.op_trees import FLAGFILE, TORCH_FILE
from iree_gauntlet.dialects.target_flags import devices_of_flags
from iree_gauntlet.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.cases import Allclose, Expectation
    from iree_gauntlet.dialects.op_configs import SuiteConfig
    from iree_gauntlet.dialects.op_trees import OpSpec
    from iree_gauntlet.targets import Target

__all__ = ["DIALECT", "build_op_cases"]

DIALECT = "op_tests"
# Seconds: cases take a fraction of one, and one that hangs must not hold thousands for half an hour.
_TIMEOUTS = ((Stage.COMPILE, 300.0), (Stage.THRESHOLD, 60.0))

_PROGRAMS = (".mlir", ".mlirbc")
_FUNCTION = re.compile(r'^\s*(?:func\.func|util\.func)\s+(?:public\s+)?@(?:"([^"\n]+)"|([\w.$-]+))', re.MULTILINE)
# What iree-run-module compares by; the tool that measures has none of it.
_COMPARING = ("expected_", "equality_mode")


@dataclass(frozen=True, slots=True)
class OpInputs:
    """What a folder says of its case, whatever the config.

    Attributes:
        program: name of the program's file.
        inputs, expected: arguments, read from the folder.
        flags: further flags of the run.
        function: that is called; empty for the module's only one.
        benchmark: whether it is measured and not compared.
        allclose: how it is compared; None for the tool's own rule.
    """

    program: str
    inputs: tuple[Argument, ...]
    expected: tuple[Argument, ...]
    flags: tuple[str, ...] = ()
    function: str = ""
    benchmark: bool = False
    allclose: Allclose | None = None


def build_op_cases(spec: OpSpec, targets: Sequence[Target]) -> tuple[list[Case], list[Problem], list[str]]:
    """The cases of a folder: for each config whose target is asked for, and a benchmark where it has a golden time.

    Args:
        spec: the folder.
        targets: what is asked for.

    Returns:
        The cases, what is wrong with the folder, and names of targets that other configs are for.
    """
    chosen: list[tuple[SuiteConfig, Target]] = []
    elsewhere: list[str] = []
    for config in spec.suite.configs:
        if config.document is None:
            continue
        asked = next((target for target in targets if target.covers(config.target)), None)
        if asked is None:
            elsewhere.append(replace(config.target, config="").name)
        else:
            chosen.append((config, asked))
    if not chosen:
        return [], [], elsewhere
    read, problems = _read(spec)
    if read is None:
        return [], problems, elsewhere
    cases: list[Case] = []
    origin = Origin(spec.name)
    program = Program(f"file://{quote(f'{spec.folder.path}/{read.program}')}", name=read.program)
    for config, asked in chosen:
        cases += _cases(spec, read, program, origin, config, asked.sku)
    return cases, [], elsewhere


def _cases(
    spec: OpSpec, read: OpInputs, program: Program, origin: Origin, config: SuiteConfig, sku: str
) -> Iterator[Case]:
    document = config.document
    assert document is not None, "only configs that were read are chosen"
    target = _with_sku(config.target, sku)
    key = spec.keys[0]
    for other in spec.keys[1:]:
        if other in config.skips or other in config.expected or other in document.golden_times_ms:
            key = other
    flags = tuple(document.iree_compile_flags)
    flags_origin = Origin(config.name)
    module = Module(f"{spec.model}/{spec.stem}", "main", target, program, flags, origin, flags_origin=flags_origin)
    run_flags = (*_function_flags(read), *document.iree_run_module_flags, *read.flags)
    case = Case(
        dialect=DIALECT,
        model=spec.model,
        submodel=spec.stem,
        stem=spec.stem,
        kind=Kind.QUALITY,
        target=target,
        modules=(module,),
        origin=origin,
        inputs=read.inputs,
        expected_outputs=read.expected,
        device=devices_of_flags(run_flags),
        run_flags=run_flags,
        order=ArgumentOrder.MODULES_FIRST,
        expectations=_expectations(config, key, compared=not read.benchmark),
        markers=_markers(target, Kind.QUALITY),
        timeouts=_TIMEOUTS,
        working_directory=spec.folder.path,
        flags_origin=None if read.flags else flags_origin,
        skips=config.skips.get(key, ()),
        allclose=read.allclose,
    )
    golden = document.golden_times_ms.get(key)
    if not read.benchmark:
        yield case
    if read.benchmark or golden is not None:
        yield _benchmark(case, spec, read, config, key)


def _expectations(config: SuiteConfig, key: str, *, compared: bool) -> tuple[Expectation, ...]:
    """What is expected of a case; one that is compared too, and gives wrong numbers, can still be measured."""
    found = config.expected.get(key, ())
    if not compared:
        return found
    return tuple(item for item in found if item.stage is not Stage.BENCHMARK or item.crash)


def _benchmark(case: Case, spec: OpSpec, read: OpInputs, config: SuiteConfig, key: str) -> Case:
    document = config.document
    assert document is not None, "only configs that were read are chosen"
    goldens: tuple[Golden, ...] = ()
    value = document.golden_times_ms.get(key)
    if value is not None:
        origin = Origin(config.name, f"golden_times_ms.{key}")
        factor = document.tolerance_factor
        goldens = (Golden(Metric.TIME_MS, value, factor, Statistic.MEAN, case.target.sku, "", origin),)
    flags = tuple(flag for flag in case.run_flags if not flag.lstrip("-").startswith(_COMPARING))
    if not any(flag.startswith("--function=") for flag in flags):
        # The tool that measures calls a function with arguments only by its name.
        name = _exported(f"{spec.folder.path}/{read.program}")
        flags = (f"--function={name}", *flags) if name else flags
    return replace(
        case,
        kind=Kind.BENCHMARK,
        expected_outputs=(),
        run_flags=flags,
        goldens=goldens,
        markers=_markers(case.target, Kind.BENCHMARK),
        allclose=None,
    )


@lru_cache(maxsize=64)
def _markers(target: Target, kind: Kind) -> frozenset[str]:
    return frozenset({kind.value, target.family, *filter(None, [target.chip])})


@lru_cache(maxsize=64)
def _with_sku(target: Target, sku: str) -> Target:
    return replace(target, sku=sku)


def _function_flags(read: OpInputs) -> tuple[str, ...]:
    return (f"--function={read.function}",) if read.function else ()


def _exported(path: str) -> str:
    """The first function of a program's text; empty where the program is bytecode, or has none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    match = _FUNCTION.search(text)
    return (match[1] or match[2]) if match else ""


def _read(spec: OpSpec) -> tuple[OpInputs | None, list[Problem]]:
    files = spec.folder.files
    if FLAGFILE in files and TORCH_FILE in files:
        return None, [Problem(spec.name, 0, "", f"lies beside a {TORCH_FILE}: which one counts?", "Remove one.")]
    if FLAGFILE in files:
        return _read_flags(spec)
    found, problems = read_torch_op(spec)
    if found is None:
        return None, problems
    document, inputs, expected, allclose = found
    read = OpInputs(
        document.file_name,
        inputs,
        expected,
        function=document.function_name,
        benchmark=document.mode == "benchmark",
        allclose=allclose,
    )
    return read, []


def _read_flags(spec: OpSpec) -> tuple[OpInputs | None, list[Problem]]:
    """A folder with a flagfile."""
    try:
        with open(f"{spec.folder.path}/{FLAGFILE}", encoding="utf-8") as file:  # noqa: PTH123 - one of thousands
            text = file.read()
    except OSError as error:
        return None, [Problem(spec.name, 0, "", f"cannot be read: {error.strerror}", "Check its rights.")]
    except UnicodeDecodeError:
        return None, [Problem(spec.name, 0, "", "is not UTF-8", "Save the file as UTF-8.")]
    lines, problems = read_flagfile(text, spec.name)
    programs = [name for name in spec.folder.files if name.endswith(_PROGRAMS)]
    if len(programs) != 1:
        found = " and ".join(sorted(programs)) or "none"
        message = f"one program belongs beside it, *.mlir or *.mlirbc; found {found}"
        problems.append(Problem(spec.name, 0, "", message, "Leave one program in the folder."))
    for line in lines:
        name = file_of(line)
        if name and outside(name):
            message = f"{name!r} leaves the case's folder"
            problems.append(Problem(spec.name, line.number, line.name, message, "Put the file beside the flagfile."))
        elif name and name not in spec.folder.files and not Path(spec.folder.path, name).is_file():
            message = f"the file {name} is missing"
            problems.append(Problem(spec.name, line.number, line.name, message, "Put it beside the flagfile."))
    if problems:
        return None, problems
    arguments: dict[str, list[Argument]] = {"input": [], "expected_output": []}
    others = []
    for line in lines:
        if line.name in arguments:
            arguments[line.name].append(Argument(line.value or ""))
        else:
            others.append(line.text)
    return OpInputs(programs[0], tuple(arguments["input"]), tuple(arguments["expected_output"]), tuple(others)), []
