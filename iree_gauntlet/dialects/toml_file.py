"""TOML files that people write: read whole, with errors that name the file and, where it is known, the line."""

from __future__ import annotations

import itertools
import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from iree_gauntlet.dialects.spec_file import read_text
from iree_gauntlet.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from iree_gauntlet.dialects.fields import StrictDocument


_Document = TypeVar("_Document", bound="StrictDocument")
_TABLE = re.compile(r"(\w+)\[(\d+)\]")


def read_toml(path: Path, kind: str = "spec files") -> tuple[str, dict[str, Any]]:
    """Text and content of a TOML file.

    Raises:
        SpecError: it cannot be read, or is no TOML.
    """
    name = str(path)
    text = read_text(path, name, kind)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([Problem(name, 0, "", f"is not TOML: {error}", "Fix the syntax there.")], kind) from error
    # For editors: where they find what the fields mean.
    content.pop("$schema", None)
    return text, content


def read_table(path: Path, model: type[_Document], kind: str = "spec files") -> tuple[str, _Document]:
    """Text of a TOML file, and what it means.

    Raises:
        SpecError: with everything that is wrong with it.
    """
    # It brings pydantic; `--help` answers without it.
    from iree_gauntlet.dialects.fields import validated  # noqa: PLC0415 - it brings pydantic

    text, content = read_toml(path, kind)
    table, problems = validated(model, content, str(path), "{}")
    if table is None:
        raise SpecError(with_lines(problems, text), kind)
    return text, table


def with_lines(problems: Iterable[Problem], text: str) -> list[Problem]:
    """Finds the lines of fields: TOML's reader keeps no positions."""
    lines = [line.strip() for line in text.splitlines()]
    return [replace(problem, line=_find_line(problem.field, lines)) for problem in problems]


def _find_line(field: str, lines: list[str]) -> int:
    """In the table of an array where the field says which (`include[1].model`), else the one that has its last word."""
    table, _, last = field.rpartition(".")
    word = last.split("[")[0]
    numbered = _TABLE.fullmatch(table or field)
    starts = [number for number, line in enumerate(lines, 1) if numbered and line.startswith(f"[[{numbered[1]}]]")]
    if numbered and int(numbered[2]) < len(starts):
        start = starts[int(numbered[2])]
        inside = itertools.takewhile(
            lambda number: not lines[number - 1].startswith("["), range(start + 1, len(lines) + 1)
        )
        return next((number for number in inside if lines[number - 1].startswith(word)), start)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip("[]").startswith(word)]
    return numbers[0] if word and len(numbers) == 1 else 0
