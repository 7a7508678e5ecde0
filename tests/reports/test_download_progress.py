"""Progress of downloads: rates, names and times left, as figures and as people read them."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.reporting.console import PlainConsole
from iree_gauntlet.reporting.download_rates import Arrival, Beginning, Downloads, Figures, Names, Speed
from iree_gauntlet.reporting.download_text import (
    arrival_text,
    beginning_text,
    bytes_text,
    columns,
    progress_text,
    time_left,
)
from iree_gauntlet.reporting.live import LiveConsole
from iree_gauntlet.tasks.execute import _Downloads
from tests.support.journal_builder import JournalBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

MB = 1_000_000
GB = 1_000_000_000
A, B = "https://models.example/llama/fp16/weights.irpa", "https://models.example/llama/int8/weights.irpa"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fed(url: str, amounts: Sequence[int], total: int | None, *, step: float = 1.0) -> tuple[Downloads, float]:
    """A table that one download's news was told to, evenly in time, and the time of the last."""
    downloads, now = Downloads(), 50.0
    for index, done in enumerate(amounts):
        now = 50.0 + index * step
        downloads.update(now, url, done, total)
    return downloads, now


# Rates


def test_a_rate_is_that_of_the_last_ten_seconds() -> None:
    downloads, now = fed(A, [*range(0, 100 * MB, MB), *range(100 * MB, 200 * MB, 5 * MB)], GB)
    (figures,) = downloads.running(now)
    assert figures.rate == pytest.approx(5 * MB)
    assert figures.left == pytest.approx((GB - 195 * MB) / (5 * MB))


def test_no_rate_before_there_is_one() -> None:
    downloads, now = fed(A, [MB], GB)
    assert downloads.running(now)[0].rate is None
    assert downloads.running(now)[0].left is None
    downloads.update(now + 0.1, A, 2 * MB, GB)
    assert downloads.running(now + 0.1)[0].rate is None


def test_what_an_earlier_attempt_had_left_is_no_speed() -> None:
    downloads = Downloads()
    assert downloads.update(0, A, 9 * GB, 16 * GB) == Beginning(A, 16 * GB, 9 * GB)
    for second in range(1, 20):
        downloads.update(second, A, 9 * GB + second * MB, 16 * GB)
    assert downloads.running(19)[0].rate == pytest.approx(MB)
    downloads.update(20, A, 16 * GB, 16 * GB)
    assert downloads.finished(20, A) == Arrival("weights.irpa", 16 * GB, 7 * GB, 20)


def test_a_first_block_is_no_resumption() -> None:
    downloads = Downloads()
    assert downloads.update(0, A, 1 << 18, 16 * GB) == Beginning(A, 16 * GB, 0)
    downloads.update(10, A, 16 * GB, 16 * GB)
    assert downloads.finished(10, A) == Arrival("weights.irpa", 16 * GB, 16 * GB, 10)


def test_a_stall_shows_in_the_rate_and_then_as_silence() -> None:
    downloads, now = fed(A, range(0, 60 * MB, MB), GB)
    rates = [downloads.running(now + seconds)[0].rate for seconds in range(15)]
    assert rates[0] == pytest.approx(MB)
    assert all(late is not None and early is not None and late <= early for early, late in pairwise(rates))
    assert rates[-1] == 0
    (figures,) = downloads.running(now + 14)
    assert figures.left is None
    assert figures.silence == 14


def test_a_new_beginning_is_measured_from_there() -> None:
    downloads, now = fed(A, range(0, 60 * MB, MB), GB)
    for second in range(1, 6):
        downloads.update(now + second, A, second * 2 * MB, GB)
    (figures,) = downloads.running(now + 5)
    assert figures.done == 10 * MB
    assert figures.rate == pytest.approx(2 * MB)


def test_news_that_was_overtaken_changes_nothing() -> None:
    downloads, now = fed(A, range(0, 60 * MB, MB), GB)
    downloads.update(now, A, 58 * MB, GB)
    assert downloads.running(now)[0].done == 59 * MB


def test_a_download_is_timed_until_it_has_arrived_not_until_it_is_checked() -> None:
    downloads, now = fed(A, [0, 50 * MB, 100 * MB], 100 * MB)
    for second in range(5):
        downloads.checking(now + second, A, second * 20 * MB, 100 * MB)
    (figures,) = downloads.running(now + 4)
    assert figures.checking
    assert figures.rate == pytest.approx(20 * MB)
    assert downloads.finished(now + 5, A) == Arrival("weights.irpa", 100 * MB, 100 * MB, 2)


def test_a_download_that_failed_did_not_arrive() -> None:
    downloads, now = fed(A, [0, 50 * MB], 100 * MB)
    assert downloads.finished(now, A) is None
    downloads.update(now, B, 5, None)
    assert downloads.finished(now, B) is None
    assert downloads.idle
    assert downloads.finished(now, "https://models.example/never") is None


