"""Operators that take indices: which operand is one, its range, and what an operator defines outside of it.

`_INDICES` has a row for each operator, of ONNX and of MLIR's dialects; names of ONNX begin with `onnx.`, and those of
the versioned StableHLO are its own without versions. `trace_indices` follows an input through operators that keep its
values to the operators that use it as an index. What is not in these tables may have any meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    # A size of a tensor: a number, the name of an input with its axis, or unknown.
    Size = int | tuple[str, int] | None


# What an operator defines outside of [0, size - 1]: nothing, indices from the end, or everything.
NOTHING, NEGATIVE, EVERYTHING = "nothing", "negative", "everything"
# What an operator does with an input's values: keeps their order and shape, keeps their order, moves or copies them.
SAME, FLAT, MOVED = 0, 1, 2


_Value = TypeVar("_Value")
_Follower_co = TypeVar("_Follower_co", covariant=True)


class Operator(Protocol[_Follower_co]):
    """An operator of a program."""

    @property
    def name(self) -> str:
        """Its name, with the dialect."""

    def get_shape(self, operand: int) -> Sequence[Size]:
        """Return the sizes of an operand; empty if they are unknown."""

    def get_result_shape(self) -> Sequence[Size]:
        """Return the sizes of the first result; empty if they are unknown."""

    def get_integers(self, name: str) -> Sequence[int] | None:
        """Return the integers of an attribute; None without it."""

    def get_constant(self, operand: int) -> int | None:
        """Return the value of an operand that is a constant integer."""

    def list_inner(self) -> Sequence[str]:
        """Return the names of the operations in the operator's regions."""

    def list_followers(self, operand: int) -> Sequence[_Follower_co]:
        """Return the values that are those of an operand."""


class ProgramGraph(Protocol[_Value]):
    """A program: the users of its values."""

    def list_users(self, value: _Value) -> Iterable[tuple[Operator[_Value], int]]:
        """Return the operators that take a value, and the number of the operand."""

    def get_integer_type(self, value: _Value) -> tuple[int, bool] | None:
        """Return the bits of an integer and whether it has a sign; None for other types."""


@dataclass(frozen=True, slots=True)
class IndexUse:
    """A use of an input as an index.

    Attributes:
        operator: its name.
        outside: `NOTHING`, `NEGATIVE` or `EVERYTHING`.
        sizes: the sizes of the dimensions that it may index.
        spans: the number of elements that are read from the index on, along these dimensions.
        by_column: True if the entries of the last axis index one dimension each, in order.
        distinct: whether two equal indices are undefined: empty, `anywhere`, or `along N`, an axis.
        computed: True if an arithmetic operator lies between input and operator.
        layout: what lies between them does to the order of values.
        bits: the bits of the narrowest integer between them.
        signed: False if an integer between them has no sign.
    """

    operator: str
    outside: str
    sizes: tuple[Size, ...]
    spans: tuple[int, ...]
    by_column: bool = False
    distinct: str = ""
    computed: bool = False
    layout: int = SAME
    bits: int = 64
    signed: bool = True


@dataclass(frozen=True, slots=True)
class _Dimensions:
    """The dimensions that an operand indexes."""

    sizes: Sequence[Size]
    spans: Sequence[int] = ()
    by_column: bool = False


@dataclass(frozen=True, slots=True)
class _Index:
    """An index of an operator.

    Attributes:
        first: the number of the operand; all from it on if `rest`.
        outside: what is defined outside of the range.
        find: returns the dimensions that an operand indexes.
        distinct: returns the rule for equal indices, as in `IndexUse`.
    """

    first: int
    outside: str
    find: Callable[[Operator[object], int], _Dimensions]
    rest: bool = False
    distinct: Callable[[Operator[object]], str] = lambda _: ""


