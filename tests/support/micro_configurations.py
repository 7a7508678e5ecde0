"""Configurations of micro-benchmarks, and a plugin that declares the names in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import ExitCode, SpecError
from iree_gauntlet.torch_models.configuration import MicroConfig, ModelParams, read_micro_config
from iree_gauntlet.torch_models.plugins import load_registry

if TYPE_CHECKING:
    from iree_gauntlet.torch_models.plugins import PluginRegistry

_PLUGIN = """\
from pathlib import Path
from typing import Any, Literal

from iree_gauntlet.micro.registry import activation, architecture, compiler_recipe, recipe, shape_set


def same(model): return model
for name in ("baseline", "int8wo", "int8dq", "float8wo"):
    recipe(name, kind="quantization")(same)
recipe("block", kind="sparsity", flags=("--zeros",))(same)
recipe("fixed", kind="quantization", flags=("--fixed", "--point"))(same)
recipe("semi-sparse", kind="sparsity", beside=("baseline", "int8dq", "float8dq"))(same)
recipe("2:4", kind="sparsity", beside=("int8dq",))(same)
compiler_recipe("O3", flags=("--iree-opt-level=O3",), about="")

@recipe("int4wo", kind="quantization")
def int4wo(model, group: int = 32): return model

@recipe("float8dq", kind="quantization")
def float8dq(model, granularity: Literal["tensor", "row"] = "tensor"): return model

@architecture("linear")
def linear(m, k, n, dtype): return None

@architecture("ln_linear")
def ln_linear(m, k, n, dtype, activation): return None

@architecture("transformers")
def transformers(m, k, n, dtype, config: Path): return None

@activation("gelu")
def gelu(): return None

@shape_set("broken")
def broken(): raise ValueError("no shapes today")
"""
# The guide has the same document.
_ENTRY = "  - {name: one, matrix_shapes: [{name: custom, shapes: [[1, 2, 3]]}]}\n"
MODELS = f"model_params:\n{_ENTRY}"


def make_registry(folder: Path) -> PluginRegistry:
    """Return a registry of the plugin's declarations and the built-in shapes."""
    plugin = folder / "plugin.py"
    plugin.write_text(_PLUGIN, encoding="utf-8")
    plugin_registry = load_registry([plugin], builtin=())
    return replace(plugin_registry, shape_sets={**load_registry().shape_sets, **plugin_registry.shape_sets})


def read_config(folder: Path, registry: PluginRegistry, text: str) -> MicroConfig:
    (folder / "x.yml").write_text(text, encoding="utf-8")
    return read_micro_config(Path("x.yml"), registry)


def read_model_params(folder: Path, registry: PluginRegistry, fields: str) -> ModelParams:
    """Read the only entry of a configuration: built-in shapes and some further fields."""
    (model,) = read_config(folder, registry, f"model_params:\n  matrix_shapes: [{{name: llama}}]\n{fields}").models
    return model


def read_problems(folder: Path, registry: PluginRegistry, text: str) -> list[str]:
    with pytest.raises(SpecError) as error_info:
        read_config(folder, registry, text)
    assert error_info.value.exit_code is ExitCode.USAGE
    assert "in micro-benchmark configurations:" in error_info.value.message
    return [str(problem) for problem in error_info.value.problems]
