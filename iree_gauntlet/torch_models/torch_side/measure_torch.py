"""Measure built models in torch on the CPU, one after the other, eager or compiled, with torch's own thread count.

The plan is a `PeerPlan`. The result is {"version", "models": […]}, in the order of the plan. Each model has {"name",
"call_ms": […], "first_call_ms", "compile_s", "outputs": [{"file", "type", "shape"}], "chosen"}, or {"name", "error"}
with a message of one line. `compile_s` is the time of a compiled model's first call, otherwise null. `chosen` are the
tokens of the last generation, by sample. `outputs` are computed from the inputs in the build folder: they are the
outputs of all programs, or of the module after the device if there is one. Host modules of compiled models stay eager.

A call runs the model's modules on tensors in memory: in inference without autograd, in training forward, loss and
backward. Gradients and the state of a generative model stay in torch. Only one model at a time is in memory.
"""

from __future__ import annotations

import copy
import gc
import time
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from iree_gauntlet.torch_models.build_files import BuildPlan, PeerPlan, VariantPlan, check_plan, read_build
from iree_gauntlet.torch_models.formats import DataFormat
from iree_gauntlet.torch_models.model_registry import Pipeline, make_planned_model
from iree_gauntlet.torch_models.plugins import load_registry
from iree_gauntlet.torch_models.torch_side.building import apply_recipes, make_base_model
from iree_gauntlet.torch_models.torch_side.decompositions import run_eager_step
from iree_gauntlet.torch_models.torch_side.torch_tensors import (
    cast,
    convert,
    have_shared_weights,
    make_tensor,
    write_arrays,
)
from iree_gauntlet.workers.iree_side.plan_file import read_arrays, time_calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.nn import Module

    from iree_gauntlet.torch_models.build_files import Array, PeerProgram
    from iree_gauntlet.torch_models.model_registry import Generative


_NS_PER_MS = 1e6
_NS_PER_S = 1e9


