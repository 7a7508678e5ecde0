"""Configurations of micro-benchmarks: the dialect of torchao's documents, and what is wrong with others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iree_gauntlet.dialects.yaml_file import read_yaml
from iree_gauntlet.errors import ExitCode, SpecError, UsageError
from iree_gauntlet.torch_models.configuration import (
    MicroConfig,
    ModelEntry,
    ModelParams,
    list_points,
    name_iree_device,
    read_micro_config,
)
from iree_gauntlet.torch_models.plugins import BUILTIN_FILES, Shape, load_registry
from tests.support.budgets import part_of_the_examples
from tests.support.places import ROOT

if TYPE_CHECKING:
    from iree_gauntlet.torch_models.plugins import PluginRegistry

SHIPPED = sorted((ROOT / "specs" / "recipes").glob("*.yml"))
PLUGIN = """\
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
# The guide's own document.
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
ENTRY = "  - {name: one, matrix_shapes: [{name: custom, shapes: [[1, 2, 3]]}]}\n"
MODELS = f"model_params:\n{ENTRY}"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> PluginRegistry:
    plugin = tmp_path_factory.mktemp("plugin") / "plugin.py"
    plugin.write_text(PLUGIN, encoding="utf-8")
    return load_registry([plugin], builtin=BUILTIN_FILES[:1])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder: Path, registry: PluginRegistry, text: str) -> MicroConfig:
    (folder / "x.yml").write_text(text, encoding="utf-8")
    return read_micro_config(Path("x.yml"), registry)


def one(folder: Path, registry: PluginRegistry, fields: str) -> ModelParams:
    """The entry that has a custom shape and some further fields."""
    (model,) = read(folder, registry, f"model_params:\n  matrix_shapes: [{{name: llama}}]\n{fields}").models
    return model


