"""`golden.update` and `golden.set --from-history`: golden times from the newest segment of a series."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from iree_gauntlet.history.judge import MinEffects, judge
from iree_gauntlet.history.stores import open_history
from iree_gauntlet.measuring.goldens.golden_evidence import Proposal
from iree_gauntlet.measuring.goldens.golden_rules import parse_rule
from iree_gauntlet.records.history_record import HistoryFigure, make_history_file
from iree_gauntlet.settings import Configuration
from iree_gauntlet.upkeep.history_goldens import propose_from_series
from tests.history.builder import run_of
from tests.support.simulated_histories import GOLDEN, make_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.toy_project import Project

_PLACE = "specs/benchmarks/toy/abs_cpu.json: golden_time_ms.desk"


def _level(count: int, seed: int = 1, spread: float = 0.005) -> list[float]:
    values: list[float] = (10 * np.exp(np.random.default_rng(seed).normal(0, spread, count))).tolist()
    return values


def _keep(project: Project, times: Sequence[float], *, sku: str = "desk", busy: Sequence[int] = ()) -> None:
    """Write a history of the project with a run for each time, and its golden."""
    runs = []
    for number, time in enumerate(times):
        run = run_of(number + 1, named="3.9.0" if number < len(times) // 2 else "3.12.0")
        figures = (HistoryFigure("time_ms", time, disturbed=number in busy), HistoryFigure("dispatches", 7.0))
        runs.append(replace(run, cases=(replace(run.cases[0], sku=sku, figures=figures),)))
    store = open_history(str(project.folder / "history"), Configuration(), project.folder)
    store.add(dict(map(make_history_file, runs)))
    project.benchmark(
        golden_time_ms={"desk": 12.0}, golden_time_tolerance_multiplier={"desk": 1.1}, golden_dispatch={"cpu": 1}
    )


def _read_golden(project: Project) -> float:
    golden: float = json.loads((project.benchmarks / "abs_cpu.json").read_text())["golden_time_ms"]["desk"]
    return golden


def _propose(times: Sequence[float], rule: str = "", busy: Sequence[int] = ()) -> Proposal | str:
    series = make_series(times, disturbed=busy)
    return propose_from_series(GOLDEN, series, judge([series], MinEffects()), parse_rule(rule), 0.02).outcome


def test_the_mean_since_the_last_change_becomes_the_golden(project: Project) -> None:
    # Until the 20th run, 12 ms; then 10 ms, with an outlier.
    times = [1.2 * time for time in _level(20)] + [*_level(10, seed=2), 0.1, *_level(9, seed=3)]
    _keep(project, times)
    done = project.gauntlet("golden.update", "--from-history", "--write", "--summary", "goldens.md")
    assert done.code == 0, done.text
    assert f"tighten  {_PLACE} 12 → 9.99 (-16.8 %): mean of 20 runs since its last step (" in done.err, done.text
    assert "; 1 left out as outliers" in done.err
    assert _read_golden(project) == 9.99
    assert '-    "golden_time_ms": {' not in done.out
    summary = (project.folder / "goldens.md").read_text()
    assert "# Golden times from the history" in summary
    assert "1 golden proposed, 0 unchanged" in summary
    rows = [line for line in summary.splitlines() if line.startswith("|") and "golden_time_ms" in line]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[1:3] for row in cells] == [["newest segment", "20"], ["all", "40"]]
    # Before, no run of 12 ms was above 12 × 1.1; now, all of them are above 9.99 × 1.1.
    assert [row[-2:] for row in cells] == [["0 (0.0 %)", "0 (0.0 %)"], ["0 (0.0 %)", "20 (50.0 %)"]]


def test_a_rule_is_the_limit(project: Project) -> None:
    _keep(project, _level(120), busy=[5])
    done = project.gauntlet("golden.update", "--from-history", "--rule", "mean*1.2", "--store", "history")
    assert done.code == 0, done.text
    assert f"{_PLACE} 12 → 10.9" in done.err
    assert "limit 11.99 ms, CPU, 2 cores, Linux 6; 1 left out as disturbed" in done.err
    assert _read_golden(project) == 12.0, "nothing is written unless it is asked for"
    done = project.gauntlet("golden.update", "--from-history", "--rule", "1 in 100", "--write")
    assert done.code == 0, done.text
    assert "1 in 100 of 119 runs (no change is known)" in done.err
    # The golden is written so that the limit is what the rule says.
    assert 10.1 < _read_golden(project) * 1.1 < 10.2
    again = project.gauntlet("golden.update", "--from-history", "--rule", "1 in 100")
    assert "as the history says" in again.err
    assert "nothing to change" in again.err
    again = project.gauntlet("golden.update", "--from-history", "--rule", "1 in 1000")
    assert "119 runs (and 1 on a busy machine: see `gauntlet doctor`), and the rule 1 in 1000 needs 999" in again.err
    assert ": they allow 1 in 120 at most" in again.err


def test_mistakes_are_told(project: Project) -> None:
    project.benchmark(golden_time_ms={"desk": 12.0})
    assert "has no runs yet" in _refuse(project, 2, "--from-history")
    _keep(project, _level(20))
    assert "are for --from-history" in _refuse(project, 2, "--rule", "p99")
    assert "Add --from-history" in _refuse(project, 2, "--store", "history")
    assert "cannot be combined" in _refuse(project, 2, "--from-history", "--last", "3")
    assert "no such rule" in _refuse(project, 2, "--from-history", "--rule", "p42")
    assert "no golden time is selected" in _refuse(project, 5, "--from-history", "--match", "other/*")
    assert "--summary nowhere/x.md" in _refuse(project, 2, "--from-history", "--summary", "nowhere/x.md")
    _keep(project, _level(20), sku="other")
    project.benchmark(golden_time_ms={"lab": 1.0})
    done = project.gauntlet("golden.update", "--from-history")
    assert (done.code, "the history has no time of toy/abs@cpu with the SKU lab" in done.err) == (0, True), done.text


def test_a_run_that_broke_its_golden_counts_as_it_was_measured_first(project: Project) -> None:
    _keep(project, _level(19))
    # Further rounds have found 10 ms.
    figure = HistoryFigure("time_ms", 10.0, "mean", (14.0, 13.0, 15.0), golden=12.0, limit=13.2)
    run = run_of(20)
    run = replace(run, cases=(replace(run.cases[0], sku="desk", figures=(figure,)),))
    store = open_history(str(project.folder / "history"), Configuration(), project.folder)
    store.add(dict([make_history_file(run)]))
    done = project.gauntlet("golden.update", "--from-history", "--rule", "1 in 20", "--summary", "goldens.md")
    assert done.code == 0, done.text
    assert "14.00 | 13.20 |" in (project.folder / "goldens.md").read_text()
    assert "| 1 (5.0 %) |" in (project.folder / "goldens.md").read_text()


def test_a_damaged_file_is_told_and_the_others_count(project: Project) -> None:
    _keep(project, _level(20))
    damaged = min((project.folder / "history").rglob("*.json"))
    damaged.write_bytes(damaged.read_bytes()[:-5])
    done = project.gauntlet("golden.update", "--from-history")
    assert (done.code, f"{damaged.name}: its content does not match its name" in done.err) == (3, True), done.text
    assert "mean of 19 runs" in done.err


def _refuse(project: Project, code: int, *words: str) -> str:
    done = project.gauntlet("golden.update", *words)
    assert done.code == code, done.text
    return done.err


@pytest.mark.parametrize(
    ("times", "rule", "reason"),
    [
        (_level(4), "", "4 runs, and the rule of the mean needs 5"),
        (_level(60), "p99", "60 runs, and the rule p99 needs 99: they allow 1 in 61 at most"),
        ([*_level(30), *(1.2 * time for time in _level(4, 3))], "", "4 runs since its last step (+19.9 %"),
        ([*_level(30), *(1.2 * time for time in _level(2))], "", "ends with 2 runs that differ from the others"),
        ([*_level(100), *(1.2 * time for time in _level(40))], "1 in 100", "40 runs since its last step (+20.0 %"),
        ([*_level(60), *(1.01 * time for time in _level(60, 2))], "p99", "has a step: +1.1 %"),
        ([time * (1 + place / 8000) for place, time in enumerate(_level(120))], "p99", "segment drifts: +"),
        ([*_level(10), 0.0, *_level(10)], "", "run10 has 0 ms, which is impossible"),
    ],
)
def test_a_series_that_says_too_little_gives_no_golden(times: Sequence[float], rule: str, reason: str) -> None:
    outcome = _propose(times, rule)
    assert isinstance(outcome, str), outcome
    assert reason in outcome


def test_less_than_the_least_change_is_no_matter_of_the_mean() -> None:
    outcome = _propose([*_level(60), *(1.01 * time for time in _level(60, 2))])
    assert isinstance(outcome, Proposal)
    assert outcome.value == pytest.approx(10.05, rel=0.01)


def test_busy_runs_do_not_count() -> None:
    outcome = _propose(_level(12), busy=range(8))
    assert outcome == "4 runs (and 8 on a busy machine: see `gauntlet doctor`), and the rule of the mean needs 5"


def _set(project: Project, *words: str, code: int = 0) -> str:
    done = project.gauntlet("golden.set", *words)
    assert done.code == code, done.text
    return done.err


def test_a_spec_gets_its_first_golden_time_from_the_newest_segment(project: Project) -> None:
    _keep(project, [*(1.2 * time for time in _level(20)), *_level(20, seed=2)])
    project.benchmark(golden_dispatch={"cpu": 1})
    words = ("--from-history", "--time-tolerance", "1.1")
    done = _set(project, *words, "--summary", "goldens.md")
    assert _PLACE.replace(": ", "  ") in done
    assert "nothing was written" in done
    _set(project, *words, "--write")
    spec = json.loads((project.benchmarks / "abs_cpu.json").read_text())
    assert spec["golden_time_ms"] == {"desk": pytest.approx(10, rel=0.01)}
    assert spec["golden_time_tolerance_multiplier"] == {"desk": 1.1}
    assert spec["golden_dispatch"] == {"cpu": 1}, "counts come from runs"
    summary = (project.folder / "goldens.md").read_text()
    rows = [line for line in summary.splitlines() if line.startswith("|") and "golden_time_ms" in line]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    # There is no old limit; runs before the step would have been red.
    assert [(row[1], row[7], row[9], row[10]) for row in cells] == [
        ("newest segment", "–", "–", "0 (0.0 %)"),
        ("all", "–", "–", "20 (50.0 %)"),
    ]
    assert "nothing to change" in _set(project, *words), "a golden that is there stays"


def test_a_rule_gives_the_limit_of_a_first_golden(project: Project) -> None:
    _keep(project, _level(120))
    project.benchmark(golden_time_tolerance_multiplier={"desk": 1.5})
    _set(project, "--from-history", "--rule", "1 in 100", "--write")
    # The limit is the same, whatever the multiplier: the spec's, or one that replaces it.
    assert 10.1 < _read_golden(project) * 1.5 < 10.2
    project.benchmark(golden_time_tolerance_multiplier={"desk": 1.5})
    _set(project, "--from-history", "--rule", "mean*1.2", "--time-tolerance", "1.1", "--write")
    assert _read_golden(project) * 1.1 == pytest.approx(12, rel=0.01)
    assert (project.benchmarks / "abs_cpu.json").read_text().count('"golden_time_tolerance_multiplier"') == 1
    assert '"desk": 1.5' not in (project.benchmarks / "abs_cpu.json").read_text()


def test_what_gets_no_first_golden_is_told(project: Project) -> None:
    _keep(project, [*_level(30), *(1.2 * time for time in _level(4, seed=3))])
    project.benchmark()
    assert "not set  specs/benchmarks/toy/abs_cpu.json: golden_time_ms.desk: 4 runs since its last step (+" in _set(
        project, "--from-history"
    )
    _keep(project, _level(5), sku="")
    text = _set(project, "--from-history", "--sku", "lab", code=5)
    assert "no series matches lab" in text
    # Runs without a SKU have no name to list.
    assert "SKUs there: desk." in text
    assert "are for --from-history" in _set(project, "--rule", "p99", code=2)
    assert "cannot be combined" in _set(project, "--from-history", "--size-headroom", "1.25", code=2)
    assert "--time-tolerance 0.5" in _set(project, "--from-history", "--time-tolerance", "0.5", code=2)
    assert "no benchmark spec is selected" in _set(project, "--from-history", "--match", "other/*", code=5)


def test_update_also_moves_a_golden_that_is_there(project: Project) -> None:
    _keep(project, _level(20))
    project.benchmark(golden_time_ms={"desk": 12.0})
    assert "nothing to change" in _set(project, "--from-history")
    _set(project, "--from-history", "--update", "--write")
    assert _read_golden(project) == pytest.approx(10, rel=0.01)


def test_variants_get_first_goldens_of_their_own(project: Project) -> None:
    _keep(project, _level(20))
    run = run_of(21)
    case = replace(run.cases[0], target="cpu+O3", sku="desk")
    runs = [
        replace(run, run=f"run{number}", time=f"2026-05-{number:02}T10:00:00+00:00", cases=(case,))
        for number in range(1, 7)
    ]
    store = open_history(str(project.folder / "history"), Configuration(), project.folder)
    store.add(dict(map(make_history_file, runs)))
    project.benchmark()
    _set(project, "--from-history", "--write")
    spec = json.loads((project.benchmarks / "abs_cpu.json").read_text())
    assert set(spec["golden_time_ms"]) == {"desk"}
    assert spec["variants"] == {"O3": {"golden_time_ms": {"desk": 10.0}}}


def test_the_series_shown_says_which_of_its_runs_a_busy_machine_measured(project: Project) -> None:
    _keep(project, _level(5), busy=(1, 4))
    out = project.gauntlet("history.show", "*time_ms").out
    assert ", 5 runs, 2 on a busy machine (*)" in out, out
    assert " ms * with " in out, out
