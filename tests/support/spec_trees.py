"""Small spec trees, and plans of them in a context without a real machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.load import CaseSet, load_cases, read_specs
from iree_gauntlet.dialects.locations import get_url_path
from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.engine.plan import Plan, PlanContext, make_plan
from iree_gauntlet.measuring.instructions.counters import Counter, CounterKind
from iree_gauntlet.steps import CacheLookup
from iree_gauntlet.targets import Target
from iree_gauntlet.toolchains.flags import Translation
from iree_gauntlet.toolchains.target_runtimes import TargetRuntime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.cases import Expectation
    from iree_gauntlet.errors import Problem
    from iree_gauntlet.stages import Stage
    from iree_gauntlet.steps import Step

__all__ = [
    "BENCHMARK",
    "CPU",
    "HIP_SPEC",
    "SPEC",
    "find_argv",
    "find_step",
    "list_tree_problems",
    "load",
    "plan",
    "split",
    "write_tree",
]

CPU = Target("cpu")
STEPS_FOLDER = "/run/steps"

SPEC: dict[str, Any] = {
    "inputs": [{"source": "https://h/in0.bin", "value": "1x64xi64"}, {"source": "https://h/in1.npy"}],
    "outputs": [{"source": "https://h/out0.bin", "value": "2x1280xf16"}],
    "real_weights": "https://h/weights.irpa",
    "mlir": "https://h/model.mlir",
    "cpu_compiler_flags": ["--cpu-a", "--cpu-b=1"],
    "rocm_compiler_flags": ["--rocm-a"],
    "cpu_threshold_args": ["--expected_f16_threshold=1.0f"],
    "rocm_threshold_args": ["--expected_f16_threshold=0.5f"],
    "run_cpu_function": "encode_cpu",
    "run_rocm_function": "encode_rocm",
}
HIP_SPEC: dict[str, Any] = {
    "inputs": [{"source": "https://h/in0.bin", "value": "1x64xi64"}],
    "outputs": [{"source": "https://h/out0.npy"}],
    "real_weights": "https://h/weights.irpa",
    "mlir": "https://h/model.mlir",
    "device": "hip",
    "compiler_flags": ["--iree-hal-target-device=hip", "--x"],
    "threshold_args": ["--expected_f16_threshold=1.0f"],
    "run_function": "main",
}
BENCHMARK: dict[str, Any] = {
    "inputs": ["1x64xi64", "1xf16"],
    "function_run": "main",
    "benchmark_repetitions": 10,
    "benchmark_min_warmup_time": 3.0,
    "benchmark_flags": ["--device_allocator=caching"],
    "device": "hip",
    "golden_time_ms": {"mi300": 7.5, "mi250": 9},
    "golden_time_tolerance_multiplier": {"mi300": 1.1},
    "golden_dispatch": {"mi300": 792},
    "golden_size": {"mi300": 460000},
}


def write_tree(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files by relative path: text and bytes as they are, other values as JSON; return the directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2), encoding="utf-8")
    return folder


def load(
    folders: Path | Sequence[Path],
    *targets: Target,
    includes: Sequence[Include] = (Include(),),
    external: Path | None = None,
    expected_failures: Sequence[Expectation] = (),
    device: str = "",
) -> CaseSet:
    specs = read_specs([folders] if isinstance(folders, Path) else folders, external)
    return load_cases(specs, includes, targets or (CPU,), expected_failures, device)


def list_tree_problems(folder: Path, content: Any, name: str = "regression_tests/m/s_cpu.json") -> list[Problem]:
    """Return the problems of one file that two targets select."""
    write_tree(folder, {name: content})
    return list(load(folder, CPU, Target("rocm", "gfx942", "mi300")).problems)


def make_context(**changes: Any) -> PlanContext:
    def artifact(url: str) -> Path:
        return Path("/cache", url.removeprefix("https://")) if url.startswith("https:") else Path(get_url_path(url))

    defaults: dict[str, Any] = {
        "run_dir": Path("/run"),
        "compile": "iree-compile",
        "runtime_of": lambda _target: TargetRuntime(),
        "python": "python",
        "import_script": "import_onnx.py",
        "calls_obstacle": "",
        "own_python": "python",
        "reference_script": "run_reference.py",
        "onnxruntime": "1.32.0",
        "ir_tool": "iree-opt",
        "importer": "importer",
        "tflite_script": "import_tflite.py",
        "tflite_importer": "tosa-converter-for-tflite 2026.2.0",
        "compiler_identity": "compiler",
        "runtime_identity": "runtime",
        "linker": "",
        "counter": lambda: Counter(CounterKind.VALGRIND, "valgrind 3.19.0", "x86-64-v3,-fma", "/usr/bin/valgrind"),
        "translate": lambda flags, _tool: Translation(tuple(flags), (), ()),
        "artifact_path": artifact,
        "artifact_hash": lambda url: "ab" * 32 if url.startswith("https:") else "",
        "flag_ingredients": lambda flags, _folder: tuple(flags),
        "identify_host_cpu": lambda _flags: "",
        "lookup": lambda name, _ingredients: CacheLookup(key="00", reason=f"looked for {name}"),
    }
    return PlanContext(**(defaults | changes))


def plan(cases: CaseSet, stages: Iterable[Stage], **changes: Any) -> Plan:
    return make_plan(cases, stages, make_context(**changes))


def find_step(built_plan: Plan, step_id: str) -> Step:
    matches = [step for step in built_plan.steps if step.id == step_id]
    assert len(matches) == 1, [step.id for step in built_plan.steps]
    return matches[0]


def split(*lines: str | list[str]) -> list[str]:
    """Split lines of a command line into words; words of a list stay as they are and may have spaces."""
    return [word for line in lines for word in (line.split() if isinstance(line, str) else line)]


def find_argv(built_plan: Plan, step_id: str) -> list[str]:
    command = find_step(built_plan, step_id).command
    assert command is not None
    return list(command.argv)
