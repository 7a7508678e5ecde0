"""What every report has: where it is from, and where it is written: beside its record, and into a CI job's summary."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet import messages
from iree_gauntlet.document import Provenance
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.reports.render_markdown import render_markdown, shortened
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.collector import pause_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.document import Document
    from iree_gauntlet.journal_events import Opening
    from iree_gauntlet.journal_format import JournalRecord


_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
# GitHub refuses a step's summary above 1 MiB as a whole:
# docs.github.com, "Workflow commands for GitHub Actions", step isolation and limits.
STEP_SUMMARY_LIMIT = 1 << 20
_SMALLEST_USEFUL = 4096
_CUT = "*Cut here: this page may not be longer. The whole report is in the folder of the run.*"


def provenance(iree: str, opening: Opening, files: Iterable[str], seconds: float | None = None) -> Provenance:
    """Where a report is from, for its page's head and foot; `files` lie beside it, one that goes on took None."""
    started = f"{datetime.fromisoformat(opening.time).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if opening.time else ""
    facts = opening.machine
    cores = f"{facts.cores} cores" if facts.cores else ""
    memory = byte_size(facts.memory_bytes) if facts.memory_bytes else ""
    machine = ", ".join(filter(None, (facts.host, facts.cpu, cores, memory)))
    return Provenance(started, iree, machine, opening.command, opening.cwd, opening.version, tuple(files), seconds)


def count_seconds_between(begin: str, end: str) -> float | None:
    """From the time of one event of a record to that of another, its last; None where there is none."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() if begin and end else None


@dataclass(frozen=True)
class Reports:
    """The reports of an experiment, made from its record: the same record gives the same bytes.

    A run's name what changed since the run before, where that lies beside it.

    Attributes:
        files: what makes each of them, by name; one after the other, since of ten thousand cases each is large.
        document: what people read; it is given the folder, as the user knows it, for a terminal, and None elsewhere.
        commands: what a CI system reads in a log, given the environment.
        sweep: the journal of a run that is one, and has the reports of one too.
    """

    files: Mapping[str, Callable[[], str]]
    document: Callable[[Path | None], Document]
    exit_code: ExitCode
    headline: str
    commands: Callable[[Mapping[str, str]], Sequence[str]] = lambda _environ: ()
    sweep: JournalRecord | None = None

    def write(self, folder: Path) -> None:
        """Write them next to the record; see `write_report`."""
        with pause_collector():
            for name, make in self.files.items():
                write_report(folder / name, make(), folder)

    def print(self, folder: Path, stream: TextIO, *, environ: Mapping[str, str], width: int | None = None) -> None:
        """Print what people read, as much of it as is wanted, as `print_document` does.

        The folder is that of the record, as the user knows it.
        """
        where = f"{folder}: {', '.join(self.files)}"
        document = self.document(folder)
        if messages.is_quiet() and self.exit_code is ExitCode.OK:
            document = document.brief
        elif messages.is_verbose():
            document = document.whole
        print_document(document, stream, where, environ=environ, width=width)

    def append_to_step_summary(self, environ: Mapping[str, str]) -> None:
        """Append what people read to the summary of a CI step; see `append_document`."""
        append_document(self.document(None), environ)


def append_document(document: Document, environ: Mapping[str, str]) -> None:
    """Append a document to the file that `GITHUB_STEP_SUMMARY` names, where there is one, as much as GitHub takes.

    The limit is one of the whole file, which earlier commands of the same CI step may have written to. Nothing is
    written where no room is left for a useful part.
    """
    if not (named := environ.get(_STEP_SUMMARY)):
        return
    path = Path(named)
    try:
        used = path.stat().st_size if path.exists() else 0
        room = STEP_SUMMARY_LIMIT - used - 1
        if room >= _SMALLEST_USEFUL:
            # The file is the runner's: it is appended to, not replaced.
            with path.open("ab") as stream:
                stream.write(b"\n" * bool(used) + shortened(render_markdown(document), room, _CUT).encode())
    except OSError as error:
        raise GauntletError(
            f"{named}: cannot append the summary: {error.strerror}",
            f"{_STEP_SUMMARY} must name a file that can be written, or not be set",
        ) from error


def make_pages(name: str, document: Callable[[], Document]) -> dict[str, Callable[[], str]]:
    """What makes the files that people read, Markdown and a page, by their names."""
    return {f"{name}.md": lambda: render_markdown(document()), f"{name}.html": lambda: render_html(document())}


def write_report(path: Path, content: str | bytes, folder: Path) -> None:
    """Write one report, which `report FOLDER` makes again."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise GauntletError(
            f"{path}: cannot write the report: {error.strerror}",
            f"make room or give the right to write, then `report {folder}` makes it again",
        ) from error
