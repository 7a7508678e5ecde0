"""Sessions whose locks are their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.rounds.machine_lock import LockFolder, MachineLocks
from iree_gauntlet.engine.session import Session
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import EventLog
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


Log = TypeVar("Log", bound=EventLog)


@contextmanager
def session_in(
    folder: Path, log: Log, progress: Progress | None = None, cancelled: threading.Event | None = None
) -> Iterator[Session[Log]]:
    """A session in a folder, with the locks in its folder `locks`."""
    cancelled = cancelled or threading.Event()
    locks = MachineLocks(LockFolder(folder / "locks"), patience=LIMIT_SECONDS, cancelled=cancelled)
    with Supervisor() as supervisor:
        processes = Processes(supervisor, folder)
        yield Session(folder, log, progress or Progress(), supervisor, processes, locks, cancelled)
