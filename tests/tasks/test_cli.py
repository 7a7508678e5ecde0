"""Mistakes and surroundings that the command line must survive with a message, and never with a traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Done
from tests.support.places import ROOT
from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_MAIN = "from iree_gauntlet.tasks.program import main; main()"
_ROOT = ROOT


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def _shell(project: Project, line: str, cwd: Path | None = None) -> Done:
    """Runs a line of bash in which `gauntlet` is the command."""
    gauntlet = f"gauntlet() {{ {sys.executable} -c '{_MAIN}' \"$@\"; }}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{gauntlet}; {line}"],
        cwd=cwd or project.folder,
        env={**project.environment(), "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--jobs", "many"], "'many' is not a number"),
        (["run", "-j", "1.5"], "'1.5' is not a number"),
        (["run", "--timeout-compile", "soon"], "'soon' is not a number"),
        (["run", "--timeout-compile", "nan"], "--timeout-compile nan"),
        (["run", "--timeout-benchmark", "inf"], "--timeout-benchmark inf"),
        (["run", "--timeout-stall", "-1"], "--timeout-stall -1"),
        (["run", "--run-dir", "specs/regression_tests/toy/abs.mlir"], "is a file"),
        (["run", "--run-dir", "specs/regression_tests/toy/abs.mlir/run"], "cannot make the run's folder"),
        (["run", "--run-dir", "job@2"], "--run-dir without"),
        (["run", "--run-dir", "feature%2Fx"], "--run-dir without"),
        (["run", "--model"], "needed value"),
        (["nosuchtask"], "nosuchtask"),
    ],
)
def test_mistakes_are_usage_errors(project: Project, words: list[str], said: str) -> None:
    done = project.gauntlet(*words)
    assert done.code == 2, done.text
    assert said in done.err
    assert not (project.folder / "runs").exists()


def test_invoke_and_the_console_command_are_one(project: Project) -> None:
    shutil.copy(_ROOT / "tasks.py", project.folder)
    words = ["list", "--format", "json"]
    done = _shell(project, f"{sys.executable} -m invoke {' '.join(words)}")
    assert done.code == 0, done.text
    assert json.loads(done.out) == json.loads(project.gauntlet(*words).out)
    assert _shell(project, f"{sys.executable} -m invoke run --model tpy").code == 5


def test_a_reader_that_goes_away_stops_no_run_and_hides_no_verdict(project: Project) -> None:
    project.expected("abs", [9.0] * 4)
    done = _shell(project, "gauntlet run | head -n 1")
    assert done.code == 1
    assert "Broken pipe" in done.err
    assert project.journal.end is not None
    assert (project.newest / "junit.xml").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_standard_output_stops_no_run(project: Project) -> None:
    done = _shell(project, "gauntlet run > /dev/full")
    assert done.code == 0
    assert "No space left on device" in done.err
    assert "summary.md" in [path.name for path in project.newest.iterdir()]


def test_a_reader_of_a_list_may_go_away(project: Project) -> None:
    done = _shell(project, "gauntlet plan --format json | head -n 1")
    assert (done.code, done.out) == (0, "{\n")


def test_a_working_folder_that_was_removed(project: Project) -> None:
    gone = project.folder / "gone"
    gone.mkdir()
    done = _shell(project, "rmdir ../gone; gauntlet run", gone)
    assert done.code == 2
    assert "the working folder was removed" in done.err


def test_an_ascii_terminal(project: Project) -> None:
    project.expected("abs", [9.0] * 4)
    done = _shell(project, "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii gauntlet run")
    assert done.code == 1
    assert "went wrong" in done.out
