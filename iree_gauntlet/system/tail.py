"""The last lines of a log, fit to print: read from the file's end, whatever its size."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


TAIL_LINES = 20
_TAIL_BYTES = 1 << 16
_LINE_CHARACTERS = 400
# ECMA-48: CSI sequences; OSC, DCS, APC, PM and SOS strings up to their end; other escapes of one letter.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file.

    Attributes:
        size: bytes of the file.
    """

    lines: tuple[str, ...]
    truncated: bool
    size: int


def read_tail(path: Path, lines: int = TAIL_LINES) -> Tail:
    """Read the last lines of a file; a file that is not there has none.

    No more than the last 64 KiB are read. Empty lines at the end are left out.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = max(0, size - _TAIL_BYTES)
            stream.seek(start)
            data = stream.read(_TAIL_BYTES)
    except FileNotFoundError:
        return Tail((), truncated=False, size=0)
    texts = data.decode(errors="replace").split("\n")
    if start:
        texts[0] = f"… {texts[0]}"
    while texts and not texts[-1].strip():
        texts.pop()
    last = texts[-lines:] if lines > 0 else []
    return Tail(tuple(clean_line(text) for text in last), start > 0 or len(texts) > len(last), size)


def clean_line(text: str) -> str:
    """A line without escape sequences and control characters, cut to a length with a mark.

    Of a line that was written over and over (a progress bar), the last state is kept.
    """
    text = _ESCAPE.sub("", text).rstrip("\r")
    text = text.rsplit("\r", 1)[-1]
    text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    left_out = len(text) - _LINE_CHARACTERS
    return f"{text[:_LINE_CHARACTERS]}… ({left_out} more characters)" if left_out > 0 else text
