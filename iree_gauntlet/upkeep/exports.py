"""Programs of frameworks, which are exported as MLIR: files of exports, and functions of Python files."""

from __future__ import annotations

import ast
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.upkeep.programs import ExportSource
from iree_gauntlet.upkeep.references import FRAMEWORKS, get_memory_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.judging import ExportRecord
    from iree_gauntlet.upkeep.programs import UserProgram
    from iree_gauntlet.upkeep.references import ReferenceSources


_EXPORT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _ExportPlan(Recorded):
    model: str
    function: str
    folder: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _ExportAnswer(Recorded):
    """The answer of `run_jax` or `run_torch` about an export; `framework` is that of a program of another one."""

    artifact: str = ""
    examples: str = ""
    arguments: int = 0
    kept: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    framework: str = ""


@dataclass(frozen=True, slots=True)
class ProgramExport:
    """A program as MLIR.

    Attributes:
        title: the program in messages.
        examples: the folder of the inputs that came with it; None without any.
        arguments: the number of its arguments, of which the source has those that it uses.
        notes: what the user should know.
    """

    title: str
    artifact: Path
    examples: Path | None
    arguments: int
    source: ExportSource
    notes: tuple[str, ...]


def export_program(
    path: Path, sources: ReferenceSources, *, function: str = "", framework: str = "", title: str = ""
) -> ProgramExport:
    """Export a program in a Python that has its framework.

    Args:
        path: a file of an export, or a Python file.
        sources: the Pythons.
        function: the function of a Python file.
        framework: a key of `FRAMEWORKS`; by default, what the Python file imports, or the function's arguments tell.
        title: the program in messages; by default its file.

    Raises:
        UsageError: the framework is not here, or the program cannot be exported.
    """
    title = title or f"--program {path}{f':{function}' if function else ''}"
    key, python = _choose_python(title, [framework] if framework else _list_frameworks(path), sources)
    plan = _ExportPlan(str(path.absolute()), function, tempfile.mkdtemp(dir=sources.workers.folder), get_memory_limit())
    answer = _ask(title, plan, key, python, sources)
    if answer.framework:
        key, python = _choose_python(title, [answer.framework], sources)
        answer = _ask(title, plan, key, python, sources)
    source = ExportSource(path.absolute(), function, python, answer.kept, key)
    examples = Path(answer.examples) if answer.examples else None
    return ProgramExport(title, Path(answer.artifact), examples, answer.arguments, source, answer.notes)


def _list_frameworks(path: Path) -> list[str]:
    """List the frameworks that a Python file may be for: the one that it imports, or all if that does not tell."""
    try:
        nodes = [*ast.walk(ast.parse(path.read_bytes()))]
    except (SyntaxError, ValueError):
        # The worker says where.
        nodes = []
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    roots = {name.partition(".")[0] for name in names}
    keys = [key for key, framework in FRAMEWORKS.items() if roots.intersection(framework.imports)]
    return keys if len(keys) == 1 else [*FRAMEWORKS]


def _choose_python(title: str, keys: Sequence[str], sources: ReferenceSources) -> tuple[str, str]:
    """Choose the first framework that is here, and its Python; raise a UsageError if none is."""
    problems = []
    for key in keys:
        try:
            python = sources.find_python(FRAMEWORKS[key])
        except UsageError as error:
            problems.append(error)
            continue
        if python:
            return key, python
    if problems:
        raise problems[0]
    frameworks = [FRAMEWORKS[key] for key in keys]
    titles = " or ".join(framework.title for framework in frameworks)
    packages = " and ".join(name for framework in frameworks for name in framework.packages)
    hints = " or ".join(framework.hint for framework in frameworks)
    message = f"{title} is of {titles}, which needs {packages}: they are not installed here"
    raise UsageError(message, f"{hints}, or give --reference-python.")


def _ask(title: str, plan: _ExportPlan, key: str, python: str, sources: ReferenceSources) -> _ExportAnswer:
    worker = FRAMEWORKS[key].worker
    try:
        return sources.workers.run_worker(worker, title, plan, _ExportAnswer, python=python, seconds=_EXPORT_SECONDS)
    except GauntletError as error:
        raise UsageError(error.message, "docs/how-to/programs.md describes what is taken.") from error


def find_source(program: UserProgram, record: ExportRecord, folder: Path, sources: ReferenceSources) -> UserProgram:
    """Export a program again from the file that it came from, so that its framework can run it.

    Args:
        program: the program of a spec, in MLIR.
        record: its origin, from the provenance in `folder`.
        folder: the folder of the spec's outputs.
        sources: the Pythons.

    Raises:
        UsageError: the file is not there, its framework is not, or it is another program now.
    """
    path = folder / record.path
    if not record.path or not path.is_file():
        raise UsageError(f"{record.source} is not there, which it was exported from")
    export = export_program(path, sources, function=record.function, framework=record.framework, title=record.source)
    if export.artifact.read_bytes() != program.path.read_bytes():
        raise UsageError(f"{record.source} gives another program now, which `gauntlet init … --again` takes")
    return replace(program, path=export.artifact, source=export.source)
