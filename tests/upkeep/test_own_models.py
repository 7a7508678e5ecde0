"""Users' own models: from a file to a verdict, with only `init` and `run`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from tests.support.command_line import CommandResult, run_in_process
from tests.support.own_models import BF16, F32, I64, ValueInfo, make_node, write_model, write_user_models
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime")


def gauntlet(folder: Path, *words: str) -> CommandResult:
    return run_in_process(
        words, folder, {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}, {}
    )


def spec_of(project: Path, model: str, kind: str = "regression_tests") -> Any:
    return json.loads((project / "specs" / kind / model / "model_cpu.json").read_text(encoding="utf-8"))


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


# The others are for `nox -s stress`.
_EACH_TIME = (
    *("quantised", "sign_of_nan", "Scalar-Input", "random_op"),
    *("tiny_values", "sum_f16", "reflect_pad", "no_values", "all_nan"),
)


@pytest.mark.iree
@pytest.mark.parametrize("which", [_EACH_TIME, pytest.param((), marks=pytest.mark.stress)], ids=["some", "all"])
def test_every_model_gets_the_verdict_that_it_deserves(tmp_path: Path, programs: Path, which: tuple[str, ...]) -> None:
    deserved = {name: verdict for name, verdict in write_user_models(programs).items() if name in which or not which}
    said = {name: gauntlet(tmp_path, "init", "p", "--program", f"{programs / name}.onnx") for name in deserved}
    assert {name for name, done in said.items() if done.code} == {"random_op", "all_nan"}
    assert "y differs from run to run (RandomNormalLike)" in said["random_op"].err
    assert "every value of output 'y' (8xf32) is NaN" in said["all_nan"].err
    assert "graph optimisations gives other numbers, by up to 0.05" in said["quantised"].out
    assert "5 of 8 values NaN, which is what is expected of IREE too" in said["sign_of_nan"].out
    assert "y (0x4xf32) has no values: its shape is compared" in said["no_values"].out
    assert "x: 1x32xf32, random://normal/1x32xf32; open in the file: length" in said["reflect_pad"].out
    assert "exceeds maximum allowed" in said["reflect_pad"].out, "why smaller sizes were not taken"
    project = tmp_path / "p"
    for name in ("random_op", "all_nan"):
        assert not (project / "specs" / "regression_tests" / name).exists()
    ran = gauntlet(project, "run", "--stages", "threshold")
    summary = json.loads(next(project.glob("runs/*/summary.json")).read_text(encoding="utf-8"))
    renamed = {"a_name_with_e": "a name with é"}
    found = {renamed.get(chain["model"], chain["model"]): chain["verdict"] for chain in summary["chains"]}
    assert found == {name: verdict for name, verdict in deserved.items() if verdict != "refused"}, ran.text
    assert "at [0] 0.0 where NaN was expected" in ran.out
    # A mistake of one per cent is seen, however small the values are, and however coarse their type is.
    for name in ("tiny_values", "sum_f16"):
        output = project / "specs" / "regression_tests" / name / "model_cpu" / "output_0.npy"
        values = np.load(output)
        np.save(output, (values.astype(np.float64) * 1.01).astype(values.dtype))
    again = gauntlet(project, "run", "--model", "[ts]*_[vf]*", "--stages", "threshold", "--run-dir", "again")
    assert again.code == 1, again.text
    summary = json.loads((project / "again" / "summary.json").read_text(encoding="utf-8"))
    verdicts = {chain["model"]: chain["verdict"] for chain in summary["chains"]}
    assert verdicts == {"tiny_values": "failed", "sum_f16": "failed"}
    # A benchmark of a scalar: a type alone is no input to the tool.
    timed = gauntlet(project, "run", "--model", "Scalar-Input", "--stages", "benchmark")
    assert timed.code == 0, timed.text
    assert spec_of(project, "Scalar-Input", "benchmarks")["inputs"] == ["8xf32", "f32=1"]


def relu(folder: Path, name: str = "relu", shape: tuple[int | str, ...] = (2, 3)) -> Path:
    return write_model(folder / f"{name}.onnx", [make_node("Relu", "x", "y")], [("x", F32, shape)], [("y", F32, shape)])


def test_names_stay_as_they_are_given(tmp_path: Path, programs: Path) -> None:
    assert gauntlet(tmp_path, "init", "p", "--program", str(relu(programs)), "--name", "Model_X").code == 0
    listed = gauntlet(tmp_path / "p", "list", "--model", "Model_X")
    assert listed.code == 0, listed.text


def test_the_tolerance_stands_in_the_spec_with_its_reason_beside(tmp_path: Path, programs: Path) -> None:
    done = gauntlet(tmp_path, "init", "p", "--program", str(relu(programs)))
    flags = spec_of(tmp_path / "p", "relu")["threshold_args"]
    assert flags[1:] == ["--expected_rtol=1e-05"]
    assert f"chose {' '.join(flags)}" in done.out
    path = tmp_path / "p/specs/regression_tests/relu/model_cpu/provenance.json"
    provenance = json.loads(path.read_text(encoding="utf-8"))
    assert "a few roundings of f32" in provenance["tolerance"]["f32"]["reason"]
    assert (provenance["made_by"], provenance["optimisations"]) == ("onnxruntime", "off")
    # Recorded again, it stays; also another one that somebody wrote.
    spec = tmp_path / "p/specs/regression_tests/relu/model_cpu.json"
    before = spec.read_text(encoding="utf-8")
    assert gauntlet(tmp_path / "p", "golden.record", "--model", "relu").code == 0
    assert spec.read_text(encoding="utf-8") == before
    loose = before.replace(flags[0], "--expected_f32_threshold=1000")
    spec.write_text(loose, encoding="utf-8")
    refused = gauntlet(tmp_path / "p", "golden.record", "--model", "relu")
    assert refused.code == 2
    assert re.search(
        r"'y' \(2x3xf32\): zeros would pass: no value exceeds [\d.]+, and the tolerance is 1000", refused.err
    )
    assert "remove the spec's tolerance to have one chosen" in refused.err


def test_what_a_tolerance_cannot_see_of_some_outputs_is_said(tmp_path: Path, programs: Path) -> None:
    nodes = [make_node("Add", "x x", "y"), make_node("Sigmoid", "x", "z"), make_node("Sub", "x x", "zeros")]
    outputs: list[ValueInfo] = [(name, F32, [2, 3]) for name in ("y", "z", "zeros")]
    program = write_model(programs / "m.onnx", nodes, [("x", F32, [2, 3])], outputs)
    assert gauntlet(tmp_path, "init", "p", "--program", str(program), "--no-record").code == 0
    spec = tmp_path / "p/specs/regression_tests/m/model_cpu.json"
    loose = spec_of(tmp_path / "p", "m") | {"threshold_args": ["--expected_f32_threshold=0.95"]}
    spec.write_text(json.dumps(loose), encoding="utf-8")
    done = gauntlet(tmp_path / "p", "golden.record", "--model", "m")
    assert done.code == 0, done.text
    assert "note: z (2x3xf32): zeros would pass: no value exceeds 0." in done.out
    assert "y (2x3xf32): mistakes of up to " in done.out
    loose["threshold_args"] = ["--expected_f32_threshold=0.8"]
    spec.write_text(json.dumps(loose), encoding="utf-8")
    assert "note: z (2x3xf32): a constant would pass: its values differ by 0." in (
        gauntlet(tmp_path / "p", "golden.record", "--model", "m").out
    )


def test_parts_of_an_output_that_a_tolerance_cannot_see_are_named(tmp_path: Path, programs: Path) -> None:
    nodes = [
        make_node("Mul", "x large", "a"),
        make_node("Mul", "x small", "b"),
        make_node("Concat", "a b", "y", axis=1),
    ]
    weights = {"large": np.float32(300), "small": np.float32(1e-4)}
    program = write_model(programs / "m.onnx", nodes, [("x", F32, [1, 2, 16])], [("y", F32, [1, 4, 16])], weights)
    done = gauntlet(tmp_path, "init", "p", "--program", str(program))
    assert "note: y (1x4x16xf32): zeros would pass in 2 of 4 slices of axis 1: they never exceed 0.000" in done.out


def test_outputs_that_are_the_same_everywhere_are_pointed_out_by_each_run(tmp_path: Path, programs: Path) -> None:
    program = write_model(programs / "m.onnx", [make_node("Sub", "x x", "y")], [("x", F32, [8])], [("y", F32, [8])])
    done = gauntlet(tmp_path, "init", "p", "--program", str(program))
    assert "note: y (8xf32) is 0 everywhere: a model that always gives that would pass" in done.out
    ran = gauntlet(tmp_path / "p", "run", "--stages", "threshold")
    assert ran.code == 0, ran.text
    said = next((tmp_path / "p").glob("runs/*/summary.md")).read_text(encoding="utf-8")
    assert "every expected value is the same: a model that always gives it would pass" in said


@pytest.mark.parametrize("explained", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_an_expected_output_that_was_changed_is_pointed_out_where_it_fails(
    tmp_path: Path, programs: Path, *, explained: bool
) -> None:
    assert gauntlet(tmp_path, "init", "p", "--program", str(relu(programs))).code == 0
    path = tmp_path / "p/specs/regression_tests/relu/model_cpu/output_0.npy"
    np.save(path, np.load(path) + 1)
    ran = gauntlet(tmp_path / "p", "run", "--stages", "threshold")
    assert ran.code == 1
    said = (
        "output_0.npy differs from what was recorded (provenance.json has another hash); "
        "`gauntlet golden.record --model relu` records them again; output 0: 6 of 6"
    )
    assert said in ran.out
    assert not explained or said in gauntlet(tmp_path / "p", "explain").out


def test_outputs_that_were_given_are_held_against_a_reference(tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
    arrays = {"x": x, "output_0": np.ones_like(x), "else": x}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    program = str(relu(programs))
    done = gauntlet(tmp_path, "init", "p", "--program", program, "--data", str(folder), "--name", "a b")
    assert done.code == 0, done.text
    assert re.search(r"note: output y: onnxruntime \S+ gives other numbers, by up to 2\n", done.out)
    assert "note: else is neither an input nor an output of the model: ignored" in done.out
    assert "note: 'a b' is called a_b here" in done.out
    np.save(folder / "output_0.npy", np.maximum(x, 0))
    right = gauntlet(tmp_path, "init", "p", "--program", program, "--data", str(folder))
    assert "gives other numbers" not in right.out
    np.save(folder / "output_0.npy", np.ones((2, 4), np.float32))
    wrong = gauntlet(tmp_path, "init", "p", "--program", program, "--data", str(folder), "--name", "c")
    assert wrong.code == 2
    assert "output y is [2, 4], and onnxruntime " in wrong.err
    assert not (tmp_path / "p/specs/regression_tests/c").exists()


def test_a_weight_without_which_a_model_does_not_run_is_seen(tmp_path: Path, programs: Path) -> None:
    resize = onnx.helper.make_node("Resize", ["x", "", "s"], ["r"], mode="nearest")
    weights = {"s": np.array([1, 1, 2, 100], np.float32), "w": np.ones((1, 1, 2, 200), np.float32)}
    nodes = [resize, make_node("Concat", "r w", "y", axis=0)]
    program = write_model(programs / "m.onnx", nodes, [("x", F32, [1, 1, 1, 2])], [("y", F32, [2, 1, 2, 200])], weights)
    assert gauntlet(tmp_path, "init", "p", "--program", str(program)).code == 0
    done = gauntlet(tmp_path / "p", "golden.sensitivity", "--model", "m")
    assert done.code == 0, done.text
    assert "2 of 2 weights would be detected if they were 1 % wrong" in done.out


def test_without_recording_the_next_step_is_said(tmp_path: Path, programs: Path) -> None:
    done = gauntlet(tmp_path, "init", "p", "--program", str(relu(programs)), "--no-record")
    assert done.code == 0
    assert "gauntlet golden.record --model relu" in done.out
    assert not (tmp_path / "p/specs/regression_tests/relu/model_cpu").exists()
    recorded = gauntlet(tmp_path / "p", "golden.record", "--model", "relu")
    assert recorded.code == 0, recorded.text
    assert spec_of(tmp_path / "p", "relu")["threshold_args"]


def test_one_model_that_cannot_be_recorded_stops_nobody_else(tmp_path: Path, programs: Path) -> None:
    write_user_models(programs)
    for name in ("random_op", "gather", "to_i8"):
        gauntlet(tmp_path, "init", "p", "--program", f"{programs / name}.onnx", "--no-record")
    done = gauntlet(tmp_path / "p", "golden.record", "--model", "*")
    assert done.code == 2
    rows = [line.split() for line in done.out.splitlines() if "/model@cpu" in line]
    assert [(row[0], row[1]) for row in rows] == [
        ("gather/model@cpu", "recorded"),
        ("random_op/model@cpu", "refused"),
        ("to_i8/model@cpu", "recorded"),
    ]
    assert spec_of(tmp_path / "p", "to_i8")["outputs"] == [{"source": "model_cpu/output_0.bin", "value": "16xi8"}]


@pytest.mark.iree
@pytest.mark.parametrize("form", ["pb", "npy", "npz", "named"])
def test_data_that_somebody_has_is_taken(tmp_path: Path, programs: Path, form: str) -> None:
    # Nothing is computed in bf16: for some processors IREE's compiler lacks its conversions.
    nodes = [make_node("Gather", "table ids", "y"), make_node("Gather", "numbers ids", "b")]
    numbers = {"numbers": np.arange(4).astype(ml_dtypes.bfloat16)}
    inputs: list[ValueInfo] = [("table", F32, ["n", 3]), ("ids", I64, [2])]
    program = write_model(programs / "m.onnx", nodes, inputs, [("y", F32, [2, 3]), ("b", BF16, [2])], numbers)
    table, ids = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([3, 0])
    arrays = {"input_0": table, "input_1": ids, "output_0": table[ids], "output_1": ids.astype(ml_dtypes.bfloat16)}
    data = tmp_path / "data" / ("test_data_set_0" if form == "pb" else "")
    data.mkdir(parents=True)
    if form == "pb":
        for name, array in arrays.items():
            (data / f"{name}.pb").write_bytes(onnx.numpy_helper.from_array(array, name).SerializeToString())
    elif form == "npz":
        # NumPy has no bf16.
        np.savez(data / "all.npz", **{name: array for name, array in arrays.items() if name != "output_1"})
        (data / "output_1.pb").write_bytes(onnx.numpy_helper.from_array(arrays["output_1"]).SerializeToString())
    else:
        names = {"input_0": "table", "input_1": "ids", "output_0": "y", "output_1": "b"} if form == "named" else {}
        for name in ("input_0", "input_1", "output_0"):
            np.save(data / f"{names.get(name, name)}.npy", arrays[name])
        (data / f"{names.get('output_1', 'output_1')}.pb").write_bytes(
            onnx.numpy_helper.from_array(arrays["output_1"]).SerializeToString()
        )
    done = gauntlet(tmp_path, "init", "p", "--program", str(program), "--data", str(tmp_path / "data"))
    assert done.code == 0, done.text
    spec = spec_of(tmp_path / "p", "m")
    assert spec["onnx_import"]["shapes"] == {"table": [4, 3]}
    assert spec["outputs"] == [
        {"source": "model_cpu/output_0.npy"},
        {"source": "model_cpu/output_1.bin", "value": "2xbf16"},
    ]
    if form == "pb":
        ran = gauntlet(tmp_path / "p", "run", "--stages", "threshold")
        assert ran.code == 0, ran.text


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "it has no tensors"),
        ({"output_0": np.zeros((2, 3), np.float32)}, "input x is not there, nor input_0"),
        ({"input_0": np.zeros((2, 4), np.float32)}, "input x is float32 [2, 4]"),
        ({"input_0": np.zeros((2, 3))}, "input x is float64 [2, 3]"),
        ({"x": np.zeros((2, 3), ">f4"), "output_0": np.zeros((2, 3))}, "output y is float64"),
        (
            {"x": np.zeros((2, 3), np.float32), "output_0": np.zeros((2, 3), np.complex64)},
            "output y is complex64, which IREE's tools do not support",
        ),
    ],
)
def test_data_that_does_not_fit_is_reported(tmp_path: Path, programs: Path, arrays: dict[str, Any], says: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    done = gauntlet(tmp_path, "init", "p", "--program", str(relu(programs)), "--data", str(folder))
    assert done.code == 2
    assert says in done.err
    assert not (tmp_path / "p").exists()


def test_inputs_without_outputs_are_data_too(tmp_path: Path, programs: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    done = gauntlet(tmp_path, "init", "p", "--program", str(relu(programs)), "--data", str(folder))
    assert done.code == 0, done.text
    assert np.load(tmp_path / "p/specs/regression_tests/relu/model_cpu/output_0.npy").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_recordings_of_quantised_models_with_optimisations_are_pointed_out(tmp_path: Path, programs: Path) -> None:
    write_user_models(programs)
    for name in ("quantised", "gather"):
        assert gauntlet(tmp_path, "init", "p", "--program", f"{programs / name}.onnx").code == 0
        path = tmp_path / f"p/specs/regression_tests/{name}/model_cpu/provenance.json"
        provenance = json.loads(path.read_text(encoding="utf-8"))
        assert provenance.pop("optimisations") == "off"
        path.write_text(json.dumps(provenance), encoding="utf-8")
    said = gauntlet(tmp_path / "p", "lint").out
    assert "quantised/model_cpu.json" in said
    assert "recorded with onnxruntime's graph optimisations, which change the numbers of quantised models" in said
    assert "gather/model_cpu.json" not in said
    # Also of a model behind a URL, where the cache has it.
    folder = tmp_path / "p/specs/regression_tests/quantised"
    url = "https://example.invalid/quantised.onnx"
    for path in (folder / "model_cpu.json", folder / "model_cpu/provenance.json"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"../quantised.onnx"', f'"{url}"').replace('"quantised.onnx"', f'"{url}"'))
    assert "graph optimisations" not in gauntlet(tmp_path / "p", "lint").out
    kept = ArtifactStore(tmp_path / "p" / "cache", Registry()).path(url)
    kept.parent.mkdir(parents=True)
    (folder / "quantised.onnx").rename(kept)
    assert "graph optimisations" in gauntlet(tmp_path / "p", "lint").out


@pytest.mark.stress
@pytest.mark.iree
def test_verdicts_of_models_that_nobody_chose_do_not_contradict_a_direct_comparison() -> None:
    argv = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "own_models.py"), "60"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    share = float(done.stdout.partition(" % of those that a reference runs")[0].split()[-1])
    assert share >= 95, done.stdout
