"""The command lines of IREE's tools, in the order of the programs that people run today."""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.artifacts.program_parameters import archive_name
from iree_gauntlet.cases import COUNTED, MAIN, Argument, ArgumentOrder, Case, MadeValues, Module, OnnxImport, Parameters
from iree_gauntlet.device_kinds import LOCAL_SYNC
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


# What onnxruntime was given and gave, unpacked in the folder of the step that compares with it.
REFERENCE_FLAGS = "--flagfile=arguments.txt"
STATISTICS_FILE = "--iree-scheduling-dump-statistics-file"
_DUMP_FLAGS = ("--iree-hal-dump-", "--dump-compilation-phases-to", "--mlir-print-ir-tree-dir")
_STATISTICS_FORMAT = "--iree-scheduling-dump-statistics-format"
# What a module that is counted says otherwise than its spec: for which CPU, and that its dispatches have names.
_CPU_FLAGS = ("iree-llvmcpu-target-cpu", "iree-llvmcpu-target-cpu-features")
_LINKER_FLAGS = ("iree-llvmcpu-link-embedded", "iree-llvmcpu-system-linker-path")
# What a count says itself. Workers that spin while they wait would be counted too.
# A batch is reported as so many calls, however many it makes.
_NOT_COUNTED = ("--benchmark_", "--batch_", "--device=", "--module_mode")
# A module that is mapped takes no part of the heap, whatever its size is.
_COUNTED = (f"--device={LOCAL_SYNC.name}", "--module_mode=mmap")


def locate_step_folder(run_dir: Path, chain: str, stage: Stage, role: str = MAIN) -> str:
    """The folder of a step inside its run's."""
    case, _, target = chain.rpartition("@")
    name = stage.value if role == MAIN else f"{stage}.{role}"
    # iree-run-module reads `path@entry`, and iree-compile fills in a '%'.
    path = f"{case}.{target}"
    plain = re.sub(r"[@%]", "_", path)
    safe = plain if plain == path else f"{plain}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    return f"{run_dir}/steps/{safe}/{name}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps keep their files, and where a case's files lie when its steps run.

    Attributes:
        owners: the case in whose chain a module is made, by module id; a module that no spec defines has none.
        artifact: path of a URL's file.
        counted: whether modules, and what a compile makes beside them, are those whose instructions are counted.
    """

    run_dir: Path
    owners: Mapping[str, Case]
    artifact: Callable[[str], str]
    counted: bool = False

    def get_role(self, module: Module) -> str:
        """What distinguishes the step that compiles a module from others of its chain."""
        if not self.counted:
            return module.role
        return COUNTED if module.role == MAIN else f"{module.role}.{COUNTED}"

    def module_folder(self, module: Module) -> str:
        """The folder of the step that compiles a module."""
        owner = self.owners.get(module.id)
        if owner is None:
            return f"{self.run_dir}/steps/{module.name}.{module.target.name}/compile"
        return locate_step_folder(self.run_dir, owner.chain, Stage.COMPILE, self.get_role(module))

    def module(self, module: Module) -> str:
        """Path of a module's .vmfb."""
        return f"{self.module_folder(module)}/module.vmfb"

    def archive(self, parameters: Parameters) -> str:
        """Path of an archive that a step of the run makes; empty for one that is fetched, or that nothing makes."""
        if parameters.made is not None:
            made = parameters.made
            owner = self.owners.get(made.module.id)
            chain = owner.chain if owner else f"{made.module.name}.{made.module.target.name}"
            folder = locate_step_folder(self.run_dir, chain, Stage.PARAMETERS, parameters_role(parameters.scope, made))
            return f"{folder}/{archive_name(parameters.scope)}"
        if not parameters.splat_of:
            return ""
        owner = self.owners.get(parameters.splat_of)
        if owner is None:
            return f"{self.run_dir}/steps/{parameters.splat_of.replace('@', '.')}/splat.irpa"
        module = next(item for item in owner.modules if item.id == parameters.splat_of)
        return f"{self.module_folder(module)}/splat.irpa"

    def list_parameter_flags(self, parameters: Sequence[Parameters]) -> list[str]:
        """What names the archives of a run that there are."""
        paths = ((item.scope, self.artifact(item.url) if item.url else self.archive(item)) for item in parameters)
        return [f"--parameters={scope}={path}" if scope else f"--parameters={path}" for scope, path in paths if path]


def parameters_role(scope: str, made: MadeValues) -> str:
    """What distinguishes the step that makes an archive from others of its chain: kind of values and scope."""
    return f"{made.label}.{archive_name(scope).removesuffix('.irpa')}"


def with_statistics(flags: Sequence[str], path: str) -> tuple[str, ...]:
    """Compile flags with the statistics written to our file: they cost a small compile a twentieth of its time.

    A statistics flag of the spec keeps its place and gets our path: what it asks for is kept with the module.
    """
    ours = {STATISTICS_FILE: path, _STATISTICS_FORMAT: "json"}
    found: list[str] = []
    for flag in flags:
        name = f"--{flag.partition('=')[0].lstrip('-')}"
        found.append(f"{name}={ours.pop(name)}" if name in ours else flag)
    return (*found, *(f"{name}={value}" for name, value in ours.items()))


