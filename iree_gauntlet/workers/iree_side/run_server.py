"""Run modules and compare their outputs, one case after the other, in the Python of the measured toolchain.

    python run_server.py LIFE_FD MEMORY_BYTES

Each request is a line of JSON on standard input, and its answer is a line on standard output:

    {"cwd": "/…/test_abs",                  base of relative paths
     "device": "local-sync",                created once, and reused by later cases
     "on_cpu": true,                        true if the device is the CPU
     "module": "/…/module.vmfb",
     "function": "",                        empty for the module's only exported function
     "inputs": ["3x4xf32=@input_0.bin"], "expected": ["3x4xf32=@output_0.bin"],
     "limits": {"f32": [1e-4, 1e-5]},       absolute and relative tolerance by type; {}: outputs must be equal
     "allclose": null,                      [rtol, atol, equal_nan]: use numpy.allclose instead of `limits`
     "kept": ["/…/output_0.npy"]}           paths for the outputs of a failing case

    {"verdict": "mismatch", "message": "", "seconds": 0.0003, "cpu_seconds": 0.0003,
     "peak_rss_bytes": 41000000,
     "outputs": [{"index": 0, "type": "3x4xf32", "passed": false, "count": 12, "file": "/…/output_0.npy"}]}

Verdicts are those of iree-run-module: `passed`; `mismatch` (outputs are in the named files: .npy, or raw bytes for a
type that .npy lacks); `error` with IREE's status; `unsupported` for features that only iree-run-module has. If all
outputs pass, none is listed.

Types that are not in `limits` are compared by their bytes. If `expected` and `allclose` are empty, nothing is compared.
`peak_rss_bytes` is the peak memory of the process during the case.

The first output line is `{"ready": true}`. The process ends when standard input ends, or when the other end of the pipe
LIFE_FD is closed. MEMORY_BYTES above 0 limits the address space of cases, in addition to that of Python and the runtime
at start; the limit is lifted when a case requests another device than the CPU. Output that a case prints is written to
standard error.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import copy_to_host
from iree_gauntlet.workers.iree_side.run_arguments import (
    ELEMENT_TYPES,
    TYPE_NAMES,
    ArgumentValue,
    UnsupportedError,
    compute_storage,
    make_array,
    open_file,
    read_value,
)
from iree_gauntlet.workers.iree_side.value_errors import are_close, find_close

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.workers.iree_side.device_context import Native


_MAX_MESSAGE_CHARS = 2000
# This prefix precedes IREE's status: `Error invoking function: c/runtime/src/iree/vm/list.c:103: INVALID_ARGUMENT; …`.
_SOURCE_PREFIX = re.compile(r"^.*?\S+\.(?:c|cc|cpp|h|inl):\d+: ")
# The types that .npy supports. Values below 8 bits are packed bytes here, not arrays of their shape.
_NPY_TYPES = re.compile(r"(?:i|si|ui)(?:1|8|16|32|64)|f(?:16|32|64)")
# The tool aborts when it compares these types, or when f8 values differ; such cases are left to the tool itself.
_ABORTING_TYPES = ("i4", "si4", "ui4")
# Contents up to this size are first compared as bytes.
_MAX_DIRECT_BYTES = 1 << 16
_MAX_COPIED_MODULE_BYTES = 1 << 18
# The bindings convert a status to one of these exceptions.
RUNTIME_ERRORS = (OSError, RuntimeError, ValueError, TypeError, NotImplementedError, LookupError)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM_PATH = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class _RunRequest:
    cwd: str
    device: str
    on_cpu: bool
    module: str
    function: str
    inputs: list[str]
    expected: list[str]
    limits: dict[str, list[float]]
    allclose: list[Any] | None
    kept: list[str]


class RunServer:
    """Runs cases in this process; devices are reused, modules are not."""

    def __init__(self) -> None:
        from iree import runtime  # noqa: PLC0415 - a Python without the runtime shall say so in one line

        self._runtime = runtime
        self._instance = runtime.VmInstance()
        self._devices: dict[str, tuple[Native, Native, Native]] = {}
        self._device_errors: dict[str, str] = {}
        self._local, self._usage = runtime.MemoryType.DEVICE_LOCAL, runtime.BufferUsage.DEFAULT
        self._host_visible, self._mapping_scoped = (
            int(runtime.MemoryType.HOST_VISIBLE),
            int(runtime.BufferUsage.MAPPING_SCOPED),
        )

    def answer(self, request: _RunRequest) -> dict[str, object]:
        """Run a case; return the answer."""
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        outputs: list[dict[str, object]] = []
        message = ""
        try:
            outputs = self._run(request)
            verdict = "mismatch" if outputs else "passed"
        except UnsupportedError as error:
            verdict, message = "unsupported", _describe_status(error)
        except MemoryError:
            verdict, message = "error", "RESOURCE_EXHAUSTED; no memory is left"
        except RUNTIME_ERRORS as error:
            verdict, message = "error", _describe_status(error)
        return {
            "verdict": verdict,
            "message": message,
            "seconds": time.perf_counter() - wall_start,
            "cpu_seconds": time.process_time() - cpu_start,
            "outputs": outputs,
        }

    def _run(self, request: _RunRequest) -> list[dict[str, object]]:
        """Run a case; return descriptions of the outputs, or an empty list if all of them pass."""
        inputs = [read_value(text, request.cwd) for text in request.inputs]
        expected_all = [read_value(text, request.cwd) for text in request.expected]
        device, hal_module, allocator = self._get_device(request.device, on_cpu=request.on_cpu)
        runtime = self._runtime
        module = self._load_module(os.path.join(request.cwd, request.module))  # noqa: PTH118 - a good part of a case
        context = runtime.VmContext(self._instance, modules=[hal_module, module])
        function = _find_function(module, request.function)
        arguments = runtime.VmVariantList(len(inputs))
        for value in inputs:
            if value is None:
                raise UnsupportedError("an input that is none")
            buffer = allocator.allocate_buffer_copy(
                memory_type=self._local, allowed_usage=self._usage, device=device, buffer=value.contents
            )
            type_number, _ = ELEMENT_TYPES[value.element_type]
            arguments.push_ref(runtime.HalBufferView(buffer, value.shape, type_number))
        results = runtime.VmVariantList(len(expected_all))
        context.invoke(function, arguments, results)
        rule = request.allclose
        if not expected_all and rule is None:
            return []
        if len(expected_all) > len(results) and rule is None:
            raise UnsupportedError(f"{len(expected_all)} expected outputs of {len(results)}")
        actual = [self._read_output(results, index, device, allocator) for index in range(len(results))]
        verdicts = [
            judge_output(output, reference, request.limits, rule)
            for output, reference in zip(actual, expected_all, strict=False)
        ]
        if len(actual) == len(expected_all) and all(verdicts):
            return []
        return describe_outputs(actual, verdicts, len(expected_all), request.kept)

    def _load_module(self, path: str) -> Native:
        file = open_file(path)
        try:
            if os.fstat(file).st_size > _MAX_COPIED_MODULE_BYTES:
                return self._runtime.VmModule.mmap(self._instance, path)
            # Copying is faster than mapping.
            return self._runtime.VmModule.copy_buffer(self._instance, os.read(file, _MAX_COPIED_MODULE_BYTES))
        finally:
            os.close(file)

    def _read_output(self, results: Native, index: int, device: Native, allocator: Native) -> ArgumentValue:
        try:
            view = results.get_as_object(index, self._runtime.HalBufferView)
        except ValueError as error:
            raise UnsupportedError(f"output {index} is no tensor") from error
        number = int(view.element_type)
        if number not in TYPE_NAMES:
            raise UnsupportedError(f"output {index} has the element type {number:#x}")
        shape, element_type = tuple(view.shape), TYPE_NAMES[number]
        _, count, _ = compute_storage(shape, element_type)
        buffer = view.get_buffer()
        contents: bytes | memoryview = b""
        if (
            count
            and int(buffer.memory_type()) & self._host_visible
            and int(buffer.allowed_usage()) & self._mapping_scoped
        ):
            # The buffer is read in place, as it is visible to the host.
            contents = _read_mapped(view.map(), count)
        elif count:
            contents = _read_mapped(copy_to_host(self._runtime, device, allocator, buffer).map(), count)
        return ArgumentValue(shape, element_type, contents)

    def _get_device(self, uri: str, *, on_cpu: bool) -> tuple[Native, Native, Native]:
        """Return the device, its HAL module for programs, and its allocator."""
        if uri in self._device_errors:
            raise UnsupportedError(self._device_errors[uri])
        if uri not in self._devices:
            if not on_cpu:
                # Lift the limit: a GPU's driver reserves at once more addresses than all GPUs have memory.
                _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
                resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))
            try:
                device = self._runtime.get_device(uri)
            except RUNTIME_ERRORS as error:
                self._device_errors[uri] = _describe_status(error)
                raise UnsupportedError(self._device_errors[uri]) from error
            self._devices[uri] = (device, self._runtime.create_hal_module(self._instance, device), device.allocator)
        return self._devices[uri]


def _read_mapped(memory: Native, count: int) -> bytes | memoryview:
    """Return the first `count` bytes of mapped memory; the bindings of 3.9 cannot make a memoryview of it."""
    try:
        return memoryview(memory)[:count]
    except TypeError:
        return bytes(memory.asarray((count,), np.dtype("u1")).tobytes())


def serve(requests: Any, answers: int) -> None:
    """Answer each line of a file on a descriptor, until the file ends."""
    server = RunServer()
    memory = _PeakMemory()
    _write(answers, {"ready": True})
    for line in requests:
        answer = server.answer(_RunRequest(**json.loads(line)))
        _write(answers, {**answer, "peak_rss_bytes": memory.take_peak()})


class _PeakMemory:
    """The peak memory of this process, case by case."""

    _MIN_RESET_BYTES = 1 << 24

    def __init__(self) -> None:
        # `getrusage` is not used, because its peak includes the peak of the parent process before the fork.
        self._status: int | None = None
        with contextlib.suppress(OSError):
            self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._peak_after_reset = self._read_peak()

    def take_peak(self) -> int:
        peak = self._read_peak()
        if peak > self._peak_after_reset + self._MIN_RESET_BYTES and self._status is not None:
            with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:  # noqa: PTH123
                file.write(b"5")
            self._peak_after_reset = self._read_peak()
        return peak

    def _read_peak(self) -> int:
        if self._status is not None:
            text = os.pread(self._status, 4096, 0)
            offset = text.find(b"VmHWM:")
            if offset >= 0:
                return int(text[offset + 6 : text.index(b"kB", offset)]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _find_function(module: Native, name: str) -> Native:
    """Find the function to call: the named function, or the only one that is not internal to IREE."""
    if not name:
        names = [
            candidate for candidate in module.function_names if not candidate.startswith("__") and "$" not in candidate
        ]
        if len(names) != 1:
            raise UnsupportedError(f"the module exports {len(names)} functions, and none is named")
        name = names[0]
    function = module.lookup_function(name)
    if function is None or function.reflection.get("iree.abi.model") == "coarse-fences":
        raise UnsupportedError(f"function {name!r}")
    return function


def judge_output(
    actual_value: ArgumentValue,
    expected_value: ArgumentValue | None,
    limits: dict[str, list[float]],
    rule: list[Any] | None,
) -> bool:
    """Return whether an output passes."""
    if expected_value is None:
        return True
    if rule is not None:
        for value in (actual_value, expected_value):
            if not _NPY_TYPES.fullmatch(value.element_type):
                raise UnsupportedError(f"numpy.allclose of {value.element_type}")
        if actual_value.shape != expected_value.shape:
            return False
        rtol, atol, equal_nan = rule
        actual_array, expected_array = make_array(actual_value), make_array(expected_value)
        return bool(find_close(actual_array, expected_array, rtol=rtol, atol=atol, equal_nan=equal_nan).all())
    if expected_value.element_type in _ABORTING_TYPES:
        raise UnsupportedError(f"comparing {expected_value.element_type}")
    if actual_value.element_type != expected_value.element_type or actual_value.shape != expected_value.shape:
        return False
    if len(actual_value.contents) <= _MAX_DIRECT_BYTES and bytes(actual_value.contents) == expected_value.contents:
        return True
    limit_pair = limits.get(actual_value.element_type)
    limit = None if limit_pair is None else (limit_pair[0], limit_pair[1])
    is_passing = are_close(make_array(actual_value), make_array(expected_value), limit, actual_value.element_type)
    if not is_passing and actual_value.element_type.startswith("f8"):
        raise UnsupportedError(f"telling how {actual_value.element_type} differ")
    return is_passing


def describe_outputs(
    actual: Sequence[ArgumentValue], verdicts: Sequence[bool], expected_count: int, paths: Sequence[str]
) -> list[dict[str, object]]:
    """Describe the outputs of a failing case, including missing ones; save the existing outputs to files."""
    descriptions: list[dict[str, object]] = []
    for index, value in enumerate(actual):
        descriptions.append(
            {
                "index": index,
                "type": "x".join([*map(str, value.shape), value.element_type]),
                "passed": index < len(verdicts) and verdicts[index],
                "count": math.prod(value.shape),
                "file": _save_output(value, Path(paths[index])) if index < len(paths) else "",
            }
        )
    missing = {"type": "", "passed": False, "count": 0, "file": ""}
    return descriptions + [{"index": index, **missing} for index in range(len(actual), expected_count)]


def _save_output(value: ArgumentValue, path: Path) -> str:
    """Save an output; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if _NPY_TYPES.fullmatch(value.element_type):
        path = path.with_suffix(".npy")
        np.save(path, make_array(value))
    else:
        path = path.with_suffix(".bin")
        path.write_bytes(value.contents)
    return str(path)


