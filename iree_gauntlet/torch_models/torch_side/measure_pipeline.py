"""Push inputs through a model whose first or last module runs in torch on the host, next to the device.

    python measure_pipeline.py PLAN.json

Runs in the Python of the toolchain that is measured, which must have the version of the one that has torch: torch is
imported from there. The plan is that of `workers/iree_side/measure_module.py`, and

    {"torch_paths": ["/…/site-packages"],   of the Python that has torch
     "builder": {…},            its builder's plan: the model is built again, for its modules on the host
     "host_inputs": [{"file", "type"}]}     of the module before the device; empty where there is none

What that module returns is the device's input, and `inputs` says of which types; floats are cast to them, and floats
of the device to f32. Inputs beyond those (in training the targets) are the plan's; in training nothing runs after the
device. While the device computes one call, the host prepares the next and finishes the one before: each of the three
stages is a thread (of the device: one for each context), with room for a group of calls between them, so that no stage
runs away.

The answer is that of `measure_module.py`, and

    {"host_ms": {"pre": […], "post": […]},  of each call; conversions of tensors to and from the device included
     "host_outputs": [{"file", "type", "shape"}]}   what came out at the end of the first call

`total_s` is from the first input into `pre` to the last output of `post`, `first_call_ms` the same of the first call.
`call_ms` is the device's part, by context. `overhead_us` is what a call through three stages takes that do nothing.
What a model prints goes to standard error. Exit codes are those of `workers/iree_side/plan_file.py`.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import platform
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that has this script; all else is found as this Python finds it, and not next to the
    # script, where names such as `layers` lie.
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from iree_gauntlet.workers.iree_side.measure_module import Context, ContextPlan, figures, load_contexts
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, read_arrays, read_plan, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.torch_models.torch_side.host_modules import HostModules


_clock = time.perf_counter_ns


class StageError(RuntimeError):
    """A stage failed, and with it the pipeline; the text names the stage, the cause is what it raised."""


@dataclass(frozen=True, slots=True)
class PipelineLoop:
    """What a loop through the pipeline took.

    Attributes:
        total_ns: from the first call's begin of the first stage to the last one's end of the last stage.
        post_ns: each call of the last stage, in the order in which the device finished them.
    """

    total_ns: int
    pre_ns: tuple[int, ...]
    device_ns: tuple[tuple[int, ...], ...]
    post_ns: tuple[int, ...]


class _EndedError(Exception):
    """Another stage failed: this one has nothing to wait for."""


class _Lane:
    """Calls on their way between two stages, in order."""

    def __init__(self, changed: threading.Condition, failures: Sequence[BaseException], room: int) -> None:
        self._changed = changed
        self._failures = failures
        self._room = room
        self._items: deque[Any] = deque()

    def put(self, items: Sequence[Any]) -> None:
        with self._changed:
            self._wait(lambda: len(self._items) + len(items) <= self._room)
            self._items.extend(items)
            self._changed.notify_all()

    def take(self, count: int) -> list[Any]:
        with self._changed:
            self._wait(lambda: len(self._items) >= count)
            taken = [self._items.popleft() for _ in range(count)]
            self._changed.notify_all()
            return taken

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._failures or ready())
        if self._failures:
            raise _EndedError


class _PipelineRun:
    """One run of a pipeline: its threads, and what they measured."""

    def __init__(self, groups: int, group: int, contexts: int) -> None:
        self.failures: list[BaseException] = []
        self.changed = threading.Condition()
        self.to_device = _Lane(self.changed, self.failures, group * contexts)
        self.to_host = _Lane(self.changed, self.failures, group * contexts)
        self.begin_ns = self.end_ns = 0
        self.pre_ns: list[int] = []
        self.device_ns: list[list[int]] = [[] for _ in range(contexts)]
        self.post_ns: list[int] = []
        self._groups = groups
        self._group = group
        self._begun = 0

    def prepare(self, pre: Callable[[], Any]) -> None:
        self.begin_ns = _clock()
        for _ in range(self._groups * self._group):
            begin = _clock()
            item = pre()
            self.pre_ns.append(_clock() - begin)
            self.to_device.put([item])

    def compute(self, device: Callable[[list[Any]], Sequence[Any]], context: int) -> None:
        while True:
            with self.changed:
                self._begun += 1
                if self._begun > self._groups:
                    return
            items = self.to_device.take(self._group)
            begin = _clock()
            outputs = device(items)
            self.device_ns[context].append(_clock() - begin)
            self.to_host.put(outputs)

    def finish(self, post: Callable[[Any], object]) -> None:
        for _ in range(self._groups * self._group):
            [item] = self.to_host.take(1)
            begin = _clock()
            post(item)
            self.post_ns.append(_clock() - begin)
        self.end_ns = _clock()

    def guarded(self, name: str, stage: Callable[[], None]) -> None:
        """A thread's work; what it raises ends all others."""
        try:
            stage()
        except _EndedError:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failure = error
            if not isinstance(error, StageError):
                failure = StageError(f"{name}: {type(error).__name__}: {error}")
                failure.__cause__ = error
            with self.changed:
                self.failures.append(failure)
                self.changed.notify_all()


