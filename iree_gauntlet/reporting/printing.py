"""What is printed at the end of a run, composed by rich and written at once, also where a stream lacks characters."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import rich.console

from iree_gauntlet.reporting.console import is_live, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["printing"]

_PLAIN_WIDTH = 160


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
