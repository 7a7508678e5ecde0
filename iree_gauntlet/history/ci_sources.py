"""The places where CI keeps artifacts: the runs of a GitHub workflow, or the archives in a folder or a bucket.

Each answer of GitHub's REST API is downloaded by a `Transfer`, which limits its size, retries it, and waits as long as
GitHub asks.
"""

from __future__ import annotations

import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import requests

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.object_stores import open_store
from iree_gauntlet.artifacts.remote import remove_queries
from iree_gauntlet.artifacts.remotes import HttpRemote, ObjectRemote, list_remotes
from iree_gauntlet.artifacts.transfer import Transfer
from iree_gauntlet.errors import ArtifactError, UsageError
from iree_gauntlet.formatting import format_bytes, join_lines
from iree_gauntlet.history.artifact_runs import ArtifactFile, open_zipped_files
from iree_gauntlet.history.imports import ImportFacts
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.records.history_record import CiOrigin
from iree_gauntlet.records.run_before import SUMMARY
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.system.github_api import PAGE_SIZE, CiArtifact, find_github_token, make_github_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.artifacts.transfer import Policy
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.settings import Configuration


_ARCHIVE = ".zip"
_STORE_SCHEMES = ("az://", "s3://", "gs://")
_STORE_HINT = "Check the address and the credentials (docs/how-to/artifacts.md)."
_MAX_NAME_CHARS = 100
_DAY = re.compile(r"20\d{2}-\d{2}-\d{2}")
_COMMIT = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_WORD = re.compile(r"\w+")
_GITHUB_API = "https://api.github.com"
_API_VARIABLE = "GITHUB_API_URL"
# GitHub lists only so many runs for one query; the rest is asked for by its time.
_MAX_LISTED_RUNS = 1000
# No list has more pages; a list of runs is asked for so often.
_MAX_PAGES = 100
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]*/(?!\.{1,2}\Z)[\w.-]+", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
_ACCESS_HINT = "Set $GITHUB_TOKEN to a token that can read the repository's actions, e.g. `gh auth token`'s output."
_MISSING_HINT = f"Check the names of repository and workflow. A private repository needs a token. {_ACCESS_HINT}"
_API_HINT = f"Is {_API_VARIABLE} the address of GitHub's API, such as {_GITHUB_API}?"
_RecordedT = TypeVar("_RecordedT", bound=Recorded)


@dataclass(frozen=True, slots=True)
class _Repository(Recorded):
    id: int = 0


@dataclass(frozen=True, slots=True)
class CiRun(Recorded):
    """GitHub's description of a run of a workflow."""

    id: int
    created_at: str
    run_number: int = 0
    run_attempt: int = 1
    run_started_at: str = ""
    head_sha: str = ""
    head_branch: str = ""
    html_url: str = ""
    repository: _Repository = _Repository()
    # None of a fork that was deleted.
    head_repository: _Repository = _Repository()

    def __post_init__(self) -> None:
        # The next query contains the time.
        if not _TIME.fullmatch(self.created_at):
            raise ValueError(f"created_at is {self.created_at[:40]!r}: expected a time such as 2026-01-31T10:00:00Z")


