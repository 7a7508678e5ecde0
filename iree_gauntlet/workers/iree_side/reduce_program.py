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
done. At the end there are `reduced.mlir` and `reduced.txt`, what the compiler says of it; and `end.json`: `before` and
`after` (`operations` and `bytes`), `tried`, `complete` (nothing was left to try), `phase` (up to which the failing
compile has to go; empty for all of them), `constants` (how many there are of many values) and `names` (of the first
operations that are left).

Exit codes: 0 done; 2 the program cannot be reduced (one line on stderr).
"""

from __future__ import annotations

import io
import json
import math
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.compiler_library import FUNCTIONS, find_package, import_bindings, list_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from iree_gauntlet.workers.iree_side.compiler_library import Bindings, Native, Operation


_UNUSABLE = 2
# Up to which a compile goes, the nearest first.
_PHASES = ("input", "flow", "executable-targets")
_PLACE = re.compile(r":(\d+):(\d+): ")
# How many operations before and behind one that a diagnostic points at may have to do with it: they become one loop.
_MARGINS = (0, 4, 16)
# For a process to print its stack.
_ABORT_SECONDS = 20.0


# What a program of no operation has.
_FRAME = ("builtin.module", *FUNCTIONS, "func.return", "util.return")
# What says how a function's arguments and results are passed on, which others have no use for.
_SIGNATURE = ("function_type", "arg_attrs", "res_attrs", "tied_operands")
# Types that an argument of a program may have; the values of all others are made where they are used.
_PASSED = ("tensor<", "!torch.vtensor", "!torch.tensor")
_NAMED = 5
# Constants of so many elements or more become of one value.
_LARGE = 16


@dataclass(frozen=True, slots=True)
class _ReducePlan:
    compile: str
    program: str
    flags: list[str]
    cwd: str
    pattern: str
    crash: bool
    hang: float
    timeout: float
    budget: float
    folder: str


class _Size(NamedTuple):
    """What smaller means: operations of its functions, nested ones too, then bytes."""

    operations: int
    bytes: int


class Edits:
    """What can be done to programs."""

    def __init__(self, ir: Bindings) -> None:
        self._ir = ir
        self.context = ir.Context()
        # As iree-compile parses.
        self.context.allow_unregistered_dialects = True
        # Older releases want one for every attribute that is made.
        self.place = ir.Location.unknown(self.context)
        self.errors = (ir.MLIRError, ValueError)

    def parse(self, path: str) -> Operation:
        """A program from a file, text or bytecode; one of `errors` where it is none."""
        # The file's path stands in the locations, which diagnostics print.
        return self._ir.Module.parseFile(path).operation

    def is_valid(self, program: Operation) -> bool:
        """Whether the verifier takes it; it may refuse what an edit has left behind."""
        try:
            return bool(program.operation.verify())
        except self._ir.MLIRError:
            return False

    def write_bytecode(self, program: Operation) -> bytes:
        """It, with its locations."""
        buffer = io.BytesIO()
        program.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def write_text_of(self, program: Operation) -> str:
        """It, for people."""
        return f"{program.operation.get_asm(assume_verified=True)}\n".replace("\n\n", "\n")

    def measure(self, program: Operation) -> _Size:
        """How large it is."""
        return _Size(len(_list_counted(program)), len(self.write_bytecode(program)))

    def list_names(self, program: Operation) -> list[str]:
        """What its first operations are called; of those that torch has no name for, what they were."""
        return [
            self._read_text(operation, "name") if operation.name == "torch.operator" else str(operation.name)
            for operation in _list_counted(program)[:_NAMED]
        ]

    def list_constants(self, program: Operation) -> list[tuple[int, str]]:
        """Attributes with many values: an operation's place in the program, and the attribute's name."""
        found = []
        for place, operation in enumerate(_walk(program.operation)):
            for name, attribute in list_attributes(operation).items():
                shape = self._get_values_type(attribute)
                if shape is not None and not getattr(attribute, "is_splat", False):
                    found.append((place, name))
        return found

    def with_splats(self, program: Operation, places: Collection[tuple[int, str]]) -> Operation:
        """It, with constants at these places of one value."""
        ir = self._ir
        copy = program.operation.clone().operation
        for place, operation in enumerate(_walk(copy)):
            for name, attribute in list_attributes(operation).items():
                if (place, name) in places:
                    shape = self._get_values_type(attribute)
                    element = shape.element_type
                    whole = _is(element, ir.IntegerType) or _is(element, ir.IndexType)
                    one = ir.IntegerAttr.get(element, 1) if whole else ir.FloatAttr.get(element, 0.5)
                    operation.attributes[name] = ir.DenseElementsAttr.get_splat(shape, one)
        return copy

    def list_symbols(self, program: Operation) -> list[str]:
        """Names of its functions, globals and executables, while there are several."""
        names = [name for operation in _list_body(program) if (name := self._get_symbol(operation))]
        return names if len(names) > 1 else []

    def without_symbols(self, program: Operation, names: Collection[str]) -> Operation:
        """It, without these."""
        copy = program.operation.clone().operation
        for operation in _list_body(copy):
            if self._get_symbol(operation) in names:
                operation.erase()
        return copy

    def list_functions(self, program: Operation) -> list[str]:
        """Names of functions with a body of one block, the longest first."""
        found = {
            self._get_symbol(operation): len(_list_body(operation))
            for operation in _list_body(program)
            if operation.name in FUNCTIONS and len(operation.regions[0].blocks) == 1
        }
        return sorted(found, key=lambda name: -found[name])

    def list_operations(self, program: Operation, name: str) -> list[Operation]:
        """What a function does, its end left out."""
        return _list_body(self._find_function(program, name))[:-1]

    def with_operations(self, program: Operation, name: str, kept: Collection[int]) -> Operation:
        """It, with some operations of a function alone.

        Those that make what cannot be passed (numbers, lists) stay where they are needed. Tensors that come from what
        is taken out become arguments; what nothing uses is returned.
        """
        copy = program.operation.clone().operation
        function = self._find_function(copy, name)
        *operations, end = _list_body(function)
        arguments = set(function.regions[0].blocks[0].arguments)
        makers = {value: index for index, operation in enumerate(operations) for value in operation.results}
        wanted = set(kept)
        used: dict[Native, None] = {}
        for index in reversed(range(len(operations))):
            if index in wanted:
                for value in (value for inner in _walk(operations[index]) for value in inner.operands):
                    used[value] = None
                    if value in makers and not _is_passed(value):
                        wanted.add(makers[value])
        # What is used, and made neither by what is kept nor within it.
        given = [value for value in used if (value in makers and makers[value] not in wanted) or value in arguments]
        left = [operations[index] for index in sorted(wanted)]
        results = [value for one in left for value in one.results if _is_passed(value) and value not in used]
        # A function of these stands in place of the one that there is.
        ir = self._ir
        types, location = [value.type for value in given], function.location
        attributes = {key: value for key, value in list_attributes(function).items() if key not in _SIGNATURE}
        kind = ir.FunctionType.get(types, [value.type for value in results])
        attributes["function_type"] = ir.TypeAttr.get(kind)
        with location:
            made = ir.Operation.create(function.name, regions=1, attributes=attributes, ip=ir.InsertionPoint(function))
            block = made.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
            for operation in left:
                block.append(operation)
            for value, argument in zip(given, block.arguments, strict=True):
                value.replace_all_uses_with(argument)
            block.append(ir.Operation.create(end.name, operands=results))
        function.erase()
        return copy

    def _find_function(self, program: Operation, name: str) -> Operation:
        functions = (found for found in _list_body(program) if found.name in FUNCTIONS)
        return next(found for found in functions if self._get_symbol(found) == name)

    def _get_symbol(self, operation: Operation) -> str:
        return self._read_text(operation, "sym_name") if "sym_name" in operation.attributes else ""

    def _read_text(self, operation: Operation, attribute: str) -> str:
        return str(self._ir.StringAttr(operation.attributes[attribute]).value)

    def _get_values_type(self, attribute: Native) -> Operation:
        """The type of an attribute with many values; None for others."""
        ir = self._ir
        if not (_is(attribute, ir.DenseElementsAttr) or _is(attribute, ir.DenseResourceElementsAttr)):
            return None
        shape = ir.ShapedType(attribute.type)
        if _is(shape.element_type, ir.ComplexType):
            return None
        return shape if math.prod(shape.shape) >= _LARGE else None


def _list_body(program: Operation) -> list[Operation]:
    """What stands at the top of a program, or in a function of one block."""
    return [operation.operation for operation in program.operation.regions[0].blocks[0].operations]


def _walk(operation: Operation) -> Iterator[Operation]:
    """An operation and all in it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _walk(inner.operation)


