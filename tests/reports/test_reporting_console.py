from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest

from iree_gauntlet.cases import Verdict
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.reporting.console import Console, PlainConsole, open_console
from iree_gauntlet.reporting.final import print_final
from iree_gauntlet.reporting.live import LiveConsole
from iree_gauntlet.reporting.outcome import outcome_of
from iree_gauntlet.reporting.pace import Pace
from iree_gauntlet.results import CacheUse, Result
from tests.support.clocks import Clock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.journal_builder import HIT, RUN, JournalBuilder, check, comparison, every_verdict, samples
from tests.support.processes import wait_until


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


def result(verdict: str = "passed", reason: str = "", cache: CacheUse | None = None) -> Result:
    return Result(Verdict(verdict), reason, seconds=8.21, cache=cache)


def printed(builder: JournalBuilder, folder: Path, stream: io.StringIO, **options: Any) -> str:
    outcome = outcome_of(read_journal(builder.write(folder / RUN) / "journal.jsonl"))
    environ = options.pop("environ", {"TERM": "xterm"})
    print_final(outcome, Path("runs") / RUN, stream, environ=environ, **options)
    return stream.getvalue()


def test_a_line_for_each_finished_step() -> None:
    builder, stream = planned(), io.StringIO()
    console = PlainConsole(stream)
    console.run_started(builder.lines[0])
    for step, found in zip(
        builder.steps, [result(cache=CacheUse(True)), result("failed", "no such op\nat all")], strict=True
    ):
        console.step_started(step)
        console.step_finished(step, found)
    console.close()
    assert stream.getvalue() == (
        f"run {RUN}: 2 steps, IREE 3.13.0rc20261016\n"
        "[1/2] passed  ocr/s0@cpu compile  8.21 s (cached)\n"
        "[2/2] failed  ocr/s1@cpu compile  8.21 s: no such op at all\n"
    )


def test_of_many_steps_what_went_wrong_has_a_line_and_the_rest_is_counted() -> None:
    builder, stream = planned(1000), io.StringIO()
    now = [100.0]
    console = PlainConsole(stream, clock=lambda: now[0])
    # No heartbeat but the test's own.
    console._closing.set()
    console.run_started({**builder.lines[0], "steps": builder.steps})
    for index, step in enumerate(builder.steps[:600]):
        verdict = {7: "failed", 8: "error", 9: "xfailed", 10: "skipped"}.get(index, "passed")
        console.step_started(step)
        now[0] += 0.125
        console.step_finished(step, result(verdict, "" if verdict == "passed" else "why"))
        console._tell(now[0])
    console.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 + 2 + 7
    assert lines[1] == "[   8/1000] failed  ocr/s7@cpu compile  8.21 s: why"
    assert lines[2] == "[   9/1000] error   ocr/s8@cpu compile  8.21 s: why"
    assert lines[-1] == "[ 560/1000] 1 error, 1 failed, 556 passed, 1 skipped, 1 xfailed; 70.0 s, about 55.0 s left"


def test_what_is_left_goes_by_the_last_minute() -> None:
    pace = Pace(0.0, 10_000)
    now = 0.0
    for _ in range(5_000):
        now += 0.001
        pace.finished(now, "passed")
    assert pace.left(now) == "about 5.00 s left"
    for _ in range(130):
        now += 1.0
        pace.finished(now, "passed")
    assert pace.left(now) == "about 1 h 21 min left"
    assert len(pace._marks) < 70


def test_nothing_is_said_of_what_is_left_where_nothing_is_known() -> None:
    pace = Pace(0.0, 1)
    assert pace.left(100.0) == ""
    pace.finished(2.0, "passed")
    assert pace.left(100.0) == ""


def test_a_resumed_run_and_a_skipped_step_say_so() -> None:
    builder, stream = planned(1), io.StringIO()
    console = PlainConsole(stream)
    console.run_started({**builder.lines[0], "resumed": True})
    console.step_finished(builder.steps[0], result("skipped", "not on this chip"))
    console.close()
    assert stream.getvalue().splitlines() == [
        f"resuming run {RUN}: 1 step, IREE 3.13.0rc20261016",
        "[1/1] skipped ocr/s0@cpu compile: not on this chip",
    ]


def test_silence_is_broken_by_what_is_running() -> None:
    builder, stream, clock = planned(), io.StringIO(), Clock()
    # A thread looks at the clock time and again, and speaks once the test has set it forward.
    console = PlainConsole(stream, heartbeat=0.0004, clock=clock)
    console.run_started(builder.lines[0])
    console.step_started(builder.steps[0])
    console.download("https://models.example/m.onnx", 2_000_000, 8_000_000)
    console.waiting("for the device lock of hip://0")
    clock.now += 42.0
    wait_until(lambda: "still running" in stream.getvalue() and "m.onnx: " in stream.getvalue())
    console.close()
    lines = stream.getvalue().splitlines()
    (line,) = [line for line in lines if "still running" in line]
    assert line == "[0/2] still running: ocr/s0@cpu compile (42.0 s); waiting for the device lock of hip://0"
    assert "downloading m.onnx: 2.0 of 8.0 MB (25.0 %), nothing for 42 s" in lines


