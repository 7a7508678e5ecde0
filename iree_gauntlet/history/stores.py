"""Where a history is kept: a folder, a branch of a git repository, or an object store.

Files are named by their content and never changed, so that adding needs no lock, and what is there already is the same:

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
from iree_gauntlet.artifacts.remote import without_queries
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.records.history_record import is_history_file
from iree_gauntlet.settings import expand_home, find_project_folder, resolve_links, shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.system.file_state import FileState
from iree_gauntlet.system.short_process import run_short, show_last_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import ModuleType

    from iree_gauntlet.settings import Configuration
    from iree_gauntlet.system.short_process import Answer


Changed = TypeVar("Changed")
_OBJECTS = re.compile(r"(?:az|s3|gs)://")
_GIT = re.compile(r"git:(?P<repository>[^#]+)#(?P<branch>\w[\w./-]*)\Z")
# `s3:/bucket`, `gitx:repository`: a slip, and no folder that anybody wants.
_MISSPELT = re.compile(r"[a-z][a-z0-9+]+:")
# Of a checkout's settings, those that say how and as whom to reach a remote.
_OF_CONNECTIONS = re.compile(r"(?:http|credential|url|user)\.|core\.sshcommand\Z")
_GIT_SECONDS = 300.0
# Others may add at the same time; each time one of them gets through.
_PUSHES = 20
_AUTHOR = ("-c", "user.name=IREE Gauntlet", "-c", "user.email=gauntlet@localhost")
_NO_BRANCH = "couldn't find remote ref"
_OVERTAKEN = ("[rejected]", "fetch first", "cannot lock ref", "failed to update ref")


class UnreadableError(GauntletError):
    """A file cannot be read; others may be."""


class HistoryStore(Protocol):
    """Where the files of a history are."""

    place: str

    @property
    def beside(self) -> Path:
        """A folder on this machine for what can be made again."""

    def stamps(self) -> dict[str, str]:
        """Of all files by name: they change when a file does. GauntletError where it cannot be reached."""

    def read(self, name: str) -> bytes:
        """A file. UnreadableError where it alone cannot be read, GauntletError where none can."""

    def add(self, files: Mapping[str, bytes]) -> int:
        """Keep files; how many were not there yet. GauntletError where they cannot be written: none is half there."""

    def remove(self, names: Collection[str]) -> None:
        """Remove files. GauntletError where they cannot be."""


def open_history(text: str, configuration: Configuration, cache: Path) -> HistoryStore:
    """The history that a user names.

    Args:
        text: a folder, `git:REPOSITORY#BRANCH` with a folder, URL or remote of the checkout that one is in, or `az://`,
            `s3://` and `gs://` with a container or bucket and a path.
        configuration: credentials and options of object stores.
        cache: where clones and indices of remote ones are.
    """
    if _OBJECTS.match(text):
        return ObjectHistory(text, configuration, _make_path_beside(cache, text))
    if text.startswith("git:"):
        found = _GIT.match(text)
        if found is None:
            hint = "Name it so: git:REPOSITORY#BRANCH, such as git:origin#history."
            raise UsageError(f"history {text}: no branch", hint)
        repository, settings = _read_repository(text, found["repository"])
        branch = found["branch"]
        # `.` and `origin` are others elsewhere.
        return GitHistory(text, repository, settings, branch, _make_path_beside(cache, f"{repository}#{branch}"))
    if "://" in text or _MISSPELT.match(text):
        hint = "Expected a folder, git:REPOSITORY#BRANCH, az://account/container/path, s3://bucket/path or gs://…"
        raise UsageError(f"history {text}: no such kind of place", hint)
    folder = expand_home(text)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"history {text}: it is a file", "Name a folder.")
    return FolderHistory(text, folder, _make_path_beside(cache, text))


def _make_path_beside(cache: Path, text: str) -> Path:
    return cache / "history" / hashlib.sha256(text.encode()).hexdigest()[:16]


def find_history(configuration: Configuration) -> str:
    """The place that the settings name; a folder is the project's, wherever in it a command is typed."""
    place = configuration.history.store
    return place if ":" in place or place.startswith("~") else str(shown(find_project_folder() / place))


