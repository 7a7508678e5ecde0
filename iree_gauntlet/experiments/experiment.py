"""What experiments have in common: a folder, new or resumed, and in it a journal of how they begin, go and end."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from iree_gauntlet import __version__
from iree_gauntlet.engine.rounds.machine_lock import lock_facts
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.journal_format import JOURNAL, OPENING, ExperimentRecord, JournalSchema, OpeningT
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.run_folder import find_asked_folder, make_folder
from iree_gauntlet.requests import require_as_begun
from iree_gauntlet.settings import format_typed_command, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.requests import FolderRequest


class Experiment(Generic[OpeningT]):
    """One that is asked for, under way, or over.

    Attributes:
        record: what an earlier part of it has recorded; None where it begins.
        code: what it ends with; an error until it is set.
        problem: why it has no result.
        stopped: why it ends before its last part.
        reported: the exit code of its reports, when it is over.
    """

    def __init__(
        self, schema: JournalSchema[OpeningT], folder: Path | None, record: ExperimentRecord[OpeningT] | None = None
    ) -> None:
        (self.kind,) = schema.kinds
        self.record = record
        self.code = ExitCode.ERROR
        self.problem = self.stopped = ""
        self.reported = ExitCode.ERROR
        self._folder = folder

    @classmethod
    def find(cls, schema: JournalSchema[OpeningT], request: FolderRequest) -> Experiment[OpeningT]:
        """The one that a command line asks for: new, or that of a folder, or the newest of its kind.

        Raises:
            UsageError: there is none to resume, or the folder holds something else.
            GauntletError: what is to be resumed cannot be read.
        """
        (kind,) = schema.kinds
        folder, resumed = find_asked_folder(kind, request)
        record = schema.read(folder) if folder and resumed else None
        if record:
            _ = record.opening  # There is nothing to resume without one.
        return cls(schema, folder, record)

    @property
    def folder(self) -> Path:
        """Its folder, which is made where it is not there."""
        self._folder = make_folder(self._folder, self.kind)
        return self._folder

    def keep_options(self, now: Mapping[str, Any], may_change: Iterable[str] = (), **also: Any) -> dict[str, Any]:
        """The options that it was begun with, of which those that are given now may only say the same.

        `may_change` names those that are taken as they are given now, `also` has what else it was begun with.

        Raises:
            UsageError: another value is given for one of them.
        """
        begun = self.record.opening.options if self.record else {}
        options = {**begun, **also, **{name: now[name] for name in may_change if name in now}}
        require_as_begun(self.kind.noun, shown(self.folder), now, options)
        return options

    @contextmanager
    def open(self, presenter: Presenter, opening: OpeningT) -> Iterator[EventLog]:
        """Its journal, which begins with an opening; when it is over, by whatever exception, it ends and is shown.

        Raises:
            GauntletError: another process writes it, or it cannot be written.
        """
        folder = self.folder
        opening = replace(
            opening,
            name=folder.name,
            version=__version__,
            command=shlex.join(format_typed_command()),
            cwd=str(Path.cwd()),
            resumed=(folder / JOURNAL).is_file(),
            lock_folder=lock_facts(os.environ).get("lock_folder", ""),
        )
        with EventLog(folder / JOURNAL, lambda: datetime.now(UTC)) as log:
            log.write(OPENING, opening)
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
                end = EndEvent(
                    exit_code=self.code,
                    seconds=round(time.monotonic() - began, 3),
                    interrupted=self.code is ExitCode.INTERRUPTED,
                    stopped=self.stopped,
                    problem=self.problem,
                )
                try:
                    try:
                        log.write("end", end)
                    finally:
                        self.reported = presenter.ran(folder, brief=False)
                except GauntletError:
                    # What it ended by says more: on a full disk, nothing of the end can be written either.
                    if not self.problem:
                        raise

    @contextmanager
    def open_session(self, log: EventLog, progress: Progress) -> Iterator[Session[EventLog]]:
        """A session in its folder, which Ctrl-C ends."""
        with open_session(self.folder, log, progress) as session, session.interruptible():
            yield session
