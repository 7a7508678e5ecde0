"""The kinds of programs, told by a file's content, and their readers: the facts of ONNX and MLIR for a spec."""

from __future__ import annotations

import mmap
import re
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.engine.workbench import find_tflite_importer
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import list_first, pluralize
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.upkeep.exports import export_program
from iree_gauntlet.upkeep.programs import (
    ProgramOutput,
    TfliteSource,
    UserProgram,
    make_input,
    make_model_name,
    require_known_inputs,
)
from iree_gauntlet.upkeep.references import TFLITE, get_memory_limit
from iree_gauntlet.workers.iree_side.import_onnx import list_inputs
from iree_gauntlet.workers.iree_side.index_operators import IndexUse
from iree_gauntlet.workers.iree_side.onnx_reference import walk_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.upkeep.programs import ProgramInput
    from iree_gauntlet.upkeep.references import ReferenceSources


_MLIR_MAGIC = b"ML\xefR"
# Inside of an export is a portable artifact; a byte with the version of bytecode lies between these.
_EXPORTED_STABLEHLO = b"StableHLO_v"
_HEAD_BYTES = 4096
_PYTHON_SUFFIX = ".py"
_TAKEN = "Taken are ONNX, TFLite, MLIR, and exports and functions of JAX and PyTorch: docs/how-to/programs.md"
_TORCH_HINT = "Save the program itself: torch.export.save(torch.export.export(model, arguments), 'model.pt2')."
_ASCII_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
# IREE's element types, by ONNX's names.
_ELEMENT_TYPES = {
    "FLOAT": "f32",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "DOUBLE": "f64",
    "BOOL": "i1",
    # Integers of modules have no sign.
    **{f"{sign}INT{bits}": f"i{bits}" for sign in ("", "U") for bits in (2, 4, 8, 16, 32, 64)},
    "FLOAT8E4M3FN": "f8E4M3FN",
    "FLOAT8E4M3FNUZ": "f8E4M3FNUZ",
    "FLOAT8E5M2": "f8E5M2",
    "FLOAT8E5M2FNUZ": "f8E5M2FNUZ",
    "FLOAT8E8M0": "f8E8M0FNU",
}
_ONNX_SUFFIX = ".onnx"
_ONNX_HINT = "It may be damaged: `python -c 'import onnx; onnx.load(…)'` reports details."
# What a file with such a name should be, where it is neither that nor ONNX.
_EXPECTED_KINDS = {
    ".tflite": "a TFLite model: its identifier TFL3 is missing",
    ".mlirbc": "MLIR as bytecode: it does not begin with ML\\xefR",
    ".pt2": "an exported program of PyTorch: it is no zip archive",
}
_COPY_HINT = "Copy or download it again."
_READER_SECONDS = 60.0
_IMPORT_SECONDS = 600.0
_MAX_NAMES = 12
# The sign in `tensor<8xui8>`, and in `!vhlo.tensor_v1<8x!vhlo.ui8_v1>`.
_SIGN = re.compile(r"(?:\btensor<|x|!vhlo\.)([us])i\d+(?:_v\d+)?>\Z")
_MLIR_SUFFIXES = (".mlir", ".mlirbc")
_TFLITE_SUFFIX = ".tflite"
_NO_IMPORTER_NOTE = f"a run imports it, and needs tosa-converter-for-tflite in this Python: {TFLITE.hint}"
_STABLEHLO_VERSION = re.compile(rb"StableHLO_v(\d+\.\d+\.\d+)\0")