def _list_counted(program: Operation) -> list[Operation]:
    """Operations of its functions, nested ones too."""
    return [operation for operation in _walk(program.operation) if operation.name not in _FRAME]


def _is_passed(value: Native) -> bool:
    return str(value.type).startswith(_PASSED)


def _is(what: Native, kind: Native) -> bool:
    # Releases differ: in older ones a class says what is of it.
    return bool(kind.isinstance(what) if hasattr(kind, "isinstance") else isinstance(what, kind))


class _TimeIsUpError(Exception):
    """The budget is spent."""


class _Oracle:
    """Says what the compiler says of a program that fails as it should; None where it does not."""

    def __init__(self, plan: _ReducePlan) -> None:
        self._plan = plan
        self._pattern = re.compile(plan.pattern)
        self._folder = Path(plan.folder)
        self._until = time.monotonic() + plan.budget
        self._asked: dict[bytes, str | None] = {}
        self.tried = 0
        self.flags = list(plan.flags)

    def ask(self, program: bytes) -> str | None:
        """About a program, each once."""
        if program not in self._asked:
            self._asked[program] = self._compile(program)
        return self._asked[program]

    def ask_words(self, program: bytes) -> str:
        """What the compiler says of a program, whatever time is left."""
        self._until, self.flags = math.inf, list(self._plan.flags)
        self._compile(program)
        return (self._folder / "candidate.txt").read_text(encoding="utf-8", errors="replace")

    def narrow(self, program: bytes) -> str:
        """The phase on the way to which it fails: no program is compiled further from now on; empty for none."""
        for phase in _PHASES:
            self.flags.append(f"--compile-to={phase}")
            if self._compile(program) is not None:
                return phase
            self.flags.pop()
        return ""

    def _compile(self, program: bytes) -> str | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise _TimeIsUpError
        self.tried += 1
        source = self._folder / "candidate.mlir"
        source.write_bytes(program)
        argv = [self._plan.compile, str(source), *self.flags, "-o", str(self._folder / "candidate.vmfb")]
        hang = self._plan.hang
        with (self._folder / "candidate.txt").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._plan.cwd)
            try:
                code = process.wait(hang or min(left, self._plan.timeout))
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
        ended = code is None if hang else (code is not None and (code < 0) is self._plan.crash and code != 0)
        shown = ended and any(self._pattern.search(line) for line in said.splitlines() or [""])
        return said if shown else None


