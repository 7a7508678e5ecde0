"""Where CI keeps artifacts: the runs of a GitHub workflow, or the archives in a folder or a bucket."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet.artifacts.github_artifacts import CiJob, CiRun, GitHubActions
from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.object_stores import open_store
from iree_gauntlet.artifacts.remote import remove_queries
from iree_gauntlet.artifacts.remotes import ObjectRemote, list_remotes
from iree_gauntlet.artifacts.transfer import Transfer
from iree_gauntlet.errors import ArtifactError, UsageError
from iree_gauntlet.formatting import format_bytes, join_lines
from iree_gauntlet.history.artifact_runs import ArtifactFile, open_zipped_files
from iree_gauntlet.history.imports import ImportFacts
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.records.history_record import CiOrigin
from iree_gauntlet.records.run_before import SUMMARY
from iree_gauntlet.settings import resolve_links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.artifacts.transfer import Policy
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.settings import Configuration
    from iree_gauntlet.system.github_api import CiArtifact


_ARCHIVE = ".zip"
_STORE_SCHEMES = ("az://", "s3://", "gs://")
_STORE_HINT = "Check the address and the credentials (docs/how-to/artifacts.md)."
_MAX_NAME_CHARS = 100
_DAY = re.compile(r"20\d{2}-\d{2}-\d{2}")
_COMMIT = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_WORD = re.compile(r"\w+")


class UnfitArtifactError(ArtifactError):
    """An artifact that is not fetched because of its own properties, whatever the network does."""


@dataclass(frozen=True, slots=True)
class ArtifactQuery:
    """Which artifacts are asked for: a glob of names, and for GitHub a workflow, a branch and a day; a device's SKU."""

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
        """What was asked for; with another selection, other artifacts of a settled run may count."""

    def list_groups(self) -> list[CiArtifacts]:
        """List the runs of CI, the oldest first."""


@dataclass(frozen=True, slots=True)
class GitHubSource:
    """The runs of a workflow."""

    actions: GitHubActions
    query: ArtifactQuery

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
        if not query.workflow:
            hint = "Give it: --workflow FILE, such as benchmarks.yml of .github/workflows."
            raise UsageError(f"github:{repository}: which workflow?", hint)
        return cls(GitHubActions.open(repository, environ, folder, policy, progress), query)

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
        artifacts = [
            artifact
            for artifact in self.actions.list_artifacts(run)
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
            files = self._list_local() if self.name.startswith("/") else self._list_objects()
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
            if any(fnmatchcase(part.removesuffix(_ARCHIVE), self.query.artifact) for part in group.parts or ("",)):
                groups.setdefault(str(group), []).append(str(path))
        return [self._make_group(group, {path: files[path] for path in parts}) for group, parts in groups.items()]

    def _list_local(self) -> dict[str, tuple[int, str]]:
        """Return size and stamp of each file: a part of its hash, since the other stamps change if it is copied."""
        folder = Path(self.name)
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): (path.stat().st_size, hash_file(path)[:20]) for path in files}

    def _list_objects(self) -> dict[str, tuple[int, str]]:
        import obstore  # noqa: PLC0415 - a large library, which few commands need

        location = open_store(self.name, self.configuration)
        prefix = f"{location.path}/" if location.path else ""
        objects = [entry for page in obstore.list(location.store, prefix=location.path or None) for entry in page]
        return {
            entry["path"].removeprefix(prefix): (entry["size"], entry["e_tag"] or str(entry["last_modified"]))
            for entry in objects
        }

    def _make_group(self, group: str, files: Mapping[str, tuple[int, str]]) -> CiArtifacts:
        name = join_lines(group, _MAX_NAME_CHARS)
        day, commit = _DAY.search(group), _COMMIT.search(group)
        facts = ImportFacts(day[0] if day else "", commit[0] if commit else "", "", self.query.sku, f"{name}/")
        key = " ".join((group, *(stamp for _, stamp in files.values())))
        origin = CiOrigin(self.name, artifact=key, name=name, commit=facts.commit, date=facts.date)
        listed = [ArtifactFile(path, size, bytes) for path, (size, _) in files.items()]
        bundle = CiBundle(name, origin, facts, partial(self._open, listed))
        return CiArtifacts(key, name, lambda _known: [bundle])

    @contextmanager
    def _open(self, listed: Sequence[ArtifactFile], folder: Path) -> Iterator[Sequence[ArtifactFile]]:
        if listed[0].path.endswith(_ARCHIVE):
            with open_zipped_files(self._fetch(listed[0], folder)) as files:
                yield files
            return
        readable = [file for file in listed if file.is_readable]
        paths = {file: self._fetch(file, folder / str(number)) for number, file in enumerate(readable)}
        yield [replace(file, read=path.read_bytes) for file, path in paths.items()]

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
