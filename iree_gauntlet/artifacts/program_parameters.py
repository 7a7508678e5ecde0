"""The parameters that a program names, found without loading the program, and how their values lie in memory.

Text is searched chunk by chunk; bytecode is read where its parameters lie, from the file, without any tool and without
its weights. Only bytecode that is newer than this module goes through the toolchain's `iree-opt`.

An attribute whose dialect has no encoding of its own is stored in the bytecode as its assembly text, and a parameter
reference is such an attribute in IREE's stream and flow dialects. The table of offsets says where each attribute is, so
that everything else (weights, operations) is skipped, never read. This is also the only way that keeps every name
right: a tool that prints the program as text prints names without escapes, and a backslash in them would be read a
second time.

Format of bytecode: https://mlir.llvm.org/docs/BytecodeFormat/, versions 0 to 6. Sub-byte integers are packed as the
compiler packs them: `i4` two and `i2` four to a byte, the first value in the lowest bits, a last byte that is not full
padded. `i1` takes a byte a value.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    # Of a program, or of a piece of one.
    _Text = bytes | mmap.mmap


_BLANK = re.compile(rb"[ \t\r\n]+|//[^\n]*")
_STRING = re.compile(rb'"((?:[^"\\\n]|\\["\\nt]|\\[0-9A-Fa-f]{2})*)"')
_ESCAPE = re.compile(rb'\\(["\\nt]|[0-9A-Fa-f]{2})')
_WORD = re.compile(rb"!?[A-Za-z_][A-Za-z0-9_.$]*")
_NESTED = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>(){}\[\]]|[^"/<>(){}\[\]-]+|[/-]', re.DOTALL)
_IGNORED = re.compile(rb'("(?:[^"\\\n]|\\.)*")|//[^\n]*|[ \t\r\n]+', re.DOTALL)
_CLOSERS = {b"<": b">", b"(": b")", b"{": b"}", b"[": b"]"}
_LETTERS = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}
_MARKER = re.compile(rb"#(?:stream|flow)([.<])parameter\.named<")
_LONGEST_MARKER = len(b"#stream.parameter.named<")
# At the beginning of a line; its first letter comes first here because such a pattern is searched for much faster.
_ALIAS = re.compile(rb"!(?<![^\n]!)([A-Za-z_][A-Za-z0-9_$-]*)[ \t]*=[ \t]*(tensor<[^\n>]*>)")
# A string, which may be open at the end of its line, or a comment.
_LITERAL = re.compile(rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+(?:"|(?P<open>\\?))|//[^\n]*')
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
_DAMAGED = "See what iree-opt says to this program; it is damaged, or no MLIR."
_LONGEST_PRODUCER = 4096
_MAX_BYTES = (1 << 63) - 1  # IREE's offsets in files are signed 64-bit numbers

# What ml_dtypes calls the types that NumPy lacks.
ML_DTYPES = {
    "bf16": "bfloat16",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2": "float8_e5m2",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
}
_INTEGER = re.compile(r"([su]?)i(2|4|8|16|32|64)")
# A new number disowns every archive that was made before: values of a seed, or the layout, have changed.
PARAMETERS_FORMAT = 1

_PLAIN_SCOPE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ParameterError(GauntletError):
    """Parameters that cannot be found in a program, or for which no values can be made."""


class BitsKind(Enum):
    """How the bits of a value are read."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type of MLIR for which values can be made.

    Attributes:
        dtype: NumPy's or ml_dtypes' name of the type; empty where values share a byte.
        least, most: integers that can be written, 0 for floats. A signless integer takes -2^(n-1) to 2^n - 1.
    """

    name: str
    kind: BitsKind
    bits: int
    dtype: str
    least: int = 0
    most: int = 0


def element_type(name: str) -> ElementType | None:
    """The element type of this name; None where no values can be made for it."""
    if name == "i1":
        return ElementType(name, BitsKind.BOOL, 8, "uint8", 0, 1)
    if name in ML_DTYPES:
        return ElementType(name, BitsKind.FLOAT, 16 if name == "bf16" else 8, ML_DTYPES[name])
    if name in {"f16", "f32", "f64"}:
        return ElementType(name, BitsKind.FLOAT, int(name[1:]), f"float{name[1:]}")
    match = _INTEGER.fullmatch(name)
    if match is None:
        return None
    bits = int(match[2])
    least = 0 if match[1] == "u" else -(1 << (bits - 1))
    most = (1 << (bits - 1)) - 1 if match[1] == "s" else (1 << bits) - 1
    return ElementType(name, BitsKind.INTEGER, bits, f"uint{bits}" if bits >= 8 else "", least, most)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a program.

    Attributes:
        scope: that of `--parameters=<scope>=<file>`; empty for the anonymous one.
        name: key within the scope. Bytes that are not UTF-8 stand as lone surrogates (`surrogateescape`).
    """

    scope: str
    name: str
    shape: tuple[int, ...]
    element_type: str

    @property
    def element(self) -> ElementType:
        """What is known of the element type; ParameterError where no values can be made for it."""
        known = element_type(self.element_type)
        if known is None:
            raise ParameterError(f"parameter {self.label}: element type {self.element_type} has no values here")
        return known

    @property
    def type(self) -> str:
        """The type as MLIR writes it, such as `tensor<4x4xf32>`."""
        return f"tensor<{'x'.join((*map(str, self.shape), self.element_type))}>"

    @property
    def label(self) -> str:
        """Scope and name for people, such as `"model"::"w"`; what cannot be printed is escaped."""
        path = (self.scope, self.name) if self.scope else (self.name,)
        texts = [text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for text in path]
        quoted = ["".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in t) for t in texts]
        return "::".join(f'"{text}"' for text in quoted)

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """Bytes of all values, dense, sub-byte values packed."""
        return (self.count * self.element.bits + 7) // 8

    def check(self) -> None:
        """ParameterError where no values can be made for it: its element type, or more bytes than a file can hold."""
        if self.byte_size > _MAX_BYTES:
            what = f"parameter {self.label}: {self.type} takes {self.byte_size} bytes, more than a file can hold"
            raise ParameterError(what, "Check the shape in the program.")


