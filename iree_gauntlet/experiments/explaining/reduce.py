"""The reduction of a program that does not compile, to a smaller program that fails in the same way."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.tools import CRASH, HANG
from iree_gauntlet.recorded import UNRECORDED, Recorded
from iree_gauntlet.records.explain_outcome import ReductionFinding

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.experiments.explaining.tools import IreeTools, Symptom


# The earliest phase of the compiler; no option has an effect before it.
FIRST_PHASE = "input"
# A smaller program that takes longer counts as hanging.
_HANG_SECONDS = 15.0
# The time that the worker needs, after its budget, to end the current compile and write the result.
_MARGIN_SECONDS = 120.0
# The interval between readings of the worker's log.
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SmallerProgram(Recorded):
    """A smaller program with the same failure, and the number of compiles so far; `what` is the last change."""

    operations: int
    tried: int
    what: str


@dataclass(frozen=True, slots=True)
class Reduction(ReductionFinding):
    """The result of a reduction, the number of constants that have many values, and the compiler's output."""

    constants: int = 0
    program: Path = field(default=Path(), metadata=UNRECORDED)
    text: str = field(default="", metadata=UNRECORDED)

    @property
    def part(self) -> dict[str, Any]:
        """The record's fields."""
        return {name: value for name, value in self.as_dict().items() if name not in ("why", "constants")}


def reduce(symptom: Symptom, tools: IreeTools, budget: float, say: Callable[[str], None]) -> Reduction:
    """Reduce the program of a failed compile within `budget` seconds, keeping only changes that keep the symptom."""
    folder, failure = tools.folder / "reduce", tools.failure
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

    argv, log = tools.write_plan("reduce_program", "reduce", plan), folder / "reduce.jsonl"
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(tools.run_python, "reduce", argv, timeout=budget + _MARGIN_SECONDS)
        line_count, is_over = 0, False
        while not is_over:
            is_over = bool(wait((future,), timeout=_POLL_SECONDS).done)
            lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.is_file() else []
            for program in map(SmallerProgram.from_dict, map(json.loads, lines[line_count:])):
                operations = "1 operation" if program.operations == 1 else f"{program.operations:,} operations"
                say(f"{operations}, after {program.tried} compiles ({program.what})")
            line_count = len(lines)
        result = future.result()
    if not result.passed:
        message = result.outcome.signal or result.errors.strip()[-300:]
        raise GauntletError(f"the program cannot be reduced: {message}", "")
    reduction = Reduction.from_dict(json.loads((folder / "end.json").read_text(encoding="utf-8")))
    text = (folder / "reduced.txt").read_text(encoding="utf-8")
    return replace(reduction, program=folder / "reduced.mlir", text=text)
