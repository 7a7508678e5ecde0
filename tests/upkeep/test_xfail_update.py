"""A suite's expected failures: updated from a run, while the rest of the suite's text stays the same."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.requests import RunRequest
from iree_gauntlet.stages import Stage
from iree_gauntlet.upkeep.upkeep_requests import XfailUpdateRequest
from iree_gauntlet.upkeep.xfail_update import NewFailure, replace_expected_failures, update
from tests.support.journal_builder import JournalBuilder

if TYPE_CHECKING:
    from pathlib import Path

_SUITE = """# Our models.
name = "ours"
target = "cpu"   # here

[[expect_failure]]  # the first
case = "toy/gru"
stage = "compile"
reason = "no bidirectional GRU (issue 7)"

# Between the two.
[[expect_failure]]
case = "wide/*"
stage = "threshold"
reason = "half of them are off"

[[include]]
model = "toy"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("specs", "suites", "runs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "suites" / "ours.toml").write_text(_SUITE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(
    project: Path,
    verdicts: dict[tuple[str, str], str],
    *,
    ended: bool = True,
    suite: str = "ours",
    why: str = "",
    **result: Any,
) -> None:
    builder = JournalBuilder(run="run-1")
    steps = {
        builder.step(case.partition("/")[0], case.partition("/")[2], stage): (
            verdict,
            why or f"{stage} of {case}: failed to\n legalize",
        )
        for (case, stage), verdict in verdicts.items()
    }
    asked = {"options": {"suite": "ours"}, "defaults": {"targets": ["cpu"]}, "stages": None}
    builder.begin(name="run-1", suite=suite, kept=asked)
    for step, (verdict, reason) in steps.items():
        builder.result(step, verdict, "" if verdict.endswith("passed") else reason, **result)
    if ended:
        builder.end(1)
    builder.write(project / "runs" / "run-1")


def _update(**asked: Any) -> ExitCode:
    return update(XfailUpdateRequest(**asked), RunRequest())


def _failures(project: Path) -> list[tuple[str, ...]]:
    table = tomllib.loads((project / "suites" / "ours.toml").read_text())
    return [tuple(item.values()) for item in table.get("expect_failure", [])]


def test_a_reason_is_what_the_compiler_said_of_which_operator(project: Path) -> None:
    printed = '%24 = "torch.operator"(%22, %23) <{name = "onnx.AffineGrid"}> {torch.onnx.align_corners = 1 : si64}'
    said = f"failed to legalize operation 'torch.operator' that was explicitly marked illegal: {printed} : (!torch"
    why = f"iree-compile failed with exit code 1: {said}"
    _run(project, {("toy/lstm", "compile"): "failed"}, why=why)
    assert _update(write=True) is ExitCode.OK
    reason = _failures(project)[-1][2]
    said = "failed to legalize operation 'torch.operator' that was explicitly marked illegal (onnx.AffineGrid)"
    assert reason.removesuffix(")").rpartition(" (IREE ")[0] == said


def test_what_passes_now_goes_and_what_fails_newly_comes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(project, {("toy/gru", "compile"): "xpassed", ("toy/lstm", "compile"): "failed"})
    assert _update(write=True) is ExitCode.OK
    printed = capsys.readouterr().err
    assert "passes now; the reason was: no bidirectional GRU (issue 7)" in printed
    assert "stays    suites/ours.toml: expect_failure[1] (wide/*, threshold): was not run" in printed
    assert _failures(project) == [
        ("wide/*", "threshold", "half of them are off"),
        ("toy/lstm", "compile", "compile of toy/lstm: failed to legalize (IREE 3.13.0)"),
    ]
    text = (project / "suites" / "ours.toml").read_text()
    head = '# Our models.\nname = "ours"\ntarget = "cpu"   # here\n\n# Between the two.\n[[expect_failure]]\n'
    assert text.startswith(f'{head}case = "wide/*"')
    assert '[[include]]\nmodel = "toy"\n\n[[expect_failure]]\ncase = "toy/lstm"' in text


def test_a_byte_order_mark_of_a_suite_stays(project: Path) -> None:
    path = project / "suites" / "ours.toml"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    _run(project, {("toy/gru", "compile"): "xpassed"})
    assert _update(write=True) is ExitCode.OK
    assert path.read_bytes().startswith(b'\xef\xbb\xbf# Our models.\nname = "ours"')
    assert b"toy/gru" not in path.read_bytes()