class FolderHistory:
    """A folder; `cache` has the index of one that is not there, or can only be read."""

    def __init__(self, place: str, folder: Path, cache: Path) -> None:
        self.place = place
        self._folder = folder
        self._cache = cache

    @property
    def beside(self) -> Path:
        """Where its index is: nothing is made by being asked."""
        return self._folder if self._folder.is_dir() and os.access(self._folder, os.W_OK) else self._cache

    def stamps(self) -> dict[str, str]:
        """Of all files in it, also of what only has the name of one."""
        found = {}
        for path in filter(lambda path: is_history_file(path.name), self._folder.glob("*/*.json")):
            with suppress(FileNotFoundError):
                found[path.name] = " ".join(map(str, FileState.of(path.lstat())))
        return found

    def read(self, name: str) -> bytes:
        """A file."""
        path = self._make_path(name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}", "Make it readable, or remove it.") from error

    def add(self, files: Mapping[str, bytes]) -> int:
        """Keep files; how many were not there yet."""
        added = 0
        for name, data in files.items():
            path = self._make_path(name)
            try:
                # One that was cut short is put right.
                if path.is_file() and path.read_bytes() == data:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, data)
            except OSError as error:
                what = f"{path}: cannot be written: {error.strerror}"
                raise GauntletError(what, "Make room or give the right to write, and add the run again.") from error
            added += 1
        return added

    def remove(self, names: Collection[str]) -> None:
        """Remove files."""
        for path in map(self._make_path, names):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise GauntletError(f"{path}: {error.strerror}", "Give the right to remove it.") from error

    def _make_path(self, name: str) -> Path:
        return self._folder / name[:4] / name