def refused(folder: Path, registry: PluginRegistry, text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(folder, registry, text)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "in micro-benchmark configurations:" in caught.value.what
    return [str(problem) for problem in caught.value.problems]


def test_the_guides_own_document(folder: Path, registry: PluginRegistry) -> None:
    config = read(folder, registry, GUIDE)
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
    config = read(folder, registry, text)
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
    model = one(folder, registry, field)
    assert (model.name, model.dtype, model.device) == ("linear", "bf16", "cpu")
    assert (model.torch_compile, model.torch_compile_mode) == (True, "default")
    config = read(
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
    config = read(folder, registry, text)
    assert [variant.label for variant in config.variants] == labels
    assert [variant.label for variant in config.variants if variant.is_baseline] == ["baseline"]


def test_variants_have_the_flags_of_their_recipes(folder: Path, registry: PluginRegistry) -> None:
    text = f"quantization_config_recipe_names: [fixed, O3]\nsparsity_config_recipe_names: [block]\n{MODELS}"
    assert {variant.label: variant.flags for variant in read(folder, registry, text).variants} == {
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
    model = one(folder, registry, fields)
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
    assert one(folder, registry, f"  high_precision_dtype: {written}").dtype == dtype


def test_devices(folder: Path, registry: PluginRegistry) -> None:
    names = ("cpu", "cuda", "mps", "xpu", "local-task", "hip://0", "cuda://1")
    assert [one(folder, registry, f"  device: {name}").device for name in names] == list(names)
    mapped = [name_iree_device(name) for name in names]
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
        ("config: broken.json", "broken.json is no JSON: "),
        ("config: deep.json", "deep.json is no JSON: "),
        ("config: list.json", "list.json holds no JSON object"),
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
    messages = refused(inner, registry, f"model_params:\n  - {{model_type: transformers, {field}}}\n")
    assert said in messages[0]
    assert all("config" in message.partition(":")[2] for message in messages)


def test_only_models_that_take_a_configuration_have_one(folder: Path, registry: PluginRegistry) -> None:
    (message,) = refused(folder, registry, "model_params:\n  matrix_shapes: [{name: llama}]\n  config: x.json\n")
    assert message.startswith("x.yml:3: model_params.config: linear takes none\n")


def test_everything_that_is_wrong_is_said_at_once(folder: Path, registry: PluginRegistry) -> None:
    text = """\
benchmark_mode: training
quantization_config_recipe_names: [int8w, int4wo-x, block, 5, [a]]
sparsity_config_recipe_names: [int8wo, "blok"]
output_dir: results
output_dir: ../results
model_parms: []
model_params:
  - name: one
    matrix_shapes:
      - name: pow3
      - name: pow2
        min_power: 12
        max_power: 11
      - name: llama
        min_power: 3
      - {shapes: [[1, 2, 3]]}
      - {name: custom, shapes: [[1, 2], [1, 2, 0], [1, 2, 010], 5]}
      - {name: custom}
      - pow2
    high_precision_dtype: torch.float8
    torch_compile_mode: fast
    compile: 3
    device: gpu
    model_type: ln_linear_gel
    enable_profiler: 1
    enable_memory: true
  - name: one
    matrix_shapes: []
  - name: one
  - 5
"""
    messages = refused(folder, registry, text)
    expected = [
        "1: benchmark_mode: training is not measured here\n    Write inference, or remove the field.",
        "2: quantization_config_recipe_names[0]: there is no recipe 'int8w'\n    Did you mean int8wo? There are 2:4, ",
        "2: quantization_config_recipe_names[1]: recipe 'int4wo-x': group: expected a whole number, found 'x'\n",
        "2: quantization_config_recipe_names[2]: block is a sparsity recipe\n    List it under sparsity_config",
        '2: quantization_config_recipe_names[3]: expected a string, found 5\n    Write it in quotes: "5".',
        "2: quantization_config_recipe_names[4]: expected a string, found an array",
        "3: sparsity_config_recipe_names[0]: int8wo is a quantization recipe\n    List it under quantization_config",
        "3: sparsity_config_recipe_names[1]: there is no recipe 'blok'\n    Did you mean block?",
        "5: output_dir: expected a folder below the working directory, found '../results'\n",
        "5: output_dir: this field is there already, at line 4\n    Remove one of them.",
        "6: model_parms: unknown field; did you mean 'model_params'?",
        "10: model_params[0].matrix_shapes[0].name: there is no shape set 'pow3'\n    Did you mean pow2? There are bro",
        "12: model_params[0].matrix_shapes[1].min_power: min_power 12 is above max_power 11\n    Give both.",
        "15: model_params[0].matrix_shapes[2].min_power: llama has no powers\n    Remove it.",
        "16: model_params[0].matrix_shapes[3].name: is missing: the field is required",
        "17: model_params[0].matrix_shapes[4].shapes[0]: expected [m, k, n], three whole numbers from 1 to 2,147,483,6",
        "17: model_params[0].matrix_shapes[4].shapes[1]: expected [m, k, n], three whole numbers from 1 to 2,147,483,6",
        "17: model_params[0].matrix_shapes[4].shapes[2]: expected [m, k, n], three whole numbers from 1 to 2,147,483,6",
        "17: model_params[0].matrix_shapes[4].shapes[3]: expected [m, k, n], three whole numbers from 1 to 2,147,483,6",
        "18: model_params[0].matrix_shapes[5].shapes: is missing: custom are the shapes that are listed\n    Such",
        '19: model_params[0].matrix_shapes[6]: expected an object, found the string "pow2"',
        "20: model_params[0].high_precision_dtype: expected a value 'torch.float32', 'torch.float16', 'torch.bfloat16'",
        "21: model_params[0].torch_compile_mode: expected a value 'default', 'reduce-overhead', 'max-autotune' or ",
        "22: model_params[0].compile: expected a value 'default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-",
        "23: model_params[0].device: there is no device 'gpu'\n    Write cpu, cuda, mps, xpu, or a device of IREE",
        "24: model_params[0].model_type: there is no model type 'ln_linear_gel'\n    Did you mean ln_linear_gelu",
        "25: model_params[0].enable_profiler: expected true or false, found 1",
        "26: model_params[0].enable_memory: unknown field; did you mean 'enable_memory_profiler'?",
        "27: model_params[1].name: one is the name of another entry already\n    Give each entry a name of its own.",
        "28: model_params[1].matrix_shapes: expected at least 1 item, found 0",
        "29: model_params[2].matrix_shapes: is missing: nothing says which shapes are measured",
        "29: model_params[2].name: one is the name of another entry already\n",
        "30: model_params[3]: expected an object, found 5",
    ]
    for message, start in zip(messages, expected, strict=True):
        assert message.startswith(f"x.yml:{start}")
    assert messages[-12].endswith("\n    Did you mean 'torch.float32'?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x.yml: is empty"),
        ("# nothing\n", "x.yml: is empty"),
        ("[]", "x.yml:1: expected an object, found an array"),
        ("inference", 'x.yml:1: expected an object, found the string "inference"'),
        ("benchmark_mode: inference", "x.yml:1: model_params: is missing: the field is required"),
        ("model_params:", "x.yml:1: model_params: expected an array, found null"),
        ("model_params: []", "x.yml:1: model_params: expected at least 1 item, found 0"),
        ("model_params: linear", 'x.yml:1: model_params: expected an array, found the string "linear"'),
        ("model_params: &m [*m]", "x.yml:1: model_params[0]: expected an object, found an array"),
        ("a: [1\nb: 2", "x.yml:2: is not YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("a: 1\n---\nb: 2", "x.yml:2: is not YAML: expected a single document in the stream"),
        ("a: \x01", "x.yml: is not YAML: unacceptable character"),
        ("a: *b", "x.yml:1: is not YAML: found undefined alias"),
        ("a: &b [*b]", "x.yml:1: a: unknown field"),
        ("a: " + "[" * 100 + "]" * 100, "x.yml:1: a: unknown field"),
        ("a: " + "[" * 100_000, "x.yml: is nested too deeply"),
        (f"5: a\n{MODELS}", "x.yml:1: [5]: expected the name of a field, in quotes, found the number 5"),
        ("[a]: b", "x.yml:1: is not YAML: while constructing a mapping, found unhashable key"),
        ("a: !!python/object:os.system {}", "x.yml:1: is not YAML: could not determine a constructor for the tag"),
        ("a: !mine x", "x.yml:1: is not YAML: could not determine a constructor for the tag '!mine'"),
        ("a: !!int [1]", "x.yml:1: is not YAML: expected a scalar node, but found sequence"),
        ("model_params: !!bool maybe", "x.yml:1: model_params: expected an array, found maybe"),
        ("model_params: " + "9" * 5000, 'x.yml:1: model_params: expected an array, found the value "999999'),
        ("<<: 5", "x.yml:1: is not YAML: while constructing a mapping, expected a mapping or list of mappings"),
        (
            f"<<: {{output_dir: a}}\n<<: {{output_dir: b}}\n{MODELS}",
            "x.yml:2: <<: this field is there already, at line 1",
        ),
    ],
)
def test_files_that_are_no_configuration(folder: Path, registry: PluginRegistry, text: str, said: str) -> None:
    assert refused(folder, registry, text)[0].startswith(said)


def test_files_that_cannot_be_read(folder: Path, registry: PluginRegistry) -> None:
    with pytest.raises(UsageError, match=r"configuration y\.yml does not exist\n  Configurations are YAML files\."):
        read_micro_config(Path("y.yml"), registry)
    (folder / "x.yaml").write_bytes(b"a: \xff")
    with pytest.raises(UsageError, match=r"Configurations there: x\.yaml\."):
        read_micro_config(Path("y.yml"), registry)
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        read_yaml(folder, "files", "a page")
    with pytest.raises(SpecError, match=r"x\.yaml:1: is not UTF-8: byte 0xff at offset 3"):
        read_micro_config(Path("x.yaml"), registry)


def test_anchors_and_merge_keys(folder: Path, registry: PluginRegistry) -> None:
    text = """\
model_params:
  - &first
    name: first
    matrix_shapes: &shapes [{name: pow2, max_power: 11}]
    device: cpu
    high_precision_dtype: float32
  - <<: *first
    name: second
    high_precision_dtype: float16
  - {<<: [{device: cuda}, *first], name: third, matrix_shapes: *shapes}
"""
    models = read(folder, registry, text).models
    assert [(model.name, model.device, model.dtype) for model in models] == [
        ("first", "cpu", "f32"),
        ("second", "cpu", "f16"),
        ("third", "cuda", "f32"),
    ]
    assert all(len(model.shapes) == 2 for model in models)


def test_aliases_of_aliases_stay_cheap(folder: Path, registry: PluginRegistry) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    lines += ["model_params: {matrix_shapes: [{name: custom, shapes: *a19}]}"]
    messages = refused(folder, registry, "\n".join(lines))
    assert len(messages) == 29
    assert max(map(len, messages)) < 250


@pytest.mark.parametrize("number", ["010", "0x10", "1_0", "+1", "1:30", "!!int x"])
def test_numbers_that_yaml_reads_in_another_way_are_refused(
    folder: Path, registry: PluginRegistry, number: str
) -> None:
    shapes = f"model_params:\n  matrix_shapes:\n  - {{name: pow2, max_power: {number}}}\n"
    (message,) = refused(folder, registry, shapes)
    assert message.endswith(f"max_power: expected a whole number, found {number.rpartition(' ')[2]}")


def test_what_an_anchor_brings_is_wrong_where_it_stands(folder: Path, registry: PluginRegistry) -> None:
    text = """\
model_params:
  - &first
    name: first
    matrix_shapes: [{name: llama}]
    device: gpu
  - {<<: *first, name: second}
"""
    messages = refused(folder, registry, text)
    assert [message.partition(" there")[0] for message in messages] == [
        "x.yml:5: model_params[0].device:",
        "x.yml:5: model_params[1].device:",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("output_dir: /tmp", "found '/tmp'"),
        ("output_dir: a/../../b", "found 'a/../../b'"),
        ("output_dir: 'C:\\x'", "expected a folder below"),
        ("output_dir: .", "found '.'"),
        ('output_dir: ""', "output_dir: expected a string that can be read, found ''"),
        ('output_dir: "a\\nb"', "expected a string that can be read"),
        ("output_dir: !!timestamp x", "output_dir: expected a string, found x"),
        ("output_dir: !!set {a}", "output_dir: expected a string, found "),
        ("output_dir: !!binary aGk=", "output_dir: expected a string, found aGk="),
        ("output_dir: 2026-13-41", 'found 2026-13-41\n    Write it in quotes: "2026-13-41".'),
        ("benchmark_mode: inferense", "expected inference, found 'inferense'"),
        ("benchmark_mode: no", 'expected a string, found no\n    Write it in quotes: "no".'),
        ("quantization_config_recipe_names: int8wo", 'expected an array, found the string "int8wo"'),
        ("quantization_config_recipe_names: [int4wo, int4wo-32]", "int4wo-32 is int4wo, which is listed too"),
        ("sparsity_config_recipe_names: [2:4]", 'found 2:4\n    Write it in quotes: "2:4".'),
        ("sparsity_config_recipe_names: [1.10]", 'found 1.10\n    Write it in quotes: "1.10".'),
    ],
)
def test_single_fields_of_the_document(folder: Path, registry: PluginRegistry, text: str, said: str) -> None:
    (message,) = refused(folder, registry, f"{text}\n{MODELS}")
    assert message.startswith("x.yml:1: ")
    assert said in message


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("name: a/b", "'a/b' is no name"),
        ("name: 5", "expected a string, found 5"),
        (
            "compile: max-autotune\n  torch_compile_mode: default",
            "it says max-autotune, and torch_compile_mode default",
        ),
        ("compile: fast", "expected a value 'default', 'reduce-overhead'"),
        ("compile: default-mode", "\n    Did you mean 'default'?"),
        ("compile: []", "'true' or 'false', found an array"),
        ("compile: 1", "'true' or 'false', found 1"),
        ("device: cuda:0", "there is no device 'cuda:0'"),
        ("model_type: 5", "expected a string, found 5"),
        ("matrix_shapes: [{name: llama}]", "this field is there already"),
    ],
)
def test_single_fields_of_an_entry(folder: Path, registry: PluginRegistry, field: str, said: str) -> None:
    (message,) = refused(folder, registry, f"model_params:\n  matrix_shapes: [{{name: llama}}]\n  {field}\n")
    assert message.startswith("x.yml:3: model_params.") or "already" in message
    assert said in message


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ("{name: pow2, max_power: 9}", "max_power: min_power 10 is above max_power 9 (its default)\n    Give both."),
        ("{name: pow2, min_power: 15}", "min_power: min_power 15 is above max_power 14 (its default)"),
        ("{name: pow2, min_power: 25}", "min_power: expected a value less than or equal to 24, found 25"),
        ("{name: pow2, min_power: -1}", "expected a value greater than or equal to 0, found -1"),
        ("{name: pow2, min_power: 1e1}", 'expected a whole number, found the string "1e1"'),
        ("{name: pow2, min_power: true}", "expected a whole number, found true"),
        ("{name: pow2, min_power: 4.0}", "expected a whole number, found 4.0"),
        ("{name: pow2, shapes: [[1, 2, 3]]}", "shapes: pow2 has its own\n    Remove them, or write name: custom."),
        ("{name: custom, shapes: [[1, 2, 3]], min_power: 3}", "min_power: custom has no powers"),
        ("{name: custom, shapes: []}", "shapes: expected at least 1 item, found 0"),
        ("{name: custom, shapes: [[0, 2, 3]]}", "found [0, 2, 3]"),
        ("{name: custom, shapes: [[1, 0, 3]]}", "found [1, 0, 3]"),
        ("{name: custom, shapes: [[1, 2, x]]}", "found [1, 2, 'x']"),
        ("{name: custom, shapes: [[1, 2, 3.0]]}", "found [1, 2, 3.0]"),
        ("{name: custom, shapes: [[1, 2, true]]}", "found [1, 2, True]"),
        ("{name: custom, shapes: [[1, 2, 2147483648]]}", "found [1, 2, 2147483648]"),
        ("{name: custom, shapes: [[1, 2, 3, 4, 5, 6, 7]]}", "found [1, 2, 3, 4, 5, 6, ...]"),
    ],
)
def test_shapes_that_are_none(folder: Path, registry: PluginRegistry, shapes: str, said: str) -> None:
    (message,) = refused(folder, registry, f"model_params:\n  matrix_shapes: [{shapes}]\n")
    assert message.startswith("x.yml:2: model_params.matrix_shapes[0].")
    assert said in message


