"""Inputs for an ONNX model of somebody's: those that somebody has, or what its operators can do something with.

Chosen floats are noise, integers what the operators behind them take for an index, a size or an axis. Several sets are
made, in the order of wishes; a reference says which of them the model runs on.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.errors import UsageError
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, pack_bytes, walk_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iree_gauntlet.upkeep.onnx_program import OnnxInput, OnnxProgram

    Array = NDArray[Any]
    Sizes = tuple[int, ...]


_MOST_VALUES = 64
# Sizes that stand for those that a file leaves open, in the order of trying: a mean over one value says nothing, nor
# does a batch of one of how a model tells its items apart.
_SIZES = (8, 1, 2, 32, 64, 128, 224, 256)
_BATCH = 2
_MOST_SETS = 60
# Integers, where nothing says which: tokens, classes, masks, lengths.
_RANGES = ((0, 2), (0, 1), (1, 2), (1, 4), (0, 8), (-1, 1))
# What an operator hands on as it is.
_THROUGH = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
# Floats that an operator is defined for, by its name and the place of its input.
_DOMAINS = {
    ("Acos", 0): (-0.9, 0.9),
    ("Acosh", 0): (1.0, 3.0),
    ("Asin", 0): (-0.9, 0.9),
    ("Atanh", 0): (-0.9, 0.9),
    ("BatchNormalization", 4): (0.5, 1.5),
    # Of f8, a zero point has to be zero.
    ("DequantizeLinear", 2): (0.0, 0.0),
    ("QuantizeLinear", 2): (0.0, 0.0),
    ("Bernoulli", 0): (0.0, 1.0),
    ("DequantizeLinear", 1): (0.01, 0.1),
    ("GridSample", 1): (-1.0, 1.0),
    **{(name, place): (0.01, 0.1) for name in ("QLinearConv", "QLinearMatMul") for place in (1, 4, 6)},
    ("QuantizeLinear", 1): (0.01, 0.1),
}
# Integers likewise, from where to below where: nothing is divided by zero, and nothing shifted out.
_INTEGER_DOMAINS = {("BitShift", 1): (0, 4), ("Div", 1): (1, 4), ("Mod", 1): (1, 4), ("Pow", 1): (0, 3)}
# From where to where; noise first, and where that will not do, probabilities, and what one can divide by.
_FLOATS = ((0.0, 0.0), (0.0, 1.0), (1.0, 2.0))
_LONGEST_LITERAL = 64
NPY = b"\x93NUMPY"
# Bits a value of types that no source makes: random bits are random values.
_PACKED = {"i2": 2, "i4": 4, "f8E8M0FNU": 8}
_SET = "test_data_set_"
_EXPECTED = "Expected input_0.pb, output_0.pb, …; .npy files of these names or the inputs' own; or .npz with them."


@dataclass(frozen=True, slots=True)
class InputChoice:
    """What an input is given.

    Attributes:
        type: `1x3x48x192xf32`.
        source: `random://…`; empty where the values are written down.
        values: written down, `2 12`; empty for those of a source.
        content: of a file of its own; None where it needs none.
        why: empty for noise, and where nothing says what is wanted.
    """

    name: str
    type: str
    source: str = ""
    values: str = ""
    content: bytes | None = None
    zero: bool = True
    why: str = ""

    @property
    def suffix(self) -> str:
        """Of its file: `.npy`, or `.bin` for raw values of a type that NumPy does not have."""
        return ".npy" if self.content is not None and self.content.startswith(NPY) else ".bin"

    @property
    def literal(self) -> str:
        """Values written down, as iree-run-module takes them."""
        return f"{self.type}={self.values}"

    @property
    def for_benchmark(self) -> str:
        """What a benchmark is given: zeros, where the model runs on them."""
        if self.values:
            return self.literal
        # The tool takes no type alone for a scalar, and bits in hexadecimal.
        one = "01" if self.type.rpartition("x")[2] in ("i1", *_PACKED) else "1"
        return self.type if "x" in self.type and self.zero else f"{self.type}={one}"


def input_sets(inputs: Sequence[OnnxInput], model: Any) -> Iterator[tuple[InputChoice, ...]]:
    """Sets of inputs in the order of wishes."""
    dynamic = [item for item in inputs if item.open_sizes]
    shapes = [_choose_sizes(inputs, _SIZES[0], _BATCH, dynamic)]
    shapes += [_choose_sizes(inputs, size, 1, dynamic) for size in _SIZES]
    for one in dynamic if len(dynamic) > 1 else ():
        shapes += [_choose_sizes(inputs, size, 1, [one]) for size in _SIZES if size > 1]
    shapes += [_choose_sizes(inputs, size, size, dynamic) for size in (2, 8)]
    chooser = _Chooser(model)
    ways = itertools.product(
        range(len(shapes) if dynamic else 1),
        range(len(_RANGES) + 2 if any(not item.is_float for item in inputs) else 1),
        range(len(_FLOATS) if any(item.is_float for item in inputs) else 1),
    )
    made: set[tuple[InputChoice, ...]] = set()
    # What keeps a model from running is mostly one thing, and mostly a size.
    for of_size, of_integers, of_floats in sorted(ways, key=lambda way: (sum(map(bool, way)), *reversed(way))):
        choices = chooser.choose(inputs, shapes[of_size], of_integers, of_floats)
        if choices not in made:
            made.add(choices)
            yield choices
        if len(made) == _MOST_SETS:
            return


def _choose_sizes(inputs: Sequence[OnnxInput], size: int, batch: int, growing: Sequence[OnnxInput]) -> dict[str, Sizes]:
    """Shapes of inputs of which some grow."""
    batches = {item.open_sizes[0] for item in inputs if len(item.shape) > 1 and 0 in item.open_sizes}
    # By their names: what is called alike is alike.
    sizes = {name: batch if name in batches else size for item in growing for name in item.open_sizes.values()}
    alone = len(growing) < sum(bool(item.open_sizes) for item in inputs)
    shapes = {}
    for item in inputs:
        shape = list(item.shape)
        for index, name in item.open_sizes.items():
            is_another = alone and item not in growing and name.startswith("?")
            shape[index] = 1 if is_another else sizes.get(name, 1)
        shapes[item.name] = tuple(shape)
    return shapes


class _Chooser:
    """Chooses inputs by what the operators of one model (of `onnx.load`) allow."""

    def __init__(self, model: Any) -> None:
        self._users = _find_users(model)
        self._declared = self._known = _infer_shapes(model)
        self._outputs = [self._declared[value.name] for value in model.graph.output if value.name in self._declared]

    def choose(
        self, inputs: Sequence[OnnxInput], shapes: Mapping[str, Sizes], of_integers: int, of_floats: int
    ) -> tuple[InputChoice, ...]:
        """One choice for each input of the given shapes; the ways of integers and floats are counted from 0."""
        self._known = {**self._declared, **shapes}
        choices = []
        for seed, item in enumerate(inputs, start=1):
            shape = shapes[item.name]
            if item.element_type in ("i1", *_PACKED):
                choices.append(self._choose_bits(item, shape, seed))
                continue
            way = of_floats if item.is_float else of_integers
            needed = None
            if way == 0:
                # What an operator cannot do without.
                values, needs = next(_find_needed_values(self._users[item.name], shape, self._known), ((), ""))
                needed = _give_values(item, shape, values, f"what {needs} needs") if len(values) else None
            choose = self._choose_floats if item.is_float else self._choose_integers
            choices.append(needed or choose(item, shape, way, seed))
        return tuple(choices)

    def _choose_bits(self, item: OnnxInput, shape: Sizes, seed: int) -> InputChoice:
        kind = _format_type(item, shape)
        if item.element_type in _PACKED:
            # No source makes them.
            count = (math.prod(shape) * _PACKED[item.element_type] + 7) // 8
            noise = parse_seeded(f"random://integers/{count}xui8?seed={seed}").generate()
            return InputChoice(item.name, kind, content=noise.tobytes())
        if any(node.op_type == "Loop" and place == 1 for node, place in self._users[item.name]):
            return InputChoice(item.name, kind, f"random://ones/{kind}", why="a loop's condition")
        return InputChoice(item.name, kind, f"random://integers/{kind}?seed={seed}")

    def _choose_integers(self, item: OnnxInput, shape: Sizes, way: int, seed: int) -> InputChoice:
        if way >= len(_RANGES) and (sizes := self._choose_sizes_of_output(item, shape, last=way > len(_RANGES))):
            return sizes
        users = self._users[item.name]
        low, high = _RANGES[way % len(_RANGES)]
        for node, place in users:
            low, high = _INTEGER_DOMAINS.get((node.op_type, place), (low, high))
        limits = [(below, node.op_type) for node, place in users if (below := _find_bound(node, place, self._known))]
        why = ""
        if way == 0 and limits:
            high, why = limits[0][0], f"below {limits[0][0]}, where {limits[0][1]} looks"
        high = max(min(high, 1 << (int(item.element_type[1:]) - 1)), low + 1)
        # Raw, since a .npy's integers have a sign: those that a model hands on would be of another type than it
        # computes.
        kind = _format_type(item, shape)
        array = parse_seeded(f"random://integers/{kind}?seed={seed}&low={low}&high={high}").generate()
        if 0 < array.size <= _LONGEST_LITERAL:
            return InputChoice(item.name, kind, values=" ".join(map(str, array.reshape(-1).tolist())), why=why)
        return InputChoice(item.name, kind, content=array.tobytes(), zero=low <= 0, why=why)

    def _choose_floats(self, item: OnnxInput, shape: Sizes, way: int, seed: int) -> InputChoice:
        users = self._users[item.name]
        domains = [_DOMAINS[node.op_type, place] for node, place in users if (node.op_type, place) in _DOMAINS]
        low, high = (domains or [_FLOATS[way]])[0]
        kind = _format_type(item, shape)
        if low == high:
            source = f"random://zeros/{kind}" if domains else f"random://normal/{kind}?seed={seed}"
            return InputChoice(item.name, kind, source)
        source = f"random://uniform/{kind}?seed={seed}&low={low:g}&high={high:g}"
        return InputChoice(item.name, kind, source, zero=low <= 0)

    def _choose_sizes_of_output(self, item: OnnxInput, shape: Sizes, *, last: bool) -> InputChoice | None:
        """What operators that are made of others take: the first sizes of an output, or the last."""
        count = math.prod(shape)
        found = next((sizes for sizes in self._outputs if len(sizes) >= count > 0), None)
        if found is None or len(shape) > 1:
            return None
        return _give_values(item, shape, found[-count:] if last else found[:count], "the sizes of an output")


def _format_type(item: OnnxInput, shape: Sizes) -> str:
    return "x".join((*map(str, shape), item.element_type))


def _give_values(item: OnnxInput, shape: Sizes, values: Sequence[float], why: str) -> InputChoice:
    written = " ".join(f"{value:g}" if item.is_float else str(int(value)) for value in values)
    return InputChoice(item.name, _format_type(item, shape), values=written, zero=False, why=why)


def _find_users(model: Any) -> dict[str, list[tuple[Any, int]]]:
    """Which operators take a value, and as which of their inputs; by name, through what hands it on as it is."""
    direct: dict[str, list[tuple[Any, int]]] = {}
    for node in walk_nodes(model):
        for place, name in enumerate(node.input):
            direct.setdefault(name, []).append((node, place))
    found: dict[str, list[tuple[Any, int]]] = {}
    for value in model.graph.input:
        seen, names, users = {value.name}, [value.name], []
        while names:
            for node, place in direct.get(names.pop(), ()):
                users.append((node, place))
                if node.op_type in _THROUGH and place == 0 and node.output[0] not in seen:
                    seen.add(node.output[0])
                    names.append(node.output[0])
        found[value.name] = users
    return found


def _infer_shapes(model: Any) -> dict[str, Sizes]:
    """Shapes of values as far as all their sizes are declared, or follow from that."""
    import onnx  # noqa: PLC0415 - the model is of it

    # Models with operators that it does not know, or with mistakes: what is declared has to do.
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError):
        model = onnx.shape_inference.infer_shapes(model)
    found = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = tuple(dim.dim_value for dim in dims)
    return found


def _read_attribute(node: Any, name: str, default: int) -> int:
    return next((int(item.i) for item in node.attribute if item.name == name), default)


def _find_bound(node: Any, place: int, known: Mapping[str, Sizes]) -> int:
    """What an index of an operator's input has to be below; 0 where that is not known."""
    data = known.get(node.input[0], ()) if node.input else ()
    if node.op_type in ("Gather", "GatherElements", "ScatterElements", "Scatter") and place == 1 and data:
        return data[_read_attribute(node, "axis", 0)]
    if node.op_type in ("GatherND", "ScatterND") and place == 1 and data:
        return min(data)
    if node.op_type in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss") and place == 1 and len(data) > 1:
        return data[1]
    if node.op_type == "RoiAlign" and place == 2:
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class _Use:
    """An operator that takes an input of which `count` values are wanted; shapes that are not known are empty."""

    node: Any
    data: Sizes
    outputs: Sequence[Sizes]
    count: int

    @property
    def out(self) -> Sizes:
        """Shape of its first output."""
        return self.outputs[0]

    def attribute(self, name: str, default: int) -> int:
        """A whole number."""
        return _read_attribute(self.node, name, default)

    def axes(self) -> list[int]:
        """Of its attribute; those in the order of the data's where it has none."""
        return next((list(item.ints) for item in self.node.attribute if item.name == "axes"), list(range(self.count)))


