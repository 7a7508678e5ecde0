"""Wrong configurations of micro-benchmarks: all mistakes are reported at once, each with its place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.dialects.yaml_file import read_yaml
from iree_gauntlet.errors import SpecError, UsageError
from iree_gauntlet.torch_models.configuration import list_points, read_micro_config
from tests.support.micro_configurations import MODELS, make_registry, read_config, read_problems

if TYPE_CHECKING:
    from iree_gauntlet.torch_models.plugins import PluginRegistry


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> PluginRegistry:
    return make_registry(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    messages = read_problems(folder, registry, text)
    expected = [
        "1: benchmark_mode: micro does not measure training\n    Write inference, or remove the field.",
        "2: quantization_config_recipe_names[0]: no such recipe: 'int8w'\n    Did you mean int8wo? Available: 2:4, ",
        "2: quantization_config_recipe_names[1]: recipe 'int4wo-x': group: expected a whole number, found 'x'\n",
        "2: quantization_config_recipe_names[2]: block is a sparsity recipe\n    List it under sparsity_config",
        '2: quantization_config_recipe_names[3]: expected a string, found 5\n    Write it in quotes: "5".',
        "2: quantization_config_recipe_names[4]: expected a string, found an array",
        "3: sparsity_config_recipe_names[0]: int8wo is a quantization recipe\n    List it under quantization_config",
        "3: sparsity_config_recipe_names[1]: no such recipe: 'blok'\n    Did you mean block?",
        "5: output_dir: expected a folder below the working directory, found '../results'\n",
        "5: output_dir: this field is already on line 4\n    Remove one of them.",
        "6: model_parms: unknown field; did you mean 'model_params'?",
        "10: model_params[0].matrix_shapes[0].name: no such shape set: 'pow3'\n    Did you mean pow2? Available: bro",
        "12: model_params[0].matrix_shapes[1].min_power: min_power 12 is above max_power 11\n    Give both.",
        "15: model_params[0].matrix_shapes[2].min_power: llama has no powers\n    Remove it.",
        "16: model_params[0].matrix_shapes[3].name: is missing: the field is required",
        "17: model_params[0].matrix_shapes[4].shapes[0]: expected [m, k, n], three integers from 1 to 2,147,483,6",
        "17: model_params[0].matrix_shapes[4].shapes[1]: expected [m, k, n], three integers from 1 to 2,147,483,6",
        "17: model_params[0].matrix_shapes[4].shapes[2]: expected [m, k, n], three integers from 1 to 2,147,483,6",
        "17: model_params[0].matrix_shapes[4].shapes[3]: expected [m, k, n], three integers from 1 to 2,147,483,6",
        "18: model_params[0].matrix_shapes[5].shapes: is missing: custom is the set of listed shapes\n    Such",
        '19: model_params[0].matrix_shapes[6]: expected an object, found the string "pow2"',
        "20: model_params[0].high_precision_dtype: expected a value 'torch.float32', 'torch.float16', 'torch.bfloat16'",
        "21: model_params[0].torch_compile_mode: expected a value 'default', 'reduce-overhead', 'max-autotune' or ",
        "22: model_params[0].compile: expected a value 'default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-",
        "23: model_params[0].device: there is no device 'gpu'\n    Write cpu, cuda, mps, xpu, or a device of IREE",
        "24: model_params[0].model_type: no such model type: 'ln_linear_gel'\n    Did you mean ln_linear_gelu",
        "25: model_params[0].enable_profiler: expected true or false, found 1",
        "26: model_params[0].enable_memory: unknown field; did you mean 'enable_memory_profiler'?",
        "27: model_params[1].name: one is already the name of another entry\n    Give each entry a name of its own.",
        "28: model_params[1].matrix_shapes: expected at least 1 item, found 0",
        "29: model_params[2].matrix_shapes: is missing: it lists the shapes to measure",
        "29: model_params[2].name: one is already the name of another entry\n",
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
        (f"<<: {{output_dir: a}}\n<<: {{output_dir: b}}\n{MODELS}", "x.yml:2: <<: this field is already on line 1"),
    ],
)
def test_files_that_are_no_configuration(folder: Path, registry: PluginRegistry, text: str, said: str) -> None:
    assert read_problems(folder, registry, text)[0].startswith(said)


def test_files_that_cannot_be_read(folder: Path, registry: PluginRegistry) -> None:
    with pytest.raises(UsageError, match=r"configuration y\.yml does not exist\n  Configurations are YAML files\."):
        read_micro_config(Path("y.yml"), registry)
    (folder / "x.yaml").write_bytes(b"a: \xff")
    with pytest.raises(UsageError, match=r"Configurations in this folder: x\.yaml\."):
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
    models = read_config(folder, registry, text).models
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
    messages = read_problems(folder, registry, "\n".join(lines))
    assert len(messages) == 29
    assert max(map(len, messages)) < 250


@pytest.mark.parametrize("number", ["010", "0x10", "1_0", "+1", "1:30", "!!int x"])
def test_numbers_that_yaml_reads_in_another_way_are_refused(
    folder: Path, registry: PluginRegistry, number: str
) -> None:
    shapes = f"model_params:\n  matrix_shapes:\n  - {{name: pow2, max_power: {number}}}\n"
    (message,) = read_problems(folder, registry, shapes)
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
    messages = read_problems(folder, registry, text)
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
        ('output_dir: ""', "output_dir: expected a readable string, found ''"),
        ('output_dir: "a\\nb"', "expected a readable string"),
        ("output_dir: !!timestamp x", "output_dir: expected a string, found x"),
        ("output_dir: !!set {a}", "output_dir: expected a string, found "),
        ("output_dir: !!binary aGk=", "output_dir: expected a string, found aGk="),
        ("output_dir: 2026-13-41", 'found 2026-13-41\n    Write it in quotes: "2026-13-41".'),
        ("benchmark_mode: inferense", "expected inference, found 'inferense'"),
        ("benchmark_mode: no", 'expected a string, found no\n    Write it in quotes: "no".'),
        ("quantization_config_recipe_names: int8wo", 'expected an array, found the string "int8wo"'),
        ("quantization_config_recipe_names: [int4wo, int4wo-32]", "int4wo-32 is int4wo, which is also listed"),
        ("sparsity_config_recipe_names: [2:4]", 'found 2:4\n    Write it in quotes: "2:4".'),
        ("sparsity_config_recipe_names: [1.10]", 'found 1.10\n    Write it in quotes: "1.10".'),
    ],
)
def test_single_fields_of_the_document(folder: Path, registry: PluginRegistry, text: str, said: str) -> None:
    (message,) = read_problems(folder, registry, f"{text}\n{MODELS}")
    assert message.startswith("x.yml:1: ")
    assert said in message


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("name: a/b", "'a/b' is not a valid name"),
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
        ("matrix_shapes: [{name: llama}]", "this field is already on line"),
    ],
)
def test_single_fields_of_an_entry(folder: Path, registry: PluginRegistry, field: str, said: str) -> None:
    (message,) = read_problems(folder, registry, f"model_params:\n  matrix_shapes: [{{name: llama}}]\n  {field}\n")
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
    (message,) = read_problems(folder, registry, f"model_params:\n  matrix_shapes: [{shapes}]\n")
    assert message.startswith("x.yml:2: model_params.matrix_shapes[0].")
    assert said in message


def test_a_set_may_be_listed_twice(folder: Path, registry: PluginRegistry) -> None:
    # As torchao has it: two ranges of one set, of which a shape that both have is measured once.
    text = "model_params:\n  matrix_shapes:\n"
    for least, most in ((4, 5), (5, 6)):
        text += f"    - {{name: pow2, min_power: {least}, max_power: {most}}}\n"
    config = read_config(folder, registry, text)
    assert [shape.label for shape in config.models[0].shapes] == ["16-16-16", "32-32-32", "32-32-32", "64-64-64"]
    assert [point.shape.m for point in list_points(config)] == [16, 32, 64]


def test_entries_without_names_have_names_of_their_own(folder: Path, registry: PluginRegistry) -> None:
    entry = "  - {{{0}matrix_shapes: [{{name: llama}}]}}\n"
    kinds = ("", "model_type: ln_linear_gelu, ", "", "name: linear-2, ", "")
    config = read_config(folder, registry, "model_params:\n" + "".join(map(entry.format, kinds)))
    assert [model.name for model in config.models] == ["linear", "ln_linear_gelu", "linear-3", "linear-2", "linear-4"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gemlitewo-4-64", "GemLite's kernels are written for CUDA"),
        ("gemlitewo", "GemLite's"),
        ("int4wo-128-hqq", "HQQ, which searches"),
        ("int4wo-64-gptq", "calibration"),
        ("marlin", "Marlin's kernels"),
        ("marlin-qqq", "Marlin's kernels"),
        ("fp6", "floats of six bits"),
        ("uintx-2-64", "torchao packs one to eight bits"),
        ("uintx-4-64-hqq", "torchao packs"),
        ("int8adq-int4w-symm", "CUTLASS's"),
        ("int8_dynamic_activation_intx_weight-4-32-false", "own ARM kernels"),
        ("int8dq_prefill_wo_decode", "int8dq is its recipe for prompts"),
        ("float8_a1x128_w128x128", "float8dq-row"),
    ],
)
def test_recipes_of_torchao_that_are_not_made_here_are_refused_each_by_itself(
    folder: Path, registry: PluginRegistry, text: str, said: str
) -> None:
    listed = f'quantization_config_recipe_names: [int8wo, "{text}"]\nsparsity_config_recipe_names: ["2:4"]\n'
    config = read_config(folder, registry, listed + MODELS)
    baseline, int8wo, refused = config.variants
    assert (baseline.refusal, int8wo.refusal, refused.label) == ("", "", text)
    assert said in refused.refusal


def test_a_shape_set_that_fails_is_its_plugins_problem(folder: Path, registry: PluginRegistry) -> None:
    with pytest.raises(SpecError, match="ValueError: no shapes today") as caught:
        read_config(folder, registry, "model_params:\n  matrix_shapes: [{name: broken}]\n")
    assert "plugin.py:" in caught.value.message
