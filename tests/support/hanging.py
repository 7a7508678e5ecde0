"""What hangs until it is ended: for tests of what ends it. How long it would last has no bearing on any verdict."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HANG", "HANG_PYTHON", "growing_times", "marked_hang"]

# As the last command of a shell script. It ends by itself where a test was killed.
HANG = "exec sleep 1000"
# As a statement of a Python program.
HANG_PYTHON = "import time; time.sleep(1000)"
_NUMBERS = itertools.count(1)


def marked_hang() -> str:
    """As a command of a shell script whose processes `running` finds by this very text, and no others."""
    return f"sleep 1000.{os.getpid():07}{next(_NUMBERS):04}"


def growing_times(first: float = 0.05) -> Iterator[float]:
    """Seconds, ever more, to give to what hangs: a test continues until it was enough for it to get ready."""
    yield from (first * 2**power for power in range(10))
    pytest.fail("it was never ready")