def run_pipeline(
    pre: Callable[[], Any],
    devices: Sequence[Callable[[list[Any]], Sequence[Any]]],
    post: Callable[[Any], object],
    groups: int,
    group: int = 1,
) -> PipelineLoop:
    """Send calls through the three stages.

    `pre` makes what one call of the device takes; `devices` has for each context a function from a group of so many
    such to their outputs, and whichever is free has the next; `post` takes the outputs of one call.

    Raises:
        StageError: a stage failed; the others have ended, after the call that they were in.
    """
    run = _PipelineRun(groups, group, len(devices))
    stages: list[tuple[str, Callable[[], None]]] = [
        ("before the device", partial(run.prepare, pre)),
        *(("on the device", partial(run.compute, device, context)) for context, device in enumerate(devices)),
        ("after the device", partial(run.finish, post)),
    ]
    threads = [threading.Thread(target=run.guarded, args=stage, daemon=True) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if run.failures:
        raise run.failures[0]
    return PipelineLoop(
        run.end_ns - run.begin_ns, tuple(run.pre_ns), tuple(tuple(times) for times in run.device_ns), tuple(run.post_ns)
    )


_OVERHEAD_CALLS = 500
_NS_PER_MS = 1e6
_NS_PER_US = 1e3


def add_torch(paths: Sequence[str]) -> None:
    """Let this Python import torch from the packages of another one of its version, after its own packages."""
    libraries = [file for path in paths for file in Path(path, "torch").glob("_C.*") if file.is_file()]
    usable = {f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES}
    found = [file.name for file in libraries if file.suffix in {".so", ".pyd"}]
    if not found:
        raise PlanError(f"there is no torch in {', '.join(paths) or 'no folder at all'}")
    if not usable.intersection(found):
        version = ".".join(platform.python_version_tuple()[:2])
        raise PlanError(
            f"modules on the host need torch in the Python of the measured IREE, which is {version}; the torch that "
            f"is named is for another version ({found[0]}): name a torch Python {version}"
        )
    sys.path.extend(path for path in paths if path not in sys.path)


def measure(plan: dict[str, Any]) -> dict[str, Any]:
    """Measure as a plan says; the answer."""
    inputs, host_inputs = (read_arrays(plan[name]) for name in ("inputs", "host_inputs"))
    torch_paths, builder, folder = (plan[name] for name in ("torch_paths", "builder", "outputs"))
    calls, warm_up_calls = (int(plan[name]) for name in ("calls", "warm_up_calls"))
    add_torch(torch_paths)
    # What a model prints is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            from iree_gauntlet.torch_models.torch_side.host_modules import build_host_modules  # noqa: PLC0415 - it imports torch
        except ImportError as error:
            raise PlanError(f"torch cannot be imported: {error}") from error
        host = build_host_modules(builder, inputs, host_inputs)
        begin = time.perf_counter_ns()
        contexts = load_contexts(read_plan(ContextPlan, plan), inputs)
        loaded = time.perf_counter_ns()
        outputs, host_outputs = _call_first(host, contexts[0], whole=bool(folder))
        first = time.perf_counter_ns()
        fetch = plan.get("fetch")
        types = [outputs[index][0] for index in (range(len(outputs)) if fetch is None else fetch)]
        for context in contexts[1:]:
            _call_first(host, context, whole=False)
        for context in contexts:
            for _ in range(warm_up_calls):
                _run_loop(host, [context], types, 1)
        loop = _run_loop(host, contexts, types, calls // contexts[0].in_flight)
        written = host.arrays(host_outputs)
    # What a call through stages takes that do nothing.
    idle = run_pipeline(lambda: None, [lambda items: items], lambda _outputs: None, _OVERHEAD_CALLS)
    return {
        **figures(contexts, (begin, loaded, first), loop.total_ns, loop.device_ns),
        "calls": calls,
        "host_ms": {
            "pre": [value / _NS_PER_MS for value in loop.pre_ns],
            "post": [value / _NS_PER_MS for value in loop.post_ns],
        },
        "overhead_us": idle.total_ns / _OVERHEAD_CALLS / _NS_PER_US,
        "outputs": write_arrays(folder, "output", outputs),
        "host_outputs": write_arrays(folder, "host_output", written),
    }


def _call_first(
    host: HostModules, context: Context, *, whole: bool
) -> tuple[list[tuple[str, NDArray[Any] | None]], list[Any]]:
    """The first call of a context, one stage after the other; outputs of the device, and of the whole."""
    outputs = context.first(whole=whole, inputs=host.before())
    return outputs, host.after([(name, array) for name, array in outputs if array is not None])


def _run_loop(host: HostModules, contexts: list[Context], types: list[str], groups: int) -> PipelineLoop:
    def stage(context: Context) -> Callable[[list[Any]], list[Any]]:
        return lambda items: [list(zip(types, arrays, strict=True)) for arrays in context.group(items)]

    return run_pipeline(host.before, [stage(item) for item in contexts], host.after, groups, contexts[0].in_flight)


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, measure))
