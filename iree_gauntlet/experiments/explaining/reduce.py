"""A program that does not compile, made smaller for as long as it fails in the same way."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.tools import CRASH, HANG
from iree_gauntlet.recorded import UNRECORDED, Recorded
from iree_gauntlet.records.explain_outcome import FoundReduced

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.experiments.explaining.tools import Symptom, Tools


# The phase before which no switch of the compiler changes anything.
EARLIEST = "input"
# A smaller program that compiles at all does so in less.
_HANG_SECONDS = 15.0
# What the worker does behind its budget: it ends the compile under way, and writes.
_MARGIN_SECONDS = 120.0
# How often what it has found is looked at.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class KeptProgram(Recorded):
    """A smaller program that fails as before, after so many compiles; `what` was done to it."""

    operations: int
    tried: int
    what: str


@dataclass(frozen=True, slots=True)
class Reduced(FoundReduced):
    """What became of a program, which holds so many constants of many values, and what the compiler says of it."""

    constants: int = 0
    program: Path = field(default=Path(), metadata=UNRECORDED)
    text: str = field(default="", metadata=UNRECORDED)

    @property
    def part(self) -> dict[str, Any]:
        """For the record."""
        return {name: value for name, value in self.as_dict().items() if name not in ("why", "constants")}


def reduce(symptom: Symptom, tools: Tools, budget: float, say: Callable[[str], None]) -> Reduced:
    """Make the program of a failed compile smaller, within so many seconds, for as long as it shows the symptom."""
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

    argv, log = tools.plan("reduce_program", "reduce", plan), folder / "reduce.jsonl"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(tools.python, "reduce", argv, timeout=budget + _MARGIN_SECONDS)
        shown, ended = 0, False
        while not ended:
            ended = bool(wait((running,), timeout=_LOOK_SECONDS).done)
            lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.is_file() else []
            for kept in map(KeptProgram.from_dict, map(json.loads, lines[shown:])):
                operations = "1 operation" if kept.operations == 1 else f"{kept.operations:,} operations"
                say(f"{operations}, after {kept.tried} compiles ({kept.what})")
            shown = len(lines)
        ran = running.result()
    if not ran.passed:
        said = ran.outcome.signal or ran.errors.strip()[-300:]
        raise GauntletError(f"the program cannot be reduced: {said}", "")
    end = Reduced.from_dict(json.loads((folder / "end.json").read_text(encoding="utf-8")))
    text = (folder / "reduced.txt").read_text(encoding="utf-8")
    return replace(end, program=folder / "reduced.mlir", text=text)
