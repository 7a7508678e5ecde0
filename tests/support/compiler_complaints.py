"""What the installed compiler itself says against flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.system.short_process import ask
from iree_gauntlet.toolchains.toolchain import COMPILE

if TYPE_CHECKING:
    from iree_gauntlet.toolchains.toolchain import Toolchain


def flag_complaints(toolchain: Toolchain, flags: tuple[str, ...]) -> tuple[str, ...]:
    """What the compiler itself says against flags and their values; nothing is compiled (0.1 s).

    It also knows the few flags that no help lists. A flag that ends the program (`--help`) hides what
    follows it.
    """
    # --version makes it parse the command line, then print and leave, whatever the line was like.
    answer = ask([toolchain.compiler.compile, *flags, "--version"], timeout=60.0)
    return tuple(
        line.removeprefix(f"{COMPILE}: ").split("  Try: ")[0]
        for line in answer.stderr.splitlines()
        if line.startswith(f"{COMPILE}: ") and "Did you mean" not in line
    )
