"""The llama block: its files fit together, and its expected output distinguishes right programs from wrong ones."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.artifacts.parameters import RandomContent, make_random_bytes, write_archive
from iree_gauntlet.artifacts.program_parameters import collect_parameters
from tests.support.native_tools import find_native_tool
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from iree_gauntlet.artifacts.program_parameters import Parameter

FOLDER = ROOT / "specs" / "torch_models" / "llama_block"
PROGRAM = FOLDER / "modules" / "block.mlir"
GOLDEN = FOLDER / "block_quality_cpu"
SEED = 42
TOLERANCE = 1e-5

Weights = dict[str, Any]


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """tools/llama_block.py; what it imports of tools/llama_reference.py is there too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        yield importlib.import_module("llama_block")
        for name in ("llama_block", "llama_reference"):
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def reference(scripts: Any) -> Any:
    return importlib.import_module(scripts.read_architecture.__module__)


@pytest.fixture(scope="module")
def architecture(scripts: Any) -> Any:
    return scripts.read_architecture(FOLDER / "architecture.json")


@pytest.fixture(scope="module")
def weights() -> Weights:
    return made(parameters())


def parameters() -> tuple[Parameter, ...]:
    return collect_parameters(PROGRAM, "no tool is needed")


def made(wanted: tuple[Parameter, ...], seed: int = SEED) -> Weights:
    return {
        item.name: np.frombuffer(b"".join(make_random_bytes(item, seed)), dtype="<f4").reshape(item.shape)
        for item in wanted
    }


def expected() -> NDArray[np.float32]:
    output: NDArray[np.float32] = np.load(GOLDEN / "output_0.npy")
    return output


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_program_names_the_parameters_of_the_architecture(scripts: Any, architecture: Any) -> None:
    found = parameters()
    assert {item.name: item.shape for item in found} == scripts.list_parameter_shapes(architecture)
    assert {(item.scope, item.element_type) for item in found} == {("model", "f32")}
    assert 1_000_000 < sum(item.count for item in found) < 5_000_000


def test_program_says_nothing_of_the_machine_it_was_made_on() -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    assert "loc(" not in text
    assert not any(f"{place}/" in text for place in ("/tmp", "/home", "/root", "/usr", "site-packages"))
    assert "func.func @prefill(%arg0: !torch.vtensor<[1,16],si64>) -> !torch.vtensor<[1,16,512],f32>" in text


def test_files_are_small() -> None:
    assert all(path.stat().st_size < 1 << 20 for path in FOLDER.rglob("*") if path.is_file())


def test_provenance_is_of_the_files_next_to_it(tmp_path: Path) -> None:
    exported = read(PROGRAM.with_name("provenance.json"))["provenance"]
    recorded = read(GOLDEN / "provenance.json")["provenance"]
    archive = tmp_path / "model.irpa"
    write_archive(archive, parameters(), RandomContent(SEED))
    assert exported["program"]["sha256"] == recorded["model"]["sha256"] == sha256(PROGRAM)
    assert recorded["weights"]["sha256"] == sha256(archive)
    for item in (*recorded["inputs"], *recorded["outputs"]):
        assert item["sha256"] == sha256(GOLDEN / item["source"])
        assert item["shape"] == list(np.load(GOLDEN / item["source"]).shape)


def test_specs_use_the_weights_and_tolerance_of_the_recording() -> None:
    quality = read(FOLDER / "block_quality_cpu.json")
    assert quality["weights"] == [{"type": "random", "module": quality["modules"][0], "seed": SEED, "scope": "model"}]
    assert f"--expected_f32_threshold={TOLERANCE:.0e}".replace("e-05", "e-5") in quality["run_args"]
    assert read(GOLDEN / "provenance.json")["provenance"]["tolerance"] == TOLERANCE


def test_reference_gives_the_recorded_output(scripts: Any, architecture: Any, weights: Weights) -> None:
    tokens = scripts.build_prompt(architecture)
    np.testing.assert_array_equal(tokens, np.load(GOLDEN / "input_0.npy"))
    np.testing.assert_allclose(scripts.compute_logits(architecture, weights, tokens), expected(), rtol=1e-6, atol=1e-9)


def test_output_is_far_above_the_tolerance(scripts: Any) -> None:
    output = expected()
    scripts.check_output(output)
    seen = np.abs(output) * 0.01 > TOLERANCE + 1e-5 * np.abs(output)
    assert seen.mean() > 0.99  # a hundredth more or less fails nearly everywhere


@pytest.mark.parametrize(
    "values", [np.full((1, 4), np.nan), np.full((1, 4), 0.2), np.array([1.0, np.inf]), np.linspace(0, 1e-4, 9)]
)
def test_output_that_proves_nothing_is_refused(scripts: Any, values: NDArray[np.float64]) -> None:
    with pytest.raises(scripts.BlockError):
        scripts.check_output(values.astype(np.float32))


@pytest.mark.parametrize("change", [{"rope_theta": 20000.0}, {"rope_theta": 1.0}, {"norm_epsilon": 2e-6}], ids=str)
def test_another_architecture_is_seen(
    scripts: Any, architecture: Any, weights: Weights, change: dict[str, float]
) -> None:
    other = dataclasses.replace(architecture, **change)
    assert error(scripts.compute_logits(other, weights, scripts.build_prompt(other))) > 100 * TOLERANCE


