"""The context of work: where it is recorded, what runs its processes, what keeps others away, and how it is ended."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.rounds.machine_lock import MachineLocks, make_machine_locks
from iree_gauntlet.records.event_log import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from iree_gauntlet.progress import Progress


Log = TypeVar("Log", bound=EventLog, covariant=True)  # noqa: PLC0105 - it stands for a log
_Opened = TypeVar("_Opened", bound=EventLog)


@dataclass(slots=True)
class Session(Generic[Log]):
    """What everything that runs processes works with; their logs are below the folder."""

    folder: Path
    log: Log
    progress: Progress
    supervisor: Supervisor
    processes: Processes
    locks: MachineLocks
    cancelled: threading.Event = field(default_factory=threading.Event)
    _ends: list[Callable[[], None]] = field(default_factory=list)

    def on_cancel(self, end: Callable[[], None]) -> None:
        """Has something more ended when the session is; it must be safe in a signal handler."""
        self._ends.append(end)

    def cancel(self) -> None:
        """Ends what runs; safe in a signal handler."""
        self.cancelled.set()
        for end in self._ends:
            end()
        self.supervisor.cancel_all()

    @contextmanager
    def quiet(self, device: str = "", *, exclusive: bool = True) -> Iterator[None]:
        """Keeps other runs away from the machine, and from a GPU, while something is measured.

        `exclusive` says whether steps that measure nothing wait too.

        Raises:
            WaitCancelledError: the session was ended while it waited.
        """
        waiting = self.progress.waiting
        with self.locks.quiet_machine(exclusive=exclusive, on_wait=waiting), ExitStack() as stack:
            if device:
                stack.enter_context(self.locks.device_lock(device, waiting))
            yield

    def interruptible(self) -> AbstractContextManager[None]:
        """Ctrl-C and SIGTERM end what runs and raise KeyboardInterrupt once; a second one ends it without grace."""
        return interruptible(self.cancel)


@contextmanager
def open_session(folder: Path, log: _Opened, progress: Progress) -> Iterator[Session[_Opened]]:
    """A session, whose processes have ended when it is left."""
    cancelled = threading.Event()
    locks = make_machine_locks(os.environ, cancelled)
    with Supervisor(locks=locks.held_here) as supervisor:
        yield Session(folder, log, progress, supervisor, Processes(supervisor, folder), locks, cancelled)


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call `cancel` and raise KeyboardInterrupt once."""
    raised = False

    def handle(_number: int, _frame: object) -> None:
        nonlocal raised
        cancel()
        if not raised:
            raised = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
