"""Changes since the previous run, and the durations of its steps."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.records.run_before import find_changes_since, read_previous_seconds
from iree_gauntlet.reports.experiment_reports import make_reports, write_reports
from tests.support.journal_builder import JournalBuilder, make_check, make_comparison, make_samples

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.records.run_before import PreviousRun


def _run(folder: Path, name: str, *, ms: float = 9.0, dispatches: int = 76, **changes: Any) -> Path:
    builder = JournalBuilder(run=name)
    builder.now = builder.now.replace(day=int(name[-2:]))
    step = builder.step("m", "a", "benchmark")
    builder.begin(**{key: value for key, value in changes.items() if key == "suite"})
    for model in changes.get("more", ()):
        builder.step(model, "a", "compile")
    result: dict[str, Any] = {
        "samples": make_samples(ms),
        "checks": [make_check("dispatch_count", dispatches, changes.get("limit", 100))],
        "outputs": changes.get("outputs", [make_comparison(atol=changes.get("atol", 1e-4))]),
        "statistics": {"disturbed": ["other work"]} if changes.get("disturbed") else {},
    }
    if changes.get("reached", True):
        builder.result(step, changes.get("verdict", "passed"), seconds=changes.get("seconds", 1.5), **result)
    if changes.get("ended", True):
        builder.end(seconds=2.0)
    path = builder.write(folder / name)
    write_reports(path)
    return path


def _changed(run: Path) -> PreviousRun | None:
    return find_changes_since(read_outcome(read_journal(run / JOURNAL)), run)


def test_verdicts_counts_and_large_differences_of_times_are_named(tmp_path: Path) -> None:
    _run(tmp_path, "run-20")
    found = _changed(_run(tmp_path, "run-21", ms=12.0, dispatches=77, verdict="failed"))
    assert found is not None
    assert (found.run, found.compiler) == ("run-20", "3.13.0rc20261016")
    assert [change[1:4] for change in found.changes] == [
        ("verdict", "passed", "failed"),
        ("time ms", "9.00", "12.00"),
        ("dispatches", "76", "77"),
    ]
    assert [None if change[4] is None else round(change[4], 3) for change in found.changes] == [None, 0.333, 0.013]
    text = (tmp_path / "run-21" / "summary.md").read_text()
    assert "## Changed since run run-20, IREE 3.13.0rc20261016" in text
    assert "| `m/a@cpu` | dispatches | 76 | 77 | +1.32 % |" in text


def _time(folder: Path, name: str, times: Mapping[str, float], *, key: str = "aa", options: str = "") -> Path:
    builder = JournalBuilder(run=name)
    builder.now = builder.now.replace(day=int(name[-2:]))
    steps = {model: [builder.step(model, "a", stage) for stage in ("compile", "benchmark")] for model in times}
    builder.begin()
    for model, (compile_step, benchmark_step) in steps.items():
        builder.result(compile_step, cache={"hit": True, "key": f"{key}-{model}", "reason": ""})
        builder.result(benchmark_step, samples=make_samples(times[model]))
        builder.lines[-1]["command"] = f"iree-benchmark-module --module=/{name}/m.vmfb {options}"
    builder.end(seconds=2.0)
    path = builder.write(folder / name)
    write_reports(path)
    return path


def test_times_of_the_same_modules_are_one_line_on_the_machine(tmp_path: Path) -> None:
    _time(tmp_path, "run-20", {"a": 10.0, "b": 10.0, "c": 10.0, "d": 10.0})
    run = _time(tmp_path, "run-21", {"a": 11.1, "b": 13.861, "c": 12.0, "d": 10.5})
    found = _changed(run)
    assert found is not None
    assert found.changes == ()
    assert [change[0] for change in found.machine_changes] == ["b/a@cpu", "c/a@cpu", "a/a@cpu"]
    line = "same modules: the machine was slower, 3 times by 10 % or more, median +20 %"
    markdown = (run / "summary.md").read_text()
    assert markdown.index(line) < markdown.index("<summary>times of the same modules</summary>")
    assert "| `b/a@cpu` | time ms | 10.00 | 13.86 | +38.61 % |" in markdown
    console = io.StringIO()
    make_reports(run).print(run, console, environ={})
    assert line in console.getvalue()
    assert "13.86 " not in console.getvalue().partition("Changed since")[2]
    mixed = _time(tmp_path, "run-22", {"a": 10.0, "b": 30.0, "c": 12.0, "d": 10.5})
    assert "the machine was less steady, 2 times" in (mixed / "summary.html").read_text()


@pytest.mark.parametrize("changed", [{"key": "bb"}, {"options": "--task_topology_max_group_count=1"}])
def test_times_of_other_modules_or_options_stand_open(changed: dict[str, str], tmp_path: Path) -> None:
    _time(tmp_path, "run-20", {"a": 10.0, "b": 10.0})
    found = _changed(_time(tmp_path, "run-21", {"a": 12.0, "b": 13.0}, **changed))
    assert found is not None
    assert [change[:2] for change in found.changes] == [("b/a@cpu", "time ms"), ("a/a@cpu", "time ms")]
    assert found.machine_changes == ()


def _count(folder: Path, name: str, dispatches: int, outside: int) -> Path:
    builder = JournalBuilder(run=name)
    builder.now = builder.now.replace(day=int(name[-2:]))
    step = builder.step("m", "a", "count")
    builder.begin()
    whole = {"instructions": dispatches + outside, "counter": "valgrind 3", "cpu": "x86-64-v3,-fma"}
    builder.result(step, statistics={**whole, "instructions_outside": outside})
    builder.end(seconds=2.0)
    path = builder.write(folder / name)
    write_reports(path)
    return path


def test_instructions_in_dispatches_and_outside_are_held_apart(tmp_path: Path) -> None:
    _count(tmp_path, "run-20", 555_000, 100_000)
    hidden = _changed(_count(tmp_path, "run-21", 555_760, 99_236))
    assert hidden is not None
    assert [change[1:4] for change in hidden.changes] == [("instructions in dispatches", "555,000", "555,760")]
    outside = _changed(_count(tmp_path, "run-22", 555_760, 102_000))
    assert outside is not None
    assert [change[1:4] for change in outside.changes] == [("instructions outside of dispatches", "99,236", "102,000")]


def test_noise_is_no_change(tmp_path: Path) -> None:
    _run(tmp_path, "run-20")
    found = _changed(_run(tmp_path, "run-21", ms=9.5))
    assert found is not None
    assert found.changes == ()
    assert "Changed since" not in (tmp_path / "run-21" / "summary.md").read_text()


def test_what_a_spec_allows_may_have_changed(tmp_path: Path) -> None:
    _run(tmp_path, "run-20")
    found = _changed(_run(tmp_path, "run-21", limit=70, atol=1e-6, verdict="failed"))
    assert found is not None
    assert [change[1:4] for change in found.changes] == [
        ("verdict", "passed", "failed"),
        ("limit of dispatches", "100", "70"),
        ("tolerance", "0.0001 + 1e-05·|expected|", "1e-06 + 1e-05·|expected|"),
    ]


def test_the_tolerance_of_another_output_is_no_change(tmp_path: Path) -> None:
    outputs = [make_comparison(index=0, atol=0.0, rtol=0.0), make_comparison(index=1)]
    _run(tmp_path, "run-20", outputs=[{**outputs[0], "passed": False}, outputs[1]], verdict="failed")
    found = _changed(_run(tmp_path, "run-21", outputs=outputs))
    assert found is not None
    assert [change[1] for change in found.changes] == ["verdict"]


def test_a_limit_of_what_was_not_reached_has_not_changed(tmp_path: Path) -> None:
    _run(tmp_path, "run-20")
    found = _changed(_run(tmp_path, "run-21", reached=False, ended=False))
    assert found is not None
    assert [change[1] for change in found.changes] == ["verdict"]


def test_a_limit_of_a_stage_that_was_left_out_has_not_changed(tmp_path: Path) -> None:
    for name, stages in (("run-20", ("compile", "compstat")), ("run-21", ("compile",))):
        builder = JournalBuilder(run=name)
        builder.now = builder.now.replace(day=int(name[-2:]))
        steps = {stage: builder.step("m", "a", stage) for stage in ("compile", *stages[1:])}
        builder.begin()
        for stage, step in steps.items():
            checks = [make_check("dispatch_count", 76, 100)] if stage == "compstat" else []
            builder.result(step, checks=checks, statistics={"dispatch_count": 76})
        builder.end(seconds=2.0)
        write_reports(builder.write(tmp_path / name))
        previous = find_changes_since(read_outcome(read_journal(tmp_path / name / JOURNAL)), tmp_path / name)
    assert previous is not None
    assert previous.changes == ()


def test_a_limit_that_a_spec_has_no_more_has_changed(tmp_path: Path) -> None:
    _run(tmp_path, "run-20")
    found = _changed(_run(tmp_path, "run-21", limit=None))
    assert found is not None
    assert [change[1:4] for change in found.changes] == [("limit of dispatches", "100", "none")]


@pytest.mark.parametrize("which", ["before", "now"])
def test_a_time_that_other_work_disturbed_is_no_change(which: str, tmp_path: Path) -> None:
    _run(tmp_path, "run-20", disturbed=which == "before")
    found = _changed(_run(tmp_path, "run-21", ms=12.0, dispatches=77, disturbed=which == "now"))
    assert found is not None
    assert [change[1] for change in found.changes] == ["dispatches"]


def test_the_run_before_has_all_models(tmp_path: Path) -> None:
    _run(tmp_path, "run-19", dispatches=75, more=["b"])
    _run(tmp_path, "run-20", dispatches=1)
    found = _changed(_run(tmp_path, "run-21", more=["b"]))
    assert found is not None
    assert found.run == "run-19"


def test_another_suite_a_later_run_and_one_that_did_not_end_are_not_the_run_before(tmp_path: Path) -> None:
    own = _run(tmp_path, "run-21")
    _run(tmp_path, "run-22", dispatches=1)
    _run(tmp_path, "run-20", dispatches=1, ended=False)
    _run(tmp_path, "run-19", dispatches=1, suite="releases")
    broken = _run(tmp_path, "run-18") / "summary.json"
    broken.write_text(broken.read_text()[:-300])
    assert _changed(own) is None
    _run(tmp_path, "run-17", dispatches=75)
    found = _changed(own)
    assert found is not None
    assert found.run == "run-17"


@pytest.mark.parametrize("chains", ["null", "7", '[{"id": "m/a@cpu"}]', '["m"]'])
def test_a_summary_that_others_have_changed_is_passed_over(chains: str, tmp_path: Path) -> None:
    _run(tmp_path, "run-19", dispatches=75)
    path = _run(tmp_path, "run-20") / "summary.json"
    text = path.read_text()
    begin = text.index('"chains": ')
    path.write_text(text[:begin] + f'"chains": {chains}\n}}')
    found = _changed(_run(tmp_path, "run-21"))
    assert found is not None
    assert found.run == "run-19"


def test_the_run_before_is_the_one_that_began_last_whatever_its_name(tmp_path: Path) -> None:
    """As in a matrix, whose folders have the names of releases."""
    _run(tmp_path, "3.9.0-19", dispatches=75)
    _run(tmp_path, "3.12.0-20", dispatches=76)
    found = _changed(_run(tmp_path, "3.13.0-21", dispatches=77))
    assert found is not None
    assert found.run == "3.12.0-20"


def test_what_each_step_took_is_known_for_the_next_run(tmp_path: Path) -> None:
    assert read_previous_seconds("cpu", tmp_path / "next") == {}
    _run(tmp_path, "run-20", seconds=7.0)
    assert read_previous_seconds("cpu", tmp_path / "next") == {"m/a@cpu:benchmark": 7.0}
    assert read_previous_seconds("releases", tmp_path / "next") == {}
