"""Building variants in the Python that has torch: the files of a build, and messages about mistakes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.torch_models.build_files import VariantPlan, check_plan, read_plan
from iree_gauntlet.torch_models.formats import TORCH_TYPES
from tests.support.variant_builder import (
    VariantBuild,
    build_variant,
    build_variant_in_process,
    compute_distance,
    list_errors,
    make_plan,
    run_builder,
)

if TYPE_CHECKING:
    from pathlib import Path

# The plan

_TEXT = st.text(min_size=1, max_size=8)
_SIZE = st.integers(0, 1 << 20)
_PLANS = st.builds(
    VariantPlan,
    plugins=st.lists(_TEXT, max_size=2).map(tuple),
    model_type=_TEXT,
    config=st.none() | _TEXT,
    m=_SIZE,
    k=_SIZE,
    n=_SIZE,
    dtype=st.sampled_from(list(TORCH_TYPES)),
    quantization=_TEXT,
    sparsity=st.none() | _TEXT,
    output=st.text(max_size=8),
)


@given(_PLANS)
def test_a_plan_survives_its_file(plan: VariantPlan) -> None:
    assert check_plan(json.loads(plan.to_json()), "here", VariantPlan) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "unknown fields of a plan: list"),
        ('{"model_type": "a", "m": 1, "k": 1, "n": 1, "mode": 1}', "unknown fields of a plan: mode"),
        ('{"model_type": "", "m": -1, "k": true}', "wrong type: k, m, model_type, n"),
        (
            '{"model_type": "a", "m": 1, "k": 1, "n": 1, "dtype": "f64", "plugins": "x", "sparsity": "", "output": 1}',
            "wrong type: dtype, output, plugins, sparsity",
        ),
    ],
)
def test_plans_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_plan(path, VariantPlan)


def test_labels() -> None:
    assert VariantPlan(model_type="linear", m=1, k=1, n=1).label == "baseline"
    assert VariantPlan(model_type="linear", m=1, k=1, n=1, quantization="int8dq", sparsity="2:4").label == "int8dq+2:4"


def test_a_python_without_torch_says_what_to_install(tmp_path: Path) -> None:
    try:
        import torch  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        done = run_builder(make_plan(tmp_path / "built"))
        assert done.returncode == 2
        assert "lacks torch, needed to build models" in list_errors(done)[0]
        assert 'pip install "iree-gauntlet[models]"' in done.stderr
        assert not done.stdout
    else:
        pytest.skip("torch is here")


# With torch


@pytest.fixture
def torch() -> Any:
    import torch  # noqa: PLC0415 - not for those who have none

    return torch


def plugin(folder: Path, text: str) -> tuple[str, ...]:
    file = folder / "mine.py"
    file.write_text(f"from iree_gauntlet.micro.registry import activation, architecture, recipe\n\n{text}", "utf-8")
    return (str(file),)


def files(folder: VariantBuild) -> dict[str, str]:
    paths = [path for path in folder.folder.iterdir() if path.suffix != ".json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.models
def test_the_same_plan_gives_the_same_bytes(tmp_path: Path, torch: Any) -> None:
    one, two = (
        build_variant(tmp_path / name, "ln_linear_gelu", dtype="bf16", quantization="int4wo-16", sparsity="2:4")
        for name in ("one", "two")
    )
    assert files(one) == files(two)
    records = [one.record, two.record]
    for record in records:
        del record["seconds"]
    assert records[0] == records[1]
    program = (one.folder / "main.onnx").read_bytes()
    assert str(tmp_path).encode() not in program


@pytest.mark.models
def test_what_is_left_of_a_baseline(tmp_path: Path, torch: Any) -> None:
    record = build_variant_in_process(tmp_path, make_plan(tmp_path, "linear", 3, 64, 32)).record
    assert (record["kind"], record["samples"], record["parameter_count"]) == ("pipeline", 3, 64 * 32)
    assert (record["flops"], record["changed_layers"], record["changed_bytes"]) == (2 * 3 * 64 * 32, 0, 0)
    assert record["reference"] == []
    assert record["contractions"] == 1
    (program,) = record["programs"]
    assert (program["name"], program["onnx"]) == ("main", "main.onnx")
    assert [(item["type"], item["shape"]) for item in program["inputs"]] == [("f32", [3, 64])]
    assert [(item["type"], item["shape"]) for item in program["outputs"]] == [("f32", [3, 32])]


@pytest.mark.models
def test_the_reference_is_the_unchanged_model_in_f32(tmp_path: Path, torch: Any) -> None:
    plain = build_variant_in_process(tmp_path / "plain", make_plan(tmp_path, "transformer_block", 2, 64))
    changed = build_variant_in_process(
        tmp_path / "changed", make_plan(tmp_path, "transformer_block", 2, 64, quantization="int8dq")
    )
    assert np.array_equal(plain.outputs()[0], changed.reference()[0])
    assert changed.record["changed_layers"] == 4
    assert changed.record["changed_bytes"] == 4 * 64 * 64 * (3 + 1 + 4 + 4)
    assert changed.record["flops"] == plain.record["flops"]
    assert 0 < compute_distance(changed.outputs(), changed.reference()) < 0.05
    narrow = build_variant_in_process(
        tmp_path / "narrow", make_plan(tmp_path, "transformer_block", 2, 64, dtype="bf16")
    )
    assert narrow.record["reference"][0]["type"] == "f32"
    assert 0 < compute_distance(narrow.outputs(), narrow.reference()) < 0.02


@pytest.mark.models
@pytest.mark.parametrize("ending", ["relu", "sigmoid", "leakyrelu", "relu6", "gelu", "silu", "hardswish"])
def test_activations(tmp_path: Path, torch: Any, ending: str) -> None:
    functions = {"leakyrelu": "leaky_relu"}
    found = build_variant_in_process(tmp_path, make_plan(tmp_path, f"ln_linear_{ending}", 3, 64, 32))
    torch.manual_seed(0)
    nn = torch.nn
    weight = nn.Linear(64, 32, bias=False).weight
    given = nn.functional.layer_norm(torch.randn(3, 64), (64,))
    expected = getattr(nn.functional, functions.get(ending, ending))(given @ weight.t())
    assert compute_distance(found.outputs(), [expected.detach().double().numpy()]) < 1e-5


def configuration(folder: Path, **fields: Any) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "vocab_size": 100, **sizes, **fields}), encoding="utf-8")
    return path


@pytest.mark.models
def test_a_configuration_of_transformers(tmp_path: Path, torch: Any) -> None:
    path = configuration(tmp_path)
    for config, k, n, width in ((path, 0, 0, 32), (tmp_path, 64, 96, 64)):
        plan = make_plan(tmp_path, "transformers", 7, k, n, config=str(config), quantization="int8dq")
        record = build_variant_in_process(tmp_path / f"built{k}", plan).record
        (program,) = record["programs"]
        assert [(item["type"], item["shape"]) for item in program["inputs"]] == [("i64", [1, 7])]
        assert next(item["shape"] for item in program["outputs"]) == [1, 7, width]
        # Queries, keys, values, what follows them, and the network; and the pooler, which is no part of the output.
        assert record["changed_layers"] in (6, 7)


@pytest.mark.models
@pytest.mark.parametrize(
    ("fields", "k", "message"),
    [
        ({"model_type": "no such model"}, 0, "cannot read this configuration"),
        ({"model_type": "vit"}, 0, "vit is not a model that takes only tokens"),
        ({"max_position_embeddings": 4}, 0, "m = 7 tokens, and max_position_embeddings is 4"),
        ({}, 33, "transformers"),
    ],
)
def test_configurations_that_do_not_fit(
    tmp_path: Path, torch: Any, fields: dict[str, Any], k: int, message: str
) -> None:
    path = configuration(tmp_path, **fields)
    with pytest.raises(GauntletError, match=message):
        build_variant_in_process(tmp_path / "built", make_plan(tmp_path, "transformers", 7, k, 0, config=str(path)))


@pytest.mark.models
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model_type": "linaer"}, "no such model type: 'linaer'"),
        ({"quantization": "int8w"}, "no such recipe: 'int8w'"),
        ({"quantization": "int4wo-x"}, "group"),
        ({"quantization": "int4wo-7"}, "even number"),
        ({"quantization": "int4wo-48"}, "64 inputs are not divisible into groups of 48"),
        ({"quantization": "gemlitewo-4-32"}, "GemLite's kernels are written for CUDA"),
        ({"sparsity": "block-48"}, "not divisible into blocks of 48 x 48"),
        ({"sparsity": "2:4", "k": 63}, "63 inputs are not a multiple of 4"),
        ({"model_type": "transformer_block", "k": 60}, "k = 60 is not a multiple of 8 heads"),
    ],
)
def test_what_does_not_fit_together(tmp_path: Path, torch: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_variant_in_process(tmp_path, make_plan(tmp_path, **asked))
    assert not (tmp_path / "build.json").exists()


NOTHING = """
@recipe("nothing", kind="quantization")
def nothing(model):
    return model
