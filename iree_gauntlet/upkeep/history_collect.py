"""`history.collect`: add what CI has kept to a history, before it is deleted.

The state is in the history itself, so any machine can go on: each collected run names its artifact, and a `collection`,
a small file for each time that something new was there, names the runs of CI that are settled. An artifact that is
damaged at its source is settled, too; one that could not be downloaded is tried again the next time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import __version__, messages
from iree_gauntlet.artifacts.publishing import explain_disk_errors
from iree_gauntlet.artifacts.remote import MissingError, TransientError
from iree_gauntlet.artifacts.transfer import Policy
from iree_gauntlet.cache_folders import make_cache_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.formatting import format_duration, join_lines, list_first, parse_bytes, pluralize
from iree_gauntlet.history.artifact_runs import read_runs
from iree_gauntlet.history.ci_sources import (
    ArtifactQuery,
    CiArtifacts,
    CiSource,
    FolderSource,
    GitHubSource,
    UnfitArtifactError,
)
from iree_gauntlet.history.index import HistoryIndex
from iree_gauntlet.history.stores import find_history, open_history
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.history_record import COLLECTION, CiOrigin, HistoryRun, make_history_file
from iree_gauntlet.settings import find_project_folder
from iree_gauntlet.upkeep.history_keep import parse_day

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from iree_gauntlet.history.ci_sources import CiBundle
    from iree_gauntlet.history.stores import HistoryStore
    from iree_gauntlet.requests import NetworkRequest
    from iree_gauntlet.upkeep.upkeep_requests import ArtifactsRequest


_GITHUB = "github:"
# After so many downloads that fail one after the other, the network or the server is at fault.
_MAX_FAILURES = 3
# A killed process loses at most the downloads of so many runs of CI.
_BATCH = 50
_REPORT_SECONDS = 60.0
_MAX_NAMED, _MAX_NAME_CHARS = 5, 100


def wait_visibly(event: threading.Event, seconds: float) -> None:
    """Wait for an event, and say each minute how long the rest is."""
    while seconds > 0 and not event.wait(min(seconds, _REPORT_SECONDS)):
        seconds -= _REPORT_SECONDS
        if seconds > 0:
            messages.report_progress(f"waiting for {format_duration(seconds)} more")


class _Notes(Progress):
    """A receiver that prints the notes of downloads, such as the waits that a server asks for."""

    def note(self, url: str, message: str) -> None:
        """Print a note."""
        messages.report_progress(f"{url}: {message}")


def collect(
    request: ArtifactsRequest, network: NetworkRequest, wait: Callable[[threading.Event, float], object] = wait_visibly
) -> ExitCode:
    """Collect what is new; ERROR if an artifact could not be read.

    Raises:
        NothingSelectedError: there are artifacts, but none matches, nor did any in an earlier collection.
    """
    settings = read_configuration(find_project_folder(), os.environ)
    policy = Policy(
        retries=settings.retries,
        longest_wait=60 * request.max_wait,
        stall_timeout=network.timeout_stall,
        max_bytes=parse_bytes(request.max_download, "--max-download"),
        wait=wait,
    )
    since = str(parse_day(request.since, "--since")) if request.since else ""
    query = ArtifactQuery(request.artifact, request.workflow, request.branch, since, request.sku)
    store = open_history(request.store or find_history(settings), settings, make_cache_folder(request.cache_dir))
    with tempfile.TemporaryDirectory(prefix="gauntlet-collect-") as name:
        work = Path(name)
        source: CiSource
        if request.source.startswith(_GITHUB):
            repository = request.source.removeprefix(_GITHUB)
            source = GitHubSource.open(repository, query, os.environ, work, policy, _Notes())
        elif request.source:
            source = FolderSource.open(request.source, query, settings, policy, _Notes())
        else:
            hint = "Name a source: gauntlet history.collect github:OWNER/REPO --workflow FILE --artifact GLOB."
            raise UsageError("history.collect: from where?", hint)
        index = HistoryIndex(store)
        index.update()
        collector = _Collector(store, source, index.find_collected(), work / "artifact")
        try:
            with explain_disk_errors(work, source.name):
                collector.collect()
        finally:
            collector.store_pending()
            sys.stdout.write(f"{source.name}: {collector.counts.describe(store.place)}\n")
    counts = collector.counts
    return ExitCode.ERROR if counts.expired or counts.problems or counts.failed else ExitCode.OK


@dataclass(slots=True)
class _CollectionCounts:
    """The numbers of one collection: of runs of CI, settled now or `earlier`, of artifacts, and of added runs."""

    settled: int = 0
    earlier: int = 0
    artifacts: int = 0
    empty: int = 0
    expired: int = 0
    problems: int = 0
    failed: int = 0
    runs: int = 0

    def describe(self, store: str) -> str:
        """Return the numbers in one line."""
        parts = [
            f"{pluralize(self.settled, 'run')} of CI, {pluralize(self.artifacts, 'artifact')}",
            f"{pluralize(self.runs, 'run')} added to {store}",
        ]
        rare = ("without figures", self.empty), ("expired", self.expired), ("not read", self.problems)
        parts += [f"{count} {text}" for text, count in (*rare, ("not fetched", self.failed)) if count]
        earlier = f"; {pluralize(self.earlier, 'run')} of CI already settled" if self.earlier else ""
        return f"{', '.join(parts)}{earlier}"


@dataclass(slots=True)
class _Collector:
    """One collection; what is pending is not in the store yet."""

    store: HistoryStore
    source: CiSource
    origins: tuple[CiOrigin, ...]
    folder: Path
    counts: _CollectionCounts = field(default_factory=_CollectionCounts)
    _pending: list[HistoryRun] = field(default_factory=list)
    _settled: list[str] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)
    _expired: list[str] = field(default_factory=list)
    _failures: int = 0
    _is_fresh: bool = False

    def collect(self) -> None:
        """Collect all runs of CI that are not settled, the oldest first, since these expire first."""
        known = [origin for origin in self.origins if origin.source == self.source.name]
        settled = {run for origin in known if origin.selection == self.source.selection for run in origin.settled}
        artifacts = {origin.artifact for origin in known}
        groups = self.source.list_groups()
        self._is_fresh = not settled
        new_groups = [group for group in groups if group.key not in settled]
        self.counts.earlier = len(groups) - len(new_groups)
        for number, group in enumerate(new_groups, start=1):
            self._collect_group(group, artifacts)
            if number % _BATCH == 0:
                self.store_pending()
                messages.report_progress(f"{number} of {pluralize(len(new_groups), 'run')} of CI")
        if self._matches_nothing:
            glob = self.source.query.artifact
            names = get_close_matches(glob, self.source.names, n=_MAX_NAMED) or sorted(self.source.names)
            hint = f"There are {list_first([join_lines(name, _MAX_NAME_CHARS) for name in names], _MAX_NAMED)}."
            raise NothingSelectedError(f"{self.source.name}: no artifact matches {glob}", hint)

    @property
    def _matches_nothing(self) -> bool:
        """True if none of the listed artifacts has ever been asked for, which is probably a typo."""
        names, glob = self.source.names, self.source.query.artifact
        return self._is_fresh and bool(names) and not any(fnmatchcase(name, glob) for name in names)

    def _collect_group(self, group: CiArtifacts, known: set[str]) -> None:
        try:
            bundles = [bundle for bundle in group.list_bundles(known) if bundle.origin.artifact not in known]
        except ArtifactError as error:
            self._record_failure(group.title, error, is_general=True)
            return
        settled = [self._collect_bundle(bundle) for bundle in bundles]
        if all(settled):
            self._settled.append(group.key)
            self.counts.settled += 1

    def _collect_bundle(self, bundle: CiBundle) -> bool:
        """Collect an artifact; return whether it is settled."""
        if bundle.is_expired:
            self._expired.append(bundle.title)
            return True
        try:
            with bundle.open(self.folder) as files:
                self._failures = 0
                runs, problems = read_runs(files, bundle.facts)
        except MissingError:
            self._expired.append(bundle.title)
            return True
        except ArtifactError as error:
            self._record_failure(bundle.title, error, is_general=not isinstance(error, UnfitArtifactError))
            return False
        except GauntletError as error:
            runs, problems = [], [error.message]
        else:
            self.counts.artifacts += 1
            self.counts.empty += not (runs or problems)
        self._problems += [f"{bundle.title}: {problem}" for problem in problems]
        for problem in problems:
            messages.warn(f"{bundle.title}: {problem}")
        for run in runs:
            # An imported file must not confirm anything.
            extra = {name: value for name, value in run.more.items() if name != "confirms"}
            self._pending.append(replace(run, more={**extra, "collected": bundle.origin.as_dict()}))
        return True

    def _record_failure(self, title: str, error: ArtifactError, *, is_general: bool) -> None:
        """Warn about a download that will be tried again the next time.

        Raises:
            GauntletError: all others would fail too: by a rate limit, or after several general failures in a row.
        """
        self.counts.failed += 1
        self._failures += is_general
        messages.warn(f"{title}: {error.on_one_line}")
        cause = error.__cause__
        if self._failures >= _MAX_FAILURES or (isinstance(cause, TransientError) and cause.wait is not None):
            hint = "What was collected is kept. Run the command again, after that time, to go on."
            raise GauntletError(f"{self.source.name}: stopped: {error.message}", hint) from error

    def store_pending(self) -> None:
        """Add what was collected to the history, in one step; nothing is settled as long as no artifact matches."""
        if self._matches_nothing:
            return
        if self._expired:
            names = list_first(self._expired, _MAX_NAMED)
            messages.warn(f"{pluralize(len(self._expired), 'artifact')} expired: {names}")
        self.counts.expired += len(self._expired)
        self.counts.problems += len(self._problems)
        files = dict(map(make_history_file, self._pending))
        state = CiOrigin(
            self.source.name,
            self.source.selection,
            settled=tuple(self._settled),
            problems=(*self._problems, *(f"{title}: expired" for title in self._expired)),
        )
        collection = HistoryRun(
            run=f"collection of {self.source.name}",
            time=datetime.now(UTC).isoformat(),
            cases=(),
            state=COLLECTION,
            source=f"gauntlet {__version__}",
            more={"collected": state.as_dict()},
        )
        files |= dict([make_history_file(collection)]) if self._settled else {}
        self.counts.runs += (self.store.add(files) if files else 0) - bool(self._settled)
        self._pending, self._settled, self._problems, self._expired = [], [], [], []
