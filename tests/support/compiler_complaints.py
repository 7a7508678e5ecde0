"""The errors that the installed compiler itself reports for flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.system.short_process import run_tool
from iree_gauntlet.toolchains.toolchain import COMPILE

if TYPE_CHECKING:
    from iree_gauntlet.toolchains.toolchain import Toolchain


def list_flag_errors(toolchain: Toolchain, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the compiler's own error messages for flags and their values; nothing is compiled (0.1 s).

    The messages also cover the few flags that no help lists. A flag that ends the program (`--help`) hides
    errors of the flags after it.
    """
    # With --version, the compiler parses the command line, prints its version and exits, even after errors.
    result = run_tool([toolchain.compiler.compile, *flags, "--version"], timeout=60.0)
    return tuple(
        line.removeprefix(f"{COMPILE}: ").split("  Try: ")[0]
        for line in result.stderr.splitlines()
        if line.startswith(f"{COMPILE}: ") and "Did you mean" not in line
    )
