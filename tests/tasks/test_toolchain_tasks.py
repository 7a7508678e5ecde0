from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.toolchains import installed
from iree_gauntlet.toolchains.environments import SEAL, Recipe, make_environment_tag, seal
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.installer import Sources
from tests.support.command_line import run_in_process
from tests.support.iree_wheels import write_release_wheels
from tests.support.permissions import enforce_permissions, mount_read_only, with_mount_rights
from tests.support.session_folder import make_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandResult

_HOLD = """
import sys
from pathlib import Path
from iree_gauntlet.artifacts.leases import Leases
leases = Leases(Path(sys.argv[1]))
leases.use(Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    index = make_once("two-releases", lambda folder: (write_release_wheels(folder, "3.11.0", "3.12.0"), None)[1])
    for name, value in {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(index),
        "UV_CACHE_DIR": str(make_once("uv-cache", lambda _: None)),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)
    return Project(tmp_path / "project")


def test_install_list_show_remove(project: Project) -> None:
    done = project.gauntlet("toolchain.install", "3.11.0", ">=3.12")
    assert done.code == 0, done.text
    assert [line.partition(":")[0] for line in done.out.splitlines()] == ["3.11.0", "3.12.0"]
    assert "IREE 3.11.0: installing with " in done.err
    again = project.gauntlet("toolchain.install", "3.11.0", "--offline")
    assert (again.code, again.err) == (0, "")

    listed = json.loads(project.gauntlet("toolchain.list", "--format", "json").out)
    assert [item["label"] for item in listed["environments"]] == ["3.11.0", "3.12.0"]
    assert all(item["bytes"] > 0 and item["problem"] == "" for item in listed["environments"])
    text = project.gauntlet("toolchain.list").out
    assert text.startswith("installed here: ")
    assert "3.12.0" in text

    shown = json.loads(project.gauntlet("toolchain.show", "--iree", "3.12.0", "--format", "json").out)
    assert shown["compiler_release"] == shown["runtime_release"] == "3.12.0"
    mixed = project.gauntlet("toolchain.show", "--iree", "3.12.0", "--iree-runtime", "3.11.0").out
    assert "note: compiler and runtime differ" in mixed

    assert project.gauntlet("cache.list").code == 0
    assert project.gauntlet("cache.gc", "--max-size", "1kB", "--delete").code == 0
    assert project.gauntlet("toolchain.show", "--iree", "3.12.0").code == 0

    removed = project.gauntlet("toolchain.remove", "3.11", "3.12.0")
    assert removed.code == 0, removed.text
    assert [line.split()[1] for line in removed.out.splitlines()] == ["3.11.0", "3.12.0"]
    assert "toolchain.install VERSION" in project.gauntlet("toolchain.list").out


def in_own_cache(project: Project) -> dict[str, str]:
    """An environment in which no cache is named: `cache/` of the project, and the user's."""
    return {name: value for name, value in project.environment().items() if name != "IREE_GAUNTLET_CACHE"}


@pytest.fixture
def users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "iree-gauntlet"


