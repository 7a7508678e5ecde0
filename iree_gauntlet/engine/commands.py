"""The command lines of IREE's tools, in the order of the programs that people run today."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.cases import Argument, ArgumentOrder, Case, MadeValues, Module, OnnxImport, Parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# What onnxruntime was given and gave, unpacked in the folder of the step that compares with it.
REFERENCE_FLAGS = "--flagfile=arguments.txt"
STATISTICS_FILE = "--iree-scheduling-dump-statistics-file"
_DUMP_FLAGS = ("--iree-hal-dump-", "--dump-compilation-phases-to", "--mlir-print-ir-tree-dir")
_STATISTICS_FORMAT = "--iree-scheduling-dump-statistics-format"
# What a module that is counted says otherwise than its spec: for which CPU, and that its dispatches have names.
_CPU_FLAGS = ("iree-llvmcpu-target-cpu", "iree-llvmcpu-target-cpu-features")
_LINKER_FLAGS = ("iree-llvmcpu-link-embedded", "iree-llvmcpu-system-linker-path")
# What a count says itself. Workers that spin while they wait would be counted too.
_NOT_COUNTED = ("--benchmark_", "--device=")
_COUNTED_DEVICE = "--device=local-sync"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a case's files lie when its steps run.

    Attributes:
        module: path of a module's .vmfb.
        archive: path of an archive that the run makes; empty for none.
        artifact: path of a URL's file.
    """

    module: Callable[[Module], str]
    archive: Callable[[Parameters], str]
    artifact: Callable[[str], str]


def compile_flags(module: Module, statistics: str, splat: str) -> tuple[str, ...]:
    """A module's flags with the statistics written to our file, and the splat archive where it has one.

    A statistics flag of the spec keeps its place and gets our path: what it asks for is kept with the module. Without
    a path for them, nothing is added: they cost a small compile a twentieth of its time.
    """
    ours = {STATISTICS_FILE: statistics, _STATISTICS_FORMAT: "json"} if statistics else {}
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
    if options.least_opset is not None:
        argv += ["--least-opset", str(options.least_opset)]
    for name, shape in options.shapes:
        argv += ["--shape", f"{name}={shape_text(shape)}"]
    return tuple(argv)


def shape_text(shape: Sequence[int]) -> str:
    """`1x3x48x192`; `scalar` for no dimensions."""
    return "x".join(str(size) for size in shape) or "scalar"


def parameters_argv(
    python: str, program: str, scope: str, made: MadeValues, ir_tool: str, output: str
) -> tuple[str, ...]:
    """Our own program that makes an archive for the parameters of a program."""
    values = f"--splat={made.value!r}" if made.seed is None else f"--random={made.seed}"
    tool = (f"--ir-tool={ir_tool}",) if ir_tool else ()
    module = "iree_gauntlet.artifacts.parameters"
    return (python, "-m", module, program, f"--scope={scope}", values, *tool, "-o", output)


def threshold_argv(tool: str, case: Case, flags: Sequence[str], paths: Paths, folder: str) -> tuple[str, ...]:
    """`iree-run-module`, in the order of the case.

    Args:
        tool: its path.
        case: what is run.
        flags: the case's, as this toolchain spells them.
        paths: where its files lie.
        folder: the step's own, where outputs are written that the spec asks for.
    """
    inputs = [f"--input={argument_text(item, paths.artifact)}" for item in case.inputs]
    inputs += [REFERENCE_FLAGS] if case.reference else []
    expected = [f"--expected_output={argument_text(item, paths.artifact)}" for item in case.expected_outputs]
    if case.order is ArgumentOrder.MODULES_FIRST:
        loaded = [f"--module={paths.module(module)}" for module in case.modules]
        outputs = [f"--output={_format_output_text(item.value, folder)}" for item in case.outputs]
        return (tool, *loaded, *_list_parameter_flags(case.parameters, paths), *inputs, *outputs, *expected, *flags)
    return (
        tool,
        f"--device={case.device}",
        *(f"--module={paths.module(module)}" for module in case.modules),
        *((f"--function={case.function}",) if case.function else ()),
        *flags,
        *inputs,
        *expected,
        *_list_parameter_flags(case.parameters, paths),
        *(f"--module={paths.module(module)}" for module in case.extra_modules),
    )


