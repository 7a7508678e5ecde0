"""Python's search for cycles, which is turned off where much is made and held."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def pause_collector() -> Iterator[None]:
    """No search for cycles: what is made inside is held until its end, and among millions of objects it takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
