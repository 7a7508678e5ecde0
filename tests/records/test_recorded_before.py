"""What an earlier version recorded is reported, and resumed where it was cut short."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.toolchains.devices import read_host_cpu
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.micro_project import Micro
from tests.support.places import ROOT
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RECORDED = ROOT / "tests" / "data" / "recorded"
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
    installed = find_installed()
    entries = ModuleCache(folder / "cache").list_entries()
    compiled = (entry.key for entry in entries if entry.ingredients["kind"] == "compile")
    fill = {
        "@PROJECT@": str(folder),
        "@SITE@": str(Path(installed.compiler.compile).parents[3]),
        "@PREFIX@": sys.prefix,
        "@TOOLKIT@": str(ROOT),
        "@IDENTITY@": installed.compiler.identity,
        "@HOST@": read_host_cpu().identity,
        "@MODULE@": module or next(compiled, ""),
    }
    target = folder / "runs" / name
    for path in (_RECORDED / name).rglob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        relative = path.relative_to(_RECORDED / name)
        if keep and str(relative) == keep[0]:
            cut = next(number for number, line in enumerate(lines) if keep[1] in line)
            lines = lines[:cut]
        text = "".join(lines)
        for placeholder, value in fill.items():
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
        ("bisect", 1, "nothing to look for: both ends give the same (10,276 bytes)"),
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
    folder = recorded("matrix", project.folder, ("matrix.jsonl", '"event":"end"'))
    shutil.rmtree(folder / "venv-env")
    lines = (folder / "matrix.jsonl").read_text().splitlines(keepends=True)
    second = next(number for number, line in enumerate(lines) if '"event":"start","' in line and "venv:env" in line)
    (folder / "matrix.jsonl").write_text("".join(lines[:second]))
    done = project.gauntlet("matrix", "--resume")
    assert done.code == 0, done.text
    assert "finished before, exit code 0: it is not run again" in done.out


def test_a_comparison_is_resumed(project: Project) -> None:
    folder = recorded("compare", project.folder, ("comparison.jsonl", '"event":"verdict"'))
    before = sum('"event":"block"' in line for line in (folder / "comparison.jsonl").read_text().splitlines())
    done = project.gauntlet("compare", "--resume", "--budget", "0.0001", "--no-work")
    assert done.code == 4, done.text
    record = json.loads((folder / "comparison.json").read_text())
    assert record["options"]["disturbed"] == "count"
    events = [json.loads(line) for line in (folder / "comparison.jsonl").read_text().splitlines()]
    (verdict,) = [event for event in events if event["event"] == "verdict"]
    assert sum(event["event"] == "block" for event in events) >= before > 0
    assert verdict["chain"] == "toy/abs@cpu"
    assert verdict["verdict"] == "inconclusive"


def test_a_comparison_whose_module_is_of_another_cpu_is_not_resumed(project: Project) -> None:
    recorded("compare", project.folder, ("comparison.jsonl", '"event":"verdict"'), module="0" * 64)
    done = project.gauntlet("compare", "--resume", "--budget", "0.0001", "--no-work")
    assert done.code == 3, done.text
    assert "its module is not the one that was measured so far; begin a new comparison" in done.out


def test_a_bisection_is_resumed(project: Project) -> None:
    recorded("bisect", project.folder, ("bisect.jsonl", '"candidate":"env"'))
    done = project.gauntlet("bisect", "--resume")
    # How large this machine's module is, and whether `path` names an IREE, decides how it ends.
    assert done.code in (0, 1, 4), done.text
    assert "installed (good end): 10,276 bytes" in done.out
    assert "installed (good end) …" not in done.out
    assert "env (bad end) …" in done.out


@pytest.mark.stress
def test_a_sweep_is_resumed(tmp_path: Path) -> None:
    micro = Micro(tmp_path / "project")
    shutil.copy(_RECORDED / "micro" / "lin.yml", micro.folder / "lin.yml")
    recorded("micro", micro.folder, ("journal.jsonl", "lin/8-64-128@cpu:export"))
    done = micro.gauntlet("micro", "--resume", "--torch-python", str(micro.torch))
    assert done.code == 0, done.text
    assert "point 1 of 2" not in done.out
    assert "point 2 of 2: lin/8-64-128" in done.out
