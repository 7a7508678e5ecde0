"""Building models in the Python that has torch: the files of a build, and messages about mistakes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.build_files import BuildPlan, read_build, read_plan
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF, count_longest_contractions, read_contractions
from iree_gauntlet.torch_models.torch_chain import make_torch_argv
from tests.support.command_line import LIMIT_SECONDS
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SHIPPED = ROOT / "specs" / "models"
HEADER = "from iree_gauntlet.bench import Generative, benchmark_model, on_host\n\n"


def plan_of(folder: Path, **given: Any) -> BuildPlan:
    return BuildPlan(**{"models_dirs": (str(folder / "models"),), "output": str(folder / "built"), **given})


def run_builder(folder: Path, plan: BuildPlan) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    # From another folder, as an environment in which the toolkit is not installed.
    return subprocess.run(
        [*make_torch_argv(sys.executable, "building"), str(folder / "plan.json")],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def built(folder: Path, **given: Any) -> Path:
    done = run_builder(folder, plan_of(folder, **given))
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    return folder / "built"


def models(folder: Path, text: str, name: str = "mine.py") -> None:
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / name).write_text(HEADER + text, encoding="utf-8")


def array(folder: Path, record: dict[str, Any]) -> NDArray[Any]:
    found: NDArray[Any] = np.load(folder / record["file"], allow_pickle=False)
    assert list(found.shape) == record["shape"]
    if record["type"] == "bf16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    return found


def record_of(folder: Path) -> dict[str, Any]:
    read_build(folder)
    found: dict[str, Any] = json.loads((folder / "build.json").read_text(encoding="utf-8"))
    return found


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


# The plan


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, model="bert", config="tiny", training=True, microbatch=4, accumulate=True)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    assert read_plan(tmp_path / "plan.json", BuildPlan) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "unknown fields of a plan: list"),
        ('{"model": "a", "output": "b", "models_dirs": ["c"], "mode": 1}', "unknown fields of a plan: mode"),
        ('{"model": "a", "models_dirs": []}', "wrong type: models_dirs"),
        (
            '{"model": "a", "output": "b", "models_dirs": ["c"], "layers": true, "dataformat": "fp8"}',
            "wrong type: dataformat, layers",
        ),
        ('{"model": "a", "output": "b", "models_dirs": ["c"], "accumulate": true}', "accumulate requires training"),
    ],
)
def test_plans_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_plan(path, BuildPlan)


# Contractions


def graph(nodes: list[Any], inputs: list[str], outputs: list[str]) -> Any:
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in {*inputs, *outputs}}
    return helper.make_graph(nodes, "g", [values[name] for name in inputs], [values[name] for name in outputs])


def test_the_longest_way_counts_and_the_others_do_not() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["c"]),
        helper.make_node("Gemm", ["x", "w"], ["d"]),
        helper.make_node("Einsum", ["d", "c"], ["e"], equation="ij,jk->ik"),
        helper.make_node("ConvTranspose", ["x", "w"], ["side"]),
    ]
    assert count_longest_contractions(graph(nodes, ["x", "w"], ["e", "side"])) == 3
    assert count_longest_contractions(graph([helper.make_node("Relu", ["x"], ["y"])], ["x"], ["y"])) == 0


def test_branches_see_what_is_around_them(tmp_path: Path) -> None:
    def branch(name: str, count: int) -> Any:
        steps = [
            helper.make_node("MatMul", ["a" if not n else f"{name}{n}", "w"], [f"{name}{n + 1}"]) for n in range(count)
        ]
        return graph(steps, [], [f"{name}{count}"])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("If", ["flag"], ["b"], then_branch=branch("t", 3), else_branch=branch("e", 1)),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
    ]
    whole = graph(nodes, ["x", "w", "flag"], ["c"])
    assert count_longest_contractions(whole) == 5
    onnx.save(helper.make_model(whole), str(tmp_path / "m.onnx"))
    assert read_contractions(tmp_path / "m.onnx") == 5


# Without torch


def test_what_torchs_python_imports_is_compiled_once(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')\n")
    words = [*make_torch_argv(sys.executable, "building"), str(tmp_path / "plan.json")]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 2, done.stderr
    assert list((tmp_path / "__pycache__").glob("torch.*.pyc"))


def test_a_python_without_torch_says_what_to_install(tmp_path: Path) -> None:
    try:
        import torch  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        done = run_builder(tmp_path, plan_of(tmp_path, model="bert", models_dirs=(str(SHIPPED),)))
        assert done.returncode == 2
        assert "lacks torch, needed to build models" in errors(done)[0]
        assert "lacks torch" in errors(done)[0]
        assert 'pip install "iree-gauntlet[models]"' in done.stderr
        assert not done.stdout
        assert not (tmp_path / "built").exists()
    else:
        pytest.skip("torch is here")


# With torch


MLP = """
@benchmark_model(configs=["a", "b"])
def mlp(training: bool, config: str, microbatch: int = 3):
    import torch
    print("chatter")
    from torch import nn

    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    return [model], [torch.randn(microbatch, 20)]
