"""The stores of a history: a folder, a branch of a git repository, or an object store.

Files are named by their content and never changed, so adding needs no lock. For example:

    <folder>/2026/20261125T064911Z-1f0c9a7be2d34f5a6b7c.json
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from iree_gauntlet.artifacts.object_stores import StoreLocation, open_store
from iree_gauntlet.artifacts.remote import remove_queries
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.records.history_record import is_history_file
from iree_gauntlet.settings import expand_home, find_project_folder, format_path, resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.system.file_state import FileState
from iree_gauntlet.system.short_process import format_last_lines, run_short

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import ModuleType

    from iree_gauntlet.settings import Configuration
    from iree_gauntlet.system.short_process import ProcessOutput


_ResultT = TypeVar("_ResultT")
_OBJECTS = re.compile(r"(?:az|s3|gs)://")
_GIT = re.compile(r"git:(?P<repository>[^#]+)#(?P<branch>\w[\w./-]*)\Z")
# A misspelt URL such as `s3:/bucket` or `gitx:repository`, which is not meant as a folder.
_MISSPELT = re.compile(r"[a-z][a-z0-9+]+:")
# The settings of a checkout for connecting to a remote, such as the user.
_CONNECTION_SETTINGS = re.compile(r"(?:http|credential|url|user)\.|core\.sshcommand\Z")
_GIT_SECONDS = 300.0
# The number of attempts to push. Of pushes at the same time, only one succeeds.
_MAX_PUSHES = 20
_AUTHOR = ("-c", "user.name=IREE Gauntlet", "-c", "user.email=gauntlet@localhost")
_NO_BRANCH = "couldn't find remote ref"
_CONFLICT_MESSAGES = ("[rejected]", "fetch first", "cannot lock ref", "failed to update ref")


class UnreadableError(GauntletError):
    """A single file cannot be read; others may be readable."""


class HistoryStore(Protocol):
    """The store of a history's files."""

    place: str

    @property
    def local_dir(self) -> Path:
        """A local folder for files that can be rebuilt."""

    def list_stamps(self) -> dict[str, str]:
        """Return each file's stamp, which changes with the file. GauntletError if the store cannot be reached."""

    def read(self, name: str) -> bytes:
        """Read a file. UnreadableError if only this file cannot be read, GauntletError if no file can."""

    def add(self, files: Mapping[str, bytes]) -> int:
        """Add files; return the number of new files. GauntletError if that fails; no file is ever incomplete."""

    def remove(self, names: Collection[str]) -> None:
        """Remove files. GauntletError if that fails."""


def open_history(text: str, configuration: Configuration, cache: Path) -> HistoryStore:
    """Open the history that a user names.

    Args:
        text: a folder, `git:REPOSITORY#BRANCH` with a folder, URL or remote of the current checkout, or `az://`,
            `s3://` and `gs://` with a container or bucket and a path.
        configuration: credentials and options of object stores.
        cache: the folder of clones and indices of remote histories.
    """
    if _OBJECTS.match(text):
        return ObjectHistory(text, configuration, _make_local_dir(cache, text))
    if text.startswith("git:"):
        match = _GIT.match(text)
        if match is None:
            hint = "Write it as git:REPOSITORY#BRANCH, such as git:origin#history."
            raise UsageError(f"history {text}: no branch", hint)
        repository, settings = _find_repository(text, match["repository"])
        branch = match["branch"]
        # The folder's name contains the resolved repository, because `.` and `origin` depend on the checkout.
        return GitHistory(text, repository, settings, branch, _make_local_dir(cache, f"{repository}#{branch}"))
    if "://" in text or _MISSPELT.match(text):
        hint = "Expected a folder, git:REPOSITORY#BRANCH, az://account/container/path, s3://bucket/path or gs://…"
        raise UsageError(f"history {text}: unknown kind of place", hint)
    folder = expand_home(text)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"history {text}: it is a file", "Name a folder.")
    return FolderHistory(text, folder, _make_local_dir(cache, text))


def _make_local_dir(cache: Path, text: str) -> Path:
    return cache / "history" / hashlib.sha256(text.encode()).hexdigest()[:16]


def find_history(configuration: Configuration) -> str:
    """Return the history of the settings; a relative folder is relative to the project, not to the current folder."""
    place = configuration.history.store
    return place if ":" in place or place.startswith("~") else str(format_path(find_project_folder() / place))


