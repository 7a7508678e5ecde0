"""Edits of specs: each changes one value, and no other character."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.dialects.json_text import find_line, find_path
from iree_gauntlet.upkeep.json_edits import with_added_value, with_value

_KEYS = st.text('ab.[0]"é', min_size=1, max_size=4)
_VALUES = st.recursive(
    st.integers(-9, 9) | st.floats(-9, 9) | st.text('a{}[]:,"\\', max_size=4) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)
_STYLES = st.sampled_from([{}, {"indent": 4}, {"indent": "\t"}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, (*path, index))]
    return [(path, value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@given(st.dictionaries(_KEYS, _VALUES, max_size=4), _STYLES, st.integers(0, 10**9) | st.floats(0, 1e9), st.data())
def test_another_number_at_its_place_alone(
    document: dict[str, Any], style: dict[str, Any], value: float, data: st.DataObject
) -> None:
    text = json.dumps(document, **style)
    for path, _ in [(path, leaf) for path, leaf in _leaves(document) if _is_number(leaf)]:
        changed = with_value(text, path, value)
        expected = json.loads(text)
        holder = expected
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] = value
        assert json.loads(changed) == expected
        start = next((i for i, (a, b) in enumerate(zip(text, changed, strict=False)) if a != b), len(text))
        assert changed[:start] == text[:start]
        assert find_line(changed, path) == find_line(text, path)
    for path, leaf in _leaves(document):
        if isinstance(leaf, str):
            assert with_value(text, path, leaf + "ü") != text
        if not _is_number(leaf) and path:
            with pytest.raises(KeyError):
                with_value(text, path, 1)


@given(st.dictionaries(_KEYS, _VALUES, max_size=4))
def test_a_path_that_is_found_leads_to_a_value(document: dict[str, Any]) -> None:
    for path, _ in _leaves(document):
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        value: Any = document
        for part in find_path(document, dotted):
            value = value[part]


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("golden_time_ms.mi300", ("golden_time_ms", "mi300")),
        ("golden_time_ms.epyc.2c", ("golden_time_ms", "epyc.2c")),
        ("tests[1].value", ("tests", 1, "value")),
        ("", ()),
    ],
)
def test_fields_as_messages_name_them(field: str, path: tuple[str | int, ...]) -> None:
    document = {"golden_time_ms": {"mi300": 1, "epyc.2c": 2}, "tests": [0, {"value": 3}]}
    assert find_path(document, field) == path


@pytest.mark.parametrize("field", ["golden_time_ms.mi30", "tests[7]", "tests[1].valu", "tests[x]", "nothing"])
def test_fields_that_are_not_there(field: str) -> None:
    with pytest.raises(KeyError):
        find_path({"golden_time_ms": {"mi300": 1}, "tests": [0, {"value": 3}]}, field)


def test_line_endings_and_comments_of_style_stay() -> None:
    text = '{\r\n\t"golden_time_ms" :  { "mi300":0.50 ,\r\n "mi250" : 1e3 }\r\n}\r\n'
    assert with_value(text, ("golden_time_ms", "mi250"), 7) == text.replace("1e3", "7")


@given(
    st.dictionaries(_KEYS, st.dictionaries(_KEYS, st.integers(), max_size=2), max_size=3),
    _STYLES,
    st.lists(_KEYS, min_size=1, max_size=3),
    st.sampled_from([1, 2.5, 3.0, "3.13.0"]),
)
def test_an_added_value_is_all_that_changes(
    document: dict[str, Any], style: dict[str, Any], path: list[str], value: float | str
) -> None:
    holder: Any = document
    for key in path[:-1]:
        holder = holder.get(key, {}) if isinstance(holder, dict) else None
    if not isinstance(holder, dict) or path[-1] in holder:
        return
    text = json.dumps(document, **style)
    expected = json.loads(text)
    holder = expected
    for key in path[:-1]:
        holder = holder.setdefault(key, {})
    holder[path[-1]] = value
    changed = with_added_value(text, path, value)
    assert json.loads(changed) == expected
    assert with_added_value(f"// of mine\n{text}", path, value) == f"// of mine\n{changed}"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ('{\n    "a": 1\n}\n', '{\n    "a": 1,\n    "golden_dispatch": {"cpu": 2}\n}\n'),
        # It follows the other goldens, and a comment stays with its line.
        (
            '{\r\n\t"golden_size": {}, // small\r\n\t"markers": []\r\n}',
            '{\r\n\t"golden_size": {}, // small\r\n\t"golden_dispatch": {"cpu": 2},\r\n\t"markers": []\r\n}',
        ),
        ('{\n  "a": 1  // last\n}', '{\n  "a": 1,  // last\n  "golden_dispatch": {"cpu": 2}\n}'),
        ('{"golden_dispatch": {"rack": 3}}', '{"golden_dispatch": {"rack": 3, "cpu": 2}}'),
        ('{\n"golden_dispatch": {\n  "rack": 3\n }\n}', '{\n"golden_dispatch": {\n  "rack": 3,\n  "cpu": 2\n }\n}'),
        ('{"golden_dispatch": 7}', None),
    ],
)
def test_a_golden_is_added_in_the_style_of_its_file(text: str, changed: str | None) -> None:
    path = ("golden_dispatch", "cpu")
    if changed is None:
        with pytest.raises(KeyError):
            with_added_value(text, path, 2.0)
    else:
        assert with_added_value(text, path, 2.0) == changed
