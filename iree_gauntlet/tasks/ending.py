"""How a command ends: a mistake of the user becomes a message, and every end its exit code."""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from iree_gauntlet.errors import ExitCode, GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable

    from invoke.tasks import Task

__all__ = ["asked_for_help", "finish"]


def finish(work: Callable[[], ExitCode]) -> None:
    """Runs a command; a mistake of the user becomes a message, and every end its exit code."""
    try:
        code = work()
    except GauntletError as error:
        sys.stderr.write(f"error: {error}\n")
        code = error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    sys.stdout.flush()
    if code is not ExitCode.OK:
        raise Exit(code=int(code))


def asked_for_help(value: str, usage: str, shown: Task[Any]) -> bool:
    """Whether a positional argument is a wish for help, which is fulfilled: Invoke takes it for the value."""
    if value not in ("--help", "-h"):
        return False
    sys.stdout.write(f"Usage: {usage}\n\nDocstring:\n  {inspect.cleandoc(shown.__doc__ or '')}\n")
    return True