def read_onnx(
    path: Path, name: str = "", shapes: Mapping[str, tuple[int, ...]] | None = None, function: str = ""
) -> UserProgram:
    """Read an ONNX file for its spec, without its weights.

    Raises:
        UsageError: the file cannot be read, has inputs that are not tensors, lacks an input named in `shapes`, or has
            another function.
    """
    try:
        import onnx  # noqa: PLC0415 - of the importer's extra
    except ImportError as error:
        hint = "pip install 'iree-gauntlet[iree]'"
        raise UsageError("--program reads ONNX files, and onnx is not installed", hint) from error
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    # Protobuf raises different exceptions in different versions.
    except Exception as error:
        raise _refuse_as_onnx(path, "damaged") from error
    graph = model.graph
    if not graph.output:
        raise _refuse_as_onnx(path, "an empty one: it has no outputs")
    data = tuple(path.parent / name for name in list_data_files(path))
    if missing_files := [item for item in data if not item.is_file()]:
        message = f"--program {path} keeps weights in {missing_files[0].name}, which does not exist"
        raise UsageError(message, f"Put it into {path.parent.resolve()}.")
    overrides, get_name = shapes or {}, onnx.TensorProto.DataType.Name
    inputs = tuple(_read_onnx_input(path, value, get_name, overrides.get(value.name)) for value in list_inputs(graph))
    require_known_inputs(path.name, overrides, (item.name for item in inputs))
    if function not in ("", graph.name):
        message = f"--function {function}: the function of {path.name} is {graph.name}"
        raise UsageError(message, "An ONNX file has one function: leave the option out.")

    def get_dtype(element_type: int) -> str:
        return str(onnx.helper.tensor_dtype_to_np_dtype(element_type).name) if element_type else ""

    return UserProgram(
        path,
        path.name if path.suffix.lower() == _ONNX_SUFFIX else f"{path.name}{_ONNX_SUFFIX}",
        make_model_name(name or path.stem),
        graph.name,
        inputs,
        tuple(ProgramOutput(value.name, get_dtype(value.type.tensor_type.elem_type)) for value in graph.output),
        _has_f64(model),
        opset=max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=0),
        data=data,
        model=model,
    )


def _refuse_as_onnx(path: Path, text: str) -> UsageError:
    """Return the error for a file that is neither ONNX nor what its name says."""
    if kind := _EXPECTED_KINDS.get(path.suffix.lower()):
        return UsageError(f"--program {path} is not {kind}", _COPY_HINT)
    return UsageError(f"--program {path} is not an ONNX file, or {text}", _ONNX_HINT)


def _read_onnx_input(path: Path, value: Any, get_name: Any, given_shape: tuple[int, ...] | None) -> ProgramInput:
    tensor = value.type.tensor_type
    type_name = get_name(tensor.elem_type) if value.type.HasField("tensor_type") else value.type.WhichOneof("value")
    element_type = _ELEMENT_TYPES.get(type_name)
    if element_type is None:
        message = f"--program {path}: input {value.name} is of {type_name}, which no spec supports as an input"
        raise UsageError(message, f"Expected tensors of {', '.join(sorted(set(_ELEMENT_TYPES.values())))}.")
    # A size is open if it is named, missing or -1; 0 is a size.
    sizes = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or f"?{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    ]
    return make_input(value.name, element_type, sizes, given_shape)


def _has_f64(model: Any) -> bool:
    """Return True if a value or a weight is f64, or is cast to f64."""
    from onnx import TensorProto  # noqa: PLC0415 - the caller has it

    graph = model.graph
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types |= {tensor.data_type for tensor in graph.initializer}
    for node in walk_nodes(model):
        types |= {attribute.i if attribute.name == "to" else attribute.t.data_type for attribute in node.attribute}
    return TensorProto.DOUBLE in types


@dataclass(frozen=True, slots=True)
class _MlirValue(Recorded):
    """An input or output of a function; `read_mlir.py` describes it."""

    name: str
    type: str
    dtype: str
    element_type: str
    shape: tuple[Any, ...]
    index_uses: tuple[Any, ...] = ()
    uses_known: bool = True


@dataclass(frozen=True, slots=True)
class _MlirFunction(Recorded):
    name: str
    inputs: tuple[_MlirValue, ...]
    outputs: tuple[_MlirValue, ...]


@dataclass(frozen=True, slots=True)
class _Interface(Recorded):
    """The answer of `read_mlir`."""

    dialects: tuple[str, ...]
    functions: tuple[_MlirFunction, ...]
    has_f64: bool
    longest_sum: int
    is_partial: bool
    state: tuple[str, ...]
    onnx: dict[str, str]
    onnx_problem: str


@dataclass(frozen=True, slots=True)
class _ReaderPlan(Recorded):
    model: str
    folder: str
    memory_bytes: int


