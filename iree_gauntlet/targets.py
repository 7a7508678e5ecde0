"""A target: where a case runs, how people name it, and what the compiler and the runtime are given for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import DEVICE_KINDS, ROCM, DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterable

_KINDS = {kind.family: kind for kind in DEVICE_KINDS if kind.backend}
FAMILIES = tuple(_KINDS)
_KINDS_BY_NAME = {name: kind for kind in _KINDS.values() for name in kind.names}
_CODE_GENERATORS = "|".join(sorted({kind.code_generator for kind in DEVICE_KINDS if kind.code_generator}))
# Flags that name a target, or are of the code generator of one.
_OF_ONE_TARGET = re.compile(
    rf"--?iree-(?:hal-target-|hal-local-|(?:codegen-)?(?:{_CODE_GENERATORS})-|(?:{'|'.join(_KINDS_BY_NAME)})-)"
)


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """Where a case runs.

    Attributes:
        family: one of `FAMILIES`, or a device of other people's that nothing here asks for.
        chip: such as `gfx942`; empty where none is meant.
        sku: the machine that goldens belong to, such as `mi300`; empty where none was named.
        config: of an operator suite, which says how it is compiled and run; empty elsewhere.
    """

    family: str
    chip: str = ""
    sku: str = ""
    config: str = ""

    @property
    def kind(self) -> DeviceKind:
        """The kind of device of its family; of a family of other people's, only the name is known."""
        return _KINDS.get(self.family) or DeviceKind(self.family)

    @property
    def name(self) -> str:
        """Short name used in case ids: `cpu`, `rocm-gfx942`, or the config. The SKU is no part of it."""
        if self.config:
            return self.config
        return f"{self.family}-{self.chip}" if self.chip else self.family

    def covers(self, other: Target) -> bool:
        """Whether asking for this target means the other one: of its family, and its chip where one is named."""
        return self.family == other.family and (not self.chip or not other.chip or self.chip == other.chip)


def parse_target(name: str, *, chip: str = "", sku: str = "") -> Target | None:
    """The target that a name means, or None where there is none of that name.

    Accepts a family (`cpu`, `rocm`), IREE's names of backends and devices (`llvm-cpu`, `hip`), a chip (`gfx942`,
    `sm_80`) and our own (`rocm-gfx942`). `chip` is used on ROCm where the name gives none.
    """
    name = name.strip().lower()
    kind = _KINDS_BY_NAME.get(name)
    if kind:
        return Target(kind.family, chip if kind is ROCM else "", sku)
    family, _, rest = name.partition("-")
    kind = _KINDS.get(family)
    for other in _KINDS.values():
        if other.chip_prefix and name.startswith(other.chip_prefix):
            kind, rest = other, name
    return Target(kind.family, rest, sku) if kind and kind.chips and re.fullmatch(kind.chips, rest) else None


def target_flags(target: Target) -> tuple[str, ...]:
    """What tells the compiler to compile for a target; a CPU is compiled for as it is here, as other frameworks do."""
    return (*target.kind.target_flags, *target.kind.host_flags, *compose_chip_flags(target))


def compose_chip_flags(target: Target) -> tuple[str, ...]:
    """Compose the compile flag that names the chip of a target; none where there is no chip, or no flag for one."""
    return tuple(f"{flag}={target.chip}" for flag in target.kind.chip_flags[:1] if target.chip)


def flags_for(target: Target, flags: Iterable[str]) -> tuple[str, ...]:
    """Compile flags of one target as those of another: what is of a target is left out, and the other one named."""
    return (*target_flags(target), *(flag for flag in flags if not _OF_ONE_TARGET.match(flag)))
