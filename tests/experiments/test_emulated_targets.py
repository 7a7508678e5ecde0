"""Modules for arm64 on any machine: under qemu, with the runtime of IREE's wheel for aarch64."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.targets import Target
from iree_gauntlet.toolchains.target_runtimes import explain_missing_runner
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.command_line import CommandResult

# A processor without SVE, and modules compiled for one that has it.
_SETTINGS = """
[targets.arm64-small]
compiler_flags = [
  "--iree-llvmcpu-target-triple=aarch64-linux-gnu",
  "--iree-llvmcpu-target-cpu=generic",
  "--iree-llvmcpu-target-cpu-features=+sve",
]
runner = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", "cortex-a53"]
"""
_VARIANT = "scalable=--iree-llvmcpu-enable-scalable-vectorization=true"
_TARGETS = ("arm64-sve@128", "arm64-sve@512", "arm64-small")
# Products of matrices have vectors without a fixed length.
_PROGRAM = """
func.func @product(%a: tensor<16x16xf32>, %b: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<16x16xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x16xf32>) -> tensor<16x16xf32>
  %product = linalg.matmul ins(%a, %b : tensor<16x16xf32>, tensor<16x16xf32>)
    outs(%fill : tensor<16x16xf32>) -> tensor<16x16xf32>
  return %product : tensor<16x16xf32>
}
"""
_INPUT = "random://uniform/16x16xf32?seed={}&low=-1&high=1"
# IREE's runtime cannot be fetched without a network.
_NOT_INSTALLED = re.compile(r"uv cannot install \S+ for \S+|uv did not answer")


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, CommandResult]]:
    """A project and its run on all targets."""
    if platform.machine() != "x86_64":
        pytest.skip("needs a machine of another architecture than arm64")
    if reason := explain_missing_runner(Target("cpu", "aarch64")):
        pytest.skip(f"needs qemu: {reason}")
    project = Project(tmp_path_factory.mktemp("emulated") / "project", cache="flags")
    (project.folder / "gauntlet.toml").write_text(_SETTINGS)
    (project.regressions / "product.mlir").write_text(_PROGRAM)
    inputs = [_INPUT.format(seed) for seed in (1, 2)]
    a, b = (parse_seeded(url).generate() for url in inputs)
    np.save(project.regressions / "product.npy", a @ b)
    project.regression("product", inputs=[{"source": url} for url in inputs])
    project.benchmark("product", inputs=["16x16xf32", "16x16xf32"])
    targets = [word for name in _TARGETS for word in ("--target", name)]
    done = project.gauntlet("run", "--submodel", "product", "--memory", "--variant", _VARIANT, *targets)
    if _NOT_INSTALLED.search(done.text):
        pytest.skip("needs the wheel of IREE's runtime for aarch64")
    yield project, done
    project.close()


def test_numbers_are_checked_and_times_are_not_taken(emulated: tuple[Project, CommandResult]) -> None:
    project, done = emulated
    # The wheel of the runtime was checked by the index's hashes.
    (pins,) = (project.folder / "cache" / "toolchains" / "envs").glob("*-manylinux_2_28_aarch64-*/requirements.txt")
    assert "--hash=sha256:" in pins.read_text()
    for chip in ("aarch64-sve-128", "aarch64-sve-512"):
        chain = f"toy/product@cpu-{chip}"
        assert project.verdict(f"{chain}:threshold") == "passed", done.text
        assert project.result(f"{chain}:threshold")["command"].count("qemu-aarch64 -L ") == 1
        assert project.result(f"{chain}:memory")["statistics"].keys() == {
            *("peak_memory_bytes", "host_memory_bytes", "loaded_memory_bytes")
        }
        benchmark = project.result(f"{chain}:benchmark")
        assert (benchmark["verdict"], benchmark["samples"]) == ("skipped", None)
        assert benchmark["reason"].startswith(f"no time: qemu-aarch64 emulates cpu-{chip}")


def test_each_length_of_vectors_gives_the_same_numbers(emulated: tuple[Project, CommandResult]) -> None:
    _, done = emulated
    assert re.search(r"toy/product@cpu-aarch64-sve +the same bytes +\S+ +\S+\n", done.out), done.out
    assert "1 of 1 models have the same verdict with each length" in done.out


def test_a_feature_that_the_processor_lacks_is_an_illegal_instruction(emulated: tuple[Project, CommandResult]) -> None:
    project, done = emulated
    assert done.code == 3, done.text
    result = project.result("toy/product@cpu-aarch64-small:threshold")
    assert (result["verdict"], result["signal"], result["failure"]) == ("error", "SIGILL", "crashes")
    # `addvl sp, sp, #…` of SVE.
    pattern = (
        r"iree-run-module crashed with SIGILL at 0x[0-9a-f]+, instruction 043f5[0-9a-f]{3}, in dispatch product_\w+"
    )
    assert re.fullmatch(pattern, result["reason"]), result["reason"]


def test_only_failures_of_this_machine_are_explained(emulated: tuple[Project, CommandResult]) -> None:
    project, _ = emulated
    done = project.gauntlet("explain", "latest", "*small")
    assert done.code == 4, done.text
    assert "it ran by qemu-aarch64, and only runs by this machine are explained" in done.text


def test_a_plan_shows_the_runner(emulated: tuple[Project, CommandResult]) -> None:
    project, _ = emulated
    done = project.gauntlet("plan", "--submodel", "product", "--target", "arm64", "--stages", "threshold")
    command = next(line for line in done.out.splitlines() if "$ qemu-aarch64" in line)
    words = shlex.split(command.partition("$")[2])
    assert words[:5] == ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", "max"]
    assert words[5].endswith("/iree-run-module")


def test_a_history_has_no_time_of_an_emulator(emulated: tuple[Project, CommandResult]) -> None:
    project, _ = emulated
    folder = project.folder / "history"
    shutil.rmtree(folder, ignore_errors=True)
    done = project.gauntlet("history.add", str(project.newest), "--store", str(folder))
    assert done.code == 0, done.text
    (document,) = (json.loads(path.read_text()) for path in folder.rglob("*.json"))
    names = {case["target"]: {figure["name"] for figure in case["figures"]} for case in document["cases"]}
    assert "max_error" in names["cpu-aarch64-sve-512+scalable"]
    assert not any("time_ms" in figures or "process_peak_bytes" in figures for figures in names.values())
