"""Benchmark models: the decorator that declares a model, loading models folders, and calling a model with options.

The form is that of PyBuda's `benchmark.py` (docs/how-to/bench-models.md). `--list` also imports the files of a models
folder, in a Python that may lack torch, so this module imports only the standard library.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from iree_gauntlet.errors import GauntletError, Problem, UsageError
from iree_gauntlet.settings import format_path, resolve_links
from iree_gauntlet.torch_models.declarations import (
    INSTALL_HINT,
    PYBUDA_HINT,
    Declaration,
    DeclarationError,
    Function,
    collect_declarations,
    find_named_parameters,
    make_decorator,
    make_failure_problem,
    make_unknown_name_error,
    sort_by_name,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from iree_gauntlet.torch_models.build_files import BuildOptions, BuildPlan


# The keyword parameters that a model function may have.
MODEL_PARAMETERS = ("training", "config", "force_num_layers", "microbatch", "dataformat")

_CONFIG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_PYBUDA_NAMES = frozenset({"devtype", "arch", "data_type", "math_fidelity"})

_PACKAGE_PREFIX = "_gauntlet_models_"
_DECLARATION_HINT = "a model is a function under @benchmark_model, see docs/how-to/bench-models.md"
_LATE_IMPORT = "; to list models without that package, import it inside the functions"


class ModelError(DeclarationError):
    """An error for benchmark models that cannot be used as written; it holds every problem with its file and line."""

    files_noun = "benchmark models"


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A torch module that is compiled and runs on the device."""

    module: Module


@dataclass(frozen=True, slots=True)
class OnHost:
    """A torch module that runs in torch on the host, before or after the device's module."""

    module: Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Generative:
    """A model that generates tokens one after the other, with a cache that stays on the device.

    Both modules are compiled; they may share weights, which then count once. All shapes are fixed: a cache has
    `position + tokens - 1` entries from the start, and `decode` masks the entries that are not written yet.

        logits, *state = prefill(*inputs)
        repeat tokens - 1 times, with position, position + 1, ...:
            token = argmax(logits)
            logits, *new = decode(token, position, *state);  state[:len(new)] = new

    So the parts of the state that change (the decoder's keys and values) come first. The parts that prefill computes
    once (the keys and values of an encoder's output) come after them, and `decode` does not return them.

    Attributes:
        prefill: takes the inputs; returns the logits of the next token, [batch, vocabulary], and the state.
        decode: takes the token, int64 [batch, 1], its position, int64 [1], and the state; returns the logits of
            the next token, and the new values of the first parts of the state.
        inputs: inputs of `prefill`, torch tensors.
        position: position of the first token that `decode` gets, which is the length of the prompt.
        tokens: number of tokens to generate for each sample, including prefill's token.
    """

    prefill: Module
    decode: Module
    inputs: Sequence[Tensor]
    position: int
    tokens: int


def on_device(module: Module) -> OnDevice:
    """Mark a module to run on the device."""
    return OnDevice(module)


def on_host(module: Module) -> OnHost:
    """Mark a module to run in torch on the host; its time is measured together with the device's."""
    return OnHost(module)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkModel(Declaration):
    """A declared model; it has the function's name.

    Attributes:
        parameter_counts: the declared number of parameters by configuration; `""` without configurations.
        accepts: the parameters of `MODEL_PARAMETERS` that the function takes.
    """

    function: Callable[..., Any] = field(repr=False)
    configs: tuple[str, ...]
    parameter_counts: Mapping[str, int]
    accepts: frozenset[str]
    required: frozenset[str]
    module: str

    noun: ClassVar[str] = "a model"
    docs_reference: ClassVar[str] = "see docs/how-to/bench-models.md"
    error: ClassVar[type[DeclarationError]] = ModelError

    @classmethod
    def hint(cls, function: Callable[..., Any]) -> str:
        """Return a hint about PyBuda's models if the function has their parameters, else the documentation."""
        return cls.docs_reference if _PYBUDA_NAMES.isdisjoint(inspect.signature(function).parameters) else PYBUDA_HINT

    @classmethod
    def check_name(cls, name: object, messages: list[str]) -> None:
        """Reject a lambda's name."""
        if not str(name).isidentifier():
            messages.append(f"{name} is not a valid model name; declare the function with def")

    def parameter_count(self, config: str | None = None) -> int | None:
        """Return the declared number of parameters of a configuration; None without a declaration."""
        return self.parameter_counts.get(config or "")


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
    """Declare a function as a model that can be benchmarked; its name is the model's. The function stays unchanged.

    The function takes `training: bool`, `config: str` if there are configurations, and, if it supports them,
    `force_num_layers`, `microbatch` and `dataformat`. It returns a list of torch modules,
    `[device]` or `[pre, device, post]`, and a list of input tensors; of two modules, one is marked with `on_host`
    or `on_device`. A model that generates tokens returns a `Generative`.

    Args:
        function: the function, if the decorator has no parentheses.
        configs: the names of the configurations.
        parameters: number of parameters by configuration, one number without configurations; shown in lists, and
            checked whenever the model is built.

    Raises:
        ModelError: if the function has other parameters, or they contradict the decorator.
    """

    def read_fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        names = _check_configs(configs, messages)
        accepts, required = _read_signature(function, names, messages)
        return {
            "configs": names,
            "parameter_counts": _check_parameters(parameters, names, messages),
            "accepts": accepts,
            "required": required,
            "module": function.__module__,
        }

    declare = make_decorator(BenchmarkModel, read_fields)
    return declare if function is None else declare(function)


