"""A user's program as `init` sees it: its function, with sizes for those that are open, and its outputs."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - read by its type
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import UsageError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, format_tensor_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.workers.iree_side.index_operators import IndexUse
    from iree_gauntlet.workers.iree_side.plan_file import Array


# The size in place of a size that the file leaves open.
_DEFAULT_SIZE = 1
# IREE imports older opsets only in part.
_MIN_OPSET = 17
_SHAPE_OPTION = re.compile(r"(.+)=(\d+(?:x\d+)*)\Z")


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """An input of a program.

    Attributes:
        open_sizes: the names of sizes to choose, by axis from 0; empty with `--shape`.
        dtype: NumPy's or ml_dtypes' name of the element type.
        sign: as of `ProgramOutput`.
        index_uses: of a program in MLIR, the operators that use it as an index.
        uses_known: False if there may be other operators that are not defined for all integers.
    """

    name: str
    shape: tuple[int, ...]
    element_type: str
    open_sizes: Mapping[int, str]
    is_open_in_file: bool
    dtype: str = ""
    sign: str = ""
    index_uses: tuple[IndexUse, ...] = ()
    uses_known: bool = True

    @property
    def is_float(self) -> bool:
        """True if its values are floating-point numbers."""
        return self.element_type.startswith(("f", "bf"))

    @property
    def declared_shape(self) -> list[int | str | None]:
        """The sizes, and the names of those that were to choose."""
        return [self.open_sizes.get(axis, size) for axis, size in enumerate(self.shape)]


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """An output of a program.

    Attributes:
        dtype: NumPy's or ml_dtypes' name of the element type; empty if the file does not have it.
        sign: `u` or `s` for integers whose sign is part of the module's type, as in StableHLO's `ui8`.
    """

    name: str
    dtype: str
    sign: str = ""

    def format_type(self, array: Array) -> str:
        """Return the type of the output's values in IREE's notation, `1x64xi64`; errors as of `format_tensor_type`."""
        *sizes, element_type = format_tensor_type(self.name, array).split("x")
        return "x".join((*sizes, f"{self.sign}{element_type}"))

    def check(self, folder: Path, array: Array) -> Array:
        """Check that the expected output of a folder has the type that the program declares, and return it."""
        message = f"--data {folder}: output {self.name} is {array.dtype}"
        if array.dtype.name not in ELEMENT_TYPES:
            raise UsageError(
                f"{message}, which IREE's tools do not support", "Only tensors of numbers can be compared."
            )
        expected_type = self.dtype or array.dtype.name
        if ELEMENT_TYPES[array.dtype.name] != ELEMENT_TYPES.get(expected_type):
            raise UsageError(message, f"The model gives {expected_type}.")
        return array


@dataclass(frozen=True, slots=True)
class ExportSource(Recorded):
    """A program of a framework: a file of an export, or a function of a Python file; its Python has the framework.

    Attributes:
        path: an absolute path.
        function: empty for a file of an export.
        kept: the numbers of the arguments that the program uses.
        framework: a key of `FRAMEWORKS`.
    """

    path: Path
    function: str
    python: str
    kept: tuple[int, ...]
    framework: str

    @property
    def name(self) -> str:
        """The name as the user gave it, without folders."""
        return f"{self.path.name}:{self.function}" if self.function else self.path.name


@dataclass(frozen=True, slots=True)
class TfliteSource(Recorded):
    """A TFLite file; its Python has LiteRT, and `converter` is what made MLIR of it, with its version."""

    path: Path
    python: str
    converter: str


@dataclass(frozen=True, slots=True)
class UserProgram:
    """A program.

    Attributes:
        path: its file, from which a run starts: ONNX, or MLIR; for TFLite, the MLIR that it was imported to.
        file_name: the name of this file in a project.
        name: the name of its model.
        opset: the version of ONNX's operators, 0 if there are only others; None for MLIR.
        model: the result of `onnx.load` without weights, which are in the files `data`; None if there are no operators
            of ONNX to choose inputs by.
        restored: the file to which operators of ONNX in MLIR were put together; None for others.
        dialects: the dialects of the operations; empty for ONNX.
        longest_sum: an estimate of the largest number of products in a sum.
        is_partial: True if an operation in MLIR may be undefined for some integers, such as a division.
        notes: what the user should know.
        source: what the file was exported from; None if it is the user's own.
        tflite: the TFLite file, from which a run starts; None for others.
        examples: the folder of the inputs that came with the program; None if there are none.
    """

    path: Path
    file_name: str
    name: str
    function: str
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[ProgramOutput, ...]
    has_f64: bool
    opset: int | None = None
    data: tuple[Path, ...] = ()
    model: Any = None
    restored: Path | None = None
    dialects: tuple[str, ...] = ()
    longest_sum: int = 1
    is_partial: bool = False
    notes: tuple[str, ...] = ()
    source: ExportSource | None = None
    tflite: TfliteSource | None = None
    examples: Path | None = None

    @property
    def is_onnx(self) -> bool:
        """True if it is of ONNX, which a run imports first."""
        return self.opset is not None

    @property
    def kept_path(self) -> Path:
        """The file that a project keeps."""
        return self.tflite.path if self.tflite else self.path

    def make_import_options(self, types: Iterable[str]) -> dict[str, Any]:
        """Return the import's options for inputs of these types: the open sizes, and a newer opset if it is too old."""
        if self.opset is None:
            return {}
        shapes = {
            tensor.name: [int(size) for size in text.split("x")[:-1]]
            for tensor, text in zip(self.inputs, types, strict=True)
            if tensor.is_open_in_file
        }
        return ({"shapes": shapes} if shapes else {}) | ({"opset": _MIN_OPSET} if self.opset < _MIN_OPSET else {})


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parse sizes by the names of inputs, from `x=1x3x96x320`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        option_match = _SHAPE_OPTION.match(text)
        if option_match is None:
            raise UsageError(f"--shape {text}: expected an input and its sizes", "Such as --shape x=1x3x96x320.")
        if option_match[1] in shapes:
            raise UsageError(f"--shape {option_match[1]}=… is given twice", "Give sizes of an input once.")
        shapes[option_match[1]] = tuple(map(int, option_match[2].split("x")))
    return shapes


