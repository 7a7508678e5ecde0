"""The content of bundles: generated values in place of large or private values, and URLs in place of files."""

from __future__ import annotations

import functools
import hashlib
import http.server
import struct
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.experiments.explaining import bundle, fetch_file, locate, make_values
from iree_gauntlet.experiments.explaining.bundle import BundleFiles
from iree_gauntlet.experiments.explaining.flow_program import TensorFile
from iree_gauntlet.experiments.explaining.make_values import CODES, make_seeded_values
from tests.experiments.test_explain import expected, explained, model, planted
from tests.experiments.test_explain_compiles import UNKNOWN, failed, long_program
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from tests.support.toy_project import Project


# A small program that gives much.
BROADCASTS = """\
func.func @toy(%a: tensor<4xf32>) -> tensor<4x1000xf32> {
  %e = tensor.empty() : tensor<4x1000xf32>
  %0 = linalg.broadcast ins(%a : tensor<4xf32>) outs(%e : tensor<4x1000xf32>) dimensions = [1]
  return %0 : tensor<4x1000xf32>
}
"""


def names_in(archive: Path) -> set[str]:
    """The files in a bundle's archive."""
    with tarfile.open(archive) as tar:
        return {name.rpartition("/")[2] for name in tar.getnames()}


def wrong_dispatch(project: Project, folder: Path) -> None:
    """A run with wrong numbers, whose dispatch is known."""
    flag, _ = planted(model(project, "8"), folder)
    model(project, "8", compiler_flags=[*FLAGS, flag], threshold_args=["--expected_f32_threshold=1e-3"])
    expected(project)
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums").code == 1


def bundle_of(project: Project) -> tuple[dict[str, Any], Path]:
    (case,) = explained(project)["cases"]
    return case, project.newest / "explain" / "toy" / "sums.cpu.no-weights" / "bundle"


@pytest.mark.iree
@pytest.mark.stress
def test_without_weights_the_dispatch_is_shown_on_made_up_inputs(project: Project, tmp_path: Path) -> None:
    wrong_dispatch(project, tmp_path)
    done = project.gauntlet("explain", "--no-weights")
    assert done.code == 0, done.text
    case, bundle = bundle_of(project)
    assert case["found"]["located"]["made_up"] is True
    assert "Inputs are made up." in done.text
    # Its inputs are made when it is run.
    names = names_in(bundle.with_name("bundle.tar.gz"))
    assert ("make_values.py" in names, any("input" in name for name in names)) == (True, False)
    assert project.gauntlet("bundle.run", str(bundle.with_name("bundle.tar.gz"))).code == 1
    readme = (bundle / "README.md").read_text()
    assert "python3 make_values.py input_0.bin" in readme
    assert "run on made-up inputs, it is wrong too" in readme
    assert str(project.folder) not in readme + (bundle / "bundle.json").read_text(), "nothing of this machine"


@pytest.mark.iree
def test_a_bundle_with_weights_is_made_again_without(project: Project) -> None:
    """A reduced program has none to leave out."""
    failed(project, long_program(2, 1, UNKNOWN))
    assert project.gauntlet("explain").code == 0
    for words, again in (((), False), (("--no-weights",), True), (("--no-weights",), False), ((), False)):
        done = project.gauntlet("explain", *words)
        assert (done.code, "reducing the program" in done.out) == (0, again), done.text


@pytest.mark.iree
@pytest.mark.stress
def test_large_inputs_are_made_up_too(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "_LARGE_BYTES", 8 * 16 * 4 - 1)
    wrong_dispatch(project, tmp_path)
    assert project.gauntlet("explain").code == 0
    case, _ = bundle_of(project)
    assert case["found"]["located"]["made_up"] is True


@pytest.mark.iree
@pytest.mark.stress
def test_without_weights_a_whole_program_is_not_passed_on(project: Project) -> None:
    model(project, "8")
    np.save(project.regressions / "sums.npy", np.zeros((8, 16), np.float32))
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums").code == 1
    done = project.gauntlet("explain", "--no-weights")
    assert (done.code, "which --no-weights leaves out" in done.out) == (4, True), done.text
    assert not bundle_of(project)[1].exists()


@pytest.mark.iree
@pytest.mark.stress
@pytest.mark.parametrize("published", [True, False])
def test_a_file_that_is_too_large_is_named_by_its_address(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, published: bool
) -> None:
    monkeypatch.setattr(bundle, "MAX_BYTES", 8000)
    (project.regressions / "toy.mlir").write_text(BROADCASTS)
    np.save(project.regressions / "large.npy", np.zeros((4, 1000), np.float32))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(project.regressions))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/" if published else ""
        project.regression("toy", outputs=[{"source": f"{address}large.npy"}])
        assert project.gauntlet("run", "--model", "toy", "--submodel", "toy", "--stages", "threshold").code == 1
        done = project.gauntlet("explain")
        assert done.code == (0 if published else 4), done.text
        if published:
            assert f"It fetches {address}large.npy" in done.text
            archive = project.newest / "explain" / "toy" / "toy.cpu" / "bundle.tar.gz"
            assert not any("expected" in name for name in names_in(archive))
            assert project.gauntlet("bundle.run", str(archive)).code == 1
        else:
            # Nobody else has an address of what lies in the project.
            assert "large.npy is 16.1 kB, but a bundle is at most 8.0 kB" in done.out
        server.shutdown()


