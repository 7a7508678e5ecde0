"""Inputs that touch edges: equal and extreme values, the ends of what indices may be, and small open sizes.

What an operator defines outside of an index's range is in `index_operators.py`. Indices that an operator does not
define are never chosen: where not all uses of an input are known, it keeps to what a reference has already run.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.upkeep.input_choices import (
    MAX_LITERAL_VALUES,
    NPY_MAGIC,
    InputChoice,
    find_needed_values,
    find_users,
    infer_shapes,
    make_file_content,
    make_operator,
    read_attribute,
)
from iree_gauntlet.workers.iree_side.index_operators import (
    EVERYTHING,
    FLAT,
    NEGATIVE,
    NOTHING,
    SAME,
    IndexUse,
    trace_indices,
)
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, find_dtype, walk_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.upkeep.input_choices import OperatorUse
    from iree_gauntlet.upkeep.programs import ProgramInput, UserProgram
    from iree_gauntlet.workers.iree_side.index_operators import Operator, Size

    Integers = NDArray[np.int64]
    Sizes = tuple[int, ...]

# The types whose values may be at edges, and the number of values from which on they are.
_EDGE_TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64")
_MIN_EDGE_VALUES = 4
_INDEX_TYPES = ("i8", "i16", "i32", "i64")
# The sets of indices for an input with fewer values than ends.
_MAX_SETS = 4
# The lists of distinct indices that are made.
_MAX_ROWS = 1 << 16
_ONNX_INTEGERS = {2: (8, False), 3: (8, True), 4: (16, False), 5: (16, True), 6: (32, True), 7: (64, True)} | {
    12: (32, False),
    13: (64, False),
}


def make_edge_choices(program: UserProgram, choices: Sequence[InputChoice]) -> tuple[InputChoice, ...]:
    """Make inputs that touch edges, of the types and ranges of others: equal neighbours, the extremes, both zeros.

    Indices stay: equal ones may be undefined.
    """
    uses = _find_uses(program, choices)
    return tuple(choice if item.uses else _touch_edges(choice) for choice, item in zip(choices, uses, strict=True))


def _read_values(choice: InputChoice, dtype: np.dtype[Any]) -> NDArray[Any]:
    if choice.values:
        return np.array([int(text) if dtype.kind in "iu" else float(text) for text in choice.values.split()]).astype(
            dtype
        )
    if choice.content is None:
        return parse_seeded(choice.source).generate().view(dtype)
    is_npy = choice.content.startswith(NPY_MAGIC)
    return np.load(io.BytesIO(choice.content)) if is_npy else np.frombuffer(choice.content, dtype)


def _get_dtype(tensor: ProgramInput) -> np.dtype[Any]:
    """Return the type of an integer input."""
    return find_dtype(tensor.dtype or f"int{tensor.element_type[1:]}")


def _read_sizes(choice: InputChoice) -> Sizes:
    return tuple(map(int, choice.type.split("x")[:-1]))


def _touch_edges(choice: InputChoice) -> InputChoice:
    element = choice.type.rpartition("x")[2]
    name = next((name for name in _EDGE_TYPES if ELEMENT_TYPES[name] == element), "")
    if not name:
        return choice
    dtype = find_dtype(name)
    array = _read_values(choice, dtype)
    if array.size < _MIN_EDGE_VALUES:
        # A scalar, or the sizes that an operator needs.
        return choice
    low, high = array.min(), array.max()
    # An integer within the range may be undefined, such as a divisor.
    has_zero = low <= 0 <= high if dtype.kind not in "iu" else 0 in array
    pattern = np.array([high, high, low, *([0.0, -0.0, 0.0] if has_zero else []), low, high]).astype(dtype)
    edges = np.resize(pattern, _read_sizes(choice))
    return InputChoice(choice.name, choice.type, content=make_file_content(edges), zero=choice.zero, reason="edges")


@dataclass(frozen=True, slots=True)
class _InputUses:
    """The uses of an input as an index, with their sizes; `known` is False if it has other, unknown uses."""

    uses: tuple[IndexUse, ...] = ()
    known: bool = True

    @property
    def distinct_uses(self) -> list[IndexUse]:
        """The uses with an own rule for equal indices; the same rule several times is one."""
        rules = {(use.distinct, use.sizes, use.by_column, use.layout): use for use in self.uses if use.distinct}
        return [*rules.values()]


def _find_uses(program: UserProgram, choices: Sequence[InputChoice]) -> list[_InputUses]:
    """Find the indices among a program's inputs, for the sizes of its chosen inputs."""
    shapes = {choice.name: _read_sizes(choice) for choice in choices}
    if program.model is None:
        return [
            _InputUses(tuple(_resolve(use, shapes) for use in tensor.index_uses), tensor.uses_known)
            if tensor.element_type in _INDEX_TYPES
            else _InputUses()
            for tensor in program.inputs
        ]
    graph = _OnnxGraph(program.model, infer_shapes(program.model, shapes))
    return [
        _InputUses(*trace_indices(graph, tensor.name)) if tensor.element_type in _INDEX_TYPES else _InputUses()
        for tensor in program.inputs
    ]


