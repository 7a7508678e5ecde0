"""Torch modules of recipes (linear layers: replaced, pruned, quantised; which a recipe changed) and of architectures.

A quantised layer takes the place of a `torch.nn.Linear`, computes the same in torch eager and on IREE, and is written
so that its form survives the way through ONNX. Quantisation is symmetric: the step of a group of values is its largest
magnitude over the largest number of the type.
"""

from __future__ import annotations

import hashlib
import os
import sys
import weakref
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch.nn import Module


_INT8_MAX = 127
_INT4_MIN, _INT4_MAX = -8, 7
_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_MAX = torch.finfo(_FLOAT8).max


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells whether a linear layer is still the same."""

    layer: weakref.ref[Module]
    hash: str
    bytes: int


def linear_layers(model: Module) -> dict[str, Module]:
    """The linear layers by name, each once; the name of a model that is one itself is empty.

    The one inside `torch.nn.MultiheadAttention` is none of them: its weight is read by others, and not through it.
    """
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not isinstance(layer, NonDynamicallyQuantizableLinear)
    }


def replace_linear_layers(
    model: Module, make: Callable[[Module], Module], unfit: Callable[[Module], str] | None = None
) -> Module:
    """Put something else in the place of each linear layer; one that is in two places is replaced in both by one.

    Args:
        model: changed in place.
        make: gives what replaces a layer.
        unfit: says why a layer cannot be replaced, empty where it can; such a layer stays, and is named on standard
            error.

    Returns:
        The model, or what replaces it where it is a linear layer itself.

    Raises:
        UsageError: where no layer can be replaced.
    """
    made = {id(layer): make(layer) for layer in _find_fitting(model, unfit)}
    if id(model) in made:
        return made[id(model)]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in made:
                setattr(parent, name, made[id(child)])
    return model


def prune_linear_layers(model: Module, prune: Callable[[Tensor], Tensor], unfit: Callable[[Module], str]) -> Module:
    """Put other weights in the place of those of each linear layer.

    Args:
        model: changed in place.
        prune: takes the weight of a layer, [outputs, inputs], and gives another of its shape and type.
        unfit: as for `replace_linear_layers`.

    Returns:
        The model.

    Raises:
        UsageError: where no layer can be pruned.
    """
    for layer in _find_fitting(model, unfit):
        with torch.no_grad():
            layer.weight.copy_(prune(layer.weight))
    return model


def _find_fitting(model: Module, unfit: Callable[[Module], str] | None) -> list[Module]:
    layers = linear_layers(model)
    reasons = {name: reason for name, layer in layers.items() if unfit and (reason := unfit(layer))}
    for name, reason in reasons.items():
        sys.stderr.write(f"left as it is: {name or 'the model'}: {reason}\n")
    if reasons and len(reasons) == len(layers):
        name, reason = next(iter(reasons.items()))
        raise UsageError(f"none of the {len(layers)} linear layers fits: {name or 'the model'}: {reason}")
    return [layer for name, layer in layers.items() if name not in reasons]


def take_fingerprints(model: Module) -> dict[str, Fingerprint]:
    """Of the linear layers, by name; they keep no layer alive."""
    return {
        name: Fingerprint(weakref.ref(layer), *_hash_and_size(layer.weight))
        for name, layer in linear_layers(model).items()
    }


def find_changed_layers(before: Mapping[str, Fingerprint], model: Module) -> list[int]:
    """What the weight of each layer took that is not what it was, in bytes."""
    now = dict(model.named_modules())
    same = {
        name
        for name, was in before.items()
        if name in now and was.layer() is now[name] and _hash_and_size(now[name].weight)[0] == was.hash
    }
    return [was.bytes for name, was in before.items() if name not in same]


def _hash_and_size(weight: Tensor) -> tuple[str, int]:
    tensor = weight.detach()
    # A quantised tensor is a class of its own, which need not have plain bytes.
    if type(tensor) is not torch.Tensor:
        return type(tensor).__qualname__, 0
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(memoryview(flat.numpy())).hexdigest(), flat.numel()


def keep_two_of_four(weight: Tensor) -> Tensor:
    """The two of largest magnitude of each four neighbours of a row stay; of equal ones the first."""
    fours = weight.reshape(-1, 4)
    order = fours.abs().argsort(dim=1, descending=True, stable=True)
    kept = torch.zeros_like(fours, dtype=torch.bool).scatter_(1, order[:, :2], value=True)
    return torch.where(kept, fours, torch.zeros_like(fours)).reshape(weight.shape)


def keep_blocks(weight: Tensor, size: int) -> Tensor:
    """Half of the square blocks stay, rounded up: those of the largest sum of squares; of equal ones the first."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // size, size, columns // size, size)
    power = blocks.float().square().sum((1, 3)).flatten()
    order = power.argsort(descending=True, stable=True)
    kept = torch.zeros_like(power, dtype=torch.bool)
    kept[order[: (len(order) + 1) // 2]] = True
    mask = kept.reshape(rows // size, 1, columns // size, 1)
    return torch.where(mask, blocks, torch.zeros_like(blocks)).reshape(rows, columns)


def explain_unfit_for_fours(linear: Module) -> str:
    """Why the inputs of a layer cannot be taken in fours; empty where they can."""
    return f"{linear.in_features} inputs are no multiple of 4" if linear.in_features % 4 else ""


def explain_unfit_for_blocks(linear: Module, size: int) -> str:
    """Why a layer has not two square blocks of a size or more; empty where it has."""
    rows, columns = linear.weight.shape
    if rows % size or columns % size:
        return f"a weight of {rows} x {columns} is not made of blocks of {size} x {size}"
    return f"a weight of {rows} x {columns} is one block of {size} x {size}" if rows == columns == size else ""


class QuantizedLinear(nn.Module):  # type: ignore[misc]
    """What the layers have in common: they work on rows, add the bias, and give back the type that they were given."""

    def __init__(self, linear: Module) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """The product of rows [m, in_features] with the weights: [m, out_features]."""

    def forward(self, values: Tensor) -> Tensor:
        """As `torch.nn.Linear` does it."""
        result = self.product(values.reshape(-1, self.in_features))
        if self.bias is not None:
            result = result + self.bias
        return result.to(values.dtype).reshape(*values.shape[:-1], self.out_features)


class Int8Linear(QuantizedLinear):
    """Weights in int8 with a step for each output; products in the type of the activations."""

    def __init__(self, linear: Module) -> None:
        super().__init__(linear)
        whole, step = _quantize_int8(linear.weight)
        self.register_buffer("weight", whole)
        self.register_buffer("step", step[:, None])

    def product(self, rows: Tensor) -> Tensor:
        """In the type of the rows."""
        # By their steps before they are narrow: IREE 3.13 makes of int8 to bf16 what does not link on every CPU.
        return rows @ (self.weight.float() * self.step).to(rows.dtype).t()


class Int8DynamicLinear(QuantizedLinear):
    """Weights in int8 with a step for each output, rows in int8 with a step for each row, sums in int32.

    Rows are quantised when they are there: their step is not known before.
    """

    def __init__(self, linear: Module) -> None:
        super().__init__(linear)
        whole, step = _quantize_int8(linear.weight)
        self.register_buffer("weight", whole.t().contiguous())
        self.register_buffer("step", step)

    def product(self, rows: Tensor) -> Tensor:
        """In f32."""
        wide = rows.float()
        step = _find_steps(wide.abs().amax(1, keepdim=True), _INT8_MAX)
        whole = (wide / step).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8)
        if torch.onnx.is_in_onnx_export():
            # The exporter of torch 2.13 knows no ONNX for it, though there is.
            shape = (rows.shape[0], self.weight.shape[1])
            given = (whole, self.weight)
            found = torch.onnx.ops.symbolic("MatMulInteger", given, dtype=torch.int32, shape=shape)
        else:
            found = torch._int_mm(whole, self.weight)  # noqa: SLF001 - torch has no other name for it
        return found.float() * step * self.step


class Int4Linear(QuantizedLinear):
    """Weights in four bits, two in a byte, with a step for each group of inputs of an output.

    The step of a group maps its value of the largest magnitude to -8, so that all sixteen numbers are used, as in
    GGML's Q4_0. The low half of a byte belongs to the first half of a group and the high half to the second, so that
    each half of the activations meets one half of the bytes, and no byte needs to be taken apart into neighbours.
    """

    def __init__(self, linear: Module, group: int) -> None:
        super().__init__(linear)
        weight = linear.weight.detach().float().reshape(self.out_features, -1, group)
        largest = weight.gather(2, weight.abs().argmax(2, keepdim=True))
        step = (largest / _INT4_MIN).to(linear.weight.dtype)
        whole = (weight / torch.where(step == 0, torch.ones_like(step), step).float()).round()
        bits = (whole.clamp(_INT4_MIN, _INT4_MAX) - _INT4_MIN).to(torch.uint8)
        low, high = bits.split(group // 2, 2)
        self.register_buffer("weight", low | high << 4)
        self.register_buffer("step", step)
        self.group = group

    def product(self, rows: Tensor) -> Tensor:
        """In the type of the steps."""
        halves = rows.reshape(rows.shape[0], -1, 2, self.group // 2)
        # The halves of a byte are separated in a wider type: what stays a byte wide is taken for a constant by the
        # compiler, which unpacks it once, when a module is loaded, and the weights are twice as large from then on.
        both = self.weight.to(self.step.dtype)
        upper = (both / 16).floor()
        low, high = self._half(both - 16 * upper), self._half(upper)
        return halves[:, :, 0].flatten(1) @ low.t() + halves[:, :, 1].flatten(1) @ high.t()

    def _half(self, bits: Tensor) -> Tensor:
        return ((bits + _INT4_MIN) * self.step).flatten(1)


class Float8DynamicLinear(QuantizedLinear):
    """Weights and rows in f8E4M3FN, with a step for each output and row or for all; products and sums in f32."""

    def __init__(self, linear: Module, granularity: Literal["tensor", "row"]) -> None:
        super().__init__(linear)
        self.by_row = granularity == "row"
        self.register_buffer("unit", torch.ones(()), persistent=False)
        self.register_buffer("zero", torch.zeros((), dtype=_FLOAT8), persistent=False)
        whole, step = self._quantized(linear.weight.detach().float())
        self.register_buffer("weight", whole)
        self.register_buffer("step", step.flatten())

    def product(self, rows: Tensor) -> Tensor:
        """In f32."""
        whole, step = self._quantized(rows.float())
        return whole.float() @ self.weight.float().t() * step * self.step

    def _quantized(self, values: Tensor) -> tuple[Tensor, Tensor]:
        magnitude = values.abs()
        largest = magnitude.amax(1, keepdim=True) if self.by_row else magnitude.amax((0, 1), keepdim=True)
        step = _find_steps(largest, _FLOAT8_MAX)
        scaled = (values / step).clamp(-_FLOAT8_MAX, _FLOAT8_MAX)
        if not torch.onnx.is_in_onnx_export():
            return scaled.to(_FLOAT8), step
        # IREE 3.13 imports a quantisation by steps of 1, and no cast to f8.
        given = (scaled, self.unit, self.zero)
        return torch.onnx.ops.symbolic("QuantizeLinear", given, dtype=_FLOAT8, shape=values.shape), step


def explain_unfit_for_groups(linear: Module, group: int) -> str:
    """Why the inputs of a layer cannot be taken in groups of a size; empty where they can."""
    return f"{linear.in_features} inputs are no groups of {group}" if linear.in_features % group else ""


def _quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in int8, and the step of each output in f32."""
    wide = weight.detach().float()
    step = _find_steps(wide.abs().amax(1), _INT8_MAX)
    return (wide / step[:, None]).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8), step


def _find_steps(largest: Tensor, maximum: float) -> Tensor:
    """The steps for values of these largest magnitudes; where all are zero, one that divides."""
    return largest.clamp(min=torch.finfo(torch.float32).tiny * 2**24) / maximum


class Linear(nn.Module):  # type: ignore[misc]
    """One linear layer without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, outputs, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """[m, inputs] to [m, outputs]."""
        return self.linear1(rows)


class NormLinearActivation(nn.Module):  # type: ignore[misc]
    """Layer normalisation without weights, a linear layer without bias, an activation."""

    def __init__(self, inputs: int, outputs: int, activation: Module) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(inputs, elementwise_affine=False)
        self.fc = nn.Linear(inputs, outputs, bias=False)
        self.activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """[m, inputs] to [m, outputs]."""
        return self.activation(self.fc(self.ln(rows)))


class RootMeanSquareNorm(nn.Module):  # type: ignore[misc]
    """Each token over its root mean square, in f32, by a weight."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Of the same shape."""
        wide = tokens.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale).type_as(tokens) * self.weight


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Attention and a network of two layers, each behind a norm and next to a residual; no biases, no mask."""

    def __init__(self, width: int, heads: int = 8, ratio: int = 4) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"transformer_block: a width of k = {width} is no multiple of {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.mlp_fc1 = nn.Linear(width, ratio * width, bias=False)
        self.mlp_fc2 = nn.Linear(ratio * width, width, bias=False)
        self.norm1 = RootMeanSquareNorm(width)
        self.norm2 = RootMeanSquareNorm(width)
        self.activation = nn.GELU()

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence, width] to the same."""
        batch, sequence, width = tokens.shape
        split = self.qkv(self.norm1(tokens)).reshape(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # Plain products, as torchao has them, and no fused attention.
        queries, keys, values = split.flatten(1, 2)
        scores = torch.softmax(queries @ keys.transpose(1, 2) * (width // self.heads) ** -0.5, -1)
        attended = (scores @ values).reshape(batch, self.heads, sequence, -1).transpose(1, 2).flatten(2)
        tokens = tokens + self.proj(attended)
        return tokens + self.mlp_fc2(self.activation(self.mlp_fc1(self.norm2(tokens))))


def add_rows(model: Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Module, tuple[Tensor, ...]]:
    """A model in a type, and what it is called with: normal numbers."""
    return model.to(dtype), (torch.randn(shape, dtype=dtype),)


class _Tokens(nn.Module):  # type: ignore[misc]
    """What a model says of tokens: the first of its outputs, which is the last hidden state in most."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [1, m] to [1, m, hidden size]."""
        return self.model(input_ids=tokens, return_dict=False)[0]


def make_configured_model(
    path: Path, *, tokens: int, hidden_size: int, intermediate_size: int, dtype: torch.dtype
) -> tuple[Module, tuple[Tensor, ...]]:
    """A model of a `config.json` (or its folder) without its head, with random weights, and some random tokens.

    A size of 0 is the configuration's own.
    """
    # Before the import, which reads it.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from transformers import AutoConfig, AutoModel  # noqa: PLC0415 - no other architecture needs it
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path}: {error}", 'pip install "iree-gauntlet[models]", or name a Python that has it'
        ) from error
    try:
        config = AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(f"{path}: transformers cannot read this configuration: {said}") from error
    _set_size(config, "hidden_size", hidden_size, path)
    _set_size(config, "intermediate_size", intermediate_size, path)
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and tokens > longest:
        raise UsageError(f"{path}: m = {tokens} tokens, and max_position_embeddings is {longest}")
    # A cache of keys and values would be another output for each layer.
    config.use_cache = False
    model = AutoModel.from_config(config, dtype=dtype, trust_remote_code=False)
    if model.main_input_name != "input_ids" or getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{path}: {config.model_type} is no model that takes tokens alone")
    return _Tokens(model), (torch.randint(0, config.vocab_size, (1, tokens)),)


def _set_size(config: Any, name: str, size: int, path: Path) -> None:
    if not size:
        return
    if not hasattr(config, name):
        raise UsageError(f"{path}: {config.model_type} has no {name}: 0 leaves the configuration's own sizes")
    setattr(config, name, size)
