"""Measures the cost of our measuring loop: `python benchmarks/loop_overhead.py`, with IREE and the toolkit.

The peer is a loop written by hand over `iree.runtime`: push the inputs, invoke the function, copy the output back.
Both loops call the same module on the same device in one process, in turns of 10 calls whose order alternates. The
ratio is the median over turns of our time divided by the peer's. Programs differ in their number of matrix products.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from iree import runtime

from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.workers.iree_side.device_context import DeviceProgram, OpenDevice
from iree_gauntlet.workers.iree_side.measure_module import Context, run_loop

if TYPE_CHECKING:
    from collections.abc import Callable

_DEVICE = "local-sync"
_TURNS = 200
_CALLS_PER_TURN = 10
_WIDTH = 256
_LAYER_COUNTS = (1, 10, 100)
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def main() -> None:
    """Measure and print the table."""
    print(f"{'products':<8} {'ours':>12} {'by hand':>12} {'ratio':>8} {'overhead_us':>12}")
    with tempfile.TemporaryDirectory() as directory:
        for layers in _LAYER_COUNTS:
            _print_row(layers, _compile(Path(directory), layers))


def _print_row(layers: int, module: Path) -> None:
    values = np.random.default_rng(1).standard_normal((8, _WIDTH)).astype(np.float32)
    context = Context(DeviceProgram(OpenDevice(_DEVICE), [str(module)], [], "main"), [(values, "f32")])

    def toolkit_loop() -> float:
        return run_loop([context.call_group], _CALLS_PER_TURN)[0] / _CALLS_PER_TURN

    manual_loop = _make_manual_loop(module, values)
    for loop in (toolkit_loop, manual_loop):
        loop()
    toolkit_times: list[float] = []
    manual_times: list[float] = []
    for turn in range(_TURNS):
        for loop, times in ((toolkit_loop, toolkit_times), (manual_loop, manual_times))[:: 1 if turn % 2 else -1]:
            times.append(loop())
    ratio = statistics.median(a / b for a, b in zip(toolkit_times, manual_times, strict=True))
    empty_call_us = run_loop([lambda: None], 1000)[0] / 1000 / 1e3
    medians = [statistics.median(times) / 1e6 for times in (toolkit_times, manual_times)]
    print(f"{layers:<8} {medians[0]:9.4f} ms {medians[1]:9.4f} ms {ratio:8.4f} {empty_call_us:12.2f}")


def _make_manual_loop(module: Path, values: Any) -> Callable[[], float]:
    instance = runtime.VmInstance()
    device = runtime.get_device(_DEVICE)
    main = runtime.VmModule.mmap(instance, str(module))
    context = runtime.VmContext(instance, modules=[runtime.create_hal_module(instance, device), main])
    function = main.lookup_function("main")
    allocator = device.allocator

    def call() -> Any:
        arguments = runtime.VmVariantList(1)
        arguments.push_ref(
            allocator.allocate_buffer_copy(
                memory_type=runtime.MemoryType.DEVICE_LOCAL,
                allowed_usage=runtime.BufferUsage.DEFAULT,
                device=device,
                buffer=values,
                element_type=runtime.HalElementType.FLOAT_32,
            )
        )
        results = runtime.VmVariantList(1)
        context.invoke(function, arguments, results)
        view = results.get_as_object(0, runtime.HalBufferView)
        return np.array(view.map().asarray(list(view.shape), np.dtype(np.float32)))

    def loop() -> float:
        start = time.perf_counter_ns()
        for _ in range(_CALLS_PER_TURN):
            call()
        return (time.perf_counter_ns() - start) / _CALLS_PER_TURN

    return loop


def _compile(folder: Path, layers: int) -> Path:
    """Compile a chain of matrix products, 8x256 by 256x256, and return the module's path."""
    tensor, weight = f"tensor<8x{_WIDTH}xf32>", f"tensor<{_WIDTH}x{_WIDTH}xf32>"
    types = f"{tensor}, {weight}"
    lines = [f"  %w = arith.constant dense<0.01> : {weight}", "  %z = arith.constant 0.0 : f32"]
    for number in range(layers):
        lines += [
            f"  %e{number} = tensor.empty() : {tensor}",
            f"  %f{number} = linalg.fill ins(%z : f32) outs(%e{number} : {tensor}) -> {tensor}",
            f"  %x{number + 1} = linalg.matmul ins(%x{number}, %w : {types}) outs(%f{number} : {tensor}) -> {tensor}",
        ]
    text = "\n".join([f"func.func @main(%x0: {tensor}) -> {tensor} {{", *lines, f"  return %x{layers} : {tensor}", "}"])
    program, module = folder / f"{layers}.mlir", folder / f"{layers}.vmfb"
    program.write_text(text + "\n", encoding="utf-8")
    subprocess.run([find_installed().compiler.compile, str(program), *_FLAGS, "-o", str(module)], check=True)
    return module


if __name__ == "__main__":
    main()