def _resolve(use: IndexUse, shapes: Mapping[str, Sizes]) -> IndexUse:
    """Return a use with the sizes of inputs in place of their names."""
    sizes = tuple(shapes[size[0]][size[1]] if isinstance(size, tuple | list) else size for size in use.sizes)
    return replace(use, sizes=sizes)


class _OnnxGraph:
    """A model as `index_operators.py` sees it: its values are names."""

    def __init__(self, model: Any, shapes: Mapping[str, Sizes]) -> None:
        self._shapes = shapes
        self._users: dict[str, list[tuple[Any, int]]] = {}
        self._casts: dict[str, int] = {}
        for node in walk_nodes(model):
            for index, name in enumerate(node.input):
                self._users.setdefault(name, []).append((node, index))
            if node.op_type == "Cast":
                self._casts[node.output[0]] = read_attribute(node, "to", 0)

    def list_users(self, value: str) -> Sequence[tuple[Operator[str], int]]:
        return [(make_operator(node, self._shapes), index) for node, index in self._users.get(value, ())]

    def get_integer_type(self, value: str) -> tuple[int, bool] | None:
        # Other operators that are followed keep the type.
        return _ONNX_INTEGERS.get(self._casts[value]) if value in self._casts else (64, True)


def make_index_choices(
    program: UserProgram, choices: Sequence[InputChoice]
) -> Iterator[tuple[bool, tuple[InputChoice, ...]]]:
    """Yield sets of inputs with the ends of indices, each with whether some are outside of the range.

    An input with few values needs several sets. Without an index there is none.
    """
    options = []
    for tensor, choice, uses in zip(program.inputs, choices, _find_uses(program, choices), strict=True):
        ends = _choose_ends(program, tensor, choice, choices)
        options.append(ends or _choose_indices(program, tensor, choice, uses))
    earlier_sets = {_list_contents(choices)}
    for outside in (False, True):
        chosen = [
            [item for is_outside, item in option if is_outside == outside] or [item for _, item in option]
            for option in options
        ]
        has_any = any(is_outside == outside for option in options for is_outside, _ in option)
        for index in range(max(map(len, chosen), default=0) if has_any else 0):
            pairs = zip(chosen, choices, strict=True)
            inputs = tuple(items[index % len(items)] if items else choice for items, choice in pairs)
            if (contents := _list_contents(inputs)) not in earlier_sets:
                earlier_sets.add(contents)
                yield outside, inputs


def _list_contents(choices: Sequence[InputChoice]) -> tuple[tuple[str, str, bytes | None], ...]:
    """List the values of inputs, without the reasons for them."""
    return tuple((choice.values, choice.source, choice.content) for choice in choices)


def fit_indices(program: UserProgram, sets: Iterable[tuple[InputChoice, ...]]) -> Iterator[tuple[InputChoice, ...]]:
    """Yield sets of inputs whose indices are within the range, and distinct where equal ones are undefined."""
    nodes = walk_nodes(program.model) if program.model is not None else ()
    if program.model is not None and not any(node.op_type.startswith("Scatter") for node in nodes):
        # The indices of ONNX's other operators have been chosen within their range.
        yield from sets
        return
    for choices in sets:
        uses = _find_uses(program, choices)
        yield tuple(
            _fit(tensor, choice, item) if item.uses and item.known else choice
            for tensor, choice, item in zip(program.inputs, choices, uses, strict=True)
        )


def _fit(tensor: ProgramInput, choice: InputChoice, item: _InputUses) -> InputChoice:
    dtype, distinct_uses = _get_dtype(tensor), item.distinct_uses
    if len(distinct_uses) == 1:
        limits = _Limits(0, int(np.iinfo(dtype).max))
        indices = _fill_distinct(replace(distinct_uses[0], outside=NOTHING), limits, _read_sizes(choice))
        return choice if indices is None else _make_choice(choice, indices, dtype, "no two are equal")
    dimensions = [pair for use in item.uses for pair in zip(use.sizes, use.spans, strict=True)]
    count = min((size - span + 1 for size, span in dimensions if isinstance(size, int)), default=0)
    values = _read_values(choice, dtype).astype(np.int64)
    if count <= 0 or ((values >= 0) & (values < count)).all():
        return choice
    return _make_choice(choice, values % count, dtype, f"below {count}, where {item.uses[0].operator} looks")


