"""IREE beside onnxruntime and torch: real programs, compiled and measured for real, in short rounds."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet import worker
from iree_gauntlet.bench import against, measure_onnx
from iree_gauntlet.bench.against import AgainstPlace, iree_rounds, measure
from iree_gauntlet.bench.agreement import agreement
from iree_gauntlet.bench.build_folder import read_build, tensors
from iree_gauntlet.bench.formats import DataFormat, Tolerance, tolerance
from iree_gauntlet.bench.peers import BLOCKS, Peer, judged, shown
from iree_gauntlet.cases import Origin, Stage
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.arrays import read_npy
from iree_gauntlet.measuring.rounds import Block, BlockOrder, Round
from iree_gauntlet.running.blocks import Evidence
from iree_gauntlet.running.event_log import EventLog
from iree_gauntlet.running.machine_lock import LockFolder, MachineLocks
from iree_gauntlet.running.processes import Processes
from iree_gauntlet.running.steps import Command, Resources, Step
from iree_gauntlet.running.supervisor import Supervisor
from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
_CHAIN = "tiny/model@cpu"
_WIDTH = 64
_VOCABULARY = 50


class _Told:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.doing: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def progress(self, text: str) -> None:
        self.doing.append(text)


# --- what a builder would leave -------------------------------------------------------------------------------------


def _array(folder: Path, name: str, array: NDArray[Any], element_type: str = "") -> dict[str, Any]:
    np.save(folder / f"{name}.npy", array)
    known = {"float32": "f32", "int64": "i64", "float16": "f16"}
    return {
        "file": f"{name}.npy",
        "type": element_type or known[str(array.dtype)],
        "shape": list(array.shape),
    }


def _write_build(folder: Path, kind: str, programs: list[dict[str, Any]], generation: dict[str, Any] | None) -> None:
    record = {
        "schema": 1,
        "kind": kind,
        "model": "tiny",
        "config": None,
        "samples": 1,
        "parameter_count": 1,
        "programs": programs,
        "host": {"pre": False, "post": False},
        "host_inputs": [],
        "host_outputs": [],
        "generation": generation,
        "training": None,
        "contractions": 2,
        "reference": [],
        "weight_error": None,
        "versions": {},
        "seconds": {},
    }
    (folder / "build.json").write_text(json.dumps(record))


def _save_onnx(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], weights: dict[str, NDArray[Any]]
) -> None:
    import onnx  # noqa: PLC0415 - only where it is
    from onnx import helper, numpy_helper  # noqa: PLC0415

    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "main_graph", list(inputs), list(outputs), initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def _tensor(name: str, dtype: type, *shape: int) -> Any:
    from onnx import helper  # noqa: PLC0415

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
    from onnx import helper  # noqa: PLC0415

    return helper.make_node(kind, list(inputs), [output], **attributes)


def _pipeline_build(folder: Path) -> None:
    chance = np.random.default_rng(1)
    x, w, v = (chance.standard_normal((_WIDTH, _WIDTH)).astype(np.float32) for _ in range(3))
    nodes = [_node("MatMul", ["x", "w"], "h"), _node("Relu", ["h"], "r"), _node("MatMul", ["r", "v"], "y")]
    shape = (_WIDTH, _WIDTH)
    signature = [_tensor("x", np.float32, *shape)], [_tensor("y", np.float32, *shape)]
    _save_onnx(folder / "main.onnx", nodes, *signature, {"w": w, "v": v})
    inputs = [_array(folder, "main.input_0", x)]
    outputs = [_array(folder, "main.output_0", np.maximum(x @ w, 0) @ v)]
    programs = [{"name": "main", "onnx": "main.onnx", "inputs": inputs, "outputs": outputs}]
    _write_build(folder, "pipeline", programs, None)


def _generative_build(folder: Path) -> list[list[int]]:
    """A model whose state is a fading sum of the embeddings of its tokens, and the tokens that it makes."""
    chance = np.random.default_rng(2)
    embedding = chance.standard_normal((_VOCABULARY, _WIDTH)).astype(np.float32)
    head = chance.standard_normal((_WIDTH, _VOCABULARY)).astype(np.float32)
    half, where = np.array(0.5, np.float32), np.array([1])
    prompt, tokens = np.array([[3, 1, 4]]), 6
    state = embedding[prompt].sum(axis=1)
    kept = np.full((1, 1), 2, np.float32)
    _save_onnx(
        folder / "prefill.onnx",
        [
            _node("Gather", ["embedding", "prompt"], "all"),
            _node("ReduceSum", ["all", "where"], "state", keepdims=0),
            _node("MatMul", ["state", "head"], "logits"),
            _node("Identity", ["two"], "kept"),
        ],
        [_tensor("prompt", np.int64, 1, 3)],
        [
            _tensor("logits", np.float32, 1, _VOCABULARY),
            _tensor("state", np.float32, 1, _WIDTH),
            _tensor("kept", np.float32, 1, 1),
        ],
        {"embedding": embedding, "head": head, "where": where, "two": kept},
    )
    _save_onnx(
        folder / "decode.onnx",
        [
            _node("Gather", ["embedding", "token"], "one"),
            _node("ReduceSum", ["one", "where"], "flat", keepdims=0),
            _node("Mul", ["state", "half"], "faded"),
            _node("Mul", ["faded", "kept"], "more"),
            _node("Cast", ["position"], "place", to=1),
            _node("Mul", ["flat", "place"], "placed"),
            _node("Add", ["more", "placed"], "new"),
            _node("MatMul", ["new", "head"], "logits"),
        ],
        [
            _tensor("token", np.int64, 1, 1),
            _tensor("position", np.int64, 1),
            _tensor("state", np.float32, 1, _WIDTH),
            _tensor("kept", np.float32, 1, 1),
        ],
        [_tensor("logits", np.float32, 1, _VOCABULARY), _tensor("new", np.float32, 1, _WIDTH)],
        {"embedding": embedding, "head": head, "where": where, "half": half},
    )
    logits = state @ head
    chosen = [int(logits.argmax())]
    prefill = {
        "name": "prefill",
        "onnx": "prefill.onnx",
        "inputs": [_array(folder, "prefill.input_0", prompt)],
        "outputs": [_array(folder, f"prefill.output_{i}", a) for i, a in enumerate((logits, state, kept))],
    }
    inputs = [np.array([chosen]), np.array([3]), state, kept]
    for position in range(3, 3 + tokens - 1):
        state = state + embedding[chosen[-1]] * position
        logits = state @ head
        if position == 3:
            outputs = [_array(folder, f"decode.output_{i}", a) for i, a in enumerate((logits, state))]
        chosen.append(int(logits.argmax()))
    decode = {
        "name": "decode",
        "onnx": "decode.onnx",
        "inputs": [_array(folder, f"decode.input_{i}", a) for i, a in enumerate(inputs)],
        "outputs": outputs,
    }
    generation = {"position": 3, "tokens": tokens, "state": 2, "carried": 1, "chosen": [chosen]}
    _write_build(folder, "generative", [prefill, decode], generation)
    return [chosen]


def _compiled(folder: Path, name: str) -> dict[str, Any]:
    """A program as a plan of the measuring workers has it."""
    program, archive, module = (str(folder / f"{name}{end}") for end in (".mlir", ".irpa", ".vmfb"))
    importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(folder / f"{name}.onnx"), "-o", program]
    subprocess.run([*importer, "--externalize-params", "--save-params-to", archive], check=True, timeout=120)
    subprocess.run([find_installed().compile, program, "-o", module, *_FLAGS], check=True, timeout=120)
    return {"modules": [module], "parameters": [["model", archive]], "function": "main_graph"}


def _inputs(folder: Path, program: int) -> list[dict[str, str]]:
    items = json.loads((folder / "build.json").read_text())["programs"][program]["inputs"]
    return [{"file": str(folder / item["file"]), "type": item["type"]} for item in items]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("pipeline")
    _pipeline_build(folder)
    _write_module_plan(folder)
    return folder


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


# --- sessions -------------------------------------------------------------------------------------------------------


class _Bench:
    """Measures in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told = _Told()
        self.cancelled = threading.Event()

    def measure(self, names: Sequence[str], build: Path, script: str = "measure_module", **place: Any) -> list[Peer]:
        step = Step(
            id=f"{_CHAIN}:benchmark",
            chain=_CHAIN,
            dialect="bench",
            model="tiny",
            submodel="model",
            target="cpu",
            sku="",
            stage=Stage.BENCHMARK,
            folder=str(self.folder / "step"),
            timeout=120.0,
            origin=Origin("tiny.py"),
            resources=Resources(device="local-task"),
        )
        path = str(Path(worker.__file__).with_name(f"{script}.py"))
        command = Command((sys.executable, "-B", path, str(build / f"{script}.json")), str(self.folder))
        place = {"builder": {"dataformat": "Fp32"}, "torch_python": sys.executable, "replace_disturbed": False, **place}
        allowed = tolerance(DataFormat(place["builder"]["dataformat"]), max(1, read_build(build).contractions))
        where = AgainstPlace(**{"tolerance": allowed, **place})
        locks = MachineLocks(LockFolder(self.folder / "locks"), patience=60, cancelled=self.cancelled)
        with (
            Supervisor() as supervisor,
            EventLog(self.folder / "journal.jsonl", lambda: datetime.now(UTC)) as log,
        ):
            processes = Processes(supervisor, self.folder)
            rounds = iree_rounds(step, command)
            told = self.told
            return measure(names, rounds, build, where, processes, locks, log, told, self.cancelled, seed=7)

    def blocks(self) -> list[dict[str, Any]]:
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "block"]

    def plan(self, peer: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "step" / "against" / peer / f"{name}.json").read_text())
        return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Bench:
    monkeypatch.setattr(against, "_ROUND_MS", 5.0)
    return _Bench(tmp_path)


