"""Making text from tools safe to show: no control characters, no half characters, bounded length."""

from __future__ import annotations

import re

# ECMA-48 control sequences (colours, cursor moves) and operating system commands (titles, links).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Everything but the characters of XML 1.0 (fifth edition, production 2, "Char") without those that its
# note discourages: DEL, the C1 controls and the non-characters of the basic plane.
_UNFIT = re.compile("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Text that every report can hold: valid in XML 1.0, encodable as UTF-8, lines ended by a newline alone.

    Terminal escape sequences are removed; every other unfit character (controls, lone surrogates,
    non-characters) becomes U+FFFD, so that a reader sees that something stood there.
    """
    # Nearly all of what thousands of cases say is plain.
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNFIT.sub(_REPLACEMENT, text)


def one_line(text: str, limit: int = 300) -> str:
    """Text on one line of at most `limit` characters; what is cut off is marked with `…`."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def last_lines(lines: tuple[str, ...], *, count: int = 20, width: int = 400) -> list[str]:
    """The last lines, cleaned, without blank ones around them, each at most `width` characters."""
    text = "\n".join(clean(line) for line in lines).strip("\n")
    kept = text.split("\n")[-count:] if text else []
    return [line if len(line) <= width else line[: width - 1] + "…" for line in kept]
