"""Push the same inputs through a module again and again, in the Python of the toolchain that is measured.

    python measure_module.py PLAN.json

A call is what a user of the runtime waits for: the inputs go from the host to the device, the function is invoked,
its outputs come back. The plan says what to do:

    {"devices": ["local-task"],                 one context for each, running in parallel
     "modules": ["/…/main.vmfb"],               in the order of loading; the last one has the function
     "parameters": [["model", "/…/model.irpa"]],  scope and file
     "function": "main_graph",
     "inputs": [{"file": "/…/input_0.npy", "type": "f32"}],   bf16 as a uint16 array
     "calls": 50,                               in all; shared out over the contexts
     "warm_up_calls": 1,                        of each context, after its first call; with in_flight, so many groups
     "outputs": "/…/folder",                    where the outputs of the first call go; empty for nowhere
     "in_flight": 1,                            so many calls of a context are pushed before the first is waited for
     "fetch": null,                             indices of the outputs that each call brings to the host; null for all
     "carry": null}                             {"outputs": k, "inputs": j, "count": m}, see below

The last three may be left out. The answer is one JSON object on standard output:

    {"load_ms", "first_call_ms", "total_s", "calls", "call_ms": […], "overhead_us",
     "outputs": [{"file", "type", "shape"}], "pushed": "async" or "one by one", "peak_rss_bytes", "device_memory": {…}}

`total_s` is from the first input pushed to the last output received, after warming up. `call_ms` has every call, by
context; with one context their sum is `total_s` less what the loop itself takes, which is `overhead_us` a call
(measured with a function that does nothing).

With `in_flight` n above 1, calls come in groups of n, `call_ms` has the time of each group divided by n, and `calls`
is a multiple of n. A group uses the module's `<function>$async`, which torch and ONNX programs have: inputs of the
next calls are pushed while the first ones run. Without it calls run one after the other, which `pushed` says.

With `carry`, the outputs k … k+m-1 of a call are the inputs j … j+m-1 of the next one of its group and stay on the
device; each group begins with those of the plan, which are pushed once, before the first call. So gradients are
summed up.

The first call, whose outputs are for checking, is one alone, and brings all of them where `outputs` names a folder.
Exit codes are those of `plan_file`.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that has this script; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import LoadedProgram, OpenDevice, device_memory
from iree_gauntlet.workers.iree_side.plan_file import (
    PlanError,
    answer_plan,
    call_times,
    read_arrays,
    read_plan,
    write_arrays,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.workers.iree_side.device_context import View
    from iree_gauntlet.workers.iree_side.plan_file import Array, TypedArray

    Inputs = Sequence[TypedArray]


_OVERHEAD_CALLS = 2000
_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_NS_PER_US = 1e3


@dataclass(frozen=True, slots=True)
class Carry:
    """Outputs of a call that are inputs of the next one of its group."""

    outputs: int
    inputs: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """Of `measure_memory` and of pipelines too."""

    inputs: list[dict[str, Any]]
    devices: list[str]
    modules: list[str]
    parameters: list[list[str]]
    function: str
    calls: int
    in_flight: int = 1
    fetch: list[int] | None = None
    carry: dict[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModulePlan(ContextPlan):
    outputs: str
    warm_up_calls: int


class Context:
    """A program, called in groups with inputs from the host; see the module. A PlanError where `carry` does not fit."""

    def __init__(
        self,
        program: LoadedProgram,
        inputs: Inputs,
        in_flight: int = 1,
        fetch: Sequence[int] | None = None,
        carry: Carry | None = None,
    ) -> None:
        self.program = program
        self.in_flight = in_flight
        self.pushed_async = in_flight > 1 and program.has_async
        self._device = program.device
        self._inputs = inputs
        self._fetch = fetch
        self._carry = carry
        kept = range(carry.inputs, carry.inputs + carry.count) if carry else range(0)
        if kept and not 0 <= kept[0] <= kept[-1] < len(inputs):
            raise PlanError(f"carry: inputs {kept[0]} to {kept[-1]}, and the function is given {len(inputs)}")
        self._start = {index: self._device.push(*inputs[index]) for index in kept}

    def first(self, *, whole: bool, inputs: Inputs | None = None) -> list[tuple[str, Array | None]]:
        """One call alone; the element types of all its outputs, with those that were brought to the host.

        A PlanError where `fetch` or `carry` names outputs that the function has not.
        """
        arguments = self._push_arguments(self._inputs if inputs is None else inputs, self._start)
        if self.pushed_async:
            views, done = self.program.start(arguments)
            done.wait()
        else:
            views = self.program.invoke(arguments)
        carried = (self._carry.outputs, self._carry.outputs + self._carry.count - 1) if self._carry else ()
        for what, indices in (("fetch", self._fetch or ()), ("carry", carried)):
            for index in indices:
                if not 0 <= index < len(views):
                    raise PlanError(f"{what}: output {index}, and the function has {len(views)}")
        brought = range(len(views)) if whole or self._fetch is None else self._fetch
        return [
            (self._device.type_name(view), self._device.fetch(view) if index in brought else None)
            for index, view in enumerate(views)
        ]

    def group(self, items: Sequence[Inputs] | None = None) -> list[list[Array]]:
        """A group of calls; the outputs of each that are brought to the host, in the order of `fetch`.

        `items` are the inputs of each call; None for the context's own, `in_flight` times.
        """
        calls = [self._inputs] * self.in_flight if items is None else items
        if not self.pushed_async:
            return self._call_one_by_one(calls)
        started = []
        kept, after = self._start, None
        for inputs in calls:
            views, done = self.program.start(self._push_arguments(inputs, kept), after)
            if self._carry:
                kept, after = self._take_over(self._carry, views), done
            started.append((self._pick_fetched(views), done))
        outputs = []
        for views, done in started:
            done.wait()
            outputs.append([self._device.fetch(view) for view in views])
        return outputs

    def _call_one_by_one(self, calls: Sequence[Inputs]) -> list[list[Array]]:
        outputs = []
        kept = self._start
        for inputs in calls:
            views = self.program.invoke(self._push_arguments(inputs, kept))
            if self._carry:
                kept = self._take_over(self._carry, views)
            outputs.append([self._device.fetch(view) for view in self._pick_fetched(views)])
        return outputs

    def _push_arguments(self, inputs: Inputs, kept: dict[int, View]) -> list[View]:
        return [kept[index] if index in kept else self._device.push(*given) for index, given in enumerate(inputs)]

    def _pick_fetched(self, views: list[View]) -> list[View]:
        return views if self._fetch is None else [views[index] for index in self._fetch]

    @staticmethod
    def _take_over(carry: Carry, views: Sequence[View]) -> dict[int, View]:
        return {carry.inputs + index: views[carry.outputs + index] for index in range(carry.count)}


def run_loop(
    contexts: Sequence[Callable[[], object]], calls: int, clock: Callable[[], int] = time.perf_counter_ns
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Calls as often as asked for, shared out over contexts that run in parallel: functions, of one call each.

    There is at least one call a context; the clock is in ns. What all took together, and each call of each context.
    """
    shares = [calls // len(contexts) + (index < calls % len(contexts)) for index in range(len(contexts))]
    if len(contexts) == 1:
        begin = clock()
        times = call_times(contexts[0], shares[0], clock)
        return clock() - begin, (times,)
    begun: list[int] = []
    start = threading.Barrier(len(contexts), action=lambda: begun.append(clock()))

    def work(context: Callable[[], object], share: int) -> tuple[int, ...]:
        start.wait()
        return call_times(context, share, clock)

    with ThreadPoolExecutor(len(contexts)) as pool:
        found = tuple(pool.map(work, contexts, shares))
        return clock() - begun[0], found


def overhead_us(clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """What the loop itself takes, a call."""
    total, _ = run_loop([lambda: None], _OVERHEAD_CALLS, clock)
    return total / _OVERHEAD_CALLS / _NS_PER_US


def load_contexts(plan: ContextPlan, inputs: Inputs) -> list[Context]:
    """The contexts of a plan, loaded; a PlanError where that contradicts itself or the program."""
    uris, calls, in_flight = plan.devices, plan.calls, plan.in_flight
    if in_flight < 1 or calls % in_flight:
        raise PlanError(f"{calls} calls, {in_flight} in flight: expected 1 or more, and calls a multiple of it")
    if not uris or calls // in_flight < len(uris):
        of = f" in groups of {in_flight}" if in_flight > 1 else ""
        each = "group" if in_flight > 1 else "call"
        raise PlanError(f"{calls} calls{of} on {len(uris)} devices: expected a device or more, and a {each} for each")
    devices = {uri: OpenDevice(uri) for uri in uris}
    carry = read_plan(Carry, plan.carry) if plan.carry else None
    programs = [LoadedProgram(devices[uri], plan.modules, plan.parameters, plan.function) for uri in uris]
    return [Context(program, inputs, in_flight, plan.fetch, carry) for program in programs]


def measure(said: dict[str, Any]) -> dict[str, Any]:
    """Measure as a plan says; the answer, or what `answer_plan` takes."""
    plan = read_plan(_ModulePlan, said)
    inputs = read_arrays(plan.inputs)
    begin = time.perf_counter_ns()
    contexts = load_contexts(plan, inputs)
    loaded = time.perf_counter_ns()
    outputs = contexts[0].first(whole=bool(plan.outputs))
    first = time.perf_counter_ns()
    for context in contexts[1:]:
        context.first(whole=False)
    for context in contexts:
        for _ in range(plan.warm_up_calls):
            context.group()
    in_flight = contexts[0].in_flight
    total, times = run_loop([context.group for context in contexts], plan.calls // in_flight)
    written = write_arrays(plan.outputs, "output", outputs)
    found = figures(contexts, (begin, loaded, first), total, times)
    return {**found, "calls": plan.calls, "overhead_us": overhead_us() / in_flight, "outputs": written}


def figures(
    contexts: Sequence[Context], starts: tuple[int, int, int], total_ns: int, call_ns: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """What an answer says of times and memory.

    `starts` are those of loading, of the first call, and its end, in ns; `call_ns` is of each group, by context.
    """
    begin, loaded, first = starts
    in_flight = contexts[0].in_flight
    return {
        "load_ms": (loaded - begin) / _NS_PER_MS,
        "first_call_ms": (first - loaded) / _NS_PER_MS,
        "total_s": total_ns / _NS_PER_S,
        "call_ms": [[value / in_flight / _NS_PER_MS for value in times] for times in call_ns],
        "pushed": "async" if contexts[0].pushed_async else "one by one",
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_memory": device_memory(context.program.device for context in contexts),
    }


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, measure))
