"""Runs that end at any moment and are resumed: no tool survives, and only the remaining steps run."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from iree_gauntlet.errors import UsageError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.records.run_folder import find_finished_verdicts
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import HANG, make_hang_command
from tests.support.processes import find_processes, wait_until
from tests.support.session_folder import make_once
from tests.support.toy_project import FLAGS, TOOLS, Project

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.iree

_COMPILE = "toy/abs@cpu:compile"


def _with_onnx(project: Project) -> Project:
    """`toy/abs` as an ONNX model, so that every stage has a process."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "abs", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, project.regressions / "abs.onnx")
    project.regression(mlir="abs.onnx", onnx_import={})
    return project


def _import_alone(folder: Path) -> None:
    """Makes a project whose cache holds the import of that model, and not its compile."""
    project = _with_onnx(Project(folder / "project", cache="flags"))
    done = project.gauntlet("compile", compile=project.write_tool("exit 1"))
    assert done.code == 1, done.text


@pytest.fixture
def onnx_project(tmp_path: Path) -> Iterator[Project]:
    made = _with_onnx(Project(tmp_path / "project", cache="flags"))
    yield made
    made.close()


def _cut_journal(project: Project, *texts: str) -> None:
    """Leaves the newest run as if it had been killed before the last line of its journal that has all of some texts."""
    path = project.newest / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    cut = max(number for number, line in enumerate(lines) if all(text in line for text in texts))
    path.write_text("".join(lines[:cut]))


def _errors(project: Project) -> set[str]:
    """Stages that are errors in the JUnit file."""
    cases = ET.parse(project.newest / "junit.xml").getroot().iter("testcase")
    return {str(case.get("name")) for case in cases if case.find("error") is not None}


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("compile", signal.SIGKILL),
        ("threshold", signal.SIGINT),
        *(pytest.param(stage, signal.SIGKILL, marks=pytest.mark.stress) for stage in TOOLS if stage != "compile"),
        *(pytest.param(stage, signal.SIGINT, marks=pytest.mark.stress) for stage in TOOLS if stage != "threshold"),
        pytest.param("compile", signal.SIGTERM, marks=pytest.mark.stress),
    ],
)
def test_ended_while_a_tool_works(onnx_project: Project, stage: str, number: signal.Signals) -> None:
    project = onnx_project
    if stage != "import":
        imported = make_once("onnx-project", _import_alone) / "project" / "cache" / "modules"
        shutil.copytree(imported, project.folder / "cache" / "modules")
    run = project.start("run", **project.write_logging_tools(slow_stage=stage))
    wait_until(lambda: stage in project.calls)
    run.send_signal(number)
    code = run.wait(LIMIT_SECONDS)
    wait_until(lambda: not find_processes(str(project.folder)))
    before = project.journal
    done = [call for call in project.calls if f"toy/abs@cpu:{call}" in before.results]
    assert f"toy/abs@cpu:{stage}" not in before.results
    if number is signal.SIGKILL:
        assert before.end is None
        report = project.gauntlet("report", "latest")
        assert report.code == 3
        assert _errors(project) == {step["stage"] for step in before.steps if step["id"] not in before.results}
    else:
        assert code == 130
        assert before.end is not None
        assert before.end.interrupted
        assert (project.newest / "junit.xml").is_file()
        assert json.loads((project.newest / "summary.json").read_text())["exit_code"] == 130
    (project.folder / "calls.txt").unlink()

    resumed = project.gauntlet("run", "--resume", **project.write_logging_tools())
    assert resumed.code == 0, resumed.text
    assert stage in project.calls
    assert not set(project.calls) & set(done), "what was done is not done again"
    after = project.journal
    assert after.end is not None
    assert {result.verdict for result in after.results.values()} == {"passed"}
    assert set(after.results) == {step["id"] for step in after.steps}
    if number is signal.SIGKILL:
        assert {step: after.results[step] for step in before.results} == before.results
    assert _errors(project) == set()
    assert json.loads((project.newest / "summary.json").read_text())["exit_code"] == 0
    assert len([path for path in (project.folder / "runs").iterdir() if path.is_dir()]) == 1


