"""The command line as a user sees it: broken specs, help, doctor, report, recording."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree


def test_broken_specs_are_reported_all_at_once_and_nothing_runs(project: Project) -> None:
    project.regression(run_functio="abs")
    (project.benchmarks / "abs_cpu.json").write_text('{"inputs": ["4xf32"],}')
    done = project.gauntlet("run")
    assert done.code == 2
    assert "did you mean 'run_function'" in done.err
    assert "trailing comma" in done.err
    assert not (project.folder / "runs").exists()


def test_reports_are_the_same_bytes_each_time(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "compile").code == 0
    first = {name: (project.newest / name).read_bytes() for name in ("junit.xml", "summary.md", "summary.json")}
    for word in ("latest", project.newest.name, str(project.newest)):
        for name in first:
            (project.newest / name).unlink()
        assert project.gauntlet("report", word).code == 0
        assert {name: (project.newest / name).read_bytes() for name in first} == first


def test_a_folder_that_holds_a_run_is_not_written_over(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "fetch", "--run-dir", "mine").code == 0
    done = project.gauntlet("run", "--stages", "fetch", "--run-dir", "mine")
    assert done.code == 2
    assert "--resume" in done.err


def test_doctor_says_what_is_here(project: Project) -> None:
    done = project.gauntlet("doctor")
    assert done.code == 0
    assert "target cpu" in done.out
    findings = json.loads(project.gauntlet("doctor", "--format", "json").out)
    assert {"iree", "cache", "machine", "benchmarking"} <= {finding["area"] for finding in findings}


def test_doctor_calls_broken_settings_broken(project: Project) -> None:
    (project.folder / "gauntlet.toml").write_text("mirrors = ")
    assert "broken   configuration:" in project.gauntlet("doctor").out


@pytest.mark.parametrize("task", ["golden.record", "golden.sensitivity"])
def test_what_runs_onnxruntime_alone_offers_no_options_of_runs(project: Project, task: str) -> None:
    found = set(re.findall(r"--[a-z-]+", project.gauntlet("--help", task).out))
    assert {"--model", "--offline", "--timeout-stall", "--cache-dir"} <= found
    assert not {"--resume", "--verdict", "--timeout-compile", "--jobs", "--run-dir"} & found


def test_every_task_has_help(project: Project) -> None:
    listed = project.gauntlet("--list").out
    for task in ("list", "plan", "fetch", "compile", "threshold", "benchmark", "run", "lint", "doctor", "report"):
        assert f"  {task} " in listed
        assert "Docstring" in project.gauntlet(task, "--help").out


def _onnx_model(path: Path, *, constant: bool = False) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    k = helper.make_tensor_value_info("k", TensorProto.INT64, ["n", 1])
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])
    first = helper.make_node("Mul", ["x", "zero"], ["y"]) if constant else helper.make_node("Relu", ["x"], ["y"])
    nodes = [first, helper.make_node("ArgMax", ["x"], ["k"], axis=1)]
    graph = helper.make_graph(nodes, "toy", [x], [y, k], [zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def _onnx_spec(project: Project, outputs: list[dict[str, str]]) -> None:
    spec = {
        "mlir": "net.onnx",
        "onnx_import": {"shapes": {"x": [8, 4]}},
        "device": "local-task",
        "inputs": [{"source": "random://normal/8x4xf32?seed=3&mean=0&stddev=1"}],
        "outputs": outputs,
        "compiler_flags": FLAGS,
        "run_function": "toy",
    }
    (project.regressions / "net_cpu.json").write_text(json.dumps(spec))


def test_outputs_are_recorded_and_then_pass(project: Project) -> None:
    _onnx_model(project.regressions / "net.onnx")
    _onnx_spec(project, [])
    recorded = project.gauntlet("golden.record", "--model", "toy", "--submodel", "net")
    assert recorded.code == 0, recorded.text
    spec = json.loads((project.regressions / "net_cpu.json").read_text(encoding="utf-8"))
    assert spec["outputs"] == [
        {"source": "net_cpu/output_0.npy"},
        {"source": "net_cpu/output_1.bin", "value": "8x1xi64"},
    ]
    done = project.gauntlet("run", "--submodel", "net")
    assert done.code == 0, done.text
    outputs = project.result("toy/net@cpu:threshold")["outputs"]
    assert [output["passed"] for output in outputs] == [True, True]
    assert "1 made" in next(line for line in done.out.splitlines() if line.startswith("compiles"))
    wrong = np.fromfile(project.regressions / "net_cpu" / "output_1.bin", np.int64)
    wrong[3] = (wrong[3] + 1) % 4
    wrong.tofile(project.regressions / "net_cpu" / "output_1.bin")
    assert project.gauntlet("run", "--submodel", "net").code == 1
    assert project.result("toy/net@cpu:threshold")["outputs"][1]["mismatches"] == 1


def test_what_the_pythonpath_names_does_not_import_in_place_of_the_iree_that_was_chosen(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    _onnx_model(project.regressions / "net.onnx")
    _onnx_spec(project, [])
    bindings = project.folder / "bindings"
    (bindings / "iree" / "compiler").mkdir(parents=True)
    (bindings / "iree" / "compiler" / "__init__.py").write_text("raise SystemExit('of another IREE')\n")
    monkeypatch.setenv("PYTHONPATH", str(bindings))
    done = project.gauntlet("run", "--submodel", "net", "--stages", "compile")
    assert done.code == 0, done.text
    site = find_installed().compiler.site_packages
    assert f"PYTHONPATH={site} " in project.result("toy/net@cpu:import")["command"]


def test_a_constant_output_is_recorded_with_a_word(project: Project) -> None:
    _onnx_model(project.regressions / "net.onnx", constant=True)
    _onnx_spec(project, [])
    done = project.gauntlet("golden.record", "--model", "toy", "--submodel", "net")
    assert done.code == 0, done.text
    assert "is 0 everywhere: a model that always gives that would pass" in done.out