def _parse_mlir(path: Path, request: _Request, sources: ReferenceSources, title: str = "") -> UserProgram:
    """Read the interface of a program in MLIR, text or bytecode, by IREE's parser in another process.

    Raises:
        UsageError: the parser refuses the file, it has no such function, or the function has inputs or outputs that
            are no tensors of numbers.
        GauntletError: the parser crashed, or ran too long.
    """
    if path.suffix == _PYTHON_SUFFIX:
        hint = f"Name a function in it, of JAX or PyTorch: {path}:FUNCTION."
        raise UsageError(f"--program {path} is a Python file", hint)
    python, workers, overrides = sources.toolchain.compiler.python, sources.workers, request.shapes
    if not python:
        raise UsageError(f"--program {path}: this IREE has no Python bindings, which read MLIR", "Use a wheel of IREE.")
    title = title or f"--program {path}"
    plan = _ReaderPlan(str(path.absolute()), str(workers.folder), get_memory_limit())
    text = f"{title}: IREE's parser does not take it as MLIR"
    try:
        interface = workers.run_worker("read_mlir", text, plan, _Interface, python=python, seconds=_READER_SECONDS)
    except GauntletError as error:
        raise UsageError(error.message, _explain_refusal(path)) from error
    chosen = _choose_function(title, interface.functions, request.function)
    names, output_names = request.tensors
    chosen = replace(chosen, inputs=_rename(chosen.inputs, names), outputs=_rename(chosen.outputs, output_names))
    inputs = tuple(_read_mlir_input(title, chosen, value, overrides.get(value.name)) for value in chosen.inputs)
    require_known_inputs(request.program, overrides, (item.name for item in inputs))
    if not chosen.outputs:
        raise UsageError(f"{title}: @{chosen.name} returns nothing: there is nothing to check", "")
    if strange := next((value for value in chosen.outputs if not value.dtype), None):
        message = f"{title}: @{chosen.name} returns {strange.type}: only tensors of numbers can be compared"
        raise UsageError(message, "Return tensors: `tensor<4xf32>`.")
    notes = []
    if interface.state:
        state = list_first(interface.state, _MAX_NAMES)
        notes.append(f"it has state ({state}): what is checked is the first call")
    restored = interface.onnx.get(chosen.name)
    if interface.onnx_problem:
        notes.append(f"its operators of ONNX cannot be put together to an ONNX file: {interface.onnx_problem}")
    return UserProgram(
        path,
        path.name if path.suffix in _MLIR_SUFFIXES else f"{path.name}.mlir",
        make_model_name(request.name or path.stem),
        chosen.name,
        inputs,
        tuple(ProgramOutput(value.name, value.dtype, _read_sign(value.type)) for value in chosen.outputs),
        interface.has_f64,
        model=_load_model(restored),
        restored=Path(restored) if restored else None,
        dialects=interface.dialects,
        longest_sum=interface.longest_sum,
        is_partial=interface.is_partial,
        notes=tuple(notes),
    )


def _rename(values: tuple[_MlirValue, ...], names: tuple[str, ...]) -> tuple[_MlirValue, ...]:
    """Return values with other names, if there is one for each."""
    if len(names) != len(values):
        return values
    return tuple(replace(value, name=name) for value, name in zip(values, names, strict=True))


def _read_sign(type_text: str) -> str:
    """Return the sign in a type that a module keeps: that of MLIR's integers, but for torch's."""
    match = _SIGN.search(type_text)
    return match[1] if match else ""


def _choose_function(title: str, functions: tuple[_MlirFunction, ...], name: str) -> _MlirFunction:
    names = [item.name for item in functions]
    if not functions:
        message = f"{title}: it has no public function with a body"
        raise UsageError(message, "A private function cannot be called: remove `private` from the one to check.")
    if name and name not in names:
        raise UsageError(
            f"{title}: --function {name}: there is no such function", f"Its functions: {', '.join(names)}."
        )
    if not name and len(functions) > 1:
        message = f"{title}: {len(functions)} functions are public: {list_first(names, _MAX_NAMES)}"
        raise UsageError(message, f"Choose one: --function {names[0]}.")
    return functions[names.index(name)] if name else functions[0]


def _read_mlir_input(
    title: str, function: _MlirFunction, value: _MlirValue, given_shape: tuple[int, ...] | None
) -> ProgramInput:
    if not value.element_type:
        message = f"{title}: input {value.name} of @{function.name} is {value.type}"
        raise UsageError(message, "Only tensors of numbers have inputs in a spec: `tensor<4xf32>`, `tensor<f32>`.")
    sizes = [f"?{axis}" if size is None else size for axis, size in enumerate(value.shape)]
    tensor = make_input(value.name, value.element_type, sizes, given_shape, value.dtype)
    uses = tuple(IndexUse(**item) for item in value.index_uses)
    return replace(tensor, sign=_read_sign(value.type), index_uses=uses, uses_known=value.uses_known)


