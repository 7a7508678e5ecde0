"""Tensors that are recognized by their values, in any layout."""

from __future__ import annotations

import numpy as np

from iree_gauntlet.workers.iree_side.trace_dispatches import ValueIndex

VALUES = np.random.default_rng(1).normal(size=(30, 40))


def index() -> ValueIndex:
    found = ValueIndex({"f32": 1e-4})
    found.add("f32", VALUES)
    found.add("i32", np.arange(1.0, 5.0))
    return found


def test_layout_and_padding_do_not_matter() -> None:
    padded = np.zeros((40, 32))
    padded[:, :30] = VALUES.T
    assert index().has("f32", padded)
    assert index().has("f32", VALUES * (1 + 5e-5))
    assert not index().has("f32", np.zeros(7)), "no tensor of it is zero alone"


def test_other_values_types_and_counts_do() -> None:
    assert not index().has("f32", VALUES * (1 + 1e-3))
    assert not index().has("f32", VALUES[1:])
    assert not index().has("f16", VALUES)
    assert index().has("i32", np.array([4.0, 3.0, 2.0, 1.0]))
    assert not index().has("i32", np.array([4.0, 3.0, 2.0, 1.00001])), "integers are equal"
    assert not index().has("f32", np.where(VALUES.max() == VALUES, np.inf, VALUES))
