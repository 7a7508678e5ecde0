"""`--offline`: before anything runs, a message lists the missing files, and only these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.engine.run_start import MissingFile, describe_missing, find_missing_files, note_missing_files
from iree_gauntlet.settings import Configuration, Mirror
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Step, StepInput
from tests.support.steps import make_step

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.toy_project import Project


WEIGHTS, PROGRAM = "https://models.example/w.irpa", "https://models.example/m.mlir"
HINT = "  Fetch once with network access, or `cache.import` an archive; `cache.where URL` shows its place there."


def store_in(folder: Path, configuration: Configuration | None = None) -> ArtifactStore:
    return ArtifactStore(folder / "cache", Registry(), offline=True, configuration=configuration)


def fetch_step(*urls: str, name: str = "a/b@cpu", skip: str = "", blocked: str = "") -> Step:
    inputs = tuple(StepInput("input", "", url) for url in urls)
    return make_step(Stage.FETCH, name, inputs=inputs, skip=skip, blocked=blocked)


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"content")


def test_only_what_the_network_has_is_missing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    put(store.path(PROGRAM))
    step = fetch_step(PROGRAM, WEIGHTS, "random://uniform/4xf32?seed=1", (tmp_path / "absent").as_uri(), WEIGHTS)
    assert find_missing_files([step], [], store) == [MissingFile(WEIGHTS, "a/b@cpu:fetch", 1)]


def test_a_plan_says_which_files_cannot_be_had(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    put(store.path(PROGRAM))
    steps = [fetch_step(PROGRAM, WEIGHTS, (tmp_path / "absent").as_uri()), fetch_step(PROGRAM, name="c/d@cpu")]
    completed = note_missing_files(steps, find_missing_files(steps, [], store))
    assert [step.cache.reason for step in completed] == [f"2 of 3 files are missing: {WEIGHTS} and 1 more", ""]


def test_what_does_not_run_misses_nothing(tmp_path: Path) -> None:
    steps = [
        fetch_step(WEIGHTS, name="skipped", skip="why"),
        fetch_step(WEIGHTS, name="blocked", blocked="why"),
        fetch_step(WEIGHTS, name="finished"),
    ]
    assert find_missing_files(steps, [], store_in(tmp_path), {"finished:fetch"}) == []


def test_a_mirror_on_this_machine_is_no_network(tmp_path: Path) -> None:
    folder, other = tmp_path / "mirror", (tmp_path / "other").as_uri()
    mirror = Mirror("https://models.example/", (str(folder), other), only=False)
    store = store_in(tmp_path, Configuration(mirrors=(mirror,)))
    step = fetch_step(WEIGHTS, PROGRAM)
    assert len(find_missing_files([step], [], store)) == 2
    put(folder / "w.irpa")
    put(tmp_path / "other" / "m.mlir")
    assert find_missing_files([step], [], store) == []


def test_a_file_of_a_wheel_that_is_there_is_not_missing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    step = fetch_step("pypi://Some.Model==1.0/a/w.irpa")
    assert len(find_missing_files([step], [], store)) == 1
    put(store.root / "wheels" / "some-model" / "1.0" / "some_model-1.0-py3-none-any.whl")
    assert find_missing_files([step], [], store) == []


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?#\\@"), min_size=1))
def test_any_url_can_be_asked_for(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    store = store_in(
        tmp_path_factory.getbasetemp(), Configuration(mirrors=(Mirror("https://m.example/", ("/mirror",)),))
    )
    assert len(find_missing_files([fetch_step(f"https://m.example/x/{path}x")], [], store)) == 1


def test_the_list() -> None:
    files = [MissingFile(PROGRAM, "specs/a.json: mlir", 2), MissingFile(WEIGHTS, "specs/a.json: real_weights", 0)]
    assert describe_missing(files).splitlines() == [
        "offline: 2 files are missing:",
        f"  {PROGRAM} (specs/a.json: mlir and 2 more)",
        f"  {WEIGHTS} (specs/a.json: real_weights)",
        HINT,
    ]
    assert describe_missing(files[:1]).startswith("offline: 1 file is missing:\n")


def test_a_run_lists_what_is_missing_before_anything_runs(project: Project) -> None:
    project.add("two")
    project.regression("two", mlir=PROGRAM, real_weights=WEIGHTS)
    spec = "specs/regression_tests/toy/two_cpu.json"
    listed = [
        "offline: 2 files are missing:",
        f"  {PROGRAM} ({spec}: mlir)",
        f"  {WEIGHTS} ({spec}: real_weights)",
        HINT,
    ]
    done = project.gauntlet("fetch", "--offline")
    lines = done.out.splitlines()
    assert done.code == 3
    assert lines[1:5] == listed
    assert lines[0].startswith("run ")
    # What can run does.
    assert project.result("toy/abs@cpu:fetch")["verdict"] == "passed"
    assert project.result("toy/two@cpu:fetch")["verdict"] == "error"
    assert PROGRAM in project.result("toy/two@cpu:fetch")["reason"]
    planned = project.gauntlet("plan", "--offline")
    assert planned.code == 0
    assert planned.out.splitlines()[-4:] == listed
    assert "offline" not in project.gauntlet("plan").out


def test_nothing_is_said_where_nothing_is_missing(project: Project) -> None:
    done = project.gauntlet("fetch", "--offline")
    assert done.code == 0
    assert "offline" not in done.text