def test_killed_after_any_step_and_continued(project: Project) -> None:
    """A killed run leaves its journal up to some line, and no other file matters."""
    assert project.gauntlet("run").code == 0
    path = project.newest / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    done = [number for number, line in enumerate(lines) if '"event":"result"' in line]
    assert len(done) == 5
    for results, cut in enumerate(done):
        path.write_text("".join(lines[:cut]))
        before = project.journal
        assert (len(before.results), len(before.steps)) == (results, 5)
        assert project.gauntlet("report", "latest").code == 3
        assert len(_errors(project)) == 5 - results
        resumed = project.gauntlet("run", "--resume")
        assert resumed.code == 0, resumed.text
        assert "--resume" not in json.loads((project.newest / "summary.json").read_text())["command"], "what began it"
        after = project.journal
        assert set(after.results) == {step["id"] for step in after.steps}
        assert {step: after.results[step] for step in before.results} == before.results
        assert len([path for path in (project.folder / "runs").iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize("kept", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_killed_while_a_module_is_half_written(project: Project, *, kept: bool) -> None:
    """Nothing half-written is ever used, whether the module is made for the first time or once more."""
    if not kept:
        shutil.rmtree(project.folder / "cache" / "modules")
    half = project.folder / "half-written"
    real = find_installed().compiler.compile
    script = f'for last; do :; done; "{real}" "$@" && truncate -s -100 "$last"; touch "{half}"\n({HANG})'
    run = project.start("compile", "--force-recompile", compile=project.write_tool(script))
    wait_until(half.exists)
    run.kill()
    run.wait()
    wait_until(lambda: not find_processes(str(project.folder)))
    # A half module would not run.
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 0, done.text
    assert f"compiles: {int(kept)} from cache, {int(not kept)} made" in done.out
    assert "compiles: 1 from cache, 0 made" in project.gauntlet("compile").out


@pytest.mark.stress
def test_a_killed_run_leaves_no_process(project: Project) -> None:
    hang = make_hang_command()
    run = project.start("run", "--force-recompile", compile=project.write_tool(f"{hang} & {hang}"))
    wait_until(lambda: len(find_processes(hang)) >= 2)
    run.kill()
    run.wait()
    wait_until(lambda: not find_processes(hang))


def test_a_second_interrupt_does_not_wait_for_a_stubborn_tool(project: Project) -> None:
    tools = project.write_logging_tools()
    calls = shlex.quote(f"{project.folder}/calls.txt")
    script = f"ask() {{ echo asked >> {calls}; }}\ntrap ask TERM\necho compile >> {calls}\n"
    # A shell that waits for what is behind it meets a signal at once.
    (project.folder / "compile.sh").write_text(f"#!/bin/sh\n{script}while :; do ({HANG}) & wait; done\n")
    run = project.start("run", "--force-recompile", **tools)
    wait_until(lambda: "compile" in project.calls)
    run.send_signal(signal.SIGINT)
    wait_until(lambda: "asked" in project.calls or run.poll() is not None)
    run.send_signal(signal.SIGINT)
    assert run.wait(LIMIT_SECONDS) == 130
    wait_until(lambda: not find_processes(str(project.folder / "compile.sh")))


def test_a_torn_journal_is_continued(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "compile").code == 0
    journal = project.newest / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    report = project.gauntlet("report", "latest")
    assert report.code == 3
    assert "truncated" in (project.newest / "summary.md").read_text()
    refused = project.gauntlet("run", "--resume", identity="0" * 64)
    assert refused.code == 2
    assert "another IREE" in refused.err
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
    tools = project.write_logging_tools()
    assert project.gauntlet("run", **tools).code == 0
    before = project.calls
    assert "threshold" in before
    assert project.gauntlet("run", "--resume", **tools).code == 0
    assert project.calls == before


def test_resume_of_a_run_without_figures_of_code_runs_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "capstone", None)
    project.forget_modules()
    assert project.gauntlet("run", "--stages", "compile").code == 0
    assert not list(project.newest.rglob("code.json"))
    compiles = (project.newest / "journal.jsonl").read_text().count('"event":"start"')
    assert project.gauntlet("run", "--resume").code == 0
    assert (project.newest / "journal.jsonl").read_text().count('"event":"start"') == compiles


def test_whatever_a_later_step_reads_is_made_again_where_it_is_gone(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    (compiled,) = (step for step in project.journal.planned if step.id == _COMPILE)
    made = dict(compiled.outputs)
    assert {"module", "statistics", "splat"} <= made.keys()
    for path in map(Path, made.values()):
        path.unlink()
        assert project.gauntlet("run", "--resume").code == 0
        assert path.is_file()


def test_another_runtime_is_another_iree(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    record = project.journal
    before = record.run.toolchain
    assert before.runtime_identity
    assert len(find_finished_verdicts(record, record.planned, before)) == len(record.planned)
    with pytest.raises(UsageError, match=r"another runtime \("):
        find_finished_verdicts(record, record.planned, replace(before, runtime_identity="0" * 64))


def test_a_step_whose_plan_changed_is_done_again(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    project.regression(threshold_args=["--expected_f32_threshold=0.5"])
    for killed in (True, False):
        assert project.gauntlet("run", "--resume").code == 0
        if killed:
            _cut_journal(project, '"event":"start"')
    journal = project.journal
    assert "--expected_f32_threshold=0.5" in journal.results["toy/abs@cpu:threshold"].command
    lines = (project.newest / "journal.jsonl").read_text().splitlines()
    compiles = [line for line in lines if '"event":"result"' in line and f'"step":"{_COMPILE}"' in line]
    assert len(compiles) == 1


@pytest.mark.parametrize(
    ("file", "again", "known"),
    [
        ("abs.mlir", ["fetch", "compile", "compstat", "threshold", "benchmark"], False),
        pytest.param(
            *("abs.mlir", ["fetch", "compile", "compstat", "threshold", "benchmark"], True), marks=pytest.mark.stress
        ),
        ("abs.npy", ["fetch", "threshold"], True),
        ("x.npy", ["fetch", "threshold"], False),
    ],
)
def test_what_was_made_from_a_file_that_has_changed_is_done_again(
    project: Project, file: str, again: list[str], *, known: bool
) -> None:
    np.save(project.regressions / "x.npy", np.ones(4, np.float32))
    project.write_expected("abs", [1.0] * 4)
    project.regression(inputs=[{"source": "x.npy"}])
    assert project.gauntlet("run").code == 0
    if known:
        # Planned once more, with the hashes of all files.
        assert project.gauntlet("run", "--resume").code == 0
    before = len((project.newest / "journal.jsonl").read_text().splitlines())
    path = project.regressions / file
    if path.suffix == ".npy":
        np.save(path, np.full(4, 2.0, np.float32))
    else:
        path.write_text(path.read_text().replace("math.absf", "arith.negf"))
    assert project.gauntlet("run", "--resume").code == 1, "it does not give what is expected any more"
    events = [json.loads(line) for line in (project.newest / "journal.jsonl").read_text().splitlines()[before:]]
    done = [event["step"].partition("@cpu:")[2] for event in events if event["event"] == "result"]
    assert sorted(done) == sorted(again)
    assert project.verdict("toy/abs@cpu:threshold") == "failed"
    results = project.journal.results
    read_by = "compile" if file == "abs.mlir" else "threshold"
    changed = f"repeated: specs/regression_tests/toy/{file} has changed since the run started"
    assert changed in results[f"toy/abs@cpu:{read_by}"].notes
    if read_by == "compile":
        assert f"repeated, because {_COMPILE} is" in results["toy/abs@cpu:benchmark"].notes
    before = len((project.newest / "journal.jsonl").read_text().splitlines())
    assert project.gauntlet("run", "--resume").code == 1
    added = (project.newest / "journal.jsonl").read_text().splitlines()[before:]
    assert not [line for line in added if '"event":"result"' in line], "once"


def test_what_needs_a_module_whose_flags_have_changed_is_done_again(project: Project) -> None:
    tools = project.write_logging_tools()
    assert project.gauntlet("run", **tools).code == 0
    (project.folder / "calls.txt").unlink()
    project.regression(compiler_flags=[*FLAGS, "--iree-opt-level=O1"])
    assert project.gauntlet("run", "--resume", **tools).code == 0
    assert {"compile", "threshold", "benchmark"} <= set(project.calls)
    (project.folder / "calls.txt").unlink()
    _cut_journal(project, '"event":"start"', ":threshold")
    assert project.gauntlet("run", "--resume", **tools).code == 0
    assert {"threshold", "benchmark"} <= set(project.calls), "though the compile is not done a third time"
    assert "compile" not in project.calls


def test_a_resumed_run_keeps_its_selection(project: Project) -> None:
    project.add("b")
    project.write_expected("b", [9.0] * 4)
    selection = ("--stages", "threshold")
    assert project.gauntlet("run", "--submodel", "b", *selection).code == 1
    other = project.gauntlet("run", "--resume", "--submodel", "abs")
    assert other.code == 2
    assert "--submodel" in other.err
    assert project.gauntlet("run", "--resume").code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}


@pytest.mark.parametrize("words", [("run", "--stages", "compile"), ("compile",)])
def test_a_resumed_run_is_not_narrowed_down_to_what_passes(project: Project, words: tuple[str, ...]) -> None:
    project.write_expected("abs", [9.0] * 4)
    assert project.gauntlet("run").code == 1
    junit = (project.newest / "junit.xml").read_bytes()
    narrowed = project.gauntlet(*words, "--resume")
    assert narrowed.code == 2, narrowed.text
    assert f"compile alone: runs/{project.newest.name} was started without --stages" in narrowed.err
    assert (project.newest / "junit.xml").read_bytes() == junit
    assert project.gauntlet("run", "--resume").code == 1
    # What it was begun for may be said again.
    assert project.gauntlet("compile").code == 0
    assert project.gauntlet(*words, "--resume").code == 0


def test_a_failure_is_not_lost_with_its_spec(project: Project) -> None:
    project.add("b")
    project.add("c")
    project.write_expected("abs", [9.0] * 4)
    project.regression("c", threshold_args=["--expected_f32_threshold=1e-3"], run_function="gone")
    selection = ("--stages", "threshold")
    assert project.gauntlet("run", *selection).code == 3
    for name in ("abs", "c"):
        (project.regressions / f"{name}_cpu.json").unlink()
    for _ in range(2):
        done = project.gauntlet("run", "--resume")
        assert done.code == 3, done.text
        assert "1 failed, 1 error, 7 passed" in done.out
        assert ": 0 steps, IREE" in done.out, "nothing of it is done again"
        kept = "results of 6 steps that are no longer selected or are gone still count: toy/abs@cpu:fetch…"
        assert done.out.count(kept) == 2, "when it begins, and in its report"
        assert _errors(project) == {"threshold"}
        verdicts = {name: project.verdict(f"toy/{name}@cpu:threshold") for name in ("abs", "b", "c")}
        assert verdicts == {"abs": "failed", "b": "passed", "c": "error"}
        summary = json.loads((project.newest / "summary.json").read_text())
        assert (summary["exit_code"], summary["counts"]["failed"], summary["counts"]["error"]) == (3, 1, 1)
        assert project.gauntlet("report", "latest").code == 3


def test_a_resumed_run_keeps_how_it_was_to_compile_and_for_how_long(project: Project) -> None:
    project.add("b")
    stages = ("--stages", "compile", "--jobs", "1")
    assert project.gauntlet("run", *stages).code == 0
    run = project.gauntlet("run", *stages, "--force-recompile", "--timeout-compile", "77", "--run-dir", "cut")
    assert run.code == 0, run.text
    # Killed after the first compile: the second one is what is left to do.
    path = project.folder / "cut" / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    compiled = [number for number, line in enumerate(lines) if '"event":"result"' in line and ':compile"' in line]
    path.write_text("".join(lines[: compiled[0] + 1]))
    again = project.folder / "cut" / "made-again"
    first, second = sorted(again.iterdir(), key=lambda note: note.stat().st_mtime_ns)
    second.unlink()
    tools = project.write_logging_tools()

    resumed = project.gauntlet("run", "--resume", "--run-dir", "cut", **tools)
    assert resumed.code == 0, resumed.text
    assert project.calls == ["compile"], "what was made again is not made again, what was not is"
    record = read_journal(path)
    assert {record.results[step].reason for step in record.results if step.endswith(":compile")} == {""}
    assert {step["timeout"] for step in record.steps if step["stage"] == "compile"} == {77.0}
    assert {first.name, second.name} == {note.name for note in again.iterdir()}

    longer = project.gauntlet("run", "--resume", "--run-dir", "cut", "--timeout-compile", "88")
    assert longer.code == 0, longer.text
    assert {step["timeout"] for step in read_journal(path).steps if step["stage"] == "compile"} == {88.0}


def test_files_that_are_gone_are_fetched_again(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    assert project.gauntlet("run", "--stages", "threshold").code == 1
    shutil.rmtree(project.folder / "cache" / "artifacts")
    project.regression(threshold_args=["--expected_f32_threshold=20"])
    assert project.gauntlet("run", "--resume").code == 0


def test_there_is_nothing_to_resume(project: Project) -> None:
    done = project.gauntlet("run", "--resume")
    assert done.code == 2
    assert "no run" in done.err


def test_only_what_failed(project: Project) -> None:
    project.add("b")
    project.write_expected("b", [9.0] * 4)
    assert project.gauntlet("run").code == 1
    project.write_expected("b", [1.0] * 4)
    again = project.gauntlet("run", "--last-failed")
    assert again.code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}
    assert project.gauntlet("run", "--resume").code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}, "a resumed run keeps to what failed"
    assert project.gauntlet("run", "--resume").code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}, "however often it is resumed"
    project.add("b")
    assert project.gauntlet("run", "--last-failed").code == 0
    assert project.gauntlet("run", "--last-failed").code == 5


def test_fail_fast_stops(project: Project) -> None:
    (project.regressions / "abs.mlir").write_text("no program\n")
    for name in ("b", "c"):
        project.add(name)
    done = project.gauntlet("run", "--fail-fast", "--jobs", "1")
    assert done.code == 1
    reasons = [result.reason for result in project.journal.results.values() if result.verdict == "skipped"]
    assert any("--fail-fast" in reason for reason in reasons)
    assert project.verdict("toy/c@cpu:benchmark") == "skipped"
