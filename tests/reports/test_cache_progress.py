"""Progress of work on a cache: nothing for a moment's work, one line on a terminal, few lines in a log."""

from __future__ import annotations

import io
from concurrent.futures import CancelledError

import pytest

from iree_gauntlet.tasks.cache_progress import CacheProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def work(stream: io.StringIO, seconds: float) -> None:
    clock = Clock()
    with CacheProgress("verifying", 10_000_000, stream, clock) as progress:
        for _ in range(10):
            clock.now += seconds / 10
            progress.advance(1_000_000)


def test_short_work_shows_nothing() -> None:
    for stream in (io.StringIO(), Terminal()):
        work(stream, 0.9)
        assert stream.getvalue() == ""


def test_a_log_gets_a_line_now_and_then() -> None:
    stream = io.StringIO()
    work(stream, 30)
    assert stream.getvalue().splitlines() == [
        "verifying: 1.0 MB of 10.0 MB, 333.3 kB/s, 27 s left",
        "verifying: 5.0 MB of 10.0 MB, 333.3 kB/s, 15 s left",
        "verifying: 9.0 MB of 10.0 MB, 333.3 kB/s, 3 s left",
    ]


def test_a_terminal_gets_one_line_that_changes_and_goes() -> None:
    stream = Terminal()
    work(stream, 10)
    assert "\n" not in stream.getvalue()
    assert "\r\x1b[Kverifying: 9.0 MB of 10.0 MB" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_downloads_and_notes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    stream, clock = Terminal(), Clock()
    with CacheProgress("mending", None, stream, clock) as progress:
        clock.now = 2
        progress.update("https://h/x", 1000, None)
        clock.now = 3
        progress.update("https://h/x", 2000, 4000)
        clock.now = 4
        progress.checking("https://h/x", 0, 4000)
        progress.finished("https://h/x")
        progress.note("https://h/x", "tried\nagain \x1b[31m")
        progress.say("fetched again: x")
    text = stream.getvalue()
    assert "fetching 1.0 kB https://h/x" in text
    assert "fetching 2.0 kB of 4.0 kB https://h/x" in text
    assert "checking 0 B of 4.0 kB https://h/x" in text
    assert "\r\x1b[Knote: tried again\n" in text
    assert capsys.readouterr().out == "fetched again: x\n"


def test_work_that_was_given_up_ends_at_its_next_block() -> None:
    progress = CacheProgress("verifying", 10, io.StringIO())
    with progress:
        progress.advance(1)
    with pytest.raises(CancelledError):
        progress.advance(1)