@pytest.mark.iree
def test_onnxruntime_is_measured_beside_iree(bench: _Bench, pipeline: Path) -> None:
    import onnxruntime  # noqa: PLC0415 - the fixture has looked

    (peer,) = bench.measure(["onnxruntime"], pipeline)
    assert (peer.name, peer.version, peer.blocks, peer.replaced) == ("onnxruntime", onnxruntime.__version__, BLOCKS, 0)
    assert peer.ratio is not None
    assert peer.low is not None
    assert peer.high is not None
    assert peer.low <= peer.ratio <= peer.high
    assert peer.call_ms is not None
    assert peer.iree_ms is not None
    assert peer.word in {"faster", "slower", "same", "inconclusive"}
    assert bench.told.messages == shown([peer])
    blocks = bench.blocks()
    assert [event["chain"] for event in blocks] == [f"{_CHAIN} against onnxruntime"] * BLOCKS
    for event in blocks:
        assert "".join(item["side"] for item in event["rounds"]) == event["order"]
        assert [len(item["times_ms"]) for item in event["rounds"]] == [1, 1, 1, 1], "the median call alone"
    ours, its = bench.plan("onnxruntime", "iree"), bench.plan("onnxruntime", "peer")
    assert ours["calls"] == its["calls"] == peer.calls >= 3
    assert ours["warm_up_calls"] == its["warm_up_calls"] >= 1
    assert not (bench.folder / "step" / "against" / "onnxruntime" / "outputs").exists()
    assert json.loads(json.dumps(peer.as_dict()))["ratio"] == peer.ratio


