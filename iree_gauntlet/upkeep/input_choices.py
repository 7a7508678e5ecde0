"""Inputs for a user's program: the user's own inputs, or chosen inputs that its operators (of ONNX) accept.

Chosen floats are noise; chosen integers are valid indices, sizes or axes of the operators that use them. Several sets
are made, the likeliest first; a reference shows on which of them the model runs.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.errors import UsageError
from iree_gauntlet.workers.iree_side.index_operators import find_bound
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, pack_bytes, walk_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iree_gauntlet.upkeep.programs import ProgramInput, UserProgram
    from iree_gauntlet.workers.iree_side.index_operators import Operator, Size

    Array = NDArray[Any]
    Sizes = tuple[int, ...]
    Rule = Callable[["OperatorUse"], Sequence[float]]


_MAX_VALUES = 64
# The sizes to try, in order, for sizes that a file leaves open. Size 1 is not first: a mean over one value tests
# nothing. The batch is not 1, which would not test how a model separates the batch's items.
_TRIED_SIZES = (8, 1, 2, 32, 64, 128, 224, 256)
_BATCH_SIZE = 2
_MAX_SETS = 60
# Integers without a known meaning may be tokens, classes, masks, lengths.
_INTEGER_RANGES = ((0, 2), (0, 1), (1, 2), (1, 4), (0, 8), (-1, 1))
# The same for programs in MLIR: wide, or where some integers may be undefined, small and positive ones first.
_WIDE_RANGES = ((-100, 101), (1, 4), (0, 2), (0, 1), (1, 2), (0, 8))
_SMALL_RANGES = ((1, 4), (1, 2), (0, 2), (0, 1), (0, 8), (-1, 1))
# These operators pass their input's values on unchanged.
_PASS_THROUGH_OPERATORS = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
# The floats that an operator is defined for, by its name and the index of its input.
_DOMAINS = {
    ("Acos", 0): (-0.9, 0.9),
    ("Acosh", 0): (1.0, 3.0),
    ("Asin", 0): (-0.9, 0.9),
    ("Atanh", 0): (-0.9, 0.9),
    ("BatchNormalization", 4): (0.5, 1.5),
    # The zero point of f8 must be zero.
    ("DequantizeLinear", 2): (0.0, 0.0),
    ("QuantizeLinear", 2): (0.0, 0.0),
    ("Bernoulli", 0): (0.0, 1.0),
    ("DequantizeLinear", 1): (0.01, 0.1),
    ("GridSample", 1): (-1.0, 1.0),
    **{(name, place): (0.01, 0.1) for name in ("QLinearConv", "QLinearMatMul") for place in (1, 4, 6)},
    ("QuantizeLinear", 1): (0.01, 0.1),
}
# The same for integers, as half-open ranges that avoid division by zero and shifting all bits out.
_INTEGER_DOMAINS = {("BitShift", 1): (0, 4), ("Div", 1): (1, 4), ("Mod", 1): (1, 4), ("Pow", 1): (0, 3)}
# The ranges of floats to try: first noise, then probabilities, then possible divisors.
_FLOAT_RANGES = ((0.0, 0.0), (0.0, 1.0), (1.0, 2.0))
MAX_LITERAL_VALUES = 64
NPY_MAGIC = b"\x93NUMPY"
# The bits per value of types that no source generates; their random values are made of random bits.
_PACKED_BITS = {"i2": 2, "i4": 4, "f8E8M0FNU": 8}
_ONNX_DOMAINS = ("", "ai.onnx")
_SET_PREFIX = "test_data_set_"
_DATA_HINT = "Expected input_0.pb, output_0.pb, …; .npy files of these names or the inputs' own; or .npz with them."


@dataclass(frozen=True, slots=True)
class InputChoice:
    """The choice of an input's values.

    Attributes:
        type: `1x3x48x192xf32`.
        source: `random://…`; empty if the values are literal.
        values: the literal values, `2 12`; empty if the values come from a source.
        content: the content of the input's own file; None if the input needs no file.
        reason: the reason for this choice; empty for noise and for arbitrary choices.
    """

    name: str
    type: str
    source: str = ""
    values: str = ""
    content: bytes | None = None
    zero: bool = True
    reason: str = ""

    @property
    def suffix(self) -> str:
        """The suffix of the file: `.npy`, or `.bin` for raw values of a type that NumPy lacks."""
        return ".npy" if self.content is not None and self.content.startswith(NPY_MAGIC) else ".bin"

    @property
    def literal(self) -> str:
        """The literal values in the syntax of iree-run-module."""
        return f"{self.type}={self.values}"

    @property
    def for_benchmark(self) -> str:
        """The input of a benchmark: zeros, if the model runs on them."""
        if self.values:
            return self.literal
        # The tool needs a value for a scalar, and bits in hexadecimal.
        scalar = "01" if self.type.rpartition("x")[2] in ("i1", *_PACKED_BITS) else "1"
        return self.type if "x" in self.type and self.zero else f"{self.type}={scalar}"


def generate_input_sets(program: UserProgram, size: int = 0) -> Iterator[tuple[InputChoice, ...]]:
    """Yield sets of inputs, the likeliest first; with a size, all open sizes are this one."""
    inputs, model = program.inputs, program.model
    dynamic_inputs = [tensor for tensor in inputs if tensor.open_sizes]
    if size:
        shapes = [_choose_sizes(inputs, size, size, dynamic_inputs)]
    else:
        shapes = [_choose_sizes(inputs, _TRIED_SIZES[0], _BATCH_SIZE, dynamic_inputs)]
        shapes += [_choose_sizes(inputs, size, 1, dynamic_inputs) for size in _TRIED_SIZES]
        for growing_input in dynamic_inputs if len(dynamic_inputs) > 1 else ():
            shapes += [_choose_sizes(inputs, size, 1, [growing_input]) for size in _TRIED_SIZES if size > 1]
        shapes += [_choose_sizes(inputs, size, size, dynamic_inputs) for size in (2, 8)]
    in_mlir = _SMALL_RANGES if program.is_partial else _WIDE_RANGES
    chooser = _Chooser(model, _INTEGER_RANGES if model else in_mlir)
    ways = itertools.product(
        range(len(shapes) if dynamic_inputs else 1),
        range(len(_INTEGER_RANGES) + 2 if any(not tensor.is_float for tensor in inputs) else 1),
        range(len(_FLOAT_RANGES) if any(tensor.is_float for tensor in inputs) else 1),
    )
    earlier_sets: set[tuple[InputChoice, ...]] = set()
    # Usually a single choice makes a model fail, mostly a size. So sets with few changes come first.
    for size_index, integer_way, float_way in sorted(ways, key=lambda way: (sum(map(bool, way)), *reversed(way))):
        choices = chooser.choose(inputs, shapes[size_index], integer_way, float_way)
        if choices not in earlier_sets:
            earlier_sets.add(choices)
            yield choices
        if len(earlier_sets) == _MAX_SETS:
            return


def _choose_sizes(
    inputs: Sequence[ProgramInput], size: int, batch: int, growing: Sequence[ProgramInput]
) -> dict[str, Sizes]:
    """Choose the inputs' shapes; open sizes of the inputs in `growing` get the given size and batch."""
    batches = {tensor.open_sizes[0] for tensor in inputs if len(tensor.shape) > 1 and 0 in tensor.open_sizes}
    # Open sizes of the same name are equal.
    sizes = {name: batch if name in batches else size for tensor in growing for name in tensor.open_sizes.values()}
    is_partial = len(growing) < sum(bool(tensor.open_sizes) for tensor in inputs)
    shapes = {}
    for tensor in inputs:
        shape = list(tensor.shape)
        for index, name in tensor.open_sizes.items():
            is_another = is_partial and tensor not in growing and name.startswith("?")
            shape[index] = 1 if is_another else sizes.get(name, 1)
        shapes[tensor.name] = tuple(shape)
    return shapes


