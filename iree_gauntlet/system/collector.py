"""A switch for Python's cycle collector, which is turned off while many objects are created and kept."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the cycle collector, which is slow if there are millions of objects that all live until the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
