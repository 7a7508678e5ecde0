"""A model in its data format: what it should return, and what rounding at other places does to that.

No two correct programs round at the same places: compilers fuse operators, and sum in orders of their own. So the
reference is the model with every operator in f64 and rounded once, to the type that it returns; and how far a correct
program may be from it is tried on the model itself. Runs in which every rounding goes astray by up to one unit
roundoff more, or every contraction of k products by the error of a sum of k in f32, show what becomes of that at
the outputs (Monte Carlo arithmetic, Parker 1997: https://web.cs.ucla.edu/~stott/mca/). The same model with one
contraction's result larger shows what an error there looks like: a direction among the outputs, along which small
errors stand out of the rounding of many values.
"""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from iree_gauntlet.bench.decompositions import backward_decompositions
from iree_gauntlet.bench.formats import UNIT_ROUNDOFF, DataFormat
from iree_gauntlet.bench.weights import cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["Spread", "compute_in_format", "write_directions"]

_RUNS = 6
# Of every operator's result, of sums of products in f32, and of products whose inputs are rounded to f32's digits: the
# last is so much larger where math fidelity narrows these.
_ERRORS = ("rounding", "sums", "products")
# Contractions that are tried, evenly spread where there are more; values of the outputs that are kept of each.
_DIRECTIONS = 64
_VALUES = 1 << 15
# How much larger a contraction's result is made: far above f32's rounding, and small enough to be linear.
_STEP = 2.0**-6
# Rms of a rounding error, in units of roundoff: uniform, over mantissas between 1 and 2.
_ROUNDING = 0.41
_REDUCTIONS = {getattr(torch.ops.aten, name) for name in ("sum", "mean", "var", "var_mean")}
_ROUNDOFFS = {getattr(torch, form.torch_type): UNIT_ROUNDOFF[form.element_type] for form in DataFormat}


class Spread:
    """How far outputs go astray.

    Args:
        expected: what they are without.
    """

    def __init__(self, expected: Sequence[Any]) -> None:
        self._expected = expected
        self._worst = {kind: [[0.0, 0.0] for _ in expected] for kind in _ERRORS}

    def add(self, kind: str, outputs: Sequence[Any]) -> None:
        """Outputs of a run with errors of a kind."""
        for index, (found, wanted) in enumerate(zip(outputs, self._expected, strict=True)):
            if wanted.numel():
                # Of what is no number, whether it is another one.
                is_float = wanted.is_floating_point()
                difference = (found.double() - wanted.double()).abs() if is_float else (found != wanted).double()
                rms, peak = math.sqrt(float(difference.square().mean())), float(difference.max())
                self._worst[kind][index] = [
                    max(*pair) for pair in zip(self._worst[kind][index], (rms, peak), strict=True)
                ]

    def of(self, index: int) -> dict[str, list[float]]:
        """For `build.json`: rms and peak of an output's errors in the worst run, by kind."""
        return {kind: worst[index] for kind, worst in self._worst.items()}

    def scale(self, index: int) -> float:
        """The rms of an output's errors; that of one rounding where there are none."""
        errors = math.hypot(*(worst[index][0] for worst in self._worst.values()))
        output = self._expected[index].double()
        return errors or UNIT_ROUNDOFF["f32"] * float(output.square().mean().sqrt()) or 1.0


def compute_in_format(
    run: Callable[[Any, Sequence[Any]], list[Any]],
    module: Any,
    inputs: Sequence[Any],
    form: DataFormat,
    post: Callable[[Sequence[Any]], list[Any]] | None = None,
) -> tuple[list[Any], list[Spread], dict[str, Any]]:
    """What a module in a data format returns, and what may become of that.

    Args:
        run: calls it; its tensors, flat.
        module: in the format.
        inputs: in the format.
        form: the data format.
        post: what is done to the outputs, where their errors are of interest after that too.

    Returns:
        The outputs; their spread, and that of what `post` returns; and directions, as `write_directions` has them.
    """
    with _attention_as_exported():
        with _InFormat():
            outputs = run(module, inputs)
        spreads = [Spread(outputs), *([Spread(post(outputs))] if post else [])]
        places = _places(outputs)
        errors: dict[str, list[Any]] = {kind: [] for kind in _ERRORS}
        for seed in range(_RUNS):
            # In narrower formats the sums' errors are nothing beside the rounding of their results.
            for kind in _ERRORS if form is DataFormat.FP32 else _ERRORS[:1]:
                with _InFormat(kind, seed):
                    found = run(module, inputs)
                errors[kind].append(_values(found, places) - _values(outputs, places))
                for spread, result in zip(spreads, [found, *([post(found)] if post else [])], strict=True):
                    spread.add(kind, result)
        plain, given = copy.deepcopy(module).to(torch.float32), cast(inputs, DataFormat.FP32)
        with _Larger() as counted:
            before = _values(run(plain, given), places)
        chosen = sorted(
            {round(at) for at in np.linspace(0, len(counted.names) - 1, min(_DIRECTIONS, len(counted.names)))}
        )
        slopes = []
        for at in chosen:
            with _Larger(at):
                slopes.append((_values(run(plain, given), places) - before) / _STEP)
    names = [f"contraction {at + 1} of {len(counted.names)} ({counted.names[at]})" for at in chosen]
    scales = np.concatenate([np.full(len(at), spreads[0].scale(index)) for index, at in enumerate(places)])
    return outputs, spreads, {"places": places, "slopes": slopes, "errors": errors, "scales": scales, "names": names}


