"""Reduce a program that does not compile to a smaller program that fails in the same way.

    python reduce_program.py PLAN.json

The plan:

    {"compile": "/…/iree-compile", "program": "/…/model.mlir", "flags": […], "cwd": "/…",
     "pattern": "failed to legalize.*foo",   extended regular expression (grep -E) that a line of the output matches
     "crash": false,                         whether a signal ends the compiler
     "hang": 0,                              seconds after which a compile counts as hanging; 0: a hang is not expected
     "timeout": 600,                         seconds for each compile
     "budget": 300,                          seconds for the whole reduction; then the best result so far is kept
     "folder": "/…"}                         folder for the results

An edit is kept if the compiler fails as before and the program is smaller. The edits are, in this order: give large
constants a single value; keep one function alone; keep the operations that the diagnostic points at, and those around
them; cut off a function's end or beginning, by halving; remove shorter and shorter runs of operations (delta debugging:
Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002). Tensors of removed operations become
arguments of the function, and values that are no longer used become its results.

`reduce.jsonl` in the folder gets a line for each kept program: `operations`, `bytes`, `tried` and `what` (the edit).
At the end, `reduced.mlir` is the program, `reduced.txt` the compiler's output for it, and `end.json` has `before` and
`after` (`operations` and `bytes`), `tried`, `complete` (nothing was left to try), `phase` (the failure needs only the
phases up to this one; empty: all phases), `constants` (the number of constants with many values) and `names` (of the
first remaining operations).

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
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.compiler_library import FUNCTIONS, find_package, import_bindings, list_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from iree_gauntlet.workers.iree_side.compiler_library import Bindings, Native, Operation


_EXIT_UNUSABLE = 2
# The phases after which a compile may stop, the earliest first.
_PHASES = ("input", "flow", "executable-targets")
_LOCATION_PATTERN = re.compile(r":(\d+):(\d+): ")
# An edit keeps this many operations before and after the operation that a diagnostic points at.
_MARGINS = (0, 4, 16)
# The time for a process to print its stack after SIGABRT.
_ABORT_SECONDS = 20.0


# These operations are the frame of a program, and exist even in an empty one.
_FRAME_OPERATIONS = ("builtin.module", *FUNCTIONS, "func.return", "util.return")
# These attributes describe a function's arguments and results, and are invalid after these have changed.
_SIGNATURE_ATTRIBUTES = ("function_type", "arg_attrs", "res_attrs", "tied_operands")
# Arguments of a program may have these types; operations that make values of other types are kept.
_ARGUMENT_TYPES = ("tensor<", "!torch.vtensor", "!torch.tensor")
_MAX_NAMES = 5
# Constants with at least this many elements get a single value.
_MIN_CONSTANT_ELEMENTS = 16


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
    """The size to minimise: first the number of operations in functions (also nested ones), then the bytes."""

    operations: int
    bytes: int


class Edits:
    """The possible edits of programs."""

    def __init__(self, ir: Bindings) -> None:
        self._ir = ir
        self.context = ir.Context()
        # iree-compile accepts unregistered dialects, too.
        self.context.allow_unregistered_dialects = True
        # Older releases need a location for making an attribute.
        self.location = ir.Location.unknown(self.context)
        self.errors = (ir.MLIRError, ValueError)

    def parse(self, path: str) -> Operation:
        """Parse a program from a file of text or bytecode; raise one of `errors` if the file is invalid."""
        # Parsing from the file puts the file's path into the locations, which diagnostics print.
        return self._ir.Module.parseFile(path).operation

    def is_valid(self, program: Operation) -> bool:
        """Return whether the verifier accepts a program; it may reject the result of an edit."""
        try:
            return bool(program.operation.verify())
        except self._ir.MLIRError:
            return False

    def write_bytecode(self, program: Operation) -> bytes:
        """Return a program as bytecode, with its locations."""
        buffer = io.BytesIO()
        program.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def format_text(self, program: Operation) -> str:
        """Return a program as text for people."""
        return f"{program.operation.get_asm(assume_verified=True)}\n".replace("\n\n", "\n")

    def measure(self, program: Operation) -> _Size:
        """Return a program's size."""
        return _Size(len(_list_counted(program)), len(self.write_bytecode(program)))

    def list_names(self, program: Operation) -> list[str]:
        """Return the names of a program's first operations; the original name if torch has no name for one."""
        return [
            self._read_text(operation, "name") if operation.name == "torch.operator" else str(operation.name)
            for operation in _list_counted(program)[:_MAX_NAMES]
        ]

    def list_constants(self, program: Operation) -> list[tuple[int, str]]:
        """Return the attributes with many values, as pairs of operation index and attribute name."""
        constants = []
        for index, operation in enumerate(_walk(program.operation)):
            for name, attribute in list_attributes(operation).items():
                shape = self._get_values_type(attribute)
                if shape is not None and not getattr(attribute, "is_splat", False):
                    constants.append((index, name))
        return constants

    def make_splats(self, program: Operation, constants: Collection[tuple[int, str]]) -> Operation:
        """Return a copy of the program in which the given constants have a single value."""
        ir = self._ir
        copy = program.operation.clone().operation
        for index, operation in enumerate(_walk(copy)):
            for name, attribute in list_attributes(operation).items():
                if (index, name) in constants:
                    shape = self._get_values_type(attribute)
                    element = shape.element_type
                    is_integer = _is_instance(element, ir.IntegerType) or _is_instance(element, ir.IndexType)
                    value = ir.IntegerAttr.get(element, 1) if is_integer else ir.FloatAttr.get(element, 0.5)
                    operation.attributes[name] = ir.DenseElementsAttr.get_splat(shape, value)
        return copy

    def list_symbols(self, program: Operation) -> list[str]:
        """Return the names of a program's functions, globals and executables; empty if there is only one."""
        names = [name for operation in _list_body(program) if (name := self._get_symbol(operation))]
        return names if len(names) > 1 else []

    def remove_symbols(self, program: Operation, names: Collection[str]) -> Operation:
        """Return a copy without these symbols."""
        copy = program.operation.clone().operation
        for operation in _list_body(copy):
            if self._get_symbol(operation) in names:
                operation.erase()
        return copy

    def list_functions(self, program: Operation) -> list[str]:
        """Return the names of functions with a body of one block, the longest first."""
        sizes = {
            self._get_symbol(operation): len(_list_body(operation))
            for operation in _list_body(program)
            if operation.name in FUNCTIONS and len(operation.regions[0].blocks) == 1
        }
        return sorted(sizes, key=lambda name: -sizes[name])

    def list_operations(self, program: Operation, name: str) -> list[Operation]:
        """Return the operations of a function without its terminator."""
        return _list_body(self._find_function(program, name))[:-1]

    def keep_operations(self, program: Operation, name: str, indices: Collection[int]) -> Operation:
        """Return a copy in which a function has only some of its operations.

        Needed operations whose results cannot be arguments (numbers, lists) stay, too. Tensors of removed operations
        become arguments; unused values are returned.
        """
        copy = program.operation.clone().operation
        function = self._find_function(copy, name)
        *operations, terminator = _list_body(function)
        arguments = set(function.regions[0].blocks[0].arguments)
        producers = {value: index for index, operation in enumerate(operations) for value in operation.results}
        needs = set(indices)
        uses: dict[Native, None] = {}
        for index in reversed(range(len(operations))):
            if index in needs:
                for value in (value for inner in _walk(operations[index]) for value in inner.operands):
                    uses[value] = None
                    if value in producers and not _can_be_argument(value):
                        needs.add(producers[value])
        # Used values that no kept operation makes.
        inputs = [
            value for value in uses if (value in producers and producers[value] not in needs) or value in arguments
        ]
        remaining = [operations[index] for index in sorted(needs)]
        results = [
            value
            for operation in remaining
            for value in operation.results
            if _can_be_argument(value) and value not in uses
        ]
        # A new function with these operations replaces the old one.
        ir = self._ir
        types, location = [value.type for value in inputs], function.location
        attributes = {
            key: value for key, value in list_attributes(function).items() if key not in _SIGNATURE_ATTRIBUTES
        }
        function_type = ir.FunctionType.get(types, [value.type for value in results])
        attributes["function_type"] = ir.TypeAttr.get(function_type)
        with location:
            new = ir.Operation.create(function.name, regions=1, attributes=attributes, ip=ir.InsertionPoint(function))
            block = new.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
            for operation in remaining:
                block.append(operation)
            for value, argument in zip(inputs, block.arguments, strict=True):
                value.replace_all_uses_with(argument)
            block.append(ir.Operation.create(terminator.name, operands=results))
        function.erase()
        return copy

    def _find_function(self, program: Operation, name: str) -> Operation:
        functions = (function for function in _list_body(program) if function.name in FUNCTIONS)
        return next(function for function in functions if self._get_symbol(function) == name)

    def _get_symbol(self, operation: Operation) -> str:
        return self._read_text(operation, "sym_name") if "sym_name" in operation.attributes else ""

    def _read_text(self, operation: Operation, attribute: str) -> str:
        return str(self._ir.StringAttr(operation.attributes[attribute]).value)

    def _get_values_type(self, attribute: Native) -> Operation:
        """Return the type of an attribute with many values; None for other attributes."""
        ir = self._ir
        if not (_is_instance(attribute, ir.DenseElementsAttr) or _is_instance(attribute, ir.DenseResourceElementsAttr)):
            return None
        shape = ir.ShapedType(attribute.type)
        if _is_instance(shape.element_type, ir.ComplexType):
            return None
        return shape if math.prod(shape.shape) >= _MIN_CONSTANT_ELEMENTS else None