@pytest.mark.iree
def test_generations_are_held_against_generations(bench: _Bench, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "build"
    folder.mkdir()
    chosen = _generative_build(folder)
    plan = {
        "device": "local-task",
        "prefill": {**_compiled(folder, "prefill"), "inputs": _inputs(folder, 0)},
        "decode": _compiled(folder, "decode"),
        **json.loads((folder / "build.json").read_text())["generation"],
        "generations": 1,
        "warm_up": 1,
        "outputs": "",
    }
    (folder / "measure_generative.json").write_text(json.dumps(plan))
    (peer,) = bench.measure(["onnxruntime"], folder, "measure_generative")
    assert (peer.blocks, peer.ratio is not None) == (BLOCKS, True), peer.reason
    assert bench.plan("onnxruntime", "iree")["generations"] == peer.calls
    answer = _answer(folder, Path(measure_onnx.__file__))
    assert answer["chosen"] == chosen
    assert len(answer["call_ms"]) == 2


def _run_script(
    script: Path, build: Path, env: dict[str, str] | None = None, **plan: Any
) -> subprocess.CompletedProcess[str]:
    """A script by itself, as in a Python where the toolkit is not installed."""
    path = build.parent / "script.json"
    path.write_text(json.dumps({"build": str(build), "calls": 2, "warm_up_calls": 1, "outputs": "", **plan}))
    argv = [sys.executable, "-B", str(script), str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=env or {}, cwd="/")


def _answer(build: Path, script: Path, **plan: Any) -> dict[str, Any]:
    done = _run_script(script, build, **plan)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.iree
def test_what_computes_something_else_is_no_peer(bench: _Bench, pipeline: Path) -> None:
    expected = pipeline / "main.output_0.npy"
    right = np.load(expected)
    try:
        np.save(expected, right * 1.01)
        (peer,) = bench.measure(["onnxruntime"], pipeline)
    finally:
        np.save(expected, right)
    assert peer.reason.startswith("its outputs are not those of torch eager: output 0: "), peer.reason
    assert (peer.ratio, peer.word, peer.blocks) == (None, "", 0)
    assert peer.version, "it was tried"
    assert bench.blocks() == []


@pytest.mark.iree
def test_a_program_that_a_peer_cannot_load_is_a_reason(bench: _Bench, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = tmp_path / "build"
    folder.mkdir()
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [4, 4]) for name in "xwy"]
    _save_onnx(folder / "main.onnx", [_node("MatMul", ["x", "w"], "y")], values[:2], values[2:], {})
    bits = np.full((4, 4), 0x3F80, np.uint16)
    arrays = [_array(folder, f"main.{name}", bits, "bf16") for name in ("input_0", "input_1", "output_0")]
    programs = [{"name": "main", "onnx": "main.onnx", "inputs": arrays[:2], "outputs": arrays[2:]}]
    _write_build(folder, "pipeline", programs, None)
    (folder / "measure_module.json").write_text("{}")
    (peer,) = bench.measure(["onnxruntime"], folder, builder={"dataformat": "Fp16_b"})
    assert "onnxruntime failed with exit code 1: NotImplemented" in peer.reason
    assert "MatMul" in peer.reason
    assert shown([peer]) == [f"onnxruntime: no ratio: {peer.reason}"]


