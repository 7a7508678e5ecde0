"""`explain` under faults: interrupts at any step, full disks, and missing files."""

from __future__ import annotations

import json
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.toolchains.installed import find_installed
from tests.experiments.test_explain import expected, explained, model, planted
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import HANG
from tests.support.permissions import mount_small_disk, resize_disk, with_mount_rights
from tests.support.processes import wait_until
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree


def wrong(project: Project, folder: Path) -> None:
    """A run of `toy/sums` whose sums are wrong, for a dispatch's fault."""
    flag, _ = planted(model(project, "8"), folder)
    model(project, "8", compiler_flags=[*FLAGS, flag], threshold_args=["--expected_f32_threshold=1e-3"])
    expected(project)
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums").code == 1


def real(tool: str) -> str:
    iree = find_installed()
    return {"compile": iree.compiler.compile, "run_module": iree.runtime.run_module, "python": iree.compiler.python}[
        tool
    ]


def _hung_or_over(process: subprocess.Popen[bytes], reached: Path) -> bool:
    return reached.exists() or process.poll() is not None


@pytest.mark.stress
@pytest.mark.parametrize("tool", ["compile", "run_module", "python"])
def test_interrupted_at_any_process_it_goes_on_afterwards(project: Project, tmp_path: Path, tool: str) -> None:
    wrong(project, tmp_path)
    record = project.newest / "explain" / "journal.jsonl"
    hung = 0
    while True:
        calls, reached = tmp_path / f"calls_{hung}", tmp_path / f"reached_{hung}"
        count = f'echo . >> "{calls}"; if [ $(wc -l < "{calls}") -gt {hung} ]; then touch "{reached}"; {HANG}; fi'
        process = project.start("explain", **{tool: project.write_tool(f'{count}\nexec "{real(tool)}" "$@"\n')})
        wait_until(partial(_hung_or_over, process, reached))
        if not reached.exists():
            # It has fewer processes of this kind.
            assert process.wait(LIMIT_SECONDS) == 0
            break
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130
        found = explained(project)
        assert (found["exit_code"], [case["bundled"] for case in found["cases"]]) == (130, [False])
        assert record.read_text().endswith("}\n")
        hung += 1
    assert hung >= 1
    assert [case["bundled"] for case in explained(project)["cases"]] == [True]


@pytest.mark.stress
@with_mount_rights
@pytest.mark.parametrize("kilobytes", [8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024])
def test_a_full_disk_is_said_and_it_goes_on_afterwards(project: Project, tmp_path: Path, kilobytes: int) -> None:
    wrong(project, tmp_path)
    disk = project.newest / "explain"
    with mount_small_disk(disk, f"{kilobytes}k"):
        done = project.gauntlet("explain")
        if done.code:
            assert done.code == 3, done.text
            assert "No space left on device" in done.err, done.text
            # The reports alone, where that is all that there was no room for.
            bundled = bool(list(disk.rglob("bundle.tar.gz")))
            assert ("`report " in done.err) <= bundled, done.text
            assert "iree-compile failed" not in done.text
        resize_disk(disk, "64m")
        assert project.gauntlet("explain").code == 0
        assert [case["bundled"] for case in explained(project)["cases"]] == [True]


def lost(project: Project, file: str, **changes: Any) -> dict[str, Any]:
    """What is said of `toy/abs` when a file of it is gone, explained beside another failure."""
    project.regression("abs", **changes)
    for name in ("abs", "gone"):
        project.write_expected(name, [9.0] * 4)
    (project.regressions / "bad.mlir").write_text("func.func @bad() { nonsense }\n")
    project.regression("bad")
    assert project.gauntlet("run", "--model", "toy", "--stages", "threshold").code == 1
    (project.regressions / file).unlink()
    done = project.gauntlet("explain", "latest", "toy/abs@*", "toy/bad@*")
    assert done.code == 4, done.text
    found: dict[str, dict[str, Any]] = {case["case"]: case for case in explained(project)["cases"]}
    assert found["toy/bad@cpu"]["bundled"], "the other failure is explained"
    return found["toy/abs@cpu"]


def test_a_program_that_is_gone_says_so(project: Project) -> None:
    found = lost(project, "abs.mlir")
    assert (found["bundled"], "cannot be compiled again" in found["answer"]) == (False, True), json.dumps(found)


def test_an_input_that_is_gone_says_so(project: Project) -> None:
    found = lost(project, "gone.npy", outputs=[{"source": "gone.npy"}])
    assert "gone.npy is missing: toy/abs@cpu cannot be run again" in found["answer"], json.dumps(found)
