"""A cache in which the tools' flags and the modules of a small project are already: made once a session."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.session_folder import made_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["fill_cache"]


def fill_cache(cache: Path, warm: Callable[[Path], None], *, modules: bool, name: str = "toy-cache") -> None:
    """Fills a project's cache.

    The files are copied, not linked: a few hundred kilobytes, and tests that damage a cache damage their own.

    `cache`: the folder; it does not exist yet.
    """
    template = made_once(name, warm)
    cache.mkdir(parents=True)
    shutil.copytree(template / "toolchains", cache / "toolchains")
    if modules:
        shutil.copytree(template / "modules", cache / "modules", symlinks=True)
