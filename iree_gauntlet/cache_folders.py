"""Where files and modules of a project are kept, and where IREEs are, for all projects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from iree_gauntlet.errors import UsageError
from iree_gauntlet.settings import expand_home, find_project_folder, resolve_links

if TYPE_CHECKING:
    from pathlib import Path

_CACHE_VARIABLE = "IREE_GAUNTLET_CACHE"
TOOLCHAINS_VARIABLE = "IREE_GAUNTLET_TOOLCHAINS"


def find_cache_folder(cache_dir: str) -> Path:
    """`--cache-dir`, else $IREE_GAUNTLET_CACHE, else `cache/` of the project, else the user's cache folder."""
    named = cache_dir or _names_cache()
    if named:
        return resolve_links(expand_home(named))
    project = find_project_folder()
    if (project / "suites").is_dir():
        return project / "cache"
    return _find_own_cache()


def find_toolchains_folder() -> Path:
    """Where IREEs are kept for all projects: $IREE_GAUNTLET_TOOLCHAINS, else `toolchains/` of $IREE_GAUNTLET_CACHE.

    Where neither is set, it is that of the user's cache folder.
    """
    if named := os.environ.get(TOOLCHAINS_VARIABLE, ""):
        return resolve_links(expand_home(named))
    cache = resolve_links(expand_home(_names_cache())) if _names_cache() else _find_own_cache()
    return cache / "toolchains"


def _find_own_cache() -> Path:
    try:
        return expand_home(str(user_cache_path("iree-gauntlet")))
    except RuntimeError:
        # Releases of platformdirs differ in what they do without a home.
        return expand_home("~/.cache/iree-gauntlet")


def make_cache_folder(cache_dir: str) -> Path:
    """The same, which is there now; UsageError where it cannot be made."""
    folder = find_cache_folder(cache_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        named = f"--cache-dir {cache_dir}" if cache_dir else f"${_CACHE_VARIABLE}" if _names_cache() else "the cache"
        why = "it is a file" if folder.exists() else error.strerror
        raise UsageError(
            f"{named}: cannot make the folder {folder}: {why}", "Name another folder with --cache-dir."
        ) from error
    return folder


def _names_cache() -> str:
    return os.environ.get(_CACHE_VARIABLE, "")
