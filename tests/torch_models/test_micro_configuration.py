"""Configurations of micro-benchmarks: the dialect of torchao's documents, and errors in other documents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iree_gauntlet.errors import SpecError
from iree_gauntlet.torch_models.configuration import ModelEntry, read_micro_config, translate_device
from iree_gauntlet.torch_models.plugins import Shape, load_registry
from tests.support.budgets import scale_example_count
from tests.support.micro_configurations import MODELS, make_registry, read_config, read_model_params, read_problems
from tests.support.places import ROOT

if TYPE_CHECKING:
    from iree_gauntlet.torch_models.plugins import PluginRegistry

SHIPPED = sorted((ROOT / "specs" / "recipes").glob("*.yml"))
GUIDE = """\
# benchmarks/dashboard/microbenchmark_quantization_config.yml
benchmark_mode: "inference"
quantization_config_recipe_names:
  - "int8wo"
  - "int8dq"
  - "float8dq-tensor"
  - "float8dq-row"
  - "float8wo"

output_dir: "benchmarks/microbenchmarks/results"

model_params:
  - name: "small_bf16_linear"
    matrix_shapes:
      - name: "small_sweep"
        min_power: 10
        max_power: 15
    high_precision_dtype: "torch.bfloat16"
    torch_compile_mode: "max-autotune"
    device: "cuda"
    model_type: "linear"
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> PluginRegistry:
    return make_registry(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_guides_own_document(folder: Path, registry: PluginRegistry) -> None:
    config = read_config(folder, registry, GUIDE)
    assert config.file == Path("x.yml")
    assert config.output_dir == "benchmarks/microbenchmarks/results"
    labels = [variant.label for variant in config.variants]
    assert labels == ["baseline", "int8wo", "int8dq", "float8dq-tensor", "float8dq-row", "float8wo"]
    assert [variant.is_baseline for variant in config.variants] == [True] + [False] * 5
    assert config.variants[4].quantization.arguments == ("row",)
    (model,) = config.models
    assert (model.name, model.line, model.dtype, model.device) == ("small_bf16_linear", 13, "bf16", "cuda")
    assert (model.torch_compile, model.torch_compile_mode) == (True, "max-autotune")
    assert (model.profiler, model.memory_profiler, model.config) == (False, False, None)
    assert (model.model_type.architecture.name, model.model_type.activation) == ("linear", None)
    assert len(model.shapes) == 56
    assert model.shapes[0] == Shape("small_sweep_0", 1024, 1024, 1024)
    assert model.shapes[-1].label == "32768-32768-32768"


def test_the_readmes_form_with_one_mapping_and_further_fields(folder: Path, registry: PluginRegistry) -> None:
    text = """\
model_params:
  matrix_shapes:
    - name: "custom"
      shapes: [
        [1024, 1024, 1024],  # [m, k, n]
        [2048, 4096, 1024]
      ]
    - name: pow2
      min_power: 4
      max_power: 5
    - {name: custom, shapes: [[1, 2, 3]]}
  high_precision_dtype: float16
  compile: "max-autotune"
  device: cpu
  model_type: ln_linear_gelu
  enable_profiler: true
  enable_memory_profiler: yes
"""
    config = read_config(folder, registry, text)
    (model,) = config.models
    assert [variant.label for variant in config.variants] == ["baseline"]
    assert [shape.name for shape in model.shapes] == ["custom_0", "custom_1", "pow2_0", "pow2_1", "custom_2"]
    assert model.shapes[1].label == "2048-4096-1024"
    assert (model.name, model.dtype, model.torch_compile_mode, model.line) == (
        "ln_linear_gelu",
        "f16",
        "max-autotune",
        1,
    )
    assert model.model_type.activation is not None
    assert (model.profiler, model.memory_profiler) == (True, True)


@pytest.mark.parametrize(
    "field", ["", *(f"  {name}:\n" for name in ModelEntry.model_fields if name != "matrix_shapes")]
)
def test_what_is_left_out_is_torchaos_default(folder: Path, registry: PluginRegistry, field: str) -> None:
    model = read_model_params(folder, registry, field)
    assert (model.name, model.dtype, model.device) == ("linear", "bf16", "cpu")
    assert (model.torch_compile, model.torch_compile_mode) == (True, "default")
    config = read_config(
        folder, registry, f"quantization_config_recipe_names:\nsparsity_config_recipe_names: [null]\n{MODELS}"
    )
    assert [variant.label for variant in config.variants] == ["baseline"]


@pytest.mark.parametrize(
    ("quantizations", "sparsities", "labels"),
    [
        ("[baseline, int8wo, baseline]", "null", ["baseline", "int8wo"]),
        ("[]", "[block]", ["baseline", "baseline+block"]),
        (
            "[int8wo, int8dq, float8dq-row]",
            "[semi-sparse, block]",
            [
                *("baseline", "int8wo", "int8dq", "float8dq-row"),
                *("baseline+semi-sparse", "int8dq+semi-sparse", "float8dq-row+semi-sparse", "baseline+block"),
            ],
        ),
        ("[int4wo, int8dq, O3]", '["2:4"]', ["baseline", "int4wo", "int8dq", "O3", "int8dq+2:4"]),
        ("[int4wo-64, int4wo-128]", "[]", ["baseline", "int4wo-64", "int4wo-128"]),
    ],
)
def test_the_baseline_runs_once_and_sparsity_with_what_it_goes_with(
    folder: Path, registry: PluginRegistry, quantizations: str, sparsities: str, labels: list[str]
) -> None:
    text = f"quantization_config_recipe_names: {quantizations}\nsparsity_config_recipe_names: {sparsities}\n{MODELS}"
    config = read_config(folder, registry, text)
    assert [variant.label for variant in config.variants] == labels
    assert [variant.label for variant in config.variants if variant.is_baseline] == ["baseline"]


def test_variants_have_the_flags_of_their_recipes(folder: Path, registry: PluginRegistry) -> None:
    text = f"quantization_config_recipe_names: [fixed, O3]\nsparsity_config_recipe_names: [block]\n{MODELS}"
    assert {variant.label: variant.flags for variant in read_config(folder, registry, text).variants} == {
        "baseline": (),
        "fixed": ("--fixed", "--point"),
        "O3": ("--iree-opt-level=O3",),
        "baseline+block": ("--zeros",),
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", (True, "default")),
        ("  compile: true", (True, "default")),
        ("  compile: false", (False, "default")),
        ('  compile: "false"', (False, "default")),
        ("  compile: reduce-overhead", (True, "reduce-overhead")),
        ("  use_torch_compile: false\n  torch_compile_mode: max-autotune", (False, "max-autotune")),
        ("  use_torch_compile: true\n  compile: max-autotune-no-cudagraphs", (True, "max-autotune-no-cudagraphs")),
        ("  compile: default\n  torch_compile_mode: default", (True, "default")),
    ],
)
def test_ways_to_say_how_torch_compiles(
    folder: Path, registry: PluginRegistry, fields: str, expected: tuple[bool, str]
) -> None:
    model = read_model_params(folder, registry, fields)
    assert (model.torch_compile, model.torch_compile_mode) == expected


