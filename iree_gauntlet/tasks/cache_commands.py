"""The `cache` tasks as the command line has them; what they do is imported when they run: `--list` must be quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from iree_gauntlet.option import Option, options_of, read
from iree_gauntlet.requests import DEFAULT_SUITE, Defaults, FormatRequest, NetworkRequest, RunRequest
from iree_gauntlet.tasks.task_options import CACHE, FORMAT, SELECTION, TOOLCHAIN, gauntlet_task
from iree_gauntlet.upkeep.upkeep_requests import CollectRequest, LockRequest, VerifyRequest

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


@gauntlet_task(
    "list",
    (*CACHE, *FORMAT, Option("match", "", "Only names that fit this glob, such as '*.irpa'.")),
)
def list_task(options: dict[str, Any]) -> ExitCode:
    """Show what is in the cache, largest first: size, last use, pinned or not, verified or not.

    Example: cache.list --match '*.irpa'
    """
    from iree_gauntlet.upkeep.cache_list import list_cache  # noqa: PLC0415

    return list_cache(options["cache_dir"], options["match"], as_json=read(FormatRequest, options).as_json)


@gauntlet_task("verify", options_of(VerifyRequest))
def verify_task(options: dict[str, Any]) -> ExitCode:
    """Hash everything in the cache again; fetch again what is damaged. Exit code 3 if damage stays."""
    from iree_gauntlet.upkeep.cache_verify import verify  # noqa: PLC0415

    return verify(read(VerifyRequest, options))


@gauntlet_task("gc", options_of(CollectRequest))
def gc_task(options: dict[str, Any]) -> ExitCode:
    """Make room: what was not used for long goes, never what a running process uses.

    Example: cache.gc --older-than 30d --max-size 50GB --delete
    """
    from iree_gauntlet.upkeep.cache_gc import collect_garbage  # noqa: PLC0415

    return collect_garbage(read(CollectRequest, options))


@gauntlet_task("lock", options_of(LockRequest))
def lock_task(options: dict[str, Any]) -> ExitCode:
    """Write hashes that were learnt here into cache/registry.txt, to be committed, and show what changes."""
    from iree_gauntlet.upkeep.cache_lock import lock_hashes  # noqa: PLC0415

    return lock_hashes(read(LockRequest, options))


@gauntlet_task(
    "where",
    (Option("url", None, "As it stands in a spec."), *CACHE, *FORMAT),
    positional="url",
    usage="cache.where URL",
)
def where_task(options: dict[str, Any]) -> ExitCode:
    """Print the local path of a URL's file; exit code 3 if it is not there yet.

    Example: cp "$(gauntlet cache.where https://host/weights.irpa)" .
    """
    from iree_gauntlet.upkeep.cache_list import where  # noqa: PLC0415

    return where(options["url"], options["cache_dir"], as_json=read(FormatRequest, options).as_json)


@gauntlet_task(
    "export",
    (
        *SELECTION,
        *TOOLCHAIN,
        *options_of(NetworkRequest),
        Option("output", "", "The archive to write."),
    ),
)
def export_task(options: dict[str, Any]) -> ExitCode:
    """Pack what the selection needs, modules included, into one archive, for a machine without a network.

    Example: cache.export --suite cpu --output cpu.tar
    """
    from iree_gauntlet.upkeep.cache_archive import export_cache  # noqa: PLC0415

    return export_cache(RunRequest.of(options, Defaults(suite=DEFAULT_SUITE)), options["output"])


@gauntlet_task(
    "import",
    (Option("archive", None, "What `cache.export` has written."), *CACHE),
    positional="archive",
    usage="cache.import ARCHIVE",
)
def import_task(options: dict[str, Any]) -> ExitCode:
    """Put what an archive holds into the cache; every file is checked, and nothing else is touched."""
    from iree_gauntlet.upkeep.cache_archive import import_cache  # noqa: PLC0415

    return import_cache(Path(options["archive"]), options["cache_dir"])


def cache_collection() -> Collection:
    """The tasks under their common name."""
    return Collection("cache", list_task, where_task, verify_task, gc_task, lock_task, export_task, import_task)
