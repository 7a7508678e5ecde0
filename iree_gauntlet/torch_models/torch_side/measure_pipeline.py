"""Measure a model whose first or last module runs in torch on the host, at the same time as the device.

    python measure_pipeline.py PLAN.json

The measured toolchain's Python runs this program, and imports torch from the Python that has torch. Both Pythons must
have the same version. The plan is that of `workers/iree_side/measure_module.py`, with these additions:

    {"torch_paths": ["/…/site-packages"],   packages of the Python that has torch
     "builder": {…},            the plan of the model's builder, to rebuild the modules on the host
     "host_inputs": [{"file", "type"}]}     inputs of the module before the device; empty without such a module

The module before the device returns the first of the device's inputs, with floats cast to the types in `inputs`. The
other inputs, such as targets, are the plan's. The device's float outputs are cast to f32. In training no module runs
after the device. While the device computes one call, the host prepares the next call and finishes the previous call.

The result is that of `measure_module.py`, with these additions:

    {"host_ms": {"pre": […], "post": […]},  times of each call, including conversions of tensors for the device
     "host_outputs": [{"file", "type", "shape"}]}   final outputs of the first call

`total_s` is the time from the first input of `pre` to the last output of `post`, and `first_call_ms` that time for the
first call. `call_ms` is the device's share, by context. `overhead_us` is the time of a call through three empty stages.
The model's prints go to standard error. Exit codes are those of `workers/iree_side/plan_file.py`.
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
    # Import `iree_gauntlet` from the folder that contains this script, and other modules from this Python's path. The
    # script's own folder leaves the path, because its modules have general names such as `layers`.
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from iree_gauntlet.torch_models.torch_side.host_pipeline import PipelineTimes, run_pipeline
from iree_gauntlet.workers.iree_side.measure_module import Context, ContextPlan, load_contexts, make_metrics
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_arrays, read_plan, run_worker_main, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.torch_models.torch_side.host_modules import HostModules


_OVERHEAD_CALLS = 500
_NS_PER_MS = 1e6
_NS_PER_US = 1e3


def add_torch(paths: Sequence[str]) -> None:
    """Make torch importable from another Python of the same version; this Python's packages still come first."""
    libraries = [file for path in paths for file in Path(path, "torch").glob("_C.*") if file.is_file()]
    usable_names = {f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES}
    names = [file.name for file in libraries if file.suffix in {".so", ".pyd"}]
    if not names:
        raise PlanError(f"no torch in {', '.join(paths) or 'no folder at all'}")
    if not usable_names.intersection(names):
        version = ".".join(platform.python_version_tuple()[:2])
        raise PlanError(
            f"modules on the host need torch in the Python of the measured IREE, which is {version}, but the "
            f"given torch is for another version ({names[0]}): name a Python {version} that has torch"
        )
    sys.path.extend(path for path in paths if path not in sys.path)


def measure(plan: dict[str, Any]) -> dict[str, Any]:
    """Measure the model of a plan, and return the result."""
    inputs, host_inputs = (read_arrays(plan[name]) for name in ("inputs", "host_inputs"))
    torch_paths, builder, folder = (plan[name] for name in ("torch_paths", "builder", "outputs"))
    calls, warm_up_calls = (int(plan[name]) for name in ("calls", "warm_up_calls"))
    add_torch(torch_paths)
    # A model's prints must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            from iree_gauntlet.torch_models.torch_side.host_modules import build_host_modules  # noqa: PLC0415 - it imports torch
        except ImportError as error:
            raise PlanError(f"torch cannot be imported: {error}") from error
        host = build_host_modules(builder, inputs, host_inputs)
        begin = time.perf_counter_ns()
        contexts = load_contexts(read_plan(ContextPlan, plan), inputs)
        load_end = time.perf_counter_ns()
        outputs, host_outputs = _call_first(host, contexts[0], fetch_all=bool(folder))
        first_end = time.perf_counter_ns()
        fetch = plan.get("fetch")
        types = [outputs[index][0] for index in (range(len(outputs)) if fetch is None else fetch)]
        for context in contexts[1:]:
            _call_first(host, context, fetch_all=False)
        for context in contexts:
            for _ in range(warm_up_calls):
                _run_loop(host, [context], types, 1)
        loop = _run_loop(host, contexts, types, calls // contexts[0].in_flight)
        host_arrays = host.to_arrays(host_outputs)
    # With empty stages, a call takes only the pipeline's overhead.
    empty_loop = run_pipeline(lambda: None, [lambda items: items], lambda _outputs: None, _OVERHEAD_CALLS)
    return {
        **make_metrics(contexts, (begin, load_end, first_end), loop.total_ns, loop.device_ns),
        "calls": calls,
        "host_ms": {
            "pre": [value / _NS_PER_MS for value in loop.pre_ns],
            "post": [value / _NS_PER_MS for value in loop.post_ns],
        },
        "overhead_us": empty_loop.total_ns / _OVERHEAD_CALLS / _NS_PER_US,
        "outputs": write_arrays(folder, "output", outputs),
        "host_outputs": write_arrays(folder, "host_output", host_arrays),
    }


def _call_first(
    host: HostModules, context: Context, *, fetch_all: bool
) -> tuple[list[tuple[str, NDArray[Any] | None]], list[Any]]:
    """Run a context's first call, stage by stage, and return the outputs of the device and of `post`."""
    outputs = context.make_first_call(fetch_all=fetch_all, inputs=host.run_pre())
    return outputs, host.run_post([(name, array) for name, array in outputs if array is not None])


def _run_loop(host: HostModules, contexts: list[Context], types: list[str], groups: int) -> PipelineTimes:
    def stage(context: Context) -> Callable[[list[Any]], list[Any]]:
        return lambda items: [list(zip(types, arrays, strict=True)) for arrays in context.call_group(items)]

    return run_pipeline(host.run_pre, [stage(item) for item in contexts], host.run_post, groups, contexts[0].in_flight)


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, measure))
