"""The folders of a project, and the settings of a user: mirrors, stores, the shared module cache."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.device_kinds import Processor
    from iree_gauntlet.variants import FlagVariant


_FILE_VARIABLE = "IREE_GAUNTLET_CONFIG"
_CMAKE_OPTION = re.compile(r"-D[A-Za-z_]\w*(?::[A-Z]+)?=[^\n]*")


@dataclass(frozen=True, slots=True)
class Mirror:
    """A replacement for the beginning of URLs.

    Attributes:
        targets: replacements in the order of attempts: URLs or absolute folders.
        only: True if the URL itself is never used.
    """

    prefix: str
    targets: tuple[str, ...]
    only: bool = False


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """The settings of a project's history.

    Attributes:
        store: a folder, `git:REPOSITORY#BRANCH`, or an object store.
        add: True if every run is added to the history at its end.
        least_time: smallest relative change of a time that counts.
        least_other: smallest relative change of memory and compile times that counts.
    """

    store: str = "history"
    add: bool = False
    least_time: float = 0.02
    least_other: float = 0.05
    least_size: float = 0.001


@dataclass(frozen=True, slots=True)
class Configuration:
    """All settings, with their defaults.

    Attributes:
        mirrors: mirrors in the order of attempts.
        stores: obstore's options for object stores, by prefix of URLs (`az://account`, `s3://bucket`); `$NAME` as a
            value stands for an environment variable.
        shared_modules: URL of the shared module cache; empty for none.
        fills_shared_modules: True if this machine may write to the shared module cache.
        connections: concurrent connections for a large file.
        retries: further attempts of a download after a transient failure without any progress.
        nightly_links: page or folder with links to nightly wheels of IREE.
        packages_api: GitHub API of the repository whose CI builds packages for each commit of IREE.
        build_options: CMake options of source builds of IREE.
        variants: the project's variants of flags; a user's own come first.
        targets: the definitions of processors of other architectures, by name.
        environ: the environment for `$NAME` and credentials.
    """

    files: tuple[Path, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    stores: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shared_modules: str = ""
    fills_shared_modules: bool = False
    connections: int = 4
    retries: int = 4
    history: HistorySettings = HistorySettings()
    nightly_links: str = "https://iree.dev/pip-release-links.html"
    packages_api: str = "https://api.github.com/repos/iree-org/iree"
    build_options: tuple[str, ...] = ()
    variants: tuple[FlagVariant, ...] = ()
    targets: Mapping[str, Processor] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def find_store_options(self, url: str) -> Mapping[str, str]:
        """Find the configured options of a URL's store; if several prefixes match, the longest counts."""
        longest = max((prefix for prefix in self.stores if is_below(url, prefix)), key=len, default="")
        return self.stores.get(longest, {})


def find_settings_files(project: Path, environ: Mapping[str, str]) -> list[Path]:
    """Find the files with the settings of a user and of a project.

    Raises:
        UsageError: a variable names no file.
    """
    file = environ.get(_FILE_VARIABLE)
    if file and not Path(file).is_file():
        raise UsageError(f"${_FILE_VARIABLE} names {file}, which is not a file", "Fix the path, or unset the variable.")
    # Without a home the path stays as it is, and names no file.
    home = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    default_paths = [Path(home) / "iree-gauntlet" / "config.toml", project / "gauntlet.toml"]
    paths = default_paths if file is None else [Path(file)] if file else []
    # Report existing paths that cannot be read, even a folder or a broken link.
    return [path for path in paths if os.path.lexists(path)]


def is_cmake_option(text: str) -> bool:
    """Return whether a text is a CMake option `-DNAME=VALUE`."""
    return bool(_CMAKE_OPTION.fullmatch(text))


def is_below(url: str, prefix: str) -> bool:
    """Return whether a URL equals a prefix, or is inside of its folder."""
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else prefix + "/")


def find_project_folder() -> Path:
    """Find the nearest parent folder with `specs/` and `suites/`; the working folder if there is none."""
    working_folder = Path.cwd()
    for folder in (working_folder, *working_folder.parents):
        if (folder / "specs").is_dir() and (folder / "suites").is_dir():
            return folder
    return working_folder


def find_shipped_folder() -> Path:
    """Find the folder with the toolkit's own specs, suites and hashes; in a checkout, its root."""
    package = Path(__file__).parent
    shipped_folder = package / "shipped"
    return shipped_folder if shipped_folder.is_dir() else package.parent


def resolve_links(path: Path) -> Path:
    """Resolve all links of a path, up to the first loop.

    `Path.resolve` raises a RuntimeError for a loop up to Python 3.12.
    """
    return Path(os.path.realpath(path))


def read_file(path: Path) -> bytes:
    """Read a file that a user named; OSError if it cannot be read or is not a regular file.

    Reading a pipe would block, and a device such as /dev/zero has no end.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:  # noqa: PTH123 - by its descriptor
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device: expected a file", str(path))
        return file.readall()


def require_users_own_file(path: Path) -> None:
    """Raise a UsageError if a file that is to be changed belongs to the installed toolkit."""
    shipped_folder = Path(__file__).parent / "shipped"
    if resolve_links(path).is_relative_to(shipped_folder.resolve()):
        message = f"{path.name} in {path.parent} is part of the toolkit and must not be changed"
        raise UsageError(message, "Start your own project with `gauntlet init`, or name other specs with --spec-dir.")


def expand_home(text: str) -> Path:
    """Expand `~` in a typed path; UsageError if there is no such home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError as problem:
        user = text.partition("/")[0][1:]
        reason = f"there is no user {user}" if user else "this user has no home folder"
        hint = "Set $HOME, or write the full path (for the cache: --cache-dir FOLDER)."
        raise UsageError(f"{text} cannot be found: {reason}", hint) from problem


def find_runs_folder() -> Path:
    """Return the folder of runs: `runs/` of the project."""
    return find_project_folder() / "runs"


def format_typed_command() -> list[str]:
    """Return the command line of this process as a user types it."""
    script, *words = Path(sys.argv[0]), *sys.argv[1:]
    package = Path(__file__).parent
    if script.name == "__main__.py" and script.is_relative_to(package):
        return ["python", "-m", ".".join(script.parent.relative_to(package.parent).parts), *words]
    return [script.name, *words]


def format_path(path: Path) -> Path:
    """Return a path, relative to the working folder if the path is inside of that folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
