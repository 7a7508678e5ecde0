"""Appending results to perf.json, the array of PyBuda's `benchmark.py`, so that nothing is ever lost.

The new entry is put before the array's closing bracket and everything in front of it stays as it is, byte by
byte. Writers take turns by a lock file of the cache; a file is replaced by rename, so that a kill at any moment leaves
the old one or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.file_lock import file_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_LOCK_SECONDS = 60.0
_MOST_NAMES = 1000


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a result went.

    Attributes:
        path: the file that holds it.
        entries: how many results it holds now.
        note: why it is another file than the one asked for, for the user; empty where it is not.
    """

    path: Path
    entries: int
    note: str = ""


def result_path(output: str | Path) -> Path:
    """The file that `--output` means: `.json` is added where it is missing."""
    path = Path(output)
    return path if path.name.endswith(".json") else path.with_name(f"{path.name}.json")


def append_result(output: str | Path, result: Mapping[str, Any], locks: Path) -> Appended:
    """Appends one result; folders that are missing are made.

    A file that is damaged, or is no list of results, is left as it is: the result goes to `<name>.new-1.json`
    next to it, or to the first such file that is whole or not there.

    Args:
        output: as given to `--output`.
        result: has a speed or an error. Numbers that JSON does not have are written as "nan", "inf" and "-inf", as in
            the journal.
        locks: folder of the cache's locks, made where it is missing: those who share a cache take turns.

    Raises:
        GauntletError: nothing could be written there. What was there is untouched.
    """
    line = json.dumps(_of_json(result), ensure_ascii=False, allow_nan=False)
    asked = result_path(output)
    with _disk_errors(asked):
        # Two names of one file must meet at one lock, and what a link points to is what is replaced.
        target = Path(os.path.realpath(asked))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, locks):
            _remove_leftovers(target)
            entries, why = _add(target, line)
            if not why:
                return Appended(asked, entries)
            for number in range(1, _MOST_NAMES):
                other = target.with_name(f"{target.name.removesuffix('.json')}.new-{number}.json")
                with _locked(other, locks):
                    _remove_leftovers(other)
                    entries, damage = _add(other, line)
                if not damage:
                    return Appended(other, entries, f"{asked} {why}: it is kept, and the result is in {other}")
    raise GauntletError(
        f"{asked} {why}, and so are {_MOST_NAMES - 1} files beside it", "Give another file with --output."
    )


def check_output(output: str | Path, locks: Path) -> None:
    """Makes sure that a result could be written, before a long run; makes missing folders and changes no file.

    Args:
        output: as given to `--output`.
        locks: as for `append_result`.

    Raises:
        GauntletError: it could not.
    """
    asked = result_path(output)
    with _disk_errors(asked):
        target = Path(os.path.realpath(asked))
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        probe = target.with_name(f".{target.name}.{os.getpid()}.probe")
        with _locked(target, locks):
            try:
                probe.touch()
            finally:
                probe.unlink(missing_ok=True)


def _of_json(value: Any) -> Any:
    """The same with numbers that JSON does not have as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _of_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_of_json(item) for item in value]
    return value


def _add(path: Path, line: str) -> tuple[int, str]:
    """Puts an entry into a file: how many it holds then, and what is wrong with it where it was left alone."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return 0, "is no regular file"
        old = path.read_bytes()
    except FileNotFoundError:
        old = b""
    # An empty file holds nothing that could be lost.
    text, entries, damage = _whole(old) if old.strip() else ("[]", 0, "")
    if damage:
        return 0, damage
    before = text.rstrip().removesuffix("]").rstrip()
    write_atomic(path, f"{before}{',' if entries else ''}\n{line}\n]\n")
    return entries + 1, ""


def _whole(content: bytes) -> tuple[str, int, str]:
    """The text of a file of results and how many it holds; or what is wrong with it."""
    try:
        text = content.decode()
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return "", 0, f"is damaged ({str(error).splitlines()[0]})"
    if not isinstance(found, list):
        return "", 0, "is no array of results"
    strange = next((n for n, entry in enumerate(found) if not _is_result(entry)), None)
    if strange is not None:
        return "", 0, f"is no array of results (entry {strange} has neither samples_per_sec nor error)"
    return text, len(found), ""


def _is_result(entry: Any) -> bool:
    return isinstance(entry, dict) and ("samples_per_sec" in entry or "error" in entry)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _remove_leftovers(target: Path) -> None:
    """Removes the temporary files of writers that were killed; nobody else writes while we hold the lock."""
    pattern = re.compile(rf"\.{re.escape(target.name[:64])}\.[a-z0-9_]{{8}}\.tmp")
    for path in target.parent.iterdir():
        if pattern.fullmatch(path.name):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(target: Path, locks: Path) -> Iterator[None]:
    """Holds the lock of a file, by its absolute path; it dies with its owner."""
    path = locks / f"result-{hashlib.sha256(os.fsencode(target)).hexdigest()[:32]}.lock"
    with contextlib.ExitStack() as stack:
        try:
            locks.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path, timeout=_LOCK_SECONDS))
        except TimeoutError:
            raise GauntletError(
                f"{target}: another process has been writing it for {_LOCK_SECONDS:.0f} s",
                f"Find out who holds {path}, or give another file with --output.",
            ) from None
        except OSError as error:
            raise GauntletError(
                f"{locks}: the lock of {target} cannot be made there ({error.strerror or error})",
                "The cache's folder must be writable; --cache-dir names another one.",
            ) from error
        yield


@contextlib.contextmanager
def _disk_errors(asked: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GauntletError(
            f"{asked}: the result cannot be written ({error.strerror or error})",
            "Give a file with --output in a folder that can be written; nothing that was there has changed.",
        ) from error
