"""`init --program` for programs of PyTorch: files, functions, their references, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.workers.iree_side.user_functions import UserFunction
from tests.support.command_line import CommandResult, run_in_process
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def gauntlet(folder: Path, *words: str) -> CommandResult:
    return run_in_process(
        words, folder, {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}, {}
    )


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_archives_are_named_and_never_unpickled(tmp_path: Path) -> None:
    members = {
        "script": ("net/constants.pkl", "a TorchScript"),
        "weights.pth": ("net/data.pkl", "a checkpoint of PyTorch (a pickle, whose weights have no program)"),
        "compiled": ("net/data/aotinductor/model/a.so", "a program that PyTorch has compiled"),
        "whole.pt2": ("net/models/model.json", ""),
    }
    for name, (member, title) in members.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, "{}" * 500)
        if title:
            done = gauntlet(tmp_path, "init", "p", "--program", name)
            assert done.code == 2, done.text
            assert f"--program {name} is {title}" in done.err
            assert "torch.export.save(" in done.err
    (tmp_path / "short.pt2").write_bytes((tmp_path / "whole.pt2").read_bytes()[:700])
    done = gauntlet(tmp_path, "init", "p", "--program", "short.pt2")
    assert "--program short.pt2 is a zip archive that is empty, damaged or incomplete" in done.err
    assert not (tmp_path / "p").exists()


def test_a_python_without_torch_is_refused_with_the_extra(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("net/models/model.json", "{}")
    (tmp_path / "net.py").write_text("from torch import nn\n")
    (tmp_path / "both.py").write_text("import jax\nimport torch\n")
    python = ("--reference-python", "/bin/false")
    for program in ("net.pt2", "net.py:f"):
        done = gauntlet(tmp_path, "init", "p", "--program", program, *python)
        assert done.code == 2, done.text
        assert "--reference-python /bin/false: exit code 1" in done.err
        assert "pip install 'iree-gauntlet[models]' in it." in done.err
    # What the file imports does not tell: JAX is asked first.
    done = gauntlet(tmp_path, "init", "p", "--program", "both.py:f", *python)
    assert "pip install 'iree-gauntlet[jax]' in it." in done.err
    if importlib.util.find_spec("torch") is None:
        done = gauntlet(tmp_path, "init", "p", "--program", "net.pt2")
        assert "is of PyTorch, which needs torch and iree-turbine: they are not installed here" in done.err
    assert not (tmp_path / "p").exists()


def test_functions_are_told_by_their_arguments() -> None:
    tensor = type("Tensor", (), {"__module__": "torch"})
    array = type("ArrayImpl", (), {"__module__": "jaxlib._jax"})
    layer = type("Module", (), {"__module__": "torch.nn.modules.module"})
    assert UserFunction(print, (1, [{"x": tensor()}])).find_framework() == "torch"
    assert UserFunction(print, {"x": array()}).find_framework() == "jax"
    assert UserFunction(layer, ()).find_framework() == "torch"
    assert UserFunction(print, (np.zeros(2),)).find_framework() == ""


NETS = """
import torch
from torch import nn
torch.manual_seed(0)
print("hello")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.drop = nn.Linear(8, 4), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(4))
    def forward(self, x, unused=None):
        y = self.drop(self.dense(x)).tanh()
        self.seen.add_(y.sum(0))
        return y, self.seen * 1, y.argmax(-1)

