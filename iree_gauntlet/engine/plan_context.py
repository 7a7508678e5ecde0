"""What planning has to know of the machine, handed in as plain values and functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.steps import CacheLookup
    from iree_gauntlet.toolchains.translate import Translation

__all__ = ["DEFAULT_TIMEOUTS", "PlanContext"]

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
        compiler: identity of the compiler.
        translate: a tool's flags as this toolchain spells them.
        artifact_path: where the file of a URL lies or will lie.
        artifact_hash: its SHA-256 where known, else an empty string.
        flag_ingredients: compile flags as they enter the key, given the folder of relative paths.
        host_of: what `host` in some flags means here; empty where they do not say host.
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
    translate: Callable[[Sequence[str], str], Translation]
    artifact_path: Callable[[str], Path]
    artifact_hash: Callable[[str], str]
    flag_ingredients: Callable[[Sequence[str], str], tuple[str, ...]]
    host_of: Callable[[Sequence[str]], str]
    lookup: Callable[[str, Mapping[str, str]], CacheLookup]
    timeouts: Mapping[Stage, float] = field(default_factory=dict)
    force_recompile: bool = False