class FolderHistory:
    """A folder; if the folder does not exist or is read-only, the index is in `cache`."""

    def __init__(self, place: str, folder: Path, cache: Path) -> None:
        self.place = place
        self._folder = folder
        self._cache = cache

    @property
    def local_dir(self) -> Path:
        """The folder of the index; reading a history does not create the history's folder."""
        return self._folder if self._folder.is_dir() and os.access(self._folder, os.W_OK) else self._cache

    def list_stamps(self) -> dict[str, str]:
        """Return the stamps of the history's files, by their names only."""
        stamps = {}
        for path in filter(lambda path: is_history_file(path.name), self._folder.glob("*/*.json")):
            with suppress(FileNotFoundError):
                stamps[path.name] = " ".join(map(str, FileState.of(path.lstat())))
        return stamps

    def read(self, name: str) -> bytes:
        """Read a file."""
        path = self._make_path(name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}", "Make it readable, or remove it.") from error

    def add(self, files: Mapping[str, bytes]) -> int:
        """Add files; return the number of new ones."""
        count = 0
        for name, data in files.items():
            path = self._make_path(name)
            try:
                # A truncated file is replaced.
                if path.is_file() and path.read_bytes() == data:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, data)
            except OSError as error:
                message = f"{path}: cannot be written: {error.strerror}"
                raise GauntletError(message, "Free some space or allow writing, and add the run again.") from error
            count += 1
        return count

    def remove(self, names: Collection[str]) -> None:
        """Remove files."""
        for path in map(self._make_path, names):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise GauntletError(f"{path}: {error.strerror}", "Allow it to be removed.") from error

    def _make_path(self, name: str) -> Path:
        return self._folder / name[:4] / name


