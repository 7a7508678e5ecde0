"""Which IREE a command line asks for, and where it is looked for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from iree_gauntlet.toolchains.choice import Choice, parse_choice
from iree_gauntlet.toolchains.environments import Environments
from iree_gauntlet.toolchains.find import Place
from iree_gauntlet.toolchains.installer import Installer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.settings import Configuration
    from iree_gauntlet.toolchains.toolchain import Toolchain


_VARIABLE = "IREE_GAUNTLET_IREE"


def chosen(request: ToolchainRequest, environ: Mapping[str, str]) -> tuple[Choice, Choice]:
    """Compiler and runtime that are asked for, by their own options, else by `--iree`, else by the variable.

    Raises:
        UsageError: a value names no IREE.
    """
    from_environment = environ.get(_VARIABLE, ""), f"${_VARIABLE}"
    whole = parse_choice(request.iree) if request.iree else parse_choice(*from_environment)
    compiler, runtime = request.iree_compiler, request.iree_runtime
    return (
        parse_choice(compiler, "--iree-compiler") if compiler else whole,
        parse_choice(runtime, "--iree-runtime") if runtime else whole,
    )


def toolchain_place(
    cache_dir: Path,
    configuration: Configuration,
    use: Callable[[Path], None],
    hash_of: Callable[[Path], str],
    installed: Callable[[], Toolchain],
    *,
    offline: bool,
) -> Place:
    """Where toolchains are looked for and installed.

    Args:
        cache_dir: folder of the caches.
        configuration: of the project and the user.
        use: takes a lease of the cache on an environment.
        hash_of: SHA-256 of a file's content.
        installed: finds the one that is installed with this toolkit.
        offline: nothing is installed.
    """
    environments = Environments(
        cache_dir / "toolchains" / "envs",
        Installer(),
        offline=offline,
        use=use,
        news=_say,
    )
    return Place(installed, environments, configuration.nightly_links, hash_of, os.environ.get("PATH", ""))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
