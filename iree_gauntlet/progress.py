"""What work reports while it runs: one protocol for runs, rounds and downloads. Painters show it."""

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
    """Receives what happens, from several threads at once; by itself it shows nothing.

    What it raises ends the work that called it.
    """

    def run_started(self, run: RunOpening, count: int, ids: Sequence[str] = ()) -> None:
        """A run begins, or continues: so many steps are left to do, and these are their `ids` where all are known."""

    def steps_added(self, count: int) -> None:
        """There are so many further steps, which were not known when the run began."""

    def step_started(self, step: Step, worker: str = "") -> None:
        """A step begins to run, on a machine of a cluster where one is named."""

    def step_finished(self, step: Step, result: Result) -> None:
        """A step has its result; it need not have been started (skipped)."""

    def step_put_back(self, step: Step) -> None:
        """A step that began is not done, and waits again."""

    def download(self, url: str, done: int, total: int | None) -> None:
        """Bytes of a file that are there, of how many (None where the source does not say).

        0 again means that the download begins again; other numbers may come out of order.
        """

    def checking(self, url: str, done: int, total: int) -> None:
        """Bytes of a file that has arrived which have been hashed, of how many."""

    def download_finished(self, url: str) -> None:
        """Nothing more comes of a file: it is there, or is not available; it may never have been downloaded."""

    def note(self, url: str, message: str) -> None:
        """Something out of the ordinary about a file, in one line: a retry, a wait for another run, damage."""

    def pinned(self, url: str, message: str) -> None:
        """A hash was learnt: a note, where nobody shows it otherwise."""
        self.note(url, message)

    def message(self, text: str) -> None:
        """Something that stays to be read."""

    def status(self, text: str) -> None:
        """What is being done just now, such as the number of a round; empty for nothing special."""

    def waiting(self, text: str) -> None:
        """What is waited for (`for device hip://0: …`); empty when it no longer is."""

    def cancel(self) -> None:
        """What runs is to end: what is said of it next raises, where that ends it."""


class Presenter(Protocol):
    """Shows runs to people."""

    def progress(self) -> AbstractContextManager[Progress]:
        """Shows what happens, until it is left."""

    def line(self, text: str) -> None:
        """A line between runs."""

    def ran(self, folder: Path, *, brief: bool) -> ExitCode:
        """Writes the reports of what was recorded there, and shows its result; in a line for a part of something."""

    def to(self, stream: TextIO) -> Presenter:
        """The same on another stream."""


@dataclass(slots=True)
class Recorder(Progress):
    """Passes on what is said of files, and keeps the notes, for the journal."""

    watcher: Progress
    notes: list[str] = field(default_factory=list)

    def download(self, url: str, done: int, total: int | None) -> None:
        """Pass it on."""
        self.watcher.download(url, done, total)

    def checking(self, url: str, done: int, total: int) -> None:
        """Pass it on."""
        self.watcher.checking(url, done, total)

    def download_finished(self, url: str) -> None:
        """Pass it on."""
        self.watcher.download_finished(url)

    def note(self, url: str, message: str) -> None:
        """Keep it and pass it on."""
        self.notes.append(message)
        self.watcher.note(url, message)

    def pinned(self, url: str, message: str) -> None:
        """Keep it and pass it on."""
        self.notes.append(message)
        self.watcher.pinned(url, message)