def test_a_set_may_be_listed_twice(folder: Path, registry: PluginRegistry) -> None:
    # As torchao has it: two ranges of one set, of which a shape that both have is measured once.
    text = "model_params:\n  matrix_shapes:\n"
    for least, most in ((4, 5), (5, 6)):
        text += f"    - {{name: pow2, min_power: {least}, max_power: {most}}}\n"
    config = read(folder, registry, text)
    assert [shape.label for shape in config.models[0].shapes] == ["16-16-16", "32-32-32", "32-32-32", "64-64-64"]
    assert [point.shape.m for point in list_points(config)] == [16, 32, 64]


def test_entries_without_names_have_names_of_their_own(folder: Path, registry: PluginRegistry) -> None:
    entry = "  - {{{0}matrix_shapes: [{{name: llama}}]}}\n"
    kinds = ("", "model_type: ln_linear_gelu, ", "", "name: linear-2, ", "")
    config = read(folder, registry, "model_params:\n" + "".join(map(entry.format, kinds)))
    assert [model.name for model in config.models] == ["linear", "ln_linear_gelu", "linear-3", "linear-2", "linear-4"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gemlitewo-4-64", "GemLite's kernels are made for CUDA"),
        ("gemlitewo", "GemLite's"),
        ("int4wo-128-hqq", "HQQ, which searches"),
        ("int4wo-64-gptq", "calibrated"),
        ("marlin", "Marlin's kernels"),
        ("marlin-qqq", "Marlin's kernels"),
        ("fp6", "floats of six bits"),
        ("uintx-2-64", "torchao packs one to eight bits"),
        ("uintx-4-64-hqq", "torchao packs"),
        ("int8adq-int4w-symm", "CUTLASS's"),
        ("int8_dynamic_activation_intx_weight-4-32-false", "kernels for ARM"),
        ("int8dq_prefill_wo_decode", "int8dq is the one"),
        ("float8_a1x128_w128x128", "float8dq-row"),
    ],
)
def test_recipes_of_torchao_that_are_not_made_here_are_refused_each_by_itself(
    folder: Path, registry: PluginRegistry, text: str, said: str
) -> None:
    listed = f'quantization_config_recipe_names: [int8wo, "{text}"]\nsparsity_config_recipe_names: ["2:4"]\n'
    config = read(folder, registry, listed + MODELS)
    baseline, int8wo, refused = config.variants
    assert (baseline.refusal, int8wo.refusal, refused.label) == ("", "", text)
    assert said in refused.refusal


def test_a_shape_set_that_fails_is_its_plugins_problem(folder: Path, registry: PluginRegistry) -> None:
    with pytest.raises(SpecError, match="ValueError: no shapes today") as caught:
        read(folder, registry, "model_params:\n  matrix_shapes: [{name: broken}]\n")
    assert "plugin.py:" in caught.value.what


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
    max_examples=part_of_the_examples(0.5),
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
    config = read(folder, registry, yaml.safe_dump(document, default_flow_style=flow, sort_keys=False))
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
        config = read(folder, registry, text)
    except SpecError as error:
        assert error.problems  # noqa: PT017 - hardly any text is a configuration
    else:
        assert config.models
