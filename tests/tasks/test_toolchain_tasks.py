from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.leases import Leases
from tests.support.iree_wheels import release_wheels
from tests.support.session_folder import made_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

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
    index = made_once("two-releases", lambda folder: (release_wheels(folder, "3.11.0", "3.12.0"), None)[1])
    for name, value in {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(index),
        "UV_CACHE_DIR": str(made_once("uv-cache", lambda _: None)),
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
    assert not Leases(environment.parents[1]).in_use()
    assert project.gauntlet("toolchain.remove", "3.11.0").code == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["toolchain.install", "banana"], 2, "toolchain.install banana: not a known IREE"),
        (["toolchain.install", "venv:x"], 2, "Use it with --iree venv:x"),
        (["toolchain.install", "3.0.0"], 2, "Nearest: 3.11.0."),
        (["toolchain.install", "3.12.0", "--offline"], 3, "is not installed: "),
        (["toolchain.install", ""], 2, "needs to know which"),
        (["toolchain.install"], 2, "error: expected toolchain.install VERSION…\n"),
        (["toolchain.remove", "3.9.0"], 2, "There are: none."),
        (["toolchain.show", "--iree", "3.12.0"], 3, "gauntlet toolchain.install 3.12.0"),
        (["toolchain.show", "--iree", "venv:nowhere"], 2, "is no virtual environment"),
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
    links = release_wheels(tmp_path / "nightlies", "3.14.0rc20261120")
    settings = project.folder / "gauntlet.toml"
    settings.write_text(f'[toolchains]\nnightly_links = "{links}"\n')
    done = project.gauntlet("toolchain.install", "nightly")
    assert (done.code, done.out.partition(":")[0]) == (0, "3.14.0rc20261120"), done.text
    settings.write_text('[toolchains]\ninstaller = "pip"\n')
    done = project.gauntlet("toolchain.install", "nightly")
    assert (done.code, "toolchains.installer" in done.err) == (2, True), done.text