def _choose_indices(
    program: UserProgram, tensor: ProgramInput, choice: InputChoice, item: _InputUses
) -> list[tuple[bool, InputChoice]]:
    """Return choices of an index, each with whether some are outside of the range; empty if none is defined."""
    count, distinct_uses = math.prod(_read_sizes(choice)), item.distinct_uses
    if not item.uses or not count or len(distinct_uses) > 1:
        return []
    # What else an index is used for may not be defined for all integers.
    uses = item.uses if item.known else tuple(replace(use, outside=NOTHING) for use in item.uses)
    dtype = _get_dtype(tensor)
    sample = _read_values(choice, dtype).astype(np.int64).reshape(-1)
    limits = _find_limits(uses, dtype, sample)
    arrays = []
    for outside in (False, any(use.outside == EVERYTHING for use in uses)):
        if distinct_uses:
            use = next(use for use in uses if use.distinct)
            use = use if outside else _drop_outside(use)
            array = _fill_distinct(use, limits, _read_sizes(choice))
            arrays += [(outside, array)] if array is not None else []
        else:
            arrays += [(outside, array) for array in _fill(uses, limits, count, outside=outside)]
    known = {*sample.tolist()} if not item.known and program.model is None else None
    operators = ", ".join(dict.fromkeys(use.operator.removeprefix("onnx.") for use in item.uses))
    return [
        (outside, _make_choice(choice, array, dtype, f"ends of the indices of {operators}"))
        for outside, array in arrays
        if limits.contain(array) and (known is None or known.issuperset(array.reshape(-1).tolist()))
    ]


def _make_choice(choice: InputChoice, array: Integers, dtype: np.dtype[Any], reason: str) -> InputChoice:
    if array.size <= MAX_LITERAL_VALUES:
        values = " ".join(map(str, array.reshape(-1).tolist()))
        return InputChoice(choice.name, choice.type, values=values, zero=choice.zero, reason=reason)
    content = make_file_content(array.astype(dtype))
    return InputChoice(choice.name, choice.type, content=content, zero=choice.zero, reason=reason)


@dataclass(frozen=True, slots=True)
class _Limits:
    """The values of an input that are defined, both ends included."""

    low: int
    high: int

    def contain(self, array: Integers) -> bool:
        """Return whether all values are defined."""
        return bool((array >= self.low).all() and (array <= self.high).all())


def _find_limits(uses: Sequence[IndexUse], dtype: np.dtype[Any], sample: Integers) -> _Limits:
    """Find the values of an input of a type that all of its uses define; `sample` are values that ran."""
    bits = min([8 * dtype.itemsize, *(use.bits for use in uses)])
    # An arithmetic operator may overflow near the type's ends.
    room = bits - 2 if any(use.computed for use in uses) else bits - 1
    signed = dtype.kind == "i" and all(use.signed for use in uses)
    # XLA reads the larger half of unsigned indices as negative ones.
    low, high = -(1 << room) if signed else 0, (1 << room) - 1
    # Columns have limits of their own.
    for use in () if _has_columns(uses) else uses:
        for size, span in zip(use.sizes, use.spans, strict=True) if use.outside != EVERYTHING else ():
            lower = 0 if use.outside == NOTHING else -size if isinstance(size, int) else -1
            upper = size - span if isinstance(size, int) else int(sample.max())
            low, high = max(low, lower), min(high, upper)
    return _Limits(low, high)


def _has_columns(uses: Sequence[IndexUse]) -> bool:
    """Return whether the last axis of an input has one index for each of several dimensions."""
    return len(uses) == 1 and uses[0].by_column and len(uses[0].sizes) > 1 and uses[0].layout <= FLAT


def _drop_outside(use: IndexUse) -> IndexUse:
    """Return a use without what it defines outside of the range."""
    return replace(use, outside=NOTHING) if use.outside == EVERYTHING else use


def _list_marks(outside: str, size: Size, span: int, limits: _Limits) -> list[int]:
    """List the ends of an index, the most telling first."""
    if not isinstance(size, int):
        marks = {NOTHING: [0], NEGATIVE: [0, -1], EVERYTHING: [-1, 0, limits.high, limits.low]}[outside]
    else:
        last = size - span
        outer = [size, 0, -1, last + 1, limits.high, limits.low, -size, -size - 1]
        marks = [last, *{NOTHING: [0], NEGATIVE: [-size, 0, -1], EVERYTHING: outer}[outside]] if last >= 0 else []
    return [mark for mark in dict.fromkeys(marks) if limits.low <= mark <= limits.high]


