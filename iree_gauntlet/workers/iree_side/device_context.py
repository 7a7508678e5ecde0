"""A device of IREE's runtime, and programs loaded on the device, which take and return arrays.

For callers with several threads (observed with 3.9 and 3.13): the runtime releases Python's lock while a function runs
and while it waits for a fence, so contexts run in parallel. Copies to and from the device hold the lock.
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


# Programs from torch and ONNX also have a variant of each function that does not wait and takes two more fences.
_ASYNC_SUFFIX = "$async"


class OpenDevice:
    """A device, with everything that is loaded once for all programs on the device."""

    def __init__(self, uri: str) -> None:
        from iree import runtime  # noqa: PLC0415 - the plan is checked without it

        self.runtime = runtime
        self.instance = runtime.VmInstance()
        self.hal = runtime.get_device(uri)
        self._indices: dict[str, Native] = {}
        # Look these attributes up once: in small programs, the lookup is a large part of the time of a call.
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
        """Copy a buffer's bits to the host. The runtime's own `DeviceArray` is not used: it would convert bf16."""
        buffer = view.get_buffer()
        if buffer.memory_type() & self._host_visible and buffer.allowed_usage() & self._mapping_scoped:
            return self._copy_mapped(view, view)
        return self.fetch_staged(view)

    def fetch_staged(self, view: View) -> Array:
        """Copy a buffer's bits through a host buffer, for memory that the host cannot access."""
        return self._copy_mapped(copy_to_host(self.runtime, self.hal, self._allocator, view.get_buffer()), view)

    def _copy_mapped(self, memory: Native, view: View) -> Array:
        # The array must be copied, because the mapping ends with the buffer.
        return np.array(memory.map().asarray(view.shape, self._find_types(view)[1]))

    def type_name(self, view: View) -> str:
        """Return the name of a buffer's element type; raise a PlanError for an unknown type."""
        return self._find_types(view)[0]

    def _find_types(self, view: View) -> tuple[str, np.dtype[Any]]:
        element_type = view.element_type
        if element_type not in self._types:
            raise PlanError(f"an output has the element type {element_type:#x}, which is unknown")
        return self._types[element_type]

    def make_fence(self) -> Fence:
        """Make a fence that the device can signal."""
        return self.runtime.HalFence.create_at(self.hal.create_semaphore(0), 1)


def copy_to_host(runtime: Native, device: Native, allocator: Native, source: Native) -> Native:
    """Copy a buffer to memory that the host can access."""
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
    """A function of modules that are loaded on a device, in a separate context.

    Args:
        modules: files, in the order of loading.
        parameters: pairs of scope and file.
        function: a function of the last module; a PlanError is raised if it does not exist.
        trace: called with a key and views of tensors for each trace of the modules; None for the runtime's default.
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
        # The objects that the modules were made from must live as long as the program.
        self._owned_objects = (system_modules, program_modules)
        self._module, self._file = program_modules[-1], modules[-1]
        self.select(function)

    def select(self, function: str) -> None:
        """Choose the function that is called from now on; a PlanError is raised if it does not exist."""
        self._function = self._module.lookup_function(function)
        if self._function is None:
            names = ", ".join(self._module.function_names)
            raise PlanError(f"{self._file} has no function {function!r}: {names}")
        self._async_function = self._module.lookup_function(function + _ASYNC_SUFFIX)
        self.has_async = self._async_function is not None

    def invoke(self, arguments: Sequence[View]) -> list[View]:
        """Make one call with arguments on the device; return its outputs on the device after the call has ended."""
        return self._invoke(self._function, arguments)

    def start(self, arguments: Sequence[View], wait_fence: Fence = None) -> tuple[list[View], Fence]:
        """Begin a call, which runs after `wait_fence` if given; do not wait for the call.

        Returns:
            The outputs, and a fence. After this fence outputs may be read; before, calls that wait for it may use them.
        """
        done_fence = self.device.make_fence()
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


def read_device_memory(devices: Iterable[OpenDevice]) -> dict[str, int]:
    """Return the runtime's memory statistics in bytes, of all devices together; empty if it was built without them.

    `device_bytes_peak` and `host_bytes_peak` are the largest total allocations since the process began (for several
    devices: the sum of their peaks). A program needs more than that: on local-task of 3.9 and 3.13 the statistics
    count only the pushed arrays. They leave out a program's own queue-ordered allocations, and parameters that are
    used from the mapped file.
    """
    totals: dict[str, int] = {}
    for hal in {id(device.hal): device.hal for device in devices}.values():
        for name, value in hal.allocator.statistics.items():
            totals[name] = totals.get(name, 0) + value
    return totals