def _find_repository(text: str, name: str) -> tuple[str, dict[str, str]]:
    """Return the URL of a repository, and variables that pass the current checkout's settings to git."""
    # GitHub's `actions/checkout` stores its credentials in the checkout's settings, for `origin` only.
    if Path(name).exists():
        # A relative folder is relative to the current folder, not to the clone.
        return str(resolve_links(Path(name))), {}
    if "/" in name or ":" in name:
        return name, {}
    try:
        result = run_short(("git", "config", "--local", "--includes", "--null", "--list"), timeout=_GIT_SECONDS)
    except OSError as error:
        raise GauntletError(f"git cannot be started: {error.strerror}", "Install git.") from error
    settings = [entry.partition("\n")[::2] for entry in result.stdout.split("\0") if entry]
    url = next((value for key, value in settings if key == f"remote.{name}.url"), "")
    if not url:
        message = f"history {text}: no folder {name}, and no git remote of this name in this folder"
        # For example, the checkout may belong to another user.
        reason = f"git: {result.stderr.strip().splitlines()[0]}. " if result.stderr.strip() else ""
        raise UsageError(message, f"{reason}`git remote -v` lists remotes; or name a folder or a URL.")
    first = int(os.environ.get("GIT_CONFIG_COUNT", "0"))
    connection_settings = [entry for entry in settings if _CONNECTION_SETTINGS.match(entry[0])]
    variables = {"GIT_CONFIG_COUNT": str(first + len(connection_settings))}
    for number, (key, value) in enumerate(connection_settings, start=first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return url, variables


class GitHistory:
    """A branch of a git repository, with a local clone that only git writes to.

    Args:
        place: the name that the user gave.
        repository: a folder or a URL.
        settings: environment variables for git.
        branch: the branch in the repository.
        local_dir: the folder of the clone.
    """

    def __init__(self, place: str, repository: str, settings: Mapping[str, str], branch: str, local_dir: Path) -> None:
        self.place = place
        self.local_dir = local_dir
        self._repository = repository
        self._settings = dict(settings)
        self._branch = branch
        self._clone = local_dir / "clone"
        self._files = FolderHistory(place, self._clone, local_dir)

    def list_stamps(self) -> dict[str, str]:
        """Fetch the branch, and return the stamps of its files."""
        with self._lock_clone():
            self._fetch()
        return self._files.list_stamps()

    def read(self, name: str) -> bytes:
        """Read a file of the last fetch."""
        return self._files.read(name)

    def add(self, files: Mapping[str, bytes]) -> int:
        """Commit and push files; return the number of new ones."""
        return self._push_changed(lambda: self._files.add(files), f"Add {pluralize(len(files), 'run')}")

    def remove(self, names: Collection[str]) -> None:
        """Remove files in a commit."""
        self._push_changed(lambda: self._files.remove(names), f"Remove {pluralize(len(names), 'run')}")

    def _push_changed(self, change: Callable[[], _ResultT], message: str) -> _ResultT:
        with self._lock_clone():
            for _ in range(_MAX_PUSHES):
                self._fetch()
                count = change()
                self._run_git("add", "--all", ".")
                if self._run_git("diff", "--cached", "--quiet", check=False).exit_code == 0:
                    return count
                # The author is git's configured user, or, if there is none, this program.
                has_user = self._run_git("config", "user.email", check=False).exit_code == 0
                self._run_git(*(() if has_user else _AUTHOR), "commit", "--quiet", "--message", message)
                result = self._run_git("push", "--quiet", "origin", f"HEAD:refs/heads/{self._branch}", check=False)
                if result.exit_code == 0:
                    return count
                if not any(text in result.stderr for text in _CONFLICT_MESSAGES):
                    raise self._make_git_error("push", result)
        raise GauntletError(
            f"history {self.place}: others pushed first {_MAX_PUSHES} times in a row", "Add the run again later."
        )

    def _fetch(self) -> None:
        """Update the clone to the branch, and remove locks that a killed process left in the clone."""
        if not (self._clone / ".git" / "config").is_file():
            shutil.rmtree(self._clone, ignore_errors=True)
            self._clone.mkdir(parents=True)
            self._run_git("init", "--quiet", "--initial-branch", self._branch)
            self._run_git("remote", "add", "origin", self._repository)
        for lock in (self._clone / ".git").glob("*.lock"):
            # These locks are leftovers: this process holds the clone's lock, so no other git works in the clone.
            lock.unlink(missing_ok=True)
        result = self._run_git("fetch", "--quiet", "origin", self._branch, check=False)
        if result.exit_code == 0:
            self._run_git("checkout", "--quiet", "--force", "-B", self._branch, "FETCH_HEAD")
        elif _NO_BRANCH not in result.stderr:
            raise self._make_git_error("fetch", result)
        else:
            self._run_git("update-ref", "-d", f"refs/heads/{self._branch}", check=False)
            self._run_git("rm", "--quiet", "-r", "--cached", "--ignore-unmatch", ".", check=False)
        self._run_git("clean", "--quiet", "--force", "-d")

    def _run_git(self, *args: str, check: bool = True) -> ProcessOutput:
        environment = {**os.environ, **self._settings, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            result = run_short(("git", "-C", str(self._clone), *args), timeout=_GIT_SECONDS, environment=environment)
        except OSError as error:
            raise GauntletError(f"git cannot be started: {error.strerror}", "Install git.") from error
        except subprocess.TimeoutExpired as error:
            message = f"history {self.place}: git {args[0]} did not finish within {_GIT_SECONDS:.0f} s"
            raise GauntletError(message, "Check that the repository can be reached.") from error
        if check and result.exit_code:
            raise self._make_git_error(args[0], result)
        return result

    def _make_git_error(self, command: str, result: ProcessOutput) -> GauntletError:
        return GauntletError(f"history {self.place}: git {command} failed", format_last_lines("git", result.stderr, 5))

    def _lock_clone(self) -> AbstractContextManager[int]:
        self.local_dir.mkdir(parents=True, exist_ok=True)
        return file_lock(self.local_dir / "clone.lock")


class ObjectHistory:
    """An object store; existing objects are never replaced."""

    def __init__(self, place: str, configuration: Configuration, local_dir: Path) -> None:
        self.place = place.rstrip("/")
        self.local_dir = local_dir
        self._configuration = configuration

    def list_stamps(self) -> dict[str, str]:
        """Return the stamps of all objects."""
        with self._open() as (_, location):
            objects = [*location.list_objects()]
        stamps = ((path.rpartition("/")[2], f"{size} {tag}") for path, size, tag, _ in objects)
        return {name: stamp for name, stamp in stamps if is_history_file(name)}

    def read(self, name: str) -> bytes:
        """Read an object."""
        with self._open() as (library, location):
            return bytes(library.get(location.store, _name_object(location, name)).bytes())

    def add(self, files: Mapping[str, bytes]) -> int:
        """Add the objects that are missing; return their number."""
        count = 0
        with self._open() as (library, location):
            for name, data in files.items():
                path = _name_object(location, name)
                try:
                    library.put(location.store, path, data, mode="create", use_multipart=False)
                except library.exceptions.AlreadyExistsError:
                    continue
                except (library.exceptions.NotSupportedError, NotImplementedError):
                    # Overwriting does no harm, because the same name means the same content.
                    library.put(location.store, path, data)
                count += 1
        return count

    def remove(self, names: Collection[str]) -> None:
        """Remove objects."""
        if names:
            with self._open() as (library, location):
                library.delete(location.store, [_name_object(location, name) for name in names])

    @cached_property
    def _location(self) -> StoreLocation:
        return open_store(self.place, self._configuration)

    @contextmanager
    def _open(self) -> Iterator[tuple[ModuleType, StoreLocation]]:
        """Open the store, and convert its errors."""
        import obstore.exceptions  # noqa: PLC0415 - a large library, which few runs need

        location = self._location
        try:
            yield obstore, location
        except (obstore.exceptions.BaseError, OSError) as error:
            message = f"history {self.place}: {remove_queries(str(error).partition(chr(10))[0])}"
            raise GauntletError(message, "Check the address and the credentials (docs/how-to/artifacts.md).") from error


def _name_object(location: StoreLocation, name: str) -> str:
    return f"{location.path}/{name[:4]}/{name}".lstrip("/")
