"""TOML files that people write: read whole, with errors that name the file and, where it is known, the line."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.spec_file import read_text
from iree_gauntlet.errors import Problem, SpecError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_toml", "with_lines"]


def read_toml(path: Path, kind: str = "spec files") -> tuple[str, dict[str, Any]]:
    """Text and content of a TOML file.

    Args:
        path: the file.
        kind: what such files are, for messages.

    Raises:
        SpecError: it cannot be read, or is no TOML.
    """
    name = str(path)
    text = read_text(path, name, kind)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([Problem(name, 0, "", f"is not TOML: {error}", "Mend the syntax there.")], kind) from error


def with_lines(problems: list[Problem], text: str) -> list[Problem]:
    """Finds the line by the field's last word: TOML's reader keeps no positions."""
    lines = text.splitlines()
    found = []
    for problem in problems:
        word = problem.field.split(".")[-1].split("[")[0]
        numbers = [number for number, line in enumerate(lines, 1) if line.strip().strip("[]").startswith(word)]
        line = numbers[0] if word and len(numbers) == 1 else 0
        found.append(Problem(problem.file, line, problem.field, problem.message, problem.hint))
    return found
