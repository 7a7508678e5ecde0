"""Small trees of torch models: valid documents, and functions that load their cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.load import CaseSet, load_cases, read_specs
from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.spec_trees import CPU

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cases import Expectation


__all__ = [
    "ALL_STAGES",
    "ALL_TARGETS",
    "BENCHMARK",
    "COMPSTAT",
    "MODULE",
    "QUALITY",
    "TREE",
    "load_torch",
    "make_quality_file",
    "remove_fields",
]

ALL_STAGES = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)
# These targets cover every test.
ALL_TARGETS = (CPU, *(Target(family) for family in ("rocm", "cuda", "vulkan", "metal", "vmvx")))

MODULE: dict[str, Any] = {
    "mlir": "https://h/model.mlir",
    "compiler_flags": ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu", "--x=1"],
}
QUALITY: dict[str, Any] = {
    "type": "quality",
    "markers": ["cpu", "text"],
    "modules": ["m/modules/a"],
    "weights": [{"type": "url", "url": "https://h/w.irpa", "scope": "model"}],
    "inputs": [{"url": "https://h/in.bin", "value": "1x64xi64"}, {"value": "4xf32=2"}],
    "expected_outputs": [{"url": "https://h/out.npy"}],
    "run_args": ["--function=main", "--device=local-task", "--expected_f16_threshold=1.0f"],
}
BENCHMARK: dict[str, Any] = {
    "type": "benchmark",
    "markers": ["cpu"],
    "modules": ["m/modules/a"],
    "weights": [{"type": "random", "module": "m/modules/a", "seed": 42, "scope": "model"}],
    "inputs": [{"value": "1x64xi64"}],
    "run_args": ["--function=main", "--device=local-task", "--benchmark_repetitions=3"],
    "golden_time_ms": 12.5,
}
COMPSTAT: dict[str, Any] = {
    "type": "compstat",
    "markers": ["cpu"],
    "module": "m/modules/a",
    "golden_dispatch_count": 7,
    "golden_binary_size": 9000,
}
TREE: dict[str, Any] = {
    "torch_models/m/modules/a.json": MODULE,
    "torch_models/m/quality.json": QUALITY,
    "torch_models/m/bench.json": BENCHMARK,
    "torch_models/m/stat.json": COMPSTAT,
}


def remove_fields(document: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Return a document without some fields."""
    return {key: value for key, value in document.items() if key not in fields}


def load_torch(
    folders: Path | Sequence[Path],
    *targets: Target,
    includes: Sequence[Include] = (Include(),),
    external: Path | None = None,
    modules: Path | None = None,
    expected_failures: Sequence[Expectation] = (),
    device: str = "",
) -> CaseSet:
    """Load the cases of trees; on all targets by default."""
    specs = read_specs([folders] if isinstance(folders, Path) else folders, external, modules)
    return load_cases(specs, includes, targets or ALL_TARGETS, expected_failures, device)


def make_quality_file(name: str, **changes: Any) -> dict[str, Any]:
    """Return the file of a quality test with changes, by its path."""
    return {f"torch_models/{name}.json": QUALITY | changes}
