"""Reads the code of CPUs' dispatches: the exports of an executable library in an ELF file, and their instructions."""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import DispatchCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elftools.elf.elffile import ELFFile


# In a library's table of exports, the number of exports stands before the pointer to their functions, and the pointer
# to their names is among the next ones (`iree_hal_executable_export_table_v0_t` in IREE's `executable_library.h`).
_COUNT_OFFSET = 8
_NAME_OFFSETS = range(8, 56, 8)
_FIGURES = ("vector_instructions", "scalar_instructions", "fma_instructions", "loads", "stores", "stack_accesses")
_VECTOR, _SCALAR, _FMA, _LOAD, _STORE, _STACK = _FIGURES
# Instructions that differ only in numbers are classified once.
_NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d+)\b")
# The operands that depend on where the code is: relative addresses, and targets of calls.
_X86_ADDRESS = re.compile(r"\[rip [+-] \w+\]")
# The frame pointer is set from the stack pointer.
_FRAME = re.compile(r"(rbp|x29), (rsp|sp)\b")
_X86_VECTOR = re.compile(r"\b[xyz]mm")
# Instructions on integers (`vpabsd`) and broadcasts end alike, and work on all lanes.
_X86_SCALAR_FLOAT = re.compile(r"^(?!v?p)\w*(?<!broadcast)s[sdh]$|^v?cvt\w*(ss|sd|si)")
_X86_FMA = re.compile(r"^(vfn?m(add|sub)|vp?dp|tdp)")
_X86_NO_ACCESS = re.compile(r"^(lea|nop|prefetch)")
_X86_WRITES_ONLY = re.compile(r"^(v?p?mov|v?p?maskmov|set|v?p?extr|v?p?compress|v?p?scatter|vcvtps2ph|v?st)")
_X86_READS_ONLY = re.compile(r"^(cmp|test|bt$|i?div|i?mul|call|jmp|push|v?u?comis|vtest|v?ptest)")
_ARM_VECTOR = re.compile(r"\b(v\d+\.|z\d|za|q\d)")
_ARM_FMA = re.compile(r"^(f|bf|[su]{1,2})?(n?m(add|sub)|ml[as]|m?mla|dot|mop[as])")
# The opcodes and functions of RISC-V instructions of 32 bits (*The RISC-V Instruction Set Manual*, volume I).
_RISCV_LOADS, _RISCV_STORES = {0x03, 0x07}, {0x23, 0x27}
_RISCV_VECTOR, _RISCV_FMA, _RISCV_ATOMIC = 0x57, {0x43, 0x47, 0x4B, 0x4F}, 0x2F
# The widths that scalar loads and stores of floating-point numbers have; others are those of vectors.
_RISCV_FLOAT_WIDTHS = {1, 2, 3, 4}
_RISCV_STACK_POINTER = 2


def read_cpu_functions(elf: ELFFile, target: str) -> list[DispatchCode]:
    """Read the functions of the dispatches in an executable library."""
    codes = []
    for name, body in list_bodies(elf):
        counts, code_hash = _read_instructions(body, target)
        codes.append(DispatchCode(name, target, {"code_bytes": len(body), **counts}, code_hash))
    return codes


def list_bodies(elf: ELFFile) -> list[tuple[str, bytes]]:
    """Return the names and the code of the dispatches' functions in an executable library."""
    text = elf.get_section_by_name(".text")
    if text is None:
        raise GauntletError("the library has no code")
    start, content = text.header.sh_addr, text.data()
    exports = _find_exports(elf, range(start, start + len(content)))
    if not exports:
        raise GauntletError("the library's table of exports is not found")
    sizes = _read_sizes(elf)
    boundaries = sorted({*(address for address, _ in exports), *sizes, start + len(content)})
    bodies = []
    for address, name in exports:
        end = next(boundary for boundary in boundaries if boundary > address)
        size = sizes.get(address, end - address)
        body = content[address - start : address - start + size]
        if len(body) < size or not size:
            raise GauntletError(f"the function of {name} is cut")
        bodies.append((name, body))
    return bodies


