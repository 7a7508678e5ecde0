"""Targets: the devices of cases, their names, and the flags of compiler and runtime for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import DEVICE_KINDS, ROCM, DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.device_kinds import Processor

_KINDS = {kind.family: kind for kind in DEVICE_KINDS if kind.backend}
FAMILIES = tuple(_KINDS)
ARCHITECTURES = tuple(chip for kind in _KINDS.values() for chip in kind.architectures)
# Other names of architectures, at the beginning of a target's name.
_ARM64 = re.compile(r"^(cpu-)?arm64(?=[-@]|$)")
# The number of bits in a vector, at the end of a target's name: `arm64-sve@512`, in ids `aarch64-sve-512`.
VECTOR_LENGTHS = (128, 256, 512, 1024, 2048)
_VECTOR_BITS = re.compile(rf"[-@]({'|'.join(map(str, VECTOR_LENGTHS))})$")
_DEFAULT_VECTOR_BITS = 128
# What stands for the length of vectors in a runner, and the bits of its unit.
LENGTH_PLACES = {"{vq}": 128, "{bytes}": 8, "{bits}": 1}
_KINDS_BY_NAME = {name: kind for kind in _KINDS.values() for name in kind.names}
_CODE_GENERATORS = "|".join(sorted({kind.code_generator for kind in DEVICE_KINDS if kind.code_generator}))
# Flags that name a target or configure the code generator of one.
_TARGET_FLAG = re.compile(
    rf"--?iree-(?:hal-target-|hal-local-|(?:codegen-)?(?:{_CODE_GENERATORS})-|(?:{'|'.join(_KINDS_BY_NAME)})-)"
)

# The options of ssh(1) that take a value.
_SSH_VALUE_OPTIONS = frozenset("BbcDEeFIiJLlmOoPpQRSWw")


def split_board(runner: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a runner into ssh with its options and host, and the runner there; the first is empty without ssh."""
    if not runner or Path(runner[0]).name != "ssh":
        return (), tuple(runner)
    position = 1
    while position < len(runner) and runner[position].startswith("-"):
        letters = runner[position][1:]
        number = next((index for index, letter in enumerate(letters) if letter in _SSH_VALUE_OPTIONS), None)
        position += 2 if number is not None and number == len(letters) - 1 else 1
    if position >= len(runner):
        return (), tuple(runner)
    return tuple(runner[: position + 1]), tuple(runner[position + 1 :])


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """The target of a case.

    Attributes:
        family: one of `FAMILIES`, or the name of a foreign device.
        chip: a chip such as `gfx942`; empty for none.
        sku: the machine of goldens, such as `mi300`; empty for none.
        config_name: a config of an operator suite, with its flags; empty for others.
        definition: the settings' definition of a processor of another architecture; None for a ready-made one.
    """

    family: str
    chip: str = ""
    sku: str = ""
    config_name: str = ""
    definition: Processor | None = field(default=None, compare=False)

    @property
    def kind(self) -> DeviceKind:
        """The device kind of its family; a foreign family has only a name."""
        return _KINDS.get(self.family) or DeviceKind(self.family)

    @property
    def name(self) -> str:
        """The name in case ids, without the SKU: `cpu`, `rocm-gfx942`, or the config."""
        if self.config_name:
            return self.config_name
        return f"{self.family}-{self.chip}" if self.chip else self.family

    @property
    def architecture(self) -> str:
        """The architecture of the processor, such as `aarch64`; empty for this machine's, and for other devices."""
        return self.chip.partition("-")[0] if self.kind.architectures else ""

    @property
    def processor_name(self) -> str:
        """The chip without the length of its vectors, which changes neither its flags nor its goldens."""
        return _VECTOR_BITS.sub("", self.chip) if self.architecture else self.chip

    @property
    def vector_bits(self) -> int:
        """The number of bits in a vector that its name says; 0 if it says none."""
        match = _VECTOR_BITS.search(self.chip) if self.architecture else None
        return int(match[1]) if match else 0

    @property
    def processor(self) -> Processor | None:
        """The processor of another architecture; None if it is this machine's, or undefined."""
        return self.definition or self.kind.architectures.get(self.processor_name)

    @property
    def vector_lengths(self) -> tuple[int, ...]:
        """The lengths of vectors that its runner can give, in bits; none if the runner has no place for a length."""
        processor = self.processor
        text = " ".join(processor.runner) if processor else ""
        has_place = any(place in text for place in LENGTH_PLACES)
        return tuple(bits for bits in VECTOR_LENGTHS if processor and has_place and bits <= processor.most_vector_bits)

    @property
    def runner(self) -> tuple[str, ...]:
        """The words before the command line of a tool that runs its modules; empty if no runner is known."""
        bits = self.vector_bits or _DEFAULT_VECTOR_BITS
        words = self.processor.runner if self.processor else ()
        for place, unit in LENGTH_PLACES.items():
            words = tuple(word.replace(place, str(bits // unit)) for word in words)
        return words

    @property
    def golden_names(self) -> tuple[str, ...]:
        """The keys of its goldens besides SKUs, the first before the others; another architecture has only its own."""
        return tuple(filter(None, (self.processor_name, "" if self.architecture else self.family)))

    def complete_with(self, request: Target | None) -> Target:
        """Return a spec's own target with the SKU and the definition of the requested one, if there is one."""
        return replace(self, sku=request.sku, definition=request.definition) if request else replace(self, sku="")

    def covers(self, other: Target) -> bool:
        """Return whether a selection of this target includes another: the same family, and no other chip.

        Without a chip, a CPU target is this machine's CPU, which includes no other architecture. Without a length, a
        processor includes all lengths of its vectors.
        """
        is_open = not self.kind.architectures and not (self.chip and other.chip)
        return self.family == other.family and (is_open or self.chip in (other.chip, other.processor_name))

    def overlaps(self, other: Target) -> bool:
        """Return whether one of two targets includes the other."""
        return self.covers(other) or other.covers(self)


def parse_target(name: str, *, chip: str = "", sku: str = "") -> Target | None:
    """Parse the name of a target; None if it is unknown.

    A name is a family (`cpu`, `rocm`), IREE's name of a backend or device (`llvm-cpu`, `hip`), a chip (`gfx942`,
    `sm_80`, `aarch64`, `arm64-sve@512`) or our own name (`rocm-gfx942`). `chip` is the default chip of ROCm.
    """
    name = _VECTOR_BITS.sub(r"-\1", _ARM64.sub(r"\1aarch64", name.strip().lower()))
    kind = _KINDS_BY_NAME.get(name)
    if kind:
        return Target(kind.family, chip if kind is ROCM else "", sku)
    family, _, rest = name.partition("-")
    kind = _KINDS.get(family)
    for other in _KINDS.values():
        if family in other.architectures or (other.chip_prefix and name.startswith(other.chip_prefix)):
            kind, rest = other, name
    return Target(kind.family, rest, sku) if kind and kind.chips and re.fullmatch(kind.chips, rest) else None


def split_vector_bits(name: str) -> tuple[str, int]:
    """Split a target's name into the name without the length of vectors, and the length in bits; 0 for none."""
    match = _VECTOR_BITS.search(name)
    return (name[: match.start()], int(match[1])) if match else (name, 0)


def target_flags(target: Target) -> tuple[str, ...]:
    """Compose the compile flags of a target; as in other frameworks, a CPU target means this machine's CPU."""
    host_flags = () if target.chip else target.kind.host_flags
    return (*target.kind.target_flags, *host_flags, *compose_chip_flags(target))


def compose_chip_flags(target: Target) -> tuple[str, ...]:
    """Compose the compile flags for the chip of a target; empty without a chip, or without a flag for it."""
    chip_flags = tuple(f"{flag}={target.chip}" for flag in target.kind.chip_flags[:1] if target.chip)
    return target.processor.flags if target.processor else chip_flags


def omit_processor(target: Target, flags: Iterable[str]) -> tuple[str, ...]:
    """Omit the flags that select the processor if the target is another architecture, whose flags take their place."""
    prefix = f"iree-{target.kind.code_generator}-target-"
    return tuple(flag for flag in flags if not (target.architecture and flag.lstrip("-").startswith(prefix)))


def flags_for(target: Target, flags: Iterable[str]) -> tuple[str, ...]:
    """Replace all target flags among compile flags by those of another target."""
    return (*target_flags(target), *(flag for flag in flags if not _TARGET_FLAG.match(flag)))
