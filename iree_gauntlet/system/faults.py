"""Errors in the toolkit itself: the traceback goes into a file, and the message asks the user to report it."""

from __future__ import annotations

import errno
import shlex
import tempfile
import traceback
from pathlib import Path

from iree_gauntlet import __version__
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.settings import format_typed_command

# These errors come from the limits of the machine, not from the caller.
_RESOURCE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# These errors come from owners and modes of the caller's files.
_PERMISSION_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MAX_FILENAME_CHARS = 60


class ToolkitFaultError(GauntletError):
    """An error in the toolkit, whose traceback is in a file."""

    exit_code = ExitCode.FAULT


def make_unexpected_error(error: Exception) -> GauntletError:
    """Return the message for an unforeseen error; write the traceback of an error in the toolkit to a file."""
    if isinstance(error, MemoryError):
        return GauntletError("there is not enough memory", "Stop other programs on this machine, or use a smaller -j.")
    if isinstance(error, OSError) and error.errno in _RESOURCE_ERRNOS:
        prefix = f"{error.filename}: " if error.filename else ""
        return GauntletError(
            f"{prefix}{error.strerror}", "Free space there, or have this machine checked; then run again."
        )
    if isinstance(error, OSError) and error.errno in _PERMISSION_ERRNOS and error.filename:
        return GauntletError(f"{error.filename}: {error.strerror}", "Change its owner or mode, or use another folder.")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UsageError(f"{str(error.filename)[:_MAX_FILENAME_CHARS]}…: {error.strerror}", "Use a shorter name.")
    import platform  # noqa: PLC0415 - its patterns are compiled on import, and only a fault needs it

    frames = traceback.extract_tb(error.__traceback__)
    toolkit_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(Path(__file__).parent.parent)]
    origin = f" ({Path(toolkit_frames[-1].filename).name}:{toolkit_frames[-1].lineno})" if toolkit_frames else ""
    error_line = (str(error).splitlines() or [""])[0]
    summary = f"a fault of IREE Gauntlet itself, not of its input: {type(error).__name__}: {error_line}{origin}"
    lines = [
        f"iree-gauntlet {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"$ {shlex.join(format_typed_command())}",
        "",
        *traceback.format_exception(error),
    ]
    report = "\n".join(lines)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gauntlet-fault-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(report)
    except OSError as write_error:
        return ToolkitFaultError(
            summary, f"Report it with this text, which could not be saved ({write_error.strerror}):\n{report}"
        )
    hint = (
        f"Report it with {file.name}, which has the traceback and the command line: first check them for private data."
    )
    return ToolkitFaultError(
        summary, f"{hint}\n  What was recorded before is kept; commands with --resume continue from there."
    )
