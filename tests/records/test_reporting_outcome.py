from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.records.chain_figures import collect_chain_figures, format_chain_verdict
from iree_gauntlet.records.outcome import RunOutcome, format_cache_line, read_outcome
from tests.support.journal_builder import (
    CACHE_HIT,
    CACHE_MISS,
    JournalBuilder,
    add_passed_results,
    make_check,
    make_every_verdict,
    make_samples,
    plan_chain,
)

if TYPE_CHECKING:
    from pathlib import Path


def judge(builder: JournalBuilder, folder: Path, torn: str = "") -> RunOutcome:
    return read_outcome(read_journal(builder.write(folder / builder.run, torn) / "journal.jsonl"))


def one_step(verdict: str, **changes: Any) -> JournalBuilder:
    builder = JournalBuilder()
    step = builder.step("m", "s", "compile")
    builder.begin()
    builder.result(step, verdict, "" if verdict == "passed" else "why", **changes)
    return builder


def test_chains_and_steps_keep_the_order_of_the_plan(tmp_path: Path) -> None:
    outcome = judge(make_every_verdict(), tmp_path)
    assert [chain.id for chain in outcome.chains] == [
        "ocr/classifier@cpu",
        "ocr/detector@cpu",
        "minilm/l3@cpu",
        "magika/v3@cpu",
        "dtln/one@cpu",
        "dtln/two@cpu",
        "punet/fp16@cpu",
        "img/focus@cpu",
    ]
    assert [step.name for step in outcome.chains[5].steps] == ["compile", "compile.pipeline"]
    assert [step.role for step in outcome.chains[5].steps] == ["", "pipeline"]


def test_everything_that_can_happen_is_counted(tmp_path: Path) -> None:
    outcome = judge(make_every_verdict(), tmp_path)
    assert outcome.counts == {
        Verdict.PASSED: 8,
        Verdict.FAILED: 2,
        Verdict.ERROR: 2,
        Verdict.SKIPPED: 3,
        Verdict.XFAILED: 1,
        Verdict.XPASSED: 1,
        Verdict.INCONCLUSIVE: 1,
        Verdict.FLAKY: 0,
        Verdict.QUARANTINED: 0,
    }
    assert outcome.exit_code is ExitCode.ERROR
    assert outcome.seconds == 90.5
    assert (outcome.compiles.hits, outcome.compiles.misses) == (2, 5)
    assert (outcome.downloads.hits, outcome.downloads.misses) == (1, 1)
    assert outcome.state == "complete"
    assert outcome.remarks == ()


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("passed", 0), ("xfailed", 0), ("skipped", 0), ("failed", 1), ("xpassed", 1), ("error", 3), ("inconclusive", 4)],
)
def test_exit_code_of_one_verdict(tmp_path: Path, verdict: str, code: int) -> None:
    builder = one_step(verdict)
    builder.end(code)
    assert judge(builder, tmp_path).exit_code == code


@pytest.mark.parametrize(
    ("verdicts", "interrupted", "code"),
    [
        (("failed", "error"), False, 3),
        (("failed", "inconclusive"), False, 1),
        (("passed", "inconclusive"), False, 4),
        (("error", "failed"), True, 130),
    ],
)
def test_the_worst_exit_code_wins(tmp_path: Path, verdicts: tuple[str, ...], interrupted: bool, code: int) -> None:
    builder = JournalBuilder()
    steps = [builder.step("m", f"s{index}", "compile") for index in range(len(verdicts))]
    builder.begin()
    for step, verdict in zip(steps, verdicts, strict=True):
        builder.result(step, verdict, "why")
    builder.end(interrupted=interrupted)
    assert judge(builder, tmp_path).exit_code == code


def test_a_skip_behind_a_failure_names_the_failure_and_counts_once(tmp_path: Path) -> None:
    builder = JournalBuilder()
    compiled, threshold, benchmark = (builder.step("m", "s", s) for s in ("compile", "threshold", "benchmark"))
    builder.begin()
    builder.result(compiled, "failed", "no such op")
    builder.result(threshold, "skipped", "compile failed")
    builder.result(benchmark, "skipped", "threshold did not run")
    builder.end(1)
    outcome = judge(builder, tmp_path)
    assert [step.behind for step in outcome.steps] == ["", compiled, compiled]
    assert [step.id for step in outcome.bad_steps] == [compiled]
    assert outcome.exit_code is ExitCode.FAILED


