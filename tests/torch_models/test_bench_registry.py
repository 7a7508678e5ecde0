from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.bench import Generative, benchmark_model, on_device, on_host
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.torch_models.build_files import BuildOptions
from iree_gauntlet.torch_models.declarations import collect_declarations, sort_by_name
from iree_gauntlet.torch_models.model_registry import (
    BenchmarkModel,
    ModelError,
    Pipeline,
    arrange_modules,
    check_options,
    choose_arguments,
)
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

HEAVY = ("torch", "numpy", "pydantic", "rich", "pooch", "requests", "ml_dtypes")


class Module:
    """Stands for torch.nn.Module: `arrange` gets the types that count."""


class Tensor:
    """Stands for torch.Tensor."""


def declare(function: Callable[..., Any], **given: Any) -> BenchmarkModel:
    with collect_declarations() as models:
        assert benchmark_model(**given)(function) is function
    (model,) = sort_by_name(models, BenchmarkModel, []).values()
    return model


def refused(function: Callable[..., Any], **given: Any) -> str:
    with collect_declarations() as models, pytest.raises(ModelError) as caught:
        benchmark_model(**given)(function)
    assert not models
    assert caught.value.exit_code is ExitCode.USAGE
    assert all(problem.file.endswith("test_bench_registry.py") and problem.line for problem in caught.value.problems)
    assert all(problem.field == function.__name__ for problem in caught.value.problems)
    return " | ".join(problem.message for problem in caught.value.problems)


def plain(training: bool) -> Any:
    return training


def sized(training: bool, config: str, force_num_layers: int | None = None, microbatch: int = 4) -> Any:
    return training, config, force_num_layers, microbatch


def model_of(returned: Any = None) -> BenchmarkModel:
    return declare(lambda_free(returned))


def lambda_free(returned: Any) -> Callable[..., Any]:
    def model(training: bool) -> Any:
        return returned

    return model


def test_the_documents_own_example_is_a_model() -> None:
    with collect_declarations() as models:

        @benchmark_model(configs=["tiny", "base", "large"])
        def bert(training: bool, config: str, force_num_layers: int | None = None) -> None: ...

    (model,) = sort_by_name(models, BenchmarkModel, []).values()
    assert (model.name, model.configs) == ("bert", ("tiny", "base", "large"))
    assert model.accepts == {"training", "config", "force_num_layers"}
    assert model.required == {"training", "config"}
    assert model.parameter_count("tiny") is None
    assert model.location.endswith(f"test_bench_registry.py:{model.line}")


def test_the_decorator_stands_with_and_without_parentheses() -> None:
    with collect_declarations() as models:

        @benchmark_model
        def bare(training: bool) -> None: ...

        @benchmark_model()
        def called(training: bool) -> None: ...

    assert [model.name for model in models] == ["bare", "called"]


def test_a_declared_function_stays_callable_and_needs_no_collector() -> None:
    assert benchmark_model(plain)(True) is True


def test_counts_are_known_without_building() -> None:
    model = declare(sized, configs=["tiny", "base"], parameters={"tiny": 4386178})
    assert (model.parameter_count("tiny"), model.parameter_count("base")) == (4386178, None)
    assert declare(plain, parameters=7).parameter_count() == 7


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ("tiny", "configs is a list of names"),
        ([], "configs is a list of names"),
        (5, "configs is a list of names"),
        (["tiny", "tiny"], "twice"),
        (["ti ny"], "'ti ny' is not a valid name"),
        (["../x"], "'../x' is not a valid name"),
        ([18], "18 is not a valid name"),
        ([["tiny"]], "is not a valid name"),
    ],
)
def test_configurations_that_are_none(configs: Any, said: str) -> None:
    assert said in refused(sized, configs=configs)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (5, "map each configuration"),
        ({"large": 5}, "no configuration is named 'large'"),
        ({"tiny": 0}, "0 is not a number of parameters"),
        ({"tiny": "4M"}, "'4M' is not a number of parameters"),
        ({"tiny": True}, "True is not a number of parameters"),
        ({"tiny": 4.5}, "4.5 is not a number of parameters"),
    ],
)
def test_parameter_counts_that_are_none(parameters: Any, said: str) -> None:
    assert said in refused(sized, configs=["tiny"], parameters=parameters)


