"""Compiles of a model for a GPU, or a processor, that the machine does not have."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.devices import find_device
from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from tests.support.toy_project import Project


def test_another_architecture_is_compiled_and_not_run(project: Project) -> None:
    # IREE has no wheel of its runtime for it.
    chip = "riscv64"
    project.regression()
    # Both have modules for the device `local-task`.
    done = project.gauntlet("run", "--target", "cpu", "--target", chip)
    assert done.code == 3, done.text
    assert project.verdict("toy/abs@cpu:threshold") == "passed"
    assert f"this machine is {platform.machine()}, which does not run modules for cpu-{chip}" in done.text
    assert "--stages compile makes them" in done.text
    done = project.gauntlet("run", "--target", chip, "--stages", "compile")
    assert done.code == 0, done.text
    (chain,) = json.loads((project.newest / "summary.json").read_text())["chains"]
    (code,) = next(step for step in chain["steps"] if step["stage"] == "compile")["statistics"]["code"]
    assert code["target"].startswith(chip)


@pytest.mark.parametrize(("driver", "target", "chip"), [("cuda", "cuda", "sm_80"), ("hip", "rocm", "gfx942")])
def test_where_there_is_no_gpu_a_suite_may_compile_and_not_run(
    project: Project, driver: str, target: str, chip: str
) -> None:
    try:
        find_device(find_installed(), driver)
    except ToolchainError:
        pass
    else:
        pytest.skip(f"needs a machine without a GPU of {driver}")
    project.regression(targets={target: {}})
    suite = f'name = "gpu"\ntarget = "{chip}"\nspec_dirs = ["../specs"]\ndevice_optional = true\n'
    (project.folder / "suites" / "gpu.toml").write_text(suite)
    done = project.gauntlet("run", "--suite", "suites/gpu.toml")
    assert done.code == 0, done.text
    chain = f"toy/abs@{target}-{chip}"
    assert project.verdict(f"{chain}:compile") == "passed"
    assert project.verdict(f"{chain}:threshold") == "skipped"
