"""The machine's memory: what Linux's /proc/meminfo says (proc(5)), and psutil of other systems. None where nobody does.

Of the real machine, unless a folder is named under which /proc is looked for.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from iree_gauntlet.measuring.machine.machine_sensors import asked_elsewhere, read_text

_ROOT = Path("/")
_KIB = 1024


def total_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory that the machine has."""
    fields = _meminfo(root)
    if fields:
        return fields.get("MemTotal")
    return asked_elsewhere(root, lambda: psutil.virtual_memory().total)


def free_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory that can be had without swapping."""
    fields = _meminfo(root)
    if fields:
        return fields.get("MemAvailable", fields.get("MemFree"))
    return asked_elsewhere(root, lambda: psutil.virtual_memory().available)


def used_swap(root: Path = _ROOT) -> int | None:
    """Bytes of swap in use."""
    fields = _meminfo(root)
    if fields:
        return fields["SwapTotal"] - fields["SwapFree"] if {"SwapTotal", "SwapFree"} <= fields.keys() else None
    return asked_elsewhere(root, lambda: psutil.swap_memory().used)


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[0].isdecimal() and words[1] == "kB":
            found[name] = int(words[0]) * _KIB
    return found
