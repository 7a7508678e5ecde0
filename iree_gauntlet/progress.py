"""The protocol by which runs, rounds and downloads report their progress; painters display it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from iree_gauntlet.errors import ExitCode
    from iree_gauntlet.journal_events import RunOpening
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


class Progress:
    """A receiver of events from several threads at once, which displays nothing itself.

    If a method raises an exception, the work that called the method ends.
    """

    def run_started(self, run: RunOpening, count: int, ids: Sequence[str] = ()) -> None:
        """Receive the start of a run: the number of remaining steps, and their `ids` if all are known."""

    def steps_added(self, count: int) -> None:
        """Receive a number of further steps that were unknown when the run began."""

    def step_started(self, step: Step, worker: str = "") -> None:
        """Receive the start of a step, perhaps on a machine of a cluster."""

    def step_finished(self, step: Step, result: Result) -> None:
        """Receive the result of a step; a skipped step was never started."""

    def step_put_back(self, step: Step) -> None:
        """Receive that a started step waits again."""

    def download_progress(self, url: str, done: int, total: int | None) -> None:
        """Receive the number of downloaded bytes and the total, None if unknown.

        0 means that the download begins again; other numbers may come out of order.
        """

    def hash_progress(self, url: str, done: int, total: int) -> None:
        """Receive the number of hashed bytes of a downloaded file, and the total."""

    def download_finished(self, url: str) -> None:
        """Receive the end of a file's events: it is present or unavailable, perhaps without any download."""

    def note(self, url: str, message: str) -> None:
        """Receive an unusual event about a file, in one line: a retry, a wait for another run, damage."""

    def pinned(self, url: str, message: str) -> None:
        """Receive a new pinned hash, by default as a note."""
        self.note(url, message)

    def message(self, text: str) -> None:
        """Receive a message that stays on the screen."""

    def status(self, text: str) -> None:
        """Receive the current activity, such as the number of a round; empty for none."""

    def waiting(self, text: str) -> None:
        """Receive the object of a wait (`for device hip://0: …`); empty at its end."""

    def cancel(self) -> None:
        """Request the end of running work: the next event may raise to end it."""


class Reporter(Protocol):
    """A display of runs."""

    def progress(self) -> AbstractContextManager[Progress]:
        """Display events until the context ends."""

    def line(self, text: str, *, is_result: bool = False) -> None:
        """Print a line between runs; if the output is quiet, only if it `is_result`."""

    def report_run(self, folder: Path, *, brief: bool) -> ExitCode:
        """Write the reports of a run's folder and show its result, in one line if `brief`."""

    def with_stream(self, stream: TextIO) -> Reporter:
        """Return the same display on another stream."""


@dataclass(slots=True)
class Recorder(Progress):
    """A receiver that passes on the events of files and keeps their notes for the journal."""

    watcher: Progress
    notes: list[str] = field(default_factory=list)

    def download_progress(self, url: str, done: int, total: int | None) -> None:
        """Pass the event on."""
        self.watcher.download_progress(url, done, total)

    def hash_progress(self, url: str, done: int, total: int) -> None:
        """Pass the event on."""
        self.watcher.hash_progress(url, done, total)

    def download_finished(self, url: str) -> None:
        """Pass the event on."""
        self.watcher.download_finished(url)

    def note(self, url: str, message: str) -> None:
        """Keep the note and pass it on."""
        self.notes.append(message)
        self.watcher.note(url, message)

    def pinned(self, url: str, message: str) -> None:
        """Keep the note and pass it on."""
        self.notes.append(message)
        self.watcher.pinned(url, message)