class _Chooser:
    """Chooses inputs by what the operators of one model (of `onnx.load`) allow; without a model, by type."""

    def __init__(self, model: Any, integer_ranges: tuple[tuple[int, int], ...]) -> None:
        self._integer_ranges = integer_ranges
        self._users: dict[str, list[tuple[Any, int]]] = defaultdict(list, find_users(model) if model else {})
        self._file_shapes = self._shapes = infer_shapes(model) if model else {}
        outputs = model.graph.output if model else ()
        self._outputs = [self._file_shapes[out.name] for out in outputs if out.name in self._file_shapes]

    def choose(
        self, inputs: Sequence[ProgramInput], shapes: Mapping[str, Sizes], integer_way: int, float_way: int
    ) -> tuple[InputChoice, ...]:
        """Choose each input of the given shapes; the ways for integers and floats are numbered from 0."""
        self._shapes = {**self._file_shapes, **shapes}
        choices = []
        for seed, tensor in enumerate(inputs, start=1):
            shape = shapes[tensor.name]
            if tensor.element_type in ("i1", *_PACKED_BITS):
                choices.append(self._choose_bits(tensor, shape, seed))
                continue
            way = float_way if tensor.is_float else integer_way
            required_choice = None
            if way == 0:
                # The first way uses values that an operator requires.
                values, operator = next(find_needed_values(self._users[tensor.name], shape, self._shapes), ((), ""))
                required_choice = _give_values(tensor, shape, values, f"what {operator} needs") if len(values) else None
            choose = self._choose_floats if tensor.is_float else self._choose_integers
            choices.append(required_choice or choose(tensor, shape, way, seed))
        return tuple(choices)

    def _choose_bits(self, tensor: ProgramInput, shape: Sizes, seed: int) -> InputChoice:
        tensor_type = _format_type(tensor, shape)
        if tensor.element_type in _PACKED_BITS:
            # No source generates packed types.
            count = (math.prod(shape) * _PACKED_BITS[tensor.element_type] + 7) // 8
            noise = parse_seeded(f"random://integers/{count}xui8?seed={seed}").generate()
            return InputChoice(tensor.name, tensor_type, content=noise.tobytes())
        if any(node.op_type == "Loop" and index == 1 for node, index in self._users[tensor.name]):
            return InputChoice(tensor.name, tensor_type, f"random://ones/{tensor_type}", reason="a loop's condition")
        return InputChoice(tensor.name, tensor_type, f"random://integers/{tensor_type}?seed={seed}")

    def _choose_integers(self, tensor: ProgramInput, shape: Sizes, way: int, seed: int) -> InputChoice:
        if way >= len(_INTEGER_RANGES) and (
            sizes := self._choose_sizes_of_output(tensor, shape, last=way > len(_INTEGER_RANGES))
        ):
            return sizes
        users = self._users[tensor.name]
        low, high = self._integer_ranges[way % len(_INTEGER_RANGES)]
        low = max(low, 0) if tensor.dtype.startswith("uint") else low
        for node, index in users:
            low, high = _INTEGER_DOMAINS.get((node.op_type, index), (low, high))
        limits = [
            (bound, node.op_type)
            for node, index in users
            if (bound := find_bound(make_operator(node, self._shapes), index))
        ]
        reason = ""
        if way == 0 and limits:
            high, reason = limits[0][0], f"below {limits[0][0]}, where {limits[0][1]} looks"
        high = max(min(high, 1 << (int(tensor.element_type[1:]) - 1)), low + 1)
        # The values are raw, because integers of a .npy have a sign: a model that passes them on unchanged would
        # return another type than for computed integers.
        type_text = _format_type(tensor, shape)
        array = parse_seeded(f"random://integers/{type_text}?seed={seed}&low={low}&high={high}").generate()
        if 0 < array.size <= MAX_LITERAL_VALUES:
            return InputChoice(
                tensor.name, type_text, values=" ".join(map(str, array.reshape(-1).tolist())), reason=reason
            )
        return InputChoice(tensor.name, type_text, content=array.tobytes(), zero=low <= 0, reason=reason)

    def _choose_floats(self, tensor: ProgramInput, shape: Sizes, way: int, seed: int) -> InputChoice:
        users = self._users[tensor.name]
        domains = [_DOMAINS[node.op_type, index] for node, index in users if (node.op_type, index) in _DOMAINS]
        low, high = (domains or [_FLOAT_RANGES[way]])[0]
        tensor_type = _format_type(tensor, shape)
        if low == high:
            source = f"random://zeros/{tensor_type}" if domains else f"random://normal/{tensor_type}?seed={seed}"
            return InputChoice(tensor.name, tensor_type, source)
        source = f"random://uniform/{tensor_type}?seed={seed}&low={low:g}&high={high:g}"
        return InputChoice(tensor.name, tensor_type, source, zero=low <= 0)

    def _choose_sizes_of_output(self, tensor: ProgramInput, shape: Sizes, *, last: bool) -> InputChoice | None:
        """Choose the first or last sizes of an output as the input's values, which composite operators take."""
        count = math.prod(shape)
        sizes = next((sizes for sizes in self._outputs if len(sizes) >= count > 0), None)
        if sizes is None or len(shape) > 1:
            return None
        return _give_values(tensor, shape, sizes[-count:] if last else sizes[:count], "the sizes of an output")