@pytest.mark.parametrize("name", [item.name for item in parameters()])
def test_every_parameter_is_seen(scripts: Any, architecture: Any, weights: Weights, name: str) -> None:
    # A norm without its weight; a matrix whose columns are one off (a factor would not do before a norm).
    bent = np.zeros_like(weights[name]) if weights[name].ndim == 1 else np.roll(weights[name], 1, axis=-1)
    output = scripts.compute_logits(architecture, weights | {name: bent}, scripts.build_prompt(architecture))
    assert error(output) > 100 * TOLERANCE


def test_heads_that_share_wrong_keys_are_seen(scripts: Any, architecture: Any, weights: Weights) -> None:
    width, kept = architecture.head_width, weights["layers.1.attention.key"]
    swapped = np.concatenate([kept[:, width : 2 * width], kept[:, :width], kept[:, 2 * width :]], axis=1)
    bent = weights | {"layers.1.attention.key": swapped}
    assert error(scripts.compute_logits(architecture, bent, scripts.build_prompt(architecture))) > 100 * TOLERANCE


def test_reference_is_causal(scripts: Any, architecture: Any, weights: Weights) -> None:
    tokens = scripts.build_prompt(architecture)
    tokens[0, -1] = (tokens[0, -1] + 1) % architecture.vocabulary
    difference = np.abs(scripts.compute_logits(architecture, weights, tokens) - expected())
    assert difference[0, :-1].max() < 1e-6
    assert difference[0, -1].max() > 0.1


def test_rotary_scores_depend_on_the_distance_alone(reference: Any, architecture: Any) -> None:
    query, key = np.random.default_rng(1).normal(size=(2, architecture.head_width))
    positions = np.ones((architecture.sequence, 1))
    scores = reference._rotate(architecture, positions * query) @ reference._rotate(architecture, positions * key).T
    for distance in range(architecture.sequence):
        np.testing.assert_allclose(np.diagonal(scores, distance), scores[0, distance], rtol=1e-9, atol=1e-9)
    assert scores[0].std() > 0.1


def error(output: NDArray[np.float64]) -> float:
    return float(np.abs(output - expected()).max())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 7}, "evenly"),
        ({"key_value_heads": 3}, "evenly"),
        ({"layers": 0}, "layers is 0, expected a positive int"),
        ({"layers": True}, "layers is True"),
        ({"hidden": 256.0}, "hidden is 256.0"),
        ({"name": ""}, "name is ''"),
        ({"colour": 1}, "exactly the fields name, vocabulary"),
    ],
)
def test_architecture_that_cannot_be_built(
    reference: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "architecture.json"
    path.write_text(json.dumps(read(FOLDER / "architecture.json") | change), encoding="utf-8")
    with pytest.raises(reference.ArchitectureError, match=message):
        reference.read_architecture(path)


def test_architecture_that_cannot_be_read(reference: Any, tmp_path: Path) -> None:
    path = tmp_path / "architecture.json"
    with pytest.raises(reference.ArchitectureError, match="cannot be read"):
        reference.read_architecture(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(reference.ArchitectureError, match="cannot be read"):
        reference.read_architecture(path)


def test_export_without_torch_says_what_to_install(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    before = sha256(PROGRAM)
    assert scripts.main(["export"]) == 3
    assert "pip install torch" in capsys.readouterr().err
    assert sha256(PROGRAM) == before


@pytest.mark.iree
def test_golden_makes_the_recorded_files_again(scripts: Any, tmp_path: Path) -> None:
    folder = tmp_path / "llama_block"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("block_quality_cpu*"))
    assert scripts.main(["--folder", str(folder), "golden"]) == 0
    again = folder / GOLDEN.name
    assert sha256(again / "input_0.npy") == sha256(GOLDEN / "input_0.npy")
    np.testing.assert_allclose(np.load(again / "output_0.npy"), expected(), rtol=1e-6, atol=1e-9)


@pytest.mark.iree
def test_golden_wants_the_parameters_in_the_archive(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FOLDER, tmp_path / "llama_block")
    archive = tmp_path / "part.irpa"
    write_archive(archive, parameters()[:3], RandomContent(SEED))
    assert scripts.main(["--folder", str(tmp_path / "llama_block"), "golden", "--weights", str(archive)]) == 3
    assert "layers.0.attention.key is missing" in capsys.readouterr().err


@pytest.mark.iree
@pytest.mark.stress
def test_iree_agrees_and_fails_with_other_weights(tmp_path: Path) -> None:
    module = tmp_path / "block.vmfb"
    flags = read(FOLDER / "modules" / "block_cpu.json")["compiler_flags"]
    compiler = find_native_tool("iree-compile")
    subprocess.run([compiler, PROGRAM, "-o", module, *flags], check=True, capture_output=True)
    exit_codes = {}
    for seed in (SEED, SEED + 1):
        archive = tmp_path / f"{seed}.irpa"
        write_archive(archive, parameters(), RandomContent(seed))
        quality = read(FOLDER / "block_quality_cpu.json")
        argv = [
            find_native_tool("iree-run-module"),
            f"--module={module}",
            f"--parameters=model={archive}",
            *[f"--input=@{FOLDER / item['url']}" for item in quality["inputs"]],
            *[f"--expected_output=@{FOLDER / item['url']}" for item in quality["expected_outputs"]],
            *quality["run_args"],
        ]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        assert "result[0]" in done.stdout or done.returncode == 0, done.stderr
        exit_codes[seed] = done.returncode
    assert exit_codes == {SEED: 0, SEED + 1: 1}
