"""onnxruntime as the reference of a run: synthetic inputs, and an archive that iree-run-module reads."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.workers.iree_side import run_reference
from iree_gauntlet.workers.iree_side.onnx_reference import ReferenceInput
from iree_gauntlet.workers.iree_side.plan_file import PlanError
from iree_gauntlet.workers.iree_side.run_reference import make_inputs
from tests.support.onnx_suite import write_models

if TYPE_CHECKING:
    from pathlib import Path

MODELS = "validated/vision/classification/mnist/model"


def test_inputs_are_upstreams() -> None:
    """One generator a model, in the order of its inputs; a dynamic dimension is 1."""
    inputs = [ReferenceInput("a", "float32", ("N", 3, None)), ReferenceInput("b", "int64", (1,))]
    inputs.append(ReferenceInput("c", "float32", ()))
    made = make_inputs(inputs)
    generator = np.random.default_rng(0)
    upstream: list[Any] = [generator.random((1, 3, 1), dtype=np.float32)]
    upstream.append(generator.integers((1,), dtype=np.int64))
    upstream.append(generator.random((), dtype=np.float32))
    for ours, theirs in zip(made, upstream, strict=True):
        assert np.array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


def test_integers_have_the_models_shape() -> None:
    made = make_inputs(
        [ReferenceInput("a", "int32", (4, 30)), ReferenceInput("b", "int64", ()), ReferenceInput("c", "int64", (0,))]
    )
    assert [(np.shape(array), str(np.asarray(array).dtype)) for array in made] == [
        ((4, 30), "int32"),
        ((), "int64"),
        ((0,), "int64"),
    ]
    assert 0 <= made[0].min() < made[0].max() < 30


def test_other_inputs_are_refused() -> None:
    with pytest.raises(PlanError, match=r"input 'x' is a uint8: inputs are generated for float32"):
        make_inputs([ReferenceInput("x", "uint8", (1,))])


@pytest.mark.iree
def test_the_archive_holds_a_flagfile_and_raw_values(tmp_path: Path) -> None:
    write_models(tmp_path)
    for name in ("first", "second"):
        assert run_reference.main([str(tmp_path / MODELS / "two.onnx"), "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    with zipfile.ZipFile(tmp_path / "first") as archive:
        assert archive.read("arguments.txt").decode().splitlines() == [
            "--input=2x5xf32=@input_0.bin",
            "--input=5xi64=@input_1.bin",
            "--expected_output=5xi64=@output_0.bin",
            "--expected_output=2x5xi1=@output_1.bin",
        ]
        x = np.frombuffer(archive.read("input_0.bin"), np.float32).reshape(2, 5)
        n = np.frombuffer(archive.read("input_1.bin"), np.int64)
        assert np.array_equal(np.frombuffer(archive.read("output_0.bin"), np.int64), n + n)
        assert np.array_equal(np.frombuffer(archive.read("output_1.bin"), np.bool_).reshape(2, 5), x < n)


@pytest.mark.iree
@pytest.mark.parametrize(
    ("model", "outcome"),
    [
        (f"{MODELS}/garbage.onnx", (1, "error: onnxruntime cannot load garbage.onnx: ")),
        ("missing.onnx", (2, "error: missing.onnx: no file ")),
    ],
)
def test_models_that_cannot_be_run(
    tmp_path: Path, model: str, outcome: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_models(tmp_path)
    assert run_reference.main([str(tmp_path / model), "-o", str(tmp_path / "out.zip")]) == outcome[0]
    assert capsys.readouterr().err.startswith(outcome[1])
    assert not (tmp_path / "out.zip").exists()