def select_scope(parameters: Iterable[Parameter], scope: str) -> tuple[Parameter, ...]:
    """The parameters of one scope (empty for the anonymous one), in the order given.

    Raises:
        ParameterError: there are none; it names the scopes that have some.
    """
    everything = tuple(parameters)
    found = tuple(parameter for parameter in everything if parameter.scope == scope)
    if not found:
        scopes = ", ".join(sorted({repr(parameter.scope) for parameter in everything}))
        raise ParameterError(
            f"no parameter in scope {scope!r}",
            f"Scopes that have parameters: {scopes}." if scopes else "The program names no parameters at all.",
        )
    return found


def archive_name(scope: str) -> str:
    """A safe file name for the archive of a scope, different for each; it depends on the scope alone."""
    if _PLAIN_SCOPE.fullmatch(scope):
        return f"{scope}.irpa"
    digest = hashlib.sha256(scope.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"scope.{digest}.irpa"  # no plain scope has a dot


class MalformedReferenceError(Exception):
    """The text is no reference: says what was expected."""


@dataclass(frozen=True, slots=True)
class ParameterReference:
    """A parameter as a program names it: scope and name as `Parameter` has them.

    Attributes:
        type: text of the type without blanks and comments; empty where the program gives none.
        line: line of the reference, 1-based; 0 where there are no lines.
    """

    scope: str
    name: str
    type: str
    line: int = 0


def _read_reference(text: _Text, start: int, *, wrapped: bool) -> tuple[ParameterReference, int]:
    """Read what follows `parameter.named<`."""
    name, position = _read_string(text, start)
    scope = b""
    behind = _take(text, position, b"::")
    if behind:
        scope = name
        name, position = _read_string(text, behind)
    behind = _take(text, position, b",")
    if behind:
        position = _skip_brackets(text, _skip_blanks(text, behind))
    for _ in range(2 if wrapped else 1):
        behind = _take(text, position, b">")
        if not behind:
            raise MalformedReferenceError('">" is expected behind its name')
        position = behind
    kind = b""
    if behind := _take(text, position, b":"):
        # A type: a word, and what stands in angle brackets right behind it.
        begin = _skip_blanks(text, behind)
        match = _WORD.match(text, begin)
        if match is None:
            raise MalformedReferenceError("a type is expected behind its colon")
        position = match.end()
        if text[position : position + 1] == b"<":
            position = _skip_brackets(text, position)
        kind = _IGNORED.sub(lambda ignored: ignored[1] or b"", text[begin:position])
    scope_text, name_text = (part.decode(errors="surrogateescape") for part in (scope, name))
    return ParameterReference(scope_text, name_text, kind.decode(errors="backslashreplace")), position


def _skip_blanks(text: _Text, position: int) -> int:
    while blank := _BLANK.match(text, position):
        position = blank.end()
    return position


def _take(text: _Text, position: int, token: bytes) -> int:
    """The position behind a token that comes next, blanks before it skipped; 0 where another thing comes."""
    position = _skip_blanks(text, position)
    end = position + len(token)
    return end if text[position:end] == token else 0


def _read_string(text: _Text, position: int) -> tuple[bytes, int]:
    match = _STRING.match(text, _skip_blanks(text, position))
    if match is None:
        raise MalformedReferenceError("a name in double quotes is expected, on one line and with MLIR's escapes")
    name = _ESCAPE.sub(lambda one: _LETTERS.get(one[1]) or bytes.fromhex(one[1].decode("ascii")), match[1])
    return name, match.end()


def _skip_brackets(text: _Text, position: int) -> int:
    """The position behind a balanced pair of brackets that opens here."""
    awaited: list[bytes] = []
    while True:
        match = _NESTED.match(text, position)
        if match is None:
            raise MalformedReferenceError("its brackets are not closed")
        token, position = match[0], match.end()
        if token in _CLOSERS:
            awaited.append(_CLOSERS[token])
        elif not awaited:
            raise MalformedReferenceError("an opening bracket is expected")
        elif token in _CLOSERS.values():
            if token != awaited.pop():
                raise MalformedReferenceError("its brackets do not match")
            if not awaited:
                return position


def find_references_in_text(text: _Text, source: str, *, lines: bool = True) -> Iterator[ParameterReference]:
    """Every reference of a program, in its order, with type aliases resolved.

    Of a file that is mapped, what was read does not stay in memory. A piece of bytecode has no `lines`.

    Raises:
        ParameterError: a reference is not written as MLIR does, or the text ends within a string.
    """
    position = 0
    aliases: dict[str, str] = {}
    for marker, line in _find_markers(text):
        where = f"{source}:{line}" if lines else source
        if marker is None:
            raise ParameterError(f"{where}: the text ends within a string", _DAMAGED)
        if marker.start() < position:
            continue
        try:
            reference, position = _read_reference(text, marker.end(), wrapped=marker[1] == b"<")
        except MalformedReferenceError as error:
            raise ParameterError(f"{where}: a parameter is not written as MLIR does: {error}", _DAMAGED) from error
        if reference.type.startswith("!") and not aliases:
            aliases = {
                f"!{alias[1].decode('ascii')}": re.sub(r"\s", "", alias[2].decode(errors="backslashreplace"))
                for alias in _ALIAS.finditer(text)
            }
        yield replace(reference, type=aliases.get(reference.type, reference.type), line=line if lines else 0)


def _find_markers(text: _Text) -> Iterator[tuple[re.Match[bytes] | None, int]]:
    """What references begin with, each with its line; None at the end of a text that ends within a string."""
    line = 1
    for begin in range(0, len(text), _CHUNK):
        # One that lies over the end is of this chunk.
        chunk = text[begin : begin + _CHUNK + _LONGEST_MARKER]
        for found in _MARKER.finditer(chunk):
            if found.start() < _CHUNK and not _is_quoted(text, begin + found.start()):
                yield _MARKER.match(text, begin + found.start()), line + chunk.count(b"\n", 0, found.start())
        line += chunk.count(b"\n", 0, _CHUNK)
        if isinstance(text, mmap.mmap):
            text.madvise(mmap.MADV_DONTNEED)
    if _is_quoted(text, len(text)):
        yield None, line


def _is_quoted(text: _Text, position: int) -> bool:
    """Whether a string or a comment of its line continues at a position; at the text's end, a string."""
    for literal in _LITERAL.finditer(text, text.rfind(b"\n", 0, position) + 1):
        if literal.start() >= position:
            break
        if literal.end() > position or (literal.end() == len(text) and literal["open"] is not None):
            return True
    return False


def collect_parameters(program: Path, ir_tool: str) -> tuple[Parameter, ...]:
    """The parameters named in MLIR text or bytecode (its content says which), each once, in the program's order.

    Memory does not grow with the weights that are inside the program, only with the number of parameters. `ir_tool` is
    `iree-opt` of the toolchain, for bytecode in an encoding that is not known here.

    Raises:
        ParameterError: the program cannot be read, is damaged, gives one parameter two types, or one a type
            whose values have no known size.
    """
    source = str(program)
    found: dict[tuple[str, str], Parameter] = {}
    try:
        with program.open("rb") as file:
            for reference in _find_references(file, program, ir_tool):
                where = f"{source}:{reference.line}" if reference.line else source
                parameter = _make_parameter(reference, where)
                known = found.setdefault((parameter.scope, parameter.name), parameter)
                if known != parameter:
                    raise ParameterError(
                        f"{where}: parameter {parameter.label} is {parameter.type} here and {known.type} before",
                        "One parameter has one type: name one of the two differently in the program.",
                    )
    except OSError as error:
        hint = "Check the path and the rights there."
        raise ParameterError(f"{program}: cannot be read: {error.strerror}", hint) from error
    return tuple(found.values())


def _find_references(file: BinaryIO, program: Path, ir_tool: str) -> Iterable[ParameterReference]:
    magic = file.read(len(MAGIC))
    file.seek(0)
    if magic != MAGIC:
        return find_references_in_text(_map(file), str(program))
    try:
        return list(find_references_in_bytecode(file, str(program)))
    except UnknownEncodingError:
        return _find_references_through_tool(program, ir_tool)


def _map(file: BinaryIO) -> _Text:
    size = os.fstat(file.fileno()).st_size
    return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def _find_references_through_tool(program: Path, ir_tool: str) -> Iterator[ParameterReference]:
    """As `find_references_in_text`, of what `iree-opt` prints."""
    argv = [ir_tool, str(program.absolute()), *_TOOL_FLAGS, "-o", "-"]
    with tempfile.TemporaryFile() as printed:
        try:
            ended = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.PIPE, check=False)
        except OSError as error:
            hint = f"{program} needs the compiler's iree-opt to be read: give the path of the one in the toolchain."
            raise ParameterError(f"{ir_tool}: cannot be started: {error.strerror}", hint) from error
        if ended.returncode != 0:
            said = ended.stderr.decode(errors="backslashreplace").strip() or "nothing"
            what = f"{program}: iree-opt cannot read it (exit code {ended.returncode}): {said[:_SHOWN]}"
            raise ParameterError(what, "Use the compiler that the program was written for.")
        yield from find_references_in_text(_map(printed), f"{program} as iree-opt prints it")


