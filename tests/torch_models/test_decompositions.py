"""Backward passes and paddings that torch does not export: the exported replacements compute the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.models
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_gradients_of_biases_are_exported_in_the_type_of_the_model(tmp_path: Path, needs_torch: Any, name: str) -> None:
    torch = needs_torch
    from iree_gauntlet.torch_models.torch_side.build_steps import export_program  # noqa: PLC0415 - it imports torch
    from iree_gauntlet.torch_models.torch_side.decompositions import run_eager_step, trace_step  # noqa: PLC0415 - it imports torch

    dtype = getattr(torch, name)
    module, given = torch.nn.Conv2d(2, 3, 3).to(dtype), torch.randn(1, 2, 4, 4).to(dtype)
    targets = [torch.randn(1, 3, 2, 2).to(dtype)]
    loss, gradients = run_eager_step(module, [given], targets)
    step = trace_step(module, [given], targets, list(gradients), accumulate=False)
    path = tmp_path / "main.onnx"
    export_program(step, [given, *targets], [loss, *gradients.values()], path, model="mine", optimize=False)
    types = [value.type.tensor_type.elem_type for value in onnx.load(str(path)).graph.output]
    # A bias is added to every position, so that its gradient is a sum of theirs.
    assert types == [onnx.TensorProto.FLOAT] + [onnx.TensorProto.DataType.Value(name.upper().replace("32", ""))] * 2


@pytest.mark.models
@pytest.mark.parametrize(
    ("shape", "weight", "stride", "padding", "dilation", "transposed", "groups"),
    [
        ((2, 4, 9, 8), (6, 4, 3, 3), [1, 1], [1, 1], [1, 1], False, 1),
        ((2, 4, 9, 8), (6, 2, 3, 2), [2, 1], [1, 0], [1, 2], False, 2),
        ((1, 4, 10, 10), (4, 1, 3, 3), [2, 2], [1, 1], [1, 1], False, 4),
        ((1, 4, 6, 6), (4, 2, 1, 2), [1, 3], [2, 3], [1, 1], False, 2),
        ((3, 2, 7), (4, 2, 3), [3], [2], [1], False, 1),
        ((1, 2, 4, 5, 6), (3, 2, 2, 1, 3), [1, 2, 2], [0, 0, 1], [1, 1, 1], False, 1),
        ((2, 4, 5, 6), (4, 3, 2, 2), [2, 2], [0, 0], [1, 1], True, 1),
        ((2, 4, 5, 6), (4, 3, 3, 3), [2, 1], [1, 1], [1, 2], True, 2),
    ],
)
def test_convolution_backward_is_torch_s(
    needs_torch: Any,
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    groups: int,
) -> None:
    torch = needs_torch
    from iree_gauntlet.torch_models.torch_side.decompositions import compute_convolution_backward  # noqa: PLC0415 - it imports torch

    torch.manual_seed(5)
    values, kernel = torch.randn(shape, dtype=torch.float64), torch.randn(weight, dtype=torch.float64)
    rest = (stride, padding, dilation, transposed, [0] * len(stride), groups)
    out = torch.ops.aten.convolution(values, kernel, None, *rest)
    grad = torch.randn_like(out)
    sizes = [out.shape[1]]
    wanted = torch.ops.aten.convolution_backward(grad, values, kernel, sizes, *rest, [True] * 3)
    for have, want in zip(
        compute_convolution_backward(grad, values, kernel, sizes, *rest, [True] * 3), wanted, strict=True
    ):
        torch.testing.assert_close(have, want)
    assert compute_convolution_backward(grad, values, kernel, sizes, *rest, [False] * 3) == (None, None, None)


@pytest.mark.models
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation", "ceil"),
    [
        ((2, 3, 8, 8), [2, 2], [], [0, 0], [1, 1], False),
        ((2, 3, 9, 11), [3, 3], [2, 2], [1, 1], [1, 1], False),
        ((1, 2, 10, 9), [3, 2], [2, 3], [1, 0], [2, 1], False),
        ((1, 2, 10, 10), [3], [2], [0], [1], True),
        ((3, 7, 7), [2, 3], [3, 3], [0, 1], [1, 1], False),
    ],
)
def test_max_pool_backward_is_torch_s(
    needs_torch: Any,
    shape: tuple[int, ...],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
) -> None:
    torch = needs_torch
    from iree_gauntlet.torch_models.torch_side.decompositions import compute_max_pool_backward  # noqa: PLC0415 - it imports torch

    torch.manual_seed(5)
    # Whole numbers, so that there are several largest values in many windows.
    values = torch.randint(0, 4, shape).double()
    rest = (kernel, stride, padding, dilation, ceil)
    out, indices = torch.ops.aten.max_pool2d_with_indices(values, *rest)
    grad = torch.randn_like(out)
    want = torch.ops.aten.max_pool2d_with_indices_backward(grad, values, *rest, indices)
    torch.testing.assert_close(compute_max_pool_backward(grad, values, *rest, indices), want)


@pytest.mark.models
def test_padding_that_takes_away_is_torch_s(needs_torch: Any) -> None:
    torch = needs_torch
    from iree_gauntlet.torch_models.torch_side.decompositions import crop_padding  # noqa: PLC0415 - it imports torch

    values = torch.randn(2, 5, 6)
    for rooms in ([-1, -2], [1, -1, -2, 0], [-3, 2, 0, 1]):
        assert torch.equal(crop_padding(values, rooms, 7.0), torch.nn.functional.pad(values, rooms, value=7.0))
    assert crop_padding(values, [1, 0]) is NotImplemented