def _fill(uses: Sequence[IndexUse], limits: _Limits, count: int, *, outside: bool) -> Iterator[Integers]:
    """Yield arrays of the ends of all uses, in turn; those outside of the range are among others if there is room."""
    dimensions = [(use, size, span) for use in uses for size, span in zip(use.sizes, use.spans, strict=True)]
    columns = []
    for group in [[item] for item in dimensions] if _has_columns(uses) else [dimensions]:
        marks = [
            mark for use, size, span in group for mark in _list_marks(_drop_outside(use).outside, size, span, limits)
        ]
        if outside:
            inside = marks if count == 1 else []
            marks = [mark for use, size, span in group for mark in _list_marks(use.outside, size, span, limits)]
            marks = [mark for mark in marks if mark not in inside]
        columns.append(list(dict.fromkeys(marks)))
    if not all(columns) or count % len(columns):
        return
    rows = count // len(columns)
    for start in range(0, min(max(map(len, columns)), rows * _MAX_SETS), rows):
        values = [[column[(start + row) % len(column)] for column in columns] for row in range(rows)]
        yield np.array(values, np.int64).reshape(-1)


def _fill_distinct(use: IndexUse, limits: _Limits, shape: Sizes) -> Integers | None:
    """Return indices of which no two are equal, the ends first; None if there are not enough, or they are unknown."""
    sizes = [size for size in use.sizes if isinstance(size, int)]
    count = math.prod(shape)
    if len(sizes) != len(use.sizes) or use.layout > FLAT or not all(sizes):
        return None
    if use.distinct != "anywhere":
        axis, size = int(use.distinct.partition(" ")[2]), sizes[0]
        if use.layout != SAME:
            shape, axis = (count,), 0
        if not -len(shape) <= axis < len(shape) or shape[axis] > size:
            return None
        line = np.array([size - 1, *range(size - 1)], np.int64)[: shape[axis]]
        grid = np.moveaxis(np.broadcast_to(line, (*shape[:axis], *shape[axis:][1:], shape[axis])), -1, axis)
        # Every second one is counted from the end.
        offsets: Integers = size * (np.indices(shape).sum(axis=0) % 2) * (limits.low <= -size)
        return grid - offsets
    rows, total = count // len(sizes), math.prod(sizes)
    if (len(sizes) > 1 and not use.by_column) or rows * len(sizes) != count or rows > _MAX_ROWS:
        return None
    inside = [total - 1, *range(min(total - 1, rows))]
    indices = np.stack(np.unravel_index(inside, sizes), axis=-1).astype(np.int64)
    if use.outside == EVERYTHING:
        outer = np.array(sizes, np.int64)
        ends = [indices[0], outer, *indices[1:2], *([-outer - 1] if limits.low < 0 else []), *indices[2:]]
        indices = np.stack([*ends, *([outer] * max(0, rows - len(ends)))])
    elif limits.low < 0 and use.outside == NEGATIVE:
        indices[1::2] -= np.array(sizes, np.int64)
    return indices[:rows].reshape(-1) if len(indices) >= rows else None


def _choose_ends(
    program: UserProgram, tensor: ProgramInput, choice: InputChoice, choices: Sequence[InputChoice]
) -> list[tuple[bool, InputChoice]]:
    """Return a choice of ends that an operator of ONNX clamps, such as those of a slice, and of counts."""
    if program.model is None or tensor.is_float or tensor.element_type == "i1":
        return []
    users = find_users(program.model)[tensor.name]
    shapes = infer_shapes(program.model, {item.name: _read_sizes(item) for item in choices})
    for values, operator in find_needed_values(users, _read_sizes(choice), shapes, _END_RULES):
        dtype = _get_dtype(tensor)
        limits = np.iinfo(dtype)
        array = np.array([min(max(int(value), limits.min), limits.max) for value in values], np.int64)
        return [(False, _make_choice(choice, array, dtype, f"ends that {operator} defines"))]
    return []


def _choose_starts(use: OperatorUse) -> Sequence[float]:
    """Choose starts from the end, for slices of the output's sizes, or of one element if these are open."""
    if use.out and len(use.out) != use.count:
        raise ValueError
    return [-size for size in use.out] or [-1] * use.count


_END_RULES = {
    ("ReverseSequence", 1): lambda use: [
        1 if index % 2 else use.data[use.attribute("time_axis", 0)] for index in range(use.count)
    ],
    ("Slice", 1): _choose_starts,
    # The ends are clamped; they belong to the starts above.
    ("Slice", 2): lambda use: [np.iinfo(np.int64).max] * len(_choose_starts(use)),
    ("TopK", 1): lambda use: [] if use.out else [use.data[use.attribute("axis", -1)]],
}
