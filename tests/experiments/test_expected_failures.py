"""Expected failures: each excuses only its kind and its text, and never a mistake in a spec."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.operator_suite import OperatorSuite

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_THRESHOLD = "toy/abs@cpu:threshold"
_COMPILE = "toy/abs@cpu:compile"
_WORDS = ("run", "--suite", "s", "--stages", "threshold")
_UNREGISTERED = "math.absent %a : tensor<4xf32>"
# It reads far behind its input.
_CRASHING = """func.func @abs(%a: tensor<4xf32>) -> tensor<4xf32> {
  %far = arith.constant dense<35184372088832> : tensor<4xi64>
  %i = arith.fptosi %a : tensor<4xf32> to tensor<4xi64>
  %j = arith.addi %i, %far : tensor<4xi64>
  %e = tensor.empty() : tensor<4xf32>
  %0 = linalg.generic {
      indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]
    } ins(%j : tensor<4xi64>) outs(%e : tensor<4xf32>) {
  ^bb0(%k: i64, %o: f32):
    %x = arith.index_cast %k : i64 to index
    %v = tensor.extract %a[%x] : tensor<4xf32>
    linalg.yield %v : f32
  } -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def expecting(project: Project, stage: str, **more: str) -> None:
    """Writes a suite that expects `toy/abs` to fail."""
    fields = {"case": "toy/abs", "stage": stage, "reason": "known"} | more
    project.suite("[[expect_failure]]\n" + "".join(f"{name} = {json.dumps(text)}\n" for name, text in fields.items()))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"run_function": "abz"},
            "iree-run-module finds no function 'abz' in the module, which has abs; did you mean 'abs'? (see specs/",
        ),
        ({"device": "local-tusk"}, "has no driver local-tusk: see `device` of the spec"),
        ({"device": "local-task://5"}, "cannot open the device local-task://5: see `device` of the spec"),
        ({"threshold_args": ["--device_allocator=mine"]}, "unrecognized allocator 'mine'"),
        ({"compiler_flags": ["--iree-hal-target-device=lokal"]}, 'unregistered device alias "lokal"'),
        ({"outputs": [{"source": "abs.npy"}, {"source": "abs.npy"}]}, "function expected fewer input values"),
    ],
)
def test_a_mistake_in_a_spec_is_no_expected_failure(project: Project, spec: dict[str, Any], said: str) -> None:
    step = "compile" if "compiler_flags" in spec else "threshold"
    project.regression(**spec, run_test_expecting_to_fail=True)
    if step == "compile":
        expecting(project, step)
    done = project.gauntlet(*(_WORDS if step == "compile" else ("run", "--stages", "threshold")))
    result = project.result(f"toy/abs@cpu:{step}")
    # How many values go in and come out is a question to the program, too.
    excused = "outputs" in spec
    assert (done.code, result["verdict"]) == ((0, "xfailed") if excused else (3, "error")), done.text
    assert said in result["reason"]


@pytest.mark.parametrize("damage", [0, 40, 140])
@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_a_damaged_file_is_no_expected_failure(project: Project, field: str, damage: int) -> None:
    whole = (project.regressions / "abs.npy").read_bytes()
    (project.regressions / "cut.npy").write_bytes(whole[:damage])
    changes: dict[str, Any] = {"run_test_expecting_to_fail": True, field: [{"source": "cut.npy"}]}
    project.regression(**changes)
    done = project.gauntlet("run", "--stages", "threshold")
    assert (done.code, project.verdict(_THRESHOLD)) == (3, "error"), done.text
    assert "cut.npy: " in project.result(_THRESHOLD)["reason"]


def test_a_file_of_raw_bytes_that_is_cut_short_is_no_expected_failure(project: Project) -> None:
    (project.regressions / "cut.bin").write_bytes(b"abc")
    project.regression(run_test_expecting_to_fail=True, outputs=[{"source": "cut.bin", "value": "4xf32"}])
    done = project.gauntlet("run", "--stages", "threshold")
    assert (done.code, project.verdict(_THRESHOLD)) == (3, "error"), done.text
    assert "cut.bin: the file is cut short; fetch or record it again" in project.result(_THRESHOLD)["reason"]


