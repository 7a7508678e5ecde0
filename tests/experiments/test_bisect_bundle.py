"""`bisect --bundle`: the first IREE with which a bundle fails; the bundle's script gets the folder of the tools."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.experiments.explaining.bundle import BundleContents, BundleFiles, write_bundle
from iree_gauntlet.experiments.explaining.tools import WRONG, Symptom
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.records.bisect_outcome import read_bisect_outcome
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import LIMIT_SECONDS
from tests.support.faulty_iree import write_build_tree
from tests.support.hanging import HANG
from tests.support.processes import wait_until
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_SCRIPT = """\
case "$IREE_COMPILE $IREE_RUN_MODULE" in
%s
esac
"""


def bundle_that_says(folder: Path, **ends: str) -> Path:
    """A bundle that ends with each build, by its name, as is said."""
    folder.mkdir()
    (folder / "bundle.json").write_text(json.dumps({"title": "Wrong sums", "packages": ["iree==3.6.0"]}))
    cases = [f"*/{name}/tools/iree-compile\\ */{name}/tools/iree-run-module) {what} ;;" for name, what in ends.items()]
    (folder / "repro.sh").write_text(_SCRIPT % "\n".join(cases))
    return folder


def words(folder: Path, bundle: Path, count: int) -> list[str]:
    """A bisect of a bundle among so many builds, `b0` (good) first."""
    row = [write_build_tree(folder / "builds" / f"b{index}", name=f"b{index}") for index in range(count)]
    among = [word for iree in row[1:-1] for word in ("--among", iree)]
    return ["bisect", "--bundle", str(bundle), "--good", row[0], "--bad", row[-1], *among]


def found(project: Project) -> dict[str, Any]:
    (report,) = (project.folder / "runs").glob("*-bisect/bisect.json")
    return dict(json.loads(report.read_text()))


def test_the_first_iree_with_which_a_bundle_fails(project: Project, tmp_path: Path) -> None:
    ends = {"b0": "exit 0", "b1": "exit 0", "b2": 'echo "x.mlir:1:1: error: unknown op"; exit 125', "b3": "exit 1"}
    bundle = bundle_that_says(tmp_path / "bundle", **ends, b4="echo odd; exit 7", b5="exit 1")
    done = project.gauntlet(*words(tmp_path, bundle, 6))
    assert done.code == 4, done.text
    assert "Bisect of Wrong sums by repro.sh" in done.out
    assert "between b1 (good) and b3 (bad); could not be judged: b2" in done.out
    values = {item["label"]: (item["value"], item["reason"]) for item in found(project)["candidates"] if item["tried"]}
    assert values["b0"] == (1.0, "")
    assert values["b2"] == (None, "repro.sh exits with 125: unknown op")
    assert values["b3"] == values["b5"] == (0.0, "")
    folder = max((project.folder / "runs").glob("*-bisect"))
    for name in ("bisect.md", "bisect.html"):
        assert "between b1 (good) and b3 (bad)" in (folder / name).read_text()
    # From the record alone; what it holds is not asked again.
    reported = project.gauntlet("report", folder.name)
    assert (reported.code, reported.out in done.out) == (4, True), reported.text
    again = project.gauntlet("bisect", "--resume", "--bundle", str(tmp_path / "another"))
    assert (again.code, "was started with" in again.err) == (2, True), again.text


def test_a_bundle_of_explain_is_asked_as_it_is(project: Project, tmp_path: Path) -> None:
    iree = find_installed()
    program = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n"
    arguments = ("--function=f", "--input=4xf32=1", "--expected_output=4xf32=2")
    contents = BundleContents(
        title="Wrong",
        paragraphs=(),
        program=program.encode(),
        flags=tuple(FLAGS),
        device="local-task",
        arguments=arguments,
        files=BundleFiles(),
        iree=iree,
        symptom=Symptom(WRONG),
    )
    archive = write_bundle(contents, tmp_path / "bundle").archive
    # The one that passes puts in the expected value.
    passes = 'for word; do shift; set -- "$@" "$(echo "$word" | sed s/4xf32=2/4xf32=1/)"; done'
    good, bad = (
        write_build_tree(tmp_path / "builds" / "b0", iree_run_module=passes),
        write_build_tree(tmp_path / "builds" / "b1"),
    )
    done = project.gauntlet("bisect", "--bundle", str(archive), "--among", good, "--good", good, "--bad", bad)
    assert done.code == 0, done.text
    assert "first bad: b1; last good: b0 · exact · 2 of 2 tried" in done.out
    assert found(project)["candidates"][1]["toolchain"]["compiler_commit"] == iree.compiler.commit
    wrong = project.gauntlet("bisect", "--bundle", str(archive), "--among", bad, "--good", bad, "--bad", good)
    assert (wrong.code, "good and bad are swapped" in wrong.out) == (1, True), wrong.text


def test_interrupted_it_goes_on_with_the_bundle_that_it_keeps(project: Project, tmp_path: Path) -> None:
    gate = tmp_path / "closed"
    gate.touch()
    hangs = f'if [ -e "{gate}" ]; then echo hangs; {HANG}; fi; exit 0'
    bundle = bundle_that_says(tmp_path / "bundle", b0="exit 0", b1=hangs, b2="exit 1")
    (bundle / "env").mkdir()
    process = project.start(*words(tmp_path, bundle, 3))
    runs = project.folder / "runs"
    wait_until(lambda: any(path.read_text() for path in runs.glob("*/b1/repro.txt")))
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_SECONDS) == 130
    (record,) = runs.glob(f"*/{JOURNAL}")
    assert "it was interrupted" in (record.parent / "bisect.md").read_text()
    assert sorted(path.name for path in (record.parent / "bundle").iterdir()) == ["bundle.json", "repro.sh"]
    gate.unlink()
    shutil.rmtree(bundle)
    done = project.gauntlet("bisect", "--resume")
    assert done.code == 0, done.text
    assert "first bad: b2; last good: b1" in done.out
    assert list(read_bisect_outcome(record.parent).results) == ["b0", "b2", "b1"]


_ENDS = ["--good", "3.9.0", "--bad", "3.12.0"]


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        ([], 2, "bisect needs --good"),
        ([*_ENDS, "--metric", "size"], 2, "--metric and --bundle exclude each other"),
        ([*_ENDS, "--model", "toy"], 2, "--model and --bundle exclude each other"),
        ([*_ENDS, "--cpus", "1"], 2, "--cpus and --bundle exclude each other"),
        ([*_ENDS, "--timeout-compile", "3"], 2, "--timeout-compile and --bundle exclude each other"),
        ([*_ENDS, "--bundle", "nowhere.tar.gz"], 2, "there is no bundle nowhere.tar.gz"),
        ([*_ENDS, "--bundle", "specs"], 3, "is not a bundle"),
    ],
)
def test_wrong_input(project: Project, tmp_path: Path, more: list[str], code: int, says: str) -> None:
    bundle = [] if "--bundle" in more else ["--bundle", str(bundle_that_says(tmp_path / "bundle"))]
    done = project.gauntlet("bisect", "--offline", *bundle, *more)
    assert (done.code, says in done.err) == (code, True), done.text
    assert not list(project.folder.glob("runs/*"))
