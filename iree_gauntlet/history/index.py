"""An index of a history's figures in SQLite, for fast reading. A deleted index is rebuilt from the history's files."""

from __future__ import annotations

import json
import math
import shlex
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import list_first, pluralize
from iree_gauntlet.history.extract import extract
from iree_gauntlet.history.stores import UnreadableError, find_history, open_history
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, read_journal, read_kind
from iree_gauntlet.records.history_record import (
    COLLECTION,
    IMPORTED,
    CiOrigin,
    FigureConfirmation,
    Point,
    RunIndexEntry,
    Series,
    SeriesKey,
    VerdictPoint,
    make_history_file,
    read_history_file,
)
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.settings import format_path
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from iree_gauntlet.history.stores import HistoryStore
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.settings import Configuration


# The version of the tables; tables of another version are rebuilt.
_VERSION = 7
_FILE = "index.sqlite"
# The verdicts of cases that were judged; expected failures and skipped cases say nothing about a rate of failures.
_JUDGED_VERDICTS = ("passed", "failed", "error", "flaky", "quarantined")
_WAIT_SECONDS = 60.0
_MAX_NAMES = 5
_TABLES = """
CREATE TABLE files (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, problem TEXT NOT NULL);
CREATE TABLE runs (
    file TEXT PRIMARY KEY, run TEXT, time TEXT, day TEXT, suite TEXT, state TEXT, exit_code INTEGER, source TEXT,
    iree TEXT, named TEXT, commit_id TEXT, confirms TEXT, machine TEXT, skus TEXT, cases INTEGER, figures INTEGER,
    collected TEXT
);
CREATE INDEX runs_by_time ON runs (time);
CREATE TABLE figures (
    file TEXT, model TEXT, submodel TEXT, target TEXT, figure TEXT, sku TEXT, flags TEXT, value REAL,
    disturbed INTEGER, golden REAL, bound REAL, more_is_better INTEGER, first_value REAL
);
CREATE TABLE verdicts (
    file TEXT, model TEXT, submodel TEXT, target TEXT, sku TEXT, flags TEXT, verdict TEXT, reason TEXT, quarantine TEXT
);
"""
_COUNTED_RUNS = """
WITH counted AS MATERIALIZED (
    -- A run that was added before it was resumed, and again after it, is there once: as it has most. So is one that
    -- was imported again with its commit. A run on several machines has an entry for each.
    SELECT * FROM runs
    WHERE NOT EXISTS (
        SELECT 1 FROM runs AS other
        WHERE other.run = runs.run AND other.time = runs.time AND other.machine = runs.machine
            AND (other.figures, other.commit_id != '', other.file) > (runs.figures, runs.commit_id != '', runs.file)
    )
)
"""
_SELECT_SERIES = """
SELECT model, submodel, target, figure, sku, flags, machine, more_is_better,
       figures.file, run, time, iree, commit_id, value, disturbed, golden, bound, named, first_value
FROM figures JOIN counted ON counted.file = figures.file
ORDER BY model, submodel, target, figure, sku, flags, machine, more_is_better, day, time, figures.file
"""
_SELECT_VERDICTS = """
SELECT model, submodel, target, sku, machine, flags, run, time, iree, commit_id, verdict, reason, quarantine
FROM verdicts JOIN counted ON counted.file = verdicts.file
ORDER BY model, submodel, target, sku, machine, flags, day, time, verdicts.file
"""
# The number of columns of a key, in the order of its fields; columns of a point follow.
_KEY_COLUMNS = 8
_DELETE_ROWS = ("DELETE FROM figures WHERE file = ?", "DELETE FROM verdicts WHERE file = ?")
_DELETE = ("DELETE FROM files WHERE name = ?", "DELETE FROM runs WHERE file = ?", *_DELETE_ROWS)


