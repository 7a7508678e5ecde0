"""Build a model: call its function, export its programs, and compute their expected outputs in torch.

A plan yields the same weights and inputs in every process. Plans of the same architecture, shape and type have the same
weights and inputs before their recipes are applied.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.build_files import BuildPlan, TokenLoop, TrainingStep, read_plan
from iree_gauntlet.torch_models.formats import TORCH_TYPES, DataFormat
from iree_gauntlet.torch_models.model_registry import Pipeline, make_planned_model
from iree_gauntlet.torch_models.torch_side.build_steps import REPEAT_RTOL, BuildSteps, ExportFailedError
from iree_gauntlet.torch_models.torch_side.decompositions import (
    LOSS,
    draw_gradients,
    draw_targets,
    run_eager_step,
    trace_step,
)
from iree_gauntlet.torch_models.torch_side.layers import find_changed_layers, linear_layers, take_fingerprints
from iree_gauntlet.torch_models.torch_side.torch_tensors import cast, find_type_name, have_shared_weights, write_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.nn import Module

    from iree_gauntlet.torch_models.build_files import Array, BuildRecord, VariantPlan
    from iree_gauntlet.torch_models.model_registry import Generative
    from iree_gauntlet.torch_models.plugins import PluginRegistry


_SEED = 0


def run(path: Path) -> None:
    """Build a model into the plan's folder; `build.json` is written last.

    Modules pass on their results flattened: each tensor, in order, is one argument of the next module.
    """
    plan = read_plan(path, BuildPlan)
    steps = BuildSteps(plan, plan.form.label, plan.form, thorough=plan.sensitivity)
    kind = "training of " if plan.training else ""
    with steps.time_part("build", f"building {kind}{plan.model} {plan.config or ''}".rstrip()):
        instance = make_planned_model(plan)
    steps.model = instance.model
    content = instance.content
    if not isinstance(content, Pipeline):
        record = _build_generative(steps, content)
    elif plan.training:
        record = _build_training(steps, content, accumulate=plan.accumulate)
    else:
        record = _build_pipeline(steps, content)
    steps.write_record(
        replace(
            record,
            model=instance.model.name,
            config=instance.options.config,
            samples=instance.samples,
            parameter_count=instance.parameter_count,
        )
    )


def _build_pipeline(steps: BuildSteps, content: Pipeline) -> BuildRecord:
    plain, host_inputs = _compute_device_inputs(steps, content)
    device, post = content.device.to(torch.float32), content.post
    if not steps.is_f32:
        if post is not None and have_shared_weights(device, post):
            # Copy the module after the device: its weights stay in f32.
            post = copy.deepcopy(post)
        with steps.time_part("eager", "running main in f32"):
            steps.write_reference(steps.run_eager(device, plain, "the device's module"))
    steps.convert([device])
    inputs = cast(plain, steps.form)
    label = "the device's module"
    with steps.time_part("eager", f"running main in {steps.form.label}"):
        steps.require_repeatable(steps.run_eager(device, inputs, label), steps.run_eager(device, inputs, label))

    def run_post(outputs: Sequence[Tensor]) -> list[Tensor]:
        return steps.run_eager(post, cast(outputs, DataFormat.FP32), "the module after the device")

    outputs = steps.compute_expected(
        "main", device, inputs, lambda module, args: steps.run_eager(module, args, label), run_post if post else None
    )
    steps.export("main", device, inputs, outputs)
    return replace(
        steps.record,
        host={"pre": content.pre is not None, "post": post is not None},
        host_inputs=host_inputs,
        host_outputs=steps.write_expected("main", run_post(outputs), "host.output", of_host=True) if post else (),
    )


def _compute_device_inputs(steps: BuildSteps, content: Pipeline) -> tuple[tuple[Tensor, ...], tuple[Array, ...]]:
    """Return the device's inputs in f32, and the written inputs of the module before the device if there is one."""
    inputs = steps.check_tensors(content.inputs, "the inputs")
    if content.pre is None:
        return cast(inputs, DataFormat.FP32), ()
    returned = steps.run_eager(content.pre, inputs, "the module before the device")
    return cast(returned, DataFormat.FP32), write_arrays(inputs, steps.folder, "host.input")