@pytest.mark.parametrize(
    ("written", "dtype"),
    [
        ("torch.bfloat16", "bf16"),
        ("bfloat16", "bf16"),
        ("torch.float32", "f32"),
        ("float32", "f32"),
        ("torch.float16", "f16"),
    ],
)
def test_element_types(folder: Path, registry: PluginRegistry, written: str, dtype: str) -> None:
    assert read_model_params(folder, registry, f"  high_precision_dtype: {written}").dtype == dtype


def test_devices(folder: Path, registry: PluginRegistry) -> None:
    names = ("cpu", "cuda", "mps", "xpu", "local-task", "hip://0", "cuda://1")
    assert [read_model_params(folder, registry, f"  device: {name}").device for name in names] == list(names)
    mapped = [translate_device(name) for name in names]
    assert mapped == ["local-task", "cuda", "metal", "vulkan", "local-task", "hip://0", "cuda://1"]


def test_a_model_from_a_configuration(folder: Path, registry: PluginRegistry) -> None:
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text("{}", encoding="utf-8")
    (folder / "x.yml").write_text(
        """\
model_params:
  - {name: own, model_type: transformers, config: bert}
  - {name: file, model_type: transformers, config: bert/config.json,
     matrix_shapes: [{name: custom, shapes: [[64, 0, 0], [64, 128, 0]]}]}
""",
        encoding="utf-8",
    )
    models = read_micro_config(folder / "x.yml", registry).models
    assert [model.config for model in models] == [folder / "bert" / "config.json"] * 2
    assert models[0].shapes == (Shape("config", 128, 0, 0),)
    assert [shape.label for shape in models[1].shapes] == ["64-0-0", "64-128-0"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("", "x.yml:2: model_params[0].config: is missing: the path of a config.json, from ."),
        ("config: missing", "x.yml:2: model_params[0].config: missing cannot be read: No such file"),
        (f"config: {'x' * 300}", "cannot be read: File name too long"),
        ("config: empty", "empty/config.json cannot be read: No such file"),
        ("config: broken.json", "broken.json is not JSON: "),
        ("config: deep.json", "deep.json is not JSON: "),
        ("config: list.json", "list.json does not hold a JSON object"),
        ("config: ../config.json", "'../config.json' leaves the folder"),
        ("config: out.json", "'out.json' leaves the folder"),
        ("config: /etc/config.json", "'/etc/config.json' leaves the folder"),
        ("config: 'C:\\config.json'", "leaves the folder"),
        ("config: 5", "expected a string, found 5"),
    ],
)
def test_model_configurations_that_cannot_be_used(
    folder: Path, registry: PluginRegistry, field: str, said: str
) -> None:
    inner = folder / "inner"
    (inner / "empty").mkdir(parents=True)
    for path, text in {
        "inner/broken.json": "{",
        "inner/list.json": "[]",
        "inner/deep.json": "[" * 200_000,
        "config.json": "{}",
    }.items():
        (folder / path).write_text(text, encoding="utf-8")
    (inner / "out.json").symlink_to(folder / "config.json")
    os.chdir(inner)
    messages = read_problems(inner, registry, f"model_params:\n  - {{model_type: transformers, {field}}}\n")
    assert said in messages[0]
    assert all("config" in message.partition(":")[2] for message in messages)


