"""A second real backend: Vulkan on any device of this machine (Mesa's lavapipe runs on every machine)."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.op_trees import COMPILE_FLAGS, write_config
from tests.support.processes import find_processes, wait_until
from tests.support.spec_trees import write_tree
from tests.support.toy_project import INPUT

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.journal_events import Device
    from tests.support.toy_project import Project

pytestmark = [pytest.mark.iree, pytest.mark.vulkan, pytest.mark.usefixtures("vulkan")]

BOTH = ("--target", "cpu", "--target", "vulkan")
# Goes on until it is ended: its condition is computed on the device.
SPIN = """
func.func @spin(%a: tensor<4xf32>) -> tensor<4xf32> {
  %never = arith.constant 5.0e+30 : f32
  %zero = arith.constant 0 : index
  %0 = scf.while (%x = %a) : (tensor<4xf32>) -> tensor<4xf32> {
    %first = tensor.extract %x[%zero] : tensor<4xf32>
    %on = arith.cmpf olt, %first, %never : f32
    scf.condition(%on) %x : tensor<4xf32>
  } do {
  ^bb0(%y: tensor<4xf32>):
    %next = math.absf %y : tensor<4xf32>
    scf.yield %next : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}
"""
# What IREE's runtime says when a device is lost, from its list of Vulkan's results.
LOST = "iree/runtime/src/iree/hal/drivers/vulkan/util/libvulkan.c:107: INTERNAL; VK_ERROR_DEVICE_LOST"
ADD = """
func.func @add(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture
def both(project: Project) -> Project:
    """The toy on the CPU and on Vulkan."""
    project.regression(targets={"vulkan": {}})
    return project


def test_one_spec_runs_on_the_cpu_and_on_vulkan(both: Project, vulkan: Device) -> None:
    done = both.gauntlet("run", *BOTH)
    assert done.code == 0, done.text
    record = both.journal
    steps = {step["id"]: step for step in record.steps}
    assert {step["chain"] for step in record.steps} == {"toy/abs@cpu", "toy/abs@vulkan"}
    assert steps["toy/abs@vulkan:threshold"]["resources"]["device"] == vulkan.uri
    assert steps["toy/abs@vulkan:threshold"]["resources"]["software"] == vulkan.software
    assert record.run.machine.devices == (vulkan,)
    assert vulkan.uri in (both.newest / "summary.md").read_text()
    assert vulkan.name in (both.newest / "junit.xml").read_text()
    # What is fetched is fetched once for both.
    made = [item.url for result in record.results.values() for item in result.fetched if not item.cached]
    assert made == [INPUT]
    # Benchmarks are alone, whatever they run on.
    ran = sorted(
        (record.starts[step], record.result_times[step]) for step in steps if steps[step]["stage"] == Stage.BENCHMARK
    )
    assert len(ran) == 2
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(ran))


def test_an_import_is_made_once_for_both(project: Project) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, kind, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "abs", values[:1], values[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, project.regressions / "abs.onnx")
    project.regression(mlir="abs.onnx", targets={"vulkan": {}})
    done = project.gauntlet("run", *BOTH, "--stages", "threshold", "-j", "1")
    assert done.code == 0, done.text
    assert "imports: 1 from cache, 1 made" in done.out


@pytest.mark.parametrize("own_name", [True, False])
def test_however_a_device_is_spelled_it_is_one(both: Project, vulkan: Device, *, own_name: bool) -> None:
    named = vulkan.uri if own_name else "vulkan"
    done = both.gauntlet("run", "--target", "vulkan", "--stages", "threshold", "--device", named)
    assert done.code == 0, done.text
    (step,) = (step for step in both.journal.steps if step["stage"] == Stage.THRESHOLD)
    assert step["resources"]["device"] == vulkan.uri
    assert f"--device={named}" in step["command"]["argv"]


def test_a_device_that_is_not_there_is_an_error_and_the_others_run(both: Project) -> None:
    # Vulkan knows no ordinals.
    both.regression(targets={"vulkan": {"device": "vulkan://0"}})
    done = both.gauntlet("run", *BOTH, "--stages", "threshold")
    assert done.code == 3
    assert "no device 'vulkan://0' on this machine: vulkan has only vulkan://" in done.out
    assert both.verdict("toy/abs@cpu:threshold") == "passed"


def test_times_of_a_software_device_are_no_goldens(both: Project, vulkan: Device) -> None:
    if not vulkan.software:
        pytest.skip("needs a Vulkan device in software")
    both.benchmark(golden_time_ms={"vulkan-me": 1000.0})
    assert both.gauntlet("run", "--target", "vulkan", "--sku", "me", "--disturbed", "count").code == 0
    done = both.gauntlet("golden.update", "--sku", "me", "--target", "vulkan")
    assert f"{vulkan.uri} is a software device" in done.text
    assert "nothing to change" in done.text


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGSEGV, "crashed with SIGSEGV"),
        pytest.param(signal.SIGSTOP, "ran longer than its", marks=pytest.mark.stress),
    ],
)
def test_a_run_that_crashes_or_stands_still_is_an_error_and_the_others_go_on(
    both: Project, number: signal.Signals, says: str
) -> None:
    both.add("spin")
    (both.regressions / "spin.mlir").write_text(SPIN)
    # Only what stands still needs a limit, and reaches it on any machine.
    limits = {"timeouts": {"threshold": 3}} if number == signal.SIGSTOP else {}
    both.regression("spin", targets={"vulkan": {}}, **limits)
    command = both.start("run", "--target", "vulkan", "--stages", "threshold")

    def spinning() -> list[int]:
        # Not the compiler, which names the module too.
        here = find_processes(str(both.folder))
        return [pid for pid in find_processes("spin.vulkan/compile/module.vmfb --function=spin") if pid in here]

    wait_until(spinning)
    for pid in spinning():
        os.kill(pid, number)
    assert command.wait() == 3
    assert both.verdict("toy/spin@vulkan:threshold") == "error"
    assert says in both.result("toy/spin@vulkan:threshold")["reason"]
    assert both.verdict("toy/abs@vulkan:threshold") == "passed"


