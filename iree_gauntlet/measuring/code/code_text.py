"""Reads the text of one dispatch from the files that the compiler dumps, and compares two texts line by line."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class CodeLevel(StrEnum):
    """The forms of a dispatch: machine code, LLVM IR after optimisation, and the configuration that lowers it."""

    ASM = "asm"
    LLVM = "llvm"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class _Format:
    """A kind of dumped file.

    Attributes:
        begin, end: regular expressions of the first and last line of a dispatch (`{}` is its name); empty for files
            that have one dispatch.
        noise: what is left out of a line: positions in the source, numbers of attributes. A line of only noise is left
            out.
        numbered: names that the compiler numbers anew; lines that differ only in them are equal.
    """

    begin: str = ""
    end: str = ""
    noise: str = r"(?!)"
    numbered: str = r"(?!)"


_ASSEMBLY = _Format(
    begin=r'"?{}"?:',
    end=r"\.Lfunc_end",
    noise=r"\s*\.(?:loc|cfi_\w+|file)\b.*|\.L(?:tmp|func_begin)\d+:|\s*(?:#|;|//)(?: |$).*",
)
_LLVM = _Format(
    begin=r'define .*@"?{}"?\(',
    end=r"\}",
    noise=r",? ![\w.]+ ![\w()]+| #\d+(?=$| \{| !)|\s*#dbg_.*|\s*;.*",
    numbered=r"%[\w.$-]*\d+|\b\d+:",
)
_PTX = _Format(begin=r".*\.entry {}\(", end=r"\}", noise=r"\s*(?://|\.loc\b).*", numbered=r"%[a-z]+\d+|\$L\w+")
_MLIR = _Format(numbered=r"%\w+")
# Files by the end of their name.
_FORMATS = {
    CodeLevel.ASM: {".s": _ASSEMBLY, ".rocmasm": _ASSEMBLY, ".ptx": _PTX, ".spirv.mlir": _MLIR},
    CodeLevel.LLVM: {".optimized.ll": _LLVM},
    CodeLevel.CONFIG: {".mlir": _MLIR},
}
_DUMP_FLAGS = {
    CodeLevel.ASM: ("--iree-hal-dump-executable-intermediates-to", "--iree-hal-dump-executable-binaries-to"),
    CodeLevel.LLVM: ("--iree-hal-dump-executable-intermediates-to",),
    CodeLevel.CONFIG: ("--iree-hal-dump-executable-configurations-to",),
}
# Labels have the number of their function in the file: `.LBB3_1`, `.LCPI3_0`.
_LABEL_NUMBER = re.compile(r"(?<=\.LBB|LCPI)\d+(?=_)|(?<=\.LJTI)\d+(?=_)")
# The number of a dispatch in a name: `main$async_dispatch_3_matmul`.
_DISPATCH_NUMBER = re.compile(r"(?<=_dispatch_)\d+")
_CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True)
class DispatchText:
    """The lines of a dispatch, and their keys, by which lines are compared."""

    lines: tuple[str, ...]
    keys: tuple[str, ...]

    def compare(self, b: DispatchText) -> Iterator[tuple[str | None, str | None, int]]:
        """Yield rows: a line of this text, one of another, an equal one of both, or how many equal lines are left out.

        There are a few equal lines around each difference; nothing is yielded if all lines are equal.
        """
        matcher = difflib.SequenceMatcher(None, self.keys, b.keys, autojunk=False)
        end = 0
        for group in matcher.get_grouped_opcodes(_CONTEXT_LINES):
            if left_out := group[0][1] - end:
                yield None, None, left_out
            for kind, a_begin, a_end, b_begin, b_end in group:
                if kind == "equal":
                    equal = zip(self.lines[a_begin:a_end], b.lines[b_begin:b_end], strict=True)
                    yield from ((a_line, b_line, 0) for a_line, b_line in equal)
                else:
                    yield from ((line, None, 0) for line in self.lines[a_begin:a_end])
                    yield from ((None, line, 0) for line in b.lines[b_begin:b_end])
            end = group[-1][2]
        if end and (left_out := len(self.lines) - end):
            yield None, None, left_out


def make_dump_flags(level: CodeLevel, folder: Path) -> tuple[str, ...]:
    """Return the compile flags that dump the files of a level into a folder."""
    return tuple(f"{flag}={folder}" for flag in _DUMP_FLAGS[level])


def read_dispatch_text(folder: Path, level: CodeLevel, name: str) -> DispatchText | None:
    """Read the text of a dispatch from a folder of dumped files; None if no file has the dispatch.

    Positions in the source, the numbers of functions in labels, and the dispatch's own number are left out.
    """
    for path in sorted(folder.iterdir()):
        suffix = next((suffix for suffix in _FORMATS[level] if path.name.endswith(suffix)), "")
        if suffix and (lines := _extract(path.read_text(encoding="utf-8", errors="replace"), suffix, level, name)):
            return _normalize(lines, _FORMATS[level][suffix])
    return None


def _extract(text: str, suffix: str, level: CodeLevel, name: str) -> list[str]:
    file_format = _FORMATS[level][suffix]
    if not file_format.begin:
        return text.splitlines() if re.search(rf'@"?{re.escape(name)}"?(?![\w$])', text) else []
    begin, end = re.compile(file_format.begin.format(re.escape(name))), re.compile(file_format.end)
    lines: list[str] = []
    for line in text.splitlines():
        if lines or begin.match(line):
            lines.append(line)
            if end.match(line):
                return lines
    return lines


def _normalize(lines: Sequence[str], file_format: _Format) -> DispatchText:
    noise, numbered = re.compile(file_format.noise), re.compile(file_format.numbered)
    texts = []
    for line in lines:
        text = noise.sub("", line).rstrip()
        if text:
            texts.append(_DISPATCH_NUMBER.sub("N", _LABEL_NUMBER.sub("", text)).expandtabs(4))
    return DispatchText(tuple(texts), tuple(numbered.sub("%", text) for text in texts))
