"""Environment variables in specs' flags: a few are allowed, in the places where upstream's programs read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.op_trees import COMPILE_FLAGS, add_onnx, list_op_problems, load_ops, write_config
from tests.support.spec_trees import find_argv, plan, write_tree
from tests.support.torch_trees import MODULE, QUALITY, TREE, load_torch

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.dialects.load import CaseSet

ALL = (Stage.COMPILE, Stage.THRESHOLD)
HIP = ["--iree-hal-target-device=hip"]
TUNED = [*COMPILE_FLAGS, "--iree-codegen-transform-dialect-library=${IREE_TEST_PATH_EXTENSION}/spec.mlir"]


def loaded(folder: Path, **files: Any) -> CaseSet:
    """What a tree of torch models means with some files of the model `m` changed."""
    changed = {f"torch_models/m/{name}.json": content for name, content in files.items()}
    return load_torch(write_tree(folder, TREE | changed))


# Torch models


def test_a_variable_of_flags_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IREE_TEST_PATH_EXTENSION", "/tuning")
    monkeypatch.setenv("ROCM_CHIP", "gfx950")
    flags = [*HIP, "--iree-hip-target=${ROCM_CHIP}", "--x=${IREE_TEST_PATH_EXTENSION}/spec.mlir", "--y=$HOME"]
    run_args = ["--device=hip", "--z=${IREE_TEST_PATH_EXTENSION}"]
    files = {"modules/a": MODULE | {"compiler_flags": flags}, "quality": QUALITY | {"run_args": run_args}}
    cases = loaded(tmp_path, **files)
    assert not cases.problems
    assert {case.target for case in cases.cases} == {Target("rocm", "gfx950")}
    made = plan(cases, ALL)
    assert "--x=/tuning/spec.mlir" in find_argv(made, "m/modules/a@rocm-gfx950:compile")
    assert "--y=$HOME" in find_argv(made, "m/modules/a@rocm-gfx950:compile")
    assert "--z=/tuning" in find_argv(made, "m/quality@rocm-gfx950:threshold")


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("IREE_TEST_PATH_EXTENSION", raising=False)
    if value is not None:
        monkeypatch.setenv("IREE_TEST_PATH_EXTENSION", value)
    flags = {"compiler_flags": ["--a", "--x=${IREE_TEST_PATH_EXTENSION}/spec.mlir"]}
    problem = loaded(tmp_path, **{"modules/a": MODULE | flags}).problems[0]
    assert problem.field == "compiler_flags[1]"
    assert "${IREE_TEST_PATH_EXTENSION}: the variable is not set" in problem.message
    assert "Set IREE_TEST_PATH_EXTENSION" in problem.hint


@pytest.mark.parametrize("name", ["HOME", "AWS_SECRET_ACCESS_KEY", "", "x y"])
def test_other_variables_of_the_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    problems = loaded(tmp_path, quality=QUALITY | {"run_args": [f"--x=${{{name}}}"]}).problems
    assert [problem.field for problem in problems] == ["run_args[0]"]
    assert f"${{{name}}} is not a variable for flags" in problems[0].message
    assert "IREE_TEST_PATH_EXTENSION" in problems[0].hint


# Operator suites


@pytest.mark.parametrize("value", ["/tuning", None])
def test_a_config_finds_its_files_in_the_folder_of_the_variable_or_of_the_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("IREE_TEST_PATH_EXTENSION", raising=False)
    if value:
        monkeypatch.setenv("IREE_TEST_PATH_EXTENSION", value)
    folder = add_onnx(tmp_path)
    write_config(tmp_path, iree_compile_flags=TUNED)
    cases = load_ops(tmp_path)
    assert not cases.problems
    flag = f"--iree-codegen-transform-dialect-library={value or folder}/spec.mlir"
    assert flag in find_argv(plan(cases, ALL), "node/test_a@cpu:compile")


def test_a_config_with_another_variable_is_refused(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, iree_compile_flags=[*TUNED, "--x=${HOME}"])
    (line,) = list_op_problems(tmp_path)
    assert line.startswith("configs/cpu.json:7: iree_compile_flags[3]: ${HOME} is not a variable for flags")
