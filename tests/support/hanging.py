"""What hangs until it is ended: for tests of what ends it. How long it would last has no bearing on any verdict."""

from __future__ import annotations

__all__ = ["HANG", "HANG_PYTHON"]

# As the last command of a shell script. It ends by itself where a test was killed.
HANG = "exec sleep 1000"
# As a statement of a Python program.
HANG_PYTHON = "import time; time.sleep(1000)"
