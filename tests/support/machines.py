"""Machine states for tests: one that is fit to measure on, and directories with files of /proc and /sys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.measuring.machine.machine_state import MachineState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["FIT_STATE", "write_files"]

FIT_STATE = MachineState(
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
    """Write files, by their path below a directory; each ends with a newline."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