def test_a_device_that_is_lost_is_an_error_with_its_next_step_and_the_others_go_on(both: Project) -> None:
    real = shlex.quote(find_installed().runtime.run_module)
    lost = f'case "$*" in *--device=vulkan*) echo "{LOST}" >&2; exit 1;; esac; exec {real} "$@"'
    done = both.gauntlet("run", *BOTH, "--stages", "threshold", run_module=both.write_tool(lost))
    assert done.code == 3
    result = both.result("toy/abs@vulkan:threshold")
    assert result["verdict"] == "error"
    assert "lost its device (VK_ERROR_DEVICE_LOST): see dmesg, and whether `gauntlet devices`" in result["reason"]
    assert both.verdict("toy/abs@cpu:threshold") == "passed"


def test_configs_of_two_targets_run_in_one_go(project: Project, tmp_path: Path) -> None:
    root = write_tree(
        tmp_path / "suite",
        {
            "node/test_add/model.mlir": ADD,
            "node/test_add/run_module_io_flags.txt": "--input=4xf32=1 2 3 4\n--expected_output=4xf32=2 4 6 8\n",
        },
    )
    configs = [
        write_config(root, "cpu", iree_compile_flags=COMPILE_FLAGS),
        write_config(
            root,
            "gpu_vulkan",
            iree_compile_flags=["--iree-hal-target-device=vulkan"],
            iree_run_module_flags=["--device=vulkan"],
        ),
    ]
    words = [word for path in configs for word in ("--config", str(path))]
    done = project.gauntlet("run", "--spec-dir", str(root / "node"), *words)
    assert done.code == 0, done.text
    assert {step["chain"] for step in project.journal.steps} == {"node/test_add@cpu", "node/test_add@gpu_vulkan"}


def test_devices_are_listed_with_what_they_are(project: Project, vulkan: Device) -> None:
    done = project.gauntlet("devices")
    assert done.code == 0
    (line,) = (line for line in done.out.splitlines() if line.startswith("vulkan"))
    assert vulkan.uri in line
    assert line.endswith(vulkan.text)
    assert vulkan.text in project.gauntlet("doctor").out
