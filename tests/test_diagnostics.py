"""Failures with one cause form one group; the compiler's messages were recorded from failing operator cases."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.diagnostics import find_diagnostic, normalize_diagnostic, strip_unstable
from tests.support.places import DATA

# IREE 3.13.0rc20261016 on ONNX operator cases: `case: first error line`, bounded as the journal bounds it.
_RECORDED = DATA / "operator_diagnostics.txt"


def test_recorded_diagnostics_are_grouped_by_what_is_missing() -> None:
    lines = [line.split(": ", 1) for line in _RECORDED.read_text(encoding="utf-8").splitlines()]
    illegal = "that was explicitly marked illegal"
    assert Counter(normalize_diagnostic(f"iree-compile failed with exit code 1: {text}") for _, text in lines) == {
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.Resize)": 3,
        f"failed to legalize operation 'torch.aten.sum.dim_IntList' {illegal}": 3,
        f"failed to legalize operation 'torch.aten.nll_loss_forward' {illegal}": 3,
        "failed to legalize operation 'torch.constant.int'": 3,
        "failed to legalize operation 'torch.constant.bool'": 3,
        "failed to legalize operation 'torch.constant.float'": 3,
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.AffineGrid)": 2,
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.ImageDecoder)": 2,
        f"failed to legalize operation 'torch.aten.cumsum' {illegal}": 2,
        f"failed to legalize operation 'torch.aten.prod.dim_int' {illegal}": 2,
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.RandomUniformLike)": 1,
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.DequantizeLinear)": 1,
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.QuantizeLinear)": 1,
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.GridSample)": 1,
        f"failed to legalize operation 'torch.operator' {illegal} (onnx.LpPool)": 1,
        f"failed to legalize operation 'torch.aten.max_unpool2d' {illegal}": 1,
        f"failed to legalize operation 'torch.aten.dropout' {illegal}": 1,
        "failed to legalize operation 'torch.aten.fft_ifft'": 1,
        "'tensor.cast' op operand type 'tensor<…>' and result type 'tensor<…>' are cast incompatible": 1,
        "unimplemented: dim is not constant": 1,
    }


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            "output 0: 12 of 384 values (3.1 %) differ by more than 1e-4",
            "output #: # of # values (# %) differ by more than #",
        ),
        ("element at index 3 (4) does not match", "element at index # (#) does not match"),
        ("cannot open '/home/me/x/input_0.bin': gone", "cannot open '…': gone"),
        ("cannot open /home/me/x/input_0.bin: gone", "cannot open …: gone"),
        ("model.mlir:2:18: use of undeclared name %b#1", "use of undeclared name %…"),
        ("expected 3x4xf32, found ?x4xf32", "expected …xf32, found …xf32"),
        ("bad !torch.vtensor<[3,4],list<i8>> -> vector<2xf32", "bad !torch.vtensor<…> -> vector<…>"),
        ("module 5deadbeef01 at 0x7ffe is no module", "module … at 0x… is no module"),
        ("iree-compile crashed with SIGFPE", "iree-compile crashed with SIGFPE"),
        ("iree-compile crashed with SIGFPE; expected: slow (cpu.json)", "iree-compile crashed with SIGFPE"),
        ("iree-compile failed with exit code 1", "iree-compile failed with exit code #"),
        ("passed, but is expected to fail: in the list; remove the expectation", "passed, but is expected to fail"),
        ("iree-compile ran longer than its 60 s", "iree-compile ran longer than its # s"),
        ("", "no reason was given"),
    ],
)
def test_what_differs_from_case_to_case_goes(reason: str, text: str) -> None:
    assert normalize_diagnostic(reason) == text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            "iree-compile failed with exit code 1: failed to legalize 'aten.pool2d': %3 = \"aten.pool2d\"(%0) : (f32)",
            "failed to legalize 'aten.pool2d'",
        ),
        (
            "iree-run-module failed with exit code 1: INVALID_ARGUMENT; input0 shape dimension 0 mismatch; expected 4",
            "INVALID_ARGUMENT; input0 shape dimension",
        ),
        (
            "iree-compile crashed with SIGFPE; crashes, but expected is: does not compile (s.toml: expect_failure)",
            "iree-compile crashed with SIGFPE",
        ),
        ("iree-compile failed with exit code 1: /tmp/x/m.mlir 12 4xf32 oh", ""),
    ],
)
def test_a_stable_text_has_nothing_that_differs_from_run_to_run(reason: str, text: str) -> None:
    assert strip_unstable(reason) == text


@given(st.text(max_size=300))
def test_a_stable_text_is_a_part_of_its_reason(reason: str) -> None:
    assert strip_unstable(reason) in reason


def test_a_diagnostic_keeps_its_numbers() -> None:
    reason = "iree-run-module failed with exit code 1: expected 4 but have 3; expected: in the list"
    assert find_diagnostic(reason) == "expected 4 but have 3"


@given(st.text(max_size=400))
def test_every_diagnostic_is_one_short_line(reason: str) -> None:
    text = normalize_diagnostic(reason)
    assert 0 < len(text) <= 160
    assert "\n" not in text