def test_a_file_that_was_there_and_is_checked_did_not_arrive() -> None:
    downloads = Downloads()
    downloads.checking(0, A, 0, GB)
    assert [figures.checking for figures in downloads.running(1)] == [True]
    assert downloads.together(1) is None
    assert downloads.finished(2, A) is None


def test_what_was_checked_in_vain_is_downloaded_anew() -> None:
    downloads, now = fed(A, [0, 100 * MB], 100 * MB)
    downloads.checking(now, A, 100 * MB, 100 * MB)
    assert downloads.update(now, A, 0, 100 * MB) == Beginning(A, 100 * MB, 0)
    assert not downloads.running(now)[0].checking


def test_all_together() -> None:
    downloads = Downloads()
    for second in range(11):
        downloads.update(second, A, second * MB, 100 * MB)
        downloads.update(second, B, second * 2 * MB, 50 * MB)
    figures = downloads.together(10)
    assert figures is not None
    assert (figures.files, figures.done, figures.total) == (2, 30 * MB, 150 * MB)
    assert figures.rate == pytest.approx(3 * MB)
    # Never before the slowest one.
    assert figures.left == pytest.approx(90)


def test_what_has_arrived_stays_in_the_sum_until_nothing_is_under_way() -> None:
    downloads = Downloads()
    urls = [f"https://models.example/{name}" for name in "abc"]
    for url in urls:
        downloads.update(0, url, 0, 10 * MB)
    downloads.update(1, urls[0], 10 * MB, 10 * MB)
    downloads.checking(1, urls[1], 0, 10 * MB)
    downloads.finished(1, urls[0])
    figures = downloads.together(1)
    assert figures is not None
    assert (figures.files, figures.done, figures.total) == (2, 20 * MB, 30 * MB)
    for url in urls:
        downloads.finished(2, url)
    for url in urls[:2]:
        downloads.update(3, url, 0, 10 * MB)
    figures = downloads.together(3)
    assert figures is not None
    assert (figures.done, figures.total) == (0, 20 * MB)


def test_a_total_that_nobody_knows() -> None:
    downloads, now = fed(A, range(0, 20 * MB, MB), None)
    downloads.update(now, B, 0, GB)
    figures = downloads.together(now)
    assert figures is not None
    assert figures.total is None
    assert figures.left is None
    assert progress_text(downloads.running(now)[0]) == "downloading fp16/weights.irpa: 19.0 MB, 1.0 MB/s"


@st.composite
def news(draw: st.DrawFn) -> list[tuple[float, str, int, int | None]]:
    seconds = st.floats(0, 40, allow_nan=False)
    sizes = st.one_of(st.integers(0, 50), st.integers(0, 20 * GB))
    totals = st.one_of(st.none(), st.just(0), sizes)
    return draw(st.lists(st.tuples(seconds, st.sampled_from([A, B, "x", ""]), sizes, totals), max_size=40))


@given(news(), st.lists(st.sampled_from(["update", "checking", "finished"]), max_size=40))
def test_whatever_is_told_no_figure_is_negative_and_every_text_can_be_made(told: Any, kinds: list[str]) -> None:
    downloads, now = Downloads(), 0.0
    for (seconds, url, done, total), kind in zip(told, [*kinds, *["update"] * 40], strict=False):
        now += seconds
        if kind == "update":
            begun = downloads.update(now, url, done, total)
            assert begun is None or beginning_text(begun)
        elif kind == "checking":
            downloads.checking(now, url, done, total or 0)
        else:
            arrival = downloads.finished(now, url)
            if arrival is not None:
                assert min(arrival.total, arrival.arrived, arrival.seconds) >= 0
                arrival_text(arrival)
        together = downloads.together(now)
        files = downloads.running(now + seconds / 7)
        for figures in [*files, *([together] if together else [])]:
            assert min(figures.done, figures.total or 0, figures.rate or 0, figures.left or 0, figures.silence) >= 0
            assert figures.total is None or figures.done <= figures.total
            assert "\n" not in progress_text(figures)
        columns(together, files, 80)


@given(
    st.integers(10_000, 2 * GB),
    st.lists(st.floats(0.05, 1.9), min_size=30, max_size=60),
    st.integers(0, GB),
)
def test_the_time_left_only_falls_while_the_rate_is_constant(rate: int, pauses: list[float], first: int) -> None:
    total = first + 200 * rate
    downloads, now, lefts = Downloads(), 7.0, []
    downloads.update(now, A, first, total)
    for pause in pauses:
        now += pause
        downloads.update(now, A, first + int((now - 7.0) * rate), total)
        for later in (0.0, pause / 2):
            left = downloads.running(now + later)[0].left
            if left is not None:
                lefts.append(left)
    # A whole byte is the smallest that is told, so that a rate is off by up to 0.04 %.
    assert all(late <= early * 1.001 for early, late in pairwise(lefts))
    assert lefts[-1] == pytest.approx(200 - (now - 7.0), rel=0.01)


