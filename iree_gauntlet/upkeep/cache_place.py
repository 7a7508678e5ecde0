"""Where the `cache` tasks work: the cache's folder, the project's registry, and a store over both."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.registry_file import Pins, Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.settings import Configuration, cache_folder, project_folder, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.progress import Progress


# A folder in which something was fetched or compiled has at least one of these.
_MARKS = ("locks", "verified", "leases", "modules/making", "modules/by-name")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class CachePlace:
    """A cache and its project.

    Attributes:
        root: the cache's folder.
        project: the project's folder.
        pins: of the project, and learnt in this cache.
        configuration: of the project and the user.
        leases: of the cache.
    """

    root: Path
    project: Path
    pins: Pins
    configuration: Configuration
    leases: Leases

    def store(self, progress: Progress, *, offline: bool = False) -> ArtifactStore:
        """The artifacts of the cache."""
        return ArtifactStore(
            self.root, self.pins.registry, offline=offline, progress=progress, configuration=self.configuration
        )

    def require_cache(self) -> None:
        """Make sure that nothing is deleted from a folder of another purpose.

        Raises:
            UsageError: the folder is there and does not look like a cache.
        """
        if self.root.exists() and not any((self.root / mark).exists() for mark in _MARKS):
            raise UsageError(
                f"{self.root} does not look like a cache: it has none of {', '.join(_MARKS)}",
                "Name the cache's own folder with --cache-dir.",
            )


def open_cache(cache_dir: str, *, may_be_new: bool = False) -> CachePlace:
    """The cache that `--cache-dir` or the environment names.

    Raises:
        UsageError: there is no such folder.
        GauntletError: a registry or a settings file is wrong.
    """
    root, project = cache_folder(cache_dir), project_folder()
    if root.exists() and not root.is_dir():
        raise UsageError(f"the cache {root} is a file", "Name a folder with --cache-dir.")
    if cache_dir and not root.exists() and not may_be_new:
        raise UsageError(f"--cache-dir {cache_dir}: there is no such folder", "Check the path.")
    pins = Pins(Registry.of_project(project), Registry.read(shown(root / "registry.lock.txt")))
    return CachePlace(root, project, pins, read_configuration(project, os.environ), Leases(root))


@contextmanager
def refusals_explained(root: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that names the path."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{error.filename or root}: {error.strerror or error}"
        raise GauntletError(what, f"Check the path and your rights there; the cache is {root}.") from error


def age_text(seconds: float) -> str:
    """How long ago, for people."""
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min ago"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h ago"
    return f"{seconds / _DAY:.0f} d ago"
