"""Text for people, written at once, also where a stream lacks characters; composed by rich where it is a report."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import rich.console

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_PLAIN_WIDTH = 160


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal that can move its cursor (`TERM=dumb` cannot)."""
    return stream.isatty() and environ.get("TERM", "") not in ("dumb", "unknown")


def write_text(stream: TextIO, text: str) -> None:
    """Write and flush text, whatever the stream's encoding: what it lacks becomes `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


@contextmanager
def printing(stream: TextIO, environ: Mapping[str, str], *, width: int | None = None) -> Iterator[rich.console.Console]:
    """A console whose text goes to a stream when the block is left; nothing of it where the block raises.

    Args:
        stream: where to; coloured where it is a terminal and `NO_COLOR` is not set.
        environ: the environment.
        width: columns; None for the terminal's own, or 160 where there is none.
    """
    live = is_live(stream, environ)
    buffer = io.StringIO()
    yield rich.console.Console(
        file=buffer,
        force_terminal=live,
        no_color=not live or bool(environ.get("NO_COLOR")),
        color_system="standard" if live else None,
        width=width or (rich.console.Console(file=stream).width if live else _PLAIN_WIDTH),
        highlight=False,
        markup=False,
        emoji=False,
    )
    text = buffer.getvalue()
    write_text(stream, text if live else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))