def benchmark_argv(tool: str, case: Case, flags: Sequence[str], paths: Paths) -> tuple[str, ...]:
    """`iree-benchmark-module`, in the order of the case.

    Sharktank's is: device, function, dependencies with their parameters, inputs, flags, main module.
    """
    inputs = [f"--input={argument_text(item, paths.artifact)}" for item in case.inputs]
    json = "--benchmark_format=json"
    if case.order is ArgumentOrder.MODULES_FIRST:
        loaded = [f"--module={paths.module(module)}" for module in case.modules]
        return (tool, json, *loaded, *_list_parameter_flags(case.parameters, paths), *inputs, *flags)
    loaded = []
    dependencies = case.modules[:-1]
    for index, module in enumerate(dependencies):
        loaded.append(f"--module={paths.module(module)}")
        loaded += _list_parameter_flags(case.parameters[index : index + 1], paths)
    loaded += _list_parameter_flags(case.parameters[len(dependencies) :], paths)
    main = f"--module={paths.module(case.modules[-1])}"
    return (tool, f"--device={case.device}", f"--function={case.function}", *loaded, json, *inputs, *flags, main)


def counted_flags(flags: Sequence[str], cpu: str, linker: str) -> tuple[str, ...]:
    """Compile flags of a module whose instructions are counted.

    Args:
        flags: as the spec has them.
        cpu: to compile for, `x86-64-v3,-fma`; empty to leave what the spec says.
        linker: path of IREE's own; empty for the one that the compiler finds.
    """
    replaced = (*_LINKER_FLAGS, *(_CPU_FLAGS if cpu else ()))
    kept: list[str] = []
    is_value = False
    for flag in flags:
        name, equals, _ = flag.lstrip("-").partition("=")
        if name in replaced:
            is_value = not equals
        elif not (is_value and not flag.startswith("-")):
            kept.append(flag)
            is_value = False
    # A shared library instead of IREE's own kind of ELF: a counter knows its functions.
    kept.append("--iree-llvmcpu-link-embedded=false")
    kept += [f"--iree-llvmcpu-system-linker-path={linker} -flavor gnu"] if linker else []
    name, _, features = cpu.partition(",")
    kept += [f"--iree-llvmcpu-target-cpu={name}"] if name else []
    return (*kept, f"--iree-llvmcpu-target-cpu-features={features}") if features else tuple(kept)


def counted_argv(benchmark: Sequence[str]) -> tuple[str, ...]:
    """A benchmark's command for a count: on one thread, and how often it calls is the counter's matter."""
    return (benchmark[0], _COUNTED_DEVICE, *(word for word in benchmark[1:] if not word.startswith(_NOT_COUNTED)))


def _format_output_text(value: str, folder: str) -> str:
    """`@name` and `+name` as files of the step's folder; `-` as it is."""
    return f"{value[0]}{folder}/{value[1:]}" if value[:1] in ("@", "+") else value


def argument_text(argument: Argument, artifact: Callable[[str], str]) -> str:
    """`value`, `@file` or `value=@file`; a file whose name says its type needs no value."""
    if not argument.url:
        return argument.value
    path = artifact(argument.url)
    value = argument.value or _format_type_in_name(argument.url, path)
    return f"{value}=@{path}" if value else f"@{path}"


def _format_type_in_name(url: str, path: str) -> str:
    """The tensor type of a seeded file without a header: its URL names it (`random://normal/1x3xbf16?…`)."""
    parts = urlsplit(url)
    return unquote(parts.path.strip("/")) if parts.scheme == "random" and path.endswith(".bin") else ""


def _list_parameter_flags(parameters: Sequence[Parameters], paths: Paths) -> list[str]:
    flags = []
    for item in parameters:
        path = paths.artifact(item.url) if item.url else paths.archive(item)
        if path:
            flags.append(f"--parameters={item.scope}={path}" if item.scope else f"--parameters={path}")
    return flags


def makes_dumps(argv: Sequence[str]) -> bool:
    """Whether a compile is asked for files in addition to the module, which no cache entry has."""
    return any(flag.startswith(_DUMP_FLAGS) for flag in argv)
