"""What a file is, by its content, and how `init` reads it as a program."""

from __future__ import annotations

import mmap
import re
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.upkeep.mlir_program import read_mlir
from iree_gauntlet.upkeep.onnx_program import read_onnx
from iree_gauntlet.upkeep.programs import JaxSource
from iree_gauntlet.upkeep.references import JAX_HINT, get_memory_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.upkeep.programs import UserProgram
    from iree_gauntlet.upkeep.references import ReferenceSources


_MLIR_MAGIC = b"ML\xefR"
# Inside of an export is a portable artifact; a byte with the version of bytecode lies between these.
_EXPORTED_STABLEHLO = b"StableHLO_v"
_EXPORT_SECONDS = 600.0
_HEAD_BYTES = 4096
_PYTHON_SUFFIX = ".py"
_TAKEN = "Taken are ONNX, MLIR as text or bytecode, and exports and functions of JAX: docs/start/own-model.md"
_TORCH_HINT = "Export it to ONNX first, such as with torch.onnx.export(…, dynamo=True)."
_ASCII_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


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
    name: str
    function: str
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _JaxExportPlan(Recorded):
    model: str
    function: str
    folder: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _JaxExport(Recorded):
    """The answer of `run_jax` about an export."""

    artifact: str
    examples: str
    arguments: int
    kept: tuple[int, ...]


def _read_onnx(path: Path, request: _Request, _: ReferenceSources) -> UserProgram:
    program = read_onnx(path, request.name, request.shapes)
    if request.function not in ("", program.function):
        message = f"--function {request.function}: the function of {path.name} is {program.function}"
        raise UsageError(message, "An ONNX file has one function: leave the option out.")
    return program


def _read_mlir(path: Path, request: _Request, sources: ReferenceSources, title: str = "") -> UserProgram:
    if path.suffix == _PYTHON_SUFFIX:
        raise UsageError(f"--program {path} is a Python file", f"Name a function in it, of JAX: {path}:FUNCTION.")
    python = sources.toolchain.compiler.python
    if not python:
        raise UsageError(f"--program {path}: this IREE has no Python bindings, which read MLIR", "Use a wheel of IREE.")
    names = {"name": request.name, "function": request.function, "title": title}
    return read_mlir(path, sources.workers, python, shapes=request.shapes, **names)


def _read_jax(path: Path, request: _Request, sources: ReferenceSources) -> UserProgram:
    return _export_jax(path, "", sources, request)


def _export_jax(path: Path, function: str, sources: ReferenceSources, request: _Request) -> UserProgram:
    """Read a program of JAX, which is exported as StableHLO first, in a Python that has jax.

    Raises:
        UsageError: there is no jax, or the program cannot be exported.
    """
    title = f"--program {path}{f':{function}' if function else ''}"
    python = sources.jax_python
    if not python:
        raise UsageError(f"{title} is of JAX, and jax is not installed", f"{JAX_HINT}, or give --reference-python.")
    plan = _JaxExportPlan(str(path.absolute()), function, str(sources.workers.folder), get_memory_limit())
    try:
        answer = sources.workers.run_worker("run_jax", title, plan, _JaxExport, python=python, seconds=_EXPORT_SECONDS)
    except GauntletError as error:
        raise UsageError(error.message, "docs/start/own-model.md describes what is taken of JAX.") from error
    name = request.name or function or path.stem
    program = _read_mlir(Path(answer.artifact), replace(request, name=name), sources, title)
    dropped = answer.arguments - len(answer.kept)
    note = f"the program does not use {pluralize(dropped, 'argument')}: the model has no input for it"
    return replace(
        program,
        file_name=f"{program.name}.mlirbc",
        source=JaxSource(path.absolute(), function, python, answer.kept),
        examples=Path(answer.examples) if answer.examples else None,
        notes=(*program.notes, *((note,) if dropped else ())),
    )


