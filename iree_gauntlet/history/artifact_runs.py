"""The runs that the files of a CI artifact describe: records of our own runs, and the files of other tools."""

from __future__ import annotations

import tempfile
import zipfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.zip_members import open_bounded_zip, read_member
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import clean_text, format_bytes, join_lines
from iree_gauntlet.history.extract import extract
from iree_gauntlet.history.imports import UnknownFormatError, parse_figures
from iree_gauntlet.journal_format import JOURNAL, read_journal, read_kind
from iree_gauntlet.recorded import read_json
from iree_gauntlet.records.history_record import make_history_file, read_history_file
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.records.run_before import SUMMARY, RunSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.history.imports import ImportFacts
    from iree_gauntlet.records.history_record import HistoryRun


# The most that is read of an artifact, unpacked: of a file, and of all its files.
MAX_FILE_BYTES, _MAX_BYTES = 64_000_000, 512_000_000
_SUFFIXES = (".json", ".xml")
_SCRIPT = "data.js"
# The beginning of the source of runs of this toolkit.
_OWN = "gauntlet "
_MAX_PATH_CHARS = 120


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file of an artifact; its path is only a name."""

    path: str
    size: int
    read: Callable[[], bytes]

    @property
    def is_readable(self) -> bool:
        """True if the file may contain figures, by its name."""
        name = PurePosixPath(self.path).name
        return name in (JOURNAL, _SCRIPT) or name.endswith(_SUFFIXES)

    @property
    def shown(self) -> str:
        """The path, for people."""
        return join_lines(self.path, _MAX_PATH_CHARS)


@contextmanager
def open_zipped_files(path: Path) -> Iterator[list[ArtifactFile]]:
    """Yield the files of an archive; GauntletError if it is damaged, or not an archive."""
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(open_bounded_zip(path))
        except zipfile.BadZipFile as error:
            raise GauntletError(f"it is damaged: {error}", "It has to be uploaded again.") from error
        members = (info for info in archive.infolist() if not info.is_dir())
        yield [
            ArtifactFile(info.filename, info.file_size, partial(read_member, archive, info, MAX_FILE_BYTES))
            for info in members
        ]


def read_runs(files: Sequence[ArtifactFile], facts: ImportFacts) -> tuple[list[HistoryRun], list[str]]:
    """Read the runs of an artifact, and the problems of files that cannot be read; the others are read nevertheless.

    If a folder has the record of a run, its other files are reports of that run and are left out. So are files in none
    of the formats.
    """
    files = [file for file in files if file.is_readable]
    by_path = {file.path: file for file in files}
    for file in files:
        if by_path[file.path] is not file:
            return [], [f"{file.shown} is there twice"]
    runs: list[HistoryRun] = []
    problems: list[str] = []
    recorded: set[PurePosixPath] = set()
    total = 0
    # The records come first, as they decide which other files are left out.
    ranks = {JOURNAL: 0, SUMMARY: 1}
    for file in sorted(files, key=lambda file: (ranks.get(PurePosixPath(file.path).name, 2), file.path)):
        path = PurePosixPath(file.path)
        if path.name != JOURNAL and recorded.intersection(path.parents):
            continue
        total += file.size
        if total > _MAX_BYTES:
            return runs, [*problems, f"{file.shown} and others: of an artifact, {format_bytes(_MAX_BYTES)} are read"]
        try:
            if path.name == JOURNAL:
                new_runs = _read_journal(file, by_path.get(str(path.parent / SUMMARY)), facts)
            else:
                new_runs = list(parse_figures(Path(clean_text(file.path)), file.read(), facts))
            _require_readable(file, new_runs)
        except UnknownFormatError:
            continue
        except (GauntletError, zipfile.BadZipFile) as error:
            problems.append(error.message if isinstance(error, GauntletError) else f"{file.shown}: {error}")
            new_runs = []
        # A damaged record, too, stands for its folder: its reports would begin other series.
        if path.name == JOURNAL or any(run.source.startswith(_OWN) for run in new_runs):
            recorded.add(path.parent)
        # A run of CI has several files of one name.
        runs += [
            run if run.source.startswith(_OWN) else replace(run, run=f"{facts.run}{file.shown}") for run in new_runs
        ]
    return runs, problems


def _require_readable(file: ArtifactFile, runs: Sequence[HistoryRun]) -> None:
    """Raise a GauntletError if the history could not read its own file of a run: each later command would report it."""
    try:
        for run in runs:
            read_history_file(*make_history_file(run))
    except (GauntletError, ValueError, OverflowError) as error:
        reason = error.message if isinstance(error, GauntletError) else error
        raise GauntletError(f"{file.shown} has values that no history can keep: {reason}") from error


def _read_journal(file: ArtifactFile, summary: ArtifactFile | None, facts: ImportFacts) -> list[HistoryRun]:
    # A run is named by its folder, which the summary knows.
    name = str(PurePosixPath(facts.run) / PurePosixPath(file.path).parent)
    with suppress(ValueError, zipfile.BadZipFile):
        name = RunSummary.from_dict(read_json(summary.read())).run if summary else name
    with tempfile.TemporaryDirectory(prefix="gauntlet-journal-") as folder:
        path = Path(folder) / JOURNAL
        path.write_bytes(file.read())
        kind = read_kind(path)
        # A comparison or a bisection is no run; a matrix has its runs in folders of their own.
        if kind is not None and not kind.is_run:
            return []
        try:
            return [replace(run, run=name) for run in extract(read_outcome(read_journal(path)))]
        except GauntletError as error:
            message = error.message.replace(str(path), file.shown).replace(path.parent.name, name)
            raise GauntletError(message, error.hint) from error
