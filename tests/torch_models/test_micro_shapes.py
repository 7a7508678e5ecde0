"""Sets of shapes: those of torchao's documents in their order, and the possible values of a user's set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.torch_models.declarations import collect_declarations
from iree_gauntlet.torch_models.plugins import (
    PluginError,
    Shape,
    ShapeSet,
    list_shapes,
    load_registry,
    number_shapes,
    shape_set,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BUILTIN: Mapping[str, ShapeSet] = load_registry().shape_sets
NAMES = ("llama", "pow2", "pow2_extended", "small_sweep", "sweep")
NEWER = ("deepseek_v3_236b", "deepseek_v3_671b", "gemma3_27b", "llama4", "qwen3_32b")
POWERS = st.tuples(st.integers(0, 12), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def made(name: str, *powers: int) -> list[Shape]:
    return list(list_shapes(BUILTIN[name], *powers))


def declared(function: Callable[..., Any], powers: tuple[int, int] | tuple[None, None] = (None, None)) -> ShapeSet:
    with collect_declarations() as found:
        shape_set("mine", min_power=powers[0], max_power=powers[1])(function)
    (item,) = found
    assert isinstance(item, ShapeSet)
    return item


def test_the_documents_own_defaults() -> None:
    assert sorted(BUILTIN) == sorted(NAMES + NEWER)
    assert [shape.m for shape in made("pow2")] == [1024, 2048, 4096, 8192, 16384]
    assert [shape.m for shape in made("pow2_extended")][:4] == [1024, 1536, 2048, 3072]
    assert len(made("sweep")) == 8**3
    assert len(made("small_sweep")) == math.comb(5 + 2, 3)
    assert made("llama") == [
        Shape("llama_attn.wqkv", 16384, 8192, 1280),
        Shape("llama_attn.w0", 16384, 1024, 8192),
        Shape("llama_ffn.w13", 16384, 8192, 7168),
        Shape("llama_ffn.w2", 16384, 3584, 8192),
    ]


def test_newer_models_have_each_layer_for_two_lengths_of_text() -> None:
    found = {name: [(shape.name, shape.label) for shape in made(name)] for name in NEWER}
    assert found["llama4"] == [
        ("llama4_FFN", "16384-8192-5120"),
        ("llama4_QO_proj", "16384-8192-8192"),
        ("llama4_KV_proj", "16384-8192-1024"),
        ("llama4_FFN", "128000-8192-5120"),
        ("llama4_QO_proj", "128000-8192-8192"),
        ("llama4_KV_proj", "128000-8192-1024"),
    ]
    layers = {
        "deepseek_v3_236b": {"FFN": "1536-5120", "QKVO_proj": "7168-7168"},
        "deepseek_v3_671b": {"FFN": "2048-7168", "QKVO_proj": "7168-7168"},
        "gemma3_27b": {"QO_proj": "4096-4096", "KV_proj": "4096-1024"},
        "qwen3_32b": {"QO_proj": "5120-5120", "KV_proj": "5120-640"},
    }
    for name, sizes in layers.items():
        expected = [(f"{name}_{label}", f"{m}-{size}") for m in (16384, 128000) for label, size in sizes.items()]
        assert found[name] == expected


def test_names_and_labels() -> None:
    assert [shape.name for shape in made("pow2", 3, 4)] == ["pow2_0", "pow2_1"]
    assert made("sweep", 1, 2)[1] == Shape("sweep_1", 2, 2, 4)
    assert number_shapes([(1, 2, 3), (4, 5, 6)]) == (Shape("custom_0", 1, 2, 3), Shape("custom_1", 4, 5, 6))
    assert Shape("custom_0", 1, 2, 3).label == "1-2-3"


@pytest.mark.parametrize("name", NAMES)
@given(powers=POWERS)
def test_shapes_have_names_of_their_own_and_sizes_of_the_range(name: str, powers: tuple[int, int]) -> None:
    shapes = made(name, *powers)
    assert len({shape.name for shape in shapes}) == len(shapes)
    assert len({shape.label for shape in shapes}) == len(shapes) or powers[0] == 0
    if name != "llama":
        low, high = (2**power for power in powers)
        limit = high + high // 2 if name == "pow2_extended" else high
        assert all(low <= size <= limit for shape in shapes for size in (shape.m, shape.k, shape.n))


@given(powers=POWERS)
def test_a_small_sweep_is_the_rising_part_of_a_sweep(powers: tuple[int, int]) -> None:
    small = [(shape.m, shape.k, shape.n) for shape in made("small_sweep", *powers)]
    whole = [(shape.m, shape.k, shape.n) for shape in made("sweep", *powers)]
    assert small == [shape for shape in whole if shape[0] <= shape[1] <= shape[2]]


def test_sets_of_a_user() -> None:
    with_powers = declared(lambda_free([(1, 2, 3)], "sizes"), (1, 2))
    assert list_shapes(with_powers) == (Shape("mine_0", 1, 2, 3),)
    named = declared(lambda_free([("query", 1, 2, 3), [4, 5, 6]]))
    assert list_shapes(named) == (Shape("mine_query", 1, 2, 3), Shape("mine_1", 4, 5, 6))
    twice = declared(lambda_free([("query", 1, 2, 3), ("query", 4, 5, 6)]))
    assert list_shapes(twice) == (Shape("mine_query", 1, 2, 3), Shape("mine_query", 4, 5, 6))


def lambda_free(rows: Any, *names: str) -> Callable[..., Any]:
    def with_sizes(sizes: tuple[int, ...]) -> Any:
        return rows

    def without() -> Any:
        return rows

    return with_sizes if names else without


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "it returned no shapes"),
        (None, "TypeError"),
        ([5], "it gave 5: expected (m, k, n)"),
        ([(1, 2)], "it gave (1, 2)"),
        ([(1, 2, 0)], "it gave (1, 2, 0)"),
        ([(1, 2, 3.0)], "it gave (1, 2, 3.0)"),
        ([(True, 2, 3)], "it gave (True, 2, 3)"),
        ([("", 1, 2, 3)], "it gave ('', 1, 2, 3)"),
        ([(1, 2, 3, 4)], "it gave (1, 2, 3, 4)"),
        ([("a", 1, 2, 3), ("a", 1, 2, 3)], "a shape twice"),
    ],
)
def test_what_is_no_shape(rows: Any, said: str) -> None:
    with pytest.raises(PluginError) as caught:
        list_shapes(declared(lambda_free(rows)))
    (problem,) = caught.value.problems
    assert said in problem.message
    assert problem.file.endswith("test_micro_shapes.py")
    assert problem.field == "mine"
    assert problem.line


def test_a_function_that_fails_is_named_with_its_line() -> None:
    def fails(sizes: tuple[int, ...]) -> Any:
        raise ValueError(f"no {sizes}")

    with pytest.raises(PluginError) as caught:
        list_shapes(declared(fails, (1, 2)))
    (problem,) = caught.value.problems
    assert problem.message == "ValueError: no (2, 4)"
    assert problem.line == fails.__code__.co_firstlineno + 1
