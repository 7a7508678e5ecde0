"""Runs of a suite of ONNX models: fetched through a mirror, compared with onnxruntime, with expected outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.artifact_server import Server, make_responder, run_server
from tests.support.onnx_suite import TEST_FILE, ZOO_URL, make_test_file, make_test_name, write_config, write_models
from tests.support.spec_trees import write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

MODELS = ("dense", "erf", "two", "unknown", "riddle", "garbage")
FAILING = {
    make_test_name("mnist/model/unknown.onnx"): "fail-compile",
    make_test_name("mnist/model/riddle.onnx"): "fail-import",
    make_test_name("mnist/model/garbage.onnx"): "fail-import",
}


@pytest.fixture
def mirror(project: Project) -> Iterator[Server]:
    """A mirror of the models, which the project fetches from, and a suite of them."""
    write_models(project.folder / "zoo")
    with run_server() as server:
        for path in (project.folder / "zoo").rglob("*.onnx"):
            server.url(f"/{path.relative_to(project.folder / 'zoo')}", make_responder(path.read_bytes()))
        text = f'[[mirrors]]\nprefix = "{ZOO_URL}"\nto = ["{server.base}/"]\nonly = true\n'
        (project.folder / "gauntlet.toml").write_text(text)
        write_tree(suite(project), {TEST_FILE: make_test_file(*(f'"mnist/model/{name}.onnx"' for name in MODELS))})
        yield server


def suite(project: Project) -> Path:
    return project.folder / "onnx_models"


def opset_of(project: Project, name: str) -> str:
    folder = project.newest / "steps" / "classification" / "mnist" / "model" / f"{name}.cpu"
    program = (folder / "import" / "program.mlir").read_text(encoding="utf-8")
    return program.partition("torch.onnx_meta.opset_version = ")[2].partition(" ")[0]


def verdicts(project: Project) -> dict[str, str]:
    """Of the steps that say something, by model and stage."""
    return {
        step.partition("/model/")[2].replace("@cpu:", " "): str(result.verdict)
        for step, result in project.journal.results.items()
        if result.verdict != "skipped"
    }


def test_every_outcome_and_the_second_run(project: Project, mirror: Server) -> None:
    outcomes = {"default": "pass", **FAILING, make_test_name("mnist/model/erf.onnx"): "fail-run"}
    write_config(suite(project), tests_and_expected_outcomes=outcomes)
    done = project.gauntlet("run", "--spec-dir", "onnx_models")
    assert done.code == 3, done.text
    passing = {f"{name} {stage}": "passed" for name in ("dense", "erf", "two") for stage in ("import", "compile")}
    passing |= {f"{name} fetch": "passed" for name in MODELS}
    passing |= {f"{name} reference": "passed" for name in ("dense", "erf", "two")}
    assert verdicts(project) == passing | {
        "dense threshold": "passed",
        "erf threshold": "xpassed",
        "two threshold": "passed",
        "unknown import": "passed",
        "unknown compile": "xfailed",
        "riddle import": "xfailed",
        # No model at all: that is not the failure that is expected of the importer.
        "garbage import": "error",
    }
    assert sum(mirror.hits.values()) == len(MODELS)
    # Models of an older opset are converted to 17, and newer ones stay as they are.
    assert [opset_of(project, name) for name in ("dense", "erf", "unknown", "two")] == ["17", "17", "17", "19"]
    result = project.result("classification/mnist/model/two@cpu:threshold")
    assert [(output["type"], output["passed"]) for output in result["outputs"]] == [("5xi64", True), ("2x5xi1", True)]
    # What a person would type, in the folder where the values lie.
    assert "--flagfile" not in result["command"]
    assert (
        "--input=2x5xf32=@input_0.bin --input=5xi64=@input_1.bin --expected_output=5xi64=@output_0.bin"
        in (result["command"])
    )

    # With the tolerance that the config asks for, exp(erf(x)) - 1.5 is not what onnxruntime has.
    write_config(
        suite(project),
        iree_run_module_flags=["--device=local-sync", "--expected_f32_threshold=0"],
        tests_and_expected_outcomes=outcomes,
    )
    done = project.gauntlet("run", "--spec-dir", "onnx_models", "--submodel", "erf", "--offline")
    assert done.code == 0, done.text
    assert verdicts(project)["erf threshold"] == "xfailed"
    reference = project.result("classification/mnist/model/erf@cpu:reference")
    assert reference["cache"]["reason"] == "in the cache"
    assert reference["tool_seconds"] == 0


def test_without_onnxruntime_only_the_comparison_is_an_error(
    project: Project, mirror: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mirror.responders
    monkeypatch.setattr("iree_gauntlet.engine.workbench.onnxruntime_version", lambda: "")
    write_config(suite(project))
    done = project.gauntlet("run", "--spec-dir", "onnx_models", "--submodel", "dense")
    assert done.code == 3
    assert "pip install 'iree-gauntlet[record]'" in done.text
    assert verdicts(project) == {
        "dense fetch": "passed",
        "dense import": "passed",
        "dense compile": "passed",
        "dense reference": "error",
    }


def test_models_of_a_folder(project: Project) -> None:
    write_models(project.folder / "zoo")
    write_tree(suite(project), {TEST_FILE: make_test_file('"mnist/model/two.onnx"')})
    write_config(suite(project))
    words = ("--spec-dir", "onnx_models", "--model-root", "zoo")
    done = project.gauntlet("fetch", *words, "--offline")
    assert done.code == 0, done.text
    assert project.result("classification/mnist/model/two@cpu:fetch")["fetched"][0]["url"].startswith("file://")
    done = project.gauntlet("golden.record", "--model", "*", *words)
    assert done.code == 2
    assert "there is nothing to record: onnxruntime gives its expected outputs in every run" in done.text
