"""Make a program that does not compile smaller, for as long as it fails in the same way.

    python reduce_program.py PLAN.json

The plan:

    {"compile": "/…/iree-compile", "program": "/…/model.mlir", "flags": […], "cwd": "/…",
     "pattern": "failed to legalize.*foo",   extended regular expression (grep -E) that a line of its output matches
     "crash": false,                         whether a signal ends it
     "hang": 0,                              seconds after which it counts as one that does not end; 0 for none
     "timeout": 600,                         of a compile, in seconds
     "budget": 300,                          of all, in seconds; what is best by then is kept
     "folder": "/…"}                         where to

What is tried, each kept where the compiler fails as before and the program is smaller: large constants of one value;
one function alone; the operations that the diagnostic points at, and those around them; ends and beginnings of a
function, by halving; then runs of operations, ever shorter (delta debugging: Zeller and Hildebrandt, "Simplifying and
isolating failure-inducing input", 2002). The tensors of what is taken out become arguments of the function, and what
is not used any more its results.

`reduce.jsonl` in the folder gets a line for each program that is kept: `operations`, `bytes`, `tried` and `what` was
done. At the end there are `reduced.mlir` and `reduced.txt`, what the compiler says of it; and `end.json`: `problem`
(why nothing was done; empty), `before` and `after` (`operations` and `bytes`), `tried`, `complete` (nothing was left to
try), `phase` (up to which the failing compile has to go; empty for all of them) `constants` (how many there are of many
values) and `names` (of the first operations that are left).

Exit codes: 0 done; 2 the plan cannot be carried out (one line on stderr).
"""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.compiler_library import find_package
from iree_gauntlet.workers.iree_side.merge_programs import import_bindings
from iree_gauntlet.workers.iree_side.program_edits import Edits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_UNUSABLE = 2
# Up to which a compile goes, the nearest first.
_PHASES = ("input", "flow", "executable-targets")
_PLACE = re.compile(r":(\d+):(\d+): ")
# How many operations before and behind one that a diagnostic points at may have to do with it: they become one loop.
_MARGINS = (0, 4, 16)
# For a process to print its stack.
_ABORT_SECONDS = 20.0


class _TimeIsUpError(Exception):
    """The budget is spent."""


