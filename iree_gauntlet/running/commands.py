"""The command lines of IREE's tools, in the order of the programs that people run today."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.cases import Argument, Case, Module, OnnxImport, Parameters

__all__ = [
    "STATISTICS_FILE",
    "Paths",
    "argument_text",
    "benchmark_argv",
    "compile_flags",
    "import_argv",
    "makes_dumps",
    "shape_text",
    "threshold_argv",
]

STATISTICS_FILE = "--iree-scheduling-dump-statistics-file"
_DUMP_FLAGS = ("--iree-hal-dump-", "--dump-compilation-phases-to", "--mlir-print-ir-tree-dir")
_STATISTICS_FORMAT = "--iree-scheduling-dump-statistics-format"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a case's files lie when its steps run.

    Attributes:
        module: path of a module's .vmfb.
        splat: path of the splat archive of a module, by module id.
        artifact: path of a URL's file.
    """

    module: Callable[[Module], str]
    splat: Callable[[str], str]
    artifact: Callable[[str], str]


def compile_flags(module: Module, statistics: str, splat: str) -> tuple[str, ...]:
    """A module's flags with the statistics written to our file, and the splat archive where it has one.

    A statistics flag of the spec keeps its place and gets our path: what it asks for is kept with the module.
    """
    ours = {STATISTICS_FILE: statistics, _STATISTICS_FORMAT: "json"}
    flags: list[str] = []
    for flag in module.flags:
        name = flag.split("=", 1)[0]
        value = ours.pop(f"--{name.lstrip('-')}", None)
        flags.append(flag if value is None else f"--{name.lstrip('-')}={value}")
    flags += [f"{name}={value}" for name, value in ours.items()]
    return (*flags, f"--iree-parameter-splat={splat}") if module.splat else tuple(flags)


def import_argv(python: str, script: str, program: str, output: str, options: OnnxImport) -> tuple[str, ...]:
    """Prepares and imports an ONNX program, in the toolchain's own Python."""
    argv = [python, script, program, "-o", output]
    if options.opset is not None:
        argv += ["--opset", str(options.opset)]
    for name, shape in options.shapes:
        argv += ["--shape", f"{name}={shape_text(shape)}"]
    return tuple(argv)


def shape_text(shape: Sequence[int]) -> str:
    """`1x3x48x192`; `scalar` for no dimensions."""
    return "x".join(str(size) for size in shape) or "scalar"


def threshold_argv(tool: str, case: Case, flags: Sequence[str], paths: Paths) -> tuple[str, ...]:
    """`iree-run-module`: device, module, function, threshold flags, inputs, expected outputs, parameters, pipeline."""
    return (
        tool,
        f"--device={case.device}",
        f"--module={paths.module(case.modules[-1])}",
        *((f"--function={case.function}",) if case.function else ()),
        *flags,
        *(f"--input={argument_text(item, paths.artifact)}" for item in case.inputs),
        *(f"--expected_output={argument_text(item, paths.artifact)}" for item in case.expected_outputs),
        *_parameter_flags(case.parameters, paths),
        *(f"--module={paths.module(module)}" for module in case.extra_modules),
    )


def benchmark_argv(tool: str, case: Case, flags: Sequence[str], paths: Paths) -> tuple[str, ...]:
    """`iree-benchmark-module`: device, function, dependencies with their parameters, inputs, flags, main module."""
    loaded: list[str] = []
    dependencies = case.modules[:-1]
    for index, module in enumerate(dependencies):
        loaded.append(f"--module={paths.module(module)}")
        loaded += _parameter_flags(case.parameters[index : index + 1], paths)
    loaded += _parameter_flags(case.parameters[len(dependencies) :], paths)
    return (
        tool,
        f"--device={case.device}",
        f"--function={case.function}",
        *loaded,
        "--benchmark_format=json",
        *(f"--input={argument_text(item, paths.artifact)}" for item in case.inputs),
        *flags,
        f"--module={paths.module(case.modules[-1])}",
    )


def argument_text(argument: Argument, artifact: Callable[[str], str]) -> str:
    """`value`, `@file` or `value=@file`; a file whose name says its type needs no value."""
    if not argument.url:
        return argument.value
    path = artifact(argument.url)
    value = argument.value or _type_in_name(argument.url, path)
    return f"{value}=@{path}" if value else f"@{path}"


def _type_in_name(url: str, path: str) -> str:
    """The tensor type of a seeded file without a header: its URL names it (`random://normal/1x3xbf16?…`)."""
    parts = urlsplit(url)
    return unquote(parts.path.strip("/")) if parts.scheme == "random" and path.endswith(".bin") else ""


def _parameter_flags(parameters: Sequence[Parameters], paths: Paths) -> list[str]:
    flags = []
    for item in parameters:
        path = paths.artifact(item.url) if item.url else paths.splat(item.splat_of) if item.splat_of else ""
        if path:
            flags.append(f"--parameters={item.scope}={path}" if item.scope else f"--parameters={path}")
    return flags


def makes_dumps(argv: Sequence[str]) -> bool:
    """Whether a compile is asked for files beside the module, which no cache entry has."""
    return any(flag.startswith(_DUMP_FLAGS) for flag in argv)
