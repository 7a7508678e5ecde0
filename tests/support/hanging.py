"""What hangs until it is ended: for tests of what ends it. How long it would last has no bearing on any verdict."""

from __future__ import annotations

import itertools
import os

__all__ = ["HANG", "HANG_PYTHON", "marked_hang"]

# As the last command of a shell script. It ends by itself where a test was killed.
HANG = "exec sleep 1000"
# As a statement of a Python program.
HANG_PYTHON = "import time; time.sleep(1000)"
_NUMBERS = itertools.count(1)


def marked_hang() -> str:
    """As a command of a shell script whose processes `running` finds by this very text, and no others."""
    return f"sleep 1000.{os.getpid():07}{next(_NUMBERS):04}"
