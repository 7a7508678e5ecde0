"""Copies of a run's files: packed where the run starts, and unpacked on another machine."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cluster.project_copy import ProjectCopy, map_path, map_request, pack_project, unpack_project
from iree_gauntlet.engine.workspace import select
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.requests import (
    Defaults,
    ExecutionRequest,
    FolderRequest,
    RunRequest,
    SelectionRequest,
    ShardRequest,
    ToolchainRequest,
)
from iree_gauntlet.variants import FlagVariant

if TYPE_CHECKING:
    from tests.support.toy_project import Project


def packed(folder: Path, request: SelectionRequest, archive: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectCopy:
    monkeypatch.chdir(folder)
    return pack_project(select(request, Defaults()), archive)


def test_the_same_files_make_the_same_archive_and_others_another(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.suite('[[include]]\nmodel = "*"\n')
    request = SelectionRequest(suite="s")
    first = packed(project.folder, request, tmp_path / "1.tar", monkeypatch)
    (project.folder / "suites" / "s.toml").touch()
    (project.folder / "runs").mkdir()
    (project.folder / "runs" / "large.bin").write_bytes(b"x" * 1000)
    assert packed(project.folder, request, tmp_path / "2.tar", monkeypatch).sha256 == first.sha256
    project.regression("abs", timeout=7)
    assert packed(project.folder, request, tmp_path / "3.tar", monkeypatch).sha256 != first.sha256


def test_a_copy_selects_the_same_cases(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "elsewhere"
    (project.folder / "specs").rename(outside)
    (project.folder / "specs").mkdir()
    project.suite('spec_dirs = ["../../elsewhere"]\n[[include]]\nmodel = "*"\n')
    request = SelectionRequest(suite="s")
    copy = packed(project.folder, request, tmp_path / "copy.tar", monkeypatch)
    here = {case.id for case in select(request, Defaults()).cases.cases}
    assert here
    there = tmp_path / "unpacked"
    with copy.archive.open("rb") as stream:
        unpack_project(stream, there)
    monkeypatch.chdir(map_path(there, copy.cwd))
    found = select(request, Defaults()).cases.cases
    assert {case.id for case in found} == here
    for case in found:
        assert Path(case.origin.file).resolve().is_relative_to(there)


def test_two_workers_of_one_machine_unpack_the_same_copy(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = packed(project.folder, SelectionRequest(), tmp_path / "copy.tar", monkeypatch)
    for _ in range(2):
        with copy.archive.open("rb") as stream:
            unpack_project(stream, tmp_path / "projects" / "x")
    assert [path.name for path in (tmp_path / "projects").iterdir()] == ["x"]


@pytest.mark.parametrize("name", ["../outside", "files/../../outside"])
def test_nothing_leaves_the_folder_of_a_copy(tmp_path: Path, name: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 2
        tar.addfile(info, io.BytesIO(b"no"))
    archive.seek(0)
    with pytest.raises(GauntletError, match="the copy of the project is not used"):
        unpack_project(archive, tmp_path / "projects" / "x")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_request_is_read_in_the_copy(tmp_path: Path) -> None:
    request = RunRequest(
        selection=SelectionRequest(suite="/home/u/s.toml", spec_dir=("specs", "/data/specs"), config=("/c.json",)),
        toolchain=ToolchainRequest(iree="build:../iree-build", iree_runtime="3.12.0"),
        shard=ShardRequest(shard="1/2"),
        folder=FolderRequest(run_dir="/home/u/runs/r", resume=True),
        execution=ExecutionRequest(jobs=3, lenient=True),
        chains=frozenset({"a"}),
        variants=(
            FlagVariant("tuned", tuning_spec="file:///data/tuning.mlir"),
            FlagVariant("O3", ("--iree-opt-level=O3",)),
        ),
    )
    copy = tmp_path / "copy"
    here = map_request(request, copy, tmp_path / "run", tmp_path / "cache", "/home/u/project")
    assert here.selection.suite == f"{copy}/files/home/u/s.toml"
    assert here.selection.spec_dir == ("specs", f"{copy}/files/data/specs")
    assert here.selection.config == (f"{copy}/files/c.json",)
    assert here.toolchain.iree == "build:/home/u/project/../iree-build"
    assert here.toolchain.iree_runtime == "3.12.0"
    assert here.toolchain.cache_dir == str(tmp_path / "cache")
    assert here.folder == FolderRequest(run_dir=str(tmp_path / "run"))
    assert here.shard == ShardRequest()
    assert here.chains is None
    assert here.execution == request.execution
    tuned, optimised = here.variants or ()
    assert tuned.tuning_spec == (copy / "files/data/tuning.mlir").as_uri()
    assert optimised == FlagVariant("O3", ("--iree-opt-level=O3",))


@pytest.mark.parametrize("option", ["external_file_directory", "module_directory", "suite", "spec_dir", "config"])
def test_every_path_of_a_selection_is_one_of_the_copy(option: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path, wanted in (("/data/x.toml", f"{copy}/files/data/x.toml"), ("data/x.toml", "data/x.toml"), ("", "")):
        several = isinstance(getattr(SelectionRequest(), option), tuple)
        selection = SelectionRequest(**{option: (path,) if several else path})  # type: ignore[arg-type]
        here = map_request(RunRequest(selection), copy, tmp_path / "run", tmp_path / "cache", "/home/u")
        assert here.selection == SelectionRequest(**{option: (wanted,) if several else wanted})  # type: ignore[arg-type]
