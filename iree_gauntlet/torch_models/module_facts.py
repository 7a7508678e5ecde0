"""What a compiled module shows of a recipe: the parameters that it reads, its dispatches, its size.

The program that was given to the compiler says what the parameters are; which of them are read, and what is done
with them, is taken from the compiled module alone, since the compiler may turn narrow weights into wide ones:

* at compile time, where the program has them inside: 3.5 to 3.7 do, and then there are wide constants in their place;
* when the module is loaded (`--iree-opt-const-expr-hoisting`): then the parameter is read, and a dispatch of an
  initializer, which runs once, makes of it what calls work with. 3.12 and 3.13 do so where the weights grow by no
  more than `--iree-opt-const-expr-max-size-increase-threshold`, which is 1 MiB.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import struct
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.program_parameters import Parameter, collect_parameters
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import byte_size, listed
from iree_gauntlet.measuring.numerics.arrays import count_bits
from iree_gauntlet.measuring.profiles.dispatch_profile import find_dispatch_names, parse_dispatch_name
from iree_gauntlet.system.short_process import ask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models.plugins import Proof


_INITIALIZER = "_initializer_"
_TYPE = r"(?:i[0-9]+|bf16|f[0-9]+(?:E[0-9]+M[0-9]+[A-Z0-9]*)?)"
_TYPES = re.compile(rf"{_TYPE}(?:x{_TYPE})*")
_HEAVY = ("matmul", "conv", "attention")
_SHOWN = 4
_DUMP_TOOL = "iree-dump-module"
_MODULE = "module.fb"
_CONSTANTS = "_const"
_PAIR, _SPAN = struct.Struct("<II"), struct.Struct("<QQQ")
_LARGEST_TABLE = 1 << 24


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """What a compiled module shows.

    Attributes:
        dispatches: names of what calls run, in their order; executables that are alike have one name.
        constant_bytes: of the constants inside the module, each of 4 KiB or more; smaller ones look like its
            strings.
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
        """All parameters that are read."""
        return sum(parameter.byte_size for parameter in self.parameters)

    @property
    def stored_bytes(self) -> int:
        """Parameters and constants: what the weights take on disk, wherever the compiler put them."""
        return self.parameter_bytes + self.constant_bytes

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """Bytes of the parameters by element type, the most first."""
        sizes: Counter[str] = Counter()
        for parameter in self.parameters:
            sizes[parameter.element_type] += parameter.byte_size
        return dict(sizes.most_common())


def read_module_facts(toolchain: Toolchain, program: Path, module: Path) -> ModuleFacts:
    """Read what a compiled module shows.

    Args:
        toolchain: that compiled it; its `iree-dump-module` is asked, which takes some hundredths of a second.
        program: MLIR that it was compiled from. Its parameters are of one scope.
        module: what `iree-compile` wrote.
    """
    declared = {parameter.name: parameter for parameter in collect_parameters(program, toolchain.compiler.ir_tool)}
    segments = _read_segments(toolchain, module)
    tables = name_tables([segment.data for segment in segments], declared.keys())
    read = {name for names in tables.values() for name in names}
    sizes = [tuple(declared[name].byte_size for name in names) for names in tables.values()]
    aside = {data for pair in tables for data in pair}
    aside |= {segment.data for segment in segments if read_span_lengths(segment.data) in sizes}
    names = find_dispatch_names(segment.data for segment in segments if segment.data not in aside)
    with module.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ModuleFacts(
        parameters=tuple(parameter for name, parameter in declared.items() if name in read),
        unread=tuple(name for name in declared if name not in read),
        dispatches=tuple(name for name in names if not name.startswith(_INITIALIZER)),
        load_dispatches=tuple(name for name in names if name.startswith(_INITIALIZER)),
        constant_bytes=sum(segment.size for segment in segments if segment.is_constant and segment.data not in aside),
        module_bytes=module.stat().st_size,
        digest=digest,
    )


def find_dispatch_types(name: str) -> tuple[str, ...]:
    """The element types that a dispatch's name tells: of its operands, the last one of its result.

    `elementwise_256x512_i8xf32xf32` has three; a name that gives one has it for all; one may give none.
    """
    types = [word for word in name.split("_") if _TYPES.fullmatch(word)]
    return tuple(types[-1].split("x")) if types else ()


def find_widened_at_load(facts: ModuleFacts, element_type: str) -> tuple[str, ...]:
    """Names of the dispatches that turn values of a type into wider ones when the module is loaded.

    Calls work with what they leave, and no longer with the narrow parameters.
    """
    narrow = _drop_sign(element_type)
    found = []
    for name in facts.load_dispatches:
        *operands, result = find_dispatch_types(name) or ("",)
        if narrow in operands and count_bits(result) > count_bits(narrow):
            found.append(name)
    return tuple(found)


