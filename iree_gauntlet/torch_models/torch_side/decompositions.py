"""Backward passes that ONNX has no operators for, in operators that it has: torch's decompositions leave them whole.

They are written for graphs that a compiler reads: nothing is scattered by an index, so that everything can be parallel.

The loss is the mean, over all elements of all float outputs, of the squared distance to fixed normal targets. It is
taken in f32 whatever the element type: a sum of some ten thousand squares leaves the range of f16.
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
    """A table for `make_fx`: every backward operator that torch can take apart, and those of this module.

    Batch normalisation's forward is among them: ONNX's has no outputs for the statistics that its backward pass needs.
    """
    aten = torch.ops.aten
    known = {operator: apart for operator, apart in decomposition_table.items() if "backward" in str(operator)}
    return {
        **known,
        **get_decompositions([aten.native_batch_norm.default]),
        aten.convolution_backward.default: compute_convolution_backward,
        aten.max_pool2d_with_indices_backward.default: compute_max_pool_backward,
        aten.constant_pad_nd.default: crop,
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
    output_padding: Sequence[int],  # noqa: ARG001 - it says nothing that the shapes do not
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """`aten::convolution_backward` of any number of dimensions: gradients of the input, the weight and the bias.

    The input's is the convolution turned round: a transposed one of an ordinary one, and the other way. The weight's
    is a matrix product of the gradient and the patches of the input that each position of the kernel saw; in a
    transposed convolution the two change places.
    """
    sizes = weight.shape[2:]
    of_input = of_weight = of_bias = None
    if mask[0] and transposed:
        of_input = torch.ops.aten.convolution(
            grad, weight, None, stride, padding, dilation, False, [0] * len(sizes), groups
        )
    elif mask[0] and groups > 1:
        of_input = _compute_grouped_input(grad, values.shape[2:], weight, stride, padding, dilation, groups)
    elif mask[0]:
        reached = [
            (out - 1) * stride[d] - 2 * padding[d] + dilation[d] * (sizes[d] - 1) + 1
            for d, out in enumerate(grad.shape[2:])
        ]
        missing = [have - got for have, got in zip(values.shape[2:], reached, strict=True)]
        of_input = torch.ops.aten.convolution(grad, weight, None, stride, padding, dilation, True, missing, groups)
    if mask[1]:
        wide, narrow = (grad, values) if transposed else (values, grad)
        patches = _gather_patches(wide, narrow.shape[2:], sizes, stride, padding, dilation)
        batch, channels = narrow.shape[:2]
        seen = patches.reshape(batch, groups, -1, narrow[0, 0].numel()).permute(1, 2, 0, 3).flatten(2)
        gave = narrow.reshape(batch, groups, channels // groups, -1).permute(1, 2, 0, 3).flatten(2)
        of_weight = torch.matmul(gave, seen.transpose(1, 2)).reshape(weight.shape)
    if mask[2]:
        of_bias = grad.sum([0, *range(2, grad.ndim)])
    return of_input, of_weight, of_bias


def _compute_grouped_input(
    grad: Tensor,
    extents: Sequence[int],
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The gradient of a grouped convolution's input without a transposed one, of which IREE (3.13) has none in groups.

    Gradients are spread among zeros as far as the stride was, and convolved with the kernel turned round.
    """
    sizes = weight.shape[2:]
    for d, extent in enumerate(extents):
        around = dilation[d] * (sizes[d] - 1)
        room = max(padding[d] + extent, (grad.shape[d + 2] - 1) * stride[d] + 1) + around
        grad = _take_every(_spread_entries(grad, d + 2, stride[d], around, room), d + 2, padding[d], 1, extent + around)
    turned = weight.flip(list(range(2, weight.ndim))).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    none = [0] * len(sizes)
    return torch.ops.aten.convolution(grad, turned, None, [1] * len(sizes), none, dilation, False, none, groups)


