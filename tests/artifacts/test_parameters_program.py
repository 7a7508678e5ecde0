"""`python -m iree_gauntlet.artifacts.parameters`, as a step and as a person runs it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.parameters import RandomContent, main, write_archive
from iree_gauntlet.artifacts.program_parameters import collect_parameters, select_scope
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    # Exit code, output, errors.
    _Run = Callable[..., tuple[int, str, str]]

PROGRAM = """
util.global private @a = #stream.parameter.named<"model"::"a"> : tensor<4x4xf32>
util.global private @b = #stream.parameter.named<"model"::"b"> : tensor<7xi8>
util.global private @c = #flow.parameter.named<"c"> : tensor<3xbf16>
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.mlir"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def run(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> _Run:
    """The program in this process, in the folder of `p.mlir`."""
    monkeypatch.chdir(program.parent)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["parameters", *arguments])
        return main(), *capsys.readouterr()

    return run


def test_the_program_is_run_by_its_name(program: Path) -> None:
    command = [sys.executable, "-m", "iree_gauntlet.artifacts.parameters", "p.mlir", "--random=7", "-o", "out.irpa"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out.irpa: 1 parameters")
    assert (program.parent / "out.irpa").is_file()


@pytest.mark.parametrize(
    ("arguments", "scope", "content"),
    [
        (("--scope=model", "--random=42"), "model", RandomContent(42)),
        (("--random=7",), "", RandomContent(7)),
        (("--scope=model", "--splat=-1"), "model", -1),
    ],
)
def test_an_archive_of_one_scope(
    arguments: tuple[str, ...], scope: str, content: RandomContent | float, program: Path, run: _Run
) -> None:
    code, out, err = run("p.mlir", *arguments, "-o", "out.irpa")
    assert (code, err) == (0, "")
    assert "parameters" in out
    write_archive(program.parent / "same.irpa", select_scope(collect_parameters(program, "no-tool"), scope), content)
    assert (program.parent / "out.irpa").read_bytes() == (program.parent / "same.irpa").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.mlir", "--random=1"), "error: gone.mlir: cannot be read"),
        (("p.mlir", "--scope=other", "--random=1"), "error: no parameter in scope 'other'"),
        (("p.mlir", "--scope=model", "--splat=0.5"), 'error: parameter "model"::"b"'),
        (("p.mlir", "--scope=model", "--random=-1"), "error: seed -1 of random weights is negative"),
    ],
)
def test_what_cannot_be_made_is_one_message(arguments: tuple[str, ...], message: str, program: Path, run: _Run) -> None:
    code, _, err = run(*arguments, "-o", "out.irpa")
    assert code == 1
    assert message in err
    assert "Traceback" not in err
    assert not (program.parent / "out.irpa").exists()
