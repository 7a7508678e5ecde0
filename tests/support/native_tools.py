"""IREE's native programs, for tests that start them by themselves."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compile_native", "find_native", "move_compiler"]


def find_native(name: str) -> str:
    """A program of the installed wheels; where they are not installed, the test is skipped."""
    for package in ("iree.compiler", "iree"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for inside in ("_mlir_libs", "_runtime_libs"):
                if (path := Path(folder) / inside / name).is_file():
                    return str(path)
    pytest.skip(f"IREE is not installed: there is no {name}")


def compile_native(argv: Sequence[str]) -> None:
    """Runs the compiler; the linker's temporary files, whose path may have no blanks, go with it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(argv, check=True, capture_output=True, env=os.environ | {"TMPDIR": folder})


def move_compiler(tool: str, folder: Path) -> Path:
    """A folder with the compiler of a wheel, which finds itself, its linker and its library there."""
    folder.mkdir(parents=True)
    for path in Path(tool).parent.glob("*"):
        if path.name.startswith("iree-"):
            shutil.copy(path, folder)
        else:
            (folder / path.name).symlink_to(path)
    return folder
