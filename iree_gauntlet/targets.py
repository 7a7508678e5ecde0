"""A target: where a case runs, and how people name it."""

from __future__ import annotations

import re
from dataclasses import dataclass

FAMILIES = ("cpu", "rocm", "cuda", "vulkan", "metal", "vmvx")

# What people and IREE's flags call the families: backends, devices and HAL target devices.
_FAMILY_NAMES = {
    "cpu": "cpu",
    "host": "cpu",
    "llvm-cpu": "cpu",
    "local": "cpu",
    "local-sync": "cpu",
    "local-task": "cpu",
    "rocm": "rocm",
    "hip": "rocm",
    "amdgpu": "rocm",
    "cuda": "cuda",
    "vulkan": "vulkan",
    "vulkan-spirv": "vulkan",
    "metal": "metal",
    "metal-spirv": "metal",
    "vmvx": "vmvx",
}
_CHIP = re.compile(r"[a-z0-9][a-z0-9._]*")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """Where a case runs.

    Attributes:
        family: one of `FAMILIES`, or a device of other people's that nothing here asks for.
        chip: a chip name such as `gfx942`; empty where none is meant.
        sku: the machine that goldens belong to, such as `mi300`; empty where none was named.
        config: the config of an operator suite that says how it is compiled and run; empty elsewhere.
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
        """Whether asking for this target means the other one: of its family, and of its chip where one is named.

        The config is not looked at.
        """
        return self.family == other.family and (not self.chip or not other.chip or self.chip == other.chip)


def target_of(name: str, *, chip: str = "", sku: str = "") -> Target | None:
    """The target that a name means, or None where there is none of that name.

    Accepts a family (`cpu`, `rocm`), IREE's names of backends and devices (`llvm-cpu`, `hip`), a chip (`gfx942`,
    `sm_80`) and our own (`rocm-gfx942`). `chip` is used on ROCm where the name gives none.
    """
    name = name.strip().lower()
    family = _FAMILY_NAMES.get(name, "")
    if family:
        return Target(family, chip if family == "rocm" else "", sku)
    if name.startswith("gfx") and name.isalnum():
        return Target("rocm", name, sku)
    if name.startswith("sm_") and _CHIP.fullmatch(name):
        return Target("cuda", name, sku)
    family, _, rest = name.partition("-")
    if family == "rocm":
        return Target(family, rest, sku) if rest.startswith("gfx") and rest.isalnum() else None
    if family in ("cuda", "vulkan", "metal") and _CHIP.fullmatch(rest):
        return Target(family, rest, sku)
    return None
