"""What experiments have in common: a folder, new or resumed, and in it a record of how they begin, go and end."""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import __version__
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.run_folder import find_asked_folder, make_folder
from iree_gauntlet.settings import format_typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.requests import FolderRequest


class Experiment:
    """One that is asked for, under way, or over; several of one kind differ by their folders.

    Args:
        kind: its task, such as `bisect`.
        record: name of the file that it keeps.
        folder: None for a new one in `runs/`, which is made when it begins.
        event: that its record begins with, where that is not called as the kind.

    Attributes:
        resumed: whether it goes on with what is in its folder.
        code: what it ends with; an error until it is set.
        problem: why it has no result.
    """

    def __init__(self, kind: str, record: str, folder: Path | None, event: str = "") -> None:
        self.kind = kind
        self.resumed = False
        self.code = ExitCode.ERROR
        self.problem = ""
        self._file = record
        self._event = event or kind
        self._folder = folder

    @classmethod
    def find(cls, kind: str, record: str, request: FolderRequest, event: str = "") -> Experiment:
        """The one that a command line asks for: new, or that of a folder, or the newest of its kind.

        Raises:
            UsageError: there is none to resume, or the folder holds another run.
        """
        folder, resumed = find_asked_folder(kind, request, record)
        found = cls(kind, record, folder, event)
        found.resumed = resumed
        return found

    @property
    def before(self) -> Path | None:
        """The folder of the part that is resumed; None where it begins."""
        return self._folder if self.resumed else None

    @property
    def folder(self) -> Path:
        """Its folder, which is made where it is not there."""
        self._folder = make_folder(self._folder, self.kind)
        return self._folder

    def read_events(self) -> list[dict[str, Any]]:
        """What its record has so far."""
        return [event for _, event in read_events(self.folder / self._file, self._event).events]

    @contextmanager
    def begin(self, said: Mapping[str, Any], first: Mapping[str, Any] | None = None) -> Iterator[EventLog]:
        """Its record, which is opened with what was asked: what stands first (its name), which command, and the rest.

        Raises:
            GauntletError: another process writes it, or it cannot be written.
        """
        folder = self.folder
        command = {"version": __version__, "command": shlex.join(format_typed_command()), "cwd": str(Path.cwd())}
        with EventLog(folder / self._file, lambda: datetime.now(UTC)) as log:
            log.write(self._event, {**({self.kind: folder.name} if first is None else first), **command, **said})
            yield log

    @contextmanager
    def record(
        self, presenter: Presenter, said: Mapping[str, Any], first: Mapping[str, Any] | None = None
    ) -> Iterator[EventLog]:
        """As `begin`; writes an `end` when it is over, by whatever exception, and shows what is recorded then."""
        with self.begin(said, first) as log:
            began = time.monotonic()
            try:
                yield log
            except KeyboardInterrupt:
                self.code = ExitCode.INTERRUPTED
                raise
            except GauntletError as error:
                self.code, self.problem = error.exit_code, error.what
                raise
            except Exception as error:
                self.code, self.problem = ExitCode.ERROR, f"{type(error).__name__}: {error}"
                raise
            finally:
                seconds = round(time.monotonic() - began, 3)
                end = {"exit_code": int(self.code), "problem": self.problem, "seconds": seconds}
                try:
                    try:
                        log.write("end", {**end, "interrupted": self.code is ExitCode.INTERRUPTED})
                    finally:
                        presenter.ran(self.folder, brief=False)
                except GauntletError:
                    # What it ended by says more: on a full disk, nothing of the end can be written either.
                    if not self.problem:
                        raise

    @contextmanager
    def open_session(self, log: EventLog, progress: Progress) -> Iterator[Session[EventLog]]:
        """A session in its folder, which Ctrl-C ends."""
        with open_session(self.folder, log, progress) as session, session.interruptible():
            yield session
