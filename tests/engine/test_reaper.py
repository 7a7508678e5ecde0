"""Times at which a process is asked to end, is killed and is given up, on a clock that the tests set."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.engine.processes import reaper
from tests.support.clocks import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TERM, KILL = signal.SIGTERM, signal.SIGKILL
GROUP = 7


class Processes:
    """A process that leads a group, as the system shows it to the reaper."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.members = True
        self.ended: tuple[int, int, Any] | None = None

    def killpg(self, group: int, number: int) -> None:
        assert group == GROUP
        if not self.members:
            raise ProcessLookupError
        if number:
            self.signals.append(number)

    def wait4(self, _pid: int, _options: int) -> tuple[int, int, Any]:
        ended, self.ended = self.ended, None
        return ended or (0, 0, None)

    def end(self, status: int, *, members: bool = False, cpu: tuple[float, float] = (0, 0), rss: int = 0) -> None:
        """The leader ends."""
        self.ended = (GROUP, status, SimpleNamespace(ru_utime=cpu[0], ru_stime=cpu[1], ru_maxrss=rss))
        self.members = members


class Watched:
    """A reaper with one process, which has 10 s, 2 s after SIGTERM and 15 s after SIGKILL."""

    def __init__(self, folder: Path, control: socket.socket, wake: int) -> None:
        self.clock = Clock()
        self.began = self.clock.now
        self.reaper = reaper._Reaper(control, wake, self.clock)
        self._answers, connection = socket.socketpair()
        self.reaper._start(
            connection,
            SimpleNamespace(
                argv=["tool"],
                cwd="/",
                env={},
                stdout=str(folder / "out"),
                stderr=str(folder / "err"),
                timeout=10.0,
                grace=2.0,
                kill_patience=15.0,
                private="",
            ),
        )

    def at(self, seconds: float) -> float | None:
        """What is due after so many seconds is done; in how many it wakes again by itself."""
        self.clock.now = self.began + seconds
        self.reaper._reap()
        self.reaper._advance_runs()
        return self.reaper._compute_timeout()

    def cancel(self, seconds: float) -> None:
        self.clock.now = self.began + seconds
        self.reaper._cancels += 1
        for run in self.reaper._runs.values():
            self.reaper._cancel(run)

    def report(self) -> dict[str, Any]:
        assert not self.reaper._runs, "it is still watched"
        with self._answers as stream:
            first, last = stream.recv(1 << 16).splitlines()
        assert int(first) == GROUP
        report: dict[str, Any] = json.loads(last)
        return report

    def close(self) -> None:
        self._answers.close()
        for run in self.reaper._runs.values():
            run.connection.close()
        self.reaper._selector.close()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes()
    monkeypatch.setattr(reaper, "_become_subreaper", lambda: False)
    monkeypatch.setattr(reaper, "_kill_children", lambda: None)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: SimpleNamespace(pid=GROUP, returncode=None))
    monkeypatch.setattr(os, "killpg", made.killpg)
    monkeypatch.setattr(os, "wait4", made.wait4)
    return made


@contextmanager
def watched_in(folder: Path) -> Iterator[Watched]:
    control, other = socket.socketpair()
    wake, woken = os.pipe()
    it = Watched(folder, control, wake)
    try:
        yield it
    finally:
        it.close()
        for end in (control, other):
            end.close()
        for descriptor in (wake, woken):
            os.close(descriptor)


@pytest.fixture
def watched(processes: Processes, tmp_path: Path) -> Iterator[Watched]:
    with watched_in(tmp_path) as it:
        yield it


def test_one_whose_time_is_up_is_asked_then_killed_then_given_up(watched: Watched, processes: Processes) -> None:
    assert (watched.at(0), watched.at(9.5), processes.signals) == (10.0, 0.5, [])
    assert (watched.at(10), watched.at(11.5), processes.signals) == (2.0, 0.5, [TERM])
    assert (watched.at(12), watched.at(26.5), processes.signals) == (15.0, 0.5, [TERM, KILL])
    assert watched.at(27) is None
    report = watched.report()
    assert (report["started"], report["timed_out"], report["cancelled"], report["stuck"]) == (True, True, False, True)
    assert report["seconds"] == 27.0


def test_one_that_obeys_is_reported_at_once(watched: Watched, processes: Processes) -> None:
    watched.at(10)
    processes.end(int(TERM))
    watched.at(10.5)
    report = watched.report()
    assert (report["status"], report["timed_out"], report["stuck"], report["seconds"]) == (TERM, True, False, 10.5)
    assert processes.signals == [TERM]


def test_members_outlive_a_leader_no_longer_than_the_grace(watched: Watched, processes: Processes) -> None:
    watched.at(10)
    processes.end(int(TERM), members=True)
    for seconds in (10.25, 11.75):
        # Nobody tells when the last member is gone: it is looked for often.
        assert watched.at(seconds) == reaper._DRAIN_POLL_SECONDS
        assert processes.signals == [TERM]
    watched.at(12)
    assert processes.signals == [TERM, KILL]
    processes.members = False
    watched.at(12.5)
    report = watched.report()
    assert (report["status"], report["seconds"], report["stuck"]) == (TERM, 10.25, False)


def test_what_a_leader_leaves_behind_is_killed_at_once(watched: Watched, processes: Processes) -> None:
    processes.end(4 << 8, members=True)
    watched.at(3)
    assert processes.signals == [KILL]
    processes.members = False
    watched.at(3.5)
    report = watched.report()
    assert (os.waitstatus_to_exitcode(report["status"]), report["timed_out"], report["seconds"]) == (4, False, 3.0)


def test_a_cancel_asks_and_a_second_one_kills_without_grace(watched: Watched, processes: Processes) -> None:
    watched.cancel(1)
    assert processes.signals == [TERM]
    # The time that it had counts no more.
    assert (watched.at(1.5), processes.signals) == (1.5, [TERM])
    watched.cancel(2)
    assert processes.signals == [TERM, KILL]
    processes.end(int(KILL))
    watched.at(2.5)
    report = watched.report()
    assert (report["cancelled"], report["timed_out"], report["status"]) == (True, False, KILL)


def test_one_that_was_overdue_before_the_cancel_had_run_out_of_time(watched: Watched, processes: Processes) -> None:
    watched.at(10)
    watched.cancel(11)
    assert (watched.at(11.5), processes.signals) == (0.5, [TERM])
    processes.end(int(TERM))
    watched.at(11.75)
    report = watched.report()
    assert (report["cancelled"], report["timed_out"]) == (False, True)


def test_a_report_has_the_figures_of_the_process(watched: Watched, processes: Processes) -> None:
    processes.end(0, cpu=(1.5, 0.25), rss=3000)
    watched.at(8)
    report = watched.report()
    assert (report["seconds"], report["cpu_seconds"], report["peak_rss_bytes"]) == (8.0, 1.75, 3000 << 10)


def test_without_a_limit_it_wakes_for_nothing(processes: Processes, tmp_path: Path) -> None:
    with watched_in(tmp_path) as watched:
        for run in watched.reaper._runs.values():
            run.deadline = float("inf")
        assert watched.at(1e9) is None
        assert processes.signals == []


def test_a_limit_of_years_is_waited_for_in_steps_that_a_selector_takes(watched: Watched, processes: Processes) -> None:
    for limit in (3e6, 1e300):
        for run in watched.reaper._runs.values():
            run.deadline = watched.began + limit
        assert watched.at(0) == 3600.0
    assert processes.signals == []
