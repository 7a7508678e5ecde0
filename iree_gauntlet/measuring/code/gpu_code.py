"""Reads the code of GPUs' dispatches: AMD kernels in ELF files, PTX text and SPIR-V modules."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import DispatchCode

if TYPE_CHECKING:
    import mmap
    from collections.abc import Mapping, Sequence

    from elftools.elf.elffile import ELFFile


@dataclass(frozen=True, slots=True)
class AmdChip:
    """The limits of a family of AMD chips that decide how many waves fit on a SIMD, for waves of 64.

    The source is LLVM: `IsaInfo` in `llvm/lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp`, and the features of chips in
    `AMDGPU.td`. With waves of 32, a register file has twice the registers, and granules are twice as large.

    Attributes:
        names: a pattern of the chips' names.
        registers: vector registers of a SIMD.
        granule: registers are allocated in multiples of it.
        encoding_granule: unit of the number of registers in a kernel's descriptor.
        max_waves: the largest number of waves on a SIMD.
        shared_bytes: local memory of a compute unit; twice as much for a kernel in workgroup-processor mode.
        simds: SIMDs of a compute unit; twice as many in workgroup-processor mode.
    """

    names: str
    registers: int
    granule: int
    encoding_granule: int
    max_waves: int
    shared_bytes: int
    simds: int


_KIB = 1024
# The first row that matches a chip's name counts.
_AMD_CHIPS = (
    AmdChip("gfx950", 512, 8, 8, 8, 160 * _KIB, 4),
    AmdChip("gfx9(0a|4.)", 512, 8, 8, 8, 64 * _KIB, 4),
    AmdChip("gfx9..", 256, 4, 4, 10, 64 * _KIB, 4),
    AmdChip("gfx10[12].", 512, 4, 4, 20, 64 * _KIB, 2),
    AmdChip("gfx(110[01]|1151|120.)", 768, 12, 4, 16, 64 * _KIB, 2),
    AmdChip("gfx(103.|11..)", 512, 8, 4, 16, 64 * _KIB, 2),
)
# The numbers of scalar registers from which fewer waves fit on a SIMD of GFX9, with these waves.
_SCALAR_LIMITS = ((100, 7), (88, 8), (80, 9))
# The storage class of variables that a workgroup shares.
_SPIRV_WORKGROUP = 4
_SPIRV_HEADER_WORDS = 5
_DESCRIPTOR_RESOURCES = struct.Struct("<48xI")
_PTX_TARGET = re.compile(rb"\.target (sm_\w+)")
_PTX_ENTRY = re.compile(rb"\.entry ([\w$]+)\s*\(")
_PTX_ARRAY = re.compile(rb"\.(shared|local) \.align \d+ \.b(\d+) +[\w$]+\[(\d*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdKernel(Recorded):
    """A kernel in the metadata of a code object, by the names of LLVM's user guide for AMDGPU, without their dots.

    Attributes:
        vgpr_count: on chips with accumulation registers, it includes them.
        group_segment_fixed_size: bytes of local memory (LDS).
        private_segment_fixed_size: bytes of scratch memory.
        workgroup_processor_mode: 1 if a workgroup may use both compute units of a workgroup processor.
    """

    name: str
    symbol: str
    wavefront_size: int
    max_flat_workgroup_size: int
    vgpr_count: int
    agpr_count: int = 0
    sgpr_count: int
    vgpr_spill_count: int
    sgpr_spill_count: int
    group_segment_fixed_size: int
    private_segment_fixed_size: int
    workgroup_processor_mode: int = 0

    @property
    def figures(self) -> dict[str, int]:
        """The figures of the kernel's code that the metadata has."""
        return {
            "vgpr_spills": self.vgpr_spill_count,
            "sgpr_spills": self.sgpr_spill_count,
            "vgprs": self.vgpr_count,
            "agprs": self.agpr_count,
            "sgprs": self.sgpr_count,
            "shared_bytes": self.group_segment_fixed_size,
            "scratch_bytes": self.private_segment_fixed_size,
        }


