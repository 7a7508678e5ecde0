"""A target: where a case runs, how people name it, and what the compiler and the runtime are given for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FAMILIES = ("cpu", "rocm", "cuda", "vulkan", "metal", "vmvx")

# What people and IREE's flags call the families: backends, devices and HAL target devices.
_FAMILY_NAMES = {family: family for family in FAMILIES} | {
    "host": "cpu",
    "llvm-cpu": "cpu",
    "local": "cpu",
    "local-sync": "cpu",
    "local-task": "cpu",
    "hip": "rocm",
    "amdgpu": "rocm",
    "vulkan-spirv": "vulkan",
    "metal-spirv": "metal",
}
# What is compiled for where a spec does not say it itself, and where that runs.
DEVICES = {family: family for family in FAMILIES} | {"cpu": "local-task", "rocm": "hip", "vmvx": "local-task"}
_TARGET_FLAGS = {family: (f"--iree-hal-target-device={device}",) for family, device in DEVICES.items()} | {
    "cpu": (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    ),
    "vmvx": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"),
}
CHIP_FLAGS = {"rocm": "--iree-rocm-target", "cuda": "--iree-cuda-target", "vulkan": "--iree-vulkan-target"}
# Flags that name a target, or are of the code generator of one.
_OF_ONE_TARGET = re.compile(
    r"--?iree-(?:hal-target-|hal-local-|(?:hip|rocm|cuda|vulkan|metal|vmvx|spirv|llvmcpu|llvmgpu)-"
    r"|codegen-(?:llvmcpu|llvmgpu|spirv)-)"
)
_CHIPS = dict.fromkeys(("cuda", "vulkan", "metal"), re.compile(r"[a-z0-9][a-z0-9._]*")) | {
    "rocm": re.compile(r"gfx[^\W_]*")
}
# How chips begin that are known without their family.
_CHIP_FAMILIES = {"gfx": "rocm", "sm_": "cuda"}


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
    family = _FAMILY_NAMES.get(name, "")
    if family:
        return Target(family, chip if family == "rocm" else "", sku)
    family, _, rest = name.partition("-")
    if name[:3] in _CHIP_FAMILIES:
        family, rest = _CHIP_FAMILIES[name[:3]], name
    known = _CHIPS.get(family)
    return Target(family, rest, sku) if known and known.fullmatch(rest) else None


def target_flags(target: Target) -> tuple[str, ...]:
    """What tells the compiler to compile for a target; a CPU is compiled for as it is here, as other frameworks do."""
    # Metal has no flag for a chip.
    chip = (f"{CHIP_FLAGS[target.family]}={target.chip}",) if target.chip and target.family in CHIP_FLAGS else ()
    return (*_TARGET_FLAGS[target.family], *chip)


def flags_for(target: Target, flags: Iterable[str]) -> tuple[str, ...]:
    """Compile flags of one target as those of another: what is of a target is left out, and the other one named."""
    return (*target_flags(target), *(flag for flag in flags if not _OF_ONE_TARGET.match(flag)))
