"""Make the page of all experiments in a folder of runs, newest first; entries stored in the page are not read again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from iree_gauntlet.document import ColouredCell, Document, Paragraph, Table, TextLink
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.formatting import Column, ColumnKind, pluralize
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.reports.render_html import ENDINGS, read_memory, render_html
from iree_gauntlet.reports.report_files import INDEX, write_report
from iree_gauntlet.settings import format_path
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from iree_gauntlet.document import Cell
    from iree_gauntlet.reports.report_files import Reports


# Only pages of this toolkit contain this text.
_PAGE_MARK = "<footer>IREE Gauntlet"
# An update after a run reads only the newest new folders, at most this many.
_MAX_NEW_FOLDERS = 20
_COLUMNS = (
    Column("verdict", ColumnKind.VERDICT),
    Column("run", ColumnKind.NAME),
    Column("result"),
    Column("started", ColumnKind.NUMBER, "UTC"),
    Column("took", ColumnKind.DURATION),
    Column("IREE"),
    Column("command", ColumnKind.NAME),
)
_PAGES = (
    *("results/results.html", "summary.html", "comparison.html", "matrix.html", "bisect.html", "explain.html"),
    *("code.html", "compat.html", "qualify.html"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexEntry(Recorded):
    """The page's information on a folder.

    Attributes:
        stamp: the state of the folder's journal; if the stamp changes, the folder is read again.
        code, meaning: the exit code, and its meaning; None and empty if the experiment is unfinished or unreadable.
    """

    stamp: str
    code: ExitCode | None = None
    meaning: str
    result: str
    started: str
    seconds: float | None = None
    iree: str
    command: str


def write_index(
    folder: Path,
    make: Callable[[Path], Reports],
    *,
    all_of_them: bool = False,
    existing: Mapping[str, Reports] | None = None,
) -> tuple[Path, int]:
    """Write the page of a folder of runs.

    Args:
        folder: the folder with the runs.
        make: makes the reports of an experiment's folder.
        all_of_them: True to read all new folders.
        existing: reports that exist already, by the name of their folder.

    Returns:
        The page's path, and the number of folders in the page.

    Raises:
        UsageError: a page of another tool has the page's path.
        GauntletError: the page cannot be written.
    """
    path = folder / INDEX
    old_entries = _read_entries(path)
    states: dict[str, FileState] = {}
    for subfolder in folder.iterdir():
        # Skip folders that have no journal, or that have just been removed.
        with suppress(OSError):
            states[subfolder.name] = FileState.of((subfolder / JOURNAL).stat())
    sorted_states = sorted(states.items(), key=lambda pair: pair[1].mtime_ns, reverse=True)
    entries: dict[str, _IndexEntry] = {}
    read_count = 0
    for name, state in sorted_states:
        stamp = "-".join(map(str, state))
        if name in old_entries and old_entries[name].stamp == stamp:
            entries[name] = old_entries[name]
        elif all_of_them or read_count < _MAX_NEW_FOLDERS:
            read_count += 1
            entries[name] = _read_entry(folder / name, make, (existing or {}).get(name), stamp)
    omitted_count = len(sorted_states) - len(entries)
    write_report(path, render_html(_make_document(folder, entries, omitted_count)), folder)
    return path, len(entries)


def _read_entries(path: Path) -> dict[str, _IndexEntry]:
    """Read the entries that the present page stores."""
    try:
        page = path.read_bytes().decode(errors="replace")
    except OSError:
        return {}
    if page and _PAGE_MARK not in page:
        raise UsageError(
            f"{format_path(path)} exists but is not a page of runs: it was left unchanged", "Move it away."
        )
    try:
        memory = read_json((read_memory(page) or "{}").encode())
        return {name: _IndexEntry.from_dict(memory[name]) for name in memory if isinstance(memory, dict)}
    except ValueError:
        # Without entries, or with entries in another version's format, everything is read again.
        return {}


def _read_entry(folder: Path, make: Callable[[Path], Reports], existing: Reports | None, stamp: str) -> _IndexEntry:
    try:
        document = (existing or make(folder)).document(None)
    except GauntletError as error:
        document = Document("", error.on_one_line, (), ())
    origin = document.provenance
    return _IndexEntry(
        stamp=stamp,
        code=document.exit_code,
        meaning=document.ending.partition(": ")[2],
        result="; ".join(filter(None, (document.answer, document.first_failure))),
        started=origin.started.removesuffix(" UTC"),
        seconds=origin.seconds,
        iree=origin.iree,
        command=origin.command,
    )


def _make_document(folder: Path, entries: Mapping[str, _IndexEntry], omitted_count: int) -> Document:
    rows: list[tuple[Cell, ...]] = []
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].started, pair[0]), reverse=True):
        page = next((page for page in _PAGES if (folder / name / page).is_file()), "")
        run = TextLink(name, f"{quote(name)}/{page}") if page else name
        verdict: Cell = "unfinished"
        if entry.code is not None:
            verdict = ColouredCell(entry.meaning, ENDINGS.get(entry.code, "inconclusive"))
        cells = (entry.result, entry.started, entry.seconds, entry.iree, entry.command)
        rows.append((verdict, run, *cells))
    note = f"{pluralize(omitted_count, 'older folder')} not read yet: gauntlet report --index reads all."
    failure_count = sum(entry.code not in (None, ExitCode.OK) for entry in entries.values())
    return Document(
        "Runs",
        f"{pluralize(len(entries), 'run')}, {failure_count} not as expected",
        (str(folder),),
        (Table(_COLUMNS, tuple(rows)), *((Paragraph((note,)),) if omitted_count else ())),
        stored_data=json.dumps({name: entry.as_dict() for name, entry in entries.items()}, separators=(",", ":")),
    )