def _contains(path: Path, content: bytes) -> bool:
    """Return whether a file has some bytes anywhere."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        return contents.find(content) >= 0


def _has_names(path: Path, *parts: str) -> bool:
    """Return whether a zip archive has a member with one of these in its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(part in name for name in archive.namelist() for part in parts)
    except (OSError, zipfile.BadZipFile):
        return False


def _is_text(head: bytes) -> bool:
    """Return whether it is text in UTF-8, of which the end may be cut off."""
    if not head.strip() or _ASCII_CONTROLS.search(head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True


def _starts_with(*magic: bytes) -> Callable[[bytes, Path], bool]:
    return lambda head, _: head.startswith(magic)


# The first that matches. ONNX files have no magic number: they are what their parser accepts.
_KINDS = (
    ProgramKind("an empty file", lambda head, _: not head),
    ProgramKind("MLIR as bytecode", _starts_with(_MLIR_MAGIC), _read_mlir),
    ProgramKind(
        "a TFLite model", lambda head, _: head[4:8] == b"TFL3", hint="Convert it to ONNX first, such as with tf2onnx."
    ),
    ProgramKind(
        "a compiled module of IREE",
        lambda head, path: head[4:8] == b"IREE" or (head.startswith(b"PK") and _has_names(path, "module.fb")),
        hint="Name the program that it was compiled from.",
    ),
    ProgramKind(
        "an exported program of PyTorch",
        lambda head, path: (
            head.startswith(b"PK") and _has_names(path, "serialized_exported_program", "models/model.json")
        ),
        hint=_TORCH_HINT,
    ),
    ProgramKind(
        "a checkpoint of PyTorch or a TorchScript",
        lambda head, path: head.startswith(b"PK") and _has_names(path, "data.pkl"),
        hint=_TORCH_HINT,
    ),
    ProgramKind("a zip archive", _starts_with(b"PK\3\4")),
    ProgramKind("a gzip archive", _starts_with(b"\x1f\x8b"), hint="Unpack it first."),
    ProgramKind("an HDF5 file, such as of Keras", _starts_with(b"\x89HDF"), hint=_TORCH_HINT),
    ProgramKind(
        "a pickle, such as of PyTorch", _starts_with(b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"), hint=_TORCH_HINT
    ),
    ProgramKind("weights in GGUF, without a program", _starts_with(b"GGUF")),
    ProgramKind("weights in safetensors, without a program", lambda head, _: head[8:10] == b'{"', hint=_TORCH_HINT),
    ProgramKind("an ELF file", _starts_with(b"\x7fELF")),
    ProgramKind("a serialised export of JAX", lambda _, path: _contains(path, _EXPORTED_STABLEHLO), _read_jax),
    ProgramKind("an array of NumPy", _starts_with(b"\x93NUMPY"), hint="Inputs are given with --data."),
    ProgramKind("text", lambda head, _: _is_text(head), _read_mlir),
    ProgramKind("an ONNX model", lambda *_: True, _read_onnx),
)


def read_program(
    path: Path, sources: ReferenceSources, *, name: str, function: str, shapes: Mapping[str, tuple[int, ...]]
) -> UserProgram:
    """Read a program of any kind.

    Raises:
        UsageError: the file is not there, is of a kind that is not taken, or is damaged.
    """
    request = _Request(name, function, shapes)
    module, _, function_name = str(path).rpartition(":")
    if module.endswith(_PYTHON_SUFFIX) and function_name and Path(module).is_file():
        return _export_jax(Path(module), function_name, sources, request)
    if not path.is_file():
        message = "is a folder" if path.is_dir() else "no such file"
        hint = "A model behind a URL needs no file: docs/start/own-model.md#2-the-model" if ":/" in str(path) else ""
        raise UsageError(f"--program {path}: {message}", hint or "Name a file of a program: ONNX or MLIR.")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"--program {path}: {error.strerror}") from error
    kind = next(kind for kind in _KINDS if kind.matches(head, path))
    if kind.read is None:
        raise UsageError(f"--program {path} is {kind.title}, and no program that is taken", kind.hint)
    return kind.read(path, request, sources)
