"""Building a model: its function is called, its programs are exported, and torch says what they should return.

The same plan gives the same weights and inputs in every process; and so do all plans of one architecture, shape and
type before their recipes.
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
from iree_gauntlet.torch_models.torch_side.build_steps import REPEATABLE, BuildSteps, ExportFailedError
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
    """Build what a plan asks for into its folder, `build.json` last.

    Modules hand each other what they return flat: its tensors in order, one argument each.
    """
    plan = read_plan(path, BuildPlan)
    steps = BuildSteps(plan, plan.form.label, plan.form, thorough=plan.sensitivity)
    kind = "training of " if plan.training else ""
    with steps.timed("build", f"building {kind}{plan.model} {plan.config or ''}".rstrip()):
        instance = make_planned_model(plan)
    steps.model = instance.model
    content = instance.content
    if not isinstance(content, Pipeline):
        made = _build_generative(steps, content)
    elif plan.training:
        made = _build_training(steps, content, accumulate=plan.accumulate)
    else:
        made = _build_pipeline(steps, content)
    steps.write_record(
        replace(
            made,
            model=instance.model.name,
            config=instance.options.config,
            samples=instance.samples,
            parameter_count=instance.parameter_count,
        )
    )


def _build_pipeline(steps: BuildSteps, content: Pipeline) -> BuildRecord:
    plain, host_inputs = _run_before(steps, content)
    device, post = content.device.to(torch.float32), content.post
    if not steps.exact:
        if post is not None and have_shared_weights(device, post):
            # The host's stay in f32.
            post = copy.deepcopy(post)
        with steps.timed("eager", "running main in f32"):
            steps.refer_to(steps.eager(device, plain, "the device's module"))
    steps.convert([device])
    inputs = cast(plain, steps.form)
    what = "the device's module"
    with steps.timed("eager", f"running main in {steps.form.label}"):
        steps.require_repeatable(steps.eager(device, inputs, what), steps.eager(device, inputs, what))

    def after(outputs: Sequence[Tensor]) -> list[Tensor]:
        return steps.eager(post, cast(outputs, DataFormat.FP32), "the module after the device")

    outputs = steps.in_format(
        "main", device, inputs, lambda module, given: steps.eager(module, given, what), after if post else None
    )
    steps.export("main", device, inputs, outputs)
    return replace(
        steps.record,
        host={"pre": content.pre is not None, "post": post is not None},
        host_inputs=host_inputs,
        host_outputs=steps.written("main", after(outputs), "host.output", after=True) if post else (),
    )


def _run_before(steps: BuildSteps, content: Pipeline) -> tuple[tuple[Tensor, ...], tuple[Array, ...]]:
    """The device's inputs in f32, and the host's where there is a module before the device."""
    inputs = steps.checked(content.inputs, "the inputs")
    if content.pre is None:
        return cast(inputs, DataFormat.FP32), ()
    returned = steps.eager(content.pre, inputs, "the module before the device")
    return cast(returned, DataFormat.FP32), write_arrays(inputs, steps.folder, "host.input")


def _build_training(steps: BuildSteps, content: Pipeline, *, accumulate: bool) -> BuildRecord:
    inputs, host_inputs = _run_before(steps, content)
    module = content.device.to(torch.float32)
    targets = draw_targets(steps.eager(module, inputs, "the device's module"))
    if not targets:
        raise steps.model.problem("it returns no float tensor, so there is no loss to train it by")
    loss, gradients = _run_step(steps, module, inputs, targets)
    # Of gradients that no two steps have alike, the errors that rounding may cause would mean nothing.
    second = _run_step(steps, module, inputs, targets)[1]
    differences = sum(float((second[name] - gradient).double().square().sum()) for name, gradient in gradients.items())
    if differences > REPEATABLE**2 * sum(float(gradient.double().square().sum()) for gradient in gradients.values()):
        raise steps.model.problem(
            "the gradients of a second step with the same inputs are others, as with dropout",
            "a model that is trained here must not draw random numbers: make it with a dropout of 0",
        )
    so_far = draw_gradients(list(gradients.values())) if accumulate else ()
    if not steps.exact:
        steps.refer_to([loss, *_add_gradients(so_far, gradients)])
        steps.convert([module])
        inputs, targets, so_far = (cast(given, steps.form) for given in (inputs, targets, so_far))

    def step_of(module: Module, given: Sequence[Tensor]) -> list[Tensor]:
        split = len(inputs), len(inputs) + len(targets)
        loss, gradients = _run_step(steps, module, given[: split[0]], given[split[0] : split[1]])
        return [loss, *_add_gradients(given[split[1] :], gradients)]

    given = (*inputs, *targets, *so_far)
    outputs = steps.in_format("main", module, given, step_of)
    names = list(gradients)
    with steps.timed("export", "tracing forward and backward"):
        try:
            step = trace_step(module, inputs, targets, names, accumulate=accumulate)
        except Exception as error:  # a tracer may raise anything, and is named for it
            raise ExportFailedError.of(steps.model.name, "main", error) from error
    steps.export("main", step, given, outputs, optimize=False)
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
    with steps.running("a step of training"):
        loss, gradients = run_eager_step(module, inputs, targets)
    if not gradients:
        raise steps.model.problem("no parameter has a part in its float outputs, so there is nothing to train")
    return loss, gradients


def _add_gradients(so_far: Sequence[Tensor], gradients: dict[str, Tensor]) -> list[Tensor]:
    """The gradients, upon those so far where there are any."""
    if not so_far:
        return list(gradients.values())
    return [before + new for before, new in zip(so_far, gradients.values(), strict=True)]


def _build_generative(steps: BuildSteps, content: Generative) -> BuildRecord:
    plain = cast(steps.checked(content.inputs, "the inputs"), DataFormat.FP32)
    prefill, decode = (module.to(torch.float32) for module in (content.prefill, content.decode))
    if not steps.exact:
        with steps.timed("eager", "running prefill in f32"):
            steps.refer_to(steps.eager(prefill, plain, "prefill"))
    steps.convert([prefill, decode])
    inputs = cast(plain, steps.form)
    logits, *state = first = steps.in_format(
        "prefill", prefill, inputs, lambda module, given: steps.eager(module, given, "prefill")
    )
    token = _choose_likeliest(steps, logits, "prefill")
    given = (token, torch.tensor([content.position]), *state)
    second = steps.in_format("decode", decode, given, lambda module, given: steps.eager(module, given, "decode"))
    have, expected = ([f"{find_type_name(new)} {list(new.shape)}" for new in part] for part in (second[1:], state))
    if have != expected[: len(have)]:
        raise steps.model.problem(
            f"decode returned {', '.join(have)} behind the logits, and the state that prefill returned begins with "
            f"{', '.join(expected[: len(have)])}",
            "decode returns new values of the first tensors of the state, of their shapes and types",
        )
    with steps.timed("eager", f"choosing tokens in {steps.form.label}"):
        chosen = _choose_tokens(steps, content, token, state)
    steps.export("prefill", prefill, inputs, first)
    steps.export("decode", decode, given, second)
    generation = TokenLoop(content.position, content.tokens, len(state), len(second) - 1, chosen)
    return replace(steps.record, kind="generative", generation=generation)


def _choose_tokens(
    steps: BuildSteps, content: Generative, token: Tensor, state: Sequence[Tensor]
) -> tuple[tuple[int, ...], ...]:
    """The tokens of each sample by greedy choice, as `Generative` has the loop."""
    tokens, state = [token], list(state)
    for position in range(content.position, content.position + content.tokens - 1):
        logits, *new = steps.eager(content.decode, (tokens[-1], torch.tensor([position]), *state), "decode")
        state[: len(new)] = new
        tokens.append(_choose_likeliest(steps, logits, "decode"))
    return tuple(tuple(int(token) for token in sample) for sample in torch.cat(tokens, 1))


def _choose_likeliest(steps: BuildSteps, logits: Tensor, what: str) -> Tensor:
    """The most likely token of each sample, [batch, 1]."""
    if logits.ndim != 2 or not logits.is_floating_point():
        raise steps.model.problem(
            f"{what} returned {find_type_name(logits)} of shape {list(logits.shape)} first, where the logits of the "
            "next token are expected: [batch, vocabulary]"
        )
    return logits.argmax(-1, keepdim=True)


def make_base_model(plan: VariantPlan, registry: PluginRegistry) -> tuple[Module, tuple[Tensor, ...]]:
    """What the architecture of a plan makes, in the plan's type: a module in evaluation mode, and what it is given."""
    asked = registry.model_type(plan.model_type)
    made = asked.architecture
    dtype = getattr(torch, TORCH_TYPES[plan.dtype])
    given: dict[str, Any] = {} if plan.config is None else {"config": Path(plan.config)}
    torch.manual_seed(_SEED)
    if asked.activation is not None:
        with asked.activation.blamed(f"the activation of {plan.model_type}"):
            given |= {"activation": asked.activation.function()}
    with made.blamed(f"building it for m = {plan.m}, k = {plan.k}, n = {plan.n} failed"):
        returned = made.function(plan.m, plan.k, plan.n, dtype, **given)
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        raise made.problem(f"it returned {type(returned).__name__}: expected a module and a tuple of its inputs")
    module, inputs = returned
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(module, torch.nn.Module):
        raise made.problem(f"it returned {type(module).__name__} first: expected a torch.nn.Module")
    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(i, torch.Tensor) for i in inputs):
        raise made.problem("it returned no tuple of tensors second")
    # An architecture that has heard of the type may keep a part of itself in f32 on purpose.
    if any(weight.is_floating_point() and weight.dtype is not dtype for weight in module.parameters()):
        module.to(dtype)
    inputs = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs)
    return module.eval().requires_grad_(requires_grad=False), inputs


