"""The command lines of IREE's tools; arguments are in the order that each dialect's existing runner uses."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.artifacts.program_parameters import make_archive_name
from iree_gauntlet.cases import (
    COUNTED,
    MAIN,
    Argument,
    ArgumentOrder,
    Call,
    Case,
    Module,
    OnnxImport,
    Parameters,
    SyntheticParameters,
)
from iree_gauntlet.device_kinds import LOCAL_SYNC
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.flags import CPU_FLAGS
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


# The reference step's archive is unpacked into the threshold step's folder. Its `arguments.txt` is a flagfile with the
# inputs, and with onnxruntime's outputs as expected outputs.
REFERENCE_FLAGS = "--flagfile=arguments.txt"
# Flags of `workers/iree_side/run_calls.py`: the beginning of a call, a value of an earlier call as an input, and the
# mark of a call whose time counts.
_CALL_FLAG, _INPUT_FROM_FLAG, _TIMED_FLAG = "--call=", "--input_from=", "--timed"
_JSON_FLAG = "--benchmark_format=json"
STATISTICS_FILE = "--iree-scheduling-dump-statistics-file"
_DUMP_FLAGS = ("--iree-hal-dump-", "--dump-compilation-phases-to", "--mlir-print-ir-tree-dir")
_STATISTICS_FORMAT = "--iree-scheduling-dump-statistics-format"
# These flags are replaced for a module whose instructions are counted, as is its CPU: they set its kind of library.
_LINKER_FLAGS = ("iree-llvmcpu-link-embedded", "iree-llvmcpu-system-linker-path")
# A count drops these flags of the benchmark. Another device's workers would be counted while they spin. With a batch
# size N, each invocation is reported as N calls, whatever it really does.
_TIMING_FLAGS, _DEVICE_FLAG, _LOCAL_SYNC = ("--benchmark_", "--batch_"), "--device=", f"--device={LOCAL_SYNC.name}"
_COUNT_OVERRIDES = (*_TIMING_FLAGS, _DEVICE_FLAG, "--module_mode")
# The end of a benchmark's command that makes one call and prints the memory of the device's heaps; and the flag that,
# after these, makes no call, so that the memory is that of loading.
_ONE_CALL = (_JSON_FLAG, "--benchmark_repetitions=1", "--benchmark_min_time=1x", "--print_statistics")
LOADING_FLAG = "--benchmark_list_tests=true"
# A memory-mapped module takes no heap, so its size does not change the counts.
_COUNT_FLAGS = (_LOCAL_SYNC, "--module_mode=mmap")


def locate_step_folder(run_dir: Path, chain: str, stage: Stage, role: str = MAIN) -> str:
    """Return the folder of a step, which is inside the folder of its run."""
    case, _, target = chain.rpartition("@")
    name = stage.value if role == MAIN else f"{stage}.{role}"
    # Paths must not have "@" or "%": iree-run-module parses `path@entry`, and iree-compile expands "%".
    path = f"{case}.{target}"
    plain = re.sub(r"[@%]", "_", path)
    folder = plain if plain == path else f"{plain}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    return f"{run_dir}/steps/{folder}/{name}"


@dataclass(frozen=True, slots=True)
class StepPaths:
    """The paths of the files that steps make, and of the artifacts that they read.

    Attributes:
        owners: by module id, the case whose chain makes the module; modules that no spec defines are absent.
        artifact: returns the path of the file that a URL names.
        for_count: True if paths are those of the modules whose instructions are counted.
    """

    run_dir: Path
    owners: Mapping[str, Case]
    artifact: Callable[[str], str]
    for_count: bool = False

    def get_role(self, module: Module) -> str:
        """Return the role that distinguishes the step that compiles a module from others of its chain."""
        if not self.for_count:
            return module.role
        return COUNTED if module.role == MAIN else f"{module.role}.{COUNTED}"

    def module_folder(self, module: Module) -> str:
        """Return the folder of the step that compiles a module."""
        owner = self.owners.get(module.id)
        if owner is None:
            return f"{self.run_dir}/steps/{module.name}.{module.target.name}/compile"
        return locate_step_folder(self.run_dir, owner.chain, Stage.COMPILE, self.get_role(module))

    def module(self, module: Module) -> str:
        """Return the path of a module's .vmfb."""
        return f"{self.module_folder(module)}/module.vmfb"

    def archive(self, parameters: Parameters) -> str:
        """Return the path of an archive that a step of the run makes; empty if no step makes it."""
        if parameters.generated is not None:
            weights = parameters.generated
            owner = self.owners.get(weights.module.id)
            chain = owner.chain if owner else f"{weights.module.name}.{weights.module.target.name}"
            folder = locate_step_folder(
                self.run_dir, chain, Stage.PARAMETERS, make_parameters_role(parameters.scope, weights)
            )
            return f"{folder}/{make_archive_name(parameters.scope)}"
        if not parameters.splat_of:
            return ""
        owner = self.owners.get(parameters.splat_of)
        if owner is None:
            return f"{self.run_dir}/steps/{parameters.splat_of.replace('@', '.')}/splat.irpa"
        module = next(candidate for candidate in owner.modules if candidate.id == parameters.splat_of)
        return f"{self.module_folder(module)}/splat.irpa"

    def list_parameter_flags(self, parameters: Sequence[Parameters]) -> list[str]:
        """Return a flag for each parameter archive that is fetched or made."""
        paths = ((entry.scope, self.artifact(entry.url) if entry.url else self.archive(entry)) for entry in parameters)
        return [f"--parameters={scope}={path}" if scope else f"--parameters={path}" for scope, path in paths if path]


