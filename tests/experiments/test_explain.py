"""`explain` and `bundle.run`: planted wrong dispatches are found and cut out, and their bundles reproduce them."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

from iree_gauntlet.experiments import explain
from iree_gauntlet.experiments.explaining import locate
from iree_gauntlet.experiments.explaining.flow_program import FlowProgram, TracePair, TraceSide
from iree_gauntlet.experiments.explaining.locate import DispatchSearch
from iree_gauntlet.experiments.explaining.tools import CompileError
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

# Three products of matrices, and sums of rows between them: the dispatch of the sums is the one that is made wrong.
PROGRAM = """\
func.func @sums(%a: tensor<ROWSx16xf32>, %b: tensor<16x16xf32>) -> tensor<ROWSx16xf32> {
  %z = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %d = tensor.dim %a, %c0 : tensor<ROWSx16xf32>
  %e = tensor.empty(SIZE) : tensor<ROWSx16xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<ROWSx16xf32>) -> tensor<ROWSx16xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<ROWSx16xf32>, tensor<16x16xf32>)
    outs(%f : tensor<ROWSx16xf32>) -> tensor<ROWSx16xf32>
  %s = tensor.empty(SIZE) : tensor<ROWSxf32>
  %g = linalg.fill ins(%z : f32) outs(%s : tensor<ROWSxf32>) -> tensor<ROWSxf32>
  %r = linalg.reduce ins(%0 : tensor<ROWSx16xf32>) outs(%g : tensor<ROWSxf32>) dimensions = [1]
    (%x: f32, %y: f32) { %q = arith.addf %x, %y : f32 linalg.yield %q : f32 }
  %h = linalg.broadcast ins(%r : tensor<ROWSxf32>) outs(%e : tensor<ROWSx16xf32>) dimensions = [1]
  %2 = linalg.matmul ins(%h, %b : tensor<ROWSx16xf32>, tensor<16x16xf32>)
    outs(%f : tensor<ROWSx16xf32>) -> tensor<ROWSx16xf32>
  return %2 : tensor<ROWSx16xf32>
}
"""
INPUTS = ("random://normal/8x16xf32?seed=1", "random://normal/16x16xf32?seed=2")


def model(project: Project, rows: str, **changes: Any) -> Path:
    """Adds `toy/sums`, with the outputs that it should have; the program."""
    source = project.regressions / "sums.mlir"
    source.write_text(PROGRAM.replace("ROWS", rows).replace("(SIZE)", "(%d)" if rows == "?" else "()"))
    inputs = [{"source": url} for url in INPUTS]
    project.regression("sums", inputs=inputs, **changes)
    return source


def expected(project: Project) -> None:
    """Writes what the program means, in f64."""
    from iree_gauntlet.artifacts.seeded import parse_seeded  # noqa: PLC0415 - the names of the inputs are its own

    a, b = (parse_seeded(url).generate().astype(np.float64) for url in INPUTS)
    sums = (a @ b).sum(axis=1, keepdims=True)
    np.save(project.regressions / "sums.npy", (np.broadcast_to(sums, (8, 16)) @ b).astype(np.float32))


def planted(source: Path, folder: Path) -> tuple[str, str]:
    """A flag that puts a wrong executable in place of the sums', and the dispatch's name."""
    compiler = find_installed().compiler.compile
    dump = f"--iree-hal-dump-executable-sources-to={folder}"
    argv = [compiler, str(source), *FLAGS, dump, "--compile-to=executable-sources", "-o", str(folder / "module")]
    subprocess.run(argv, check=True, capture_output=True)
    (file,) = (path for path in folder.glob("*.mlir") if "reduction" in path.read_text())
    text = file.read_text()
    wrong = folder / "wrong.mlir"
    wrong.write_text(text.replace("arith.addf %in, %out", "arith.subf %in, %out"))
    assert wrong.read_text() != text
    name = text.split("hal.executable public @")[1].split()[0]
    dispatch = next(word for word in text.split() if word.startswith("@") and "reduction" in word)
    return f"--iree-hal-substitute-executable-source={name}={wrong}", dispatch.strip("@()")


def explained(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.newest / "explain" / "explain.json").read_text())
    return found


def test_a_planted_wrong_dispatch_is_found_and_its_bundle_shows_it(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that fits what is planted, and one that does not: what each of the others does is the compiler's matter.
    monkeypatch.setattr(explain, "_PROBES", explain._PROBES[::3])
    source = model(project, "8")
    flag, dispatch = planted(source, tmp_path)
    model(project, "8", compiler_flags=[*FLAGS, flag], threshold_args=["--expected_f32_threshold=1e-3"])
    expected(project)
    done = project.gauntlet("run", "--model", "toy", "--submodel", "sums")
    assert done.code == 1, done.text
    calls, real = tmp_path / "calls.txt", find_installed().runtime.run_module
    counting = project.write_tool(
        f'echo "$@" | tr " " "\\n" | grep -e --module= -e local-sync >> "{calls}"; exec "{real}" "$@"'
    )
    done = project.gauntlet("explain", run_module=counting)
    assert done.code == 0, done.text
    (case,) = explained(project)["cases"]
    assert (case["kind"], case["bundled"]) == ("wrong numbers", True)
    probed = [line for line in calls.read_text().splitlines() if "probe_" in line or "local-sync" in line]
    assert probed
    assert len(probed) == len(set(probed)), "each switch is tried once"
    again = case["found"]["again"]
    assert (again["failed"], again["same"], again["symptom"]["ending"]) == (2, True, "wrong numbers")
    located = case["found"]["located"]
    assert (located["dispatch"], located["reference"]) == (dispatch, "llvm-cpu, generic")
    assert dispatch in done.out
    assert located["in_f64"]["target"] > 0.1
    # The substitution is in the flags: no switch of the compiler takes it away, and with some it does not fit.
    verdicts = {probe["name"]: probe["verdict"] for probe in case["found"]["probes"]["probes"]}
    assert verdicts.items() >= {"data tiling off": "fails", "one thread": "fails"}.items()
    assert "passes" not in verdicts.values()
    # What is done is not done again.
    again = project.gauntlet("explain", "latest", "toy/*")
    assert (again.code, "confirming" in again.out) == (0, False), again.text

    bundle = project.newest / "explain" / "toy" / "sums.cpu" / "bundle"
    archive = bundle.with_name("bundle.tar.gz")
    assert archive.stat().st_size < 100_000
    replays(bundle)
    still = project.gauntlet("bundle.run", str(archive))
    assert (still.code, "the failure is still there" in still.out) == (1, True), still.text
    # Without the planted executable, the same program on the same inputs is right.
    script = bundle / "repro.sh"
    kept = [word for word in script.read_text().split(" ") if "substitute" not in word]
    script.write_text(" ".join(kept))
    fixed = project.gauntlet("bundle.run", str(bundle))
    assert (fixed.code, "it is fixed" in fixed.out) == (0, True), fixed.text


@pytest.mark.stress
def test_a_wrong_dispatch_of_one_of_several_calls_is_found(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "_PROBES", ())
    source = model(project, "8")
    source.write_text(
        source.read_text()
        + """\
