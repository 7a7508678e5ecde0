"""The texts of sides and variants, and the change of flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.engine.varying import replace_flags
from iree_gauntlet.errors import UsageError
from iree_gauntlet.variants import split_side

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ("3.13.0", ("3.13.0", ())),
        ("3.13.0+O3", ("3.13.0", ("O3",))),
        ("installed+data-tiling+O3", ("installed", ("data-tiling", "O3"))),
        ("+O3", ("", ("O3",))),
        ("commit:89ece87b+O3", ("commit:89ece87b", ("O3",))),
        ("build:/nowhere+O3", ("build:/nowhere", ("O3",))),
        (">=3.9,<3.12", (">=3.9,<3.12", ())),
    ],
)
def test_a_side_is_an_iree_and_variants(text: str, side: tuple[str, tuple[str, ...]]) -> None:
    assert split_side(text) == side


def test_a_folder_keeps_the_plus_signs_of_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a+b"
    folder.mkdir()
    assert split_side(f"build:{folder}") == (f"build:{folder}", ())
    assert split_side(f"build:{folder}+O3") == (f"build:{folder}", ("O3",))


@pytest.mark.parametrize("text", ["3.13.0+", "3.13.0++O3", "3.13.0+a b"])
def test_a_side_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected names of variants after the plus sign"):
        split_side(text)


@pytest.mark.parametrize(
    ("words", "new_words", "removed", "expected"),
    [
        (["--a=1", "--b"], ["--a=2"], [], ("--a=2", "--b")),
        (["--a=1", "--b"], ["--c"], [], ("--a=1", "--b", "--c")),
        (["--a", "1", "--b"], ["--a=2"], [], ("--a=2", "--b")),
        (["-a=1"], ["--a=2"], [], ("--a=2",)),
        (["--a=1", "--b", "--a=2"], ["--a=3", "--a=4"], [], ("--a=3", "--a=4", "--b")),
        (["--a=1", "--b"], [], ["--a"], ("--b",)),
        # A word after a flag with a value is not the value of that flag.
        (["--a=1", "x", "--b"], ["--a=2"], [], ("--a=2", "x", "--b")),
        # An older name of the flag is replaced too.
        (
            ["--iree-dispatch-creation-experimental-data-tiling=false"],
            ["--iree-dispatch-creation-data-tiling"],
            [],
            ("--iree-dispatch-creation-data-tiling",),
        ),
    ],
)
def test_flags_replace_those_of_the_same_name(
    words: list[str], new_words: list[str], removed: list[str], expected: tuple[str, ...]
) -> None:
    assert replace_flags(words, new_words, removed) == expected


_FLAGS = st.lists(st.from_regex(r"--[a-f](=[0-9])?", fullmatch=True))


@given(words=_FLAGS, new_words=_FLAGS, removed=_FLAGS)
def test_new_flags_are_complete_and_other_flags_keep_their_order(
    words: list[str], new_words: list[str], removed: list[str]
) -> None:
    result = replace_flags(words, new_words, removed)
    new_names = {word.partition("=")[0] for word in new_words}
    removed_names = {word.partition("=")[0] for word in removed}
    assert sorted(word for word in result if word.partition("=")[0] in new_names) == sorted(new_words)
    others = [word for word in words if word.partition("=")[0] not in new_names | removed_names]
    assert [word for word in result if word.partition("=")[0] not in new_names] == others
    assert replace_flags(result, new_words, removed) == result
