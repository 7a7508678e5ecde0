"""What the measuring workers have in common: a plan in, one JSON object out, and arrays in files.

Arrays are `{"file", "type", "shape"}`; types have IREE's names, and what NumPy lacks is held by its bits: bf16 as
uint16. Exit codes: 0 measured, 1 the runtime failed, 2 the plan cannot be used; the reason is one line on standard
error.
"""

from __future__ import annotations

import json
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
    # An array, as its bits are held, and its element type.
    TypedArray = tuple[Array, str]


_EXIT_RUNTIME_FAILED = 1
_EXIT_USAGE = 2
_NS_PER_MS = 1e6

# Element types by their names, with the runtime's name and the NumPy type that holds their bits.
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
    """The plan cannot be used as asked; the text is one line."""


def read_plan(kind: type[_Plan], said: Mapping[str, Any]) -> _Plan:
    """A plan as a dataclass whose fields are its keys, others passed over; a KeyError names one that it lacks."""
    asked = [
        item.name
        for item in fields(cast("Any", kind))
        if item.name in said or item.default is MISSING is item.default_factory
    ]
    return kind(**{name: said[name] for name in asked})


def get_host_type(name: str) -> np.dtype[Any]:
    """The NumPy type that holds an element type's bits; a PlanError where that is not known."""
    if name not in ELEMENT_TYPES:
        raise PlanError(f"unknown element type {name!r}; known: {', '.join(ELEMENT_TYPES)}")
    return np.dtype(ELEMENT_TYPES[name][1])


def hold_bits(array: Array, name: str) -> Array:
    """An array as the runtime takes it: contiguous, and of the type that holds its bits, or a PlanError says so."""
    if array.dtype != get_host_type(name):
        raise PlanError(f"holds {array.dtype}, and {name} is held by {ELEMENT_TYPES[name][1][1:]}")
    return np.ascontiguousarray(array).reshape(array.shape)


def time_calls(call: Callable[[], object], warm_up_calls: int, calls: int) -> list[float]:
    """What each call takes in ms, one by one, after those that warm up."""
    for _ in range(warm_up_calls):
        call()
    return [value / _NS_PER_MS for value in call_times(call, calls)]


def call_times(
    call: Callable[[], object], count: int, clock: Callable[[], int] = time.perf_counter_ns
) -> tuple[int, ...]:
    """What each of so many calls takes, one after the other, by a clock in ns."""
    times = [0] * count
    for index in range(count):
        begin = clock()
        call()
        times[index] = clock() - begin
    return tuple(times)


def read_arrays(items: Sequence[Mapping[str, Any]], folder: Path = Path()) -> list[TypedArray]:
    """The arrays of a plan or, by their names in its folder, of a build; with their element types.

    Raises:
        PlanError: names the file that cannot be read, or is not of the type that the plan says.
    """
    found = []
    for item in items:
        file, type_name = item["file"], item["type"]
        try:
            found.append((hold_bits(np.load(folder / file, allow_pickle=False), type_name), type_name))
        except (OSError, ValueError) as error:
            raise PlanError(f"{file}: cannot be read: {error}") from error
        except PlanError as error:
            raise PlanError(f"{file}: {error}") from error
    return found


def write_arrays(folder: str, name: str, arrays: Iterable[tuple[str, Array | None]]) -> list[dict[str, Any]]:
    """Write arrays, of an element type and bits or None where they were not fetched, as `<name>_0.npy`, ….

    No folder is nowhere. What the answer says of each: file, empty where there is none; type; shape, if fetched.
    """
    found: list[dict[str, Any]] = []
    for index, (type_name, array) in enumerate(arrays):
        file = ""
        if folder and array is not None:
            file = str(Path(folder) / f"{name}_{index}.npy")
            np.save(file, array)
        shape = {} if array is None else {"shape": list(array.shape)}
        found.append({"file": file, "type": type_name, **shape})
    return found


def answer_plan(words: Sequence[str], measure: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Run a script of one plan, and write what it measured to standard output; the exit code.

    `measure` raises PlanError, OSError, ValueError or KeyError for a plan that cannot be used, and RuntimeError for a
    runtime that failed.
    """
    if len(words) != 2:
        sys.stderr.write(f"usage: {Path(words[0]).name} PLAN.json\n")
        return _EXIT_USAGE
    try:
        result = measure(json.loads(Path(words[1]).read_text(encoding="utf-8")))
    except (PlanError, OSError, ValueError, KeyError) as error:
        text = f"the plan lacks {error}" if isinstance(error, KeyError) else str(error)
        sys.stderr.write(f"{' '.join(text.split())}\n")
        return _EXIT_USAGE
    except RuntimeError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return _EXIT_RUNTIME_FAILED
    sys.stdout.write(json.dumps(result) + "\n")
    return 0
