"""The common parts of the measuring workers: a plan as input, one JSON object as output, and arrays in files.

Arrays are `{"file", "type", "shape"}`. Types have IREE's names; values of a type that NumPy lacks are stored as bits
(bf16 as uint16). Exit codes: 0 measured, 1 the runtime failed, 2 the plan cannot be used. The reason is one line on
standard error.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    # An array whose values are stored as bits, and its element type.
    TypedArray = tuple[Array, str]


_EXIT_RUNTIME_FAILED = 1
_EXIT_USAGE = 2
_NS_PER_MS = 1e6

# For each element type: the runtime's name, and the NumPy type that stores its bits.
ELEMENT_TYPES = {
    **{f"f{bits}": (f"FLOAT_{bits}", f"<f{bits // 8}") for bits in (64, 32, 16)},
    "bf16": ("BFLOAT_16", "<u2"),
    **{f"i{bits}": (f"INT_{bits}", f"<i{bits // 8}") for bits in (64, 32, 16, 8)},
    **{f"si{bits}": (f"SINT_{bits}", f"<i{bits // 8}") for bits in (64, 32, 16, 8)},
    **{f"ui{bits}": (f"UINT_{bits}", f"<u{bits // 8}") for bits in (64, 32, 16, 8)},
    "i1": ("BOOL_8", "|b1"),
}


_Plan = TypeVar("_Plan")


class PlanError(Exception):
    """The plan cannot be used as requested; the text is one line."""


def read_plan(plan_type: type[_Plan], document: Mapping[str, object]) -> _Plan:
    """Read a plan into a dataclass whose fields are its keys; ignore unknown keys; raise KeyError for a missing key."""
    field_names = [
        field.name
        for field in fields(cast("Any", plan_type))
        if field.name in document or field.default is MISSING is field.default_factory
    ]
    return plan_type(**{name: document[name] for name in field_names})


def get_host_type(name: str) -> np.dtype[Any]:
    """Return the NumPy type that stores an element type's bits; raise a PlanError for an unknown element type."""
    if name not in ELEMENT_TYPES:
        raise PlanError(f"unknown element type {name!r}; known: {', '.join(ELEMENT_TYPES)}")
    return np.dtype(ELEMENT_TYPES[name][1])


def check_storage_type(array: Array, name: str) -> Array:
    """Make an array contiguous for the runtime; raise a PlanError if its type is not the one that stores the bits."""
    if array.dtype != get_host_type(name):
        raise PlanError(f"contains {array.dtype}, but {name} is stored as {ELEMENT_TYPES[name][1][1:]}")
    return np.ascontiguousarray(array).reshape(array.shape)


def time_calls(call: Callable[[], object], warm_up_calls: int, calls: int) -> list[float]:
    """Make warm-up calls, then time each further call; return the times in ms."""
    for _ in range(warm_up_calls):
        call()
    return [value / _NS_PER_MS for value in call_times(call, calls)]


def call_times(
    call: Callable[[], object], count: int, clock: Callable[[], int] = time.perf_counter_ns
) -> tuple[int, ...]:
    """Make `count` calls one after the other; return their times by a clock in ns."""
    times = [0] * count
    for index in range(count):
        start_ns = clock()
        call()
        times[index] = clock() - start_ns
    return tuple(times)


def read_arrays(entries: Sequence[Mapping[str, Any]], folder: Path = Path()) -> list[TypedArray]:
    """Read arrays; return them with their element types. Paths are relative to `folder`.

    Raises:
        PlanError: a file cannot be read, or does not have the planned type; the error names the file.
    """
    arrays = []
    for entry in entries:
        file, type_name = entry["file"], entry["type"]
        try:
            arrays.append((check_storage_type(np.load(folder / file, allow_pickle=False), type_name), type_name))
        except (OSError, ValueError) as error:
            raise PlanError(f"{file}: cannot be read: {error}") from error
        except PlanError as error:
            raise PlanError(f"{file}: {error}") from error
    return arrays


def write_arrays(folder: str, name: str, arrays: Iterable[tuple[str, Array | None]]) -> list[dict[str, object]]:
    """Write arrays as `<name>_0.npy`, …; each is (type, bits), and bits are None if the array was not fetched.

    If `folder` is empty, no files are written. Return one {file, type, shape} per array; no shape if not fetched.
    """
    entries: list[dict[str, object]] = []
    for index, (type_name, array) in enumerate(arrays):
        file = ""
        if folder and array is not None:
            file = str(Path(folder) / f"{name}_{index}.npy")
            np.save(file, array)
        shape = {} if array is None else {"shape": list(array.shape)}
        entries.append({"file": file, "type": type_name, **shape})
    return entries


def run_worker_main(argv: Sequence[str], measure: Callable[[dict[str, Any]], Mapping[str, object]]) -> int:
    """Run the main function of a worker: read the plan, measure, and print the answer as JSON; return the exit code.

    `measure` raises PlanError, OSError, ValueError or KeyError for a plan that cannot be used, and RuntimeError if
    the runtime failed. A plan's `memory_bytes`, if any, limits the memory of this process.
    """
    if len(argv) != 2:
        sys.stderr.write(f"usage: {Path(argv[0]).name} PLAN.json\n")
        return _EXIT_USAGE
    try:
        plan = json.loads(Path(argv[1]).read_text(encoding="utf-8"))
        if memory_bytes := plan.get("memory_bytes"):
            # The limit includes that of the programs that this one starts.
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        result = measure(plan)
    except (PlanError, OSError, ValueError, KeyError) as error:
        message = f"the plan lacks {error}" if isinstance(error, KeyError) else str(error)
        sys.stderr.write(f"{' '.join(message.split())}\n")
        return _EXIT_USAGE
    except (RuntimeError, MemoryError) as error:
        sys.stderr.write(f"{' '.join(str(error).split()) or 'it ran out of memory'}\n")
        return _EXIT_RUNTIME_FAILED
    sys.stdout.write(json.dumps(result) + "\n")
    return 0
