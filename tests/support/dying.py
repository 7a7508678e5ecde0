"""Kills a process before the n-th of its changes to the file system."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["die_at", "kill_at_each_moment"]

_EVENTS = ("open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.utime")


def die_at(moment: int) -> None:
    """Kill this process before the n-th time that a file is opened, synced, renamed, linked, removed, or changed."""
    remaining = moment

    def count_event(event: str, _arguments: tuple[Any, ...] = ()) -> None:
        nonlocal remaining
        if event in _EVENTS:
            remaining -= 1
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)

    real_fsync = os.fsync

    def fsync(fd: Any) -> None:
        # fsync has no audit event.
        count_event("open")
        real_fsync(fd)

    os.fsync = fsync
    sys.addaudithook(count_event)


def kill_at_each_moment(work: Callable[[], object], inspect: Callable[[], object]) -> int:
    """Run `work` in a new process for each of its moments, and kill the process there; return the number of moments.

    `inspect` checks the files after each process. Call this function in a process without threads, since it forks.
    """
    moment = 0
    while True:
        moment += 1
        pid = os.fork()
        if not pid:
            exit_code = 1
            try:
                die_at(moment)
                work()
                exit_code = 0
            finally:
                os._exit(exit_code)
        exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert exit_code in (0, -signal.SIGKILL), exit_code
        inspect()
        if not exit_code:
            return moment - 1