class HistoryIndex:
    """The index of a history."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store
        self._path = store.local_dir / _FILE
        # Errors of files that could not be read in this process; the next update reads them again.
        self._read_errors: list[str] = []

    def update(self) -> None:
        """Update the index to the history's files."""
        stamps = self._store.list_stamps()
        with self._open() as database:
            indexed_stamps = dict(database.execute("SELECT name, stamp FROM files"))
            outdated = {name for name, stamp in indexed_stamps.items() if stamps.get(name) != stamp}
            for statement in _DELETE:
                database.executemany(statement, [(name,) for name in outdated])
            for name in sorted(stamps.keys() - (indexed_stamps.keys() - outdated)):
                try:
                    data = self._store.read(name)
                except UnreadableError as error:
                    self._read_errors.append(error.on_one_line)
                else:
                    _insert_run(database, name, stamps[name], data)

    def series(self) -> tuple[Series, ...]:
        """Read all series, with their keys."""
        points_by_key: dict[SeriesKey, list[Point]] = {}
        with self._open() as database:
            for row in database.execute(_COUNTED_RUNS + _SELECT_SERIES):
                model, submodel, target, figure, sku, flags, machine, more_is_better = row[:_KEY_COLUMNS]
                key = SeriesKey(model, submodel, target, figure, sku, flags, machine, bool(more_is_better))
                file, run, time, iree, commit, value, disturbed, golden, limit, iree_arg, first_value = row[
                    _KEY_COLUMNS:
                ]
                point = Point(
                    file, run, time, iree, commit, value, bool(disturbed), golden, limit, iree_arg, first_value
                )
                points_by_key.setdefault(key, []).append(point)
        return tuple(Series(key, tuple(points)) for key, points in points_by_key.items())

    def read_verdicts(self) -> dict[tuple[str, str, str], list[VerdictPoint]]:
        """Read the verdicts on each case, by case, SKU and machine, in order of the runs; of the newest flags only."""
        by_flags: dict[tuple[str, str, str], dict[str, list[VerdictPoint]]] = {}
        with self._open() as database:
            for model, submodel, target, sku, machine, flags, *point in database.execute(
                _COUNTED_RUNS + _SELECT_VERDICTS
            ):
                key = f"{model}/{submodel}" + (f"@{target}" if target else ""), sku, machine
                by_flags.setdefault(key, {}).setdefault(flags, []).append(VerdictPoint(*point))
        return {key: max(groups.values(), key=lambda points: points[-1].time) for key, groups in by_flags.items()}

    def runs(self) -> list[RunIndexEntry]:
        """Read all runs, the newest last."""
        with self._open() as database:
            rows = database.execute("SELECT * FROM runs WHERE state != ? ORDER BY time, file", (COLLECTION,))
            return [RunIndexEntry(*row) for row in rows]

    def read_skus(self) -> set[str]:
        """Read the SKUs of all cases."""
        with self._open() as database:
            rows = database.execute("SELECT sku FROM figures UNION SELECT sku FROM verdicts").fetchall()
        return {sku for (sku,) in rows if sku}

    def find_collected(self) -> tuple[CiOrigin, ...]:
        """Read what was collected from CI: the origins of runs, and the runs of CI that are settled."""
        with self._open() as database:
            rows = database.execute("SELECT collected FROM runs WHERE collected != '{}' ORDER BY time, file")
            return tuple(CiOrigin.from_dict(json.loads(text)) for (text,) in rows)

    def confirmations(self) -> tuple[FigureConfirmation, ...]:
        """Read the results of confirmations, the newest last."""
        with self._open() as database:
            rows = database.execute("SELECT confirms FROM runs WHERE confirms != '{}' ORDER BY time, file")
            return tuple(FigureConfirmation.from_dict(json.loads(text)) for (text,) in rows)

    def problems(self) -> tuple[str, ...]:
        """Read the problems of files that could not be read."""
        with self._open() as database:
            rows = database.execute("SELECT problem FROM files WHERE problem != '' ORDER BY name")
            return (*(problem for (problem,) in rows), *self._read_errors)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as database, database:
                yield database
        except (OSError, sqlite3.Error) as error:
            message = f"{self._path}: the index of the history cannot be used: {error}"
            raise GauntletError(message, "Make room there or make it writable; it can also be deleted.") from error

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._make()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            # The file is damaged; its contents can be rebuilt from the history's files.
            self._path.unlink(missing_ok=True)
            return self._make()

    def _make(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=_WAIT_SECONDS)
        try:
            with database:
                # The transaction keeps two processes from creating the tables at the same time.
                database.execute("BEGIN IMMEDIATE")
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version != _VERSION:
                    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                        database.execute(f'DROP TABLE "{table}"')
                    for statement in filter(str.strip, _TABLES.split(";")):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            database.close()
            raise
        return database


