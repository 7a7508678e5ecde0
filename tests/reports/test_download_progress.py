"""Progress of downloads: rates, names and remaining times, as numbers and as text for people."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.reports.live_progress import (
    LiveProgress,
    PlainProgress,
    format_download,
    format_download_end,
    format_download_start,
    format_download_total,
    format_progress_bytes,
    format_speed,
    format_time_left,
    shorten_name,
)
from tests.support.clocks import Clock
from tests.support.journal_builder import JournalBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

MB = 1_000_000
GB = 1_000_000_000
A, B = "https://models.example/llama/fp16/weights.irpa", "https://models.example/llama/int8/weights.irpa"


class Log(PlainProgress):
    """Lines of a log by a clock that the test sets; the test is the heartbeat."""

    def __init__(self) -> None:
        self.clock, self.written = Clock(), io.StringIO()
        super().__init__(self.written, clock=self.clock)
        self._closing.set()

    @property
    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()

    def fed(self, url: str, amounts: Sequence[int], total: int | None) -> None:
        """News of a download, a second apart."""
        for index, done in enumerate(amounts):
            self.clock.advance(min(index, 1))
            self.download_progress(url, done, total)

    @property
    def files(self) -> list[str]:
        return [
            format_download(task, shorten_name(task.fields["url"], self._urls))
            for task in self._list_active_file_tasks()
        ]

    @property
    def speeds(self) -> list[str]:
        return [format_speed(task) for task in self._list_active_file_tasks()]

    @property
    def lefts(self) -> list[str]:
        return [format_time_left(task) for task in self._list_active_file_tasks()]

    @property
    def together(self) -> str:
        downloads = self._list_downloads()
        return format_download_total(downloads) if downloads else ""


# Rates


def test_a_rate_is_that_of_the_last_half_minute() -> None:
    log = Log()
    log.fed(A, [*range(0, 100 * MB, MB), *range(100 * MB, 400 * MB, 5 * MB)], GB)
    assert log.speeds == ["5.0 MB/s"]
    assert log.lefts == ["2 min 01 s left"]


def test_no_rate_before_there_is_one() -> None:
    log = Log()
    log.fed(A, [MB], GB)
    assert log.files == ["downloading weights.irpa: 1.0 MB of 1.0 GB (0.1 %)"]


def test_what_an_earlier_attempt_had_left_is_no_speed() -> None:
    log = Log()
    log.fed(A, [9 * GB + second * MB for second in range(20)], 16 * GB)
    assert log.speeds == ["1.0 MB/s"]
    log.clock.advance(1)
    log.download_progress(A, 16 * GB, 16 * GB)
    log.download_finished(A)
    assert log.lines == [
        f"resuming {A} at 9.0 of 16.0 GB",
        "downloaded weights.irpa (16.0 GB, the missing 7.0 GB in 20.0 s, 350.0 MB/s)",
    ]


def test_a_first_block_is_no_resumption() -> None:
    log = Log()
    log.fed(A, [1 << 18], 16 * GB)
    log.clock.advance(10)
    log.download_progress(A, 16 * GB, 16 * GB)
    log.download_finished(A)
    assert log.lines == [f"downloading {A} (16.0 GB)", "downloaded weights.irpa (16.0 GB in 10.0 s, 1.6 GB/s)"]


def test_a_stall_shows_as_silence() -> None:
    log = Log()
    log.fed(A, range(0, 60 * MB, MB), GB)
    assert log.speeds == ["1.0 MB/s"]
    log.clock.advance(14)
    assert (log.speeds, log.lefts) == ([""], ["no data for 14 s"])


def test_a_new_beginning_is_measured_from_there() -> None:
    log = Log()
    log.fed(A, range(0, 60 * MB, MB), GB)
    log.fed(A, range(0, 12 * MB, 2 * MB), GB)
    assert log.files == ["downloading weights.irpa: 10.0 MB of 1.0 GB (1.0 %), 2.0 MB/s, 8 min 15 s left"]
    log.clock.advance(5)
    log.download_progress(A, GB, GB)
    log.download_finished(A)
    assert log.lines[-1] == "downloaded weights.irpa (1.0 GB in 10.0 s, 100.0 MB/s)"


def test_news_that_was_overtaken_changes_nothing() -> None:
    log = Log()
    log.fed(A, range(0, 60 * MB, MB), GB)
    before = log.files
    log.download_progress(A, 57 * MB, GB)
    log.download_progress(A, 58 * MB, GB)
    assert log.files == before


def test_what_is_hashed_has_arrived() -> None:
    log = Log()
    log.fed(A, [0, 50 * MB, 100 * MB], 100 * MB)
    for second in range(5):
        log.hash_progress(A, second * 20 * MB, 100 * MB)
        log.clock.advance(1)
    assert log.files == ["checking weights.irpa: 80.0 of 100.0 MB (80.0 %), 20.0 MB/s, 1 s left"]
    log.download_finished(A)
    # In less than the five seconds that are worth a line.
    assert log.lines == [f"downloading {A} (100.0 MB)"]


def test_what_has_no_size_arrives_when_it_is_hashed() -> None:
    log = Log()
    log.fed(A, [MB * second for second in range(21)], None)
    assert log.files == ["downloading weights.irpa: 20.0 MB, 1.0 MB/s"]
    log.hash_progress(A, 0, 20 * MB)
    log.clock.advance(20)
    log.download_finished(A)
    assert log.lines[1:] == ["downloaded weights.irpa (20.0 MB in 20.0 s, 1.0 MB/s)"]


def test_a_download_that_failed_did_not_arrive() -> None:
    log = Log()
    log.fed(A, range(0, 50 * MB, MB), 100 * MB)
    log.fed(B, range(0, 50 * MB, MB), None)
    for url in (A, B, "https://models.example/never"):
        log.download_finished(url)
    assert log.lines == [f"downloading {A} (100.0 MB)", f"downloading {B}"]
    assert log.files == []


def test_a_file_that_was_there_and_is_checked_did_not_arrive() -> None:
    log = Log()
    log.hash_progress(A, 0, GB)
    assert log.files == ["checking weights.irpa: 0 B of 1.0 GB (0 %)"]
    log.clock.advance(60)
    log.download_finished(A)
    assert log.lines == []


def test_what_was_checked_in_vain_is_downloaded_again() -> None:
    log = Log()
    log.fed(A, [0, 100 * MB], 100 * MB)
    log.hash_progress(A, 100 * MB, 100 * MB)
    log.download_progress(A, 0, 100 * MB)
    assert log.lines == [f"downloading {A} (100.0 MB)"] * 2
    assert log.files == ["downloading weights.irpa: 0 B of 100.0 MB (0 %)"]


def test_all_together() -> None:
    log = Log()
    for second in range(11):
        log.download_progress(A, second * MB, 100 * MB)
        assert log.together == "" or second
        log.download_progress(B, second * 2 * MB, 50 * MB)
        log.clock.advance(1)
    # Never before the slowest one.
    assert log.together == "downloading 2 files: 30.0 of 150.0 MB (20.0 %), 3.0 MB/s, 90 s left"
    log.download_progress("https://models.example/c", 0, None)
    assert log.together == "downloading 3 files: 30.0 MB, 3.0 MB/s, 90 s left"


def test_what_has_arrived_stays_in_the_sum_until_nothing_is_under_way() -> None:
    log = Log()
    urls = [f"https://models.example/{name}" for name in "abc"]
    for url in urls:
        log.download_progress(url, 0, 10 * MB)
    log.download_progress(urls[0], 10 * MB, 10 * MB)
    log.download_finished(urls[0])
    assert log.together == "downloading 2 files: 10.0 of 30.0 MB (33.3 %)"
    for url in urls[1:]:
        log.hash_progress(url, 0, 10 * MB)
    assert log.together == "", "what is hashed is not on its way any more"
    for url in urls:
        log.download_finished(url)
    for url in urls[:2]:
        log.download_progress(url, 0, 10 * MB)
    assert log.together == "downloading 2 files: 0 B of 20.0 MB (0 %)"


@st.composite
def news(draw: st.DrawFn) -> list[tuple[str, float, str, int, int | None]]:
    kinds = st.sampled_from(["download", "checking", "finished"])
    seconds = st.floats(0, 40, allow_nan=False)
    sizes = st.one_of(st.integers(0, 50), st.integers(0, 20 * GB))
    totals = st.one_of(st.none(), st.just(0), sizes)
    return draw(st.lists(st.tuples(kinds, seconds, st.sampled_from([A, B, "x", ""]), sizes, totals), max_size=40))


@given(news())
def test_whatever_is_reported_every_text_can_be_made(reported: Any) -> None:
    log = Log()
    live = LiveProgress(io.StringIO(), width=80, clock=log.clock)
    for kind, seconds, url, done, total in reported:
        log.clock.advance(seconds)
        for progress in (log, live):
            if kind == "download":
                progress.download_progress(url, done, total)
            elif kind == "checking":
                progress.hash_progress(url, done, total or 0)
            else:
                progress.download_finished(url)
        assert all("\n" not in text and " -" not in text for text in (*log.files, log.together))
        log._write_due_lines(log.clock.now)
    assert all(line for line in live._console.render_lines(live))
    live.close()


@given(st.integers(10_000, 2 * GB), st.lists(st.floats(0.05, 1.9), min_size=30, max_size=60), st.integers(0, GB))
def test_the_time_left_only_falls_while_the_rate_is_constant(rate: int, pauses: list[float], first: int) -> None:
    total, log, lefts = first + 200 * rate, Log(), []
    began = log.clock.now
    log.download_progress(A, first, total)
    for pause in pauses:
        log.clock.advance(pause)
        log.download_progress(A, first + int((log.clock.now - began) * rate), total)
        (task,) = log._list_active_file_tasks()
        if task.time_remaining is not None:
            lefts.append(task.time_remaining)
    # In whole seconds.
    assert all(late <= early + 1 for early, late in pairwise(lefts))
    assert lefts[-1] == pytest.approx(200 - (log.clock.now - began), abs=2)


# Names


def test_a_name_is_as_long_as_it_must_be() -> None:
    urls = [A, B, "https://other.example/model.onnx", "https://h.example/get?id=1", "https://h.example/get?id=2"]
    assert [shorten_name(url, urls) for url in urls] == [
        "fp16/weights.irpa",
        "int8/weights.irpa",
        "model.onnx",
        "get?id=1",
        "get?id=2",
    ]


@given(st.lists(st.text("ab/?.", max_size=9).map("https://h/".__add__), unique=True, max_size=8))
def test_names_tell_urls_apart(urls: list[str]) -> None:
    assert len({shorten_name(url, urls) for url in urls}) == len(urls)


# Texts


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        (3_200_000_000, 16_100_000_000, "3.2 of 16.1 GB"),
        (12_000_000, 16_100_000_000, "12.0 MB of 16.1 GB"),
        (0, 100, "0 of 100 B"),
        (12_000_000, None, "12.0 MB"),
        (0, 0, "0 B"),
    ],
)
def test_bytes_of_bytes(done: int, total: int | None, text: str) -> None:
    assert format_progress_bytes(done, total) == text


def test_lines_of_a_log() -> None:
    assert format_download_start(A, 0, 16_100_000_000, resumed=False) == f"downloading {A} (16.1 GB)"
    assert format_download_start(A, 3_200_000_000, 16_100_000_000, resumed=True) == f"resuming {A} at 3.2 of 16.1 GB"
    assert format_download_start(A, 0, None, resumed=False) == f"downloading {A}"
    whole, part = format_download_end("x", 16.1e9, 16.1e9, 200), format_download_end("x", 16.1e9, 8e9, 100)
    assert whole == "downloaded x (16.1 GB in 3 min 20 s, 80.5 MB/s)"
    assert part == "downloaded x (16.1 GB, the missing 8.0 GB in 100.0 s, 80.0 MB/s)"
    assert format_download_end("x", 10, 10, 4.9) == ""


# Painters


def planned() -> JournalBuilder:
    builder = JournalBuilder()
    for name in ("s0", "s1"):
        builder.step("ocr", name, "fetch")
    builder.begin()
    return builder


def test_a_log_of_downloads() -> None:
    log = Log()
    log.download_progress(A, 0, 100 * MB)
    log.download_progress(B, 40 * MB, 100 * MB)
    for second in range(1, 41):
        log.clock.advance(1)
        log.download_progress(A, second * 2 * MB, 100 * MB)
        log.download_progress(B, 40 * MB + second * MB, 100 * MB)
        log._write_due_lines(log.clock.now)
    log.clock.advance(20)
    log.download_progress(A, 100 * MB, 100 * MB)
    log.hash_progress(A, 0, 100 * MB)
    log.download_finished(A)
    log.download_finished(B)
    assert log.lines == [
        f"downloading {A} (100.0 MB)",
        f"resuming {B} at 40.0 of 100.0 MB",
        "downloading 2 files: 130.0 of 200.0 MB (65.0 %), 3.0 MB/s, 30 s left",
        "downloading fp16/weights.irpa: 60.0 of 100.0 MB (60.0 %), 2.0 MB/s, 20 s left",
        "downloading int8/weights.irpa: 70.0 of 100.0 MB (70.0 %), 1.0 MB/s, 30 s left",
        "downloaded fp16/weights.irpa (100.0 MB in 60.0 s, 1.7 MB/s)",
    ]


def test_what_runs_during_a_long_download_is_shown_too() -> None:
    log, builder = Log(), planned()
    log.run_started(builder.opening, len(builder.steps))
    log.step_started(builder.planned_steps[0])
    log.download_progress(A, 0, GB)
    for second in range(1, 95):
        log.clock.advance(1)
        log.download_progress(A, second * MB, GB)
        log._write_due_lines(log.clock.now)
    assert sum("still running" in line for line in log.lines) == 3
    assert sum(line.startswith("downloading weights.irpa: ") for line in log.lines) == 3


def test_live_progress_keeps_a_line_of_what_was_resumed_and_what_took_long() -> None:
    clock, stream = Clock(), io.StringIO()
    with LiveProgress(stream, width=200, colour=False, clock=clock) as progress:
        progress._show = lambda **_: None  # type: ignore[method-assign]
        progress.download_progress(A, 40 * MB, 100 * MB)
        clock.advance(10)
        progress.download_progress(A, 100 * MB, 100 * MB)
        progress.hash_progress(A, 0, 100 * MB)
        progress.download_finished(A)
        progress.download_progress(B, 0, MB)
        progress.download_finished(B)
    assert stream.getvalue().splitlines() == [
        f"resuming {A} at 40.0 of 100.0 MB",
        "downloaded weights.irpa (100.0 MB, the missing 60.0 MB in 10.0 s, 6.0 MB/s)",
    ]


def test_a_log_of_work_on_bytes() -> None:
    log = Log()
    log.work("verifying", 100 * MB)
    for _ in range(65):
        log.clock.advance(1)
        log.advance(MB)
        log._write_due_lines(log.clock.now)
    assert log.lines == [
        "verifying: 30.0 of 100.0 MB (30.0 %), 1.0 MB/s, 70 s left",
        "verifying: 60.0 of 100.0 MB (60.0 %), 1.0 MB/s, 40 s left",
    ]


def test_what_is_cancelled_ends_at_its_next_block() -> None:
    log = Log()
    log.work("packing", GB)
    log.download_progress(A, 0, GB)
    log.cancel()
    with pytest.raises(GauntletError, match=f"{A}: interrupted"):
        log.download_progress(A, 1, GB)
    with pytest.raises(GauntletError, match="interrupted"):
        log.hash_progress(A, 1, GB)
    with pytest.raises(GauntletError, match="interrupted"):
        log.advance(1)
    log.download_finished(A)
    log.note(A, "kept for the next attempt")
    assert log.lines == [f"downloading {A} (1.0 GB)", f"{A}: kept for the next attempt"]
