"""The context of a command: its records, its processes, its locks, and its cancellation."""

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


Log = TypeVar("Log", bound=EventLog, covariant=True)  # noqa: PLC0105 - a name without suffix reads better
_OpenLog = TypeVar("_OpenLog", bound=EventLog)


@dataclass(slots=True)
class Session(Generic[Log]):
    """The context of a command that runs processes; `folder` contains their logs."""

    folder: Path
    log: Log
    progress: Progress
    supervisor: Supervisor
    processes: Processes
    locks: MachineLocks
    cancelled: threading.Event = field(default_factory=threading.Event)
    _cancel_callbacks: list[Callable[[], None]] = field(default_factory=list)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Add a callback that `cancel` calls; it must be safe in a signal handler."""
        self._cancel_callbacks.append(callback)

    def cancel(self) -> None:
        """End all running processes; safe in a signal handler."""
        self.cancelled.set()
        for callback in self._cancel_callbacks:
            callback()
        self.supervisor.cancel_all()

    @contextmanager
    def hold_machine(self, device: str = "", *, exclusive: bool = True) -> Iterator[None]:
        """Keep the benchmarks of other runs off the machine, and every other run off `device`, inside the block.

        If `exclusive`, steps of other runs that measure nothing wait too.

        Raises:
            WaitCancelledError: the session was cancelled while this waited.
        """
        waiting = self.progress.waiting
        with self.locks.quiet_machine(exclusive=exclusive, on_wait=waiting), ExitStack() as stack:
            if device:
                stack.enter_context(self.locks.device_lock(device, waiting))
            yield

    def interruptible(self) -> AbstractContextManager[None]:
        """Let Ctrl-C or SIGTERM cancel the session and raise KeyboardInterrupt; a second signal kills without grace."""
        return interruptible(self.cancel)


@contextmanager
def open_session(folder: Path, log: _OpenLog, progress: Progress) -> Iterator[Session[_OpenLog]]:
    """Yield a session; leaving the block ends all its processes."""
    cancel_event = threading.Event()
    locks = make_machine_locks(os.environ, cancel_event)
    with Supervisor(locks=locks.held_here, on_wait=progress.waiting) as supervisor:
        yield Session(folder, log, progress, supervisor, Processes(supervisor, folder), locks, cancel_event)


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """Let every Ctrl-C and SIGTERM call `cancel`; only the first raises KeyboardInterrupt."""
    is_second_signal = False

    def handle(_number: int, _frame: object) -> None:
        nonlocal is_second_signal
        cancel()
        if not is_second_signal:
            is_second_signal = True
            raise KeyboardInterrupt

    old_handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