def _name(dialect: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{dialect}.{name}" for name in names)


def _find_along(
    operand: int, attribute: str = "axis", default: int = 0
) -> Callable[[Operator[object], int], _Dimensions]:
    """Return the dimension of an operand that an attribute names."""

    def find(operator: Operator[object], _: int) -> _Dimensions:
        shape = operator.get_shape(operand)
        (axis,) = operator.get_integers(attribute) or (default,)
        return _Dimensions((shape[axis],))

    return find


def _find_along_constant(operator: Operator[object], _: int) -> _Dimensions:
    """Return the dimension of torch's operators: their second operand names it."""
    axis = operator.get_constant(1)
    return _Dimensions(() if axis is None else (operator.get_shape(0)[axis],))


def _find_columns(operator: Operator[object], operand: int) -> _Dimensions:
    """Return the dimensions of `GatherND` and `ScatterND`: one for each entry of the last axis."""
    count = operator.get_shape(operand)[-1]
    (start,) = operator.get_integers("batch_dims") or (0,)
    shape = operator.get_shape(0)
    columns = shape[start : start + count] if isinstance(count, int) else ()
    return _Dimensions(columns, by_column=True)


def _find_by_operand(shift: int, span_operand: int | None = None) -> Callable[[Operator[object], int], _Dimensions]:
    """Return the dimension that the number of an operand says; the spans are attributes, or an operand's sizes."""

    def find(operator: Operator[object], operand: int) -> _Dimensions:
        axis = operand - shift
        spans: Sequence[Size] = operator.get_integers("slice_sizes") or ()
        if span_operand is not None:
            spans = operator.get_shape(span_operand)
        span = spans[axis] if axis < len(spans) else 1
        return _Dimensions((operator.get_shape(0)[axis],), (span if isinstance(span, int) else 1,))

    return find


def _find_by_map(attribute: str) -> Callable[[Operator[object], int], _Dimensions]:
    """Return the dimensions of StableHLO's gather and scatter, which an attribute maps columns to."""

    def find(operator: Operator[object], operand: int) -> _Dimensions:
        shape, indices = operator.get_shape(0), operator.get_shape(operand)
        dimensions = operator.get_integers(attribute)
        if dimensions is None:
            return _Dimensions(())
        spans = operator.get_integers("slice_sizes") or [1] * len(shape)
        if not set(dimensions).issubset(operator.get_integers("inserted_window_dims") or dimensions):
            # Windows of a scatter that overlap, or lie half outside.
            return _Dimensions(())
        # MLIR's text leaves out what is 0.
        (vector_axis,) = operator.get_integers("index_vector_dim") or (0,)
        by_column = vector_axis == len(indices) - 1
        sizes = [shape[axis] for axis in dimensions]
        return _Dimensions(sizes, [spans[axis] for axis in dimensions], by_column=by_column)

    return find


def _keep_apart(operator: Operator[object]) -> str:
    """Return the rule for indices of StableHLO's scatter: equal ones are defined if it combines by one operation."""
    names = operator.list_inner()
    is_combining = len(names) == 2 and re.search(r"add|multiply|minimum|maximum|and$|or$", names[0])
    return "anywhere" if any(operator.get_integers("unique_indices") or ()) or not is_combining else ""


def _keep_apart_along(operator: Operator[object]) -> str:
    (axis,) = operator.get_integers("axis") or (0,)
    return "" if operator.get_integers("reduction") else f"along {axis}"


_ONNX_SCATTER = _Index(1, NEGATIVE, _find_along(0), distinct=_keep_apart_along)
# The operands in a list are counted from here on.
LIST_OPERANDS = 100
_TORCH_INDEX = _Index(
    LIST_OPERANDS,
    NEGATIVE,
    lambda operator, operand: _Dimensions((operator.get_shape(0)[operand - LIST_OPERANDS],)),
    rest=True,
)
_TORCH_ALONG = _Index(2, NOTHING, _find_along_constant)
_STABLEHLO_GATHER = _Index(1, EVERYTHING, _find_by_map("start_index_map"))
_CLASSES = _Index(1, NOTHING, lambda operator, _: _Dimensions((operator.get_shape(0)[1],)))
# The operands of a tensor's element; outside of the tensor, memory is read.
_ELEMENT = _Index(1, NOTHING, _find_by_operand(1), rest=True)
_INDICES: dict[str, _Index] = {
    "onnx.Gather": _Index(1, NEGATIVE, _find_along(0)),
    "onnx.GatherElements": _Index(1, NEGATIVE, _find_along(0)),
    "onnx.GatherND": _Index(1, NEGATIVE, _find_columns),
    "onnx.NegativeLogLikelihoodLoss": _CLASSES,
    # Values outside of the range have no "on" value.
    "onnx.OneHot": _Index(
        0,
        EVERYTHING,
        lambda operator, _: _Dimensions((operator.get_result_shape()[(operator.get_integers("axis") or (-1,))[0]],)),
    ),
    "onnx.RoiAlign": _Index(2, NOTHING, _find_along(0)),
    "onnx.Scatter": _ONNX_SCATTER,
    "onnx.ScatterElements": _ONNX_SCATTER,
    "onnx.ScatterND": _Index(
        1, NEGATIVE, _find_columns, distinct=lambda operator: "" if operator.get_integers("reduction") else "anywhere"
    ),
    "onnx.SoftmaxCrossEntropyLoss": _CLASSES,
    # Start indices are clamped so that a slice is within its operand.
    "stablehlo.gather": _STABLEHLO_GATHER,
    "stablehlo.dynamic_gather": _STABLEHLO_GATHER,
    "stablehlo.dynamic_slice": _Index(1, EVERYTHING, _find_by_operand(1), rest=True),
    "stablehlo.dynamic_update_slice": _Index(2, EVERYTHING, _find_by_operand(2, 1), rest=True),
    # Updates outside are left out.
    "stablehlo.scatter": _Index(1, EVERYTHING, _find_by_map("scatter_dims_to_operand_dims"), distinct=_keep_apart),
    "tosa.gather": _Index(1, NOTHING, lambda operator, _: _Dimensions((operator.get_shape(0)[1],))),
    "tosa.scatter": _Index(
        1, NOTHING, lambda operator, _: _Dimensions((operator.get_shape(0)[1],)), distinct=lambda _: "along 1"
    ),
    "torch.aten.embedding": _Index(1, NOTHING, lambda operator, _: _Dimensions((operator.get_shape(0)[0],))),
    "torch.aten.gather": _TORCH_ALONG,
    "torch.aten.index.Tensor": _TORCH_INDEX,
    "torch.aten.index.Tensor_hacked_twin": _TORCH_INDEX,
    "torch.aten.index_put": replace(
        _TORCH_INDEX, distinct=lambda operator: "" if operator.get_constant(3) else "anywhere"
    ),
    "torch.aten.index_select": _TORCH_ALONG,
    "torch.aten.nll_loss_forward": _CLASSES,
    "torch.aten.one_hot": _Index(0, NOTHING, lambda operator, _: _Dimensions((operator.get_constant(1),))),
    "torch.aten.scatter.src": replace(_TORCH_ALONG, distinct=lambda operator: f"along {operator.get_constant(1)}"),
    "torch.aten.scatter.value": _TORCH_ALONG,
    "torch.aten.scatter_add": _TORCH_ALONG,
    "tensor.extract": _ELEMENT,
    "tensor.insert": _Index(2, NOTHING, _find_by_operand(2), rest=True),
}
# Operators that keep an operand's values, by the operands: those with this number or a lower one.
_ALL = 1 << 16
_KEEPING: dict[str, tuple[int, int]] = {
    **dict.fromkeys(_name("onnx", "Cast", "Identity"), (0, SAME)),
    **dict.fromkeys(_name("onnx", "Flatten", "Reshape", "Squeeze", "Unsqueeze"), (0, FLAT)),
    "onnx.Transpose": (0, MOVED),
    "stablehlo.convert": (0, SAME),
    "stablehlo.optimization_barrier": (_ALL, SAME),
    **dict.fromkeys(_name("stablehlo", "reshape", "dynamic_reshape"), (0, FLAT)),
    **dict.fromkeys(_name("stablehlo", "broadcast_in_dim", "dynamic_broadcast_in_dim"), (0, FLAT)),
    **dict.fromkeys(_name("stablehlo", "reverse", "slice", "transpose"), (0, MOVED)),
    "stablehlo.concatenate": (_ALL, MOVED),
    **dict.fromkeys(_name("tosa", "cast", "identity"), (0, SAME)),
    "tosa.reshape": (0, FLAT),
    **dict.fromkeys(_name("tosa", "reverse", "slice", "tile", "transpose"), (0, MOVED)),
    "tosa.concat": (_ALL, MOVED),
    **dict.fromkeys(_name("arith", "index_cast", "index_castui", "extsi", "extui"), (0, SAME)),
    **dict.fromkeys(("tensor.cast", "func.call", "func.return"), (_ALL, SAME)),
    **dict.fromkeys(_name("tensor", "collapse_shape", "expand_shape"), (0, FLAT)),
    **dict.fromkeys(_name("tensor", "extract", "extract_slice"), (0, MOVED)),
    **dict.fromkeys(_name("linalg", "generic", "yield"), (_ALL, MOVED)),
    **dict.fromkeys(_name("torch.aten", "alias", "clone", "contiguous", "detach", "to.dtype", "_to_copy"), (0, SAME)),
    "torch.prims.convert_element_type": (0, SAME),
    **dict.fromkeys(
        _name("torch.aten", "flatten.using_ints", "reshape", "squeeze", "squeeze.dim", "unsqueeze", "view"), (0, FLAT)
    ),
    **dict.fromkeys(_name("torch.aten", "expand", "permute", "slice.Tensor", "t", "transpose.int"), (0, MOVED)),
    "torch.aten.cat": (_ALL, MOVED),
}
# Operators that compute something that is near a value, as JAX does with negative indices; they have these operands.
_COMPUTING: dict[str, Collection[int]] = {
    **dict.fromkeys(_name("stablehlo", "add", "clamp", "maximum", "minimum", "subtract"), (0, 1, 2)),
    "stablehlo.remainder": (0,),
    "stablehlo.select": (1, 2),
}
# Operators that are defined for all values, and give none that depends on their size.
_TOTAL = frozenset(
    (
        *_name("onnx", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Shape", "Size"),
        *_name("stablehlo", "compare", "get_dimension_size"),
        *_name("tosa", "equal", "greater", "greater_equal"),
        *("arith.cmpi", "func.return"),
    )
)


def _find_row(operator: Operator[_Value], operand: int) -> _Index | None:
    row = _INDICES.get(operator.name)
    return row if row and (operand >= row.first if row.rest else operand == row.first) else None


def find_bound(operator: Operator[_Value], operand: int) -> int:
    """Return the least index that is outside of some dimension that an operand indexes; 0 if it is unknown, or none."""
    row = _find_row(operator, operand)
    use = _find_use(row, operator, operand) if row else None
    return min((size for size in use.sizes if isinstance(size, int)), default=0) if use else 0


def trace_indices(graph: ProgramGraph[_Value], value: _Value) -> tuple[tuple[IndexUse, ...], bool]:
    """Find the uses of an input as an index; return also whether all of its uses are known."""
    uses: dict[IndexUse, None] = {}
    is_known = True
    first = _Trace(value, computed=False, layout=SAME, bits=64, signed=True)
    waiting, earlier_values = [first], {first}
    while waiting:
        traced = waiting.pop()
        for operator, operand in graph.list_users(traced.value):
            row = _find_row(operator, operand)
            if row is not None:
                use = _find_use(row, operator, operand, traced)
                is_known = is_known and use is not None
                uses |= {use: None} if use else {}
                continue
            followers = list(_follow(graph, operator, operand, traced))
            is_known = is_known and (bool(followers) or operator.name in _TOTAL)
            for follower in followers:
                if follower not in earlier_values:
                    earlier_values.add(follower)
                    waiting.append(follower)
    # A computed index has another range than the input.
    if any(use.computed and use.outside != EVERYTHING for use in uses):
        is_known = False
    return tuple(use for use in uses if not use.computed or use.outside == EVERYTHING), is_known


@dataclass(frozen=True, slots=True)
class _Trace(Generic[_Value]):
    """A value on the way from an input to an index; the attributes are those of `IndexUse`."""

    value: _Value
    computed: bool
    layout: int
    bits: int
    signed: bool


def _find_use(
    row: _Index, operator: Operator[_Value], operand: int, traced: _Trace[_Value] | None = None
) -> IndexUse | None:
    """Return the use of a value as an index; None if the operator's dimensions are unknown."""
    try:
        dimensions = row.find(operator, operand)
        distinct = row.distinct(operator)
    except (IndexError, TypeError, ValueError):
        return None
    if not dimensions.sizes:
        return None
    spans = tuple(dimensions.spans or [1] * len(dimensions.sizes))
    use = IndexUse(operator.name, row.outside, tuple(dimensions.sizes), spans, dimensions.by_column, distinct)
    if traced is None:
        return use
    return replace(use, computed=traced.computed, layout=traced.layout, bits=traced.bits, signed=traced.signed)


def _is_repeating(operator: Operator[object]) -> bool:
    """Return whether a broadcast may have more values than its operand."""
    sizes = [size for size in operator.get_shape(0) if size != 1]
    return None in sizes or sizes != [size for size in operator.get_result_shape() if size != 1]


def _follow(
    graph: ProgramGraph[_Value], operator: Operator[_Value], operand: int, traced: _Trace[_Value]
) -> Iterator[_Trace[_Value]]:
    """Yield the values that are made of a value."""
    last, layout = _KEEPING.get(operator.name, (-1, SAME))
    if layout == FLAT and "broadcast" in operator.name and _is_repeating(operator):
        layout = MOVED
    is_computing = operand in _COMPUTING.get(operator.name, ())
    if operand > last and not is_computing:
        return
    for follower in operator.list_followers(operand):
        kind = graph.get_integer_type(follower)
        if kind is None:
            continue
        bits, signed = kind
        yield _Trace(
            follower,
            computed=traced.computed or is_computing,
            layout=max(traced.layout, layout),
            bits=min(traced.bits, bits),
            signed=traced.signed and signed,
        )
