"""IREE against torch itself in short rounds: the outputs and messages of torch's scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.measuring.numerics.arrays import read_npy
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.torch_models import peers
from iree_gauntlet.torch_models.agreement import compare_tensors, find_limits
from iree_gauntlet.torch_models.build_files import read_build, read_tensors
from iree_gauntlet.torch_models.torch_chain import make_torch_argv
from tests.support.command_line import LIMIT_SECONDS
from tests.support.peer_bench import PeerBench, measure_peer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.models

_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
_MODELS = """
import torch
from iree_gauntlet.bench import Generative, benchmark_model, on_host


class Scale(torch.nn.Module):
    def forward(self, x):
        return x.float() / 255


class Best(torch.nn.Module):
    def forward(self, x):
        return x.softmax(-1), x.argmax(-1)


class Prefill(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)

    def forward(self, prompt):
        state = self.embedding(prompt).sum(1)
        return self.head(state), state, torch.full((1, 1), 2.0, dtype=state.dtype)


class Decode(torch.nn.Module):
    def __init__(self, prefill):
        super().__init__()
        self.prefill = prefill

    def forward(self, token, position, state, kept):
        state = state * 0.25 * kept + self.prefill.embedding(token)[:, 0] * position
        return self.prefill.head(state), state


def layers():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


@benchmark_model
def perceptron(training: bool):
    return [layers()], [torch.randn(4, 32)]


@benchmark_model
def hosted(training: bool):
    return [Scale(), layers(), Best()], [torch.randint(0, 256, (4, 32), dtype=torch.uint8)]


@benchmark_model
def speaker(training: bool):
    torch.manual_seed(1)
    prefill = Prefill()
    return Generative(prefill=prefill, decode=Decode(prefill), inputs=[torch.tensor([[3, 1, 4]])], position=3, tokens=6)
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerBench:
    monkeypatch.setattr(peers, "_ROUND_MS", 5.0)
    return PeerBench(tmp_path)


def _compiled(folder: Path, name: str) -> dict[str, Any]:
    """A program as a plan of the measuring workers has it."""
    program, archive, module = (str(folder / f"{name}{end}") for end in (".mlir", ".irpa", ".vmfb"))
    importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(folder / f"{name}.onnx"), "-o", program]
    subprocess.run([*importer, "--externalize-params", "--save-params-to", archive], check=True, timeout=LIMIT_SECONDS)
    subprocess.run(
        [find_installed().compiler.compile, program, "-o", module, *_FLAGS], check=True, timeout=LIMIT_SECONDS
    )
    return {"modules": [module], "parameters": [["model", archive]], "function": "main_graph"}


def _inputs(folder: Path, program: int) -> list[dict[str, str]]:
    items = json.loads((folder / "build.json").read_text())["programs"][program]["inputs"]
    return [{"file": str(folder / item["file"]), "type": item["type"]} for item in items]


def _write_module_plan(folder: Path) -> None:
    plan = {
        **_compiled(folder, "main"),
        "devices": ["local-task"],
        "inputs": _inputs(folder, 0),
        "calls": 1,
        "warm_up_calls": 1,
        "outputs": "",
    }
    (folder / "measure_module.json").write_text(json.dumps(plan))


def _built(folder: Path, model: str, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A model built by the builder, and the input that it got."""
    models = folder / "models"
    models.mkdir()
    (models / "models.py").write_text(_MODELS)
    build = folder / "build"
    plan = {"models_dirs": [str(models)], "model": model, "output": str(build), "dataformat": "Fp32", **changes}
    (folder / "plan.json").write_text(json.dumps(plan))
    argv = [*make_torch_argv(sys.executable, "building"), str(folder / "plan.json")]
    subprocess.run(argv, check=True, capture_output=True, timeout=LIMIT_SECONDS)
    return build, plan


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return _built(tmp_path_factory.mktemp("perceptron"), "perceptron")


@pytest.mark.iree
def test_torch_is_measured_eager_and_compiled(
    bench: PeerBench, perceptron: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # noqa: PLC0415 - the fixture has looked

    build, plan = perceptron
    _write_module_plan(build)
    monkeypatch.setattr(peers, "BLOCKS", 1)
    eager, compiled = bench.measure(["torch"], build, builder=plan)
    assert (eager.name, eager.version, eager.blocks) == ("torch eager", torch.__version__, 1), eager.reason
    assert eager.compile_s is None
    assert eager.ratio is not None
    if shutil.which("g++") is None:
        assert "No working C++ compiler found" in compiled.reason
        return
    assert (compiled.name, compiled.blocks, compiled.ratio is not None) == ("torch.compile", 1, True), compiled.reason
    assert compiled.compile_s is not None
    assert compiled.first_call_ms == pytest.approx(compiled.compile_s * 1000)
    assert not (bench.folder / "step" / "against" / "torch.compile" / "inductor").exists()


def test_without_a_compiler_torch_compile_says_so(tmp_path: Path, perceptron: tuple[Path, dict[str, Any]]) -> None:
    build, plan = perceptron
    asked = {"builder": plan, "mode": "compile", "compile_mode": None}
    error = measure_peer(build, "measure_torch", env={"PATH": str(tmp_path)}, **asked)["error"]
    # In torch's own words.
    assert "compiler" in error.lower()
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("perceptron", {"training": True}),
        ("perceptron", {"training": True, "accumulate": True, "dataformat": "Fp16_b"}),
        ("hosted", {"dataformat": "Bfp8_b"}),
        ("speaker", {}),
    ],
)
def test_torch_computes_what_the_builder_computed(tmp_path: Path, model: str, changes: dict[str, Any]) -> None:
    build, plan = _built(tmp_path, model, **changes)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    asked: dict[str, Any] = {"mode": "eager", "outputs": str(outputs)}
    answer = measure_peer(build, "measure_torch", builder=plan, **asked)
    record = read_build(build)
    expected = [array for program in record.programs for array in program.outputs]
    expected = list(record.host_outputs) or expected
    found = [read_npy(outputs / item["file"]).with_element_type(item["type"]) for item in answer["outputs"]]
    assert compare_tensors(found, read_tensors(build, expected), find_limits(expected)).problem == ""
    assert len(answer["call_ms"]) == 2
    if record.generation is not None:
        assert answer["chosen"] == [list(sample) for sample in record.generation.chosen]


@pytest.mark.iree
def test_host_modules_run_beside_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    build, plan = _built(tmp_path, "hosted")
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    answer = measure_peer(build, "measure_onnx", builder=plan, outputs=str(outputs))
    found = [read_npy(outputs / item["file"]).with_element_type(item["type"]) for item in answer["outputs"]]
    expected = read_build(build).host_outputs
    assert len(found) == 2
    assert compare_tensors(found, read_tensors(build, expected), find_limits(expected)).problem == ""
