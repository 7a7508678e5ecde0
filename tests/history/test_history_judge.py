"""A history's judgement of its series: steps, drifts, recovered losses, and remarks of people."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from iree_gauntlet.dialects.configuration_file import Mark, read_marks
from iree_gauntlet.document import Table, format_cell
from iree_gauntlet.errors import ExitCode, SpecError
from iree_gauntlet.history.index import HistoryIndex
from iree_gauntlet.history.judge import (
    MinEffects,
    add_confirmations,
    apply_marks,
    find_unused_marks,
    judge,
    judge_verdicts,
    remove_invalid,
)
from iree_gauntlet.history.stores import open_history
from iree_gauntlet.records.history_record import (
    FailureRate,
    FigureConfirmation,
    Finding,
    FindingKind,
    HistoryMachine,
    HistoryOutcome,
    IreeVersion,
    Point,
    Series,
    SeriesKey,
    VerdictPoint,
    make_history_file,
)
from iree_gauntlet.reports.history_page import make_changes_document, make_history_page, make_runs_document
from iree_gauntlet.settings import Configuration
from tests.history.builder import run_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def series(values: Sequence[float], figure: str = "time_ms", *, more: bool = False, name: str = "toy") -> Series:
    key = SeriesKey(name, "abs", "cpu", figure, "", "f", "CPU", more)
    points = tuple(
        Point(f"{place}.json", f"run{place}", f"2026-03-{place % 28 + 1:02}T10:00:00+00:00", f"3.{place}.0", "", value)
        for place, value in enumerate(values)
    )
    return Series(key, points)


def noise(count: int, seed: int = 0) -> list[float]:
    values: list[float] = (10 * np.exp(np.random.default_rng(seed).normal(0, 0.005, count))).tolist()
    return values


def found(*given: Series) -> tuple[Finding, ...]:
    return judge(given, MinEffects())


def stepped(size: float, before: int = 20, after: int = 10) -> list[float]:
    return [value * (1 + size if place >= before else 1) for place, value in enumerate(noise(before + after))]


@pytest.mark.parametrize(("size", "kind"), [(0.05, FindingKind.REGRESSION), (-0.05, FindingKind.IMPROVEMENT)])
def test_a_step_of_a_time_is_one_or_the_other(size: float, kind: FindingKind) -> None:
    (finding,) = found(series(stepped(size)))
    assert (finding.kind, finding.index, finding.suspected, finding.runs) == (kind, 20, False, 10)
    assert finding.change == pytest.approx(size, abs=0.01)
    assert (finding.point_before.run, finding.point_after.run) == ("run19", "run20")


def repeated(values: Sequence[float], each: int) -> Series:
    """Runs of one IREE after the other, so many of each."""
    item = series(values)
    return replace(
        item, points=tuple(replace(point, iree=f"3.{place // each}.0") for place, point in enumerate(item.points))
    )


@pytest.mark.parametrize("late", [0, 1])
def test_a_step_among_runs_of_one_iree_belongs_to_where_that_came(late: int) -> None:
    # The first run of 3.2.0 is as fast as those before, by chance.
    (finding,) = found(repeated(stepped(0.05, 10 + late, 10 - late), 5))
    assert (finding.point_before.iree, finding.point_after.iree, finding.index) == ("3.1.0", "3.2.0", 10)
    assert not finding.same_iree


def test_a_step_in_the_middle_of_runs_of_one_iree_is_not_the_irees() -> None:
    (finding,) = found(repeated(stepped(0.05, 20, 20), 8))
    assert (finding.index, finding.same_iree) == (20, True)
    outcome = HistoryOutcome("history", 40, (), (finding,))
    assert outcome.exit_code is ExitCode.FAILED, "somebody has to look all the same"
    text = "".join(map(str, make_changes_document(outcome).blocks))
    assert "† the IREE is the same before and after" in text


def test_where_more_is_better_a_fall_is_the_loss() -> None:
    (finding,) = found(series(stepped(-0.05), "samples", more=True))
    assert finding.kind is FindingKind.REGRESSION
    (finding,) = found(series([100, 90], "dispatches", more=True))
    assert finding.kind is FindingKind.REGRESSION


def test_with_few_runs_behind_it_a_step_is_suspected() -> None:
    (finding,) = found(series(stepped(0.1, 20, 4)))
    assert finding.suspected
    assert outcome(finding).exit_code is ExitCode.INCONCLUSIVE


def outcome(*findings: Finding, problems: tuple[str, ...] = ()) -> HistoryOutcome:
    return HistoryOutcome("h", 1, (), findings, problems)


def test_the_worst_decides_how_a_check_ends() -> None:
    (worse,), (better,) = found(series(stepped(0.05))), found(series(stepped(-0.05)))
    assert outcome(better).exit_code is ExitCode.OK
    assert outcome(worse, better).exit_code is ExitCode.FAILED
    assert outcome(replace(worse, undone=True)).exit_code is ExitCode.OK
    assert outcome(replace(worse, accepted="meant")).exit_code is ExitCode.OK
    assert outcome(better, problems=("damaged",)).exit_code is ExitCode.ERROR


def test_what_is_exact_changes_with_every_change() -> None:
    changes = found(series([97, 97, 97, 55, 55, 55], "dispatches"))
    assert [(item.kind, item.index, item.old, item.new, item.p_value) for item in changes] == [
        (FindingKind.IMPROVEMENT, 3, 97, 55, None)
    ]
    assert found(series([5.0] * 8, "size_bytes")) == ()
    (zero,) = found(series([0.0, 0.0, 1e-6], "max_error"))
    assert (zero.kind, zero.change) == (FindingKind.REGRESSION, math.inf)


def test_a_few_bytes_are_no_change_of_a_size_until_they_add_up() -> None:
    changes = found(series([1e6 + 300 * place for place in range(9)], "size_bytes"))
    assert [(item.index, item.old, item.new) for item in changes] == [(4, 1e6, 1.0012e6), (8, 1.0012e6, 1.0024e6)]
    assert found(series([1e6, 1e6 + 999, 1e6], "size_bytes")) == ()


def test_what_lies_outside_of_dispatches_changes_by_a_share_and_a_number() -> None:
    assert found(series([40_000, 41_999, 40_000], "instructions_outside")) == ()
    assert found(series([900_000, 908_900, 900_000], "instructions_outside")) == ()
    (change,) = found(series([40_000, 40_000, 42_100, 42_200], "instructions_outside"))
    assert (change.kind, change.index, change.undone) == (FindingKind.REGRESSION, 2, False)


@pytest.mark.parametrize("figure", ["instructions", "instructions_in_dispatches", "instructions (hardware, znver4)"])
def test_instructions_change_from_a_thousandth_on(figure: str) -> None:
    assert found(series([1e6, 1e6 + 990, 1e6 - 5, 1e6], figure)) == ()
    (change,) = found(series([1e6, 1e6 + 7, 1e6 + 1100, 1e6 + 1093], figure))
    assert (change.kind, change.index, change.old, change.new) == (FindingKind.REGRESSION, 2, 1e6, 1e6 + 1100)
    assert change.p_value is None


def test_what_changes_at_every_run_is_judged_as_noise() -> None:
    assert found(series([value * 1e-6 for value in noise(30)], "max_error")) == ()


def test_what_came_back_is_won_back() -> None:
    values = [*noise(20, 1), *[value * 1.1 for value in noise(20, 2)], *noise(20, 3)]
    kinds = {item.kind: item.undone for item in found(series(values))}
    assert kinds == {FindingKind.REGRESSION: True, FindingKind.IMPROVEMENT: False}
    worse, better = found(series([7, 9, 7], "dispatches"))[::-1]
    assert (worse.undone, better.kind) == (True, FindingKind.IMPROVEMENT)


def test_a_change_is_ranked_and_printed_by_what_is_left_of_it_today() -> None:
    time = series([*noise(20, 1), *[value * 1.105 for value in noise(20, 2)], *[v * 1.009 for v in noise(20, 3)]])
    part = series([8.0] * 5 + [78.0] * 5 + [14.0] * 5, "dispatches", name="part")
    error = series([2.38e-7] * 4 + [1.766] + [2.68e-7] * 4, "max_error", name="error")
    size = series([1e6] * 5 + [3e6] * 5, "size_bytes", name="size")
    findings = found(time, part, error, size)
    result = outcome(*findings)
    assert [(item.key.model, item.label) for item in findings] == [
        ("size", "regression"),
        ("part", "regression"),
        ("error", "improvement"),
        ("part", "improvement"),
        ("toy", "improvement"),
        ("error", "won back"),
        ("toy", "won back"),
    ]
    assert [item.key.model for item in result.regressions] == ["size", "part"]
    (table,) = (block for block in make_changes_document(result).blocks if isinstance(block, Table))
    printed = [
        [format_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)][2:5] for row in table.rows
    ]
    assert printed[:4] == [
        ["×3", "1.0 MB → 3.0 MB", "3.5.0, run 2026-03-06"],
        ["+75.0 % today", "8 → 14", "was ×9.75 from 3.5.0 to 3.9.0"],
        ["×1.52e-07", "1.766 → 2.68e-07", "3.5.0, run 2026-03-06"],
        ["×0.179", "78 → 14", "3.10.0, run 2026-03-11"],
    ]
    assert printed[5] == ["×1.13 today", "2.38e-07 → 2.68e-07", "was ×7.42e+06 with 3.4.0"]
    assert printed[6][0] == "+0.7 % today"
    assert printed[6][2] == "was +10.4 % from 3.20.0 to 3.39.0"
    described = findings[1].as_dict()
    assert (described["today"], described["until"]["iree"], described["won_back"]) == (14, "3.9.0", False)


def test_an_improvement_of_which_nothing_is_left_is_lost_again() -> None:
    worse, better = found(series([97, 97, 55, 55, 97, 97], "dispatches"))
    assert (worse.label, better.label, better.undone) == ("regression", "lost again", True)
    assert make_changes_document(outcome(worse, better)).answer == "1 regression, 0 suspected, 0 improvements"


@pytest.mark.parametrize(("factor", "count"), [(1.9, 0), (0.52, 0), (2.1, 1), (0.48, 1)])
def test_an_error_changes_from_double_or_half_on(factor: float, count: int) -> None:
    assert len(found(series([1e-6, 1e-6, factor * 1e-6, factor * 1e-6], "max_error"))) == count


def test_a_version_with_a_day_is_not_given_the_day_of_its_run() -> None:
    point = series([1.0]).points[0]
    assert point.dated_iree == "3.0.0, run 2026-03-01"
    assert replace(point, iree="3.8.0rc20251010").dated_iree == "3.8.0rc20251010"


def test_small_steps_that_add_up_are_a_drift() -> None:
    values = [*noise(60, 1), *[value * 1.010 for value in noise(60, 2)], *[value * 1.022 for value in noise(60, 3)]]
    (finding,) = found(series(values))
    assert finding.kind is FindingKind.DRIFT
    assert finding.change == pytest.approx(0.022, abs=0.003)
    falling = [100 / value for value in values]
    (finding,) = found(series(falling, more=True))
    assert (finding.kind, finding.new < finding.old) == (FindingKind.DRIFT, True)


def test_among_many_series_chance_alone_is_not_reported() -> None:
    # One in a thousand or so by chance: it is reported of a series alone, and not of one among a hundred.
    values = [value * (1.025 if place >= 12 else 1) for place, value in enumerate(noise(16, 10))]
    (alone,) = found(series(values))
    assert 1e-4 < (alone.p_value or 0) < 1e-3
    many = [series(noise(16, 100 + seed), name=f"other{seed}") for seed in range(100)]
    assert not [item for item in found(series(values), *many) if item.key.model == "toy"]


def test_machines_have_series_of_their_own(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    fast, slow = HistoryMachine("fast", 64), HistoryMachine("slow", 2)
    runs = [run_of(day, {"time_ms": 10 + 30 * (day % 2)}, machine=(fast, slow)[day % 2]) for day in range(1, 41)]
    store.add(dict(map(make_history_file, runs)))
    index = HistoryIndex(store)
    index.update()
    found_series = index.series()
    assert [len(item.points) for item in found_series] == [20, 20]
    assert found(*found_series) == ()


def test_the_index_is_made_again_and_follows_the_files(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    store.add(dict(map(make_history_file, map(run_of, range(1, 4)))))
    index = HistoryIndex(store)
    index.update()
    before = index.series()
    (file,) = (tmp_path / "history").glob("*.sqlite")
    for harm in (file.unlink, lambda: file.write_bytes(b"no database at all" * 100)):
        harm()
        index.update()
        assert index.series() == before
    # A damaged file is reported, and the others are read; what is put right counts again.
    (damaged, *_) = sorted((tmp_path / "history" / "2026").iterdir())
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-9])
    file.unlink()
    index.update()
    assert (len(index.runs()), len(index.problems())) == (2, 1)
    assert damaged.name in index.problems()[0]
    store.remove([damaged.name])
    index.update()
    assert index.problems() == ()
    damaged.write_bytes(whole)
    index.update()
    assert index.series() == before


def test_a_run_that_was_added_before_it_was_resumed_counts_once(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    part = run_of(1, {"time_ms": 10.0}, state="interrupted")
    store.add(dict(map(make_history_file, (part, run_of(1)))))
    index = HistoryIndex(store)
    index.update()
    assert {item.key.figure: len(item.points) for item in index.series()} == {"time_ms": 1, "dispatches": 1}


def test_a_run_on_several_machines_has_the_figures_of_each(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    other = replace(run_of(1, {"time_ms": 12.0}), machine=HistoryMachine("another CPU", 64, 1, "Linux 6"))
    store.add(dict(map(make_history_file, (run_of(1), other))))
    index = HistoryIndex(store)
    index.update()
    assert sorted((item.key.machine, item.key.figure) for item in index.series()) == [
        *((run_of(1).machine.shown, name) for name in ("dispatches", "time_ms")),
        (other.machine.shown, "time_ms"),
    ]
    assert len(index.read_verdicts()) == 2


def test_what_is_damaged_after_it_was_indexed_is_noticed(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    store.add(dict(map(make_history_file, map(run_of, range(1, 4)))))
    HistoryIndex(store).update()
    (first, second, _) = sorted((tmp_path / "history" / "2026").iterdir())
    first.write_bytes(first.read_bytes().replace(b"10.0", b"99.0"))
    second.unlink()
    second.mkdir()
    first.with_name(first.name.replace("0301", "0401")).symlink_to("nowhere")
    index = HistoryIndex(store)
    index.update()
    assert len(index.problems()) == 3
    assert [len(item.points) for item in index.series()] == [1, 1]
    second.rmdir()
    index = HistoryIndex(store)
    index.update()
    assert len(index.problems()) == 2, "what could not be read is asked for again"


def test_a_run_that_was_imported_again_with_its_commit_has_it(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    for commit in ("", "b48a595557", ""):
        store.add(dict([make_history_file(replace(run_of(1), iree=IreeVersion(compiler_commit=commit)))]))
    index = HistoryIndex(store)
    index.update()
    assert {point.commit for item in index.series() for point in item.points} == {"b48a595557"}


def test_what_is_no_number_is_in_no_series(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    store.add(
        dict(map(make_history_file, [run_of(1, {"time_ms": math.nan, "dispatches": 7.0}), run_of(2, {"x": math.inf})]))
    )
    index = HistoryIndex(store)
    index.update()
    assert [item.key.figure for item in index.series()] == ["dispatches"]
    assert found(*index.series()) == ()


def test_marks_accept_move_and_leave_out() -> None:
    item = series([7, 7, 9, 9], "dispatches")
    accepted = Mark("toy/*", "3.2.0", "accepted", "on purpose")
    (finding,) = apply_marks(found(item), (item,), (accepted,))
    assert finding.accepted == "on purpose"
    (other,) = apply_marks(found(item), (item,), (replace(accepted, iree="3.1.0"),))
    assert other.accepted == ""
    (moved,) = apply_marks(found(item), (item,), (Mark("*", "3.2.0", "moved", "late", to="3.3.0"),))
    assert (moved.index, moved.point_after.iree) == (3, "3.3.0")
    named = replace(item, points=tuple(replace(point, iree_arg=f"release-{point.iree}") for point in item.points))
    (by_name,) = apply_marks(found(named), (named,), (replace(accepted, iree="release-3.2.0"),))
    assert by_name.accepted == "on purpose"
    better = series([9, 9, 7, 7], "dispatches")
    (gain,) = apply_marks(found(better), (better,), (accepted,))
    assert gain.label == "improvement"
    assert find_unused_marks((item,), (accepted,)) == ()
    (idle,) = find_unused_marks((item,), (accepted, replace(accepted, iree="9.9.9")))
    assert "9.9.9 matches no run of the history" in idle
    (left,) = remove_invalid((item,), (Mark("toy/abs@cpu dispatches", "3.2.0", "invalid", "wrong clock"),))
    assert [point.iree for point in left.points] == ["3.0.0", "3.1.0", "3.3.0"]


@pytest.mark.parametrize(
    ("verdict", "open_ones"), [("slower", 1), ("inconclusive", 1), ("same", 0), ("not slower", 0), ("faster", 0)]
)
def test_a_loss_that_is_none_when_both_are_measured_in_turns_is_refuted(verdict: str, open_ones: int) -> None:
    item = series(stepped(0.05))
    said = FigureConfirmation("toy/abs@cpu", "time_ms", "3.19.0", "3.20.0", verdict, 1.02)
    (finding,) = add_confirmations(found(item), [replace(said, after="3.21.0", verdict="same"), said])
    assert (finding.confirmed, finding.ratio) == (verdict, 1.02)
    assert len(outcome(finding).regressions) == open_ones
    assert finding.label == ("regression" if open_ones else "refuted")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[mark]]\nseries = "x"\niree = "y"\nmark = "acepted"\nreason = "z"\n', "accepted"),
        ('[[mark]]\nseries = "x"\niree = "y"\nmark = "accepted"\nreason = ""\n', "reason"),
        ('[[mark]]\nseries = "x"\niree = "y"\nmark = "moved"\nreason = "z"\n', "the IREE that caused it"),
    ],
)
def test_marks_that_say_nothing_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "history_marks.toml"
    assert read_marks(file) == ()
    file.write_text(text)
    with pytest.raises(SpecError, match=said):
        read_marks(file)


def judge_points(*runs: tuple[str, str], quarantine: str = "") -> FailureRate:
    """The rate of a case whose runs had these IREEs and verdicts, each on the next day of March."""
    points = [
        VerdictPoint(f"run{day}", f"2026-03-{day:02}T10:00:00+00:00", iree, "", verdict, "why", quarantine)
        for day, (iree, verdict) in enumerate(runs, start=1)
    ]
    return next(iter(judge_verdicts({("toy/abs@cpu", "", "CPU"): points})), NO_RATE)


NO_RATE = FailureRate("", "", "", "none", 0, 0, 0.0, 0.0, None, None, 0, "")


def test_a_case_that_passes_and_fails_with_one_iree_is_flaky() -> None:
    rate = judge_points(*[("3.1", "passed")] * 7, ("3.1", "failed"), ("3.2", "passed"), ("3.2", "passed"))
    assert (rate.kind, rate.runs, rate.failures, rate.passes_in_a_row) == ("flaky", 10, 1, 2)
    assert rate.first is not None
    assert rate.first is rate.last
    assert rate.first.run == "run8"
    # Wilson's interval of 1 in 10, as tables have it.
    assert (round(rate.low, 4), round(rate.high, 4)) == (0.0179, 0.4042)
    # A repetition that passed says it of one run.
    assert judge_points(("3.1", "flaky")).kind == "flaky"


def test_a_case_that_broke_is_failed_since_then_and_a_repaired_one_is_not_listed() -> None:
    broken = judge_points(("3.1", "passed"), ("3.2", "failed"), ("3.3", "error"))
    assert (broken.kind, broken.runs, broken.failures) == ("failed", 2, 2)
    assert broken.first is not None
    assert (broken.first.iree, broken.high) == ("3.2", 1.0)
    assert judge_points(("3.1", "failed"), ("3.2", "passed")) is NO_RATE
    # An IREE of an unknown version may be another one each time.
    assert judge_points(("–", "failed"), ("–", "passed")) is NO_RATE


def test_a_quarantine_can_end_after_twenty_passes() -> None:
    passes = [("3.1", "passed")] * 20
    assert judge_points(("3.1", "quarantined"), *passes, quarantine="s.toml: quarantine[0]").can_be_released
    assert not judge_points(("3.1", "quarantined"), *passes[1:], quarantine="s.toml: quarantine[0]").can_be_released
    assert not judge_points(("3.1", "flaky"), *passes).can_be_released


def test_rates_are_of_the_newest_flags_by_machine_and_in_every_report(tmp_path: Path) -> None:
    store = open_history(str(tmp_path / "history"), Configuration(), tmp_path)
    runs = []
    for day in range(1, 25):
        run = run_of(day, iree="3.1.0")
        # With other flags it failed every time.
        case = replace(
            run.cases[0], flags="old" if day < 4 else "f", verdict="failed" if day in (1, 2, 3, 8) else "passed"
        )
        runs.append(replace(run, cases=(replace(case, quarantine="suites/s.toml: quarantine[0]" if day > 20 else ""),)))
    # The errors of a killed run are not the case's.
    runs.append(replace(runs[-1], run="killed", state="unfinished", cases=(replace(case, verdict="error"),)))
    iree = IreeVersion("3.1.0", "c" * 40)
    runs = [replace(run, iree=iree) for run in runs]
    store.add(dict(map(make_history_file, runs)))
    index = HistoryIndex(store)
    index.update()
    (rate,) = judge_verdicts(index.read_verdicts())
    assert (rate.case, rate.kind, rate.failures, rate.runs) == ("toy/abs@cpu", "flaky", 1, 21)
    assert judge_verdicts(index.read_verdicts(), "other*") == judge_verdicts(index.read_verdicts(), "", "mi300") == ()
    outcome = HistoryOutcome("h", 24, index.series(), (), (), (replace(rate, passes_in_a_row=20),))
    for made in (
        make_changes_document(outcome),
        make_history_page(outcome, "2026-04-01T00:00Z"),
        make_runs_document(index.runs(), outcome.rates),
    ):
        text = str(made.blocks)
        assert text.count("1 of 21") == 1
        assert "remove suites/s.toml: quarantine[0]" in text
    assert outcome.exit_code is ExitCode.OK
