"""Host modules before and after the device: the stages alone, and the script with torch and the real runtime."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.torch_models import torch_side
from iree_gauntlet.torch_models.torch_side.host_pipeline import StageError, run_pipeline
from iree_gauntlet.torch_models.torch_side.measure_pipeline import add_torch
from iree_gauntlet.workers.iree_side.plan_file import PlanError
from tests.support.command_line import LIMIT_SECONDS
from tests.support.worker_here import compile_for_cpu, run_script

if TYPE_CHECKING:
    from collections.abc import Callable

_SCRIPT = Path(torch_side.__file__).with_name("measure_pipeline.py")

_PROGRAM = """
func.func @double(%x: !torch.vtensor<[2,4],bf16>, %n: !torch.vtensor<[2],si64>)
    -> (!torch.vtensor<[2,4],bf16>, !torch.vtensor<[2],si64>) {
  %two = torch.constant.int 2
  %0 = torch.aten.mul.Scalar %x, %two : !torch.vtensor<[2,4],bf16>, !torch.int -> !torch.vtensor<[2,4],bf16>
  %1 = torch.aten.mul.Scalar %n, %two : !torch.vtensor<[2],si64>, !torch.int -> !torch.vtensor<[2],si64>
  return %0, %1 : !torch.vtensor<[2,4],bf16>, !torch.vtensor<[2],si64>
}
"""
_MODELS = """
from iree_gauntlet.bench import benchmark_model, on_host

count = []

def parts():
    import torch

    class Before(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4))

        def forward(self, images):
            print("before")
            return images.float() @ self.weight, [images.long().sum(1)]

    class After(torch.nn.Module):
        def forward(self, x, n):
            import torch
            assert x.dtype is torch.float32, x.dtype
            return {RETURNED}

    return Before(), torch.nn.Identity(), After(), [torch.tensor([[1, 2, 3], [250, 251, 252]], dtype=torch.uint8)]


@benchmark_model
def both(training: bool):
    before, device, after, inputs = parts()
    return [before, device, after], inputs


@benchmark_model
def before_only(training: bool):
    before, device, _, inputs = parts()
    return [on_host(before), device], inputs


@benchmark_model
def first_only(training: bool):
    import torch

    class First(torch.nn.Module):
        def __init__(self, before):
            super().__init__()
            self.before = before

        def forward(self, images):
            return {"x": self.before(images)[0].double()}

    before, device, after, inputs = parts()
    return [First(before), device, after], inputs


@benchmark_model
def after_only(training: bool):
    _, device, after, inputs = parts()
    return [device, on_host(after)], inputs


@benchmark_model
def none(training: bool):
    _, device, _, inputs = parts()
    return [device], inputs
