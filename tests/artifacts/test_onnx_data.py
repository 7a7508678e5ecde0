"""External data files of ONNX files, found without ONNX's library; files that this library wrote are the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from iree_gauntlet.artifacts.onnx_data import count_operators, list_data_files

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def tensor(name: str, location: str | None) -> TensorProto:
    """A tensor with its values, or with the name of a file that has them."""
    made = numpy_helper.from_array(np.arange(6, dtype=np.float32), name)
    if location is not None:
        made.ClearField("raw_data")
        made.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "24")):
            made.external_data.add(key=key, value=value)
    return made


def model(places: list[tuple[str, str | None]]) -> onnx.ModelProto:
    """A model with a tensor in each place: among the weights, in a node, or in the graph of a branch."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    nodes, weights = [helper.make_node("Identity", ["x"], ["y"])], []
    for number, (place, location) in enumerate(places):
        made = tensor(f"t{number}", location)
        constant = helper.make_node("Constant", [], [f"c{number}"], value=made)
        if place == "weights":
            weights.append(made)
        elif place == "node":
            nodes.append(constant)
        else:
            branch = helper.make_graph([constant], "branch", [], [helper.make_tensor_value_info("c", 1, [6])], [made])
            nodes.append(helper.make_node("If", ["x"], [f"i{number}"], then_branch=branch, else_branch=branch))
    return helper.make_model(helper.make_graph(nodes, "main", [x], [x], weights), doc_string="location")


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: not name.startswith("/") and ".." not in name.split("/")
)


@given(st.lists(st.tuples(st.sampled_from(("weights", "node", "branch")), st.none() | names), max_size=8))
def test_every_file_is_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[str, str | None]]
) -> None:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    path.write_bytes(model(places).SerializeToString())
    assert list_data_files(path) == tuple(sorted({location for _, location in places if location is not None}))


@example(b"", 0)
@example(b"\xff" * 10_000, 0)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_file_at_all_names_files_outside_or_breaks(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, cut: int
) -> None:
    path = tmp_path_factory.mktemp("junk") / "model.onnx"
    whole = model([("branch", "beside"), ("weights", "../outside"), ("node", "/etc/passwd")]).SerializeToString()
    path.write_bytes(whole[: len(whole) - cut] + junk)
    found = list_data_files(path)
    assert not {"../outside", "/etc/passwd"} & set(found)
    if not cut and not junk:
        assert found == ("beside",)


def test_what_is_not_there_has_none(tmp_path: Path) -> None:
    assert list_data_files(tmp_path / "none.onnx") == ()
    (tmp_path / "empty.onnx").touch()
    assert list_data_files(tmp_path / "empty.onnx") == ()


def test_operators_are_counted_by_domain_in_inner_graphs_too(tmp_path: Path) -> None:
    made = model([("branch", None), ("node", None)])
    made.graph.node.append(helper.make_node("Identity", ["x"], ["z"], domain="com.example"))
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    assert count_operators(path) == {
        ("", "Identity"): 1,
        ("", "If"): 1,
        ("", "Constant"): 3,
        ("com.example", "Identity"): 1,
    }
    assert not count_operators(tmp_path / "none.onnx")
