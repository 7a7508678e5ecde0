"""All errors that a user can meet; each tells what happened, where, and the next step.

Any other exception that escapes a command is a fault of the toolkit, which `system/faults.py` reports, with the
traceback in a file.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; `worst` selects one of several."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ERROR = 3
    INCONCLUSIVE = 4
    NOTHING_SELECTED = 5
    # EX_SOFTWARE of sysexits.h.
    FAULT = 70
    INTERRUPTED = 130

    @staticmethod
    def worst(codes: list[ExitCode]) -> ExitCode:
        """Return the most severe code, in the order 130, 70, 2, 3, 1, 5, 4; OK for an empty list."""
        return next((code for code in _MEANINGS if code in codes), ExitCode.OK)

    @property
    def rank(self) -> int:
        """The position of the exit code in the order of `worst`, from 0."""
        return list(_MEANINGS).index(self)

    @property
    def meaning(self) -> str:
        """The meaning of the exit code in a few words."""
        return _MEANINGS[self]


# In order of severity.
_MEANINGS = {
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.FAULT: "a fault of the toolkit itself",
    ExitCode.USAGE: "usage or spec error, nothing ran",
    ExitCode.ERROR: "an error prevented a verdict",
    ExitCode.FAILED: "something failed",
    ExitCode.INCONCLUSIVE: "a measurement is inconclusive",
    ExitCode.NOTHING_SELECTED: "nothing selected",
    ExitCode.OK: "all as expected",
}


# The disk, a quota or a limit of the process leaves no space.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def find_error_path(error: OSError) -> str:
    """Return the path in a system error, or an empty string; for a copy without space, return its destination."""
    return str((error.filename2 if error.errno in NO_ROOM else None) or error.filename or "")


class GauntletError(Exception):
    """An error that the user can act on: one line with the event and its location, and a hint with the next step."""

    exit_code = ExitCode.ERROR

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.message = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    @property
    def on_one_line(self) -> str:
        """Message and hint on one line."""
        return f"{self.message}. {self.hint}" if self.hint else self.message


class MachinesLostError(GauntletError):
    """All machines of a run are lost; their results remain."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem in a spec or suite file.

    Attributes:
        file: path as the user would type it.
        line: 1-based; 0 if unknown.
        field: dotted path (`inputs[0].source`), empty for the file as a whole.
    """

    file: str
    line: int
    field: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}" if self.line else self.file
        field = f"{self.field}: " if self.field else ""
        text = f"{location}: {field}{self.message}"
        return f"{text}\n    {self.hint}" if self.hint else text

    @property
    def in_one_line(self) -> str:
        """The problem and its hint on one line, as the reason of a step."""
        message, hint = str(replace(self, hint="")), self.hint.removesuffix(".")
        if not hint or message.endswith("?"):
            return f"{message} {hint}".rstrip()
        return f"{message}; {hint[0].lower() if hint[1:2].islower() else hint[0]}{hint[1:]}"


class SpecError(GauntletError):
    """Spec or suite files that have problems; the message lists all problems."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: list[Problem], kind: str = "spec files") -> None:
        self.problems = sorted(problems)
        count = len(self.problems)
        noun = "problem" if count == 1 else "problems"
        super().__init__(f"{count} {noun} in {kind}:\n" + "\n".join(f"  {p}" for p in self.problems))


class UsageError(GauntletError):
    """A command line that names something that does not exist, or options that exclude each other."""

    exit_code = ExitCode.USAGE


class NothingSelectedError(GauntletError):
    """The selection matches no case."""

    exit_code = ExitCode.NOTHING_SELECTED


class ArtifactError(GauntletError):
    """An artifact that is unavailable or has unexpected content.

    Attributes:
        notes: unusual events before the failure, one line each.
    """

    def __init__(self, url: str, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.url = url
        self.notes: tuple[str, ...] = ()


class ToolchainError(GauntletError):
    """An IREE that is missing, unusable, or lacks a requested feature."""


class NoSuchToolchainError(ToolchainError):
    """A release, folder or environment of an IREE that does not exist."""

    exit_code = ExitCode.USAGE