class _Oracle:
    """Says whether a program fails as it should."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._plan = plan
        self._pattern = re.compile(plan["pattern"])
        self._folder = Path(plan["folder"])
        self._until = time.monotonic() + plan["budget"]
        self._asked: dict[bytes, bool] = {}
        self.tried = 0
        self.said = ""
        self.flags = list(plan["flags"])

    def fails(self, program: bytes) -> bool:
        """Whether it does; what the compiler said is kept.

        Raises:
            _TimeIsUpError: there is no time left to find out.
        """
        if program not in self._asked:
            self._asked[program] = self._compile(program)
        return self._asked[program]

    def words_of(self, program: bytes) -> str:
        """What the compiler says of a program, whatever time is left."""
        self._until, self.flags = math.inf, list(self._plan["flags"])
        self._compile(program)
        return (self._folder / "candidate.txt").read_text(encoding="utf-8", errors="replace")

    def up_to(self, phase: str, program: bytes) -> bool:
        """Whether it fails on the way to a phase; if so, no program is compiled further from now on."""
        before = self.flags
        self.flags = [*before, f"--compile-to={phase}"]
        if not self._compile(program):
            self.flags = before
            return False
        return True

    def _compile(self, program: bytes) -> bool:
        left = self._until - time.monotonic()
        if left <= 0:
            raise _TimeIsUpError
        self.tried += 1
        source = self._folder / "candidate.mlir"
        source.write_bytes(program)
        argv = [self._plan["compile"], str(source), *self.flags, "-o", str(self._folder / "candidate.vmfb")]
        hang = self._plan["hang"]
        with (self._folder / "candidate.txt").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._plan["cwd"])
            try:
                code = process.wait(hang or min(left, self._plan["timeout"]))
            except subprocess.TimeoutExpired:
                code = None
                # It prints where it is.
                process.send_signal(signal.SIGABRT)
                try:
                    process.wait(_ABORT_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if code is None and not hang and time.monotonic() >= self._until:
            raise _TimeIsUpError
        said = (self._folder / "candidate.txt").read_text(encoding="utf-8", errors="replace")
        ended = code is None if hang else (code is not None and (code < 0) is self._plan["crash"] and code != 0)
        if not (ended and any(self._pattern.search(line) for line in said.splitlines() or [""])):
            return False
        self.said = said
        return True


class _Reducer:
    """The smallest program so far, and what makes it smaller."""

    def __init__(self, plan: Mapping[str, Any], edits: Edits, oracle: _Oracle) -> None:
        self._folder = Path(plan["folder"])
        self._edits = edits
        self._oracle = oracle
        self.best = edits.parse(plan["program"])
        self.size = edits.size(self.best)
        # What the compiler says of it.
        self.said = ""

    def begin(self) -> str:
        """Whether the program fails at all as it is handed on here, and up to which phase it has to be compiled.

        Returns:
            The phase; empty for all of them.

        Raises:
            ValueError: it does not fail.
        """
        program = self._edits.bytecode(self.best)
        if not self._oracle.fails(program):
            raise ValueError("handed on as bytecode it does not fail in this way")
        self.said = self._oracle.said
        return next((phase for phase in _PHASES if self._oracle.up_to(phase, program)), "")

    def offer(self, program: Any, what: str) -> bool:
        """Keep a program where it is smaller and fails as before."""
        size = self._edits.size(program)
        if (
            size >= self.size
            or not self._edits.is_valid(program)
            or not self._oracle.fails(self._edits.bytecode(program))
        ):
            return False
        self.best, self.size, self.said = program, size, self._oracle.said
        operations, count = size
        line = {"operations": operations, "bytes": count, "tried": self._oracle.tried, "what": what}
        with (self._folder / "reduce.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        return True

    def reduce(self) -> None:
        """All that there is to try."""
        self._fewer(lambda: self._edits.constants(self.best), self._edits.with_splats, "constants")
        before = None
        while before != self.size:
            before = self.size
            self._fewer(lambda: self._edits.symbols(self.best), self._edits.without_symbols, "functions and globals")
            for name in self._edits.functions(self.best):
                self._function(name)

    def _function(self, name: str) -> None:
        edits = self._edits

        def keep(kept: Sequence[int], what: str) -> bool:
            return self.offer(edits.with_operations(self.best, name, kept), what)

        def count() -> int:
            return edits.count(self.best, name)

        hit = edits.at(self.best, name, [(int(line), int(column)) for line, column in _PLACE.findall(self.said)])
        for margin in _MARGINS if hit else ():
            near = {i for place in hit for i in range(place - margin, place + margin + 1) if 0 <= i < count()}
            if keep(sorted(near), "what the diagnostic points at"):
                break
        low, high = 0, count()
        while high - low > 1:
            middle = (low + high) // 2
            if keep(range(middle), "the end taken away"):
                # What is taken out may take more with it, or less.
                low, high = min(low, count()), min(middle, count())
            else:
                low = middle
        low, high = 0, count()
        while high - low > 1:
            middle = (low + high) // 2
            if keep(range(middle, count()), "the beginning taken away"):
                low, high = 0, count()
            else:
                high = middle
        self._fewer(
            lambda: list(range(count())),
            lambda best, out: edits.with_operations(best, name, [i for i in range(count()) if i not in out]),
            "operations",
        )

    def _fewer(self, items: Callable[[], list[Any]], without: Callable[[Any, set[Any]], Any], what: str) -> None:
        """Delta debugging: take out runs of items, from all of them to each one."""
        run = len(items())
        while run:
            place = 0
            while place < len(there := items()):
                out = there[place : place + run]
                # Where it is kept, what comes next has moved here.
                if not self.offer(without(self.best, set(out)), f"without {len(out)} {what}"):
                    place += run
            run //= 2


def _run(plan: Mapping[str, Any]) -> None:
    folder = Path(plan["folder"])
    find_package()
    edits = Edits(import_bindings())
    with edits.place:
        oracle = _Oracle(plan)
        try:
            reducer = _Reducer(plan, edits, oracle)
        except edits.errors as error:
            raise OSError("it does not parse") from error
        end: dict[str, Any] = {"problem": "", "phase": "", "complete": False, "before": _size(reducer.size)}
        try:
            end["phase"] = reducer.begin()
            reducer.reduce()
            end["complete"] = True
        except _TimeIsUpError:
            pass
        except ValueError as error:
            end["problem"] = str(error)
        constants = len(edits.constants(reducer.best))
        end |= {
            "after": _size(reducer.size),
            "tried": oracle.tried,
            "constants": constants,
            "names": edits.names(reducer.best),
        }
        text = edits.text(reducer.best)
        (folder / "reduced.mlir").write_text(text, encoding="utf-8")
        # Of the text, whose lines are others.
        (folder / "reduced.txt").write_text(oracle.words_of(text.encode()), encoding="utf-8")
        (folder / "end.json").write_text(json.dumps(end), encoding="utf-8")


def _size(size: tuple[int, int]) -> dict[str, int]:
    return {"operations": size[0], "bytes": size[1]}


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    try:
        _run(json.loads(Path(argv[0]).read_text(encoding="utf-8")))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return _UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
