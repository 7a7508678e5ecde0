"""Whole runs of a tiny project with the real tools: messages about a model's inputs and expected outputs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.artifacts.seeded import parse_seeded
from tests.support.artifact_server import make_responder, run_server
from tests.support.operator_suite import OperatorSuite
from tests.support.toy_project import INPUT

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_CHAIN = "toy/abs@cpu"
_THRESHOLD = f"{_CHAIN}:threshold"
_SPEC = "specs/regression_tests/toy/abs_cpu.json"


# Values in place of files


def test_a_spec_may_have_the_values_themselves(project: Project) -> None:
    inputs = [{"value": "4xf32=1 -2 3 -4"}]
    project.regression(inputs=inputs, outputs=[{"value": "4xf32=[1, 2], [3, 4]"}])
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 0, done.text
    assert "'--input=4xf32=1 -2 3 -4' '--expected_output=4xf32=[1, 2], [3, 4]'" in project.result(_THRESHOLD)["command"]
    assert project.result(_THRESHOLD)["outputs"][0]["max_abs_error"] == 0
    project.regression(inputs=inputs, outputs=[{"value": "4xf32=1"}])
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 1
    assert "3 of 4 values (75 %) differ" in done.out


def test_each_call_of_a_spec_is_compared(project: Project) -> None:
    expected = [{"source": "abs.npy"}]
    calls = [
        {"function": "abs", "inputs": [{"source": INPUT}], "outputs": expected},
        {"function": "abs", "inputs": ["@0.0"], "outputs": expected},
    ]
    several: dict[str, Any] = {"run_function": None, "inputs": [], "outputs": []}
    project.regression(**several, calls=calls)
    done = project.gauntlet("run", "--stages", "threshold", "--device", "local-sync")
    assert done.code == 0, done.text
    assert [output["call"] for output in project.result(_THRESHOLD)["outputs"]] == [0, 1]
    words = shlex.split(project.result(_THRESHOLD)["command"])
    script = next(index for index, word in enumerate(words) if word.endswith("/run_calls.py"))
    assert words[script + 1] == "--device=local-sync"
    assert words[script + 2].startswith("--module=")
    project.regression(**several, calls=[calls[0], calls[1] | {"outputs": [{"value": "4xf32=0.5"}]}])
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 1
    assert "call 1 (abs), output 0: 4 of 4 differ (100.0 %)" in done.out
    (failure,) = ET.parse(project.newest / "junit.xml").iter("failure")
    assert failure.get("message", "").startswith("call 1 (abs), output 0: 4 of 4 values (100 %) differ")
    (chain,) = json.loads((project.newest / "summary.json").read_text())["chains"]
    assert (chain["quality"]["call"], chain["quality"]["function"], chain["quality"]["index"]) == (1, "abs", 0)
    # The command makes the calls by itself.
    again = project.shell(project.result(_THRESHOLD)["command"])
    assert (again.code, "[FAILED] call 1 (abs), output 0: not as expected" in again.out) == (1, True)
    done = project.gauntlet("run", "--stages", "threshold", python="")
    assert (done.code, "this IREE has no Python bindings that make several" in done.text) == (3, True)
    project.regression(**several, calls=[calls[0], calls[1] | {"function": "asb"}])
    project.benchmark(function_run=None, inputs=[], calls=[{"function": "abs"}, {"function": "bas"}])
    text = project.gauntlet("lint").text
    for name in ("asb", "bas"):
        assert f"calls[1].function: abs.mlir has no function {name!r}; did you mean 'abs'?" in text
    done = project.gauntlet("golden.record", "--model", "toy")
    assert (done.code, "makes several calls, and a reference makes one" in done.err) == (2, True)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("abs.mlir", b"math.absf", b"math.ceil"), ("abs.npy", b"\x3f", b"\x40"), ("input.npy", b"\xbf", b"\xc0")],
    ids=["program", "expected output", "input"],
)
def test_a_file_that_is_edited_in_place_is_seen_though_its_time_is_set_back(
    project: Project, name: str, old: bytes, new: bytes
) -> None:
    np.save(project.regressions / "input.npy", np.array([-0.5, -0.75, 0.5, 0.75], np.float32))
    project.write_expected("abs", [0.5, 0.75, 0.5, 0.75])
    project.regression(inputs=[{"source": "input.npy"}])
    assert project.gauntlet("run", "--stages", "threshold").code == 0
    path = project.regressions / name
    before = path.stat()
    content = path.read_bytes()
    assert old in content
    with path.open("r+b") as file:
        file.write(content.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 1, done.text
    assert "values (" in done.out


@pytest.mark.parametrize("inside", [True, False], ids=["in the specs", "elsewhere"])
def test_files_may_be_links_to_others_without_a_type(project: Project, inside: bool) -> None:
    """As in the caches of the Hugging Face hub and of DVC."""
    np.save(project.regressions / "input.npy", np.array([-0.5, -0.75, 0.5, 0.75], np.float32))
    project.write_expected("abs", [0.5, 0.75, 0.5, 0.75])
    project.regression(inputs=[{"source": "input.npy"}])
    blobs = (project.regressions if inside else project.folder) / "blobs"
    blobs.mkdir()
    for name in ("input.npy", "abs.npy", "abs.mlir"):
        link, blob = project.regressions / name, blobs / hashlib.sha1(name.encode()).hexdigest()
        link.rename(blob)
        link.symlink_to(blob)
    assert project.gauntlet("lint").code == 0
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 0, done.text
    command = project.result(_THRESHOLD)["command"]
    assert f"--expected_output=@{project.regressions / 'abs.npy'}" in command
    assert f"--input=@{project.regressions / 'input.npy'}" in command


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("abs.mlir", "is a link in a loop of links"),
        ("nowhere", "is missing"),
        ("/dev/zero", "is a folder or a device: expected a file"),
        pytest.param(".", "is a folder or a device: expected a file", marks=pytest.mark.stress),
    ],
)
def test_a_link_that_leads_to_no_file_is_an_error_of_its_case_alone(project: Project, target: str, words: str) -> None:
    project.add("ceil", "math.ceil %a : tensor<4xf32>")
    np.save(project.regressions / "ceil.npy", np.ceil(parse_seeded(INPUT).generate()))
    (project.regressions / "abs.mlir").unlink()
    (project.regressions / "abs.mlir").symlink_to(target)
    assert project.gauntlet("list").code == 0
    checked = project.gauntlet("lint")
    assert (checked.code, f"{_SPEC}:2: mlir: " in checked.err, words in checked.err) == (2, True, True), checked.text
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 3
    assert f"abs.mlir {words}" in done.out or f"nowhere, which {words}" in done.out
    assert "2 cases: 1 error, 1 passed" in done.out


_UNREADABLE = {
    "Fortran": (np.asfortranarray(np.ones((2, 2), np.float32)), "its values are in Fortran order"),
    "big endian": (np.ones((2, 2), ">f4"), "its values are big-endian (>f4)"),
    "text": (np.full((2, 2), "text"), "data type '<U4' is not supported by iree-run-module"),
    "structured": (np.ones((2, 2), [("x", "f4")]), "not an array of plain numbers"),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("abs.npy", kind) for kind in ("Fortran", "text")),
        *(("input.npy", kind) for kind in ("big endian", "structured")),
        *(pytest.param("input.npy", kind, marks=pytest.mark.stress) for kind in ("Fortran", "text")),
        *(pytest.param("abs.npy", kind, marks=pytest.mark.stress) for kind in ("big endian", "structured")),
    ],
)
def test_an_array_that_the_tool_does_not_read_is_an_error_of_the_data(project: Project, name: str, kind: str) -> None:
    array, words = _UNREADABLE[kind]
    program = "func.func @abs(%a: tensor<2x2xf32>) -> tensor<2x2xf32> {\n  return %a : tensor<2x2xf32>\n}\n"
    (project.regressions / "abs.mlir").write_text(program)
    for file in ("abs.npy", "input.npy"):
        np.save(project.regressions / file, np.ones((2, 2), np.float32))
    np.save(project.regressions / name, array)
    project.regression(inputs=[{"source": "input.npy"}])
    field = "outputs[0].source" if name == "abs.npy" else "inputs[0].source"
    checked = project.gauntlet("lint")
    assert checked.code == 2
    assert f"{field}: {project.regressions / name}: {words}" in checked.err
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 3, done.text
    assert f"iree-run-module cannot use {project.regressions / name}: {words}" in done.out


@pytest.mark.parametrize(
    ("expected", "flag", "code", "noted"),
    [
        ("8 9 9 8", "--expected_rtol=1", 0, True),
        ("1e-5 9e-5 1e-6 -1e-5", "--expected_f32_threshold=1e-4", 0, True),
        ("1e-5 9e-5 1e-6 -2e-4", "--expected_f32_threshold=1e-4", 1, False),
        ("0 0 0 0", "--expected_f32_threshold=1e-4", 0, False),
    ],
)
def test_a_tolerance_with_which_zeros_pass_is_noted(
    project: Project, expected: str, flag: str, code: int, *, noted: bool
) -> None:
    project.regression(
        inputs=[{"value": f"4xf32={expected}"}], outputs=[{"value": f"4xf32={expected}"}], threshold_args=[flag]
    )
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == code, done.text
    notes = project.result(_THRESHOLD)["notes"]
    assert any("output 0: zeros would pass: no value exceeds" in note for note in notes) is noted


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"source": INPUT, "value": ""}, {"source": "abs.npy", "value": ""}),
        ({"source": "", "value": "4xf32=1 -2 3 -4"}, {"source": "", "value": "4xf32=1 2 3 4"}),
    ],
)
def test_an_empty_field_beside_the_other_is_none(
    project: Project, inputs: dict[str, str], outputs: dict[str, str]
) -> None:
    project.regression(inputs=[inputs], outputs=[outputs])
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 0, done.text
    assert "judged: numbers 1" in done.out
    assert project.gauntlet("lint").code == 0
    project.regression(inputs=[inputs | {"source": "", "value": ""}], outputs=[outputs])
    assert "inputs[0].value: expected a non-empty string" in project.gauntlet("lint").err


def test_values_that_are_left_out_are_zeros(project: Project) -> None:
    project.regression(inputs=[{"value": "4xf32"}], outputs=[{"value": "4xf32"}])
    assert project.gauntlet("run", "--stages", "threshold").code == 0
    assert project.result(_THRESHOLD)["outputs"][0]["max_abs_error"] == 0


def test_values_that_do_not_fit_stop_every_command_before_anything_runs(project: Project) -> None:
    project.regression(inputs=[{"value": "4xf32=1 2 3"}])
    for task in ("lint", "run", "plan"):
        done = project.gauntlet(task)
        assert done.code == 2, done.text
        place = f"{_SPEC}:6: inputs[0].value"
        assert f"{place}: expected one value, or all 4, found 3 in '4xf32=1 2 3'" in done.err
    assert not (project.folder / "runs").exists()


def test_outputs_of_values_can_be_recorded(project: Project) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), project.regressions / "relu.onnx")
    project.regression("relu", mlir="relu.onnx", inputs=[{"value": "4xf32=1 -2 3 -4"}], outputs=[])
    done = project.gauntlet("golden.record", "--model=toy")
    assert done.code == 0, done.text
    assert np.load(project.regressions / "relu_cpu" / "output_0.npy").tolist() == [1, 0, 3, 0]


# Expected outputs that are not there


def test_a_missing_expected_output_is_an_error_of_its_comparison_alone(project: Project) -> None:
    project.regression(outputs=[{"source": "abs_cpu/output_0.npy"}, {"source": "more.npy"}])
    done = project.gauntlet("run")
    assert done.code == 3, done.text
    verdicts = {name.partition(":")[2]: str(result.verdict) for name, result in project.journal.results.items()}
    others = dict.fromkeys(("fetch", "compile", "compstat", "benchmark"), "passed")
    assert verdicts == {**others, "threshold": "error"}
    result = project.result(_THRESHOLD)
    gone = project.regressions / "abs_cpu" / "output_0.npy"
    assert result["reason"] == f"the file {gone} is missing"
    assert result["notes"] == [f"the file {project.regressions / 'more.npy'} is missing"]
    assert "`gauntlet golden.record --model toy` creates it" in done.out
    assert "1 error" in done.out
    junit = ET.parse(project.newest / "junit.xml").getroot()
    assert [case.get("name") for case in junit.iter("testcase") if case.find("error") is not None] == ["threshold"]


def test_a_resumed_run_compares_with_what_is_there_by_then(project: Project) -> None:
    expected = project.regressions / "abs.npy"
    content = expected.read_bytes()
    expected.unlink()
    tools = project.write_logging_tools()
    assert project.gauntlet("run", **tools).code == 3
    before = project.calls
    assert project.gauntlet("run", "--resume", **tools).code == 3
    assert project.calls == before == ["benchmark"]
    expected.write_bytes(content)
    resumed = project.gauntlet("run", "--resume", **tools)
    assert resumed.code == 0, resumed.text
    # Once for the verdict, once for the figures.
    assert project.calls == [*before, "threshold", "threshold"]


def test_a_fetch_alone_needs_the_expected_outputs_too(project: Project) -> None:
    (project.regressions / "abs.npy").unlink()
    done = project.gauntlet("run", "--stages", "fetch")
    assert done.code == 3
    assert "abs.npy is missing" in project.result(f"{_CHAIN}:fetch")["reason"]
    # Nothing else reads them.
    assert project.gauntlet("run", "--stages", "compile").code == 0


def test_an_expected_output_that_cannot_be_downloaded_is_asked_for_once(project: Project) -> None:
    with run_server() as server:
        url = server.url("/y.npy", lambda request: request.send_error(404))
        project.regression(outputs=[{"source": url}])
        done = project.gauntlet("run")
        assert (done.code, server.hits["/y.npy"]) == (3, 1), done.text
        assert "404" in project.result(_THRESHOLD)["reason"]
        assert url in project.result(_THRESHOLD)["reason"]
        assert project.verdict(f"{_CHAIN}:benchmark") == "passed"
        server.url("/y.npy", make_responder((project.regressions / "abs.npy").read_bytes()))
        resumed = project.gauntlet("run", "--resume")
        assert resumed.code == 0, resumed.text


def test_an_expected_output_of_another_content_is_not_compared_with(project: Project) -> None:
    with run_server() as server:
        url = server.url("/y.npy", make_responder((project.regressions / "abs.npy").read_bytes()))
        project.regression(outputs=[{"source": url}], run_test_expecting_to_fail=True)
        assert project.gauntlet("fetch").code == 0
        shutil.rmtree(project.folder / "cache" / "artifacts")
        lock = project.folder / "cache" / "registry.lock.txt"
        lock.write_text(f"{lock.read_text().split()[0]} sha256:{'0' * 64} {url}\n")
        assert project.gauntlet("fetch").code == 3
        assert "wrong content" in project.result(f"{_CHAIN}:fetch")["reason"]
        done = project.gauntlet("run")
        # No failure that anybody expects.
        assert (done.code, project.verdict(_THRESHOLD)) == (3, "error"), done.text
        assert "wrong content" in project.result(_THRESHOLD)["reason"]
        assert project.verdict(f"{_CHAIN}:compstat") == "passed"


# Files with more in them than is read


@pytest.mark.parametrize(
    ("flag", "raw"),
    [
        ("inputs", True),
        ("outputs", False),
        pytest.param("inputs", False, marks=pytest.mark.stress),
        pytest.param("outputs", True, marks=pytest.mark.stress),
    ],
)
def test_a_file_that_is_longer_than_its_type_is_an_error_of_the_comparison(
    project: Project, flag: str, raw: bool
) -> None:
    values = np.abs(parse_seeded(INPUT).generate())
    path = project.regressions / ("data.bin" if raw else "data.npy")
    path.write_bytes(values.tobytes()) if raw else np.save(path, values)
    spec: dict[str, Any] = {flag: [{"source": path.name, **({"value": "4xf32"} if raw else {})}]}
    project.regression(**spec)
    assert project.gauntlet("run").code == 0
    path.write_bytes(path.read_bytes() + bytes(8))
    # Nobody expects what is no failure of the model.
    project.regression(**spec, run_test_expecting_to_fail=True)
    done = project.gauntlet("run")
    assert done.code == 3, done.text
    behind = "" if raw else " after byte 128"
    assert project.result(_THRESHOLD)["verdict"] == "error"
    assert project.result(_THRESHOLD)["reason"] == f"{path}: 4xf32 needs 16 bytes, the file has 24{behind}"
    assert "the rest is not read: correct the shape and type, or the file" in done.out
    assert project.verdict(f"{_CHAIN}:benchmark") == "passed"


def test_a_longer_file_of_a_benchmark_is_an_error_too(project: Project) -> None:
    path = project.folder / "data.bin"
    path.write_bytes(bytes(24))
    project.benchmark(inputs=[f"4xf32=@{path}"])
    assert project.gauntlet("run", "--stages", "benchmark").code == 3
    assert project.result(f"{_CHAIN}:benchmark")["reason"] == f"{path}: 4xf32 needs 16 bytes, the file has 24"
    path.write_bytes(bytes(16))
    assert project.gauntlet("run", "--stages", "benchmark").code == 0


def test_arguments_that_read_on_in_a_file_have_to_come_to_its_end(project: Project) -> None:
    body = "%0 = math.absf %a : tensor<4xf32>\n  return %0, %b : tensor<4xf32>, tensor<2xf32>"
    types = "(tensor<4xf32>, tensor<2xf32>)"
    program = f"func.func @two(%a: tensor<4xf32>, %b: tensor<2xf32>) -> {types} {{\n  {body}\n}}\n"
    (project.regressions / "two.mlir").write_text(program)
    values = np.arange(6, dtype=np.float32)
    (project.folder / "in.bin").write_bytes(values.tobytes())
    arrays = project.folder / "out.npy"
    with arrays.open("wb") as file:
        np.save(file, values[:4])
        np.save(file, values[4:])
    inputs = [f"--input=4xf32=@{project.folder}/in.bin", f"--input=2xf32=+{project.folder}/in.bin"]
    on = [f"--expected_output=@{arrays}", f"--expected_output=+{arrays}"]
    for expected in (on, [f"--expected_output=*{arrays}"]):
        flags = [*inputs, *expected]
        project.regression("two", mlir="two.mlir", inputs=[], outputs=[], threshold_args=flags)
        done = project.gauntlet("threshold", "--model", "toy", "--submodel", "two")
        assert done.code == 0, done.text
    for flags, path in (([inputs[0], "--input=2xf32", *on], "in.bin"), ([*inputs, on[0]], "out.npy")):
        project.regression("two", mlir="two.mlir", inputs=[], outputs=[], threshold_args=flags)
        assert project.gauntlet("threshold", "--model", "toy", "--submodel", "two").code == 3
        reason = project.result("toy/two@cpu:threshold")["reason"]
        assert f"{project.folder}/{path}: 4xf32 needs 16 bytes, the file has " in reason


@pytest.mark.parametrize("served", [True, False])
def test_a_longer_file_of_an_operator_is_an_error_of_that_alone(project: Project, served: bool) -> None:
    suite = OperatorSuite(project, warm=True)
    folder = suite.add_unary("abs")
    suite.add_unary("neg", "Neg", "1 -2 3 -4")
    expected = np.array([1, 2, 3, 4], np.float32).tobytes()
    (folder / "output_0.bin").write_bytes(expected + expected)
    flags = folder / "run_module_io_flags.txt"
    more = "" if served else "--output=-\n"
    flags.write_text(re.sub(r"--expected_output=.*", "--expected_output=4xf32=@output_0.bin", flags.read_text()) + more)
    done = suite.run("-j", "1")
    assert done.code == 3, done.text
    assert (suite.verdicts["abs:threshold"], suite.verdicts["neg:threshold"]) == ("error", "passed")
    assert f"output_0.bin: 4xf32 needs 16 bytes, the file has {2 * len(expected)}" in done.out
