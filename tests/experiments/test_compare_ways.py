"""The CPUs for rounds: those on which the program is steadiest, with synthetic times that depend on the CPUs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_format import read_events
from tests.support.faulty_iree import SyntheticBuild, fill_module_cache
from tests.support.processes import wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.iree,
    pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: {0})(0)) < 2, reason="takes two CPUs"),
]

_QUICK = ("--model", "toy", "--run-dir", "cmp", "--repetitions", "2", "--disturbed", "count", "--no-work")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    fill_module_cache(project)
    yield project
    project.close()


def _model(project: Project) -> dict[str, Any]:
    document = json.loads((project.folder / "cmp" / "comparison.json").read_text())
    found: dict[str, Any] = document["models"]["toy/abs@cpu"]
    return found


def _blocks(project: Project) -> list[dict[str, Any]]:
    events = read_events(project.folder / "cmp" / "journal.jsonl")
    return [event for event in events if event["event"] == "block"]


def test_what_varies_on_all_cpus_is_measured_on_one(project: Project, tmp_path: Path) -> None:
    a = SyntheticBuild(tmp_path / "a").set_unpinned_times(1.0, 0.2)
    b = SyntheticBuild(tmp_path / "b", 1.5).set_unpinned_times(1.5, 0.2)
    done = project.gauntlet("compare", a.iree, b.iree, *_QUICK)
    assert done.code == 1, done.text
    model = _model(project)
    assert model["verdict"] == "slower"
    (cpu,) = model["cpus"]
    assert cpu == max(os.sched_getaffinity(0))
    assert model["tried"]["all"] > 5 * model["tried"][str(cpu)]
    assert "steadiest" in done.out
    trial = [block["cpus"] for block in _blocks(project) if block["kind"] == "trial"]
    assert trial[:2] == [[], [cpu]], "in turn"
    assert {tuple(block["cpus"]) for block in _blocks(project) if block["kind"] in ("ab", "aa")} == {(cpu,)}
    # What its spec's own way shows is wide, and no contradiction.
    assert model["own_way"]["contradicts"] is False
    assert model["own_way"]["low"] < 1.5 < model["own_way"]["high"]
    own = [block["cpus"] for block in _blocks(project) if block["kind"] == "own"]
    assert own == [[]] * 6


def test_what_is_as_steady_on_all_cpus_is_measured_there(project: Project, tmp_path: Path) -> None:
    a, b = SyntheticBuild(tmp_path / "a"), SyntheticBuild(tmp_path / "b", 1.5)
    done = project.gauntlet("compare", a.iree, b.iree, *_QUICK)
    assert done.code == 1, done.text
    model = _model(project)
    assert model["cpus"] == []
    assert "own_way" not in model, "that is how it was measured"
    # As on a board, where CPUs are not chosen.
    assert "on the CPUs of the specs" in done.out


def test_a_difference_on_all_cpus_alone_contradicts(project: Project, tmp_path: Path) -> None:
    a = SyntheticBuild(tmp_path / "a").set_unpinned_times(1.0, 0.02)
    b = SyntheticBuild(tmp_path / "b").set_unpinned_times(1.5, 0.02)
    done = project.gauntlet("compare", a.iree, b.iree, *_QUICK)
    model = _model(project)
    assert model["verdict"] == "same", done.text
    assert model["own_way"]["contradicts"] is True
    for text in (done.out, (project.folder / "cmp" / "comparison.md").read_text()):
        assert "run as in its spec, B is" in " ".join(text.split())


def test_a_trial_that_was_cut_short_is_continued(project: Project, tmp_path: Path) -> None:
    a, b = SyntheticBuild(tmp_path / "a"), SyntheticBuild(tmp_path / "b", 1.5)
    # In the second block of the trial.
    a.hang_after(5)
    log = project.folder / "cmp" / "journal.jsonl"
    process = project.start("compare", a.iree, b.iree, *_QUICK)
    wait_until(lambda: log.exists() and '"kind":"trial"' in log.read_text())
    process.kill()
    process.wait()
    a.stop_hanging()
    done = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
    assert done.code == 1, done.text
    kinds = [block["kind"] for block in _blocks(project)]
    assert kinds[:6] == ["trial"] * 6
    assert "trial" not in kinds[6:]
    model = _model(project)
    assert (model["blocks"], model["control_blocks"]) == (10, 10), "three of A against itself are the trial's"
    assert kinds.count("aa") == 7


def test_asked_for_one_way_nothing_is_tried(project: Project, tmp_path: Path) -> None:
    a = SyntheticBuild(tmp_path / "a").set_unpinned_times(1.0, 0.2)
    b = SyntheticBuild(tmp_path / "b", 1.5).set_unpinned_times(1.5, 0.2)
    cpu = str(min(os.sched_getaffinity(0)))
    done = project.gauntlet("compare", a.iree, b.iree, *_QUICK, "--cpus", cpu)
    assert done.code == 1, done.text
    assert {block["kind"] for block in _blocks(project)} == {"ab", "aa"}
    assert _model(project)["cpus"] == [int(cpu)]
