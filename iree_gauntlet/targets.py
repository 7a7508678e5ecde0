"""Targets: the devices of cases, their names, and the flags of compiler and runtime for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import DEVICE_KINDS, ROCM, DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterable

_KINDS = {kind.family: kind for kind in DEVICE_KINDS if kind.backend}
FAMILIES = tuple(_KINDS)
ARCHITECTURES = tuple(chip for kind in _KINDS.values() for chip in kind.architectures)
_KINDS_BY_NAME = {name: kind for kind in _KINDS.values() for name in kind.names}
_CODE_GENERATORS = "|".join(sorted({kind.code_generator for kind in DEVICE_KINDS if kind.code_generator}))
# Flags that name a target or configure the code generator of one.
_TARGET_FLAG = re.compile(
    rf"--?iree-(?:hal-target-|hal-local-|(?:codegen-)?(?:{_CODE_GENERATORS})-|(?:{'|'.join(_KINDS_BY_NAME)})-)"
)


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """The target of a case.

    Attributes:
        family: one of `FAMILIES`, or the name of a foreign device.
        chip: a chip such as `gfx942`; empty for none.
        sku: the machine of goldens, such as `mi300`; empty for none.
        config_name: a config of an operator suite, with its flags; empty for others.
    """

    family: str
    chip: str = ""
    sku: str = ""
    config_name: str = ""

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
    def golden_names(self) -> tuple[str, ...]:
        """The keys of its goldens besides SKUs, the first before the others; another architecture has only its own."""
        is_other = self.chip in self.kind.architectures
        return tuple(filter(None, (self.chip, "" if is_other else self.family)))

    def covers(self, other: Target) -> bool:
        """Return whether a selection of this target includes another: the same family, and no other chip.

        Without a chip, a CPU target is this machine's CPU, which includes no other architecture.
        """
        is_open = not self.kind.architectures and not (self.chip and other.chip)
        return self.family == other.family and (is_open or self.chip == other.chip)

    def overlaps(self, other: Target) -> bool:
        """Return whether one of two targets includes the other."""
        return self.covers(other) or other.covers(self)


def parse_target(name: str, *, chip: str = "", sku: str = "") -> Target | None:
    """Parse the name of a target; None if it is unknown.

    A name is a family (`cpu`, `rocm`), IREE's name of a backend or device (`llvm-cpu`, `hip`), a chip (`gfx942`,
    `sm_80`, `aarch64`) or our own name (`rocm-gfx942`). `chip` is the default chip of ROCm.
    """
    name = name.strip().lower()
    kind = _KINDS_BY_NAME.get(name)
    if kind:
        return Target(kind.family, chip if kind is ROCM else "", sku)
    family, _, rest = name.partition("-")
    kind = _KINDS.get(family)
    for other in _KINDS.values():
        if name in other.architectures or (other.chip_prefix and name.startswith(other.chip_prefix)):
            kind, rest = other, name
    return Target(kind.family, rest, sku) if kind and kind.chips and re.fullmatch(kind.chips, rest) else None


def target_flags(target: Target) -> tuple[str, ...]:
    """Compose the compile flags of a target; as in other frameworks, a CPU target means this machine's CPU."""
    host_flags = () if target.chip else target.kind.host_flags
    return (*target.kind.target_flags, *host_flags, *compose_chip_flags(target))


def compose_chip_flags(target: Target) -> tuple[str, ...]:
    """Compose the compile flags for the chip of a target; empty without a chip, or without a flag for it."""
    chip_flags = tuple(f"{flag}={target.chip}" for flag in target.kind.chip_flags[:1] if target.chip)
    return target.kind.architectures.get(target.chip, chip_flags)


def omit_processor(target: Target, flags: Iterable[str]) -> tuple[str, ...]:
    """Omit the flags that select the processor if the target is another architecture, whose flags take their place."""
    prefix = f"iree-{target.kind.code_generator}-target-"
    is_other = target.chip in target.kind.architectures
    return tuple(flag for flag in flags if not (is_other and flag.lstrip("-").startswith(prefix)))


def flags_for(target: Target, flags: Iterable[str]) -> tuple[str, ...]:
    """Replace all target flags among compile flags by those of another target."""
    return (*target_flags(target), *(flag for flag in flags if not _TARGET_FLAG.match(flag)))