@dataclass(frozen=True, slots=True)
class CiJob(Recorded):
    """GitHub's description of a job of a run."""

    name: str = ""
    runner_name: str = ""
    started_at: str = ""
    completed_at: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GitHubActions:
    """The actions of a repository; its errors are ArtifactErrors, and name no token; `folder` is for answers."""

    api: str
    repository: str
    folder: Path
    policy: Policy
    progress: Progress
    headers: Mapping[str, str] = field(repr=False)
    _slots: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(4))
    _session: requests.Session = field(default_factory=requests.Session)

    @classmethod
    def open(
        cls, repository: str, environ: Mapping[str, str], folder: Path, policy: Policy, progress: Progress
    ) -> GitHubActions:
        """Open OWNER/REPO at `GITHUB_API_URL`, with the token of the environment; UsageError if these are invalid."""
        api = environ.get(_API_VARIABLE, "").rstrip("/") or _GITHUB_API
        if not _REPOSITORY.fullmatch(repository):
            raise UsageError(f"github:{repository} names no repository", "Write it as github:OWNER/REPO.")
        try:
            parts = urlsplit(api)
            invalid = parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query
        except ValueError:
            invalid = True
        if invalid:
            # The address may contain a password.
            raise UsageError(
                f"${_API_VARIABLE} is not an address", f"Expected one such as {_GITHUB_API}, without a user."
            )
        token = find_github_token(environ)
        if not token:
            raise UsageError(f"github:{repository}: GitHub gives artifacts only to users with a token", _ACCESS_HINT)
        return cls(api, repository, folder, policy, progress, make_github_headers(token))

    @property
    def source(self) -> str:
        """The repository as a user names it, with its host if this is not GitHub's."""
        name = f"github:{self.repository.lower()}"
        return name if self.api == _GITHUB_API else f"{name} at {urlsplit(self.api).netloc}"

    def list_runs(self, workflow: str, branch: str, since: str) -> Iterator[CiRun]:
        """Yield the finished runs of a workflow, the newest first, since a day; without those of forks."""
        known: set[int] = set()
        until = ""
        for _ in range(_MAX_PAGES):
            query = {"status": "completed", "exclude_pull_requests": "true"}
            query |= {"branch": branch} if branch else {}
            query |= {"created": f"{since or '*'}..{until or '*'}"} if since or until else {}
            path = f"actions/workflows/{quote(workflow, safe='')}/runs?{urlencode(query)}"
            runs = list(self._list(path, "workflow_runs", CiRun, _MAX_LISTED_RUNS))
            new_runs = [run for run in runs if run.id not in known]
            known |= {run.id for run in new_runs}
            # What strangers have run in a fork, perhaps on a branch of the same name, is not the repository's.
            yield from (run for run in new_runs if run.head_repository == run.repository)
            if len(runs) < _MAX_LISTED_RUNS or not new_runs:
                return
            until = min(run.created_at for run in new_runs)
        self._refuse_length(workflow)

    def list_artifacts(self, run: CiRun) -> list[CiArtifact]:
        """List the artifacts of a run."""
        return list(self._list(f"actions/runs/{run.id}/artifacts", "artifacts", CiArtifact))

    def list_jobs(self, run: CiRun) -> list[CiJob]:
        """List the jobs of a run's last attempt."""
        return list(self._list(f"actions/runs/{run.id}/jobs?filter=latest", "jobs", CiJob))

    def open_artifact(self, artifact: CiArtifact) -> HttpRemote:
        """Return the archive of an artifact, which GitHub keeps on another host."""
        hint = "GitHub keeps it no longer, or the token may not read it."
        return self._open(f"actions/artifacts/{artifact.id}/zip", hint)

    def fetch(self, remote: HttpRemote, name: str, folder: Path) -> Path:
        """Download a file completely into a folder, in place of an earlier one."""
        return (
            Transfer(remote, name, folder, self.policy, self._slots, self.progress, pinned=False).run(fresh=True).path
        )

    def _open(self, path: str, missing_hint: str = _MISSING_HINT) -> HttpRemote:
        return HttpRemote(
            f"{self.api}/repos/{self.repository}/{path}",
            headers=self.headers,
            stall_timeout=self.policy.stall_timeout,
            access_hint=_ACCESS_HINT,
            missing_hint=missing_hint,
            _session=self._session,
        )

    def _list(self, path: str, key: str, kind: type[_RecordedT], limit: int = sys.maxsize) -> Iterator[_RecordedT]:
        count = 0
        for page in range(1, _MAX_PAGES + 1):
            document = self._fetch_json(f"{path}{'&' if '?' in path else '?'}per_page={PAGE_SIZE}&page={page}")
            url = f"{self.api}/repos/{self.repository}/{path}"
            try:
                entries, total = document[key], document.get("total_count", limit)
                if not isinstance(entries, list) or not isinstance(total, int):
                    raise TypeError(f"{key} is no list")  # noqa: TRY301 - as for all else
                yield from [kind.from_dict(entry) for entry in entries]
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                cause = f"{key} is missing" if isinstance(error, KeyError) else f"{error}"
                raise ArtifactError(url, f"{url} does not answer like GitHub: {cause[:200]}", _API_HINT) from error
            count += len(entries)
            if not entries or count >= min(total, limit):
                return
        self._refuse_length(path)

    def _refuse_length(self, path: str) -> None:
        url = f"{self.api}/repos/{self.repository}/{path}"
        raise ArtifactError(url, f"{url} has no end: {_MAX_PAGES} pages were read", "Name a later day with --since.")

    def _fetch_json(self, path: str) -> Any:
        remote = self._open(path)
        try:
            return read_json(self.fetch(remote, path.partition("?")[0], self.folder / "answer").read_bytes())
        except ValueError as error:
            message = f"{remote.url} does not answer with JSON: {error}"
            raise ArtifactError(remote.url, message, _API_HINT) from error