def _check_configs(configs: object, messages: list[str]) -> tuple[str, ...]:
    if configs is None:
        return ()
    if isinstance(configs, str) or not isinstance(configs, Sequence) or not configs:
        messages.append(f'configs is a list of names, ["tiny", "base"], not {configs!r}')
        return ()
    messages.extend(
        f"configs: {name!r} is not a valid name: use letters, digits and . _ + -"
        for name in configs
        if not isinstance(name, str) or not _CONFIG_NAME.fullmatch(name)
    )
    names = tuple(dict.fromkeys(str(name) for name in configs))
    if len(names) < len(configs):
        messages.append(f"configs lists a configuration twice: {list(configs)}")
    return names


def _read_signature(
    function: Callable[..., Any], configs: tuple[str, ...], messages: list[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the function's parameters, and the parameters without a default."""
    required_by_name = find_named_parameters(
        function, MODEL_PARAMETERS, f"options give {', '.join(MODEL_PARAMETERS)}", messages
    )
    parameters = inspect.signature(function).parameters
    if "training" not in parameters:
        messages.append("it has no parameter `training: bool`")
    if configs and "config" not in parameters:
        messages.append("the decorator lists configs, but the function has no parameter `config: str`")
    if "config" in required_by_name and not configs:
        messages.append(
            'the function has a parameter config, but no configs are declared: @benchmark_model(configs=["tiny"])'
        )
    return frozenset(required_by_name), frozenset(name for name, is_required in required_by_name.items() if is_required)


def _check_parameters(parameters: object, configs: tuple[str, ...], messages: list[str]) -> dict[str, int]:
    if parameters is None:
        return {}
    if isinstance(parameters, Mapping):
        if not configs:
            messages.append("parameters must be one number if there are no configs")
            return {}
        counts = dict(parameters)
        unknown = [name for name in counts if name not in configs]
        if unknown:
            messages.append(f"parameters: no configuration is named {', '.join(map(repr, unknown))}")
    elif configs:
        messages.append("parameters must map each configuration to its number if there are configs")
        return {}
    else:
        counts = {"": parameters}
    messages.extend(
        f"parameters: {count!r} is not a number of parameters"
        for count in counts.values()
        if not isinstance(count, int) or isinstance(count, bool) or count < 1
    )
    return counts


def discover(folders: Sequence[Path], skipped_problems: list[Problem] | None = None) -> dict[str, BenchmarkModel]:
    """Import every `*.py` of models folders whose name does not start with `_`, and collect the models by name.

    Each folder is a package with a private name, so that equal file names in two folders do not conflict and files
    import their siblings relatively (`from ._layers import Attention`). Each call reads the folders again.

    Args:
        folders: the models folders.
        skipped_problems: list that collects every problem of every file; None to raise an error.

    Raises:
        ModelError: with every problem of every file.
    """
    declarations: list[Declaration] = []
    problems: list[Problem] = []
    for folder in dict.fromkeys(resolve_links(folder) for folder in folders):
        with collect_declarations() as folder_declarations:
            folder_problems = _load_folder(folder)
        declarations += folder_declarations
        problems += folder_problems
        if not folder_declarations and not folder_problems:
            problems.append(
                Problem(str(format_path(folder)), 0, "", "no file in it declares a model", _DECLARATION_HINT)
            )
    models = sort_by_name(declarations, BenchmarkModel, problems)
    problems = list(dict.fromkeys(problems))
    if skipped_problems is not None:
        skipped_problems += problems
    elif problems:
        raise ModelError(problems)
    return models


def find_model(models: dict[str, BenchmarkModel], name: str) -> BenchmarkModel:
    """Return the model of a name."""
    if name not in models:
        raise make_unknown_name_error(f"no such benchmark model: {name!r}", name, models)
    return models[name]


def load_isolated(file: Path, prefix: str) -> tuple[list[Declaration], list[Problem]]:
    """Run a file independently of earlier runs; return its declarations and its problems.

    Args:
        file: the file; its name may be any.
        prefix: prefix of the module's private name; dataclasses and torch.compile look modules up by name.
    """
    with collect_declarations() as declarations:
        return declarations, _collect_problems(lambda: _run(file, _make_private_name(prefix, file)), file, file)


def find_sources(model: BenchmarkModel) -> tuple[Path, ...]:
    """Return the source files of a model in its folder: the model's file and the files that it imports, sorted.

    Imports are read from the source, including imports inside functions; imports by `importlib` are not seen.
    """
    # The root is the models folder; a model may be declared in a package inside it.
    depth = model.module.count(".")
    root = model.file.parents[depth if model.file.name == "__init__.py" else depth - 1]
    # A package's __init__.py runs before its modules.
    packages = [folder for folder in model.file.parents if folder.is_relative_to(root)]
    try:
        return find_imported_files([model.file, *(folder / "__init__.py" for folder in packages)], root)
    except SyntaxError as error:
        raise ModelError([make_failure_problem(error, root, model.file, 0, "")]) from error


def find_imported_files(starts: Iterable[Path], root: Path, package: str = "") -> tuple[Path, ...]:
    """Return the files below a folder that the start files run: these files and their imports, sorted.

    `package`: the folder's package name, for absolute imports; empty if its files import each other relatively.

    Raises:
        SyntaxError: one of the files is not valid Python.
    """
    files: set[Path] = set()
    queue = list(starts)
    while queue:
        file = queue.pop()
        if file not in files and file.is_file():
            files.add(file)
            for node in _walk_runtime_nodes(ast.parse(file.read_bytes(), filename=str(file))):
                if isinstance(node, ast.ImportFrom):
                    queue += _list_import_candidates(node, file, root, package)
    return tuple(sorted(files))


def _walk_runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a file except those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _walk_runtime_nodes(node)


def _list_import_candidates(node: ast.ImportFrom, file: Path, root: Path, package: str) -> Iterator[Path]:
    """Yield the files that an import may run below a folder: modules, and the `__init__.py` of parent packages."""
    parts = node.module.split(".") if node.module else []
    if node.level:
        path = file.parents[node.level - 1]
    elif package and f"{node.module}.".startswith(f"{package}."):
        path, parts = root, parts[len(package.split(".")) :]
    else:
        return
    if not path.is_relative_to(root):
        return
    for part in parts:
        path /= part
        yield path.with_suffix(".py")
        yield path / "__init__.py"
    for alias in node.names:
        yield path / f"{alias.name}.py"
        yield path / alias.name / "__init__.py"


def _make_private_name(prefix: str, path: Path) -> str:
    return prefix + hashlib.sha256(bytes(path)).hexdigest()[:16]


def _load_folder(folder: Path) -> list[Problem]:
    if not folder.is_dir():
        raise UsageError(f"no models folder {format_path(folder)}", "name an existing folder with --models_dir")
    files = sorted(path for path in folder.glob("*.py") if not path.name.startswith(("_", ".")) and path.is_file())
    if not files:
        raise UsageError(f"no *.py files in the models folder {format_path(folder)}", _DECLARATION_HINT)
    package = _make_private_name(_PACKAGE_PREFIX, folder)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    init = folder / "__init__.py"
    problems: list[Problem] = []
    if init.is_file():
        problems += _collect_problems(lambda: _run(init, package, folder), folder, init)
    else:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(folder)]
    for file in files:
        if "." in file.stem:
            hint = f"rename it to {file.stem.partition('.')[0]}.py"
            problems.append(Problem(str(format_path(file)), 0, "", "a module's name has no dot", hint))
        else:
            problems += _collect_problems(partial(importlib.import_module, f"{package}.{file.stem}"), folder, file)
    return problems


def _run(file: Path, name: str, folder: Path | None = None) -> None:
    """Run a file as the module `name`; with `folder`, as the package of that folder."""
    search = None if folder is None else [str(folder)]
    loader = SourceFileLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=search)
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules[name])


