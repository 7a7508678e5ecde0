"""Decompositions into ONNX operators, for backward operators that ONNX lacks and torch does not decompose.

These decompositions scatter nothing by an index, so compilers can run all their operators in parallel.

The loss is the mean, over all elements of all float outputs, of the squared distance to fixed normal targets. Narrower
outputs are summed in f32, because a sum of some ten thousand squares exceeds the range of f16.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decomposition_table, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.nn import Module


LOSS = "mean over all elements of all float outputs of the squared distance to normal targets, in f32"

_TARGETS_SEED = 1
_GRADIENTS_SEED = 2


def make_backward_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return a table for `make_fx`: torch's decompositions of backward operators, and those of this module.

    Batch normalisation's forward is included: ONNX's operator lacks the statistics that the backward pass needs.
    """
    aten = torch.ops.aten
    backward = {operator: rule for operator, rule in decomposition_table.items() if "backward" in str(operator)}
    return {
        **backward,
        **get_decompositions([aten.native_batch_norm.default]),
        aten.convolution_backward.default: compute_convolution_backward,
        aten.max_pool2d_with_indices_backward.default: compute_max_pool_backward,
        aten.constant_pad_nd.default: crop_padding,
    }


def compute_convolution_backward(
    grad: Tensor,
    values: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,  # noqa: ARG001 - the operator's signature
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],  # noqa: ARG001 - the shapes determine it
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute `aten::convolution_backward` in any number of dimensions: gradients of input, weight and bias.

    The input's gradient is the opposite convolution: transposed for an ordinary convolution, and vice versa. The
    weight's gradient is a matrix product of `grad` and the patches of the input. For a transposed convolution, it is
    the product of the input and the patches of `grad`.
    """
    sizes = weight.shape[2:]
    input_gradient = weight_gradient = bias_gradient = None
    if mask[0] and transposed:
        input_gradient = torch.ops.aten.convolution(
            grad, weight, None, stride, padding, dilation, False, [0] * len(sizes), groups
        )
    elif mask[0] and groups > 1:
        input_gradient = _compute_grouped_gradient(grad, values.shape[2:], weight, stride, padding, dilation, groups)
    elif mask[0]:
        min_sizes = [
            (out - 1) * stride[d] - 2 * padding[d] + dilation[d] * (sizes[d] - 1) + 1
            for d, out in enumerate(grad.shape[2:])
        ]
        extra = [size - min_size for size, min_size in zip(values.shape[2:], min_sizes, strict=True)]
        input_gradient = torch.ops.aten.convolution(grad, weight, None, stride, padding, dilation, True, extra, groups)
    if mask[1]:
        wide, narrow = (grad, values) if transposed else (values, grad)
        patches = _gather_patches(wide, narrow.shape[2:], sizes, stride, padding, dilation)
        batch, channels = narrow.shape[:2]
        wide_patches = patches.reshape(batch, groups, -1, narrow[0, 0].numel()).permute(1, 2, 0, 3).flatten(2)
        narrow_values = narrow.reshape(batch, groups, channels // groups, -1).permute(1, 2, 0, 3).flatten(2)
        weight_gradient = torch.matmul(narrow_values, wide_patches.transpose(1, 2)).reshape(weight.shape)
    if mask[2]:
        bias_gradient = grad.sum([0, *range(2, grad.ndim)])
    return input_gradient, weight_gradient, bias_gradient


def _compute_grouped_gradient(
    grad: Tensor,
    extents: Sequence[int],
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Compute a grouped convolution's input gradient without transposed convolution, which IREE 3.13 lacks for groups.

    The gradients are placed among zeros, a stride apart, and convolved with the flipped kernel.
    """
    sizes = weight.shape[2:]
    for d, extent in enumerate(extents):
        margin = dilation[d] * (sizes[d] - 1)
        padded_extent = max(padding[d] + extent, (grad.shape[d + 2] - 1) * stride[d] + 1) + margin
        grad = _slice(_spread(grad, d + 2, stride[d], margin, padded_extent), d + 2, padding[d], 1, extent + margin)
    kernel = weight.flip(list(range(2, weight.ndim))).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    zeros = [0] * len(sizes)
    return torch.ops.aten.convolution(grad, kernel, None, [1] * len(sizes), zeros, dilation, False, zeros, groups)


