"""Edits of the lists of expected failures in configs: the rest of the author's text stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.dialects.json_text import read_plain_json
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.upkeep.json_edits import EXPECTED_LISTS, Addition, Removal, read_spans, with_changes

COMPILE, COMPILE_CRASH, RUN, RUN_CRASH = EXPECTED_LISTS

_CONFIG = """\
// The CPU, without optimizations.
{
  "config_name": "cpu", // as upstream calls it
  "iree_compile_flags": ["--iree-hal-target-device=local", "--iree-opt-level=O0"],
  "expected_compile_failures": [
    "ops/test_add", // f64 (see the tracker)
    "ops/test_cast",

    // The shape is not constant,
    // which nothing can be done about.
    "ops/test_dim",
    "ops/test_dim_1d",

    // Slow as well.
    "ops/test_fft" // needs complex numbers
  ],
  "expected_run_failures": ["ops/test_x", "ops/test_z"],
  "golden_times_ms": {}
}
"""


def _without(text: str, *lines: str) -> str:
    for line in lines:
        assert text.count(line) == 1
        text = text.replace(line, "")
    return text


def test_an_entry_goes_with_the_comment_on_its_line() -> None:
    changed = with_changes(_CONFIG, [Removal(COMPILE, "ops/test_add")])
    assert changed == _without(_CONFIG, '    "ops/test_add", // f64 (see the tracker)\n')


def test_a_comment_above_stays_while_it_may_be_about_another_entry() -> None:
    once = with_changes(_CONFIG, [Removal(COMPILE, "ops/test_dim")])
    assert once == _without(_CONFIG, '    "ops/test_dim",\n')
    twice = with_changes(once, [Removal(COMPILE, "ops/test_dim_1d")])
    both = with_changes(_CONFIG, [Removal(COMPILE, "ops/test_dim"), Removal(COMPILE, "ops/test_dim_1d")])
    assert twice == both
    assert "not constant" not in both
    assert '"ops/test_cast",\n\n    // Slow as well.\n    "ops/test_fft" // needs' in both


def test_the_last_one_leaves_neither_a_comma_nor_a_blank_line_behind() -> None:
    changed = with_changes(_CONFIG, [Removal(COMPILE, "ops/test_fft")])
    assert '    "ops/test_dim_1d"\n  ],\n' in changed


def test_a_new_entry_comes_where_a_sorted_list_asks_for_it() -> None:
    changed = with_changes(
        _CONFIG,
        [Addition(COMPILE, "ops/test_bad", "compile: no such thing (IREE 3.13.0)"), Addition(COMPILE, "ops/zz", "x")],
    )
    new = '    "ops/test_bad", // compile: no such thing (IREE 3.13.0)\n'
    assert f'// f64 (see the tracker)\n{new}    "ops/test_cast",\n' in changed
    assert '    "ops/test_fft", // needs complex numbers\n    "ops/zz" // x\n  ],\n' in changed


def test_a_list_in_no_order_gets_it_at_its_end_and_keeps_its_last_comma() -> None:
    text = '{\n\t"expected_compile_failures": [\n\t\t"b",\n\t\t"a", // a\n\t],\n}\n'
    changed = with_changes(text, [Addition(COMPILE, "aa", "r")])
    assert changed == '{\n\t"expected_compile_failures": [\n\t\t"b",\n\t\t"a", // a\n\t\t"aa", // r\n\t],\n}\n'


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("[]", [Addition(RUN, "b", "r"), Addition(RUN, "a", "q")], '[\n    "a", // q\n    "b" // r\n  ]'),
        ("[\n  ]", [Addition(RUN, "a", "q")], '[\n    "a" // q\n  ]'),
        ('["a", "c"]', [Addition(RUN, "b", "r */ s")], '["a", "b" /* r * / s */, "c"]'),
        ('["b"]', [Addition(RUN, "a", "r")], '["a" /* r */, "b"]'),
        ('[ "a" ]', [Addition(RUN, "b", "r")], '[ "a", "b" /* r */ ]'),
        ('["a", "b", "c"]', [Removal(RUN, "b")], '["a", "c"]'),
        ('["a", "b", "c"]', [Removal(RUN, "a")], '["b", "c"]'),
        ('["a", "b" /* r */]', [Removal(RUN, "b")], '["a"]'),
        ('["a", "b", "c"]', [Removal(RUN, "c"), Removal(RUN, "b"), Removal(RUN, "a")], "[]"),
        ('["a"]', [Removal(RUN, "a"), Addition(RUN, "b", "r")], '[\n    "b" // r\n  ]'),
        ('[\n    "a", "b", // two\n    "c"\n  ]', [Removal(RUN, "b")], '[\n    "a", // two\n    "c"\n  ]'),
        ('[\n    "a", "b", // two\n    "c"\n  ]', [Removal(RUN, "a")], '[\n    "b", // two\n    "c"\n  ]'),
        ('[\n    "a", "b", // two\n    "c"\n  ]', [Removal(RUN, "a"), Removal(RUN, "b")], '[\n    "c"\n  ]'),
        ('[ // none?\n    "a"\n  ]', [Removal(RUN, "a")], "[ // none?\n  ]"),
        ('[\n    "a"\n    , "b"\n  ]', [Removal(RUN, "a")], '[\n    "b"\n  ]'),
        ('[\n    "a", "a",\n  ]', [Removal(RUN, "a")], "[]"),
    ],
)
def test_lists_of_every_form(before: str, changes: list[Removal | Addition], after: str) -> None:
    frame = '{{\n  "config_name": "cpu",\n  "expected_run_failures": {}\n}}\n'
    assert with_changes(frame.format(before), changes) == frame.format(after)


def test_a_list_that_is_missing_becomes_a_field() -> None:
    changed = with_changes(_CONFIG, [Addition(COMPILE_CRASH, "ops/b", "SIGFPE"), Addition(COMPILE_CRASH, "ops/a", "")])
    field = '  "expected_compile_crashes": [\n    "ops/a",\n    "ops/b" // SIGFPE\n  ],\n'
    assert changed == _CONFIG.replace('  "expected_run_failures"', f'{field}  "expected_run_failures"')
    assert with_changes('{"config_name": "a"}', [Addition(RUN, "b", "r")]) == (
        '{"config_name": "a", "expected_run_failures": ["b" /* r */]}'
    )
    assert json.loads(read_plain_json(with_changes("{}", [Addition(RUN, "b", "r")]))) == {RUN: ["b"]}


def test_the_ends_of_lines_stay_what_they_are() -> None:
    text = _CONFIG.replace("\n", "\r\n")
    changes: list[Removal | Addition] = [Removal(COMPILE, "ops/test_dim"), Addition(COMPILE, "ops/new", "r")]
    changes.append(Addition(RUN_CRASH, "ops/c", "s"))
    assert with_changes(text, changes) == with_changes(_CONFIG, changes).replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        ('{"expected_run_failures": ["a"]}', Removal(RUN, "b"), "b is not in expected_run_failures"),
        ('{"expected_run_failures": ["a"]}', Addition(RUN, "a"), "a is already in expected_run_failures"),
        ("{}", Removal(RUN, "b"), "b is not in"),
        ('{"expected_run_failures": 1}', Addition(RUN, "a"), "is not a list of expected failures"),
        ("{}", Addition("golden_times_ms", "a"), "is not a list of expected failures"),
        ('{"a": 1, "a": 2}', Addition(RUN, "a"), "a key appears twice"),
        ("[1, 2]", Addition(RUN, "a"), "is not an object"),
        ('{"a": [}', Addition(RUN, "a"), "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(text: str, change: Removal | Addition, message: str) -> None:
    with pytest.raises(GauntletError, match=message):
        with_changes(text, [change])


@pytest.mark.parametrize("text", ["", "1", '{"a" 1}', "{a: 1}", '["a" "b"]', "[1] 2", '{"a": /', "[", "]"])
def test_what_is_no_document_has_no_places(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_spans(text)


_NAMES = st.text(st.sampled_from("abcé/_\"\\,]'*"), min_size=1, max_size=4)
_LINE_REMARK = st.sampled_from(["", " // why", ' // "a", ]', " /* x */", "  "])
_ABOVE = st.sampled_from(["", "\n", "    // above\n", "    /* two\n lines */\n", "\n    // far\n\n", "\t\n"])
_REASONS = st.text(max_size=200)


@st.composite
def _lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    entries = draw(st.lists(_NAMES, max_size=5))
    if draw(st.booleans()):
        entries.sort()
    last = draw(st.booleans())
    if draw(st.booleans()):
        gap = draw(st.sampled_from(["", " ", " /* in */ ", "\n"]))
        inner = f",{gap}".join(json.dumps(entry) for entry in entries)
        return f"[{gap}{inner}{',' if last and entries else ''}{gap}]", entries
    lines = [draw(_LINE_REMARK) + "\n"]
    for number, entry in enumerate(entries, start=1):
        comma = "," if last or number < len(entries) else ""
        end = "" if comma and draw(st.integers(0, 5)) == 0 else draw(_LINE_REMARK) + "\n"
        lines += [draw(_ABOVE) if lines[-1].endswith("\n") else " ", f"    {json.dumps(entry)}{comma}{end}"]
    return f"[{''.join(lines)}{draw(_ABOVE)}  ]", entries


@st.composite
def _cases(draw: st.DrawFn) -> tuple[str, list[Removal | Addition], dict[str, list[str]], dict[str, set[str]]]:
    """A config, changes, its lists before, and what they hold after."""
    fields = {'"config_name"': '"c"', '"other"': draw(st.sampled_from(["{}", '[1, "a"]', '{"a": [2,],}', "-1e5"]))}
    before: dict[str, list[str]] = {}
    changes: list[Removal | Addition] = []
    after: dict[str, set[str]] = {}
    for name in EXPECTED_LISTS:
        if draw(st.booleans()):
            fields[f'"{name}"'], before[name] = draw(_lists())
        entries = before.get(name, [])
        gone = draw(st.sets(st.sampled_from(entries))) if entries else set()
        new = [entry for entry in draw(st.lists(_NAMES, unique=True, max_size=3)) if entry not in entries]
        changes += [Removal(name, entry) for entry in sorted(gone)]
        changes += [Addition(name, entry, draw(_REASONS)) for entry in new]
        after[name] = {*entries, *new} - gone
    order = draw(st.permutations(list(fields)))
    separator = draw(st.sampled_from([", ", ",\n  ", ", // f\n\n  "]))
    body = separator.join(f"{key}: {fields[key]}" for key in order)
    end = draw(st.sampled_from(["", ",", "\n", ", // end\n"]))
    text = draw(st.sampled_from(["", "// top\n", "\ufeff"])) + f"{{\n  {body}{end}}}\n"
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))), draw(st.permutations(changes)), before, after


@given(_cases())
def test_what_is_read_after_is_what_was_meant(
    case: tuple[str, list[Removal | Addition], dict[str, list[str]], dict[str, set[str]]],
) -> None:
    text, changes, before, after = case
    changed = with_changes(text, changes)
    found: dict[str, Any] = json.loads(read_plain_json(changed).removeprefix("\ufeff"))
    for name, entries in after.items():
        assert set(found.get(name, [])) == entries
        kept = [entry for entry in before.get(name, []) if entry in entries]
        assert [entry for entry in found.get(name, []) if entry in before.get(name, [])] == kept
        if before.get(name, []) == sorted(before.get(name, [])):
            assert found.get(name, []) == sorted(found.get(name, []))
    if not changes:
        assert changed == text
    # Comments that are about no entry stay whatever goes, all of them where nothing goes.
    always, mostly = ("// top", "// f\n", "// far", "// end"), ("// above", "/* two", "// why", "/* x */", "/* in */")
    removed = any(isinstance(change, Removal) for change in changes)
    for remark in always if removed else (*always, *mostly):
        assert changed.replace("\r", "").count(remark) >= text.replace("\r", "").count(remark)
