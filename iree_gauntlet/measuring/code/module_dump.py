"""Reads a compiled module's description by `iree-dump-module`, which each release of IREE has for its own modules."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.system.short_process import run_tool

_TOOL = "iree-dump-module"
# Data inside of a module's FlatBuffer is described byte by byte.
_MAX_BYTES = 1 << 26


def dump_module(run_module: str, module: Path) -> dict[str, Any]:
    """Return the content of a module's FlatBuffer; this takes some hundredths of a second.

    Args:
        run_module: the path of `iree-run-module`; the `iree-dump-module` beside it is used.
        module: output of `iree-compile` of the same release.

    Raises:
        GauntletError: the tool is missing, or cannot describe the module.
    """
    if module.is_file() and module.stat().st_size > _MAX_BYTES and not zipfile.is_zipfile(module):
        raise GauntletError(
            f"{module}: is too large to be described", "Compile it without --iree-vm-emit-polyglot-zip=false."
        )
    dump = run_tool([str(Path(run_module).with_name(_TOOL)), "--output=flatbuffer-json", str(module)], timeout=120.0)
    try:
        content: dict[str, Any] = json.loads(dump.stdout)
    except ValueError as error:
        message = next((line.strip() for line in dump.stderr.splitlines() if line.strip()), "it says nothing")
        raise GauntletError(
            f"{module}: {_TOOL} cannot describe it: {message}", "compile it again with this toolchain"
        ) from error
    return content
