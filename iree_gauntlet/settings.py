"""Where a project keeps what, and what a user sets once for all commands: mirrors, stores, the shared module cache."""

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


_CMAKE_OPTION = re.compile(r"-D[A-Za-z_]\w*(?::[A-Z]+)?=[^\n]*")


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where files may be had instead of at their URL.

    Attributes:
        to: what takes its place, in the order of trying: URLs, or absolute folders.
        only: never go to the URL itself.
    """

    prefix: str
    to: tuple[str, ...]
    only: bool = False


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """The history of a project.

    Attributes:
        store: a folder, `git:REPOSITORY#BRANCH`, or an object store.
        add: whether every run adds itself when it ends.
        least_time: share below which a change of a time is none.
        least_other: the same for memory and compile times.
    """

    store: str = "history"
    add: bool = False
    least_time: float = 0.02
    least_other: float = 0.05
    least_size: float = 0.001


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that is set; by default nothing.

    Attributes:
        mirrors: in the order of trying.
        stores: options of object stores, as obstore takes them, by the beginning of URLs (`az://account`, `s3://bucket`);
            a value `$NAME` stands for an environment variable.
        shared_modules: URL of the shared module cache; empty where there is none.
        fills_shared_modules: whether this machine may fill it.
        connections: at once, for one large file.
        retries: further attempts of a download after a transient failure without any progress.
        nightly_links: page or folder with links to nightly wheels of IREE.
        packages_api: of the repository whose CI builds packages for each commit of IREE, in GitHub's API.
        build_options: CMake's, of source builds of IREE.
        environ: what `$NAME` and credentials are taken from.
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
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def options_of(self, url: str) -> Mapping[str, str]:
        """Options of the store that a URL is in, as written; of several prefixes the longest wins."""
        longest = max((prefix for prefix in self.stores if is_below(url, prefix)), key=len, default="")
        return self.stores.get(longest, {})


def is_cmake_option(text: str) -> bool:
    """Whether it is `-DNAME=VALUE`, as CMake takes options."""
    return bool(_CMAKE_OPTION.fullmatch(text))


def is_below(url: str, prefix: str) -> bool:
    """Whether a URL is a prefix, or lies in the folder that it names."""
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else prefix + "/")


def find_project_folder() -> Path:
    """The nearest folder from here upwards that holds `specs/` and `suites/`; the working folder where none does."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "specs").is_dir() and (folder / "suites").is_dir():
            return folder
    return here


def find_shipped_folder() -> Path:
    """The folder with the specs, suites and hashes that come with the toolkit: in a checkout, that itself."""
    package = Path(__file__).parent
    inside = package / "shipped"
    return inside if inside.is_dir() else package.parent


def resolve_links(path: Path) -> Path:
    """The absolute path that a path means in the end; of a loop of links, as far as it leads.

    `Path.resolve` raises a RuntimeError for a loop, up to Python 3.12.
    """
    return Path(os.path.realpath(path))


def read_file(path: Path) -> bytes:
    """The content of a file that a person named; OSError where it cannot be read, or is none.

    A pipe would be waited for without an end, and a device such as /dev/zero has none.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:  # noqa: PTH123 - by its descriptor
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device: expected a file", str(path))
        return file.readall()


def require_ones_own(path: Path) -> None:
    """Raises a UsageError where a file that is to be changed is part of the installed toolkit."""
    inside = Path(__file__).parent / "shipped"
    if resolve_links(path).is_relative_to(inside.resolve()):
        what = f"{path.name} in {path.parent} came with the toolkit, and is not changed"
        raise UsageError(what, "`gauntlet init` begins a project of your own; or name other specs with --spec-dir.")


def expand_home(text: str) -> Path:
    """A path as it was typed, with the home folder for `~`; UsageError where there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as problem:
        user = text.partition("/")[0][1:]
        whose = f"there is no user {user}" if user else "this user has no home folder"
        hint = "Set $HOME, or write the whole path (the cache's: --cache-dir FOLDER)."
        raise UsageError(f"{text} cannot be found: {whose}", hint) from problem


def find_runs_folder() -> Path:
    """Where runs are kept: `runs/` of the project."""
    return find_project_folder() / "runs"


def format_typed_command() -> list[str]:
    """The command of this process, as one would type it again."""
    script, *words = Path(sys.argv[0]), *sys.argv[1:]
    package = Path(__file__).parent
    if script.name == "__main__.py" and script.is_relative_to(package):
        return ["python", "-m", ".".join(script.parent.relative_to(package.parent).parts), *words]
    return [script.name, *words]


def shown(path: Path) -> Path:
    """A path as a user would type it: from the working folder where it lies below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