net = Net().eval()
net_arguments = (torch.randn(3, 8),)
def make(): return nn.Sequential(nn.Linear(8, 4), nn.GELU()).eval()
make_arguments = {"input": torch.randn(3, 8)}
make_dynamic_shapes = {"input": {0: torch.export.Dim("n")}}
def half(x, mask): return torch.where(mask, x * 2, x.exp()), mask.any()
half_arguments = (torch.zeros(4, 6).half(), torch.rand(4, 6) > 0.5)
def shapes(x, i): return x[i] + 1
shapes_arguments = (torch.empty(5, 3, device="meta"), torch.empty(2, dtype=torch.int64, device="meta"))
train = Net()
train_arguments = net_arguments
def wrong(x): raise ValueError("no such thing")
wrong_arguments = net_arguments
"""


@pytest.mark.iree
@pytest.mark.models
def test_pytorch_computes_what_is_expected_of_its_programs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("iree.turbine")
    (tmp_path / "nets.py").write_text(NETS)
    page = (ROOT / "docs" / "how-to" / "programs.md").read_text(encoding="utf-8")
    (tmp_path / "net.py").write_text(page.partition("# net.py\n")[2].partition("```")[0])
    python = ("--reference-python", sys.executable)
    models = tmp_path / "p" / "specs" / "regression_tests"
    torch.manual_seed(1)
    layer = torch.nn.LSTM(4, 5).eval()
    torch.export.save(torch.export.export(layer, (torch.randn(3, 4),)), str(tmp_path / "lstm.pt2"))
    first = "note: it was decomposed to core operators first"
    notes = {
        "nets.py:net": f"{first}: it changes tensors in place (aten.add_.Tensor)",
        "nets.py:make": "",
        "net.py:net --name page": "",
        "nets.py:half": "note: the example of x is 0 everywhere: noise is in its place",
        "nets.py:shapes": "",
        "lstm.pt2": f"{first}: the importer does not know torch.aten.lstm.input",
    }
    for program, note in notes.items():
        done = gauntlet(tmp_path, "init", "p", "--program", *program.split(), *python)
        assert done.code == 0, done.text
        assert note in done.out
        source, _, name = program.partition(" --name ")
        name = name or source.rpartition(":")[2].removesuffix(".pt2")
        provenance = read_json(models / name / "model_cpu" / "provenance.json")
        assert (provenance["made_by"], provenance["torch"]) == ("torch", torch.__version__)
        assert provenance["second"] == "PyTorch's decomposition to core operators"
        assert provenance["exported_from"]["source"] == source
        assert "agrees_with" not in provenance
    done = gauntlet(tmp_path, "init", "q", "--program", "nets.py:make", "--shape", "input=5x8", *python)
    assert "input: 5x8xf32" in done.out
    # The outputs are those of the function itself, from its own state.
    inputs = np.load(models / "net" / "model_cpu" / "input_0.npy")
    scope: dict[str, Any] = {}
    exec(NETS, scope)
    outputs = scope["net"](torch.from_numpy(inputs))
    for index, output in enumerate(outputs[:2]):
        recorded = np.load(models / "net" / "model_cpu" / f"output_{index}.npy")
        np.testing.assert_allclose(recorded, output.detach().numpy(), rtol=1e-6)
    ran = gauntlet(tmp_path / "p", "run", "--stages", "threshold")
    assert ran.code == 0, ran.text
    assert "6 cases: 6 passed" in ran.out
    # Recorded again by its own call; a program that is another one now is not.
    before = read_json(models / "make" / "model_cpu" / "provenance.json")
    again = gauntlet(tmp_path / "p", "golden.record", "--model", "make", *python)
    assert again.code == 0, again.text
    renewed = read_json(models / "make" / "model_cpu" / "provenance.json")
    assert renewed | {"tolerance": before["tolerance"]} == before
    (tmp_path / "nets.py").write_text(NETS.replace("manual_seed(0)", "manual_seed(1)"))
    changed = gauntlet(tmp_path / "p", "golden.record", "--model", "make", *python)
    assert changed.code == 2, changed.text
    assert "here is only IREE itself: nets.py:make gives another program now" in changed.err


@pytest.mark.iree
@pytest.mark.models
def test_programs_of_pytorch_that_cannot_be_taken_are_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("iree.turbine")
    (tmp_path / "nets.py").write_text(NETS)
    python = ("--reference-python", sys.executable)
    messages = {
        "wrong": "wrong cannot be exported: ValueError: no such thing",
        "nothing": "nets.py has no function nothing; it has Net, half, make",
        "train": "differ from run to run",
    }
    for name, message in messages.items():
        done = gauntlet(tmp_path, "init", "p", "--program", f"nets.py:{name}", *python)
        assert done.code != 0, done.text
        assert message in done.err, done.text
        assert not (tmp_path / "p").exists()
    assert "note: it is in training mode, in which Dropout differ: call its .eval() first" in done.out
    torch.export.save(torch.export.export(torch.nn.Linear(8, 4), (torch.randn(3, 8),)), str(tmp_path / "whole.pt2"))
    content = (tmp_path / "whole.pt2").read_bytes()
    numbers = random.Random(1)
    for number in range(4):
        damaged = bytearray(content)
        damaged[numbers.randrange(100, len(content) - 4000)] ^= 1 << numbers.randrange(8)
        (tmp_path / "flipped.pt2").write_bytes(damaged)
        done = gauntlet(tmp_path, "init", f"flipped{number}", "--program", "flipped.pt2", *python)
        assert done.code in (0, 2), done.text
        assert done.code == 0 or "error: --program flipped.pt2" in done.err
        assert (tmp_path / f"flipped{number}").exists() is (done.code == 0)