def find_unproven(
    proof: Proof, facts: ModuleFacts, baseline: ModuleFacts, changed_bytes: int | None = None
) -> list[str]:
    """What a module lacks of what its recipe promises; empty where it shows all of it.

    Args:
        proof: what the recipe promises.
        facts: the module of the recipe.
        baseline: the module of the unchanged model, at the same point.
        changed_bytes: what the weights that the recipe changes take in the unchanged model; None for all that it has.
            Others, such as embeddings, stay as they are.
    """
    problems: list[str] = []
    for kind in proof.parameter_types:
        if _drop_sign(kind) not in map(_drop_sign, facts.bytes_by_type):
            types = ", ".join(f"{name} ({byte_size(size)})" for name, size in facts.bytes_by_type.items()) or "none"
            unread = f"; the program's {_name_some(facts.unread)} are not read" if facts.unread else ""
            problems.append(f"it reads no parameter of type {kind}: those that it reads are {types}{unread}")
        elif widened := find_widened_at_load(facts, kind):
            wide, works = find_dispatch_types(widened[0])[-1], _name_some(_name_works(widened))
            problems.append(f"its parameters of type {kind} become {wide} when it is loaded: {works}")
    share = proof.parameter_share
    if share is not None:
        changed = baseline.stored_bytes if changed_bytes is None else min(changed_bytes, baseline.stored_bytes)
        most = baseline.stored_bytes - changed + share * changed
        if facts.stored_bytes > most:
            whole = f"the baseline's {byte_size(baseline.stored_bytes)}"
            part = whole if changed == baseline.stored_bytes else f"the {byte_size(changed)} that it changes of {whole}"
            problems.append(
                f"its parameters and constants take {byte_size(facts.stored_bytes)}, and the recipe promises at most"
                f" {100 * share:g} % of {part}"
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
    """What a module shows, one line a kind: parameters by their types, constants, dispatches."""
    lines = [f"parameters {kind}: {byte_size(size)}" for kind, size in facts.bytes_by_type.items()]
    if facts.constant_bytes:
        lines.append(f"constants inside the module: {byte_size(facts.constant_bytes)}")
    if facts.load_dispatches:
        lines.append(f"made of them at load: {_name_some(_name_works(facts.load_dispatches))}")
    heavy = [name for name in facts.dispatches if parse_dispatch_name(name).kind in _HEAVY]
    if facts.dispatches:
        lines.append(f"dispatches: {_name_some(_name_works(heavy or facts.dispatches))}")
    return lines


def _drop_sign(kind: str) -> str:
    """An element type as names of dispatches have it: `i8` for `ui8` and `si8`."""
    return kind[1:] if kind.startswith(("si", "ui")) else kind


def _name_works(names: Iterable[str]) -> list[str]:
    """What dispatches do, with sizes and types, each once; without their functions and numbers."""
    return list(dict.fromkeys(parse_dispatch_name(name).work or name for name in names))


def _name_some(texts: Sequence[str]) -> str:
    return listed(texts, _SHOWN) or "none"


@dataclass(frozen=True, slots=True)
class _ModuleData:
    """Data of a module."""

    size: int
    data: bytes
    is_constant: bool = False


def _read_segments(toolchain: Toolchain, module: Path) -> list[_ModuleData]:
    """All data of a module: what is in `module.fb`, and the files next to it, which come in the same order."""
    tool = Path(toolchain.runtime.run_module).with_name(_DUMP_TOOL)
    answer = ask([str(tool), "--output=flatbuffer-json", str(module)], timeout=120.0)
    try:
        described: list[dict[str, Any]] = json.loads(answer.stdout)["rodata_segments"]
    except (ValueError, KeyError) as error:
        said = next((line.strip() for line in answer.stderr.splitlines() if line.strip()), "it says nothing")
        raise GauntletError(
            f"{module}: {_DUMP_TOOL} cannot describe it: {said}", "compile it again with this toolchain"
        ) from error
    outside: list[_ModuleData] = []
    try:
        with zipfile.ZipFile(module) as archive:
            for info in archive.infolist():
                if info.filename != _MODULE:
                    is_constant = info.filename.startswith(_CONSTANTS)
                    skipped = is_constant and info.file_size > _LARGEST_TABLE
                    data = b"" if skipped else archive.read(info)
                    outside.append(_ModuleData(info.file_size, data, is_constant))
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
    return [*outside, *(_ModuleData(len(data), data) for data in inside)]


def name_tables(data: Sequence[bytes], known: Collection[str]) -> dict[tuple[bytes, bytes], list[str]]:
    """The names of parameters by the data that they stand in, a table and its text.

    Each is what one initializer reads. Equal data is stored once, so a text need not follow its table.
    """
    found = {}
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
                found[table, text] = names
    return found


def read_span_lengths(data: bytes) -> tuple[int, ...]:
    """The lengths of a table of spans; empty for other data."""
    if len(data) % _SPAN.size:
        return ()
    return tuple(length for *_, length in _SPAN.iter_unpack(data))
