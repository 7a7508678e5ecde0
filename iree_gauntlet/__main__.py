"""The console command: `gauntlet`, or `python -m iree_gauntlet`; checks the operating system first."""

from __future__ import annotations

import gc
import os
import sys

_SYSTEMS = ("linux", "darwin")
_MACHINES = ("x86_64", "aarch64", "arm64")
_SUPPORTED = "IREE Gauntlet runs on Linux (x86-64 and aarch64) and macOS"


def main() -> None:
    """Run a command line."""
    if sys.platform not in _SYSTEMS:
        system = "Windows" if sys.platform == "win32" else sys.platform
        advice = "Use WSL, which runs Linux on Windows" if system == "Windows" else "Use a container or another machine"
        sys.stderr.write(f"error: {_SUPPORTED}, but this is {system}\n  {advice}.\n")
        sys.exit(2)
    machine = os.uname().machine
    if machine not in _MACHINES:
        sys.stderr.write(f"note: {_SUPPORTED}; it is untested on {machine or 'this machine'}\n")
    # Imports create many objects that all live until the end: they are never searched for garbage. What a command
    # creates is searched less often than by default, because a command imports more, and holds most of what it reads.
    gc.disable()
    try:
        from iree_gauntlet.tasks.program import main as program  # noqa: PLC0415 - it needs one of these systems
    except ImportError as error:
        sys.stderr.write(f"error: the installation is incomplete: {error}\n  Reinstall iree-gauntlet.\n")
        sys.exit(70)
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
    try:
        program()
    finally:
        # Else the interpreter searches all objects for garbage when it ends, which takes a sixth of a `list`.
        gc.freeze()


if __name__ == "__main__":
    main()