class _Reducer:
    """The smallest program so far, and what makes it smaller."""

    def __init__(self, plan: _ReducePlan, edits: Edits, oracle: _Oracle) -> None:
        self._folder = Path(plan.folder)
        self._edits = edits
        self._oracle = oracle
        self.best = edits.parse(plan.program)
        self.size = edits.measure(self.best)
        # What the compiler says of it.
        self.said = ""

    def begin(self) -> str:
        """Whether the program fails at all as it is handed on here, and up to which phase it has to be compiled."""
        program = self._edits.write_bytecode(self.best)
        said = self._oracle.ask(program)
        if said is None:
            raise ValueError("handed on as bytecode it does not fail in this way")
        self.said = said
        return self._oracle.narrow(program)

    def offer(self, program: Operation, what: str) -> bool:
        """Keep a program where it is smaller and fails as before."""
        size = self._edits.measure(program)
        if size >= self.size or not self._edits.is_valid(program):
            return False
        said = self._oracle.ask(self._edits.write_bytecode(program))
        if said is None:
            return False
        self.best, self.size, self.said = program, size, said
        line = {**size._asdict(), "tried": self._oracle.tried, "what": what}
        with (self._folder / "reduce.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        return True

    def reduce(self) -> None:
        """All that there is to try."""
        self._remove_runs(lambda: self._edits.list_constants(self.best), self._edits.with_splats, "constants")
        before = None
        while before != self.size:
            before = self.size
            self._remove_runs(
                lambda: self._edits.list_symbols(self.best), self._edits.without_symbols, "functions and globals"
            )
            for name in self._edits.list_functions(self.best):
                self._reduce_function(name)

    def _reduce_function(self, name: str) -> None:
        edits = self._edits

        def keep(kept: Sequence[int], what: str) -> bool:
            return self.offer(edits.with_operations(self.best, name, kept), what)

        def count() -> int:
            return len(edits.list_operations(self.best, name))

        places = [f":{int(line)}:{int(column)}" for line, column in _PLACE.findall(self.said)]
        hit = [
            index
            for index, operation in enumerate(edits.list_operations(self.best, name))
            if any(place in str(operation.location) for place in places)
        ]
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
        self._remove_runs(
            lambda: list(range(count())),
            lambda best, out: edits.with_operations(best, name, [i for i in range(count()) if i not in out]),
            "operations",
        )

    def _remove_runs(
        self, items: Callable[[], list[Operation]], without: Callable[[Any, set[Any]], Any], what: str
    ) -> None:
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


def _run(plan: _ReducePlan) -> None:
    folder = Path(plan.folder)
    find_package()
    edits = Edits(import_bindings())
    with edits.place:
        oracle = _Oracle(plan)
        try:
            reducer = _Reducer(plan, edits, oracle)
        except edits.errors as error:
            raise ValueError("it does not parse") from error
        before, phase, complete = reducer.size, "", False
        try:
            phase = reducer.begin()
            reducer.reduce()
            complete = True
        except _TimeIsUpError:
            pass
        end = {
            "before": before._asdict(),
            "after": reducer.size._asdict(),
            "tried": oracle.tried,
            "complete": complete,
            "phase": phase,
            "constants": len(edits.list_constants(reducer.best)),
            "names": edits.list_names(reducer.best),
        }
        text = edits.write_text_of(reducer.best)
        (folder / "reduced.mlir").write_text(text, encoding="utf-8")
        # Of the text, whose lines are others.
        (folder / "reduced.txt").write_text(oracle.ask_words(text.encode()), encoding="utf-8")
        (folder / "end.json").write_text(json.dumps(end), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    try:
        _run(_ReducePlan(**json.loads(Path(argv[0]).read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
