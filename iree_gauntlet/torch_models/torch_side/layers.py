"""Code of recipes (replacing, pruning and quantising linear layers, finding changed layers) and architectures.

A quantised layer replaces a `torch.nn.Linear`, computes the same in torch eager and on IREE, and is written so that
its form survives the conversion to ONNX. Quantisation is symmetric: the step (scale) of a group of values is the
group's largest magnitude divided by the type's largest number; only `Int4Linear` differs.
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
    """The identity and weight hash of a linear layer, to detect a change."""

    layer: weakref.ref[Module]
    hash: str
    bytes: int


def linear_layers(model: Module) -> dict[str, Module]:
    """Return the linear layers by name, each once; a model that is itself a linear layer has an empty name.

    The layer inside `torch.nn.MultiheadAttention` is excluded, because other code reads its weight directly.
    """
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not isinstance(layer, NonDynamicallyQuantizableLinear)
    }


def replace_linear_layers(
    model: Module, make: Callable[[Module], Module], unfit: Callable[[Module], str] | None = None
) -> Module:
    """Replace each linear layer; a layer that is used in two places gets one replacement for both.

    Args:
        model: changed in place.
        make: returns a layer's replacement.
        unfit: returns the reason why a layer cannot be replaced, or ""; such a layer stays, and is reported on
            standard error.

    Returns:
        The model, or its replacement if it is a linear layer itself.

    Raises:
        UsageError: if no layer can be replaced.
    """
    replacements = {id(layer): make(layer) for layer in _find_replaceable_layers(model, unfit)}
    if id(model) in replacements:
        return replacements[id(model)]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in replacements:
                setattr(parent, name, replacements[id(child)])
    return model


def prune_linear_layers(model: Module, prune: Callable[[Tensor], Tensor], unfit: Callable[[Module], str]) -> Module:
    """Prune the weights of each linear layer.

    Args:
        model: changed in place.
        prune: takes the weight of a layer, [outputs, inputs], and returns a weight of the same shape and type.
        unfit: as in `replace_linear_layers`.

    Returns:
        The model.

    Raises:
        UsageError: if no layer can be pruned.
    """
    for layer in _find_replaceable_layers(model, unfit):
        with torch.no_grad():
            layer.weight.copy_(prune(layer.weight))
    return model


def _find_replaceable_layers(model: Module, unfit: Callable[[Module], str] | None) -> list[Module]:
    layers = linear_layers(model)
    reasons = {name: reason for name, layer in layers.items() if unfit and (reason := unfit(layer))}
    for name, reason in reasons.items():
        sys.stderr.write(f"left unchanged: {name or 'the model'}: {reason}\n")
    if reasons and len(reasons) == len(layers):
        name, reason = next(iter(reasons.items()))
        raise UsageError(f"none of the {len(layers)} linear layers fits: {name or 'the model'}: {reason}")
    return [layer for name, layer in layers.items() if name not in reasons]


def take_fingerprints(model: Module) -> dict[str, Fingerprint]:
    """Return the linear layers' fingerprints by name; a fingerprint keeps no layer alive."""
    return {
        name: Fingerprint(weakref.ref(layer), *_hash_and_size(layer.weight))
        for name, layer in linear_layers(model).items()
    }


def find_changed_layers(fingerprints: Mapping[str, Fingerprint], model: Module) -> list[int]:
    """Return the former size in bytes of each changed layer's weight."""
    modules = dict(model.named_modules())
    unchanged_names = {
        name
        for name, fingerprint in fingerprints.items()
        if name in modules
        and fingerprint.layer() is modules[name]
        and _hash_and_size(modules[name].weight)[0] == fingerprint.hash
    }
    return [fingerprint.bytes for name, fingerprint in fingerprints.items() if name not in unchanged_names]


def _hash_and_size(weight: Tensor) -> tuple[str, int]:
    tensor = weight.detach()
    # Quantised tensors have their own classes, and may have no plain bytes.
    if type(tensor) is not torch.Tensor:
        return type(tensor).__qualname__, 0
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(memoryview(flat.numpy())).hexdigest(), flat.numel()