def _find_exports(elf: ELFFile, code: range) -> list[tuple[int, str]]:
    """Return the addresses and names of exported functions; the loader's relocations tell the pointers of tables."""
    from elftools.elf.relocation import RelocationSection  # noqa: PLC0415 - an optional package

    sections = [
        (section.header.sh_addr, section.data())
        for section in elf.iter_sections()
        if section.header.sh_type == "SHT_PROGBITS" and section.header.sh_addr
    ]
    tables = [section for section in elf.iter_sections() if isinstance(section, RelocationSection)]
    pointers = {item.entry.r_offset: item.entry.r_addend for table in tables for item in table.iter_relocations()}

    def read(address: int, size: int) -> bytes:
        for start, content in sections:
            if 0 <= address - start < len(content):
                return bytes(content[address - start : address - start + size])
        return b""

    for place, table in pointers.items():
        count_bytes = read(place - _COUNT_OFFSET, 4)
        if pointers.get(table, -1) not in code or len(count_bytes) < 4:
            continue
        places = range(table, table + 8 * struct.unpack("<I", count_bytes)[0], 8)
        if not places or not all(pointers.get(item, -1) in code for item in places[: len(pointers) + 1]):
            continue
        functions = [pointers[item] for item in places]
        for offset in _NAME_OFFSETS:
            names = pointers.get(place + offset, 0)
            texts = [read(pointers.get(names + 8 * i, 0), 1024).partition(b"\0")[0] for i in range(len(functions))]
            if all(text.isascii() and text.decode().isprintable() and text for text in texts):
                return list(zip(functions, (text.decode() for text in texts), strict=True))
        # A library without debug information has no names.
        return [(function, f"export {i}") for i, function in enumerate(functions)]
    return []


def _read_sizes(elf: ELFFile) -> dict[int, int]:
    """Return the sizes of functions by address, from the table that unwinds the stack; empty if there is none."""
    from elftools.dwarf.callframe import FDE  # noqa: PLC0415 - an optional package

    information = elf.get_dwarf_info()
    if not information.has_EH_CFI():
        return {}
    # The other entries are common parts of entries, and the end of the table.
    entries = (entry for entry in information.EH_CFI_entries() if isinstance(entry, FDE))
    return {entry.header.initial_location: entry.header.address_range for entry in entries}


def _read_instructions(body: bytes, target: str) -> tuple[dict[str, int], str]:
    """Count the instructions of a function by kind; return the counts, and the hash of the code without addresses.

    There are no counts if some bytes are no instructions for the disassembler.
    """
    if target == "riscv64":
        kinds: Counter[str] = Counter(kind for word in _split_riscv(body) for kind in _classify_riscv(word))
        return {figure: kinds[figure] for figure in _FIGURES}, hashlib.sha256(body).hexdigest()
    import capstone  # noqa: PLC0415 - an optional package

    is_arm = target == "aarch64"
    disassembler = (
        capstone.Cs(capstone.CS_ARCH_ARM64, 0) if is_arm else capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    )
    classify = _classify_arm if is_arm else _classify_x86
    # Without a base address, jumps inside of the function have the same operands wherever the function is.
    instructions = [*disassembler.disasm_lite(body, 0)]
    shapes = Counter((name, _NUMBER.sub("0", operands)) for _, _, name, operands in instructions)
    has_frame = any(_FRAME.match(operands) for _, operands in shapes)
    kinds = Counter()
    for (name, operands), count in shapes.items():
        for kind in classify(name, operands, has_frame):
            kinds[kind] += count
    length = sum(size for _, size, _, _ in instructions)
    if is_arm:
        lines = [*_strip_arm_addresses(instructions)]
    else:
        # Functions that are called are elsewhere.
        lines = [
            name if name == "call" else f"{name} {_X86_ADDRESS.sub('[rip]', operands)}"
            for _, _, name, operands in instructions
        ]
    code_hash = hashlib.sha256("\n".join(lines).encode() + body[length:]).hexdigest()
    return ({figure: kinds[figure] for figure in _FIGURES} if length == len(body) else {}), code_hash


