"""Compiles of a model for a GPU on a machine without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.devices import find_device
from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from tests.support.toy_project import Project


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
