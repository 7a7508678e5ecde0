"""Push the same inputs through a module again and again, in the Python of the toolchain that is measured.

    python measure_module.py PLAN.json

A call is what a user of the runtime waits for: the inputs go from the host to the device, the function is invoked,
its outputs come back. The plan says what to do:

    {"devices": ["local-task"],                 one context for each, running beside each other
     "modules": ["/…/main.vmfb"],               in the order of loading; the last one has the function
     "parameters": [["model", "/…/model.irpa"]],  scope and file
     "function": "main_graph",
     "inputs": [{"file": "/…/input_0.npy", "type": "f32"}],   bf16 as a uint16 array
     "calls": 50,                               in all; shared out over the contexts
     "warm_up_calls": 1,                        of each context, after its first call
     "outputs": "/…/folder"}                    where the outputs of the first call go; empty for nowhere

The answer is one JSON object on standard output:

    {"load_ms", "first_call_ms", "total_s", "calls", "call_ms": […], "overhead_us", "outputs": [{"file", "type"}],
     "peak_rss_bytes", "device_memory": {…}}

`total_s` is from the first input pushed to the last output received, after warming up. `call_ms` has every call, by
context; with one context their sum is `total_s` less what the loop itself takes, which is `overhead_us` a call
(measured with a function that does nothing). Exit codes: 0 measured, 1 the runtime failed, 2 the plan cannot be used;
the reason is one line on standard error.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["Context", "Loop", "PlanError", "main", "run_loop"]

_EXIT_RUNTIME_FAILED = 1
_EXIT_USAGE = 2
_OVERHEAD_CALLS = 2000
_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_NS_PER_US = 1e3
# Element types by their names, with the runtime's name and the NumPy type that holds their bits.
_TYPES = {
    "f64": ("FLOAT_64", "<f8"),
    "f32": ("FLOAT_32", "<f4"),
    "f16": ("FLOAT_16", "<f2"),
    "bf16": ("BFLOAT_16", "<u2"),
    "i64": ("INT_64", "<i8"),
    "i32": ("INT_32", "<i4"),
    "i16": ("INT_16", "<i2"),
    "i8": ("INT_8", "<i1"),
    "si64": ("SINT_64", "<i8"),
    "si32": ("SINT_32", "<i4"),
    "si16": ("SINT_16", "<i2"),
    "si8": ("SINT_8", "<i1"),
    "ui64": ("UINT_64", "<u8"),
    "ui32": ("UINT_32", "<u4"),
    "ui16": ("UINT_16", "<u2"),
    "ui8": ("UINT_8", "<u1"),
    "i1": ("BOOL_8", "|b1"),
}


class PlanError(Exception):
    """The plan cannot be used as asked; the text is one line."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What a loop over calls took.

    Attributes:
        total_ns: from the first call's begin to the last one's end.
        call_ns: each call, by context, in order.
    """

    total_ns: int
    call_ns: tuple[tuple[int, ...], ...]


class Context:
    """A module loaded on a device, ready to be called.

    Args:
        device: IREE's URI of it.
        modules: files, in the order of loading.
        parameters: scope and file.
        function: of the last module.
        inputs: arrays on the host, with their element types.
    """

    def __init__(
        self,
        device: str,
        modules: Sequence[str],
        parameters: Sequence[tuple[str, str]],
        function: str,
        inputs: Sequence[tuple[NDArray[Any], str]],
    ) -> None:
        from iree import runtime  # noqa: PLC0415 - the plan is checked without it

        self._runtime = runtime
        self._inputs = [(array, _element_type(runtime, name)) for array, name in inputs]
        instance = runtime.VmInstance()
        self.device = runtime.get_device(device)
        loaded = [runtime.create_hal_module(instance, self.device)]
        if parameters:
            providers = []
            for scope, file in parameters:
                index = runtime.ParameterIndex()
                index.load(file)
                providers.append(index.create_provider(scope=scope))
            loaded.append(runtime.create_io_parameters_module(instance, *providers))
        mains = [runtime.VmModule.mmap(instance, file) for file in modules]
        self._context = runtime.VmContext(instance, modules=[*loaded, *mains])
        self._function = mains[-1].lookup_function(function)
        if self._function is None:
            raise PlanError(f"{modules[-1]} has no function {function!r}: {', '.join(mains[-1].function_names)}")
        # Whoever holds a module needs what it was made with.
        self._kept = (instance, loaded, mains)

    def call(self) -> list[Any]:
        """One call; its outputs on the host, as arrays of their bits."""
        return [self._to_host(view) for view in self.call_on_device()]

    def call_on_device(self) -> list[Any]:
        """One call with its outputs left where they are."""
        runtime = self._runtime
        allocator = self.device.allocator
        arguments = runtime.VmVariantList(len(self._inputs))
        for array, element_type in self._inputs:
            view = allocator.allocate_buffer_copy(
                memory_type=runtime.MemoryType.DEVICE_LOCAL,
                allowed_usage=runtime.BufferUsage.DEFAULT,
                device=self.device,
                buffer=array,
                element_type=element_type,
            )
            arguments.push_ref(view)
        results = runtime.VmVariantList(1)
        self._context.invoke(self._function, arguments, results)
        return [results.get_as_object(index, runtime.HalBufferView) for index in range(len(results))]

    def _to_host(self, view: Any) -> Any:
        dtype = np.dtype(_TYPES[self.type_name(view)][1])
        # A copy, as a caller would take it: the mapping ends with the view. (`DeviceArray` would convert bf16.)
        return np.array(view.map().asarray(list(view.shape), dtype))

    def type_name(self, view: Any) -> str:
        """The name of a buffer's element type."""
        found = int(view.element_type)
        for name, (runtime_name, _) in _TYPES.items():
            if int(getattr(self._runtime.HalElementType, runtime_name)) == found:
                return name
        raise PlanError(f"an output has the element type {found:#x}, which is not known here")