@dataclass(frozen=True, slots=True)
class _CodeObject(Recorded):
    """The metadata of a code object; the target ends in a chip and its features, `…-gfx942:xnack-`."""

    target: str
    kernels: tuple[AmdKernel, ...]


def read_amd_kernels(elf: ELFFile) -> list[DispatchCode]:
    """Read the kernels of a code object by its metadata (version 3 and later), symbols and descriptors."""
    import msgpack  # noqa: PLC0415 - an optional package
    from elftools.elf.sections import SymbolTableSection  # noqa: PLC0415 - an optional package
    from elftools.elf.segments import NoteSegment  # noqa: PLC0415 - an optional package

    segments = (segment for segment in elf.iter_segments() if isinstance(segment, NoteSegment))
    notes = (note for segment in segments for note in segment.iter_notes())
    metadata = next((note.n_descdata for note in notes if note.n_name == "AMDGPU"), None)
    if metadata is None:
        raise GauntletError("the code object has no AMDGPU metadata")
    # The names of fields have prefixes: `amdhsa.target`, `.vgpr_count`.
    document = msgpack.unpackb(
        metadata, object_hook=lambda fields: {name.rpartition(".")[2]: value for name, value in fields.items()}
    )
    code_object = _CodeObject.from_dict(document)
    target = code_object.target.rpartition("-")[2].partition(":")[0]
    tables = [section for section in elf.iter_sections() if isinstance(section, SymbolTableSection)]
    symbols = {symbol.name: symbol.entry for table in tables for symbol in table.iter_symbols()}

    def get_bytes(name: str) -> bytes:
        symbol = symbols[name]
        section = elf.get_section(symbol.st_shndx)
        start = symbol.st_value - section.header.sh_addr
        return bytes(section.data()[start : start + symbol.st_size])

    codes = []
    for kernel in code_object.kernels:
        body = get_bytes(kernel.name)
        (resources,) = _DESCRIPTOR_RESOURCES.unpack_from(get_bytes(kernel.symbol))
        occupancy = compute_occupancy(target, kernel, resources)
        figures = kernel.figures | ({} if occupancy is None else {"occupancy": occupancy}) | {"code_bytes": len(body)}
        codes.append(DispatchCode(kernel.name, target, figures, hashlib.sha256(body).hexdigest()))
    return codes


