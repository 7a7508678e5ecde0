"""Runs of pretrained models, and checks that hold for each of them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.measuring.numerics.arrays import read_arguments, read_output
from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.tolerances import parse_tolerances
from tests.support.command_line import MAIN
from tests.support.places import ROOT

if TYPE_CHECKING:
    from iree_gauntlet.results import Result

__all__ = ["ModelRun", "run_models"]


@dataclass(frozen=True)
class ModelRun:
    """A finished run: its directory, exit code, and output."""

    folder: Path
    code: int
    output: str

    @property
    def results(self) -> dict[str, Result]:
        return read_journal(self.folder / "journal.jsonl").results

    def verdicts(self, stage: str) -> dict[str, str]:
        """Return the verdicts of a stage by chain."""
        return {
            step.rsplit(":", 1)[0]: str(result.verdict)
            for step, result in self.results.items()
            if step.endswith(f":{stage}")
        }

    def list_passed_chains(self) -> set[str]:
        """Return the chains that passed compile, threshold and benchmark."""
        return {
            chain
            for chain, verdict in self.verdicts("threshold").items()
            if verdict == self.verdicts("compile")[chain] == self.verdicts("benchmark")[chain] == "passed"
        }

    def check_numbers(self) -> None:
        """Check that every output passed, and that its tolerance is not too wide to detect errors."""
        thresholds = {step: result for step, result in self.results.items() if step.endswith(":threshold")}
        assert thresholds
        for step, result in thresholds.items():
            assert result.outputs, step
            assert all(output.passed for output in result.outputs), step
            # A tolerance far above the error, or above the output itself, would pass anything.
            assert any((output.max_abs_error or 0) > output.atol / 2000 for output in result.outputs), step

    def list_uncached_steps(self) -> list[str]:
        """Return the steps of fetch, import and compile whose results did not come from the cache."""
        return [
            step
            for step, result in self.results.items()
            if step.rsplit(":", 1)[1].split(".")[0] in ("fetch", "import", "compile")
            and not (result.cache and result.cache.hit)
        ]

    def check_perturbed_outputs(self, chain: str, folder: Path) -> None:
        """Check that our verdict on a model's outputs is the tool's for each perturbation of the expected output."""
        steps = read_journal(self.folder / "journal.jsonl").steps
        step = next(step_fields for step_fields in steps if step_fields["id"] == f"{chain}:threshold")
        argv = list(step["command"]["argv"])
        flags = [flag for flag in argv if flag.startswith("--expected_output=")]
        other_flags = [flag for flag in argv if flag not in flags]
        paths = [Path(flag.partition("@")[2]) for flag in flags]
        actual = [read_output(Path(path)) for role, path in step["outputs"] if role == "actual_output"]
        tolerances = parse_tolerances(argv)
        expected_output = np.load(paths[0])
        atol, rtol = tolerances.get_limits("f32")
        verdicts = set()
        for description, perturbed_output in _make_perturbations(expected_output, atol, rtol).items():
            output_path = folder / "changed.npy"
            np.save(output_path, perturbed_output)
            output_arguments = [f"@{output_path}", *(f"@{path}" for path in paths[1:])]
            result = subprocess.run(
                [*other_flags, *(f"--expected_output={argument}" for argument in output_arguments)],
                capture_output=True,
                text=True,
                check=False,
            )
            is_passed = all(
                step_fields.passed
                for step_fields in compare_outputs(actual, read_arguments(output_arguments, folder), tolerances)
            )
            assert is_passed == (result.returncode == 0), (description, result.stdout)
            verdicts.add(is_passed)
        assert verdicts == {True, False}


def run_models(suite: Path, cache: Path, folder: Path) -> ModelRun:
    """Run `gauntlet run` with a suite in this checkout, without a time limit."""
    result = subprocess.run(
        [sys.executable, "-c", MAIN, "run", "--suite", str(suite), "--run-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "IREE_GAUNTLET_CACHE": str(cache)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ModelRun(folder, result.returncode, result.stdout)


def _make_perturbations(expected: np.ndarray[Any, Any], atol: float, rtol: float) -> dict[str, np.ndarray[Any, Any]]:
    """Return expected outputs with one value just inside or outside of its tolerance, or otherwise damaged."""
    flat_output = expected.astype(np.float64).ravel()
    largest_index = int(np.argmax(np.abs(flat_output)))
    tolerance = atol + rtol * abs(flat_output[largest_index])
    perturbed_outputs: dict[str, np.ndarray[Any, Any]] = {"unchanged": expected}
    for fraction in (0.5, 0.9, 1.1, 3.0):
        perturbed_output = flat_output.copy()
        perturbed_output[largest_index] += fraction * tolerance
        perturbed_outputs[f"{fraction} of the tolerance"] = perturbed_output.astype(expected.dtype).reshape(
            expected.shape
        )
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        perturbed_output = expected.copy()
        perturbed_output.ravel()[largest_index] = value
        perturbed_outputs[name] = perturbed_output
    perturbed_outputs["another shape"] = expected.reshape(*expected.shape, 1)
    return perturbed_outputs
