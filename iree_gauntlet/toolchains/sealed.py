"""Folders of a cache that are whole or nothing: made aside, sealed as the last thing, renamed.

The seal of a folder says what is in it, with sizes. A folder with another seal, without one, or with files missing or
of another size is none.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_FORMAT = 1
_USE_SECONDS = 60.0


def seal(path: Path, name: str, document: Mapping[str, Any]) -> None:
    """Writes what is in a folder, as the last thing, and has it on the disk.

    Args:
        path: the folder.
        name: of the seal's file.
        document: what else it says.
    """
    files = {}
    for folder, _, names in os.walk(path):
        if not folder.endswith("__pycache__"):
            for file in (Path(folder, one) for one in names):
                if not file.is_symlink():
                    files[file.relative_to(path).as_posix()] = file.stat().st_size
    # Large files that a crash of the machine would cut are seen by their sizes.
    write_atomic(path / name, json.dumps({"format": _FORMAT, **document, "files": files}))


def read_sealed(path: Path, name: str) -> tuple[dict[str, Any], str]:
    """What a folder's seal says, its `bytes` and `last_use` (seconds since 1970); or nothing, and what is wrong."""
    if not path.is_dir():
        return {}, "does not exist"
    try:
        status = (path / name).stat()
        document = json.loads((path / name).read_bytes())
        files = {str(file): int(size) for file, size in document["files"].items()}
        why = _damage(path, files) if document["format"] == _FORMAT else "was made by another version of this toolkit"
    except FileNotFoundError:
        return {}, "was not made to its end"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}, f"has a damaged {name}"
    return ({}, why) if why else ({**document, "bytes": sum(files.values()), "last_use": status.st_mtime}, "")


def _damage(path: Path, files: Mapping[str, int]) -> str:
    """What is wrong with the files of a folder; empty where nothing is."""
    for file, size in files.items():
        try:
            if (path / file).stat().st_size != size:
                return f"is damaged: {file} has changed"
        except OSError:
            return f"is damaged: {file} is missing"
    return ""


def note_use(path: Path, name: str, now: float, last_use: float) -> None:
    """Writes down that a folder is used, where the last time is a minute ago."""
    if now - last_use > _USE_SECONDS:
        with suppress(PermissionError):  # another user's, or read-only: it is used all the same
            os.utime(path / name)


@contextmanager
def making(path: Path) -> Iterator[Path]:
    """A new name beside a folder; what is made there takes its place at the end, or is gone.

    What was left by who was killed is deleted: the caller holds the lock of the folder.
    """
    for left in path.parent.glob(f".making-{path.name}-*"):
        shutil.rmtree(left)
    new = path.with_name(f".making-{path.name}-{secrets.token_hex(4)}")
    try:
        yield new
        discard(path)
        new.rename(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """A folder that is there meanwhile; what was left of an earlier one, by who was killed, goes first."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> None:
    """Takes a folder away at once, then deletes it."""
    if path.exists():
        going = path.with_name(f".making-{path.name}-{secrets.token_hex(4)}")
        path.rename(going)
        shutil.rmtree(going)


@contextmanager
def named_refusals(folder: Path) -> Iterator[None]:
    """Names the path where the file system refuses.

    Raises:
        ToolchainError: it did.
    """
    try:
        yield
    except OSError as error:
        raise ToolchainError(
            f"{error.filename or folder}: {error.strerror or error}", "Check the cache's folder, its rights and space."
        ) from error