"""


@pytest.mark.models
def test_the_same_plan_gives_the_same_bytes(tmp_path: Path, needs_torch: Any) -> None:
    sums = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        models(tmp_path / place, MLP)
        folder = built(tmp_path / place, model="mlp", config="a", dataformat="Bfp8_b")
        record = record_of(folder)
        del record["seconds"]
        files = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.iterdir()
            if path.name != "build.json"
        }
        sums.append((record, files))
    assert sums[0] == sums[1]
    assert set(sums[0][1]) == {
        "main.onnx",
        "main.onnx.data",
        "main.directions.npz",
        "main.input_0.npy",
        "main.output_0.npy",
        "reference_0.npy",
    }
    assert str(tmp_path).encode() not in (tmp_path / "one" / "built" / "main.onnx").read_bytes()


@pytest.mark.models
def test_formats_and_the_reference(tmp_path: Path, needs_torch: Any) -> None:
    models(tmp_path, MLP)
    found = {}
    for form, kind, error in (("Fp32", "f32", 0.0), ("Fp16", "f16", 3e-4), ("Bfp4_b", "bf16", 0.2)):
        folder = built(tmp_path, model="mlp", config="b", dataformat=form, microbatch=4)
        record = record_of(folder)
        (program,) = record["programs"]
        assert {item["type"] for item in (*program["inputs"], *program["outputs"])} == {kind}
        assert (record["kind"], record["config"], record["samples"]) == ("pipeline", "b", 4)
        assert program["directions"]["names"] == [f"contraction {n} of 2 (addmm)" for n in (1, 2)]
        (rms, peak) = program["outputs"][0]["errors"]["rounding"]
        assert 0 < rms < peak < 8 * UNIT_ROUNDOFF[kind] * np.abs(array(folder, program["outputs"][0])).max()
        assert record["parameter_count"] == 20 * 32 + 32 + 64 + 32 * 5 + 5
        result = array(folder, program["outputs"][0])
        if form == "Fp32":
            assert record["reference"] == []
            assert record["weight_error"] is None
            found["plain"] = result
        else:
            assert 0 < record["weight_error"] < error
            (reference,) = (array(folder, item) for item in record["reference"])
            # One is torch's own in f32, the other each operator's in f64, rounded.
            np.testing.assert_allclose(reference, found["plain"], atol=1e-6)
            assert 0 < np.abs(result - reference).max() < 3 * error * np.abs(reference).max()


@pytest.mark.models
def test_hosts_hand_over_and_outputs_are_flat(tmp_path: Path, needs_torch: Any) -> None:
    models(
        tmp_path,
        """