def _build_training(steps: BuildSteps, content: Pipeline, *, accumulate: bool) -> BuildRecord:
    inputs, host_inputs = _compute_device_inputs(steps, content)
    module = content.device.to(torch.float32)
    targets = draw_targets(steps.run_eager(module, inputs, "the device's module"))
    if not targets:
        raise steps.model.make_error("it returns no float tensor, so there is no loss to train it with")
    loss, gradients = _run_step(steps, module, inputs, targets)
    # Require repeatable gradients: otherwise limits of rounding errors would be meaningless.
    repeat = _run_step(steps, module, inputs, targets)[1]
    differences = sum(float((repeat[name] - gradient).double().square().sum()) for name, gradient in gradients.items())
    if differences > REPEAT_RTOL**2 * sum(float(gradient.double().square().sum()) for gradient in gradients.values()):
        raise steps.model.make_error(
            "the gradients of a second step with the same inputs differ, as with dropout",
            "a trained model must not draw random numbers: build it with a dropout of 0",
        )
    gradient_sums = draw_gradients(list(gradients.values())) if accumulate else ()
    if not steps.is_f32:
        steps.write_reference([loss, *_add_gradients(gradient_sums, gradients)])
        steps.convert([module])
        inputs, targets, gradient_sums = (cast(tensors, steps.form) for tensors in (inputs, targets, gradient_sums))

    def run_training_step(module: Module, arguments: Sequence[Tensor]) -> list[Tensor]:
        bounds = len(inputs), len(inputs) + len(targets)
        loss, gradients = _run_step(steps, module, arguments[: bounds[0]], arguments[bounds[0] : bounds[1]])
        return [loss, *_add_gradients(arguments[bounds[1] :], gradients)]

    arguments = (*inputs, *targets, *gradient_sums)
    outputs = steps.compute_expected("main", module, arguments, run_training_step)
    names = list(gradients)
    with steps.time_part("export", "tracing forward and backward"):
        try:
            step = trace_step(module, inputs, targets, names, accumulate=accumulate)
        except Exception as error:  # a tracer may raise anything
            raise ExportFailedError.from_exception(steps.model.name, "main", error) from error
    steps.export("main", step, arguments, outputs, optimize=False)
    return replace(
        steps.record,
        kind="training",
        host={"pre": content.pre is not None, "post": False},
        host_inputs=host_inputs,
        training=TrainingStep(loss=LOSS, gradients=tuple(names), accumulate=accumulate),
    )


