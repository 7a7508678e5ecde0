"""The steps that make a module, import where the program is ONNX and compile, and those that make its parameters."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.artifacts.program_parameters import PARAMETERS_FORMAT, archive_name
from iree_gauntlet.cases import MadeValues, Module, OnnxImport
from iree_gauntlet.engine.commands import (
    STATISTICS_FILE,
    format_shape,
    import_argv,
    make_counted_argv,
    make_parameters_argv,
    makes_dumps,
    with_statistics,
)
from iree_gauntlet.engine.modules.module_key import join_flags
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import CacheLookup, Command, Step, StepInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.measuring.instructions.counters import Counter
    from iree_gauntlet.stages import Stage
    from iree_gauntlet.toolchains.flags import Translation


# Ingredients and inputs of this prefix are files that a flag or an ONNX file names; the flag's or their name follows.
FILE_ROLE = "file "
# A new number disowns all counts that were made before.
_COUNT_FORMAT = 4
_NO_ONNXRUNTIME = "onnxruntime, which makes the expected outputs, is not installed: pip install 'iree-gauntlet[record]'"


def import_step(step: Step, module: Module, options: OnnxImport, context: PlanContext) -> Step:
    """Completes the step that prepares and imports an ONNX program."""
    source, data = _make_source(module, context), _list_weights_beside(module, context)
    output = f"{step.folder}/program.mlir"
    ingredients = {
        "kind": "import",
        "program": source.sha256,
        "options": _format_options(module),
        "importer": context.importer,
        **_collect_hashes(data),
    }
    argv = import_argv(context.python, context.import_script, source.path, output, options)
    step = replace(step, inputs=(source, *data), outputs=(("program", output),), onnx=options)
    step = _plan_making(step, argv, ingredients, context)
    return replace(step, command=Command(argv, step.folder, context.python_env))


def parameters_step(step: Step, scope: str, made: MadeValues, imported: Step | None, context: PlanContext) -> Step:
    """Completes the step that makes an archive for the parameters of one scope.

    `imported` is the step that imports the program; None where that is MLIR.
    """
    source = _make_source(made.module, context)
    program = imported.output("program") if imported else source.path
    output = f"{step.folder}/{archive_name(scope)}"
    ingredients = {
        "kind": f"parameters {PARAMETERS_FORMAT}",
        "program": source.sha256,
        "scope": scope,
        "values": made.label,
    }
    if imported:
        ingredients |= {"import": _format_options(made.module), "importer": context.importer}
    argv = make_parameters_argv(context.own_python, program, scope, made, context.ir_tool, output)
    step = replace(step, inputs=(replace(source, path=program),), outputs=(("parameters", output),))
    return _plan_making(step, argv, ingredients, context)


def reference_step(step: Step, module: Module, context: PlanContext) -> Step:
    """Completes the step in which onnxruntime runs a module's ONNX program on synthetic inputs."""
    source, data = _make_source(module, context), _list_weights_beside(module, context)
    output = f"{step.folder}/reference.zip"
    ingredients = {
        "kind": "reference 2",
        "program": source.sha256,
        "inputs": "default_rng(0)",
        "onnxruntime": context.onnxruntime,
        **_collect_hashes(data),
    }
    argv = (context.own_python, context.reference_script, source.path, "-o", output)
    why_not = step.blocked or ("" if context.onnxruntime else _NO_ONNXRUNTIME)
    step = replace(step, inputs=(source, *data), outputs=(("reference", output),), blocked=why_not)
    return _plan_making(step, argv, ingredients, context)


