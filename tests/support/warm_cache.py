"""A cache that already has the tools' flags and the modules of a small project: built once a session."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.session_folder import make_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["fill_cache"]


def fill_cache(cache: Path, warm: Callable[[Path], None], *, modules: bool, name: str = "toy-cache") -> None:
    """Fill a project's cache.

    The files (a few hundred kilobytes) are copied, not linked, so tests that damage a cache damage only a copy.

    `cache`: the project's cache, which does not exist yet. `warm`: fills the cache that is copied.
    """
    template = make_once(name, warm)
    cache.mkdir(parents=True)
    shutil.copytree(template / "toolchains", cache / "toolchains")
    if modules:
        shutil.copytree(template / "modules", cache / "modules", symlinks=True)
