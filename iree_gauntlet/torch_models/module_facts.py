"""Evidence of a recipe in a compiled module: the parameters that the module reads, its dispatches, its size.

The source program has the list of parameters. Only the compiled module shows which parameters are read, and how they
are used, because the compiler may widen narrow weights:

* at compile time, if the program contains the weights: IREE 3.5 to 3.7 do, and the module has wide constants instead;
* when the module is loaded (`--iree-opt-const-expr-hoisting`): the parameter is read, and an initializer's dispatch,
  which runs once, converts it for the calls. IREE 3.12 and 3.13 do so if the weights grow by no more than
  `--iree-opt-const-expr-max-size-increase-threshold`, which is 1 MiB.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import zipfile
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.program_parameters import Parameter, collect_parameters
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import format_bytes, list_first
from iree_gauntlet.measuring.code.module_dump import dump_module
from iree_gauntlet.measuring.numerics.arrays import count_bits
from iree_gauntlet.measuring.profiles.dispatch_profile import find_dispatch_names, parse_dispatch_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models.plugins import Proof


_INITIALIZER = "_initializer_"
_TYPE_PATTERN = r"(?:i[0-9]+|bf16|f[0-9]+(?:E[0-9]+M[0-9]+[A-Z0-9]*)?)"
_TYPES_PATTERN = re.compile(rf"{_TYPE_PATTERN}(?:x{_TYPE_PATTERN})*")
_HEAVY_KINDS = ("matmul", "conv", "attention")
_MAX_NAMES = 4
_MODULE_FILE = "module.fb"
_CONSTANT_PREFIX = "_const"
_PAIR, _SPAN = struct.Struct("<II"), struct.Struct("<QQQ")
_MAX_TABLE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """The parameters, dispatches and sizes of a compiled module.

    Attributes:
        dispatches: names of the dispatches of calls, in order; equal executables have one name.
        constant_bytes: total size of the constants of 4 KiB or more inside the module; smaller constants cannot be
            told from strings.
    """

    parameters: tuple[Parameter, ...]
    unread: tuple[str, ...]
    dispatches: tuple[str, ...]
    load_dispatches: tuple[str, ...]
    constant_bytes: int
    module_bytes: int
    digest: str

    @property
    def parameter_bytes(self) -> int:
        """The size of all parameters that are read."""
        return sum(parameter.byte_size for parameter in self.parameters)

    @property
    def stored_bytes(self) -> int:
        """The size of parameters and constants, so of all weights, no matter where the compiler put them."""
        return self.parameter_bytes + self.constant_bytes

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """The parameters' bytes by element type, the largest first."""
        sizes: Counter[str] = Counter()
        for parameter in self.parameters:
            sizes[parameter.element_type] += parameter.byte_size
        return dict(sizes.most_common())


def read_module_facts(toolchain: Toolchain, program: Path, module: Path) -> ModuleFacts:
    """Read the facts of a compiled module.

    Args:
        toolchain: toolchain of the module; its `iree-dump-module` is run, which takes some hundredths of a second.
        program: MLIR source of the module; all its parameters have one scope.
        module: output of `iree-compile`.
    """
    parameters = {parameter.name: parameter for parameter in collect_parameters(program, toolchain.compiler.ir_tool)}
    segments = _read_segments(toolchain, module)
    tables = name_tables([segment.data for segment in segments], parameters.keys())
    read_names = {name for names in tables.values() for name in names}
    span_lengths = [tuple(parameters[name].byte_size for name in names) for names in tables.values()]
    table_data = {data for pair in tables for data in pair}
    table_data |= {segment.data for segment in segments if read_span_lengths(segment.data) in span_lengths}
    names = find_dispatch_names(segment.data for segment in segments if segment.data not in table_data)
    with module.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ModuleFacts(
        parameters=tuple(parameter for name, parameter in parameters.items() if name in read_names),
        unread=tuple(name for name in parameters if name not in read_names),
        dispatches=tuple(name for name in names if not name.startswith(_INITIALIZER)),
        load_dispatches=tuple(name for name in names if name.startswith(_INITIALIZER)),
        constant_bytes=sum(
            segment.size for segment in segments if segment.is_constant and segment.data not in table_data
        ),
        module_bytes=module.stat().st_size,
        digest=digest,
    )


def find_dispatch_types(name: str) -> tuple[str, ...]:
    """Return the element types in a dispatch's name: the operands' types, and last the result's type.

    `elementwise_256x512_i8xf32xf32` has three; a single type applies to all values; a name may have no types.
    """
    types = [part for part in name.split("_") if _TYPES_PATTERN.fullmatch(part)]
    return tuple(types[-1].split("x")) if types else ()


def find_widened_at_load(facts: ModuleFacts, element_type: str) -> tuple[str, ...]:
    """Return the names of the dispatches that widen values of a type when the module is loaded.

    Calls then use the wide results, not the narrow parameters.
    """
    narrow = _drop_sign(element_type)
    names = []
    for name in facts.load_dispatches:
        *operands, result = find_dispatch_types(name) or ("",)
        if narrow in operands and count_bits(result) > count_bits(narrow):
            names.append(name)
    return tuple(names)


