"""Inputs and expected outputs that somebody has for a model: ONNX's test data sets, or NumPy's files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.errors import UsageError
from iree_gauntlet.upkeep.input_choices import InputChoice
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, raw_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from iree_gauntlet.upkeep.onnx_program import OnnxInput, OnnxProgram

    Array = NDArray[Any]


_SET = "test_data_set_"
_EXPECTED = "Expected input_0.pb, output_0.pb, …; .npy files of these names or the inputs' own; or .npz with them."


@dataclass(frozen=True, slots=True)
class GivenData:
    """What a folder holds for a program.

    Attributes:
        inputs: one for each of the program's.
        outputs: by their place; none where the folder has none.
        notes: what a person should know of them.
    """

    inputs: tuple[InputChoice, ...]
    outputs: tuple[Array, ...]
    notes: tuple[str, ...]


def read_data(path: Path, program: OnnxProgram) -> GivenData:
    """Reads the inputs of a program, and its expected outputs where they are there.

    Args:
        path: a folder with files of tensors, or with `test_data_set_0` in it, of which the first set is read; or one
            .npz file.
        program: its inputs are looked for by name, or as `input_0`, ….

    Raises:
        UsageError: there is no such data, an input is missing, or is of another type or shape than the program takes.
    """
    if not path.exists():
        raise UsageError(f"--data {path}: there is no such folder", _EXPECTED)
    sets = sorted(path.glob(f"{_SET}*"), key=lambda item: (len(item.name), item.name)) if path.is_dir() else []
    folder = sets[0] if sets else path
    arrays = _arrays(folder)
    inputs = tuple(_input(folder, item, index, arrays) for index, item in enumerate(program.inputs))
    declared = program.model.graph.output
    found = [arrays.get(f"output_{index}", arrays.get(value.name)) for index, value in enumerate(declared)]
    outputs = tuple(
        _output(folder, value, array) for value, array in zip(declared, found, strict=True) if array is not None
    )
    if outputs and len(outputs) != len(declared):
        what = f"--data {folder}: {len(outputs)} of {len(declared)} outputs are there"
        raise UsageError(what, "Give all of them, or none to have them recorded.")
    used = {f"input_{index}" for index in range(len(inputs))} | {f"output_{index}" for index in range(len(declared))}
    used |= {item.name for item in program.inputs} | {value.name for value in declared}
    notes = tuple(f"{name} is no input or output of the model: left out" for name in arrays if name not in used)
    return GivenData(inputs, outputs, notes)


def _arrays(path: Path) -> dict[str, Array]:
    """Tensors by their names: those of files, or within a .npz file."""
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
                found[file.stem] = _read_tensor(file)
        # Of NumPy, zip and protobuf, each with its own.
        except Exception as error:
            what = f"--data {file}: no tensor can be read from it: {str(error)[:200] or type(error).__name__}"
            raise UsageError(what, _EXPECTED) from error
    if not found:
        raise UsageError(f"--data {path}: there are no tensors in it", _EXPECTED)
    return found


def _read_tensor(path: Path) -> Array:
    import onnx  # noqa: PLC0415 - the program was read with it

    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    array: Array = onnx.numpy_helper.to_array(tensor)
    return array


def _input(folder: Path, item: OnnxInput, index: int, arrays: Mapping[str, Array]) -> InputChoice:
    array = arrays.get(f"input_{index}", arrays.get(item.name))
    if array is None:
        there = ", ".join(name for name in arrays if not name.startswith("output_"))
        raise UsageError(f"--data {folder}: input {item.name} is not there, nor input_{index}", f"There: {there}.")
    element = ELEMENT_TYPES.get(array.dtype.name, "")
    fits = len(array.shape) == len(item.shape) and all(
        place in item.open_sizes or size == one
        for place, (size, one) in enumerate(zip(array.shape, item.shape, strict=True))
    )
    kind = "x".join((*map(str, array.shape), item.element_type))
    if element != item.element_type or not fits:
        wanted = "x".join(("?" if place in item.open_sizes else str(size)) for place, size in enumerate(item.shape))
        what = f"--data {folder}: input {item.name} is {array.dtype} {list(array.shape)}"
        raise UsageError(what, f"The model takes {wanted or 'a scalar'} of {item.element_type}.")
    return InputChoice(item.name, kind, content=file_content(array), zero=False)


def _output(folder: Path, declared: Any, array: Array) -> Array:
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
        return raw_bytes(array)
    stream = io.BytesIO()
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    np.lib.format.write_array(stream, little, version=(1, 0))
    return stream.getvalue()
