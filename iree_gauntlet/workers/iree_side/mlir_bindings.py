"""Types of the bindings of MLIR, as far as workers use them: those of IREE's compiler and of jaxlib declare none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.workers.iree_side.plan_file import Array


class IrAttribute(Protocol):
    """An attribute of an operation: a number, a text, a type, a list, an object, or the elements of a tensor.

    Attributes:
        name, attr: the parts of an object's entry.
        value: of a number or a text.
        type: of a tensor.
    """

    name: str
    attr: IrAttribute
    value: int | float | str
    type: object

    def __iter__(self) -> Iterator[IrAttribute]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> float: ...


class IrTensorType(Protocol):
    """The type of a tensor."""

    element_type: object
    shape: Sequence[int]
    has_static_shape: bool


class IrValue(Protocol):
    """A result of an operation, or an argument of a block."""

    type: object
    location: object
    context: object
    owner: IrOperation
    uses: Iterable[IrUse]

    def get_name(self) -> str:
        """Return the name that the text of the program has."""

    def set_location(self, location: object) -> None:
        """Change the location of an argument; older bindings lack this."""


class IrUse(Protocol):
    """A use of a value by an operation, as one of its operands."""

    owner: IrOperation
    operand_number: int


class IrBlock(Protocol):
    """A block of a region."""

    arguments: Sequence[IrValue]
    operations: Iterable[IrOperation]


class IrRegion(Protocol):
    """A region of an operation."""

    blocks: Sequence[IrBlock]


class IrOperation(Protocol):
    """An operation, or its view of the dialect, whose `operation` is the operation."""

    name: str
    operation: IrOperation
    attributes: MutableMapping[str, IrAttribute]
    operands: Sequence[IrValue]
    results: Sequence[IrValue]
    regions: Sequence[IrRegion]
    parent: IrOperation

    def walk(self, visit: Callable[[IrOperation], object]) -> None:
        """Visit the operation and all inside of it; each visit returns an `ir.WalkResult`."""

    def erase(self) -> None:
        """Remove the operation from its block."""


class IrModule(Protocol):
    """A parsed file."""

    body: IrBlock
    operation: IrOperation
    context: AbstractContextManager[object]


def read_string(operation: IrOperation, name: str) -> str:
    """Return a text attribute, also one of the versioned StableHLO; empty if it is missing."""
    if name not in operation.attributes:
        return ""
    match = re.fullmatch(r'(?:#vhlo\.string_v\d+<)?"(.*?)">?', str(operation.attributes[name]), re.DOTALL)
    return match[1] if match else ""


def read_narrow_elements(elements: IrAttribute, dtype: np.dtype[np.generic]) -> Array:
    """Read elements of bf16 and the like: the bindings have no buffer of them, but yield their values."""
    return np.array([elements[index] for index in range(len(elements))], np.float64).astype(dtype)