def _find_needed_values(
    users: Sequence[tuple[Any, int]], shape: Sizes, known: Mapping[str, Sizes]
) -> Iterator[tuple[Sequence[float], str]]:
    """Values for an input, each with the type of the operator that needs them."""
    count = math.prod(shape)
    for node, place in users:
        rule = _RULES.get((node.op_type, place)) or (
            _choose_reduced if node.op_type.startswith("Reduce") and place else None
        )
        if rule is None or not 0 < count <= _MOST_VALUES or not node.output:
            continue
        use = _Use(node, known.get(node.input[0], ()), [known.get(name, ()) for name in node.output], count)
        try:
            values = rule(use)
        except (IndexError, ValueError, ZeroDivisionError):
            # Shapes that are not known, or do not fit each other.
            continue
        if len(values) == count:
            yield values, node.op_type


def _find_padded(use: _Use, count: int) -> list[int]:
    """So many axes: those along which the output has another size than the data first."""
    sizes = enumerate(zip(use.out, use.data, strict=True))
    return [axis for axis, _ in sorted(sizes, key=lambda item: item[1][0] == item[1][1])][:count]


def _choose_pads(use: _Use) -> Sequence[float]:
    """All at the end; one at each side where the output's shape is open."""
    if not use.out:
        return [1] * use.count
    axes = range(len(use.data)) if 2 * len(use.data) == use.count else _find_padded(use, use.count // 2)
    return [*([0] * len(axes)), *(use.out[axis] - use.data[axis] for axis in axes)]


def _choose_ratios(use: _Use) -> Sequence[float]:
    """What each size is multiplied by."""
    pairs = list(zip(use.data, use.out, strict=True))[-use.count :]
    return [out // one if out % one == 0 else out / one for one, out in pairs]


def _choose_reduced(use: _Use) -> Sequence[float]:
    """Axes whose sizes are gone, or 1."""
    for axes in itertools.combinations(range(len(use.data)), use.count):
        kept = [1 if axis in axes else size for axis, size in enumerate(use.data)]
        if use.node.op_type == "Squeeze" or not use.attribute("keepdims", 1):
            kept = [size for axis, size in enumerate(use.data) if axis not in axes]
        if tuple(kept) == use.out:
            return axes
    return range(use.count)


def _choose_unsqueezed(use: _Use) -> Sequence[float]:
    """Axes of 1 that the data does not have."""
    for axes in itertools.combinations(range(len(use.out)), use.count):
        if tuple(size for axis, size in enumerate(use.out) if axis not in axes) == use.data:
            return axes
    return range(use.count)


_RULES: dict[tuple[str, int], Callable[[_Use], Sequence[float]]] = {
    ("AffineGrid", 1): lambda use: [use.out[0], 1, *use.out[1:-1]],
    ("CenterCropPad", 1): lambda use: [use.out[axis] for axis in use.axes()],
    ("Col2Im", 1): lambda use: use.out[2:],
    # The sizes of a block, all in its last dimension.
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
    ("Split", 1): lambda use: [one[use.attribute("axis", 0)] for one in use.outputs],
    ("Squeeze", 1): _choose_reduced,
    ("Tile", 1): _choose_ratios,
    ("TopK", 1): lambda use: [use.out[use.attribute("axis", -1)]] if use.out else [1] * use.count,
    ("Unsqueeze", 1): _choose_unsqueezed,
    ("Upsample", 1): _choose_ratios,
    **{(name, 0): lambda use: [use.out[0]] for name in ("BlackmanWindow", "HammingWindow", "HannWindow")},
}


@dataclass(frozen=True, slots=True)
class GivenData:
    """What a folder holds for a program; outputs are all of them, in their order, or none."""

    inputs: tuple[InputChoice, ...]
    outputs: tuple[Array, ...]
    notes: tuple[str, ...]


def read_data(path: Path, program: OnnxProgram) -> GivenData:
    """Reads the inputs of a program, by name or as `input_0`, …, and its expected outputs where they are there.

    The path is one of a folder with files of tensors, of one with `test_data_set_0` in it, of which the first set is
    read, or of an .npz file.
    """
    if not path.exists():
        raise UsageError(f"--data {path}: there is no such folder", _EXPECTED)
    sets = sorted(path.glob(f"{_SET}*"), key=lambda item: (len(item.name), item.name)) if path.is_dir() else []
    folder = sets[0] if sets else path
    arrays = _read_arrays(folder)
    inputs = tuple(_read_input(folder, item, index, arrays) for index, item in enumerate(program.inputs))
    declared = program.model.graph.output
    found = [arrays.get(f"output_{index}", arrays.get(value.name)) for index, value in enumerate(declared)]
    outputs = tuple(
        _check_output(folder, value, array) for value, array in zip(declared, found, strict=True) if array is not None
    )
    if outputs and len(outputs) != len(declared):
        what = f"--data {folder}: {len(outputs)} of {len(declared)} outputs are there"
        raise UsageError(what, "Give all of them, or none to have them recorded.")
    used = {f"input_{index}" for index in range(len(inputs))} | {f"output_{index}" for index in range(len(declared))}
    used |= {item.name for item in program.inputs} | {value.name for value in declared}
    notes = tuple(f"{name} is no input or output of the model: left out" for name in arrays if name not in used)
    return GivenData(inputs, outputs, notes)


def _read_arrays(path: Path) -> dict[str, Array]:
    """Tensors by their names: those of files, or within a .npz file."""
    import onnx  # noqa: PLC0415 - the program was read with it

    files = (
        sorted(item for item in path.iterdir() if item.suffix in (".pb", ".npy", ".npz")) if path.is_dir() else [path]
    )
    found: dict[str, Array] = {}
    for file in files:
        try:
            if file.suffix == ".npz":
                with np.load(file, allow_pickle=False) as archive:
                    found |= {name: archive[name] for name in archive.files}
            elif file.suffix == ".npy":
                found[file.stem] = np.load(file, allow_pickle=False)
            else:
                tensor = onnx.TensorProto()
                tensor.ParseFromString(file.read_bytes())
                found[file.stem] = onnx.numpy_helper.to_array(tensor)
        # Of NumPy, zip and protobuf, each with its own.
        except Exception as error:
            what = f"--data {file}: no tensor can be read from it: {str(error)[:200] or type(error).__name__}"
            raise UsageError(what, _EXPECTED) from error
    if not found:
        raise UsageError(f"--data {path}: there are no tensors in it", _EXPECTED)
    return found


def _read_input(folder: Path, item: OnnxInput, index: int, arrays: Mapping[str, Array]) -> InputChoice:
    array = arrays.get(f"input_{index}", arrays.get(item.name))
    if array is None:
        there = ", ".join(name for name in arrays if not name.startswith("output_"))
        raise UsageError(f"--data {folder}: input {item.name} is not there, nor input_{index}", f"There: {there}.")
    element = ELEMENT_TYPES.get(array.dtype.name, "")
    fits = len(array.shape) == len(item.shape) and all(
        place in item.open_sizes or size == one
        for place, (size, one) in enumerate(zip(array.shape, item.shape, strict=True))
    )
    if element != item.element_type or not fits:
        wanted = "x".join(("?" if place in item.open_sizes else str(size)) for place, size in enumerate(item.shape))
        what = f"--data {folder}: input {item.name} is {array.dtype} {list(array.shape)}"
        raise UsageError(what, f"The model takes {wanted or 'a scalar'} of {item.element_type}.")
    return InputChoice(item.name, _format_type(item, array.shape), content=file_content(array), zero=False)


def _check_output(folder: Path, declared: Any, array: Array) -> Array:
    """An expected output, which has to be of the type that the model declares."""
    import onnx  # noqa: PLC0415 - the program was read with it

    what = f"--data {folder}: output {declared.name} is {array.dtype}"
    if array.dtype.name not in ELEMENT_TYPES:
        raise UsageError(f"{what}, which IREE's tools do not know", "Only tensors of numbers can be compared.")
    known = declared.type.tensor_type.elem_type
    wanted = onnx.helper.tensor_dtype_to_np_dtype(known).name if known else array.dtype.name
    if ELEMENT_TYPES[array.dtype.name] != ELEMENT_TYPES.get(wanted):
        raise UsageError(what, f"The model gives {wanted}.")
    return array


def file_content(array: Array) -> bytes:
    """The content of a file that holds an array: a .npy, or raw bytes where that says another type than modules do."""
    if array.dtype.kind in "Viu":
        return pack_bytes(array)
    stream = io.BytesIO()
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    np.lib.format.write_array(stream, little, version=(1, 0))
    return stream.getvalue()