def test_a_time_out_is_no_expected_failure(project: Project) -> None:
    expecting(project, "threshold")
    done = project.gauntlet(*_WORDS, "--timeout-threshold", "0.000001")
    assert (done.code, project.verdict(_THRESHOLD)) == (3, "error"), done.text


def test_the_kind_that_is_expected_is_named_in_every_report(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    expecting(project, "threshold", kind="wrong numbers")
    done = project.gauntlet(*_WORDS)
    assert done.code == 0, done.text
    result = project.result(_THRESHOLD)
    assert (result["verdict"], result["failure"]) == ("xfailed", "wrong numbers")
    said = "; wrong numbers, expected: known (suites/s.toml)"
    assert result["reason"].endswith(said)
    assert "1 expected failure (1 wrong numbers)" in done.out
    for name in ("summary.md", "summary.html"):
        text = (project.newest / name).read_text()
        assert "1 expected failure (1 wrong numbers)" in text
        assert said in text
    (skipped,) = ET.parse(project.newest / "junit.xml").getroot().iter("skipped")
    assert said in str(skipped.get("message"))
    (chain,) = json.loads((project.newest / "summary.json").read_text())["chains"]
    assert {step["stage"]: step["failure"] for step in chain["steps"]}["threshold"] == "wrong numbers"
    planned = json.loads(project.gauntlet("plan", "--suite", "s", "--format", "json").out)
    (expectation,) = [step["expectation"] for step in planned["steps"] if step["step"] == "threshold"]
    assert (expectation["kinds"], expectation["match"]) == (["wrong numbers"], "")


def test_another_kind_keeps_its_verdict_and_says_what_was_expected(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    expecting(project, "threshold", kind="does not run")
    done = project.gauntlet(*_WORDS)
    assert (done.code, project.verdict(_THRESHOLD)) == (1, "failed"), done.text
    where = "but expected is: does not run (suites/s.toml: expect_failure[0]); if this is expected, say so there"
    assert project.result(_THRESHOLD)["reason"].endswith(f"; wrong numbers, {where}")
    # Next to a spec that expects anything, the suite's kind counts.
    project.regression(run_test_expecting_to_fail=True)
    assert project.gauntlet(*_WORDS).code == 1


def test_a_model_that_crashes_is_expected_by_kind(project: Project) -> None:
    (project.regressions / "abs.mlir").write_text(_CRASHING)
    expecting(project, "threshold", kind="wrong numbers")
    done = project.gauntlet(*_WORDS)
    result = project.result(_THRESHOLD)
    assert (done.code, result["verdict"], result["failure"]) == (3, "error", "crashes"), done.text
    assert "iree-run-module crashed with SIGSEGV; crashes, but expected is: wrong numbers" in result["reason"]
    expecting(project, "threshold", kind="crashes", match="SIGSEGV")
    assert project.gauntlet(*_WORDS).code == 0
    project.suite("")
    project.regression(run_test_expecting_to_fail=True)
    done = project.gauntlet(*_WORDS)
    assert (done.code, project.verdict(_THRESHOLD)) == (0, "xfailed"), done.text


@pytest.mark.parametrize(
    ("match", "code"), [("custom op 'math.absent'", 0), ("[0-9]", 1), ("%0 = math.absent %a", 0), ("no such text", 1)]
)
def test_a_text_of_a_compile_is_found_with_and_without_the_cache(project: Project, match: str, code: int) -> None:
    project.add("abs", _UNREGISTERED)
    expecting(project, "compile", kind="does not compile", match=match)
    words = ("run", "--suite", "s", "--stages", "compile")
    done = project.gauntlet(*words)
    assert done.code == code, done.text
    before = project.result(_COMPILE)
    assert project.gauntlet(*words).code == code
    again = project.result(_COMPILE)
    assert (again["verdict"], again["reason"]) == (before["verdict"], before["reason"])
    if code:
        assert f"but expected is: does not compile with {match!r} in the reason or the output" in again["reason"]
    else:
        assert again["cache"]["hit"]


def test_a_text_of_a_run_is_one_of_the_tools_output(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    for match, code in (("4xf32=9 9 9 9", 0), ("4xf32=8", 1)):
        expecting(project, "threshold", match=match)
        done = project.gauntlet(*_WORDS)
        assert done.code == code, done.text


def test_what_xfail_update_proposes_is_what_the_next_run_expects(project: Project) -> None:
    project.add("abs", _UNREGISTERED)
    project.suite("")
    words = ("run", "--suite", "s", "--stages", "compile")
    assert project.gauntlet(*words).code == 1
    done = project.gauntlet("xfail.update", "--write")
    assert done.code == 0, done.text
    text = (project.folder / "suites" / "s.toml").read_text()
    assert 'kind = "does not compile"\nmatch = "custom op \'math.absent\' is unknown' in text
    assert project.gauntlet(*words).code == 0
    # Then it fails in another way.
    project.add("abs", "math.absf %b : tensor<4xf32>")
    assert project.gauntlet(*words).code == 1
    assert project.gauntlet("xfail.update", "--write").code == 0
    assert (project.folder / "suites" / "s.toml").read_text().count("[[expect_failure]]") == 1
    assert project.gauntlet(*words).code == 0


@pytest.mark.parametrize("python", ["servers", ""])
def test_operator_suites_excuse_no_mistake_either(project: Project, python: str) -> None:
    suite = OperatorSuite(project, warm=True)
    names = ("abs", "neg", "wrong", "refused")
    suite.add_every_outcome()
    suite.write_config(expected_run_failures=[f"node/{name}" for name in names])
    flags = suite.root / "node" / "neg" / "run_module_io_flags.txt"
    flags.write_text(f"{flags.read_text()}--function=nag\n")
    cut = suite.root / "node" / "abs" / "input_0.bin"
    cut.write_bytes(cut.read_bytes()[:-1])
    done = suite.run("-j", "1", **({} if python else {"python": ""}))
    assert done.code == 3, done.text
    verdicts = {name: suite.verdicts[f"{name}:threshold"] for name in names}
    assert verdicts == {"abs": "error", "neg": "error", "wrong": "xfailed", "refused": "xfailed"}
    results = {name: project.result(f"node/{name}@cpu_sync:threshold") for name in names}
    assert re.search(r"finds no function 'nag' in the module, which has \w+", results["neg"]["reason"])
    assert "input_0.bin: the file is cut short" in results["abs"]["reason"]
    assert "; wrong numbers, expected: in expected_run_failures (" in results["wrong"]["reason"]
    assert "; does not run, expected: in expected_run_failures (" in results["refused"]["reason"]


def test_a_suites_text_is_looked_for_in_what_the_tools_say_of_an_operator(project: Project) -> None:
    suite = OperatorSuite(project, warm=True)
    suite.add_every_outcome()
    suite.write_config()
    entries = (
        ("wrong", "threshold", "[FAILED] result[0]"),
        ("misspelt", "compile", "note: see"),
        ("zero", "compile", "no such text"),
    )
    lines = (f'case = "node/{case}"\nstage = "{stage}"\nmatch = "{match}"' for case, stage, match in entries)
    head = 'name = "s"\ntarget = "cpu"\nspec_dirs = ["../ops"]\nstages = ["threshold"]\n'
    text = head + "".join(f'[[expect_failure]]\nreason = "known"\n{line}\n' for line in lines)
    (project.folder / "suites" / "s.toml").write_text(text)
    done = project.gauntlet("run", "--suite", "s")
    verdicts = {step: suite.verdicts[step] for step in ("wrong:threshold", "misspelt:compile", "zero:compile")}
    assert verdicts == {"wrong:threshold": "xfailed", "misspelt:compile": "failed", "zero:compile": "error"}, done.text
