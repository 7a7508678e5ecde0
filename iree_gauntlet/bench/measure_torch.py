"""Measure a built model in torch on the CPU, eager or compiled, with torch's own number of threads.

    python measure_torch.py PLAN.json

    {"build": "/…",              the folder of the built model, whose inputs are used
     "builder": {…},             what `build_model.py` was told: the same model is built again
     "mode": "eager",            or "compile": torch.compile of what runs on the device; host modules stay eager
     "compile_threads": null,    processes that torch.compile may use; null for torch's own choice
     "calls": 50,                in all; of a generative model, generations
     "warm_up_calls": 1,         after the first call
     "outputs": "/…/folder"}     where outputs go, to be checked; empty for nowhere

The answer is {"call_ms": […], "first_call_ms", "compile_s", "version", "outputs": [{"file", "type", "shape"}],
"chosen", "peak_rss_bytes"}: `compile_s` is the first call where that is what compiles, else null; `chosen` are the
tokens of the last generation, by sample. Outputs are those of every program for the inputs in the build folder, or of
the last host module where there is one.

A call is the model's own modules on tensors that are there: in inference without autograd, in training forward, loss
and backward. Gradients stay where torch keeps them, and so does the state of a generative model.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it, and not beside the
    # script, where names such as `formats` lie.
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from iree_gauntlet.bench.build_plan import BuildPlan
from iree_gauntlet.bench.exported import write_arrays
from iree_gauntlet.bench.formats import DataFormat
from iree_gauntlet.bench.instantiate import Pipeline
from iree_gauntlet.bench.peer_round import answer, arrays, timed_calls
from iree_gauntlet.bench.planned_model import planned_model
from iree_gauntlet.bench.training import eager_step
from iree_gauntlet.bench.weights import cast, convert, shares_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.bench.registry import Generative

__all__ = ["measure"]

_NS_PER_MS = 1e6
_NS_PER_S = 1e9


class _Model(ABC):
    """A built model in torch.

    Attributes:
        modules: those that run on the device in IREE; compiled ones may take their place.
        chosen: tokens of the last generation.
    """

    modules: tuple[Any, ...]
    chosen: tuple[Any, ...] = ()

    @abstractmethod
    def call(self) -> Sequence[Any]:
        """One call, as it is measured; what it gives."""

    def outputs(self, first: Sequence[Any]) -> Sequence[Any]:
        """What is to be checked, after the first call gave what it gave."""
        return first


class _Inference(_Model):
    """Modules one after the other."""

    def __init__(self, content: Pipeline, form: DataFormat, build: _Build) -> None:
        self._form = form
        self._pre, self._post = content.pre, content.post
        self.modules = (content.device,)
        if self._post is not None and form is not DataFormat.FP32 and shares_weights(content.device, self._post):
            # The host's stay in f32.
            self._post = copy.deepcopy(self._post)
        self._given = build.inputs(0) if self._pre is None else build.host_inputs()

    def call(self) -> Sequence[Any]:
        with torch.no_grad():
            values: Sequence[Any] = self._given
            if self._pre is not None:
                values = cast(tree_leaves(self._pre(*values)), self._form)
            found: list[Any] = tree_leaves(self.modules[0](*values))
            if self._post is not None:
                found = tree_leaves(self._post(*cast(found, DataFormat.FP32)))
            return found


class _Training(_Model):
    """Forward, loss and backward; gradients are summed up where the program sums them up."""

    def __init__(self, content: Pipeline, form: DataFormat, build: _Build) -> None:
        self._form = form
        self._pre = content.pre
        self.modules = (content.device,)
        names = build.record["training"]["gradients"]
        weights = dict(content.device.named_parameters())
        given = build.inputs(0)
        self._weights = [weights[name] for name in names] if build.record["training"]["accumulate"] else []
        self._sums = given[len(given) - len(self._weights) :]
        given = given[: len(given) - len(self._weights)]
        self._host_given = build.host_inputs()
        count = len(content.inputs) if self._pre is None else len(self._before())
        self._given, self._targets = given[:count], given[count:]

    def _before(self) -> Sequence[Any]:
        with torch.no_grad():
            return cast(tree_leaves(self._pre(*self._host_given)), self._form)

    def call(self) -> Sequence[Any]:
        given = self._given if self._pre is None else self._before()
        for weight, so_far in zip(self._weights, self._sums, strict=True):
            weight.grad = so_far
        loss, found = eager_step(self.modules[0], given, self._targets)
        gradients = list(found.values())
        if self._weights:
            self._sums = gradients
        return [loss, *gradients]


class _Generation(_Model):
    """Prefill and decode, greedy, as `Generative` has the loop."""

    def __init__(self, content: Generative, build: _Build) -> None:
        self.modules = (content.prefill, content.decode)
        self._tokens, self._position = content.tokens, content.position
        self._inputs = (build.inputs(0), build.inputs(1))

    def call(self) -> Sequence[Any]:
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

    def outputs(self, first: Sequence[Any]) -> Sequence[Any]:  # noqa: ARG002 - tokens say little
        with torch.no_grad():
            pairs = zip(self.modules, self._inputs, strict=True)
            return [tensor for module, given in pairs for tensor in tree_leaves(module(*given))]


class _Build:
    """The folder of a built model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.record: dict[str, Any] = json.loads((folder / "build.json").read_text(encoding="utf-8"))

    def inputs(self, program: int) -> list[Any]:
        """Of a program."""
        return self._tensors(self.record["programs"][program]["inputs"])

    def host_inputs(self) -> list[Any]:
        """Of the module before the device; none where there is no such module."""
        return self._tensors(self.record["host_inputs"])

    def _tensors(self, items: Sequence[Mapping[str, Any]]) -> list[Any]:
        found = []
        for array, element_type in arrays(self._folder, items):
            tensor = torch.from_numpy(array.view(np.int16) if element_type == "bf16" else array)
            found.append(tensor.view(torch.bfloat16) if element_type == "bf16" else tensor)
        return found


def _model(plan: BuildPlan, build: _Build) -> _Model:
    """The model as `building.py` makes it, with its weights in the data format."""
    content = planned_model(plan).content
    model: _Model
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


def measure(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Measure as a plan says; the answer.

    Raises:
        Exception: what the model, or torch.compile, raises.
    """
    asked = plan["builder"]
    model = _model(BuildPlan(**{**asked, "models_dirs": tuple(asked["models_dirs"])}), _Build(Path(plan["build"])))
    compiled = plan["mode"] == "compile"
    if compiled:
        if plan["compile_threads"] is not None:
            torch._inductor.config.compile_threads = plan["compile_threads"]  # noqa: SLF001 - there is no other name
        model.modules = tuple(torch.compile(module) for module in model.modules)
    begin = time.perf_counter_ns()
    given = model.call()
    first = time.perf_counter_ns() - begin
    if compiled and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:  # noqa: SLF001 - as above
        raise RuntimeError("torch.compile has compiled nothing")
    # At once: sums of gradients are changed in place by the next call.
    outputs = write_arrays(model.outputs(given), Path(plan["outputs"]), "output") if plan["outputs"] else []
    return {
        "call_ms": timed_calls(model.call, plan),
        "first_call_ms": first / _NS_PER_MS,
        "compile_s": first / _NS_PER_S if compiled else None,
        "version": torch.__version__,
        "outputs": outputs,
        "chosen": torch.cat(model.chosen, 1).tolist() if model.chosen else [],
    }


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:], measure))
