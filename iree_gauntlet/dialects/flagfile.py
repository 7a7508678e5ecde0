"""Flagfiles of the runtime's tools (`--flagfile=`): a flag a line, as IREE's `base/tooling/flags.c` reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from iree_gauntlet.dialects.fields import TENSOR_TYPE
from iree_gauntlet.errors import Problem

_FLAG = re.compile(r"--\s*(?P<name>[A-Za-z_][\w.-]*)\s*(?:=\s*(?P<value>.*))?")
# `3x4xf32=@file.bin`, `@file.npy`, and `+file.npy` for the next array of a file.
_FILE = re.compile(r"(?:(?P<type>[^@+*=]*)=)?[@+*](?P<path>.+)")
_ARGUMENTS = ("input", "expected_output")
# `4x2xf8e4m3fn`, for which the tools read a type of 8 bits that equals no other.
_SMALL_FLOAT = re.compile(r"((?:\d+x)*f)([468]e\w+)(?==|\Z)")


@dataclass(frozen=True, slots=True)
class FlagLine:
    """A line that is a flag.

    Attributes:
        number: of the line, 1-based.
        name: without dashes.
        value: as written, with quotes: of which flags they are dropped is the tools' to say. None where it has none.
    """

    number: int
    name: str
    value: str | None

    @property
    def text(self) -> str:
        """The flag as an argument of a command."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def read_flagfile(text: str, file: str) -> tuple[list[FlagLine], list[Problem]]:
    """The flags of a flagfile in their order, and what is wrong with it.

    Args:
        text: its content.
        file: its name, for messages.
    """
    flags: list[FlagLine] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.strip()
        if not words or words.startswith(("#", "//")):
            continue
        match = _FLAG.fullmatch(words)
        value = match["value"] if match else None
        if match is None or "\0" in words:
            message = f"expected a flag such as --input=3x4xf32=@input_0.bin, found {_short(words)!r}"
            problems.append(Problem(file, number, "", message, "Write one flag a line; a comment begins with #."))
            continue
        if value is not None and match["name"] in _ARGUMENTS:
            value = _SMALL_FLOAT.sub(lambda found: found[1] + found[2].upper(), value, count=1)
        flag = FlagLine(number, match["name"], value)
        wrong = _wrong(flag)
        if wrong:
            problems.append(Problem(file, number, flag.name, *wrong))
        flags.append(flag)
    return flags, problems


def _wrong(flag: FlagLine) -> tuple[str, str] | None:
    """What is wrong with a flag by itself, and what to do."""
    if flag.name == "flagfile":
        return "a flagfile inside a flagfile is not read", "Write its flags here."
    if flag.name not in _ARGUMENTS:
        return None
    if not flag.value:
        return "has no value: expected for example 3x4xf32=@input_0.bin", "Write the value after '='."
    if flag.value[0] == flag.value[-1] == '"' and _FILE.fullmatch(flag.value[1:-1]):
        return "the tools take quotes around a file for a part of its name", "Write it without quotes."
    match = _FILE.fullmatch(flag.value)
    kind = match["type"] if match else None
    if kind is not None and not TENSOR_TYPE.fullmatch(kind):
        return (
            f"expected a tensor type such as 3x4xf32 before '=@', found {_short(kind)!r}",
            "Write sizes, then a type.",
        )
    return None


def file_of(flag: FlagLine) -> str:
    """The file that an argument is read from; empty where its value says it all."""
    match = _FILE.fullmatch(flag.value or "") if flag.name in _ARGUMENTS else None
    return match["path"] if match else ""


def outside(name: str) -> bool:
    """Whether a file's name is no path inside a folder."""
    return name.startswith("/") or "\\" in name or ".." in name.split("/") or not name.strip("./")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