util.global private mutable @count = dense<0.0> : tensor<8x16xf32>
func.func @add(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %c = util.global.load @count : tensor<8x16xf32>
  %0 = arith.addf %c, %a : tensor<8x16xf32>
  util.global.store %0, @count : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""
    )
    flag, dispatch = planted(source, tmp_path)
    expected(project)
    calls = [
        {"function": "add", "inputs": [{"source": INPUTS[0]}]},
        {"function": "sums", "inputs": ["@0.0", {"source": INPUTS[1]}], "outputs": [{"source": "sums.npy"}]},
    ]
    several: dict[str, Any] = {"run_function": None, "inputs": [], "outputs": []}
    flags = {"compiler_flags": [*FLAGS, flag], "threshold_args": ["--expected_f32_threshold=1e-3"]}
    project.regression("sums", **several, calls=calls, **flags)
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums", "--stages", "threshold").code == 1
    done = project.gauntlet("explain")
    assert done.code == 0, done.text
    (case,) = explained(project)["cases"]
    located = case["found"]["located"]
    assert (case["kind"], case["bundled"]) == ("wrong numbers", True)
    assert (located["dispatch"], located["function_call"]) == (dispatch, "1 (sums)")
    # Where no dispatch is at fault, there is no bundle, since one of the whole program would make one call.
    calls[1]["outputs"] = [{"value": "8x16xf32=1"}]
    project.regression("sums", **several, calls=calls, compiler_flags=FLAGS)
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums", "--stages", "threshold").code == 1
    done = project.gauntlet("explain")
    assert (done.code, "but this case makes several" in done.text) == (4, True), done.text


