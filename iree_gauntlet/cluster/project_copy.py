"""A copy of the files that a run reads: packed where the run is started, and unpacked by each worker.

Below the copy, files keep the full paths of the machine where it was made, so relative paths keep their meaning.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from iree_gauntlet.dialects.locations import get_url_path
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.settings import find_project_folder
from iree_gauntlet.system.atomic import add_folder
from iree_gauntlet.system.file_lock import LockFile
from iree_gauntlet.system.plain_tar import NotPlainError, unpack_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.variants import FlagVariant


_FILES_FOLDER = "files"
_EXCLUDED_FOLDERS = frozenset({".git", "__pycache__", ".venv", "node_modules"})
# Besides the specs, only these paths of the project are read.
_PROJECT_PATHS = ("suites", "gauntlet.toml", "cache/registry.txt")
# In `--iree`, these kinds are followed by a colon and a folder.
_IREE_KINDS_WITH_FOLDER = ("wheels", "venv", "build")
_LOCK_NAME = "owner.lock"


@dataclass(frozen=True, slots=True)
class ProjectCopy:
    """A packed copy, and the folder in which the run was started."""

    archive: Path
    sha256: str
    cwd: str


def pack_project(selection: Selection, archive: Path) -> ProjectCopy:
    """Pack the files that a run reads: the folders of its specs, and the project's suites, settings and hashes."""
    project = find_project_folder()
    roots = [*selection.source_paths, *(project / name for name in _PROJECT_PATHS)]
    files = {path for root in roots for path in _list_files(Path(os.path.abspath(root)))}  # noqa: PTH100 - links stay as named
    # The files that cases were read from are included too, wherever they are.
    for case in (*selection.cases.cases, *selection.cases.needed_cases):
        origins = [case.origin, case.flags_origin, *(module.origin for module in case.modules)]
        origin_paths = [Path(origin.file).absolute() for origin in origins if origin is not None]
        files.update(path for path in origin_paths if path.is_file())
    files.update(Path(path) for variant in selection.variants if (path := get_url_path(variant.tuning_spec)))
    with tarfile.open(archive, "w") as tar:
        # These folders may be empty, but are needed: they identify the project, or the run was started in them.
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
    """Unpack a copy into a folder, which appears complete or not at all; keep an existing folder.

    Raises:
        GauntletError: the archive names a path outside of the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Another worker of this machine may unpack the same copy at the same time.
    with add_folder(folder) as new, tarfile.open(fileobj=stream, mode="r|") as tar:
        new.mkdir(0o700)
        try:
            unpack_plain(tar, new)
        except NotPlainError as error:
            raise GauntletError(f"the copy of the project is not used: {error}") from error


def map_path(copy: Path, path: str) -> str:
    """Map an absolute path of the machine where a copy was made to the path in the copy."""
    return str(copy / _FILES_FOLDER) + os.path.abspath(path)  # noqa: PTH100 - of another machine


def map_request(request: RunRequest, copy: Path, run_dir: Path, cache_dir: Path, cwd: str) -> RunRequest:
    """Map a request to a copy of the project; `cwd` is the folder in which the run was started."""

    def map_absolute(path: str) -> str:
        return map_path(copy, path) if path.startswith("/") else path

    def map_suite(name: str) -> str:
        return map_absolute(name) if name.endswith(".toml") else name

    def map_iree(iree_option: str) -> str:
        kind, colon, folder = iree_option.partition(":")
        return f"{kind}:{os.path.join(cwd, folder)}" if colon and kind in _IREE_KINDS_WITH_FOLDER else iree_option  # noqa: PTH118 - of another machine

    def map_variant(variant: FlagVariant) -> FlagVariant:
        path = get_url_path(variant.tuning_spec)
        return replace(variant, tuning_spec=Path(map_path(copy, path)).as_uri()) if path else variant

    selection, toolchain = request.selection, request.toolchain
    return replace(
        request,
        selection=replace(
            selection,
            suite=map_suite(selection.suite),
            spec_dir=tuple(map(map_absolute, selection.spec_dir)),
            config=tuple(map(map_absolute, selection.config)),
            external_file_directory=map_absolute(selection.external_file_directory),
            module_directory=map_absolute(selection.module_directory),
        ),
        toolchain=replace(
            toolchain,
            iree=map_iree(toolchain.iree),
            iree_compiler=map_iree(toolchain.iree_compiler),
            iree_runtime=map_iree(toolchain.iree_runtime),
            cache_dir=str(cache_dir),
        ),
        folder=replace(request.folder, run_dir=str(run_dir), resume=False, last_failed=False),
        shard=type(request.shard)(),
        chains=None,
        variants=tuple(map(map_variant, request.variants or ())),
    )


def _list_files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if name not in _EXCLUDED_FOLDERS]
        yield from (path for name in files if (path := Path(folder, name)).is_file())


def _make_entry(path: str, kind: bytes) -> tarfile.TarInfo:
    """Make an entry without properties of the machine or the day, so that equal files give equal archives."""
    info = tarfile.TarInfo(f"{_FILES_FOLDER}{path}")
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return info


def get_worker_folder(cache_dir: Path, name: str) -> Path:
    """Return the folder of a worker's own files."""
    return cache_dir / "cluster" / name


class ExclusiveFolder:
    """Owns a folder during a context and removes it at the end; the folder's lock is released if the owner dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = LockFile(path / _LOCK_NAME)

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._lock.try_acquire():
            raise UsageError(f"a worker {self.path.name} already runs on this machine", "Use another --name.")
        # Folders of dead workers are removed.
        for lock in self.path.parent.glob(f"*/{_LOCK_NAME}"):
            dead_lock = LockFile(lock)
            if lock.parent != self.path and dead_lock.try_acquire():
                shutil.rmtree(lock.parent, ignore_errors=True)
                dead_lock.release()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.remove()
        shutil.rmtree(self.path, ignore_errors=True)