def _gather_patches(
    values: Tensor,
    positions: Sequence[int],
    sizes: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """[batch, channels, places of the kernel, *positions]: what each place of the kernel sees in each position."""
    padded = torch.nn.functional.pad(values, [room for size in reversed(padding) for room in (size, size)])
    seen = padded.unsqueeze(2)
    # The last dimension first, so that a kernel's places end up in the order of its weights.
    for d in reversed(range(len(sizes))):
        strips = [_take_every(seen, d + 3, place * dilation[d], stride[d], positions[d]) for place in range(sizes[d])]
        seen = torch.cat(strips, 2)
    return seen


def compute_max_pool_backward(
    grad: Tensor,
    values: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001 - it shows in the shape of the gradient
    indices: Tensor,  # noqa: ARG001 - found again, since they would have to be scattered
) -> Tensor:
    """`aten::max_pool2d_with_indices_backward`: the gradient goes to the first of the largest values of a window.

    Which place of the window that is, is found by comparing its places one after the other. Then, for each place, the
    gradients that belong to it are spread to where it is in the input, and all are summed up.
    """
    first = values.ndim - 2
    kernel, stride, padding, dilation = (
        list(given) * 2 if len(given) == 1 else list(given) for given in (kernel, stride or kernel, padding, dilation)
    )
    sizes, out = values.shape[first:], grad.shape[first:]
    reach = [(out[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 for d in range(2)]
    extent = [max(reach[d], sizes[d] + padding[d]) for d in range(2)]
    rooms = [room for d in (1, 0) for room in (padding[d], extent[d] - sizes[d] - padding[d])]
    padded = torch.nn.functional.pad(values, rooms, value=-torch.inf)
    places = list(itertools.product(range(kernel[0]), range(kernel[1])))
    best, where = (
        _take_window(padded, places[0], first, out, stride, dilation),
        torch.zeros_like(grad, dtype=torch.int32),
    )
    for index, place in enumerate(places[1:], 1):
        rival = _take_window(padded, place, first, out, stride, dilation)
        better = rival > best
        best, where = torch.where(better, rival, best), torch.where(better, index, where)
    total = torch.zeros_like(padded)
    for index, place in enumerate(places):
        spread = torch.where(where == index, grad, 0.0)
        for d in range(2):
            spread = _spread_entries(spread, first + d, stride[d], place[d] * dilation[d], extent[d])
        total = total + spread
    for d in range(2):
        total = _take_every(total, first + d, padding[d], 1, sizes[d])
    return total


def crop(values: Tensor, rooms: Sequence[int], value: float = 0) -> Tensor:
    """`aten::constant_pad_nd` where it takes away, as the backward pass of padding does: IREE only adds."""
    if all(room >= 0 for room in rooms):
        return NotImplemented
    for place, (before, behind) in enumerate(zip(rooms[::2], rooms[1::2], strict=True)):
        axis = values.ndim - 1 - place
        left, right = max(-before, 0), max(-behind, 0)
        values = _take_every(values, axis, left, 1, values.shape[axis] - left - right)
    added = [max(room, 0) for room in rooms]
    return torch.nn.functional.pad(values, added, value=value) if any(added) else values


def _take_window(
    padded: Tensor,
    place: tuple[int, int],
    first: int,
    out: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """What a place of the window sees in each position."""
    for d in range(2):
        padded = _take_every(padded, first + d, place[d] * dilation[d], stride[d], out[d])
    return padded


def _take_every(values: Tensor, axis: int, begin: int, step: int, count: int) -> Tensor:
    """So many entries along an axis, a step apart."""
    return torch.ops.aten.slice.Tensor(values, axis, begin, begin + (count - 1) * step + 1, step)


def _spread_entries(values: Tensor, axis: int, step: int, begin: int, extent: int) -> Tensor:
    """The other way: entries a step apart from `begin` on, among zeros, `extent` in all."""
    behind = [0, 0] * (values.ndim - axis - 1)
    length = (values.shape[axis] - 1) * step + 1
    if step > 1:
        apart = torch.nn.functional.pad(values.unsqueeze(axis + 1), [*behind, 0, step - 1]).flatten(axis, axis + 1)
        values = _take_every(apart, axis, 0, 1, length)
    return torch.nn.functional.pad(values, [*behind, begin, extent - begin - length])


def draw_targets(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A normal target in f32 for each float output, the same every time."""
    generator = torch.Generator().manual_seed(_TARGETS_SEED)
    return tuple(torch.randn(output.shape, generator=generator) for output in _find_floats(outputs))


def draw_gradients(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients to accumulate upon: normal, each with the rms of one that is there, so that neither hides the other."""
    generator = torch.Generator().manual_seed(_GRADIENTS_SEED)
    return tuple(
        torch.randn(gradient.shape, generator=generator) * gradient.float().square().mean().sqrt()
        for gradient in gradients
    )


def run_eager_step(
    module: Module, inputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """A step by torch's own autograd.

    Returns:
        The loss, and the gradients by the names of their parameters, in the module's order; parameters that have no
        part in the loss, or are frozen, are not among them.
    """
    named = dict(module.named_parameters())
    loss = _compute_loss(tree_leaves(module(*inputs)), targets)
    loss.backward()
    gradients = {name: weight.grad for name, weight in named.items() if weight.grad is not None}
    for weight in named.values():
        weight.grad = None
    return loss.detach(), gradients


def trace_step(
    module: Module, inputs: Sequence[Tensor], targets: Sequence[Tensor], names: Sequence[str], *, accumulate: bool
) -> Module:
    """The same step as a module of forward and backward operators, which autograd has no part in any more.

    It takes the inputs, the targets and, to accumulate, gradients so far; it returns the loss and the gradients of
    the named parameters, or the sums. Weights are attributes of it under their own names, and not copied. What
    training changes in a module besides, such as running statistics, is left out.
    """
    # Two times: what models ask of their inputs' values, and a tracer cannot answer, is settled by the first.
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
        # A copy, which what a module does to its buffers is done to.
        state = {**weights, **{name: buffer.clone() for name, buffer in buffers.items()}}
        outputs = torch.func.functional_call(forward, state, tuple(inputs))
        loss = _compute_loss(tree_leaves(outputs), targets)
        gradients = torch.autograd.grad(loss, [weights[name] for name in names])
        return [loss, *([old + new for old, new in zip(before, gradients, strict=True)] if accumulate else gradients)]

    before = [torch.zeros_like(weights[name]) for name in names] if accumulate else []
    # Attention in one operator has a backward pass in one operator, which nothing takes apart.
    with sdpa_kernel(SDPBackend.MATH):
        traced = make_fx(step, decomposition_table=make_backward_decompositions(), tracing_mode="fake")(
            weights, buffers, list(inputs), list(targets), before
        )
    return _with_weights(traced, {**weights, **buffers})


def _with_weights(traced: Module, state: dict[str, Tensor]) -> Module:
    """A traced function whose first arguments have become attributes."""
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
    # The arguments are no lists any more.
    graph.set_codegen(torch.fx.graph.CodeGen())
    # In their order, so that files are the same every time.
    names = dict.fromkeys(node.target for node in graph.nodes if node.op == "get_attr")
    constants = {name: getattr(traced, name) for name in names if name not in state}
    module = torch.fx.GraphModule({**state, **constants}, graph)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module.eval()


def _compute_loss(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    floats = _find_floats(outputs)
    sums = [_add_up((_widen(output) - _widen(target)).square()) for output, target in zip(floats, targets, strict=True)]
    return sum(sums[1:], sums[0]) / sum(output.numel() for output in floats)


def _widen(values: Tensor) -> Tensor:
    return values if values.dtype is torch.float64 else values.float()


def _add_up(values: Tensor) -> Tensor:
    """Along one axis after the other: a compiler that adds millions of numbers in order loses digits."""
    while values.ndim:
        values = values.sum(-1)
    return values


def _find_floats(outputs: Sequence[Tensor]) -> list[Tensor]:
    return [output for output in outputs if output.is_floating_point()]