def make_parameters_role(scope: str, weights: SyntheticParameters) -> str:
    """Return the role of the step that makes an archive: the kind of its weights, and its scope."""
    return f"{weights.label}.{make_archive_name(scope).removesuffix('.irpa')}"


def add_statistics_flags(flags: Sequence[str], path: str) -> tuple[str, ...]:
    """Return compile flags that write statistics to `path`; statistics make a small compile about 5 % slower.

    A statistics flag of the spec keeps its position, but its file becomes `path`, which is cached with the module.
    """
    overrides = {STATISTICS_FILE: path, _STATISTICS_FORMAT: "json"}
    new_flags: list[str] = []
    for flag in flags:
        name = f"--{flag.partition('=')[0].lstrip('-')}"
        new_flags.append(f"{name}={overrides.pop(name)}" if name in overrides else flag)
    return (*new_flags, *(f"{name}={value}" for name, value in overrides.items()))


def make_import_argv(python: str, script: str, program: str, output: str, options: OnnxImport) -> tuple[str, ...]:
    """Return the command by which a Python prepares and imports an ONNX program; without options, one of TFLite."""
    argv = [python, script, program, "-o", output]
    if options.opset is not None:
        argv += ["--opset", str(options.opset)]
    if options.least_opset is not None:
        argv += ["--least-opset", str(options.least_opset)]
    for name, shape in options.shapes:
        argv += ["--shape", f"{name}={format_shape(shape)}"]
    return tuple(argv)