def _make_parameter(reference: ParameterReference, where: str) -> Parameter:
    def wrong(what: str, hint: str) -> ParameterError:
        label = Parameter(reference.scope, reference.name, (), "").label
        return ParameterError(f"{where}: parameter {label} {what}", hint)

    if not reference.type:
        raise wrong("has no type", 'Write <"name"> : tensor<4xf32>.')
    is_type = f"is {reference.type}"
    match = _TENSOR.fullmatch(reference.type)
    if match is None:
        raise wrong(f"{is_type}, not a tensor", "Values are made for tensors of known size, such as tensor<4x4xf32>.")
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


def find_references_in_bytecode(file: BinaryIO, source: str) -> Iterator[ParameterReference]:
    """Every parameter reference of a bytecode file, each once.

    Raises:
        UnknownEncodingError: only the compiler of the program can read it.
        ParameterError: the file is damaged.
    """
    try:
        yield from _find_stored_references(_BytecodeReader(file), source)
    except _DamagedError as error:
        hint = "Fetch or write it again; iree-opt must be able to read it."
        raise ParameterError(f"{source}: damaged MLIR bytecode: {error}", hint) from error


def _find_stored_references(reader: _BytecodeReader, source: str) -> Iterator[ParameterReference]:
    if reader.take(len(MAGIC)) != MAGIC:
        raise _DamagedError("it does not begin with MLIR's magic number")
    version = reader.varint()
    if version > _NEWEST_VERSION:
        raise UnknownEncodingError(f"bytecode version {version}")
    sections = _find_sections(reader)
    for wanted in (_STRINGS, _DIALECTS, _ATTRIBUTES, _OFFSETS):
        if wanted not in sections:
            raise _DamagedError(f"section {wanted} is missing")
    attributes = sections[_ATTRIBUTES]
    offset = attributes.start
    for dialect, size, encoded in list(_read_entries(reader, sections[_OFFSETS])):
        if offset + size > attributes.stop:
            raise _DamagedError("an attribute lies beyond its section")
        if encoded:
            if _read_dialect_name(reader, sections, dialect, version) in ("stream", "flow"):
                raise UnknownEncodingError("parameters in an encoding of their dialect's own")
        else:
            reader.seek(offset)
            yield from find_references_in_text(reader.take(size).rstrip(b"\0"), source, lines=False)
        offset += size