def compute_occupancy(target: str, kernel: AmdKernel, resources: int) -> int | None:
    """Return the largest number of a kernel's waves on a SIMD; None for an unknown chip.

    Registers, local memory and the hardware's own limit decide. `resources` is COMPUTE_PGM_RSRC1 of the kernel's
    descriptor: its registers are those that are allocated, which may be more than the metadata's.
    """
    chip = next((chip for chip in _AMD_CHIPS if re.fullmatch(chip.names, target)), None)
    if chip is None:
        return None
    # Waves of 32 lanes have twice the registers.
    factor = 2 if kernel.wavefront_size == 32 else 1
    allocated = ((resources & 0x3F) + 1) * chip.encoding_granule * factor
    granule = chip.granule * factor
    waves = [chip.max_waves, chip.registers * factor // (math.ceil(allocated / granule) * granule)]
    if target.startswith("gfx9"):
        waves += [limit for count, limit in _SCALAR_LIMITS if kernel.sgpr_count > count][:1]
    if kernel.group_segment_fixed_size:
        mode_factor = 2 if kernel.workgroup_processor_mode else 1
        groups = chip.shared_bytes * mode_factor // kernel.group_segment_fixed_size
        group_waves = math.ceil(kernel.max_flat_workgroup_size / kernel.wavefront_size)
        waves.append(math.ceil(groups * group_waves / (chip.simds * mode_factor)))
    return max(min(waves), 0)


def read_ptx(data: mmap.mmap, offset: int) -> list[DispatchCode]:
    """Read the entries of a PTX text, which ends at a zero byte: sizes, shared and local memory.

    Registers in PTX are virtual. Shared memory whose size is given at the launch is not in the text.
    """
    end = data.find(b"\0", offset)
    text = data[offset : end if end >= 0 else len(data)]
    target_match = _PTX_TARGET.search(text)
    entries = [*_PTX_ENTRY.finditer(text)]
    if target_match is None or not entries or end < 0:
        raise GauntletError("the PTX text is cut")
    target = target_match[1].decode()
    # Variables of the module stand before the first entry, and all entries may use them.
    bounds = [*(entry.start() for entry in entries), len(text)]
    codes = []
    for entry, start, stop in zip(entries, bounds, bounds[1:], strict=False):
        body = text[start:stop]
        arrays = [*_PTX_ARRAY.finditer(text[: bounds[0]]), *_PTX_ARRAY.finditer(body)]
        figures = {"code_bytes": len(body)}
        for key, space in (("shared_bytes", b"shared"), ("scratch_bytes", b"local")):
            lengths = [(int(array[2]) // 8, array[3]) for array in arrays if array[1] == space]
            if all(length for _, length in lengths):
                figures[key] = sum(width * int(length) for width, length in lengths)
        codes.append(DispatchCode(entry[1].decode(), target, figures, hashlib.sha256(body).hexdigest()))
    return codes


def read_spirv(data: mmap.mmap, offset: int) -> list[DispatchCode]:
    """Read the entry points of a SPIR-V module: the module's bytes, and the workgroup memory of its variables."""
    words = _read_spirv_words(data, offset)
    entries = []
    sizes: dict[int, int] = {}
    constants: dict[int, int] = {}
    shared_bytes = 0
    position = _SPIRV_HEADER_WORDS
    while position < len(words):
        count, opcode = words[position] >> 16, words[position] & 0xFFFF
        if not 0 < count <= len(words) - position:
            raise GauntletError("the SPIR-V module is damaged")
        operands = words[position + 1 : position + count]
        match opcode, operands:
            case 15, (_, _, *literal):  # OpEntryPoint
                entries.append(struct.pack(f"<{len(literal)}I", *literal).partition(b"\0")[0].decode())
            case 43, (_, result, value, *_):  # OpConstant
                constants[result] = value
            case 59, (kind, _, storage, *_) if storage == _SPIRV_WORKGROUP:  # OpVariable
                shared_bytes += sizes.get(kind, 0)
            case _, (result, *_):
                sizes[result] = _compute_spirv_size(opcode, operands[1:], sizes, constants)
        position += count
    figures = {"code_bytes": 4 * len(words), "shared_bytes": shared_bytes}
    code_hash = hashlib.sha256(data[offset : offset + 4 * len(words)]).hexdigest()
    return [DispatchCode(name, "spirv", figures, code_hash) for name in entries]


def _compute_spirv_size(
    opcode: int, operands: Sequence[int], sizes: Mapping[int, int], constants: Mapping[int, int]
) -> int:
    """Return the bytes of a value of the type that an instruction declares; 0 for all other instructions."""
    match opcode, operands:
        case ((21 | 22), (width, *_)):  # OpTypeInt, OpTypeFloat
            return width // 8
        case 23, (part, length):  # OpTypeVector
            return sizes.get(part, 0) * length
        case 28, (part, length):  # OpTypeArray
            return sizes.get(part, 0) * constants.get(length, 0)
        case 30, parts:  # OpTypeStruct
            return sum(sizes.get(part, 0) for part in parts)
        case 32, (_, part):  # OpTypePointer
            return sizes.get(part, 0)
    return 0


def _read_spirv_words(data: mmap.mmap, offset: int) -> tuple[int, ...]:
    """Return the words of a SPIR-V module; their number stands before it."""
    (count,) = struct.unpack("<I", data[max(offset - 4, 0) : offset])
    body = data[offset : offset + 4 * count]
    if count < _SPIRV_HEADER_WORDS or len(body) < 4 * count:
        raise GauntletError("the SPIR-V module is cut")
    return struct.unpack(f"<{count}I", body)
