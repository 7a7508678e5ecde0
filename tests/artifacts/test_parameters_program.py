"""`python -m iree_gauntlet.artifacts.parameters`, as a step and as a person runs it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.parameters.collect import collect_parameters
from iree_gauntlet.artifacts.parameters.irpa import write_archive
from iree_gauntlet.artifacts.parameters.parameter import parameters_in_scope
from iree_gauntlet.artifacts.parameters.values import RandomContent, SplatContent
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

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


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "iree_gauntlet.artifacts.parameters", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("arguments", "scope", "content"),
    [
        (("--scope=model", "--random=42"), "model", RandomContent(42)),
        (("--random=7",), "", RandomContent(7)),
        (("--scope=model", "--splat=-1"), "model", SplatContent(-1)),
    ],
)
def test_an_archive_of_one_scope(
    arguments: tuple[str, ...], scope: str, content: RandomContent | SplatContent, program: Path
) -> None:
    done = run(program.parent, "p.mlir", *arguments, "-o", "out.irpa")
    assert done.returncode == 0, done.stderr
    assert "parameters" in done.stdout
    write_archive(
        program.parent / "same.irpa", parameters_in_scope(collect_parameters(program, "no-tool"), scope), content
    )
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
def test_what_cannot_be_made_is_one_message(arguments: tuple[str, ...], message: str, program: Path) -> None:
    done = run(program.parent, *arguments, "-o", "out.irpa")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (program.parent / "out.irpa").exists()