def _format_type(tensor: ProgramInput, shape: Sizes) -> str:
    return "x".join((*map(str, shape), f"{tensor.sign}{tensor.element_type}"))


def _give_values(tensor: ProgramInput, shape: Sizes, values: Sequence[float], reason: str) -> InputChoice:
    literals = " ".join(f"{value:g}" if tensor.is_float else str(int(value)) for value in values)
    return InputChoice(tensor.name, _format_type(tensor, shape), values=literals, zero=False, reason=reason)


def find_users(model: Any) -> dict[str, list[tuple[Any, int]]]:
    """Find the operators that use each graph input, directly or through others, and the operators' input index."""
    direct: dict[str, list[tuple[Any, int]]] = {}
    for node in walk_nodes(model):
        for index, name in enumerate(node.input):
            direct.setdefault(name, []).append((node, index))
    users_by_input: dict[str, list[tuple[Any, int]]] = {}
    for value in model.graph.input:
        reached_names, names, users = {value.name}, [value.name], []
        while names:
            for node, index in direct.get(names.pop(), ()):
                users.append((node, index))
                if node.op_type in _PASS_THROUGH_OPERATORS and index == 0 and node.output[0] not in reached_names:
                    reached_names.add(node.output[0])
                    names.append(node.output[0])
        users_by_input[value.name] = users
    return users_by_input


