"""Runs a command in a terminal and draws what stands there when it has ended: `python tools/terminal_picture.py`.

Needs `pip install pyte`, a terminal in software. Without arguments it makes docs/pictures/run.svg, the README's: in a
copy of the project, a golden of which is broken by hand, so that there is something to see.
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
_NAMES = {"brown": "yellow"}


def screen_after(command: Sequence[str], folder: Path) -> tuple[pyte.Screen, int]:
    """What stands in a terminal when a command has ended there, and its exit code."""
    screen = pyte.Screen(_COLUMNS, _LINES)
    stream = pyte.Stream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS), "LINES": str(_LINES)}
    process = subprocess.Popen(command, cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    decoder = codecs.getincrementaldecoder("utf-8")()
    while True:
        try:
            said = os.read(ours, 1 << 16)
        except OSError:
            # Linux says so when the other side is closed.
            break
        if not said:
            break
        stream.feed(decoder.decode(said))
    os.close(ours)
    return screen, process.wait()


def drawn(screen: pyte.Screen, command: Sequence[str]) -> str:
    """A terminal's screen as SVG."""
    lines = [Text.assemble(("$ ", "dim"), (" ".join(command), "bold"))]
    for row in range(screen.lines):
        line = Text()
        for column in range(screen.columns):
            char = screen.buffer[row][column]
            style = Style(color=_color(char.fg), bold=char.bold or None, italic=char.italics or None)
            line.append(char.data, style)
        line.rstrip()
        lines.append(line)
    while not lines[-1].plain:
        lines.pop()
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    # Rich names fonts of other people's servers; the reader's own will do.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="IREE Gauntlet"), flags=re.DOTALL)


def _color(name: str) -> str | None:
    if name == "default":
        return None
    bright = name.startswith("bright")
    plain = _NAMES.get(name.removeprefix("bright"), name.removeprefix("bright"))
    if len(plain) == 6 and all(digit in "0123456789abcdef" for digit in plain):
        return f"#{plain}"
    return f"{'bright_' if bright else ''}{plain}"


def main() -> int:
    """Makes the README's picture."""
    with tempfile.TemporaryDirectory(prefix="gauntlet-picture-") as name:
        folder = Path(name) / "models"
        folder.mkdir()
        for part in ("specs", "suites"):
            shutil.copytree(_CHECKOUT / part, folder / part)
        (folder / "cache").mkdir()
        shutil.copy(_CHECKOUT / "cache" / "registry.txt", folder / "cache")
        spec = json.loads((folder / _GOLDEN).read_text(encoding="utf-8"))
        spec["golden_dispatch"]["cpu"] -= 1
        (folder / _GOLDEN).write_text(json.dumps(spec, indent=4) + "\n", encoding="utf-8")
        screen, code = screen_after(_COMMAND, folder)
    _PICTURE.write_text(drawn(screen, _COMMAND), encoding="utf-8")
    sys.stdout.write(f"{_PICTURE}: {_PICTURE.stat().st_size / 1e3:.0f} kB; the command ended with {code}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
