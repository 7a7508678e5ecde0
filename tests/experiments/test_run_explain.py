"""`run --explain`: the command also explains failures, and the run's own result stays the same."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import HANG
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_RUN = ("run", "--model", "toy", "--stages", "threshold", "--explain")


def test_what_failed_is_explained_behind_the_run(project: Project) -> None:
    project.add("broken", '"tosa.nonsense"(%a) : (tensor<4xf32>) -> tensor<4xf32')
    project.write_expected("abs", [9.0] * 4)
    project.regression("abs", run_test_expecting_to_fail=True)
    done = project.gauntlet(*_RUN)
    # 1 is the run's; the explanation alone, which has a bundle, would end with 0.
    assert done.code == 1, done.text
    run, explanation = done.out.split(f"Explanation of {project.newest.name}")
    assert "exit code 1" in run
    assert "the program cannot be reduced: it does not parse" in explanation
    found = json.loads((project.newest / "explain" / "explain.json").read_text())
    assert [case["case"] for case in found["cases"]] == ["toy/broken@cpu"], "what should fail is left out"
    # The run's reports were made again, and say it too.
    steps = [
        step for chain in json.loads((project.newest / "summary.json").read_text())["chains"] for step in chain["steps"]
    ]
    answers = {step["id"]: step["explanation"]["answer"] for step in steps if step["explanation"]}
    assert answers == {"toy/broken@cpu:compile": found["cases"][0]["answer"]}


@pytest.mark.parametrize("words", [("run", "--stages", "threshold"), ("threshold",), ("compile",)])
def test_where_nothing_failed_nothing_is_said(project: Project, words: tuple[str, ...]) -> None:
    done = project.gauntlet(*words, "--model", "toy", "--explain")
    assert done.code == 0, done.text
    assert "xplain" not in done.text
    assert not (project.newest / "explain").exists()


def test_what_cannot_be_explained_changes_nothing(project: Project) -> None:
    project.benchmark("abs", benchmark_flags=["--no_such_flag"])
    done = project.gauntlet("run", "--model", "toy", "--stages", "benchmark", "--explain")
    assert (done.code != 0, "xplain" in done.text) == (True, False), done.text


def test_interrupted_while_it_explains_the_runs_reports_are_whole(project: Project, tmp_path: Path) -> None:
    project.write_expected("abs", [9.0] * 4)
    records, reached = f'"{project.folder}"/runs/*/explain/journal.jsonl', tmp_path / "reached"
    real = find_installed().runtime.run_module
    script = f'if ls {records} >/dev/null 2>&1; then touch "{reached}"; {HANG}; fi\nexec "{real}" "$@"\n'
    process = project.start(*_RUN, run_module=project.write_tool(script))
    wait_until(reached.exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_SECONDS) == 130
    run = project.newest
    assert json.loads((run / "summary.json").read_text())["exit_code"] == 1
    assert (run / "junit.xml").read_text().endswith("</testsuites>\n")
    assert json.loads((run / "explain" / "explain.json").read_text())["exit_code"] == 130
