"""Sessions with locks of their own."""

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
def open_session(
    folder: Path, log: Log, progress: Progress | None = None, cancel_event: threading.Event | None = None
) -> Iterator[Session[Log]]:
    """Open a session in a directory, with the locks in its subdirectory `locks`."""
    cancel_event = cancel_event or threading.Event()
    locks = MachineLocks(LockFolder(folder / "locks"), patience=LIMIT_SECONDS, cancelled=cancel_event)
    with Supervisor() as supervisor:
        processes = Processes(supervisor, folder)
        yield Session(folder, log, progress or Progress(), supervisor, processes, locks, cancel_event)
