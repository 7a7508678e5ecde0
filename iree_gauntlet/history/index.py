"""The figures of a history in SQLite: what is in its files, for quick reading. It can be deleted, and is made again."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.history.extract import extract
from iree_gauntlet.history.stores import UnreadableError, find_history, open_history
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.history_record import (
    ConfirmedFigure,
    IndexedRun,
    Point,
    Series,
    SeriesKey,
    history_file,
    read_history_file,
)
from iree_gauntlet.records.outcome import read_outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.history.stores import HistoryStore
    from iree_gauntlet.settings import Configuration


# Its tables are those of this number; others are made again.
_VERSION = 3
_FILE = "index.sqlite"
_WAIT_SECONDS = 60.0
_TABLES = """
CREATE TABLE files (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, problem TEXT NOT NULL);
CREATE TABLE runs (
    file TEXT PRIMARY KEY, run TEXT, time TEXT, day TEXT, suite TEXT, state TEXT, exit_code INTEGER, source TEXT,
    iree TEXT, named TEXT, commit_id TEXT, confirms TEXT, machine TEXT, cases INTEGER, figures INTEGER
);
CREATE INDEX runs_by_time ON runs (time);
CREATE TABLE figures (
    file TEXT, model TEXT, submodel TEXT, target TEXT, figure TEXT, sku TEXT, flags TEXT, value REAL,
    disturbed INTEGER, golden REAL, bound REAL, more_is_better INTEGER
);
"""
_READ = """
WITH counted AS MATERIALIZED (
    -- A run that was added before it was resumed, and again after it, is there once: as it has most. So is one that
    -- was imported again with its commit.
    SELECT * FROM runs
    WHERE NOT EXISTS (
        SELECT 1 FROM runs AS other
        WHERE other.run = runs.run AND other.time = runs.time
            AND (other.figures, other.commit_id != '', other.file) > (runs.figures, runs.commit_id != '', runs.file)
    )
)
SELECT model, submodel, target, figure, sku, flags, machine, more_is_better,
       figures.file, run, time, iree, commit_id, value, disturbed, golden, bound, named
FROM figures JOIN counted ON counted.file = figures.file
ORDER BY model, submodel, target, figure, sku, flags, machine, more_is_better, day, time, figures.file
"""
# Columns of a key, in the order of its fields; those of a point follow.
_KEYS = 8
_FORGET = ("DELETE FROM files WHERE name = ?", "DELETE FROM runs WHERE file = ?", "DELETE FROM figures WHERE file = ?")


class HistoryIndex:
    """The index of a history."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store
        self._path = store.beside / _FILE
        # Why files could not be read just now; they are tried again.
        self._unread: list[str] = []

    def update(self) -> None:
        """Bring it to where the history is."""
        there = self._store.stamps()
        with self._open() as database:
            known = dict(database.execute("SELECT name, stamp FROM files"))
            changed = {name for name, stamp in known.items() if there.get(name) != stamp}
            for statement in _FORGET:
                database.executemany(statement, [(name,) for name in changed])
            for name in sorted(there.keys() - (known.keys() - changed)):
                try:
                    data = self._store.read(name)
                except UnreadableError as error:
                    self._unread.append(error.on_one_line)
                else:
                    _take(database, name, there[name], data)

    def series(self) -> tuple[Series, ...]:
        """All series, by their keys."""
        found: dict[SeriesKey, list[Point]] = {}
        with self._open() as database:
            for row in database.execute(_READ):
                model, submodel, target, figure, sku, flags, machine, more = row[:_KEYS]
                key = SeriesKey(model, submodel, target, figure, sku, flags, machine, bool(more))
                file, run, time, iree, commit, value, disturbed, golden, limit, named = row[_KEYS:]
                point = Point(file, run, time, iree, commit, value, bool(disturbed), golden, limit, named)
                found.setdefault(key, []).append(point)
        return tuple(Series(key, tuple(points)) for key, points in found.items())

    def runs(self) -> list[IndexedRun]:
        """All runs, the newest last."""
        with self._open() as database:
            return [IndexedRun(*row) for row in database.execute("SELECT * FROM runs ORDER BY time, file")]

    def confirmations(self) -> tuple[ConfirmedFigure, ...]:
        """What steps were confirmed by, the newest last."""
        with self._open() as database:
            rows = database.execute("SELECT confirms FROM runs WHERE confirms != '{}' ORDER BY time, file")
            return tuple(ConfirmedFigure.from_dict(json.loads(text)) for (text,) in rows)

    def problems(self) -> tuple[str, ...]:
        """Of files that could not be read."""
        with self._open() as database:
            rows = database.execute("SELECT problem FROM files WHERE problem != '' ORDER BY name")
            return (*(problem for (problem,) in rows), *self._unread)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as database, database:
                yield database
        except (OSError, sqlite3.Error) as error:
            what = f"{self._path}: the index of the history cannot be used: {error}"
            raise GauntletError(what, "Make room there or make it writable; it can be deleted, too.") from error

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._make()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            # Damaged: what is in it stands in the history's files.
            self._path.unlink(missing_ok=True)
            return self._make()

    def _make(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=_WAIT_SECONDS)
        try:
            with database:
                # One at a time: two that begin together make the tables once.
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


def _take(database: sqlite3.Connection, name: str, stamp: str, data: bytes) -> None:
    try:
        run = read_history_file(name, data)
    except GauntletError as error:
        database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (name, stamp, error.on_one_line))
        return
    database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, '')", (name, stamp))
    rows = [
        (
            *(name, case.model, case.submodel, case.target, item.name, case.sku, item.flags or case.flags),
            *(item.value, int(item.disturbed), item.golden, item.limit, int(item.more_is_better)),
        )
        for case in run.cases
        for item in case.figures
        # What is no number is in the file, and in no series.
        if math.isfinite(item.value)
    ]
    # Where another process was quicker, these are there.
    database.execute("DELETE FROM figures WHERE file = ?", (name,))
    confirms = json.dumps(run.confirms.as_dict() if run.confirms else {})
    row = IndexedRun(
        *(name, run.run, run.time, run.position[0], run.suite, run.state, run.exit_code, run.source),
        *(run.iree.shown, run.iree.named, run.iree.compiler_commit, confirms),
        *(run.machine.shown, len(run.cases), len(rows)),
    )
    database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(row))
    database.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def add_itself(run_dir: Path, configuration: Configuration, cache: Path) -> None:
    """Add a run that is over to the history of the settings; that this fails is a warning, and no matter of the run.

    `cache` is where clones of remote histories are.
    """
    if not configuration.history.add:
        return
    try:
        runs = extract(read_outcome(read_journal(run_dir / JOURNAL)))
        open_history(find_history(configuration), configuration, cache).add(dict(map(history_file, runs)))
    except GauntletError as error:
        messages.warn(f"the run was not added to the history (`gauntlet history.add {run_dir}` does it): {error}")
