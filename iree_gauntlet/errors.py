"""Every error that a user can meet: what happened, where, and what to do next.

What else escapes a command is a fault of the toolkit: `system/faults.py` says so, and keeps its traceback in a file.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; `worst` says which one wins."""

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
        """The one that wins, in the order 130, 70, 2, 3, 1, 4; OK for an empty list."""
        return next((code for code in _MEANINGS if code in codes), ExitCode.OK)

    @property
    def rank(self) -> int:
        """Its place in that order, from 0."""
        return list(_MEANINGS).index(self)

    @property
    def meaning(self) -> str:
        """What it says, in a few words."""
        return _MEANINGS[self]


# The one that wins first.
_MEANINGS = {
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.FAULT: "a fault of the toolkit itself",
    ExitCode.USAGE: "usage or spec error, nothing ran",
    ExitCode.ERROR: "an error kept something from being judged",
    ExitCode.FAILED: "something failed",
    ExitCode.INCONCLUSIVE: "a measurement is inconclusive",
    ExitCode.NOTHING_SELECTED: "nothing selected",
    ExitCode.OK: "all as expected",
}


# No room: on the disk, in a quota, below a limit of the process.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def name_place(error: OSError) -> str:
    """The file that an error of the system is about, of a copy without room the copy's; empty where it names none."""
    return str((error.filename2 if error.errno in NO_ROOM else None) or error.filename or "")


class GauntletError(Exception):
    """Something that the user can act on: what happened and where, on one line, and what to do next."""

    exit_code = ExitCode.ERROR

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  {self.hint}" if self.hint else self.what

    @property
    def on_one_line(self) -> str:
        """Both, for where there is but one line."""
        return f"{self.what}. {self.hint}" if self.hint else self.what


class MachinesLostError(GauntletError):
    """The machines that perform a run are not to be had any more; what they have done is."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with a spec or suite file.

    Attributes:
        file: path as the user would type it.
        line: 1-based; 0 where unknown.
        field: dotted path (`inputs[0].source`), empty for the file as a whole.
    """

    file: str
    line: int
    field: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        field = f"{self.field}: " if self.field else ""
        text = f"{where}: {field}{self.message}"
        return f"{text}\n    {self.hint}" if self.hint else text

    @property
    def in_one_line(self) -> str:
        """The same on one line, for the reason of a step."""
        what, hint = str(replace(self, hint="")), self.hint.removesuffix(".")
        if not hint or what.endswith("?"):
            return f"{what} {hint}".rstrip()
        return f"{what}; {hint[0].lower() if hint[1:2].islower() else hint[0]}{hint[1:]}"


class SpecError(GauntletError):
    """Files that people write and that cannot be used; holds all their problems at once."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: list[Problem], kind: str = "spec files") -> None:
        self.problems = sorted(problems)
        count = len(self.problems)
        noun = "problem" if count == 1 else "problems"
        super().__init__(f"{count} {noun} in {kind}:\n" + "\n".join(f"  {p}" for p in self.problems))


class UsageError(GauntletError):
    """A command line that asks for something that does not exist or does not fit together."""

    exit_code = ExitCode.USAGE


class NothingSelectedError(GauntletError):
    """The selection matches no case."""

    exit_code = ExitCode.NOTHING_SELECTED


class ArtifactError(GauntletError):
    """A file that is not available, or is not what it should be.

    Attributes:
        notes: what was out of the ordinary before it failed, one line each.
    """

    def __init__(self, url: str, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.url = url
        self.notes: tuple[str, ...] = ()


class ToolchainError(GauntletError):
    """No usable IREE, or an IREE that lacks what is asked of it."""


class NoSuchToolchainError(ToolchainError):
    """What was named for an IREE is none: there is no such release, folder or environment."""

    exit_code = ExitCode.USAGE