class UnfitArtifactError(ArtifactError):
    """An artifact that is not fetched because of its own properties, whatever the network does."""


@dataclass(frozen=True, slots=True)
class ArtifactQuery:
    """A request for artifacts: a glob of names, and for GitHub a workflow, a branch and a day; a device's SKU."""

    artifact: str = "*"
    workflow: str = ""
    branch: str = ""
    since: str = ""
    sku: str = ""


@dataclass(frozen=True, slots=True)
class CiBundle:
    """An artifact.

    Attributes:
        facts: what other tools' files lack.
        open: downloads it into a folder, in place of an earlier one, and yields its files; errors as in `Transfer.run`,
            or a GauntletError if it is damaged.
    """

    title: str
    origin: CiOrigin
    facts: ImportFacts
    open: Callable[[Path], AbstractContextManager[Sequence[ArtifactFile]]]
    is_expired: bool = False


@dataclass(frozen=True, slots=True)
class CiArtifacts:
    """A run of CI; `list_bundles` returns its artifacts, all or only those that are not known."""

    key: str
    title: str
    list_bundles: Callable[[set[str]], list[CiBundle]]


class CiSource(Protocol):
    """A place where CI keeps artifacts; its errors are ArtifactErrors."""

    @property
    def name(self) -> str:
        """The source in the history."""

    @property
    def selection(self) -> str:
        """The request, as text; with another selection, other artifacts of a settled run may count."""

    @property
    def query(self) -> ArtifactQuery:
        """The choice of artifacts."""

    @property
    def names(self) -> set[str]:
        """The names, matching or not, of the artifacts that were listed until now."""

    def list_groups(self) -> list[CiArtifacts]:
        """List the runs of CI, the oldest first."""


