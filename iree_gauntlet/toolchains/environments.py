"""IREE in virtual environments that all projects share, one for each release, complete or not there at all.

    <toolchains>/envs/<label>-<python and platform>/     an environment, with its seal `gauntlet-environment.json`
    <toolchains>/envs/.making-<name>-<random>            an unfinished environment, perhaps left by a killed process
    <toolchains>/envs/.<name>.lock                       held during an installation; released when its holder dies
    <toolchains>/leases, <toolchains>/locks              records of the toolchains that living processes use

An environment is made under a temporary name and renamed when it is complete. Renaming would break the scripts in
`bin`, which contain their interpreter's path, so they are left out. `bin/python` finds its packages relative to itself,
and IREE's native programs find their libraries in the same way.

The seal is written last: a list of the environment's files with their sizes. An environment is invalid and installed
again if its seal is missing or of another format, or if a file is missing or has another size.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from packaging.version import Version

from iree_gauntlet.cache_folders import TOOLCHAINS_VARIABLE
from iree_gauntlet.errors import ToolchainError, find_error_path
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.atomic import discard_folder, replace_folder, write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.toolchains.installed import COMPILER_WHEEL, RUNTIME_WHEEL, find_site_packages, find_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from iree_gauntlet.toolchains.installer import Installer, Sources


_SEAL_FORMAT = 1
_USE_UPDATE_SECONDS = 60.0
SEAL = "gauntlet-environment.json"


def seal(path: Path, name: str, document: Mapping[str, Any]) -> None:
    """Write a folder's seal (the list of its files) after all other files, and sync it to the disk."""
    files = {}
    for folder, _, names in os.walk(path):
        if not folder.endswith("__pycache__"):
            for file in (Path(folder, name) for name in names):
                if not file.is_symlink():
                    files[file.relative_to(path).as_posix()] = file.stat().st_size
    # The sizes detect large files that a crash of the machine has truncated.
    write_atomic(path / name, json.dumps({"format": _SEAL_FORMAT, **document, "files": files}))


@dataclass(frozen=True, slots=True)
class CompleteFolder(Recorded):
    """A complete folder, as described by its seal; `last_use` is in seconds since 1970."""

    seal_name: ClassVar[str]

    label: str
    path: Path
    bytes: int
    last_use: float

    @classmethod
    def inspect(cls, path: Path) -> tuple[Self | None, str]:
        """Read a folder's seal; return the folder and an empty text, or None and the reason why it is invalid."""
        if not path.is_dir():
            return None, "does not exist"
        try:
            last_use = (path / cls.seal_name).stat().st_mtime
            document = json.loads((path / cls.seal_name).read_bytes())
            files = {str(file): int(size) for file, size in document["files"].items()}
            if document["format"] != _SEAL_FORMAT:
                return None, "was made by another version of this toolkit"
            if damage := _describe_damage(path, files):
                return None, damage
            document |= {"path": str(path), "bytes": sum(files.values()), "last_use": last_use}
            return cls.from_dict(document), ""
        except FileNotFoundError:
            return None, "is incomplete"
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None, f"has a damaged {cls.seal_name}"

    @classmethod
    def list_folders(cls, folder: Path) -> list[tuple[Path, Self | None, str]]:
        """List every possibly sealed folder: its path, and the result of `inspect`."""
        folders = sorted(folder.iterdir()) if folder.is_dir() else []
        return [(path, *cls.inspect(path)) for path in folders if path.is_dir() and not path.name.startswith(".")]

    def update_last_use(self) -> None:
        """Record a use of the folder, if the last record is older than a minute."""
        if time.time() - self.last_use > _USE_UPDATE_SECONDS:
            with suppress(PermissionError):  # A read-only folder, or another user's, can still be used.
                os.utime(self.path / self.seal_name)


def _describe_damage(path: Path, files: Mapping[str, int]) -> str:
    """Describe what is wrong with the files of a folder; empty if they are intact."""
    for file, size in files.items():
        try:
            if (path / file).stat().st_size != size:
                return f"is damaged: {file} has changed"
        except OSError:
            return f"is damaged: {file} is missing"
    return ""


@contextmanager
def make_temporary_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder that exists during the context; first delete leftovers of killed processes."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def convert_file_errors(folder: Path) -> Iterator[None]:
    """Convert the file system's errors to a ToolchainError that names the path."""
    try:
        yield
    except OSError as error:
        hint = f"Check its permissions and free space, or name another folder with ${TOOLCHAINS_VARIABLE}."
        raise ToolchainError(f"{find_error_path(error) or folder}: {error.strerror or error}", hint) from error


@dataclass(frozen=True, slots=True)
class Recipe:
    """The requested content of an environment.

    Attributes:
        label: the environment's name for people: `3.12.0`, `wheels-<hash>`.
        compiler, runtime: the versions that must be found after the installation; empty for any.
    """

    label: str
    requirements: tuple[str, ...]
    sources: Sources
    compiler: str
    runtime: str
    asked: str