def test_a_skip_that_was_planned_stands_behind_nothing(tmp_path: Path) -> None:
    builder = JournalBuilder()
    compiled = builder.step("m", "s", "compile")
    threshold = builder.step("m", "s", "threshold", skip="not on this chip")
    builder.begin()
    builder.result(compiled, "failed", "no such op")
    builder.result(threshold, "skipped", "not on this chip")
    builder.end(1)
    assert judge(builder, tmp_path).steps[1].behind == ""


def test_a_killed_run_shows_what_it_lost_as_errors(tmp_path: Path) -> None:
    builder = JournalBuilder()
    done, running, never = (builder.step("m", f"s{index}", "compile") for index in range(3))
    builder.begin()
    builder.result(done)
    builder.start(running)
    outcome = judge(builder, tmp_path)
    assert [step.verdict for step in outcome.steps] == ["passed", "error", "error"]
    assert outcome.steps[1].reason == "the run was killed while this step ran"
    assert outcome.steps[2].reason == "the run ended before this step started"
    assert outcome.steps[2].id == never
    assert outcome.exit_code is ExitCode.ERROR
    assert outcome.state == "unfinished"
    assert outcome.remarks == ("the journal has no end: the run was killed, or is still running",)


def test_a_lost_step_has_the_command_that_was_planned(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "s", "threshold")
    builder.steps[0]["command"]["env"] = [["IREE_X", "a b"]]
    builder.begin()
    builder.start(step)
    command = judge(builder, tmp_path).steps[0].command
    assert command == (
        "cd steps/m/s@cpu/threshold && IREE_X='a b' iree-run-module --device=local-task --module=m.vmfb"
        " '--input=@in 0.npy'"
    )


def test_a_killed_run_skips_what_stood_behind_a_failure(tmp_path: Path) -> None:
    builder = JournalBuilder()
    compiled, threshold = builder.step("m", "s", "compile"), builder.step("m", "s", "threshold")
    builder.begin()
    builder.result(compiled, "failed", "no such op")
    outcome = judge(builder, tmp_path)
    assert outcome.steps[1].id == threshold
    assert outcome.steps[1].verdict is Verdict.SKIPPED
    assert outcome.steps[1].behind == compiled
    assert outcome.exit_code is ExitCode.FAILED


def test_a_model_of_which_only_files_were_fetched_did_not_pass(tmp_path: Path) -> None:
    builder = JournalBuilder()
    fetched, threshold = builder.step("m", "s", "fetch"), builder.step("m", "s", "threshold")
    alone = builder.step("m", "t", "fetch")
    builder.begin()
    builder.result(fetched)
    builder.result(alone)
    builder.result(threshold, "skipped", "what it needs failed as expected")
    assert [chain.verdict for chain in judge(builder, tmp_path).chains] == ["skipped", "passed"]


def test_what_waits_for_a_killed_step_is_an_error_of_its_own(tmp_path: Path) -> None:
    builder = JournalBuilder()
    compiled, _ = builder.step("m", "s", "compile"), builder.step("m", "s", "threshold")
    builder.begin()
    builder.start(compiled)
    assert [step.verdict for step in judge(builder, tmp_path).steps] == ["error", "error"]


def test_an_interrupted_run_says_so_of_what_it_left(tmp_path: Path) -> None:
    builder = JournalBuilder()
    running, _ = builder.step("m", "a", "compile"), builder.step("m", "b", "compile")
    builder.begin()
    builder.start(running)
    builder.end(130, interrupted=True)
    outcome = judge(builder, tmp_path)
    assert outcome.exit_code is ExitCode.INTERRUPTED
    assert [step.reason for step in outcome.steps] == [
        "the run was interrupted while this step ran",
        "the run was interrupted before this step started",
    ]


def test_a_run_that_stopped_by_itself_skips_the_rest(tmp_path: Path) -> None:
    builder = JournalBuilder()
    first, _ = builder.step("m", "a", "compile"), builder.step("m", "b", "compile")
    builder.begin()
    builder.result(first, "failed", "why")
    builder.end(1)
    outcome = judge(builder, tmp_path)
    assert outcome.steps[1].verdict is Verdict.SKIPPED
    assert outcome.steps[1].reason == "the run stopped before this step started"
    assert outcome.exit_code is ExitCode.FAILED


def test_a_torn_line_is_left_out_and_said(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "s", "compile")
    builder.begin()
    builder.start(step)
    outcome = judge(builder, tmp_path, torn='{"event":"result","step":"m/s@cpu:comp')
    assert outcome.has_truncated_line
    assert outcome.steps[0].verdict is Verdict.ERROR
    assert "a line of the journal was truncated by a crash; it is ignored" in outcome.remarks


