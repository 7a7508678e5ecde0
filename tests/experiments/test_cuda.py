"""A model compiled for an NVIDIA GPU on a machine that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.devices import find_device
from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from tests.support.toy_project import Project


def test_where_there_is_no_gpu_a_suite_may_compile_and_not_run(project: Project) -> None:
    try:
        find_device(find_installed(), "cuda")
    except ToolchainError:
        pass
    else:
        pytest.skip("needs a machine without an NVIDIA GPU")
    project.regression(targets={"cuda": {}})
    suite = 'name = "cuda"\ntarget = "sm_80"\nspec_dirs = ["../specs"]\ndevice_optional = true\n'
    (project.folder / "suites" / "cuda.toml").write_text(suite)
    done = project.gauntlet_process("run", "--suite", "suites/cuda.toml")
    assert done.code == 0, done.text
    chain = "toy/abs@cuda-sm_80"
    assert project.verdict(f"{chain}:compile") == "passed"
    assert project.verdict(f"{chain}:threshold") == "skipped"