def keep_two_of_four(weight: Tensor) -> Tensor:
    """Keep the two largest magnitudes of each four neighbours in a row; of equal magnitudes, keep the first."""
    fours = weight.reshape(-1, 4)
    order = fours.abs().argsort(dim=1, descending=True, stable=True)
    mask = torch.zeros_like(fours, dtype=torch.bool).scatter_(1, order[:, :2], value=True)
    return torch.where(mask, fours, torch.zeros_like(fours)).reshape(weight.shape)


def keep_blocks(weight: Tensor, size: int) -> Tensor:
    """Keep half of the square blocks (rounded up), those with the largest sums of squares; of equal sums, the first."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // size, size, columns // size, size)
    power = blocks.float().square().sum((1, 3)).flatten()
    order = power.argsort(descending=True, stable=True)
    is_kept = torch.zeros_like(power, dtype=torch.bool)
    is_kept[order[: (len(order) + 1) // 2]] = True
    mask = is_kept.reshape(rows // size, 1, columns // size, 1)
    return torch.where(mask, blocks, torch.zeros_like(blocks)).reshape(rows, columns)


def explain_unfit_for_fours(linear: Module) -> str:
    """Return the reason why a layer's inputs cannot be split into fours; empty if they can."""
    return f"{linear.in_features} inputs are not a multiple of 4" if linear.in_features % 4 else ""


def explain_unfit_for_blocks(linear: Module, size: int) -> str:
    """Return the reason why a layer does not consist of two or more square blocks of a size; empty if it does."""
    rows, columns = linear.weight.shape
    if rows % size or columns % size:
        return f"a weight of {rows} x {columns} is not divisible into blocks of {size} x {size}"
    return f"a weight of {rows} x {columns} is one block of {size} x {size}" if rows == columns == size else ""


class QuantizedLinear(nn.Module):  # type: ignore[misc]
    """Base class of quantised layers, which work on rows, add the bias, and return the type of the input."""

    def __init__(self, linear: Module) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """Return the product of rows [m, in_features] with the weights: [m, out_features]."""

    def forward(self, values: Tensor) -> Tensor:
        """Apply the layer, as `torch.nn.Linear` does."""
        result = self.product(values.reshape(-1, self.in_features))
        if self.bias is not None:
            result = result + self.bias
        return result.to(values.dtype).reshape(*values.shape[:-1], self.out_features)


class Int8Linear(QuantizedLinear):
    """Weights in int8 with a step for each output; products in the type of the activations."""

    def __init__(self, linear: Module) -> None:
        super().__init__(linear)
        codes, step = _quantize_int8(linear.weight)
        self.register_buffer("weight", codes)
        self.register_buffer("step", step[:, None])

    def product(self, rows: Tensor) -> Tensor:
        """Return the product in the type of the rows."""
        # Apply the steps in f32, because IREE 3.13's code for int8 to bf16 does not link on every CPU.
        return rows @ (self.weight.float() * self.step).to(rows.dtype).t()


class Int8DynamicLinear(QuantizedLinear):
    """Weights in int8 with a step for each output, rows in int8 with a step for each row, sums in int32.

    Rows are quantised at run time, because their steps are not known before.
    """

    def __init__(self, linear: Module) -> None:
        super().__init__(linear)
        codes, step = _quantize_int8(linear.weight)
        self.register_buffer("weight", codes.t().contiguous())
        self.register_buffer("step", step)

    def product(self, rows: Tensor) -> Tensor:
        """Return the product in f32."""
        rows_f32 = rows.float()
        step = _find_steps(rows_f32.abs().amax(1, keepdim=True), _INT8_MAX)
        codes = (rows_f32 / step).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8)
        if torch.onnx.is_in_onnx_export():
            # ONNX has this operator, but the exporter of torch 2.13 does not translate `_int_mm` to it.
            shape = (rows.shape[0], self.weight.shape[1])
            operands = (codes, self.weight)
            products = torch.onnx.ops.symbolic("MatMulInteger", operands, dtype=torch.int32, shape=shape)
        else:
            products = torch._int_mm(codes, self.weight)  # noqa: SLF001 - torch has no public name for it
        return products.float() * step * self.step