def _collect_problems(run: Callable[[], object], folder: Path, file: Path) -> list[Problem]:
    """Run a file, and return its problems."""
    try:
        run()
    except DeclarationError as error:
        return error.problems
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's file may raise anything, and the error has its name
        problem = make_failure_problem(error, folder, file, 0, "")
        return [replace(problem, hint=problem.hint + _LATE_IMPORT) if problem.hint == INSTALL_HINT else problem]
    return []


_Options = TypeVar("_Options", bound="BuildOptions")

_SEED = 0
_FORM = "return [device] or [pre, device, post], and a list of input tensors: return [module], [x]"
_MARK_HINT = "of two modules, mark one: return [on_host(pre), device], [x]"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Modules that run one after the other: `pre` and `post` in torch on the host, `device` compiled.

    The first module takes the inputs, and each following module takes the outputs of the module before.
    """

    pre: Module | None
    device: Module
    post: Module | None
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A built model."""

    model: BenchmarkModel
    options: BuildOptions
    content: Pipeline | Generative
    parameter_count: int
    samples: int


def check_options(model: BenchmarkModel, options: _Options) -> _Options:
    """Reject options that a model lacks; return the options, with the configuration filled in if there is only one."""
    config_names = ", ".join(model.configs)
    if options.config is None and len(model.configs) == 1:
        options = replace(options, config=model.configs[0])
    if model.configs and options.config is None:
        raise UsageError(f"{model.name}: no configuration is named", f"-c with one of {config_names}")
    if options.config is not None and options.config not in model.configs:
        hint = f"it has {config_names}" if model.configs else "it has none: leave out -c"
        raise UsageError(f"{model.name}: no such configuration: {options.config!r}", hint)
    if options.layers is not None:
        _check_option(model, "force_num_layers", "--layers", options.layers)
    if options.microbatch is not None:
        _check_option(model, "microbatch", "--microbatch", options.microbatch)
    return options