def require_known_inputs(program: str, shapes: Mapping[str, tuple[int, ...]], names: Iterable[str]) -> None:
    """Raise UsageError if `--shape` names an input that a program does not have."""
    known = list(names)
    if unknown := shapes.keys() - set(known):
        message = f"--shape {min(unknown)}=…: {program} has no such input"
        raise UsageError(message, f"Its inputs: {', '.join(known)}.")


def make_input(
    name: str, element_type: str, sizes: Sequence[int | str], given_shape: tuple[int, ...] | None, dtype: str = ""
) -> ProgramInput:
    """Make an input; sizes that the file leaves open are names, and a given shape chooses them."""
    open_names = {axis: size for axis, size in enumerate(sizes) if isinstance(size, str)}
    chosen = tuple(_DEFAULT_SIZE if isinstance(size, str) else size for size in sizes)
    shape = given_shape or chosen
    if len(shape) != len(sizes) or any(
        axis not in open_names and size != given_size
        for axis, (size, given_size) in enumerate(zip(sizes, shape, strict=True))
    ):
        file_shape = "x".join("?" if isinstance(size, str) else str(size) for size in sizes)
        message = f"--shape {name}={'x'.join(map(str, shape))}: the file has {file_shape}"
        raise UsageError(message, "Give the same number of sizes; only those with a ? can be chosen.")
    return ProgramInput(name, shape, element_type, {} if given_shape else open_names, bool(open_names), dtype)


def make_model_name(name: str) -> str:
    """Return a name that is valid for a folder and a chain, as similar to the given one as possible."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "_", plain).strip("_.-") or "model"
