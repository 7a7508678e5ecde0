"""What is wrong with the files of a project beside its specs: suites, settings, and marks of its history."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.dialects.history_marks import MARKS_FILE, read_marks
from iree_gauntlet.engine.workspace import select
from iree_gauntlet.errors import NothingSelectedError, Problem, SpecError, UsageError
from iree_gauntlet.requests import Defaults, SelectionRequest
from iree_gauntlet.settings import project_folder, shown
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path


def problems_of_project() -> tuple[list[Problem], list[Problem]]:
    """What keeps files of the project from being used, and what in them has no effect."""
    project = shown(project_folder())
    problems: list[Problem] = []
    doubtful: list[Problem] = []
    for read in (partial(read_configuration, project, os.environ), partial(read_marks, project / MARKS_FILE)):
        try:
            read()
        except SpecError as error:
            problems += error.problems
    for path in sorted((project / "suites").glob("*.toml")):
        try:
            doubtful += _of_suite(path)
        except SpecError as error:
            problems += error.problems
        except NothingSelectedError as error:
            problems.append(Problem(str(path), 0, "include", "selects nothing", error.what))
        except UsageError as error:
            # Such as folders of specs that are elsewhere.
            doubtful.append(Problem(str(path), 0, "", f"what it selects was not checked: {error.what}", error.hint))
    return problems, doubtful


def _of_suite(path: Path) -> list[Problem]:
    """Entries of a suite that name nothing.

    Raises:
        SpecError, NothingSelectedError, UsageError: it cannot be used.
    """
    found = select(SelectionRequest(suite=str(path)), Defaults(targets=FAMILIES), for_problems=True).cases
    own = [problem for problem in found.problems if problem.file == str(path)]
    if own:
        raise SpecError(own)
    return [problem for problem in (*found.warnings, *found.unmatched) if problem.file == str(path)]