class Int4Linear(QuantizedLinear):
    """Weights in four bits, two in a byte, with a step for each group of inputs of an output.

    The step of a group maps the group's value of largest magnitude to -8, so that all sixteen numbers are used, as in
    GGML's Q4_0. The low nibbles multiply the first half of a group's activations, and the high nibbles the second
    half, so no interleaving is needed.
    """

    def __init__(self, linear: Module, group: int) -> None:
        super().__init__(linear)
        weight = linear.weight.detach().float().reshape(self.out_features, -1, group)
        largest = weight.gather(2, weight.abs().argmax(2, keepdim=True))
        step = (largest / _INT4_MIN).to(linear.weight.dtype)
        codes = (weight / torch.where(step == 0, torch.ones_like(step), step).float()).round()
        bits = (codes.clamp(_INT4_MIN, _INT4_MAX) - _INT4_MIN).to(torch.uint8)
        low, high = bits.split(group // 2, 2)
        self.register_buffer("weight", low | high << 4)
        self.register_buffer("step", step)
        self.group = group

    def product(self, rows: Tensor) -> Tensor:
        """Return the product in the type of the steps."""
        halves = rows.reshape(rows.shape[0], -1, 2, self.group // 2)
        # Unpack in a float type: the compiler would fold shifts of bytes into a constant, which is unpacked once when
        # a module is loaded, and the weights would be twice as large.
        byte_values = self.weight.to(self.step.dtype)
        upper = (byte_values / 16).floor()
        low, high = self._scale_half(byte_values - 16 * upper), self._scale_half(upper)
        return halves[:, :, 0].flatten(1) @ low.t() + halves[:, :, 1].flatten(1) @ high.t()

    def _scale_half(self, bits: Tensor) -> Tensor:
        return ((bits + _INT4_MIN) * self.step).flatten(1)


class Float8DynamicLinear(QuantizedLinear):
    """Weights and rows in f8E4M3FN, with one step per output and row, or one per tensor; products and sums in f32."""

    def __init__(self, linear: Module, granularity: Literal["tensor", "row"]) -> None:
        super().__init__(linear)
        self.by_row = granularity == "row"
        self.register_buffer("unit", torch.ones(()), persistent=False)
        self.register_buffer("zero", torch.zeros((), dtype=_FLOAT8), persistent=False)
        codes, step = self._quantize(linear.weight.detach().float())
        self.register_buffer("weight", codes)
        self.register_buffer("step", step.flatten())

    def product(self, rows: Tensor) -> Tensor:
        """Return the product in f32."""
        codes, step = self._quantize(rows.float())
        return codes.float() @ self.weight.float().t() * step * self.step

    def _quantize(self, values: Tensor) -> tuple[Tensor, Tensor]:
        magnitude = values.abs()
        largest = magnitude.amax(1, keepdim=True) if self.by_row else magnitude.amax((0, 1), keepdim=True)
        step = _find_steps(largest, _FLOAT8_MAX)
        quotients = (values / step).clamp(-_FLOAT8_MAX, _FLOAT8_MAX)
        if not torch.onnx.is_in_onnx_export():
            return quotients.to(_FLOAT8), step
        # IREE 3.13 cannot import a cast to f8; an equivalent quantisation with steps of 1 can be imported.
        operands = (quotients, self.unit, self.zero)
        return torch.onnx.ops.symbolic("QuantizeLinear", operands, dtype=_FLOAT8, shape=values.shape), step


def explain_unfit_for_groups(linear: Module, group: int) -> str:
    """Return the reason why a layer's inputs cannot be split into groups of a size; empty if they can."""
    return f"{linear.in_features} inputs are not divisible into groups of {group}" if linear.in_features % group else ""


def _quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight in int8, and the step of each output in f32."""
    rows_f32 = weight.detach().float()
    step = _find_steps(rows_f32.abs().amax(1), _INT8_MAX)
    return (rows_f32 / step[:, None]).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8), step


def _find_steps(largest: Tensor, maximum: float) -> Tensor:
    """Return the steps for groups with these largest magnitudes; a group of zeros gets a nonzero step."""
    return largest.clamp(min=torch.finfo(torch.float32).tiny * 2**24) / maximum


class Linear(nn.Module):  # type: ignore[misc]
    """One linear layer without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, outputs, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Map [m, inputs] to [m, outputs]."""
        return self.linear1(rows)


class NormLinearActivation(nn.Module):  # type: ignore[misc]
    """Layer normalisation without weights, then a linear layer without bias, then an activation."""

    def __init__(self, inputs: int, outputs: int, activation: Module) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(inputs, elementwise_affine=False)
        self.fc = nn.Linear(inputs, outputs, bias=False)
        self.activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """Map [m, inputs] to [m, outputs]."""
        return self.activation(self.fc(self.ln(rows)))


class RootMeanSquareNorm(nn.Module):  # type: ignore[misc]
    """A norm that divides each token by its root mean square, in f32, and multiplies it by a weight."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Normalise tokens; the shape does not change."""
        tokens_f32 = tokens.float()
        scale = torch.rsqrt(tokens_f32.square().mean(-1, keepdim=True) + self.epsilon)
        return (tokens_f32 * scale).type_as(tokens) * self.weight


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Attention and a network of two layers, each after a norm and with a residual; no biases, no mask."""

    def __init__(self, width: int, heads: int = 8, ratio: int = 4) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"transformer_block: a width of k = {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.mlp_fc1 = nn.Linear(width, ratio * width, bias=False)
        self.mlp_fc2 = nn.Linear(ratio * width, width, bias=False)
        self.norm1 = RootMeanSquareNorm(width)
        self.norm2 = RootMeanSquareNorm(width)
        self.activation = nn.GELU()

    def forward(self, tokens: Tensor) -> Tensor:
        """Map [batch, sequence, width] to the same shape."""
        batch, sequence, width = tokens.shape
        heads = self.qkv(self.norm1(tokens)).reshape(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # As in torchao, attention consists of plain products and is not fused.
        queries, keys, values = heads.flatten(1, 2)
        scores = torch.softmax(queries @ keys.transpose(1, 2) * (width // self.heads) ** -0.5, -1)
        contexts = (scores @ values).reshape(batch, self.heads, sequence, -1).transpose(1, 2).flatten(2)
        tokens = tokens + self.proj(contexts)
        return tokens + self.mlp_fc2(self.activation(self.mlp_fc1(self.norm2(tokens))))


def add_rows(model: Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Module, tuple[Tensor, ...]]:
    """Cast a model to a type; return it and a normally distributed input."""
    return model.to(dtype), (torch.randn(shape, dtype=dtype),)


class _FirstOutput(nn.Module):  # type: ignore[misc]
    """A wrapper that returns a model's first output, which is usually the last hidden state."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [1, m] to [1, m, hidden size]."""
        return self.model(input_ids=tokens, return_dict=False)[0]


def make_configured_model(
    path: Path, *, tokens: int, hidden_size: int, intermediate_size: int, dtype: torch.dtype
) -> tuple[Module, tuple[Tensor, ...]]:
    """Return a model of a `config.json` (or its folder) without its head, with random weights, and random tokens.

    A size of 0 means the size in the configuration.
    """
    # Set the variable before the import, which reads it.
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
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(f"{path}: transformers cannot read this configuration: {message}") from error
    _set_size(config, "hidden_size", hidden_size, path)
    _set_size(config, "intermediate_size", intermediate_size, path)
    max_tokens = getattr(config, "max_position_embeddings", None)
    if isinstance(max_tokens, int) and tokens > max_tokens:
        raise UsageError(f"{path}: m = {tokens} tokens, and max_position_embeddings is {max_tokens}")
    # Without this, a cache of keys and values would add an output for each layer.
    config.use_cache = False
    model = AutoModel.from_config(config, dtype=dtype, trust_remote_code=False)
    if model.main_input_name != "input_ids" or getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{path}: {config.model_type} is not a model that takes only tokens")
    return _FirstOutput(model), (torch.randint(0, config.vocab_size, (1, tokens)),)


def _set_size(config: Any, name: str, size: int, path: Path) -> None:
    if not size:
        return
    if not hasattr(config, name):
        raise UsageError(f"{path}: {config.model_type} has no {name}: use 0 for the configuration's own sizes")
    setattr(config, name, size)
