"""IREE's native programs, for tests that start them directly."""

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

__all__ = ["compile_native", "copy_compiler", "find_native_tool"]


def find_native_tool(name: str) -> str:
    """Return the path of a program of the installed wheels; skip the test if they are not installed."""
    for package in ("iree.compiler", "iree"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for subfolder in ("_mlir_libs", "_runtime_libs"):
                if (path := Path(folder) / subfolder / name).is_file():
                    return str(path)
    pytest.skip(f"IREE is not installed: there is no {name}")


def compile_native(argv: Sequence[str]) -> None:
    """Run the compiler; the linker's temporary files, whose path may have no spaces, are removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(argv, check=True, capture_output=True, env=os.environ | {"TMPDIR": folder})


def copy_compiler(tool: str, folder: Path) -> Path:
    """Return a new directory with the compiler of a wheel, in which it finds its linker and its library."""
    folder.mkdir(parents=True)
    for path in Path(tool).parent.glob("*"):
        if path.name.startswith("iree-"):
            shutil.copy(path, folder)
        else:
            (folder / path.name).symlink_to(path)
    return folder
