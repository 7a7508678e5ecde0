"""What the scripts that measure IREE's peers have in common: their plan, their arrays, their loop and their answer.

They run in a Python that need not have the toolkit's dependencies: the standard library and NumPy are all there is.
A script is started as `python measure_….py PLAN.json`; its answer is one JSON object, the last line of standard
output. What went wrong is one line `error: …` on standard error, with a traceback behind it, and exit code 1.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["answer", "arrays", "saved", "timed_calls"]

_NS_PER_MS = 1e6
_EXIT_FAILED = 1
_EXIT_USAGE = 2


def answer(words: Sequence[str], measure: Callable[[Mapping[str, Any]], dict[str, Any]]) -> int:
    """The whole script: reads the plan, measures, and writes what was found.

    Args:
        words: of the command line: the plan.
        measure: takes the plan, gives the answer.

    Returns:
        The exit code.
    """
    if len(words) != 1:
        sys.stderr.write("error: one argument is expected, PLAN.json\n")
        return _EXIT_USAGE
    try:
        found = measure(json.loads(Path(words[0]).read_text(encoding="utf-8")))
    except Exception as error:  # noqa: BLE001 - a model and what compiles it may raise anything, and it is said
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        sys.stderr.write(f"error: {type(error).__name__}: {said}\n")
        traceback.print_exc()
        return _EXIT_FAILED
    found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # Models may print, and not end their line.
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    return 0


def timed_calls(call: Callable[[], object], plan: Mapping[str, Any]) -> list[float]:
    """Calls as often as the plan says, after those that warm up; ms, one by one."""
    for _ in range(int(plan["warm_up_calls"])):
        call()
    clock = time.perf_counter_ns
    times = [0] * int(plan["calls"])
    for index in range(len(times)):
        begin = clock()
        call()
        times[index] = clock() - begin
    return [value / _NS_PER_MS for value in times]


def arrays(folder: Path, items: Sequence[Mapping[str, Any]]) -> list[tuple[NDArray[Any], str]]:
    """The arrays that a build folder names, with their element types; bf16 as its bits, in uint16."""
    found = []
    for item in items:
        array = np.load(folder / item["file"], allow_pickle=False)
        found.append((np.ascontiguousarray(array).reshape(array.shape), str(item["type"])))
    return found


def saved(outputs: Sequence[tuple[str, NDArray[Any]]], folder: str) -> list[dict[str, str]]:
    """Writes outputs into a folder, unless it is empty; their files and element types."""
    found = []
    for index, (element_type, array) in enumerate(outputs if folder else ()):
        name = f"output_{index}.npy"
        np.save(Path(folder) / name, array)
        found.append({"file": name, "type": element_type})
    return found
