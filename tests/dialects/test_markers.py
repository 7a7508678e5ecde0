"""Marker expressions: the same meaning as in pytest's `-m`; the deliberate differences are listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.dialects.selection import Include, MarkerExpression
from iree_gauntlet.errors import UsageError
from tests.support.spec_trees import write_tree
from tests.support.torch_trees import TREE, load_torch

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.mark.expression import Expression

# pytest keeps its own to itself: what a future one calls otherwise is no reason to fail.
mark_expression = pytest.importorskip("_pytest.mark.expression")

WORDS = ("hip", "cpu", "a", "b", "local-task", "gfx942", "a.b", "x+y", "1", "None", "a[0]", "a/b", "a\\b", "::", "é")
JUNK = ("&", "|", "!", "AND", "ornot", ",", "=", "'a'", '"', "#", "$", "@", "{", "\u00a0", "a(b=1)", "a(b='c')", "a()")
quick = settings(derandomize=True)

have = st.frozensets(st.sampled_from(WORDS))
words = st.sampled_from(WORDS)
spaces = st.sampled_from(["", " ", "  ", "\t", " \t "])
valid = st.recursive(
    words,
    lambda inner: st.one_of(
        inner.map("not {}".format),
        inner.map("not not {}".format),
        st.builds("({}{}{})".format, spaces, inner, spaces),
        st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("({}){}({})".format, inner, st.sampled_from(["and", "or", " and ", " or not "]), inner),
        st.builds("{}\t{}  not({})".format, inner, st.sampled_from(["and", "or"]), inner),
    ),
    max_leaves=20,
)
tokens = st.lists(st.one_of(words, st.sampled_from(["and", "or", "not", "(", ")", *JUNK])), max_size=7)
scrambled = st.builds(lambda parts, glue: glue.join(parts), tokens, st.sampled_from(["", " ", "\t"]))


def theirs(text: str) -> Expression | None:
    try:
        compiled: Expression = mark_expression.Expression.compile(text)
    except (SyntaxError, UsageError):
        return None
    return compiled


def ours(text: str) -> MarkerExpression | None:
    try:
        return MarkerExpression(text)
    except UsageError:
        return None


def their_value(expression: Expression, markers: frozenset[str]) -> bool:
    return expression.evaluate(lambda name, /, **_: name in markers)


def deliberate(text: str) -> bool:
    """Whether a text is one that is understood otherwise on purpose; each has a test below."""
    has_arguments = "=" in text  # nothing but a marker's arguments has one
    other_space = any(char.isspace() and char not in " \t" for char in text)
    return not text.strip() or has_arguments or other_space


@quick
@given(text=valid, markers=have)
def test_a_valid_expression_has_pytests_value(text: str, markers: frozenset[str]) -> None:
    expression, reference = ours(text), theirs(text)
    assert reference is not None
    assert expression is not None
    assert expression.matches(markers) == their_value(reference, markers)
    # Asked again, and for other markers, it says the same.
    assert expression.matches(set()) == their_value(reference, frozenset())
    assert expression.matches(markers) == their_value(reference, markers)


@quick
@given(text=valid)
def test_the_words_of_an_expression_are_those_that_pytest_asks_for(text: str) -> None:
    expression = ours(text)
    assert expression is not None
    scanner = mark_expression.Scanner(text)
    asked = {token.value for token in [scanner.current, *scanner.tokens] if token.type.value == "identifier"}
    assert expression.words == asked


@quick
@given(text=scrambled, markers=have)
def test_what_pytest_refuses_is_refused_and_what_it_takes_is_taken(text: str, markers: frozenset[str]) -> None:
    if deliberate(text):
        return
    expression, reference = ours(text), theirs(text)
    assert (expression is None) == (reference is None)
    if expression is not None and reference is not None:
        assert expression.matches(markers) == their_value(reference, markers)


@quick
@given(text=st.text(max_size=12), markers=have)
def test_any_text_is_taken_or_refused_as_pytest_does(text: str, markers: frozenset[str]) -> None:
    if deliberate(text):
        return
    expression, reference = ours(text), theirs(text)
    assert (expression is None) == (reference is None)
    if expression is not None and reference is not None:
        assert expression.matches(markers) == their_value(reference, markers)


@pytest.mark.parametrize("text", ["", " ", "\t"])
def test_an_empty_expression_leaves_nothing_out(text: str) -> None:
    # pytest's own is false, and its command line does not ask it: `-m ""` leaves nothing out either.
    expression, reference = ours(text), theirs(text)
    assert expression is not None
    assert reference is not None
    assert expression.matches(set())
    assert not their_value(reference, frozenset())


@pytest.mark.parametrize("text", ["a(b=1)", "a(b='c')", "a(b=True, c=None)", "not a(b=1) or cpu"])
def test_markers_of_a_spec_have_no_arguments(text: str) -> None:
    # They are words in a list: what asks for arguments could match nothing, so it is refused.
    assert theirs(text) is not None
    assert ours(text) is None


@pytest.mark.parametrize("space", ["\n", "\r\n", "\u00a0", "\u3000"])
def test_any_white_space_parts_words(space: str) -> None:
    # A suite file may hold an expression of several lines.
    text = f"hip{space}and{space}not cpu"
    assert theirs(text) is None
    expression = ours(text)
    assert expression is not None
    assert expression.matches({"hip"})
    assert not expression.matches({"hip", "cpu"})


@pytest.mark.parametrize(("text", "most"), [("not ", 100), ("(", 100)])
def test_nesting_is_bounded(text: str, most: int) -> None:
    # What the interpreter's stack would end is refused with a message instead.
    closing = ")" if text == "(" else ""
    assert ours(text * most + "a" + closing * most) is not None
    assert ours(text * (most + 1) + "a" + closing * (most + 1)) is None


@pytest.mark.parametrize("word", [*WORDS, "and_", "nothing", "or.", "True", "-", "."])
def test_every_marker_that_pytest_can_name_can_be_named(word: str) -> None:
    expression = ours(word)
    assert expression is not None
    assert expression.words == {word}
    assert expression.matches({word})
    assert not expression.matches({f"{word}x", word[:-1]})


@pytest.mark.parametrize(
    ("texts", "unknown"),
    [
        (["cpu and quality"], []),
        (["cpuu"], ["cpuu"]),
        (["cpu or not slwo"], ["slwo"]),
        (["(a or text) and b", "c or a"], ["a", "b", "c"]),
        (["CPU"], ["CPU"]),
        ([""], []),
    ],
)
def test_unknown_words_are_told(tmp_path: Path, texts: list[str], unknown: list[str]) -> None:
    cases = load_torch(write_tree(tmp_path, TREE), includes=[Include(markers=text) for text in texts])
    assert list(cases.unknown_markers) == unknown
    assert cases.known_markers == ("benchmark", "compstat", "cpu", "quality", "text")
