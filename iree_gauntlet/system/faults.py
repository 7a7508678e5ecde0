"""Faults of the toolkit itself: their traceback goes into a file, and what to do with it is said."""

from __future__ import annotations

import errno
import platform
import shlex
import tempfile
import traceback
from pathlib import Path

from iree_gauntlet import __version__
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.settings import format_typed_command

# What a machine lacks, whoever asks for it.
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
_MOST_SHOWN = 60


class ToolkitFaultError(GauntletError):
    """A fault of the toolkit, whose traceback is in a file."""

    exit_code = ExitCode.FAULT


def explain_escaped(error: Exception) -> GauntletError:
    """The message for an error that nothing has foreseen; of a fault of the toolkit, with its traceback in a file."""
    if isinstance(error, MemoryError):
        return GauntletError("there is not enough memory", "End what else runs here, or give -j a smaller number.")
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        where = f"{error.filename}: " if error.filename else ""
        return GauntletError(
            f"{where}{error.strerror}", "Make room there, or have this machine looked at; then run again."
        )
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UsageError(f"{str(error.filename)[:_MOST_SHOWN]}…: {error.strerror}", "Give a shorter name.")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(Path(__file__).parent.parent)]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    said = (str(error).splitlines() or [""])[0]
    what = f"a fault of IREE Gauntlet itself, not of what it was given: {type(error).__name__}: {said}{place}"
    lines = [
        f"iree-gauntlet {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"$ {shlex.join(format_typed_command())}",
        "",
        *traceback.format_exception(error),
    ]
    text = "\n".join(lines)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gauntlet-fault-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError as unwritten:
        return ToolkitFaultError(
            what, f"Report it with this text, for which there is no room ({unwritten.strerror}):\n{text}"
        )
    hint = (
        f"Report it with {file.name}, which has the traceback and the command line: read first what they show of yours."
    )
    return ToolkitFaultError(
        what, f"{hint}\n  What was recorded before is kept; commands with --resume go on from there."
    )
