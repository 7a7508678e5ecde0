from __future__ import annotations

import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from iree_gauntlet.cases import Verdict
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.messages import write_text
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.reports.live_progress import LiveProgress, Painter, PlainProgress, RemainingTime
from iree_gauntlet.reports.output import open_progress
from iree_gauntlet.reports.run_reports import make_run_reports
from iree_gauntlet.results import CacheUse, Result
from iree_gauntlet.steps import NOTHING_COMPARED
from tests.support.clocks import Clock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.journal_builder import (
    CACHE_HIT,
    RUN_NAME,
    JournalBuilder,
    make_check,
    make_comparison,
    make_every_verdict,
    make_samples,
)
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.steps import Step


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def planned(count: int = 2) -> JournalBuilder:
    builder = JournalBuilder()
    for index in range(count):
        builder.step("ocr", f"s{index}", "compile")
    builder.begin()
    return builder


def painted(progress: LiveProgress) -> list[str]:
    """The lines that stand on the terminal now."""
    lines = progress._console.render_lines(progress, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def result(verdict: str = "passed", reason: str = "", cache: CacheUse | None = None) -> Result:
    return Result(Verdict(verdict), reason, seconds=8.21, cache=cache)


def printed(builder: JournalBuilder, folder: Path, stream: io.StringIO, **options: Any) -> str:
    outcome = read_outcome(read_journal(builder.write(folder / RUN_NAME) / "journal.jsonl"))
    environ = options.pop("environ", {"TERM": "xterm"})
    make_run_reports(outcome).print(Path("runs") / RUN_NAME, stream, environ=environ, **options)
    return stream.getvalue()


def test_what_is_worse_than_a_baseline_is_no_golden_to_update(tmp_path: Path) -> None:
    said = []
    for note in ("--baseline runs/before", "specs/b.json: golden_dispatch.cpu"):
        builder = JournalBuilder()
        step = builder.step("ocr", "det", "compstat")
        builder.begin()
        builder.result(step, "failed", "20 exceeds 19", checks=[make_check("dispatch_count", 20, 19) | {"note": note}])
        builder.end(1)
        said.append("golden.update" in printed(builder, tmp_path / note[:2], io.StringIO()))
    assert said == [False, True]


def test_models_that_no_length_of_vectors_judged_do_not_agree(tmp_path: Path) -> None:
    builder = JournalBuilder()
    ends = {"det": ("passed", {}), "rec": ("error", {}), "cls": ("error", {"failure": "crashes"})}
    steps = [
        (builder.step("ocr", submodel, "threshold", target=f"cpu-aarch64-sve-{bits}"), verdict, changes)
        for submodel, (verdict, changes) in ends.items()
        for bits in (128, 256)
    ]
    builder.begin()
    for step, verdict, changes in steps:
        builder.result(step, verdict, **changes)
    builder.end(3)
    text = printed(builder, tmp_path, io.StringIO())
    assert "2 of 2 models have the same verdict with each length; 1 could not be judged" in text, text


def test_an_interrupted_run_says_what_goes_on_with_it(tmp_path: Path) -> None:
    builder = JournalBuilder()
    fetch, compile_ = (builder.step("ocr", "det", stage) for stage in ("fetch", "compile"))
    builder.step("ocr", "det", "threshold")
    builder.step("ocr", "det", "benchmark")
    builder.begin()
    builder.result(fetch)
    builder.start(compile_)
    builder.end(130, interrupted=True)
    lines = printed(builder, tmp_path, io.StringIO()).splitlines()
    assert f"to continue it: gauntlet run --resume --run-dir runs/{RUN_NAME}" in lines
    (row,) = [line for line in lines if line.startswith("! error: compile, not started  ocr/det@cpu")]
    assert "threshold" not in row


@pytest.mark.parametrize(
    ("suite", "said"),
    [
        ("micro", f"gauntlet micro --resume --run-dir runs/{RUN_NAME}"),
        ("bench", "gauntlet bench -m bert again: finished work comes from the cache"),
    ],
)
def test_what_goes_on_with_a_run_is_the_command_that_began_it(tmp_path: Path, suite: str, said: str) -> None:
    builder = JournalBuilder()
    builder.begin(suite=suite, command="gauntlet bench -m bert")
    builder.end(130, interrupted=True)
    assert f"to continue it: {said}" in printed(builder, tmp_path, io.StringIO())


@pytest.mark.parametrize("end", [True, False])
def test_what_never_began_is_one_line(tmp_path: Path, *, end: bool) -> None:
    """After Ctrl-C, and after SIGKILL."""
    builder = JournalBuilder()
    steps = [builder.step("ocr", name, stage) for name in ("a", "b") for stage in ("compile", "threshold")]
    builder.begin()
    builder.result(steps[0])
    builder.start(steps[1])
    if end:
        builder.end(130, interrupted=True)
    text = printed(builder, tmp_path, io.StringIO())
    assert "\n2 steps did not start.\n" in text
    assert "error: ocr/a@cpu threshold" in text
    assert text.count("Reproduce:") <= 1
    assert "before this step started" not in text
    outcome = read_outcome(read_journal(tmp_path / RUN_NAME / "journal.jsonl"))
    make_run_reports(outcome).write(tmp_path / RUN_NAME)
    said = {path.name: path.read_text() for path in (tmp_path / RUN_NAME).iterdir()}
    for name in ("summary.md", "summary.html"):
        assert "2 steps did not start." in said[name]
        assert "before this step started" not in said[name]
    for name in ("junit.xml", "summary.json"):
        assert said[name].count("before this step started") >= 2


def test_what_was_not_compared_is_told(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("ocr", "a", "threshold")
    builder.begin()
    builder.result(step, notes=[NOTHING_COMPARED])
    builder.end()
    text = printed(builder, tmp_path, io.StringIO())
    assert "\nno expected outputs, so only that it runs was checked: ocr/a@cpu threshold\n" in text


def test_a_line_for_each_finished_step() -> None:
    builder, stream = planned(), io.StringIO()
    console = PlainProgress(stream)
    console.run_started(builder.opening, len(builder.steps))
    for step, found in zip(
        builder.planned_steps, [result(cache=CacheUse(True)), result("failed", "no such op\nat all")], strict=True
    ):
        console.step_started(step)
        console.step_finished(step, found)
    console.close()
    assert stream.getvalue() == (
        f"run {RUN_NAME}: 2 steps, IREE 3.13.0rc20261016\n"
        "[1/2] ✓ passed  ocr/s0@cpu compile  8.21 s (cached)\n"
        "[2/2] ✗ failed  ocr/s1@cpu compile  8.21 s: no such op at all\n"
    )


def test_of_many_steps_what_went_wrong_has_a_line_and_the_rest_is_counted() -> None:
    builder, stream = planned(1000), io.StringIO()
    now = [100.0]
    console = PlainProgress(stream, clock=lambda: now[0])
    # No heartbeat but the test's own.
    console._closing.set()
    console.run_started(builder.opening, len(builder.steps))
    for index, step in enumerate(builder.planned_steps[:600]):
        verdict = {7: "failed", 8: "error", 9: "xfailed", 10: "skipped"}.get(index, "passed")
        console.step_started(step)
        now[0] += 0.125
        console.step_finished(step, result(verdict, "" if verdict == "passed" else "why"))
        console._write_due_lines(now[0])
    console.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 + 2 + 7
    assert lines[1] == "[   8/1000] ✗ failed  ocr/s7@cpu compile  8.21 s: why"
    assert lines[2] == "[   9/1000] ! error   ocr/s8@cpu compile  8.21 s: why"
    assert lines[-1] == "[ 560/1000] 1 error, 1 failed, 556 passed, 1 skipped, 1 xfailed; 70.0 s, about 55.0 s left"


def test_ctrl_c_before_the_heartbeat_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    builder = planned(1)
    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt), PlainProgress(io.StringIO()) as console:
        console.run_started(builder.opening, len(builder.steps))


def test_what_is_left_goes_by_the_last_minute() -> None:
    builder, clock = planned(1), Clock()
    progress = PlainProgress(io.StringIO(), clock=clock)
    progress._closing.set()
    progress.run_started(builder.opening, 10_000 * len(builder.steps))

    def left(count: int, seconds: float) -> float | None:
        for _ in range(count):
            clock.advance(seconds)
            progress.step_finished(builder.planned_steps[0], result())
        return progress._run_task.time_remaining

    assert left(5_000, 0.001) == 5
    # 4,870 further ones of a second each.
    assert left(130, 1.0) == 4870


def test_nothing_is_said_of_what_is_left_where_nothing_is_known() -> None:
    builder, clock = planned(2), Clock()
    progress = PlainProgress(io.StringIO(), clock=clock)
    progress._closing.set()
    progress.run_started(builder.opening, len(builder.steps))
    clock.advance(5)
    progress.step_finished(builder.planned_steps[0], result())
    assert progress._format_progress() == "1 passed; 5.00 s"


def test_what_is_left_is_known_from_what_the_steps_took_the_last_time() -> None:
    """Ten short steps are done of eleven: by their number it is nearly over, by their times it has just begun."""
    now = [0.0]
    builder = JournalBuilder()
    ids = [builder.step("ocr", f"s{number}", "compile") for number in range(11)]
    builder.begin()
    asked: list[str] = []

    def earlier(suite: str) -> dict[str, float]:
        asked.append(suite)
        return dict.fromkeys(ids[:10], 1.0) | {ids[10]: 90.0}

    progress = Painter(lambda: now[0], earlier)
    progress.run_started(builder.opening, len(builder.steps), ids)
    assert asked == ["cpu"]
    for step in builder.planned_steps[:10]:
        now[0] += 2.0
        progress.step_finished(step, result())
    # Everything takes twice as long as then.
    assert progress._format_progress() == "10 passed; 20.0 s, about 3 min 00 s left"
    progress.run_started(builder.opening, 20 * len(builder.steps), ids * 20)
    assert asked == ["cpu"], "of many steps their number says enough"


def test_where_most_steps_are_new_earlier_ones_say_nothing() -> None:
    assert RemainingTime(["a", "b", "c"], {"a": 1.0}).estimate_seconds(10.0) is None
    left = RemainingTime(["a", "b", "c"], {"a": 1.0, "b": 3.0})
    assert left.estimate_seconds(10.0) is None, "nothing is done yet"
    left.remove_step("b")
    assert left.estimate_seconds(3.0) == 3.0, "the new one is taken for a usual one"


def test_a_stream_without_the_signs_gets_plain_ones() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write_text(stream, "✓ passed ✗ failed ≈ ü\n")
    assert stream.buffer.getvalue() == b"+ passed x failed ~ ?\n"


def test_a_resumed_run_and_a_skipped_step_say_so() -> None:
    builder, stream = planned(1), io.StringIO()
    console = PlainProgress(stream)
    console.run_started(replace(builder.opening, resumed=True), len(builder.steps))
    console.step_finished(builder.planned_steps[0], result("skipped", "not on this chip"))
    console.close()
    assert stream.getvalue().splitlines() == [
        f"resuming run {RUN_NAME}: 1 step, IREE 3.13.0rc20261016",
        "[1/1] · skipped ocr/s0@cpu compile: not on this chip",
    ]


def test_silence_is_broken_by_what_is_running() -> None:
    builder, stream, clock = planned(), io.StringIO(), Clock()
    # A thread looks at the clock time and again, and speaks once the test has set it forward.
    console = PlainProgress(stream, heartbeat=0.0004, clock=clock)
    console.run_started(builder.opening, len(builder.steps))
    console.step_started(builder.planned_steps[0])
    console.download_progress("https://models.example/m.onnx", 2_000_000, 8_000_000)
    console.waiting("for the device lock of hip://0")
    clock.now += 42.0
    wait_until(lambda: "still running" in stream.getvalue() and "m.onnx: " in stream.getvalue())
    console.close()
    lines = stream.getvalue().splitlines()
    (line,) = [line for line in lines if "still running" in line]
    assert line == "[0/2] still running: ocr/s0@cpu compile (42.0 s); waiting for the device lock of hip://0"
    assert "downloading m.onnx: 2.0 of 8.0 MB (25.0 %), no data for 42 s" in lines


def test_a_log_says_what_is_left_where_earlier_steps_tell() -> None:
    builder, stream, clock = planned(), io.StringIO(), Clock()
    ids = [step.id for step in builder.planned_steps]
    earlier = dict(zip(ids, (10.0, 30.0), strict=True))
    console = PlainProgress(stream, heartbeat=0.0004, clock=clock, read_step_seconds=lambda _suite: earlier)
    console.run_started(builder.opening, len(builder.steps), ids)
    console.step_started(builder.planned_steps[0])
    console.step_finished(builder.planned_steps[0], result("passed", ""))
    console.step_started(builder.planned_steps[1])
    clock.now += 20.0
    wait_until(lambda: "still running" in stream.getvalue())
    console.close()
    assert "[1/2] still running: ocr/s1@cpu compile (20.0 s); about 60.0 s left\n" in stream.getvalue()


def test_of_a_run_that_waits_for_another_nothing_is_said_to_be_left() -> None:
    builder, now = planned(3), [0.0]
    ids = [step.id for step in builder.planned_steps]
    progress = Painter(lambda: now[0], lambda _suite: dict.fromkeys(ids, 1.0) | {ids[-1]: 0.001})
    progress.run_started(builder.opening, len(builder.steps), ids)
    for step in builder.planned_steps[:-1]:
        now[0] += 5.0
        progress.step_finished(step, result())
    progress.waiting("for a quiet machine: process 4 of another run uses it")
    for _ in range(11):
        now[0] += 10.0
        assert "left" not in progress._format_progress()
    progress.step_started(builder.planned_steps[-1])
    assert progress._estimate_remaining_seconds() == pytest.approx(10 * (2.001 / 3 / 20) / 2), "to wait is no work"
    now[0] += 5.0
    assert progress._estimate_remaining_seconds() is None, "it has taken longer than that"


def test_the_heartbeat_ends_where_nobody_reads() -> None:
    builder, stream = planned(), io.StringIO()
    clock = Clock()
    console = PlainProgress(stream, heartbeat=0.0004, clock=clock)
    console.run_started(builder.opening, len(builder.steps))
    stream.close()
    clock.now += 1.0
    assert console._thread is not None
    console._thread.join(LIMIT_SECONDS)
    assert not console._thread.is_alive()
    console.close()
    with pytest.raises(ValueError, match="closed"):
        console.message("the engine sees it")


def test_a_download_and_a_wait_are_said_once() -> None:
    stream = io.StringIO()
    console = PlainProgress(stream)
    for done in (0, 500_000, 1_000_000):
        console.download_progress("https://models.example/m.onnx", done, 1_000_000)
        console.waiting("for another run, which compiles it")
    console.close()
    assert stream.getvalue().splitlines() == [
        "downloading https://models.example/m.onnx (1.0 MB)",
        "waiting for another run, which compiles it",
    ]


def test_no_control_sequence_reaches_a_log() -> None:
    builder, stream = planned(1), io.StringIO()
    console = PlainProgress(stream)
    console.message("\x1b[31mred\x1b[0m")
    console.step_finished(builder.planned_steps[0], result("error", "\x1b[2Jgone \x07"))
    console.close()
    assert "\x1b" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()


def test_an_encoding_that_lacks_characters_is_no_crash(tmp_path: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = PlainProgress(stream)
    console.message("9.10 ± 0.12 × 2 → \ud800")
    console.close()
    assert raw.getvalue() == b"9.10 ? 0.12 ? 2 ? ?\n"
    outcome = read_outcome(read_journal(make_every_verdict().write(tmp_path / RUN_NAME) / "journal.jsonl"))
    make_run_reports(outcome).print(tmp_path, stream, environ={})
    assert b"exit code 3" in raw.getvalue()


@pytest.mark.parametrize("make", [PlainProgress, lambda stream: LiveProgress(stream, width=80)])
def test_every_method_may_be_called_from_any_thread(make: Any) -> None:
    builder, stream = planned(60), Terminal()
    console: Painter = make(stream)
    console.run_started(builder.opening, len(builder.steps))

    def work(steps: Sequence[Step]) -> None:
        for step in steps:
            console.waiting("a lock")
            console.step_started(step)
            for done in range(20):
                console.download_progress(f"https://models.example/{step.id}", done, None)
            console.hash_progress(f"https://models.example/{step.id}", 10, 20)
            console.message("hello")
            console.download_finished(f"https://models.example/{step.id}")
            console.step_finished(step, result())

    threads = [threading.Thread(target=work, args=(builder.planned_steps[index::6],)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    console.close()
    console.close()
    assert "[60/60] " in stream.getvalue()


def test_a_terminal_gets_live_progress_and_a_dumb_one_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(open_progress(Terminal()), LiveProgress)
    assert isinstance(open_progress(io.StringIO()), PlainProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_progress(Terminal()), PlainProgress)


def test_live_progress_shows_what_runs_and_what_comes_down() -> None:
    builder, stream, clock = planned(3), Terminal(), Clock()
    with LiveProgress(stream, width=100, clock=clock) as progress:
        progress.run_started(builder.opening, len(builder.steps))
        progress.step_started(builder.planned_steps[0])
        progress.step_finished(builder.planned_steps[0], result("failed", "why"))
        progress.step_started(builder.planned_steps[1])
        progress.download_progress("https://models.example/deep/m.onnx", 0, 8_000_000)
        for second in (1, 2):
            clock.advance(1)
            progress.download_progress("https://models.example/deep/m.onnx", second * 2_000_000, 8_000_000)
        progress.download_finished("https://models.example/of/another")
        progress.status("block 3 of 20")
        progress.waiting("for a quiet machine")
        clock.advance(0.5)
        shown = painted(progress)
    assert [line.split() for line in shown] == [
        "━━━━━━━━━━━━━━━━━━━━ 1/3 1 failed; 2.50 s".replace("━" * 20, "━━━━━━╸━━━━━━━━━━━━━").split(),
        ["waiting", "for", "a", "quiet", "machine"],
        [shown[2].split()[0], "block", "3", "of", "20"],
        ["0:00:02", "ocr/s1@cpu", "compile"],
        ["↓", "m.onnx", "━━━━━━━━━━╺━━━━━━━━━", "50.0", "%", "4.0/8.0", "MB", "2.0", "MB/s", "2", "s", "left"],
    ]
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is shown again


def test_live_progress_of_many_steps_says_what_is_left() -> None:
    builder, clock = planned(400), Clock(100.0)
    with LiveProgress(Terminal(), width=100, clock=clock) as progress:
        progress.run_started(builder.opening, len(builder.steps))
        for step in builder.planned_steps[:100]:
            clock.advance(0.1)
            progress.step_finished(step, result())
        (head,) = painted(progress)
    assert head.endswith(" 100/400 100 passed; 10.0 s, about 30.0 s left")


@pytest.mark.parametrize(("verdict", "colour"), [("passed", "\x1b[32m"), ("failed", "\x1b[31m")])
def test_the_bar_of_live_progress_has_the_colour_of_the_worst_verdict(verdict: str, colour: str) -> None:
    builder = planned(4)
    with LiveProgress(Terminal(), width=100, clock=Clock(100.0)) as progress:
        progress.run_started(builder.opening, len(builder.steps))
        for step, word in zip(builder.planned_steps, (verdict, "passed"), strict=False):
            progress.step_finished(step, result(word))
        stream = io.StringIO()
        Console(file=stream, force_terminal=True, color_system="standard", width=100).print(progress)
    assert f"{colour}━" in stream.getvalue()


def test_live_progress_of_many_steps_is_bounded() -> None:
    builder, stream = planned(300), Terminal()
    with LiveProgress(stream, width=60) as progress:
        progress.run_started(builder.opening, len(builder.steps))
        for step in builder.planned_steps:
            progress.step_started(step)
        assert len(painted(progress)) == 10
        assert painted(progress)[-1].strip() == "and 292 more running"
        for index, step in enumerate(builder.planned_steps):
            progress.step_finished(step, result("error" if index == 7 else "passed", "why"))
        assert "300/300 1 error, 299 passed; " in painted(progress)[0]
    assert "passed  ocr" not in stream.getvalue()
    assert "ocr/s7@cpu" in stream.getvalue()


@pytest.mark.parametrize("height", [1, 2, 3, 4, 6, 9, 24, 60])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
@pytest.mark.parametrize("waiting", ["", "for a quiet machine"])
def test_live_progress_is_never_higher_than_the_terminal(height: int, count: int, waiting: str) -> None:
    builder = planned(9)
    with LiveProgress(Terminal(), width=80, clock=Clock()) as progress:
        progress._console.height = height
        progress.run_started(builder.opening, len(builder.steps))
        for index in range(count):
            progress.step_started(builder.planned_steps[index])
            progress.download_progress(f"https://models.example/{index}", 0, 1_000_000_000)
        progress.waiting(waiting)
        lines = painted(progress)
    assert len(lines) <= max(height - 1, 1)
    assert len(lines) <= 17
    assert max(map(len, lines)) <= 80
    # What is done, and what is waited for, come first.
    assert "0/9" in lines[0]
    assert not waiting or height < 3 or lines[1].strip() == "waiting for a quiet machine"
    if height >= 24 and count > 1:
        assert sum(line.startswith(f"downloading {count} files") for line in lines) == 1
        assert sum(line.startswith("↓") for line in lines) == min(count, 5)


def test_a_moment_of_work_shows_nothing_on_a_terminal() -> None:
    stream, clock = Terminal(), Clock()
    with LiveProgress(stream, width=80, clock=clock) as progress:
        progress.work("verifying", 10_000_000)
        for _ in range(9):
            clock.advance(0.1)
            progress.advance(1_000_000)
        assert stream.getvalue() == ""
        clock.advance(0.1)
        progress.advance(1_000_000)
        assert "\x1b[?25l" in stream.getvalue()
        assert painted(progress)[0].startswith("verifying")
    ended = stream.getvalue()
    assert ended.rindex("\x1b[?25h") > ended.rindex("\x1b[?25l"), "the cursor is shown again"
    progress.status("late news")
    assert stream.getvalue() == ended


def test_the_end_names_cause_measure_and_command(tmp_path: Path) -> None:
    text = printed(make_every_verdict(), tmp_path, io.StringIO())
    assert "\x1b" not in text
    lines = text.splitlines()
    at = lines.index("✗ failed: ocr/detector@cpu benchmark")
    assert lines[at + 1 : at + 6] == [
        "  time (mean): 12.40 ms exceeds 9.90 ms (golden 9.00 ms × 1.1): +25.3 %; specs/b.json: golden_time_ms.mi300",
        "  dispatches: 130 exceeds golden 126: +3.2 %",
        "Reproduce:",
        "    cd steps/ocr/detector@cpu/benchmark && iree-benchmark-module --device=local-task --module=m.vmfb",
        (
            f"full log runs/{RUN_NAME}/steps/ocr/detector@cpu/benchmark/stderr.txt"
            " · spec specs/regression_tests/ocr/detector.json"
        ),
    ]
    assert lines[-8:] == [
        "compiles: 2 from cache, 5 made; files: 1 present, 1 fetched",
        "time: 90.5 s; IREE's tools ran for 89.5 s in total",
        f"to find the cause, and to pack it up for others: gauntlet explain runs/{RUN_NAME}",
        "if a new figure is right: gauntlet golden.update proposes it",
        "",
        (
            "8 cases: 1 failed, 2 errors, 1 unexpected pass, 1 inconclusive, 1 passed, 1 expected failure, 1 skipped"
            " · 18 steps: 2 failed, 2 errors, 1 unexpected pass, 1 inconclusive, 8 passed, 1 expected failure,"
            " 3 skipped (2 after a failure)"
        ),
        f"reports in runs/{RUN_NAME}: junit.xml, summary.md, summary.html, summary.json",
        "exit code 3: an error prevented a verdict",
    ]


def test_a_green_run_ends_in_its_table(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("ocr", "cls", "compile")
    builder.begin()
    builder.result(step, cache=CACHE_HIT, statistics={"dispatch_count": 76})
    builder.end(seconds=1.0)
    assert printed(builder, tmp_path, io.StringIO()).splitlines() == [
        "",
        f"IREE Gauntlet: suite cpu, run {RUN_NAME}",
        "",
        "Figures",
        "verdict   model        compile  dispatches",
        "✓ passed  ocr/cls@cpu   cached          76",
        "",
        "judged: numbers 0, dispatches 0, sizes 0, times 0",
        "compiles: 1 from cache, 0 made; files: 0 present, 0 fetched",
        "time: 1.00 s; IREE's tools ran for 1.25 s in total",
        "",
        "1 case: 1 passed · 1 step: 1 passed",
        f"reports in runs/{RUN_NAME}: junit.xml, summary.md, summary.html, summary.json",
        "exit code 0: all as expected",
    ]


def test_colours_only_where_they_are_wanted(tmp_path: Path) -> None:
    coloured = printed(make_every_verdict(), tmp_path, Terminal())
    assert "\x1b[1;31m✗ failed" in coloured
    plain = printed(make_every_verdict(), tmp_path, Terminal(), environ={"TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b[31m" not in plain
    assert "\x1b[1;31m" not in plain


def test_a_command_is_never_broken_on_a_narrow_terminal(tmp_path: Path) -> None:
    text = printed(make_every_verdict(), tmp_path, io.StringIO(), width=30)
    command = "cd steps/minilm/l3@cpu/compile && iree-compile program.mlirbc --iree-hal-target-backends=llvm-cpu"
    assert command in text


@pytest.mark.parametrize(("width", "columns"), [(90, 5), (60, 4), (20, 2)])
def test_a_narrow_terminal_gets_fewer_columns(tmp_path: Path, width: int, columns: int) -> None:
    builder = JournalBuilder()
    step = builder.step("ocr", "classifier", "benchmark")
    builder.begin()
    checks = [make_check("dispatch_count", 76, 76), make_check("binary_size_bytes", 833_586, 840_000)]
    builder.result(step, checks=checks, samples=make_samples(9.0, 9.2), outputs=[make_comparison()])
    builder.end()
    lines = printed(builder, tmp_path, io.StringIO(), width=width).splitlines()
    names = ("verdict", "model", "time ms", "dispatches", "compile", "bytes", "quality")
    header = next(line for line in lines if line.startswith("verdict"))
    assert sum(name in header for name in names) == columns
    assert len(header) <= width


def test_many_failures_are_bounded_and_counted(tmp_path: Path) -> None:
    builder = JournalBuilder()
    steps = [builder.step("ops", f"op{index:03}", "compile") for index in range(150)]
    builder.begin()
    for index, step in enumerate(steps):
        tail = [f"line {number}" for number in range(100)]
        builder.result(
            step,
            "failed" if index >= 50 else "passed",
            "why",
            tail=tail,
            checks=[make_check("dispatch_count", 2, 1)] * 40,
        )
    builder.end(1)
    text = printed(builder, tmp_path, io.StringIO())
    assert "80 more went wrong; junit.xml and summary.json list them all." in text
    assert "  and 120 more, in the reports" in text
    assert text.count("Reproduce:") == 20
    assert "    line 80\n" in text
    assert "    line 79\n" not in text
    assert len(text.splitlines()) < 20 * 40 + 100