def apply_recipes(plan: VariantPlan, registry: PluginRegistry, module: Module) -> tuple[Module, list[int]]:
    """What the recipes of a plan make of a model: sparsity first, so that what is quantised has its zeros already.

    Returns:
        The module, and what the weights of the layers took that were changed, in bytes.
    """
    if plan.is_baseline:
        return module, []
    before = take_fingerprints(module)
    for text in filter(None, (plan.sparsity, plan.quantization)):
        asked = registry.recipe(text)
        recipe = asked.recipe
        if recipe.refusal:
            raise UsageError(f"{text}: {recipe.refusal}")
        missing = [name for name in recipe.requires if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"{text} needs {', '.join(missing)}, and {sys.executable} lacks it", f"pip install {' '.join(missing)}"
            )
        # The compiler's recipes leave the model alone.
        if recipe.function is not None:
            torch.manual_seed(_SEED)
            with recipe.blamed(f"{text} failed"), torch.no_grad():
                module = recipe.function(module, *asked.arguments)
            if not isinstance(module, torch.nn.Module):
                raise recipe.problem(f"it returned {type(module).__name__}: expected the torch module that it made")
    changed = find_changed_layers(before, module)
    if not changed:
        count = len(linear_layers(module))
        have = f"none of its {count} linear layers" if count else "nothing: it has no linear layer"
        raise UsageError(f"{plan.label} changes {have} in {plan.model_type}")
    return module.eval(), changed
