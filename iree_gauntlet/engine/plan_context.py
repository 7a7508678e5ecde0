"""What planning has to know of the machine, handed in as plain values and functions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.parameters.parameter import archive_name
from iree_gauntlet.cases import MAIN, Case, MadeValues, Module, Parameters, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.measuring.instructions.counters import Counter
    from iree_gauntlet.steps import CacheLookup
    from iree_gauntlet.toolchains.translate import Translation


# Seconds. A fetch is bounded by its stall timeout, not by its size.
DEFAULT_TIMEOUTS: dict[Stage, float] = {
    Stage.FETCH: 24 * 3600.0,
    Stage.EXPORT: 3600.0,
    Stage.IMPORT: 600.0,
    Stage.PARAMETERS: 3600.0,
    Stage.COMPILE: 1800.0,
    Stage.REFERENCE: 1800.0,
    Stage.THRESHOLD: 600.0,
    Stage.COMPSTAT: 60.0,
    Stage.COUNT: 1800.0,
    Stage.BENCHMARK: 900.0,
}


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What planning has to know of the machine.

    Attributes:
        run_dir: the run's folder, absolute.
        compile, run_module, benchmark_module, python: paths of the tools.
        import_script: the program that imports ONNX.
        own_python: the interpreter that this toolkit runs in.
        reference_script: the program that runs a model in onnxruntime, in that interpreter.
        onnxruntime: its version there; empty where there is none.
        ir_tool: path of iree-opt, for bytecode that only the compiler reads; empty where the toolchain has none.
        importer: identity of the importer (compiler and onnx package).
        compiler, runtime: identity of each.
        linker: path of IREE's own linker; empty where the toolchain has none.
        translate: a tool's flags as this toolchain spells them.
        artifact_path: where the file of a URL lies or will lie.
        artifact_hash: its SHA-256 where known, else an empty string.
        flag_ingredients: compile flags as they enter the key, given the folder of relative paths.
        host_of: what `host` in some flags means here; empty where they do not say host.
        counter: finds what counts instructions here; raises ToolchainError where nothing does.
        lookup: whether the module cache holds something (name for people, ingredients).
        timeouts: seconds by stage; they override defaults and specs.
        force_recompile: whether lookups are bypassed.
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


def parameters_role(scope: str, made: MadeValues) -> str:
    """What distinguishes the step that makes an archive from others of its chain: kind of values and scope."""
    return f"{made.label}.{archive_name(scope).removesuffix('.irpa')}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps keep their files.

    Attributes:
        run_dir: the run's folder.
        owners: the case in whose chain a module is made, by module id; a module that no spec defines has none.
    """

    run_dir: Path
    owners: Mapping[str, Case]

    def folder(self, chain: str, stage: Stage, role: str = MAIN) -> str:
        """The folder of a step."""
        case, _, target = chain.rpartition("@")
        name = stage.value if role == MAIN else f"{stage}.{role}"
        return f"{self.run_dir}/steps/{_safe(f'{case}.{target}')}/{name}"

    def module_folder(self, module: Module) -> str:
        """The folder of the step that compiles a module."""
        owner = self.owners.get(module.id)
        if owner is None:
            return f"{self.run_dir}/steps/{module.name}.{module.target.name}/compile"
        return self.folder(owner.chain, Stage.COMPILE, module.role)

    def module_path(self, module: Module) -> str:
        """Path of a module's .vmfb."""
        return f"{self.module_folder(module)}/module.vmfb"

    def archive_path(self, parameters: Parameters) -> str:
        """Path of an archive that a step of the run makes; empty for one that is fetched, or that nothing makes."""
        if parameters.made is not None:
            made = parameters.made
            owner = self.owners.get(made.module.id)
            chain = owner.chain if owner else f"{made.module.name}.{made.module.target.name}"
            folder = self.folder(chain, Stage.PARAMETERS, parameters_role(parameters.scope, made))
            return f"{folder}/{archive_name(parameters.scope)}"
        if not parameters.splat_of:
            return ""
        owner = self.owners.get(parameters.splat_of)
        if owner is None:
            return f"{self.run_dir}/steps/{parameters.splat_of.replace('@', '.')}/splat.irpa"
        module = next(item for item in owner.modules if item.id == parameters.splat_of)
        return f"{self.module_folder(module)}/splat.irpa"


def _safe(path: str) -> str:
    """A path without '@' and '%': iree-run-module reads `path@entry`, and iree-compile fills in a '%'."""
    plain = re.sub(r"[@%]", "_", path)
    return plain if plain == path else f"{plain}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
