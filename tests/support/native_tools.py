"""IREE's native programs, for tests that start them by themselves."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

__all__ = ["find_native", "move_compiler"]


def find_native(name: str) -> str:
    """A program of the installed wheels; where they are not installed, the test is skipped."""
    for package in ("iree.compiler", "iree"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for inside in ("_mlir_libs", "_runtime_libs"):
                if (path := Path(folder) / inside / name).is_file():
                    return str(path)
    pytest.skip(f"IREE is not installed: there is no {name}")


def move_compiler(tool: str, folder: Path) -> Path:
    """A folder with the compiler of a wheel, which finds itself, its linker and its library there."""
    folder.mkdir(parents=True)
    for path in Path(tool).parent.glob("*"):
        if path.name.startswith("iree-"):
            shutil.copy(path, folder)
        else:
            (folder / path.name).symlink_to(path)
    return folder
