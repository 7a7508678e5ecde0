"""A model in its data format: what it should return, and what rounding at other places does to that.

No two correct programs round at the same places: compilers fuse operators, and sum in orders of their own. So the
reference is the model with every operator in f64 and rounded once, to the type that it returns; and how far a correct
program may be from it is tried on the model itself. Runs in which every rounding goes astray by up to one unit
roundoff more, or every contraction of k products by the error of a sum of k in f32, show what becomes of that at
the outputs (Monte Carlo arithmetic, Parker 1997: https://web.cs.ucla.edu/~stott/mca/). The same model with one
contraction's result larger shows what an error there looks like: a direction among the outputs, along which small
errors stand out of the rounding of many values. Where few values lie so near a kink, such as that of a ReLU, that
rounding decides on which side, each is tried on the other one.
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

from iree_gauntlet.torch_models.decompositions import backward_decompositions
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF, DataFormat
from iree_gauntlet.torch_models.torch_tensors import cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_RUNS = 6
# Of every operator's result, of sums of products in f32, and of products whose inputs are rounded to f32's digits: the
# last is so much larger where math fidelity narrows these.
_ERRORS = ("rounding", "sums", "products")
# Contractions that are tried, evenly spread where there are more; values of the outputs that are kept of each, and of
# each output at least.
_DIRECTIONS = 64
_VALUES = 1 << 15
_LEAST_VALUES = 64
# Values may flip that are less than so many times the rms of their errors away from a kink. Each is tried by itself;
# none where there are more: one in ten flips then in any run, so that they are like other noise.
_NEAR = 4.0
_FLIPS = 64
_RELUS = {torch.ops.aten.relu, torch.ops.aten.relu_}
_COMPARISONS = {getattr(torch.ops.aten, name) for name in ("ge", "gt", "le", "lt")}
# How much larger a contraction's result is made: far above f32's rounding, and small enough to be linear.
_STEP = 2.0**-6
# Rms of a rounding error, in units of roundoff: uniform, over mantissas between 1 and 2.
_ROUNDING = 0.41
_REDUCTIONS = {getattr(torch.ops.aten, name) for name in ("sum", "mean", "var", "var_mean")}
_ROUNDOFFS = {getattr(torch, form.torch_type): UNIT_ROUNDOFF[form.element_type] for form in DataFormat}


class Spread:
    """How far outputs go astray."""

    def __init__(self, expected: Sequence[Any]) -> None:
        self._expected = expected
        self._runs: dict[str, list[list[tuple[float, float]]]] = {
            kind: [[] for _ in expected] for kind in (*_ERRORS, "flips")
        }

    def add(self, kind: str, outputs: Sequence[Any]) -> None:
        """Outputs of a run with errors of a kind, or a flip."""
        for index, (found, wanted) in enumerate(zip(outputs, self._expected, strict=True)):
            if wanted.numel():
                # Of what is no number, whether it is another one.
                is_float = wanted.is_floating_point()
                difference = (found.double() - wanted.double()).abs() if is_float else (found != wanted).double()
                rms, peak = math.sqrt(float(difference.square().mean())), float(difference.max())
                self._runs[kind][index].append((rms, peak))

    def of(self, index: int) -> dict[str, list[float]]:
        """For `build.json`: rms and peak of an output's errors in the worst run, by kind."""
        return {kind: np.max([(0.0, 0.0), *runs[index]], axis=0).tolist() for kind, runs in self._runs.items()}

    def scale(self, index: int) -> float:
        """The rms of an output's errors in most runs, without what few of them have; of one rounding where none is."""
        runs = (self._runs[kind][index] for kind in _ERRORS)
        errors = math.hypot(*(float(np.median([rms for rms, _ in found] or 0.0)) for found in runs))
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

    `run`: calls it; its tensors, flat; `post`: what is done to the outputs, where their errors are of interest after
    that too.

    Returns:
        The outputs; their spread, and that of what `post` returns; and directions, as `write_directions` has them.
    """
    # In narrower formats the sums' errors are nothing next to the rounding of their results.
    kinds = _ERRORS if form is DataFormat.FP32 else _ERRORS[:1]
    with _attention_as_exported():
        with _InFormat() as exact:
            outputs = run(module, inputs)
        spreads = [Spread(outputs), *([Spread(post(outputs))] if post else [])]
        places = _places(outputs)

        def tried(mode: _InFormat, kind: str) -> Any:
            with mode:
                found = run(module, inputs)
            for spread, result in zip(spreads, [found, *([post(found)] if post else [])], strict=True):
                spread.add(kind, result)
            return _values(found, places) - _values(outputs, places)

        errors: dict[str, list[Any]] = {kind: [] for kind in _ERRORS}
        moved = [torch.zeros_like(margin) for margin in exact.margins]
        for seed in range(_RUNS):
            for kind in kinds:
                mode = _InFormat(kind, seed)
                errors[kind].append(tried(mode, kind))
                for power, one, other in zip(moved, mode.margins, exact.margins, strict=True):
                    power.add_((one - other).square() / _RUNS)
        near = [
            (number, int(place))
            for number, (margin, power) in enumerate(zip(exact.margins, moved, strict=True))
            for place in (margin.square() < _NEAR**2 * power).nonzero()[: _FLIPS + 1, 0]
        ]
        flips = [tried(_InFormat(flip=at), "flips") for at in near] if len(near) <= _FLIPS else []
        slopes, names = _slopes(run, copy.deepcopy(module).to(torch.float32), cast(inputs, DataFormat.FP32), places)
    scales = np.concatenate([np.full(len(at), spreads[0].scale(index)) for index, at in enumerate(places)])
    found = {"places": places, "slopes": slopes, "errors": errors, "flips": flips, "scales": scales, "names": names}
    return outputs, spreads, found


def _slopes(
    run: Callable[[Any, Sequence[Any]], list[Any]], module: Any, inputs: Sequence[Any], places: Sequence[Any]
) -> tuple[list[Any], list[str]]:
    """What changes in values of the outputs as contractions' results grow, in f32; and which these are, in words."""
    with _Larger() as counted:
        before = _values(run(module, inputs), places)
    count = len(counted.names)
    chosen = sorted({round(at) for at in np.linspace(0, count - 1, min(_DIRECTIONS, count))})
    slopes = []
    for at in chosen:
        with _Larger(at):
            slopes.append((_values(run(module, inputs), places) - before) / _STEP)
    return slopes, [f"contraction {at + 1} of {count} ({counted.names[at]})" for at in chosen]


