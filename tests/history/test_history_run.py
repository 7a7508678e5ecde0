"""Files of a history: they are read as written; damaged and newer files are recognized."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.records.history_record import (
    HistoryCase,
    HistoryFigure,
    is_history_file,
    make_history_file,
    read_history_file,
)
from tests.history.builder import run_of

_TEXT = st.text(max_size=20)
_FIGURES = st.builds(
    HistoryFigure,
    name=_TEXT,
    value=st.floats(allow_nan=False, allow_infinity=False),
    rounds=st.lists(st.floats(0, 1e9), max_size=3).map(tuple),
    disturbed=st.booleans(),
    golden=st.none() | st.floats(0, 1e9),
)
_CASES = st.builds(
    HistoryCase, model=_TEXT, submodel=_TEXT, target=_TEXT, figures=st.lists(_FIGURES, max_size=3).map(tuple)
)


@given(st.lists(_CASES, max_size=3).map(tuple), _TEXT)
@settings(max_examples=60)
def test_what_is_written_is_read(cases: tuple[HistoryCase, ...], suite: str) -> None:
    run = run_of(1, cases=cases, suite=suite)
    name, data = make_history_file(run)
    assert is_history_file(name)
    assert read_history_file(name, data) == run
    assert make_history_file(run) == (name, data)


@pytest.mark.parametrize("harm", [lambda data: data[:-20], lambda data: data.replace(b"10.0", b"99.0"), lambda _: b""])
def test_what_was_changed_or_cut_short_is_known_for_it(harm: Any) -> None:
    name, data = make_history_file(run_of(1))
    with pytest.raises(GauntletError, match="its content does not match its name"):
        read_history_file(name, harm(data))


def test_a_file_of_a_newer_version_says_so_and_a_newer_field_is_passed_over() -> None:
    def named(content: dict[str, Any]) -> tuple[str, bytes]:
        import hashlib  # noqa: PLC0415 - as the names are made

        data = json.dumps(content).encode()
        return f"20260301T100000Z-{hashlib.sha256(data).hexdigest()[:20]}.json", data

    content = json.loads(make_history_file(run_of(1))[1])
    with pytest.raises(GauntletError, match="written by a newer version"):
        read_history_file(*named(content | {"schema": 2}))
    assert read_history_file(*named(content | {"colour": "blue"})) == run_of(1)
    with pytest.raises(GauntletError, match="cannot be read: run: is missing"):
        read_history_file(*named({"schema": 1}))


@pytest.mark.parametrize(
    ("version", "day"),
    [("3.8.0rc20251010", "20251010"), ("3.9.0", "20260301"), ("", "20260301"), ("3.14.0.dev20261101", "20261101")],
)
def test_runs_stand_in_the_order_of_their_irees(version: str, day: str) -> None:
    assert run_of(1, iree=version).position[0] == day
