"""Benchmarks of shipped models with torch itself, in `nox -s models`: torch is too large for the other tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.bench_project import PerfFiles
from tests.support.places import ROOT
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandResult

pytestmark = [pytest.mark.models, pytest.mark.iree]

_ROOT = ROOT


class Bench(PerfFiles):
    """A project of its own, with the shipped models."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.project = Project(folder)

    def run(self, *words: str) -> CommandResult:
        if "--models-dir" not in words:
            words = (*words, "--models-dir", str(_ROOT / "specs" / "models"))
        return self.project.gauntlet("bench", *words, "-o", "perf.json")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_error_grows_as_fidelity_falls(bench: Bench) -> None:
    for fidelity in ("HiFi4", "HiFi3", "HiFi2", "LoFi"):
        done = bench.run("-m", "llama", "-c", "tiny", "--layers", "1", "-mf", fidelity)
        assert done.code == 0, done.text
    four, three, two, lowest = (entry["numeric_error"]["to_f32"] for entry in bench.perf)
    assert four < 1e-5 < three < two
    assert lowest == two
    # Built once: fidelity is the compiler's.
    assert bench.project.result("llama/tiny-LoFi-1layers@cpu:export")["cache"]["hit"]


def test_error_grows_as_formats_narrow(bench: Bench) -> None:
    for form in ("Fp32", "Fp16", "Fp16_b", "Bfp8_b", "Bfp4_b"):
        done = bench.run("-m", "bert", "-c", "tiny", "--layers", "1", "-df", form)
        assert done.code == 0, done.text
    errors = [entry["numeric_error"]["to_f32"] for entry in bench.perf]
    assert errors == sorted(errors)
    weights = [entry["weight_error"] for entry in bench.perf]
    assert weights[0] is None
    assert weights[1:] == sorted(weights[1:])
    assert bench.perf[3]["dataformat"] == "Bfp8_b (emulated in bf16)"


_PLANTED = """
from iree_gauntlet.bench import benchmark_model

@benchmark_model(configs=["right", "percent", "thousandth"])
def planted(training: bool, config: str, microbatch: int = 64):
    import torch
    from torch import nn

    share = {"right": 1.0, "percent": 1.01, "thousandth": 1.001}[config]

    class Layer(nn.Linear):
        def forward(self, values):
            # Only the program that is compiled is wrong.
            return super().forward(values) * (share if torch.compiler.is_exporting() else 1.0)

    torch.manual_seed(1)
    layers = [nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128), Layer(128, 128), nn.GELU(), nn.Linear(128, 64)]
    return [nn.Sequential(*layers)], [torch.randn(microbatch, 128)]
"""


# Of each element type, and a format of blocks; `test_bench_agreement.py` has them all.
@pytest.mark.parametrize("form", ["Fp32", "Fp16", "Fp16_b", "Bfp4_b"])
def test_a_hidden_layer_that_is_a_little_wrong_is_found(bench: Bench, form: str) -> None:
    (bench.folder / "planted").mkdir()
    (bench.folder / "planted" / "planted.py").write_text(_PLANTED)
    codes = {}
    for config in ("right", "percent", "thousandth"):
        done = bench.run("-m", "planted", "-c", config, "-df", form, "--models-dir", "planted")
        codes[config] = done.code
    found = bench.perf[0]["numeric_error"]
    assert codes["right"] == 0, bench.perf[0]
    assert found["rms_tolerance"] < 12 * found["rms"]
    assert found["contractions"]["shown"]["1%"] == 3
    assert codes["percent"] == 1, bench.perf[1:]
    # 1.001 is 1 in bf16: the program is the same.
    assert codes["thousandth"] == (0 if form.endswith("_b") else 1), bench.perf[1:]


def test_gradients_are_those_of_torch(bench: Bench) -> None:
    done = bench.run("-m", "bert", "-c", "tiny", "--training")
    assert done.code == 0, done.text
    (entry,) = bench.perf
    assert entry["numeric_error"]["rms"] < 1e-5
    assert entry["loss_definition"]


def test_microbatches_of_a_training_step_are_summed_up(bench: Bench) -> None:
    words = ("--microbatch-count", "2", "-mb", "2", "--loop-count", "4")
    done = bench.run("-m", "bert", "-c", "tiny", "--layers", "1", "--training", *words)
    assert done.code == 0, done.text
    assert bench.perf[0]["total_samples"] == 8


def test_a_model_with_a_module_on_the_host(bench: Bench) -> None:
    done = bench.run("-m", "deit", "-c", "tiny", "--layers", "1")
    assert done.code == 0, done.text
    assert bench.perf[0]["host_ms"]["pre"]


def test_tokens_are_those_of_torch(bench: Bench) -> None:
    done = bench.run("-m", "whisper", "--layers", "1", "--loop-count", "1")
    assert done.code == 0, done.text
    assert bench.perf[0]["tokens_per_sec"] > 0


def test_the_models_of_the_documentation(bench: Bench) -> None:
    page = (_ROOT / "docs" / "how-to" / "bench-models.md").read_text(encoding="utf-8")
    folder = bench.folder / "my-models"
    folder.mkdir()
    for name, text in re.findall(r"```python\n# my-models/(\w+\.py)\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    for words in (("-m", "perceptron", "-c", "small"), ("-m", "brightness")):
        done = bench.run(*words, "--models-dir", "my-models")
        assert done.code == 0, done.text
    assert [entry["samples_per_call"] for entry in bench.perf] == [16, 8]


_TRAINED = """
from iree_gauntlet.bench import benchmark_model

@benchmark_model(configs=["right", "forward", "backward", "dropout"])
def trained(training: bool, config: str, microbatch: int = 16):
    import torch
    from torch import nn

    class Layer(nn.Conv2d):
        def forward(self, values):
            found = super().forward(values)
            # Only the program that is compiled is wrong.
            if not torch.compiler.is_exporting() or config == "right":
                return found
            return found * 1.01 if config == "forward" else found + 0.01 * (found - found.detach())

    torch.manual_seed(1)
    first = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    second = [Layer(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers = [*first, *second, nn.Dropout(0.1 * (config == "dropout")), nn.Flatten(), nn.Linear(16 * 16, 10)]
    return [nn.Sequential(*layers).train(training)], [torch.randn(microbatch, 3, 8, 8)]
"""


def test_a_layer_that_is_a_little_wrong_is_found_in_training(bench: Bench) -> None:
    (bench.folder / "trained").mkdir()
    (bench.folder / "trained" / "trained.py").write_text(_TRAINED)

    def train(config: str) -> CommandResult:
        return bench.run("-m", "trained", "-c", config, "--training", "--models-dir", "trained")

    assert train("right").code == 0
    found = bench.perf[0]["numeric_error"]
    assert found["rms_without_flips"] <= found["rms_tolerance"] < 12 * found["rms_without_flips"]
    assert found["contractions"]["shown"]["0.1%"] == found["contractions"]["of"]
    for number, config in enumerate(("forward", "backward")):
        assert train(config).code == 1
        assert bench.failures[number]["error"].startswith("threshold failed: ")
    done = train("dropout")
    assert done.code == 3
    assert "the gradients of a second step with the same inputs differ, as with dropout" in done.text
