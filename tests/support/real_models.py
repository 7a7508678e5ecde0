"""Runs of pretrained models, and what holds for each of them."""

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
    """A finished run: where it is, how it ended, what it printed."""

    folder: Path
    code: int
    output: str

    @property
    def results(self) -> dict[str, Result]:
        return read_journal(self.folder / "journal.jsonl").results

    def verdicts(self, stage: str) -> dict[str, str]:
        """Verdicts of a stage by chain."""
        return {
            step.rsplit(":", 1)[0]: str(result.verdict)
            for step, result in self.results.items()
            if step.endswith(f":{stage}")
        }

    def passed(self) -> set[str]:
        """Chains that compile, give the right numbers and are timed."""
        return {
            chain
            for chain, verdict in self.verdicts("threshold").items()
            if verdict == self.verdicts("compile")[chain] == self.verdicts("benchmark")[chain] == "passed"
        }

    def check_numbers(self) -> None:
        """The numbers of every output are kept, and say something."""
        thresholds = {step: result for step, result in self.results.items() if step.endswith(":threshold")}
        assert thresholds
        for step, result in thresholds.items():
            assert result.outputs, step
            assert all(output.passed for output in result.outputs), step
            # A tolerance that lies far above the error, or above the output itself, would pass anything.
            assert any((output.max_abs_error or 0) > output.atol / 2000 for output in result.outputs), step

    def made(self) -> list[str]:
        """Steps whose results did not come from the cache."""
        return [
            step
            for step, result in self.results.items()
            if step.rsplit(":", 1)[1].split(".")[0] in ("fetch", "import", "compile")
            and not (result.cache and result.cache.hit)
        ]

    def check_perturbed_outputs(self, chain: str, folder: Path) -> None:
        """Our verdict on a model's outputs is the tool's, however the expected ones are changed."""
        steps = read_journal(self.folder / "journal.jsonl").steps
        step = next(item for item in steps if item["id"] == f"{chain}:threshold")
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
            file = folder / "changed.npy"
            np.save(file, changed)
            texts = [f"@{file}", *(f"@{path}" for path in paths[1:])]
            done = subprocess.run(
                [*others, *(f"--expected_output={text}" for text in texts)], capture_output=True, text=True, check=False
            )
            ours = all(item.passed for item in compare_outputs(actual, read_arguments(texts, folder), tolerances))
            assert ours == (done.returncode == 0), (name, done.stdout)
            verdicts.add(ours)
        assert verdicts == {True, False}


def run_models(suite: Path, cache: Path, folder: Path) -> ModelRun:
    """`gauntlet run` of a suite in this checkout, as long as it takes."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "run", "--suite", str(suite), "--run-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "IREE_GAUNTLET_CACHE": str(cache)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ModelRun(folder, done.returncode, done.stdout)


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
