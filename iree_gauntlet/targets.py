"""A target: where a case runs, and how people name it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Target", "target_of"]

_BACKENDS = {"cpu": "llvm-cpu", "rocm": "rocm"}
_GFX_PREFIX = "gfx"


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """Where a case runs.

    Attributes:
        family: `cpu` or `rocm`: the suffix of a spec's file name.
        chip: a chip name such as `gfx942`; empty on the CPU.
        sku: the machine that goldens belong to, such as `mi300`; empty where none was named.
    """

    family: str
    chip: str = ""
    sku: str = ""

    @property
    def name(self) -> str:
        """Short name used in case ids: `cpu`, `rocm-gfx942`. The SKU is no part of it."""
        return f"{self.family}-{self.chip}" if self.chip else self.family

    @property
    def backend(self) -> str:
        """IREE's name of the compiler backend."""
        return _BACKENDS[self.family]


def target_of(name: str, *, chip: str = "gfx942", sku: str = "") -> Target | None:
    """The target that a name means, or None where there is none of that name.

    Accepts a family (`cpu`, `rocm`), IREE's backend names (`llvm-cpu`), a chip (`gfx942`) and our own
    (`rocm-gfx942`). `chip` is used where the name gives none.
    """
    name = name.strip().lower()
    if name in ("cpu", "llvm-cpu", "local-task", "host"):
        return Target("cpu", "", sku)
    if name in ("rocm", "hip"):
        return Target("rocm", chip, sku)
    if name.startswith("rocm-"):
        name = name.removeprefix("rocm-")
    if name.startswith(_GFX_PREFIX) and name.isalnum():
        return Target("rocm", name, sku)
    return None