def test_a_mapping_of_counts_needs_configurations() -> None:
    assert "one number if there are no configs" in refused(plain, parameters={"tiny": 5})
    assert "-3 is not a number of parameters" in refused(plain, parameters=-3)


def test_configurations_and_the_parameter_go_together() -> None:
    assert "has no parameter `config: str`" in refused(plain, configs=["tiny"])
    assert "no configs are declared" in refused(sized)


def test_signatures_that_cannot_be_called_by_name() -> None:
    def untrained(config: str = "x") -> None: ...

    def starred(training: bool, *rest: int) -> None: ...

    def kept(training: bool, /) -> None: ...

    def keywords(training: bool, **options: int) -> None: ...

    def hungry(training: bool, sequence_length: int) -> None: ...

    assert "no parameter `training: bool`" in refused(untrained, configs=["x"])
    assert "*rest" in refused(starred)
    assert "positional-only" in refused(kept)
    assert "**options" in refused(keywords)
    assert "no argument is passed to the parameter sequence_length" in refused(hungry)


def test_a_parameter_of_the_functions_own_may_have_a_default() -> None:
    def longer(training: bool, sequence_length: int = 128) -> None: ...

    assert declare(longer).accepts == {"training"}


def test_everything_wrong_with_a_declaration_is_said_at_once() -> None:
    def many(config: str, size: int, *rest: int) -> None: ...

    assert refused(many, parameters={"tiny": 5}).count("|") == 4


def test_only_functions_are_models() -> None:
    class Bert:
        pass

    wrongs: tuple[Any, ...] = (Bert, functools.partial(plain, training=True), None)
    for wrong in wrongs:
        with pytest.raises(TypeError, match="is for a function"):
            benchmark_model()(wrong)
    assert "not a valid model name" in refused(lambda training: training)


def test_a_function_gets_what_it_takes_and_keeps_its_defaults() -> None:
    model = declare(sized, configs=["tiny"])
    options = BuildOptions(training=True, config="tiny", dataformat="Fp16")
    assert choose_arguments(model, options) == {"training": True, "config": "tiny"}
    options = BuildOptions(config="tiny", layers=2, microbatch=8)
    assert choose_arguments(model, options) == {
        "training": False,
        "config": "tiny",
        "force_num_layers": 2,
        "microbatch": 8,
    }


def test_parameters_without_defaults_are_always_given() -> None:
    def bare(training: bool, force_num_layers: int | None, microbatch: int, dataformat: str) -> None: ...

    given = choose_arguments(declare(bare), BuildOptions())
    assert given == {"training": False, "force_num_layers": None, "microbatch": 1, "dataformat": "Fp32"}


def test_options_that_a_model_does_not_have() -> None:
    many, one, none = (declare(sized, configs=["tiny", "base"]), declare(sized, configs=["tiny"]), declare(plain))
    assert check_options(many, BuildOptions(config="base", microbatch=2)).config == "base"
    assert check_options(one, BuildOptions()).config == "tiny"
    for model, options, said in (
        (many, BuildOptions(), "no configuration is named\n  -c with one of tiny, base"),
        (many, BuildOptions(config="huge"), "no such configuration: 'huge'\n  it has tiny, base"),
        (none, BuildOptions(config="tiny"), "it has none"),
        (none, BuildOptions(layers=2), "--layers does not apply"),
        (none, BuildOptions(microbatch=2), "takes no microbatch"),
        (one, BuildOptions(layers=0), "--layers 0"),
        (one, BuildOptions(microbatch=-1), "--microbatch -1"),
    ):
        with pytest.raises(UsageError) as caught:
            check_options(model, options)
        assert said in str(caught.value)


A, B, C = Module(), Module(), Module()
X = Tensor()


