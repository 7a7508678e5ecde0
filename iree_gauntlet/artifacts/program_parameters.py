"""Find the parameters that a program references, without loading the program, and describe their layout in memory.

Text is searched chunk by chunk. Bytecode is read from the file without any tool, and only at its parameters. Only
bytecode that is newer than this module is read with the toolchain's `iree-opt`.

Bytecode stores an attribute as its assembly text if its dialect defines no encoding. Parameter references are such
attributes in IREE's stream and flow dialects. The table of offsets locates each attribute, so everything else (weights,
operations) is skipped. Reading the file is also the only way that keeps every name right: tools print names without
escapes, so a backslash in a name would be parsed a second time.

The bytecode format is https://mlir.llvm.org/docs/BytecodeFormat/, versions 0 to 6. Sub-byte integers are packed as the
compiler packs them: a byte holds two `i4` or four `i2` values, the first value in the lowest bits, and a partial last
byte is padded. `i1` takes a byte per value.
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

    # This is the text of a program, or of a part of one.
    _Text = bytes | mmap.mmap


_BLANK = re.compile(rb"[ \t\r\n]+|//[^\n]*")
_STRING = re.compile(rb'"((?:[^"\\\n]|\\["\\nt]|\\[0-9A-Fa-f]{2})*)"')
_ESCAPE = re.compile(rb'\\(["\\nt]|[0-9A-Fa-f]{2})')
_TYPE_NAME = re.compile(rb"!?[A-Za-z_][A-Za-z0-9_.$]*")
_BRACKET_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>(){}\[\]]|[^"/<>(){}\[\]-]+|[/-]', re.DOTALL)
_STRING_OR_BLANK = re.compile(rb'("(?:[^"\\\n]|\\.)*")|//[^\n]*|[ \t\r\n]+', re.DOTALL)
_CLOSING_BRACKETS = {b"<": b">", b"(": b")", b"{": b"}", b"[": b"]"}
_ESCAPE_CHARACTERS = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}
_REFERENCE_START = re.compile(rb"#(?:stream|flow)([.<])parameter\.named<")
_MAX_REFERENCE_START_BYTES = len(b"#stream.parameter.named<")
# An alias begins a line. The pattern starts with the literal `!` because such a pattern is searched much faster.
_ALIAS = re.compile(rb"!(?<![^\n]!)([A-Za-z_][A-Za-z0-9_$-]*)[ \t]*=[ \t]*(tensor<[^\n>]*>)")
# This matches a comment, or a string, which may be unterminated at the end of its line.
_LITERAL = re.compile(rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+(?:"|(?P<open>\\?))|//[^\n]*')
_CUTOFF = 16  # elements, or characters of a resource; a reference has neither
_MAX_CHARS = 300  # characters of the tool's output in an error
# Large constants are elided, so that the output is the program without its weights.
_TOOL_FLAGS = (f"--mlir-elide-elementsattrs-if-larger={_CUTOFF}", f"--mlir-elide-resource-strings-if-larger={_CUTOFF}")
_TENSOR = re.compile(r"tensor<((?:(?:[0-9]{1,19}|\?)x)*)([^,]*?)(,.*)?>", re.DOTALL)
MAGIC = b"ML\xefR"
_MAX_VERSION = 6
_MIN_DIALECT_VERSION = 1  # first version in which dialects may carry a version of their own
_STRINGS, _DIALECTS, _ATTRIBUTES, _OFFSETS = 0, 1, 2, 3
_ALIGNMENT_FLAG = 0x80
_CHUNK_BYTES = 1 << 20
_MLIR_HINT = "Run iree-opt on this program; it is damaged, or not MLIR."
_MAX_PRODUCER_BYTES = 4096
_MAX_BYTES = (1 << 63) - 1  # IREE's offsets in files are signed 64-bit numbers

# ml_dtypes has these names for the types that NumPy lacks.
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
# Increase this when seeded values or the layout change: a new number invalidates all earlier archives.
PARAMETERS_FORMAT = 1

_PLAIN_SCOPE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ParameterError(GauntletError):
    """Parameters that cannot be found in a program, or whose values cannot be generated."""


class BitsKind(Enum):
    """The interpretation of a value's bits."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type of MLIR for which values can be generated.

    Attributes:
        dtype: NumPy's or ml_dtypes' name of the type; empty if values share a byte.
        least, most: the range of integers; 0 for floats. The range of signless integers is -2^(n-1) to 2^n - 1.
    """

    name: str
    kind: BitsKind
    bits: int
    dtype: str
    min_value: int = 0
    max_value: int = 0


def element_type(name: str) -> ElementType | None:
    """Return the element type of this name; None if values cannot be generated for it."""
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
    minimum = 0 if match[1] == "u" else -(1 << (bits - 1))
    maximum = (1 << (bits - 1)) - 1 if match[1] == "s" else (1 << bits) - 1
    return ElementType(name, BitsKind.INTEGER, bits, f"uint{bits}" if bits >= 8 else "", minimum, maximum)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a program.

    Attributes:
        scope: the scope in `--parameters=<scope>=<file>`; empty for the anonymous scope.
        name: the key within the scope. Bytes that are not UTF-8 become lone surrogates (`surrogateescape`).
    """

    scope: str
    name: str
    shape: tuple[int, ...]
    element_type: str

    @property
    def element(self) -> ElementType:
        """The properties of the element type; raises ParameterError if values cannot be generated for it."""
        element = element_type(self.element_type)
        if element is None:
            raise ParameterError(f"parameter {self.label}: values of element type {self.element_type} cannot be made")
        return element

    @property
    def type(self) -> str:
        """The type in MLIR syntax, such as `tensor<4x4xf32>`."""
        return f"tensor<{'x'.join((*map(str, self.shape), self.element_type))}>"

    @property
    def label(self) -> str:
        """The scope and name for messages, such as `"model"::"w"`; unprintable characters are escaped."""
        path = (self.scope, self.name) if self.scope else (self.name,)
        texts = [text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for text in path]
        parts = ["".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in t) for t in texts]
        return "::".join(f'"{text}"' for text in parts)

    @property
    def count(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """The size in bytes of all values, dense, with sub-byte values packed."""
        return (self.count * self.element.bits + 7) // 8

    def check(self) -> None:
        """Raise ParameterError for an unsupported element type, or for more bytes than a file can hold."""
        if self.byte_size > _MAX_BYTES:
            message = f"parameter {self.label}: {self.type} takes {self.byte_size} bytes, more than a file can hold"
            raise ParameterError(message, "Check the shape in the program.")


def select_scope(parameters: Iterable[Parameter], scope: str) -> tuple[Parameter, ...]:
    """Return the parameters of one scope (empty for the anonymous scope), in the given order.

    Raises:
        ParameterError: the scope has no parameters; the message names the scopes that have some.
    """
    all_parameters = tuple(parameters)
    selection = tuple(parameter for parameter in all_parameters if parameter.scope == scope)
    if not selection:
        scopes = ", ".join(sorted({repr(parameter.scope) for parameter in all_parameters}))
        raise ParameterError(
            f"no parameter in scope {scope!r}",
            f"Scopes with parameters: {scopes}." if scopes else "The program has no named parameters.",
        )
    return selection


def make_archive_name(scope: str) -> str:
    """Return a safe file name for the archive of a scope; different scopes always give different names."""
    if _PLAIN_SCOPE.fullmatch(scope):
        return f"{scope}.irpa"
    digest = hashlib.sha256(scope.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"scope.{digest}.irpa"  # a plain scope has no dot


class ReferenceSyntaxError(Exception):
    """A text that is not a parameter reference; the message has the expected token."""


@dataclass(frozen=True, slots=True)
class ParameterReference:
    """A parameter reference of a program: scope and name as in `Parameter`.

    Attributes:
        type: the type's text without blanks and comments; empty if the reference has no type.
        line: the reference's line, 1-based; 0 for bytecode.
    """

    scope: str
    name: str
    type: str
    line: int = 0


def _parse_reference(text: _Text, start: int, *, has_outer_bracket: bool) -> tuple[ParameterReference, int]:
    """Parse the text after `parameter.named<`."""
    name, position = _parse_string(text, start)
    scope = b""
    token_end = _match_token(text, position, b"::")
    if token_end:
        scope = name
        name, position = _parse_string(text, token_end)
    token_end = _match_token(text, position, b",")
    if token_end:
        position = _skip_brackets(text, _skip_blanks(text, token_end))
    for _ in range(2 if has_outer_bracket else 1):
        token_end = _match_token(text, position, b">")
        if not token_end:
            raise ReferenceSyntaxError('expected ">" after its name')
        position = token_end
    type_text = b""
    if token_end := _match_token(text, position, b":"):
        # A type is a name and an optional part in angle brackets directly after it.
        begin = _skip_blanks(text, token_end)
        match = _TYPE_NAME.match(text, begin)
        if match is None:
            raise ReferenceSyntaxError("expected a type after its colon")
        position = match.end()
        if text[position : position + 1] == b"<":
            position = _skip_brackets(text, position)
        type_text = _STRING_OR_BLANK.sub(lambda token: token[1] or b"", text[begin:position])
    scope_text, name_text = (part.decode(errors="surrogateescape") for part in (scope, name))
    return ParameterReference(scope_text, name_text, type_text.decode(errors="backslashreplace")), position


def _skip_blanks(text: _Text, position: int) -> int:
    while blank := _BLANK.match(text, position):
        position = blank.end()
    return position


def _match_token(text: _Text, position: int, token: bytes) -> int:
    """Skip blanks and a token; return the position after the token, or 0 if the token does not follow."""
    position = _skip_blanks(text, position)
    end = position + len(token)
    return end if text[position:end] == token else 0


def _parse_string(text: _Text, position: int) -> tuple[bytes, int]:
    match = _STRING.match(text, _skip_blanks(text, position))
    if match is None:
        raise ReferenceSyntaxError("expected a name in double quotes, on one line and with MLIR's escapes")
    name = _ESCAPE.sub(lambda one: _ESCAPE_CHARACTERS.get(one[1]) or bytes.fromhex(one[1].decode("ascii")), match[1])
    return name, match.end()


def _skip_brackets(text: _Text, position: int) -> int:
    """Return the position after the bracket that closes the one at `position`."""
    closing_brackets: list[bytes] = []
    while True:
        match = _BRACKET_TOKEN.match(text, position)
        if match is None:
            raise ReferenceSyntaxError("its brackets are not closed")
        token, position = match[0], match.end()
        if token in _CLOSING_BRACKETS:
            closing_brackets.append(_CLOSING_BRACKETS[token])
        elif not closing_brackets:
            raise ReferenceSyntaxError("expected an opening bracket")
        elif token in _CLOSING_BRACKETS.values():
            if token != closing_brackets.pop():
                raise ReferenceSyntaxError("its brackets do not match")
            if not closing_brackets:
                return position


def find_references_in_text(text: _Text, source: str, *, lines: bool = True) -> Iterator[ParameterReference]:
    """Yield every reference of a program, in order, with type aliases resolved.

    The memory pages of a mapped file are released after reading. Pass `lines=False` for a part of bytecode.

    Raises:
        ParameterError: a reference is not valid MLIR, or the text ends within a string.
    """
    position = 0
    aliases: dict[str, str] = {}
    for marker, line in _find_reference_starts(text):
        location = f"{source}:{line}" if lines else source
        if marker is None:
            raise ParameterError(f"{location}: the text ends within a string", _MLIR_HINT)
        if marker.start() < position:
            continue
        try:
            reference, position = _parse_reference(text, marker.end(), has_outer_bracket=marker[1] == b"<")
        except ReferenceSyntaxError as error:
            raise ParameterError(f"{location}: a parameter is not in MLIR's syntax: {error}", _MLIR_HINT) from error
        if reference.type.startswith("!") and not aliases:
            aliases = {
                f"!{alias[1].decode('ascii')}": re.sub(r"\s", "", alias[2].decode(errors="backslashreplace"))
                for alias in _ALIAS.finditer(text)
            }
        yield replace(reference, type=aliases.get(reference.type, reference.type), line=line if lines else 0)


def _find_reference_starts(text: _Text) -> Iterator[tuple[re.Match[bytes] | None, int]]:
    """Yield the start and line of each reference; yield None as a last start if the text ends within a string."""
    line = 1
    for begin in range(0, len(text), _CHUNK_BYTES):
        # A reference start that crosses the chunk's end belongs to this chunk.
        chunk = text[begin : begin + _CHUNK_BYTES + _MAX_REFERENCE_START_BYTES]
        for match in _REFERENCE_START.finditer(chunk):
            if match.start() < _CHUNK_BYTES and not _is_quoted(text, begin + match.start()):
                yield _REFERENCE_START.match(text, begin + match.start()), line + chunk.count(b"\n", 0, match.start())
        line += chunk.count(b"\n", 0, _CHUNK_BYTES)
        if isinstance(text, mmap.mmap):
            text.madvise(mmap.MADV_DONTNEED)
    if _is_quoted(text, len(text)):
        yield None, line


def _is_quoted(text: _Text, position: int) -> bool:
    """Return True if a position is inside a string or comment; at the text's end, only strings count."""
    for literal in _LITERAL.finditer(text, text.rfind(b"\n", 0, position) + 1):
        if literal.start() >= position:
            break
        if literal.end() > position or (literal.end() == len(text) and literal["open"] is not None):
            return True
    return False


def collect_parameters(program: Path, ir_tool: str) -> tuple[Parameter, ...]:
    """Return the distinct parameters of MLIR text or bytecode (detected by content), in the program's order.

    Memory grows with the number of parameters, not with the weights in the program. `ir_tool` is the toolchain's
    `iree-opt`; it reads bytecode in an encoding that this module does not support.

    Raises:
        ParameterError: the program is unreadable or damaged, gives a parameter two types, or gives it a type of
            unknown size.
    """
    source = str(program)
    parameters: dict[tuple[str, str], Parameter] = {}
    try:
        with program.open("rb") as file:
            for reference in _find_references(file, program, ir_tool):
                location = f"{source}:{reference.line}" if reference.line else source
                parameter = _make_parameter(reference, location)
                first = parameters.setdefault((parameter.scope, parameter.name), parameter)
                if first != parameter:
                    raise ParameterError(
                        f"{location}: parameter {parameter.label} is {parameter.type}, but was {first.type} before",
                        "A parameter can have only one type: rename one of the two in the program.",
                    )
    except OSError as error:
        hint = "Check the path and its permissions."
        raise ParameterError(f"{program}: cannot be read: {error.strerror}", hint) from error
    return tuple(parameters.values())


def _find_references(file: BinaryIO, program: Path, ir_tool: str) -> Iterable[ParameterReference]:
    magic = file.read(len(MAGIC))
    file.seek(0)
    if magic != MAGIC:
        return find_references_in_text(_map_file(file), str(program))
    try:
        return list(find_references_in_bytecode(file, str(program)))
    except UnknownEncodingError:
        return _find_references_through_tool(program, ir_tool)


def _map_file(file: BinaryIO) -> _Text:
    size = os.fstat(file.fileno()).st_size
    return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def _find_references_through_tool(program: Path, ir_tool: str) -> Iterator[ParameterReference]:
    """Yield the references as `find_references_in_text` does, from the output of `iree-opt`."""
    argv = [ir_tool, str(program.absolute()), *_TOOL_FLAGS, "-o", "-"]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, check=False)
        except OSError as error:
            hint = f"Reading {program} requires the compiler's iree-opt: give the path of the toolchain's one."
            raise ParameterError(f"{ir_tool}: cannot be started: {error.strerror}", hint) from error
        if process.returncode != 0:
            details = process.stderr.decode(errors="backslashreplace").strip() or "no output"
            message = f"{program}: iree-opt cannot read it (exit code {process.returncode}): {details[:_MAX_CHARS]}"
            raise ParameterError(message, "Use the compiler version that the program was written for.")
        yield from find_references_in_text(_map_file(output), f"{program} as iree-opt prints it")


def _make_parameter(reference: ParameterReference, location: str) -> Parameter:
    def explain(reason: str, hint: str) -> ParameterError:
        label = Parameter(reference.scope, reference.name, (), "").label
        return ParameterError(f"{location}: parameter {label} {reason}", hint)

    if not reference.type:
        raise explain("has no type", 'Write <"name"> : tensor<4xf32>.')
    is_type = f"is {reference.type}"
    match = _TENSOR.fullmatch(reference.type)
    if match is None:
        raise explain(f"{is_type}, not a tensor", "Values require tensors of known size, such as tensor<4x4xf32>.")
    dims, name, encoding = match.groups()
    if "?" in dims:
        hint = "Values require a static shape: write the sizes in the program, or use weights from a URL."
        raise explain(f"{is_type}, of unknown size", hint)
    if encoding:
        hint = "Remove the encoding from the global, or use weights from a URL."
        raise explain(f"{is_type}, whose encoding has no known size", hint)
    if element_type(name) is None:
        hint = "Supported: i1, i2, i4, i8 to i64 (also si…, ui…), f16, bf16, f32, f64 and the f8 types with a sign."
        raise explain(f"{is_type}, for whose element type no values can be made", hint)
    parameter = Parameter(reference.scope, reference.name, tuple(int(size) for size in dims.split("x") if size), name)
    parameter.check()
    return parameter


class UnknownEncodingError(Exception):
    """Bytecode that is newer than this module supports, or has references in their dialect's own encoding."""


class _BytecodeError(Exception):
    """A file that violates the format."""


def find_references_in_bytecode(file: BinaryIO, source: str) -> Iterator[ParameterReference]:
    """Yield the distinct parameter references of a bytecode file.

    Raises:
        UnknownEncodingError: only the program's compiler can read the file.
        ParameterError: the file is damaged.
    """
    try:
        yield from _find_stored_references(_BytecodeReader(file), source)
    except _BytecodeError as error:
        hint = "Fetch or write it again, and check that iree-opt can read it."
        raise ParameterError(f"{source}: damaged MLIR bytecode: {error}", hint) from error


def _find_stored_references(reader: _BytecodeReader, source: str) -> Iterator[ParameterReference]:
    if reader.take(len(MAGIC)) != MAGIC:
        raise _BytecodeError("it does not start with MLIR's magic number")
    version = reader.varint()
    if version > _MAX_VERSION:
        raise UnknownEncodingError(f"bytecode version {version}")
    sections = _find_sections(reader)
    for number in (_STRINGS, _DIALECTS, _ATTRIBUTES, _OFFSETS):
        if number not in sections:
            raise _BytecodeError(f"section {number} is missing")
    attributes = sections[_ATTRIBUTES]
    offset = attributes.start
    for dialect, size, has_dialect_encoding in list(_read_attribute_entries(reader, sections[_OFFSETS])):
        if offset + size > attributes.stop:
            raise _BytecodeError("an attribute is outside of its section")
        if has_dialect_encoding:
            if _read_dialect_name(reader, sections, dialect, version) in ("stream", "flow"):
                raise UnknownEncodingError("parameters in an encoding of their dialect's own")
        else:
            reader.seek(offset)
            yield from find_references_in_text(reader.take(size).rstrip(b"\0"), source, lines=False)
        offset += size


def _find_sections(reader: _BytecodeReader) -> dict[int, range]:
    """Skip the producer's name, and return the file range of each section, by section number."""
    for _ in range(_MAX_PRODUCER_BYTES):
        if reader.take(1) == b"\0":
            break
    else:
        raise _BytecodeError("the name of its producer is too long")
    sections: dict[int, range] = {}
    while reader.position < reader.size:
        number = reader.take(1)[0]
        size = reader.varint()
        if number & _ALIGNMENT_FLAG:
            reader.align(reader.varint())
        section = range(reader.position, reader.position + size)
        reader.seek(section.stop)
        sections.setdefault(number & ~_ALIGNMENT_FLAG, section)
    return sections


def _read_attribute_entries(reader: _BytecodeReader, section: range) -> Iterator[tuple[int, int, bool]]:
    """Yield for every attribute its dialect number, its bytes, and True if it has the dialect's own encoding."""
    reader.seek(section.start)
    total = reader.varint()
    reader.varint()  # the number of types, whose offsets follow those of the attributes
    position = 0
    while position < total:
        dialect, count = reader.varint(), reader.varint()
        if not 0 < count <= total - position:
            raise _BytecodeError("the table of attributes does not add up")
        for _ in range(count):
            if reader.position > section.stop:
                raise _BytecodeError("the table of attributes is truncated")
            value = reader.varint()
            yield dialect, value >> 1, bool(value & 1)
        position += count


def _read_dialect_name(reader: _BytecodeReader, sections: dict[int, range], number: int, version: int) -> str:
    reader.seek(sections[_DIALECTS].start)
    if number >= reader.varint():
        raise _BytecodeError(f"dialect {number} does not exist")
    for _ in range(number):
        _read_dialect_name_index(reader, version)
    index = _read_dialect_name_index(reader, version)
    # The strings' lengths precede the strings, in reverse order; each includes the string's final NUL.
    reader.seek(sections[_STRINGS].start)
    count = reader.varint()
    lengths = [reader.varint() for _ in range(count)][::-1]
    if index >= count:
        raise _BytecodeError(f"string {index} does not exist")
    reader.seek(reader.position + sum(lengths[:index]))
    return reader.take(lengths[index]).rstrip(b"\0").decode(errors="replace")


def _read_dialect_name_index(reader: _BytecodeReader, version: int) -> int:
    """Return the index of the string that names the dialect at the reader's position."""
    value = reader.varint()
    if version < _MIN_DIALECT_VERSION:
        return value
    if value & 1:
        number, size = reader.take(1)[0], reader.varint()
        if number & _ALIGNMENT_FLAG:
            reader.align(reader.varint())
        reader.seek(reader.position + size)
    return value >> 1


class _BytecodeReader:
    """A reader of the format's primitives; the file is never loaded as a whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, 2)
        self.position = file.seek(0)

    def seek(self, position: int) -> None:
        if position > self.size:
            raise _BytecodeError("it is truncated")
        self.position = self._file.seek(position)

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise _BytecodeError("it is truncated")
        content = self._file.read(count)
        self.position += count
        return content

    def varint(self) -> int:
        """Read a PrefixVarInt: the number of low zero bits of the first byte is the number of further bytes."""
        first = self.take(1)
        if first == b"\0":
            return int.from_bytes(self.take(8), "little")
        following_bytes = (first[0] & -first[0]).bit_length() - 1
        return int.from_bytes(first + self.take(following_bytes), "little") >> (following_bytes + 1)

    def align(self, alignment: int) -> None:
        if alignment < 1:
            raise _BytecodeError("an alignment is zero")
        self.seek(-(-self.position // alignment) * alignment)
