"""Programs made smaller, by the bindings of MLIR: each edit gives a copy."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


_FUNCTIONS = ("func.func", "util.func")
# What a program of no operation has.
_FRAME = ("builtin.module", *_FUNCTIONS, "func.return", "util.return")
# What says how a function's arguments and results are passed on, which others have no use for.
_SIGNATURE = ("function_type", "arg_attrs", "res_attrs", "tied_operands")
# Types that an argument of a program may have; the values of all others are made where they are used.
_PASSED = ("tensor<", "!torch.vtensor", "!torch.tensor")
_NAMED = 5
# Constants of so many elements or more become of one value.
_LARGE = 16


class Edits:
    """What can be done to programs.

    Args:
        ir: the bindings' module.
    """

    def __init__(self, ir: Any) -> None:
        self._ir = ir
        self.context = ir.Context()
        # As iree-compile parses.
        self.context.allow_unregistered_dialects = True
        # Older releases want one for every attribute that is made.
        self.place = ir.Location.unknown(self.context)
        self.errors = (ir.MLIRError, ValueError)

    def parse(self, path: str) -> Any:
        """A program from a file, text or bytecode; one of `errors` where it is none."""
        # The file's path stands in the locations, which diagnostics print.
        return self._ir.Module.parseFile(path).operation

    def is_valid(self, program: Any) -> bool:
        """Whether the verifier takes it; it may refuse what an edit has left behind."""
        try:
            return bool(program.operation.verify())
        except self._ir.MLIRError:
            return False

    def bytecode(self, program: Any) -> bytes:
        """It, with its locations."""
        buffer = io.BytesIO()
        program.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def text(self, program: Any) -> str:
        """It, for people."""
        return f"{program.operation.get_asm(assume_verified=True)}\n".replace("\n\n", "\n")

    def size(self, program: Any) -> tuple[int, int]:
        """How many operations its functions have, nested ones too, and its bytes: what smaller means."""
        operations = sum(operation.name not in _FRAME for operation in _nested(program.operation))
        return operations, len(self.bytecode(program))

    def names(self, program: Any) -> list[str]:
        """What its first operations are called; of those that torch has no name for, what they were."""
        found = [operation for operation in _nested(program.operation) if operation.name not in _FRAME]
        return [self._name(operation) for operation in found[:_NAMED]]

    def _name(self, operation: Any) -> str:
        if operation.name != "torch.operator":
            return str(operation.name)
        return str(self._ir.StringAttr(operation.attributes["name"]).value)

    def constants(self, program: Any) -> list[tuple[int, str]]:
        """Attributes with many values: an operation's place in the program, and the attribute's name."""
        found = []
        for place, operation in enumerate(_nested(program.operation)):
            for name, attribute in _attributes(operation):
                shape = self._values(attribute)
                if shape is not None and not getattr(attribute, "is_splat", False):
                    found.append((place, name))
        return found

    def with_splats(self, program: Any, places: Collection[tuple[int, str]]) -> Any:
        """It, with constants at these places of one value."""
        copy = program.operation.clone().operation
        for place, operation in enumerate(_nested(copy)):
            for name, attribute in _attributes(operation):
                if (place, name) in places:
                    operation.attributes[name] = self._splat(self._values(attribute))
        return copy

    def symbols(self, program: Any) -> list[str]:
        """Names of its functions, globals and executables, while there are several."""
        names = [name for operation in _body(program) if (name := self._symbol(operation))]
        return names if len(names) > 1 else []

    def without_symbols(self, program: Any, names: Collection[str]) -> Any:
        """It, without these."""
        copy = program.operation.clone().operation
        for operation in _body(copy):
            if self._symbol(operation) in names:
                operation.erase()
        return copy

    def functions(self, program: Any) -> list[str]:
        """Names of functions with a body of one block, the longest first."""
        found = {
            self._symbol(operation): len(operation.regions[0].blocks[0].operations)
            for operation in _body(program)
            if operation.name in _FUNCTIONS and len(operation.regions[0].blocks) == 1
        }
        return sorted(found, key=lambda name: -found[name])

    def count(self, program: Any, name: str) -> int:
        """How many operations a function has, its end left out; 0 where there is none of the name."""
        function = self._function(program, name)
        return len(function.regions[0].blocks[0].operations) - 1 if function is not None else 0

    def at(self, program: Any, name: str, places: Collection[tuple[int, int]]) -> list[int]:
        """Which of a function's operations stand at some lines and columns."""
        function = self._function(program, name)
        if function is None:
            return []
        found = []
        for index, operation in enumerate(list(function.regions[0].blocks[0].operations)[:-1]):
            text = str(operation.operation.location)
            if any(f":{line}:{column}" in text for line, column in places):
                found.append(index)
        return found

    def with_operations(self, program: Any, name: str, kept: Collection[int]) -> Any:
        """It, with some operations of a function alone.

        Those that make what cannot be passed (numbers, lists) stay where they are needed. Tensors that come from what
        is taken out become arguments; what nothing uses is returned.
        """
        copy = program.operation.clone().operation
        function = self._function(copy, name)
        if function is None:
            return copy
        *operations, end = [operation.operation for operation in function.regions[0].blocks[0].operations]
        arguments = set(function.regions[0].blocks[0].arguments)
        makers = {value: index for index, operation in enumerate(operations) for value in operation.results}
        wanted = set(kept)
        used: dict[Any, None] = {}
        for index in reversed(range(len(operations))):
            if index in wanted:
                for value in _operands(operations[index]):
                    used[value] = None
                    if value in makers and not _is_passed(value):
                        wanted.add(makers[value])
        # What is used, and made neither by what is kept nor within it.
        given = [value for value in used if (value in makers and makers[value] not in wanted) or value in arguments]
        results = [
            value
            for index in sorted(wanted)
            for value in operations[index].results
            if _is_passed(value) and value not in used
        ]
        self._rebuild(function, [operations[index] for index in sorted(wanted)], given, results, end.name)
        return copy

    def _rebuild(
        self, function: Any, kept: Sequence[Any], given: Sequence[Any], results: Sequence[Any], end: str
    ) -> None:
        """Put a function of these operations in place of one: with arguments for the values that are given."""
        ir = self._ir
        types, location = [value.type for value in given], function.location
        attributes = {key: value for key, value in _attributes(function) if key not in _SIGNATURE}
        kind = ir.FunctionType.get(types, [value.type for value in results])
        attributes["function_type"] = ir.TypeAttr.get(kind)
        with location:
            made = ir.Operation.create(function.name, regions=1, attributes=attributes, ip=ir.InsertionPoint(function))
            block = made.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
            for operation in kept:
                block.append(operation)
            for value, argument in zip(given, block.arguments, strict=True):
                value.replace_all_uses_with(argument)
            block.append(ir.Operation.create(end, operands=list(results)))
        function.erase()

    def _function(self, program: Any, name: str) -> Any:
        return next(
            (found for found in _body(program) if found.name in _FUNCTIONS and self._symbol(found) == name), None
        )

    def _symbol(self, operation: Any) -> str:
        attributes = operation.attributes
        return str(self._ir.StringAttr(attributes["sym_name"]).value) if "sym_name" in attributes else ""

    def _values(self, attribute: Any) -> Any:
        """The type of an attribute with many values; None for others."""
        ir = self._ir
        if not (_is(attribute, ir.DenseElementsAttr) or _is(attribute, ir.DenseResourceElementsAttr)):
            return None
        shape = ir.ShapedType(attribute.type)
        if _is(shape.element_type, ir.ComplexType):
            return None
        count = 1
        for size in shape.shape:
            count *= size
        return shape if count >= _LARGE else None

    def _splat(self, shape: Any) -> Any:
        """Values of a type, all one."""
        ir = self._ir
        element = shape.element_type
        whole = _is(element, ir.IntegerType) or _is(element, ir.IndexType)
        one = ir.IntegerAttr.get(element, 1) if whole else ir.FloatAttr.get(element, 0.5)
        return ir.DenseElementsAttr.get_splat(shape, one)


def _body(program: Any) -> list[Any]:
    """What stands at the top of a program."""
    return [operation.operation for operation in program.operation.regions[0].blocks[0].operations]


def _nested(operation: Any) -> Iterator[Any]:
    """An operation and all in it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _nested(inner.operation)


def _attributes(operation: Any) -> list[tuple[str, Any]]:
    # Releases differ in what iterating over attributes gives: names, or names with values.
    names = [item if isinstance(item, str) else item.name for item in operation.attributes]
    return [(name, operation.attributes[name]) for name in names]


def _operands(operation: Any) -> Iterator[Any]:
    """What an operation takes, and those in it."""
    for inner in _nested(operation):
        yield from inner.operands


def _is_passed(value: Any) -> bool:
    return str(value.type).startswith(_PASSED)


def _is(what: Any, kind: Any) -> bool:
    # Releases differ: in older ones a class says what is of it.
    return bool(kind.isinstance(what) if hasattr(kind, "isinstance") else isinstance(what, kind))
