"""Write reports next to the experiment's record and into a CI job's summary, and describe the reports' origin."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet import messages
from iree_gauntlet.document import Code, Name, Paragraph, Provenance, TextLink
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.journal_events import EndEvent, ExperimentKind
from iree_gauntlet.journal_format import EXPLAIN_FOLDER, JOURNAL, read_kind
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.reports.render_markdown import render_markdown, shorten_markdown
from iree_gauntlet.settings import find_runs_folder
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.collector import pause_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.document import Block, Document
    from iree_gauntlet.journal_events import Opening
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.records.outcome import RunOutcome


# The page of all experiments in a folder.
INDEX = "index.html"
_PAGES = {
    ExperimentKind.COMPARE: "comparison.html",
    ExperimentKind.MATRIX: "matrix.html",
    ExperimentKind.CODE_DIFF: "code.html",
    ExperimentKind.COMPAT: "compat.html",
    ExperimentKind.QUALIFY: "qualify.html",
}
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
# GitHub rejects a step's complete summary above 1 MiB:
# docs.github.com, "Workflow commands for GitHub Actions", step isolation and limits.
STEP_SUMMARY_LIMIT = 1 << 20
_MIN_SUMMARY_BYTES = 4096
_CUT_NOTE = "*Cut here: this page has reached its largest size. The whole report is in the folder of the run.*"


def make_provenance(
    iree: str, opening: Opening | RunOutcome, files: Iterable[str], end: EndEvent | float | None, longest: str = ""
) -> Provenance:
    """Return a report's origin; `files` are beside it; `end` may be its seconds; `longest` parts took longest."""
    start = datetime.fromisoformat(opening.time).astimezone(UTC) if opening.time else None
    start_text = f"{start:%Y-%m-%d %H:%M} UTC" if start else ""
    machine_info = opening.machine
    cores = f"{machine_info.cores} cores" if machine_info.cores else ""
    memory = format_bytes(machine_info.memory_bytes) if machine_info.memory_bytes else ""
    machine = ", ".join(filter(None, (machine_info.host, machine_info.cpu, cores, memory)))
    origin = (start_text, iree, machine, opening.command, opening.cwd, opening.version)
    return Provenance(*origin, tuple(files), end.seconds if isinstance(end, EndEvent) else end, longest)


@dataclass(frozen=True)
class Reports:
    """The reports of an experiment, made from its record; the same record gives the same bytes.

    A run's reports contain the changes since the previous run, if its folder is next to the run's.

    Attributes:
        files: by name, a function that makes the file; each is called in turn, because the files may be large.
        document: makes the document, given the folder as displayed to the user for a terminal, otherwise None.
        commands: makes the lines of a log that are commands to a CI system, given the environment.
        sweep: the run's journal, if the run is a sweep and so has a sweep's reports too.
    """

    files: Mapping[str, Callable[[], str]]
    document: Callable[[Path | None], Document]
    exit_code: ExitCode
    headline: str
    commands: Callable[[Mapping[str, str]], Sequence[str]] = lambda _environ: ()
    sweep: JournalRecord | None = None

    def write(self, folder: Path) -> None:
        """Write the reports next to the record; see `write_report`."""
        with pause_collector():
            for name, make in self.files.items():
                write_report(folder / name, make(), folder)

    def print(self, folder: Path, stream: TextIO, *, environ: Mapping[str, str], width: int | None = None) -> None:
        """Print the document, at the selected verbosity, as `print_document` does.

        `folder` is the record's folder, as displayed to the user.
        """
        label = f"{folder}: {', '.join(self.files)}"
        document = self.document(folder)
        if messages.is_quiet() and self.exit_code is ExitCode.OK:
            document = document.answer_only
        elif messages.is_verbose():
            document = document.unfolded_document
        print_document(document, stream, label, environ=environ, width=width)

    def append_to_step_summary(self, environ: Mapping[str, str]) -> None:
        """Append the document to the summary of a CI step; see `append_document`."""
        append_document(self.document(None), environ)


def append_document(document: Document, environ: Mapping[str, str]) -> None:
    """Append as much of a document as GitHub accepts to the file in the variable `GITHUB_STEP_SUMMARY`, if it is set.

    GitHub's limit applies to the complete file, which earlier commands of the CI step may have written to. Nothing is
    written if the remaining space is too small for a useful part.
    """
    if not (path_text := environ.get(_STEP_SUMMARY)):
        return
    path = Path(path_text)
    try:
        used = path.stat().st_size if path.exists() else 0
        space = STEP_SUMMARY_LIMIT - used - 1
        if space >= _MIN_SUMMARY_BYTES:
            # Append, because the file belongs to the CI runner and must not be replaced.
            with path.open("ab") as stream:
                stream.write(
                    b"\n" * bool(used) + shorten_markdown(render_markdown(document), space, _CUT_NOTE).encode()
                )
    except OSError as error:
        raise GauntletError(
            f"{path_text}: cannot append the summary: {error.strerror}",
            f"{_STEP_SUMMARY} must name a writable file, or be unset",
        ) from error


def make_pages(
    name: str, document: Callable[[], Document], folder: Path | None = None, links: Sequence[TextLink] = ()
) -> dict[str, Callable[[], str]]:
    """Return functions that make the Markdown file and the page, by file name; the page's head has the links."""
    return {
        f"{name}.md": lambda: render_markdown(document()),
        f"{name}.html": lambda: render_html(document(), (*(list_page_links(folder) if folder else ()), *links)),
    }


def list_page_links(folder: Path) -> Iterator[TextLink]:
    """List links from a page in a folder to what it is a part of, to the index of all runs, and to its explanation."""
    for level, parent in enumerate(folder.absolute().parents[:2], 1):
        if kind := read_kind(parent / JOURNAL):
            yield TextLink(f"the {kind.noun}", "../" * level + _PAGES.get(kind, "summary.html"))
        elif parent == find_runs_folder() or (parent / INDEX).is_file():
            yield TextLink("all runs", "../" * level + INDEX)
    if (folder / EXPLAIN_FOLDER / JOURNAL).is_file():
        yield TextLink("the explanation", f"{EXPLAIN_FOLDER}/explain.html")


def list_next_steps(commands: Iterable[str]) -> list[Block]:
    """Return the commands to go on with, without empty ones; return nothing if there are none."""
    lines = dict.fromkeys(filter(None, commands))
    return [Paragraph(("Next:",)), Code("\n".join(lines), "sh")] if lines else []


def show_continuation(task: str, state: str, folder: Path | None) -> list[Block]:
    """Return the command that continues an experiment; return nothing if it is complete."""
    option = f" --run-dir {folder}" if folder else ""
    command = Name(f"gauntlet {task} --resume{option}")
    return [] if state == "complete" else [Paragraph(("to continue it: ", command))]


def write_report(path: Path, content: str | bytes, folder: Path) -> None:
    """Write one report; an error's hint says that `report FOLDER` can make it again."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise GauntletError(
            f"{path}: cannot write the report: {error.strerror}",
            f"free some space or allow writing, then `report {folder}` writes it again",
        ) from error
