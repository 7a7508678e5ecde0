"""IREE Gauntlet: every model runs compile → threshold → benchmark, on any IREE."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
