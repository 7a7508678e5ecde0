"""Commands that hang until a test or the toolkit ends them; no verdict depends on their duration."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HANG", "HANG_PYTHON", "iterate_timeouts", "make_hang_command"]

# The last command of a shell script. It ends by itself, in case the test is killed.
HANG = "exec sleep 1000"
# A statement of a Python program.
HANG_PYTHON = "import time; time.sleep(1000)"
_NUMBERS = itertools.count(1)


def make_hang_command() -> str:
    """Return a shell command that hangs; `find_processes` finds exactly its processes by this text."""
    return f"sleep 1000.{os.getpid():07}{next(_NUMBERS):04}"


def iterate_timeouts(first_seconds: float = 0.05) -> Iterator[float]:
    """Yield growing timeouts in seconds; the caller stops at one that lets a hanging process get ready."""
    yield from (first_seconds * 2**power for power in range(10))
    pytest.fail("it was never ready")
