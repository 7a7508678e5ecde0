"""Errors that a correct program may make: builders try them, for all contractions or for some of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.measuring.numerics.arrays import Tensor
from iree_gauntlet.torch_models.agreement import compare_tensors, find_limits
from iree_gauntlet.torch_models.build_files import Array
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF, DataFormat

with contextlib.suppress(ModuleNotFoundError):
    # Without it these tests are not selected, and have to be collected all the same.
    import torch
    from torch._decomp import get_decompositions
    from torch.utils._python_dispatch import TorchDispatchMode

    from iree_gauntlet.torch_models.torch_side import build_steps
    from iree_gauntlet.torch_models.torch_side.decompositions import make_backward_decompositions, run_eager_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.torch_models.agreement import TrialErrors

pytestmark = pytest.mark.models

_TOKENS, _WIDTH = 128, 16


def test_the_error_of_a_softmaxs_sum_is_that_of_its_whole_row() -> None:
    with build_steps._FormatMode("sums"):
        rows = torch.softmax(torch.zeros(256, _TOKENS), -1)
    astray = (rows.double().sum(-1) - 1).square().mean().sqrt()
    # One value after the other is added, each time to what is larger by then.
    assert 2 < float(astray) / UNIT_ROUNDOFF["f32"] < 8


def _sum(values: NDArray[np.float32]) -> NDArray[np.float32]:
    sums: NDArray[np.float32] = np.add.accumulate(values, axis=-1, dtype=np.float32)[..., -1]
    return sums


# Orders that processors and compilers sum in.
ORDERS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "from the first": _sum,
    "from the last": lambda values: _sum(values[..., ::-1]),
    "in four lanes": lambda values: _sum(_sum(values.reshape(*values.shape[:-1], -1, 4).swapaxes(-1, -2))),
}


def _attention() -> Any:
    class Attention(torch.nn.Module):  # type: ignore[misc]  # torch is not there to be read
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(3))

        def forward(self, values: Any) -> Any:
            scores = self.query(values) @ self.key(values).transpose(-1, -2)
            return torch.softmax(scores / _WIDTH**0.5, -1) @ self.value(values)

    torch.manual_seed(0)
    return Attention()


def _train(module: Any, given: Sequence[Any]) -> list[Any]:
    loss, gradients = run_eager_step(module, given[:1], given[1:])
    return [loss, *gradients.values()]


def _in_order(add: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Any:
    parts = make_backward_decompositions() | get_decompositions(build_steps._NORMALIZATIONS)

    class InOrder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in parts:
                with self:
                    return parts[func](*args, **(kwargs or {}))
            if func is not torch.ops.aten.sum.dim_IntList:
                return func(*args, **(kwargs or {}))
            values, dims, keep = args[0], [dim % args[0].ndim for dim in args[1]], len(args) > 2 and args[2]
            rest = [dim for dim in range(values.ndim) if dim not in dims]
            flat = values.permute(*rest, *dims).reshape(*(values.shape[dim] for dim in rest), -1)
            found = torch.from_numpy(add(flat.numpy()).copy())
            for dim in sorted(dims) if keep else ():
                found = found.unsqueeze(dim)
            return found

    return InOrder()


@pytest.mark.parametrize("order", ORDERS)
def test_gradients_may_be_summed_in_any_order(order: str) -> None:
    module, given = _attention(), [torch.randn(4, _TOKENS, _WIDTH), torch.randn(4, _TOKENS, _WIDTH)]
    expected, (spread, *_), _ = build_steps._compute_in_format(_train, module, given, DataFormat.FP32)
    with _in_order(ORDERS[order]):
        found = _train(module, given)

    def tensors(values: Sequence[Any]) -> list[Tensor]:
        return [Tensor("f32", tuple(item.shape), item.detach().numpy()) for item in values]

    arrays = [
        Array(f"{at}.npy", "f32", tuple(item.shape), spread.get_worst_errors(at)) for at, item in enumerate(expected)
    ]
    assert not compare_tensors(tensors(found), tensors(expected), find_limits(arrays)).problem
    # Ten times as much would not be within the limits.
    far = [want + 10 * (have - want) for have, want in zip(found, expected, strict=True)]
    assert compare_tensors(tensors(far), tensors(expected), find_limits(arrays)).problem


def _tried(*, thorough: bool = False, layers: int = 70) -> TrialErrors:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))

    def run(module: Any, given: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return [module(*given)]

    return build_steps._compute_in_format(run, model, [torch.randn(2, 4)], DataFormat.FP32, thorough=thorough)[2]


def test_all_contractions_are_tried_where_that_is_asked_for() -> None:
    found = _tried(thorough=True)
    assert (len(found.names), len(found.slopes), found.contractions) == (70, 70, 70)


def test_of_many_contractions_some_are_tried_evenly_spread() -> None:
    found = _tried()
    assert (len(found.names), len(found.slopes), found.contractions) == (64, 64, 70)
    assert found.names[0].startswith("contraction 1 of 70")
    assert found.names[-1].startswith("contraction 70 of 70")


def test_what_is_tried_follows_from_the_work_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [build_steps.limit_directions(work) for work in (0.0, 3e9, 1.4e10, 1e12)] == [64, 64, 14, 8]
    monkeypatch.setattr(build_steps, "_MAX_WORK", 1.0)
    assert [name.split()[1] for name in _tried(layers=15).names] == ["1", "3", "5", "7", "9", "11", "13", "15"]
