"""Benchmark models: the decorator that declares one, its record, and the checks of how it is declared.

The form is that of the document of PyBuda's `benchmark.py`; its own model files are brought over by hand
(docs/how-to/bench-models.md). A file of a models folder is imported for `--list` too, in a Python that may lack torch:
nothing here imports more than the standard library.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, overload

from iree_gauntlet.torch_models.declarations import FROM_PYBUDA, Declaration, DeclarationError, declaring, given_by_name

# What a model function may take, each by its name.
PASSED = ("training", "config", "force_num_layers", "microbatch", "dataformat")

_CONFIG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_PYBUDAS = frozenset({"devtype", "arch", "data_type", "math_fidelity"})

Function = TypeVar("Function", bound="Callable[..., Any]")


class ModelError(DeclarationError):
    """Benchmark models that cannot be used as they are written; holds every problem with its file and line."""

    files = "benchmark models"


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A torch module that is compiled and runs on the device."""

    module: Any


@dataclass(frozen=True, slots=True)
class OnHost:
    """A torch module that runs in torch on the host, before or after the device's."""

    module: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Generative:
    """A model that makes tokens one after the other, keeping a cache on the device between them.

    Both modules are compiled; they may share weights, which then count once. All shapes are fixed: a cache has
    room for `position + tokens - 1` entries from the start, and `decode` masks those that are not written yet.

        logits, *state = prefill(*inputs)
        repeat tokens - 1 times, with position, position + 1, ...:
            token = argmax(logits)
            logits, *new = decode(token, position, *state);  state[:len(new)] = new

    So what changes comes first in the state (the decoder's own keys and values), and what prefill computes once
    (the keys and values of an encoder's output) comes after it and is not returned by `decode`.

    Attributes:
        prefill: takes the inputs; returns the logits of the next token, [batch, vocabulary], and the state.
        decode: takes the token, int64 [batch, 1], its position, int64 [1], and the state; returns the logits of
            the next token, and the new values of the first parts of the state.
        inputs: of `prefill`, torch tensors.
        position: of the token that `decode` is given first: the length of the prompt.
        tokens: how many are made for each sample, the one that prefill gives included.
    """

    prefill: Any
    decode: Any
    inputs: Sequence[Any]
    position: int
    tokens: int


def on_device(module: Any) -> OnDevice:
    """Say that a module runs on the device."""
    return OnDevice(module)


def on_host(module: Any) -> OnHost:
    """Say that a module runs in torch on the host; the time that it takes is measured with the device's."""
    return OnHost(module)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkModel(Declaration):
    """A declared model; its name is that of the function.

    Attributes:
        configs: in the order of the decorator; empty where there are none.
        accepts: those of `PASSED` that the function takes.
    """

    function: Callable[..., Any] = field(repr=False)
    configs: tuple[str, ...]
    parameters: Mapping[str, int]
    accepts: frozenset[str]
    required: frozenset[str]
    module: str

    what: ClassVar[str] = "a model"
    documented: ClassVar[str] = "see docs/how-to/bench-models.md"
    error: ClassVar[type[DeclarationError]] = ModelError

    @classmethod
    def hint(cls, function: Callable[..., Any]) -> str:
        """Of a function of PyBuda's own, what becomes of it here."""
        return cls.documented if _PYBUDAS.isdisjoint(inspect.signature(function).parameters) else FROM_PYBUDA

    @classmethod
    def check_name(cls, name: object, messages: list[str]) -> None:
        """Refuse a lambda's."""
        if not str(name).isidentifier():
            messages.append(f"{name} is no name of a model; declare it with def")

    def parameter_count(self, config: str | None = None) -> int | None:
        """The declared number of parameters of a configuration; None where nothing is declared."""
        return self.parameters.get(config or "")


@overload
def benchmark_model(function: Function, /) -> Function: ...


@overload
def benchmark_model(
    *, configs: Sequence[str] | None = None, parameters: Mapping[str, int] | int | None = None
) -> Callable[[Function], Function]: ...


def benchmark_model(
    function: Callable[..., Any] | None = None,
    /,
    *,
    configs: Sequence[str] | None = None,
    parameters: Mapping[str, int] | int | None = None,
) -> Callable[..., Any]:
    """Declare a function as a model that can be benchmarked; its name is the model's. The function stays as it is.

    The function takes `training: bool`, `config: str` where there are configurations, and, where they mean
    something to it, `force_num_layers`, `microbatch` and `dataformat`. It returns a list of torch modules,
    `[device]` or `[pre, device, post]`, and a list of input tensors; of two modules, one is marked with `on_host`
    or `on_device`. A model that generates tokens returns a `Generative`.

    Args:
        function: where the decorator stands without parentheses.
        configs: the names of the configurations.
        parameters: number of parameters by configuration, one number where there are none; shown in lists, and
            checked whenever the model is built.

    Raises:
        ModelError: where the function cannot be called by these names, or they contradict the decorator.
    """

    def fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        names = _configs(configs, messages)
        accepts, required = _signature(function, names, messages)
        return {
            "configs": names,
            "parameters": _parameters(parameters, names, messages),
            "accepts": accepts,
            "required": required,
            "module": function.__module__,
        }

    declare = declaring(BenchmarkModel, fields)
    return declare if function is None else declare(function)


def _configs(configs: object, messages: list[str]) -> tuple[str, ...]:
    if configs is None:
        return ()
    if isinstance(configs, str) or not isinstance(configs, Sequence) or not configs:
        messages.append(f'configs is a list of names, ["tiny", "base"], not {configs!r}')
        return ()
    messages.extend(
        f"configs: {name!r} is no name; letters, digits and . _ + - make one"
        for name in configs
        if not isinstance(name, str) or not _CONFIG.fullmatch(name)
    )
    names = tuple(dict.fromkeys(str(name) for name in configs))
    if len(names) < len(configs):
        messages.append(f"configs names one configuration twice: {list(configs)}")
    return names


def _signature(
    function: Callable[..., Any], configs: tuple[str, ...], messages: list[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """What the function takes, and what of it has no default."""
    found = given_by_name(function, PASSED, f"options give {', '.join(PASSED)}", messages)
    parameters = inspect.signature(function).parameters
    if "training" not in parameters:
        messages.append("it has no parameter `training: bool`")
    if configs and "config" not in parameters:
        messages.append("the decorator names configs, and it has no parameter `config: str`")
    if "config" in found and not configs:
        messages.append('it has a parameter config, and the decorator names none: @benchmark_model(configs=["tiny"])')
    return frozenset(found), frozenset(name for name, needed in found.items() if needed)


def _parameters(parameters: object, configs: tuple[str, ...], messages: list[str]) -> dict[str, int]:
    if parameters is None:
        return {}
    if isinstance(parameters, Mapping):
        if not configs:
            messages.append("parameters is one number where there are no configs")
            return {}
        counts = dict(parameters)
        unknown = [name for name in counts if name not in configs]
        if unknown:
            messages.append(f"parameters: no configuration is named {', '.join(map(repr, unknown))}")
    elif configs:
        messages.append("parameters is a mapping of each configuration to its number where there are configs")
        return {}
    else:
        counts = {"": parameters}
    messages.extend(
        f"parameters: {count!r} is no number of parameters"
        for count in counts.values()
        if not isinstance(count, int) or isinstance(count, bool) or count < 1
    )
    return counts