@dataclass(frozen=True, slots=True)
class Environment(CompleteFolder):
    """A complete environment, with the versions of its compiler, its runtime and its installer."""

    seal_name = SEAL

    compiler: str
    runtime: str
    installer: str

    @classmethod
    def inspect(cls, path: Path) -> tuple[Self | None, str]:
        """Inspect an environment like any sealed folder; without its Python it is invalid."""
        # `slots=True` replaces the class, so `super()` needs arguments.
        environment, reason = super(Environment, cls).inspect(path)
        if environment and not os.access(environment.python, os.X_OK):
            return None, "has lost its Python, which may have been uninstalled"
        return environment, reason

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return _locate_python(self.path)


def make_environment_tag() -> str:
    """Make the tag of the Python version and platform that an environment is for."""
    system = f"{platform.system()}-{platform.machine()}".lower()
    return f"py{sys.version_info.major}.{sys.version_info.minor}-{system}"


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of a folder, which is created with the first one.

    Attributes:
        legacy_folders: folders of projects' caches, where older versions made environments. Existing environments
            there are used, but none is added.
    """

    folder: Path
    installer: Installer
    _: KW_ONLY
    offline: bool
    mark_used: Callable[[Path], None]
    news: Callable[[str], None]
    legacy_folders: tuple[Path, ...] = ()

    def make_path(self, label: str) -> Path:
        """Return the path at which the environment of a label is installed."""
        return self.folder / f"{label}-{make_environment_tag()}"

    def find(self, label: str) -> Environment | None:
        """Find the complete environment of a label and mark it as used; return None if there is none."""
        name = self.make_path(label).name
        for folder in (self.folder, *self.legacy_folders):
            self.mark_used(folder / name)
            environment, _ = Environment.inspect(folder / name)
            if environment is not None:
                environment.update_last_use()
                return environment
        return None

    def provide(self, recipe: Recipe) -> Environment:
        """Return the environment of a recipe; install it if it does not exist.

        Raises:
            ToolchainError: this is offline, the installation fails, or it installs other versions than requested.
        """
        if (environment := self.find(recipe.label)) is not None:
            return environment
        path = self.make_path(recipe.label)
        _, reason = Environment.inspect(path)
        if self.offline:
            command = "run once" if recipe.sources.platform else f"gauntlet toolchain.install {recipe.asked}"
            hint = f"Install it with network access: {command}"
            raise ToolchainError(f"IREE {recipe.asked} is not installed: {path} {reason}", hint)
        with convert_file_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._hold_lock(path, recipe.label) as lock_fd:
                # Another process may have installed it while this one waited for the lock.
                if (environment := self.find(recipe.label)) is not None:
                    return environment
                if path.exists():
                    self.news(f"{path} {reason}: recreating it")
                self._install(recipe, path, lock_fd)
        environment, reason = Environment.inspect(path)
        if environment is None:
            raise ToolchainError(f"{path} {reason}, although it was just installed", "Check the disk, and run again.")
        return environment

    def all(self) -> list[tuple[Path, Environment | None, str]]:
        """List all environments of any Python and platform: path, environment or None, reason if it is invalid."""
        return [row for folder in (self.folder, *self.legacy_folders) for row in Environment.list_folders(folder)]

    def list_versions(self) -> list[Version]:
        """List the releases and nightlies installed for this Python, ascending; not those from wheel folders."""
        releases = [(path, env) for path, env, _ in self.all() if env is not None and env.label == env.compiler]
        return sorted({Version(env.label) for path, env in releases if path.name == self.make_path(env.label).name})

    def remove(self, path: Path, label: str) -> None:
        """Delete an environment; the caller has made sure that it is not in use."""
        with convert_file_errors(path), self._hold_lock(path, label):
            discard_folder(path)

    def _hold_lock(self, path: Path, label: str) -> AbstractContextManager[int]:
        """Hold the lock of an environment; the context's value is its descriptor."""

        def report_wait(seconds: float) -> None:
            self.news(f"waiting for another process that installs IREE {label} ({seconds:.0f} s so far)")

        return file_lock(path.with_name(f".{path.name}.lock"), report_wait)

    def _install(self, recipe: Recipe, path: Path, lock_fd: int) -> None:
        start_time = time.monotonic()

        def news(text: str) -> None:
            self.news(f"IREE {recipe.label}: {text}")

        news(f"installing with uv into {path}")
        with replace_folder(path) as new_folder:
            python = _locate_python(new_folder)
            self.installer.make_environment(new_folder, lock_fd, news)
            self.installer.install(python, recipe.requirements, recipe.sources, lock_fd, news)
            for script in (new_folder / "bin").iterdir():
                if not script.name.startswith("python"):
                    script.unlink()
            search_path = [str(folder) for folder in find_site_packages(python)]
            for kind, version in ((COMPILER_WHEEL, recipe.compiler), (RUNTIME_WHEEL, recipe.runtime)):
                release = find_wheel(kind, search_path, str(python)).release if version else ""
                if version and Version(release) != Version(version):
                    hint = "Check the index settings and the wheel's metadata."
                    raise ToolchainError(f"expected {kind.distribution} {version}, found {release}", hint)
            seal(new_folder, SEAL, {**asdict(recipe), "installer": "uv"})
        news(f"installed in {time.monotonic() - start_time:.0f} s")


def _locate_python(path: Path) -> Path:
    return path / "bin" / "python"
