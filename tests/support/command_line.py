"""Runs `gauntlet …` in this process, or in a process of its own if signals, forks or the start matter."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from invoke.exceptions import Exit

from iree_gauntlet.tasks import program
from iree_gauntlet.toolchains import find
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import Toolchain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "LIMIT_SECONDS",
    "MAIN",
    "CommandResult",
    "ParseOnlyProgram",
    "gauntlet_argv",
    "parse_options",
    "parse_requests",
    "run_in_process",
    "run_in_subprocess",
    "run_program",
    "with_fields",
]

# This limit only ends a hang; nothing else comes near it.
LIMIT_SECONDS = 500.0
# A script for `python -c`.
MAIN = "from iree_gauntlet.__main__ import main; main()"
_PATCHED_MAIN = """
import sys
sys.path.append(sys.argv.pop(1))
from iree_gauntlet.toolchains import find
from iree_gauntlet.__main__ import main
from tests.support.command_line import with_fields
found = find.find_installed()
changes = dict(pair.split("=", 1) for pair in sys.argv.pop(1).split(";"))
find.find_installed = lambda: with_fields(found, changes)
main()
"""


@dataclass(frozen=True)
class CommandResult:
    """The exit code and output of a finished command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def run_in_process(
    arguments: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    toolchain: Mapping[str, str] | None = None,
    package: str = "",
) -> CommandResult:
    """Run a command in this process, with its own working directory, environment and streams.

    `arguments`: the words after `gauntlet`. `package`: a package to run instead of `gauntlet`, as by `python -m`.
    """
    streams = [io.BytesIO(), io.BytesIO()]
    out, err = (io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in streams)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_change_directory(folder))
        stack.enter_context(mock.patch.dict(os.environ, environ, clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["gauntlet", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", stack.enter_context(Path(os.devnull).open())))
        if toolchain:
            changed_toolchain = with_fields(find_installed(), toolchain)
            stack.enter_context(mock.patch.object(find, "find_installed", return_value=changed_toolchain))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        exit_code = _run_main(package)
    outputs = [stream.getvalue().decode() for stream in streams]
    assert "Traceback" not in outputs[1], outputs[1]
    return CommandResult(exit_code, *outputs)


def run_in_subprocess(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str], toolchain: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a command in a process of its own."""
    return run_program(gauntlet_argv(arguments, toolchain or {}), folder, environ)


def run_program(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> CommandResult:
    """Run a program to its end; require that it prints no traceback."""
    result = subprocess.run(
        argv,
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert "Traceback" not in result.stderr, result.stderr
    return CommandResult(result.returncode, result.stdout, result.stderr)


def gauntlet_argv(arguments: Sequence[str], toolchain: Mapping[str, str]) -> list[str]:
    """Return the argument vector of a command in a process of its own."""
    if not toolchain:
        return [sys.executable, "-c", MAIN, *arguments]
    changes = ";".join(f"{name}={value}" for name, value in toolchain.items())
    return [sys.executable, "-c", _PATCHED_MAIN, str(Path(__file__).parents[2]), changes, *arguments]


def with_fields(toolchain: Toolchain, changes: Mapping[str, str]) -> Toolchain:
    """Return a toolchain with changed fields; fields that the compiler lacks are the runtime's."""
    compiler = {name: value for name, value in changes.items() if hasattr(toolchain.compiler, name)}
    runtime = {name: value for name, value in changes.items() if name not in compiler}
    return Toolchain(
        dataclasses.replace(toolchain.compiler, **dict[str, Any](compiler)),
        dataclasses.replace(toolchain.runtime, **dict[str, Any](runtime)),
    )


class ParseOnlyProgram(program._Gauntlet):
    """The command line program, which exits after parsing."""

    def execute(self) -> None:
        raise Exit(code=0)


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse a command line that begins with a task; return all option values by name. Raises Exit on errors."""
    parser = ParseOnlyProgram(name="gauntlet", binary="gauntlet", namespace=program.namespace)
    argv = ["gauntlet", *arguments]
    with mock.patch.object(sys, "argv", argv), contextlib.suppress(SystemExit):
        parser.run(argv)
    (task,) = parser.tasks
    return dict[str, Any](task.as_kwargs)


def parse_requests(arguments: Sequence[str]) -> list[object]:
    """Return the requests that a command line's task gets. Raises GauntletError on inconsistent options."""
    values = parse_options(arguments)
    return [request_type.read(values) for request_type in program.namespace[arguments[0]].parts]


def _run_main(package: str) -> int:
    try:
        if package:
            # The file is run, as pytest's loader of the toolkit's modules does not support `run_module`.
            spec = find_spec(f"{package}.__main__")
            assert spec is not None, package
            assert spec.origin is not None, package
            runpy.run_path(spec.origin, run_name="__main__")
        else:
            program.main()
    except SystemExit as exit_error:
        return int(exit_error.code or 0)
    return 0


@contextlib.contextmanager
def _change_directory(folder: Path) -> Iterator[None]:
    original_folder = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(original_folder)
