"""Measure built models in torch on the CPU, one after the other, eager or compiled, with torch's own thread count.

The plan is a `PeerPlan`. The answer is {"version", "models": […]}, in its order: {"name", "call_ms": […],
"first_call_ms", "compile_s", "outputs": [{"file", "type", "shape"}], "chosen"} each, or {"name", "error"} with what
went wrong in one line. `compile_s` is the first call where that is what compiles, else null; `chosen` are the tokens of
the last generation, by sample. Outputs are those of every program for the inputs in the build folder, or of the last
host module where there is one. Of compiled models host modules stay eager.

A call is the model's own modules on tensors that are there: in inference without autograd, in training forward, loss
and backward. Gradients stay where torch keeps them, and so does the state of a generative model. One model is held at a
time.
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
    """A built model in torch; `modules`: those that run on the device in IREE; compiled ones may take their place."""

    modules: tuple[Module, ...]
    chosen: tuple[Tensor, ...] = ()

    @abstractmethod
    def call(self) -> Sequence[Tensor]:
        """One call, as it is measured; what it gives."""

    def outputs(self, first: Sequence[Tensor]) -> Sequence[Tensor]:
        """What is to be checked, after the first call gave what it gave."""
        return first


class _Inference(TorchModel):
    """Modules one after the other."""

    def __init__(self, content: Pipeline, form: DataFormat, build: BuiltModel) -> None:
        self._form = form
        self._pre, self._post = content.pre, content.post
        self.modules = (content.device,)
        if self._post is not None and form is not DataFormat.FP32 and have_shared_weights(content.device, self._post):
            # The host's stay in f32.
            self._post = copy.deepcopy(self._post)
        self._given = build.inputs(0) if self._pre is None else build.host_inputs()

    def call(self) -> Sequence[Tensor]:
        with torch.no_grad():
            values: Sequence[Tensor] = self._given
            if self._pre is not None:
                values = cast(tree_leaves(self._pre(*values)), self._form)
            found: list[Tensor] = tree_leaves(self.modules[0](*values))
            if self._post is not None:
                found = tree_leaves(self._post(*cast(found, DataFormat.FP32)))
            return found


class _Training(TorchModel):
    """Forward, loss and backward; gradients are summed up where the program sums them up."""

    def __init__(self, content: Pipeline, form: DataFormat, build: BuiltModel) -> None:
        self._form = form
        self._pre = content.pre
        self.modules = (content.device,)
        made = build.record.training
        weights = dict(content.device.named_parameters())
        given = build.inputs(0)
        self._weights = [weights[name] for name in made.gradients] if made and made.accumulate else []
        self._sums = given[len(given) - len(self._weights) :]
        given = given[: len(given) - len(self._weights)]
        self._host_given = build.host_inputs()
        count = len(content.inputs) if self._pre is None else len(self._before(self._pre))
        self._given, self._targets = given[:count], given[count:]

    def _before(self, pre: Module) -> Sequence[Tensor]:
        with torch.no_grad():
            return cast(tree_leaves(pre(*self._host_given)), self._form)

    def call(self) -> Sequence[Tensor]:
        given = self._given if self._pre is None else self._before(self._pre)
        for weight, so_far in zip(self._weights, self._sums, strict=True):
            weight.grad = so_far
        loss, found = run_eager_step(self.modules[0], given, self._targets)
        gradients = list(found.values())
        if self._weights:
            self._sums = gradients
        return [loss, *gradients]


class _Generation(TorchModel):
    """Prefill and decode, greedy, as `Generative` has the loop."""

    def __init__(self, content: Generative, build: BuiltModel) -> None:
        self.modules = (content.prefill, content.decode)
        self._tokens, self._position = content.tokens, content.position
        self._inputs = (build.inputs(0), build.inputs(1))

    def call(self) -> Sequence[Tensor]:
        prefill, decode = self.modules
        with torch.no_grad():
            logits, *state = tree_leaves(prefill(*self._inputs[0]))
            tokens = [logits.argmax(-1, keepdim=True)]
            for position in range(self._position, self._position + self._tokens - 1):
                logits, *new = tree_leaves(decode(tokens[-1], torch.tensor([position]), *state))
                state[: len(new)] = new
                tokens.append(logits.argmax(-1, keepdim=True))
        self.chosen = tuple(tokens)
        return tokens

    def outputs(self, first: Sequence[Tensor]) -> Sequence[Tensor]:  # noqa: ARG002 - tokens say little
        with torch.no_grad():
            pairs = zip(self.modules, self._inputs, strict=True)
            return [tensor for module, given in pairs for tensor in tree_leaves(module(*given))]


class BuiltModel:
    """The folder of a built model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.record = read_build(folder)

    def inputs(self, program: int) -> list[Tensor]:
        """Of a program."""
        return self._read_tensors(self.record.programs[program].inputs)

    def host_inputs(self) -> list[Tensor]:
        """Of the module before the device; none where there is no such module."""
        return self._read_tensors(self.record.host_inputs)

    def _read_tensors(self, arrays: Sequence[Array]) -> list[Tensor]:
        items = [array.as_dict() for array in arrays]
        return [make_tensor(*item) for item in read_arrays(items, self._folder)]


def _make_model(builder: Mapping[str, Any], build: BuiltModel) -> TorchModel:
    """The model as its builder makes it."""
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
    """Measure as a plan says; the answer."""
    plan = PeerPlan.read(path)
    found = []
    for index, asked in enumerate(plan.models):
        try:
            figures = _measure(plan, asked, f"{index}.output")
        except Exception as error:  # noqa: BLE001 - a model and what compiles it may raise anything, and it is said
            traceback.print_exc()
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            figures = {"error": f"{type(error).__name__}: {said}"}
        found.append({"name": asked.name, **figures})
        torch._dynamo.reset()  # noqa: SLF001 - torch has no other name for it
        gc.collect()
    return {"version": torch.__version__, "models": found}


def _measure(plan: PeerPlan, asked: PeerProgram, stem: str) -> dict[str, Any]:
    """What is found of a model."""
    model = _make_model(asked.builder, BuiltModel(asked.build))
    compiled = asked.mode == "compile"
    if compiled:
        if plan.compile_threads is not None:
            torch._inductor.config.compile_threads = plan.compile_threads  # noqa: SLF001 - there is no other name
        torch._dynamo.utils.counters.clear()  # noqa: SLF001 - as above
        model.modules = tuple(torch.compile(module, mode=asked.compile_mode) for module in model.modules)
    begin = time.perf_counter_ns()
    given = model.call()
    first = time.perf_counter_ns() - begin
    if compiled and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:  # noqa: SLF001 - as above
        raise RuntimeError("torch.compile has compiled nothing")
    # At once: sums of gradients are changed in place by the next call.
    outputs = write_arrays(model.outputs(given), Path(plan.outputs), stem) if plan.outputs else ()
    return {
        "call_ms": time_calls(model.call, plan.warm_up_calls, asked.calls),
        "first_call_ms": first / _NS_PER_MS,
        "compile_s": first / _NS_PER_S if compiled else None,
        "outputs": [output.as_dict() for output in outputs],
        "chosen": torch.cat(model.chosen, 1).tolist() if model.chosen else [],
    }
