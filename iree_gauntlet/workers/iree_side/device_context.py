"""A device of IREE's runtime with programs loaded on it: it takes arrays, runs functions, and returns arrays.

For callers of several threads (observed with 3.9 and 3.13): the runtime releases Python's lock while a function runs
and while waiting for a fence, so contexts run in parallel; copies to and from the device hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.workers.iree_side.plan_file import ELEMENT_TYPES, PlanError, get_host_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from iree_gauntlet.workers.iree_side.plan_file import Array

    # Objects of the runtime's bindings, which have no types: buffers and views of them, fences, and all others.
    View = Any
    Fence = Any
    Native = Any


# torch and ONNX programs have a variant of a function that does not wait: it takes two fences after its arguments.
_ASYNC_SUFFIX = "$async"


class OpenDevice:
    """A device, with everything that is loaded once for all programs on it."""

    def __init__(self, uri: str) -> None:
        from iree import runtime  # noqa: PLC0415 - the plan is checked without it

        self.runtime = runtime
        self.instance = runtime.VmInstance()
        self.hal = runtime.get_device(uri)
        self._indices: dict[str, Native] = {}
        # These are looked up once: in small programs, attributes of the binding are a good part of a call.
        self._allocator = self.hal.allocator
        self._runtime_types = {name: getattr(runtime.HalElementType, kind) for name, (kind, _) in ELEMENT_TYPES.items()}
        self._types = {int(kind): (name, get_host_type(name)) for name, kind in self._runtime_types.items()}
        self._local, self._usage = runtime.MemoryType.DEVICE_LOCAL, runtime.BufferUsage.DEFAULT
        self._host_visible, self._mapping_scoped = (
            int(runtime.MemoryType.HOST_VISIBLE),
            int(runtime.BufferUsage.MAPPING_SCOPED),
        )

    def load_parameter_index(self, file: str) -> Native:
        """Load a parameter archive's index; each file is opened once."""
        if file not in self._indices:
            index = self.runtime.ParameterIndex()
            index.load(file)
            self._indices[file] = index
        return self._indices[file]

    def push(self, array: Array, type_name: str) -> View:
        """Copy an array to the device; return a view of its buffer."""
        return self._allocator.allocate_buffer_copy(
            memory_type=self._local,
            allowed_usage=self._usage,
            device=self.hal,
            buffer=array,
            element_type=self._runtime_types[type_name],
        )

    def fetch(self, view: View) -> Array:
        """Copy a buffer's contents to the host, as bits; the runtime's own `DeviceArray` would convert bf16."""
        buffer = view.get_buffer()
        if buffer.memory_type() & self._host_visible and buffer.allowed_usage() & self._mapping_scoped:
            return self._copy_mapped(view, view)
        return self.fetch_staged(view)

    def fetch_staged(self, view: View) -> Array:
        """Copy them through a buffer on the host, for memory that the host does not see."""
        return self._copy_mapped(copy_to_host(self.runtime, self.hal, self._allocator, view.get_buffer()), view)

    def _copy_mapped(self, memory: Native, view: View) -> Array:
        # The array is copied, as a caller would do: the mapping ends with the buffer.
        return np.array(memory.map().asarray(view.shape, self._find_types(view)[1]))

    def type_name(self, view: View) -> str:
        """Return the name of a buffer's element type; raise a PlanError for one that is unknown here."""
        return self._find_types(view)[0]

    def _find_types(self, view: View) -> tuple[str, np.dtype[Any]]:
        element_type = view.element_type
        if element_type not in self._types:
            raise PlanError(f"an output has the element type {element_type:#x}, which is unknown")
        return self._types[element_type]

    def fence(self) -> Fence:
        """Make a fence that the device can signal."""
        return self.runtime.HalFence.create_at(self.hal.create_semaphore(0), 1)


