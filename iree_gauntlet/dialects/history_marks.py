"""What people say about changes in a history: a TOML file that is reviewed like code.

[[mark]]
series = "dtln/spectral@cpu size_bytes"   # a glob of series, or of cases
iree = "3.8.0rc20251010"                  # with which it came: a version, the beginning of a commit, or a day
mark = "accepted"                         # or invalid, or moved
reason = "constant folding is off on purpose"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from iree_gauntlet.dialects.fields import Document
from iree_gauntlet.dialects.toml_file import read_table, with_lines
from iree_gauntlet.errors import Problem, SpecError

if TYPE_CHECKING:
    from pathlib import Path


# In the project's folder.
MARKS_FILE = "history_marks.toml"
_KIND = "marks"


@dataclass(frozen=True, slots=True)
class Mark:
    """What somebody says about a change.

    Attributes:
        series: glob of series, or of cases.
        iree: with which it came: a version, the beginning of a commit, or a day.
        mark: `accepted` (it is meant), `invalid` (what was measured with it does not count), or `moved`.
        reason: why.
        to: of one that was moved, with which IREE it really came.
    """

    series: str
    iree: str
    mark: str
    reason: str
    to: str = ""


class _MarkTable(Document):
    series: Annotated[str, Field(min_length=1)]
    iree: Annotated[str, Field(min_length=1)]
    mark: Literal["accepted", "invalid", "moved"]
    reason: Annotated[str, Field(min_length=1)]
    to: str = ""


class MarksFile(Document):
    """What people say about changes in a history."""

    mark: list[_MarkTable] = Field(default_factory=list)


def read_marks(file: Path) -> tuple[Mark, ...]:
    """The marks in a file; none where it is not there.

    Raises:
        SpecError: with everything that is wrong with it.
    """
    if not file.is_file():
        return ()
    text, table = read_table(file, MarksFile, _KIND)
    problems = [
        Problem(str(file), 0, f"mark[{place}].to", "a mark `moved` says with which IREE it really came", "Add `to`.")
        for place, item in enumerate(table.mark)
        if (item.mark == "moved") != bool(item.to)
    ]
    if problems:
        raise SpecError(with_lines(problems, text), _KIND)
    return tuple(Mark(**item.model_dump()) for item in table.mark)