def test_a_release_is_installed_once_for_all_projects(project: Project, tmp_path: Path, users_cache: Path) -> None:
    other = Project(tmp_path / "other")

    def gauntlet(where: Project, *words: str) -> CommandResult:
        return run_in_process(words, where.folder, in_own_cache(where))

    first = gauntlet(project, "toolchain.install", "3.12.0")
    assert first.code == 0, first.text
    (environment,) = (path for path in (users_cache / "toolchains" / "envs").iterdir() if path.is_dir())
    assert f"3.12.0: {environment} (" in first.out
    again = gauntlet(other, "toolchain.install", "3.12.0")
    assert (again.code, again.err) == (0, ""), "it is not installed again"
    for where in (project, other):
        assert not (where.folder / "cache" / "toolchains" / "envs").exists()
        assert f"3.12.0: {environment}/" in gauntlet(where, "toolchain.show", "--iree", "3.12.0").out

    listed = gauntlet(other, "cache.list")
    assert f"toolchain                    {environment.name}" in listed.out
    assert f" (1) in {users_cache / 'toolchains'}, which all projects share\n" in listed.out
    document = json.loads(gauntlet(other, "cache.list", "--format", "json").out)
    assert [item["name"] for item in document["toolchains"]["items"]] == [environment.name]
    assert document["toolchains"]["bytes"] > 0
    assert "toolchain" not in {item["kind"] for item in document["items"]}
    assert gauntlet(project, "cache.gc", "--max-size", "0B", "--delete").code == 0
    assert gauntlet(other, "toolchain.show", "--iree", "3.12.0").code == 0

    argv = [sys.executable, "-c", _HOLD, str(users_cache / "toolchains"), str(environment)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        refused = gauntlet(project, "toolchain.remove", "3.12.0")
        assert (refused.code, "is in use by a running process" in refused.err) == (3, True)
    assert gauntlet(project, "toolchain.remove", "3.12.0").code == 0
    assert not environment.exists()


def test_what_a_projects_cache_has_from_before_is_used(project: Project, users_cache: Path) -> None:
    own = project.folder / "cache"
    assert project.gauntlet("toolchain.install", "3.12.0", "--cache-dir", str(own)).code == 0
    environ = in_own_cache(project)
    shown = run_in_process(("toolchain.show", "--iree", "3.12.0"), project.folder, environ)
    assert f"3.12.0: {own / 'toolchains' / 'envs'}/" in shown.out
    installed = run_in_process(("toolchain.install", "3.12.0", "3.11.0"), project.folder, environ)
    assert [line.partition(" (")[0].rpartition("/")[0] for line in installed.out.splitlines()] == [
        f"3.12.0: {own / 'toolchains' / 'envs'}",
        f"3.11.0: {users_cache / 'toolchains' / 'envs'}",
    ]
    listed = json.loads(run_in_process(("toolchain.list", "--format", "json"), project.folder, environ).out)
    assert [item["label"] for item in listed["environments"]] == ["3.11.0", "3.12.0"]
    assert run_in_process(("toolchain.remove", "3.12.0"), project.folder, environ).code == 0
    assert not list((own / "toolchains" / "envs").glob("3.12.0*"))


def test_a_variable_says_where_they_are_kept(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IREE_GAUNTLET_TOOLCHAINS", str(tmp_path / "elsewhere"))
    done = project.gauntlet("toolchain.install", "3.12.0")
    assert f"3.12.0: {tmp_path / 'elsewhere' / 'envs'}/" in done.out
    (tmp_path / "closed").mkdir(mode=0o555)
    monkeypatch.setenv("IREE_GAUNTLET_TOOLCHAINS", str(tmp_path / "closed"))
    with enforce_permissions():
        refused = project.gauntlet("toolchain.install", "3.11.0")
    assert refused.code == 3
    assert refused.err.startswith(f"error: {tmp_path / 'closed' / 'envs'}: Permission denied\n")
    assert "or name another folder with $IREE_GAUNTLET_TOOLCHAINS" in refused.err


@pytest.mark.iree
def test_an_installed_release_that_is_asked_for_is_used(project: Project) -> None:
    release = find_installed().compiler.release
    for choice in (release, f">={release}"):
        shown = project.gauntlet("toolchain.show", "--iree", choice)
        assert shown.code == 0, shown.text
        assert f"source:                   {find_installed().source}\n" in shown.out
    done = project.gauntlet("run", "--iree", release, "--stages", "threshold")
    assert (done.code, project.journal.run.toolchain.source) == (0, find_installed().source)


@pytest.mark.iree
def test_a_release_of_which_this_python_has_a_part_is_not_that_release(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_installed()
    for whole in (
        replace(found, compiler=replace(found.compiler, release="3.12.0", onnx_version="")),
        replace(found, compiler=replace(found.compiler, release="3.12.0")),
    ):
        monkeypatch.setattr(installed, "find_installed", lambda whole=whole: whole)
        assert "IREE 3.12.0 is not installed: " in project.gauntlet("toolchain.show", "--iree", "3.12.0").err


@with_mount_rights
def test_doctor_says_what_a_run_says_of_a_project_that_cannot_be_written(project: Project, tmp_path: Path) -> None:
    shutil.rmtree(project.folder / "cache")
    environ = in_own_cache(project)
    with mount_read_only(project.folder):
        found = run_in_process(("doctor", "--format", "json"), project.folder, environ)
        ran = run_in_process(("run",), project.folder, environ)
        elsewhere = ("--cache-dir", str(tmp_path / "cache"), "--run-dir", str(tmp_path / "run"))
        went = run_in_process(("run", "--stages", "threshold", *elsewhere), project.folder, environ)
    assert (found.code, ran.code, went.code) == (3, 2, 0), ran.text + went.text
    missing = {item["area"]: item["text"] for item in json.loads(found.out) if item["status"] == "missing"}
    assert missing["cache"].endswith(f"cannot be created, because {project.folder} cannot be written: nothing can run")
    assert missing["runs"].startswith(f"no run can be kept in {project.folder / 'runs'}: ")
    (project.folder / "cache").mkdir()
    with mount_read_only(project.folder):
        found = run_in_process(("doctor",), project.folder, environ)
    assert "cannot be written: its contents are used, but nothing is added" in found.out
    assert "missing or broken: runs" in found.out


def test_the_runtime_of_another_platform_is_removed_by_the_name_in_the_list(project: Project) -> None:
    label = "3.12.0-manylinux_2_28_aarch64"
    path = project.folder / "cache" / "toolchains" / "envs" / f"{label}-{make_environment_tag()}"
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").touch(0o755)
    recipe = Recipe(label, (), Sources(), compiler="", runtime="3.12.0", asked="")
    seal(path, SEAL, {**asdict(recipe), "installer": "uv"})
    assert f"{label} (the runtime only)" in project.gauntlet("toolchain.list").out
    done = project.gauntlet("toolchain.remove", label)
    assert (done.code, path.exists()) == (0, False), done.text


def test_what_is_in_use_is_not_removed(project: Project) -> None:
    assert project.gauntlet("toolchain.install", "3.11.0").code == 0
    cache = project.folder / "cache"
    (environment,) = (path for path in (cache / "toolchains" / "envs").iterdir() if path.is_dir())
    argv = [sys.executable, "-c", _HOLD, str(environment.parents[1]), str(environment)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        done = project.gauntlet("toolchain.remove", "3.11.0")
        assert done.code == 3
        assert "is in use by a running process" in done.err
        user.send_signal(signal.SIGKILL)
    assert not Leases(environment.parents[1]).list_used_paths()
    assert project.gauntlet("toolchain.remove", "3.11.0").code == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["toolchain.install", "banana"], 2, "toolchain.install banana: not a known IREE"),
        (["toolchain.install", "venv:x"], 2, "Use it with --iree venv:x"),
        (["toolchain.install", "3.0.0"], 2, "Nearest: 3.11.0."),
        (["toolchain.install", "3.12.0", "--offline"], 3, "is not installed: "),
        (["toolchain.install", ""], 2, "needs a name"),
        (["toolchain.install"], 2, "error: expected toolchain.install VERSION…\n"),
        (["toolchain.remove", "3.9.0"], 2, "There are: none."),
        (["toolchain.show", "--iree", "3.12.0"], 3, "gauntlet toolchain.install 3.12.0"),
        (["toolchain.show", "--iree", "venv:nowhere"], 2, "is not a virtual environment"),
        (["toolchain.show", "--format", "xml"], 2, "--format xml"),
        (["run", "--model", "toy", "--iree", "banana"], 2, "--iree banana: not a known IREE"),
        (["run", "--model", "toy", "--iree-runtime", "build:nowhere"], 2, "is not a folder"),
        (["doctor", "--iree", "3.12.0"], 3, "IREE 3.12.0 is not installed"),
    ],
)
def test_wrong_input(project: Project, words: list[str], code: int, says: str) -> None:
    done = project.gauntlet(*words)
    assert (done.code, says in done.text) == (code, True), done.text


def test_help_names_the_task(project: Project) -> None:
    assert project.gauntlet("toolchain.install", "--help").out.startswith("Usage: ")


def test_a_plan_installs_nothing(project: Project) -> None:
    done = project.gauntlet("plan", "--model", "toy", "--iree", "3.12.0")
    assert done.code == 0, done.text
    assert "note: IREE 3.12.0 is not installed: " in done.out
    assert not (project.folder / "cache" / "toolchains" / "envs").exists()


@pytest.mark.iree
def test_the_variable_chooses_where_no_option_does(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IREE_GAUNTLET_IREE", "build:/nowhere")
    assert "build:/nowhere is not a folder" in project.gauntlet("toolchain.show").err
    assert project.gauntlet("toolchain.show", "--iree", "installed").code == 0


@pytest.mark.iree
@pytest.mark.models
def test_a_release_from_the_index_runs_a_model(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", cache="empty")
    done = project.gauntlet("run", "--model", "toy", "--iree", "3.12.0")
    assert done.code == 0, done.text
    toolchain = project.journal.run.toolchain
    assert toolchain.compiler.startswith("3.12.0")
    assert toolchain.source.startswith("3.12.0: ")
    # Another IREE is another cache key.
    if "3.12.0" not in project.gauntlet("toolchain.show").out:
        assert "compiles: 0 from cache, 1 made" in project.gauntlet("compile", "--model", "toy").out
    assert "compiles: 1 from cache, 0 made" in project.gauntlet("compile", "--model", "toy", "--iree", "3.12.0").out


def test_the_settings_say_where_nightlies_come_from(project: Project, tmp_path: Path) -> None:
    links = write_release_wheels(tmp_path / "nightlies", "3.14.0rc20261120")
    settings = project.folder / "gauntlet.toml"
    settings.write_text(f'[toolchains]\nnightly_links = "{links}"\n')
    done = project.gauntlet("toolchain.install", "nightly")
    assert (done.code, done.out.partition(":")[0]) == (0, "3.14.0rc20261120"), done.text
    settings.write_text('[toolchains]\ninstaller = "pip"\n')
    done = project.gauntlet("toolchain.install", "nightly")
    assert (done.code, "toolchains.installer" in done.err) == (2, True), done.text
