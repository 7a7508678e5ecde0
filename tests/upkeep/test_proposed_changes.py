"""Diffs of hand-written files: each applies, and gives the proposed content."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.upkeep.spec_goldens import FileChange
from tests.support.unified_diff import apply_diff

# Few different lines, so that they are found again elsewhere; with ends that Python takes for ends of a line, and no
# other program does.
_LINES = st.sampled_from(
    ["a", "b", "c", "", " ", "-", "+x", "@@ -1 +1 @@", "\\ No newline", "d\r", "e\x0cf", "g\u2028h"]
)
_TEXTS = st.tuples(st.lists(_LINES, max_size=12), st.sampled_from(["\n", ""])).map(
    lambda parts: "\n".join(parts[0]) + (parts[1] if parts[0] else "")
)


@given(before=_TEXTS, after=_TEXTS)
def test_a_diff_makes_what_was_proposed(before: str, after: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_bytes(before.encode())
        diff = FileChange(Path("spec.json"), before, after).diff()
        if before == after:
            assert diff == ""
            return
        apply_diff(Path(folder), diff)
        assert path.read_bytes().decode() == after


# As `git diff` writes it. `git apply` refuses what the test below makes of it, but for numbers of lines that are off.
_OF_GIT = """\
--- a/spec.json
+++ b/spec.json
@@ -1,4 +1,5 @@
 one
-two
+2
+and more
 three
 four
@@ -8,3 +9,3 @@
 eight
 nine
-ten
\\ No newline at end of file
+10
"""
_BEFORE = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten"


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("@@ -1,4 +1,5 @@", "@@ -1,4 +1,4 @@"),
        ("@@ -1,4 +1,5 @@", "@@ -1,5 +1,6 @@"),
        ("@@ -1,4 +1,5 @@", "@@ -2,4 +2,5 @@"),
        ("@@ -8,3 +9,3 @@", "@@ -8,3 +8,3 @@"),
        ("@@ -8,3 +9,3 @@", "@@ -3,3 +4,3 @@"),
        ("@@ -1,4 +1,5 @@", "@ -1,4 +1,5 @"),
        (" three", " drei"),
        ("-two", "-zwei"),
        ("+2\n", "2\n"),
        ("\\ No newline at end of file\n", ""),
        ("+++ b/spec.json", "+++ b/other.json"),
        ("--- a/spec.json\n", ""),
    ],
)
def test_a_diff_with_a_defect_is_none(was: str, becomes: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(_BEFORE)
    with pytest.raises(ValueError, match=r"\w"):
        apply_diff(tmp_path, _OF_GIT.replace(was, becomes, 1))
    path.write_text(_BEFORE)
    apply_diff(tmp_path, _OF_GIT)
    assert path.read_text() == "one\n2\nand more\nthree\nfour\nfive\nsix\nseven\neight\nnine\n10\n"


def test_the_diff_of_an_absolute_path_is_relative_to_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specs").mkdir()
    monkeypatch.chdir(tmp_path)
    diff = FileChange(tmp_path / "specs" / "a.json", "1\n", "2\n").diff()
    assert diff.splitlines()[:2] == ["--- a/specs/a.json", "+++ b/specs/a.json"]