def _describe_status(error: BaseException) -> str:
    """Return IREE's status in one line of limited length, without the location in its source."""
    lines = str(error).splitlines()
    message = _SOURCE_PREFIX.sub("", lines[0].strip()) if lines else type(error).__name__
    return message[:_MAX_MESSAGE_CHARS]


def _write(descriptor: int, answer: dict[str, Any]) -> None:
    remaining = memoryview(json.dumps(answer).encode() + b"\n")
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _limit_memory(extra_bytes: int) -> None:
    """Limit the address space to `extra_bytes` above its present size; do nothing if that size is unknown."""
    try:
        used_bytes = int(_STATM_PATH.read_bytes().split()[0]) * _PAGE_BYTES
    except OSError:
        return
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    limit = used_bytes + extra_bytes
    if hard_limit not in (resource.RLIM_INFINITY, -1):
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


def main(argv: Sequence[str]) -> int:
    """Serve until standard input ends; return the exit code."""
    if len(argv) != 3:
        sys.stderr.write(f"usage: {Path(argv[0]).name} LIFE_FD MEMORY_BYTES\n")
        return 2
    # When the other end of the pipe is closed, SIGIO ends this process, whatever it is doing.
    life_fd = int(argv[1])
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC)
    # Standard output is for answers only, so output of modules goes to standard error.
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        import iree.runtime  # noqa: PLC0415 - see below
    except ImportError as error:
        sys.stderr.write(f"{sys.executable} cannot run modules: {error}\n")
        return 2
    if int(argv[2]) > 0:
        _limit_memory(int(argv[2]))
    del iree
    serve(sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
