"""The measuring worker with the real runtime: once in a process of its own, otherwise in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

from iree_gauntlet.workers import iree_side
from iree_gauntlet.workers.iree_side.device_context import DeviceProgram, OpenDevice, read_device_memory
from iree_gauntlet.workers.iree_side.measure_module import Carry, Context, measure, overhead_us, run_loop
from iree_gauntlet.workers.iree_side.plan_file import PlanError
from tests.support.clocks import Clock
from tests.support.command_line import LIMIT_SECONDS, CommandResult
from tests.support.worker_here import compile_for_cpu, run_plan_here, run_script

_Run: TypeAlias = Callable[[dict[str, Any]], CommandResult]

_SCRIPT = Path(iree_side.__file__).with_name("measure_module.py")
_PROGRAM = """
util.global private @weight = #flow.parameter.named<"model"::"weight"> : tensor<4xf32>
func.func @two(%a: tensor<4xf32>, %b: tensor<4xi64>) -> (tensor<4xf32>, tensor<4xbf16>, tensor<4xi64>) {
  %w = util.global.load @weight : tensor<4xf32>
  %0 = arith.mulf %a, %w : tensor<4xf32>
  %1 = arith.truncf %0 : tensor<4xf32> to tensor<4xbf16>
  %2 = arith.addi %b, %b : tensor<4xi64>
  return %0, %1, %2 : tensor<4xf32>, tensor<4xbf16>, tensor<4xi64>
}
"""
# What ONNX programs become, and so has a function that does not wait; the gradient of x is x here.
_STEP = """
func.func @step(%x: !torch.vtensor<[4],f32>, %sum: !torch.vtensor<[4],f32>)
    -> (!torch.vtensor<[],f32>, !torch.vtensor<[4],f32>) {
  %none = torch.constant.none
  %one = torch.constant.int 1
  %loss = torch.aten.sum %x, %none : !torch.vtensor<[4],f32>, !torch.none -> !torch.vtensor<[],f32>
  %next = torch.aten.add.Tensor %sum, %x, %one
      : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[4],f32>
  return %loss, %next : !torch.vtensor<[],f32>, !torch.vtensor<[4],f32>
}
"""
_STEP_THAT_WAITS = """
func.func @step(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> (tensor<f32>, tensor<4xf32>) {
  %zero = arith.constant dense<0.0> : tensor<f32>
  %loss = linalg.reduce ins(%x : tensor<4xf32>) outs(%zero : tensor<f32>) dimensions = [0]
    (%a: f32, %b: f32) {
      %0 = arith.addf %a, %b : f32
      linalg.yield %0 : f32
    }
  %next = arith.addf %sum, %x : tensor<4xf32>
  return %loss, %next : tensor<f32>, tensor<4xf32>
}
"""
# Says that it is there, and waits for the other one.
_MEET = """
util.func public @meet(%mine: !hal.fence, %other: !hal.fence) {
  hal.fence.signal<%mine : !hal.fence>
  %forever = arith.constant -1 : i32
  %status = hal.fence.await until([%other]) timeout_millis(%forever) flags(None) : i32
  util.status.check_ok %status, "the other one failed"
  util.return
}
"""
_TWO_MEET = """
import sys, threading
from iree_gauntlet.workers.iree_side.device_context import OpenDevice, DeviceProgram
device = OpenDevice("local-task")
here, there = device.make_fence(), device.make_fence()
meetings = [(here, there), (there, here)]
programs = [DeviceProgram(device, [sys.argv[1]], [], "meet") for _ in meetings]
threads = [threading.Thread(target=program.invoke, args=(fences,)) for program, fences in zip(programs, meetings)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("met")
"""
_ONE_AFTER_ANOTHER = """
import sys
import numpy as np
from iree_gauntlet.workers.iree_side.device_context import OpenDevice, DeviceProgram
device = OpenDevice("local-task")
program = DeviceProgram(device, [sys.argv[1]], [], "step")
x, zeros = (device.push(np.array(values, np.float32), "f32") for values in ([1.5, -2.25, 0, 3e4], [0] * 4))
begin = device.hal.create_semaphore(0)
first, first_done = program.start([x, zeros], device.runtime.HalFence.create_at(begin, 1))
second, done = program.start([x, first[1]], first_done)
if not done.wait(timeout=0): print("nothing is done")
begin.signal(1)
done.wait()
print(device.fetch(second[1]).tolist())
"""
_A = np.array([1.5, -2.25, 0.0, 3e4], np.float32)
_WEIGHT = np.array([2.0, 4.0, 8.0, 0.5], np.float32)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from iree import runtime  # noqa: PLC0415 - only where the runtime is

    folder = tmp_path_factory.mktemp("measured")
    programs = {"two": _PROGRAM, "step": _STEP, "waiting": f"{_STEP_THAT_WAITS}{_MEET}"}
    for name, text in programs.items():
        compile_for_cpu(text, folder / f"{name}.vmfb")
    index = runtime.ParameterIndex()
    index.add_buffer("weight", _WEIGHT.tobytes())
    index.create_archive_file(str(folder / "two.irpa"))
    np.save(folder / "a.npy", _A)
    np.save(folder / "b.npy", np.arange(4))
    np.save(folder / "zeros.npy", np.zeros(4, np.float32))
    return folder


def _plan(built: Path, **changes: Any) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "devices": ["local-task"],
        "modules": [str(built / "two.vmfb")],
        "parameters": [["model", str(built / "two.irpa")]],
        "function": "two",
        "inputs": [{"file": str(built / "a.npy"), "type": "f32"}, {"file": str(built / "b.npy"), "type": "i64"}],
        "calls": 20,
        "warm_up_calls": 1,
        "outputs": "",
    }
    return plan | changes


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> _Run:
    """What the worker does with a plan."""
    return lambda plan: run_plan_here(measure, plan, tmp_path, capfd)


@pytest.mark.iree
def test_calls_are_timed_one_by_one_and_outputs_are_right(built: Path, tmp_path: Path) -> None:
    done = run_script(_SCRIPT, _plan(built, outputs=str(tmp_path)), tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [len(times) for times in result["call_ms"]] == [20]
    assert 0 < sum(result["call_ms"][0]) / 1e3 <= result["total_s"]
    assert result["overhead_us"] > 0
    assert [item["type"] for item in result["outputs"]] == ["f32", "bf16", "i64"]
    first, second, third = (np.load(item["file"]) for item in result["outputs"])
    assert first.tolist() == (_A * _WEIGHT).tolist()
    assert second.view(ml_dtypes.bfloat16).tolist() == (_A * _WEIGHT).astype(ml_dtypes.bfloat16).tolist()
    assert third.tolist() == [0, 2, 4, 6]
    assert result["first_call_ms"] > 0
    assert result["peak_rss_bytes"] > 1 << 20
    assert result["device_memory"]["device_bytes_allocated"] > 0


@pytest.mark.iree
def test_contexts_share_the_calls(built: Path, run: _Run) -> None:
    done = run(_plan(built, devices=["local-task", "local-sync"], calls=9))
    assert done.code == 0, done.err
    assert [len(times) for times in json.loads(done.out)["call_ms"]] == [5, 4]


@pytest.mark.iree
@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"function": "three"}, 2, "has no function 'three': "),
        ({"devices": ["nothing://0"]}, 2, "nothing"),
        ({"devices": []}, 2, "expected a device or more"),
        ({"calls": 0}, 2, "0 calls on 1 devices"),
        ({"modules": ["/no/such.vmfb"]}, 2, "such.vmfb"),
        ({"inputs": [{"file": "/no/such.npy", "type": "f32"}]}, 2, "/no/such.npy: cannot be read"),
        ({"parameters": []}, 2, "required module 'io_parameters' not registered"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    built: Path, run: _Run, changes: dict[str, Any], code: int, says: str
) -> None:
    done = run(_plan(built, **changes))
    assert done.code in (1, 2), done.err
    assert (done.code, says in done.err) == (code, True), done.err
    assert done.err.count("\n") == 1, done.err
    assert done.out == ""


@pytest.mark.iree
def test_an_input_of_another_type_than_it_says(built: Path, run: _Run) -> None:
    inputs = [{"file": str(built / "b.npy"), "type": "f32"}, {"file": str(built / "b.npy"), "type": "i64"}]
    done = run(_plan(built, inputs=inputs))
    assert done.code == 2
    assert "contains int64, but f32 is stored as f4" in done.err


def _step_plan(built: Path, name: str, **changes: Any) -> dict[str, Any]:
    inputs = [{"file": str(built / "a.npy"), "type": "f32"}, {"file": str(built / "zeros.npy"), "type": "f32"}]
    plan = _plan(built, modules=[str(built / f"{name}.vmfb")], parameters=[], function="step", inputs=inputs)
    return plan | changes


def _context(built: Path, name: str, device: str = "local-task", **given: Any) -> Context:
    program = DeviceProgram(OpenDevice(device), [str(built / f"{name}.vmfb")], [], "step")
    return Context(program, [(_A, "f32"), (np.zeros(4, np.float32), "f32")], **given)


@pytest.mark.iree
@pytest.mark.parametrize(("name", "pushed"), [("step", "async"), ("waiting", "one by one")])
def test_several_calls_are_in_flight_where_the_module_can(
    built: Path, run: _Run, tmp_path: Path, name: str, pushed: str
) -> None:
    done = run(_step_plan(built, name, in_flight=4, outputs=str(tmp_path), fetch=[0]))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["pushed"] == pushed
    assert result["calls"] == 20
    assert [len(times) for times in result["call_ms"]] == [5], "groups"
    in_calls = sum(result["call_ms"][0]) * 4 / 1e3
    assert 0 < in_calls <= result["total_s"], "the time of a group, divided by its calls"
    assert [(item["type"], item["shape"]) for item in result["outputs"]] == [("f32", []), ("f32", [4])]
    loss, total = (np.load(item["file"]) for item in result["outputs"])
    assert (loss.shape, loss.tolist(), total.tolist()) == ((), _A.sum().tolist(), _A.tolist())


@pytest.mark.iree
def test_what_is_not_fetched_has_no_shape_where_nothing_is_checked(built: Path, run: _Run) -> None:
    done = run(_step_plan(built, "step", fetch=[0]))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["outputs"] == [{"file": "", "type": "f32", "shape": []}, {"file": "", "type": "f32"}]
    assert result["pushed"] == "one by one"


@pytest.mark.iree
@pytest.mark.parametrize("name", ["step", "waiting"])
@pytest.mark.parametrize("device", ["local-task", "local-sync"])
def test_outputs_are_those_of_each_call(built: Path, name: str, device: str) -> None:
    context = _context(built, name, device, in_flight=8)
    items = [[(_A + number, "f32"), (np.full(4, number, np.float32), "f32")] for number in range(8)]
    for _ in range(50):
        found = context.call_group(items)
        for number, (loss, total) in enumerate(found):
            assert total.tolist() == (_A + 2 * number).tolist()
            assert loss == pytest.approx((_A + number).sum())
    assert [output.tolist() for output in context.call_group()[7]] == [found[0][0].tolist(), _A.tolist()]


@pytest.mark.iree
@pytest.mark.parametrize("name", ["step", "waiting"])
@pytest.mark.parametrize("device", ["local-task", "local-sync"])
def test_gradients_are_summed_up_on_the_device_and_every_group_starts_anew(built: Path, name: str, device: str) -> None:
    context = _context(built, name, device, in_flight=3, carry=Carry(outputs=1, inputs=1, count=1))
    for _ in range(20):
        assert [total.tolist() for _, total in context.call_group()] == [(_A * times).tolist() for times in (1, 2, 3)]
    assert [array.tolist() for _, array in context.make_first_call(fetch_all=True) if array is not None][
        1
    ] == _A.tolist()
    quiet = _context(built, name, device, in_flight=3, carry=Carry(outputs=1, inputs=1, count=1), fetch=[0])
    assert [len(outputs) for outputs in quiet.call_group()] == [1, 1, 1]


def _python(program: str, module: Path) -> str:
    """In a process of its own: what waits for ever in the runtime is ended by nothing else."""
    root = Path(iree_side.__file__).parents[2]
    argv = [sys.executable, "-c", program, str(module)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.iree
def test_a_call_that_waits_for_another_one_is_not_waited_for(built: Path) -> None:
    assert _python(_ONE_AFTER_ANOTHER, built / "step.vmfb") == "nothing is done\n[3.0, -4.5, 0.0, 60000.0]\n"


@pytest.mark.iree
def test_functions_of_two_contexts_run_beside_each_other(built: Path) -> None:
    assert _python(_TWO_MEET, built / "waiting.vmfb") == "met\n"


@pytest.mark.iree
@pytest.mark.parametrize(("array", "name"), [(_A, "f32"), (np.array(7, np.int64), "i64"), (np.eye(3) > 0, "i1")])
def test_what_the_host_does_not_see_comes_through_a_buffer_of_its_own(array: Any, name: str) -> None:
    device = OpenDevice("local-task")
    view = device.push(array, name)
    assert device.type_name(view) == name
    assert device.fetch_staged(view).tolist() == device.fetch(view).tolist() == array.tolist()


@pytest.mark.iree
def test_an_element_type_that_is_not_known_here() -> None:
    device = OpenDevice("local-sync")
    buffer = device.push(np.zeros(4, np.uint8), "ui8").get_buffer()
    view = device.runtime.HalBufferView(buffer, [4], int(device.runtime.HalElementType.FLOAT_8_E4M3_FN))
    with pytest.raises(PlanError, match=r"an output has the element type 0x[0-9a-f]+, which is unknown"):
        device.fetch(view)


@pytest.mark.iree
def test_memory_has_a_peak_and_a_device_counts_once() -> None:
    device, again = OpenDevice("local-task"), OpenDevice("local-task")
    kept = device.push(np.zeros(1 << 20, np.uint8), "ui8")
    found = read_device_memory([device, again])
    assert found == read_device_memory([device])
    del kept
    assert found["device_bytes_peak"] >= 1 << 20
    assert found["device_bytes_allocated"] - found["device_bytes_freed"] >= 1 << 20


@pytest.mark.iree
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"in_flight": 3}, "20 calls, 3 in flight: expected 1 or more, and calls a multiple of it"),
        ({"in_flight": 0}, "20 calls, 0 in flight: expected"),
        ({"in_flight": 20, "devices": ["local-task"] * 2}, "20 calls in groups of 20 on 2 devices: expected"),
        ({"fetch": [2]}, "fetch: output 2, but the function has 2"),
        ({"fetch": [-1]}, "fetch: output -1, but the function has 2"),
        ({"carry": {"outputs": 1, "inputs": 1, "count": 2}}, "carry: inputs 1 to 2, but the function is given 2"),
        ({"carry": {"outputs": 2, "inputs": 1, "count": 1}}, "carry: output 2, but the function has 2"),
        ({"carry": {"outputs": 1}}, "the plan lacks 'inputs'"),
    ],
)
def test_groups_that_do_not_fit(built: Path, run: _Run, changes: dict[str, Any], says: str) -> None:
    done = run(_step_plan(built, "step", **changes))
    assert (done.code, done.err.startswith(says)) == (2, True), done.err
    assert done.out == ""


@pytest.mark.iree
def test_a_function_that_is_not_there(built: Path) -> None:
    with pytest.raises(PlanError, match=r"step\.vmfb has no function 'main': step"):
        DeviceProgram(OpenDevice("local-sync"), [str(built / "step.vmfb")], [], "main")


def test_a_script_brings_its_own_package_and_nothing_else(tmp_path: Path) -> None:
    # Another toolkit may be installed in the Python that is measured.
    other = tmp_path / "iree_gauntlet" / "workers" / "iree_side"
    other.mkdir(parents=True)
    for folder in (other.parents[1], other.parent, other):
        (folder / "__init__.py").write_text("raise RuntimeError('the wrong package')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, str(_SCRIPT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env=environment)
    assert (done.returncode, done.stderr) == (2, "usage: measure_module.py PLAN.json\n")


def test_a_plan_that_is_none(run: _Run) -> None:
    done = run({})
    assert done.code == 2
    assert done.err == "the plan lacks 'inputs'\n"


def test_a_loop_takes_what_its_calls_take_and_each_is_timed() -> None:
    clock = Clock(0)
    lengths = iter([3, 1, 4, 1, 5])
    loop = run_loop([lambda: clock.advance(next(lengths))], 5, lambda: int(clock()))
    assert loop == (14, ((3, 1, 4, 1, 5),))


def test_calls_beside_each_other_take_the_time_of_the_longest() -> None:
    clock = Clock(0)
    # 20 ns pass where both contexts are inside a call, and so none of them finishes alone.
    together = threading.Barrier(2, action=lambda: clock.advance(20))
    loop = run_loop([lambda: together.wait(LIMIT_SECONDS)] * 2, 8, lambda: int(clock()))
    assert loop == (80, ((20,) * 4, (20,) * 4))


def test_the_loop_itself_is_timed_by_calls_of_nothing() -> None:
    clock = Clock(0)

    def ticking() -> int:
        clock.advance(100)
        return int(clock())

    # Two looks a call, and one at the end.
    assert overhead_us(ticking) == pytest.approx(0.2, rel=1e-3)


def test_what_a_call_raises_is_raised() -> None:
    def fails() -> None:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        run_loop([fails], 1)
    with pytest.raises(RuntimeError, match="device lost"):
        run_loop([lambda: None, fails], 4)


@pytest.mark.iree
@pytest.mark.parametrize("key", ["warm_up_calls", "outputs"])
def test_a_plan_that_lacks_what_a_measurement_needs(built: Path, run: _Run, key: str) -> None:
    plan = _step_plan(built, "step")
    del plan[key]
    done = run(plan)
    assert (done.code, done.err) == (2, f"the plan lacks '{key}'\n")
