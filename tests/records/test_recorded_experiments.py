"""Records of another machine: they are reported and resumed; a message rejects records that are too old."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.micro_project import Micro
from tests.support.record_samples import SAMPLES_FOLDER, find_placeholders
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.iree


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    yield project
    project.close()


def recorded(name: str, folder: Path, keep: Sequence[str] = (), *, module: str = "") -> Path:
    """What was recorded under a name, in the runs of a project.

    Args:
        name: of the record's folder.
        folder: of the project.
        keep: the file in which a record was cut short, and a text: what begins with the first line that has it is gone.
        module: key of the toy's module that is in the records; empty for that of this machine's IREE and CPU.
    """
    placeholders = find_placeholders(folder, module=module)
    target = folder / "runs" / name
    for path in (SAMPLES_FOLDER / name).rglob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        relative = path.relative_to(SAMPLES_FOLDER / name)
        if keep and str(relative) == keep[0]:
            cut = next(number for number, line in enumerate(lines) if keep[1] in line)
            lines = lines[:cut]
        text = "".join(lines)
        for placeholder, value in placeholders.items():
            text = text.replace(placeholder, value)
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        (target / relative).write_text(text)
    return target


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("run", 0, "toy/abs@cpu"),
        ("compare", 4, "toy/abs@cpu inconclusive"),
        ("matrix", 0, "venv:env"),
        ("bisect", 1, "nothing to look for: both ends give the same (10,564 bytes)"),
        ("micro", 0, "8-64-128"),
    ],
)
def test_it_is_reported(project: Project, name: str, code: int, said: str) -> None:
    recorded(name, project.folder)
    done = project.gauntlet("report", name)
    assert done.code == code, done.text
    assert said in done.out


def test_a_run_is_resumed(project: Project) -> None:
    recorded("run", project.folder, ("journal.jsonl", '"event":"start"'))
    done = project.gauntlet("run", "--resume")
    assert done.code == 0, done.text
    assert len(project.journal.results) == 5


def test_a_matrix_is_resumed(project: Project) -> None:
    folder = recorded("matrix", project.folder, ("journal.jsonl", '"event":"end"'))
    shutil.rmtree(folder / "venv-env")
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    second = next(number for number, line in enumerate(lines) if '"event":"start",' in line and "venv:env" in line)
    (folder / "journal.jsonl").write_text("".join(lines[:second]))
    done = project.gauntlet("matrix", "--resume")
    assert done.code == 0, done.text
    assert "finished earlier with exit code 0: not run again" in done.out


def test_a_comparison_is_resumed(project: Project) -> None:
    folder = recorded("compare", project.folder, ("journal.jsonl", '"event":"result"'))
    before = sum('"event":"block"' in line for line in (folder / "journal.jsonl").read_text().splitlines())
    done = project.gauntlet("compare", "--resume", "--budget", "0.0001")
    assert done.code == 4, done.text
    record = json.loads((folder / "comparison.json").read_text())
    assert record["options"]["disturbed"] == "count"
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    (result,) = [event for event in events if event["event"] == "result"]
    assert sum(event["event"] == "block" for event in events) >= before > 0
    assert result["step"] == "toy/abs@cpu"
    assert result["times"]["verdict"] == "inconclusive"


def test_a_comparison_whose_module_is_of_another_cpu_is_not_resumed(project: Project) -> None:
    recorded("compare", project.folder, ("journal.jsonl", '"event":"result"'), module="0" * 64)
    done = project.gauntlet("compare", "--resume", "--budget", "0.0001")
    assert done.code == 3, done.text
    assert "its module is not the one that was measured so far; start a new comparison" in done.out


def test_a_bisection_is_resumed(project: Project) -> None:
    recorded("bisect", project.folder, ("journal.jsonl", '"step":"env"'))
    done = project.gauntlet("bisect", "--resume")
    # How large this machine's module is, and whether `path` names an IREE, decides how it ends.
    assert done.code in (0, 1, 4), done.text
    assert "installed (good end): 10,564 bytes" in done.out
    assert "installed (good end) …" not in done.out
    assert "env (bad end) …" in done.out


@pytest.mark.stress
def test_a_sweep_is_resumed(tmp_path: Path) -> None:
    micro = Micro(tmp_path / "project")
    shutil.copy(SAMPLES_FOLDER / "micro" / "lin.yml", micro.folder / "lin.yml")
    recorded("micro", micro.folder, ("journal.jsonl", "lin/8-64-128@cpu:export"))
    done = micro.gauntlet("micro", "--resume", "--torch-python", str(micro.torch_python))
    assert done.code == 0, done.text
    assert "point 1 of 2" not in done.out
    assert "point 2 of 2: lin/8-64-128" in done.out


@pytest.mark.parametrize("name", ["comparison", "matrix", "bisect", "explain"])
def test_a_record_of_an_earlier_version_is_told(project: Project, name: str) -> None:
    folder = project.folder / "runs" / "old"
    folder.mkdir(parents=True)
    (folder / f"{name}.jsonl").write_text(f'{{"event":"{name}"}}\n')
    says = f"old/{name}.jsonl: was written by an earlier version, whose records this version cannot read"
    for words in (
        ["report", "old"],
        ["compare", "--resume", "--run-dir", "runs/old"],
        ["history.add", "old"],
        ["explain", "--slower", "old"],
    ):
        done = project.gauntlet(*words)
        assert (done.code, says in done.err) == (3, True), done.text
        assert "Use that version to report on it or to resume it, or start again." in done.err
    assert project.gauntlet("run", "--run-dir", "runs/old").code == 2


def test_a_journal_of_an_earlier_version_is_told(project: Project) -> None:
    folder = project.folder / "runs" / "old"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text('{"event":"run","time":"2026-11-23T04:34:21.432Z","steps":[]}\n')
    for words in (["report"], ["run", "--resume"], ["history.add"], ["run", "--last-failed"]):
        done = project.gauntlet(*words, *(["latest"] if words == ["report"] else []))
        assert done.code == 3, done.text
        assert "old/journal.jsonl: was written by an earlier version" in done.err


@pytest.mark.parametrize("name", ["compare", "matrix", "bisect"])
def test_what_is_of_another_kind_is_told_with_the_command(project: Project, name: str) -> None:
    recorded(name, project.folder)
    noun = {"compare": "comparison", "bisect": "bisection"}.get(name, name)
    folder = f"runs/{name}"
    other = "matrix" if name == "compare" else "compare"
    for words in (["run"], [other]):
        done = project.gauntlet(*words, "--resume", "--run-dir", folder)
        assert done.code == 2, done.text
        assert f"{folder} is a {noun}" in done.err
        assert f"`gauntlet {name} --resume --run-dir" in done.err
    done = project.gauntlet("history.add", name)
    assert (done.code, f"it is a {noun}, not a run; it has" in done.err) == (2, True), done.text
    done = project.gauntlet("explain", name)
    assert (done.code, f"it is a {noun}, not a run" in done.err) == (2, True), done.text
    # It is the newest that was recorded, and no run.
    assert project.gauntlet("report", "latest").code in (0, 1, 4)
    done = project.gauntlet("run", "--last-failed")
    assert (done.code, "no run of spec files in" in done.err) == (2, True), done.text
