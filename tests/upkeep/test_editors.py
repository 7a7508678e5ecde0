"""Completion and error marks in editors: their real language servers get the requests that editors send."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.configuration_file import read_configuration
from tests import support
from tests.support.command_line import run_in_process
from tests.support.language_server import start_editor
from tests.support.npm_packages import NODE, install_npm_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.language_server import Editor

SPEC = Path("specs", "regression_tests", "example", "dense_cpu.json")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project as `init` begins one, whose files say where their schemas are."""
    assert run_in_process(("init",), tmp_path, {}, {}).code == 0
    return tmp_path


@pytest.fixture
def of_json(project: Path) -> Iterator[Editor]:
    server = install_npm_packages("node_tools") / "vscode-json-languageserver" / "bin" / "vscode-json-languageserver"
    with start_editor([str(NODE), str(server), "--stdio"], project, {}) as made:
        # As VS Code has them from the project.
        settings = json.loads((project / ".vscode" / "settings.json").read_text())
        schemas = [{**item, "url": (project / item["url"]).as_uri()} for item in settings["json.schemas"]]
        made.notify(
            "workspace/didChangeConfiguration",
            {"settings": {"json": {"validate": {"enable": True}, "schemas": schemas}}},
        )
        yield made


@pytest.fixture
def of_toml(project: Path) -> Iterator[Editor]:
    server = Path(support.__file__).with_name("node_tools") / "taplo.cjs"
    package = install_npm_packages("node_tools") / "@taplo" / "lsp"
    settings: dict[str, Any] = {"schema": {"enabled": True, "associations": {}, "catalogs": []}}
    with start_editor([str(NODE), str(server), str(package)], project, settings) as made:
        yield made


@pytest.fixture
def of_yaml(project: Path) -> Iterator[Editor]:
    server = install_npm_packages("node_tools") / "yaml-language-server" / "bin" / "yaml-language-server"
    with start_editor([str(NODE), str(server), "--stdio"], project, {"yaml": {"validate": True}}) as made:
        yield made


def test_a_spec_is_completed_and_a_wrong_field_is_underlined(of_json: Editor, project: Path) -> None:
    lines = (project / SPEC).read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if "run_function" in line)
    lines[number - 1 : number + 1] = ['    "threshold_arg": [],', '    ""', "}"]
    lines = lines[: lines.index("}") + 1]
    (project / SPEC).write_text("\n".join(lines) + "\n")
    of_json.open(project / SPEC, "json")
    said = {
        problem["range"]["start"]["line"]: problem["message"]
        for problem in of_json.wait_for_diagnostics(project / SPEC)
    }
    assert said[lines.index('    "threshold_arg": [],')] == "Property threshold_arg is not allowed."
    proposed = of_json.list_completions(project / SPEC, lines.index('    ""'), 5)
    assert {"run_function", "timeouts", "markers", "targets"} <= set(proposed)
    assert "device" not in proposed, "it is already there"
    device = next(number for number, line in enumerate(lines) if '"device"' in line)
    column = lines[device].index(":") + 3
    assert {'"local-task"', '"vulkan"'} <= set(of_json.list_completions(project / SPEC, device, column))


def test_a_suite_is_completed_and_a_wrong_value_is_underlined(of_toml: Editor, project: Path) -> None:
    suite, unfinished = project / "suites" / "cpu.toml", project / "suites" / "unfinished.toml"
    begun = suite.read_text()
    text = f'{begun}\n[[expect_failure]]\ncase = "a/b"\nstage = "compil"\nreason = "why"\n'
    suite.write_text(text)
    of_toml.open(suite, "toml")
    (problem,) = of_toml.wait_for_diagnostics(suite)
    assert text.splitlines()[problem["range"]["start"]["line"]] == 'stage = "compil"'
    assert problem["message"].startswith('"compil" is not one of ["fetch",')
    unfinished.write_text(f'{begun}\n[[include]]\n\n[[expect_failure]]\nstage = "compil"\n')
    of_toml.open(unfinished, "toml")
    # It finds a file's schema after it has opened the file: what is underlined says that it has.
    assert of_toml.wait_for_diagnostics(unfinished)
    proposed = of_toml.list_completions(unfinished, len(begun.splitlines()) + 2, 0)
    assert {"model", "markers"} <= set(proposed)


def taplo_lint(project: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("taplo")
    return subprocess.run([tool, "lint"], cwd=project, capture_output=True, text=True, check=False)


def test_toml_files_need_no_line_that_names_their_schema(project: Path) -> None:
    assert taplo_lint(project).returncode == 0
    new = project / "suites" / "new.toml"
    new.write_text('name = "new"\ndescription = "d"\ntarget = "cpu"\nstages = ["compil"]\n')
    done = taplo_lint(project)
    assert done.returncode == 1
    assert '"compil" is not one of ["fetch"' in done.stderr


def test_the_settings_that_a_new_project_shows_are_right_once_they_are_uncommented(project: Path) -> None:
    path = project / "gauntlet.toml"
    lines = path.read_text().splitlines()
    set_ = [line.removeprefix("# ") for line in lines if re.match(r"# (\[|\w+ = )", line)]
    path.write_text("\n".join([lines[0], *set_, "[modules]", 'url = "s3://bucket/x"', ""]))
    assert {"[history]", "[[mirrors]]"} <= set(set_)
    assert taplo_lint(project).returncode == 0
    read_configuration(project, {})
    path.write_text(path.read_text().replace("add = true", "ad = true"))
    assert "'ad' was unexpected" in taplo_lint(project).stderr


def test_recipes_are_completed_and_a_wrong_value_is_underlined(of_yaml: Editor, project: Path) -> None:
    folder = project / "specs" / "recipes"
    folder.mkdir()
    line = "# yaml-language-server: $schema=../../.schemas/recipes.json\n"
    wrong, unfinished = folder / "wrong.yml", folder / "unfinished.yml"
    wrong.write_text(f"{line}benchmark_mode: inferenc\nmodel_params: []\n")
    of_yaml.open(wrong, "yaml")
    said = {problem["range"]["start"]["line"]: problem["message"] for problem in of_yaml.wait_for_diagnostics(wrong)}
    assert said[1] == 'Value is not accepted. Valid values: "inference".'
    assert 2 in said, "an entry is missing"
    unfinished.write_text(f"{line}\n")
    of_yaml.open(unfinished, "yaml")
    assert {"benchmark_mode", "model_params"} <= set(of_yaml.list_completions(unfinished, 1, 0))
