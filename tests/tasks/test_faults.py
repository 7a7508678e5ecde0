"""Faults of the toolkit, and closed or full standard streams: no command ends with the exit code of a failure."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

import pytest

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.pytest_plugin import model_test_session, plugin
from iree_gauntlet.system import faults
from iree_gauntlet.tasks.program import namespace
from iree_gauntlet.tasks.task_options import GauntletTask
from iree_gauntlet.torch_models import torch_commands
from tests.support.command_line import run_in_process
from tests.support.torch_project import TorchProject

if TYPE_CHECKING:
    from tests.support.command_line import CommandResult
    from tests.support.toy_project import Project


def break_down(*_arguments: Any, **_options: Any) -> NoReturn:
    """A fault that no command foresees."""
    empty: list[int] = []
    empty.pop()
    raise AssertionError


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tracebacks go."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def require_fault(done: CommandResult, kept: Path) -> str:
    """Checks what is said and kept of a fault; the text that is kept."""
    assert done.code == 70, done.text
    (file,) = kept.glob("gauntlet-fault-*.txt")
    said = done.out + done.err
    assert "a fault of IREE Gauntlet itself, not of its input: IndexError: pop from empty list" in said
    assert f"Report it with {file}, which has the traceback and the command line" in said
    text = file.read_text()
    assert "Traceback (most recent call last)" in text
    assert "in break_down" in text
    assert re.search(r"^iree-gauntlet \S+, Python 3\.", text)
    return text


@pytest.mark.parametrize("name", sorted(namespace.task_names))
def test_a_fault_inside_of_a_command_is_no_failure(
    name: str, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = namespace[name]
    assert isinstance(task, GauntletTask)
    monkeypatch.setattr(task, "command", break_down)
    words = [name, *("x" for _ in task.positional), *(["--list"] if name == "bench" else []), "-q"]
    done = run_in_process(words, tmp_path, os.environ)
    assert f"$ gauntlet {' '.join(words)}\n" in require_fault(done, kept)


@pytest.mark.parametrize(
    ("package", "words"), [("iree_gauntlet.bench", ["--list"]), ("iree_gauntlet.micro", ["--list"])]
)
def test_a_fault_behind_another_door_is_no_failure(package: str, words: list[str], tmp_path: Path, kept: Path) -> None:
    name = package.rpartition(".")[2]
    with mock.patch.object(torch_commands, name, break_down):
        require_fault(run_in_process(words, tmp_path, os.environ, package=package), kept)


@pytest.mark.parametrize(
    "words", [["run"], ["--list"], ["--help", "run"], ["--complete", "--", "gauntlet run --suite"]]
)
def test_a_fault_before_a_command_begins_is_no_failure(words: list[str], tmp_path: Path, kept: Path) -> None:
    with (
        mock.patch("iree_gauntlet.tasks.program.Program.parse_core", break_down),
        mock.patch("iree_gauntlet.tasks.program.list_option_values", break_down),
    ):
        require_fault(run_in_process(words, tmp_path, os.environ), kept)


def test_ctrl_c_before_a_command_begins_is_an_interruption(tmp_path: Path) -> None:
    with mock.patch("iree_gauntlet.tasks.program.Program.parse_core", side_effect=KeyboardInterrupt):
        done = run_in_process(["run"], tmp_path, os.environ)
    assert (done.code, done.err) == (130, "interrupted\n")


def test_what_a_machine_lacks_is_no_fault_of_the_toolkit(tmp_path: Path, kept: Path) -> None:
    for raised, said in (
        (OSError(28, "No space left on device", "/big/file"), "error: /big/file: No space left on device\n"),
        (MemoryError(), "error: there is not enough memory\n"),
        *(
            (OSError(number, "Denied", "/its/file"), "error: /its/file: Denied\n  Change its owner")
            for number in (13, 30)
        ),
    ):
        with mock.patch.object(namespace["list"], "command", side_effect=raised):
            done = run_in_process(["list"], tmp_path, os.environ)
        assert (done.code, list(kept.iterdir())) == (3, [])
        assert done.err.startswith(said)


def test_where_no_file_can_be_written_the_traceback_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    try:
        break_down()
    except IndexError as error:
        found = faults.make_unexpected_error(error)
    assert found.exit_code is ExitCode.FAULT
    assert "in break_down" in str(found)


def test_a_fault_in_ci_is_an_annotation(tmp_path: Path, kept: Path) -> None:
    with mock.patch.object(namespace["list"], "command", break_down):
        done = run_in_process(["list"], tmp_path, {**os.environ, "GITHUB_ACTIONS": "true"})
    assert done.out.startswith("::error::a fault of IREE Gauntlet itself")
    require_fault(done, kept)


def test_files_for_invoke_s_shell_commands_are_not_read(tmp_path: Path, kept: Path) -> None:
    (tmp_path / ".invoke.yaml").write_text("[")
    (tmp_path / ".invoke.py").write_text("1 / 0")
    done = run_in_process(["list", "--suite", "none"], tmp_path, {**os.environ, "HOME": str(tmp_path)})
    assert done.code == 2, done.text
    assert list(kept.iterdir()) == []


# Of pytest, where what a test raises would be a failure of it.


@pytest.fixture
def suite(tmp_path: Path) -> TorchProject:
    return TorchProject.create_filled(tmp_path)


@pytest.mark.iree
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (plugin.ModelTestPlugin, "__init__"),
        (plugin.ModelTestPlugin, "run_folder"),
        (plugin, "write_reports"),
        (model_test_session.ModelTestSession, "prepare"),
        (model_test_session.ModelTestSession, "check"),
    ],
)
def test_a_fault_behind_pytest_is_no_failure(owner: Any, name: str, suite: TorchProject, kept: Path) -> None:
    with mock.patch.object(owner, name, break_down):
        done = suite.pytest("-k", "quality")
    require_fault(done, kept)


# Standard streams


_CLOSED = (">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2</dev/null", "2>/dev/full", "2>&1 | head -c 1")
_UNWRITABLE = ("1</dev/null", ">/dev/full")
# As the above, several streams at once.
_ALL_CLOSED = ("<&- >&- 2>&-", "1</dev/null 2</dev/null")
_ALL = (*_ALL_CLOSED, ">/dev/full 2>/dev/full", "2>&1 | head -c 1")


@pytest.mark.iree
@pytest.mark.parametrize(
    "streams",
    [
        # `test_cli.py` has a run with a full disk, and one with a reader that goes away.
        *_ALL_CLOSED,
        *(
            pytest.param(one, marks=pytest.mark.stress)
            for one in dict.fromkeys((*_ALL, *_CLOSED, *_UNWRITABLE))
            if one not in _ALL_CLOSED
        ),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_run_has_its_verdict_whatever_its_streams_are(project: Project, streams: str) -> None:
    project.write_expected("abs", [9.0] * 4)
    done = project.shell(f"gauntlet run --stages threshold {streams}")
    assert done.code == 1, done.text
    assert project.journal.end is not None
    assert (project.newest / "junit.xml").is_file()


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        # Shown by a task, and by Invoke, which starts in less time.
        ("list", (">&-",)),
        ("--list", ("2>&-", "<&- >&- 2>&-", "2>/dev/full")),
        *(pytest.param(words, _CLOSED, marks=pytest.mark.stress) for words in ("list", "--list")),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_what_is_shown_goes_where_it_can_or_is_missed(project: Project, words: str, closed: tuple[str, ...]) -> None:
    for streams in closed:
        assert project.shell(f"gauntlet {words} {streams}").code == 0, streams
    for streams, why in zip(_UNWRITABLE, ("Bad file descriptor", "No space left on device"), strict=True):
        done = project.shell(f"gauntlet {words} {streams}")
        assert (done.code, done.err.partition("\n")[0]) == (3, f"error: standard output: {why}")


@pytest.mark.parametrize("package", ["iree_gauntlet.bench", "iree_gauntlet.micro"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_help_of_a_package_that_cannot_be_written_is_an_error(project: Project, package: str) -> None:
    done = project.shell(f"{shlex.quote(sys.executable)} -m {package} --help > /dev/full")
    assert (done.code, done.err.partition("\n")[0]) == (3, "error: standard output: No space left on device")


def test_a_mistake_keeps_its_exit_code_whatever_the_streams_are(project: Project) -> None:
    for streams in ("2>&-", "2</dev/null", *_ALL, "| head -c 0"):
        assert project.shell(f"gauntlet run --nonsense {streams}").code == 2, streams


def test_signs_that_a_stream_has_no_letter_for_are_spelled(project: Project) -> None:
    (project.folder / "specs" / "regression_tests" / "toy").rename(
        project.folder / "specs" / "regression_tests" / "modèle×"
    )
    done = project.shell("PYTHONIOENCODING=ascii gauntlet list")
    assert done.code == 0, done.text
    assert r"mod\xe8le\xd7" in done.out


def test_errors_of_users_have_no_file(tmp_path: Path, kept: Path) -> None:
    with mock.patch.object(namespace["list"], "command", side_effect=GauntletError("what", "hint")):
        done = run_in_process(["list"], tmp_path, os.environ)
    assert (done.code, done.err, list(kept.iterdir())) == (3, "error: what\n  hint\n", [])
