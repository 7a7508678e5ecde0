"""The `toolchain` tasks as the command line has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from iree_gauntlet.option import Option, options_of, read
from iree_gauntlet.requests import FormatRequest, NetworkRequest, ToolchainRequest
from iree_gauntlet.tasks.task_options import CACHE, FORMAT, TOOLCHAIN, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


# Invoke fills a positional argument with one word: these take several.
TAKES_SEVERAL = frozenset({"toolchain.install", "toolchain.remove"})


@gauntlet_task(
    "install",
    (
        Option("version", None, "Releases, ranges, nightlies or wheels:DIR; several in quotes with `inv`."),
        *CACHE,
        *options_of(NetworkRequest, "offline"),
    ),
    positional="version",
    usage="toolchain.install VERSION…",
)
def install_task(options: dict[str, Any]) -> ExitCode:
    """Install releases of IREE into the cache, each in an environment of its own.

    Examples: toolchain.install 3.9.0 3.12.0
              toolchain.install nightly
              toolchain.install wheels:dist
    """
    from iree_gauntlet.upkeep.installed_toolchains import install  # noqa: PLC0415

    return install(options["version"], options["cache_dir"], offline=options["offline"])


@gauntlet_task("list", (*CACHE, *FORMAT))
def list_task(options: dict[str, Any]) -> ExitCode:
    """Show which IREE is installed here, and those in the cache with their size and last use."""
    from iree_gauntlet.upkeep.installed_toolchains import list_toolchains  # noqa: PLC0415

    return list_toolchains(options["cache_dir"], as_json=read(FormatRequest, options).as_json)


@gauntlet_task("show", (*TOOLCHAIN, *FORMAT))
def show_task(options: dict[str, Any]) -> ExitCode:
    """Show what --iree would use: paths, versions, commits, identities. Installs nothing.

    Example: toolchain.show --iree build:../iree-build
    """
    from iree_gauntlet.upkeep.installed_toolchains import show  # noqa: PLC0415

    return show(read(ToolchainRequest, options), as_json=read(FormatRequest, options).as_json)


@gauntlet_task(
    "remove",
    (Option("version", None, "Versions, or names as `toolchain.list` has them."), *CACHE),
    positional="version",
    usage="toolchain.remove VERSION…",
)
def remove_task(options: dict[str, Any]) -> ExitCode:
    """Delete releases of IREE from the cache; one that a running process uses stays.

    Example: toolchain.remove 3.9.0
    """
    from iree_gauntlet.upkeep.installed_toolchains import remove  # noqa: PLC0415

    return remove(options["version"], options["cache_dir"])


def toolchain_collection() -> Collection:
    """The tasks under their common name."""
    return Collection("toolchain", install_task, list_task, show_task, remove_task)
