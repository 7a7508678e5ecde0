"""Merged runs of several machines: their reports are the same as those of one machine's run."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.event_log import merge_journals
from iree_gauntlet.records.outcome import RunOutcome, read_outcome
from iree_gauntlet.records.run_folder import read_run_options
from iree_gauntlet.tasks.report import report
from tests.support.journal_builder import JournalBuilder
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

_VERDICTS = {"a": "passed", "b": "failed", "c": "xfailed", "d": "passed", "e": "passed"}
_ASKED = {
    "options": {"suite": "cpu", "spec_dir": [], "shard": "1/2", "shard_costs": "costs.json"},
    "defaults": {"model": "*", "targets": ["cpu"], "sku": "", "suite": ""},
    "stages": None,
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def _shard(index: int, count: int, cut: str = "cafe") -> dict[str, Any]:
    return {"index": index, "count": count, "cut": cut, "chains": 5}


def _begun(name: str, submodels: str, **changes: Any) -> JournalBuilder:
    builder = JournalBuilder(run=name)
    for submodel in submodels:
        builder.step("m", submodel, "compile")
        builder.step("m", submodel, "threshold")
    builder.begin(**{"name": name, "kept": _ASKED, **changes})
    return builder


def _results(builder: JournalBuilder, submodels: str) -> None:
    for submodel in submodels:
        verdict = _VERDICTS[submodel]
        builder.result(f"m/{submodel}@cpu:compile", verdict, "" if verdict == "passed" else f"why {submodel}")
        if verdict == "passed":
            builder.result(f"m/{submodel}@cpu:threshold")
        else:
            builder.result(f"m/{submodel}@cpu:threshold", "skipped", "behind")


def _run(folder: Path, submodels: str, seconds: float = 10.0, **changes: Any) -> str:
    builder = _begun(folder.name, submodels, **changes)
    _results(builder, submodels)
    builder.end(1 if "b" in submodels else 0, seconds=seconds)
    builder.write(folder)
    for submodel in submodels:
        log = folder / f"steps/m/{submodel}@cpu/compile/stderr.txt"
        log.parent.mkdir(parents=True)
        log.write_text(submodel)
    return str(folder)


def _merge(*runs: str, into: str = "whole", lenient: bool = False) -> ExitCode:
    return report(runs, into, lenient=lenient)


def _outcome(folder: Path) -> RunOutcome:
    return read_outcome(read_journal(folder / "journal.jsonl"))


def test_the_merged_run_is_what_one_run_would_have_been(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"host": "bench-2", "cpu": "Xeon", "cores": 4}
    one = _run(tmp_path / "one", "ace", 20.0, shard=_shard(1, 2), golden_skus=["mi300"])
    two = _run(tmp_path / "two", "bd", shard=_shard(2, 2), machine=machine, golden_skus=["mi325", "mi300"])
    assert _merge(one, two) is ExitCode.FAILED
    _run(tmp_path / "alone", "abcde", 20.0)
    merged, alone = _outcome(tmp_path / "whole"), _outcome(tmp_path / "alone")
    assert [(step.id, step.verdict, step.reason) for step in merged.steps] == [
        (step.id, step.verdict, step.reason) for step in alone.steps
    ]
    assert (merged.exit_code, merged.state, merged.seconds, merged.suite, merged.resumed) == (
        1,
        "complete",
        20.0,
        "cpu",
        0,
    )
    assert merged.run == "whole"
    assert (merged.machine.host, merged.machine.cpu, merged.machine.cores) == ("bench-1, bench-2", "Xeon", 0)
    for name in ("junit.xml", "summary.md", "summary.json"):
        assert (tmp_path / "whole" / name).stat().st_size
    assert (tmp_path / "whole/steps/m/d@cpu/compile/stderr.txt").read_text() == "d"
    run = read_journal(tmp_path / "whole/journal.jsonl").runs[0]
    assert [(part["run"], part["shard"]["index"], part["exit_code"]) for part in run.merged] == [
        ("one", 1, 0),
        ("two", 2, 1),
    ]
    assert run.golden_skus == ("mi300", "mi325")
    assert read_run_options(tmp_path / "whole").options["shard"] == ""
    assert "note: merged from 2 runs: one, two\n" in capsys.readouterr().err
    # Made again from the merged journal alone.
    assert report(("whole",)) is ExitCode.FAILED


def test_a_missing_share_is_told_and_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = _run(tmp_path / "one", "a", shard=_shard(1, 4))
    four = _run(tmp_path / "four", "d", shard=_shard(4, 4))
    assert _merge(one, four) is ExitCode.ERROR
    printed = capsys.readouterr().err
    assert "note: shards 2, 3 of 4 are missing: this run is incomplete\n" in printed
    assert report(("whole",)) is ExitCode.ERROR


def test_a_killed_share_shows_in_its_own_steps_alone(tmp_path: Path) -> None:
    killed = _begun("killed", "ab")
    _results(killed, "a")
    killed.start("m/b@cpu:compile")
    killed.write(tmp_path / "killed")
    stopped = _begun("stopped", "de")
    _results(stopped, "d")
    stopped.end(0)
    stopped.write(tmp_path / "stopped")
    assert _merge("killed", "stopped") is ExitCode.ERROR
    merged = _outcome(tmp_path / "whole")
    assert merged.state == "unfinished"
    verdicts = {step.id.removeprefix("m/"): str(step.verdict) for step in merged.steps}
    assert verdicts == {
        "a@cpu:compile": "passed",
        "a@cpu:threshold": "passed",
        "b@cpu:compile": "error",
        "b@cpu:threshold": "error",
        "d@cpu:compile": "passed",
        "d@cpu:threshold": "passed",
        "e@cpu:compile": "skipped",
        "e@cpu:threshold": "skipped",
    }
    assert {step.reason for step in merged.steps if "/b@" in step.id} >= {"the run was killed while this step ran"}


def test_a_resumed_share_counts_once(tmp_path: Path) -> None:
    builder = _begun("resumed", "ab")
    _results(builder, "ab")
    # Begun once more, and killed in it: its earlier result does not count.
    builder.begin(name="resumed", resumed=True, kept=_ASKED, again=("m/b@cpu:compile",))
    builder.start("m/b@cpu:compile")
    builder.write(tmp_path / "resumed")
    _run(tmp_path / "other", "c")
    _merge("resumed", "other")
    merged = _outcome(tmp_path / "whole")
    assert {step.id: str(step.verdict) for step in merged.steps}["m/b@cpu:compile"] == "error"
    assert merged.resumed == 0


def test_an_interrupted_share_interrupts_the_whole(tmp_path: Path) -> None:
    builder = _begun("one", "a")
    builder.end(130, interrupted=True)
    builder.write(tmp_path / "one")
    _run(tmp_path / "two", "c")
    assert _merge("one", "two") is ExitCode.INTERRUPTED
    steps = _outcome(tmp_path / "whole").steps
    assert {step.reason for step in steps if "/a@" in step.id} == {"the run was interrupted before this step started"}


def test_of_what_two_runs_did_the_first_result_counts(tmp_path: Path) -> None:
    later, earlier = _begun("later", "a"), _begun("earlier", "a")
    later.now += timedelta(hours=1)
    _results(later, "a")
    earlier.result("m/a@cpu:compile", "failed", "why")
    (tmp_path / JOURNAL).write_text(merge_journals(later.opening, later.steps, [later.record, earlier.record]))
    merged = read_journal(tmp_path / JOURNAL)
    assert merged.results["m/a@cpu:compile"].reason == "why"
    assert merged.starts["m/a@cpu:compile"] == earlier.record.starts["m/a@cpu:compile"]


def test_a_step_in_which_one_run_was_killed_is_not_what_another_has_skipped(tmp_path: Path) -> None:
    killed, complete = _begun("killed", "a"), _begun("complete", "a")
    killed.start("m/a@cpu:compile")
    complete.end(0)
    (tmp_path / JOURNAL).write_text(merge_journals(killed.opening, killed.steps, [killed.record, complete.record]))
    assert set(read_journal(tmp_path / JOURNAL).results) == {"m/a@cpu:threshold"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"suite": "other"}, "is a run of the suite 'cpu', .*two one of 'other'"),
        (
            {"toolchain": {"compiler": "3.12.0", "identity": "bad"}},
            r"IREE 3\.13\.0rc20261016 \(c0ffee\), .*3\.12\.0 \(bad\)",
        ),
        ({"shard": _shard(2, 3)}, "were not parts of the same run"),
        ({"shard": _shard(2, 2, "beef")}, "were not parts of the same run"),
        ({"shard": _shard(1, 2)}, "are both shard 1/2"),
        ({"kind": "micro"}, "two is not a run of spec files"),
    ],
)
def test_runs_that_are_no_parts_of_one_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    one = _run(tmp_path / "one", "a", shard=_shard(1, 2))
    two = _run(tmp_path / "two", "b", **{"shard": _shard(2, 2), **changes})
    with pytest.raises(UsageError, match=message):
        _merge(one, two)
    assert not (tmp_path / "whole").exists()


def test_runs_of_two_irees_are_merged_by_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = _run(tmp_path / "one", "a")
    two = _run(tmp_path / "two", "c", toolchain={"compiler": "3.12.0", "identity": "bad"})
    assert _merge(one, two, lenient=True) is ExitCode.OK
    assert "the runs are of 2 different IREEs: 3.13.0rc20261016 (c0ffee), 3.12.0 (bad)" in capsys.readouterr().err
    assert _outcome(tmp_path / "whole").toolchain.compiler == "3.13.0rc20261016, 3.12.0"


def test_mistakes(tmp_path: Path) -> None:
    one, two = _run(tmp_path / "one", "ab"), _run(tmp_path / "two", "bd")
    with pytest.raises(UsageError, match=r"m/b@cpu is in .*one and in .*two"):
        _merge(one, two)
    with pytest.raises(UsageError, match="one is given twice"):
        _merge(one, "one")
    with pytest.raises(UsageError, match="there is no run gone"):
        _merge(one, "gone")
    with pytest.raises(UsageError, match="reports of one run, not of 2"):
        report((str(one), str(two)))
    _run(tmp_path / "three", "c")
    _merge(one, "three")
    with pytest.raises(UsageError, match="whole already contains a run"):
        _merge(one, "three")


def test_folders_with_blanks_in_their_names(tmp_path: Path) -> None:
    _run(tmp_path / "my run", "a")
    assert report(("my run",)) is ExitCode.OK
    _run(tmp_path / "two", "c")
    assert report(("my run", "two"), "the whole") is ExitCode.OK
    assert json.loads((tmp_path / "the whole" / "summary.json").read_text())["run"] == "the whole"


def test_a_log_outside_of_its_run_is_left_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    builder = _begun("one", "a")
    builder.result("m/a@cpu:compile", log="../secret")
    builder.result("m/a@cpu:threshold", log="steps/gone.txt")
    builder.end(0)
    builder.write(tmp_path / "one")
    assert _merge("one", into="x/whole") is ExitCode.OK
    assert not (tmp_path / "x" / "secret").exists()


@pytest.mark.iree
def test_shards_of_a_real_run_are_put_together_again(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.add("neg")
    (project.folder / "costs.json").write_text('{"toy/abs@cpu": 1, "toy/neg@cpu": 2}')
    selection = ("--model", "toy", "--target", "cpu", "--shard-costs", "costs.json")
    listed = project.gauntlet("list", *selection, "--shard", "2/2", "--format", "json")
    assert [row["submodel"] for row in json.loads(listed.out)] == ["abs"]
    for shard, name in (("1/2", "neg"), ("2/2", "abs")):
        folder = f"runs/part {name}"
        done = project.gauntlet("run", *selection, "--stages", "compile", "--shard", shard, "--run-dir", folder)
        assert done.code == ExitCode.OK, done.text
        assert [chain.id for chain in _outcome(project.folder / folder).chains] == [f"toy/{name}@cpu"]
    done = project.gauntlet("report", "part neg", "runs/part abs", "--merge", "runs/whole")
    assert done.code == ExitCode.OK, done.text
    assert [chain.id for chain in _outcome(project.folder / "runs" / "whole").chains] == ["toy/abs@cpu", "toy/neg@cpu"]
