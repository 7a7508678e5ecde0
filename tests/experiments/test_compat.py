"""`compat` as a user runs it: modules of one IREE with the runtime of another, which runs, refuses, crashes or errs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.experiments.compat import _describe_module
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.records.run_folder import list_folders
from tests.support.faulty_iree import fill_module_cache, write_build_tree
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.iree

_REFUSAL = "vm/bytecode/verifier.c:184: INVALID_ARGUMENT; bytecode version mismatch; runtime supports 9, module has 8"
# The modules of another IREE: a model's name says what becomes of them.
_FOREIGN = f"""case "$*" in
*build-old-on-*/crash.cpu/*) kill -SEGV $$ ;;
*build-old-on-*/refuse.cpu/*) echo "{_REFUSAL}" >&2; exit 1 ;;
*build-old-on-*/wrong.cpu/*)
  for word; do shift; case $word in --input=*) word=--input=4xf32=9 ;; esac; set -- "$@" "$word"; done ;;
esac"""
_REPORTS = ("compat.md", "compat.html", "compat.json", "junit.xml")
_WRONG_IS_EXPECTED = """
[[expect_failure]]
case = "toy/wrong"
stage = "threshold"
kind = "wrong numbers"
reason = "the planted one"
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    fill_module_cache(project)
    yield project
    project.close()


def _newest(project: Project) -> Path:
    return next(list_folders(project.folder / "runs", ExperimentKind.COMPAT))


def _read(project: Project) -> Any:
    return json.loads((_newest(project) / "compat.json").read_text())


def _write_irees(project: Project) -> tuple[str, str]:
    """Write an old IREE, and a new one whose runtime fails with modules of the old one."""
    folder = project.folder
    return write_build_tree(folder / "old"), write_build_tree(folder / "new", iree_run_module=_FOREIGN)


def _list_results(project: Project) -> Counter[tuple[str, str]]:
    """Count the results of each step in each pair's run."""
    paths = _newest(project).glob("*/journal.jsonl")
    lines = ((path.parent.name, json.loads(line)) for path in paths for line in path.read_text().splitlines())
    return Counter((pair, event["step"]) for pair, event in lines if event["event"] == "result")


def test_each_fault_is_named_with_its_pair(project: Project) -> None:
    for name in ("crash", "refuse", "wrong"):
        project.add(name)
    old, new = _write_irees(project)
    done = project.gauntlet("compat", old, new)
    assert done.code == 1, done.text
    document = _read(project)
    by_pair = {(cell["chain"], cell["compiler"], cell["runtime"]): cell for cell in document["cells"]}
    faults = {chain: cell for (chain, *_), cell in by_pair.items() if cell["compatibility"] != "runs"}
    assert {chain: (cell["compatibility"], cell["exit_code"]) for chain, cell in faults.items()} == {
        "toy/crash@cpu": ("crashes", 1),
        "toy/refuse@cpu": ("refused", 0),
        "toy/wrong@cpu": ("wrong numbers", 1),
    }
    assert {(cell["compiler"], cell["runtime"]) for cell in faults.values()} == {("build:old", "build:new")}
    assert len(by_pair) == 16
    assert "SIGSEGV" in faults["toy/crash@cpu"]["message"]
    assert faults["toy/refuse@cpu"]["message"] == _REFUSAL.partition("; ")[2]
    assert "4 of 4 differ" in faults["toy/wrong@cpu"]["message"]
    # The numbers of the pairs that run are those of a run.
    assert by_pair["toy/wrong@cpu", "build:new", "build:new"]["max_abs_error"] == 0
    # The worst result stands for a pair, and what fails comes first.
    assert "✗ crashes (1 of 4)" in done.out
    assert "toy/crash@cpu: module of build:old, runtime of build:new: crashes: " in done.out
    assert done.out.index("What went wrong") < done.out.index("Refusals")
    assert "modules of 4 models of 2 IREEs: 13 of 16 run, 1 crashes, 1 wrong numbers, 1 refused" in done.out
    assert "exit code 1: not compatible" in done.out
    suites = {suite.get("name"): suite for suite in ET.parse(_newest(project) / "junit.xml").iter("testsuite")}
    counts = {name: (suite.get("failures"), suite.get("skipped")) for name, suite in suites.items()}
    assert counts["compat/toy/crash@cpu"] == ("1", "0")
    assert counts["compat/toy/refuse@cpu"] == ("0", "1")
    page = (_newest(project) / "compat.html").read_text()
    assert 'href="build-old-on-build-new/summary.html#toy/crash@cpu:threshold"' in page
    assert (_newest(project) / "build-old-on-build-new" / "summary.html").is_file()
    # Pairs are no runs of a history, and every module was compiled once.
    assert not list((project.folder / "cache").glob("history*"))
    compiles = (path.read_text() for path in _newest(project).glob("*-on-build-new/journal.jsonl"))
    assert all('"hit":true' in text for text in compiles)


def test_a_refusal_fails_only_if_a_promise_forbids_it(project: Project) -> None:
    project.add("refuse")
    old, new = _write_irees(project)
    done = project.gauntlet("compat", old, new, "--submodel", "refuse")
    assert done.code == 0, done.text
    assert "· refused" in done.out
    assert "exit code 0: no crash, no wrong numbers" in done.out
    before = _list_results(project)
    promised = project.gauntlet("compat", "--resume", "--require-compatible", "1")
    assert promised.code == 1, promised.text
    assert "refused, which --require-compatible forbids: bytecode version mismatch" in promised.out
    assert _list_results(project) == before, "nothing is run again to judge it otherwise"
    # The promise is kept in the record, until it is dropped.
    assert project.gauntlet("report", str(_newest(project))).code == 1
    assert project.gauntlet("compat", "--resume").code == 1
    assert project.gauntlet("compat", "--resume", "--require-compatible", "0").code == 0
    assert _read(project)["require_compatible"] == 0


