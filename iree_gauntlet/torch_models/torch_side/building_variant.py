"""Build a variant: make the model, apply its recipes, and export it with its outputs in torch eager."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from pathlib import Path

from torch.utils.flop_counter import FlopCounterMode

from iree_gauntlet.torch_models.build_files import VariantPlan, read_plan
from iree_gauntlet.torch_models.formats import DataFormat, read_contractions
from iree_gauntlet.torch_models.plugins import load_registry
from iree_gauntlet.torch_models.torch_side.build_steps import BuildSteps
from iree_gauntlet.torch_models.torch_side.building import apply_recipes, make_base_model
from iree_gauntlet.torch_models.torch_side.torch_tensors import cast

_PROGRAM = "main"


def run(path: Path) -> None:
    """Build the variant of the plan in a file."""
    build(read_plan(path, VariantPlan))


def build(plan: VariantPlan) -> None:
    """Build a variant into the plan's folder; `build.json` is written last."""
    steps = BuildSteps(plan, plan.label)
    registry = load_registry([Path(file) for file in plan.plugins])
    with steps.time_part("build", f"building {plan.model_type} {plan.m}-{plan.k}-{plan.n}, {plan.dtype}"):
        module, inputs = make_base_model(plan, registry)
    steps.model = registry.find_model_type(plan.model_type).architecture
    parameter_count = sum(weight.numel() for weight in module.parameters())
    with steps.time_part("eager", "running it unchanged"):
        with FlopCounterMode(display=False) as counter:
            plain_outputs = steps.run_eager(module, inputs, "the model")
        if plan.dtype != "f32":
            f32_module = copy.deepcopy(module).float()
            steps.write_reference(steps.run_eager(f32_module, cast(inputs, DataFormat.FP32), "the model in f32"))
        else:
            steps.write_reference([] if plan.is_baseline else plain_outputs)
    with steps.time_part("build", f"applying {plan.label}"):
        module, changed_bytes = apply_recipes(plan, registry, module)
        gc.collect()
    with steps.time_part("eager", f"running {plan.label}"):
        outputs = steps.run_eager(module, inputs, "the model")
    if plan.is_baseline:
        steps.require_repeatable(plain_outputs, outputs)
    # Do not optimise: the exporter's constant folding would widen narrow weights of up to 8,192 values to f32.
    steps.export(_PROGRAM, module, inputs, outputs, optimize=False)
    steps.write_record(
        replace(
            steps.record,
            model=plan.model_type,
            config=plan.config,
            samples=int(inputs[0].shape[0]) if inputs[0].ndim else 1,
            parameter_count=parameter_count,
            contractions=max(1, read_contractions(steps.folder / f"{_PROGRAM}.onnx")),
            flops=counter.get_total_flops(),
            changed_layers=len(changed_bytes),
            changed_bytes=sum(changed_bytes),
        )
    )
