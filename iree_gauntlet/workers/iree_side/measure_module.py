"""Run the same inputs through a module repeatedly, in the Python of the measured toolchain.

    python measure_module.py PLAN.json

A call is all the work that a user of the runtime waits for: the inputs are copied from the host to the device, the
function runs, and its outputs are copied to the host. The plan has these fields:

    {"devices": ["local-task"],                 one context for each, running in parallel
     "modules": ["/…/main.vmfb"],               in the order of loading; the last one has the function
     "parameters": [["model", "/…/model.irpa"]],  scope and file
     "function": "main_graph",
     "inputs": [{"file": "/…/input_0.npy", "type": "f32"}],   bf16 as a uint16 array
     "calls": 50,                               total number of calls, distributed over the contexts
     "warm_up_calls": 1,                        for each context, after its first call; with in_flight, groups of calls
     "outputs": "/…/folder",                    destination of the outputs of the first call; empty for none
     "in_flight": 1,                            calls that a context starts before it waits for the first of them
     "fetch": null,                             indices of the outputs that each call copies to the host; null for all
     "carry": null}                             {"outputs": k, "inputs": j, "count": m}, see below

The last three may be left out. The answer is one JSON object on standard output:

    {"load_ms", "first_call_ms", "total_s", "calls", "call_ms": […], "overhead_us",
     "outputs": [{"file", "type", "shape"}], "pushed": "async" or "one by one", "peak_rss_bytes", "device_memory": {…}}

`total_s` is the time after the warm-up, from the push of the first input to the arrival of the last output. `call_ms`
has the time of every call, by context. `overhead_us` is the loop's own overhead per call, measured with a function that
does nothing; with one context, `total_s` is the sum of the calls and this overhead.

With `in_flight` n above 1, calls come in groups of n, `call_ms` has the time of each group divided by n, and `calls` is
a multiple of n. A group uses the module's `<function>$async`, which torch and ONNX programs have, to push inputs of the
next calls while the first calls run. Without this function, calls run one after the other, as `pushed` reports.

With `carry`, the outputs k … k+m-1 of a call become the inputs j … j+m-1 of the next call in its group, and stay on the
device. The first call of each group takes these inputs from the plan; they are pushed only once. Gradients, for
example, are accumulated in this way.

The first call runs alone. Its outputs are for checking; all of them are fetched if `outputs` names a folder.
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
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import DeviceProgram, OpenDevice, read_device_memory
from iree_gauntlet.workers.iree_side.plan_file import (
    PlanError,
    call_times,
    read_arrays,
    read_plan,
    run_worker_main,
    write_arrays,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.workers.iree_side.device_context import View
    from iree_gauntlet.workers.iree_side.plan_file import Array, TypedArray

    Inputs = Sequence[TypedArray]


_OVERHEAD_CALLS = 2000
_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_NS_PER_US = 1e3


@dataclass(frozen=True, slots=True)
class Carry:
    """Outputs of a call that become inputs of the next call in its group."""

    outputs: int
    inputs: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPlan:
    """The plan's fields that plans of `measure_memory` and pipelines also have."""

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
    """A program that is called in groups, with inputs from the host; raises a PlanError if `carry` does not fit it."""

    def __init__(
        self,
        program: DeviceProgram,
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
        carried_inputs = range(carry.inputs, carry.inputs + carry.count) if carry else range(0)
        if carried_inputs and not 0 <= carried_inputs[0] <= carried_inputs[-1] < len(inputs):
            raise PlanError(
                f"carry: inputs {carried_inputs[0]} to {carried_inputs[-1]}, but the function is given {len(inputs)}"
            )
        self._first_carried = {index: self._device.push(*inputs[index]) for index in carried_inputs}

    def make_first_call(self, *, fetch_all: bool, inputs: Inputs | None = None) -> list[tuple[str, Array | None]]:
        """Make a single call; return each output's element type, and the output itself if it was fetched to the host.

        A PlanError is raised if `fetch` or `carry` names outputs that the function does not have.
        """
        arguments = self._push_arguments(self._inputs if inputs is None else inputs, self._first_carried)
        if self.pushed_async:
            views, done_fence = self.program.start(arguments)
            done_fence.wait()
        else:
            views = self.program.invoke(arguments)
        carried_outputs = (self._carry.outputs, self._carry.outputs + self._carry.count - 1) if self._carry else ()
        for field, indices in (("fetch", self._fetch or ()), ("carry", carried_outputs)):
            for index in indices:
                if not 0 <= index < len(views):
                    raise PlanError(f"{field}: output {index}, but the function has {len(views)}")
        fetched_indices = range(len(views)) if fetch_all or self._fetch is None else self._fetch
        return [
            (self._device.type_name(view), self._device.fetch(view) if index in fetched_indices else None)
            for index, view in enumerate(views)
        ]

    def call_group(self, inputs_of_calls: Sequence[Inputs] | None = None) -> list[list[Array]]:
        """Make a group of calls; return each call's fetched outputs, in the order of `fetch`.

        `inputs_of_calls` has the inputs of each call; None means `in_flight` calls with the context's own inputs.
        """
        calls = [self._inputs] * self.in_flight if inputs_of_calls is None else inputs_of_calls
        if not self.pushed_async:
            return self._call_one_by_one(calls)
        pending = []
        carried_views, wait_for = self._first_carried, None
        for inputs in calls:
            views, done_fence = self.program.start(self._push_arguments(inputs, carried_views), wait_for)
            if self._carry:
                carried_views, wait_for = self._carry_over(self._carry, views), done_fence
            pending.append((self._pick_fetched(views), done_fence))
        outputs = []
        for views, done_fence in pending:
            done_fence.wait()
            outputs.append([self._device.fetch(view) for view in views])
        return outputs

    def _call_one_by_one(self, calls: Sequence[Inputs]) -> list[list[Array]]:
        outputs = []
        carried_views = self._first_carried
        for inputs in calls:
            views = self.program.invoke(self._push_arguments(inputs, carried_views))
            if self._carry:
                carried_views = self._carry_over(self._carry, views)
            outputs.append([self._device.fetch(view) for view in self._pick_fetched(views)])
        return outputs

    def _push_arguments(self, inputs: Inputs, carried_views: dict[int, View]) -> list[View]:
        return [
            carried_views[index] if index in carried_views else self._device.push(*array)
            for index, array in enumerate(inputs)
        ]

    def _pick_fetched(self, views: list[View]) -> list[View]:
        return views if self._fetch is None else [views[index] for index in self._fetch]

    @staticmethod
    def _carry_over(carry: Carry, views: Sequence[View]) -> dict[int, View]:
        return {carry.inputs + index: views[carry.outputs + index] for index in range(carry.count)}


def run_loop(
    contexts: Sequence[Callable[[], object]], calls: int, clock: Callable[[], int] = time.perf_counter_ns
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Distribute the calls over parallel contexts; a context is a function that makes one call.

    There are at least as many calls as contexts. Returns the total time and each call's time, by context, in ns.
    """
    counts = [calls // len(contexts) + (index < calls % len(contexts)) for index in range(len(contexts))]
    if len(contexts) == 1:
        start_ns = clock()
        times = call_times(contexts[0], counts[0], clock)
        return clock() - start_ns, (times,)
    start_times: list[int] = []
    start = threading.Barrier(len(contexts), action=lambda: start_times.append(clock()))

    def run_context(context: Callable[[], object], share: int) -> tuple[int, ...]:
        start.wait()
        return call_times(context, share, clock)

    with ThreadPoolExecutor(len(contexts)) as pool:
        times_by_context = tuple(pool.map(run_context, contexts, counts))
        return clock() - start_times[0], times_by_context


def overhead_us(clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Return the loop's own overhead per call in µs."""
    total, _ = run_loop([lambda: None], _OVERHEAD_CALLS, clock)
    return total / _OVERHEAD_CALLS / _NS_PER_US


def load_contexts(plan: ContextPlan, inputs: Inputs) -> list[Context]:
    """Load the contexts of a plan; raise a PlanError if the plan contradicts itself or the program."""
    uris, calls, in_flight = plan.devices, plan.calls, plan.in_flight
    if in_flight < 1 or calls % in_flight:
        raise PlanError(f"{calls} calls, {in_flight} in flight: expected 1 or more, and calls a multiple of it")
    if not uris or calls // in_flight < len(uris):
        group_note = f" in groups of {in_flight}" if in_flight > 1 else ""
        unit = "group" if in_flight > 1 else "call"
        raise PlanError(
            f"{calls} calls{group_note} on {len(uris)} devices: expected a device or more, and a {unit} for each"
        )
    devices = {uri: OpenDevice(uri) for uri in uris}
    carry = read_plan(Carry, plan.carry) if plan.carry else None
    programs = [DeviceProgram(devices[uri], plan.modules, plan.parameters, plan.function) for uri in uris]
    return [Context(program, inputs, in_flight, plan.fetch, carry) for program in programs]


def measure(document: Mapping[str, object]) -> dict[str, object]:
    """Measure as a plan requests; return the answer for `run_worker_main`."""
    plan = read_plan(_ModulePlan, document)
    inputs = read_arrays(plan.inputs)
    start_ns = time.perf_counter_ns()
    contexts = load_contexts(plan, inputs)
    load_end_ns = time.perf_counter_ns()
    outputs = contexts[0].make_first_call(fetch_all=bool(plan.outputs))
    first_end_ns = time.perf_counter_ns()
    for context in contexts[1:]:
        context.make_first_call(fetch_all=False)
    for context in contexts:
        for _ in range(plan.warm_up_calls):
            context.call_group()
    in_flight = contexts[0].in_flight
    total, times = run_loop([context.call_group for context in contexts], plan.calls // in_flight)
    output_entries = write_arrays(plan.outputs, "output", outputs)
    metrics = make_metrics(contexts, (start_ns, load_end_ns, first_end_ns), total, times)
    return {**metrics, "calls": plan.calls, "overhead_us": overhead_us() / in_flight, "outputs": output_entries}


def make_metrics(
    contexts: Sequence[Context], starts: tuple[int, int, int], total_ns: int, call_ns: Sequence[Sequence[int]]
) -> dict[str, object]:
    """Return the times and memory of an answer.

    `starts` are the start of loading and the start and end of the first call; `call_ns` has groups' times by context.
    """
    start_ns, load_end_ns, first_end_ns = starts
    in_flight = contexts[0].in_flight
    return {
        "load_ms": (load_end_ns - start_ns) / _NS_PER_MS,
        "first_call_ms": (first_end_ns - load_end_ns) / _NS_PER_MS,
        "total_s": total_ns / _NS_PER_S,
        "call_ms": [[value / in_flight / _NS_PER_MS for value in times] for times in call_ns],
        "pushed": "async" if contexts[0].pushed_async else "one by one",
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_memory": read_device_memory(context.program.device for context in contexts),
    }


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, measure))
