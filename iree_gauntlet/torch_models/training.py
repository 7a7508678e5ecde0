"""A step of training as one module that can be exported: forward, loss and backward, with fixed shapes.

The loss is the mean, over all elements of all float outputs, of the squared distance to fixed normal targets. It is
taken in f32 whatever the element type: a sum of some ten thousand squares leaves the range of f16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from iree_gauntlet.torch_models.decompositions import backward_decompositions

if TYPE_CHECKING:
    from collections.abc import Sequence


LOSS = "mean over all elements of all float outputs of the squared distance to normal targets, in f32"

_TARGETS_SEED = 1
_GRADIENTS_SEED = 2


def random_targets(outputs: Sequence[Any]) -> tuple[Any, ...]:
    """A normal target in f32 for each float output, the same every time."""
    generator = torch.Generator().manual_seed(_TARGETS_SEED)
    return tuple(torch.randn(output.shape, generator=generator) for output in _floats(outputs))


def random_gradients(gradients: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients to accumulate upon: normal, each with the rms of one that is there, so that neither hides the other."""
    generator = torch.Generator().manual_seed(_GRADIENTS_SEED)
    return tuple(
        torch.randn(gradient.shape, generator=generator) * gradient.float().square().mean().sqrt()
        for gradient in gradients
    )


def eager_step(module: Any, inputs: Sequence[Any], targets: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """A step by torch's own autograd.

    Returns:
        The loss, and the gradients by the names of their parameters, in the module's order; parameters that have no
        part in the loss, or are frozen, are not among them.
    """
    named = dict(module.named_parameters())
    loss = _loss(tree_leaves(module(*inputs)), targets)
    loss.backward()
    gradients = {name: weight.grad for name, weight in named.items() if weight.grad is not None}
    for weight in named.values():
        weight.grad = None
    return loss.detach(), gradients


def exportable_step(
    module: Any, inputs: Sequence[Any], targets: Sequence[Any], names: Sequence[str], *, accumulate: bool
) -> Any:
    """The same step as a module of forward and backward operators, which autograd has no part in any more.

    It takes the inputs, the targets and, to accumulate, gradients so far; it returns the loss and the gradients of
    the named parameters, or the sums. Weights are attributes of it under their own names, and not copied. What
    training changes in a module besides, such as running statistics, is left out.

    Args:
        module: to be trained; it is not changed.
        inputs: of the module.
        targets: one for each float output.
        names: parameters whose gradients are wanted.
        accumulate: whether gradients so far are taken.
    """
    # Two times: what models ask of their inputs' values, and a tracer cannot answer, is settled by the first.
    forward = torch.export.export(module, tuple(inputs), strict=False).module(check_guards=False)
    weights = dict(forward.named_parameters())
    buffers = dict(forward.named_buffers())

    def step(weights: Any, buffers: Any, inputs: Any, targets: Any, before: Any) -> list[Any]:
        # A copy, which what a module does to its buffers is done to.
        state = {**weights, **{name: buffer.clone() for name, buffer in buffers.items()}}
        outputs = torch.func.functional_call(forward, state, tuple(inputs))
        loss = _loss(tree_leaves(outputs), targets)
        gradients = torch.autograd.grad(loss, [weights[name] for name in names])
        return [loss, *([old + new for old, new in zip(before, gradients, strict=True)] if accumulate else gradients)]

    before = [torch.zeros_like(weights[name]) for name in names] if accumulate else []
    # Attention in one operator has a backward pass in one operator, which nothing takes apart.
    with sdpa_kernel(SDPBackend.MATH):
        traced = make_fx(step, decomposition_table=backward_decompositions(), tracing_mode="fake")(
            weights, buffers, list(inputs), list(targets), before
        )
    return _with_weights(traced, {**weights, **buffers})


def _with_weights(traced: Any, state: dict[str, Any]) -> Any:
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


def _loss(outputs: Sequence[Any], targets: Sequence[Any]) -> Any:
    floats = _floats(outputs)
    sums = [_sum((_wide(output) - _wide(target)).square()) for output, target in zip(floats, targets, strict=True)]
    return sum(sums[1:], sums[0]) / sum(output.numel() for output in floats)


def _wide(values: Any) -> Any:
    return values if values.dtype is torch.float64 else values.float()


def _sum(values: Any) -> Any:
    """Along one axis after the other: a compiler that adds millions of numbers in order loses digits."""
    while values.ndim:
        values = values.sum(-1)
    return values


def _floats(outputs: Sequence[Any]) -> list[Any]:
    return [output for output in outputs if output.is_floating_point()]
