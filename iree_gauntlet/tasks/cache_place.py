"""Where the `cache` tasks work: the cache's folder, the project's registry, and a store over both."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.inventory import Pins
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.registry import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.settings import cache_folder, project_folder, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.artifacts.progress import Progress
    from iree_gauntlet.settings import Configuration

__all__ = ["CachePlace", "age_text", "asked_format", "open_cache", "print_table", "refusals_explained"]

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


def open_cache(options: Mapping[str, Any]) -> CachePlace:
    """The cache that the options and the environment name.

    Raises:
        GauntletError: a registry or a settings file is wrong.
    """
    root, project = cache_folder(options["cache_dir"]), project_folder()
    if root.exists() and not root.is_dir():
        raise UsageError(f"the cache {root} is a file", "Name a folder with --cache-dir.")
    if options.get("cache_dir") and not root.exists() and "archive" not in options:
        # An archive may be the first thing that a new cache gets.
        raise UsageError(f"--cache-dir {options['cache_dir']}: there is no such folder", "Check the path.")
    pins = Pins(
        Registry.read(shown(project / "cache" / "registry.txt")), Registry.read(shown(root / "registry.lock.txt"))
    )
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


def asked_format(options: Mapping[str, Any]) -> str:
    """The value of `--format`.

    Raises:
        UsageError: there is no such format.
    """
    wanted = str(options["format"])
    if wanted not in ("text", "json"):
        raise UsageError(f"--format {wanted}: unknown format", "Known: text, json.")
    return wanted


def age_text(seconds: float) -> str:
    """How long ago, for people."""
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min ago"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h ago"
    return f"{seconds / _DAY:.0f} d ago"


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as they need to be, the last one as it comes."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
