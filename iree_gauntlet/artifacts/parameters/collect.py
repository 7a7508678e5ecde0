"""The parameters that a program names, found without loading the program.

Text is read in chunks; bytecode is read where its parameters lie, from the file, without any tool and without its
weights. Only bytecode that is newer than this module goes through the toolchain's `iree-opt`.

An attribute whose dialect has no encoding of its own is stored in the bytecode as its assembly text, and a parameter
reference is such an attribute in IREE's stream and flow dialects. The table of offsets says where each attribute is, so
that everything else (weights, operations) is skipped, never read. This is also the only way that keeps every name
right: a tool that prints the program as text prints names without escapes, and a backslash in them would be read a
second time.

Format of bytecode: https://mlir.llvm.org/docs/BytecodeFormat/, versions 0 to 6.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from iree_gauntlet.artifacts.parameters.mlir_text import MARKER, references_in_text
from iree_gauntlet.artifacts.parameters.parameter import Parameter, ParameterError, element_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from iree_gauntlet.artifacts.parameters.mlir_text import Reference


_ELIDED = 16  # elements, or characters of a resource; a reference is neither
_SHOWN = 300  # characters of the tool's own words in an error
# Large constants are left out, so that what is printed is the program without its weights.
_TOOL_FLAGS = (f"--mlir-elide-elementsattrs-if-larger={_ELIDED}", f"--mlir-elide-resource-strings-if-larger={_ELIDED}")
_TENSOR = re.compile(r"tensor<((?:(?:[0-9]{1,19}|\?)x)*)([^,]*?)(,.*)?>", re.DOTALL)
MAGIC = b"ML\xefR"

_NEWEST_VERSION = 6
_VERSIONED_DIALECTS = 1  # first version in which dialects may carry a version of their own
_STRINGS, _DIALECTS, _ATTRIBUTES, _OFFSETS = 0, 1, 2, 3
_ALIGNED = 0x80
_CHUNK = 1 << 20
_LONGEST_PRODUCER = 4096


def collect_parameters(program: Path, ir_tool: str) -> tuple[Parameter, ...]:
    """The parameters named in MLIR text or bytecode, each once, in the order in which the program has them.

    Memory does not grow with the weights that are inside the program, only with the number of parameters.

    Args:
        program: `.mlir` or `.mlirbc`; its content says which, not its name.
        ir_tool: `iree-opt` of the toolchain, for bytecode in an encoding that is not known here.

    Raises:
        ParameterError: the program cannot be read, is damaged, gives one parameter two types, or one a type
            whose values have no known size.
    """
    try:
        with program.open("rb") as file:
            return _merged(_references(file, program, ir_tool), str(program))
    except OSError as error:
        raise ParameterError(
            f"{program}: cannot be read: {error.strerror}", "Check the path and the rights there."
        ) from error


def _references(file: BinaryIO, program: Path, ir_tool: str) -> Iterable[Reference]:
    magic = file.read(len(MAGIC))
    file.seek(0)
    if magic != MAGIC:
        return references_in_text(iter(lambda: file.read(_CHUNK), b""), str(program))
    try:
        return list(references_in_bytecode(file, str(program)))
    except UnknownEncodingError:
        return _references_through_tool(program, ir_tool)


def _references_through_tool(program: Path, ir_tool: str) -> Iterator[Reference]:
    with _printed_program(program, ir_tool) as text:
        yield from references_in_text(text, f"{program} as iree-opt prints it")


@contextmanager
def _printed_program(program: Path, ir_tool: str) -> Iterator[Iterator[bytes]]:
    """The text of a program in pieces; the tool is gone when the block is left, however it is left.

    Args:
        program: bytecode or text.
        ir_tool: `iree-opt` of the toolchain that the program is for.

    Raises:
        ParameterError: there is no such tool, or it cannot read the program.
    """
    argv = [ir_tool, str(program.absolute()), *_TOOL_FLAGS, "-o", "-"]
    with tempfile.TemporaryFile() as messages:
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages)
        except OSError as error:
            raise ParameterError(
                f"{ir_tool}: cannot be started: {error.strerror}",
                f"{program} needs the compiler's iree-opt to be read: give the path of the one in the toolchain.",
            ) from error
        assert process.stdout is not None, "a pipe was asked for"
        with process:
            output = process.stdout
            try:
                yield iter(lambda: output.read(_CHUNK), b"")
                while output.read(_CHUNK):
                    pass  # it must not die of a closed pipe: how it ends is asked below
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            messages.seek(0)
            said = messages.read(1 << 16).decode(errors="backslashreplace").strip() or "nothing"
            raise ParameterError(
                f"{program}: iree-opt cannot read it (exit code {process.returncode}): {said[:_SHOWN]}",
                "Use the compiler that the program was written for.",
            )


def _merged(references: Iterable[Reference], source: str) -> tuple[Parameter, ...]:
    found: dict[tuple[str, str], Parameter] = {}
    for reference in references:
        where = f"{source}:{reference.line}" if reference.line else source
        parameter = _parameter(reference, where)
        known = found.setdefault((parameter.scope, parameter.name), parameter)
        if known != parameter:
            raise ParameterError(
                f"{where}: parameter {parameter.label} is {parameter.type} here and {known.type} before",
                "One parameter has one type: name one of the two differently in the program.",
            )
    return tuple(found.values())


def _parameter(reference: Reference, where: str) -> Parameter:
    def wrong(what: str, hint: str) -> ParameterError:
        label = Parameter(reference.scope, reference.name, (), "").label
        return ParameterError(f"{where}: parameter {label} {what}", hint)

    if not reference.type:
        raise wrong("has no type", 'Write <"name"> : tensor<4xf32>.')
    is_type = f"is {reference.type}"
    match = _TENSOR.fullmatch(reference.type)
    if match is None:
        hint = "Values are made for tensors of known size, such as tensor<4x4xf32>."
        raise wrong(f"{is_type}, not a tensor", hint)
    dims, name, encoding = match.groups()
    if "?" in dims:
        hint = "Values need a static shape: write the sizes in the program, or use weights from a URL."
        raise wrong(f"{is_type}, of unknown size", hint)
    if encoding:
        hint = "Remove the encoding from the global, or use weights from a URL."
        raise wrong(f"{is_type}, whose encoding has no known size", hint)
    if element_type(name) is None:
        hint = "Known are i1, i2, i4, i8 to i64 (also si…, ui…), f16, bf16, f32, f64 and the f8 types with a sign."
        raise wrong(f"{is_type}, whose element type has no values here", hint)
    parameter = Parameter(reference.scope, reference.name, tuple(int(size) for size in dims.split("x") if size), name)
    parameter.check()
    return parameter


class UnknownEncodingError(Exception):
    """A newer bytecode than is known here, or references in an encoding of their dialect's own."""