@benchmark_model
def three(training: bool):
    import torch

    class Before(torch.nn.Module):
        def forward(self, x):
            return x.float() / 255, x > 100

    class Device(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(6, 4)

        def forward(self, x, flags):
            return {"first": self.line(x), "rest": (flags, [x * 2])}

    class After(torch.nn.Module):
        def forward(self, line, flags, doubled):
            assert line.dtype == torch.float32
            return line.argmax(-1), doubled.sum()

    return [Before(), Device(), After()], [torch.randint(0, 256, (5, 6), dtype=torch.uint8)]
""",
    )
    folder = built(tmp_path, model="three", dataformat="Fp16")
    record = record_of(folder)
    (program,) = record["programs"]
    assert record["host"] == {"pre": True, "post": True}
    assert [item["type"] for item in record["host_inputs"]] == ["ui8"]
    assert [item["type"] for item in program["inputs"]] == ["f16", "i1"]
    assert [item["type"] for item in program["outputs"]] == ["f16", "i1", "f16"]
    assert [item["type"] for item in record["host_outputs"]] == ["i64", "f32"]
    given = array(folder, record["host_inputs"][0])
    np.testing.assert_allclose(array(folder, program["inputs"][0]), given / 255, atol=1e-3)
    line = array(folder, program["outputs"][0])
    np.testing.assert_array_equal(array(folder, record["host_outputs"][0]), line.argmax(-1))


GENERATOR = """
@benchmark_model
def counter(training: bool):
    import torch

    class Prefill(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(11, 8)

        def forward(self, prompt):
            seen = self.words(prompt).sum(1)
            return seen @ self.words.weight.T, seen, seen * 2

    class Decode(torch.nn.Module):
        def __init__(self, words):
            super().__init__()
            self.words = words

        def forward(self, token, position, seen, fixed):
            new = seen + self.words(token[:, 0]) * position
            return (new + fixed) @ self.words.weight.T, RETURNED

    torch.manual_seed(3)
    prefill = Prefill()
    prompt = torch.tensor([[1, 2], [3, 4]])
    return Generative(prefill=prefill, decode=Decode(prefill.words), inputs=[prompt], position=2, tokens=5)
"""


@pytest.mark.models
def test_generation(tmp_path: Path, needs_torch: Any) -> None:
    models(tmp_path, GENERATOR.replace("RETURNED", "new"))
    folder = built(tmp_path, model="counter")
    record = record_of(folder)
    prefill, decode = record["programs"]
    made = record["generation"]
    assert (record["kind"], prefill["name"], decode["name"]) == ("generative", "prefill", "decode")
    assert (made["position"], made["tokens"], made["state"], made["carried"]) == (2, 5, 2, 1)
    assert [len(sample) for sample in made["chosen"]] == [5, 5]
    assert [item["shape"] for item in decode["inputs"]] == [[2, 1], [1], [2, 8], [2, 8]]
    first = array(folder, prefill["outputs"][0]).argmax(-1)
    second = array(folder, decode["outputs"][0]).argmax(-1)
    assert [sample[:2] for sample in made["chosen"]] == [list(pair) for pair in zip(first, second, strict=True)]
    np.testing.assert_array_equal(array(folder, decode["inputs"][0])[:, 0], first)


@pytest.mark.models
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GENERATOR.replace("RETURNED", "new[:1]"), "decode returned f32 [1, 8] after the logits, but the state that"),
        (
            GENERATOR.replace("seen @ self.words", "seen[0] @ self.words").replace("RETURNED", "new"),
            "f32 of shape [11]",
        ),
    ],
)
def test_generators_that_do_not_fit(tmp_path: Path, needs_torch: Any, text: str, message: str) -> None:
    models(tmp_path, text)
    done = run_builder(tmp_path, plan_of(tmp_path, model="counter"))
    assert done.returncode == 2
    (error,) = errors(done)
    assert message in error
    assert "models/mine.py:4: counter: " in error


def numeric_gradients(folder: Path) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    record = record_of(folder)
    return record, [array(folder, item) for item in record["programs"][0]["outputs"]]


@pytest.mark.models
def test_training_and_accumulation(tmp_path: Path, needs_torch: Any) -> None:
    torch = needs_torch
    models(tmp_path, MLP)
    record, plain = numeric_gradients(built(tmp_path, model="mlp", config="a", training=True))
    names = record["training"]["gradients"]
    assert (record["kind"], record["training"]["accumulate"]) == ("training", False)
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert len(plain) == 1 + len(names)
    # By hand: the loss is a mean of squares.
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(20, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 5)
    )
    inputs, targets = (torch.from_numpy(array(tmp_path / "built", item)) for item in record["programs"][0]["inputs"])
    loss = ((module(inputs) - targets) ** 2).mean()
    loss.backward()
    np.testing.assert_allclose(plain[0], loss.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(plain[1], module[0].weight.grad.numpy(), rtol=1e-5, atol=1e-7)
    record, summed = numeric_gradients(built(tmp_path, model="mlp", config="a", training=True, accumulate=True))
    given = [array(tmp_path / "built", item) for item in record["programs"][0]["inputs"]]
    assert len(given) == 2 + len(names)
    for before, gradient, total in zip(given[2:], plain[1:], summed[1:], strict=True):
        np.testing.assert_allclose(total, before + gradient, rtol=1e-6)
        assert np.abs(before).max() > 0
    # Weights are the program's own: no more inputs than these.
    graph = onnx.load(str(tmp_path / "built" / "main.onnx"), load_external_data=False).graph
    assert len(graph.input) == len(given)
    assert {"0.weight", "3.weight"} <= {item.name for item in graph.initializer}


@pytest.mark.models
def test_no_translation_is_one_line_that_names_the_operator(tmp_path: Path, needs_torch: Any) -> None:
    models(
        tmp_path,
        """
@benchmark_model
def odd(training: bool):
    import torch

    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j1(x)

    return [Odd()], [torch.ones(2, 3)]
""",
    )
    done = run_builder(tmp_path, plan_of(tmp_path, model="odd"))
    assert done.returncode == 1
    assert errors(done) == ["error: odd: main cannot be exported: ONNX has no translation of prims.bessel_j1.default"]
    assert not (tmp_path / "built" / "build.json").exists()


@pytest.mark.models
def test_a_model_that_fails_is_named_with_its_line(tmp_path: Path, needs_torch: Any) -> None:
    models(
        tmp_path,
        """
@benchmark_model
def broken(training: bool):
    import torch

    class Broken(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("shapes that do not fit")

    return [Broken()], [torch.ones(2, 3)]

@benchmark_model
def none(training: bool):
    import torch

    class Nothing(torch.nn.Module):
        def forward(self, x):
            return x, "text"

    return [Nothing()], [torch.ones(2, 3)]
""",
    )
    for name, message in (
        ("broken", "models/mine.py:10: broken: RuntimeError: shapes that do not fit"),
        (
            "none",
            "models/mine.py:14: none: what the device's module returned: item 1 is of type str, not a torch.Tensor",
        ),
        ("brokn", "no such benchmark model: 'brokn'"),
    ):
        done = run_builder(tmp_path, plan_of(tmp_path, model=name))
        assert done.returncode == 2
        (error,) = errors(done)
        assert message in error
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "built" / "build.json").exists()


# Through IREE


def run_in_iree(folder: Path, program: dict[str, Any]) -> list[NDArray[Any]]:
    from iree import runtime  # noqa: PLC0415 - only where it is compiled

    work = folder.parent / "work"
    work.mkdir(exist_ok=True)
    source, weights, binary = (work / f"program.{end}" for end in ("mlir", "irpa", "vmfb"))
    tools = [sys.executable, "-m"]
    externals = ["--externalize-params", "--save-params-to", str(weights)]
    importing = [str(folder / program["onnx"]), "-o", str(source), *externals]
    subprocess.run([*tools, "iree.compiler.tools.import_onnx", *importing], check=True, timeout=LIMIT_SECONDS)
    local = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    compiling = [str(source), "-o", str(binary), *local]
    subprocess.run([*tools, "iree.compiler.tools.scripts.iree_compile", *compiling], check=True, timeout=LIMIT_SECONDS)
    config = runtime.Config("local-task")
    index = runtime.ParameterIndex()
    index.load(str(weights))
    parameters = runtime.create_io_parameters_module(config.vm_instance, index.create_provider("model"))
    loaded = runtime.VmModule.mmap(config.vm_instance, str(binary))
    context = runtime.SystemContext(vm_modules=[parameters, loaded], config=config)
    returned = getattr(context.modules, loaded.name)["main_graph"](*(array(folder, item) for item in program["inputs"]))
    arrays = returned if isinstance(returned, tuple | list) else (returned,)
    return [np.array(item.to_host()) for item in arrays]


@pytest.mark.models
@pytest.mark.iree
def test_training_of_bert_through_iree(tmp_path: Path, needs_torch: Any) -> None:
    # The sums' program has that of a single step in it.
    folder = built(
        tmp_path, model="bert", config="tiny", layers=1, training=True, accumulate=True, models_dirs=(str(SHIPPED),)
    )
    record = record_of(folder)
    (program,) = record["programs"]
    wanted = [array(folder, item) for item in program["outputs"]]
    found = run_in_iree(folder, program)
    assert len(found) == len(wanted)
    # A shift of all keys changes nothing in attention: what is there is rounding, and no error is relative to it.
    largest = max(float(np.sqrt(np.mean(want**2))) for want in wanted[1:])
    for name, have, want in zip(["loss", *record["training"]["gradients"]], found, wanted, strict=True):
        rms = float(np.sqrt(np.mean(want**2)))
        assert have.shape == want.shape
        assert np.sqrt(np.mean((have - want) ** 2)) <= 1e-5 * max(rms, 1e-2 * largest), name


@pytest.mark.models
@pytest.mark.iree
def test_training_of_convolutions_through_iree(tmp_path: Path, needs_torch: Any) -> None:
    models(
        tmp_path,
        """
@benchmark_model
def convolutions(training: bool):
    import torch
    from torch import nn

    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(), nn.Linear(256, 6),
    )
    return [network], [torch.randn(2, 3, 16, 16)]
""",
    )
    folder = built(tmp_path, model="convolutions", training=True)
    (program,) = record_of(folder)["programs"]
    for have, item in zip(run_in_iree(folder, program), program["outputs"], strict=True):
        want = array(folder, item)
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
