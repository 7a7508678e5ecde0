"""Reads the machine code of the dispatches of a module.

A module contains its executables as they are: ELF files for CPUs and AMD GPUs, PTX text, SPIR-V modules. Each format
has a reader; an executable without a reader, or a damaged one, is a problem with its reason. The packages of the extra
`code` read ELF files (pyelftools), the notes in them (msgpack), and instructions (capstone).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import mmap
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.code.cpu_code import list_bodies, read_cpu_functions
from iree_gauntlet.measuring.code.gpu_code import read_amd_kernels, read_ptx, read_spirv
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.results import SPILL_FIGURES, DispatchCode
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from elftools.elf.elffile import ELFFile


# A document of another version is read from the module again.
_VERSION = 1
_PACKAGES = {"elftools": "pyelftools", "msgpack": "msgpack", "capstone": "capstone"}
# The beginning of a 64-bit little-endian ELF file, and its header: machine, offset, size and number of sections.
_ELF_MAGIC = b"\x7fELF\x02\x01\x01"
_ELF_HEADER = struct.Struct("<18xH20xQ10xHH2x")
_SPIRV_MAGIC = b"\x03\x02\x23\x07\x00"
_PTX_MAGIC = b"\n.version "
_PTX = re.compile(rb"\n\.version \d+\.\d+\s+\.target sm_")
_AMD_GPU = 224
_CPUS = {62: "x86_64", 183: "aarch64", 243: "riscv64"}


_TOTALS: Mapping[str, tuple[frozenset[str], Callable[[list[int]], int]]] = {
    "code_bytes": (frozenset({"code_bytes"}), sum),
    "spill_count": (frozenset(SPILL_FIGURES), sum),
    # On chips with accumulation registers, this number includes them.
    "register_count": (frozenset({"vgprs"}), max),
    "shared_bytes": (frozenset({"shared_bytes"}), max),
}


@dataclass(frozen=True, slots=True)
class ModuleCode(Recorded):
    """The code of a module; `code_problems` has a line for each executable that could not be read.

    With neither dispatches nor problems, the module was not read.
    """

    code: tuple[DispatchCode, ...]
    code_problems: tuple[str, ...] = ()
    version: int = _VERSION

    @property
    def statistics(self) -> dict[str, object]:
        """The statistics of a result: totals, which are None if a dispatch lacks the number, dispatches, problems."""
        if not (self.code or self.code_problems):
            return {}
        totals: dict[str, object] = {}
        for name, (keys, combine) in _TOTALS.items():
            values = [sum(code.figures[key] for key in keys) for code in self.code if keys <= code.figures.keys()]
            is_complete = not self.code_problems and values and len(values) == len(self.code)
            totals[name] = combine(values) if is_complete else None
        return totals | {name: value for name, value in self.as_dict().items() if value and name != "version"}


def list_missing_packages() -> list[str]:
    """List the packages of the extra `code` that are not installed."""
    return [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]


def load_module_code(module: Path, document: Path) -> ModuleCode:
    """Return the code of a module from its document, or read the module and write the document.

    The code is empty if a package of the extra `code` is missing, or if the module cannot be opened.
    """
    try:
        code = ModuleCode.from_dict(read_json(document.read_bytes()))
        if code.version == _VERSION and code.statistics:
            return code
    except (OSError, ValueError):  # there is none, or another toolkit wrote it
        pass
    if list_missing_packages():
        return ModuleCode(())
    try:
        code = read_module_code(module)
    except OSError:
        return ModuleCode(())
    # On a full disk, the module is read again the next time.
    with contextlib.suppress(OSError):
        # The old document may share its bytes with the cache.
        document.unlink(missing_ok=True)
        write_atomic(document, json.dumps(code.as_dict()).encode())
    return code


def read_module_code(module: Path) -> ModuleCode:
    """Read the code of all executables in a module; OSError if it cannot be opened."""
    dispatches: list[DispatchCode] = []
    problems: list[str] = []
    with module.open("rb") as file:
        if not module.stat().st_size:
            return ModuleCode((), ("the module is empty",))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for offset, read in _find_executables(data):
                try:
                    dispatches += read(data, offset)
                except GauntletError as error:
                    problems.append(f"the executable at byte {offset:,}: {error.message}")
                except Exception as error:  # noqa: BLE001 - libraries raise anything on damaged files
                    text = f"{type(error).__name__}: {error}".strip(": ")
                    problems.append(f"the executable at byte {offset:,} cannot be read: {text}")
    if not dispatches and not problems:
        problems.append("the module has no machine code of a known format")
    return ModuleCode(tuple(dispatches), tuple(problems))


def _find_executables(data: mmap.mmap) -> Iterator[tuple[int, Callable[[mmap.mmap, int], list[DispatchCode]]]]:
    """Yield the offset and the reader of each executable."""
    for magic, read in ((_ELF_MAGIC, _read_elf), (_SPIRV_MAGIC, read_spirv), (_PTX_MAGIC, read_ptx)):
        offset = data.find(magic)
        while offset >= 0:
            if magic != _PTX_MAGIC or _PTX.match(data, offset):
                yield offset, read
            offset = data.find(magic, offset + len(magic))


def list_module_bodies(module: Path) -> list[tuple[str, bytes]]:
    """Return the names and the code of a CPU module's dispatches; empty if they cannot be read."""
    bodies: list[tuple[str, bytes]] = []
    with (
        contextlib.suppress(Exception),  # libraries raise anything on damaged files
        module.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for offset, read in _find_executables(data):
            if read is _read_elf:
                bodies += list_bodies(_open_elf(data, offset)[0])
    return bodies


def _read_elf(data: mmap.mmap, offset: int) -> list[DispatchCode]:
    """Read an ELF file in a module; errors as in `_open_elf`."""
    elf, machine = _open_elf(data, offset)
    return read_amd_kernels(elf) if machine == _AMD_GPU else read_cpu_functions(elf, _CPUS[machine])


def _open_elf(data: mmap.mmap, offset: int) -> tuple[ELFFile, int]:
    """Open an ELF file in a module; GauntletError if it is cut, or is for an unknown machine, which is returned too."""
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - an optional package

    header = data[offset : offset + _ELF_HEADER.size]
    if len(header) < _ELF_HEADER.size:
        raise GauntletError("the ELF file is cut")
    machine, section_offset, entry_size, count = _ELF_HEADER.unpack(header)
    size = section_offset + entry_size * count
    if offset + size > len(data):
        raise GauntletError(f"the ELF file is cut: it has {len(data) - offset:,} of {size:,} bytes")
    if machine not in (_AMD_GPU, *_CPUS):
        raise GauntletError(f"code of the ELF machine {machine} is not read")
    return ELFFile(io.BytesIO(data[offset : offset + size])), machine
