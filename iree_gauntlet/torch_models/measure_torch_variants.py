"""Measure variants of a model in torch on the CPU, one after the other, with torch's own number of threads.

It is run by `torch_process.py`; its plan is

    {"variants": [
        {"builder": {…},             what its builder was told: the same model is made again
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
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from iree_gauntlet.torch_models.build_plan import checked_plan
from iree_gauntlet.torch_models.built_model import apply_recipes, base_model
from iree_gauntlet.torch_models.measure_torch import BuiltModel, TorchModel, measured
from iree_gauntlet.torch_models.plugins import load_registry
from iree_gauntlet.torch_models.variant_plan import VariantPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Variant(TorchModel):
    """A variant, on the inputs that it was built with."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        plan = checked_plan(asked["builder"], "the builder's plan", VariantPlan)
        registry = load_registry([Path(file) for file in plan.plugins])
        self.modules = (apply_recipes(plan, registry, base_model(plan, registry)[0])[0],)
        self._inputs = BuiltModel(Path(asked["build"])).inputs(0)

    def call(self) -> Sequence[Any]:
        with torch.no_grad():
            found: list[Any] = tree_leaves(self.modules[0](*self._inputs))
            return found


def run(path: Path) -> dict[str, Any]:
    """Measure as a plan says; the answer."""
    plan = json.loads(path.read_bytes())
    found = []
    for index, asked in enumerate(plan["variants"]):
        names = {"label": asked["label"], "mode": asked["mode"]}
        try:
            found.append({**names, **measured(_Variant(asked), {**plan, **asked}, f"{index}.output")})
        except Exception as error:  # noqa: BLE001 - a model and what compiles it may raise anything, and it is said
            traceback.print_exc()
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            found.append({**names, "error": f"{type(error).__name__}: {said}"})
        torch._dynamo.reset()  # noqa: SLF001 - torch has no other name for it
        gc.collect()
    return {"version": torch.__version__, "variants": found}
