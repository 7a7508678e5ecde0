"""Documents of torch models with every field of their schemas, and trees with one changed document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.torch_schema import BenchmarkTest, CompstatTest, ModuleDefinition, QualityTest
from tests.support.spec_trees import write_tree
from tests.support.torch_trees import BENCHMARK, COMPSTAT, MODULE, QUALITY, load_torch

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.dialects.load import CaseSet

URL_WEIGHT = {"type": "url", "url": "https://h/w.irpa", "scope": "model"}
RANDOM_WEIGHT = {"type": "random", "module": "m/modules/a", "seed": 42, "scope": ""}
SPLAT_WEIGHT = {"type": "splat", "module": "m/modules/a", "value": 0.5, "scope": "other"}
PIPELINE = {"pipeline_mlir": "https://h/p.mlir", "pipeline_compiler_flags": ["--x"]}
# A document of each type has every field of its schema.
DOCUMENTS: dict[str, dict[str, Any]] = {
    "m/modules/a.json": MODULE
    | {
        "type": "azure",
        "mlir": "https://h/model.onnx",
        "onnx_import": {"opset": 17, "shapes": {"x": [1, 2]}},
        "description": "a module",
        "timeouts": {"compile": 60},
        "targets": {},
    },
    "m/quality.json": QUALITY
    | {
        "weights": [URL_WEIGHT, RANDOM_WEIGHT, SPLAT_WEIGHT],
        "outputs": [{"value": "@out.npy"}],
        **PIPELINE,
        "description": "a test",
        "timeouts": {"threshold": 60},
    },
    "m/bench.json": BENCHMARK
    | {
        **PIPELINE,
        "golden_time": 12.5,
        "tolerance_factor": 1.25,
        "sku": "epyc",
        "description": "a test",
        "timeouts": {"benchmark": 60},
    },
    "m/stat.json": COMPSTAT | {"golden_compiler": "3.13.0", "description": "a test", "timeouts": {"compstat": 60}},
}
MODELS: dict[str, type[ModuleDefinition | QualityTest | BenchmarkTest | CompstatTest]] = {
    "m/modules/a.json": ModuleDefinition,
    "m/quality.json": QualityTest,
    "m/bench.json": BenchmarkTest,
    "m/stat.json": CompstatTest,
}
MODULE_FILE, QUALITY_FILE, BENCHMARK_FILE, COMPSTAT_FILE = MODELS


def load_changed(folder: Path, name: str, content: Any) -> CaseSet:
    """Load the cases of the documents, of which one is replaced by other content."""
    files = {f"torch_models/{path}": document for path, document in (DOCUMENTS | {name: content}).items()}
    return load_torch(write_tree(folder, files))
