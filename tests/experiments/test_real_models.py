"""Two pretrained models from PyPI wheels, as a user runs them; `test_all_models.py` runs all models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.real_models import ModelRun, run_models
from tests.support.session_folder import SESSION_FOLDER_VARIABLE, make_once

pytestmark = [pytest.mark.iree, pytest.mark.timeout(1200)]

# Those that take least time to fetch and to compile.
_CHAINS = ("dtln/spectral@cpu", "magika/standard@cpu")


def _place() -> Path:
    """Where the models' cache and first run lie: the same for all processes of a session, as records name paths."""
    return Path(os.environ[SESSION_FOLDER_VARIABLE]) / "two-models"


def _run(name: str, folder: Path, specs: tuple[str, ...], *models: str, more: str = "") -> ModelRun:
    """Runs models; each is `model/submodel`."""
    places = ", ".join(f'"{ROOT / "specs" / folder}"' for folder in specs)
    included = "".join(
        f'[[include]]\nmodel = "{model}"\nsubmodel = "{submodel}"\n{more}'
        for model, submodel in (name.split("/") for name in models)
    )
    suite = folder / f"{name}.toml"
    suite.write_text(f'name = "{name}"\ntarget = "cpu"\nspec_dirs = [{places}]\n{included}')
    return run_models(suite, _place() / "cache", folder / name)


def _on_cpu(name: str, folder: Path) -> ModelRun:
    return _run(name, folder, ("regression_tests", "benchmarks"), "magika/standard", "dtln/spectral")


def _run_cold(made: Path) -> None:
    _place().mkdir()
    run = _on_cpu("cold", _place())
    (made / "run.json").write_text(json.dumps([str(run.folder), run.code, run.output]))


@pytest.fixture
def cold() -> ModelRun:
    folder, code, output = json.loads((make_once("two-models-ran", _run_cold) / "run.json").read_text())
    return ModelRun(Path(folder), code, output)


def test_two_models_pass_all_three_steps(cold: ModelRun) -> None:
    assert cold.code == 0, cold.output
    assert cold.list_passed_chains() == set(cold.verdicts("threshold")) == set(_CHAINS)
    assert "fetch" in {step.rsplit(":", 1)[1] for step in cold.list_uncached_steps()}


def test_times_without_a_golden_of_this_machine_are_shown_and_not_judged(cold: ModelRun) -> None:
    for chain in _CHAINS:
        result = cold.results[f"{chain}:benchmark"]
        assert [check.passed for check in result.checks] == [None] * len(result.checks)
        assert result.samples is not None
        assert len(result.samples.real_time_ms) > 1


def test_numbers_of_every_output_are_kept(cold: ModelRun) -> None:
    cold.check_numbers()


@pytest.mark.stress
def test_the_second_run_comes_from_the_cache(cold: ModelRun, tmp_path: Path) -> None:
    assert cold.code == 0
    warm = _on_cpu("warm", tmp_path)
    assert warm.code == 0, warm.output
    assert warm.list_uncached_steps() == []
    assert "compiles: 2 from cache, 0 made" in warm.output


def _run_torch_model(name: str, folder: Path) -> ModelRun:
    return _run(name, folder, ("torch_models",), "dtln/*", more='markers = "cpu and not epyc-2c"\n')


def test_a_torch_model_passes(cold: ModelRun, tmp_path: Path) -> None:
    assert cold.code == 0
    run = _run_torch_model("torch", tmp_path)
    assert run.code == 0, run.output
    assert len(run.verdicts("threshold")) == len(run.verdicts("compstat")) == len(run.verdicts("compile")) == 1
    # What the regression test of this model has imported serves here too.
    assert "imports: 1 from cache, 0 made" in run.output


@pytest.mark.stress
def test_the_second_run_of_a_torch_model_comes_from_the_cache(cold: ModelRun, tmp_path: Path) -> None:
    assert cold.code == 0
    assert _run_torch_model("torch-1", tmp_path).code == 0
    second = _run_torch_model("torch-2", tmp_path)
    assert second.code == 0, second.output
    assert "compiles: 1 from cache, 0 made" in second.output


@pytest.mark.parametrize("chain", _CHAINS)
def test_our_verdict_equals_the_tools_over_perturbed_outputs(cold: ModelRun, chain: str, tmp_path: Path) -> None:
    assert cold.code == 0
    cold.check_perturbed_outputs(chain, tmp_path)


def test_reports_of_a_real_run(cold: ModelRun) -> None:
    summary = json.loads((cold.folder / "summary.json").read_text())
    assert summary["schema"] == 1
    assert (cold.folder / "junit.xml").read_text().count("<testcase") == len(cold.results)
