"""Records that somebody else has changed: any field of any event gives a good report or a message, no traceback."""

from __future__ import annotations

import io
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.history.imports import ImportFacts, import_figures
from iree_gauntlet.history.stores import FolderHistory
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.records.history_record import make_history_file
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.torch_models.reports.sweep_reports import write_micro_reports
from iree_gauntlet.upkeep import history_keep
from iree_gauntlet.upkeep.upkeep_requests import CheckRequest, ExportRequest, HistoryRequest, PageRequest, SeriesRequest
from tests.history.builder import history_bytes, run_of
from tests.history.test_history_imports import ASV, DATA_JS, GOOGLE, JOB_SUMMARY
from tests.support.journal_builder import make_every_verdict
from tests.support.places import DATA
from tests.support.spoiling import JUNK_KINDS, Damage, iterate_damages
from tests.support.whole_records import write_bisect, write_comparison, write_explanation, write_matrix

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _write_recorded(name: str, folder: Path) -> Path:
    folder.mkdir()
    path = folder / "journal.jsonl"
    path.write_bytes((DATA / "recorded" / name / "journal.jsonl").read_bytes())
    return path


# So many tests share the places of a record, as each test has minutes only.
_SHARES = 5
_RECORDS: dict[str, Callable[[Path], Path]] = {
    "run": lambda folder: make_every_verdict().write(folder) / "journal.jsonl",
    "sweep": partial(_write_recorded, "micro"),
    "comparison": write_comparison,
    "bisect": write_bisect,
    "matrix": write_matrix,
    "explanation": write_explanation,
}


def _report(folder: Path) -> None:
    reports = write_reports(folder)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    reports.print(folder, stream, environ={})
    if reports.sweep:
        write_micro_reports(reports.sweep, folder, stream)
    stream.flush()


def _try(act: Callable[[], object], damage: Damage) -> bool:
    """Returns True where it went well, else checks that there is a message which can be printed."""
    said = ""
    try:
        act()
    except GauntletError as error:
        said = str(error)
    except Exception as error:  # noqa: BLE001 - what this is about
        pytest.fail(f"{damage.description}: {type(error).__name__}: {error}")
    assert len(said.encode()) < 2000, damage.description
    return not said


def _damage_record(kind: str, folder: Path, each: int, every: int, first: int = 0) -> None:
    path = _RECORDS[kind](folder / "record")
    _report(path.parent)
    lines = path.read_text(encoding="utf-8").splitlines()
    outcomes = set()
    for number, damage in iterate_damages([json.loads(line) for line in lines], each, every, first):
        text = "\n".join([*lines[:number], damage.text, *lines[number + 1 :]])
        path.write_text(f"{text}\n", encoding="utf-8")
        outcomes.add(_try(partial(_report, path.parent), damage))
    assert outcomes == {True, False}
    # What a record says of folders, nobody's report writes to.
    assert [path.name for path in folder.iterdir()] == ["record"]


@pytest.fixture(autouse=True)
def _nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    # A picture of each sweep takes a second.
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


@pytest.mark.parametrize("kind", _RECORDS)
def test_a_damaged_record_is_a_report_or_a_message(kind: str, tmp_path: Path) -> None:
    # All places, with all junk, are for `nox -s stress`.
    _damage_record(kind, tmp_path, 1, every=3)


@pytest.mark.stress
@pytest.mark.parametrize("share", range(_SHARES))
@pytest.mark.parametrize("kind", _RECORDS)
def test_every_damage_of_every_place_of_a_record(kind: str, share: int, tmp_path: Path) -> None:
    _damage_record(kind, tmp_path, JUNK_KINDS, _SHARES, share)


def _use_history(store: str) -> None:
    """What reads a history; a file that cannot be read is said, and ends none of them."""
    history_keep.check(CheckRequest(store=store), as_json=False)
    history_keep.page(PageRequest(store=store))
    history_keep.list_runs(HistoryRequest(store=store), as_json=False)
    history_keep.export(ExportRequest(store=store))
    history_keep.show(SeriesRequest(store=store), as_json=True)


@pytest.mark.parametrize("content", [GOOGLE, DATA_JS, ASV, JOB_SUMMARY])
def test_a_damaged_file_of_another_tool_is_imported_or_a_message(content: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    for _, damage in iterate_damages([content], JUNK_KINDS):
        file.write_text(damage.text, encoding="utf-8")
        _try(lambda: [*map(make_history_file, import_figures(file, ImportFacts("2026-04-24")))], damage)


def _damage_history(folder: Path, each: int) -> None:
    store = FolderHistory("history", folder / "history", folder)
    (folder / "gauntlet.toml").touch()
    for day in range(1, 9):
        store.add(dict([history_bytes(run_of(day, iree=f"3.{day}.0").as_dict())]))
    confirms = {"case": "toy/abs@cpu", "figure": "time_ms", "before": "3.7.0", "after": "3.8.0", "ratio": 1.1}
    document = run_of(9, iree="3.9.0", more={"confirms": confirms}).as_dict()
    document["cases"][0]["figures"][0] |= {"rounds": [1.0, 2.0], "golden": 1.0, "limit": 2.0, "statistic": "mean"}
    for _, damage in iterate_damages([document], each):
        name, data = history_bytes(damage.text)
        store.add({name: data})
        assert _try(partial(_use_history, str(folder / "history")), damage), damage.description
        store.remove([name])


def test_a_damaged_file_of_a_history_ends_nothing(tmp_path: Path) -> None:
    _damage_history(tmp_path, 1)


@pytest.mark.stress
def test_every_damage_of_every_place_of_a_file_of_a_history(tmp_path: Path) -> None:
    _damage_history(tmp_path, JUNK_KINDS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "is not a JSON object: it is nested more than 64 levels deep"),
        (
            '{"event":"run","a":' + "[" * 70 + "]" * 70 + "}",
            "is not a JSON object: it is nested more than 64 levels deep",
        ),
        ('{"event":"run","a":1' + "0" * 400 + "}", "is not a JSON object: a number has more than 64 bits: 1000"),
        ('{"event":"run","a":1' + "0" * 5000 + "}", "is not a JSON object: a number has more than 64 bits: 1000"),
        ('{"event":"run","a":NaN}', "is not a JSON object: NaN is not a valid number in JSON"),
        ("[1]", "is not a JSON object: it is another type of value"),
    ],
)
def test_what_no_reader_follows_is_said_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"event":"run"}}\n{text}\n{{"event":"end"}}\n', encoding="utf-8")
    with pytest.raises(GauntletError) as caught:
        read_events(path)
    assert caught.value.message.startswith(f"{path}:2: the line {says}")


def test_half_a_character_is_read_as_one_that_stands_for_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event":"run","a\\uD800":"\\ud83d\\ude00 \\udcff"}\n', encoding="ascii")
    (event,) = read_events(path)
    assert event == {"event": "run", "a\ufffd": "\U0001f600 \ufffd"}
