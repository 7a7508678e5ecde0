"""The runs of a GitHub workflow, and the artifacts that they have kept, by GitHub's REST API.

Each answer is downloaded by a `Transfer`, which limits its size, retries it, and waits as long as GitHub asks.
"""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import requests

from iree_gauntlet.artifacts.remotes import HttpRemote
from iree_gauntlet.artifacts.transfer import Transfer
from iree_gauntlet.errors import ArtifactError, UsageError
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.system.github_api import PAGE_SIZE, CiArtifact, find_github_token, make_github_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.artifacts.transfer import Policy
    from iree_gauntlet.progress import Progress


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