def _find_sections(reader: _BytecodeReader) -> dict[int, range]:
    """Where each section is in the file, by its number; the name of the program's producer stands before them."""
    for _ in range(_LONGEST_PRODUCER):
        if reader.take(1) == b"\0":
            break
    else:
        raise _DamagedError("the name of its producer has no end")
    sections: dict[int, range] = {}
    while reader.position < reader.size:
        number = reader.take(1)[0]
        size = reader.varint()
        if number & _ALIGNED:
            reader.align(reader.varint())
        section = range(reader.position, reader.position + size)
        reader.seek(section.stop)
        sections.setdefault(number & ~_ALIGNED, section)
    return sections


def _read_entries(reader: _BytecodeReader, section: range) -> Iterator[tuple[int, int, bool]]:
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


def _read_dialect_name(reader: _BytecodeReader, sections: dict[int, range], number: int, version: int) -> str:
    reader.seek(sections[_DIALECTS].start)
    if number >= reader.varint():
        raise _DamagedError(f"dialect {number} does not exist")
    for _ in range(number):
        _read_dialect(reader, version)
    wanted = _read_dialect(reader, version)
    # The lengths, each with the NUL at its end, stand in reverse order before the strings.
    reader.seek(sections[_STRINGS].start)
    count = reader.varint()
    lengths = [reader.varint() for _ in range(count)][::-1]
    if wanted >= count:
        raise _DamagedError(f"string {wanted} does not exist")
    reader.seek(reader.position + sum(lengths[:wanted]))
    return reader.take(lengths[wanted]).rstrip(b"\0").decode(errors="replace")


def _read_dialect(reader: _BytecodeReader, version: int) -> int:
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


class _BytecodeReader:
    """The primitives of the format, read from a file that is never loaded."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, 2)
        self.position = file.seek(0)

    def seek(self, position: int) -> None:
        if position > self.size:
            raise _DamagedError("it is cut short")
        self.position = self._file.seek(position)

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise _DamagedError("it is cut short")
        taken = self._file.read(count)
        self.position += count
        return taken

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