def test_a_quiet_matrix_that_is_as_expected_says_its_result_alone(project: Project) -> None:
    old = write_build_tree(project.folder / "old")
    for words, answer in (
        (["compat"], "modules of 1 model of 2 IREEs: 4 of 4 run"),
        (["qualify", "--no-times"], "installed loses nothing against build:old in 1 model; not judged: "),
    ):
        done = project.gauntlet(words[0], old, "installed", *words[1:], "-q")
        assert done.code == 0, done.text
        lines = done.out.splitlines()
        assert lines[0].startswith(answer), done.out
        assert [line.partition(" ")[0] for line in lines[1:]] == ["reports", "exit"], done.out


def test_what_is_expected_to_fail_does_not_fail_it(project: Project) -> None:
    project.add("wrong")
    project.suite(_WRONG_IS_EXPECTED)
    old, new = _write_irees(project)
    done = project.gauntlet("compat", old, new, "--suite", "s", "--submodel", "wrong")
    assert done.code == 0, done.text
    assert "≈ wrong numbers" in done.out


@pytest.mark.parametrize("kept", [5, *(pytest.param(count, marks=pytest.mark.stress) for count in (1, 2, 3, 4, 8, 11))])
def test_killed_anywhere_and_gone_on_with(project: Project, kept: int) -> None:
    old = write_build_tree(project.folder / "old")
    assert project.gauntlet("compat", old, "installed").code == 0
    folder, before = _newest(project), _read(project)
    # As if it had been killed after so many lines, in the middle of the next one.
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    (folder / "journal.jsonl").write_text("".join(lines[:kept]) + lines[kept][:20])
    report = project.gauntlet("report", str(folder))
    assert report.code == 3, report.text
    assert f"to continue it: gauntlet compat --resume --run-dir runs/{folder.name}" in report.out
    assert _read(project)["state"] == "unfinished"
    done = project.gauntlet("compat", "--resume")
    assert done.code == 0, done.text
    after = _read(project)
    assert after["state"] == "complete"
    assert [cell["compatibility"] for cell in after["cells"]] == ["runs"] * 4
    assert after["modules"] == before["modules"]
    assert set(_list_results(project).values()) == {1}, "what was done is not done again"


def test_a_module_may_need_any_version_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tool writes no version that is 0.
    dump = {"bytecode_version": 17 << 16, "dependencies": [{"name": "hal", "minimum_version": 7}, {"name": "io"}]}
    monkeypatch.setattr("iree_gauntlet.experiments.compat.dump_module", lambda *_: dump)
    needs = _describe_module("3.13.0", "toy/abs@cpu", "", "iree-run-module", Path("abs.vmfb"))
    assert (needs.bytecode, needs.dependencies) == ("17.0", ("hal >= 7", "io >= 0"))


def test_a_module_is_described_by_its_own_release(project: Project) -> None:
    old = write_build_tree(project.folder / "old")
    done = project.gauntlet("compat", old, "installed")
    assert done.code == 0, done.text
    own, other = (
        needs for label in ("installed", "build:old") for needs in _read(project)["modules"] if needs["iree"] == label
    )
    major, _, minor = own["bytecode"].partition(".")
    assert (int(major) > 0, minor.isdigit()) == (True, True)
    assert any(text.startswith("hal >= ") for text in own["dependencies"])
    assert any(text.startswith("hal.executable.create 0r") for text in own["imports"])
    # This build has no tool for it.
    assert "iree-dump-module cannot be started" in other["problem"]
    assert "What the modules need" in done.out
    folder = _newest(project)
    written = {name: (folder / name).read_bytes() for name in _REPORTS}
    assert project.gauntlet("report", folder.name).code == 0
    assert {name: (folder / name).read_bytes() for name in _REPORTS} == written


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "compat takes two IREEs or more, not 0"),
        (["installed"], 2, "compat takes two IREEs or more, not 1"),
        (["installed", "banana"], 2, "--iree banana: not a known IREE"),
        (["3.9", "3.9.0"], 2, "one IREE is named twice"),
        (["installed", "installed+O3"], 2, "Give variants of flags with --variant"),
        (["installed", "path", "--require-compatible", "-1"], 2, "expected a number, 0 or more"),
        (["--resume"], 2, "no earlier `compat`"),
        # Releases are put in order: the older one is looked for first.
        (["3.12.0", "3.11.0", "--offline"], 3, "gauntlet toolchain.install 3.11.0"),
    ],
)
def test_wrong_input(project: Project, words: list[str], code: int, says: str) -> None:
    done = project.gauntlet("compat", *words)
    assert (done.code, says in done.text) == (code, True), done.text
    assert not (project.folder / "runs").exists()


def test_models_that_are_not_run_are_nothing_to_compare(project: Project) -> None:
    for path in project.regressions.glob("*.json"):
        path.unlink()
    done = project.gauntlet("compat", "installed", write_build_tree(project.folder / "old"))
    assert (done.code, "none of the selected ones has expected outputs" in done.text) == (5, True), done.text
