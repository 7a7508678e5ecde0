"""What commands say next to their results, on standard error; `--quiet` and `--verbose` decide how much of it."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


# What terminals without Unicode show.
_PLAIN_SIGNS = str.maketrans("✓✗▲▼≈·–", "+x^v~.-")
_LOG = logging.getLogger("iree_gauntlet.messages")
_LOG.propagate = False


class _StandardError(logging.Handler):
    """Writes to the standard error of the moment, which tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        sys.stderr.write(f"{record.getMessage()}\n")
        sys.stderr.flush()


_LOG.setLevel(logging.INFO)
_LOG.addHandler(_StandardError())


def warn(text: str) -> None:
    """Say what may be wrong; always shown."""
    _LOG.warning("warning: %s", text)


def note(text: str) -> None:
    """Say what is good to know."""
    _LOG.info("note: %s", text)


def news(text: str) -> None:
    """Say what is being done, where that takes time."""
    _LOG.info("%s", text)


def print_detail(text: str) -> None:
    """Say what only few want to know."""
    _LOG.debug("%s", text)


def is_quiet() -> bool:
    """Whether only what is not as expected is to be said."""
    return not _LOG.isEnabledFor(logging.INFO)


def is_verbose() -> bool:
    """Whether everything is to be said."""
    return _LOG.isEnabledFor(logging.DEBUG)


@contextmanager
def loudness(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """How much is said inside; verbose wins."""
    before = _LOG.level
    _LOG.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        _LOG.setLevel(before)


def write_text(stream: TextIO, text: str) -> None:
    """Write and flush text, whatever the stream's encoding: signs that it lacks become plain ones, all else `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
    stream.write(text)
    stream.flush()
