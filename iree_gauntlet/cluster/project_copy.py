"""A copy of what a run reads from disk: packed where it is started, unpacked by each worker under its hash.

Paths below the copy are those of the machine that it was made on, so that relative ones mean what they meant there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.settings import find_project_folder
from iree_gauntlet.system.atomic import add_folder
from iree_gauntlet.system.file_lock import LockFile
from iree_gauntlet.system.plain_tar import NotPlainError, unpack_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.requests import RunRequest


_FILES = "files"
_LEFT_OUT = frozenset({".git", "__pycache__", ".venv", "node_modules"})
# Of the project itself; what else it has is read from nowhere.
_OF_THE_PROJECT = ("suites", "gauntlet.toml", "cache/registry.txt")
# What names a folder after the colon, in `--iree`.
_KINDS_WITH_FOLDERS = ("wheels", "venv", "build")
_LOCK = "owner.lock"


@dataclass(frozen=True, slots=True)
class ProjectCopy:
    """A copy, packed, with the folder that the run was started in."""

    archive: Path
    sha256: str
    cwd: str


def pack_project(selection: Selection, archive: Path) -> ProjectCopy:
    """Packs what a run reads: the folders of its specs, and the project's suites, settings and hashes."""
    project = find_project_folder()
    roots = [*selection.read_from, *(project / name for name in _OF_THE_PROJECT)]
    files = {path for root in roots for path in _list_files(Path(os.path.abspath(root)))}  # noqa: PTH100 - links stay as named
    # And what cases were read from, wherever it is.
    for case in (*selection.cases.cases, *selection.cases.required):
        origins = [case.origin, case.flags_origin, *(module.origin for module in case.modules)]
        named = [Path(item.file).absolute() for item in origins if item is not None]
        files.update(path for path in named if path.is_file())
    with tarfile.open(archive, "w") as tar:
        # The markers of a project, and the folder that the run was started in.
        for folder in (Path.cwd(), project / "specs", project / "suites"):
            if folder.is_dir():
                tar.addfile(_make_entry(str(folder), tarfile.DIRTYPE))
        for path in sorted(set(map(os.path.normpath, files))):
            with Path(path).open("rb") as file:
                info = _make_entry(path, tarfile.REGTYPE)
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, file)
    with archive.open("rb") as file:
        return ProjectCopy(archive, hashlib.file_digest(file, "sha256").hexdigest(), str(Path.cwd()))


def unpack_project(stream: IO[bytes], folder: Path) -> None:
    """Unpacks a copy into a folder, which appears as a whole; one that is there already stays.

    Raises:
        GauntletError: the archive names something outside of the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Another worker of this machine may be first.
    with add_folder(folder) as new, tarfile.open(fileobj=stream, mode="r|") as tar:
        new.mkdir(0o700)
        try:
            unpack_plain(tar, new)
        except NotPlainError as error:
            raise GauntletError(f"the copy of the project is not used: {error}") from error


def within(copy: Path, path: str) -> str:
    """Where an absolute path of the machine that a copy was made on lies in it."""
    return str(copy / _FILES) + os.path.abspath(path)  # noqa: PTH100 - of another machine


def request_within(request: RunRequest, copy: Path, run_dir: Path, cache_dir: Path, cwd: str) -> RunRequest:
    """A request as it is read by a process that works in a copy of the project; `cwd` is where the run was started."""

    def here(path: str) -> str:
        return within(copy, path) if path.startswith("/") else path

    def suite(name: str) -> str:
        return here(name) if name.endswith(".toml") else name

    def iree(choice: str) -> str:
        kind, colon, folder = choice.partition(":")
        return f"{kind}:{os.path.join(cwd, folder)}" if colon and kind in _KINDS_WITH_FOLDERS else choice  # noqa: PTH118 - of another machine

    selection, toolchain = request.selection, request.toolchain
    return replace(
        request,
        selection=replace(
            selection,
            suite=suite(selection.suite),
            spec_dir=tuple(map(here, selection.spec_dir)),
            config=tuple(map(here, selection.config)),
            external_file_directory=here(selection.external_file_directory),
            module_directory=here(selection.module_directory),
        ),
        toolchain=replace(
            toolchain,
            iree=iree(toolchain.iree),
            iree_compiler=iree(toolchain.iree_compiler),
            iree_runtime=iree(toolchain.iree_runtime),
            cache_dir=str(cache_dir),
        ),
        folder=replace(request.folder, run_dir=str(run_dir), resume=False, last_failed=False),
        shard=type(request.shard)(),
        chains=None,
    )


def _list_files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (path for name in files if (path := Path(folder, name)).is_file())


def _make_entry(path: str, kind: bytes) -> tarfile.TarInfo:
    """An entry that has nothing of the machine or the day, so that equal files make an equal archive."""
    info = tarfile.TarInfo(f"{_FILES}{path}")
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return info


def folder_of(cache_dir: Path, name: str) -> Path:
    """Where a worker of a name keeps what is its own."""
    return cache_dir / "cluster" / name


class OwnedFolder:
    """Owns a folder until it is left, which removes it; a lock in it says so, and is free when its owner is dead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = LockFile(path / _LOCK)

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._lock.acquire_now():
            raise UsageError(f"a worker {self.path.name} runs here already", "Give this one another --name.")
        # What the dead have left.
        for lock in self.path.parent.glob(f"*/{_LOCK}"):
            other = LockFile(lock)
            if lock.parent != self.path and other.acquire_now():
                shutil.rmtree(lock.parent, ignore_errors=True)
                other.release()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.remove()
        shutil.rmtree(self.path, ignore_errors=True)