@pytest.mark.iree
def test_onnxruntime_that_is_nowhere_is_said_with_what_to_do(bench: _Bench, pipeline: Path) -> None:
    stub = bench.folder / "packages"
    stub.mkdir()
    (stub / "onnxruntime.py").write_text("raise ModuleNotFoundError(\"No module named 'onnxruntime'\")\n")
    (peer,) = bench.measure(["onnxruntime"], pipeline, env=(("PYTHONPATH", str(stub)),))
    assert peer.reason.endswith(f"No module named 'onnxruntime' in {sys.executable}: pip install onnxruntime")


@pytest.mark.iree
def test_iree_that_fails_is_an_error_of_the_whole(bench: _Bench, pipeline: Path) -> None:
    plan = json.loads((pipeline / "measure_module.json").read_text())
    build = bench.folder / "build"
    build.mkdir()
    for path in pipeline.iterdir():
        (build / path.name).symlink_to(path)
    (build / "measure_module.json").unlink()
    (build / "measure_module.json").write_text(json.dumps(plan | {"function": "no_such"}))
    with pytest.raises(GauntletError, match="has no function 'no_such'"):
        bench.measure(["onnxruntime"], build)


@pytest.mark.iree
def test_what_is_cancelled_is_left_out(bench: _Bench, pipeline: Path) -> None:
    bench.cancelled.set()
    assert bench.measure(["onnxruntime"], pipeline) == []


