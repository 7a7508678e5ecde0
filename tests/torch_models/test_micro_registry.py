"""Registering recipes, architectures, activations and shape sets, and finding them by name."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.torch_models.declarations import collect_declarations, sort_by_name
from iree_gauntlet.torch_models.plugins import (
    Activation,
    Architecture,
    ModelRecipe,
    PluginError,
    PluginRegistry,
    Proof,
    ShapeSet,
    activation,
    architecture,
    compiler_recipe,
    load_registry,
    recipe,
    shape_set,
)
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.torch_models.declarations import Declaration

HEAVY = ("torch", "numpy", "pydantic", "rich", "yaml", "onnx", "ml_dtypes")


def declare_all() -> list[Declaration]:  # noqa: C901 - each function is one line
    with collect_declarations() as found:

        @recipe("baseline", kind="quantization")
        def baseline(model: Any) -> Any:
            """Nothing.

            More of it.
            """
            return model

        @recipe("int4wo", kind="quantization", about="four bits")
        def int4(model: Any, group: int = 32, method: str = "rtn") -> Any:
            return (model, group, method)

        @recipe("float8dq", kind="quantization")
        def float8(model: Any, granularity: Literal["tensor", "row"] = "tensor") -> Any:
            return model

        @recipe("gemlitewo", kind="quantization")
        def gemlite(model: Any, bits: Literal[4, 8], group: int) -> Any:
            return model

        @recipe("semi-sparse", kind="sparsity", beside=("baseline", "float8dq"))
        def semi_sparse(model: Any) -> Any:
            return model

        compiler_recipe("O3", flags=("--iree-opt-level=O3",), about="all that the compiler has")

        @architecture("linear")
        def linear(m: int, k: int, n: int, dtype: Any) -> Any: ...

        @architecture("ln_linear")
        def ln_linear(m: int, k: int, n: int, dtype: Any, activation: Any) -> Any: ...

        @architecture("mlp")
        def mlp(m: int, k: int, n: int, dtype: Any, activation: Any = None, depth: int = 2) -> Any: ...

        @architecture("transformers")
        def transformers(m: int, k: int, n: int, dtype: Any, *, config: Path) -> Any: ...

        @activation("relu")
        def relu() -> Any: ...

        @activation("leaky_relu")
        def leaky_relu() -> Any: ...

        @shape_set("pow2", min_power=10, max_power=14)
        def pow2(sizes: tuple[int, ...]) -> Any: ...

        @shape_set("llama")
        def llama() -> Any: ...

    return found


FOUND = declare_all()
REGISTRY = PluginRegistry(
    recipes=sort_by_name(FOUND, ModelRecipe, []),
    architectures=sort_by_name(FOUND, Architecture, []),
    activations=sort_by_name(FOUND, Activation, []),
    shape_sets=sort_by_name(FOUND, ShapeSet, []),
)


def refused(declare: Callable[[], object]) -> str:
    with collect_declarations() as found, pytest.raises(PluginError) as caught:
        declare()
    assert not found
    assert caught.value.exit_code is ExitCode.USAGE
    assert all(problem.file.endswith("test_micro_registry.py") and problem.line for problem in caught.value.problems)
    assert all(problem.hint.startswith("see docs/") for problem in caught.value.problems)
    return " | ".join(problem.message for problem in caught.value.problems)


def unknown(ask: Callable[[str], object], text: str) -> str:
    with pytest.raises(UsageError) as caught:
        ask(text)
    return str(caught.value)


def test_what_is_declared_is_collected_with_its_place() -> None:
    assert len(FOUND) == 14
    baseline = REGISTRY.recipes["baseline"]
    assert (baseline.about, baseline.kind, baseline.arguments) == ("Nothing.", "quantization", ())
    assert REGISTRY.recipes["int4wo"].about == "four bits"
    for item in FOUND:
        assert item.location.endswith(f"test_micro_registry.py:{item.line}")
    assert len({item.line for item in FOUND}) == len(FOUND)
    assert REGISTRY.recipes["O3"].flags == ("--iree-opt-level=O3",)
    assert REGISTRY.recipes["O3"].function is None
    assert REGISTRY.shape_sets["pow2"].powers == (10, 14)
    assert REGISTRY.shape_sets["llama"].powers is None
    assert REGISTRY.recipes["semi-sparse"].beside == ("baseline", "float8dq")
    assert REGISTRY.recipes["float8dq"].beside == ()


def test_a_declared_function_stays_as_it_is_and_needs_no_collector() -> None:
    def same(model: Any) -> Any:
        return model

    assert recipe("same", kind="sparsity")(same) is same
    assert same(5) == 5


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("baseline", "baseline", ()),
        ("int4wo", "int4wo", (32, "rtn")),
        ("int4wo-64", "int4wo", (64, "rtn")),
        ("int4wo-128-hqq", "int4wo", (128, "hqq")),
        ("float8dq", "float8dq", ("tensor",)),
        ("float8dq-row", "float8dq", ("row",)),
        ("gemlitewo-8-64", "gemlitewo", (8, 64)),
        ("semi-sparse", "semi-sparse", ()),
        ("O3", "O3", ()),
    ],
)
def test_recipes_with_their_arguments(text: str, name: str, arguments: tuple[int | str, ...]) -> None:
    asked = REGISTRY.find_recipe(text)
    assert (asked.text, asked.recipe.name, asked.arguments) == (text, name, arguments)
    assert [type(value) for value in asked.arguments] == [type(value) for value in arguments]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int4w", "no such recipe: 'int4w'\n  Did you mean int4wo? Available: O3, baseline, float8dq[-tensor|row], "),
        ("", "no such recipe: ''"),
        ("int4wox", "no such recipe:"),
        ("int4wo_32", "no such recipe:"),
        ("semi", "Did you mean semi-sparse?"),
        ("int4wo-", "group: expected a whole number, found ''\n  Its form is int4wo[-<group>[-<method>]]."),
        ("int4wo-x", "group: expected a whole number, found 'x'"),
        ("int4wo-032", "found '032'"),
        ("int4wo-٣٢", "expected a whole number"),
        ("int4wo-" + "9" * 5000, "expected a whole number"),
        ("int4wo--32", "group: expected a whole number, found ''"),
        ("int4wo-32-hqq-1", "it takes 2 arguments, found 3\n  Its form is int4wo["),
        ("float8dq-row-1", "it takes 1 argument, found 2"),
        ("float8dq-column", "granularity: expected tensor or row, found 'column'"),
        ("gemlitewo-5-64", "bits: expected 4 or 8, found '5'"),
        ("gemlitewo-4", "group: expected a whole number, found none\n  Its form is gemlitewo-4|8-<group>."),
        ("baseline-1", "it takes no arguments, found 1"),
    ],
)
def test_recipes_that_are_none(text: str, said: str) -> None:
    assert said in unknown(REGISTRY.find_recipe, text)


def test_arguments_that_a_recipe_cannot_do_with_are_refused_when_they_are_read() -> None:
    registry = load_registry()
    assert unknown(registry.find_recipe, "int4wo-7").startswith(
        "recipe 'int4wo-7': a group must have an even number of inputs\n"
    )
    assert unknown(registry.find_recipe, "block-0").startswith(
        "recipe 'block-0': a block must have a size of at least 1\n"
    )
    assert registry.find_recipe("int4wo-48").arguments == (48,)


def test_a_check_that_fails_is_its_plugins_problem() -> None:
    with collect_declarations() as found:

        @recipe("mine", kind="quantization", check=lambda size: str(1 / size))
        def mine(model: Any, size: int) -> Any: ...

    with pytest.raises(PluginError, match=r"test_micro_registry\.py:.*: mine: ZeroDivisionError"):
        PluginRegistry(sort_by_name(found, ModelRecipe, []), {}, {}, {}).find_recipe("mine-0")


def test_the_longest_name_wins() -> None:
    with collect_declarations() as found:

        @recipe("int8", kind="quantization")
        def short(model: Any, word: str) -> Any: ...

        @recipe("int8-dynamic", kind="quantization")
        def long(model: Any, size: int = 1) -> Any: ...

    registry = PluginRegistry(sort_by_name(found, ModelRecipe, []), {}, {}, {})
    assert registry.find_recipe("int8-dynamic").recipe.name == "int8-dynamic"
    assert registry.find_recipe("int8-dynamic-3").arguments == (3,)
    assert registry.find_recipe("int8-dynamics").arguments == ("dynamics",)


@given(st.sampled_from(sorted(REGISTRY.recipes)), st.lists(st.text("0123456789tensorw", min_size=1), max_size=3))
def test_a_recipe_is_read_as_it_is_written_or_refused(name: str, words: list[str]) -> None:
    text = "-".join([name, *words])
    try:
        asked = REGISTRY.find_recipe(text)
    except UsageError as error:
        assert repr(text) in error.message  # noqa: PT017 - some texts are refused, others not
        return
    assert asked.recipe.name == name
    given_values, defaults = asked.arguments[: len(words)], asked.arguments[len(words) :]
    assert [str(value) for value in given_values] == words
    assert list(defaults) == [argument.default for argument in asked.recipe.arguments[len(words) :]]


def test_model_types() -> None:
    assert REGISTRY.list_model_types() == (
        "linear",
        "ln_linear_leaky_relu",
        "ln_linear_relu",
        "mlp",
        "mlp_leaky_relu",
        "mlp_relu",
        "transformers",
    )
    for text in REGISTRY.list_model_types():
        asked = REGISTRY.find_model_type(text)
        ending = f"_{asked.activation.name}" if asked.activation else ""
        assert asked.text == text == f"{asked.architecture.name}{ending}"
    takes = {name: (item.takes_activation, item.takes_config) for name, item in REGISTRY.architectures.items()}
    assert takes == {
        "linear": ("no", "no"),
        "ln_linear": ("must", "no"),
        "mlp": ("may", "no"),
        "transformers": ("no", "must"),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ln_linear", "no such model type: 'ln_linear'\n  Did you mean"),
        ("ln_linear_rel", "Did you mean ln_linear_relu? Available: linear, ln_linear_leaky_relu,"),
        ("ln_linear_", "no such model type:"),
        ("linear_relu", "no such model type:"),
        ("relu", "no such model type:"),
    ],
)
def test_model_types_that_are_none(text: str, said: str) -> None:
    assert said in unknown(REGISTRY.find_model_type, text)


def test_shape_sets() -> None:
    assert REGISTRY.find_shape_set("pow2") is REGISTRY.shape_sets["pow2"]
    message = unknown(REGISTRY.find_shape_set, "pow3")
    assert message == "no such shape set: 'pow3'\n  Did you mean pow2? Available: custom, llama, pow2."


def no_model() -> Any: ...
def keyword(model: Any, *, group: int) -> Any: ...
def variadic(model: Any, *rest: int) -> Any: ...
def bare(model: Any, group) -> Any: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def floating(model: Any, share: float = 0.5) -> Any: ...
def unread(model: Any, group: Missing) -> Any: ...  # type: ignore[name-defined]  # noqa: F821
def dashed(model: Any, how: Literal["per-row"]) -> Any: ...
def truth(model: Any, how: Literal[True]) -> Any: ...
def odd_default(model: Any, group: int = -1) -> Any: ...
def typed_default(model: Any, how: Literal["tensor", "row"] = "column") -> Any: ...  # type: ignore[assignment]
def fitting(model: Any) -> Any: ...
def keyword_sizes(*, sizes: Any) -> Any: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_model, "it has no model parameter"),
        (keyword, "group: arguments are passed by position"),
        (variadic, "*rest: arguments are passed by position"),
        (bare, "group is annotated with nothing: expected int, str, or a Literal"),
        (floating, "share is annotated with float"),
        (unread, "group is annotated with Missing"),
        (dashed, "how is annotated with Literal"),
        (truth, "how is annotated with Literal"),
        (odd_default, "group: its default -1 is not a whole number"),
        (typed_default, "how: its default 'column' is not tensor or row"),
    ],
)
def test_functions_that_are_no_recipe(function: Callable[..., Any], said: str) -> None:
    assert said in refused(lambda: recipe("mine", kind="quantization")(function))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "compiler"}, "kind must be one of quantization, sparsity, not 'compiler'"),
        ({"proof": ("i8",)}, "proof must be a Proof(…), not ('i8',)"),
        ({"proof": Proof(parameter_types="i8")}, "proof.parameter_types is a tuple of strings"),  # type: ignore[arg-type]
        ({"proof": Proof(parameter_share=0)}, "proof.parameter_share must be a fraction"),
        ({"proof": Proof(parameter_share=float("nan"))}, "proof.parameter_share must be a fraction"),
        ({"proof": Proof(dispatch="(")}, "proof.dispatch is not a regular expression"),
        ({"tolerance": -1.0}, "tolerance must be a relative root mean square, such as 0.01, not -1.0"),
        ({"tolerance": True}, "tolerance must be"),
        ({"requires": "torchao"}, "requires is a tuple of strings, (\"one\",), not 'torchao'"),
        ({"flags": ("O3",)}, "flags: 'O3' does not start with --"),
        ({"flags": "--x"}, "flags is a tuple of strings"),
        ({"kind": "sparsity", "beside": [5]}, "beside is a tuple of strings"),
    ],
)
def test_declarations_that_say_something_wrong(options: dict[str, Any], said: str) -> None:
    assert said in refused(lambda: recipe("mine", **({"kind": "quantization"} | options))(fitting))


@pytest.mark.parametrize("name", ["", "my recipe", "-x", "x-", "x--y", "a+b", "../x", "ä", 5])
def test_names_that_are_none(name: Any) -> None:
    assert "is not a valid name" in refused(lambda: recipe(name, kind="quantization")(fitting))
    assert "is not a valid name" in refused(lambda: compiler_recipe(name, flags=["--x"], about=""))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"flags": ()}, "flags is empty"),
        ({"flags": "--x"}, "flags is a tuple of strings"),
        ({"flags": ["O3"]}, "'O3' does not start with --"),
        ({"contraction_type": "f8"}, "contraction_type must be f16 or bf16, not 'f8'"),
        ({"proof": None}, "proof must be a Proof"),
    ],
)
def test_compiler_recipes_that_say_something_wrong(options: dict[str, Any], said: str) -> None:
    assert said in refused(lambda: compiler_recipe("mine", **({"flags": ("--x",), "about": ""} | options)))


def swapped(k: int, m: int, n: int, dtype: Any) -> Any: ...
def short(m: int, k: int, n: int) -> Any: ...
def wider(m: int, k: int, n: int, dtype: Any, heads: int) -> Any: ...
def options(m: int, k: int, n: int, dtype: Any, **options: int) -> Any: ...
def closed(m: int, k: int, n: int, dtype: Any, activation: Any, /) -> Any: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (swapped, "its first parameters are not m, k, n, dtype"),
        (short, "its first parameters are not m, k, n, dtype"),
        (wider, "no argument is passed to the parameter heads"),
        (options, "**options: arguments are passed only to named parameters"),
        (closed, "activation is positional-only"),
    ],
)
def test_functions_that_are_no_architecture(function: Callable[..., Any], said: str) -> None:
    assert said in refused(lambda: architecture("mine")(function))


def test_functions_that_are_no_activation_or_shape_set() -> None:
    assert "it takes model: no argument is passed to them" in refused(lambda: activation("mine")(fitting))
    assert "takes model: no argument is passed to them" in refused(lambda: shape_set("mine")(fitting))
    assert "must take one parameter" in refused(lambda: shape_set("mine", min_power=1, max_power=2)(no_model))
    assert "must take one parameter" in refused(lambda: shape_set("mine", min_power=1, max_power=2)(swapped))
    assert "must take one parameter" in refused(lambda: shape_set("mine", min_power=1, max_power=2)(keyword_sizes))
    assert "given together" in refused(lambda: shape_set("mine", min_power=1)(no_model))
    assert "not 3 and 2" in refused(lambda: shape_set("mine", min_power=3, max_power=2)(fitting))
    assert "≤ 24, not 3 and 25" in refused(lambda: shape_set("mine", min_power=3, max_power=25)(fitting))
    assert "custom is reserved" in refused(lambda: shape_set("custom")(no_model))


def test_a_decorator_is_for_functions() -> None:
    with pytest.raises(TypeError, match="the decorator of 'mine' is for a function"):
        recipe("mine", kind="quantization")(ModelRecipe)


def test_declaring_is_light() -> None:
    statement = (
        "import sys, iree_gauntlet.torch_models.plugins; from iree_gauntlet.torch_models.plugins import load_registry;"
        "load_registry();"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", statement], capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS
    )
    assert done.stdout.strip() == "[]"