def compile_step(
    step: Step,
    module: Module,
    imported: str,
    working_directory: str,
    context: PlanContext,
    translate: Callable[[Sequence[str], str], Translation],
) -> Step:
    """Completes the step that compiles a module.

    Args:
        step: what all steps of the case have in common.
        module: what is compiled.
        imported: path of the imported program; empty where the program is MLIR.
        working_directory: where relative paths in flags resolve; an imported program is compiled in the step's folder.
        context: what planning knows of the machine.
        translate: spells flags as the compiler does, and notes those that it does not know.
    """
    # Of an operator by itself nobody asks how many dispatches it has, unless the flags do.
    counted = not module.program.name or any(STATISTICS_FILE in flag for flag in module.flags)
    source = _make_source(module, context, working_directory)
    program = module.program.name or source.path
    if imported:
        # The compiler keeps the program's path in the module: one that is the same in every run and checkout.
        program, working_directory = os.path.relpath(imported, step.folder), step.folder
    # As the spec has them: many cases have the same flags.
    translation = translate(module.flags, "iree-compile")
    flags, notes = translation.flags, translation.notes
    outputs = [("module", f"{step.folder}/module.vmfb")]
    if counted:
        outputs.append(("statistics", f"{step.folder}/statistics.json"))
        flags = with_statistics(flags, outputs[-1][1])
    if module.splat:
        outputs.append(("splat", f"{step.folder}/splat.irpa"))
        splat = translate((f"--iree-parameter-splat={outputs[-1][1]}",), "iree-compile")
        flags, notes = (*flags, *splat.flags), (*notes, *splat.notes)
    files = [(flag, _make_file(flag, url, context)) for flag, url in module.file_flags]
    data = _list_weights_beside(module, context)
    ingredients = {
        "kind": "compile",
        "program": source.sha256,
        "flags": join_flags(context.flag_ingredients(flags, working_directory)),
        "compiler": context.compiler,
        "host": context.host_of(flags),
        **_collect_hashes((*data, *(item for _, item in files))),
    }
    if imported:
        ingredients |= {"import": _format_options(module), "importer": context.importer}
    elif module.program.name:
        # It is part of what the compiler writes into the module.
        ingredients["name"] = module.program.name
    named = (f"{flag}={item.path}" for flag, item in files)
    argv = (context.compile, program, *flags, *named, "-o", outputs[0][1])
    return replace(
        step,
        origin=module.origin,
        command=Command(argv, working_directory),
        inputs=(replace(source, path=imported or source.path), *data, *(item for _, item in files)),
        outputs=tuple(outputs),
        cache=_make_lookup(context, step.id, ingredients, argv),
        notes=notes,
    )


def count_step(
    step: Step, benchmark: Command, modules: Sequence[str], files: Sequence[StepInput], context: PlanContext
) -> Step:
    """Completes the step that counts the instructions of one call.

    Args:
        step: what all steps of the case have in common.
        benchmark: the benchmark's command, with the modules that are counted.
        modules: paths of them, the main one last.
        files: what it reads besides: inputs and parameters.
        context: as ever.
    """
    counter = context.counter()
    output = f"{step.folder}/counts.json"
    *others, main = modules
    inputs = [StepInput("program", main)]
    inputs += [StepInput(f"{FILE_ROLE}module {number}", path) for number, path in enumerate(others)]
    inputs += [replace(item, role=f"{FILE_ROLE}{item.role} {number}") for number, item in enumerate(files)]
    counted = make_counted_argv(benchmark.argv)
    plain = [_without_file(word) for word in counted[1:]]
    ingredients = {
        "kind": f"count {_COUNT_FORMAT}",
        "program": "",
        "flags": join_flags(context.flag_ingredients(plain, benchmark.cwd)),
        "tool": context.runtime,
        "counter": counter.identity,
        "cpu": counter.cpu,
        **_collect_hashes(inputs[1:]),
    }
    script = ("-m", "iree_gauntlet.measuring.instructions.count_call", f"--counter={counter.argument}")
    argv = (context.own_python, *script, "-o", output, "--", *counted)
    lookup = CacheLookup(reason="known when its module is made", ingredients=tuple(ingredients.items()))
    command = Command(argv, benchmark.cwd)
    return replace(step, command=command, inputs=tuple(inputs), outputs=(("counts", output),), cache=lookup)


def _without_file(word: str) -> str:
    """A word of a benchmark's command without the path of a file whose content is an ingredient of its own."""
    flag, _, value = word.partition("=")
    match flag:
        case "--module":
            return flag
        case "--input":
            return word.partition("@")[0]
        case "--parameters":
            scope, scoped, _ = value.partition("=")
            return f"{flag}={scope}=" if scoped else flag
        case _:
            return word


def _plan_making(step: Step, argv: tuple[str, ...], ingredients: Mapping[str, str], context: PlanContext) -> Step:
    """A step with the command that makes its outputs in its folder, and what the cache has of them."""
    return replace(step, command=Command(argv, step.folder), cache=_make_lookup(context, step.id, ingredients, argv))


