"""`gauntlet …`, run to its end: in this process, or in one of its own where signals, forks or the start matter."""

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
    "Done",
    "Reading",
    "gauntlet_argv",
    "read_line",
    "read_requests",
    "run_here",
    "run_in_process",
    "run_program",
    "with_fields",
]

# Ends what hangs; nothing comes near it.
LIMIT_SECONDS = 500.0
# As a script for `python -c`.
MAIN = "from iree_gauntlet.tasks.program import main; main()"
_PATCHED = """
import sys
sys.path.append(sys.argv.pop(1))
from iree_gauntlet.toolchains import find
from iree_gauntlet.tasks.program import main
from tests.support.command_line import with_fields
found = find.find_installed()
changes = dict(pair.split("=", 1) for pair in sys.argv.pop(1).split(";"))
find.find_installed = lambda: with_fields(found, changes)
main()
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def run_here(
    words: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    toolchain: Mapping[str, str] | None = None,
    package: str = "",
) -> Done:
    """Runs a command in this process, as the console command does: its folder, environment and streams are its own.

    `words`: after `gauntlet`. `package`: is run in place of `gauntlet`, as by `python -m`.
    """
    streams = [io.BytesIO(), io.BytesIO()]
    out, err = (io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in streams)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_working_in(folder))
        stack.enter_context(mock.patch.dict(os.environ, environ, clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["gauntlet", *words]))
        stack.enter_context(mock.patch.object(sys, "stdin", stack.enter_context(Path(os.devnull).open())))
        if toolchain:
            found = with_fields(find_installed(), toolchain)
            stack.enter_context(mock.patch.object(find, "find_installed", return_value=found))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        code = _exit_code(package)
    said = [stream.getvalue().decode() for stream in streams]
    assert "Traceback" not in said[1], said[1]
    return Done(code, *said)


def run_in_process(
    words: Sequence[str], folder: Path, environ: Mapping[str, str], toolchain: Mapping[str, str] | None = None
) -> Done:
    """As `run_here`, in a process of its own."""
    return run_program(gauntlet_argv(words, toolchain or {}), folder, environ)


def run_program(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Done:
    """Runs a program to its end; no command of ours in it says a traceback."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def gauntlet_argv(words: Sequence[str], toolchain: Mapping[str, str]) -> list[str]:
    """The argument vector of a command in a process of its own."""
    if not toolchain:
        return [sys.executable, "-c", MAIN, *words]
    changes = ";".join(f"{name}={value}" for name, value in toolchain.items())
    return [sys.executable, "-c", _PATCHED, str(Path(__file__).parents[2]), changes, *words]


def with_fields(toolchain: Toolchain, changes: Mapping[str, str]) -> Toolchain:
    """A toolchain with other fields: the compiler's where it has them, else the runtime's."""
    compiler = {name: value for name, value in changes.items() if hasattr(toolchain.compiler, name)}
    runtime = {name: value for name, value in changes.items() if name not in compiler}
    return Toolchain(
        dataclasses.replace(toolchain.compiler, **dict[str, Any](compiler)),
        dataclasses.replace(toolchain.runtime, **dict[str, Any](runtime)),
    )


class Reading(program._Gauntlet):
    """The command line, which stops where it would begin to work."""

    def execute(self) -> None:
        raise Exit(code=0)


def read_line(words: Sequence[str]) -> dict[str, Any]:
    """The values of all options of a command line that begins with a task, by name; Exit where it cannot be read."""
    reading = Reading(name="gauntlet", binary="gauntlet", namespace=program.namespace)
    line = ["gauntlet", *words]
    with mock.patch.object(sys, "argv", line), contextlib.suppress(SystemExit):
        reading.run(line)
    (task,) = reading.tasks
    return dict[str, Any](task.as_kwargs)


def read_requests(words: Sequence[str]) -> list[object]:
    """What the task of a command line is given; GauntletError where options do not fit."""
    values = read_line(words)
    return [part.read(values) for part in program.namespace[words[0]].parts]


def _exit_code(package: str) -> int:
    try:
        if package:
            # By its file: pytest's own loader of the toolkit's modules has nothing for `run_module`.
            spec = find_spec(f"{package}.__main__")
            assert spec is not None, package
            assert spec.origin is not None, package
            runpy.run_path(spec.origin, run_name="__main__")
        else:
            program.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
