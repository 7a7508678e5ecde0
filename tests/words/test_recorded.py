"""Objects in records: their fields may be left out, flattened into another object, or in dicts."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import iree_gauntlet
from iree_gauntlet.recorded import FLAT, UNLESS_DEFAULT, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Recorded):
    low: float | None = None
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Recorded):
    name: str
    part: Part | None = field(default=None, metadata=FLAT)
    note: str = field(default="", metadata=UNLESS_DEFAULT)
    parts: dict[str, dict[str, Part]] = field(default_factory=dict, metadata=UNLESS_DEFAULT)
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needy(Recorded):
    part: Part = field(metadata=FLAT)


@pytest.mark.parametrize(
    ("whole", "written"),
    [
        (Whole(name="a"), {"name": "a", "last": None}),
        (Whole(name="a", part=Part(high=2.0)), {"name": "a", "low": None, "high": 2.0, "last": None}),
        (Whole(name="a", note="x", last=1), {"name": "a", "note": "x", "last": 1}),
        (
            Whole(name="a", parts={"m": {"A": Part(low=1.5, high=2.0)}}),
            {"name": "a", "parts": {"m": {"A": {"low": 1.5, "high": 2.0}}}, "last": None},
        ),
    ],
)
def test_it_is_read_as_it_was_written(whole: Whole, written: dict[str, object]) -> None:
    assert whole.as_dict() == written
    assert list(whole.as_dict()) == list(written)
    assert Whole.from_dict(written | {"of_a_later_version": 1}) == whole


def test_a_flat_object_without_what_it_needs_is_missing() -> None:
    assert Whole.from_dict({"name": "a", "low": 1.0}).part is None
    with pytest.raises(ValueError, match="part: is missing"):
        Needy.from_dict({"low": 1.0})
    assert Needy.from_dict({"high": 1.0}) == Needy(part=Part(high=1.0))


def test_a_field_that_may_be_null_has_a_default() -> None:
    # Null is read as the default, so that a required field would be missing.
    required = [
        f"{path.name}: {node.name}.{ast.unparse(item.target)}"
        for path in Path(iree_gauntlet.__file__).parent.rglob("*.py")
        for text in (path.read_text(encoding="utf-8"),)
        if "Recorded" in text
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and "Recorded" in map(ast.unparse, node.bases)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and item.value is None and ast.unparse(item.annotation).endswith("| None")
    ]
    assert required == []