@pytest.mark.parametrize("reference", ["", "vmvx"])
def test_where_no_reference_has_the_same_dispatches_one_of_the_same_values_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    traced, nothing = [], DispatchSearch(Mock(), Mock(), without_weights=False, program=FlowProgram(""))

    def trace(*_: object, by_values: bool) -> TracePair:
        traced.append(by_values)
        return TracePair(0, 0, (), ())

    def find_reference(_: DispatchSearch, *, by_values: bool) -> tuple[str, str] | None:
        return (reference, "") if by_values and reference else None

    monkeypatch.setattr(DispatchSearch, "_find_reference", find_reference)
    monkeypatch.setattr(DispatchSearch, "_make_reference", Mock())
    monkeypatch.setattr(locate, "make_target_side", lambda *_: TraceSide("", (), (), "", (), ""))
    monkeypatch.setattr(locate, "trace_sides", trace)
    located = nothing.find_wrong(lambda: False)
    assert (located.reference, traced) == (reference, [True] if reference else [])
    assert ("input values occur in vmvx" if reference else "no reference gives the expected numbers") in located.reason


@pytest.mark.stress
@pytest.mark.parametrize("planted_at_all", [True, False])
def test_without_a_reference_of_the_same_dispatches_tensors_are_matched_by_values(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, planted_at_all: bool
) -> None:
    """Of no flow text of the installed release can no reference be made: that is pretended."""

    def unreadable(*_: object, **__: object) -> Path:
        raise CompileError("reference.vmfb: iree-compile failed", "")

    monkeypatch.setattr(DispatchSearch, "_make_from_flow", unreadable)
    source = model(project, "8")
    flag, dispatch = planted(source, tmp_path)
    flags = [*FLAGS, flag] if planted_at_all else FLAGS
    model(project, "8", compiler_flags=flags, threshold_args=["--expected_f32_threshold=1e-3"])
    expected(project)
    if not planted_at_all:
        np.save(project.regressions / "sums.npy", np.zeros((8, 16), np.float32))
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums").code == 1
    done = project.gauntlet("explain")
    if planted_at_all:
        assert done.code == 0, done.text
        located = explained(project)["cases"][0]["found"]["located"]
        assert (located["dispatch"], located["reference"]) == (dispatch, "llvm-cpu, generic")
        assert f"confirming {dispatch}" in done.out
    else:
        assert "no reference gives the expected numbers either" in done.out