class _DamagedError(Exception):
    """The file does not keep to the format."""


def references_in_bytecode(file: BinaryIO, source: str) -> Iterator[Reference]:
    """Every parameter reference of a bytecode file, each once.

    Args:
        file: at its beginning; it can be sought in.
        source: the program as a user would type it, for errors.

    Raises:
        UnknownEncodingError: only the compiler of the program can read it.
        ParameterError: the file is damaged.
    """
    try:
        yield from _stored_references(_Reader(file), source)
    except _DamagedError as error:
        raise ParameterError(
            f"{source}: damaged MLIR bytecode: {error}", "Fetch or write it again; iree-opt must be able to read it."
        ) from error


def _stored_references(reader: _Reader, source: str) -> Iterator[Reference]:
    if reader.take(len(MAGIC)) != MAGIC:
        raise _DamagedError("it does not begin with MLIR's magic number")
    version = reader.varint()
    if version > _NEWEST_VERSION:
        raise UnknownEncodingError(f"bytecode version {version}")
    reader.skip_string()
    sections = _sections(reader)
    for wanted in (_STRINGS, _DIALECTS, _ATTRIBUTES, _OFFSETS):
        if wanted not in sections:
            raise _DamagedError(f"section {wanted} is missing")
    attributes = sections[_ATTRIBUTES]
    offset = attributes.start
    for dialect, size, encoded in list(_entries(reader, sections[_OFFSETS])):
        if offset + size > attributes.stop:
            raise _DamagedError("an attribute lies beyond its section")
        if encoded:
            if _dialect_name(reader, sections, dialect, version) in ("stream", "flow"):
                raise UnknownEncodingError("parameters in an encoding of their dialect's own")
        else:
            yield from _references_of(reader, offset, size, source)
        offset += size