def _load_model(restored: str | None) -> Any:
    """Load the ONNX file that operators in MLIR were put together to, which tells what inputs they accept."""
    if not restored:
        return None
    import onnx  # noqa: PLC0415 - the file was made with it

    return onnx.load(restored)


def _explain_refusal(path: Path) -> str:
    """Return what to do if the parser refuses a file."""
    with path.open("rb") as file:
        version = _STABLEHLO_VERSION.search(file.read(64))
    if path.suffix.lower() == _TFLITE_SUFFIX:
        return f"Nor is it {_EXPECTED_KINDS[_TFLITE_SUFFIX]}. {_COPY_HINT}"
    if version:
        return f"It is of StableHLO {version[1].decode()}; if this IREE reads only older ones, export for one of them."
    return "It must be MLIR of IREE's dialects, as text or bytecode; `iree-opt FILE` reports details."


@dataclass(frozen=True, slots=True)
class ProgramKind:
    """A kind of file.

    Attributes:
        title: the kind, with its article.
        matches: returns whether a file is of this kind, by its first 4096 bytes and its path.
        read: the reader; None for a kind that is not taken.
        hint: what to do with a file that is not taken.
    """

    title: str
    matches: Callable[[bytes, Path], bool]
    read: Callable[[Path, _Request, ReferenceSources], UserProgram] | None = None
    hint: str = _TAKEN


@dataclass(frozen=True, slots=True)
class _Request:
    """The request of a user; `tensors` are the names of all inputs, and of all outputs, by default those in MLIR."""

    program: str
    name: str
    function: str
    shapes: Mapping[str, tuple[int, ...]]
    tensors: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def _export(
    path: Path, request: _Request, sources: ReferenceSources, *, function: str = "", framework: str = ""
) -> UserProgram:
    """Read a program of a framework, which is exported as MLIR first; errors as in `export_program`."""
    export = export_program(path, sources, function=function, framework=framework)
    name = request.name or function or path.stem
    program = _parse_mlir(export.artifact, replace(request, name=name), sources, export.title)
    dropped = export.arguments - len(export.source.kept)
    note = f"the program does not use {pluralize(dropped, 'argument')}: the model has no input for it"
    return replace(
        program,
        file_name=f"{program.name}.mlirbc",
        source=export.source,
        # Sizes that are chosen do not fit them.
        examples=None if request.shapes else export.examples,
        notes=(*export.notes, *program.notes, *((note,) if dropped else ())),
    )


@dataclass(frozen=True, slots=True)
class _TfliteImport(Recorded):
    """The answer of `import_tflite`."""

    artifact: str
    version: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _import_tflite(path: Path, request: _Request, sources: ReferenceSources) -> UserProgram:
    """Read a TFLite model, which is imported to TOSA for it; a run imports it again.

    Raises:
        UsageError: the file is damaged, or cannot be imported.
    """
    title, python = f"--program {path}", sources.tflite_python
    plan = _ReaderPlan(str(path.absolute()), str(sources.workers.folder), get_memory_limit())
    try:
        answer = sources.workers.run_worker(
            "import_tflite", title, plan, _TfliteImport, python=python or sys.executable, seconds=_IMPORT_SECONDS
        )
    except GauntletError as error:
        raise UsageError(error.message, "docs/how-to/programs.md describes what is taken of TFLite.") from error
    request = replace(request, name=request.name or path.stem, tensors=(answer.inputs, answer.outputs))
    program = _parse_mlir(Path(answer.artifact), request, sources, title)
    return replace(
        program,
        file_name=path.name if path.suffix == _TFLITE_SUFFIX else f"{path.name}{_TFLITE_SUFFIX}",
        # LiteRT refuses indices that are out of range, and quantised inputs have all values.
        is_partial=False,
        tflite=TfliteSource(path.absolute(), python, f"tosa-converter-for-tflite {answer.version}"),
        notes=(*program.notes, *(() if find_tflite_importer() else (_NO_IMPORTER_NOTE,))),
    )


def _has_bytes(path: Path, content: bytes) -> bool:
    """Return whether a file has some bytes anywhere."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        return contents.find(content) >= 0


def _list_members(path: Path) -> list[str]:
    """Return the names of a zip archive's members; empty if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    # The zip module raises many types for a damaged one.
    except Exception:  # noqa: BLE001
        return []


def _match_zip(*parts: str) -> Callable[[bytes, Path], bool]:
    """Match a zip archive that has a member with one of these in its name."""
    return lambda head, path: (
        head.startswith(b"PK") and any(part in name for name in _list_members(path) for part in parts)
    )