def _read_repository(text: str, name: str) -> tuple[str, dict[str, str]]:
    """What git is to reach, and variables for it with settings of the checkout that one is in."""
    # GitHub's `actions/checkout` leaves its credentials in a checkout's own settings, for `origin` and nothing else.
    if Path(name).exists():
        # A relative folder is relative to where the user is, not to the clone.
        return str(resolve_links(Path(name))), {}
    if "/" in name or ":" in name:
        return name, {}
    try:
        listed = run_short(("git", "config", "--local", "--includes", "--null", "--list"), timeout=_GIT_SECONDS)
    except OSError as error:
        raise GauntletError(f"git cannot be started: {error.strerror}", "Install git.") from error
    settings = [item.partition("\n")[::2] for item in listed.stdout.split("\0") if item]
    url = next((value for key, value in settings if key == f"remote.{name}.url"), "")
    if not url:
        what = f"history {text}: no folder {name}, and no remote of this name in a git checkout here"
        # Such as of a checkout that belongs to another user.
        why = f"git: {listed.stderr.strip().splitlines()[0]}. " if listed.stderr.strip() else ""
        raise UsageError(what, f"{why}`git remote -v` lists remotes; or name a folder or a URL.")
    first = int(os.environ.get("GIT_CONFIG_COUNT", "0"))
    kept = [item for item in settings if _OF_CONNECTIONS.match(item[0])]
    variables = {"GIT_CONFIG_COUNT": str(first + len(kept))}
    for number, (key, value) in enumerate(kept, start=first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return url, variables


class GitHistory:
    """A branch of a git repository, by a clone of it on this machine; nothing is written but by git itself.

    Args:
        place: as a user names it.
        repository: a folder or a URL.
        settings: variables that git gets.
        branch: of the repository.
        beside: has the clone.
    """

    def __init__(self, place: str, repository: str, settings: Mapping[str, str], branch: str, beside: Path) -> None:
        self.place = place
        self.beside = beside
        self._repository = repository
        self._settings = dict(settings)
        self._branch = branch
        self._clone = beside / "clone"
        self._files = FolderHistory(place, self._clone, beside)

    def stamps(self) -> dict[str, str]:
        """Of all files on the branch."""
        with self._lock_clone():
            self._fetch()
        return self._files.stamps()

    def read(self, name: str) -> bytes:
        """A file, as it was fetched."""
        return self._files.read(name)

    def add(self, files: Mapping[str, bytes]) -> int:
        """Commit and push files; how many were not there yet."""
        return self._push_changed(lambda: self._files.add(files), f"Add {counted(len(files), 'run')}")

    def remove(self, names: Collection[str]) -> None:
        """Remove files in a commit of its own."""
        self._push_changed(lambda: self._files.remove(names), f"Remove {counted(len(names), 'run')}")

    def _push_changed(self, change: Callable[[], Changed], message: str) -> Changed:
        with self._lock_clone():
            for _ in range(_PUSHES):
                self._fetch()
                count = change()
                self._run_git("add", "--all", ".")
                if self._run_git("diff", "--cached", "--quiet", check=False).exit_code == 0:
                    return count
                # Whoever git says that the user is; where it does not know, this program.
                known = self._run_git("config", "user.email", check=False).exit_code == 0
                self._run_git(*(() if known else _AUTHOR), "commit", "--quiet", "--message", message)
                pushed = self._run_git("push", "--quiet", "origin", f"HEAD:refs/heads/{self._branch}", check=False)
                if pushed.exit_code == 0:
                    return count
                if not any(word in pushed.stderr for word in _OVERTAKEN):
                    raise self._explain_refused("push", pushed)
        raise GauntletError(
            f"history {self.place}: others were quicker {_PUSHES} times in a row", "Add the run again later."
        )

    def _fetch(self) -> None:
        """Bring the clone to where the branch is; what a killed process left in it goes."""
        if not (self._clone / ".git" / "config").is_file():
            shutil.rmtree(self._clone, ignore_errors=True)
            self._clone.mkdir(parents=True)
            self._run_git("init", "--quiet", "--initial-branch", self._branch)
            self._run_git("remote", "add", "origin", self._repository)
        for left in (self._clone / ".git").glob("*.lock"):
            # The lock of this class is held: nobody else works here.
            left.unlink(missing_ok=True)
        fetched = self._run_git("fetch", "--quiet", "origin", self._branch, check=False)
        if fetched.exit_code == 0:
            self._run_git("checkout", "--quiet", "--force", "-B", self._branch, "FETCH_HEAD")
        elif _NO_BRANCH not in fetched.stderr:
            raise self._explain_refused("fetch", fetched)
        else:
            self._run_git("update-ref", "-d", f"refs/heads/{self._branch}", check=False)
            self._run_git("rm", "--quiet", "-r", "--cached", "--ignore-unmatch", ".", check=False)
        self._run_git("clean", "--quiet", "--force", "-d")

    def _run_git(self, *words: str, check: bool = True) -> Answer:
        environment = {**os.environ, **self._settings, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            done = run_short(("git", "-C", str(self._clone), *words), timeout=_GIT_SECONDS, environment=environment)
        except OSError as error:
            raise GauntletError(f"git cannot be started: {error.strerror}", "Install git.") from error
        except subprocess.TimeoutExpired as error:
            what = f"history {self.place}: git {words[0]} did not end within {_GIT_SECONDS:.0f} s"
            raise GauntletError(what, "See whether the repository can be reached.") from error
        if check and done.exit_code:
            raise self._explain_refused(words[0], done)
        return done

    def _explain_refused(self, what: str, answer: Answer) -> GauntletError:
        return GauntletError(f"history {self.place}: git {what} failed", show_last_words("git", answer.stderr, 5))

    def _lock_clone(self) -> AbstractContextManager[int]:
        self.beside.mkdir(parents=True, exist_ok=True)
        return file_lock(self.beside / "clone.lock")


class ObjectHistory:
    """An object store; nothing that is there is replaced."""

    def __init__(self, place: str, configuration: Configuration, beside: Path) -> None:
        self.place = place.rstrip("/")
        self.beside = beside
        self._configuration = configuration

    def stamps(self) -> dict[str, str]:
        """Of all objects."""
        with self._open() as (library, location):
            pages = library.list(location.store, prefix=location.path or None)
            items = [item for page in pages for item in page]
        named = ((item["path"].rpartition("/")[2], f"{item['size']} {item['e_tag']}") for item in items)
        return {name: stamp for name, stamp in named if is_history_file(name)}

    def read(self, name: str) -> bytes:
        """An object."""
        with self._open() as (library, location):
            return bytes(library.get(location.store, _name_object(location, name)).bytes())

    def add(self, files: Mapping[str, bytes]) -> int:
        """Put what is absent; how many were not there yet."""
        added = 0
        with self._open() as (library, location):
            for name, data in files.items():
                path = _name_object(location, name)
                try:
                    library.put(location.store, path, data, mode="create", use_multipart=False)
                except library.exceptions.AlreadyExistsError:
                    continue
                except (library.exceptions.NotSupportedError, NotImplementedError):
                    # The same name is the same content: to put it again does no harm.
                    library.put(location.store, path, data)
                added += 1
        return added

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
        """obstore, and the store; its errors are ours."""
        import obstore.exceptions  # noqa: PLC0415 - a large library, which few runs need

        location = self._location
        try:
            yield obstore, location
        except (obstore.exceptions.BaseError, OSError) as error:
            what = f"history {self.place}: {without_queries(str(error).partition(chr(10))[0])}"
            raise GauntletError(what, "Check the address and the credentials (docs/how-to/artifacts.md).") from error


def _name_object(location: StoreLocation, name: str) -> str:
    return f"{location.path}/{name[:4]}/{name}".lstrip("/")