def format_import_options(options: OnnxImport) -> str:
    """Format the options of an import for the keys of what depends on it."""
    fields = [options.opset, [[name, format_shape(shape)] for name, shape in options.shapes]]
    return json.dumps(fields if options.least_opset is None else [*fields, options.least_opset])


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape as `1x3x48x192`; `scalar` for no dimensions."""
    return "x".join(str(size) for size in shape) or "scalar"


def make_parameters_argv(
    python: str, program: str, scope: str, weights: SyntheticParameters, ir_tool: str, output: str
) -> tuple[str, ...]:
    """Return the command by which the toolkit makes an archive for the parameters of a program."""
    values = f"--splat={weights.value!r}" if weights.seed is None else f"--random={weights.seed}"
    tool = (f"--ir-tool={ir_tool}",) if ir_tool else ()
    module = "iree_gauntlet.artifacts.parameters"
    return (python, "-m", module, program, f"--scope={scope}", values, *tool, "-o", output)


def make_threshold_argv(
    tool: str, python: str, case: Case, flags: Sequence[str], paths: StepPaths, folder: str
) -> tuple[str, ...]:
    """Return the command of `iree-run-module` in the case's order of arguments; of a worker for several calls.

    `flags` are spelt as this toolchain spells them. Outputs that the spec requests are written to the step's `folder`.
    """
    if len(case.calls) > 1:
        return _make_calls_argv(python, case, (*flags, f"--outputs={folder}"), paths)
    call = case.calls[0]
    inputs, checks = _list_call_flags(call, paths)
    inputs += [REFERENCE_FLAGS] if case.reference else []
    if case.order is ArgumentOrder.MODULES_FIRST:
        modules = [f"--module={paths.module(module)}" for module in case.modules]
        # `@name` and `+name` become files in the step's folder; `-` is standard output.
        values = [argument.value for argument in case.outputs]
        values = [f"{value[0]}{folder}/{value[1:]}" if value[:1] in ("@", "+") else value for value in values]
        outputs = [f"--output={value}" for value in values]
        return (tool, *modules, *paths.list_parameter_flags(case.parameters), *inputs, *outputs, *checks, *flags)
    return (
        tool,
        f"--device={case.device}",
        *(f"--module={paths.module(module)}" for module in case.modules),
        *((f"--function={call.function}",) if call.function else ()),
        *flags,
        *inputs,
        *checks,
        *paths.list_parameter_flags(case.parameters),
        *(f"--module={paths.module(module)}" for module in case.pipeline_modules),
    )


def _list_call_flags(call: Call, paths: StepPaths) -> tuple[list[str], list[str]]:
    """Return the flags of a call's inputs, and of its expected outputs."""
    inputs = [
        _INPUT_FROM_FLAG + argument.value_of
        if argument.value_of
        else f"--input={format_argument(argument, paths.artifact)}"
        for argument in call.inputs
    ]
    return inputs, [f"--expected_output={format_argument(entry, paths.artifact)}" for entry in call.expected_outputs]


def _make_calls_argv(python: str, case: Case, flags: Sequence[str], paths: StepPaths) -> tuple[str, ...]:
    """Return the command of a worker that makes a case's calls."""
    modules = (*case.modules, *case.pipeline_modules)
    argv = [python, str(Path(iree_side.__file__).with_name("run_calls.py")), f"--device={case.device}"]
    argv += [f"--module={paths.module(module)}" for module in modules]
    argv += [*paths.list_parameter_flags(case.parameters), *flags]
    for call in case.calls:
        inputs, checks = _list_call_flags(call, paths)
        timed = [_TIMED_FLAG] if call.is_timed else []
        argv += [_CALL_FLAG + call.function, *timed, *inputs, *(f"--changes={text}" for text in call.changes), *checks]
    return tuple(argv)


