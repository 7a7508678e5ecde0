"""Many programs become one, their symbols made unique, so that one compile does for all of them.

Locations stay as they are, so that a diagnostic says which program it belongs to.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    # Objects of MLIR's bindings, which have no types: the module `ir`, operations, and all others.
    Bindings = Any
    Operation = Any
    Native = Any


_DIALECTS = "iree.compiler.dialects"
FUNCTIONS = ("func.func", "util.func")


@dataclass(slots=True)
class MergedPrograms:
    """What came of a merge.

    Attributes:
        module: the programs as one, MLIR bytecode; empty where some are no part of it.
    """

    module: bytes = b""
    functions: list[list[str]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def import_bindings() -> Bindings:
    """The compiler's `ir` module without what imports NumPy, which costs more than a merge."""
    if _DIALECTS not in sys.modules:
        # Operations of all dialects are taken as operations, and not as the classes that it has for some.
        sys.modules[_DIALECTS] = ModuleType(_DIALECTS)
        sys.modules[_DIALECTS].__path__ = []
    from iree.compiler import _mlir_libs  # noqa: PLC0415  needs the empty package that find_package makes

    return _mlir_libs._mlir.ir  # noqa: SLF001  the name under which the wheel's own `ir` takes it


def merge_programs(programs: Sequence[str], prefixes: Sequence[str]) -> MergedPrograms:
    """Merge programs into one module.

    Every symbol at the top of a program gets the program's prefix, and all references to it, those inside of
    functions and globals included. The module's own name goes.
    """
    ir = import_bindings()
    merged = MergedPrograms()
    with ir.Context() as context:
        # As iree-compile parses.
        context.allow_unregistered_dialects = True
        whole = ir.Module.create(ir.Location.unknown())
        attributes: dict[str, Native] | None = None
        for index, (path, prefix) in enumerate(zip(programs, prefixes, strict=True)):
            names: list[str] = []
            merged.functions.append(names)
            try:
                # From the file: its path stands in the locations, which diagnostics print.
                part = ir.Module.parseFile(path)
            except (OSError, ir.MLIRError) as error:
                merged.refused[index] = str(error)
                continue
            own = {name: value for name, value in list_attributes(part.operation).items() if name != "sym_name"}
            if attributes is None:
                attributes = own
                for name, value in own.items():
                    whole.operation.attributes[name] = value
            if own != attributes:
                merged.refused[index] = f"{path}: error: its module has other attributes than the first program's"
                continue
            names += _take_over(ir, whole, part, prefix)
        if not merged.refused:
            buffer = io.BytesIO()
            whole.operation.write_bytecode(buffer)
            merged.module = buffer.getvalue()
    return merged


def list_attributes(operation: Operation) -> dict[str, Native]:
    """An operation's attributes by their names."""
    # Releases differ in what iterating over attributes gives: names, or names with values.
    names = [item if isinstance(item, str) else item.name for item in operation.attributes]
    return {name: operation.attributes[name] for name in names}


def _take_over(ir: Bindings, whole: Operation, part: Operation, prefix: str) -> list[str]:
    """Move a program's operations into the whole, renamed."""
    functions = []
    operations = list(part.operation.regions[0].blocks[0].operations)
    for operation in operations:
        attributes = operation.operation.attributes
        if "sym_name" not in attributes:
            continue
        old = ir.StringAttr(attributes["sym_name"]).value
        new = prefix + old
        ir.SymbolTable.replace_all_symbol_uses(old, new, part.operation)
        ir.SymbolTable.set_symbol_name(operation, new)
        if operation.operation.name in FUNCTIONS:
            public = "sym_visibility" not in attributes or str(attributes["sym_visibility"]) != '"private"'
            if public and len(operation.operation.regions[0].blocks) > 0:
                functions.append(new)
    for operation in operations:
        whole.body.append(operation)
    return functions