def _list_body(program: Operation) -> list[Operation]:
    """Return the operations at the top of a program, or in a function of one block."""
    return [operation.operation for operation in program.operation.regions[0].blocks[0].operations]


def _walk(operation: Operation) -> Iterator[Operation]:
    """Yield an operation and all nested ones."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _walk(inner.operation)


def _list_counted(program: Operation) -> list[Operation]:
    """Return the operations of a program's functions, including nested operations."""
    return [operation for operation in _walk(program.operation) if operation.name not in _FRAME_OPERATIONS]


def _can_be_argument(value: Native) -> bool:
    return str(value.type).startswith(_ARGUMENT_TYPES)


def _is_instance(instance: Native, class_: Native) -> bool:
    # In older releases, `isinstance` is a method of the bindings' class.
    return bool(class_.isinstance(instance) if hasattr(class_, "isinstance") else isinstance(instance, class_))


class _TimeIsUpError(Exception):
    """The budget is spent."""


class _Oracle:
    """Compiles programs; returns the compiler's output if a program fails as expected, otherwise None."""

    def __init__(self, plan: _ReducePlan) -> None:
        self._plan = plan
        self._pattern = re.compile(plan.pattern)
        self._folder = Path(plan.folder)
        self._deadline = time.monotonic() + plan.budget
        self._outputs: dict[bytes, str | None] = {}
        self.tried = 0
        self.flags = list(plan.flags)

    def get_failure_output(self, program: bytes) -> str | None:
        """Compile a program, but never the same one twice; return the output of the expected failure, or None."""
        if program not in self._outputs:
            self._outputs[program] = self._compile(program)
        return self._outputs[program]

    def compile_finally(self, program: bytes) -> str:
        """Return the compiler's output for a program, even if the budget is spent."""
        self._deadline, self.flags = math.inf, list(self._plan.flags)
        self._compile(program)
        return (self._folder / "candidate.txt").read_text(encoding="utf-8", errors="replace")

    def convert(self) -> Path:
        """Compile the plan's program as far as to the dialects of the compiler's input; ValueError if that fails."""
        path = self._folder / "input.mlir"
        # Found by itself, the type of input is not known to all releases when the compiler stops there.
        flags = [flag for flag in self.flags if not flag.startswith("--iree-input-type")]
        flags += ["--iree-input-type=stablehlo", "--compile-to=input", "-o", str(path)]
        argv, plan = [self._plan.compile, self._plan.program, *flags], self._plan
        seconds = min(plan.timeout, plan.budget)
        try:
            subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, cwd=plan.cwd, check=True, timeout=seconds
            )
        except subprocess.SubprocessError as error:
            raise ValueError(
                "it is a portable artifact of StableHLO, whose conversion fails, and IREE's bindings cannot edit one; "
                "`init --program` also takes the text of the program, such as JAX's `exported.mlir_module()`"
            ) from error
        return path

    def narrow(self, program: bytes) -> str:
        """Find the earliest phase that is enough for the failure, and stop compiles there; empty if none is."""
        for phase in _PHASES:
            self.flags.append(f"--compile-to={phase}")
            if self._compile(program) is not None:
                return phase
            self.flags.pop()
        return ""

    def _compile(self, program: bytes) -> str | None:
        remaining_seconds = self._deadline - time.monotonic()
        if remaining_seconds <= 0:
            raise _TimeIsUpError
        self.tried += 1
        source = self._folder / "candidate.mlir"
        source.write_bytes(program)
        argv = [self._plan.compile, str(source), *self.flags, "-o", str(self._folder / "candidate.vmfb")]
        hang = self._plan.hang
        with (self._folder / "candidate.txt").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._plan.cwd)
            try:
                code = process.wait(hang or min(remaining_seconds, self._plan.timeout))
            except subprocess.TimeoutExpired:
                code = None
                # SIGABRT makes the compiler print its stack.
                process.send_signal(signal.SIGABRT)
                try:
                    process.wait(_ABORT_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if code is None and not hang and time.monotonic() >= self._deadline:
            raise _TimeIsUpError
        output = (self._folder / "candidate.txt").read_text(encoding="utf-8", errors="replace")
        fails = code is None if hang else (code is not None and (code < 0) is self._plan.crash and code != 0)
        is_same_failure = fails and any(self._pattern.search(line) for line in output.splitlines() or [""])
        return output if is_same_failure else None


class _Reducer:
    """The smallest program so far, and the edits that make it smaller."""

    def __init__(self, plan: _ReducePlan, edits: Edits, oracle: _Oracle) -> None:
        self._folder = Path(plan.folder)
        self._edits = edits
        self._oracle = oracle
        self.best = edits.parse(plan.program)
        self.size = edits.measure(self.best)
        # The compiler's output for the smallest program.
        self.output = ""

    def begin(self) -> str:
        """Check that the program also fails as bytecode; return the phase after which compiles may stop."""
        program = self._edits.write_bytecode(self.best)
        output = self._oracle.get_failure_output(program)
        if output is None:
            raise ValueError("passed on as bytecode, it does not fail in this way")
        self.output = output
        return self._oracle.narrow(program)

    def try_program(self, program: Operation, description: str) -> bool:
        """Keep a program if it is smaller and fails as before."""
        size = self._edits.measure(program)
        if size >= self.size or not self._edits.is_valid(program):
            return False
        output = self._oracle.get_failure_output(self._edits.write_bytecode(program))
        if output is None:
            return False
        self.best, self.size, self.output = program, size, output
        entry = {**size._asdict(), "tried": self._oracle.tried, "what": description}
        with (self._folder / "reduce.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        return True

    def reduce(self) -> None:
        """Try all edits."""
        self._remove_runs(lambda: self._edits.list_constants(self.best), self._edits.make_splats, "constants")
        previous_size = None
        while previous_size != self.size:
            previous_size = self.size
            self._remove_runs(
                lambda: self._edits.list_symbols(self.best), self._edits.remove_symbols, "functions and globals"
            )
            for name in self._edits.list_functions(self.best):
                self._reduce_function(name)

    def _reduce_function(self, name: str) -> None:
        edits = self._edits

        def try_operations(indices: Sequence[int], description: str) -> bool:
            return self.try_program(edits.keep_operations(self.best, name, indices), description)

        def count() -> int:
            return len(edits.list_operations(self.best, name))

        locations = [f":{int(line)}:{int(column)}" for line, column in _LOCATION_PATTERN.findall(self.output)]
        hits = [
            index
            for index, operation in enumerate(edits.list_operations(self.best, name))
            if any(location in str(operation.location) for location in locations)
        ]
        for margin in _MARGINS if hits else ():
            nearby = {i for index in hits for i in range(index - margin, index + margin + 1) if 0 <= i < count()}
            if try_operations(sorted(nearby), "what the diagnostic points at"):
                break
        low, high = 0, count()
        while high - low > 1:
            middle = (low + high) // 2
            if try_operations(range(middle), "without its end"):
                # The edit may have kept or dropped more operations than asked for.
                low, high = min(low, count()), min(middle, count())
            else:
                low = middle
        low, high = 0, count()
        while high - low > 1:
            middle = (low + high) // 2
            if try_operations(range(middle, count()), "without its beginning"):
                low, high = 0, count()
            else:
                high = middle
        self._remove_runs(
            lambda: list(range(count())),
            lambda best, out: edits.keep_operations(best, name, [i for i in range(count()) if i not in out]),
            "operations",
        )

    def _remove_runs(
        self, items: Callable[[], list[Operation]], remove: Callable[[Any, set[Any]], Any], description: str
    ) -> None:
        """Remove runs of items by delta debugging: first all items, then shorter runs, down to single items."""
        length = len(items())
        while length:
            start = 0
            while start < len(present_items := items()):
                removed_items = present_items[start : start + length]
                # If the items are removed, the next items move to this index.
                if not self.try_program(
                    remove(self.best, set(removed_items)), f"without {len(removed_items)} {description}"
                ):
                    start += length
            length //= 2


def _run(plan: _ReducePlan) -> None:
    folder = Path(plan.folder)
    find_package()
    edits = Edits(import_bindings())
    with edits.location:
        oracle = _Oracle(plan)
        try:
            reducer = _Reducer(plan, edits, oracle)
        except edits.errors as error:
            raise ValueError("it does not parse") from error
        if any(operation.name.startswith("vhlo.") for operation in _list_body(reducer.best)):
            # The bindings cannot edit a portable artifact of StableHLO.
            reducer = _Reducer(replace(plan, program=str(oracle.convert())), edits, oracle)
        size_before, phase, complete = reducer.size, "", False
        try:
            phase = reducer.begin()
            reducer.reduce()
            complete = True
        except _TimeIsUpError:
            pass
        summary = {
            "before": size_before._asdict(),
            "after": reducer.size._asdict(),
            "tried": oracle.tried,
            "complete": complete,
            "phase": phase,
            "constants": len(edits.list_constants(reducer.best)),
            "names": edits.list_names(reducer.best),
        }
        text = edits.format_text(reducer.best)
        (folder / "reduced.mlir").write_text(text, encoding="utf-8")
        # Compile the text: diagnostics name its lines, which differ from those in the bytecode's locations.
        (folder / "reduced.txt").write_text(oracle.compile_finally(text.encode()), encoding="utf-8")
        (folder / "end.json").write_text(json.dumps(summary), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    try:
        _run(_ReducePlan(**json.loads(Path(argv[0]).read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
