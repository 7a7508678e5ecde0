"""The target that compile flags are for, where a dialect has no other word for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from iree_gauntlet.targets import Target, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable


_TARGET_FLAGS = ("iree-hal-target-device", "iree-hal-target-backends", "iree-hal-local-target-device-backends")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CHIP_FLAGS = {
    "rocm": ("iree-rocm-target", "iree-hip-target"),
    "cuda": ("iree-cuda-target",),
    "vulkan": ("iree-vulkan-target",),
    "metal": ("iree-metal-target",),
}


def target_of_flags(flags: Iterable[str]) -> Target:
    """The target that compile flags name; the CPU where they name none.

    A local device is the CPU, or VMVX where its backend says so. A device that this toolkit does not know is a
    family of its own: nothing selects it by accident.
    """
    values: dict[str, str] = {}
    for flag in flags:
        name, _, value = flag.lstrip("-").partition("=")
        # One of several, perhaps with a name of its own: `main=hip[0],other=local`.
        values[name] = value.split(",")[0].rpartition("=")[2].split("://")[0].split("[")[0]
    named = [values[name] for name in _TARGET_FLAGS if values.get(name)]
    found = next((target for name in named if (target := target_of(name))), None)
    if found is None:
        unknown = next((name for name in named if _NAME.fullmatch(name)), "cpu")
        return Target(unknown)
    if found.family == "cpu" and values.get(_TARGET_FLAGS[-1]) == "vmvx":
        return Target("vmvx")
    flags_of_family = _CHIP_FLAGS.get(found.family, ())
    chip = next((values[name].split(":")[0] for name in flags_of_family if values.get(name)), "")
    return target_of(f"{found.family}-{chip}") or found


def devices_of_flags(flags: Iterable[str]) -> str:
    """The devices that a run's flags name, for the lock: one may be named several times."""
    values = [flag.partition("=")[2].strip('"') for flag in flags if flag.lstrip("-").startswith("device=")]
    return ",".join(dict.fromkeys(values))
