"""Push inputs through a model whose first or last module runs in torch on the host, next to the device.

    python measure_pipeline.py PLAN.json

Runs in the Python of the toolchain that is measured, which must have the version of the one that has torch: torch is
imported from there. The plan is that of `workers/iree_side/measure_module.py`, and

    {"torch_paths": ["/…/site-packages"],   of the Python that has torch
     "builder": {…},            its builder's plan: the model is built again, for its modules on the host
     "host_inputs": [{"file", "type"}]}     of the module before the device; empty where there is none

What that module returns is the device's input, and `inputs` says of which types; floats are cast to them, and floats
of the device to f32. Inputs beyond those (in training the targets) are the plan's; in training nothing runs after the
device. While the device computes one call, the host prepares the next and finishes the one before.

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
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that has this script; all else is found as this Python finds it, and not next to the
    # script, where names such as `layers` lie.
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from iree_gauntlet.torch_models.torch_side.host_pipeline import PipelineLoop, run_pipeline
from iree_gauntlet.workers.iree_side.measure_module import Context, ContextPlan, figures, load_contexts
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, read_arrays, read_plan, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.torch_models.torch_side.host_modules import HostModules


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
