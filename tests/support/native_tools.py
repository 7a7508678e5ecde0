"""IREE's native programs, for tests that start them by themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

__all__ = ["find_native"]


def find_native(name: str) -> str:
    """A program of the installed wheels; where they are not installed, the test is skipped."""
    for package in ("iree.compiler", "iree"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for inside in ("_mlir_libs", "_runtime_libs"):
                if (path := Path(folder) / inside / name).is_file():
                    return str(path)
    pytest.skip(f"IREE is not installed: there is no {name}")