def test_what_is_fetched_is_checked(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"values")
    url, right = (tmp_path / "there").as_uri(), hashlib.sha256(b"values").hexdigest()
    name = str(tmp_path / "here")
    assert "has changed: its SHA-256" in fetch_file.fetch(name, url, "0" * 64)
    assert not Path(name).exists()
    assert "cannot be fetched" in fetch_file.fetch(name, f"{url}_gone", right)
    assert fetch_file.fetch(name, url, right) == ""
    assert Path(name).read_bytes() == b"values"
    # What is there is not fetched again.
    assert fetch_file.fetch(name, f"{url}_gone", right) == ""


@given(st.sampled_from(sorted(CODES)), st.integers(1, 200_000), st.integers(1, 9), st.floats(-9, 9), st.floats(0, 9))
def test_made_up_values_lie_within_bounds(kind: str, count: int, seed: int, low: float, span: float) -> None:
    if "f" not in kind:
        low, span = float(abs(int(low))) if kind.startswith(("u", "i1")) else float(int(low)), float(int(span))
    if kind == "i1":
        low, span = 0.0, 1.0
    data = make_seeded_values(kind, count, seed, low, low + span)
    assert data == make_seeded_values(kind, count, seed, low, low + span)
    width = 2 if kind == "bf16" else struct.calcsize(CODES[kind])
    assert len(data) == width * count
    if kind == "bf16":
        values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(float)
    else:
        values = np.frombuffer(data, f"<{CODES[kind]}").astype(float)
    near = 0.1 if kind == "bf16" else 0.01
    assert values.min() >= low - near
    assert values.max() <= low + span + near


def test_a_bundle_makes_the_same_values(tmp_path: Path) -> None:
    numbers = np.linspace(-1, 3, 70_000, dtype=np.float32)
    (tmp_path / "own.bin").write_bytes(numbers.tobytes())
    (found,) = locate.make_up_inputs([TensorFile("70x1000xf32", tmp_path / "own.bin")], tmp_path)
    assert found.file.read_bytes() != numbers.tobytes()
    argv = [sys.executable, "-I", str(make_values.__file__), str(tmp_path / "made.bin"), *found.made]
    subprocess.run(argv, check=True)
    assert (tmp_path / "made.bin").read_bytes() == found.file.read_bytes()
    values = np.fromfile(found.file, np.float32)
    assert (values.min() >= -1, values.max() <= 3) == (True, True)


def test_what_has_no_known_type_or_no_values_stays(tmp_path: Path) -> None:
    (tmp_path / "own.bin").write_bytes(b"12345678")
    items = [TensorFile("1xcomplex<f32>", tmp_path / "own.bin"), TensorFile("0x4xf32", tmp_path / "own.bin")]
    assert locate.make_up_inputs(items, tmp_path) == tuple(items)


def test_a_bundle_holds_values_and_how_those_are_made_that_it_does_not_hold(tmp_path: Path) -> None:
    for name, data in {"own": b"1234", "made": b"5678", "zeros": bytes(4)}.items():
        (tmp_path / f"{name}.bin").write_bytes(data)
    recipe = ("1xf32", "1", "7", "-1", "1")
    tensors = [TensorFile("1xf32", tmp_path / "own.bin"), TensorFile("1xf32", tmp_path / "made.bin", recipe)]
    files = BundleFiles()
    texts = files.add_tensors([*tensors, TensorFile("1xf32", tmp_path / "zeros.bin")], "input")
    assert texts == ["1xf32=@input_0.bin", "1xf32=@input_1.bin", "1xf32"]
    assert (files.blobs, files.recipes) == ({"input_0.bin": b"1234"}, [("input_1.bin", *recipe)])
    (tool,) = files.tools
    assert tool.name == "make_values.py"


def test_files_that_flags_name_are_in_a_bundle_once_each(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.mlir").write_text(name)
    (tmp_path / "host").touch()
    files = BundleFiles()
    # Of both sides of a comparison; relative to where they compile.
    assert files.add_flags(["--x=a.mlir", "--cpu=host"], tmp_path) == ("--x=flag_0.mlir", "--cpu=host")
    assert files.add_flags(["--x=b.mlir", f"--y=c={tmp_path}/a.mlir"], tmp_path / "other") == (
        "--x=b.mlir",
        "--y=c=flag_0.mlir",
    )
    assert files.add_flags(["--x=b.mlir"], tmp_path) == ("--x=flag_1.mlir",)
    assert files.blobs == {"flag_0.mlir": b"a", "flag_1.mlir": b"b"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        (b"arith.constant dense<0.0> : tensor<4xf32>", False),
        (b"arith.constant dense<true> : tensor<4xi1>", False),
        (b"arith.constant dense<[1.0, 2.0]> : tensor<2xf32>", True),
        (b'arith.constant dense<"0x0000803F00000040"> : tensor<2xf32>', True),
        (b"arith.constant dense_resource<weights> : tensor<64x64xf32>", True),
    ],
)
def test_constants_in_a_dispatch_are_values_of_the_model(text: bytes, *, holds: bool) -> None:
    assert bundle.has_constants(text) is holds