def run_loop(contexts: Sequence[Callable[[], object]], calls: int) -> Loop:
    """Calls as often as asked for, shared out over contexts that run beside each other.

    Args:
        contexts: a function for each, which is one call.
        calls: in all; at least one a context.

    Raises:
        BaseException: what a call raises.
    """
    shares = [calls // len(contexts) + (index < calls % len(contexts)) for index in range(len(contexts))]
    if len(contexts) == 1:
        begin = time.perf_counter_ns()
        times = _one_after_the_other(contexts[0], shares[0])
        return Loop(time.perf_counter_ns() - begin, (times,))
    found: list[tuple[int, ...]] = [()] * len(contexts)
    failures: list[BaseException] = []
    start = threading.Barrier(len(contexts) + 1)

    def work(index: int) -> None:
        start.wait()
        try:
            found[index] = _one_after_the_other(contexts[index], shares[index])
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(contexts))]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter_ns()
    for thread in threads:
        thread.join()
    total = time.perf_counter_ns() - begin
    if failures:
        raise failures[0]
    return Loop(total, tuple(found))


def _one_after_the_other(call: Callable[[], object], count: int) -> tuple[int, ...]:
    clock = time.perf_counter_ns
    times = [0] * count
    for index in range(count):
        begin = clock()
        call()
        times[index] = clock() - begin
    return tuple(times)


def _overhead_us() -> float:
    """What the loop itself takes, a call."""
    loop = run_loop([lambda: None], _OVERHEAD_CALLS)
    return loop.total_ns / _OVERHEAD_CALLS / _NS_PER_US


def _element_type(runtime: Any, name: str) -> Any:
    if name not in _TYPES:
        raise PlanError(f"unknown element type {name!r}; known: {', '.join(_TYPES)}")
    return getattr(runtime.HalElementType, _TYPES[name][0])


def _read_inputs(items: Sequence[dict[str, str]]) -> list[tuple[NDArray[Any], str]]:
    found = []
    for item in items:
        try:
            array = np.load(item["file"], allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PlanError(f"{item['file']}: cannot be read: {error}") from error
        name = item["type"]
        if name not in _TYPES:
            raise PlanError(f"{item['file']}: unknown element type {name!r}; known: {', '.join(_TYPES)}")
        if array.dtype != np.dtype(_TYPES[name][1]):
            raise PlanError(f"{item['file']}: holds {array.dtype}, and {name} is held by {_TYPES[name][1][1:]}")
        found.append((np.ascontiguousarray(array).reshape(array.shape), name))
    return found


def _measure(plan: dict[str, Any]) -> dict[str, Any]:
    inputs = _read_inputs(plan["inputs"])
    parameters = [(scope, file) for scope, file in plan["parameters"]]
    devices, calls = plan["devices"], int(plan["calls"])
    if not devices or calls < len(devices):
        raise PlanError(f"{calls} calls on {len(devices)} devices: expected a device or more, and a call for each")
    begin = time.perf_counter_ns()
    contexts = [Context(device, plan["modules"], parameters, plan["function"], inputs) for device in devices]
    loaded = time.perf_counter_ns()
    views = contexts[0].call_on_device()
    outputs = [(contexts[0].type_name(view), contexts[0]._to_host(view)) for view in views]  # noqa: SLF001
    first = time.perf_counter_ns()
    for context in contexts[1:]:
        context.call()
    for context in contexts:
        for _ in range(int(plan["warm_up_calls"])):
            context.call()
    loop = run_loop([context.call for context in contexts], calls)
    return {
        "load_ms": (loaded - begin) / _NS_PER_MS,
        "first_call_ms": (first - loaded) / _NS_PER_MS,
        "total_s": loop.total_ns / _NS_PER_S,
        "calls": calls,
        "call_ms": [[value / _NS_PER_MS for value in times] for times in loop.call_ns],
        "overhead_us": _overhead_us(),
        "outputs": _written(outputs, plan["outputs"]),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_memory": contexts[0].device.allocator.statistics,
    }


def _written(outputs: Sequence[tuple[str, Any]], folder: str) -> list[dict[str, str]]:
    found = []
    for index, (name, array) in enumerate(outputs):
        file = Path(folder) / f"output_{index}.npy" if folder else None
        if file is not None:
            np.save(file, array)
        found.append({"file": str(file or ""), "type": name})
    return found


def main(words: Sequence[str]) -> int:
    """Measure as a plan says; the exit code."""
    if len(words) != 1:
        sys.stderr.write("usage: measure_module.py PLAN.json\n")
        return _EXIT_USAGE
    try:
        plan = json.loads(Path(words[0]).read_text(encoding="utf-8"))
        result = _measure(plan)
    except (PlanError, OSError, ValueError, KeyError) as error:
        text = f"the plan lacks {error}" if isinstance(error, KeyError) else str(error)
        sys.stderr.write(f"{' '.join(text.split())}\n")
        return _EXIT_USAGE
    except RuntimeError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return _EXIT_RUNTIME_FAILED
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