def test_the_heartbeat_ends_where_nobody_reads() -> None:
    builder, stream = planned(), io.StringIO()
    clock = Clock()
    console = PlainConsole(stream, heartbeat=0.0004, clock=clock)
    console.run_started(builder.lines[0])
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
    console = PlainConsole(stream)
    for done in (0, 500_000, 1_000_000):
        console.download("https://models.example/m.onnx", done, 1_000_000)
        console.waiting("for another run, which compiles it")
    console.close()
    assert stream.getvalue().splitlines() == [
        "downloading https://models.example/m.onnx (1.0 MB)",
        "waiting for another run, which compiles it",
    ]


def test_no_control_sequence_reaches_a_log() -> None:
    builder, stream = planned(1), io.StringIO()
    console = PlainConsole(stream)
    console.message("\x1b[31mred\x1b[0m")
    console.step_finished(builder.steps[0], result("error", "\x1b[2Jgone \x07"))
    console.close()
    assert "\x1b" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()


def test_an_encoding_that_lacks_characters_is_no_crash(tmp_path: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = PlainConsole(stream)
    console.message("9.10 ± 0.12 × 2 → \ud800")
    console.close()
    assert raw.getvalue() == b"9.10 ? 0.12 ? 2 ? ?\n"
    outcome = outcome_of(read_journal(every_verdict().write(tmp_path / RUN) / "journal.jsonl"))
    print_final(outcome, tmp_path, stream, environ={})
    assert b"exit code 3" in raw.getvalue()


@pytest.mark.parametrize("make", [PlainConsole, lambda stream: LiveConsole(stream, width=80)])
def test_every_method_may_be_called_from_any_thread(make: Any) -> None:
    builder, stream = planned(60), Terminal()
    console: Console = make(stream)
    console.run_started(builder.lines[0])

    def work(steps: list[dict[str, Any]]) -> None:
        for step in steps:
            console.waiting("a lock")
            console.step_started(step)
            for done in range(20):
                console.download(f"https://models.example/{step['id']}", done, None)
            console.checking(f"https://models.example/{step['id']}", 10, 20)
            console.message("hello")
            console.download_finished(f"https://models.example/{step['id']}")
            console.step_finished(step, result())

    threads = [threading.Thread(target=work, args=(builder.steps[index::6],)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    console.close()
    console.close()
    assert "[60/60] " in stream.getvalue()


def test_a_terminal_gets_live_progress_and_a_dumb_one_lines() -> None:
    live = open_console(Terminal(), {"TERM": "xterm"})
    assert isinstance(live, LiveConsole)
    assert isinstance(open_console(Terminal(), {"TERM": "dumb"}), PlainConsole)
    assert isinstance(open_console(io.StringIO(), {"TERM": "xterm"}), PlainConsole)


def test_live_progress_shows_what_runs_and_what_comes_down() -> None:
    builder, stream = planned(3), Terminal()
    now = [100.0]
    console = LiveConsole(stream, width=60, clock=lambda: now[0])
    console.run_started(builder.lines[0])
    console.step_started(builder.steps[0])
    console.step_finished(builder.steps[0], result("failed", "why"))
    console.step_started(builder.steps[1])
    console.download("https://models.example/deep/m.onnx", 0, 8_000_000)
    now[0] += 1
    console.download("https://models.example/deep/m.onnx", 2_000_000, 8_000_000)
    console.download_finished("https://models.example/of/another")
    console.waiting("for a quiet machine")
    now[0] += 1.5
    shown = [line.plain for line in console._lines()]
    console.close()
    assert shown == [
        "1/3 done · 2.50 s · 1 failed",
        "     2.50 s  ocr/s1@cpu compile",
        "  ↓ m.onnx  25.0 %   2.0 MB/s  3 s left",
        "  waiting for a quiet machine",
    ]
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is shown again


def test_live_progress_of_many_steps_says_what_is_left() -> None:
    builder, stream = planned(400), Terminal()
    now = [100.0]
    console = LiveConsole(stream, width=100, clock=lambda: now[0])
    console.run_started(builder.lines[0])
    for step in builder.steps[:100]:
        now[0] += 0.1
        console.step_finished(step, result())
    head = console._lines()[0].plain
    console.close()
    assert head == "100/400 done · 10.0 s, about 30.0 s left · 100 passed"


def test_live_progress_of_many_steps_is_bounded() -> None:
    builder, stream = planned(300), Terminal()
    console = LiveConsole(stream, width=60)
    console.run_started(builder.lines[0])
    for step in builder.steps:
        console.step_started(step)
    assert len(console._lines()) <= 12
    for index, step in enumerate(builder.steps):
        console.step_finished(step, result("error" if index == 7 else "passed", "why"))
    console.close()
    assert "passed ocr" not in stream.getvalue()
    assert "300/300 done" in stream.getvalue()
    assert "299 passed" in stream.getvalue()
    assert "ocr/s7@cpu" in stream.getvalue()


def test_the_end_names_cause_measure_and_command(tmp_path: Path) -> None:
    text = printed(every_verdict(), tmp_path, io.StringIO())
    assert "\x1b" not in text
    lines = text.splitlines()
    at = lines.index("failed  ocr/detector@cpu benchmark: time (mean) is 25.3 % over its limit")
    assert lines[at + 1 : at + 5] == [
        (
            "    time (mean): 12.40 ms is over 9.90 ms (golden 9.00 ms × 1.1) by 2.50 ms, +25.3 %;"
            " specs/b.json: golden_time_ms.mi300"
        ),
        "    dispatches: 130 is over golden 126 by 4, +3.2 %",
        (
            "    reproduce: cd steps/ocr/detector@cpu/benchmark && iree-benchmark-module"
            " --device=local-task --module=m.vmfb"
        ),
        f"    full log:  runs/{RUN}/steps/ocr/detector@cpu/benchmark/stderr.txt",
    ]
    assert lines[-5:] == [
        (
            "2 failed, 2 errors, 1 unexpected pass, 1 inconclusive, 8 passed, 1 expected failure,"
            " 3 skipped (2 behind a failure)"
        ),
        "compiles: 2 from cache, 5 made; downloads: 1 present, 1 fetched",
        f"reports in runs/{RUN}: junit.xml, summary.md, summary.json",
        "time: 90.5 s; IREE's tools ran for 89.5 s in all",
        "exit code 3: an error kept something from being judged",
    ]


def test_a_green_run_ends_in_its_table(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("ocr", "cls", "compile")
    builder.begin()
    builder.result(step, cache=HIT, statistics={"dispatch_count": 76})
    builder.end(seconds=1.0)
    assert printed(builder, tmp_path, io.StringIO()).splitlines() == [
        "",
        "verdict  model        compile  time ms  dispatches  bytes  quality",
        "passed   ocr/cls@cpu   cached        –          76      –  –",
        "",
        "1 passed",
        "compiles: 1 from cache, 0 made; downloads: 0 present, 0 fetched",
        f"reports in runs/{RUN}: junit.xml, summary.md, summary.json",
        "time: 1.00 s; IREE's tools ran for 1.25 s in all",
        "exit code 0: all as expected",
    ]


def test_colours_only_where_they_are_wanted(tmp_path: Path) -> None:
    coloured = printed(every_verdict(), tmp_path, Terminal())
    assert "\x1b[1;31mfailed" in coloured
    plain = printed(every_verdict(), tmp_path, Terminal(), environ={"TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b[31m" not in plain
    assert "\x1b[1;31m" not in plain


def test_a_command_is_never_broken_on_a_narrow_terminal(tmp_path: Path) -> None:
    text = printed(every_verdict(), tmp_path, io.StringIO(), width=30)
    command = "cd steps/minilm/l3@cpu/compile && iree-compile program.mlirbc --iree-hal-target-backends=llvm-cpu"
    assert command in text


@pytest.mark.parametrize(("width", "columns"), [(90, 6), (60, 4), (20, 2)])
def test_a_narrow_terminal_gets_fewer_columns(tmp_path: Path, width: int, columns: int) -> None:
    builder = JournalBuilder()
    step = builder.step("ocr", "classifier", "benchmark")
    builder.begin()
    checks = [check("dispatch_count", 76, 76), check("binary_size_bytes", 833_586, 840_000)]
    builder.result(step, checks=checks, samples=samples(9.0, 9.2), outputs=[comparison()])
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
            checks=[check("dispatch_count", 2, 1)] * 40,
        )
    builder.end(1)
    text = printed(builder, tmp_path, io.StringIO())
    assert f"and 80 more, all of them in runs/{RUN}/summary.md" in text
    assert f"and 90 more, all of them in runs/{RUN}/summary.md" in text
    assert text.count("reproduce:") == 20
    assert "    | line 80\n" in text
    assert "    | line 79\n" not in text
    assert len(text.splitlines()) < 20 * 40 + 100
