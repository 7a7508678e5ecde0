"""The torch modules of a model that run on the host, and tensors on their way to the device and back."""

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
from iree_gauntlet.workers.iree_side.plan_file import PlanError, get_host_type, hold_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn import Module


_FLOATS = {name: kind for kind, name in TYPES.items() if kind.is_floating_point}


def build_host_modules(
    builder: object, inputs: Sequence[tuple[NDArray[Any], str]], given: Sequence[tuple[NDArray[Any], str]]
) -> HostModules:
    """Build a model again by its builder's plan (a `BuildPlan` as JSON has it), and keep what runs on the host.

    `inputs` are the device's, `given` those of what runs before it.
    """
    try:
        asked = check_plan(builder, "builder", BuildPlan)
        instance = make_planned_model(asked)
    except GauntletError as error:
        raise PlanError(str(error)) from error
    model, content = instance.model, instance.content
    post = None if asked.training or not isinstance(content, Pipeline) else content.post
    if not isinstance(content, Pipeline) or (content.pre is None and post is None):
        raise PlanError(f"{asked.model} has no modules on the host")
    host = HostModules(model, content.pre, post, inputs, [make_tensor(array, name) for array, name in given])
    # The weights of the device's module are with the device.
    del content, instance
    gc.collect()
    return host


@dataclass(frozen=True, slots=True)
class HostModules:
    """What runs in torch before and after the device.

    Attributes:
        inputs: of the device, with their element types; what `pre` returns stands in for the first of them.
    """

    model: BenchmarkModel
    pre: Module | None
    post: Module | None
    inputs: Sequence[tuple[NDArray[Any], str]]
    given: Sequence[Tensor]

    def before(self) -> Sequence[tuple[NDArray[Any], str]]:
        """Run `pre`; what the device is given, with the element types that it takes."""
        if self.pre is None:
            return self.inputs
        tensors = self._run("before", self.pre, self.given)
        first, others = self.inputs[: len(tensors)], self.inputs[len(tensors) :]
        shapes, expected = [list(item.shape) for item in tensors], [list(array.shape) for array, _ in first]
        if shapes != expected:
            raise PlanError(f"before the device: shapes {shapes} are returned, and the device takes {expected}")
        # Over f32, as the builder does it: f64 would be rounded otherwise.
        cast = [
            tensor.to(torch.float32).to(_FLOATS[name]) if tensor.is_floating_point() and name in _FLOATS else tensor
            for tensor, (_, name) in zip(tensors, first, strict=True)
        ]
        taken = [(_view_bits(tensor, name), name) for tensor, (_, name) in zip(cast, first, strict=True)]
        return [*taken, *others]

    def after(self, outputs: Sequence[tuple[str, NDArray[Any]]]) -> list[Tensor]:
        """Run `post`; its tensors, or those of the device where there is none. Floats of the device become f32."""
        tensors = [make_tensor(array, name) for name, array in outputs]
        tensors = [tensor.to(torch.float32) if tensor.is_floating_point() else tensor for tensor in tensors]
        return tensors if self.post is None else self._run("after", self.post, tensors)

    def arrays(self, tensors: Sequence[Tensor]) -> list[tuple[str, NDArray[Any] | None]]:
        """Tensors as arrays, with their element types."""
        found: list[tuple[str, NDArray[Any] | None]] = []
        for tensor in tensors:
            name = find_type_name(tensor)
            if not name:
                kind, *known = (str(kind).removeprefix("torch.") for kind in (tensor.dtype, *TYPES))
                raise PlanError(f"after the device: {kind} is returned; known: {', '.join(known)}")
            found.append((name, _view_bits(tensor, name)))
        return found

    def _run(self, where: str, module: Module, tensors: Sequence[Tensor]) -> list[Tensor]:
        model = self.model
        try:
            # In the thread that runs it: torch keeps this by thread.
            with torch.no_grad():
                returned = module(*tensors)
        except Exception as error:  # a module of a user may raise anything, and is named for it
            problem = make_failure_problem(error, model.file.parent, model.file, model.line, model.name)
            raise StageError(f"{where} the device: {problem.file}:{problem.line}: {problem.message}") from error
        # Flat, as the device and the next module take them.
        leaves = tree_leaves(returned)
        odd = next((leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)), None)
        if odd is not None:
            raise PlanError(f"{where} the device: {type(odd).__name__} is returned: expected tensors")
        return list(leaves)


def _view_bits(tensor: Tensor, name: str) -> NDArray[Any]:
    array = make_array(tensor)
    # Integers of IREE have no sign, or the one that their name says: the bits are the same.
    same = array.dtype.kind in "iu" and array.dtype.itemsize == get_host_type(name).itemsize
    return hold_bits(array.view(get_host_type(name)) if same else array, name)
