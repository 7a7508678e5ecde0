"""Reports of a suite of operators: they are small, and unexpected outcomes come first."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lxml import etree

from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.reports.junit import format_run_junit
from iree_gauntlet.reports.render_markdown import render_markdown
from iree_gauntlet.reports.run_reports import format_summary_json, make_run_reports, run_document
from tests.support.journal_builder import RUN_NAME, JournalBuilder
from tests.support.places import DATA

if TYPE_CHECKING:
    from iree_gauntlet.records.outcome import RunOutcome

DIAGNOSTIC = "failed to legalize operation 'torch.onnx.If' that was explicitly marked illegal"
PLACE = "/home/me/src/iree-test-suites/onnx_ops/onnx/node/generated"
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-input-demote-f64-to-f32=false",
    "--iree-opt-level=O0",
)


def operators(count: int, verdicts: tuple[str, ...]) -> RunOutcome:
    """A run of so many operators; verdicts of compiles by turns, all thresholds pass."""
    builder = JournalBuilder()
    for number in range(count):
        name, folder = f"test_operator_{number}_with_attributes", f"{PLACE}/test_operator_{number}_with_attributes"
        origin = {"file": f"{folder}/run_module_io_flags.txt", "field": ""}
        for stage in ("compile", "threshold"):
            module = (
                f"/home/me/gauntlet/runs/{RUN_NAME}/steps/onnx/node/generated/{name}@cpu_llvm_sync/compile/module.vmfb"
            )
            argv = {
                "compile": ["/home/me/venv/bin/iree-compile", "model.mlir", *FLAGS, "-o", module],
                "threshold": [
                    *("/home/me/venv/bin/iree-run-module", f"--module={module}", "--device=local-sync"),
                    *("--input=3x4x5xf32=@input_0.bin", "--expected_output=3x4x5xf32=@output_0.bin"),
                ],
            }[stage]
            command = {"argv": argv, "cwd": folder, "env": []}
            builder.step(
                *("onnx/node/generated", name, stage),
                target="cpu_llvm_sync",
                dialect="op_tests",
                command=command,
                origin=origin,
            )
    builder.begin()
    tail = [f"model.mlir:9:10: error: {DIAGNOSTIC}", *(f"note: see current operation: {'x' * 380}" for _ in range(19))]
    reason = f"iree-compile failed with exit code 1: {DIAGNOSTIC}"
    steps = [str(step["id"]) for step in builder.steps]
    for number in range(count):
        compiled, judged = steps[2 * number : 2 * number + 2]
        verdict = verdicts[number % len(verdicts)]
        if verdict == "passed":
            builder.result(compiled, statistics={"dispatch_count": 1, "binary_size_bytes": 9_000})
            builder.result(judged)
        else:
            expected = "; expected: expected_compile_failures" if verdict == "xfailed" else ""
            builder.result(compiled, verdict, reason + expected, exit_code=1, tail=tail)
            builder.result(judged, "skipped", f"{compiled} {verdict}")
    builder.end()
    return read_outcome(builder.record)


@pytest.fixture(scope="module")
def usual() -> RunOutcome:
    """As the ONNX suite is: a fifth are expected failures; and two surprises in a hundred."""
    turns = ("passed", "passed", "passed", "passed", "xfailed") * 20
    return operators(1_152, (*turns[:98], "failed", "xfailed"))


def markdown_of(outcome: RunOutcome) -> str:
    return render_markdown(run_document(outcome))


def parsed(outcome: RunOutcome) -> tuple[Any, int]:
    text = format_run_junit(outcome).encode()
    root = etree.fromstring(text)
    etree.XMLSchema(etree.parse(str(DATA / "junit-10.xsd"))).assertValid(root)
    return root, len(text)


def test_junit_of_the_whole_onnx_suite_is_small(usual: RunOutcome) -> None:
    root, size = parsed(usual)
    assert size < 1_500_000
    assert len(root.findall("testsuite/testcase")) == 2_304
    expected = root.xpath("testsuite/testcase/skipped[starts-with(@message, 'expected failure')]")
    assert len(expected) == sum(step.verdict == "xfailed" for step in usual.steps)
    assert all(DIAGNOSTIC in skipped.attrib["message"] for skipped in expected)
    # What is the same in the whole run is said once.
    assert len(root.xpath("//property[@name='compiler.commit']")) == 1


def test_junit_of_a_suite_that_fails_altogether_stays_below_its_bound() -> None:
    root, size = parsed(operators(1_152, ("failed",)))
    assert size < 5_000_000
    text = root.find("testsuite/testcase/failure").text
    assert "reproduce:" in text
    assert DIAGNOSTIC in text


def test_a_summary_of_many_begins_with_what_went_wrong(usual: RunOutcome) -> None:
    text = markdown_of(usual)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## What went wrong", "## Figures", "## Expected failures, by cause", "## Skipped"]
    assert len(text) < 150_000
    assert "| 230 | compile | failed to legalize operation 'torch.onnx.If' that was explicitly marked illegal |" in text
    assert "1141 more cases as expected; each is in `summary.json`." in text


def test_a_summary_without_a_surprise_has_no_rows() -> None:
    text = markdown_of(operators(300, ("passed", "xfailed")))
    assert "300 more cases as expected; each is in `summary.json`." in text
    assert "What went wrong" not in text


def test_failures_of_many_are_grouped_everywhere() -> None:
    outcome = operators(300, ("failed",))
    text = markdown_of(outcome)
    assert (
        text.index("## What went wrong\n")
        < text.index(f"| 300 | compile | {DIAGNOSTIC} |")
        < text.index("### failed: ")
    )
    assert "280 more went wrong; `junit.xml` and `summary.json` list them all." in text
    assert text.count("### failed: ") == 200
    stream = io.StringIO()
    make_run_reports(outcome).print(Path("runs") / RUN_NAME, stream, environ={})
    lines = stream.getvalue().splitlines()
    assert lines[3] == "What went wrong"
    assert "and 299 more    300  compile  failed to legalize" in lines[5]
    assert "280 more went wrong; junit.xml and summary.json list them all." in lines
    assert "  and 270 more, in the reports" in lines


def test_the_end_of_many_that_came_out_as_expected_is_short() -> None:
    stream = io.StringIO()
    make_run_reports(operators(300, ("passed", "xfailed"))).print(Path("runs") / RUN_NAME, stream, environ={})
    assert len(stream.getvalue().splitlines()) < 11


def test_summary_json_of_many_says_the_same_on_fewer_lines(usual: RunOutcome) -> None:
    text = format_summary_json(usual)
    document = json.loads(text)
    assert len(text.splitlines()) < 1_152 + 100
    assert len(document["chains"]) == 1_152
    few = json.loads(format_summary_json(operators(3, ("passed",))))
    assert few.keys() == document.keys()
    assert few["chains"][0]["steps"][0].keys() == document["chains"][0]["steps"][0].keys()


def calls_of_reports(count: int) -> int:
    """Calls of functions that it takes to write the reports of so many operators."""
    outcome = operators(count, ("passed", "passed", "passed", "xfailed", "failed"))
    calls = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        for report in (format_run_junit, format_summary_json, markdown_of):
            report(outcome)
    finally:
        sys.setprofile(before)
    return calls


def test_reports_take_as_many_calls_a_case_however_many_there_are() -> None:
    assert calls_of_reports(600) < calls_of_reports(150) * 4 * 1.02
