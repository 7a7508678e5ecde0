"""The torch modules of a model that run on the host, and the conversion of tensors for the device and back."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.torch_models.build_files import BuildPlan, check_plan
from iree_gauntlet.torch_models.declarations import make_failure_problem
from iree_gauntlet.torch_models.model_registry import BenchmarkModel, Pipeline, make_planned_model
from iree_gauntlet.torch_models.torch_side.host_pipeline import StageError
from iree_gauntlet.torch_models.torch_side.torch_tensors import TYPES, find_type_name, make_array, make_tensor
from iree_gauntlet.workers.iree_side.plan_file import PlanError, check_storage_type, get_host_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn import Module


_FLOAT_DTYPES = {name: dtype for dtype, name in TYPES.items() if dtype.is_floating_point}


def build_host_modules(
    builder: object, inputs: Sequence[tuple[NDArray[Any], str]], host_inputs: Sequence[tuple[NDArray[Any], str]]
) -> HostModules:
    """Rebuild a model from its builder's plan (a `BuildPlan` as JSON), and return its host modules.

    `inputs` are the inputs of the device's module, `host_inputs` the inputs of the module before the device.
    """
    try:
        plan = check_plan(builder, "builder", BuildPlan)
        instance = make_planned_model(plan)
    except GauntletError as error:
        raise PlanError(str(error)) from error
    model, content = instance.model, instance.content
    post = None if plan.training or not isinstance(content, Pipeline) else content.post
    if not isinstance(content, Pipeline) or (content.pre is None and post is None):
        raise PlanError(f"{plan.model} has no modules on the host")
    host = HostModules(model, content.pre, post, inputs, [make_tensor(array, name) for array, name in host_inputs])
    # Free the device module's weights: IREE has its own copy.
    del content, instance
    gc.collect()
    return host


@dataclass(frozen=True, slots=True)
class HostModules:
    """The modules that run in torch before and after the device.

    Attributes:
        inputs: the device's inputs, with their element types; the outputs of `pre` replace the first inputs.
    """

    model: BenchmarkModel
    pre: Module | None
    post: Module | None
    inputs: Sequence[tuple[NDArray[Any], str]]
    host_inputs: Sequence[Tensor]

    def run_pre(self) -> Sequence[tuple[NDArray[Any], str]]:
        """Run `pre`, and return the device's inputs with their element types."""
        if self.pre is None:
            return self.inputs
        tensors = self._run("before", self.pre, self.host_inputs)
        first, remaining_inputs = self.inputs[: len(tensors)], self.inputs[len(tensors) :]
        shapes, expected = [list(tensor.shape) for tensor in tensors], [list(array.shape) for array, _ in first]
        if shapes != expected:
            raise PlanError(f"before the device: shapes {shapes} are returned, but the device takes {expected}")
        # Cast through f32 like the builder, because casting f64 directly would round differently.
        cast_tensors = [
            tensor.to(torch.float32).to(_FLOAT_DTYPES[name])
            if tensor.is_floating_point() and name in _FLOAT_DTYPES
            else tensor
            for tensor, (_, name) in zip(tensors, first, strict=True)
        ]
        device_inputs = [(_get_bits(tensor, name), name) for tensor, (_, name) in zip(cast_tensors, first, strict=True)]
        return [*device_inputs, *remaining_inputs]

    def run_post(self, outputs: Sequence[tuple[str, NDArray[Any]]]) -> list[Tensor]:
        """Run `post` on the device's outputs, with floats cast to f32; without `post`, return these outputs."""
        tensors = [make_tensor(array, name) for name, array in outputs]
        tensors = [tensor.to(torch.float32) if tensor.is_floating_point() else tensor for tensor in tensors]
        return tensors if self.post is None else self._run("after", self.post, tensors)

    def to_arrays(self, tensors: Sequence[Tensor]) -> list[tuple[str, NDArray[Any] | None]]:
        """Convert tensors to arrays, with their element types."""
        arrays: list[tuple[str, NDArray[Any] | None]] = []
        for tensor in tensors:
            name = find_type_name(tensor)
            if not name:
                dtype_name, *valid_names = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, *TYPES))
                raise PlanError(f"after the device: {dtype_name} is returned; known: {', '.join(valid_names)}")
            arrays.append((name, _get_bits(tensor, name)))
        return arrays

    def _run(self, position: str, module: Module, tensors: Sequence[Tensor]) -> list[Tensor]:
        model = self.model
        try:
            # Torch has this mode per thread, so set it in the thread that runs the module.
            with torch.no_grad():
                returned = module(*tensors)
        except Exception as error:  # a user's module may raise anything
            problem = make_failure_problem(error, model.file.parent, model.file, model.line, model.name)
            raise StageError(f"{position} the device: {problem.file}:{problem.line}: {problem.message}") from error
        # The device and the next module take flat tensors.
        leaves = tree_leaves(returned)
        invalid_leaf = next((leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)), None)
        if invalid_leaf is not None:
            raise PlanError(f"{position} the device: {type(invalid_leaf).__name__} is returned: expected tensors")
        return list(leaves)


def _get_bits(tensor: Tensor, name: str) -> NDArray[Any]:
    array = make_array(tensor)
    # Reinterpret integers of the same width: signed and signless integers have the same bits.
    is_same_width = array.dtype.kind in "iu" and array.dtype.itemsize == get_host_type(name).itemsize
    return check_storage_type(array.view(get_host_type(name)) if is_same_width else array, name)
