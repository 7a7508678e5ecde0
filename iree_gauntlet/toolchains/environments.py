"""IREE in virtual environments that all projects share, one for each release: made once, whole or not at all.

    <toolchains>/envs/<label>-<python and platform>/     an environment, `gauntlet-environment.json` in it
    <toolchains>/envs/.making-<name>-<random>            one that is being made, or was left by a kill
    <toolchains>/envs/.<name>.lock                       held while it is made; dies with its holder
    <toolchains>/leases, <toolchains>/locks              which process uses what

An environment is made aside and renamed when it is whole. What breaks when a virtual environment is moved are
the scripts in `bin`, which name their interpreter by its path: they are left out. `bin/python` finds its
packages from where it is, and IREE's native programs find their libraries from where they are.

The last thing that is written into it is its seal: what is in it, with sizes. An environment with another
seal, without one, or with files missing or of another size is no environment: it is made again.
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
from iree_gauntlet.errors import ToolchainError, name_place
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.atomic import discard_folder, replace_folder, write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.toolchains.installed import COMPILER_WHEEL, RUNTIME_WHEEL, find_site_packages, find_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from iree_gauntlet.toolchains.installer import Installer, Sources


_FORMAT = 1
_USE_SECONDS = 60.0
SEAL = "gauntlet-environment.json"


def seal(path: Path, name: str, document: Mapping[str, Any]) -> None:
    """Writes what is in a folder, as the last thing, and has it on the disk."""
    files = {}
    for folder, _, names in os.walk(path):
        if not folder.endswith("__pycache__"):
            for file in (Path(folder, one) for one in names):
                if not file.is_symlink():
                    files[file.relative_to(path).as_posix()] = file.stat().st_size
    # Large files that a crash of the machine would cut are seen by their sizes.
    write_atomic(path / name, json.dumps({"format": _FORMAT, **document, "files": files}))


@dataclass(frozen=True, slots=True)
class Sealed(Recorded):
    """What a folder holds that was made whole, as its seal says; last used so many seconds after 1970."""

    seal_name: ClassVar[str]

    label: str
    path: Path
    bytes: int
    last_use: float

    @classmethod
    def inspect(cls, path: Path) -> tuple[Self | None, str]:
        """What is in a folder, or what is wrong with it."""
        if not path.is_dir():
            return None, "does not exist"
        try:
            last_use = (path / cls.seal_name).stat().st_mtime
            document = json.loads((path / cls.seal_name).read_bytes())
            files = {str(file): int(size) for file, size in document["files"].items()}
            if document["format"] != _FORMAT:
                return None, "was made by another version of this toolkit"
            if why := _damage(path, files):
                return None, why
            document |= {"path": str(path), "bytes": sum(files.values()), "last_use": last_use}
            return cls.from_dict(document), ""
        except FileNotFoundError:
            return None, "was not made to its end"
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None, f"has a damaged {cls.seal_name}"

    @classmethod
    def list_in(cls, folder: Path) -> list[tuple[Path, Self | None, str]]:
        """Every folder that may be one: what it is, or what is wrong where it is none."""
        folders = sorted(folder.iterdir()) if folder.is_dir() else []
        return [(path, *cls.inspect(path)) for path in folders if path.is_dir() and not path.name.startswith(".")]

    def note_use(self) -> None:
        """Writes down that it is used, where the last time is a minute ago."""
        if time.time() - self.last_use > _USE_SECONDS:
            with suppress(PermissionError):  # another user's, or read-only: it is used all the same
                os.utime(self.path / self.seal_name)


def _damage(path: Path, files: Mapping[str, int]) -> str:
    """What is wrong with the files of a folder; empty where nothing is."""
    for file, size in files.items():
        try:
            if (path / file).stat().st_size != size:
                return f"is damaged: {file} has changed"
        except OSError:
            return f"is damaged: {file} is missing"
    return ""


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """A folder that is there meanwhile; what was left of an earlier one, by who was killed, goes first."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def name_refusals(folder: Path) -> Iterator[None]:
    """Names, by a ToolchainError, the path where the file system refuses."""
    try:
        yield
    except OSError as error:
        hint = f"Check its rights and the space there, or name another folder with ${TOOLCHAINS_VARIABLE}."
        raise ToolchainError(f"{name_place(error) or folder}: {error.strerror or error}", hint) from error


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an environment is to hold.

    Attributes:
        label: its name for people: `3.12.0`, `wheels-<hash>`.
        compiler, runtime: the versions that must be there then; empty for none.
    """

    label: str
    requirements: tuple[str, ...]
    sources: Sources
    compiler: str
    runtime: str
    asked: str


@dataclass(frozen=True, slots=True)
class Environment(Sealed):
    """An environment that is whole, with the versions of compiler and runtime that it has, and what made it."""

    seal_name = SEAL

    compiler: str
    runtime: str
    installer: str

    @classmethod
    def inspect(cls, path: Path) -> tuple[Self | None, str]:
        """As of any sealed folder; without its Python it is none."""
        # Dataclasses with slots are made anew: no `super()` of theirs finds them.
        found, why = super(Environment, cls).inspect(path)
        if found and not os.access(found.python, os.X_OK):
            return None, "has lost its Python, which may have been uninstalled"
        return found, why

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return _locate_python(self.path)


def make_environment_tag() -> str:
    """What of this Python and machine an environment is made for."""
    system = f"{platform.system()}-{platform.machine()}".lower()
    return f"py{sys.version_info.major}.{sys.version_info.minor}-{system}"


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of a folder that is made with the first one.

    Attributes:
        earlier: folders of projects' caches, where they were made before: what is there is used, and nothing added.
    """

    folder: Path
    installer: Installer
    _: KW_ONLY
    offline: bool
    use: Callable[[Path], None]
    news: Callable[[str], None]
    earlier: tuple[Path, ...] = ()

    def path_of(self, label: str) -> Path:
        """Where the environment of a label is made."""
        return self.folder / f"{label}-{make_environment_tag()}"

    def find(self, label: str) -> Environment | None:
        """The environment of a label; None where there is no whole one. It is in use from now on."""
        name = self.path_of(label).name
        for folder in (self.folder, *self.earlier):
            self.use(folder / name)
            found, _ = Environment.inspect(folder / name)
            if found is not None:
                found.note_use()
                return found
        return None

    def ready(self, recipe: Recipe) -> Environment:
        """The environment of a recipe, installed where it is not there.

        Raises:
            ToolchainError: this is offline; it cannot be installed; what came is not what was asked for.
        """
        if (found := self.find(recipe.label)) is not None:
            return found
        path = self.path_of(recipe.label)
        _, why = Environment.inspect(path)
        if self.offline:
            hint = f"Install it where there is a network: gauntlet toolchain.install {recipe.asked}"
            raise ToolchainError(f"IREE {recipe.asked} is not installed: {path} {why}", hint)
        with name_refusals(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._hold_lock(path, recipe.label) as held:
                # Somebody else may have made it meanwhile.
                if (found := self.find(recipe.label)) is not None:
                    return found
                if path.exists():
                    self.news(f"{path} {why}: it is made again")
                self._make(recipe, path, held)
        found, why = Environment.inspect(path)
        if found is None:
            raise ToolchainError(f"{path} {why}, although it was just installed", "Look at the disk, and run again.")
        return found

    def all(self) -> list[tuple[Path, Environment | None, str]]:
        """Every environment of any Python and platform: folder, what it is, and what is wrong where it is none."""
        return [row for folder in (self.folder, *self.earlier) for row in Environment.list_in(folder)]

    def versions(self) -> list[Version]:
        """The releases and nightlies that are here for this Python, rising; no folders of wheels."""
        whole = [(path, found) for path, found, _ in self.all() if found is not None and found.label == found.compiler]
        return sorted({Version(found.label) for path, found in whole if path.name == self.path_of(found.label).name})

    def remove(self, path: Path, label: str) -> None:
        """Delete an environment; the caller has made sure that it is not in use."""
        with name_refusals(path), self._hold_lock(path, label):
            discard_folder(path)

    def _hold_lock(self, path: Path, label: str) -> AbstractContextManager[int]:
        """Hold the lock of an environment; its descriptor."""

        def waiting(seconds: float) -> None:
            self.news(f"waiting for another process that installs IREE {label} ({seconds:.0f} s so far)")

        return file_lock(path.with_name(f".{path.name}.lock"), waiting)

    def _make(self, recipe: Recipe, path: Path, held: int) -> None:
        started = time.monotonic()

        def news(text: str) -> None:
            self.news(f"IREE {recipe.label}: {text}")

        news(f"installing with uv into {path}")
        with replace_folder(path) as new:
            python = _locate_python(new)
            self.installer.make_environment(new, held, news)
            self.installer.install(python, recipe.requirements, recipe.sources, held, news)
            for script in (new / "bin").iterdir():
                if not script.name.startswith("python"):
                    script.unlink()
            search_path = [str(folder) for folder in find_site_packages(python)]
            for kind, wanted in ((COMPILER_WHEEL, recipe.compiler), (RUNTIME_WHEEL, recipe.runtime)):
                release = find_wheel(kind, search_path, str(python)).release if wanted else ""
                if wanted and Version(release) != Version(wanted):
                    hint = "Look at the index settings, and at the wheel's metadata."
                    raise ToolchainError(f"{kind.distribution} {wanted} was asked for, and {release} came", hint)
            seal(new, SEAL, {**asdict(recipe), "installer": "uv"})
        news(f"installed in {time.monotonic() - started:.0f} s")


def _locate_python(path: Path) -> Path:
    return path / "bin" / "python"