class TorchModel(ABC):
    """A built model in torch; `modules` run on the device in IREE, and may be replaced by compiled modules."""

    modules: tuple[Module, ...]
    chosen_tokens: tuple[Tensor, ...] = ()

    @abstractmethod
    def call(self) -> Sequence[Tensor]:
        """Run one call, as it is measured, and return the call's result."""

    def outputs(self, first_result: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs to be checked: the first call's result, or the outputs of another run."""
        return first_result


class _Inference(TorchModel):
    """A model in inference: its modules run one after the other."""

    def __init__(self, content: Pipeline, form: DataFormat, build: ModelFolder) -> None:
        self._form = form
        self._pre, self._post = content.pre, content.post
        self.modules = (content.device,)
        if self._post is not None and form is not DataFormat.FP32 and have_shared_weights(content.device, self._post):
            # Copy the module after the device: its weights stay in f32.
            self._post = copy.deepcopy(self._post)
        self._model_inputs = build.inputs(0) if self._pre is None else build.host_inputs()

    def call(self) -> Sequence[Tensor]:
        with torch.no_grad():
            values: Sequence[Tensor] = self._model_inputs
            if self._pre is not None:
                values = cast(tree_leaves(self._pre(*values)), self._form)
            outputs: list[Tensor] = tree_leaves(self.modules[0](*values))
            if self._post is not None:
                outputs = tree_leaves(self._post(*cast(outputs, DataFormat.FP32)))
            return outputs


class _Training(TorchModel):
    """A training step: forward, loss and backward; gradients are accumulated if the built program accumulates them."""

    def __init__(self, content: Pipeline, form: DataFormat, build: ModelFolder) -> None:
        self._form = form
        self._pre = content.pre
        self.modules = (content.device,)
        training = build.record.training
        weights = dict(content.device.named_parameters())
        arrays = build.inputs(0)
        self._weights = [weights[name] for name in training.gradients] if training and training.accumulate else []
        self._sums = arrays[len(arrays) - len(self._weights) :]
        arrays = arrays[: len(arrays) - len(self._weights)]
        self._host_inputs = build.host_inputs()
        count = len(content.inputs) if self._pre is None else len(self._run_pre(self._pre))
        self._model_inputs, self._targets = arrays[:count], arrays[count:]

    def _run_pre(self, pre: Module) -> Sequence[Tensor]:
        with torch.no_grad():
            return cast(tree_leaves(pre(*self._host_inputs)), self._form)

    def call(self) -> Sequence[Tensor]:
        inputs = self._model_inputs if self._pre is None else self._run_pre(self._pre)
        for weight, gradient_sum in zip(self._weights, self._sums, strict=True):
            weight.grad = gradient_sum
        loss, gradients_by_name = run_eager_step(self.modules[0], inputs, self._targets)
        gradients = list(gradients_by_name.values())
        if self._weights:
            self._sums = gradients
        return [loss, *gradients]


class _Generation(TorchModel):
    """A generation with greedy choice: prefill and decode, in the loop that `Generative` describes."""

    def __init__(self, content: Generative, build: ModelFolder) -> None:
        self.modules = (content.prefill, content.decode)
        self._tokens, self._position = content.tokens, content.position
        self._inputs = (build.inputs(0), build.inputs(1))

    def call(self) -> Sequence[Tensor]:
        prefill, decode = self.modules
        with torch.no_grad():
            logits, *state = tree_leaves(prefill(*self._inputs[0]))
            tokens = [logits.argmax(-1, keepdim=True)]
            for position in range(self._position, self._position + self._tokens - 1):
                logits, *new_state = tree_leaves(decode(tokens[-1], torch.tensor([position]), *state))
                state[: len(new_state)] = new_state
                tokens.append(logits.argmax(-1, keepdim=True))
        self.chosen_tokens = tuple(tokens)
        return tokens

    def outputs(self, first_result: Sequence[Tensor]) -> Sequence[Tensor]:  # noqa: ARG002 - tokens cannot be compared with tolerances
        with torch.no_grad():
            pairs = zip(self.modules, self._inputs, strict=True)
            return [tensor for module, inputs in pairs for tensor in tree_leaves(module(*inputs))]


class ModelFolder:
    """The folder of a built model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.record = read_build(folder)

    def inputs(self, program: int) -> list[Tensor]:
        """Return the inputs of a program."""
        return self._read_tensors(self.record.programs[program].inputs)

    def host_inputs(self) -> list[Tensor]:
        """Return the inputs of the module before the device; empty without such a module."""
        return self._read_tensors(self.record.host_inputs)

    def _read_tensors(self, arrays: Sequence[Array]) -> list[Tensor]:
        specs = [array.as_dict() for array in arrays]
        return [make_tensor(*typed_array) for typed_array in read_arrays(specs, self._folder)]


def _make_model(builder: Mapping[str, Any], build: ModelFolder) -> TorchModel:
    """Build a model from the plan of its builder."""
    if "model_type" in builder:
        variant = check_plan(builder, "the builder's plan", VariantPlan)
        registry = load_registry([Path(file) for file in variant.plugins])
        module, _ = apply_recipes(variant, registry, make_base_model(variant, registry)[0])
        return _Inference(Pipeline(None, module, None, ()), DataFormat.FP32, build)
    plan = check_plan(builder, "the builder's plan", BuildPlan)
    content = make_planned_model(plan).content
    model: TorchModel
    if not isinstance(content, Pipeline):
        model = _Generation(content, build)
    elif plan.training:
        model = _Training(content, plan.form, build)
    else:
        model = _Inference(content, plan.form, build)
    for module in model.modules:
        module.to(torch.float32)
    if plan.form is not DataFormat.FP32:
        convert(model.modules, plan.form)
    return model


def run(path: Path) -> dict[str, Any]:
    """Measure the models of a plan, and return the results."""
    plan = PeerPlan.read(path)
    results = []
    for index, program in enumerate(plan.models):
        try:
            result = _measure(plan, program, f"{index}.output")
        except Exception as error:  # noqa: BLE001 - a model and its compiler may raise anything
            traceback.print_exc()
            message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            result = {"error": f"{type(error).__name__}: {message}"}
        results.append({"name": program.name, **result})
        torch._dynamo.reset()  # noqa: SLF001 - torch has no public name for it
        gc.collect()
    return {"version": torch.__version__, "models": results}


def _measure(plan: PeerPlan, program: PeerProgram, stem: str) -> dict[str, Any]:
    """Measure one model, and return its result."""
    model = _make_model(program.builder, ModelFolder(program.build))
    uses_compile = program.mode == "compile"
    if uses_compile:
        if plan.compile_threads is not None:
            torch._inductor.config.compile_threads = plan.compile_threads  # noqa: SLF001 - there is no other name
        torch._dynamo.utils.counters.clear()  # noqa: SLF001 - as above
        model.modules = tuple(torch.compile(module, mode=program.compile_mode) for module in model.modules)
    begin = time.perf_counter_ns()
    first_result = model.call()
    first_call_ns = time.perf_counter_ns() - begin
    if uses_compile and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:  # noqa: SLF001 - as above
        raise RuntimeError("torch.compile compiled nothing")
    # Write the outputs now, because the next call changes sums of gradients in place.
    outputs = write_arrays(model.outputs(first_result), Path(plan.outputs), stem) if plan.outputs else ()
    return {
        "call_ms": time_calls(model.call, plan.warm_up_calls, program.calls),
        "first_call_ms": first_call_ns / _NS_PER_MS,
        "compile_s": first_call_ns / _NS_PER_S if uses_compile else None,
        "outputs": [output.as_dict() for output in outputs],
        "chosen": torch.cat(model.chosen_tokens, 1).tolist() if model.chosen_tokens else [],
    }
