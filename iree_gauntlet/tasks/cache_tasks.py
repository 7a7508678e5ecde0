"""The `cache` tasks as the command line has them; what they do is imported when they run: `--list` must be quick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from iree_gauntlet.requests import Option
from iree_gauntlet.tasks.ending import asked_for_help, finish
from iree_gauntlet.tasks.options import CACHE, FORMAT, RUNNING, SELECTION, TOOLCHAIN, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["cache_collection"]


@gauntlet_task(
    "list",
    (*CACHE, FORMAT, Option("match", "", "Only names that fit this glob, such as '*.irpa'.")),
)
def list_task(_context: Any, options: dict[str, Any]) -> None:
    """Show what is in the cache, largest first: size, last use, pinned or not, verified or not.

    Example: cache.list --match '*.irpa'
    """

    def work() -> ExitCode:
        from iree_gauntlet.tasks.cache import list_cache  # noqa: PLC0415

        return list_cache(options)

    finish(work)


@gauntlet_task(
    "verify",
    (
        *CACHE,
        Option("check_only", False, "Say what is damaged, and change nothing."),
        Option("offline", False, "Never touch the network: what is damaged stays, unless it can be made here."),
    ),
)
def verify_task(_context: Any, options: dict[str, Any]) -> None:
    """Hash everything in the cache again; fetch again what is damaged. Exit code 3 if damage stays."""

    def work() -> ExitCode:
        from iree_gauntlet.tasks.cache_verify import verify  # noqa: PLC0415

        return verify(options)

    finish(work)


@gauntlet_task(
    "gc",
    (
        *CACHE,
        Option("older_than", "", "What was not used for so long goes: 12h, 30d, 8w."),
        Option("max_size", "", "The least recently used goes until the rest fits: 500MB, 50GB, 1.5TiB."),
        Option("delete", False, "Delete it; without this, only show what would go."),
    ),
)
def gc_task(_context: Any, options: dict[str, Any]) -> None:
    """Make room: what was not used for long goes, never what a running process uses.

    Example: cache.gc --older-than 30d --max-size 50GB --delete
    """

    def work() -> ExitCode:
        from iree_gauntlet.tasks.cache_gc import collect_garbage  # noqa: PLC0415

        return collect_garbage(options)

    finish(work)


@gauntlet_task(
    "lock",
    (
        *CACHE,
        Option("refresh", [], "Fetch this URL anew although it is pinned, and pin what it has now (repeatable)."),
        Option("prune", False, "Drop entries that no spec of the project names."),
        Option("dry_run", False, "Show what would change, and change nothing."),
    ),
)
def lock_task(_context: Any, options: dict[str, Any]) -> None:
    """Write hashes that were learnt here into cache/registry.txt, to be committed, and show what changes."""

    def work() -> ExitCode:
        from iree_gauntlet.tasks.cache_lock import lock_hashes  # noqa: PLC0415

        return lock_hashes(options)

    finish(work)


@gauntlet_task("where", (Option("url", None, "As it stands in a spec."), *CACHE, FORMAT), positional=("url",))
def where_task(_context: Any, options: dict[str, Any]) -> None:
    """Print the local path of a URL's file; exit code 3 if it is not there yet.

    Example: cp "$(gauntlet cache.where https://host/weights.irpa)" .
    """

    def work() -> ExitCode:
        from iree_gauntlet.tasks.cache import where  # noqa: PLC0415

        return where(options)

    if not asked_for_help(options["url"], "cache.where URL", where_task):
        finish(work)


@gauntlet_task(
    "export",
    (
        *SELECTION,
        *TOOLCHAIN,
        *(option for option in RUNNING if option.name in ("offline", "timeout_stall")),
        Option("output", "", "The archive to write."),
    ),
)
def export_task(_context: Any, options: dict[str, Any]) -> None:
    """Pack what the selection needs, modules included, into one archive, for a machine without a network.

    Example: cache.export --suite cpu --output cpu.tar
    """

    def work() -> ExitCode:
        from iree_gauntlet.tasks.cache_archive import export_cache  # noqa: PLC0415

        return export_cache(options)

    finish(work)


@gauntlet_task("import", (Option("archive", None, "What `cache.export` has written."), *CACHE), positional=("archive",))
def import_task(_context: Any, options: dict[str, Any]) -> None:
    """Put what an archive holds into the cache; every file is checked, and nothing else is touched."""

    def work() -> ExitCode:
        from iree_gauntlet.tasks.cache_archive import import_cache  # noqa: PLC0415

        return import_cache(options)

    if not asked_for_help(options["archive"], "cache.import ARCHIVE", import_task):
        finish(work)


def cache_collection() -> Collection:
    """The tasks under their common name."""
    return Collection("cache", list_task, where_task, verify_task, gc_task, lock_task, export_task, import_task)
