"""The failures of a run, read from only its journal, with all that compiling and running them again needs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import MAIN
from iree_gauntlet.device_kinds import CPU
from iree_gauntlet.engine.commands import split_calls
from iree_gauntlet.engine.judging import find_changed_goldens
from iree_gauntlet.errors import GauntletError, NothingSelectedError
from iree_gauntlet.settings import format_path
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step, StepInput


# Flags of a compile that write something besides the module, or give the source's name.
_OUTPUT_FLAGS = (
    "--iree-scheduling-dump-",
    "--iree-hal-dump-",
    "--dump-compilation-phases-to",
    "--mlir-print-ir-tree-dir",
)
_SPLAT_FLAGS = ("--iree-parameter-splat", "--iree-opt-splat-parameters")
_FLAGFILE = "--flagfile="


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that failed.

    Attributes:
        flags: the compile's flags, without those that name output files.
        argv: iree-run-module's command line, or `run_calls.py` with its arguments; empty for a compile.
        folder: the chain's folder, relative to the folder of steps.
        urls: the URLs of the step's files, by path.
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
        """True if the step ran and gave wrong numbers."""
        # A call that fails after others has their outputs.
        ran = not self.result.signal and self.result.failure is not FailureKind.DOES_NOT_RUN
        return self.stage.row.checks_numbers and bool(self.result.outputs) and ran

    @property
    def changed(self) -> bool:
        """True if an expected output is not the one that was recorded."""
        return bool(find_changed_goldens(Command(self.argv, str(self.cwd))))

    @property
    def kind(self) -> str:
        """A short description of the failure, for people."""
        if self.wrong:
            return "wrong numbers"
        noun = "compile" if self.stage.row.makes_modules else "run"
        if self.result.timed_out:
            return f"{noun} that does not end"
        return f"{noun} crash ({self.result.signal})" if self.result.signal else f"{noun} failure"

    def values(self, flag: str) -> list[str]:
        """Return the values of a flag of the run, such as `--input`, in order."""
        return [arg.partition("=")[2] for arg in self.argv if arg.startswith(f"{flag}=")]

    @property
    def calls(self) -> list[tuple[str, ...]]:
        """The flags of each call of a command that makes several; empty for others."""
        return split_calls(self.argv)

    def name_call(self, number: int) -> str:
        """Return the name of one of several calls, `2 (step)`; empty if there is only one."""
        return f"{number} ({self.calls[number][0].partition('=')[2] or 'its only function'})" if self.calls else ""

    @property
    def device(self) -> str:
        """The device that the step ran on."""
        return next(iter(self.values("--device")), CPU.device)

    @property
    def function(self) -> str:
        """The called function; empty if the module has only one."""
        return next(iter(self.values("--function")), "")


@dataclass(frozen=True, slots=True)
class UnrepeatableFailure:
    """A failure that cannot be repeated, because a file or step is missing."""

    case: str
    result: Result
    reason: str
    kind = "failure"
    changed = False


def find_failures(record: JournalRecord, patterns: Sequence[str]) -> list[Failure | UnrepeatableFailure]:
    """Return the failures of a run's main modules, optionally only of chains that match one of the patterns.

    Raises:
        NothingSelectedError: no failure matches.
    """
    run = format_path(record.path.parent)
    steps = {step.id: step for step in record.planned}
    failing: list[Step] = []
    for step in steps.values():
        result = record.results.get(step.id)
        if result is not None and step.stage.row.is_explained and step.role == MAIN:
            # Select failures of IREE, expected ones too, and crashes and hangs of its tools.
            is_tool_error = result.verdict.is_error and (result.crashed or result.timed_out)
            failing += [step] if is_tool_error or result.verdict.counts_as_failure else []
    if not failing:
        hint = "`explain RUN` explains another run; `explain` covers only compiles and threshold runs."
        raise NothingSelectedError(f"nothing failed in {run} that can be explained", hint)
    matches = [step for step in failing if not patterns or any(fnmatchcase(step.chain, glob) for glob in patterns)]
    if not matches:
        names = ", ".join(dict.fromkeys(step.chain for step in failing))
        raise NothingSelectedError(f"no failure of {run} matches {' '.join(patterns)}", f"These failed: {names}.")
    failures: list[Failure | UnrepeatableFailure] = []
    for step in matches:
        result = record.results[step.id]
        try:
            failures.append(_make_failure(step, steps, result, run))
        except GauntletError as error:
            failures.append(UnrepeatableFailure(step.chain, result, error.on_one_line))
    return failures


def _make_failure(step: Step, steps: Mapping[str, Step], result: Result, run: Path) -> Failure:
    build = steps.get(f"{step.chain}:{Stage.COMPILE}")
    if build is None or build.command is None:
        hint = "Run it again with its own compile step: what failed used another chain's module."
        raise GauntletError(f"{step.chain}: the run has no compile of its program", hint)
    if step.command is not None and step.command.runner:
        raise GauntletError(
            f"{step.chain}: it ran by {Path(step.command.runner[0]).name}, and only runs by this machine are explained",
            "Run its command again (the run's report has it), or explain a run on such a processor.",
        )
    threshold = steps.get(f"{step.chain}:{Stage.THRESHOLD}", step)
    command = step.command if step.stage.row.runs_modules else None
    failure = describe_failure(build, command, step.stage, result, threshold.timeout)
    files = [(failure.program, "compiled"), *((Path(source.path), "run") for source in step.inputs if source.url)]
    for file, action in files:
        if not file.is_file():
            raise GauntletError(
                f"{file} is missing: {step.chain} cannot be {action} again",
                f"{run} was made on another machine, or its files are gone; run it again on this machine.",
            )
    # A URL with another suffix is the source of an import, not of the imported file.
    sources = [file for file in (*build.inputs, *threshold.inputs) if Path(file.url).suffix == Path(file.path).suffix]
    return replace(failure, urls={source.path: source.url for source in sources})


def describe_failure(build: Step, command: Command | None, stage: Stage, result: Result, timeout: float) -> Failure:
    """Describe a failure by its compile step; `command` runs the module, or is None if the compile itself failed."""
    compile_cwd = Path(build.required_command.cwd)
    cwd = Path(command.cwd) if command else compile_cwd
    args = list(build.required_command.argv[1:])
    # The source's path may be relative to the compile's folder.
    source = next(arg for arg in args if not arg.startswith("-"))
    args.remove(source)
    if "-o" in args:
        index = args.index("-o")
        del args[index : index + 2]
    source_path, parts = compile_cwd / source, Path(build.folder).parts
    argv: list[str] = []
    for arg in command.argv if command else ():
        # A flag file is replaced by its flags.
        file = cwd / arg.removeprefix(_FLAGFILE)
        is_file = arg.startswith(_FLAGFILE) and file.is_file()
        argv += shlex.split(file.read_text(encoding="utf-8")) if is_file else [arg]
    if split_calls(argv):
        # The run's own folder stays as it is.
        argv = [arg for arg in argv[1:] if not arg.startswith("--outputs=")]
    return Failure(
        case=build.chain,
        stage=stage,
        result=result,
        program=source_path if source_path.is_file() else Path(find_program(build).path),
        flags=tuple(arg for arg in args if not arg.startswith((*_OUTPUT_FLAGS, *_SPLAT_FLAGS))),
        compile_cwd=compile_cwd,
        compile_timeout=build.timeout,
        argv=tuple(argv),
        cwd=cwd,
        timeout=timeout,
        folder=Path(*parts[len(parts) - parts[::-1].index("steps") : -1]),
    )


def find_program(step: Step) -> StepInput:
    """Return the program that a step compiles or imports."""
    return next(source for source in step.inputs if source.role == "program")