def _gather_patches(
    values: Tensor,
    positions: Sequence[int],
    sizes: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Return the values under each kernel offset: [batch, channels, kernel offsets, *positions]."""
    padded_values = torch.nn.functional.pad(values, [width for size in reversed(padding) for width in (size, size)])
    patches = padded_values.unsqueeze(2)
    # Begin with the last dimension, so that the offsets are in the order of the kernel's weights.
    for d in reversed(range(len(sizes))):
        strips = [_slice(patches, d + 3, offset * dilation[d], stride[d], positions[d]) for offset in range(sizes[d])]
        patches = torch.cat(strips, 2)
    return patches


def compute_max_pool_backward(
    grad: Tensor,
    values: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001 - the gradient's shape determines it
    indices: Tensor,  # noqa: ARG001 - recomputed, since they would require a scatter
) -> Tensor:
    """Compute `aten::max_pool2d_with_indices_backward`: the gradient goes to the first of a window's largest values.

    Comparing all offsets in turn finds the offset of that value in each window. Then, for each offset, the gradients of
    the windows with this offset are placed at their positions in the input. The result is the sum over all offsets.
    """
    first = values.ndim - 2
    kernel, stride, padding, dilation = (
        list(option) * 2 if len(option) == 1 else list(option)
        for option in (kernel, stride or kernel, padding, dilation)
    )
    sizes, out = values.shape[first:], grad.shape[first:]
    min_extent = [(out[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 for d in range(2)]
    extent = [max(min_extent[d], sizes[d] + padding[d]) for d in range(2)]
    pad_widths = [width for d in (1, 0) for width in (padding[d], extent[d] - sizes[d] - padding[d])]
    padded_values = torch.nn.functional.pad(values, pad_widths, value=-torch.inf)
    offsets = list(itertools.product(range(kernel[0]), range(kernel[1])))
    best, best_index = (
        _take_window(padded_values, offsets[0], first, out, stride, dilation),
        torch.zeros_like(grad, dtype=torch.int32),
    )
    for index, offset in enumerate(offsets[1:], 1):
        rival = _take_window(padded_values, offset, first, out, stride, dilation)
        better = rival > best
        best, best_index = torch.where(better, rival, best), torch.where(better, index, best_index)
    total = torch.zeros_like(padded_values)
    for index, offset in enumerate(offsets):
        part = torch.where(best_index == index, grad, 0.0)
        for d in range(2):
            part = _spread(part, first + d, stride[d], offset[d] * dilation[d], extent[d])
        total = total + part
    for d in range(2):
        total = _slice(total, first + d, padding[d], 1, sizes[d])
    return total


def crop_padding(values: Tensor, pad_widths: Sequence[int], value: float = 0) -> Tensor:
    """Compute `aten::constant_pad_nd` with negative widths, which padding's backward pass has and IREE lacks."""
    if all(width >= 0 for width in pad_widths):
        return NotImplemented
    for reverse_axis, (left_pad, right_pad) in enumerate(zip(pad_widths[::2], pad_widths[1::2], strict=True)):
        axis = values.ndim - 1 - reverse_axis
        left_crop, right_crop = max(-left_pad, 0), max(-right_pad, 0)
        values = _slice(values, axis, left_crop, 1, values.shape[axis] - left_crop - right_crop)
    growth = [max(width, 0) for width in pad_widths]
    return torch.nn.functional.pad(values, growth, value=value) if any(growth) else values


def _take_window(
    padded_values: Tensor,
    offset: tuple[int, int],
    first: int,
    out: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Return the value at an offset in the window, for each position of the window."""
    for d in range(2):
        padded_values = _slice(padded_values, first + d, offset[d] * dilation[d], stride[d], out[d])
    return padded_values


def _slice(values: Tensor, axis: int, begin: int, step: int, count: int) -> Tensor:
    """Return `count` entries along an axis, a step apart."""
    return torch.ops.aten.slice.Tensor(values, axis, begin, begin + (count - 1) * step + 1, step)


def _spread(values: Tensor, axis: int, step: int, begin: int, extent: int) -> Tensor:
    """Invert `_slice`: place entries a step apart, from `begin` on, on an axis of `extent` zeros."""
    trailing = [0, 0] * (values.ndim - axis - 1)
    length = (values.shape[axis] - 1) * step + 1
    if step > 1:
        spaced = torch.nn.functional.pad(values.unsqueeze(axis + 1), [*trailing, 0, step - 1]).flatten(axis, axis + 1)
        values = _slice(spaced, axis, 0, 1, length)
    return torch.nn.functional.pad(values, [*trailing, begin, extent - begin - length])


def draw_targets(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return a normal target in f32 for each float output, deterministically."""
    generator = torch.Generator().manual_seed(_TARGETS_SEED)
    return tuple(torch.randn(output.shape, generator=generator) for output in _find_floats(outputs))


def draw_gradients(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return initial sums of gradients: normal numbers with the gradient's rms, so that a missing addend is noticed."""
    generator = torch.Generator().manual_seed(_GRADIENTS_SEED)
    return tuple(
        torch.randn(gradient.shape, generator=generator) * gradient.float().square().mean().sqrt()
        for gradient in gradients
    )


def run_eager_step(
    module: Module, inputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run a training step with torch's autograd.

    Returns:
        The loss, and the gradients by parameter name, in the module's order; parameters that do not contribute to the
        loss, or are frozen, are omitted.
    """
    parameters = dict(module.named_parameters())
    loss = _compute_loss(tree_leaves(module(*inputs)), targets)
    loss.backward()
    gradients = {name: weight.grad for name, weight in parameters.items() if weight.grad is not None}
    for weight in parameters.values():
        weight.grad = None
    return loss.detach(), gradients


def trace_step(
    module: Module, inputs: Sequence[Tensor], targets: Sequence[Tensor], names: Sequence[str], *, accumulate: bool
) -> Module:
    """Trace the step of `run_eager_step` to a module of forward and backward operators, without autograd.

    The module takes the inputs, the targets and, if `accumulate`, sums of gradients. It returns the loss and the
    gradients of the named parameters, or the new sums. Weights are attributes of the module with their own names, and
    are not copied. Other changes by training, such as those of running statistics, are omitted.
    """
    # Trace in two passes: the first pass resolves branches on the inputs' values, which the second could not trace.
    forward = torch.export.export(module, tuple(inputs), strict=False).module(check_guards=False)
    weights = dict(forward.named_parameters())
    buffers = dict(forward.named_buffers())

    def step(
        weights: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: list[Tensor],
        targets: list[Tensor],
        before: list[Tensor],
    ) -> list[Tensor]:
        # Copy the buffers, because the module may change them.
        state = {**weights, **{name: buffer.clone() for name, buffer in buffers.items()}}
        outputs = torch.func.functional_call(forward, state, tuple(inputs))
        loss = _compute_loss(tree_leaves(outputs), targets)
        gradients = torch.autograd.grad(loss, [weights[name] for name in names])
        return [loss, *([old + new for old, new in zip(before, gradients, strict=True)] if accumulate else gradients)]

    before = [torch.zeros_like(weights[name]) for name in names] if accumulate else []
    # Fused attention has a fused backward operator, which has no decomposition.
    with sdpa_kernel(SDPBackend.MATH):
        traced = make_fx(step, decomposition_table=make_backward_decompositions(), tracing_mode="fake")(
            weights, buffers, list(inputs), list(targets), before
        )
    return _bind_weights(traced, {**weights, **buffers})


def _bind_weights(traced: Module, state: dict[str, Tensor]) -> Module:
    """Turn the first arguments of a traced function into attributes."""
    graph = traced.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    for node, name in zip(arguments, state, strict=False):
        with graph.inserting_before(node):
            attribute = graph.create_node("get_attr", name)
        node.replace_all_uses_with(attribute)
        graph.erase_node(node)
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:  # noqa: SLF001 - the operator's name
            graph.erase_node(node)
    # Replace the code generator, which is made for list arguments, by the default code generator.
    graph.set_codegen(torch.fx.graph.CodeGen())
    # Take the names in the graph's order, so that files are reproducible.
    names = dict.fromkeys(node.target for node in graph.nodes if node.op == "get_attr")
    constants = {name: getattr(traced, name) for name in names if name not in state}
    module = torch.fx.GraphModule({**state, **constants}, graph)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module.eval()


def _compute_loss(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    floats = _find_floats(outputs)
    sums = [_sum_axes((_widen(out) - _widen(target)).square()) for out, target in zip(floats, targets, strict=True)]
    return sum(sums[1:], sums[0]) / sum(out.numel() for out in floats)


def _widen(values: Tensor) -> Tensor:
    return values if values.dtype is torch.float64 else values.float()


def _sum_axes(values: Tensor) -> Tensor:
    """Sum along one axis after the other: adding millions of numbers in sequence would lose digits."""
    while values.ndim:
        values = values.sum(-1)
    return values


def _find_floats(outputs: Sequence[Tensor]) -> list[Tensor]:
    return [output for output in outputs if output.is_floating_point()]
