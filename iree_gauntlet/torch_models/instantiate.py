"""A benchmark model with its options: whether they fit, the call of its function, and the check of what it returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.torch_models.declarations import FROM_PYBUDA, INSTALL_HINT
from iree_gauntlet.torch_models.model_registry import BenchmarkModel, Generative, OnDevice, OnHost, discover, find_model

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from iree_gauntlet.torch_models.build_files import BuildOptions, BuildPlan


_Told = TypeVar("_Told", bound="BuildOptions")

_SEED = 0
_SHAPE = "return [device] or [pre, device, post], and a list of input tensors: return [module], [x]"
_MARK = "of two modules, mark one: return [on_host(pre), device], [x]"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Modules that run one after the other: `pre` and `post` in torch on the host, `device` compiled.

    `pre` takes the inputs, each next module what the one before it returned.
    """

    pre: Module | None
    device: Module
    post: Module | None
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A model, built."""

    model: BenchmarkModel
    options: BuildOptions
    content: Pipeline | Generative
    parameter_count: int
    samples: int


def check_options(model: BenchmarkModel, options: _Told) -> _Told:
    """Refuse options that a model does not have, and name the configuration of a model that has one alone."""
    known = ", ".join(model.configs)
    if options.config is None and len(model.configs) == 1:
        options = replace(options, config=model.configs[0])
    if model.configs and options.config is None:
        raise UsageError(f"{model.name}: no configuration is named", f"-c with one of {known}")
    if options.config is not None and options.config not in model.configs:
        have = f"it has {known}" if model.configs else "it has none: leave out -c"
        raise UsageError(f"{model.name}: there is no configuration {options.config!r}", have)
    if options.layers is not None:
        _refuse_option(model, "force_num_layers", "--layers", options.layers)
    if options.microbatch is not None:
        _refuse_option(model, "microbatch", "--microbatch", options.microbatch)
    return options


def _refuse_option(model: BenchmarkModel, parameter: str, option: str, value: int) -> None:
    if parameter not in model.accepts:
        where = f"its function takes no {parameter}: {model.place}"
        raise UsageError(f"{model.name}: {option} means nothing to this model", where)
    if value < 1:
        raise UsageError(f"{model.name}: {option} {value}", "a number of 1 or more is expected")


def choose_arguments(model: BenchmarkModel, options: BuildOptions) -> dict[str, Any]:
    """What the function is called with by checked options: what it takes, less what is left to its defaults."""
    given: dict[str, Any] = {"training": options.training, "dataformat": options.dataformat}
    given |= {} if options.config is None else {"config": options.config}
    if options.layers is not None or "force_num_layers" in model.required:
        given |= {"force_num_layers": options.layers}
    if options.microbatch is not None or "microbatch" in model.required:
        given |= {"microbatch": options.microbatch or 1}
    return {name: value for name, value in given.items() if name in model.accepts}


def make_planned_model(plan: BuildPlan) -> Instance:
    """Calls the function of a plan's model: the same weights and inputs in every process that makes it.

    Torch's generator is seeded for functions that do not.
    """
    import torch  # noqa: PLC0415 - only where models are built

    model = find_model(discover([Path(path) for path in plan.models_dirs], []), plan.model)
    torch.manual_seed(_SEED)
    return instantiate(model, plan)


def instantiate(model: BenchmarkModel, options: BuildOptions) -> Instance:
    """Call the model's function and check what it returns; in inference its modules are in evaluation mode.

    Raises:
        ModelError: where the function fails, or returns something else than the documented forms, other
            samples than `microbatch`, or another number of parameters than the decorator declares.
    """
    options = check_options(model, options)
    try:
        import torch  # noqa: PLC0415 - only where models are built
    except ModuleNotFoundError as error:
        raise GauntletError(f"{model.name} cannot be built: {error}", INSTALL_HINT) from error
    with model.blamed():
        returned = model.function(**choose_arguments(model, options))
    content = arrange(model, returned, torch.nn.Module, torch.Tensor)
    if isinstance(content, Generative) and options.training:
        raise UsageError(f"{model.name} generates: there is no training of it", f"leave out --training ({model.place})")
    if isinstance(content, Generative):
        modules = [content.prefill, content.decode]
    else:
        modules = [module for module in (content.pre, content.device, content.post) if module is not None]
    if not options.training:
        for module in modules:
            module.eval()
    count = sum({id(weight): weight.numel() for module in modules for weight in module.parameters()}.values())
    declared = model.parameter_count(options.config)
    if declared is not None and options.layers is None and declared != count:
        of = f" of {options.config}" if options.config else ""
        raise model.problem(
            f"the decorator declares {declared:,} parameters{of}, and the modules have {count:,}",
            f"correct the decorator: parameters … {count}",
        )
    shape = list(content.inputs[0].shape)
    samples = int(shape[0]) if shape else 1
    if options.microbatch not in {None, samples}:
        raise model.problem(
            f"asked for a microbatch of {options.microbatch}, it returned a first input of shape {shape}",
            "the first dimension of the first input is the number of samples",
        )
    return Instance(model, options, content, count, samples)


def arrange(model: BenchmarkModel, returned: object, module_type: type, tensor_type: type) -> Pipeline | Generative:
    """Check what a model function returned, and say which module runs where."""
    if isinstance(returned, Generative):
        for name in ("prefill", "decode"):
            module = getattr(returned, name)
            if not isinstance(module, module_type):
                raise model.problem(f"{name} of its Generative is {_describe_kind(module)}, no torch.nn.Module")
        for name in ("position", "tokens"):
            value = getattr(returned, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise model.problem(f"{name} of its Generative is {value!r}; a number of 1 or more is expected")
        _check_inputs(model, returned.inputs, tensor_type)
        return returned
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        pybudas = isinstance(returned, tuple) and len(returned) == 4 and isinstance(returned[0], dict)
        raise model.problem(
            f"it returned {_describe_kind(returned)}", f"{_SHAPE}; {FROM_PYBUDA}" if pybudas else _SHAPE
        )
    modules, inputs = returned
    if not isinstance(modules, list | tuple) or not 1 <= len(modules) <= 3:
        raise model.problem(f"it returned {_describe_kind(modules)} where one to three modules are expected", _SHAPE)
    for index, module in enumerate(modules):
        inner = module.module if isinstance(module, OnHost | OnDevice) else module
        if not isinstance(inner, module_type):
            raise model.problem(f"module {index} is {_describe_kind(inner)}, no torch.nn.Module", _SHAPE)
    pre, device, post = _place_modules(model, list(modules))
    return Pipeline(pre, device, post, _check_inputs(model, inputs, tensor_type))


def _place_modules(model: BenchmarkModel, modules: list[Module]) -> tuple[Module | None, Module, Module | None]:
    """Which module runs before the device's, on it and after it."""
    marks = [type(module) if isinstance(module, OnHost | OnDevice) else None for module in modules]
    if len(modules) == 2:
        if marks == [None, None]:
            raise model.problem("it returned two modules, and nothing says which runs on the host", _MARK)
        first_on_host = marks[0] is OnHost or (marks[0] is None and marks[1] is OnDevice)
        expected = [OnHost, OnDevice] if first_on_host else [OnDevice, OnHost]
    else:
        expected = [OnDevice] if len(modules) == 1 else [OnHost, OnDevice, OnHost]
    if any(mark not in {None, place} for mark, place in zip(marks, expected, strict=True)):
        where = ", ".join("host" if mark is OnHost else "device" if mark is OnDevice else "?" for mark in marks)
        raise model.problem(
            f"its modules run on: {where}; exactly one runs on the device, with at most one either side", _SHAPE
        )
    bare = [module.module if isinstance(module, OnHost | OnDevice) else module for module in modules]
    at = expected.index(OnDevice)
    return (bare[0] if at else None), bare[at], (bare[-1] if at < len(bare) - 1 else None)


def _check_inputs(model: BenchmarkModel, inputs: object, tensor_type: type) -> tuple[Tensor, ...]:
    if not isinstance(inputs, list | tuple) or not inputs:
        raise model.problem(f"it returned {_describe_kind(inputs)} where a list of input tensors is expected", _SHAPE)
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, tensor_type):
            raise model.problem(f"input {index} is {_describe_kind(tensor)}, no torch.Tensor", _SHAPE)
    return tuple(inputs)


def _describe_kind(value: object) -> str:
    """A value as messages name it: what it is, not what is in it."""
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__qualname__}"
