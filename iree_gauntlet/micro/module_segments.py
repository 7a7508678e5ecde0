"""The data of a compiled module, and the tables in it that name the parameters which it reads.

A module is a ZIP archive: `module.fb`, which is a flatbuffer, the executables, and `_const….bin`. What lies inside the
flatbuffer is told by the toolchain's `iree-dump-module`, which knows its layout. Parameters stand there as a table of
pairs, offset and length, into a text of all their names; and as a table of spans, in the same order: where each lies
in the archive and in the buffer that it is read into, and its length. So it is in the releases 3.5 to 3.13.
"""

from __future__ import annotations

import itertools
import json
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.toolchains.probe import ask

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["NameTable", "Segment", "name_tables", "read_segments", "span_lengths"]

_DUMP_TOOL = "iree-dump-module"
_DUMP_SECONDS = 120.0
_MODULE = "module.fb"
_CONSTANTS = "_const"
_PAIR, _SPAN = struct.Struct("<II"), struct.Struct("<QQQ")
_LARGEST_TABLE = 1 << 24


@dataclass(frozen=True, slots=True)
class Segment:
    """Data of a module.

    Attributes:
        member: file name inside the archive; empty for what lies in `module.fb`.
        size: bytes.
        data: empty for a constant that is larger than any table.
    """

    member: str
    size: int
    data: bytes

    @property
    def is_constant(self) -> bool:
        """Whether it is one of the files that hold constants."""
        return self.member.startswith(_CONSTANTS)


@dataclass(frozen=True, slots=True)
class NameTable:
    """Names of parameters that one initializer reads, and the data that they stand in."""

    names: tuple[str, ...]
    data: tuple[bytes, bytes]


def read_segments(toolchain: Toolchain, module: Path) -> list[Segment]:
    """All data of a module: what lies in `module.fb`, and the files beside it, which come in the same order.

    Raises:
        GauntletError: the module cannot be read; ToolchainError where its toolchain's tool cannot be started.
    """
    described = _described(toolchain, module)
    try:
        with zipfile.ZipFile(module) as archive:
            outside = [_read(archive, info) for info in archive.infolist() if info.filename != _MODULE]
    except OSError as error:
        raise GauntletError(f"{module}: cannot be read: {error.strerror}", "compile it again") from error
    except zipfile.BadZipFile as error:
        raise GauntletError(
            f"{module}: its parts cannot be told from each other: {error}",
            "compile it without --iree-vm-emit-polyglot-zip=false",
        ) from error
    inside = [bytes(said["embedded_data"]) for said in described if "embedded_data" in said]
    expected = [said["external_data_length"] for said in described if "external_data_length" in said]
    if expected != [segment.size for segment in outside]:
        raise GauntletError(
            f"{module}: its description tells of {len(expected)} files inside, and there are others",
            "it has to be written and described by one release of IREE",
        )
    return [*outside, *(Segment("", len(data), data) for data in inside)]


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Segment:
    skipped = info.filename.startswith(_CONSTANTS) and info.file_size > _LARGEST_TABLE
    return Segment(info.filename, info.file_size, b"" if skipped else archive.read(info))


def _described(toolchain: Toolchain, module: Path) -> list[dict[str, Any]]:
    """The data segments as the toolchain describes them."""
    tool = Path(toolchain.runtime.run_module).with_name(_DUMP_TOOL)
    answer = ask([str(tool), "--output=flatbuffer-json", str(module)], timeout=_DUMP_SECONDS)
    try:
        described: list[dict[str, Any]] = json.loads(answer.stdout)["rodata_segments"]
    except (ValueError, KeyError) as error:
        said = next((line.strip() for line in answer.stderr.splitlines() if line.strip()), "it says nothing")
        raise GauntletError(
            f"{module}: {_DUMP_TOOL} cannot describe it: {said}", "compile it again with this toolchain"
        ) from error
    return described


def name_tables(data: Sequence[bytes], known: Collection[str]) -> list[NameTable]:
    """The tables of names of parameters; equal data is stored once, so a text need not follow its table."""
    found = []
    for table in filter(None, data):
        if len(table) % _PAIR.size:
            continue
        pairs = list(_PAIR.iter_unpack(table))
        ends = list(itertools.accumulate(length for _, length in pairs))
        if [offset for offset, _ in pairs] != [0, *ends[:-1]]:
            continue
        for text in data:
            if len(text) != ends[-1]:
                continue
            names = [text[offset : offset + length].decode("utf-8", "surrogateescape") for offset, length in pairs]
            if all(name in known for name in names):
                found.append(NameTable(tuple(names), (table, text)))
    return found


def span_lengths(data: bytes) -> tuple[int, ...]:
    """The lengths of a table of spans; empty for other data."""
    if len(data) % _SPAN.size:
        return ()
    return tuple(length for *_, length in _SPAN.iter_unpack(data))