def _check_option(model: BenchmarkModel, parameter: str, option: str, value: int) -> None:
    if parameter not in model.accepts:
        hint = f"its function takes no {parameter}: {model.location}"
        raise UsageError(f"{model.name}: {option} does not apply to this model", hint)
    if value < 1:
        raise UsageError(f"{model.name}: {option} {value}", "expected a number of at least 1")


def choose_arguments(model: BenchmarkModel, options: BuildOptions) -> dict[str, object]:
    """Return the function's arguments for checked options, without arguments that are left to their defaults."""
    arguments: dict[str, object] = {"training": options.training, "dataformat": options.dataformat}
    arguments |= {} if options.config is None else {"config": options.config}
    if options.layers is not None or "force_num_layers" in model.required:
        arguments |= {"force_num_layers": options.layers}
    if options.microbatch is not None or "microbatch" in model.required:
        arguments |= {"microbatch": options.microbatch or 1}
    return {name: value for name, value in arguments.items() if name in model.accepts}


def make_planned_model(plan: BuildPlan) -> Instance:
    """Call the function of a plan's model; weights and inputs are the same in every process.

    Torch's generator is seeded for functions that do not seed it.
    """
    import torch  # noqa: PLC0415 - only where models are built

    model = find_model(discover([Path(path) for path in plan.models_dirs], []), plan.model)
    torch.manual_seed(_SEED)
    return instantiate(model, plan)


