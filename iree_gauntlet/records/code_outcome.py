"""The result of `code.diff`: for each module, the dispatches whose code differs between two sides."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_events import EndEvent, ExperimentKind, Opening
from iree_gauntlet.journal_format import ExperimentRecord, JournalSchema
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.results import DispatchCode  # noqa: TC001 - read by its type

if TYPE_CHECKING:
    from pathlib import Path


# A name in LLVM IR, MLIR or PTX.
_NAME = re.compile(r"(%?[\w.$]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeDiffOpening(Opening):
    """The opening of a comparison of code; `sides` are the IREEs and variants of A and B."""

    kind: ExperimentKind = ExperimentKind.CODE_DIFF
    sides: tuple[str, ...]
    level: str


@dataclass(frozen=True, slots=True)
class DiffRow(Recorded):
    """A line of A, of B, or of both if they are equal; or a number of equal lines that are left out."""

    a: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    b: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    left_out: int = field(default=0, metadata=UNLESS_DEFAULT)

    @property
    def text(self) -> str:
        """The line of a unified diff; in an equal line, `%…` stands for names that each side numbers in its own way."""
        if self.left_out:
            return f"@@ {pluralize(self.left_out, 'equal line')} @@"
        if self.a is None or self.b is None:
            return f"+ {self.b}" if self.a is None else f"- {self.a}"
        words = itertools.zip_longest(*(_NAME.split(line) for line in (self.a, self.b)))
        return "  " + "".join(a if a == b else "%…" for a, b in words if a)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchDiff(Recorded):
    """A dispatch whose code differs; `a` or `b` is None if only the other side has it.

    Attributes:
        rows: the lines that differ at the level that was asked for; empty if they were not asked for or are equal.
        files: the texts of the dispatch, relative to the experiment's folder.
        note: the reason for having no rows.
    """

    a: DispatchCode | None = None
    b: DispatchCode | None = None
    rows: tuple[DiffRow, ...] = ()
    files: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCodeDiff(Recorded):
    """`result`: the dispatches of a module; `problem` is the reason if its code could not be compared."""

    same_count: int = 0
    changes: tuple[DispatchDiff, ...] = ()
    problem: str = ""


CODE_DIFF = JournalSchema((ExperimentKind.CODE_DIFF,), CodeDiffOpening, {"result": ModuleCodeDiff})


@dataclass(frozen=True, slots=True)
class CodeDiffOutcome:
    """The result of a comparison of code; `modules` has each by the step that compiles it."""

    name: str
    opening: CodeDiffOpening
    modules: dict[str, ModuleCodeDiff]
    end: EndEvent | None

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code; ERROR if it did not finish."""
        return self.end.exit_code if self.end else ExitCode.ERROR

    @property
    def answer(self) -> str:
        """The answer in one line."""
        if self.end is not None and self.end.problem:
            return self.end.problem
        compared = [module for module in self.modules.values() if not module.problem]
        if not compared:
            return "no code could be compared"
        place = f"in {pluralize(len(compared), 'module')}"
        count = sum(len(module.changes) for module in compared)
        if not count:
            return f"the code is the same {place}"
        total = pluralize(count + sum(module.same_count for module in compared), "dispatch", "es")
        return f"{count} of {total} {place} {'has' if count == 1 else 'have'} other code"

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {
            "name": self.name,
            "sides": list(self.opening.sides),
            "level": self.opening.level,
            "modules": {step: module.as_dict() for step, module in self.modules.items()},
            "exit_code": self.exit_code,
        }


def read_code_outcome(folder: Path) -> CodeDiffOutcome:
    """Read the outcome from the folder of a comparison of code; GauntletError if there is no readable record."""
    record: ExperimentRecord[CodeDiffOpening] = CODE_DIFF.read(folder)
    return CodeDiffOutcome(folder.name, record.opening, record.collect_results(ModuleCodeDiff), record.end)