def test_a_resumed_run_counts_the_results_of_both_parts(tmp_path: Path) -> None:
    builder = JournalBuilder()
    first, second = builder.step("m", "a", "compile"), builder.step("m", "b", "compile")
    builder.begin()
    builder.result(first, seconds=4.0, cache=CACHE_MISS)
    builder.start(second)
    builder.now = builder.now.replace(hour=9)
    builder.begin(resumed=True)
    builder.result(second, seconds=2.0, cache=CACHE_HIT)
    builder.end(seconds=2.5)
    outcome = judge(builder, tmp_path)
    assert outcome.exit_code is ExitCode.OK
    assert outcome.resumed == 1
    assert outcome.state == "complete"
    assert outcome.seconds == pytest.approx(4.0 + 2.5, abs=0.1)
    assert (outcome.compiles.hits, outcome.compiles.misses) == (1, 1)
    assert outcome.remarks == ("the run was resumed once; the results of all its parts are counted",)


def test_a_step_that_is_done_again_has_no_result_until_then(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "a", "compile")
    builder.begin()
    builder.result(step, "failed", "why")
    builder.end(1)
    builder.begin(resumed=True, again=(step,))
    assert judge(builder, tmp_path).steps[0].reason == "the run ended before this step started"
    builder.start(step)
    outcome = judge(builder, tmp_path)
    assert outcome.steps[0].verdict is Verdict.ERROR
    assert outcome.steps[0].reason == "the run was killed while this step ran"


def test_a_wall_clock_that_was_set_back_takes_no_result_away(tmp_path: Path) -> None:
    builder = one_step("passed")
    builder.lines[-1]["time"] = "2026-11-21T05:00:00.000Z"
    builder.end()
    assert judge(builder, tmp_path).steps[0].verdict is Verdict.PASSED


def test_results_of_steps_that_are_no_longer_planned_are_said_to_be_left_out(tmp_path: Path) -> None:
    builder = one_step("passed")
    builder.result("gone/x@cpu:compile", "failed", "why")
    builder.end(1)
    outcome = judge(builder, tmp_path)
    assert outcome.exit_code is ExitCode.OK
    assert "gone/x@cpu:compile" in outcome.remarks[0]


def test_no_steps_is_nothing_selected(tmp_path: Path) -> None:
    builder = JournalBuilder()
    builder.begin()
    builder.end(5)
    outcome = judge(builder, tmp_path)
    assert outcome.exit_code is ExitCode.NOTHING_SELECTED
    assert outcome.chains == ()


def test_a_journal_without_its_first_line_is_an_error(tmp_path: Path) -> None:
    outcome = judge(JournalBuilder(), tmp_path, torn='{"event": "run", "st')
    assert outcome.exit_code is ExitCode.ERROR
    assert outcome.run == JournalBuilder().run
    assert outcome.remarks[0] == "the journal has no plan: its first line is missing"


def test_a_journal_of_another_version_is_refused_with_that_version(tmp_path: Path) -> None:
    builder = one_step("splendid")
    with pytest.raises(GauntletError, match="splendid") as caught:
        judge(builder, tmp_path)
    assert "0.1.0" in caught.value.hint


def test_times_are_converted_to_milliseconds(tmp_path: Path) -> None:
    builder = one_step("passed", samples=make_samples(1500.0, 2500.0, unit="us"))
    found = judge(builder, tmp_path).steps[0].samples
    assert found is not None
    assert found.real_time_ms == (1.5, 2.5)
    assert found.mean_ms == 2.0
    assert found.stdev_ms == pytest.approx(0.7071, abs=1e-4)


def test_a_file_that_several_steps_ask_for_counts_once(tmp_path: Path) -> None:
    builder = JournalBuilder()
    chains = [plan_chain(builder, "m", name) for name in ("a", "b")]
    builder.begin()
    for steps in chains:
        add_passed_results(builder, steps)
    for line in builder.lines:
        for file in line.get("fetched", ()):
            file["url"] = "https://models.example/same.onnx"
    outcome = judge(builder, tmp_path)
    assert (outcome.downloads.hits, outcome.downloads.misses) == (1, 0)