"""


def test_three_stages_run_at_the_same_time() -> None:
    calls = 6
    together = threading.Barrier(3)
    counts = {"pre": 0, "device": 0, "post": 0}

    def stage(name: str, first: int) -> Callable[[Any], Any]:
        # From its own first call on, a stage continues only with the two others inside a call.
        def work(item: Any = None) -> Any:
            counts[name] += 1
            if first < counts[name] <= first + calls - 2:
                together.wait(LIMIT_SECONDS)
            return item

        return work

    pre = stage("pre", 2)
    run_pipeline(lambda: pre(None), [stage("device", 1)], stage("post", 0), calls)
    assert counts == {"pre": calls, "device": calls, "post": calls}


@pytest.mark.parametrize("contexts", [1, 3])
@pytest.mark.parametrize("group", [1, 4])
def test_every_call_comes_through_and_no_stage_runs_away(contexts: int, group: int) -> None:
    made = 0
    ahead: list[int] = []
    finished: list[int] = []
    groups = 30

    def pre() -> int:
        nonlocal made
        made += 1
        ahead.append(made - len(finished))
        return made

    def device(items: list[int]) -> list[int]:
        assert len(items) == group
        return [-item for item in items]

    loop = run_pipeline(pre, [device] * contexts, finished.append, groups, group)
    assert sorted(finished) == [-number for number in range(groups * group, 0, -1)]
    if contexts == 1:
        assert finished == [-number for number in range(1, groups * group + 1)], "in order"
    # In both lanes, in every context, and one in the hands of either host stage.
    assert max(ahead) <= 3 * group * contexts + 2
    assert len(loop.pre_ns) == len(loop.post_ns) == groups * group
    assert (len(loop.device_ns), sum(map(len, loop.device_ns))) == (contexts, groups)
    assert loop.total_ns > 0


@pytest.mark.parametrize("stage", ["before the device", "on the device", "after the device"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_a_stage_that_fails_ends_the_others(stage: str, contexts: int) -> None:
    count = 0

    def work(name: str, item: Any) -> Any:
        nonlocal count
        if name == stage:
            count += 1
            if count == 3:
                raise KeyError("lost")
        return item

    before = threading.active_count()
    with pytest.raises(StageError, match=f"^{stage}: KeyError: 'lost'$") as caught:
        run_pipeline(
            lambda: work("before the device", 1),
            [lambda items: work("on the device", items)] * contexts,
            lambda item: work("after the device", item),
            1000,
        )
    assert isinstance(caught.value.__cause__, KeyError)
    assert threading.active_count() == before


def _fake_torch(folder: Path, name: str) -> str:
    (folder / "torch" / "_C").mkdir(parents=True)
    (folder / "torch" / "_C" / "__init__.pyi").write_text("")
    (folder / "torch" / name).write_bytes(b"")
    return str(folder)


def test_torch_of_another_python_is_said_before_it_is_imported(tmp_path: Path) -> None:
    other = _fake_torch(tmp_path / "other", "_C.cpython-38-x86_64-linux-gnu.so")
    with pytest.raises(PlanError, match=r"is for another version \(_C\.cpython-38-.*: name a Python 3\.1"):
        add_torch([str(tmp_path / "nothing"), other])
    with pytest.raises(PlanError, match="no torch in no folder at all"):
        add_torch([])
    done = run_script(_SCRIPT, {"inputs": [], "host_inputs": [], "torch_paths": [other]}, tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_torch_of_this_python_comes_after_its_own_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    folder = _fake_torch(tmp_path, f"_C{suffix}")
    monkeypatch.setattr(sys, "path", [*sys.path])
    add_torch([folder, folder])
    assert sys.path[-1] == folder
    assert sys.path.count(folder) == 1


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    compile_for_cpu(_PROGRAM, folder / "double.vmfb")
    np.save(folder / "images.npy", np.array([[1, 2, 3], [250, 251, 252]], np.uint8))
    np.save(folder / "x.npy", np.full((2, 4), 0x3FC0, np.uint16))  # 1.5
    np.save(folder / "n.npy", np.array([3, -4]))
    return folder


def _measure(
    built: Path, folder: Path, returned: str = "x.sum(1), n", asked: dict[str, Any] | None = None, **changes: Any
) -> subprocess.CompletedProcess[str]:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    models = folder / "models"
    models.mkdir(exist_ok=True)
    (models / "parts.py").write_text(_MODELS.replace("{RETURNED}", returned))
    plan = {
        "devices": ["local-task"],
        "modules": [str(built / "double.vmfb")],
        "parameters": [],
        "function": "double",
        "inputs": [{"file": str(built / "x.npy"), "type": "bf16"}, {"file": str(built / "n.npy"), "type": "i64"}],
        "calls": 8,
        "warm_up_calls": 1,
        "outputs": str(folder),
        "in_flight": 1,
        "torch_paths": [str(Path(torch.origin).parents[1])],
        "builder": {"models_dirs": [str(models)], "model": "both", "dataformat": "Fp16_b", **(asked or {})},
        "host_inputs": [{"file": str(built / "images.npy"), "type": "ui8"}],
    }
    (folder / "plan.json").write_text(json.dumps(plan | changes))
    argv = [sys.executable, "-B", str(_SCRIPT), str(folder / "plan.json")]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)


def _expected_x() -> Any:
    """What the device gives, as f32."""
    import torch  # noqa: PLC0415 - only where it is

    torch.manual_seed(0)
    weight = torch.randn(3, 4)
    images = torch.tensor([[1.0, 2, 3], [250, 251, 252]])
    return ((images @ weight).bfloat16() * 2).float()


@pytest.mark.models
@pytest.mark.iree
@pytest.mark.parametrize(("contexts", "in_flight", "pushed"), [(1, 1, "one by one"), (2, 4, "async")])
def test_modules_on_the_host_run_before_and_after_the_device(
    built: Path, tmp_path: Path, contexts: int, in_flight: int, pushed: str
) -> None:
    done = _measure(built, tmp_path, devices=["local-task"] * contexts, in_flight=in_flight)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "before" in done.stderr, "what a model prints"
    assert result["pushed"] == pushed
    assert [(item["type"], item["shape"]) for item in result["outputs"]] == [("bf16", [2, 4]), ("i64", [2])]
    assert [(item["type"], item["shape"]) for item in result["host_outputs"]] == [("f32", [2]), ("i64", [2])]
    found, sums = (np.load(item["file"]) for item in result["host_outputs"])
    assert found.tolist() == _expected_x().sum(1).tolist()
    assert sums.tolist() == [12, 1506]
    assert (len(result["host_ms"]["pre"]), len(result["host_ms"]["post"])) == (8, 8)
    assert (len(result["call_ms"]), sum(map(len, result["call_ms"]))) == (contexts, 8 // in_flight)
    in_stages = max(sum(result["host_ms"]["pre"]), sum(result["host_ms"]["post"]))
    assert 0 < in_stages / 1e3 <= result["total_s"]
    assert result["overhead_us"] > 0
    assert result["first_call_ms"] > 0


@pytest.mark.models
@pytest.mark.iree
def test_one_module_on_the_host(built: Path, tmp_path: Path) -> None:
    done = _measure(built, tmp_path, asked={"model": "before_only"})
    assert done.returncode == 0, done.stderr
    items = json.loads(done.stdout)["host_outputs"]
    assert [(item["type"], item["shape"]) for item in items] == [("f32", [2, 4]), ("i64", [2])]
    assert np.load(items[0]["file"]).tolist() == _expected_x().tolist()
    done = _measure(built, tmp_path, asked={"model": "after_only"}, host_inputs=[])
    assert done.returncode == 0, done.stderr
    assert [np.load(item["file"]).tolist() for item in json.loads(done.stdout)["host_outputs"]] == [[12, 12], [6, -8]]


@pytest.mark.models
@pytest.mark.iree
def test_in_training_nothing_runs_after_the_device_and_sums_stay_there(built: Path, tmp_path: Path) -> None:
    # The second input, which nothing on the host returns, is carried; so it doubles with every call of a group.
    asked = {"training": True, "model": "first_only"}
    changes: dict[str, Any] = {"asked": asked, "fetch": [1], "in_flight": 4}
    done = _measure(built, tmp_path, **changes, carry={"outputs": 1, "inputs": 1, "count": 1})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    x, n = (np.load(item["file"]) for item in result["host_outputs"])
    assert (x.tolist(), n.tolist()) == (_expected_x().tolist(), [6, -8])
    assert result["host_outputs"] == [
        {"file": str(tmp_path / "host_output_0.npy"), "type": "f32", "shape": [2, 4]},
        {"file": str(tmp_path / "host_output_1.npy"), "type": "i64", "shape": [2]},
    ]
    assert [len(times) for times in result["call_ms"]] == [2]
    done = _measure(built, tmp_path, **changes, outputs="")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["host_outputs"] == [{"file": "", "type": "i64", "shape": [2]}]
    assert result["outputs"] == [{"file": "", "type": "bf16"}, {"file": "", "type": "i64", "shape": [2]}]


@pytest.mark.models
@pytest.mark.iree
@pytest.mark.parametrize(
    ("returned", "changes", "code", "says"),
    [
        ("x", {"asked": {"model": "none"}}, 2, "none has no modules on the host"),
        ("x", {"asked": {"model": "nothing"}}, 2, "no such benchmark model: 'nothing' Available: after_only, b"),
        ("x", {"asked": {"config": "tiny"}}, 2, "both: no such configuration: 'tiny'"),
        ("x", {"inputs": []}, 2, "before the device: shapes [[2, 4], [2]] are returned, but the device takes []"),
        ("x", {"asked": {"training": True, "model": "after_only"}}, 2, "after_only has no modules on the host"),
        ("x, 'x'", {}, 2, "after the device: str is returned: expected tensors"),
        ("x.to(torch.complex64)", {}, 2, "after the device: complex64 is returned; known: float64"),
        ("x @ n", {}, 1, "parts.py:22: RuntimeError: "),
        ("int('one')", {}, 1, "parts.py:22: ValueError: invalid literal"),
        ("x if count.append(0) or len(count) < 5 else [][0]", {}, 1, "parts.py:22: IndexError: list index"),
        ("x", {"modules": ["/no/such.vmfb"]}, 2, "such.vmfb"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    built: Path, tmp_path: Path, returned: str, changes: dict[str, Any], code: int, says: str
) -> None:
    done = _measure(built, tmp_path, returned, **changes)
    lines = [line for line in done.stderr.splitlines() if line != "before"]
    assert (done.returncode, len(lines), done.stdout) == (code, 1, ""), done.stderr
    assert says in lines[0]
