"""The dispatches that break a dispatch golden, found by comparison with the newest module that kept the golden."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.measuring.profiles.dispatch_profile import find_dispatch_names, find_new_and_gone
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_COMPSTAT = "toy/abs@cpu:compstat"
# Two products, one after the other.
_MORE = """
func.func @abs(%a : tensor<4xf32>) -> tensor<4xf32> {
  %weights = arith.constant dense<2.0> : tensor<4x4xf32>
  %zero = arith.constant dense<0.0> : tensor<1x4xf32>
  %row = tensor.expand_shape %a [[0, 1]] output_shape [1, 4] : tensor<4xf32> into tensor<1x4xf32>
  %first = linalg.matmul ins(%row, %weights : tensor<1x4xf32>, tensor<4x4xf32>)
    outs(%zero : tensor<1x4xf32>) -> tensor<1x4xf32>
  %second = linalg.matmul ins(%first, %weights : tensor<1x4xf32>, tensor<4x4xf32>)
    outs(%zero : tensor<1x4xf32>) -> tensor<1x4xf32>
  %0 = tensor.collapse_shape %second [[0, 1]] : tensor<1x4xf32> into tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.close()


@pytest.mark.iree
def test_the_dispatches_that_are_new_are_named(project: Project) -> None:
    project.benchmark(golden_dispatch={"cpu": 1})
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == 0, done.text
    (program,) = project.folder.rglob("abs.mlir")
    program.write_text(_MORE)
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == 1, done.text
    (note,) = project.result(_COMPSTAT)["notes"]
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
    against = rf"compared with the newest module with 1 dispatch \(of {day}\): new: .*mat.*; gone: elementwise_4.*"
    assert re.fullmatch(against, note), note
    assert "gone: elementwise_4" in (project.newest / "summary.md").read_text()


@pytest.mark.iree
def test_without_such_a_module_nothing_is_said(project: Project) -> None:
    project.benchmark(golden_dispatch={"cpu": 0})
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == 1, done.text
    assert project.result(_COMPSTAT).get("notes", []) == []


def test_names_are_matched_without_their_numbers() -> None:
    before = ["f$async_dispatch_0_add_4_f32", "f$async_dispatch_1_add_4_f32", "f$async_dispatch_2_matmul_4x4x4_f32"]
    after = ["f$async_dispatch_0_matmul_4x4x4_f32", "f$async_dispatch_1_add_4_f32", "f$async_dispatch_7"]
    assert find_new_and_gone(before, after) == (["f$async_dispatch_7"], ["add_4_f32"])
    assert find_new_and_gone(before, before) == ([], [])


def test_names_are_found_in_any_bytes() -> None:
    data = b"\x00\x1cf$async_dispatch_10_add_4_f32\x00f$async_dispatch_10\x00 f$async_dispatch_2_mul_4_f32\xff"
    assert find_dispatch_names([data]) == ["f$async_dispatch_2_mul_4_f32", "f$async_dispatch_10_add_4_f32"]