def test_only_models_that_take_a_configuration_have_one(folder: Path, registry: PluginRegistry) -> None:
    (message,) = read_problems(folder, registry, "model_params:\n  matrix_shapes: [{name: llama}]\n  config: x.json\n")
    assert message.startswith("x.yml:3: model_params.config: linear takes none\n")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configurations(path: Path) -> None:
    config = read_micro_config(path, load_registry())
    assert len(config.variants) > 1
    assert {model.device for model in config.models} == {"cpu"}
    if path.stem == "dashboard":
        assert sum(len(model.shapes) for model in config.models) == 56


UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.+-]{0,8}", fullmatch=True)
ENTRIES = st.fixed_dictionaries(
    {
        "matrix_shapes": st.tuples(
            st.fixed_dictionaries(
                {
                    "name": st.just("custom"),
                    "shapes": st.lists(st.lists(st.integers(1, 2**31 - 1), min_size=3, max_size=3), min_size=1),
                }
            )
        ).map(list)
    },
    optional={
        "high_precision_dtype": st.sampled_from(["torch.float32", "float16"]),
        "use_torch_compile": st.booleans(),
        "torch_compile_mode": st.sampled_from(["default", "max-autotune"]),
        "device": st.sampled_from(["cpu", "cuda"]),
        "enable_profiler": st.booleans(),
        "model_type": st.sampled_from(["linear", "ln_linear_gelu"]),
    },
)


@settings(
    max_examples=scale_example_count(0.5),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    entries=st.dictionaries(NAMES, ENTRIES, min_size=1, max_size=4),
    recipes=st.lists(st.sampled_from(["baseline", "int8wo", "float8dq-row"])),
    flow=st.sampled_from([True, False, None]),
)
def test_what_is_written_is_read(
    folder: Path, registry: PluginRegistry, entries: dict[str, dict[str, Any]], recipes: list[str], flow: bool | None
) -> None:
    document = {
        "quantization_config_recipe_names": recipes,
        "model_params": [{"name": name} | fields for name, fields in entries.items()],
    }
    config = read_config(folder, registry, yaml.safe_dump(document, default_flow_style=flow, sort_keys=False))
    assert [model.name for model in config.models] == list(entries)
    assert {variant.label for variant in config.variants} == {"baseline", *recipes}
    for model in config.models:
        fields = entries[model.name]
        assert [[shape.m, shape.k, shape.n] for shape in model.shapes] == fields["matrix_shapes"][0]["shapes"]
        assert model.torch_compile is fields.get("use_torch_compile", True)
        assert model.profiler is fields.get("enable_profiler", False)
        assert model.device == fields.get("device", "cpu")
        assert model.model_type.text == fields.get("model_type", "linear")


@settings(suppress_health_check=UNHURRIED)
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["name", "shapes", "matrix_shapes", "model_params", "compile", "config"]), inner
                )
            ),
        ).map(json.dumps),
    )
)
def test_nothing_that_is_written_is_a_traceback(folder: Path, registry: PluginRegistry, text: str) -> None:
    try:
        config = read_config(folder, registry, text)
    except SpecError as error:
        assert error.problems  # noqa: PT017 - hardly any text is a configuration
    else:
        assert config.models
