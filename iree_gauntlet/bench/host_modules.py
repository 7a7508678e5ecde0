"""The torch modules of a model that run on the host, and tensors on their way to the device and back."""

from __future__ import annotations

import gc
import importlib.machinery
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.bench.build_plan import BuildPlan
from iree_gauntlet.bench.failures import failure_problem
from iree_gauntlet.bench.host_pipeline import StageError
from iree_gauntlet.bench.instantiate import Pipeline
from iree_gauntlet.bench.planned_model import planned_model
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.workers.iree_side.plan_file import PlanError, array_bits, host_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.bench.registry import BenchmarkModel

__all__ = ["HostModules", "add_torch", "build_host_modules"]

# torch's names of element types, with IREE's.
_NAMES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "ui8",
    "bool": "i1",
}
_FLOATS = {name: kind for kind, name in _NAMES.items() if "float" in kind}


def add_torch(paths: Sequence[str]) -> None:
    """Let this Python import torch from the packages of another one of its version, after its own packages.

    Raises:
        PlanError: there is no torch, or one for another version of Python.
    """
    libraries = [file for path in paths for file in Path(path, "torch").glob("_C.*") if file.is_file()]
    usable = {f"_C{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES}
    found = [file.name for file in libraries if file.suffix in {".so", ".pyd"}]
    if not found:
        raise PlanError(f"there is no torch in {', '.join(paths) or 'no folder at all'}")
    if not usable.intersection(found):
        version = ".".join(platform.python_version_tuple()[:2])
        raise PlanError(
            f"modules on the host need torch in the Python of the measured IREE, which is {version}; the torch that "
            f"is named is for another version ({found[0]}): name a torch Python {version}"
        )
    sys.path.extend(path for path in paths if path not in sys.path)


def build_host_modules(plan: dict[str, Any], inputs: Sequence[tuple[NDArray[Any], str]]) -> HostModules:
    """Build a model again, as it was built for the device, and keep what runs on the host.

    Args:
        plan: names the model and its options.
        inputs: of the device, with their element types.

    Raises:
        PlanError: where the model cannot be built, or has nothing on the host.
    """
    try:
        import torch  # noqa: PLC0415 - added by the plan
        import torch.utils._pytree  # noqa: PLC0415
    except ImportError as error:
        raise PlanError(f"torch cannot be imported: {error}") from error
    asked = BuildPlan(
        models_dirs=tuple(plan["models_dirs"]),
        model=plan["model"],
        config=plan["config"],
        training=plan["training"],
        layers=plan["layers"],
        microbatch=plan["microbatch"],
        dataformat=plan["dataformat"],
        output="",
    )
    try:
        instance = planned_model(asked)
    except GauntletError as error:
        raise PlanError(str(error)) from error
    model, content = instance.model, instance.content
    post = None if plan["training"] or not isinstance(content, Pipeline) else content.post
    if not isinstance(content, Pipeline) or (content.pre is None and post is None):
        raise PlanError(f"{plan['model']} has no modules on the host")
    host = HostModules(torch, model, content.pre, post, inputs)
    # The weights of the device's module are with the device.
    del content, instance
    gc.collect()
    return host


class HostModules:
    """What runs in torch before and after the device.

    Args:
        torch: the module.
        model: that is run.
        pre: None for nothing.
        post: None for nothing.
        inputs: of the device, with their element types; what `pre` returns stands in for the first of them.
    """

    def __init__(
        self, torch: Any, model: BenchmarkModel, pre: Any, post: Any, inputs: Sequence[tuple[NDArray[Any], str]]
    ) -> None:
        self._torch = torch
        self._model = model
        self._pre = pre
        self._post = post
        self._inputs = inputs
        self._given: list[Any] = []

    def give(self, arrays: Sequence[tuple[NDArray[Any], str]]) -> None:
        """The inputs of `pre`."""
        self._given = [self._tensor(array, name) for array, name in arrays]

    def before(self) -> Sequence[tuple[NDArray[Any], str]]:
        """Run `pre`; what the device is given, with the element types that it takes.

        Raises:
            PlanError: where that is not what the device takes.
            StageError: where it fails.
        """
        if self._pre is None:
            return self._inputs
        tensors = self._run("before", self._pre, self._given)
        first, others = self._inputs[: len(tensors)], self._inputs[len(tensors) :]
        shapes, expected = [list(item.shape) for item in tensors], [list(array.shape) for array, _ in first]
        if shapes != expected:
            raise PlanError(f"before the device: shapes {shapes} are returned, and the device takes {expected}")
        taken = [
            (self._bits(self._cast(tensor, name), name), name) for tensor, (_, name) in zip(tensors, first, strict=True)
        ]
        return [*taken, *others]

    def after(self, outputs: Sequence[tuple[str, NDArray[Any]]]) -> list[Any]:
        """Run `post`; its tensors, or those of the device where there is none. Floats of the device become f32.

        Raises:
            StageError: where it fails.
        """
        torch = self._torch
        tensors = [self._tensor(array, name) for name, array in outputs]
        tensors = [tensor.to(torch.float32) if tensor.is_floating_point() else tensor for tensor in tensors]
        return tensors if self._post is None else self._run("after", self._post, tensors)

    def arrays(self, tensors: Sequence[Any]) -> list[tuple[str, NDArray[Any] | None]]:
        """Tensors as arrays, with their element types.

        Raises:
            PlanError: for a type of torch's that IREE has not.
        """
        found: list[tuple[str, NDArray[Any] | None]] = []
        for tensor in tensors:
            kind = str(tensor.dtype).removeprefix("torch.")
            if kind not in _NAMES:
                raise PlanError(f"after the device: {kind} is returned; known: {', '.join(_NAMES)}")
            found.append((_NAMES[kind], self._bits(tensor, _NAMES[kind])))
        return found

    def _run(self, where: str, module: Any, tensors: Sequence[Any]) -> list[Any]:
        model = self._model
        try:
            # In the thread that runs it: torch keeps this by thread.
            with self._torch.no_grad():
                returned = module(*tensors)
        except Exception as error:  # a module of a user may raise anything, and is named for it
            problem = failure_problem(error, model.file.parent, model.file, model.line, model.name)
            raise StageError(f"{where} the device: {problem.file}:{problem.line}: {problem.message}") from error
        # Flat, as the device and the next module take them.
        leaves = self._torch.utils._pytree.tree_leaves(returned)  # noqa: SLF001 - torch has no other name for it
        odd = next((leaf for leaf in leaves if not isinstance(leaf, self._torch.Tensor)), None)
        if odd is not None:
            raise PlanError(f"{where} the device: {type(odd).__name__} is returned: expected tensors")
        return list(leaves)

    def _cast(self, tensor: Any, name: str) -> Any:
        if not tensor.is_floating_point() or name not in _FLOATS:
            return tensor
        # Over f32, as the builder does it: f64 would be rounded otherwise.
        return tensor.to(self._torch.float32).to(getattr(self._torch, _FLOATS[name]))

    def _bits(self, tensor: Any, name: str) -> NDArray[Any]:
        torch = self._torch
        tensor = tensor.detach()
        if tensor.dtype is torch.bfloat16:
            return array_bits(tensor.contiguous().view(torch.int16).numpy().view(np.uint16), name)
        array = tensor.numpy()
        # Integers of IREE have no sign, or the one that their name says: the bits are the same.
        same = array.dtype.kind in "iu" and array.dtype.itemsize == host_type(name).itemsize
        return array_bits(array.view(host_type(name)) if same else array, name)

    def _tensor(self, array: NDArray[Any], name: str) -> Any:
        torch = self._torch
        if name == "bf16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
