"""The counts of `tools/size.py`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import size

if TYPE_CHECKING:
    from pathlib import Path

TEXT = '''"""A docstring
of two lines."""

# a comment
VALUE = """two
lines"""


class Some:
    """One of a class."""

    def method(self, a, *, b=1):
        """One of a method."""
        return [
            a,  # a comment at the end

            b,
        ]
'''


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring() -> None:
    docstrings = size.find_docstring_lines(ast.walk(ast.parse(TEXT)))
    assert len(size.find_code_lines(TEXT) - docstrings) == 8


def test_parameters_leave_out_the_object() -> None:
    functions = [node for node in ast.walk(ast.parse(TEXT)) if isinstance(node, ast.FunctionDef)]
    assert [size.count_parameters(function) for function in functions] == [2]


SHAPES = """from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import package.other
from package import third


@dataclass
class Parcel:
    one: int
    two: Any


@dataclass
class Whole:
    one: int

    @property
    def twice(self) -> int:
        return 2 * self.one


def read_entry(entry: dict[str, Any]) -> Parcel:
    assert entry is not None
    return Parcel(entry["one"], _second(entry))


def _second(entry):
    return entry.get("two")
"""


def test_what_a_reader_jumps_through_is_counted_by_room(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for name, text in {
        "__init__.py": "",
        "room/__init__.py": "",
        "room/shapes.py": SHAPES,
        "other.py": "class Parcel:\n    pass\n",
        "third.py": "import package.room.shapes\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    measured = size.measure(package)
    counts = {column: measured.rooms["room"][column] for column in size.COLUMNS}
    assert counts == {
        "files": 2,
        "lines": 31,
        "code": 20,
        "docs": 0,
        "imports": 5,
        "keys": 2,
        "any": 2,
        "not_none": 1,
        "crumbs": 1,
        "parcels": 1,
        "functions": 2,
        "nouns": 1,
        "many": 0,
    }
    assert measured.places["crumbs"] == ["package/room/shapes.py:30 _second"]
    assert measured.find_shared_class_names() == ["Parcel"]
    assert measured.find_circles() == [["room/shapes.py", "third.py"]]
    assert measured.longest == (31, "room/shapes.py")


WORDS = '''"""Which names there are."""
# Of two lines,
# one comment.
_given = 1  # what it is
SEED, FED_UP = 2, 3  # noqa: F841


class TakenRound:
    """A round."""

    found: int = 0
    entry_found: int = 0

    def take(self, own, *, asked=(), **others):
        """In a round."""
        own = [found for found in asked]
        own = lambda known: known
        try:
            self.taken = own
        except ValueError as before:
            raise TypeError from before
'''


def test_names_and_sentences_of_no_meaning_are_counted(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(WORDS)
    measured = size.measure(tmp_path)
    places = {
        column: [place.partition(":")[2].partition(" ")[2] for place in measured.places[column]]
        for column in size.WORD_COLUMNS
    }
    assert sorted(places["participles"]) == ["_given", "asked", "found", "found", "known"]
    assert sorted(places["fillers"]) == ["before", "others", "own"]
    assert len(places["names"]) == 11
    assert (places["questions"], places["openers"]) == (["Which names there are."], ["In a round."])
    assert len(places["docstrings"]) == 3
    assert places["comments"] == ["# Of two lines,", "# what it is"] == places["fragments"]
    assert places["verbal"] == ["TakenRound"]
