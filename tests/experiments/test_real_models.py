"""The shipped suites, run as a user runs them: pretrained models out of PyPI wheels, from an empty cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.measuring.arrays import read_arguments, read_output
from iree_gauntlet.measuring.comparison import compare_outputs
from iree_gauntlet.measuring.tolerances import parse_tolerances
from tests.support.places import ROOT

pytestmark = [pytest.mark.iree, pytest.mark.models, pytest.mark.timeout(1200)]

_ROOT = ROOT
_COMMAND = "from iree_gauntlet.tasks.program import main; main()"


@dataclass(frozen=True)
class Run:
    """A finished run: where it is, how it ended, what it printed."""

    folder: Path
    code: int
    output: str

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        return read_journal(self.folder / "journal.jsonl").results

    def verdicts(self, stage: str) -> dict[str, str]:
        return {
            step.rsplit(":", 1)[0]: result["verdict"]
            for step, result in self.results.items()
            if step.endswith(f":{stage}")
        }


def _run(suite: str, cache: Path, folder: Path) -> Run:
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, "run", "--suite", f"suites/{suite}.toml", "--run-dir", str(folder)],
        cwd=_ROOT,
        env={**os.environ, "IREE_GAUNTLET_CACHE": str(cache)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Run(folder, done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cold(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _run("cpu", cache, tmp_path_factory.mktemp("runs") / "cold")


def test_every_model_passes_all_three_steps(cold: Run) -> None:
    assert cold.code == 0, cold.output
    passed = {
        chain
        for chain, verdict in cold.verdicts("threshold").items()
        if verdict == cold.verdicts("compile")[chain] == cold.verdicts("benchmark")[chain] == "passed"
    }
    assert len({chain.split("/")[0] for chain in passed}) >= 8
    assert {"rapidocr/det@cpu", "rapidocr/cls@cpu", "rapidocr/rec@cpu"} <= passed
    assert passed == set(cold.verdicts("threshold"))


def test_numbers_of_every_output_are_kept(cold: Run) -> None:
    for step, result in cold.results.items():
        if step.endswith(":threshold"):
            assert result["outputs"], step
            assert all(output["passed"] for output in result["outputs"]), step
            # A tolerance that lies far above the error, or above the output itself, would pass anything.
            assert any((output["max_abs_error"] or 0) > output["atol"] / 2000 for output in result["outputs"]), step


def test_the_second_run_comes_from_the_cache(cold: Run, cache: Path, tmp_path: Path) -> None:
    assert cold.code == 0
    warm = _run("cpu", cache, tmp_path / "warm")
    assert warm.code == 0, warm.output
    made = [
        step
        for step, result in warm.results.items()
        if step.rsplit(":", 1)[1].split(".")[0] in ("fetch", "import", "compile") and not result["cache"]["hit"]
    ]
    # A compile that fails, as expected, is not kept.
    assert made == ["speechmos/aecmos@cpu:compile"]
    assert "compiles: 14 from cache, 1 made" in warm.output


def test_models_compile_for_rocm_without_a_gpu(cold: Run, cache: Path, tmp_path: Path) -> None:
    assert cold.code == 0
    run = _run("rocm-compile", cache, tmp_path / "rocm")
    assert run.code == 0, run.output
    verdicts = run.verdicts("compile")
    assert len([chain for chain, verdict in verdicts.items() if verdict == "passed"]) >= 5
    assert all(chain.endswith("@rocm-gfx942") for chain in verdicts)


def test_torch_models_pass_and_then_come_from_the_cache(cold: Run, cache: Path, tmp_path: Path) -> None:
    assert cold.code == 0
    first = _run("torch-cpu", cache, tmp_path / "first")
    assert first.code == 0, first.output
    assert len(first.verdicts("threshold")) == len(first.verdicts("compstat")) == len(first.verdicts("compile")) == 5
    # What the regression tests of these models have imported serves here too.
    assert "imports: 4 from cache, 0 made" in first.output
    second = _run("torch-cpu", cache, tmp_path / "second")
    assert second.code == 0, second.output
    assert "compiles: 5 from cache, 0 made" in second.output


def _perturbations(expected: np.ndarray[Any, Any], atol: float, rtol: float) -> dict[str, np.ndarray[Any, Any]]:
    """The expected output with one value moved around the edge of its tolerance, and other harm."""
    flat = expected.astype(np.float64).ravel()
    where = int(np.argmax(np.abs(flat)))
    allowed = atol + rtol * abs(flat[where])
    changed: dict[str, np.ndarray[Any, Any]] = {"unchanged": expected}
    for share in (0.5, 0.9, 1.1, 3.0):
        other = flat.copy()
        other[where] += share * allowed
        changed[f"{share} of the tolerance"] = other.astype(expected.dtype).reshape(expected.shape)
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        other = expected.copy()
        other.ravel()[where] = value
        changed[name] = other
    changed["another shape"] = expected.reshape(*expected.shape, 1)
    return changed


@pytest.mark.parametrize(
    "chain", ["dtln/spectral@cpu", "magika/standard@cpu", "rapidocr/cls@cpu", "minilm_int8/encoder@cpu"]
)
def test_our_verdict_equals_the_tools_over_perturbed_outputs(cold: Run, chain: str, tmp_path: Path) -> None:
    assert cold.code == 0
    step = next(
        item for item in read_journal(cold.folder / "journal.jsonl").steps if item["id"] == f"{chain}:threshold"
    )
    argv = list(step["command"]["argv"])
    flags = [flag for flag in argv if flag.startswith("--expected_output=")]
    others = [flag for flag in argv if flag not in flags]
    paths = [Path(flag.partition("@")[2]) for flag in flags]
    actual = [read_output(Path(path)) for role, path in step["outputs"] if role == "actual_output"]
    tolerances = parse_tolerances(argv)
    expected = np.load(paths[0])
    atol, rtol = tolerances.effective("f32")
    verdicts = set()
    for name, changed in _perturbations(expected, atol, rtol).items():
        file = tmp_path / "changed.npy"
        np.save(file, changed)
        texts = [f"@{file}", *(f"@{path}" for path in paths[1:])]
        done = subprocess.run(
            [*others, *(f"--expected_output={text}" for text in texts)], capture_output=True, text=True, check=False
        )
        ours = all(item.passed for item in compare_outputs(actual, read_arguments(texts, tmp_path), tolerances))
        assert ours == (done.returncode == 0), (name, done.stdout)
        verdicts.add(ours)
    assert verdicts == {True, False}


def test_reports_of_a_real_run(cold: Run) -> None:
    summary = json.loads((cold.folder / "summary.json").read_text())
    assert summary["schema"] == 1
    assert (cold.folder / "junit.xml").read_text().count("<testcase") == len(cold.results)
