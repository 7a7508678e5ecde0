"""Sessions whose locks are their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from iree_gauntlet.running.event_log import EventLog
from iree_gauntlet.running.machine_lock import LockFolder, MachineLocks
from iree_gauntlet.running.processes import Processes
from iree_gauntlet.running.session import Session
from iree_gauntlet.running.supervisor import Supervisor
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.running.session import Teller

Log = TypeVar("Log", bound=EventLog)


class Silent:
    """Takes what is told, and says nothing."""

    def message(self, text: str) -> None:
        pass

    def progress(self, text: str) -> None:
        pass


@contextmanager
def session_in(
    folder: Path, log: Log, teller: Teller | None = None, cancelled: threading.Event | None = None
) -> Iterator[Session[Log]]:
    """A session in a folder, with the locks in its folder `locks`."""
    cancelled = cancelled or threading.Event()
    locks = MachineLocks(LockFolder(folder / "locks"), patience=LIMIT_SECONDS, cancelled=cancelled)
    with Supervisor() as supervisor:
        processes = Processes(supervisor, folder)
        yield Session(folder, log, teller or Silent(), supervisor, processes, locks, cancelled)
