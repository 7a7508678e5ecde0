"""The folders of a project's cached files and modules, and of the IREEs that all projects share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.settings import expand_home, find_project_folder, resolve_links

if TYPE_CHECKING:
    from pathlib import Path

_CACHE_VARIABLE = "IREE_GAUNTLET_CACHE"
TOOLCHAINS_VARIABLE = "IREE_GAUNTLET_TOOLCHAINS"


def find_cache_folder(cache_dir: str) -> Path:
    """Find the cache: --cache-dir, $IREE_GAUNTLET_CACHE, `cache/` of the project, or the user's cache folder."""
    path = cache_dir or _read_cache_variable()
    if path:
        return resolve_links(expand_home(path))
    project = find_project_folder()
    if (project / "suites").is_dir():
        return project / "cache"
    return _find_user_cache()


def find_toolchains_folder() -> Path:
    """Find the folder of all IREEs: $IREE_GAUNTLET_TOOLCHAINS, or `toolchains/` of $IREE_GAUNTLET_CACHE.

    If neither variable is set, it is `toolchains/` of the user's cache folder.
    """
    if path := os.environ.get(TOOLCHAINS_VARIABLE, ""):
        return resolve_links(expand_home(path))
    cache = resolve_links(expand_home(_read_cache_variable())) if _read_cache_variable() else _find_user_cache()
    return cache / "toolchains"


def _find_user_cache() -> Path:
    from platformdirs import user_cache_path  # noqa: PLC0415 - not for commands that need no cache

    try:
        return expand_home(str(user_cache_path("iree-gauntlet")))
    except RuntimeError:
        # Some releases of platformdirs fail without a home folder.
        return expand_home("~/.cache/iree-gauntlet")


def make_cache_folder(cache_dir: str) -> Path:
    """Find the cache folder and create it; UsageError if that is impossible."""
    folder = find_cache_folder(cache_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        source = (
            f"--cache-dir {cache_dir}"
            if cache_dir
            else f"${_CACHE_VARIABLE}"
            if _read_cache_variable()
            else "the cache"
        )
        reason = "it is a file" if folder.exists() else error.strerror
        raise UsageError(
            f"{source}: cannot make the folder {folder}: {reason}", "Name another folder with --cache-dir."
        ) from error
    return folder


def _read_cache_variable() -> str:
    return os.environ.get(_CACHE_VARIABLE, "")
