"""The page of all that was recorded in a folder of runs, the newest first; what it knows, it does not read again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from iree_gauntlet.document import ColouredCell, Column, ColumnKind, Document, Paragraph, Table, TextLink
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, read_kind
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.reports.render_html import ENDINGS, read_memory, render_html
from iree_gauntlet.reports.report_files import write_report
from iree_gauntlet.settings import shown
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from iree_gauntlet.document import Cell
    from iree_gauntlet.reports.report_files import Reports


INDEX = "index.html"
# What a page of ours has, and others' do not.
_OURS = "<footer>IREE Gauntlet"
# Of folders that are new to it, a page that is made by the way reads so many, the newest.
_MOST_NEW = 20
_COLUMNS = (
    Column("verdict", ColumnKind.VERDICT),
    Column("run", ColumnKind.NAME),
    Column("what"),
    Column("result"),
    Column("started", unit="UTC"),
    Column("took", ColumnKind.DURATION),
    Column("IREE"),
    Column("command"),
)
_PAGES = ("results/results.html", "summary.html", "comparison.html", "matrix.html", "bisect.html", "explain.html")
_WORDS = {
    ExitCode.OK: "as expected",
    ExitCode.FAILED: "failed",
    ExitCode.USAGE: "error",
    ExitCode.ERROR: "error",
    ExitCode.INCONCLUSIVE: "inconclusive",
    ExitCode.NOTHING_SELECTED: "nothing",
    ExitCode.INTERRUPTED: "interrupted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexEntry(Recorded):
    """What is known of a folder.

    Attributes:
        stamp: the state of its journal; with another one it is read again.
        kind: of the experiment, for people.
        code: its exit code; None for one that has not finished, or cannot be read.
    """

    stamp: str
    kind: str
    code: ExitCode | None = None
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
    made: Mapping[str, Reports] | None = None,
) -> tuple[Path, int]:
    """Write the page of a folder of runs.

    Args:
        folder: that has the runs.
        make: what makes the reports of an experiment's folder.
        all_of_them: whether however many are new to the page are read.
        made: reports that are made already, by the name of their folder.

    Returns:
        The page, and how many folders it lists.

    Raises:
        UsageError: there is another page in its place.
        GauntletError: it cannot be written.
    """
    path = folder / INDEX
    known = _read_remembered(path)
    states: dict[str, FileState] = {}
    for below in folder.iterdir():
        # It may have no journal, or have just been removed.
        with suppress(OSError):
            states[below.name] = FileState.of((below / JOURNAL).stat())
    found = sorted(states.items(), key=lambda item: item[1].mtime_ns, reverse=True)
    entries: dict[str, _IndexEntry] = {}
    read = 0
    for name, state in found:
        stamp = "-".join(map(str, state))
        if name in known and known[name].stamp == stamp:
            entries[name] = known[name]
        elif all_of_them or read < _MOST_NEW:
            read += 1
            entries[name] = _read_entry(folder / name, make, (made or {}).get(name), stamp)
    left = len(found) - len(entries)
    write_report(path, render_html(_make_document(folder, entries, left)), folder)
    return path, len(entries)


def _read_remembered(path: Path) -> dict[str, _IndexEntry]:
    """What the page that is there remembers."""
    try:
        page = path.read_bytes().decode(errors="replace")
    except OSError:
        return {}
    if page and _OURS not in page:
        raise UsageError(f"{shown(path)} is there, and no page of runs: it stays as it is", "Move it away.")
    try:
        memory = read_json((read_memory(page) or "{}").encode())
        return {name: _IndexEntry.from_dict(memory[name]) for name in memory if isinstance(memory, dict)}
    except ValueError:
        # There is none, or it is of another version: everything is read again.
        return {}


def _read_entry(folder: Path, make: Callable[[Path], Reports], made: Reports | None, stamp: str) -> _IndexEntry:
    known = read_kind(folder / JOURNAL) or ExperimentKind.RUN
    kind = ExperimentKind.RUN.noun if known.is_run else known.noun
    try:
        document = (made or make(folder)).document(None)
    except GauntletError as error:
        return _IndexEntry(stamp=stamp, kind=kind, result=error.on_one_line, started="", iree="", command="")
    origin, code = document.provenance, document.exit_code
    started = origin.started.removesuffix(" UTC")
    return _IndexEntry(
        stamp=stamp,
        kind=kind,
        code=code,
        result=document.answer,
        started=started,
        seconds=origin.seconds,
        iree=origin.iree,
        command=origin.command,
    )


def _make_document(folder: Path, entries: Mapping[str, _IndexEntry], left: int) -> Document:
    rows: list[tuple[Cell, ...]] = []
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].started, item[0]), reverse=True):
        page = next((page for page in _PAGES if (folder / name / page).is_file()), "")
        run = TextLink(name, f"{quote(name)}/{page}") if page else name
        verdict: Cell = "unfinished"
        if entry.code is not None:
            code = ExitCode(entry.code)
            verdict = ColouredCell(_WORDS[code], ENDINGS.get(code, "inconclusive"))
        known = (entry.result, entry.started, entry.seconds, entry.iree, entry.command)
        rows.append((verdict, run, entry.kind, *known))
    more = f"{counted(left, 'older folder')} not looked at yet: gauntlet report --index reads all."
    bad = sum(entry.code not in (None, ExitCode.OK) for entry in entries.values())
    return Document(
        "Runs",
        f"{counted(len(entries), 'run')}, {bad} not as expected",
        (str(folder),),
        (Table(_COLUMNS, tuple(rows)), *((Paragraph((more,)),) if left else ())),
        memory=json.dumps({name: entry.as_dict() for name, entry in entries.items()}, separators=(",", ":")),
    )