class _InFormat(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be read
    """Each operator in f64, its results rounded to the types that it returns."""

    def __init__(self, error: str = "", seed: int = 0, flip: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.margins: list[Any] = []
        self._error = error
        self._flip = flip
        # Results of ReLUs and what these were given, by where the results lie: kept, so that nothing else does.
        self._relus: dict[int, tuple[Any, Any]] = {}
        self._parts = backward_decompositions()
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in _RELUS:
            return self._run(func, args, kwargs or {})
        given = args[0].clone()
        result = self._run(func, args, {})
        self._relus[result.data_ptr()] = (result, given)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in self._parts and (func is not torch.ops.aten.native_batch_norm.default or args[5]):
            # As the exporter takes it apart, in training.
            with self:
                made = self._parts[func](*args, **kwargs)
            if made is not NotImplemented:
                return made
        returned = func(*args, **kwargs)
        floats = [leaf for leaf in tree_leaves(returned) if _is_float(leaf)]
        taken = any(map(_is_float, tree_leaves((args, kwargs))))
        if func.overloadpacket in _COMPARISONS and _is_float(args[0]):
            if self._flip and self._flip[0] == len(self.margins):
                decided = returned.flatten()
                decided[self._flip[1]] = ~decided[self._flip[1]]
                returned = decided.reshape(returned.shape)
            _, one = self._relus.get(args[0].data_ptr(), (None, args[0]))
            self.margins.append((one.double() - args[1]).float().expand(returned.shape).flatten())
            return returned
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
        np.unique(random.integers(size, size=max(_LEAST_VALUES, math.ceil(size * share))))
        if share < 1 and size > _LEAST_VALUES
        else np.arange(size)
        for size in sizes
    ]


def _values(outputs: Sequence[Any], places: Sequence[Any]) -> Any:
    return np.concatenate(
        [output.reshape(-1)[torch.from_numpy(at)].double().numpy() for output, at in zip(outputs, places, strict=True)]
    )