def replays(bundle: Path) -> None:
    """Where the installed tools record what a run does with the device, the bundle has it, and it runs."""
    replay = Path(find_installed().runtime.run_module).with_name("iree-run-replay")
    file = bundle / "run.ireereplay"
    assert file.is_file() == replay.is_file()
    if replay.is_file():
        done = subprocess.run([replay, "--device=local-task", file], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "run.ireereplay` repeats what that run did" in (bundle / "README.md").read_text()


@pytest.mark.stress
def test_a_target_that_does_not_run_when_traced_is_not_judged(project: Project, tmp_path: Path) -> None:
    source = model(project, "?")
    flag, dispatch = planted(source, tmp_path)
    # The executable that is put in takes the sizes in another order than the traced program has them.
    model(project, "?", compiler_flags=[*FLAGS, flag], threshold_args=["--expected_f32_threshold=1e-3"])
    expected(project)
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums").code == 1
    done = project.gauntlet("explain")
    assert done.code == 0, done.text
    assert f"when traced, the target fails in {dispatch}" in done.out
    (case,) = explained(project)["cases"]
    assert case["found"]["bundle"]["form"] == "the whole program"


@pytest.mark.stress
def test_wrong_expected_values_are_no_dispatchs_fault(project: Project) -> None:
    model(project, "8")
    np.save(project.regressions / "sums.npy", np.zeros((8, 16), np.float32))
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sums").code == 1
    done = project.gauntlet("explain")
    assert done.code == 0, done.text
    assert "no reference gives the expected numbers either" in done.out
    (case,) = explained(project)["cases"]
    assert (case["bundled"], case["found"]["bundle"]["form"]) == (True, "the whole program")
    bundle = project.newest / "explain" / case["found"]["bundle"]["folder"]
    # What the program is given is made from the spec's seeds, and its expected values are the spec's file.
    assert np.load(bundle / "expected_output_2.npy").shape == (8, 16)
    assert project.gauntlet("bundle.run", str(bundle)).code == 1


_RUN = ("run", "--model", "toy", "--stages", "threshold")


def test_what_passes_the_next_time_is_intermittent(project: Project) -> None:
    fails = project.write_tool("echo '[FAILED] result[0]: element at index 0 is another'; exit 1")
    assert project.gauntlet(*_RUN, run_module=fails).code == 1
    done = project.gauntlet("explain")
    assert (done.code, "it is intermittent" in done.out) == (4, True), done.text
    assert "fails again 0 of 2 times" in done.out


def test_another_runtime_is_not_taken_for_the_runs(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    assert project.gauntlet(*_RUN).code == 1
    journal = project.newest / "journal.jsonl"
    identity = project.journal.run.toolchain.runtime_identity
    journal.write_text(journal.read_text().replace(identity, "0" * len(identity)))
    done = project.gauntlet("explain")
    assert (done.code, " was made with the runtime 3." in done.err) == (3, True), done.text


@pytest.mark.usefixtures("settled")
def test_other_expected_numbers_since_the_run_are_told(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    assert project.gauntlet(*_RUN).code == 1
    project.write_expected("abs", [8.0] * 4)
    done = project.gauntlet("explain")
    reason = "it fails with other numbers now: specs/regression_tests/toy/abs.npy was written to since the run"
    assert (done.code, reason in done.out) == (4, True), done.text


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("known", [False, True])
def test_what_was_recorded_since_is_no_intermittent_failure(project: Project, *, known: bool) -> None:
    right = (project.regressions / "abs.npy").read_bytes()
    project.write_expected("abs", [9.0] * 4)
    assert project.gauntlet(*_RUN).code == 1
    if known:
        # The second time a run knows what is in its files when it begins.
        assert project.gauntlet(*_RUN).code == 1
    (project.regressions / "abs.npy").write_bytes(right)
    done = project.gauntlet("explain")
    assert (done.code, "intermittent" in done.out) == (4, False), done.text
    said = "has changed since the run" if known else "was written to since the run"
    assert f"specs/regression_tests/toy/abs.npy {said}: run again, and explain that run" in done.out
    assert ("did not fail again in two attempts: " in done.out) is not known


@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [(1, 0, "it fails: confirmed"), (0, 1, "not confirmed"), (125, 3, "cannot be judged")],
)
def test_a_bundle_is_checked_by_what_its_script_ends_with(
    project: Project, tmp_path: Path, code: int, exit_code: int, says: str
) -> None:
    (tmp_path / "bundle.json").write_text(json.dumps({"title": "wrong", "packages": ["iree==3.6.0"]}))
    (tmp_path / "repro.sh").write_text(f"exit {code}\n")
    done = project.gauntlet("bundle.check", str(tmp_path))
    assert (done.code, says in done.out) == (exit_code, True), done.text


def test_a_bundle_whose_facts_are_damaged_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text("[]")
    (tmp_path / "repro.sh").write_text("exit 0\n")
    done = project.gauntlet("bundle.check", str(tmp_path))
    assert (done.code, "is not as `explain` writes it" in done.err) == (3, True), done.text


def test_what_cannot_be_explained_is_a_clear_word(project: Project, tmp_path: Path) -> None:
    assert project.gauntlet("run", "--model", "toy", "--submodel", "abs", "--stages", "compile").code == 0
    nothing = project.gauntlet("explain")
    assert (nothing.code, "nothing failed in" in nothing.err) == (5, True), nothing.text
    unknown = project.gauntlet("explain", "nope")
    assert (unknown.code, "no such run" in unknown.err) == (2, True), unknown.text
    case = project.gauntlet("explain", "toy/*")
    assert (case.code, "gauntlet explain latest 'toy/*'" in case.err) == (2, True), case.text
    assert project.gauntlet("bundle.run", str(tmp_path / "none.tar.gz")).code == 2
    no_bundle = tmp_path / "text.tar.gz"
    for damaged in (b"no archive", gzip.compress(bytes(range(256)) * 99)[:90]):
        no_bundle.write_bytes(damaged)
        done = project.gauntlet("bundle.run", str(no_bundle))
        assert (done.code, "it is not an archive, or is damaged" in done.err) == (3, True), done.text
    (tmp_path / "bundle.json").write_text("{}")
    done = project.gauntlet("bundle.run", str(tmp_path))
    assert (done.code, "it has no repro.sh" in done.err) == (3, True), done.text
