"""What `tools/size.py` counts."""

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
    counts = measured.rooms["room"]
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
