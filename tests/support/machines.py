"""Machines for tests: one that is fit to measure on, and folders with what Linux says of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.measuring.machine.machine_state import MachineState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["FIT", "write_files"]

FIT = MachineState(
    cores=4,
    load_1m=0.1,
    busy_share=0.02,
    steal_share=0.0,
    governor="performance",
    frequency_mhz=3000,
    throttle_count=0,
    turbo=False,
    smt=False,
    free_memory_bytes=8 << 30,
    swap_used_bytes=0,
    on_battery=False,
)


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Files by their path below a folder; each ends with a line break."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