@lru_cache(maxsize=4096)
def _classify_x86(name: str, operands: str, has_frame: bool) -> tuple[str, ...]:
    kinds = []
    is_vector = bool(_X86_VECTOR.search(operands)) and not _X86_SCALAR_FLOAT.search(name)
    kinds.append(_VECTOR if is_vector else _SCALAR)
    if _X86_FMA.match(name):
        kinds.append(_FMA)
    before, bracket, memory = operands.partition("[")
    if bracket and not _X86_NO_ACCESS.match(name):
        # The destination stands first.
        is_destination = "," not in before and not _X86_READS_ONLY.match(name)
        if is_destination:
            kinds.append(_STORE)
        if not is_destination or not _X86_WRITES_ONLY.match(name):
            kinds.append(_LOAD)
    if name in ("push", "pop"):
        kinds.append(_STORE if name == "push" else _LOAD)
    stack_pointers = ("rsp", "rbp") if has_frame else ("rsp",)
    if name in ("push", "pop") or (bracket and memory.startswith(stack_pointers) and name != "lea"):
        kinds.append(_STACK)
    return tuple(kinds)


@lru_cache(maxsize=4096)
def _classify_arm(name: str, operands: str, has_frame: bool) -> tuple[str, ...]:
    kinds = [_VECTOR if _ARM_VECTOR.search(operands) else _SCALAR]
    if _ARM_FMA.match(name):
        kinds.append(_FMA)
    _, bracket, memory = operands.partition("[")
    if bracket and name.startswith(("ld", "st")):
        kinds.append(_LOAD if name.startswith("ld") else _STORE)
        stack_pointers = ("sp", "x29") if has_frame else ("sp",)
        kinds += [_STACK] if memory.startswith(stack_pointers) else []
    return tuple(kinds)


def _split_riscv(body: bytes) -> Iterator[int]:
    """Yield the instructions, which have 16 or 32 bits."""
    position = 0
    while position + 2 <= len(body):
        size = 4 if body[position] & 3 == 3 else 2
        yield int.from_bytes(body[position : position + size], "little")
        position += size


@lru_cache(maxsize=4096)
def _classify_riscv(word: int) -> tuple[str, ...]:
    if word & 3 != 3:
        return _classify_riscv_short(word)
    opcode, width, base = word & 0x7F, word >> 12 & 7, word >> 15 & 31
    is_float_access = opcode in (0x07, 0x27)
    is_vector = opcode == _RISCV_VECTOR or (is_float_access and width not in _RISCV_FLOAT_WIDTHS)
    kinds = [_VECTOR if is_vector else _SCALAR]
    # Vector multiply-adds have functions from 101000 to 101111, and 111100 and more if they widen.
    function = word >> 26
    is_vector_fma = opcode == _RISCV_VECTOR and width != 7 and (0x28 <= function <= 0x2F or function >= 0x3C)
    if opcode in _RISCV_FMA or is_vector_fma:
        kinds.append(_FMA)
    if opcode in _RISCV_LOADS or opcode == _RISCV_ATOMIC:
        kinds.append(_LOAD)
    if opcode in _RISCV_STORES or opcode == _RISCV_ATOMIC:
        kinds.append(_STORE)
    if opcode in _RISCV_LOADS | _RISCV_STORES and base == _RISCV_STACK_POINTER:
        kinds.append(_STACK)
    return tuple(kinds)


def _classify_riscv_short(word: int) -> tuple[str, ...]:
    """Classify an instruction of 16 bits: quadrant 0 has loads and stores, quadrant 2 those relative to the stack."""
    quadrant, function = word & 3, word >> 13
    if quadrant == 1 or function in (0, 4):
        return (_SCALAR,)
    access = _LOAD if function < 4 else _STORE
    return (_SCALAR, access, _STACK) if quadrant == 2 else (_SCALAR, access)


def _strip_arm_addresses(instructions: Iterable[tuple[int, int, str, str]]) -> Iterator[str]:
    """Yield instructions without the pages of addresses, and without the offsets in them, which the next uses add."""
    pages: set[str] = set()
    for _, _, name, operands in instructions:
        words = re.findall(r"\w+", operands)
        uses_page = not pages.isdisjoint(words[1:])
        if name in ("adr", "adrp"):
            pages.add(words[0])
        elif words and words[0] in pages and not name.startswith("st"):
            pages.discard(words[0])
        is_address = uses_page or name in ("adr", "adrp", "bl")
        yield f"{name} {_NUMBER.sub('0', operands) if is_address else operands}"
