"""Programs that are killed at the n-th of the moments at which something of them gets onto the disk, or goes away."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["die_at", "killed_everywhere"]

_EVENTS = ("open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.utime")


def die_at(moment: int) -> None:
    """Kills this process before the n-th file is opened, made durable, renamed, linked, removed, or changed."""
    left = moment

    def pass_one(event: str, _arguments: tuple[Any, ...] = ()) -> None:
        nonlocal left
        if event in _EVENTS:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sync = os.fsync

    def fsync(fd: Any) -> None:
        # Of which there is no event.
        pass_one("open")
        sync(fd)

    os.fsync = fsync
    sys.addaudithook(pass_one)


def killed_everywhere(work: Callable[[], object], look: Callable[[], object]) -> int:
    """Does some work in ever new processes, killed at each moment of it in turn; the number of moments.

    It forks: call it in a process without threads.
    """
    moment = 0
    while True:
        moment += 1
        pid = os.fork()
        if not pid:
            code = 1
            try:
                die_at(moment)
                work()
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        look()
        if not code:
            return moment - 1