@pytest.mark.parametrize(
    ("modules", "places"),
    [
        ([A], (None, A, None)),
        ((on_device(A),), (None, A, None)),
        ([on_host(A), B], (A, B, None)),
        ([A, on_device(B)], (A, B, None)),
        ([on_host(A), on_device(B)], (A, B, None)),
        ([on_device(A), B], (None, A, B)),
        ([A, on_host(B)], (None, A, B)),
        ([A, B, C], (A, B, C)),
        ([on_host(A), on_device(B), C], (A, B, C)),
    ],
)
def test_where_modules_run(modules: Any, places: Any) -> None:
    made = arrange_modules(model_of(), (modules, [X, X]), Module, Tensor)
    assert made == Pipeline(places[0], places[1], places[2], (X, X))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "it returned None"),
        (A, "it returned an object of type Module"),
        ([A], "a list of 1"),
        (([A], [X], 1), "a tuple of 3"),
        ((A, [X]), "of type Module, expected one to three modules"),
        (([], [X]), "a list of 0, expected one to three modules"),
        (([A, B, C, A], [X]), "a list of 4, expected one to three modules"),
        (([X], [X]), "module 0 is an object of type Tensor"),
        (([on_host(X), A], [X]), "module 0 is an object of type Tensor"),
        (([A], X), "of type Tensor, expected a list of input tensors"),
        (([A], []), "a list of 0, expected a list of input tensors"),
        (([A], [X, 5]), "input 1 is an object of type int"),
        (([A], {"x": X}), "of type dict, expected a list of input tensors"),
        (([A, B], [X]), "without marking the one that runs on the host"),
        (([on_host(A)], [X]), "its modules run on: host"),
        (([on_host(A), on_host(B)], [X]), "its modules run on: host, host"),
        (([on_device(A), on_device(B)], [X]), "its modules run on: device, device"),
        (([on_device(A), B, C], [X]), "its modules run on: device, ?, ?"),
        (([A, on_host(B), C], [X]), "its modules run on: ?, host, ?"),
    ],
)
def test_wrong_return_values_name_the_function_and_its_line(returned: Any, said: str) -> None:
    model = model_of()
    with pytest.raises(ModelError) as caught:
        arrange_modules(model, returned, Module, Tensor)
    (problem,) = caught.value.problems
    assert said in problem.message
    assert (problem.line, problem.field) == (model.line, "model")


def test_what_pybudas_functions_return_names_the_page_about_them() -> None:
    with pytest.raises(ModelError) as caught:
        arrange_modules(model_of(), ({"tt": A}, [X], (), {}), Module, Tensor)
    (problem,) = caught.value.problems
    assert problem.message == "it returned a tuple of 4"
    assert problem.hint.endswith("; docs/how-to/bench-models.md describes how to port a model file of PyBuda")
    assert problem.hint


def generative(**changed: Any) -> Generative:
    fields: dict[str, Any] = {"prefill": A, "decode": B, "inputs": [X], "position": 4, "tokens": 8}
    return Generative(**(fields | changed))


def test_generative_models_are_checked_too() -> None:
    made = generative()
    assert arrange_modules(model_of(), made, Module, Tensor) is made
    for changed, said in (
        ({"prefill": X}, "prefill of its Generative is an object of type Tensor"),
        ({"decode": on_device(A)}, "decode of its Generative is an object of type OnDevice"),
        ({"inputs": X}, "of type Tensor, expected a list of input tensors"),
        ({"inputs": []}, "a list of 0"),
        ({"position": 0}, "position of its Generative is 0"),
        ({"tokens": "8"}, "tokens of its Generative is '8'"),
        ({"tokens": True}, "tokens of its Generative is True"),
    ):
        with pytest.raises(ModelError, match=said):
            arrange_modules(model_of(), generative(**changed), Module, Tensor)


def test_declaring_models_is_light() -> None:
    statement = (
        "import sys, iree_gauntlet.bench, iree_gauntlet.torch_models.model_registry;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", statement], capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS
    )
    assert done.stdout.strip() == "[]"
