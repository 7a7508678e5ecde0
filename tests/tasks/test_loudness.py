"""The options `--quiet` and `--verbose`: every task has both."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet import messages
from iree_gauntlet.document import Details, Document, Heading, Items, Table
from iree_gauntlet.formatting import Column
from iree_gauntlet.tasks.program import namespace

if TYPE_CHECKING:
    from tests.support.toy_project import Project


def test_every_task_takes_both() -> None:
    for name in namespace.task_names:
        assert {"quiet", "verbose"} <= {option.name for option in namespace[name].options}, name


@pytest.mark.iree
def test_a_quiet_run_that_is_as_expected_says_its_result_alone(project: Project) -> None:
    done = project.gauntlet("run", "--stages", "compile", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "1 case: 1 passed",
        f"reports in runs/{project.newest.name}: junit.xml, summary.md, summary.html, summary.json",
        "exit code 0: all as expected",
    ]


@pytest.mark.iree
def test_a_quiet_run_hides_no_failure(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    done = project.gauntlet("run", "--stages", "threshold", "-q")
    assert done.code == 1
    assert "4 of 4 differ (100.0 %)" in done.out
    assert "[1/" not in done.out


@pytest.mark.iree
def test_a_quiet_command_has_its_result_and_no_notes(project: Project) -> None:
    project.suite('[[expected_failure]]\ncase = "toy/abs@cpu"\nstage = "threshold"\nreason = "known"\n')
    loud, quiet = (project.gauntlet("plan", "--model", "toy", *words) for words in ((), ("-q",)))
    assert loud.out == quiet.out
    assert "note: " in loud.err
    assert quiet.err == ""


@pytest.mark.iree
def test_a_verbose_run_shows_how_each_step_came_to_its_result(project: Project) -> None:
    done = project.gauntlet("run", "--stages", "threshold", "--verbose")
    assert done.code == 0
    lines = done.out.splitlines()
    place = next(number for number, line in enumerate(lines) if "abs@cpu threshold" in line)
    assert "iree-run-module" in lines[place + 1]
    assert lines[place + 1].startswith("    $ cd ")
    assert any(line.startswith("    cache: ") for line in lines)
    assert "Environment" in lines


def test_verbose_names_the_programs_that_are_asked(project: Project) -> None:
    # In processes of their own: what a tool has answered is remembered for the rest of one.
    said = [project.gauntlet_process("devices", *words).err for words in (("--verbose",), ())]
    assert ["iree-run-module --list_drivers" in text for text in said] == [True, False]


def test_warnings_are_always_said_and_notes_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, verbose in ((True, False), (False, False), (False, True)):
        with messages.set_verbosity(quiet=quiet, verbose=verbose):
            messages.warn("w")
            messages.note("n")
            messages.report_progress("i")
            messages.print_detail("d")
    assert capsys.readouterr().err.split("warning: w\n") == ["", "", "note: n\ni\n", "note: n\ni\nd\n"]


def test_what_was_said_before_is_said_again() -> None:
    with pytest.raises(KeyError), messages.set_verbosity(quiet=True, verbose=False):
        raise KeyError
    assert not messages.is_quiet()
    assert not messages.is_verbose()
    assert logging.getLogger("iree_gauntlet.messages").level == logging.INFO


def test_a_whole_document_has_every_row_and_nothing_folded() -> None:
    rows = (("a",), ("b",))
    table = Table((Column("x"),), rows, most=1)
    document = Document("t", "fine", ("fact",), (table,), (Details("more", (Items((("i",),), most=1),)),))
    assert document.unfolded_document.blocks == (Table((Column("x"),), rows), Heading("more"), Items((("i",),)))
    assert document.unfolded_document.details == ()
    assert document.answer_only == Document("", "fine", (), ())
