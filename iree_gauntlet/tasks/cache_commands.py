"""The `cache` tasks as the command line has them; what they do is imported when they run: `--list` must be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from iree_gauntlet.requests import Option
from iree_gauntlet.tasks.options import CACHE, FORMAT, RUNNING, SELECTION, TOOLCHAIN, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["cache_collection"]


@gauntlet_task(
    "list",
    (*CACHE, FORMAT, Option("match", "", "Only names that fit this glob, such as '*.irpa'.")),
)
def list_task(options: dict[str, Any]) -> ExitCode:
    """Show what is in the cache, largest first: size, last use, pinned or not, verified or not.

    Example: cache.list --match '*.irpa'
    """
    from iree_gauntlet.tasks.cache import list_cache  # noqa: PLC0415

    return list_cache(options)


@gauntlet_task(
    "verify",
    (
        *CACHE,
        Option("check_only", False, "Say what is damaged, and change nothing."),
        Option("offline", False, "Never touch the network: what is damaged stays, unless it can be made here."),
    ),
)
def verify_task(options: dict[str, Any]) -> ExitCode:
    """Hash everything in the cache again; fetch again what is damaged. Exit code 3 if damage stays."""
    from iree_gauntlet.tasks.cache_verify import verify  # noqa: PLC0415

    return verify(options)


@gauntlet_task(
    "gc",
    (
        *CACHE,
        Option("older_than", "", "What was not used for so long goes: 12h, 30d, 8w."),
        Option("max_size", "", "The least recently used goes until the rest fits: 500MB, 50GB, 1.5TiB."),
        Option("delete", False, "Delete it; without this, only show what would go."),
    ),
)
def gc_task(options: dict[str, Any]) -> ExitCode:
    """Make room: what was not used for long goes, never what a running process uses.

    Example: cache.gc --older-than 30d --max-size 50GB --delete
    """
    from iree_gauntlet.tasks.cache_gc import collect_garbage  # noqa: PLC0415

    return collect_garbage(options)


@gauntlet_task(
    "lock",
    (
        *CACHE,
        Option("refresh", [], "Fetch this URL anew although it is pinned, and pin what it has now (repeatable)."),
        Option("prune", False, "Drop entries that no spec of the project names."),
        Option("dry_run", False, "Show what would change, and change nothing."),
    ),
)
def lock_task(options: dict[str, Any]) -> ExitCode:
    """Write hashes that were learnt here into cache/registry.txt, to be committed, and show what changes."""
    from iree_gauntlet.tasks.cache_lock import lock_hashes  # noqa: PLC0415

    return lock_hashes(options)


@gauntlet_task(
    "where", (Option("url", None, "As it stands in a spec."), *CACHE, FORMAT), positional="url", usage="cache.where URL"
)
def where_task(options: dict[str, Any]) -> ExitCode:
    """Print the local path of a URL's file; exit code 3 if it is not there yet.

    Example: cp "$(gauntlet cache.where https://host/weights.irpa)" .
    """
    from iree_gauntlet.tasks.cache import where  # noqa: PLC0415

    return where(options)


@gauntlet_task(
    "export",
    (
        *SELECTION,
        *TOOLCHAIN,
        *(option for option in RUNNING if option.name in ("offline", "timeout_stall")),
        Option("output", "", "The archive to write."),
    ),
)
def export_task(options: dict[str, Any]) -> ExitCode:
    """Pack what the selection needs, modules included, into one archive, for a machine without a network.

    Example: cache.export --suite cpu --output cpu.tar
    """
    from iree_gauntlet.tasks.cache_archive import export_cache  # noqa: PLC0415

    return export_cache(options)


@gauntlet_task(
    "import",
    (Option("archive", None, "What `cache.export` has written."), *CACHE),
    positional="archive",
    usage="cache.import ARCHIVE",
)
def import_task(options: dict[str, Any]) -> ExitCode:
    """Put what an archive holds into the cache; every file is checked, and nothing else is touched."""
    from iree_gauntlet.tasks.cache_archive import import_cache  # noqa: PLC0415

    return import_cache(options)


def cache_collection() -> Collection:
    """The tasks under their common name."""
    return Collection("cache", list_task, where_task, verify_task, gc_task, lock_task, export_task, import_task)
