"""A program printed as text by the toolchain's `iree-opt`, read while it is printed.

Large constants are left out by the tool, so that what comes is the program without its weights.
"""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.parameters.parameter import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["printed_program"]

_CHUNK = 1 << 20
_ELIDED = 16  # elements, or characters of a resource; a reference is neither
_SHOWN = 300  # characters of the tool's own words in an error
_FLAGS = (
    f"--mlir-elide-elementsattrs-if-larger={_ELIDED}",
    f"--mlir-elide-resource-strings-if-larger={_ELIDED}",
)


@contextmanager
def printed_program(program: Path, ir_tool: str) -> Iterator[Iterator[bytes]]:
    """The text of a program in pieces; the tool is gone when the block is left, however it is left.

    Args:
        program: bytecode or text.
        ir_tool: `iree-opt` of the toolchain that the program is for.

    Raises:
        ParameterError: there is no such tool, or it cannot read the program.
    """
    argv = [ir_tool, str(program.absolute()), *_FLAGS, "-o", "-"]
    with tempfile.TemporaryFile() as messages:
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages)
        except OSError as error:
            raise ParameterError(
                f"{ir_tool}: cannot be started: {error.strerror}",
                f"{program} needs the compiler's iree-opt to be read: give the path of the one in the toolchain.",
            ) from error
        assert process.stdout is not None, "a pipe was asked for"
        with process:
            output = process.stdout
            try:
                yield iter(lambda: output.read(_CHUNK), b"")
                while output.read(_CHUNK):
                    pass  # it must not die of a closed pipe: how it ends is asked below
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            messages.seek(0)
            said = messages.read(1 << 16).decode(errors="backslashreplace").strip() or "nothing"
            raise ParameterError(
                f"{program}: iree-opt cannot read it (exit code {process.returncode}): {said[:_SHOWN]}",
                "Use the compiler that the program was written for.",
            )