def test_a_new_entry_has_the_kind_and_what_the_tool_says_every_time(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "iree-compile failed with exit code 1: failed to legalize operation 'a.b': %0 = \"a.b\"(%1) : (tensor<4xf32>)"
    _run(project, {("toy/lstm", "compile"): "failed"}, why=why, failure="does not compile")
    _update(write=True)
    *_, kind, match = _failures(project)[-1]
    assert (kind, match) == ("does not compile", "failed to legalize operation 'a.b'")
    assert "add      toy/lstm, compile: does not compile: failed to legalize" in capsys.readouterr().err
    _run(project, {("toy/big", "threshold"): "failed"}, why="output 0: 3 of 4 values differ", failure="wrong numbers")
    _update(write=True)
    assert _failures(project)[-1][3:] == ("wrong numbers",), "its figures are not the same every time"


def test_what_fails_otherwise_than_expected_takes_the_place_of_its_entry(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "iree-compile crashed with SIGSEGV; crashes, but expected is: does not compile (suites/ours.toml: expect_fai"
    verdicts = {("toy/gru", "compile"): "error", ("wide/a", "threshold"): "error", ("wide/b", "threshold"): "xfailed"}
    _run(project, verdicts, why=why, signal="SIGSEGV", failure="crashes")
    _update(write=True)
    printed = capsys.readouterr().err
    assert "change   toy/gru, compile: crashes: iree-compile crashed with SIGSEGV" in printed
    assert "(wide/*, threshold): wide/a fails otherwise (crashes): write a narrower case" in printed
    glob, gru = _failures(project)
    assert glob[0] == "wide/*"
    assert gru[:2] == ("toy/gru", "compile")
    assert gru[3:] == ("crashes", "iree-compile crashed with SIGSEGV")


def test_a_glob_of_which_some_pass_stays(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(project, {("wide/a", "threshold"): "xpassed", ("wide/b", "threshold"): "xfailed"})
    _update(write=True)
    assert "1 of 2 pass now: write a narrower case" in capsys.readouterr().err
    assert (project / "suites" / "ours.toml").read_text() == _SUITE


@pytest.mark.parametrize(
    ("stage", "verdict", "message"),
    [
        ("compile", "error", "an error is not a failure of the product"),
        ("benchmark", "failed", "golden.update is for figures"),
    ],
)
def test_what_is_no_expected_failure_is_told_and_not_added(
    project: Path, capsys: pytest.CaptureFixture[str], stage: str, verdict: str, message: str
) -> None:
    _run(project, {("toy/x", stage): verdict})
    _update()
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert "nothing to change" in captured.err


def test_mistakes(project: Path) -> None:
    with pytest.raises(UsageError, match="no run in"):
        _update()
    with pytest.raises(UsageError, match="--run nope: no such run"):
        _update(run="nope")
    _run(project, {("toy/x", "compile"): "failed"}, ended=False)
    with pytest.raises(UsageError, match="did not finish"):
        _update()
    _run(project, {("toy/x", "compile"): "failed"}, suite="other")
    with pytest.raises(UsageError, match="is a run of the suite 'other'"):
        _update()
    _run(project, {("toy/x", "compile"): "failed"}, suite="custom")
    journal = project / "runs" / "run-1" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[0]["kept"]["options"]["suite"] = ""
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match="did not run a suite"):
        _update()


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)


_ENTRIES = st.builds(NewFailure, _TEXT, st.sampled_from(Stage), _TEXT, st.just("") | _TEXT, st.just("") | _TEXT)


@given(entries=st.lists(_ENTRIES, max_size=4), removed=st.sets(st.integers(0, 3)), added=st.lists(_ENTRIES, max_size=3))
def test_the_list_is_what_it_should_be_whatever_stands_in_it(
    entries: list[NewFailure], removed: set[int], added: list[NewFailure]
) -> None:
    text = replace_expected_failures(
        'name = "x" # n\n\n# one\n[[include]]\nmodel = "m"\n', removals=(), additions=entries
    )
    removed = {index for index in removed if index < len(entries)}
    changed = replace_expected_failures(text, removals=removed, additions=added)
    found = tomllib.loads(changed)
    kept = [entry for index, entry in enumerate(entries) if index not in removed]
    expected = [{name: value for name, value in asdict(entry).items() if value} for entry in [*kept, *added]]
    assert found.get("expect_failure", []) == expected
    assert found["include"] == [{"model": "m"}]
    assert changed.startswith('name = "x" # n\n\n# one\n')