def find_unproven(
    proof: Proof, facts: ModuleFacts, baseline: ModuleFacts, changed_bytes: int | None = None
) -> list[str]:
    """Return the promises of a recipe that the recipe's module does not fulfil; empty if it fulfils all.

    Args:
        proof: the recipe's promises.
        facts: the module of the recipe.
        baseline: the module of the unchanged model, at the same point.
        changed_bytes: size, in the unchanged model, of the weights that the recipe changes; None if it changes all.
            Other weights, such as embeddings, stay unchanged.
    """
    problems: list[str] = []
    for element_type in proof.parameter_types:
        if _drop_sign(element_type) not in map(_drop_sign, facts.bytes_by_type):
            types = ", ".join(f"{name} ({format_bytes(size)})" for name, size in facts.bytes_by_type.items()) or "none"
            note = f"; the program's {_name_some(facts.unread)} are not read" if facts.unread else ""
            problems.append(f"it reads no parameter of type {element_type}: those that it reads are {types}{note}")
        elif wide_dispatches := find_widened_at_load(facts, element_type):
            wide_type, works = find_dispatch_types(wide_dispatches[0])[-1], _name_some(_name_works(wide_dispatches))
            problems.append(f"its parameters of type {element_type} become {wide_type} when it is loaded: {works}")
    share = proof.parameter_share
    if share is not None:
        changed_size = baseline.stored_bytes if changed_bytes is None else min(changed_bytes, baseline.stored_bytes)
        max_bytes = baseline.stored_bytes - changed_size + share * changed_size
        if facts.stored_bytes > max_bytes:
            baseline_text = f"the baseline's {format_bytes(baseline.stored_bytes)}"
            limit_text = (
                baseline_text
                if changed_size == baseline.stored_bytes
                else f"the {format_bytes(changed_size)} that it changes of {baseline_text}"
            )
            problems.append(
                f"its parameters and constants take {format_bytes(facts.stored_bytes)}, and the recipe promises at most"
                f" {100 * share:g} % of {limit_text}"
            )
    if proof.dispatch and not any(re.search(proof.dispatch, name) for name in facts.dispatches):
        problems.append(
            f"no dispatch of its calls has a name that matches {proof.dispatch}: there are"
            f" {_name_some(_name_works(facts.dispatches))}"
        )
    if proof.different and facts.digest == baseline.digest:
        problems.append("its module is the baseline's, byte for byte")
    return problems


def describe_facts(facts: ModuleFacts) -> list[str]:
    """Return one line for each kind of facts: parameters by their types, constants, dispatches."""
    lines = [f"parameters {kind}: {format_bytes(size)}" for kind, size in facts.bytes_by_type.items()]
    if facts.constant_bytes:
        lines.append(f"constants inside the module: {format_bytes(facts.constant_bytes)}")
    if facts.load_dispatches:
        lines.append(f"made of them at load: {_name_some(_name_works(facts.load_dispatches))}")
    heavy = [name for name in facts.dispatches if parse_dispatch_name(name).kind in _HEAVY_KINDS]
    if facts.dispatches:
        lines.append(f"dispatches: {_name_some(_name_works(heavy or facts.dispatches))}")
    return lines


def _drop_sign(kind: str) -> str:
    """Return an element type as names of dispatches write it: `i8` for `ui8` and `si8`."""
    return kind[1:] if kind.startswith(("si", "ui")) else kind


def _name_works(names: Iterable[str]) -> list[str]:
    """Return the operations of dispatches with sizes and types, each once, without their functions and numbers."""
    return list(dict.fromkeys(parse_dispatch_name(name).work or name for name in names))


def _name_some(texts: Sequence[str]) -> str:
    return list_first(texts, _MAX_NAMES) or "none"


@dataclass(frozen=True, slots=True)
class _DataSegment:
    """A data segment of a module."""

    size: int
    data: bytes
    is_constant: bool = False


def _read_segments(toolchain: Toolchain, module: Path) -> list[_DataSegment]:
    """Read all data of a module: the segments in `module.fb`, and the files next to it, in the same order."""
    descriptions: list[dict[str, Any]] = dump_module(toolchain.runtime.run_module, module)["rodata_segments"]
    external_segments: list[_DataSegment] = []
    try:
        with zipfile.ZipFile(module) as archive:
            for info in archive.infolist():
                if info.filename != _MODULE_FILE:
                    is_constant = info.filename.startswith(_CONSTANT_PREFIX)
                    is_large = is_constant and info.file_size > _MAX_TABLE_BYTES
                    data = b"" if is_large else archive.read(info)
                    external_segments.append(_DataSegment(info.file_size, data, is_constant))
    except OSError as error:
        raise GauntletError(f"{module}: cannot be read: {error.strerror}", "compile it again") from error
    except zipfile.BadZipFile as error:
        raise GauntletError(
            f"{module}: its parts cannot be identified: {error}", "compile it without --iree-vm-emit-polyglot-zip=false"
        ) from error
    inside = [bytes(item["embedded_data"]) for item in descriptions if "embedded_data" in item]
    expected = [item["external_data_length"] for item in descriptions if "external_data_length" in item]
    if expected != [segment.size for segment in external_segments]:
        raise GauntletError(
            f"{module}: its description lists {len(expected)} files inside, but it contains others",
            "write and describe it with the same release of IREE",
        )
    return [*external_segments, *(_DataSegment(len(data), data) for data in inside)]


def name_tables(data: Sequence[bytes], valid_names: Collection[str]) -> dict[tuple[bytes, bytes], list[str]]:
    """Return the names of parameters by the data that contains them, a table and its text.

    One initializer reads each pair of table and text. Equal data is stored once, so a text need not follow its table.
    """
    names_by_data = {}
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
            if all(name in valid_names for name in names):
                names_by_data[table, text] = names
    return names_by_data


def read_span_lengths(data: bytes) -> tuple[int, ...]:
    """Return the lengths of a table of spans; empty for other data."""
    if len(data) % _SPAN.size:
        return ()
    return tuple(length for *_, length in _SPAN.iter_unpack(data))