def infer_shapes(model: Any, input_shapes: Mapping[str, Sizes] = MappingProxyType({})) -> dict[str, Sizes]:
    """Infer the shapes of values whose sizes are declared, or follow from declared ones, or from those of inputs."""
    import onnx  # noqa: PLC0415 - the model is of it

    if input_shapes:
        original, model = model, onnx.ModelProto()
        model.CopyFrom(original)
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, input_shapes.get(value.name, ()), strict=False):
                dim.dim_value = size
    # A model with unknown operators, or with mistakes, keeps its declared shapes.
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError):
        model = onnx.shape_inference.infer_shapes(model)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    return shapes


def read_attribute(node: Any, name: str, default: int) -> int:
    """Return an integer attribute of a node."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


@dataclass(frozen=True, slots=True)
class _OnnxOperator:
    """A node as `index_operators.py` sees it."""

    node: Any
    shapes: Mapping[str, Sizes]

    @property
    def name(self) -> str:
        return f"{self.node.domain if self.node.domain not in _ONNX_DOMAINS else 'onnx'}.{self.node.op_type}"

    def get_shape(self, operand: int) -> Sequence[Size]:
        return self.shapes.get(self.node.input[operand], ())

    def get_result_shape(self) -> Sequence[Size]:
        return self.shapes.get(self.node.output[0], ())

    def get_integers(self, name: str) -> Sequence[int] | None:
        for attribute in self.node.attribute:
            if attribute.name == name:
                # The one text is a reduction.
                return [int(attribute.s != b"none")] * (attribute.s != b"none") if attribute.s else [int(attribute.i)]
        return None

    def get_constant(self, _: int) -> int | None:
        return None

    def list_inner(self) -> Sequence[str]:
        return ()

    def list_followers(self, _: int) -> list[str]:
        return [*self.node.output[:1]]


def make_operator(node: Any, shapes: Mapping[str, Sizes]) -> Operator[str]:
    """Make the view of a node that `index_operators.py` has, with the shapes of the model's values."""
    return _OnnxOperator(node, shapes)


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """An operator with an input that needs `count` values; unknown shapes are empty."""

    node: Any
    data: Sizes
    outputs: Sequence[Sizes]
    count: int

    @property
    def out(self) -> Sizes:
        """The shape of its first output."""
        return self.outputs[0]

    def attribute(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return read_attribute(self.node, name, default)

    def axes(self) -> list[int]:
        """Return the axes of the operator's attribute; without the attribute, the first axes of the data."""
        return next(
            (list(attribute.ints) for attribute in self.node.attribute if attribute.name == "axes"),
            list(range(self.count)),
        )


def find_needed_values(
    users: Sequence[tuple[Any, int]],
    shape: Sizes,
    shapes: Mapping[str, Sizes],
    rules: Mapping[tuple[str, int], Rule] | None = None,
) -> Iterator[tuple[Sequence[float], str]]:
    """Yield possible values for an input, each with the type of the operator that needs these values.

    Args:
        users: the operators that use the input, each with its operand.
        shape: the input's shape.
        shapes: the shapes of the model's values.
        rules: the operators' rules, by default those for values that they need.
    """
    count = math.prod(shape)
    for node, index in users:
        rule = (_RULES if rules is None else rules).get((node.op_type, index)) or (
            _choose_reduced if rules is None and node.op_type.startswith("Reduce") and index else None
        )
        if rule is None or not 0 < count <= _MAX_VALUES or not node.output:
            continue
        use = OperatorUse(node, shapes.get(node.input[0], ()), [shapes.get(name, ()) for name in node.output], count)
        try:
            values = rule(use)
        except (IndexError, ValueError, ZeroDivisionError):
            # Skip operators whose shapes are unknown or contradict each other.
            continue
        if len(values) == count:
            yield values, node.op_type


def _find_padded(use: OperatorUse, count: int) -> list[int]:
    """Return `count` axes, beginning with axes along which the sizes of output and data differ."""
    sizes = enumerate(zip(use.out, use.data, strict=True))
    return [axis for axis, _ in sorted(sizes, key=lambda entry: entry[1][0] == entry[1][1])][:count]


def _choose_pads(use: OperatorUse) -> Sequence[float]:
    """Choose pads at the end only, or a pad of one at each side if the output's shape is open."""
    if not use.out:
        return [1] * use.count
    axes = range(len(use.data)) if 2 * len(use.data) == use.count else _find_padded(use, use.count // 2)
    return [*([0] * len(axes)), *(use.out[axis] - use.data[axis] for axis in axes)]


def _choose_ratios(use: OperatorUse) -> Sequence[float]:
    """Choose the factor of each size."""
    pairs = list(zip(use.data, use.out, strict=True))[-use.count :]
    return [out // size if out % size == 0 else out / size for size, out in pairs]


def _choose_reduced(use: OperatorUse) -> Sequence[float]:
    """Choose the axes whose sizes disappear, or become 1."""
    for axes in itertools.combinations(range(len(use.data)), use.count):
        reduced_sizes = [1 if axis in axes else size for axis, size in enumerate(use.data)]
        if use.node.op_type == "Squeeze" or not use.attribute("keepdims", 1):
            reduced_sizes = [size for axis, size in enumerate(use.data) if axis not in axes]
        if tuple(reduced_sizes) == use.out:
            return axes
    return range(use.count)


def _choose_unsqueezed(use: OperatorUse) -> Sequence[float]:
    """Choose the axes of size 1 that the data lacks."""
    for axes in itertools.combinations(range(len(use.out)), use.count):
        if tuple(size for axis, size in enumerate(use.out) if axis not in axes) == use.data:
            return axes
    return range(use.count)


_RULES: dict[tuple[str, int], Rule] = {
    ("AffineGrid", 1): lambda use: [use.out[0], 1, *use.out[1:-1]],
    ("CenterCropPad", 1): lambda use: [use.out[axis] for axis in use.axes()],
    ("Col2Im", 1): lambda use: use.out[2:],
    # The block's size is in its last dimension.
    ("Col2Im", 2): lambda use: [*([1] * (use.count - 1)), use.data[1] // use.out[1]],
    **dict.fromkeys((("ConstantOfShape", 0), ("Expand", 1)), lambda use: use.out or [2] * use.count),
    **dict.fromkeys(
        (("GRU", 4), ("LSTM", 4), ("RNN", 4), ("ReverseSequence", 1)), lambda use: [use.data[0]] * use.count
    ),
    ("Loop", 0): lambda use: [use.outputs[-1][0] if use.outputs[-1] else 3],
    ("MelWeightMatrix", 0): lambda use: [use.out[1]],
    ("MelWeightMatrix", 1): lambda use: [2 * (use.out[0] - 1)],
    ("MelWeightMatrix", 2): lambda _: [8192],
    ("MelWeightMatrix", 3): lambda _: [0],
    ("MelWeightMatrix", 4): lambda _: [4096],
    ("OneHot", 1): lambda use: [use.out[use.attribute("axis", -1)]] if use.out else [3] * use.count,
    ("Pad", 1): _choose_pads,
    ("Pad", 3): lambda use: _find_padded(use, use.count),
    ("Range", 0): lambda _: [0],
    ("Range", 1): lambda use: [use.out[0] if use.out else 4],
    ("Range", 2): lambda _: [1],
    ("Reshape", 1): lambda use: use.out or [*([1] * (use.count - 1)), -1],
    ("Resize", 2): _choose_ratios,
    ("Resize", 3): lambda use: use.out[-use.count :],
    ("Slice", 1): lambda use: [0] * use.count,
    ("Slice", 2): lambda use: use.out[: use.count] or [1] * use.count,
    ("Slice", 3): lambda use: range(use.count),
    ("Slice", 4): lambda use: [1] * use.count,
    ("Split", 1): lambda use: [sizes[use.attribute("axis", 0)] for sizes in use.outputs],
    ("Squeeze", 1): _choose_reduced,
    ("Tile", 1): _choose_ratios,
    ("TopK", 1): lambda use: [use.out[use.attribute("axis", -1)]] if use.out else [1] * use.count,
    ("Unsqueeze", 1): _choose_unsqueezed,
    ("Upsample", 1): _choose_ratios,
    **{(name, 0): lambda use: [use.out[0]] for name in ("BlackmanWindow", "HammingWindow", "HannWindow")},
}


@dataclass(frozen=True, slots=True)
class InputData:
    """The content of a folder for a program; `outputs` has all outputs in order, or is empty."""

    inputs: tuple[InputChoice, ...]
    outputs: tuple[Array, ...]
    notes: tuple[str, ...]


def read_data(path: Path, program: UserProgram) -> InputData:
    """Read the inputs of a program, by name or as `input_0`, …, and its expected outputs if there are any.

    The path is a folder of tensor files, a folder of sets `test_data_set_0`, … (of which the first is read), or an
    .npz file.
    """
    if not path.exists():
        raise UsageError(f"--data {path}: no such folder", _DATA_HINT)
    sets = sorted(path.glob(f"{_SET_PREFIX}*"), key=lambda item: (len(item.name), item.name)) if path.is_dir() else []
    folder = sets[0] if sets else path
    arrays = _read_arrays(folder)
    inputs = tuple(_read_input(folder, item, index, arrays) for index, item in enumerate(program.inputs))
    infos = program.outputs
    output_arrays = [arrays.get(f"output_{index}", arrays.get(value.name)) for index, value in enumerate(infos)]
    outputs = tuple(
        value.check(folder, array) for value, array in zip(infos, output_arrays, strict=True) if array is not None
    )
    if outputs and len(outputs) != len(infos):
        message = f"--data {folder}: {len(outputs)} of {len(infos)} outputs are there"
        raise UsageError(message, "Give all of them, or none, and they are recorded.")
    names = {f"input_{index}" for index in range(len(inputs))} | {f"output_{index}" for index in range(len(infos))}
    names |= {item.name for item in program.inputs} | {value.name for value in infos}
    notes = tuple(
        f"{name} is neither an input nor an output of the model: ignored" for name in arrays if name not in names
    )
    return InputData(inputs, outputs, notes)


def _read_arrays(path: Path) -> dict[str, Array]:
    """Read tensors by name: the names of files, or the names in an .npz file."""
    files = (
        sorted(item for item in path.iterdir() if item.suffix in (".pb", ".npy", ".npz")) if path.is_dir() else [path]
    )
    arrays: dict[str, Array] = {}
    for file in files:
        try:
            if file.suffix == ".npz":
                with np.load(file, allow_pickle=False) as archive:
                    arrays |= {name: archive[name] for name in archive.files}
            elif file.suffix == ".npy":
                arrays[file.stem] = np.load(file, allow_pickle=False)
            else:
                import onnx  # noqa: PLC0415 - of the importer's extra

                tensor = onnx.TensorProto()
                tensor.ParseFromString(file.read_bytes())
                arrays[file.stem] = onnx.numpy_helper.to_array(tensor)
        # NumPy, zip and protobuf each have their own exceptions.
        except Exception as error:
            message = f"--data {file}: it is not a readable tensor: {str(error)[:200] or type(error).__name__}"
            raise UsageError(message, _DATA_HINT) from error
    if not arrays:
        raise UsageError(f"--data {path}: it has no tensors", _DATA_HINT)
    return arrays


def _read_input(folder: Path, tensor: ProgramInput, index: int, arrays: Mapping[str, Array]) -> InputChoice:
    array = arrays.get(f"input_{index}", arrays.get(tensor.name))
    if array is None:
        names = ", ".join(name for name in arrays if not name.startswith("output_"))
        raise UsageError(f"--data {folder}: input {tensor.name} is not there, nor input_{index}", f"There: {names}.")
    element = ELEMENT_TYPES.get(array.dtype.name, "")
    fits = len(array.shape) == len(tensor.shape) and all(
        axis in tensor.open_sizes or size == expected_size
        for axis, (size, expected_size) in enumerate(zip(array.shape, tensor.shape, strict=True))
    )
    if element != tensor.element_type or not fits:
        sizes = "x".join(("?" if axis in tensor.open_sizes else str(size)) for axis, size in enumerate(tensor.shape))
        message = f"--data {folder}: input {tensor.name} is {array.dtype} {list(array.shape)}"
        raise UsageError(message, f"The model expects {sizes or 'a scalar'} of {tensor.element_type}.")
    return InputChoice(tensor.name, _format_type(tensor, array.shape), content=make_file_content(array), zero=False)


def make_file_content(array: Array) -> bytes:
    """Return the content of an array's file: a .npy, or raw bytes if a .npy's type would differ from modules' type."""
    if array.dtype.kind in "Viu":
        return pack_bytes(array)
    stream = io.BytesIO()
    little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    np.lib.format.write_array(stream, little_endian, version=(1, 0))
    return stream.getvalue()