def split_calls(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the flags of each call of a command that makes several; empty for the command of a tool of IREE."""
    starts = [index for index, word in enumerate(argv) if word.startswith(_CALL_FLAG)]
    return [tuple(argv[start:end]) for start, end in pairwise([*starts, len(argv)])]


def make_benchmark_argv(tool: str, python: str, case: Case, flags: Sequence[str], paths: StepPaths) -> tuple[str, ...]:
    """Return the command of `iree-benchmark-module` in the case's order of arguments; of a worker for several calls.

    Sharktank's order is: device, function, dependencies with their parameters, inputs, flags, main module.
    """
    if len(case.calls) > 1:
        return _make_calls_argv(python, case, (_JSON_FLAG, *flags), paths)
    call = case.calls[0]
    inputs, _ = _list_call_flags(call, paths)
    if case.order is ArgumentOrder.MODULES_FIRST:
        modules = [f"--module={paths.module(module)}" for module in case.modules]
        return (tool, _JSON_FLAG, *modules, *paths.list_parameter_flags(case.parameters), *inputs, *flags)
    modules = []
    dependencies = case.modules[:-1]
    for index, module in enumerate(dependencies):
        modules.append(f"--module={paths.module(module)}")
        modules += paths.list_parameter_flags(case.parameters[index : index + 1])
    modules += paths.list_parameter_flags(case.parameters[len(dependencies) :])
    main = f"--module={paths.module(case.modules[-1])}"
    return (tool, f"--device={case.device}", f"--function={call.function}", *modules, _JSON_FLAG, *inputs, *flags, main)


def make_counted_flags(flags: Sequence[str], cpu: str, linker: str) -> tuple[str, ...]:
    """Return the compile flags of a module whose instructions are counted.

    Args:
        flags: the compile flags of the spec.
        cpu: the CPU to compile for, such as `x86-64-v3,-fma`; empty for the CPU of the spec.
        linker: the path of IREE's own linker; empty to use the linker that the compiler finds.
    """
    overridden_names = (*_LINKER_FLAGS, *(CPU_FLAGS if cpu else ()))
    new_flags: list[str] = []
    may_be_dropped_value = False
    for flag in flags:
        name, equals, _ = flag.lstrip("-").partition("=")
        if name in overridden_names:
            may_be_dropped_value = not equals
        elif not (may_be_dropped_value and not flag.startswith("-")):
            new_flags.append(flag)
            may_be_dropped_value = False
    # Make a shared library instead of IREE's embedded ELF, since a counter can read its function names.
    new_flags.append("--iree-llvmcpu-link-embedded=false")
    # The path is quoted because the compiler passes it to a shell.
    new_flags += [f"--iree-llvmcpu-system-linker-path={shlex.quote(linker)} -flavor gnu"] if linker else []
    name, _, features = cpu.partition(",")
    new_flags += [f"--iree-llvmcpu-target-cpu={name}"] if name else []
    return (*new_flags, f"--iree-llvmcpu-target-cpu-features={features}") if features else tuple(new_flags)


def make_counted_argv(benchmark: Sequence[str]) -> tuple[str, ...]:
    """Return a benchmark's command for a count, which runs on one thread; the counter sets the number of calls."""
    return (benchmark[0], *_COUNT_FLAGS, *(flag for flag in benchmark[1:] if not flag.startswith(_COUNT_OVERRIDES)))


def make_memory_argv(benchmark: Sequence[str], *, on_cpu: bool) -> tuple[str, ...]:
    """Return a benchmark's command that makes one call and prints the memory of the device's heaps.

    On a CPU, the call is made on local-sync: the statistics of local-task leave out the buffers that a call allocates
    (observed with 3.13; 3.9 has them).
    """
    words = [flag for flag in benchmark if not flag.startswith(_TIMING_FLAGS)]
    if on_cpu:
        words = [_LOCAL_SYNC if flag.startswith(_DEVICE_FLAG) else flag for flag in words]
    return (*words, *_ONE_CALL)


def strip_file_path(word: str) -> str:
    """Return a word of a benchmark's command without its file's path; the cache key has the file's content instead."""
    flag, _, value = word.partition("=")
    match flag:
        case "--module":
            return flag
        case "--input":
            return word.partition("@")[0]
        case "--parameters":
            scope, separator, _ = value.partition("=")
            return f"{flag}={scope}=" if separator else flag
        case _:
            return word


def make_tuning_argv(
    python: str, compile_argv: Sequence[str], compile_folder: str, folder: str, output: str
) -> tuple[str, ...]:
    """Return the command that counts the dispatches which a compile's tuning spec matches.

    The command compiles again, into `folder`, because other steps read the files in `compile_folder`.
    """
    words = (word.replace(f"={compile_folder}/", f"={folder}/") for word in compile_argv)
    return (python, "-m", "iree_gauntlet.measuring.profiles.tuned_dispatches", "-o", output, "--", *words)


def format_argument(argument: Argument, artifact: Callable[[str], str]) -> str:
    """Format as `value`, `@file` or `type=@file`; a raw `random:` file without a type gets the one in its URL."""
    if not argument.url:
        return argument.value
    path, url = artifact(argument.url), urlsplit(argument.url)
    value = argument.value
    if not value and url.scheme == "random" and path.endswith(".bin"):
        # The file has no header, but its URL names its type (`random://normal/1x3xbf16?…`).
        value = unquote(url.path.strip("/"))
    return f"{value}=@{path}" if value else f"@{path}"


def makes_dumps(argv: Sequence[str]) -> bool:
    """Return True if a compile writes dumps next to the module; cache entries do not contain dumps."""
    return any(flag.startswith(_DUMP_FLAGS) for flag in argv)
