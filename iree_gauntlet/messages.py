"""Messages of commands on standard error, beside their results; `--quiet` and `--verbose` set the level."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


# Replacements of signs for terminals without Unicode.
_PLAIN_SIGNS = str.maketrans("✓✗▲▼≈·–", "+x^v~.-")
_LOG = logging.getLogger("iree_gauntlet.messages")
_LOG.propagate = False


class _StandardError(logging.Handler):
    """A handler that writes to the current `sys.stderr`, which tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        sys.stderr.write(f"{record.getMessage()}\n")
        sys.stderr.flush()


_LOG.setLevel(logging.INFO)
_LOG.addHandler(_StandardError())


def warn(text: str) -> None:
    """Print a warning, at every level."""
    _LOG.warning("warning: %s", text)


def note(text: str) -> None:
    """Print a note, unless the level is quiet."""
    _LOG.info("note: %s", text)


def report_progress(text: str) -> None:
    """Print the current activity, which takes time, unless the level is quiet."""
    _LOG.info("%s", text)


def print_detail(text: str) -> None:
    """Print a detail if the level is verbose."""
    _LOG.debug("%s", text)


def is_quiet() -> bool:
    """Return whether only unexpected events are printed."""
    return not _LOG.isEnabledFor(logging.INFO)


def is_verbose() -> bool:
    """Return whether everything is printed."""
    return _LOG.isEnabledFor(logging.DEBUG)


@contextmanager
def set_verbosity(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Set the level of messages inside of the context; verbose overrides quiet."""
    previous_level = _LOG.level
    _LOG.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        _LOG.setLevel(previous_level)


def write_text(stream: TextIO, text: str) -> None:
    """Write and flush text; signs that the stream's encoding lacks become plain, other such characters become `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN_SIGNS).encode(encoding, "replace").decode(encoding)
    stream.write(text)
    stream.flush()
