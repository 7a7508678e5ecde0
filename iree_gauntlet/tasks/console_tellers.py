"""What goes on outside of steps, as a console shows it: downloads of a toolchain, rounds of a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iree_gauntlet.reporting.console import Console

__all__ = ["Arrivals", "RoundTeller"]


class Arrivals:
    """Progress of downloads, of a release of IREE."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def update(self, url: str, done: int, total: int | None) -> None:
        """So many bytes of a file are there."""
        self._console.download(url, done, total)

    def checking(self, url: str, done: int, total: int) -> None:
        """So many bytes of it are checked."""
        self._console.checking(url, done, total)

    def finished(self, url: str) -> None:
        """A file is there."""
        self._console.download_finished(url)

    def note(self, url: str, message: str) -> None:
        """Something about it that a person should know."""
        self._console.message(f"{url}: {message}")


class RoundTeller:
    """How rounds go."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def message(self, text: str) -> None:
        """Something that stays to be read."""
        self._console.message(text)

    def progress(self, text: str) -> None:
        """What goes on just now; only waiting for others is worth a line."""
        self._console.waiting(text.removeprefix("waiting ") if text.startswith("waiting ") else "")