def copy_to_host(runtime: Native, device: Native, allocator: Native, source: Native) -> Native:
    """Copy a buffer to memory that the host sees."""
    staging = allocator.allocate_buffer(
        memory_type=int(runtime.MemoryType.HOST_LOCAL | runtime.MemoryType.DEVICE_VISIBLE),
        allowed_usage=int(runtime.BufferUsage.TRANSFER_TARGET | runtime.BufferUsage.MAPPING_SCOPED),
        allocation_size=source.byte_length(),
    )
    done_fence = runtime.HalFence.create_at(device.create_semaphore(0), 1)
    device.queue_copy(source, staging, wait_semaphores=runtime.HalFence(0), signal_semaphores=done_fence)
    done_fence.wait()
    return staging


class DeviceProgram:
    """A function of modules that are loaded on a device, in a context of their own.

    Args:
        modules: files, in the order of loading.
        parameters: scope and file.
        function: of the last module; a PlanError is raised if there is none.
        trace: receives the modules' traces: a key, and views of tensors; None for the runtime's default.
    """

    def __init__(
        self,
        device: OpenDevice,
        modules: Sequence[str],
        parameters: Iterable[Sequence[str]],
        function: str,
        trace: Callable[[str, Sequence[View]], None] | None = None,
    ) -> None:
        runtime, instance = device.runtime, device.instance
        self.device = device
        sink = {"debug_sink": runtime.HalModuleDebugSink(trace)} if trace is not None else {}
        system_modules = [runtime.create_hal_module(instance, device.hal, **sink)]
        providers = [device.load_parameter_index(file).create_provider(scope=scope) for scope, file in parameters]
        if providers:
            system_modules.append(runtime.create_io_parameters_module(instance, *providers))
        program_modules = [runtime.VmModule.mmap(instance, file) for file in modules]
        self._context = runtime.VmContext(instance, modules=[*system_modules, *program_modules])
        self._function = program_modules[-1].lookup_function(function)
        if self._function is None:
            raise PlanError(
                f"{modules[-1]} has no function {function!r}: {', '.join(program_modules[-1].function_names)}"
            )
        self._async_function = program_modules[-1].lookup_function(function + _ASYNC_SUFFIX)
        self.has_async = self._async_function is not None
        # The objects that the modules were made from must live as long as the program.
        self._owned_objects = (system_modules, program_modules)

    def invoke(self, arguments: Sequence[View]) -> list[View]:
        """Make one call with arguments on the device; return its outputs there, computed."""
        return self._invoke(self._function, arguments)

    def start(self, arguments: Sequence[View], wait_fence: Fence = None) -> tuple[list[View], Fence]:
        """Begin a call after a fence, if there is one, without waiting for it.

        Returns:
            The outputs, which may be passed on with `wait_fence`, and the fence after which they may be read.
        """
        done_fence = self.device.fence()
        start_fence = self.device.runtime.HalFence(0) if wait_fence is None else wait_fence
        return self._invoke(self._async_function, [*arguments, start_fence, done_fence]), done_fence

    def _invoke(self, function: Native, arguments: Sequence[View]) -> list[View]:
        runtime = self.device.runtime
        argument_list = runtime.VmVariantList(len(arguments))
        for argument in arguments:
            argument_list.push_ref(argument)
        results = runtime.VmVariantList(1)
        self._context.invoke(function, argument_list, results)
        return [results.get_as_object(index, runtime.HalBufferView) for index in range(len(results))]


def device_memory(devices: Iterable[OpenDevice]) -> dict[str, int]:
    """Return the runtime's own statistics of memory, in bytes, of all devices together.

    `device_bytes_peak` and `host_bytes_peak` are the largest allocations at a time since the process began (for
    several devices: the sum of their peaks). They are less than a program needs. On local-task of 3.9 and 3.13 they
    are the pushed arrays alone: allocations of a program itself, in the order of its queue, are not included, and
    neither are parameters that are used from the mapped file. Empty if the runtime was built without statistics.
    """
    totals: dict[str, int] = {}
    for hal in {id(device.hal): device.hal for device in devices}.values():
        for name, value in hal.allocator.statistics.items():
            totals[name] = totals.get(name, 0) + value
    return totals