def instantiate(model: BenchmarkModel, options: BuildOptions) -> Instance:
    """Call the model's function and check its result; for inference, the modules are in evaluation mode.

    Raises:
        ModelError: if the function fails, or its result has another form than the documented ones, another number of
            samples than `microbatch`, or another number of parameters than the decorator declares.
    """
    options = check_options(model, options)
    try:
        import torch  # noqa: PLC0415 - only where models are built
    except ModuleNotFoundError as error:
        raise GauntletError(f"{model.name} cannot be built: {error}", INSTALL_HINT) from error
    with model.locate_errors():
        returned = model.function(**choose_arguments(model, options))
    content = arrange_modules(model, returned, torch.nn.Module, torch.Tensor)
    if isinstance(content, Generative) and options.training:
        raise UsageError(
            f"{model.name} is a generative model, which cannot be trained", f"leave out --training ({model.location})"
        )
    if isinstance(content, Generative):
        modules = [content.prefill, content.decode]
    else:
        modules = [module for module in (content.pre, content.device, content.post) if module is not None]
    if not options.training:
        for module in modules:
            module.eval()
    count = sum({id(weight): weight.numel() for module in modules for weight in module.parameters()}.values())
    declared_count = model.parameter_count(options.config)
    if declared_count is not None and options.layers is None and declared_count != count:
        suffix = f" of {options.config}" if options.config else ""
        raise model.make_error(
            f"the decorator declares {declared_count:,} parameters{suffix}, and the modules have {count:,}",
            f"correct the decorator: parameters … {count}",
        )
    shape = list(content.inputs[0].shape)
    samples = int(shape[0]) if shape else 1
    if options.microbatch not in {None, samples}:
        raise model.make_error(
            f"with a microbatch of {options.microbatch}, it returned a first input of shape {shape}",
            "the first dimension of the first input is the number of samples",
        )
    return Instance(model, options, content, count, samples)


def arrange_modules(
    model: BenchmarkModel, returned: object, module_type: type, tensor_type: type
) -> Pipeline | Generative:
    """Check a model function's result, and assign its modules to host and device."""
    if isinstance(returned, Generative):
        for name in ("prefill", "decode"):
            module = getattr(returned, name)
            if not isinstance(module, module_type):
                raise model.make_error(f"{name} of its Generative is {_describe_type(module)}, not a torch.nn.Module")
        for name in ("position", "tokens"):
            value = getattr(returned, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise model.make_error(f"{name} of its Generative is {value!r}; expected a number of at least 1")
        _check_inputs(model, returned.inputs, tensor_type)
        return returned
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        is_pybuda_form = isinstance(returned, tuple) and len(returned) == 4 and isinstance(returned[0], dict)
        raise model.make_error(
            f"it returned {_describe_type(returned)}", f"{_FORM}; {PYBUDA_HINT}" if is_pybuda_form else _FORM
        )
    modules, inputs = returned
    if not isinstance(modules, list | tuple) or not 1 <= len(modules) <= 3:
        raise model.make_error(f"it returned {_describe_type(modules)}, expected one to three modules", _FORM)
    for index, module in enumerate(modules):
        inner = module.module if isinstance(module, OnHost | OnDevice) else module
        if not isinstance(inner, module_type):
            raise model.make_error(f"module {index} is {_describe_type(inner)}, not a torch.nn.Module", _FORM)
    pre, device, post = _assign_modules(model, list(modules))
    return Pipeline(pre, device, post, _check_inputs(model, inputs, tensor_type))


def _assign_modules(model: BenchmarkModel, modules: list[Module]) -> tuple[Module | None, Module, Module | None]:
    """Return the modules before the device, on it and after it."""
    marks = [type(module) if isinstance(module, OnHost | OnDevice) else None for module in modules]
    if len(modules) == 2:
        if marks == [None, None]:
            raise model.make_error("it returned two modules without marking the one that runs on the host", _MARK_HINT)
        first_on_host = marks[0] is OnHost or (marks[0] is None and marks[1] is OnDevice)
        expected = [OnHost, OnDevice] if first_on_host else [OnDevice, OnHost]
    else:
        expected = [OnDevice] if len(modules) == 1 else [OnHost, OnDevice, OnHost]
    if any(mark not in {None, position} for mark, position in zip(marks, expected, strict=True)):
        positions = ", ".join("host" if mark is OnHost else "device" if mark is OnDevice else "?" for mark in marks)
        raise model.make_error(
            f"its modules run on: {positions}; exactly one must run on the device, at most one on either side", _FORM
        )
    plain = [module.module if isinstance(module, OnHost | OnDevice) else module for module in modules]
    index = expected.index(OnDevice)
    return ((plain[0] if index else None), plain[index], (plain[-1] if index < len(plain) - 1 else None))


def _check_inputs(model: BenchmarkModel, inputs: object, tensor_type: type) -> tuple[Tensor, ...]:
    if not isinstance(inputs, list | tuple) or not inputs:
        raise model.make_error(f"it returned {_describe_type(inputs)}, expected a list of input tensors", _FORM)
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, tensor_type):
            raise model.make_error(f"input {index} is {_describe_type(tensor)}, not a torch.Tensor", _FORM)
    return tuple(inputs)


def _describe_type(value: object) -> str:
    """Return a description of a value's type for messages, without its content."""
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__qualname__}"
