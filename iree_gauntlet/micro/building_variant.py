"""Building a variant: the model is made, its recipes are applied, and it is exported with what torch eager returns."""

from __future__ import annotations

import copy
import gc
import json
import platform
import sys
import time
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from iree_gauntlet.bench.contractions import read_contractions
from iree_gauntlet.bench.exported import export_program, type_name, write_arrays
from iree_gauntlet.errors import UsageError
from iree_gauntlet.micro.built_model import Model, apply_recipes, base_model, blaming
from iree_gauntlet.micro.plugins import load_registry
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.micro.lookup import Registry
    from iree_gauntlet.micro.variant_plan import VariantPlan

__all__ = ["build"]

# As `bench/build_folder.py` reads it, which needs more than this Python may have.
_BUILD_FILE = "build.json"
_SCHEMA = 1
_PROGRAM = "main"
# Two runs of torch may add in another order.
_REPEATABLE = 1e-2
_PACKAGES = ("torch", "torchao", "transformers", "onnxscript", "onnx", "numpy")


def build(plan: VariantPlan) -> None:
    """Build what a plan asks for into its folder, `build.json` last.

    Raises:
        UsageError: for what the plan asks and there is not, or what does not fit together.
        PluginError: for what is wrong with an architecture or a recipe.
        ExportFailedError: where the model cannot be exported.
    """
    folder = Path(plan.output)
    folder.mkdir(parents=True, exist_ok=True)
    # What an earlier build left is no result of this one.
    (folder / _BUILD_FILE).unlink(missing_ok=True)
    registry = load_registry([Path(file) for file in plan.plugins])
    seconds = {"build": 0.0, "export": 0.0, "eager": 0.0}
    with _timed(seconds, "build", f"building {plan.model_type} {plan.m}-{plan.k}-{plan.n}, {plan.dtype}"):
        model = base_model(plan, registry)
    parameter_count = sum(weight.numel() for weight in model.module.parameters())
    with _timed(seconds, "eager", "running it unchanged"):
        flops, plain = _counted(plan, registry, model)
        reference = _reference(plan, registry, model, plain)
    with _timed(seconds, "build", f"applying {plan.label}"):
        module, changed = apply_recipes(plan, registry, model.module)
        model.module = module
        gc.collect()
    with _timed(seconds, "eager", f"running {plan.label}"):
        outputs = _eager(plan, registry, model)
    if plan.is_baseline:
        _require_repeatable(plan, plain, outputs)
    with _timed(seconds, "export", f"exporting {plan.label}"), torch.no_grad():
        path = folder / f"{_PROGRAM}.onnx"
        name = f"{plan.model_type} {plan.label}"
        # Not rewritten: the exporter's constant folding makes f32 of narrow weights of up to 8,192 values.
        export_program(module, model.inputs, outputs, path, model=name, optimize=False)
    record = {
        "schema": _SCHEMA,
        "kind": "pipeline",
        "model": plan.model_type,
        "config": plan.config,
        "samples": int(model.inputs[0].shape[0]) if model.inputs[0].ndim else 1,
        "parameter_count": parameter_count,
        "programs": [
            {
                "name": _PROGRAM,
                "onnx": path.name,
                "inputs": write_arrays(model.inputs, folder, f"{_PROGRAM}.input"),
                "outputs": write_arrays(outputs, folder, f"{_PROGRAM}.output"),
            }
        ],
        "host": {"pre": False, "post": False},
        "host_inputs": [],
        "host_outputs": [],
        "generation": None,
        "training": None,
        "contractions": max(1, read_contractions(path)),
        "reference": write_arrays(reference, folder, "reference"),
        "weight_error": None,
        "flops": flops,
        "changed_layers": changed.layers,
        "changed_bytes": changed.bytes,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "seconds": {part: round(value, 3) for part, value in seconds.items()},
    }
    write_atomic(folder / _BUILD_FILE, json.dumps(record, indent=1) + "\n")


@contextmanager
def _timed(seconds: dict[str, float], part: str, progress: str) -> Iterator[None]:
    sys.stderr.write(f"{progress}\n")
    sys.stderr.flush()
    begin = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] += time.perf_counter() - begin


def _eager(plan: VariantPlan, registry: Registry, model: Model) -> list[Any]:
    """What a model returns in torch eager: tensors of types that IREE takes."""
    architecture = registry.model_type(plan.model_type).architecture
    with blaming(architecture, f"running it with {plan.label} in torch failed"), torch.no_grad():
        found = tree_leaves(model.module(*model.inputs))
    if not found or not all(isinstance(tensor, torch.Tensor) and type_name(tensor) for tensor in found):
        kinds = ", ".join(str(getattr(item, "dtype", type(item).__name__)) for item in found) or "nothing"
        raise UsageError(f"{plan.model_type} with {plan.label} returns {kinds}: expected tensors of types of IREE")
    return list(found)


def _counted(plan: VariantPlan, registry: Registry, model: Model) -> tuple[int, list[Any]]:
    """The floating-point operations of a call, as torch counts those of products and convolutions, and its outputs."""
    with FlopCounterMode(display=False) as counter:
        outputs = _eager(plan, registry, model)
    return counter.get_total_flops(), outputs


def _reference(plan: VariantPlan, registry: Registry, model: Model, plain: Sequence[Any]) -> Sequence[Any]:
    """What the unchanged weights give in f32 for the same inputs; nothing for the baseline that is f32 itself."""
    if plan.dtype == "f32":
        return [] if plan.is_baseline else plain
    wide = Model(
        copy.deepcopy(model.module).float(),
        tuple(tensor.float() if tensor.is_floating_point() else tensor for tensor in model.inputs),
    )
    return _eager(plan, registry, wide)


def _require_repeatable(plan: VariantPlan, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Refuse a model that draws random numbers, or keeps something from call to call: nothing can equal that."""
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        if not torch.allclose(one.double(), other.double(), rtol=_REPEATABLE, atol=1e-6, equal_nan=True):
            raise UsageError(
                f"{plan.model_type}: output {index} is another one at a second call with the same inputs",
                "a model that is compared must not draw random numbers, or change itself",
            )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
