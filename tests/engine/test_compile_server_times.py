"""Times at which the compile server asks a compile to end, kills it and gives it up, on a clock that tests set."""

from __future__ import annotations

import os
import selectors
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from iree_gauntlet.workers.iree_side import compile_server
from tests.support.clocks import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TERM, KILL = signal.SIGTERM, signal.SIGKILL
CHILD = 7


class Served:
    """A server with one compile, which has 10 s, and 2 s after SIGTERM."""

    def __init__(self, folder: Path, wake: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signals: list[int] = []
        self.answers: list[dict[str, Any]] = []
        self.ended: tuple[int, int, Any] | None = None
        self.members = True
        monkeypatch.setattr(compile_server, "_send_signal", lambda _pid, number: self.signals.append(number))
        monkeypatch.setattr(compile_server, "_has_members", lambda _group: self.members)
        monkeypatch.setattr(compile_server, "_send_answer", self.answers.append)
        monkeypatch.setattr(os, "fork", lambda: CHILD)
        monkeypatch.setattr(os, "wait4", self._wait4)
        # It waits for nothing here, and a test's standard input is none that could be waited for.
        monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
        self.clock = Clock()
        self.began = self.clock.now
        self.server = compile_server._CompileServer(cast("Any", None), str(folder), wake, self.clock)
        request = compile_server._CompileRequest(
            id=1,
            programs=[],
            prefixes=None,
            flags=[],
            output="",
            stdout=str(folder / "out"),
            stderr=str(folder / "err"),
            cwd=str(folder),
            timeout=10.0,
            grace=2.0,
            memory_bytes=0,
        )
        self.server._start(request)

    def _wait4(self, _pid: int, _options: int) -> tuple[int, int, Any]:
        ended, self.ended = self.ended, None
        return ended or (0, 0, None)

    def end(self, status: int, *, members: bool = False) -> None:
        """The child ends."""
        self.ended = (CHILD, status, SimpleNamespace(ru_utime=1.5, ru_stime=0.25, ru_maxrss=3000))
        self.members = members

    def at(self, seconds: float) -> float | None:
        """What is due after so many seconds is done; in how many it wakes again by itself."""
        self.clock.now = self.began + seconds
        self.server._reap()
        self.server._advance()
        return self.server._compute_timeout()

    def answer(self) -> dict[str, Any]:
        first, last = self.answers
        assert first == {"id": 1, "pid": CHILD}
        return last


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    wake, woken = os.pipe()
    it = Served(tmp_path, wake, monkeypatch)
    yield it
    it.server._selector.close()
    for descriptor in (wake, woken, it.server._devnull_fd):
        os.close(descriptor)


def test_one_whose_time_is_up_is_asked_then_killed_then_given_up(served: Served) -> None:
    assert (served.at(0), served.at(9.5), served.signals) == (10.0, 0.5, [])
    assert (served.at(10), served.at(11.5), served.signals) == (2.0, 0.5, [TERM])
    patience = compile_server._KILL_TIMEOUT_SECONDS
    assert (served.at(12), served.at(12 + patience - 0.5), served.signals) == (patience, 0.5, [TERM, KILL])
    assert served.at(12 + patience) is None
    answer = served.answer()
    assert (answer["timed_out"], answer["stuck"], answer["seconds"]) == (True, True, 12 + patience)


def test_one_that_obeys_is_reported_at_once(served: Served) -> None:
    served.at(10)
    served.end(int(TERM))
    served.at(10.5)
    answer = served.answer()
    assert (answer["status"], answer["timed_out"], answer["stuck"]) == (TERM, True, False)
    assert (answer["seconds"], answer["cpu_seconds"], answer["peak_rss_bytes"]) == (10.5, 1.75, 3000 << 10)
    assert served.signals == [TERM]


def test_what_a_child_leaves_behind_is_killed_at_once(served: Served) -> None:
    served.end(1 << 8, members=True)
    # Nobody tells when the last member is gone: it is looked for often.
    assert served.at(3) == compile_server._DRAIN_INTERVAL_SECONDS
    assert served.signals == [KILL]
    served.members = False
    served.at(3.5)
    answer = served.answer()
    assert (os.waitstatus_to_exitcode(answer["status"]), answer["timed_out"], answer["seconds"]) == (1, False, 3.0)