@dataclass(frozen=True, slots=True)
class GitHubSource:
    """The runs of a workflow."""

    actions: GitHubActions
    query: ArtifactQuery
    names: set[str] = field(default_factory=set)

    @classmethod
    def open(
        cls,
        repository: str,
        query: ArtifactQuery,
        environ: Mapping[str, str],
        folder: Path,
        policy: Policy,
        progress: Progress,
    ) -> GitHubSource:
        """Open a repository; errors as in `GitHubActions.open`."""
        actions = GitHubActions.open(repository, environ, folder, policy, progress)
        if not query.workflow:
            hint = "Give it: --workflow FILE, such as benchmarks.yml of .github/workflows."
            raise UsageError(f"github:{repository}: which workflow?", hint)
        return cls(actions, query)

    @property
    def name(self) -> str:
        """See `CiSource`."""
        return self.actions.source

    @property
    def selection(self) -> str:
        """See `CiSource`."""
        return f"{self.query.workflow} {self.query.artifact}"

    def list_groups(self) -> list[CiArtifacts]:
        """See `CiSource`."""
        runs = self.actions.list_runs(self.query.workflow, self.query.branch, self.query.since)
        return [
            CiArtifacts(
                # What is run again has other artifacts.
                f"{run.id}.{run.run_attempt}",
                f"run {run.run_number} of {run.created_at[:10]}",
                partial(self._list_bundles, run),
            )
            for run in sorted(runs, key=lambda run: (run.created_at, run.id))
        ]

    def _list_bundles(self, run: CiRun, known: set[str]) -> list[CiBundle]:
        listed = self.actions.list_artifacts(run)
        self.names.update(artifact.name for artifact in listed)
        artifacts = [
            artifact
            for artifact in listed
            if fnmatchcase(artifact.name, self.query.artifact) and str(artifact.id) not in known
        ]
        jobs = self.actions.list_jobs(run) if any(not artifact.expired for artifact in artifacts) else []
        return [self._make_bundle(run, artifact, jobs) for artifact in artifacts]

    def _make_bundle(self, run: CiRun, artifact: CiArtifact, jobs: Sequence[CiJob]) -> CiBundle:
        name, date = join_lines(artifact.name, _MAX_NAME_CHARS), run.run_started_at or run.created_at
        job = find_job(artifact, jobs)
        # Without its job, the artifact's name keeps series of several machines apart.
        machine = " ".join(job.labels) if job else f"artifact {name}"
        origin = CiOrigin(
            self.name,
            artifact=str(artifact.id),
            name=name,
            url=run.html_url,
            commit=run.head_sha,
            branch=run.head_branch,
            date=date,
            runner=", ".join(filter(None, (job.runner_name, *job.labels))) if job else "",
        )
        title = f"{name} of run {run.run_number}"
        run_name = f"{PurePosixPath(self.query.workflow).stem}-{run.run_number}/{name}/"
        facts = ImportFacts(date, run.head_sha, machine, self.query.sku, run_name)
        opener = partial(self._open, artifact, title)
        return CiBundle(f"{title} ({run.created_at[:10]})", origin, facts, opener, is_expired=artifact.expired)

    @contextmanager
    def _open(self, artifact: CiArtifact, title: str, folder: Path) -> Iterator[list[ArtifactFile]]:
        _require_size(title, artifact.size_in_bytes, self.actions.policy)
        path = self.actions.fetch(self.actions.open_artifact(artifact), title, folder)
        if artifact.sha256 and hash_file(path) != artifact.sha256:
            raise UnfitArtifactError(title, "it arrived with another SHA-256 than GitHub reports", "Run again.")
        with open_zipped_files(path) as files:
            yield files


def _require_size(name: str, size: int, policy: Policy) -> None:
    if policy.max_bytes is not None and size > policy.max_bytes:
        message = f"it has {format_bytes(size)}, but --max-download allows {format_bytes(policy.max_bytes)}"
        raise UnfitArtifactError(name, message, "Allow more, or exclude it by --artifact.")