@pytest.mark.iree
def test_calls_come_in_whole_groups(bench: _Bench, pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = json.loads((pipeline / "measure_module.json").read_text())
    monkeypatch.setattr(against, "_ROUND_MS", 0.0)
    monkeypatch.setattr(against, "BLOCKS", 1)
    build = bench.folder / "build"
    build.mkdir()
    for path in pipeline.iterdir():
        (build / path.name).symlink_to(path)
    (build / "measure_module.json").unlink()
    (build / "measure_module.json").write_text(json.dumps(plan | {"in_flight": 4, "devices": ["local-task"] * 2}))
    (peer,) = bench.measure(["onnxruntime"], build)
    assert peer.calls == bench.plan("onnxruntime", "peer")["calls"] == 4
    assert bench.plan("onnxruntime", "iree")["devices"] == ["local-task"]
    assert (peer.blocks, peer.low, peer.word) == (1, None, "inconclusive")


# --- torch ----------------------------------------------------------------------------------------------------------

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


def _built(folder: Path, model: str, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A model built by the builder, and what it was told."""
    pytest.importorskip("torch")
    from iree_gauntlet.bench import build_model  # noqa: PLC0415 - beside the others

    models = folder / "models"
    models.mkdir()
    (models / "models.py").write_text(_MODELS)
    build = folder / "build"
    plan = {"models_dirs": [str(models)], "model": model, "output": str(build), "dataformat": "Fp32", **changes}
    (folder / "plan.json").write_text(json.dumps(plan))
    argv = [sys.executable, "-B", build_model.__file__, str(folder / "plan.json")]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    return build, plan


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return _built(tmp_path_factory.mktemp("perceptron"), "perceptron")


@pytest.mark.iree
def test_torch_is_measured_eager_and_compiled(
    bench: _Bench, perceptron: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # noqa: PLC0415 - the fixture has looked

    build, plan = perceptron
    _write_module_plan(build)
    monkeypatch.setattr(against, "BLOCKS", 1)
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
    torch_script = Path(against.__file__).with_name("measure_torch.py")
    done = _run_script(
        torch_script, build, builder=plan, mode="compile", compile_threads=1, env={"PATH": str(tmp_path)}
    )
    assert done.returncode == 1
    first = next(line for line in done.stderr.splitlines() if "error: " in line)
    assert first.startswith("error: InductorError: InvalidCxxCompiler: No working C++ compiler found in ")


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
    torch_script = Path(against.__file__).with_name("measure_torch.py")
    asked: dict[str, Any] = {"mode": "eager", "compile_threads": None, "outputs": str(outputs)}
    answer = _answer(build, torch_script, builder=plan, **asked)
    record = read_build(build)
    expected = [array for program in record.programs for array in program.outputs]
    expected = list(record.host_outputs) or expected
    found = [read_npy(outputs / item["file"]).with_element_type(item["type"]) for item in answer["outputs"]]
    close = Tolerance(1e-6, 1e-5)
    assert agreement(found, tensors(build, expected), close, gradients=record.kind == "training").problem == ""
    assert len(answer["call_ms"]) == 2
    if record.generation is not None:
        assert answer["chosen"] == [list(sample) for sample in record.generation.chosen]


@pytest.mark.iree
def test_host_modules_run_beside_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    build, plan = _built(tmp_path, "hosted")
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    answer = _answer(build, Path(measure_onnx.__file__), builder=plan, outputs=str(outputs))
    found = [read_npy(outputs / item["file"]).with_element_type(item["type"]) for item in answer["outputs"]]
    expected = tensors(build, read_build(build).host_outputs)
    assert len(found) == 2
    assert agreement(found, expected, tolerance(DataFormat.FP32, 2)).problem == ""


# --- what blocks say ------------------------------------------------------------------------------------------------


def _evidence(ratios: Sequence[float]) -> Evidence:
    blocks = []
    for number, ratio in enumerate(ratios):
        ours, its = Round((2.0 + number / 100,)), Round(((2.0 + number / 100) * ratio,))
        blocks.append(Block.of_rounds(BlockOrder.ABBA, [ours, its, its, ours]))
    return Evidence(blocks=blocks, attempts=Counter(ab=len(blocks)))


@pytest.mark.parametrize(
    ("ratios", "word", "line"),
    [
        ((1.8, 1.81, 1.82, 1.83, 1.84, 1.85), "faster", "IREE is 1.82 × as fast (1.80 to 1.85)"),
        ((0.5, 0.5, 0.5, 0.5, 0.5, 0.4), "slower", "IREE takes 2.00 × as long (2.00 to 2.50)"),
        ((1.0, 1.01, 0.99, 1.0, 1.02, 0.98), "same", "IREE is as fast, 1.00 × (0.98 to 1.02)"),
        ((0.7, 1.3, 0.8, 1.2, 1.0, 1.1), "inconclusive", "no verdict, 1.00 × IREE's time (0.70 to 1.30)"),
    ],
)
def test_words_are_those_of_the_interval(ratios: Sequence[float], word: str, line: str) -> None:
    peer = judged(Peer("torch eager", version="2.13.0"), _evidence(ratios))
    assert peer.word == word
    assert [peer.low, peer.high] == pytest.approx([min(ratios), max(ratios)])
    assert peer.iree_ms == pytest.approx(2.025)
    assert shown([peer]) == [f"torch 2.13.0 eager {peer.call_ms:.3g} ms a call (median), IREE 2.02 ms: {line}"]


def test_fewer_blocks_have_a_ratio_and_no_interval() -> None:
    evidence = _evidence((2.0, 2.0))
    evidence.attempts["ab"] += 9
    evidence.disturbances["other work kept the CPUs 30 % busy"] += 9
    peer = judged(Peer("torch.compile", version="2.13.0"), evidence)
    assert peer.ratio == pytest.approx(2.0)
    assert (peer.low, peer.high, peer.word) == (None, None, "inconclusive")
    assert (peer.blocks, peer.replaced) == (2, 9)
    assert peer.reason == "2 of 6 blocks; the others were disturbed, such as: other work kept the CPUs 30 % busy"
    times = f"{peer.call_ms:.3g} ms a call (median), IREE {peer.iree_ms:.3g} ms"
    assert shown([peer]) == [f"torch 2.13.0 compile {times}: no verdict, 2.00 × IREE's time ({peer.reason})"]


def test_without_blocks_there_is_a_reason() -> None:
    evidence = Evidence()
    evidence.attempts["ab"] = 6
    evidence.disturbances["the machine ran on battery"] += 6
    assert judged(Peer("torch eager"), evidence).reason == (
        "every block was disturbed; such as: the machine ran on battery"
    )
    failed = judged(Peer("torch eager"), replace(evidence, failure="B: torch eager failed with exit code 1"))
    assert (failed.reason, failed.ratio) == ("B: torch eager failed with exit code 1", None)


def test_long_calls_are_shown_in_seconds() -> None:
    peer = judged(Peer("onnxruntime", version="1.31.1"), _evidence([1000.0] * BLOCKS))
    assert shown([peer]) == [
        "onnxruntime 1.31.1 2.02 s a call (median), IREE 2.02 ms: IREE is 1000.00 × as fast (1000.00 to 1000.00)"
    ]
    assert math.isclose(peer.ratio or 0, 1000)
