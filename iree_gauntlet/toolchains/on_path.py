"""IREE's tools as a shell would find them: on the PATH."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["environment_of", "find_on_path"]


def find_on_path(tools: Sequence[str], search_path: str) -> Path:
    """The first one of several tools that belong together; the others must lie beside it.

    Args:
        tools: their names.
        search_path: the value of PATH.

    Raises:
        ToolchainError: one is missing, or they come from several places.
    """
    found = {tool: shutil.which(tool, path=search_path) for tool in tools}
    missing = [tool for tool, path in found.items() if path is None]
    if missing:
        raise ToolchainError(
            f"no {' and '.join(missing)} on the PATH: {search_path or 'it is empty'}",
            "Put the folder of IREE's tools on it: export PATH=<build>/tools:$PATH",
        )
    paths = [Path(path).absolute() for path in found.values() if path is not None]
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        raise ToolchainError(
            f"{' and '.join(tools)} on the PATH come from several places: {', '.join(folders)}",
            "Put the folder of one IREE first.",
        )
    return paths[0]


def environment_of(tool: Path) -> Path | None:
    """The interpreter of the environment whose script a tool is; None for a native program.

    A wheel puts scripts on the PATH that start its native programs.
    """
    with tool.open("rb") as file:
        if file.read(2) != b"#!":
            return None
    python = tool.parent / "python"
    return python if python.exists() else None