def find_job(artifact: CiArtifact, jobs: Sequence[CiJob]) -> CiJob | None:
    """Find the job that uploaded an artifact, which GitHub does not say; None if it may be one of several machines."""
    running = [job for job in jobs if job.started_at <= artifact.created_at <= (job.completed_at or "9")] or [*jobs]
    if len({job.labels for job in running}) > 1:
        # The jobs of a matrix are named like `test (mi325)`, and their artifacts differ in the same words.
        words = set(_WORD.findall(artifact.name))
        scores = [len(words.intersection(_WORD.findall(job.name))) for job in running]
        running = [job for job, score in zip(running, scores, strict=True) if score == max(scores)]
    return running[0] if len({job.labels for job in running}) == 1 else None


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder or a bucket: archives, or unpacked artifacts, each in a folder of its own.

    A day and a commit in the path of an artifact, `2026-01-31/<40 digits>/benchmarks.zip`, are those of its run.
    """

    name: str
    query: ArtifactQuery
    configuration: Configuration
    policy: Policy
    progress: Progress
    names: set[str] = field(default_factory=set)
    _slots: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(4))

    @classmethod
    def open(
        cls, text: str, query: ArtifactQuery, configuration: Configuration, policy: Policy, progress: Progress
    ) -> FolderSource:
        """Open a folder or a bucket; UsageError if it is neither."""
        if query.workflow or query.branch or query.since:
            raise UsageError(f"{text}: --workflow, --branch and --since are for github:", "Leave them out.")
        folder = Path(text).expanduser()
        if not text.startswith(_STORE_SCHEMES) and not folder.is_dir():
            hint = "Expected github:OWNER/REPO, a folder, az://account/container/path, s3://bucket/path or gs://…"
            reason = "a web server has no list of its files" if "://" in text else "no such folder"
            raise UsageError(f"history.collect {text}: {reason}", hint)
        name = text.rstrip("/") if text.startswith(_STORE_SCHEMES) else str(resolve_links(folder))
        return cls(name, query, configuration, policy, progress)

    @property
    def selection(self) -> str:
        """See `CiSource`."""
        return self.query.artifact

    def list_groups(self) -> list[CiArtifacts]:
        """See `CiSource`."""
        import obstore.exceptions  # noqa: PLC0415 - a large library, which few commands need

        try:
            files = self._list_files()
        except (obstore.exceptions.BaseError, OSError) as error:
            message = f"{self.name} cannot be read: {remove_queries(str(error).partition(chr(10))[0])}"
            raise ArtifactError(self.name, message, _STORE_HINT) from error
        paths = [PurePosixPath(path) for path in files]
        recorded = {path.parent for path in paths if path.name in (JOURNAL, SUMMARY)}
        groups: dict[str, list[str]] = {}
        for path in sorted(paths):
            # A run's folder is one artifact, with all that is below it.
            folder = next((parent for parent in reversed(path.parents) if parent in recorded), path.parent)
            group = path if path.suffix == _ARCHIVE else folder
            names = [part.removesuffix(_ARCHIVE) for part in group.parts or (".",)]
            self.names.update(names)
            if any(fnmatchcase(name, self.query.artifact) for name in names):
                groups.setdefault(str(group), []).append(str(path))
        return [self._make_group(group, {path: files[path] for path in parts}) for group, parts in groups.items()]

    def _list_files(self) -> dict[str, tuple[int, str]]:
        """Return size and stamp of each file: in a folder a part of its hash, as its time changes if it is copied."""
        if self.name.startswith("/"):
            folder = Path(self.name)
            paths = [path for path in folder.rglob("*") if path.is_file()]
            return {path.relative_to(folder).as_posix(): (path.stat().st_size, hash_file(path)[:20]) for path in paths}
        location = open_store(self.name, self.configuration)
        prefix = f"{location.path}/" if location.path else ""
        objects = location.list_objects()
        return {path.removeprefix(prefix): (size, tag or time) for path, size, tag, time in objects}

    def _make_group(self, group: str, files: Mapping[str, tuple[int, str]]) -> CiArtifacts:
        name = join_lines(group, _MAX_NAME_CHARS)
        day, commit = _DAY.search(group), _COMMIT.search(group)
        facts = ImportFacts(day[0] if day else "", commit[0] if commit else "", "", self.query.sku, f"{name}/")
        key = " ".join((group, *(stamp for _, stamp in files.values())))
        origin = CiOrigin(self.name, artifact=key, name=name, commit=facts.commit, date=facts.date)
        listed = [ArtifactFile(path, size, bytes) for path, (size, _) in files.items()]
        bundle = CiBundle(name, origin, facts, partial(self._open, group, listed))
        return CiArtifacts(key, name, lambda _known: [bundle])

    @contextmanager
    def _open(self, group: str, listed: Sequence[ArtifactFile], folder: Path) -> Iterator[Sequence[ArtifactFile]]:
        if listed[0].path.endswith(_ARCHIVE):
            with open_zipped_files(self._fetch(listed[0], folder)) as files:
                yield files
            return
        readable = [file for file in listed if file.is_readable]
        paths = {file: self._fetch(file, folder / str(number)) for number, file in enumerate(readable)}
        yield [
            ArtifactFile(str(PurePosixPath(file.path).relative_to(group)), file.size, path.read_bytes)
            for file, path in paths.items()
        ]

    def _fetch(self, file: ArtifactFile, folder: Path) -> Path:
        _require_size(file.shown, file.size, self.policy)
        url = f"{self.name}/{file.path}"
        if self.name.startswith("/"):
            remote = next(list_remotes(url, self.configuration, self.policy.stall_timeout))
        else:
            location = open_store(self.name, self.configuration)
            remote = ObjectRemote(url, location.store, f"{location.path}/{file.path}".lstrip("/"), _STORE_HINT)
        transfer = Transfer(remote, file.shown, folder, self.policy, self._slots, self.progress, pinned=False)
        return transfer.run(fresh=True).path
