"""Changing the expected failures of a suite file; comments, order and everything else stay as they are."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, cast

import tomlkit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tomlkit.items import AoT

    from iree_gauntlet.cases import Stage

__all__ = ["with_expected_failures"]

_NAME = "expect_failure"
_HEADER = re.compile(r"\s*\[\[\s*expect_failure\s*\]\]")
_ANY_HEADER = re.compile(r"\s*\[")
_REMARK = re.compile(r"\s*(#|$)")


def with_expected_failures(text: str, *, removed: Collection[int], added: Sequence[tuple[str, Stage, str]]) -> str:
    """The text of a suite with other expected failures.

    An entry goes with the comment that stands directly above it.

    Args:
        text: of a suite that reads without problems.
        removed: indices of entries of `expect_failure` that go.
        added: case, stage and reason of new ones; they come last.
    """
    # From the last one on, so that the indices hold.
    for index in sorted(removed, reverse=True):
        text = _without(text, index)
    for case, stage, reason in added:
        table = tomlkit.table()
        table["case"], table["stage"], table["reason"] = case, str(stage), reason
        tables = tomlkit.aot()
        tables.append(table)
        addition = tomlkit.document()
        addition[_NAME] = tables
        text = f"{text.rstrip()}\n\n{tomlkit.dumps(addition)}"
    return text


def _without(text: str, index: int) -> str:
    """Line by line, which keeps every comment; by tomlkit where lines do not tell what is a table."""
    expected = tomllib.loads(text)
    del expected[_NAME][index]
    if not expected[_NAME]:
        del expected[_NAME]
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    if index < len(headers):
        first = last = headers[index]
        for number in range(first + 1, len(lines)):
            if _ANY_HEADER.match(lines[number]):
                break
            last = last if _REMARK.match(lines[number]) else number
        while first and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        # One of the two blank lines that then meet.
        blank = first > 0 and not lines[first - 1].strip() and not "".join(lines[last + 1 : last + 2]).strip()
        shorter = "".join(lines[: first - 1 if blank else first] + lines[last + 1 :])
        if _reads_as(shorter, expected):
            return shorter
    document = tomlkit.parse(text)
    tables = cast("AoT", document[_NAME])
    del tables[index]
    if not len(tables):
        del document[_NAME]
    return tomlkit.dumps(document)


def _reads_as(text: str, expected: dict[str, object]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        return False