def test_made_up_inputs_are_no_downloads(tmp_path: Path) -> None:
    builder = JournalBuilder()
    steps = plan_chain(builder, "m", "a")
    builder.begin()
    files = [
        {"url": "https://h/weights.irpa", "path": "w", "bytes": 9, "seconds": 0.1, "cached": False},
        {"url": "random://zeros/4xf32?seed=1", "path": "a", "bytes": 16, "seconds": 0.0, "cached": False},
        {"url": "random://zeros/4xf32?seed=2", "path": "b", "bytes": 16, "seconds": 0.0, "cached": True},
    ]
    builder.result(steps[0], fetched=files)
    outcome = judge(builder, tmp_path)
    assert format_cache_line(outcome).endswith("; files: 1 present, 1 fetched; inputs: 1 made")


def test_each_verdict_of_a_chain_names_its_own_steps(tmp_path: Path) -> None:
    builder = JournalBuilder()
    stages = ("compile", "threshold", "compstat", "benchmark")
    compiled, threshold, compstat, benchmark = (builder.step("m", "a", stage) for stage in stages)
    builder.begin()
    builder.result(compiled)
    builder.result(benchmark, "inconclusive", "4 of 4 more rounds were disturbed")
    builder.result(threshold, "failed", "wrong")
    builder.result(compstat, "failed", "too large")
    builder.end()
    (chain,) = judge(builder, tmp_path).chains
    assert format_chain_verdict(chain) == "failed: threshold, compstat; inconclusive: benchmark"


def test_a_statistic_that_nobody_knows_is_no_reason_to_stop(tmp_path: Path) -> None:
    builder = JournalBuilder()
    benchmark = builder.step("m", "a", "benchmark")
    builder.begin()
    checks = [make_check("time_ms", 1.0, None, statistic="a mistake")]
    builder.result(benchmark, samples=make_samples(1.0, 3.0), checks=checks, statistics={"": 9.0})
    builder.end()
    (chain,) = judge(builder, tmp_path).chains
    assert collect_chain_figures(chain).values[Figure.TIME] == pytest.approx(2.0)


@pytest.mark.parametrize("disturbed", [0, 1])
def test_of_several_benchmarks_the_times_of_the_last_one_count(tmp_path: Path, disturbed: int) -> None:
    builder = JournalBuilder()
    steps = [builder.step("m", "a", "benchmark", role) for role in ("first", "last")]
    builder.begin()
    for number, step in enumerate(steps):
        # Shares of a round that is too short to be judged disturb nothing.
        busy = {"disturbed": ["busy"] if number == disturbed else [], "machine": {"busy_share": 0.5}}
        builder.result(step, samples=make_samples(1.0 + number, 1.2 + number), statistics=busy)
    builder.end()
    (chain,) = judge(builder, tmp_path).chains
    figures = collect_chain_figures(chain)
    assert figures.samples is not None
    assert figures.samples.min_ms == 2.0
    assert figures.values[Figure.TIME] == pytest.approx(2.1)
    assert figures.format_cell(Figure.TIME) == ("2.10 ± 0.14 *" if disturbed else "2.10 ± 0.14")
    assert figures.disturbance == ("busy" if disturbed else "")


def test_nan_and_infinity_are_read_from_their_names(tmp_path: Path) -> None:
    output = {"index": 0, "passed": False, "max_abs_error": "inf", "max_rel_error": "nan"}
    builder = one_step("failed", outputs=[output])
    found = judge(builder, tmp_path).steps[0].outputs[0]
    assert found.max_abs_error == float("inf")
    assert str(found.max_rel_error) == "nan"
    assert found.worst_index is None


def test_locks_of_ones_own_are_named_and_a_users_are_not(tmp_path: Path) -> None:
    for folder, named in ({"lock_folder": "/scratch/locks"}, True), ({}, False):
        builder = JournalBuilder(run=f"named-{named}")
        builder.begin(**folder)
        remarks = judge(builder, tmp_path).remarks
        assert any("the machine's locks are in /scratch/locks" in remark for remark in remarks) is named
        assert any("locks" in remark for remark in remarks) is named


def test_which_steps_ran_of_a_run_that_was_interrupted(tmp_path: Path) -> None:
    builder = JournalBuilder()
    done, begun, waiting = (builder.step("m", name, "compile") for name in "abc")
    builder.begin()
    builder.result(done, "failed", "why")
    builder.start(begun)
    builder.end(130, interrupted=True)
    steps = [step for chain in judge(builder, tmp_path).chains for step in chain.steps]
    assert [(step.id, step.ran) for step in steps] == [(done, True), (begun, True), (waiting, False)]
    assert all(step.command for step in steps)
