"""What failed in a run, with all that is needed to compile and run it again: from the run's journal alone."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import MAIN
from iree_gauntlet.device_kinds import CPU
from iree_gauntlet.errors import GauntletError, NothingSelectedError
from iree_gauntlet.settings import shown
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Command, Step, StepInput


# Of a compile: what it writes besides the module, and the source's name.
_WRITTEN = ("--iree-scheduling-dump-", "--iree-hal-dump-", "--dump-compilation-phases-to", "--mlir-print-ir-tree-dir")
_SPLAT = ("--iree-parameter-splat", "--iree-opt-splat-parameters")
_FLAGFILE = "--flagfile="


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that failed.

    Attributes:
        flags: of the compile, without those that say where something is written.
        argv: of iree-run-module; empty for a compile.
        folder: the chain's, relative to the folder of steps.
        urls: where its files come from, by their paths.
    """

    case: str
    stage: Stage
    result: Result
    program: Path
    flags: tuple[str, ...]
    compile_cwd: Path
    compile_timeout: float
    argv: tuple[str, ...]
    cwd: Path
    timeout: float
    folder: Path
    urls: Mapping[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether it ran, and gave wrong numbers."""
        return self.stage.row.checks_numbers and bool(self.result.outputs) and not self.result.signal

    @property
    def kind(self) -> str:
        """What kind of failure it is, for people."""
        if self.wrong:
            return "wrong numbers"
        what = "compile" if self.stage.row.makes_modules else "run"
        if self.result.timed_out:
            return f"{what} that does not end"
        return f"{what} crash ({self.result.signal})" if self.result.signal else f"{what} failure"

    def values(self, flag: str) -> list[str]:
        """What a flag of the run is given, each time: `--input`."""
        return [word.partition("=")[2] for word in self.argv if word.startswith(f"{flag}=")]

    @property
    def device(self) -> str:
        """The device that it ran on."""
        return next(iter(self.values("--device")), CPU.device)

    @property
    def function(self) -> str:
        """The function that was called; empty where the module has but one."""
        return next(iter(self.values("--function")), "")


@dataclass(frozen=True, slots=True)
class Lost:
    """A failure that cannot be had again: something is gone."""

    case: str
    result: Result
    why: str
    kind = "failure"


def find_failures(record: JournalRecord, patterns: Sequence[str]) -> list[Failure | Lost]:
    """The failures of a run's main modules; of chains that a glob matches, where there are globs.

    Raises:
        NothingSelectedError: nothing failed that matches.
    """
    run = shown(record.path.parent)
    steps = {step.id: step for step in record.planned}
    failed: list[Step] = []
    for step in steps.values():
        result = record.results.get(step.id)
        if result is not None and step.stage.row.is_explained and step.role == MAIN:
            # IREE is at fault: it failed, as expected or not, or a tool crashed or hung.
            broken = result.verdict.is_error and (result.crashed or result.timed_out)
            failed += [step] if broken or result.verdict.counts_as_failure else []
    if not failed:
        hint = "`explain RUN` takes another run; `explain` is about compiles and threshold runs."
        raise NothingSelectedError(f"nothing failed in {run} that can be explained", hint)
    chosen = [step for step in failed if not patterns or any(fnmatchcase(step.chain, pattern) for pattern in patterns)]
    if not chosen:
        names = ", ".join(dict.fromkeys(step.chain for step in failed))
        raise NothingSelectedError(f"no failure of {run} matches {' '.join(patterns)}", f"Failed there: {names}.")
    found: list[Failure | Lost] = []
    for step in chosen:
        result = record.results[step.id]
        try:
            found.append(_make_failure(step, steps, result, run))
        except GauntletError as error:
            found.append(Lost(step.chain, result, error.on_one_line))
    return found


def _make_failure(step: Step, steps: Mapping[str, Step], result: Result, run: Path) -> Failure:
    compiled = steps.get(f"{step.chain}:{Stage.COMPILE}")
    if compiled is None or compiled.command is None:
        hint = "Run it again with its own compile step: what failed was made from another chain's module."
        raise GauntletError(f"{step.chain}: the run has no compile of its program", hint)
    threshold = steps.get(f"{step.chain}:{Stage.THRESHOLD}", step)
    command = step.command if step.stage.row.runs_modules else None
    failure = failure_of(compiled, command, step.stage, result, threshold.timeout)
    needed = [(failure.program, "compiled"), *((Path(item.path), "run") for item in step.inputs if item.url)]
    for file, what in needed:
        if not file.is_file():
            raise GauntletError(
                f"{file} is not there: {step.chain} cannot be {what} again",
                f"{run} was made on another machine, or its files are gone; run it here again.",
            )
    # Of what was imported from another format, nothing is known of the file itself.
    items = [item for item in (*compiled.inputs, *threshold.inputs) if Path(item.url).suffix == Path(item.path).suffix]
    return replace(failure, urls={item.path: item.url for item in items})


def failure_of(compiled: Step, command: Command | None, stage: Stage, result: Result, timeout: float) -> Failure:
    """What is wrong with a program, by its compile step; `command` runs it, None where it is the compile that fails."""
    compile_cwd = Path(compiled.process.cwd)
    cwd = Path(command.cwd) if command else compile_cwd
    words = list(compiled.process.argv[1:])
    # The source is named by a path that may be relative to where it is compiled.
    source = next(word for word in words if not word.startswith("-"))
    words.remove(source)
    if "-o" in words:
        place = words.index("-o")
        del words[place : place + 2]
    here, parts = compile_cwd / source, Path(compiled.folder).parts
    argv: list[str] = []
    for word in command.argv if command else ():
        # The flags of flag files stand in their place.
        file = cwd / word.removeprefix(_FLAGFILE)
        named = word.startswith(_FLAGFILE) and file.is_file()
        argv += shlex.split(file.read_text(encoding="utf-8")) if named else [word]
    return Failure(
        case=compiled.chain,
        stage=stage,
        result=result,
        program=here if here.is_file() else Path(program_of(compiled).path),
        flags=tuple(word for word in words if not word.startswith((*_WRITTEN, *_SPLAT))),
        compile_cwd=compile_cwd,
        compile_timeout=compiled.timeout,
        argv=tuple(argv),
        cwd=cwd,
        timeout=timeout,
        folder=Path(*parts[len(parts) - parts[::-1].index("steps") : -1]),
    )


def program_of(step: Step) -> StepInput:
    """The program that a step compiles or imports."""
    return next(item for item in step.inputs if item.role == "program")