"""
FAILS = """
@recipe("fails", kind="quantization")
def fails(model):
    return 1 / 0
"""
NO_MODULE = """
@recipe("none", kind="quantization")
def none(model):
    model.linear1.weight += 1
"""
RANDOM = """
@architecture("random")
def random(m, k, n, dtype):
    import torch
    class Random(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)
    return Random(), torch.ones(m, k)
"""
ODD = """
@architecture("odd")
def odd(m, k, n, dtype):
    return "model", ()
"""
INSIDE = """
@architecture("inside")
def inside(m, k, n, dtype):
    import torch
    class Inside(torch.nn.Module):
        def forward(self, x):
            return x @ torch.ones(1, 1)
    return Inside(), (torch.ones(m, k),)
"""


@pytest.mark.models
@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        (NOTHING, {"quantization": "nothing"}, "nothing changes none of its 1 linear layers in linear"),
        (FAILS, {"quantization": "fails"}, r"mine.py:6: fails: ZeroDivisionError"),
        (NO_MODULE, {"quantization": "none"}, r"mine.py:4: none: it returned NoneType"),
        (RANDOM, {"model_type": "random"}, "output 0 differs at a second call"),
        (ODD, {"model_type": "odd"}, r"mine.py:4: odd: it returned str first"),
        (INSIDE, {"model_type": "inside"}, r"mine.py:9: inside: RuntimeError"),
    ],
)
def test_plugins_that_are_written_wrong(
    tmp_path: Path, torch: Any, text: str, asked: dict[str, Any], message: str
) -> None:
    given = plugin(tmp_path, text)
    with pytest.raises(GauntletError, match=message):
        build_variant_in_process(tmp_path / "built", make_plan(tmp_path, plugins=given, **asked))


@pytest.mark.models
def test_a_plugin_s_recipe_and_architecture(tmp_path: Path, torch: Any) -> None:
    given = plugin(
        tmp_path,
        """
@recipe("scaled", kind="quantization")
def scaled(model, by: int = 2):
    for layer in model:
        layer.weight.mul_(by)
    return model


@architecture("two")
def two(m, k, n, dtype):
    import torch
    from torch import nn
    print("chatter")
    return nn.Sequential(nn.Linear(k, n), nn.Linear(n, k)), (torch.randn(m, k),)
""",
    )
    found = build_variant(tmp_path / "built", "two", plugins=given, quantization="scaled-3", dtype="f16")
    record = found.record
    assert record["changed_layers"] == 2
    assert record["changed_bytes"] == 2 * 2 * 64 * 32
    assert record["programs"][0]["outputs"][0]["type"] == "f16"
    assert compute_distance(found.outputs(), found.reference()) > 1


@pytest.mark.models
def test_problems_are_lines_that_begin_with_error(tmp_path: Path, torch: Any) -> None:
    done = run_builder(make_plan(tmp_path / "a", plugins=plugin(tmp_path, FAILS), quantization="fails"))
    assert done.returncode == 2
    (line,) = list_errors(done)
    assert "mine.py:6: fails: ZeroDivisionError: division by zero" in line
    assert not done.stdout
