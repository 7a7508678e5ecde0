"""How a command ends: a mistake of the user becomes a message, and every end its exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from iree_gauntlet.errors import ExitCode, GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["finish"]


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