def _run_step(
    steps: BuildSteps, module: Module, inputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    with steps.attribute_torch_errors("a step of training"):
        loss, gradients = run_eager_step(module, inputs, targets)
    if not gradients:
        raise steps.model.make_error("no parameter contributes to its float outputs, so there is nothing to train")
    return loss, gradients


def _add_gradients(gradient_sums: Sequence[Tensor], gradients: dict[str, Tensor]) -> list[Tensor]:
    """Return the gradients; if there are sums of previous gradients, return the new sums."""
    if not gradient_sums:
        return list(gradients.values())
    return [gradient_sum + gradient for gradient_sum, gradient in zip(gradient_sums, gradients.values(), strict=True)]


def _build_generative(steps: BuildSteps, content: Generative) -> BuildRecord:
    plain = cast(steps.check_tensors(content.inputs, "the inputs"), DataFormat.FP32)
    prefill, decode = (module.to(torch.float32) for module in (content.prefill, content.decode))
    if not steps.is_f32:
        with steps.time_part("eager", "running prefill in f32"):
            steps.write_reference(steps.run_eager(prefill, plain, "prefill"))
    steps.convert([prefill, decode])
    inputs = cast(plain, steps.form)
    logits, *state = prefill_outputs = steps.compute_expected(
        "prefill", prefill, inputs, lambda module, args: steps.run_eager(module, args, "prefill")
    )
    token = _choose_likeliest_token(steps, logits, "prefill")
    decode_inputs = (token, torch.tensor([content.position]), *state)
    decode_outputs = steps.compute_expected(
        "decode", decode, decode_inputs, lambda module, args: steps.run_eager(module, args, "decode")
    )
    actual, expected = (
        [f"{find_type_name(tensor)} {list(tensor.shape)}" for tensor in tensors]
        for tensors in (decode_outputs[1:], state)
    )
    if actual != expected[: len(actual)]:
        raise steps.model.make_error(
            f"decode returned {', '.join(actual)} after the logits, but the state that prefill returned begins with "
            f"{', '.join(expected[: len(actual)])}",
            "decode must return new values of the first tensors of the state, with the same shapes and types",
        )
    with steps.time_part("eager", f"choosing tokens in {steps.form.label}"):
        tokens = _choose_tokens(steps, content, token, state)
    steps.export("prefill", prefill, inputs, prefill_outputs)
    steps.export("decode", decode, decode_inputs, decode_outputs)
    generation = TokenLoop(content.position, content.tokens, len(state), len(decode_outputs) - 1, tokens)
    return replace(steps.record, kind="generative", generation=generation)


def _choose_tokens(
    steps: BuildSteps, content: Generative, token: Tensor, state: Sequence[Tensor]
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each sample by greedy choice, in the loop that `Generative` describes."""
    tokens, state = [token], list(state)
    for position in range(content.position, content.position + content.tokens - 1):
        logits, *new_state = steps.run_eager(content.decode, (tokens[-1], torch.tensor([position]), *state), "decode")
        state[: len(new_state)] = new_state
        tokens.append(_choose_likeliest_token(steps, logits, "decode"))
    return tuple(tuple(int(token) for token in sample) for sample in torch.cat(tokens, 1))


def _choose_likeliest_token(steps: BuildSteps, logits: Tensor, program: str) -> Tensor:
    """Return the most likely token of each sample, [batch, 1]."""
    if logits.ndim != 2 or not logits.is_floating_point():
        raise steps.model.make_error(
            f"{program} returned {find_type_name(logits)} of shape {list(logits.shape)} first, expected the "
            "logits of the next token: [batch, vocabulary]"
        )
    return logits.argmax(-1, keepdim=True)


def make_base_model(plan: VariantPlan, registry: PluginRegistry) -> tuple[Module, tuple[Tensor, ...]]:
    """Return the module of a plan's architecture, in the plan's type and evaluation mode, and the module's inputs."""
    model_type = registry.find_model_type(plan.model_type)
    architecture = model_type.architecture
    dtype = getattr(torch, TORCH_TYPES[plan.dtype])
    options: dict[str, Any] = {} if plan.config is None else {"config": Path(plan.config)}
    torch.manual_seed(_SEED)
    if model_type.activation is not None:
        with model_type.activation.locate_errors(f"the activation of {plan.model_type}"):
            options |= {"activation": model_type.activation.function()}
    with architecture.locate_errors(f"building it for m = {plan.m}, k = {plan.k}, n = {plan.n} failed"):
        returned = architecture.function(plan.m, plan.k, plan.n, dtype, **options)
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        raise architecture.make_error(
            f"it returned {type(returned).__name__}: expected a module and a tuple of its inputs"
        )
    module, inputs = returned
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(module, torch.nn.Module):
        raise architecture.make_error(f"it returned {type(module).__name__} first: expected a torch.nn.Module")
    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(i, torch.Tensor) for i in inputs):
        raise architecture.make_error("its second result is not a tuple of tensors")
    # Cast nothing if all parameters have the type already: buffers in f32 are then intended.
    if any(weight.is_floating_point() and weight.dtype is not dtype for weight in module.parameters()):
        module.to(dtype)
    inputs = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs)
    return module.eval().requires_grad_(requires_grad=False), inputs


def apply_recipes(plan: VariantPlan, registry: PluginRegistry, module: Module) -> tuple[Module, list[int]]:
    """Apply the recipes of a plan to a model: first sparsity, then quantisation of the sparse weights.

    Returns:
        The module, and for each changed layer the size in bytes that its weight had before.
    """
    if plan.is_baseline:
        return module, []
    fingerprints = take_fingerprints(module)
    for text in filter(None, (plan.sparsity, plan.quantization)):
        recipe_call = registry.find_recipe(text)
        recipe = recipe_call.recipe
        if recipe.refusal:
            raise UsageError(f"{text}: {recipe.refusal}")
        missing = [name for name in recipe.requires if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"{text} needs {', '.join(missing)}, which {sys.executable} does not have",
                f"pip install {' '.join(missing)}",
            )
        # Recipes without a function are the compiler's, and do not change the model.
        if recipe.function is not None:
            torch.manual_seed(_SEED)
            with recipe.locate_errors(f"{text} failed"), torch.no_grad():
                module = recipe.function(module, *recipe_call.arguments)
            if not isinstance(module, torch.nn.Module):
                raise recipe.make_error(f"it returned {type(module).__name__}: expected the changed torch module")
    changed_bytes = find_changed_layers(fingerprints, module)
    if not changed_bytes:
        count = len(linear_layers(module))
        scope = f"none of its {count} linear layers" if count else "nothing: it has no linear layer"
        raise UsageError(f"{plan.label} changes {scope} in {plan.model_type}")
    return module.eval(), changed_bytes
