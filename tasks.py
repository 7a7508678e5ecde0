"""`inv --list` in a checkout shows the same tasks as `gauntlet --list` once installed."""

from __future__ import annotations

from iree_gauntlet.tasks.program import namespace

__all__ = ["namespace"]
