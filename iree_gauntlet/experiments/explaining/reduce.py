"""A program that does not compile, made smaller for as long as it fails in the same way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.symptom import CRASH, HANG
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.experiments.explaining.tools import Tools


# The phase before which no switch of the compiler changes anything.
EARLIEST = "input"
# A smaller program that compiles at all does so in less.
_HANG_SECONDS = 15.0
# What the worker does behind its budget: it ends the compile under way, and writes.
_MARGIN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Reduced:
    """What became of a program.

    Attributes:
        program: it, as text; the folder's own.
        before, after: `operations` and `bytes`.
        phase: the phase of the compiler in which it fails, or one before it; empty where that is not known.
    """

    program: Path
    said: str
    before: dict[str, int]
    after: dict[str, int]
    tried: int
    complete: bool
    phase: str
    constants: int
    names: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {name: getattr(self, name) for name in ("before", "after", "tried", "complete", "phase", "names")}


def reduce(failure: Failure, symptom: Symptom, tools: Tools, budget: float, say: Callable[[str], None]) -> Reduced:
    """Make the program of a failed compile smaller.

    Args:
        failure: of the compile.
        symptom: what it shows, which the smaller one shows too.
        tools: of the IREE that failed.
        budget: seconds; what is best by then counts.
        say: takes how it goes.

    Raises:
        GauntletError: it cannot be reduced.
    """
    folder = tools.folder / "reduce"
    folder.mkdir()
    plan = {
        "compile": tools.workbench.iree.compiler.compile,
        "program": str(failure.program),
        "flags": failure.flags,
        "cwd": str(failure.compile_cwd),
        "pattern": symptom.pattern,
        "crash": symptom.ending == CRASH,
        "hang": _HANG_SECONDS if symptom.ending == HANG else 0,
        "timeout": failure.compile_timeout,
        "budget": budget,
        "folder": str(folder),
    }
    file = folder / "plan.json"
    file.write_text(json.dumps(plan), encoding="utf-8")
    script = str(Path(iree_side.__file__).with_name("reduce_program.py"))

    def progress(line: str) -> None:
        kept = json.loads(line)
        operations = "1 operation" if kept["operations"] == 1 else f"{kept['operations']:,} operations"
        say(f"{operations}, after {kept['tried']} compiles ({kept['what']})")

    ran = tools.watched_python(
        "reduce", (script, str(file)), timeout=budget + _MARGIN_SECONDS, log=folder / "reduce.jsonl", line=progress
    )
    if not ran.passed:
        said = ran.outcome.signal or ran.errors.strip()[-300:]
        raise GauntletError(f"the program cannot be reduced: {said}", "")
    end = json.loads((folder / "end.json").read_text(encoding="utf-8"))
    if end["problem"]:
        raise GauntletError(f"the program cannot be reduced: {end['problem']}", "")
    return Reduced(
        program=folder / "reduced.mlir",
        said=(folder / "reduced.txt").read_text(encoding="utf-8"),
        before=end["before"],
        after=end["after"],
        tried=end["tried"],
        complete=end["complete"],
        phase=end["phase"],
        constants=end["constants"],
        names=tuple(end["names"]),
    )
