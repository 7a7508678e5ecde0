"""Linear layers with quantised weights, written so that their quantised form survives the way through ONNX to IREE.

Each takes the place of a `torch.nn.Linear` and computes the same in torch eager and on IREE. Quantisation is
symmetric: the step of a group of values is its largest magnitude over the largest number of the type.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import nn

_INT8_MAX = 127
_INT4_MIN, _INT4_MAX = -8, 7
_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_MAX = torch.finfo(_FLOAT8).max


class QuantizedLinear(nn.Module):  # type: ignore[misc]
    """What the layers have in common: they work on rows, add the bias, and give back the type that they were given."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    @abstractmethod
    def product(self, rows: Any) -> Any:
        """The product of rows [m, in_features] with the weights: [m, out_features]."""

    def forward(self, values: Any) -> Any:
        """As `torch.nn.Linear` does it."""
        result = self.product(values.reshape(-1, self.in_features))
        if self.bias is not None:
            result = result + self.bias
        return result.to(values.dtype).reshape(*values.shape[:-1], self.out_features)


class Int8Linear(QuantizedLinear):
    """Weights in int8 with a step for each output; products in the type of the activations."""

    def __init__(self, linear: Any) -> None:
        super().__init__(linear)
        whole, step = _int8(linear.weight)
        self.register_buffer("weight", whole)
        self.register_buffer("step", step[:, None])

    def product(self, rows: Any) -> Any:
        """In the type of the rows."""
        # By their steps before they are narrow: IREE 3.13 makes of int8 to bf16 what does not link on every CPU.
        return rows @ (self.weight.float() * self.step).to(rows.dtype).t()


class Int8DynamicLinear(QuantizedLinear):
    """Weights in int8 with a step for each output, rows in int8 with a step for each row, sums in int32.

    Rows are quantised when they are there: their step is not known before.
    """

    def __init__(self, linear: Any) -> None:
        super().__init__(linear)
        whole, step = _int8(linear.weight)
        self.register_buffer("weight", whole.t().contiguous())
        self.register_buffer("step", step)

    def product(self, rows: Any) -> Any:
        """In f32."""
        wide = rows.float()
        step = _steps(wide.abs().amax(1, keepdim=True), _INT8_MAX)
        whole = (wide / step).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8)
        return _integer_product(whole, self.weight).float() * step * self.step


class Int4Linear(QuantizedLinear):
    """Weights in four bits, two in a byte, with a step for each group of inputs of an output.

    The step of a group maps its value of the largest magnitude to -8, so that all sixteen numbers are used, as in
    GGML's Q4_0. The low half of a byte belongs to the first half of a group and the high half to the second, so that
    each half of the activations meets one half of the bytes, and no byte needs to be taken apart into neighbours.
    """

    def __init__(self, linear: Any, group: int) -> None:
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

    def product(self, rows: Any) -> Any:
        """In the type of the steps."""
        halves = rows.reshape(rows.shape[0], -1, 2, self.group // 2)
        # The halves of a byte are separated in a wider type: what stays a byte wide is taken for a constant by the
        # compiler, which unpacks it once, when a module is loaded, and the weights are twice as large from then on.
        both = self.weight.to(self.step.dtype)
        upper = (both / 16).floor()
        low, high = self._half(both - 16 * upper), self._half(upper)
        return halves[:, :, 0].flatten(1) @ low.t() + halves[:, :, 1].flatten(1) @ high.t()

    def _half(self, bits: Any) -> Any:
        return ((bits + _INT4_MIN) * self.step).flatten(1)


class Float8DynamicLinear(QuantizedLinear):
    """Weights and rows in f8E4M3FN, with a step for each output and row or for all of them; products and sums in f32.

    Args:
        linear: whose weights are taken.
        granularity: what shares a step.
    """

    def __init__(self, linear: Any, granularity: Literal["tensor", "row"]) -> None:
        super().__init__(linear)
        self.by_row = granularity == "row"
        self.register_buffer("unit", torch.ones(()), persistent=False)
        self.register_buffer("zero", torch.zeros((), dtype=_FLOAT8), persistent=False)
        whole, step = self._quantized(linear.weight.detach().float())
        self.register_buffer("weight", whole)
        self.register_buffer("step", step.flatten())

    def product(self, rows: Any) -> Any:
        """In f32."""
        whole, step = self._quantized(rows.float())
        return whole.float() @ self.weight.float().t() * step * self.step

    def _quantized(self, values: Any) -> tuple[Any, Any]:
        magnitude = values.abs()
        largest = magnitude.amax(1, keepdim=True) if self.by_row else magnitude.amax((0, 1), keepdim=True)
        step = _steps(largest, _FLOAT8_MAX)
        return self._rounded((values / step).clamp(-_FLOAT8_MAX, _FLOAT8_MAX)), step

    def _rounded(self, values: Any) -> Any:
        """In f8, what is in its range; IREE 3.13 imports a quantisation by steps of 1, and no cast to f8."""
        if torch.onnx.is_in_onnx_export():
            given = (values, self.unit, self.zero)
            return torch.onnx.ops.symbolic("QuantizeLinear", given, dtype=_FLOAT8, shape=values.shape)
        return values.to(_FLOAT8)


def unfit_for_groups(linear: Any, group: int) -> str:
    """Why the inputs of a layer cannot be taken in groups of a size; empty where they can."""
    return f"{linear.in_features} inputs are no groups of {group}" if linear.in_features % group else ""


def _integer_product(rows: Any, weight: Any) -> Any:
    """The product of int8 matrices in int32, for which the exporter of torch 2.13 knows no ONNX, though there is."""
    if torch.onnx.is_in_onnx_export():
        shape = (rows.shape[0], weight.shape[1])
        return torch.onnx.ops.symbolic("MatMulInteger", (rows, weight), dtype=torch.int32, shape=shape)
    return torch._int_mm(rows, weight)  # noqa: SLF001 - torch has no other name for it


def _int8(weight: Any) -> tuple[Any, Any]:
    """A weight in int8, and the step of each output in f32."""
    wide = weight.detach().float()
    step = _steps(wide.abs().amax(1), _INT8_MAX)
    return (wide / step[:, None]).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8), step


def _steps(largest: Any, maximum: float) -> Any:
    """The steps for values of these largest magnitudes; where all are zero, one that divides."""
    return largest.clamp(min=torch.finfo(torch.float32).tiny * 2**24) / maximum