def write_directions(found: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Write, as `.npz`, filters whose product with the errors of chosen values is the error of a contraction.

    Returns:
        The file, and what each of them is of, in words; None for a model without contractions.
    """
    if not found["names"]:
        return None
    # Outputs of small errors say more: each counts in units of its own.
    slopes = np.array(found["slopes"]) / found["scales"]
    power = np.sum(slopes**2, axis=1, keepdims=True)
    filters = np.divide(slopes, power, out=np.zeros_like(slopes), where=power > 0) / found["scales"]
    spread = {
        kind: np.sqrt(np.mean((np.array(runs) @ filters.T) ** 2, axis=0)) if runs else np.zeros(len(filters))
        for kind, runs in found["errors"].items()
    }
    np.savez(
        path,
        outputs=np.repeat(np.arange(len(found["places"])), [len(places) for places in found["places"]]),
        places=np.concatenate(found["places"]),
        filters=filters.astype(np.float32),
        rounding=spread["rounding"],
        sums=spread["sums"],
        products=spread["products"],
    )
    return {"file": path.name, "names": found["names"]}


class _InFormat(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be read
    """Each operator in f64, its results rounded to the types that it returns.

    Args:
        error: a kind of error that is made on the way; none for the reference.
        seed: of the errors.
    """

    def __init__(self, error: str = "", seed: int = 0) -> None:
        super().__init__()
        self._error = error
        self._parts = backward_decompositions()
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._parts and (func is not torch.ops.aten.native_batch_norm.default or args[5]):
            # As the exporter takes it apart, in training.
            with self:
                made = self._parts[func](*args, **kwargs)
            if made is not NotImplemented:
                return made
        returned = func(*args, **kwargs)
        floats = [leaf for leaf in tree_leaves(returned) if _is_float(leaf)]
        taken = any(map(_is_float, tree_leaves((args, kwargs))))
        # What is written in place, and views of it, are as torch has them.
        if func._schema.is_mutable or func.is_view or not floats or not taken:  # noqa: SLF001 - not to be had else
            return returned
        kind, products = floats[0].dtype, 0.0
        if self._error in ("sums", "products") and func.overloadpacket in flop_registry:
            products = flop_registry[func.overloadpacket](*args, **kwargs, out_val=returned) / 2 / floats[0].numel()
        scale = 0.0
        if self._error == "sums" and func.overloadpacket in _REDUCTIONS:
            products = args[0].numel() / max(1, floats[0].numel())
            if func.overloadpacket is torch.ops.aten.sum:
                # What cancels has the errors of its terms.
                scale = math.sqrt(products) * float(args[0].double().square().mean().sqrt())
        wide_args, wide_kwargs = tree_map(lambda leaf: _wide(leaf, kind), (args, kwargs))
        wide = func(*wide_args, **wide_kwargs)
        return tree_map(
            lambda exact, own: self._rounded(exact, own, products, scale) if _is_float(own) else own, wide, returned
        )

    def _rounded(self, exact: Any, own: Any, products: float, scale: float) -> Any:
        """In the type of the operator's own result; what needs no rounding has no error of it."""
        if products:
            # Partial sums grow with the root of their number; both inputs are rounded.
            units = math.sqrt(products / 2 if self._error == "sums" else 2)
            error = _ROUNDING * UNIT_ROUNDOFF["f32"] * units * (scale or exact.square().mean().sqrt())
            exact = exact + error * torch.randn(exact.shape, generator=self._random)
        rounded = exact.to(own.dtype)
        if self._error != "rounding" or own.dtype not in _ROUNDOFFS:
            return rounded
        error = (2 * torch.rand(exact.shape, generator=self._random) - 1) * _ROUNDOFFS[own.dtype]
        return torch.where(rounded.double() == exact, rounded, (exact * (1 + error)).to(own.dtype))


class _Larger(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be read
    """Counts contractions, and makes the result of one of them larger."""

    def __init__(self, at: int = -1) -> None:
        super().__init__()
        self._at = at
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            if len(self.names) == self._at:
                for result in filter(_is_float, tree_leaves(returned)):
                    result.mul_(1 + _STEP)
            self.names.append(func.overloadpacket.__name__)
        return returned


@contextmanager
def _attention_as_exported() -> Iterator[None]:
    """Attention in single operators, in the model's own type, as the exporter writes it."""
    cuda = torch.backends.cuda
    before = cuda.fp16_bf16_reduction_math_sdp_allowed()
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(before)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _wide(leaf: Any, kind: Any) -> Any:
    """An argument of an operator in f64; a number has the type that it has in the program, that of the result."""
    if _is_float(leaf):
        return leaf.double()
    if isinstance(leaf, float):
        return float(torch.tensor(leaf, dtype=torch.float64).to(kind))
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf


def _places(outputs: Sequence[Any]) -> list[Any]:
    """Places of some values of each float output, the same every time."""
    sizes = [output.numel() if output.is_floating_point() else 0 for output in outputs]
    share = min(1.0, _VALUES / max(1, sum(sizes)))
    random = np.random.default_rng(0)
    return [
        np.unique(random.integers(size, size=math.ceil(size * share))) if share < 1 and size else np.arange(size)
        for size in sizes
    ]


def _values(outputs: Sequence[Any], places: Sequence[Any]) -> Any:
    return np.concatenate(
        [output.reshape(-1)[torch.from_numpy(at)].double().numpy() for output, at in zip(outputs, places, strict=True)]
    )
