"""Which ends of a process count against the product, and what an expected failure makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iree_gauntlet.cases import Origin, Stage, Verdict
from iree_gauntlet.engine.judging import after_process, first_error, with_expectation
from iree_gauntlet.engine.processes.supervisor import Outcome
from iree_gauntlet.engine.threshold import _of_other_types
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.steps import Step

_STEP = Step(
    id="m/s@cpu:compile",
    chain="m/s@cpu",
    dialect="",
    model="m",
    submodel="s",
    target="cpu",
    sku="",
    stage=Stage.COMPILE,
    folder="/nowhere",
    timeout=5.0,
    origin=Origin("spec.json"),
)
_EXPECTING = replace(_STEP, expect_failure="known (suite.toml)")


def _after(outcome: Outcome, *, disk_full: bool = False) -> Result:
    lines = ["", "bad operand", *["error: No space left on device"] * disk_full]
    return after_process(_STEP, outcome, lines, tool="iree-compile")


@pytest.mark.parametrize(
    ("outcome", "disk_full", "verdict", "said", "expected"),
    [
        (Outcome(1), False, Verdict.FAILED, "exit code 1: bad operand", Verdict.XFAILED),
        (Outcome(None, signal="SIGSEGV"), False, Verdict.ERROR, "crashed with SIGSEGV", Verdict.XFAILED),
        (Outcome(None, signal="SIGABRT"), False, Verdict.ERROR, "crashed with SIGABRT", Verdict.XFAILED),
        # None of these says anything of the product, so none is the failure that was expected.
        (Outcome(None, signal="SIGKILL"), False, Verdict.ERROR, "memory", Verdict.ERROR),
        (Outcome(None, signal="SIGTERM"), False, Verdict.ERROR, "from outside with SIGTERM", Verdict.ERROR),
        (Outcome(None, signal="SIGTERM", timed_out=True), False, Verdict.ERROR, "longer than its 5 s", Verdict.ERROR),
        (Outcome(1), True, Verdict.ERROR, "disk space", Verdict.ERROR),
        (Outcome(None, signal="SIGBUS"), True, Verdict.ERROR, "disk space", Verdict.ERROR),
    ],
)
def test_ends_of_a_process(outcome: Outcome, disk_full: bool, verdict: Verdict, said: str, expected: Verdict) -> None:
    result = _after(outcome, disk_full=disk_full)
    assert result.verdict is verdict
    assert said in result.reason
    assert with_expectation(_STEP, result, lenient=False) == result
    assert with_expectation(_EXPECTING, result, lenient=False).verdict is expected


@pytest.mark.parametrize(
    ("expect_crash", "outcome", "verdict", "said"),
    [
        (None, Outcome(1), Verdict.XFAILED, "expected: known (suite.toml)"),
        (None, Outcome(None, signal="SIGFPE"), Verdict.XFAILED, "expected: known (suite.toml)"),
        (False, Outcome(1), Verdict.XFAILED, "expected: known (suite.toml)"),
        (False, Outcome(None, signal="SIGFPE"), Verdict.ERROR, "but an ordinary failure is expected (known (suite.t"),
        (True, Outcome(None, signal="SIGFPE"), Verdict.XFAILED, "expected: known (suite.toml)"),
        (True, Outcome(1), Verdict.FAILED, "but a crash is expected (known (suite.toml)): list it as an ordinary fail"),
        (True, Outcome(None, signal="SIGKILL"), Verdict.ERROR, "killed from outside"),
        (True, Outcome(None, signal="SIGTERM", timed_out=True), Verdict.ERROR, "longer than its 5 s"),
    ],
)
def test_a_crash_is_no_ordinary_failure_where_the_expectation_tells_them_apart(
    expect_crash: bool | None, outcome: Outcome, verdict: Verdict, said: str
) -> None:
    result = with_expectation(replace(_EXPECTING, expect_crash=expect_crash), _after(outcome), lenient=False)
    assert result.verdict is verdict
    assert said in result.reason


def test_reasons_with_an_expectation_are_bounded() -> None:
    step = replace(_STEP, expect_failure="so " * 10_000, expect_crash=True)
    for outcome in (Outcome(1), Outcome(None, signal="SIGSEGV")):
        assert len(with_expectation(step, _after(outcome), lenient=False).reason) < 1000
    assert len(with_expectation(step, Result(Verdict.PASSED), lenient=False).reason) < 1000


def test_a_pass_that_was_not_expected_is_strict_unless_lenient() -> None:
    passed = Result(Verdict.PASSED)
    strict = with_expectation(_EXPECTING, passed, lenient=False)
    assert strict.verdict is Verdict.XPASSED
    assert "known (suite.toml)" in strict.reason
    lenient = with_expectation(_EXPECTING, passed, lenient=True)
    assert lenient.verdict is Verdict.PASSED
    assert "known (suite.toml)" in lenient.notes[0]


@pytest.mark.parametrize("verdict", [Verdict.SKIPPED, Verdict.INCONCLUSIVE])
def test_what_was_not_judged_stays_what_it_is(verdict: Verdict) -> None:
    result = Result(verdict, "why")
    assert with_expectation(_EXPECTING, result, lenient=False) == result


def test_the_record_is_the_journals_and_no_more() -> None:
    record = _after(Outcome(None, signal="SIGBUS"), disk_full=True).as_dict()
    assert record["signal"] == "SIGBUS"
    assert {"verdict", "reason", "exit_code", "timed_out", "tail", "notes", "checks", "outputs"} <= record.keys()
    assert "disk_full" not in record


def test_the_first_error_is_found_behind_its_path() -> None:
    lines = ["warning: w", "/a b/m.mlir:3:7: error: expected  ')'", "m.mlir:4:1: error: later"]
    assert first_error(lines) == "expected ')'"
    assert first_error(["an error without a colon"]) == ""


def test_reasons_are_one_bounded_line() -> None:
    assert shorten(" a\n\tb ") == "a b"
    assert len(shorten("x" * 1000)) == 300


def test_an_output_whose_values_differ_has_the_type_that_is_expected() -> None:
    complaints = [
        "[FAILED] result[0]: element at index 3 (28759) does not match the expected (28760); expected that …",
        "[FAILED] result[2]: metadata is 1x64xsi64; expected that the view matches 1x64xi64",
    ]
    assert _of_other_types(complaints) == {2}
