"""Steps that are repeated, what comes of flaky ones, and quarantines."""

from __future__ import annotations

import json
import random
import shlex
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.support.toy_project import Project

_STEP = "toy/abs@cpu:threshold"
_CRASH = "kill -SEGV $$"
_WRONG = 'echo "[FAILED] result[0]: element at index 0 (1) does not match the expected (2)"; exit 1'


def write_runner(project: Project, bad: Collection[int], action: str = _CRASH) -> dict[str, str]:
    """Write an iree-run-module that does something else in some of its starts that compare outputs, from 1."""
    count = shlex.quote(str(project.folder / "starts"))
    cases = f"{'|'.join(map(str, bad)) or 'none'}) {action} ;;"
    script = f"""case "$*" in *--expected_output=*)
echo >> {count}
case $(($(wc -l < {count}))) in {cases} esac ;; esac
exec {shlex.quote(find_installed().runtime.run_module)} "$@\""""
    return {"run_module": project.write_tool(script)}


def read_case(project: Project) -> ET.Element:
    cases = ET.parse(project.newest / "junit.xml").getroot().iter("testcase")
    return next(case for case in cases if case.get("name") == "threshold")


def test_a_program_that_crashes_the_first_time_only_is_flaky(project: Project) -> None:
    done = project.gauntlet("run", "--stages", "threshold", "--rerun-failed", "2", **write_runner(project, {1}))
    print(done.text)
    assert (done.code, project.verdict(_STEP)) == (1, "flaky"), print(done.text)
    print(done.text)
    result = project.journal.results[_STEP]
    assert [str(attempt.verdict) for attempt in result.attempts] == ["error", "passed"]
    print(ET.tostring(read_case(project)).decode())
    assert 0
