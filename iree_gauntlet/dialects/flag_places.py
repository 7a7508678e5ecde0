"""Where a flag is written, so that what is wrong with it can be found: its field and line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.json5_text import without_comments
from iree_gauntlet.dialects.spec_file import load_json, problem_at
from iree_gauntlet.errors import GauntletError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


def problem_of_flag(file: str, flag: str, message: str, hint: str = "") -> Problem:
    """A problem of a flag: at the first value of a JSON file that is the flag, else at the first line that has it.

    A flag that is not found as it is given (it is made of variables) gives a problem without a line.
    """
    path = Path(file)
    try:
        document, text, _ = load_json(path, file, without_comments)
        place = next(_places(document, flag), None)
        if place is not None:
            return problem_at(file, text, place, message, hint)
    except GauntletError:
        # A flagfile, or YAML.
        pass
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    line = next((number for number, line in enumerate(lines, 1) if flag in line), 0)
    return Problem(file, line, "", message, hint)


def _places(value: object, flag: str, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, str) and value.strip() == flag.strip():
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from _places(item, flag, *path, key)
