"""The ends of processes that count against the product, and the effect of expected failures on them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.engine.judging import apply_expectation, find_changed_goldens, find_first_error, judge_process
from iree_gauntlet.engine.processes.supervisor import Outcome
from iree_gauntlet.engine.threshold import _find_type_mismatches
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import Command
from tests.support.steps import make_step

if TYPE_CHECKING:
    from pathlib import Path

_STEP = make_step(Stage.COMPILE, timeout=5.0)
_EXPECTING = replace(
    _STEP,
    expect_failure="known (suite.toml)",
    expect_kinds=Stage.COMPILE.row.failures,
    expect_origin=Origin("suite.toml", "expect_failure[0]"),
)
_NO_CRASH, _CRASH = (FailureKind.DOES_NOT_COMPILE,), (FailureKind.CRASHES,)


def _after(outcome: Outcome, *, disk_full: bool = False) -> Result:
    lines = ["", "bad operand", *["error: No space left on device"] * disk_full]
    return judge_process(_STEP, outcome, lines, tool="iree-compile")


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
    assert apply_expectation(_STEP, result, allow_xpass=False) == result
    assert apply_expectation(_EXPECTING, result, allow_xpass=False).verdict is expected


@pytest.mark.parametrize(
    ("kinds", "outcome", "verdict", "said"),
    [
        (Stage.COMPILE.row.failures, Outcome(1), Verdict.XFAILED, "; does not compile, expected: known (suite.toml)"),
        (Stage.COMPILE.row.failures, Outcome(None, signal="SIGFPE"), Verdict.XFAILED, "; crashes, expected: known"),
        (_NO_CRASH, Outcome(1), Verdict.XFAILED, "; does not compile, expected: known (suite.toml)"),
        (
            _NO_CRASH,
            Outcome(None, signal="SIGFPE"),
            Verdict.ERROR,
            "; crashes, but expected is: does not compile (suite.toml: expect_failure[0]); if this is expected, say so",
        ),
        (_CRASH, Outcome(None, signal="SIGFPE"), Verdict.XFAILED, "; crashes, expected: known (suite.toml)"),
        (_CRASH, Outcome(1), Verdict.FAILED, "; does not compile, but expected is: crashes (suite.toml: expect_f"),
        (_CRASH, Outcome(None, signal="SIGKILL"), Verdict.ERROR, "killed from outside"),
        (_CRASH, Outcome(None, signal="SIGTERM", timed_out=True), Verdict.ERROR, "longer than its 5 s"),
    ],
)
def test_only_the_kind_that_is_expected_is_excused(
    kinds: tuple[FailureKind, ...], outcome: Outcome, verdict: Verdict, said: str
) -> None:
    result = apply_expectation(replace(_EXPECTING, expect_kinds=kinds), _after(outcome), allow_xpass=False)
    assert result.verdict is verdict
    assert said in result.reason


@pytest.mark.parametrize(
    ("match", "verdict"),
    [("bad operand", Verdict.XFAILED), ("see current operation", Verdict.XFAILED), ("bad opera.d", Verdict.FAILED)],
)
def test_a_text_is_looked_for_in_the_reason_and_in_the_output(match: str, verdict: Verdict) -> None:
    failed = replace(_after(Outcome(1)), said="m.mlir:1:1: note: see current operation")
    result = apply_expectation(replace(_EXPECTING, expect_match=match), failed, allow_xpass=False)
    assert result.verdict is verdict
    told = "but expected is: does not compile or crashes with 'bad opera.d' in the reason or the output (suite.toml: "
    assert (told in result.reason) is (verdict is Verdict.FAILED)


@pytest.mark.parametrize("stage", [Stage.FETCH, Stage.PARAMETERS, Stage.REFERENCE])
def test_what_is_made_by_the_toolkit_itself_is_never_excused(stage: Stage) -> None:
    step = replace(_EXPECTING, stage=stage)
    for outcome in (Outcome(1), Outcome(None, signal="SIGSEGV")):
        result = judge_process(step, outcome, [], tool="ours")
        assert apply_expectation(step, result, allow_xpass=False) == result


@pytest.mark.parametrize(
    ("outcome", "line", "another"),
    [
        (Outcome(1), "t.mlir:4:7: error: missing GPU target in #hal.executable.target", ", such as sm_89"),
        (Outcome(None, signal="SIGABRT"), "<unknown>:0: error: Unknown CUDA target 'hopper'", ", such as sm_89"),
        (Outcome(1), "<unknown>:0: error: Unknown ROCM target 'gfx9999'", ""),
        (Outcome(None, signal="SIGABRT"), "<unknown>:0: error: Unknown Vulkan target 'foo'", ""),
    ],
)
def test_a_chip_that_the_compiler_does_not_know_is_named_as_the_cause(
    outcome: Outcome, line: str, another: str
) -> None:
    result = judge_process(_EXPECTING, outcome, [line], tool="iree-compile")
    assert f"this IREE does not know that chip: compile for another one{another}" in result.reason
    assert ("NVIDIA" in result.reason) is bool(another)
    assert "this IREE does not know that chip" not in judge_process(_EXPECTING, outcome, ["x"], tool="t").reason


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("c/runtime/src/iree/hal/driver_registry.c:319: NOT_FOUND; no driver 'nodev' registered; …", "no driver nodev"),
        (
            "….c:155: UNAVAILABLE; no HIP library\n  Tried: x; creating driver for device 'hip://1'; resolving",
            "cannot open the device hip://1",
        ),
        ("c/runtime/src/iree/base/tooling/flags.c:428: INVALID_ARGUMENT; flag 'nosuch' not recognized", "'nosuch'"),
        ("iree-compile: for the --iree-opt-level option: 'O9' value not a valid optimization level", "'O9'"),
        ("<unknown>:0: error: unknown custom value for --iree-input-type='zzz' (available: 'onnx')", "'zzz'"),
        ('m.mlir:1:1: error: unregistered device alias "lokal"; ensure it is linked', "the target: unregistered"),
        ("…/file_handle.c:373: NOT_FOUND; failed to open file 'gone.irpa'; resolving", "cannot open gone.irpa"),
        ("c/runtime/src/iree/io/formats/irpa/irpa_parser.c:280: INVALID_ARGUMENT; magic missing; x", "magic missing;"),
        (
            "…/stdio_stream.c:360: OUT_OF_RANGE; end-of-file encountered during read; parsing input `4xf32=@a.bin`; …",
            "cannot use 4xf32=@a.bin: the file is cut short",
        ),
        (
            "….c:726: OUT_OF_RANGE; input data string underflow: dst_i=3; parsing input `4xf32=1,2,3`; parsing",
            "cannot use 4xf32=1,2,3: it is not a value, or not as many as its shape requires",
        ),
    ],
)
def test_mistakes_of_a_spec_are_errors_that_no_expectation_excuses(line: str, said: str) -> None:
    result = judge_process(_EXPECTING, Outcome(1), line.split("\n"), tool="iree-run-module", reason="why")
    assert (result.verdict, result.failure) == (Verdict.ERROR, None)
    assert said in result.reason
    assert apply_expectation(_EXPECTING, result, allow_xpass=False) == result


@pytest.mark.parametrize(
    ("line", "is_mistake"),
    [
        ("qemu-aarch64: unable to find CPU model 'cortex-a5333'", True),
        ("qemu-aarch64: Could not open '/lib/ld-linux-aarch64.so.1': No such file or directory", True),
        ("/a/iree-run-module: error while loading shared libraries: libstdc++.so.6: cannot open", True),
        ("qemu-aarch64: warning: TCG doesn't support requested feature", False),
        ("c/runtime/src/iree/vm/module.c:1: INTERNAL; assertion", False),
    ],
)
def test_a_runner_that_does_not_run_the_tool_is_an_error(line: str, is_mistake: bool) -> None:
    command = Command(("iree-run-module",), "/", runner=("/usr/bin/qemu-aarch64", "-L", "/arm"))
    step = make_step(Stage.THRESHOLD, command=command, target="cpu-aarch64-a53+scalable")
    result = judge_process(step, Outcome(1), [line, ""], tool="iree-run-module")
    text = f"iree-run-module is not run: {line}; see [targets.aarch64-a53].runner"
    assert (result.verdict is Verdict.ERROR, result.reason == text) == (is_mistake, is_mistake)
    here = replace(step, command=replace(command, runner=()))
    assert judge_process(here, Outcome(1), [line], tool="t").verdict is Verdict.FAILED


def test_reasons_with_an_expectation_are_bounded() -> None:
    step = replace(_EXPECTING, expect_failure="so " * 10_000, expect_match="no " * 10_000)
    for outcome in (Outcome(1), Outcome(None, signal="SIGSEGV")):
        assert len(apply_expectation(step, _after(outcome), allow_xpass=False).reason) < 1000
    assert len(apply_expectation(step, Result(Verdict.PASSED), allow_xpass=False).reason) < 1000


def test_a_pass_that_was_not_expected_is_strict_unless_lenient() -> None:
    passed = Result(Verdict.PASSED)
    strict = apply_expectation(_EXPECTING, passed, allow_xpass=False)
    assert strict.verdict is Verdict.XPASSED
    assert "known (suite.toml)" in strict.reason
    lenient = apply_expectation(_EXPECTING, passed, allow_xpass=True)
    assert lenient.verdict is Verdict.PASSED
    assert "known (suite.toml)" in lenient.notes[0]


@pytest.mark.parametrize("verdict", [Verdict.SKIPPED, Verdict.INCONCLUSIVE])
def test_what_was_not_judged_stays_what_it_is(verdict: Verdict) -> None:
    result = Result(verdict, "why")
    assert apply_expectation(_EXPECTING, result, allow_xpass=False) == result


def test_the_record_is_the_journals_and_no_more() -> None:
    full = _after(Outcome(None, signal="SIGBUS"), disk_full=True)
    record = full.as_dict()
    assert (record["signal"], "failure" in record) == ("SIGBUS", False)
    assert {"verdict", "reason", "exit_code", "timed_out", "tail", "notes", "checks", "outputs"} <= record.keys()
    assert "said" not in record
    assert Result.from_dict(record) == full


@pytest.mark.parametrize(
    ("outcome", "disk_full", "failure"),
    [
        (Outcome(None, signal="SIGSEGV"), False, FailureKind.CRASHES),
        (Outcome(None, signal="SIGBUS"), True, None),
        (Outcome(None, signal="SIGTERM", timed_out=True), False, None),
        (Outcome(1), False, FailureKind.DOES_NOT_COMPILE),
    ],
)
def test_how_it_failed_is_read_as_it_was_recorded(
    outcome: Outcome, disk_full: bool, failure: FailureKind | None
) -> None:
    record = _after(outcome, disk_full=disk_full).as_dict()
    assert Result.from_dict(record).failure is failure


def test_the_first_error_is_found_behind_its_path() -> None:
    lines = ["warning: w", "/a b/m.mlir:3:7: error: expected  ')'", "m.mlir:4:1: error: later"]
    assert find_first_error(lines) == "expected ')'"
    assert find_first_error(["an error without a colon"]) == ""
    last_word = "LLVM ERROR: out of registers"
    assert find_first_error(["'zzz' is not a recognized processor", last_word]) == last_word
    crash = judge_process(_STEP, Outcome(None, signal="SIGABRT"), ["Stack dump:", last_word], tool="iree-compile")
    assert crash.reason == f"iree-compile crashed with SIGABRT: {last_word}"


def test_reasons_are_one_bounded_line() -> None:
    assert shorten(" a\n\tb ") == "a b"
    assert len(shorten("x" * 1000)) == 300


def test_an_output_whose_values_differ_has_the_type_that_is_expected() -> None:
    complaints = [
        "[FAILED] result[0]: element at index 3 (28759) does not match the expected (28760); expected that …",
        "[FAILED] result[2]: metadata is 1x64xsi64; expected that the view matches 1x64xi64",
    ]
    assert _find_type_mismatches(complaints) == {2}


@pytest.mark.parametrize(
    ("record", "changed"),
    [
        ("nothing", False),
        ("[]", False),
        ('{"outputs": [{"source": "a.npy"}]}', False),
        ('{"outputs": [{"source": "gone.npy", "sha256": "ab"}]}', False),
        ('{"outputs": [{"source": "a.npy", "sha256": "ab"}]}', True),
    ],
)
def test_only_a_record_with_another_hash_says_that_an_output_has_changed(
    tmp_path: Path, record: str, *, changed: bool
) -> None:
    (tmp_path / "provenance.json").write_text(record)
    (tmp_path / "a.npy").write_bytes(b"values")
    expected = ("--expected_output=@a.npy", "--expected_output=@gone.npy", "--expected_output=2xf32=1 2")
    found = find_changed_goldens(Command(("iree-run-module", *expected), str(tmp_path)))
    said = ["a.npy differs from what was recorded (provenance.json has another hash)"]
    assert found == (said if changed else [])


def test_a_model_that_has_changed_since_its_outputs_were_recorded_is_named(tmp_path: Path) -> None:
    for name in ("m.onnx", "m.data", "outputs/a.npy", "outputs/b.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"as recorded")
    sha256 = hashlib.sha256(b"as recorded").hexdigest()
    outputs = [{"source": name, "sha256": sha256} for name in ("a.npy", "b.npy")]
    model = {"source": "../m.onnx", "sha256": sha256, "data": [{"source": "../m.data", "sha256": sha256}]}
    (tmp_path / "outputs/provenance.json").write_text(json.dumps({"outputs": outputs, "model": model}))
    expected = [f"--expected_output=@outputs/{name}.npy" for name in "ab"]
    command = Command(("iree-run-module", *expected), str(tmp_path))
    assert find_changed_goldens(command) == []
    (tmp_path / "m.data").write_bytes(b"other")
    assert find_changed_goldens(command) == ["m.data has changed since the expected outputs were recorded"]
