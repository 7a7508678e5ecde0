"""What our measuring loop costs: `python benchmarks/loop_overhead.py` in an environment with IREE and the toolkit.

The peer is a loop written by hand over `iree.runtime`: push the inputs, invoke the function, bring the output back.
Both call the same module on the same device in one process, in turns of 10 calls whose order alternates. The ratio is
the median over turns of ours to theirs, by programs of so many small matrix products.
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
from iree_gauntlet.workers.iree_side.device_context import LoadedProgram, OpenDevice
from iree_gauntlet.workers.iree_side.measure_module import Context, run_loop

if TYPE_CHECKING:
    from collections.abc import Callable

_DEVICE = "local-sync"
_TURNS = 200
_CALLS = 10
_WIDTH = 256
_LAYERS = (1, 10, 100)
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def main() -> None:
    """Measure and print the table."""
    print(f"{'products':<8} {'ours':>12} {'by hand':>12} {'ratio':>8} {'overhead_us':>12}")
    with tempfile.TemporaryDirectory() as name:
        for layers in _LAYERS:
            _row(layers, _compiled(Path(name), layers))


def _row(layers: int, module: Path) -> None:
    values = np.random.default_rng(1).standard_normal((8, _WIDTH)).astype(np.float32)
    context = Context(LoadedProgram(OpenDevice(_DEVICE), [str(module)], [], "main"), [(values, "f32")])

    def ours() -> float:
        return run_loop([context.group], _CALLS)[0] / _CALLS

    theirs = _by_hand(module, values)
    for work in (ours, theirs):
        work()
    mine: list[float] = []
    other: list[float] = []
    for turn in range(_TURNS):
        for work, times in ((ours, mine), (theirs, other))[:: 1 if turn % 2 else -1]:
            times.append(work())
    ratio = statistics.median(one / two for one, two in zip(mine, other, strict=True))
    nothing = run_loop([lambda: None], 1000)[0] / 1000 / 1e3
    medians = [statistics.median(times) / 1e6 for times in (mine, other)]
    print(f"{layers:<8} {medians[0]:9.4f} ms {medians[1]:9.4f} ms {ratio:8.4f} {nothing:12.2f}")


def _by_hand(module: Path, values: Any) -> Callable[[], float]:
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
        began = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        return (time.perf_counter_ns() - began) / _CALLS

    return loop


def _compiled(folder: Path, layers: int) -> Path:
    """A chain of matrix products, 8x256 by 256x256."""
    kind, weight = f"tensor<8x{_WIDTH}xf32>", f"tensor<{_WIDTH}x{_WIDTH}xf32>"
    types = f"{kind}, {weight}"
    lines = [f"  %w = arith.constant dense<0.01> : {weight}", "  %z = arith.constant 0.0 : f32"]
    for number in range(layers):
        lines += [
            f"  %e{number} = tensor.empty() : {kind}",
            f"  %f{number} = linalg.fill ins(%z : f32) outs(%e{number} : {kind}) -> {kind}",
            f"  %x{number + 1} = linalg.matmul ins(%x{number}, %w : {types}) outs(%f{number} : {kind}) -> {kind}",
        ]
    text = "\n".join([f"func.func @main(%x0: {kind}) -> {kind} {{", *lines, f"  return %x{layers} : {kind}", "}"])
    program, module = folder / f"{layers}.mlir", folder / f"{layers}.vmfb"
    program.write_text(text + "\n", encoding="utf-8")
    subprocess.run([find_installed().compiler.compile, str(program), *_FLAGS, "-o", str(module)], check=True)
    return module


if __name__ == "__main__":
    main()
