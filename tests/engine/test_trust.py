"""Flags of a stranger's spec that could do harm: the toolkit names them, and `--untrusted` runs none of them."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from iree_gauntlet.engine.workspace import find_risky_flags
from iree_gauntlet.toolchains.flags import parse_compiler_help, parse_runtime_help
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

# What a flag's name, or the tool's words about it, have where it starts a program or loads code.
_TELLING = re.compile(
    r"linker-path|plugin|dylib|ptxas-from|preprocess-|substitute|bc-dir|object-search|link-bitcode|libvulkan"
)
# They list or choose what is built in, or give a program its options.
_HARMLESS = {
    "iree-plugin",
    "iree-list-plugins",
    "iree-print-plugin-info",
    "iree-hal-substitute",
    "iree-llvmcpu-link-ukernel-bitcode",
}


def risks(*flags: str) -> list[str]:
    return [what for _, what in find_risky_flags(flags)]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--iree-llvmcpu-embedded-linker-path=ld"], "names a program"),
        (["-iree-llvmcpu-system-linker-path", "/bin/ld"], "names a program"),
        (["--iree-hal-preprocess-executables-with=rm -rf ."], "names a program"),
        (["--iree-cuda-use-ptxas-from=x"], "names a program"),
        (
            ["--iree-preprocessing-pass-pipeline=builtin.module(iree-hal-preprocess-executables-with-tool{command=x})"],
            "names a program",
        ),
        (
            ["--iree-preprocessing-pass-pipeline=builtin.module(iree-hal-dump-executable-sources{path=/home/me})"],
            "may write outside",
        ),
        (["--iree-load-plugin=x.so"], "loads code"),
        (["--load=x.so"], "loads code"),
        (["--executable_plugin=x.so"], "loads code"),
        (["--hip_dylib_path=."], "loads code"),
        (["--module=x.vmfb"], "loads code"),
        (["--iree-link-bitcode=x.bc"], "loads code"),
        (["--iree-hal-substitute-executable-objects-from=."], "loads code"),
        (["--flagfile=x"], "reads more flags"),
        (["@x"], "reads more flags"),
        (["--mlir-print-ir-tree-dir=/home/me"], "may write outside"),
        (["-o", "/home/me/x"], "may write outside"),
        (["--output=@../x.npy"], "may write outside"),
        (["--iree-parameter-export=scope=../../x.irpa"], "may write outside"),
        (["--benchmark_out=~/x"], "may write outside"),
        (["--a-flag-of-the-next-release=/x"], "may write outside"),
    ],
)
def test_what_a_flag_can_do_is_said(flags: list[str], what: str) -> None:
    assert any(text.startswith(what) for text in risks(*flags)), risks(*flags)


@pytest.mark.parametrize(
    "flag",
    [
        *FLAGS,
        "--iree-opt-level=O3",
        "--mlir-print-ir-tree-dir=here",
        "--iree-hal-dump-executable-files-to=-",
        "--iree-codegen-tuning-spec-path=/specs/attention.mlir",
        "--iree-codegen-transform-dialect-library=/specs/tuner.mlir@__transform",
        "--parameters=model=/data/x.irpa",
        "--iree-preprocessing-pass-pipeline=builtin.module(iree-preprocessing-transpose-convolution-pipeline)",
        "--expected_f32_threshold=0.1",
        "--benchmark_repetitions=3",
        "--device=hip://0",
    ],
)
def test_usual_flags_are_not_suspected(flag: str) -> None:
    assert risks(flag) == []


@pytest.mark.iree
def test_every_such_flag_of_the_tools_is_known() -> None:
    """Of this release: a new one that starts or loads something makes this red."""
    toolchain = find_installed()
    compiler = subprocess.run(
        [toolchain.compiler.compile, "--help-list-hidden"], capture_output=True, text=True, check=True
    ).stdout
    runtime = subprocess.run(
        [toolchain.runtime.run_module, "--help"], capture_output=True, text=True, check=True
    ).stdout
    names = parse_compiler_help(compiler).names | parse_runtime_help(runtime).names
    telling = {name for name in names if _TELLING.search(name.replace("_", "-"))} - _HARMLESS
    assert len(telling) > 15
    assert {name for name in telling if not risks(f"--{name}=x")} == set()


def test_a_flag_with_one_dash_has_its_line_too(project: Project) -> None:
    project.regression(compiler_flags=[*FLAGS, "-iree-llvmcpu-system-linker-path=/bin/ld"])
    where = "specs/regression_tests/toy/abs_cpu.json:18: compiler_flags[3]: "
    assert f"{where}--iree-llvmcpu-system-linker-path=/bin/ld names a program" in project.gauntlet("lint").out


@pytest.mark.iree
def test_specs_of_a_stranger(project: Project, plain_folder: Path) -> None:
    project.add("evil")
    np.save(project.regressions / "evil.npy", np.zeros(4, np.float32))
    proof = project.folder / "started"
    # IREE starts none in a path with blanks.
    program = plain_folder / "linker.sh"
    program.write_text(f"#!/bin/sh\ntouch '{proof}'\nexit 1\n")
    program.chmod(0o755)
    flag = f"--iree-llvmcpu-embedded-linker-path={program}"
    project.regression("evil", compiler_flags=[*FLAGS, flag])
    what = f"specs/regression_tests/toy/evil_cpu.json:18: compiler_flags[3]: {flag} names a program, which is started"
    checked = project.gauntlet("lint")
    assert (checked.code, f"warning: {what}" in checked.out) == (0, True), checked.text
    refused = project.gauntlet("run", "--untrusted", "--stages", "compile")
    assert refused.code == 3, refused.text
    assert f"refused by --untrusted: {what}" in refused.out
    assert "2 cases: 1 error, 1 passed" in refused.out
    assert not proof.exists()
    done = project.gauntlet("run", "--stages", "compile")
    assert f"warning: {what}" in done.err
    assert proof.exists()


@pytest.mark.iree
@pytest.mark.parametrize("link", [False, True])
def test_files_outside_of_a_strangers_project_are_not_read(project: Project, link: bool) -> None:
    secret = project.folder.parent / "secret.npy"
    np.save(secret, np.ones(4, np.float32))
    if link:
        (project.regressions / "in.npy").symlink_to(secret)
    project.regression(inputs=[{"source": "in.npy" if link else secret.as_uri()}])
    done = project.gauntlet("run", "--untrusted", "--stages", "threshold")
    assert done.code == 3, done.text
    assert f"inputs[0].source: {secret} is outside of the project" in done.out


@pytest.mark.iree
def test_weights_beside_a_strangers_model_are_not_read_through_a_link(project: Project) -> None:
    secret = project.folder.parent / "secret.bin"
    np.ones(4, np.float32).tofile(secret)
    weights = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    value = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["w"], ["y"])], "abs", [], [value], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = project.regressions / "abs.onnx"
    onnx.save(model, path, save_as_external_data=True, location="abs.bin", size_threshold=0)
    (project.regressions / "abs.bin").unlink()
    (project.regressions / "abs.bin").symlink_to(secret)
    project.regression(mlir="abs.onnx", inputs=[], outputs=[{"value": "4xf32=1 1 1 1"}])
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 0, done.text
    refused = project.gauntlet("run", "--untrusted", "--stages", "threshold")
    assert refused.code == 3, refused.text
    assert f"mlir: {secret} is outside of the project" in refused.out


@pytest.mark.iree
def test_a_suite_of_a_stranger_makes_no_folder_one_of_the_project(project: Project) -> None:
    elsewhere = project.folder.parent / "elsewhere"
    (project.folder / "specs").rename(elsewhere)
    project.suite('spec_dirs = ["../../elsewhere"]\n')
    words = ("run", "--stages", "threshold", "--suite", "s")
    assert project.gauntlet(*words).code == 0
    done = project.gauntlet(*words, "--untrusted")
    assert done.code == 3, done.text
    # The reason of a step is cut where paths are long; the warning is not.
    assert "elsewhere/regression_tests/toy/abs.mlir is outside of the project" in done.text
    assert project.gauntlet(*words, "--untrusted", "--spec-dir", str(elsewhere)).code == 0


def test_a_strangers_settings_are_not_taken(project: Project) -> None:
    (project.folder / "gauntlet.toml").write_text('[downloads]\nretries = 1\n[modules]\nurl = "s3://b/m"\n')
    done = project.gauntlet("list", "--untrusted")
    assert done.code == 2, done.text
    assert "gauntlet.toml sets modules, which --untrusted does not accept from a project" in done.err
    (project.folder / "gauntlet.toml").write_text('"$schema" = "schema.json"\n[downloads]\nretries = 1\n')
    assert project.gauntlet("list", "--untrusted").code == 0


@pytest.mark.parametrize("command", ["golden.record", "golden.sensitivity", "golden.set", "golden.update"])
def test_specs_of_strangers_are_not_changed(project: Project, command: str) -> None:
    done = project.gauntlet(command, "--model", "toy", "--untrusted")
    assert (done.code, "--untrusted is not for commands that change specs" in done.err) == (2, True)
