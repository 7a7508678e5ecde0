"""Runs a command in a terminal and draws the resulting screen: `python tools/terminal_picture.py`.

Needs `pip install pyte`, a software terminal. Writes the README's picture, docs/pictures/run.svg. The command runs in a
copy of the project with one golden changed, so that a step fails.
"""

from __future__ import annotations

import codecs
import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHECKOUT = Path(__file__).resolve().parent.parent
_PICTURE = _CHECKOUT / "docs" / "pictures" / "run.svg"
_COLUMNS, _LINES = 132, 60
_COMMAND = ["gauntlet", "run", "--suite", "cpu", "--model", "dtln"]
_GOLDEN = Path("specs", "benchmarks", "dtln", "spectral_cpu.json")
_RICH_NAMES = {"brown": "yellow"}


def run_in_terminal(command: Sequence[str], folder: Path) -> tuple[pyte.Screen, int]:
    """Run a command in a terminal and return the final screen and the exit code."""
    screen = pyte.Screen(_COLUMNS, _LINES)
    stream = pyte.Stream(screen)
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS), "LINES": str(_LINES)}
    process = subprocess.Popen(command, cwd=folder, env=environ, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    decoder = codecs.getincrementaldecoder("utf-8")()
    while True:
        try:
            output = os.read(controller, 1 << 16)
        except OSError:
            # Linux reports a closed terminal as an error.
            break
        if not output:
            break
        stream.feed(decoder.decode(output))
    os.close(controller)
    return screen, process.wait()


def draw_svg(screen: pyte.Screen, command: Sequence[str]) -> str:
    """Return a terminal's screen as SVG."""
    lines = [Text.assemble(("$ ", "dim"), (" ".join(command), "bold"))]
    for row in range(screen.lines):
        line = Text()
        for column in range(screen.columns):
            char = screen.buffer[row][column]
            style = Style(color=_translate_color(char.fg), bold=char.bold or None, italic=char.italics or None)
            line.append(char.data, style)
        line.rstrip()
        lines.append(line)
    while not lines[-1].plain:
        lines.pop()
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    # Rich's fonts come from third-party servers, so they are removed; the reader's own fonts suffice.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="IREE Gauntlet"), flags=re.DOTALL)


def _translate_color(name: str) -> str | None:
    if name == "default":
        return None
    is_bright = name.startswith("bright")
    base_name = _RICH_NAMES.get(name.removeprefix("bright"), name.removeprefix("bright"))
    if len(base_name) == 6 and all(digit in "0123456789abcdef" for digit in base_name):
        return f"#{base_name}"
    return f"{'bright_' if is_bright else ''}{base_name}"


def main() -> int:
    """Draw the README's picture and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="gauntlet-picture-") as directory:
        folder = Path(directory) / "models"
        folder.mkdir()
        for part in ("specs", "suites"):
            shutil.copytree(_CHECKOUT / part, folder / part)
        (folder / "cache").mkdir()
        shutil.copy(_CHECKOUT / "cache" / "registry.txt", folder / "cache")
        spec = json.loads((folder / _GOLDEN).read_text(encoding="utf-8"))
        spec["golden_dispatch"]["cpu"] -= 1
        (folder / _GOLDEN).write_text(json.dumps(spec, indent=4) + "\n", encoding="utf-8")
        screen, code = run_in_terminal(_COMMAND, folder)
    _PICTURE.write_text(draw_svg(screen, _COMMAND), encoding="utf-8")
    sys.stdout.write(f"{_PICTURE}: {_PICTURE.stat().st_size / 1e3:.0f} kB; the command ended with {code}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