def _insert_run(database: sqlite3.Connection, name: str, stamp: str, data: bytes) -> None:
    try:
        run = read_history_file(name, data)
    except GauntletError as error:
        database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (name, stamp, error.on_one_line))
        return
    database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, '')", (name, stamp))
    rows = [
        (
            *(name, case.model, case.submodel, case.target, figure.name, case.sku, figure.flags or case.flags),
            *(
                figure.value,
                int(figure.disturbed),
                figure.golden,
                figure.limit,
                int(figure.more_is_better),
                figure.first_value,
            ),
        )
        for case in run.cases
        for figure in case.figures
        # A value that is not finite stays in the file, but has no series.
        if math.isfinite(figure.value)
    ]
    verdicts = [
        (name, case.model, case.submodel, case.target, case.sku, case.flags, case.verdict, case.reason, case.quarantine)
        for case in run.cases
        # In a run that did not end, an error may be of a step that never ran.
        if run.state in ("complete", IMPORTED) and case.verdict in _JUDGED_VERDICTS
    ]
    # Remove these rows first, because another process may have inserted them, too.
    for statement in _DELETE_ROWS:
        database.execute(statement, (name,))
    database.executemany("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", verdicts)
    confirms = json.dumps(run.confirms.as_dict() if run.confirms else {})
    row = RunIndexEntry(
        *(name, run.run, run.time, run.position[0], run.suite, run.state, run.exit_code, run.source),
        *(run.iree.shown, run.iree.named, run.iree.compiler_commit, confirms),
        *(run.machine.shown, ", ".join(sorted({case.sku for case in run.cases} - {""})), len(run.cases), len(rows)),
        json.dumps(run.collected.as_dict() if run.collected else {}),
    )
    database.execute(
        "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(row)
    )
    database.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def explain_new_sku(record: JournalRecord, store: HistoryStore) -> str:
    """Return a reason not to add a run: a SKU that no golden of its specs and no run in the history has; else empty.

    A mistyped SKU would begin series of its own.
    """
    steps = record.planned
    golden_skus = {golden.sku for step in steps for golden in (*step.goldens, *step.idle_goldens)}
    golden_skus.update(*(opening.golden_skus for opening in record.runs))
    new_skus = {step.sku for step in steps} - {"", *golden_skus}
    if not new_skus:
        return ""
    index = HistoryIndex(store)
    index.update()
    known_skus = sorted(index.read_skus() | golden_skus - {""})
    problems = index.problems()
    unread = f"; {pluralize(len(problems), 'file')} there cannot be read: {problems[0]}" if problems else ""
    there = f" (known SKUs: {list_first(known_skus, _MAX_NAMES)})" if known_skus else ""
    return "; ".join(
        f"no golden is for the SKU {sku} of {format_path(record.path.parent)}, and no run in {store.place} has it"
        f"{did_you_mean(sku, known_skus)}{there}{unread}"
        for sku in sorted(new_skus.difference(known_skus))
    )


def describe_remedy(folders: Iterable[Path]) -> str:
    """Return the next step for runs with a new SKU."""
    command = shlex.join(["gauntlet", "history.add", *map(str, folders), "--new-sku"])
    return f"If the SKU is right: `{command}`. If it is mistyped, run again with the right one."


def add_run(run_dir: Path, configuration: Configuration, cache: Path) -> None:
    """Add a finished run to the history of the settings; a failure only prints a warning, and does not fail the run.

    Runs inside of other experiments than a matrix are left out, and those that only fetched files. A run with a new SKU
    is left out with a warning. `cache` has the clones of remote histories.
    """
    outer_kinds = {read_kind(folder / JOURNAL) for folder in run_dir.absolute().parents}
    if outer_kinds - {None, ExperimentKind.MATRIX}:
        return
    try:
        record = read_journal(run_dir / JOURNAL)
        outcome = read_outcome(record)
        if all(step.stage is Stage.FETCH for chain in outcome.cases for step in chain.steps):
            return
        store = open_history(find_history(configuration), configuration, cache)
        if reason := explain_new_sku(record, store):
            messages.warn(f"the run was not added to the history: {reason}\n  {describe_remedy([run_dir])}")
        else:
            store.add(dict(map(make_history_file, extract(outcome))))
    except GauntletError as error:
        messages.warn(f"the run was not added to the history (`gauntlet history.add {run_dir}` adds it): {error}")
