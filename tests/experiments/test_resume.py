"""Runs that end while a tool of any stage works: no tool is left, and a resumed run does what is left and no more."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.processes import running, wait_until
from tests.support.toy_project import TOOLS, Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.iree


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """`toy/abs` as an ONNX model, so that every stage has a process."""
    made = Project(tmp_path)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "abs", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, made.regressions / "abs.onnx")
    made.regression(mlir="abs.onnx", onnx_import={})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("stage", "number"),
    [*((stage, number) for stage in TOOLS for number in (signal.SIGKILL, signal.SIGINT)), ("compile", signal.SIGTERM)],
)
def test_ended_while_a_tool_works(project: Project, stage: str, number: signal.Signals) -> None:
    run = project.start("run", **project.telling_tools(slow=stage))
    wait_until(lambda: stage in project.calls)
    run.send_signal(number)
    code = run.wait(30)
    wait_until(lambda: not running(str(project.folder)))
    before = project.journal
    done = [call for call in project.calls if f"toy/abs@cpu:{call}" in before.results]
    assert f"toy/abs@cpu:{stage}" not in before.results
    if number is signal.SIGKILL:
        assert before.end is None
        report = project.gauntlet("report", "latest")
        assert report.code == 3
        cases = {case.get("name"): case for case in ET.parse(project.newest / "junit.xml").getroot().iter("testcase")}
        assert cases[stage].find("error") is not None
        assert all(cases[name].find("error") is None for name in done)
    else:
        assert code == 130
        assert before.end is not None
        assert before.end["interrupted"]
        assert json.loads((project.newest / "summary.json").read_text())["exit_code"] == 130
    (project.folder / "calls.txt").unlink()

    resumed = project.gauntlet("run", "--resume", **project.telling_tools())
    assert resumed.code == 0, resumed.text
    assert stage in project.calls
    assert not set(project.calls) & set(done), "what was done is not done again"
    after = project.journal
    assert after.end is not None
    assert {result["verdict"] for result in after.results.values()} == {"passed"}
    assert set(after.results) == {step["id"] for step in after.steps}
    cases = {case.get("name"): case for case in ET.parse(project.newest / "junit.xml").getroot().iter("testcase")}
    assert all(not list(case.iter("error")) for case in cases.values())
    assert json.loads((project.newest / "summary.json").read_text())["exit_code"] == 0


def test_a_second_interrupt_does_not_wait_for_a_stubborn_tool(project: Project) -> None:
    tools = project.telling_tools()
    (project.folder / "compile.sh").write_text(
        f"#!/bin/sh\ntrap '' TERM INT\necho compile >> {project.folder}/calls.txt\nwhile :; do sleep 0.1; done\n"
    )
    run = project.start("run", **tools)
    wait_until(lambda: "compile" in project.calls)
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGINT)
    assert run.wait(30) == 130
    assert not running(str(project.folder / "compile.sh"))


def test_a_torn_journal_is_continued(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "compile").code == 0
    journal = project.newest / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    report = project.gauntlet("report", "latest")
    assert report.code == 3
    assert "cut short" in (project.newest / "summary.md").read_text()
    assert project.gauntlet("run", "--resume").code == 0
    assert project.journal.torn


def test_a_journal_that_was_tampered_with_is_refused(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "fetch").code == 0
    journal = project.newest / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"not a line\n", *lines[1:]]))
    for words in (["run", "--resume"], ["run", "--last-failed"], ["report", "latest"]):
        done = project.gauntlet(*words)
        assert done.code == 3
        assert "journal.jsonl:2" in done.err


def test_resume_of_a_finished_run_runs_nothing(project: Project) -> None:
    tools = project.telling_tools()
    assert project.gauntlet("run", **tools).code == 0
    (project.folder / "calls.txt").unlink()
    assert project.gauntlet("run", "--resume", **tools).code == 0
    assert project.calls == []