def import_argv(python: str, script: str, program: str, output: str, options: OnnxImport) -> tuple[str, ...]:
    """Prepares and imports an ONNX program, in the toolchain's own Python."""
    argv = [python, script, program, "-o", output]
    if options.opset is not None:
        argv += ["--opset", str(options.opset)]
    if options.least_opset is not None:
        argv += ["--least-opset", str(options.least_opset)]
    for name, shape in options.shapes:
        argv += ["--shape", f"{name}={format_shape(shape)}"]
    return tuple(argv)


def format_shape(shape: Sequence[int]) -> str:
    """`1x3x48x192`; `scalar` for no dimensions."""
    return "x".join(str(size) for size in shape) or "scalar"


def make_parameters_argv(
    python: str, program: str, scope: str, made: MadeValues, ir_tool: str, output: str
) -> tuple[str, ...]:
    """Our own program that makes an archive for the parameters of a program."""
    values = f"--splat={made.value!r}" if made.seed is None else f"--random={made.seed}"
    tool = (f"--ir-tool={ir_tool}",) if ir_tool else ()
    module = "iree_gauntlet.artifacts.parameters"
    return (python, "-m", module, program, f"--scope={scope}", values, *tool, "-o", output)


def make_threshold_argv(tool: str, case: Case, flags: Sequence[str], places: Places, folder: str) -> tuple[str, ...]:
    """`iree-run-module`, in the order of the case; its flags are as this toolchain spells them.

    Outputs that the spec asks for are written to the step's own `folder`.
    """
    inputs = [f"--input={format_argument(item, places.artifact)}" for item in case.inputs]
    inputs += [REFERENCE_FLAGS] if case.reference else []
    expected = [f"--expected_output={format_argument(item, places.artifact)}" for item in case.expected_outputs]
    if case.order is ArgumentOrder.MODULES_FIRST:
        loaded = [f"--module={places.module(module)}" for module in case.modules]
        # `@name` and `+name` are files of the step's folder; `-` is none.
        values = [item.value for item in case.outputs]
        values = [f"{value[0]}{folder}/{value[1:]}" if value[:1] in ("@", "+") else value for value in values]
        outputs = [f"--output={value}" for value in values]
        return (tool, *loaded, *places.list_parameter_flags(case.parameters), *inputs, *outputs, *expected, *flags)
    return (
        tool,
        f"--device={case.device}",
        *(f"--module={places.module(module)}" for module in case.modules),
        *((f"--function={case.function}",) if case.function else ()),
        *flags,
        *inputs,
        *expected,
        *places.list_parameter_flags(case.parameters),
        *(f"--module={places.module(module)}" for module in case.extra_modules),
    )


def make_benchmark_argv(tool: str, case: Case, flags: Sequence[str], places: Places) -> tuple[str, ...]:
    """`iree-benchmark-module`, in the order of the case.

    Sharktank's is: device, function, dependencies with their parameters, inputs, flags, main module.
    """
    inputs = [f"--input={format_argument(item, places.artifact)}" for item in case.inputs]
    json = "--benchmark_format=json"
    if case.order is ArgumentOrder.MODULES_FIRST:
        loaded = [f"--module={places.module(module)}" for module in case.modules]
        return (tool, json, *loaded, *places.list_parameter_flags(case.parameters), *inputs, *flags)
    loaded = []
    dependencies = case.modules[:-1]
    for index, module in enumerate(dependencies):
        loaded.append(f"--module={places.module(module)}")
        loaded += places.list_parameter_flags(case.parameters[index : index + 1])
    loaded += places.list_parameter_flags(case.parameters[len(dependencies) :])
    main = f"--module={places.module(case.modules[-1])}"
    return (tool, f"--device={case.device}", f"--function={case.function}", *loaded, json, *inputs, *flags, main)


def make_counted_flags(flags: Sequence[str], cpu: str, linker: str) -> tuple[str, ...]:
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
    # The compiler hands it to a shell.
    kept += [f"--iree-llvmcpu-system-linker-path={shlex.quote(linker)} -flavor gnu"] if linker else []
    name, _, features = cpu.partition(",")
    kept += [f"--iree-llvmcpu-target-cpu={name}"] if name else []
    return (*kept, f"--iree-llvmcpu-target-cpu-features={features}") if features else tuple(kept)


def make_counted_argv(benchmark: Sequence[str]) -> tuple[str, ...]:
    """A benchmark's command for a count: on one thread, and how often it calls is the counter's matter."""
    return (benchmark[0], *_COUNTED, *(word for word in benchmark[1:] if not word.startswith(_NOT_COUNTED)))


def format_argument(argument: Argument, artifact: Callable[[str], str]) -> str:
    """`value`, `@file` or `value=@file`; a file whose name says its type needs no value."""
    if not argument.url:
        return argument.value
    path, url = artifact(argument.url), urlsplit(argument.url)
    value = argument.value
    if not value and url.scheme == "random" and path.endswith(".bin"):
        # A seeded file without a header: its URL names its type (`random://normal/1x3xbf16?…`).
        value = unquote(url.path.strip("/"))
    return f"{value}=@{path}" if value else f"@{path}"


def makes_dumps(argv: Sequence[str]) -> bool:
    """Whether a compile is asked for files in addition to the module, which no cache entry has."""
    return any(flag.startswith(_DUMP_FLAGS) for flag in argv)
