"""Paths of the checkout, of the data recorded for tests, and of the corpus next to the checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CORPUS", "DATA", "ROOT", "SHARED"]

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SHARED = (ROOT.parent / "shared").resolve()
CORPUS = SHARED / "corpus"
