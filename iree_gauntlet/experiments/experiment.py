"""The common part of experiments: a folder, new or resumed, with a journal of the start, the progress and the end."""

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
from iree_gauntlet.engine.rounds.machine_lock import make_lock_facts
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.journal_format import JOURNAL, OPENING, ExperimentRecord, JournalSchema, OpeningT
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.run_folder import find_requested_folder, make_folder
from iree_gauntlet.requests import require_unchanged_options
from iree_gauntlet.settings import format_path, format_typed_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.progress import Progress, Reporter
    from iree_gauntlet.requests import FolderRequest


class Experiment(Generic[OpeningT]):
    """An experiment: requested, running, or over.

    Attributes:
        record: the events of the part before a resume; None for a new experiment.
        code: the exit code; ERROR until the experiment sets it.
        problem: the reason if there is no result.
        stopped: the reason for an early end.
        reported: the exit code from the reports, set at the end.
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
        """Find the experiment of a command line: a new one, the one in a given folder, or the newest of this kind.

        Raises:
            UsageError: there is nothing to resume, or the folder contains something else.
            GauntletError: the experiment to be resumed cannot be read.
        """
        (kind,) = schema.kinds
        folder, resumed = find_requested_folder(kind, request)
        record = schema.read(folder) if folder and resumed else None
        if record:
            _ = record.opening  # raises if the opening event is missing, because then there is nothing to resume
        return cls(schema, folder, record)

    @property
    def folder(self) -> Path:
        """The experiment's folder, which is created if needed."""
        self._folder = make_folder(self._folder, self.kind)
        return self._folder

    def keep_options(self, current: Mapping[str, Any], may_change: Iterable[str] = (), **extra: Any) -> dict[str, Any]:
        """Return the options of a resumed experiment; options in `current` must equal the previous ones.

        `may_change` names options that may differ; `extra` has previous options that were not recorded as options.

        Raises:
            UsageError: an option has another value than before.
        """
        previous = self.record.opening.options if self.record else {}
        all_options = {**previous, **extra, **{name: current[name] for name in may_change if name in current}}
        require_unchanged_options(self.kind.noun, format_path(self.folder), current, all_options)
        return all_options

    @contextmanager
    def open(self, presenter: Reporter, opening: OpeningT) -> Iterator[EventLog]:
        """Open the journal with an opening event; write the end event and the reports at the end, even after errors.

        Raises:
            GauntletError: another process writes the journal, or it cannot be written.
        """
        folder = self.folder
        opening = replace(
            opening,
            name=folder.name,
            version=__version__,
            command=shlex.join(format_typed_command()),
            cwd=str(Path.cwd()),
            resumed=(folder / JOURNAL).is_file(),
            lock_folder=make_lock_facts(os.environ).get("lock_folder", ""),
        )
        with EventLog(folder / JOURNAL, lambda: datetime.now(UTC)) as log:
            log.write(OPENING, opening)
            start = time.monotonic()
            try:
                yield log
            except KeyboardInterrupt:
                self.code = ExitCode.INTERRUPTED
                raise
            except GauntletError as error:
                self.code, self.problem = error.exit_code, error.message
                raise
            except Exception as error:
                self.code, self.problem = ExitCode.ERROR, f"{type(error).__name__}: {error}"
                raise
            finally:
                end_event = EndEvent(
                    exit_code=self.code,
                    seconds=round(time.monotonic() - start, 3),
                    interrupted=self.code is ExitCode.INTERRUPTED,
                    stopped=self.stopped,
                    problem=self.problem,
                )
                try:
                    try:
                        log.write("end", end_event)
                    finally:
                        self.reported = presenter.report_run(folder, brief=False)
                except GauntletError:
                    # Keep the first problem, the cause: on a full disk, writing the end event fails as well.
                    if not self.problem:
                        raise

    @contextmanager
    def open_session(self, log: EventLog, progress: Progress) -> Iterator[Session[EventLog]]:
        """Open a session in the experiment's folder; Ctrl-C ends the session."""
        with open_session(self.folder, log, progress) as session, session.interruptible():
            yield session