def _references_of(reader: _Reader, offset: int, size: int, source: str) -> Iterator[Reference]:
    reader.seek(offset)
    if size <= _CHUNK:
        text = reader.take(size).rstrip(b"\0")
        if MARKER in text:
            yield from references_in_text([text], source, lines=False)
        return
    pieces = (reader.take(min(_CHUNK, size - begin)).rstrip(b"\0") for begin in range(0, size, _CHUNK))
    yield from references_in_text(pieces, source, lines=False)


def _sections(reader: _Reader) -> dict[int, range]:
    """Where each section is in the file, by its number."""
    sections: dict[int, range] = {}
    while not reader.at_end():
        number = reader.take(1)[0]
        size = reader.varint()
        if number & _ALIGNED:
            reader.align(reader.varint())
        section = range(reader.position, reader.position + size)
        reader.seek(section.stop)
        sections.setdefault(number & ~_ALIGNED, section)
    return sections


def _entries(reader: _Reader, section: range) -> Iterator[tuple[int, int, bool]]:
    """Dialect number, bytes, and whether the encoding is the dialect's own, of every attribute."""
    reader.seek(section.start)
    wanted = reader.varint()
    reader.varint()  # the number of types, whose offsets follow those of the attributes
    seen = 0
    while seen < wanted:
        dialect, count = reader.varint(), reader.varint()
        if not 0 < count <= wanted - seen:
            raise _DamagedError("the table of attributes does not add up")
        for _ in range(count):
            if reader.position > section.stop:
                raise _DamagedError("the table of attributes is cut short")
            value = reader.varint()
            yield dialect, value >> 1, bool(value & 1)
        seen += count


def _dialect_name(reader: _Reader, sections: dict[int, range], number: int, version: int) -> str:
    reader.seek(sections[_DIALECTS].start)
    if number >= reader.varint():
        raise _DamagedError(f"dialect {number} does not exist")
    for _ in range(number):
        _dialect(reader, version)
    wanted = _dialect(reader, version)
    # The lengths, each with the NUL at its end, stand in reverse order before the strings.
    reader.seek(sections[_STRINGS].start)
    count = reader.varint()
    lengths = [reader.varint() for _ in range(count)][::-1]
    if wanted >= count:
        raise _DamagedError(f"string {wanted} does not exist")
    reader.seek(reader.position + sum(lengths[:wanted]))
    return reader.take(lengths[wanted]).rstrip(b"\0").decode(errors="replace")


def _dialect(reader: _Reader, version: int) -> int:
    """The number of the string that names the dialect at the reader's position."""
    value = reader.varint()
    if version < _VERSIONED_DIALECTS:
        return value
    if value & 1:
        number, size = reader.take(1)[0], reader.varint()
        if number & _ALIGNED:
            reader.align(reader.varint())
        reader.seek(reader.position + size)
    return value >> 1


class _Reader:
    """The primitives of the format, read from a file that is never loaded."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, 2)
        self.position = file.seek(0)

    def seek(self, position: int) -> None:
        if position > self._size:
            raise _DamagedError("it is cut short")
        self.position = self._file.seek(position)

    def at_end(self) -> bool:
        return self.position >= self._size

    def take(self, count: int) -> bytes:
        if count > self._size - self.position:
            raise _DamagedError("it is cut short")
        taken = self._file.read(count)
        self.position += count
        return taken

    def skip_string(self) -> None:
        """Step over a short text and the NUL at its end."""
        for _ in range(_LONGEST_PRODUCER):
            if self.take(1) == b"\0":
                return
        raise _DamagedError("the name of its producer has no end")

    def varint(self) -> int:
        """A PrefixVarInt: the zeros at the low end of the first byte count the bytes that follow."""
        first = self.take(1)
        if first == b"\0":
            return int.from_bytes(self.take(8), "little")
        more = (first[0] & -first[0]).bit_length() - 1
        return int.from_bytes(first + self.take(more), "little") >> (more + 1)

    def align(self, alignment: int) -> None:
        if alignment < 1:
            raise _DamagedError("an alignment of nothing")
        self.seek(-(-self.position // alignment) * alignment)
