"""Dispatches in f64: what their text becomes, and what counts as rounding."""

from __future__ import annotations

import math

import pytest

from iree_gauntlet.experiments.explaining.locate import InF64, text_in_f64


@pytest.mark.parametrize(
    ("text", "wider"),
    [
        ("%0 = arith.addf %a, %b : f32", "%0 = arith.addf %a, %b : f64"),
        ("tensor<2x3xf32>", "tensor<2x3xf64>"),
        ("tensor<f32>, vector<4xf32>", "tensor<f64>, vector<4xf64>"),
        ("arith.extf %x : f16 to f32", "arith.extf %x : f16 to f64"),
        # Minus infinity, and NaN, which have no digits.
        ("arith.constant 0xFF800000 : f32", "arith.constant 0xFFF0000000000000 : f64"),
        ("arith.constant 0x7FC00000 : f32", "arith.constant 0x7FF8000000000000 : f64"),
        ("dense<[1.0, 2.5]> : tensor<2xf32>", "dense<[1.0, 2.5]> : tensor<2xf64>"),
        # What cannot be written, or has no f32 in it.
        ('dense<"0x0000803F"> : tensor<1xf32>', ""),
        ("dense_resource<weights> : tensor<9xf32>", ""),
        ("arith.addi %a, %b : i32", ""),
        ("tensor<2xbf16>", ""),
    ],
)
def test_every_f32_becomes_f64(text: str, wider: str) -> None:
    assert text_in_f64(text) == wider


@pytest.mark.parametrize(
    ("target", "reference", "rounding"),
    [
        (1.17, 4e-7, False),
        (1e-6, 0.9, True),  # the reference is at fault
        (3e-4, 2e-4, True),  # both lose digits, as by cancellation
        (3e-4, 1e-7, False),
        (math.inf, 0.0, False),
        (0.0, math.inf, True),
    ],
)
def test_what_is_right_or_as_far_off_as_the_reference_is_no_suspect(
    target: float, reference: float, *, rounding: bool
) -> None:
    assert InF64(target, reference).only_rounds is rounding