def _make_source(module: Module, context: PlanContext, working_directory: str = "") -> StepInput:
    url = module.program.url
    if not module.program.name:
        return StepInput("program", str(context.artifact_path(url)), url, context.artifact_hash(url))
    path = f"{working_directory}/{module.program.name}"
    try:
        # Small and never fetched: to hash it costs less than to look up what was remembered of it.
        with open(path, "rb") as file:  # noqa: PTH123 - one of thousands
            return StepInput("program", path, url, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError:
        return StepInput("program", path, url)


def list_files(module: Module, context: PlanContext) -> Iterator[tuple[str, str]]:
    """(role, URL) of the files that a module is made from."""
    if not module.program.name:
        yield "program", module.program.url
    for flag, url in module.file_flags:
        yield FILE_ROLE + flag, url
    for weights in _list_weights_beside(module, context):
        yield weights.role, weights.url


def _list_weights_beside(module: Module, context: PlanContext) -> tuple[StepInput, ...]:
    """The files that an ONNX program on this machine keeps weights in: what is made of it depends on them too."""
    url = module.program.url
    if module.program.onnx is None or not url.startswith("file:"):
        return ()
    path = context.artifact_path(url)
    return tuple(_make_file(name, (path.parent / name).as_uri(), context) for name in list_data_files(path))


def _make_file(name: str, url: str, context: PlanContext) -> StepInput:
    return StepInput(FILE_ROLE + name, str(context.artifact_path(url)), url, context.artifact_hash(url))


def _collect_hashes(files: Sequence[StepInput]) -> dict[str, str]:
    return {item.role: item.sha256 for item in files}


def _format_options(module: Module) -> str:
    options = module.program.onnx or OnnxImport()
    texts = [options.opset, [[name, format_shape(shape)] for name, shape in options.shapes]]
    return json.dumps(texts if options.least_opset is None else [*texts, options.least_opset])


def _make_lookup(context: PlanContext, name: str, ingredients: Mapping[str, str], argv: Sequence[str]) -> CacheLookup:
    pairs = tuple(ingredients.items())
    if context.force_recompile and not ingredients["kind"].startswith(("parameters", "reference")):
        return CacheLookup(reason="--force-recompile", ingredients=pairs)
    if makes_dumps(argv):
        return CacheLookup(reason="asked for dump files, which the cache does not keep", ingredients=pairs)
    if not ingredients["program"]:
        return CacheLookup(reason="the program's content is not known before it is fetched", ingredients=pairs)
    unknown = [role for role, value in ingredients.items() if role.startswith(FILE_ROLE) and not value]
    if unknown:
        reason = f"the {unknown[0].removeprefix(FILE_ROLE)} file is not known before it is fetched"
        return CacheLookup(reason=reason, ingredients=pairs)
    return replace(context.lookup(name, ingredients), ingredients=pairs)


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What planning has to know of the machine.

    Attributes:
        run_dir: absolute.
        compile, run_module, benchmark_module, python: paths of the tools.
        python_env: changes of the environment for that Python.
        own_python: the interpreter that this toolkit runs in.
        reference_script: the program that runs a model in onnxruntime, in that interpreter.
        onnxruntime: its version there; empty where there is none.
        ir_tool: path of iree-opt, for bytecode that only the compiler reads; empty where the toolchain has none.
        importer: identity of the importer (compiler and onnx package).
        linker: path of IREE's own linker; empty where the toolchain has none.
        translate: a tool's flags as this toolchain spells them.
        artifact_path: where the file of a URL lies or will lie.
        artifact_hash: its SHA-256 where known, else an empty string.
        flag_ingredients: compile flags as they enter the key, given the folder of relative paths.
        host_of: what `host` in some flags means here; empty where they do not say host.
        counter: finds what counts instructions here; raises ToolchainError where nothing does.
        lookup: whether the module cache holds something (name for people, ingredients).
        timeouts: seconds by stage; they override defaults and specs.
    """

    run_dir: Path
    compile: str
    run_module: str
    benchmark_module: str
    python: str
    import_script: str
    own_python: str
    reference_script: str
    onnxruntime: str
    ir_tool: str
    importer: str
    compiler: str
    runtime: str
    linker: str
    translate: Callable[[Sequence[str], str], Translation]
    artifact_path: Callable[[str], Path]
    artifact_hash: Callable[[str], str]
    flag_ingredients: Callable[[Sequence[str], str], tuple[str, ...]]
    host_of: Callable[[Sequence[str]], str]
    lookup: Callable[[str, Mapping[str, str]], CacheLookup]
    counter: Callable[[], Counter]
    timeouts: Mapping[Stage, float] = field(default_factory=dict)
    force_recompile: bool = False
    python_env: tuple[tuple[str, str], ...] = ()
