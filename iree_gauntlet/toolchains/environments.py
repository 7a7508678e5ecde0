"""IREE in virtual environments of the cache, one for each release: made once, whole or not at all.

    <cache>/toolchains/envs/<label>-<python and platform>/     an environment, `gauntlet-environment.json` in it
    <cache>/toolchains/envs/.making-<name>-<random>            one that is being made, or was left by a kill
    <cache>/toolchains/envs/.<name>.lock                       held while it is made; dies with its holder

An environment is made aside and renamed when it is whole. What breaks when a virtual environment is moved are
the scripts in `bin`, which name their interpreter by its path: they are left out. `bin/python` finds its
packages from where it is, and IREE's native programs find their libraries from where they are.

The last thing that is written into it is its seal: what is in it, with sizes. An environment with another
seal, without one, or with files missing or of another size is no environment: it is made again.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.toolchains.installed import COMPILER_WHEEL, RUNTIME_WHEEL, find_wheel, site_packages_of
from iree_gauntlet.toolchains.sealed import discard, making, named_refusals, note_use, read_sealed, seal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from iree_gauntlet.toolchains.installer import Installer, Sources


SEAL = "gauntlet-environment.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an environment is to hold.

    Attributes:
        label: its name for people: `3.12.0`, `wheels-<hash>`.
        requirements: what is installed.
        sources: where from.
        compiler, runtime: the versions that must be there then; empty for none.
        asked: how a user names it.
    """

    label: str
    requirements: tuple[str, ...]
    sources: Sources
    compiler: str
    runtime: str
    asked: str


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is whole.

    Attributes:
        label: as in its recipe.
        path: its folder.
        compiler, runtime: their versions; empty where it has none.
        bytes: what its files hold together.
        installer: what made it.
        last_use: seconds since 1970.
    """

    label: str
    path: Path
    compiler: str
    runtime: str
    bytes: int
    installer: str
    last_use: float

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return _python_in(self.path)


def environment_tag() -> str:
    """What of this Python and machine an environment is made for."""
    system = f"{platform.system()}-{platform.machine()}".lower()
    return f"py{sys.version_info.major}.{sys.version_info.minor}-{system}"


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of a cache.

    Attributes:
        folder: where they are; made with the first one.
        installer: what installs.
        offline: nothing is installed.
        use: called with an environment's folder before it is looked for, so that it is not removed.
        news: receives a line for each thing that takes long.
    """

    folder: Path
    installer: Installer
    _: KW_ONLY
    offline: bool
    use: Callable[[Path], None]
    news: Callable[[str], None]

    def path_of(self, label: str) -> Path:
        """Where the environment of a label is, if it is there."""
        return self.folder / f"{label}-{environment_tag()}"

    def find(self, label: str) -> Environment | None:
        """The environment of a label; None where there is no whole one. It is in use from now on."""
        path = self.path_of(label)
        self.use(path)
        found, _ = inspect(path)
        if found is not None:
            note_use(path, SEAL, time.time(), found.last_use)
        return found

    def ready(self, recipe: Recipe) -> Environment:
        """The environment of a recipe, installed where it is not there.

        Raises:
            ToolchainError: it is not there and this is offline; it cannot be installed; what came is not what
                was asked for.
        """
        if (found := self.find(recipe.label)) is not None:
            return found
        path = self.path_of(recipe.label)
        _, why = inspect(path)
        if self.offline:
            raise ToolchainError(
                f"IREE {recipe.asked} is not installed in the cache: {path} {why}",
                f"Install it where there is a network: gauntlet toolchain.install {recipe.asked}",
            )
        with named_refusals(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone(recipe.label) as held:
                # Somebody else may have made it meanwhile.
                if (found := self.find(recipe.label)) is not None:
                    return found
                if path.exists():
                    self.news(f"{path} {why}: it is made again")
                self._make(recipe, path, held)
        found, why = inspect(path)
        if found is None:
            raise ToolchainError(f"{path} {why}, although it was just installed", "Look at the disk, and run again.")
        return found

    def all(self) -> list[tuple[Path, Environment | None, str]]:
        """Every environment of any Python and platform: folder, what it is, and what is wrong where it is none."""
        if not self.folder.is_dir():
            return []
        folders = sorted(path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        return [(path, *inspect(path)) for path in folders]

    def versions(self) -> list[Version]:
        """The releases and nightlies that are here for this Python, rising; no folders of wheels."""
        whole = [(path, found) for path, found, _ in self.all() if found is not None and found.label == found.compiler]
        return sorted(Version(found.label) for path, found in whole if path == self.path_of(found.label))

    def remove(self, path: Path, label: str) -> None:
        """Delete an environment; the caller has made sure that it is not in use.

        Raises:
            ToolchainError: it cannot be deleted.
        """
        with named_refusals(self.folder), self._alone(label):
            discard(path)

    def _alone(self, label: str) -> AbstractContextManager[int]:
        """Hold the lock of an environment; its descriptor."""

        def waiting(seconds: float) -> None:
            self.news(f"waiting for another process that installs IREE {label} ({seconds:.0f} s so far)")

        return file_lock(self.folder / f".{self.path_of(label).name}.lock", waiting)

    def _make(self, recipe: Recipe, path: Path, held: int) -> None:
        started = time.monotonic()

        def news(text: str) -> None:
            self.news(f"IREE {recipe.label}: {text}")

        news(f"installing with uv into {path}")
        with making(path) as new:
            self.installer.make_environment(new, held, news)
            self.installer.install(_python_in(new), recipe.requirements, recipe.sources, held, news)
            for script in (new / "bin").iterdir():
                if not script.name.startswith("python"):
                    script.unlink()
            _require(new, recipe)
            seal(new, SEAL, {**asdict(recipe), "installer": "uv"})
        news(f"installed in {time.monotonic() - started:.0f} s")


def inspect(path: Path) -> tuple[Environment | None, str]:
    """What is in a folder, and what is wrong with it where it is no whole environment."""
    document, why = read_sealed(path, SEAL)
    if why:
        return None, why
    try:
        names = ("label", "compiler", "runtime", "installer")
        said = {name: str(document[name]) for name in names}
    except KeyError:
        return None, f"has a damaged {SEAL}"
    found = Environment(path=path, bytes=document["bytes"], last_use=document["last_use"], **said)
    if not os.access(found.python, os.X_OK):
        return None, "has lost its Python, which may have been uninstalled"
    return found, ""


def _require(path: Path, recipe: Recipe) -> None:
    """Make sure that the wanted versions are inside.

    Raises:
        ToolchainError: a wheel is missing, or is another version.
    """
    python = _python_in(path)
    search_path = [str(folder) for folder in site_packages_of(python)]
    for kind, wanted in ((COMPILER_WHEEL, recipe.compiler), (RUNTIME_WHEEL, recipe.runtime)):
        if wanted:
            release = find_wheel(kind, search_path, str(python)).release
            if Version(release) != Version(wanted):
                raise ToolchainError(
                    f"{kind.distribution} {wanted} was asked for, and {release} came",
                    "Look at the index settings, and at the wheel's metadata.",
                )


def _python_in(path: Path) -> Path:
    return path / "bin" / "python"