def _is_text(head: bytes) -> bool:
    """Return whether it is text in UTF-8, of which the end may be cut off."""
    if not head.strip() or _ASCII_CONTROLS.search(head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True


def _match_magic(*magic: bytes) -> Callable[[bytes, Path], bool]:
    return lambda head, _: head.startswith(magic)


# The first that matches. ONNX files have no magic number: they are what their parser accepts.
_KINDS = (
    ProgramKind("an empty file", lambda head, _: not head),
    ProgramKind("MLIR as bytecode", _match_magic(_MLIR_MAGIC), _parse_mlir),
    ProgramKind("a TFLite model", lambda head, _: head[4:8] == b"TFL3", _import_tflite),
    ProgramKind(
        "a compiled module of IREE",
        lambda head, path: head[4:8] == b"IREE" or _match_zip("module.fb")(head, path),
        hint="Name the program that it was compiled from.",
    ),
    ProgramKind(
        "an exported program of PyTorch",
        _match_zip("serialized_exported_program", "models/model.json"),
        lambda path, request, sources: _export(path, request, sources, framework="torch"),
    ),
    ProgramKind("a program that PyTorch has compiled (AOTInductor)", _match_zip("data/aotinductor/"), hint=_TORCH_HINT),
    ProgramKind("a TorchScript", _match_zip("constants.pkl"), hint=_TORCH_HINT),
    ProgramKind(
        "a checkpoint of PyTorch (a pickle, whose weights have no program)", _match_zip("data.pkl"), hint=_TORCH_HINT
    ),
    ProgramKind(
        "a zip archive that is empty, damaged or incomplete",
        lambda head, path: head.startswith(b"PK") and not _list_members(path),
        hint="Copy the file again.",
    ),
    ProgramKind("a zip archive", _match_magic(b"PK\3\4")),
    ProgramKind("a gzip archive", _match_magic(b"\x1f\x8b"), hint="Unpack it first."),
    ProgramKind("an HDF5 file, such as of Keras", _match_magic(b"\x89HDF"), hint="Convert it to ONNX first."),
    ProgramKind(
        "a pickle, such as of PyTorch", _match_magic(b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"), hint=_TORCH_HINT
    ),
    ProgramKind("weights in GGUF, without a program", _match_magic(b"GGUF")),
    ProgramKind("weights in safetensors, without a program", lambda head, _: head[8:10] == b'{"', hint=_TORCH_HINT),
    ProgramKind("an ELF file", _match_magic(b"\x7fELF")),
    ProgramKind(
        "a serialised export of JAX",
        lambda _, path: _has_bytes(path, _EXPORTED_STABLEHLO),
        lambda path, request, sources: _export(path, request, sources, framework="jax"),
    ),
    ProgramKind("an array of NumPy", _match_magic(b"\x93NUMPY"), hint="Inputs are given with --data."),
    ProgramKind("text", lambda head, _: _is_text(head), _parse_mlir),
    ProgramKind(
        "an ONNX model",
        lambda *_: True,
        lambda path, request, _: read_onnx(path, request.name, request.shapes, request.function),
    ),
)


def read_program(
    path: Path, sources: ReferenceSources, *, name: str, function: str, shapes: Mapping[str, tuple[int, ...]]
) -> UserProgram:
    """Read a program of any kind.

    Raises:
        UsageError: the file is not there, is of a kind that is not taken, or is damaged.
    """
    request = _Request(path.name, name, function, shapes)
    module, _, function_name = str(path).rpartition(":")
    if module.endswith(_PYTHON_SUFFIX) and function_name and Path(module).is_file():
        return _export(Path(module), request, sources, function=function_name)
    if not path.is_file():
        message = "is a folder" if path.is_dir() else "no such file"
        hint = "A model behind a URL needs no file: docs/start/own-model.md#2-the-model" if ":/" in str(path) else ""
        hint = hint or "Name a file of a program: ONNX, MLIR, StableHLO, jax.export, .pt2 or TFLite."
        raise UsageError(f"--program {path}: {message}", hint)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"--program {path}: {error.strerror}") from error
    kind = next(kind for kind in _KINDS if kind.matches(head, path))
    if kind.read is None:
        raise UsageError(f"--program {path} is {kind.title}, and no program that is taken", kind.hint)
    return kind.read(path, request, sources)
