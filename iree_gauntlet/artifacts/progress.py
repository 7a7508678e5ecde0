"""What fetching tells whoever watches it: bytes so far, and one-line notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Progress", "Recorder", "Silent"]


class Progress(Protocol):
    """Receives news of fetches; calls may come from several threads at once."""

    def update(self, url: str, done: int, total: int | None) -> None:
        """Bytes that have arrived, and how many there will be (None where the source does not say)."""

    def checking(self, url: str, done: int, total: int) -> None:
        """Bytes of a file that has arrived which have been hashed, of how many."""

    def finished(self, url: str) -> None:
        """Nothing more comes of this file: it is there, or cannot be had."""

    def note(self, url: str, message: str) -> None:
        """Something out of the ordinary, in one line: a retry, a wait for another run, a damaged file."""


class Silent:
    """Progress that nobody watches."""

    def update(self, url: str, done: int, total: int | None) -> None:
        """Nothing."""

    def checking(self, url: str, done: int, total: int) -> None:
        """Nothing."""

    def finished(self, url: str) -> None:
        """Nothing."""

    def note(self, url: str, message: str) -> None:
        """Nothing."""


@dataclass(slots=True)
class Recorder:
    """Passes everything on and keeps the notes, for the journal.

    Attributes:
        watcher: who is told.
        notes: every note so far, in order.
    """

    watcher: Progress
    notes: list[str] = field(default_factory=list)

    def update(self, url: str, done: int, total: int | None) -> None:
        """Pass it on."""
        self.watcher.update(url, done, total)

    def checking(self, url: str, done: int, total: int) -> None:
        """Pass it on."""
        self.watcher.checking(url, done, total)

    def finished(self, url: str) -> None:
        """Pass it on."""
        self.watcher.finished(url)

    def note(self, url: str, message: str) -> None:
        """Keep it and pass it on."""
        self.notes.append(message)
        self.watcher.note(url, message)