def test_a_speed_remembers_ten_seconds_only() -> None:
    speed = Speed(0.0)
    for index in range(100_000):
        speed.add(index / 100, 1000)
    assert len(speed._samples) < 60
    assert speed.rate(1000.0) == pytest.approx(100_000, rel=0.01)


# Names


def test_a_name_is_as_long_as_it_must_be() -> None:
    names = Names()
    urls = [A, B, "https://other.example/model.onnx", "https://h.example/get?id=1", "https://h.example/get?id=2"]
    for url in [*urls, *urls]:
        names.add(url)
    assert [names.short(url) for url in urls] == [
        "fp16/weights.irpa",
        "int8/weights.irpa",
        "model.onnx",
        "get?id=1",
        "get?id=2",
    ]


@given(st.lists(st.text("ab/?.", max_size=9).map("https://h/".__add__), unique=True, max_size=8))
def test_names_tell_urls_apart(urls: list[str]) -> None:
    names = Names()
    for url in urls:
        names.add(url)
    assert len({names.short(url) for url in urls}) == len(urls)


# Texts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.2, "1 s"),
        (59.1, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7380, "2 h 03 min"),
        (4.2 * 86400, "4 days"),
    ],
)
def test_time_left(seconds: float, text: str) -> None:
    assert time_left(seconds) == text


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
    assert bytes_text(done, total) == text


def test_lines_of_a_log() -> None:
    assert beginning_text(Beginning(A, 16_100_000_000, 0)) == f"downloading {A} (16.1 GB)"
    assert beginning_text(Beginning(A, 16_100_000_000, 3_200_000_000)) == f"resuming {A} at 3.2 of 16.1 GB"
    assert beginning_text(Beginning(A, None, 0)) == f"downloading {A}"
    assert arrival_text(Arrival("x", 16_100_000_000, 16_100_000_000, 200)) == (
        "downloaded x (16.1 GB in 3 min 20 s, 80.5 MB/s)"
    )
    assert arrival_text(Arrival("x", 16_100_000_000, 8_000_000_000, 100)) == (
        "downloaded x (16.1 GB, the missing 8.0 GB in 100.0 s, 80.0 MB/s)"
    )
    assert arrival_text(Arrival("x", 10, 10, 4.9)) == ""
    going = Figures("x", 3_200_000_000, 16_100_000_000, 80_100_000, 161, 0.1)
    assert progress_text(going) == "downloading x: 3.2 of 16.1 GB (19.9 %), 80.1 MB/s, 2 min 41 s left"
    stalled = Figures("x", 3_200_000_000, 16_100_000_000, 0, None, 33.2)
    assert progress_text(stalled) == "downloading x: 3.2 of 16.1 GB (19.9 %), nothing for 34 s"
    checked = Figures("x", 3_200_000_000, 16_100_000_000, 1_500_000_000, 8, 0.1, checking=True)
    assert progress_text(checked) == "checking x: 3.2 of 16.1 GB (19.9 %), 1.5 GB/s"
    together = Figures("", 3_200_000_000, 16_100_000_000, 80_100_000, 161, 0.1, files=3)
    assert progress_text(together) == "downloading 3 files: 3.2 of 16.1 GB (19.9 %), 80.1 MB/s, 2 min 41 s left"


def test_columns_are_aligned_and_fit() -> None:
    together = Figures("", 4_000_000_000, 32_200_000_000, 161_000_000, 161, 0.1, files=2)
    files = [
        Figures("llama_3.1_8b_instruct_fp16/real_weights.irpa", 3_200_000_000, 16_100_000_000, 80_100_000, 161, 0.1),
        Figures("x.irpa", 12_000_000, 16_100_000_000, None, None, 0.1),
        Figures("y.irpa", 8_000_000_000, 16_100_000_000, 1_500_000_000, 5, 0.1, checking=True),
    ]
    assert columns(together, files, 90) == [
        "2 downloads                        12.4 %      4.0 of 32.2 GB  161.0 MB/s  2 min 41 s left",
        "llama_3.1_8…p16/real_weights.irpa  19.9 %      3.2 of 16.1 GB   80.1 MB/s  2 min 41 s left",
        "x.irpa                              0.1 %  12.0 MB of 16.1 GB",
        "y.irpa                             49.7 %      8.0 of 16.1 GB    1.5 GB/s  checking",
    ]
    narrow = columns(together, files, 56)
    assert narrow[1] == "llama_…weights.irpa  19.9 %   80.1 MB/s  2 min 41 s left"
    assert max(map(len, narrow)) <= 56
    assert columns(None, [], 80) == []


