"""What fetching tells whoever watches it: bytes so far, and one-line notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Progress", "Recorder", "Silent"]


class Progress(Protocol):
    """Receives news of fetches; calls may come from several threads at once."""

    def update(self, url: str, done: int, total: int | None) -> None:
        """Bytes that have arrived, and how many there will be (None where the source does not say)."""

    def note(self, url: str, message: str) -> None:
        """Something out of the ordinary, in one line: a retry, a wait for another run, a damaged file."""


class Silent:
    """Progress that nobody watches."""

    def update(self, url: str, done: int, total: int | None) -> None:
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

    def note(self, url: str, message: str) -> None:
        """Keep it and pass it on."""
        self.notes.append(message)
        self.watcher.note(url, message)
