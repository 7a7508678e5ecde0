"""Measure variants of a model in torch on the CPU, one after the other, with torch's own number of threads.

    python measure_torch_variants.py PLAN.json

    {"variants": [
        {"builder": {…},             what `build_variant.py` was told: the same model is made again
         "build": "/…",              the folder of what it built, whose inputs are used
         "mode": "eager",            or "compile"
         "compile_mode": "default",  of torch.compile; it means nothing to eager
         "label": "int8wo",          comes back with the answer
         "calls": 20}],
     "warm_up_calls": 1,             of each variant, after its first call
     "compile_threads": null,        processes that torch.compile may use; null for torch's own choice
     "outputs": "/…/folder"}         where the outputs of first calls go; empty for nowhere

The answer is {"version", "peak_rss_bytes", "variants": […]}, in the order of the plan: {"label", "mode", "call_ms":
[…], "first_call_ms", "compile_s", "outputs": [{"file", "type", "shape"}]} each, or {"label", "mode", "error"} with what
went wrong in one line. `compile_s` is the first call where that is what compiles, else null.

One model is held at a time: what a variant leaves is freed before the next one is made.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it, and not beside the
    # script, where names such as `plots` lie.
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from iree_gauntlet.bench.exported import write_arrays
from iree_gauntlet.bench.peer_round import answer, arrays, timed_calls
from iree_gauntlet.micro.built_model import apply_recipes, base_model
from iree_gauntlet.micro.plugins import load_registry
from iree_gauntlet.micro.variant_plan import variant_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.micro.variant_plan import VariantPlan

__all__ = ["measure"]

_NS_PER_MS = 1e6
_NS_PER_S = 1e9


def measure(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Measure as a plan says; the answer."""
    if plan["compile_threads"] is not None:
        torch._inductor.config.compile_threads = plan["compile_threads"]  # noqa: SLF001 - there is no other name
    found = []
    for index, asked in enumerate(plan["variants"]):
        names = {"label": asked["label"], "mode": asked["mode"]}
        try:
            found.append({**names, **_measured(asked, plan, f"{index}.output")})
        except Exception as error:  # noqa: BLE001 - a model and what compiles it may raise anything, and it is said
            traceback.print_exc()
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            found.append({**names, "error": f"{type(error).__name__}: {said}"})
        torch._dynamo.reset()  # noqa: SLF001 - torch has no other name for it
        gc.collect()
    return {"version": torch.__version__, "variants": found}


def _measured(asked: Mapping[str, Any], plan: Mapping[str, Any], stem: str) -> dict[str, Any]:
    module = _module(variant_plan(asked["builder"], "the builder's plan"))
    inputs = _inputs(Path(asked["build"]))
    compiled = asked["mode"] == "compile"
    if compiled:
        torch._dynamo.utils.counters.clear()  # noqa: SLF001 - as above
        module = torch.compile(module, mode=asked["compile_mode"])
    with torch.no_grad():
        begin = time.perf_counter_ns()
        outputs = tree_leaves(module(*inputs))
        first = time.perf_counter_ns() - begin
        if compiled and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:  # noqa: SLF001 - as above
            raise RuntimeError("torch.compile has compiled nothing")
        written = write_arrays(outputs, Path(plan["outputs"]), stem) if plan["outputs"] else []
        calls = {"calls": asked["calls"], "warm_up_calls": plan["warm_up_calls"]}
        return {
            "call_ms": timed_calls(lambda: module(*inputs), calls),
            "first_call_ms": first / _NS_PER_MS,
            "compile_s": first / _NS_PER_S if compiled else None,
            "outputs": written,
        }


def _module(plan: VariantPlan) -> Any:
    registry = load_registry([Path(file) for file in plan.plugins])
    module, _ = apply_recipes(plan, registry, base_model(plan, registry).module)
    return module


def _inputs(folder: Path) -> tuple[Any, ...]:
    """Those of a built model."""
    items = json.loads((folder / "build.json").read_text(encoding="utf-8"))["programs"][0]["inputs"]
    found = []
    for array, element_type in arrays(folder, items):
        tensor = torch.from_numpy(array.view(np.int16) if element_type == "bf16" else array)
        found.append(tensor.view(torch.bfloat16) if element_type == "bf16" else tensor)
    return tuple(found)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    sys.exit(answer(sys.argv[1:], measure))