# Consoles


def planned() -> JournalBuilder:
    builder = JournalBuilder()
    for name in ("s0", "s1"):
        builder.step("ocr", name, "fetch")
    builder.begin()
    return builder


def test_a_log_of_downloads() -> None:
    clock, stream = Clock(), io.StringIO()
    console = PlainConsole(stream, clock=clock)
    console.download(A, 0, 100 * MB)
    console.download(B, 40 * MB, 100 * MB)
    for second in range(1, 41):
        clock.now += 1
        console.download(A, second * 2 * MB, 100 * MB)
        console.download(B, 40 * MB + second * MB, 100 * MB)
        console._tell(clock.now)
    clock.now += 20
    console.download(A, 100 * MB, 100 * MB)
    console.checking(A, 0, 100 * MB)
    console.download_finished(A)
    console.download_finished(B)
    console.close()
    assert stream.getvalue().splitlines() == [
        f"downloading {A} (100.0 MB)",
        f"resuming {B} at 40.0 of 100.0 MB",
        "[0/0] nothing runs",
        "downloading 2 files: 130.0 of 200.0 MB (65.0 %), 3.0 MB/s, 30 s left",
        "downloading fp16/weights.irpa: 60.0 of 100.0 MB (60.0 %), 2.0 MB/s, 20 s left",
        "downloading int8/weights.irpa: 70.0 of 100.0 MB (70.0 %), 1.0 MB/s, 30 s left",
        "downloaded fp16/weights.irpa (100.0 MB in 60.0 s, 1.7 MB/s)",
    ]


def test_what_runs_beside_a_long_download_is_told_too() -> None:
    clock, stream, builder = Clock(), io.StringIO(), planned()
    console = PlainConsole(stream, clock=clock)
    console.step_started(builder.steps[0])
    console.download(A, 0, GB)
    for second in range(1, 95):
        clock.now += 1
        console.download(A, second * MB, GB)
        console._tell(clock.now)
    lines = stream.getvalue().splitlines()
    assert sum("still running" in line for line in lines) == 3
    assert sum(line.startswith("downloading weights.irpa: ") for line in lines) == 3


@pytest.mark.parametrize("height", [1, 2, 3, 4, 6, 9, 24, 60])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
@pytest.mark.parametrize("waiting", ["", "for a quiet machine"])
def test_live_progress_is_never_higher_than_the_terminal(height: int, count: int, waiting: str) -> None:
    clock, builder = Clock(), JournalBuilder()
    console = LiveConsole(io.StringIO(), width=80, clock=clock)
    console._console.height = height
    for index in range(count):
        builder.step("ocr", f"s{index}", "fetch")
        console.step_started(builder.steps[index])
        console.download(f"https://models.example/{index}", 0, GB)
    console.waiting(waiting)
    lines = [line.plain for line in console._lines()]
    # What is done, and what is waited for, are always said.
    assert len(lines) <= max(height - 1, 1 + bool(waiting))
    assert len(lines) <= 16
    assert max(map(len, lines)) <= 80
    if height >= 24 and count > 1:
        assert sum("downloads" in line for line in lines) == 1


def test_live_progress_keeps_a_line_of_what_was_resumed_and_what_took_long() -> None:
    clock, stream = Clock(), io.StringIO()
    console = LiveConsole(stream, width=200, colour=False, clock=clock)
    console.download(A, 40 * MB, 100 * MB)
    clock.now += 10
    console.download(A, 100 * MB, 100 * MB)
    console.checking(A, 0, 100 * MB)
    console.download_finished(A)
    console.download(B, 0, MB)
    console.download_finished(B)
    assert stream.getvalue().splitlines() == [
        f"resuming {A} at 40.0 of 100.0 MB",
        "downloaded weights.irpa (100.0 MB, the missing 60.0 MB in 10.0 s, 6.0 MB/s)",
    ]


def test_a_cancelled_run_ends_its_downloads() -> None:
    stream = io.StringIO()
    downloads = _Downloads(PlainConsole(stream))
    downloads.update(A, 0, GB)
    downloads.cancelled = True
    with pytest.raises(GauntletError, match="interrupted"):
        downloads.update(A, 1, GB)
    with pytest.raises(GauntletError, match="interrupted"):
        downloads.checking(A, 1, GB)
    downloads.finished(A)
    downloads.note(A, "kept for the next attempt")
    assert stream.getvalue().splitlines() == [f"downloading {A} (1.0 GB)", f"{A}: kept for the next attempt"]
